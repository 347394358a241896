#!/usr/bin/env python3
"""Golden files for `plimsoll step` on LLaVA models that take volumes, made with PyTorch and transformers.

    python tests/golden/make_llava_volumes.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_llava_volumes.py --random K --out DIR [--seed N]

Each case is one folder:

    config.json             llava, with the map `modalities`
    model.safetensors       random weights, those of modalities under modalities.NAME
    batch.safetensors       input_ids with image tokens, labels, perhaps pixel_values, volumes.NAME and volume_order
    expect.safetensors      logits, loss, grad.<name> for every parameter, zeros of modalities that the batch does not have

The reference is transformers' Llava with a torch.nn.Conv3d for each modality, in float32 with eager attention: the
volumes of a patch of a series are the channels of the convolution. Its tokens replace what the vision tower's own
embeddings return, or go straight to the projector.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

import common
import make_llama
import make_llava

IGNORE = common.IGNORE


def modality(size, patch, to="tower"):
    return dict(size=size, patch=patch, to=to)


def case(**changes):
    own = dict(modalities={}, items=(), std=0.2)
    own.update({k: changes.pop(k) for k in list(changes) if k in own})
    return {**make_llava.case(**changes), **own}


SIGLIP = dict(kind="siglip", patch=4, image=9)
# items: of each row, what stands at its image tokens, in their order
CASES = {
    "llava_volumes_t1": case(modalities=dict(T1=modality([5, 6, 7], [2, 3, 2])), items=(("T1",), ("T1", "T1"), ()), T=30),
    "llava_volumes_series": case(names="memory", vision=SIGLIP, text=dict(family="qwen2"), strategy="full", layer=-1,
                           modalities=dict(T1=modality([4, 4, 4], [2, 2, 2], "projector"), rsfMRI=modality([5, 4, 6, 4], [2, 2, 3, 4])),
                           items=(("rsfMRI",), ("rsfMRI", "rsfMRI")), T=24),
    "llava_volumes_both": case(names="saved", vision=SIGLIP, text=dict(family="qwen2"), strategy="full", layer=[-1, 1], tied=True, bias=False,
                         modalities=dict(T1=modality([4, 6, 5], [2, 3, 2]), rsfMRI=modality([4, 4, 4, 4], [2, 2, 4, 2], "projector"), CT=modality([2, 2, 4], [1, 2, 2])),
                         items=(("rsfMRI", "T1"), ("image", "T1"), ("rsfMRI",), ("T1", "image", "rsfMRI"), ()), T=40, dtype="bfloat16"),
    "llava_volumes_none": case(names="saved", modalities=dict(T1=modality([4, 4, 4], [2, 2, 2])), items=((), ("image",)), T=20),
}


def config_json(c):
    return dict(make_llava.config_json(c), modalities=c["modalities"])


def axes(m):
    """Size and patch with time, 1 for a volume without."""
    return [[1] * (4 - len(m[k])) + list(m[k]) for k in ("size", "patch")]


def patches_of(m):
    return [s // p for s, p in zip(*axes(m))]


def tokens_of(m):
    n = 1
    for k in patches_of(m):
        n *= k
    return n


def item_tokens(c, item):
    return make_llava.features_of(c) if item == "image" else tokens_of(c["modalities"][item])


class Embedding(torch.nn.Module):
    def __init__(self, m, width):
        super().__init__()
        self.m = m
        patch = axes(m)[1]
        self.proj = torch.nn.Conv3d(patch[0], width, kernel_size=patch[1:], stride=patch[1:])
        self.position_embedding = torch.nn.Embedding(tokens_of(m), width)

    def forward(self, x):
        size, patch = axes(self.m)
        groups = size[0] // patch[0]
        x = x.reshape(len(x), *size)[:, :groups * patch[0]].reshape(-1, patch[0], *size[1:])
        x = self.proj(x).flatten(2)
        x = x.reshape(-1, groups, *x.shape[1:]).transpose(2, 3).flatten(1, 2)
        return x + self.position_embedding.weight


def layers_of(c):
    return c["layer"] if isinstance(c["layer"], list) else [c["layer"]]


def make_modalities(c):
    width = make_llava.vision_case(c)["hidden"]
    return torch.nn.ModuleDict({name: Embedding(m, width * (1 if m["to"] == "tower" else len(layers_of(c)))) for name, m in c["modalities"].items()})


def write_model(folder, c, generator):
    make_llava.write_model(folder, c, generator)
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    path = os.path.join(folder, "model.safetensors")
    weights = load_file(path)
    for name, p in make_modalities(c).named_parameters():
        weights["modalities." + name] = (torch.randn(p.shape, generator=generator) * c["std"]).to(getattr(torch, c["dtype"]))
    common.write_tensors(path, weights, {"format": "pt"})


def load_model(folder, c, dtype):
    model, info = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    modalities = make_modalities(c)
    unread = {n for n in info["unexpected_keys"]}
    assert unread == {"modalities." + n for n, _ in modalities.named_parameters()}, unread
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    weights = load_file(os.path.join(folder, "model.safetensors"))
    modalities.load_state_dict({n: weights["modalities." + n] for n, _ in modalities.named_parameters()})
    model.modalities = modalities.to(dtype)
    return model.eval()


def random_row(c, items, token, generator):
    words = torch.randint(0, make_llava.text_case(c)["vocab"] - 1, (c["T"] - sum(item_tokens(c, i) for i in items),), generator=generator).tolist()
    places = sorted(torch.randint(0, len(words) + 1, (len(items),), generator=generator).tolist())
    for place, item in reversed(list(zip(places, items))):
        words[place:place] = [token] * item_tokens(c, item)
    return words


def random_batch(c, generator):
    v, token = make_llava.vision_case(c), make_llava.text_case(c)["vocab"] - 1
    ids = torch.tensor([random_row(c, items, token, generator) for items in c["items"]])
    labels = ids.clone()
    labels[ids == token] = IGNORE
    labels[:, :2] = IGNORE
    batch = dict(input_ids=ids, labels=labels)
    names, order = list(c["modalities"]), [i for items in c["items"] for i in items]
    if order.count("image"):
        batch["pixel_values"] = torch.randn((order.count("image"), v["channels"], v["image"], v["image"]), generator=generator)
    for name in names:
        if order.count(name):
            batch["volumes." + name] = torch.rand((order.count(name), *c["modalities"][name]["size"]), generator=generator)
    if len(set(order)) > 1:
        batch["volume_order"] = torch.tensor([-1 if i == "image" else names.index(i) for i in order], dtype=torch.int32)
    return batch


def encode(model, c, x, drop):
    """The chosen states of the vision tower, joined."""
    states = model.model.vision_tower(x, output_hidden_states=True).hidden_states
    return torch.cat([states[k][:, drop:] for k in layers_of(c)], -1)


def volume_features(model, c, name, x):
    tokens = model.modalities[name](x)
    if c["modalities"][name]["to"] == "projector":
        return tokens
    tower = model.model.vision_tower
    embeddings = getattr(tower, "vision_model", tower).embeddings
    own, embeddings.forward = embeddings.forward, lambda *a, **k: tokens
    try:
        pixels = torch.zeros(len(x), 3, *[make_llava.vision_case(c)["image"]] * 2, dtype=x.dtype)
        return encode(model, c, pixels, 0)
    finally:
        embeddings.forward = own


def outputs(model, c, batch, dtype):
    ids, token = batch["input_ids"].long(), make_llava.text_case(c)["vocab"] - 1
    features = {}
    if "pixel_values" in batch:
        features["image"] = encode(model, c, batch["pixel_values"].to(dtype), int(c["strategy"] == "default"))
    for name in c["modalities"]:
        if "volumes." + name in batch:
            features[name] = volume_features(model, c, name, batch["volumes." + name].to(dtype))
    x, at = model.get_input_embeddings()(ids), {}
    rows = []
    for item in [i for items in c["items"] for i in items]:
        rows.append(model.model.multi_modal_projector(features[item][at.get(item, 0)]))
        at[item] = at.get(item, 0) + 1
    if rows:
        x = x.masked_scatter((ids == token)[..., None].expand_as(x), torch.cat(rows).to(x.dtype))
    out = model(inputs_embeds=x, labels=batch["labels"].long(), use_cache=False)
    return {"logits": out.logits, "loss": out.loss}


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    return common.backward(outputs(model, c, batch, dtype), model.named_parameters(), lambda n: make_llava.folder_name(c, n))


def random_case(r):
    while True:
        base = make_llava.random_case(r)
        if base["kind"] == "llava":
            break
    modalities = {}
    for name in ("T1", "rsfMRI", "CT")[:r.randint(1, 3)]:
        patch = [r.randint(1, 3) for _ in range(r.choice([3, 4]))]
        modalities[name] = modality([p * r.randint(1, 2) + r.randint(0, p - 1) for p in patch], patch, r.choice(["tower", "projector"]))
    items = tuple(tuple(r.choice(["image", *modalities]) for _ in range(r.randint(0, 3))) for _ in range(r.randint(1, 4)))
    c = {**base, "modalities": modalities, "items": items}
    c["T"] = max(sum(item_tokens(c, i) for i in row) for row in items) + r.randint(6, 20)
    return c


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, random_batch, reference, random_case, "volumes")
