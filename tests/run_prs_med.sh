#!/bin/bash
# shellcheck disable=SC2015
# run_prs_med.sh: PRS-Med: techniques that must not change a result, what the mask may depend on, a
# model put together from two folders, and what is refused.
#
#   bash tests/run_prs_med.sh     from the repository's root, after make; see run_lib.sh
#
# The numbers of PyTorch are compared by tests/golden.sh.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
# shellcheck source=tests/golden_step.sh
. tests/golden_step.sh
tool compare forge forge_questions json_get pixels
# --- what does not change a result ---
check 'fusion, recompute: same bytes' equal prs_med_fusion --set memory.recompute=all
check 'prompted, recompute: same bytes' equal prs_med_prompted --set memory.recompute=all+halves+selective
check 'fusion, offload: same bytes' equal prs_med_fusion --set memory.offload=weights
check 'fusion, the LM head in chunks: near' near prs_med_fusion --set memory.head_chunks=3
check 'fusion, the mask head in chunks: near' near prs_med_fusion --set memory.mask_chunks=2
check 'fusion, both heads in chunks: near' near prs_med_groups --set memory.head_chunks=4 --set memory.mask_chunks=2
check 'prompted, the mask head in chunks: near' near prs_med_prompted --set memory.mask_chunks=2
# A chunk is whole groups of images that share statistics: 4 chunks of 4 images in pairs are 2.
in_chunks() {
    step prs_med_groups "$tmp/a.safetensors" --set memory.mask_chunks=4 && step prs_med_groups "$tmp/b.safetensors" --set memory.mask_chunks=2 && same "$tmp/a.safetensors" "$tmp/b.safetensors"
}
check 'a chunk is whole groups of images' in_chunks

# --- the mask depends on image and question, and on nothing behind them ---
# masks BATCH ARGUMENT...: only pred_masks of a step of prs_med_fusion, in $tmp/masks.
masks() {
    local given=$1
    shift
    batch=$given step prs_med_fusion "$tmp/out.safetensors" "$@" || return 1
    "$tools/forge" "$tmp/out.safetensors" "$tmp/out2.safetensors" drop logits && "$tools/forge" "$tmp/out2.safetensors" "$tmp/masks.safetensors" drop text_loss
}
# changed INDEX: the mask with another token at INDEX of input_ids.
changed() {
    "$tools/forge" "$cases/prs_med_fusion/batch.safetensors" "$tmp/changed.safetensors" set input_ids "$1" 7 && masks "$tmp/changed.safetensors"
}
# The first row has 9 tokens of image and question and 5 of the answer; rows have 19.
unmoved() {
    masks "$cases/prs_med_fusion/batch.safetensors" && mv "$tmp/masks.safetensors" "$tmp/first.safetensors" && changed "$1" &&
        "$tools/compare" "$tmp/first.safetensors" "$tmp/masks.safetensors" --outputs --logits 1e-12
}
sees_question() { ! unmoved 8 >"$tmp/says" && grep -q pred_masks "$tmp/says" || { echo "the mask does not depend on the question"; return 1; }; }
sees_no_answer() { # the total loss has the text's in it
    unmoved 10 >"$tmp/says"
    ! grep -q 'FAIL pred_masks\|FAIL mask_loss' "$tmp/says" || { cat "$tmp/says"; return 1; }
}
check 'another word in the question: another mask' sees_question
check 'another word in the answer: the same mask' sees_no_answer

# The weights change the loss and its gradients, and nothing else.
weighted() {
    step prs_med_fusion "$tmp/twice.safetensors" --set loss.masks=2 --set loss.text=1 && step prs_med_fusion "$tmp/once.safetensors" || return 1
    ! "$tools/compare" "$tmp/once.safetensors" "$tmp/twice.safetensors" >"$tmp/says" || { echo "the weights change nothing"; return 1; }
    ! grep -q 'FAIL \(mask_loss\|text_loss\|pred_masks\|logits\)' "$tmp/says" || { cat "$tmp/says"; return 1; }
}
check 'loss.masks and loss.text weigh the losses' weighted

# --- the structure loss ---
check 'structure, recompute: same bytes' equal prs_med_structure --set memory.recompute=all
check 'structure, the mask head in chunks: near' near prs_med_structure --set memory.mask_chunks=2
# Without weights at edges, and with those of the IoU by itself: another loss each.
edges() {
    step prs_med_structure "$tmp/both.safetensors" && step prs_med_structure "$tmp/iou.safetensors" --set loss.edge_terms=iou && step prs_med_structure "$tmp/none.safetensors" --set loss.edge=0 || return 1
    ! "$tools/compare" "$tmp/both.safetensors" "$tmp/iou.safetensors" >"$tmp/says" && grep -q 'FAIL mask_loss' "$tmp/says" && ! grep -q 'FAIL pred_masks' "$tmp/says" || { cat "$tmp/says"; return 1; }
    ! "$tools/compare" "$tmp/iou.safetensors" "$tmp/none.safetensors" >"$tmp/says" && grep -q 'FAIL mask_loss' "$tmp/says"
}
check 'loss.edge and loss.edge_terms' edges

# --- a model put together from two folders ---
mkdir -p "$tmp/two"
cat >"$tmp/two/config.json" <<END
{"model_type": "prs_med", "decoder": "prompted", "num_attention_heads": 2, "self_attention_heads": 2,
 "tinysam_path": "$PWD/$cases/tinyvit_points", "llava_path": "$PWD/$cases/llava_clip_llama"}
END
# Its language model gives what it gives by itself.
together() {
    local name
    model=$tmp/two batch=$cases/prs_med_prompted/batch.safetensors step prs_med_prompted "$tmp/whole.safetensors" || return 1
    cp "$cases/prs_med_prompted/batch.safetensors" "$tmp/text.safetensors"
    for name in images question gt_masks; do
        "$tools/forge" "$tmp/text.safetensors" "$tmp/less.safetensors" drop $name && mv "$tmp/less.safetensors" "$tmp/text.safetensors" || return 1
    done
    batch=$tmp/text.safetensors step llava_clip_llama "$tmp/alone.safetensors" && "$tools/forge" "$tmp/alone.safetensors" "$tmp/logits.safetensors" drop loss &&
        "$tools/compare" "$tmp/logits.safetensors" "$tmp/whole.safetensors" --outputs --logits 1e-12
}
check 'two folders: the language model is that of its folder' together

# model.decoder takes the place of config.json's; of a folder with the weights of one it must be the
# same.
chosen() {
    printf 'train: {steps: 2, effective_batch: 2}\n' >"$tmp/chosen.yaml"
    "$binary" modules "$tmp/chosen.yaml" --set model.preset=prs-med-tiny --set model.decoder=prompted >"$tmp/modules" || return 1
    grep -q 'mask_decoder' "$tmp/modules" && ! grep -q fusion "$tmp/modules" || { cat "$tmp/modules"; return 1; }
    sed 's/"prompted"/"fusion"/' "$tmp/two/config.json" >"$tmp/fusion.json" && mkdir -p "$tmp/chosen" && mv "$tmp/fusion.json" "$tmp/chosen/config.json" || return 1
    model=$tmp/two step prs_med_prompted "$tmp/a.safetensors" && model=$tmp/chosen step prs_med_prompted "$tmp/b.safetensors" --set model.decoder=prompted &&
        same "$tmp/a.safetensors" "$tmp/b.safetensors" && equal prs_med_fusion --set model.decoder=fusion
}
check 'model.decoder: the mask decoder of a run' chosen
check 'model.decoder: another than the folder has' expect 2 'model.decoder is prompted, and the folder has the weights of the decoder fusion' step prs_med_fusion "$tmp/out.safetensors" --set model.decoder=prompted
check 'model.decoder: of another model' expect 2 'model.decoder is for a prs_med, and .*llava_clip_llama is a llava' step llava_clip_llama "$tmp/out.safetensors" --set model.decoder=prompted
check 'model.decoder: of another preset' expect 2 'model.decoder.*prs_med, and sam-tiny' "$binary" modules "$tmp/chosen.yaml" --set model.preset=sam-tiny --set model.decoder=fusion

# --- refused ---
# config TEXT: a model folder with this config.json, in $tmp/bad.
refused() {
    mkdir -p "$tmp/bad"
    printf '%s\n' "$1" >"$tmp/bad/config.json"
    model=$tmp/bad expect 2 "$2" step prs_med_fusion "$tmp/out.safetensors"
}
two="\"tinysam_path\": \"$PWD/$cases/tinyvit_points\", \"llava_path\": \"$PWD/$cases/llava_clip_llama\""
check 'neither a part nor its folder' refused '{"model_type": "prs_med"}' 'it has neither tinysam_config nor tinysam_path'
check 'an unknown decoder' refused "{\"model_type\": \"prs_med\", \"decoder\": \"other\", $two}" 'decoder "other": expected fusion or prompted'
check 'a part of another kind' refused "{\"model_type\": \"prs_med\", \"tinysam_path\": \"$PWD/$cases/sam_points\", \"llava_path\": \"$PWD/$cases/llava_clip_llama\"}" 'its image encoder is a sam, expected tinysam'
check 'a language model without images' refused "{\"model_type\": \"prs_med\", \"tinysam_path\": \"$PWD/$cases/tinyvit_points\", \"llava_path\": \"$PWD/$cases/basic\"}" 'its language model is a llama, expected llava'
check 'more positions than the embedding has' refused "{\"model_type\": \"prs_med\", \"num_attention_heads\": 2, \"pooled_size\": 4, $two}" "pooled_size is 4, and TinySAM's embedding has 3"
check 'a folder that is not there' refused '{"model_type": "prs_med", "tinysam_path": "nowhere", "llava_path": "nowhere"}' 'part tinysam: .*nowhere is not a folder'
beyond() {
    "$tools/forge" "$cases/prs_med_fusion/batch.safetensors" "$tmp/beyond.safetensors" set question 1 20 || return 1
    batch=$tmp/beyond.safetensors expect 2 'question\[0\] is 0, 20; expected a first token and one past the last, from 0 to 19' step prs_med_fusion "$tmp/out.safetensors"
}
check 'a question beyond the row' beyond

# --- plans ---
# The real shapes, NF4 and LoRA, a batch of 8 images of 1,024 pixels, on a GPU that is not here.
printf 'train: {steps: 10, effective_batch: 8}\n' >"$tmp/run.yaml"
plans() {
    "$binary" plan "$tmp/run.yaml" --set model.preset="$1" --set adapter.r=16 --set 'adapter.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]' \
        --set "adapter.modules_to_save=$2" --set memory.quantize=nf4 --set data.sequence=704 --set device=cuda --set device.profile=h200 \
        --set memory.micro_batch=1 --memory 8GiB >"$tmp/plan" || { cat "$tmp/plan"; return 1; }
    grep -q 'nf4 weights' "$tmp/plan"
}
check 'prs-med plans in 8 GiB' plans prs-med '[image_encoder,fusion,mask_head]'
check 'prs-med-prompted plans in 8 GiB' plans prs-med-prompted '[image_encoder,mask_decoder]'
check 'prs-med-tiny plans on the CPU' "$binary" plan "$tmp/run.yaml" --set model.preset=prs-med-tiny --set data.sequence=128 --set device=cpu

check 'structure: a weight of other losses' expect 2 'loss.focal.*loss.preset.*equal-weights' "$binary" plan "$tmp/run.yaml" --set model.preset=prs-med-tiny --set data.sequence=128 --set loss.preset=structure --set loss.focal=2
check 'structure: of a mask model' expect 2 'loss.preset is structure, which is a loss of prs_med; a sam takes sam or equal-weights' "$binary" plan "$tmp/run.yaml" --set model.preset=sam-tiny --set data.format=sa1b --set loss.preset=structure

# --- training on a table --- Two shapes an image; the question asks for the one at the top or at
# the bottom, and the answer is its colour.
data=$tmp/questions
"$tools/forge_questions" "$data" 512 48 1 || exit 2
cat >"$tmp/questions.yaml" <<END
model: {preset: prs-med-tiny, bn_group: 8}
data: {format: csv, train: ["$data/annotations/*.csv"], train_split: train, validation_split: test, tokenizer: "$data/tokenizer", sequence: 40, threads: 1, sample_memory: 4,
       template: "{% for m in messages %}{{ m['content'] + (eos_token if m['role'] == 'assistant' else ' ') }}{% endfor %}"}
train: {steps: 6, effective_batch: 8, learning_rate: 4.0e-3, schedule: cosine, warmup_steps: 2, seed: 1}
memory: {micro_batch: 8}
device: {threads: 1}
END
# train NAME ARGUMENT...
train() {
    local name=$1
    shift
    rm -rf "${tmp:?}/$name"
    # shellcheck disable=SC2086
    "$binary" train "$tmp/questions.yaml" --set "train.out=$tmp/$name" --set "device.kind=$DEVICE" $FLAGS "$@" >"$tmp/$name.log" 2>&1 || { tail -n 5 "$tmp/$name.log"; return 1; }
}
losses() { sed -n 's/.*"loss": *\([0-9.e-]*\).*/\1/p' "$tmp/$1/metrics.jsonl"; }
# The losses of the runs `whole` and `parts`: the first to 1e-6; Adam's first updates are as large
# for the smallest gradient as for any other, so that rounding shows in the later ones.
near_losses() {
    paste <(losses whole) <(losses parts) | awk '{ a = $1; b = $2; d = a > b ? a - b : b - a; if (NF != 2 || !(d <= (NR == 1 ? 1e-6 : 2e-3) * a)) bad = 1 } END { exit bad || NR < 6 }' ||
        { paste <(losses whole) <(losses parts); return 1; }
}
# The split into micro-batches, dropout and the mean over groups of 2 images included.
splits() {
    train whole --set model.bn_group=2 && train parts --set model.bn_group=2 --set memory.micro_batch=2 || return 1
    near_losses
}
check 'micro-batches: the same losses' splits
# Chunks of the mask head: the same losses, and the same running statistics.
chunks() {
    train parts --set model.bn_group=2 --set memory.mask_chunks=4 && near_losses || return 1
    train whole --set model.bn_group=2 --set train.learning_rate=0 --set train.steps=2 && train parts --set model.bn_group=2 --set train.learning_rate=0 --set train.steps=2 --set memory.mask_chunks=4 &&
        "$tools/compare" "$tmp/whole/model/model.safetensors" "$tmp/parts/model/model.safetensors" --logits 1e-6
}
check 'the mask head in chunks: the same losses and statistics' chunks
# A run that is stopped continues bit for bit.
resumes() {
    train once --set train.save_every=3 --set train.eval_every=3 && cp -r "$tmp/once" "$tmp/again" && rm -rf "$tmp/again/model" "$tmp/again/checkpoints/step-6" || return 1
    # shellcheck disable=SC2086
    "$binary" train "$tmp/questions.yaml" --resume --set train.save_every=3 --set train.eval_every=3 --set "train.out=$tmp/again" --set "device.kind=$DEVICE" $FLAGS >"$tmp/again.log" 2>&1 || { tail -n 3 "$tmp/again.log"; return 1; }
    same "$tmp/once/model/model.safetensors" "$tmp/again/model/model.safetensors"
}
check 'resume: the same bytes' resumes
# The loss is the sum of both, each with its weight, whatever the split.
both_losses() {
    train parts --set loss.masks=2 --set loss.text=0.25 --set model.bn_group=2 --set memory.micro_batch="$1" || return 1
    grep '"loss":' "$tmp/parts/metrics.jsonl" | sed 's/.*"loss":\([^,]*\),.*"text_loss":\([^,]*\),"mask_loss":\([^,}]*\).*/\1 \2 \3/' |
        awk '{ d = $1 - 0.25 * $2 - 2 * $3; if (NF != 3 || d > 1e-3 || d < -1e-3) bad = 1 } END { print $0; exit bad || NR != 6 }'
}
check 'metrics show both losses' both_losses 8
check 'metrics show both losses: micro-batches' both_losses 2
# dropping NAME DECODER DROPOUT ATTENTION_DROPOUT ARGUMENT...: trains a model whose attention drops
# weights.
dropping() {
    local name=$1 dir=$tmp/dropping decoder=$2 dropout=$3 attention=$4
    shift 4
    mkdir -p "$dir/model" && { [ -d "$dir/llava" ] || make_model llava_clip_llama "$dir/llava"; } || return 1
    echo "{\"model_type\": \"prs_med\", \"decoder\": \"$decoder\", \"num_attention_heads\": 2, \"self_attention_heads\": 2, \"pooled_size\": 3, \"mask_channels\": [6, 4], \"dropout\": $dropout,
        \"attention_dropout\": $attention, \"tinysam_path\": \"$PWD/$cases/tinyvit_points\", \"llava_path\": \"../llava\"}" >"$dir/model/config.json"
    train "$name" --set "model.path=$dir/model" --set model.preset=null --set data.tokenizer=null --set model.bn_group=2 --set memory.micro_batch=8 --set memory.precision=f32 "$@"
}
# Products and a softmax give what the fused op gives, when nothing is dropped; the evaluation drops
# nothing.
attention_dropout() { # DECODER
    local on
    dropping whole "$1" 0 0 && dropping parts "$1" 0 1e-12 && near_losses || return 1
    dropping parts "$1" 0 0.4 && ! near_losses >"$tmp/says" || { paste <(losses whole) <(losses parts); echo "it drops nothing"; return 1; }
    for on in 0 0.4; do
        dropping parts "$1" 0.1 $on --set train.steps=1 --set train.learning_rate=0 --set train.eval_every=1 && grep -o '"step":0,"eval_loss": *[0-9.e-]*' "$tmp/parts/metrics.jsonl" >"$tmp/loss$on" || return 1
    done
    [ -s "$tmp/loss0" ] && same "$tmp/loss0" "$tmp/loss0.4"
}
check 'attention dropout, fusion' attention_dropout fusion
check 'attention dropout, prompted' attention_dropout prompted
# The same weights are dropped under every technique.
attention_dropped() { # DECODER
    dropping whole "$1" 0.1 0.3 && dropping parts "$1" 0.1 0.3 --set memory.micro_batch=2 && near_losses || return 1
    dropping parts "$1" 0.1 0.3 --set memory.recompute=all && same "$tmp/whole/model/model.safetensors" "$tmp/parts/model/model.safetensors" || return 1
    dropping parts "$1" 0.1 0.3 --set memory.mask_chunks=2 && near_losses && dropping parts "$1" 0.1 0.3 --set memory.precision=bf16 --set train.steps=1
}
check 'attention dropout, fusion: micro-batches, recompute and chunks' attention_dropped fusion
check 'attention dropout, prompted: micro-batches, recompute and chunks' attention_dropped prompted
# The class of an image is its dataset: its loss is the third.
classes() { # CLASSES ARGUMENT...
    local n=$1 dir=$tmp/classes name
    shift
    mkdir -p "$dir/annotations" "$dir/model" && ln -sfn "$data/images_and_masks/shapes" "$dir/first" && ln -sfn "$data/images_and_masks/shapes" "$dir/second" || return 1
    for name in first second; do head -n 40 "$data/annotations/shapes.csv" | sed "s|^shapes/|$name/|" >"$dir/annotations/$name.csv"; done
    [ -d "$dir/llava" ] || make_model llava_clip_llama "$dir/llava" || return 1
    echo "{\"model_type\": \"prs_med\", \"num_attention_heads\": 2, \"pooled_size\": 3, \"mask_channels\": [6, 4], \"num_classes\": $n, \"tinysam_path\": \"$PWD/$cases/tinyvit_points\", \"llava_path\": \"../llava\"}" >"$dir/model/config.json"
    train classes-run --set "model.path=$dir/model" --set model.preset=null --set "data.train=[$dir/annotations/*.csv]" --set "data.images=$dir" --set data.validation_split=null --set data.train_split=null \
        --set data.tokenizer=null --set data.template=null "$@"
}
three_losses() {
    classes 2 || return 1
    grep '"loss":' "$tmp/classes-run/metrics.jsonl" | sed 's/.*"loss":\([^,]*\),.*"text_loss":\([^,]*\),"mask_loss":\([^,}]*\),"class_loss":\([^,}]*\).*/\1 \2 \3 \4/' |
        awk '{ d = $1 - 0.5 * $2 - $3 - 0.5 * $4; if (NF != 4 || d > 1e-3 || d < -1e-3 || !($4 > 0)) bad = 1 } END { print $0; exit bad || NR != 6 }'
}
check 'with classes: a third loss' three_losses
# 78 rows, 8 a step: the second epoch begins in step 10.
class_epochs() {
    classes 2 --set train.steps=12 --set loss.class_epochs=1 --set loss.preset=structure || return 1
    grep '"loss":' "$tmp/classes-run/metrics.jsonl" | sed 's/.*"class_loss":\([^,}]*\).*/\1/' | awk '{ if (NR < 10 ? !($1 > 0) : NR > 10 && $1 != 0) bad = 1 } END { exit bad || NR != 12 }'
}
check 'loss.class_epochs: classes are learned in the first epochs' class_epochs
fewer_classes() { ! classes 1 && grep -q 'the tables have 2 datasets, and the model tells 1 classes (num_classes of config.json)' "$tmp/classes-run.log" || { tail -n 2 "$tmp/classes-run.log"; return 1; }; }
check 'more datasets than classes' fewer_classes
# Rows without an answer are left out and counted; so are rows without a mask.
left_out() {
    mkdir -p "$tmp/left/annotations"
    { head -n 40 "$data/annotations/shapes.csv"; echo 'shapes/train_images/50.png,50.png,top?,,top,train'; echo 'shapes/train_images/9999.png,9999.png,top?,red,top,train'; } >"$tmp/left/annotations/a.csv"
    train left-run --set "data.train=[$tmp/left/annotations/a.csv]" --set "data.images=$data/images_and_masks" --set data.validation_split=null --set data.train_split=null || return 1
    grep -q 'a.csv: 1 row has no mask (such as shapes/train_masks/9999.png), 1 row has no question or no answer' "$tmp/left-run.log" || { head -n 3 "$tmp/left-run.log"; return 1; }
    grep -q 'data.train: 39 questions' "$tmp/left-run.log"
}
check 'rows without an answer or a mask are counted' left_out
# An image that is broken is replaced in training, and has no weight in an evaluation.
broken() {
    cp -r "$data" "$tmp/broken" && printf 'no image' >"$tmp/broken/images_and_masks/shapes/train_images/3.png" && printf 'none either' >"$tmp/broken/images_and_masks/shapes/test_images/520.png" || return 1
    train broken-run --set "data.train=[$tmp/broken/annotations/*.csv]" --set data.shuffle=false --set train.eval_every=6 || return 1
    grep -q 'another sample replaces it' "$tmp/broken-run.log" && grep -q 'over 47 samples\|over 48 samples' "$tmp/broken-run.log" || { cat "$tmp/broken-run.log"; return 1; }
}
check 'a broken image is replaced' broken
check 'a flipped image' expect 2 'data.flip is given: questions and answers name places in the image' "$binary" train "$tmp/questions.yaml" --set "train.out=$tmp/x" --set data.flip=0.5
check 'another format' expect 2 'data.format.*prs_med reads tables' "$binary" train "$tmp/questions.yaml" --set "train.out=$tmp/x" --set data.format=conversations --set data.train_split=null --set data.validation_split=null
check 'images of no whole number of patches' expect 2 'data.image_size is 70, expected a multiple of the patches of 16 pixels' "$binary" train "$tmp/questions.yaml" --set "train.out=$tmp/x" --set data.image_size=70

# The flags of train_prs_med.py.
flags() {
    "$binary" train --preset prs-med-tiny --data_root "$data" --batch_size 4 --gradient_accumulation_steps 2 --checkpoint_dir "$tmp/flags" --no-use_amp --lambda_txt 0.25 --lora_rank 4 \
        --set "data.tokenizer=$data/tokenizer" --set data.sequence=64 --set data.sample_memory=4 --set train.steps=2 --set train.epochs=null --set "device.kind=$DEVICE" >"$tmp/flags.log" 2>&1 || { tail -n 4 "$tmp/flags.log"; return 1; }
    [ -f "$tmp/flags/model/adapter_model.safetensors" ] || { echo "no adapter was saved"; return 1; }
    for line in 'adapter.r = 4 ' 'loss.text = 0.25 ' 'train.effective_batch = 8 ' 'memory.precision = f32 ' 'train.seed = 42 ' 'train.weight_decay = 0.01 '; do
        grep -q "$line" "$tmp/flags.log" || { echo "not set: $line"; return 1; }
    done
}
check 'the flags of train_prs_med.py' flags
check 'a flag that it does not have' expect 2 'unknown key data_roo of train_prs_med.py of PRS-Med; did you mean data_root' "$binary" train --preset prs-med-tiny --data_roo x
check 'flags without the preset' expect 2 'unknown option --data_root' "$binary" train --preset sam-tiny --data_root x

# --- learning --- It finds the shape that the question asks for, and says its colour; without the
# question or without the image it does not. The language model has a lower learning rate than the
# rest, and the positions of its image a higher one: their embedding starts small beside
# the colours.
learn() {
    train "$@" --set train.steps=250 --set train.warmup_steps=8 --set train.learning_rate=0.001 --set train.beta2=0.95 --set loss.text=2 \
        --set "train.groups=[{match: '*position_embedding*', lr_scale: 5}, {match: ['tinysam.*', 'fusion.*', 'mask_head.*'], lr_scale: 4}]"
}
# scores NAME ARGUMENT...: the mean IoU of a trained model and its right answers, in percent
scores() {
    local name=$1
    shift
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/questions.yaml" --model "$tmp/$name/model" --json --max-new 8 --set memory.micro_batch=8 --set "device.kind=$DEVICE" $FLAGS "$@" >"$tmp/$name.json" 2>"$tmp/eval.log" || { tail -n 3 "$tmp/eval.log" >&2; return 1; }
    "$tools/json_get" "$tmp/$name.json" prompts.question.mean_iou answers.all.exact_match | awk 'NR == 1 { printf "%d ", 100 * $1 } NR == 2 { printf "%d\n", $1 }'
}
learns() {
    learn reads && train untrained --set train.steps=1 --set train.learning_rate=0 || return 1
    local iou said deaf deaf_said blind blind_said fresh fresh_said
    read -r deaf deaf_said < <(scores reads --set "data.train=[$data/mute.csv]" --set "data.images=$data/images_and_masks") && read -r blind blind_said < <(scores reads --set "data.images=$data/blank") &&
        read -r iou said < <(scores reads) && read -r fresh fresh_said < <(scores untrained) || return 1
    echo "IoU $iou %, without the question $deaf %, without the image $blind %, untrained $fresh %; answers $said %, $deaf_said %, $blind_said %, $fresh_said %"
    [ "$iou" -ge 50 ] && [ "$iou" -ge $((deaf + 12)) ] && [ "$iou" -ge $((blind + 25)) ] && [ "$iou" -ge $((fresh + 30)) ] || return 1
    [ "$said" -ge 65 ] && [ "$said" -ge $((deaf_said + 12)) ] && [ "$said" -ge $((blind_said + 25)) ] && [ "$said" -ge $((fresh_said + 50)) ]
}
check 'it learns which shape is meant, and its colour' learns

scores_texts() {
    grep -q '"answers": {' "$tmp/reads.json" && grep -q '"shapes": {' "$tmp/reads.json" && grep -q '"exact_match"' "$tmp/reads.json" || { cat "$tmp/reads.json"; return 1; }
}
check 'eval scores the answers by dataset' scores_texts
# Masks by dataset too, and the worst of them with what asked for them.
draws() {
    local name
    for name in worst.png worst.html; do
        # shellcheck disable=SC2086
        "$binary" eval "$tmp/questions.yaml" --model "$tmp/reads/model" --json --samples 2 --worst 3 --overlays "$tmp/$name" --set memory.micro_batch=8 --set "device.kind=$DEVICE" $FLAGS >"$tmp/worst.json" 2>"$tmp/eval.log" || { tail -n 3 "$tmp/eval.log"; return 1; }
    done
    [ "$("$tools/json_get" "$tmp/worst.json" prompts.question.categories.shapes.masks)" = 48 ] || { cat "$tmp/worst.json"; return 1; }
    [ -s "$tmp/worst.png" ] && [ "$(grep -c 'top? (\|bottom? (' "$tmp/worst.html")" -ge 3 ]
}
check 'eval draws the worst masks with their questions' draws

# --- prediction --- The mask of the shape in the half that the question names, and an answer. Test
# image 513 has one in each half.
ask() { # WHERE ARGUMENT...
    local where=$1
    shift
    printf '%s' "{% for m in messages %}{{ m['content'] + (eos_token if m['role'] == 'assistant' else ' ') }}{% endfor %}" >"$tmp/template.jinja"
    # shellcheck disable=SC2086
    "$binary" predict --model "$tmp/reads/model" "$data/images_and_masks/shapes/test_images/513.png" --question "$where?" -o "$tmp/$where.png" --overlay "$tmp/$where-over.png" --json "$tmp/$where.json" \
        --set "data.tokenizer=$data/tokenizer" --set "data.template=$tmp/template.jinja" --max-new 8 --set "device.kind=$DEVICE" $FLAGS "$@" >"$tmp/$where.out" 2>&1 || { tail -n 2 "$tmp/$where.out"; return 1; }
    [ -s "$tmp/$where-over.png" ] || { echo "no overlay"; return 1; }
}
# mostly HALF WHERE: most of the predicted mask's pixels lie in that half of the image.
mostly() {
    local half=$1 where=$2 all inside
    "$tools/pixels" decode drop "$tmp/$where.png" "$tmp/$where.bytes" >/dev/null || return 1
    all=$(tr -d '\0' <"$tmp/$where.bytes" | wc -c)
    inside=$("$half" -c $((64 * 64 * 3 / 2)) "$tmp/$where.bytes" | tr -d '\0' | wc -c)
    ((2 * inside > all)) || { echo "$inside of $all bytes of the mask of $where are in the $half half"; cat "$tmp/$where.json"; return 1; }
}
predicts() {
    ask top && ask bottom || return 1
    mostly head top && mostly tail bottom || return 1
    grep -q '"answer": "[a-z]' "$tmp/top.json" || { cat "$tmp/top.json"; return 1; }
    ! grep -q 'do not belong' "$tmp/top.out" || { cat "$tmp/top.out"; return 1; }
}
check 'predict gives mask, overlay and answer' predicts
# separately NAME ARGUMENT...: a mask and an answer of the saved model $tmp/NAME/model, with nothing
# else given.
separately() {
    local name=$1
    shift
    # shellcheck disable=SC2086
    "$binary" predict --model "$tmp/$name/model" "$data/images_and_masks/shapes/test_images/513.png" --question 'top?' -o "$tmp/$name.png" --json "$tmp/$name.json" --max-new 8 \
        --set "device.kind=$DEVICE" $FLAGS "$@" >"$tmp/$name.out" 2>&1 || { tail -n 2 "$tmp/$name.out"; return 1; }
}
saved() { separately reads && [ "$(grep '"answer"' "$tmp/reads.json")" = "$(grep '"answer"' "$tmp/top.json")" ]; }
check 'the saved model has the tokenizer and the template of the run' saved
# Trained on images of another size than config.json's, evaluated and asked at that size.
resized() {
    local decoder
    for decoder in fusion prompted; do
        train resized --set model.decoder=$decoder --set data.image_size=128 --set train.steps=1 && separately resized || return 1
        # shellcheck disable=SC2086
        "$binary" eval "$tmp/questions.yaml" --model "$tmp/resized/model" --samples 2 --set data.image_size=128 --set "device.kind=$DEVICE" $FLAGS >"$tmp/says" 2>&1 || { cat "$tmp/says"; return 1; }
    done
    grep -h '"answer"' "$tmp/resized.json"
}
check 'images of another size: train, eval, predict' resized
# The tokenizer, the template and the processor of a LLaVA folder, and a tower in a third folder,
# are in the folder of what was put together from them.
gathered() { # CASE SIDE TOWER
    local file with=(--set model.preset=null --set "model.path=$tmp/gather" --set data.tokenizer=null --set data.template=null --set train.steps=2)
    [ -z "$3" ] || with+=(--set "model.vision_tower=$3")
    rm -rf "$tmp/gather" "$tmp/llava" && mkdir -p "$tmp/gather" && make_model "$1" "$tmp/llava" && echo "{\"size\": {\"shortest_edge\": $2}, \"crop_size\": $2, \"image_mean\": [0.4, 0.4, 0.4]}" >"$tmp/llava/preprocessor_config.json" || return 1
    printf '{"model_type": "prs_med", "decoder": "prompted", "num_attention_heads": 2, "self_attention_heads": 2, "tinysam_path": "%s", "llava_path": "../llava"}' "$PWD/$cases/tinyvit_points" >"$tmp/gather/config.json"
    train gathered "${with[@]}" || return 1
    for file in tokenizer.json tokenizer_config.json preprocessor_config.json; do same "$tmp/llava/$file" "$tmp/gathered/model/$file" || return 1; done
    rm -rf "$tmp/llava" "$tmp/gather" && separately gathered && grep '"answer"' "$tmp/gathered.json"
}
check 'a model of two folders is saved with tokenizer and processor' gathered llava_clip_llama 8 ''
check 'a model of three folders is saved as one' gathered llava_med 16 "$PWD/$cases/clip_full"
# --- an adapter with modules that are trained whole ---
# The answer is generated by the language model by itself, which has none of these modules.
saved_whole=(--set model.preset=null --set train.steps=2 --set adapter.r=4 --set 'adapter.target_modules=[q_proj,v_proj]' --set 'adapter.modules_to_save=[image_encoder,fusion,mask_head]')
# eval has the loss of the training's evaluation, and predict the answer of the merged model.
adapted() {
    train adapted "${saved_whole[@]}" --set "model.path=$tmp/reads/model" --set train.eval_every=2 && scores reads --adapter "$tmp/adapted/model" || return 1
    { grep -o '"eval_loss": *[0-9.e-]*' "$tmp/adapted/metrics.jsonl" | tail -n 1 | grep -o '[0-9.e-]*$'; "$tools/json_get" "$tmp/reads.json" loss; } |
        awk '{ x[NR] = $1 } END { d = x[1] - x[2]; print "losses", x[1], x[2]; exit !(NR == 2 && d < 1e-4 * x[1] && d > -1e-4 * x[1]) }' || return 1
    "$binary" convert "$tmp/reads/model" --adapter "$tmp/adapted/model" -o "$tmp/merged/model" >"$tmp/merged.log" 2>&1 || { cat "$tmp/merged.log"; return 1; }
    separately merged && separately reads --adapter "$tmp/adapted/model" || return 1
    grep -q '"answer": "[a-z]' "$tmp/reads.json" && [ "$(grep -o '"answer": "[^"]*"' "$tmp/reads.json")" = "$(grep -o '"answer": "[^"]*"' "$tmp/merged.json")" ] || { cat "$tmp/reads.json" "$tmp/merged.json"; return 1; }
}
check 'an adapter that saves modules: eval and predict' adapted
# The base may be put together from two folders, with no decoder of its own.
adapted_folders() {
    mkdir -p "$tmp/base/model" && make_model llava_clip_llama "$tmp/base/llava" || return 1
    echo "{\"model_type\": \"prs_med\", \"num_attention_heads\": 2, \"pooled_size\": 3, \"mask_channels\": [6, 4], \"tinysam_path\": \"$PWD/$cases/tinyvit_points\", \"llava_path\": \"../llava\"}" >"$tmp/base/model/config.json"
    train folders "${saved_whole[@]}" --set "model.path=$tmp/base/model" --set data.tokenizer=null --set data.template=null && separately base --adapter "$tmp/folders/model" && grep '"answer"' "$tmp/base.json"
}
check 'an adapter that saves modules: a base of two folders' adapted_folders
# The guide's second command: the flags of train_prs_med.py with a model folder, whose LLaVA has the
# tokenizer.
flags_with_folder() {
    # shellcheck disable=SC2086
    expect 0 'layers whose weights are in no folder take the statistics of 2 images' "$binary" train --set "model.path=$tmp/base/model" --data_root "$data" --batch_size 2 --gradient_accumulation_steps 2 --checkpoint_dir "$tmp/flags2" \
        --no-use_amp --image_size 96 --set data.sequence=40 --set memory.quantize=nf4 --set train.steps=1 --set data.validation_split=null --set "device.kind=$DEVICE" $FLAGS || return 1
    grep -E 'image_size|bn_group|effective_batch' "$tmp/flags2/config.yaml" | tr -d '\n'
}
check 'flags of train_prs_med.py with a model folder' flags_with_folder
# With a learning rate of 0 only statistics move: those of the fresh decoder, over the images of a
# group, and not those that the folder of TinySAM has.
fresh_statistics() {
    local name with=(--set model.preset=null --set "model.path=$tmp/base/model" --set data.tokenizer=null --set data.template=null --set model.bn_group=auto --set train.learning_rate=0 --set train.weight_decay=0)
    for name in once twice; do
        train "$name" "${with[@]}" --set train.steps=$([ $name = once ] && echo 1 || echo 2) || return 1
    done
    grep -q 'layers whose weights are in no folder take the statistics of 8 images at a time' "$tmp/once.log" || { cat "$tmp/once.log"; return 1; }
    "$tools/compare" "$tmp/once/model/model.safetensors" "$tmp/twice/model/model.safetensors" --outputs --logits 1e-12 >"$tmp/says"
    ! grep FAIL "$tmp/says" | grep -v 'FAIL \(fusion\|mask_head\)[a-z0-9_.]*\.running_\(mean\|var\) ' || return 1
    [ "$(grep -c 'FAIL .*running_' "$tmp/says")" -ge 6 ] || { cat "$tmp/says"; return 1; }
    train half "${with[@]}" --set train.steps=1 --set memory.micro_batch=2 && grep -o 'statistics of 2 images' "$tmp/half.log" || return 1
    expect 2 '2 images share batch normalization statistics in this run, and with this memory.micro_batch and number of ranks 4 would' "$binary" train "$tmp/questions.yaml" "${with[@]}" --set "train.out=$tmp/half" \
        --set "device.kind=$DEVICE" --set train.steps=2 --set memory.micro_batch=4 --resume
}
check 'fresh layers take batch statistics, loaded ones stay' fresh_statistics
# A name that no part of the model has is refused, in the part that answers too.
misspelled() {
    cp -r "$tmp/adapted/model" "$tmp/misspelled" && sed -i 's/"mask_head"/"mask_heat"/' "$tmp/misspelled/adapter_config.json" || return 1
    expect 2 'adapter.modules_to_save: "mask_heat"' "$binary" eval "$tmp/questions.yaml" --model "$tmp/reads/model" --adapter "$tmp/misspelled" &&
        expect 2 'adapter.modules_to_save: "mask_heat"' "$binary" generate --model "$tmp/reads/model" --adapter "$tmp/misspelled" --prompt 'top?' --max-new 2
}
check 'an adapter that saves modules: a name of none' misspelled
check 'a question to another model' expect 2 'answers no question with a mask; expected a prs_med' "$binary" predict --model $cases/sam_points "$data/images_and_masks/shapes/test_images/513.png" --question x -o "$tmp/x.png"
check 'a question and a point' expect 2 '--question asks a model for a mask in words: leave out --point' "$binary" predict --model "$tmp/reads/model" "$data/images_and_masks/shapes/test_images/513.png" --question x --point 1,1 -o "$tmp/x.png"
summary
