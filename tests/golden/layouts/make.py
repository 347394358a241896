"""Writes the files of this folder: images and masks as Pillow and other programs write them. tests/run_layouts.sh
arranges them in the folders of public datasets. Needs Pillow and NumPy:

    python3 tests/golden/layouts/make.py
"""
import gzip
import os
import struct

import numpy as np
from PIL import Image, ImageDraw

HERE = os.path.dirname(os.path.abspath(__file__))
W, H = 48, 40


def save(image, name, **options):
    image.save(os.path.join(HERE, name), **options)


def ellipse(value, box):
    image = Image.new("L", (W, H), 0)
    ImageDraw.Draw(image).ellipse(box, fill=value)
    return image


def main():
    y, x = np.mgrid[0:H, 0:W]
    rgb = np.stack([x * 5, y * 6, (x + y) * 2], axis=-1).astype(np.uint8)
    one, two = (8, 6, 30, 28), (32, 10, 44, 34)
    for box in (one, two):
        ImageDraw.Draw(image := Image.fromarray(rgb)).ellipse(box, fill=(240, 200, 40))
        rgb = np.asarray(image).copy()
    save(Image.fromarray(rgb), "image.jpg", quality=80)
    save(Image.fromarray(rgb), "image.png")
    save(Image.fromarray(rgb), "image.tif")
    save(Image.fromarray(rgb), "image.webp", lossless=True)

    binary = ellipse(255, one)
    save(binary, "binary.png")
    save(binary.convert("1"), "bits.png")
    # Kvasir-SEG's masks are JPEGs of three equal channels.
    save(binary.convert("RGB"), "binary.jpg", quality=75)
    save(Image.new("RGB", (W, H)), "black.jpg", quality=75)
    save(binary.convert("RGB"), "binary.webp", lossless=True)
    save(binary.convert("RGB"), "lossy.webp", quality=75)

    # Pascal VOC: a palette, classes 1 and 15, a border of 255 around each object.
    voc = np.zeros((H, W), np.uint8)
    for value, box in ((1, one), (15, two)):
        big = np.asarray(ellipse(1, (box[0] - 2, box[1] - 2, box[2] + 2, box[3] + 2)))
        voc[big > 0] = 255
        voc[np.asarray(ellipse(1, box)) > 0] = value
    palette = []
    for i in range(256):
        colour, c = [0, 0, 0], i
        for bit in range(7, -1, -1):
            for k in range(3):
                colour[k] |= ((c >> k) & 1) << bit
            c >>= 3
        palette += colour
    image = Image.fromarray(voc)
    image.putpalette(palette)
    save(image, "voc.png")

    # nnU-Net and Cityscapes: small numbers of classes.
    labels = np.asarray(ellipse(1, one)) + 2 * np.asarray(ellipse(1, two))
    save(Image.fromarray(labels.astype(np.uint8)), "labels.png")
    save(Image.fromarray(labels.astype(np.uint8)).convert("RGB"), "labels.webp", lossless=True)
    # Cityscapes' instanceIds: 16 bits, class * 1000 + number.
    ids = np.where(labels == 1, 26000, np.where(labels == 2, 26001, 7)).astype(np.uint16)
    save(Image.fromarray(ids), "instances.png")
    save(Image.fromarray(np.stack([labels * 100, labels * 20, 0 * labels], axis=-1).astype(np.uint8)), "colour.png")

    # Editors: white everywhere, and the mask is what is not transparent.
    white = Image.new("L", (W, H), 255)
    save(Image.merge("RGBA", [white, white, white, binary]), "alpha.png")
    # Pillow's quantize: black and white, or black and red, with the number 0 for what is not black.
    for name, colour in (("palette_white.png", (255, 255, 255)), ("palette_red.png", (255, 0, 0))):
        painted = Image.new("RGB", (W, H))
        painted.paste(colour, (0, 0), binary)
        palette = painted.convert("P", palette=Image.Palette.ADAPTIVE, colors=2)
        assert tuple(palette.getpalette()[:3]) == colour
        save(palette, name)
    save(white, "white.png")
    # A phone held upside down.
    exif = Image.Exif()
    exif[0x0112] = 3
    save(Image.fromarray(rgb), "turned.jpg", quality=80, exif=exif)

    # Heads of a NIfTI-1 volume and of a DICOM file.
    nifti = bytearray(352)
    struct.pack_into("<i", nifti, 0, 348)
    struct.pack_into("<8h", nifti, 40, 3, 4, 4, 2, 1, 1, 1, 1)
    struct.pack_into("<2h", nifti, 70, 4, 16)
    nifti[344:348] = b"n+1\0"
    with open(os.path.join(HERE, "volume.nii.gz"), "wb") as f:
        f.write(gzip.compress(bytes(nifti) + bytes(64), mtime=0))
    with open(os.path.join(HERE, "slice.dcm"), "wb") as f:
        f.write(bytes(128) + b"DICM" + bytes(64))


main()
