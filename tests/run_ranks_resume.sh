#!/bin/bash
# shellcheck disable=SC2015
# run_ranks_resume.sh: a run goes on with another number of ranks: 8 -> 4 -> 2 -> 1 -> 3. Shares are
# kept where they can be divided, and then every bit is that of a run that never stopped.
#
#   bash tests/run_ranks_resume.sh    from the repository's root, after make; see run_lib.sh
#   KILLS=1                           how often a run is killed
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh
own=(--set parallel.shard=optimizer --set memory.head_chunks=1 --set memory.micro_batch=1 --set train.clip_norm=1 --set train.keep=9 --set train.save_every=2)

whole() { expect 0 '' train_ranks 8 "$tmp/whole" "${own[@]}" --set train.steps=8; }
check '8 ranks, 8 steps' whole
continued() {
    expect 0 '' train_ranks 8 "$tmp/run" "${own[@]}" --set train.steps=2 --set parallel.shard=weights && expect 0 'resuming after step 2' train_ranks 4 "$tmp/run" "${own[@]}" --set train.steps=4 --resume &&
        expect 0 'resuming after step 4' train_ranks 2 "$tmp/run" "${own[@]}" --set train.steps=6 --resume && expect 0 'resuming after step 6' train_ranks 1 "$tmp/run" "${own[@]}" --set train.steps=8 --resume &&
        grep -q 'the stored plan cannot be used (.*: made for ranks 2, shares of each 4; this run has 1 and 8); planning again, which does not change what is trained' "$tmp/err" &&
        same_run "$tmp/whole" "$tmp/run" 8 && steps_once "$tmp/run" 8 && json "$tmp/run/checkpoints/step-8/state.json" position
}
check '8, 4, 2 and 1 ranks: the same bits' continued
other() {
    expect 0 'cannot be divided among 3 ranks' train_ranks 3 "$tmp/run" "${own[@]}" --set train.steps=10 --resume && steps_once "$tmp/run" 10 &&
        [ "$(json "$tmp/run/checkpoints/step-10/state.json" position)" = 80 ] && echo 'no sample twice, none lost'
}
check '3 ranks: another order of sums, the same samples' other
# Shards of a host's ranks are saved as those of all, and loaded as any.
hosts() {
    local mine=("${own[@]}" --set memory.micro_batch=2) host=(--set parallel.per_host=2 --set parallel.group=host) all=(--set parallel.per_host=2 --set parallel.group=all)
    expect 0 '' train_ranks 4 "$tmp/four" "${mine[@]}" --set train.steps=6 && expect 0 '' train_ranks 4 "$tmp/hosts" "${mine[@]}" --set train.steps=2 "${host[@]}" --set parallel.shard=weights &&
        expect 0 'resuming after step 2' train_ranks 4 "$tmp/hosts" "${mine[@]}" "${host[@]}" --set train.steps=4 --resume &&
        expect 0 'resuming after step 4' train_ranks 4 "$tmp/hosts" "${mine[@]}" "${all[@]}" --set train.steps=5 --set train.save_every=1 --resume &&
        expect 0 'resuming after step 5' train_ranks 4 "$tmp/hosts" "${mine[@]}" --set train.steps=6 --resume && same_run "$tmp/four" "$tmp/hosts" 6 && echo 'the same bits'
}
check '2 hosts of 2 ranks, with a copy on each and one between them, then one host' hosts
killed() {
    rm -rf "$tmp/killed" "$tmp/straight"
    train_ranks 2 "$tmp/killed" "${own[@]}" --set train.steps=400 --set parallel.shares=4 >/dev/null 2>&1 &
    local pid=$! i
    for i in $(seq 100); do [ -f "$tmp/killed/checkpoints/step-4/DONE" ] && break; sleep 0.1; done
    [ "${KILLS:-1}" = 1 ] || sleep "0.$((RANDOM % 10))"
    kill -KILL "$(pgrep -f "train.out=$tmp/killed" | tail -n 1)"
    wait $pid && { echo 'the launcher reported success'; return 1; }
    left_behind "train.out=$tmp/killed" && no_debris_but_lock || return 1
    local step
    step=$(for d in "$tmp"/killed/checkpoints/step-*; do echo "${d##*-}"; done | sort -n | tail -n 1)
    expect 0 "resuming after step $step" train_ranks 2 "$tmp/killed" "${own[@]}" --set "train.steps=$((step + 2))" --resume && expect 0 '' train_ranks 1 "$tmp/straight" "${own[@]}" --set parallel.shares=4 --set "train.steps=$((step + 2))" &&
        same_run "$tmp/killed" "$tmp/straight" $((step + 2)) && echo "killed after step $step"
}
no_debris_but_lock() {
    local d
    for d in "$tmp"/killed/checkpoints/step-*; do [ -f "$d/DONE" ] || { echo "$d has no DONE"; return 1; }; done
}
for ((k = 0; k < ${KILLS:-1}; k++)); do check 'killed: the last checkpoint stands, and the run goes on' killed; done
summary
