#!/usr/bin/env python3
"""The vision tower's step of bench/tower.sh in PyTorch: CLIP ViT-B/16, images of 224 x 224,
loss = mean of squares of last_hidden_state, AdamW. Prints the seconds of each step and the memory
report of bench/common.py."""
import argparse
import sys
import time

import torch
from transformers import CLIPVisionConfig, CLIPVisionModel

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from common import Memory  # noqa: E402

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--batch", type=int, default=4)
p.add_argument("--steps", type=int, default=3)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="bf16: autocast over f32 weights")
a = p.parse_args()

torch.set_num_threads(a.threads)
torch.manual_seed(0)
memory = Memory()
model = CLIPVisionModel(CLIPVisionConfig(patch_size=16, attn_implementation="sdpa"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
pixels = torch.randn(a.batch, 3, 224, 224)
for _ in range(a.steps):
    begun = time.time()
    with torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16"):
        loss = model(pixel_values=pixels).last_hidden_state.float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"seconds {time.time() - begun:.3f}", flush=True)
memory.report(model, optimizer)
