#!/bin/bash
# Installs the missing dependencies for building and testing; prints nothing if none is missing.
#
#   tools/deps.sh          a C compiler, libyaml, cJSON, libjpeg-turbo, libpng, zlib, Oniguruma, utf8proc, cmocka,
#                          pkg-config, and libwebp, libtiff, OpenJPEG, libzstd, FFmpeg's libraries, Open MPI and
#                          cmark-gfm (make site), which are optional; WITHOUT='FFMPEG MPI': not these
#   tools/deps.sh fuzz     clang with libFuzzer as well
#   tools/deps.sh onednn   oneDNN 2 as well, which is optional
#
# A dependency is present if a program that uses it compiles and links, wherever it comes from.
# Debian and Ubuntu packages are installed with apt-get, as root or through sudo without a password;
# otherwise the command to run is printed. It is no failure if only optional ones cannot be
# installed: the program builds without them.
set -euo pipefail
cd "$(dirname "$0")/.."

CC=${CC:-gcc}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# compiles LIBRARY HEADER...: whether a program that includes the headers and links the library
# compiles.
compiles() {
    local library=$1
    shift
    { printf '#include <%s>\n' "$@"; echo 'int main(void) { return 0; }'; } >"$tmp/try.c"
    "$CC" -fopenmp "$tmp/try.c" ${library:+"$library"} -o "$tmp/try" >/dev/null 2>&1
}

# fuzzes: whether clang can link a libFuzzer program with the sanitizers.
fuzzes() {
    echo 'int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { return p && n > 9; }' >"$tmp/fuzz.c"
    clang -fsanitize=fuzzer,address,undefined "$tmp/fuzz.c" -o "$tmp/fuzz" >/dev/null 2>&1
}

# The packages of an optional library by its name in tools/probe.sh, and what the program cannot do
# without it.
declare -A packages_of=([WEBP]=libwebp-dev [TIFF]=libtiff-dev [OPENJPEG]=libopenjp2-7-dev [ZSTD]=libzstd-dev
    [FFMPEG]='libavformat-dev libavcodec-dev libavutil-dev libswscale-dev' [MPI]='libopenmpi-dev openmpi-bin')
declare -A without=([WEBP]='WebP images' [TIFF]='TIFF images'
    [OPENJPEG]='JPEG 2000 in DICOM files' [ZSTD]='Parquet tables that are compressed with zstd' [FFMPEG]='video files'
    [MPI]='ranks (plimsoll train --ranks)')

missing=() optional=() absent=()
command -v make >/dev/null || missing+=(make)
command -v pkg-config >/dev/null || missing+=(pkg-config)
compiles '' stdio.h omp.h || missing+=(gcc libc6-dev)
compiles -lcjson cjson/cJSON.h || missing+=(libcjson-dev)
compiles -lyaml yaml.h || missing+=(libyaml-dev)
compiles -ljpeg stdio.h jpeglib.h || missing+=(libjpeg-dev)
compiles -lpng png.h || missing+=(libpng-dev)
compiles -lz zlib.h || missing+=(zlib1g-dev)
compiles -lonig oniguruma.h || missing+=(libonig-dev)
compiles -lutf8proc utf8proc.h || missing+=(libutf8proc-dev)
compiles -lcmocka stdarg.h stddef.h setjmp.h stdint.h cmocka.h || missing+=(libcmocka-dev)
for name in $(CC=$CC tools/probe.sh | sed -n 's/ ?= 0$//p') $(command -v mpirun >/dev/null || echo MPI); do
    if [[ -z ${packages_of[$name]-} || " ${WITHOUT-} ${absent[*]-} " == *" $name "* ]]; then continue; fi
    absent+=("$name")
    # shellcheck disable=SC2206  # several packages
    optional+=(${packages_of[$name]})
done
command -v cmark-gfm >/dev/null || optional+=(cmark-gfm)
# Tests of video files make them with it.
if [[ " ${WITHOUT-} " != *' FFMPEG '* ]]; then command -v ffmpeg >/dev/null || optional+=(ffmpeg); fi
if [[ ${1-} == fuzz ]]; then fuzzes || missing+=(clang libclang-rt-dev); fi
if [[ ${1-} == onednn ]]; then compiles -ldnnl dnnl.h || missing+=(libdnnl-dev); fi
if ((${#missing[@]} + ${#optional[@]} == 0)); then exit 0; fi

# without_optional: ends the script with success if only optional packages are missing.
without_optional() {
    ((${#missing[@]} == 0)) || return 0
    local name
    for name in "${absent[@]}"; do
        echo "deps: ${packages_of[$name]%% *} is missing: the program is built without ${without[$name]}" >&2
    done
    exit 0
}

packages=("${missing[@]}" "${optional[@]}")
install="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
if ! command -v apt-get >/dev/null; then
    without_optional
    echo "deps: missing, by their Debian names: ${packages[*]}" >&2
    echo "deps: apt-get not found: install them with this system's package manager" >&2
    exit 1
elif ((EUID == 0)); then
    root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    root=(sudo -n)
else
    without_optional
    echo "deps: missing: ${packages[*]}. Run this, then try again:" >&2
    echo "    sudo sh -c '$install'" >&2
    exit 1
fi

echo "deps: installing ${packages[*]}"
if ! "${root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c "$install" >"$tmp/log" 2>&1; then
    without_optional
    cat "$tmp/log" >&2
    echo "deps: the installation failed; the command was: $install" >&2
    exit 1
fi
