#!/usr/bin/env python3
"""Writes tests/golden/peft_merge: bases, adapters that PEFT saved, and the tensors that PEFT's merge changed.

Needs torch, transformers and peft (made with peft 0.21.2):

    python tests/golden/make_peft_merge.py

    BASE/                config.json, model.safetensors
    CASE/                adapter_config.json, adapter_model.safetensors (or .bin)
    CASE/base            the name of its base
    CASE/expect*.safetensors  the tensors of merge_and_unload that differ from the base, named as the base's files

The weights of an adapter are random. Where PEFT's own merge is not what its forward computes (a head that
shares the embedding's weight), the expected tensors are computed from the wrapped model instead.
"""
import json
import os
import pathlib
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

# Relative, because PEFT writes the base's path into adapter_config.json.
out = pathlib.Path(os.path.relpath(pathlib.Path(__file__).parent / "peft_merge"))
shutil.rmtree(out, ignore_errors=True)
shape = dict(vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16)


def keep_small(folder):
    """transformers writes every default; these keys describe the model."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    keys = list(shape) + ["architectures", "model_type", "tie_word_embeddings", "rms_norm_eps", "dtype", "hidden_act", "rope_theta", "n_embd", "n_head", "n_layer", "n_positions"]
    path.write_text(json.dumps({k: config[k] for k in sorted(keys) if k in config}, indent=2) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)


def make_base(name, model, shards=None):
    folder = out / name
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3)
    model.tie_weights()
    model.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    keep_small(folder)
    return model


def randomize(model):
    with torch.no_grad():
        for n, p in model.named_parameters():
            if p.requires_grad:
                p.copy_(p + torch.randn_like(p) * 0.2)


def weights(folder):
    found = {}
    for path in sorted(folder.glob("model*.safetensors")):
        found.update(load_file(path))
    return found


def make_case(name, base, cls, expect=None, binary=False, dtype=None, **config):
    model = cls.from_pretrained(out / base, dtype=dtype or torch.float32)
    peft = get_peft_model(model, LoraConfig(**config))
    randomize(peft)
    folder = out / name
    peft.save_pretrained(folder)
    (folder / "README.md").unlink()
    if binary:
        tensors = load_file(folder / "adapter_model.safetensors")
        (folder / "adapter_model.safetensors").unlink()
        first = next(iter(tensors))
        tensors[first] = tensors[first].t().contiguous().t()  # strides that are not row-major
        torch.save(tensors, folder / "adapter_model.bin")
    (folder / "base").write_text(base)
    before = weights(out / base)
    if expect:
        after = expect(peft, before)
    else:
        after = {k: v.detach() for k, v in peft.merge_and_unload().state_dict().items()}
    changed = {k: v.to(before.get(k, v).dtype).contiguous().clone() for k, v in after.items() if k not in before or not torch.equal(v, before[k])}
    for path in sorted((out / base).glob("model*.safetensors")):
        shard = load_file(path)
        part = {k: v for k, v in changed.items() if k in shard or k not in before}
        save_file(part, folder / path.name.replace("model", "expect"))
    print(name, len(changed), "tensors changed")


def module_delta(layer):
    return (layer.lora_B["default"].weight @ layer.lora_A["default"].weight) * layer.scaling["default"]


torch.manual_seed(7)
make_base("llama", LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False)), shards="3KB")
make_base("half", LlamaForCausalLM(LlamaConfig(**{**shape, "num_hidden_layers": 1}, tie_word_embeddings=False)).to(torch.bfloat16))
make_base("qwen", Qwen2ForCausalLM(Qwen2Config(**{**shape, "num_hidden_layers": 1}, tie_word_embeddings=False)))
make_base("tied", LlamaForCausalLM(LlamaConfig(**{**shape, "num_hidden_layers": 1}, tie_word_embeddings=True)))

make_case("patterns", "llama", LlamaForCausalLM, r=3, lora_alpha=5, target_modules=["q_proj", "v_proj", "up_proj"],
          rank_pattern={"v_proj": 2, "layers.1.mlp.up_proj": 1}, alpha_pattern={"q_proj": 7.5})
make_case("rslora", "half", LlamaForCausalLM, dtype=torch.bfloat16, r=2, lora_alpha=3, use_rslora=True, target_modules="all-linear")
make_case("dora", "qwen", Qwen2ForCausalLM, r=2, use_dora=True, target_modules=["q_proj", "k_proj", "down_proj"], bias="all")
make_case("biases", "qwen", Qwen2ForCausalLM, r=2, target_modules=["q_proj", "o_proj"], bias="lora_only", binary=True)
make_case("whole", "qwen", Qwen2ForCausalLM, r=2, target_modules=["up_proj"], modules_to_save=["lm_head", "norm", "self_attn"], bias="all")


def tied_lora(peft, before):
    model = peft.base_model.model
    W = before["model.embed_tokens.weight"]
    return {"lm_head.weight": (W + module_delta(model.lm_head)).detach()}


def tied_saved(peft, before):
    model = peft.base_model.model
    return {"lm_head.weight": before["model.embed_tokens.weight"] + 0,
            "model.embed_tokens.weight": model.model.embed_tokens.modules_to_save["default"].weight.detach()}


make_case("tied_lora", "tied", LlamaForCausalLM, expect=tied_lora, r=2, target_modules=["lm_head"])
make_case("tied_saved", "tied", LlamaForCausalLM, expect=lambda p, b: {**tied_saved(p, b), "model.layers.0.self_attn.q_proj.weight": (
    b["model.layers.0.self_attn.q_proj.weight"] + module_delta(p.base_model.model.model.layers[0].self_attn.q_proj)).detach()},
    r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
make_case("orthogonal", "llama", LlamaForCausalLM, r=2, lora_alpha=3, target_modules=["k_proj", "down_proj"], init_lora_weights="orthogonal")

# Conv1D: weights are [inputs,outputs], and one of them is square.
make_base("gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=16)))


def without_head(peft, before):
    return {k: v.detach() for k, v in peft.merge_and_unload().state_dict().items() if k != "lm_head.weight"}


def gpt2_saved(peft, before):
    model = peft.base_model.model
    head = before["transformer.wte.weight"] + 0
    return {**without_head(peft, before), "lm_head.weight": head, "transformer.wte.weight": model.transformer.wte.weight.detach()}


make_case("gpt2_lora", "gpt2", GPT2LMHeadModel, expect=without_head, r=2, target_modules="all-linear", use_rslora=True)
make_case("gpt2_dora", "gpt2", GPT2LMHeadModel, expect=without_head, r=2, use_dora=True, target_modules=["c_attn", "c_proj"], bias="lora_only")
make_case("gpt2_saved", "gpt2", GPT2LMHeadModel, expect=gpt2_saved, r=2, target_modules=["attn.c_proj"], modules_to_save=["wte"])
print(sum(p.stat().st_size for p in out.rglob("*") if p.is_file()), "bytes")
