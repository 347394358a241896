#!/usr/bin/env python3
"""Golden files for `plimsoll step` on language models, made with PyTorch and transformers.

    python tests/golden/make_llama.py [--out DIR] [--seed N] [--only CASE]...
    python tests/golden/make_llama.py --random K --out DIR [--seed N]

Each case is one folder:

    config.json             written here key by key, in the style of transformers 4
                            or 5, so that it does not follow the installed version
    model.safetensors       random weights; or shards with their index
    batch.safetensors       input_ids, labels (-100 is ignored); attention_mask or position_ids
    expect.safetensors      logits, loss, grad.<name> for every parameter

Rows of several conversations (position_ids) are expected to give what each conversation
gives alone; transformers' own packed forward must agree. The logits of padding mean
nothing: they are NaN here, and are not compared.

What holds: the weights and config.json are written first, and the reference is
the family's ForCausalLM.from_pretrained(folder) in float32 with eager attention. So the
expectation follows the bytes on disk and transformers' own reading of the config,
never a model in memory that the folder only claims to describe. Parameter names
are those of its named_parameters(), which lists a tied weight once,
as model.embed_tokens.weight, also where the file's names lack the "model." prefix.

The last column of the printed table is the distance between this float32 gradient
and one computed in float64 (transformers keeps RMSNorm and the loss in float32):
what a correct implementation may differ by, to set against the tolerance.
"""
import os

import torch

from common import IGNORE, backward, main, relative, write_json, write_tensors  # before transformers: it sets HF_HUB_OFFLINE
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func


def case(**changes):
    """A case is a plain dictionary: the model's sizes, how it is written, the batch."""
    base = dict(
        # the model; extra: further keys of config.json
        family="llama", extra=None,
        vocab=61, hidden=24, heads=4, kv_heads=2, head_dim=None, layers=2, inter=40,
        tied=False, attention_bias=False, mlp_bias=False, eps=1e-5, theta=10000.0,
        rope=None, positions=64,
        # how it is written: config style, dtype on disk, number of files, "model." prefix
        style=4, dtype="float32", shards=1, prefix=True, omit=(),
        # fused: experts as transformers 5 has them in memory
        fused=False,
        # the batch
        B=2, T=12, ids="int64", ignore_rows=(), std=0.2,
        # padded: (left, right) of each row; packed: the lengths of each row's conversations
        padded=None, packed=None,
    )
    unknown = set(changes) - set(base)
    assert not unknown, unknown
    return {**base, **changes}


# With head_dim 12 and theta 100 the six wavelengths run from 6.3 to 290, so the
# bounds 8 and 32 that follow from original_max_position_embeddings 32 put some
# frequencies in each of llama3's three ranges: kept, smoothed, divided.
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
LLAMA3_SIZES = dict(vocab=67, hidden=24, heads=2, kv_heads=1, head_dim=12, layers=1,
                    inter=28, theta=100.0, positions=256, T=40, B=2)

CASES = {
    "basic": case(eps=1e-2),  # an eps large enough that a wrong one is seen
    "tied": case(tied=True, style=5, vocab=73, layers=3, inter=33),
    "llama3_v4": case(rope=LLAMA3, style=4, **LLAMA3_SIZES),
    "llama3_v5": case(rope=LLAMA3, style=5, **LLAMA3_SIZES),
    # "type" is how configs of the Llama 2 time spell rope_type.
    "linear_v4": case(rope=dict(type="linear", factor=4.0), style=4, layers=1, T=21,
                      theta=50.0, B=1),
    "linear_v5": case(rope=dict(rope_type="linear", factor=2.5), style=5, layers=1, T=21,
                      theta=50.0, tied=True),
    "odd": case(hidden=40, heads=5, kv_heads=1, head_dim=12, inter=37, T=13, B=3,
                vocab=53, style=5, ids="int32", layers=2),
    "bias": case(attention_bias=True, mlp_bias=True, style=4, vocab=64, hidden=32, inter=24,
                 layers=1),
    "sharded": case(shards=3, style=5, vocab=97, theta=500000.0),
    "bf16": case(dtype="bfloat16", style=4, ids="int32", vocab=89, hidden=32, heads=8,
                 kv_heads=2, layers=2, inter=48),
    "ignored_row": case(ignore_rows=(1,), B=3, T=9, style=5, tied=True, layers=1),
    # Saved from LlamaModel: no "model." prefix and no head. The config is as old as
    # they come: no head_dim, num_key_value_heads, rope_theta or rope_scaling.
    "noprefix": case(prefix=False, tied=True, style=4, kv_heads=4, layers=2, vocab=79, inter=29,
                     omit=("head_dim", "num_key_value_heads", "rope_theta", "rope_scaling",
                           "attention_bias", "mlp_bias")),
    # T is longer than the window, so a wrong edge is seen; null means no window at all.
    "mistral": case(family="mistral", extra=dict(sliding_window=5), style=4, T=17, vocab=59, inter=31),
    "mistral_v5": case(family="mistral", extra=dict(sliding_window=None), style=5, T=11, layers=1, head_dim=10),
    "qwen2": case(family="qwen2", tied=True, style=4, vocab=71, inter=35, layers=2,
                  extra=dict(use_sliding_window=False, sliding_window=4, max_window_layers=1)),
    "qwen2_window": case(family="qwen2", style=5, layers=3, T=15, vocab=51, inter=27, eps=1e-6,
                         extra=dict(use_sliding_window=True, sliding_window=4, max_window_layers=1,
                                    layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    # pad_token_id is nn.Embedding's padding_idx: no gradient from the lookup of that id, but a tied
    # head's; -1 is the last id. The padding has labels: only -100 is out of the loss.
    "pad": case(extra=dict(pad_token_id=3), vocab=29, hidden=12, heads=2, kv_heads=1, layers=1, inter=20, T=9),
    "pad_tied": case(family="qwen2", tied=True, style=5, vocab=31, hidden=12, heads=2, kv_heads=2, layers=1,
                     inter=18, T=9, extra=dict(pad_token_id=-1, use_sliding_window=False)),
}
# Padding at the left, at the right, at both ends and nowhere; conversations of several lengths, one
# of them a single token. The windows are shorter than a conversation.
ROWS = dict(vocab=29, hidden=12, heads=2, kv_heads=1, layers=2, inter=18, T=16)
PADDED = dict(ROWS, B=4, padded=((5, 0), (0, 4), (3, 2), (0, 0)))
PACKED = dict(ROWS, B=2, packed=((7, 1, 8), (10, 6)))
MISTRAL = dict(family="mistral", extra=dict(sliding_window=4))
QWEN2 = dict(family="qwen2", style=5, tied=True,
             extra=dict(use_sliding_window=True, sliding_window=3, max_window_layers=1,
                        layer_types=["full_attention", "sliding_attention"]))
CASES.update({
    "padded": case(**PADDED), "packed": case(**PACKED),
    "mistral_padded": case(**MISTRAL, **PADDED), "mistral_packed": case(**MISTRAL, **PACKED),
    "qwen2_padded": case(**QWEN2, **PADDED), "qwen2_packed": case(**QWEN2, **PACKED),
})
# The other families: two configurations each, and rows of both kinds where a layer is new.
CASES.update({
    # head_dim is a key of its own; the norms of q and k are apart.
    "qwen3": case(family="qwen3", tied=True, style=4, vocab=71, heads=3, kv_heads=1, head_dim=10, inter=35, eps=1e-2,
                  extra=dict(attention_bias=False, use_sliding_window=False, sliding_window=4, max_window_layers=1)),
    "qwen3_window": case(family="qwen3", style=5, layers=3, T=15, vocab=51, inter=27, head_dim=8, eps=1e-6,
                         extra=dict(attention_bias=True, use_sliding_window=True, sliding_window=4, max_window_layers=1)),
    "qwen3_packed": case(family="qwen3", **PACKED, head_dim=8, style=5, extra=dict(attention_bias=False)),
    # Layers that do not rotate; those have the window. no_rope_layers names them, or an interval.
    "smollm3": case(family="smollm3", tied=True, style=4, vocab=43, heads=3, kv_heads=1, hidden=18, layers=3, inter=21, T=9, theta=50.0,
                    extra=dict(attention_bias=True, mlp_bias=True, no_rope_layers=[1, 0, 1], use_sliding_window=True,
                               sliding_window=4, pad_token_id=7)),
    "smollm3_packed": case(family="smollm3", **PACKED, style=5, extra=dict(no_rope_layer_interval=2, pad_token_id=None)),
    # Four factors, none of them a power of 2.
    "granite": case(family="granite", style=4, vocab=37, heads=3, kv_heads=3, hidden=18, inter=23, layers=2, T=9, tied=True,
                    extra=dict(embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.22, logits_scaling=1.7)),
    "granite_packed": case(family="granite", **PACKED, style=5,
                           extra=dict(attention_bias=True, mlp_bias=True, embedding_multiplier=12, attention_multiplier=0.0625,
                                      residual_multiplier=0.4, logits_scaling=0.7)),
    # The norms of q and k have as many weights as their heads together.
    "olmo2": case(family="olmo2", style=4, vocab=41, heads=3, kv_heads=1, hidden=18, inter=23, eps=1e-2, T=9, extra=dict(pad_token_id=None)),
    "olmo2_padded": case(family="olmo2", **PADDED, style=5, tied=True, extra=dict(attention_bias=True, pad_token_id=3)),
    # One matrix for q, k and v, one for gate and up. T is longer than the training length: the long
    # factors; a part of each head is rotated.
    "phi3": case(family="phi3", style=4, vocab=31, hidden=32, heads=2, kv_heads=1, inter=21, layers=1, T=12, tied=True, theta=50.0,
                 rope=dict(type="longrope", short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5], long_factor=[1.0, 2.5, 3.0, 5.0, 6.0, 7.5]),
                 extra=dict(partial_rotary_factor=0.75, original_max_position_embeddings=8, pad_token_id=None)),
    "phi3_packed": case(family="phi3", **PACKED, style=5, theta=50.0,
                        rope=dict(rope_type="longrope", short_factor=[1.0, 1.5, 2.0], long_factor=[1.0, 2.5, 3.0]),
                        extra=dict(original_max_position_embeddings=32, pad_token_id=3, sliding_window=4)),
    # Both caps are small enough to bend. The norms multiply by 1 + w: weights are around 0.
    "gemma2": case(family="gemma2", style=4, vocab=37, heads=3, kv_heads=1, hidden=18, head_dim=8, inter=23, layers=3, T=11, eps=1e-2, tied=True,
                   extra=dict(hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=20, attn_logit_softcapping=1.5,
                              final_logit_softcapping=2.5, sliding_window=4, pad_token_id=0)),
    "gemma2_packed": case(family="gemma2", **PACKED, style=5, head_dim=10, tied=True,
                          extra=dict(attention_bias=True, query_pre_attn_scalar=7, attn_logit_softcapping=2.0, sliding_window=3,
                                     final_logit_softcapping=None, layer_types=["full_attention", "sliding_attention"])),
    "gemma3": case(family="gemma3_text", style=4, vocab=37, heads=3, kv_heads=1, hidden=18, head_dim=8, inter=23, layers=3, T=11, tied=True,
                   theta=80.0, rope=dict(rope_type="linear", factor=4.0),
                   extra=dict(query_pre_attn_scalar=20, sliding_window=4, sliding_window_pattern=2, rope_local_base_freq=20.0)),
    "gemma3_packed": case(family="gemma3_text", **PACKED, style=5, head_dim=10, tied=False,
                          extra=dict(attention_bias=True, query_pre_attn_scalar=7, sliding_window=3, final_logit_softcapping=3.0,
                                     layer_types=["full_attention", "sliding_attention"], pad_token_id=3,
                                     rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=60.0),
                                                          sliding_attention=dict(rope_type="default", rope_theta=15.0)))),
    # "gelu" is the tanh approximation in this family.
    "gemma": case(family="gemma", style=4, vocab=37, heads=3, kv_heads=1, hidden=18, head_dim=8, inter=23, T=9, tied=True,
                  extra=dict(hidden_act="gelu")),
    "gemma_padded": case(family="gemma", **PADDED, style=5, head_dim=10, tied=True,
                         extra=dict(hidden_act="gelu_pytorch_tanh", attention_bias=True, pad_token_id=None)),
    # Positions are scaled in full layers only.
    "olmo3": case(family="olmo3", style=4, vocab=37, heads=3, kv_heads=1, hidden=18, inter=23, layers=4, T=11, theta=500000.0,
                  rope=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=1.0),
                  extra=dict(sliding_window=4, pad_token_id=None)),
    "olmo3_packed": case(family="olmo3", **PACKED, style=5, tied=True,
                         extra=dict(attention_bias=True, pad_token_id=3, sliding_window=3, layer_types=["full_attention", "sliding_attention"],
                                    rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=60.0),
                                                         sliding_attention=dict(rope_type="default", rope_theta=15.0)))),
    # Queries grow after 4 and after 8 positions.
    "ministral3": case(family="ministral3", style=5, vocab=37, heads=3, kv_heads=1, hidden=18, head_dim=8, inter=23, T=13, theta=80.0,
                       rope=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=4, beta_fast=4.0, beta_slow=1.0,
                                 mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4),
                       extra=dict(pad_token_id=None, sliding_window=None)),
    "ministral3_packed": case(family="ministral3", **PACKED, style=5, tied=True, theta=80.0, head_dim=8,
                              rope=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=4, llama_4_scaling_beta=0.4),
                              extra=dict(pad_token_id=3, sliding_window=5)),
    # Weights are [inputs,outputs]; n_inner is 4 n_embd where it is null.
    "gpt2": case(family="gpt2", vocab=37, heads=3, hidden=18, inter=None, T=9, positions=11, eps=1e-2, tied=True, extra=dict(pad_token_id=3)),
    "gpt2_padded": case(family="gpt2", **PADDED, positions=16, extra=dict(activation_function="relu", scale_attn_weights=False)),
    # Experts: some without a row, all but one layer with them; weights that add up to 1 or do not.
    "mixtral": case(family="mixtral", style=4, vocab=37, heads=2, kv_heads=1, hidden=16, inter=12, layers=2, T=9,
                    extra=dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=4)),
    "mixtral_packed": case(family="mixtral", **PACKED, style=5,
                           extra=dict(num_local_experts=3, num_experts_per_tok=1, sliding_window=None)),
    "qwen3_moe": case(family="qwen3_moe", style=4, vocab=37, heads=2, kv_heads=1, hidden=16, head_dim=10, inter=20, layers=3, T=9, tied=True,
                      extra=dict(num_experts=9, num_experts_per_tok=3, moe_intermediate_size=7, norm_topk_prob=False, mlp_only_layers=[1],
                                 attention_bias=True)),
    "qwen3_moe_padded": case(family="qwen3_moe", **PADDED, style=5, head_dim=8,
                             extra=dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=10, norm_topk_prob=True,
                                        decoder_sparse_step=2, attention_bias=False)),
    # The loss that balances experts is part of the loss, without padding. All rows are one group.
    "mixtral_balanced": case(family="mixtral", style=4, vocab=33, heads=2, kv_heads=1, hidden=16, inter=12, layers=2, T=9, B=3,
                             extra=dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=None, output_router_logits=True,
                                        router_aux_loss_coef=0.7)),
    "mixtral_balanced_packed": case(family="mixtral", **PACKED, style=5,
                                    extra=dict(num_local_experts=3, num_experts_per_tok=1, sliding_window=4, output_router_logits=True,
                                               router_aux_loss_coef=0.5)),
    "qwen3_moe_balanced": case(family="qwen3_moe", **PADDED, style=5, head_dim=10,
                               extra=dict(num_experts=9, num_experts_per_tok=3, moe_intermediate_size=7, norm_topk_prob=True,
                                          mlp_only_layers=[0], output_router_logits=True, router_aux_loss_coef=0.3, attention_bias=False)),
    # The experts of a layer in two tensors, as save_pretrained(save_original_format=False)
    # writes them; two files.
    "mixtral_fused": case(family="mixtral", style=5, vocab=37, heads=2, kv_heads=1, hidden=16, inter=12, layers=2, T=9, fused=True, shards=2,
                          extra=dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=None)),
    "qwen3_moe_fused": case(family="qwen3_moe", style=5, vocab=37, heads=2, kv_heads=1, hidden=16, head_dim=10, inter=20, layers=3, T=9,
                            tied=True, fused=True, dtype="bfloat16",
                            extra=dict(num_experts=9, num_experts_per_tok=3, moe_intermediate_size=7, norm_topk_prob=False, mlp_only_layers=[1])),
    "qwen3_padded": case(family="qwen3", **PADDED, head_dim=8, style=5, tied=True, extra=dict(attention_bias=False)),
})
CLASSES = dict(llama="Llama", mistral="Mistral", qwen2="Qwen2", qwen3="Qwen3", smollm3="SmolLM3", granite="Granite", olmo2="Olmo2",
               phi3="Phi3", gemma2="Gemma2", gemma3_text="Gemma3", gemma="Gemma", olmo3="Olmo3",
               ministral3="Ministral3", gpt2="GPT2", mixtral="Mixtral", qwen3_moe="Qwen3Moe")
UNIT_OFFSET = ("gemma", "gemma2", "gemma3_text")


def gpt2_json(c):
    """The same for gpt2, whose keys have names of their own."""
    out = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.0, "embd_pdrop": 0.0,
           "resid_pdrop": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": c["eps"], "n_embd": c["hidden"], "n_head": c["heads"],
           "n_inner": c["inter"], "n_layer": c["layers"], "n_positions": c["positions"], "tie_word_embeddings": c["tied"],
           "torch_dtype": c["dtype"], "vocab_size": c["vocab"], **(c["extra"] or {})}
    return dict(sorted(out.items()))


def config_json(c):
    """config.json in the style of the case, independent of the installed transformers."""
    if c["family"] == "gpt2":
        return gpt2_json(c)
    out = {
        "architectures": [CLASSES[c["family"]] + ("ForCausalLM" if c["prefix"] else "Model")],
        "attention_bias": c["attention_bias"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": c["hidden"],
        "initializer_range": 0.02,
        "intermediate_size": c["inter"],
        "max_position_embeddings": c["positions"],
        "mlp_bias": c["mlp_bias"],
        "model_type": c["family"],
        "num_attention_heads": c["heads"],
        "num_hidden_layers": c["layers"],
        "num_key_value_heads": c["kv_heads"],
        "pretraining_tp": 1,
        "rms_norm_eps": c["eps"],
        "tie_word_embeddings": c["tied"],
        "use_cache": True,
        "vocab_size": c["vocab"],
    }
    if c["head_dim"] is not None:
        out["head_dim"] = c["head_dim"]
    if c["style"] == 4:
        out.update(rope_theta=c["theta"], rope_scaling=c["rope"], torch_dtype=c["dtype"],
                   transformers_version="4.46.0")
    else:
        rope = dict(c["rope"] or {"rope_type": "default"}, rope_theta=c["theta"])
        out.update(rope_parameters=rope, dtype=c["dtype"], transformers_version="5.0.0")
    if c["family"] != "llama":
        for key in ("attention_bias", "mlp_bias", "pretraining_tp"):
            del out[key]
    out.update(c["extra"] or {})
    for key in c["omit"]:
        out.pop(key, None)
    return dict(sorted(out.items()))


def random_weights(c, config, generator):
    """Weights far enough from zero that no gradient is degenerate: matrices and biases
    normal with c["std"], norms around 1. A tied head is left out, as transformers does."""
    shapes = {n: p.shape for n, p in AutoModelForCausalLM.from_config(config).named_parameters()}
    out = {}
    for name, shape in shapes.items():
        w = torch.randn(shape, generator=generator) * c["std"]
        if ("norm.weight" in name or ".ln_" in name and name.endswith("weight")) and c["family"] not in UNIT_OFFSET:
            w += 1
        if name.endswith("mlp.gate.weight") and w.shape[0] < 10:
            w *= 12  # experts are chosen by a margin that 16 bits do not cross
        out[name] = w.to(getattr(torch, c["dtype"]))
    return out if c["fused"] else published(c["family"], out)


def published(family, tensors):
    """Tensors by the names of published folders, which have a tensor for each expert; transformers holds
    them fused, gate before up."""
    mixtral = family == "mixtral"
    out = {}
    for name, t in tensors.items():
        root, kind = name.split("mlp.experts.")[0], name.rsplit(".", 1)[-1]
        if mixtral and ".mlp." in name:
            name, root = name.replace(".mlp.", ".block_sparse_moe."), root + "block_sparse_moe.experts."
        elif ".mlp.experts." in name:
            root += "mlp.experts."
        if ".experts." not in name:
            out[name] = t
            continue
        names = [("w1", "w3") if mixtral else ("gate_proj", "up_proj"), ("w2",) if mixtral else ("down_proj",)][kind == "down_proj"]
        for e, expert in enumerate(t):
            for part, half in zip(names, expert.chunk(len(names))):
                out[f"{root}{e}.{part}.weight"] = half.clone()
    return out


def write_weights(folder, c, weights):
    if not c["prefix"]:
        weights = {n.removeprefix("model."): w for n, w in weights.items()}
    if c["shards"] == 1:
        write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})
        return
    # Dealt round-robin: every layer spans files, so a reader has to go by the index.
    n, where = c["shards"], {}
    for k in range(n):
        name = f"model-{k + 1:05d}-of-{n:05d}.safetensors"
        part = dict(list(weights.items())[k::n])
        write_tensors(os.path.join(folder, name), part, {"format": "pt"})
        where.update(dict.fromkeys(part, name))
    total = sum(w.numel() * w.element_size() for w in weights.values())
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})


def write_model(folder, c, generator):
    """config.json and the weights of a case. Removes what an earlier run left there."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.endswith((".safetensors", ".json")):
            os.remove(os.path.join(folder, name))
    write_json(os.path.join(folder, "config.json"), config_json(c))
    config = AutoConfig.from_pretrained(folder)
    write_weights(folder, c, random_weights(c, config, generator))


def load_model(folder, dtype=torch.float32):
    """The reference, only from the folder. Refuses a folder that does not fill it."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise SystemExit(f"{folder}: transformers did not load this cleanly: {bad}")
    return model.eval()  # no dropout


def random_batch(c, generator):
    """Labels are mostly the inputs, with ignored positions at both ends and within, and
    some that differ from the inputs, so that reading the wrong one is seen."""
    B, T, V = c["B"], c["T"], c["vocab"]
    ids = torch.randint(0, V, (B, T), generator=generator)
    other = torch.randint(0, V, (B, T), generator=generator)
    u = torch.rand((B, T), generator=generator)
    labels = torch.where(u < 0.25, other, ids)
    labels[u > 0.8] = IGNORE
    labels[0, -1] = ids[0, -1]  # whatever else is ignored, one label counts
    for row in c["ignore_rows"]:
        labels[row] = IGNORE
    if (c["extra"] or {}).get("pad_token_id") is not None:
        ids[:, -3:] = labels[:, -3:] = c["extra"]["pad_token_id"] % V
    rows = {}
    if c["padded"]:
        # The first label of a row that is padded at the left would be predicted by padding.
        rows["attention_mask"] = torch.ones_like(ids)
        for row, (left, right) in enumerate(c["padded"]):
            rows["attention_mask"][row, :left] = rows["attention_mask"][row, T - right:] = 0
            labels[row, left] = IGNORE
        labels[rows["attention_mask"] == 0] = IGNORE
    if c["packed"]:
        rows["position_ids"] = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in c["packed"]])
        labels[rows["position_ids"] == 0] = IGNORE
    dtype = getattr(torch, c["ids"])
    return {"input_ids": ids.to(dtype), "labels": labels.to(dtype), **rows}


def conversations(position_ids):
    """(row, begin, end) of each conversation."""
    for row, positions in enumerate(position_ids):
        borders = [i for i, p in enumerate(positions.tolist()) if p == 0] + [len(positions)]
        yield from ((row, begin, end) for begin, end in zip(borders, borders[1:]))


def balance(model, outs):
    """The loss that balances experts, over the tokens of several forwards together."""
    layers = tuple(torch.cat(layer) for layer in zip(*(out.router_logits for out in outs)))
    return load_balancing_loss_func(layers, model.num_experts, model.num_experts_per_tok)


def packed_outputs(model, batch):
    """Each conversation by itself. The loss is the mean over all labels of the batch."""
    ids, labels = batch["input_ids"].long(), batch["labels"].long()
    outs, logits, total, count = [], [], 0, 0
    for row, begin, end in conversations(batch["position_ids"]):
        outs.append(model(input_ids=ids[row:row + 1, begin:end], use_cache=False))
        logits.append(outs[-1].logits[0])
        if end - begin > 1:
            target = labels[row, begin + 1:end]
            total = total + torch.nn.functional.cross_entropy(logits[-1][:-1], target, ignore_index=IGNORE, reduction="sum")
            count += int((target != IGNORE).sum())
    result = {"logits": torch.cat(logits).reshape(*ids.shape, -1), "loss": total / count}
    if getattr(model.config, "output_router_logits", False):
        result["aux_loss"] = balance(model, outs)
        result["loss"] = result["loss"] + model.router_aux_loss_coef * result["aux_loss"]
    return result


def with_balance(out, result):
    """The outputs, with the loss that balances experts if the model has it. It is in the loss."""
    return result if getattr(out, "aux_loss", None) is None else {**result, "aux_loss": out.aux_loss}


def check_packed(folder, batch, expect):
    """transformers' own packed rows are the conversations by themselves."""
    with torch.no_grad():
        theirs = load_model(folder)(input_ids=batch["input_ids"].long(), position_ids=batch["position_ids"], use_cache=False).logits
    assert relative(theirs, expect["logits"]) < 1e-5, folder


def padded_outputs(model, batch):
    """Eager attention gives NaN in float64 where a token sees no other; sdpa gives 0."""
    model.set_attn_implementation("sdpa")
    mask = batch["attention_mask"]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = model(input_ids=batch["input_ids"].long(), labels=batch["labels"].long(), attention_mask=mask, use_cache=False)
    return with_balance(out, {"logits": torch.where(mask[..., None] == 1, out.logits, torch.nan), "loss": out.loss})


def outputs(model, batch):
    if "position_ids" in batch:
        return packed_outputs(model, batch)
    if "attention_mask" in batch:
        return padded_outputs(model, batch)
    out = model(input_ids=batch["input_ids"].long(), labels=batch["labels"].long(), use_cache=False)
    return with_balance(out, {"logits": out.logits, "loss": out.loss})


def reference(folder, batch, dtype=torch.float32):
    """logits, loss and gradients of the folder's model on the batch."""
    model = load_model(folder, dtype)
    result = outputs(model, batch)
    expect = backward(result, model.named_parameters())
    return published(model.config.model_type, expect)


def random_case(r):
    """A random odd configuration that transformers accepts: hidden is a multiple of the
    heads, head_dim is even because rotary embedding works on pairs."""
    heads = r.randint(1, 6)
    kv = r.choice([k for k in range(1, heads + 1) if heads % k == 0])
    hidden = heads * r.randint(2, 9)
    implicit = (hidden // heads) % 2 == 0 and r.random() < 0.5
    B = r.randint(1, 5)
    rope = r.choice([None, None,
                     dict(rope_type="linear", factor=r.choice([2.0, 3.5])),
                     dict(rope_type="llama3", factor=r.choice([4.0, 8.0]),
                          low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]),
                          original_max_position_embeddings=r.choice([16, 32]))])
    family = r.choice(["llama", "llama", "mistral", "qwen2"])
    layers = r.randint(1, 4)
    extra = None
    if family == "mistral":
        extra = dict(sliding_window=r.choice([None, 1, r.randint(2, 30)]))
    if family == "qwen2":
        extra = dict(use_sliding_window=r.random() < 0.5, sliding_window=r.randint(1, 20),
                     max_window_layers=r.randint(0, layers))
        implicit = (hidden // heads) % 2 == 0
        hidden = hidden if implicit else hidden * 2  # no head_dim key in this family's class
        implicit = True
    return case(
        family=family, extra=extra,
        vocab=r.randint(5, 130), hidden=hidden, heads=heads, kv_heads=kv,
        head_dim=None if implicit else 2 * r.randint(1, 10), layers=layers,
        inter=r.randint(3, 70), tied=r.random() < 0.5, attention_bias=r.random() < 0.3,
        mlp_bias=r.random() < 0.3, eps=r.choice([1e-6, 1e-5, 1e-3]),
        theta=r.choice([100.0, 10000.0, 500000.0]), rope=rope, positions=128,
        style=r.choice([4, 5]), dtype=r.choice(["float32", "float32", "bfloat16", "float16"]),
        shards=r.choice([1, 1, 2, 4]), B=B, T=r.randint(2, 50), ids=r.choice(["int32", "int64"]),
        ignore_rows=tuple(b for b in range(1, B) if r.random() < 0.2), std=r.uniform(0.1, 0.3))


if __name__ == "__main__":
    main(__doc__, CASES, write_model, random_batch, lambda folder, c, batch, dtype: reference(folder, batch, dtype), random_case, "random",
         more=lambda folder, c, batch, expect: check_packed(folder, batch, expect) if c["packed"] else None)
