#!/usr/bin/env python3
"""Golden values of the ops of segmentation: attention over a grid, windows, encoded points,
the loss of masks.

    python tests/golden/make_masks.py [--out FILE] [--seed N]

Writes tests/golden/masks.safetensors, which tests/test_ops_golden.c reads. A case CASE is

    CASE.attr              f32: the op's attributes (below)
    CASE.q, CASE.x, ...    inputs; maps are [B,H,W,C], channels last, heads [B,T,H,D]
    CASE.y, CASE.dy        the result, and the weights of sum(y dy), the loss
    CASE.dq, CASE.dx, ...  gradients of that loss

    rel*      attr height, width, scale; q, k, v, table_h, table_w: SAM's decomposed position
    bias*     attr window, scale; q, k, v, table: TinyViT's bias, its index built as it does, in
              the order in which distances are first seen
    window*   attr size; x; y are the windows and dy weighs them
    fourier*  coords, gauss: SAM's encoding of points
    masks*    attr focal, dice, iou, alpha, gamma, smooth, seed; logits, iou, bits, valid; the
              loss divided by 8 is y

    structure* attr edge, bce_edge, smooth, size; logits, bits, valid: PRS-Med's structure loss; the sum over masks
              divided by 8 is y

What holds: inputs are float32 and everything is computed from them in float64, so the
expectations carry one rounding. Seeds are fixed: the same torch gives the same bytes.
"""
import argparse
import itertools
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))


def leaf(out, case, key, x):
    x = x.float()
    out[f"{case}.{key}"] = x.clone()
    return x.double().requires_grad_()


def finish(out, case, y, leaves):
    """y, random weights dy, and the gradients of sum(y dy)."""
    dy = torch.randn(y.shape).float()
    out[f"{case}.y"], out[f"{case}.dy"] = y.detach().float(), dy
    if leaves:
        (y * dy.double()).sum().backward()
    for key, x in leaves.items():
        out[f"{case}.d{key}"] = x.grad.float().contiguous()


def attend(q, k, v, scale, position):
    """[B,T,H,D]; position [B,H,T,T] is added to the scores."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    p = torch.softmax((q * scale) @ k.transpose(-2, -1) + position, -1)
    return (p @ v).transpose(1, 2)


def rel(out, case, B, height, width, H, D):
    T, scale = height * width, 0.8 / math.sqrt(D)
    out[f"{case}.attr"] = torch.tensor([height, width, scale]).float()
    scale = float(out[f"{case}.attr"][2])
    x = {key: leaf(out, case, key, torch.randn(B, T, H, D)) for key in "qkv"}
    x["table_h"] = leaf(out, case, "table_h", 0.3 * torch.randn(2 * height - 1, D))
    x["table_w"] = leaf(out, case, "table_w", 0.3 * torch.randn(2 * width - 1, D))
    # As in SAM: tables by (query row, key row), then the query's product with them.
    Rh = x["table_h"][torch.arange(height)[:, None] - torch.arange(height)[None] + height - 1]
    Rw = x["table_w"][torch.arange(width)[:, None] - torch.arange(width)[None] + width - 1]
    q = x["q"].transpose(1, 2).reshape(B, H, height, width, D)
    rel_h, rel_w = torch.einsum("bnhwc,hkc->bnhwk", q, Rh), torch.einsum("bnhwc,wkc->bnhwk", q, Rw)
    position = (rel_h[..., :, None] + rel_w[..., None, :]).reshape(B, H, T, T)
    finish(out, case, attend(x["q"], x["k"], x["v"], scale, position), x)


def bias(out, case, B, window, H, D):
    T, scale = window * window, D ** -0.5
    out[f"{case}.attr"] = torch.tensor([window, scale]).float()
    scale = float(out[f"{case}.attr"][1])
    x = {key: leaf(out, case, key, torch.randn(B, T, H, D)) for key in "qkv"}
    points, offsets, index = list(itertools.product(range(window), range(window))), {}, []
    for a in points:
        for b in points:
            offset = (abs(a[0] - b[0]), abs(a[1] - b[1]))
            offsets.setdefault(offset, len(offsets))
            index.append(offsets[offset])
    x["table"] = leaf(out, case, "table", torch.randn(H, len(offsets)))
    position = x["table"][:, torch.tensor(index).view(T, T)]
    finish(out, case, attend(x["q"], x["k"], x["v"], scale, position), x)


def window(out, case, B, height, width, C, size):
    out[f"{case}.attr"] = torch.tensor([size]).float()
    x = leaf(out, case, "x", torch.randn(B, height, width, C))
    y = F.pad(x, (0, 0, 0, -width % size, 0, -height % size))
    y = y.view(B, y.shape[1] // size, size, y.shape[2] // size, size, C)
    finish(out, case, y.permute(0, 1, 3, 2, 4, 5).reshape(-1, size, size, C), {"x": x})


def fourier(out, case, N, P, features):
    out[f"{case}.attr"] = torch.tensor([0.0])
    coords, gauss = torch.rand(N, P, 2), torch.randn(2, features)
    out[f"{case}.coords"], out[f"{case}.gauss"] = coords, gauss
    angle = 2 * math.pi * ((2 * coords.double() - 1) @ gauss.double())
    finish(out, case, torch.cat([angle.sin(), angle.cos()], -1), {})


def pack_bits(mask):
    """[N,h,w] of 0 and 1: lowest bit first, rows of whole 8 bytes."""
    N, h, w = mask.shape
    mask = F.pad(mask, (0, -w % 64)).view(N, h, -1, 8)
    return (mask << torch.arange(8)).sum(-1).to(torch.uint8)


def masks(out, case, N, K, h, w, options, spread):
    focal_w, dice_w, iou_w, alpha, gamma, smooth, seed = options
    out[f"{case}.attr"] = torch.tensor(options).float()
    alpha, smooth = float(out[f"{case}.attr"][3]), float(out[f"{case}.attr"][5])
    x = {"logits": leaf(out, case, "logits", spread * torch.randn(N, K, h, w)), "iou": leaf(out, case, "iou", torch.rand(N, K))}
    target = (F.avg_pool2d(torch.randn(N, 1, h + 4, w + 4), 5, 1)[:, 0] > 0).long()
    valid = torch.tensor([(0, 0) if i % 3 == 2 else (h - i % 3 * (h // 4), w - i % 3 * (w // 3)) for i in range(N)])
    out[f"{case}.bits"], out[f"{case}.valid"] = pack_bits(target), valid.int()
    total = torch.zeros((), dtype=torch.float64)
    for n in range(N):
        rows, columns = (int(v) for v in valid[n])
        if rows * columns == 0:
            continue
        logit, g = x["logits"][n, :, :rows, :columns], target[n, :rows, :columns].double().expand(K, -1, -1)
        p = logit.sigmoid()
        bce = F.binary_cross_entropy_with_logits(logit, g, reduction="none")
        p_t = p * g + (1 - p) * (1 - g)
        alpha_t = alpha if seed else alpha * g + (1 - alpha) * (1 - g)
        focal = (alpha_t * (1 - p_t) ** gamma * bce).mean((1, 2))
        dice = 1 - (2 * (p * g).sum((1, 2)) + smooth) / (p.sum((1, 2)) + g.sum((1, 2)) + smooth)
        L = focal_w * focal + dice_w * dice
        k = int(L.argmin())
        on = (logit[k] > 0).double()
        true = (on * g[k]).sum() / ((on + g[k]) > 0).double().sum().clamp(min=1)
        total = total + L[k] + iou_w * (x["iou"][n, k] - true) ** 2
    finish(out, case, total / 8, x)


def structure(out, case, N, h, w, options, spread):
    out[f"{case}.attr"] = torch.tensor(options).float()
    edge, bce_edge, smooth, size = options
    x = {"logits": leaf(out, case, "logits", spread * torch.randn(N, 1, h, w))}
    target = (F.avg_pool2d(torch.randn(N, 1, h + 4, w + 4), 5, 1)[:, 0] > 0).long()
    valid = torch.tensor([(0, 0) if i % 3 == 2 else (h - i % 3 * (h // 4), w - i % 3 * (w // 3)) for i in range(N)])
    out[f"{case}.bits"], out[f"{case}.valid"] = pack_bits(target), valid.int()
    total = torch.zeros((), dtype=torch.float64)
    for n in range(N):
        rows, columns = (int(v) for v in valid[n])
        if rows * columns == 0:
            continue
        pred, mask = x["logits"][n : n + 1, :, :rows, :columns], target[n : n + 1, None, :rows, :columns].double()
        near = torch.abs(F.avg_pool2d(mask, kernel_size=size, stride=1, padding=size // 2) - mask)
        weit, bce_weit = 1 + edge * near, 1 + bce_edge * near
        wbce = (bce_weit * F.binary_cross_entropy_with_logits(pred, mask, reduction="none")).sum((2, 3)) / bce_weit.sum((2, 3))
        p = torch.sigmoid(pred)
        inter, union = (p * mask * weit).sum((2, 3)), ((p + mask) * weit).sum((2, 3))
        total = total + (wbce + 1 - (inter + smooth) / (union - inter + smooth)).sum()
    finish(out, case, total / 8, x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(HERE, "masks.safetensors"))
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    out = {}
    rel(out, "rel_window", 2, 7, 7, 2, 8)
    rel(out, "rel_oblong", 1, 3, 13, 1, 6)
    bias(out, "bias_seven", 2, 7, 2, 8)
    bias(out, "bias_three", 2, 3, 3, 5)
    window(out, "window_padded", 2, 5, 9, 3, 4)
    window(out, "window_exact", 1, 4, 6, 2, 2)
    fourier(out, "fourier_points", 3, 2, 16)
    masks(out, "masks_paper", 4, 3, 12, 17, (20, 1, 1, 0.25, 2, 1, 0), 2)
    masks(out, "masks_seed", 3, 2, 9, 70, (1, 1, 1, 0.8, 2, 1e-6, 1), 2)
    masks(out, "masks_gamma", 2, 4, 8, 8, (3, 2, 0.5, 0.4, 1.5, 0.5, 0), 1)
    masks(out, "masks_far", 2, 2, 10, 12, (20, 1, 1, 0.25, 2, 1, 0), 60)
    structure(out, "structure_paper", 4, 40, 70, (5, 5, 1, 31), 2)
    structure(out, "structure_program", 2, 33, 18, (5, 0, 1, 31), 2)
    structure(out, "structure_small", 3, 9, 70, (2, 3, 0.5, 5), 20)
    save_file({key: value.contiguous() for key, value in out.items()}, args.out)


if __name__ == "__main__":
    main()
