#!/bin/bash
# shellcheck disable=SC2015
# run_offload.sh: offloading to host memory (on a CPU: to the offload file) changes no bit of the
# result, and the arena shrinks by the planned bytes.
#
#   bash tests/run_offload.sh     after make; MODELS and SECTIONS (bits with around): see run_lib.sh
#
# llama-tiny, sam-tiny and tinysam-tiny run three steps with evaluation: with each flag of
# memory.offload and with all of them, in f32 and bf16, in micro-batches, with recomputation, killed
# and resumed, and with NaN in every dead byte.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault
# fault.so replaces fsync: these runs need not reach the disk.
sanitized || export LD_PRELOAD=$tools/fault.so

"$binary" data make "$tmp/set" --images 24 --shards 2 --size 96x80 --masks 5 >/dev/null || exit 2
for model in sam tinysam; do
    cat >"$tmp/$model.yaml" <<YAML
model: {preset: $model-tiny}
data: {format: sa1b, train: "$tmp/set/*.tar", holdout: 0.2, max_masks: 4, image_size: 48}
train: {steps: 3, effective_batch: 4, learning_rate: 0.001, clip_norm: 1, eval_every: 2, save_every: 2, keep: 9, out: "$tmp/unused"}
memory: {micro_batch: 4, precision: f32, recompute: none, head_chunks: 1, offload: none}
device: {kind: $DEVICE, threads: 1}
YAML
done
head -c 800 tests/golden/make_rle.py >"$tmp/validation.txt" || exit 2
cat >"$tmp/llama.yaml" <<YAML
model: {preset: llama-tiny}
data: {format: bytes, train: "tests/golden/*.py", validation: "$tmp/validation.txt", sequence: 24}
train: {steps: 3, effective_batch: 8, learning_rate: 0.001, clip_norm: 1, eval_every: 2, save_every: 2, keep: 9, out: "$tmp/unused"}
memory: {micro_batch: 8, precision: f32, recompute: none, head_chunks: 1, offload: none}
device: {kind: $DEVICE, threads: 1}
YAML

# train_model MODEL OUT [ARGUMENT...]: three steps; the output of --json goes to $tmp/OUT.json.
train_model() {
    local model=$1 out=$tmp/$2
    shift 2
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/$model.yaml" --set "train.out=$out" $FLAGS "$@" --json && cp "$tmp/out" "$out.json" || return 1
    [ "$(json "$out.json" allocations_in_steps)" -eq 0 ] || { echo "$(json "$out.json" allocations_in_steps) allocations in steps"; return 1; }
}
# losses RUN: the losses, gradient norms and scores of its metrics, without times.
losses() { grep -oE '"(step|loss|grad_norm|eval[a-z_]*|mean_[a-z_]*)":[^,}]*' "$1/metrics.jsonl"; }
alike() {
    same_run "$tmp/$1" "$tmp/$2" 3 && cmp <(losses "$tmp/$1") <(losses "$tmp/$2")
}
arena() { json "$tmp/$1/plan.json" "arenas.$2"; }

# --- same bits, fewer bytes ------------------------------------------------------------------

# offloaded MODEL BASE FLAGS [ARGUMENT...]: the bits of the run BASE of MODEL, in a smaller arena.
offloaded() {
    local model=$1 base=$2 flags=$3 out=$2-${3//+/-}
    shift 3
    train_model "$model" "$out" "$@" --set "memory.offload=$flags" && alike "$base" "$out" || return 1
    [ "$(arena "$out" host)" -gt 0 ] && [ "$(arena "$out" device)" -lt "$(arena "$base" device)" ] ||
        { echo "device $(arena "$base" device) -> $(arena "$out" device), host $(arena "$out" host)"; return 1; }
    no_debris "$tmp/$out" && echo "device $(arena "$base" device) -> $(arena "$out" device), host $(arena "$out" host)"
}
all=optimizer+masters+weights+activations
for model in $(models llama sam tinysam); do
    part bits around || continue
    check "$model: a plain run" train_model "$model" "$model"
    part bits || continue
    for flags in optimizer weights activations $all; do check "$model: $flags, same bits" offloaded "$model" "$model" "$flags"; done
    check "$model bf16: a plain run" train_model "$model" "$model-bf16" --set memory.precision=bf16
    for flags in optimizer masters weights activations $all; do
        check "$model bf16: $flags, same bits" offloaded "$model" "$model-bf16" "$flags" --set memory.precision=bf16
    done
done
# The host updates what is offloaded (on a CPU: where it is, in the file).
for model in $(part bits && models llama sam); do
    check "$model: optimizer+update, same bits" offloaded "$model" "$model" optimizer+update
    check "$model bf16: $all+update, same bits" offloaded "$model" "$model-bf16" "$all+update" --set memory.precision=bf16
done

# --- with the other techniques ------------------------------------------------------------------

# with MODEL NAME ARGUMENT...: a run with these arguments, without offload and with all of it.
with() {
    local model=$1 name=$1-$2
    shift 2
    train_model "$model" "$name" "$@" && offloaded "$model" "$name" $all "$@"
}
for model in $(part with && models llama sam tinysam); do
    check "$model: recompute all, offload all" with "$model" recompute --set memory.recompute=all
    check "$model: recompute selective, offload all" with "$model" selective --set memory.recompute=selective
    check "$model: micro-batches and head chunks, offload all" with "$model" split --set memory.micro_batch=2 --set memory.head_chunks=2
done
for rule in every:2 segments:2 all+halves ratio:0.5+selective; do for model in $(part with && models llama sam); do
    check "$model: recompute $rule, offload all" with "$model" "recompute-$rule" --set memory.recompute=$rule
done; done
for model in $(part with && models llama sam); do
    check "$model f16 with a loss scale, offload all" with "$model" f16 --set memory.precision=f16
    check "$model f16 with a loss scale, updated on the host" offloaded "$model" "$model-f16" optimizer+masters+update --set memory.precision=f16
    check "$model bf16 without masters, offload all" with "$model" pure --set memory.precision=bf16-pure
done
wanted sam with && check 'sam: three rounds of prompts, mask decoder in chunks, offload all' with sam rounds --set prompts.iterations=3 --set memory.head_chunks=2 --set memory.micro_batch=2
wanted sam with && check 'sam: a frozen encoder, offload all' with sam frozen --set 'model.freeze=vision_encoder.*'
wanted tinysam with && check 'tinysam: statistics over two images, offload all' with tinysam group --set model.bn_group=2 --set memory.micro_batch=2

fused() {
    train_model llama fused --set train.clip_norm=0 && offloaded llama fused "$all+update" --set train.clip_norm=0 --set memory.fused_step=on &&
        offloaded llama fused optimizer+update --set train.clip_norm=0 --set memory.fused_step=on --set memory.optimizer=adamw
}
wanted llama with && check 'llama: a fused step, updated on the host' fused
halfway() { expect 2 'memory.offload optimizer\+update: .*add optimizer and masters' "$binary" plan "$tmp/llama.yaml" --set memory.precision=bf16 --set memory.offload=optimizer+update; }
wanted llama with && check 'an update without its masters is refused' halfway

# poisoned MODEL ARGUMENT...: NaN in every dead byte changes no bit of the result.
poisoned() {
    needs_cpu PLIMSOLL_POISON || return
    local model=$1
    shift
    rm -rf "$tmp/poison"
    PLIMSOLL_POISON=1 train_model "$model" poison "$@" --set memory.offload=$all && alike "$model" poison
}
for model in $(part around && models llama sam tinysam); do
    check "$model: poisoned" poisoned "$model"
    check "$model: poisoned, recompute all" poisoned "$model" --set memory.recompute=all
done

# --- resuming, plans, budgets -------------------------------------------------------------------

# Killed in its first steps and after its first checkpoint, and resumed each time.
resumed() {
    needs_preload || return
    local out=$tmp/cut n more=()
    rm -rf "$out"
    for n in 2 5; do
        FAULT=kill:$n FAULT_PATH=$out/metrics.jsonl expect 137 '' "$binary" train "$tmp/$1.yaml" --set "train.out=$out" --set memory.offload=$all \
            "${more[@]}" || return 1
        [ -z "$(find "$out" -name '.plimsoll*')" ] || { echo 'the offload file was left behind'; return 1; }
        more=()
        ! begun "$out" || more=(--resume)
    done
    train_model "$1" cut --set memory.offload=$all "${more[@]}" && same_run "$tmp/$1" "$out" 3 && steps_once "$out" 3 && no_debris "$out" && rm -rf "$out"
}
for model in $(part around && models llama sam); do check "$model: killed and resumed with all offloaded" resumed "$model"; done

# A checkpoint does not depend on memory.offload.
moved() {
    train_model llama moved --set train.steps=2 --set memory.offload=$all && train_model llama moved --set memory.offload=none --resume && alike llama moved
}
wanted llama around && check 'llama: begun with all offloaded, resumed with none' moved

follows() {
    expect 0 '' "$binary" plan "$tmp/llama.yaml" --set "memory.offload=[weights, activations]" -o "$tmp/plan.json" || return 1
    [ "$(json "$tmp/plan.json" settings.offload)" = weights+activations ] || { json "$tmp/plan.json" settings.offload; return 1; }
    train_model llama follows --plan "$tmp/plan.json" --set memory.offload=auto && alike llama follows
}
wanted llama around && check 'a list of words, and a plan that is followed' follows

# `plimsoll eval` prefetches offloaded weights too.
evaluated() {
    local flags
    for flags in none weights; do
        expect 0 '' "$binary" eval "$tmp/sam.yaml" --model "$tmp/sam/model" --json --set memory.offload=$flags || return 1
        grep -v '"seconds"\|"arena_bytes"' "$tmp/out" >"$tmp/eval-$flags"
    done
    same "$tmp/eval-none" "$tmp/eval-weights"
}
wanted sam around && check 'eval with offloaded weights: the same scores' evaluated

# memory.host_budget bounds the offloaded bytes.
budget() {
    local need
    expect 0 '' "$binary" plan "$tmp/llama.yaml" --set memory.offload=optimizer --json && cp "$tmp/out" "$tmp/plan.json" || return 1
    need=$(json "$tmp/plan.json" arenas.host)
    "$binary" plan "$tmp/llama.yaml" --set memory.offload=optimizer |
        grep -Eq "(the offload file is limited to .* \(memory.host_budget auto: half of (the free disk space|this machine's memory)|host memory is limited to .* auto: the free memory)" || { echo 'the default budget is not stated'; return 1; }
    expect 0 '' "$binary" plan "$tmp/llama.yaml" --set memory.offload=optimizer --set "memory.host_budget=$need" || return 1
    expect 3 "needs $need bytes .*(host memory|offload file).*memory.host_budget is $((need - 1)) " "$binary" plan "$tmp/llama.yaml" --set memory.offload=optimizer \
        --set "memory.host_budget=$((need - 1))" || return 1
    expect 0 '' "$binary" plan "$tmp/llama.yaml" --set memory.offload=auto --set "memory.host_budget=$((need - 1))"
}
wanted llama around && check 'memory.host_budget: stated, exact, refused with its name' budget

# A small disk: the default budget refuses the plan before anything is created; without a budget,
# creating the offload file fails.
full() {
    needs_cpu 'host memory on disk' || return
    mkdir -p "$tmp/disk"
    mount -t tmpfs -o size=8m tmpfs "$tmp/disk" 2>/dev/null || { echo 'this user cannot mount a tmpfs'; return 77; }
    mounts=$tmp/disk
    local run=("$binary" train "$tmp/llama.yaml" --set "train.out=$tmp/disk/run" --set "memory.offload=$all")
    expect 3 'offload file, memory.host_budget is' "${run[@]}" && expect 1 'the offload file of [0-9.]+ MiB does not fit on the disk of .*, where [0-9.]+ MiB are free' "${run[@]}" --set memory.host_budget=none || return 1
    grep -q 'a file system in memory' "$tmp/err" || { echo 'the message does not mention a file system in memory'; return 1; }
    [ -z "$(find "$tmp/disk" -type f)" ] && [ $(($(stat -f -c '%f * %S' "$tmp/disk"))) -ge 8000000 ] || { echo 'something is left behind'; find "$tmp/disk"; return 1; }
    expect 0 '' "$binary" plan "$tmp/llama.yaml" --set "train.out=$tmp/disk/run" --set "memory.offload=$all" --set memory.host_budget=none && grep 'WARNING: the offload file does not fit on the disk' "$tmp/out" || return 1
    umount "$tmp/disk"
}
wanted llama around && check 'a disk without room fails before the first step' full

# The doctor writes no file: it runs where none can be created, and bench, which measures the file,
# does not.
unwritten() {
    needs_cpu 'the offload file' || return
    local nowhere=(--set train.out=/proc/none --set "memory.offload=$all" --set memory.host_budget=none)
    expect 1 'offload file.*/proc' "$binary" bench "$tmp/llama.yaml" "${nowhere[@]}" --steps 1 || return 1
    expect 0 '' "$binary" doctor "$tmp/llama.yaml" "${nowhere[@]}" --steps 2 || return 1
    grep -q '^Leaks over 2 steps: none' "$tmp/out" && grep -E '^ +[0-9.]+ MiB  the offload file: what is offloaded' "$tmp/out" || { cat "$tmp/out"; return 1; }
    # Where arena and offloaded bytes exceed this machine's memory, nothing is allocated.
    expect 0 '' "$binary" doctor "$tmp/llama.yaml" --set memory.offload=activations --set memory.host_budget=none --set data.sequence=2048 --set train.effective_batch=1000000 --set memory.micro_batch=1000000 --steps 2 --memory 900TiB || return 1
    grep '^Leaks: not measured: the plan takes [0-9.]* [TP]iB of memory, without an offload file; this machine has' "$tmp/out" || { cat "$tmp/out"; return 1; }
}
wanted llama around && check 'doctor writes nothing' unwritten

# Tables, advice and refusals state the file's size.
stated() {
    needs_cpu 'the offload file' || return
    expect 0 '' "$binary" plan "$tmp/llama.yaml" --set memory.offload=auto --frontier && grep -Eq '^budget +arena +offload file ' "$tmp/out" && grep -Eq '^smallest +[0-9.]+ MiB +[1-9][0-9.]* MiB ' "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 0 '' "$binary" plan "$tmp/llama.yaml" --set memory.offload=optimizer --explain all && sed -n '/^placement of update in offload file/,/^peak/p' "$tmp/out" | grep -q 'exp_avg_sq' || { echo 'not in --explain'; return 1; }
    expect 0 '' "$binary" plan "$tmp/llama.yaml" --compare && grep -q 'offload file ' "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 3 'of memory and [0-9.]+ MiB of offload file, the budget is' "$binary" plan "$tmp/llama.yaml" --set memory.offload=auto --memory 1MiB || return 1
    expect 0 '' "$binary" doctor "$tmp/llama.yaml" --steps 0 && grep -E '^ +[0-9.]+ MiB +[1-9][0-9.]+ MiB .* --set memory.offload=optimizer( |$)' "$tmp/out"
}
wanted llama around && check 'tables, advice and refusals state the size of the offload file' stated

# With the smallest budget the search uses offload.
searched() {
    local small
    expect 3 '' "$binary" plan "$tmp/llama.yaml" --set memory.offload=auto --memory 1MiB --json && cp "$tmp/out" "$tmp/plan.json" || return 1
    small=$(json "$tmp/plan.json" smallest_budget_bytes)
    train_model llama searched --set memory.offload=auto --memory "$small" && alike llama searched && json "$tmp/searched/plan.json" settings.offload
}
wanted llama around && check 'auto: the smallest budget runs, same bits' searched

summary
