#!/usr/bin/env python3
"""A Llama's training step in PyTorch on a GPU, all bf16 (weights, gradients, AdamW's moments), fused AdamW.

    peer_lm.py --rows FILE --modes eager,eager+checkpoint,compile,compile+checkpoint

The sizes are those of our preset llama-1b (TinyLlama: 22 layers, hidden size 2048, 32 heads, 4 key-value heads,
intermediate size 5632, 32000 tokens). `compile` compiles the whole model with its loss; with --by-block it compiles
one layer, shared by all layers, and the head, which is faster to compile. The loss uses f32 logits. `float8` converts
the layers' linear modules by torchao, with a scale for each tensor, or (float8-rowwise, float8-rowwise_with_gw_hp) for
each row. --tiny: a small model, for testing on a CPU."""
import argparse
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from peer import GPU, DEVICE, Rows, clean, measure

SHAPES = {"1b": dict(tokens=32000, width=2048, inner=5632, layers=22, heads=32, groups=4), "tiny": dict(tokens=256, width=64, inner=176, layers=2, heads=4, groups=2)}


class Layer(nn.Module):
    def __init__(self, width, inner, heads, groups):
        super().__init__()
        self.size = width // heads
        narrow = groups * self.size
        linear = lambda i, o: nn.Linear(i, o, bias=False)  # noqa: E731
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.k, self.v, self.o = linear(width, width), linear(width, narrow), linear(width, narrow), linear(width, width)
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

    def forward(self, x, cosine, sine):
        B, T, _ = x.shape
        y = self.norm1(x)
        q, k, v = (p(y).view(B, T, -1, self.size).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (t * cosine + torch.cat((-t[..., self.size // 2:], t[..., : self.size // 2]), -1) * sine for t in (q, k))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(o.transpose(1, 2).reshape(B, T, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Head(nn.Module):
    def __init__(self, width, tokens):
        super().__init__()
        self.norm, self.out = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, tokens, bias=False)

    def forward(self, x, labels):
        return F.cross_entropy(self.out(self.norm(x)).float().flatten(0, 1), labels.flatten())


@functools.cache
def compiled():
    """One function for all layers: the code compiled for one layer serves the others."""
    def call(module, *inputs):
        return module(*inputs)
    return torch.compile(call, dynamic=False)


class Model(nn.Module):
    def __init__(self, tokens, width, inner, layers, heads, groups):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList([Layer(width, inner, heads, groups) for _ in range(layers)])
        self.head = Head(width, tokens)
        self.recompute = self.by_block = False

    def callable_of(self, module):
        return functools.partial(compiled(), module) if self.by_block else module

    def forward(self, ids, labels):
        T, size = ids.shape[1], self.layers[0].size
        rate = 10000.0 ** (-torch.arange(0, size, 2, device=ids.device) / size)
        angle = torch.outer(torch.arange(T, device=ids.device), rate).repeat(1, 2)
        x = self.embedding(ids)
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            call = self.callable_of(layer)
            x = checkpoint(call, x, cosine, sine, use_reentrant=False) if self.recompute else call(x, cosine, sine)
        return self.callable_of(self.head)(x, labels)


def run(mode, shape, a):
    with torch.device(DEVICE):
        model = Model(**shape).bfloat16()
    model.recompute = "checkpoint" in mode
    if "float8" in mode:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        recipe = mode[mode.index("float8"):].split("+")[0].partition("-")[2] or "tensorwise"
        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe), module_filter_fn=lambda _, name: name.startswith("layers."))
    call = model
    if "compile" in mode and a.by_block:
        model.by_block = True
    elif "compile" in mode:
        call = torch.compile(model, dynamic=False, backend=a.backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids, labels = (torch.randint(0, shape["tokens"], (a.batch, a.length), device=DEVICE) for _ in range(2))

    def step():
        call(ids, labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    measured = measure(step, a.warm, a.steps)
    count = sum(p.numel() for p in model.parameters())
    tokens = a.batch * a.length
    flops = 6 * count * tokens + 6 * shape["layers"] * shape["width"] * a.length * tokens  # half of all pairs in attention
    return measured | {"parameters": count, "per_second": 1e3 * tokens / measured["median_ms"], "tflops": 1e-9 * flops / measured["median_ms"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", required=True, help="file that rows are added to")
    p.add_argument("--modes", default="eager,eager+checkpoint,compile,compile+checkpoint")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--by-block", action="store_true")
    p.add_argument("--backend", default="inductor", help="backend of torch.compile; aot_eager: for testing on a CPU")
    p.add_argument("--warm", type=int, default=3)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--tiny", action="store_true")
    a = p.parse_args()
    rows = Rows(a.rows)
    torch._dynamo.config.cache_size_limit = 64
    for mode in a.modes.split(","):
        if not GPU and "compile" in mode and a.backend == "inductor":
            continue
        rows.attempt(lambda: run(mode, SHAPES["tiny" if a.tiny else "1b"], a), side="peer", what="lm", mode=mode + (", by block" if "compile" in mode and a.by_block else ""))
        clean(compiled=True)


if __name__ == "__main__":
    main()
