#!/bin/bash
# shellcheck disable=SC2015
# slurm_ranks.sh: ranks under Slurm, only on this machine: munged, slurmctld and slurmd are started
# for this script, with files and ports of their own. Needs root and the packages slurm-wlm and
# munge; `make test-slurm` runs it, `make test` does not.
#
#   bash tests/slurm_ranks.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh
skip() {
    echo "skip  ranks under Slurm: $1"
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
}
[ "$(id -u)" = 0 ] || skip 'not root'
PATH=$PATH:/usr/sbin
for p in munged slurmctld slurmd srun; do command -v $p >/dev/null || skip "no $p (apt-get install slurm-wlm munge)"; done
daemons=
stop() {
    # shellcheck disable=SC2086
    [ -z "$daemons" ] || kill -KILL $daemons 2>/dev/null
    wait 2>/dev/null
    clean_up
}
trap stop EXIT
host=$(hostname -s) port=$((20000 + $$ % 20000))
mkdir -p "$tmp/state" "$tmp/spool" && chmod 755 "$tmp" || exit 2
head -c 1024 /dev/urandom >"$tmp/munge.key" && chmod 400 "$tmp/munge.key"
cat >"$tmp/slurm.conf" <<EOT
ClusterName=plimsoll
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
AuthInfo=socket=$tmp/munge.socket
CredType=cred/munge
StateSaveLocation=$tmp/state
SlurmdSpoolDir=$tmp/spool
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmdPidFile=$tmp/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
EOT
export SLURM_CONF=$tmp/slurm.conf
munged --foreground --force --key-file="$tmp/munge.key" --socket="$tmp/munge.socket" --pid-file="$tmp/munge.pid" --log-file="$tmp/munge.log" --seed-file="$tmp/munge.seed" >"$tmp/munged.out" 2>&1 &
daemons="$daemons $!"
for _ in $(seq 50); do [ -S "$tmp/munge.socket" ] && break; sleep 0.1; done
slurmctld -D >"$tmp/slurmctld.log" 2>&1 &
daemons="$daemons $!"
slurmd -D -N "$host" >"$tmp/slurmd.log" 2>&1 &
daemons="$daemons $!"
for _ in $(seq 300); do timeout 2 srun -t 1 -n 1 true >/dev/null 2>&1 && break; sleep 0.2; done
timeout 10 srun -n 1 true >"$tmp/srun.log" 2>&1 || { tail -n 5 "$tmp/srun.log" "$tmp/munged.out" "$tmp/slurmctld.log" "$tmp/slurmd.log"; skip 'Slurm does not start here'; }
srun --mpi=list 2>&1 | grep -q pmix || skip 'this Slurm has no PMIx plug-in'

slurm() { srun --mpi=pmix "$@"; }
equal() {
    expect 0 '' train_tiny "$tmp/one" --set parallel.shares=4 --set train.steps=3 --set memory.micro_batch=1 --set train.clip_norm=1 &&
        expect 0 '4 ranks, 4 on this host' slurm -n 4 "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/many" --set train.steps=3 --set memory.micro_batch=1 --set train.clip_norm=1 &&
        same_run "$tmp/one" "$tmp/many" 3 && echo 'the same bits as one process'
}
check 'srun --mpi=pmix -n 4' equal
without() { expect 2 'srun started 2 tasks without PMIx.*srun --mpi=pmix' srun --mpi=none -n 2 "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/w"; }
check 'srun without PMIx: refused' without
code() { expect 3 'smallest' slurm -n 2 "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/nf" --set memory.budget=1MiB --set memory.micro_batch=auto; }
check 'the exit code is handed on' code
# begin OUT: 3 ranks, until a checkpoint is there; sets `pid`.
begin() {
    slurm -n 3 "$binary" train "$tmp/tiny.yaml" --set "train.out=$1" --set memory.micro_batch=1 --set train.steps=100000 --set train.save_every=5 --set parallel.timeout=3 >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    for _ in $(seq 300); do [ -f "$1/checkpoints/step-5/DONE" ] && return 0; sleep 0.1; done
    cat "$tmp/err"
    return 1
}
# ended OUT SECONDS PATTERN
ended() {
    local from=$SECONDS
    for _ in $(seq $(($2 * 10))); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -0 "$pid" 2>/dev/null && { echo "still running after $2 s"; kill -KILL "$pid"; cat "$tmp/err"; return 1; }
    wait "$pid" && { echo 'exit code 0'; return 1; }
    [ -z "$3" ] || grep -Eq -- "$3" "$tmp/err" || { cat "$tmp/err"; return 1; }
    left_behind "train.out=$1" && for i in "$1"/checkpoints/step-*; do [ -f "$i/DONE" ] || { echo "$i has no DONE"; return 1; }; done && echo "after $((SECONDS - from)) s"
}
signalled() { begin "$tmp/u" && scancel --signal=USR1 "$(squeue -h -o %i | head -n 1)" && ended "$tmp/u" 10 'stopped by .* after step [0-9]+ of 100000; saved'; }
check 'scancel --signal=USR1: all save and end' signalled
killed() { begin "$tmp/k" && kill -KILL "$(pgrep -f "^$binary train.*train.out=$tmp/k" | tail -n 1)" && ended "$tmp/k" 10 ''; }
check 'a task is killed' killed
summary
