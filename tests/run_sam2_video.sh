#!/bin/bash
# shellcheck disable=SC2015
# run_sam2_video.sh: SAM 2 on clips of videos by a user's commands: training on videos in the layout
# of DAVIS, memory techniques, steps on clips, and what is refused.
#
#   bash tests/run_sam2_video.sh         from the repository's root, after make; see run_lib.sh
#
# The model and the videos are golden files of a few kilobytes. Bit-equal: recomputation, reading
# threads, a resumed run. Within 1e-5: micro-batches. tests/golden.sh compares steps with
# transformers. Predictions on a video: those of transformers (tests/golden/make_track_sam2.py).
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
# Clips of an evaluation do not overlap: the two videos of five frames have one each.
evaluations() { grep '"eval' "$tmp/$1/metrics.jsonl" | grep -o '_loss": *[0-9.e-]*'; }
evaluated() {
    run evaluated --set data.validation=tests/golden/clips --set train.eval_every=1 && grep 'data.validation: 2 clips of 3 frames in 3 videos' "$tmp/out" "$tmp/err" &&
        same "$(weights plain)" "$(weights evaluated)" && [ "$(evaluations evaluated | sort -u | wc -l)" -ge 3 ] && evaluations evaluated | tail -n 1
}
check 'evaluations change nothing of the training' evaluated
held() {
    for seed in 1 2 3; do
        run "held$seed" --set data.holdout=0.3 --set "data.split_seed=$seed" --set train.eval_every=3 >"$tmp/held.txt" 2>&1 || grep -q 'data.validation: no folder has 3 frames' "$tmp/err" || return 1
        cat "$tmp/out" "$tmp/err" | grep -h 'clips of 3 frames in' >>"$tmp/helds.txt"
    done
    # two videos are trained on, and one is held out, never a part of one
    ! grep 'in 3 videos' "$tmp/helds.txt" && grep 'data.validation: 1 clips of 3 frames in 1 videos' "$tmp/helds.txt" | tail -n 1
}
check 'videos that are held out' held
by_list() {
    echo left >"$tmp/val.txt" && run listed --set data.validation=tests/golden/clips --set "data.validation_list=$tmp/val.txt" --set train.eval_every=3 &&
        grep -h 'data.validation: 1 clips of 3 frames in 1 videos' "$tmp/out" "$tmp/err"
}
check 'a list of videos' by_list
names() { "$tools/forge_pth" list "$1" | cut -d' ' -f1 | sort; }
kept() { same <(names "$clip/model.safetensors") <(names "$(weights plain)") && names "$(weights plain)" | wc -l; }
tool forge_pth
check 'a saved folder has the tensors that it was read from' kept
# A preset is the model for images, or with data.frames that for videos.
preset() {
    run preset --set model.path=null --set model.preset=sam2-tiny --set train.steps=1 && grep '"model_type": "sam2_video"' "$tmp/preset/model/config.json" || return 1
    expect 0 '' "$binary" plan "$tmp/run.yaml" --set model.path=null --set model.preset=facebook/sam2.1-hiera-tiny --set data.image_size=256 --json && [ "$(json "$tmp/out" trained_parameters)" = 38817733 ]
}
check 'presets' preset

# --- layouts ------------------------------------------------------------------------------------

# layout NAME FRAMES: the golden videos as another dataset has them.
layout() {
    local to=$tmp/$1 video k f name
    for video in both left; do
        mkdir -p "$to/JPEGImages/$video" "$to/Annotations/$video"
        k=0
        for f in tests/golden/clips/JPEGImages/$video/*.png; do
            name=$(printf %05d $((k * $2)))
            cp "$f" "$to/JPEGImages/$video/$name.png" && cp "tests/golden/clips/Annotations/$video/${f##*/}" "$to/Annotations/$video/$name.png"
            [ "$2" = 1 ] || cp "$f" "$to/JPEGImages/$video/$(printf %05d $((k * $2 + 1))).png"
            k=$((k + 1))
        done
    done
}
# MOSE: a folder for each part, which has JPEGImages and Annotations.
mose() { layout mose/train 1 && run by_mose --set "data.train=$tmp/mose/train" && grep -h '6 clips of 3 frames in 2 videos' "$tmp/out" "$tmp/err" && same "$tmp/mose/train/Annotations/both/00000.png" tests/golden/clips/Annotations/both/00000.png; }
check 'MOSE: three steps' mose
# YouTube-VOS: label images of every fifth frame, and here a frame between them without one.
youtube() { layout youtube/train 5 && run by_youtube --set "data.train=$tmp/youtube/train" && grep -h '6 clips of 3 frames in 2 videos' "$tmp/out" "$tmp/err" && same <(losses by_mose) <(losses by_youtube) && losses by_youtube | tail -n 1; }
check 'YouTube-VOS: the steps of the frames with label images' youtube
# Label images of the first frame only, as the parts for validation of both have them.
first_only() {
    layout first 1 && rm "$tmp"/first/Annotations/*/0000[1-4].png
    expect 2 'no folder has 3 frames with masks, the length of a clip' "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/never" --set "data.train=$tmp/first"
}
check 'label images of first frames only' first_only
missing() { layout missing 1 && rm "$tmp"/missing/JPEGImages/both/00002.png && run by_missing --set "data.train=$tmp/missing" && grep -h '1 mask has no image' "$tmp/out" "$tmp/err"; }
check 'a label image without its frame' missing

# --- volumes: slices are frames ------------------------------------------------------------------

export XDG_CACHE_HOME=$tmp/cache
volume=$tmp/ct/imagesTr/a_0000.nii.gz
mkdir -p "$tmp/ct/imagesTr" "$tmp/ct/labelsTr" && for c in a b; do cp tests/golden/volumes/lps.nii.gz "$tmp/ct/imagesTr/${c}_0000.nii.gz" && cp tests/golden/volumes/labels.nii.gz "$tmp/ct/labelsTr/$c.nii.gz"; done
slices=(--set "data.train=$tmp/ct" --set data.images=imagesTr --set data.masks=labelsTr --set data.image_suffix=_0000 --set data.labels=classes)
on_slices() { run slices "${slices[@]}" && grep '2 clips of 3 frames in 2 videos' "$tmp/out" "$tmp/err" | cut -c 1-90 && [ "$(losses slices | wc -l)" = 3 ]; }
check 'three steps on clips of slices' on_slices
check 'a volume of fewer slices' expect 2 'no volume has 4 slices with labels' "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/never0" "${slices[@]}" --set data.frames=4
# A structure is tracked both ways from the slice where it is largest, through all slices.
volumes_scored() {
    expect 0 '' "$binary" eval "$tmp/run.yaml" --model "$tmp/slices/model" "${slices[@]}" --set "data.validation=$tmp/ct" --csv "$tmp/volumes.csv" --prompt "$1" && grep 'slices of 2 volumes' "$tmp/out" &&
        grep -q "^volume,prompt,category,mask,dice,iou,hd95,nsd$" "$tmp/volumes.csv" && [ "$(grep -c "^[ab],$1," "$tmp/volumes.csv")" = 4 ]
}
check 'scores in three dimensions' volumes_scored mask
check 'scores in three dimensions, from boxes' volumes_scored box
volume_predicted() {
    expect 0 '' "$binary" predict --model "$tmp/slices/model" --video "$volume" --mask "$tmp/ct/labelsTr/a.nii.gz" --frame 2 -o "$tmp/a.nii.gz" --overlay "$tmp/overlay" --json "$tmp/a.json" && grep '2 objects on 5 slices' "$tmp/out" &&
        [ "$(find "$tmp/overlay" -name '*.png' | wc -l)" = 5 ] && grep -q '"frame": 2' "$tmp/a.json" || return 1
    # the label volume lies on its image: the header's axes and sizes are those of the image
    cmp <(gzip -dc "$volume" | od -An -j 40 -N 16 -t d2) <(gzip -dc "$tmp/a.nii.gz" | od -An -j 40 -N 16 -t d2) && cmp <(gzip -dc "$volume" | od -An -j 252 -N 76 -t f4) <(gzip -dc "$tmp/a.nii.gz" | od -An -j 252 -N 76 -t f4)
}
check 'a volume: labels, overlays and run lengths' volume_predicted
check 'a slice beyond the end' expect 2 "--frame 5: $volume has 5 slices, 0 to 4" "$binary" predict --model "$tmp/slices/model" --video "$volume" --box 1,1,4,4 --frame 5 -o "$tmp/x.nii"
check 'a folder for the labels of a volume' expect 2 'a label volume, FILE.nii.gz' "$binary" predict --model "$tmp/slices/model" --video "$volume" --box 1,1,4,4 -o "$tmp/x"

# --- predictions --------------------------------------------------------------------------------

track=tests/golden/track_sam2
tool labels
# predict ARGUMENT...: of the golden model and video.
predict() { "$binary" predict --model "$track/model" --video "$track/video" --set "device=$DEVICE" "$@"; }
by_mask() { predict --mask "$track/labels.png" --frame 4 -o "$tmp/by_mask" --overlay "$tmp/over" --json "$tmp/by_mask.json" && [ "$(ls "$tmp/over" | wc -l)" = 12 ] && "$tools/labels" "$track/mask.png" "$tmp/by_mask"/*.png; }
check 'two objects by a mask, both ways: the pixels of transformers' by_mask
by_prompts() { predict --prompts "$track/prompts.csv" -o "$tmp/by_prompts" && "$tools/labels" "$track/prompts.png" "$tmp/by_prompts"/*.png; }
check 'points and boxes on three frames: the pixels of transformers' by_prompts
# A video of three times as many frames takes the memory of this one.
longer() {
    mkdir "$tmp/longer" && for k in 0 1 2; do for f in "$track"/video/*.png; do cp "$f" "$tmp/longer/$k${f##*/}"; done; done
    predict --box 4,5,14,16 --json "$tmp/a.json" >"$tmp/short.txt" && predict --video "$tmp/longer" --box 4,5,14,16 --json "$tmp/b.json" >"$tmp/long.txt" &&
        grep -q 'on 36 frames' "$tmp/long.txt" && same <(sed 's/.*; //' "$tmp/short.txt") <(sed 's/.*; //' "$tmp/long.txt") && sed 's/.*; //' "$tmp/long.txt"
}
check 'a longer video: the same memory' longer
listed() { [ "$(grep -c '"frame"' "$tmp/by_mask.json")" -ge 12 ] && sed -n 2p "$tmp/by_mask.json" | grep -o '"frame": 0, "id": 1, "size": .32, 32.'; }
check 'a list of masks' listed
wrong() { expect 2 "$1" predict "${@:2}" -o "$tmp/none" && [ ! -e "$tmp/none" ]; }
check 'a frame beyond the end' wrong '--frame 12: tests/golden/track_sam2/video has 12 frames, 0 to 11' --box 1,1,9,9 --frame 12
check 'a box outside' wrong '40,9 of the prompt of object 1 lies outside of the frames, which have 32 x 32 pixels' --box 1,1,40,9
check 'a mask of another size' wrong 'has 48 x 32 pixels, and the frames of .* have 32 x 32' --mask tests/golden/clips/Annotations/both/00000.png
check 'no prompt' wrong 'no prompt is given: give one of --point and --box'
check 'a frame and prompts with frames' wrong '--prompts has the frame of each prompt: leave out --frame' --prompts "$track/prompts.csv" --frame 1
csv() { printf 'frame,id,x0,y0,x1,y1\n%s\n' "$2" >"$tmp/one.csv" && wrong "$1" --prompts "$tmp/one.csv"; }
check 'a frame in the prompts beyond the end' csv 'one.csv: frame 99: .* has 12 frames' '99,1,1,1,9,9'
check 'an object 0' csv 'the id is "0", expected a number from 1 to 255' '1,0,1,1,9,9'
check 'a frame that is no number' csv 'the frame is "a.png", expected a number' 'a.png,1,1,1,9,9'
check 'a model of images' expect 2 'is a sam2, which takes no videos; expected a sam2_video' "$binary" predict --model tests/golden/predict_sam2/model --video "$track/video" --box 1,1,9,9 -o "$tmp/none"
check 'a video that is not there' expect 2 'there is no such video' "$binary" predict --model "$track/model" --video "$tmp/nowhere" --box 1,1,9,9 -o "$tmp/none"
check 'a frame for an image' expect 2 '--frame is for a video' "$binary" predict --model "$track/model" "$track/video/00000.png" --box 1,1,9,9 --frame 2 -o "$tmp/none.png"
sizes() {
    mkdir "$tmp/sizes" && cp "$track"/video/0000?.png "$tmp/sizes" && cp tests/golden/predict_sam2/tall.png "$tmp/sizes/00003.png"
    expect 2 'frame 2 has 41 x 57 pixels, expected the 32 x 32 of the others' predict --video "$tmp/sizes" --box 1,1,9,9 -o "$tmp/none2"
}
check 'frames of several sizes' sizes

# --- scores -------------------------------------------------------------------------------------

sed "s|path: $clip|path: $track/model|; s|frames: 3,|validation: tests/golden/clips, frames: 3,|" "$tmp/run.yaml" >"$tmp/eval.yaml"
score() { "$binary" eval "$tmp/eval.yaml" --model "$track/model" "$@"; }
# The numbers are those of davis2017-evaluation's definition (tests/golden/make_video_score.py) on
# the label images that `predict` writes for these videos.
scored() {
    score --csv "$tmp/scores.csv" && sed -n 's/^left,2,3,//p; s/^both,1,3,//p' "$tmp/scores.csv" |
        tr ',\n' '  ' | awk '{ n = split("0.0343137644 0.0993932937 0.066853529 0.029015544 0.0584329349 0.0437242395", e, " "); for (i = 1; i <= n; i++) if ($i - e[i] > 1e-6 || e[i] - $i > 1e-6) { print; exit 1 } print $3 }'
}
check 'J and F of whole videos' scored
by_boxes() { score --prompt box --json >"$tmp/boxes.json" && "$tools/json_get" "$tmp/boxes.json" prompt videos unscored_videos objects j_and_f | tr '\n' ' ' | tee "$tmp/boxes.txt" && grep -q '^box 3 1 4 0\.' "$tmp/boxes.txt"; }
check 'prompts by boxes, as JSON' by_boxes
check 'another prompt' expect 2 '--prompt train: expected mask or box' score --prompt train
check 'the worst masks of videos' expect 2 '--worst is for images, and data.frames asks for videos' score --worst 3
check 'a prompt for images' expect 2 '--prompt is for videos' score --prompt box --set data.frames=0
mixed() {
    cp -r tests/golden/clips "$tmp/mixed" && cp "$track/labels.png" "$tmp/mixed/Annotations/both/00002.png" &&
        expect 2 'both: .*00002: the label image has 32 x 32 pixels, expected the 48 x 32 of the first one' score --set "data.validation=$tmp/mixed"
}
check 'label images of several sizes' mixed

# --- refused ------------------------------------------------------------------------------------

refused() { expect 2 "$1" "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/never" "${@:2}" && [ ! -e "$tmp/never/model" ]; }
check 'clips that no video has' refused 'no folder has 6 frames with masks, the length of a clip' --set data.frames=6
check 'another model' refused 'data.frames is 3, and a sam takes no clips; expected a sam2_video' --set model.path=null --set model.preset=sam-tiny --set data.image_size=64
check 'another format' refused 'data.format is sa1b: clips are pairs of frames and label images' --set data.format=sa1b --set data.images=null --set data.masks=null --set data.labels=null
check 'rounds of prompts' refused 'prompts.iterations is 2: clips have prompts on their first frame' --set prompts.iterations=2
check 'augmentation' refused 'data.flip is given: the frames of clips stay as they are' --set data.flip=0.5
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
