#!/bin/bash
# LoRA and QLoRA on Qwen2.5-VL 7B's or Qwen3-VL 8B's shapes with random weights on a GPU, on four
# conversations with 1 to 3 images of mixed sizes and 384 tokens of text (make_conversations.py):
# tokens a second, without padding, and memory.
#
#   PRESET=Qwen/Qwen2.5-VL-7B-Instruct FORMS='none nf4' RULES='none selective' WITHIN=8GiB bench/cuda_qwen_vl.sh FOLDER
#
# FORMS: memory.quantize; RULES: memory.recompute without a budget; WITHIN: budgets on NF4 weights,
# where the planner chooses; MODES: the peer's (peer_qwen_vl.py). The adapters, r = 16, are on the
# seven projections of the language model, and everything else is frozen. The conversations are
# packed into one row: ROWS=2 T=2432 PATCHES=6016 into two.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
open_rows "${1:-}" qwen_vl
PRESET=${PRESET:-Qwen/Qwen2.5-VL-7B-Instruct}
ROWS=${ROWS:-1} PATCHES=${PATCHES:-11584}
case $PRESET in
    Qwen/Qwen3-VL*) T=${T:-3904} ;; # its patches are larger
    *) T=${T:-4544} ;;
esac
SIZES=${SIZES:-448x672;672x448,336x336;1008x672;504x504,336x504,672x672}
"$PYTHON" bench/make_conversations.py "$tmp/chats" --sizes "$SIZES" --digits "${DIGITS:-384}"
# A small tokenizer with the model's image tokens.
cp -r tests/golden/qwen_vl/qwen2_5_vl "$tmp/tokenizer"
"$PYTHON" - "$tmp/tokenizer/tokenizer.json" <<'PY'
import json, sys
ids = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<|vision_start|>": 151652, "<|vision_end|>": 151653, "<|image_pad|>": 151655, "<|video_pad|>": 151656}
with open(sys.argv[1]) as f:
    t = json.load(f)
for a in t["added_tokens"]:
    a["id"] = ids[a["content"]]
t["model"]["vocab"] = {k: v for k, v in t["model"]["vocab"].items() if k not in ids}
with open(sys.argv[1], "w") as f:
    json.dump(t, f)
PY
cat >"$tmp/run.yaml" <<YAML
model: {preset: $PRESET}
adapter: {target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj], exclude_modules: '.*visual.*', r: 16, lora_alpha: 32}
data: {format: conversations, train: $tmp/chats/chats.jsonl, tokenizer: $tmp/tokenizer, template: $tmp/tokenizer/chat_template.jinja, train_on: all, sequence: $T, max_patches: $PATCHES}
train: {effective_batch: $ROWS, steps: $((STEPS + 2)), save_every: 0, monitor_every: 1}
memory: {precision: bf16}
YAML

# ours MODE OPTION...: trains, one row
ours() {
    local mode=$1 rows_of length filled
    shift
    note "ours $PRESET $mode ${SETS:-}"
    rm -rf "$tmp/out"
    # shellcheck disable=SC2086
    if timeout "$LIMIT" "$BUILD/plimsoll" train "$tmp/run.yaml" --set "device=$DEVICE" --set "train.out=$tmp/out" "$@" ${SETS:-} >>"$log" 2>"$tmp/err"; then
        grep -h 'conversations in\|patches' "$tmp/err" | tee -a "$log" >&2
        read -r rows_of length filled < <(sed -n 's/.* in \([0-9]*\) rows of \([0-9]*\) tokens, \([0-9.]*\) % filled.*/\1 \2 \3/p' "$tmp/err")
        rows_py train "$rows" "$tmp/out" what=qwen_vl "mode=$mode" "name=$PRESET" "rows=$rows_of" "tokens=$(awk "BEGIN { print $rows_of * $length * $filled / 100 }")"
    else
        cat "$tmp/err" >>"$log"
        tail -n 2 "$tmp/err" >&2
        rows_py failed "$rows" "$tmp/err" what=qwen_vl "mode=$mode" side=ours
    fi
}
for form in ${FORMS-none nf4}; do
    [[ $OURS == 1 ]] || continue
    for rule in ${RULES-none selective}; do ours "quantize $form, recompute $rule" --set "memory.quantize=$form" --set "memory.recompute=$rule" --set "memory.micro_batch=$ROWS" --set memory.offload=none; done
done
for most in ${WITHIN-}; do [[ $OURS != 1 ]] || ours "NF4 within $most" --memory "$most" --set memory.quantize=nf4; done
more=()
[[ $DEVICE == cuda ]] || more=(--tiny)
[[ $PEERS == 0 ]] || peer peer_qwen_vl.py --name "$PRESET" --sizes "$SIZES" --digits "${DIGITS:-384}" --steps "$STEPS" --modes "${MODES:-lora,lora+checkpoint,nf4}" "${more[@]}"
finish
