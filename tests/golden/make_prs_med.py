#!/usr/bin/env python3
"""Golden files for `plimsoll step` on PRS-Med, made with PyTorch and transformers.

    python tests/golden/make_prs_med.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_prs_med.py --random K --out DIR [--seed N]

The image encoder is the TinyViT of make_tinyvit.py, the language model transformers' Llava as in make_llava.py, and
the two mask decoders are written here from their description, with modules named so that state_dict() has the names
of the folder. Each case is one folder:

    config.json             prs_med, with tinysam_config and llava_config
    model.safetensors       random weights and statistics: tinysam.image_encoder..., llava..., fusion... and
                            mask_head..., or mask_decoder...
    batch.safetensors       input_ids, labels (of the answers), pixel_values and perhaps attention_mask, as for
                            make_llava.py; images u8 [B,S,S,3]; question [B,2], the tokens that the mask is read from;
                            gt_masks u8 [B,h,h]; perhaps class_labels [B]
    expect.safetensors      logits, pred_masks, text_loss, mask_loss, with classes class_loss, loss, grad.<name> for every parameter
    flags                   where statistics are taken over groups of images

loss = mask_loss + text_loss / 2, where mask_loss is the mean over the samples of binary cross-entropy + dice, and
text_loss the mean over the answers' tokens; plus class_loss / 2, the cross-entropy of the images' classes.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, LlavaForConditionalGeneration

import common
import make_llava
import make_tinyvit
from make_tinyvit import GroupNorm

IGNORE = common.IGNORE
MEAN, STD = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))


def case(**changes):
    base = dict(
        decoder="fusion", tiny={}, llava={}, heads=2, pooled=3, channels=(6, 4), prompt_hidden=14, self_heads=4, self_inner=18, classes=0,
        dtype="float32", std=0.2,
        # the batch: tokens of each sample's question (with its image) and answer; group as in
        # make_tinyvit.py
        lengths=((9, 5), (12, 7)), group=0,
        # the mask loss: "" is binary cross-entropy + dice; "structure" the original's, with weights
        # in both terms
        loss="",
    )
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


CASES = {
    # an embedding of 5 x 5 positions, pooled to 3 x 3 in windows that overlap; masks of 12 x 12
    "prs_med_fusion": case(),
    # masks of the image's size; a decoder in the original layout
    "prs_med_prompted": case(decoder="prompted", tiny=dict(image=48), lengths=((8, 3), (11, 6), (7, 8)),
                             llava=dict(text=dict(family="mistral", extra=dict(sliding_window=None)))),
    # the original's second task: the class of the image
    "prs_med_classes": case(decoder="prompted", tiny=dict(image=32), classes=3, lengths=((8, 4), (9, 3))),
    # the original's losses
    "prs_med_structure": case(tiny=dict(image=32), pooled=2, channels=(5, 4, 3, 2), loss="structure", lengths=((8, 4), (9, 3))),
    # statistics over pairs of images
    "prs_med_groups": case(tiny=dict(image=32), pooled=2, channels=(5, 4, 3), group=2, lengths=((8, 4),) * 4),
}


def tiny_case(c):
    return make_tinyvit.case(**{**dict(image=80, classes=0, dims=(6, 8, 8, 12), depths=(1, 1, 1, 1)), **c["tiny"]})


def llava_case(c):
    return make_llava.case(**c["llava"])


def grid_of(c):
    return tiny_case(c)["image"] // 16


def mask_side(c):
    return c["pooled"] << len(c["channels"]) if c["decoder"] == "fusion" else tiny_case(c)["image"]


def config_json(c):
    out = dict(architectures=["PRSMed"], model_type="prs_med", decoder=c["decoder"], num_attention_heads=c["heads"],
               tinysam_config=make_tinyvit.config_json(tiny_case(c)), llava_config=make_llava.config_json(llava_case(c)))
    if c["classes"]:
        out["num_classes"] = c["classes"]
    if c["decoder"] == "fusion":
        return dict(out, pooled_size=c["pooled"], mask_channels=list(c["channels"]))
    return dict(out, prompt_hidden_size=c["prompt_hidden"], self_attention_heads=c["self_heads"], self_attention_mlp_dim=c["self_inner"])


# --- the mask decoders ---------------------------------------------------------------------------


class Cross(nn.Module):
    def __init__(self, C, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(C, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))

    def forward(self, q, text, hidden):
        n = self.norm1(text)
        q = q + self.attn(self.norm1(q), n, n, key_padding_mask=hidden, need_weights=False)[0]
        return q + self.mlp(self.norm2(q))


class Fusion(nn.Module):
    def __init__(self, c, C, text):
        super().__init__()
        self.pooled = c["pooled"]
        self.proj_image = nn.Sequential(nn.Conv2d(C, C, 1), nn.GELU(), GroupNorm(C))
        self.proj_text = nn.Sequential(nn.Linear(text, C), nn.GELU(), nn.LayerNorm(C))
        self.cross_attn = Cross(C, c["heads"])
        self.output_conv = nn.Sequential(nn.Conv2d(C, C, 3, padding=1), nn.GELU(), GroupNorm(C))

    def forward(self, image, states, hidden):
        z = F.adaptive_avg_pool2d(image, self.pooled)
        q = self.cross_attn(self.proj_image(z).flatten(2).transpose(1, 2), self.proj_text(states), hidden)
        return self.output_conv(q.transpose(1, 2).reshape(z.shape) + z)


class MaskHead(nn.Module):
    def __init__(self, C, channels):
        super().__init__()
        widths = (C, *channels)
        stages = [nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), GroupNorm(b), nn.ReLU()) for a, b in zip(widths, channels)]
        self.upsample_blocks = nn.ModuleList([*stages, nn.Conv2d(channels[-1], 1, 1)])

    def forward(self, x):
        for stage in self.upsample_blocks:
            x = stage(x)
        return x


class BasicBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(i, i, 3, padding=1), nn.Conv2d(i, o, 1, padding=1), nn.Conv2d(o, o, 3)
        self.bn1, self.bn2 = nn.InstanceNorm2d(i, affine=True), nn.InstanceNorm2d(o, affine=True)

    def forward(self, x):
        return self.conv3(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))) + x)))


class FFN(nn.Module):
    def __init__(self, C):
        super().__init__()
        self.fc1, self.fc2, self.norm = nn.Linear(C, C), nn.Linear(C, C), nn.LayerNorm(C)

    def forward(self, x):
        return self.norm(F.relu(self.fc2(F.relu(self.fc1(x)) + x)))


class Prompted(nn.Module):
    def __init__(self, c, C, text):
        super().__init__()
        hidden = c["prompt_hidden"]
        self.side = mask_side(c)
        self.prompt_projection = nn.Sequential(nn.Linear(text, hidden), nn.LayerNorm(hidden), nn.ReLU(),
                                               nn.Linear(hidden, C), nn.LayerNorm(C), nn.ReLU())
        self.image_norm, self.prompt_norm, self.norm1 = nn.LayerNorm(C), nn.LayerNorm(C), nn.LayerNorm(C)
        self.attn = nn.MultiheadAttention(C, c["heads"], batch_first=True)
        self.encoder_layer = nn.TransformerEncoderLayer(C, c["self_heads"], c["self_inner"], 0.0, batch_first=True)
        self.ffn = FFN(C)
        self.mask_generation = nn.Sequential(BasicBlock(C, C), BasicBlock(C, C // 2), BasicBlock(C // 2, C // 4))
        self.out_dec = nn.Conv2d(C // 4, 1, 1)

    def forward(self, image, states, hidden):
        p = self.prompt_norm(self.prompt_projection(states))
        f = self.image_norm(image.flatten(2).transpose(1, 2))
        x = self.norm1(self.attn(f, p, p, key_padding_mask=hidden, need_weights=False)[0] + f)
        x = self.ffn(self.encoder_layer(x)).transpose(1, 2).reshape(image.shape) + image
        return F.interpolate(self.out_dec(self.mask_generation(x)), size=(self.side, self.side), mode="bilinear", align_corners=True)


class PRSMed(nn.Module):
    def __init__(self, c):
        super().__init__()
        C, config = tiny_case(c)["C"], AutoConfig.for_model(**make_llava.config_json(llava_case(c)))
        config._attn_implementation = "eager"
        text = config.text_config.hidden_size
        self.tinysam = nn.Module()
        self.tinysam.image_encoder = make_tinyvit.TinyViT(tiny_case(c))
        self.llava = LlavaForConditionalGeneration(config)
        self.llava.set_attn_implementation("eager")
        if c["decoder"] == "fusion":
            self.fusion, self.mask_head = Fusion(c, C, text), MaskHead(C, c["channels"])
        else:
            self.mask_decoder = Prompted(c, C, text)
        if c["classes"]:
            self.cls = nn.Linear(C, c["classes"])

    def forward(self, batch, dtype):
        pixels = ((batch["images"].to(dtype) / 255 - MEAN.to(dtype)) / STD.to(dtype)).permute(0, 3, 1, 2)
        image = self.tinysam.image_encoder(pixels)
        given = dict(input_ids=batch["input_ids"].long(), pixel_values=batch["pixel_values"].to(dtype), attention_mask=batch["attention_mask"].long())
        states = self.llava.model(**given, use_cache=False).last_hidden_state
        at = torch.arange(states.shape[1])[None]
        hidden = (at < batch["question"][:, :1]) | (at >= batch["question"][:, 1:])
        masks = self.mask_head(self.fusion(image, states, hidden)) if hasattr(self, "fusion") else self.mask_decoder(image, states, hidden)
        return self.llava.lm_head(states), masks[:, 0], self.cls(image.mean((2, 3))) if hasattr(self, "cls") else None


# --- cases --------------------------------------------------------------------------------------


def folder_name(c, name):
    return "llava." + make_llava.folder_name(llava_case(c), name[6:]) if name.startswith("llava.") else name


def random_weights(c, generator):
    model, out = PRSMed(c), {}
    norms = (nn.LayerNorm, make_tinyvit.LayerNorm2d, nn.BatchNorm2d, nn.InstanceNorm2d)
    scales = {n + ".weight" for n, m in model.named_modules() if isinstance(m, norms)}
    for name, t in model.state_dict().items():
        if not t.is_floating_point():
            continue
        w = torch.randn(t.shape, generator=generator) * c["std"]
        w = w.abs() + 0.75 if name.endswith("running_var") else w + 1 if name in scales or ("norm" in name and name.endswith("weight") and t.dim() == 1) else w
        out[folder_name(c, name)] = w.to(getattr(torch, c["dtype"]))
    return out


def random_batch(c, generator):
    """Rows of an image, a question and an answer, padded at the right."""
    l, S, h = llava_case(c), tiny_case(c)["image"], mask_side(c)
    vision, n = make_llava.vision_case(l), make_llava.features_of(l)
    token, B, T = make_llava.text_case(l)["vocab"] - 1, len(c["lengths"]), max(q + a for q, a in c["lengths"])
    ids = torch.randint(0, token, (B, T), generator=generator)
    labels, mask = torch.full_like(ids, IGNORE), torch.zeros_like(ids)
    for b, (q, a) in enumerate(c["lengths"]):
        ids[b, 2:2 + n] = token
        labels[b, q:q + a] = ids[b, q:q + a]
        mask[b, :q + a] = 1
    coarse = torch.randn((B, 1, 3, 3), generator=generator)
    more = {"class_labels": torch.randint(0, c["classes"], (B,), generator=generator, dtype=torch.int32)} if c["classes"] else {}
    return {"input_ids": ids, "labels": labels, "attention_mask": mask, **more,
            "pixel_values": torch.randn((B, 3, vision["image"], vision["image"]), generator=generator),
            "images": torch.randint(0, 256, (B, S, S, 3), generator=generator, dtype=torch.uint8),
            "question": torch.tensor([(0, q) for q, _ in c["lengths"]]),
            "gt_masks": (F.interpolate(coarse, size=(h, h), mode="bilinear") > 0).to(torch.uint8)[:, 0]}


def load_model(folder, c, dtype):
    weights = load_file(os.path.join(folder, "model.safetensors"))
    model = PRSMed(c)
    with torch.no_grad():
        for name, t in model.state_dict().items():
            if t.is_floating_point():
                t.copy_(weights.pop(folder_name(c, name)))
    if weights:
        raise SystemExit(f"{folder}: tensors that belong to no parameter: {list(weights)}")
    for module in model.modules():
        if isinstance(module, GroupNorm):
            module.group = c["group"]
    return model.to(dtype).eval()


def structure_loss(masks, target):
    pred, mask = masks[:, None], target[:, None]
    weit = 1 + 5 * torch.abs(F.avg_pool2d(mask, kernel_size=31, stride=1, padding=15) - mask)
    wbce = (weit * F.binary_cross_entropy_with_logits(pred, mask, reduction="none")).sum((2, 3)) / weit.sum((2, 3))
    p = torch.sigmoid(pred)
    inter, union = (p * mask * weit).sum((2, 3)), ((p + mask) * weit).sum((2, 3))
    return (wbce + 1 - (inter + 1) / (union - inter + 1)).mean()


def losses(logits, masks, batch, dtype, kind):
    text = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].long().flatten(), ignore_index=IGNORE)
    if kind == "structure":
        return text, structure_loss(masks, batch["gt_masks"].to(dtype))
    target = batch["gt_masks"].to(dtype).flatten(1)
    x = masks.flatten(1)
    p = x.sigmoid()
    dice = 1 - (2 * (p * target).sum(1) + 1e-6) / (p.sum(1) + target.sum(1) + 1e-6)
    bce = F.binary_cross_entropy_with_logits(x, target, reduction="none").mean(1)
    return text, (bce + dice).mean()


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        logits, masks, classes = model(batch, dtype)
        text, mask = losses(logits, masks, batch, dtype, c["loss"])
        loss = mask + text / 2
        if classes is not None:
            named = F.cross_entropy(classes, batch["class_labels"].long())
            loss = loss + named / 2
        seen = batch["attention_mask"][..., None] == 1
        result = {"logits": torch.where(seen, logits, torch.nan), "pred_masks": masks, "text_loss": text, "mask_loss": mask, "loss": loss}
        if classes is not None:
            result["class_loss"] = named
        return common.backward(result, model.named_parameters(), lambda n: folder_name(c, n))


def write_flags(folder, c):
    make_tinyvit.write_flags(folder, c)
    if c["loss"]:
        with open(os.path.join(folder, "flags"), "a") as f:
            f.write(f"--set loss.preset={c['loss']}\n")



def write_model(folder, c, generator):
    os.makedirs(folder, exist_ok=True)
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    common.write_tensors(os.path.join(folder, "model.safetensors"), random_weights(c, generator), {"format": "pt"})
    write_flags(folder, c)


def random_case(r):
    heads, group = r.choice([1, 2, 4]), r.choice([0, 0, 1, 2])
    decoder, grid = r.choice(["fusion", "prompted"]), r.randint(2, 5)
    lengths = tuple((r.randint(6, 14), r.randint(1, 8)) for _ in range(2 * r.randint(1, 2)))
    return case(decoder=decoder, heads=heads, tiny=dict(image=16 * grid), pooled=r.randint(1, grid), group=group, lengths=lengths,
                channels=tuple(r.randint(1, 7) for _ in range(r.randint(1, 4))), prompt_hidden=r.randint(3, 20), classes=r.choice([0, 0, 2, 5]), self_heads=r.choice([1, 2, 4]),
                llava=dict(text=dict(family=r.choice(["llama", "qwen2"])), names=r.choice(["hub"])), std=r.uniform(0.12, 0.22), loss=r.choice(["", "", "structure"]))


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, random_batch, reference, random_case, "prs_med")
