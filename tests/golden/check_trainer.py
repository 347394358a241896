#!/usr/bin/env python3
"""Compares the losses of training with those of transformers' Trainer.

    python tests/golden/check_trainer.py [--binary build/plimsoll] [CASE]...      from the repository's root

(checked with torch 2.15, transformers 5.22.2 and 5.23.0, peft 0.21.2 on the CPU). Each case of make_train.py is trained by
Trainer with the keys of its run.yaml, all weights and then an adapter of PEFT on all linear layers. The losses and learning
rates of losses.json, and those of `plimsoll train`, are Trainer's to five digits, gradient norms to four. Used by hand; the
tests need no Python.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy
import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

sys.dont_write_bytecode = True
from common import HERE
from make_llama import load_model

BOUNDS = {"loss": 1e-5, "learning_rate": 1e-5, "grad_norm": 1e-4}


class InOrder(Trainer):
    """Samples come in the order of the file."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def train_there(model, run, out):
    """The steps of Trainer."""
    t, T = run["train"], run["data"]["sequence"]
    tokens = numpy.fromfile(run["data"]["train"], "<u2").astype(numpy.int64)
    rows = [torch.from_numpy(tokens[i * T:(i + 1) * T]) for i in range(t["steps"] * t["effective_batch"])]
    trainer = InOrder(model=model, train_dataset=[dict(input_ids=x, labels=x) for x in rows], args=TrainingArguments(
        output_dir=out, max_steps=t["steps"], per_device_train_batch_size=t["effective_batch"], learning_rate=t["learning_rate"],
        lr_scheduler_type=t["schedule"], warmup_steps=t["warmup_steps"], weight_decay=t["weight_decay"], adam_beta1=t["beta1"],
        adam_beta2=t["beta2"], adam_epsilon=t["eps"], max_grad_norm=t["clip_norm"], logging_steps=1, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, optim="adamw_torch"))
    trainer.remove_callback(PrinterCallback)
    # Trainer takes no decay of biases and norms; the case takes it of all.
    trainer.get_decay_parameter_names = lambda model: [n for n, p in model.named_parameters() if p.requires_grad]
    trainer.train()
    return [{k: float(x[k]) for k in BOUNDS} for x in trainer.state.log_history if "loss" in x]


def train_here(binary, name, out, *more):
    """The steps of `plimsoll train`."""
    done = subprocess.run([binary, "train", f"tests/golden/{name}/run.yaml", "--set", f"train.out={out}", "--set", "memory.precision=f32", *more],
                          capture_output=True, text=True)
    assert not done.returncode, done.stderr
    with open(f"{out}/metrics.jsonl") as f:
        return [x for x in map(json.loads, f) if "loss" in x]


def worst(ours, theirs):
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    return {k: max(abs(a[k] - b[k]) / max(abs(b[k]), 1e-3) for a, b in zip(ours, theirs)) for k in BOUNDS}


def check(name, binary):
    with open(os.path.join(HERE, name, "run.yaml")) as f:
        run = yaml.safe_load(f)
    rows = {}
    with tempfile.TemporaryDirectory() as out:
        theirs = train_there(load_model(run["model"]["path"], torch.float32).train(), run, out)
        with open(os.path.join(HERE, name, "losses.json")) as f:
            rows["losses.json"] = worst(json.load(f)["steps"], theirs)
        rows["all weights"] = worst(train_here(binary, name, f"{out}/all"), theirs)
        torch.manual_seed(0)
        model = get_peft_model(load_model(run["model"]["path"], torch.float32),
                               LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"))
        model.save_pretrained(f"{out}/adapter")
        theirs = train_there(model.train(), run, out)
        rows["LoRA by PEFT"] = worst(train_here(binary, name, f"{out}/lora", "--set", f"adapter.path={out}/adapter"), theirs)
    for what, row in rows.items():
        print(f"{name:14} {what:13} {len(theirs)} steps  " + "  ".join(f"{k} {v:.1e}" for k, v in row.items()), flush=True)
    return all(row[k] < BOUNDS[k] for row in rows.values() for k in BOUNDS)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--binary", default="build/plimsoll")
    p.add_argument("cases", nargs="*")
    a = p.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    return 0 if all([check(n, a.binary) for n in a.cases or ["train_qwen3", "train_gemma3", "train_phi3"]]) else 1


if __name__ == "__main__":
    sys.exit(main())
