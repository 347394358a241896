"""A tiny random model of each family of language models, as the installed transformers saves it: what check_keys.py and
check_families.py begin with.
"""
import zlib

import common  # keeps the hub out

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FAMILIES = ("llama mistral qwen2 qwen3 smollm3 granite olmo2 phi3 gemma2 gemma3_text gemma olmo3 ministral3 gpt2 mixtral "
            "qwen3_moe").split()
UNIT_OFFSET = ("gemma", "gemma2", "gemma3_text")

TINY = dict(vocab_size=37, hidden_size=24, intermediate_size=28, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            head_dim=6, max_position_embeddings=64, pad_token_id=None, bos_token_id=1, eos_token_id=2, rms_norm_eps=1e-5)
OWN = {
    "gpt2": dict(n_embd=24, n_layer=3, n_head=4, n_positions=64, vocab_size=37, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                 bos_token_id=1, eos_token_id=2),
    "mistral": dict(sliding_window=4), "gemma2": dict(sliding_window=4, query_pre_attn_scalar=7), "gemma3_text": dict(sliding_window=4, query_pre_attn_scalar=7),
    "olmo3": dict(sliding_window=4), "phi3": dict(sliding_window=4),
    "mixtral": dict(num_local_experts=4), "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=10),
    "granite": dict(embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.4, logits_scaling=1.7),
    "ministral3": dict(rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=8,
                                            beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)),
}


def tiny_config(family):
    shared = {k: v for k, v in TINY.items() if family != "gpt2"}
    return AutoConfig.for_model(family, **{**shared, **OWN.get(family, {})})


def random_weights(model, family):
    """A weight depends only on its name and shape: a change of a key leaves the other weights as they were."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            g = torch.Generator().manual_seed(zlib.crc32(f"{name} {tuple(p.shape)}".encode()))
            p.copy_(torch.randn(p.shape, generator=g) * (1.0 if name.endswith("mlp.gate.weight") else p.shape[-1] ** -0.5))
            if ("norm.weight" in name or ".ln_" in name and name.endswith("weight")) and family not in UNIT_OFFSET:
                p.add_(1)


def save_tiny(folder, config, family):
    model = AutoModelForCausalLM.from_config(config)
    random_weights(model, family)
    model.save_pretrained(folder)
