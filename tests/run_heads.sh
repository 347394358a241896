#!/bin/bash
# shellcheck disable=SC2015
# run_heads.sh: vision towers that train by a head of their own (models/heads.h): classes of images,
# and images matched with texts. The numbers of PyTorch are compared by tests/golden.sh.
#
#   bash tests/run_heads.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
tower=tests/golden/clip_full

# Two folders of images, and tables of the same.
"$binary" data make "$tmp/set" --images 16 --size 48x40 --masks 2 >/dev/null && mkdir -p "$tmp/all" "$tmp/images/a cat" "$tmp/images/dog/more" && tar xf "$tmp"/set/*.tar -C "$tmp/all" || exit 2
i=0
printf 'file_name,label\n' >"$tmp/images.csv"
for f in $(find "$tmp/all" -name '*.jpg' | sort); do
    to="a cat/$i.jpg"
    [ $((i % 2)) = 0 ] || to="dog/more/$i.jpg"
    cp "$f" "$tmp/images/$to"
    i=$((i + 1))
done
(cd "$tmp/images" && find . -name '*.jpg' | sed 's|^\./||' | LC_ALL=C sort) >"$tmp/list"
while read -r f; do printf '"%s",%s\n' "$f" "${f%%/*}"; done <"$tmp/list" >>"$tmp/images.csv"
while read -r f; do k=0; [ "${f%%/*}" = dog ] && k=1; printf '{"image": "%s", "label": %d}\n' "$f" $k; done <"$tmp/list" >"$tmp/images.jsonl"

# configure [LINE...]: a run file with further lines.
configure() {
    printf 'model: {path: %s}\ndata: {format: classes, train: "%s", validation: "%s"}\ntrain: {steps: 100, effective_batch: 6, learning_rate: 3e-3, eval_every: 50, out: %s}\ndevice: {kind: %s}\n' \
        "${model:-$tower}" "${data:-$tmp/images}" "${data:-$tmp/images}" "$tmp/run" "$DEVICE" >"$tmp/run.yaml"
    printf '%s\n' "$@" >>"$tmp/run.yaml"
}
train() { # OUT ARGUMENT...
    local out=$1
    shift
    rm -rf "$out"
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set train.out="$out" $FLAGS "$@" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
}
field() { grep -o "\"$2\":[^,}]*" "$1" | tail -n "${3:-1}" | head -n 1 | cut -d: -f2; }
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }

learns() {
    configure
    train "$tmp/first" --set memory.precision=f32 >/dev/null || return 1
    [ "$(field "$tmp/first/metrics.jsonl" eval_accuracy)" = 1.000000 ] || { grep eval_ "$tmp/first/metrics.jsonl"; return 1; }
    grep -q '"CLIPForImageClassification"' "$tmp/first/model/config.json" && grep -q '"1": "dog"' "$tmp/first/model/config.json" && grep -q '"a cat": 0' "$tmp/first/model/config.json" || { cat "$tmp/first/model/config.json"; return 1; }
    grep -aq 'classifier.weight' "$tmp/first/model/model.safetensors" && ! grep -aq 'text_model' "$tmp/first/model/model.safetensors"
    field "$tmp/first/metrics.jsonl" eval_loss
}
check 'a tower learns the classes of folders, and is saved as CLIPForImageClassification' learns
planned() {
    configure
    "$binary" plan "$tmp/run.yaml" --set memory.precision=f32 --json >"$tmp/plan.json" && [ "$(json "$tmp/plan.json" arena_bytes)" = "$(json "$tmp/first/plan.json" arena_bytes)" ] && json "$tmp/plan.json" arena_bytes
}
check 'the plan is the run'"'"'s' planned
scored() {
    expect 0 '' "$binary" eval "$tmp/run.yaml" --model "$tmp/first/model" --set memory.precision=f32 --set memory.micro_batch=6 --json && [ "$(json "$tmp/out" accuracy)" = 1 ] || return 1
    awk -v a="$(json "$tmp/out" loss)" -v b="$(field "$tmp/first/metrics.jsonl" eval_loss)" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d < 1e-6) }' || { json "$tmp/out" loss; return 1; }
    expect 0 '' "$binary" eval "$tmp/run.yaml" --model "$tmp/first/model" && grep 'accuracy 1.0000: 16 of 16 images get their class; by chance 0.5000 would' "$tmp/out"
}
check 'eval gives the scores of training' scored
predicts() {
    expect 0 '' "$binary" predict --model "$tmp/first/model" "$tmp/images/dog" --json "$tmp/classes.json" && grep -q 'dog/more/1.jpg: dog [01].*, a cat 0' "$tmp/out" && [ "$(grep -c '"class": "dog"' "$tmp/classes.json")" = 8 ] || return 1
    expect 2 '-o is for masks, and .* is a vision tower with a head' "$binary" predict --model "$tmp/first/model" "$tmp/images/dog" -o "$tmp/x.png"
}
check 'predict prints the classes of images' predicts
continues() { # the classifier of the folder is used, and its classes
    model=$tmp/first/model configure
    train "$tmp/second" --set train.steps=1 --set memory.precision=f32 >/dev/null && awk -v l="$(field "$tmp/second/metrics.jsonl" loss)" 'BEGIN { exit !(l < 0.2) }' && field "$tmp/second/metrics.jsonl" loss || return 1
    expect 0 '' "$binary" modules "$tmp/run.yaml" && grep -qE '^classifier +linear +2 x 24 \+ bias' "$tmp/out"
}
check 'training goes on from the saved folder' continues

configure 'memory: {precision: f32}'
same_as() { train "$tmp/other" "$@" >/dev/null && train "$tmp/plain" --set train.steps=6 >/dev/null && [ "$(losses "$tmp/other")" = "$(losses "$tmp/plain")" ] && losses "$tmp/plain" | tail -n 1; }
check 'recompute: same bits' same_as --set train.steps=6 --set memory.recompute=all
check 'offload: same bits' same_as --set train.steps=6 --set memory.offload=optimizer+weights
check 'loader threads: same bits' same_as --set train.steps=6 --set data.threads=1 --set data.prefetch=3
near() {
    train "$tmp/other" --set train.steps=6 "$@" >/dev/null || return 1
    paste <(losses "$tmp/plain" | cut -d: -f2) <(losses "$tmp/other" | cut -d: -f2) | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-5) exit 1 } END { print NR, "steps" }'
}
check 'micro-batches: the same losses' near --set memory.micro_batch=4
check 'shares: the same losses' near --set parallel.shares=2 --set memory.micro_batch=2
resumes() {
    train "$tmp/cut" --set train.steps=6 --set train.save_every=3 >/dev/null || return 1
    cp -r "$tmp/cut/checkpoints" "$tmp/kept" && rm -rf "$tmp/cut/checkpoints/step-6" "$tmp/cut/model" && "$binary" train "$tmp/run.yaml" --set train.out="$tmp/cut" --set train.steps=6 --set train.save_every=3 --resume 2>"$tmp/err" >/dev/null || { cat "$tmp/err"; return 1; }
    [ "$(losses "$tmp/cut")" = "$(losses "$tmp/plain")" ] && cmp "$tmp/cut/model/model.safetensors" "$tmp/plain/model/model.safetensors"
}
check 'a resumed run: same bits' resumes

tables() { # the order of samples is that of the folders
    data=$1 configure 'memory: {precision: f32}'
    train "$tmp/other" --set train.steps=6 --set data.images="$tmp/images" --set 'model.classes=[a cat, dog]' >/dev/null && [ "$(losses "$tmp/other")" = "$(losses "$tmp/plain")" ]
}
check 'a CSV of file_name and label' tables "$tmp/images.csv"
check 'JSON lines of image and the number of a class' tables "$tmp/images.jsonl"
metadata() { cp "$tmp/images.csv" "$tmp/images/metadata.csv" && tables "$tmp/images"; r=$?; rm "$tmp/images/metadata.csv"; return $r; }
check 'a folder with metadata.csv' metadata
holds() {
    configure 'memory: {precision: f32}'
    train "$tmp/other" --set train.steps=1 --set data.validation=null --set data.holdout=0.25 && grep -q 'data.train: 12 images of 2 classes' "$tmp/err" && grep -q 'data.validation: 4 images of 2 classes' "$tmp/err"
}
check 'data.holdout' holds
broken() {
    cp -r "$tmp/images" "$tmp/damaged" && echo no image >"$tmp/damaged/dog/more/3.jpg" && data=$tmp/damaged configure && train "$tmp/other" --set train.steps=3 --set data.max_bad=0.2 >/dev/null && grep -q 'dog/more/3.jpg.*another image replaces it' "$tmp/err" || { cat "$tmp/err"; return 1; }
    expect 1 '' "$binary" train "$tmp/run.yaml" --set train.out="$tmp/zero" --set data.max_bad=0
}
check 'a broken image is replaced, up to data.max_bad' broken
adapted() {
    configure 'memory: {precision: f32}' 'adapter: {r: 4, target_modules: [q_proj, v_proj], modules_to_save: [classifier]}'
    train "$tmp/lora" >/dev/null && expect 0 '' "$binary" eval "$tmp/run.yaml" --model "$tower" --adapter "$tmp/lora/model" && grep "accuracy $(field "$tmp/lora/metrics.jsonl" eval_accuracy | cut -c1-6)" "$tmp/out" || return 1
    expect 2 'the classifier is new, and an adapter would leave it as it is: set adapter.modules_to_save to \[classifier\]' "$binary" plan "$tmp/run.yaml" --set adapter.modules_to_save=null
}
check 'an adapter with a new classifier' adapted

# --- images with texts ---
words=('a cat' 'the dog' 'red' 'a great road' 'Goat' 'coat' 'hatred' 'a dog at the road')
i=0
while read -r f; do
    printf '{"image": "%s", "caption": "%s"}\n' "$f" "${words[$((i % 8))]}" >>"$tmp/texts.jsonl"
    i=$((i + 1))
done <"$tmp/list"
head -n 8 "$tmp/texts.jsonl" >"$tmp/eight.jsonl"
head -n 5 "$tmp/texts.jsonl" >"$tmp/five.jsonl"
pairs() { # MODEL [LINE...]
    printf 'model: {path: tests/golden/%s_contrast}\ndata: {format: captions, train: %s, validation: %s, images: %s}\ntrain: {steps: 80, effective_batch: 8, learning_rate: 2e-3, eval_every: 40, out: %s}\nmemory: {precision: f32}\ndevice: {kind: %s}\n' \
        "$1" "$tmp/eight.jsonl" "$tmp/eight.jsonl" "$tmp/images" "$tmp/run" "$DEVICE" >"$tmp/run.yaml"
}
matches() {
    pairs "$1"
    train "$tmp/pairs_$1" >/dev/null && grep -q "the 8 samples of a step are each other's negatives, so they are one micro-batch" "$tmp/err" || { cat "$tmp/err"; return 1; }
    [ "$(field "$tmp/pairs_$1/metrics.jsonl" eval_accuracy)" = 1.000000 ] || { grep eval_ "$tmp/pairs_$1/metrics.jsonl"; return 1; }
    "$binary" plan "$tmp/run.yaml" --json >"$tmp/plan.json" 2>/dev/null && [ "$(json "$tmp/plan.json" arena_bytes)" = "$(json "$tmp/pairs_$1/plan.json" arena_bytes)" ] || return 1
    cmp "$tmp/pairs_$1/model/config.json" "tests/golden/$1_contrast/config.json" && expect 0 '' "$binary" eval "$tmp/run.yaml" --model "$tmp/pairs_$1/model" && grep '8 of 8 images find their text among those of a batch; by chance 0.1250' "$tmp/out"
}
check 'CLIP learns which text belongs to which image; the plan is the run'"'"'s' matches clip
check 'SigLIP learns it, too' matches siglip
# Padding is no negative: five samples in a batch of eight are five samples.
padded() {
    pairs "$1"
    for n in 5 8; do expect 0 '' "$binary" eval "$tmp/run.yaml" --model "tests/golden/$1_contrast" --set data.validation="$tmp/five.jsonl" --set memory.micro_batch=$n --json && json "$tmp/out" loss >"$tmp/loss.$n" || return 1; done
    paste "$tmp/loss.5" "$tmp/loss.8" | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; print; exit !($1 > 0.5 && d < 1e-6) }'
}
check 'CLIP: padding is no negative' padded clip
check 'SigLIP: padding is no negative' padded siglip
shown() { # which of some texts an image has: the probabilities of CLIP are 1 together
    expect 0 '' "$binary" predict --model "$tmp/pairs_clip/model" $(head -n 3 "$tmp/list" | sed "s|^|$tmp/images/|; s| |?|g") --text 'a cat' --text 'the dog' --text red --json "$tmp/texts.json" || return 1
    [ "$(grep '"class"' "$tmp/texts.json" | tr -d ' \n')" = '"class":"acat","class":"thedog","class":"red",' ] || { cat "$tmp/out"; return 1; }
    expect 2 'CLIP chooses among texts: give two or more' "$binary" predict --model "$tmp/pairs_clip/model" "$tmp/images/dog" --text red && expect 2 'needs a text tower' "$binary" predict --model tests/golden/clip_vision "$tmp/images/dog" --text red --text dog
}
check 'predict --text: which text belongs to an image' shown
pairs clip
check 'CLIP, recompute: same bits' same_as --set train.steps=6 --set memory.recompute=all
check 'CLIP, offload: same bits' same_as --set train.steps=6 --set memory.offload=optimizer+weights
check 'CLIP, a resumed run: same bits' resumes
shares() { # each share's samples are compared among themselves
    train "$tmp/other" --set train.steps=3 --set parallel.shares=2 >/dev/null && grep -q "the 4 samples of a share are each other's negatives" "$tmp/err" && awk -v a="$(field "$tmp/other/metrics.jsonl" loss 99)" -v b="$(field "$tmp/plain/metrics.jsonl" loss 99)" 'BEGIN { print a, b; exit !(a < b) }'
}
check 'shares: negatives are those of a share' shares
check 'a micro-batch is all of a share' expect 2 'memory.micro_batch is 4, and the contrastive loss compares all 8 samples of a share with each other: leave it out' "$binary" plan "$tmp/run.yaml" --set memory.micro_batch=4
lora() { train "$tmp/other" --set train.steps=6 --set 'adapter.target_modules=[q_proj, v_proj]' >/dev/null && grep -aq 'text_model.encoder.layers.0.self_attn.q_proj.lora_A' "$tmp/other/model/adapter_model.safetensors"; }
check 'an adapter in both towers' lora
check 'only a vision tower' expect 2 'model.head contrastive needs a text tower' "$binary" plan "$tmp/run.yaml" --set model.path=tests/golden/clip_vision
check 'a row longer than the text tower takes' expect 2 'data.sequence is 12, and the text tower has 11 positions' "$binary" plan "$tmp/run.yaml" --set data.sequence=12
check 'a folder without texts' expect 2 'has no metadata.csv or metadata.jsonl with the texts of its images' "$binary" train "$tmp/run.yaml" --set data.train="$tmp/images" --set data.images=null --set train.out="$tmp/none"
check 'another model'"'"'s tokenizer' expect 2 'its token 0 has the id .*, but the model.s vocabulary has 31 ids' "$binary" train "$tmp/run.yaml" --set data.tokenizer=tests/golden/tokenizers/gpt2 --set train.out="$tmp/none"
cutted() { train "$tmp/other" --set train.steps=1 --set data.sequence=5 >/dev/null && grep 'of 8 texts are longer than 5 tokens and are cut' "$tmp/err"; }
check 'texts that are too long are cut' cutted

# --- init ---
begins() { # MODEL DATA LINE...: the run file has these lines, and trains
    expect 0 '' "$binary" init --model "$1" --data "$2" --out "$tmp/begun" && cp "$tmp/out" "$tmp/begun.yaml" || return 1
    for line in "${@:3}"; do grep -qE "$line" "$tmp/begun.yaml" || { echo "no line $line"; cat "$tmp/begun.yaml"; return 1; }; done
    rm -rf "$tmp/begun"
    expect 0 '' "$binary" train "$tmp/begun.yaml" --set train.epochs=null --set train.steps=1 --set train.eval_every=0 --set data.images="$images" --set "device.kind=$DEVICE"
}
mkdir -p "$tmp/split" && cp -r "$tmp/images" "$tmp/split/train" && cp -r "$tmp/images" "$tmp/split/val" || exit 2
images=null check 'init: folders of classes, in train and val' begins "$tower" "$tmp/split" '^  format: classes' '^  train: ".*/split/train"' '^  validation: ".*/split/val"'
images=$tmp/images check 'init: a table of classes' begins tests/golden/clip_vision "$tmp/images.csv" '^  classes: \["a cat", "dog"\]' '^  holdout: 0.1'
images=$tmp/images check 'init: a table of texts, for a model with a text tower' begins tests/golden/siglip_contrast "$tmp/texts.jsonl" '^  format: captions' '^  effective_batch: 16 '

# --- what is refused ---
configure
check 'a class that the model does not have' expect 2 'a cat/.* has the class a cat, which is none of the model.s 2: wolf, dog \(model.classes\)' "$binary" train "$tmp/run.yaml" --set 'model.classes=[wolf, dog]'
check 'one class' expect 2 'there is one class, dog; expected 2 or more' "$binary" plan "$tmp/run.yaml" --set 'model.classes=[dog]'
check 'no classes' expect 2 'the classes are not known: set model.classes' "$binary" plan "$tmp/run.yaml" --set data.train="$tmp/images.csv"
check 'classes twice' expect 2 'two classes are named dog' "$binary" plan "$tmp/run.yaml" --set 'model.classes=[dog, dog]'
check 'a language model' expect 2 'model.head classes, which data.format classes asks for too, is for the vision towers of CLIP and SigLIP, and tests/golden/basic is a llama' "$binary" plan "$tmp/run.yaml" --set model.path=tests/golden/basic
check 'conversations' expect 2 'data.format is conversations, and a clip with a head takes pixel_values, labels; set data.format to classes' "$binary" plan "$tmp/run.yaml" --set model.head=classes --set 'model.classes=[a, b]' --set data.format=conversations
check 'a table without classes' expect 2 'list.csv has no column for the class, such as label or class: its columns are name, file; name it with data.label_column' sh -c "printf 'name,file\nx,y\n' >'$tmp/list.csv' && '$binary' train '$tmp/run.yaml' --set data.train='$tmp/list.csv' --set 'model.classes=[a, b]'"
check 'an image outside of the folder' expect 2 'outside' sh -c "printf 'image,label\n/etc/hostname,a\n' >'$tmp/list.csv' && '$binary' train '$tmp/run.yaml' --set data.train='$tmp/list.csv' --set 'model.classes=[a, b]'"
check 'augmentation, which this data does not have' expect 2 'data.flip' "$binary" plan "$tmp/run.yaml" --set data.flip=0.5
summary
