#!/bin/bash
# The cost of planning: processor time (user and system) of `plimsoll plan` with the H200's profile,
# the best of TRIES, for one rank and for one of several that have as many rows each. If no plan
# fits, the time includes the search for changes that would fit.
#
#   BUILD=build TRIES=3 MEMORY=24GiB RANKS='1 8 64:8' bench/plan.sh [PRESET...]
#       default: llama-7b sam-vit-h; 64:8: on hosts of 8
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
TRIES=${TRIES:-3}
MEMORY=${MEMORY:-24GiB}
RANKS=${RANKS:-1 8}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
TIMEFORMAT='%U %S'
[ $# -gt 0 ] || set -- llama-7b sam-vit-h
for preset in "$@"; do
    case $preset in
        llama*) data='{sequence: 2048}' batch=8 ;;
        *) data='{format: sa1b, max_masks: 32, threads: 4}' batch=16 ;;
    esac
    printf 'model: {preset: %s}\ndata: %s\ntrain: {effective_batch: %s}\nmemory: {precision: bf16, host_budget: 64GiB}\ndevice: {kind: cuda, profile: h200}\n' \
        "$preset" "$data" "$batch" >"$tmp/run.yaml"
    for ranks in $RANKS; do
        of=(--ranks "${ranks%:*}" --set "train.effective_batch=$((batch * ${ranks%:*}))")
        [ "$ranks" = "${ranks%:*}" ] || of+=(--per-host "${ranks#*:}")
        for ((i = 0; i < TRIES; i++)); do
            { time { "$BUILD/plimsoll" plan "$tmp/run.yaml" --memory "$MEMORY" "${of[@]}" --json >"$tmp/plan.json" 2>/dev/null && rc=0 || rc=$?; }; } 2>>"$tmp/times"
            [ "$rc" = 0 ] || [ "$rc" = 3 ]
        done
        awk -v preset="$preset" -v memory="$MEMORY" -v ranks="$ranks" -v rc="$rc" '{ t = $1 + $2; if (NR == 1 || t < best) best = t }
            END { printf "%-12s %s  ranks %-5s %s  %6.2f s\n", preset, memory, ranks, rc ? "does not fit" : "fits        ", best }' "$tmp/times"
        rm "$tmp/times"
    done
done
