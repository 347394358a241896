#!/bin/bash
# The loader compared with a Python loader (tarfile, PIL, json, pycocotools, torch: see
# python_data.py): images/s on one core from the same shards, interleaved, and from the packed
# store; the rate of JPEG decoding by itself; pairs delivered from shards in unusual order and from
# damaged shards; the loader's memory over FLAT images.
#
#   BUILD=build PYTHON=python3 IMAGES=100 ROUNDS=2 SECONDS_EACH=10 FLAT=10000 DATA= bench/data.sh
#
# DATA is a folder that keeps the shards for the next run. PYTHON must import torch, PIL,
# pycocotools.
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
if [[ ! -d $DATA/photo ]]; then
    mkdir "$DATA/photo"
    "$PYTHON" bench/python_data.py rewrite jpeg-size "$raw" "$DATA/photo/sa_000000.tar" >&2
fi
[[ -f $DATA/all.pack ]] || "$BUILD/plimsoll" data pack "$raw" -o "$DATA/all.pack" >&2
word() { awk -v w="$1" '$1 == w { print $2 }' "$2"; }
most() { awk -v w="$1" '$1 == w && $2 > m { m = $2 } END { print m }' "$2"; }

for ((i = 0; i < ROUNDS; i++)); do
    for kind in raw photo small; do
        "$PYTHON" bench/python_data.py time "$DATA/$kind/sa_000000.tar" --seconds "$SECONDS_EACH" >>"$tmp/python.$kind"
        "$BUILD/bench/bench_loader" --images $((IMAGES * 3)) "$DATA/$kind" >>"$tmp/ours.$kind"
        "$BUILD/bench/bench_loader" --images "$IMAGES" --decode "$DATA/$kind" >>"$tmp/decode.$kind"
    done
    "$BUILD/bench/bench_loader" --images $((IMAGES * 30)) "$DATA/all.pack" >>"$tmp/ours.pack"
done
# A packed store holds no JPEG; it is compared with Python on the shards that it was packed from.
cp "$tmp/python.raw" "$tmp/python.pack"
printf 'decoded_per_cpu_second 0\n' >"$tmp/decode.pack"
printf '%-26s %9s %9s %7s %9s %9s %7s %10s %9s\n' 'one core, 32 masks' python/s ours/s ratio python/cpu ours/cpu ratio 'to original' decode/cpu
row() {
    awk -v name="$1" -v pw="$(most per_second "$tmp/python.$2")" -v pc="$(most per_cpu_second "$tmp/python.$2")" -v ow="$(most per_second "$tmp/ours.$2")" \
        -v oc="$(most per_cpu_second "$tmp/ours.$2")" -v rc="$(most per_cpu_second "$tmp/python.raw")" \
        -v dc="$(most decoded_per_cpu_second "$tmp/decode.$2")" 'BEGIN {
        printf "%-26s %9.2f %9.2f %7.1f %9.2f %9.2f %7.1f %10.1f %9.1f\n", name, pw, ow, ow / pw, pc, oc, oc / pc, oc / rc, dc }'
}
row 'original' raw
row 'JPEG sizes of SA-1B' photo
row 'prepared, long side 1024' small
row 'packed (to original)' pack

printf '\n%-22s %8s %10s %8s\n' 'pairs from' intact plimsoll python
for variant in json-first random damaged; do
    mkdir -p "$tmp/$variant"
    "$PYTHON" bench/python_data.py rewrite $variant "$raw" "$tmp/$variant/sa_000000.tar" >"$tmp/written"
    "$BUILD/bench/bench_loader" --once "$tmp/$variant" >"$tmp/ours"
    "$PYTHON" bench/python_data.py count "$tmp/$variant/sa_000000.tar" >"$tmp/theirs" 2>/dev/null
    printf '%-22s %8d %10d %8d\n' $variant "$(word intact "$tmp/written")" "$(word distinct "$tmp/ours")" "$(word pairs "$tmp/theirs")"
done

[[ $FLAT -gt 0 ]] || exit 0
"$BUILD/bench/bench_loader" --images "$FLAT" --threads 2 "$DATA/small" >"$tmp/flat"
printf '\n%d images: resident %d KiB after a hundredth of them, %d KiB at the end\n' "$FLAT" "$(word early_kib "$tmp/flat")" "$(word end_kib "$tmp/flat")"
