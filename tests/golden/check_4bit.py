#!/usr/bin/env python3
"""Compares `plimsoll convert DIR --quantize nf4` with what transformers and bitsandbytes computes from the same folder.

    python check_4bit.py PLIMSOLL [DIR]...          in tests/golden; needs torch, transformers, bitsandbytes, safetensors
    python check_4bit.py PLIMSOLL --write           the same, and writes the folders nf4/NAME of GOLDEN, which transformers saved

(checked with 2.15, 5.23, 0.50.2 on the CPU). For each folder, by default those of CASES:

- transformers quantizes it on loading (load_in_4bit, nf4, double quantization) and saves it: both folders have the same
  tensors: names, dtypes, shapes and every bit
- from_pretrained of the converted folder gives the logits of transformers' own model, bit for bit
"""
import os
import shutil
import subprocess
import sys
import tempfile
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, BitsAndBytesConfig

CASES = ["odd", "bf16", "tied", "sharded", "qwen2", "mistral", "noprefix", "llava_clip_llama", "llava_siglip_qwen2", "idefics3", "smolvlm",
         "clip_vision", "siglip_vision", "sam_points"]
GOLDEN = ["bf16", "sharded", "llava_siglip_qwen2", "siglip_vision"]
INPUTS = {"input_ids", "attention_mask", "pixel_values", "input_points", "input_labels", "input_boxes"}
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)


def tensors(folder):
    files = [f for f in os.listdir(folder) if f.startswith("model") and f.endswith(".safetensors")]
    return {k: v for f in files for k, v in load_file(f"{folder}/{f}").items()}


def load(folder, **options):
    config = AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0]) if config.architectures else transformers.AutoModel
    return kind.from_pretrained(folder, device_map={"": "cpu"}, **options).eval()


def outputs(model, folder):
    batch = load_file(f"{folder}/batch.safetensors")
    batch = {k: v if v.is_floating_point() else v.long() for k, v in batch.items() if k in INPUTS}
    if model.config.model_type in ("idefics3", "smolvlm") and "pixel_values" in batch and batch["pixel_values"].dim() == 4:
        batch["pixel_values"] = batch["pixel_values"][:, None]
    with torch.no_grad():
        return {k: v for k, v in model(**batch).items() if torch.is_tensor(v)}


def check(folder, out):
    subprocess.run([sys.argv[1], "convert", folder, "--quantize", "nf4", "-o", f"{out}/converted"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    skip = AutoConfig.from_pretrained(f"{out}/converted").quantization_config["llm_int8_skip_modules"]
    dtype = next(v.dtype for k, v in tensors(folder).items() if v.dim() == 2)
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=skip)
    model = load(folder, quantization_config=how, dtype=dtype)
    model.save_pretrained(f"{out}/saved")
    ours, theirs = tensors(f"{out}/converted"), tensors(f"{out}/saved")
    prefix = "" if any(k in ours for k in theirs) else "model."  # a folder without the root of its names is saved with it
    ours = {prefix + k if prefix + k in theirs else k: v for k, v in ours.items()}
    assert ours.keys() == theirs.keys(), (ours.keys() - theirs.keys(), theirs.keys() - ours.keys())
    for k, v in theirs.items():
        assert v.dtype == ours[k].dtype and v.shape == ours[k].shape and torch.equal(v.contiguous().view(torch.uint8), ours[k].contiguous().view(torch.uint8)), k
    a, b = outputs(model, folder), outputs(load(f"{out}/converted"), folder)
    assert a.keys() == b.keys() and a
    for k, v in a.items():
        assert torch.equal(v, b[k]), (k, (v - b[k]).abs().max())
    return sum(".quant_state." in k for k in theirs), skip, list(a)


write = sys.argv[2:] == ["--write"]
for name in GOLDEN if write else sys.argv[2:] or CASES:
    with tempfile.TemporaryDirectory() as out:
        weights, skip, compared = check(name, out)
        if write:
            os.makedirs(f"nf4/{name}", exist_ok=True)
            shutil.copy(f"{out}/saved/model.safetensors", f"nf4/{name}")
    print(f"{name}: {weights} weights in 4 bits, bit-equal{'' if skip is None else f' (beside {skip})'}; equal outputs: {', '.join(compared)}")
