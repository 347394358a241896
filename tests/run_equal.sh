#!/bin/bash
# shellcheck disable=SC2015
# run_equal.sh: a memory technique never changes the result, and the same random seed gives the same
# bits.
#
#   bash tests/run_equal.sh       from the repository's root, after make; see run_lib.sh
#
# Bit-equal: recompute (all, selective), offload, both, threads, a second run, and NaN in every dead
# byte (PLIMSOLL_POISON). Within 1e-6 in f32: the split into micro-batches and head chunks. On a GPU
# the bound of the split is 4 eps sqrt(128), for the 128 tokens of a sum: its matrix products sum in
# another order for another shape.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
preload fault
# fault.so replaces fsync, which would take most of the time: these runs need not reach the disk.
sanitized || export LD_PRELOAD=$tools/fault.so

near=1e-6
[ "$DEVICE" = cpu ] || near=5e-6
arena() { json "$1/plan.json" arena_bytes; }

# --- bit-equal -----------------------------------------------------------------------------

# technique NAME ARGUMENT...: the bytes of the plain run, in a smaller arena.
technique() {
    local name=$1
    shift
    expect 0 '' train "$tmp/$name" "$@" && same_run "$tmp/plain" "$tmp/$name" 10 || return 1
    [ "$(arena "$tmp/$name")" -lt "$(arena "$tmp/plain")" ] ||
        { echo "the arena has $(arena "$tmp/$name") bytes, that of the plain run $(arena "$tmp/plain")"; return 1; }
    echo "$(arena "$tmp/plain") -> $(arena "$tmp/$name") bytes"
}

plain() { expect 0 '' train "$tmp/plain" --set memory.recompute=none --set memory.offload=none --set memory.head_chunks=1; }
check 'a plain run of ten steps' plain
check 'recompute: same bytes, smaller arena' technique recompute --set memory.recompute=all --set memory.offload=none
check 'selective: same bytes, smaller arena' technique selective --set memory.recompute=selective --set memory.offload=none
check 'offload: same bytes, smaller arena' technique offload --set memory.recompute=none --set memory.offload=optimizer
check 'recompute and offload: same bytes, smaller arena' technique both --set memory.recompute=all --set memory.offload=optimizer

second_run() { expect 0 '' train "$tmp/again" --set memory.recompute=none --set memory.offload=none && same_run "$tmp/plain" "$tmp/again" 10; }
check 'a second run: same bytes' second_run

threads() {
    needs_cpu device.threads || return
    for n in 1 2 3; do
        expect 0 '' train "$tmp/threads$n" --set "device.threads=$n" "$@" || return 1
        same_run "$tmp/threads1" "$tmp/threads$n" 10 || return 1
    done
    rm -rf "$tmp"/threads?
    echo '1, 2 and 3 threads'
}
check 'threads: same bytes' threads
check 'threads in bf16: same bytes' threads --set memory.precision=bf16

seeds() {
    expect 0 '' train_tiny "$tmp/seed1" --set train.steps=1 --set train.seed=1 || return 1
    expect 0 '' train_tiny "$tmp/seed2" --set train.steps=1 --set train.seed=2 || return 1
    ! cmp -s "$tmp/seed1/model/model.safetensors" "$tmp/seed2/model/model.safetensors" || { echo 'seeds 1 and 2 give the same weights'; return 1; }
    rm -rf "$tmp/seed2"
    expect 0 '' train_tiny "$tmp/seed2" --set train.steps=1 --set train.seed=1 && same_run "$tmp/seed1" "$tmp/seed2" 1
}
check 'llama-tiny: the random seed by itself determines the weights' seeds

tiny() {
    local sets=(--set train.steps=3 --set data.sequence=32)
    expect 0 '' train_tiny "$tmp/tiny" "${sets[@]}" --set memory.recompute=none --set memory.offload=none || return 1
    expect 0 '' train_tiny "$tmp/tinyboth" "${sets[@]}" --set memory.recompute=all --set memory.offload=optimizer || return 1
    same_run "$tmp/tiny" "$tmp/tinyboth" 3
}
check 'llama-tiny: recompute and offload, same bytes' tiny

# --- the split -----------------------------------------------------------------------------

# One step without clipping, because clipping would hide a wrong scale. AdamW's first update is the
# sign of the gradient, so AdamW's moments are compared: they hold the gradients themselves.
split() {
    local name=split-$1-$2
    expect 0 '' train "$tmp/$name" --set train.steps=1 --set train.warmup_steps=0 --set train.clip_norm=0 --set memory.precision=f32 \
        --set "memory.micro_batch=$1" --set "memory.head_chunks=$2" || return 1
    [ "$name" != split-8-1 ] || return 0
    "$tools/compare" "$tmp/split-8-1/checkpoints/step-1/state.safetensors" "$tmp/$name/checkpoints/step-1/state.safetensors" --logits $near &&
        "$tools/compare" "$tmp/split-8-1/model/model.safetensors" "$tmp/$name/model/model.safetensors" --logits $near
}
check 'micro-batch 8, one chunk' split 8 1
for micro in 4 2 1 3 5 7; do check "micro-batch $micro: within $near" split $micro 1; done
for chunks in 2 3 5 8; do check "head chunks $chunks: within $near" split 8 $chunks; done
check 'micro-batch 3, head chunks 3: the same gradient' split 3 3
# tokens MICRO CHUNKS GROUPS: tokens in chunks and heads in groups, recomputed.
tokens() {
    local name=tokens-$1-$2
    expect 0 '' train "$tmp/$name" --set train.steps=1 --set train.warmup_steps=0 --set train.clip_norm=0 --set memory.precision=f32 --set "memory.micro_batch=$1" \
        --set memory.head_chunks=1 --set memory.recompute=all --set "memory.token_chunks=$2" --set "memory.attention_chunks=$3" || return 1
    "$tools/compare" "$tmp/split-8-1/checkpoints/step-1/state.safetensors" "$tmp/$name/checkpoints/step-1/state.safetensors" --logits $near
}
for micro in 8 3 1; do check "micro-batch $micro, tokens in 3 chunks, heads in 2 groups: within $near" tokens $micro 3 2; done

# The same with images of any size: unequal numbers of images, patches, labels.
# A step of SGD with learning rate 1 subtracts the gradient.
images_split() {
    local name=tests/golden/qwen_vl/$1 micro
    for micro in 8 4 2 1 3; do
        expect 0 '' "$binary" train "$name/run.yaml" --set "train.out=$tmp/images-$micro" --set "device.kind=$DEVICE" --set train.steps=1 --set train.warmup_steps=0 \
            --set train.clip_norm=0 --set train.learning_rate=1 --set train.weight_decay=0 --set memory.optimizer=sgd --set train.momentum=0 \
            --set data.packing=false --set data.sequence=160 --set train.schedule=constant --set "memory.micro_batch=$micro" || return 1
        "$tools/compare" "$tmp/images-8/model/model.safetensors" "$tmp/images-$micro/model/model.safetensors" --logits $near || return 1
    done
    rm -rf "$tmp"/images-*
}
for family in qwen2_vl qwen2_5_vl qwen3_vl; do check "$family, micro-batches 4, 2, 1, 3: within $near" images_split $family; done

# --- dead bytes --------------------------------------------------------------------------------

# Each combination runs twice, the second time with NaN in every byte that no live tensor owns: a
# read of a dead byte would change the weights.
poison() {
    needs_cpu PLIMSOLL_POISON || return
    local sets=(--set train.steps=3 --set memory.recompute="$1" --set memory.offload="$2" --set memory.head_chunks="$3"
        --set memory.micro_batch="$4" --set memory.precision="$5")
    rm -rf "$tmp/clean" "$tmp/poisoned"
    expect 0 '' train "$tmp/clean" "${sets[@]}" || return 1
    expect 0 '' env PLIMSOLL_POISON=1 "$binary" train "$golden/run.yaml" --set "train.out=$tmp/poisoned" "${sets[@]}" || return 1
    same_run "$tmp/clean" "$tmp/poisoned" 3 || return 1
    echo "$(arena "$tmp/clean") bytes"
}
for recompute in none selective all; do for offload in none optimizer; do for chunks in 1 3; do for micro in 8 2 3; do for precision in f32 bf16; do
    check "poisoned: recompute $recompute, offload $offload, chunks $chunks, micro $micro, $precision" \
        poison $recompute $offload $chunks $micro $precision
done; done; done; done; done

# Evaluation shares the arena with training, and the best model is saved between steps: neither may
# change the training state.
evaluation() {
    local sets data=(--set "data.validation=$golden/tokens.bin") precision
    for precision in f32 bf16; do
        rm -rf "$tmp"/*evaluated "$tmp/last"
        sets=(--set memory.micro_batch=3 --set memory.precision=$precision)
        expect 0 '' train "$tmp/unevaluated" "${sets[@]}" || return 1
        expect 0 '' train "$tmp/evaluated" "${sets[@]}" "${data[@]}" --set train.eval_every=1 || return 1
        expect 0 '' train "$tmp/last" "${sets[@]}" "${data[@]}" || return 1
        [ "$(grep -c eval_loss "$tmp/evaluated/metrics.jsonl") $(grep -c eval_loss "$tmp/last/metrics.jsonl")" = '10 1' ] ||
            { echo 'expected 10 evaluation lines, and 1'; return 1; }
        [ -f "$tmp/evaluated/checkpoints/best/eval.json" ] && [ ! -e "$tmp/last/checkpoints/best" ] || { find "$tmp"/*evaluated; return 1; }
        same_run "$tmp/evaluated" "$tmp/unevaluated" 10 && same_run "$tmp/evaluated" "$tmp/last" 10 || return 1
    done
}
check 'evaluation after every step, the last, none: same bytes' evaluation

summary
