#!/usr/bin/env python3
"""Golden files for the scores of videos, J and F, made with NumPy.

    python tests/golden/make_video_score.py [--out DIR]

    video_score/predicted-N.png, target-N.png   masks, 0 or 1, those of several frames one below the other
    video_score/expect.txt                      N, frames, and J and F of each

The definitions are those of davis2017-evaluation (db_eval_iou, f_measure), written anew: J is the IoU, 1 of two
empty masks. The boundary of a mask is where a pixel differs from the one to the right, below, or both; it
matches the other's within a disc of 0.008 of the diagonal, rounded up; F is the harmonic mean of precision
and recall.
"""
import argparse
import os

import numpy as np
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))


def region(a, b):
    union = (a | b).sum()
    return (a & b).sum() / union if union else 1.0


def boundary(mask):
    e, s, se = np.zeros_like(mask), np.zeros_like(mask), np.zeros_like(mask)
    e[:, :-1] = mask[:, 1:]
    s[:-1, :] = mask[1:, :]
    se[:-1, :-1] = mask[1:, 1:]
    out = (mask ^ e) | (mask ^ s) | (mask ^ se)
    out[-1, :] = mask[-1, :] ^ e[-1, :]
    out[:, -1] = mask[:, -1] ^ s[:, -1]
    out[-1, -1] = False
    return out


def dilated(mask, radius):
    h, w = mask.shape
    out = np.zeros_like(mask)
    for dy in range(-radius, radius + 1):
        for dx in range(-radius, radius + 1):
            if dx * dx + dy * dy > radius * radius:
                continue
            ys, xs = slice(max(0, dy), min(h, h + dy)), slice(max(0, dx), min(w, w + dx))
            yf, xf = slice(max(0, -dy), min(h, h - dy)), slice(max(0, -dx), min(w, w - dx))
            out[ys, xs] |= mask[yf, xf]
    return out


def contour(a, b):
    radius = int(np.ceil(0.008 * np.linalg.norm(a.shape)))
    a, b = boundary(a), boundary(b)
    if a.sum() == 0 and b.sum() == 0:
        precision, recall = 1.0, 1.0
    elif a.sum() == 0:
        precision, recall = 1.0, 0.0
    elif b.sum() == 0:
        precision, recall = 0.0, 1.0
    else:
        precision = (a & dilated(b, radius)).sum() / a.sum()
        recall = (b & dilated(a, radius)).sum() / b.sum()
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def shape(rng, h, w, grain):
    y, x = np.mgrid[0:h, 0:w]
    cy, cx, ry, rx = rng.uniform(0, h), rng.uniform(0, w), rng.uniform(0.1, 0.5) * h, rng.uniform(0.1, 0.5) * w
    mask = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 < 1
    return mask ^ (rng.random((h, w)) < grain) if grain else mask


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(HERE, "video_score"))
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    rng = np.random.default_rng(5)
    with open(os.path.join(args.out, "expect.txt"), "w") as expect:
        for number, (frames, h, w) in enumerate([(12, 45, 60), (8, 100, 37), (2, 480, 854)]):
            pairs = []
            for k in range(frames):
                grain = 0.01 if k % 3 == 1 and h < 400 else 0
                a = shape(rng, h, w, grain)
                b = np.roll(a, (int(rng.integers(-4, 5)), int(rng.integers(-4, 5))), (0, 1)) if k % 2 else shape(rng, h, w, grain)
                pairs.append([a, b])
            if number == 0:
                pairs[2][0][:], pairs[3][1][:], pairs[4][0][:], pairs[5][1][:] = False, False, True, True
                pairs[6] = [np.zeros((h, w), bool), np.zeros((h, w), bool)]
                pairs[7] = [np.ones((h, w), bool), np.ones((h, w), bool)]
                pairs[8][1] = pairs[8][0].copy()
            for side, name in enumerate(("predicted", "target")):
                stack = np.concatenate([p[side] for p in pairs])
                Image.fromarray(stack).save(os.path.join(args.out, f"{name}-{number}.png"), optimize=True)
            for a, b in pairs:
                print(number, frames, f"{region(a, b):.9f} {contour(a, b):.9f}", file=expect)


if __name__ == "__main__":
    main()
