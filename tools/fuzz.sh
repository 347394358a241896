#!/bin/bash
# Runs the libFuzzer targets that `make fuzz` built, SECONDS_EACH seconds each.
#
# New inputs go to $BUILD/fuzz/corpus; the stored inputs under tests/fuzz/corpus are read and never
# written. A crash saves its input in $BUILD/fuzz and ends the script with exit code 1: add that
# input to the stored corpus together with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
SECONDS_EACH=${SECONDS_EACH:-60}
for target in tests/fuzz/fuzz_*.c; do
    name=$(basename "$target" .c)
    kind=${name#fuzz_}
    mkdir -p "$BUILD/fuzz/corpus/$kind"
    printf '%-20s ' "$name"
    if "$BUILD/fuzz/$name" -max_total_time="$SECONDS_EACH" -timeout=10 -rss_limit_mb=1024 \
        -artifact_prefix="$BUILD/fuzz/$name-" "$BUILD/fuzz/corpus/$kind" "tests/fuzz/corpus/$kind" \
        >"$BUILD/fuzz/$name.log" 2>&1; then
        tail -n 1 "$BUILD/fuzz/$name.log"
    else
        echo "failed:"
        tail -n 60 "$BUILD/fuzz/$name.log"
        exit 1
    fi
done
