#!/usr/bin/env python3
"""Golden files for `plimsoll step` on TinySAM, made with PyTorch.

    python tests/golden/make_tinyvit.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_tinyvit.py --random K --out DIR [--seed N]

transformers has no class for it, so the reference is written here from its description: TinyViT, and SAM's prompt
encoder and mask decoder, with modules named so that state_dict() has the published names. Each case is one folder:

    config.json             tinysam
    model.safetensors       random weights and statistics under the published names, with the buffers
                            that checkpoints hold (num_batches_tracked)
    batch.safetensors       pixel_values and prompts, as for make_sam.py
    expect.safetensors      pred_masks, iou_scores, image_embeddings, loss, grad.<name>
    flags                   only where statistics are taken over groups of images: what `step` is given
    running.safetensors     there as well: the running statistics behind that step

Statistics over groups: images go through the normalisation group by group, in order, each with
its own statistics; so the running ones move once for each group.

The last columns of the printed table are the distance between these float32 numbers and
float64 ones.
"""
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import common
from make_sam import mask_loss, metadata


def case(**changes):
    base = dict(
        dims=(8, 12, 16, 20), depths=(1, 1, 2, 1), heads=(1, 2, 2, 4), windows=(3, 3, 4, 2), ratio=2, expand=2, image=48, channels=3,
        classes=3, C=16, mask_channels=16, decoder_layers=2, decoder_heads=2, decoder_inner=14, candidates=3, iou_hidden=9,
        nested=False, dtype="float32", std=0.25,
        # the batch, as in make_sam.py; group: images that share statistics, 0: the running ones
        B=2, M=2, points=2, labels=(1, 0, -1), boxes=False, masks=0, single=None, targets=False, loss_output=None, size=None, group=0,
    )
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


CASES = {
    # maps of 12, 6, 3 and 3 positions: windows of 3 fill the first with attention, 4 and 2 fill up
    "tinyvit_points": case(),
    "tinyvit_boxes": case(points=0, boxes=True, M=3, B=1, single=True, targets=True, classes=0, nested=True, dims=(6, 10, 10, 8),
                          heads=(1, 5, 1, 2), windows=(5, 4, 5, 7), ratio=1.5, expand=3, depths=(2, 1, 1, 2)),
    "tinyvit_size": case(size=80, M=1, B=1, boxes=True, targets=True, depths=(1, 2, 1, 1)),
    "tinyvit_masks": case(masks=1, B=1, loss_output="iou_scores", image=32, dtype="bfloat16", windows=(4, 3, 3, 3)),
    "tinyvit_train": case(B=4, group=2, M=1, targets=True, image=32),
    "tinyvit_each": case(B=3, group=1, M=2, points=1, image=32, loss_output="image_embeddings", depths=(2, 1, 1, 1), decoder_layers=1),
}


# --- the encoder ------------------------------------------------------------------------------


class GroupNorm(nn.BatchNorm2d):
    """Batch normalisation whose statistics are those of `group` images; 0: the running ones."""
    group = 0

    def forward(self, x):
        if not self.group:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, self.momentum, self.eps)
        return torch.cat([F.batch_norm(part, self.running_mean, self.running_var, self.weight, self.bias, True, self.momentum, self.eps)
                          for part in x.split(self.group)])


class ConvBN(nn.Module):
    def __init__(self, i, o, k=1, stride=1, groups=1):
        super().__init__()
        self.c = nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False)
        self.bn = GroupNorm(o)

    def forward(self, x):
        return self.bn(self.c(x))


class Inverted(nn.Module):
    """conv1, conv2, conv3 of an MBConv (with its shortcut) and of a merge."""

    def __init__(self, i, inner, o, stride, shortcut):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = ConvBN(i, inner), ConvBN(inner, inner, 3, stride, inner), ConvBN(inner, o)
        self.shortcut = shortcut

    def forward(self, x):
        y = self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x)))))
        return F.gelu(x + y) if self.shortcut else y


class Attention(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.d = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))
        # the table's order is the one in which pairs of positions first show a distance
        positions = [(y, x) for y in range(window) for x in range(window)]
        order, index = {}, []
        for a in positions:
            for b in positions:
                index.append(order.setdefault((abs(a[0] - b[0]), abs(a[1] - b[1])), len(order)))
        self.register_buffer("attention_bias_idxs", torch.tensor(index).view(len(positions), len(positions)), persistent=False)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, t, self.heads, 3 * self.d).split(self.d, -1)
        scores = torch.einsum("nihd,njhd->nhij", q, k) * self.d ** -0.5 + self.attention_biases[:, self.attention_bias_idxs]
        return self.proj(torch.einsum("nhij,njhd->nihd", scores.softmax(-1), v).reshape(n, t, c))


class MLP(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(self.norm(x))))


class Block(nn.Module):
    def __init__(self, width, heads, window, ratio):
        super().__init__()
        self.window = window
        self.attn = Attention(width, heads, window)
        self.local_conv = ConvBN(width, width, 3, groups=width)
        self.mlp = MLP(width, int(width * ratio))

    def attend(self, x):
        b, c, h, _ = x.shape
        w, n = self.window, -(-h // self.window)
        x = F.pad(x, (0, n * w - h, 0, n * w - h))  # zeros, before the norm
        x = x.view(b, c, n, w, n, w).permute(0, 2, 4, 3, 5, 1).reshape(b * n * n, w * w, c)
        x = self.attn(x).view(b, n, n, w, w, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, n * w, n * w)
        return x[:, :, :h, :h]

    def forward(self, x):
        x = self.local_conv(x + self.attend(x))
        return x + self.mlp(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Stage(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        width = c["dims"][i]
        self.blocks = nn.ModuleList(
            Block(width, c["heads"][i], c["windows"][i], c["ratio"]) if i else Inverted(width, int(width * c["expand"]), width, 1, True)
            for _ in range(c["depths"][i]))
        if i + 1 < len(c["dims"]):
            following = c["dims"][i + 1]
            stride = 1 if following in (320, 448, 576) or i + 2 == len(c["dims"]) else 2
            self.downsample = Inverted(width, following, following, stride, False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.downsample(x) if hasattr(self, "downsample") else x


class LayerNorm2d(nn.Module):
    def __init__(self, C):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C))

    def forward(self, x):
        return F.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, 1e-6).permute(0, 3, 1, 2)


class PatchEmbed(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.seq = nn.Sequential(ConvBN(channels, width // 2, 3, 2), nn.GELU(), ConvBN(width // 2, width, 3, 2))

    def forward(self, x):
        return self.seq(x)


class TinyViT(nn.Module):
    def __init__(self, c):
        super().__init__()
        last = c["dims"][-1]
        self.patch_embed = PatchEmbed(c["channels"], c["dims"][0])
        self.layers = nn.ModuleList(Stage(c, i) for i in range(len(c["dims"])))
        if c["classes"]:
            self.norm_head, self.head = nn.LayerNorm(last), nn.Linear(last, c["classes"])
        self.neck = nn.Sequential(nn.Conv2d(last, c["C"], 1, bias=False), LayerNorm2d(c["C"]),
                                  nn.Conv2d(c["C"], c["C"], 3, padding=1, bias=False), LayerNorm2d(c["C"]))

    def forward(self, x):
        x = self.patch_embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.neck(x)


# --- prompts -------------------------------------------------------------------------------


class Positions(nn.Module):
    def __init__(self, half):
        super().__init__()
        self.register_buffer("positional_encoding_gaussian_matrix", torch.randn(2, half))

    def forward(self, at):
        """Positions in 0..1, x before y."""
        angle = 2 * math.pi * ((2 * at - 1) @ self.positional_encoding_gaussian_matrix)
        return torch.cat([angle.sin(), angle.cos()], -1)


class PromptEncoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        C, m = c["C"], c["mask_channels"]
        self.pe_layer = Positions(C // 2)
        self.point_embeddings = nn.ModuleList(nn.Embedding(1, C) for _ in range(4))
        self.not_a_point_embed = nn.Embedding(1, C)
        self.mask_downscaling = nn.Sequential(nn.Conv2d(1, m // 4, 2, 2), LayerNorm2d(m // 4), nn.GELU(),
                                              nn.Conv2d(m // 4, m, 2, 2), LayerNorm2d(m), nn.GELU(), nn.Conv2d(m, C, 1))
        self.no_mask_embed = nn.Embedding(1, C)

    def grid(self, n):
        at = (torch.arange(n, dtype=self.no_mask_embed.weight.dtype) + 0.5) / n
        return self.pe_layer(torch.stack([at[None, :].expand(n, n), at[:, None].expand(n, n)], -1))

    def point(self, at, label):
        if label == -1:
            return self.not_a_point_embed.weight[0]
        return self.pe_layer(at) + self.point_embeddings[label].weight[0]

    def tokens(self, points, labels, box, side):
        """The prompt of one mask: [n,C]."""
        out = []
        if points is not None:
            out += [self.point((p + 0.5) / side, int(label)) for p, label in zip(points, labels)]
            if box is None:
                out.append(self.not_a_point_embed.weight[0])
        if box is not None:
            corners = self.pe_layer((box.view(2, 2) + 0.5) / side)
            out += [corners[0] + self.point_embeddings[2].weight[0], corners[1] + self.point_embeddings[3].weight[0]]
        return torch.stack(out)


# --- decoder -------------------------------------------------------------------------------


class Look(nn.Module):
    def __init__(self, C, heads, downsample):
        super().__init__()
        inner = C // downsample
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(C, inner), nn.Linear(C, inner), nn.Linear(C, inner)
        self.out_proj = nn.Linear(inner, C)

    def forward(self, q, k, v):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
                   for p, x in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v)))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return self.out_proj((scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2))


class Lin(nn.Module):
    def __init__(self, C, inner):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(C, inner), nn.Linear(inner, C)

    def forward(self, x):
        return self.lin2(F.relu(self.lin1(x)))


class TwoWayLayer(nn.Module):
    def __init__(self, C, heads, inner):
        super().__init__()
        self.self_attn = Look(C, heads, 1)
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(C) for _ in range(4))
        self.cross_attn_token_to_image = Look(C, heads, 2)
        self.mlp = Lin(C, inner)
        self.cross_attn_image_to_token = Look(C, heads, 2)

    def forward(self, t, keys, t0, positions, first):
        t = self.norm1(self.self_attn(t, t, t) if first else t + self.self_attn(t + t0, t + t0, t))
        t = self.norm2(t + self.cross_attn_token_to_image(t + t0, keys + positions, keys))
        t = self.norm3(t + self.mlp(t))
        keys = self.norm4(keys + self.cross_attn_image_to_token(keys + positions, t + t0, t))
        return t, keys


class TwoWay(nn.Module):
    def __init__(self, c):
        super().__init__()
        C, heads = c["C"], c["decoder_heads"]
        self.layers = nn.ModuleList(TwoWayLayer(C, heads, c["decoder_inner"]) for _ in range(c["decoder_layers"]))
        self.final_attn_token_to_image = Look(C, heads, 2)
        self.norm_final_attn = nn.LayerNorm(C)

    def forward(self, t, keys, positions):
        t0 = t
        for i, layer in enumerate(self.layers):
            t, keys = layer(t, keys, t0, positions, i == 0)
        return self.norm_final_attn(t + self.final_attn_token_to_image(t + t0, keys + positions, keys)), keys


class Layers(nn.Module):
    def __init__(self, *widths):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class MaskDecoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        C, n = c["C"], c["candidates"] + 1
        self.transformer = TwoWay(c)
        self.iou_token, self.mask_tokens = nn.Embedding(1, C), nn.Embedding(n, C)
        self.output_upscaling = nn.Sequential(nn.ConvTranspose2d(C, C // 4, 2, 2), LayerNorm2d(C // 4), nn.GELU(),
                                              nn.ConvTranspose2d(C // 4, C // 8, 2, 2), nn.GELU())
        self.output_hypernetworks_mlps = nn.ModuleList(Layers(C, C, C, C // 8) for _ in range(n))
        self.iou_prediction_head = Layers(C, c["iou_hidden"], c["iou_hidden"], n)

    def forward(self, image, dense, positions, prompt):
        """One prompt: image, dense and positions [C,g,g], prompt [n,C]."""
        t = torch.cat([self.iou_token.weight, self.mask_tokens.weight, prompt])
        keys = (image + dense).flatten(1).T
        t, keys = self.transformer(t, keys, positions.flatten(1).T)
        maps = self.output_upscaling(keys.T.view(1, *image.shape))[0]
        filters = torch.stack([mlp(t[1 + i]) for i, mlp in enumerate(self.output_hypernetworks_mlps)])
        return torch.einsum("kc,chw->khw", filters, maps), self.iou_prediction_head(t[0])


class TinySAM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.image_encoder, self.prompt_encoder, self.mask_decoder = TinyViT(c), PromptEncoder(c), MaskDecoder(c)


# --- cases ------------------------------------------------------------------------------------


def config_json(c):
    vision = {"image_size": c["image"], "embed_dims": c["dims"], "depths": c["depths"], "num_heads": c["heads"],
              "window_sizes": c["windows"], "mlp_ratio": c["ratio"], "mbconv_expand_ratio": c["expand"], "num_classes": c["classes"]}
    out = {"architectures": ["TinySam"], "model_type": "tinysam", "dtype": c["dtype"]}
    out.update({"vision_config": vision} if c["nested"] else vision)
    out["prompt_encoder_config"] = {"hidden_size": c["C"], "image_size": c["image"], "patch_size": 16,
                                    "mask_input_channels": c["mask_channels"]}
    out["mask_decoder_config"] = {"hidden_size": c["C"], "mlp_dim": c["decoder_inner"], "num_hidden_layers": c["decoder_layers"],
                                  "num_attention_heads": c["decoder_heads"], "num_multimask_outputs": c["candidates"],
                                  "iou_head_hidden_dim": c["iou_hidden"]}
    return out


def random_weights(c, generator):
    """Normal with c["std"], scales and variances around 1: no gradient is degenerate."""
    model, out = TinySAM(c), {}
    scales = {n + ".weight" for n, m in model.named_modules() if isinstance(m, (nn.LayerNorm, LayerNorm2d, nn.BatchNorm2d))}
    for name, t in model.state_dict().items():
        if not t.is_floating_point():
            out[name] = t
            continue
        w = torch.randn(t.shape, generator=generator) * c["std"]
        w = w.abs() + 0.75 if name.endswith("running_var") else w + 1 if name in scales else w
        out[name] = w.to(getattr(torch, c["dtype"]))
    return out


def random_batch(c, generator):
    S, B, M = c["size"] or c["image"], c["B"], c["M"]
    h = S // 4
    batch = {"pixel_values": torch.randn((B, c["channels"], S, S), generator=generator)}
    if c["points"]:
        batch["input_points"] = torch.rand((B, M, c["points"], 2), generator=generator) * S
        batch["input_labels"] = torch.tensor(c["labels"])[torch.randint(0, len(c["labels"]), (B, M, c["points"]), generator=generator)]
    if c["boxes"]:
        batch["input_boxes"] = torch.rand((B, M, 4), generator=generator) * S
    if c["masks"]:
        batch["input_masks"] = torch.randn((B, 1, h, h), generator=generator)
    if c["targets"]:
        coarse = torch.randn((B, M, h // 4, h // 4), generator=generator)
        batch["gt_masks"] = (F.interpolate(coarse, size=(h, h), mode="bilinear") > 0).to(torch.uint8)
    return batch


def forward(model, c, batch, dtype):
    real = {n: t.to(dtype) for n, t in batch.items() if n not in ("input_labels", "gt_masks")}
    side, encoder = batch["pixel_values"].shape[-1], model.prompt_encoder
    images = model.image_encoder(real["pixel_values"])
    grid = images.shape[-1]
    positions = encoder.grid(grid).permute(2, 0, 1)
    first, last = (0, 1) if c["single"] else (1, c["candidates"] + 1)
    masks, scores = [], []
    for b in range(c["B"]):
        dense = encoder.no_mask_embed.weight[0][:, None, None].expand(-1, grid, grid)
        if c["masks"]:
            dense = encoder.mask_downscaling(real["input_masks"][b:b + 1])[0]
        for m in range(c["M"]):
            points = real["input_points"][b, m] if c["points"] else None
            labels = batch["input_labels"][b, m] if c["points"] else None
            box = real["input_boxes"][b, m] if c["boxes"] else None
            logits, iou = model.mask_decoder(images[b], dense, positions, encoder.tokens(points, labels, box, side))
            masks.append(logits[first:last])
            scores.append(iou[first:last])
    return {"image_embeddings": images, "pred_masks": torch.stack(masks).unflatten(0, (c["B"], c["M"])),
            "iou_scores": torch.stack(scores).unflatten(0, (c["B"], c["M"]))}


def reference(c, weights, batch, dtype=torch.float32):
    model = TinySAM(c)
    model.load_state_dict(weights)
    model.to(dtype)
    for module in model.modules():
        if isinstance(module, GroupNorm):
            module.group = c["group"]
    result = forward(model, c, batch, dtype)
    if c["targets"]:
        result["loss"] = mask_loss(result["pred_masks"], result["iou_scores"], batch["gt_masks"])
    else:
        result["loss"] = result[c["loss_output"] or "pred_masks"].pow(2).mean()
    result = common.backward(result, model.named_parameters())
    running = {n: t.clone() for n, t in model.named_buffers() if ".running_" in n}
    return result, running


def write_flags(folder, c):
    path = os.path.join(folder, "flags")
    if c["group"]:
        with open(path, "w") as f:
            f.write(f"--set model.bn_group={c['group']}\n")
    elif os.path.exists(path):
        os.remove(path)



def write_model(folder, c, weights):
    os.makedirs(folder, exist_ok=True)
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    common.write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})
    write_flags(folder, c)


def stored(folder, c, batch, dtype):
    """The reference with the weights on disk, and what it leaves in the running statistics."""
    return reference(c, load_file(os.path.join(folder, "model.safetensors")), batch, dtype)


def write_running(folder, c, batch, expect):
    if c["group"]:
        common.write_tensors(os.path.join(folder, "running.safetensors"), stored(folder, c, batch, torch.float32)[1])


def random_case(r):
    heads = [1] + [r.randint(1, 4) for _ in range(3)]
    dims = [r.randint(2, 12)] + [h * r.randint(2, 6) for h in heads[1:]]
    decoder_heads, group, points, boxes = r.choice([1, 2]), r.choice([0, 0, 1, 2]), r.choice([0, 1, 3]), r.random() < 0.4
    targets = r.random() < 0.5
    return case(
        dims=dims, heads=heads, depths=[r.randint(1, 2) for _ in range(4)], windows=[r.randint(2, 8) for _ in range(4)],
        ratio=r.choice([1, 1.5, 4]), expand=r.choice([1, 2, 4]), image=16 * r.randint(2, 4), classes=r.choice([0, 4]),
        C=8 * decoder_heads * r.randint(1, 2), decoder_heads=decoder_heads, decoder_layers=r.randint(1, 2), nested=r.random() < 0.5,
        candidates=r.choice([1, 3]), B=(group or 1) * r.randint(1, 2), M=r.randint(1, 3), points=points, boxes=boxes or not points,
        masks=r.choice([0, 1]), single=r.choice([None, True, False]), targets=targets, group=group, size=r.choice([None, 16 * r.randint(2, 5)]),
        loss_output=None if targets else r.choice([None, "iou_scores", "image_embeddings"]))


if __name__ == "__main__":
    common.main(__doc__, CASES, lambda folder, c, g: write_model(folder, c, random_weights(c, g)), random_batch,
                lambda *a: stored(*a)[0], random_case, "tinyvit", metadata, write_running)
