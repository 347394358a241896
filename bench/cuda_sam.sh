#!/bin/bash
# Segment Anything's step on a GPU, ours and PyTorch's: 1024 x 1024, 32 prompts per image, bf16 with
# f32 weights, AdamW.
#
#   MODELS='b h' BATCHES='1 2 4 8' RECOMPUTE='none selective' THEIRS=none,checkpoint \
#       ENCODERS=h:4,h:4:checkpoint,h:8,b:8 PEERS=1 OURS=1 bench/cuda_sam.sh FOLDER
#
# Ours is `plimsoll bench` with one micro-batch of B images and no offload. PyTorch's are
# transformers' SamModel (sdpa; without and with gradient checkpointing) and only its encoder,
# written by hand (bench/peer_sam.py). MODELS='2b 2l' ENCODERS= are SAM 2.1's Hiera-B+ and -L beside
# Sam2Model. WITHIN='8GiB': also the planner's choice within these budgets. CLIPS='2b 2l': steps of
# one clip of 8 frames with 3 objects, for which there is no peer. One table of the rows of several
# calls: bench/cuda_rows.py table sam A/sam.jsonl B/sam.jsonl
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

preset() {
    case $1 in
        b) echo sam-vit-b ;;
        h) echo sam-vit-h ;;
        2b) echo facebook/sam2.1-hiera-base-plus ;;
        2l) echo facebook/sam2.1-hiera-large ;;
        2t) echo facebook/sam2.1-hiera-tiny ;;
        *) echo "sam-$1" ;;
    esac
}
ours() { # MODEL B RECOMPUTE [OPTION...]
    cat >"$tmp/run.yaml" <<YAML
model: {preset: $(preset "$1")}
data: {format: sa1b, max_masks: $MASKS}
prompts: {iterations: 1}
train: {effective_batch: $2, learning_rate: 1e-5}
memory: {precision: bf16, optimizer: adamw, micro_batch: $([[ $3 == auto ]] && echo auto || echo "$2"), recompute: $3, offload: $([[ $3 == auto ]] && echo auto || echo none)}
YAML
    bench_ours "$tmp/run.yaml" what=sam "model=$1" "batch=$2" "recompute=$3${4:+ ${*:4}}" "name=SAM ${1^^} B=$2 $3${4:+ ${*:4}}" -- "${@:4}"
}
clips() { # MODEL OPTION...
    local model=$1
    shift
    cat >"$tmp/run.yaml" <<YAML
model: {preset: $(preset "$model")}
data: {format: pairs, labels: instances, frames: 8, max_masks: 3}
loss: {preset: sam2}
train: {effective_batch: 1, learning_rate: 1e-5}
memory: {precision: bf16, optimizer: adamw}
YAML
    bench_ours "$tmp/run.yaml" what=sam "model=clips-$model" batch=1 "recompute=clips $*" "name=SAM ${model^^}, a clip of 8 frames $*" -- "$@"
}
if [[ $OURS == 1 ]]; then
    for model in $MODELS; do
        for B in $BATCHES; do
            for rule in $RECOMPUTE; do ours "$model" "$B" "$rule"; done
        done
        for most in ${WITHIN-}; do ours "$model" "$B" auto --memory "$most"; done
    done
    for model in ${CLIPS-}; do
        clips "$model"
        for most in ${WITHIN-}; do clips "$model" --memory "$most"; done
    done
fi
if [[ $PEERS == 1 ]]; then
    peer peer_sam.py --steps "$STEPS" --models "${MODELS// /,}" --batches "${BATCHES// /,}" --recompute "$THEIRS" --masks "$MASKS" "${small[@]}"
    [[ -z $ENCODERS ]] || peer peer_sam.py --steps "$STEPS" --encoders "$ENCODERS" "${small[@]}"
fi
finish
