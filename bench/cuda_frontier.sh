#!/bin/bash
# Training within a budget on a GPU: `plimsoll train --memory` of SAM ViT-H on a synthetic dataset,
# 32 masks per image, 1024 x 1024.
#
#   BUDGETS='6 8 12 16 24 40 80' BATCH=8 STEPS=5 HOST=64GiB PEERS=1 TRIES=none:1,checkpoint:4,checkpoint:5 \
#       WITHIN=24 bench/cuda_frontier.sh FOLDER
#
# For each budget: predicted and measured images/s, the plan's bytes, allocated bytes, used memory
# of the GPU and how much it changed over the steps. A run is killed after STEPS measured steps, so
# that it does not save 10 GiB. PyTorch: SamModel at TRIES (recompute:B) with its allocator limited
# to WITHIN GiB.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" frontier
BUDGETS=${BUDGETS:-6 8 12 16 24 40 80} # GiB
PRESET=${PRESET:-sam-vit-h}
BATCH=${BATCH:-8}
HOST=${HOST:-64GiB}
WITHIN=${WITHIN:-24}
TRIES=${TRIES:-none:1,checkpoint:4,checkpoint:5,checkpoint:6}
MASKS=${MASKS:-32}
SIZE=${SIZE:-1024x1024}
small=() kind_of=h
[[ $DEVICE == cuda ]] || small=(--tiny --warm 1) kind_of=tiny

steps_of() { if [[ -f $1 ]]; then grep -c '"seconds"' "$1" || true; else echo 0; fi; }
# train_until N ARGUMENT...: trains until metrics.jsonl has N steps, then kills the run.
train_until() { # N ARGUMENT...
    local wanted=$1 child begun=$SECONDS
    shift
    "$BUILD/plimsoll" train "$@" >"$tmp/out" 2>"$tmp/err" &
    child=$!
    while kill -0 "$child" 2>/dev/null && [[ $(steps_of "$tmp/run/metrics.jsonl") -lt $wanted ]]; do
        [[ $((SECONDS - begun)) -lt $LIMIT ]] || { echo "not done after $LIMIT s" >>"$tmp/err"; break; }
        sleep 0.1
    done
    kill -KILL "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
}
if [[ $OURS == 1 ]]; then
    note "data"
    "$BUILD/plimsoll" data make "$tmp/shards" --images $((2 * BATCH)) --size "$SIZE" --masks $((MASKS + 16)) --seed 1 >>"$log" 2>&1
    cat >"$tmp/run.yaml" <<YAML
model: {preset: $PRESET}
data: {format: sa1b, train: $tmp/shards/*.tar, max_masks: $MASKS, threads: ${THREADS:-8}}
prompts: {iterations: 1}
train: {steps: 100000, effective_batch: $BATCH, learning_rate: 1e-5, monitor_every: 1, keep: 1}
memory: {precision: bf16, host_budget: $HOST}
YAML
    for budget in $BUDGETS; do
        note "ours within $budget GiB"
        rm -rf "$tmp/run"
        train_until $((STEPS + 1)) "$tmp/run.yaml" --memory "${budget}GiB" --set "device=$DEVICE" --set "train.out=$tmp/run"
        cat "$tmp/err" >>"$log"
        if [[ -f $tmp/run/plan.json && $(steps_of "$tmp/run/metrics.jsonl") -gt 1 ]]; then rows_py train "$rows" "$tmp/run" "budget=$budget"
        else rows_py failed "$rows" "$tmp/err" "budget=$budget"; fi
    done
fi
[[ $PEERS == 0 ]] || peer peer_sam.py --steps "$STEPS" --budget "$WITHIN" --models "$kind_of" --tries "$TRIES" --masks "$MASKS" "${small[@]}"
finish
