"""Writes tests/golden/convert: checkpoints of Segment Anything for `plimsoll convert`, and lists of names.

    python tests/golden/make_sam_names.py                 writes the files
    python tests/golden/make_sam_names.py PLIMSOLL        checks the binary PLIMSOLL, with the real models' sizes too

    NAME.names      every tensor of a published model: name and shape, a line each, in the published order
                    (vit_b, vit_l, vit_h, tinysam), and of the same model in transformers (vit_b_hf)
    sam.pth, tiny.pth
                    small models with random values, in the checkpoint formats that programs write
    sam.safetensors, tiny.safetensors
                    the same tensors under the published names, the expected result of a round trip

The names are written down here as the original programs build them: the modules' order and
attributes, not a copy of any checkpoint. Checking converts each model with its exact shapes,
loads the folder into transformers' SamModel with strict names, compares values, and converts
back. Needs torch, transformers and safetensors.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import SamConfig, SamModel

here = pathlib.Path(__file__).parent / "convert"


def pair(d, name, *weight, bias=None):
    d[name + ".weight"] = tuple(weight)
    d[name + ".bias"] = (weight[0] if bias is None else bias,)


def heads(d, e=256, inner=2048, f=128, k=16, rate=2, tokens=4, layers=2, iou=256):
    """Prompt encoder and mask decoder."""
    p, m = "prompt_encoder.", "mask_decoder."
    d[p + "pe_layer.positional_encoding_gaussian_matrix"] = (2, f)
    for i in range(4):
        d[p + f"point_embeddings.{i}.weight"] = (1, e)
    d[p + "not_a_point_embed.weight"] = (1, e)
    pair(d, p + "mask_downscaling.0", k // 4, 1, 2, 2)
    pair(d, p + "mask_downscaling.1", k // 4)
    pair(d, p + "mask_downscaling.3", k, k // 4, 2, 2)
    pair(d, p + "mask_downscaling.4", k)
    pair(d, p + "mask_downscaling.6", e, k, 1, 1)
    d[p + "no_mask_embed.weight"] = (1, e)

    def attention(name, width):
        for x in "qkv":
            pair(d, f"{name}.{x}_proj", width, e)
        pair(d, f"{name}.out_proj", e, width)

    for i in range(layers):
        t = m + f"transformer.layers.{i}."
        attention(t + "self_attn", e)
        pair(d, t + "norm1", e)
        attention(t + "cross_attn_token_to_image", e // rate)
        pair(d, t + "norm2", e)
        pair(d, t + "mlp.lin1", inner, e)
        pair(d, t + "mlp.lin2", e, inner)
        pair(d, t + "norm3", e)
        pair(d, t + "norm4", e)
        attention(t + "cross_attn_image_to_token", e // rate)
    attention(m + "transformer.final_attn_token_to_image", e // rate)
    pair(d, m + "transformer.norm_final_attn", e)
    d[m + "iou_token.weight"] = (1, e)
    d[m + "mask_tokens.weight"] = (tokens, e)
    pair(d, m + "output_upscaling.0", e, e // 4, 2, 2, bias=e // 4)
    pair(d, m + "output_upscaling.1", e // 4)
    pair(d, m + "output_upscaling.3", e // 4, e // 8, 2, 2, bias=e // 8)
    for i in range(tokens):
        h = m + f"output_hypernetworks_mlps.{i}.layers."
        pair(d, h + "0", e, e)
        pair(d, h + "1", e, e)
        pair(d, h + "2", e // 8, e)
    h = m + "iou_prediction_head.layers."
    pair(d, h + "0", iou, e)
    pair(d, h + "1", iou, iou)
    pair(d, h + "2", tokens, iou)


def neck(d, width, e):
    n = "image_encoder.neck."
    d[n + "0.weight"] = (e, width, 1, 1)
    pair(d, n + "1", e)
    d[n + "2.weight"] = (e, e, 3, 3)
    pair(d, n + "3", e)


def sam(hidden, depth, n_heads, global_at, image=1024, patch=16, window=14, mlp=None, **more):
    d, grid, e = {}, image // patch, more.get("e", 256)
    d["image_encoder.pos_embed"] = (1, grid, grid, hidden)
    pair(d, "image_encoder.patch_embed.proj", hidden, 3, patch, patch)
    for i in range(depth):
        b = f"image_encoder.blocks.{i}."
        size = grid if i in global_at else window
        pair(d, b + "norm1", hidden)
        d[b + "attn.rel_pos_h"] = d[b + "attn.rel_pos_w"] = (2 * size - 1, hidden // n_heads)
        pair(d, b + "attn.qkv", 3 * hidden, hidden)
        pair(d, b + "attn.proj", hidden, hidden)
        pair(d, b + "norm2", hidden)
        pair(d, b + "mlp.lin1", mlp or 4 * hidden, hidden)
        pair(d, b + "mlp.lin2", hidden, mlp or 4 * hidden)
    neck(d, hidden, e)
    heads(d, **more)
    return d


def tinysam(dims=(64, 128, 160, 320), depths=(2, 2, 6, 2), n_heads=(2, 4, 5, 10), windows=(7, 7, 14, 7), ratio=4, classes=1000, **more):
    d, e = {}, more.get("e", 256)

    def conv_bn(name, out, *rest):
        d[name + ".c.weight"] = (out, *rest)
        pair(d, name + ".bn", out)
        d[name + ".bn.running_mean"] = d[name + ".bn.running_var"] = (out,)
        d[name + ".bn.num_batches_tracked"] = ()

    conv_bn("image_encoder.patch_embed.seq.0", dims[0] // 2, 3, 3, 3)
    conv_bn("image_encoder.patch_embed.seq.2", dims[0], dims[0] // 2, 3, 3)
    for i, (x, depth) in enumerate(zip(dims, depths)):
        for k in range(depth):
            b = f"image_encoder.layers.{i}.blocks.{k}."
            if i == 0:
                conv_bn(b + "conv1", 4 * x, x, 1, 1)
                conv_bn(b + "conv2", 4 * x, 1, 3, 3)
                conv_bn(b + "conv3", x, 4 * x, 1, 1)
                continue
            d[b + "attn.attention_biases"] = (n_heads[i], windows[i] ** 2)
            pair(d, b + "attn.norm", x)
            pair(d, b + "attn.qkv", 3 * x, x)
            pair(d, b + "attn.proj", x, x)
            pair(d, b + "mlp.norm", x)
            pair(d, b + "mlp.fc1", ratio * x, x)
            pair(d, b + "mlp.fc2", x, ratio * x)
            conv_bn(b + "local_conv", x, 1, 3, 3)
        if i + 1 < len(dims):
            b, y = f"image_encoder.layers.{i}.downsample.", dims[i + 1]
            conv_bn(b + "conv1", y, x, 1, 1)
            conv_bn(b + "conv2", y, 1, 3, 3)
            conv_bn(b + "conv3", y, y, 1, 1)
    if classes:
        pair(d, "image_encoder.norm_head", dims[-1])
        pair(d, "image_encoder.head", classes, dims[-1])
    neck(d, dims[-1], e)
    heads(d, **more)
    return d


real = {
    "vit_b": sam(768, 12, 12, (2, 5, 8, 11)),
    "vit_l": sam(1024, 24, 16, (5, 11, 17, 23)),
    "vit_h": sam(1280, 32, 16, (7, 15, 23, 31)),
    "tinysam": tinysam(),
}
parameters = {"vit_b": 93735472, "vit_l": 312342832, "vit_h": 641090608, "tinysam": 10130092}
narrow = {"e": 16, "f": 8, "inner": 24, "k": 8, "iou": 12}
small = {
    "sam": sam(16, 3, 2, (1,), image=48, patch=8, window=4, mlp=40, **narrow),
    "tiny": tinysam((4, 8, 12, 16), (1, 1, 2, 1), (1, 2, 3, 4), (3, 2, 4, 2), classes=5, **narrow),
}


def count(shapes):
    """Parameters: neither the normalisations' statistics nor the fixed frequencies."""
    n = 0
    for name, shape in shapes.items():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked", "gaussian_matrix")):
            n += torch.Size(shape).numel()
    return n


def random_state(shapes, seed):
    g = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(17)
        else:
            state[name] = torch.randn(shape, generator=g)
    return state


def lines(shapes):
    return "".join(f"{name} {','.join(map(str, shape)) or '-'}\n" for name, shape in shapes.items())


def convert(binary, *arguments):
    subprocess.run([binary, "convert", *map(str, arguments)], check=True)


def hf_model(folder):
    """The folder's config in transformers, weights not read; names and shapes."""
    with torch.device("meta"):
        return SamModel(SamConfig.from_pretrained(folder))


def same(a, b):
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and torch.equal(a[k], b[k]) for k in a)


def check(binary, name, state, tmp):
    """pth -> folder (strict in transformers, values equal) -> pth (same names, order, bytes)."""
    source, folder, back = tmp / (name + ".pth"), tmp / name, tmp / (name + "_back.pth")
    torch.save(state, source)
    convert(binary, source, "-o", folder)
    config = json.loads((folder / "config.json").read_text())
    stored = load_file(folder / "model.safetensors")
    if config["model_type"] == "sam":
        meta = hf_model(folder).state_dict()
        assert {k: tuple(v.shape) for k, v in meta.items()} == {k: tuple(v.shape) for k, v in stored.items()}, name
        model, info = SamModel.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
        loaded = model.state_dict()
        assert all(torch.equal(loaded[k].to(v.dtype), v) for k, v in stored.items()), name
        del model, loaded
    else:
        assert same(stored, state), name
    convert(binary, folder, "-o", back)
    again = torch.load(back, weights_only=True)
    assert list(again) == list(state) and same(again, state), name
    print(f"{name}: {len(state)} tensors, {config['model_type']}", config["vision_config"])
    source.unlink(), back.unlink(), shutil.rmtree(folder)


def write_files():
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    for name, shapes in real.items():
        assert count(shapes) == parameters[name], (name, count(shapes))
        (here / (name + ".names")).write_text(lines(shapes))
    with torch.device("meta"):
        meta = SamModel(SamConfig()).state_dict()
    (here / "vit_b_hf.names").write_text(lines({k: tuple(v.shape) for k, v in meta.items()}))
    for seed, (name, shapes) in enumerate(small.items()):
        state = random_state(shapes, seed)
        if name == "sam":  # as a training program leaves it: nested, wrapped, one tensor in bf16, one transposed
            state["mask_decoder.transformer.layers.0.mlp.lin1.weight"] = state["mask_decoder.transformer.layers.0.mlp.lin1.weight"].t().contiguous().t()
            state["prompt_encoder.no_mask_embed.weight"] = state["prompt_encoder.no_mask_embed.weight"].bfloat16()
            torch.save({"model": {"module." + k: v for k, v in state.items()}, "epoch": 3}, here / "sam.pth")
        else:
            torch.save(state, here / "tiny.pth", _use_new_zipfile_serialization=False)
        save_file({k: v.contiguous() for k, v in state.items()}, here / f"{name}.safetensors")


def main():
    if len(sys.argv) == 1:
        write_files()
        return
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        check(binary, "small_sam", random_state(small["sam"], 5), tmp)
        check(binary, "small_tiny", random_state(small["tiny"], 6), tmp)
        check(binary, "small_half", {k: v.half() for k, v in random_state(small["sam"], 7).items()}, tmp)
        for name, shapes in real.items():
            torch.manual_seed(1)
            check(binary, name, {k: torch.zeros(s, dtype=torch.int64 if k.endswith("tracked") else torch.float32) for k, s in shapes.items()}, tmp)


main()
