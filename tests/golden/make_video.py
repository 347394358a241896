#!/usr/bin/env python3
"""Golden files for `plimsoll step` on models of images and text with frames of videos, made with PyTorch and transformers.

    python tests/golden/make_video.py [--out DIR] [--seed N] [--only CASE]...

The folders are those of make_llava.py, with frame_values in the batch: frames are images to the tower and the
projector, and then torch's adaptive_avg_pool2d makes tokens_per_frame features of a frame's grid. In input_ids the
tokens of frames come after those of all images. The file `flags` sets data.tokens_per_frame.
"""
import os

import torch

import common
import make_llava

IGNORE = common.IGNORE


def case(frames, side, **changes):
    """frames: of each sample; side * side: tokens of a frame."""
    return dict(make_llava.case(**changes), frames=frames, side=side)


CASES = {
    # 3 x 3 features to 2 x 2: windows that share features
    "video_clip_llama": case((0, 2, 3), 2, images=(2, 1, 0), vision=dict(patch=4, image=12), T=27),
    # only frames, 4 x 4 features to one
    "video_siglip_qwen2": case((3, 0, 5), 1, images=(0, 0, 0), names="memory", strategy="full", layer=-1, text=dict(family="qwen2"), vision=dict(kind="siglip", patch=3, image=12), T=13),
    # not pooled
    "video_whole": case((1, 2), 2, images=(1, 0), names="saved", T=15, ids="int32"),
}


def random_row(c, images, frames, token, generator):
    """Text with blocks of image tokens in it, those of images before those of frames."""
    blocks = [make_llava.features_of(c)] * images + [c["side"] ** 2] * frames
    words = torch.randint(0, token, (c["T"] - sum(blocks),), generator=generator).tolist()
    places = sorted(torch.randint(0, len(words) + 1, (len(blocks),), generator=generator).tolist())
    for place, n in reversed(list(zip(places, blocks))):
        words[place:place] = [token] * n
    return words


def random_batch(c, generator):
    v, token = make_llava.vision_case(c), make_llava.text_case(c)["vocab"] - 1
    ids = torch.tensor([random_row(c, i, f, token, generator) for i, f in zip(c["images"], c["frames"])])
    labels = ids.clone()
    labels[ids == token] = IGNORE
    labels[:, :2] = IGNORE
    dtype = getattr(torch, c["ids"])
    batch = dict(input_ids=ids.to(dtype), labels=labels.to(dtype))
    for name, n in (("pixel_values", sum(c["images"])), ("frame_values", sum(c["frames"]))):
        if n:
            batch[name] = torch.randn((n, v["channels"], v["image"], v["image"]), generator=generator)
    return batch


def pool(features, side):
    """[tokens, C] of a grid to [side * side, C]."""
    grid = round(features.shape[0] ** 0.5)
    maps = features.T.reshape(1, -1, grid, grid)
    return torch.nn.functional.adaptive_avg_pool2d(maps, side)[0].flatten(1).T


def load_model(folder, c, dtype):
    return make_llava.load_model(folder, c, dtype)


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    of_images, n = model.model.get_image_features, sum(c["images"])

    def features(**arguments):
        out = of_images(**arguments)
        out.pooler_output = [x if i < n else pool(x, c["side"]) for i, x in enumerate(out.pooler_output)]
        return out

    model.model.get_image_features = features
    pixels = torch.cat([batch[name] for name in ("pixel_values", "frame_values") if name in batch]).to(dtype)
    out = model(input_ids=batch["input_ids"].long(), labels=batch["labels"].long(), pixel_values=pixels, use_cache=False)
    return common.backward({"logits": out.logits, "loss": out.loss}, model.named_parameters(), lambda n: make_llava.folder_name(c, n))



def write_flags(folder, c, batch, expect):
    with open(os.path.join(folder, "flags"), "w") as f:
        f.write(f"--set data.tokens_per_frame={c['side'] ** 2}\n")


if __name__ == "__main__":
    common.main(__doc__, CASES, make_llava.write_model, random_batch, reference, more=write_flags)
