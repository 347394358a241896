#!/bin/bash
# shellcheck disable=SC2015
# cuda_steady.sh: plan = run on the GPU: after the first step free memory stays the same to the
# byte, and two runs end in the same weights.
#
#   DEVICE=cuda bash tests/cuda_steady.sh     from the repository's root, after make; see run_lib.sh
#
# cudaMemGetInfo reports the free memory of the whole GPU, so nothing else may use the GPU
# meanwhile: tests/cuda.sh runs this script first and by itself. Every step writes that number into
# metrics.jsonl (train.monitor_every). With DEVICE=cpu there is no such number, and only the weights
# are compared.
#
#   STEPS="1000 200"     of llama-tiny and of sam-tiny
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault
# fault.so replaces fsync: these runs need not reach the disk.
sanitized || export LD_PRELOAD=$tools/fault.so
read -r words masks <<<"${STEPS:-1000 200}"

"$binary" data make "$tmp/set" --images 24 --shards 1 --size 96x80 --masks 5 >/dev/null || exit 2
cat >"$tmp/llama.yaml" <<YAML
model: {preset: llama-tiny}
data: {format: bytes, train: "tests/golden/*.py", sequence: 64}
train: {steps: $words, effective_batch: 4, learning_rate: 0.001, clip_norm: 1, monitor_every: 1, out: "$tmp/unused"}
memory: {micro_batch: 2, precision: bf16}
device: $DEVICE
YAML
cat >"$tmp/sam.yaml" <<YAML
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/set/*.tar", max_masks: 4, image_size: 64}
train: {steps: $masks, effective_batch: 4, learning_rate: 0.001, clip_norm: 1, monitor_every: 1, out: "$tmp/unused"}
memory: {micro_batch: 2, precision: bf16}
device: $DEVICE
YAML

# train_model MODEL OUT [ARGUMENT...]
train_model() {
    local model=$1 out=$tmp/$2
    shift 2
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/$model.yaml" --set "train.out=$out" $FLAGS "$@" --json && cp "$tmp/out" "$out.json" || return 1
    [ "$(json "$out.json" allocations_in_steps)" -eq 0 ] || { echo "$(json "$out.json" allocations_in_steps) allocations in steps"; return 1; }
    echo "loss $(sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$out/metrics.jsonl" | tail -n 1), arena $(json "$out.json" arena_bytes)"
}
planned() {
    expect 0 '' "$binary" plan "$tmp/$1.yaml" --json || return 1
    [ "$(json "$tmp/out" arena_bytes) $(json "$tmp/$1.json" arena_bytes)" = "$(json "$tmp/$1.json" arena_bytes) $(json "$tmp/$1.json" allocated_bytes)" ] ||
        { echo "plan $(json "$tmp/out" arena_bytes), run $(json "$tmp/$1.json" arena_bytes), allocated $(json "$tmp/$1.json" allocated_bytes)"; return 1; }
    json "$tmp/out" arena_bytes
}
# constant_free_memory RUN STEPS
constant_free_memory() {
    [ "$DEVICE" = cuda ] || { echo 'free memory of a GPU'; return 77; }
    sed -n 's/.*"memory_free":\([0-9]*\).*/\1/p' "$tmp/$1/metrics.jsonl" | awk -v steps="$2" '
        NR == 1 { first = $1 } $1 != first && !bad { print "line " NR ": " $1 " bytes are free, at line 1 there were " first; bad = 1 }
        END { print first " bytes free at each of " NR " steps"; exit bad || NR != steps }'
}
for model in llama sam; do
    steps=$words
    [ $model = llama ] || steps=$masks
    check "$model: $steps steps" train_model $model $model
    check "$model: plan = run" planned $model
    check "$model: free memory of the GPU is constant" constant_free_memory $model "$steps"
    check "$model: a second run" train_model $model $model-again
    check "$model: same bytes" same_run "$tmp/$model" "$tmp/$model-again" "$steps"
    check "$model: all of memory.offload, 50 steps" train_model $model $model-offload --set train.steps=50 --set memory.offload=optimizer+masters+weights+activations
    check "$model: free memory with offload is constant" constant_free_memory $model-offload 50
done
summary
