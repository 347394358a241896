#!/bin/bash
# Includes point one way: a file includes files of its own folder and of folders to the left of it, and no
# two headers include each other.
#
# cpu and cuda implement interfaces that run declares. They are named where devices are opened and measured.
set -u
cd "$(dirname "$0")/.." || exit 2
order='base io text graph run cost dist cpu cuda passes plan models data config engine feed infer train calibrate report lib cli'
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
        else if ((b[1] == "cpu" || b[1] == "cuda") && a[1] != "cuda" && a[1] != "engine" && a[1] != "calibrate") print "      src/" $1 " includes " $2
    }' <<<"$edges")"

# Tables (.def) are left out: a table and its rows name each other.
check 'files: no circle of headers' "$(grep -E '^[^ ]+\.(h|cuh|inc) ' <<<"$edges" | grep -E '\.(h|cuh|inc)$' | tsort 2>&1 >/dev/null | sed 's/^/      /')"

echo "$passed passed, $failed failed"
((failed == 0))
