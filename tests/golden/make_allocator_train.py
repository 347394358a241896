#!/usr/bin/env python3
"""Golden files for `plimsoll train` on the token allocator with levels of detail: six steps of small models in PyTorch.

    python tests/golden/make_allocator_train.py [--out DIR] [--only CASE]...

Run it from the repository's root. Cases are folders as those of make_qwen_vl_train.py, with its conversations; the
reference is that of make_allocator_levels.py.

What holds: transformers' image processor makes the pixels, of which the textures are made here; each conversation is a
forward of its own, its question the text before the first answer; and the loss of a step is the sum over the labels of all
conversations, divided by their number. In no step would a change of 1e-5 in the scores change a choice.
"""
import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from transformers import AutoImageProcessor, PreTrainedTokenizerFast

import common
import make_allocator
import make_allocator_levels as levels
import make_qwen_vl
import make_qwen_vl_train as made

GAP = 1e-5
made.CLIPS = {}
made.CHATS = [  # images, question, answer
    ([0], "what is this", "a red boat"), ([1, 2], "which is larger", "the second one is larger"), ([], "say hello", "hello there"),
    ([3], "how wide is it", "very wide"), ([4, 0, 1], "count them", "there are three images"), ([5], "is it square", "yes"),
    ([6, 2], "compare", "one is tall"), ([2], "describe the image", "it shows a green field under grey clouds"),
]
MEAN, STD = (0.48, 0.45, 0.4), (0.26, 0.26, 0.27)  # of make_qwen_vl_train.py
CASES = {
    "arr_coc_qwen2_vl": dict(model=levels.case(vocab=made.VOCABULARY, tied=True, patch=4, tokens=16, most=13), packing=False, sequence=112),
    "arr_coc_qwen3_vl": dict(model=levels.case(kind="qwen3_vl", names="memory", style=5, vocab=made.VOCABULARY, patch=4, head_dim=12, heads=2, kv_heads=1,
                                               layers=3, sections=[2, 2, 2], tokens=13, most=10), packing=True, sequence=128),
}


def image_of(pixels, grid, c):
    """The pixels of an image from 0 to 1, [3,H,W], of its patches."""
    _, h, w = grid
    m, p = c["merge"], c["patch"]
    x = pixels.reshape(h // m, w // m, m, m, 3, 2, p, p)[:, :, :, :, :, 0]
    x = x.permute(4, 0, 2, 5, 1, 3, 6).reshape(3, h * p, w * p)
    return x * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]


def encode(folder, hf, processor, c, images, q, a):
    """As make_qwen_vl_train.encode, with as many tokens for every image, and what the allocator reads."""
    given, labels = made.encode(folder, c["kind"], made.TEMPLATE, hf, processor, None, images, q, a)
    ids, out, kept, k = given["input_ids"][0].tolist(), [], [], 0
    while k < len(ids):
        n = 1
        if ids[k] == make_qwen_vl.IMAGE:
            while ids[k + n] == make_qwen_vl.IMAGE:
                n += 1
            out += [make_qwen_vl.IMAGE] * c["tokens"]
            kept += [common.IGNORE] * c["tokens"]
        else:
            out.append(ids[k])
            kept.append(int(labels[k]))
        k += n
    batch = dict(input_ids=torch.tensor([out]), labels=torch.tensor([kept]))
    if images:
        grids = given["image_grid_thw"].tolist()
        question = torch.tensor([float(t != make_qwen_vl.IMAGE) for t in out])
        first = next(i for i, x in enumerate(kept) if x != common.IGNORE)
        question[first:] = 0
        pixels = given["pixel_values"].split([h * w for _, h, w in grids])
        texture = torch.stack([make_allocator.texture(image_of(x, g, c)) for x, g in zip(pixels, grids)])
        batch.update(image_grid_thw=given["image_grid_thw"], pixel_values=given["pixel_values"], texture=texture,
                     information=make_allocator.information(texture), query_weights=(question / question.sum()).expand(len(grids), 1, -1))
    return batch


def logits_of(model, batch):
    if "pixel_values" in batch:
        return model(batch, torch.float32)["logits"][0]
    n = batch["input_ids"].shape[1]
    hidden = model.base.model.language_model(input_ids=batch["input_ids"], position_ids=torch.arange(n).expand(3, 1, -1), use_cache=False)
    return model.base.lm_head(hidden.last_hidden_state)[0]


def train(folder, c, t):
    hf = PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    processor = AutoImageProcessor.from_pretrained(folder)
    samples = [encode(folder, hf, processor, c["model"], *chat) for chat in made.chats_of(c)]
    model = levels.load_model(folder, c["model"], torch.float32).train()
    model.gap = GAP

    def stable_logits(i):
        logits = logits_of(model, samples[i])
        return logits if getattr(model, "stable", True) else None
    rows = made.run_steps(folder, model, t, [x["labels"][0] for x in samples], stable_logits)
    lengths = [x["input_ids"].shape[1] for x in samples]
    return rows, max(lengths), sum(lengths)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=os.path.join(common.HERE, "qwen_vl"))
    p.add_argument("--only", action="append")
    a = p.parse_args()
    common.quiet()
    for name, c in CASES.items():
        if a.only and name not in a.only:
            continue
        folder = os.path.join(a.out, name)
        made.write_folder(folder, c)
        t = made.write_run(folder, c, os.path.relpath(folder, os.path.join(common.HERE, "..", "..")))
        with open(os.path.join(folder, "run.yaml")) as f:
            run = f.read().replace("make_qwen_vl_train.py", "make_allocator_train.py").replace("max_frames: 4", "max_images: 4")
        with open(os.path.join(folder, "run.yaml"), "w") as f:
            f.write(run)
        os.remove(os.path.join(folder, "video_preprocessor_config.json"))
        for attempt in range(50):
            levels.write_model(folder, c["model"], common.generator_of("train_" + name, 0, attempt))
            rows, longest, total = train(folder, c, t)
            if rows:
                break
        else:
            raise SystemExit(f"{name}: no seed of which no rounding changes a choice")
        print(f"{name:20} attempt {attempt}, longest {longest}, in all {total} tokens, loss {rows[0]['loss']:.5f} to {rows[-1]['loss']:.5f}, {common.folder_bytes(folder)} bytes")


if __name__ == "__main__":
    main()
