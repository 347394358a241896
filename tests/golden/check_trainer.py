#!/usr/bin/env python3
"""Compares the losses of training cases with those of transformers' Trainer.

    python tests/golden/check_trainer.py [CASE]...      from the repository's root; needs torch, transformers, accelerate

(checked with 2.15, 5.22.2 on the CPU). Each case of make_train.py is trained by Trainer with the keys of its
run.yaml; its losses, learning rates and norms are those of losses.json to five digits.
"""
import json
import os
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy
import torch
import yaml
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

sys.dont_write_bytecode = True
from common import HERE
from make_llama import load_model

DIGITS = 1e-5


class InOrder(Trainer):
    """Samples come in the order of the file."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def check(name):
    with open(os.path.join(HERE, name, "run.yaml")) as f:
        run = yaml.safe_load(f)
    t, T = run["train"], run["data"]["sequence"]
    tokens = numpy.fromfile(run["data"]["train"], "<u2").astype(numpy.int64)
    rows = [torch.from_numpy(tokens[i * T:(i + 1) * T]) for i in range(t["steps"] * t["effective_batch"])]
    model = load_model(run["model"]["path"], torch.float32).train()
    with tempfile.TemporaryDirectory() as out:
        trainer = InOrder(model=model, train_dataset=[dict(input_ids=x, labels=x) for x in rows], args=TrainingArguments(
            output_dir=out, max_steps=t["steps"], per_device_train_batch_size=t["effective_batch"], learning_rate=t["learning_rate"],
            lr_scheduler_type=t["schedule"], warmup_steps=t["warmup_steps"], weight_decay=t["weight_decay"], adam_beta1=t["beta1"],
            adam_beta2=t["beta2"], adam_epsilon=t["eps"], max_grad_norm=t["clip_norm"], logging_steps=1, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, optim="adamw_torch"))
        # Trainer takes no decay of biases and norms; the case takes it of all.
        trainer.get_decay_parameter_names = lambda model: [n for n, _ in model.named_parameters()]
        trainer.train()
    with open(os.path.join(HERE, name, "losses.json")) as f:
        ours = json.load(f)["steps"]
    theirs = [x for x in trainer.state.log_history if "loss" in x]
    assert len(ours) == len(theirs) == t["steps"], (len(ours), len(theirs))
    worst = {key: max(abs(float(a[key]) - b[key]) / max(abs(b[key]), 1e-3) for a, b in zip(theirs, ours)) for key in ("loss", "learning_rate", "grad_norm")}
    print(f"{name:14} {t['steps']} steps  " + "  ".join(f"{k} {v:.1e}" for k, v in worst.items()), flush=True)
    return max(worst.values()) < DIGITS


def main():
    logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    names = sys.argv[1:] or ["train_qwen3", "train_gemma3", "train_phi3"]
    return 0 if all([check(n) for n in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
