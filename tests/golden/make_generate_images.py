#!/usr/bin/env python3
"""Golden file for `plimsoll generate --image`, made with transformers.

    python tests/golden/make_generate_images.py       after make_llava.py, make_peft.py and make_llava_text.py, whose models and images it uses

    generate_images.txt   one case a line: model folder, adapter folder or -, images with commas between them or -, options of the command or -, prompt,
                          answer. Ids have commas between them; image tokens are in the prompt, -200 in the original layout.

Answers are model.generate(do_sample=False) in float32 on the CPU, with pixel values by transformers' image processors. At every token the
largest logit is ahead of the second by at least MARGIN (make_generate.py). Other images
give another answer, so that a model that does not see them is noticed.
"""
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from peft import PeftModel
from PIL import Image
from transformers import CLIPImageProcessor, Idefics3ImageProcessor, SiglipImageProcessor
from transformers.utils import logging

import make_generate
import make_llava

logging.set_verbosity_error()
HERE = os.path.dirname(os.path.abspath(__file__))
IMAGES = os.path.join(HERE, "llava_text", "images")
NEW = 24
# model, adapter, images
CASES = [
    ("llava_clip_llama", None, []), ("llava_clip_llama", None, ["square"]), ("llava_clip_llama", None, ["wide", "tall", "small"]),
    ("llava_clip_mistral", None, ["tall", "square"]),
    ("llava_siglip_qwen2", None, ["large"]), ("llava_siglip_qwen2", None, ["small", "wide", "large"]),
    ("llava_original", None, ["square", "large"]),
    ("smolvlm", None, ["small"]), ("smolvlm", None, ["wide", "square"]),
    ("idefics3", None, ["tall"]),
    ("llava_clip_llama", "peft/llava", ["tall", "square"]),
]
PENALTY = {"smolvlm": 1.4, "idefics3": 1.4}  # their answers would repeat one token


def set_in_square(image):
    """LLaVA's image_aspect_ratio: pad."""
    side = max(image.size)
    out = Image.new("RGB", (side, side), (122, 116, 104))
    out.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return out


def pixels(c, names):
    """[n,3,S,S]; with tiles those of all images, one after the other."""
    side = make_llava.vision_case(c)["image"]
    images = [Image.open(os.path.join(IMAGES, n + ".png")) for n in names]
    if c["kind"] in ("smolvlm", "idefics3"):
        p = Idefics3ImageProcessor(size=dict(longest_edge=4 * side), max_image_size=dict(longest_edge=side))
        return torch.tensor(p([images], return_tensors="np")["pixel_values"][0])
    if make_llava.is_original(c):
        images = [set_in_square(i) for i in images]
    if make_llava.vision_case(c)["kind"] == "siglip":
        p = SiglipImageProcessor(size=dict(height=side, width=side), resample=3)
    else:
        p = CLIPImageProcessor(size=dict(shortest_edge=side), crop_size=dict(height=side, width=side))
    return torch.tensor(p(images, return_tensors="np")["pixel_values"])


def make_prompt(r, c, n):
    """Text with n runs of image tokens: anywhere, also first and last."""
    vocab, features = make_llava.text_case(c)["vocab"], make_llava.features_of(c)
    words = [[r.randrange(3, vocab - 1)] for _ in range(r.randrange(4, 9))]
    for _ in range(n):
        words.insert(r.randrange(len(words) + 1), [vocab - 1] * features)
    return [t for w in words for t in w]


def answer(model, c, prompt, values, penalty):
    ids = torch.tensor([prompt])
    extra = {}
    if values is not None and c["kind"] in ("smolvlm", "idefics3"):
        extra = dict(pixel_values=values[None], pixel_attention_mask=torch.ones(1, len(values), *values.shape[2:], dtype=torch.long))
    elif values is not None:
        extra = dict(pixel_values=values)
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, pad_token_id=0, repetition_penalty=penalty, output_scores=True,
                         return_dict_in_generate=True, **extra)
    return out.sequences[0, len(prompt):].tolist(), min(make_generate.margin(s[0]) for s in out.scores)


def main():
    r = random.Random(7)
    lines = []
    for name, adapter, images in CASES:
        c = make_llava.CASES[name]
        model = make_llava.load_model(os.path.join(HERE, name), c, torch.float32)
        if adapter:
            model = PeftModel.from_pretrained(model, os.path.join(HERE, adapter)).eval()
        token = make_llava.text_case(c)["vocab"] - 1
        values = pixels(c, images).float() if images else None
        penalty = PENALTY.get(name, 1.0)
        for _ in range(200):
            prompt = make_prompt(r, c, len(values) if images else 0)
            ids, ahead = answer(model, c, prompt, values, penalty)
            if ahead < make_generate.MARGIN or token in ids or len(set(ids)) < 4:
                continue
            if not images or answer(model, c, prompt, torch.zeros_like(values) + 0.3, penalty)[0] != ids:
                break
        else:
            raise SystemExit(f"{name}: no prompt has a clear answer")
        if make_llava.is_original(c):
            prompt = [-200 if t == token else t for t in prompt]
        print(name, images, len(prompt), len(ids))
        lines.append(" ".join([name, adapter or "-", ",".join(images) or "-", f"--repetition-penalty={penalty}" if penalty != 1 else "-", ",".join(map(str, prompt)), ",".join(map(str, ids))]))
    with open(os.path.join(HERE, "generate_images.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
