"""What the scripts that make golden files share: writers, distances, and the frame of a script with cases.

A script with cases gives `main` its functions. For each case, a folder of its name:

    write_model(folder, c, generator)      config.json, weights, and other files of the model
    random_batch(c, generator)             the tensors of batch.safetensors
    reference(folder, c, batch, dtype)     the tensors of expect.safetensors, from the bytes on disk

The printed columns are the distances of the float32 outputs and gradients from float64 ones: what a
correct implementation may differ by, to set against the tolerance.
"""
import argparse
import json
import os
import random
import zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from safetensors.torch import save_file
from transformers.utils import logging

HERE = os.path.dirname(os.path.abspath(__file__))
IGNORE = -100


def write_tensors(path, tensors, metadata=None):
    save_file(tensors, path, metadata)
    os.chmod(path, 0o644)  # safetensors leaves its files readable only by the owner


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def random_weights(named, c, generator, rename=lambda name: name, is_norm=lambda name: "norm" in name):
    """Random parameters in the case's dtype, by their names in the folder. The weights of norms are around 1."""
    weights = {}
    for name, p in named:
        w = torch.randn(p.shape, generator=generator) * c["std"]
        if name.endswith(".weight") and is_norm(name):
            w += 1
        weights[rename(name)] = w.to(getattr(torch, c["dtype"]))
    return weights


def copy_weights(model, weights, folder, rename=lambda name: name):
    """Copies the tensors of a folder into the parameters; each tensor belongs to one."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weights.pop(rename(name)))
    if weights:
        raise SystemExit(f"{folder}: tensors that belong to no parameter: {list(weights)}")
    return model


def relative(a, b):
    """|a - b| / |b| in L2, in double."""
    a, b = (torch.nan_to_num(t.double().flatten(), 0.0) for t in (a, b))  # NaN: padding
    return float((a - b).norm() / b.norm().clamp_min(1e-300))


def noise(got, exact):
    """The worst relative error over the gradients, as tests/compare.c counts it."""
    grads = [n for n in exact if n.startswith("grad.")]
    total = torch.stack([exact[n].double().norm() for n in grads]).norm()
    return max((relative(got[n], exact[n]) for n in grads if exact[n].norm() > 1e-7 * total), default=0.0)


def folder_bytes(folder):
    paths = [os.path.join(folder, f) for f in os.listdir(folder)]
    return sum(os.path.getsize(p) for p in paths if os.path.isfile(p))


def parse_arguments(about, known):
    p = argparse.ArgumentParser(description=about.split("\n")[0])
    p.add_argument("--out", default=HERE, metavar="DIR", help="where the case folders go")
    p.add_argument("--seed", type=int, default=0, metavar="N")
    p.add_argument("--only", action="append", metavar="CASE", help="may be repeated")
    p.add_argument("--random", type=int, default=0, metavar="K",
                   help="K random configurations instead of the fixed cases; needs --out")
    p.add_argument("--list", action="store_true", help="print the names of the cases")
    a = p.parse_args()
    if a.random and os.path.abspath(a.out) == HERE:
        p.error("--random needs --out DIR: random cases do not belong among the fixed ones")
    for name in a.only or []:
        if not a.random and name not in known:
            p.error(f"no case {name!r}; there are: {' '.join(known)}")
    return a


def quiet():
    """Silences transformers, and lets sums have the same order everywhere."""
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    torch.set_num_threads(1)


def generator_of(name, seed, attempt=0):
    """The random numbers of a case depend only on its name, so adding a case changes no other."""
    return torch.Generator().manual_seed(seed * 1000003 + zlib.crc32(name.encode()) + attempt)


def backward(result, parameters, rename=lambda name: name):
    """Runs the loss's backward. Returns the outputs and grad.NAME of each parameter, 0 where none arrives."""
    result["loss"].backward()
    result = {n: t.detach().clone().contiguous() for n, t in result.items()}
    for name, p in parameters:
        result["grad." + rename(name)] = (torch.zeros_like(p) if p.grad is None else p.grad).contiguous()
    return result


def print_row(folder, name, expect, exact, more=""):
    """Prints the row of a case; returns the bytes of its folder."""
    params, size = sum(t.numel() for n, t in expect.items() if n.startswith("grad.")), folder_bytes(folder)
    worst = max(relative(expect[n], exact[n]) for n in expect if not n.startswith("grad.") and n != "loss")
    print(f"{name:24} {params:7} {size:9} {float(expect['loss']):9.5f} {worst:8.1e} {noise(expect, exact):8.1e}{more}")
    return size


def main(about, cases, write_model, random_batch, reference, random_case=None, prefix="", metadata=None, more=None,
         make_case=None):
    """metadata(c): of batch.safetensors; more(folder, c, batch, expect): further files and checks of a case;
    make_case(folder, name, c, seed): makes a case instead of the functions."""
    def make(folder, name, c, seed):
        generator = generator_of(name, seed)
        write_model(folder, c, generator)
        batch = random_batch(c, generator)
        expect = reference(folder, c, batch, torch.float32)
        if not all(torch.isfinite(t).all() for n, t in expect.items() if n != "logits" or "attention_mask" not in batch):
            raise SystemExit(f"{name}: the reference is not finite; choose other sizes")
        write_tensors(os.path.join(folder, "batch.safetensors"), batch, metadata(c) if metadata else None)
        write_tensors(os.path.join(folder, "expect.safetensors"), expect)
        if more:
            more(folder, c, batch, expect)
        return print_row(folder, name, expect, reference(folder, c, batch, torch.float64))

    a = parse_arguments(about, cases)
    if a.random:
        cases = {f"{prefix}_{a.seed}_{k}": random_case(random.Random(f"{a.seed}/{k}")) for k in range(a.random)}
    cases = {n: c for n, c in cases.items() if not a.only or n in a.only}
    if a.list:
        print("\n".join(cases))
        return a
    quiet()
    print(f"{'case':24} {'params':>7} {'bytes':>9} {'loss':>9} {'outputs':>8} {'grads':>8}  f32 from f64")
    total = sum((make_case or make)(os.path.join(a.out, n), n, c, a.seed) for n, c in cases.items())
    print(f"{len(cases)} cases, {total} bytes")
    return a
