#!/usr/bin/env python3
"""Measures how far 16-bit arithmetic moves each golden case from its float32 numbers: rounding.txt.

    python tests/golden/make_rounding.py [--only CASE]... [--seeds K] [--column TYPE]...

Run it from the repository's root, after the scripts that make the cases. Tolerances for bf16 and
f16 cannot be one number: a logit has few roundings, a gradient through a saturated softmax is mostly
rounding. So the error of each case is measured with random rounding: the reference runs in float32, and
every result of an op (forward and backward; weights and float inputs as well) gets a relative error drawn
uniformly from [-u, u], where u is the unit roundoff of the dtype, 2^-8 for bf16 and 2^-11 for f16. A number
below the smallest normal of f16 gets the absolute error of its grid, 2^-25; in a backward pass that of the scaled
loss, 2^-25 / 2^14: the scale begins at 2^16 and overflows at most twice in these cases. Rounding to nearest has the same
effect on a generic result, but random rounding depends on no single case: a number whose error is small with
one seed is large with the next.

The root mean square of a tensor's error over K seeds, relative as in tests/compare.c, corresponds to one
standard deviation of a number; the tests allow 4 of them in addition to the float32 bound. A number near the kink of
a ReLU changes side in a few draws, with an error far above the others', which the mean hides: half the largest error
counts if it is more. peft/sam has such a number, in one draw of ten, and was made with --seeds 48, and so was prs_med_prompted. No implementation
of ours takes part. A fused kernel rounds less often than these ops, with one exception that is modelled: the
gradient of a softmax inside attention computes the sum over keys of P dP as the product of the output o, which
is stored in 16 bits, with its gradient. The error of that sum over a head's numbers is a random walk with steps
of u times its terms, and its terms are as large as dP itself; so it gets an error of u times the largest dP.

A deviation that is measured again, by another rule or with other seeds, replaces the stored one if it is smaller: what
a tolerance held stays held. Delete rounding.txt to begin anew.

    rounding.txt     NAME bf16 f16 f32, one tensor a line; `loss.N` and `grad_norm.N` for step N of a run
"""
import argparse
import json
import math
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
import yaml
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.utils import logging

import common
import make_allocator
import make_allocator_levels
import make_grounding
import make_heads
import make_llama
import make_llava
import make_onevision
import make_peft
import make_prs_med
import make_qwen_vl
import make_published
import make_sam
import make_sam2
import make_sam2_video
import make_tinyvit
import make_towers
import make_train
import make_video
import make_llava_volumes

TYPES = {"bf16": (2.0 ** -8, 0.0), "f16": (2.0 ** -11, 2.0 ** -25)}  # unit roundoff, half of the smallest step
COLUMNS = [*TYPES, "f32"]
SCALE = 2.0 ** 14  # of the loss, in f16
TINY = 1e-7  # as in tests/compare.c
HERE = common.HERE
# The scripts whose reference takes a folder, a case and a batch.
MADE = [make_towers, make_video, make_llava, make_llava_volumes, make_onevision, make_qwen_vl, make_allocator, make_allocator_levels, make_heads, make_grounding, make_prs_med, make_sam, make_sam2, make_sam2_video]
ADAPTERS = {"peft/" + name: c for name, c in make_peft.CASES.items()}
TINYVIT = {**make_tinyvit.CASES, **make_published.CASES}  # those of the published code, through the restatement


class Rounding(TorchDispatchMode):
    """Rounds every op's floating-point results, except for views and copies of rounded numbers, and for
    results of constants alone: positions of a grid are exact."""

    MOVES = {"t", "transpose", "view", "_unsafe_view", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "cat", "stack",
             "clone", "detach", "copy", "alias", "_to_copy", "split", "split_with_sizes", "unbind", "as_strided", "index", "gather",
             "repeat", "roll", "zeros_like", "ones_like", "empty_like", "new_zeros", "new_empty", "full", "full_like", "scalar_tensor",
             "zeros", "ones", "arange", "rand", "randn", "empty", "constant_pad_nd", "masked_fill", "where", "neg", "embedding",
             "slice_backward", "select_backward", "unfold", "reshape", "narrow", "relu", "threshold_backward", "max", "amax", "index_select", "masked_scatter",
             "masked_select", "max_pool2d_with_indices", "max_pool2d_with_indices_backward"}

    def __init__(self, kind, seed):
        super().__init__()
        self.unit, self.step = TYPES[kind]
        self.generator = torch.Generator().manual_seed(seed)
        self.seen = WeakTensorKeyDictionary()  # what follows from weights and images

    def __enter__(self):
        backward, whole = torch.Tensor.backward, self.step

        def scaled_backward(*arguments, **options):
            self.step = whole / SCALE
            try:
                return backward(*arguments, **options)
            finally:
                self.step = whole
        self.unscaled, torch.Tensor.backward = backward, scaled_backward
        return super().__enter__()

    def __exit__(self, *failure):
        torch.Tensor.backward = self.unscaled
        return super().__exit__(*failure)

    def noise(self, x):
        with torch.no_grad():
            r = torch.rand(x.shape, generator=self.generator, dtype=torch.float32) * 2 - 1
            y = x + r * (x.abs() * self.unit).clamp_min(self.step) * (x != 0)
            y = torch.where(x.isfinite(), y, x)  # the scores of padding are -inf
        self.seen[y] = True
        return y

    def follow(self, x, moved):
        if not isinstance(x, torch.Tensor) or x.dtype != torch.float32 or not x.numel():
            return x
        if not moved:
            return self.noise(x)
        self.seen[x] = True
        return x

    def softmax_backward(self, grad, output, dim, dtype=None):
        r = torch.rand(grad.sum(dim, keepdim=True).shape, generator=self.generator) * 2 - 1
        inner = (grad * output).sum(dim, keepdim=True) + r * self.unit * grad.abs().amax(dim, keepdim=True)
        return output * (grad - inner)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ == "_softmax_backward_data":
            return self.noise(self.softmax_backward(*args, **(kwargs or {})))
        out = func(*args, **(kwargs or {}))
        if not any(isinstance(x, torch.Tensor) and x in self.seen for x in tree_leaves((args, kwargs))):
            return out
        name = func.overloadpacket.__name__
        moved = name in self.MOVES or name.endswith("_") and not name.endswith("__")  # in place: running statistics, sums of gradients
        if isinstance(out, (tuple, list)):
            return type(out)(self.follow(x, moved) for x in out)
        return self.follow(out, moved)


def rounded_weights(mode, model):
    with torch.no_grad():
        for p in model.parameters():
            p.data = mode.noise(p.data)
            mode.seen[p] = True
    return model


def with_weights(module, mode, run):
    """run(), with the weights rounded behind module.load_model and every op's result."""
    load = module.load_model

    def load_rounded(*arguments):
        with torch.utils._python_dispatch._disable_current_modes():
            return rounded_weights(mode, load(*arguments))
    module.load_model = load_rounded
    try:
        with mode:
            return run()
    finally:
        module.load_model = load


def numbers(folder, name, mode):
    """The case's reference, computed with rounding; mode None: without."""
    batch = load_file(make_peft.batch_path(ADAPTERS[name]) if name in ADAPTERS else os.path.join(folder, "batch.safetensors"))
    off = mode or Rounding("bf16", 0)
    if not mode:
        off.unit = off.step = 0.0
    batch = {n: off.noise(t.float()) if t.is_floating_point() and n in ("pixel_values", "pixel_values_videos", "frame_values", "masks", "texture", "information", "query_weights") else t for n, t in batch.items()}
    if name in ADAPTERS:
        # An NF4 weight is dequantized and rounded once.
        model = rounded_weights(off, make_peft.load_adapted(ADAPTERS[name], folder, computes_4bit=False))
        with off:
            return make_peft.run(model, ADAPTERS[name], batch)
    for made in MADE:
        if name in made.CASES:
            return with_weights(made, off, lambda: made.reference(folder, made.CASES[name], batch))
    if name in TINYVIT:
        weights = load_file(os.path.join(folder, "model.safetensors"))
        statistics = (".running_mean", ".running_var")  # stay in float32
        weights = {n: off.noise(t.float()) if t.is_floating_point() and not n.endswith(statistics) else t for n, t in weights.items()}
        with off:
            return make_tinyvit.reference(TINYVIT[name], weights, batch)[0]
    return with_weights(make_llama, off, lambda: make_llama.reference(folder, batch))


def distances(got, expect):
    total = math.sqrt(sum(float(t.double().norm()) ** 2 for n, t in expect.items() if n.startswith("grad.")))
    out = {}
    for name, want in expect.items():
        want = torch.nan_to_num(want, 0.0)  # the logits of padding
        norm = float(want.double().norm())
        scale = total if name.startswith("grad.") and norm < TINY * total else norm
        error = float((torch.nan_to_num(got[name], 0.0).double() - want.double()).norm())
        out[name] = error / scale if scale > 0 else error
    return out


def train(folder, name, dtype=torch.float32, hook=lambda model: model):
    """The records of the case's run, with the model as `hook` returns it."""
    c = ADAPTERS.get(name)
    with open(os.path.join(make_peft.base_path(c) if c else folder, "run.yaml")) as f:
        run = yaml.safe_load(f)

    def load(base, dtype):
        return hook(make_peft.load_adapted(c, folder, dtype, computes_4bit=False) if c else make_llama.load_model(base, dtype))
    return make_train.train(run, dtype, load)


def run_distances(folder, name, mode):
    """Of ten steps: weights are rounded for forward and backward, masters and the update are float32."""
    def hook(model):
        forward, masters = model.forward, {}

        def rounded_forward(**inputs):
            for p in model.parameters():
                masters[p] = p.data
                p.data = mode.noise(p.data)
                mode.seen[p] = True
            with mode:
                out = forward(**inputs)
            return Loss(out.loss, mode, masters)
        model.forward = rounded_forward
        return model
    records = train(folder, name, hook=hook)
    with open(os.path.join(folder, "losses.json")) as f:
        steps = json.load(f)["steps"]
    return {f"{key}.{s['step']}": abs(r[key] - s[key]) / abs(s[key]) for s, r in zip(steps, records) for key in ("loss", "grad_norm")}


class Loss:
    """The model output that train() needs: a loss whose backward rounds and then restores the master weights."""

    def __init__(self, loss, mode, masters):
        self.loss, self.value, self.mode, self.masters = self, loss, mode, masters

    def backward(self):
        with self.mode:
            self.value.backward()
        for p, master in self.masters.items():
            p.data = master

    def detach(self):
        return self.value.detach()


def exact(folder, name):
    """The case's reference in float64, from the bytes on disk."""
    if name in ADAPTERS:
        return make_peft.reference(folder, ADAPTERS[name], torch.float64)
    batch = load_file(os.path.join(folder, "batch.safetensors"))
    for made in MADE:
        if name in made.CASES:
            return made.reference(folder, made.CASES[name], batch, torch.float64)
    if name in TINYVIT:
        weights = load_file(os.path.join(folder, "model.safetensors"))
        return make_tinyvit.reference(TINYVIT[name], weights, batch, torch.float64)[0]
    return make_llama.reference(folder, batch, torch.float64)


def exact_distances(folder, name):
    """How far the stored float32 numbers are from float64 ones."""
    if not os.path.exists(os.path.join(folder, "losses.json")):
        return distances(load_file(os.path.join(folder, "expect.safetensors")), exact(folder, name))
    records = train(folder, name, torch.float64)
    with open(os.path.join(folder, "losses.json")) as f:
        steps = json.load(f)["steps"]
    return {f"{key}.{s['step']}": abs(r[key] - s[key]) / abs(r[key]) for s, r in zip(steps, records) for key in ("loss", "grad_norm")}


def measure(folder, name, kind, seed):
    mode = Rounding(kind, seed)
    if os.path.exists(os.path.join(folder, "losses.json")):
        return run_distances(folder, name, mode)
    return distances(numbers(folder, name, mode), load_file(os.path.join(folder, "expect.safetensors")))


def stored(path):
    """The columns as they were written, tensor by tensor."""
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return {w[0]: dict(zip(COLUMNS, w[1:])) for w in map(str.split, f)}


def measured(folder, name, column, seeds):
    """A column, tensor by tensor."""
    if column == "f32":
        return exact_distances(folder, name)
    table = {}
    for seed in range(seeds):
        for tensor, error in measure(folder, name, column, seed).items():
            table.setdefault(tensor, []).append(error)
    return {tensor: deviation(errors) for tensor, errors in table.items()}


def deviation(errors):
    return max(math.sqrt(sum(e * e for e in errors) / len(errors)), max(errors) / 2)


def make_case(folder, name, seeds, columns):
    path = os.path.join(folder, "rounding.txt")
    table = stored(path)
    for column in columns:
        for tensor, value in measured(folder, name, column, seeds).items():
            row = table.setdefault(tensor, {})
            if column == "f32" or value < float(row.get(column, "inf")):
                row[column] = f"{value:.2g}"
    assert all(set(row) == set(COLUMNS) for row in table.values()), [n for n, row in table.items() if set(row) != set(COLUMNS)]
    with open(path, "w") as f:
        for tensor, row in table.items():
            f.write(f"{tensor} {' '.join(row[c] for c in COLUMNS)}\n")
    worst = {c: max((float(row[c]), n) for n, row in table.items()) for c in COLUMNS}
    print(f"{name:14} {len(table):4}  bf16 {worst['bf16'][0]:8.1e} {worst['bf16'][1]:70} f16 {worst['f16'][0]:8.1e}  f32 {worst['f32'][0]:8.1e}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--only", action="append", metavar="CASE")
    p.add_argument("--seeds", type=int, default=12, metavar="K")
    p.add_argument("--column", action="append", choices=COLUMNS, help="only this column; the others stay as they are")
    a = p.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name in sorted(os.listdir(HERE)) + sorted(ADAPTERS):
        folder = os.path.join(HERE, name)
        if not any(os.path.exists(os.path.join(folder, f)) for f in ("expect.safetensors", "losses.json")) or (a.only and name not in a.only):
            continue
        make_case(folder, name, a.seeds, a.column or COLUMNS)


if __name__ == "__main__":
    sys.exit(main())
