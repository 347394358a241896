#!/bin/bash
# shellcheck disable=SC2015
# run_gradients.sh: memory.gradients bf16: half the bytes for gradients of matrices, near the
# results of f32, and the same bits with every other technique.
#
#   bash tests/run_gradients.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
preload fault
sanitized || export LD_PRELOAD=$tools/fault.so

losses() { sed -n 's/^{"step":[0-9]*,"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
arena() { json "$1/plan.json" arena_bytes; }
# Several micro-batches: gradients are alive from the first to the last.
base=(--set memory.micro_batch=2 --set memory.precision=bf16 --set memory.recompute=none --set memory.offload=none --set memory.head_chunks=1)
bf16=("${base[@]}" --set memory.gradients=bf16)

check 'a run with gradients in f32' expect 0 '' train "$tmp/f32" "${base[@]}"
# Near, not equal: each gradient is rounded to 8 bits.
smaller() {
    expect 0 '' train "$tmp/bf16" "${bf16[@]}" || return 1
    awk -v a="$(losses "$tmp/f32" | tail -n 1)" -v b="$(losses "$tmp/bf16" | tail -n 1)" 'BEGIN { d = (a - b) / a; exit !(d < 0.01 && d > -0.01 && a != b) }' ||
        { echo "the last losses: $(losses "$tmp/f32" | tail -n 1) and $(losses "$tmp/bf16" | tail -n 1)"; return 1; }
    echo "$(arena "$tmp/f32") -> $(arena "$tmp/bf16") bytes"
    [ "$(arena "$tmp/bf16")" -lt "$(arena "$tmp/f32")" ]
}
check 'gradients in bf16: near, smaller arena' smaller

# equal NAME ARGUMENT...: the bytes of the run with bf16 gradients.
equal() {
    local name=$1
    shift
    expect 0 '' train "$tmp/$name" "${bf16[@]}" "$@" && same_run "$tmp/bf16" "$tmp/$name" 10
}
check 'recompute: same bytes' equal recompute --set memory.recompute=all
check 'offload: same bytes' equal offload --set memory.offload=optimizer+masters
check 'threads: same bytes' equal threads --set device.threads=3

check 'f32 has no bf16 gradients' expect 2 'memory.gradients bf16 needs memory.precision bf16, which is f32 here; set it, or memory.gradients f32' \
    train "$tmp/no" --set memory.precision=f32 --set memory.gradients=bf16
check 'another value' expect 2 'memory.gradients: found the string "f16", expected f32 or bf16' train "$tmp/no" --set memory.gradients=f16

explained() { expect 0 '' train "$tmp/said" "${bf16[@]}" && grep -q '"gradients": "bf16"' "$tmp/said/plan.json"; }
check 'the plan file has it' explained
summary
