"""Makes tests/golden/image and the fuzz corpora of PNG and JPEG: images in the formats that other
programs write, and the pixels that Pillow decodes from them. Needs Pillow and numpy.

    python tests/golden/make_image.py

test_image.c computes the PNGs' expected pixels from the same formulas as here:
grey (31x + 17y) mod 256, 16 bit (3001x + 7001y) mod 65536, RGB (9x, 7y, 5(x+y)) mod 256.
"""
import io, os, shutil, struct, zlib
import numpy as np
from PIL import Image

here = os.path.dirname(os.path.abspath(__file__))
out = os.path.join(here, "image")
fuzz = os.path.join(here, "..", "fuzz", "corpus")
os.makedirs(out, exist_ok=True)


def save(name, data, corpus=None):
    with open(os.path.join(out, name), "wb") as f:
        f.write(data)
    if corpus:
        os.makedirs(os.path.join(fuzz, corpus), exist_ok=True)
        shutil.copy(os.path.join(out, name), os.path.join(fuzz, corpus, name.rsplit(".", 1)[0]))


def png(im, **kw):
    b = io.BytesIO()
    im.save(b, "PNG", **kw)
    return b.getvalue()


# ---- PNG, 13 x 7 ----
W, H = 13, 7
x, y = np.meshgrid(np.arange(W), np.arange(H))
grey = ((31 * x + 17 * y) % 256).astype(np.uint8)
deep = ((3001 * x + 7001 * y) % 65536).astype(np.uint16)
rgb = np.stack([9 * x % 256, 7 * y % 256, 5 * (x + y) % 256], -1).astype(np.uint8)
index = ((x + 2 * y) % 5).astype(np.uint8)
save("grey8.png", png(Image.fromarray(grey)), "png")
save("grey16.png", png(Image.fromarray(deep)), "png")
save("bits.png", png(Image.fromarray(grey > 127)), "png")
save("rgb.png", png(Image.fromarray(rgb)), "png")
save("rgba.png", png(Image.fromarray(np.dstack([rgb, grey]))), "png")
save("grey_alpha.png", png(Image.merge("LA", [Image.fromarray(grey), Image.fromarray(255 - grey)])), "png")
save("rgb_of_grey.png", png(Image.fromarray(np.dstack([grey] * 3))), "png")
p = Image.fromarray(index).convert("P")
p.putdata(index.reshape(-1).tolist())
p.putpalette([200, 10, 20, 30, 200, 40, 50, 60, 200, 200, 200, 10, 7, 8, 9])
save("palette.png", png(p, bits=8), "png")
save("palette4.png", png(p, bits=4), "png")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def adam7(a):
    rows = b""
    for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
        part = a[y0::dy, x0::dx]
        if part.size:
            rows += b"".join(b"\0" + r.tobytes() for r in part)
    h = struct.pack(">IIBBBBB", a.shape[1], a.shape[0], 8, 0, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", h) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


save("interlaced.png", adam7(grey), "png")
whole = png(Image.fromarray(grey))
save("truncated.png", whole[: len(whole) - 30], "png")
save("badcrc.png", whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:], "png")
save("huge.png", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(b"")), "png")


# ---- JPEG, 83 x 61: smooth colour with a disc ----
def photo(w, h):
    x, y = np.meshgrid(np.arange(w), np.arange(h))
    r = 128 + 90 * np.sin(x / 17.0) * np.cos(y / 23.0)
    g = 128 + 90 * np.sin((x + 2 * y) / 31.0)
    b = 40 + 160 * (x + y) / (w + h)
    a = np.stack([r, g, b], -1)
    a[(x - w / 2) ** 2 + (y - h / 2) ** 2 < (min(w, h) / 4) ** 2] = [230, 60, 40]
    return Image.fromarray(np.clip(a + 0.5, 0, 255).astype(np.uint8))


def jpeg(im, **kw):
    b = io.BytesIO()
    im.save(b, "JPEG", **{"quality": 90, **kw})
    return b.getvalue()


def ycck(im):
    """Pillow writes only CMYK, not YCCK. It gets Y, Cb, Cr instead of three of the inks. Pillow inverts them when it
    writes, which gives the values that Adobe's programs store; then the marker is set to YCCK."""
    inks = np.asarray(im.convert("CMYK"))
    ycc = np.asarray(Image.fromarray(inks[..., :3].copy()).convert("YCbCr"))
    data = jpeg(Image.fromarray(255 - np.dstack([ycc, 255 - inks[..., 3]]), "CMYK"), subsampling=0)
    adobe = data.index(b"Adobe")
    return data[: adobe + 11] + b"\2" + data[adobe + 12 :]


im = photo(83, 61)
exif = Image.Exif()
exif[0x0112] = 6
files = {
    "base": jpeg(im), "grey": jpeg(im.convert("L")), "cmyk": jpeg(im.convert("CMYK")), "ycck": ycck(im), "progressive": jpeg(im, progressive=True),
    "exif6": jpeg(im, exif=exif), "one": jpeg(im.resize((1, 1))), "wide": jpeg(photo(3000, 3)), "s444": jpeg(im, subsampling=0),
}
for name, data in files.items():
    save(name + ".jpg", data, "jpeg")
    # Pillow applies no orientation in convert(); neither do we.
    save(name + ".rgb", Image.open(io.BytesIO(data)).convert("RGB").tobytes())
base = files["base"]
save("truncated.jpg", base[: len(base) * 2 // 3], "jpeg")
save("noend.jpg", base[:-2], "jpeg")
middle = len(base) * 3 // 5
save("damaged.jpg", base[:middle] + b"\xff\xd9" + base[middle + 2 :], "jpeg")
save("headonly.jpg", base[:200], "jpeg")

# ---- resize: Pillow's BILINEAR ----
src = photo(150, 100)
save("resize_src.rgb", src.tobytes())
for name, size, box in [
    ("down", (64, 43), None), ("slight", (137, 91), None), ("up", (211, 141), None), ("crop", (96, 64), (20.5, 10.25, 120.0, 80.75)),
    ("tiny", (7, 5), None),
]:
    save(f"resize_{name}.rgb", src.resize(size, Image.BILINEAR, box=box).tobytes())
