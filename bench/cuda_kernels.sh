#!/bin/bash
# The ten most expensive kernels of a step on a GPU, by shape, with their share of the roofline and
# the time above it.
#
#   RUNS='sam-vit-h:4 sam-vit-b:4 llama-1b:8' bench/cuda_kernels.sh FOLDER      PRESET:B
#
# SAM in bf16 with f32 master weights, Llama all in bf16 (T=2048), no recomputation. After the
# measured steps one more step runs node by node, timed by events. Rows of cuda_sam.sh and
# cuda_lm.sh have the same numbers: cuda_rows.py table kernels FOLDER/sam.jsonl
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" kernels
RUNS=${RUNS:-sam-vit-h:4 sam-vit-b:4 llama-1b:8}
T=${T:-2048}
MASKS=${MASKS:-32}
RECOMPUTE=${RECOMPUTE:-none}
for run in $RUNS; do
    preset=${run%:*} B=${run#*:} data="{format: sa1b, max_masks: $MASKS}" memory="precision: bf16"
    case $preset in llama*) data="{sequence: $T}" memory="precision: bf16-pure, optimizer: adamw-bf16" ;; esac
    cat >"$tmp/run.yaml" <<YAML
model: {preset: $preset}
data: $data
train: {effective_batch: $B, learning_rate: 1e-5}
memory: {$memory, micro_batch: $B, recompute: $RECOMPUTE, offload: none}
YAML
    bench_ours "$tmp/run.yaml" what=kernels "name=$preset B=$B" --
done
finish
