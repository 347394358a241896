#!/bin/bash
# shellcheck disable=SC2015
# run_train.sh: how long a run is and what it keeps: epochs and their borders, evaluation, the
# best model, event files.
#
#   bash tests/run_train.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
preload fault
# Nothing is synced to the disk here: most of the time would go there.
sanitized || export LD_PRELOAD=$tools/fault.so

# samples FILE FROM COUNT...: samples of the golden tokens, 16 of two bytes each, into FILE.
samples() {
    local to=$1
    shift
    while [ $# -ge 2 ]; do
        dd if="$golden/tokens.bin" bs=32 skip="$1" count="$2" status=none || return 1
        shift 2
    done >"$to"
}
# member RUN STEP NAME: a number of a step's line of metrics.jsonl.
member() {
    grep "^{\"step\":$2,\"loss\"" "$1/metrics.jsonl" | grep -o "\"$3\":[^,}]*" | cut -d : -f 2
}
# near A B: within 1e-6, relative.
near() {
    awk -v a="${1:-none}" -v b="${2:-none}" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= 1e-6 * b) }' ||
        { echo "found ${1:-none}, expected ${2:-none}"; return 1; }
}
# as_step_1 RUN STEP OTHER: the step of a run that does not move has the loss and the norm of the first one of another.
as_step_1() {
    near "$(member "$1" "$2" loss)" "$(member "$3" 1 loss)" && near "$(member "$1" "$2" grad_norm)" "$(member "$3" 1 grad_norm)"
}

# --- epochs -------------------------------------------------------------------------------

# Twelve samples in batches of eight, at a rate of 0: what a step sees shows in its loss.
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

steps_are_full() {
    expect 0 '' train "$tmp/full" "${twelve[@]}" --set train.steps=2 || return 1
    [ "$(member "$tmp/full" 2 samples)" = 16 ] && as_step_1 "$tmp/full" 2 "$tmp/border"
}
check 'train.steps: every batch is full' steps_are_full

# A short step ends a run; more epochs go on behind it, sample by sample.
more_epochs() {
    expect 0 '' train "$tmp/epoch" "${twelve[@]}" --set train.epochs=3 --set memory.micro_batch=5 --resume || return 1
    steps_once "$tmp/epoch" 5 && [ "$(member "$tmp/epoch" 3 samples) $(member "$tmp/epoch" 5 samples)" = '20 36' ] || { cat "$tmp/epoch/metrics.jsonl"; return 1; }
    expect 0 '' train "$tmp/epoch" "${twelve[@]}" --set train.epochs=2 --set memory.micro_batch=5 --resume && steps_once "$tmp/epoch" 5
}
check 'a finished run with more epochs, and with fewer' more_epochs

# A schedule that ends with the last epoch, taken up in the middle: the same bytes.
taken_up() {
    needs_preload || return
    local sets=(--set "data.train=$tmp/twelve.bin" --set train.epochs=3 --set train.effective_batch=5 --set memory.micro_batch=5 --set train.save_every=2 --set data.shuffle=true)
    expect 0 '' train "$tmp/whole" "${sets[@]}" || return 1
    expect 137 '' env FAULT=kill:7 FAULT_PATH="$tmp/part/metrics.jsonl" "$binary" train "$golden/run.yaml" --set "train.out=$tmp/part" "${sets[@]}" || return 1
    expect 0 'resuming after step' train "$tmp/part" "${sets[@]}" --resume && same_run "$tmp/whole" "$tmp/part" 8 && steps_once "$tmp/part" 8 || return 1
    [ "$(member "$tmp/part" 8 samples)" = 36 ]
}
check 'epochs, killed and taken up: same bytes' taken_up

summary
