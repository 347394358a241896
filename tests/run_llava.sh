#!/bin/bash
# shellcheck disable=SC2015
# run_llava.sh: models of images and text: techniques that must not change a result, folders that
# are written back as they were read, a vision tower in a folder of its own, and what is refused.
#
#   bash tests/run_llava.sh       from the repository's root, after make; see run_lib.sh
#
# The numbers of transformers are compared by tests/golden.sh, those of PEFT with
# GOLDEN=tests/golden/peft.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/golden_step.sh
. tests/golden_step.sh
tool compare forge
# --- what does not change a result ---
check 'recompute: same bytes' equal llava_clip_llama --set memory.recompute=all
check 'recompute, three feature layers: same bytes' equal llava_memory4 --set memory.recompute=all+halves+selective
check 'offload: same bytes' equal llava_clip_llama --set memory.offload=weights
check 'the LM head in chunks: near' near llava_clip_mistral --set memory.head_chunks=3
# The tower is frozen: it has no gradients, and the others are the same.
frozen() {
    step llava_clip_llama "$tmp/plain.safetensors" && step llava_clip_llama "$tmp/other.safetensors" --set 'model.freeze=["vision_tower.*"]' || return 1
    ! grep -aq 'grad.vision_tower' "$tmp/other.safetensors" || { echo "a frozen tower has gradients"; return 1; }
    grep -aq 'grad.multi_modal_projector' "$tmp/other.safetensors" || { echo "the projector has none"; return 1; }
    local gradient
    for gradient in $(strings -n 8 "$tmp/plain.safetensors" | head -n 1 | grep -o 'grad\.vision_tower[a-z0-9_.]*'); do
        "$tools/forge" "$tmp/plain.safetensors" "$tmp/less.safetensors" drop "$gradient" && mv "$tmp/less.safetensors" "$tmp/plain.safetensors" || return 1
    done
    same "$tmp/plain.safetensors" "$tmp/other.safetensors"
}
check 'a frozen tower: the other gradients are the same' frozen

# encoded CASE PATTERN...: what is frozen runs in a loop over the images, two or all of them at a
# time.
encoded() {
    local name=$1 frozen at_once
    shift
    frozen=$(printf '"%s",' "$@")
    step "$name" "$tmp/plain.safetensors" --set "model.freeze=[${frozen%,}]" --set memory.encode=inline || return 1
    for at_once in 2 all; do
        step "$name" "$tmp/other.safetensors" --set "model.freeze=[${frozen%,}]" --set memory.encode=$at_once && same "$tmp/plain.safetensors" "$tmp/other.safetensors" || return 1
    done
}
check 'a frozen tower apart: same bytes' encoded llava_siglip_qwen2 'vision_tower.*'
check 'a frozen tower and projector apart, three feature layers: same bytes' encoded llava_memory4 'vision_tower.*' 'multi_modal_projector.*'
check 'a frozen tower and connector apart: same bytes' encoded smolvlm 'model.vision_model.*' 'model.connector.*'

# --- folders ---
# written CASE ARGUMENT...: a run of one step with learning rate 0 writes the folder's own bytes.
train_case() {
    local name=$1
    shift
    # shellcheck disable=SC2046,SC2086
    "$binary" train "$golden/run.yaml" --set "model.path=${model:-$cases/$name}" --set "train.out=$tmp/run" --set train.steps=1 --set train.effective_batch=2 \
        --set train.learning_rate=0 --set train.warmup_steps=0 --set memory.micro_batch=2 --set "device.kind=$DEVICE" $(cat "$cases/$name/flags" 2>/dev/null) $FLAGS "$@"
}
written() {
    rm -rf "$tmp/run"
    expect 0 '' train_case "$@" && same "$tmp/run/model/model.safetensors" "$cases/$1/model.safetensors" && same "$tmp/run/model/config.json" "$cases/$1/config.json"
}
for name in llava_clip_llama llava_clip_mistral llava_siglip_qwen2 llava_memory4 llava_original smolvlm idefics3; do
    check "$name: written back as it was read" written $name
done
check 'llava_med with a frozen tower: written back without it' written llava_med --set 'model.freeze=["model.vision_tower.*"]'
# A tower that may be trained is saved with the model; its weights there come before those of
# model.vision_tower.
tower_inside() {
    rm -rf "$tmp/run"
    expect 0 '' train_case llava_med || return 1
    grep -aq '"model.vision_tower.vision_tower.vision_model.encoder.layers.2.mlp.fc2.bias"' "$tmp/run/model/model.safetensors" || { echo "the tower is not saved"; return 1; }
    step llava_med "$tmp/plain.safetensors" && model=$tmp/run/model step llava_med "$tmp/other.safetensors" || return 1
    "$tools/compare" "$tmp/plain.safetensors" "$tmp/other.safetensors" --logits 1e-12 --grad 1e-12
}
check 'llava_med with a trained tower: saved with it, and read again' tower_inside
# Its checkpoint is one folder too, and the run goes on from it.
resumed() {
    rm -rf "$tmp/run" "$tmp/whole"
    local more=(--set train.learning_rate=0.01 --set train.schedule=constant --set train.save_every=2)
    expect 0 '' train_case llava_med "${more[@]}" --set train.steps=4 && mv "$tmp/run" "$tmp/whole" || return 1
    expect 0 '' train_case llava_med "${more[@]}" --set train.steps=2 && expect 0 'resuming after step 2' train_case llava_med "${more[@]}" --set train.steps=4 --resume || return 1
    same "$tmp/whole/model/model.safetensors" "$tmp/run/model/model.safetensors"
}
check 'llava_med with a trained tower: resume' resumed
# A new adapter has the names of the modules in memory, as PEFT reads them.
adapter() {
    rm -rf "$tmp/run"
    expect 0 '' train_case llava_clip_llama --set adapter.r=2 --set adapter.target_modules=all-linear || return 1
    local module
    for module in model.language_model.layers.0.mlp.up_proj model.vision_tower.encoder.layers.0.mlp.fc1 model.multi_modal_projector.linear_1; do
        grep -aq "\"base_model.model.$module.lora_A.weight\"" "$tmp/run/model/adapter_model.safetensors" || { echo "no $module in the adapter"; return 1; }
        grep -q "\"$module\"" "$tmp/run/model/adapter_config.json" || { echo "no $module in adapter_config.json"; return 1; }
    done
    step llava_clip_llama "$tmp/other.safetensors" --adapter "$tmp/run/model"
}
check 'a new adapter: names as PEFT has them' adapter
preset() {
    local out p
    for p in llava-tiny llava-med-7b smolvlm-256m-shape; do
        out=$("$binary" modules $p | grep ' weights, ') || return 1
        echo "$p: $out"
    done
    [ "$out" = '256,484,928 weights, 256,484,928 of them trained' ]
}
check 'presets' preset

# --- what is refused ---
# forged CASE ARGUMENT...: its batch, forged, in $tmp/batch.safetensors.
forged() {
    local name=$1
    shift
    "$tools/forge" "$cases/$name/batch.safetensors" "$tmp/batch.safetensors" "$@"
}
refused() {
    local name=$1 pattern=$2
    shift 2
    batch=$tmp/batch.safetensors expect 2 "$pattern" step "$name" "$tmp/other.safetensors" "$@" && [ "$(wc -l <"$tmp/err")" -le 2 ]
}
forged llava_clip_llama set input_ids 0 60
check 'an image token too many' refused llava_clip_llama 'input_ids has 25 image tokens \(id 60\), and pixel_values 6 images of 4 features: expected 24 tokens'
forged llava_clip_llama drop pixel_values
check 'image tokens without images' refused llava_clip_llama 'input_ids has 24 image tokens \(id 60\), and pixel_values 0 images'
forged llava_original set input_ids 0 -201
check 'an id that is no image token' refused llava_original 'input_ids\[0,0\] is -201, the vocabulary has 61'
cp $cases/llava_clip_mistral/batch.safetensors "$tmp/batch.safetensors"
check 'a batch of another strategy' refused llava_clip_llama 'input_ids has 15 image tokens .* expected 12 tokens'
forged smolvlm set pixel_attention_mask 5 0
check 'an image that does not fill its square' refused smolvlm 'pixel_attention_mask leaves out pixels of image 0'
# config CASE SED: a copy of the case in $tmp/config, with another config.json.
config() {
    rm -rf "$tmp/config"
    cp -r "$cases/$1" "$tmp/config" && sed -i "$2" "$tmp/config/config.json"
}
wrong() {
    config "$1" "$2" || return 1
    model=$tmp/config expect 2 "$3" step "$1" "$tmp/other.safetensors"
}
check 'a feature layer that does not exist' wrong llava_clip_llama 's/"vision_feature_layer": -2/"vision_feature_layer": -5/' 'vision_feature_layer is -5; a vision tower of 3 layers has the hidden states -4 to 3'
check 'a strategy that does not exist' wrong llava_clip_llama 's/"vision_feature_select_strategy": "default"/"vision_feature_select_strategy": "half"/' 'vision_feature_select_strategy "half": expected default or full'
check 'a projector of another width' wrong llava_clip_llama '0,/"hidden_size": 24/s//"hidden_size": 32/' 'tensor ".*" has the shape \[.*; config.json asks for \['
check 'a tower as text model' wrong llava_clip_llama 's/"model_type": "llama"/"model_type": "siglip_vision_model"/' 'text_config: .*expected llama, mistral.* or '
check 'a scale factor that does not divide' wrong smolvlm 's/"scale_factor": 2/"scale_factor": 3/' 'scale_factor is 3; expected a divisor of image_size / patch_size, which is 4'
check 'a tower of another model' wrong llava_med 's/"mm_hidden_size": 24/"mm_hidden_size": 32/' 'mm_hidden_size is 32, and the vision tower .*clip_full has a hidden_size of 24'
no_tower() { expect 2 'the folder has no weights of the vision tower openai/clip-tiny-of-the-tests \(mm_vision_tower\); set model.vision_tower' "$binary" step --model $cases/llava_med --batch $cases/llava_med/batch.safetensors --out "$tmp/other.safetensors"; }
check 'no tower, and no folder of it' no_tower
check 'a tower folder that does not exist' expect 2 'model.vision_tower: .*nowhere' "$binary" step --model $cases/llava_med --batch $cases/llava_med/batch.safetensors --out "$tmp/other.safetensors" --set model.vision_tower=/nowhere
itself() { expect 2 'the vision tower .*llava_med is a llava_mistral, expected clip_vision_model' "$binary" step --model $cases/llava_med --batch $cases/llava_med/batch.safetensors --out "$tmp/other.safetensors" --set model.vision_tower=$cases/llava_med; }
check 'the model itself as its tower' itself
check 'a tower folder for a model that has its tower inside' expect 2 'model.vision_tower is for LLaVA models in the original layout .*, and .* is a llava: leave it out' step llava_clip_llama "$tmp/other.safetensors" --set model.vision_tower=$cases/clip_full
check 'images in tiles' wrong llava_original 's/"image_aspect_ratio": "pad"/"image_aspect_ratio": "anyres"/' 'images in tiles are not supported'
summary
