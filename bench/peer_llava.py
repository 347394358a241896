#!/usr/bin/env python3
"""LLaVA with NF4 and LoRA by transformers, PEFT and bitsandbytes on a GPU: conversations a second and peak memory.

    peer_llava.py --rows FILE --chats CHATS.jsonl --tokenizer FOLDER --modes nf4,nf4+checkpoint --micro 2,4

Random weights of LLaVA-Med 7B's shapes: CLIP ViT-L/14 at 336 pixels, a projector of two layers, Mistral 7B. The frozen
linear layers are bitsandbytes' 4-bit ones, r = 16 on the seven linear layers of the language model's blocks, SDPA
attention, AdamW on the adapters in f32. A batch is --micro conversations in the order of the file, padded to the
longest of them, as TRL's collator does it; each image takes 576 tokens. The pixels are on the GPU before the timing.
--tiny: a small model, for testing on a CPU."""
import argparse
import json

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, MistralConfig
from transformers.models.mistral.modeling_mistral import MistralRotaryEmbedding

from peer import DEVICE, GPU, Rows, clean, measure

LINEARS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
IMAGE = 31999
SHAPES = {
    "7b": (dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=336, patch_size=14, projection_dim=768),
           dict(vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=32768)),
    "tiny": (dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14, projection_dim=16),
             dict(vocab_size=32000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096)),
}


def quantize(model):
    """Replaces the linear layers but the output head by bitsandbytes' 4-bit ones."""
    from bitsandbytes.nn import Linear4bit, Params4bit
    for name, parent in list(model.named_modules()):
        for child, old in list(parent.named_children()):
            if not isinstance(old, torch.nn.Linear) or child == "lm_head":
                continue
            with torch.device("meta"):
                new = Linear4bit(old.in_features, old.out_features, bias=old.bias is not None, compute_dtype=torch.bfloat16, compress_statistics=True, quant_type="nf4")
            new.weight = Params4bit(old.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4")._quantize(DEVICE)
            if old.bias is not None:
                new.bias = old.bias
            setattr(parent, child, new)
    return model


def build_base(shape, nf4):
    """The frozen model, with random weights made on the device."""
    vision, text = shape
    config = LlavaConfig(vision_config=CLIPVisionConfig(**vision), text_config=MistralConfig(**text, use_cache=False), image_token_index=IMAGE,
                         vision_feature_layer=-2, attn_implementation="sdpa")
    with torch.device("meta"):
        model = LlavaForConditionalGeneration(config).bfloat16()
    model.to_empty(device=DEVICE)
    language = model.model.language_model
    language.rotary_emb = MistralRotaryEmbedding(config.text_config).to(DEVICE)
    embeddings = next(m for m in model.modules() if hasattr(m, "position_ids"))
    embeddings.position_ids = torch.arange(embeddings.num_positions, device=DEVICE)[None]
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.fill_(1) if "norm" in name and p.dim() == 1 else p.normal_(0, 0.02)
    model.requires_grad_(False)
    if nf4:
        quantize(model)
        clean()
    return model


def build(mode, shape):
    model = build_base(shape, "nf4" in mode)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=LINEARS, task_type="CAUSAL_LM"))
    if "checkpoint" in mode:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    return model


def read_chats(path, folder, features):
    """[(ids, number of images)]: each <image> is as many ids as the tower gives features."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = []
    for line in open(path):
        sample = json.loads(line)
        ids = [1]
        for turn in sample["conversations"]:
            pieces = turn["value"].split("<image>")
            for k, piece in enumerate(pieces):
                ids += [IMAGE] * features if k else []
                ids += tokenizer(("[INST] " if turn["from"] == "human" and not k else "") + piece, add_special_tokens=False)["input_ids"]
        chats.append((ids, len(sample["image"])))
    return chats


def batches(chats, micro, side):
    for at in range(0, len(chats) - micro + 1, micro):
        part = chats[at:at + micro]
        longest = max(len(ids) for ids, _ in part)
        ids = torch.tensor([x + [0] * (longest - len(x)) for x, _ in part], device=DEVICE)
        mask = torch.tensor([[1] * len(x) + [0] * (longest - len(x)) for x, _ in part], device=DEVICE)
        labels = ids.masked_fill((mask == 0) | (ids == IMAGE), -100)
        pixels = torch.randn(sum(n for _, n in part), 3, side, side, device=DEVICE, dtype=torch.bfloat16)
        yield dict(input_ids=ids, attention_mask=mask, labels=labels, pixel_values=pixels)


def run(mode, micro, shape, a):
    side = shape[0]["image_size"]
    chats = read_chats(a.chats, a.tokenizer, (side // shape[0]["patch_size"]) ** 2)[:a.count // micro * micro]
    data = list(batches(chats, micro, side))
    model = build(mode, shape)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=GPU)

    def epoch():
        for batch in data:
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = model(**batch).loss * (1 / len(data))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    measured = measure(epoch, 1, a.steps)
    tokens = sum(len(ids) for ids, _ in chats)
    padded = sum(b["input_ids"].numel() for b in data)
    return measured | {"per_second": 1e3 * len(chats) / measured["median_ms"], "tokens": tokens, "filled": tokens / padded, "images": sum(n for _, n in chats)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", required=True, help="file that rows are added to")
    p.add_argument("--chats", required=True)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--modes", default="nf4,nf4+checkpoint")
    p.add_argument("--micro", default="4")
    p.add_argument("--count", type=int, default=96, help="conversations of an optimizer step, whose time is measured")
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--tiny", action="store_true")
    a = p.parse_args()
    for mode in a.modes.split(","):
        for micro in map(int, a.micro.split(",")):
            Rows(a.rows).attempt(lambda: run(mode, micro, SHAPES["tiny" if a.tiny else "7b"], a), side="peer", what="llava", mode=mode, micro=micro)
            clean()


if __name__ == "__main__":
    main()
