# against.sh: times one training step in plimsoll and in PyTorch, interleaved; lm.sh, tower.sh and
# sam.sh source it.
#
#   against RUN.yaml SCRIPT.py [option]...    ROUNDS rounds of STEPS steps each; the result is the least of the
#                                             rounds' medians
#
# Memory is split into state and rest. State is 16 bytes per trained weight on both sides: the f32
# weight, its gradient, AdamW's two moments. Rest is everything else.
#
#   plimsoll   rest = arena - state; it includes bf16 copies of the weights
#              resident rest = peak resident - state; it includes the program itself
#   pytorch    rest = peak resident - resident before the model is built - state
#
# BUILD, PYTHON, ROUNDS, STEPS, PRECISION (f32, bf16), THEIRS (PyTorch's precision if it differs:
# its bf16 is slow on processors for which it has no kernels) and SETS (more --set for plimsoll)
# come from the environment. PYTHON must import torch and transformers.
# shellcheck shell=bash
BUILD=${BUILD:-build}
PYTHON=${PYTHON:-python3}
ROUNDS=${ROUNDS:-3}
STEPS=${STEPS:-4}
PRECISION=${PRECISION:-f32}
THEIRS=${THEIRS:-$PRECISION}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# number KEY FILE: the first number of that name in the JSON of `plimsoll bench`.
number() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*$/\1/p" "$2" | head -n 1; }
# least, median, most FILE WORD: of the numbers after WORD at the start of a line.
least() { awk -v w="$2" '$1 == w && (!n++ || $2 < m) { m = $2 } END { print m }' "$1"; }
median() { awk -v w="$2" '$1 == w { print $2 }' "$1" | sort -g | awk '{ x[NR] = $1 } END { print (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'; }
most() { awk -v w="$2" '$1 == w && $2 > m { m = $2 } END { print m }' "$1"; }

against() {
    local i
    for ((i = 0; i < ROUNDS; i++)); do
        # shellcheck disable=SC2086
        "$BUILD/plimsoll" bench "$1" --steps "$STEPS" --set memory.precision="$PRECISION" ${SETS:-} --json >"$tmp/json"
        {
            echo "seconds $(number measured_median_seconds "$tmp/json")"
            echo "arena $(number arena_bytes "$tmp/json")"
            echo "optimizer $(number optimizer "$tmp/json")"
            echo "resident $(number peak_resident_bytes "$tmp/json")"
        } >>"$tmp/ours"
        "$PYTHON" "$2" --steps "$STEPS" --precision "$THEIRS" "${@:3}" >"$tmp/round"
        {
            echo "seconds $(median "$tmp/round" seconds)"
            grep -v '^seconds ' "$tmp/round"
        } >>"$tmp/theirs"
    done
    awk -v a="$(least "$tmp/ours" seconds)" -v b="$(least "$tmp/theirs" seconds)" \
        -v arena="$(most "$tmp/ours" arena)" -v optimizer="$(most "$tmp/ours" optimizer)" -v resident="$(most "$tmp/ours" resident)" \
        -v peak="$(most "$tmp/theirs" peak_kib)" -v rest="$(most "$tmp/theirs" rest_kib)" \
        -v base="$(most "$tmp/theirs" baseline_kib)" -v state="$(most "$tmp/theirs" state_kib)" -v precision="$PRECISION" -v theirs="$THEIRS" 'BEGIN {
        MiB = 1048576; ours = 2 * optimizer
        printf "%-10s %10s %14s %13s %10s %10s %14s\n", theirs == precision ? precision : "", "s per step", "peak resident", "before model", "state", "rest", "resident rest"
        printf "%-10s %10.2f %10.0f MiB %9s MiB %6.0f MiB %6.0f MiB %10.0f MiB\n", theirs == precision ? "plimsoll" : "ours, " precision, a, resident / MiB, "-", ours / MiB, (arena - ours) / MiB, (resident - ours) / MiB
        printf "%-10s %10.2f %10.0f MiB %9.0f MiB %6.0f MiB %6.0f MiB %10.0f MiB\n", theirs == precision ? "pytorch" : "torch, " theirs, b, peak / 1024, base / 1024, state / 1024, rest / 1024, rest / 1024
        printf "%-10s %10.2f %14.2f %13s %10s %10.2f %14.2f\n", "ratio", b / a, resident / 1024 / peak, "", "", (arena - ours) / 1024 / rest, (resident - ours) / 1024 / rest
    }'
}
