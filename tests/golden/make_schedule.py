#!/usr/bin/env python3
"""schedule.txt: the learning rates of DeepSpeed's WarmupLR, WarmupDecayLR and WarmupCosineLR, step by step.

A line "NAME TYPE WARMUP START FLOOR TOTAL STEPS", then the factor on the learning rate of each step. START is the warmup's first
factor (warmup_min_lr or warmup_min_ratio), FLOOR the last one of the cosine. tests/test_config.c reads it. Only DeepSpeed's file of
schedules is used, from a checkout of https://github.com/deepspeedai/DeepSpeed (0.19.6).

    python tests/golden/make_schedule.py CHECKOUT
"""
import importlib.util
import logging
import os
import sys
import types

import torch

logger = logging.getLogger("deepspeed")
logger.disabled = True
sys.modules["deepspeed"] = types.ModuleType("deepspeed")
sys.modules["deepspeed.utils"] = types.ModuleType("deepspeed.utils")
sys.modules["deepspeed.utils"].logger = logger
spec = importlib.util.spec_from_file_location("lr_schedules", os.path.join(sys.argv[1], "deepspeed/runtime/lr_schedules.py"))
schedules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(schedules)

STEPS = 24
PEAK = 0.5  # a power of 2: dividing by it is exact
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "schedule.txt"), "w") as f:
    for name in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        for kind in ("log", "linear"):
            for warmup, start, floor in ((1, 0.0, 0.0), (5, 0.0, 0.25), (8, 0.125, 0.0)):
                optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
                options = {"warmup_num_steps": warmup, "warmup_type": kind}
                if name == "WarmupCosineLR":
                    options.update(total_num_steps=STEPS, warmup_min_ratio=start, cos_min_ratio=floor)
                else:
                    options.update(warmup_min_lr=start * PEAK, warmup_max_lr=PEAK)
                if name == "WarmupDecayLR":
                    options.update(total_num_steps=STEPS)
                scheduler = getattr(schedules, name)(optimizer, **options)
                f.write(f"{name} {kind} {warmup} {start} {floor if name == 'WarmupCosineLR' else start} {STEPS} {STEPS}\n")
                for _ in range(STEPS):
                    f.write(f"{optimizer.param_groups[0]['lr'] / PEAK:.17g}\n")
                    optimizer.step()
                    scheduler.step()
