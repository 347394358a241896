#!/usr/bin/env python3
"""Segment Anything's training step in PyTorch on a GPU, bf16 autocast with f32 weights, fused AdamW:

    sam       transformers' SamModel, or Sam2Model (2b: Hiera-B+, 2l: Hiera-L), with sdpa, 1024 x 1024, a point for each of 32 masks; focal + dice + IoU on 256 x 256
    encoder   the image encoder alone, written by hand for speed: compiled blocks, one function for windows and one for
              the grid, positions by a wider head through SDPA (peer_attention.py); mean of squares as the loss

    peer_sam.py --rows FILE --models b,h --batches 1,2,4,8 --recompute none,checkpoint
    peer_sam.py --rows FILE --encoders h:4,h:4:checkpoint,h:8,b:8
    peer_sam.py --rows FILE --budget 24 --models h --tries none:1,checkpoint:4,checkpoint:5

--budget limits the allocator, in GiB. --tiny: two blocks and small images, for testing on a CPU."""
import argparse
import functools
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from peer import GPU, DEVICE, Rows, clean, measure
from peer_attention import ROUTES

GIB = 2 ** 30
SHAPES = {  # hidden size, blocks, heads, indices of the blocks with global attention
    "b": (768, 12, 12, (2, 5, 8, 11)),
    "h": (1280, 32, 16, (7, 15, 23, 31)),
    "tiny": (64, 2, 2, (1,)),
}
HIERA = {  # keys of SAM 2's backbone_config
    "2b": dict(hidden_size=112, num_attention_heads=2, blocks_per_stage=[2, 3, 16, 3], embed_dim_per_stage=[112, 224, 448, 896],
               num_attention_heads_per_stage=[2, 4, 8, 16], window_size_per_stage=[8, 4, 14, 7], global_attention_blocks=[12, 16, 20],
               window_positional_embedding_background_size=[14, 14]),
    "2l": dict(hidden_size=144, num_attention_heads=2, blocks_per_stage=[2, 6, 36, 4], embed_dim_per_stage=[144, 288, 576, 1152],
               num_attention_heads_per_stage=[2, 4, 8, 16], window_size_per_stage=[8, 4, 16, 8], global_attention_blocks=[23, 33, 43],
               window_positional_embedding_background_size=[7, 7]),
}


# --- transformers' model ------------------------------------------------------------------------

def sam2_config(kind, image):
    from transformers import Sam2Config
    backbone = HIERA[kind] | dict(model_type="sam2_hiera_det_model", image_size=[image, image])
    vision = dict(model_type="sam2_vision_model", backbone_config=backbone, backbone_channel_list=backbone["embed_dim_per_stage"][::-1],
                  backbone_feature_sizes=[[image // 4] * 2, [image // 8] * 2, [image // 16] * 2])
    return Sam2Config(vision_config=vision, prompt_encoder_config=dict(image_size=image))


def sam_config(kind, image):
    from transformers import SamConfig, SamVisionConfig
    width, blocks, heads, whole = SHAPES[kind]
    vision = SamVisionConfig(hidden_size=width, num_hidden_layers=blocks, num_attention_heads=heads, mlp_dim=4 * width,
                             global_attn_indexes=list(whole), image_size=image, window_size=14)
    config = SamConfig(vision_config=vision.to_dict())
    config.prompt_encoder_config.image_size = image
    config.prompt_encoder_config.image_embedding_size = image // 16
    return config


def make_sam(kind, image):
    from transformers import Sam2Model, SamModel
    cls, config = (Sam2Model, sam2_config(kind, image)) if kind in HIERA else (SamModel, sam_config(kind, image))
    try:
        with torch.device(DEVICE):  # initialising the weights on the host would take longer than all steps
            model = cls._from_config(config, attn_implementation="sdpa")
    except Exception as e:
        warnings.warn(f"weights are drawn on the host: {e}")
        model = cls._from_config(config, attn_implementation="sdpa")
    return model.to(DEVICE).train()


def mask_loss(logits, scores, target):
    """logits [B,M,K,h,h] of K candidates, scores [B,M,K], target [B,M,h,h]: 20 focal + dice of the best, and its IoU's error."""
    on = target[:, :, None].expand_as(logits)
    entropy = F.binary_cross_entropy_with_logits(logits, on, reduction="none")
    focal = (0.25 * (1 - torch.exp(-entropy)) ** 2 * entropy).mean((-2, -1))
    p = logits.sigmoid()
    dice = 1 - (2 * (p * on).sum((-2, -1)) + 1) / (p.sum((-2, -1)) + on.sum((-2, -1)) + 1)
    per, best = (20 * focal + dice).min(2)
    with torch.no_grad():
        both = ((logits > 0) & (on > 0)).sum((-2, -1))
        iou = both / ((logits > 0) | (on > 0)).sum((-2, -1)).clamp(min=1)
    error = (scores - iou) ** 2
    return (per + error.gather(2, best[..., None])[..., 0]).mean()


def sam_step(model, optimizer, B, a):
    side = a.image // 4
    pixels = torch.randn(B, 3, a.image, a.image, device=DEVICE)
    points = torch.rand(B, a.masks, 1, 2, device=DEVICE) * a.image
    labels = torch.ones(B, a.masks, 1, device=DEVICE, dtype=torch.int64)
    target = (torch.rand(B, a.masks, side, side, device=DEVICE) > 0.5).float()

    def step():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=GPU):
            out = model(pixel_values=pixels, input_points=points, input_labels=labels, multimask_output=a.candidates > 1)
        mask_loss(out.pred_masks.float(), out.iou_scores.float(), target).backward()
        del out
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return step


def run_sam(a, rows):
    tries = [t.split(":") for t in a.tries.split(",")] if a.tries else [(r, b) for r in a.recompute.split(",") for b in a.batches.split(",")]
    for kind in a.models.split(","):
        model = make_sam(kind, a.image)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        for recompute, B in tries:
            if recompute == "none":
                model.gradient_checkpointing_disable()
            else:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

            def run():
                seen = measure(sam_step(model, optimizer, int(B), a), a.warm, a.steps)
                return seen | {"per_second": 1e3 * int(B) / seen["median_ms"]}
            rows.attempt(run, side="peer", what="sam", model=kind, batch=int(B), recompute=recompute, budget=a.budget,
                         parameters=sum(p.numel() for p in model.parameters()))
            optimizer.zero_grad(set_to_none=True)
            clean()
        del model, optimizer
        clean()


# --- the encoder, by hand -----------------------------------------------------------------------

class Attention(nn.Module):
    def __init__(self, width, heads, side, route):
        super().__init__()
        self.heads, self.side, self.route = heads, side, ROUTES[route]
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table_h = nn.Parameter(torch.zeros(2 * side - 1, width // heads))
        self.table_w = nn.Parameter(torch.zeros(2 * side - 1, width // heads))

    def forward(self, x):  # [B,side,side,C]
        B, H, W, C = x.shape
        q, k, v = self.qkv(x).view(B, H * W, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        o = self.route(q, k, v, self.table_h.to(q.dtype), self.table_w.to(q.dtype), H, W)
        return self.proj(o.transpose(1, 2).reshape(B, H, W, C))


class Block(nn.Module):
    def __init__(self, width, heads, window, grid, route):
        super().__init__()
        self.window = window
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads, window or grid, route)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, H, W, C = x.shape
        y, s = self.norm1(x), self.window
        if s:
            edge = -H % s
            n = (H + edge) // s
            y = F.pad(y, (0, 0, 0, edge, 0, edge)).view(B, n, s, n, s, C).transpose(2, 3).reshape(B * n * n, s, s, C)
            y = self.attention(y).view(B, n, n, s, s, C).transpose(2, 3).reshape(B, n * s, n * s, C)[:, :H, :W]
        else:
            y = self.attention(y)
        x = x + y
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@functools.cache
def compiled():
    """One function for all blocks: the code compiled for one window block serves the others."""
    def take(block, x):
        return block(x)
    return torch.compile(take, dynamic=False)


class Encoder(nn.Module):
    def __init__(self, kind, image, routes, recompute):
        super().__init__()
        width, blocks, heads, whole = SHAPES[kind]
        grid = image // 16
        self.recompute = recompute
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.place = nn.Parameter(torch.zeros(1, grid, grid, width))
        self.blocks = nn.ModuleList([Block(width, heads, 0 if i in whole else 14, grid, routes[i not in whole]) for i in range(blocks)])
        self.neck = nn.Sequential(nn.Conv2d(width, 256, 1, bias=False), nn.GroupNorm(1, 256), nn.Conv2d(256, 256, 3, padding=1, bias=False), nn.GroupNorm(1, 256))

    def forward(self, pixels):
        x = self.patches(pixels).permute(0, 2, 3, 1) + self.place
        for block in self.blocks:
            take = functools.partial(compiled(), block) if GPU else block
            x = checkpoint(take, x, use_reentrant=False) if self.recompute != "none" else take(x)
        return self.neck(x.permute(0, 3, 1, 2))


def run_encoder(kind, B, recompute, a):
    with torch.device(DEVICE):
        model = Encoder(kind, a.image, a.routes.split(","), recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    pixels = torch.randn(B, 3, a.image, a.image, device=DEVICE)

    def step():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=GPU):
            loss = model(pixels).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seen = measure(step, max(a.warm, 3), a.steps)
    return seen | {"per_second": 1e3 * B / seen["median_ms"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", required=True, help="file that rows are added to")
    p.add_argument("--models", default="")
    p.add_argument("--batches", default="1,2,4,8")
    p.add_argument("--recompute", default="none,checkpoint")
    p.add_argument("--tries", default="", help="RECOMPUTE:B,... instead of all of --recompute and --batches")
    p.add_argument("--encoders", default="", help="MODEL:B[:checkpoint],...")
    p.add_argument("--routes", default="widened,widened", help="routes of the encoder's blocks with global attention, and of those with windows")
    p.add_argument("--budget", type=float, default=0)
    p.add_argument("--masks", type=int, default=32)
    p.add_argument("--candidates", type=int, default=1, help="1 or 3 masks for a prompt; the loss takes the best")
    p.add_argument("--warm", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--tiny", action="store_true")
    a = p.parse_args()
    a.image = 1024
    if a.tiny:
        a.image, a.masks = 256, 2
    if a.budget and GPU:
        torch.cuda.set_per_process_memory_fraction(a.budget * GIB / torch.cuda.mem_get_info()[1])
    torch._dynamo.config.cache_size_limit = 64
    rows = Rows(a.rows)
    if a.models:
        run_sam(a, rows)
    before = None
    for spec in filter(None, a.encoders.split(",")):
        kind, B, recompute = (spec.split(":") + ["none"])[:3]
        clean(compiled=before != (kind, B))  # compiled blocks serve with and without checkpointing
        before = (kind, B)
        rows.attempt(lambda: run_encoder(kind, int(B), recompute, a), side="peer", what="encoder", model=kind, batch=int(B), recompute=recompute, budget=a.budget)


if __name__ == "__main__":
    main()
