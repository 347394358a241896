#!/usr/bin/env python3
"""A table of images, masks, questions and answers for the benchmarks, as PRS-Med's data are: FOLDER/annotations/*.csv and
FOLDER/images_and_masks.

    make_questions.py FOLDER [--count 32] [--side 1024] [--seed 1]

Two datasets of as many rows each. The mask is an ellipse, and the answer says where it is; question and answer have 4 to
9 words each. Needs Pillow."""
import argparse
import csv
import os
import random

from PIL import Image, ImageDraw

WORDS = "the tumor is near in this image of a patient and its position can be seen as round or dark area".split()
DATASETS = ("brain_tumors_ct_scan", "polyp_endoscopy")


def sentence(r, end):
    return " ".join(r.choice(WORDS) for _ in range(r.randint(4, 9))) + end


def draw(r, folder, name, side):
    """An image of noise with an ellipse, and its mask; says where it is."""
    image = Image.frombytes("RGB", (16, 16), bytes(r.randrange(160) for _ in range(16 * 16 * 3))).resize((side, side), Image.BILINEAR)
    mask = Image.new("L", (side, side))
    w, h = (r.randint(side // 16, side // 4) for _ in range(2))
    x, y = r.randint(0, side - w - 1), r.randint(0, side - h - 1)
    for target, colour in ((image, (230, 220, 200)), (mask, 255)):
        ImageDraw.Draw(target).ellipse((x, y, x + w, y + h), fill=colour)
    image.save(os.path.join(folder, "train_images", name + ".jpg"), quality=90)
    mask.save(os.path.join(folder, "train_masks", name + ".png"))
    return ("top" if 2 * y + h < side else "bottom") + (" left" if 2 * x + w < side else " right")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--count", type=int, default=32)
    p.add_argument("--side", type=int, default=1024)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    r = random.Random(a.seed)
    os.makedirs(os.path.join(a.folder, "annotations"), exist_ok=True)
    for dataset in DATASETS:
        folder = os.path.join(a.folder, "images_and_masks", dataset)
        for part in ("train_images", "train_masks"):
            os.makedirs(os.path.join(folder, part), exist_ok=True)
        with open(os.path.join(a.folder, "annotations", dataset + ".csv"), "w", newline="") as f:
            table = csv.writer(f)
            table.writerow(("image_path", "image_name", "question", "answer", "position", "split"))
            for i in range(a.count // len(DATASETS)):
                where = draw(r, folder, str(i), a.side)
                table.writerow((f"{dataset}/train_images/{i}.jpg", f"{i}.jpg", sentence(r, "?"), f"The {where} part: {sentence(r, '.')}", where, "train"))


if __name__ == "__main__":
    main()
