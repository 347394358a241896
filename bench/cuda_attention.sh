#!/bin/bash
# Only attention, on a GPU, bf16: TFLOP/s compared with SDPA; SAM's relative positions compared with
# PyTorch's implementations of them (bench/peer_attention.py).
#
#   DENSE='dense,B,H,T,D,CAUSAL ...' REL='rel,B,H,HEIGHT,WIDTH,D ...' ROUTES=eager,bias,widened,flex REPEATS=20 \
#       bench/cuda_attention.sh FOLDER
#
# The grids are SAM's for four images: the full grid of 64 x 64 in ViT-B and ViT-H, and 25 windows
# of 14 x 14 per image. Needs build/bench/bench_cuda_attention (make
# build/bench/bench_cuda_attention).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" attention
DENSE=${DENSE-dense,4,16,4096,64,0 dense,4,16,4096,64,1 dense,4,32,4096,128,0 dense,4,32,4096,128,1}
REL=${REL-rel,4,12,64,64,64 rel,4,16,64,64,80 rel,100,12,14,14,64 rel,100,16,14,14,80}
ROUTES=${ROUTES:-eager,bias,widened,flex}
REPEATS=${REPEATS:-20}
if [[ $OURS == 1 ]]; then
    for case in $DENSE $REL; do # one process per case: a failure ends no other case
        note "ours $case"
        timeout "$LIMIT" "$BUILD/bench/bench_cuda_attention" --device "$DEVICE" --repeats "$REPEATS" "$case" >>"$rows" 2>"$tmp/err" ||
            rows_py failed "$rows" "$tmp/err" "case=$case" route=ours
    done
fi
if [[ $PEERS == 1 ]]; then
    # shellcheck disable=SC2086
    [[ -z $DENSE ]] || peer peer_attention.py --steps "$REPEATS" $DENSE
    # shellcheck disable=SC2086
    [[ -z $REL ]] || peer peer_attention.py --steps "$REPEATS" --routes "$ROUTES" $REL
fi
finish
