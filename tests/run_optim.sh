#!/bin/bash
# shellcheck disable=SC2015
# run_optim.sh: optimizer state in 32, 16 and 8 bits, and the fused step, in whole runs.
#
#   bash tests/run_optim.sh       from the repository's root, after make; see run_lib.sh
#
# Bit-equal: the fused step on and off for a language model, SAM and TinySAM; threads, and a kill
# and resume with 8-bit state; NaN in every dead byte. Losses with 8-bit state stay within the noise
# of random seeds.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault
sanitized || export LD_PRELOAD=$tools/fault.so

arena() { json "$1/plan.json" arena_bytes; }
"$binary" data make "$tmp/set" --images 48 --shards 2 --size 96x80 --masks 5 >/dev/null || exit 2
cat >"$tmp/sam.yaml" <<YAML
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/set/*.tar", max_masks: 2, image_size: 64}
train: {steps: 5, effective_batch: 1, learning_rate: 0.001, out: "$tmp/unused"}
memory: {micro_batch: 1, precision: f32, recompute: none, offload: none, head_chunks: 1}
device: $DEVICE
YAML

# run FILE OUT [ARGUMENT...]
run() {
    local file=$1 out=$2
    shift 2
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$file" --set "train.out=$tmp/$out" --set train.steps=5 $FLAGS "$@"
}

# --- the fused step -----------------------------------------------------------------------------

# fused NAME FILE [ARGUMENT...]: the same bytes and gradient norms, in a smaller arena.
fused() {
    local name=$1 file=$2
    shift 2
    run "$file" "$name-off" "$@" --set memory.fused_step=off && run "$file" "$name-on" "$@" --set memory.fused_step=on || return 1
    same_run "$tmp/$name-off" "$tmp/$name-on" 5 || return 1
    norms "$name-off" >"$tmp/off" && norms "$name-on" >"$tmp/on" && same "$tmp/off" "$tmp/on" || return 1
    [ "$(arena "$tmp/$name-on")" -lt "$(arena "$tmp/$name-off")" ] ||
        { echo "$(arena "$tmp/$name-off") -> $(arena "$tmp/$name-on") bytes"; return 1; }
    echo "$(arena "$tmp/$name-off") -> $(arena "$tmp/$name-on") bytes"
}
norms() { sed 's/.*"loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2/' "$tmp/$1/metrics.jsonl"; }
small=(--set data.sequence=8 --set train.effective_batch=1 --set memory.micro_batch=1 --set memory.recompute=none --set memory.offload=none)
check 'fused step, llama-tiny: same bytes, smaller arena' fused llama "$tmp/tiny.yaml" "${small[@]}"
check 'fused step, sam-tiny: same bytes, smaller arena' fused sam "$tmp/sam.yaml"
check 'fused step, tinysam-tiny: same bytes, smaller arena' fused tinysam "$tmp/sam.yaml" --set model.preset=tinysam-tiny
check 'fused step, 8-bit, bf16, recomputed: same bytes' fused mixed "$tmp/tiny.yaml" "${small[@]}" --set memory.optimizer=adamw-8bit --set memory.precision=bf16 --set memory.recompute=all
check 'fused step, adafactor, LM head in chunks: same bytes' fused factor "$tmp/tiny.yaml" "${small[@]}" --set memory.optimizer=adafactor --set memory.head_chunks=4
check 'fused step, offloaded state: same bytes' fused offload "$tmp/tiny.yaml" "${small[@]}" --set memory.offload=optimizer

clipped() { expect 2 'fused_step.*clip_norm' "$binary" plan "$tmp/tiny.yaml" --set memory.fused_step=on --set train.clip_norm=1; }
check 'fused step with clipping: refused, with the reason' clipped
several() { expect 2 'fused_step.*micro_batch 2' "$binary" plan "$tmp/tiny.yaml" --set memory.fused_step=on --set memory.micro_batch=2; }
check 'fused step over several micro-batches: refused' several

# A budget between the two arenas: the search selects the fused step; with clipping no plan fits.
chosen() {
    local budget=$(($(arena "$tmp/llama-off") - 1))
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" "${small[@]}" --set memory.head_chunks=1 --memory "$budget" -o "$tmp/chosen.json" || return 1
    grep -q '"fused_step": true' "$tmp/chosen.json" || { echo 'the plan is not fused'; return 1; }
    expect 3 'does not fit' "$binary" plan "$tmp/tiny.yaml" "${small[@]}" --set memory.head_chunks=1 --memory "$budget" --set train.clip_norm=1
}
check 'the search fuses under a budget, and not with clipping' chosen

# --- state --------------------------------------------------------------------------------------

# poison COMMAND...: with NaN in dead bytes on the CPU device, the only one with this diagnostic; on
# others a plain second run.
poison() { ( [ "$DEVICE" != cpu ] || export PLIMSOLL_POISON=1; "$@" ); }
poisoned() {
    for o in adamw-bf16 adamw-8bit sgd adafactor; do
        run "$tmp/tiny.yaml" "plain-$o" --set memory.optimizer=$o && poison run "$tmp/tiny.yaml" "poison-$o" --set memory.optimizer=$o || return 1
        same_run "$tmp/plain-$o" "$tmp/poison-$o" 5 || return 1
    done
    poison run "$tmp/tiny.yaml" poison-fused "${small[@]}" --set memory.head_chunks=1 --set memory.fused_step=on && same_run "$tmp/llama-on" "$tmp/poison-fused" 5
}
check 'a second run, with NaN in dead bytes: same bytes' poisoned

threads() {
    needs_cpu device.threads || return
    for n in 1 3; do
        run "$tmp/tiny.yaml" "threads$n" --set memory.optimizer=adamw-8bit --set device.threads=$n && same_run "$tmp/plain-adamw-8bit" "$tmp/threads$n" 5 || return 1
    done
    for n in 1 3; do
        run "$tmp/tiny.yaml" "factor$n" --set memory.optimizer=adafactor --set device.threads=$n && same_run "$tmp/plain-adafactor" "$tmp/factor$n" 5 || return 1
    done
}
check '8-bit state and adafactor on 1, 2 and 3 threads: same bytes' threads

resumed() {
    needs_preload || return
    FAULT=kill:7 FAULT_PATH=$tmp/cut/metrics.jsonl expect 137 '' "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/cut" --set train.steps=5 --set train.save_every=2 --set memory.optimizer=adamw-8bit || return 1
    expect 0 'resuming after step [24]' "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/cut" --set train.steps=5 --set train.save_every=2 --set memory.optimizer=adamw-8bit --resume || return 1
    same_run "$tmp/plain-adamw-8bit" "$tmp/cut" 5
}
check '8-bit state, killed and resumed: same bytes' resumed

allowed() {
    local wide narrow
    wide=$("$binary" plan "$tmp/tiny.yaml" "${small[@]}" --set memory.fused_step=off --json 2>/dev/null | sed -n 's/.*"smallest_budget": *\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$wide" ] || wide=$(arena "$tmp/llama-off")
    narrow=$((wide - 2000000))
    expect 3 '' "$binary" plan "$tmp/tiny.yaml" "${small[@]}" --set memory.fused_step=off --memory $narrow || return 1
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" "${small[@]}" --set memory.fused_step=off --memory $narrow --set 'memory.allow=[adamw-8bit]' -o "$tmp/allowed.json" || return 1
    grep -q '"optimizer": "adamw-8bit"' "$tmp/allowed.json" || { grep '"optimizer": "' "$tmp/allowed.json"; return 1; }
    echo "in $narrow bytes only where it is allowed"
}
check 'memory.allow: 8-bit state only when it is listed' allowed

# The demo's recipe, shortened: the mean loss of the last fifth, compared with two random seeds in
# 32 bits.
tail_loss() { awk -F'[:,]' '!/eval/ { x[++n] = $4 } END { for (i = n - 19; i <= n; i++) s += x[i]; print s / 20 }' "$tmp/$1/metrics.jsonl"; }
curve() {
    local out=$1
    shift
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/$out" --set train.steps=100 --set train.effective_batch=4 --set memory.micro_batch=4 \
        --set train.learning_rate=2e-3 --set train.schedule=cosine --set train.warmup_steps=10 --set train.clip_norm=1 $FLAGS "$@"
}
curves() {
    curve c32 && curve c32b --set train.seed=1 && curve c8 --set memory.optimizer=adamw-8bit && curve c16 --set memory.optimizer=adamw-bf16 || return 1
    awk -v a="$(tail_loss c32)" -v b="$(tail_loss c32b)" -v c="$(tail_loss c8)" -v d="$(tail_loss c16)" 'BEGIN {
        noise = (a > b ? a - b : b - a) + 0.05 * a
        print "32-bit " a ", another seed " b ", 8-bit " c ", bf16 " d
        exit !((c > a ? c - a : a - c) <= noise && (d > a ? d - a : a - d) <= noise) }'
}
check 'losses of 8-bit and bf16 state within the noise of seeds' curves

# A huge learning rate makes weights that are not finite; the next step reports them with 8-bit
# state too.
broken() {
    expect 1 'step [0-9]+: the (loss|gradient norm) is' "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/broken" --set train.learning_rate=1e30 --set memory.optimizer=adamw-8bit || return 1
    expect 1 'step [0-9]+: the (loss|gradient norm) is' "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/broken2" --set train.learning_rate=1e30 --set memory.optimizer=adamw-8bit --set memory.fused_step=on
}
check 'a loss or gradient that is not finite stops the run' broken
summary
