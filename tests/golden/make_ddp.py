#!/usr/bin/env python3
"""Losses of PyTorch's own data parallel training, for ranks: two processes, gloo, DistributedDataParallel.

    python tests/golden/make_ddp.py          from the repository's root, after make_train.py

Twenty steps of train_untied/run.yaml. Each process takes half of the rows of a step, with its own forward and
backward; DistributedDataParallel averages the gradients, which is the mean over the batch because both halves
have as many tokens. losses_ddp.json has, for each step, the mean of the two losses and the norm before clipping.
"""
import json
import os
import sys
import tempfile

sys.dont_write_bytecode = True
import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import yaml
from torch.nn.parallel import DistributedDataParallel

from make_train import HERE, batch_of, load_model, make_schedule, param_groups

RANKS, STEPS, FOLDER = 2, 20, os.path.join(HERE, "train_untied")


def train(rank, store, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=RANKS)
    with open(os.path.join(FOLDER, "run.yaml")) as f:
        run = yaml.safe_load(f)
    t, d = dict(run["train"], steps=STEPS), run["data"]
    tokens = numpy.fromfile(d["train"], dtype="<u2")
    model = load_model(run["model"]["path"], torch.float32)
    groups = param_groups(model, t)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(groups, betas=(t["beta1"], t["beta2"]), eps=t["eps"])
    schedule = make_schedule(optimizer, t)
    rows, records = t["effective_batch"] // RANKS, []
    for step in range(STEPS):
        ids = batch_of(tokens, step, t["effective_batch"], d["sequence"])[rank * rows:(rank + 1) * rows]
        loss = parallel(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), t["clip_norm"])
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        records.append({"step": step + 1, "loss": float(mean) / RANKS, "learning_rate": schedule.get_last_lr()[0], "grad_norm": float(norm)})
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if rank == 0:
        with open(out, "w") as f:
            f.write('{"steps": [\n' + ",\n".join(json.dumps(r) for r in records) + "\n]}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (os.path.join(folder, "store"), os.path.join(FOLDER, "losses_ddp.json")), nprocs=RANKS)
