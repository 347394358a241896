#!/bin/bash
# shellcheck disable=SC2015
# run_rows.sh: padded rows and rows of several conversations in `plimsoll step`: what attention_mask
# and position_ids say is what is computed, techniques do not change it, and wrong values are
# refused. The numbers themselves are compared with PyTorch's by golden.sh (padded, packed and their
# relatives).
#
#   bash tests/run_rows.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare forge

# step CASE BATCH OUT ARGUMENT...
step() {
    local model=tests/golden/$1 batch=$2 out=$3
    shift 3
    # shellcheck disable=SC2086
    expect 0 '' "$binary" step --model "$model" --batch "$batch" --out "$out" --set "device.kind=$DEVICE" $FLAGS "$@"
}
# forged IN OUT ARGUMENT...: OUT is IN with one more change, and may be IN.
forged() {
    local in=$1 out=$2
    shift 2
    "$tools/forge" "$in" "$tmp/forged" "$@" && mv "$tmp/forged" "$out"
}

# A mask of ones and positions 0, 1, 2, ... give the bits of a batch without them.
ones() {
    local batch=$tmp/ones i
    cp tests/golden/padded/batch.safetensors "$batch"
    for i in 0 1 2 3 4 28 29 30 31 32 33 34 46 47; do forged "$batch" "$batch" set attention_mask "$i" 1 || return 1; done
    forged "$batch" "$tmp/without" drop attention_mask || return 1
    step padded "$batch" "$tmp/a" && step padded "$tmp/without" "$tmp/b" && same "$tmp/a" "$tmp/b" || return 1
    step padded tests/golden/padded/batch.safetensors "$tmp/b" || return 1
    ! cmp -s "$tmp/a" "$tmp/b" || { echo "padding changes nothing"; return 1; }
}
check 'a mask of ones is no mask' ones
counted() {
    local batch=$tmp/counted i
    cp tests/golden/packed/batch.safetensors "$batch"
    for i in 7 8 9 10 11 12 13 14 15 26 27 28 29 30 31; do forged "$batch" "$batch" set position_ids "$i" $((i % 16)) || return 1; done
    forged "$batch" "$tmp/without" drop position_ids || return 1
    step "$1" "$batch" "$tmp/a" && step "$1" "$tmp/without" "$tmp/b" && same "$tmp/a" "$tmp/b" || return 1
    step "$1" tests/golden/packed/batch.safetensors "$tmp/b" || return 1
    ! cmp -s "$tmp/a" "$tmp/b" || { echo "position_ids change nothing"; return 1; }
}
if [ "$DEVICE" = cpu ]; then # a GPU may have another kernel for ranges
    check 'positions 0, 1, 2, ... are no positions' counted packed
    check 'positions 0, 1, 2, ... are no positions, with a window' counted mistral_packed
fi

# technique CASE ARGUMENT...: the bits of the plain step.
technique() {
    local name=$1
    shift
    step "$name" "tests/golden/$name/batch.safetensors" "$tmp/a" --set memory.recompute=none || return 1
    step "$name" "tests/golden/$name/batch.safetensors" "$tmp/b" "$@" && same "$tmp/a" "$tmp/b"
}
for name in padded mistral_packed; do
    check "$name: gradient checkpointing" technique "$name" --set memory.recompute=all
    check "$name: one thread" technique "$name" --set device.threads=1
done
# The split into micro-batches moves the rows of position_ids and ranges, too.
split() {
    step "$1" "tests/golden/$1/batch.safetensors" "$tmp/b" --set memory.micro_batch=1 && "$tools/compare" "tests/golden/$1/expect.safetensors" "$tmp/b"
}
for name in padded packed; do check "$name: micro-batches of one row" split "$name"; done

# refused PATTERN CASE ARGUMENT...
refused() {
    local pattern=$1 name=$2
    shift 2
    forged "tests/golden/$name/batch.safetensors" "$tmp/batch" "$@" || return 1
    rm -f "$tmp/refused"
    expect 2 "$pattern" "$binary" step --model "tests/golden/$name" --batch "$tmp/batch" --out "$tmp/refused" && [ ! -e "$tmp/refused" ]
}
check 'a mask with a hole' refused 'attention_mask\[3,5\] is 0 between ones; padding must be at the left or the right end' padded set attention_mask 53 0
check 'a mask that is no mask' refused 'attention_mask\[0,9\] is 2, expected 1, or 0 for padding' padded set attention_mask 9 2
check 'a mask of another shape' refused 'attention_mask must be \[B,T\]' padded flatten attention_mask
check 'a negative position' refused 'position_ids\[1,3\] is -1, expected 0 to' packed set position_ids 19 -1
check 'a position beyond 32 bits' refused 'position_ids\[0,2\] is 4294967296' packed set position_ids 2 4294967296
summary
