#!/bin/bash
# Predicted and measured images/s on a GPU within smaller and smaller budgets: the plan that
# `--memory` finds, its predicted rate, and the rate of its captured steps.
#
#   BUILD=build MODEL=sam-vit-h BATCH=8 MASKS=32 STEPS=5 BUDGETS='80 40 24 16 12 8 6' OUT= PROFILE= bench/predict_gpu.sh
#
# PROFILE is a file written by `bench --calibrate --set device=cuda`; unset: the default profile of
# a plan. The folder OUT receives the JSON of each run, whose `classes` list the prediction's error
# kernel by kernel. STRICT=1: exit status 1 if a prediction is off by more than 15 %.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
MODEL=${MODEL:-sam-vit-h}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
to=${OUT:-$tmp}
cat >"$tmp/run.yaml" <<YAML
model: {preset: $MODEL}
data: {format: sa1b, max_masks: ${MASKS:-32}}
train: {effective_batch: ${BATCH:-8}}
device: {kind: cuda${PROFILE:+, profile: $PROFILE}}
YAML
number() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*$/\1/p" "$2" | head -n 1; }

worst=0
printf '%-8s %12s %12s %14s %14s %8s   %s\n' budget 'arena GiB' micro-batch 'predicted/s' 'measured/s' error 'kernel with the largest error'
for g in ${BUDGETS:-80 40 24 16 12 8 6}; do
    j=$to/predict-$MODEL-$g.json
    if ! "$BUILD/plimsoll" bench "$tmp/run.yaml" --memory "${g}GiB" --steps "${STEPS:-5}" --json >"$j" 2>"$tmp/error"; then
        printf '%-8s %s\n' "$g GiB" "$(tail -n 1 "$tmp/error" | cut -c 1-160)"
        continue
    fi
    kernel=$(sed -n 's/^ *"kernel": "\(.*\)",$/\1/p' "$j" | head -n 1)
    awk -v g="$g GiB" -v a="$(number arena_bytes "$j")" -v m="$(number micro_batch "$j")x$(number accumulation "$j")" -v b="$(number effective_batch "$j")" \
        -v p="$(number predicted_step_seconds "$j")" -v s="$(number measured_median_seconds "$j")" -v k="$kernel" \
        'BEGIN { printf "%-8s %12.2f %12s %14.2f %14.2f %+7.1f%%   %s\n", g, a / 2^30, m, b / p, b / s, 100 * (s / p - 1), k; e = s / p - 1; exit e > 0.15 || e < -0.15 }' || worst=1
done
[[ -z ${STRICT:-} ]] || exit $worst
