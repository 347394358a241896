#!/usr/bin/env python3
"""Conversations with images for the benchmarks: FOLDER/chats.jsonl in LLaVA's format and FOLDER/images/*.jpg.

    make_conversations.py FOLDER [--count 96] [--most 3] [--seed 1]
    make_conversations.py FOLDER --sizes 448x672,336x336;1008x672 [--digits 384]

Each has 1 to --most images, as often each, and one or two turns whose answers have log-normal lengths, 60 words
at the median. With --sizes there is a conversation for each list of images, of these heights and widths, and its
answer has so many digits. Needs Pillow."""
import argparse
import json
import os
import random

from PIL import Image

WORDS = "the left lower lobe shows a small round opacity without effusion and the heart is of normal size in this view of patient".split()


def sentence(r, median):
    n = max(4, min(400, round(median * 2.718 ** r.gauss(0, 0.5))))
    return " ".join(r.choice(WORDS) for _ in range(n))


def image(r, path):
    small = Image.frombytes("RGB", (16, 12), bytes(r.randrange(256) for _ in range(16 * 12 * 3)))
    small.resize((r.choice((512, 640)), 480), Image.BILINEAR).save(path, quality=90)


def sized(r, a):
    with open(os.path.join(a.folder, "chats.jsonl"), "w") as f:
        for i, sizes in enumerate(a.sizes.split(";")):
            names = []
            for k, size in enumerate(sizes.split(",")):
                h, w = map(int, size.split("x"))
                names.append(f"images/{i}-{k}.png")
                Image.frombytes("RGB", (16, 12), bytes(r.randrange(256) for _ in range(16 * 12 * 3))).resize((w, h), Image.BILINEAR).save(os.path.join(a.folder, names[-1]))
            answer = "".join(r.choice("0123456789") for _ in range(a.digits))
            f.write(json.dumps({"id": i, "image": names, "conversations": [{"from": "human", "value": "<image>" * len(names)}, {"from": "gpt", "value": answer}]}) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--count", type=int, default=96)
    p.add_argument("--most", type=int, default=3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--sizes")
    p.add_argument("--digits", type=int, default=384)
    a = p.parse_args()
    r = random.Random(a.seed)
    os.makedirs(os.path.join(a.folder, "images"), exist_ok=True)
    if a.sizes:
        return sized(r, a)
    with open(os.path.join(a.folder, "chats.jsonl"), "w") as f:
        for i in range(a.count):
            names = [f"images/{i}-{k}.jpg" for k in range(1 + i % a.most)]
            for name in names:
                image(r, os.path.join(a.folder, name))
            turns = []
            for turn in range(r.choice((1, 2))):
                question = sentence(r, 12)
                turns.append({"from": "human", "value": "<image>\n" * (len(names) if not turn else 0) + question})
                turns.append({"from": "gpt", "value": sentence(r, 60)})
            f.write(json.dumps({"id": i, "image": names, "conversations": turns}) + "\n")


if __name__ == "__main__":
    main()
