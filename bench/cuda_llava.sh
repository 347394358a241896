#!/bin/bash
# NF4 + LoRA on LLaVA-Med 7B's shapes with random weights on a GPU, on conversations with 1 to 3
# images (make_conversations.py): conversations a second and memory, beside transformers, PEFT and
# bitsandbytes (peer_llava.py).
#
#   RULES='none selective' WITHIN='16GiB 12GiB 7GiB' MODES=nf4,nf4+checkpoint MICRO=2,4 bench/cuda_llava.sh FOLDER
#
# RULES: memory.recompute without a budget; WITHIN: budgets, where the planner chooses. Ours packs
# several conversations into rows of T tokens, ROWS of them a step; the peer pads the conversations
# of a batch to the longest, as TRL does.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" llava
T=${T:-4096}
ROWS=${ROWS:-8}
COUNT=${COUNT:-96}
PRESET=${PRESET:-llava-med-7b} IMAGE_ID=${IMAGE_ID:-32000} # its image token
more=()
[[ $DEVICE == cuda ]] || more=(--tiny)
"$PYTHON" bench/make_conversations.py "$tmp/chats" --count "$COUNT"
# A small tokenizer with the model's image token.
cp -r tests/golden/llava_text/llava "$tmp/tokenizer"
sed -i "s/340/$IMAGE_ID/" "$tmp"/tokenizer/*.json
cat >"$tmp/run.yaml" <<YAML
model: {preset: $PRESET}
adapter: {target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj], exclude_modules: '.*vision_tower.*', r: 16, lora_alpha: 32}
data: {format: conversations, train: $tmp/chats/chats.jsonl, tokenizer: $tmp/tokenizer, sequence: $T, max_images: ${IMAGES:-5}}
train: {effective_batch: $ROWS, steps: $((STEPS + 2)), save_every: 0, monitor_every: 1}
memory: {precision: bf16, quantize: nf4}
YAML

# ours MODE OPTION...: trains, one row; conversations a second are those of the rows
ours() {
    local mode=$1
    shift
    note "ours $mode ${SETS:-}"
    rm -rf "$tmp/out"
    # shellcheck disable=SC2086
    if timeout "$LIMIT" "$BUILD/plimsoll" train "$tmp/run.yaml" --set "device=$DEVICE" --set "train.out=$tmp/out" "$@" ${SETS:-} >>"$log" 2>"$tmp/err"; then
        read -r chats rows_of < <(sed -n 's/.*: \([0-9]*\) conversations in \([0-9]*\) rows.*/\1 \2/p' "$tmp/err")
        grep -h 'conversations in' "$tmp/err" | tee -a "$log" >&2
        rows_py train "$rows" "$tmp/out" what=llava "mode=$mode" "conversations=$chats" "rows=$rows_of"
    else
        cat "$tmp/err" >>"$log"
        rows_py failed "$rows" "$tmp/err" what=llava "mode=$mode" side=ours
    fi
}
if [[ $OURS == 1 ]]; then
    for rule in ${RULES-none selective}; do ours "recompute $rule" --set "memory.recompute=$rule" --set memory.offload=none; done
    for most in ${WITHIN-16GiB 12GiB 7GiB}; do ours "within $most" --memory "$most"; done
fi
[[ $PEERS == 0 ]] || peer peer_llava.py --steps 2 --modes "${MODES:-nf4,nf4+checkpoint}" --micro "${MICRO:-4}" --chats "$tmp/chats/chats.jsonl" --tokenizer "$tmp/tokenizer" --count "$COUNT" "${more[@]}"
finish
