#!/bin/bash
# run_long_rows.sh: rows computed in parts (memory.token_chunks, memory.attention_chunks) change no
# result: the outputs of a step keep their bits, gradients of weights are the same sums within 1e-6,
# and groups of heads keep all bits.
#
#   bash tests/run_long_rows.sh           from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/golden_step.sh
. tests/golden_step.sh

# On a GPU the products and the small attentions of a group of heads may be summed in another order.
outputs=1e-30 gradients=1e-6
[ "$DEVICE" = cpu ] || outputs=1e-6 gradients=2e-5
# chunked CASE PRECISION ARGUMENT...: a step in parts against the step of whole rows.
chunked() {
    local name=$1 own=(--set "memory.precision=$2" --set memory.recompute=all --set memory.offload=none --set memory.head_chunks=1)
    shift 2
    step "$name" "$tmp/whole.safetensors" "${own[@]}" && step "$name" "$tmp/parts.safetensors" "${own[@]}" "$@" &&
        "$tools/compare" "$tmp/whole.safetensors" "$tmp/parts.safetensors" --logits $outputs --grad $gradients
}
# heads CASE: attention in groups of heads, the same bytes.
heads() {
    local own=(--set memory.precision="$2" --set memory.offload=none --set memory.head_chunks=1 --set memory.recompute="$3")
    step "$1" "$tmp/whole.safetensors" "${own[@]}" && step "$1" "$tmp/parts.safetensors" "${own[@]}" --set memory.attention_chunks=2 &&
        same "$tmp/whole.safetensors" "$tmp/parts.safetensors"
}
for name in basic qwen3 qwen3_packed gemma2 phi3 gpt2 olmo2 llava_clip_llama qwen2_5_vl sam_points sam2_points; do
    check "$name: tokens in 3 chunks, heads in 2 groups" chunked $name f32 --set memory.token_chunks=3 --set memory.attention_chunks=2
done
for name in basic qwen3_packed llava_clip_llama sam_points; do
    check "$name, bf16: tokens in 5 chunks" chunked $name bf16 --set memory.token_chunks=5
    check "$name, kept: tokens in 2 chunks" chunked $name f32 --set memory.token_chunks=2 --set memory.recompute=none
done
for name in basic qwen3 llava_clip_llama; do for precision in f32 bf16; do for recompute in none all; do
    check "$name, $precision, recompute $recompute: heads in 2 groups, same bytes" heads $name $precision $recompute
done; done; done
# --- plan --longest ---
# The longest row fits and 64 tokens more do not: by the table, and by plans of the two lengths.
cat >"$tmp/words.yaml" <<'YAML'
model: {preset: llama-tiny}
data: {sequence: 128}
train: {effective_batch: 1, clip_norm: 0}
device: {kind: cuda, profile: h200}
YAML
plan() { "$binary" plan "$tmp/words.yaml" "$@" >"$tmp/out" 2>"$tmp/err"; }
of() { grep -o "\"$1\": [0-9]*" "$tmp/longest" | grep -o '[0-9]*$'; }
longest() {
    local tokens
    plan --longest --memory "$1" --json || { cat "$tmp/err"; return 1; }
    cp "$tmp/out" "$tmp/longest"
    tokens=$(of tokens)
    [ $((tokens % 64)) = 0 ] && [ "$(of arena_bytes)" -le "$2" ] && [ "$(of next_bytes)" -gt "$2" ] && plan --memory "$1" --set data.sequence="$tokens" ||
        { cat "$tmp/longest"; return 1; }
    plan --memory "$1" --set data.sequence=$((tokens + 64))
    [ $? = 3 ] && echo "$tokens tokens"
}
check 'the longest row in 80 MiB' longest 80MiB $((80 << 20))
check 'the longest row in 44 MiB' longest 44MiB $((44 << 20))
ends() { # ends STATUS TEXT ARGUMENT...
    local status=$1 text=$2
    shift 2
    plan "$@"
    [ $? = "$status" ] && grep -q -- "$text" "$tmp/out" "$tmp/err" || { cat "$tmp/out" "$tmp/err"; return 1; }
}
check 'no row fits' ends 3 'no row fits' --longest --memory 64KiB
check 'a list of GPUs' ends 0 '^ *8 GiB  *1048576 ' --longest --devices 8
check 'rows of images' ends 2 'rows of tokens are those of language models' --longest --memory 1GiB --set model.preset=sam-tiny --set data.format=sa1b
check 'with another table' ends 2 'are separate tables' --longest --frontier
check 'with a budget for a list' ends 2 'leave out --memory' --longest --devices 8 --memory 1GiB
summary
