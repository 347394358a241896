#!/bin/bash
# shellcheck disable=SC2015
# run_embed_images.sh: training on conversations from a store with what the vision tower makes of their images gives the same bits as
# training on the images with a frozen tower, and needs no tower. Settings that would make the two differ are refused.
#
#   bash tests/run_embed_images.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
tool forge_conversations
export OMP_WAIT_POLICY=passive

model=$tmp/model chats=$tmp/chats
make_model llava_clip_llama "$model" && "$tools/forge_conversations" "$chats" 40 0 3 1 || exit 2
cat >"$tmp/run.yaml" <<END
model: {path: $model, freeze: ["vision_tower.*"]}
data: {format: conversations, train: $chats/chats.json, images: $chats/images, sequence: 64, max_images: 4}
train: {steps: 4, effective_batch: 4, learning_rate: 0.005, schedule: constant, warmup_steps: 0, out: $tmp/unused}
memory: {micro_batch: 4, precision: f32}
device: $DEVICE
END
# pack NAME MODEL [ARGUMENT...]: the store $tmp/NAME of the conversations' images.
pack() { "$binary" data pack "$chats/chats.json" -o "$tmp/$1" --embeddings "$2" --images "$chats/images" --embeddings-dtype f32 "${@:3}"; }
losses() { sed 's/,"seconds.*//; s/,"eval_seconds.*//' "$tmp/$1/metrics.jsonl"; }
# both STORE ARGUMENT...: the same losses, scores and weights from the images and from the store.
both() {
    local store=$1
    shift
    expect 0 '' run plain "$@" && expect 0 'the encoder does not run' run other "$@" --set "data.images=$tmp/$store" || return 1
    losses plain >"$tmp/plain.losses" && losses other >"$tmp/other.losses" && same "$tmp/plain.losses" "$tmp/other.losses" && same "$(weights plain)" "$(weights other)"
}
held=(--set data.holdout=0.2 --set train.eval_every=2 --set train.save_every=2 --set train.effective_batch=3 --set memory.micro_batch=2 --set train.steps=6)

# --- the same training ---
made() { pack clip.pack "$model" >"$tmp/out" && grep 'clip.pack: 60 images of 40 conversations, 60 embeddings f32 \[4,32\] of .*; 0 images cannot be read' "$tmp/out" || { cat "$tmp/out"; return 1; }; }
check 'a store of the images of conversations' made
check 'images and store: the same losses and weights' both clip.pack
state() { same "$tmp/plain/checkpoints/step-6/state.safetensors" "$tmp/other/checkpoints/step-6/state.safetensors"; }
for packing in true false; do
    evaluated() { both clip.pack "${held[@]}" --set data.packing=$packing && state; }
    check "holdout, evaluation, optimizer state; data.packing $packing" evaluated
done
summary
