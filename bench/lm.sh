#!/bin/bash
# The LM step against PyTorch on this machine, interleaved: llama-124m, B=2, T=512, f32
# (PRECISION=bf16: bf16 with f32 weights behind it, in both), AdamW with clipping. Needs a python with torch and transformers (PYTHON=...).
# Prints the fastest step of each, their ratio, and peak resident memory.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
PYTHON=${PYTHON:-python3}
ROUNDS=${ROUNDS:-2}
STEPS=${STEPS:-3}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

cat >"$tmp/run.yaml" <<YAML
model: {preset: llama-124m}
data: {train: ["docs/*.md", README.md], sequence: 512}
train: {steps: $STEPS, effective_batch: 2, learning_rate: 3e-4, clip_norm: 1, out: $tmp/run}
memory: {precision: ${PRECISION:-f32}}
YAML

for ((i = 0; i < ROUNDS; i++)); do
    rm -rf "$tmp/run"
    "$BUILD/plimsoll" train "$tmp/run.yaml" >/dev/null 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        awk '/VmHWM/ { print $2 }' "/proc/$pid/status" 2>/dev/null >>"$tmp/our_peak" || true
        sleep 0.2
    done
    wait $pid
    grep -o '"seconds":[0-9.]*' "$tmp/run/metrics.jsonl" | cut -d: -f2 >>"$tmp/ours"
    "$PYTHON" bench/torch_lm.py --steps "$STEPS" --precision "${PRECISION:-f32}" >"$tmp/torch"
    awk '/^seconds/ { print $2 }' "$tmp/torch" >>"$tmp/theirs"
    awk '/^peak_kib/ { print $2 }' "$tmp/torch" >>"$tmp/their_peak"
done

least() { sort -g "$1" | head -n 1; }
most() { sort -g "$1" | tail -n 1; }
awk -v a="$(least "$tmp/ours")" -v b="$(least "$tmp/theirs")" -v m="$(most "$tmp/our_peak")" -v n="$(most "$tmp/their_peak")" 'BEGIN {
    printf "%-10s %12s %16s\n", "", "s per step", "peak MiB"
    printf "%-10s %12.2f %16.0f\n", "plimsoll", a, m / 1024
    printf "%-10s %12.2f %16.0f\n", "pytorch", b, n / 1024
    printf "%-10s %12.2f %16.2f\n", "ratio", b / a, m / n
}'
