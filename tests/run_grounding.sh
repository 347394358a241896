#!/bin/bash
# shellcheck disable=SC2015
# run_grounding.sh: models that match masks with texts (arr_coc) and the token allocator: techniques
# that must not change a result, and what is refused.
#
#   bash tests/run_grounding.sh       from the repository's root, after make; see run_lib.sh
#
# The numbers of PyTorch are compared by tests/golden.sh.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare forge
folder=tests/golden/grounding_clip_llama

# step OUT ARGUMENT...: a step of the case, or of $model, on its batch or on $batch.
step() {
    local out=$1
    shift
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    "$binary" step --model "${model:-$folder}" --batch "${batch:-$folder/batch.safetensors}" --out "$out" --set "device.kind=$DEVICE" $FLAGS "$@"
}
equal() { step "$tmp/plain.safetensors" && step "$tmp/other.safetensors" "$@" && same "$tmp/plain.safetensors" "$tmp/other.safetensors"; }
check 'recompute: same bytes' equal --set memory.recompute=all+halves
check 'offload: same bytes' equal --set memory.offload=weights
# What is frozen has no gradients; the projections have.
frozen() {
    step "$tmp/other.safetensors" --set 'model.freeze=["vision_tower.*", "language_model.*"]' || return 1
    ! grep -aq 'grad.vision_tower\|grad.language_model' "$tmp/other.safetensors" || { echo "a frozen part has gradients"; return 1; }
    grep -aq 'grad.mask_projection' "$tmp/other.safetensors" && grep -aq 'grad.text_projection' "$tmp/other.safetensors" || { echo "the projections have none"; return 1; }
}
check 'a frozen tower and a frozen text model' frozen
# An adapter of the text model in NF4, the tower frozen: what ARR-COC trains.
plan() {
    printf 'model: {preset: %s, freeze: ["vision_tower.*"]}\ndata: {sequence: 128}\nadapter: {r: 8, target_modules: [q_proj, v_proj]}\nmemory: {quantize: nf4}\ntrain: {steps: 1, effective_batch: 2, out: %s}\n' "$1" "$tmp/run" >"$tmp/run.yaml"
    "$binary" plan "$tmp/run.yaml" | grep -E 'NF4|arena'
}
check 'preset grounding-tiny: LoRA and NF4' plan grounding-tiny
check 'preset grounding-7b: LoRA and NF4' plan grounding-7b

# --- what is refused ---
forged() { "$tools/forge" "$folder/batch.safetensors" "$tmp/batch.safetensors" "$@"; }
refused() { batch=$tmp/batch.safetensors expect 2 "$1" step "$tmp/other.safetensors" && [ "$(wc -l <"$tmp/err")" -le 2 ]; }
forged set target_masks 2 6
check 'a target beyond the masks' refused 'target_masks\[0,2\] is 6, expected an index below 6, or -1 for none'
forged set target_masks 2 5
check 'a target that is an empty mask' refused 'target_masks\[0,2\] is 5, and that mask is empty'
forged set query_index 0 14
check 'a query beyond the row' refused 'query_index\[0,0\] is 14, expected an index below 14'
forged set masks 0 -1
check 'a mask with a negative share' refused 'masks, sample 0: mask 0 covers -1 of a patch'
forged drop query_index
check 'no queries' refused 'no query_index; this model takes pixel_values, masks, input_ids, query_index'
# Without targets there is no loss, and the similarities are the same.
untargeted() {
    forged drop target_masks
    step "$tmp/plain.safetensors" && batch=$tmp/batch.safetensors step "$tmp/other.safetensors" || return 1
    ! grep -aq 'grad\.\|"loss"' "$tmp/other.safetensors" || { echo "there is a loss"; return 1; }
    grep -aq similarity "$tmp/other.safetensors"
}
check 'no targets: similarities without a loss' untargeted
wrong() {
    rm -rf "$tmp/config"
    cp -r "$folder" "$tmp/config" && sed -i "$1" "$tmp/config/config.json" && model=$tmp/config expect 2 "$2" step "$tmp/other.safetensors"
}
check 'a temperature of 0' wrong 's/"temperature": 0.07/"temperature": 0/' 'temperature is 0, it must lie between 0.001 and 1000'
check 'a width of 0' wrong 's/"projection_dim": 11/"projection_dim": 0/' 'projection_dim is 0, it must lie between 1'
check 'a state that does not exist' wrong 's/"vision_feature_layer": -2/"vision_feature_layer": 4/' 'vision_feature_layer is 4; a vision tower of 3 layers has the states -4 to 3'
check 'a projection of another width' wrong 's/"projection_dim": 11/"projection_dim": 12/' 'mask_projection.weight" has the shape \[11,20\]; config.json asks for \[12,20\]'

# --- training: a described shape among eight ---
tool forge_shapes
shapes() { mkdir -p "$tmp/$1" && "$tools/forge_shapes" "$tmp/$1" "${@:2}"; }
shapes train 0 300 1
shapes held 1000 40 2
for blind in text-blind image-blind; do shapes "held-$blind" 1000 40 2 $blind; done
cat >"$tmp/shapes.yaml" <<END
model: {preset: grounding-tiny}
data: {format: coco, train: $tmp/train/masks.json, images: $tmp/train, queries: $tmp/train/queries.csv, validation: $tmp/held/masks.json,
       validation_images: $tmp/held, validation_queries: $tmp/held/queries.csv, sequence: 128, max_queries: 8, max_masks: 8}
train: {steps: 100, effective_batch: 8, learning_rate: 1.0e-3, warmup_steps: 10, out: $tmp/run}
memory: {precision: f32}
END
# train OUT ARGUMENT...: a run of $tmp/${run:-shapes}.yaml.
train() {
    local out=$1
    shift
    rm -rf "${tmp:?}/$out"
    # shellcheck disable=SC2086
    "$binary" train "$tmp/${run:-shapes}.yaml" --set "train.out=$tmp/$out" --set "device.kind=$DEVICE" $FLAGS "$@"
}
accuracy() { sed -n 's/.*"eval_accuracy":\([0-9.]*\).*/\1/p' "$tmp/$1/metrics.jsonl" | tail -n 1; }
# between LOW VALUE HIGH
between() { awk -v a="$1" -v x="$2" -v b="$3" 'BEGIN { exit !(a <= x && x <= b) }'; }
# The trained model finds nine of ten queries or more. By chance one of eight is found; without
# words, or without colours, it finds at most one of four.
learns() {
    train learned && between 0.9 "$(accuracy learned)" 1 || return 1
    echo "retrieval accuracy $(accuracy learned) of held-out images, chance 0.125"
}
check 'it learns: accuracy of 0.9 or more' learns
# guesses MODEL HELD: the accuracy over these held-out images is 0.25 at most.
guesses() {
    "$binary" eval "$tmp/shapes.yaml" --model "$1" --set "data.validation=$tmp/$2/masks.json" --set "data.validation_images=$tmp/$2" --set "data.validation_queries=$tmp/$2/queries.csv" --json >"$tmp/out.json" || return 1
    between 0 "$("$tools/json_get" "$tmp/out.json" accuracy)" 0.25 && "$tools/json_get" "$tmp/out.json" accuracy
}
check 'untrained: 0.25 at most' guesses grounding-tiny held
check 'without words: 0.25 at most' guesses "$tmp/learned/model" held-text-blind
check 'without colours: 0.25 at most' guesses "$tmp/learned/model" held-image-blind
evaluated() {
    "$binary" eval "$tmp/shapes.yaml" --model "$tmp/learned/model" --json >"$tmp/out.json" || return 1
    between "$(accuracy learned)" "$("$tools/json_get" "$tmp/out.json" accuracy)" "$(accuracy learned)" && "$tools/json_get" "$tmp/out.json" loss
}
check 'eval: the accuracy of the run' evaluated

# --- what does not change a run ---
few="--set train.steps=4 --set train.save_every=2 --set data.validation=null --set data.validation_images=null"
# shellcheck disable=SC2086
plain() { train plain $few --set memory.micro_batch=8; }
same_weights() { same "$tmp/plain/model/model.safetensors" "$tmp/$1/model/model.safetensors"; }
# shellcheck disable=SC2086
as_plain() { train other $few --set memory.micro_batch=8 "$@" && same_weights other; }
plain >"$tmp/log" 2>&1 || cat "$tmp/log"
check 'threads: same bytes' as_plain --set data.threads=3 --set data.prefetch=3
check 'recompute: same bytes' as_plain --set memory.recompute=all
losses() { sed -n 's/.*"loss":\([0-9.e+-]*\),.*"grad_norm":\([0-9.e+-]*\).*/\1 \2/p' "$tmp/$1/metrics.jsonl"; }
# shellcheck disable=SC2086
split() {
    train other $few --set memory.micro_batch=3 || return 1
    paste <(losses plain) <(losses other) | awk '{ for (i = 1; i < 3; i++) { d = $i - $(i + 2); if (d < 0) d = -d; if (!(d <= 1e-5 * $i)) bad = 1; n++ } } END { exit bad || n != 8 }'
}
check 'micro-batches of 3: losses and norms within 1e-5' split
# shellcheck disable=SC2086
resumed() {
    train other $few --set memory.micro_batch=8 --set train.steps=2 || return 1
    "$binary" train "$tmp/shapes.yaml" --set "train.out=$tmp/other" --set "device.kind=$DEVICE" $FLAGS $few --set memory.micro_batch=8 --resume && same_weights other
}
check 'resume: same bytes' resumed

# --- a model of two folders, and an adapter of its text model in NF4 ---
mkdir -p "$tmp/parts"
cat >"$tmp/parts/config.json" <<END
{"model_type": "arr_coc", "projection_dim": 16, "vision_path": "$PWD/tests/golden/clip_full", "text_path": "$PWD/tests/golden/chat/model"}
END
from_parts() {
    train parts-run --set model.preset=null --set "model.path=$tmp/parts" --set train.steps=3 --set 'model.freeze=["vision_tower.*", "language_model.*"]' || return 1
    grep -q '"vision_config"' "$tmp/parts-run/model/config.json" || { echo "the parts are not in config.json"; return 1; }
    same tests/golden/chat/model/tokenizer.json "$tmp/parts-run/model/tokenizer.json" || return 1
    "$binary" eval "$tmp/shapes.yaml" --model "$tmp/parts-run/model" --json >"$tmp/out.json" || return 1
    local loss
    loss=$("$tools/json_get" "$tmp/out.json" loss)
    grep -o '"eval_loss":[0-9.]*' "$tmp/parts-run/metrics.jsonl" | tail -n 1 | awk -F: -v x="$loss" '{ d = x - $2; if (d < 0) d = -d; exit !(d <= 1e-5 * x) }' && echo "loss $loss"
}
check 'two folders become one: the same loss' from_parts
adapted() {
    train adapted --set model.preset=null --set "model.path=$tmp/parts-run/model" --set data.tokenizer=tests/golden/chat/model --set train.steps=3 --set memory.quantize=nf4 \
        --set 'adapter={r: 4, target_modules: "language_model.*(q_proj|v_proj)", modules_to_save: [mask_projection, text_projection]}' || return 1
    grep -aq 'base_model.model.mask_projection' "$tmp/adapted/model/adapter_model.safetensors" && ! grep -aq 'vision_tower.*lora' "$tmp/adapted/model/adapter_model.safetensors"
}
check 'LoRA on the text model in NF4, both projections trained' adapted
nowhere() {
    mkdir -p "$tmp/nowhere" && sed 's/chat.model/nowhere/' "$tmp/parts/config.json" >"$tmp/nowhere/config.json"
    expect 2 'text_path: .*nowhere' train other --set model.preset=null --set "model.path=$tmp/nowhere"
}
check 'a folder that does not exist' nowhere

# --- data ---
# shellcheck disable=SC2086
missing() {
    { cat "$tmp/train/queries.csv"; echo '7.png,purple circle,99999'; echo 'nowhere.png,red circle,1'; } >"$tmp/more.csv"
    train other --set train.steps=2 --set data.validation=null --set data.validation_images=null --set "data.queries=$tmp/more.csv" >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    grep 'data.train: left out: 1 query of a mask that does not exist (line 2402: image 7.png has no mask 99999)' "$tmp/out"
}
check 'a mask that does not exist: one line' missing
refused_run() { expect 2 "$1" train other --set data.validation=null --set data.validation_images=null "${@:2}"; }
check 'no queries' refused_run 'there are no queries: set data.queries' --set data.queries=null
printf 'image,query,mask_id\n1.png,,3\n' >"$tmp/empty.csv"
check 'a query without words' refused_run 'empty.csv:2: no text' --set "data.queries=$tmp/empty.csv"
check 'more masks than a query chooses among' refused_run 'data.max_masks is 17; a query chooses among at most 16 masks' --set data.max_masks=17
check 'more queries than masks' refused_run 'data.max_queries is 8, and a sample has 4 masks' --set data.max_masks=4
check 'rows of tokens' refused_run 'data.format tokens gives rows of tokens, and a arr_coc takes .*set data.format to sa1b' --set data.format=tokens --set data.images=null
check 'a vocabulary that is not of bytes, and no tokenizer' refused_run 'grounding_clip_llama has no tokenizer: set data.tokenizer' --set model.preset=null --set model.path=tests/golden/grounding_clip_llama
# SA-1B: images with more masks than there is room for, of which the targets are always some;
# queries as JSON lines.
sa1b() {
    "$binary" data make "$tmp/sa" --images 6 --masks 40 --size 160x120 --extracted >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    local file image id
    for file in "$tmp"/sa/*/*.json; do
        image=$(basename "$file" .json)
        for id in $(grep -o '"id": *[0-9]*' "$file" | grep -o '[0-9]*' | tail -n 3); do echo "{\"image\": \"${image#sa_}\", \"query\": \"mask $id\", \"mask_id\": $id}"; done
    done >"$tmp/sa.jsonl"
    train other --set data.format=sa1b --set "data.train=$tmp/sa/*" --set data.images=null --set data.validation=null --set data.validation_images=null \
        --set "data.queries=$tmp/sa.jsonl" --set data.max_masks=4 --set data.max_queries=2 --set train.steps=6 --set train.effective_batch=2 >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    ! grep 'left out' "$tmp/out" && grep 'data.train: 18 queries in 12 samples of at most 2' "$tmp/out"
}
check 'SA-1B, queries as JSON lines' sa1b

# --- the token allocator ---
scored=tests/golden/allocator_clip_llama
allocated() { model=$scored batch=$scored/batch.safetensors step "$@"; }
equal_allocated() { allocated "$tmp/plain.safetensors" && allocated "$tmp/other.safetensors" "$@" && same "$tmp/plain.safetensors" "$tmp/other.safetensors"; }
check 'allocator, recompute: same bytes' equal_allocated --set memory.recompute=all+halves
# With everything else frozen, the loss still has gradients for scorer and balancer by itself.
reached() {
    allocated "$tmp/other.safetensors" --set 'model.freeze=["vision_tower.*", "language_model.*", "multi_modal_projector.*"]' || return 1
    strings -n 8 "$tmp/other.safetensors" | head -n 1 | grep -o '"grad\.[a-z0-9_.]*"' | sort >"$tmp/names"
    [ "$(wc -l <"$tmp/names")" -eq 10 ] && ! grep -v 'grad.scorer\|grad.balancer' "$tmp/names"
}
check 'allocator: what is trained when LLaVA is frozen' reached
check 'preset allocator-tiny: LoRA and NF4' plan allocator-tiny
wrong_allocator() {
    rm -rf "$tmp/config"
    cp -r $scored "$tmp/config" && sed -i "$1" "$tmp/config/config.json" && model=$tmp/config batch=$scored/batch.safetensors expect 2 "$2" step "$tmp/other.safetensors"
}
check 'more tokens than patches' wrong_allocator 's/"num_visual_tokens": 5/"num_visual_tokens": 17/' 'num_visual_tokens is 17, expected 1 to 16, the patches of an image'
check 'the class token among the patches' wrong_allocator 's/"vision_feature_select_strategy": "default"/"vision_feature_select_strategy": "full"/' 'vision_feature_select_strategy is full.* set it to default'
check 'a selection that does not exist' wrong_allocator 's/"num_visual_tokens": 5/"num_visual_tokens": 5, "token_selection": "best"/' 'token_selection "best": expected scored or random'
check 'another number of image tokens' wrong_allocator 's/"num_visual_tokens": 5/"num_visual_tokens": 4/' 'input_ids has 10 image tokens .* 2 images of 4 features: expected 8 tokens'

# --- the token allocator against random tokens: the colour of one of 64 patches, of which the text
# model gets four --- A tokenizer of letters.
letters() {
    local id=2 c vocab='"<s>": 0, "</s>": 1'
    mkdir -p "$1" || return 1
    for c in Ġ a b c d e f g h i j k l m n o p q r s t u v w x y z '?' ':'; do vocab="$vocab, \"$c\": $id"; id=$((id + 1)); done
    cat >"$1/tokenizer.json" <<END
{"version": "1.0", "added_tokens": [{"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "</s>", "special": true}, {"id": 256, "content": "<image>", "special": true}],
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {$vocab}, "merges": []}}
END
    cat >"$1/tokenizer_config.json" <<'END'
{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<s>",
 "chat_template": "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'u:' + m['content'] + ' ' }}{% else %}{{ 'a:' + m['content'] + '</s>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"}
END
}
letters "$tmp/letters"
shapes patches 0 600 1 patches
shapes held-patches 5000 100 2 patches
cat >"$tmp/patches.yaml" <<END
model: {preset: allocator-tiny}
data: {format: conversations, train: $tmp/patches/chats.json, images: $tmp/patches, validation: $tmp/held-patches/chats.json, validation_images: $tmp/held-patches, sequence: 32, tokenizer: $tmp/letters}
train: {steps: 150, effective_batch: 16, learning_rate: 2.0e-3, warmup_steps: 10, out: $tmp/run}
memory: {precision: f32}
END
few="--set model.preset=null --set train.steps=3 --set train.save_every=2 --set data.validation=null --set data.validation_images=null"
# The preset's weights, which a step with a learning rate of 0 leaves as they are. The tokens are
# those of the tower's input, so that none knows what is in other patches. begin SELECTION
begin() {
    [ -d "$tmp/first" ] || run=patches train first --set train.steps=1 --set data.validation=null --set data.validation_images=null || return 1
    rm -rf "${tmp:?}/$1" && cp -r "$tmp/first/model" "$tmp/$1" || return 1
    sed -i "s/\"num_visual_tokens\": 16/\"num_visual_tokens\": 4/; s/\"vision_feature_layer\": -2/\"vision_feature_layer\": 0/; s/\"token_selection\": \"scored\"/\"token_selection\": \"$1\"/" "$tmp/$1/config.json"
}
last_loss() { sed -n 's/.*"eval_loss":\([0-9.e+-]*\).*/\1/p' "$tmp/$1/metrics.jsonl" | tail -n 1; }
# An answer is two tokens, of which one is the colour: not to know it costs ln(4) / 2 = 0.69.
allocated_learns() { begin "$2" && run=patches train "$1" --set model.preset=null --set "model.path=$tmp/$2" && between "$3" "$(last_loss "$1")" "$4" && echo "loss $(last_loss "$1")"; }
check 'allocator: it learns to find the patch' allocated_learns by-score scored 0 0.3
check 'as many random tokens: it does not' allocated_learns by-chance random 0.6 0.8
# The colour of the patch that the question names: by the tokens that it chooses, and by as many at
# random.
answered() { # RUN LEAST MOST
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/patches.yaml" --model "$tmp/$1/model" --max-new 3 --set model.preset=null --set "device.kind=$DEVICE" $FLAGS -o "$tmp/answers.jsonl" --json >"$tmp/eval.json" || return 1
    "$tools/json_get" "$tmp/eval.json" exact_match
    between "$2" "$("$tools/json_get" "$tmp/eval.json" exact_match)" "$3"
}
check 'allocator: eval answers' answered by-score 80 100
check 'as many random tokens: eval answers' answered by-chance 0 60
# shellcheck disable=SC2086
patches_plain() { run=patches train plain $few --set memory.micro_batch=16 --set "model.path=$tmp/$1"; }
# shellcheck disable=SC2086
patches_split() {
    patches_plain "$1" && run=patches train other $few --set memory.micro_batch=5 --set "model.path=$tmp/$1" || return 1
    paste <(losses plain) <(losses other) | awk '{ for (i = 1; i < 3; i++) { d = $i - $(i + 2); if (d < 0) d = -d; if (!(d <= 1e-4 * $i)) bad = 1; n++ } } END { exit bad || n != 6 }'
}
check 'allocator, micro-batches of 5: losses and norms within 1e-4' patches_split scored
check 'random tokens, micro-batches of 5: losses and norms within 1e-4' patches_split random
# shellcheck disable=SC2086
patches_resumed() {
    run=patches train other $few --set memory.micro_batch=16 --set "model.path=$tmp/random" --set train.steps=2 || return 1
    "$binary" train "$tmp/patches.yaml" --set "train.out=$tmp/other" --set "device.kind=$DEVICE" $FLAGS $few --set memory.micro_batch=16 --set "model.path=$tmp/random" --resume && same_weights other
}
check 'random tokens, resume: same bytes' patches_resumed
# Rows with room for more take one image all the same.
# shellcheck disable=SC2086
long_rows() { run=patches train other $few --set "model.path=$tmp/scored" --set data.sequence=64 --set memory.micro_batch=4 >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }; grep '600 images, 1.00 a row of at most 1 ' "$tmp/out"; }
check 'allocator: one image a row' long_rows
several() { run=patches expect 2 'data.max_images is 2, and a arr_coc_allocator takes one image a row: leave it out' train other --set data.max_images=2; }
check 'several images a row' several
no_answers() { run=patches expect 2 'train.eval_samples is 2, but a model of type arr_coc_allocator' train other --set train.eval_samples=2; }
check 'allocator: train.eval_samples' no_answers
summary
