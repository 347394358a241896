#!/bin/bash
# The cost of planning: processor time (user and system) of `plimsoll plan` with the H200's profile, the best of
# TRIES. If no plan fits, the time includes the search for changes that would fit.
#
#   BUILD=build TRIES=3 MEMORY=24GiB bench/plan.sh [PRESET...]        (llama-7b sam-vit-h)
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
TRIES=${TRIES:-3}
MEMORY=${MEMORY:-24GiB}
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
    for ((i = 0; i < TRIES; i++)); do
        { time { "$BUILD/plimsoll" plan "$tmp/run.yaml" --memory "$MEMORY" --json >"$tmp/plan.json" 2>/dev/null && rc=0 || rc=$?; }; } 2>>"$tmp/times"
        [ "$rc" = 0 ] || [ "$rc" = 3 ]
    done
    awk -v preset="$preset" -v memory="$MEMORY" -v rc="$rc" '{ t = $1 + $2; if (NR == 1 || t < best) best = t }
        END { printf "%-12s %s  %s  %6.2f s\n", preset, memory, rc ? "does not fit" : "fits        ", best }' "$tmp/times"
    rm "$tmp/times"
done
