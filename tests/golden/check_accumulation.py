#!/usr/bin/env python3
"""Shows what gradient accumulation does to Qwen-VL in transformers' Trainer, and in Plimsoll.

    python tests/golden/check_accumulation.py [CASE]...      from the repository's root, after make; needs torch, transformers, accelerate

(checked with 2.15, 5.23.0 on the CPU). Makes small models, the cases of make_qwen_vl_train.py, and eight conversations
with zero to three images and 4 to 121 labels. Each model is trained on all eight a step: by Trainer in one micro-batch
and in four (gradient_accumulation_steps), and by `plimsoll train` in the same micro-batches. Prints the losses and
gradient norms of every step, and whether Trainer divides by the labels of the whole step (accepts_loss_kwargs). What
must hold: Plimsoll's two runs agree within 1e-6 in the first step, and Trainer in one micro-batch agrees with them within
1e-5. docs/explanation/memory.md quotes the tables.
"""
import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers import AutoImageProcessor, PreTrainedTokenizerFast, PrinterCallback, Trainer, TrainingArguments

sys.dont_write_bytecode = True
import common
import make_qwen_vl
import make_qwen_vl_train as made

BINARY = os.path.join(os.environ.get("BUILD", "build"), "plimsoll")
made.CLIPS = {}
LONG = "the boat is red and the two oars lie across it while a man in a green coat looks for the rope that holds it to the pier"
made.CHATS = [  # images, question, answer: the first micro-batches have few labels, the last one many
    ([0], "is it a boat", "yes"), ([5], "is it square", "no"), ([1, 2], "which is larger", "the second"), ([], "say hello", "hello there"),
    ([3], "how wide is it", "very wide"), ([6, 3], "compare", "one is tall"), ([4, 0, 1], "describe them", LONG), ([2], "describe the image", LONG + " and " + LONG),
]


class InOrder(Trainer):
    """Samples come in the order of the file."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def collate(samples):
    """Rows padded at the right, and the patches and grids of all their images."""
    T = max(len(labels) for _, labels in samples)
    pad = lambda x, value: torch.nn.functional.pad(x, (0, T - len(x)), value=value)  # noqa: E731
    out = dict(input_ids=torch.stack([pad(g["input_ids"][0], 0) for g, _ in samples]), labels=torch.stack([pad(x, common.IGNORE) for _, x in samples]),
               attention_mask=torch.stack([pad(torch.ones_like(x), 0) for _, x in samples]),
               mm_token_type_ids=torch.stack([pad(g["mm_token_type_ids"][0], 0) for g, _ in samples]))
    for key in ("pixel_values", "image_grid_thw"):
        if any(key in g for g, _ in samples):
            out[key] = torch.cat([g[key] for g, _ in samples if key in g])
    return out


def theirs(folder, samples, t, pieces):
    """Trainer's losses and norms, and whether it asks for the mean over the whole step."""
    model = make_qwen_vl.load_model(folder, torch.float32).train()
    with tempfile.TemporaryDirectory() as out:
        trainer = InOrder(model=model, train_dataset=samples * t["steps"], data_collator=collate, args=TrainingArguments(
            output_dir=out, max_steps=t["steps"], per_device_train_batch_size=t["effective_batch"] // pieces, gradient_accumulation_steps=pieces,
            learning_rate=t["learning_rate"], lr_scheduler_type=t["schedule"], warmup_steps=t["warmup_steps"], weight_decay=t["weight_decay"],
            adam_beta1=t["beta1"], adam_beta2=t["beta2"], adam_epsilon=t["eps"], max_grad_norm=t["clip_norm"], logging_steps=1, save_strategy="no",
            report_to=[], use_cpu=True, disable_tqdm=True, optim="adamw_torch", remove_unused_columns=False))
        trainer.remove_callback(PrinterCallback)
        trainer.get_decay_parameter_names = lambda model: [n for n, _ in model.named_parameters()]  # as in check_trainer.py
        trainer.train()
    return [(float(x["loss"]), float(x["grad_norm"])) for x in trainer.state.log_history if "loss" in x], trainer.model_accepts_loss_kwargs


def ours(folder, t, pieces):
    with tempfile.TemporaryDirectory() as out:
        run = subprocess.run([BINARY, "train", os.path.join(folder, "run.yaml"), "--set", f"train.out={out}/run", "--set", f"memory.micro_batch={t['effective_batch'] // pieces}"],
                             capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(run.stderr)
        with open(os.path.join(out, "run", "metrics.jsonl")) as f:
            steps = [json.loads(line) for line in f]
    return [(x["loss"], x["grad_norm"]) for x in steps if "loss" in x]


def distance(a, b, column):
    return [abs(x[column] - y[column]) / abs(x[column]) for x, y in zip(a, b)]


def check(kind):
    # Each conversation has a row of its own: a quarter of the step is two of them in both programs.
    c = dict(made.CASES[kind], packing=False, sequence=256, template=made.TEMPLATE)
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.join(folder, kind)
        made.write_folder(folder, c)
        t = made.write_run(folder, c, folder)
        hf = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>")
        processor = AutoImageProcessor.from_pretrained(folder)
        samples = [made.encode(folder, kind, c["template"], hf, processor, None, *chat) for chat in made.chats_of(c)]
        counts = [int((labels[1:] != common.IGNORE).sum()) for _, labels in samples]
        (whole, asks), (split, _) = theirs(folder, samples, t, 1), theirs(folder, samples, t, 4)
        rows = [whole, split, ours(folder, t, 1), ours(folder, t, 4)]
    assert all(len(r) == t["steps"] for r in rows), [len(r) for r in rows]
    print(f"\n{kind}: labels by conversation {counts}; in micro-batches of two {[sum(counts[i:i + 2]) for i in range(0, 8, 2)]}")
    print(f"  Trainer {'divides by the labels of the whole step' if asks else 'takes the mean of the means of micro-batches'} (accepts_loss_kwargs {asks})")
    print(f"  {'':4}  {'loss: Trainer 1':>15} {'Trainer 4':>10} {'ours 1':>10} {'ours 4':>10}   {'norm: Trainer 1':>15} {'Trainer 4':>10} {'ours 1':>10} {'ours 4':>10}")
    for step in range(t["steps"]):
        a, b, x, y = (r[step] for r in rows)
        print(f"  {step + 1:4}  {a[0]:15.6f} {b[0]:10.6f} {x[0]:10.6f} {y[0]:10.6f}   {a[1]:15.6f} {b[1]:10.6f} {x[1]:10.6f} {y[1]:10.6f}")
    far = {name: [distance(*pair, column) for column in (0, 1)] for name, pair in
           {"Trainer, 4 against 1": (rows[0], rows[1]), "ours, 4 against 1": (rows[2], rows[3]), "ours against Trainer, 1": (rows[0], rows[2])}.items()}
    for name, (loss, norm) in far.items():
        print(f"  {name:24} loss {max(loss):.1e} (first step {loss[0]:.1e})   norm {max(norm):.1e} (first step {norm[0]:.1e})", flush=True)
    exact, same = far["ours, 4 against 1"], far["ours against Trainer, 1"]
    return max(exact[0][0], exact[1][0]) < 1e-6 and max(same[0][0], same[1][0]) < 1e-5


def main():
    common.quiet()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    names = sys.argv[1:] or list(made.CASES)
    return 0 if all([check(n) for n in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
