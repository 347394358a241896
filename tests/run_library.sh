#!/bin/bash
# run_library.sh: the library as a user gets it: its exported names, the header in C and C++, the
# examples, and programs built against an installation, shared and static.
set -u
. tests/run_lib.sh
cc=${CC:-cc}
[ -x "$BUILD/examples/define_model" ] && [ -x "$BUILD/examples/time_series" ] && [ -x "$BUILD/examples/recurrent" ] && [ -x "$BUILD/examples/wide_head" ] || make -s BUILD="$BUILD" all examples || exit 2

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
    echo '#include <plimsoll_ops.h>' >"$tmp/header"
    "$1" "-std=$2" -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude -x "$3" "$tmp/header" && echo "$2"
}
check 'the headers by themselves, in C99' header "$cc" c99 c
check 'the headers by themselves, in C11' header "$cc" c11 c
check 'the headers by themselves, in C++' header "${CXX:-g++}" c++11 c++

# Every macro in C++: an example that is written in C, and one macro that it does not use, with a
# call among its arguments, which must be made once.
cat >"$tmp/macros.cpp" <<'END'
#include <cstdio>
#include <cstring>
#include <plimsoll.h>

static int calls;
static pl_tensor once(struct pl_builder *b, pl_tensor x)
{
    calls++;
    return pl_scale(b, x, 2);
}
static void build(struct pl_builder *b, int64_t batch, void *)
{
    const std::size_t width = 8; /* another type than the array's */
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, width));
    pl_tensor w = pl_param(b, "w", PL_SHAPE(width), PL_ONES, 0);
    calls = 0;
    pl_tensor y = pl_op(b, "rmsnorm", PL_TENSORS(once(b, x), w), "eps=1e-6");
    if (calls != 1) pl_fail(b, "an argument of PL_TENSORS was evaluated more than once");
    pl_output(b, "loss", pl_per_count(b, pl_sum(b, y)));
}
extern "C" PL_API int exported(void) { return PL_MAX_RANK; }
int main()
{
    struct pl_session *s = pl_open();
    int rc = pl_define(s, build, nullptr, nullptr);
    if (!rc) rc = pl_plan(s, nullptr);
    std::printf("C++ %ld, version %s: %s\n", (long)__cplusplus, PL_VERSION, rc ? pl_message(s) : "planned");
    pl_close(s);
    return rc || exported() != 6 || std::strcmp(PL_VERSION, pl_version());
}
END
cplusplus() { # STANDARD FILE: builds the file as C++ and runs it
    local cxx=${CXX:-g++}
    command -v "$cxx" >/dev/null || { echo "no $cxx here"; return 77; }
    "$cxx" "-std=$1" -Wall -Wextra -Wpedantic -Werror -O1 -Iinclude -x c++ "$2" -x none "$BUILD/libplimsoll.so.0" -Wl,-rpath,"$(realpath "$BUILD")" -o "$tmp/program" &&
        "$tmp/program"
}
if sanitized; then echo 'skip  C++ programs without the sanitizer'; skipped=$((skipped + 1)); else
    for standard in c++11 c++17 c++20; do check "every macro in $standard" cplusplus $standard "$tmp/macros.cpp"; done
    check 'define_model.c as C++' cplusplus c++11 examples/define_model.c
    check 'recurrent.c as C++' cplusplus c++11 examples/recurrent.c
fi

# --- the examples ---------------------------------------------------------------------

define_model() {
    "$BUILD/examples/define_model" "$tmp/chessboard" >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    [ -s "$tmp/chessboard/model.safetensors" ] && grep -q chessboard "$tmp/chessboard/config.json" &&
        grep 'right on fresh points' "$tmp/out"
}
check 'define_model: the loss falls, a folder is left' define_model

# A kind of input of its own: the batch is the second dimension.
time_series() {
    "$BUILD/examples/time_series" "$tmp/series" >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    [ -s "$tmp/series/model.safetensors" ] && grep '16 series at a time' "$tmp/out" && grep 'step 200' "$tmp/out"
}
check 'time_series: the loss falls, a folder is left' time_series
# A loop: the smallest budget recomputes its iterations, with the same bits.
recurrent() {
    "$BUILD/examples/recurrent" >"$tmp/out" 2>&1 && grep -q '^no budget: .* recompute none' "$tmp/out" && grep '^smallest budget: .* recompute all' "$tmp/out" || { cat "$tmp/out"; return 1; }
}
check 'recurrent: the loss falls, the same bits in the smallest budget' recurrent
wide_head() {
    "$BUILD/examples/wide_head" >"$tmp/out" 2>&1 && grep -q '^no budget: .* head in 1 chunks' "$tmp/out" && grep '^smallest budget: .* head in [2-9][0-9]* chunks' "$tmp/out" || { cat "$tmp/out"; return 1; }
}
check 'wide_head: a head in chunks, the same losses' wide_head

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

# --- the build ------------------------------------------------------------------------------

# A folder that is marked as built (make -t) with these switches; `commands SWITCHES...` counts what
# a make in it would run.
folder_make() { env -u MAKEFLAGS -u MAKELEVEL make BUILD="$tmp/build" "$@"; }
commands() { folder_make -n "$@" all | grep -c -- ' -o '; }
remembers() {
    mkdir -p "$tmp/build/profiles" && (cd src && find . -type d) | (cd "$tmp/build" && xargs mkdir -p) || return 1
    folder_make -s CUDA=0 MPI=0 TIFF=0 OPT=-O1 "$tmp/build/found.mk" && folder_make -st all >/dev/null || return 1
    local same library flag link
    same=$(commands) library=$(commands TIFF=1) && folder_make -st all >/dev/null
    link=$(commands LDFLAGS=-s) flag=$(commands CFLAGS=-g)
    echo "$same commands; another library: $library, the linker's flags: $link, the compiler's flags: $flag"
    [ "$same" = 0 ] && [ "$library" = 4 ] && [ "$link" = 3 ] && [ "$flag" -gt 400 ]
}
check 'a build folder remembers its switches' remembers
wrong_switch() { ! folder_make -n TIFF=yes all >"$tmp/out" 2>&1 && grep 'TIFF is "yes": expected 0 or 1' "$tmp/out"; }
check 'a switch that is neither on nor off' wrong_switch
# tools/deps.sh on a machine without a compiler and apt-get names what is missing.
bare() { PATH=$tmp/bare CC=gcc "$@" tools/deps.sh 2>&1; }
dependencies() {
    local tool
    mkdir -p "$tmp/bare"
    for tool in bash sh env mktemp rm sed dirname cat; do ln -sf "$(command -v $tool)" "$tmp/bare/$tool"; done
    bare env WITHOUT=MPI | grep 'libcjson-dev.* libtiff-dev.* libavformat-dev .* ffmpeg$' && ! bare env WITHOUT='MPI FFMPEG' | grep -E 'libav|ffmpeg|openmpi'
}
check 'make deps: what is missing, less what is switched off' dependencies

# Full RELRO, a stack protector and checked copies, in everything that is loaded.
hardened() {
    local file
    for file in plimsoll libplimsoll.so.0 plimsoll-mpi.so plimsoll-cuda.so; do
        [ -f "$BUILD/$file" ] || continue
        readelf -lW "$BUILD/$file" | grep -q GNU_RELRO && readelf -dW "$BUILD/$file" | grep -qw 'NOW' &&
            readelf --dyn-syms -W "$BUILD/$file" | grep -q __stack_chk_fail && readelf --dyn-syms -W "$BUILD/$file" | grep -q '_chk@' || { echo "$file"; return 1; }
    done
}
if sanitized; then echo 'skip  hardening: the sanitizers check more'; skipped=$((skipped + 1)); else check 'RELRO, stack protector, fortified copies' hardened; fi

# THIRD-PARTY.md has a row for everything that is linked here, that a build with other switches
# links, and that is loaded.
covered() {
    local file name missing=
    {
        for file in plimsoll libplimsoll.so.0 plimsoll-mpi.so plimsoll-cuda.so; do
            [ ! -f "$BUILD/$file" ] || readelf -dW "$BUILD/$file" | sed -nE 's/.*\(NEEDED\).*\[(.*)\.so.*/\1/p'
        done
        grep -oE ' -l[a-z][A-Za-z0-9+-]*|,-l[a-z][A-Za-z0-9+-]*' Makefile | grep -v -e cmocka -e lineinfo | sed -E 's/^.-l/lib/'
        echo libavformat libavcodec libavutil libswscale libnccl libcuda | tr ' ' '\n'
    } | sort -u >"$tmp/linked"
    while read -r name; do
        case $name in ld-linux* | ld64*) continue ;; esac
        grep -qF "\`$name\`" THIRD-PARTY.md || missing="$missing $name"
    done <"$tmp/linked"
    echo "$(wc -l <"$tmp/linked") libraries${missing:+, missing:$missing}"
    [ -z "$missing" ]
}
if sanitized; then echo 'skip  licences: the sanitizers are linked too'; skipped=$((skipped + 1)); else check 'licences of all libraries' covered; fi

# --- an installation ----------------------------------------------------------------------

installed() {
    local before
    before=$(stat -c '%i %Y' "$BUILD/plimsoll")
    make -s BUILD="$BUILD" install DESTDIR="$tmp/root" PREFIX=/opt/pl >/dev/null &&
        (cd "$tmp/root/opt/pl" && ls bin/plimsoll include/plimsoll.h lib/libplimsoll.a lib/libplimsoll.so lib/libplimsoll.so.0 \
            lib/pkgconfig/plimsoll.pc share/doc/plimsoll/LICENSE share/doc/plimsoll/THIRD-PARTY.md share/doc/plimsoll/docs/guides/c-library.md) &&
        "$tmp/root/opt/pl/bin/plimsoll" --version && [ "$(stat -c '%i %Y' "$BUILD/plimsoll")" = "$before" ]
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
    struct pl_plan_info p = PL_INIT(pl_plan_info);
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
        flags="$($pc --cflags --libs plimsoll)"
    else
        flags="$($pc --cflags plimsoll) $tmp/root/opt/pl/lib/libplimsoll.a $($pc --static --libs plimsoll | sed 's/-lplimsoll//')"
    fi
    # shellcheck disable=SC2086
    "$cc" -Wall -Werror "$tmp/outside.c" $flags -o "$tmp/outside" && "$tmp/outside"
}
# An installation for one user, with nothing set but what `make install` says: the program, and
# programs in C and C++ that are built by pkg-config, run in an empty environment from another
# folder.
private() {
    local home=$tmp/home/.local
    make -s BUILD="$BUILD" install PREFIX="$home" >"$tmp/installed" || return 1
    cat "$tmp/installed"
    grep -q "export PATH=\"$home/bin:\$PATH\"" "$tmp/installed" && grep -q "export PKG_CONFIG_PATH=\"$home/lib/pkgconfig\"" "$tmp/installed" || return 1
    (cd / && env -i ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"} "$home/bin/plimsoll" --version) && grep -q -- "-Wl,-rpath,\${libdir}" "$home/lib/pkgconfig/plimsoll.pc"
}
built_privately() { # COMPILER FILE
    command -v "$1" >/dev/null || { echo "no $1 here"; return 77; }
    # shellcheck disable=SC2046
    "$1" "$2" $(PKG_CONFIG_PATH=$tmp/home/.local/lib/pkgconfig pkg-config --cflags --libs plimsoll) -o "$tmp/private" && (cd / && env -i ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"} "$tmp/private")
}
# The program and the library look for the plug-in in the installation: a file that is no plug-in is
# found, and refused for another reason than its absence.
plugin() {
    local lib=$tmp/home/.local/lib
    if [ -f "$lib/plimsoll-cuda.so" ]; then same "$BUILD/plimsoll-cuda.so" "$lib/plimsoll-cuda.so" && echo 'installed'; return; fi
    expect 2 'this build has no CUDA device' "$tmp/home/.local/bin/plimsoll" train "$tmp/tiny.yaml" --set device=cuda --set "train.out=$tmp/gpu" || return 1
    : >"$lib/plimsoll-cuda.so"
    expect 1 'no NVIDIA driver|plimsoll-cuda.so: file too short' "$tmp/home/.local/bin/plimsoll" train "$tmp/tiny.yaml" --set device=cuda --set "train.out=$tmp/gpu" || return 1
    make -s BUILD="$BUILD" install PREFIX="$tmp/home/.local" >"$tmp/installed" && [ ! -e "$lib/plimsoll-cuda.so" ] && grep 'without the CUDA plug-in' "$tmp/installed"
}
check 'make install for one user' private
check 'the CUDA plug-in of an installation is found' plugin

if sanitized; then echo 'skip  programs without the sanitizer'; skipped=$((skipped + 1)); else
    check 'a program with the shared library' outside shared
    check 'a program with the static library' outside static
    check 'a C program of that user' built_privately "$cc" "$tmp/outside.c"
    check 'a C++ program of that user' built_privately "${CXX:-g++}" "$tmp/macros.cpp"
fi

summary
