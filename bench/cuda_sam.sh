#!/bin/bash
# Segment Anything's step on a GPU, ours and PyTorch's: 1024 x 1024, 32 prompts per image, bf16 with
# f32 weights, AdamW.
#
#   MODELS='b h' BATCHES='1 2 4 8' RECOMPUTE='none selective' THEIRS=none,checkpoint \
#       ENCODERS=h:4,h:4:checkpoint,h:8,b:8 PEERS=1 OURS=1 bench/cuda_sam.sh FOLDER
#
# Ours is `plimsoll bench` with one micro-batch of B images and no offload. PyTorch's are
# transformers' SamModel (sdpa; without and with gradient checkpointing) and only its encoder,
# written by hand (bench/peer_sam.py). One table of the rows of several calls: bench/cuda_rows.py
# table sam A/sam.jsonl B/sam.jsonl
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" sam
MODELS=${MODELS:-b h}
BATCHES=${BATCHES:-1 2 4 8}
RECOMPUTE=${RECOMPUTE:-none selective}
THEIRS=${THEIRS:-none,checkpoint}
ENCODERS=${ENCODERS-h:4,h:4:checkpoint,h:8,b:8}
MASKS=${MASKS:-32}
small=()
[[ $DEVICE == cuda ]] || small=(--tiny --warm 1)

preset() { case $1 in b) echo sam-vit-b ;; h) echo sam-vit-h ;; *) echo "sam-$1" ;; esac; }
ours() { # MODEL B RECOMPUTE
    cat >"$tmp/run.yaml" <<YAML
model: {preset: $(preset "$1")}
data: {format: sa1b, max_masks: $MASKS}
prompts: {iterations: 1}
train: {effective_batch: $2, learning_rate: 1e-5}
memory: {precision: bf16, optimizer: adamw, micro_batch: $2, recompute: $3, offload: none}
YAML
    bench_ours "$tmp/run.yaml" what=sam "model=$1" "batch=$2" "recompute=$3" "name=SAM ViT-${1^^} B=$2 $3" --
}
if [[ $OURS == 1 ]]; then
    for model in $MODELS; do
        for B in $BATCHES; do
            for rule in $RECOMPUTE; do ours "$model" "$B" "$rule"; done
        done
    done
fi
if [[ $PEERS == 1 ]]; then
    peer peer_sam.py --steps "$STEPS" --models "${MODELS// /,}" --batches "${BATCHES// /,}" --recompute "$THEIRS" --masks "$MASKS" "${small[@]}"
    [[ -z $ENCODERS ]] || peer peer_sam.py --steps "$STEPS" --encoders "$ENCODERS" "${small[@]}"
fi
finish
