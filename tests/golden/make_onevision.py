#!/usr/bin/env python3
"""Golden files for `plimsoll step` on LLaVA-OneVision, made with PyTorch and transformers.

    python tests/golden/make_onevision.py [--out DIR] [--seed N] [--only CASE]...

The folders are those of make_llava.py. A case lists its rows, a row its conversations, and a conversation its images,
(height, width), and its videos, a number of frames: image_sizes and batch_num_images follow from them. Packed
rows are computed conversation by conversation.
"""
import math

import torch
from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape, image_size_to_num_patches, unpad_image

import common
import make_llama
import make_llava

IGNORE = common.IGNORE


def case(rows, most, pinpoints, **changes):
    """most: of vision_aspect_ratio, anyres_max_N."""
    base = dict(kind="llava_onevision", names="next", strategy="full", layer=-1, text=dict(family="qwen2"), T=90, bias=True)
    vision = dict(kind="siglip", head=False, **changes.pop("vision", dict(patch=4, image=12)))
    return dict(make_llava.case(**{**base, **changes}, vision=vision), rows=rows, most=most, pinpoints=pinpoints)


FOUR = [[12, 24], [24, 12], [24, 24], [24, 36]]
CASES = {
    # One image, above the limit of 18 features or below it; two, without tiles; a video; none.
    "onevision": case([[[(26, 25)]], [[(11, 31)]], [[(20, 9), (12, 12)]], [[3]], [[(30, 11), 3]], [[]]], 2, FOUR, T=78),
    # 4 x 4 features, 2 x 2 of a frame; conversations with one image, and with several
    "onevision_packed": case([[[(9, 40)], [(50, 50), (12, 17)]], [[2, (13, 60)], [2, 2], [(7, 5)]]], 1, [[12, 24], [24, 12], [24, 24], [12, 36]], T=160, names="memory",
                             vision=dict(patch=3, image=12), layer=[-2, 1], bias=False, tied=True, dtype="bfloat16", text=dict(family="qwen2", positions=160)),
    # An odd side of 5 features, 3 x 3 of a frame
    "onevision_videos": case([[[4]], [[4, 4]]], 9, [[10, 20]], T=90, names="saved", vision=dict(patch=2, image=10), ids="int32", act="gelu_pytorch_tanh"),
}


def of_kind(conversations, kind):
    return [x for conversation in conversations for x in conversation if isinstance(x, kind)]


def all_conversations(c):
    return [conversation for row in c["rows"] for conversation in row]


def tokens_of(c, item, alone):
    v = make_llava.vision_case(c)
    side = v["image"] // v["patch"]
    if isinstance(item, int):
        return item * math.ceil(side / 2) ** 2 + 1
    if not alone:
        return side * side + 1
    rows, columns = get_anyres_image_grid_shape(item, c["pinpoints"], v["image"])
    _, h, w = unpad_image(torch.zeros(1, rows * side, columns * side), item).shape
    ratio = math.sqrt(h * w / (c["most"] * side * side))
    if ratio > 1.1:
        h, w = int(h // ratio), int(w // ratio)
    return side * side + h * (w + 1)


def ids_of(c):
    token = make_llava.text_case(c)["vocab"] - 1
    return token, token - 1  # images, videos


def random_conversation(c, items, length, generator):
    """Text with the tokens of images and videos in it, of which no two are neighbours."""
    image, video = ids_of(c)
    alone = len(of_kind([items], tuple)) == 1
    blocks = [[video if isinstance(x, int) else image] * tokens_of(c, x, alone) for x in items]
    words = torch.randint(0, video, (length - sum(map(len, blocks)),), generator=generator).tolist()
    places = sorted((torch.randperm(len(words) - 2, generator=generator)[:len(blocks)] + 1).tolist())
    for place, block in reversed(list(zip(places, blocks))):
        words[place:place] = block
    return words


def random_batch(c, generator):
    v = make_llava.vision_case(c)
    image, video = ids_of(c)
    packed = any(len(row) > 1 for row in c["rows"])
    ids, positions = [], []
    for row in c["rows"]:
        least = [sum(tokens_of(c, x, len(of_kind([items], tuple)) == 1) + 4 for x in items) + 6 for items in row]
        least[-1] += c["T"] - sum(least)
        assert least[-1] >= 6, least
        ids.append(sum((random_conversation(c, items, n, generator) for items, n in zip(row, least)), []))
        positions.append(sum((list(range(n)) for n in least), []))
    ids, positions = torch.tensor(ids), torch.tensor(positions)
    labels = ids.clone()
    labels[(ids == image) | (ids == video)] = IGNORE
    labels[positions < 2] = IGNORE
    dtype = getattr(torch, c["ids"])
    batch = dict(input_ids=ids.to(dtype), labels=labels.to(dtype))
    if packed:
        batch["position_ids"] = positions
    sizes, videos = of_kind(all_conversations(c), tuple), of_kind(all_conversations(c), int)
    if sizes:
        counts = [len(of_kind([items], tuple)) for items in all_conversations(c)]
        counts = [n for n in counts if n]
        tiles = [image_size_to_num_patches(s, c["pinpoints"], v["image"]) if n == 1 else 1
                 for s, n in zip(sizes, [n for n in counts for _ in range(n)])]
        pixels = torch.zeros((len(sizes), max(tiles), v["channels"], v["image"], v["image"]))
        for i, k in enumerate(tiles):
            pixels[i, :k] = torch.randn(pixels[i, :k].shape, generator=generator)
        batch.update(pixel_values=pixels, image_sizes=torch.tensor(sizes), batch_num_images=torch.tensor(counts))
    if videos:
        batch["pixel_values_videos"] = torch.randn((len(videos), videos[0], v["channels"], v["image"], v["image"]), generator=generator)
    return batch


def load_model(folder, c, dtype):
    return make_llava.load_model(folder, c, dtype)


def inputs_of(batch, c, images, videos, dtype):
    """Of the conversations whose images and videos have these numbers."""
    out = {}
    if images:
        counts, at = [], 0
        for n in batch["batch_num_images"].tolist():
            if at in images:
                counts.append(n)
            at += n
        out.update(pixel_values=batch["pixel_values"][images].to(dtype), image_sizes=batch["image_sizes"][images], batch_num_images=torch.tensor(counts))
    if videos:
        out["pixel_values_videos"] = batch["pixel_values_videos"][videos].to(dtype)
    return out


def outputs(model, c, batch, dtype):
    ids, labels = batch["input_ids"].long(), batch["labels"].long()
    if "position_ids" not in batch:
        every = {n: list(range(len(batch[n]))) if n in batch else [] for n in ("pixel_values", "pixel_values_videos")}
        out = model(input_ids=ids, labels=labels, use_cache=False, **inputs_of(batch, c, *every.values(), dtype))
        return {"logits": out.logits, "loss": out.loss}
    logits, total, count, seen = [], 0, 0, {tuple: 0, int: 0}
    for items, (row, begin, end) in zip(all_conversations(c), make_llama.conversations(batch["position_ids"]), strict=True):
        of = {}
        for kind in (tuple, int):
            n = len(of_kind([items], kind))
            of[kind] = list(range(seen[kind], seen[kind] + n))
            seen[kind] += n
        out = model(input_ids=ids[row:row + 1, begin:end], use_cache=False, **inputs_of(batch, c, of[tuple], of[int], dtype))
        logits.append(out.logits[0])
        target = labels[row, begin + 1:end]
        total = total + torch.nn.functional.cross_entropy(logits[-1][:-1], target, ignore_index=IGNORE, reduction="sum")
        count += int((target != IGNORE).sum())
    return {"logits": torch.cat(logits).reshape(*labels.shape, -1), "loss": total / count}


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    return common.backward(outputs(model, c, batch, dtype), model.named_parameters(), lambda n: make_llava.folder_name(c, n))


if __name__ == "__main__":
    common.main(__doc__, CASES, make_llava.write_model, random_batch, reference)
