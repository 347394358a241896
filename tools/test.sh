#!/bin/bash
# Runs the tests that are built and adds up their counts.
#
#   tools/test.sh [PART...]     parts: run golden unit replay seam docs words; default: all, in this order:
#                               the longest programs first, so that no core waits for the last one
#
#   unit     $BUILD/tests/test_*, the cmocka programs
#   replay   the stored inputs of the fuzz targets, tests/fuzz/corpus
#   seam     the CUDA device against the reference kernels; skipped where there is no GPU
#   docs     generated pages agree with the tables they come from
#   words    tests/words.sh: no file uses a word that the glossary bans; tests/sentences.sh: comments are
#            sentences, and no line is too long; tests/includes.sh: includes point one way
#   golden   tests/golden.sh: the binary against PyTorch's numbers and PEFT's, in f32, bf16 and f16
#   run      tests/run_*.sh: whole runs of the binary
#
# JOBS programs run in parallel. The report keeps the order of the list: one line for each program
# with its counts, its seconds and those of the processor (in the program, in the system), followed
# by its whole output if it fails. Then come the ten programs that take most of the processor, and
# the time of all; the last line is the sum. A program counts as one failure if it
# reports none but exits with an error, runs longer than LIMIT seconds, or reports no counts at all.
set -u
cd "$(dirname "$0")/.." || exit 2
export BUILD=${BUILD:-build} LC_ALL=C
LIMIT=${LIMIT:-600}
# On up to 4 cores, one program more than there are cores runs at a time, because those that start
# ranks or reach the disk mostly wait; each uses as many threads as there are cores. On more cores
# the programs divide the cores among them, because parallel programs of 16 threads wait for each
# other. An OMP_NUM_THREADS of the caller is kept: it sets the threads of every program
# that does not state another number.
cores=$(nproc)
JOBS=${JOBS:-$((cores < 4 ? cores + 1 : cores < 8 ? 4 : cores / 2 < 16 ? cores / 2 : 16))}
if ((cores > 4)); then export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores / JOBS > 2 ? cores / JOBS : 2))}; fi
# Spinning threads would take cores away from the other programs.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
logs=$(mktemp -d) || exit 2
# A profile measured on this machine would change plans.
export XDG_DATA_HOME=$logs/data
trap 'rm -rf "$logs"' EXIT
trap 'kill $(jobs -p); exit 130' INT TERM
# Scripts that run make keep the quick kernels of `make test` on a machine without a GPU.
if grep -qs -e -DCUDA_QUICK "$BUILD/cuda-code"; then export CUDA_QUICK=1; fi
# `device: auto` would select a GPU of this machine. All tests but the seam expect the CPU's
# numbers.
gpus=${CUDA_VISIBLE_DEVICES-unset}
export CUDA_VISIBLE_DEVICES=
passed=0 failed=0 skipped=0

# count LOG: prints the sums of passed, failed and skipped over a log's lines: cmocka's
# "[  PASSED  ] 7 test(s).", "7 passed, 0 failed[, 0 skipped]", the replay's "7 inputs replayed".
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

# report NAME LOG STATUS SECONDS
report() {
    local name=$1 log=$2 status=$3 p f s user system
    # `times` has the shell's own first, as 0m0.004s 0m0.001s
    read -r user system < <(awk -F '[ms ]+' 'NR == 2 { printf "%.0f %.0f\n", $1 * 60 + $2, $3 * 60 + $4 }' "${log%.log}.processor")
    read -r p f s < <(count "$log")
    if ((status == 124)); then echo "$name: stopped after $LIMIT seconds" >>"$log"; fi
    if ((f == 0)) && ((status != 0 || p + s == 0)); then f=1; fi
    echo "$((user + system)) $user $system $name" >>"$logs/times"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%-6s %-24s %4d passed, %d failed, %d skipped  %4d s, %d + %d of the processor\n' "$( ((f)) && echo FAIL || echo ok)" "$name" "$p" "$f" "$s" "$4" "$user" "$system"
    if ((s)); then grep -i skip "$log" | awk '!/[0-9] skipped$|test\(s\)|TEST\(S\)/ && !seen[$0]++' | sed -n 's/^ */       /; 1,2p; 3{s/.*/       .../p}'; fi
    if ((f)); then
        echo "       exit status $status; its output:"
        sed 's/^/       /' "$log"
    fi
}

names=()
reported=0 running=0
# Reports the programs that have ended, in order, up to the first one that still runs.
report_ended() {
    local status seconds
    while ((reported < ${#names[@]})) && [[ -f $logs/$reported.status ]]; do
        read -r status seconds <"$logs/$reported.status"
        report "${names[reported]}" "$logs/$reported.log" "$status" "$seconds"
        reported=$((reported + 1))
    done
}
wait_one() { wait -n; running=$((running - 1)); report_ended; }

# run NAME COMMAND...: waits until fewer than JOBS programs run, starts the command and returns.
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
        times >"$logs/$at.processor"
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
    # It watches the free memory of the GPU: nothing else runs on it.
    if command -v nvidia-smi >/dev/null; then while ((running)); do wait_one; done; fi
    run cuda_ops "${with[@]}" "$BUILD/tests/cuda_ops"
}
run_docs() { run docs tools/docs.sh --check; }
run_words() {
    run words bash tests/words.sh
    run sentences bash tests/sentences.sh
    run includes bash tests/includes.sh
}
run_golden() {
    local precision
    for precision in f32 bf16 f16; do
        run "golden.sh $precision" env "PRECISION=$precision" sh tests/golden.sh
        run "golden.sh adapters $precision" env "PRECISION=$precision" GOLDEN=tests/golden/peft sh tests/golden.sh
    done
}
run_run() {
    local script
    # The slowest first. run_lib.sh holds the functions that they share.
    for script in tests/run_{prs_med,offload,ranks,ranks_hosts,plan,embed}.sh tests/run_*.sh; do
        if [[ $script != */run_lib.sh && " ${names[*]} " != *" ${script##*/} "* ]]; then run "${script##*/}" bash "$script"; fi
    done
}

parts=("$@")
if ((${#parts[@]} == 0)); then parts=(run golden unit replay seam docs words); fi
for part in "${parts[@]}"; do
    case $part in
        unit | replay | seam | docs | words | golden | run) "run_$part" ;;
        *) echo "test: no part $part; expected unit replay seam docs words golden run" >&2; exit 2 ;;
    esac
done
while ((running)); do wait_one; done
echo 'most of the processor:'
sort -rn "$logs/times" | head -n 10 | while read -r seconds user system name; do printf '%6d s  %s\n' "$seconds" "$name"; done
printf 'in all %d min %d s, %d programs at a time; ' $((SECONDS / 60)) $((SECONDS % 60)) "$JOBS"
awk '{ u += $2; s += $3 } END { printf "%d + %d s of the processor\n", u, s }' "$logs/times"
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
