"""Writes surface.txt: Dice, IoU, HD95 and NSD of 50 pairs of masks by MONAI, checked against plain NumPy.

    python make_surface.py        needs monai, numpy

A line is: w h d, spacing x y z, tolerance, Dice, IoU, HD95, NSD, then both masks as hexadecimal bits (row by row, x
fastest, the first cell in the lowest bit). Empty masks, thin masks, masks at the border and anisotropic spacing are among them.
"""
import pathlib
import sys

import numpy as np
import torch
from monai.metrics import compute_dice, compute_hausdorff_distance, compute_iou, compute_surface_dice


def ellipsoid(shape, centre, radii):
    grid = np.meshgrid(*[np.arange(n) for n in shape], indexing="ij")
    return sum(((g - c) / r) ** 2 for g, c, r in zip(grid, centre, radii)) <= 1


def pair(rng, shape):
    def one():
        m = np.zeros(shape, bool)
        for _ in range(rng.integers(1, 4)):
            m |= ellipsoid(shape, [rng.uniform(0, n) for n in shape], [rng.uniform(1, max(2, n / 2.5)) for n in shape])
        return m
    a = one()
    kind = rng.integers(0, 4)
    if kind == 0:
        return a, one()
    if kind == 1:
        return a, np.roll(a, tuple(rng.integers(-2, 3, len(shape))), tuple(range(len(shape))))
    return a, a ^ (rng.random(shape) < 0.02)


# --- the definitions, by brute force ---------------------------------------------------------

def surface(m):
    inner = m.copy()
    padded = np.pad(m, 1)
    for axis in range(m.ndim):
        for step in (-1, 1):
            inner &= np.roll(padded, step, axis)[tuple(slice(1, -1) for _ in m.shape)]
    return np.argwhere(m & ~inner)


def plain(p, t, spacing, tolerance):
    both, total, union = (p & t).sum(), p.sum() + t.sum(), (p | t).sum()
    dice, iou = (2 * both / total, both / union) if total else (1, 1)
    a, b = surface(p) * spacing, surface(t) * spacing
    if not len(a) and not len(b):
        return dice, iou, np.nan, np.nan
    if not len(a) or not len(b):
        return dice, iou, np.nan, 0
    d = np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))
    there, back = d.min(1), d.min(0)
    hd = max(np.percentile(there, 95), np.percentile(back, 95))
    nsd = ((there <= tolerance).sum() + (back <= tolerance).sum()) / (len(a) + len(b))
    return dice, iou, hd, nsd


def monai(p, t, spacing, tolerance):
    y = [torch.from_numpy(m[None, None].astype(np.float32)) for m in (p, t)]
    dice = compute_dice(*y, ignore_empty=False).item()
    iou = compute_iou(*y, ignore_empty=False).item() if t.any() else float(not p.any())
    hd = compute_hausdorff_distance(*y, include_background=True, percentile=95, spacing=list(spacing)).item()
    nsd = compute_surface_dice(*y, [tolerance], include_background=True, spacing=list(spacing)).item()
    return dice, iou, hd, nsd


def hexadecimal(m):
    return np.packbits(m.reshape(-1), bitorder="little").tobytes().hex()


rng = np.random.default_rng(7)
lines = []
for i in range(50):
    volume = i % 3 == 2
    shape = tuple(rng.integers(3, 11, 1)) + tuple(rng.integers(4, 14, 2)) if volume else tuple(rng.integers(1 if i % 7 == 0 else 5, 40, 2))
    p, t = pair(rng, shape)
    spacing = np.array([1.0] * len(shape)) if i % 4 == 0 else rng.choice([0.4375, 0.7, 0.9, 1.0, 1.5, 2.5, 5.0], len(shape))
    tolerance = float(rng.choice([0.5, 1.0, 1.5, 2.0, 3.0]))
    if i in (5, 23):
        p = np.zeros_like(p)
    if i in (11, 29):
        t = np.zeros_like(t)
    if i in (17, 32):
        p, t = np.zeros_like(p), np.zeros_like(t)
    if i == 35:
        p = np.ones_like(p)
    mine, theirs = plain(p, t, spacing, tolerance), monai(p, t, spacing, tolerance)
    for a, b in zip(mine, theirs):
        if not (np.isnan(a) and np.isnan(b)) and not (np.isinf(a) and np.isinf(b)) and not abs(a - b) <= 1e-6 * max(1, abs(a)):
            sys.exit(f"pair {i}: NumPy {mine}, MONAI {theirs}")
    xyz = list(shape[::-1]) + [1] * (3 - len(shape))
    mm = list(spacing[::-1]) + [1] * (3 - len(shape))
    lines.append(" ".join([*map(str, xyz), *map(repr, map(float, mm)), repr(tolerance), *[repr(float(x)) for x in mine], hexadecimal(p), hexadecimal(t)]))
pathlib.Path(__file__).with_name("surface.txt").write_text("\n".join(lines) + "\n")
