#!/usr/bin/env python3
"""Do PEFT and transformers open the adapters that `train` writes, and see what the binary sees?

    python tests/golden/check_peft.py build/plimsoll [--only CASE]...     from the repository's root

Each case trains three steps of a new adapter on a small model and opens the folder in PeftModel.from_pretrained:
every tensor has to be there under the name that peft gives it, and the outputs on the model folder's batch have to
agree with those of `plimsoll step --adapter` within 1e-5 (relative L2). Then `plimsoll convert --adapter` merges,
and the merged folder has to agree with peft's merge_and_unload within 1e-6, each weight.

Not run by `make test`: it needs Python with peft. Exit status 1 if a case fails.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub
os.environ.setdefault("PYTHONHASHSEED", "0")

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers.utils import logging

sys.dont_write_bytecode = True
import common
import make_llama
import make_peft
import make_sam
from common import relative

LIST = ["adapter.target_modules=[q_proj, v_proj]"]
# base, then the keys of the run. The bases have the vocabulary of train_untied/tokens.bin or a
# larger one.
CASES = {
    "list": ("basic", LIST),
    "regex": ("basic", [r"adapter.target_modules=model\.layers\.\d+\.(?:self_attn\.[qo]_proj|mlp\.down_proj)"]),
    "all_linear": ("basic", ["adapter.target_modules=all-linear", "adapter.r=2"]),
    "tied": ("tied", ["adapter.target_modules=all-linear"]),
    "layers": ("tied", LIST + ["adapter.layers_to_transform=[0, 2]"]),
    "biases": ("qwen2", LIST + ["adapter.bias=all"]),
    "lora_only": ("bias", LIST + ["adapter.bias=lora_only"]),
    "rslora": ("basic", LIST + ["adapter.use_rslora=true", "adapter.lora_alpha=3", "adapter.init_lora_weights=gaussian"]),
    "dora": ("basic", LIST + ["adapter.use_dora=true"]),
    "dora_bias": ("bias", LIST + ["adapter.use_dora=true", "adapter.bias=lora_only"]),
    "patterns": ("basic", LIST + ["adapter.rank_pattern={q_proj: 2}", "adapter.alpha_pattern={v_proj: 5}"]),
    "save": ("basic", LIST + ["adapter.modules_to_save=[embed_tokens, lm_head]"]),
    "exclude": ("basic", LIST + ["adapter.exclude_modules=[layers.0.self_attn.q_proj]"]),
    "dropout": ("basic", LIST + ["adapter.lora_dropout=0.1"]),
    "bf16": ("bf16", LIST),
    "noprefix": ("noprefix", LIST),
    "continued": ("basic", ["adapter.path=tests/golden/peft/patterns"]),
    "continued_head": ("basic", ["adapter.path=tests/golden/peft/head"]),
    "continued_bin": ("basic", ["adapter.path=tests/golden/peft/bin"]),
    "continued_bias": ("qwen2", ["adapter.path=tests/golden/peft/bias_lora_only"]),
}


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def sets(keys):
    return [w for k in keys for w in ("--set", k)]


def check_case(binary, name, base, keys, tmp):
    folder, adapter = os.path.join("tests/golden", base), os.path.join(tmp, name, "model")
    batch, got, merged = os.path.join(folder, "batch.safetensors"), os.path.join(tmp, "got.safetensors"), os.path.join(tmp, name + "-merged")
    common = ["memory.precision=f32", "device.kind=cpu"]
    run(binary, "train", "tests/golden/train_untied/run.yaml",
        *sets([f"model.path={folder}", f"train.out={os.path.join(tmp, name)}", "train.steps=3", "train.warmup_steps=0", *common, *keys]))
    run(binary, "step", "--model", folder, "--adapter", adapter, "--batch", batch, "--out", got, *sets(common))
    c = dict(base=base, nf4=None)
    model = PeftModel.from_pretrained(make_peft.load_base(c, torch.float32), adapter, is_trainable=True).eval()
    make_peft.check_loaded(adapter, c, model)
    ours, theirs = load_file(got), make_peft.outputs(model, c, load_file(batch), torch.float32)
    off = relative(ours["logits"], theirs["logits"].detach())
    run(binary, "convert", folder, "--adapter", adapter, "-o", merged)
    # In the precision of the file: what is not adapted has to be as it was, bit for bit.
    whole = make_llama.load_model(merged, torch.float32).state_dict()
    merge = 0.0
    for n, w in model.merge_and_unload().state_dict().items():
        merge = max(merge, relative(whole[n], w.to(whole[n].dtype)))
    bound = 1e-6 if base != "bf16" else 2 ** -8
    ok = off <= 1e-5 and merge <= bound
    print(f"{'ok  ' if ok else 'FAIL'} {name:16} logits {off:.1e}, merged weights {merge:.1e}")
    return ok


def check_sam(binary, tmp):
    """The MedSAM way: LoRA on the encoder's qkv, the mask decoder trained whole. Outputs instead of weights."""
    made, base, adapter, merged = (os.path.join(tmp, n) for n in ("set", "sam-base/model", "sam/model", "sam-merged"))
    batch_path, got = os.path.join(tmp, "batch.safetensors"), os.path.join(tmp, "got.safetensors")
    run(binary, "data", "make", made, "--images", "8", "--shards", "1", "--size", "96x80", "--masks", "3")
    yaml = os.path.join(tmp, "sam.yaml")
    with open(yaml, "w") as f:
        f.write(f"model: {{preset: sam-tiny}}\ndata: {{format: sa1b, train: '{made}/*.tar', max_masks: 2}}\n"
                f"train: {{steps: 1, effective_batch: 2, learning_rate: 0.001, out: {tmp}/sam-base}}\nmemory: {{precision: f32}}\ndevice: cpu\n")
    run(binary, "train", yaml)
    run(binary, "train", yaml, *sets([f"model.path={base}", "model.preset=null", "train.steps=3", f"train.out={tmp}/sam",
                                      "adapter.target_modules=[qkv]", "adapter.modules_to_save=[mask_decoder]"]))
    size = json.load(open(os.path.join(base, "config.json")))["vision_config"]
    c = make_sam.case(image=size["image_size"], patch=size["patch_size"], B=1)
    batch = make_sam.random_batch(c, torch.Generator().manual_seed(1))
    common.write_tensors(batch_path, batch)
    model = PeftModel.from_pretrained(make_sam.load_model(base, c, torch.float32), adapter, is_trainable=True).eval()
    make_peft.check_loaded(adapter, dict(base="sam_tiny"), model)
    theirs = make_sam.outputs(model.get_base_model(), c, batch, torch.float32)
    off = []
    for more in (["--model", base, "--adapter", adapter], ["--model", merged]):
        if more[1] == merged:
            run(binary, "convert", base, "--adapter", adapter, "-o", merged)
        run(binary, "step", *more, "--batch", batch_path, "--out", got, *sets(["memory.precision=f32", "device.kind=cpu"]))
        ours = load_file(got)
        off.append(max(relative(ours[n], theirs[n].detach()) for n in ("pred_masks", "iou_scores", "image_embeddings")))
    ok = max(off) <= 1e-5
    print(f"{'ok  ' if ok else 'FAIL'} {'sam':16} outputs {off[0]:.1e}, merged {off[1]:.1e}")
    return ok


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("binary")
    p.add_argument("--only", action="append", choices=[*CASES, "sam"], metavar="CASE")
    a = p.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    checks = {n: lambda tmp, n=n, c=c: check_case(a.binary, n, *c, tmp) for n, c in CASES.items()}
    checks["sam"] = lambda tmp: check_sam(a.binary, tmp)
    failed = 0
    with tempfile.TemporaryDirectory() as tmp:
        for name, check in checks.items():
            if not a.only or name in a.only:
                try:
                    failed += not check(tmp)
                except (SystemExit, Exception) as e:
                    failed += 1
                    print(f"FAIL {name:16} {e}")
    print(f"{failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
