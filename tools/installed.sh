#!/bin/sh
# Prints how to use an installation; called by `make install` with its PREFIX and DESTDIR. For root
# in a folder that the dynamic loader searches, it also renews the loader's cache.
set -u
prefix=$1
destdir=$2
echo "installed in $destdir$prefix"
[ -z "$destdir" ] || exit 0 # a package: nothing runs from there
case :$PATH: in
    *:"$prefix/bin":*) echo "  program   plimsoll --help" ;;
    *) echo "  program   export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
if [ -f "$prefix/lib/plimsoll-cuda.so" ]; then
    echo "  GPUs      lib/plimsoll-cuda.so, which the program and the library find by themselves"
else
    echo "  GPUs      built without the CUDA plug-in: the CPU only"
fi
case $prefix in
    /usr | /usr/local)
        if [ "$(id -u)" = 0 ] && ldconfig 2>/dev/null; then echo "  library   ldconfig has been called: the loader finds libplimsoll.so.0"
        else echo "  library   call ldconfig as root, so that the loader finds libplimsoll.so.0"; fi ;;
    *)
        echo "  library   export PKG_CONFIG_PATH=\"$prefix/lib/pkgconfig\""
        echo "            cc program.c \$(pkg-config --cflags --libs plimsoll)"
        echo "            such a program finds libplimsoll.so.0 by itself (rpath); a program that is linked"
        echo "            otherwise needs LD_LIBRARY_PATH=$prefix/lib" ;;
esac
