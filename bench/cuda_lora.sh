#!/bin/bash
# LoRA on a frozen language model on a GPU: a published model's shapes with random weights, r = 16
# on all seven linear layers, B = 4, T = 2048.
#   PRESET: mistral-7b, Qwen/Qwen3-8B, google/gemma-3-4b-it (only its language model), or experts: a
#   Mixtral of 4.0 B weights (peer_lora.py), with adapters on attention only
#
#   RECOMPUTE='none selective all' FORMS='none nf4' MODES=lora,lora+checkpoint,nf4,nf4+checkpoint \
#       bench/cuda_lora.sh FOLDER
#   WITHIN='16GiB 8GiB 7GiB 5.2GiB': also the planner's choice within these budgets, on NF4 weights
#   MODES: the peer's; lora+liger and nf4+liger need Liger's kernels, nf4 bitsandbytes, all PEFT
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" lora
PRESET=${PRESET:-mistral-7b}
B=${B:-4}
T=${T:-2048}
more=()
[[ $DEVICE == cuda ]] || more=(--tiny --warm 1)

model="preset: $PRESET" layers='q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj'
if [[ $PRESET == experts || $PRESET == google/gemma-3-4b-it ]]; then
    "$PYTHON" bench/peer_lora.py --shape "$PRESET" --save "$tmp/model" "${more[@]}"
    model="path: $tmp/model"
fi
[[ $PRESET != experts ]] || layers='q_proj, k_proj, v_proj, o_proj'
cat >"$tmp/run.yaml" <<YAML
model: {$model}
adapter: {target_modules: [$layers], r: 16, lora_alpha: 32}
data: {sequence: $T}
train: {effective_batch: $B}
memory: {precision: bf16}
YAML
if [[ $OURS == 1 ]]; then
    for form in ${FORMS:-none nf4}; do
        for rule in ${RECOMPUTE:-none selective all}; do
            bench_ours "$tmp/run.yaml" what=lora "mode=quantize $form, recompute $rule" "tokens=$T" "name=$PRESET" -- --set "memory.micro_batch=$B" --set "memory.recompute=$rule" --set "memory.quantize=$form"
        done
    done
    for most in ${WITHIN-}; do
        bench_ours "$tmp/run.yaml" what=lora "mode=NF4 within $most" "tokens=$T" "name=$PRESET" -- --memory "$most" --set memory.quantize=nf4
    done
fi
[[ $PEERS == 0 ]] || peer peer_lora.py --shape "$PRESET" --steps "$STEPS" --modes "${MODES:-lora,lora+checkpoint,nf4,nf4+checkpoint}" --batch "$B" --length "$T" --micro "${MICRO:-$B}" "${more[@]}"
finish
