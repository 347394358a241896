"""Compares images and videos as LLaVA-OneVision's processors see them, by the built tool (tests/pixels.c) and by transformers.
Needs torch, torchvision and transformers 5, whose AutoProcessor takes the torchvision backend. Makes the case `onevision` of
tests/golden/pixels.

    python tests/golden/make_onevision_pixels.py
    python tests/golden/make_onevision_pixels.py --random 300 20 [--tool build/tests/pixels] [--seed 1]

--random writes no file: it makes that many images (1 x 1 to 4000 x 3000, and extreme aspects), each by itself and beside another,
and videos, and prints how many are equal to the bit, with the number of their tokens and the frames that are taken.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file
from transformers import LlavaOnevisionVideoProcessor
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_onevision.image_processing_llava_onevision import LlavaOnevisionImageProcessor
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.video_utils import VideoMetadata

from make_pixels import paint

here = pathlib.Path(__file__).resolve().parent
HALF = dict(image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5])
CLIP = dict(image_mean=[0.48145466, 0.4578275, 0.40821073], image_std=[0.26862954, 0.26130258, 0.27577711])
# side, patch, sizes, values of images and of videos, sampling
FOLDERS = [(384, 14, None, HALF, {}), (28, 14, [[28, 28], [28, 56], [56, 28], [56, 56], [84, 28]], CLIP, dict(do_sample_frames=True, num_frames=5)),
           (45, 5, [[45 * h, 45 * w] for h in range(1, 4) for w in range(1, 4)], HALF, dict(do_sample_frames=True, fps=2.0))]


def write_folder(folder, side, patch, sizes, values, sampling):
    folder.mkdir(parents=True, exist_ok=True)
    square = dict(height=side, width=side)
    given = dict(image_grid_pinpoints=sizes) if sizes else {}
    images, videos = LlavaOnevisionImageProcessor(size=square, **values, **given), LlavaOnevisionVideoProcessor(size=square, **values, **sampling)
    images.save_pretrained(folder)
    videos.save_pretrained(folder)
    text = dict(model_type="qwen2", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, vocab_size=151936)
    vision = dict(model_type="siglip_vision_model", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=side, patch_size=patch, vision_use_head=False)
    (folder / "config.json").write_text(json.dumps(dict(model_type="llava_onevision", text_config=text, vision_config=vision, image_grid_pinpoints=images.image_grid_pinpoints, vision_aspect_ratio="anyres_max_9")))
    processor = LlavaOnevisionProcessor.__new__(LlavaOnevisionProcessor)
    processor.num_image_tokens, processor.vision_aspect_ratio, processor.image_processor = (side // patch) ** 2, "anyres_max_9", images
    return images, videos, processor


def run(tool, *arguments):
    r = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return list(map(int, r.stdout.split()))


def read(tool, work, folder, family, image):
    image.save(work / "in.png")
    n, _, _, h, w = run(tool, "process", folder, family, 0, work / "in.png", work / "out")
    return np.fromfile(work / "out", np.float32).reshape(n, 3, h, w)


def random_size(rng, i):
    if i % 5 == 0:  # extreme aspects
        short, long = int(rng.integers(1, 30)), int(rng.integers(300, 3000))
        return (short, long) if i % 2 else (long, short)
    top = 4000 if i % 50 == 1 else 1200
    return int(np.exp(rng.uniform(0, np.log(top)))), int(np.exp(rng.uniform(0, np.log(top * 3 // 4))))


def compare(tool, images, videos, seed):
    rng = np.random.default_rng(seed)
    equal = dict(image=0, beside=0, tokens=0, video=0, frames=0, choices=0)
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        made = [write_folder(work / str(k), *f) for k, f in enumerate(FOLDERS)]
        for i in range(images):
            k = i % len(made) if i % 4 else 0
            of_images, _, processor = made[k]
            w, h = random_size(rng, i)
            image = Image.fromarray(paint(rng, w, h, ["waves", "noise", "grey"][i % 3]))
            alone = of_images(images=[[image]], return_tensors="np")["pixel_values"][0]
            beside = of_images(images=[[image, image]], return_tensors="np")["pixel_values"][0]
            equal["image"] += np.array_equal(read(tool, work, work / str(k), "onevision", image), alone)
            equal["beside"] += np.array_equal(read(tool, work, work / str(k), "onevision_beside", image), beside)
            side = alone.shape[-1]
            equal["tokens"] += run(tool, "tokens", work / str(k), w, h) == [processor._get_number_of_features(h, w, side, side)]
        for i in range(videos):
            k = i % len(made)
            frames, w, h = int(rng.integers(1, 40)), int(rng.integers(2, 300)), int(rng.integers(2, 200))
            rate = [25.0, 30000 / 1001, 10.0, 23.976][i % 4]
            rgb = np.stack([paint(rng, w, h, ["waves", "noise"][i % 2]) for _ in range(frames)])
            sampling = dict(FOLDERS[k][4])
            if sampling.get("num_frames", 0) > frames or sampling.get("fps", 9) * frames < rate:
                sampling = dict(do_sample_frames=False)  # transformers refuses them; here all frames, or one, are taken
            refused = sampling != FOLDERS[k][4]
            meta = VideoMetadata(total_num_frames=frames, fps=rate, frames_indices=list(range(frames)))
            out = made[k][1](videos=[torch.from_numpy(rgb).permute(0, 3, 1, 2)], video_metadata=[meta], return_tensors="pt", return_metadata=True, **sampling)
            values = out["pixel_values_videos"][0].numpy()
            chosen = run(tool, "frames", work / str(k), 0, frames, rate, 0, 0)
            if refused:
                expected = list(range(frames)) if "num_frames" in FOLDERS[k][4] else [0]
                values = values[expected]
            else:
                expected = [int(x) for x in out["video_metadata"][0].frames_indices]
            equal["choices"] += chosen == expected
            ours = np.concatenate([read(tool, work, work / str(k), "onevision_frame", Image.fromarray(rgb[f])) for f in chosen])
            equal["frames"] += len(chosen)
            equal["video"] += ours.shape == values.shape and np.array_equal(ours, values)
    print(f"{images} images: {equal['image']} equal to the bit by themselves, {equal['beside']} beside another, {equal['tokens']} with the same number of tokens")
    print(f"{videos} videos: {equal['video']} equal to the bit, {equal['choices']} with the same frames, {equal['frames']} in all")


def main():
    """Adds the case to pixels.safetensors."""
    out = here / "pixels"
    tensors = load_file(out / "pixels.safetensors")
    with open(out / "pixels.safetensors", "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        metadata = json.loads(f.read(size)).get("__metadata__")
    square = dict(height=14, width=14)
    p = LlavaOnevisionImageProcessor(size=square, **HALF, image_grid_pinpoints=[[14, 14], [14, 28], [28, 14], [28, 28], [42, 14]])
    p.save_pretrained(out / "onevision")
    corpus = here.parent / "fuzz" / "corpus" / "image_processor"
    (corpus / "onevision").write_bytes(bytes([6]) + (out / "onevision" / "preprocessor_config.json").read_bytes())
    for image in ("wide", "tall", "line", "odd"):
        pixels = Image.fromarray(tensors["image." + image])
        h, w = select_best_resolution(pixels.size[::-1], p.image_grid_pinpoints)
        for family, batch, rows, columns in ("onevision", [[pixels]], h // 14, w // 14), ("beside", [[pixels, pixels]], 0, 0):
            tensors[f"process.onevision.{family}.{image}.{rows}x{columns}"] = np.asarray(p(images=batch, return_tensors="np")["pixel_values"][0], np.float32)
    save_file(tensors, out / "pixels.safetensors", metadata)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--random", type=int, nargs=2, metavar=("IMAGES", "VIDEOS"))
    p.add_argument("--tool", default=str(here.parent.parent / "build" / "tests" / "pixels"))
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    compare(o.tool, *o.random, o.seed) if o.random else main()
