#!/usr/bin/env python3
"""Golden files for `plimsoll train`: ten or twenty steps of a small language model in PyTorch, float32.

    python tests/golden/make_train.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_train.py --run RUN.yaml      # losses.json beside a given run

Run it from the repository's root: run.yaml holds paths as seen from there.
Each case is one folder:

    config.json, model.safetensors   the model before step 1
    tokens.bin                       raw little-endian uint16 tokens
    run.yaml                         the run, as `plimsoll train` reads it
    losses.json                      per step: loss, learning rate, gradient norm

What holds: the reference takes everything from run.yaml, so both sides train from
the same file. Step s (from 0) takes samples s*E .. s*E+E-1 of the effective batch E;
sample i is tokens[i*T : (i+1)*T], and after the last whole sample comes sample 0.
The optimizer is torch.optim.AdamW, one parameter group for each rate and decay, clipping is
clip_grad_norm_, the schedule is transformers' get_linear_schedule_with_warmup or torch's
StepLR or MultiStepLR behind a warm-up of the same kind. Accumulation does not occur:
the reference computes the whole effective batch at once, which is what any split into
micro-batches has to reproduce.

Step s of losses.json is line s of metrics.jsonl: the loss before the update, the norm
before clipping, the learning rate that the update used (0 in the first step of a
warm-up). It is valid JSON with one step per line, for tests without a JSON parser.
"""
import argparse
import fnmatch
import json
import os
import sys
import zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import numpy
import torch
import yaml
from transformers import get_linear_schedule_with_warmup
from transformers.utils import logging

sys.dont_write_bytecode = True  # leave no __pycache__ among the cases
from common import HERE, folder_bytes
from make_llama import case, load_model, write_model

SEQUENCE, EFFECTIVE_BATCH, STEPS = 16, 8, 10

# Chosen so that every key changes the losses by more than the test's tolerance: the first
# case clips in every step and the second in some (the table shows the norms); an eps of
# 1e-4 is large beside torch's default because that one would change nothing here.
CASES = {
    "train_untied": dict(
        model=case(vocab=61, hidden=24, layers=2, style=5, theta=500000.0),
        train=dict(learning_rate=0.02, warmup_steps=3, weight_decay=0.1, beta1=0.9,
                   beta2=0.95, eps=1e-8, clip_norm=1.0)),
    "train_tied": dict(
        model=case(vocab=53, hidden=32, heads=4, kv_heads=1, layers=2, inter=41, tied=True),
        train=dict(learning_rate=0.01, warmup_steps=0, weight_decay=0.05, beta1=0.9,
                   beta2=0.999, eps=1e-4, clip_norm=2.6)),
    # Norms of q and k; norms times 1 + w, two tables of positions; fused matrices, longrope.
    "train_qwen3": dict(
        steps=20,
        model=case(family="qwen3", vocab=37, hidden=18, heads=3, kv_heads=1, head_dim=8, inter=23, tied=True, style=5,
                   extra=dict(attention_bias=False)),
        train=dict(learning_rate=0.01, warmup_steps=2, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-4, clip_norm=2.0)),
    "train_gemma3": dict(
        steps=20,
        model=case(family="gemma3_text", vocab=37, hidden=18, heads=3, kv_heads=1, head_dim=8, inter=23, layers=2, tied=True, theta=80.0,
                   extra=dict(query_pre_attn_scalar=20, sliding_window=4, sliding_window_pattern=2, rope_local_base_freq=20.0)),
        train=dict(learning_rate=0.01, warmup_steps=2, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-4, clip_norm=2.0)),
    "train_phi3": dict(
        steps=20,
        model=case(family="phi3", vocab=37, hidden=24, heads=2, kv_heads=1, inter=23, theta=50.0,
                   rope=dict(type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.0, 2.5, 3.0, 5.0]),
                   extra=dict(partial_rotary_factor=0.67, original_max_position_embeddings=8, pad_token_id=None)),
        train=dict(learning_rate=0.01, warmup_steps=2, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-4, clip_norm=2.0)),
    # Rates and decay by layer and name; see recipe() for what wins.
    "train_groups": dict(
        model=case(vocab=61, hidden=24, layers=3, style=5),
        train=dict(learning_rate=0.03, schedule="step", warmup_steps=2, weight_decay=0.2,
                   beta1=0.9, beta2=0.95, eps=1e-8, clip_norm=0.5),
        more="""\
  step_size: 3
  step_gamma: 0.4
  layer_decay: 0.7
  no_decay: ["*norm.weight"]
  groups:
    - {match: "model.layers.*.mlp.*", lr_scale: 2, weight_decay: 0.5}
    - {match: ["*.1.mlp.up_proj.weight", "*.input_layernorm.weight"], learning_rate: 0.005}
    - {match: "model.layers.0.self_attn.*", frozen: true}
    - {match: "model.layers.0.self_attn.o_proj.weight", frozen: false, weight_decay: 0.0}
"""),
}

# Written as text: a person reads and edits this file, and YAML 1.1 readers take 1e-08
# for a string where the mantissa has no point.
RUN_YAML = """\
# Steps compared with PyTorch (losses.json); made by make_train.py.
# Paths are seen from the repository's root.
model:
  path: {folder}
data:
  format: tokens
  train: {folder}/tokens.bin
  sequence: {sequence}
  shuffle: false
train:
  steps: {steps}
  effective_batch: {effective_batch}
  learning_rate: {learning_rate}
  schedule: {schedule}
  warmup_steps: {warmup_steps}
  weight_decay: {weight_decay}
  beta1: {beta1}
  beta2: {beta2}
  eps: {eps:.1e}
  clip_norm: {clip_norm}
{more}  seed: 0
  out: runs/{name}
memory:
  micro_batch: {effective_batch}
  precision: f32
device: cpu
"""


def random_tokens(vocab, count, generator):
    """Text that can be learnt: each token is mostly a fixed function of the one before."""
    follow = torch.randperm(vocab, generator=generator)
    jump = torch.rand(count, generator=generator) < 0.3
    fresh = torch.randint(0, vocab, (count,), generator=generator)
    out = torch.empty(count, dtype=torch.long)
    token = 0
    for i in range(count):
        token = int(fresh[i]) if jump[i] else int(follow[token])
        out[i] = token
    return out.numpy().astype("<u2")


def write_case(folder, name, c, seed):
    """Model, tokens and run.yaml; the losses come from reading them back."""
    generator = torch.Generator().manual_seed(seed * 1000003 + zlib.crc32(name.encode()))
    write_model(folder, c["model"], generator)
    # More samples than the steps take, and an incomplete one at the end, which is dropped.
    steps = c.get("steps", STEPS)
    samples = steps * EFFECTIVE_BATCH + 4
    count = samples * SEQUENCE + 5
    random_tokens(c["model"]["vocab"], count, generator).tofile(os.path.join(folder, "tokens.bin"))
    shown = os.path.relpath(folder)
    if shown.startswith(".."):
        shown = os.path.abspath(folder)
    with open(os.path.join(folder, "run.yaml"), "w") as f:
        f.write(RUN_YAML.format(folder=shown, name=name, sequence=SEQUENCE, steps=steps,
                                effective_batch=EFFECTIVE_BATCH, more=c.get("more", ""),
                                **{"schedule": "linear", **c["train"]}))


def batch_of(tokens, step, rows, length):
    samples = len(tokens) // length
    index = [(step * rows + r) % samples for r in range(rows)]
    picked = numpy.stack([tokens[i * length:(i + 1) * length] for i in index])
    return torch.from_numpy(picked.astype(numpy.int64))


def matches(patterns, name):
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def layer_of(name, layers):
    """Embeddings are layer 0, model.layers.i is i + 1, what comes after them the last."""
    if name.startswith("model.layers."):
        return int(name.split(".")[2]) + 1
    return 0 if "embed_tokens" in name else layers + 1


def recipe(t, name, layers):
    """Rate, decay and whether it is trained at all: model-wide keys, then the groups in
    order. An absolute rate of a group is not scaled by the layer."""
    depth = t.get("layer_decay", 1) ** (layers + 1 - layer_of(name, layers))
    rate, trained = t["learning_rate"] * depth, True
    decay = 0.0 if matches(t.get("no_decay", []), name) else t["weight_decay"]
    for g in t.get("groups", []):
        if matches(g["match"], name):
            rate = g.get("learning_rate", rate)
            if "lr_scale" in g:
                rate = t["learning_rate"] * depth * g["lr_scale"]
            decay, trained = g.get("weight_decay", decay), not g.get("frozen", not trained)
    return rate, decay, trained


def param_groups(model, t):
    """The first one is empty of meaning but has the run's own rate, for the record."""
    own = torch.zeros(1, requires_grad=True)
    groups = {(t["learning_rate"], 0.0): [own]}
    layers = model.config.num_hidden_layers
    for name, p in model.named_parameters():
        rate, decay, trained = recipe(t, name, layers)
        p.requires_grad_(trained and p.requires_grad)
        if p.requires_grad:
            groups.setdefault((rate, decay), []).append(p)
    return [dict(params=p, lr=r, weight_decay=d) for (r, d), p in groups.items()]


def make_schedule(optimizer, t):
    warmup, gamma = t["warmup_steps"], t.get("step_gamma", 0.1)
    if t["schedule"] == "linear":
        return get_linear_schedule_with_warmup(optimizer, warmup, t["steps"])
    if t["schedule"] != "step":
        raise SystemExit("the reference knows the schedules linear and step only")
    lr = torch.optim.lr_scheduler
    rise = lr.LambdaLR(optimizer, lambda s: s / max(1, warmup))
    if "milestones" in t:  # of the run; torch counts from where its scheduler begins
        drop = lr.MultiStepLR(optimizer, [m - warmup for m in t["milestones"]], gamma)
    else:
        drop = lr.StepLR(optimizer, t["step_size"], gamma)
    return lr.SequentialLR(optimizer, [rise, drop], [warmup])


def train(run, dtype=torch.float32, load=None):
    """The reference: one record per step, from a run as read from YAML. load: instead of load_model."""
    t, d = run["train"], run["data"]
    if d["shuffle"]:
        raise SystemExit("the reference knows shuffle: false only")
    tokens = numpy.fromfile(d["train"], dtype="<u2")
    model = (load or load_model)(run["model"]["path"], dtype)
    optimizer = torch.optim.AdamW(param_groups(model, t), betas=(t["beta1"], t["beta2"]), eps=t["eps"])
    schedule = make_schedule(optimizer, t)
    records = []
    for step in range(t["steps"]):
        ids = batch_of(tokens, step, t["effective_batch"], d["sequence"])
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss  # shifts inside
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), t["clip_norm"])
        records.append({"step": step + 1, "loss": float(loss.detach()),
                        "learning_rate": schedule.get_last_lr()[0], "grad_norm": float(norm)})
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return records


def write_losses(path, folder=None, load=None):
    """losses.json of the run at `path`, beside it or in `folder`, and its table. `noise` is the
    distance of the float32 losses from those in float64: what to set against the tolerance."""
    with open(path) as f:
        run = yaml.safe_load(f)
    records, exact = train(run, torch.float32, load), train(run, torch.float64, load)
    folder = folder or os.path.dirname(path)
    with open(os.path.join(folder, "losses.json"), "w") as f:
        lines = ",\n".join(json.dumps(r) for r in records)
        f.write('{"steps": [\n' + lines + "\n]}\n")
    noise = max(abs(r["loss"] - e["loss"]) / e["loss"] for r, e in zip(records, exact))
    print(f"{folder}: {folder_bytes(folder)} bytes, noise {noise:.1e}")
    for r in records:
        print(f"  {r['step']:3} loss {r['loss']:.6f}  lr {r['learning_rate']:.6f}  "
              f"norm {r['grad_norm']:.4f}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=HERE, metavar="DIR", help="where the case folders go")
    p.add_argument("--seed", type=int, default=0, metavar="N")
    p.add_argument("--only", action="append", choices=list(CASES), metavar="CASE")
    p.add_argument("--run", metavar="RUN.yaml", help="only write losses.json beside this run")
    a = p.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the same sums in the same order everywhere
    if a.run:
        write_losses(a.run)
        return
    for name, c in CASES.items():
        if not a.only or name in a.only:
            folder = os.path.join(a.out, name)
            write_case(folder, name, c, a.seed)
            write_losses(os.path.join(folder, "run.yaml"))


if __name__ == "__main__":
    sys.exit(main())
