#!/bin/bash
# run_search.sh: the guarantees of the plan search, checked through the program.
#
#   bash tests/run_search.sh      from the repository's root, after make; see run_lib.sh
#
# At the smallest budget the run trains. One byte below, it is refused; the message names the phase
# and module of the peak, the tensors alive there, the smallest budget and a change that would fit.
# A plan for a GPU that is not in this machine is possible; it states whether its profile was
# measured.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

# Every thread has workspaces, and bf16 does not shrink them. With few threads the weights dominate.
sed -i 's/^device: cpu$/device: {kind: cpu, threads: 2}/' "$tmp/tiny.yaml"
smallest_of() {
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" --json || return 1
    smallest=$(json "$tmp/out" smallest_budget_bytes)
    [ "$smallest" -gt 0 ] || { echo "no smallest budget: $smallest"; return 1; }
}

runs_at_smallest() {
    smallest_of || return 1
    expect 0 '' train_tiny "$tmp/least" --memory "$smallest" --set train.steps=1 --json || return 1
    [ "$(json "$tmp/out" arena_bytes)" -le "$smallest" ] || { echo 'the arena is larger than the budget'; return 1; }
    echo "$smallest bytes"
}
check 'the smallest budget trains' runs_at_smallest

refuses_below() {
    smallest_of || return 1
    expect 3 "its peak is in the [a-z]+ of .*persistent.*--memory $smallest.*each of which fits: memory.precision: bf16" "$binary" plan "$tmp/tiny.yaml" --memory $((smallest - 1)) --json || return 1
    grep -q '"fits": false' "$tmp/out" || { echo 'fits is not false'; return 1; }
    [ "$(json "$tmp/out" smallest_budget_bytes)" = "$smallest" ] || { echo 'another smallest budget'; return 1; }
    [ "$(json "$tmp/out" peak.instant)" -gt 0 ] || { echo 'no instant'; return 1; }
    grep -q '"change": "memory.precision: bf16"' "$tmp/out" || { echo 'no change that fits'; return 1; }
}
check 'one byte below it is refused, with what would fit' refuses_below

savings() {
    smallest_of || return 1
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" --memory "$smallest" --json || return 1
    grep -q '"saved_bytes": [1-9]' "$tmp/out" || { echo 'no technique saves anything'; return 1; }
    grep -o '"name": "offload[^"]*"' "$tmp/out"
}
check 'techniques report the bytes they saved' savings

gpu() {
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" --set device.kind=cuda --set device.profile=rtx-4090 || return 1
    grep -q 'unmeasured' "$tmp/out" || { echo 'the output does not contain unmeasured'; return 1; }
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" --set device.kind=cuda --set device.profile=t4 --json || return 1
    grep -q '"prediction": "unmeasured"' "$tmp/out" || { echo 'the output does not contain unmeasured'; return 1; }
    expect 2 'no profile of a GPU' "$binary" plan "$tmp/tiny.yaml" --set device.kind=cuda --set device.profile=rtx-1 || return 1
    expect 2 'is a GPU; set device.kind' "$binary" plan "$tmp/tiny.yaml" --set device.kind=cpu --set device.profile=t4 || return 1
}
check 'a plan for a GPU that is not in this machine' gpu

# seconds_of YAML ARG...: the predicted seconds of a step on an H200, which need not be in this
# machine.
seconds_of() { expect 0 '' "$binary" plan "$@" --set device.kind=cuda --set device.profile=h200 --set memory.host_budget=none --json && json "$tmp/out" predicted_step_seconds; }
# is_least A B: A is at most B, up to rounding.
is_least() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0 && a <= b * (1 + 1e-6)) }' || { echo "$1 s, $2 s"; return 1; }; }
printf 'model: {preset: sam-vit-b}\ndata: {format: sa1b, max_masks: 8}\ntrain: {effective_batch: 8}\nmemory: {offload: activations}\n' >"$tmp/offload.yaml"
never_slower() {
    local more less
    less=$(seconds_of "$tmp/offload.yaml" --memory 2261394284) || { echo "$less"; return 1; }
    more=$(seconds_of "$tmp/offload.yaml" --memory 2341288117) || { echo "$more"; return 1; }
    is_least "$more" "$less"
}
check 'more budget is not slower where copies overlap with compute' never_slower
printf 'model: {preset: llama-1b}\ndata: {sequence: 2048}\ntrain: {effective_batch: 64, clip_norm: 1}\n' >"$tmp/streamed.yaml"
# not_beaten YAML BY_HAND...: settings chosen by hand are not faster than the plan that the search
# finds in as many bytes.
not_beaten() {
    local found by_hand bytes yaml=$1
    shift
    by_hand=$(seconds_of "$yaml" "$@") || { echo "$by_hand"; return 1; }
    bytes=$(json "$tmp/out" arena_bytes)
    found=$(seconds_of "$yaml" --memory "$bytes") || { echo "$found"; return 1; }
    is_least "$found" "$by_hand" && echo "$bytes bytes: $found s, by hand $by_hand s"
}
check 'offloaded weights against larger micro-batches' not_beaten "$tmp/streamed.yaml" --set memory.micro_batch=4 --set memory.recompute=all --set memory.head_chunks=8 \
    --set memory.offload=optimizer+masters+weights+activations
sed 's/64, clip_norm: 1/8/' "$tmp/streamed.yaml" >"$tmp/fused.yaml"
check 'the fused step with a part of the optimizer state offloaded' not_beaten "$tmp/fused.yaml" --set memory.micro_batch=8 --set memory.recompute=all --set memory.head_chunks=8 \
    --set memory.offload=optimizer --set memory.fused_step=on

summary
