#!/bin/bash
# shellcheck disable=SC2015
# run_onevision.sh: LLaVA-OneVision on conversations with images in tiles, several images, and
# videos: ids and answers equal transformers'; training equals PyTorch's, whatever the techniques;
# adapters; what is refused.
#
#   bash tests/run_onevision.sh     from the repository's root, after make; see run_lib.sh
#
# tests/golden/onevision_chats has the model, the conversations, and transformers' ids, labels,
# answers and losses (make_onevision_chats.py).
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare forge_png
model=tests/golden/onevision_chats/qwen2

# run OUT [ARGUMENT...]: four steps; rows are packed, two a step.
run() {
    local out=$1
    shift
    rm -rf "${tmp:?}/$out"
    # shellcheck disable=SC2086
    "$binary" train $model/run.yaml --set "train.out=$tmp/$out" --set train.steps=4 --set train.effective_batch=2 --set memory.micro_batch=2 \
        --set train.warmup_steps=0 --set data.packing=true --set data.sequence=200 --set "device.kind=$DEVICE" $FLAGS "$@"
}
weights() { echo "$tmp/$1/model/model.safetensors"; }
losses() { grep -o '"loss": *[0-9.e-]*' "$tmp/$1/metrics.jsonl" | sed 's/.*: *//'; }
near_losses() { paste <(losses "$1") <(losses "$2") | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d } END { print "losses within " worst; exit !(NR == 4 && worst < 1e-4) }'; }

# --- ids and answers ----------------------------------------------------------------------------

# list KEY LINE: the numbers of a key in a line of expected.jsonl.
list() { sed -n "$2p" $model/expected.jsonl | tr -d ' ' | sed "s/.*\"$1\":\[\([^]]*\)\].*/\1/"; }
# tokenize takes no videos: those of conversations with one are in the training below.
tokens() {
    local i n=0
    ln -sfn "$PWD/$model/images" "$tmp/images"
    for i in 1 2 3 4 5 6; do
        sed -n "${i}p" $model/chats.jsonl >"$tmp/chat.json"
        "$binary" tokenize --model $model --chat "$tmp/chat.json" --json | tr -d ' \n' >"$tmp/tokens.json" || return 1
        for key in ids labels; do
            [ "$(sed "s/.*\"$key\":\[\([^]]*\)\].*/\1/" "$tmp/tokens.json")" = "$(list $key $i)" ] || { echo "line $i: $key"; cat "$tmp/tokens.json"; return 1; }
        done
        n=$((n + 1))
    done
    echo "$n conversations"
}
check 'ids and labels of transformers' tokens
answers() {
    local n i
    for n in 1 3 8; do
        # shellcheck disable=SC2086
        expect 0 '' "$binary" generate --model $model --prompts $model/prompts.jsonl --max-new 8 --batch $n --set data.max_frames=4 --set memory.precision=f32 --set "device.kind=$DEVICE" $FLAGS || return 1
        for i in 1 2 3 4 5 6 7 8; do
            [ "$(sed -n "${i}p" "$tmp/out" | tr -d ' ' | sed 's/.*"ids":\[\([^]]*\)\].*/\1/')" = "$(list answer $i)" ] || { echo "prompt $i, $n at once: $(sed -n "${i}p" "$tmp/out")"; return 1; }
        done
    done
    echo "8 answers of 8 tokens, 0 to 3 images and videos, up to 8 at once"
}
check 'answers of transformers' answers
evaluated() {
    # shellcheck disable=SC2086
    expect 0 '' "$binary" eval --model $model --data $model/chats.jsonl --set data.max_frames=4 --set data.max_images=16 --set "device.kind=$DEVICE" --set memory.precision=f32 --json $FLAGS || return 1
    json "$tmp/out" token_f1
}
check 'eval' evaluated

# --- training -----------------------------------------------------------------------------------

pytorch() { GOLDEN=tests/golden/onevision_chats sh tests/golden.sh >"$tmp/golden" 2>&1 || { cat "$tmp/golden"; return 1; }; grep '^ok' "$tmp/golden" | sed 's/^ok *//' | tail -n 1; }
check 'six steps with images and videos are those of PyTorch' pytorch
same_as() { expect 0 '' run other "$@" && same "$(weights plain)" "$(weights other)"; }
near() { expect 0 '' run other "$@" && near_losses plain other; }
techniques() {
    expect 0 'images, [0-9.]* a row of at most 16' run plain || return 1
    same_as --set memory.recompute=all && same_as --set memory.recompute=selective && same_as --set data.threads=3 --set data.prefetch=1 && same_as --set 'memory.offload=[weights, optimizer]' || return 1
    if [ "$DEVICE" = cpu ]; then PLIMSOLL_POISON=1 same_as || return 1; fi
    near --set memory.micro_batch=1 --set memory.recompute=all
}
check 'techniques and threads, the same bytes' techniques
check 'a micro-batch of 1, the head in chunks' near --set memory.head_chunks=3 --set memory.micro_batch=1
# A step of SGD with learning rate 1 subtracts the gradient.
gradients() {
    local rows sgd=(--set memory.optimizer=sgd --set train.momentum=0 --set train.learning_rate=1 --set train.weight_decay=0 --set train.clip_norm=0 --set train.steps=1)
    expect 0 '' run one "${sgd[@]}" || return 1
    rows=$(sed -n 's/.* conversations in \([0-9]*\) rows.*/\1/p' "$tmp/err")
    expect 0 " in $rows rows" run one "${sgd[@]}" --set "train.effective_batch=$rows" && expect 0 '' run two "${sgd[@]}" --set train.effective_batch=8 --set data.packing=false &&
        "$tools/compare" "$(weights one)" "$(weights two)" --logits 1e-5
}
check 'packed rows have the gradients of the samples' gradients
resumes() {
    local held_out=(--set train.schedule=constant --set data.holdout=0.25 --set train.eval_every=2 --set train.save_every=2)
    expect 0 '' run one "${held_out[@]}" && expect 0 '' run two "${held_out[@]}" --set train.steps=2 || return 1
    # shellcheck disable=SC2086
    expect 0 'resuming after step 2' "$binary" train "$tmp/two/config.yaml" --resume --set train.steps=4 --set "device.kind=$DEVICE" $FLAGS &&
        same "$(weights one)" "$(weights two)" && [ "$(grep -c eval_loss "$tmp/two/metrics.jsonl")" -eq 2 ]
}
check 'holdout, evaluation, resume: same bytes' resumes
# The newline is the only parameter that only images have and no linear layer: it is trained.
newline() {
    expect 0 '' run one --set 'model.freeze=["vision_tower", "multi_modal_projector.*", "language_model.*"]' || return 1
    "$tools/compare" "$(weights one)" $model/model.safetensors --logits 1e-9 >"$tmp/diff" && { echo 'nothing was trained'; return 1; }
    cat "$tmp/diff"
    [ "$(grep -c 'model\.' "$tmp/diff")" -eq "$(grep -c 'model.image_newline' "$tmp/diff")" ]
}
check 'only the newline is trained' newline
frozen() {
    local with
    expect 0 '' run one --set 'model.freeze=["vision_tower"]' --set memory.encode=inline || return 1
    for with in memory.recompute=all memory.encode=all memory.encode=1; do
        expect 0 '' run two --set 'model.freeze=["vision_tower"]' --set $with && same "$(weights one)" "$(weights two)" || return 1
    done
}
check 'a frozen tower, by itself before the step' frozen

# --- adapters -----------------------------------------------------------------------------------

asked() {
    # shellcheck disable=SC2086
    "$binary" generate --model $model --image $model/images/5.png --prompt 'is it' --max-new 8 --json --set memory.precision=f32 --set "device.kind=$DEVICE" $FLAGS "$@" 2>"$tmp/err" | tr -d ' \n' | sed 's/.*"ids":\[//; s/\].*//'
}
adapters() {
    local targets
    for targets in all-linear '.*(q_proj|linear_1|fc1)'; do
        expect 0 '' run one --set adapter.r=4 --set "adapter.target_modules=$targets" && expect 0 '' run two --set adapter.r=4 --set "adapter.target_modules=$targets" --set memory.recompute=all &&
            same "$tmp/one/model/adapter_model.safetensors" "$tmp/two/model/adapter_model.safetensors" || return 1
    done
    rm -rf "$tmp/merged" && expect 0 '' "$binary" convert $model --adapter "$tmp/one/model" -o "$tmp/merged" && asked --adapter "$tmp/one/model" >"$tmp/apart" && asked --model "$tmp/merged" >"$tmp/whole" && same "$tmp/apart" "$tmp/whole" && [ -s "$tmp/whole" ]
}
check 'LoRA on the decoder, the tower and the projector' adapters
four_bits() {
    rm -rf "$tmp/four" && expect 0 '' "$binary" convert $model -o "$tmp/four" --quantize nf4 && expect 0 '' run two --set adapter.r=2 --set adapter.target_modules=all-linear --set memory.quantize=nf4 || return 1
    expect 0 '' run one --set "model.path=$tmp/four" --set adapter.r=2 --set adapter.target_modules=all-linear && near_losses one two
}
check 'a folder in 4 bits trains as the model in NF4' four_bits

# --- data ---------------------------------------------------------------------------------------

initial() {
    "$binary" init --model $model --data $model/chats.jsonl --max-frames 4 --out "$tmp/first" >"$tmp/init.yaml" 2>"$tmp/err" && grep '^  max_images: 10' "$tmp/init.yaml" || { cat "$tmp/err" "$tmp/init.yaml"; return 1; }
    rm -rf "$tmp/first" && expect 0 'images, ' "$binary" train "$tmp/init.yaml" --set train.epochs=1 --set train.eval_max_new=2 --set data.split_seed=3 --set "device.kind=$DEVICE" && grep -q '<img' "$tmp/first/report.html" || { cat "$tmp/err"; return 1; }
}
check 'init measures the tiles, and the run works' initial
timed() {
    echo "{model: {path: $model}, data: {sequence: 160, max_images: 4}, train: {effective_batch: 2}, device: $DEVICE}" >"$tmp/bench.yaml"
    expect 0 '' "$binary" bench "$tmp/bench.yaml" --steps 1 --json && json "$tmp/out" measured_median_seconds
}
check 'bench' timed
bad=$tmp/wrong
mkdir -p "$bad" && cp -r $model/images $model/clips "$bad" || exit 2
"$tools/forge_png" "$bad/images/long.png" 1 16000 && "$tools/forge_png" "$bad/images/longer.png" 1 20000 || exit 2
one() { printf '{"messages": [{"role": "user", "content": [%s]}, {"role": "assistant", "content": "yes"}]}\n' "$1"; }
refused() {
    { one '{"type": "image", "image": "images/0.png"}, {"type": "text", "text": "what"}'; one "$3"; } >"$bad/chats.jsonl"
    expect "$1" "$2" run bad --set "data.train=$bad/chats.jsonl" --set data.max_bad=0 "${@:4}"
}
check 'an image that is missing' refused 2 'chats.jsonl:2.*images/none.png' '{"type": "image", "image": "images/none.png"}, {"type": "text", "text": "what"}'
check 'a video, and data.max_frames is 0' refused 2 'data.max_frames' '{"type": "video", "video": "clips/a"}, {"type": "text", "text": "what"}' --set data.max_frames=0
check 'a video before an image, which the template writes behind it' refused 2 'chats.jsonl:2.*the chat template writes an image, and the data has a video there' \
    '{"type": "video", "video": "clips/a"}, {"type": "image", "image": "images/0.png"}, {"type": "text", "text": "what"}'
check 'more placeholders than images' refused 2 'image' '{"type": "text", "text": "<image> what <image>"}'
check 'data.tokens_per_frame has no meaning' expect 2 'data.tokens_per_frame is 9, and a frame has 4 tokens in a llava_onevision' run bad --set data.tokens_per_frame=9
check 'an image of 1 x 20,000 pixels' refused 1 '1 x 20000 pixels; expected sides of at most 16384' '{"type": "image", "image": "images/longer.png"}, {"type": "text", "text": "what"}'
# The map of an image of 1 x 16,000 pixels is a column.
long() {
    { one '{"type": "image", "image": "images/long.png"}, {"type": "text", "text": "what"}'; one '{"type": "image", "image": "images/0.png"}, {"type": "text", "text": "what"}'; } >"$bad/chats.jsonl"
    expect 0 '2 conversations' run bad --set "data.train=$bad/chats.jsonl" --set data.max_bad=0 --set train.effective_batch=1 --set memory.micro_batch=1 --set data.max_frames=0
}
check 'an image of 1 x 16,000 pixels' long
# keys KEY VALUE PATTERN [FILE]: config.json, or another file of the folder, with another value is
# refused.
keys() {
    local file=${4:-config.json}
    rm -rf "$tmp/changed" && cp -r $model "$tmp/changed" && sed -i "s/\"$1\": *[^,}]*/\"$1\": $2/" "$tmp/changed/$file" || return 1
    expect 2 "$3" "$binary" generate --model "$tmp/changed" --image $model/images/0.png --prompt 'is it' --max-new 2 --set "device.kind=$DEVICE"
}
check 'vision_aspect_ratio without a limit' keys vision_aspect_ratio '"square"' 'vision_aspect_ratio is "square", expected anyres_max_N'
check 'vision_feature_select_strategy, which cuts a feature' keys vision_feature_select_strategy '"default"' 'an image has 8 features, expected 3 x 3'
check 'video_token_index of no token' keys video_token_index 99999 'video_token_index is 99999'
check 'another limit in processor_config.json' keys vision_aspect_ratio '"anyres_max_9"' 'processor_config.json: vision_aspect_ratio is anyres_max_9, and that of config.json is anyres_max_2' processor_config.json
check 'num_image_tokens of another tower' keys num_image_tokens 729 'num_image_tokens is 729, and the model.s images have 9' processor_config.json
summary
