#!/bin/bash
# shellcheck disable=SC2015
# run_memory.sh: plan = run, to the byte; and no memory is allocated after the first step.
#
#   bash tests/run_memory.sh      from the repository's root, after make; see run_lib.sh
#
# The program's own numbers are checked against three that it cannot influence: the mapping in
# /proc/PID/maps, the resident anonymous memory, and a count of every malloc and mmap
# (malloc_count.c). Each is read when a line of metrics.jsonl is written.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload malloc_count

# observed NAME ARGUMENT...: a llama-tiny run with malloc_count; writes $tmp/NAME.json, .plan,
# .count and .maps.
observed() {
    local name=$1
    shift
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" "$@" --json || return 1
    cp "$tmp/out" "$tmp/$name.plan"
    if sanitized; then
        expect 0 '' train_tiny "$tmp/$name" "$@" --json || return 1
    else
        MALLOC_COUNT_OUT=$tmp/$name.count MALLOC_COUNT_MAPS=$tmp/$name.maps LD_PRELOAD=$tools/malloc_count.so \
            expect 0 '' train_tiny "$tmp/$name" "$@" --json || return 1
    fi
    cp "$tmp/out" "$tmp/$name.json"
    rm -rf "${tmp:?}/$name"
}

# --- the arena has the planned size -----------------------------------------------------------

plain=(--set memory.recompute=none --set memory.offload=none --set memory.head_chunks=1 --set memory.precision=f32)
recompute=("${plain[@]}" --set memory.recompute=all)
offload=("${plain[@]}" --set memory.offload=optimizer)
bf16=("${plain[@]}" --set memory.precision=bf16 --set memory.micro_batch=3 --set memory.head_chunks=4)

planned() {
    local name=$1
    shift
    observed "$name" --set train.steps=4 "$@" || return 1
    local plan run allocated
    plan=$(json "$tmp/$name.plan" arena_bytes)
    run=$(json "$tmp/$name.json" arena_bytes)
    allocated=$(json "$tmp/$name.json" allocated_bytes)
    [ "$plan $run" = "$run $allocated" ] || { echo "plan $plan, run $run, allocated $allocated"; return 1; }
    [ "$(json "$tmp/$name.plan" arenas.host)" = "$(json "$tmp/$name.json" host_bytes)" ] || { echo 'the offloaded bytes of plan and run differ'; return 1; }
    echo "$plan bytes"
}
check 'plan = run: plain' planned plain "${plain[@]}"
check 'plan = run: recompute' planned recompute "${recompute[@]}"
check 'plan = run: offload' planned offload "${offload[@]}"
check 'plan = run: bf16, micro-batch 3, head chunks 4' planned bf16 "${bf16[@]}"

# mapped NAME: there is one anonymous mapping of exactly the arena's pages, followed by a guard
# without access.
mapped() {
    needs_preload || return
    local page arena
    page=$(getconf PAGESIZE)
    arena=$(json "$tmp/$1.json" arena_bytes)
    while read -r range access _ _ inode _; do
        local size=$((0x${range#*-} - 0x${range%-*}))
        if [ "$access" = ---p ] && [ "${previous#*-}" = "${range%-*}" ] && [ "$previous_inode" = 0 ] &&
            [ "$previous_size" -eq $(((arena + page - 1) / page * page)) ]; then
            echo "$previous_size bytes at $previous, then $size without access"
            return 0
        fi
        local previous=$range previous_size=$size previous_inode=$inode
    done <"$tmp/$1.maps"
    echo "no mapping of $arena bytes, in pages of $page, with a guard behind it:"
    cat "$tmp/$1.maps"
    return 1
}
for name in plain recompute offload bf16; do check "the mapping has the planned size: $name" mapped $name; done

# shrinks NAME: the process is smaller than the plain one by the bytes that the plan predicts.
anonymous() { awk -v line="$2" '$1 == line { print $4 * 1024 }' "$tmp/$1.count"; }
shrinks() {
    needs_preload || return
    local planned seen off
    planned=$(($(json "$tmp/plain.json" arena_bytes) - $(json "$tmp/$1.json" arena_bytes)))
    seen=$(($(anonymous plain 3) - $(anonymous "$1" 3)))
    off=$((seen - planned))
    echo "planned $planned bytes less, the process has $seen less"
    [ "$planned" -gt 0 ] && [ "${off#-}" -le 2097152 ]
}
for name in recompute offload bf16; do check "resident memory shrinks as planned: $name" shrinks $name; done

# --- no allocation after the first step -----------------------------------------------------

# Fifty steps with evaluation in between. A line is written before the save that may follow it.
# Every save allocates small buffers, so saving the best model is off.
steady() { observed steady --set train.steps=50 --set data.sequence=16 --set train.eval_every=20 --set train.keep_best=false --set "data.validation=$golden/tokens.bin" "$@"; }
check 'fifty steps, with evaluation' steady

own_count() {
    local n
    n=$(json "$tmp/steady.json" allocations_in_steps) || return 1
    echo "$n allocations counted by the program"
    [ "$n" -eq 0 ]
}
check 'the program counts no allocation in steps' own_count

# metrics.jsonl has 50 lines of steps and 3 of evaluations.
no_calls() {
    needs_preload || return
    # Debian builds clang's OpenMP library for debugging: it allocates a text in every parallel
    # loop.
    if ldd "$binary" | grep -q libomp; then echo "clang's OpenMP library allocates memory in every loop"; return 77; fi
    awk '$1 == 3 { from = $2 } { to = $2; n = $1 } END { print to - from " calls of malloc, calloc, realloc, mmap from line 3 to " n; exit to != from || n < 50 }' "$tmp/steady.count"
}
check 'no malloc and no mmap between step 3 and step 50' no_calls

no_growth() {
    needs_preload || return
    awk '$1 == 3 { rss = $3; exact = $4 } { n = $1; grew = $3 - rss; off = $4 - exact }
        END { print "RssAnon " rss " KiB at line 3, " grew " more at line " n "; by pages " off " more"; exit off != 0 || grew > 256 || grew < -256 || n < 50 }' "$tmp/steady.count"
}
check 'RssAnon is the same after step 3 and step 50' no_growth

# A save allocates small buffers and frees them; they must not add up.
saving() {
    needs_preload || return
    observed saving --set train.steps=12 --set data.sequence=16 --set train.save_every=2 || return 1
    awk '$1 == 5 { exact = $4 } { n = $1; off = $4 - exact } END { print off " KiB more at step " n " than at step 5"; exit off != 0 || n != 12 }' "$tmp/saving.count"
}
check 'repeated saves do not grow memory' saving

summary
