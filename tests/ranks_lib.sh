# ranks_lib.sh: for the run_ranks*.sh scripts, after run_lib.sh: runs of several ranks under Open
# MPI's mpirun.
# shellcheck shell=bash
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export OMP_NUM_THREADS=1
# Without the network: ranks of one machine.
export OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1
if [ "$DEVICE" != cpu ] || [ ! -f "$BUILD/plimsoll-mpi.so" ] || ! command -v mpirun >/dev/null; then
    echo "skip  ranks: this build has no MPI, or there is no mpirun (install openmpi-bin and libopenmpi-dev, then make)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
# ranks N COMMAND...: the command on N ranks.
ranks() {
    local n=$1
    shift
    mpirun -np "$n" --bind-to none --oversubscribe "$@"
}
# train_ranks N OUT [ARGUMENT...]: the tiny model on N ranks; 1: one process without a launcher.
train_ranks() {
    local n=$1 out=$2
    shift 2
    if [ "$n" -eq 1 ]; then train_tiny "$out" "$@"; else ranks "$n" "$binary" train "$tmp/tiny.yaml" --set "train.out=$out" "$@"; fi
}
# chat_run: writes $tmp/chat.yaml, a run on conversations that answers two prompts.
chat_run() {
    head -n 3 tests/golden/chat/chats.jsonl >"$tmp/prompts.jsonl"
    cat >"$tmp/chat.yaml" <<YAML
model: {path: tests/golden/chat/model}
data: {format: conversations, train: tests/golden/chat/chats.jsonl, validation: "$tmp/prompts.jsonl", sequence: 128}
train: {steps: 2, effective_batch: 4, learning_rate: 0.01, eval_every: 2, eval_samples: 2, eval_max_new: 6}
memory: {micro_batch: 2, precision: f32, head_chunks: 1}
device: cpu
YAML
}
# left_behind PATTERN: fails if a process with PATTERN in its command line is still there after 2
# seconds.
left_behind() {
    local i
    for i in 1 2 3 4 5 6 7 8; do
        pgrep -f -- "$1" >/dev/null || return 0
        sleep 0.25
    done
    echo "processes are left: $(pgrep -af -- "$1")"
    return 1
}
