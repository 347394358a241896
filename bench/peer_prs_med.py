#!/usr/bin/env python3
"""PRS-Med in PyTorch on a GPU: TinySAM's encoder (trained), LLaVA-Med (frozen, NF4 by bitsandbytes, LoRA by PEFT),
fusion and mask head; samples a second and peak memory.

    peer_prs_med.py --rows FILE --table DATA.csv --tokenizer FOLDER --modes nf4,nf4+checkpoint --micro 2,4,8

The program of train_prs_med.py, repaired: the language model runs once, on rows of image, question and answer padded to
the longest of a batch; its loss is on the answer's tokens, and only their logits are computed; the fusion reads the
states of image and question. Random weights of the real shapes, images of 1024 x 1024 pixels, an optimizer step of
--batch samples, bf16 autocast over f32 trained weights, fused AdamW, gradients clipped to 1, channels-last maps, SDPA
attention. Pixels and masks are on the GPU before the timing.

Words of a mode, joined by "+":
    nf4          bitsandbytes' 4-bit layers; without it the frozen weights are bf16
    checkpoint   gradient checkpointing of all blocks; checkpoint_lm or checkpoint_image: of one side alone
    compile      torch.compile of image encoder, fusion and mask head
    eager        TinySAM's attention as in its code: scores, bias, softmax

--tiny: a small model, for testing on a CPU."""
import argparse
import csv
import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint
from transformers import AutoTokenizer

import peer_llava
from peer import DEVICE, GPU, Rows, clean, measure

SHAPES = {
    "real": dict(llava="7b", image=1024, dims=(64, 128, 160, 320), depths=(2, 2, 6, 2), heads=(2, 4, 5, 10), windows=(7, 7, 14, 7), C=256, pooled=16, channels=(128, 64, 32, 16, 8, 4)),
    "tiny": dict(llava="tiny", image=64, dims=(8, 16, 16, 32), depths=(1, 1, 1, 1), heads=(1, 2, 2, 4), windows=(4, 4, 4, 4), C=32, pooled=4, channels=(16, 8, 8, 4)),
}


class Take(nn.Module):
    """Calls its parts in order; `recompute`: each under gradient checkpointing."""
    recompute = False

    def run(self, parts, x):
        for part in parts:
            x = checkpoint(part, x, use_reentrant=False) if self.recompute else part(x)
        return x


# --- TinySAM's encoder --------------------------------------------------------------------------


def conv_norm(i, o, k=1, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o))


class Inverted(nn.Module):
    """A block of the first stage (with its shortcut), or the step between two stages."""

    def __init__(self, i, inner, o, stride, shortcut):
        super().__init__()
        self.body = nn.Sequential(conv_norm(i, inner), nn.GELU(), conv_norm(inner, inner, 3, stride, inner), nn.GELU(), conv_norm(inner, o))
        self.shortcut = shortcut

    def forward(self, x):
        return F.gelu(x + self.body(x)) if self.shortcut else self.body(x)


class Attention(nn.Module):
    eager = False

    def __init__(self, width, heads, window):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.biases = nn.Parameter(torch.zeros(heads, window * window))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij"), -1).view(-1, 2)
        distance = (at[:, None] - at[None]).abs()
        self.register_buffer("index", distance[..., 0] * window + distance[..., 1], persistent=False)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, t, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        bias = self.biases[:, self.index].to(q.dtype)
        if self.eager:
            y = ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5 + bias).softmax(-1).to(v.dtype) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, bias[None])
        return self.proj(y.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.window = window
        self.attention = Attention(width, heads, window)
        self.local = conv_norm(width, width, 3, groups=width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x):  # [B,H,W,C]
        B, H, _, C = x.shape
        w, n = self.window, -(-H // self.window)
        x = F.pad(x, (0, 0, 0, n * w - H, 0, n * w - H)).view(B, n, w, n, w, C).transpose(2, 3).reshape(-1, w * w, C)
        return self.attention(x).view(B, n, n, w, w, C).transpose(2, 3).reshape(B, n * w, n * w, C)[:, :H, :H]

    def forward(self, x):
        x = self.local(x + self.attend(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        return x + self.mlp(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Norm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Encoder(Take):
    def __init__(self, s):
        super().__init__()
        dims, C = s["dims"], s["C"]
        self.parts = nn.ModuleList([nn.Sequential(conv_norm(3, dims[0] // 2, 3, 2), nn.GELU(), conv_norm(dims[0] // 2, dims[0], 3, 2))])
        for i, width in enumerate(dims):
            self.parts += [Block(width, s["heads"][i], s["windows"][i]) if i else Inverted(width, 4 * width, width, 1, True) for _ in range(s["depths"][i])]
            if i + 1 < len(dims):
                self.parts.append(Inverted(width, dims[i + 1], dims[i + 1], 1 if i + 2 == len(dims) else 2, False))
        self.parts.append(nn.Sequential(nn.Conv2d(dims[-1], C, 1, bias=False), Norm2d(C, 1e-6), nn.Conv2d(C, C, 3, padding=1, bias=False), Norm2d(C, 1e-6)))

    def forward(self, x):
        return self.run(self.parts, x)


# --- fusion and mask head -----------------------------------------------------------------------


class Fusion(nn.Module):
    def __init__(self, C, text, pooled, heads=8):
        super().__init__()
        self.pooled, self.heads = pooled, heads
        self.image = nn.Sequential(nn.Conv2d(C, C, 1), nn.GELU(), nn.BatchNorm2d(C))
        self.text = nn.Sequential(nn.Linear(text, C), nn.GELU(), nn.LayerNorm(C))
        self.norm, self.drop = nn.LayerNorm(C), nn.Dropout(0.1)
        self.q, self.kv, self.out = nn.Linear(C, C), nn.Linear(C, 2 * C), nn.Linear(C, C)
        self.mlp = nn.Sequential(nn.LayerNorm(C), nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C), nn.Dropout(0.1))
        self.output = nn.Sequential(nn.Conv2d(C, C, 3, padding=1), nn.GELU(), nn.BatchNorm2d(C))

    def forward(self, image, states, seen):  # seen: bool [B,T], the tokens of image and question
        z = F.adaptive_avg_pool2d(image, self.pooled)
        x, y = self.image(z).flatten(2).transpose(1, 2), self.norm(self.text(states))
        B, n, C = x.shape
        q = self.q(self.norm(x)).view(B, n, self.heads, -1).transpose(1, 2)
        k, v = self.kv(y).view(B, y.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, seen[:, None, None], dropout_p=0.1 if self.training else 0.0)
        x = x + self.drop(self.out(a.transpose(1, 2).reshape(B, n, C)))
        x = x + self.mlp(x)
        return self.output(x.transpose(1, 2).reshape(z.shape) + z)


class MaskHead(Take):
    def __init__(self, C, channels):
        super().__init__()
        stages = [nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in zip((C, *channels), channels)]
        self.parts = nn.ModuleList([*stages, nn.Conv2d(channels[-1], 1, 1)])

    def forward(self, x):
        return self.run(self.parts, x)


def mask_loss(logits, target):
    """logits and target [B,h,h]: binary cross-entropy + dice."""
    p = logits.sigmoid()
    dice = 1 - (2 * (p * target).sum((1, 2)) + 1e-6) / (p.sum((1, 2)) + target.sum((1, 2)) + 1e-6)
    return F.binary_cross_entropy_with_logits(logits, target) + dice.mean()


class Model(nn.Module):
    def __init__(self, s, nf4):
        super().__init__()
        text = peer_llava.SHAPES[s["llava"]][1]["hidden_size"]
        self.llava = peer_llava.build_base(peer_llava.SHAPES[s["llava"]], nf4)
        self.lora = get_peft_model(self.llava, LoraConfig(r=16, lora_alpha=16, lora_dropout=0.05, target_modules=peer_llava.LINEARS))
        with torch.device(DEVICE):
            self.encoder, self.fusion, self.head = Encoder(s), Fusion(s["C"], text, s["pooled"]), MaskHead(s["C"], s["channels"])
        for part in (self.encoder, self.fusion, self.head):
            part.to(memory_format=torch.channels_last)
        self.train()

    def set_mode(self, words):
        """What calls the image side in this mode."""
        kwargs = {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
        lm = "checkpoint" in words or "checkpoint_lm" in words
        self.llava.gradient_checkpointing_enable(**kwargs) if lm else self.llava.gradient_checkpointing_disable()
        Take.recompute = "checkpoint" in words or "checkpoint_image" in words
        Attention.eager = "eager" in words
        wrap = functools.partial(torch.compile, dynamic=False) if "compile" in words else lambda x: x
        self.encode, self.decode = wrap(lambda x: self.encoder(x)), wrap(lambda *x: self.head(self.fusion(*x)))

    def forward(self, b):
        states = self.llava.model(input_ids=b["ids"], pixel_values=b["pixels"], attention_mask=b["mask"], use_cache=False).last_hidden_state
        logits = self.llava.lm_head(states[:, :-1][b["labelled"]])
        masks = self.decode(self.encode(b["images"]), states, b["question"])
        return F.cross_entropy(logits.float(), b["labels"]), mask_loss(masks.float()[:, 0], b["masks"])


# --- data ---------------------------------------------------------------------------------------


def read_table(path, folder, features):
    """[(ids of image and question, ids of the answer)]"""
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    with open(path, newline="") as f:
        return [([1, *ids("USER: "), *[peer_llava.IMAGE] * features, *ids(f"\n{row['question']}\nASSISTANT:")], [*ids(" " + row["answer"]), 2]) for row in csv.DictReader(f)]


def batch_of(part, s):
    """Rows are padded to the longest of them."""
    B, n = len(part), s["image"]
    longest = max(len(q) + len(a) for q, a in part)
    lengths = torch.tensor([(len(q), len(q) + len(a)) for q, a in part], device=DEVICE)
    ids = torch.tensor([q + a + [0] * (longest - len(q) - len(a)) for q, a in part], device=DEVICE)
    at = torch.arange(longest, device=DEVICE)[None]
    mask, question = at < lengths[:, 1:], at < lengths[:, :1]
    labelled = (mask & ~question)[:, 1:]
    side = peer_llava.SHAPES[s["llava"]][0]["image_size"]
    coarse = torch.randn(B, 1, 8, 8, device=DEVICE)
    return dict(ids=ids, mask=mask.long(), question=question, labelled=labelled, labels=ids[:, 1:][labelled],
                pixels=torch.randn(B, 3, side, side, device=DEVICE, dtype=torch.bfloat16),
                images=torch.randn(B, 3, n, n, device=DEVICE).contiguous(memory_format=torch.channels_last),
                masks=(F.interpolate(coarse, size=(n, n), mode="bilinear")[:, 0] > 0).float())


def run(model, words, micro, s, a):
    vision = peer_llava.SHAPES[s["llava"]][0]
    rows = read_table(a.table, a.tokenizer, (vision["image_size"] // vision["patch_size"]) ** 2)[:a.batch]
    data = [batch_of(rows[at:at + micro], s) for at in range(0, a.batch, micro)]
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01, fused=GPU)
    model.set_mode(words)
    seen = []

    def step():
        total = 0
        for b in data:
            with torch.autocast(DEVICE, torch.bfloat16):
                text, mask = model(b)
            loss = (mask + 0.5 * text) * (1 / len(data))
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen.append(total)
    measured = measure(step, a.warm, a.steps)
    return measured | {"per_second": 1e3 * a.batch / measured["median_ms"], "trained": sum(p.numel() for p in trained), "losses": [float(x) for x in seen],
                       "tokens": sum(len(q) + len(x) for q, x in rows), "padded": sum(b["ids"].numel() for b in data)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", required=True, help="file that rows are added to")
    p.add_argument("--table", required=True)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--modes", default="nf4,nf4+checkpoint")
    p.add_argument("--micro", default="4,8")
    p.add_argument("--batch", type=int, default=8, help="samples of an optimizer step")
    p.add_argument("--warm", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--tiny", action="store_true")
    a = p.parse_args()
    s, models = SHAPES["tiny" if a.tiny else "real"], {}
    for mode in a.modes.split(","):
        words = mode.split("+")
        if ("nf4" in words) not in models:
            models.clear()
            clean()
            models["nf4" in words] = Model(s, "nf4" in words)
        for micro in map(int, a.micro.split(",")):
            Rows(a.rows).attempt(lambda: run(models["nf4" in words], words, micro, s, a), side="peer", what="prs_med", mode=mode, micro=micro)
            clean(compiled="compile" in words)


if __name__ == "__main__":
    main()
