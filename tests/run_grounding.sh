#!/bin/bash
# shellcheck disable=SC2015
# run_grounding.sh: models that match masks with texts (arr_coc) and the token allocator: techniques that must not
# change a result, and what is refused.
#
#   bash tests/run_grounding.sh       from the repository's root, after make; see run_lib.sh
#
# The numbers of PyTorch are compared by tests/golden.sh.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare forge
folder=tests/golden/grounding_clip_llama

# step OUT ARGUMENT...: a step of the case, or of $model, on its batch or on $batch.
step() {
    local out=$1
    shift
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    "$binary" step --model "${model:-$folder}" --batch "${batch:-$folder/batch.safetensors}" --out "$out" --set "device.kind=$DEVICE" $FLAGS "$@"
}
equal() { step "$tmp/plain.safetensors" && step "$tmp/other.safetensors" "$@" && same "$tmp/plain.safetensors" "$tmp/other.safetensors"; }
check 'recompute: same bytes' equal --set memory.recompute=all+halves
check 'offload: same bytes' equal --set memory.offload=weights
# What is frozen has no gradients; the projections have.
frozen() {
    step "$tmp/other.safetensors" --set 'model.freeze=["vision_tower.*", "language_model.*"]' || return 1
    ! grep -aq 'grad.vision_tower\|grad.language_model' "$tmp/other.safetensors" || { echo "a frozen part has gradients"; return 1; }
    grep -aq 'grad.mask_projection' "$tmp/other.safetensors" && grep -aq 'grad.text_projection' "$tmp/other.safetensors" || { echo "the projections have none"; return 1; }
}
check 'a frozen tower and a frozen text model' frozen
# An adapter of the text model in NF4, the tower frozen: what ARR-COC trains.
plan() {
    printf 'model: {preset: %s, freeze: ["vision_tower.*"]}\ndata: {sequence: 128}\nadapter: {r: 8, target_modules: [q_proj, v_proj]}\nmemory: {quantize: nf4}\ntrain: {steps: 1, effective_batch: 2, out: %s}\n' "$1" "$tmp/run" >"$tmp/run.yaml"
    "$binary" plan "$tmp/run.yaml" | grep -E 'NF4|arena'
}
check 'preset grounding-tiny: LoRA and NF4' plan grounding-tiny
check 'preset grounding-7b: LoRA and NF4' plan grounding-7b

# --- what is refused ---
forged() { "$tools/forge" "$folder/batch.safetensors" "$tmp/batch.safetensors" "$@"; }
refused() { batch=$tmp/batch.safetensors expect 2 "$1" step "$tmp/other.safetensors" && [ "$(wc -l <"$tmp/err")" -le 2 ]; }
forged set target_masks 2 6
check 'a target beyond the masks' refused 'target_masks\[0,2\] is 6, expected an index below 6, or -1 for none'
forged set target_masks 2 5
check 'a target that is an empty mask' refused 'target_masks\[0,2\] is 5, and that mask is empty'
forged set query_index 0 14
check 'a query beyond the row' refused 'query_index\[0,0\] is 14, expected an index below 14'
forged set masks 0 -1
check 'a mask with a negative share' refused 'masks, sample 0: mask 0 covers -1 of a patch'
forged drop query_index
check 'no queries' refused 'no query_index; this model takes pixel_values, masks, input_ids, query_index'
# Without targets there is no loss, and the similarities are the same.
untargeted() {
    forged drop target_masks
    step "$tmp/plain.safetensors" && batch=$tmp/batch.safetensors step "$tmp/other.safetensors" || return 1
    ! grep -aq 'grad\.\|"loss"' "$tmp/other.safetensors" || { echo "there is a loss"; return 1; }
    grep -aq similarity "$tmp/other.safetensors"
}
check 'no targets: similarities without a loss' untargeted
wrong() {
    rm -rf "$tmp/config"
    cp -r "$folder" "$tmp/config" && sed -i "$1" "$tmp/config/config.json" && model=$tmp/config expect 2 "$2" step "$tmp/other.safetensors"
}
check 'a temperature of 0' wrong 's/"temperature": 0.07/"temperature": 0/' 'temperature is 0, it must lie between 0.001 and 1000'
check 'a width of 0' wrong 's/"projection_dim": 11/"projection_dim": 0/' 'projection_dim is 0, it must lie between 1'
check 'a state that does not exist' wrong 's/"vision_feature_layer": -2/"vision_feature_layer": 4/' 'vision_feature_layer is 4; a vision tower of 3 layers has the states -4 to 3'
check 'a projection of another width' wrong 's/"projection_dim": 11/"projection_dim": 12/' 'mask_projection.weight" has the shape \[11,20\]; config.json asks for \[12,20\]'

# --- the token allocator ---
scored=tests/golden/allocator_clip_llama
allocated() { model=$scored batch=$scored/batch.safetensors step "$@"; }
equal_allocated() { allocated "$tmp/plain.safetensors" && allocated "$tmp/other.safetensors" "$@" && same "$tmp/plain.safetensors" "$tmp/other.safetensors"; }
check 'allocator, recompute: same bytes' equal_allocated --set memory.recompute=all+halves
# With everything else frozen, the loss still has gradients for scorer and balancer alone.
reached() {
    allocated "$tmp/other.safetensors" --set 'model.freeze=["vision_tower.*", "language_model.*", "multi_modal_projector.*"]' || return 1
    strings -n 8 "$tmp/other.safetensors" | head -n 1 | grep -o '"grad\.[a-z0-9_.]*"' | sort >"$tmp/names"
    [ "$(wc -l <"$tmp/names")" -eq 10 ] && ! grep -v 'grad.scorer\|grad.balancer' "$tmp/names"
}
check 'allocator: what is trained when LLaVA is frozen' reached
check 'preset allocator-tiny: LoRA and NF4' plan allocator-tiny
wrong_allocator() {
    rm -rf "$tmp/config"
    cp -r $scored "$tmp/config" && sed -i "$1" "$tmp/config/config.json" && model=$tmp/config batch=$scored/batch.safetensors expect 2 "$2" step "$tmp/other.safetensors"
}
check 'more tokens than patches' wrong_allocator 's/"num_visual_tokens": 5/"num_visual_tokens": 17/' 'num_visual_tokens is 17, expected 1 to 16, the patches of an image'
check 'the class token among the patches' wrong_allocator 's/"vision_feature_select_strategy": "default"/"vision_feature_select_strategy": "full"/' 'tokens are chosen among the patches alone'
check 'a selection that does not exist' wrong_allocator 's/"num_visual_tokens": 5/"num_visual_tokens": 5, "token_selection": "best"/' 'token_selection "best": expected scored or random'
check 'another number of image tokens' wrong_allocator 's/"num_visual_tokens": 5/"num_visual_tokens": 4/' 'input_ids has 10 image tokens .* 2 images of 4 features: expected 8 tokens'
summary
