#!/bin/bash
# The data path against the usual Python one (tarfile, PIL, json, pycocotools, torch): images/s on one
# core from the same shards, in turn; pairs delivered from shards in bad order and damaged ones; the loader's
# memory over FLAT images.
#
#   BUILD=build PYTHON=python3 IMAGES=100 ROUNDS=2 SECONDS_EACH=10 FLAT=10000 DATA= bench/data.sh
#
# DATA keeps the shards there for the next run. PYTHON must import torch, PIL, pycocotools.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
PYTHON=${PYTHON:-python3}
IMAGES=${IMAGES:-100}
ROUNDS=${ROUNDS:-2}
SECONDS_EACH=${SECONDS_EACH:-10}
FLAT=${FLAT:-10000}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
DATA=${DATA:-$tmp}

[[ -d $DATA/raw ]] || "$BUILD/plimsoll" data make "$DATA/raw" --images "$IMAGES" --size 2250x1500 --masks 93 --order sorted >&2
[[ -d $DATA/small ]] || "$BUILD/plimsoll" data prepare "$DATA"/raw/*.tar -o "$DATA/small" --long-side 1024 >&2
raw=$DATA/raw/sa_000000.tar
word() { awk -v w="$1" '$1 == w { print $2 }' "$2"; }
most() { awk -v w="$1" '$1 == w && $2 > m { m = $2 } END { print m }' "$2"; }

for ((i = 0; i < ROUNDS; i++)); do
    "$PYTHON" bench/python_data.py time "$raw" --seconds "$SECONDS_EACH" >>"$tmp/python"
    for kind in raw small; do "$BUILD/bench/bench_loader" --images $((IMAGES * 3)) "$DATA/$kind" >>"$tmp/$kind.times"; done
done
printf '%-22s %10s %8s %16s %8s\n' 'one core, 32 masks' images/s ratio 'images/cpu-second' ratio
for kind in python raw.times small.times; do
    awk -v name="$kind" -v w="$(most per_second "$tmp/$kind")" -v c="$(most per_cpu_second "$tmp/$kind")" \
        -v pw="$(most per_second "$tmp/python")" -v pc="$(most per_cpu_second "$tmp/python")" 'BEGIN {
        label["python"] = "python"; label["raw.times"] = "plimsoll, raw"; label["small.times"] = "plimsoll, prepared"
        printf "%-22s %10.2f %8.1f %16.2f %8.1f\n", label[name], w, w / pw, c, c / pc }'
done

printf '\n%-22s %8s %10s %8s\n' 'pairs from' intact plimsoll python
for how in json-first random damaged; do
    mkdir -p "$tmp/$how"
    "$PYTHON" bench/python_data.py rewrite $how "$raw" "$tmp/$how/sa_000000.tar" >"$tmp/written"
    "$BUILD/bench/bench_loader" --once "$tmp/$how" >"$tmp/ours"
    "$PYTHON" bench/python_data.py count "$tmp/$how/sa_000000.tar" >"$tmp/theirs" 2>/dev/null
    printf '%-22s %8d %10d %8d\n' $how "$(word intact "$tmp/written")" "$(word distinct "$tmp/ours")" "$(word pairs "$tmp/theirs")"
done

[[ $FLAT -gt 0 ]] || exit 0
"$BUILD/bench/bench_loader" --images "$FLAT" --threads 2 "$DATA/small" >"$tmp/flat"
printf '\n%d images: resident %d KiB after a hundredth of them, %d KiB at the end\n' "$FLAT" "$(word early_kib "$tmp/flat")" "$(word end_kib "$tmp/flat")"
