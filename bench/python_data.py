#!/usr/bin/env python3
"""A Python loader from an SA-1B shard to a training sample, and rewritten shards to test readers.

    python_data.py time SHARD [--seconds 20]   tarfile, PIL, json, pycocotools; the image's longer side
                                               to 1024, 32 masks to float32 and to 256
    python_data.py count SHARD                 the number of pairs that this loader delivers
    python_data.py rewrite VARIANT IN OUT      json-first: annotations before their images; random: any
                                               order; damaged: a byte of every 20th header flipped, the end cut;
                                               jpeg-size: JPEGs as large as SA-1B's, 1 MB at 2250 x 1500

The loader is a streaming dataset: one pass with tarfile; an image waits for its annotations, annotations that
come first are lost; after every member all waiting images are checked; PIL decodes the image at its full size;
json.load reads the annotations; pycocotools decodes the first 32 masks at full size, stacked as uint8. The
transform does only what training needs: PIL's bilinear resize to 1024, float32 pixels; masks to float32 at full
size, then to 256. Left out, in Python's favour: worker processes and their queues, padding and stacking of a batch.
One thread. Prints a word and a number per line."""
import argparse
import io
import json
import random
import sys
import tarfile
import time

MASKS, SIDE, CELLS = 32, 1024, 256


def pairs(path):
    """Yields the open tar and the members of an image and its annotations, in the order in which pairs complete."""
    waiting = {}
    with tarfile.open(path, "r") as tar:
        for member in tar:
            if member.isfile():
                key, _, kind = member.name.rpartition(".")
                if kind == "jpg":
                    waiting[key] = {"jpg": member}
                elif kind == "json" and key in waiting:
                    waiting[key]["json"] = member
            for key in [k for k, halves in waiting.items() if "jpg" in halves and "json" in halves]:
                halves = waiting.pop(key)
                yield tar, halves["jpg"], halves["json"]


def read(tar, jpg, annotations):
    """A PIL image and uint8 masks, [n][height][width]."""
    import numpy
    from PIL import Image
    from pycocotools import mask
    image = Image.open(io.BytesIO(tar.extractfile(jpg).read())).convert("RGB")
    found = json.load(tar.extractfile(annotations))["annotations"]
    masks = [mask.decode(a["segmentation"]) for a in found[:MASKS]]
    return image, numpy.stack(masks) if masks else numpy.zeros((1, image.height, image.width), numpy.uint8)


def transform(image, masks):
    import numpy
    import torch
    from PIL import Image
    scale = SIDE / max(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BILINEAR)
    pixels = torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1).float()
    masks = torch.from_numpy(masks).float()
    scale = CELLS / max(masks.shape[1:])
    small = tuple(round(n * scale) for n in masks.shape[1:])
    return pixels, torch.nn.functional.interpolate(masks[None], size=small)[0]


def sample(tar, jpg, annotations):
    return transform(*read(tar, jpg, annotations))


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


def rewrite(variant, source, target):
    """Prints the number of intact pairs in the written shard."""
    with tarfile.open(source) as tar:
        members = [(m.name, tar.extractfile(m).read()) for m in tar if m.isfile()]
    if variant == "jpeg-size":
        members = [(n, lighter(d) if n.endswith(".jpg") else d) for n, d in members]
    members.sort(key=lambda m: (m[0].rpartition(".")[0], m[0].endswith(".jpg")))
    if variant == "jpeg-size":
        members.sort()  # .jpg before .json, as pairs() needs
    elif variant != "json-first":
        random.Random(1).shuffle(members)
    offsets = []
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            offsets.append(tar.offset)
            tar.addfile(info, io.BytesIO(data))
    keys = {name.rpartition(".")[0] for name, _ in members}
    if variant == "damaged":
        with open(target, "r+b") as f:
            for i in range(10, len(members), 20):
                f.seek(offsets[i] + 100)  # in the field `mode`, so that the header's checksum is wrong
                f.write(b"?")
                keys.discard(members[i][0].rpartition(".")[0])
            f.truncate(offsets[-1] + 512 + len(members[-1][1]) // 2)
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
