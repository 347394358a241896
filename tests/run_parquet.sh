#!/bin/bash
# run_parquet.sh: Parquet tables as data: what is trained is what files of the same content give,
# bit for bit.
#
#   bash tests/run_parquet.sh        from the repository's root, after make; see run_lib.sh
#
# The tables come from tests/golden/make_parquet.py.
# shellcheck disable=SC2015
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
from=tests/golden/parquet
# trained OUT ARGUMENT...: trains $tmp/run.yaml into OUT.
trained() { expect 0 '' run "$@"; }

# --- conversations ------------------------------------------------------------------------------
cat >"$tmp/run.yaml" <<END
model: {path: tests/golden/chat/model}
data: {format: conversations, train: $from/chats.jsonl, sequence: 128}
train: {steps: 3, effective_batch: 4, learning_rate: 0.01, out: "$tmp/unused"}
memory: {micro_batch: 4, precision: f32}
device: $DEVICE
END
chats() { trained plain && same_as other --set "data.train=$from/chats.parquet" && grep -h 'conversations in' "$tmp/err"; }
check 'conversations: the weights of the same rows as JSON' chats
texts() { "$binary" data inspect $from/texts.parquet --model tests/golden/chat/model --json >"$tmp/out" && [ "$(json "$tmp/out" usable)" = 12 ] && json "$tmp/out" format; }
check 'texts' texts
# A folder as it is downloaded.
mkdir -p "$tmp/hub/data" && cp $from/chats.parquet "$tmp/hub/data/train-00000-of-00001.parquet" && cp $from/chats.parquet "$tmp/hub/data/validation-00000-of-00001.parquet" && echo '# x' >"$tmp/hub/README.md"
downloaded() {
    "$binary" init --model tests/golden/chat/model --data "$tmp/hub" --out "$tmp/hubrun" >"$tmp/init.yaml" || return 1
    grep -q 'format: conversations' "$tmp/init.yaml" && grep -q 'validation: .*data/validation-00000' "$tmp/init.yaml" || { cat "$tmp/init.yaml"; return 1; }
    expect 0 '' "$binary" train "$tmp/init.yaml" --set train.epochs=1 --set "device.kind=$DEVICE" && grep -q eval_loss "$tmp/hubrun/metrics.jsonl" || return 1
    expect 0 '' "$binary" eval "$tmp/init.yaml" --model "$tmp/hubrun/model" --loss --json && json "$tmp/out" loss
}
check 'a folder of data/train-*.parquet and validation-*.parquet: init, train, eval' downloaded
# Without a part to train on, validation is trained on and test evaluated on.
mkdir -p "$tmp/held" && cp $from/chats.parquet "$tmp/held/validation.parquet" && cp $from/chats.parquet "$tmp/held/test.parquet"
held() { "$binary" init --model tests/golden/chat/model --data "$tmp/held" >"$tmp/init.yaml" && grep -q 'train: .*validation.parquet' "$tmp/init.yaml" && grep 'validation: .*test.parquet' "$tmp/init.yaml"; }
check 'a folder without a part to train on' held

# --- images with conversations ------------------------------------------------------------------
make_model llava_clip_llama "$tmp/llava" || exit 2
cat >"$tmp/run.yaml" <<END
model: {path: $tmp/llava}
data: {format: conversations, train: $from/talks.json, sequence: 64, max_images: 4}
train: {steps: 3, effective_batch: 2, learning_rate: 0.005, out: $tmp/unused}
memory: {micro_batch: 2, precision: f32}
device: $DEVICE
END
check 'images with conversations: the weights of image files' eval 'trained plain && same_as other --set data.train=$from/talks.parquet'
talks() {
    "$binary" data inspect $from/talks.parquet --model "$tmp/llava" --set data.sequence=64 --set data.max_images=4 >"$tmp/out" || return 1
    grep -q 'talks.parquet:2: user, assistant; parquet:.*talks.parquet/2/1/1, parquet:.*talks.parquet/2/1/2;' "$tmp/out" && grep '^images      7' "$tmp/out" || { cat "$tmp/out"; return 1; }
}
check 'data inspect shows rows and images' talks
initial() { "$binary" init --model "$tmp/llava" --data $from/talks.parquet --out "$tmp/talks" >"$tmp/init.yaml" && grep '^  max_images: 3 ' "$tmp/init.yaml" || { cat "$tmp/init.yaml"; return 1; }; }
check 'init' initial

# --- images and masks ---------------------------------------------------------------------------
cat >"$tmp/run.yaml" <<END
model: {preset: sam-tiny}
data: {format: pairs, train: $from/pairs, image_size: 32, max_masks: 2}
train: {steps: 3, effective_batch: 2, learning_rate: 0.001, out: $tmp/unused, worst: 0}
memory: {precision: f32}
device: $DEVICE
END
check 'images and masks: the weights of image files' eval 'trained plain && same_as other --set data.format=parquet --set data.train=$from/masks.parquet'
check 'compressed pages, a dictionary, two row groups: same bytes' same_as other --set data.format=parquet --set data.train=$from/masks_snappy.parquet
check 'other threads and slots: same bytes' same_as other --set data.format=parquet --set data.train=$from/masks_snappy.parquet --set data.threads=1 --set data.prefetch=1
lists() { "$binary" data inspect $from/mask_lists.parquet --json >"$tmp/out" && [ "$(json "$tmp/out" masks)" = 9 ] && trained other --set data.format=parquet --set data.train=$from/mask_lists.parquet; }
check 'a list of masks in each row' lists
columns() {
    "$binary" data inspect $from/mask_columns.parquet --mask-column disc,box >"$tmp/out" && grep -q '1 disc ' "$tmp/out" && grep -q '2 box ' "$tmp/out" || { cat "$tmp/out"; return 1; }
    trained other --set data.format=parquet --set data.train=$from/mask_columns.parquet --set 'data.mask_column=disc, box'
}
check 'several columns of masks are categories' columns
mkdir -p "$tmp/seg/default/train" "$tmp/seg/default/test" && cp $from/masks.parquet "$tmp/seg/default/train/0000.parquet" && cp $from/masks_snappy.parquet "$tmp/seg/default/test/0000.parquet"
segments() {
    "$binary" init --model sam-tiny --data "$tmp/seg" --out "$tmp/segrun" >"$tmp/init.yaml" || return 1
    grep -q 'format: parquet' "$tmp/init.yaml" && grep -q 'labels: classes' "$tmp/init.yaml" && grep -q 'validation: .*default/test/0000.parquet' "$tmp/init.yaml" || { cat "$tmp/init.yaml"; return 1; }
    expect 0 '' "$binary" train "$tmp/init.yaml" --set data.image_size=32 --set train.steps=2 --set train.worst=0 --set "device.kind=$DEVICE" && grep -q eval_loss "$tmp/segrun/metrics.jsonl" || return 1
    expect 0 '' "$binary" eval "$tmp/init.yaml" --model "$tmp/segrun/model" --set data.image_size=32 --json && json "$tmp/out" samples
}
check 'a folder of default/train and default/test: init, train, eval' segments
packed() {
    "$binary" data pack $from/masks.parquet -o "$tmp/m.pack" --size 32 >"$tmp/out" 2>&1 && "$binary" data pack $from/pairs -o "$tmp/p.pack" --size 32 >>"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    "$binary" data verify "$tmp/m.pack" >/dev/null && trained plain --set data.format=packed --set "data.train=$tmp/p.pack" && same_as other --set data.format=packed --set "data.train=$tmp/m.pack"
}
check 'data pack: the store of image files' packed

# --- what is refused ----------------------------------------------------------------------------
head -c 9000 $from/masks.parquet >"$tmp/cut.parquet"
{ head -c 4 $from/masks.parquet; head -c 20 /dev/zero | tr '\0' '\377'; tail -c +25 $from/masks.parquet; } >"$tmp/pages.parquet"
{ head -c -5 $from/masks.parquet; printf '\377PAR1'; } >"$tmp/footer.parquet"
refused() { expect 2 "$1" "$binary" init --model sam-tiny --data "$tmp/$2" && expect 2 "$1" "$binary" data inspect "$tmp/$2" && expect 2 "$1" "$binary" train "$tmp/run.yaml" --set data.format=parquet --set "data.train=$tmp/$2" --set "train.out=$tmp/none" && [ ! -e "$tmp/none" ]; }
check 'a cut table' refused 'cut.parquet: the table does not end with PAR1: the file is cut, or its download was not completed' cut.parquet
check 'a footer that lies' refused 'footer.parquet: its footer is damaged: it is longer than the file' footer.parquet
check 'a damaged page' refused 'pages.parquet: the header of the page at byte [0-9]* is damaged|pages.parquet: column .*: its pages have' pages.parquet
check 'text for a model of masks' expect 2 'the data are OpenAI messages, but sam-tiny' "$binary" init --model sam-tiny --data $from/chats.parquet
check 'no column of conversations' expect 2 'types_none.parquet: its columns are yes, small, large, .* expected messages' "$binary" data inspect --format conversations $from/types_none.parquet
check 'no usual name for masks' expect 2 'its columns are image, disc, box; none has images and a usual name for masks .*: set data.mask_column' "$binary" data inspect $from/mask_columns.parquet
check 'a column that is not there' expect 2 'has no column organ of images; its columns are image, disc, box' "$binary" data inspect $from/mask_columns.parquet --mask-column disc,organ
check 'image and mask in one column' expect 2 'column image is that of the images and of the masks' "$binary" data inspect $from/masks.parquet --mask-column image
empty() {
    local table=$from/hostile/nulls.parquet all='100000000 of 100000000 samples cannot be used'
    expect 2 "$all" "$binary" init --model tests/golden/chat/model --data $table || return 1
    "$binary" data inspect $table --model tests/golden/chat/model --json >"$tmp/out" && [ "$(json "$tmp/out" usable)" = 0 ] || return 1
    expect 2 "$all" "$binary" train "$tmp/run.yaml" --set model.preset=null --set model.path=tests/golden/chat/model --set data.format=conversations --set data.train=$table
}
check 'a hundred million rows without a value end at once' empty
# A byte in the middle of a page; the table has the same size and footer.
changed() {
    cp $from/masks.parquet "$tmp/t.parquet"
    local set=(--set data.format=parquet --set "data.train=$tmp/t.parquet" --set train.out="$tmp/resumed")
    expect 0 '' "$binary" train "$tmp/run.yaml" "${set[@]}" --set train.steps=1 --set train.save_every=1 || return 1
    printf x | dd of="$tmp/t.parquet" bs=1 seek=4000 conv=notrunc status=none
    expect 0 'the files of data.train are not those of the checkpoint' "$binary" train "$tmp/run.yaml" "${set[@]}" --set train.steps=2 --resume
}
check 'resume notices a table whose bytes have changed' changed
summary
