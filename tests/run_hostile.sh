#!/bin/bash
# shellcheck disable=SC2015
# run_hostile.sh: on a machine that fails, a run gives no wrong result, never ends without a
# message, and two writers do not damage one file.
#
#   bash tests/run_hostile.sh     from the repository's root, after make; see run_lib.sh
#
# fault.c simulates failing disks at a chosen call. Where this user may mount, a disk that is really
# too small for its contents fails by itself.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault

# --- the offload file -------------------------------------------------------------------------

offload=(--set memory.offload=optimizer+masters+weights+activations --set memory.recompute=none --set memory.head_chunks=1 --set train.steps=4 --set train.save_every=2 --set data.sequence=16)
undisturbed() { expect 0 '' train_tiny "$tmp/calm" "${offload[@]}"; }
check 'all offloaded, an undisturbed run' undisturbed

# lost N [ARGUMENT...]: the disk loses the offload file at the N-th change of the run's folder. The
# run stops with the reason, and its checkpoints are those of the undisturbed run: it resumes with
# the same bits.
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
    if begun "$out"; then expect 0 '' train_tiny "$out" "${offload[@]}" --resume; else expect 0 '' train_tiny "$out" "${offload[@]}"; fi
    same_run "$tmp/calm" "$out" 4 && no_debris "$out"
}
check 'the disk loses the offload file after step 1' lost 2 metrics.jsonl
check 'the disk loses the offload file after step 3' lost 4 metrics.jsonl
check 'the disk loses the offload file while a checkpoint is written' lost 3 checkpoints/
check 'the disk loses the offload file while the model is written' lost 1 .model

# failing_disk [overlay]: a file system on a disk that takes fewer bytes than it claims, a file in a
# small tmpfs; or an overlay, as containers have, on top of it.
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

# --- inputs that change, and inputs that are no files -------------------------------------------

"$binary" data make "$tmp/set" --images 12 --shards 1 --size 96x80 --masks 3 >/dev/null || exit 2
"$binary" data pack "$tmp/set" -o "$tmp/set.pack" --size 64 --masks-size 32 >/dev/null || exit 2
"$binary" data pack "$tmp/set" -o "$tmp/map" --layout memmap --masks-size 32 >/dev/null || exit 2
cat >"$tmp/sam.yaml" <<YAML
model: {preset: sam-tiny}
data: {format: packed, train: "$tmp/set.pack", holdout: 0.25, max_masks: 2, image_size: 64, threads: 1}
train: {steps: 6, effective_batch: 2, learning_rate: 0.001, eval_every: 0, save_every: 2, out: "$tmp/unused"}
memory: {micro_batch: 2, precision: f32}
device: {kind: $DEVICE, threads: 1}
YAML
train_sam() {
    local out=$1
    shift
    # shellcheck disable=SC2086
    "$binary" train "$tmp/sam.yaml" --set "train.out=$out" $FLAGS "$@"
}
# shrinks FILE BYTES COMMAND...: FILE has only BYTES bytes left from the moment that metrics.jsonl,
# or the output, is written; the command stops with the reason.
shrinks() {
    needs_preload || return
    local file=$1 bytes=$2 when=$3
    shift 3
    FAULT=stop:$when FAULT_PATH=$tmp/shrunk LD_PRELOAD=$tools/fault.so "$@" >"$tmp/out" 2>"$tmp/err" &
    local pid=$! rc=0
    stopped=$pid
    for _ in $(seq 300); do
        kill -0 $pid 2>/dev/null || break
        grep -q '^State:.T' /proc/$pid/status 2>/dev/null && break
        sleep 0.05
    done
    cp "$file" "$tmp/kept"
    truncate -s "$bytes" "$file"
    kill -CONT $pid 2>/dev/null
    wait $pid || rc=$?
    stopped=
    cat "$tmp/kept" >"$file"
    rm -rf "$tmp/shrunk"
    [ "$rc" -eq 1 ] && grep -E "$file became shorter while it was read, or its disk failed" "$tmp/err" || { echo "status $rc, expected 1"; cat "$tmp/err"; return 1; }
}
run_shrunk() { exec "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/shrunk" "$@"; }
check 'a packed store that shrinks to nothing in a run' shrinks "$tmp/set.pack" 0 9 run_shrunk
check 'a packed store that shrinks to its index in a run' shrinks "$tmp/set.pack" 8192 9 run_shrunk
check 'masks of a memory map that shrink in a run' shrinks "$tmp/map/masks.u8" 0 9 run_shrunk --set "data.train=$tmp/map/index.json" --set data.holdout=0
pack_shrunk() { exec "$binary" data pack "$1" -o "$tmp/shrunk.pack" --size 64 --masks-size 32; }
check 'a packed store that shrinks while it is packed' shrinks "$tmp/set.pack" 4096 1 pack_shrunk "$tmp/set.pack"

# shrinks_mapped FILE COMMAND...: FILE has only 4096 bytes left as soon as it is mapped.
shrinks_mapped() {
    needs_preload || return
    local file=$1
    shift
    FAULT=shrink:4096 FAULT_PATH=$file LD_PRELOAD=$tools/fault.so expect 1 "$file became shorter while it was read, or its disk failed" "$@"
}
coco() {
    { echo '{"images": [{"id": 1, "file_name": "a.jpg", "width": 96, "height": 80}], "categories": [{"id": 1, "name": "c"}], "annotations": ['
      for i in $(seq 400); do echo "{\"id\": $i, \"image_id\": 1, \"category_id\": 1, \"iscrowd\": 0, \"area\": 4, \"bbox\": [1, 1, 2, 2], \"segmentation\": [[1, 1, 3, 1, 3, 3, 1, 3]]},"; done
      echo '{"id": 401, "image_id": 1, "category_id": 1, "iscrowd": 0, "area": 4, "bbox": [1, 1, 2, 2], "segmentation": [[1, 1, 3, 1, 3, 3, 1, 3]]}]}'; } >"$tmp/shrink.json"
    shrinks_mapped "$tmp/shrink.json" "$binary" data inspect --format coco "$tmp/shrink.json"
}
check 'a COCO file that shrinks while it is read' coco
pth() {
    cp tests/golden/convert/sam.pth "$tmp/shrink.pth" && shrinks_mapped "$tmp/shrink.pth" "$binary" convert "$tmp/shrink.pth" -o "$tmp/never" && [ ! -e "$tmp/never" ]
}
check 'a .pth file that shrinks while it is read' pth

# Every command with a pipe, a socket or a device in place of each of its inputs: refused at once.
mkfifo "$tmp/pipe" "$tmp/pipe.json" "$tmp/pipe.pack" "$tmp/pipe.csv" "$tmp/pipe.pth" "$tmp/pipe.png" "$tmp/pipe.tar" "$tmp/pipe.bin" "$tmp/pipe.safetensors" || exit 2
refused_pipe() {
    local status=$1
    shift
    expect "$status" 'is a (pipe|device|socket), not a regular file|neither a file nor a folder' timeout -s KILL 10 "$@"
}
check 'a pipe: run file' refused_pipe 2 "$binary" plan "$tmp/pipe"
check 'a device: run file' refused_pipe 2 "$binary" plan /dev/zero
check 'a pipe: plan' refused_pipe 2 "$binary" train "$golden/run.yaml" --plan "$tmp/pipe" --set "train.out=$tmp/never"
check 'a pipe: tokens' refused_pipe 2 "$binary" train "$tmp/tiny.yaml" --set "data.train=$tmp/pipe.bin" --set "train.out=$tmp/never"
check 'a pipe: tokens of safetensors' refused_pipe 2 "$binary" train "$tmp/tiny.yaml" --set data.format=tokens --set "data.train=$tmp/pipe.safetensors" --set "train.out=$tmp/never"
check 'a pipe: packed store' refused_pipe 2 "$binary" train "$tmp/sam.yaml" --set "data.train=$tmp/pipe.pack" --set "train.out=$tmp/never"
check 'a pipe: index of a memory map' refused_pipe 2 "$binary" train "$tmp/sam.yaml" --set "data.train=$tmp/pipe.json" --set "train.out=$tmp/never"
check 'a pipe: COCO' refused_pipe 2 "$binary" data inspect --format coco "$tmp/pipe.json"
check 'a pipe: table' refused_pipe 2 "$binary" data inspect --format csv "$tmp/pipe.csv"
check 'a pipe: shard' refused_pipe 2 "$binary" data inspect --format sa1b "$tmp/pipe.tar"
check 'a pipe: shard to prepare' refused_pipe 2 "$binary" data prepare "$tmp/pipe.tar" -o "$tmp/never"
check 'a pipe: checkpoint' refused_pipe 2 "$binary" convert "$tmp/pipe.pth" -o "$tmp/never"
check 'a pipe: batch' refused_pipe 2 "$binary" step --model "$golden" --batch "$tmp/pipe.safetensors" --out "$tmp/never"
check 'a pipe: a list of a split' refused_pipe 2 "$binary" train "$tmp/sam.yaml" --set "data.train_list=$tmp/pipe" --set "train.out=$tmp/never"
pipe_model() {
    mkdir -p "$tmp/piped" && cp "$golden/config.json" "$tmp/piped" && ln -sf "$tmp/pipe" "$tmp/piped/model.safetensors" && refused_pipe 2 "$binary" train "$golden/run.yaml" --set "model.path=$tmp/piped" --set "train.out=$tmp/never" &&
        cp "$golden/model.safetensors" "$tmp/piped/weights" && mv "$tmp/piped/weights" "$tmp/piped/model.safetensors" && ln -sf "$tmp/pipe" "$tmp/piped/config.json" && refused_pipe 2 "$binary" train "$golden/run.yaml" --set "model.path=$tmp/piped" --set "train.out=$tmp/never"
}
check 'a pipe: weights and config.json' pipe_model

# --- several writers ------------------------------------------------------------------------------

# Both processes stop while they write; then both finish. The output is one whole store.
two_packers() {
    needs_preload || return
    local pids=() p
    for n in 5 9; do
        FAULT=stop:$n FAULT_PATH=$tmp/two.pack LD_PRELOAD=$tools/fault.so "$binary" data pack "$tmp/set" -o "$tmp/two.pack" --size 64 --masks-size 32 >/dev/null 2>"$tmp/err.$n" &
        pids+=($!)
    done
    stopped="${pids[*]}"
    for p in "${pids[@]}"; do
        for _ in $(seq 200); do
            grep -q '^State:.T' "/proc/$p/status" 2>/dev/null && break
            sleep 0.05
        done
    done
    [ "$(find "$tmp" -maxdepth 1 -name 'two.pack.tmp.*' | wc -l)" -eq 2 ] || { echo 'expected two temporary files'; find "$tmp" -maxdepth 1 -name 'two.pack*'; return 1; }
    for p in "${pids[@]}"; do kill -CONT "$p" && wait "$p" || { echo 'a packer failed'; cat "$tmp"/err.*; return 1; }; done
    stopped=
    same "$tmp/set.pack" "$tmp/two.pack" && [ -z "$(find "$tmp" -maxdepth 1 -name 'two.pack.tmp.*')" ] && expect 0 '' "$binary" data verify "$tmp/two.pack"
}
check 'two data pack to one output: one whole store' two_packers
# What a killed process left is removed.
killed_packer() {
    needs_preload || return
    FAULT=kill:5 FAULT_PATH=$tmp/killed.pack LD_PRELOAD=$tools/fault.so expect 137 '' "$binary" data pack "$tmp/set" -o "$tmp/killed.pack" --size 64 --masks-size 32
    ls "$tmp"/killed.pack.tmp.* >/dev/null 2>&1 || { echo 'nothing was left'; return 1; }
    expect 0 '' "$binary" data pack "$tmp/set" -o "$tmp/killed.pack" --size 64 --masks-size 32 && same "$tmp/set.pack" "$tmp/killed.pack" && ! ls "$tmp"/killed.pack.tmp.* 2>/dev/null
}
check 'data pack after one that was killed' killed_packer
two_folders() {
    needs_preload || return
    FAULT=stop:8 FAULT_PATH=$tmp/folder LD_PRELOAD=$tools/fault.so "$binary" data pack "$tmp/set" -o "$tmp/folder" --layout memmap --masks-size 32 >/dev/null 2>"$tmp/err.1" &
    local p=$! rc=0
    stopped=$p
    for _ in $(seq 200); do
        grep -q '^State:.T' "/proc/$p/status" 2>/dev/null && break
        sleep 0.05
    done
    expect 0 '' "$binary" data pack "$tmp/set" -o "$tmp/folder" --layout memmap --masks-size 32 || return 1
    kill -CONT "$p" && wait "$p" || rc=$?
    stopped=
    [ "$rc" -eq 1 ] && grep -E 'folder: cannot put the new file in place' "$tmp/err.1" && same "$tmp/map/masks.u8" "$tmp/folder/masks.u8" && [ -z "$(find "$tmp" -maxdepth 1 -name 'folder.tmp.*')" ] ||
        { echo "status $rc"; cat "$tmp/err.1"; find "$tmp" -maxdepth 1 -name 'folder*'; return 1; }
}
check 'two data pack to one folder: the first is whole' two_folders

# Two conversions to one folder stop while they write. The first that continues ends with a whole
# folder while the other still writes; the other fails and does not change it.
two_converts() {
    needs_preload || return
    local pids=() p n
    expect 0 '' "$binary" convert tests/golden/convert/sam.pth -o "$tmp/alone" || return 1
    for n in 8 5; do
        FAULT=stop:$n FAULT_PATH=converted LD_PRELOAD=$tools/fault.so "$binary" convert tests/golden/convert/sam.pth -o "$tmp/converted" >/dev/null 2>"$tmp/err.$n" &
        p=$!
        pids+=("$p")
        stopped="${pids[*]}"
        for _ in $(seq 200); do
            grep -q '^State:.T' "/proc/$p/status" 2>/dev/null && break
            sleep 0.05
        done
    done
    kill -CONT "${pids[0]}"
    wait "${pids[0]}" && diff -r "$tmp/alone" "$tmp/converted" || { echo 'the first is not whole'; cat "$tmp/err.8"; return 1; }
    kill -CONT "${pids[1]}"
    wait "${pids[1]}" && { echo 'both were published'; return 1; }
    stopped=
    diff -r "$tmp/alone" "$tmp/converted" && [ -z "$(find "$tmp" -maxdepth 1 -name '*converted?*')" ] && tail -n 1 "$tmp/err.5" || { find "$tmp" -maxdepth 1 -name '*converted*'; return 1; }
}
check 'two convert to one folder: the first is whole' two_converts

# damaged BYTE: a store with a changed byte. Training names the sample, verify rejects the same one,
# and pack leaves it out.
damaged() {
    cp "$tmp/set.pack" "$tmp/damaged.pack" && printf '\377' | dd of="$tmp/damaged.pack" bs=1 seek="$1" conv=notrunc status=none
    cmp -s "$tmp/set.pack" "$tmp/damaged.pack" && { echo 'the byte was 255 already'; return 1; }
    expect 1 '' "$binary" data verify "$tmp/damaged.pack" && grep 'bad: .*the checksum is wrong' "$tmp/out" || { cat "$tmp/out"; return 1; }
    local name
    name=$(sed -n 's/^bad: \([^:]*\):.*/\1/p' "$tmp/out")
    expect 1 "samples are broken, but data.max_bad is 0.*$name: the bytes at .* are damaged: the checksum is wrong" "$binary" train "$tmp/sam.yaml" --set "data.train=$tmp/damaged.pack" --set data.holdout=0 --set data.max_bad=0 --set train.steps=6 --set "train.out=$tmp/bad" || return 1
    rm -rf "$tmp/bad"
    expect 0 "broken sample $name: it cannot be read .the bytes at" "$binary" train "$tmp/sam.yaml" --set "data.train=$tmp/damaged.pack" --set data.holdout=0 --set data.max_bad=0.5 --set train.steps=6 --set "train.out=$tmp/bad" || return 1
    rm -rf "$tmp/bad"
    expect 0 '' "$binary" data pack "$tmp/damaged.pack" -o "$tmp/again.pack" --size 64 --masks-size 32 && grep "$name" "$tmp/out" && expect 0 '' "$binary" data verify "$tmp/again.pack"
}
check 'a damaged sample: train, verify and pack find it' damaged 20000

# data verify and train agree on every sample: a cut JPEG, annotations above data.sample_memory, a
# wrong area, a malformed mask among others, only malformed masks.
agree() {
    local to=$tmp/mixed from=$tmp/plain
    "$binary" data make "$from" --images 6 --shards 1 --size 96x80 --masks 3 --extracted >/dev/null && cp -r "$from/sa_000000" "$to" || return 1
    head -c 700 "$from/sa_000000/sa_1.jpg" >"$to/sa_1.jpg" && sed -i 's/"area": [0-9]*/"area": 7/' "$to/sa_2.json" && head -c 9000000 /dev/zero | tr '\0' ' ' >>"$to/sa_3.json" || return 1
    sed -i '0,/"counts": "[^"]*"/s//"counts": "0"/' "$to/sa_4.json" && sed -i 's/"counts": "[^"]*"/"counts": "0"/g' "$to/sa_5.json" || return 1
    expect 1 '3 of 6 samples and 0 of 1 shards are bad' "$binary" data verify "$to" || return 1
    sed -n 's/^bad: \([^:]*\):.*/\1/p' "$tmp/out" | sort >"$tmp/bad"
    grep -q '^note: .*sa_2: .*area of 7' "$tmp/out" && grep -q '^note: .*sa_4: 1 of its 3 masks are left out' "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 0 '' train_sam "$tmp/agree" --set data.format=sa1b --set "data.train=$to" --set data.holdout=0 --set data.max_masks=3 --set data.max_bad=1 --set train.steps=3 || return 1
    sed -n 's/^warning: broken sample \([^:]*\):.*/\1/p' "$tmp/err" | sort -u >"$tmp/broken"
    same "$tmp/bad" "$tmp/broken" || { cat "$tmp/bad" "$tmp/broken"; return 1; }
    expect 1 '2 of 6 samples' "$binary" data verify "$to" --sample-memory 16 && wc -l <"$tmp/bad"
}
check 'data verify and train reject the same samples' agree

# --- the process --------------------------------------------------------------------------------

# A limit on the size of files, in blocks of 1 KiB: the command names the file.
limited() {
    local blocks=$1 pattern=$2 rc=0
    shift 2
    (ulimit -f "$blocks"; exec "$@") >"$tmp/out" 2>"$tmp/err" || rc=$?
    [ "$rc" -eq 1 ] && grep -E "$pattern" "$tmp/err" || { echo "status $rc, expected 1"; cat "$tmp/err"; return 1; }
}
check 'ulimit -f: train' limited 40 'cannot .*: File too large .*ulimit -f' "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/limited" --set train.steps=1 --set data.sequence=16
check 'ulimit -f: the offload file' limited 40 'offload file .*: File too large' "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/limited2" "${offload[@]}"
check 'ulimit -f: data pack' limited 40 'File too large .*ulimit -f' "$binary" data pack "$tmp/set" -o "$tmp/limited.pack" --size 64 --masks-size 32

# A reader that went away, closed descriptors: errors, and no byte of a message in a file.
# without_reader FD COMMAND...: FD of the command, 1 or 2, is a pipe that nobody reads.
without_reader() {
    local fd=$1 rc=0
    shift
    [ -p "$tmp/nobody" ] || mkfifo "$tmp/nobody" || return 1
    # shellcheck disable=SC2094
    exec 8<>"$tmp/nobody" 9>"$tmp/nobody" 8<&-
    if [ "$fd" -eq 1 ]; then "$@" >&9 2>"$tmp/err" || rc=$?; else "$@" >"$tmp/out" 2>&9 || rc=$?; fi
    exec 9>&-
    return $rc
}
gone() {
    local rc=0
    without_reader 1 "$binary" plan "$tmp/tiny.yaml" || rc=$?
    [ "$rc" -eq 1 ] && grep 'standard output cannot be written' "$tmp/err" || { echo "status $rc, expected 1"; cat "$tmp/err"; return 1; }
}
check 'a reader of the output that went away' gone
closed_out() {
    local rc=0
    "$binary" plan "$tmp/tiny.yaml" >&- 2>"$tmp/err" || rc=$?
    [ "$rc" -eq 1 ] && grep 'standard output cannot be written' "$tmp/err" || { echo "status $rc, expected 1"; cat "$tmp/err"; return 1; }
}
check 'a closed standard output' closed_out
closed_err() {
    expect 0 '' train_tiny "$tmp/open" --set train.steps=2 --set data.sequence=16 || return 1
    train_tiny "$tmp/shut" --set train.steps=2 --set data.sequence=16 <&- >/dev/null 2>&- || { echo "status $?"; return 1; }
    same_run "$tmp/open" "$tmp/shut" 2 && steps_once "$tmp/shut" 2 && ! "$binary" plan "$tmp/nowhere" 2>&-
}
check 'a closed standard error: the run is whole' closed_err
broken_err() {
    without_reader 2 train_tiny "$tmp/pipe_run" --set train.steps=2 --set data.sequence=16 || { echo "status $?"; return 1; }
    same_run "$tmp/open" "$tmp/pipe_run" 2
}
check 'a standard error that nobody reads: the run is whole' broken_err

# Small stacks of OpenMP's threads, by variable and by limit.
small_stacks() {
    OMP_STACKSIZE=64k expect 0 '' train_tiny "$tmp/stack1" --set train.steps=2 --set data.sequence=16 --set device.threads=2 || return 1
    GOMP_STACKSIZE=64 expect 0 '' "$binary" data verify "$tmp/set" || return 1
    (ulimit -S -s 128; expect 0 '' train_tiny "$tmp/stack2" --set train.steps=2 --set data.sequence=16 --set device.threads=2) && same_run "$tmp/stack1" "$tmp/stack2" 2 || return 1
    (ulimit -s 64; expect 0 '' train_tiny "$tmp/stack3" --set train.steps=2 --set data.sequence=16 --set device.threads=2) && same_run "$tmp/stack1" "$tmp/stack3" 2
}
check 'small stacks' small_stacks

# --- long and odd names, large files ------------------------------------------------------------

# A run folder whose path has more than 511 bytes.
long_path() {
    local out=$tmp
    for _ in 1 2 3 4; do out=$out/$(printf 'n%.0s' {1..200}); done
    expect 0 '' train_tiny "$out" "${offload[@]}" && same_run "$tmp/calm" "$out" 4 && echo ${#out}
}
check 'the offload file below a path of 800 bytes' long_path
# Lines behind 257 MiB of one damaged line.
large_report() {
    cp -r "$tmp/calm" "$tmp/large" && rm -f "$tmp/large/report.html" && head -n 1 "$tmp/calm/metrics.jsonl" >"$tmp/large/metrics.jsonl" && truncate -s 257M "$tmp/large/metrics.jsonl" && { echo; tail -n +2 "$tmp/calm/metrics.jsonl"; } >>"$tmp/large/metrics.jsonl" || return 1
    expect 0 '' "$binary" report "$tmp/large" && "$binary" report "$tmp/calm" >/dev/null && diff <(sed "s|large|calm|g" "$tmp/large/report.html") "$tmp/calm/report.html"
}
check 'a report of metrics above 256 MiB' large_report
# No control code of a name reaches the terminal.
odd_names() {
    local odd=$'a\e[2J\nb\tc\x7f\xc2\x9b'
    expect 2 'a\\x1b\[2J\\nb\\tc\\x7f\\xc2\\x9b.yaml' "$binary" plan "$tmp/$odd.yaml" && [ "$(wc -l <"$tmp/err")" -eq 1 ] || return 1
    expect 2 'unknown command a\\x1b' "$binary" "$odd" && ! grep -q $'\e' "$tmp/err" || return 1
    mkdir -p "$tmp/odd" && cp "$tmp/plain/sa_000000/sa_1.json" "$tmp/odd/$odd.json" && head -c 700 "$tmp/plain/sa_000000/sa_1.jpg" >"$tmp/odd/$odd.jpg" || return 1
    expect 1 '' "$binary" data verify "$tmp/odd" && grep '^bad: .*a\\x1b\[2J\\nb\\tc' "$tmp/out" && ! grep -q $'\e' "$tmp/out" "$tmp/err"
}
check 'control codes of names are escaped' odd_names
# memory.host_budget auto is one byte on a full disk.
no_room() {
    needs_cpu 'the offload file' || return
    expect 3 'memory.host_budget' "$binary" plan "$tmp/tiny.yaml" --set memory.offload=optimizer --set memory.host_budget=1 && ! grep -q '1 B' "$tmp/err"
}
check 'no room for an offload file' no_room

summary
