#!/usr/bin/env python3
"""Golden files for `plimsoll step` on vision towers with a head, made with PyTorch and transformers.

    python tests/golden/make_heads.py [--out DIR] [--seed N] [--only CASE]...

Each case is one folder, as in make_towers.py:

    clip_classes, siglip_classes     CLIPForImageClassification and SiglipForImageClassification: pixel_values and
                                     labels, one of them -100; logits, loss and gradients
    clip_contrast, siglip_contrast   CLIPModel and SiglipModel with return_loss: pixel_values and input_ids;
                                     logits_per_image, logits_per_text, image_embeds, text_embeds, loss and gradients; a
                                     tokenizer of letters, for tests/run_heads.sh

What holds: config.json and the weights are written first, and the reference is the class's from_pretrained(folder) in
float32 with eager attention.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub

import torch
from transformers import CLIPForImageClassification, CLIPModel, SiglipForImageClassification, SiglipModel

import common

CLASSES = {("clip", True): CLIPForImageClassification, ("siglip", True): SiglipForImageClassification,
           ("clip", False): CLIPModel, ("siglip", False): SiglipModel}


def case(**changes):
    base = dict(kind="clip", names=None, B=4, T=9, hidden=24, inner=21, heads=3, layers=2, patch=5, image=16, text_hidden=20, text_inner=27, text_heads=4, text_layers=2,
                vocabulary=31, positions=11, projection=18, eos=30, std=0.15, dtype="float32")
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


CASES = {
    "clip_classes": case(names=["a dog", "cat", "bird"], B=5),
    "siglip_classes": case(kind="siglip", names=["0", "1", "2", "3", "4"], hidden=28, heads=4, layers=1, dtype="bfloat16"),
    "clip_contrast": case(),  # texts end at the first end token, and padding follows
    "siglip_contrast": case(kind="siglip", B=5, T=7, positions=7, layers=1, text_hidden=28, hidden=28, heads=2, projection=28),
}


def config_json(c):
    tower = {"attention_dropout": 0.0, "hidden_size": c["hidden"], "image_size": c["image"], "intermediate_size": c["inner"], "model_type": c["kind"] + "_vision_model",
             "num_attention_heads": c["heads"], "num_channels": 3, "num_hidden_layers": c["layers"], "patch_size": c["patch"]}
    text = {"attention_dropout": 0.0, "eos_token_id": c["eos"], "hidden_size": c["text_hidden"], "intermediate_size": c["text_inner"], "max_position_embeddings": c["positions"],
            "model_type": c["kind"] + "_text_model", "num_attention_heads": c["text_heads"], "num_hidden_layers": c["text_layers"], "vocab_size": c["vocabulary"]}
    if c["kind"] == "siglip":
        text["projection_size"] = c["projection"]
    out = {"architectures": [CLASSES[c["kind"], bool(c["names"])].__name__], "model_type": c["kind"], "dtype": c["dtype"], "projection_dim": c["projection"],
           "text_config": text, "vision_config": tower}
    if c["names"]:
        out["id2label"] = {str(i): n for i, n in enumerate(c["names"])}
        out["label2id"] = {n: i for i, n in enumerate(c["names"])}
    return out


def random_weights(c, folder, generator):
    """Normal with c["std"], norms around 1, a scale of about 7: no gradient is degenerate."""
    out = {}
    cls = CLASSES[c["kind"], bool(c["names"])]
    for name, p in cls(cls.config_class.from_pretrained(folder)).named_parameters():
        w = torch.randn(p.shape, generator=generator) * c["std"]
        if "norm" in name and name.endswith(".weight"):
            w += 1
        if name == "logit_scale":
            w += 2
        if name == "logit_bias":
            w -= 1
        out[name] = w.to(getattr(torch, c["dtype"]))
    return out


def tokenizer_json(c):
    """Letters, as CLIP's tokenizer.json and SigLIP's have them: the last of a word has a suffix, and an end token follows."""
    letters = "acdeghort"
    vocab = {x: i for i, x in enumerate([*letters, *(x + "</w>" for x in letters)])}
    vocab.update({f"unused{i}": i for i in range(len(vocab), c["eos"] - 1)})
    begin, end = "<|startoftext|>", "<|endoftext|>"
    vocab.update({begin: c["eos"] - 1, end: c["eos"]})
    added = [{"id": vocab[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for t in (begin, end)]
    roberta = {"type": "RobertaProcessing", "sep": [end, vocab[end]], "cls": [begin, vocab[begin]], "trim_offsets": False, "add_prefix_space": False}
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}], "special_tokens": {end: {"id": end, "ids": [vocab[end]], "tokens": [end]}}}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"}, "behavior": "Removed", "invert": True},
                                                                   {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
            "post_processor": roberta if c["kind"] == "clip" else template, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": end, "continuing_subword_prefix": "", "end_of_word_suffix": "</w>", "fuse_unk": False, "vocab": vocab, "merges": []}}


def write_model(folder, c, generator):
    os.makedirs(folder, exist_ok=True)
    common.write_json(os.path.join(folder, "config.json"), config_json(c))
    common.write_tensors(os.path.join(folder, "model.safetensors"), random_weights(c, folder, generator), {"format": "pt"})
    if not c["names"]:
        with open(os.path.join(folder, "flags"), "w") as f:
            f.write("--set model.head=contrastive\n")
        common.write_json(os.path.join(folder, "tokenizer.json"), tokenizer_json(c))
        common.write_json(os.path.join(folder, "tokenizer_config.json"), {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"})


def make_batch(c, generator):
    batch = {"pixel_values": torch.randn((c["B"], 3, c["image"], c["image"]), generator=generator)}
    if c["names"]:
        batch["labels"] = torch.randint(len(c["names"]), (c["B"],), generator=generator)
        batch["labels"][1] = -100
        return batch
    ids = torch.randint(3, c["eos"], (c["B"], c["T"]), generator=generator)
    for i in range(c["B"]):
        end = c["T"] - 1 - i  # a text of its own length; the end token pads, as in published CLIP folders
        ids[i, end:] = c["eos"]
    batch["input_ids"] = ids
    return batch


def load_model(folder, c, dtype):
    """The reference, only from the folder. Refuses one that does not fill it."""
    model, info = CLASSES[c["kind"], bool(c["names"])].from_pretrained(folder, dtype=dtype, attn_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise SystemExit(f"{folder}: transformers did not load this cleanly: {bad}")
    return model.eval()


def reference(folder, c, batch, dtype=torch.float32):
    model = load_model(folder, c, dtype)
    pixels = batch["pixel_values"].to(dtype)
    if c["names"]:
        out = model(pixel_values=pixels, labels=batch["labels"])
        result = {"logits": out.logits}
    else:
        out = model(pixel_values=pixels, input_ids=batch["input_ids"], return_loss=True)
        result = {n: out[n] for n in ("logits_per_image", "logits_per_text", "image_embeds", "text_embeds")}
    result["loss"] = out.loss
    return common.backward(result, model.named_parameters())


if __name__ == "__main__":
    common.main(__doc__, CASES, write_model, make_batch, reference)
