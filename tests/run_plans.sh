#!/bin/bash
# run_plans.sh: a plan for a GPU is the same bytes on every machine, with the GPU or without.
#
#   bash tests/run_plans.sh           from the repository's root, after make; see run_lib.sh
#   bash tests/run_plans.sh --write   the plans of now are right: tests/golden/plans.txt again
#
# plans.txt has the SHA-256 of what `plimsoll plan --json` says of three models for the stored profile of an
# H200, and what a reader wants to know of them. It changes with the cost model, and then it is written again.
# KEEP=FOLDER gets the plans themselves, to be compared where the sums differ.
# The budget of host memory follows from this machine's memory unless it is given, so it is.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
stored=tests/golden/plans.txt
gpu=(--set device.kind=cuda --set device.profile=h200 --set memory.host_budget=64GiB)

cat >"$tmp/sam-vit-h.yaml" <<'YAML'
model: {preset: sam-vit-h}
data: {format: sa1b, max_masks: 32, threads: 4}
train: {effective_batch: 16}
memory: {budget: 24GiB, precision: bf16}
YAML
cat >"$tmp/sam-vit-b.yaml" <<'YAML'
model: {preset: sam-vit-b}
data: {format: sa1b, max_masks: 32, threads: 4}
train: {effective_batch: 16}
memory: {budget: 8GiB, precision: bf16}
YAML
cat >"$tmp/llama-1b.yaml" <<'YAML'
model: {preset: llama-1b}
data: {sequence: 2048, threads: 4}
train: {effective_batch: 8}
memory: {budget: 16GiB, precision: bf16}
YAML

# line NAME: what plans.txt has of it.
line() {
    expect 0 '' "$binary" plan "$tmp/$1.yaml" "${gpu[@]}" --json || return 1
    cp "$tmp/out" "$tmp/$1.json"
    [ -z "${KEEP:-}" ] || cp "$tmp/out" "$KEEP/plan-$1.json"
    echo "$1 $(sha256sum <"$tmp/out" | cut -d ' ' -f 1) arena $(json "$tmp/out" arena_bytes) seconds $(json "$tmp/out" predicted_step_seconds)" \
        "micro_batch $(json "$tmp/out" settings.micro_batch) recompute $(json "$tmp/out" settings.recompute) offload $(json "$tmp/out" settings.offload)"
}
if [ "${1:-}" = --write ]; then
    for name in sam-vit-h sam-vit-b llama-1b; do line $name || exit 1; done >"$tmp/plans.txt"
    cp "$tmp/plans.txt" $stored && exec cat $stored
fi

stays() {
    line "$1" >"$tmp/line" || return 1
    grep "^$1 " $stored | cmp -s - "$tmp/line" && { cut -d ' ' -f 1,3- "$tmp/line"; return 0; }
    echo 'the plan is another one; if it should be, bash tests/run_plans.sh --write'
    grep "^$1 " $stored
    cat "$tmp/line"
    return 1
}
for name in sam-vit-h sam-vit-b llama-1b; do check "$name: the plan that is stored" stays $name; done

# What a machine may have more or less of: threads, and a GPU.
again() {
    local variables
    for variables in OMP_NUM_THREADS=1 OMP_NUM_THREADS=7 CUDA_VISIBLE_DEVICES=; do
        expect 0 '' env "$variables" "$binary" plan "$tmp/$1.yaml" "${gpu[@]}" --json && same "$tmp/$1.json" "$tmp/out" || return 1
    done
    command -v taskset >/dev/null || return 0
    expect 0 '' taskset -c 0 "$binary" plan "$tmp/$1.yaml" "${gpu[@]}" --json && same "$tmp/$1.json" "$tmp/out"
}
check 'llama-1b: on one core, with other threads, without GPUs' again llama-1b
check 'sam-vit-b: on one core, with other threads, without GPUs' again sam-vit-b
summary
