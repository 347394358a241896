#!/usr/bin/env python3
"""Golden files for `plimsoll step` on Qwen2-VL, Qwen2.5-VL and Qwen3-VL, made with PyTorch and transformers.

    python tests/golden/make_qwen_vl.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_qwen_vl.py --random K --out DIR [--seed N]

Each case is one folder:

    config.json             published: the text model's keys beside vision_config; memory: text_config, as transformers 5
    model.safetensors       random weights under the names of one of them
    batch.safetensors       input_ids, labels, pixel_values and image_grid_thw of all images of the batch, the same of
                            videos, perhaps attention_mask, mm_token_type_ids and second_per_grid_ts
    expect.safetensors      logits, loss, grad.<name> for every parameter, named as in the folder

What holds: the weights are written first, and the reference reads them from the folder, in float32 with eager
attention. Images have different grids, rows different numbers of images.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

import common

IGNORE = common.IGNORE
START, END, IMAGE, VIDEO = 57, 58, 59, 60  # token ids
NAMES = {"published": {"model.visual.": "visual.", "model.language_model.": "model."}, "memory": {}}


def case(**changes):
    base = dict(
        kind="qwen2_vl", names="published", dtype="float32", tied=False, style=4,
        # the text model
        vocab=61, hidden=24, heads=4, kv_heads=2, head_dim=6, layers=2, inter=37, sections=None,
        # the tower
        width=24, tower_heads=3, depth=3, tower_inter=29, patch=3, merge=2, channels=3,
        window=12, full=(1,), table=5, deep=(0, 2), per_second=2,
        # the batch: of each row its images and videos, as grids
        rows=(((1, 4, 6), (1, 2, 2)), ((1, 6, 4),), ()), T=24, padded=False, kinds=False, seconds=(), ids="int64", std=0.2,
    )
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


CASES = {
    "qwen2_vl": case(),
    "qwen2_vl_video": case(names="memory", style=5, tied=True, merge=1, patch=2, head_dim=8, hidden=32, sections=[1, 2, 1], T=31, kinds=True,
                           rows=(((1, 2, 3), (3, 1, 4)), ((2, 3, 2), (1, 3, 3), (1, 1, 2))), dtype="bfloat16"),
    "qwen2_vl_text": case(rows=((), ()), T=9),
    "qwen2_5_vl": case(kind="qwen2_5_vl", tower_inter=31, rows=(((1, 10, 6), (1, 4, 8)), ((1, 2, 14),)), T=38),
    "qwen2_5_vl_video": case(kind="qwen2_5_vl", names="memory", style=5, tied=True, full=(0, 2), padded=True, ids="int32", T=33,
                             rows=(((3, 4, 6),), ((1, 6, 6), (2, 2, 4))), seconds=(0.4, 2.5)),
    "qwen3_vl": case(kind="qwen3_vl", names="memory", head_dim=12, sections=[2, 2, 2], heads=2, kv_heads=1, layers=3, T=30,
                     rows=(((1, 4, 6), (1, 2, 2)), ((1, 10, 4), (1, 2, 6)), ())),
    "qwen3_vl_video": case(kind="qwen3_vl", names="memory", style=5, tied=True, head_dim=10, sections=[3, 1, 1], deep=(1,), T=34, padded=True, kinds=True,
                           rows=(((3, 4, 4), (1, 4, 2)), ((2, 2, 6),)), table=4, dtype="bfloat16"),
}


def vision_config(c):
    kind = c["kind"]
    v = dict(model_type=kind + "_vision" if kind == "qwen3_vl" else kind, depth=c["depth"], num_heads=c["tower_heads"], in_channels=c["channels"],
             patch_size=c["patch"], temporal_patch_size=2, spatial_merge_size=c["merge"])
    if kind == "qwen2_vl":
        return dict(v, embed_dim=c["width"], hidden_size=c["hidden"], mlp_ratio=2, hidden_act="quick_gelu")
    v.update(hidden_size=c["width"], intermediate_size=c["tower_inter"], out_hidden_size=c["hidden"])
    if kind == "qwen2_5_vl":
        return dict(v, hidden_act="silu", window_size=c["window"], fullatt_block_indexes=list(c["full"]), tokens_per_second=c["per_second"])
    return dict(v, hidden_act="gelu_pytorch_tanh", num_position_embeddings=c["table"] ** 2, deepstack_visual_indexes=list(c["deep"]))


def config_json(c):
    kind, third = c["kind"], c["kind"] == "qwen3_vl"
    half = (c["head_dim"] if third else c["hidden"] // c["heads"]) // 2
    sections = c["sections"] or [half - 2 * (half // 3), half // 3, half // 3]
    text = dict(vocab_size=c["vocab"], hidden_size=c["hidden"], intermediate_size=c["inter"], num_hidden_layers=c["layers"],
                num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"], max_position_embeddings=128, rms_norm_eps=1e-5,
                hidden_act="silu", attention_dropout=0.0, use_cache=False)
    if third:
        text["head_dim"] = c["head_dim"]
    rope = dict(mrope_section=sections, **(dict(mrope_interleaved=True) if third else {}))
    if c["style"] == 5:
        text["rope_parameters"] = dict(rope, rope_type="default", rope_theta=10000.0)
    else:
        text.update(rope_theta=10000.0, rope_scaling=dict(rope, type="default" if third else "mrope"))
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[kind]
    out = dict(architectures=[name + "ForConditionalGeneration"], model_type=kind, image_token_id=IMAGE, video_token_id=VIDEO,
               vision_start_token_id=START, vision_end_token_id=END, tie_word_embeddings=c["tied"], vision_config=vision_config(c))
    out["dtype" if c["style"] == 5 else "torch_dtype"] = c["dtype"]
    if c["names"] == "published":
        return {**out, **text}
    return dict(out, text_config=dict(text, model_type=kind + "_text"))


def folder_name(c, name):
    for begin, other in NAMES[c["names"]].items():
        if name.startswith(begin):
            return other + name[len(begin):]
    return name


def write_model(folder, c, generator):
    os.makedirs(folder, exist_ok=True)
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**config_json(c)))
    weights = common.random_weights(model.named_parameters(), c, generator, lambda name: folder_name(c, name), is_norm=lambda name: "norm" in name or "ln_q" in name)
    common.write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})


def load_model(folder, dtype):
    """The reference, only from the folder. Refuses one that does not fill it."""
    model, info = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise SystemExit(f"{folder}: transformers did not load this cleanly: {bad}")
    return model.eval()


def random_row(c, grids, videos, generator):
    """Text, with the tokens of images and videos in it. Qwen3-VL has text between the grids of a video."""
    unit, parts = c["merge"] ** 2, []
    for (t, h, w), video in zip(grids, videos):
        n = t * h * w // unit
        if video and c["kind"] == "qwen3_vl":
            parts.append([x for i in range(t) for x in [3 + i, START] + [VIDEO] * (n // t) + [END]])
        else:
            parts.append([START] + [VIDEO if video else IMAGE] * n + [END])
    free = c["T"] - sum(map(len, parts))
    assert free >= 2, (c["T"], parts)
    words = torch.randint(0, 50, (free,), generator=generator).tolist()
    places = sorted(torch.randint(1, free, (len(parts),), generator=generator).tolist(), reverse=True)
    for p, part in zip(places, reversed(parts)):
        words[p:p] = part
    return words


def random_batch(c, generator):
    # a grid of several frames is a video's, and so is the second of a case with seconds
    seen = [[g[0] > 1 or (bool(c["seconds"]) and i > 0) for i, g in enumerate(row)] for row in c["rows"]]
    ids = torch.tensor([random_row(c, row, v, generator) for row, v in zip(c["rows"], seen)])
    labels = ids.clone()
    labels[(ids >= START)] = IGNORE
    labels[:, :2] = IGNORE
    batch = {}
    if c["padded"]:
        mask = torch.ones_like(ids)
        for b in range(len(ids)):
            plain = (ids[b] < START).tolist()
            left = next(i for i, x in enumerate(plain) if not x) if not all(plain) else 3
            right = next(i for i, x in enumerate(reversed(plain)) if not x) if not all(plain) else 3
            if b % 2:
                mask[b, :min(left, 2)] = 0
            elif right:
                mask[b, len(plain) - min(right, 3):] = 0
        labels[mask == 0] = IGNORE
        batch["attention_mask"] = mask
    dtype = getattr(torch, c["ids"])
    batch.update(input_ids=ids.to(dtype), labels=labels.to(dtype))
    if c["kinds"]:
        batch["mm_token_type_ids"] = ((ids == IMAGE).int() + 2 * (ids == VIDEO).int()).int()
    values = c["channels"] * 2 * c["patch"] ** 2
    for video in (False, True):
        grids = [g for row, v in zip(c["rows"], seen) for g, is_video in zip(row, v) if is_video == video]
        if not grids:
            continue
        thw = torch.tensor(grids, dtype=dtype)
        batch["video_grid_thw" if video else "image_grid_thw"] = thw
        batch["pixel_values_videos" if video else "pixel_values"] = torch.randn((int(thw.prod(-1).sum()), values), generator=generator)
        if video and c["seconds"]:
            batch["second_per_grid_ts"] = torch.tensor(c["seconds"])
    return batch


def outputs(model, batch, dtype):
    """Logits and loss."""
    given = {k: v.long() if k in ("input_ids", "image_grid_thw", "video_grid_thw") else v for k, v in batch.items() if k != "labels"}
    for k in ("pixel_values", "pixel_values_videos"):
        if k in given:
            given[k] = given[k].to(dtype)
    ids = given["input_ids"]
    given["mm_token_type_ids"] = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
    labels, mask = batch["labels"].long(), batch.get("attention_mask")
    if mask is None:
        out = model(labels=labels, use_cache=False, **given)
        return {"logits": out.logits, "loss": out.loss}
    model.set_attn_implementation("sdpa")  # as make_llama.padded_outputs
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = model(labels=labels, use_cache=False, **given)
    return {"logits": torch.where(mask[..., None] == 1, out.logits, torch.nan), "loss": out.loss}


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, dtype)
    return common.backward(outputs(model, batch, dtype), model.named_parameters(), lambda n: folder_name(c, n))


def random_case(r):
    kind = r.choice(["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
    merge, heads = r.choice([1, 2, 2, 3]), r.choice([1, 2, 4])
    half = r.randint(1, 4) * 3
    head_dim = 2 * half if kind == "qwen3_vl" else r.choice([6, 8, 12])
    half = head_dim // 2
    a = r.randint(0, half)
    b = r.randint(0, half - a)
    if kind == "qwen3_vl":  # the pairs of rows and columns lie three apart
        a, b = half - 2 * (half // 3), half // 3
    grid = lambda: (r.choice([1, 1, 1, 2, 3]), merge * r.randint(1, 5), merge * r.randint(1, 5))  # noqa: E731
    rows = tuple(tuple(grid() for _ in range(r.randint(0, 3))) for _ in range(r.randint(1, 3)))
    videos = sum(g[0] > 1 for row in rows for g in row)
    layers = r.randint(1, 4)
    c = case(kind=kind, names="memory" if kind == "qwen3_vl" else r.choice(["published", "memory"]), style=r.choice([4, 5]), tied=r.random() < 0.5,
             heads=heads, kv_heads=r.choice([k for k in (1, 2, 4) if heads % k == 0]), head_dim=head_dim, hidden=heads * (head_dim if kind != "qwen3_vl" else r.randint(3, 9)),
             sections=[a, b, half - a - b], layers=layers, width=(w := r.choice([1, 2, 3])) * r.choice([4, 8, 12]), tower_heads=w, depth=r.randint(1, 4), merge=merge, patch=r.randint(1, 4),
             channels=r.choice([1, 3]), table=r.randint(1, 7), rows=rows, kinds=r.random() < 0.5, padded=r.random() < 0.3, dtype=r.choice(["float32", "bfloat16"]),
             ids=r.choice(["int32", "int64"]), std=r.uniform(0.1, 0.25))
    c["window"] = merge * c["patch"] * r.randint(1, 4)
    c["full"] = tuple(i for i in range(c["depth"]) if r.random() < 0.5)
    c["deep"] = tuple(i for i in range(c["depth"]) if r.random() < 0.5)[:layers]
    if kind == "qwen2_5_vl" and videos and all(g[0] > 1 or i == 0 for row in rows for i, g in enumerate(row)):
        c["seconds"] = tuple(r.uniform(1, 4) for _ in range(videos))
    unit = merge ** 2
    c["T"] = r.randint(5, 15) + max(sum(g[0] * g[1] * g[2] // unit + 2 + 3 * g[0] for g in row) for row in rows)
    return c


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, random_batch, reference, random_case)
