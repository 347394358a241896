"""Makes tests/golden/qwen_vl_pixels.json: images and videos as Qwen2-VL's, Qwen2.5-VL's and Qwen3-VL's processors see them.
Needs torch, torchvision and transformers 5, whose AutoProcessor takes the torchvision backend.

    python tests/golden/make_qwen_vl_pixels.py
    python tests/golden/make_qwen_vl_pixels.py --random 300 20 [--tool build/tests/patches] [--seed 1]

--random writes no file: it makes that many images (8 x 8 to 4096 x 3072, and extreme aspects) and videos
for each family, processes them by the built tool (tests/patches.c) and by transformers, and prints how many are equal
to the bit, with the largest difference. Texts, chosen frames and seconds per grid are compared as well.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoProcessor, PreTrainedTokenizerFast
from transformers.models.qwen2_vl.video_processing_qwen2_vl import smart_resize as qwen2_resize
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as qwen3_resize
from transformers.utils import logging
from transformers.video_utils import VideoMetadata

logging.set_verbosity_error()
here = pathlib.Path(__file__).resolve().parent
clip = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
half = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
patch14 = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
patch16 = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}

# The files that the models are published with. Qwen2-VL and 2.5 have none for videos: that of
# images counts.
families = {
    "qwen2_vl": {"preprocessor_config.json": {
        "min_pixels": 3136, "max_pixels": 12845056, **patch14, **clip, "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor"}},
    "qwen2_5_vl": {"preprocessor_config.json": {
        "min_pixels": 3136, "max_pixels": 12845056, **patch14, **clip, "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen2_5_VLProcessor"}},
    "qwen3_vl": {
        "preprocessor_config.json": {
            "size": {"longest_edge": 16777216, "shortest_edge": 65536}, **patch16, **half,
            "image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor"},
        "video_preprocessor_config.json": {
            "size": {"longest_edge": 25165824, "shortest_edge": 4096}, **patch16, **half,
            "video_processor_type": "Qwen3VLVideoProcessor", "processor_class": "Qwen3VLProcessor"}}}
specials = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|endoftext|>"]


def paint(rng, frames, w, h, kind):
    """Waves with hard edges and noise, so that filters overshoot; or noise; or only 0 and 255."""
    if kind == "noise":
        return rng.integers(0, 256, (frames, h, w, 3), dtype=np.uint8)
    if kind == "edges":
        return (rng.integers(0, 2, (frames, h, w, 3), dtype=np.uint8) * 255).astype(np.uint8)
    x, y = np.meshgrid(np.arange(w), np.arange(h))
    a = np.stack([128 + 120 * np.sin((x * (c + 1) + 2 * y) / 7.0) for c in range(3)], -1)
    a[(x // 5 + y // 4) % 3 == 0] = [255, 0, 128]
    return np.clip(a + rng.integers(-20, 21, (frames, h, w, 1)), 0, 255).astype(np.uint8)


def write_folder(folder, family, files):
    """A folder with a tokenizer of single characters, in which a text is its tokens, joined."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(c) for c in range(32, 127)]
    t = Tokenizer(models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token="?"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=t, additional_special_tokens=specials).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def open_processor(folder):
    p = AutoProcessor.from_pretrained(folder)
    p.image_processor.size = dict(p.image_processor.size)
    assert type(p.image_processor).__name__ == "Qwen2VLImageProcessor", type(p.image_processor)
    return p


def joined(p, ids):
    return "".join(p.tokenizer.convert_ids_to_tokens(ids))


def reference_image(p, rgb):
    r = p(text=["a<|vision_start|><|image_pad|><|vision_end|>b"], images=[torch.from_numpy(rgb[0]).permute(2, 0, 1)],
          return_tensors="pt")
    return r["pixel_values"].numpy(), r["image_grid_thw"][0].tolist(), joined(p, r["input_ids"][0].tolist())


def reference_video(p, rgb, fps, set_fps, set_max):
    """Returns transformers' values of all frames of a video; fps 0: a folder of images, which it never samples."""
    kwargs = {"do_sample_frames": False} if not fps else {}
    if set_fps and fps:
        kwargs.update(do_sample_frames=True, fps=set_fps)
    elif set_max and fps and len(rgb) > set_max and not p.video_processor.do_sample_frames:
        kwargs.update(do_sample_frames=True, num_frames=set_max)
    p.video_processor.max_frames = set_max or 768  # Qwen3-VL's takes only its own, and not an argument
    meta = VideoMetadata(total_num_frames=len(rgb), fps=fps or None, frames_indices=list(range(len(rgb))))
    v = torch.from_numpy(rgb).permute(0, 3, 1, 2)
    r = p(text=["a<|video_pad|>b"], videos=[v], video_metadata=[meta], return_tensors="pt", return_metadata=True, **kwargs)
    meta = r["video_metadata"][0]
    meta.frames_indices = meta.frames_indices[:len(rgb)]  # Qwen3-VL's processor repeats the last one in place
    chosen = [int(i) for i in meta.frames_indices]
    seconds = p.video_processor.temporal_patch_size / meta.sampled_fps if meta.fps and fps else p.video_processor.temporal_patch_size / 24
    if "second_per_grid_ts" in r:
        assert float(r["second_per_grid_ts"][0]) in (seconds, float(np.float32(seconds)))
    return {"values": r["pixel_values_videos"].numpy(), "grid": r["video_grid_thw"][0].tolist(), "seconds": seconds,
            "chosen": chosen, "text": joined(p, r["input_ids"][0].tolist())[1:-1]}


# --- comparison with the built tool ---------------------------------------------------------------


def run_tool(tool, *arguments):
    r = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True)
    return r.stdout.split("\n") if not r.returncode else r.stderr.strip()


def tool_family(name):
    return "qwen3" if name.startswith("qwen3_vl") else "qwen2"


class Counter:
    def __init__(self, name):
        self.name, self.n, self.equal, self.most, self.refused, self.patches = name, 0, 0, 0.0, 0, 0

    def add(self, ours, theirs, rest, what):
        self.n += 1
        self.patches += len(theirs)
        if ours.shape == theirs.shape and rest and (ours.view(np.uint32) == theirs.view(np.uint32)).all():
            self.equal += 1
            return
        far = float(np.abs(ours - theirs).max()) if ours.shape == theirs.shape else float("inf")
        self.most = max(self.most, far)
        print("  differs:", what, "by", far, "" if rest else "and in grid, frames, seconds or text")

    def __str__(self):
        return (f"{self.name}: {self.equal} of {self.n} equal to the bit, {self.patches} patches, {self.refused} refused by both"
                + ("" if self.equal == self.n else f", largest difference {self.most}"))


def random_size(rng, i):
    if i < 3:
        return [(8, 8), (4096, 3072), (3072, 4096)][i]
    if i % 6 == 0:  # extreme aspects, some beyond 200
        short, long = int(rng.integers(1, 40)), int(rng.integers(1000, 6000))
        return (short, long) if i % 12 else (long, short)
    if i % 6 == 1:
        return int(rng.integers(8, 64)), int(rng.integers(8, 64))
    top = 4096 if i % 25 == 2 else 1600
    return (int(np.exp(rng.uniform(np.log(8), np.log(top)))), int(np.exp(rng.uniform(np.log(8), np.log(top * 3 // 4)))))


def compare_images(p, name, folder, tool, n, rng, work):
    c = Counter(f"{name} images")
    for i in range(n):
        w, h = random_size(rng, i)
        rgb = paint(rng, 1, w, h, ["waves", "noise", "edges"][i % 3])
        rgb.tofile(work / "rgb")
        lines = run_tool(tool, "image", folder, tool_family(name), w, h, work / "rgb", work / "out")
        try:
            values, grid, text = reference_image(p, rgb)
        except ValueError as e:
            assert "aspect ratio" in str(e) and isinstance(lines, str) and f"{w} x {h}" in lines, (e, lines)
            c.refused += 1
            continue
        if isinstance(lines, str):
            sys.exit(f"{w}x{h}: {lines}")
        ours = np.fromfile(work / "out", np.float32).reshape(-1, values.shape[1])
        tokens = text.count("<|image_pad|>")
        c.add(ours, values, lines[0] == " ".join(map(str, grid + [tokens])), f"{w}x{h} {grid} {lines[0]}")
    print(c, flush=True)


def random_video(rng, i):
    """Frames, width, height, the rate, and what the user sets."""
    frames = int(rng.integers(2, 90)) if i else 700
    fps = [25.0, 30000 / 1001, 10.0, 0.0, 23.976, 59.94][i % 6]
    w, h = (64, 48) if not i else (int(rng.integers(8, 400)), int(rng.integers(8, 300)))
    if i % 7 == 3:
        w, h, frames = int(rng.integers(300, 1300)), int(rng.integers(300, 800)), 12
    return frames, w, h, fps, [0, 0, 1.5, 4.0][i % 4] if fps else 0, [0, 6, 0][i % 3] if fps else 0


def compare_videos(p, name, folder, tool, n, rng, work):
    c = Counter(f"{name} videos")
    for i in range(n):
        frames, w, h, fps, set_fps, set_max = random_video(rng, i)
        rgb = paint(rng, frames, w, h, ["waves", "noise", "edges"][i % 3])
        rgb.tofile(work / "rgb")
        lines = run_tool(tool, "video", folder, tool_family(name), w, h, work / "rgb", work / "out", frames, repr(fps),
                         set_fps, set_max)
        try:
            r = reference_video(p, rgb, fps, set_fps, set_max)
        except ValueError as e:
            assert "aspect ratio" in str(e) and isinstance(lines, str), (e, lines)
            c.refused += 1
            continue
        if isinstance(lines, str):
            sys.exit(f"{frames} frames of {w}x{h}: {lines}")
        ours = np.fromfile(work / "out", np.float32).reshape(-1, r["values"].shape[1])
        tokens = r["text"].count("<|video_pad|>")
        rest = (lines[0] == " ".join(map(str, r["grid"] + [tokens])) and float(lines[1]) == r["seconds"]
                and [int(x) for x in lines[2].split()] == r["chosen"] and lines[3] == r["text"])
        c.add(ours, r["values"], rest, f"{frames} frames of {w}x{h} at {fps}, set {set_fps} {set_max}: {r['grid']} {lines[0]}")
    print(c, flush=True)


def reference_size(p, frames, w, h):
    """The grid, by the functions that the processors call; 0 0 0 where they refuse."""
    q = p.video_processor if frames else p.image_processor
    factor, least, most = q.patch_size * q.merge_size, q.size["shortest_edge"], q.size["longest_edge"]
    together = frames and type(q).__name__.startswith("Qwen3")
    try:
        if frames and q.cap_pixels_per_frame:
            tokens = q.max_video_tokens * factor * factor
            if together:
                most = max(min(tokens, most // frames), int(least * 1.05)) * frames
            else:
                most = max(min(most, int(tokens * 0.9) * 2 // frames), int(least * 1.05))
        a = ((frames, h, w, 2) if together else (h, w)) + (factor, least, most)
        y, x = (qwen3_resize if together else qwen2_resize)(*a)
    except ValueError:
        return [0, 0, 0]
    return [-(-frames // 2) if frames else 1, y // q.patch_size, x // q.patch_size]


def compare_sizes(p, name, folder, tool, n, rng):
    cases = [(int(rng.integers(0, 2) * np.exp(rng.uniform(0.7, 7))), *(int(np.exp(rng.uniform(0, 9.7))) for _ in range(2)))
             for _ in range(n)]
    r = subprocess.run([tool, "sizes", folder, tool_family(name)], input="".join("%d %d %d\n" % c for c in cases),
                       capture_output=True, text=True, check=True).stdout.split("\n")
    theirs = [reference_size(p, *c) for c in cases]
    wrong = [(c, a, b) for c, a, b in zip(cases, r, theirs) if a != " ".join(map(str, b))]
    print(f"{name} sizes: {n - len(wrong)} of {n} equal, {sum(t == [0, 0, 0] for t in theirs)} refused by both", *wrong[:3], flush=True)


def compare_frames(p, name, folder, tool, n, rng, most):
    rates = [25.0, 30000 / 1001, 10.0, 24000 / 1001, 59.94, 7.3, 120.0]
    cases = [(int(np.exp(rng.uniform(0.7, np.log(most)))), rates[i % 7], [2.0, 1.0, 0.37, 5.0][i % 4], [768, 64, 13][i % 3])
             for i in range(n)]
    r = subprocess.run([tool, "frames", folder, tool_family(name)], input="".join("%d %r %r %d\n" % c for c in cases),
                       capture_output=True, text=True, check=True).stdout.split("\n")
    wrong, refused, beyond = [], 0, 0
    for c, ours in zip(cases, r):
        p.video_processor.max_frames = c[3]
        try:
            theirs = p.video_processor.sample_frames(VideoMetadata(total_num_frames=c[0], fps=c[1]), fps=c[2]).tolist()
        except ZeroDivisionError:
            theirs = [0]
        refused += len(theirs) < 2
        if theirs[-1] >= c[0]:  # Qwen2-VL's arange has one step too many, and its last frame is none of the video's
            beyond += 1
            theirs.pop()
        if [int(x) for x in ours.split()] != theirs and len(theirs) > 1:
            wrong.append((c, sum(a != b for a, b in zip(map(int, ours.split()), theirs)), len(theirs)))
    print(f"{name} choices of frames, up to {most}: {n - len(wrong)} of {n} equal, {refused} refused by both, "
          f"{beyond} in which transformers takes a frame behind the last one", *wrong[:3], flush=True)


def compare(tool, images, videos, seed):
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for k, (name, files) in enumerate(families.items()):
            write_folder(work / name, name, files)
            p = open_processor(work / name)
            compare_sizes(p, name, work / name, tool, 50 * images, np.random.default_rng(seed + 30 + k))
            for most in (16384, 1000000):
                compare_frames(p, name, work / name, tool, 50 * videos, np.random.default_rng(seed + 40 + k), most)
            p = open_processor(work / name)
            compare_images(p, name, work / name, tool, images, np.random.default_rng(seed + k), work)
            compare_videos(p, name, work / name, tool, videos, np.random.default_rng(seed + 10 + k), work)
            if name == "qwen2_5_vl":
                continue
            files = dict(files)
            source = files.get("video_preprocessor_config.json", files["preprocessor_config.json"])
            files["video_preprocessor_config.json"] = {**source, "cap_pixels_per_frame": True}
            write_folder(work / f"{name}_cap", name, files)
            compare_sizes(open_processor(work / f"{name}_cap"), f"{name} capped", work / f"{name}_cap", tool, 50 * images,
                          np.random.default_rng(seed + 50 + k))
            compare_videos(open_processor(work / f"{name}_cap"), f"{name} capped", work / f"{name}_cap", tool,
                           videos, np.random.default_rng(seed + 20 + k), work)


# --- the golden file ------------------------------------------------------------------------------


def made(frames, w, h, edges):
    """The pixels that tests/test_patches.c makes, too: byte i is the top of i * 2654435761 ^ (i / 64) * 97."""
    i = np.arange(frames * w * h * 3, dtype=np.uint64)
    v = ((((i * 2654435761) & 0xffffffff) ^ ((i >> 6) * 97)) >> 24 & 255).astype(np.uint8)
    v = np.where(v > 127, 255, 0).astype(np.uint8) if edges else v
    return v.reshape(frames, h, w, 3)


def crc(a):
    return zlib.crc32(np.ascontiguousarray(a).tobytes())


def image_cases(p, rng):
    sizes = [(8, 8), (1, 200), (200, 1), (28, 28), (56, 56), (42, 70), (64, 32), (512, 512), (640, 480), (37, 61), (1000, 9), (6, 900),
             (14, 700), (401, 333), (1024, 768), (2048, 20)]
    for i, (w, h) in enumerate(sizes):
        values, grid, text = reference_image(p, made(1, w, h, i % 2))
        yield {"w": w, "h": h, "grid": grid, "tokens": text.count("<|image_pad|>"), "values": crc(values), "last": float(values[-1, -1])}


def video_cases(p, rng):
    for i in range(12):
        frames, w, h, fps, set_fps, set_max = random_video(rng, i + 1)
        frames, w, h = min(frames, 40), min(w, 160), min(h, 120)
        r = reference_video(p, made(frames, w, h, i % 2), fps, set_fps, set_max)
        yield {"frames": frames, "w": w, "h": h, "fps": fps, "set_fps": set_fps, "set_max": set_max, "grid": r["grid"],
               "chosen": r["chosen"], "seconds": r["seconds"], "text": zlib.crc32(r["text"].encode()), "values": crc(r["values"]),
               "last": float(r["values"][-1, -1])}


def size_cases(p, rng):
    for i in range(120):
        frames = int(i % 2 * np.exp(rng.uniform(0.7, 7)))
        w, h = (int(np.exp(rng.uniform(0, 9.7))) for _ in range(2))
        yield [frames, w, h, *reference_size(p, frames, w, h)]


def choice_cases(p, rng):
    for i in range(40):
        total, fps = int(np.exp(rng.uniform(0.7, 13))), [25.0, 29.97, 10.0, 24000 / 1001, 59.94, 7.3, 120.0][i % 7]
        set_fps, most = [2.0, 1.0, 0.37, 5.0][i % 4], [768, 64, 13][i % 3]
        p.video_processor.max_frames = most
        try:
            theirs = [x for x in p.video_processor.sample_frames(VideoMetadata(total_num_frames=total, fps=fps), fps=set_fps).tolist()
                      if x < total]
        except ZeroDivisionError:
            theirs = []
        yield [total, fps, set_fps, most, len(theirs), crc(np.array(theirs, np.uint32))]


def write_golden():
    golden = {}
    with tempfile.TemporaryDirectory() as work:
        for name, files in families.items():
            folder = pathlib.Path(work) / name
            write_folder(folder, name, files)
            make = {"images": image_cases, "videos": video_cases, "sizes": size_cases, "choices": choice_cases}
            golden[name] = {"files": files,
                            **{k: list(f(open_processor(folder), np.random.default_rng(7))) for k, f in make.items()}}
    with open(here / "qwen_vl_pixels.json", "w") as f:
        f.write("{" + ",\n".join(f'"{name}": {{' + ",\n".join(
            f'"{k}": ' + (json.dumps(v) if k == "files" else "[\n" + ",\n".join(map(json.dumps, v)) + "]") for k, v in x.items()) + "}"
            for name, x in golden.items()) + "}\n")


if __name__ == "__main__":
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--random", nargs=2, type=int, metavar=("IMAGES", "VIDEOS"))
    a.add_argument("--tool", default="build/tests/patches")
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    torch.set_num_threads(1)
    if a.random:
        compare(a.tool, *a.random, a.seed)
    else:
        write_golden()
