#!/usr/bin/env python3
"""The step of bench/sam.sh in PyTorch: transformers' SamModel, ViT-B, one image of 1024 x 1024,
one point for each mask, our loss (docs/reference/sam.md) over the 3 candidates, AdamW. Prints the seconds
of each step and the memory report of bench/common.py."""
import argparse
import sys
import time

import torch
import torch.nn.functional as F
from transformers import SamConfig, SamModel, SamVisionConfig

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from common import Memory  # noqa: E402

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--masks", type=int, default=32)
p.add_argument("--steps", type=int, default=2)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
p.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="bf16: autocast over f32 weights")
p.add_argument("--checkpoint", action="store_true", help="gradient checkpointing of every block of the encoder")
p.add_argument("--blocks", default="WWGWWGWWGWWG", help="the encoder's blocks, W: window, G: global attention; fewer blocks where a whole step takes too long")
a = p.parse_args()


def mask_loss(logits, scores, target, alpha=0.25, gamma=2.0, smooth=1.0):
    """logits [N,K,h,h], scores [N,K], target [N,h,h] -> mean over N of the best candidate's loss."""
    g = target[:, None].expand_as(logits)
    bce = F.binary_cross_entropy_with_logits(logits, g, reduction="none")
    p = logits.sigmoid()
    missing = 1 - (p * g + (1 - p) * (1 - g))
    focal = ((alpha * g + (1 - alpha) * (1 - g)) * missing**gamma * bce).mean((-2, -1))
    dice = 1 - (2 * (p * g).sum((-2, -1)) + smooth) / (p.sum((-2, -1)) + g.sum((-2, -1)) + smooth)
    per, best = (20 * focal + dice).min(1)
    on = logits.detach().gather(1, best[:, None, None, None].expand(-1, 1, *logits.shape[2:]))[:, 0] > 0
    both, either = (on & (target > 0)).sum((-2, -1)), (on | (target > 0)).sum((-2, -1))
    iou = both / either.clamp(min=1)
    return (per + (scores.gather(1, best[:, None])[:, 0] - iou) ** 2).mean()


torch.set_num_threads(a.threads)
torch.manual_seed(0)
memory = Memory()
vision = SamVisionConfig(num_hidden_layers=len(a.blocks), global_attn_indexes=[i for i, kind in enumerate(a.blocks) if kind == "G"])
model = SamModel._from_config(SamConfig(vision_config=vision), attn_implementation=a.attention).train()
if a.checkpoint:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.shared_image_embedding.positional_embedding.requires_grad_(False)  # fixed frequencies, not trained
optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-4)
pixels = torch.randn(1, 3, 1024, 1024)
points = torch.rand(1, a.masks, 1, 2) * 1024
labels = torch.ones(1, a.masks, 1, dtype=torch.int64)
target = (torch.rand(a.masks, 256, 256) > 0.5).float()
for _ in range(a.steps):
    begun = time.time()
    with torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16"):
        out = model(pixel_values=pixels, input_points=points, input_labels=labels, multimask_output=True)
    loss = mask_loss(out.pred_masks[0].float(), out.iou_scores[0].float(), target)
    loss.backward()
    del out
    optimizer.step()
    optimizer.zero_grad()
    print(f"seconds {time.time() - begun:.3f}", flush=True)
memory.report(model, optimizer)
