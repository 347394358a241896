#!/usr/bin/env python3
"""The usual Python way from an SA-1B shard to a training sample, and shards to try readers with.

    python_data.py time SHARD [--seconds 20]   tarfile, PIL, json, pycocotools; the picture's longer side
                                               to 1024, 32 masks to float32 and to 256
    python_data.py count SHARD                 how many pairs that loop gives
    python_data.py rewrite HOW IN OUT          json-first: annotations before their pictures; random: any
                                               order; damaged: a byte of every 20th header flipped, the end cut;
                                               weight: pictures of the weight of SA-1B's, 1 MB at 2250 x 1500

The loop keeps a picture until its annotations come, reads both, decodes the first 32 masks at full
size, and goes on. One thread. Prints a word and a number a line."""
import argparse
import io
import json
import random
import sys
import tarfile
import time

MASKS, SIDE, CELLS = 32, 1024, 256


def pairs(path):
    """(jpg, json) members in the order in which they complete; a picture must come first."""
    waiting = {}
    with tarfile.open(path, "r") as tar:
        for member in tar:
            key, _, kind = member.name.rpartition(".")
            if kind == "jpg":
                waiting[key] = member
            elif kind == "json" and key in waiting:
                yield tar.extractfile(waiting.pop(key)).read(), tar.extractfile(member).read()


def sample(jpg, annotations):
    import numpy
    import torch
    from PIL import Image
    from pycocotools import mask
    image = Image.open(io.BytesIO(jpg)).convert("RGB")
    scale = SIDE / max(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BILINEAR)
    pixels = torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1).float()
    chosen = json.loads(annotations)["annotations"][:MASKS]
    masks = torch.from_numpy(numpy.stack([mask.decode(a["segmentation"]) for a in chosen])).float()
    scale = CELLS / max(masks.shape[1:])
    small = tuple(round(n * scale) for n in masks.shape[1:])
    return pixels, torch.nn.functional.interpolate(masks[None], size=small)[0]


def measure(path, seconds):
    import torch
    torch.set_num_threads(1)
    for pair in pairs(path):  # libraries are loaded before the clock runs
        sample(*pair)
        break
    n, begun, cpu = 0, time.time(), time.process_time()
    while time.time() - begun < seconds:
        for pair in pairs(path):
            sample(*pair)
            n += 1
            if time.time() - begun >= seconds:
                break
    wall, cpu = time.time() - begun, time.process_time() - cpu
    print(f"images {n}\nseconds {wall:.3f}\ncpu_seconds {cpu:.3f}\nper_second {n / wall:.3f}\nper_cpu_second {n / cpu:.3f}")


def count(path):
    n = 0
    try:
        for _ in pairs(path):
            n += 1
    except tarfile.TarError as e:
        print("stopped by", e, file=sys.stderr)
    print("pairs", n)


def lighter(jpg):
    from PIL import Image
    out = io.BytesIO()
    Image.open(io.BytesIO(jpg)).save(out, "JPEG", quality=90, subsampling="4:2:0")
    return out.getvalue()


def rewrite(how, source, target):
    """Prints how many pairs are whole in what it wrote."""
    with tarfile.open(source) as tar:
        members = [(m.name, tar.extractfile(m).read()) for m in tar if m.isfile()]
    if how == "weight":
        members = [(n, lighter(d) if n.endswith(".jpg") else d) for n, d in members]
    members.sort(key=lambda m: (m[0].rpartition(".")[0], m[0].endswith(".jpg")))
    if how == "weight":
        members.sort()  # .jpg before .json: what the loop above needs
    elif how != "json-first":
        random.Random(1).shuffle(members)
    places = []
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            places.append(tar.offset)
            tar.addfile(info, io.BytesIO(data))
    keys = {name.rpartition(".")[0] for name, _ in members}
    if how == "damaged":
        with open(target, "r+b") as f:
            for i in range(10, len(members), 20):
                f.seek(places[i] + 100)  # in the mode, so that the sum over the header is wrong
                f.write(b"?")
                keys.discard(members[i][0].rpartition(".")[0])
            f.truncate(places[-1] + 512 + len(members[-1][1]) // 2)
            keys.discard(members[-1][0].rpartition(".")[0])
    print("intact", len(keys))


p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("what", choices=["time", "count", "rewrite"])
p.add_argument("arguments", nargs="+")
p.add_argument("--seconds", type=float, default=20)
a = p.parse_args()
if a.what == "time":
    measure(a.arguments[0], a.seconds)
elif a.what == "count":
    count(a.arguments[0])
else:
    rewrite(*a.arguments)
