#!/bin/bash
# shellcheck disable=SC2015
# run_sam2.sh: SAM 2 on images by a user's commands: data, training with the loss of its training,
# memory techniques, adapters, stored embeddings of three levels, prediction, evaluation, plans of
# the published sizes, and what is refused.
#
#   bash tests/run_sam2.sh         from the repository's root, after make; see run_lib.sh
#
# sam2-tiny on a synthetic dataset of images that are not square. Bit-equal: recomputation, reading
# threads, stored embeddings. Within 1e-5: micro-batches and chunks. tests/golden.sh compares steps
# with transformers, tests/test_predictor.c masks, and tests/run_convert.sh converts checkpoints.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

"$binary" data make "$tmp/set" --images 8 --size 96x64 --masks 4 >/dev/null || exit 2
cat >"$tmp/run.yaml" <<YAML
model: {preset: sam2-tiny}
data: {format: sa1b, train: "$tmp/set/*.tar", max_masks: 3, image_size: 64}
loss: {preset: sam2}
prompts: {iterations: 2}
train: {steps: 3, effective_batch: 4, learning_rate: 0.001, clip_norm: 1, seed: 1, out: "$tmp/unused"}
memory: {micro_batch: 4, precision: f32, recompute: none, head_chunks: 1}
device: {kind: $DEVICE}
YAML

# run OUT [ARGUMENT...]: three steps.
run() {
    local out=$tmp/$1
    shift
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/run.yaml" --set "train.out=$out" $FLAGS "$@"
}
# says PATTERN COMMAND...: the command succeeds, and its output has PATTERN.
says() { expect 0 '' "${@:2}" && grep -- "$1" "$tmp/out" || { cat "$tmp/out"; return 1; }; }
losses() { grep -o '"loss": *[0-9.e-]*' "$tmp/$1/metrics.jsonl"; }
weights() { echo "$tmp/$1/model/model.safetensors"; }
# close A B: three losses within 1e-5 of each other.
close() {
    paste <(losses "$1") <(losses "$2") | tr ':\t' '  ' | awk '{ d = $2 / $4 - 1; if (d > 1e-5 || d < -1e-5) { print; bad = 1 } } END { exit bad || NR != 3 }'
}

# --- training ----------------------------------------------------------------------------------

plain() { run plain && [ "$(losses plain | wc -l)" = 3 ] && losses plain | tail -n 1; }
check 'three steps with the loss of SAM 2' plain
again() { run again --set data.threads=3 && same "$(weights plain)" "$(weights again)"; }
check 'reading threads: the same bytes' again
recomputed() {
    local value
    for value in all segments:1 all+halves; do run "r$value" --set "memory.recompute=$value" && same "$(weights plain)" "$(weights "r$value")" || return 1; done
}
check 'gradient checkpointing: the same bytes' recomputed
split() { run split --set memory.micro_batch=1 && close plain split && run chunks --set memory.head_chunks=2 && close plain chunks; }
check 'micro-batches and mask decoder in chunks: the same losses' split
low() { run bf16 --set memory.precision=bf16 && run f16 --set memory.precision=f16; }
check 'bf16 and f16' low
objects() { run sam --set loss.preset=sam && run more --set loss.preset=sam --set loss.object=1 && ! cmp -s "$(weights sam)" "$(weights more)"; }
check 'loss.object with the loss of SAM' objects
adapted() {
    run lora --set "model.preset=null" --set "model.path=$tmp/plain/model" --set 'adapter.target_modules=[qkv, q_proj]' --set adapter.r=2 || return 1
    says IoU "$binary" predict --model "$tmp/plain/model" --adapter "$tmp/lora/model" "$tmp/wide.png" --point 30,20 -o "$tmp/lora.png"
}
cp tests/golden/predict_sam2/wide.png tests/golden/predict_sam2/tall.png "$tmp/"
check 'LoRA on the fused and on the separate projections' adapted

# --- stored embeddings ---------------------------------------------------------------------------

# At the model's own size, where products have the same kernels for one image and for several. On a
# GPU cuBLASLt has other algorithms for the rows of one image.
frozen=(--set data.image_size=128 --set model.preset=null --set "model.path=$tmp/plain/model" --set 'model.freeze=[vision_encoder.*, mask_decoder.conv_s*, no_memory_embedding]' --set data.format=packed --set "data.train=$tmp/e.pack")
stored() {
    says 'embeddings f32 \[256,8,8\]' "$binary" data pack "$tmp/set" -o "$tmp/e.pack" --embeddings "$tmp/plain/model" --embeddings-dtype f32 || return 1
    run images "${frozen[@]}" --set data.embeddings=off && run embeddings "${frozen[@]}" --set data.embeddings=use || return 1
    needs_cpu 'the same bytes' || return
    same "$(weights images)" "$(weights embeddings)"
}
check 'embeddings of three levels and images: the same bytes' stored
unfrozen() {
    expect 2 'set model.freeze to "vision_encoder.\*,mask_decoder.conv_s\*,no_memory_embedding"' "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/no" "${frozen[@]}" --set 'model.freeze=vision_encoder.*'
}
check 'an encoder that is not wholly frozen' unfrozen
begun() {
    expect 0 '' "$binary" init --model "$tmp/plain/model" --data "$tmp/e.pack" && cp "$tmp/out" "$tmp/init.yaml" &&
        grep 'freeze: \["vision_encoder.\*", "mask_decoder.conv_s\*", "no_memory_embedding"\]' "$tmp/init.yaml" && expect 0 '' "$binary" plan "$tmp/init.yaml"
}
check 'init on such a store' begun

# --- prediction and evaluation -----------------------------------------------------------------

predicted() {
    says '200 x 120' "$binary" predict --model "$tmp/plain/model" "$tmp/wide.png" --point 60,50 --box 10,10,150,100 --single -o "$tmp/m.png" --overlay "$tmp/o.png" &&
        says '41 x 57' "$binary" predict --model "$tmp/plain/model" "$tmp/tall.png" --box 3,3,30,40 -o "$tmp/m.png"
}
check 'a mask, one by stability and one of several' predicted
everything() { expect 0 '' "$binary" predict --model "$tmp/plain/model" "$tmp/wide.png" --everything 4 --min-iou 0 --min-stability 0 -o "$tmp/all.png" --json "$tmp/all.json" && [ -s "$tmp/all.json" ]; }
check 'everything' everything
evaluated() { says IoU "$binary" eval "$tmp/run.yaml" --model "$tmp/plain/model" --set "data.validation=$tmp/set/*.tar"; }
check 'an evaluation' evaluated

# --- folders for videos -------------------------------------------------------------------------

video() {
    cp -r tests/golden/sam2_video "$tmp/video" && rm "$tmp/video/"{batch,expect}.safetensors &&
        expect 0 '4 tensors of a sam2_video that are not needed here are only copied' "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/v" --set model.preset=null --set "model.path=$tmp/video" --set data.image_size=32 || return 1
    tool forge_pth
    diff <("$tools/forge_pth" list "$tmp/video/model.safetensors" | grep '^m.*_\(attention\|temporal\)\|^no_object\|^mask_downsample') \
        <("$tools/forge_pth" list "$tmp/v/model/model.safetensors" | grep '^m.*_\(attention\|temporal\)\|^no_object\|^mask_downsample') && grep -q sam2_video "$tmp/v/model/config.json"
}
check 'a folder for videos: trained on images, the rest copied' video

# --- published sizes ----------------------------------------------------------------------------

sizes() {
    local name
    for name in tiny small base-plus large; do
        expect 0 '' "$binary" plan "$tmp/run.yaml" --set "model.preset=facebook/sam2.1-hiera-$name" --set data.image_size=1024 --set memory.micro_batch=auto --set memory.recompute=auto --set train.effective_batch=1 --json || return 1
        cp "$tmp/out" "$tmp/plan.json" && echo "$name $(json "$tmp/plan.json" arena_bytes)"
    done
}
check 'plans of the published sizes' sizes

# --- refused ------------------------------------------------------------------------------------

refused() { expect 2 "$1" "$binary" plan "$tmp/run.yaml" "${@:2}"; }
check 'an image size' refused 'data.image_size is 72, expected a multiple of .* 32 pixels' --set data.image_size=72
check 'its loss with another model' refused 'loss.preset is sam2, the loss of a model that predicts objects; a sam takes sam' --set model.preset=sam-tiny
check 'loss.object with another model' refused 'loss.object is given, but the model is a sam, expected one that predicts whether there is an object' --set model.preset=sam-tiny --set loss.preset=sam --set loss.object=1
# edited SED PATTERN: a config.json that is refused.
edited() {
    rm -rf "$tmp/edited" && cp -r "$tmp/plain/model" "$tmp/edited" && sed -i "$1" "$tmp/edited/config.json" && ! cmp -s "$tmp/plain/model/config.json" "$tmp/edited/config.json" || return 1
    expect 2 "$2" "$binary" plan "$tmp/run.yaml" --set model.preset=null --set "model.path=$tmp/edited"
}
check 'stages' edited 's/"blocks_per_stage": \[1, 2, 2, 1\]/"blocks_per_stage": [1, 2, 2]/' 'blocks_per_stage has 3 numbers, expected one for each of 4 stages'
check 'a window that cannot be halved' edited 's/\[8, 4, 6, 3\]/[8, 5, 6, 3]/' 'window_size_per_stage\[1\] is 5: .* must be even'
check 'a pooled block without windows' edited 's/"global_attention_blocks": \[4\]/"global_attention_blocks": [3]/' 'global_attention_blocks has 3, the first block of a stage'
check 'channels that differ' edited 's/\[96, 64, 32, 16\]/[96, 64, 32, 8]/' 'backbone_channel_list\[3\] is 8, expected the embed_dim_per_stage in reverse order'

summary
