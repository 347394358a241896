#!/usr/bin/env python3
"""Golden files for `plimsoll predict`, made with PyTorch and transformers.

    python tests/golden/make_predict.py [--out DIR] [--seed N]

    predict/model/                 a small SamModel folder with random weights and a
                                   preprocessor_config.json of its own
    predict/wide.png, tall.png     images: larger and smaller than the model's input size
    predict/cases.txt              one line for each case: its name, and the arguments of
                                   `plimsoll predict` after --model
    predict/NAME.png               the mask that SamProcessor and SamModel predict
    predict/scores.txt             NAME and the predicted IoU of that mask

The processor resizes and normalises, the model predicts, post_process_masks resizes the masks to
the image's size. The candidate with the best score is the result.
"""
import argparse
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import numpy as np
import torch
from PIL import Image, ImageDraw
from transformers import SamModel
from transformers.models.sam import SamProcessor

try:  # newer versions have two image processors; this one resizes with Pillow
    from transformers.models.sam.image_processing_pil_sam import SamImageProcessorPil as ImageProcessor
except ImportError:
    from transformers import SamImageProcessor as ImageProcessor

from transformers.utils import logging

import make_sam

logging.set_verbosity_error()
logging.disable_progress_bar()

SIDE = 64

# image, points with labels, box, single
CASES = {
    "point": ("wide.png", [(150, 60, 1)], None, False),
    "points": ("wide.png", [(40.5, 30, 1), (150, 90, 0), (60, 100, 1)], None, False),
    "box": ("wide.png", [], (20, 10, 120.5, 100), False),
    "both": ("tall.png", [(20, 30, 1), (5, 5, 0)], (4, 8, 36, 50), True),
    "single": ("tall.png", [(30, 12, 1)], None, True),
}


def image(w, h, seed):
    """Shapes over a gradient, with some grain."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:h, 0:w]
    base = np.stack([90 + 80 * x / w, 120 + 60 * y / h, 160 - 70 * x / w], -1)
    image = Image.fromarray(base.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse([w * 0.1, h * 0.15, w * 0.5, h * 0.75], fill=(220, 70, 50))
    draw.rectangle([w * 0.6, h * 0.3, w * 0.92, h * 0.85], fill=(40, 60, 150))
    draw.polygon([(w * 0.35, h * 0.95), (w * 0.5, h * 0.5), (w * 0.68, h * 0.95)], fill=(240, 220, 90))
    grain = rng.integers(-6, 7, (h, w, 1))
    return Image.fromarray(np.clip(np.asarray(image).astype(int) + grain, 0, 255).astype(np.uint8))


def write_model(folder, seed):
    c = make_sam.case(image=SIDE, patch=8, hidden=16, window=3, globals=[1], inner=24, C=16, decoder_inner=16, std=0.3)
    make_sam.write_model(folder, c, torch.Generator().manual_seed(seed))
    processor = ImageProcessor(size={"longest_edge": SIDE}, pad_size={"height": SIDE, "width": SIDE},
                               image_mean=[0.4, 0.45, 0.5], image_std=[0.2, 0.25, 0.3])
    keys = ("do_normalize", "do_rescale", "image_mean", "image_std", "rescale_factor")
    values = {k: v for k, v in processor.to_dict().items() if k in keys}
    with open(os.path.join(folder, "preprocessor_config.json"), "w") as f:
        json.dump(values, f, indent=2, sort_keys=True, default=list)
        f.write("\n")
    return SamModel.from_pretrained(folder, attn_implementation="eager").eval(), SamProcessor(processor)


def answer(model, processor, image, points, box, single):
    prompts = {}
    if points:
        prompts["input_points"] = [[[list(p[:2]) for p in points]]]
        prompts["input_labels"] = [[[p[2] for p in points]]]
    if box:
        prompts["input_boxes"] = [[list(box)]]
    inputs = processor(image, return_tensors="pt", **prompts)
    sizes = inputs.pop("original_sizes"), inputs.pop("reshaped_input_sizes")
    inputs = {k: v.to(torch.float32) if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        out = model(**inputs, multimask_output=not single)
    masks = processor.image_processor.post_process_masks(out.pred_masks, *sizes, pad_size={"height": SIDE, "width": SIDE})
    best = out.iou_scores[0, 0].argmax()
    return masks[0][0, best].numpy(), out.iou_scores[0, 0, best].item()


def arguments(name, image_name, points, box, single):
    out = [name, image_name]
    for x, y, label in points:
        out += ["--point", f"{x:g},{y:g}" + ("" if label else ",0")]
    if box:
        out += ["--box", ",".join(f"{v:g}" for v in box)]
    return " ".join(out + (["--single"] if single else []))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "predict"))
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    at = lambda name: os.path.join(args.out, name)
    image(200, 120, 1).save(at("wide.png"), optimize=True)
    image(41, 57, 2).save(at("tall.png"), optimize=True)
    # Masks of random weights often fill the image or are empty; the first seed that gives neither
    # is used.
    for seed in range(args.seed, args.seed + 1000):
        model, processor = write_model(at("model"), seed)
        shares = [answer(model, processor, Image.open(at(p)).convert("RGB"), *rest)[0].mean() for p, *rest in CASES.values()]
        if all(0.1 < s < 0.9 for s in shares):
            break
    with open(at("cases.txt"), "w") as cases, open(at("scores.txt"), "w") as scores:
        for name, (image_name, points, box, single) in CASES.items():
            image = Image.open(at(image_name)).convert("RGB")
            mask, score = answer(model, processor, image, points, box, single)
            Image.fromarray(mask).save(at(name + ".png"), optimize=True)
            print(arguments(name, image_name, points, box, single), file=cases)
            print(name, f"{score:.6f}", file=scores)
            print(f"{name:8} score {score:8.4f}  {mask.mean():6.1%} of {mask.shape}")


if __name__ == "__main__":
    main()
