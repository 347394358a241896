#!/bin/bash
# Checks by measurement whether the search chooses the fastest plan. Candidates set by hand run
# interleaved, ROUNDS times. For each budget the table compares the measured step of the chosen plan
# with the fastest candidate that fits. It also prints the range of prediction errors. Run `plimsoll
# bench --calibrate` on an idle machine first.
#
#   BUILD=build ROUNDS=2 STEPS=3 MODEL=llama-124m PRECISION=bf16 bench/search.sh
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
ROUNDS=${ROUNDS:-2}
STEPS=${STEPS:-3}
MODEL=${MODEL:-llama-124m}
PRECISION=${PRECISION:-bf16}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
case $MODEL in
    sam* | tinysam*) data='{format: sa1b, max_masks: 8}' ;;
    *) data='{sequence: 256}' ;;
esac
printf 'model: {preset: %s}\ndata: %s\ntrain: {effective_batch: 4}\nmemory: {precision: %s}\n' "$MODEL" "$data" "$PRECISION" >"$tmp/run.yaml"
number() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*$/\1/p" "$2" | head -n 1; }
word() { sed -n "s/^ *\"$1\": \"\(.*\)\",*$/\1/p" "$2" | head -n 1; }

measure() { # one candidate: its name is its settings
    local sets=()
    IFS=' ' read -r micro recompute offload chunks <<<"$1"
    sets=(--set "memory.micro_batch=$micro" --set "memory.recompute=$recompute" --set "memory.offload=$offload" --set "memory.head_chunks=$chunks" --set memory.fused_step=off)
    "$BUILD/plimsoll" bench "$tmp/run.yaml" --steps "$STEPS" --json "${sets[@]}" >"$tmp/json"
    echo "$1 $(number arena_bytes "$tmp/json") $(number predicted_step_seconds "$tmp/json") $(number measured_median_seconds "$tmp/json")" >>"$tmp/all"
}
for ((i = 0; i < ROUNDS; i++)); do
    for micro in 4 2 1; do
        for recompute in none selective first:6 all; do
            for offload in none optimizer; do measure "$micro $recompute $offload 1"; done
        done
    done
done
# Each candidate's least median over the rounds.
sort "$tmp/all" | awk '{ k = $1 " " $2 " " $3 " " $4; if (!(k in t) || $7 < t[k]) t[k] = $7; a[k] = $5; p[k] = $6 } END { for (k in t) print a[k], p[k], t[k], k }' | sort -n >"$tmp/best"
awk '{ e = $2 / $3 - 1; if (e < low) low = e; if (e > high) high = e } END { printf "%d candidates, predictions off by %+.1f %% to %+.1f %%\n", NR, 100 * low, 100 * high }' "$tmp/best"
printf '%12s  %-44s %9s   %-34s %9s %8s\n' budget chosen 'a step' 'fastest that fits' 'a step' slower
awk 'NR % 4 == 1 { print $1 }' "$tmp/best" | while read -r budget; do
    "$BUILD/plimsoll" bench "$tmp/run.yaml" --steps "$STEPS" --json --memory "$budget" >"$tmp/json"
    "$BUILD/plimsoll" plan "$tmp/run.yaml" --json --memory "$budget" >"$tmp/plan.json"
    chosen="$(number micro_batch "$tmp/plan.json") $(word recompute "$tmp/plan.json") $(word offload "$tmp/plan.json") $(number head_chunks "$tmp/plan.json")"
    awk -v b="$budget" -v c="$chosen" -v now="$(number measured_median_seconds "$tmp/json")" '
        $1 <= b && (!n++ || $3 < best) { best = $3; name = $4 " " $5 " " $6 " " $7 }
        $4 " " $5 " " $6 " " $7 == c && $3 < now { now = $3 }
        END { printf "%12.0f  %-44s %7.3f s   %-34s %7.3f s %+6.1f %%\n", b, c, now, name, best, 100 * (now / best - 1) }' "$tmp/best"
done
