#!/usr/bin/env python3
"""LoRA on a frozen language model with transformers and PEFT on a GPU: tokens a second and peak memory.

    peer_lora.py --rows FILE --modes lora,lora+checkpoint,nf4,nf4+checkpoint,lora+liger --micro 1,2,4
    peer_lora.py --shape experts --save DIR      a folder with random weights, for the other side

Random weights of a published model's shapes (--shape) in bf16, r = 16 on all seven linear layers, SDPA attention, AdamW
on the adapters in f32, as PEFT has them. `experts` is a Mixtral of 4.0 B weights: r = 16 on attention only, because
transformers holds its experts fused. A step is --batch rows of --length tokens, in micro-batches of each size of --micro. `nf4` is
bitsandbytes' 4-bit base with double quantization, `checkpoint` is gradient checkpointing, `liger` Liger's kernels.
--tiny: a small model, for testing on a CPU. Each mode runs in a process of its own: what Liger replaces in transformers
stays replaced in a process, also for models that are built later."""
import argparse
import subprocess
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from peer import DEVICE, GPU, Rows, clean, measure

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEARS = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
SHAPES = {
    "mistral-7b": dict(model_type="mistral", vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=32768),
    "Qwen/Qwen3-8B": dict(model_type="qwen3", vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, tie_word_embeddings=False),
    "google/gemma-3-4b-it": dict(model_type="gemma3_text", vocab_size=262208, hidden_size=2560, intermediate_size=10240, num_hidden_layers=34, num_attention_heads=8, num_key_value_heads=4, head_dim=256, sliding_window=1024, max_position_embeddings=131072),
    "experts": dict(model_type="mixtral", vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=14, num_attention_heads=32, num_key_value_heads=8, head_dim=64, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=4096, sliding_window=None),
}
TINY = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512)


def quantize_blocks(blocks):
    """Replaces the linear layers of the blocks by bitsandbytes' 4-bit ones."""
    from bitsandbytes.nn import Linear4bit, Params4bit
    for block in blocks:
        for parent in (block.self_attn, block.mlp):
            for name, old in list(parent.named_children()):
                if not isinstance(old, torch.nn.Linear):
                    continue
                with torch.device("meta"):
                    new = Linear4bit(old.in_features, old.out_features, bias=False, compute_dtype=torch.bfloat16, compress_statistics=True, quant_type="nf4")
                new.weight = Params4bit(old.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4")._quantize(DEVICE)
                setattr(parent, name, new)
                del old


def base(shape):
    config = AutoConfig.for_model(**shape, use_cache=False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    return model


def build(mode, shape):
    if "liger" in mode:
        import liger_kernel.transformers as liger
        getattr(liger, "apply_liger_kernel_to_" + shape["model_type"])()
    model = base(shape)
    if "nf4" in mode:
        quantize_blocks(model.model.layers)
        clean()
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=ATTENTION if "num_local_experts" in shape else LINEARS, task_type="CAUSAL_LM"))
    if "checkpoint" in mode:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    return model


def run(mode, micro, shape, a):
    model = build(mode, shape)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=GPU)
    ids = torch.randint(0, shape["vocab_size"], (a.batch, a.length), device=DEVICE)

    def step():
        for at in range(0, a.batch, micro):
            rows = ids[at:at + micro]
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = model(input_ids=rows, labels=rows).loss * (micro / a.batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    measured = measure(step, a.warm, a.steps)
    return measured | {"trained": sum(p.numel() for p in trained), "per_second": 1e3 * a.batch * a.length / measured["median_ms"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", help="file that rows are added to")
    p.add_argument("--modes", default="lora,lora+checkpoint,nf4,nf4+checkpoint")
    p.add_argument("--micro", default="4")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--warm", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--shape", default="mistral-7b", choices=SHAPES)
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--save")
    a = p.parse_args()
    if a.save:
        base(SHAPES[a.shape] | (TINY if a.tiny else {})).save_pretrained(a.save)
        return
    modes = a.modes.split(",")
    if len(modes) > 1:
        for mode in modes:
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--modes", mode])  # the last --modes counts
        return
    shape = SHAPES[a.shape] | (TINY if a.tiny else {})
    for micro in map(int, a.micro.split(",")):
        Rows(a.rows).attempt(lambda: run(a.modes, micro, shape, a), side="peer", what="lora", mode=a.modes, name=a.shape, micro=micro)
        clean()


if __name__ == "__main__":
    main()
