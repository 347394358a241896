#!/bin/sh
# Prints which optional libraries this machine has, as lines for make: "TIFF ?= 1". A library is
# there if a program that includes its headers and calls it compiles and links, wherever it comes
# from.
#
#   CC=gcc MPICC=mpicc EXTRA= tools/probe.sh
CC=${CC:-gcc}
MPICC=${MPICC:-mpicc}

# probe NAME LIBRARY MODULE BODY HEADER...: MODULE, if given, is asked of pkg-config for the folder
# of the headers.
# shellcheck disable=SC2086  # commands and flags are lists of words
probe() {
    name=$1 library=$2 module=$3 body=$4 flags=
    shift 4
    if [ -n "$module" ]; then flags=$(pkg-config --cflags "$module" 2>/dev/null); fi
    if { printf '#include <%s>\n' "$@"; echo "int main(void) { $body; }"; } |
        $compiler $EXTRA $flags -x c - $library -o /dev/null >/dev/null 2>&1; then
        echo "$name ?= 1"
    else
        echo "$name ?= 0"
    fi
    if [ -n "$module" ]; then echo "${name}_FLAGS := $flags"; fi
}
compiler=$CC
probe ONEDNN -ldnnl '' '_Static_assert(DNNL_VERSION_MAJOR == 2, ""); return !dnnl_version()' dnnl.h
probe WEBP -lwebp '' 'return !WebPGetDecoderVersion()' webp/decode.h
probe TIFF -ltiff '' 'return !TIFFGetVersion()' tiffio.h
probe OPENJPEG -lopenjp2 libopenjp2 'return !opj_version()' openjpeg.h
probe ZSTD -lzstd '' 'return !ZSTD_versionNumber()' zstd.h
# FFmpeg 4.4 or later. The program loads its libraries at run time: the headers suffice.
probe FFMPEG '' libavformat '_Static_assert(LIBAVFORMAT_VERSION_MAJOR >= 58, "")' libavcodec/avcodec.h libavformat/avformat.h libswscale/swscale.h
compiler=$MPICC
probe MPI '' '' 'return MPI_Finalize()' mpi.h
