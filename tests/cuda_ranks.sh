#!/bin/bash
# shellcheck disable=SC2015
# cuda_ranks.sh: ranks on GPUs. One GPU is enough: several ranks share it (parallel.crowd) and
# exchange gradients through host memory; one rank with N shares on the same GPU is the reference,
# bit for bit. NCCL runs with a single rank that goes through the motions (PLIMSOLL_RANKS=1), and
# with several ranks where the library lets them share a GPU (2.30 and later:
# NCCL_MULTI_RANK_GPU_ENABLE=1 PLIMSOLL_NCCL=FILE), or where there are several GPUs.
#
#   bash tests/cuda_ranks.sh            from the repository's root, after make; see run_lib.sh
#   SECTIONS='bits nccl fail speed'     default: bits nccl fail; speed: a step of llama-1b with and without NCCL
# shellcheck source=tests/run_lib.sh
DEVICE=cuda
. tests/run_lib.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1 OMP_WAIT_POLICY=passive
sections=${SECTIONS:-bits nccl fail}
# For the tests of NCCL with several ranks by itself: the others exchange through host memory.
shared_gpu=${NCCL_MULTI_RANK_GPU_ENABLE:-}
unset NCCL_MULTI_RANK_GPU_ENABLE
section() { case " $sections " in *" $1 "*) ;; *) return 1 ;; esac; }
has_gpu() { nvidia-smi -L 2>/dev/null | grep -q GPU; }
if ! has_gpu || [ ! -f "$BUILD/plimsoll-cuda.so" ] || [ ! -f "$BUILD/plimsoll-mpi.so" ] || ! command -v mpirun >/dev/null; then
    echo 'skip  ranks on GPUs: no GPU, or a build without CUDA or MPI'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
# ranks N COMMAND...
ranks() {
    local n=$1
    shift
    OMP_NUM_THREADS=1 mpirun -np "$n" --bind-to none --oversubscribe "$@"
}
# Timings would change the choice of kernels from run to run; they are stored once, for all runs of
# this script.
numbers() { grep -oE '^\{"step":[0-9]*,("loss":[^,]*,"learning_rate":[^,]*,"grad_norm":[^,]*|"eval_loss":.*)' "$1/metrics.jsonl"; }
# equal N SHARES STEPS [ARGUMENT...]
equal() {
    local n=$1 shares=$2 steps=$3
    shift 3
    rm -rf "$tmp/one" "$tmp/many"
    # With divided gradients sums have another order if there is accumulation; the number of head
    # chunks changes the bits.
    set -- --set parallel.shard=none --set memory.head_chunks=1 "$@"
    expect 0 '' train_tiny "$tmp/one" --set "parallel.shares=$shares" --set "train.steps=$steps" "$@" || return 1
    expect 0 "${via:-through host memory}" ranks "$n" "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/many" --set parallel.crowd=true --set "parallel.shares=$shares" --set "train.steps=$steps" "$@" || return 1
    same_run "$tmp/one" "$tmp/many" "$steps" && steps_once "$tmp/many" "$steps" && diff <(numbers "$tmp/one") <(numbers "$tmp/many") && numbers "$tmp/many" | tail -n 1
}

if section bits; then
    check '2 ranks, f32, clipping' equal 2 2 6 --set memory.micro_batch=auto --set train.clip_norm=1
    check '4 ranks, bf16' equal 4 4 6 --set memory.micro_batch=auto --set memory.precision=bf16
    check '8 ranks, bf16, clipping' equal 8 8 4 --set memory.micro_batch=auto --set memory.precision=bf16 --set train.clip_norm=1
    check '3 ranks, accumulation, uneven batch' equal 3 3 3 --set train.effective_batch=10 --set memory.micro_batch=2
    check '2 ranks with 4 shares each, f16' equal 2 8 4 --set memory.micro_batch=1 --set memory.precision=f16
    check '2 ranks, recompute, offload' equal 2 2 3 --set memory.micro_batch=auto --set memory.recompute=all --set memory.offload=optimizer
    check '2 ranks, divided optimizer state, clipping' equal 2 2 4 --set memory.micro_batch=auto --set train.clip_norm=1 --set parallel.shard=optimizer
    check '3 ranks, divided optimizer state, bf16-pure' equal 3 3 3 --set train.effective_batch=9 --set memory.micro_batch=auto --set memory.precision=bf16-pure --set parallel.shard=optimizer
    check '2 ranks, divided weights, bf16-pure, 8-bit' equal 2 2 3 --set memory.micro_batch=auto --set memory.precision=bf16-pure --set memory.optimizer=adamw-8bit --set parallel.shard=weights
    check '4 ranks as 2 hosts of 2, divided weights, bf16' equal 4 4 3 --set memory.micro_batch=auto --set memory.precision=bf16 --set parallel.per_host=2 --set parallel.shard=HYBRID_SHARD
    check '4 ranks as 2 hosts of 2, nothing divided' equal 4 4 3 --set memory.micro_batch=auto --set parallel.per_host=2 --set parallel.shard=none
    check '4 ranks as 2 hosts of 2, optimizer state divided among all' equal 4 4 3 --set memory.micro_batch=auto --set parallel.per_host=2 --set parallel.group=all --set parallel.shard=optimizer --set train.clip_norm=1
    check '8 ranks as 2 hosts of 4, weights divided among all, bf16' equal 8 8 3 --set memory.micro_batch=auto --set memory.precision=bf16 --set parallel.per_host=4 --set parallel.group=all --set parallel.shard=weights
    check '2 ranks, divided optimizer state, 8-bit' equal 2 2 3 --set memory.micro_batch=auto --set memory.optimizer=adamw-8bit --set memory.precision=bf16 --set parallel.shard=optimizer
    check '4 ranks, divided gradients, bf16' equal 4 4 4 --set memory.micro_batch=auto --set memory.precision=bf16 --set parallel.shard=gradients
    check '2 ranks, divided weights' equal 2 2 3 --set memory.micro_batch=auto --set parallel.shard=weights
    check '4 ranks, divided weights, bf16, recompute' equal 4 4 3 --set memory.micro_batch=auto --set memory.precision=bf16 --set memory.recompute=all --set parallel.shard=weights
    "$binary" data make "$tmp/masks" --images 10 --size 96x80 --masks 5 >/dev/null || exit 2
    cat >"$tmp/sam.yaml" <<EOT
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/masks/*.tar", max_masks: 3, threads: 1}
train: {steps: 2, effective_batch: 5, learning_rate: 0.001, clip_norm: 1}
memory: {micro_batch: 1, precision: f32}
device: cuda
EOT
    masks() {
        expect 0 '' "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/s1" --set parallel.shares=2 || return 1
        expect 0 '' ranks 2 "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/s2" --set parallel.crowd=true --set parallel.shard=optimizer || return 1
        same_run "$tmp/s1" "$tmp/s2" 2 && diff <(numbers "$tmp/s1") <(numbers "$tmp/s2") && numbers "$tmp/s2" | tail -n 1
    }
    check '2 ranks of sam-tiny, uneven masks' masks
    resumed() {
        local own=(--set memory.micro_batch=1 --set train.save_every=2 --set parallel.crowd=true --set parallel.shares=4 --set parallel.shard=optimizer)
        rm -rf "$tmp/whole" "$tmp/run"
        expect 0 '' train_tiny "$tmp/whole" "${own[@]}" --set train.steps=6 &&
            expect 0 '' ranks 4 "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/run" "${own[@]}" --set train.steps=2 &&
            expect 0 'resuming after step 2' ranks 2 "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/run" "${own[@]}" --set train.steps=4 --resume &&
            expect 0 'resuming after step 4' train_tiny "$tmp/run" "${own[@]}" --set train.steps=6 --resume && same_run "$tmp/whole" "$tmp/run" 6 && echo 'the same bits'
    }
    check '4, 2 and 1 ranks: resumed with the same bits' resumed
    crowded() { [ "$(nvidia-smi -L | grep -c GPU)" -gt 1 ] && return 77; expect 2 'ranks were started on .*, which has 1 GPU.*parallel.crowd' ranks 2 "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/c" --set memory.micro_batch=auto; }
    check 'more ranks than GPUs: refused' crowded
fi

if section nccl; then
    motions() {
        rm -rf "$tmp/m0" "$tmp/m1" "$tmp/m2"
        expect 0 '' train_tiny "$tmp/m0" --set train.steps=4 --set train.clip_norm=0 "$@" &&
            PLIMSOLL_RANKS=1 expect 0 'by NCCL 2' train_tiny "$tmp/m1" --set train.steps=4 --set train.clip_norm=0 "$@" && grep -h "NCCL" "$tmp/out" "$tmp/err" &&
            PLIMSOLL_RANKS=1 PLIMSOLL_NCCL=0 expect 0 'through host memory' train_tiny "$tmp/m2" --set train.steps=4 --set train.clip_norm=0 "$@" &&
            same_run "$tmp/m0" "$tmp/m1" 4 && same_run "$tmp/m0" "$tmp/m2" 4 && grep -h "NCCL's own" "$tmp/log" | tail -n 1
    }
    check 'NCCL with one rank, f32' motions
    check 'NCCL with one rank, bf16' motions --set memory.precision=bf16
    # several N [ARGUMENT...]: N ranks of one GPU, connected by NCCL, against one process.
    several() {
        local n=$1
        shift
        [ -n "$shared_gpu" ] || { echo 'NCCL_MULTI_RANK_GPU_ENABLE is not set'; return 77; }
        NCCL_MULTI_RANK_GPU_ENABLE=1 via='by NCCL 2' equal "$n" "$n" 4 --set memory.micro_batch=auto --set train.clip_norm=1 "$@"
    }
    check 'NCCL, 2 ranks of one GPU' several 2
    check 'NCCL, 8 ranks of one GPU' several 8
    check 'NCCL, 3 ranks, divided optimizer state, bf16-pure' several 3 --set train.effective_batch=9 --set memory.precision=bf16-pure --set parallel.shard=optimizer
    check 'NCCL, 4 ranks, divided gradients, bf16' several 4 --set memory.precision=bf16 --set parallel.shard=gradients
    check 'NCCL, 4 ranks, divided weights, bf16, recompute' several 4 --set memory.precision=bf16 --set memory.recompute=all --set parallel.shard=weights
    check 'NCCL, 4 ranks as 2 hosts of 2, divided weights' several 4 --set parallel.per_host=2 --set parallel.shard=HYBRID_SHARD
    check 'NCCL, 8 ranks as 2 hosts of 4, weights divided among all, bf16' several 8 --set memory.precision=bf16 --set parallel.per_host=4 --set parallel.group=all --set parallel.shard=weights
fi

if section fail; then
    stopped_rank() {
        local p out="$tmp/stop" from
        rm -rf "$out"
        ranks 2 "$binary" train "$tmp/tiny.yaml" --set "train.out=$out" --set parallel.crowd=true --set train.steps=1000000 --set train.save_every=50 --set parallel.timeout=3 --set memory.micro_batch=auto >"$tmp/out" 2>"$tmp/err" &
        local launcher=$!
        for _ in $(seq 600); do [ -f "$out/checkpoints/step-50/DONE" ] && break; sleep 0.1; done
        for p in $(pgrep -f "^$binary train.*train.out=$out"); do grep -zq '^OMPI_COMM_WORLD_RANK=1$' "/proc/$p/environ" && break; done
        stopped="$stopped $p"
        from=$SECONDS
        kill -STOP "$p"
        for _ in $(seq 120); do kill -0 $launcher 2>/dev/null || break; sleep 0.1; done
        kill -0 $launcher 2>/dev/null && { echo 'still running after 12 s'; kill -KILL $launcher; cat "$tmp/err"; return 1; }
        grep -q "${cause:-waited 3 s for rank 1 (.*) in .*: is it stopped}" "$tmp/err" && echo "after $((SECONDS - from)) s: $(grep -o 'waited 3 s.*' "$tmp/err" | head -n 1)"
    }
    check 'a stopped rank: the deadline' stopped_rank
    stopped_nccl() {
        [ -n "$shared_gpu" ] || { echo 'NCCL_MULTI_RANK_GPU_ENABLE is not set'; return 77; }
        NCCL_MULTI_RANK_GPU_ENABLE=1 cause='waited 3 s for .*: is .* stopped' stopped_rank
    }
    check 'NCCL, a stopped rank: the deadline' stopped_nccl
    # Rank 1 has no network for NCCL, while rank 0 waits for it: all end long before the deadline.
    unconnected_rank() {
        local from=$SECONDS one=("$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/alone" --set parallel.crowd=true --set parallel.timeout=60 --set memory.micro_batch=auto)
        [ -n "$shared_gpu" ] || { echo 'NCCL_MULTI_RANK_GPU_ENABLE is not set'; return 77; }
        rm -rf "$tmp/alone"
        NCCL_MULTI_RANK_GPU_ENABLE=1 OMP_NUM_THREADS=1 expect 1 'rank 1.*NCCL: ' mpirun --bind-to none --oversubscribe -np 1 "${one[@]}" : -np 1 env NCCL_SOCKET_IFNAME==none "${one[@]}" &&
            [ $((SECONDS - from)) -lt 30 ] && echo "after $((SECONDS - from)) s: $(grep -ho 'NCCL: .*' "$tmp/err" | head -n 1)"
    }
    check 'NCCL that fails on one rank ends all' unconnected_rank
fi

if section speed; then
    # measure NAME [VARIABLE=VALUE...]: the median step of llama-1b in ms, of `plimsoll bench`,
    # which reads no data and saves nothing.
    cat >"$tmp/speed.yaml" <<EOT
model: {preset: llama-1b}
data: {format: bytes, sequence: 2048}
train: {steps: 1, effective_batch: ${B:-8}, clip_norm: 1}
memory: {precision: bf16, micro_batch: ${B:-8}}
device: cuda
EOT
    measure() {
        local name=$1
        shift
        env "$@" "$binary" bench "$tmp/speed.yaml" --steps "${STEPS:-20}" --json >"$tmp/$name.json" 2>"$tmp/$name.err" || { cat "$tmp/$name.err"; return 1; }
        grep -h 'gradients go' "$tmp/$name.err"
        echo "$name: $(awk -v s="$(json "$tmp/$name.json" measured_median_seconds)" 'BEGIN { print 1000 * s }') ms, NCCL's own $(json "$tmp/$name.json" outside_bytes) bytes"
    }
    for v in one nccl staged one-again; do
        case $v in nccl) own=(PLIMSOLL_RANKS=1) ;; staged) own=(PLIMSOLL_RANKS=1 PLIMSOLL_NCCL=0) ;; *) own=(PLIMSOLL_RANKS=) ;; esac
        check "llama-1b, $v" measure "$v" "${own[@]}"
    done
fi
summary
