#!/bin/bash
# run_bench.sh: plimsoll bench, and profiles: which profile a plan uses, the error for a damaged
# profile, and a resumed run that keeps its plan when a profile appears. Nothing is timed here.
#
#   bash tests/run_bench.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

bench() { "$binary" bench "$tmp/tiny.yaml" --steps 2 --set data.sequence=32 --set train.effective_batch=4 --set memory.micro_batch=2 "$@"; }

fields() {
    local key
    bench --json "$@" >"$tmp/bench.json" || return 1
    for key in steps predicted_step_seconds measured_mean_seconds measured_median_seconds ratio samples_per_second arena_bytes threads \
        breakdown.weights breakdown.gradients breakdown.optimizer breakdown.activations_and_rest peak_resident_bytes; do
        json "$tmp/bench.json" $key >"$tmp/value" && awk -v k=$key '{ ok = $1 > 0 } END { if (!ok) { print k " is " $0; exit 1 } }' "$tmp/value" || return 1
    done
    for key in op dtype calls seconds predicted_seconds gflop_per_second gb_per_second share_of_ceiling; do
        grep -q "\"$key\":" "$tmp/bench.json" || { echo "no $key of an op"; return 1; }
    done
    awk -F'[:,]' '/"(weights|gradients|optimizer|activations_and_rest)"/ { sum += $2 } /"arena_bytes"/ { arena = $2 }
        END { if (sum != arena) { print "the parts are " sum " bytes, the arena " arena; exit 1 } print arena " bytes in four parts" }' "$tmp/bench.json"
}
check 'bench --json: its fields' fields
check 'bench --json: in bf16' fields --set memory.precision=bf16
# The figures agree with each other and with the clock: all steps together take no longer than the
# process ran, a step takes at least as long as its ops in the fastest step, and rates follow from
# the mean.
figures() {
    local from=$EPOCHREALTIME to
    bench --json --set device=cpu >"$tmp/bench.json" || return 1
    to=$EPOCHREALTIME
    if grep measured_min "$tmp/bench.json"; then echo 'the least of intervals is no figure'; return 1; fi
    awk -F'[:,]' -v lived="$(awk "BEGIN { print $to - $from }")" '
        /"ops"/ { inside = 1 } /^  \]/ { inside = 0 }
        inside && /"seconds"/ { ops += $2 }
        /^  "[a-z_]+":/ { gsub(/[" ]/, "", $1); x[$1] = $2 + 0 }
        function off(a, b) { return a / b - 1 > 1e-9 || 1 - a / b > 1e-9 }
        END {
            mean = x["measured_mean_seconds"]
            if (mean * x["steps"] > lived) { print x["steps"] " steps of " mean " s in a process of " lived " s"; exit 1 }
            if (!(ops > 0) || ops > mean) { print "ops of " ops " s in a step of " mean " s"; exit 1 }
            if (off(x["samples_per_second"] * mean, x["effective_batch"])) { print x["samples_per_second"] " samples/s by " mean " s"; exit 1 }
            if (off(x["ratio"] * x["predicted_step_seconds"], mean)) { print "ratio " x["ratio"]; exit 1 }
            printf "%g s a step, ops %g s\n", mean, ops
        }' "$tmp/bench.json"
}
check 'bench --json: its figures agree' figures
text() { expect 0 '' bench && grep -q 'measured / predicted' "$tmp/out" && grep -q LINEAR "$tmp/out" && grep -Eq 'measured +[0-9.]+ (us|ms|s) mean, [0-9.]+ (us|ms|s) median of 2' "$tmp/out" && grep 'peak resident' "$tmp/out"; }
check 'bench: the text output' text
case $binary in /*) whole=$binary ;; *) whole=$PWD/$binary ;; esac
nothing() { (mkdir "$tmp/empty" && cd "$tmp/empty" && "$whole" bench ../tiny.yaml --steps 1 | grep 'measured  ' && [ -z "$(ls -A)" ]); }
check 'bench: needs no data, leaves nothing' nothing
for precision in f32 bf16; do
    tower() { "$binary" bench "$tmp/tower.yaml" --steps 1 --json >"$tmp/bench.json" && json "$tmp/bench.json" measured_mean_seconds; }
    printf 'model: {path: tests/golden/clip_vision}\ntrain: {effective_batch: 2}\nmemory: {precision: %s}\n' $precision >"$tmp/tower.yaml"
    check "bench: a tower, $precision" tower
done
prompted() {
    printf 'model: {preset: sam-tiny}\ndata: {format: sa1b, max_masks: 3}\nprompts: {iterations: %d}\ntrain: {effective_batch: 2}\n' "$1" >"$tmp/masks.yaml"
    "$binary" bench "$tmp/masks.yaml" --steps 1 --json >"$tmp/bench.json" && grep -q '"op": "MASK_LOSS"' "$tmp/bench.json" && json "$tmp/bench.json" measured_mean_seconds
}
check 'bench: a model that is prompted' prompted 1
check 'bench: a model that is prompted, in rounds' prompted 3
preset() { "$binary" plan "$tmp/tower.yaml" --set model.preset=clip-vit-b-16 --set memory.precision=bf16 | grep 'arena  '; }
check 'plan: the tower preset in bf16' preset
check 'bench: too many steps' expect 2 '--steps is 0.*1 to' bench --steps 0
check 'bench: does not fit' expect 3 'does not fit' bench --memory 1MiB
check 'bench: --calibrate takes no run' expect 2 'calibrate' "$binary" bench "$tmp/tiny.yaml" --calibrate
check 'bench: -o without --calibrate' expect 2 'calibrate' bench -o "$tmp/x.json"

# --- which profile ----------------------------------------------------------------------------

sed "s/\"flops_f32\": 1.6e11/\"flops_f32\": 1.6e7/" tests/fuzz/corpus/profile/whole >"$tmp/slow.json" # a ten-thousandth of the rate
plan() { "$binary" plan "$tmp/tiny.yaml" "$@"; }
names_default() { plan --set device.profile=default | grep 'default ceilings, not measured: run plimsoll bench --calibrate' && plan | grep -q 'default ceilings'; }
check 'plan: reports default ceilings where nothing was measured' names_default
# Without a profile the times that are shown are scaled by a small step on this CPU, and nothing
# else changes: not the plan, not its file, not what is planned for another device or by a profile
# that is named.
scaled() (
    plan --json >"$tmp/plain.json" && plan -o "$tmp/plain.plan" >/dev/null || return 1
    unset PLIMSOLL_MEASURE
    plan --json -o "$tmp/scaled.plan" >"$tmp/scaled.json" && same "$tmp/plain.plan" "$tmp/scaled.plan" && grep -v '"factor"\|seconds"\|"measured"' "$tmp/scaled.json" >"$tmp/a" && grep -v 'seconds"\|"measured"' "$tmp/plain.json" >"$tmp/b" && same "$tmp/b" "$tmp/a" || return 1
    awk -v f="$(json "$tmp/scaled.json" ceilings.factor)" -v s="$(json "$tmp/scaled.json" predicted_step_seconds)" -v p="$(json "$tmp/plain.json" predicted_step_seconds)" \
        'BEGIN { print s " s, " f " times " p; exit !(f > 0 && s > 0.999 * f * p && s < 1.001 * f * p) }' || return 1
    ! plan --json --set device.profile=default | grep '"factor"' && ! plan --json --devices 8 --set train.effective_batch=8 | grep '"factor"' || return 1
    PLIMSOLL_PROGRESS=0.001 expect 0 '^training 0/2 steps  about' "$binary" train "$tmp/tiny.yaml" --set data.train=README.md --set train.steps=2 --set "train.out=$tmp/said" &&
        plan | grep -E 'predicted step time [0-9.]+ [a-z]+ \(default ceilings times [0-9.e+]+, by a small step on this CPU'
)
check 'plan and train: shown times follow a small step on this CPU' scaled
names_file() {
    plan --set device.profile="$tmp/slow.json" | grep 'a processor with 2 threads, measured 2026-01-02' || return 1
    plan --set device.profile="$tmp/slow.json" --json >"$tmp/plan.json" && grep -q '"measured": true' "$tmp/plan.json" && grep -q '"date": "2026-01-02' "$tmp/plan.json"
}
check 'plan: names the profile and its date' names_file
slower() {
    plan --json --set device.profile=default >"$tmp/a.json" && plan --json --set device.profile="$tmp/slow.json" >"$tmp/b.json" || return 1
    awk -v a="$(json "$tmp/a.json" predicted_step_seconds)" -v b="$(json "$tmp/b.json" predicted_step_seconds)" 'BEGIN { print a " s, " b " s"; exit !(b > 100 * a) }'
}
check 'plan: times follow the profile' slower
same_plan() { plan --json --set device.profile="$tmp/slow.json" >"$tmp/c.json" && same "$tmp/b.json" "$tmp/c.json" && echo same; }
check 'plan: the same file, the same plan' same_plan
gpu() ( # on every machine the H200's profile, which is part of the program
    export CUDA_VISIBLE_DEVICES= # another GPU of this machine would be selected
    plan --set device=cuda | grep '(profile of NVIDIA H200, measured' || return 1
    plan --json --set device=cuda >"$tmp/c1.json" && plan --json --set device=cuda --set device.profile=h200 >"$tmp/c2.json" || return 1
    cmp "$tmp/c1.json" "$tmp/c2.json" && grep -q '"gpu": "NVIDIA H200"' "$tmp/c1.json" || return 1
    plan --json --set device=cuda --set device.profile=src/cost/profiles/h200.json >"$tmp/c3.json" && cmp "$tmp/c1.json" "$tmp/c3.json"
)
check 'plan: for a GPU that was measured' gpu
check 'plan: a GPU by a processor'\''s profile' expect 2 'is the profile of a CPU' plan --set device=cuda --set device.profile="$tmp/slow.json"
check 'plan: a processor by a GPU'\''s profile' expect 2 'is the profile of a GPU' plan --set device.profile=src/cost/profiles/h200.json
check 'bench: --calibrate and other settings' expect 2 'not --set data.sequence' "$binary" bench --calibrate --set data.sequence=8
# A plan is a function of only its profile. The workspace that oneDNN needs is known only to one
# build on one processor, so a profile measured with oneDNN is refused.
sed 's/"threads": 2,/"threads": 2, "onednn": true,/' "$tmp/slow.json" >"$tmp/library.json"
check 'plan: a profile that was measured with oneDNN' expect 2 'library.json is not a valid profile: onednn is true.*calibrate again' plan --set device.profile="$tmp/library.json"
check 'plan: a profile of other threads' expect 2 'for 2 threads, device.threads is 5' plan --set device.threads=5 --set device.profile="$tmp/slow.json"
check 'plan: a profile that is not there' expect 2 'nowhere.json' plan --set device.profile="$tmp/nowhere.json"
damaged() { head -c 300 "$tmp/slow.json" >"$tmp/cut.json" && expect 2 'device.profile.*cut.json.*profile.*bench --calibrate' plan --set device.profile="$tmp/cut.json"; }
check 'plan: a profile that was cut short' damaged

# --- the stored profile --------------------------------------------------------------------------

threads=$(plan --json | sed -n 's/.*"threads": \([0-9]*\).*/\1/p')
# profile_path prints the path to which --calibrate would write: the program chooses the machine's
# name.
stored() {
    local path
    train "$tmp/run" --set train.steps=6 --set train.save_every=3 >/dev/null 2>&1 || return 1
    path=$("$tools/profile_path" "$threads") && mkdir -p "$(dirname "$path")" && sed "s/\"threads\": 2/\"threads\": $threads/" "$tmp/slow.json" >"$path" || return 1
    plan | grep 'a processor with' || { echo "the stored profile is not used"; return 1; }
    plan --set device.profile=default | grep -q 'default ceilings' || { echo "device.profile: default is not obeyed"; return 1; }
    cp "$tmp/run/plan.json" "$tmp/before.json"
    train "$tmp/run" --set train.steps=10 --set train.save_every=3 --resume >/dev/null 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    if grep -q 'plan' "$tmp/err"; then cat "$tmp/err"; return 1; fi
    grep digest "$tmp/before.json" >"$tmp/d1" && grep digest "$tmp/run/plan.json" >"$tmp/d2" && same "$tmp/d1" "$tmp/d2" || return 1
    echo '{"half' >"$path"
    expect 2 'profile.*bench --calibrate again' plan
}
tool profile_path
check 'a stored profile is used; a resumed run keeps its plan' stored
summary
