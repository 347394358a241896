#!/bin/bash
# Full fine-tuning of models larger than the GPU: Qwen3-8B with AdamW in f32 and f32 master weights,
# Qwen3-14B with 8-bit AdamW and f32 master weights, rows of 2048 tokens, 16 a step, no clipping.
#
#   CASES='bits 8b@24GiB 8b@48GiB 8b@130GiB 14b@48GiB 14b@130GiB' STEPS=3 bench/beyond.sh FOLDER
#
#   bits           llama-124m trained by updates on the GPU and on the host: the same model and state
#   profile        calibrates the GPU and its host; the cases that follow are planned by that
#   MODEL@BUDGET   8b, llama8b or 14b within a budget; 8b@24GiB+update: with the update on the host
#
# Each model draws its weights at random on all processors and needs up to 120 GiB of host memory.
# The log says how many seconds a case took in all. FOLDER is appended to, so that cases may run in
# several calls.
set -euo pipefail
cd "$(dirname "$0")/.."
STEPS=${STEPS:-3}
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" beyond
folder=$1
CASES=${CASES:-bits 8b@24GiB 8b@48GiB 8b@130GiB 14b@48GiB 14b@130GiB}
B=${B:-16}
T=${T:-2048}

# 6 FLOPs per weight that products read and token, and 6 per layer, channel of the queries and pair
# of positions (12, halved by the causal mask): layers, hidden, queries, keys and values, inner,
# vocabulary
flops() {
    awk -v L="$1" -v H="$2" -v Q="$3" -v K="$4" -v I="$5" -v V="$6" -v B="$B" -v T="$T" \
        'BEGIN { printf "%.0f", 6 * B * T * (L * (2 * H * Q + 2 * H * K + 3 * H * I) + H * V) + 6 * L * Q * T * T * B }'
}

# run_file PRESET: the run's configuration, in $tmp/run.yaml
run_file() {
    cat >"$tmp/run.yaml" <<YAML
model: {preset: $1}
data: {sequence: $T}
train: {effective_batch: $B, learning_rate: 1e-5, clip_norm: 0}
YAML
}

# trained NAME KEY=VALUE...: four steps of llama-124m
trained() {
    local name=$1 sets=() set
    shift
    for set; do sets+=(--set "$set"); done
    "$BUILD/plimsoll" train "$tmp/small.yaml" --set "train.out=$tmp/$name" --set "device=$DEVICE" "${sets[@]}" >"$tmp/$name.out" 2>&1 || { cat "$tmp/$name.out"; return 1; }
}
# same A B: two runs have the same weights and the same training state
same() { cmp "$tmp/$1/model/model.safetensors" "$tmp/$2/model/model.safetensors" && cmp "$tmp/$1/checkpoints/step-4/state.safetensors" "$tmp/$2/checkpoints/step-4/state.safetensors"; }
bits() {
    local state step
    cat >"$tmp/small.yaml" <<YAML
model: {preset: ${SMALL:-llama-124m}}
data: {format: bytes, train: "tests/golden/*.py", sequence: 256}
train: {steps: 4, effective_batch: 8, learning_rate: 1e-3, clip_norm: 0, save_every: 4, out: $tmp/none}
memory: {micro_batch: 8, recompute: none, head_chunks: 1, precision: bf16}
YAML
    for state in adamw adamw-8bit sgd; do
        trained "$state" memory.optimizer=$state memory.fused_step=off memory.offload=none || return 1
        for step in off on; do
            trained "$state-$step" memory.optimizer=$state memory.fused_step=$step memory.offload=optimizer+masters+update || return 1
            same "$state" "$state-$step" || { note "bits: $state, fused step $step: OTHER BITS"; return 1; }
            note "bits: $state, fused step $step, updated on the host: the bits of the GPU"
        done
    done
}

# The rates of this GPU and its host, with which the cases that follow are planned.
profile() {
    "$BUILD/plimsoll" bench --calibrate --set "device=$DEVICE" -o "$folder/profile.json" 2>>"$log" | tee -a "$log"
    SETS="${SETS:-} --set device.profile=$folder/profile.json"
}

large() { # MODEL BUDGET [update]
    local model=$1 budget=$2 more=() preset optimizer count
    case $model in
        8b) preset=Qwen/Qwen3-8B optimizer=adamw count=$(flops 36 4096 4096 1024 12288 151936) ;;
        llama8b) preset=meta-llama/Llama-3.1-8B optimizer=adamw count=$(flops 32 4096 4096 1024 14336 128256) ;;
        14b) preset=Qwen/Qwen3-14B optimizer=adamw-8bit count=$(flops 40 5120 5120 1024 17408 151936) ;;
        *) preset=$model optimizer=adamw count=0 ;;
    esac
    [[ -z ${3:-} ]] || more=(--set memory.offload=optimizer+masters+weights+activations+update)
    run_file "$preset"
    bench_ours "$tmp/run.yaml" what=beyond "mode=$budget${3:+, update}" "tokens=$T" "model_flops=$count" "name=$preset, $optimizer" -- \
        --memory "$budget" --set "memory.optimizer=$optimizer" ${more[@]+"${more[@]}"}
}

for case in $CASES; do
    SECONDS=0
    case $case in
        bits | profile) $case || note "$case FAILED" ;;
        *@*+update) large "${case%%@*}" "$(sed 's/.*@\(.*\)+update/\1/' <<<"$case")" update ;;
        *@*) large "${case%%@*}" "${case#*@}" ;;
    esac
    note "$case took $SECONDS s"
done
finish
