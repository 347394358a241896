#!/usr/bin/env python3
"""Do transformers and PEFT open what we trained, and give our logits? For each family of language models.

    python tests/golden/check_families.py [--binary build/plimsoll] [NAME...]

NAME: a family, of which transformers saves a tiny random model, or a folder of tests/golden, which is as published;
by default every family and the smallest folder of each. Each is trained for three steps: all weights; an adapter on
all linear layers; that adapter merged into the weights. transformers, or PEFT for the adapter, loads the folder that
was written, and its logits are compared with those of `plimsoll step`. Used by hand; the tests need no Python.
"""
import argparse
import json
import subprocess
import sys
import tempfile

from common import HERE, relative, write_tensors  # also keeps the hub out

import torch
from peft import PeftModel
from safetensors.torch import load_file
from tiny_families import FAMILIES, save_tiny, tiny_config
from transformers import AutoModelForCausalLM
from transformers.utils import logging

CASES = "qwen3 smollm3 granite olmo2 olmo3 phi3 gemma gemma2 gemma3 ministral3 qwen2 mistral gpt2 mixtral".split()
LINEAR = ["--set", "adapter.target_modules=all-linear", "--set", "adapter.r=2"]
BOUND = 5e-6  # of the relative distance of logits in f32


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
                                                       output_loading_info=True)
    bad = {k: v for k, v in info.items() if v}
    assert not bad, f"{folder}: {bad}"
    return model.eval()


class Case:
    def __init__(self, folder, binary, tmp):
        self.folder, self.binary, self.tmp = folder, binary, tmp
        with open(f"{self.folder}/config.json") as f:
            vocabulary = json.load(f)["vocab_size"]
        self.ids = torch.randint(0, vocabulary, (2, 10), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
        write_tensors(f"{tmp}/batch.safetensors", {"input_ids": self.ids, "labels": self.ids.clone()})
        with open(f"{tmp}/tokens.bin", "wb") as f:
            f.write(b"".join((i * 7 % min(vocabulary, 251)).to_bytes(2, "little") for i in range(512)))
        with open(f"{tmp}/run.yaml", "w") as f:
            f.write(f"data: {{format: tokens, train: {tmp}/tokens.bin, sequence: 10}}\n"
                    "train: {steps: 3, effective_batch: 4, learning_rate: 0.01}\nmemory: {precision: f32}\n")

    def run(self, *arguments):
        done = subprocess.run([self.binary, *arguments], capture_output=True, text=True)
        assert not done.returncode, done.stderr.strip().split("\n")[-1]

    def train(self, out, *more):
        self.run("train", f"{self.tmp}/run.yaml", "--set", f"model.path={self.folder}", "--set", f"train.out={self.tmp}/{out}", *more)
        return f"{self.tmp}/{out}/model"

    def distance(self, model, folder, *more):
        out = f"{self.tmp}/out.safetensors"
        self.run("step", "--model", folder, "--batch", f"{self.tmp}/batch.safetensors", "--out", out, "--set", "memory.precision=f32", *more)
        with torch.no_grad():
            theirs = model(input_ids=self.ids.long()).logits
        return float(relative(load_file(out)["logits"].reshape(theirs.shape), theirs))

    def distances(self):
        trained = self.train("all")
        yield "all weights", self.distance(load(trained), trained)
        adapter = self.train("lora", *LINEAR)
        yield "adapter", self.distance(PeftModel.from_pretrained(load(self.folder), adapter).eval(), self.folder, "--adapter", adapter)
        merged = f"{self.tmp}/merged"
        self.run("convert", self.folder, "--adapter", adapter, "-o", merged)
        yield "merged", self.distance(load(merged), merged)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--binary", default="build/plimsoll")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    failed = 0
    rows = [(name, name) for name in FAMILIES] + [(name, f"{HERE}/{name}") for name in CASES]
    for name, folder in rows:
        if a.names and name not in a.names:
            continue
        with tempfile.TemporaryDirectory() as tmp:
            if folder == name:
                folder = f"{tmp}/saved"
                save_tiny(folder, tiny_config(name), name)
            try:
                row = dict(Case(folder, a.binary, tmp).distances())
            except AssertionError as e:
                row, failed = {str(e): float("nan")}, failed + 1
        failed += any(x > BOUND for x in row.values())
        print(f"{name:12} {'golden' if folder.startswith(HERE) else 'saved':7}", ", ".join(f"{what} {x:.1e}" for what, x in row.items()), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
