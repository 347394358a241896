#!/usr/bin/env python3
"""Rows of the GPU's benchmarks: reads them from our program's JSON, and prints tables of them.

    cuda_rows.py bench ROWS.jsonl BENCH.json KEY=VALUE...   adds a row from the output of `plimsoll bench --json`; KEY=VALUE: more members
    cuda_rows.py train ROWS.jsonl RUN_DIR KEY=VALUE...      adds a row from a run's plan.json and metrics.jsonl
    cuda_rows.py failed ROWS.jsonl LOG KEY=VALUE...         adds a row for a failure, with the end of its log
    cuda_rows.py table KIND ROWS.jsonl...                   KIND: sam, lm, beyond, lora, llava, qwen_vl, prs_med, attention, frontier, kernels; the rows of all files

Needs only Python's standard library. A later row replaces an earlier row of the same measurement."""
import json
import os
import statistics
import sys

GIB = 2 ** 30


def tags(words):
    def value(text):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return {key: value(text) for key, text in (w.split("=", 1) for w in words)}


def add(path, row):
    with open(path, "a") as f:
        f.write(json.dumps(row) + "\n")


def read(paths):
    rows = []
    for path in paths:
        with open(path) as f:
            rows += [json.loads(line) for line in f if line.strip()]
    return rows


# --- rows of our program ------------------------------------------------------------------------

def from_bench(path, more):
    with open(path) as f:
        b = json.load(f)
    state = sum(b["breakdown"][k] for k in ("weights", "gradients", "optimizer"))
    row = {"side": "ours", "median_ms": 1e3 * b["measured_median_seconds"], "mean_ms": 1e3 * b["measured_mean_seconds"],
           "predicted_ms": 1e3 * b["predicted_step_seconds"], "peak_bytes": b["arena_bytes"], "used_bytes": b.get("device_used_bytes", 0),
           "host_bytes": b["host_arena_bytes"], "copied_in": b.get("copied_in_bytes", 0), "copied_out": b.get("copied_out_bytes", 0), "state_bytes": state, "kernels": b.get("kernels", []), "ops": b["ops"],
           "per_second": b["effective_batch"] / b["measured_median_seconds"]}
    row |= {k: b.get(k) for k in ("precision", "optimizer", "recompute", "micro_batch", "accumulation", "fused_step", "offload", "head_chunks")}
    row |= more
    if "tokens" in row:  # per second: of tokens
        row["per_second"] *= row["tokens"]
    return row


def from_train(path, more):
    """The first step is warm-up: it includes lazy loading of kernels."""
    with open(os.path.join(path, "plan.json")) as f:
        plan = json.load(f)
    with open(os.path.join(path, "metrics.jsonl")) as f:
        steps = [json.loads(line) for line in f if line.endswith("}\n")]
    steps = [s for s in steps if "seconds" in s]
    if len(steps) < 2:
        return {"side": "ours", "error": f"{len(steps)} steps ran"} | more
    s = plan["settings"]
    seconds = statistics.median(x["seconds"] for x in steps[1:])
    used = [x["memory_total"] - x["memory_free"] for x in steps if "memory_free" in x]
    return {"side": "ours", "steps": len(steps), "predicted_ms": 1e3 * plan["predicted_step_seconds"], "median_ms": 1e3 * seconds,
            "per_second": s["effective_batch"] / seconds, "predicted_per_second": s["effective_batch"] / plan["predicted_step_seconds"],
            "plan_bytes": plan["arena_bytes"], "allocated_bytes": max(x.get("memory_reserved", 0) for x in steps), "used_bytes": max(used, default=0),
            "used_least_bytes": min(used[1:] or used, default=0), "host_bytes": plan["arenas"].get("host", 0), "settings": s} | more


def table_llava(rows):
    """Conversations a second; ours trains on rows of several."""
    seen = {(r["side"], r["mode"], r.get("micro")): r for r in rows if r.get("what") == "llava"}
    target = max((r for (side, _, _), r in seen.items() if side == "peer" and "error" not in r), key=lambda r: r["per_second"], default=None)
    lines = []
    for (side, mode, micro), r in seen.items():
        name = "PEFT" if side == "peer" else "ours"
        if "error" in r:
            lines.append((name, mode, short(r), "", "", "", "", ""))
            continue
        each = r["conversations"] / r["rows"] if side == "ours" else 1
        peak = r["plan_bytes"] if side == "ours" else r["peak_bytes"]
        what = f"{mode}, batches of {micro}" if side == "peer" else f"{mode}, micro-batch {r['settings']['micro_batch']}"
        lines.append((name, what, f"{each * r['per_second']:.2f}", f"{r['median_ms']:.0f}", f"{r.get('predicted_ms', 0):.0f}", gib(peak),
                      ratio(each * r["per_second"], good(target, "per_second")), ratio(peak, good(target, "peak_bytes"))))
    table(("", "", "conversations/s", "ms", "predicted", "peak GiB", "times PEFT's best", "of its memory"), lines)


def table_prs_med(rows):
    """Samples a second, beside the fastest of the peer's settings."""
    seen = {(r["side"], r["mode"], r.get("micro")): r for r in rows if r.get("what") == "prs_med"}
    target = max((r for (side, _, _), r in seen.items() if side == "peer" and "error" not in r), key=lambda r: r["per_second"], default=None)
    lines = []
    for (side, mode, micro), r in seen.items():
        name = "PyTorch" if side == "peer" else "ours"
        what = f"{mode}, micro-batch {micro or r.get('settings', {}).get('micro_batch', '')}"
        if "error" in r:
            lines.append((name, what, short(r), "", "", "", "", "", ""))
            continue
        peak = r["plan_bytes"] if side == "ours" else r["peak_bytes"]
        same = "" if side == "peer" else "equal" if r["plan_bytes"] == r["allocated_bytes"] else f"{r['allocated_bytes'] - r['plan_bytes']:+d} B"
        lines.append((name, what, f"{r['per_second']:.2f}", f"{r['median_ms']:.0f}", f"{r['predicted_ms']:.0f}" if side == "ours" else "", f"{peak / GIB:.2f}", same,
                      ratio(r["per_second"], good(target, "per_second")), ratio(peak, good(target, "peak_bytes"))))
    table(("", "", "samples/s", "ms", "predicted", "peak GiB", "allocated", "times PyTorch's best", "of its memory"), lines)


def table_qwen_vl(rows):
    """Tokens a second without padding, beside the fastest of the peer's modes."""
    seen = {(r["side"], r.get("name"), r["mode"]): r for r in rows if r.get("what") == "qwen_vl"}
    target = {name: r for (side, name, _), r in sorted(seen.items(), key=lambda x: x[1].get("per_second", 0)) if side == "peer" and "error" not in r}
    lines = []
    for (side, name, mode), r in seen.items():
        who = "PEFT" if side == "peer" else "ours"
        if "error" in r:
            lines.append((who, name, mode, short(r), "", "", "", "", ""))
            continue
        each = r["tokens"] / r["rows"] if side == "ours" else 1
        peak = r["plan_bytes"] if side == "ours" else r["peak_bytes"]
        lines.append((who, name, mode, f"{each * r['per_second']:.0f}", f"{r['median_ms']:.0f}", f"{r.get('predicted_ms', 0):.0f}", gib(peak),
                      ratio(each * r["per_second"], good(target.get(name), "per_second")), ratio(peak, good(target.get(name), "peak_bytes"))))
    table(("", "", "", "tokens/s", "ms", "predicted", "peak GiB", "times PEFT's best", "of its memory"), lines)


# --- tables -------------------------------------------------------------------------------------

def gib(n):
    return f"{n / GIB:.1f}" if n else "-"


def table(head, lines):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for line in lines:
        print("| " + " | ".join(str(x) for x in line) + " |")
    print()


def ratio(a, b):
    return f"{a / b:.2f}" if a and b else ""


def short(row):
    return row["error"].split("\n")[0][:100]


def cell(row, digits=1):
    """images/s, peak, used memory of the GPU."""
    if not row:
        return ""
    if "error" in row:
        return short(row)
    return f"{row['per_second']:.{digits}f} / {gib(row['peak_bytes'])} / {gib(row['used_bytes'])}"


def good(row, key):
    return row.get(key) if row and "error" not in row else None


SAM_NAMES = {"b": "ViT-B", "h": "ViT-H", "2t": "Hiera-T", "2b": "Hiera-B+", "2l": "Hiera-L"}


def table_sam(rows):
    seen = {(r["side"], r["what"], r["model"], r["batch"], r["recompute"]): r for r in rows if r.get("what") in ("sam", "encoder") and not r.get("budget")}
    columns = ("none", "checkpoint", "selective")
    cases = sorted({(k[2], k[3]) for k in seen if k[4] in columns})
    print("img/s / peak GiB (arena; PyTorch: allocated) / GiB used on the GPU (with context and code)\n")
    lines = []
    for model, B in cases:
        def get(*key):
            return seen.get((key[0], key[1], model, B, key[2]))
        none, encoder, ours, selective = get("peer", "sam", "none"), get("peer", "encoder", "none"), get("ours", "sam", "none"), get("ours", "sam", "selective")
        lines.append((SAM_NAMES.get(model, model), B, cell(none), cell(get("peer", "sam", "checkpoint")), cell(encoder), cell(get("peer", "encoder", "checkpoint")),
                      cell(ours), cell(selective), ratio(good(ours, "per_second"), good(none, "per_second")), ratio(good(ours, "peak_bytes"), good(none, "peak_bytes")),
                      ratio(good(selective, "peak_bytes"), good(none, "peak_bytes")), ratio(good(ours, "per_second"), good(encoder, "per_second")), gib(good(ours, "state_bytes"))))
    table(("", "B", "SamModel", "checkpointing", "encoder by hand", "checkpointing", "ours", "ours, selective", "times SamModel", "of its memory", "selective", "times the encoder", "state GiB"), lines)
    others = [r for k, r in seen.items() if k[4] not in columns]
    if others:
        print()
        table(("", "images or clips/s", "ms", "predicted", "arena GiB", "host GiB"),
              [(r["name"], short(r), "", "", "", "") if "error" in r else
               (r["name"], f"{r['per_second']:.2f}", f"{r['median_ms']:.0f}", f"{r['predicted_ms']:.0f}", gib(r["peak_bytes"]), gib(r["host_bytes"])) for r in others])


def table_lm(rows):
    rows = [r for r in rows if r.get("what") == "lm"]
    seen = {(r["side"], r["mode"]): r for r in rows}
    target = next((r for (side, mode), r in seen.items() if side == "peer" and mode.startswith("compile") and "checkpoint" not in mode and "error" not in r), None)
    lines = []
    for (side, mode), r in seen.items():
        name = "PyTorch" if side == "peer" else "ours"
        if "error" in r:
            lines.append((name, mode, short(r), "", "", "", "", ""))
            continue
        if mode.startswith("within"):
            mode += f": {r['micro_batch']} x {r['accumulation']}, recompute {r['recompute']}, head chunks {r['head_chunks']}"
        flops = r.get("tflops") or (1e-9 * r["model_flops"] / r["median_ms"] if r.get("model_flops") else 0)
        lines.append((name, mode, f"{r['per_second']:,.0f}", f"{flops:.0f}", gib(r["peak_bytes"]), gib(r["used_bytes"]), ratio(r["per_second"], good(target, "per_second")), ratio(r["peak_bytes"], good(target, "peak_bytes"))))
    table(("", "", "tok/s", "model TFLOP/s", "peak GiB", "on the GPU", "times compile", "of its memory"), lines)


def table_beyond(rows):
    """Full fine-tuning of models larger than the GPU."""
    seen = {(r["name"], r["mode"]): r for r in rows if r.get("what") == "beyond"}
    lines = []
    for (name, mode), r in seen.items():
        if "error" in r:
            lines.append((name, mode, short(r), "", "", "", "", "", "", ""))
            continue
        chosen = f"{r['micro_batch']} x {r['accumulation']}, recompute {r['recompute']}, {'fused step, ' if r['fused_step'] in (True, 'on') else ''}offload {r['offload']}"
        lines.append((name, mode, chosen, gib(r["peak_bytes"]), gib(r["host_bytes"]), f"{r['copied_in'] / GIB:.0f} + {r['copied_out'] / GIB:.0f}", f"{1e-3 * r['predicted_ms']:.2f}", f"{1e-3 * r['median_ms']:.2f}",
                      f"{r['median_ms'] / r['predicted_ms'] - 1:+.1%}", f"{1e-9 * r['model_flops'] / r['median_ms']:.0f}"))
    table(("", "budget", "plan", "arena, GiB", "host memory, GiB", "copied in + out, GiB", "predicted, s", "measured, s", "", "model TFLOP/s"), lines)


def table_lora(rows):
    seen = {(r["side"], r["mode"], r.get("micro")): r for r in rows if r.get("what") == "lora"}
    target = next((r for (side, mode, _), r in seen.items() if side == "peer" and mode == "lora" and "error" not in r), None)
    lines = []
    for (side, mode, micro), r in seen.items():
        name = "PEFT" if side == "peer" else "ours"
        if "error" in r:
            lines.append((name, mode, short(r), "", "", "", ""))
            continue
        lines.append((name, f"{mode}, micro-batch {micro or r['micro_batch']}", f"{r['per_second']:,.0f}", f"{r['median_ms']:.0f}", gib(r["peak_bytes"]), ratio(r["per_second"], good(target, "per_second")), ratio(r["peak_bytes"], good(target, "peak_bytes"))))
    table(("", "", "tok/s", "ms", "peak GiB", "times PEFT's LoRA", "of its memory"), lines)


def rate(case, ms, forward):
    """TFLOP/s: 4 FLOPs per pair of positions and channel in the forward, 2.5 times as many in the backward."""
    kind, B, H, *rest = case.split(",")
    rest = [int(x) for x in rest]
    T, D = (rest[0], rest[1]) if kind == "dense" else (rest[0] * rest[1], rest[2])
    flops = 4 * int(B) * int(H) * T * T * D * (0.5 if kind == "dense" and rest[2] else 1)
    return 1e-9 * flops * (1 if forward else 3.5) / ms


def table_attention(rows):
    rows = [r for r in rows if "case" in r]
    seen = {(r["case"], r["route"]): r for r in rows}
    for kind, title in (("dense", "dense,B,H,T,D,causal"), ("rel", "rel,B,H,height,width,D")):
        lines = []
        for (case, route), r in sorted(seen.items(), key=lambda x: (list(dict.fromkeys(k[0] for k in seen)).index(x[0][0]), x[0][1] != "ours")):
            if not case.startswith(kind):
                continue
            if "error" in r:
                lines.append((case, route, short(r), "", "", "", "", "", ""))
                continue
            ours = seen.get((case, "ours"))
            if r["both_ms"] is None:  # forward alone: the backward was refused
                lines.append((case, route, f"{r['forward_ms']:.3f}", f"{rate(case, r['forward_ms'], True):.0f}", r["refused"].split("\n")[0][:100], "", f"{r['peak_bytes'] / 2 ** 20:.0f}", "", ""))
                continue
            lines.append((case, route, f"{r['forward_ms']:.3f}", f"{rate(case, r['forward_ms'], True):.0f}", f"{r['both_ms']:.3f}", f"{rate(case, r['both_ms'], False):.0f}",
                          f"{r['peak_bytes'] / 2 ** 20:.0f}", f"{r['extra_bytes'] / 2 ** 20:.0f}", ratio(r["both_ms"], good(ours, "both_ms"))))
        if lines:
            table((title, "", "forward ms", "TFLOP/s", "and backward ms", "TFLOP/s", "peak MiB", "beyond operands MiB", "speedup of ours"), lines)


def table_frontier(rows):
    rows = [r for r in rows if r.get("budget")]
    ours = {r["budget"]: r for r in rows if r["side"] == "ours"}
    lines = []
    for budget, r in sorted(ours.items()):
        if "error" in r:
            lines.append((f"{budget} GiB", short(r)) + ("",) * 8)
            continue
        s = r["settings"]
        settings = f"{s['micro_batch']} x {s['accumulation']}, recompute {s['recompute']}, offload {s['offload']}, head chunks {s['head_chunks']}{', fused' if s['fused_step'] else ''}"
        same = "equal" if r["plan_bytes"] == r["allocated_bytes"] else f"{r['allocated_bytes'] - r['plan_bytes']:+d} B"
        lines.append((f"{budget} GiB", f"{r['predicted_per_second']:.2f}", f"{r['per_second']:.2f}", f"{100 * (r['predicted_ms'] / r['median_ms'] - 1):+.1f} %", f"{r['plan_bytes'] / GIB:.2f}", same,
                      f"{r['used_bytes'] / GIB:.2f}", f"{r['used_bytes'] - r['used_least_bytes']} B", f"{r['host_bytes'] / GIB:.1f}", settings))
    table(("budget", "img/s predicted", "measured", "time's error", "plan GiB", "allocated", "on the GPU GiB", "change over steps", "host GiB", "plan"), lines)
    peers = [r for r in rows if r["side"] == "peer"]
    if peers:
        table(("SamModel within", "B", "recompute", "img/s", "peak GiB", "reserved GiB"),
              [(f"{r['budget']:g} GiB", r["batch"], r["recompute"], short(r) if "error" in r else f"{r['per_second']:.2f}", gib(good(r, "peak_bytes")), gib(good(r, "reserved_bytes"))) for r in peers])
        best = max((r["per_second"] for r in peers if "error" not in r), default=0)
        mine = good(ours.get(int(peers[0]["budget"])), "per_second")
        if best and mine:
            print(f"ours {mine:.2f} img/s within {peers[0]['budget']:g} GiB: {mine / best:.2f} times the best of these\n")


def table_kernels(rows, count=10):
    for r in rows:
        if not r.get("kernels"):
            continue
        whole = sum(k["seconds"] for k in r["ops"])
        print(f"{r['name']}: a step of {r['median_ms']:.1f} ms; node by node {1e3 * whole:.1f} ms, of which\n")
        lines = []
        for k in r["kernels"][:count]:
            left = k["seconds"] - k["ideal_seconds"]
            lines.append((k["op"], k["kernel"].removeprefix("cuda_"), f"{k['in']} -> {k['out']}", k["dtype"], k["calls"], f"{1e3 * k['seconds']:.2f}", f"{100 * k['seconds'] / whole:.1f} %",
                          f"{1e-12 * k['flops'] / k['seconds']:.1f}", f"{1e-12 * k['bytes'] / k['seconds']:.2f}", f"{100 * k['ideal_seconds'] / k['seconds']:.0f} %", f"{1e3 * left:.2f}"))
        rest = whole - sum(k["seconds"] for k in r["kernels"][:count])
        lines.append(("others", "", "", "", "", f"{1e3 * rest:.2f}", f"{100 * rest / whole:.1f} %", "", "", "", ""))
        table(("op", "kernel", "shapes", "", "calls", "ms", "share", "TFLOP/s", "TB/s", "of the roofline", "above the roofline, ms"), lines)
        by_op = sorted(r["ops"], key=lambda o: -o["seconds"])[:count]
        table(("by op", "", "calls", "ms", "of the roofline"), [(o["op"], o["dtype"], o["calls"], f"{1e3 * o['seconds']:.2f}", f"{100 * o['share_of_ceiling']:.0f} %") for o in by_op])


TABLES = {"sam": table_sam, "lm": table_lm, "beyond": table_beyond, "lora": table_lora, "llava": table_llava, "qwen_vl": table_qwen_vl, "prs_med": table_prs_med, "attention": table_attention, "frontier": table_frontier, "kernels": table_kernels}


def main(argv):
    verb = argv[0] if argv else ""
    if verb == "bench":
        add(argv[1], from_bench(argv[2], tags(argv[3:])))
    elif verb == "train":
        add(argv[1], from_train(argv[2], tags(argv[3:])))
    elif verb == "failed":
        with open(argv[2], errors="replace") as f:
            text = f.read().strip()
        text = text[max(text.rfind("plimsoll"), 0):][:300]  # its last message
        add(argv[1], {"side": "ours", "error": text or "no message"} | tags(argv[3:]))
    elif verb == "table" and len(argv) > 2 and argv[1] in TABLES:
        TABLES[argv[1]](read(argv[2:]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
