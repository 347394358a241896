#!/bin/bash
# run_init.sh: `plimsoll init` on every kind of data folder: the file that it writes can be planned
# and trained.
#
#   bash tests/run_init.sh        from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

"$binary" data make "$tmp/tars" --images 6 --shards 2 --size 96x80 --masks 4 >"$tmp/log" || exit 2
"$binary" data make "$tmp/extracted" --images 6 --shards 2 --size 96x80 --masks 4 --extracted >"$tmp/log" || exit 2

# COCO's layout for the extracted images: annotations/instances_*.json and images/.
make_coco() {
    local dir=$tmp/coco set first last i f images= annotations=
    mkdir -p "$dir/annotations" "$dir/images" && cp "$tmp"/extracted/*/*.jpg "$dir/images/" || return 1
    for set in train:1:4 val:5:6; do
        IFS=: read -r set first last <<<"$set"
        images= annotations=
        for i in $(seq "$first" "$last"); do
            images+="${images:+, }{\"id\": $i, \"width\": 96, \"height\": 80, \"file_name\": \"sa_$i.jpg\"}"
            annotations+="${annotations:+, }{\"id\": $i, \"image_id\": $i, \"category_id\": 1, \"iscrowd\": 0, \"area\": 900, \"bbox\": [10, 10, 30, 30], \"segmentation\": [[10, 10, 40, 10, 40, 40, 10, 40]]}"
        done
        printf '{"images": [%s], "annotations": [%s], "categories": [{"id": 1, "name": "thing"}]}\n' "$images" "$annotations" >"$dir/annotations/instances_$set.json"
    done
}
make_png() { "$tools/forge_png" "$1"; }
make_pairs() {
    local dir=$tmp/pairs i
    mkdir -p "$dir/images" "$dir/masks" && cp "$tmp"/extracted/*/*.jpg "$dir/images/" || return 1
    for i in 1 2 3 4 5 6; do make_png "$dir/masks/sa_$i.png" || return 1; done
    mkdir -p "$tmp/csv" && cp -r "$dir/images" "$tmp/csv/images" && cp -r "$dir/masks" "$tmp/csv/labels" || return 1
    {
        echo image,mask,split
        for i in 1 2 3 4; do echo "images/sa_$i.jpg,labels/sa_$i.png,train"; done
        for i in 5 6; do echo "images/sa_$i.jpg,labels/sa_$i.png,val"; done
    } >"$tmp/csv/table.csv"
}
make_packed() {
    mkdir -p "$tmp/packed" && "$binary" data pack "$tmp/tars" -o "$tmp/packed/all.pack" --model sam-tiny &&
        "$binary" data pack "$tmp/tars" -o "$tmp/memmap" --layout memmap --size 256
}
# Ids below 256, as raw uint16: every byte of a text is followed by a zero byte. And the texts
# themselves.
make_tokens() {
    local f
    mkdir -p "$tmp/tokens" "$tmp/texts" && cp README.md "$tmp/texts/a.txt" && cp LICENSE "$tmp/texts/b.txt" || return 1
    for f in a b; do head -c 8192 "$tmp/texts/$f.txt" | tr '\n' ' ' | tr -c '\1-\177' x | sed 's/./&\x00/g' >"$tmp/tokens/$f.bin" || return 1; done
}

# works MODEL DATA FORMAT [PATTERN]: init writes that format and the pattern; plan accepts it; two
# steps are trained.
works() {
    local yaml=$tmp/run.yaml
    rm -rf "$tmp/run"
    "$binary" init --model "$1" --data "$2" --out "$tmp/run" >"$yaml" || return 1
    grep -q '^  budget: auto ' "$yaml" && grep -q "^  format: $3\$" "$yaml" && grep -q -- "${4:-.}" "$yaml" || { cat "$yaml"; return 1; }
    # shellcheck disable=SC2086
    "$binary" plan "$yaml" $FLAGS >"$tmp/out" || return 1
    # shellcheck disable=SC2086
    "$binary" train "$yaml" --set train.steps=2 --set train.effective_batch=1 --set train.eval_every=0 $FLAGS >"$tmp/out" 2>"$tmp/err" || { cat "$yaml" "$tmp/err"; return 1; }
    [ -s "$tmp/run/model/model.safetensors" ] && steps_once "$tmp/run" 2 && tail -n 2 "$tmp/out" | head -n 1
}

tool forge_png
check "COCO's files are made" make_coco
categories() {
    "$binary" data inspect "$tmp/coco/annotations/instances_train.json" >"$tmp/out" && grep -A 1 '^Categories of the masks: 1' "$tmp/out" | grep -E '^ +1 thing +4  100.0 %' || { cat "$tmp/out"; return 1; }
    if grep predicted_iou "$tmp/out"; then return 1; fi # COCO's masks are not rated
    "$binary" data inspect "$tmp/coco/annotations/instances_train.json" --json >"$tmp/out" && grep -qF '"categories": [{"number": 1, "name": "thing", "masks": 4}]' "$tmp/out" || { cat "$tmp/out"; return 1; }
    "$binary" data inspect "$tmp/tars" >"$tmp/out" && grep -q predicted_iou "$tmp/out" && ! grep Categories "$tmp/out"
}
check "inspect counts the masks of each category" categories
turned() {
    sed 's/"width": 96, "height": 80/"width": 80, "height": 96/g' "$tmp/coco/annotations/instances_val.json" >"$tmp/turned.json" || return 1
    expect 1 '2 of 2 samples' "$binary" data verify "$tmp/turned.json" --images "$tmp/coco/images" && grep 'the image is 96x80, its masks are for 80x96: turned by its EXIF orientation' "$tmp/out"
}
check "annotations for images that an EXIF orientation turns" turned
check "pairs and a table are made" make_pairs
check "stores are packed" make_packed
check "token files are made" make_tokens
check "tar shards" works sam-tiny "$tmp/tars" sa1b '^  holdout: '
check "extracted shards" works sam-tiny "$tmp/extracted/" sa1b
check "COCO, with files of its own to evaluate on" works sam-tiny "$tmp/coco" coco '^  validation: .*instances_val'
check "images/ and masks/" works sam-tiny "$tmp/pairs" pairs
check "a table with a split column" works sam-tiny "$tmp/csv" csv '^  validation_split: val'
check "a packed store" works sam-tiny "$tmp/packed" packed '^  image_size: 128'
# A store for training and one to evaluate on: the second is not trained on.
parts() {
    mkdir -p "$tmp/parts" && cp "$tmp/packed/all.pack" "$tmp/parts/train.pack" && cp "$tmp/packed/all.pack" "$tmp/parts/val.pack" || return 1
    expect 0 '' "$binary" init --model sam-tiny --data "$tmp/parts" && grep '^  train: \[".*/train.pack"\]' "$tmp/out" && grep '^  validation: \[".*/val.pack"\]' "$tmp/out" && ! grep 'holdout' "$tmp/out"
}
check "stores to train and to evaluate on" parts
check "an index with a memory map" works sam-tiny "$tmp/memmap" packed index.json
check "tokens" works llama-tiny "$tmp/tokens" tokens '^  validation: .*b.bin'
# numpy.save's files, with the names that the guide writes.
make_npy() {
    local f n
    mkdir -p "$tmp/npy" || return 1
    for f in train val; do
        n=$(($(wc -c <"$tmp/tokens/a.bin") / 2))
        { printf '\223NUMPY\001\000v\000%-117s\n' "{'descr': '<u2', 'fortran_order': False, 'shape': ($n,), }" && cat "$tmp/tokens/a.bin"; } >"$tmp/npy/$f.npy" || return 1
    done
}
check "token files of NumPy are made" make_npy
check "tokens of NumPy" works llama-tiny "$tmp/npy" tokens '^  validation: .*val.npy'
cp -r "$tmp/run/model" "$tmp/trained" # because `works` removes the run
check "a trained folder" works "$tmp/trained" "$tmp/tokens" tokens '^  path: '

# Text is refused with what to do; --bytes is for those who mean it.
says_bytes() { expect 2 "$1: it holds $2, not token ids. The model's tokenizer .*data.format: bytes" "$binary" init --model llama-tiny --data "$3"; }
printf '{"messages": []}\n' >"$tmp/chat.jsonl"
printf '{"question": 1}\n' >"$tmp/other.jsonl"
for p in texts/a.txt texts; do check "plain text for a preset: $p" expect 2 'plain text.*: llama-tiny is a preset, which has no tokenizer; give --model .*`init --bytes`' "$binary" init --model llama-tiny --data "$tmp/$p"; done
check "JSON records of no known format" says_bytes other.jsonl 'JSON records' "$tmp/other.jsonl"
check "conversations for a preset" expect 2 'llama-tiny is a preset, which has no tokenizer' "$binary" init --model llama-tiny --data "$tmp/chat.jsonl"
# What is in a .bin is looked at: text in UTF-16, an image, ids that the model does not have.
{ printf '\xff\xfe' && printf 'Once upon a time there was a text of two bytes a letter. %.0s' 1 2 3 | sed 's/./&\x00/g'; } >"$tmp/utf16.bin"
check "text in UTF-16 in a .bin" says_bytes utf16.bin 'text in UTF-16' "$tmp/utf16.bin"
cp tests/golden/layouts/image.png "$tmp/image.bin"
check "an image in a .bin" says_bytes image.bin 'a PNG image' "$tmp/image.bin"
head -c 4096 "$tmp/tokens/a.bin" | tr '\000' '\001' >"$tmp/ids.bin" && printf '\001\001' >>"$tmp/ids.bin"
head -c 4096 "$tmp/tokens/a.bin" >"$tmp/CAPITALS.BIN"
check "ids that the vocabulary does not have" expect 2 "ids.bin: token 0 is [0-9]+, but the model's vocabulary has 256 ids" "$binary" init --model llama-tiny --data "$tmp/ids.bin"
check ".BIN is .bin" works llama-tiny "$tmp/CAPITALS.BIN" tokens
bytes() {
    rm -rf "$tmp/run"
    "$binary" init --model llama-tiny --data "$tmp/texts" --bytes --out "$tmp/run" >"$tmp/run.yaml" && grep -q '^  format: bytes$' "$tmp/run.yaml" && grep '^  validation: .*b.txt' "$tmp/run.yaml" || return 1
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set train.epochs=null --set train.steps=2 --set train.effective_batch=1 --set train.eval_every=0 $FLAGS >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    steps_once "$tmp/run" 2
}
check "the bytes of texts" bytes

# The folder of a run: its own for each dataset, also for datasets of the same name, and for a
# second run.
folder_of() { (cd "$tmp/here" && "$program" init --model llama-tiny --data "$1") | sed -n 's/^  out: "\(.*\)"/\1/p'; }
folders() {
    local program=$PWD/$binary d
    case $binary in /*) program=$binary ;; esac
    mkdir -p "$tmp/here/one/train" "$tmp/here/two/train" && for d in one two; do cp "$tmp"/tokens/*.bin "$tmp/here/$d/train" || return 1; done
    for d in one/train two/train/ "$tmp/here/two/train" one/train/a.bin "one/train/*.bin" "$tmp/tokens"; do folder_of "$d"; done >"$tmp/folders"
    cat "$tmp/folders"
    [ "$(sed -n 1p "$tmp/folders")" = runs/llama-tiny-one-train ] && [ "$(sed -n 2p "$tmp/folders")" = runs/llama-tiny-two-train ] &&
        [ "$(sed -n 3p "$tmp/folders")" = runs/llama-tiny-two-train ] && [ "$(sort -u "$tmp/folders" | wc -l)" = 5 ] || return 1
    mkdir -p "$tmp/here/runs/llama-tiny-one-train" && [ "$(folder_of one/train)" = runs/llama-tiny-one-train-2 ]
}
check "a run folder for each dataset" folders

# counts MODEL SAMPLES: the number of steps in init's comment is that of the run, with about one
# evaluation per epoch.
counts() {
    rm -rf "$tmp/counted" "$tmp/counts" && "$binary" data make "$tmp/counted" --images "$2" --size 48x40 --masks 2 >/dev/null || return 1
    "$binary" init --model "$1" --data "$tmp/counted" --out "$tmp/counts" >"$tmp/run.yaml" && grep -Eq "once an epoch" "$tmp/run.yaml" || return 1
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set data.image_size=32 --set train.eval_every=0 --set train.save_every=0 --json $FLAGS >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    grep '# [0-9]* steps of' "$tmp/run.yaml" && grep -q "# $(json "$tmp/out" steps) steps of" "$tmp/run.yaml"
}
for model in sam-tiny tinysam-tiny; do check "as many steps as init's comment states: $model" counts $model 14; done

# A store packed at the model's sizes trains the same weights as the shards.
same_losses() {
    local data
    for data in tars packed; do
        works sam-tiny "$tmp/$data" "$( [ $data = tars ] && echo sa1b || echo packed)" && cp "$tmp/run/model/model.safetensors" "$tmp/$data.safetensors" || return 1
    done
    same "$tmp/tars.safetensors" "$tmp/packed.safetensors"
}
check "shards and their store train the same weights" same_losses

mkdir -p "$tmp/nothing" && echo x >"$tmp/nothing/notes.md"
check "nothing that is known" expect 2 'no known format among 1 file \(notes.md\)' "$binary" init --model sam-tiny --data "$tmp/nothing"
check "no such folder" expect 2 'none: no such file or folder' "$binary" init --model sam-tiny --data "$tmp/none"
check "images for a language model" expect 2 'which needs tokens' "$binary" init --model llama-tiny --data "$tmp/tars"
check "tokens for a model of masks" expect 2 'which needs images with masks' "$binary" init --model sam-tiny --data "$tmp/tokens"
check "an unknown model" expect 2 'one of the presets' "$binary" init --model sam-tin --data "$tmp/tars"
check "no data" expect 2 'no data is given' "$binary" init --model sam-tiny
summary
