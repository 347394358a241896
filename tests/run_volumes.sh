#!/bin/bash
# run_volumes.sh: volumes and TIFF files as datasets: folders of NIfTI, nnU-Net, the Decathlon,
# DICOM series, TIFF stacks, tables. init, inspect, pack, train and eval take them, and what cannot
# be used is one clear line.
#
#   bash tests/run_volumes.sh        from the repository's root, after make; see run_lib.sh
#
# The files come from tests/golden/make_volumes.py and examples/make_ct.py.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
from=$PWD/tests/golden/volumes
export XDG_CACHE_HOME=$tmp/cache

put() { # put FILE PATH...
    local file=$from/$1 path
    shift
    for path; do mkdir -p "$tmp/${path%/*}" && cp -r "$file" "$tmp/$path" || return 1; done
}
inspects() { # inspects FOLDER (KEY VALUE | has TEXT)... [-- OPTION...]
    local folder=$tmp/$1
    shift
    local want=()
    while (($#)) && [ "$1" != -- ]; do want+=("$1" "$2"); shift 2; done
    (($#)) && shift
    "$binary" data inspect "$folder" --json "$@" >"$tmp/inspected" || return 1
    set -- "${want[@]}"
    while (($#)); do
        if [ "$1" = has ]; then
            tr -d ' \n' <"$tmp/inspected" | grep -qF -- "$2" || { echo "no $2"; cat "$tmp/inspected"; return 1; }
        else
            [ "$(json "$tmp/inspected" "$1")" = "$2" ] || { echo "$1 is $(json "$tmp/inspected" "$1"), expected $2"; return 1; }
        fi
        shift 2
    done
    echo "$(json "$tmp/inspected" samples) samples, $(json "$tmp/inspected" masks) masks"
}
trains() { # trains FOLDER [OPTION...]: init, two steps, and an evaluation
    local data=$tmp/$1
    shift
    rm -rf "$tmp/run"
    "$binary" init --model sam-tiny --data "$data" --out "$tmp/run" >"$tmp/run.yaml" || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/run.yaml" --set data.image_size=32 --set train.steps=2 --set train.effective_batch=1 --set train.eval_every=2 --set train.worst=1 --set device.threads=1 $FLAGS "$@" &&
        steps_once "$tmp/run" 2 && grep -q eval_loss "$tmp/run/metrics.jsonl"
}
refused() { # refused TEXT FOLDER [OPTION...]
    local text=$1 folder=$tmp/$2
    shift 2
    expect 2 "$text" "$binary" data inspect "$folder" "$@"
}

# --- NIfTI ------------------------------------------------------------------------------------

for c in a b c; do put lps.nii.gz nnunet/imagesTr/${c}_0000.nii.gz && put labels.nii.gz nnunet/labelsTr/$c.nii.gz; done
echo '{"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1, "lesion": 2}, "numTraining": 3, "file_ending": ".nii.gz"}' >"$tmp/nnunet/dataset.json"
check "nnU-Net: slices with labels, names of dataset.json" inspects nnunet samples 9 masks 12 bad 0 labels.kind classes range.kind window range.low -160 range.high 240 has '"name":"liver"' has '"name":"lesion"' has '"width":7,"height":6'
check "nnU-Net: coronal slices" inspects nnunet samples 12 has '"width":7,"height":5' -- --slice-axis coronal
check "nnU-Net: sagittal slices" inspects nnunet samples 12 has '"width":6,"height":5' -- --slice-axis sagittal
check "nnU-Net: init, train, evaluate" trains nnunet
holdout() { # of three cases of 3 slices, a third is one case
    trains nnunet --set data.holdout=0.3 && grep -q 'over 3 samples' "$tmp/out" "$tmp/err"
}
check "data.holdout keeps the slices of a volume together" holdout
counts() { # the numbers in the run file are those of the split, and one volume alone is said
    expect 0 '' "$binary" init --model sam-tiny --data "$tmp/nnunet" --out "$tmp/run" && grep -q '6 samples to train on, 3 to evaluate on' "$tmp/out" && grep -q 'held out for validation: 3 of 9' "$tmp/out" || return 1
    mkdir -p "$tmp/single/images" "$tmp/single/labels" && put lps.nii.gz single/images/a.nii.gz && put labels.nii.gz single/labels/a.nii.gz || return 1
    expect 0 'all 3 samples are of one group, a: data.holdout holds out some of them' "$binary" init --model sam-tiny --data "$tmp/single" --out "$tmp/run" && grep -q '# warning: all 3 samples' "$tmp/out"
}
check "init: the numbers of a split by volume" counts
check "2.5D and a window of one's own" trains nnunet --set data.neighbours=true --set 'data.window=[-100, 300]'
check "the worst masks are drawn" test -d "$tmp/run/worst"
check "all slices" trains nnunet --set data.slices=all
check "a category by its name" trains nnunet --set data.categories=lesion
check "no such category" expect 2 'category spleen: ' "$binary" train "$tmp/run.yaml" --set data.categories=spleen --set "train.out=$tmp/none"

mkdir -p "$tmp/plain/images" "$tmp/plain/labels"
for c in a b; do put lps.nii.gz plain/images/$c.nii.gz && put labels_float.nii.gz plain/labels/$c.nii.gz; done
check "labels stored as float64" inspects plain samples 6 masks 8 labels.kind classes
printf 'image,mask\nimages/a.nii.gz,labels/a.nii.gz\nimages/b.nii.gz,labels/b.nii.gz\n' >"$tmp/plain/table.csv"
check "a table of volumes" inspects plain/table.csv samples 6 masks 8

for c in a b; do put four.nii.gz msd/imagesTr/$c.nii.gz && put four_labels.nii.gz msd/labelsTr/$c.nii.gz; done
check "a volume of 4 dimensions is one line" refused 'it has 4 dimensions \(6 x 5 x 4 x 3\): expected a volume of 3; if the fourth are modalities' msd
check "one modality" inspects msd samples 4 masks 4 -- --modalities 2
check "three modalities" inspects msd samples 4 -- --modalities 0,1,2
check "no such modality" refused 'data.modalities names 3, and it has 3' msd --modalities 3
echo '{"modality": {"0": "FLAIR", "1": "T1w", "2": "T2w"}, "labels": {"0": "background", "1": "edema", "2": "tumor"}, "training": []}' >"$tmp/msd/dataset.json"
check "the Decathlon's dataset.json: the first modality" inspects msd samples 4 has '"name":"edema"' range.kind percentiles
check "the Decathlon: train on three modalities" trains msd --set 'data.modalities=[0, 1, 2]'
for c in a b; do for m in 0 1 2; do put lps.nii.gz several/imagesTr/${c}_000$m.nii.gz; done; put labels.nii.gz several/labelsTr/$c.nii.gz; done
check "nnU-Net with three files a case" inspects several samples 6 masks 8 -- --modalities 0,1,2
check "nnU-Net with three files a case: train" trains several --set 'data.modalities=[2, 1, 0]'

# --- pack ----------------------------------------------------------------------------------------

packs() {
    expect 0 '' "$binary" data pack "$tmp/nnunet" -o "$tmp/a.pack" --model sam-tiny --size 32 && expect 0 '' "$binary" data verify "$tmp/a.pack" || return 1
    inspects a.pack samples 9 masks 12 range.kind window range.low -160 range.high 240
}
check "pack keeps masks, names and the window" packs
same_place() { # labels that lie at the same place in another orientation give the same store
    for c in a b c; do put lps.nii.gz turned/imagesTr/${c}_0000.nii.gz && put ../scans/labels_RAS.nii.gz turned/labelsTr/$c.nii.gz; done
    cp "$tmp/nnunet/dataset.json" "$tmp/turned" && expect 0 '' "$binary" data pack "$tmp/turned" -o "$tmp/turned.pack" --model sam-tiny --size 32 && cmp "$tmp/a.pack" "$tmp/turned.pack"
}
check "labels in another orientation lie on their image" same_place
put lps.nii.gz moved/images/a.nii.gz && put ../scans/shifted.nii.gz moved/labels/a.nii.gz
check "labels between the voxels of their image" refused 'labels/a.nii.gz: it does not lie on the voxels of its image' moved
same_bits() { # training on the store and on the volumes is the same
    trains nnunet --set data.shuffle=false && cp "$tmp/run/model/model.safetensors" "$tmp/volumes.safetensors" || return 1
    rm -rf "$tmp/run"
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/run.yaml" --set data.image_size=32 --set train.steps=2 --set train.effective_batch=1 --set train.eval_every=2 --set train.worst=0 --set device.threads=1 $FLAGS --set data.shuffle=false \
        --set data.format=packed --set "data.train=$tmp/a.pack" --set data.images=null --set data.masks=null --set data.image_suffix=null --set data.range=auto --set data.window=null --set data.labels=auto || return 1
    same "$tmp/run/model/model.safetensors" "$tmp/volumes.safetensors"
}
check "training on the store gives the same bits" same_bits

whole_cases() { # stores keep which slices belong together, in both layouts
    expect 0 '' "$binary" data pack "$tmp/nnunet" -o "$tmp/a.map" --layout memmap --model sam-tiny --size 32 || return 1
    for store in "$tmp/a.pack" "$tmp/a.map/index.json"; do
        expect 0 '' "$binary" eval "$tmp/run.yaml" --model "$tmp/run/model" --images "$tmp/images.csv" --set data.image_size=32 --set device=cpu --set data.holdout=0.3 --set data.split_seed=1 --set data.format=packed \
            --set "data.train=$store" --set data.images=null --set data.masks=null --set data.image_suffix=null --set data.range=auto --set data.window=null --set data.labels=auto || return 1
        [ "$(tail -n +2 "$tmp/images.csv" | cut -d, -f1 | sort -u | wc -l)" = 3 ] && [ "$(tail -n +2 "$tmp/images.csv" | cut -d_ -f1 | sort -u | wc -l)" = 1 ] || { cat "$tmp/images.csv"; return 1; }
    done
}
check "data.holdout of a store keeps the slices of a volume together" whole_cases

# --- predictions ----------------------------------------------------------------------------------

predicts() { # a label volume for each volume of the dataset, of its geometry; prompts from the label volumes
    trains nnunet || return 1
    expect 0 '' "$binary" predict --model "$tmp/run/model" --data "$tmp/run.yaml" -o "$tmp/predicted" --set data.holdout=0 --set train.eval_every=0 && grep -q '^3 label volumes in' "$tmp/out" || return 1
    geometry() { gzip -dc "$1" | tail -c +253 | head -c 76; } # qform and sform
    for c in a b c; do
        [ "$(gzip -dc "$tmp/predicted/$c.nii.gz" | wc -c)" = $((352 + 7 * 6 * 5)) ] && cmp <(geometry "$tmp/predicted/$c.nii.gz") <(geometry "$tmp/nnunet/imagesTr/${c}_0000.nii.gz") || return 1
    done
}
check "volumes come back as volumes" predicts
one_volume() {
    expect 0 '5 slices; values from -160 to 240' "$binary" predict --model "$tmp/run/model" "$from/lps.nii.gz" --box 1,1,5,5 --slices 1-3 -o "$tmp/one.nii.gz" && grep -q '^1 label volume in' "$tmp/out" || return 1
    expect 0 '' "$binary" predict --model "$tmp/run/model" "$from/series" --box 5,5,30,30 --slices 1 -o "$tmp/series.nii" && [ "$(wc -c <"$tmp/series.nii")" = $((352 + 40 * 36 * 3)) ]
}
check "one volume, and a DICOM series" one_volume
check "a slice that is not there" expect 2 'slices 3-9: .* has the slices 0 to 4' "$binary" predict --model "$tmp/run/model" "$from/lps.nii.gz" --box 1,1,5,5 --slices 3-9 -o "$tmp/one.nii.gz"
check "the masks of a volume are a volume" expect 2 'expected a name that ends with .nii or .nii.gz' "$binary" predict --model "$tmp/run/model" "$from/lps.nii.gz" --box 1,1,5,5 -o "$tmp/one.png"
check "a TIFF" with libtiff expect 0 'grey16.tif.*8.*-160 to 240' "$binary" predict --model "$tmp/run/model" "$from/grey16.tif" --box 5,5,30,30 -o "$tmp/one.png"
spacing() { expect 0 '' "$binary" eval "$tmp/run.yaml" --model "$tmp/run/model" --own-size --structures "$tmp/structures.csv" --set data.image_size=32 --set device=cpu && grep -q 'by the spacing of each volume' "$tmp/out" && grep -q liver "$tmp/structures.csv" && grep -A 2 'of whole volumes, in three dimensions' "$tmp/out" | tail -n 1; }
check "scores at the volume's own size, in mm, by structure" spacing

# --- memory ---------------------------------------------------------------------------------------

big() { # a volume of 2 GiB, of which most is a hole in the file: slices are read within 64 MiB beyond the plan
    mkdir -p "$tmp/big/images" "$tmp/big/labels" || return 1
    local side='\x00\x04' head
    for kind in images:4:16 labels:2:8; do
        IFS=: read -r head type bits <<<"$kind"
        head -c 352 "$from/down.nii" >"$tmp/big/$head/a.nii" || return 1
        printf "\\x03\\x00$side$side$side" | dd of="$tmp/big/$head/a.nii" bs=1 seek=40 conv=notrunc 2>/dev/null
        printf "\\x0$type\\x00\\x$(printf %02x "$bits")\\x00" | dd of="$tmp/big/$head/a.nii" bs=1 seek=70 conv=notrunc 2>/dev/null
        truncate -s $((352 + bits / 8 * 1024 * 1024 * 1024)) "$tmp/big/$head/a.nii" || return 1
    done
    for z in 3 500 501 900; do head -c 51200 /dev/zero | tr '\0' '\1' | dd of="$tmp/big/labels/a.nii" bs=1024 seek=$(((1024 * 1024 * z + 1024 * 300) / 1024)) conv=notrunc 2>/dev/null; done
    "$binary" init --model sam-tiny --data "$tmp/big" --out "$tmp/bigrun" >"$tmp/big.yaml" || return 1
    # shellcheck disable=SC2086
    "$binary" train "$tmp/big.yaml" --set train.steps=2 --set train.effective_batch=1 --set train.eval_every=2 --set train.worst=0 --set device=cpu $FLAGS --set train.out="$tmp/bigrun" >"$tmp/out" 2>"$tmp/err" &
    local pid=$! peak=0 now
    while now=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p' /proc/$pid/status 2>/dev/null) && [ "$now" ]; do peak=$now; sleep 0.05; done
    wait $pid || { cat "$tmp/err"; return 1; }
    local arena
    arena=$(json "$tmp/bigrun/plan.json" arena_bytes) || return 1
    echo "peak $((peak / 1024)) MiB, plan $((arena >> 20)) MiB"
    [ "$peak" -gt 0 ] && [ "$peak" -le $((arena / 1024 + 65536)) ]
}
check "a volume of 2 GiB within 64 MiB beyond the plan" big

too_large() { # the slices of a .nii.gz that data.sample_memory has no room for are refused by its header
    expect 2 'a.nii:.*1024 x 1024 voxels takes 8 MiB;.*4 \(data.sample_memory\)' "$binary" train "$tmp/big.yaml" --set data.sample_memory=4 --set device=cpu --set "train.out=$tmp/none"
}
check "a volume whose slices are larger than data.sample_memory" too_large
room() { # init writes what the slices of the data need
    for head in images labels; do # float64 of 3000 x 3000 x 2, all a hole, and labels
        mkdir -p "$tmp/wide/$head" && head -c 352 "$from/down.nii" >"$tmp/wide/$head/a.nii" || return 1
        printf '\x03\x00\xb8\x0b\xb8\x0b\x02\x00' | dd of="$tmp/wide/$head/a.nii" bs=1 seek=40 conv=notrunc 2>/dev/null
        if [ "$head" = images ]; then printf '\x40\x00\x40\x00'; else printf '\x02\x00\x08\x00'; fi | dd of="$tmp/wide/$head/a.nii" bs=1 seek=70 conv=notrunc 2>/dev/null
        truncate -s $((352 + 3000 * 3000 * 2 * 8)) "$tmp/wide/$head/a.nii" || return 1
    done
    head -c 3000000 /dev/zero | tr '\0' '\1' | dd of="$tmp/wide/labels/a.nii" bs=32 seek=31261 conv=notrunc 2>/dev/null
    head -c 3000000 /dev/zero | tr '\0' '\1' | dd of="$tmp/wide/labels/a.nii" bs=32 seek=312511 conv=notrunc 2>/dev/null
    expect 0 '' "$binary" init --model sam-tiny --data "$tmp/wide" --out "$tmp/run" && grep -q 'sample_memory: 164 ' "$tmp/out"
}
check "init: memory for large slices" room

# --- TIFF, DICOM --------------------------------------------------------------------------------

for c in a b; do put stack16.tif tiff/images/$c.tif && put stack_labels.tif tiff/masks/$c.tif; done
check "TIFF stacks" with libtiff inspects tiff samples 8 labels.kind classes labels.values 2 range.images_of_16_bits 8 has '"width":23,'
check "TIFF stacks: train" with libtiff trains tiff
stacks() { # the pages of a stack come back as the slices of a volume
    expect 0 '' "$binary" predict --model "$tmp/run/model" --data "$tmp/run.yaml" -o "$tmp/stacks" --set data.holdout=0 --set train.eval_every=0 && grep -q '^2 label volumes in' "$tmp/out" || return 1
    local pages
    pages=$(($(gzip -dc "$tmp/stacks/a.nii.gz" | wc -c) - 352))
    expect 0 '' "$binary" predict --model "$tmp/run/model" "$tmp/tiff/images/a.tif" --box 5,5,15,15 --slices 1-2 -o "$tmp/stack.nii.gz" && grep -q '^1 label volume in' "$tmp/out" &&
        [ "$((pages % 23))" = 0 ] && [ "$(gzip -dc "$tmp/stack.nii.gz" | wc -c)" = $((352 + pages)) ] && [ "$(gzip -dc "$tmp/stack.nii.gz" | tail -c +353 | tr -d '\0' | wc -c)" -gt 0 ]
}
check "TIFF stacks come back as label volumes" with libtiff stacks
put grey16.tif one/images/a.tif one/images/b.tif && put grey8.tif one/masks/a.tif one/masks/b.tif
check "a TIFF that is no mask" with libtiff refused 'looks like an image and not like a mask' one
for c in a b; do put series dicom/images/$c && put series_labels.nii.gz dicom/labels/$c.nii.gz; done
check "DICOM series with label volumes" inspects dicom samples 2 masks 2 has '"width":40,"height":36' range.kind window range.low -160
check "DICOM series: train" trains dicom
mkdir "$tmp/dicom/images/c" && cp "$from"/series/*.dcm "$from"/series_rle/*.dcm "$tmp/dicom/images/c" && cp "$tmp/dicom/labels/a.nii.gz" "$tmp/dicom/labels/c.nii.gz"
put ../scans/gap gap/images/a && put series_labels.nii.gz gap/labels/a.nii.gz
check "a series with a missing slice" refused '1 slice is missing between slices 2 and 3 \(06.dcm and 09.dcm\), which are 4 mm apart' gap
check "two series in a folder: the others are used" expect 0 '1 of 3.*several series' "$binary" data inspect "$tmp/dicom"

# --- what cannot be used ------------------------------------------------------------------------

for c in a b; do put lps.nii.gz bad/images/$c.nii.gz && put labels.nii.gz bad/labels/$c.nii.gz; done
head -c 300 "$from/lps.nii.gz" >"$tmp/bad/images/b.nii.gz"
check "a cut file is named, the others are used" expect 0 "1 of 2 volumes cannot be used, such as .*b.nii.gz: its header describes 772 bytes, and it has [0-9]+: it ends too early" "$binary" data inspect "$tmp/bad"
head -c 300 "$from/lps.nii.gz" >"$tmp/bad/images/a.nii.gz"
check "only cut files" refused 'a.nii.gz: its header describes 772 bytes' bad
put float32.nii.gz bad/images/a.nii.gz && put float32.nii.gz bad/images/b.nii.gz
check "labels of another size" refused 'labels/a.nii.gz: it has 7 x 6 x 5 voxels, and its image 5 x 4 x 3' bad
put lps.nii.gz bad/images/a.nii.gz && put lps.nii.gz bad/labels/a.nii.gz && rm "$tmp"/bad/*/b.nii.gz
check "a CT as labels" refused 'and a mask was expected: whole numbers from 0 to 65535' bad
check "two modalities are no image" expect 2 'data.modalities names 2 modalities' "$binary" train "$tmp/run.yaml" --set 'data.modalities=[0, 1]' --set "train.out=$tmp/none"
summary
