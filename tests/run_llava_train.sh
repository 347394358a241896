#!/bin/bash
# shellcheck disable=SC2015
# run_llava_train.sh: training on conversations with images: from a JSON file with images to a model
# that has learned from them.
#
#   bash tests/run_llava_train.sh       from the repository's root, after make; see run_lib.sh
#
# The model is that of tests/golden/llava_clip_llama, whose images have 4 tokens, with a tokenizer
# of single characters. The images show bright cells, and the answer is their number over all images
# of a conversation (forge_conversations.c).
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
tool compare forge_conversations

# --- the model and the data ---
model=$tmp/model
make_model llava_clip_llama "$model" || exit 2
mixed=$tmp/mixed two=$tmp/two held=$tmp/held text=$tmp/text
"$tools/forge_conversations" "$mixed" 40 0 3 1 && "$tools/forge_conversations" "$two" 400 2 2 2 && "$tools/forge_conversations" "$held" 100 2 2 3 &&
    "$tools/forge_conversations" "$text" 20 0 0 4 || exit 2
cat >"$tmp/run.yaml" <<END
model: {path: $model}
data: {format: conversations, train: $mixed/chats.json, images: $mixed/images, sequence: 64, max_images: 4}
train: {steps: 4, effective_batch: 4, learning_rate: 0.005, schedule: constant, warmup_steps: 0, out: $tmp/unused}
memory: {micro_batch: 4, precision: f32}
device: $DEVICE
END

# --- rows ---
rows() {
    expect 0 'data.train: 60 images, 3.33 a row of at most 4 \(data.max_images\); 83.3 % of their slots are filled' run plain || return 1
    grep 'conversations in' "$tmp/err"
}
check '0 to 3 images a sample: packed' rows
check 'other threads and slots: same bytes' same_as other --set data.threads=4 --set data.prefetch=1
check 'recompute: same bytes' same_as other --set memory.recompute=all
poisoned() { needs_cpu PLIMSOLL_POISON && PLIMSOLL_POISON=1 same_as other; }
check 'NaN in dead memory: same bytes' poisoned
in_tar() { tar -cf "$tmp/images.tar" -C "$mixed/images" . && same_as other --set "data.images=$tmp/images.tar"; }
check 'images in a tar: same bytes' in_tar
beside() { sed 's|"\([0-9]*_[0-9]*.png\)"|"images/\1"|g' "$mixed/chats.json" >"$mixed/beside.json" && same_as other --set "data.train=$mixed/beside.json" --set data.images=null; }
check 'paths from the folder of the JSON file: same bytes' beside
inspected() {
    "$binary" data inspect "$mixed/chats.json" --model "$model" --set data.sequence=64 --set data.max_images=4 --set "data.images=$mixed/images" >"$tmp/out" || return 1
    grep '^images      60, 3.33 a row of at most 4; 83.3 % of their slots are filled' "$tmp/out" || { cat "$tmp/out"; return 1; }
}
check 'data inspect' inspected
# Paths that lead out of data.images, and absolute ones.
outside() {
    local named=(--set "data.train=$mixed/outside.json" --set "data.images=$mixed/none")
    mkdir -p "$mixed/none" "$tmp/apart" && sed 's|"\([0-9]*_[0-9]*.png\)"|"../images/\1"|g' "$mixed/chats.json" >"$mixed/outside.json"
    sed "s|\"\([0-9]*_[0-9]*.png\)\"|\"$mixed/images/\1\"|g" "$mixed/chats.json" >"$tmp/apart/absolute.json"
    expect 2 "_0.png: it is outside of $mixed/none: set data.images .*, or data.outside_images: true" run other "${named[@]}" || return 1
    expect 2 'it is outside of ' run other --set "data.train=$tmp/apart/absolute.json" --set "data.images=$mixed/none" || return 1
    same_as other "${named[@]}" --set data.outside_images=true && same_as other --set "data.train=$tmp/apart/absolute.json" || return 1
    "$binary" init --model "$model" --data "$tmp/apart/absolute.json" --out "$tmp/plain" >"$tmp/init.yaml" && grep "^  images: \"$mixed/images\"" "$tmp/init.yaml"
}
check 'images outside of data.images: refused, unless a key allows them' outside
few() { (ulimit -n 24 && expect 1 'reading and saving need [0-9]*: raise the limit with .ulimit -n., which is 24' run other); }
check 'too few descriptors are said before the first step' few
# The images are in a folder beside the file, which init finds.
initial() {
    "$binary" init --model "$model" --data "$mixed/chats.json" --out "$tmp/plain" >"$tmp/init.yaml" && grep -q "^  images: \"$mixed/images\"" "$tmp/init.yaml" &&
        grep -q '^  eval_samples: 12 ' "$tmp/init.yaml" && grep '^  max_images: 4 ' "$tmp/init.yaml" || { cat "$tmp/init.yaml"; return 1; }
    rm -rf "$tmp/plain" && expect 0 'data.holdout: .* images' "$binary" train "$tmp/init.yaml" --set train.epochs=1 --set train.eval_max_new=2 --set "device.kind=$DEVICE" &&
        grep -q "^report: $tmp/plain/report.html" "$tmp/out" && grep -q '<img' "$tmp/plain/report.html"
}
check 'init finds the images, and how many a row needs' initial
# A page is given to others: files outside of data.images are named in it, and not shown, whatever
# the run may read.
foreign() {
    local shown="<img alt='' src='data:image/png"
    grep -q "$shown" "$tmp/plain/report.html" && cp -r "$tmp/plain" "$tmp/foreign" || return 1
    sed -i "s|^  images: .*|  images: \"$mixed/none\"|; s|^  outside_images: .*|  outside_images: true|" "$tmp/foreign/config.yaml" &&
        sed -i 's|"\([0-9]*_[0-9]*.png\)"|"../images/\1"|g' "$tmp"/foreign/answers/*.jsonl && expect 0 '' "$binary" report "$tmp/foreign" || return 1
    grep -q '../images/[0-9]*_0.png' "$tmp/foreign/report.html" && ! grep -q "$shown" "$tmp/foreign/report.html"
}
check 'the report shows no images outside of data.images' foreign
# A step of SGD with learning rate 1 subtracts the gradient: packed rows, and each sample in a row
# of its own.
gradients() {
    local sgd=(--set memory.optimizer=sgd --set train.momentum=0 --set train.learning_rate=1 --set train.weight_decay=0 --set train.clip_norm=0 --set train.steps=1 --set data.shuffle=false)
    expect 0 ' in 18 rows' run plain "${sgd[@]}" --set train.effective_batch=18 && expect 0 ' in 40 rows' run other "${sgd[@]}" --set train.effective_batch=40 --set data.packing=false || return 1
    "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-6 || return 1
    expect 0 '' run other "${sgd[@]}" --set train.effective_batch=18 --set memory.micro_batch=5 && "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-6
}
check 'packed rows: the gradients of the samples by themselves, within 1e-6' gradients
resumes() {
    local held_out=(--set data.holdout=0.2 --set train.eval_every=2 --set train.save_every=2 --set train.effective_batch=3 --set memory.micro_batch=2)
    expect 0 '' run plain "${held_out[@]}" --set train.steps=6 && expect 0 '' run other "${held_out[@]}" --set train.steps=2 || return 1
    expect 0 'resuming after step 2' resumed other "${held_out[@]}" --set train.steps=6 || return 1
    same "$(weights plain)" "$(weights other)" && [ "$(grep -c eval_loss "$tmp/other/metrics.jsonl")" -eq 3 ]
}
check 'holdout, evaluation, resume: same bytes' resumes

# The frozen tower runs apart from the step, over the images that there are.
encoded() {
    local with=(--set 'model.freeze=["vision_tower.*"]' --set data.holdout=0.2 --set train.eval_every=2 --set train.save_every=2 --set train.effective_batch=3 --set memory.micro_batch=2) packing
    for packing in true false; do
        expect 0 '' run plain "${with[@]}" --set train.steps=6 --set data.packing=$packing --set memory.encode=inline || return 1
        expect 0 '' run other "${with[@]}" --set train.steps=2 --set data.packing=$packing --set memory.encode=2 || return 1
        expect 0 'resuming after step 2' resumed other "${with[@]}" --set train.steps=6 --set data.packing=$packing --set memory.encode=2 || return 1
        same "$(weights plain)" "$(weights other)" || return 1
        [ "$(grep -o '"eval_loss": *[0-9.e-]*' "$tmp/plain/metrics.jsonl")" = "$(grep -o '"eval_loss": *[0-9.e-]*' "$tmp/other/metrics.jsonl")" ] || { echo "another evaluation"; return 1; }
    done
    grep -o '"eval_loss": *[0-9.e-]*' "$tmp/plain/metrics.jsonl" | tail -n 1
}
check 'a frozen tower apart, packed and not, evaluation, resume: same bytes' encoded

# --- other models ---
# Each image of SmolVLM is four tiles and the whole.
tiles() {
    make_model smolvlm "$tmp/smolvlm" || return 1
    echo '{"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 24}, "max_image_size": {"longest_edge": 12}}' >"$tmp/smolvlm/preprocessor_config.json"
    local with=(--set "model.path=$tmp/smolvlm" --set data.sequence=256 --set data.max_images=20 --set train.effective_batch=3 --set memory.micro_batch=3)
    expect 0 '300 images, [0-9.]*.*20' run plain "${with[@]}" --set train.save_every=2 || return 1
    expect 0 '' run other "${with[@]}" --set train.steps=2 && resumed other "${with[@]}" 2>/dev/null && same "$(weights plain)" "$(weights other)"
}
check 'SmolVLM: an image is several tiles' tiles
# Each image of InternVL is as many tiles as its shape asks for, and the whole.
crops() {
    make_internvl "$tmp/internvl" || return 1
    local with=(--set "model.path=$tmp/internvl" --set data.sequence=256 --set data.max_images=20 --set train.effective_batch=3 --set memory.micro_batch=3)
    expect 0 '300 images, [0-9.]*.*20' run plain "${with[@]}" --set train.save_every=2 || return 1
    expect 0 '' run other "${with[@]}" --set train.steps=2 && resumed other "${with[@]}" 2>/dev/null && same "$(weights plain)" "$(weights other)" || return 1
    "$binary" eval "$tmp/run.yaml" --model "$tmp/plain/model" --set data.sequence=256 --set data.max_images=20 --set "data.validation=$mixed/chats.json" --set "data.validation_images=$mixed/images" --max-new 2 --loss >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    grep '^loss' "$tmp/out"
}
check 'InternVL: tiles by the shape of an image; train, resume, eval' crops
text_models=tests/golden/llava_text
first_loss() { sed -n '1s/.*"loss":\([0-9.]\{7\}\).*/\1/p' "$tmp/$1/metrics.jsonl"; }
# Each image of LLaVA-NeXT is a whole and tiles, and has tokens by its shape.
maps() {
    make_next "$tmp/next" || return 1
    local with=(--set "model.path=$tmp/next" --set data.sequence=256 --set data.max_images=20) sgd=(--set memory.optimizer=sgd --set train.momentum=0 --set train.learning_rate=1 --set train.weight_decay=0 --set train.clip_norm=0 --set train.steps=1 --set data.shuffle=false)
    expect 0 ' in 10 rows' run plain "${with[@]}" "${sgd[@]}" --set train.effective_batch=10 && expect 0 ' in 40 rows' run other "${with[@]}" "${sgd[@]}" --set train.effective_batch=40 --set data.packing=false || return 1
    "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-6 || return 1
    # images of five shapes: the loss of the first step
    local shapes=(--set "model.path=$text_models/next" --set "data.train=$text_models/chats.jsonl" --set "data.images=$text_models" --set data.sequence=512 --set data.max_images=15 --set memory.micro_batch=1 "${sgd[@]}") loss
    expect 0 ' in 3 rows' run seen "${shapes[@]}" --set train.effective_batch=3 && loss=$(first_loss seen) || return 1
    expect 0 ' in 6 rows' run other "${shapes[@]}" --set train.effective_batch=6 --set data.packing=false && [ "$(first_loss other)" = "$loss" ] || { echo "packed $loss, not packed $(first_loss other)"; return 1; }
    local more=(--set 'model.freeze=["vision_tower.*"]' --set data.holdout=0.2 --set train.eval_every=2 --set train.eval_samples=3 --set train.save_every=2 --set train.effective_batch=3 --set memory.micro_batch=2)
    expect 0 '' run plain "${with[@]}" "${more[@]}" --set train.steps=4 --set memory.encode=inline && expect 0 '' run other "${with[@]}" "${more[@]}" --set train.steps=2 --set memory.encode=2 || return 1
    expect 0 'resuming after step 2' resumed other "${with[@]}" "${more[@]}" --set train.steps=4 --set memory.encode=2 && same "$(weights plain)" "$(weights other)"
}
check 'LLaVA-NeXT: packed rows, a frozen tower, answers, resume' maps
# The tokens of an image see each other, in packed rows and in others: a step of SGD subtracts the
# same gradient. Its windows are smaller than an image.
both() {
    make_gemma3 "$tmp/gemma3" || return 1
    local with=(--set "model.path=$tmp/gemma3" --set data.sequence=96) sgd=(--set memory.optimizer=sgd --set train.momentum=0 --set train.learning_rate=1 --set train.weight_decay=0 --set train.clip_norm=0 --set train.steps=1 --set data.shuffle=false)
    expect 0 ' in 17 rows' run plain "${with[@]}" "${sgd[@]}" --set train.effective_batch=17 && expect 0 ' in 40 rows' run other "${with[@]}" "${sgd[@]}" --set train.effective_batch=40 --set data.packing=false || return 1
    "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-6 || return 1
    local more=(--set 'model.freeze=["vision_tower.*"]' --set data.holdout=0.2 --set train.eval_every=2 --set train.eval_samples=3 --set train.save_every=2 --set train.effective_batch=3 --set memory.micro_batch=2)
    expect 0 '' run plain "${with[@]}" "${more[@]}" --set train.steps=4 --set memory.encode=inline && expect 0 '' run other "${with[@]}" "${more[@]}" --set train.steps=2 --set memory.encode=2 || return 1
    expect 0 'resuming after step 2' resumed other "${with[@]}" "${more[@]}" --set train.steps=4 --set memory.encode=2 && same "$(weights plain)" "$(weights other)"
}
check 'Gemma 3: packed rows, a frozen tower, answers, resume' both
# All of a prompt is seen in both directions, up to the first label.
prompts() {
    make_paligemma "$tmp/paligemma" || return 1
    local with=(--set "model.path=$tmp/paligemma" --set data.sequence=96 --set data.template=paligemma) sgd=(--set memory.optimizer=sgd --set train.momentum=0 --set train.learning_rate=1 --set train.weight_decay=0 --set train.clip_norm=0 --set train.steps=1 --set data.shuffle=false)
    expect 0 ' in 15 rows' run plain "${with[@]}" "${sgd[@]}" --set train.effective_batch=15 && expect 0 ' in 40 rows' run other "${with[@]}" "${sgd[@]}" --set train.effective_batch=40 --set data.packing=false || return 1
    "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-6 || return 1
    local more=(--set data.holdout=0.2 --set train.eval_every=2 --set train.eval_samples=3 --set train.save_every=2 --set train.effective_batch=3 --set memory.micro_batch=2)
    expect 0 '' run plain "${with[@]}" "${more[@]}" --set train.steps=4 && expect 0 '' run other "${with[@]}" "${more[@]}" --set train.steps=2 || return 1
    expect 0 'resuming after step 2' resumed other "${with[@]}" "${more[@]}" --set train.steps=4 && same "$(weights plain)" "$(weights other)"
}
check 'PaliGemma: packed rows, answers, resume' prompts
# Its image token, -200, is not in the vocabulary.
original() { make_model llava_original "$tmp/original" && expect 0 '60 images, [0-9.]* a row' run plain --set "model.path=$tmp/original"; }
check "LLaVA's original layout" original

# --- no images --- A part that no batch reaches has a zero gradient; AdamW decays its weights all
# the same, but for those that a run leaves out.
text_alone() {
    local with=(--set "data.train=$text/chats.json" --set data.images=null --set train.weight_decay=0)
    expect 0 'no conversation has an image; with data.max_images: 0 the vision tower does not run' run plain "${with[@]}" || return 1
    expect 0 '' run other "${with[@]}" --set data.max_images=0 && same "$(weights plain)" "$(weights other)"
}
check 'only text, with and without room for images: same bytes' text_alone
# arena ARGUMENT...: the bytes of the plan's arena; no data is read.
arena() { "$binary" plan "$tmp/run.yaml" --set data.train=/nowhere.json "$@" --json >"$tmp/out" && "$tools/json_get" "$tmp/out" arena_bytes; }
planned() {
    local n last=0 bytes
    for n in 0 1 4 8; do
        bytes=$(arena --set "data.max_images=$n") || return 1
        [ "$bytes" -gt "$last" ] || { echo "$n images: $bytes bytes, fewer images: $last"; return 1; }
        last=$bytes
    done
    [ "$(arena --images 8 --set data.sequence=32)" = "$last" ] && [ "$(arena --set data.max_images=auto --set data.sequence=32)" = "$(arena --set data.max_images=8 --set data.sequence=32)" ]
}
check 'the plan has the rows of data.max_images, without data' planned

# --- what cannot be used ---
damage() { rm -rf "$tmp/broken" && cp -r "$mixed" "$tmp/broken" && rm "$tmp/broken/images/5_0.png" && head -c 60 "$mixed/images/10_1.png" >"$tmp/broken/images/10_1.png"; }
replaced() {
    damage && expect 0 'broken sample.*chats.json:6:.*\(5_0.png:.*\);' run plain --set "data.train=$tmp/broken/chats.json" \
        --set "data.images=$tmp/broken/images" --set train.steps=3 --set train.effective_batch=6 --set memory.micro_batch=6 --json || return 1
    grep -Eq 'broken sample .*chats.json:11: the image cannot be decoded' "$tmp/err" || { cat "$tmp/err"; return 1; }
    [ "$("$tools/json_get" "$tmp/out" broken_samples)" = 2 ] || { cat "$tmp/out"; return 1; }
}
check 'a missing and a broken image: replaced and counted' replaced
missing() {
    "$binary" data inspect "$mixed/chats.json" --model "$model" --set "data.images=$tmp/broken/images" >"$tmp/out" || return 1
    grep -A 1 '^missing     1 sample has an image that cannot be used' "$tmp/out" | grep 'chats.json:6: 5_0.png: there is no such file' || { cat "$tmp/out"; return 1; }
    cp "$tmp/out" "$tmp/set" && expect 0 '' "$binary" data inspect "$mixed/chats.json" --model "$model" --images "$tmp/broken/images" && same "$tmp/set" "$tmp/out" || return 1
    expect 2 '-o is for images with masks' "$binary" data inspect "$mixed/chats.json" --model "$model" -o "$tmp/sheet.png"
}
check 'data inspect names a missing image' missing
too_bad() { damage && rm "$tmp"/broken/images/*_0.png && expect 1 'data.max_bad is 0.05;' run plain --set "data.train=$tmp/broken/chats.json" --set "data.images=$tmp/broken/images" --set train.steps=60; }
check 'more of them than data.max_bad' too_bad
left_out() { expect 0 '10 samples have more images than data.max_images \(2; the most are 3\) and are left out; data.too_many_images: split' run plain --set data.max_images=2; }
check 'more images than data.max_images: left out and counted' left_out
# Three turns of one image each, and a row for two images: two conversations of it.
splits() {
    local turn='{"from": "human", "value": "<image>\nhow many?"}, {"from": "gpt", "value": "2"}'
    echo "[{\"image\": [\"3_0.png\", \"3_1.png\", \"3_2.png\"], \"conversations\": [$turn, $turn, $turn]}]" >"$tmp/turns.json"
    expect 0 '1 sample .*data.max_images' run plain --set "data.train=$tmp/turns.json" --set data.max_images=2 --set data.sequence=128 --set data.too_many_images=split &&
        grep '2 conversations in 2 rows' "$tmp/err"
}
check 'more images than data.max_images: split at turns' splits
all_left_out() { expect 2 'all 100.*data.max_images, which is 1;.*2: set data.max_images' run plain --set "data.train=$held/chats.json" --set "data.images=$held/images" --set data.max_images=1; }
check 'all have more' all_left_out
check 'a number of images that is none' expect 2 'data.max_images: found the number -2, expected auto or a whole number from 0 to 4096' run plain --set data.max_images=-2

# --- learning ---
# loss OUT: the last evaluation's.
loss() { sed -n 's/.*"eval_loss":\([^,]*\),.*/\1/p' "$tmp/$1/metrics.jsonl" | tail -n 1; }
# The entropy of the number by itself is 0.88 of each of its two tokens; the second is the end of
# the turn.
learns() {
    local with=(--set train.effective_batch=16 --set memory.micro_batch=16 --set "data.train=$two/chats.json" --set "data.validation=$held/chats.json") seen blind fresh
    local images=(--set "data.images=$two/images" --set "data.validation_images=$held/images") blank=(--set "data.images=$two/blank" --set "data.validation_images=$held/blank")
    expect 0 '' run seen "${with[@]}" "${images[@]}" --set train.steps=120 && seen=$(loss seen) || return 1
    expect 0 '' run plain "${with[@]}" "${blank[@]}" --set train.steps=120 && blind=$(loss plain) || return 1
    expect 0 '' run plain "${with[@]}" "${images[@]}" --set train.steps=1 --set train.learning_rate=0 && fresh=$(loss plain) || return 1
    echo "loss $seen; without seeing $blind; untrained $fresh"
    awk -v a="$seen" -v b="$blind" -v c="$fresh" 'BEGIN { exit !(a < 0.2 && b > a + 0.6 && c > a + 0.6) }'
}
check 'counts over two images: 0.6 below blank images and the untrained' learns
# exact IMAGES: the share of the numbers that the model of `learns` says for the held-out questions,
# in percent. The most usual number is 27 % of them.
exact() {
    "$binary" eval "$tmp/run.yaml" --model "$tmp/seen/model" --set "data.validation=$held/chats.json" --set "data.validation_images=$held/$1" --max-new 3 --loss 2>"$tmp/err" >"$tmp/out" || return 1
    awk '/chats.json/ { print int($3) }' "$tmp/out"
}
answers() {
    local seen blind
    seen=$(exact images) && grep -q "^loss $(loss seen | cut -c 1-6)" "$tmp/out" && blind=$(exact blank) || { cat "$tmp/out" "$tmp/err"; return 1; }
    echo "$seen % right; of blank images $blind %"
    [ "$seen" -ge 85 ] && [ "$blind" -le 45 ]
}
check 'eval: the numbers, and the loss of training' answers

summary
