#!/bin/bash
# Installs the missing dependencies for building and testing; prints nothing if none is missing.
#
#   tools/deps.sh          a C compiler, libyaml, cJSON, libjpeg-turbo, libpng, zlib, Oniguruma, utf8proc, cmocka,
#                          pkg-config, and PCRE2, libwebp, libtiff, OpenJPEG, libzstd and Open MPI, which are optional
#   tools/deps.sh fuzz     clang with libFuzzer as well
#   tools/deps.sh onednn   oneDNN 2 as well, which is optional
#   tools/deps.sh ffmpeg   FFmpeg's libraries as well, which read video files and are optional: they are large
#
# A dependency is present if a program that uses it compiles and links, wherever it comes from. Debian and
# Ubuntu packages are installed with apt-get, as root or through sudo without a password; otherwise the
# command to run is printed. It is no failure if only optional ones cannot be installed: the program
# builds without them.
set -euo pipefail

CC=${CC:-gcc}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# compiles LIBRARY HEADER...: whether a program that includes the headers and links the library compiles.
compiles() {
    local library=$1
    shift
    { printf '#include <%s>\n' "$@"; echo 'int main(void) { return 0; }'; } >"$tmp/try.c"
    "$CC" -fopenmp -DPCRE2_CODE_UNIT_WIDTH=8 "$tmp/try.c" ${library:+"$library"} -o "$tmp/try" >/dev/null 2>&1
}

# links_mpi: whether mpicc links an MPI program, and mpirun starts it.
links_mpi() {
    echo 'int MPI_Finalize(void); int main(void) { return MPI_Finalize(); }' >"$tmp/mpi.c"
    command -v mpirun >/dev/null && mpicc "$tmp/mpi.c" -o "$tmp/mpi" >/dev/null 2>&1
}

# fuzzes: whether clang can link a libFuzzer program with the sanitizers.
fuzzes() {
    echo 'int LLVMFuzzerTestOneInput(const char *p, unsigned long n) { return p && n > 9; }' >"$tmp/fuzz.c"
    clang -fsanitize=fuzzer,address,undefined "$tmp/fuzz.c" -o "$tmp/fuzz" >/dev/null 2>&1
}

missing=() optional=()
command -v make >/dev/null || missing+=(make)
command -v pkg-config >/dev/null || missing+=(pkg-config)
if compiles '' stdio.h omp.h; then
    compiles -lcjson cjson/cJSON.h || missing+=(libcjson-dev)
    compiles -lyaml yaml.h || missing+=(libyaml-dev)
    compiles -ljpeg stdio.h jpeglib.h || missing+=(libjpeg-dev)
    compiles -lpng png.h || missing+=(libpng-dev)
    compiles -lz zlib.h || missing+=(zlib1g-dev)
    compiles -lonig oniguruma.h || missing+=(libonig-dev)
    compiles -lutf8proc utf8proc.h || missing+=(libutf8proc-dev)
    compiles -lcmocka stdarg.h stddef.h setjmp.h stdint.h cmocka.h || missing+=(libcmocka-dev)
    compiles -lpcre2-8 pcre2.h || optional+=(libpcre2-dev)
    compiles -lwebp webp/decode.h || optional+=(libwebp-dev)
    compiles -ltiff tiffio.h || optional+=(libtiff-dev)
    pkg-config --exists libopenjp2 2>/dev/null || optional+=(libopenjp2-7-dev)
    compiles -lzstd zstd.h || optional+=(libzstd-dev)
    links_mpi || optional+=(libopenmpi-dev openmpi-bin)
else
    missing+=(gcc libc6-dev libcjson-dev libyaml-dev libjpeg-dev libpng-dev zlib1g-dev libonig-dev libutf8proc-dev libcmocka-dev)
    optional+=(libpcre2-dev libwebp-dev libtiff-dev libopenjp2-7-dev libzstd-dev libopenmpi-dev openmpi-bin)
fi
if [[ ${1-} == fuzz ]]; then
    fuzzes || missing+=(clang libclang-rt-dev)
fi
if [[ ${1-} == onednn ]]; then
    compiles -ldnnl dnnl.h || missing+=(libdnnl-dev)
fi
if [[ ${1-} == ffmpeg ]]; then
    compiles -lavformat libavformat/avformat.h || missing+=(libavformat-dev libavcodec-dev libavutil-dev)
    compiles -lswscale libswscale/swscale.h || missing+=(libswscale-dev)
fi
if ((${#missing[@]} + ${#optional[@]} == 0)); then exit 0; fi

# without_optional: ends the script with success if only optional packages are missing.
without_optional() {
    ((${#missing[@]} == 0)) || return 0
    local package
    for package in "${optional[@]}"; do
        case $package in
            libpcre2-dev) echo "deps: $package is missing: the program is built without regular expressions in adapter.target_modules" >&2 ;;
            libopenmpi-dev) echo "deps: $package is missing: the program is built without ranks (plimsoll train --ranks)" >&2 ;;
            libtiff-dev) echo "deps: $package is missing: the program is built without TIFF images" >&2 ;;
            libopenjp2-7-dev) echo "deps: $package is missing: the program is built without JPEG 2000 in DICOM files" >&2 ;;
            libwebp-dev) echo "deps: $package is missing: the program is built without WebP images" >&2 ;;
            libzstd-dev) echo "deps: $package is missing: the program is built without Parquet tables that are compressed with zstd" >&2 ;;
        esac
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
