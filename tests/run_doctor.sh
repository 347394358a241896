#!/bin/bash
# run_doctor.sh: plimsoll doctor, and the memory monitor of train.
#
#   bash tests/run_doctor.sh      from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

printf 'model: {preset: llama-tiny}\ndata: {sequence: 128}\ntrain: {effective_batch: 4}\nmemory: {recompute: none, offload: none, head_chunks: 1, micro_batch: 4}\n' >"$tmp/words.yaml"
printf 'model: {preset: sam-tiny}\ndata: {format: sa1b, max_masks: 4}\ntrain: {effective_batch: 2}\nmemory: {recompute: none, offload: none, head_chunks: 1, micro_batch: 2}\n' >"$tmp/masks.yaml"
doctor() { "$binary" doctor "$tmp/$1.yaml" --json "${@:2}" >"$tmp/doctor.json"; }
get() { json "$tmp/doctor.json" "$1"; }
# examined RUN: one report of the run, with 10 steps, serves several checks.
examined() {
    [ -f "$tmp/$1.json" ] || { doctor "$1" --steps 10 && mv "$tmp/doctor.json" "$tmp/$1.json"; } || return 1
    cp "$tmp/$1.json" "$tmp/doctor.json"
}

# What the build has and the machine: no run file is needed.
version() {
    local key plugin
    "$binary" --version >"$tmp/out" && "$binary" --version --json >"$tmp/doctor.json" || return 1
    for key in cuda mpi onednn ffmpeg tiff webp openjpeg zstd; do [ -n "$(get libraries.$key)" ] || { echo "$key"; return 1; }; done
    [ "$(grep -cE '^  [A-Za-z0-9]+ +(no|yes|[0-9][0-9.]+) +[A-Za-z]' "$tmp/out")" = 8 ] || { cat "$tmp/out"; return 1; }
    for key in cuda mpi; do
        plugin=false && [ ! -f "$BUILD/plimsoll-$key.so" ] || plugin=true
        [ "$(get libraries.$key)" = $plugin ] || { echo "$key: $(get libraries.$key)"; return 1; }
    done
    grep FFmpeg "$tmp/out"
}
check '--version: the libraries of the build' version
machine() {
    "$binary" doctor >"$tmp/out" && "$binary" doctor --json >"$tmp/doctor.json" || return 1
    [ "$(get threads)" = "${OMP_NUM_THREADS:-$(get processors_allowed)}" ] || [ -n "$(get processor_quota)" ] || return 1
    [ "$(get budget_bytes)" -lt "$(get memory_bytes)" ] && [ "$(get budget_bytes)" -gt 0 ] && [ -n "$(get limits.open_files)" ] && [ -n "$(get gpus)" ] || return 1
    grep -q '^GPU  ' "$tmp/out" && grep -q '^Libraries' "$tmp/out" && grep 'memory.budget: auto is' "$tmp/out"
}
check 'doctor without a run file: the machine' machine

peaks() {
    examined "$1" || return 1
    local alone forward both arena
    alone=$(get forward_alone_bytes) forward=$(get forward_bytes) both=$(get forward_backward_bytes) arena=$(get arena_bytes)
    [ "$alone" -lt "$forward" ] && [ "$forward" -le "$both" ] && [ "$both" -le "$arena" ] && echo "$alone, $forward, $both of $arena bytes"
}
check 'peaks of words are in order' peaks words
check 'peaks of masks are in order' peaks masks
# The largest batch fits, one more does not; nothing fits a budget below one sample.
largest() {
    local budget=40000000 batch
    doctor words --steps 0 --memory $budget || return 1
    batch=$(get largest_batch)
    fits() { "$binary" plan "$tmp/words.yaml" --memory $budget --set "train.effective_batch=$1" --set "memory.micro_batch=$1" >/dev/null 2>&1; }
    fits "$batch" && ! fits $((batch + 1)) && [ "$(get largest_batch_any)" -ge "$batch" ] && echo "$batch samples"
}
check 'the largest batch is the largest' largest
# The reported plan fits: here 4 samples by the fused step, with the weights and workspaces of bf16
# on 2 threads.
fused() {
    doctor words --steps 0 --memory 4MiB --set memory.recompute=auto --set memory.offload=auto --set memory.precision=bf16 --set device.threads=2 || return 1
    [ "$(get update_bytes)" = 0 ] && [ "$(get largest_batch)" -ge 4 ] && echo "$(get largest_batch) samples"
}
check 'the largest batch by a fused step' fused
none() {
    local rc=0
    doctor words --steps 0 --memory 100000 2>/dev/null || rc=$?
    [ $rc = 3 ] && [ "$(get largest_batch)" = 0 ] && echo 'exit 3, largest batch 0'
}
check 'the largest batch where not even one sample fits' none
confirmed() { doctor masks --steps 0 --memory 60MB --confirm && [ "$(get confirmed)" = true ] && get largest_batch_any; }
check 'the largest batch, run' confirmed
leaks() {
    examined "$1" || return 1
    for what in host_bytes device_bytes allocations descriptors threads; do
        [ "$(get leaks.$what)" -le 0 ] || { echo "$what grew by $(get leaks.$what)"; return 1; }
    done
    echo 'nothing grows'
}
check 'leaks: none, of words' leaks words
check 'leaks: none, of masks' leaks masks
advice() {
    examined words || return 1
    grep -q '"change": "memory.recompute=all"' "$tmp/doctor.json" && grep -q '"change": "memory.micro_batch=2"' "$tmp/doctor.json" || return 1
    awk -F': ' '/"saves_bytes"/ { saves = $2 + 0 } /"costs_seconds"/ { c = $2 + 0; worth = c > 0 ? saves / c : 1e300
        if (n++ && worth > last * (1 + 1e-9)) { print "out of order"; exit 1 } last = worth } END { print n " changes" }' "$tmp/doctor.json"
}
check 'advice: planned, and in order' advice
# A mask model is advised to freeze its encoder, and to store embeddings, which save most.
encoder() {
    examined masks || return 1
    [ "$(grep -c '"change": "model.freeze=vision_encoder.\*"' "$tmp/doctor.json")" = 2 ]
}
check 'advice: a frozen encoder and stored embeddings' encoder
text() { "$binary" doctor "$tmp/words.yaml" --steps 1 | grep -E 'Largest tensors at the peak, in the (forward|backward) of .* \(program step, op [A-Z_]+\)'; }
check 'the text output' text
# What is planned is printed before a step runs: the note about the steps comes after the advice,
# though it goes to stderr.
before_steps() {
    "$binary" doctor "$tmp/words.yaml" --steps 1 --confirm --memory 40MB >"$tmp/all" 2>&1 && sed -n '/^leaks: 4 steps of about .* run on synthetic inputs/,$p' "$tmp/all" | grep -q '^Leaks over 1 steps' || { cat "$tmp/all"; return 1; }
    sed '/^leaks: /,$d' "$tmp/all" >"$tmp/first" && grep -q '^Peak memory' "$tmp/first" && grep -q '^Largest micro-batch' "$tmp/first" && grep -q '^Advice' "$tmp/first" && grep 'confirmed by running a step' "$tmp/first"
}
check 'peaks, the largest batch and advice come before any step' before_steps
# Without the GPU everything but the steps is answered. Advice for a run that offloads: adapters, 4
# bits and host memory.
printf 'model: {preset: llama-tiny}\ndata: {sequence: 128}\ntrain: {effective_batch: 4}\ndevice: {kind: cuda, profile: rtx-3060}\n' >"$tmp/gpu.yaml"
elsewhere() {
    export CUDA_VISIBLE_DEVICES=
    expect 0 '' "$binary" doctor "$tmp/gpu.yaml" --memory 38MiB --confirm && grep -q '^Peak memory' "$tmp/out" && grep -q '^Largest micro-batch within 38.00 MiB (the budget) and 32.00 GiB of host memory' "$tmp/out" &&
        grep -q 'not confirmed: ' "$tmp/out" && grep -q '^Leaks: not measured: ' "$tmp/out" && grep '^Advice' "$tmp/out" || { cat "$tmp/out"; return 1; }
    doctor gpu --memory 38MiB && grep -q '"leaks_not_measured"' "$tmp/doctor.json" && [ "$(get host_bytes)" -gt 0 ] || return 1
    [ "$(sed -n '/"other_plans"/,/\]/p' "$tmp/doctor.json" | grep -c '"change"')" = 3 ] && grep -q '"change": "--set adapter.target_modules=all-linear --set memory.quantize=nf4"' "$tmp/doctor.json" &&
        grep -q '"change": "--set memory.host_budget=[0-9]*"' "$tmp/doctor.json" && grep -q '"host_bytes": -[1-9]' "$tmp/doctor.json" || { cat "$tmp/doctor.json"; return 1; }
}
check 'a GPU that is not here: planned, with adapters, 4 bits and host memory as advice' elsewhere
# A plan for ranks that are not there is examined, and no step runs.
ranked() {
    expect 0 '' "$binary" doctor "$tmp/words.yaml" --steps 1 --confirm --set parallel.ranks=4 && grep -q '^Peak memory of a micro-batch of [0-9]* on each of 4 ranks' "$tmp/out" &&
        grep -q 'not confirmed: the plan is that of a rank of 4' "$tmp/out" && grep '^Leaks: not measured: the plan is that of a rank of 4, and a step needs all of them' "$tmp/out"
}
check 'several ranks: planned, not run' ranked

monitor() {
    head -c 20000 /dev/urandom >"$tmp/words.bin"
    "$binary" train "$tmp/words.yaml" --set "data.train=$tmp/words.bin" --set data.token_dtype=uint8 --set train.steps=5 --set train.monitor_every=2 --set "train.out=$tmp/run" >/dev/null 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    [ "$(grep -c 'memory_utilization' "$tmp/run/metrics.jsonl")" = 3 ] && [ "$(grep -c '^.*\[Step [124]\] CPU: Alloc=[0-9.]* [KMG]iB Reserved=[0-9.]* [KMG]iB ([0-9.]*% of Total)' "$tmp/err")" = 3 ] || { cat "$tmp/err"; return 1; }
    for m in memory_allocated memory_reserved memory_peak memory_free memory_total memory_utilization host_resident host_resident_peak host_available host_total; do
        head -n 1 "$tmp/run/metrics.jsonl" | grep -q "\"$m\":[0-9]" || { echo "no $m"; return 1; }
    done
    # The share is that of the reserved bytes in the total.
    sed -nE 's/.*"memory_reserved":([0-9]+),.*"memory_total":([0-9]+),.*/\1 \2/p' "$tmp/run/metrics.jsonl" | tail -n 1 | awk '{ printf "(%.1f%% of Total)\n", 100 * $1 / $2 }' >"$tmp/share"
    grep 'CPU: Alloc=' "$tmp/err" | tail -n 1 | grep -F "$(cat "$tmp/share")"
}
check 'the memory monitor: log and metrics' monitor
summary
