#!/bin/bash
# `predict` on a folder against one process for each image: seconds of both, and whether the masks
# are the same.
#
#   BUILD=build MODEL=tests/golden/predict/model IMAGES=200 SIZE=256x192 ONE=200 FLAGS= bench/predict_folder.sh
#
# ONE: images that are predicted by a process each; their time is scaled to all images. MODEL: a
# model folder or a preset. FLAGS: arguments of every predict, such as --set device=cuda.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
MODEL=${MODEL:-tests/golden/predict/model}
IMAGES=${IMAGES:-200}
SIZE=${SIZE:-256x192}
ONE=${ONE:-$IMAGES}
FLAGS=${FLAGS:-}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

"$BUILD/plimsoll" data make "$tmp/made" --images "$IMAGES" --size "$SIZE" --masks 2 --extracted >/dev/null
mkdir "$tmp/images" "$tmp/one"
find "$tmp/made" -name '*.jpg' -exec mv {} "$tmp/images" \;
box=20,20,$((${SIZE%x*} - 20)),$((${SIZE#*x} - 20))
now() { date +%s.%N; }

a=$(now)
# shellcheck disable=SC2086
"$BUILD/plimsoll" predict --model "$MODEL" "$tmp/images" --box "$box" -o "$tmp/all" $FLAGS
b=$(now)
n=0
for f in "$tmp"/images/*.jpg; do
    [ "$n" -lt "$ONE" ] || break
    # shellcheck disable=SC2086
    "$BUILD/plimsoll" predict --model "$MODEL" "$f" --box "$box" -o "$tmp/one/$(basename "$f" .jpg).png" $FLAGS >/dev/null
    n=$((n + 1))
done
c=$(now)
for f in "$tmp"/one/*.png; do cmp "$f" "$tmp/all/$(basename "$f")"; done
awk -v a="$a" -v b="$b" -v c="$c" -v n="$n" -v all="$IMAGES" \
    'BEGIN { folder = b - a; one = (c - b) / n * all; printf "%d images: folder %.2f s, a process each %.2f s, %.1f times as fast\n", all, folder, one, one / folder }'
