#!/usr/bin/env python3
"""Golden files for `plimsoll predict --video` with SAM 2, made with PyTorch and transformers.

    python tests/golden/make_track_sam2.py [--out DIR] [--seed N]

    track_sam2/model/              a small Sam2VideoModel with random weights
    track_sam2/video/NAME.png      the frames, of the size of the model's images
    track_sam2/labels.png          a label image of two objects, the prompt of the case `mask`
    track_sam2/prompts.csv         boxes and points of two objects on two frames, of the case `prompts`
    track_sam2/CASE.png            the label images of all frames, one below the other; 255 where a logit, or the
                                   difference of two that are above 0, is within MARGIN of 0

The reference is as its users call it: a session gets the prompts, runs the prompted frames, then
propagates to the end, and then in reverse from the first prompted frame. post_process_masks resizes
the masks; where they overlap, a pixel belongs to the object of the highest logit. Seeds are tried
until the masks of all frames differ and none is nearly empty or full.
"""
import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import numpy as np
import torch
from PIL import Image, ImageDraw
from transformers import Sam2ImageProcessor, Sam2VideoModel, Sam2VideoProcessor
from transformers.models.sam2_video.video_processing_sam2_video import Sam2VideoVideoProcessor

import common
import make_sam2
import make_sam2_video

SIDE, FRAMES, MARGIN = 32, 12, 1e-3
# frame, object, points with labels, box
PROMPTS = [(3, 1, [(10, 12, 1)], None), (3, 2, [], (15, 4, 28, 20)), (5, 1, [], (6, 8, 20, 22)),
           (9, 1, [(20, 10, 1), (4, 4, 0)], (12, 5, 27, 20)), (9, 2, [(16, 20, 1)], None)]


def palette():
    out = []
    for value in range(256):
        out += [sum((value >> (3 * k + c) & 1) << (7 - k) for k in range(3)) for c in range(3)]
    return out


def write_indexed(path, labels):
    image = Image.fromarray(labels.astype(np.uint8), "P")
    image.putpalette(palette())
    image.save(path, optimize=True)


def frames(rng):
    """A disc and a square that move over a gradient, with grain."""
    out, labels = [], None
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    for t in range(FRAMES):
        base = np.stack([90 + 3 * x, 120 + 2 * y, 200 - 3 * x], -1) + rng.integers(-6, 7, (SIDE, SIDE, 3))
        image = Image.fromarray(base.clip(0, 255).astype(np.uint8))
        draw, mask = ImageDraw.Draw(image), Image.new("L", (SIDE, SIDE))
        drawn = ImageDraw.Draw(mask)
        for shape, box, colour, value in (("ellipse", (4 + t, 5, 14 + t, 16), (230, 60, 40), 1),
                                          ("rectangle", (20 - t, 17, 28 - t, 27), (40, 60, 230), 2)):
            getattr(draw, shape)(box, fill=colour)
            getattr(drawn, shape)(box, fill=value)
        out.append(image)
        labels = np.array(mask) if t == 4 else labels
    return out, labels


def write_model(folder, seed):
    c = make_sam2_video.case(memories=4, pointers=5, image=SIDE, std=0.3, dtype="bfloat16")
    make_sam2_video.write_model(folder, c, torch.Generator().manual_seed(seed))
    image = Sam2ImageProcessor(size={"height": SIDE, "width": SIDE})
    keys = ("do_normalize", "do_rescale", "image_mean", "image_std", "rescale_factor")
    common.write_json(os.path.join(folder, "preprocessor_config.json"),
                      {k: list(v) if isinstance(v, tuple) else v for k, v in image.to_dict().items() if k in keys})
    video = Sam2VideoVideoProcessor(size={"height": SIDE, "width": SIDE})
    model = Sam2VideoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    return model, Sam2VideoProcessor(image, video, target_size=SIDE)


def propagate(model, processor, video, prompts):
    """Logits of each object, [FRAMES,2,SIDE,SIDE], from a function that gives a session the prompts of a frame."""
    session = processor.init_video_session(video=[np.array(f) for f in video], dtype=torch.float32)
    starts = sorted(prompts)
    for frame in starts:
        prompts[frame](session)
        model(session, frame_idx=frame)
    logits = {}
    for reverse in (False, True):
        for out in model.propagate_in_video_iterator(session, start_frame_idx=starts[0], reverse=reverse):
            logits[out.frame_idx] = processor.post_process_masks([out.pred_masks], [[SIDE, SIDE]], binarize=False)[0]
    return torch.stack([logits[f].reshape(2, SIDE, SIDE) for f in range(FRAMES)])


def given_points(processor):
    def on(frame):
        def add(session):
            # one call for an object: those of a frame may have different numbers of points
            for _, ident, points, box in (p for p in PROMPTS if p[0] == frame):
                processor.add_inputs_to_inference_session(
                    session, frame_idx=frame, obj_ids=ident,
                    **({"input_points": [[[list(p[:2]) for p in points]]], "input_labels": [[[p[2] for p in points]]]} if points else {}),
                    **({"input_boxes": [[list(box)]]} if box else {}))
            session.obj_with_new_inputs = [p[1] for p in PROMPTS if p[0] == frame]
        return add
    return {f: on(f) for f in {p[0] for p in PROMPTS}}


def given_mask(processor, labels):
    return {4: lambda session: processor.add_inputs_to_inference_session(
        session, frame_idx=4, obj_ids=[1, 2], input_masks=[labels == 1, labels == 2])}


def labels_of(logits):
    best, which = logits.max(1)
    close = (logits.abs() < MARGIN).any(1) | ((logits > 0).all(1) & ((logits[:, 0] - logits[:, 1]).abs() < MARGIN))
    return torch.where(close, 255, torch.where(best > 0, which + 1, 0)).numpy()


def write_prompts(path):
    with open(path, "w") as f:
        print("frame,id,x0,y0,x1,y1,x,y,label", file=f)
        for frame, ident, points, box in PROMPTS:
            if box:
                print(frame, ident, *box, *(points[0] if points else ("", "", "")), sep=",", file=f)
            for p in points[1 if box else 0:]:
                print(frame, ident, "", "", "", "", *p, sep=",", file=f)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(common.HERE, "track_sam2"))
    parser.add_argument("--seed", type=int, default=4)
    args = parser.parse_args()
    common.quiet()
    at = lambda name: os.path.join(args.out, name)
    os.makedirs(at("video"), exist_ok=True)
    os.makedirs(at("model"), exist_ok=True)
    video, labels = frames(np.random.default_rng(7))
    for i, frame in enumerate(video):
        frame.save(at(f"video/{2 * i:05}.png"), optimize=True)
    write_indexed(at("labels.png"), labels)
    write_prompts(at("prompts.csv"))
    for seed in range(args.seed, args.seed + 2000):
        model, processor = write_model(at("model"), seed)
        found = {"mask": propagate(model, processor, video, given_mask(processor, labels)),
                 "prompts": propagate(model, processor, video, given_points(processor))}
        shares = [(x > 0).float().mean((2, 3)) for x in found.values()]
        differ = [len({tuple(f.flatten().tolist()) for f in x > 0}) for x in found.values()]
        print(seed, differ, [f"{s.min():.2f} {s.max():.2f}" for s in shares], flush=True)
        if min(differ) == FRAMES and all(s.min() > 0.03 and s.max() < 0.97 for s in shares):
            break
    else:
        raise SystemExit("no seed has such masks")
    for name, logits in found.items():
        write_indexed(at(name + ".png"), labels_of(logits).reshape(FRAMES * SIDE, SIDE))
    print(f"seed {seed}")


if __name__ == "__main__":
    main()
