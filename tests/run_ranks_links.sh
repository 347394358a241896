#!/bin/bash
# shellcheck disable=SC2015
# run_ranks_links.sh: commands besides train on several ranks: bench --calibrate measures the links
# between them, and plans use them; bench and profile. Nothing is timed here but that numbers are
# there.
#
#   bash tests/run_ranks_links.sh    from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh

# A profile without corrections, as if this machine had been measured.
cat >"$tmp/machine.json" <<EOT
{"profile_format": 1, "device": "cpu", "cpu": "any", "isa": "any", "date": "2026-01-01", "threads": 1, "native_bf16": false, "flops_f32": 6e10, "flops_bf16": 6e10,
 "memory_bandwidth": 1.5e10, "cache_bandwidth": 4e10, "cache_bytes": 1048576, "copy_bandwidth": 4e9, "launch_seconds": 2e-6, "corrections": []}
EOT
calibrated() {
    cp "$tmp/machine.json" "$tmp/links.json"
    expect 0 '' "$binary" bench --calibrate --ranks 3 -o "$tmp/links.json" && grep -Eq 'within a host: [0-9.e+]+ GB/s.* \(3 ranks\)' "$tmp/out" && grep -q "profile written to $tmp/links.json" "$tmp/out" &&
        [ "$(json "$tmp/links.json" links.local.ranks)" = 3 ] && [ "$(json "$tmp/links.json" flops_f32)" = 60000000000 ] && grep 'within a host' "$tmp/out"
}
check 'bench --calibrate on 3 ranks adds links to the profile' calibrated
# plan_links PATTERN [ARGUMENT...]: the words for links in a plan of 2 ranks.
plan_links() {
    local pattern=$1
    shift
    "$binary" plan "$tmp/tiny.yaml" --ranks 2 "$@" >"$tmp/plan" && grep -E "$pattern" "$tmp/plan"
}
used() {
    plan_links 'links shm, unmeasured\)' --set "device.profile=$tmp/machine.json" && plan_links 'links [0-9.e+]+ GB/s, measured\)' --set "device.profile=$tmp/links.json" &&
        plan_links 'links eth-1g, unmeasured\)' --set "device.profile=$tmp/links.json" --links eth-1g && plan_links 'links [0-9.e+]+ GB/s, measured\)' --links "$tmp/links.json" &&
        plan_links 'links [0-9.e+]+ GB/s, measured, and ib-ndr, unmeasured\)' --set "device.profile=$tmp/links.json" --links measured,ib-ndr --per-host 1
}
check 'plans use measured links, by name or by file' used
refused() {
    expect 2 'parallel.links: the profile has no measured link between ranks of one host; mpirun -np N plimsoll bench --calibrate' plan_links . --links measured &&
        expect 2 "machine.json" plan_links . --links "$tmp/machine.json" && expect 2 'nvlink4,.*shm, measured' plan_links . --links token-ring &&
        expect 2 'none.json' plan_links . --links "$tmp/none.json" && sed 's/"bandwidth":[^}]*/"bandwidth": -1/' "$tmp/links.json" >"$tmp/bad.json" &&
        expect 2 'links.local: bandwidth is -1' plan_links . --links "$tmp/bad.json" && expect 2 'accepts only .* not --set train.steps=1' ranks 2 "$binary" bench --calibrate --set train.steps=1
}
check 'links that cannot be used' refused
benched() {
    expect 0 '' ranks 2 "$binary" bench "$tmp/tiny.yaml" --steps 2 --set memory.micro_batch=auto --json && cp "$tmp/out" "$tmp/bench.json" && [ "$(json "$tmp/bench.json" ranks)" = 2 ] &&
        [ "$(grep -c '"exchange_seconds"' "$tmp/bench.json")" = 2 ] && [ "$(grep -c '"samples_per_second"' "$tmp/bench.json")" = 1 ] &&
        expect 0 '' "$binary" bench "$tmp/tiny.yaml" --ranks 2 --steps 2 --set memory.micro_batch=auto && grep -q 'of all ranks together' "$tmp/out" && grep 'a rank sends' "$tmp/out"
}
check 'bench on 2 ranks' benched
# One trace: a process for each rank, a thread for each lane, and the slices of all of them on one
# clock. Only rank 0 writes.
traced() {
    expect 0 '' ranks 3 "$binary" profile "$tmp/tiny.yaml" --steps 1 --set memory.micro_batch=auto -o "$tmp/profile" && grep -q 'rank [0-2] on .* works longest' "$tmp/out" || return 1
    [ "$(cd "$tmp/profile" && echo *)" = 'profile.html snapshot.pickle trace.json' ] || { ls "$tmp/profile"; return 1; }
    awk 'BEGIN { RS = "\n" } { line = $0
        while (match(line, /"name": "rank [0-9]+ on /)) { names++; line = substr(line, RSTART + RLENGTH) }
        if (match($0, /"pid": [0-9]+, "tid": [0-9]+, "ts": /)) { split(substr($0, RSTART, RLENGTH), x, /[:,]/); slices[x[2] + 0]++ }
        if ($0 ~ /"ALL_GATHER".*"tid": 3/) sends++ }
        END { printf "%d processes; slices: %d %d %d, gathers on the lane of communication: %d\n", names, slices[1], slices[2], slices[3], sends
              exit !(names == 3 && slices[1] > 100 && slices[1] == slices[2] && slices[2] == slices[3] && sends > 3) }' "$tmp/profile/trace.json"
}
check 'profile on 3 ranks: one trace' traced
summary
