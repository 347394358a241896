# cuda_common.sh: the functions that the scripts of the GPU's tables share; each script sources it.
#
# The first argument of a script is the folder for rows (NAME.jsonl), the table (NAME.md) and the
# log of all scripts (cuda.log); new rows are appended. BUILD (build), PYTHON (python3; torch and
# transformers for the peers), STEPS (5 measured steps), SETS (more --set for `plimsoll bench`),
# OURS and PEERS (1; 0: leave that side out) come from the environment. DEVICE=cpu tests a script
# without a GPU, with small presets. A failed measurement becomes a row with its error, and the
# script continues.
# shellcheck shell=bash
BUILD=${BUILD:-build}
PYTHON=${PYTHON:-python3}
STEPS=${STEPS:-5}
OURS=${OURS:-1}
PEERS=${PEERS:-1}
DEVICE=${DEVICE:-cuda}
LIMIT=${LIMIT:-400} # seconds for one program
[[ $DEVICE == cuda ]] || export PEER_DEVICE=$DEVICE
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# open_rows FOLDER NAME
open_rows() {
    [[ -n $1 ]] || { echo "usage: $0 FOLDER" >&2; exit 2; }
    mkdir -p "$1"
    rows=$1/$2.jsonl page=$1/$2.md log=$1/cuda.log kind=$2
    touch "$rows"
}
rows_py() { "$PYTHON" bench/cuda_rows.py "$@"; }
note() { echo "$(date -u +%T) $*" | tee -a "$log" >&2; }

# bench_ours RUN.yaml KEY=VALUE... -- --set ...: one `plimsoll bench`, one row
bench_ours() {
    local run=$1 members=()
    shift
    while [[ $# -gt 0 && $1 != -- ]]; do members+=("$1"); shift; done
    shift
    note "ours ${members[*]} ${SETS:-}"
    # shellcheck disable=SC2086
    if timeout "$LIMIT" "$BUILD/plimsoll" bench "$run" --steps "$STEPS" --set "device=$DEVICE" "$@" ${SETS:-} --json >"$tmp/bench.json" 2>"$tmp/err"; then
        rows_py bench "$rows" "$tmp/bench.json" "${members[@]}"
    else
        cat "$tmp/err" >>"$log"
        rows_py failed "$rows" "$tmp/err" "${members[@]}"
    fi
}
# peer SCRIPT OPTION...
peer() {
    note "peer $*"
    timeout "$LIMIT" "$PYTHON" "bench/$1" --rows "$rows" "${@:2}" >>"$log" 2>&1 || note "$1 ended with $?"
}
# finish: the table, last
finish() {
    note "done"
    rows_py table "$kind" "$rows" | tee "$page"
}
