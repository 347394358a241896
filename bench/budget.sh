#!/bin/bash
# The same step in smaller and smaller budgets: SAM ViT-B, one image of 1024 x 1024, 32 masks.
# `plimsoll train --memory` runs without a budget, with half and a quarter of that arena, with the
# smallest budget, and with half of PyTorch's memory with gradient checkpointing. PyTorch runs with
# and without gradient checkpointing.
#
#   BUILD=build PYTHON=python3 STEPS=2 PRECISION=f32 MODEL=sam-vit-b bench/budget.sh
#
# Peaks are of resident memory. Our offload file's pages may be dropped by the system, so our peak
# counts anonymous memory only: the arena and the program. PyTorch runs in f32, which is faster than
# its bf16 on most CPUs. PYTHON must import torch and transformers.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
PYTHON=${PYTHON:-python3}
STEPS=${STEPS:-2}
PRECISION=${PRECISION:-f32}
MODEL=${MODEL:-sam-vit-b}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

"$BUILD/plimsoll" data make "$tmp/shards" --images 4 --size 1024x1024 --masks 40 --seed 1 >&2
cat >"$tmp/run.yaml" <<YAML
model: {preset: $MODEL}
data: {format: sa1b, train: $tmp/shards/*.tar, max_masks: 32, threads: 1}
train: {steps: $STEPS, effective_batch: 1, learning_rate: 1e-5, monitor_every: 1}
memory: {precision: $PRECISION}
YAML
number() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*$/\1/p" "$2" | head -n 1; }
word() { sed -n "s/^ *\"$1\": \"\(.*\)\",*$/\1/p" "$2" | head -n 1; }

theirs() { # NAME [option]...
    "$PYTHON" bench/torch_sam.py --steps "$STEPS" --precision f32 "${@:2}" >"$tmp/torch"
    awk -v name="$1" '$1 == "seconds" && (!n++ || $2 < s) { s = $2 } $1 == "peak_kib" { p = $2 } END { printf "%-30s %12s %12s %10.0f MiB %8.1f s\n", name, "", "", p / 1024, s }' "$tmp/torch"
    peak=$(awk '$1 == "peak_kib" { printf "%.0f", $2 * 1024 }' "$tmp/torch")
}
ours() { # NAME BUDGET; 0: none
    local memory=()
    [[ $2 == 0 ]] || memory=(--memory "$2")
    rm -rf "$tmp/run"
    "$BUILD/plimsoll" plan "$tmp/run.yaml" "${memory[@]}" --json >"$tmp/plan.json" || { printf '%-30s does not fit\n' "$1"; return; }
    "$BUILD/plimsoll" train "$tmp/run.yaml" "${memory[@]}" --set "train.out=$tmp/run" >/dev/null 2>"$tmp/log" || { cat "$tmp/log" >&2; return 1; }
    seconds=$(sed -n 's/.*"seconds":\([0-9.]*\).*/\1/p' "$tmp/run/metrics.jsonl" | sort -n | head -n 1)
    resident=$(sed -n 's/.*"host_anonymous":\([0-9]*\).*/\1/p' "$tmp/run/metrics.jsonl" | sort -n | tail -n 1)
    awk -v name="$1" -v b="$2" -v a="$(number arena_bytes "$tmp/plan.json")" -v r="$resident" -v s="$seconds" -v p="$(number predicted_step_seconds "$tmp/plan.json")" \
        -v settings="recompute $(word recompute "$tmp/plan.json"), offload $(word offload "$tmp/plan.json"), head chunks $(number head_chunks "$tmp/plan.json")" \
        'BEGIN { M = 1048576; printf "%-30s %8s MiB %8.0f MiB %10.0f MiB %8.1f s  predicted %.1f; %s\n", name, b ? sprintf("%.0f", b / M) : "-", a / M, r / M, s, p, settings }'
}
full=$("$BUILD/plimsoll" plan "$tmp/run.yaml" --json | sed -n 's/^ *"arena_bytes": \([0-9]*\).*/\1/p' | head -n 1)
smallest=$( ("$BUILD/plimsoll" plan "$tmp/run.yaml" --memory 1 --json || true) 2>/dev/null | sed -n 's/^ *"smallest_budget_bytes": \([0-9]*\).*/\1/p' | head -n 1)
printf '%-30s %12s %12s %14s %10s\n' "$MODEL, $PRECISION" budget arena peak 'a step'
theirs 'PyTorch f32'
ours 'no budget' 0
theirs 'PyTorch f32, checkpointed' --checkpoint
ours "half of PyTorch's checkpointed" $((peak / 2))
ours 'half of the full arena' $((full / 2))
ours 'a quarter of the full arena' $((full / 4))
ours 'the smallest budget' "$smallest"
