#!/bin/bash
# shellcheck disable=SC2015
# run_offload.sh: what lives in the second space comes back with the same bits, and the bytes
# that leave the arena are those that were promised.
#
#   bash tests/run_offload.sh     from the repository's root, after make; see run_lib.sh
#
# llama-tiny, sam-tiny and tinysam-tiny: five steps with evaluation, each flag of memory.offload and all of them, in
# f32 and bf16, in micro-batches, with recomputation, killed and resumed, and with NaN in every dead byte.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault
# Nothing is synced to the disk here.
sanitized || export LD_PRELOAD=$tools/fault.so

"$binary" data make "$tmp/set" --images 24 --shards 2 --size 96x80 --masks 5 >/dev/null || exit 2
for model in sam tinysam; do
    cat >"$tmp/$model.yaml" <<YAML
model: {preset: $model-tiny}
data: {format: sa1b, train: "$tmp/set/*.tar", holdout: 0.2, max_masks: 4, image_size: 64}
train: {steps: 5, effective_batch: 4, learning_rate: 0.001, clip_norm: 1, eval_every: 2, save_every: 2, keep: 9, out: "$tmp/unused"}
memory: {micro_batch: 4, precision: f32, recompute: none, head_chunks: 1, offload: none}
device: {kind: cpu, threads: 1}
YAML
done
cat >"$tmp/llama.yaml" <<YAML
model: {preset: llama-tiny}
data: {train: "tests/golden/*.py", validation: "tests/golden/make_rle.py", sequence: 64}
train: {steps: 5, effective_batch: 8, learning_rate: 0.001, clip_norm: 1, eval_every: 2, save_every: 2, keep: 9, out: "$tmp/unused"}
memory: {micro_batch: 8, precision: f32, recompute: none, head_chunks: 1, offload: none}
device: {kind: cpu, threads: 1}
YAML

# go MODEL OUT [ARGUMENT...]: five steps; what --json says is in $tmp/OUT.json.
go() {
    local model=$1 out=$tmp/$2
    shift 2
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/$model.yaml" --set "train.out=$out" $FLAGS "$@" --json && cp "$tmp/out" "$out.json" || return 1
    [ "$(json "$out.json" allocations_in_steps)" -eq 0 ] || { echo "$(json "$out.json" allocations_in_steps) allocations in steps"; return 1; }
}
# What the metrics say, less the times.
losses() { sed -E 's/"(seconds|samples_per_second|tokens_per_second|wait_seconds|[a-z_]*seconds[a-z_]*|[a-z_]*per_second|arena_bytes)":[^,}]*,?//g' "$1/metrics.jsonl"; }
alike() {
    same_run "$tmp/$1" "$tmp/$2" 5 && cmp <(losses "$tmp/$1") <(losses "$tmp/$2")
}
arena() { json "$tmp/$1/plan.json" "arenas.$2"; }

# --- same bits, fewer bytes ------------------------------------------------------------------

# away MODEL BASE FLAGS [ARGUMENT...]: as the run BASE of MODEL, in a smaller arena.
away() {
    local model=$1 base=$2 flags=$3 out=$2-${3//+/-}
    shift 3
    go "$model" "$out" "$@" --set "memory.offload=$flags" && alike "$base" "$out" || return 1
    [ "$(arena "$out" host)" -gt 0 ] && [ "$(arena "$out" device)" -lt "$(arena "$base" device)" ] ||
        { echo "device $(arena "$base" device) -> $(arena "$out" device), host $(arena "$out" host)"; return 1; }
    no_debris "$tmp/$out" && echo "device $(arena "$base" device) -> $(arena "$out" device), host $(arena "$out" host)"
}
all=optimizer+masters+weights+activations
for model in llama sam tinysam; do
    check "$model: a plain run" go $model $model
    for flags in optimizer weights activations $all; do check "$model: $flags, same bits" away $model $model $flags; done
    check "$model bf16: a plain run" go $model $model-bf16 --set memory.precision=bf16
    for flags in optimizer masters weights activations $all; do
        check "$model bf16: $flags, same bits" away $model $model-bf16 $flags --set memory.precision=bf16
    done
done

summary
