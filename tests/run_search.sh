#!/bin/bash
# run_search.sh: what the search promises, of the program itself.
#
#   bash tests/run_search.sh      from the repository's root, after make; see run_lib.sh
#
# At the smallest budget it trains; one byte below it is refused, with the instant, what is
# alive there, the smallest budget and a change that would fit. A card that is not here can be
# planned for, and says that nobody measured it.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

smallest_of() {
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" --json || return 1
    smallest=$(json "$tmp/out" smallest_budget_bytes)
    [ "$smallest" -gt 0 ] || { echo "no smallest budget: $smallest"; return 1; }
}

runs_at_smallest() {
    smallest_of || return 1
    expect 0 '' train_tiny "$tmp/least" --memory "$smallest" --set train.steps=1 --json || return 1
    [ "$(json "$tmp/out" arena_bytes)" -le "$smallest" ] || { echo 'the arena is larger than the budget'; return 1; }
    echo "$smallest bytes"
}
check 'the smallest budget trains' runs_at_smallest

refuses_below() {
    smallest_of || return 1
    expect 3 "instant [0-9]+.*that last.*--memory $smallest.*would fit: memory.precision: bf16" "$binary" plan "$tmp/tiny.yaml" --memory $((smallest - 1)) --json || return 1
    grep -q '"fits": false' "$tmp/out" || { echo 'fits is not false'; return 1; }
    [ "$(json "$tmp/out" smallest_budget_bytes)" = "$smallest" ] || { echo 'another smallest budget'; return 1; }
    [ "$(json "$tmp/out" peak.instant)" -ge 0 ] || { echo 'no instant'; return 1; }
    grep -q '"change": "memory.precision: bf16"' "$tmp/out" || { echo 'no change that fits'; return 1; }
}
check 'one byte below it is refused, with what would fit' refuses_below

tells() {
    smallest_of || return 1
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" --memory "$smallest" --json || return 1
    grep -q '"saved_bytes": [1-9]' "$tmp/out" || { echo 'no technique saves anything'; return 1; }
    grep -o '"name": "offload[^"]*"' "$tmp/out"
}
check 'techniques tell what they saved' tells

card() {
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" --set device.kind=cuda --set device.profile=rtx-4090 || return 1
    grep -q 'unmeasured' "$tmp/out" || { echo 'nothing says unmeasured'; return 1; }
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" --set device.kind=cuda --set device.profile=t4 --json || return 1
    grep -q '"prediction": "unmeasured"' "$tmp/out" || { echo 'nothing says unmeasured'; return 1; }
    expect 2 'no profile of a card' "$binary" plan "$tmp/tiny.yaml" --set device.kind=cuda --set device.profile=rtx-1 || return 1
    expect 2 'is a card; set device.kind' "$binary" plan "$tmp/tiny.yaml" --set device.kind=cpu --set device.profile=t4 || return 1
}
check 'a card that is not here' card

summary
