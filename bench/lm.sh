#!/bin/bash
# A language model's training step compared with PyTorch: llama-124m, 2 sequences of 512 tokens,
# AdamW with clipping. Prints the step time and the memory of each; see against.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/against.sh
. bench/against.sh
cat >"$tmp/run.yaml" <<'YAML'
model: {preset: llama-124m}
data: {sequence: 512}
train: {effective_batch: 2, learning_rate: 3e-4, clip_norm: 1}
memory: {offload: none}
YAML
against "$tmp/run.yaml" bench/torch_lm.py
