#!/bin/bash
# shellcheck disable=SC2015
# run_hostile.sh: on a machine that fails, a run gives no wrong result, never ends without a message, and two
# writers do not damage one file.
#
#   bash tests/run_hostile.sh     from the repository's root, after make; see run_lib.sh
#
# fault.c simulates failing disks at a chosen call. Where this user may mount, a disk that is really too small
# for its contents fails by itself.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault

# --- the offload file -------------------------------------------------------------------------

offload=(--set memory.offload=optimizer+masters+weights+activations --set memory.recompute=none --set memory.head_chunks=1 --set train.steps=4 --set train.save_every=2 --set data.sequence=16)
undisturbed() { expect 0 '' train_tiny "$tmp/calm" "${offload[@]}"; }
check 'all offloaded, an undisturbed run' undisturbed

# lost N [ARGUMENT...]: the disk loses the offload file at the N-th change of the run's folder. The run stops with the
# reason, and its checkpoints are those of the undisturbed run: it resumes with the same bits.
lost() {
    needs_preload && needs_cpu 'the offload file' || return
    local n=$1 out=$tmp/lost step
    shift
    rm -rf "$out"
    FAULT=lost:$n FAULT_PATH=$out/$1 LD_PRELOAD=$tools/fault.so expect 1 'the disk of the offload file, in .*, lost bytes of this run: Input/output error.*--resume' train_tiny "$out" "${offload[@]}" || return 1
    [ ! -e "$out/model" ] || { echo 'a model was published'; return 1; }
    for step in "$out"/checkpoints/step-*; do
        [ ! -d "$step" ] || same "$step/state.safetensors" "$tmp/calm/checkpoints/${step##*/}/state.safetensors" || return 1
    done
    if [ -f "$out/config.yaml" ]; then expect 0 '' train_tiny "$out" "${offload[@]}" --resume; else expect 0 '' train_tiny "$out" "${offload[@]}"; fi
    same_run "$tmp/calm" "$out" 4 && no_debris "$out"
}
check 'the disk loses the offload file after step 1' lost 2 metrics.jsonl
check 'the disk loses the offload file after step 3' lost 4 metrics.jsonl
check 'the disk loses the offload file while a checkpoint is written' lost 3 checkpoints/
check 'the disk loses the offload file while the model is written' lost 1 .model

# failing_disk [overlay]: a file system on a disk that takes fewer bytes than it claims, a file in a small tmpfs; or an
# overlay, as containers have, on top of it.
failing_disk() {
    needs_cpu 'the offload file' || return
    local disk=$tmp/disk above=$tmp/overlay folder=$tmp/disk/run pid rc=0
    mkdir -p "$tmp/small" "$disk" "$above"
    mount -t tmpfs -o size=12m tmpfs "$tmp/small" 2>/dev/null || { echo 'this user cannot mount a tmpfs'; return 77; }
    mounts="$above $disk $tmp/small"
    truncate -s 512M "$tmp/small/image" && mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1 "$tmp/small/image" 2>/dev/null && mount -o loop "$tmp/small/image" "$disk" 2>/dev/null ||
        { umount "$tmp/small"; echo 'this machine has no loop devices or no mkfs.ext4'; return 77; }
    if [ "${1:-}" = overlay ]; then
        mkdir -p "$disk/lower" "$disk/upper" "$disk/work" && folder=$above/run
        mount -t overlay overlay -o "lowerdir=$disk/lower,upperdir=$disk/upper,workdir=$disk/work" "$above" 2>/dev/null || { umount "$disk" "$tmp/small"; echo 'this machine has no overlay'; return 77; }
    fi
    # shellcheck disable=SC2086
    "$binary" train "$tmp/tiny.yaml" --set "train.out=$folder" $FLAGS "${offload[@]}" --set train.steps=100000 --set train.save_every=0 --set train.eval_every=0 \
        --set data.sequence=128 --set memory.host_budget=none >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    stopped=$pid
    for _ in $(seq 150); do
        sleep 0.1
        kill -0 $pid 2>/dev/null || break
        sync -f "$disk" 2>/dev/null
    done
    kill -KILL $pid 2>/dev/null && { echo 'the run did not notice'; rc=1; }
    wait $pid 2>/dev/null
    stopped=
    for folder in $mounts; do umount "$folder" 2>/dev/null; done
    mounts=
    grep -E '(offload file.*lost bytes|cannot write|cannot sync)' "$tmp/err" || { cat "$tmp/err"; rc=1; }
    return $rc
}
check 'a disk that fails by itself' failing_disk
check 'a disk below an overlay that fails by itself' failing_disk overlay

summary
