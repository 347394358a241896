#!/bin/bash
# run_device.sh: which device a run selects, and the messages for a missing driver, an old driver
# and a missing GPU. A stub driver (stub_driver.c) simulates the latter two.
# shellcheck source-path=SCRIPTDIR
. tests/run_lib.sh

plug_in=$BUILD/plimsoll-cuda.so
sed 's/^device:.*//' "$golden/run.yaml" >"$tmp/auto.yaml" # its paths are relative to the repository's root
grep -q 'device' "$tmp/auto.yaml" && { echo 'run.yaml names a device on a line that sed does not remove'; exit 2; }

# with_stub COMMAND...: runs the command with the stub as the driver.
with_stub() { env LD_LIBRARY_PATH="$tmp/driver:${LD_LIBRARY_PATH:-}" "$@"; }
needs_plug_in() {
    if [ ! -e "$plug_in" ]; then echo 'the build has no CUDA'; return 77; fi
    make_stub
}
make_stub() {
    [ -e "$tmp/driver/libcuda.so.1" ] && return 0
    mkdir -p "$tmp/driver" && ${CC:-cc} -std=c11 -Wall -Wextra -Werror -O2 -fPIC -shared tests/stub_driver.c -o "$tmp/driver/libcuda.so.1"
}
# These checks see no GPU, even on a machine that has one.
export CUDA_VISIBLE_DEVICES=
has_driver() { ldconfig -p 2>/dev/null | grep -q libcuda.so.1; }

auto_is_cpu() { expect 0 '^device auto: the CPU: (this build has no CUDA|there is no NVIDIA driver|no NVIDIA GPU is visible)' "$binary" plan "$tmp/auto.yaml" --explain; cat "$tmp/err"; }
check 'auto without a GPU selects the CPU, and --explain reports why' auto_is_cpu
doctor_says() { expect 0 '^device auto: the CPU' "$binary" doctor "$tmp/auto.yaml" --steps 1 && [ "$(grep -c '^device' "$tmp/err")" = 1 ]; }
check 'doctor reports it once' doctor_says
auto_is_silent() { expect 0 '' "$binary" plan "$tmp/auto.yaml" && ! grep '^device' "$tmp/err"; }
check 'plan does not repeat it' auto_is_silent
auto_trains() { expect 0 '' "$binary" train "$tmp/auto.yaml" --set "train.out=$tmp/run" && ! grep '^device' "$tmp/err" && grep -o '\[Step 1\] CPU: Alloc=[^ ]* [KMG]iB' "$tmp/err"; }
check 'auto trains on the CPU, and the memory line names it' auto_trains
cpu_is_silent() { expect 0 '' "$binary" plan "$tmp/auto.yaml" --set device=cpu && ! grep '^device' "$tmp/err"; }
check 'device: cpu looks for no GPU' cpu_is_silent

cuda_plans() { expect 0 '^device cuda: planned for an h200: ' "$binary" plan "$tmp/auto.yaml" --set device=cuda --json && grep -q '"h200"' "$tmp/out"; }
check 'device: cuda can be planned without a GPU' cuda_plans
# A CUDA device records at most 64 micro-batches of a step; the CPU has no such bound.
planned_micro_batches() {
    expect 0 '' "$binary" plan "$tmp/auto.yaml" --set device=cuda --set train.effective_batch=300 --frontier --json || return 1
    grep -oE '"micro_batch": ?[0-9]+' "$tmp/out" | grep -oE '[0-9]+$' | sort -n | head -n 1 >"$tmp/least"
    [ "$(cat "$tmp/least")" -ge 5 ] && echo "the smallest micro-batch of 300 samples: $(cat "$tmp/least")"
}
check 'the planner stays within the micro-batches that a GPU can record' planned_micro_batches
micro_batches() { expect "$1" "$2" "$binary" plan "$tmp/auto.yaml" --set train.effective_batch=128 "${@:3}"; }
check 'more micro-batches than that, by hand' micro_batches 2 'makes 128 micro-batches of train.effective_batch 128, a CUDA device takes 64 at most; set memory.micro_batch 2 or more' --set device=cuda --set memory.micro_batch=1
check 'the most micro-batches that a GPU can record' micro_batches 0 '' --set device=cuda --set memory.micro_batch=2
check 'more micro-batches on the CPU' micro_batches 0 '' --set device=cpu --set memory.micro_batch=1
check 'too many chunks of the LM head' micro_batches 2 'memory.head_chunks 100: a CUDA device takes 64 at most' --set device=cuda --set memory.head_chunks=100

absent_gpu() {
    local rc=1
    [ -e "$plug_in" ] || rc=2
    expect "$rc" 'device: cuda: .*set device: cpu' "$binary" train "$tmp/auto.yaml" --set "train.out=$tmp/none" --set device=cuda
}
check 'device: cuda does not start without a GPU' absent_gpu

no_driver() {
    needs_plug_in || return
    if has_driver; then echo 'this machine has a driver'; return 77; fi
    expect 1 'device: cuda: there is no NVIDIA driver \(libcuda.so.1 is not found\)' "$binary" train "$tmp/auto.yaml" --set "train.out=$tmp/none" --set device=cuda
}
check 'no driver' no_driver
old_driver() {
    needs_plug_in || return
    STUB_DRIVER=11040 expect 1 'device: cuda: the NVIDIA driver supports CUDA 11.4, this build needs [0-9]+.[0-9]+; update the driver' \
        with_stub "$binary" train "$tmp/auto.yaml" --set "train.out=$tmp/none" --set device=cuda
}
check 'a driver that is too old' old_driver
no_gpu() {
    needs_plug_in || return
    expect 1 'device: cuda: no NVIDIA GPU is visible \(CUDA_VISIBLE_DEVICES is ""\); nvidia-smi' \
        with_stub "$binary" train "$tmp/auto.yaml" --set "train.out=$tmp/none" --set device=cuda
}
check 'a driver without a visible GPU' no_gpu
auto_no_gpu() { needs_plug_in || return; expect 0 '^device auto: the CPU: no NVIDIA GPU is visible' with_stub "$binary" plan "$tmp/auto.yaml" --explain; }
check 'auto with a driver and no GPU is the CPU' auto_no_gpu
failing_driver() { needs_plug_in || return; STUB_FAILS=1 expect 0 '^device auto: the CPU: CUDA: cudaError[A-Za-z]+: ' with_stub "$binary" plan "$tmp/auto.yaml" --explain; }
check 'auto with a driver that fails reports the error' failing_driver
stale() {
    make_stub || return 1
    mkdir -p "$tmp/old" && cp "$binary" "$tmp/old/plimsoll" && echo 'const unsigned long plimsoll_cuda_plugin[16];' | ${CC:-cc} -x c -shared -fPIC -o "$tmp/old/plimsoll-cuda.so" - || return 1
    expect 1 'plimsoll-cuda.so does not match this program.s build; rebuild both' \
        with_stub "$tmp/old/plimsoll" train "$tmp/auto.yaml" --set "train.out=$tmp/none" --set device=cuda
}
check 'a plug-in of another build' stale
# A plug-in that is linked with a library of CUDA that is not here.
no_cuda_library() {
    local cc=(${CC:-cc} -x c -shared -fPIC)
    make_stub || return 1
    mkdir -p "$tmp/bare" && cp "$binary" "$tmp/bare/plimsoll" && echo 'int cublas_of_none = 1;' | "${cc[@]}" -Wl,-soname,libcublasLt.so.0 -o "$tmp/bare/libcublasLt.so.0" - &&
        echo 'extern int cublas_of_none; int *plimsoll_cuda_plugin = &cublas_of_none;' | "${cc[@]}" -o "$tmp/bare/plimsoll-cuda.so" - -x none "$tmp/bare/libcublasLt.so.0" && rm "$tmp/bare/libcublasLt.so.0" || return 1
    expect 1 "device: cuda: .*libcublasLt.so.0: .*; install CUDA's libraries \(pip install 'plimsoll\[cuda\]' does\), or set device: cpu" \
        with_stub "$tmp/bare/plimsoll" train "$tmp/auto.yaml" --set "train.out=$tmp/none" --set device=cuda
}
check 'a machine with a driver and without the libraries of CUDA' no_cuda_library
large() {
    printf 'model: {preset: sam-vit-b}\ndata: {format: sa1b}\ntrain: {effective_batch: 32}\n' >"$tmp/large.yaml"
    expect 0 '' "$binary" plan "$tmp/large.yaml" --set device=cuda --json && grep -q '"micro_batch": 16' "$tmp/out" && ! grep -q ops_without_kernel "$tmp/out" || return 1
    expect 0 '' "$binary" plan "$tmp/large.yaml" --set device=cuda --set memory.micro_batch=32 --set memory.head_chunks=1 --json && grep -q ops_without_kernel "$tmp/out" || return 1
}
check 'no plan has tensors that are too large for a GPU, unless set by hand' large

# PLIMSOLL_HIDE_CPU: without bf16 instructions precision auto is f32, unless the profile's processor
# has them.
hidden() {
    local as=(env PLIMSOLL_HIDE_CPU=bf16,amx "$binary" plan "$tmp/auto.yaml" --set device=cpu --set memory.precision=auto --json)
    expect 0 '' "${as[@]}" && grep -q '"precision": "f32"' "$tmp/out" || { echo 'auto is not f32'; return 1; }
    expect 0 '' "${as[@]}" --set device.profile=tests/golden/profiles/x86-64-16.json && grep -q '"precision": "bf16"' "$tmp/out" || { echo 'auto is not bf16 by a profile with bf16'; return 1; }
    expect 0 '' "${as[@]}" --set device.profile=tests/golden/profiles/arm64-2.json && grep -q '"precision": "f32"' "$tmp/out" || { echo 'auto is not f32 by a profile without bf16'; return 1; }
    expect 0 '' env PLIMSOLL_HIDE_CPU=bf16,amx "$binary" --version && grep 'no-bf16 no-amx$' "$tmp/out"
}
check 'hidden processor features' hidden
# Hidden instructions are not used: bf16 is then multiplied as f32, and the last bits may differ.
hidden_trains() {
    local sets=(--set device=cpu --set memory.precision=bf16 --set train.steps=2)
    expect 0 '' env PLIMSOLL_HIDE_CPU=bf16,avx512,sve "$binary" train "$tmp/auto.yaml" --set "train.out=$tmp/hidden" "${sets[@]}"
}
check 'a run with hidden features' hidden_trains
check 'an unknown feature' expect 2 'PLIMSOLL_HIDE_CPU: there is no feature "fma" to hide; the features are bf16, amx, avx512, sve' env PLIMSOLL_HIDE_CPU=amx,fma "$binary" plan "$tmp/auto.yaml"
threads_of() { expect 0 '' env OMP_NUM_THREADS="$1" "$binary" plan "$tmp/auto.yaml" --set device=cpu "${@:3}" --json && grep -q "\"profile\": \"$2\"" "$tmp/out" || { grep '"profile"' "$tmp/out"; return 1; }; }
check 'OMP_NUM_THREADS=3' threads_of 3 cpu-3
check 'OMP_NUM_THREADS=5,2' threads_of 5,2 cpu-5
check 'device.threads overrides OMP_NUM_THREADS' threads_of 3 cpu-4 --set device.threads=4

old_gpu() {
    local gpu=(--set device.kind=cuda --set device.profile=t4 --set memory.precision=auto)
    expect 2 'memory.precision bf16: t4 has no bf16 arithmetic.*f16' "$binary" plan "$tmp/auto.yaml" "${gpu[@]}" --set memory.precision=bf16 || return 1
    expect 0 '' "$binary" plan "$tmp/auto.yaml" "${gpu[@]}" --json && grep -q '"precision": "f16"' "$tmp/out" || { echo 'auto is not f16'; return 1; }
    expect 0 '' "$binary" plan "$tmp/auto.yaml" "${gpu[@]}" --compare && grep -q '^+ f16' "$tmp/out" || { echo 'no f16 in --compare'; return 1; }
    expect 0 '' "$binary" plan "$tmp/auto.yaml" --set device.kind=cuda --set device.profile=l4 --set memory.precision=auto --json && grep -q '"precision": "bf16"' "$tmp/out"
}
check 'a GPU without bf16: auto is f16, bf16 is refused' old_gpu

summary
