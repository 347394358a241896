#!/bin/bash
# Sums of gradients over ranks of this machine: ours beside MPI's (bench/mpi_ranks.c).
#
#   BUILD=build bench/ranks.sh [MIB] [RANKS]...        default: 64 MiB over 2, 4 and 8 ranks
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
mib=${1:-64}
shift || true
[ $# -gt 0 ] || set -- 2 4 8
make -s BUILD="$BUILD" CUDA=0 "$BUILD/bench/mpi_ranks"
for n in "$@"; do OMP_NUM_THREADS=1 mpirun -np "$n" --bind-to none --oversubscribe "$BUILD/bench/mpi_ranks" "$mib"; done
