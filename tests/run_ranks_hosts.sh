#!/bin/bash
# shellcheck disable=SC2015
# run_ranks_hosts.sh: ranks on two hosts, which are network namespaces of this machine with names,
# addresses and folders for temporary files of their own, connected by one link. mpirun starts the
# second one's ranks by a script in place of ssh. Needs root.
#
#   bash tests/run_ranks_hosts.sh    from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh
a=pla$$ b=plb$$
remove_hosts() {
    ip netns pids "$a" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns pids "$b" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
    ip netns del "$a" 2>/dev/null
    ip netns del "$b" 2>/dev/null
}
skip() {
    echo "skip  ranks on two hosts: $1"
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
}
[ "$(id -u)" = 0 ] || skip 'not root'
command -v ip >/dev/null && command -v unshare >/dev/null || skip 'no ip (iproute2) or unshare'
ip netns add "$a" 2>/dev/null && ip netns add "$b" 2>/dev/null || { remove_hosts; skip 'no network namespace can be made here'; }
trap 'remove_hosts; clean_up' EXIT
ip link add "$a" netns "$a" type veth peer name "$b" netns "$b" && ip -n "$a" addr add 10.213.7.1/24 dev "$a" && ip -n "$b" addr add 10.213.7.2/24 dev "$b" &&
    ip -n "$a" link set "$a" up && ip -n "$b" link set "$b" up && ip -n "$a" link set lo up && ip -n "$b" link set lo up || skip 'no pair of network devices can be made here'

# host NAMESPACE COMMAND...: runs it there, under a host name and with temporary files of its own.
cat >"$tmp/host" <<EOT
#!/bin/bash
name=\$1
shift
mkdir -p "$tmp/files-\$name"
export TMPDIR=$tmp/files-\$name
exec ip netns exec "\$name" unshare --uts bash -c 'hostname "\$0"; exec "\$@"' "\$name" "\$@"
EOT
# What mpirun calls instead of ssh: HOST COMMAND, which is text for a shell.
cat >"$tmp/agent" <<EOT
#!/bin/bash
case \$1 in 10.213.7.1) name=$a ;; *) name=$b ;; esac
shift
exec "$tmp/host" \$name bash -c "\$*"
EOT
chmod +x "$tmp/host" "$tmp/agent"
export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=10.213.7.0/24 OMPI_MCA_oob_tcp_if_include=10.213.7.0/24
# hosts EACH COMMAND...: that many ranks on each of the two.
hosts() {
    local each=$1
    shift
    "$tmp/host" "$a" mpirun --host "10.213.7.1:$each,10.213.7.2:$each" -np $((2 * each)) --mca plm_rsh_agent "$tmp/agent" ${PLIMSOLL_HIDE_CPU:+-x PLIMSOLL_HIDE_CPU} --bind-to none --oversubscribe "$@"
}
equal() {
    local each=$1
    shift
    rm -rf "$tmp/one" "$tmp/two"
    expect 0 '' train_tiny "$tmp/one" --set "parallel.shares=$((2 * each))" --set train.steps=3 --set memory.micro_batch=1 "$@" &&
        expect 0 "$((2 * each)) ranks, $each on this host" hosts "$each" "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/two" --set train.steps=3 --set memory.micro_batch=1 "$@" &&
        same_run "$tmp/one" "$tmp/two" 3 && echo 'the same bits as one process'
}
check 'a rank on each of two hosts' equal 1 --set train.clip_norm=1
# One copy between all ranks: sums and gathers inside the hosts and across them.
level() {
    local each=$1 level=$2
    shift 2
    equal "$each" --set train.effective_batch=$((2 * each)) --set memory.head_chunks=1 --set parallel.group=all --set "parallel.shard=$level" "$@"
}
check 'two ranks on each of two hosts, nothing divided' equal 2 --set train.effective_batch=4 --set memory.head_chunks=1 --set parallel.shard=none
check 'two ranks on each of two hosts, optimizer state divided among all' level 2 optimizer --set train.clip_norm=1
check 'two ranks on each of two hosts, gradients divided among all' level 2 gradients --set memory.precision=bf16
check 'two ranks on each of two hosts, weights divided among all' level 2 weights --set memory.precision=bf16 --set memory.optimizer=adamw-8bit
check 'four ranks on each of two hosts, nothing divided' equal 4 --set train.effective_batch=8 --set memory.head_chunks=1 --set parallel.shard=none
check 'four ranks on each of two hosts, optimizer state divided among all' level 4 optimizer --set memory.precision=bf16
check 'four ranks on each of two hosts, gradients divided among all' level 4 gradients
check 'four ranks on each of two hosts, weights divided among all' level 4 weights
check 'two ranks on each of two hosts, weights divided inside a host' equal 2 --set train.effective_batch=4 --set memory.precision=bf16 --set memory.head_chunks=1 --set parallel.shard=HYBRID_SHARD
copies() { grep -q 'a copy of what is divided on each host' "$tmp/err" && json "$tmp/two/plan.json" settings.group_ranks; }
check 'the log tells of the copies' copies
# Bytes from the first host to the second in 8 steps, beside those of one exchange between all ranks
# (as without hosts: parallel.per_host 1).
sent() {
    local each=$1 before
    shift
    before=$(ip netns exec "$a" cat "/sys/class/net/$a/statistics/tx_bytes")
    expect 0 '' hosts "$each" "$binary" bench "$tmp/tiny.yaml" --steps 8 --set memory.precision=f32 --set memory.micro_batch=1 --set memory.head_chunks=1 --set train.effective_batch=$((2 * each)) --set parallel.group=all "$@" || return 1
    echo $(($(ip netns exec "$a" cat "/sys/class/net/$a/statistics/tx_bytes") - before)) >"$tmp/bytes"
}
# less EACH LEVEL PERCENT: at most this share of the bytes.
less() {
    local flat two
    sent "$1" --set "parallel.shard=$2" --set parallel.per_host=1 && flat=$(cat "$tmp/bytes") && sent "$1" --set "parallel.shard=$2" && two=$(cat "$tmp/bytes") &&
        echo "$((two / 1000)) kB, $((flat / 1000)) kB in one exchange" && [ $((100 * two)) -lt $(($3 * flat)) ]
}
check 'two ranks on each of two hosts: half of the bytes go between hosts' less 2 optimizer 56
check 'four ranks on each of two hosts, weights divided: a quarter' less 4 weights 32
# Ranks 0 and 2 on one host, 1 and 3 on the other: their numbers do not follow each other.
scattered() { expect 2 'ranks are not numbered host by host' hosts 2 --map-by node "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/scattered" --set train.steps=1 --set memory.micro_batch=1 --set parallel.shard=HYBRID_SHARD && echo 'refused'; }
check 'ranks that are not numbered host by host' scattered
slow() { tc -n "$a" qdisc add dev "$a" root tbf rate 1gbit burst 64kb latency 50ms 2>/dev/null || { echo 'no traffic shaping (tbf) in this kernel'; return 77; }; equal 1; }
check 'over a link of 1 Gbit/s' slow
# What calibrate measures of that link, at most its rate: less where other programs run at the same
# time. So times are printed, and no test depends on them.
measured() {
    tc -n "$a" qdisc show dev "$a" | grep -q tbf || { echo 'no traffic shaping (tbf) in this kernel'; return 77; }
    tc -n "$b" qdisc add dev "$b" root tbf rate 1gbit burst 64kb latency 50ms || return 1
    cat >"$tmp/machine.json" <<EOT
{"profile_format": 1, "device": "cpu", "cpu": "any", "isa": "any", "date": "2026-01-01", "threads": 1, "native_bf16": false, "flops_f32": 6e10, "flops_bf16": 6e10,
 "memory_bandwidth": 1.5e10, "cache_bandwidth": 4e10, "cache_bytes": 1048576, "copy_bandwidth": 4e9, "launch_seconds": 2e-6, "corrections": []}
EOT
    expect 0 '' hosts 1 "$binary" bench --calibrate -o "$tmp/machine.json" && grep -q 'between hosts: .* (2 hosts)' "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 0 '' hosts 1 "$binary" bench "$tmp/tiny.yaml" --steps 4 --set "device.profile=$tmp/machine.json" --set memory.precision=f32 --set memory.micro_batch=1 --set parallel.shard=optimizer --json || return 1
    awk -F '[:,]' -v rate="$(json "$tmp/machine.json" links.remote.bandwidth)" '/"predicted_seconds"/ && !p { p = $2 } /"measured_seconds"/ { m = $2 }
        END { printf "%.3f GB/s; exchanges of a step: %.1f ms predicted, %.1f ms measured\n", 1e-9 * rate, 1e3 * p, 1e3 * m; exit !(rate > 0 && rate < 1.2 * 0.12e9 && p > 0 && m > 0) }' "$tmp/out"
}
check 'calibrate measures that link' measured
# Two ranks of each host share a link of 100 Mbit/s, which then is nearly all of a step: what is
# predicted of a step's exchanges, and measured, in two levels and (parallel.per_host 1) in one
# exchange between all ranks.
levels() {
    local k
    tc -n "$a" qdisc show dev "$a" | grep -q tbf || { echo 'no traffic shaping (tbf) in this kernel'; return 77; }
    tc -n "$a" qdisc replace dev "$a" root tbf rate 100mbit burst 64kb latency 400ms && tc -n "$b" qdisc replace dev "$b" root tbf rate 100mbit burst 64kb latency 400ms || return 1
    cat >"$tmp/slow.json" <<EOT
{"profile_format": 1, "device": "cpu", "cpu": "any", "isa": "any", "date": "2026-01-01", "threads": 1, "native_bf16": false, "flops_f32": 6e10, "flops_bf16": 6e10,
 "memory_bandwidth": 1.5e10, "cache_bandwidth": 4e10, "cache_bytes": 1048576, "copy_bandwidth": 4e9, "launch_seconds": 2e-6, "corrections": [],
 "links": {"local": {"ranks": 2, "latency": 5e-5, "peer": 5e-5, "bandwidth": 1e9}, "remote": {"ranks": 2, "latency": 1e-4, "peer": 1e-4, "bandwidth": 5.9e6}}}
EOT
    for k in 1 2; do
        expect 0 '' hosts 2 "$binary" bench "$tmp/tiny.yaml" --steps 3 --set "device.profile=$tmp/slow.json" --set memory.precision=f32 --set memory.micro_batch=1 --set memory.head_chunks=1 --set train.effective_batch=4 \
            --set parallel.group=all --set parallel.shard=optimizer --set "parallel.per_host=$k" --json || { echo failed; return 1; }
        awk -F '[:,]' '/"predicted_seconds"/ && !p { p = $2 } /"measured_seconds"/ { m = $2 } END { print p, m }' "$tmp/out"
    done >"$tmp/times" || { cat "$tmp/times"; return 1; }
    awk '{ p[NR] = 1e3 * $1; m[NR] = 1e3 * $2 } END { printf "%.0f ms predicted, %.0f ms measured; in one exchange %.0f ms measured\n", p[2], m[2], m[1]; exit !(NR == 2 && p[2] < 0.6 * p[1] && m[1] > 0 && m[2] > 0) }' "$tmp/times"
}
check 'two levels over a slow link: predicted to be faster' levels
tc -n "$a" qdisc del dev "$a" root 2>/dev/null
tc -n "$b" qdisc del dev "$b" root 2>/dev/null
named() { expect 2 "rank 1 on $b: " hosts 1 "$tmp/other" train "$tmp/tiny.yaml" --set 'data.train=data/*.py' --set "train.out=$tmp/n" --set memory.micro_batch=1; }
mkdir -p "$tmp/data" && cp tests/golden/make_ddp.py "$tmp/data"
cat >"$tmp/other" <<EOT
#!/bin/bash
[ "\$(hostname)" = $b ] || cd "$tmp"
exec "$(realpath "$binary")" "\$@"
EOT
chmod +x "$tmp/other"
check 'a message names the host' named
# The link goes down: every rank ends after the timeout, and nothing is left on either host.
cut_off() {
    local out=$tmp/cut pid from
    hosts 1 "$binary" train "$tmp/tiny.yaml" --set "train.out=$out" --set memory.micro_batch=1 --set train.steps=100000 --set train.save_every=5 --set parallel.timeout=3 >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    for _ in $(seq 300); do [ -f "$out/checkpoints/step-5/DONE" ] && break; sleep 0.1; done
    from=$SECONDS
    ip -n "$a" link set "$a" down
    for _ in $(seq 150); do pgrep -f "^$binary train.*train.out=$out" >/dev/null || break; sleep 0.1; done
    pgrep -f "^$binary train.*train.out=$out" >/dev/null && { echo 'ranks are still there after 15 s'; cat "$tmp/err"; return 1; }
    local seconds=$((SECONDS - from))
    ip -n "$a" link set "$a" up
    for _ in $(seq 100); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done
    kill -0 $pid 2>/dev/null && { kill -KILL $pid; echo 'mpirun is still there'; return 1; }
    wait $pid && { echo 'exit code 0'; return 1; }
    grep -Eq "waited 3 s for rank [01] \((pla|plb)[0-9]*\) in .*: is it stopped, or the network down" "$tmp/err" || { cat "$tmp/err"; return 1; }
    for i in "$out"/checkpoints/step-*; do [ -f "$i/DONE" ] || { echo "$i has no DONE"; return 1; }; done
    echo "after $seconds s: $(grep -o 'waited 3 s.*' "$tmp/err" | head -n 1)"
}
check 'the link goes down: the deadline' cut_off
summary
