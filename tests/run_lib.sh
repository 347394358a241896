# run_lib.sh: the functions that the run_*.sh scripts share. They source it at the repository's
# root.
#
#   BUILD=build          the build folder
#   TMPDIR=/tmp          runs and forged files go into a new folder below it
#   DEVICE=cpu           the device of the runs: cpu or cuda; tests/cuda.sh runs some of the scripts with cuda
#   FLAGS=               further arguments of every run, such as --set device.threads=1
#   MODELS=              the models that a script runs, of llama, sam and tinysam; unset: all that it has
#   TIMES=               1: after each check the seconds that it took of the processor
#   SECTIONS=            the sections that a script runs, of those that its header names; unset: all.
#                        tests/cuda.sh runs sections in parallel
#
# A check is a function that prints its findings and returns 0, 1, or 77 when this machine cannot
# run it. `check` prints the last line of that output, and all of it on failure.
# shellcheck shell=bash disable=SC2015
set -u
export LC_ALL=C
# Other scripts and other programs use the processors too: threads that wait sleep.
export OMP_WAIT_POLICY=passive
BUILD=${BUILD:-build}
FLAGS=${FLAGS:-}
DEVICE=${DEVICE:-cpu}
binary=$BUILD/plimsoll
tools=$BUILD/tests
golden=tests/golden/train_untied

if [ ! -x "$binary" ]; then
    echo "$0: no $binary: run make first, from the repository's root" >&2
    exit 2
fi
case $BUILD in /*) ;; *) tools=$PWD/$tools ;; esac

# tool NAME...: builds programs that link with the library.
tool() {
    # `make tests` has built them: a make here could relink the program while other scripts run it.
    for t; do [ -x "$BUILD/tests/$t" ] || make -s BUILD="$BUILD" "$BUILD/tests/$t" || exit 2; done
}
# preload NAME...: builds libraries for LD_PRELOAD that replace calls of the C library.
preload() {
    for t; do
        if [ "$tools/$t.so" -nt "tests/$t.c" ]; then continue; fi
        # Scripts that run in parallel may both build it; the rename publishes only a complete file.
        ${CC:-cc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -fPIC -shared "tests/$t.c" -o "$tools/$t.$$.so" -ldl &&
            mv "$tools/$t.$$.so" "$tools/$t.so" || exit 2
    done
}
tool json_get

tmp=$(mktemp -d "${TMPDIR:-/tmp}/plimsoll-XXXXXX") || exit 2
mounts=
stopped=
# Ends and unmounts only what this script started and mounted.
clean_up() {
    for p in $stopped; do kill -KILL "$p" 2>/dev/null; done
    for m in $mounts; do umount "$m" 2>/dev/null; done
    rm -rf "$tmp"
}
# A profile measured on this machine would change plans, and a measured step takes time.
export XDG_DATA_HOME=$tmp/data
export PLIMSOLL_MEASURE=0
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

passed=0
failed=0
skipped=0
# check NAME FUNCTION [ARGUMENT...]
check() {
    local name=$1 rc=0
    shift
    [ -z "${TIMES:-}" ] || builtin times >"$tmp/times"
    "$@" >"$tmp/log" 2>&1 || rc=$?
    case $rc in
        0) passed=$((passed + 1)); printf 'ok    %-58s %s\n' "$name" "$(tail -n 1 "$tmp/log")" ;;
        77) skipped=$((skipped + 1)); printf 'skip  %-58s %s\n' "$name" "$(tail -n 1 "$tmp/log")" ;;
        *) failed=$((failed + 1)); printf 'FAIL  %s\n' "$name"; sed 's/^/      /' "$tmp/log" ;;
    esac
    [ -z "${TIMES:-}" ] || { builtin times >>"$tmp/times" && awk -F '[ms ]+' '{ t = $1 * 60 + $2 + $3 * 60 + $4 } NR == 2 { from = t } NR == 4 { printf "      %.1f s\n", t - from }' "$tmp/times"; }
}
# summary: prints the last line; its status is the script's exit code.
summary() {
    local more=
    [ "$skipped" -eq 0 ] || more=", $skipped skipped"
    echo "$passed passed, $failed failed$more"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# models NAME...: prints those of them that MODELS selects. part NAME...: whether SECTIONS selects
# one of them. wanted MODEL PART: whether both select it.
models() {
    for m; do case " ${MODELS:-$m} " in *" $m "*) echo "$m" ;; esac; done
}
part() {
    for p; do case " ${SECTIONS:-$p} " in *" $p "*) return 0 ;; esac; done
    return 1
}
wanted() { [ -n "$(models "$1")" ] && part "$2"; }
for m in ${MODELS:-}; do
    case $m in llama | sam | tinysam) ;; *) echo "$0: MODELS has $m, expected llama, sam or tinysam" >&2; exit 2 ;; esac
done

# A sanitizer's library has to be the first of a process, so LD_PRELOAD is not possible there.
sanitized() {
    grep -q __asan_init "$binary"
}
needs_preload() {
    sanitized || return 0
    echo "the binary has a sanitizer, which leaves no room for LD_PRELOAD"
    return 77
}

# needs_cpu WHAT: skips a check of something that only the CPU device has.
needs_cpu() {
    [ "$DEVICE" != cpu ] || return 0
    echo "$1: only the CPU device has it"
    return 77
}

# with LIBRARY COMMAND...: runs the command, or skips the check in a build without the library, such
# as libtiff.
with() {
    ldd "$binary" | grep -q "$1" || { echo "this build has no $1"; return 77; }
    "${@:2}"
}

# expect STATUS PATTERN COMMAND...: the command ends with STATUS and its standard error matches the
# extended regular expression PATTERN ('': anything). Its outputs remain in $tmp/out and $tmp/err.
expect() {
    local want=$1 pattern=$2 rc=0
    shift 2
    "$@" >"$tmp/out" 2>"$tmp/err" || rc=$?
    if [ "$rc" -ne "$want" ]; then
        echo "status $rc, expected $want: $*"
        cat "$tmp/err"
        return 1
    fi
    if [ -n "$pattern" ] && ! grep -Eq -- "$pattern" "$tmp/err"; then
        echo "no /$pattern/ on standard error of: $*"
        cat "$tmp/err"
        return 1
    fi
    [ "$want" -eq 0 ] || tail -n 1 "$tmp/err"
}

# train OUT [ARGUMENT...]: ten steps of the small golden model into OUT.
train() {
    local out=$1
    shift
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    "$binary" train "$golden/run.yaml" --set "train.out=$out" --set "device.kind=$DEVICE" $FLAGS "$@"
}
# train_tiny OUT [ARGUMENT...]: the llama-tiny preset on the bytes of tests/golden/*.py.
train_tiny() {
    local out=$1
    shift
    # shellcheck disable=SC2086
    "$binary" train "$tmp/tiny.yaml" --set "train.out=$out" $FLAGS "$@"
}
cat >"$tmp/tiny.yaml" <<EOF
model: {preset: llama-tiny}
data: {format: bytes, train: "tests/golden/*.py", sequence: 64}
train: {steps: 10, effective_batch: 8, learning_rate: 0.001, out: "$tmp/unused"}
memory: {micro_batch: 8, precision: f32}
device: $DEVICE
EOF

# json FILE PATH: prints one value of a JSON file.
json() {
    "$tools/json_get" "$@"
}
# same A B: the same bytes.
same() {
    cmp "$1" "$2" || { echo "$1 and $2 differ"; return 1; }
}
# same_run A B STEPS: two finished runs have the same weights and the same training state.
same_run() {
    same "$1/model/model.safetensors" "$2/model/model.safetensors" &&
        same "$1/checkpoints/step-$3/state.safetensors" "$2/checkpoints/step-$3/state.safetensors" &&
        same "$1/checkpoints/step-$3/state.json" "$2/checkpoints/step-$3/state.json"
}
# steps_once RUN STEPS: metrics.jsonl has the steps 1 to STEPS, each once, in order.
steps_once() {
    awk -v steps="$2" '
        !/^\{"step": ?[0-9]+,.*\}$/ { print "line " NR " is torn: " $0; bad = 1; exit }
        /"eval|"prompts"/ { next } # evaluations, and their answers by file
        { n++; split($0, a, /[:,]/); if (a[2] != n) { print "line " NR " is step " a[2] ", expected " n; bad = 1; exit } }
        END { if (!bad && n != steps) { print n " steps, expected " steps; bad = 1 }; exit bad }' "$1/metrics.jsonl"
}
# begun RUN: true if the run has a checkpoint to resume from; else its folder is removed, as
# `--resume` advises, and the run starts again.
begun() {
    local done
    for done in "$1"/checkpoints/step-*/DONE; do [ ! -f "$done" ] || return 0; done
    rm -rf "$1"
    return 1
}
# no_debris RUN: the folder has no partly written file, and every checkpoint has DONE.
no_debris() {
    local found
    found=$(find "$1" -name '*.tmp*' -o -name '*.old' -o -name '.plimsoll*' 2>/dev/null)
    [ -z "$found" ] || { echo "left behind: $found"; return 1; }
    for d in "$1"/checkpoints/step-*; do
        [ ! -d "$d" ] || [ -f "$d/DONE" ] || { echo "$d has no DONE"; return 1; }
    done
}
# number FROM TO: sets `picked` to the next number of the pseudo-random sequence of SEED, in [FROM,
# TO].
SEED=${SEED:-1}
random=$SEED
number() {
    random=$(((random * 1103515245 + 12345) % 2147483648))
    # shellcheck disable=SC2034
    picked=$(($1 + random / 65536 % ($2 - $1 + 1)))
}
