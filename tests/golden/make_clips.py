#!/usr/bin/env python3
"""Small videos in the layout of DAVIS, for tests/run_sam2_video.sh.

    python tests/golden/make_clips.py [--out DIR]        DIR/clips

    JPEGImages/VIDEO/00000.png     frames of 48 x 32 pixels: two discs that move over noise
    Annotations/VIDEO/00000.png    indexed: 1 and 2, the objects

left has an object that leaves after two frames, short has fewer frames than the others.
"""
import argparse
import os

import numpy as np
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
PALETTE = [0, 0, 0, 128, 0, 0, 0, 128, 0] + [0] * 759
VIDEOS = {"both": 5, "left": 5, "short": 2}


def write(folder, video, t, image):
    path = os.path.join(folder, video)
    os.makedirs(path, exist_ok=True)
    image.save(os.path.join(path, f"{t:05}.png"))


def make(out):
    r = np.random.default_rng(0)
    y, x = np.mgrid[:32, :48]
    for video, frames in VIDEOS.items():
        centre, speed, colour = r.uniform(8, 24, (2, 2)) + [[0, 0], [0, 18]], r.uniform(-2, 2, (2, 2)), r.integers(90, 255, (2, 3))
        for t in range(frames):
            pixels, labels = np.full((32, 48, 3), 30, np.uint8), np.zeros((32, 48), np.uint8)
            pixels[::4, ::4] = r.integers(0, 60, (8, 12, 3))
            for k in range(2):
                if video == "left" and k and t > 1:
                    continue
                row, column = centre[k] + speed[k] * t
                disc = (y - row) ** 2 + (x - column) ** 2 < 36
                pixels[disc], labels[disc] = colour[k], k + 1
            write(os.path.join(out, "JPEGImages"), video, t, Image.fromarray(pixels))
            indexed = Image.fromarray(labels, "P")
            indexed.putpalette(PALETTE)
            write(os.path.join(out, "Annotations"), video, t, indexed)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=HERE, metavar="DIR")
    make(os.path.join(p.parse_args().out, "clips"))
