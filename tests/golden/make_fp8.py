#!/usr/bin/env python3
"""Golden files of memory.precision fp8: the recipe of docs/explanation/kernels.md in PyTorch, on a CPU.

    python tests/golden/make_fp8.py [--out DIR]

No reference framework has this recipe, so it is written here, with torch.float8_e4m3fn for the
roundings, and with nothing from the program. A Llama of one block, forward and backward op by op:
every op computes in f32 on numbers rounded to bf16, and its results are rounded to bf16, as in
mixed precision; the products of the block's linear layers read

    rows of x, dy and w in e4m3, with the scale 448 / max|row| rounded down to a power of two
    columns of w: of these numbers, again with a scale for each row of the transpose
    fp8-all: blocks of 128 tokens of these rows, with a scale for each column of a block

    fp8/config.json, model.safetensors, rows.safetensors (the batch; no case of golden.sh)
    fp8/fp8.safetensors, fp8/fp8-all.safetensors    logits (of fp8), loss, grad.<name>
    fp8/e4m3.txt    a hash of the codes of all finite bf16 numbers, clamped to 448
    fp8/rows.txt    scales of some rows: the bits of the largest magnitude, the exponent of the scale

tests/run_fp8.sh and tests/test_e4m3.c read them.
"""
import argparse
import os

import torch
import torch.nn.functional as F

from common import HERE, write_json, write_tensors

E4M3 = torch.float8_e4m3fn
B, T, V, H, HEADS, KV, D, INTER, EPS, THETA = 2, 128, 16, 32, 2, 1, 16, 16, 1e-2, 100.0
BLOCK = "model.layers.0."


def bf16(x):
    return x.to(torch.bfloat16).float()


def exponent(most):
    """k, the largest number with most * 2^k <= 448, at most 100; 0 for zeros."""
    mantissa, power = torch.frexp(most.double())  # most = mantissa * 2^power, 0.5 <= mantissa < 1
    k = 8 - (power - 1) - (mantissa * 2 > 1.75).int()
    return torch.where(most == 0, torch.zeros_like(k), k.clamp(max=100))


def rows(x):
    """x as e4m3 with a scale for each row, decoded."""
    k = exponent(x.abs().amax(-1, keepdim=True))
    codes = torch.ldexp(x, k).clamp(-448, 448).to(E4M3)
    return torch.ldexp(codes.float(), -k)


def columns(x, block):
    """The columns of blocks of rows of x, decoded, in the shape of x."""
    return rows(x.reshape(-1, block, x.shape[-1]).transpose(1, 2)).transpose(1, 2).reshape(x.shape)


def product(a, b, add=None):
    """a b^T + add, rounded once."""
    y = a @ b.T
    return bf16(y if add is None else y + add)


class Layer:
    """A linear layer of the block: its three products."""

    def __init__(self, w, everything):
        self.w, self.turned, self.everything = rows(w), columns(rows(w), w.shape[0]), everything

    def forward(self, x, add=None):
        self.x = x
        return product(rows(x), self.w, add)

    def dx(self, dy, add=None):
        return product(rows(dy), self.turned.T, add)

    def dw(self, dy):
        dy, x = dy.reshape(-1, dy.shape[-1]), self.x.reshape(-1, self.x.shape[-1])
        if self.everything:
            dy, x = columns(rows(dy), 128), columns(rows(x), 128)
        return dy.T @ x


def norm(x, w):
    rstd = (x.double().square().mean(-1, keepdim=True) + EPS).rsqrt().float()
    return bf16(x * rstd * w), rstd


def norm_backward(dy, x, w, rstd, add=None):
    xhat, g = x * rstd, dy * w
    dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    return bf16(dx if add is None else dx + add), (dy * xhat).reshape(-1, x.shape[-1]).sum(0)


def rotate(x, inverse=False):
    """RoPE of [B,T,heads,D]: pairs (i, i + D/2)."""
    angle = torch.arange(T).float()[:, None] * (THETA ** (-torch.arange(0, D, 2).float() / D))[None]
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None] * (-1 if inverse else 1)
    a, b = x[..., : D // 2], x[..., D // 2:]
    return bf16(torch.cat([a * cos - b * sin, b * cos + a * sin], -1))


def attention(q, k, v, do=None, o=None):
    """Causal attention of [B,T,heads,D] in f32; with do its gradients, from the rounded result o."""
    qh, kh, vh = (x.transpose(1, 2) for x in (q, k, v))
    kh, vh = (x.repeat_interleave(HEADS // KV, 1) for x in (kh, vh))
    score = (qh @ kh.transpose(2, 3)) * D ** -0.5
    p = score.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf")).softmax(-1)
    if do is None:
        return bf16((p @ vh).transpose(1, 2))
    doh, oh = do.transpose(1, 2), o.transpose(1, 2)
    ds = p * (doh @ vh.transpose(2, 3) - (doh * oh).sum(-1, keepdim=True)) * D ** -0.5
    dq, dk, dv = ds @ kh, ds.transpose(2, 3) @ qh, p.transpose(2, 3) @ doh
    dk, dv = (x.reshape(B, KV, HEADS // KV, T, D).sum(2) for x in (dk, dv))
    return tuple(bf16(x.transpose(1, 2)) for x in (dq, dk, dv))


def step(w, ids, everything):
    """The loss, the logits and every gradient."""
    layer = {n: Layer(w[BLOCK + n + ".weight"], everything)
             for n in ["self_attn." + p + "_proj" for p in "qkvo"] + ["mlp." + p + "_proj" for p in ("gate", "up", "down")]}
    q_, k_, v_, o_ = (layer[f"self_attn.{p}_proj"] for p in "qkvo")
    gate_, up_, down_ = (layer[f"mlp.{p}_proj"] for p in ("gate", "up", "down"))
    table, norm1, norm2, norm3 = (w[n + ".weight"] for n in ("model.embed_tokens", BLOCK + "input_layernorm",
                                                             BLOCK + "post_attention_layernorm", "model.norm"))
    x0 = table[ids]
    x1, rstd1 = norm(x0, norm1)
    heads = lambda x: x.reshape(B, T, -1, D)
    q, k, v = rotate(heads(q_.forward(x1))), rotate(heads(k_.forward(x1))), heads(v_.forward(x1))
    o = attention(q, k, v)
    r = o_.forward(o.reshape(B, T, -1), x0)
    x2, rstd2 = norm(r, norm2)
    gate, up = gate_.forward(x2), up_.forward(x2)
    s = gate.sigmoid()
    y = down_.forward(bf16(gate * s * up), r)
    x3, rstd3 = norm(y, norm3)
    logits = bf16(x3 @ table.T)
    count = B * (T - 1)
    labels = torch.full((B, T), -100)
    labels[:, :-1] = ids[:, 1:]
    loss = F.cross_entropy(logits.reshape(-1, V), labels.reshape(-1), ignore_index=-100, reduction="sum") / count

    chosen = torch.zeros(B, T, V).scatter_(2, labels.clamp(min=0)[..., None], 1.0)
    dlogits = bf16((logits.softmax(-1) - chosen) * (labels >= 0)[..., None] / count)
    grad = {}
    dtable = dlogits.reshape(-1, V).T @ x3.reshape(-1, H)
    dy, grad["model.norm.weight"] = norm_backward(bf16(dlogits @ table), y, norm3, rstd3)
    grad[BLOCK + "mlp.down_proj.weight"] = down_.dw(dy)
    dh = down_.dx(dy)
    dup, dgate = bf16(dh * gate * s), bf16(dh * up * s * (1 + gate * (1 - s)))
    grad[BLOCK + "mlp.up_proj.weight"], grad[BLOCK + "mlp.gate_proj.weight"] = up_.dw(dup), gate_.dw(dgate)
    dx2 = gate_.dx(dgate, up_.dx(dup))
    dr, grad[BLOCK + "post_attention_layernorm.weight"] = norm_backward(dx2, r, norm2, rstd2, dy)
    grad[BLOCK + "self_attn.o_proj.weight"] = o_.dw(dr)
    dq, dk, dv = attention(q, k, v, heads(o_.dx(dr)), o)
    flat = lambda x: x.reshape(B, T, -1)
    dq, dk, dv = flat(rotate(dq, True)), flat(rotate(dk, True)), flat(dv)
    for name, l, d in (("v", v_, dv), ("k", k_, dk), ("q", q_, dq)):
        grad[BLOCK + f"self_attn.{name}_proj.weight"] = l.dw(d)
    dx1 = q_.dx(dq, k_.dx(dk, v_.dx(dv)))
    dx0, grad[BLOCK + "input_layernorm.weight"] = norm_backward(dx1, x0, norm1, rstd1, dr)
    grad["model.embed_tokens.weight"] = dtable.index_add(0, ids.reshape(-1), dx0.reshape(-1, H))
    return {"loss": loss, "logits": logits, **{"grad." + n: g.contiguous() for n, g in grad.items()}}


def random_weights(generator):
    shapes = {"model.embed_tokens": (V, H), BLOCK + "input_layernorm": (H,), BLOCK + "post_attention_layernorm": (H,),
              "model.norm": (H,), BLOCK + "self_attn.q_proj": (HEADS * D, H), BLOCK + "self_attn.k_proj": (KV * D, H),
              BLOCK + "self_attn.v_proj": (KV * D, H), BLOCK + "self_attn.o_proj": (H, HEADS * D),
              BLOCK + "mlp.gate_proj": (INTER, H), BLOCK + "mlp.up_proj": (INTER, H), BLOCK + "mlp.down_proj": (H, INTER)}
    return {n + ".weight": (torch.randn(s, generator=generator) * 0.2 + ("norm" in n)).to(torch.bfloat16)
            for n, s in shapes.items()}


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def write_roundings(folder):
    bits = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    x = bits[bits.isfinite()].float().clamp(-448, 448)
    with open(os.path.join(folder, "e4m3.txt"), "w") as f:
        f.write(fnv(x.to(E4M3).view(torch.uint8).numpy().tobytes()) + "\n")
    most = torch.tensor([0, 1e-38, 2 ** -92.0, 2 ** -91.0, 1e-5, 1, 1.75, 1.7500001, 2, 3.5, 3.51, 447, 448, 449, 896, 3e38])
    with open(os.path.join(folder, "rows.txt"), "w") as f:
        for m, k in zip(most, exponent(most)):
            f.write(f"{m.view(torch.int32).item():08x} {-k.item()}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default=HERE, metavar="DIR")
    folder = os.path.join(p.parse_args().out, "fp8")
    os.makedirs(folder, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    weights, ids = random_weights(generator), torch.randint(0, V, (B, T), generator=generator)
    write_json(os.path.join(folder, "config.json"), {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": H, "intermediate_size": INTER, "max_position_embeddings": T,
        "mlp_bias": False, "model_type": "llama", "num_attention_heads": HEADS, "num_hidden_layers": 1,
        "num_key_value_heads": KV, "rms_norm_eps": EPS, "rope_theta": THETA, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "vocab_size": V})
    write_tensors(os.path.join(folder, "model.safetensors"), weights, {"format": "pt"})
    write_tensors(os.path.join(folder, "rows.safetensors"), {"input_ids": ids.int(), "labels": ids.int()})
    w = {n: x.float() for n, x in weights.items()}
    for name in ("fp8", "fp8-all"):
        result = step(w, ids, name == "fp8-all")
        if name == "fp8-all":
            del result["logits"]  # those of fp8
        write_tensors(os.path.join(folder, name + ".safetensors"), {n: x.float().contiguous() for n, x in result.items()})
        print(name, "loss", float(result["loss"]))
    write_roundings(folder)


if __name__ == "__main__":
    main()
