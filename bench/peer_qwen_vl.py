#!/usr/bin/env python3
"""LoRA on Qwen2.5-VL 7B's or Qwen3-VL 8B's shapes with transformers and PEFT, for cuda_qwen_vl.sh: tokens a second and peak memory.

    peer_qwen_vl.py --rows FILE --name Qwen/Qwen2.5-VL-7B-Instruct --sizes '448x672;672x448,336x336' --modes lora,lora+checkpoint,nf4

Random weights in bf16, r = 16 on the seven linear layers of the language model, everything else frozen, SDPA attention.
A step is one batch of all conversations, padded to the longest, as a collator does; tokens a second are without
padding. Pixel values are made before: reading images costs nothing here. Modes are those of peer_lora.py."""
import argparse
import subprocess
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForImageTextToText

import peer_lora
from peer import DEVICE, GPU, Rows, clean, measure

IGNORE, START, END, IMAGE, VIDEO = -100, 151652, 151653, 151655, 151656
SHAPES = {
    "Qwen/Qwen2.5-VL-7B-Instruct": dict(
        model_type="qwen2_5_vl",
        text_config=dict(vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
                         rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[16, 24, 24])),
        vision_config=dict(depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=3584, fullatt_block_indexes=[7, 15, 23, 31])),
    "Qwen/Qwen3-VL-8B-Instruct": dict(
        model_type="qwen3_vl",
        text_config=dict(vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                         rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[24, 20, 20], mrope_interleaved=True)),
        vision_config=dict(depth=27, hidden_size=1152, intermediate_size=4304, num_heads=16, out_hidden_size=4096, deepstack_visual_indexes=[8, 16, 24])),
}
TINY = dict(text_config=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2), vision_config=dict(depth=4, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64))


def shape_of(a):
    shape = dict(SHAPES[a.name])
    if a.tiny:
        for part, small in TINY.items():
            shape[part] = {k: v for k, v in shape[part].items() if k not in ("fullatt_block_indexes", "deepstack_visual_indexes", "head_dim")} | small
        shape["text_config"]["rope_parameters"] = shape["text_config"]["rope_parameters"] | dict(mrope_section=[4, 2, 2])
        if "head_dim" in SHAPES[a.name]["text_config"]:
            shape["text_config"]["head_dim"] = 16
            shape["vision_config"]["deepstack_visual_indexes"] = [0, 1, 2]
    return shape | dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END, tie_word_embeddings=False)


def build(mode, a):
    if "liger" in mode:
        import liger_kernel.transformers as liger
        getattr(liger, "apply_liger_kernel_to_" + SHAPES[a.name]["model_type"])()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**shape_of(a)), attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32)
    if "nf4" in mode:
        peer_lora.quantize_blocks(model.model.language_model.layers)
        clean()
    where = r".*language_model.*\.(" + "|".join(peer_lora.LINEARS) + ")"
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=where))
    if "checkpoint" in mode:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model.train()


def make_batch(model, a):
    """The conversations, padded on the right to the longest."""
    v = model.config.vision_config
    unit, rows, pixels, grids = v.patch_size * v.spatial_merge_size, [], [], []
    for sizes in a.sizes.split(";"):
        row = []
        for size in sizes.split(","):
            h, w = (max(1, round(int(s) / unit)) * v.spatial_merge_size for s in size.split("x"))
            grids.append([1, h, w])
            pixels.append(torch.randn(h * w, 3 * v.temporal_patch_size * v.patch_size ** 2, device=DEVICE, dtype=torch.bfloat16))
            row += [START] + [IMAGE] * (h * w // v.spatial_merge_size ** 2) + [END]
        rows.append(row + torch.randint(8, 150000, (a.digits,)).tolist())
    T = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), T, dtype=torch.long), torch.zeros(len(rows), T, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, :len(row)], mask[i, :len(row)] = torch.tensor(row), 1
    labels = torch.where((mask == 1) & (ids < START), ids, IGNORE)
    batch = dict(input_ids=ids, attention_mask=mask, labels=labels, mm_token_type_ids=(ids == IMAGE).int(), image_grid_thw=torch.tensor(grids))
    return {k: x.to(DEVICE) for k, x in batch.items()} | dict(pixel_values=torch.cat(pixels)), int(mask.sum())


def run(mode, a):
    model = build(mode, a)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=GPU)
    batch, tokens = make_batch(model, a)

    def step():
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = model(**batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    measured = measure(step, 2, a.steps)
    return measured | {"tokens": tokens, "positions": batch["input_ids"].numel(), "per_second": 1e3 * tokens / measured["median_ms"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", required=True)
    p.add_argument("--name", default=next(iter(SHAPES)), choices=SHAPES)
    p.add_argument("--sizes", required=True)
    p.add_argument("--digits", type=int, default=384)
    p.add_argument("--modes", default="lora,lora+checkpoint,nf4,nf4+checkpoint")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--tiny", action="store_true")
    a = p.parse_args()
    if "," in a.modes:  # each in a process of its own, as in peer_lora.py
        for mode in a.modes.split(","):
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--modes", mode])  # the last --modes counts
        return
    Rows(a.rows).attempt(lambda: run(a.modes, a), side="peer", what="qwen_vl", mode=a.modes, name=a.name)


if __name__ == "__main__":
    main()
