#!/bin/bash
# shellcheck disable=SC2015
# run_kill.sh: a run that is killed at any moment resumes, and ends with the same bits.
#
#   bash tests/run_kill.sh        from the repository's root, after make; see run_lib.sh
#   SEED=1                        random seed of the moments; printed
#
# Kills come from outside, by a timer or as soon as a partly written checkpoint appears; and from
# inside (fault.c), before the N-th call that changes a file of the run, which reaches moments that
# a timer does not. Each time the files must be those of an undisturbed run.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault
steps=12
calm=$tmp/calm
save=(--set "train.steps=$steps" --set train.save_every=1)
echo "seed $SEED"

# fault ACTION:N OUT COMMAND...: runs the command with the fault at the N-th change of a file of
# OUT.
fault() {
    local what=$1 out=$2
    shift 2
    FAULT=$what FAULT_PATH=$out FAULT_LOG=$tmp/fault.log LD_PRELOAD=$tools/fault.so "$@"
}
# continue_run OUT ARGUMENT...: with --resume if the run has a checkpoint, else from the start.
continue_run() {
    local out=$1
    shift
    if begun "$out"; then train "$out" "$@" --resume; else train "$out" "$@"; fi
}
# whole OUT: the files of the undisturbed run.
whole() {
    same_run "$calm" "$1" "$steps" && steps_once "$1" "$steps" && no_debris "$1"
}

calm() { expect 0 '' train "$tmp/calm" "${save[@]}" && steps_once "$tmp/calm" "$steps" && no_debris "$tmp/calm"; }
check 'an undisturbed run' calm

# --- from outside -----------------------------------------------------------------------------

# died PID: waits until the process has ended; true if SIGKILL ended it.
died() {
    local rc=0
    wait "$1" 2>/dev/null || rc=$?
    [ "$rc" -eq 137 ]
}

# One run is killed ten times: alternately after a random time and as soon as a checkpoint is being
# written. If the run finishes before the kill, it starts again.
ten_kills() {
    local out=$tmp/ten kills=0 aimed=0 turns=0 pid
    while [ "$kills" -lt 10 ] && [ "$turns" -lt 60 ]; do
        turns=$((turns + 1))
        set -- --set "train.out=$out" "${save[@]}"
        ! begun "$out" || set -- "$@" --resume
        "$binary" train "$golden/run.yaml" "$@" >"$tmp/out" 2>"$tmp/err" &
        pid=$!
        if [ $((kills % 2)) -eq 0 ]; then
            number 10 250
            sleep "0.$(printf %03d "$picked")"
            kill -KILL "$pid" 2>/dev/null
        else
            while kill -0 "$pid" 2>/dev/null; do
                set -- "$out"/checkpoints/.step-*.tmp
                [ -e "$1" ] && kill -KILL "$pid" 2>/dev/null && aimed=$((aimed + 1)) && break
            done
        fi
        if died "$pid"; then kills=$((kills + 1)); else rm -rf "$out"; fi
    done
    [ "$kills" -eq 10 ] || { echo "only $kills kills in $turns turns"; cat "$tmp/err"; return 1; }
    expect 0 '' continue_run "$out" "${save[@]}" && whole "$out" || return 1
    echo "ten kills, $aimed while a checkpoint was written"
}
check 'killed ten times at random moments: same bytes' ten_kills

# --- from inside ----------------------------------------------------------------------------------

# at_call ACTION N STATUS: the fault, then the run continues without it.
at_call() {
    local out=$tmp/call
    rm -rf "$out"
    if ! expect "$3" '' fault "$1:$2" "$out" train "$out" "${save[@]}" >"$tmp/why"; then
        echo "at call $2:"
        cat "$tmp/why"
        return 1
    fi
    expect 0 '' fault count "$out" continue_run "$out" "${save[@]}" >"$tmp/why" && whole "$out" >>"$tmp/why" && return 0
    echo "resumed after call $2:"
    cat "$tmp/why" "$tmp/err"
    return 1
}
# Each of the first calls, which make the folder; each of the last calls, which publish the model;
# and a sample of the calls between, which write checkpoints.
calls_killed() {
    needs_preload || return
    local steps=4 calm=$tmp/counted total n=1 tried=0
    local save=(--set "train.steps=$steps" --set train.save_every=1)
    expect 0 '' fault count "$calm" train "$calm" "${save[@]}" || return 1
    total=$(cat "$tmp/fault.log")
    while [ "$n" -le "$total" ]; do
        at_call kill "$n" 137 || return 1
        tried=$((tried + 1))
        number 2 5
        if [ "$n" -lt 24 ] || [ "$n" -ge $((total - 24)) ]; then picked=1; fi
        if [ "$n" -gt 300 ] && [ $((n + 40)) -lt $((total - 24)) ]; then picked=$((picked * 3)); fi
        n=$((n + picked))
    done
    echo "$tried of $total calls that change files"
}
check 'killed before a call that changes files: same bytes' calls_killed

# The resumed process is killed too, while it removes what the first one left.
twice_killed() {
    needs_preload || return
    local out=$tmp/twice n
    for n in 1 2 3 4 5 6 7 8 9; do
        rm -rf "$out"
        expect 137 '' fault kill:100 "$out" train "$out" "${save[@]}" || return 1
        expect 137 '' fault "kill:$n" "$out" continue_run "$out" "${save[@]}" || return 1
        expect 0 '' continue_run "$out" "${save[@]}" && whole "$out" || { echo "the resume was killed at call $n"; return 1; }
    done
}
check 'killed again during the resume: same bytes' twice_killed

# --- signals ------------------------------------------------------------------------------------

# paused OUT N ARGUMENT...: starts a run that stops itself at its N-th change of metrics.jsonl, and
# waits for that. The first change opens the file, so N - 1 steps are done.
paused() {
    local out=$1 n=$2
    shift 2
    FAULT=stop:$n FAULT_PATH=$out/metrics.jsonl LD_PRELOAD=$tools/fault.so \
        "$binary" train "$golden/run.yaml" --set "train.out=$out" "$@" >"$tmp/paused.out" 2>"$tmp/paused.err" &
    pid=$!
    stopped="$stopped $pid"
    while kill -0 "$pid" 2>/dev/null; do
        case $(ps -o stat= -p "$pid" 2>/dev/null || cut -d' ' -f3 "/proc/$pid/stat") in T*) return 0 ;; esac
        sleep 0.02
    done
    echo 'the run ended before it could be stopped'
    cat "$tmp/paused.err"
    return 1
}

stopped_by() {
    needs_preload || return
    local signal=$1 out=$tmp/$1 rc=0 at
    paused "$out" 6 --set "train.steps=$steps" || return 1
    kill "-$signal" "$pid"
    kill -CONT "$pid"
    wait "$pid" || rc=$?
    [ "$rc" -eq 1 ] || { echo "status $rc, expected 1"; cat "$tmp/paused.err"; return 1; }
    grep -q "SIG$signal.*--resume" "$tmp/paused.err" || { echo "no SIG$signal and --resume in:"; cat "$tmp/paused.err"; return 1; }
    # Another thread may receive the signal; the training thread may then run one more step before
    # it sees the flag.
    at=$(sed -n "s/.*SIG$signal after step \([56]\) of.*/\1/p" "$tmp/paused.err")
    [ -n "$at" ] && [ -f "$out/checkpoints/step-$at/DONE" ] && [ ! -e "$out/model" ] && steps_once "$out" "$at" && no_debris "$out" ||
        { cat "$tmp/paused.err"; find "$out"; cat "$out/metrics.jsonl"; return 1; }
    expect 0 "after step $at" train "$out" --set "train.steps=$steps" --resume && whole "$out" || return 1
    tail -n 1 "$tmp/paused.err"
}
check 'SIGTERM: saves, reports how to resume, same bytes' stopped_by TERM
check 'SIGINT: saves, reports how to resume, same bytes' stopped_by INT
check 'SIGHUP: saves, reports how to resume, same bytes' stopped_by HUP
check 'SIGUSR1: saves, reports how to resume, same bytes' stopped_by USR1
check 'SIGUSR2: saves, reports how to resume, same bytes' stopped_by USR2
check 'SIGXCPU: saves, reports how to resume, same bytes' stopped_by XCPU
# A closed terminal may send SIGHUP twice, and the kernel sends SIGXCPU every second.
repeated() {
    needs_preload || return
    local out=$tmp/repeated rc=0
    paused "$out" 6 --set "train.steps=$steps" || return 1
    kill -HUP "$pid" && kill -CONT "$pid" && kill -XCPU "$pid"
    kill -HUP "$pid" 2>/dev/null
    wait "$pid" || rc=$?
    [ "$rc" -eq 1 ] && grep 'stopped by SIG.*--resume' "$tmp/paused.err" || { echo "status $rc, expected 1"; cat "$tmp/paused.err"; return 1; }
}
check 'SIGHUP twice, and SIGXCPU: saves all the same' repeated
under_nohup() {
    needs_preload || return
    local out=$tmp/nohup rc=0
    trap '' HUP
    paused "$out" 6 --set "train.steps=$steps" || { trap 'exit 1' HUP; return 1; }
    trap 'exit 1' HUP
    kill -HUP "$pid" && kill -CONT "$pid"
    wait "$pid" || rc=$?
    [ "$rc" -eq 0 ] && whole "$out" || { echo "status $rc, expected 0"; cat "$tmp/paused.err"; return 1; }
}
check 'SIGHUP under nohup is ignored' under_nohup

# A signal that arrives while weights are loaded: there is no step to finish.
stopped_early() {
    needs_preload || return
    local out=$tmp/early rc=0
    FAULT=stop:2 FAULT_PATH=$out LD_PRELOAD=$tools/fault.so \
        "$binary" train "$golden/run.yaml" --set "train.out=$out" --set "train.steps=$steps" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    stopped="$stopped $pid"
    while kill -0 "$pid" && ! grep -q '^State:.T' "/proc/$pid/status"; do sleep 0.02; done
    kill -TERM "$pid"
    kill -CONT "$pid"
    wait "$pid" || rc=$?
    [ "$rc" -eq 1 ] || { echo "status $rc, expected 1"; cat "$tmp/err"; return 1; }
    cp "$tmp/err" "$tmp/first"
    expect 0 '' continue_run "$out" --set "train.steps=$steps" && whole "$out" && tail -n 1 "$tmp/first"
}
check 'SIGTERM before the first step: resumed' stopped_early

# --- one run at a time --------------------------------------------------------------------------

locked() {
    needs_preload || return
    local out=$tmp/locked
    paused "$out" 4 "${save[@]}" || return 1
    expect 1 "process $pid" train "$out" "${save[@]}" || return 1
    expect 1 "process $pid" train "$out" "${save[@]}" --resume || return 1
    kill -CONT "$pid"
    wait "$pid" || { echo 'the first run failed'; cat "$tmp/paused.err"; return 1; }
    whole "$out" && grep "process $pid" "$tmp/err"
}
check 'a second run on a folder in use: refused, harmless' locked

# --- --resume -----------------------------------------------------------------------------------

# resumable: a fresh $tmp/half, stopped after step 6 by a kill.
resumable() {
    rm -rf "$tmp/half"
    if sanitized; then
        expect 0 '' train "$tmp/half" --set train.steps=6 --set train.save_every=2
    else
        expect 137 '' fault kill:7 "$tmp/half/metrics.jsonl" train "$tmp/half" --set "train.steps=$steps" --set train.save_every=2
    fi
}
not_empty() { resumable && expect 2 '--resume' train "$tmp/half" --set "train.steps=$steps"; }
check 'a folder with a run, without --resume: refused' not_empty
not_ours() { mkdir "$tmp/other" && echo x >"$tmp/other/thesis.txt" && expect 2 'not empty' train "$tmp/other" && [ "$(ls -A "$tmp/other")" = thesis.txt ]; }
check 'a folder with other files: refused, untouched' not_ours
nothing() {
    expect 2 '/none:.*--resume out' train "$tmp/none" --resume && [ ! -e "$tmp/none" ] || return 1
    expect 2 'no run to resume in .*/other: it has no config.yaml; leave --resume out' train "$tmp/other" --resume && [ "$(ls -A "$tmp/other")" = thesis.txt ]
}
check 'nothing to resume: refused, nothing made' nothing
changed() { resumable && expect 2 'train.learning_rate differs from the run in .*: it is 0.5, there 0.02; restore it' train "$tmp/half" --set "train.steps=$steps" --set train.learning_rate=0.5 --resume; }
check '--resume with another learning rate: refused, with both' changed
# The newest state is truncated: the message names the older checkpoint, and the run resumes from
# it.
damaged() {
    local out=$tmp/half more=(--set "train.steps=$steps" --set train.save_every=2 --set train.keep=2)
    rm -rf "$out"
    expect 0 '' train "$out" "${more[@]}" --set train.steps=6 || return 1
    truncate -s 1000 "$out/checkpoints/step-6/state.safetensors" && expect 2 'step-4 is intact: remove .*/step-6, and --resume continues after step 4' train "$out" "${more[@]}" --resume || return 1
    rm -r "$out/checkpoints/step-6" && expect 0 'resuming after step 4' train "$out" "${more[@]}" --resume && whole "$out" || return 1
    rm -r "$out/checkpoints/step-10" && truncate -s 1000 "$out/checkpoints/step-12/state.safetensors" || return 1
    expect 2 'checkpoint .*/step-12' train "$out" "${more[@]}" --resume && ! grep 'intact' "$tmp/err"
}
check 'a damaged checkpoint: the older one is named' damaged

replanned() {
    needs_preload || return
    resumable && expect 0 "$1 changed.*plan" train "$tmp/half" --set "train.steps=$steps" --set train.save_every=2 --set "$1=$2" --resume &&
        whole "$tmp/half" && grep "$1 changed" "$tmp/err"
}
check '--resume with recompute: planned again, same bytes' replanned memory.recompute all
check '--resume with offload: planned again, same bytes' replanned memory.offload optimizer
check '--resume with one thread: planned again, same bytes' replanned device.threads 1

finished() {
    expect 0 '' train "$tmp/calm" "${save[@]}" --resume && grep -q '^no steps are left: all 12 are done already' "$tmp/out" && ! grep -q 'nan' "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 0 '' train "$tmp/calm" "${save[@]}" --resume --json && [ "$(json "$tmp/out" loss)" = null ] && [ "$(json "$tmp/out" first_step)" = 12 ] && whole "$tmp/calm"
}
check '--resume of a finished run: nothing changes' finished
plan_kept() {
    needs_preload || return
    resumable && cp "$tmp/half/plan.json" "$tmp/before.json" && expect 0 '' train "$tmp/half" --set "train.steps=$steps" --set train.save_every=2 --resume &&
        same "$tmp/before.json" "$tmp/half/plan.json" && ! grep -q 'plan' "$tmp/err"
}
check '--resume follows the stored plan' plan_kept

summary
