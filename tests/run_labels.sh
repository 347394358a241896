#!/bin/bash
# shellcheck disable=SC2015
# run_labels.sh: masks and images as other programs write them: classes, soft edges, JPEG masks,
# crowds of one part, images of 16 bits. Every command reads them the same way, says what was
# decided and counts what is left out; what has no clear meaning is refused with the key to set.
#
# The files are in tests/golden/people; make_people.py made them.
#
#   bash tests/run_labels.sh      from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
people=tests/golden/people
tool forge_png

# inspects CASE PATH VALUE...: `data inspect --json` gives these values, as PATH VALUE pairs.
inspects() {
    local from=$people/$1
    shift
    expect 0 '' "$binary" data inspect "$from" --json && cp "$tmp/out" "$tmp/facts.json" || return 1
    while (($#)); do
        [ "$(json "$tmp/facts.json" "$1")" = "$2" ] || { echo "$1 is $(json "$tmp/facts.json" "$1"), expected $2"; return 1; }
        shift 2
    done
    echo "$from"
}
# says CASE PATTERN: `data inspect` prints the pattern.
says() { expect 0 '' "$binary" data inspect "$people/$1" && grep -E -- "$2" "$tmp/out" || { cat "$tmp/out"; return 1; }; }

check "classes are decided over the whole set" inspects classes labels.kind classes labels.values 3 masks 4
check "one value in all is binary" inspects white labels.kind binary labels.threshold 0 masks 3
check "anti-aliased edges become binary" inspects soft labels.kind binary labels.soft true labels.threshold 128 masks 3
check "JPEG masks become binary; the empty one is empty" inspects jpeg/table.csv labels.kind binary labels.threshold 128 masks 2 bad 1
check "JPEG masks saved as PNG become binary" inspects resaved labels.kind binary labels.soft true masks 2 bad 1
check "PASCAL VOC's 255 is ignored" inspects voc labels.kind classes labels.ignore 255 labels.values 2 masks 2
check "400 ids are instances" inspects ids labels.kind instances masks 400
check "the decision is one line" says classes '^  data.labels auto: classes, 3 values \(1, 2, 3\) in 3 mask images'
check "the threshold is said" says soft '^  data.labels auto: binary, soft edges: the mask is the values from 128 on'

# refused PATTERN COMMAND...
refuses_case() { expect 2 "$2" "$binary" data inspect "$people/$1"; }
check "classes with smoothed borders are refused" refuses_case smoothed 'smoothed/masks/a.png has areas of several values.*set data.labels: binary'
check "images in the folder of masks are refused" refuses_case photos 'photos/masks/a.png looks like an image and not like a mask.*data.masks'
given() {
    expect 0 '' "$binary" data inspect "$people/smoothed" --labels binary --threshold 200 --json && [ "$(json "$tmp/out" labels.kind)" = binary ] || return 1
    expect 2 'labels black: expected auto' "$binary" data inspect "$people/white" --labels black && expect 2 'range 5,1: expected' "$binary" data verify "$people/deep12" --range 5,1
}
check "a key decides instead" given
own_masks() {
    mkdir -p "$tmp/own" && cp -r "$people/black/images" "$tmp/own/images" && ln -s images "$tmp/own/masks" || return 1
    expect 2 'images/a.png is the image and also its mask' "$binary" data inspect "$tmp/own" && expect 2 'also its mask' "$binary" init --model sam-tiny --data "$tmp/own" || return 1
    printf 'image,mask\nimages/a.png,images/a.png\n' >"$tmp/own/t.csv" && expect 2 'images/a.png' "$binary" data verify "$tmp/own/t.csv"
}
check "an image is never its own mask" own_masks

# --- crowds and small masks -----------------------------------------------------------------

painted=painted/annotations/instances_default.json
check "masks painted in CVAT are used" inspects $painted masks 6 crowd_masks 0 one_part_crowds 3
check "crowds are counted" says crowd/instances_train.json 'left out: 1 crowd \(iscrowd 1 and several parts; data.crowds: true uses it\), 1 without a segmentation'
small() {
    expect 0 '' "$binary" data inspect "$people/crowd/instances_train.json" --masks-size 16 --json && [ "$(json "$tmp/out" too_small_masks)" = 1 ] && [ "$(json "$tmp/out" crowd_masks)" = 1 ] || return 1
    expect 0 '' "$binary" data inspect "$people/crowd/instances_train.json" --masks-size 16 && grep 'left out: 1 mask too small to be trained on or scored' "$tmp/out"
}
check "masks too small to be scored are counted" small

# --- 16 bits ----------------------------------------------------------------------------------

check "12 of 16 bits: a window of percentiles" inspects deep12 range.kind window range.low 399 range.high 2700 range.images_of_16_bits 3
check "16-bit RGB" inspects deep_rgb range.kind window range.images_of_16_bits 3
check "all 16 bits: the full range" inspects deep16 range.kind full
check "8 bits: nothing to decide" inspects white range.kind auto range.images_of_16_bits 0
check "the range is one line" says deep12 '^  data.range auto: window 399 to 2700, the percentiles of the values above 0 in 3 images'
check "nearly black images are warned of" says black 'warning: the images are nearly black: 99.5 % of the pixels of 3 images are at most 10 of 255'
dark() { expect 0 'nearly black.*data.range: percentiles' "$binary" data verify "$people/deep12" --range full; }
check "12 bits over the full range are nearly black" dark

# --- from init to predict ------------------------------------------------------------------------

# trains CASE [ARGUMENT...]: init, then two steps and an evaluation, with what init wrote.
trains() {
    local from=$1 yaml=$tmp/$2.yaml run=$tmp/$2
    shift 2
    expect 0 '' "$binary" init --model sam-tiny --data "$people/$from" --out "$run" && cp "$tmp/out" "$yaml" || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$yaml" --set train.steps=2 --set train.effective_batch=1 --set data.image_size=64 --set data.holdout=0.34 --set device=cpu $FLAGS "$@" || return 1
    cp "$tmp/err" "$run.err"
}
has() { grep -Eq -- "$2" "$1" || { echo "no /$2/ in $1:"; cat "$1"; return 1; }; }
init_classes() { trains classes classes && has "$tmp/classes.yaml" '^  labels: classes$' && has "$tmp/classes/config.yaml" '^  labels: classes$'; }
check "init writes labels: classes; it trains" init_classes
init_soft() { trains soft soft && has "$tmp/soft.yaml" '^  labels: binary$' && has "$tmp/soft.yaml" '^  threshold: 128$'; }
check "init writes labels: binary and the threshold" init_soft
init_voc() { trains voc voc && has "$tmp/voc.yaml" '^  ignore: 255$'; }
check "init writes ignore: 255" init_voc
init_deep() { trains deep12 deep && has "$tmp/deep.yaml" '^  range: window$' && has "$tmp/deep.yaml" '^  window: \[399, 2700\]$' && has "$tmp/deep/config.yaml" '^  window: \[399, 2700\]$'; }
check "init writes the window of 16-bit images" init_deep
init_coco() { trains painted painted && has "$tmp/painted.err" 'data.train: annotations: 3 with iscrowd 1 and one part are used'; }
check "painted masks are trained on, and that is said" init_coco

# The same file with auto: the same weights. The run's folder keeps the decision, and a resume does
# not decide again: here the masks that made it are gone.
auto() {
    local yaml=$tmp/auto.yaml data=$tmp/moved
    cp -r "$people/classes" "$data" && grep -v '^  labels:\|^  train:' "$tmp/classes.yaml" | sed "s|^data:|data:\n  train: [\"$data\"]|; s|$tmp/classes|$tmp/auto|" >"$yaml" || return 1
    set -- --set train.steps=2 --set train.effective_batch=1 --set data.image_size=64 --set data.holdout=0.34 --set device=cpu
    # shellcheck disable=SC2086
    expect 0 'data.labels auto: classes, 3 values' "$binary" train "$yaml" "$@" $FLAGS && has "$tmp/auto/config.yaml" '^  labels: classes$' || return 1
    same "$tmp/auto/model/model.safetensors" "$tmp/classes/model/model.safetensors" || return 1
    cp "$data/masks/c.png" "$data/masks/a.png" && cp "$data/masks/c.png" "$data/masks/b.png" || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$yaml" "$@" --set train.steps=3 --resume $FLAGS && has "$tmp/auto/config.yaml" '^  labels: classes$' && ! grep 'data.labels auto' "$tmp/err"
}
check "auto decides as init, and a resume keeps it" auto

# Files of their own to evaluate on are read as those to train on: here each has one value, 1 or 3.
evaluated() {
    mkdir -p "$tmp/own_val/images" "$tmp/own_val/masks" && cp "$people/classes/images/"[bc].jpg "$tmp/own_val/images/" && cp "$people/classes/masks/"[bc].png "$tmp/own_val/masks/" || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" eval "$tmp/auto/config.yaml" --model "$tmp/classes/model" --csv "$tmp/eval.csv" --set data.labels=auto --set data.train="$people/classes" --set data.holdout=0 --set data.validation="$tmp/own_val" --set device=cpu $FLAGS || return 1
    has "$tmp/eval.csv" '^point,3,1,' && has "$tmp/eval.csv" '^point,1,1,'
}
check "data.validation is read as data.train" evaluated

# A store has the range of its images: the same weights, and the same range in `predict`.
packed() {
    expect 0 'data.range auto: window 399 to 2700' "$binary" data pack "$people/deep12" -o "$tmp/deep.pack" --model sam-tiny --size 64 && expect 0 '' "$binary" data verify "$tmp/deep.pack" || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/deep.yaml" --set data.format=packed --set "data.train=$tmp/deep.pack" --set data.range=auto --set data.window=null --set data.labels=auto --set train.steps=2 --set train.effective_batch=1 --set data.image_size=64 --set data.holdout=0.34 --set "train.out=$tmp/fromstore" --set device=cpu $FLAGS || return 1
    has "$tmp/fromstore/config.yaml" '^  window: \[399, 2700\]$' && same "$tmp/fromstore/model/model.safetensors" "$tmp/deep/model/model.safetensors"
}
check "a packed store bakes the range, and keeps it" packed
mapped() {
    expect 0 '' "$binary" data pack "$people/deep12" -o "$tmp/map" --layout memmap --size 64 --range 100,3000 && expect 0 '' "$binary" data inspect "$tmp/map/index.json" --json || return 1
    [ "$(json "$tmp/out" range.images_of_16_bits)" = 0 ] && [ "$(json "$tmp/out" range.brightness)" -gt 200 ]
}
check "a memory map bakes the range" mapped
predicted() {
    local image=$people/deep12/images/a.png
    expect 0 'a.png has more than 8 bits: values from 399 to 2700 become 0 to 255' "$binary" predict --model "$tmp/deep/model" "$image" --point 30,30 -o "$tmp/p.png" --set device=cpu || return 1
    expect 0 'values from 399 to 2700' "$binary" predict --model "$tmp/fromstore/model" "$image" --point 30,30 -o "$tmp/q.png" --set device=cpu && same "$tmp/p.png" "$tmp/q.png" || return 1
    expect 0 'values from 0 to 4095' "$binary" predict --model "$tmp/deep/model" "$image" --point 30,30 -o "$tmp/q.png" --set device=cpu --set data.window=0,4095 || return 1
    expect 0 'values from 399 to 2700 become 0 to 255 \(auto, from this image' "$binary" predict --model "$tmp/classes/model" "$image" --point 30,30 -o "$tmp/q.png" --set device=cpu || return 1
    expect 2 'data.range is window, and data.window is not given' "$binary" predict --model "$tmp/classes/model" "$image" --point 30,30 -o "$tmp/q.png" --set data.range=window
}
check "predict uses the run's range" predicted
counted() {
    local yaml=$tmp/crowd.yaml
    cat >"$yaml" <<EOF
model: {preset: sam-tiny}
data: {format: coco, train: $people/crowd/instances_train.json, validation: $people/crowd/instances_train.json, image_size: 16}
train: {steps: 1, effective_batch: 1, out: "$tmp/crowd"}
device: cpu
EOF
    # shellcheck disable=SC2086
    expect 0 'data.train: left out: 1 crowd .iscrowd 1 and several parts; data.crowds: true uses it.' "$binary" train "$yaml" --json $FLAGS || return 1
    has "$tmp/err" 'data.train: left out of [0-9]+ images?: [0-9]+ masks? too small to be trained on' && has "$tmp/err" 'data.validation: left out of 1 image: 1 mask too small to be scored' || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" eval "$yaml" --model "$tmp/crowd/model" --set device=cpu --json $FLAGS && [ "$(json "$tmp/out" too_small_masks)" = 1 ]
}
check "training and eval count what is left out" counted
summary
