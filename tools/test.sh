#!/bin/bash
# Runs the tests that are built and adds them up.
#
#   tools/test.sh [PART...]     parts: unit replay seam docs golden run; default: all
#
#   unit     $BUILD/tests/test_*, the cmocka programs
#   replay   the stored inputs of the fuzz targets, tests/fuzz/corpus
#   seam     the CUDA device against the reference; skipped where there is no GPU
#   docs     generated pages agree with the tables they come from
#   golden   tests/golden.sh: the binary against PyTorch's numbers, in f32, bf16 and f16
#   run      tests/run_*.sh: whole runs of the binary
#
# Programs run beside each other, JOBS at a time, and are told of in order: one line each with its counts and seconds;
# everything it printed when it fails. The last line is the sum. A program that counts no failure and yet exits with
# an error, runs longer than LIMIT seconds, or counts nothing at all, is one failure.
set -u
cd "$(dirname "$0")/.." || exit 2
export BUILD=${BUILD:-build} LC_ALL=C
LIMIT=${LIMIT:-600}
cores=$(nproc)
JOBS=${JOBS:-$((cores < 4 ? cores : 4))}
# Threads that wait by spinning would take the cores from the program beside them.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
logs=$(mktemp -d) || exit 2
# A profile that somebody measured here would change plans.
export XDG_DATA_HOME=$logs/data
trap 'rm -rf "$logs"' EXIT
trap 'kill $(jobs -p); exit 130' INT TERM
# `device: auto` would take a GPU that is here; the tests' numbers are the CPU's but for the seam.
gpus=${CUDA_VISIBLE_DEVICES-unset}
export CUDA_VISIBLE_DEVICES=
passed=0 failed=0 skipped=0

# Sums what a log counts: cmocka's "[  PASSED  ] 7 test(s).", "7 passed, 0 failed[, 0 skipped]",
# the replay's "7 inputs replayed".
count() {
    awk '
    /^\[ *(PASSED|FAILED|SKIPPED) *\] [0-9]+ test/ {
        n = $0; sub(/^[^0-9]*/, "", n)
        if (/PASSED/) p += n + 0; else if (/FAILED/) f += n + 0; else s += n + 0
    }
    /^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ { p += $1; f += $3; s += $5 }
    /^[0-9]+ inputs replayed$/ { p += $1 }
    END { print p + 0, f + 0, s + 0 }' "$1"
}

# tell NAME LOG STATUS SECONDS
tell() {
    local name=$1 log=$2 status=$3 p f s
    read -r p f s < <(count "$log")
    if ((status == 124)); then echo "$name: stopped after $LIMIT seconds" >>"$log"; fi
    if ((f == 0)) && ((status != 0 || p + s == 0)); then f=1; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-6s %-24s %4d passed, %d failed, %d skipped  %4d s\n' "$( ((f)) && echo FAIL || echo ok)" "$name" "$p" "$f" "$s" "$4"
    if ((s)); then grep -i skip "$log" | awk '!/[0-9] skipped$|test\(s\)|TEST\(S\)/ && !seen[$0]++' | sed -n 's/^ */       /; 1,2p; 3{s/.*/       .../p}'; fi
    if ((f)); then
        echo "       exit status $status; its output:"
        sed 's/^/       /' "$log"
    fi
}

names=()
told=0 running=0
# Of those that have ended, as far as none before them still runs.
tell_ended() {
    local status seconds
    while ((told < ${#names[@]})) && [[ -f $logs/$told.status ]]; do
        read -r status seconds <"$logs/$told.status"
        tell "${names[told]}" "$logs/$told.log" "$status" "$seconds"
        told=$((told + 1))
    done
}
wait_one() { wait -n; running=$((running - 1)); tell_ended; }

# run NAME COMMAND...: waits for a free place, not for the program.
run() {
    local at=${#names[@]}
    if ((running >= JOBS)); then wait_one; fi
    names+=("$1")
    shift
    running=$((running + 1))
    {
        from=$SECONDS status=0
        timeout "$LIMIT" "$@" >"$logs/$at.log" 2>&1 &
        trap 'kill $!; exit' TERM
        wait $! || status=$?
        echo "$status $((SECONDS - from))" >"$logs/$at.part" && mv "$logs/$at.part" "$logs/$at.status"
    } &
}

run_unit() {
    local source name
    for source in tests/test_*.c; do
        name=$(basename "$source" .c)
        run "$name" "$BUILD/tests/$name"
    done
}

run_replay() {
    local source name
    for source in tests/fuzz/fuzz_*.c; do
        name=$(basename "$source" .c)
        name=${name#fuzz_}
        run "replay $name" "$BUILD/tests/replay_$name" "tests/fuzz/corpus/$name"
    done
}

run_seam() {
    local with=(env "CUDA_VISIBLE_DEVICES=$gpus")
    if [[ $gpus == unset ]]; then with=(env -u CUDA_VISIBLE_DEVICES); fi
    run cuda_seam "${with[@]}" "$BUILD/tests/cuda_seam"
    run cuda_ops "${with[@]}" "$BUILD/tests/cuda_ops"
}
run_docs() { run docs tools/docs.sh --check; }
run_golden() {
    local precision
    for precision in f32 bf16 f16; do
        run "golden.sh $precision" env "PRECISION=$precision" sh tests/golden.sh
    done
}
run_run() {
    local script
    for script in tests/run_*.sh; do # run_lib.sh is what they share
        if [[ -f $script && $script != */run_lib.sh ]]; then run "$(basename "$script")" bash "$script"; fi
    done
}

parts=("$@")
if ((${#parts[@]} == 0)); then parts=(unit replay seam docs golden run); fi
for part in "${parts[@]}"; do
    case $part in
        unit | replay | seam | docs | golden | run) "run_$part" ;;
        *) echo "test: no part $part: unit replay seam docs golden run" >&2; exit 2 ;;
    esac
done
while ((running)); do wait_one; done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
