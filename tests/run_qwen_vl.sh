#!/bin/bash
# shellcheck disable=SC2015
# run_qwen_vl.sh: Qwen2-VL, Qwen2.5-VL and Qwen3-VL on conversations with images of any size and
# videos: training equals PyTorch's, whatever the techniques; adapters; answers equal
# transformers'; what is refused.
#
#   bash tests/run_qwen_vl.sh       from the repository's root, after make; see run_lib.sh
#
# tests/golden/qwen_vl has the models and conversations (make_qwen_vl_train.py),
# tests/golden/generate_qwen_vl.txt the answers (make_generate_qwen_vl.py).
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare forge_png
all="qwen2_vl qwen2_5_vl qwen3_vl"
of() { echo "tests/golden/qwen_vl/$1"; }

# run OUT MODEL [ARGUMENT...]: four steps; rows are packed, four a step.
run() {
    local out=$1 model=$2
    shift 2
    rm -rf "${tmp:?}/$out"
    # shellcheck disable=SC2086
    "$binary" train "$(of "$model")/run.yaml" --set "train.out=$tmp/$out" --set train.steps=4 --set train.effective_batch=4 --set memory.micro_batch=4 \
        --set train.warmup_steps=0 --set data.packing=true --set data.sequence=160 --set "device.kind=$DEVICE" $FLAGS "$@"
}
# resumed OUT MODEL [ARGUMENT...]: the same, where the folder ends.
resumed() {
    local out=$1
    shift
    mv "$tmp/$out" "$tmp/kept" && expect 0 'resuming after step' "$binary" train "$(of "$1")/run.yaml" --resume --set "train.out=$tmp/kept" "${@:2}" && mv "$tmp/kept" "$tmp/$out"
}
weights() { echo "$tmp/$1/model/model.safetensors"; }

# --- training -----------------------------------------------------------------------------------

pytorch() { GOLDEN=tests/golden/qwen_vl sh tests/golden.sh >"$tmp/golden" 2>&1 || { cat "$tmp/golden"; return 1; }; grep '^ok' "$tmp/golden" | sed 's/^ok *//' | tail -n 1; }
check 'six steps with images and videos are those of PyTorch' pytorch

# same_as MODEL [ARGUMENT...]: another run has the same weights.
same_as() { expect 0 '' run other "$@" && same "$(weights "plain.$1")" "$(weights other)"; }
# near_losses OUT OUT: the losses of two runs are the same within 1e-4. near MODEL [ARGUMENT...]:
# those of another run.
losses() { grep -o '"loss": *[0-9.e-]*' "$tmp/$1/metrics.jsonl" | sed 's/.*: *//'; }
near_losses() { paste <(losses "$1") <(losses "$2") | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > worst) worst = d } END { print "losses within " worst; exit !(NR == 4 && worst < 1e-4) }'; }
near() {
    expect 0 '' run other "$@" || return 1
    near_losses "plain.$1" other
}
techniques() {
    local m=$1
    expect 0 'data.train: images of [0-9]* patches, [0-9]* a row of at most 640 \(data.max_patches\)' run "plain.$m" "$m" || return 1
    same_as "$m" --set memory.recompute=all && same_as "$m" --set memory.recompute=selective && same_as "$m" --set data.threads=3 --set data.prefetch=1 &&
        same_as "$m" --set 'memory.offload=[weights, optimizer]' || return 1
    if [ "$DEVICE" = cpu ]; then PLIMSOLL_POISON=1 same_as "$m" || return 1; fi
    same_as "$m" --set memory.micro_batch=2 --set memory.recompute=all || near "$m" --set memory.micro_batch=2
}
for m in $all; do check "$m: techniques and threads, the same bytes" techniques "$m"; done
chunks() { near "$1" --set memory.head_chunks=3 --set memory.micro_batch=1; }
for m in $all; do check "$m: a micro-batch of 1, the head in chunks" chunks "$m"; done

# A step of SGD with learning rate 1 subtracts the gradient: packed rows, and each sample in a row
# of its own.
gradients() {
    local m=$1 rows sgd=(--set memory.optimizer=sgd --set train.momentum=0 --set train.learning_rate=1 --set train.weight_decay=0 --set train.clip_norm=0 --set train.steps=1)
    expect 0 '' run one "$m" "${sgd[@]}" || return 1
    rows=$(sed -n 's/.* conversations in \([0-9]*\) rows.*/\1/p' "$tmp/err")
    expect 0 " in $rows rows" run one "$m" "${sgd[@]}" --set "train.effective_batch=$rows" && expect 0 '' run two "$m" "${sgd[@]}" --set "train.effective_batch=$2" --set data.packing=false &&
        "$tools/compare" "$(weights one)" "$(weights two)" --logits 1e-5
}
check 'qwen2_5_vl: packed rows have the gradients of the samples' gradients qwen2_5_vl 16
check 'qwen3_vl: packed rows have the gradients of the samples' gradients qwen3_vl 16

# A row with less room for patches holds fewer conversations, and the same losses.
room() {
    expect 0 'at most 320 \(data.max_patches\)' run one qwen2_5_vl --set data.max_patches=320 || return 1
    expect 0 'at most 320' run two qwen2_5_vl --set data.max_patches=320 --set data.max_pixels=256 && [ "$(losses one)" != "$(losses two)" ] || return 1
    expect 0 '14 samples have images of more patches than data.max_patches .4; the most are 176. and are left out; data.max_pixels makes images smaller' run two qwen2_5_vl --set data.max_patches=4
}
check 'data.max_patches: rows with less room' room
# Rows with room for many more patches take the time of those that there are, and have the bytes of
# a step over all of the room; bytes behind the extent are not read. follows MODEL [ARGUMENT...]
seconds() { grep -o '"seconds": *[0-9.e-]*' "$tmp/$1/metrics.jsonl" | sed 's/.*: *//' | sort -g | head -n 1; }
follows() {
    local room=(--set data.max_patches=1600 --set memory.recompute=none "${@:2}")
    expect 0 '' run one "$1" "${room[@]}" || return 1
    PLIMSOLL_WHOLE=1 expect 0 '' run two "$1" "${room[@]}" && same "$(weights one)" "$(weights two)" || return 1
    if [ "$DEVICE" = cpu ]; then
        PLIMSOLL_POISON=1 expect 0 '' run other "$1" "${room[@]}" && same "$(weights one)" "$(weights other)" || return 1
    fi
    echo "$(seconds one) s a step, $(seconds two) s over all of the room"
}
for m in $all; do
    check "$m: the step runs over the patches that are there" follows "$m"
    check "$m: rows by themselves" follows "$m" --set memory.micro_batch=1
    check "$m: a frozen tower" follows "$m" --set 'model.freeze=["vision_tower"]'
done
# Without room for patches the tower is no part of the run, and its weights are saved as they were.
text() {
    expect 0 '' run one "$1" --set data.max_patches=0 --set train.effective_batch=1 --set memory.micro_batch=1 && "$tools/compare" "$(of "$1")/model.safetensors" "$(weights one)" --logits 1e9 || return 1
    [ "$(stat -c %s "$(of "$1")/model.safetensors")" -eq "$(stat -c %s "$(weights one)")" ]
}
check 'qwen3_vl: text only' text qwen3_vl
resumes() {
    local held_out=(--set train.schedule=constant --set data.holdout=0.25 --set train.eval_every=2 --set train.save_every=2)
    expect 0 '' run one qwen3_vl "${held_out[@]}" && expect 0 '' run two qwen3_vl "${held_out[@]}" --set train.steps=2 || return 1
    # shellcheck disable=SC2086
    expect 0 'resuming after step 2' "$binary" train "$tmp/two/config.yaml" --resume --set train.steps=4 --set "device.kind=$DEVICE" $FLAGS &&
        same "$(weights one)" "$(weights two)" && [ "$(grep -c eval_loss "$tmp/two/metrics.jsonl")" -eq 2 ]
}
check 'holdout, evaluation, resume: same bytes' resumes

# --- parts and adapters -------------------------------------------------------------------------

frozen() {
    local with
    for m in $all; do
        expect 0 '' run one "$m" --set 'model.freeze=["vision_tower"]' --set memory.encode=inline || return 1
        for with in memory.recompute=all memory.encode=all memory.encode=1; do
            expect 0 '' run two "$m" --set 'model.freeze=["vision_tower"]' --set $with && same "$(weights one)" "$(weights two)" || return 1
        done
        "$tools/compare" "$(weights one)" "$(of "$m")/model.safetensors" --logits 1e-9 >"$tmp/diff" && { echo "nothing was trained"; return 1; }
    done
    echo "3 models"
}
check 'a frozen tower, by itself before the step' frozen
# asked MODEL ARGUMENT...: the answer to a question about an image.
asked() {
    # shellcheck disable=SC2086
    "$binary" generate --model "$(of "$1")" --image "$(of "$1")/images/2.png" --prompt 'is it' --max-new 8 --json --set memory.precision=f32 --set "device.kind=$DEVICE" $FLAGS "${@:2}" 2>"$tmp/err" | tr -d ' \n' | sed 's/.*"ids":\[//; s/\].*//'
}
adapters() {
    local m=$1 targets
    for targets in all-linear '.*(qkv|q_proj|merger.*(mlp.0|linear_fc1))'; do
        expect 0 '' run one "$m" --set adapter.r=4 --set "adapter.target_modules=$targets" && expect 0 '' run two "$m" --set adapter.r=4 --set "adapter.target_modules=$targets" --set memory.recompute=all &&
            same "$tmp/one/model/adapter_model.safetensors" "$tmp/two/model/adapter_model.safetensors" || return 1
    done
    expect 0 '' run two "$m" --set adapter.target_modules=all-linear --set memory.quantize=nf4 || return 1
    rm -rf "$tmp/merged" && expect 0 '' "$binary" convert "$(of "$m")" --adapter "$tmp/one/model" -o "$tmp/merged" && asked "$m" --adapter "$tmp/one/model" >"$tmp/apart" && asked "$m" --model "$tmp/merged" >"$tmp/whole" && same "$tmp/apart" "$tmp/whole" || return 1
    cat "$tmp/whole"
}
for m in $all; do check "$m: LoRA on the decoder, the tower and the merger; NF4" adapters "$m"; done
# A folder in 4 bits, as transformers writes it.
four_bits() {
    rm -rf "$tmp/four" && expect 0 '' "$binary" convert "$(of "$1")" -o "$tmp/four" --quantize nf4 && expect 0 '' run two "$1" --set adapter.r=2 --set adapter.target_modules=all-linear --set memory.quantize=nf4 || return 1
    expect 0 '' run one "$1" --set "model.path=$tmp/four" --set adapter.r=2 --set adapter.target_modules=all-linear && near_losses one two
}
for m in $all; do check "$m: a folder in 4 bits trains as the model in NF4" four_bits "$m"; done

# --- answers ------------------------------------------------------------------------------------

# answers CHUNK: 0 is the planner's.
answers() {
    local folder names prompt want got arguments name n=0
    while read -r folder names prompt want; do
        arguments=(--model "tests/golden/$folder" "--ids=$prompt" --max-new 24 --set data.max_frames=4 --set "device.kind=$DEVICE" --set memory.precision=f32)
        [ "$1" = 0 ] || arguments+=(--chunk "$1")
        [ "$names" = - ] || for name in ${names//,/ }; do
            case $name in clips*) arguments+=(--video) ;; *) arguments+=(--image) ;; esac
            arguments+=("tests/golden/$folder/$name")
        done
        # shellcheck disable=SC2086
        got=$("$binary" generate "${arguments[@]}" $FLAGS 2>"$tmp/err") || { cat "$tmp/err"; return 1; }
        [ "$got" = "$want" ] || { echo "$folder $names, prompt $prompt:"; echo "  found    $got"; echo "  expected $want"; return 1; }
        n=$((n + 1))
    done <tests/golden/generate_qwen_vl.txt
    [ "$n" -ge 18 ] || { echo "$n cases"; return 1; }
    echo "$n answers of 24 tokens, 0 to 3 images and videos"
}
check 'ids of transformers' answers 0
check 'chunks of 5 tokens, which cut images' answers 5
# Prompts one by one, and several at once.
many() {
    local m=$1 n
    (cd "$(of "$m")" && pwd) >"$tmp/at"
    for n in 1 3 8; do
        # shellcheck disable=SC2086
        expect 0 '' "$binary" generate --model "$(of "$m")" --prompts "$(of "$m")/chats.jsonl" --max-new 6 --batch $n --set data.max_frames=4 --set memory.precision=f32 --set "device.kind=$DEVICE" $FLAGS || return 1
        sed 's/"[a-z_]*seconds[a-z_]*": *[0-9.e-]*,*//g' "$tmp/out" >"$tmp/many.$n"
    done
    [ "$(grep -c . "$tmp/many.1")" -ge 8 ] && same "$tmp/many.1" "$tmp/many.3" && same "$tmp/many.1" "$tmp/many.8"
}
for m in $all; do check "$m: prompts of a file, one and several at a time" many "$m"; done
evaluated() {
    # shellcheck disable=SC2086
    expect 0 '' "$binary" eval --model "$(of "$1")" --data "$(of "$1")/chats.jsonl" --set data.max_frames=4 --set "device.kind=$DEVICE" --set memory.precision=f32 --json $FLAGS || return 1
    json "$tmp/out" token_f1
}
for m in $all; do check "$m: eval" evaluated "$m"; done

# --- data ---------------------------------------------------------------------------------------

initial() {
    "$binary" init --model "$(of "$1")" --data "$(of "$1")/chats.jsonl" --max-frames 4 --out "$tmp/first" >"$tmp/init.yaml" 2>"$tmp/err" && grep '^  max_patches: [1-9]' "$tmp/init.yaml" && ! grep max_images "$tmp/init.yaml" || { cat "$tmp/err" "$tmp/init.yaml"; return 1; }
    rm -rf "$tmp/first" && expect 0 'images of' "$binary" train "$tmp/init.yaml" --set train.epochs=1 --set train.eval_max_new=2 --set data.split_seed=3 --set "device.kind=$DEVICE" && grep -q '<img' "$tmp/first/report.html" || { cat "$tmp/err"; return 1; }
    grep '^  max_patches' "$tmp/init.yaml"
}
for m in $all; do check "$m: init measures the patches, and the run works" initial "$m"; done
inspected() {
    "$binary" data inspect "$(of qwen2_vl)/chats.jsonl" --model "$(of qwen2_vl)" --set data.max_frames=4 --set data.sequence=160 >"$tmp/out" 2>"$tmp/err" && grep 'patches' "$tmp/out" || { cat "$tmp/out" "$tmp/err"; return 1; }
}
check 'data inspect' inspected

# A step on images that it makes itself.
timed() {
    local m=$1 key=$2
    echo "{model: {path: $(of "$m")}, data: {sequence: 160, $key}, train: {effective_batch: 2}, device: $DEVICE}" >"$tmp/bench.yaml"
    expect 0 '' "$binary" bench "$tmp/bench.yaml" --steps 1 --json && json "$tmp/out" measured_median_seconds
}
for m in $all; do check "$m: bench" timed "$m" 'max_patches: 256'; done
check 'arr_coc_qwen2_vl: bench' timed arr_coc_qwen2_vl 'max_images: 2'

# --- bad input ----------------------------------------------------------------------------------

bad=$tmp/wrong
mkdir -p "$bad/empty" && cp -r "$(of qwen2_5_vl)/images" "$(of qwen2_5_vl)/clips" "$bad" || exit 2
head -c 60 "$bad/images/1.png" >"$bad/images/cut.png"
one() { printf '{"messages": [{"role": "user", "content": [%s]}, {"role": "assistant", "content": "yes"}]}\n' "$1"; }
# refused STATUS PATTERN PARTS [ARGUMENT...]: a run on a good conversation and one with these parts,
# where nothing may be bad.
refused() {
    { one '{"type": "image", "image": "images/0.png"}, {"type": "text", "text": "what"}'; one "$3"; } >"$bad/chats.jsonl"
    expect "$1" "$2" run bad qwen2_5_vl --set "data.train=$bad/chats.jsonl" --set data.max_bad=0 "${@:4}"
}
check 'an image that is missing' refused 2 'chats.jsonl:2.*images/none.png' '{"type": "image", "image": "images/none.png"}, {"type": "text", "text": "what"}'
check 'an image that is cut' refused 1 'cut.png: the PNG cannot be read: the file ends too early' '{"type": "image", "image": "images/cut.png"}, {"type": "text", "text": "what"}'
long() {
    "$tools/forge_png" "$bad/images/long.png" 1 20000 || return 1
    refused 2 '1 x 20000|1 x 20,000' '{"type": "image", "image": "images/long.png"}, {"type": "text", "text": "what"}'
}
check 'an image of 1 x 20,000 pixels' long
check 'a video without frames' refused 2 'empty' '{"type": "video", "video": "empty"}, {"type": "text", "text": "what"}'
check 'a video, and data.max_frames is 0' refused 2 'data.max_frames' '{"type": "video", "video": "clips/a"}, {"type": "text", "text": "what"}' --set data.max_frames=0
check 'more placeholders than images' refused 2 'image' '{"type": "text", "text": "<image> what <image>"}'
placeholder() {
    { one '{"type": "image", "image": "images/0.png"}, {"type": "text", "text": "what"}'; one '{"type": "text", "text": "what is <|image_pad|> for"}'; } >"$bad/chats.jsonl"
    expect 0 '2 conversations' run bad qwen2_5_vl --set "data.train=$bad/chats.jsonl" --set data.max_bad=0 --set train.effective_batch=1 --set memory.micro_batch=1 && tail -n 1 "$tmp/out"
}
check "a placeholder in the user's text is text" placeholder
# A file of tokens, of which some are an image's.
raw() {
    { head -c 200 /dev/zero | tr '\0' '\010'; printf '\005\005'; head -c 198 /dev/zero | tr '\0' '\010'; } >"$tmp/raw.bin"
    expect 2 'image tokens that belong to no image' "$binary" train "$(of qwen2_5_vl)/run.yaml" --set data.format=tokens --set data.token_dtype=uint8 --set "data.train=$tmp/raw.bin" --set data.packing=null \
        --set data.sequence=64 --set data.max_frames=0 --set train.effective_batch=6 --set memory.micro_batch=6 --set "train.out=$tmp/raw" --set "device.kind=$DEVICE"
}
check 'a file of tokens with those of images' raw
# Images and videos share a sequence of patches, whose bytes have one table of values.
normalised() {
    cp -r "$(of qwen2_5_vl)" "$tmp/normalised" && sed -i 's/0\.48/0.5/' "$tmp/normalised/video_preprocessor_config.json" || return 1
    expect 0 '' run bad qwen2_5_vl --set "model.path=$tmp/normalised" --set data.max_frames=0 --set train.steps=1 --set "data.train=$bad/chats.jsonl" --set train.effective_batch=1 --set memory.micro_batch=1 &&
        expect 2 'videos normalises pixels otherwise.*data.max_frames' run bad qwen2_5_vl --set "model.path=$tmp/normalised"
}
check 'videos that are normalised otherwise' normalised
check 'data.max_images has no meaning' expect 2 'data.max_images' run bad qwen2_5_vl --set data.max_images=2
check 'data.tokens_per_frame has no meaning' expect 2 'data.tokens_per_frame' run bad qwen2_5_vl --set data.tokens_per_frame=4
summary
