#!/bin/bash
# PRS-Med on a GPU: TinySAM's encoder trained, LLaVA-Med 7B's shapes in NF4 with LoRA, fusion and
# mask head, random weights, images of 1,024 pixels, 8 samples an optimizer step
# (make_questions.py): samples a second and memory, beside the same model in PyTorch with PEFT and
# bitsandbytes (peer_prs_med.py).
#
#   RULES='none' WITHIN='12GiB 8GiB' MODES=nf4,nf4+checkpoint MICRO=2,4,8 bench/cuda_prs_med.sh FOLDER
#
# RULES: memory.recompute without a budget; WITHIN: budgets, where the planner chooses. Ours has
# rows of T tokens, the peer pads the samples of a batch to the longest.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" prs_med
T=${T:-688}
BATCH=${BATCH:-8}
PRESET=${PRESET:-prs-med} SIDE=${SIDE:-1024} # of the images
more=()
if [[ $DEVICE == cuda ]]; then # a small tokenizer with the model's image token
    cp -r tests/golden/llava_text/llava "$tmp/tokenizer"
    rm "$tmp/tokenizer/config.json" "$tmp/tokenizer/preprocessor_config.json" "$tmp/tokenizer/chat_template.jinja"
    sed -i "s/340/${IMAGE_ID:-32000}/" "$tmp"/tokenizer/*.json
else # a token a byte
    PRESET=prs-med-tiny SIDE=64 T=256 MODES=${MODES:-bf16,bf16+checkpoint}
    more=(--tiny)
    "$BUILD/tests/forge_questions" "$tmp" 1 1 1
fi
"$PYTHON" bench/make_questions.py "$tmp/data" --side "$SIDE"
cat >"$tmp/run.yaml" <<YAML
model: {preset: $PRESET}
adapter: {target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj], exclude_modules: '.*vision_tower.*', r: 16, lora_alpha: 16, lora_dropout: 0.05, modules_to_save: [image_encoder, fusion, mask_head]}
data: {format: csv, train: ["$tmp/data/annotations/*.csv"], tokenizer: $tmp/tokenizer, sequence: $T, threads: ${THREADS:-8}, sample_memory: 32}
train: {effective_batch: $BATCH, steps: $((STEPS + 2)), learning_rate: 1.0e-4, weight_decay: 0.01, clip_norm: 1, save_every: 0, monitor_every: 1}
memory: {precision: bf16, quantize: nf4}
YAML

# ours MODE OPTION...: trains, one row
ours() {
    local mode=$1
    shift
    note "ours $mode ${SETS:-}"
    rm -rf "$tmp/out"
    # shellcheck disable=SC2086
    if timeout "$LIMIT" "$BUILD/plimsoll" train "$tmp/run.yaml" --set "device=$DEVICE" --set "train.out=$tmp/out" "$@" ${SETS:-} >>"$log" 2>"$tmp/err"; then
        grep -h 'questions in' "$tmp/err" | tee -a "$log" >&2
        rows_py train "$rows" "$tmp/out" what=prs_med "mode=$mode"
    else
        cat "$tmp/err" >>"$log"
        rows_py failed "$rows" "$tmp/err" what=prs_med "mode=$mode" side=ours
    fi
}
if [[ $OURS == 1 ]]; then
    for rule in ${RULES-none}; do ours "recompute $rule" --set "memory.recompute=$rule" --set memory.offload=none; done
    for most in ${WITHIN-12GiB 8GiB}; do ours "within $most" --memory "$most"; done
fi
[[ $PEERS == 0 ]] || peer peer_prs_med.py --steps "$STEPS" --batch "$BATCH" --modes "${MODES:-nf4,nf4+checkpoint}" --micro "${MICRO:-4,8}" --table "$tmp/data/annotations/polyp_endoscopy.csv" --tokenizer "$tmp/tokenizer" "${more[@]}"
finish
