#!/usr/bin/env python3
"""Golden files for `plimsoll step` on MobileSAM and TinySAM, made with the published code.

    python tests/golden/make_published.py --mobilesam DIR --tinysam DIR [--out DIR] [--seed N] [--only CASE]...

DIR is a clone of the project: ChaoningZhang/MobileSAM, which holds the package mobile_sam, and xinghaochen/TinySAM,
which holds tinysam. Their modules are imported from there (they need timm); nothing of them is kept here. The models are
small, so three sizes that the code of the encoder has as literals are replaced while it is read: the channels of the neck
(256), the side of the grid (64), and the width whose merge keeps the size of the map (320).

A case's folder is that of make_tinyvit.py. Outputs and gradients are the published code's in float32. The restatement in
make_tinyvit.py computes the same from the same weights in float64, and the script refuses a case where the two differ by
more than rounding: so the cases of make_tinyvit.py are checked against the published code, too.
"""
import argparse
import ast
import importlib
import os
import sys
import types

import torch
from torch import nn

import common
from make_sam import mask_loss, metadata
from make_tinyvit import case, random_batch, reference, write_model

CASES = {
    # maps of 28, 14, 7 and 7 positions, windows as published: exact, larger than the map, as large
    # as the map
    "mobilesam_points": dict(package="mobile_sam", **case(image=112, windows=(7, 7, 14, 7), B=1, single=False)),
    # maps of 20, 10, 5 and 5: zeros fill every window; one mask for each of three boxes
    "mobilesam_boxes": dict(package="mobile_sam", **case(image=80, windows=(7, 7, 14, 7), B=1, M=3, points=0, boxes=True, single=True,
                                                         depths=(2, 1, 1, 2), loss_output="image_embeddings")),
    "tinysam_both": dict(package="tinysam", **case(image=80, windows=(7, 7, 14, 7), B=2, boxes=True, ratio=4, expand=4)),
    "tinysam_mask": dict(package="tinysam", **case(image=64, windows=(7, 7, 14, 7), B=1, M=3, points=1, masks=1, loss_output="iou_scores")),
    # the published code in train(): statistics of the batch
    "tinysam_train": dict(package="tinysam", **case(image=48, windows=(7, 7, 14, 7), B=3, M=1, group=3, targets=True)),
}


# --- the published code ------------------------------------------------------------------------


def replaced(node, old, new):
    """Replaces a literal everywhere in a syntax tree; returns the number of replacements."""
    at = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and n.value == old]
    for n in at:
        n.value = new
    return len(at)


def sized_encoder(path, c):
    """The module of the encoder, with this case's sizes in place of the literals."""
    with open(path) as f:
        tree = ast.parse(f.read())
    kinds = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    methods = {n.name: n for n in kinds["TinyViT"].body if isinstance(n, ast.FunctionDef)}
    necks = [n for n in ast.walk(methods["__init__"])
             if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Attribute) and n.targets[0].attr == "neck"]
    found = (replaced(kinds["PatchMerging"], 320, c["dims"][-1]), replaced(necks[0], 256, c["C"]),
             replaced(methods["forward_features"], 64, c["image"] // 16))
    if found != (1, 5, 2):
        raise SystemExit(f"{path}: the literals 320, 256 and 64 occur {found} times, expected (1, 5, 2)")
    module = sys.modules["tiny_vit_sam"] = types.ModuleType("tiny_vit_sam")  # timm's registry looks it up
    exec(compile(tree, path, "exec"), module.__dict__)
    return module


def published_module(folder, package, name):
    """package.modeling.name, without what the package's own __init__ imports."""
    for part, path in ((package, package), (package + ".modeling", os.path.join(package, "modeling"))):
        if part not in sys.modules:
            sys.modules[part] = types.ModuleType(part)
            sys.modules[part].__path__ = [os.path.join(folder, path)]
    return importlib.import_module(f"{package}.modeling.{name}")


class Sam(nn.Module):
    """The three parts under the published names."""

    def __init__(self, c, folder):
        super().__init__()
        of = {n: published_module(folder, c["package"], n) for n in ("prompt_encoder", "mask_decoder", "transformer")}
        grid, side = c["image"] // 16, c["image"]
        encoder = sized_encoder(os.path.join(folder, c["package"], "modeling", "tiny_vit_sam.py"), c)
        self.image_encoder = encoder.TinyViT(
            img_size=side, in_chans=c["channels"], num_classes=c["classes"], embed_dims=list(c["dims"]), depths=list(c["depths"]),
            num_heads=list(c["heads"]), window_sizes=list(c["windows"]), mlp_ratio=c["ratio"], drop_path_rate=0.0,
            mbconv_expand_ratio=c["expand"])
        self.prompt_encoder = of["prompt_encoder"].PromptEncoder(
            embed_dim=c["C"], image_embedding_size=(grid, grid), input_image_size=(side, side), mask_in_chans=c["mask_channels"])
        self.mask_decoder = of["mask_decoder"].MaskDecoder(
            num_multimask_outputs=c["candidates"], transformer_dim=c["C"], iou_head_hidden_dim=c["iou_hidden"],
            transformer=of["transformer"].TwoWayTransformer(depth=c["decoder_layers"], embedding_dim=c["C"], mlp_dim=c["decoder_inner"],
                                                            num_heads=c["decoder_heads"]))

    def ready(self, group):
        """Running statistics, or the batch's. In evaluation mode the encoder's attention uses a detached copy of its biases,
        which passes no gradient. So attention is always in training mode, which changes nothing else in it."""
        self.train(bool(group))
        for module in self.modules():
            if hasattr(module, "attention_biases"):
                module.training = True
        return self


def forward(model, c, batch):
    """As Sam.forward of the published code: image by image, all its prompts at once."""
    images, masks, scores = model.image_encoder(batch["pixel_values"]), [], []
    choice = {} if c["package"] == "tinysam" else {"multimask_output": not c["single"]}
    for b in range(c["B"]):
        points = (batch["input_points"][b], batch["input_labels"][b]) if c["points"] else None
        mask = batch["input_masks"][b:b + 1] if c["masks"] else None
        sparse, dense = model.prompt_encoder(points=points, boxes=batch["input_boxes"][b] if c["boxes"] else None, masks=mask)
        logits, iou = model.mask_decoder(image_embeddings=images[b:b + 1], image_pe=model.prompt_encoder.get_dense_pe(),
                                         sparse_prompt_embeddings=sparse, dense_prompt_embeddings=dense, **choice)
        masks.append(logits)
        scores.append(iou)
    return {"image_embeddings": images, "pred_masks": torch.stack(masks), "iou_scores": torch.stack(scores)}


# --- cases -----------------------------------------------------------------------------------


def random_weights(c, folder, generator):
    """As in make_tinyvit.py: normal, scales and variances around 1."""
    model, out = Sam(c, folder), {}
    scales = {n + ".weight" for n, m in model.named_modules() if "LayerNorm" in type(m).__name__ or isinstance(m, nn.BatchNorm2d)}
    for name, t in model.state_dict().items():
        if not t.is_floating_point():
            out[name] = t
            continue
        w = torch.randn(t.shape, generator=generator) * c["std"]
        out[name] = w.abs() + 0.75 if name.endswith("running_var") else w + 1 if name in scales else w
    return out


def published(c, folder, weights, batch):
    model = Sam(c, folder)
    model.load_state_dict(weights)
    result = forward(model.ready(c["group"]), c, batch)
    if c["targets"]:
        result["loss"] = mask_loss(result["pred_masks"], result["iou_scores"], batch["gt_masks"])
    else:
        result["loss"] = result[c["loss_output"] or "pred_masks"].pow(2).mean()
    return common.backward(result, model.named_parameters())


def make_case(folder, name, c, code, seed):
    generator = common.generator_of(name, seed)
    weights, batch = random_weights(c, code, generator), random_batch(c, generator)
    expect, (exact, _) = published(c, code, weights, batch), reference(c, weights, batch, torch.float64)
    assert set(expect) == set(exact), set(expect) ^ set(exact)
    outputs = max(common.relative(expect[n], exact[n]) for n in expect if not n.startswith("grad."))
    gradients = common.noise(expect, exact)
    if not (outputs < 1e-4 and gradients < 1e-3):
        raise SystemExit(f"{name}: the published code and the restatement in make_tinyvit.py differ")
    write_model(folder, c, weights)
    common.write_tensors(os.path.join(folder, "batch.safetensors"), batch, metadata(c))
    common.write_tensors(os.path.join(folder, "expect.safetensors"), expect)
    print(f"{name:18} {common.folder_bytes(folder):9} {float(expect['loss']):9.5f} {outputs:8.1e} {gradients:8.1e}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mobilesam", required=True, metavar="DIR")
    p.add_argument("--tinysam", required=True, metavar="DIR")
    p.add_argument("--out", default=common.HERE, metavar="DIR")
    p.add_argument("--seed", type=int, default=0, metavar="N")
    p.add_argument("--only", action="append", metavar="CASE")
    a = p.parse_args()
    torch.set_num_threads(1)  # the same sums in the same order everywhere
    print(f"{'case':18} {'bytes':>9} {'loss':>9} {'outputs':>8} {'grads':>8}  from the restatement in float64")
    for name, c in CASES.items():
        if not a.only or name in a.only:
            make_case(os.path.join(a.out, name), name, c, a.mobilesam if c["package"] == "mobile_sam" else a.tinysam, a.seed)


if __name__ == "__main__":
    sys.exit(main())
