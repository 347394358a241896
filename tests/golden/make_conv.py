#!/usr/bin/env python3
"""conv.safetensors: convolutions and their gradients, made with PyTorch.

    python tests/golden/make_conv.py [--out FILE]

Each case has the tensors NAME.x, NAME.w, NAME.b (where there is a bias), NAME.y, NAME.dy,
NAME.dx, NAME.dw, NAME.db. Maps are written channels-last, [B,H,W,C], weights as PyTorch
has them. Values are multiples of 1/16 and the reference is computed in float64,
so that what is stored in float32 is the exact result, rounded once.

tests/test_conv_golden.c has the same table of cases.
"""
import argparse
import os
import zlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

# name: batch, (H, W), channels in, out, (kh, kw), stride, padding, groups, bias, transposed
CASES = {
    "pointwise": (2, (5, 7), 6, 9, (1, 1), 1, 0, 1, True, False),
    "patch": (2, (8, 12), 3, 10, (4, 4), 4, 0, 1, True, False),
    "patch_rest": (1, (10, 7), 3, 5, (4, 4), 4, 0, 1, False, False),
    "same3": (2, (7, 6), 5, 8, (3, 3), 1, 1, 1, False, False),
    "down3": (2, (9, 8), 3, 7, (3, 3), 2, 1, 1, True, False),
    "valid3": (1, (6, 9), 4, 3, (3, 3), 2, 0, 1, True, False),
    "oblong": (1, (8, 7), 3, 4, (5, 2), 3, 2, 1, True, False),
    "sparse1": (1, (7, 6), 4, 5, (1, 1), 2, 0, 1, False, False),
    "depthwise3": (2, (6, 19), 7, 7, (3, 3), 1, 1, 7, True, False),
    "depthwise3_down": (1, (9, 21), 6, 6, (3, 3), 2, 1, 6, True, False),
    "depthwise5": (1, (7, 8), 5, 5, (5, 5), 1, 2, 5, False, False),
    "up2": (2, (4, 5), 7, 3, (2, 2), 2, 0, 1, True, True),
    "up4": (1, (5, 3), 6, 4, (4, 4), 2, 1, 1, True, True),
    "up3": (1, (4, 6), 3, 5, (3, 3), 1, 1, 1, False, True),
    "up3_gaps": (1, (3, 4), 4, 2, (2, 2), 3, 0, 1, True, True),
}


def values(name, shape):
    """Normal values rounded to multiples of 1/16, a function of only the name."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (x * 16).round() / 16


def channels_last(x):
    return x.detach().permute(0, 2, 3, 1)


def make(name, batch, size, cin, cout, kernel, stride, padding, groups, bias, transposed):
    x = values(name + ".x", (batch, cin, *size)).requires_grad_()
    shape = (cin, cout) if transposed else (cout, cin // groups)
    w = values(name + ".w", (*shape, *kernel)).requires_grad_()
    b = values(name + ".b", (cout,)).requires_grad_() if bias else None
    if transposed:
        y = F.conv_transpose2d(x, w, b, stride=stride, padding=padding)
    else:
        y = F.conv2d(x, w, b, stride=stride, padding=padding, groups=groups)
    dy = values(name + ".dy", y.shape)
    y.backward(dy)
    out = {"x": channels_last(x), "w": w.detach(), "y": channels_last(y), "dy": channels_last(dy),
           "dx": channels_last(x.grad), "dw": w.grad}
    if bias:
        out.update(b=b.detach(), db=b.grad)
    return {f"{name}.{k}": v.to(torch.float32).contiguous() for k, v in out.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "conv.safetensors"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tensors = {}
    for name, case in CASES.items():
        tensors.update(make(name, *case))
    save_file(tensors, arguments.out)
    print(f"{len(CASES)} cases, {len(tensors)} tensors, {os.path.getsize(arguments.out)} bytes")


if __name__ == "__main__":
    main()
