#!/usr/bin/env python3
"""Does `plimsoll step` heed every key of config.json that transformers heeds? For each family of language models.

    python tests/golden/check_keys.py [--binary build/plimsoll] [--all] [--only KEY]... [FAMILY...]

A tiny model of each family is saved by transformers. Each key of its configuration class, each key of published folders
that the class has not, and each kind of rotary table is then changed, or left out, and both programs read the folder. Logits, loss and
gradients tell what the change does:

    read          it changes the numbers of transformers, and ours are the same
    no effect     it changes nothing there, and nothing here
    refused       we refuse the folder by a message that names the key
    both refuse   so does transformers
    type          a value of a type that the class of transformers refuses, such as null for the default
    DIFFERENT     neither: ours differ from theirs, or our message does not name the key, or we accept what it does not

Where training mode of transformers draws random numbers (dropout), `plimsoll plan` must refuse the folder and name the key.
A key with values that are not listed below is changed by its kind, so that keys of later versions are tried too.
--all prints each change, not only those that are DIFFERENT. Used by hand; the tests need no Python.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib

from common import backward, quiet, relative, write_json, write_tensors  # also keeps the hub out

import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES, save_tiny, tiny_config
from transformers import AutoConfig, AutoModelForCausalLM

T = 20
BOUND = 1e-3  # of the relative distance in f32; the smallest of a key that is not heeded is 2e-2
ABSENT = "ABSENT"

ACTIVATIONS = ["gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "silu", "swish", "relu", "relu2", "quick_gelu", "tanh", None]
F, S = "full_attention", "sliding_attention"
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8)
LLAMA3 = dict(rope_type="llama3", factor=4.0, original_max_position_embeddings=8, low_freq_factor=1.0, high_freq_factor=4.0)
LONG = dict(rope_type="longrope", short_factor=[1.0, 1.5, 2.0], long_factor=[2.0, 2.5, 3.0])
DYNAMIC = dict(rope_type="dynamic", factor=3.0)
ROPES = [
    dict(rope_type="default", rope_theta=100.0), dict(rope_type="linear", factor=4.0), dict(type="linear", factor=4.0),
    dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.7), dict(rope_type="default", mrope_section=[1, 1, 1]),
    DYNAMIC, dict(DYNAMIC, original_max_position_embeddings=8), LLAMA3, YARN, dict(YARN, truncate=False), dict(YARN, attention_factor=1.3),
    dict(YARN, mscale=0.7, mscale_all_dim=1.2), dict(YARN, beta_fast=4.0, beta_slow=0.5), dict(rope_type="yarn", factor=4.0), dict(YARN, llama_4_scaling_beta=0.3),
    dict(LONG, original_max_position_embeddings=8), dict(LONG, original_max_position_embeddings=32), LONG,
    dict(LONG, original_max_position_embeddings=8, attention_factor=1.3), dict(LONG, original_max_position_embeddings=8, factor=5.0),
    dict(LONG, original_max_position_embeddings=8, partial_rotary_factor=0.7), dict(rope_type="proportional", partial_rotary_factor=0.7), dict(rope_type="other"),
    {F: dict(rope_type="linear", factor=4.0, rope_theta=50.0), S: dict(rope_type="default", rope_theta=20.0)},
    {F: dict(rope_type="default", rope_theta=50.0), S: dict(rope_type="linear", factor=4.0, rope_theta=20.0)},
    {F: dict(YARN, rope_theta=50.0), S: dict(rope_type="default", rope_theta=20.0)}, {F: dict(rope_type="default", rope_theta=50.0)},
]
TYPES = [[F] * 4, [S] * 4, [F, S, F, S], [S, S, F, F], [F, S], ["chunked_attention"] * 4, ["linear_attention", F, F, F], [F, "full", F, F], "sliding_attention", None]

# Values of keys by their names, beside leaving them out.
VALUES = {
    "vocab_size": [29], "hidden_size": [16], "intermediate_size": [20], "num_hidden_layers": [2], "n_embd": [16], "n_layer": [2],
    "num_attention_heads": [2, 8, 3], "num_key_value_heads": [1, 4, None, 3], "n_head": [2], "head_dim": [8, None, 5], "n_positions": [T, 12],
    "n_inner": [30, None], "max_position_embeddings": [12],
    "hidden_act": ACTIVATIONS, "hidden_activation": ACTIVATIONS, "activation_function": ACTIVATIONS,
    "rms_norm_eps": [0.5], "layer_norm_epsilon": [0.5], "initializer_range": [0.3], "pad_token_id": [None, 3, -1, 99],
    "bos_token_id": [None, 5], "eos_token_id": [None, [2, 3]], "pretraining_tp": [2], "tie_word_embeddings": [True, False],
    "sliding_window": [3, 1, 64, None, 0], "layer_types": TYPES, "use_sliding_window": [True, False], "max_window_layers": [0, 2, 4],
    "use_bidirectional_attention": [True, False, None], "sliding_window_pattern": [2, 1], "_sliding_window_pattern": [2],
    "attn_logit_softcapping": [1.5, None], "final_logit_softcapping": [1.5, None], "query_pre_attn_scalar": [3, 64],
    "rope_local_base_freq": [20.0], "rope_theta": [50.0], "rope_parameters": ROPES, "rope_scaling": [dict(rope_type="linear", factor=4.0), YARN, {}, None],
    "partial_rotary_factor": [0.7, 1.0], "original_max_position_embeddings": [8],
    "no_rope_layers": [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0], None], "no_rope_layer_interval": [2, 3],
    "embedding_multiplier": [12, 1], "attention_multiplier": [0.0625, 1], "residual_multiplier": [0.22, 1], "logits_scaling": [8, 1],
    "num_experts": [3], "num_local_experts": [3], "num_experts_per_tok": [1, 3], "moe_intermediate_size": [8], "norm_topk_prob": [True, False],
    "mlp_only_layers": [[1], [0, 2], None], "decoder_sparse_step": [2], "router_jitter_noise": [0.3], "output_router_logits": [True],
    "router_aux_loss_coef": [0.5], "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True], "reorder_and_upcast_attn": [True],
    "add_cross_attention": [True], "dtype": ["bfloat16"], "torch_dtype": ["float16"],
    "quantization_config": [dict(quant_method="gptq", bits=4), dict(quant_method="awq", bits=4), dict(quant_method="fp8"), dict(quant_method="mxfp4")],
    "attn_implementation": ["eager"], "no_such_key": [1],
}
# Keys of published folders that the class may not have.
PUBLISHED = ["rope_theta", "rope_scaling", "torch_dtype", "layer_types", "quantization_config", "partial_rotary_factor", "no_such_key",
             "hidden_dropout", "is_decoder", "add_cross_attention", "tie_encoder_decoder", "sliding_window", "attention_bias", "mlp_bias", "head_dim"]
MORE = {"gemma3_text": ["sliding_window_pattern", "rope_local_base_freq"], "gemma2": ["hidden_act"], "gemma": ["hidden_activation"],
        "qwen3_moe": ["num_experts", "max_window_layers", "n_shared_experts", "shared_expert_intermediate_size"], "gpt2": ["n_ctx", "hidden_size", "rotary_dim"],
        "mixtral": ["num_experts", "max_window_layers"], "smollm3": ["max_window_layers", "no_rope_layers"], "phi3": ["rope_type"], "olmo2": ["clip_qkv", "rope_type"],
        "qwen3": ["layer_types"]}
# Changes of several keys at once: the keys act together.
TOGETHER = {
    "qwen2": [dict(use_sliding_window=True, sliding_window=4, max_window_layers=k) for k in (0, 2, 4)] +
             [dict(use_sliding_window=True, sliding_window=4, max_window_layers=k, layer_types=ABSENT) for k in (0, 2, 4)] +
             [dict(use_sliding_window=u, sliding_window=4, layer_types=t) for u in (True, False) for t in TYPES],
    "smollm3": [dict(use_sliding_window=u, sliding_window=4, layer_types=t) for u in (True, False) for t in TYPES + [ABSENT]] +
               [dict(no_rope_layers=ABSENT, no_rope_layer_interval=k) for k in (1, 2, 3)] +
               [dict(no_rope_layers=ABSENT, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=4, layer_types=ABSENT)],
    "gemma3_text": [dict(layer_types=ABSENT, sliding_window_pattern=2), dict(layer_types=ABSENT, _sliding_window_pattern=2),
                    dict(rope_parameters=ABSENT, rope_theta=50.0, rope_local_base_freq=20.0),
                    dict(rope_parameters=ABSENT, rope_theta=50.0, rope_scaling=dict(rope_type="linear", factor=4.0)),
                    dict(rope_parameters=ABSENT, rope_scaling=dict(rope_type="linear", factor=4.0), rope_local_base_freq=20.0)],
    "olmo3": [dict(rope_parameters=ABSENT, rope_theta=50.0), dict(rope_parameters=ABSENT, rope_theta=50.0, rope_scaling=YARN),
              dict(rope_parameters=YARN), dict(rope_parameters=dict(YARN, rope_theta=50.0))],
    "phi3": [dict(rope_parameters=ABSENT, rope_theta=50.0, rope_scaling=dict(LONG, type="longrope", rope_type=ABSENT), original_max_position_embeddings=8),
             dict(rope_parameters=ABSENT, rope_theta=50.0, rope_scaling=dict(LONG, type="yarn", rope_type=ABSENT), original_max_position_embeddings=8),
             dict(rope_parameters=ABSENT, rope_theta=50.0, partial_rotary_factor=0.7),
             dict(rope_parameters=dict(rope_type="default", rope_theta=50.0), partial_rotary_factor=0.7)],
    "qwen3_moe": [dict(use_sliding_window=True, sliding_window=4, layer_types=t) for t in TYPES + [ABSENT]] +
                 [dict(use_sliding_window=True, sliding_window=4, max_window_layers=2, layer_types=ABSENT)] +
                 [dict(output_router_logits=True, router_aux_loss_coef=0.5), dict(num_local_experts=ABSENT, num_experts=3)],
    "mixtral": [dict(output_router_logits=True, router_aux_loss_coef=0.5), dict(sliding_window=4, layer_types=TYPES[2])],
    "ministral3": [dict(rope_parameters=dict(r, rope_theta=50.0, llama_4_scaling_beta=0.4)) for r in ROPES if r.get("rope_type") == "yarn"] +
                  [dict(rope_parameters=dict(YARN, rope_theta=50.0, llama_4_scaling_beta=beta)) for beta in (0.1, 1.0)] +
                  [dict(rope_parameters=dict(YARN, rope_theta=50.0, llama_4_scaling_beta=0.4), sliding_window=4, layer_types=TYPES[2])],
    "llama": [dict(rope_parameters=dict(r, rope_theta=50.0), original_max_position_embeddings=16) for r in (YARN, LLAMA3, LONG, DYNAMIC)] +
             [dict(rope_parameters=dict(rope_type="default", rope_theta=50.0), rope_scaling=dict(rope_type="linear", factor=4.0), rope_theta=20.0)],
    "gpt2": [dict(n_inner=30, n_embd=16)],
}
TOGETHER["qwen3"] = TOGETHER["qwen2"]
LEGACY = [dict(rope_parameters=ABSENT, rope_theta=50.0, rope_scaling=r) for r in ROPES] + [dict(rope_parameters=ABSENT, rope_theta=50.0)]


def guess(value):
    """Other values of a key that is not in VALUES."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 1.5 + 0.25]
    return [True] if value is None else [None] if isinstance(value, (str, dict, list)) else []


class Refused(Exception):
    pass


def theirs(folder, batch):
    """Numbers of transformers, and whether training mode changes the loss."""
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
                                                           output_loading_info=True)
        if any(info.values()):
            raise ValueError(f"weights: {({k: v for k, v in info.items() if v})}")
        call = dict(input_ids=batch["input_ids"].long(), labels=batch["labels"].long(), use_cache=False)
        model.train()
        torch.manual_seed(1)
        with torch.no_grad():
            noisy = float(model(**call).loss)
        model.eval()
        out = model(**call)
        result = backward({"logits": out.logits, "loss": out.loss}, model.named_parameters())
    except Exception as e:  # whatever it says, it does not run this folder
        raise Refused(f"{type(e).__name__}: {e}".split("\n")[0][:150]) from None
    return result, abs(noisy - float(out.loss)) > 1e-5 * abs(noisy)


def run(binary, *arguments):
    done = subprocess.run([binary, *arguments], capture_output=True, text=True)
    if done.returncode < 0:
        raise SystemExit(f"{arguments}: ended by signal {-done.returncode}")
    return done.returncode, done.stderr.strip().split("\n")[-1]


def step(binary, folder, tmp):
    out = f"{tmp}/out.safetensors"
    rc, message = run(binary, "step", "--model", folder, "--batch", f"{tmp}/batch.safetensors", "--out", out, "--set", "memory.precision=f32")
    if rc:
        raise Refused(message)
    return load_file(out)


def trains(binary, folder, tmp):
    rc, message = run(binary, "plan", f"{tmp}/run.yaml", "--set", f"model.path={folder}")
    return None if rc == 0 else message


def distance(a, b):
    """The largest relative distance over the outputs and all gradients together, of the tensors that both have."""
    worst = max(relative(a[n].reshape(b[n].shape), b[n]) for n in ("logits", "loss"))
    names = [n for n in b if n.startswith("grad.") and n in a and a[n].shape == b[n].shape]
    if not any(n.endswith(("embed_tokens.weight", "wte.weight")) for n in names):
        return float("inf")
    return max(worst, relative(*(torch.cat([x[n].flatten().float() for n in names]) for x in (a, b))))


def same_shapes(a, b):
    return all(n in a and a[n].shape == b[n].shape for n in b)


def names_of(change):
    """The keys that a message may name: those changed, and those in them."""
    out = set()
    for key, value in change.items():
        out.add(key)
        if isinstance(value, dict):
            out |= names_of(value)
    return out


def judge(binary, family, folder, tmp, batch, base, change):
    """Returns the verdict on a change, and details."""
    def refused():
        try:
            step(binary, folder, tmp)
        except Refused as e:
            return str(e)
        return None

    message = refused()
    try:
        expect, noisy = theirs(folder, batch)
    except Refused as e:
        if message:
            return "both refuse", message
        wrong_type = "FieldValidationError" in str(e) or None in change.values() and "NoneType" in str(e)
        return ("type" if wrong_type else "DIFFERENT"), f"accepted here; transformers: {e}"
    words = names_of(change)
    if message:
        named = any(w in message for w in words)
        return ("refused", message) if named else ("DIFFERENT", f"the message names no key: {message}")
    got = step(binary, folder, tmp)
    d = distance(got, expect)
    if d > BOUND:
        effect = "changes theirs" if base is None or not same_shapes(expect, base) or distance(expect, base) > 1e-6 else "changes nothing there"
        return "DIFFERENT", f"by {d:.1e}; {effect}"
    if noisy:
        message = trains(binary, folder, tmp)
        if not message:
            return "DIFFERENT", "training mode draws random numbers there, and training accepts it here"
        if not any(w in message for w in words):
            return "DIFFERENT", f"training is refused by a message without the key: {message}"
        return "refused", f"in training: {message}"
    changed = base is None or not same_shapes(expect, base) or distance(expect, base) > 1e-6
    return ("read" if changed else "no effect"), f"{d:.0e}"


def changes_of(family, config):
    """Each change is a dictionary of keys with new values."""
    keys = list(dict.fromkeys([*AutoConfig.for_model(family).to_dict(), *config, *PUBLISHED, *MORE.get(family, [])]))
    defaults = AutoConfig.for_model(family).to_dict()
    for key in keys:
        if key in ("model_type", "architectures", "transformers_version", "_name_or_path", "return_dict"):
            continue
        for value in VALUES.get(key, guess(config.get(key, defaults.get(key)))):
            if value != config.get(key, ABSENT):
                yield {key: value}
        if key in config:
            yield {key: ABSENT}
    yield from TOGETHER.get(family, [])
    if family != "gpt2":
        yield from LEGACY


def apply(config, change):
    out = dict(config)
    for key, value in change.items():
        if isinstance(value, dict):
            value = {k: v for k, v in value.items() if v != ABSENT}
        if isinstance(value, str) and value == ABSENT:
            out.pop(key, None)
        else:
            out[key] = value
    return out


def show(change):
    return ", ".join(f"{k}: {v if v == ABSENT else json.dumps(v)}" for k, v in change.items())


def make_folder(folder, family, config, saved):
    """A folder with weights that this configuration asks for; those of the unchanged one if transformers refuses it."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    write_json(f"{folder}/config.json", config)
    try:
        read = AutoConfig.from_pretrained(folder)
        if hasattr(read, "quantization_config"):
            raise ValueError
        save_tiny(folder, read, family)
    except Exception:
        shutil.copy(f"{saved}/model.safetensors", folder)
    write_json(f"{folder}/config.json", config)


def check(family, a, tmp):
    g = torch.Generator().manual_seed(zlib.crc32(family.encode()))
    ids = torch.randint(4, 29, (2, T), generator=g, dtype=torch.int32)
    ids[:, 5] = 3
    ids[:, 9] = 28
    batch = {"input_ids": ids, "labels": ids.clone()}
    write_tensors(f"{tmp}/batch.safetensors", batch)
    with open(f"{tmp}/tokens.bin", "wb") as f:
        f.write(bytes(v for i in range(256) for v in (i * 7 % 29, 0)))
    with open(f"{tmp}/run.yaml", "w") as f:
        f.write(f"data: {{format: tokens, train: {tmp}/tokens.bin, sequence: 8}}\ntrain: {{steps: 1, effective_batch: 2, out: {tmp}/run}}\n"
                "device: cpu\n")
    saved = f"{tmp}/saved"
    save_tiny(saved, tiny_config(family), family)
    with open(f"{saved}/config.json") as f:
        config = json.load(f)
    base, noisy = theirs(saved, batch)
    d = distance(step(a.binary, saved, tmp), base)
    if d > BOUND or noisy:
        print(f"{family}: as transformers saves it: DIFFERENT by {d:.1e}")
    counts = {}
    for change in changes_of(family, config):
        if a.only and not set(a.only) & set(change):
            continue
        folder = f"{tmp}/changed"
        make_folder(folder, family, apply(config, change), saved)
        verdict, details = judge(a.binary, family, folder, tmp, batch, base, change)
        counts[verdict] = counts.get(verdict, 0) + 1
        if a.all or verdict == "DIFFERENT":
            print(f"  {family:12} {verdict:12} {show(change)[:150]}   {details}", flush=True)
    print(f"{family:12}", ", ".join(f"{k} {v}" for k, v in sorted(counts.items(), key=lambda x: -x[1])), flush=True)
    return counts.get("DIFFERENT", 0)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--binary", default="build/plimsoll")
    p.add_argument("--all", action="store_true", help="print each change")
    p.add_argument("--only", action="append", metavar="KEY", help="may be repeated")
    p.add_argument("families", nargs="*", default=FAMILIES)
    a = p.parse_args()
    quiet()
    different = 0
    for family in a.families or FAMILIES:
        with tempfile.TemporaryDirectory() as tmp:
            different += check(family, a, tmp)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
