#!/bin/bash
# Predicted and measured step times on this machine: calibrates (unless PROFILE names a profile),
# then runs `plimsoll bench` for models of sizes that the calibration does not use, interleaved,
# ROUNDS times. Prints the prediction, the least of the measured medians, and the error.
#
#   BUILD=build ROUNDS=3 STEPS=2 PROFILE= bench/predict.sh
#
# Run it on an idle machine: other programs would slow the measured steps.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
ROUNDS=${ROUNDS:-3}
STEPS=${STEPS:-2}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

profile=${PROFILE:-$tmp/profile.json}
[[ -f $profile ]] || "$BUILD/plimsoll" bench --calibrate -o "$profile" >&2

# name, model, sequence, batch
cases=("llama-tiny llama-tiny 256 8" "llama-124m llama-124m 512 2" "clip-vit-b-16 clip-vit-b-16 256 4")
member() { sed -n "s/^ *\"$1\": \([-0-9.e+]*\),*$/\1/p" "$2"; }

for ((i = 0; i < ROUNDS; i++)); do
    for c in "${cases[@]}"; do
        read -r name preset sequence batch <<<"$c"
        for precision in f32 bf16; do
            printf 'model: {preset: %s}\ndata: {sequence: %d}\ntrain: {effective_batch: %d, clip_norm: 1}\nmemory: {micro_batch: %d, precision: %s, recompute: none, offload: none, head_chunks: 1}\n' \
                "$preset" "$sequence" "$batch" "$batch" "$precision" >"$tmp/run.yaml"
            "$BUILD/plimsoll" bench "$tmp/run.yaml" --steps "$STEPS" --json --set device.profile="$profile" >"$tmp/bench.json"
            echo "$name,$precision $(member predicted_step_seconds "$tmp/bench.json") $(member measured_median_seconds "$tmp/bench.json")" >>"$tmp/all"
        done
    done
done

awk '{ predicted[$1] = $2; if (!($1 in least) || $3 < least[$1]) least[$1] = $3; if (!seen[$1]++) order[n++] = $1 }
END {
    printf "%-16s %-5s %12s %12s %8s\n", "model", "", "predicted s", "measured s", "error"
    for (i = 0; i < n; i++) {
        split(order[i], k, ",")
        printf "%-16s %-5s %12.4g %12.4g %+7.1f%%\n", k[1], k[2], predicted[order[i]], least[order[i]], 100 * (predicted[order[i]] / least[order[i]] - 1)
    }
}' "$tmp/all"
