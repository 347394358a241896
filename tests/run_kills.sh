#!/bin/bash
# shellcheck disable=SC2015
# run_kills.sh: random kills over six kinds of runs, after which the whole folder is that of an
# undisturbed run; and kills of `data make`.
#
#   bash tests/run_kills.sh       from the repository's root, after make; see run_lib.sh
#   KILLS=6                       kills over all kinds of runs; KILLS=1000 takes about an hour
#   SEED=1                        random seed of the moments; printed
#
# A kill strikes before a random call that changes a file of the run (fault.c), or at a random time.
# The run resumes, and may be killed again, until it ends. Only times, speeds, memory of the process
# and the name of the folder may differ in its files. A resumed run begins a new event file of
# TensorBoard: the scalars of all files are counted.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault
KILLS=${KILLS:-6}
echo "seed $SEED"

"$binary" data make "$tmp/set" --images 8 --shards 1 --size 64x48 --masks 2 >/dev/null || exit 2
"$binary" data pack "$tmp/set" -o "$tmp/set.pack" --size 64 --masks-size 32 >/dev/null || exit 2
common=(--set "device.kind=$DEVICE" --set device.threads=1 --set train.steps=4 --set train.save_every=2 --set train.eval_every=1 --set train.keep=2)
masks=(--set data.max_masks=2 --set data.image_size=64 --set data.threads=1 --set data.holdout=0.25 --set train.effective_batch=2 --set memory.micro_batch=2 --set train.worst=2)
cat >"$tmp/masks.yaml" <<YAML
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/set/sa_*.tar"}
train: {learning_rate: 0.001, steps: 4, effective_batch: 2, out: "$tmp/unused"}
memory: {precision: f32}
YAML
# kind NAME OUT [ARGUMENT...]: starts a run of that kind; `exec`, so that the shell's child is the
# run.
kind() {
    local name=$1 out=$2
    shift 2
    case $name in
        tokens) set -- "$golden/run.yaml" --set "data.validation=$golden/tokens.bin" "$@" ;;
        f16) set -- "$golden/run.yaml" --set memory.precision=f16 --set "data.validation=$golden/tokens.bin" "$@" ;;
        offload) set -- "$tmp/tiny.yaml" --set memory.offload=optimizer+masters+weights+activations --set memory.recompute=none --set memory.head_chunks=1 --set data.sequence=16 --set data.validation=tests/run_lib.sh "$@" ;;
        shards) set -- "$tmp/masks.yaml" "${masks[@]}" "$@" ;;
        packed) set -- "$tmp/masks.yaml" "${masks[@]}" --set data.format=packed --set "data.train=$tmp/set.pack" "$@" ;;
        statistics) set -- "$tmp/masks.yaml" --set model.preset=tinysam-tiny "${masks[@]}" --set model.bn_group=2 "$@" ;;
    esac
    exec "$binary" train "$@" "${common[@]}" --set "train.out=$out"
}
kinds=(tokens f16 offload shards packed statistics)

# contents RUN: each file with what may not differ.
contents() {
    (cd "$1" && find . -type f ! -name .lock ! -path './tb/*' | sort) | while read -r f; do
        case $f in
            ./metrics.jsonl) sum=$(sed -E 's/"(seconds|[a-z]*_per_second|memory_[a-z]*|host_[a-z_]*)":[^,}]*//g' "$1/$f" | cksum) ;;
            ./config.yaml) sum=$(grep -v '^  out:' "$1/$f" | cksum) ;;
            ./report.html) sum=$(grep -oE '<(h2>[^<]*|figure|polyline)' "$1/$f" | sort | uniq -c | cksum) ;; # axes depend on speeds
            *) sum=$(cksum <"$1/$f") ;;
        esac
        echo "$f $sum"
    done
    echo "scalars in tb $(cat "$1"/tb/* | grep -aoE 'eval_[a-z]+|grad_norm' | sort | uniq -c | tr -s ' \n' ' ')"
}
# disturbed KIND KILLS: a run that is killed KILLS times, if it lasts so long; adds to `killed`.
disturbed() {
    local name=$1 most=$2 out=$tmp/out.$1/run calls n=0 rc more pid
    calls=$(cat "$tmp/$name.calls")
    rm -rf "$out"
    while :; do
        more=()
        ! begun "$out" || more=(--resume)
        rc=0
        if [ "$n" -ge "$most" ]; then
            (kind "$name" "$out" "${more[@]}") >"$tmp/out" 2>"$tmp/err" || rc=$?
        elif number 0 3 && [ "$picked" -gt 0 ]; then
            number 1 "$calls"
            (FAULT=kill:$picked FAULT_PATH=$out LD_PRELOAD=$tools/fault.so kind "$name" "$out" "${more[@]}") >"$tmp/out" 2>"$tmp/err" || rc=$?
        else
            (kind "$name" "$out" "${more[@]}") >"$tmp/out" 2>"$tmp/err" &
            pid=$!
            number 10 400
            sleep "0.$(printf %03d "$picked")"
            kill -KILL $pid 2>/dev/null
            wait $pid 2>/dev/null || rc=$?
        fi
        if [ "$rc" -eq 137 ]; then n=$((n + 1)); continue; fi
        [ "$rc" -eq 0 ] || { echo "$name, after $n kills: status $rc"; cat "$tmp/err"; return 1; }
        break
    done
    killed=$((killed + n))
    contents "$out" >"$tmp/found"
    diff "$tmp/$name.contents" "$tmp/found" && no_debris "$out" || { echo "$name: the folder differs after $n kills (seed $SEED)"; return 1; }
}
killed=0
# kind_killed KIND KILLS: in runs that are killed up to 5 times each.
kind_killed() {
    needs_preload || return
    local name=$1 until=$2 out=$tmp/calm.$1/run
    killed=0
    (FAULT=count FAULT_PATH=$out FAULT_LOG=$tmp/$name.calls LD_PRELOAD=$tools/fault.so kind "$name" "$out") >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    contents "$out" >"$tmp/$name.contents"
    while [ "$killed" -lt "$until" ]; do
        number 1 5
        disturbed "$name" "$((picked < until - killed ? picked : until - killed))" || return 1
    done
    echo "$killed kills, $(wc -l <"$tmp/$name.contents") files"
}
for name in "${kinds[@]}"; do check "$name: killed and resumed, the whole folder" kind_killed "$name" $(((KILLS + 5) / 6)); done

# Killed after the last checkpoint: the worst masks, the model and the report are still made.
at_the_end() {
    needs_preload || return
    local out=$tmp/out.end/run calls n
    [ -f "$tmp/shards.calls" ] || return 77
    calls=$(cat "$tmp/shards.calls")
    for n in 2 9; do
        rm -rf "$out"
        (FAULT=kill:$((calls - n)) FAULT_PATH=$out LD_PRELOAD=$tools/fault.so kind shards "$out") >"$tmp/out" 2>"$tmp/err"
        [ ! -e "$out/report.html" ] || { echo 'the kill came too late'; return 1; }
        expect 0 '' bash -c "$(declare -p common masks binary golden tmp); $(declare -f kind); kind shards '$out' --resume" && contents "$out" >"$tmp/found" && diff "$tmp/shards.contents" "$tmp/found" || return 1
    done
}
check 'killed at the end: worst masks, model and report' at_the_end
# A signal before the first step: the evaluation of step 0 is there once.
before_first() {
    needs_preload || return
    local out=$tmp/out.first/run pid
    [ -f "$tmp/shards.contents" ] || return 77
    (FAULT=stop:2 FAULT_PATH=$out/metrics LD_PRELOAD=$tools/fault.so kind shards "$out") >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    stopped=$pid
    for _ in $(seq 300); do
        grep -q '^State:.T' "/proc/$pid/status" 2>/dev/null && break
        sleep 0.05
    done
    kill -TERM $pid && kill -CONT $pid
    wait $pid
    stopped=
    [ -f "$out/checkpoints/step-0/DONE" ] || { echo 'not before the first step'; cat "$tmp/err"; return 1; }
    (kind shards "$out" --resume) >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    contents "$out" >"$tmp/found" && diff "$tmp/shards.contents" "$tmp/found"
}
check 'a signal before the first step: the whole folder' before_first

# data make: killed at each of some calls; the same command continues. With other options it is
# refused.
make_killed() {
    needs_preload || return
    local more=("$@") n calls tried=0
    rm -rf "$tmp/made" "$tmp/cut"
    FAULT=count FAULT_PATH=$tmp/made FAULT_LOG=$tmp/make.calls LD_PRELOAD=$tools/fault.so "$binary" data make "$tmp/made" --images 6 --shards 3 --size 48x32 --masks 1 "${more[@]}" >/dev/null || return 1
    calls=$(cat "$tmp/make.calls")
    for n in 1 3 $((calls / 2)) $((calls - 4)) "$calls"; do
        rm -rf "$tmp/cut"
        FAULT=kill:$n FAULT_PATH=$tmp/cut LD_PRELOAD=$tools/fault.so expect 137 '' "$binary" data make "$tmp/cut" --images 6 --shards 3 --size 48x32 --masks 1 "${more[@]}" || return 1
        if [ -f "$tmp/cut/.make" ]; then expect 2 'holds the beginning of another dataset, .data make. with --images 6 .*: use those options' "$binary" data make "$tmp/cut" --images 7 --shards 3 --size 48x32 --masks 1 "${more[@]}" || return 1; fi
        expect 0 '' "$binary" data make "$tmp/cut" --images 6 --shards 3 --size 48x32 --masks 1 "${more[@]}" && diff -r "$tmp/made" "$tmp/cut" && [ ! -e "$tmp/cut/.make" ] || { echo "killed at call $n"; return 1; }
        tried=$((tried + 1))
    done
    echo "$tried of $calls calls"
}
check 'data make, killed: the same command continues' make_killed
check 'data make --extracted, killed: continues' make_killed --extracted

summary
