#!/usr/bin/env python3
"""Writes nf4.safetensors: weights, and what bitsandbytes computes from them in NF4.

    python make_nf4.py [OUT.safetensors]

needs torch, bitsandbytes (made with 2.15 and 0.50.2, on the CPU) and safetensors. A case N is

    N.weight     f32, bf16 or f16, any shape
    N.codes      u8: two weights per byte
    N.scales     u8, N.absmax f32, N.offset f32 []: the scales, with double quantization
    N.plain      f32: the scales without it
    N.f32, N.bf16, N.f16    the weights dequantized

and "map" is the map of the scales. Rows of an odd multiple of 32 weights are left out: there the
AVX-512 kernel of bitsandbytes 0.50.2 dequantizes with the scales of other blocks.
"""
import sys
import torch
import bitsandbytes.functional as F
from safetensors.torch import save_file

torch.manual_seed(19)
torch.set_num_threads(1)
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def weights():
    for i, shape in enumerate([(1,), (7,), (64,), (65,), (3, 43), (9, 31), (17, 33), (64, 64), (100, 50), (128, 192), (5, 7, 11)]):
        yield (torch.randn(shape) * 0.05).to(list(DTYPES.values())[i % 3])
    yield torch.zeros(10, 13)
    yield torch.zeros(2, 64, dtype=torch.bfloat16)
    yield torch.ones(4, 64, dtype=torch.float16)
    rows = torch.randn(20, 70)
    rows[3:9] = 0
    yield rows.bfloat16()
    huge = torch.randn(11, 50)
    huge[3, 5] = 3e38
    yield huge
    huge = torch.randn(11, 50)
    huge[3, 5] = 6e4
    yield huge.half()
    yield torch.randn(30, 30) * 1e-30
    yield torch.full((3, 33), 1e-41)
    yield torch.randn(40, 66) * torch.exp(2 * torch.randn(40, 1))


out = {"map": F.create_dynamic_map()}
for i, w in enumerate(weights()):
    codes, state = F.quantize_4bit(w, compress_statistics=True, quant_type="nf4")
    plain = F.quantize_4bit(w, compress_statistics=False, quant_type="nf4")[1]
    out[f"{i}.weight"] = w
    out[f"{i}.codes"] = codes.reshape(-1)
    out[f"{i}.scales"] = state.absmax
    out[f"{i}.absmax"] = state.state2.absmax
    out[f"{i}.offset"] = state.offset
    out[f"{i}.plain"] = plain.absmax
    for name, dtype in DTYPES.items():
        state.dtype = dtype
        out[f"{i}.{name}"] = F.dequantize_4bit(codes, state).reshape(-1).clone()
save_file({k: v.contiguous() for k, v in out.items()}, sys.argv[1] if len(sys.argv) > 1 else "nf4.safetensors")
print(i + 1, "cases", sum(v.numel() for k, v in out.items() if k.endswith("weight")), "weights")
