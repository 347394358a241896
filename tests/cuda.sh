#!/bin/bash
# cuda.sh: every test of the CUDA device, on one GPU, in one call.
#
#   bash tests/cuda.sh [PART...]                        after make all tests; default: all parts
#   bash tests/cuda.sh sanitize [TOOL...] [ROW...]      the op tests and the seam under compute-sanitizer; with
#                                                       names of rows, such as ATTENTION, the op tests of those
#                                                       rows by themselves; tools: memcheck and racecheck (the default),
#                                                       initcheck, synccheck
#
#   steady   plan = run: free memory over 1,000 steps, two runs with the same weights; by itself on the GPU
#   ops      every op and the seam against the reference kernels
#   golden   every family against PyTorch, and adapters against PEFT, in f32, bf16 and f16
#   matrix   every technique: the runs that test the CPU (run_curves, run_offload, run_optim, run_precision,
#            run_equal, run_long_rows, run_adapters, run_quantize, run_fp8, run_pipeline, run_rows,
#            run_conversations, run_generate, run_generate_images, test_encode); each
#            model and section is a process of its own, because creating the CUDA context takes most of their time
#   plans    plans for this GPU equal those that were stored without it
#   ranks    2 to 8 ranks that share the GPU against one with shares; NCCL with one rank (cuda_ranks.sh)
#
#   BUILD=build      the build folder
#   DEVICE=cuda      cpu: the same checks without a GPU, to try the scripts
#   JOBS=            programs in parallel; unset: 32 on 8 cores and more, else one per core; under
#                    compute-sanitizer one per core
#   LIMIT=           time limit of each program in seconds; unset: 330, under compute-sanitizer 240
#   GROUPS_OF=64     number of processes among which compute-sanitizer's op tests are divided
#   SANITIZER=       further options of compute-sanitizer, such as --racecheck-report all
#   LOGS=            folder for the programs' output; unset: the output of failed programs is shown
#
# Without a GPU the ops are planned only, and every test counts as skipped. A table of counts comes
# last.
set -u
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C BUILD=${BUILD:-build} DEVICE=${DEVICE:-cuda}
# The CPU's side of a comparison has one thread per core, and so have the other programs: spinning
# threads would take cores away from working ones.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
cores=$(nproc)
if [ "${1:-}" = sanitize ]; then
    LIMIT=${LIMIT:-240} JOBS=${JOBS:-$cores}
else
    LIMIT=${LIMIT:-330} JOBS=${JOBS:-$((cores >= 8 ? 32 : cores))}
fi
tools=$BUILD/tests
for program in "$BUILD/plimsoll" "$tools/cuda_ops" "$tools/cuda_seam" "$tools/compare" "$tools/json_get"; do
    [ -x "$program" ] || { echo "cuda.sh: no $program: run make all tests first" >&2; exit 2; }
done
logs=${LOGS:-$(mktemp -d)} || exit 2
mkdir -p "$logs" || exit 2
[ -n "${LOGS:-}" ] || trap 'rm -rf "$logs"' EXIT
export XDG_DATA_HOME=$logs/data # no profile and no kernel choices measured on this machine
on=()
[ "$DEVICE" = cuda ] || on=(--device "$DEVICE")

# No row has this name, so no test runs; the first line of output shows whether there is a GPU.
has_gpu() { [ "$DEVICE" = cpu ] || "$tools/cuda_ops" no_row | grep -q 'device cuda: running'; }

# --- parallel programs --------------------------------------------------------------------------

names=()
running=0
# start NAME COMMAND...: waits until fewer than JOBS programs run, starts the command and returns.
start() {
    local name=$1
    shift
    if ((running >= JOBS)); then wait -n; running=$((running - 1)); fi
    names+=("$name")
    running=$((running + 1))
    {
        local from=$SECONDS status=0
        timeout "$LIMIT" "$@" >"$logs/$name.log" 2>&1 || status=$?
        echo "$status $((SECONDS - from))" >"$logs/$name.status"
    } &
}
finish() { wait; running=0; }

# A program's counts are its last line 'N passed, M failed[, K skipped]'. A program that exits with
# an error but reports no failure counts as one failure.
passed=0 failed=0 skipped=0
row() {
    local name=$1 status=1 seconds=0 p=0 f=0 s=0
    [ ! -f "$logs/$name.status" ] || read -r status seconds <"$logs/$name.status"
    read -r p f s < <(awk '/^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/ { p = $1; f = $3; s = $5 } END { print p + 0, f + 0, s + 0 }' "$logs/$name.log")
    if ((f == 0)) && ((status != 0 || p + s == 0)); then f=1; fi
    if ((status == 124)); then echo "stopped after $LIMIT seconds" >>"$logs/$name.log"; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    ((f == 0)) || failing+=("$name")
    table+=$(printf '%-4s %-26s %5d passed %4d failed %5d skipped %4d s' "$( ((f)) && echo FAIL || echo ok)" "$name" "$p" "$f" "$s" "$seconds")$'\n'
}
failing=()
table=
report() {
    local name
    for name in "${names[@]}"; do row "$name"; done
    for name in ${failing[@]+"${failing[@]}"}; do
        echo "--- $name: failures"
        grep -A 6 -E '^FAIL|FAILED|Error|ERROR SUMMARY: [1-9]|hazards displayed|CHECK|stopped after' "$logs/$name.log" | head -n 40 | cut -c 1-220
    done
    printf '%s' "$table"
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
}

# --- parts --------------------------------------------------------------------------------------

# by_itself NAME COMMAND...: for programs that watch the free memory of the GPU.
by_itself() { finish; start "$@"; finish; }
part_steady() { by_itself cuda_steady bash tests/cuda_steady.sh; }
part_ops() {
    by_itself cuda_seam "$tools/cuda_seam" ${on[@]+"${on[@]}"}
    start cuda_ops "$tools/cuda_ops" ${on[@]+"${on[@]}"}
}
part_golden() {
    local p
    for p in f32 bf16 f16; do
        start "golden-$p" env PRECISION=$p FLAGS="--set device.kind=$DEVICE" sh tests/golden.sh
        start "golden-adapters-$p" env PRECISION=$p GOLDEN=tests/golden/peft FLAGS="--set device.kind=$DEVICE" sh tests/golden.sh
    done
}
part_matrix() {
    local m p
    for m in sam llama tinysam; do
        start "run_curves-$m" env MODELS=$m bash tests/run_curves.sh
        for p in with bits around; do start "run_offload-$m-$p" env MODELS=$m SECTIONS=$p bash tests/run_offload.sh; done
        start "run_precision-$m" env MODELS=$m SECTIONS=models bash tests/run_precision.sh
    done
    start run_precision-runs env SECTIONS=runs bash tests/run_precision.sh
    start run_optim bash tests/run_optim.sh
    start run_equal bash tests/run_equal.sh
    start run_long_rows bash tests/run_long_rows.sh
    start run_adapters env SECTIONS=equal bash tests/run_adapters.sh
    start run_quantize bash tests/run_quantize.sh
    start run_fp8 bash tests/run_fp8.sh
    start run_pipeline bash tests/run_pipeline.sh
    start run_rows bash tests/run_rows.sh
    start run_conversations bash tests/run_conversations.sh
    start run_generate bash tests/run_generate.sh
    start run_generate_images bash tests/run_generate_images.sh
    start run_eval_samples bash tests/run_eval_samples.sh
    start test_encode "$tools/test_encode" "$DEVICE"
}
part_ranks() { by_itself cuda_ranks bash tests/cuda_ranks.sh; }
part_plans() { start run_plans env KEEP="$logs" bash tests/run_plans.sh; }

# --- compute-sanitizer --------------------------------------------------------------------------

# The cases cover every kernel once and are divided among programs of one process each. A program
# passes when its cases pass and every summary of the tool reports no errors. racecheck skips
# cuBLASLt's kernels: they are not ours and take longer than everything else. It includes them in
# the seam and in convolutions, because the tool crashes there when they are excluded.
#
# A report of racecheck between a write that hands a tile over to other warps and the reads that
# wait for it at an mbarrier does not count, nor does one inside cuBLASLt: the tool does not follow
# such barriers (docs/explanation/kernels.md, "What racecheck sees"). Such reports are counted in
# the output.
add_verdict() { # LOG: appends 'N passed, M failed'
    awk '
        function hands_over(line) { return line ~ /access at (task take_task<|void fetch_ranged<|fetch_bytes\()/ }
        function is_theirs(line) { return line ~ /access at (void )?(nvjet|cutlass|cublas)/ }
        function end_report() { expected += reports && fine; reports = 0 }
        /Race reported between/ { end_report(); reports = 1; fine = 1; first = hands_over($0) || is_theirs($0); next }
        reports && / and (Read|Write) access at / { if (!first && !hands_over($0)) fine = 0; next }
        { end_report() }
        /ERROR SUMMARY:/ { n++; if ($0 !~ /ERROR SUMMARY: 0 errors/) bad++ }
        /RACECHECK SUMMARY:/ { n++; known += expected; if ($4 != expected) bad++; expected = 0 }
        /^[0-9]+ passed, [0-9]+ failed/ { cases = $1; wrong = $3 }
        END {
            if (known) print known " reports of mbarriers, which the tool does not follow"
            if (!n) print "FAIL  the tool printed no summary"
            if (bad) print "FAIL  " bad " of " n " processes have errors or hazards"
            if (bad || !n || wrong || !cases) { print cases + 0 " passed, " wrong + bad + !n " failed"; exit 1 }
            print cases " passed, 0 failed" }' "$1" >"$1.end"
    local status=$?
    cat "$1.end" >>"$1"
    rm -f "$1.end"
    return $status
}
run_sanitized() { # TOOL COMMAND...
    local tool=$1 out name last=${*: -1} theirs=()
    out=$(mktemp) || return 2
    shift
    # One option per name: the names within one option must all match.
    [[ $tool != racecheck || $1 == */cuda_seam || $last == */conv*.cases ]] || for name in nvjet cutlass gemm splitK cublas; do theirs+=(--kernel-name-exclude "kns=$name"); done
    # SANITIZER is a list of words.
    # shellcheck disable=SC2086
    compute-sanitizer --tool "$tool" --print-limit 1000 ${SANITIZER:-} ${theirs[@]+"${theirs[@]}"} "$@" >"$out" 2>&1
    add_verdict "$out"
    local status=$?
    cat "$out"
    rm -f "$out"
    return $status
}
if [ "${1:-}" = run_sanitized ]; then shift; run_sanitized "$@"; exit; fi # called by sanitize, below

# distribute COUNT FOLDER: writes the cases to files 0.cases, 1.cases ..., the most expensive first,
# each to the file with the least load so far. Attention's cases are distributed dtype by dtype: one
# takes seconds under racecheck, and its gradient takes longer than any other case. Convolutions go
# to files of their own (run_sanitized), conv0.cases to conv3.cases.
distribute() {
    awk -v folder="$2" '$1 == "case" && $2 == "CONV" { print >(folder "/conv" n++ % 4 ".cases"); next }
         $1 == "case" && $2 ~ /^ATTENTION/ { w = $4 ? 5 : 15
             for (i = 1; i <= 3; i++) if (substr($5, i, 1) == 1) print w, $1, $2, $3, $4, substr("000", 1, i - 1) "1" substr("000", i + 1)
             next }
         $1 == "case" { print gsub(/1/, "1", $5), $0 }' | sort -s -k 1,1nr |
        awk -v files="$1" -v folder="$2" '
            { for (i = g = 0; i < files; i++) if (load[i] < load[g]) g = i
              load[g] += $1; sub(/^[0-9]+ /, ""); print >(folder "/" g ".cases") }'
}
sanitize() {
    local tool file rows=() selected=() cases
    for tool; do
        case $tool in memcheck | racecheck | initcheck | synccheck) selected+=("$tool") ;; *) rows+=("$tool") ;; esac
    done
    ((${#selected[@]})) || selected=(memcheck racecheck)
    command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v compute-sanitizer >/dev/null || { echo 'cuda.sh: no compute-sanitizer on the PATH' >&2; return 2; }
    cases=$logs/cases
    rm -rf "$cases"
    mkdir -p "$cases" || return 2
    for tool in "${selected[@]}"; do
        # The seam takes longest and starts first.
        ((${#rows[@]})) || start "$tool-seam" bash tests/cuda.sh run_sanitized "$tool" "$tools/cuda_seam" --small ${on[@]+"${on[@]}"}
        if [ ! -f "$cases/list" ]; then
            "$tools/cuda_ops" --cover --list ${rows[@]+"${rows[@]}"} >"$cases/list" || { cat "$cases/list" >&2; return 2; }
            distribute "${GROUPS_OF:-64}" "$cases" <"$cases/list"
        fi
        for file in "$cases"/*.cases; do
            [ -f "$file" ] || { echo "cuda.sh: no case of ${rows[*]}" >&2; return 2; }
            start "$tool-$(basename "$file" .cases)" bash tests/cuda.sh run_sanitized "$tool" "$tools/cuda_ops" ${on[@]+"${on[@]}"} --jobs 0 --cases "$file"
        done
        finish
    done
}

# --- the command line ---------------------------------------------------------------------------

if [ "${1:-}" = sanitize ]; then
    shift
    has_gpu || { echo 'skip: no CUDA GPU'; echo '0 passed, 0 failed, 1 skipped'; exit 0; }
    sanitize "$@" || exit 2
    report
    exit
fi
(($#)) || set -- steady ops golden matrix plans ranks
for part; do
    case $part in
        steady | ops | golden | matrix | plans | ranks) ;;
        *) echo "cuda.sh: no part $part: steady ops golden matrix plans ranks, or sanitize" >&2; exit 2 ;;
    esac
done
if ! has_gpu; then
    echo 'skip: no CUDA GPU here; ops are planned only; DEVICE=cpu tests the other scripts'
    part_ops
    finish
    part_plans
    finish
    report
    exit
fi
for part; do "part_$part"; done
finish
report
