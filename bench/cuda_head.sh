#!/bin/bash
# cuda_head.sh: what the LM head costs in a step on conversations, on a GPU: the whole head, and
# chunks of which those without labels are left out. Half of the tokens have labels, as `plimsoll
# bench` draws conversations.
#
#   MODELS='llama-1b qwen2-0.5b' CHUNKS='1 2 8 32' B=4 T=2048 STEPS=5 bench/cuda_head.sh
#   ADAPTER=1: LoRA, r = 16 on all linear layers but the head
#   DEVICE=cpu MODELS=llama-tiny T=128: tries the script without a GPU
#
# all: every token has a label (data.train_on: all), so that nothing is left out. Times are
# milliseconds.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
DEVICE=${DEVICE:-cuda}
B=${B:-4}
T=${T:-2048}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
more=()
[[ ${ADAPTER:-0} == 0 ]] || more=(--set adapter.target_modules=all-linear --set adapter.r=16)

# field NAME: a number of the last bench, in milliseconds
field() { sed -n "s/^ *\"$1\": *\([0-9.e+-]*\).*/\1/p" "$tmp/bench.json" | head -n 1 | awk '{ printf "%.2f", 1000 * $1 }'; }

echo "| model | chunks | labels | predicted | measured |"
echo "|---|---|---|---|---|"
for model in ${MODELS:-llama-1b qwen2-0.5b}; do
    printf 'model: {preset: %s}\ndata: {format: conversations, sequence: %s}\ntrain: {effective_batch: %s}\nmemory: {micro_batch: %s, recompute: none, offload: none, fused_step: off}\n' \
        "$model" "$T" "$B" "$B" >"$tmp/run.yaml"
    for chunks in ${CHUNKS:-1 2 8 32}; do
        for labels in assistant all; do
            if "$BUILD/plimsoll" bench "$tmp/run.yaml" --steps "${STEPS:-5}" --set "device.kind=$DEVICE" --set "memory.head_chunks=$chunks" --set "data.train_on=$labels" ${more[@]+"${more[@]}"} --json \
                >"$tmp/bench.json" 2>"$tmp/err"; then
                echo "| $model | $chunks | $([[ $labels == all ]] && echo all || echo half) | $(field predicted_step_seconds) | $(field measured_median_seconds) |"
            else
                echo "| $model | $chunks | $labels | failed: $(tail -n 1 "$tmp/err") | |"
            fi
        done
    done
done
