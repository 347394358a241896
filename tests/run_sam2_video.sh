#!/bin/bash
# shellcheck disable=SC2015
# run_sam2_video.sh: SAM 2 on clips of videos by a user's commands: training on videos in the layout
# of DAVIS, memory techniques, steps on clips, and what is refused.
#
#   bash tests/run_sam2_video.sh         from the repository's root, after make; see run_lib.sh
#
# The model and the videos are golden files of a few kilobytes. Bit-equal: recomputation, reading
# threads, a resumed run. Within 1e-5: micro-batches. tests/golden.sh compares steps with
# transformers.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

clip=tests/golden/sam2_clip
cat >"$tmp/run.yaml" <<YAML
model: {path: $clip}
data: {format: pairs, train: tests/golden/clips, images: JPEGImages, masks: Annotations, labels: instances, frames: 3, max_masks: 2, image_size: 32}
loss: {preset: sam2}
train: {steps: 3, effective_batch: 2, learning_rate: 0.003, clip_norm: 1, seed: 1, out: "$tmp/unused"}
memory: {micro_batch: 2, precision: f32, recompute: none}
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
losses() { grep -o '"loss": *[0-9.e-]*' "$tmp/$1/metrics.jsonl"; }
weights() { echo "$tmp/$1/model/model.safetensors"; }
# close A B: three losses within 1e-5 of each other.
close() {
    paste <(losses "$1") <(losses "$2") | tr ':\t' '  ' | awk '{ d = $2 / $4 - 1; if (d > 1e-5 || d < -1e-5) { print; bad = 1 } } END { exit bad || NR != 3 }'
}

# --- training ----------------------------------------------------------------------------------

# Two videos of five frames have three clips of three each; the third one is too short.
plain() { run plain && grep '6 clips of 3 frames in 3 videos, of which some are shorter' "$tmp/out" "$tmp/err" && [ "$(losses plain | wc -l)" = 3 ] && losses plain | tail -n 1; }
check 'three steps on clips' plain
again() { run again --set data.threads=3 && same "$(weights plain)" "$(weights again)"; }
check 'reading threads: the same bytes' again
recomputed() { run recomputed --set memory.recompute=all && same "$(weights plain)" "$(weights recomputed)"; }
check 'gradient checkpointing: the same bytes' recomputed
split() { run split --set memory.micro_batch=1 && close plain split; }
check 'micro-batches: the same losses' split
low() { run bf16 --set memory.precision=bf16 --set train.steps=1 && [ "$(losses bf16 | wc -l)" = 1 ]; }
check 'bf16' low
resumed() { run resumed --set train.steps=2 && run resumed --resume --set train.steps=3 && same "$(weights plain)" "$(weights resumed)"; }
check 'a resumed run: the same bytes' resumed
names() { "$tools/forge_pth" list "$1" | cut -d' ' -f1 | sort; }
kept() { same <(names "$clip/model.safetensors") <(names "$(weights plain)") && names "$(weights plain)" | wc -l; }
tool forge_pth
check 'a saved folder has the tensors that it was read from' kept

# --- refused ------------------------------------------------------------------------------------

refused() { expect 2 "$1" "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/never" "${@:2}" && [ ! -e "$tmp/never/model" ]; }
check 'clips that no video has' refused 'no folder has 6 frames with masks, the length of a clip' --set data.frames=6
check 'another model' refused 'data.frames is 3, and a sam2 takes no clips; expected a sam2_video' --set model.path=null --set model.preset=sam2-tiny --set data.image_size=64
check 'another format' refused 'data.format is sa1b: clips are pairs of frames and label images' --set data.format=sa1b --set data.images=null --set data.masks=null --set data.labels=null
check 'rounds of prompts' refused 'prompts.iterations is 2: clips have prompts on their first frame' --set prompts.iterations=2
check 'augmentation' refused 'data.flip is given: the frames of clips stay as they are' --set data.flip=0.5
check 'a validation' refused 'clips are trained on and not evaluated; leave out data.validation and data.holdout' --set data.validation=tests/golden/clips
damaged() {
    cp -r tests/golden/clips "$tmp/damaged" && for f in "$tmp/damaged"/Annotations/*/*.png; do head -c 60 "$f" >"$f.cut" && mv "$f.cut" "$f"; done
    expect 2 "$1" "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/never2" --set "data.train=$tmp/damaged" --set data.labels=instances
}
check 'damaged label images' damaged 'no clip is left: .* the file ends too early'
# stepped PATTERN MODEL BATCH: a batch or a model that a step refuses.
stepped() { expect 2 "$1" "$binary" step --model "$2" --batch "$3" --out "$tmp/o.safetensors"; }
check 'a batch of images for clips' stepped 'unknown input' tests/golden/sam2_points "$clip/batch.safetensors"
twice() {
    # The last of the times 0 to 5, of 8 bytes each, becomes 4 too.
    sed 's/\x05\x00\x00\x00\x00\x00\x00\x00/\x04\x00\x00\x00\x00\x00\x00\x00/' "$clip/batch.safetensors" >"$tmp/twice.safetensors"
    stepped 'frame_times\[0,5\] is 4, expected 0 or more, and each frame once' "$clip" "$tmp/twice.safetensors"
}
check 'a frame twice' twice
narrow() {
    cp -r "$clip" "$tmp/narrow" && sed -i 's/"memory_fuser_embed_dim": 16/"memory_fuser_embed_dim": 8/' "$tmp/narrow/config.json" && stepped 'clips: memory_fuser_embed_dim is 8, expected fpn_hidden_size 16' "$tmp/narrow" "$clip/batch.safetensors"
}
check 'memories of another width' narrow

summary
