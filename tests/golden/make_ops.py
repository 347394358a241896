#!/usr/bin/env python3
"""Golden values of single ops on maps: resizing, average pooling, batch normalisation.

    python tests/golden/make_ops.py [--out FILE] [--seed N]

Writes tests/golden/ops.safetensors, which tests/test_ops_golden.c reads. A case CASE is

    CASE.attr              i32: the op's attributes (below)
    CASE.x, CASE.w, ...    inputs; maps are [B,H,W,C], channels last
    CASE.y, CASE.dy        the result, and the weights of sum(y dy), the loss
    CASE.dx, CASE.dw, ...  gradients of that loss

    resize*     attr H2, W2, align_corners; torch.nn.functional.interpolate, bilinear
    linear*     the same with W = W2 = 1; interpolate, linear, on [B,C,T]
    pool*       attr kh, kw, sh, sw, ph, pw, count_include_pad; avg_pool2d
    adaptive*   attr H2, W2; adaptive_avg_pool2d
    batch*      attr images of a group; number: eps, momentum; BatchNorm2d in training, one
                group after the other; mean, var and new_mean, new_var: the running statistics
                before and after
    instance*   InstanceNorm2d with affine
    frozen*     BatchNorm2d in evaluation

What holds: inputs are float32 and everything is computed from them in float64, so the
expectations carry one rounding. Seeds are fixed: the same torch gives the same bytes.
"""
import argparse
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))

# B, H, W, C, then the attributes.
RESIZE = {
    "resize_up": ((2, 5, 7, 3), (9, 16, 0)),
    "resize_twice": ((1, 4, 3, 2), (8, 6, 0)),
    "resize_down": ((2, 9, 11, 2), (4, 3, 0)),
    "resize_align": ((2, 5, 7, 3), (9, 16, 1)),
    "resize_align_down": ((1, 9, 11, 2), (4, 3, 1)),
    "resize_align_one": ((1, 5, 4, 2), (1, 1, 1)),
    "resize_from_one": ((1, 1, 1, 3), (3, 4, 0)),
    "linear_up": ((2, 7, 1, 3), (19, 1, 0)),
    "linear_down": ((2, 17, 1, 3), (5, 1, 0)),
    "linear_align": ((2, 7, 1, 3), (19, 1, 1)),
}
POOL = {
    "pool_same": ((2, 7, 5, 3), (3, 3, 1, 1, 1, 1, 1)),
    "pool_uncounted": ((2, 7, 5, 3), (3, 3, 1, 1, 1, 1, 0)),
    "pool_stride": ((1, 9, 8, 2), (3, 2, 2, 2, 1, 0, 0)),
    "pool_long": ((1, 40, 1, 3), (31, 1, 1, 1, 15, 0, 0)),
    "pool_gaps": ((1, 9, 7, 2), (2, 2, 3, 3, 0, 0, 1)),
}
ADAPTIVE = {
    "adaptive_divides": ((2, 6, 8, 3), (3, 2)),
    "adaptive_uneven": ((2, 5, 7, 3), (3, 4)),
    "adaptive_larger": ((1, 2, 3, 2), (5, 6)),
}
NORM = {
    "batch_all": ((3, 4, 5, 6), 3),
    "batch_groups": ((4, 3, 2, 5), 2),
    "instance": ((3, 4, 5, 6), 1),
    "frozen": ((2, 3, 4, 5), 2),
}
EPS, MOMENTUM = 1e-3, 0.1


def first(x):
    """Channels first, as torch wants them."""
    return x.permute(0, 3, 1, 2)


def last(x):
    return x.permute(0, 2, 3, 1)


def resize(x, attr, name):
    H, W, align = attr
    if name.startswith("linear"):
        line = first(x)[:, :, :, 0]
        return last(F.interpolate(line, size=H, mode="linear", align_corners=bool(align)).unsqueeze(3))
    return last(F.interpolate(first(x), size=(H, W), mode="bilinear", align_corners=bool(align)))


def pool(x, attr, name):
    return last(F.avg_pool2d(first(x), attr[0:2], attr[2:4], attr[4:6], count_include_pad=bool(attr[6])))


def adaptive(x, attr, name):
    return last(F.adaptive_avg_pool2d(first(x), attr))


def norm_module(name, C):
    kind = torch.nn.InstanceNorm2d if name == "instance" else torch.nn.BatchNorm2d
    module = kind(C, eps=EPS, momentum=MOMENTUM, affine=True).double()
    return module.eval() if name == "frozen" else module


def check_values(out, name, values, gradients):
    for key, value in {**values, **gradients}.items():
        out[f"{name}.{key}"] = value.detach().float().contiguous()


def linear_case(out, name, shape, attr, op):
    x = torch.randn(shape).double().requires_grad_()
    y = op(x, attr, name)
    dy = torch.randn(y.shape).double()
    (y * dy).sum().backward()
    out[f"{name}.attr"] = torch.tensor(attr, dtype=torch.int32)
    check_values(out, name, dict(x=x, y=y, dy=dy), dict(dx=x.grad))


def norm_case(out, name, shape, group):
    module = norm_module(name, shape[3])
    x = (torch.randn(shape) * 2 + 1).double().requires_grad_()
    with torch.no_grad():
        module.weight.copy_(torch.randn(shape[3]))
        module.bias.copy_(torch.randn(shape[3]))
        if name != "instance":
            module.running_mean.copy_(torch.randn(shape[3]))
            module.running_var.copy_(torch.rand(shape[3]) + 0.5)
    before = {k: v.clone() for k, v in module.named_buffers() if v.dim()}
    # All at once for the others: their result does not depend on the split, and
    # InstanceNorm2d of torch 2.15 gives a wrong dx for one image when dy is channels last.
    parts = x.split(group) if name.startswith("batch") else [x]
    y = torch.cat([last(module(first(part))) for part in parts])
    dy = torch.randn(y.shape).double()
    (y * dy).sum().backward()
    out[f"{name}.attr"] = torch.tensor([group], dtype=torch.int32)
    out[f"{name}.number"] = torch.tensor([EPS, MOMENTUM])
    check_values(out, name, dict(x=x, w=module.weight, b=module.bias, y=y, dy=dy),
                 dict(dx=x.grad, dw=module.weight.grad, db=module.bias.grad))
    for short in ("mean", "var"):
        if before:
            out[f"{name}.{short}"] = before[f"running_{short}"].float()
            out[f"{name}.new_{short}"] = getattr(module, f"running_{short}").float()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(HERE, "ops.safetensors"))
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    out = {}
    for cases, op in ((RESIZE, resize), (POOL, pool), (ADAPTIVE, adaptive)):
        for name, (shape, attr) in cases.items():
            linear_case(out, name, shape, attr, op)
    for name, (shape, group) in NORM.items():
        norm_case(out, name, shape, group)
    save_file(out, options.out)
    print(f"{options.out}: {len(out)} tensors, {os.path.getsize(options.out)} bytes")


if __name__ == "__main__":
    main()
