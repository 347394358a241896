#!/usr/bin/env python3
"""Writes tests/golden/peft_config/*.json: adapter_config.json as PEFT writes it.

Needs torch, transformers and peft (made with peft 0.21.2):

    python tests/golden/make_peft_config.py
"""
import pathlib
import shutil

from peft import LoraConfig

CONFIGS = {
    "plain": dict(target_modules=["q_proj"]),
    "full": dict(r=16, lora_alpha=32, lora_dropout=0.05, target_modules=["q_proj"], exclude_modules='.*\\.x"y', modules_to_save=["mask_decoder", "lm_head"],
                 bias="lora_only", use_rslora=True, use_dora=True, rank_pattern={"k_proj": 2, "q_proj": 4}, alpha_pattern={"q_proj": 0.5},
                 layers_to_transform=[0, 3], layers_pattern=["layers"], init_lora_weights="gaussian", task_type="CAUSAL_LM",
                 base_model_name_or_path='meta/llama "x"'),
    "all": dict(r=4, lora_alpha=1.5, lora_dropout=0.5, target_modules=["model.fc"], init_lora_weights=False, bias="all", base_model_name_or_path="base"),
}

out = pathlib.Path(__file__).parent / "peft_config"
out.mkdir(exist_ok=True)
for name, config in CONFIGS.items():
    c = LoraConfig(**config, inference_mode=True)
    c.save_pretrained(out)
    shutil.move(out / "adapter_config.json", out / f"{name}.json")
