#!/bin/bash
# run_predict.sh: `plimsoll predict` on the cases of tests/golden/predict: its scores, its output
# files and its errors. tests/test_predictor.c compares the masks with the reference.
#
#   bash tests/run_predict.sh        from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

cases=tests/golden/predict
# shellcheck disable=SC2086
predict() { "$binary" predict --model "$cases/model" "$@" $FLAGS; }
# ends STATUS PATTERN ARGUMENT...: the command ends with STATUS and prints PATTERN.
ends() {
    local status=$1 pattern=$2 rc=0
    shift 2
    # shellcheck disable=SC2086
    "$binary" predict "$@" $FLAGS >"$tmp/out" 2>&1 || rc=$?
    [ "$rc" = "$status" ] && grep -q -- "$pattern" "$tmp/out" || { echo "status $rc, expected $status with \"$pattern\":"; cat "$tmp/out"; return 1; }
    tail -n 1 "$tmp/out"
}
refused() {
    ends 2 "$1" --model "$cases/model" "${@:2}" -o "$tmp/no.png" && [ ! -e "$tmp/no.png" ]
}

scores() {
    local name image arguments
    while read -r name image arguments; do
        # shellcheck disable=SC2086
        predict "$cases/$image" $arguments -o "$tmp/$name.png" >"$tmp/said" || return 1
        awk -v name="$name" -v said="$(sed 's/.*IoU \([^,]*\),.*/\1/' "$tmp/said")" \
            '$1 == name { d = $2 - said; found = 1; if (d > 1e-3 || d < -1e-3) { print name, said, "expected", $2; exit 1 } }
             END { if (!found) exit 1 }' "$cases/scores.txt" || return 1
    done <"$cases/cases.txt"
    echo "$(wc -l <"$cases/cases.txt") cases"
}
check "scores of the reference" scores

writes() {
    predict "$cases/wide.png" --point 150,60 --box 20,10,180.5,100 -o "$tmp/m.png" --overlay "$tmp/o.png" --json "$tmp/m.json" || return 1
    for f in m o; do head -c 4 "$tmp/$f.png" | grep -q PNG || return 1; done
    grep -q '^{"size": *\[120, *200\], *"counts": *"[^"]*", *"score": *[0-9.]*, *"bbox": *\[[0-9, ]*\], *"area": *[0-9]*}$' "$tmp/m.json" || { cat "$tmp/m.json"; return 1; }
}
check "mask, overlay and run lengths" writes
several() {
    predict "$cases/wide.png" --point 150,60 -o "$tmp/a.b/several.png" --multimask 2>/dev/null && return 1 # no such folder
    mkdir -p "$tmp/a.b" && predict "$cases/wide.png" --point 150,60 -o "$tmp/a.b/several" --overlay "$tmp/over.png" --multimask --json "$tmp/s.json" || return 1
    [ -s "$tmp/a.b/several-1" ] && [ -s "$tmp/a.b/several-3" ] && [ -s "$tmp/over-2.png" ] && [ ! -e "$tmp/a.b/several" ] && grep -q '^\[{.*}, *{.*}, *{.*}\]$' "$tmp/s.json"
}
check "all candidates" several
memory() { ends 3 "does not fit" --model "$cases/model" "$cases/wide.png" --point 1,1 -o "$tmp/no.png" --memory 100KiB; }
check "a budget too small" memory
preset() { ends 0 "its weights are random" --model sam-tiny "$cases/tall.png" --box 3,3,30,40 -o "$tmp/p.png" && ends 0 "41 x 57" --model sam-tiny "$cases/tall.png" --point 3,3 -o "$tmp/p.png" --side 96; }
check "a preset, and another side" preset
# A model in a run's folder predicts at the size at which it was trained.
trained() {
    mkdir -p "$tmp/run/checkpoints" "$tmp/elsewhere" && cp -r "$cases/model" "$tmp/run/model" && cp -r "$cases/model" "$tmp/run/checkpoints/step-3" || return 1
    cp -r "$cases/model" "$tmp/elsewhere/other" && echo 'data: {format: sa1b, image_size: 96}' | tee "$tmp/run/config.yaml" >"$tmp/elsewhere/config.yaml" || return 1
    local m
    for m in run/model run/checkpoints/step-3 run/model/ elsewhere/other; do
        ends 0 "predicted IoU" --model "$tmp/$m" "$cases/wide.png" --point 150,60 -o "$tmp/t.png" --json "$tmp/t.json" >/dev/null || return 1
        cat "$tmp/t.json"
    done >"$tmp/got"
    for m in "--side 96" "--side 96" "--side 96" ""; do
        # shellcheck disable=SC2086
        predict "$cases/wide.png" --point 150,60 -o "$tmp/t.png" --json "$tmp/t.json" $m >/dev/null || return 1
        cat "$tmp/t.json"
    done >"$tmp/want"
    cmp "$tmp/got" "$tmp/want" && [ "$(sort -u "$tmp/got" | wc -l)" = 2 ] || return 1
    ends 0 "predicted IoU" --model "$tmp/run/model" "$cases/wide.png" --point 150,60 -o "$tmp/t.png" --json "$tmp/t.json" --side 128 >/dev/null
}
check "the image size of the training" trained
same_in_bf16() { ends 0 "predicted IoU 0.5[89]" --model "$cases/model" "$cases/wide.png" --point 150,60 -o "$tmp/b.png" --set memory.precision=bf16; }
check "in bf16" same_in_bf16

# --- everything ---------------------------------------------------------------------------------

# The annotations have SA-1B's format: our own reader accepts them with an image of that size.
everything() {
    mkdir -p "$tmp/set" && "$binary" data make "$tmp/made" --images 1 --size 96x64 --extracted >/dev/null && cp "$tmp"/made/sa_000000/sa_1.jpg "$tmp/set/" || return 1
    predict "$tmp/set/sa_1.jpg" --everything 5 --batch 4 --min-iou 0.1 --min-stability 0 --nms 0.9 -o "$tmp/all.png" --json "$tmp/set/sa_1.json" || return 1
    head -c 4 "$tmp/all.png" | grep -q PNG && "$binary" data verify "$tmp/set" | tail -n 1 | grep "0 bad samples"
}
check "everything, as an SA-1B pair that verifies" everything
batches() {
    for n in 1 25; do
        predict "$tmp/set/sa_1.jpg" --everything 5 --batch "$n" --min-iou 0.1 --min-stability 0 --nms 0.9 -o "$tmp/all$n.png" --json "$tmp/all$n.json" || return 1
    done
    cmp "$tmp/all1.png" "$tmp/all25.png"
}
check "the batch size changes nothing" batches
nothing() { ends 0 "0 masks" --model "$cases/model" "$cases/wide.png" --everything 3 --min-iou 99 -o "$tmp/all.png" --json "$tmp/none.json" && grep -q '"annotations": \[\]}' "$tmp/none.json"; }
check "nothing is good enough" nothing

# --- many images --------------------------------------------------------------------------------

# The masks of many images with one load of the model are those of a process each, for every shape
# of prompt.
many() {
    "$binary" data make "$tmp/many" --images 5 --size 96x72 --masks 3 --extracted >/dev/null && mkdir -p "$tmp/images" && cp "$tmp"/many/*/*.jpg "$tmp/images" || return 1
    { echo image,id,x0,y0,x1,y1,x,y,label,category
      for i in 1 2 3; do printf 'sa_%d.jpg,a,10,10,60,60,,,,7\nsa_%d.jpg,b,,,,,20,30,1,\nsa_%d.jpg,b,,,,,40,50,0,\nsa_%d.jpg,,,,,,40,50,,\n' $i $i $i $i; done; } >"$tmp/prompts.csv"
    predict "$tmp/images" --prompts "$tmp/prompts.csv" -o "$tmp/masks" --json "$tmp/masks.json" --batch 2 | grep "9 masks of 3 images" || return 1
    predict "$tmp/images/sa_2.jpg" --box 10,10,60,60 -o "$tmp/one.png" >/dev/null && cmp "$tmp/one.png" "$tmp/masks/sa_2-a.png" || return 1
    predict "$tmp/images/sa_2.jpg" --point 20,30 --point 40,50,0 -o "$tmp/one.png" >/dev/null && cmp "$tmp/one.png" "$tmp/masks/sa_2-b.png" || return 1
    predict "$tmp/images/sa_3.jpg" --point 40,50 -o "$tmp/one.png" >/dev/null && cmp "$tmp/one.png" "$tmp/masks/sa_3-3.png" || return 1
    grep -q '{"image_id": "sa_1.jpg", "file_name": "sa_1.jpg", "prompt_id": "a", "category_id": 7, "segmentation": {"size": \[72, 96\], "counts": "[^"]*"}, "score": 0.[0-9]*, "bbox": \[' "$tmp/masks.json"
}
check "a folder, with prompts from a CSV" many
common() { predict "$tmp/images" "$tmp/images/sa_1.jpg" --box 10,10,60,60 -o "$tmp/common" | grep "5 masks of 5 images" && cmp "$tmp/common/sa_2.png" "$tmp/masks/sa_2-a.png"; }
check "a folder, with one box for all" common
coco() {
    printf '{"images": [{"id": 4, "file_name": "sa_2.jpg"}], "annotations": [{"id": 9, "image_id": 4, "category_id": 3, "bbox": [10, 10, 50, 50]}, {"id": 10, "image_id": 4, "bbox": [80.5, 60, 15.7, 12.2]}]}' >"$tmp/images/coco.json"
    predict --prompts "$tmp/images/coco.json" -o "$tmp/coco" --json "$tmp/coco.out" | grep "2 masks of 1 image in" && cmp "$tmp/coco/sa_2-9.png" "$tmp/masks/sa_2-a.png" && grep -q '"image_id": 4, .*"prompt_id": "10"' "$tmp/coco.out"
}
check "prompts from a COCO file" coco
# Prompts from the masks of a dataset; as in training they have jitter, by the seed.
labels() {
    printf 'data: {format: sa1b, train: %s/many/*, max_masks: 3, image_size: 64}\n' "$tmp" >"$tmp/data.yaml"
    predict --data "$tmp/data.yaml" -o "$tmp/l1" | grep "15 masks of 5 images" && predict --data "$tmp/data.yaml" --prompt point -o "$tmp/l2" >/dev/null || return 1
    for i in 3 4; do predict --data "$tmp/data.yaml" --prompt train --set prompts.box=1 -o "$tmp/l$i" >/dev/null || return 1; done
    diff -r "$tmp/l3" "$tmp/l4" && ! diff -rq "$tmp/l1" "$tmp/l3" >/dev/null && [ "$(ls "$tmp/l2" | wc -l)" = 15 ]
}
check "prompts from labels" labels
# A broken image is named, and the others are written.
broken() {
    cp -r "$tmp/images" "$tmp/broken" && head -c 300 "$tmp/images/sa_3.jpg" >"$tmp/broken/sa_3.jpg" || return 1
    ends 1 "1 of 5 images could not be used, the first is sa_3.jpg" --model "$cases/model" "$tmp/broken" --point 5,5 -o "$tmp/b" && [ "$(ls "$tmp/b" | wc -l)" = 4 ]
}
check "a broken image among others" broken
# Images with equal names in several folders keep their folders; where that does not tell them apart
# nothing is predicted.
equal_names() {
    mkdir -p "$tmp/p/a" "$tmp/p/b" "$tmp/p/c/d" && cp "$tmp/images/sa_1.jpg" "$tmp/p/a/x.jpg" && cp "$tmp/images/sa_2.jpg" "$tmp/p/b/x.jpg" && cp "$tmp/images/sa_1.jpg" "$tmp/p/c/d/x.jpg" && cp "$tmp/images/sa_2.jpg" "$tmp/p/c/d_x.jpg" || return 1
    predict "$tmp/p/a" "$tmp/p/../p/b" --box 10,10,60,60 -o "$tmp/e1" --json "$tmp/e1.json" | grep -q "2 masks of 2 images" && cmp "$tmp/e1/b/x.png" "$tmp/masks/sa_2-a.png" && [ -f "$tmp/e1/a/x.png" ] && grep -q '"file_name": "b/x.jpg"' "$tmp/e1.json" || { find "$tmp/e1"; return 1; }
    printf 'image,id,x,y\nd/x.jpg,1,5,5\nd_x.jpg,1,5,5\n' >"$tmp/p/c/prompts.csv"
    predict --prompts "$tmp/p/c/prompts.csv" -o "$tmp/e2" >/dev/null && [ -f "$tmp/e2/d/x-1.png" ] && [ -f "$tmp/e2/d_x-1.png" ] || { find "$tmp/e2"; return 1; }
    predict "$tmp/p/a/x.jpg" "$tmp/p/c/d_x.jpg" --point 5,5 -o "$tmp/e3" >/dev/null && [ -f "$tmp/e3/x.png" ] && [ -f "$tmp/e3/d_x.png" ] || { find "$tmp/e3"; return 1; }
    cp "$tmp/p/a/x.jpg" "$tmp/p/a/x.jpeg"
    ends 2 "the masks of x.jpeg and x.jpg would both be x.png: rename one" --model "$tmp/none" "$tmp/p/a" --point 5,5 -o "$tmp/e4" && [ ! -e "$tmp/e4" ] || return 1
    ends 2 "the folder of all images" --model "$cases/model" "$tmp/p/b" "$tmp/p/c/d" --point 5,5 -o "$tmp/p" || return 1
    printf 'image,id,x,y\nx.jpg,1,5,5\nx-1.jpg,,5,5\n' >"$tmp/p/b/prompts.csv" && cp "$tmp/p/b/x.jpg" "$tmp/p/b/x-1.jpg"
    ends 2 "the masks of x-1.jpg and x.jpg would both be x-1.png" --model "$cases/model" --prompts "$tmp/p/b/prompts.csv" -o "$tmp/e5"
}
check "equal names of images: folders are kept, or nothing is written" equal_names
not_many() {
    echo image,x0 >"$tmp/bad.csv" && printf 'image,x,y\nsa_1.jpg,3,four\n' >"$tmp/four.csv" && printf 'image,x,y\nsa_9.jpg,3,4\n' >"$tmp/nine.csv" && printf 'image,id,x0,y0,x1,y1\nsa_1.jpg,a,3,4,9,9\nsa_1.jpg,a,5,4,9,9\n' >"$tmp/two.csv" || return 1
    refused "the header has no columns for prompts" "$tmp/images" --prompts "$tmp/bad.csv" && refused "line 2: y is \"four\", expected a number" "$tmp/images" --prompts "$tmp/four.csv" &&
        refused "there is no .*sa_9.jpg" "$tmp/images" --prompts "$tmp/nine.csv" && refused "sa_1.jpg has two boxes with the id a" "$tmp/images" --prompts "$tmp/two.csv" && refused "no prompts are given" "$tmp/images" && refused "is for one image" "$tmp/images" --everything 3 &&
        ends 2 "is a folder of the images" --model "$cases/model" "$tmp/images" --point 1,1 -o "$tmp/images" && ends 3 "does not fit" --model "$cases/model" "$tmp/images" --point 1,1 -o "$tmp/no" --memory 100KiB
}
check "refusals of many images" not_many

# --- refused --------------------------------------------------------------------------------------

wide=$cases/wide.png
check "a point outside" refused "outside of the image: .* has 200 x 120 pixels" "$wide" --point 201,3
check "a point that is none" refused "expected X,Y or X,Y,LABEL" "$wide" --point 3
check "a label that is none" refused "expected X,Y or X,Y,LABEL" "$wide" --point 3,4,2
check "a number that is none" refused "expected X,Y or X,Y,LABEL" "$wide" --point nan,4
check "a box outside" refused "outside of the image" "$wide" --box 10,10,300,50
check "an empty box" refused "is empty" "$wide" --box 10,10,10,50
check "half a box" refused "expected X0,Y0,X1,Y1" "$wide" --box 10,10,10
check "everything at no point" refused "--everything 0: expected a whole number above 0" "$wide" --everything 0
check "a side of 0" refused "--side 0: expected a whole number above 0" "$wide" --point 1,1 --side 0
png_alone() {
    ends 2 "-o $tmp/no.jpg: images are written as PNG" --model "$cases/model" "$wide" --point 1,1 -o "$tmp/no.jpg" &&
        ends 2 "--overlay $tmp/no.JPEG: images are written as PNG" --model "$cases/model" "$wide" --point 1,1 -o "$tmp/no.png" --overlay "$tmp/no.JPEG" && [ ! -e "$tmp/no.png" ]
}
check "a mask under the name of a JPEG" png_alone
# The same pixels as WebP and as PNG; a build without libwebp says so.
webp() {
    local at=tests/golden/pixels
    predict "$at/rgb.png" --point 9,9 -o "$tmp/of_png.png" >/dev/null || return 1
    if predict "$at/lossless.webp" --point 9,9 -o "$tmp/of_webp.png" >"$tmp/out" 2>&1; then cmp "$tmp/of_png.png" "$tmp/of_webp.png"
    else grep 'this build has no libwebp' "$tmp/out"; fi
}
check "a WebP image" webp
check "no prompt" refused "no prompt is given" "$wide"
check "no image" refused "no image is given" --point 1,1
check "an image that is not there" refused "nowhere.png" nowhere.png --point 1,1
check "something else" refused "not a JPEG, PNG, WebP or TIFF" tests/run_predict.sh --point 1,1
check "a damaged image" refused "truncated.png" tests/golden/image/truncated.png --point 1,1
check "everything and a point" refused "uses a grid of points" "$wide" --everything 3 --point 1,1
# An output that would overwrite the image: by its own name, by another name, or as one of several
# candidates.
over_the_image() {
    cp "$wide" "$tmp/own-1.png" && ln -sf own-1.png "$tmp/other.png" || return 1
    ends 2 "is the input image" --model "$cases/model" "$tmp/own-1.png" --point 1,1 -o "$tmp/other.png" &&
        ends 2 "is the input image" --model "$cases/model" "$tmp/own-1.png" --point 1,1 -o "$tmp/free.png" --overlay "$tmp/own-1.png" &&
        ends 2 "is the input image" --model "$cases/model" "$tmp/own-1.png" --point 1,1 -o "$tmp/free.png" --json "$tmp/own-1.png" &&
        ends 2 "is the input image" --model "$cases/model" "$tmp/own-1.png" --point 1,1 -o "$tmp/own.png" --multimask &&
        cmp "$wide" "$tmp/own-1.png" && [ ! -e "$tmp/free.png" ]
}
check "an output over the image" over_the_image
check "too small an input size" refused "a side of 3 pixels (--side.*expected a multiple of the model's patch size 8" "$wide" --point 1,1 --side 3
check "an input size that is not a multiple of the patch" refused "a side of 100 pixels (--side.*expected a multiple of the model's patch size 8" "$wide" --point 1,1 --side 100
check "a model of another kind" ends 2 "predicts no masks" --model tests/golden/clip_vision "$wide" --point 1,1 -o "$tmp/no.png"
check "a model that is not there" ends 2 "is not a folder" --model nowhere "$wide" --point 1,1 -o "$tmp/no.png"
check "an option that is none" ends 2 "did you mean --point" --model nowhere --pont 1,1
bad_preprocessor() {
    cp -r "$cases/model" "$tmp/bad" && sed -i 's/"image_std": \[/"image_std": [0,/' "$tmp/bad/preprocessor_config.json" || return 1
    ends 2 "preprocessor_config.json: image_std has 4 numbers, expected 3" --model "$tmp/bad" "$wide" --point 1,1 -o "$tmp/no.png"
}
check "a preprocessor that makes no sense" bad_preprocessor

summary
