#!/bin/bash
# run_limit.sh: a run needs its arena and at most CONSTANT more: code, libraries, the stacks of 2
# threads, the JPEG library's pools. Each further thread adds a stack, which RLIMIT_DATA counts in
# full. Three tests: the peak of resident memory, RLIMIT_DATA, and a memory cgroup where this
# machine allows one. The device is the CPU by name: `auto` loads the CUDA libraries where they
# exist, and those take some 150 MiB.
#
#   bash tests/run_limit.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

CONSTANT=$((48 << 20))
# RLIMIT_DATA counts the stack of a thread that has ended until the kernel has removed it, while its
# successor may have one already, and on a busy machine several do. Stacks of 2 MiB: room for four
# such threads.
STACK=$((2 << 20)) ENDED=4
export OMP_NUM_THREADS=2
"$binary" data make "$tmp/shards" --images 12 --size 160x120 --masks 4 --seed 3 >/dev/null 2>&1
printf 'device: cpu\nmodel: {preset: sam-tiny}\ndata: {format: sa1b, train: %s/shards/*.tar, max_masks: 4, threads: 2}\ntrain: {steps: 3, effective_batch: 8}\n' "$tmp" >"$tmp/masks.yaml"
head -c 100000 /dev/urandom >"$tmp/words.bin"
printf 'device: cpu\nmodel: {preset: llama-tiny}\ndata: {train: %s/words.bin, token_dtype: uint8, sequence: 512}\ntrain: {steps: 3, effective_batch: 16}\n' "$tmp" >"$tmp/words.yaml"

train() { "$binary" train "$tmp/$1.yaml" --set "train.out=$tmp/run-$((runs += 1))" --json "${@:2}"; }
runs=0
arena_of() { "$binary" plan "$tmp/$1.yaml" --json "${@:2}" >"$tmp/plan.json" 2>/dev/null; json "$tmp/plan.json" arena_bytes; }
smallest_of() { "$binary" plan "$tmp/$1.yaml" --json --memory 1 >"$tmp/plan.json" 2>/dev/null; json "$tmp/plan.json" smallest_budget_bytes; }

# Offload is off: the offload file's pages may be dropped by the kernel, so they do not belong in
# this sum.
resident() {
    local arena peak
    arena=$(arena_of "$1" --set memory.offload=none)
    train "$1" --set memory.offload=none --set train.monitor_every=1 >/dev/null 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    peak=$(tail -n 1 "$tmp/run-$runs/metrics.jsonl" | grep -o '"host_resident_peak":[0-9]*' | cut -d: -f2)
    [ "$peak" -le $((arena + CONSTANT)) ] && [ "$peak" -ge "$arena" ] || { echo "resident $peak, arena $arena"; return 1; }
    echo "resident $peak = arena $arena + $((peak - arena))"
}
check 'words: the peak of resident memory' resident words
check 'masks: the peak of resident memory' resident masks

limited() {
    local budget=$2
    [ "$budget" = smallest ] && budget=$(smallest_of "$1")
    [ "$budget" = full ] && budget=$(arena_of "$1")
    local status=0
    (ulimit -s $((STACK >> 10)) && ulimit -d $(((budget + CONSTANT + ENDED * STACK) >> 10)) && train "$1" --memory "$budget" >/dev/null 2>"$tmp/err") || status=1
    runs=$((runs + 1)) # train counted in a subshell
    [ "$status" -eq 0 ] || { cat "$tmp/err"; return 1; }
    echo "$budget + $CONSTANT bytes of data, and $ENDED stacks"
}
for kind in words masks; do
    check "$kind: RLIMIT_DATA, the full need" limited $kind full
    check "$kind: RLIMIT_DATA, the smallest budget" limited $kind smallest
done

# A plan that this machine cannot hold is refused before memory is taken or a run folder is left.
refused() {
    expect 1 'the plan takes [0-9.]+ [TP]iB of memory; this machine has [0-9.]+ [GT]iB, of which [0-9.]+ .iB are free; set memory.budget: auto' \
        train words --set device=cpu --set train.effective_batch=1000000 --set memory.micro_batch=1000000 --set memory.recompute=none --set memory.head_chunks=1 --set memory.offload=none || return 1
    [ ! -e "$tmp/run-$runs" ] && tail -n 1 "$tmp/err"
}
check 'a plan larger than this machine is refused' refused

# A memory cgroup, version 1 or 2.
group() {
    local budget dir limit
    budget=$(smallest_of "$1")
    if [ -f /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then
        dir=/sys/fs/cgroup/memory/plimsoll-$$ limit=memory.limit_in_bytes
    else
        dir=/sys/fs/cgroup/plimsoll-$$ limit=memory.max
    fi
    mkdir "$dir" 2>/dev/null || { echo 'this user cannot create a cgroup'; return 77; }
    if ! echo $((budget + CONSTANT)) 2>/dev/null >"$dir/$limit"; then
        rmdir "$dir"
        echo 'no memory controller here'
        return 77
    fi
    local rc=0
    (echo "$BASHPID" >"$dir/cgroup.procs" && train "$1" --memory "$budget" >/dev/null 2>"$tmp/err") || rc=$?
    runs=$((runs + 1))
    rmdir "$dir" 2>/dev/null
    [ $rc = 0 ] || { cat "$tmp/err"; return 1; }
    echo "$budget + $CONSTANT bytes in a cgroup"
}
check 'words: a cgroup, the smallest budget' group words
check 'masks: a cgroup, the smallest budget' group masks
summary
