#!/usr/bin/env python3
"""Attention in PyTorch, forward and backward, bf16: the counterpart of bench_cuda_attention.c.

    peer_attention.py --rows FILE CASE...

    dense,B,H,T,D,CAUSAL     SDPA by its flash and its cuDNN backend
    rel,B,H,HEIGHT,WIDTH,D   SAM's decomposed positions by the implementations that PyTorch offers (routes):
        eager      scores, positions added, softmax in f32, as transformers does without sdpa
        bias       SDPA with the positions as a T x T mask
        widened    SDPA with a wider head: q with its products with the tables, k with ones at its row and column (compiled)
        flex       FlexAttention that adds the two products in its score (compiled)

All compute from q, k, v and the two tables, and return their five gradients. FlexAttention sums the gradients of the
terms that its score adds with f32 atomics; where it refuses the backward, the row has only the forward and the
reason. A route that would take longer than --limit seconds for all shapes, compilation included, skips the rest."""
import argparse
import time

import torch
import torch.nn.functional as F

from peer import GPU, DEVICE, Rows, clean, measure


def products(q, table_h, table_w, height, width):
    """The products of q [B,H,T,D] with the tables' rows for every distance: [B,H,T,height], [B,H,T,width]."""
    B, H, T, D = q.shape
    rows, columns = torch.arange(height, device=q.device), torch.arange(width, device=q.device)
    by_row = table_h[rows[:, None] - rows[None] + height - 1]
    by_column = table_w[columns[:, None] - columns[None] + width - 1]
    grid = q.reshape(B * H, height, width, D)
    return (torch.einsum("nhwd,hkd->nhwk", grid, by_row).reshape(B, H, T, height),
            torch.einsum("nhwd,wkd->nhwk", grid, by_column).reshape(B, H, T, width))


def joined(h, w):
    """The positions as one T x T term."""
    B, H, T, height = h.shape
    return (h[..., :, None] + w[..., None, :]).reshape(B, H, T, height * w.shape[-1])


def eager(q, k, v, table_h, table_w, height, width):
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) + joined(*products(q, table_h, table_w, height, width))
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


def bias(q, k, v, table_h, table_w, height, width):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=joined(*products(q, table_h, table_w, height, width)))


def widened(q, k, v, table_h, table_w, height, width):
    B, H, T, D = q.shape
    h, w = products(q, table_h, table_w, height, width)
    position = torch.arange(T, device=q.device)
    ones = torch.cat([(position // width)[:, None] == position[None, :height], (position % width)[:, None] == position[None, :width]], 1).to(k.dtype)
    wide = -(-(D + height + width) // 8) * 8
    q = F.pad(torch.cat([q * D ** -0.5, h, w], -1), (0, wide - D - height - width))
    k = F.pad(torch.cat([k, ones.expand(B, H, -1, -1)], -1), (0, wide - D - height - width))
    return F.scaled_dot_product_attention(q, k, F.pad(v, (0, wide - D)), scale=1.0)[..., :D]


def flex(q, k, v, table_h, table_w, height, width):
    from torch.nn.attention.flex_attention import flex_attention
    h, w = products(q, table_h, table_w, height, width)

    def add(score, b, head, at, to):
        return score + h[b, head, at, to // width] + w[b, head, at, to % width]
    return flex_attention(q, k, v, score_mod=add)


ROUTES = {"eager": eager, "bias": bias, "widened": widened, "flex": flex}
COMPILED = ("widened", "flex")
BACKEND = "inductor" if GPU else "aot_eager"


def heads(B, H, T, D):
    return [torch.randn(B, H, T, D, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]


def time_both(forward, inputs, steps):
    """Times only the forward, then forward and backward; bytes are those of both together."""
    upstream = torch.randn_like(inputs[0])
    try:
        first = measure(forward, warm=3, steps=steps, held=True)
        both = measure(lambda: torch.autograd.grad(forward(), inputs, upstream), warm=3, steps=steps, held=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as e:  # a compiler that has no backward for it
        clean(compiled=True)
        for t in inputs:
            t.requires_grad_(False)
        first = measure(forward, warm=3, steps=steps, held=True)
        return {"forward_ms": first["median_ms"], "both_ms": None, "refused": f"backward: {type(e).__name__}: {e}"[:300],
                "peak_bytes": first["peak_bytes"], "warm_seconds": first["warm_seconds"]}
    operands = sum(2 * t.numel() * t.element_size() for t in inputs) + 2 * upstream.numel() * upstream.element_size()
    return {"forward_ms": first["median_ms"], "both_ms": both["median_ms"], "peak_bytes": both["peak_bytes"],
            "extra_bytes": max(0, both["peak_bytes"] - operands), "warm_seconds": first["warm_seconds"] + both["warm_seconds"]}


def dense(case, rows, steps):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    B, H, T, D, causal = case
    backends = {"sdpa flash": SDPBackend.FLASH_ATTENTION, "sdpa cudnn": SDPBackend.CUDNN_ATTENTION} if GPU else {"sdpa math": SDPBackend.MATH}
    for name, backend in backends.items():
        def run():
            inputs = heads(B, H, T, D)
            with sdpa_kernel(backend):
                return time_both(lambda: F.scaled_dot_product_attention(*inputs, is_causal=bool(causal)), inputs, steps)
        rows.attempt(run, side="peer", route=name, case=f"dense,{B},{H},{T},{D},{causal}")
        clean()


def relative(case, rows, steps, routes, limit, spent):
    """spent: the seconds of each shape so far, by route."""
    B, H, height, width, D = case
    for name in routes:
        before = spent.setdefault(name, [])
        if before and sum(before) + max(before) > limit:
            rows.add(side="peer", route=name, case=f"rel,{B},{H},{height},{width},{D}", error=f"left out: {len(before)} shapes took {sum(before):.0f} s")
            continue
        begun = time.perf_counter()

        def run():
            inputs = heads(B, H, height * width, D)
            inputs += [(0.02 * torch.randn(2 * side - 1, D, device=DEVICE)).bfloat16().requires_grad_() for side in (height, width)]

            def route():
                return ROUTES[name](*inputs, height, width)
            return time_both(torch.compile(route, dynamic=False, backend=BACKEND) if name in COMPILED else route, inputs, steps)
        rows.attempt(run, side="peer", route=name, case=f"rel,{B},{H},{height},{width},{D}")
        before.append(time.perf_counter() - begun)
        clean(compiled=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", required=True, help="file that rows are added to")
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--routes", default=",".join(ROUTES))
    p.add_argument("--limit", type=float, default=60, help="seconds for all shapes of one route")
    p.add_argument("cases", nargs="+")
    a = p.parse_args()
    rows, spent = Rows(a.rows), {}
    for case in a.cases:
        kind, *numbers = case.split(",")
        numbers = [int(n) for n in numbers]
        if kind == "dense":
            dense(numbers, rows, a.steps)
        else:
            relative(numbers, rows, a.steps, a.routes.split(","), a.limit, spent)


if __name__ == "__main__":
    main()
