#!/usr/bin/env python3
"""Golden files for `plimsoll predict` with SAM 2, made with PyTorch and transformers.

    python tests/golden/make_predict_sam2.py [--out DIR] [--seed N]

The files are those of make_predict.py, in predict_sam2/. Sam2Processor stretches the image to the
square and normalises it, Sam2Model predicts in inference mode, post_process_masks resizes the masks
to the image's size. With multimask_output false the model chooses by stability: of the two cases
without several candidates one is stable and the other is not. The weights are such that masks do not
depend on which library resizes the image: torchvision's bytes differ from Pillow's by at most 1.
"""
import argparse
import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import numpy
import torch
from PIL import Image
from transformers import Sam2ImageProcessor, Sam2Model, Sam2Processor

import common
import make_sam2
from make_predict import CASES, SIDE, arguments, image

SINGLE = [name for name, c in CASES.items() if c[3]]


def write_model(folder, seed, threshold):
    c = make_sam2.case(image=SIDE, kernel=3, stride=2, pad=1, windows=(4, 2, 6, 3), widths=(8, 12, 16, 24), heads=(1, 2, 4, 2),
                       C=16, decoder_inner=16, std=0.3)
    make_sam2.write_model(folder, c, torch.Generator().manual_seed(seed))
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["mask_decoder_config"]["dynamic_multimask_stability_thresh"] = threshold
    common.write_json(path, config)
    processor = Sam2ImageProcessor(size={"height": SIDE, "width": SIDE}, image_mean=[0.4, 0.45, 0.5], image_std=[0.2, 0.25, 0.3])
    keys = ("do_normalize", "do_rescale", "image_mean", "image_std", "rescale_factor")
    common.write_json(os.path.join(folder, "preprocessor_config.json"),
                      {k: list(v) if isinstance(v, tuple) else v for k, v in processor.to_dict().items() if k in keys})
    return Sam2Model.from_pretrained(folder, attn_implementation="eager").eval(), Sam2Processor(processor, target_size=SIDE)


def predict(model, processor, image, points, box, single):
    prompts = {}
    if points:
        prompts["input_points"] = [[[list(p[:2]) for p in points]]]
        prompts["input_labels"] = [[[p[2] for p in points]]]
    if box:
        prompts["input_boxes"] = [[list(box)]]
    inputs = processor(image, return_tensors="pt", **prompts)
    sizes = inputs.pop("original_sizes")
    inputs = {k: v.to(torch.float32) if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        return model(**inputs, multimask_output=not single), sizes


def answer(model, processor, *case):
    out, sizes = predict(model, processor, *case)
    best = out.iou_scores[0, 0].argmax()
    mask = processor.post_process_masks(out.pred_masks, sizes)[0][0, best]
    return mask.numpy(), out.iou_scores[0, 0, best].item()


def alike(model, processor, image, *prompts):
    """The share of pixels that stay if Pillow resizes the image; prompts are scaled by the processor."""
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (processor.image_processor.image_mean, processor.image_processor.image_std))
    small = torch.from_numpy(numpy.array(image.resize((SIDE, SIDE), Image.BILINEAR))).permute(2, 0, 1) / 255

    def resized(photo, **options):
        out = processor(photo, **options)
        out["pixel_values"] = ((small - mean) / std)[None]
        return out
    resized.image_processor, resized.post_process_masks = processor.image_processor, processor.post_process_masks
    a, b = answer(model, processor, image, *prompts)[0], answer(model, resized, image, *prompts)[0]
    return (a & b).sum() / max((a | b).sum(), 1)


def stability(model, processor, *case):
    """Of mask 0, which the model gives where every mask counts as stable."""
    decoder = model.mask_decoder
    decoder.dynamic_multimask_stability_thresh = 0.0
    out, _ = predict(model, processor, *case)
    return decoder._get_stability_scores(out.pred_masks).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(common.HERE, "predict_sam2"))
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    common.quiet()
    os.makedirs(args.out, exist_ok=True)
    at = lambda name: os.path.join(args.out, name)
    image(200, 120, 1).save(at("wide.png"), optimize=True)
    image(41, 57, 2).save(at("tall.png"), optimize=True)
    opened = {name: Image.open(at(c[0])).convert("RGB") for name, c in CASES.items()}
    for seed in range(args.seed, args.seed + 1000):  # as in make_predict.py
        model, processor = write_model(at("model"), seed, 0.98)
        shares = [answer(model, processor, opened[n], *CASES[n][1:])[0].mean() for n in CASES]
        same = [alike(model, processor, opened[n], *CASES[n][1:]) for n in CASES]
        stable = [stability(model, processor, opened[n], *CASES[n][1:]) for n in SINGLE]
        if all(0.1 < s < 0.9 for s in shares) and min(same) > 0.9992 and abs(stable[0] - stable[1]) > 0.01:
            break
    model, processor = write_model(at("model"), seed, round(sum(stable) / 2, 4))
    with open(at("cases.txt"), "w") as cases, open(at("scores.txt"), "w") as scores:
        for name, (image_name, points, box, single) in CASES.items():
            mask, score = answer(model, processor, opened[name], points, box, single)
            Image.fromarray(mask).save(at(name + ".png"), optimize=True)
            print(arguments(name, image_name, points, box, single), file=cases)
            print(name, f"{score:.6f}", file=scores)
            print(f"{name:8} score {score:8.4f}  {mask.mean():6.1%} of {mask.shape}")
    print(f"seed {seed}, stability {stable}")


if __name__ == "__main__":
    main()
