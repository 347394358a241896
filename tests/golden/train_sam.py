#!/usr/bin/env python3
"""Trains the same model with plimsoll and with PyTorch and compares the quality of the results.

    python tests/golden/train_sam.py [--out DIR] [--before 300] [--steps 300] [--seeds 0,1,2] [--threads 0] [--sides ours,torch] [--device cpu] [--binary build/plimsoll]
    python tests/golden/train_sam.py --names FOLDER >tests/golden/sam_tiny_names.txt

Both sides start from the same folder of weights and train on the same synthetic shards with the same recipe;
each draws its own random numbers (order, prompts). From random weights such a model stays for long on a
plateau where it predicts the same for every prompt: with --before 0 the result of 300 steps mainly depends
on when the model left the plateau. So the common start is by default a model past the plateau: the preset
sam-tiny after --before steps of `plimsoll train`.
The two sides share no code: here tarfile, Pillow and pycocotools read a shard, the model is transformers'
SamModel, and the loss is written from its definition.

    DIR/data            shards; the last one is held out
    DIR/start           the common start, from `plimsoll train`; random weights with learning rate 0
    DIR/ours-S          trained by `plimsoll train`; opened here by transformers
    DIR/torch-S         trained here

One evaluator, below, scores the held-out masks of all folders: by the most interior point of each mask,
then by its box; of three candidates it takes the one that the model itself scores best. Results of earlier
calls are reused: several calls may each compute one seed or one side, and a last call with all of them prints
the table. With --device cuda PyTorch trains and scores on a GPU, in f32 throughout.

--names prints name and shape of every tensor that transformers saves of FOLDER's
config.json; the committed list is sam-tiny's (tests/run_sam.sh).
"""
import argparse
import contextlib
import glob
import io
import json
import math
import os
import random
import statistics
import subprocess
import tarfile
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from pycocotools import mask as coco
from safetensors import safe_open
from transformers import SamConfig, SamModel
from transformers.utils import logging

SIDE, CELLS, MASKS, BATCH = 128, 64, 4, 8
RATE, WARMUP, DECAY, CLIP, JITTER = 2e-3, 50, 0.01, 1.0, 0.1
MEAN, STD = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
DEVICE = "cpu"
FIXED = "shared_image_embedding.positional_embedding"  # frequencies: no side trains them


# --- data ------------------------------------------------------------------------------------


def sample_axis(cells, resized, window):
    """The source pixel under the centre of each cell, as far as there is one."""
    return [(2 * c + 1) * SIDE * window // (2 * cells * resized) for c in range(cells) if (2 * c + 1) * SIDE < 2 * cells * resized]


def read_sample(jpeg, notes):
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    w, h = image.size
    scale = SIDE / max(w, h)
    to_w, to_h = int(w * scale + 0.5), int(h * scale + 0.5)
    pixels = np.asarray(image.resize((to_w, to_h), Image.BILINEAR), dtype=np.float64)
    canvas = np.zeros((SIDE, SIDE, 3), np.float32)
    canvas[:to_h, :to_w] = (pixels - MEAN) / STD
    rows, columns = sample_axis(CELLS, to_h, h), sample_axis(CELLS, to_w, w)
    masks = []
    for note in json.loads(notes)["annotations"]:
        bits = np.zeros((CELLS, CELLS), bool)
        bits[:len(rows), :len(columns)] = coco.decode(note["segmentation"])[np.ix_(rows, columns)]
        if bits.any():
            masks.append(bits)
    return dict(image=torch.from_numpy(canvas.transpose(2, 0, 1).copy()), masks=masks[:MASKS], valid=(len(rows), len(columns)), end=(to_w, to_h))


def read_shards(paths):
    """Samples with at least one mask; in none is there a choice of masks."""
    out = []
    for path in sorted(paths):
        with tarfile.open(path) as tar:
            members = {os.path.basename(m.name): tar.extractfile(m).read() for m in tar if m.isfile()}
        for name in sorted(members):
            if name.endswith(".jpg"):
                out.append(read_sample(members[name], members[name[:-4] + ".json"]))
    return [s for s in out if s["masks"]]


# --- prompts: positions in 0..1, and whether they are a box ---------------------------------------


def box_of(mask):
    ys, xs = np.nonzero(mask)
    return np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]) * (SIDE // CELLS) - np.array([0, 0, 1, 1])


def point_of(cell):
    return (cell + 0.5) * (SIDE / CELLS) - 0.5


def draw_prompt(mask, end, r):
    """A box with moved corners, or any cell of the mask; in pixels, as SamModel takes them."""
    if r.random() < 0.5:
        box = box_of(mask)
        side = np.array([box[2] - box[0] + 1, box[3] - box[1] + 1] * 2)
        most = 20 / 1024 * SIDE
        box = box + np.clip([r.gauss(0, 1) * JITTER * s for s in side], -most, most)
        box = np.clip(box, 0, np.array([end[0] - 1, end[1] - 1] * 2))
        return (min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3])), True
    ys, xs = np.nonzero(mask)
    k = r.randrange(len(ys))
    return (point_of(xs[k]), point_of(ys[k]), 0, 0), False


def interior(mask):
    """The cell that is furthest from what is not of the mask."""
    inside, outside = np.argwhere(mask), np.argwhere(~np.pad(mask, 1)) - 1
    distance = ((inside[:, None] - outside[None]) ** 2).sum(-1).min(1)
    y, x = inside[distance.argmax()]
    return (point_of(x), point_of(y), 0, 0)


def collate(samples, prompt):
    """prompt(mask, end): its positions and whether they are a box."""
    B = len(samples)
    image = torch.stack([s["image"] for s in samples])
    positions, box = torch.zeros(B, MASKS, 4), torch.zeros(B, MASKS, dtype=torch.bool)
    target, there = torch.zeros(B, MASKS, CELLS, CELLS), torch.zeros(B, MASKS, dtype=torch.bool)
    area = torch.zeros(B, 1, CELLS, CELLS)
    for b, s in enumerate(samples):
        area[b, 0, :s["valid"][0], :s["valid"][1]] = 1
        for m, mask in enumerate(s["masks"]):
            at, is_box = prompt(mask, s["end"])
            positions[b, m], box[b, m], there[b, m] = torch.tensor(at), is_box, True
            target[b, m] = torch.from_numpy(mask)
    return {name: x.to(DEVICE) for name, x in dict(image=image, positions=positions, box=box, target=target, area=area, there=there).items()}


# --- the model and its loss ----------------------------------------------------------------------


def forward(model, batch):
    """Points and boxes have two embeddings each, so a batch may mix them."""
    positions, encoder = batch["positions"], model.prompt_encoder
    labels = torch.ones(positions.shape[:2] + (1,), dtype=torch.long, device=positions.device)
    points, dense = encoder(input_points=positions[:, :, None, :2], input_labels=labels, input_boxes=None, input_masks=None)
    boxes, _ = encoder(input_points=None, input_labels=None, input_boxes=positions, input_masks=None)
    sparse = torch.where(batch["box"][:, :, None, None], boxes, points)
    wide = model.get_image_wide_positional_embeddings().repeat(positions.shape[0], 1, 1, 1)
    image = model.vision_encoder(batch["image"]).last_hidden_state
    masks, scores = model.mask_decoder(image_embeddings=image, image_positional_embeddings=wide, sparse_prompt_embeddings=sparse,
                                       dense_prompt_embeddings=dense, multimask_output=True)[:2]
    return masks, scores


def true_iou(logits, batch):
    on, g, area = logits > 0, batch["target"][:, :, None] > 0, batch["area"][:, :, None] > 0
    both, either = (on & g & area).sum((-1, -2)), ((on | g) & area).sum((-1, -2))
    return both / either.clamp_min(1)


def mask_loss(logits, scores, batch):
    """docs/reference/sam.md, over the valid area; the mean over masks that are there."""
    g, area = batch["target"][:, :, None].expand_as(logits), batch["area"][:, :, None]
    p = logits.sigmoid()
    p_t, alpha_t = p * g + (1 - p) * (1 - g), 0.25 * g + 0.75 * (1 - g)
    bce = F.binary_cross_entropy_with_logits(logits, g, reduction="none")
    focal = (alpha_t * (1 - p_t) ** 2 * bce * area).sum((-1, -2)) / area.sum((-1, -2))
    p = p * area
    dice = 1 - (2 * (p * g).sum((-1, -2)) + 1) / (p.sum((-1, -2)) + (g * area).sum((-1, -2)) + 1)
    each = 20 * focal + dice
    best = each.argmin(-1, keepdim=True)
    total = (each + (scores - true_iou(logits, batch)) ** 2).gather(-1, best).squeeze(-1)
    return total[batch["there"]].mean()


def tiny_config():
    """The preset sam-tiny (src/models/presets.c) but for the size of images."""
    size = {"image_size": SIDE, "patch_size": 8}
    return SamConfig(
        vision_config={"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "mlp_dim": 384, "global_attn_indexes": [1, 3],
                       "window_size": 4, "output_channels": 64, "num_pos_feats": 32, "initializer_range": 0.02, **size},
        prompt_encoder_config={"hidden_size": 64, **size},
        mask_decoder_config={"hidden_size": 64, "mlp_dim": 256, "num_attention_heads": 4, "iou_head_hidden_dim": 64})


def rate_at(step, steps):
    return step / WARMUP if step < WARMUP else 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def train_torch(begin, out, samples, steps, seed):
    r = random.Random(seed)
    model = SamModel.from_pretrained(begin, dtype=torch.float32).train().to(DEVICE)
    weights = [p for n, p in model.named_parameters() if n != FIXED]
    optimizer = torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    order, losses = [], []
    for _ in range(steps):
        while len(order) < BATCH:
            order += r.sample(range(len(samples)), len(samples))
        chosen, order = order[:BATCH], order[BATCH:]
        batch = collate([samples[i] for i in chosen], lambda mask, end: draw_prompt(mask, end, r))
        loss = mask_loss(*forward(model, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.save_pretrained(out)
    return losses


def plimsoll(binary, out, train, settings):
    words = {"data.format": "sa1b", "data.train": ",".join(train), "data.max_masks": MASKS, "data.image_size": SIDE, "train.effective_batch": BATCH,
             "train.learning_rate": RATE, "train.schedule": "cosine", "train.warmup_steps": WARMUP, "train.weight_decay": DECAY, "train.clip_norm": CLIP,
             "prompts.jitter": JITTER, "prompts.iterations": 1, "prompts.box": 0.5, "memory.precision": "f32", "device": "cpu", "train.out": out + ".run", **settings}
    yaml = out + ".yaml"
    with open(yaml, "w") as f:
        f.write("{}\n")
    subprocess.run([binary, "train", yaml] + [w for k, v in words.items() for w in ("--set", f"{k}={v}")], check=True, stderr=open(out + ".log", "w"), stdout=subprocess.DEVNULL)
    os.rename(out + ".run/model", out)
    with open(out + ".run/metrics.jsonl") as f:
        return [x["loss"] for x in map(json.loads, f) if "loss" in x]


def evaluate(folder, samples):
    """Mean IoU of held-out masks by points and by boxes."""
    model, info = SamModel.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    model.eval().to(DEVICE)
    result = []
    for prompt in (lambda mask, end: (interior(mask), False), lambda mask, end: (box_of(mask), True)):
        found = []
        with torch.no_grad():
            for i in range(0, len(samples), BATCH):
                batch = collate(samples[i:i + BATCH], prompt)
                logits, scores = forward(model, batch)
                iou = true_iou(logits, batch).gather(-1, scores.argmax(-1, keepdim=True)).squeeze(-1)
                found.append(iou[batch["there"]])
        result.append(torch.cat(found).mean().item())
    return result


@contextlib.contextmanager
def remembered(path):
    """A dictionary that outlives the process: a run that was stopped goes on."""
    known = json.load(open(path)) if os.path.exists(path) else {}
    yield known
    with open(path, "w") as f:
        json.dump(known, f)


def print_names(folder):
    with tempfile.TemporaryDirectory() as to:
        SamModel(SamConfig.from_pretrained(folder)).save_pretrained(to)
        with safe_open(to + "/model.safetensors", "pt") as f:
            print("\n".join(sorted(f"{n} [{', '.join(map(str, f.get_slice(n).get_shape()))}]" for n in f.keys())))


def spread(values):
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def prepare_data(binary, data, images):
    if not os.path.exists(data):
        subprocess.run([binary, "data", "make", data + ".new", "--images", str(images), "--shards", "8", "--size", f"{SIDE * 5 // 4}x{SIDE}", "--masks", str(MASKS)], check=True)
        os.rename(data + ".new", data)
    shards = sorted(glob.glob(data + "/*.tar"))
    return shards[:-1], shards[-1:]


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--out", default="/tmp/train_sam")
    a.add_argument("--binary", default="build/plimsoll")
    a.add_argument("--steps", type=int, default=300)
    a.add_argument("--before", type=int, default=300, help="steps of the common start; 0: fresh weights")
    a.add_argument("--seeds", default="0,1,2")
    a.add_argument("--images", type=int, default=800)
    a.add_argument("--threads", type=int, default=0, help="of each side; 0: all")
    a.add_argument("--sides", default="ours,torch")
    a.add_argument("--device", default="cpu", help="of PyTorch")
    a.add_argument("--names")
    a = a.parse_args()
    global DEVICE
    DEVICE = a.device
    torch.backends.cudnn.allow_tf32 = False
    if a.names:
        return print_names(a.names)
    if a.threads:
        torch.set_num_threads(a.threads)
    logging.disable_progress_bar()
    os.makedirs(a.out, exist_ok=True)
    train, held = prepare_data(a.binary, os.path.join(a.out, "data"), a.images)
    samples, held = read_shards(train), read_shards(held)
    print(f"{len(samples)} images to train on; {len(held)} held out with {sum(len(s['masks']) for s in held)} masks", flush=True)
    rows = {}
    for seed in map(int, a.seeds.split(",")):
        at = {"start": os.path.join(a.out, "start"), **{n: os.path.join(a.out, f"{n}-{seed}") for n in ("ours", "torch")}}
        make = {
            "start": lambda: plimsoll(a.binary, at["start"], train, {"model.preset": "sam-tiny", "train.steps": a.before or 1, "train.learning_rate": RATE if a.before else 0}),
            "ours": lambda: plimsoll(a.binary, at["ours"], train, {"model.path": at["start"], "train.steps": a.steps, "train.seed": seed, "device.threads": a.threads}),
            "torch": lambda: train_torch(at["start"], at["torch"], samples, a.steps, seed),
        }
        for side in ["start"] + a.sides.split(","):
            with remembered(at[side] + ".json") as known:
                if "losses" not in known:
                    known["losses"] = make[side]()
                if "iou" not in known:
                    known["iou"] = evaluate(at[side], held)
            last = statistics.mean(known["losses"][-50:] or [math.nan])
            rows.setdefault(side, []).append((*known["iou"], statistics.mean(known["iou"]), last))
            print(f"seed {seed}  {side:6}  point {known['iou'][0]:.4f}  box {known['iou'][1]:.4f}  loss of the last 50 steps {last:.4f}", flush=True)
    print("\n| | mean IoU, point | box | both | loss, last 50 steps |\n|---|---|---|---|---|")
    for side, found in rows.items():
        print(f"| {side} | " + " | ".join(spread(column) for column in zip(*found)) + " |")


if __name__ == "__main__":
    main()
