#!/bin/bash
# run_layouts.sh: the folders of public datasets. `plimsoll init` understands each of them, two
# steps are trained with what it writes, and `data inspect` reads the same samples; what is not read
# is refused by name.
#
#   bash tests/run_layouts.sh        from the repository's root, after make; see run_lib.sh
#
# The files come from tests/golden/layouts/make.py.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
from=$PWD/tests/golden/layouts

# put FILE PATH...: copies a file to each path below $tmp and makes the folders.
put() {
    local file=$from/$1 path
    shift
    for path; do mkdir -p "$tmp/${path%/*}" && cp "$file" "$tmp/$path" || return 1; done
}
# pairs NAMES IMAGE IMAGE-PATTERN MASK MASK-PATTERN: for each name; % in a pattern is the name.
pairs() {
    local name
    for name in $1; do put "$2" "${3//%/$name}" && put "$4" "${5//%/$name}" || return 1; done
}

# works FOLDER SAMPLES FORMAT [LINE...]: init prints the format and the lines; two steps are trained
# and evaluated; inspect finds that many samples, and init the same number to train on or to hold
# out.
works() {
    local data=$tmp/$1 samples=$2 format=$3 line yaml=$tmp/run.yaml
    shift 3
    rm -rf "$tmp/run"
    "$binary" init --model sam-tiny --data "$data" --out "$tmp/run" >"$yaml" || return 1
    for line in "format: $format" "$@"; do
        grep -Eq -- "^  $line( |\$)" "$yaml" || { echo "no line $line in:"; cat "$yaml"; return 1; }
    done
    # shellcheck disable=SC2086
    "$binary" train "$yaml" --set data.image_size=32 --set train.steps=2 --set train.effective_batch=1 --set train.eval_every=2 --set train.worst=0 --set device.threads=1 $FLAGS >"$tmp/out" 2>"$tmp/err" ||
        { cat "$yaml" "$tmp/err"; return 1; }
    steps_once "$tmp/run" 2 && grep -q eval_loss "$tmp/run/metrics.jsonl" || return 1
    "$binary" data inspect "$data" --json >"$tmp/inspected" || return 1
    [ "$(json "$tmp/inspected" samples)" = "$samples" ] && [ "$(json "$tmp/inspected" bad)" = 0 ] || { cat "$tmp/inspected"; return 1; }
    echo "$samples samples, $(json "$tmp/inspected" masks) masks"
}

# --- two folders ----------------------------------------------------------------------------

pairs "a b c" image.jpg kvasir/images/%.jpg binary.jpg kvasir/masks/%.jpg
check "Kvasir-SEG: JPEG masks" works kvasir 3 pairs 'labels: binary'
# WebP, where the build has libwebp: without loss the samples are those of PNG files.
losses() { sed -n 's/.*"loss": *\([^,}]*\).*/\1/p' "$tmp/run/metrics.jsonl"; }
webp() {
    local png
    works png 3 pairs 'labels: binary' && png=$(losses) && works webp 3 pairs 'labels: binary' && [ "$(losses)" = "$png" ] || return 1
    works webp_labels 3 pairs 'labels: classes' && works webp_lossy 3 pairs 'labels: binary' || return 1
    "$binary" data pack "$tmp/webp" -o "$tmp/webp.pack" >/dev/null && "$binary" data pack "$tmp/png" -o "$tmp/png.pack" >/dev/null && cmp "$tmp/webp.pack" "$tmp/png.pack" &&
        "$binary" data inspect "$tmp/webp" -o "$tmp/webp.png" >/dev/null && "$binary" data inspect "$tmp/png" -o "$tmp/png.png" >/dev/null && cmp "$tmp/webp.png" "$tmp/png.png" || return 1
    expect 2 'it is a lossy WebP, whose compression changes values: masks of classes or instances need PNG files' "$binary" train "$tmp/run.yaml" --set "data.train=[\"$tmp/webp_lossy\"]" \
        --set data.validation=null --set data.holdout=0 --set train.eval_every=0 --set data.labels=classes --set data.max_bad=0 --set "train.out=$tmp/none"
}
pairs "a b c" image.webp webp/images/%.webp binary.webp webp/masks/%.webp && pairs "a b c" image.png png/images/%.png binary.png png/masks/%.png
pairs "a b c" image.webp webp_labels/images/%.webp labels.webp webp_labels/masks/%.webp && pairs "a b c" image.webp webp_lossy/images/%.jpg lossy.webp webp_lossy/masks/%.webp
check "WebP images and masks" with libwebp webp
pairs "a b c" image.png suffix/images/%.png bits.png suffix/masks/%_mask.png
check "a suffix of masks" works suffix 3 pairs 'mask_suffix: "_mask"'
pairs "1 2 3 11 12 21" image.jpg prefix/imgs/img_%.jpg binary.png prefix/gt/seg-%.png
check "prefixes of both" works prefix 6 pairs 'images: "imgs"' 'masks: "gt"' 'image_prefix: "img_"' 'mask_prefix: "seg-"'
pairs "0000000 0000001 0000004" image.jpg isic/ISIC2018_Task1-2_Training_Input/ISIC_%.jpg binary.png isic/ISIC2018_Task1_Training_GroundTruth/ISIC_%_segmentation.png
pairs "0012255 0012346" image.jpg isic/ISIC2018_Task1-2_Validation_Input/ISIC_%.jpg binary.png isic/ISIC2018_Task1_Validation_GroundTruth/ISIC_%_segmentation.png
put image.jpg isic/ISIC2018_Task1-2_Test_Input/ISIC_0012169.jpg
for d in "$tmp"/isic/*; do echo licence >"$d/LICENSE.txt"; done
check "ISIC 2018" works isic 3 pairs 'images: "ISIC2018_Task1-2_Training_Input"' 'mask_suffix: "_segmentation"' 'validation_masks: "ISIC2018_Task1_Validation_GroundTruth"'
pairs "la_003 la_004 la_005" image.png nnunet/imagesTr/%_0000.png labels.png nnunet/labelsTr/%.png
put image.png nnunet/imagesTs/la_006_0000.png
echo '{"channel_names": {"0": "CT"}, "labels": {"background": 0, "a": 1, "b": 2}, "numTraining": 3, "file_ending": ".png"}' >"$tmp/nnunet/dataset.json"
check "nnU-Net" works nnunet 3 pairs 'images: "imagesTr"' 'masks: "labelsTr"' 'image_suffix: "_0000"'
pairs "1 2" image.png channels/imagesTr/c_%_0000.png labels.png channels/labelsTr/c_%.png
put image.png channels/imagesTr/c_1_0001.png channels/imagesTr/c_2_0001.png
check "nnU-Net with two channels: the first" works channels 2 pairs 'image_suffix: "_0000"'
voc=voc/VOCdevkit/VOC2012
pairs "2007_000032 2007_000033 2007_000039" image.jpg $voc/JPEGImages/%.jpg voc.png $voc/SegmentationClass/%.png
pairs "2007_000032 2007_000033 2007_000039" image.jpg $voc/JPEGImages/%.jpg voc.png $voc/SegmentationObject/%.png
put image.jpg $voc/JPEGImages/2007_000027.jpg
mkdir -p "$tmp/$voc/ImageSets/Segmentation"
printf '2007_000032\n2007_000039\n' >"$tmp/$voc/ImageSets/Segmentation/train.txt"
echo 2007_000033 >"$tmp/$voc/ImageSets/Segmentation/val.txt"
check "Pascal VOC: palette, 255 is ignored" works voc 3 pairs 'masks: "SegmentationClass"' 'train_list: ".*/train.txt"' 'validation_list: ".*/val.txt"' 'labels: classes' 'ignore: 255'
voc_masks() { [ "$(json "$tmp/inspected" masks)" = 6 ] && grep -q '2 samples to train on, 1 to evaluate on' "$tmp/run.yaml" && grep -q 'Not used: 1 image has no mask (2007_000027.jpg)' "$tmp/run.yaml"; }
check "Pascal VOC: two classes an image, lists of names" voc_masks
for city in train/aachen train/bochum val/lindau; do
    pairs "0_000019 1_000019" image.png "city/leftImg8bit/$city/%_leftImg8bit.png" labels.png "city/gtFine/$city/%_gtFine_labelIds.png"
    put instances.png "city/gtFine/$city/0_000019_gtFine_instanceIds.png" "city/gtFine/$city/1_000019_gtFine_instanceIds.png"
    put colour.png "city/gtFine/$city/0_000019_gtFine_color.png" "city/gtFine/$city/1_000019_gtFine_color.png"
done
check "Cityscapes" works city 4 pairs 'images: "leftImg8bit/train"' 'validation_images: "leftImg8bit/val"' 'image_suffix: "_leftImg8bit"' 'mask_suffix: "_gtFine_labelIds"'

# --- masks as editors and converters write them -------------------------------------------------

# equals_bits CASE: the masks are those of the 1-bit PNGs.
equals_bits() {
    "$binary" data inspect "$tmp/$1" --json >"$tmp/inspected" || return 1
    [ "$(json "$tmp/inspected" masks)" = 3 ] || { cat "$tmp/inspected"; return 1; }
    "$binary" data pack "$tmp/$1" -o "$tmp/$1.map" --layout memmap --size 32 >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    same "$tmp/$1.map/masks.u8" "$tmp/suffix.map/masks.u8"
}
"$binary" data pack "$tmp/suffix" -o "$tmp/suffix.map" --layout memmap --size 32 >"$tmp/out" 2>&1 # the same masks as 1-bit PNGs
pairs "a b c" image.jpg alpha/images/%.jpg alpha.png alpha/masks/%.png
check "a mask in the alpha channel" equals_bits alpha
pairs "a b c" image.jpg palette/images/%.jpg palette_white.png palette/masks/%.png
check "a palette that begins with white" equals_bits palette
pairs "a b c" image.jpg red/images/%.jpg palette_red.png red/masks/%.png
check "a palette whose numbers are not labels" expect 2 'black is entry 1 and a colour is entry 0.*Save masks as 8 or 16 bit grey' "$binary" init --model sam-tiny --data "$tmp/red"
pairs "a b" image.jpg whole/images/%.jpg white.png whole/masks/%.png
check "masks of the whole image" expect 0 'warning: 2 of 2 mask images looked at have one value everywhere' "$binary" init --model sam-tiny --data "$tmp/whole"
pairs "a b" turned.jpg turned/images/%.jpg binary.png turned/masks/%.png
check "EXIF turns an image, and the size does not tell" expect 0 'warning: 2 of 2 images looked at have an EXIF orientation, which is not applied' "$binary" init --model sam-tiny --data "$tmp/turned"
pairs "a b" image.jpg colour/images/%.jpg colour.png colour/masks/%.png
coloured() { expect 2 'the PNG is in colour.*also export COCO' "$binary" init --model sam-tiny --data "$tmp/colour" && [ "$(wc -l <"$tmp/err")" = 1 ]; }
check "masks in colour: one line" coloured

# --- train and val ----------------------------------------------------------------------------

for part in train val test; do
    pairs "a$part b$part" image.jpg "outer/$part/images/%.jpg" binary.png "outer/$part/masks/%.png"
    pairs "a$part b$part" image.jpg "inner/images/$part/%.jpg" binary.png "inner/masks/$part/%.png"
    pairs "a$part b$part" image.jpg "flatparts/$part/%_sat.jpg" binary.png "flatparts/$part/%_mask.png"
done
check "train/images, train/masks" works outer 2 pairs 'train: \[".*/outer/train"\]' 'validation: \[".*/outer/val"\]'
check "images/train, masks/train" works inner 2 pairs 'images: "images/train"' 'masks: "masks/train"' 'validation_images: "images/val"' 'validation_masks: "masks/val"'
check "both in train/" works flatparts 2 pairs 'validation: \[".*/flatparts/val"\]' 'image_suffix: "_sat"' 'mask_suffix: "_mask"'
inner_unused() { "$binary" init --model sam-tiny --data "$tmp/inner" 2>&1 >/dev/null | grep '2 samples in images/test and masks/test are in neither part'; }
check "a third part is named" inner_unused

for part in train val; do pairs "a$part b$part" image.png "camvid/$part/%.png" labels.png "camvid/${part}annot/%.png"; done
check "CamVid: train/ and trainannot/" works camvid 2 pairs 'images: "train"' 'masks: "trainannot"' 'validation_masks: "valannot"'
for place in Rural Urban; do pairs "1 2" image.png "loveda/Train/$place/images_png/%.png" labels.png "loveda/Train/$place/masks_png/%.png"; done
check "LoveDA: masks beside the images come first" works loveda 2 pairs 'train: \[".*/Train/Rural"\]' 'masks: "masks_png"'
check "LoveDA: the other folder is named" expect 0 'only Train/Rural/images_png is used; Train/Urban/images_png has masks' "$binary" init --model sam-tiny --data "$tmp/loveda"

# --- one folder ---------------------------------------------------------------------------------

pairs "a b c" image.jpg flat/%.jpg binary.png flat/%_mask.png
check "one folder, a suffix" works flat 3 pairs 'images: "."' 'masks: "."' 'mask_suffix: "_mask"'
pairs "1 2 11" image.png "flatprefix/%.png" binary.png "flatprefix/label_%.png"
check "one folder, a prefix" works flatprefix 3 pairs 'mask_prefix: "label_"'
pairs "a b c" image.jpg same/%.jpg binary.png same/%.png
check "one folder, a.jpg and a.png" works same 3 pairs 'images: "."'
pairs "benign/benign_(1) benign/benign_(2) malignant/malignant_(1)" image.png "busi/Dataset_with_GT/%.png" binary.png "busi/Dataset_with_GT/%_mask.png"
check "BUSI: a folder with GT in its name holds both" works busi 3 pairs 'images: "."' 'mask_suffix: "_mask"'
pairs "Image_01L Image_01R" image.jpg chase/%.jpg bits.png chase/%_1stHO.png
check "CHASE: any suffix beside a JPEG" works chase 2 pairs 'mask_suffix: "_1stHO"'
pairs "Image_01L Image_01R" image.jpg chase/%.jpg bits.png chase/%_2ndHO.png
check "CHASE: two annotators" expect 2 'fit in two ways, 2 files each: with data.mask_suffix _1stHO, or with _2ndHO' "$binary" init --model sam-tiny --data "$tmp/chase"
pairs "x/1 x/2 y/1" image.png nested/images/%.png binary.png nested/masks/%.png
check "a folder for each patient" works nested 3 pairs

# --- without init: data.format pairs by itself --------------------------------------------------

alone() {
    rm -rf "$tmp/run"
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/run" --set "data.train=$tmp/$1" --set train.worst=0 --set device.threads=1 $FLAGS && steps_once "$tmp/run" 1
}
cat >"$tmp/run.yaml" <<'EOF2'
model: {preset: sam-tiny}
data: {format: pairs, image_size: 32, max_masks: 4}
train: {steps: 1, effective_batch: 1, learning_rate: 1e-4}
EOF2
for d in kvasir isic nnunet voc flat; do check "data.format: pairs finds $d" alone $d; done

# --- tables -------------------------------------------------------------------------------------

pairs "a b c" image.jpg table/pics/%.jpg binary.png table/seg/%.png
table() {
    rm -f "$tmp"/table/*.?sv
    printf "$2" >"$tmp/table/$1"
}
table t.csv 'id;Image Path;Mask Path;subset\n1;pics/a.jpg;seg/a.png;train\n2;pics/b.jpg;seg/b.png;train\n3;"pics/c.jpg";seg/c.png;val\n'
check "a table with semicolons" works table 3 csv 'image_column: "Image Path"' 'mask_column: "Mask Path"' 'split_column: "subset"' 'train_split: train'
table t.tsv 'file\tlabel\r\npics/a.jpg\tseg/a.png\r\npics/b.jpg\tseg/b.png\r\n'
check "a table with tabs" works table 2 csv 'image_column: "file"' 'mask_column: "label"'
table all.csv "img,seg\n$tmp/table/pics/a.jpg,$tmp/table/seg/a.png\n$tmp/table/pics/b.jpg,$tmp/table/seg/b.png\n"
check "absolute paths" works table 2 csv
table all.csv 'image, mask, Split\r\npics\\\\a.jpg, seg\\\\a.png, Train\r\npics\\\\b.jpg, seg\\\\b.png, TRAIN\r\npics\\\\c.jpg, seg\\\\c.png, Val\r\n'
check "paths of Windows, blanks, parts in capitals" works table 3 csv 'train_split: train' 'validation_split: val'
check "parts in capitals are parts" grep -q '2 samples to train on, 1 to evaluate on' "$tmp/run.yaml"
table all.csv 'ImageId,EncodedPixels\na.jpg,1 3 10 5\n'
check "run lengths in a table" expect 2 'the masks in EncodedPixels are run lengths, which are not read from a table: write each mask as a PNG' "$binary" init --model sam-tiny --data "$tmp/table/all.csv"
mkdir -p "$tmp/kaggle" && cp -r "$tmp/table/pics" "$tmp/table/all.csv" "$tmp/kaggle/"
check "run lengths in a folder" expect 2 'The table all.csv does not name a mask file.*run lengths' "$binary" init --model sam-tiny --data "$tmp/kaggle"
table all.csv 'image,mask\npics/a.jpg,1 3 10 5\n'
check "run lengths as masks" expect 2 'line 2: the mask is given as run lengths' "$binary" init --model sam-tiny --data "$tmp/table/all.csv"
table all.csv 'scan,outline\npics/a.jpg,seg/a.png\npics/b.jpg,seg/b.png\n'
check "unknown columns are named" expect 2 'set data.image_column' "$binary" init --model sam-tiny --data "$tmp/table/all.csv"
check "columns by option" expect 0 '' "$binary" init --model sam-tiny --data "$tmp/table/all.csv" --image-column scan --mask-column outline
check "columns by option, written" grep -q '^  mask_column: "outline"' "$tmp/out"
table all.csv 'pics/a.jpg,seg/a.png\npics/b.jpg,seg/b.png\n'
check "a table without names" expect 2 'first line is pics/a.jpg, seg/a.png, expected the names of the columns' "$binary" init --model sam-tiny --data "$tmp/table/all.csv"
table all.csv 'image,mask\npics/a.jpg,pics/a.jpg\n'
check "an image that is its own mask" expect 2 'pics/a.jpg' "$binary" init --model sam-tiny --data "$tmp/table/all.csv"
table train.csv 'image,mask\npics/a.jpg,seg/a.png\npics/b.jpg,\n' && printf 'image,mask\npics/c.jpg,seg/c.png\n' >"$tmp/table/val.csv"
check "a table for each part" works table 1 csv 'train: \[".*/train.csv"\]' 'validation: \[".*/val.csv"\]'
check "rows without a mask are counted" grep -q 'Not used: 1 row has no mask' "$tmp/run.yaml"

# --- COCO as Roboflow exports it ----------------------------------------------------------------

# roboflow PART NAMES: the file begins with many categories.
roboflow() {
    local part=$1 i=0 name images= annotations= categories='{"id": 0, "name": "things", "supercategory": "none"}'
    for i in $(seq 1 80); do categories+=", {\"id\": $i, \"name\": \"a category with a rather long name $i\", \"supercategory\": \"things\"}"; done
    i=0
    for name in $2; do
        put image.jpg "roboflow/$part/$name.jpg" || return 1
        images+="${images:+, }{\"id\": $i, \"license\": 1, \"file_name\": \"$name.jpg\", \"height\": 40, \"width\": 48, \"date_captured\": \"2024-05-01T00:00:00+00:00\"}"
        annotations+="${annotations:+, }{\"id\": $i, \"image_id\": $i, \"category_id\": 1, \"bbox\": [8, 6, 20, 20], \"area\": 400, \"segmentation\": [[8, 6, 28, 6, 28, 26, 8, 26]], \"iscrowd\": 0}"
        i=$((i + 1))
    done
    printf '{"info": {"year": "2024", "version": "1", "description": "Exported from roboflow.com"}, "licenses": [{"id": 1, "url": "", "name": "CC BY 4.0"}], "categories": [%s], "images": [%s], "annotations": [%s]}' \
        "$categories" "$images" "$annotations" >"$tmp/roboflow/$part/_annotations.coco.json"
}
roboflow train "a b c" && roboflow valid "d e" && roboflow test f
check "COCO of Roboflow" works roboflow 3 coco 'train: \[".*/train/_annotations.coco.json"\]' 'validation: \[".*/valid/_annotations.coco.json"\]'
mkdir -p "$tmp/boxes" && cp "$tmp/roboflow/train/"*.jpg "$tmp/boxes/" && sed 's/"segmentation": \[\[[^]]*\]\]/"segmentation": []/g' "$tmp/roboflow/train/_annotations.coco.json" >"$tmp/boxes/_annotations.coco.json"
check "COCO with boxes only" expect 2 'none of its 3 annotations has a mask' "$binary" init --model sam-tiny --data "$tmp/boxes"

# coco NAME SED-SCRIPT: annotations/instances_train.json beside images/, changed by sed.
coco() {
    mkdir -p "$tmp/$1/annotations" "$tmp/$1/images" && cp "$tmp/roboflow/train/"*.jpg "$tmp/$1/images/" && sed "$2" "$tmp/roboflow/train/_annotations.coco.json" >"$tmp/$1/annotations/instances_train.json"
}
coco windows 's/^/\xef\xbb\xbf/; s|"file_name": "|"file_name": "images\\\\|g' && check "COCO with a byte order mark, images\\a.jpg" works windows 3 coco
coco absolute "s|\"file_name\": \"|\"file_name\": \"$tmp/absolute/images/|g" && check "COCO with absolute names" works absolute 3 coco
coco null 's/"segmentation": \[\[[^]]*\]\]/"segmentation": null/' && check "COCO with a segmentation of null" expect 0 '' "$binary" init --model sam-tiny --data "$tmp/null" && grep -q '# left out: 1 without a segmentation' "$tmp/out"
coco orphan 's/"image_id": 0/"image_id": 7/' && check "annotations of no image: one line" expect 0 '1 annotation has an image_id that no image has' "$binary" init --model sam-tiny --data "$tmp/orphan"

# --- what is refused ----------------------------------------------------------------------------

# refused PATTERN FOLDER: by init, inspect and, as pairs, train.
refused() {
    expect 2 "$1" "$binary" init --model sam-tiny --data "$tmp/$2" && [ ! -s "$tmp/out" ] && expect 2 "$1" "$binary" data inspect "$tmp/$2" || return 1
    expect 2 "$1" "$binary" train "$tmp/pairs.yaml" --set "train.out=$tmp/none" --set "data.train=$tmp/$2" && [ ! -e "$tmp/none" ]
}
cat >"$tmp/pairs.yaml" <<'EOF2'
model: {preset: sam-tiny}
data: {format: pairs, image_size: 32}
train: {steps: 1, effective_batch: 1, learning_rate: 1e-4}
EOF2
pairs "a b" image.tif tiff/images/%.tif binary.png tiff/masks/%.png
check "TIFF" with libtiff works tiff 2 pairs
pairs "a b" volume.nii.gz nifti/imagesTr/%_0000.nii.gz volume.nii.gz nifti/labelsTr/%.nii.gz
check "NIfTI, and its header lies" refused 'a_0000.nii.gz: its header says that the voxels begin at byte 0' nifti
pairs "a b" slice.dcm dicom/images/%.dcm binary.png dicom/masks/%.png
check "DICOM without an image" refused 'a.dcm: it has no image' dicom
put slice.dcm plain/IM000001 plain/IM000002
check "DICOM without an ending" refused 'IM000001.* DICOM|DICOM .*IM000001' plain
check "one NIfTI file" refused 'volume.nii.gz is one volume or image: give the folder' ../"$(realpath --relative-to="$tmp" "$from" | sed 's|^\.\./||')"/volume.nii.gz
put image.tif lies/images/a.jpg && put image.tif lies/images/b.jpg && put binary.png lies/masks/a.png lies/masks/b.png
check "a TIFF that is called .jpg" expect 2 'not a JPEG but a TIFF with another ending, which is not read: name it .tif' "$binary" init --model sam-tiny --data "$tmp/lies"
for part in train valid; do
    put image.jpg "yolo/$part/images/a.jpg" && mkdir -p "$tmp/yolo/$part/labels" && echo '0 0.2 0.2 0.5 0.2 0.5 0.6' >"$tmp/yolo/$part/labels/a.txt"
done
echo 'names: [a]' >"$tmp/yolo/data.yaml"
check "YOLO" refused 'a.txt is a label file of YOLO, which is not read. Export the dataset as COCO' yolo
put image.jpg labelme/a.jpg && echo '{"version": "5.1.1", "flags": {}, "shapes": [{"label": "a", "points": [[1, 1], [9, 1], [9, 9]], "shape_type": "polygon"}], "imagePath": "a.jpg"}' >"$tmp/labelme/a.json"
put image.jpg super/ds0/img/a.jpg && mkdir -p "$tmp/super/ds0/ann" && echo '{"tags": [], "objects": []}' >"$tmp/super/ds0/ann/a.jpg.json"
check "Supervisely" expect 2 'ds0/ann/a.jpg.json is in a format that is not read: export the annotations as COCO' "$binary" init --model sam-tiny --data "$tmp/super"
for i in 5fec 6b86; do put image.png "bowl/$i/images/$i.png" && put binary.png "bowl/$i/masks/d473.png" "bowl/$i/masks/4e07.png"; done
check "a folder for each image" refused 'a folder for each image .* with a file for each mask .* is not read: write one PNG' bowl
check "labelme" expect 2 'a.json is a file of labelme, which is not read: convert the folder to COCO' "$binary" init --model sam-tiny --data "$tmp/labelme"
pairs "a b" image.png twice/images/%.png binary.png twice/masks/%_1stHO.png
pairs "a b" image.png twice/images/%.png binary.png twice/masks/%_2ndHO.png
check "two masks for an image" refused 'fit in two ways, 2 files each: with data.mask_suffix _1stHO, or with _2ndHO' twice
check "two masks for an image: the option chooses" expect 0 '' "$binary" init --model sam-tiny --data "$tmp/twice" --mask-suffix _2ndHO
check "two masks for an image: what is left out is named" grep -Eq 'Not used: 2 files of the masks have another prefix or suffix \(such as a_1stHO.png\)' "$tmp/out"
put image.jpg differ/images/cat.jpg && put binary.png differ/masks/dog.png
check "names that differ" refused 'no image in images has a mask in masks: the names differ \(the first are cat.jpg and dog.png\)|no image in .*/images has a mask' differ
put image.jpg only/photos/a.jpg
check "images without masks" refused 'there are images in photos, but no folder of masks' only
pairs "a b c d" image.jpg sizes/images/%.jpg binary.png sizes/masks/%.png && for i in a b c; do "$tools/forge_png" "$tmp/sizes/masks/$i.png" 20 20; done
check "masks of another size" expect 2 'cannot be used.*the image is 48x40, its masks are for 20x20: resize' "$binary" init --model sam-tiny --data "$tmp/sizes"
pairs "a b" image.jpg empty/images/%.jpg black.jpg empty/masks/%.jpg
check "black JPEG masks are empty" expect 2 'no sample is left' "$binary" init --model sam-tiny --data "$tmp/empty"
pairs "a b c" image.jpg some/images/%.jpg binary.png some/masks/%.png && put image.jpg some/images/d.jpg some/images/e.jpg && put binary.png some/masks/z.png
check "files without a partner" works some 3 pairs
check "files without a partner are counted and named" grep -q 'Not used: 2 images have no mask (such as d.jpg), 1 mask has no image (z.png)' "$tmp/run.yaml"
summary
