#!/usr/bin/env python3
"""Golden files for `plimsoll step` on Segment Anything, made with PyTorch and transformers.

    python tests/golden/make_sam.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_sam.py --random K --out DIR [--seed N]

Each case is one folder:

    config.json             sam, sam_hq, or sam_vision_model (the encoder alone)
    model.safetensors       random weights under the published names
    batch.safetensors       pixel_values and prompts; multimask_output, hq_token_only and
                            loss_output in the metadata
    expect.safetensors      pred_masks, iou_scores, image_embeddings, loss, grad.<name>

The reference is SamModel.from_pretrained(folder) in float32 with eager attention. With
gt_masks the loss is what training minimises (mask_loss below, written from its definition);
without them it is the mean of the squares of loss_output.

SamHQModel of transformers 5.23 upscales the image embedding as it was before the two-way transformer,
where the authors' code (SysCV/sam-hq, mask_decoder_hq.py) upscales the transformer's result, and it sorts
the candidates by their predicted IoU. hq_forward below does as the authors, from SamHQModel's modules,
and keeps the candidates' order.

SamModel cannot do two things, which are assembled from its modules: an image of another size than
the configuration's (resized below: the absolute position embedding is interpolated; the reference
interpolates relative positions itself), and a mask input for each prompt (one forward of the
decoder each).

The last columns of the printed table are the distance between these float32 numbers
and float64 ones: what a correct implementation may differ by.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
import torch.nn.functional as F
from transformers import SamHQModel, SamModel, SamVisionModel

import common


def case(**changes):
    """A case is a plain dictionary: the model's sizes, how it is written, the batch."""
    base = dict(
        # the encoder; None leaves the key out of config.json
        kind="sam", hidden=12, heads=2, layers=2, inner=16, patch=4, image=20, channels=3, window=3, globals=[1],
        act=None, eps=None, qkv_bias=True, positions=True, relative=True,
        # the rest
        C=16, mask_channels=16, point_kinds=None, decoder_layers=2, decoder_heads=2, decoder_inner=14, downsample=None,
        candidates=None, iou_depth=None, iou_hidden=9, decoder_eps=None, prompt_scale=1, prompt_eps=None,
        dtype="float32", tied_copy=False, std=0.25,
        # the batch; points 0: none; labels None: not given; masks: 0, 1 or "each"; size: of the
        # images, None: the configuration's
        B=2, M=2, points=2, labels=(1, 0, -1, -10), boxes=False, masks=0, single=None, hq_only=None, targets=False, loss_output=None,
        size=None,
    )
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


CASES = {
    # 7 x 7 positions in windows of 3: zeros fill them up to 9 x 9
    "sam_points": case(image=28, layers=3, B=1, decoder_layers=1),
    "sam_boxes": case(image=24, window=4, layers=3, globals=[0, 2], B=1, M=3, points=0, boxes=True, single=True, targets=True,
                      eps=1e-3, decoder_eps=1e-2),
    "sam_both": case(window=4, M=3, points=3, decoder_layers=2, boxes=True, targets=True, qkv_bias=False, candidates=2),
    "sam_target": case(window=4, M=2, points=1, labels=None, targets=True, tied_copy=True),
    "sam_masks": case(window=2, B=1, masks=1, loss_output="iou_scores", prompt_eps=1e-2, single=False),
    "sam_each": case(image=16, window=3, layers=1, globals=[], masks="each", M=3, points=1, targets=True),
    "sam_nothing": case(image=16, layers=1, window=0, globals=[], points=0, M=1, masks=1, B=3, act="relu"),
    "sam_odd": case(hidden=15, heads=3, image=22, patch=5, window=3, layers=2, globals=[1, 7], B=1, M=2, points=4, single=True,
                    C=24, decoder_heads=3, decoder_layers=1, downsample=4, iou_depth=2, candidates=4, point_kinds=5,
                    mask_channels=4, prompt_scale=3, dtype="bfloat16", relative=False, loss_output="image_embeddings"),
    "sam_larger": case(size=28, globals=[0], B=1, M=2, points=1, boxes=True, targets=True),
    "sam_smaller": case(image=28, size=19, window=4, M=2, B=1, points=2, loss_output="pred_masks"),
    "sam_vision": case(kind="vision", globals=[0, 1], B=1),
    # SAM-HQ: features of the first block with global attention
    "samhq_points": case(kind="hq", hidden=8, image=16, layers=3, globals=[1, 2], window=2, decoder_layers=1),
    "samhq_target": case(kind="hq", hidden=8, image=12, size=20, window=3, B=1, M=3, points=1, boxes=True, targets=True,
                         globals=[0], candidates=2),
    "samhq_single": case(kind="hq", hidden=8, image=16, window=2, globals=[0], points=0, boxes=True, single=True, hq_only=True,
                         masks=1, targets=True, dtype="bfloat16"),
}


def vision_config(c):
    out = {
        "model_type": "sam_hq_vision_model" if c["kind"] == "hq" else "sam_vision_model", "hidden_size": c["hidden"], "num_attention_heads": c["heads"],
        "num_hidden_layers": c["layers"], "mlp_dim": c["inner"], "patch_size": c["patch"], "image_size": c["image"],
        "num_channels": c["channels"], "window_size": c["window"], "global_attn_indexes": c["globals"],
        "hidden_act": c["act"], "layer_norm_eps": c["eps"], "output_channels": c["C"], "num_pos_feats": c["C"] // 2,
        "qkv_bias": c["qkv_bias"], "use_abs_pos": c["positions"], "use_rel_pos": c["relative"],
    }
    return {k: v for k, v in out.items() if v is not None}


def config_json(c):
    if c["kind"] == "vision":
        return dict(vision_config(c), architectures=["SamVisionModel"], dtype=c["dtype"])
    sam = "sam_hq" if c["kind"] == "hq" else "sam"
    prompts = {
        "model_type": sam + "_prompt_encoder", "hidden_size": c["C"], "image_size": c["image"] * c["prompt_scale"],
        "patch_size": c["patch"] * c["prompt_scale"], "mask_input_channels": c["mask_channels"],
        "num_point_embeddings": c["point_kinds"], "layer_norm_eps": c["prompt_eps"],
    }
    decoder = {
        "model_type": sam + "_mask_decoder", "hidden_size": c["C"], "mlp_dim": c["decoder_inner"],
        "num_hidden_layers": c["decoder_layers"], "num_attention_heads": c["decoder_heads"],
        "attention_downsample_rate": c["downsample"], "num_multimask_outputs": c["candidates"],
        "iou_head_depth": c["iou_depth"], "iou_head_hidden_dim": c["iou_hidden"], "layer_norm_eps": c["decoder_eps"],
        "vit_dim": c["hidden"] if c["kind"] == "hq" else None,
    }
    return {"architectures": [model_class(c).__name__], "model_type": sam, "dtype": c["dtype"], "vision_config": vision_config(c),
            "prompt_encoder_config": {k: v for k, v in prompts.items() if v is not None},
            "mask_decoder_config": {k: v for k, v in decoder.items() if v is not None}}


def model_class(c):
    return {"sam": SamModel, "hq": SamHQModel, "vision": SamVisionModel}[c["kind"]]


def random_weights(c, config, generator):
    """Normal with c["std"], norms around 1: no gradient is degenerate."""
    out = common.random_weights(model_class(c)(config).named_parameters(), c, generator)
    if c["tied_copy"]:  # as the published folders have it
        name = "shared_image_embedding.positional_embedding"
        out["prompt_encoder.shared_embedding.positional_embedding"] = out[name].clone()
    return out


def write_model(folder, c, generator):
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith((".safetensors", ".json")):
            os.remove(os.path.join(folder, name))
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    config = model_class(c).config_class.from_pretrained(folder)
    common.write_tensors(os.path.join(folder, "model.safetensors"), random_weights(c, config, generator), {"format": "pt"})


def load_model(folder, c, dtype):
    """The reference, only from the folder. Refuses one that does not fill it."""
    model, info = model_class(c).from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise SystemExit(f"{folder}: transformers did not load this cleanly: {bad}")
    return model.eval()


def random_batch(c, generator):
    S, B, M = c["size"] or c["image"], c["B"], c["M"]
    h = 4 * (S // c["patch"])
    batch = {"pixel_values": torch.randn((B, c["channels"], S, S), generator=generator)}
    extent = S * c["prompt_scale"]
    if c["kind"] == "vision":
        return batch
    if c["points"]:
        batch["input_points"] = torch.rand((B, M, c["points"], 2), generator=generator) * extent
        if c["labels"] is not None:
            pick = torch.randint(0, len(c["labels"]), (B, M, c["points"]), generator=generator)
            pick.flatten()[: len(c["labels"])] = torch.arange(len(c["labels"]))[: pick.numel()]
            batch["input_labels"] = torch.tensor(c["labels"])[pick]
    if c["boxes"]:
        batch["input_boxes"] = torch.rand((B, M, 4), generator=generator) * extent
    if c["masks"]:
        batch["input_masks"] = torch.randn((B, M if c["masks"] == "each" else 1, h, h), generator=generator)
    if c["targets"]:
        coarse = torch.randn((B, M, h // 4, h // 4), generator=generator)
        batch["gt_masks"] = (F.interpolate(coarse, size=(h, h), mode="bilinear") > 0).to(torch.uint8)
    return batch


def metadata(c):
    out = {}
    if c["single"] is not None:
        out["multimask_output"] = "false" if c["single"] else "true"
    if c["hq_only"] is not None:
        out["hq_token_only"] = "true" if c["hq_only"] else "false"
    if c["loss_output"]:
        out["loss_output"] = c["loss_output"]
    return out or None


def resized(model, c):
    """The model for images of c["size"]: learned position embeddings interpolated bilinearly."""
    if c["size"] is None:
        return
    grid, encoder = c["size"] // c["patch"], model.vision_encoder
    encoder.patch_embed.image_size = (c["size"], c["size"])
    if encoder.pos_embed is not None:
        learned = encoder.pos_embed
        del encoder.pos_embed
        positions = F.interpolate(learned.permute(0, 3, 1, 2), size=(grid, grid), mode="bilinear", align_corners=False)
        encoder.pos_embed = positions.permute(0, 2, 3, 1)
        encoder.learned = learned  # still a parameter of the model, for its gradient
    model.config.prompt_encoder_config.image_embedding_size = grid
    model.prompt_encoder.image_embedding_size = (grid, grid)
    model.prompt_encoder.input_image_size = c["size"] * c["prompt_scale"]


def parameters(model):
    return {n.replace("vision_encoder.learned", "vision_encoder.pos_embed"): p for n, p in model.named_parameters()}


def hq_forward(model, c, encoded, points, labels, boxes, masks):
    d, image = model.mask_decoder, encoded.last_hidden_state
    B, C, h, w = image.shape
    features = d.encoder_conv2(d.activation(d.encoder_norm(d.encoder_conv1(image))))
    early = encoded.intermediate_embeddings[0].permute(0, 3, 1, 2)
    features = features + d.compress_vit_conv2(d.activation(d.compress_vit_norm(d.compress_vit_conv1(early))))
    if points is not None and labels is None:
        labels = torch.ones_like(points[..., 0], dtype=torch.long)
    prompts, dense = model.prompt_encoder(input_points=points, input_labels=labels, input_boxes=boxes, input_masks=masks)
    M = prompts.shape[1]
    own = torch.cat([d.iou_token.weight, d.mask_tokens.weight, d.hq_token.weight])
    tokens = torch.cat([own.expand(B, M, -1, -1), prompts], 2)
    each = (image + dense).repeat_interleave(M, 0)
    positions = model.get_image_wide_positional_embeddings().repeat(B * M, 1, 1, 1)
    tokens, each = d.transformer(point_embeddings=tokens, image_embeddings=each, image_positional_embeddings=positions,
                                 attention_similarity=None)
    each = each.transpose(2, 3).reshape(B * M, C, h, w)
    maps = d.activation(d.upscale_conv2(d.activation(d.upscale_layer_norm(d.upscale_conv1(each)))))
    finer = d.mask_conv2(d.activation(d.mask_norm(d.mask_conv1(maps)))) + features.repeat_interleave(M, 0)
    first, count = (0, 1) if c["single"] else (1, d.num_multimask_outputs)
    filters = [d.output_hypernetworks_mlps[i](tokens[:, :, 1 + i]) for i in range(first, first + count)]
    high = d.hq_mask_mlp(tokens[:, :, len(own) - 1])[:, :, None] @ finer.reshape(B, M, C // 8, -1)
    logits = high if c["hq_only"] else torch.stack(filters, 2) @ maps.reshape(B, M, C // 8, -1) + high
    iou = d.iou_prediction_head(tokens[:, :, 0])[:, :, first:first + count]
    return dict(pred_masks=logits.reshape(B, M, -1, 4 * h, 4 * w), iou_scores=iou)


def forward(model, c, batch, dtype):
    real = {n: t.to(dtype) for n, t in batch.items() if n not in ("input_labels", "gt_masks")}
    labels = batch.get("input_labels")
    pixels, masks = real.pop("pixel_values"), real.pop("input_masks", None)
    encoded = model.vision_encoder(pixels)
    image = encoded.last_hidden_state
    result = {"image_embeddings": image}
    if c["kind"] == "hq":
        return dict(result, **hq_forward(model, c, encoded, real.get("input_points"), labels, real.get("input_boxes"), masks))
    if c["masks"] != "each":
        out = model(image_embeddings=image, input_labels=labels, input_masks=masks, multimask_output=not c["single"], **real)
        return dict(result, pred_masks=out.pred_masks, iou_scores=out.iou_scores)
    parts = [model(image_embeddings=image, input_labels=None if labels is None else labels[:, m:m + 1],
                   input_masks=masks[:, m:m + 1], multimask_output=not c["single"],
                   **{n: t[:, m:m + 1] for n, t in real.items()}) for m in range(c["M"])]
    return dict(result, pred_masks=torch.cat([p.pred_masks for p in parts], 1),
                iou_scores=torch.cat([p.iou_scores for p in parts], 1))


def mask_loss(logits, iou, target, focal=20.0, dice=1.0, score=1.0, alpha=0.25, gamma=2.0, smooth=1.0):
    """Logits [B,M,K,h,w], scores [B,M,K], target [B,M,h,w]: of each mask the candidate with
    the smallest loss; the mean over masks."""
    g = target.to(logits.dtype)[:, :, None].expand_as(logits)
    p = logits.sigmoid()
    p_t, alpha_t = p * g + (1 - p) * (1 - g), alpha * g + (1 - alpha) * (1 - g)
    bce = F.binary_cross_entropy_with_logits(logits, g, reduction="none")
    focal_k = (alpha_t * (1 - p_t) ** gamma * bce).mean((-1, -2))
    dice_k = 1 - (2 * (p * g).sum((-1, -2)) + smooth) / (p.sum((-1, -2)) + g.sum((-1, -2)) + smooth)
    each = focal * focal_k + dice * dice_k
    best = each.argmin(-1, keepdim=True)
    on = (logits > 0).to(logits.dtype)
    meet, join = (on * g).sum((-1, -2)), ((on + g) > 0).to(logits.dtype).sum((-1, -2))
    true = meet / join.clamp_min(1)
    total = each + score * (iou - true) ** 2
    return total.gather(-1, best).mean()


def outputs(model, c, batch, dtype):
    if c["kind"] == "vision":
        result = {"last_hidden_state": model(batch["pixel_values"].to(dtype)).last_hidden_state}
        result["loss"] = result["last_hidden_state"].pow(2).mean()
    else:
        resized(model, c)
        result = forward(model, c, batch, dtype)
        if c["targets"]:
            result["loss"] = mask_loss(result["pred_masks"], result["iou_scores"], batch["gt_masks"])
        else:
            result["loss"] = result[c["loss_output"] or "pred_masks"].pow(2).mean()
    return result



def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    return common.backward(outputs(model, c, batch, dtype), parameters(model).items())


def random_case(r):
    """A random odd model with random prompts."""
    heads, decoder_heads, layers = r.randint(1, 4), r.choice([1, 2, 3]), r.randint(1, 4)
    patch = r.randint(2, 7)
    image = patch * r.randint(2, 8) + r.randint(0, patch - 1)
    points, boxes, masks = r.choice([0, 1, 2, 5]), r.random() < 0.4, r.choice([0, 0, 0, 1, "each"])
    asked = points or boxes
    targets = r.random() < 0.5
    return case(
        hidden=heads * r.randint(4, 9), heads=heads, layers=layers, inner=r.randint(3, 50), patch=patch, image=image,
        channels=r.choice([3, 3, 1]), window=r.choice([0, 2, 3, 4, 5, 14]),
        globals=sorted(r.sample(range(layers), r.randint(0, layers))), act=r.choice([None, "gelu", "relu", "gelu_new"]),
        eps=r.choice([None, 1e-4, 1e-2]), qkv_bias=r.random() < 0.8, positions=r.random() < 0.8, relative=r.random() < 0.8,
        C=8 * decoder_heads * r.randint(1, 3), mask_channels=r.choice([12, 16, 24]), decoder_layers=r.randint(1, 3),
        decoder_heads=decoder_heads, decoder_inner=r.randint(3, 40), downsample=r.choice([None, 1, 2, 4]),
        candidates=r.choice([None, 1, 3, 5]), iou_depth=r.choice([None, 2, 3, 5]), iou_hidden=r.randint(3, 30),
        prompt_scale=r.choice([1, 1, 2]), dtype=r.choice(["float32", "float32", "bfloat16"]), tied_copy=r.random() < 0.3,
        B=r.randint(1, 3), M=r.randint(1, 4) if asked else 1, points=points, boxes=boxes,
        labels=r.choice([None, (1, 0), (1, 0, -1, -10)]), masks=masks if asked or masks == 0 else 1,
        single=r.choice([None, True, False]), targets=targets,
        loss_output=None if targets else r.choice([None, "pred_masks", "iou_scores", "image_embeddings"]),
        size=r.choice([None, None, patch * r.randint(2, 9) + r.randint(0, patch - 1)]))


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, random_batch, reference, random_case, "sam", metadata)
