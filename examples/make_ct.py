#!/usr/bin/env python3
"""Writes a small synthetic CT dataset, to try a guide without data of your own.

    python3 examples/make_ct.py runs/ct              PNG slices of 16 bits with label PNGs
    python3 examples/make_ct.py runs/ct --nifti      the same volumes as NIfTI files, in nnU-Net's folders with dataset.json

Sixteen "patients" of twelve axial slices: a body with fat, a spine, a liver (label 1), two kidneys (2) and
in half of the patients a lesion in the liver (3). A pixel is the value in Hounsfield units + 1024, which
fits 12 bits, with the noise of a scanner. The last four patients are the part to evaluate on:

    runs/ct/train/images/p01_z00.png   runs/ct/train/labels/p01_z00.png     or, with --nifti,
    runs/ct/val/images/p13_z00.png     runs/ct/val/labels/p13_z00.png       runs/ct/imagesTr/p01_0000.nii.gz ...

Needs Python 3 and nothing else. The same files come out on every machine.
"""
import gzip
import json
import pathlib
import random
import struct
import sys
import zlib

SIDE, SLICES, PATIENTS, HELD_OUT = 128, 12, 16, 4
AIR, FAT, MUSCLE, BONE, LIVER, KIDNEY, LESION = -1000, -100, 40, 500, 110, 180, 30    # Hounsfield units


def ellipses(rng, lesion):
    """The organs of a patient, later ones over earlier ones: label, value, centre (x, y, z), radii."""
    def near(*numbers):
        return [n * rng.uniform(0.92, 1.08) for n in numbers]
    shapes = [(0, FAT, (64, 64, 6), near(54, 42, 40)), (0, MUSCLE, (64, 64, 6), near(47, 35, 40)),
              (0, BONE, (64, 90, 6), near(7, 7, 40))]
    x, y, z = near(44, 56, 5)
    shapes.append((1, LIVER, (x, y, z), near(20, 18, 8)))
    for side in (38, 90):
        shapes.append((2, KIDNEY, near(side, 83, 8), near(8, 6, 5)))
    if lesion:
        shapes.append((3, LESION, (x + rng.uniform(-6, 6), y + rng.uniform(-6, 6), z), near(6, 6, 4)))
    return shapes


def volume(patient):
    """Pixels and labels of a patient: a list of rows for each slice."""
    rng = random.Random(patient)
    shapes = ellipses(rng, lesion=patient % 2 == 0)
    images, labels = [], []
    for z in range(SLICES):
        image = [[AIR] * SIDE for _ in range(SIDE)]
        label = [[0] * SIDE for _ in range(SIDE)]
        for number, value, (cx, cy, cz), (rx, ry, rz) in shapes:
            size = 1 - ((z - cz) / rz) ** 2
            for y in range(SIDE) if size > 0 else ():
                width = size - ((y - cy) / ry) ** 2
                if width <= 0:
                    continue
                half = rx * width ** 0.5
                for x in range(max(0, round(cx - half)), min(SIDE, round(cx + half))):
                    image[y][x] = value
                    label[y][x] = number
        images.append([[min(4095, max(0, v + 1024 + int(rng.random() * 60 - 30))) for v in row] for row in image])
        labels.append(label)
    return images, labels


def write_png(path, rows, bits):
    """A grey PNG of 8 or 16 bits; those of 16 bits are big-endian."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    body = b"".join(b"\0" + struct.pack(f">{len(row)}{'H' if bits == 16 else 'B'}", *row) for row in rows)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", len(rows[0]), len(rows), bits, 0, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b""))


def write_nifti(path, slices, offset):
    """A NIfTI-1 volume of int16, x fastest, in voxels of 3 x 3 x 10 mm; offset is added to each value."""
    head = bytearray(352)
    struct.pack_into("<i", head, 0, 348)
    struct.pack_into("<8h", head, 40, 3, SIDE, SIDE, SLICES, 1, 1, 1, 1)
    struct.pack_into("<hh", head, 70, 4, 16)                        # int16
    struct.pack_into("<8f", head, 76, 1, 3, 3, 10, 1, 1, 1, 1)
    struct.pack_into("<ff", head, 108, 352, 1)                      # the voxels' offset, the slope
    head[344:348] = b"n+1\0"
    values = [v + offset for rows in slices for row in rows for v in row]
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(bytes(head) + struct.pack(f"<{len(values)}h", *values))


def main(target, nifti):
    counts = {}
    for patient in range(1, PATIENTS + 1):
        images, labels = volume(patient)
        name, part = f"p{patient:02}", "val" if patient > PATIENTS - HELD_OUT else "train"
        folders = (("imagesTr", "labelsTr") if part == "train" else ("imagesTs", "labelsTs")) if nifti else \
            (f"{part}/images", f"{part}/labels")
        for folder in folders:
            (target / folder).mkdir(parents=True, exist_ok=True)
            counts.setdefault(folder, 0)
        if nifti:
            write_nifti(target / folders[0] / f"{name}_0000.nii.gz", images, -1024)
            write_nifti(target / folders[1] / f"{name}.nii.gz", labels, 0)
        else:
            for z in range(SLICES):
                write_png(target / folders[0] / f"{name}_z{z:02}.png", images[z], 16)
                write_png(target / folders[1] / f"{name}_z{z:02}.png", labels[z], 8)
        for folder in folders:
            counts[folder] += 1 if nifti else SLICES
    if nifti:
        (target / "dataset.json").write_text(json.dumps({
            "channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1, "kidney": 2, "lesion": 3},
            "numTraining": PATIENTS - HELD_OUT, "file_ending": ".nii.gz"}) + "\n")
    for folder, count in counts.items():
        print(f"{target / folder}: {count} files")


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--nifti"]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit(__doc__)
    main(pathlib.Path(arguments[0]), "--nifti" in sys.argv)
