#!/usr/bin/env python3
"""Does transformers' SamModel see the same masks in a folder as `plimsoll step`?

    python tests/golden/check_sam.py FOLDER         a folder that we wrote, say runs/x/model
    python tests/golden/check_sam.py --full FOLDER  ViT-B at 1024 x 1024 with fixed random
                                                    weights, written to FOLDER first (0.4 GB)

Checks that SamModel loads the folder with no missing, unexpected or mismatched key, and that
image_embeddings, pred_masks and iou_scores of one random image agree within 1e-4 (relative L2);
prints their statistics on both sides. Prompts two masks by points and boxes, with and without
multimask_output.

Used by hand; the tests need no Python. BUILD names the build folder. --full takes minutes
and some 5 GB of memory. Exit status 0 when all holds.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from safetensors.torch import load_file
from transformers import SamConfig, SamModel
from transformers.utils import logging

import make_llama as common

BOUND = 1e-4


def write_full(folder):
    """The default configuration is ViT-B. The weights are large enough that every module affects the result."""
    os.makedirs(folder, exist_ok=True)
    config = SamConfig()
    common.write_json(os.path.join(folder, "config.json"), dict(json.loads(config.to_json_string(use_diff=False)), architectures=["SamModel"]))
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for name, p in SamModel(config).named_parameters():
        spread = 1.0 if "embed" in name and "patch" not in name and "pos_embed" not in name else 0.03
        w = torch.randn(p.shape, generator=generator) * spread
        if "norm" in name and name.endswith(".weight"):
            w += 1
        weights[name] = w
    common.write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})


def make_batch(config):
    generator = torch.Generator().manual_seed(2)
    v, extent = config.vision_config, config.prompt_encoder_config.image_size
    corners = torch.rand((1, 2, 2, 2), generator=generator).sort(2).values
    return {"pixel_values": torch.randn((1, v.num_channels, v.image_size, v.image_size), generator=generator),
            "input_points": torch.rand((1, 2, 3, 2), generator=generator) * extent,
            "input_labels": torch.tensor([[[1, 0, 1], [0, 1, -10]]]),
            "input_boxes": corners.reshape(1, 2, 4) * extent}


def ours(folder, batch, several, work):
    common.write_tensors(f"{work}/batch.safetensors", batch, {"multimask_output": str(several).lower(), "loss_output": "iou_scores"})
    binary = os.path.join(os.environ.get("BUILD", "build"), "plimsoll")
    subprocess.run([binary, "step", "--model", folder, "--batch", f"{work}/batch.safetensors", "--out", f"{work}/out.safetensors",
                    "--set", "memory.precision=f32"], check=True)
    return load_file(f"{work}/out.safetensors")


def statistics(t):
    t = t.double()
    return f"mean {t.mean():+.6f} std {t.std():.6f} min {t.min():+.6f} max {t.max():+.6f}"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("folder")
    p.add_argument("--full", action="store_true", help="write ViT-B there first")
    a = p.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    if a.full:
        write_full(a.folder)
    model, info = SamModel.from_pretrained(a.folder, dtype=torch.float32, output_loading_info=True)
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise SystemExit(f"{a.folder}: transformers did not load this cleanly: {bad}")
    print(f"SamModel loads {a.folder}: {sum(p.numel() for p in model.parameters())} parameters")
    batch, failed = make_batch(model.config), 0
    with torch.no_grad():
        image = model.eval().get_image_embeddings(batch["pixel_values"])
        prompts = {n: t for n, t in batch.items() if n != "pixel_values"}
        for several in ([True] if a.full else [True, False]):
            out = model(image_embeddings=image, multimask_output=several, **prompts)
            theirs = {"image_embeddings": image, "pred_masks": out.pred_masks, "iou_scores": out.iou_scores}
            with tempfile.TemporaryDirectory() as work:
                got = ours(a.folder, batch, several, work)
            for name, want in theirs.items():
                error = common.relative(got[name], want)
                failed += not error <= BOUND
                print(f"{'ok' if error <= BOUND else 'FAIL':4} {name:17} {tuple(want.shape)!s:20} error {error:.1e}")
                print(f"     transformers {statistics(want)}\n     plimsoll     {statistics(got[name])}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
