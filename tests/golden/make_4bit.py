#!/usr/bin/env python3
"""Writes nf4/nested and nf4/single: small Llama folders that transformers saved in 4 bits with bitsandbytes, with
and without double quantization, a batch, and what PyTorch computes on it.

    python make_4bit.py          in tests/golden; needs torch, transformers, bitsandbytes, safetensors

(made with 2.15, 5.22.2, 0.50.2 on the CPU). expect.safetensors has loss, logits and the gradients of the weights that
are not in 4 bits, in f32. Rows are multiples of 64 weights, for the reason that make_nf4.py gives. nf4/fp4 is in another form, which is refused.
"""
import os
import shutil
import torch
from safetensors.torch import save_file
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

os.makedirs("nf4", exist_ok=True)
torch.manual_seed(19)
torch.set_num_threads(1)
shape = dict(vocab_size=48, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, tie_word_embeddings=False)
base = LlamaForCausalLM(LlamaConfig(**shape)).float()
with torch.no_grad():
    for p in base.parameters():
        p.add_(0.2 * torch.randn_like(p))
base.save_pretrained("nf4/base")
ids = torch.randint(0, 48, (2, 12))


def load(**changes):
    options = dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.float32)
    config = BitsAndBytesConfig(**{**options, **changes})
    return LlamaForCausalLM.from_pretrained("nf4/base", quantization_config=config, dtype=torch.float32, device_map={"": "cpu"})


def save(model, folder):
    model.save_pretrained(folder)
    os.remove(f"{folder}/generation_config.json")


for name, nested in (("nested", True), ("single", False)):
    model = load(bnb_4bit_use_double_quant=nested)
    save(model, f"nf4/{name}")
    for n, p in model.named_parameters():
        p.requires_grad_(not n.endswith("_proj.weight"))
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    expect = {"loss": out.loss.detach().reshape(()), "logits": out.logits.detach().float()}
    expect.update({"grad." + n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    save_file({k: v.contiguous().clone() for k, v in expect.items()}, f"nf4/{name}/expect.safetensors")
    save_file({"input_ids": ids.to(torch.int32), "labels": ids.to(torch.int32)}, f"nf4/{name}/batch.safetensors")
save(load(bnb_4bit_quant_type="fp4"), "nf4/fp4")
shutil.rmtree("nf4/base")
