#!/bin/bash
# shellcheck disable=SC2015
# run_sam_hq.sh: SAM-HQ by a user's commands: training with its published recipe, which trains only
# what SAM does not have, memory techniques, stored embeddings, prediction and conversion.
#
#   bash tests/run_sam_hq.sh      from the repository's root, after make; see run_lib.sh
#
# sam-hq-tiny on a synthetic dataset. golden.sh compares outputs and gradients with the authors'
# arithmetic (samhq_*).
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
preload fault
# fault.so replaces fsync: these runs need not reach the disk.
sanitized || export LD_PRELOAD=$tools/fault.so

"$binary" data make "$tmp/set" --images 12 --size 96x80 --masks 4 >/dev/null || exit 2
cat >"$tmp/run.yaml" <<YAML
model:
  preset: sam-hq-tiny
  freeze: ["vision_encoder.*", "prompt_encoder.*", "mask_decoder.iou_*", mask_decoder.mask_tokens.weight,
           "mask_decoder.transformer.*", "mask_decoder.upscale_*", "mask_decoder.output_hypernetworks_mlps.*"]
data: {format: sa1b, train: "$tmp/set/*.tar", max_masks: 2}
train: {steps: 3, effective_batch: 4, learning_rate: 0.001, out: "$tmp/unused"}
prompts: {iterations: 2}
memory: {micro_batch: 4, precision: f32, recompute: none, head_chunks: 1, offload: none}
device: {kind: $DEVICE}
YAML
# hq OUT [ARGUMENT...]: three steps.
hq() {
    local out=$tmp/$1
    shift
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/run.yaml" --set "train.out=$out" $FLAGS "$@"
}

# changed A B: the names of the tensors that differ.
changed() { "$tools/compare" "$1/model/model.safetensors" "$2/model/model.safetensors" | sed -n 's/^ *FAIL \([^ ]*\) .*/\1/p'; }
recipe() {
    hq start --set train.steps=1 --set train.learning_rate=0 && hq plain || return 1
    local names
    names=$(changed "$tmp/start" "$tmp/plain")
    [ -n "$names" ] && ! grep -vE '^mask_decoder\.(hq_|compress_vit_|encoder_|mask_conv|mask_norm)' <<<"$names" && echo "$(wc -l <<<"$names") tensors trained"
}
check 'only what SAM-HQ adds is trained' recipe

exactly() {
    local name=$1
    shift
    hq "$name" "$@" && same_run "$tmp/plain" "$tmp/$name" 3
}
check 'recompute: same bytes' exactly all --set memory.recompute=all
check 'offload: same bytes' exactly away --set memory.offload=optimizer+masters
near() {
    hq micro --set memory.micro_batch=1 --set memory.head_chunks=2 &&
        paste <(sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$tmp/plain/metrics.jsonl") <(sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$tmp/micro/metrics.jsonl") |
        awk '{ d = ($1 - $2) / $1; if (d * d > 1e-10) bad = 1 } END { print NR " steps"; exit bad || NR != 3 }'
}
check 'micro-batches and head chunks: losses within 1e-5' near

stored() {
    "$binary" data pack "$tmp/set" -o "$tmp/set.pack" --embeddings "$tmp/start/model" --embeddings-dtype f32 2>/dev/null | grep 'embeddings f32 \[160,16,16\]' &&
        hq images --set model.preset=null --set "model.path=$tmp/start/model" &&
        hq store --set model.preset=null --set "model.path=$tmp/start/model" --set data.format=packed --set "data.train=$tmp/set.pack" &&
        same "$tmp/images/model/model.safetensors" "$tmp/store/model/model.safetensors"
}
check 'stored embeddings hold the early features: same bytes' stored

predicted() {
    local image
    tar -xf "$tmp"/set/*.tar -C "$tmp" || return 1
    image=$(find "$tmp" -name '*.jpg' -size +0 | head -n 1)
    expect 0 '' "$binary" predict --model "$tmp/plain/model" "$image" --box 10,10,60,60 -o "$tmp/mask.png" && [ -s "$tmp/mask.png" ]
}
check 'predict' predicted

# A checkpoint cannot say that there are four heads; the published ones have eight.
converted() {
    cp -r "$tmp/plain/model" "$tmp/eight" && sed -i '/mask_decoder_config/,$ s/"num_attention_heads": 4/"num_attention_heads": 8/' "$tmp/eight/config.json" &&
        "$binary" convert "$tmp/eight" -o "$tmp/hq.pth" | grep sam_hq && "$binary" convert "$tmp/hq.pth" -o "$tmp/back" >/dev/null &&
        "$tools/compare" "$tmp/plain/model/model.safetensors" "$tmp/back/model.safetensors" &&
        grep -q '"model_type": "sam_hq"' "$tmp/back/config.json" && grep -q '"vit_dim": 96' "$tmp/back/config.json"
}
check 'a checkpoint with the authors'"'"' names, and back' converted

edited() {
    cp -r "$tmp/plain/model" "$tmp/edited" && sed -i "$1" "$tmp/edited/config.json" && expect 2 "$2" "$binary" plan "$tmp/run.yaml" --set model.preset=null --set "model.path=$tmp/edited"
    local status=$?
    rm -rf "$tmp/edited"
    return $status
}
check 'another vit_dim' edited 's/"vit_dim": 96/"vit_dim": 768/' 'vit_dim is 768, and hidden_size of vision_config is 96'
check 'no layer with global attention' edited 's/"global_attn_indexes": \[[^]]*\]/"global_attn_indexes": []/' 'names no layer'

summary
