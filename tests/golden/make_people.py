"""Makes tests/golden/people: small datasets as other programs write them, for tests/run_labels.sh and
tests/test_dataset_survey.c. Needs numpy, Pillow, pycocotools and datumaro:

    python -m venv /tmp/venv && /tmp/venv/bin/pip install numpy pillow pycocotools datumaro
    /tmp/venv/bin/python tests/golden/make_people.py

    classes     8-bit masks of classes: {1, 2}, {3}, {1}; one class in an image is not class 1
    white       masks of 0 and 255
    soft        masks drawn with anti-aliasing: a disc drawn at 8 times the size and reduced
    jpeg        JPEG masks, in a table (Kvasir-SEG has such masks)
    resaved     the same JPEG masks, saved again as PNG
    smoothed    masks of classes 128 and 255, resized with bilinear interpolation
    voc         palettes as PASCAL VOC: classes 1 and 15, and a border of 255
    photos      masks that are grey images
    ids         16-bit masks of 400 instances
    deep12      16-bit images of 12 bits: a CT-like gradient from 100 to 3000, with masks of 0 and 255
    deep16      16-bit images that use all values
    deep_rgb    16-bit RGB images of 12 bits
    black       8-bit images of values 0 to 15: 12 bits divided by 256
    painted     COCO as Datumaro (CVAT) exports painted masks: run lengths with iscrowd 1, one part each
    crowd       COCO with pycocotools' run lengths: a mask, a crowd of two parts, only a box, a mask of one pixel
"""
import json, os, shutil, struct, zlib
import numpy as np
from PIL import Image, ImageDraw

out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "people")
shutil.rmtree(out, ignore_errors=True)
N = 64
y, x = np.mgrid[0:N, 0:N]


def folder(*parts):
    path = os.path.join(out, *parts)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def image(case, name, k=0):
    """A coloured gradient, as a JPEG."""
    rgb = np.stack([2 * x + 60 + 9 * k, 2 * y + 50, x + y + 40], -1).astype(np.uint8)
    Image.fromarray(rgb).save(folder(case, "images", name + ".jpg"), quality=80)


def mask(case, name, values, **options):
    Image.fromarray(values).save(folder(case, "masks", name + ".png"), **options)


def rect(x0, y0, x1, y1):
    return ((x >= x0) & (x < x1) & (y >= y0) & (y < y1)).astype(np.uint8)


def disc(cx, cy, r, scale=8):
    """White on black, with anti-aliased edges."""
    big = Image.new("L", (N * scale, N * scale))
    ImageDraw.Draw(big).ellipse([(cx - r) * scale, (cy - r) * scale, (cx + r) * scale, (cy + r) * scale], fill=255)
    return big.resize((N, N), Image.Resampling.BOX)


# ---- 8-bit masks ----
for k, (name, v) in enumerate({"a": rect(4, 4, 30, 30) + 2 * rect(34, 20, 60, 50), "b": 3 * rect(10, 10, 40, 50), "c": rect(20, 8, 50, 30)}.items()):
    image("classes", name, k)
    mask("classes", name, v.astype(np.uint8))
for k, name in enumerate("abc"):
    image("white", name, k)
    mask("white", name, 255 * rect(8 + 6 * k, 10, 40 + 6 * k, 50))
    image("soft", name, k)
    mask("soft", name, np.asarray(disc(28 + 3 * k, 30, 14 + 2 * k)))

# ---- JPEG masks: RGB, as most programs write them; the third one is empty ----
os.makedirs(os.path.join(out, "jpeg", "masks"), exist_ok=True)
rows = ["image,mask"]
for k, name in enumerate("abc"):
    image("jpeg", name, k)
    image("resaved", name, k)
    m = disc(30, 28 + 4 * k, 15, 1).convert("RGB") if k < 2 else Image.new("RGB", (N, N), (2, 2, 2))
    m.save(os.path.join(out, "jpeg", "masks", name + ".jpg"), quality=75)
    again = Image.open(os.path.join(out, "jpeg", "masks", name + ".jpg")).convert("L")
    mask("resaved", name, np.asarray(again))
    rows.append(f"images/{name}.jpg,masks/{name}.jpg")
open(os.path.join(out, "jpeg", "table.csv"), "w").write("\n".join(rows) + "\n")

# ---- masks that have no clear meaning ----
for k, name in enumerate("ab"):
    image("smoothed", name, k)
    small = Image.fromarray((128 * rect(4, 4, 18, 24) + 255 * rect(18, 6, 29, 28)).astype(np.uint8)[:32, :32])
    mask("smoothed", name, np.asarray(small.resize((N, N), Image.Resampling.BILINEAR)))
    image("photos", name, k)
    noise = np.random.default_rng(k).integers(-9, 10, (N, N))
    mask("photos", name, np.clip(110 + 60 * np.sin(x / 7.0 + k) + 50 * np.cos(y / 9.0) + noise, 0, 255).astype(np.uint8))

# ---- PASCAL VOC: a palette, and 255 around each object ----
palette = [c for i in range(256) for c in (i, 37 * i % 256, 91 * i % 256)]
for k, name in enumerate("ab"):
    image("voc", name, k)
    outer, inner = rect(8, 8, 40, 44), rect(10, 10, 38, 42)
    v = np.where(inner, [1, 15][k], np.where(outer, 255, 0)).astype(np.uint8)
    im = Image.fromarray(v, "P")
    im.putpalette(palette)
    im.save(folder("voc", "masks", name + ".png"))

# ---- 16 bits ----
ids = np.zeros((N, N), np.uint16)
for k in range(400):
    ids[3 * (k // 20) : 3 * (k // 20) + 2, 3 * (k % 20) : 3 * (k % 20) + 2] = k + 1
image("ids", "a")
mask("ids", "a", ids)


def deep_rgb(path, rgb):
    """Pillow cannot write 16-bit RGB: a PNG by its specification."""
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rgb)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", N, N, 16, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


body = rect(4, 4, 60, 60)
for k, name in enumerate("abc"):
    ct = ((100 + (2900 * (x + y)) // 126) * body).astype(np.uint16)  # 0 around the body
    Image.fromarray(ct).save(folder("deep12", "images", name + ".png"))
    Image.fromarray((1024 * (x // 2) + 16 * y + k).astype(np.uint16) * 2).save(folder("deep16", "images", name + ".png"))
    deep_rgb(folder("deep_rgb", "images", name + ".png"), np.stack([ct, ct // 2, 3000 - ct], -1))
    Image.fromarray((ct // 256).astype(np.uint8)).save(folder("black", "images", name + ".png"))
    for case in ("deep12", "deep16", "deep_rgb", "black"):
        mask(case, name, 255 * rect(12 + 4 * k, 12, 40 + 4 * k, 44))

# ---- COCO ----
import datumaro as dm
from datumaro.components.annotation import Mask, Polygon
from datumaro.components.media import Image as Media
from pycocotools import mask as coco

items = []
for k, name in enumerate("abc"):
    painted = np.asarray(disc(26 + 4 * k, 30, 12)) > 127
    items.append(dm.DatasetItem(id=name, media=Media.from_numpy(np.asarray(Image.fromarray((x + 2 * y + 20 * k).astype(np.uint8)).convert("RGB"))),
                                annotations=[Mask(painted, label=0, id=2 * k + 1, group=2 * k + 1), Polygon([44, 4, 60, 4, 60, 20, 44, 20], label=1, id=2 * k + 2, group=2 * k + 2)]))
dm.Dataset.from_iterable(items, categories=["cell", "mark"]).export(os.path.join(out, "painted"), "coco_instances", save_media=True)


def encode(m):
    r = coco.encode(np.asfortranarray(m.astype(np.uint8)))
    return {"size": r["size"], "counts": r["counts"].decode()}


def annotation(i, segmentation, area, box, crowd=0):
    return {"id": i, "image_id": 1, "category_id": 1, "segmentation": segmentation, "area": area, "bbox": box, "iscrowd": crowd}


image("crowd", "a")
two = rect(2, 2, 12, 12) + rect(50, 50, 60, 60)
one = rect(20, 20, 44, 40)
dot = rect(5, 50, 6, 51)
data = {"images": [{"id": 1, "width": N, "height": N, "file_name": "a.jpg"}], "categories": [{"id": 1, "name": "person"}],
        "annotations": [annotation(1, encode(one), 480, [20, 20, 24, 20]), annotation(2, encode(two), 200, [2, 2, 58, 58], 1),
                        annotation(3, [], 100, [30, 50, 10, 10]), annotation(4, encode(dot), 1, [5, 50, 1, 1])]}
json.dump(data, open(folder("crowd", "instances_train.json"), "w"))
