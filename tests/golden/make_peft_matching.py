#!/usr/bin/env python3
"""Writes tests/golden/peft_matching.txt: which modules PEFT adapts and saves, by its own injection.

Needs torch, transformers and peft (made with peft 0.21.2):

    python tests/golden/make_peft_matching.py

Each model is a tree of nn.Linear with the given names, one of them the output head. A case is a
configuration as adapter_config.json holds it; PEFT wraps the model, and the wrapped modules are its
answer. The file:

    model NAME
    module NAME            the modules of the model, in order
    head NAME              the output head, a module too
    case MODEL TITLE
    config JSON
    adapt MODULE R SCALE   a module with an adapter
    save MODULE            a module that is trained whole, or is inside of such a module
    error                  PEFT refuses the configuration

Modules that a case does not list are neither adapted nor saved.
"""
import json
import pathlib
import re
import warnings

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils.other import ModulesToSaveWrapper
from transformers import PretrainedConfig, PreTrainedModel

warnings.simplefilter("ignore")


def llama(layers):
    names = []
    for i in layers:
        at = f"model.layers.{i}."
        names += [at + "self_attn." + x for x in ("q_proj", "k_proj", "v_proj", "o_proj")]
        names += [at + "mlp." + x for x in ("gate_proj", "up_proj", "down_proj")]
    return names, "lm_head"


def sam():
    names = []
    for i in (0, 1):
        names += [f"vision_encoder.layers.{i}." + x for x in ("attn.qkv", "attn.proj", "mlp.lin1", "mlp.lin2")]
    names += ["vision_encoder.neck.conv1", "prompt_encoder.mask_embed.conv1"]
    at = "mask_decoder.transformer.layers.0."
    names += [at + x for x in ("self_attn.q_proj", "self_attn.out_proj", "mlp.lin1")]
    names += ["mask_decoder.iou_prediction_head.proj_in", "mask_decoder.iou_prediction_head.layers.0"]
    return names, None


def odd():
    return ["fc", "0.fc", "a.0", "a.b.fc", "a.b.xfc", "h.0.h.1.fc", "layers.0.fc", "x.layers.2.experts.7.w1", "x.layers.7.experts.2.w1",
            "x.layers.12.fc", "x.Layers.2.fc", "x.my_layers.2.fc", "enc.block.3.sub.4.fc", "a-b.x_1", "deep.a.b.c.d.e.f.g", "modelXnorm",
            "x.head.fc", "x.ahead.fc", "numbers.007.fc", "numbers.12345678901234567890123.fc"], "decoder.out"


MODELS = {"llama": llama((0, 1, 10)), "sam": sam(), "odd": odd()}

CASES = [
    ("llama", "list", dict(target_modules=["q_proj", "v_proj"])),
    ("llama", "full names", dict(target_modules=["model.layers.1.self_attn.q_proj"])),
    ("llama", "last parts", dict(target_modules=["self_attn.q_proj", "1.mlp.up_proj"])),
    ("llama", "half a part", dict(target_modules=["proj", "attn.q_proj", "o_proj"])),
    ("llama", "the head by name", dict(target_modules=["q_proj", "lm_head"])),
    ("llama", "half of the head", dict(target_modules=["head", "k_proj"])),
    ("llama", "all-linear", dict(target_modules="all-linear")),
    ("llama", "All-Linear", dict(target_modules="All-Linear")),
    ("llama", "all-linear, exclude", dict(target_modules="all-linear", exclude_modules=["mlp.up_proj", "k_proj"])),
    ("llama", "all-linear, exclude regex", dict(target_modules="all-linear", exclude_modules=r".*\.mlp\..*")),
    ("llama", "all-linear, head saved", dict(target_modules="all-linear", modules_to_save=["lm_head"])),
    ("llama", "regex", dict(target_modules=r".*\.(q|v)_proj")),
    ("llama", "regex is full", dict(target_modules=r"q_proj")),
    ("llama", "regex open at the end", dict(target_modules=r"model\.layers\.0\.self_attn\.q")),
    ("llama", "regex layers", dict(target_modules=r"model\.layers\.(0|10)\.self_attn\.[qk]_proj")),
    ("llama", "regex lookahead", dict(target_modules=r"(?!.*mlp).*_proj")),
    ("llama", "regex lookbehind", dict(target_modules=r".*(?<!up)_proj")),
    ("llama", "regex named group", dict(target_modules=r".*\.(?P<n>\d+)\..*(?P=n)?q_proj")),
    ("llama", "regex backreference", dict(target_modules=r".*\.(\d)\1?0?\.mlp\.(up|down)_proj")),
    ("llama", "regex lazy", dict(target_modules=r".*?layers\.\d+?\.mlp\.[a-g]\w*")),
    ("llama", "regex flags", dict(target_modules=r"(?i).*\.Q_PROJ")),
    ("llama", "regex local flags", dict(target_modules=r".*\.(?i:Q_Proj)")),
    ("llama", "regex verbose", dict(target_modules="(?x) .* \\. # any\n q_proj")),
    ("llama", "regex ascii flag", dict(target_modules=r"(?a).*\d+\.mlp\.\w+")),
    ("llama", "regex count without a minimum", dict(target_modules=r"model\.layers\.\d{,1}\.mlp\.up_proj")),
    ("llama", "regex counts", dict(target_modules=r"model\.layers\.\d{2,}\.mlp\.up_proj|.*\.\d{1}\..*\.k_proj")),
    ("llama", "regex literal brace", dict(target_modules=r".*{x}|.*q_proj")),
    ("llama", "regex bracket in a set", dict(target_modules=r".*\.[[q:]_proj")),
    ("llama", "regex posix class is a set", dict(target_modules=r".*\.[[:alpha:]]_proj|.*\.o_proj")),
    ("llama", "regex bracket first in a set", dict(target_modules=r".*\.[]q]_proj")),
    ("llama", "regex negated set", dict(target_modules=r".*\.[^]qkv]_proj")),
    ("llama", "regex anchors", dict(target_modules=r"^model.*q_proj$")),
    ("llama", "regex A and Z", dict(target_modules=r"\Amodel.*v_proj\Z")),
    ("llama", "regex word border", dict(target_modules=r".*\bq_proj\b")),
    ("llama", "regex atomic group", dict(target_modules=r"(?>model|m).*down_proj")),
    ("llama", "regex possessive", dict(target_modules=r"model\.layers\.\d++\.mlp\.gate_proj")),
    ("llama", "regex conditional", dict(target_modules=r"(model\.)?(?(1).*q_proj|lm_head)")),
    ("llama", "regex comment", dict(target_modules=r".*q_(?#the query (all)proj")),
    ("llama", "regex hexadecimal", dict(target_modules=r".*\x71_proj")),
    ("llama", "regex empty alternative", dict(target_modules=r".*\.mlp\.(up_proj|)")),
    ("llama", "regex bad: bracket", dict(target_modules=r".*[q_proj")),
    ("llama", "regex bad: parenthesis", dict(target_modules=r"(.*q_proj")),
    ("llama", "regex bad: star first", dict(target_modules=r"*q_proj")),
    ("llama", "regex bad: verb", dict(target_modules=r"(*ACCEPT)q_proj")),
    ("llama", "regex bad: recursion", dict(target_modules=r"(?R)|q_proj")),
    ("llama", "regex bad: escape", dict(target_modules=r".*\Kq_proj")),
    ("llama", "regex bad: horizontal space", dict(target_modules=r".*\h*q_proj")),
    ("llama", "regex bad: flags in the middle", dict(target_modules=r".*(?i)q_proj")),
    ("llama", "regex bad: angle group", dict(target_modules=r"(?<n>.*)q_proj")),
    ("llama", "regex bad: backslash at the end", dict(target_modules="q_proj\\")),
    ("llama", "regex bad: counts", dict(target_modules=r"q{3,2}.*")),
    ("llama", "regex bad: exclude", dict(target_modules=["q_proj"], exclude_modules="(")),
    ("llama", "exclude full name", dict(target_modules=["q_proj"], exclude_modules=["model.layers.10.self_attn.q_proj"])),
    ("llama", "exclude last parts", dict(target_modules=["q_proj", "up_proj"], exclude_modules=["0.mlp.up_proj", "proj"])),
    ("llama", "exclude empty string", dict(target_modules=["q_proj"], exclude_modules="")),
    ("llama", "layers", dict(target_modules=["q_proj", "v_proj"], layers_to_transform=[0, 10])),
    ("llama", "one layer", dict(target_modules=["q_proj"], layers_to_transform=1)),
    ("llama", "no layers", dict(target_modules=["q_proj"], layers_to_transform=[])),
    ("llama", "layers and full names", dict(target_modules=["model.layers.1.self_attn.q_proj", "k_proj"], layers_to_transform=[0])),
    ("llama", "layers and pattern", dict(target_modules=["q_proj"], layers_to_transform=[10], layers_pattern="layers")),
    ("llama", "layers and other pattern", dict(target_modules=["q_proj"], layers_to_transform=[10], layers_pattern=["h", "layers"])),
    ("llama", "layers and no such pattern", dict(target_modules=["q_proj"], layers_to_transform=[0], layers_pattern="blocks")),
    ("llama", "layers with a regex", dict(target_modules=".*q_proj", layers_to_transform=[0])),
    ("llama", "pattern without layers", dict(target_modules=["q_proj"], layers_pattern="layers")),
    ("llama", "ranks", dict(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], rank_pattern={"q_proj": 4}, alpha_pattern={"v_proj": 3})),
    ("llama", "ranks, first that matches", dict(target_modules=["q_proj"], rank_pattern={"q_proj": 2, "model.layers.0.self_attn.q_proj": 4})),
    ("llama", "ranks, full name first", dict(target_modules=["q_proj"], rank_pattern={"model.layers.0.self_attn.q_proj": 4, "q_proj": 2})),
    ("llama", "ranks, from the start", dict(target_modules=["q_proj"], rank_pattern={"^model.layers.1.self_attn.q_proj": 4, "^q_proj": 2})),
    ("llama", "ranks, half a part", dict(target_modules=["q_proj"], rank_pattern={"proj": 4, "_proj": 2, "attn.q_proj": 16})),
    ("llama", "ranks, a dot is any character", dict(target_modules=["q_proj", "k_proj"], rank_pattern={"self.attn.q.proj": 4, "0.self_attn.k_proj": 2})),
    ("llama", "ranks, regex", dict(target_modules=["q_proj", "k_proj", "v_proj"], rank_pattern={r".*\.layers\.[01]\..*(q|k)_proj": 4, "(k|v)_proj": 2}, alpha_pattern={r"1\d\..*": 64})),
    ("llama", "ranks, alternatives", dict(target_modules=["q_proj", "k_proj"], rank_pattern={"x|q_proj": 4})),
    ("llama", "ranks, bad", dict(target_modules=["q_proj"], rank_pattern={"(q_proj": 4})),
    ("llama", "rslora", dict(r=10, lora_alpha=7, use_rslora=True, target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 3})),
    ("llama", "alpha is a fraction", dict(r=3, lora_alpha=0.5, target_modules=["q_proj"])),
    ("llama", "rank 0", dict(r=0, target_modules=["q_proj"])),
    ("llama", "save head", dict(target_modules=["q_proj"], modules_to_save=["lm_head"])),
    ("llama", "save half of the head", dict(target_modules=["q_proj"], modules_to_save=["head"])),
    ("llama", "save an mlp", dict(target_modules=["q_proj"], modules_to_save=["0.mlp"])),
    ("llama", "save a layer", dict(target_modules=["q_proj"], modules_to_save=["model.layers.1"])),
    ("llama", "saved and targeted", dict(target_modules=["q_proj", "lm_head"], modules_to_save=["lm_head"])),
    ("llama", "save nothing that is there", dict(target_modules=["q_proj"], modules_to_save=["classifier"])),
    ("sam", "qkv, decoder saved", dict(target_modules=["qkv"], modules_to_save=["mask_decoder"])),
    ("sam", "regex, decoder saved", dict(target_modules=r".*\.(qkv|lin1|q_proj)", modules_to_save=["mask_decoder"])),
    ("sam", "all-linear, decoder saved", dict(target_modules="all-linear", modules_to_save=["mask_decoder"])),
    ("sam", "transformer saved", dict(target_modules=["lin1", "proj_in"], modules_to_save=["transformer"])),
    ("sam", "saved by a regex", dict(target_modules=["lin1", "qkv"], modules_to_save=["mask_decod.r"])),
    ("sam", "layers of both", dict(target_modules=["lin1"], layers_to_transform=[1])),
    ("sam", "layers of one", dict(target_modules=["lin1"], layers_to_transform=[0], layers_pattern="vision_encoder.layers")),
    ("odd", "all-linear", dict(target_modules="all-linear")),
    ("odd", "fc", dict(target_modules=["fc"])),
    ("odd", "fc, layer 2", dict(target_modules=["fc", "w1"], layers_to_transform=[2])),
    ("odd", "fc, layer 0", dict(target_modules=["fc"], layers_to_transform=[0])),
    ("odd", "fc, layer 7", dict(target_modules=["fc", "w1"], layers_to_transform=[7])),
    ("odd", "fc, layer 1 of h", dict(target_modules=["fc"], layers_to_transform=[1], layers_pattern="h")),
    ("odd", "fc, layer 0 of h", dict(target_modules=["fc"], layers_to_transform=[0], layers_pattern="h")),
    ("odd", "fc, pattern layers", dict(target_modules=["fc", "w1"], layers_to_transform=[0, 2, 12], layers_pattern="layers")),
    ("odd", "fc, pattern experts", dict(target_modules=["fc", "w1"], layers_to_transform=[2], layers_pattern=["experts"])),
    ("odd", "fc, pattern regex", dict(target_modules=["fc", "w1"], layers_to_transform=[2], layers_pattern="[lL]ayers")),
    ("odd", "fc, pattern with a dot", dict(target_modules=["fc"], layers_to_transform=[2, 3], layers_pattern=["my.layers", "enc.block"])),
    ("odd", "fc, pattern from the start", dict(target_modules=["fc"], layers_to_transform=[0, 2], layers_pattern="^layers")),
    ("odd", "fc, numbers", dict(target_modules=["fc"], layers_to_transform=[7, 4, 3])),
    ("odd", "save head", dict(target_modules=["w1"], modules_to_save=["head"])),
    ("odd", "save part b", dict(target_modules=["w1"], modules_to_save=["b"])),
    ("odd", "a number as a name", dict(target_modules=["a.0", "x_1"])),
    ("odd", "names with signs", dict(target_modules=["a-b.x_1", "g"], rank_pattern={"a-b.x_1": 2, "e.f.g": 3})),
    ("odd", "a dot in a list is a dot", dict(target_modules=["model.norm", "fc"])),
]


class Toy(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, names, head):
        super().__init__(PretrainedConfig())
        self.head_name = head
        for name in names + ([head] if head else []):
            at = self
            *above, last = name.split(".")
            for part in above:
                if part not in at._modules:
                    at.add_module(part, torch.nn.Module())
                at = at._modules[part]
            at.add_module(last, torch.nn.Linear(4, 4))

    def get_output_embeddings(self):
        return self.get_submodule(self.head_name) if self.head_name else None


def answers(model_name, config):
    names, head = MODELS[model_name]
    model = Toy(names, head)
    wrapped = None
    try:
        wrapped = get_peft_model(model, LoraConfig(**config))
    except (ValueError, re.error) as error:
        if "not found in the base model" in str(error) or "No modules were targeted" in str(error):
            return []
        return ["error"]
    lines = []
    for name in names + ([head] if head else []):
        at, saved = wrapped.base_model.model, False
        for part in name.split("."):
            if isinstance(at, ModulesToSaveWrapper):
                at = at.original_module
            at = at._modules[part]
            saved = saved or isinstance(at, ModulesToSaveWrapper)
        if saved:
            assert not isinstance(at, LoraLayer), name
            lines.append(f"save {name}")
        elif isinstance(at, LoraLayer):
            lines.append(f"adapt {name} {at.r['default']} {at.scaling['default']!r}")
    return lines


def main():
    out = ["# Made by make_peft_matching.py"]
    for name, (names, head) in MODELS.items():
        out += [f"model {name}"] + [f"module {x}" for x in names] + ([f"head {head}"] if head else [])
    for model, title, config in CASES:
        out += [f"case {model} {title}", "config " + json.dumps({"peft_type": "LORA", **config})] + answers(model, config)
    path = pathlib.Path(__file__).parent / "peft_matching.txt"
    path.write_text("\n".join(out) + "\n")
    print(f"{len(CASES)} cases, {path.stat().st_size} bytes")


main()
