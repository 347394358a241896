#!/usr/bin/env python3
"""import.txt: the keys of other programs' configurations with the defaults that they have there.

A line "PROGRAM KEY DEFAULT"; "-" is None. tests/test_import.c checks that each key is known, and that each default is the one
of src/import/import.def. transformers, TRL and PEFT are imported; of the others only the files of their options are read,
in checkouts under the folder that is given: DeepSpeed (0.19.6), LLaMA-Factory (0.9.5), LLaVA (1.2.2), ms-swift (4.6), axolotl (0.18.0).

    python tests/golden/make_import.py CHECKOUTS
"""
import ast
import dataclasses
import glob
import json
import os
import sys

import peft
import transformers
import trl

ROOT = sys.argv[1]
lines = []


def put(program, key, default):
    if default is None:
        text = "-"
    elif isinstance(default, bool):
        text = "true" if default else "false"
    elif isinstance(default, (list, tuple, dict, set)):
        text = json.dumps(list(default)).replace(" ", "") if default else "-"
    else:
        text = str(getattr(default, "value", default)) or "-"
    if " " not in text:
        lines.append(f"{program} {key} {text}")


def by_import(program, cls, but=()):
    for f in dataclasses.fields(cls):
        default = f.default if f.default is not dataclasses.MISSING else f.default_factory() if f.default_factory is not dataclasses.MISSING else None
        if f.name not in but or but[f.name] != default:
            put(program, f.name, default)


def literal(node):
    """The value of a default, or of the default in field(...) or Field(...); a class or a function has none."""
    if isinstance(node, ast.Call):
        for k in node.keywords:
            if k.arg == "default":
                return literal(k.value)
            if k.arg == "default_factory":
                return literal(k.value.body) if isinstance(k.value, ast.Lambda) else None
        if node.args:
            return literal(node.args[0])
        return None
    if isinstance(node, ast.Attribute):
        raise ValueError
    return eval(compile(ast.Expression(node), "", "eval"), {})  # 768 * 768


def by_source(program, pattern, classes=None, prefix=""):
    for path in sorted(glob.glob(os.path.join(ROOT, pattern))):
        for c in ast.parse(open(path).read()).body:
            if not isinstance(c, ast.ClassDef) or (classes and c.name not in classes):
                continue
            for s in c.body:
                if not isinstance(s, ast.AnnAssign) or not isinstance(s.target, ast.Name) or s.target.id.startswith("_"):
                    continue
                try:
                    put(program, prefix + s.target.id, literal(s.value) if s.value else None)
                except Exception:
                    put(program, prefix + s.target.id, "?")


def by_signature(program, path, cls, prefix, keep):
    for c in ast.parse(open(os.path.join(ROOT, path)).read()).body:
        if isinstance(c, ast.ClassDef) and c.name == cls:
            f = next(x for x in c.body if isinstance(x, ast.FunctionDef) and x.name == "__init__")
            names = [a.arg for a in f.args.args]
            for name, default in zip(names[-len(f.args.defaults):], f.args.defaults):
                if name in keep:
                    put(program, prefix + name, literal(default) if not isinstance(default, ast.Name) else "log")


base = {f.name: f.default for f in dataclasses.fields(transformers.TrainingArguments)}
by_import("hf", transformers.TrainingArguments)
by_import("trl", trl.SFTConfig, base)
by_import("trl", trl.ModelConfig)
by_import("trl", trl.ScriptArguments)
by_import("peft", peft.LoraConfig)
lf = "LLaMA-Factory/src/llamafactory/hparams/"
by_source("lf", lf + "data_args.py", ["DataArguments"])
by_source("lf", lf + "finetuning_args.py")
by_source("lf", lf + "generating_args.py")
by_source("lf", lf + "model_args.py", ["BaseModelArguments", "QuantizationArguments", "ProcessorArguments", "ExportArguments", "VllmArguments", "SGLangArguments"])
by_source("lf", lf + "training_args.py")
by_source("llava", "LLaVA/llava/train/train.py", ["ModelArguments", "DataArguments", "TrainingArguments"])
for name in ("model", "data", "template", "quant", "generation", "base"):
    by_source("swift", f"ms-swift/swift/arguments/base_args/{name}_args.py")
by_source("swift", "ms-swift/swift/arguments/tuner_args.py", ["TunerArguments"])
by_source("swift", "ms-swift/swift/arguments/sft_args.py", ["SftArguments"])
by_source("swift", "ms-swift/swift/trainers/arguments.py", ["TrainArgumentsMixin"])
schemas = "axolotl/src/axolotl/utils/schemas/"
by_source("axolotl", schemas + "config.py", ["AxolotlInputConfig"])
by_source("axolotl", schemas + "training.py", ["HyperparametersConfig"])
by_source("axolotl", schemas + "model.py", ["ModelInputConfig", "ModelOutputConfig"])
by_source("axolotl", schemas + "peft.py", ["LoraConfig", "ReLoRAConfig"])
ds = "DeepSpeed/deepspeed/"
by_source("ds", ds + "runtime/precision_config.py", ["DeepSpeedBF16Config"], "bf16.")
by_source("ds", ds + "runtime/precision_config.py", ["DeepSpeedFP16Config"], "fp16.")
by_source("ds", ds + "runtime/zero/config.py", ["DeepSpeedZeroConfig"], "zero_optimization.")
by_source("ds", ds + "runtime/zero/offload_config.py", ["DeepSpeedZeroOffloadOptimizerConfig"], "zero_optimization.offload_optimizer.")
by_source("ds", ds + "runtime/zero/offload_config.py", ["DeepSpeedZeroOffloadParamConfig"], "zero_optimization.offload_param.")
by_signature("ds", ds + "ops/adam/fused_adam.py", "FusedAdam", "optimizer.params.", ["lr", "bias_correction", "betas", "eps", "weight_decay", "amsgrad"])
by_signature("ds", ds + "runtime/lr_schedules.py", "WarmupDecayLR", "scheduler.params.", ["warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration"])
by_signature("ds", ds + "runtime/lr_schedules.py", "WarmupCosineLR", "scheduler.params.", ["warmup_min_ratio", "cos_min_ratio"])
constants = {}
exec("\n".join(x for x in open(os.path.join(ROOT, ds + "runtime/constants.py")) if x.startswith(("GRADIENT_CLIPPING_DEFAULT", "GRADIENT_ACCUMULATION_STEPS_DEFAULT", "TRAIN_BATCH_SIZE_DEFAULT"))), {}, constants)
put("ds", "gradient_clipping", constants["GRADIENT_CLIPPING_DEFAULT"])
put("ds", "train_batch_size", constants["TRAIN_BATCH_SIZE_DEFAULT"])
put("ds", "gradient_accumulation_steps", constants["GRADIENT_ACCUMULATION_STEPS_DEFAULT"])

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "import.txt"), "w") as f:
    f.write("\n".join(dict.fromkeys(lines)) + "\n")
