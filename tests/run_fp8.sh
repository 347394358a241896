#!/bin/bash
# shellcheck disable=SC2015,SC2086
# run_fp8.sh: memory.precision fp8 and fp8-all: the results of the recipe in PyTorch; the same bits
# with every memory technique; no scale that depends on the micro-batch; a resumed run goes on bit
# for bit; refusals.
#
#   bash tests/run_fp8.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
preload fault
sanitized || export LD_PRELOAD=$tools/fault.so

cat >"$tmp/fp8.yaml" <<YAML
model: {preset: llama-tiny}
data: {format: bytes, train: "tests/golden/*.py", sequence: 128}
train: {steps: 2, effective_batch: 4, learning_rate: 0.001, schedule: constant, out: "$tmp/unused"}
memory: {micro_batch: 2, recompute: none, offload: none, head_chunks: 1}
device: {kind: $DEVICE, threads: 1}
YAML
# run NAME ARGUMENT...: two steps, in rows of 128 tokens: a block of fp8-all.
run() {
    local out=$tmp/$1
    shift
    expect 0 '' "$binary" train "$tmp/fp8.yaml" --set "train.out=$out" $FLAGS "$@"
}
# first NAME FIELD: a number of the first step.
first() { sed -n "1s/.*\"$2\":\([^,}]*\)[,}].*/\1/p" "$tmp/$1/metrics.jsonl"; }
# near A B SHARE: two numbers differ by at most this share.
near() { awk -v a="$1" -v b="$2" -v most="$3" 'BEGIN { d = (a - b) / b; if (d < 0) d = -d; print a " and " b; exit !(d <= most) }'; }

# --- the recipe ---------------------------------------------------------------------------------

# A number that lies between two of e4m3 may fall to the other side in another order of a sum.
recipe() {
    "$binary" step --model tests/golden/fp8 --batch tests/golden/fp8/rows.safetensors --out "$tmp/got" --set memory.precision="$1" --set device.kind="$DEVICE" $FLAGS &&
        "$tools/compare" "tests/golden/fp8/$1.safetensors" "$tmp/got" --logits "$2" --grad "$3"
}
close=1e-3
[ "$DEVICE" = cpu ] || close=6e-2 # a GPU's sums are less exact, and more numbers fall to the other side: 4.3e-2 on an H200, bf16 has 0.19
check 'fp8: logits, loss and gradients of PyTorch' recipe fp8 $close $close
check 'fp8-all: gradients of PyTorch' recipe fp8-all $close $close
other() { "$binary" step --model tests/golden/fp8 --batch tests/golden/fp8/rows.safetensors --out "$tmp/got" --set memory.precision=bf16 $FLAGS && expect 1 '' "$tools/compare" tests/golden/fp8/fp8.safetensors "$tmp/got" --logits 6e-2 --grad 6e-2; }
check 'bf16 is not the recipe' other

# --- memory techniques --------------------------------------------------------------------------

# same NAME PRECISION ARGUMENT...: the bytes of the run of that precision.
same_bytes() {
    local name=$1 p=$2
    shift 2
    run "$name" --set memory.precision="$p" "$@" && same_run "$tmp/run-$p" "$tmp/$name" 2
}
# A row has the scales that it has by itself, so only sums over rows have another order. On a GPU a
# product of other rows may have another algorithm, and numbers fall to the other side.
same_loss=1e-6 same_norm=2e-6
[ "$DEVICE" = cpu ] || same_loss=1e-3 same_norm=2e-2
split() {
    run "split-$1-$2" --set memory.precision="$1" --set memory.micro_batch="$2" &&
        near "$(first "split-$1-$2" loss)" "$(first "run-$1" loss)" $same_loss && near "$(first "split-$1-$2" grad_norm)" "$(first "run-$1" grad_norm)" $same_norm
}
for p in fp8 fp8-all; do
    check "$p: a run" run run-$p --set memory.precision=$p
    check "$p, a micro-batch of 1: the same gradient" split $p 1
done
check 'fp8-all, a micro-batch of 4: the same gradient' split fp8-all 4
check 'fp8, recompute: same bytes' same_bytes all fp8 --set memory.recompute=all
check 'fp8, selective, threads: same bytes' same_bytes selective fp8 --set memory.recompute=selective --set device.threads=2
check 'fp8-all, halves and offload: same bytes' same_bytes halves fp8-all --set memory.recompute=ratio:0.5+halves --set memory.offload=weights+activations
fused() {
    for f in on off; do run fused-$f --set memory.precision=fp8-all --set memory.micro_batch=4 --set train.clip_norm=0 --set memory.fused_step=$f || return 1; done
    same_run "$tmp/fused-on" "$tmp/fused-off" 2
}
check 'fused step: same bytes' fused
resumed() {
    run stopped --set memory.precision=fp8-all --set train.steps=1 && expect 0 '' "$binary" train "$tmp/fp8.yaml" --resume --set "train.out=$tmp/stopped" --set memory.precision=fp8-all $FLAGS &&
        same_run "$tmp/stopped" "$tmp/run-fp8-all" 2
}
check 'a resumed run has the bytes of a whole one' resumed

# --- which layers -------------------------------------------------------------------------------

# products NAME: the number of scaled products in the plan of the last run.
products() { "$binary" plan "$tmp/fp8.yaml" --explain all $FLAGS "$@" 2>&1 | grep -cE '^ +[0-9]+ (forward|backward) .*= SCALED_LINEAR'; }
counted() {
    local all ends none
    all=$(products --set memory.precision=fp8) ends=$(products --set memory.precision=fp8 --set memory.bf16_ends=true)
    none=$(products --set memory.precision=bf16)
    some=$(products --set memory.precision=bf16 --set 'memory.modules=[{match: [model.layers.*.mlp], precision: fp8}]')
    echo "$all products, $ends without the ends, $some of the MLPs, $none in bf16"
    # four blocks of seven layers; two of them are ends; three layers are of the MLP
    [ "$none" = 0 ] && [ "$all" -gt 0 ] && [ $((2 * ends)) = "$all" ] && [ $((7 * some)) = $((3 * all)) ]
}
check 'blocks, without their ends, and modules by name' counted
adapted() { run lora --set memory.precision=fp8 --set adapter.target_modules=all-linear --set adapter.r=4 && near "$(first lora loss)" "$(first run-fp8 loss)" $same_loss; }
check 'LoRA: adapters in bf16 beside products in fp8' adapted

# --- frozen weights, saved inputs ---------------------------------------------------------------

# base NAME ARGUMENT...: LoRA, whose base has the bits of the run above.
base() {
    local name=$1
    shift
    run "$name" --set adapter.target_modules=all-linear --set adapter.r=4 --set memory.precision=bf16 --set memory.quantize=fp8 "$@" && same "$tmp/lora/model/adapter_model.safetensors" "$tmp/$name/model/adapter_model.safetensors"
}
check 'a frozen base in fp8: the bytes of LoRA in fp8' base frozen
check 'without its transposes: same bytes' base turned --set memory.transposed_weights=off
check 'recomputed, offloaded: same bytes' base away --set memory.transposed_weights=on --set memory.recompute=all --set memory.offload=weights
smaller() {
    run plain --set adapter.target_modules=all-linear --set adapter.r=4 --set memory.precision=bf16 || return 1
    # without the embeddings and the head: 2 bytes of a weight become 1 and a little, or 2
    awk -v kept="$(json "$tmp/turned/plan.json" weights.frozen)" -v one="$(json "$tmp/turned/plan.json" weights.fp8)" -v both="$(json "$tmp/frozen/plan.json" weights.fp8)" -v all="$(json "$tmp/plain/plan.json" weights.frozen)" \
        'BEGIN { was = all - kept; print was " -> " one " bytes, " both " with the transposes"; exit !(one > 0 && one > 0.5 * was && one < 0.55 * was && both > was && both < 1.1 * was) }'
}
check 'a byte a weight' smaller
saved() {
    run saved --set memory.precision=fp8 --set memory.saved=fp8 && run saved-all --set memory.precision=fp8 --set memory.saved=fp8 --set memory.recompute=all && same_run "$tmp/saved" "$tmp/saved-all" 2 &&
        ! cmp -s "$tmp/saved/model/model.safetensors" "$tmp/run-fp8/model/model.safetensors" && echo "$(json "$tmp/run-fp8/plan.json" arena_bytes) -> $(json "$tmp/saved/plan.json" arena_bytes)" &&
        [ "$(json "$tmp/saved/plan.json" arena_bytes)" -lt "$(json "$tmp/run-fp8/plan.json" arena_bytes)" ]
}
check 'inputs saved in fp8: smaller, recompute: same bytes' saved
answered() {
    "$binary" generate --model tests/golden/fp8 --ids 1,2,3,4 --max-new 4 --set memory.precision=f32 --json $FLAGS >"$tmp/plain.json" && "$binary" generate --model tests/golden/fp8 --ids 1,2,3,4 --max-new 4 --set memory.precision=f32 --set memory.quantize=fp8 --json $FLAGS >"$tmp/fp8.json" &&
        grep -o '"ids": \[[^]]*\]' "$tmp/fp8.json"
}
check 'generate on a base in fp8' answered

# --- refusals -----------------------------------------------------------------------------------

check 'a GPU without fp8' expect 2 'memory.precision fp8: rtx-3090 has no products of fp8 \(compute capability 8.9 has them; use bf16\)' \
    "$binary" plan "$tmp/fp8.yaml" --set memory.precision=fp8 --set 'device={kind: cuda, profile: rtx-3090}'
check 'a module on a GPU without fp8' expect 2 'memory.modules\[0\].precision fp8-all: a100-80 has no products of fp8' \
    "$binary" plan "$tmp/fp8.yaml" --set 'memory.modules=[{match: [model.layers.*.mlp], precision: fp8-all}]' --set 'device={kind: cuda, profile: a100-80}'
check 'fp8-all on a GPU that scales no blocks' expect 2 'memory.precision fp8-all: rtx-4090 has no products of fp8 with a scale for each block of tokens \(compute capability 9.0 has them; use fp8\)' \
    "$binary" plan "$tmp/fp8.yaml" --set memory.precision=fp8-all --set 'device={kind: cuda, profile: rtx-4090}'
check 'frozen fp8 on a GPU without it' expect 2 'memory.quantize fp8: rtx-3090 has no products of fp8' \
    "$binary" plan "$tmp/fp8.yaml" --set memory.quantize=fp8 --set model.freeze='model.layers.*' --set 'device={kind: cuda, profile: rtx-3090}'
check 'inputs saved in fp8 without fp8' expect 2 'memory.saved fp8 needs memory.precision fp8, which is bf16 here' train_tiny "$tmp/no" --set memory.precision=bf16 --set memory.saved=fp8
check 'transposes without fp8' expect 2 'memory.transposed_weights on: no frozen weight is in fp8' train_tiny "$tmp/no" --set memory.transposed_weights=on
check 'ends without fp8' expect 2 'memory.bf16_ends is given, but memory.precision is bf16, expected fp8 or fp8-all' "$binary" plan "$tmp/fp8.yaml" --set memory.precision=bf16 --set memory.bf16_ends=true
summary
