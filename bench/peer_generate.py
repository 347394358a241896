#!/usr/bin/env python3
"""Greedy generation with transformers on a GPU: tokens a second and peak memory.

    peer_generate.py --rows FILE --modes eager,compiled --prompt 128 --new 256

Random weights of TinyLlama 1.1B's shapes in bf16, SDPA attention, one prompt. `eager` is generate() as it is called by
default, with a cache that grows; `compiled` has a static cache and a compiled forward (reduce-overhead). The time of a
token is that of the answer's tokens after the first. --tiny: a small model, for testing on a CPU."""
import argparse
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from peer import DEVICE, GPU, Rows, clean, synchronize

SHAPES = {
    "1b": dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=4096),
    "tiny": dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024),
}


def seconds(model, ids, new, **more):
    synchronize()
    begun = time.perf_counter()
    with torch.no_grad():
        model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=new, max_new_tokens=new, do_sample=False, pad_token_id=0, **more)
    synchronize()
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    rows = Rows(options.rows)
    config = LlamaConfig(**SHAPES["tiny" if options.tiny else "1b"], attn_implementation="sdpa", torch_dtype=torch.bfloat16)
    torch.manual_seed(1)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).bfloat16().eval()
    ids = torch.arange(1, options.prompt + 1, device=DEVICE)[None]
    for mode in options.modes.split(","):
        clean(compiled=True)
        more = {}
        if mode == "compiled":
            more["cache_implementation"] = "static"
            model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
        for _ in range(2):
            seconds(model, ids, options.new, **more)
        one = min(seconds(model, ids, 1, **more) for _ in range(3))
        all_ = min(seconds(model, ids, options.new, **more) for _ in range(3))
        rows.add(what="generate", side="transformers", mode=mode, prompt=options.prompt, new=options.new, prompt_ms=1e3 * one,
                 token_ms=1e3 * (all_ - one) / (options.new - 1), per_second=(options.new - 1) / (all_ - one),
                 peak_bytes=torch.cuda.max_memory_allocated() if GPU else 0)


if __name__ == "__main__":
    main()
