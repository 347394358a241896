"""Makes tests/golden/pixels: images, resized by Pillow and processed by transformers' processors, and the
WebP files of the tests. Needs Pillow, numpy, safetensors and transformers.

    python tests/golden/make_pixels.py
    python tests/golden/make_pixels.py --random 250 [--tool build/tests/pixels] [--seed 1]

--random writes nothing to the folder: it makes images of random sizes, resizes each with every filter and
processes it with two of the processors, in turn, by the built tool (tests/pixels.c) and by Pillow or transformers,
and prints the largest difference of each kind.
"""
import argparse
import base64
import io
import json
import pathlib
import subprocess
import tempfile

import numpy as np
from PIL import Image, __version__ as pillow_version
from safetensors.numpy import load_file, save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil, get_optimal_tiled_canvas
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

here = pathlib.Path(__file__).resolve().parent
out = here / "pixels"
corpus = here.parent / "fuzz" / "corpus"
filters = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}


def paint(rng, w, h, kind):
    """Waves with hard edges and noise, so that filters overshoot; or noise; or grey."""
    x, y = np.meshgrid(np.arange(w), np.arange(h))
    if kind == "noise":
        return rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
    a = np.stack([128 + 120 * np.sin((x * (c + 1) + 2 * y) / 7.0) for c in range(3)], -1) + rng.integers(-20, 21, (h, w, 3))
    a[(x // 5 + y // 4) % 3 == 0] = [255, 0, 128]
    a = np.clip(a, 0, 255).astype(np.uint8)
    return np.repeat(a[:, :, :1], 3, 2) if kind == "grey" else a


# --- processors: as transformers saves them, and as earlier versions did ------------------------

clip_mean, clip_std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def processors(side, tile, longest):
    """name: (processor, family for the tool, files of the folder or None for what save_pretrained writes)"""
    size = {"shortest_edge": side}
    square = {"height": side, "width": side}
    clip = CLIPImageProcessorPil(size=size, crop_size=square)
    old = {"crop_size": side, "do_center_crop": True, "do_normalize": True, "do_resize": True, "feature_extractor_type": "CLIPFeatureExtractor",
           "image_mean": clip_mean, "image_std": clip_std, "resample": 3, "size": side}
    wide = {"size": {"shortest_edge": side // 2}, "crop_size": {"height": side, "width": side}}
    tiles = dict(size={"longest_edge": longest}, max_image_size={"longest_edge": tile})
    return {
        "clip": (clip, "clip", None),
        "clip_v4": (clip, "clip", {"preprocessor_config.json": old}),
        "clip_v5": (clip, "clip", {"processor_config.json": {"image_processor": json.loads(clip.to_json_string()), "processor_class": "LlavaProcessor"}}),
        "clip_none": (clip, "clip", {}),
        "clip_black": (CLIPImageProcessorPil(**wide), "clip", None),
        "clip_bilinear": (CLIPImageProcessorPil(size=size, crop_size={"height": side + 1, "width": side - 3}, resample=2), "clip", None),
        "clip_raw": (CLIPImageProcessorPil(size=size, crop_size=square, do_rescale=False), "clip", None),
        "siglip": (SiglipImageProcessorPil(size=square), "siglip", None),
        "siglip_none": (SiglipImageProcessorPil(size=square), "siglip", {}),
        "llava_pad": (LlavaImageProcessorPil(size=size, crop_size=square, do_pad=True), "clip", None),
        "llava_original": (LlavaImageProcessorPil(size=size, crop_size=square, do_pad=True), "clip", {
            "config.json": {"model_type": "llava_mistral", "mm_vision_tower": "openai/clip-vit-large-patch14-336", "image_aspect_ratio": "pad"},
            "preprocessor_config.json": old}),
        "smolvlm": (SmolVLMImageProcessorPil(**tiles, return_row_col_info=True), "idefics3", None),
        "smolvlm_whole": (SmolVLMImageProcessorPil(**tiles, do_image_splitting=False), "idefics3", None),
        "gemma_bilinear": (Gemma3ImageProcessorPil(size=square), "gemma3", None),
        "internvl": (GotOcr2ImageProcessorPil(size=square, max_patches=5), "internvl", None),
        "internvl_one": (GotOcr2ImageProcessorPil(size=square, min_patches=2, max_patches=3), "internvl", None),
        "idefics3": (Idefics3ImageProcessorPil(**tiles, resample=3, return_row_col_info=True), "idefics3", None),
    }


def write_folder(folder, processor, files):
    if files == {}:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if files is None:
        processor.save_pretrained(folder)
    for name, data in (files or {}).items():
        (folder / name).write_text(json.dumps(data, indent=2) + "\n")


def processed(processor, image):
    """[images, 3, H, W] and rows and columns of tiles"""
    crops = {"crop_to_patches": True} if hasattr(processor, "crop_to_patches") else {}
    batch = processor(images=[[image]] if hasattr(processor, "max_image_size") else image, return_tensors="np", **crops)
    a = np.asarray(batch["pixel_values"], dtype=np.float32)
    if crops:
        columns, rows = get_optimal_tiled_canvas(image.size[::-1], (processor.size.height, processor.size.width), processor.min_patches, processor.max_patches)
        return a, rows * (rows * columns > 1), columns * (rows * columns > 1)
    return a.reshape(-1, *a.shape[-3:]), batch["rows"][0][0] if "rows" in batch else 0, batch["cols"][0][0] if "cols" in batch else 0


# --- WebP, transparent PNGs and data: URLs ------------------------------------------------------

def encoded(image, kind, **options):
    b = io.BytesIO()
    image.save(b, kind, **options)
    return b.getvalue()


def on_white(image):
    """What transformers 5 makes of a transparent image."""
    image = image.convert("RGBA")
    return np.array(Image.alpha_composite(Image.new("RGBA", image.size, (255,) * 4), image).convert("RGB"))


def transparent(rng, w, h):
    a = paint(rng, w, h, "waves")
    alpha = (np.arange(w)[None] * 255 // max(w - 1, 1) + np.zeros((h, 1))).astype(np.uint8)
    return Image.fromarray(np.dstack([a, alpha]))


def make_files(rng, tensors):
    photo, clear = Image.fromarray(paint(rng, 37, 29, "waves")), transparent(rng, 19, 11)
    palette = photo.quantize(7)
    files = {"lossy.webp": encoded(photo, "WEBP", quality=80), "lossless.webp": encoded(photo, "WEBP", lossless=True),
             "alpha.webp": encoded(clear, "WEBP", lossless=True, exact=True), "lossy_alpha.webp": encoded(clear, "WEBP", quality=90),
             "one.webp": encoded(photo.crop((3, 3, 4, 4)), "WEBP", lossless=True), "animated.webp": encoded(photo, "WEBP", save_all=True, append_images=[photo.rotate(90)]),
             "alpha.png": encoded(clear, "PNG"), "grey_alpha.png": encoded(clear.convert("LA"), "PNG"), "palette.png": encoded(palette, "PNG", transparency=2),
             "grey_key.png": encoded(photo.convert("L"), "PNG", transparency=140), "rgb.png": encoded(photo, "PNG")}
    files["cut.webp"] = files["lossy.webp"][:200]
    files["damaged.webp"] = files["lossless.webp"][:60] + bytes(40) + files["lossless.webp"][100:]
    for name, data in files.items():
        (out / name).write_bytes(data)
        if name.endswith(".webp"):
            (corpus / "image").mkdir(parents=True, exist_ok=True)
            (corpus / "image" / ("webp_" + name[:-5])).write_bytes(b"\1" + data)
        if name.split(".")[0] not in ("cut", "damaged", "animated"):
            image = Image.open(io.BytesIO(data))
            tensors["drop." + name] = np.array(image.convert("RGB"))
            tensors["white." + name] = on_white(image) if "A" in image.getbands() or "transparency" in image.info else np.array(image.convert("RGB"))
    for name in ("alpha.png", "palette.png", "grey_key.png"):
        (corpus / "image" / ("png_" + name[:-4])).write_bytes(b"\1" + (out / name).read_bytes())
    (corpus / "image" / "base64").write_bytes(b"\4" + base64.b64encode(files["one.webp"]) + b"\n")
    (out / "image.url").write_text("data:image/png;base64," + base64.b64encode(files["rgb.png"]).decode())


def main(only):
    rng = np.random.default_rng(21)
    tensors = {}
    out.mkdir(exist_ok=True)
    images = {"wide": paint(rng, 61, 40, "waves"), "tall": paint(rng, 23, 58, "noise"), "grey": paint(rng, 45, 45, "grey"), "dot": paint(rng, 1, 1, "noise"),
              "line": paint(rng, 50, 1, "noise"), "column": paint(rng, 1, 33, "waves"), "odd": paint(rng, 7, 3, "noise")}
    for name, a in images.items():
        tensors["image." + name] = a
    if only:  # the others stay as they are
        kept = load_file(out / "pixels.safetensors")
        tensors = {**kept, **tensors}
    for name, w, h in [("wide", 30, 20), ("wide", 17, 23), ("wide", 90, 61), ("wide", 61, 13), ("wide", 20, 40), ("tall", 8, 5), ("tall", 31, 77), ("grey", 14, 14),
                       ("grey", 60, 51), ("dot", 9, 4), ("line", 12, 6), ("line", 77, 1), ("column", 5, 11), ("odd", 1, 1), ("odd", 28, 28), ("odd", 7, 3)]:
        for f in filters:
            tensors[f"resize.{name}.{f}.{w}x{h}"] = np.array(Image.fromarray(images[name]).resize((w, h), filters[f]))
    for name, (processor, family, files) in processors(14, 8, 32).items():
        if only and name not in only:
            continue
        write_folder(out / name, processor, files)
        for path in (out / name).glob("*"):
            (corpus / "image_processor").mkdir(parents=True, exist_ok=True)
            if path.name != "config.json":
                (corpus / "image_processor" / name).write_bytes(bytes([["clip", "siglip", "idefics3", "internvl", "gemma3"].index(family)]) + path.read_bytes())
        for image in ("wide", "tall", "dot", "line", "odd") if name in ("clip", "llava_pad", "smolvlm", "siglip", "internvl") else ("wide", "tall"):
            a, rows, columns = processed(processor, Image.fromarray(images[image]))
            tensors[f"process.{name}.{family}.{image}.{rows}x{columns}"] = a
    if not only:
        make_files(rng, tensors)
    save_file(tensors, out / "pixels.safetensors", {"pillow": pillow_version})


# --- random sizes against the tool --------------------------------------------------------------

def run(tool, *arguments):
    r = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return list(map(int, r.stdout.split()))


def side(rng):
    return int(rng.choice([1, rng.integers(1, 9), rng.integers(1, 80), rng.integers(1, 700)], p=[0.06, 0.14, 0.3, 0.5]))


def random_sizes(count, tool, seed):
    rng = np.random.default_rng(seed)
    most, equal, tried, largest = {}, {}, {}, (0, 0)

    def note(kind, difference):
        most[kind] = max(most.get(kind, 0), difference)
        equal[kind] = equal.get(kind, 0) + (difference == 0)
        tried[kind] = tried.get(kind, 0) + 1

    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        for i in range(count):
            w, h, to_w, to_h = (side(rng) for _ in range(4))
            image = Image.fromarray(paint(rng, w, h, rng.choice(["waves", "noise", "grey"])))
            image.save(d / "in.png")
            largest = max(largest, (w * h, to_w * to_h))
            for f in filters:
                run(tool, "resize", f, to_w, to_h, d / "in.png", d / "out")
                got = np.fromfile(d / "out", np.uint8).reshape(to_h, to_w, 3).astype(int)
                note("resize " + f, int(np.abs(got - np.array(image.resize((to_w, to_h), filters[f]))).max()))
            if max(w, h) > 40 * min(w, h):
                continue  # transformers holds the whole resized image, before the crop
            s, tile = int(rng.integers(2, 100)), int(rng.integers(4, 90))
            all_of_them = list(processors(2 * s, tile, int(tile * rng.uniform(1, 5))).items())
            for k in (2 * i, 2 * i + 1):
                name, (processor, family, files) = all_of_them[k % len(all_of_them)]
                folder = d / str(i) / name
                write_folder(folder, processor, files)
                count_, rows, columns, H, W = run(tool, "process", folder, family, 2 * s if name.endswith("_none") else 0, d / "in.png", d / "out")
                a, want_rows, want_columns = processed(processor, image)
                got = np.fromfile(d / "out", np.float32).reshape(count_, 3, H, W)
                assert got.shape == a.shape and (rows, columns) == (want_rows, want_columns), (name, w, h, got.shape, a.shape, rows, columns)
                note("process " + name, float(np.abs(got - a).max()))
    print(f"Pillow {pillow_version}, {count} random sizes, seed {seed}")
    for kind in most:
        print(f"{kind:24} {tried[kind]:5} tried, {equal[kind]:5} equal, largest difference {most[kind]:.3g}")
    # A byte of difference is 1 / 255 / std; the triangle's bytes may differ by 1.
    assert all(v <= (1 if "resize" in k else 1.001 / 255 / min(clip_std) if "bilinear" in k else 1e-6) for k, v in most.items())


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--random", type=int, metavar="COUNT")
    p.add_argument("--tool", default=str(here.parent.parent / "build" / "tests" / "pixels"))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", action="append", metavar="NAME", help="only this processor; the other files stay")
    o = p.parse_args()
    random_sizes(o.random, o.tool, o.seed) if o.random else main(o.only)
