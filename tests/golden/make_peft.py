#!/usr/bin/env python3
"""Golden files for adapters: LoRA by PEFT on the models of the other cases, frozen 4-bit weights by bitsandbytes.

    python tests/golden/make_peft.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_peft.py --random K --out DIR [--seed N]

Each case is one folder of tests/golden/peft, an adapter as peft saves it:

    adapter_config.json           base_model_name_or_path is the model folder, seen from the repository's root
    adapter_model.safetensors     random, lora_B too; or adapter_model.bin
    batch.safetensors             the inputs; where it is missing, those of the model folder
    expect.safetensors            outputs, loss, grad.<name> for every trained parameter, as the adapter's file names it
    losses.json                   instead: ten steps of the model folder's run.yaml, with this adapter
    flags                         further arguments of the binary, if any

What holds: the adapter's folder is written first, and the reference is PeftModel.from_pretrained on the
model that from_pretrained gives of the base folder, in float32, in eval mode: lora_dropout does not act.
Gradients are called as the tensors would be in the base folder: "model.layers.0.self_attn.q_proj.lora_A.weight",
"lm_head.weight" for a module of modules_to_save, "...q_proj.bias" for a bias.

Folders with config.json are models that transformers saved in 4 bits.

Cases with a star in the printed table compute with bitsandbytes' own products; the others with its dequantized weights.

The last columns of the table are the distance between these float32 numbers and float64 ones: what a
correct implementation may differ by.
"""
import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # bitsandbytes would compile for each shape
if os.environ.get("PYTHONHASHSEED") != "0":  # peft writes target_modules in the order of a set
    os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ, PYTHONHASHSEED="0"))

import bitsandbytes
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, BitsAndBytesConfig
from transformers.utils import logging

sys.dont_write_bytecode = True  # leave no __pycache__ among the cases
import common
import make_llama
import make_llava
import make_onevision
import make_qwen_vl
import make_sam
import make_towers
import make_train

HERE = os.path.join(common.HERE, "peft")
PREFIX = "base_model.model."


def case(base, target, r=4, alpha=6, old=None, dtype=None, binary=False, train=False, nf4=None, **config):
    """A case is a plain dictionary. old: the prefix that module names had before transformers 5; dtype: of the
    stored adapter; nf4: quantization_config's keys of a frozen 4-bit base; config: further keys of LoraConfig."""
    return dict(base=base, old=old, dtype=dtype, binary=binary, train=train, nf4=nf4,
                config=dict(target_modules=target, r=r, lora_alpha=alpha, **config))


NF4 = dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
           bnb_4bit_compute_dtype=torch.float32)
PLAIN = dict(NF4, bnb_4bit_use_double_quant=False)
# Models that transformers saves in 4 bits: the base and how.
FOLDERS = {"odd_4bit": ("odd", NF4), "bf16_4bit": ("bf16", PLAIN), "llava_4bit": ("llava_siglip_qwen2", NF4), "gemma3_4bit": ("gemma3", NF4), "mixtral_4bit": ("mixtral", NF4),
           "gpt2_4bit": ("gpt2", NF4), "onevision_4bit": ("onevision", NF4)}

CASES = {
    "list": case("basic", ["q_proj", "v_proj"]),
    "bin": case("basic", ["q_proj", "v_proj"], binary=True),
    "dropout": case("basic", ["q_proj", "v_proj"], r=2, lora_dropout=0.25),
    "regex": case("basic", r"model\.layers\.\d+\.(?:self_attn\.[qo]_proj|mlp\.down_proj)", r=3),
    "regex_ahead": case("qwen2", r"^(?!.*\.1\.).*(gate|k)_proj", r=2),
    "all_linear": case("basic", "all-linear", r=2, task_type="CAUSAL_LM"),
    "bias_all": case("qwen2_window", ["v_proj", "down_proj"], bias="all"),
    "bias_lora_only": case("qwen2", ["q_proj", "k_proj", "up_proj"], bias="lora_only"),
    # The first key that matches counts, and a key may be a regular expression.
    "patterns": case("basic", ["q_proj", "v_proj", "up_proj", "o_proj"],
                     rank_pattern={"layers.1.mlp.up_proj": 5, "up_proj": 3, r"0\.self_attn\.[qv]_proj": 1},
                     alpha_pattern={"v_proj": 16, r"model.layers.0.*up_proj": 1}),
    "rslora": case("mistral", ["k_proj", "gate_proj"], r=3, alpha=5, use_rslora=True, init_lora_weights="gaussian"),
    "dora": case("basic", ["q_proj", "v_proj", "down_proj"], r=2, use_dora=True),
    "dora_bias": case("bias", ["k_proj", "o_proj", "up_proj"], r=3, use_dora=True, use_rslora=True),
    "save_head": case("basic", ["q_proj", "v_proj"], r=2, modules_to_save=["lm_head"]),
    "save_both": case("basic", ["o_proj"], r=2, modules_to_save=["embed_tokens", "lm_head"]),
    "save_norm": case("basic", ["up_proj", "norm"], r=2, modules_to_save=["norm", "layers.0.mlp"]),
    "head": case("basic", ["q_proj", "lm_head"], r=2),
    "tied": case("tied", "all-linear", r=2),
    "tied_save": case("tied", ["q_proj"], r=2, modules_to_save=["embed_tokens"]),
    "tied_head": case("pad_tied", ["lm_head", "v_proj"], r=2),
    "layers": case("tied", ["q_proj", "down_proj"], r=2, layers_to_transform=[0, 2]),
    "layers_pattern": case("tied", ["q_proj", "down_proj"], r=2, layers_to_transform=1, layers_pattern="layers"),
    "exclude": case("basic", ["q_proj", "v_proj", "down_proj"], r=2, exclude_modules=["layers.0.self_attn.v_proj", "down_proj"]),
    "exclude_regex": case("basic", "all-linear", r=2, exclude_modules=r".*\.mlp\..*"),
    "noprefix": case("noprefix", ["q_proj", "down_proj"], r=2),
    "bf16": case("bf16", ["q_proj", "down_proj"], r=2, dtype=torch.bfloat16),
    "clip": case("clip_vision", ["q_proj", "v_proj", "fc1"], r=2),
    "clip_old": case("clip_vision", ["q_proj", "v_proj", "fc1"], r=2, old="vision_model."),
    # Full names, as CLIPVisionModel has them in memory; a name in full is no matter of
    # layers_to_transform.
    "clip_regex": case("clip_vision", r"encoder\.layers\.\d\.(self_attn\.v_proj|mlp\.fc2)", r=2, exclude_modules=r"encoder\.layers\.1\.mlp\..*"),
    "clip_names": case("clip_odd", ["encoder.layers.0.mlp.fc2", "q_proj"], r=2, layers_to_transform=[1]),
    "clip_full": case("clip_full", ["k_proj", "fc2"], r=3),  # nothing reaches the last layer
    "bias_saved": case("siglip_vision", ["q_proj"], r=2, bias="all", modules_to_save=["embeddings", "fc1"]),
    "siglip": case("siglip_vision", ["q_proj", "out_proj", "fc2"], r=2),
    "sam": case("sam_target", ["qkv"], modules_to_save=["mask_decoder"]),
    "sam_parts": case("sam_both", ["qkv", "lin1", "v_proj", "proj_in"], r=2, modules_to_save=["neck"]),
    # Full names, as LlavaForConditionalGeneration has them in memory: other ones than the folder's.
    # Nothing reaches the tower's last layer.
    "llava": case("llava_clip_llama", r"model\.(language_model\.layers\.\d\.self_attn\.[qv]_proj|vision_tower\.encoder\.layers\.\d\.mlp\.fc1|multi_modal_projector\.linear_2)", r=2),
    "llava_save": case("llava_clip_mistral", ["o_proj", "out_proj"], r=2, modules_to_save=["multi_modal_projector"]),
    "llava_nf4": case("llava_clip_mistral", "all-linear", r=2, nf4=NF4),
    "idefics3_tied_save": case("idefics3", ["k_proj"], r=2, modules_to_save=["lm_head"]),
    "smolvlm": case("smolvlm", ["q_proj", "fc2", "modality_projection.proj"], r=2),
    "gemma3_images": case("gemma3_images", ["q_proj", "out_proj", "down_proj"], r=2, modules_to_save=["multi_modal_projector"]),
    "gemma3_images_all": case("gemma3_images_padded", "all-linear", r=1),
    "paligemma2": case("paligemma2", ["q_proj", "fc1", "multi_modal_projector.linear"], r=2),
    "qwen2_vl": case("qwen2_vl", ["q_proj", "qkv", "fc1", "mlp.0"], r=2),
    "qwen2_5_vl": case("qwen2_5_vl_video", ["k_proj", "qkv", "gate_proj", "mlp.2"], r=1, alpha=1),
    "qwen3_vl": case("qwen3_vl", ["v_proj", "down_proj", "attn.proj", "linear_fc1"], r=2, modules_to_save=["merger"]),
    "qwen2_5_vl_nf4": case("qwen2_5_vl", ["q_proj", "o_proj"], r=2, nf4=NF4),
    "llava_next": case("llava_next", ["q_proj", "fc1", "linear_2"], r=2),
    "onevision": case("onevision", ["q_proj", "fc1", "linear_2"], r=2, alpha=1),
    "onevision_all": case("onevision_packed", "all-linear", r=2, alpha=1, modules_to_save=["linear_1"]),
    "onevision_nf4": case("onevision_videos", "all-linear", r=2, alpha=1, nf4=NF4),
    "onevision_folder": case("peft/onevision_4bit", ["v_proj", "out_proj", "linear_1"], r=2, nf4={}),
    "internvl": case("internvl", ["q_proj", "projection_layer", "linear_1"], r=2, modules_to_save=["linear_2"]),
    "internvl_all": case("internvl_norms", "all-linear", r=1),
    "train": case("train_untied", ["q_proj", "v_proj", "up_proj"], train=True),
    "train_dora": case("train_tied", ["q_proj", "down_proj"], use_dora=True, modules_to_save=["layers.1.mlp"], train=True),
    "train_nf4": case("train_untied", "all-linear", r=3, nf4=NF4, train=True),
    "nf4": case("odd", "all-linear", r=3, nf4=NF4),
    "nf4_bf16": case("bf16", ["q_proj", "v_proj", "down_proj"], r=2, nf4=NF4),
    "nf4_dora": case("odd", ["q_proj", "down_proj"], r=2, nf4=NF4, use_dora=True),
    "qwen3": case("qwen3", "all-linear", r=2),
    # Experts: an adapter of each, and of the router.
    "mixtral": case("mixtral", ["q_proj", "gate", "w1", "w2", "w3"], r=2),
    # Under transformers 5 PEFT adapts the experts, but not the MLP of a layer without them.
    "qwen3_moe": case("qwen3_moe", ["v_proj", "gate_proj", "up_proj", "down_proj"], r=3,
                      exclude_modules=["1.mlp.gate_proj", "1.mlp.up_proj", "1.mlp.down_proj"]),
    "mixtral_nf4_folder": case("peft/mixtral_4bit", ["q_proj", "w1", "w2", "w3"], r=2, nf4={}),
    "phi3": case("phi3", ["qkv_proj", "gate_up_proj", "down_proj"], r=2),  # PEFT takes the fused matrices as they are
    "phi3_nf4": case("phi3", "all-linear", r=2, nf4=NF4),
    "gemma3": case("gemma3", "all-linear", r=2, modules_to_save=["norm"]),
    "gemma2": case("gemma2", ["q_proj", "down_proj"], r=2, use_dora=True),
    # Conv1D has weights [inputs,outputs]; in 4 bits it becomes a Linear4bit with the transpose.
    "gpt2": case("gpt2", "all-linear", r=2, use_rslora=True),
    "gpt2_dora": case("gpt2_padded", ["c_attn", "c_proj"], r=2, use_dora=True, bias="lora_only"),
    "gpt2_head": case("gpt2", ["c_fc", "lm_head"], r=2),
    "gpt2_save": case("gpt2", ["c_attn"], r=2, modules_to_save=["wte", "h.1.mlp"]),
    "gpt2_nf4": case("gpt2", "all-linear", r=2, nf4=NF4),
    "gpt2_folder": case("peft/gpt2_4bit", ["c_attn", "c_fc"], r=2, nf4={}, use_dora=True),
    "gemma3_folder": case("peft/gemma3_4bit", ["v_proj", "gate_proj"], r=2, nf4={}),
    "nf4_folder": case("peft/odd_4bit", "all-linear", r=3, nf4={}),
    "llava_nf4_folder": case("peft/llava_4bit", ["v_proj", "linear_1", "fc1"], r=2, nf4={}),
    "nf4_plain_folder": case("peft/bf16_4bit", ["q_proj", "v_proj", "down_proj"], r=2, nf4={}),
}


def base_path(c):
    return os.path.join(common.HERE, c["base"])


def plain_base(c):
    """The folder that one in 4 bits was made from."""
    return FOLDERS[os.path.basename(c["base"])][0] if c["base"].startswith("peft/") else c["base"]


def family(c):
    if plain_base(c) in make_llava.CASES:
        return make_llava
    if plain_base(c) in make_onevision.CASES:
        return make_onevision
    if c["base"] in make_qwen_vl.CASES:
        return make_qwen_vl
    return make_sam if c["base"].startswith("sam_") else make_towers if c["base"].startswith(("clip_", "siglip_")) else make_llama


def load_base(c, dtype):
    folder, kind = os.path.relpath(base_path(c)), family(c)  # peft writes this path
    if plain_base(c) in EXPERTS and c["nf4"] is not None:
        return load_experts(folder, dtype)
    if c["nf4"] is not None:
        more = dict(quantization_config=BitsAndBytesConfig(**c["nf4"])) if c["nf4"] else {}
        auto = AutoModelForImageTextToText if kind in (make_llava, make_onevision, make_qwen_vl) else AutoModelForCausalLM
        return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", device_map="cpu", **more).eval()
    if kind in (make_llama, make_qwen_vl):
        return kind.load_model(folder, dtype)
    return kind.load_model(folder, kind.CASES[c["base"]], dtype)


def linears4(model):
    return [m for m in model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]


def dequantized(m):
    """The weight of a Linear4bit by bitsandbytes' generic code. Its CPU kernel (0.50.2, AVX512) takes the scales of
    other blocks where a row is no multiple of 64 elements, such as 32 or 96."""
    state = m.weight.quant_state
    scales = state.absmax
    if state.nested:
        scales = bitsandbytes.functional.dequantize_blockwise(scales, state.state2) + state.offset
    return _dequantize_4bit_compute(m.weight.data.reshape(-1), scales, state.code, state.blocksize, state.shape, state.dtype)


def is_sound(m):
    """Whether bitsandbytes computes with these weights on the CPU, whose kernel takes rows by 32."""
    return m.out_features % 32 == 0 and torch.equal(dequantized(m), bitsandbytes.functional.dequantize_4bit(m.weight.data, m.weight.quant_state))


def plain(model):
    """Linear4bit modules as Linear with the dequantized weight, which can compute in float64."""
    for parent in list(model.modules()):
        for name, m in list(parent.named_children()):
            if isinstance(m, bitsandbytes.nn.Linear4bit):
                linear = torch.nn.Linear(m.in_features, m.out_features, bias=m.bias is not None)
                linear.weight = torch.nn.Parameter(dequantized(m))
                linear.bias = m.bias
                setattr(parent, name, linear)
    model.is_loaded_in_4bit = model.is_quantized = False
    return model


def load_adapted(c, folder, dtype=torch.float32, computes_4bit=True):
    base = load_base(c, dtype)
    if not computes_4bit or dtype != torch.float32 or not all(is_sound(m) for m in linears4(base)):
        base = plain(base)
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copytree(folder, tmp, dirs_exist_ok=True)
        if c["old"]:  # peft reads old names under an old transformers alone
            save_as(tmp, lambda name, t: (PREFIX + name.removeprefix(PREFIX).removeprefix(c["old"]), t))
        model = PeftModel.from_pretrained(base, tmp, is_trainable=True).eval()
    return model.to(dtype) if dtype != torch.float32 else model


def spread(model, generator):
    """Random values for what is trained, near what the base has; lora_B starts as zeros, which would hide A."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                noise = torch.randn(p.shape, generator=generator)
                p += noise * (0.3 if "lora_A" in name or "lora_B" in name else 0.1)


def batch_path(c):
    """A folder in 4 bits has none: that of the folder that it was made from."""
    return os.path.join(common.HERE, plain_base(c), "batch.safetensors")


def save_as(folder, change):
    """Writes the adapter again, each name and tensor as `change` gives them."""
    path = os.path.join(folder, "adapter_model.safetensors")
    common.write_tensors(path, dict(change(n, t) for n, t in load_file(path).items()), {"format": "pt"})


EXPERTS = {"mixtral": ("w1", "w3", "w2"), "qwen3_moe": ("gate_proj", "up_proj", "down_proj")}


def quantized(name, t):
    """Whether a weight of a model with experts is in 4 bits where each expert is a Linear."""
    return t.dim() == 2 and "embed_tokens" not in name and "lm_head" not in name and not name.endswith("moe.gate.weight")


def make_experts(folder, base):
    """A model with experts in 4 bits, as transformers 4 saves it: transformers 5 has the experts fused, and leaves
    them in 16 bits."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    source, out = os.path.join(common.HERE, base), {}
    for name, t in load_file(os.path.join(source, "model.safetensors")).items():
        if not quantized(name, t):
            out[name] = t
            continue
        q, state = bitsandbytes.functional.quantize_4bit(t, quant_type="nf4", compress_statistics=True, blocksize=64)
        out[name] = q
        out.update({f"{name}.{key}": x for key, x in state.as_dict(packed=True).items()})
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    common.write_json(os.path.join(folder, "config.json"), dict(config, quantization_config=dict(
        quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)))
    common.write_tensors(os.path.join(folder, "model.safetensors"), out, {"format": "pt"})
    print(f"{os.path.basename(folder):16} {'':7} {common.folder_bytes(folder):9}")
    return common.folder_bytes(folder)


def load_experts(folder, dtype):
    """The model of such a folder, with dequantized weights."""
    stored, weights = load_file(os.path.join(folder, "model.safetensors")), {}
    for name, t in stored.items():
        if name.endswith(".weight"):
            beside = {n[len(name) + 1:]: x for n, x in stored.items() if n.startswith(name + ".")}
            module = bitsandbytes.nn.Linear4bit(1, 1, bias=False)
            if beside:
                module.weight = bitsandbytes.nn.Params4bit.from_prequantized(t, beside, device="cpu")
            weights[name] = dequantized(module) if beside else t
    with tempfile.TemporaryDirectory() as tmp, open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
        del config["quantization_config"]
        common.write_json(os.path.join(tmp, "config.json"), config)
        common.write_tensors(os.path.join(tmp, "model.safetensors"), weights, {"format": "pt"})
        model = make_llama.load_model(tmp, dtype)
    model.config._name_or_path = folder
    return model


def by_expert(c, tensors):
    """Adapters of experts one by one, with the names of published folders. PEFT has those of a layer in two matrices
    each of A and B, [experts x ranks, inputs] and [outputs, ranks x experts], of gate and up, and of down."""
    if plain_base(c) not in EXPERTS:
        return tensors
    gate, up, down = EXPERTS[plain_base(c)]
    with open(os.path.join(base_path(c), "config.json")) as f:
        config = json.load(f)
    experts, out = config.get("num_experts", config.get("num_local_experts")), {}
    for name, t in tensors.items():
        if plain_base(c) == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
        root, _, end = name.partition(".experts.")
        if not end:
            out[name] = t
            continue
        parts = (gate, up) if end.startswith("base_layer.") else (down,)
        end, r, n = end.removeprefix("base_layer."), c["config"]["r"], len(parts)
        for e in range(experts):
            if "lora_A" in end:
                rows = t.reshape(experts, n * r, -1)[e].chunk(n)
            else:
                blocks = t.reshape(t.shape[0], n * r, experts)[:, :, e]
                rows = [half.chunk(n, 1)[k] for k, half in enumerate(blocks.chunk(n))]
            out.update({f"{root}.experts.{e}.{part}.{end}": x.clone().contiguous() for part, x in zip(parts, rows)})
    return out


def write_adapter(folder, c, generator):
    """The folder, as peft saves it."""
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(generator.initial_seed())  # peft draws lora_A
    model = get_peft_model(load_base(c, torch.float32), LoraConfig(**c["config"]))
    spread(model, generator)
    model.save_pretrained(folder, safe_serialization=not c["binary"])
    os.remove(os.path.join(folder, "README.md"))
    if plain_base(c) in EXPERTS:  # as PEFT writes them where each expert is a module, with the settings that it began with
        path = os.path.join(folder, "adapter_model.safetensors")
        common.write_tensors(path, by_expert(c, load_file(path)), {"format": "pt"})
        LoraConfig(**c["config"], base_model_name_or_path=os.path.relpath(base_path(c)), inference_mode=True).save_pretrained(folder)
    if c["old"]:
        save_as(folder, lambda name, t: (PREFIX + c["old"] + name.removeprefix(PREFIX), t))
    if c["dtype"]:
        save_as(folder, lambda name, t: (name, t.to(c["dtype"])))
    for name in os.listdir(folder):
        os.chmod(os.path.join(folder, name), 0o644)
    if c["base"].startswith("peft/"):
        shutil.copy(batch_path(c), folder)
    if c["nf4"]:
        with open(os.path.join(folder, "flags"), "w") as f:
            f.write("--set memory.quantize=nf4\n")


def trained_parameters(model):
    """With bias all, peft also marks the biases of the module behind a copy of modules_to_save, which nothing reads."""
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad and ".original_module." not in n]


def base_name(c, name):
    """A parameter's name in a PeftModel, as it would be in the base folder."""
    name = name.removeprefix(PREFIX)
    for part in (".base_layer", ".modules_to_save.default"):
        name = name.replace(part, "")
    name = name.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector").replace(".default", "")
    return make_towers.folder_name(make_towers.CASES[c["base"]], name) if family(c) is make_towers else name


def file_name(c, name):
    """A parameter's name in a PeftModel, as it is in the adapter's file."""
    name = name.replace(".modules_to_save.default", "")
    name = name.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector").replace(".default", "")
    return PREFIX + c["old"] + name.removeprefix(PREFIX) if c["old"] else name


def outputs(model, c, batch, dtype):
    model = model.get_base_model()  # with the adapter inside
    if family(c) is make_llama:
        return make_llama.outputs(model, batch)
    if family(c) is make_towers:
        return make_towers.outputs(model, make_towers.CASES[c["base"]], batch["pixel_values"], dtype)
    if family(c) is make_qwen_vl:
        return make_qwen_vl.outputs(model, batch, dtype)
    if family(c) is make_onevision:
        return make_onevision.outputs(model, make_onevision.CASES[plain_base(c)], batch, dtype)
    if family(c) is make_llava:
        return make_llava.outputs(model, make_llava.CASES[plain_base(c)], batch, dtype)
    return make_sam.outputs(model, make_sam.CASES[c["base"]], batch, dtype)


def run(model, c, batch, dtype=torch.float32):
    """Outputs, loss and the gradients of what is trained."""
    result = outputs(model, c, batch, dtype)
    result["loss"].backward()
    result = {n: t.detach().clone().contiguous() for n, t in result.items()}
    for name, p in trained_parameters(model):
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        result["grad." + file_name(c, name)] = grad.contiguous()
    return by_expert(c, result)


def reference(folder, c, dtype=torch.float32):
    model = load_adapted(c, folder, dtype)
    check_loaded(folder, c, model)
    return run(model, c, load_file(batch_path(c)), dtype)


def check_loaded(folder, c, model):
    """What is trained is what the folder holds, but for the frozen weight of an adapted head. peft only
    warns of a tensor that it does not find."""
    path = os.path.join(folder, "adapter_model.safetensors")
    saved = load_file(path) if os.path.exists(path) else torch.load(path.replace(".safetensors", ".bin"))
    second = (".original_module.", ".modules_to_save.")  # with bias all, peft also saves the biases of a module twice more
    saved = {base_name(c, n): t for n, t in saved.items() if not n.endswith(".base_layer.weight") and not any(s in n for s in second)}
    trained = {base_name(c, n): p.detach() for n, p in by_expert(c, dict(trained_parameters(model))).items()}
    if saved.keys() != trained.keys() or any(not torch.equal(trained[n], t.to(trained[n].dtype)) for n, t in saved.items()):
        raise SystemExit(f"{folder}: peft loaded another adapter than the folder's: {sorted(saved.keys() ^ trained.keys())}")


def make_case(folder, name, c, seed):
    """Writes one case and prints its row; its seed depends on its name only."""
    generator = torch.Generator().manual_seed(seed * 1000003 + zlib.crc32(name.encode()))
    write_adapter(folder, c, generator)
    if c["train"]:
        make_train.write_losses(os.path.join(base_path(c), "run.yaml"), folder, lambda base, dtype: load_adapted(c, folder, dtype))
        return common.folder_bytes(folder)
    expect = reference(folder, c)
    if not all(torch.isfinite(torch.nan_to_num(t, 0.0) if n == "logits" else t).all() for n, t in expect.items()):  # NaN: padding
        raise SystemExit(f"{name}: the reference is not finite; choose other sizes")
    common.write_tensors(os.path.join(folder, "expect.safetensors"), expect)
    size = common.folder_bytes(folder)
    params = sum(t.numel() for n, t in expect.items() if n.startswith("grad."))
    if c["nf4"] is not None and all(is_sound(m) for m in linears4(load_base(c, torch.float32))):
        name += " *"
    row = f"{name:16} {params:7} {size:9} {float(expect['loss']):9.5f}"
    exact = reference(folder, c, torch.float64)
    outs = [n for n in expect if not n.startswith("grad.") and n != "loss"]
    worst = max(common.relative(expect[n], exact[n]) for n in outs)
    noise = common.noise(expect, exact)
    if worst > 1e-5 or noise > 1e-4:
        raise ValueError(f"rounding is {worst:.1e} of an output, {noise:.1e} of a gradient; choose other sizes")
    row += f" {worst:8.1e} {noise:8.1e}"
    print(row)
    return size


def make_folder(folder, base, how):
    """A model as transformers saves it in 4 bits."""
    if base in EXPERTS:
        return make_experts(folder, base)
    shutil.rmtree(folder, ignore_errors=True)
    c = dict(base=base, nf4=how)
    load_base(c, torch.float32).save_pretrained(folder)
    for name in os.listdir(folder):
        if name not in ("config.json", "model.safetensors"):
            os.remove(os.path.join(folder, name))
        else:
            os.chmod(os.path.join(folder, name), 0o644)
    size = common.folder_bytes(folder)
    print(f"{os.path.basename(folder):16} {'':7} {size:9}")
    return size


BASES = ["basic", "tied", "bias", "qwen2", "qwen2_window", "mistral", "mistral_v5", "odd", "llama3_v4", "noprefix", "bf16", "sharded", "pad_tied",
         "clip_vision", "clip_odd", "clip_full", "siglip_vision", "siglip_odd", "siglip_full",
         "sam_points", "sam_boxes", "sam_both", "sam_target", "sam_masks", "sam_each", "sam_odd", "sam_larger", "sam_vision"]


def random_case(r):
    """A random LoraConfig on one of the models. peft refuses some, such as a list that also matches a norm."""
    c = dict(base=r.choice(BASES), nf4=None)
    model = load_base(c, torch.float32)
    linears = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    parts = [n for n, m in model.named_modules() if n and list(m.parameters()) and not isinstance(m, torch.nn.ModuleList)]

    def suffix(name):
        words = name.split(".")
        return ".".join(words[-r.choice([1, 1, 1, 2, 3, 9]):])

    picked = [r.choice(linears) for _ in range(r.randint(1, 4))]
    config = dict(r=r.randint(1, 9), alpha=r.choice([1, 5, 8, 16, 0.5]))
    form = r.random()
    if form < 0.5:
        target = sorted({suffix(n) for n in picked})
        if r.random() < 0.25:
            config["layers_to_transform"] = r.choice([0, 1, [0], [1], [0, 1]])
            if r.random() < 0.5:
                config["layers_pattern"] = "layers"
    elif form < 0.75:
        target = ".*(" + "|".join(re.escape(suffix(n)) for n in picked) + ")"
    else:
        target = "all-linear"
    if r.random() < 0.25:
        config["exclude_modules"] = r.choice([[suffix(r.choice(linears))], ".*" + re.escape(suffix(r.choice(linears)))])
    if r.random() < 0.3:
        config["modules_to_save"] = sorted({suffix(r.choice(parts)) for _ in range(r.randint(1, 2))})
    for key, value in (("rank_pattern", lambda: r.randint(1, 7)), ("alpha_pattern", lambda: r.choice([1, 3, 2.5]))):
        if r.random() < 0.25:
            config[key] = {suffix(r.choice(picked)): value() for _ in range(r.randint(1, 3))}
    config.update(use_rslora=r.random() < 0.3, use_dora=r.random() < 0.3, bias=r.choice(["none", "none", "all", "lora_only"]))
    return case(c["base"], target, **config)


def make_random(out, seed, count):
    """Writes `count` cases that peft accepts; of the others nothing remains."""
    total, made, tried = 0, 0, 0
    while made < count:
        name = f"adapter_{seed}_{tried}"
        c = random_case(random.Random(f"{seed}/{tried}"))
        tried += 1
        try:
            total += make_case(os.path.join(out, name), name, c, seed)
            made += 1
        except (SystemExit, ValueError, TypeError, AttributeError, KeyError, RuntimeError) as e:
            print(f"{name:16} refused: {' '.join(str(e).split())[:90]}")
            shutil.rmtree(os.path.join(out, name), ignore_errors=True)
    return total


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=HERE, metavar="DIR", help="where the case folders go")
    p.add_argument("--seed", type=int, default=0, metavar="N")
    p.add_argument("--only", action="append", metavar="CASE", choices=[*FOLDERS, *CASES], help="may be repeated")
    p.add_argument("--random", type=int, default=0, metavar="K", help="K random configurations instead of the fixed cases; needs --out")
    a = p.parse_args()
    if a.random and os.path.abspath(a.out) == HERE:
        p.error("--random needs --out DIR: random cases do not belong among the fixed ones")
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the same sums in the same order everywhere
    print(f"{'case':16} {'trained':>7} {'bytes':>9} {'loss':>9} {'f32 err':>8} {'f32 err':>8}")
    print(f"{'':16} {'':7} {'':9} {'':9} {'outputs':>8} {'grads':>8}")
    if a.random:
        print(f"{make_random(a.out, a.seed, a.random)} bytes")
        return
    wanted = lambda name: not a.only or name in a.only
    total = sum(make_folder(os.path.join(a.out, n), *f) for n, f in FOLDERS.items() if wanted(n))
    total += sum(make_case(os.path.join(a.out, n), n, c, a.seed) for n, c in CASES.items() if wanted(n))
    print(f"{total} bytes")


if __name__ == "__main__":
    sys.exit(main())
