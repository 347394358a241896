#!/bin/bash
# A vision tower's training step compared with PyTorch: CLIP ViT-B/16, 4 images of 224 x 224, loss =
# mean of squares of last_hidden_state, AdamW. Prints the step time and the memory of each; see
# against.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/against.sh
. bench/against.sh
cat >"$tmp/run.yaml" <<'YAML'
model: {preset: clip-vit-b-16}
train: {effective_batch: 4, learning_rate: 1e-4}
memory: {offload: none}
YAML
against "$tmp/run.yaml" bench/torch_tower.py
