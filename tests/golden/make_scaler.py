#!/usr/bin/env python3
"""scaler.txt: what torch.amp.GradScaler makes of sequences of steps with and without inf.

A line "run WINDOW SCALE STEPS", then a line "FOUND_INF SCALE GOOD_STEPS UPDATED" per step: the scale
and the tracker after it, and whether the weight moved. tests/test_precision.c reads it.

    python tests/golden/make_scaler.py
"""
import os
import random

import torch

RUNS = [(2000, 65536.0, 40, 0.2), (3, 65536.0, 60, 0.1), (1, 1024.0, 20, 0.3), (5, 8.0, 60, 0.5), (2, 2.0**125, 12, 0.0), (4, 48.0, 40, 0.15)]


def run(window, scale, steps, share, choice, out):
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_factor=2.0, backoff_factor=0.5, growth_interval=window)
    out.write(f"run {window} {scale:.9g} {steps}\n")
    for _ in range(steps):
        found = choice.random() < share
        before = weight.detach().clone()
        optimizer.zero_grad()
        # The weight's own gradient is tiny, so that a large scale by itself makes no inf.
        scaler.scale((weight * 1e-3).sum()).backward()
        if found:
            weight.grad[choice.randrange(4)] = choice.choice([float("inf"), float("-inf"), float("nan")])
        scaler.step(optimizer)
        scaler.update()
        moved = not torch.equal(before, weight.detach())
        out.write(f"{int(found)} {scaler.get_scale():.9g} {scaler._get_growth_tracker()} {int(moved)}\n")


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "scaler.txt"), "w") as f:
    choice = random.Random(7)
    for r in RUNS:
        run(*r, choice, f)
