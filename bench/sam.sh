#!/bin/bash
# Segment Anything's training step compared with PyTorch: ViT-B, one image of 1024 x 1024, MASKS
# (32) masks with a point each, three candidates, AdamW. Prints the step time and the memory of
# each; see against.sh. PyTorch needs 12 GiB and most of a minute per step.
set -euo pipefail
cd "$(dirname "$0")/.."
STEPS=${STEPS:-2}
ROUNDS=${ROUNDS:-1}
MASKS=${MASKS:-32}
# shellcheck source=bench/against.sh
. bench/against.sh
cat >"$tmp/run.yaml" <<YAML
model: {preset: sam-vit-b}
data: {format: sa1b, max_masks: $MASKS}
prompts: {iterations: 1}
train: {effective_batch: 1, learning_rate: 1e-4}
memory: {offload: none, recompute: selective}
YAML
against "$tmp/run.yaml" bench/torch_sam.py --masks "$MASKS"
