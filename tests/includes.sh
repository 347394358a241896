#!/bin/bash
# Includes point one way: a file includes files of its own folder and of folders to the left of it,
# and no two headers include each other. Neither do two files call each other's functions, but for
# those in `together`.
#
# cpu and cuda implement interfaces that run declares. They are named where devices are opened and
# measured.
set -u
cd "$(dirname "$0")/.." || exit 2
order='base io text graph run cost dist cpu cuda passes plan models data config import folder adapter planning engine batch infer train calibrate report compare lib cli page'
passed=0 failed=0
check() { # check TEXT LINES: LINES is empty if all is well
    if [[ $2 ]]; then
        echo "FAIL  $1"
        echo "$2"
        failed=$((failed + 1))
    else
        echo "ok    $1"
        passed=$((passed + 1))
    fi
}

# One line per include: FILE INCLUDED, without src/.
edges=$(grep -roE '^#include "[a-z_0-9]+/[a-z_0-9/]+\.[a-z]+"' src | sed -E 's|^src/||; s|:#include "| |; s|"$||')

check 'folders: includes point one way' "$(awk -v order="$order" '
    BEGIN { n = split(order, name, " "); for (i = 1; i <= n; i++) rank[name[i]] = i }
    {
        split($1, a, "/"); split($2, b, "/")
        if (a[1] == b[1] || b[1] == "profiles") next
        if (!(a[1] in rank) || !(b[1] in rank)) print "      src/" $1 ": folder of " $2 " is not listed in tests/includes.sh"
        else if (rank[b[1]] > rank[a[1]]) print "      src/" $1 " includes " $2
        else if ((b[1] == "cpu" || b[1] == "cuda") && a[1] !~ /^(planning|calibrate|page)$/) print "      src/" $1 " includes " $2
    }' <<<"$edges")"

check 'inputs: only the batch writer writes them' "$(grep -rnE '\brun_write_(input|batch|bytes)\(' src --include=*.c | grep -vE '^src/(batch|engine)/' | sed 's/^/      /')"

# What the others know of a model is its ports, what its samples hold (contents.h) and of which kind
# it is (model_kinds). The sizes of merged layers, checkpoint files, the memories of a video and the
# classes of a head are those of a family.
check 'families: only models and batch know them' "$(awk '
    $2 ~ /^models\// && $1 !~ /^(models|batch)\// && $2 !~ /^models\/(model|contents|modalities|catalogue)\.h$/ &&
        $1 !~ /^(adapter\/merge|folder\/checkpoint|infer\/tracker|infer\/classifier)\.c$/ { print "      src/" $1 " includes " $2 }' <<<"$edges"
    grep -rnE -e '\<(m|model)->(images|masks|ground)->|\<(m|model)\.(images|masks|ground)(\>|->)' src --include=*.[ch] | grep -vE '^src/(models|batch)/' | sed 's/^/      /')"

# Tables (.def) are left out: a table and its rows name each other.
check 'files: no circle of headers' "$(grep -E '^[^ ]+\.(h|cuh|inc) ' <<<"$edges" | grep -E '\.(h|cuh|inc)$' | tsort 2>&1 >/dev/null | sed 's/^/      /')"

# Files that call each other, as "CALLER CALLED": the call that points back. Tables need no line: a
# table names its rows as data.
together='
base/error base/progress
base/error base/text
config/config_groups config/config
config/config_print config/config
config/config_print config/config_groups
cpu/products/conv cpu/products/depthwise
batch/embed batch/batch_plan
batch/feed_questions batch/feed_masks
plan/search plan/ablation
text/template/chat_images text/template/chat
'

# The same, in builds that have FFmpeg, oneDNN or CUDA.
with_libraries='
cpu/products/onednn cpu/products/gemm
cuda/device/nodes cuda/device/record
cuda/device/record cuda/device/device
cuda/device/transport cuda/device/device
cuda/products/matmul_autotune cuda/products/gemm
data/images/video_file data/images/video
'

# One line per call between object files: CALLER CALLED, without $BUILD/ and .o.
calls() {
    find "$BUILD" -name '*.o' | sed "s|^$BUILD/||; s|\\.o$||" | while read -r name; do [[ ! -f src/$name.c ]] || echo "$BUILD/$name.o"; done | xargs nm -A |
        sed "s|^$BUILD/||; s|\\.o:| |" | awk '$3 == "T" { home[$4] = $1 } $2 == "U" { call[n++] = $1 " " $3 }
        END { for (i = 0; i < n; i++) { split(call[i], c, " "); if (c[2] in home && home[c[2]] != c[1]) print c[1], home[c[2]] } }' | sort -u
}

BUILD=${BUILD:-build}
if [[ -f $BUILD/graph/graph.o ]]; then
    found=$(calls)
    # The files of the template interpreter evaluate, call and render each other by nature.
    rest=$(grep -vxF -f <(grep . <<<"$together$with_libraries") <<<"$found" | awk '!($1 ~ /^text\/template\// && $2 ~ /^text\/template\//)')
    check 'files: no circle of calls' "$(tsort <<<"$rest" 2>&1 >/dev/null | sed 's/^/      /')"
    check 'files that call each other: the list is not out of date' "$(grep . <<<"$together" | grep -vxF -f <(printf '%s\n' "$found") | sed 's/^/      no such call: /')"
fi

echo "$passed passed, $failed failed"
((failed == 0))
