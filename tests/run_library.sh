#!/bin/bash
# run_library.sh: the library as a user gets it: its exported names, the header in C and C++, the examples,
# and programs built against an installation, shared and static.
set -u
. tests/run_lib.sh
cc=${CC:-cc}
[ -x "$BUILD/examples/define_model" ] || make -s BUILD="$BUILD" all examples || exit 2

# The library exports exactly the functions that plimsoll.h declares.
# clang gives the locks of critical sections global names.
exports() { # FILE NM-OPTIONS...
    nm "${@:2}" --defined-only "$1" | awk 'NF == 3 && $3 !~ /^[.]gomp_critical/ { print $3 }' | sort >"$tmp/has"
    sed -n 's/.*PL_API .*[ *]\(pl_[a-z0-9_]*\)(.*/\1/p' include/plimsoll.h | sort >"$tmp/says"
    diff "$tmp/says" "$tmp/has" && echo "$(wc -l <"$tmp/has") functions"
}
check 'the shared library exports the header' exports "$BUILD/libplimsoll.so.0" -D
if sanitized; then echo 'skip  static names: the sanitizer adds its own'; skipped=$((skipped + 1)); else
    check 'the static library exports the header' exports "$BUILD/libplimsoll.a" -g
fi

soname() { objdump -p "$BUILD/libplimsoll.so.0" | grep -w 'SONAME *libplimsoll.so.0'; }
check 'its soname is libplimsoll.so.0' soname

header() { # COMPILER STANDARD LANGUAGE
    command -v "$1" >/dev/null || { echo "no $1 here"; return 77; }
    echo '#include <plimsoll.h>' >"$tmp/header"
    "$1" "-std=$2" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -x "$3" "$tmp/header" && echo "$2"
}
check 'the header alone, in C99' header "$cc" c99 c
check 'the header alone, in C11' header "$cc" c11 c
check 'the header alone, in C++' header "${CXX:-g++}" c++11 c++

# --- the examples ---------------------------------------------------------------------

define_model() {
    "$BUILD/examples/define_model" "$tmp/chessboard" >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    [ -s "$tmp/chessboard/model.safetensors" ] && grep -q chessboard "$tmp/chessboard/config.json" &&
        grep 'right on fresh points' "$tmp/out"
}
check 'define_model: the loss falls, a folder is left' define_model

# The example stops early, and `plimsoll train --resume` continues the run.
step_callback() {
    local keys="train.out=$tmp/run train.steps=40 data.sequence=32 train.eval_every=0 device.threads=1"
    # shellcheck disable=SC2046,SC2086
    "$BUILD/examples/step_callback" examples/tiny.yaml 5.2 $(echo $keys | tr = ' ') >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    grep 'stopped by the step callback' "$tmp/out" && grep 'the model is in' "$tmp/out" || { cat "$tmp/out"; return 1; }
    local sets=
    for k in $keys; do sets="$sets --set $k"; done
    # shellcheck disable=SC2086
    "$binary" train examples/tiny.yaml --resume $sets >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    echo "stopped and resumed: $(grep -c '"loss"' "$tmp/run/metrics.jsonl") steps"
    [ "$(grep -c '"loss"' "$tmp/run/metrics.jsonl")" = 40 ]
}
check 'step_callback: stops, and plimsoll train goes on' step_callback

# --- an installation ----------------------------------------------------------------------

installed() {
    make -s BUILD="$BUILD" install DESTDIR="$tmp/root" PREFIX=/opt/pl >/dev/null &&
        (cd "$tmp/root/opt/pl" && ls bin/plimsoll include/plimsoll.h lib/libplimsoll.a lib/libplimsoll.so lib/libplimsoll.so.0 \
            lib/pkgconfig/plimsoll.pc share/doc/plimsoll/LICENSE share/doc/plimsoll/docs/guides/c-library.md) &&
        "$tmp/root/opt/pl/bin/plimsoll" --version
}
check 'make install with DESTDIR' installed

# outside shared|static: a program built with the flags of the installed plimsoll.pc.
outside() {
    local linkage=$1
    cat >"$tmp/outside.c" <<'END'
#include <plimsoll.h>
#include <stdio.h>
/* The library has internal functions of these names; a program may define its own. */
int error_set(void) { return 1; }
int mem_alloc(void) { return 2; }
int main(void)
{
    struct pl_plan_info p;
    struct pl_session *s = pl_open();
    pl_set(s, "model.preset", "llama-tiny");
    int rc = pl_plan(s, &p);
    printf("%s: %llu bytes %s\n", pl_version(), (unsigned long long)p.arena_bytes, pl_message(s));
    pl_close(s);
    return rc || error_set() != 1 || mem_alloc() != 2;
}
END
    local pc="pkg-config --define-variable=prefix=$tmp/root/opt/pl --define-variable=includedir=$tmp/root/opt/pl/include --define-variable=libdir=$tmp/root/opt/pl/lib"
    export PKG_CONFIG_PATH=$tmp/root/opt/pl/lib/pkgconfig
    local flags
    if [ "$linkage" = shared ]; then
        flags="$($pc --cflags --libs plimsoll) -Wl,-rpath,$tmp/root/opt/pl/lib"
    else
        flags="$($pc --cflags plimsoll) $tmp/root/opt/pl/lib/libplimsoll.a $($pc --static --libs plimsoll | sed 's/-lplimsoll//')"
    fi
    # shellcheck disable=SC2086
    "$cc" -Wall -Werror "$tmp/outside.c" $flags -o "$tmp/outside" && "$tmp/outside"
}
if sanitized; then echo 'skip  programs without the sanitizer'; skipped=$((skipped + 1)); else
    check 'a program with the shared library' outside shared
    check 'a program with the static library' outside static
fi

summary
