#!/usr/bin/env python3
"""Golden file for `plimsoll generate --image` with images of any size, made with transformers.

    python tests/golden/make_generate_qwen_vl.py       after make_qwen_vl_train.py, whose models and images it uses

    generate_qwen_vl.txt   one case a line: model folder, images and videos with commas between them or -, prompt, answer. Ids have commas between
                           them; image tokens are in the prompt, as many as each image has.

Answers are model.generate(do_sample=False) in float32 on the CPU, with pixel values by transformers' image processor. At every token the largest logit
is ahead of the second by at least MARGIN (make_generate.py). Grey images give another answer, so that a model that does not see them is noticed.
"""
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoVideoProcessor, PreTrainedTokenizerFast
from transformers.utils import logging

import make_generate
import make_qwen_vl
import make_qwen_vl_train

logging.set_verbosity_error()
HERE = os.path.dirname(os.path.abspath(__file__))
NEW = 24
MEDIA = [[], [0], [3], [1, 5, 4], ["a"], [2, "b", 6]]


def make_prompt(r, tokens):
    """Text with the tokens of each image, in their order: anywhere, also first and last."""
    special = make_qwen_vl_train.SPECIAL
    words = [[r.randrange(len(special), make_qwen_vl_train.VOCABULARY)] for _ in range(r.randrange(4, 9))]
    places = sorted(r.randrange(len(words) + 1) for _ in tokens)
    for at, run in reversed(list(zip(places, tokens))):
        words.insert(at, [make_qwen_vl.START] + run + [make_qwen_vl.END])
    return [t for w in words for t in w]


def answer(model, prompt, values):
    ids = torch.tensor([prompt])
    extra = dict(values, mm_token_type_ids=(ids == make_qwen_vl.IMAGE).int() + 2 * (ids == make_qwen_vl.VIDEO).int()) if values else {}
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, pad_token_id=0, eos_token_id=[-1], output_scores=True,
                         return_dict_in_generate=True, **extra)
    return out.sequences[0, len(prompt):].tolist(), min(make_generate.margin(s[0]) for s in out.scores)


def main():
    r = random.Random(11)
    lines = []
    for name, c in make_qwen_vl_train.CASES.items():
        folder = os.path.join(HERE, "qwen_vl", name)
        processor = AutoImageProcessor.from_pretrained(folder)
        special = {s: i for i, s in enumerate(make_qwen_vl_train.SPECIAL)}
        make_qwen_vl.IMAGE, make_qwen_vl.VIDEO = special["<|image_pad|>"], special["<|video_pad|>"]
        make_qwen_vl.START, make_qwen_vl.END = special["<|vision_start|>"], special["<|vision_end|>"]
        model = make_qwen_vl.load_model(folder, torch.float32).eval()
        videos, hf = AutoVideoProcessor.from_pretrained(folder), PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
        for media in MEDIA:
            values, tokens = {}, []
            for i in media:
                if isinstance(i, int):
                    x = processor(images=[Image.open(os.path.join(folder, "images", f"{i}.png"))], return_tensors="pt")
                    tokens.append([make_qwen_vl.IMAGE] * (int(x["image_grid_thw"].prod()) // processor.merge_size ** 2))
                else:
                    x = make_qwen_vl_train.read_clip(folder, videos, i)
                    text = make_qwen_vl_train.clip_text(c["model"]["kind"], x["video_grid_thw"][0], processor.merge_size, make_qwen_vl_train.CLIPS[i][0])
                    tokens.append(hf(text, add_special_tokens=False)["input_ids"])
                    if c["model"]["kind"] == "qwen2_5_vl":
                        values["second_per_grid_ts"] = torch.tensor([2 / make_qwen_vl_train.FPS])
                for k in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"):
                    if k in x:
                        values[k] = torch.cat([values[k], x[k]]) if k in values else x[k]
            for _ in range(300):
                prompt = make_prompt(r, tokens)
                ids, ahead = answer(model, prompt, values)
                if ahead < make_generate.MARGIN or min(ids) < len(special) or len(set(ids)) < 3:
                    continue
                if not media or answer(model, prompt, {k: torch.zeros_like(v) if k.startswith("pixel") else v for k, v in values.items()})[0] != ids:
                    break
            else:
                raise SystemExit(f"{name} {media}: no prompt has a clear answer")
            print(name, media, len(prompt), len(ids), len(set(ids)))
            names = [f"images/{i}.png" if isinstance(i, int) else f"clips/{i}" for i in media]
            lines.append(" ".join(["qwen_vl/" + name, ",".join(names) or "-", ",".join(map(str, prompt)), ",".join(map(str, ids))]))
    with open(os.path.join(HERE, "generate_qwen_vl.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
