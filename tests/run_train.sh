#!/bin/bash
# shellcheck disable=SC2015
# run_train.sh: the length of a run and its files: epochs and their boundaries, evaluation, the best
# model, event files.
#
#   bash tests/run_train.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
preload fault
# fault.so replaces fsync, which would take most of the time: these runs need not reach the disk.
sanitized || export LD_PRELOAD=$tools/fault.so

# samples FILE FROM COUNT...: writes samples of the golden tokens, 16 tokens of two bytes each, to
# FILE.
samples() {
    local to=$1
    shift
    while [ $# -ge 2 ]; do
        dd if="$golden/tokens.bin" bs=32 skip="$1" count="$2" status=none || return 1
        shift 2
    done >"$to"
}
# member RUN STEP NAME: prints a number of a step's line in metrics.jsonl.
member() {
    grep "^{\"step\":$2,\"loss\"" "$1/metrics.jsonl" | grep -o "\"$3\":[^,}]*" | cut -d : -f 2
}
# near A B: within 1e-6, relative.
near() {
    awk -v a="${1:-none}" -v b="${2:-none}" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= 1e-6 * b) }' ||
        { echo "found ${1:-none}, expected ${2:-none}"; return 1; }
}
# as_step_1 RUN STEP OTHER: in a run with learning rate 0, the step has the loss and gradient norm
# of step 1 of the run OTHER.
as_step_1() {
    near "$(member "$1" "$2" loss)" "$(member "$3" 1 loss)" && near "$(member "$1" "$2" grad_norm)" "$(member "$3" 1 grad_norm)"
}

# --- epochs -------------------------------------------------------------------------------

# Twelve samples in batches of eight, with learning rate 0: the loss of a step identifies its
# samples.
samples "$tmp/twelve.bin" 0 12
samples "$tmp/rest.bin" 8 4
samples "$tmp/border.bin" 8 4 0 4
still=(--set train.learning_rate=0)
twelve=("${still[@]}" --set "data.train=$tmp/twelve.bin")

one_epoch() {
    rm -rf "$tmp/epoch" "$tmp/rest"
    expect 0 '' train "$tmp/epoch" "${twelve[@]}" --set train.epochs=1 --set "memory.micro_batch=$1" || return 1
    expect 0 '' train "$tmp/rest" "${still[@]}" --set "data.train=$tmp/rest.bin" --set train.steps=1 --set train.effective_batch=4 --set memory.micro_batch=4 || return 1
    steps_once "$tmp/epoch" 2 || return 1
    [ "$(member "$tmp/epoch" 1 samples) $(member "$tmp/epoch" 2 samples)" = '8 12' ] || { cat "$tmp/epoch/metrics.jsonl"; return 1; }
    as_step_1 "$tmp/epoch" 2 "$tmp/rest"
}
for micro in 8 4 3 5; do check "one epoch of 12 samples: the last step has 4, micro-batch $micro" one_epoch $micro; done

two_epochs() {
    expect 0 '' train "$tmp/epochs" "${twelve[@]}" --set train.epochs=2 || return 1
    expect 0 '' train "$tmp/border" "${still[@]}" --set "data.train=$tmp/border.bin" --set train.steps=1 || return 1
    steps_once "$tmp/epochs" 3 || return 1
    [ "$(member "$tmp/epochs" 2 samples) $(member "$tmp/epochs" 3 samples)" = '16 24' ] || { cat "$tmp/epochs/metrics.jsonl"; return 1; }
    as_step_1 "$tmp/epochs" 2 "$tmp/border"
}
check 'two epochs: a batch goes over the border' two_epochs

part_of_an_epoch() { # 3 quarters of 12 samples are 9: a step of 8, and one of 1
    expect 0 '' train "$tmp/quarters" "${twelve[@]}" --set train.epochs=0.75 || return 1
    steps_once "$tmp/quarters" 2 && [ "$(member "$tmp/quarters" 1 samples) $(member "$tmp/quarters" 2 samples)" = '8 9' ] || { cat "$tmp/quarters/metrics.jsonl"; return 1; }
}
check 'part of an epoch: train.epochs 0.75' part_of_an_epoch

steps_are_full() {
    expect 0 '' train "$tmp/full" "${twelve[@]}" --set train.steps=2 || return 1
    [ "$(member "$tmp/full" 2 samples)" = 16 ] && as_step_1 "$tmp/full" 2 "$tmp/border"
}
check 'train.steps: every batch is full' steps_are_full

# A run ends with a short step; with more epochs it continues with the next sample.
more_epochs() {
    expect 0 '' train "$tmp/epoch" "${twelve[@]}" --set train.epochs=3 --set memory.micro_batch=5 --resume && grep -q '^3 of 5 steps, loss ' "$tmp/out" || { cat "$tmp/out"; return 1; }
    steps_once "$tmp/epoch" 5 && [ "$(member "$tmp/epoch" 3 samples) $(member "$tmp/epoch" 5 samples)" = '20 36' ] || { cat "$tmp/epoch/metrics.jsonl"; return 1; }
    expect 0 '' train "$tmp/epoch" "${twelve[@]}" --set train.epochs=2 --set memory.micro_batch=5 --resume && steps_once "$tmp/epoch" 5
}
check 'a finished run with more epochs, and with fewer' more_epochs

# A schedule that ends with the last epoch, resumed in the middle: the same bytes.
resumed() {
    needs_preload || return
    local sets=(--set "data.train=$tmp/twelve.bin" --set train.epochs=3 --set train.effective_batch=5 --set memory.micro_batch=5 --set train.save_every=2 --set data.shuffle=true)
    expect 0 '' train "$tmp/whole" "${sets[@]}" || return 1
    expect 137 '' env FAULT=kill:7 FAULT_PATH="$tmp/part/metrics.jsonl" "$binary" train "$golden/run.yaml" --set "train.out=$tmp/part" "${sets[@]}" || return 1
    expect 0 'resuming after step' train "$tmp/part" "${sets[@]}" --resume && same_run "$tmp/whole" "$tmp/part" 8 && steps_once "$tmp/part" 8 || return 1
    [ "$(member "$tmp/part" 8 samples)" = 36 ]
}
check 'epochs, killed and resumed: same bytes' resumed

# --- evaluation ------------------------------------------------------------------------------

# With this learning rate the evaluation loss is lowest in the middle of the run.
validation=(--set "data.validation=$golden/tokens.bin")
evaluated=(--set train.learning_rate=0.3 --set train.eval_every=2 "${validation[@]}")
# eval_lines RUN: step and evaluation loss of each evaluation, in order.
eval_lines() {
    sed -n 's/^{"step":\([0-9]*\),"eval_loss":\([^,]*\),"eval_perplexity":\([^,]*\),"eval_samples":\([0-9]*\)}$/\1 \2 \3 \4/p' "$1/metrics.jsonl"
}
same_best() {
    local name
    for name in model.safetensors eval.json config.json; do same "$1/checkpoints/best/$name" "$2/checkpoints/best/$name" || return 1; done
}

best() {
    expect 0 '' train "$tmp/best" "${evaluated[@]}" --set train.save_every=1 --set train.keep=100 --json || return 1
    [ "$(eval_lines "$tmp/best" | cut -d ' ' -f 1 | tr '\n' ' ')" = '2 4 6 8 10 ' ] || { eval_lines "$tmp/best"; return 1; }
    eval_lines "$tmp/best" | awk '{ d = exp($2) / $3 - 1; if (d < -1e-6 || d > 1e-6 || $4 != 84) { print; bad = 1 } } END { exit bad }' || return 1
    local step
    step=$(eval_lines "$tmp/best" | sort -g -k 2 | head -n 1 | cut -d ' ' -f 1)
    [ "$step" -gt 2 ] && [ "$step" -lt 10 ] || { echo "the best is step $step: this shows nothing"; return 1; }
    [ "$(json "$tmp/best/checkpoints/best/eval.json" step) $(json "$tmp/out" best_step)" = "$step $step" ] || { cat "$tmp/out"; return 1; }
    [ "$(json "$tmp/out" best_eval_loss)" = "$(json "$tmp/best/checkpoints/best/eval.json" eval_loss)" ] || return 1
    [ "$(json "$tmp/out" allocations_in_steps)" -eq 0 ] || { echo 'allocations in steps'; return 1; }
    same "$tmp/best/checkpoints/best/model.safetensors" "$tmp/best/checkpoints/step-$step/model.safetensors" && no_debris "$tmp/best" && echo "step $step"
}
check 'the best model is that of the lowest evaluation loss' best
# The printed rate is that of the steps: evaluations and saves, here after every step or two, are
# not in it.
rate() {
    local steps
    steps=$(grep '"loss":' "$tmp/best/metrics.jsonl" | sed -E 's/.*"seconds":([0-9.]+),"tokens_per_second":([0-9.]+).*/\1 \2/' | awk '{ s += $1; t += $1 * $2 } END { print s, t / s }')
    echo "${steps% *} s in steps of $(json "$tmp/out" seconds) s, ${steps#* } tokens/s"
    awk -v a="$steps $(json "$tmp/out" step_seconds) $(json "$tmp/out" tokens_per_second) $(json "$tmp/out" seconds)" \
        'BEGIN { split(a, x, " "); exit !(x[3] / x[1] > 0.98 && x[3] / x[1] < 1.02 && x[4] / x[2] > 0.98 && x[4] / x[2] < 1.02 && x[5] > x[3]) }'
}
check 'the rate is that of the steps' rate

# The best model is a model folder; a run that starts from it does not copy its eval.json.
best_loads() {
    expect 0 '' train "$tmp/onward" --set "model.path=$tmp/best/checkpoints/best" --set train.steps=1 && [ ! -e "$tmp/onward/model/eval.json" ]
}
check 'the best model can be trained on' best_loads

last_step() {
    expect 0 '' train "$tmp/lastly" "${evaluated[@]}" --set train.eval_every=4 || return 1
    [ "$(eval_lines "$tmp/lastly" | cut -d ' ' -f 1 | tr '\n' ' ')" = '4 8 10 ' ] || { eval_lines "$tmp/lastly"; return 1; }
    near "$(eval_lines "$tmp/lastly" | sed -n '3s/^10 \([^ ]*\).*/\1/p')" "$(eval_lines "$tmp/best" | sed -n '5s/^10 \([^ ]*\).*/\1/p')"
}
check 'an evaluation after the last step in any case' last_step

no_best() {
    expect 0 '' train "$tmp/unkept" "${evaluated[@]}" --set train.keep_best=false && [ ! -e "$tmp/unkept/checkpoints/best" ]
}
check 'train.keep_best=false keeps none' no_best

# Killed before each call that changes files of checkpoints/, and resumed: the same best model.
best_killed() {
    needs_preload || return
    local total n=1 tried=0
    expect 0 '' env FAULT=count FAULT_PATH="$tmp/calm" FAULT_LOG="$tmp/fault.log" "$binary" train "$golden/run.yaml" --set "train.out=$tmp/calm" "${evaluated[@]}" --set train.save_every=3 || return 1
    total=$(cat "$tmp/fault.log")
    while [ "$n" -le "$total" ]; do
        rm -rf "$tmp/cut"
        expect 137 '' env FAULT="kill:$n" FAULT_PATH="$tmp/cut" "$binary" train "$golden/run.yaml" --set "train.out=$tmp/cut" "${evaluated[@]}" --set train.save_every=3 >"$tmp/why" 2>&1 ||
            { cat "$tmp/why"; return 1; }
        local resume=()
        ! begun "$tmp/cut" || resume=(--resume)
        expect 0 '' train "$tmp/cut" "${evaluated[@]}" --set train.save_every=3 "${resume[@]}" && same_run "$tmp/calm" "$tmp/cut" 10 && same_best "$tmp/calm" "$tmp/cut" &&
            no_debris "$tmp/cut" && [ "$(eval_lines "$tmp/cut")" = "$(eval_lines "$tmp/calm")" ] || { echo "killed at call $n"; cat "$tmp/err"; return 1; }
        tried=$((tried + 1))
        n=$((n + 7))
    done
    echo "$tried of $total calls that change files"
}
check 'killed at any call, resumed: same best model' best_killed

# Evaluation losses over other validation files are not comparable.
other_validation() {
    samples "$tmp/valid.bin" 40 8 || return 1
    expect 0 'data.validation is not that of' train "$tmp/best" "${evaluated[@]}" --set "data.validation=$tmp/valid.bin" --set train.save_every=1 --set train.keep=100 --set train.steps=12 --resume || return 1
    [ "$(json "$tmp/best/checkpoints/best/eval.json" step)" = 12 ] && [ "$(json "$tmp/best/checkpoints/best/eval.json" eval_samples)" = 8 ]
}
check 'other validation files: the best begins anew' other_validation

# --- event files ------------------------------------------------------------------------------

# test_events checks every record. Here: a run writes one record per line of its metrics, and a run
# that was killed and resumed has as many records as an undisturbed run. events RUN: how many
# scalars of each tag its event files hold. In the file a tag stands between its length and the key
# of its value.
events() {
    local tag
    for tag in loss learning_rate grad_norm tokens_per_second eval_loss; do
        # shellcheck disable=SC2059
        printf '%s %s\n' "$tag" "$(cat "$1"/tb/events.out.tfevents.*.plimsoll | grep -aoF "$(printf "\\$(printf %03o ${#tag})$tag\\025")" | wc -l)"
    done
}
event_files() {
    needs_preload || return
    local want='loss 10 learning_rate 10 grad_norm 10 tokens_per_second 10 eval_loss 5 '
    [ "$(events "$tmp/calm" | tr '\n' ' ')" = "$want" ] || { events "$tmp/calm"; return 1; }
    rm -rf "$tmp/cut"
    expect 137 '' env FAULT=kill:17 FAULT_PATH="$tmp/cut/tb" "$binary" train "$golden/run.yaml" --set "train.out=$tmp/cut" "${evaluated[@]}" --set train.save_every=3 || return 1
    expect 0 'resuming after step 6' train "$tmp/cut" "${evaluated[@]}" --set train.save_every=3 --resume || return 1
    [ "$(events "$tmp/cut" | tr '\n' ' ')" = "$want" ] || { events "$tmp/cut"; return 1; }
    [ "$(cd "$tmp/cut/tb" && echo *)" = 'events.out.tfevents.0000000000.plimsoll events.out.tfevents.0000000006.plimsoll' ] || { ls -l "$tmp/cut/tb"; return 1; }
    cp -r "$tmp/cut/tb" "$tmp/tb"
    expect 0 '' train "$tmp/cut" "${evaluated[@]}" --set train.save_every=3 --resume && diff -r "$tmp/tb" "$tmp/cut/tb"
}
check 'event files: truncated and continued by a resume' event_files

summary
