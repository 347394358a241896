#!/usr/bin/env python3
"""The LM step of bench/lm.sh in PyTorch: a Llama-shaped model of 124 M weights, AdamW,
clipping. Prints the seconds of each step and the memory report of bench/common.py."""
import argparse
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, __file__.rsplit("/", 1)[0])
from common import Memory  # noqa: E402

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--batch", type=int, default=2)
p.add_argument("--sequence", type=int, default=512)
p.add_argument("--steps", type=int, default=3)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--precision", choices=["f32", "bf16"], default="f32", help="bf16: autocast over f32 weights")
a = p.parse_args()

torch.set_num_threads(a.threads)
torch.manual_seed(0)
memory = Memory()
config = LlamaConfig(vocab_size=50257, hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
                     num_attention_heads=12, num_key_value_heads=12, max_position_embeddings=1024,
                     tie_word_embeddings=True)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
ids = torch.randint(0, 256, (a.batch, a.sequence))
for _ in range(a.steps):
    begun = time.time()
    with torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16"):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"seconds {time.time() - begun:.3f}", flush=True)
memory.report(model, optimizer)
