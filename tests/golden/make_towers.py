#!/usr/bin/env python3
"""Golden files for `plimsoll step` on vision towers, made with PyTorch and transformers.

    python tests/golden/make_towers.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_towers.py --random K --out DIR [--seed N]

Each case is one folder:

    config.json             clip_vision_model or siglip_vision_model; or the config of a
                            model of image and text with the tower's in vision_config
    model.safetensors       random weights under the published names, which begin with
                            "vision_model."; or without it, as transformers 5 saves a
                            tower; position_ids and text tensors as in old folders
    batch.safetensors       pixel_values; the metadata may name a loss_output
    expect.safetensors      last_hidden_state, hidden_states.N, loss (the mean of the
                            squares of loss_output), grad.<name> for every parameter

What holds: config.json and the weights are written first, and the reference is
CLIPVisionModel or SiglipVisionModel.from_pretrained(folder) in float32 with eager
attention, so the expectation follows the bytes on disk. Gradients carry the names that
the tensors have in the folder; where nothing reaches a parameter they are zeros.

The last columns of the printed table are the distance between these float32 numbers
and float64 ones: what a correct implementation may differ by.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from transformers import CLIPVisionModel, SiglipVisionModel

import common

ROOT = "vision_model."


def case(**changes):
    """A case is a plain dictionary: the tower's sizes, how it is written, the batch."""
    base = dict(
        # the tower
        kind="clip", hidden=24, inner=37, heads=3, layers=2, patch=7, image=14, channels=3,
        act=None, eps=None, head=True,
        # how it is written: inside a config of image and text, the root of the names,
        # buffers that older versions saved, dtype on disk
        nested=False, root=True, position_ids=False, dtype="float32",
        # the batch
        B=2, loss_output=None, pixels="float32", std=0.15,
    )
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


CASES = {
    "clip_vision": case(eps=1e-2, inner=21),  # an eps large enough that a wrong one is seen
    "clip_odd": case(hidden=35, heads=5, inner=29, patch=5, image=15, layers=1, B=3, act="gelu",
                     root=False),
    "clip_full": case(nested=True, position_ids=True, hidden=24, heads=4, patch=4, image=16, layers=3,
                      loss_output="hidden_states.2", inner=13),
    "siglip_vision": case(kind="siglip", eps=1e-3, layers=1, hidden=28, heads=4, inner=25, patch=4, image=14),
    "siglip_odd": case(kind="siglip", hidden=30, heads=5, inner=41, patch=7, image=21, layers=1, B=1,
                       root=False, dtype="bfloat16", pixels="bfloat16"),
    "siglip_full": case(kind="siglip", nested=True, position_ids=True, hidden=25, heads=5, inner=17, patch=6,
                        image=18, layers=2, head=False, loss_output="hidden_states.0"),
}


def tower_config(c):
    """The tower's own config.json, independent of the installed version."""
    out = {
        "attention_dropout": 0.0,
        "hidden_size": c["hidden"],
        "image_size": c["image"],
        "intermediate_size": c["inner"],
        "model_type": c["kind"] + "_vision_model",
        "num_attention_heads": c["heads"],
        "num_channels": c["channels"],
        "num_hidden_layers": c["layers"],
        "patch_size": c["patch"],
    }
    if c["act"]:
        out["hidden_act"] = c["act"]
    if c["eps"]:
        out["layer_norm_eps"] = c["eps"]
    if not c["head"]:
        out["vision_use_head"] = False
    return out


def config_json(c):
    name = {"clip": "CLIP", "siglip": "Siglip"}[c["kind"]]
    if not c["nested"]:
        return dict(tower_config(c), architectures=[name + "VisionModel"], dtype=c["dtype"])
    text = {"hidden_size": 8, "intermediate_size": 9, "model_type": c["kind"] + "_text_model",
            "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 11}
    return {"architectures": [name + "Model"], "model_type": c["kind"], "dtype": c["dtype"],
            "text_config": text, "vision_config": tower_config(c)}


def tower_class(c):
    return CLIPVisionModel if c["kind"] == "clip" else SiglipVisionModel


def published(name):
    """Versions differ in whether the class itself puts the root before its names."""
    return ROOT + name.removeprefix(ROOT)


def folder_name(c, name):
    return published(name) if c["root"] else published(name).removeprefix(ROOT)


def random_weights(c, config, generator):
    """Normal with c["std"], norms around 1: no gradient is degenerate."""
    out = common.random_weights(tower_class(c)(config).named_parameters(), c, generator, lambda name: folder_name(c, name))
    return out


def extra_tensors(c, generator):
    """What stands beside the tower in published folders; none of it is ours."""
    out = {}
    if c["position_ids"]:
        n = (c["image"] // c["patch"]) ** 2 + (c["kind"] == "clip")
        out[ROOT + "embeddings.position_ids"] = torch.arange(n)[None]
    if c["nested"]:
        out["logit_scale"] = torch.tensor(2.5)
        out["text_model.embeddings.token_embedding.weight"] = torch.randn(11, 8, generator=generator)
        out["text_model.encoder.layers.0.layer_norm1.weight"] = torch.ones(8)
    return out


def write_model(folder, c, generator):
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith((".safetensors", ".json")):
            os.remove(os.path.join(folder, name))
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    config = tower_class(c).config_class.from_pretrained(folder)
    weights = random_weights(c, config, generator)
    weights.update(extra_tensors(c, generator))
    common.write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})


def load_model(folder, c, dtype):
    """The reference, only from the folder. Refuses one that does not fill it."""
    model, info = tower_class(c).from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v and k != "unexpected_keys"}
    if bad:
        raise SystemExit(f"{folder}: transformers did not load this cleanly: {bad}")
    return model.eval()


def outputs(model, c, pixels, dtype):
    out = model(pixel_values=pixels.to(dtype), output_hidden_states=True)
    result = {"last_hidden_state": out.last_hidden_state}
    for i, h in enumerate(out.hidden_states):
        result[f"hidden_states.{i}"] = h
    result["loss"] = result[c["loss_output"] or "last_hidden_state"].pow(2).mean()
    return result



def random_batch(c, generator):
    pixels = torch.randn((c["B"], c["channels"], c["image"], c["image"]), generator=generator)
    return {"pixel_values": pixels.to(getattr(torch, c["pixels"]))}


def metadata(c):
    return {"loss_output": c["loss_output"]} if c["loss_output"] else None


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    return common.backward(outputs(model, c, batch["pixel_values"], dtype), model.named_parameters(), lambda n: folder_name(c, n))


def random_case(r):
    """A random odd tower; the image may leave an edge that fills no patch."""
    kind, heads, layers = r.choice(["clip", "siglip"]), r.randint(1, 6), r.randint(1, 4)
    patch = r.randint(2, 9)
    nested = r.random() < 0.4
    return case(
        kind=kind, heads=heads, hidden=heads * r.randint(2, 12), inner=r.randint(3, 70), layers=layers,
        patch=patch, image=patch * r.randint(1, 5) + r.randint(0, patch - 1), channels=r.choice([3, 3, 1, 4]),
        act=r.choice([None, "gelu", "quick_gelu", "gelu_pytorch_tanh", "relu", "silu"]),
        eps=r.choice([None, 1e-6, 1e-4, 1e-2]), head=kind == "clip" or r.random() < 0.7, nested=nested,
        root=nested or r.random() < 0.5, position_ids=nested and r.random() < 0.5,
        dtype=r.choice(["float32", "float32", "bfloat16", "float16"]), B=r.randint(1, 5),
        loss_output=r.choice([None, None, "last_hidden_state", f"hidden_states.{r.randint(0, layers)}"]),
        pixels=r.choice(["float32", "float32", "bfloat16", "float16"]), std=r.uniform(0.08, 0.2))


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, random_batch, reference, random_case, "tower", metadata)
