"""Expectations of tests/test_optim.c: updates by others.

    python tests/golden/make_optim.py        writes tests/golden/optim.safetensors

Needs torch, transformers, bitsandbytes (its CPU build) and safetensors. What is in the file:

    map.signed, map.unsigned          bitsandbytes' dynamic maps, 256 values each
    adamw8.*                          bitsandbytes' AdamW8bit on the CPU, blocks of 256 (see nearest()): weight, gradient of each
                                      step, and behind step 1 and step STEPS8 the weight, codes and absmax
    sgd.*, adafactor_matrix.*, ...    torch.optim.SGD and transformers' Adafactor: the weight at the start,
                                      the gradient of each of STEPS steps, the weight at the end
"""
import pathlib

import bitsandbytes.backends.cpu.ops as on_cpu
import torch
from bitsandbytes.functional import create_dynamic_map
from bitsandbytes.optim import AdamW8bit
from safetensors.torch import save_file
from transformers.optimization import Adafactor

STEPS, STEPS8 = 10, 3
out = {}


def gradients(generator, shape, n):
    """Of sizes that differ by rows and from step to step, as real ones do."""
    scale = torch.exp(torch.randn(shape[0], *[1] * (len(shape) - 1), generator=generator))
    return [torch.randn(shape, generator=generator) * scale * 0.1 / (1 + k) for k in range(n)]


def train(name, shape, make, seed):
    generator = torch.Generator().manual_seed(seed)
    p = torch.nn.Parameter(torch.randn(shape, generator=generator))
    optimizer = make([p])
    out[f"{name}.p"] = p.detach().clone()
    grads = gradients(generator, shape, STEPS)
    for g in grads:
        p.grad = g.clone()
        optimizer.step()
    out[f"{name}.g"] = torch.stack(grads)
    out[f"{name}.end"] = p.detach().clone()


def adafactor(ps):
    return Adafactor(ps, lr=0.01, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8, beta1=None,
                     weight_decay=0.1, relative_step=False, scale_parameter=False, warmup_init=False)


def adamw8(seed):
    """4141 elements: the last of 17 blocks is not full."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.nn.Parameter(torch.randn(41, 101, generator=generator))
    optimizer = AdamW8bit([p], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, min_8bit_size=4096)
    out["adamw8.p"] = p.detach().clone()
    grads = gradients(generator, p.shape, STEPS8)
    for k, g in enumerate(grads):
        p.grad = g.clone()
        optimizer.step()
        if k in (0, STEPS8 - 1):
            state = optimizer.state[p]
            assert state["state1"].dtype == torch.uint8
            for ours, theirs in (("m", "state1"), ("v", "state2"), ("m_absmax", "absmax1"), ("v_absmax", "absmax2")):
                out[f"adamw8.{ours}{k + 1}"] = state[theirs].clone().contiguous()
            out[f"adamw8.p{k + 1}"] = p.detach().clone()
    out["adamw8.g"] = torch.stack(grads)


def nearest(x, code, absmax, to, block):
    """bitsandbytes' rule, as on a GPU and in its portable code: borders in the middle between two values. Its
    compiled CPU code (0.50.2) looks small values up in a coarse table: 1e-9 of a block's largest becomes 2e-5 of it."""
    parts = x.reshape(-1).float().split(block)
    absmax.copy_(torch.stack([p.abs().max() for p in parts]))
    scaled = torch.cat([p / a for p, a in zip(parts, absmax)])
    to.copy_(torch.bucketize(scaled, (code[:-1] + code[1:]) / 2).to(torch.uint8).reshape(x.shape))


on_cpu._quant_blockwise_fp32_direct = nearest
torch.set_num_threads(1)
out["map.signed"] = create_dynamic_map(signed=True)
out["map.unsigned"] = create_dynamic_map(signed=False)
adamw8(1)
train("sgd_momentum", (7, 30), lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=0.1), 2)
train("sgd_plain", (7, 30), lambda ps: torch.optim.SGD(ps, lr=0.05, weight_decay=0.1), 3)
train("adafactor_matrix", (12, 30), adafactor, 4)
train("adafactor_kernel", (6, 5, 3, 3), adafactor, 5)
train("adafactor_vector", (300,), adafactor, 6)
path = pathlib.Path(__file__).parent / "optim.safetensors"
save_file({k: v.contiguous() for k, v in out.items()}, path)
print(f"{path}: {path.stat().st_size} bytes, {len(out)} tensors")
