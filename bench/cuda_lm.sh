#!/bin/bash
# A Llama of 1.1 B parameters on a GPU, all in bf16: weights, gradients, AdamW's moments; B=8,
# T=2048.
#
#   RECOMPUTE='none selective all' MODES=eager,eager+checkpoint,compile,compile+checkpoint PEERS=1 OURS=1 \
#       bench/cuda_lm.sh FOLDER
#   WITHIN='21.9GiB': also the planner's choice within these budgets, with micro-batches of its choice
#   BYBLOCK=1: PyTorch compiles a layer and the head instead of the whole model, which is faster to compile
#
# Ours: memory.precision bf16-pure (no f32 master weights) and memory.optimizer adamw-bf16.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" lm
PRESET=${PRESET:-llama-1b}
B=${B:-8}
T=${T:-2048}
RECOMPUTE=${RECOMPUTE:-none selective all}
MODES=${MODES:-eager,eager+checkpoint,compile,compile+checkpoint}
more=()
[[ ${BYBLOCK:-0} == 0 ]] || more=(--by-block)
[[ $DEVICE == cuda ]] || more+=(--tiny --warm 1)
# 6 FLOPs per weight and token, and 6 per layer, channel and pair of positions (12, halved by the
# causal mask)
FLOPS=0
[[ $PRESET != llama-1b ]] || FLOPS=$((6 * 1100048384 * B * T + 6 * 22 * 2048 * T * T * B))

cat >"$tmp/run.yaml" <<YAML
model: {preset: $PRESET}
data: {sequence: $T}
train: {effective_batch: $B, learning_rate: 1e-5}
memory: {precision: bf16-pure, optimizer: adamw-bf16, offload: none}
YAML
if [[ $OURS == 1 ]]; then
    for rule in $RECOMPUTE; do
        bench_ours "$tmp/run.yaml" what=lm "mode=recompute $rule" "tokens=$T" "model_flops=$FLOPS" "name=$PRESET B=$B T=$T $rule" -- --set "memory.micro_batch=$B" --set "memory.recompute=$rule"
    done
    for most in ${WITHIN-21.9GiB}; do
        bench_ours "$tmp/run.yaml" what=lm "mode=within $most" "tokens=$T" "model_flops=$FLOPS" "name=$PRESET B=$B T=$T within $most" -- --memory "$most"
    done
fi
[[ $PEERS == 0 ]] || peer peer_lm.py --steps "$STEPS" --modes "$MODES" --batch "$B" --length "$T" "${more[@]}"
finish
