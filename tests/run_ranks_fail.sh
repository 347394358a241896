#!/bin/bash
# shellcheck disable=SC2015
# run_ranks_fail.sh: what ends a run of several ranks ends all of them, within seconds, with one
# exit code and the cause.
#
#   bash tests/run_ranks_fail.sh    from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh
preload fault
long=(--set memory.micro_batch=1 --set train.steps=100000 --set train.save_every=5 --set parallel.timeout=3)

# begin OUT [ARGUMENT...]: starts 3 ranks and waits for a checkpoint; sets `pid`.
begin() {
    local out=$1 i
    shift
    rm -rf "$out"
    train_ranks 3 "$out" "${long[@]}" "$@" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    for i in $(seq 200); do [ -f "$out/checkpoints/step-5/DONE" ] && return 0; sleep 0.1; done
    cat "$tmp/err"
    return 1
}
# a_rank OUT: the process id of a rank that is not rank 0.
a_rank() {
    local p
    for p in $(pgrep -f "^$binary train.*train.out=$1"); do
        grep -zq '^OMPI_COMM_WORLD_RANK=1$' "/proc/$p/environ" 2>/dev/null && echo "$p" && return
    done
}
# ended OUT STATUS SECONDS PATTERN: the run ends in time with that status and message, and leaves no
# process.
ended() {
    local from=$SECONDS rc=0 i
    for i in $(seq $(($3 * 10))); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -0 "$pid" 2>/dev/null && { echo "still running after $3 s"; kill -KILL "$pid"; cat "$tmp/err"; return 1; }
    wait "$pid" || rc=$?
    [ "$2" = any ] && [ "$rc" -ne 0 ] || [ "$rc" = "$2" ] || { echo "status $rc, expected $2"; cat "$tmp/err"; return 1; }
    [ -z "$4" ] || grep -Eq -- "$4" "$tmp/err" || { echo "no /$4/:"; cat "$tmp/err"; return 1; }
    left_behind "train.out=$1" || return 1
    for i in "$1"/checkpoints/step-*; do [ -f "$i/DONE" ] || { echo "$i has no DONE"; return 1; }; done
    echo "after $((SECONDS - from)) s"
}

killed() { begin "$tmp/k" && kill -KILL "$(a_rank "$tmp/k")" && ended "$tmp/k" any 5 ''; }
check 'a rank is killed' killed
stopped_rank() {
    begin "$tmp/s" || return 1
    local p
    p=$(a_rank "$tmp/s")
    stopped="$stopped $p"
    # 3 s of waiting, 1 s for an answer; a rank may be saving before, which takes long where the
    # disk is busy.
    kill -STOP "$p" && ended "$tmp/s" any 20 'waited 3 s for rank 1 \(.*\) in .*: is it stopped, or the network down'
}
check 'a rank is stopped: the deadline' stopped_rank
signalled() { begin "$tmp/u" && kill -USR1 "$(a_rank "$tmp/u")" && ended "$tmp/u" 1 8 'stopped by .* after step [0-9]+ of 100000; saved. Resume with: mpirun -np 3 plimsoll train'; }
check 'SIGUSR1 of one rank: all save and end' signalled
nan() { expect 1 'the (loss|gradient norm) is -?(nan|inf)' train_ranks 2 "$tmp/n" --set train.learning_rate=1e30 --set train.steps=20 --set memory.micro_batch=auto && left_behind "train.out=$tmp/n"; }
check 'a loss that is not finite' nan
exists() { mkdir -p "$tmp/full" && touch "$tmp/full/file" && expect 2 'rank 0 on .*: .*full' train_ranks 2 "$tmp/full" --set train.steps=1 --set memory.micro_batch=auto && left_behind "train.out=$tmp/full"; }
check 'rank 0 cannot use train.out' exists
# one_fails PATTERN COMMAND: 3 ranks, of which rank 1 runs the command first; the data are in the
# folder data.
one_fails() {
    cat >"$tmp/other.sh" <<EOF
#!/bin/bash
if [ "\$OMPI_COMM_WORLD_RANK" = 1 ]; then $2; fi
exec "$(realpath "$binary")" "\$@"
EOF
    chmod +x "$tmp/other.sh"
    rm -rf "$tmp/o" "$tmp/here" "$tmp/there"
    mkdir -p "$tmp/here/data" "$tmp/there/data" && cat tests/golden/make_*.py | head -c 20000 | tee "$tmp/here/data/text.py" | head -c 10000 >"$tmp/there/data/text.py"
    (cd "$tmp/here" && expect 2 "$1" ranks 3 "$tmp/other.sh" train "$tmp/tiny.yaml" --set 'data.train=data/*.py' --set "train.out=$tmp/o" --set train.steps=1 --set memory.micro_batch=1) && left_behind "train.out=$tmp/o" && [ ! -e "$tmp/o" ]
}
check 'no data on one rank' one_fails 'rank 1 on .*data/\*\.py' 'cd /'
check 'other data on one rank' one_fails 'the data.* on rank 1 differs from that on rank 0' "cd $tmp/there"
# The disk is full while rank 0 saves step 4: all end, and the checkpoint of step 2 is whole.
full_disk() {
    needs_preload || return
    cat >"$tmp/full.sh" <<EOF
#!/bin/bash
if [ "\$OMPI_COMM_WORLD_RANK" = 0 ]; then export FAULT=nospace:1 FAULT_PATH=.step-4 LD_PRELOAD=$tools/fault.so; fi
exec "$binary" "\$@"
EOF
    chmod +x "$tmp/full.sh"
    expect 1 'rank 0 on .*saving step 4: .*[Nn]o space' ranks 2 "$tmp/full.sh" train "$tmp/tiny.yaml" --set "train.out=$tmp/disk" --set train.steps=6 --set train.save_every=2 --set memory.micro_batch=auto &&
        left_behind "train.out=$tmp/disk" && [ -f "$tmp/disk/checkpoints/step-2/DONE" ] && [ ! -d "$tmp/disk/checkpoints/step-4" ] && grep 'saving step 4' "$tmp/err" &&
        expect 0 'resuming after step 2' train_ranks 2 "$tmp/disk" --set train.steps=6 --set train.save_every=2 --set memory.micro_batch=auto --resume
}
check 'a full disk while saving' full_disk
# A sample of the validation set is broken, and one rank has it: all end, without a deadline. With
# weights in shards the others would wait for it in the program.
broken_validation() {
    "$binary" data make "$tmp/masks" --images 6 --size 96x80 --masks 5 >/dev/null && cp -r "$tmp/masks" "$tmp/broken" || return 1
    local tar at
    for tar in "$tmp"/broken/*.tar; do break; done
    at=$(grep -abo 'sa_[0-9]*\.jpg' "$tar" | sed -n 4p | cut -d : -f 1)
    head -c 300 /dev/zero | dd of="$tar" bs=1 seek=$((at + 512)) conv=notrunc 2>/dev/null
    printf 'model: {preset: sam-tiny}\ndata: {format: sa1b, train: "%s/*.tar", validation: "%s/*.tar", max_masks: 3, max_bad: 0, threads: 1}\n' "$tmp/masks" "$tmp/broken" >"$tmp/sam.yaml"
    printf 'train: {steps: 2, effective_batch: 2, eval_every: 1, out: "%s"}\nmemory: {micro_batch: 1, precision: f32}\nparallel: {shard: weights}\ndevice: cpu\n' "$tmp/bv" >>"$tmp/sam.yaml"
    expect 1 'rank 1 on.*:.*data.max_bad is 0' ranks 2 "$binary" train "$tmp/sam.yaml" && left_behind "$tmp/sam.yaml" && grep -o 'rank 1 on .* broken' "$tmp/err"
}
check 'a broken sample in an evaluation, weights in shards' broken_validation
other_program() {
    mkdir -p "$tmp/other" && cp "$binary" "$BUILD/plimsoll-mpi.so" "$tmp/other" && echo >>"$tmp/other/plimsoll" || return 1
    cat >"$tmp/mixed.sh" <<EOF
#!/bin/bash
if [ "\$OMPI_COMM_WORLD_RANK" = 2 ]; then exec "$tmp/other/plimsoll" "\$@"; fi
exec "$binary" "\$@"
EOF
    chmod +x "$tmp/mixed.sh"
    expect 2 'the program on rank 2 differs from that on rank 0' ranks 3 "$tmp/mixed.sh" train "$tmp/tiny.yaml" --set "train.out=$tmp/mixed" --set train.steps=1 --set memory.micro_batch=1 && left_behind "train.out=$tmp/mixed"
}
check 'another program on one rank' other_program
nofit() { expect 3 'smallest' train_ranks 2 "$tmp/nf" --set memory.budget=1MiB --set train.steps=1 --set memory.micro_batch=auto; }
check 'does not fit: exit 3' nofit

# --- launchers ----------------------------------------------------------------------------------
torchrun() { RANK=1 WORLD_SIZE=4 MASTER_ADDR=here expect 2 'torchrun started this as rank 1 of 4.*mpirun -np 4 plimsoll train' train_tiny "$tmp/t"; }
check 'torchrun: refused with the command to type' torchrun
slurm() { SLURM_STEP_NUM_TASKS=4 expect 2 'srun --mpi=pmix' train_tiny "$tmp/t"; }
check 'srun without PMIx: refused' slurm
without_mpi() {
    mkdir -p "$tmp/bin" && cp "$binary" "$tmp/bin/plimsoll" && OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=3 expect 2 'launched as rank 3 of 8, and this build has no MPI' "$tmp/bin/plimsoll" train "$tmp/tiny.yaml" --set "train.out=$tmp/t" &&
        expect 2 '^plimsoll train: --ranks 2:.*MPI' "$tmp/bin/plimsoll" train "$tmp/tiny.yaml" --ranks 2 && [ "$(wc -l <"$tmp/err")" = 1 ] && cat "$tmp/err"
}
check 'a launcher and no plug-in: refused' without_mpi
# Without MPI the program is the same, and only the plug-in is missing.
optional() {
    [ "$(grep -rl 'mpi\.h' src | sort)" = src/dist/mpi.c ] || { grep -rl 'mpi\.h' src; return 1; }
    make -n MPI=0 CUDA=0 BUILD="$tmp/none" all >"$tmp/make" 2>/dev/null && ! grep -q -- '-o [^ ]*plimsoll-mpi\.so\|mpicc' "$tmp/make" && grep -c dist/launch.c "$tmp/make"
}
check 'make MPI=0 builds everything but the plug-in' optional
headers() { grep -o 'src/base/base.h' "$BUILD/plimsoll-mpi.so.d" | head -n 1; }
check 'the plug-in is rebuilt with the headers that it includes' headers
commands() { expect 2 'only .plimsoll train., bench and profile run on several ranks' ranks 2 "$binary" plan "$tmp/tiny.yaml"; }
check 'other commands on ranks: refused' commands
number_of_ranks() {
    expect 2 'parallel.ranks is 4, and 1 process was started' train_tiny "$tmp/t" --set parallel.ranks=4 && expect 2 'parallel.shares is 3,.*2 ranks' train_ranks 2 "$tmp/t" --set parallel.shares=3 &&
        expect 2 'gradients of a weight are complete only after all shares' train_tiny "$tmp/t" --set parallel.shares=2 --set memory.fused_step=on --set memory.micro_batch=auto
}
check 'numbers that do not fit' number_of_ranks
summary
