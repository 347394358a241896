#!/usr/bin/env python3
"""Does transformers open a model folder that we wrote?

    python tests/golden/check_roundtrip.py ORIGINAL WRITTEN [--trained]

ORIGINAL is the folder a run started from (model.path), WRITTEN the one it left
(runs/x/model). Checks, in this order:

    the files hold the same tensor names, shapes and dtypes ("written back as read");
    AutoModelForCausalLM loads WRITTEN with no missing, unexpected or mismatched key;
    the logits of both are the same bits, when nothing was trained (train.steps: 0 or
    learning_rate: 0). With --trained they have to be finite and to differ instead.

Used by hand; the tests need no Python. Exit status 0 when all holds.
"""
import argparse
import glob
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from transformers.utils import logging

failures = 0


def check(ok, what, detail=""):
    global failures
    failures += not ok
    print(("ok    " if ok else "FAIL  ") + what + ("" if ok or not detail else f": {detail}"))
    return ok


def model_files(folder):
    """The weight files as transformers finds them: one file, or those of the index."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index) as f:
            names = sorted(set(json.load(f)["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    return [os.path.join(folder, n) for n in names]


def tensors(folder):
    """name -> (dtype, shape) over the folder's weight files."""
    out = {}
    for path in model_files(folder):
        with safe_open(path, "pt") as f:
            for name in f.keys():
                part = f.get_slice(name)
                out[name] = (part.get_dtype(), tuple(part.get_shape()))
    return out


def same_layout(original, written):
    a, b = tensors(original), tensors(written)
    differ = sorted(n for n in a.keys() | b.keys() if a.get(n) != b.get(n))
    detail = ", ".join(f"{n} was {a.get(n)}, is {b.get(n)}" for n in differ[:5])
    check(not differ, f"{len(a)} tensors: names, shapes and dtypes as in the original", detail)


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v}
    check(not bad, f"{folder} loads with no missing or unexpected key", bad)
    return model.eval()


def compare_logits(original, written, trained):
    a, b = load(original), load(written)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, a.config.vocab_size, (2, 17), generator=generator)
    with torch.no_grad():
        x, y = a(input_ids=ids).logits, b(input_ids=ids).logits
    if not check(x.shape == y.shape, "logits have the same shape", f"{x.shape} and {y.shape}"):
        return
    distance = float((x - y).norm() / x.norm())
    if trained:
        check(bool(torch.isfinite(y).all()), "logits are finite")
        check(distance > 0, "training changed the logits")
    else:
        check(torch.equal(x, y), "logits are equal", f"relative distance {distance:.3g}")


def other_files(original, written):
    """Tokenizer, preprocessor and the like travel with the model."""
    def names(folder):
        paths = glob.glob(os.path.join(folder, "*"))
        return {os.path.basename(p) for p in paths if os.path.isfile(p)}
    weights = {os.path.basename(p) for p in model_files(original)}
    # Golden case folders hold their data beside the model; that is no part of it.
    golden = {"batch.safetensors", "expect.safetensors", "losses.json", "run.yaml", "tokens.bin",
              "model.safetensors.index.json"}
    missing = sorted(names(original) - names(written) - weights - golden)
    check(not missing, "the other files of the original are there", ", ".join(missing))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("original")
    p.add_argument("written")
    p.add_argument("--trained", action="store_true", help="the logits have to differ")
    a = p.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for folder in (a.original, a.written):
        for path in [os.path.join(folder, "config.json")] + model_files(folder):
            if not os.path.isfile(path):
                p.error(f"no {path}")
    same_layout(a.original, a.written)
    other_files(a.original, a.written)
    compare_logits(a.original, a.written, a.trained)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
