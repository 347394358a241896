#!/bin/bash
# run_plans.sh: no plan needs more memory or time than the stored one; a plan is a function of its
# profile: the same bytes with and without a GPU, oneDNN and the features of the processor.
#
#   bash tests/run_plans.sh           from the repository's root, after make; see run_lib.sh
#   bash tests/run_plans.sh --write   accepts the current plans: rewrites tests/golden/plans.txt
#
# plans.txt has the bytes of the arena, the predicted seconds of a step and the settings of the plan
# for three models with the stored profile of an H200 and for four models with two profiles of
# processors (golden/profiles). More bytes or seconds fail; fewer are printed, and so are other
# settings. A change of the cost model may need --write. KEEP=FOLDER receives the plans themselves.
# The default of memory.host_budget depends on this machine's memory, so the scripts set it.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
stored=tests/golden/plans.txt
gpu=(--set device.kind=cuda --set device.profile=h200 --set memory.host_budget=64GiB)
gpu_plans=(sam-vit-h sam-vit-b llama-1b)
cpu_plans=()
for profile in arm64-2 x86-64-16; do
    for model in llama-tiny sam-tiny sam-vit-b tinysam; do cpu_plans+=("$model@$profile"); done
done

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
data: {sequence: 2048}
train: {effective_batch: 8}
memory: {budget: 16GiB, precision: bf16}
YAML

# Budgets at which the planner has a choice.
cpu_yaml() { printf 'model: {preset: %s}\ndata: {%s}\ntrain: {effective_batch: 8}\nmemory: {budget: %s}\n' "$1" "$2" "$3" >"$tmp/cpu-$1.yaml"; }
cpu_yaml llama-tiny 'sequence: 128' 12MiB
cpu_yaml sam-tiny 'format: sa1b, max_masks: 8, threads: 2' 48MiB
cpu_yaml sam-vit-b 'format: sa1b, max_masks: 4, threads: 2' 4GiB
cpu_yaml tinysam 'format: sa1b, max_masks: 4, threads: 2' 2GiB

# plan_of NAME or MODEL@PROFILE: writes the plan to $tmp/out.
plan_of() {
    local of=("$tmp/$1.yaml" "${gpu[@]}")
    case $1 in *@*) of=("$tmp/cpu-${1%@*}.yaml" --set device.kind=cpu --set "device.profile=tests/golden/profiles/${1#*@}.json" --set memory.host_budget=64GiB) ;; esac
    expect 0 '' ${with[@]+"${with[@]}"} "$binary" plan "${of[@]}" --json && sed -i '/^  "fits_machine": /d; /^  "warnings": \[/,/^  \],/d' "$tmp/out" # they speak of this machine
}
with=()
# line NAME: prints the plan's line of plans.txt.
line() {
    plan_of "$1" || return 1
    cp "$tmp/out" "$tmp/$1.json"
    [ -z "${KEEP:-}" ] || cp "$tmp/out" "$KEEP/plan-$1.json"
    echo "$1 arena $(json "$tmp/out" arena_bytes) seconds $(json "$tmp/out" predicted_step_seconds)" \
        "micro_batch $(json "$tmp/out" settings.micro_batch) recompute $(json "$tmp/out" settings.recompute) offload $(json "$tmp/out" settings.offload)"
}
if [ "${1:-}" = --write ]; then
    for name in "${gpu_plans[@]}" "${cpu_plans[@]}"; do line "$name" || exit 1; done >"$tmp/plans.txt"
    cp "$tmp/plans.txt" $stored && exec cat $stored
fi

# Compares the arena (field 3) and the seconds (field 5) with those of the stored line.
no_larger() {
    line "$1" >"$tmp/line" || return 1
    grep "^$1 " $stored | cat - "$tmp/line" | awk '
        NR == 1 { for (i = 1; i <= NF; i++) was[i] = $i; next }
        function compare(i) { if ($i + 0 != was[i] + 0) { printf "%s %s, stored %s: %+.3f %%; ", $(i - 1), $i, was[i], 100 * ($i / was[i] - 1); grown += $i + 0 > was[i] + 0 } }
        { compare(3); compare(5); for (i = 7; i <= NF; i += 2) if ($i != was[i]) printf "%s %s, stored %s; ", $(i - 1), $i, was[i] }
        END { if (NR != 2) print "expected one stored line"; else if (grown) print "grown; if that is intended: bash tests/run_plans.sh --write"; exit grown || NR != 2 }'
}
for name in "${gpu_plans[@]}" "${cpu_plans[@]}"; do check "$name: not above the stored plan" no_larger "$name"; done

# The table of budgets of the guide has what the command above it plans for each of them.
budgets() {
    local command budget memory page=docs/guides/memory-budget.md
    command=$(sed -n '/^    build.plimsoll plan .*llama-1b/,/--memory/s/\\$\|build.plimsoll\|--memory.*//gp' $page)
    awk -F ' *[|] *' '/^\| none \| 62/, /^$/ { gsub(/,|exit.*needs /, "", $3); sub(/ .*/, "", $4); sub(/ s$/, "", $7); if (NF) print $2, $3, $4, $5, $7 }' $page | sed 's/ *$//' >"$tmp/rows"
    while read -r budget _; do
        memory=(--memory "$budget")
        [ "$budget" != none ] || memory=()
        # The command is a list of words; with a budget that is too small it exits with 3.
        # shellcheck disable=SC2086
        "$binary" $command ${memory[@]+"${memory[@]}"} --json >"$tmp/out" 2>"$tmp/err"
        case $? in
            0) echo "$budget $(json "$tmp/out" arena_bytes) $(json "$tmp/out" settings.micro_batch) $(json "$tmp/out" settings.recompute) $(printf '%.1f' "$(json "$tmp/out" predicted_step_seconds)")" ;;
            3) echo "$budget $(json "$tmp/out" smallest_budget_bytes) bytes" ;;
        esac
    done <"$tmp/rows" >"$tmp/planned"
    diff "$tmp/rows" "$tmp/planned" && echo "$(wc -l <"$tmp/rows") rows" && [ "$(wc -l <"$tmp/rows")" -eq 6 ]
}
check 'the table of budgets in memory-budget.md' budgets

# Properties in which machines differ: threads, processor features, a GPU.
other_machine() {
    local variables
    for variables in OMP_NUM_THREADS=1 OMP_NUM_THREADS=7 CUDA_VISIBLE_DEVICES= PLIMSOLL_HIDE_CPU=bf16,avx512,sve PLIMSOLL_ONEDNN=1; do
        with=(env "$variables")
        plan_of "$1" && same "$tmp/$1.json" "$tmp/out" || return 1
    done
    command -v taskset >/dev/null || return 0
    with=(taskset -c 0)
    plan_of "$1" && same "$tmp/$1.json" "$tmp/out"
}
for name in llama-1b sam-vit-b sam-tiny@x86-64-16 llama-tiny@arm64-2; do check "$name: with other threads, processor features and GPUs" other_machine "$name"; done
summary
