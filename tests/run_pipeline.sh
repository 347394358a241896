#!/bin/bash
# shellcheck disable=SC2015
# run_pipeline.sh: pipelined steps, submitted before the previous step is retired, give the same
# results as steps that run one by one.
#
#   bash tests/run_pipeline.sh                  from the repository's root, after make; see run_lib.sh
#   DEVICE=cuda bash tests/run_pipeline.sh      on a GPU
#
# On a GPU several steps are in flight (src/engine/ticket.h); with PLIMSOLL_PIPELINE=0 the host
# waits for every step before it submits the next. The CPU runs each step at once; with
# PLIMSOLL_PIPELINE=1 it submits batches and retires results as for a GPU. Both modes give the same
# weights, the same training state, the same lines in metrics.jsonl but for times, and the same
# error messages.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault
# fault.so replaces fsync: these runs need not reach the disk.
sanitized || export LD_PRELOAD=$tools/fault.so
if [ "$DEVICE" = cpu ]; then pipelined=(env PLIMSOLL_PIPELINE=1) serial=(env); else pipelined=(env) serial=(env PLIMSOLL_PIPELINE=0); fi

"$binary" data make "$tmp/set" --images 13 --shards 1 --size 96x80 --masks 5 >/dev/null || exit 2
head -c 2000 tests/golden/make_llama.py >"$tmp/validation.txt" || exit 2
cat >"$tmp/llama.yaml" <<YAML
model: {preset: llama-tiny}
data: {format: bytes, train: "tests/golden/*.py", validation: "$tmp/validation.txt", sequence: 32}
train: {steps: 11, effective_batch: 5, learning_rate: 0.01, clip_norm: 1, eval_every: 4, save_every: 3, out: "$tmp/unused"}
memory: {micro_batch: 2, precision: f32}
device: $DEVICE
YAML
cat >"$tmp/sam.yaml" <<YAML
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/set/*.tar", max_masks: 3, image_size: 64}
train: {epochs: 2, effective_batch: 4, learning_rate: 0.001, clip_norm: 1, save_every: 5, out: "$tmp/unused"}
memory: {micro_batch: 2, precision: f32}
device: $DEVICE
YAML
sed 's/preset: sam-tiny/preset: tinysam-tiny, bn_group: 2/' "$tmp/sam.yaml" >"$tmp/tinysam.yaml"

# lines RUN: its metrics without times and the machine's memory; on the CPU the pipeline's buffers
# are in the arena, so its size is left out too.
lines() {
    sed -E 's/"(seconds|[a-z]+_per_second|memory_free|memory_utilization|host_[a-z_]+)":[0-9.]+,?//g' "$1/metrics.jsonl" |
        if [ "$DEVICE" = cpu ]; then sed -E 's/"(arena_bytes|memory_(allocated|reserved|peak))":[0-9]+,?//g'; else cat; fi
}
alike() {
    lines "$1" >"$tmp/a.lines" && lines "$2" >"$tmp/b.lines" && diff "$tmp/a.lines" "$tmp/b.lines" || { echo "metrics of $1 and $2 differ"; return 1; }
}
# train_run STATUS OUT YAML ARGUMENT...: one run, with `mode` as the environment.
train_run() {
    local status=$1 out=$2 yaml=$3
    shift 3
    rm -rf "$out"
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    expect "$status" '' "${mode[@]}" "$binary" train "$tmp/$yaml.yaml" --set "train.out=$out" $FLAGS "$@" --json || return 1
    cp "$tmp/out" "$out.json"
    cp "$tmp/err" "$out.err"
}
# both NAME YAML ARGUMENT...: the run in both modes, with the same results.
both() {
    local name=$1 steps
    shift
    mode=("${serial[@]}")
    train_run 0 "$tmp/$name-serial" "$@" || return 1
    mode=("${pipelined[@]}")
    train_run 0 "$tmp/$name-pipelined" "$@" || return 1
    steps=$(json "$tmp/$name-serial.json" steps)
    same_run "$tmp/$name-serial" "$tmp/$name-pipelined" "$steps" && alike "$tmp/$name-serial" "$tmp/$name-pipelined" && no_debris "$tmp/$name-pipelined" || return 1
    [ "$(json "$tmp/$name-pipelined.json" allocations_in_steps)" -eq 0 ] || { echo "$(json "$tmp/$name-pipelined.json" allocations_in_steps) allocations in steps"; return 1; }
    echo "$steps steps, loss $(sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$tmp/$name-pipelined/metrics.jsonl" | tail -n 1)"
}
check 'llama: micro-batches, evaluations, checkpoints' both llama llama
check 'llama: the memory monitor at every step' both monitor llama --set train.monitor_every=1 --set train.steps=5
check 'llama: a fused step' both fused llama --set memory.fused_step=on --set memory.micro_batch=5 --set train.clip_norm=0
check 'llama: everything offloaded' both offload llama --set memory.offload=optimizer+masters+weights+activations --set memory.precision=bf16
check 'llama: one step' both first llama --set train.steps=1
check 'llama: a checkpoint at every step' both each llama --set train.save_every=1 --set train.steps=4
check 'sam: two epochs with a short last step' both sam sam
check 'sam: one image at a time, the smallest ring buffer' both ring sam --set data.prefetch=1 --set data.threads=3 --set train.effective_batch=1 --set memory.micro_batch=1
check 'tinysam: running statistics' both tinysam tinysam

# --- f16 ----------------------------------------------------------------------------------------

f16=(--set memory.precision=f16 --set train.loss_scale=4194304 --set train.scale_window=3 --set train.steps=16 --set train.learning_rate=0.001)
scaled() {
    both f16 llama "${f16[@]}" || return 1
    grep -c skipped: "$tmp/f16-pipelined.err" | grep -qx "$(json "$tmp/f16-serial.json" skipped_steps)" || { echo 'the two modes skipped different steps'; return 1; }
    [ "$(json "$tmp/f16-serial.json" skipped_steps)" -ge 3 ] && echo "$(json "$tmp/f16-pipelined.json" skipped_steps) skipped, scale $(json "$tmp/f16-pipelined.json" loss_scale)"
}
check 'f16: the scale halves and grows' scaled

# --- numbers that are not finite ----------------------------------------------------------------

# fails NAME PATTERN YAML ARGUMENT...: both modes give the same message for the first bad step, and
# save nothing of that step.
fails() {
    local name=$1 pattern=$2
    shift 2
    mode=("${serial[@]}")
    train_run 1 "$tmp/$name-serial" "$@" || return 1
    mode=("${pipelined[@]}")
    train_run 1 "$tmp/$name-pipelined" "$@" || return 1
    alike "$tmp/$name-serial" "$tmp/$name-pipelined" && no_debris "$tmp/$name-pipelined" || return 1
    tail -n 1 "$tmp/$name-serial.err" | sed "s#$tmp/$name-serial#OUT#g" >"$tmp/serial.err"
    tail -n 1 "$tmp/$name-pipelined.err" | sed "s#$tmp/$name-pipelined#OUT#g" | diff "$tmp/serial.err" - || { echo 'the messages of the two modes differ'; return 1; }
    grep -Eq -- "$pattern" "$tmp/serial.err" || { cat "$tmp/serial.err"; return 1; }
    diff <(ls "$tmp/$name-serial/checkpoints") <(ls "$tmp/$name-pipelined/checkpoints") || { echo 'the checkpoints of the two modes differ'; return 1; }
    for s in "$tmp/$name-serial"/checkpoints/*/state.safetensors; do
        [ ! -f "$s" ] || same "$s" "${s/$name-serial/$name-pipelined}" || return 1
    done
    cut -c 1-110 "$tmp/serial.err"
}
# Devices overflow at different points: the step may differ, and so may which of loss and gradient
# norm is the first that is not finite.
loss='step 2: the loss' norm='step 2: the gradient norm'
[ "$DEVICE" = cpu ] || loss='step [23]: the (loss|gradient norm)' norm=$loss
far=(--set train.warmup_steps=0 --set train.clip_norm=0 --set train.eval_every=0 --set train.save_every=100)
check 'a loss that is not finite' fails loss "$loss is -?(nan|inf); first seen in " llama "${far[@]}" --set train.learning_rate=1e15
check 'a gradient that is not finite' fails norm "$norm is -?(nan|inf); first seen in " llama "${far[@]}" --set train.learning_rate=1e20
fused=(--set memory.fused_step=on --set memory.micro_batch=5)
check 'a loss that is not finite, fused' fails fused-loss "$loss is -?(nan|inf); first seen in " llama "${far[@]}" --set train.learning_rate=1e15 "${fused[@]}"
check 'a gradient that is not finite, fused' fails fused-norm "$norm is -?(nan|inf); first seen in " llama "${far[@]}" --set train.learning_rate=1e20 "${fused[@]}"
check 'a later loss or gradient that is not finite, in bf16' fails later 'step [3-9]: the (loss|gradient norm) is -?(nan|inf); first seen in ' llama "${far[@]}" --set memory.precision=bf16 --set train.schedule=step --set train.step_size=4 --set train.step_gamma=1e20 --set train.save_every=2
check 'masks: a loss that is not finite' fails masks 'the (loss|gradient norm) is -?(nan|inf); first seen in ' sam "${far[@]}" --set train.learning_rate=1e20
check 'running statistics: a loss that is not finite' fails running 'the (loss|gradient norm) is -?(nan|inf); first seen in ' tinysam "${far[@]}" --set train.learning_rate=1e20
check 'f16: nothing but skipped steps' fails hopeless 'the loss scale fell below 1: [0-9]+ steps in a row' llama "${far[@]}" --set memory.precision=f16 --set train.learning_rate=1e7 --set train.steps=40

# --- kills, signals and broken data -------------------------------------------------------------

# Killed twice while metrics.jsonl is written, and resumed: the bytes of the undisturbed run.
killed() {
    needs_preload || return
    local name=$1 yaml=$2 n resume=()
    shift 2
    rm -rf "$tmp/cut"
    for n in 6 5; do
        FAULT=kill:$n FAULT_PATH=$tmp/cut/metrics.jsonl expect 137 '' "${pipelined[@]}" "$binary" train "$tmp/$yaml.yaml" --set "train.out=$tmp/cut" "$@" ${resume[@]+"${resume[@]}"} || return 1
        resume=(--resume)
    done
    expect 0 'resuming after step' "${pipelined[@]}" "$binary" train "$tmp/$yaml.yaml" --set "train.out=$tmp/cut" "$@" --resume || return 1
    same_run "$tmp/$name-serial" "$tmp/cut" "$(json "$tmp/$name-serial.json" steps)" && alike "$tmp/$name-serial" "$tmp/cut"
}
check 'llama: killed twice, resumed' killed llama llama
check 'f16: killed twice, resumed' killed f16 llama "${f16[@]}"

# SIGTERM while a step is in flight: the step whose metrics are being written is not the last one
# submitted.
stopped() {
    needs_preload || return
    local pid rc=0
    rm -rf "$tmp/cut"
    FAULT=stop:4 FAULT_PATH=$tmp/cut/metrics.jsonl "${pipelined[@]}" "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/cut" 2>"$tmp/err" &
    pid=$!
    stopped="$stopped $pid"
    for _ in $(seq 600); do
        grep -q '^State:.*T (stopped)' "/proc/$pid/status" 2>/dev/null && break
        sleep 0.05
    done
    kill -TERM "$pid" && kill -CONT "$pid"
    wait "$pid" || rc=$?
    [ $rc -eq 1 ] && grep -q 'stopped by SIGTERM after step' "$tmp/err" || { echo "status $rc"; cat "$tmp/err"; return 1; }
    no_debris "$tmp/cut" || return 1
    expect 0 'resuming after step' "${pipelined[@]}" "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/cut" --resume || return 1
    same_run "$tmp/sam-serial" "$tmp/cut" "$(json "$tmp/sam-serial.json" steps)" && alike "$tmp/sam-serial" "$tmp/cut"
}
check 'sam: SIGTERM while a step is in flight, resumed' stopped

# Too many broken images: the error is reported at the step that would use them, after the lines of
# all earlier steps.
broken() {
    mkdir -p "$tmp/bad" && cp "$tmp"/set/*.tar "$tmp/bad/" || return 1
    local tar
    tar=$(ls "$tmp"/bad/*.tar)
    # Zeros in the middle of the archive destroy its images.
    dd if=/dev/zero of="$tar" bs=1 seek=$(($(stat -c %s "$tar") / 2)) count=$(($(stat -c %s "$tar") / 4)) conv=notrunc 2>/dev/null || return 1
    fails broken '' sam --set "data.train=$tmp/bad/*.tar" --set data.max_bad=0 --set data.shuffle=false --set train.effective_batch=1 --set memory.micro_batch=1
}
check 'sam: a broken image' broken
summary
