#!/usr/bin/env python3
"""Golden files for `plimsoll step` on SAM 2 for images, made with PyTorch and transformers.

    python tests/golden/make_sam2.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_sam2.py --random K --out DIR [--seed N]

Each case is one folder:

    config.json             sam2
    model.safetensors       random weights under the published names
    batch.safetensors       pixel_values and prompts; multimask_output and loss_output in
                            the metadata
    flags                   --set loss.preset, where it is not sam
    expect.safetensors      pred_masks, iou_scores, object_score_logits, image_embeddings.0 to .2,
                            loss, grad.<name>

The reference is Sam2Model.from_pretrained(folder) in float32 with eager attention, in training mode:
multimask_output false gives the first mask, and no other one where that is unstable. With gt_masks
the loss is that of make_sam.py, or with `loss` that of SAM 2's own training; without them it is the mean
of the squares of loss_output.

Sam2Model cannot do two things, which are assembled from its modules: an image of another size than
the configuration's, and a mask input for each prompt (one forward of the decoder each).
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
import torch.nn.functional as F
from transformers import Sam2Model

import common
from make_sam import mask_loss, metadata

FREQUENCIES = "shared_image_embedding.positional_embedding"
SECOND_FREQUENCIES = "prompt_encoder.shared_embedding.positional_embedding"


def case(**changes):
    """A case is a plain dictionary: the model's sizes, how it is written, the batch."""
    base = dict(
        # the encoder; None leaves the key out of config.json
        image=64, channels=3, kernel=7, stride=4, pad=3, widths=(6, 8, 12, 16), heads=(1, 2, 3, 2), blocks=(1, 2, 2, 1),
        windows=(4, 2, 6, 3), globals=(4,), background=(3, 3), mlp_ratio=2.0, act=None, eps=None, top_down=None,
        # the rest
        C=16, mask_channels=16, point_kinds=None, decoder_layers=2, decoder_heads=2, decoder_inner=14, downsample=None,
        candidates=None, iou_depth=None, iou_hidden=9, prompt_eps=None, dtype="float32", std=0.25,
        # the batch, as in make_sam.py
        B=1, M=2, points=2, labels=(1, 0, -1, -10), boxes=False, masks=0, single=None, targets=False, loss_output=None,
        size=None, loss="sam", video=False,
    )
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


CASES = {
    # windows of 4 and 2 that fill the map, of 6 on a map of 4, and of 3 on one of 2
    "sam2_points": case(),
    "sam2_target": case(B=2, M=2, points=1, labels=None, targets=True, image=32, windows=(2, 4, 2, 5), std=0.2),
    "sam2_boxes": case(image=32, windows=(8, 4, 14, 7), points=0, boxes=True, M=3, single=True, targets=True, globals=(2, 4)),
    "sam2_both": case(image=32, windows=(2, 2, 4, 2), globals=(), points=3, boxes=True, candidates=2, loss_output="iou_scores"),
    "sam2_masks": case(image=32, windows=(2, 2, 2, 2), masks=1, loss_output="object_score_logits", prompt_eps=1e-2, single=False),
    "sam2_each": case(image=32, windows=(2, 2, 2, 2), masks="each", M=2, points=1, targets=True, blocks=(1, 1, 1, 1)),
    "sam2_nothing": case(image=32, windows=(8, 4, 2, 1), points=0, M=1, B=2, act="relu", loss_output="image_embeddings.0"),
    # maps of 24, 12, 6 and 3 in windows of 8, 4, 14 and 7; the widths of heads are odd
    "sam2_odd": case(image=48, kernel=3, stride=2, pad=1, widths=(7, 10, 15, 25), heads=(1, 2, 3, 5), blocks=(2, 1, 2, 2),
                     windows=(8, 4, 14, 7), globals=(1, 4), background=(5, 3), mlp_ratio=2.5, eps=1e-3, top_down=(1, 2, 3),
                     C=24, decoder_heads=3, downsample=4, candidates=4, iou_depth=2, mask_channels=4, point_kinds=5,
                     dtype="bfloat16", loss_output="image_embeddings.2", std=0.2),
    # the loss of SAM 2's training; one target has no pixel
    "sam2_loss": case(image=32, windows=(2, 2, 2, 2), targets=True, loss="sam2", M=3, blocks=(1, 1, 1, 1)),
    "sam2_loss_single": case(image=32, windows=(2, 2, 2, 2), targets=True, loss="sam2", single=True, M=3, B=2, points=1,
                             blocks=(1, 1, 1, 1)),
    # a folder for videos
    "sam2_video": case(image=32, windows=(2, 2, 2, 2), blocks=(1, 1, 1, 1), points=1, video=True),
    "sam2_larger": case(image=32, size=64, windows=(2, 4, 2, 3), points=1, boxes=True, targets=True, M=1, channels=1),
}


def config_json(c):
    def given(**keys):
        return {k: v for k, v in keys.items() if v is not None}

    side = c["image"] // c["stride"]
    backbone = given(
        model_type="sam2_hiera_det_model", hidden_size=c["widths"][0], num_attention_heads=c["heads"][0],
        num_channels=c["channels"], image_size=[c["image"]] * 2, patch_kernel_size=[c["kernel"]] * 2,
        patch_stride=[c["stride"]] * 2, patch_padding=[c["pad"]] * 2, query_stride=[2, 2],
        window_positional_embedding_background_size=list(c["background"]), num_query_pool_stages=3,
        blocks_per_stage=list(c["blocks"]), embed_dim_per_stage=list(c["widths"]),
        num_attention_heads_per_stage=list(c["heads"]), window_size_per_stage=list(c["windows"]),
        global_attention_blocks=list(c["globals"]), mlp_ratio=c["mlp_ratio"], hidden_act=c["act"], layer_norm_eps=c["eps"])
    vision = given(
        model_type="sam2_vision_model", backbone_config=backbone, backbone_channel_list=list(c["widths"][::-1]),
        backbone_feature_sizes=[[side >> i] * 2 for i in range(3)], fpn_hidden_size=c["C"],
        fpn_top_down_levels=None if c["top_down"] is None else list(c["top_down"]), num_feature_levels=3)
    prompts = given(
        model_type="sam2_prompt_encoder", hidden_size=c["C"], image_size=c["image"], patch_size=4 * c["stride"],
        mask_input_channels=c["mask_channels"], num_point_embeddings=c["point_kinds"], layer_norm_eps=c["prompt_eps"])
    decoder = given(
        model_type="sam2_mask_decoder", hidden_size=c["C"], mlp_dim=c["decoder_inner"],
        num_hidden_layers=c["decoder_layers"], num_attention_heads=c["decoder_heads"],
        attention_downsample_rate=c["downsample"], num_multimask_outputs=c["candidates"], iou_head_depth=c["iou_depth"],
        iou_head_hidden_dim=c["iou_hidden"])
    name, kind = ("Sam2VideoModel", "sam2_video") if c["video"] else ("Sam2Model", "sam2")
    return {"architectures": [name], "model_type": kind, "dtype": c["dtype"], "vision_config": vision,
            "prompt_encoder_config": prompts, "mask_decoder_config": decoder}


def random_weights(c, config, generator):
    """Normal with c["std"], norms around 1: no gradient is degenerate."""
    out = {}
    for name, p in Sam2Model(config).state_dict().items():
        w = torch.randn(p.shape, generator=generator) * (1 if name.endswith("positional_embedding") else c["std"])
        if "norm" in name and name.endswith(".weight"):
            w += 1
        out[name] = w.to(getattr(torch, c["dtype"]))
    out[SECOND_FREQUENCIES] = out[FREQUENCIES].clone()  # as the published folders have it
    if c["video"]:  # some of what the reference leaves out
        for name, shape in (("memory_temporal_positional_encoding", (7, 1, 1, 4)), ("no_object_pointer", (1, c["C"])),
                            ("memory_attention.layer_norm.weight", (c["C"],)), ("mask_downsample.weight", (1, 1, 4, 4))):
            out[name] = torch.randn(shape, generator=generator).to(getattr(torch, c["dtype"]))
    return out


def write_config(folder, c, config):
    """Makes the folder and its configuration, and the file `flags`."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith((".safetensors", ".json")):
            os.remove(os.path.join(folder, name))
    common.write_json(os.path.join(folder, "config.json"), config)
    if c["loss"] != "sam":
        with open(os.path.join(folder, "flags"), "w") as f:
            f.write(f"--set loss.preset={c['loss']}\n")


def write_model(folder, c, generator):
    write_config(folder, c, config_json(c))
    config = Sam2Model.config_class.from_pretrained(folder)
    common.write_tensors(os.path.join(folder, "model.safetensors"), random_weights(c, config, generator), {"format": "pt"})


def load_checked(kind, folder, dtype, ignored=None):
    """A model, only from the folder. Refuses one that does not fill it."""
    model, info = kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v and k != ignored}
    if bad:
        raise SystemExit(f"{folder}: transformers did not load this cleanly: {bad}")
    return model


def load_model(folder, c, dtype):
    return load_checked(Sam2Model, folder, dtype, "unexpected_keys" if c["video"] else None).train()


def random_masks(shape, coarse, side, generator):
    """Masks [...,side,side] of blobs as large as the pixels of a coarse map."""
    blobs = torch.randn((*shape, coarse, coarse), generator=generator)
    return (F.interpolate(blobs, size=(side, side), mode="bilinear") > 0).to(torch.uint8)


def random_batch(c, generator):
    S, B, M = c["size"] or c["image"], c["B"], c["M"]
    h = S // c["stride"]
    batch = {"pixel_values": torch.randn((B, c["channels"], S, S), generator=generator)}
    if c["points"]:
        batch["input_points"] = torch.rand((B, M, c["points"], 2), generator=generator) * S
        if c["labels"] is not None:
            pick = torch.randint(0, len(c["labels"]), (B, M, c["points"]), generator=generator)
            pick.flatten()[: len(c["labels"])] = torch.arange(len(c["labels"]))[: pick.numel()]
            batch["input_labels"] = torch.tensor(c["labels"])[pick]
    if c["boxes"]:
        batch["input_boxes"] = torch.rand((B, M, 4), generator=generator) * S
    if c["masks"]:
        batch["input_masks"] = torch.randn((B, M if c["masks"] == "each" else 1, h, h), generator=generator)
    if c["targets"]:
        batch["gt_masks"] = random_masks((B, M), h // 4, h, generator)
        if c["loss"] == "sam2":
            batch["gt_masks"][0, 1] = 0
    return batch


def resized(model, c):
    """The model for images of c["size"]."""
    if c["size"] is None:
        return
    side = c["size"] // c["stride"]
    model.backbone_feature_sizes = [[side >> i] * 2 for i in range(3)]
    model.prompt_encoder.image_embedding_size = (side // 4, side // 4)
    model.prompt_encoder.mask_input_size = (side, side)
    model.prompt_encoder.input_image_size = c["size"]


def forward(model, c, batch, dtype):
    real = {n: t.to(dtype) for n, t in batch.items() if n not in ("input_labels", "gt_masks")}
    labels, many = batch.get("input_labels"), not c["single"]
    masks = real.pop("input_masks", None)
    if c["masks"] != "each":
        out = model(input_labels=labels, input_masks=masks, multimask_output=many, **real)
        parts, images = [out], out.image_embeddings
    else:
        first = model(pixel_values=real.pop("pixel_values"))
        images = first.image_embeddings
        parts = [model(image_embeddings=list(images), input_labels=None if labels is None else labels[:, m:m + 1],
                       input_masks=masks[:, m:m + 1], multimask_output=many,
                       **{n: t[:, m:m + 1] for n, t in real.items()}) for m in range(c["M"])]
    result = {f"image_embeddings.{i}": x for i, x in enumerate(images)}
    for name in ("pred_masks", "iou_scores", "object_score_logits"):
        result[name] = torch.cat([p[name] for p in parts], 1)
    return result


def sam2_loss(result, target):
    """MultiStepMultiMasksAndIous of facebookresearch/sam2 for one step, with the options of its configurations of
    training: weights of 20, 1, 1 and 1, supervise_all_iou, iou_use_l1_loss, pred_obj_scores."""
    logits, g = result["pred_masks"].flatten(3), target.to(result["pred_masks"].dtype).flatten(2)[:, :, None]
    g = g.expand_as(logits)
    p = logits.sigmoid()
    p_t, alpha_t = p * g + (1 - p) * (1 - g), 0.25 * g + 0.75 * (1 - g)
    focal = (alpha_t * (1 - p_t) ** 2 * F.binary_cross_entropy_with_logits(logits, g, reduction="none")).mean(-1)
    dice = 1 - (2 * (p * g).sum(-1) + 1) / (p.sum(-1) + g.sum(-1) + 1)
    on = (logits > 0).to(logits.dtype)
    iou = (on * g).sum(-1) / ((on + g) > 0).to(logits.dtype).sum(-1).clamp_min(1)
    masks = (20 * focal + dice).amin(-1)
    scores = (result["iou_scores"] - iou).abs().mean(-1)
    present = (target.flatten(2) > 0).any(-1).to(logits.dtype)
    object_loss = F.binary_cross_entropy_with_logits(result["object_score_logits"][..., 0], present, reduction="none")
    return ((masks + scores) * present + object_loss).mean()


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    resized(model, c)
    result = forward(model, c, batch, dtype)
    if c["targets"] and c["loss"] == "sam2":
        result["loss"] = sam2_loss(result, batch["gt_masks"])
    elif c["targets"]:
        result["loss"] = mask_loss(result["pred_masks"], result["iou_scores"], batch["gt_masks"])
    else:
        result["loss"] = result[c["loss_output"] or "pred_masks"].pow(2).mean()
    return common.backward(result, model.named_parameters())


def random_case(r):
    """A random odd model with random prompts."""
    decoder_heads, stride = r.choice([1, 2, 3]), r.choice([2, 4])
    kernel, pad = r.choice([(stride, 0), (stride + 1, 1), (7, 3)] if stride == 4 else [(2, 0), (3, 1)])
    windows = (r.choice([2, 4, 8]), r.choice([2, 4, 6]), r.choice([2, 4, 14]), r.randint(1, 7))
    heads = [r.randint(1, 3) for _ in range(4)]
    widths = []
    for h in heads:
        widths.append(h * r.randint(3, 6))
        while len(widths) > 1 and widths[-1] == widths[-2]:
            widths[-1] += h
    blocks = tuple(r.randint(1, 3) for _ in range(4))
    firsts = [sum(blocks[:i]) for i in range(1, 4)]  # the reference pools within windows only
    inner = [i for i in range(sum(blocks)) if i not in firsts]
    unit = 8 * stride
    points, boxes, masks = r.choice([0, 1, 2, 5]), r.random() < 0.4, r.choice([0, 0, 0, 1, "each"])
    asked = points or boxes
    targets = r.random() < 0.5
    return case(
        image=unit * r.randint(1, 3), channels=r.choice([3, 3, 1]), kernel=kernel, stride=stride, pad=pad, widths=tuple(widths),
        heads=tuple(heads), blocks=blocks, windows=windows, globals=tuple(sorted(r.sample(inner, min(len(inner), r.randint(0, 2))))),
        background=(r.randint(1, 7), r.randint(1, 7)), mlp_ratio=r.choice([1.0, 2.0, 3.5]), act=r.choice([None, "gelu", "relu"]),
        eps=r.choice([None, 1e-4, 1e-2]), top_down=r.choice([None, (2, 3), (1, 2), (0, 1, 2, 3), ()]),
        C=8 * decoder_heads * r.randint(1, 3), mask_channels=r.choice([12, 16, 24]), decoder_layers=r.choice([2, 2, 3]),
        decoder_heads=decoder_heads, decoder_inner=r.randint(3, 40), downsample=r.choice([None, 1, 2, 4]),
        candidates=r.choice([None, 1, 3, 5]), iou_depth=r.choice([None, 2, 3, 5]), iou_hidden=r.randint(3, 30),
        dtype=r.choice(["float32", "float32", "bfloat16"]), B=r.randint(1, 3), M=r.randint(1, 4) if asked else 1,
        points=points, boxes=boxes, labels=r.choice([None, (1, 0), (1, 0, -1, -10)]), masks=masks if asked or masks == 0 else 1,
        single=r.choice([None, True, False]), targets=targets,
        loss_output=None if targets else r.choice([None, "pred_masks", "iou_scores", "object_score_logits", "image_embeddings.1"]),
        size=r.choice([None, None, unit * r.randint(1, 4)]))


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, random_batch, reference, random_case, "sam2", metadata)
