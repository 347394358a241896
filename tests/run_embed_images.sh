#!/bin/bash
# shellcheck disable=SC2015
# run_embed_images.sh: training on conversations from a store of the vision tower's features
# gives the same bits as training on the images with a frozen tower, and needs no
# tower. Settings that would make the two differ are refused.
#
#   bash tests/run_embed_images.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
if [ "$DEVICE" != cpu ]; then
    echo 'skip  bits of a store: on a GPU cuBLASLt has other algorithms for the rows of one image'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
tool forge_conversations forge_videos

model=$tmp/model chats=$tmp/chats
make_model llava_clip_llama "$model" && "$tools/forge_conversations" "$chats" 40 0 3 1 || exit 2
cat >"$tmp/run.yaml" <<END
model: {path: $model, freeze: ["vision_tower.*"]}
data: {format: conversations, train: $chats/chats.json, images: $chats/images, sequence: 64, max_images: 4}
train: {steps: 4, effective_batch: 4, learning_rate: 0.005, schedule: constant, warmup_steps: 0, out: $tmp/unused}
memory: {micro_batch: 4, precision: f32}
device: $DEVICE
END
# pack NAME MODEL [ARGUMENT...]: the store $tmp/NAME of the conversations' images.
pack() { "$binary" data pack "$chats/chats.json" -o "$tmp/$1" --embeddings "$2" --images "$chats/images" --embeddings-dtype f32 "${@:3}"; }
losses() { sed 's/,"seconds.*//; s/,"eval_seconds.*//' "$tmp/$1/metrics.jsonl"; }
# both STORE ARGUMENT...: the same losses, scores and weights from the images and from the store.
both() {
    local store=$1
    shift
    expect 0 '' run plain "$@" && expect 0 'the encoder does not run' run other "$@" --set "data.images=$tmp/$store" || return 1
    losses plain >"$tmp/plain.losses" && losses other >"$tmp/other.losses" && same "$tmp/plain.losses" "$tmp/other.losses" && same "$(weights plain)" "$(weights other)"
}
held=(--set data.holdout=0.2 --set train.eval_every=2 --set train.save_every=2 --set train.effective_batch=3 --set memory.micro_batch=2 --set train.steps=6)

# --- the same training ---
made() { pack clip.pack "$model" >"$tmp/out" && grep 'clip.pack: 60 images of 40 conversations, 60 embeddings f32 \[4,20\] of .*; 0 images cannot be read' "$tmp/out" || { cat "$tmp/out"; return 1; }; }
check 'a store of the images of conversations' made
check 'images and store: the same losses and weights' both clip.pack
state() { same "$tmp/plain/checkpoints/step-6/state.safetensors" "$tmp/other/checkpoints/step-6/state.safetensors"; }
for packing in true false; do
    evaluated() { both clip.pack "${held[@]}" --set "data.packing=$packing" && state; }
    check "holdout, evaluation, optimizer state; data.packing $packing" evaluated
done
resumes() {
    expect 0 '' run plain "${held[@]}" && expect 0 '' run other "${held[@]}" --set "data.images=$tmp/clip.pack" --set train.steps=2 || return 1
    expect 0 'resuming after step 2' resumed other "${held[@]}" --set "data.images=$tmp/clip.pack" --set data.threads=1 && same "$(weights plain)" "$(weights other)" && state
}
check 'resume: the same weights' resumes
apart() { both clip.pack --set 'model.freeze=["vision_tower.*", "multi_modal_projector.*"]' --set memory.encode=2; }
check 'a frozen projector, and a tower apart from the step' apart
poisoned() { needs_cpu PLIMSOLL_POISON && PLIMSOLL_POISON=1 both clip.pack --set memory.micro_batch=3 --set memory.recompute=all; }
check 'uneven micro-batches, recompute, NaN in dead memory' poisoned
half() { pack half.pack "$model" --embeddings-dtype bf16 && both half.pack --set memory.precision=bf16 && expect 0 '' run other --set "data.images=$tmp/half.pack"; }
check 'bf16; and bf16 embeddings in a run in f32' half
lora=(--set model.freeze=null --set adapter.r=2 --set 'adapter.target_modules=.*language_model.*_proj')
adapted() {
    local x store=$1
    shift
    expect 0 '' run plain "${lora[@]}" "$@" && expect 0 'the encoder does not run' run other "${lora[@]}" "$@" --set "data.images=$tmp/$store" || return 1
    for x in plain other; do losses $x >"$tmp/$x.losses"; done
    same "$tmp/plain.losses" "$tmp/other.losses" && same "$tmp/plain/model/adapter_model.safetensors" "$tmp/other/model/adapter_model.safetensors"
}
check 'an adapter of the language model' adapted clip.pack
quantized() { pack nf4.pack "$model" --set memory.quantize=nf4 && adapted nf4.pack --set memory.quantize=nf4; }
check 'weights in 4 bits' quantized

# --- the plan ---
smaller() {
    local p o
    "$binary" plan "$tmp/run.yaml" --json >"$tmp/p.json" && "$binary" plan "$tmp/run.yaml" --set "data.images=$tmp/clip.pack" --json >"$tmp/o.json" || return 1
    p=$("$tools/json_get" "$tmp/p.json" arena_bytes) o=$("$tools/json_get" "$tmp/o.json" arena_bytes)
    expect 0 '' run plain && expect 0 '' run other --set "data.images=$tmp/clip.pack" --json && [ "$("$tools/json_get" "$tmp/out" allocations_in_steps)" = 0 ] || return 1
    grep -q vision_tower "$tmp/plain/plan.json" && ! grep -q 'vision_tower\|pixel_values' "$tmp/other/plan.json" && grep -q image_embeddings "$tmp/other/plan.json" || return 1
    echo "arena of $o bytes instead of $p"
    [ "$o" -lt "$p" ]
}
check 'the plan has no tower' smaller
advised() {
    "$binary" doctor "$tmp/run.yaml" >"$tmp/out" 2>&1; grep -e '--set data.images=FILE.pack  *a store that' "$tmp/out" || { cat "$tmp/out"; return 1; }
    "$binary" plan "$tmp/run.yaml" --set data.threads=1 --memory 1000000 >"$tmp/out" 2>"$tmp/err"; grep 'data.images: a store of embeddings' "$tmp/err" || { cat "$tmp/err"; return 1; }
}
check 'doctor and plan name the store' advised

# --- other models --- other_model NAME FOLDER TOWER ARGUMENT...: packs and trains another model
# with frozen parameters TOWER.
other_model() {
    local name=$1 folder=$2 tower=$3
    shift 3
    pack "$name.pack" "$folder" && both "$name.pack" --set "model.path=$folder" --set "model.freeze=[\"$tower\"]" "$@"
}
# An image has 4 tokens: products of so few rows have a kernel of their own, so the step has one
# image, too.
siglip() { make_model llava_siglip_qwen2 "$tmp/siglip" && other_model siglip "$tmp/siglip" 'vision_tower.*' --set data.max_images=1 --set memory.micro_batch=1; }
check 'SigLIP and Qwen2' siglip
layers() { make_model llava_memory4 "$tmp/layers" && other_model layers "$tmp/layers" 'vision_tower.*'; }
check 'several feature layers' layers
full() { make_model llava_clip_llama "$tmp/full" && sed -i 's/\("vision_feature_select_strategy": \)"default"/\1"full"/' "$tmp/full/config.json" && grep -q '"full"' "$tmp/full/config.json" && other_model full "$tmp/full" 'vision_tower.*' --set data.max_images=3; }
check 'with the class token' full
original() { make_model llava_original "$tmp/original" && other_model original "$tmp/original" 'model.vision_tower.*'; }
check "LLaVA's original layout" original
outside() {
    make_model llava_med "$tmp/med" && pack med.pack "$tmp/med" --set model.vision_tower=tests/golden/clip_full &&
        both med.pack --set "model.path=$tmp/med" --set model.vision_tower=tests/golden/clip_full --set 'model.freeze=["model.vision_tower.*"]'
}
check 'a tower in a folder of its own' outside
# Each image of SmolVLM is four tiles and the whole. Where the store says so, the images are not
# needed.
tiles() {
    make_model smolvlm "$tmp/smolvlm" || return 1
    echo '{"image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 24}, "max_image_size": {"longest_edge": 12}}' >"$tmp/smolvlm/preprocessor_config.json"
    other_model smolvlm "$tmp/smolvlm" 'model.vision_model.*' --set data.sequence=256 --set data.max_images=20 --set train.effective_batch=3 --set memory.micro_batch=3
}
check 'SmolVLM: an image is several tiles' tiles
maps() {
    make_next "$tmp/next" && pack next.pack "$tmp/next" >/dev/null || return 1
    expect 2 'a store of embeddings does not have the sizes of images, on which the text of a llava_next depends' run no --set "model.path=$tmp/next" --set "data.images=$tmp/next.pack"
}
check 'LLaVA-NeXT: the text depends on the sizes of images' maps
crops() { make_internvl "$tmp/internvl" && other_model internvl "$tmp/internvl" 'vision_tower.*' --set data.sequence=256 --set data.max_images=20 --set train.effective_batch=3 --set memory.micro_batch=3; }
check 'InternVL: tiles by the shape of an image' crops
both_directions() {
    make_gemma3 "$tmp/gemma3" && other_model gemma3 "$tmp/gemma3" 'vision_tower.*' --set data.sequence=96 || return 1
    make_paligemma "$tmp/paligemma" && other_model paligemma "$tmp/paligemma" 'vision_tower.*' --set data.sequence=96
}
check 'Gemma 3 and PaliGemma' both_directions
videos() {
    "$tools/forge_videos" "$tmp/videos" 40 1 || return 1
    local of=(--set data.max_frames=12 --set data.tokens_per_frame=1) run=(--set "data.train=$tmp/videos/chats.json" --set "data.images=$tmp/videos/videos" --set data.max_images=1)
    head -c 50 "$tmp/videos/videos/3/2.png" >"$tmp/png" && mv "$tmp/png" "$tmp/videos/videos/3/2.png" || return 1
    "$binary" data pack "$tmp/videos/chats.json" -o "$tmp/videos.pack" --embeddings "$model" --embeddings-dtype f32 --set "data.images=$tmp/videos/videos" "${of[@]}" && both videos.pack "${run[@]}" "${of[@]}" || return 1
    expect 2 'other layers, .*data.max_frames' run plain "${run[@]}" "${of[@]}" --set data.max_frames=8 --set "data.images=$tmp/videos.pack"
}
check 'frames of videos' videos

# --- images of any size ---
# An image's place in its row decides the order of sums over it: where the places are those of the
# store, the bits are the same.
sized() {
    local m=tests/golden/qwen_vl/$1 tower=$2 chats=$tmp/sized.jsonl
    local with=("$m/run.yaml" --set "data.train=$chats" --set data.max_frames=0 --set data.packing=true --set data.sequence=160 --set train.warmup_steps=0 --set memory.micro_batch=4 --set "device.kind=$DEVICE" --set "model.freeze=[$tower]")
    grep -v '"video' "$m/chats.jsonl" >"$chats" || return 1
    rm -f "$tmp/sized.pack"
    "$binary" data pack "$chats" -o "$tmp/sized.pack" --embeddings "$m" --embeddings-dtype f32 --set "data.images=$m" | grep '6 images of [0-9]* conversations, 137 embeddings f32 \[4,' || return 1
    rows() {
        local out=$1
        shift
        rm -rf "${tmp:?}/$out"
        expect 0 '' "$binary" train "${with[@]}" --set "train.out=$tmp/$out" "$@"
    }
    local four=(--set train.steps=4 --set train.effective_batch=4) one=(--set train.steps=3 --set train.effective_batch=1 --set memory.micro_batch=1)
    rows plain "${four[@]}" --set "data.images=$m" && rows other "${four[@]}" --set "data.images=$tmp/sized.pack" && "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-5 || return 1
    [ "$DEVICE" != cpu ] || PLIMSOLL_POISON=1 rows poisoned "${four[@]}" --set "data.images=$tmp/sized.pack" && same "$(weights other)" "$(weights poisoned)" || return 1
    rows poisoned "${four[@]}" --set memory.micro_batch=2 --set memory.recompute=all --set data.threads=1 --set "data.images=$tmp/sized.pack" && "$tools/compare" "$(weights other)" "$(weights poisoned)" --logits 1e-5 || return 1
    ! grep -q 'pixel_values\|blocks' "$tmp/other/plan.json" && grep -q image_embeddings "$tmp/other/plan.json" || return 1
    head -n 1 "$chats" >"$tmp/first" && mv "$tmp/first" "$chats" || return 1
    rows plain "${one[@]}" --set "data.images=$m" && rows other "${one[@]}" --set "data.images=$tmp/sized.pack" && same "$(weights plain)" "$(weights other)" || return 1
    expect 2 'data.min_pixels, data.max_pixels' "$binary" train "${with[@]}" "${one[@]}" --set "train.out=$tmp/no" --set "data.images=$tmp/sized.pack" --set data.max_pixels=256
}
for m in qwen2_vl qwen2_5_vl; do check "$m: images of any size" sized "$m" '"visual.patch_embed.*", "visual.blocks.*"'; done
check 'qwen3_vl: images of any size, features of several blocks' sized qwen3_vl '"model.visual.patch_embed.*", "model.visual.pos_embed.*", "model.visual.blocks.*"'
moving() { local m=tests/golden/qwen_vl/qwen3_vl; expect 2 'data.max_frames is 4, and the tokens of a qwen3_vl depend on the times of a video' "$binary" data pack "$m/chats.jsonl" -o "$tmp/no.pack" --embeddings "$m" --set "data.images=$m" --set data.max_frames=4; }
check 'videos of any size' moving

# --- images that cannot be read ---
broken=(--set train.steps=6 --set train.effective_batch=6 --set memory.micro_batch=6)
damaged() {
    rm "$chats/images/5_0.png" && head -c 60 "$chats/images/10_1.png" >"$tmp/png" && mv "$tmp/png" "$chats/images/10_1.png" || return 1
    pack broken.pack "$model" | grep '2 images cannot be read' && both broken.pack "${broken[@]}" || return 1
    grep -q 'chats.json:6: it cannot be read (5_0.png: there is no such file in .*); another sample replaces it' "$tmp/err" && grep -q 'chats.json:11: the image cannot be decoded' "$tmp/err" || { cat "$tmp/err"; return 1; }
    both broken.pack --set data.holdout=0.3 --set data.max_bad=0.5 "${held[@]:2}"
}
check 'a missing and a broken image: replaced and counted as without the store' damaged
# The store has all that training needs.
alone() { expect 0 '' run plain "${broken[@]}" && mv "$chats/images" "$tmp/away" && expect 0 '' run other "${broken[@]}" --set "data.images=$tmp/broken.pack" && same "$(weights plain)" "$(weights other)"; }
check 'the images are gone' alone
mv "$tmp/away" "$chats/images"

looked() {
    "$binary" data inspect "$tmp/broken.pack" | grep '60 images of conversations, 58 embeddings f32 \[4,20\], computed with .*/model: 2 images could not be read' &&
        "$binary" data inspect "$tmp/smolvlm.pack" --json | grep -q '"embeddings": *300' && "$binary" data verify "$tmp/broken.pack" | grep '^note: 5_0.png: there is no such file' || return 1
    cp "$tmp/clip.pack" "$tmp/damaged.pack" && printf '\001' | dd of="$tmp/damaged.pack" bs=1 seek=4100 conv=notrunc 2>/dev/null && expect 1 '1 of 60 samples are bad' "$binary" data verify "$tmp/damaged.pack" || return 1
    grep -q '^bad: 0\|^bad: 1' "$tmp/out"
}
check 'data inspect and data verify' looked

# --- refused settings ---
no() { run no --set "data.images=$tmp/clip.pack" "$@"; }
check 'a tower that is trained' expect 2 'completely frozen encoder; this run trains vision_tower.* parameters: set model.freeze to "vision_tower.vision_model.\*", or set data.images to the folder or tar' no --set model.freeze=null
check 'a part of it is' expect 2 'vision_tower.vision_model.embeddings' no --set 'model.freeze=["vision_tower.vision_model.encoder.*"]'
check 'a group thaws it' expect 2 'vision_tower' no --set 'train.groups=[{match: "vision_tower.*layers.0.*", frozen: false}]'
check 'an adapter in it' expect 2 'vision_tower.*lora_A.*adapter.target_modules' no --set model.freeze=null --set adapter.r=2 --set 'adapter.target_modules=[q_proj]'
weights_differ() {
    cp -r "$model" "$tmp/trained" && expect 0 '' run plain --set model.freeze=null --set train.steps=1 && cp "$(weights plain)" "$tmp/trained/model.safetensors" || return 1
    expect 2 'data.images:.*/model.*[0-9a-f]{16}, that of.*/trained has [0-9a-f]{16}: pack again' no --set "model.path=$tmp/trained"
}
check 'other weights' weights_differ
processor() {
    cp -r "$model" "$tmp/toned" && echo '{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}, "image_mean": [0, 0, 0]}' >"$tmp/toned/preprocessor_config.json" || return 1
    expect 2 'other layers, sizes or normalisation, another image processor' no --set "model.path=$tmp/toned"
}
check 'another image processor' processor
check 'another tower' expect 2 'embeddings of \[4,20\], made with.*/model; this model.s encoder makes \[4,60\]' no --set "model.path=$tmp/layers"
check 'weights in 4 bits, and a store without' expect 2 'other layers.* or memory.quantize' no "${lora[@]}" --set memory.quantize=nf4
check 'augmentation' expect 2 'data.flip is 0.5, and the store.s embeddings were made without augmentation' no --set data.flip=0.5
check 'a preset' expect 2 'the encoder of a preset has random weights' no --set model.path=null --set model.preset=llava-tiny --set "data.tokenizer=$model"
check 'answers while training' expect 2 'train.eval_samples is 2, and answers need the vision tower' no --set data.holdout=0.2 --set train.eval_samples=2
check 'answers of a store' expect 2 'clip.pack' "$binary" eval "$tmp/run.yaml" --model "$model" --set "data.validation=$chats/chats.json" --set "data.images=$tmp/clip.pack" --set "device=$DEVICE"
check 'embeddings off' expect 2 'data.embeddings is off, and .*clip.pack has no images' no --set data.embeddings=off
check 'embeddings that are not there' expect 2 'data.embeddings.*data.images' run no --set data.embeddings=use
check 'validation on images' expect 2 'data.validation_images is not a store of embeddings, and the run was planned without the vision tower' no --set "data.validation=$chats/chats.json" --set "data.validation_images=$chats/images"
check 'validation on a store' expect 2 'data.validation_images' run no --set "data.validation=$chats/chats.json" --set "data.validation_images=$tmp/clip.pack"
masks() {
    "$binary" data make "$tmp/set" --images 2 --size 64x64 --masks 2 >/dev/null && "$binary" data pack "$tmp/set" -o "$tmp/masks.pack" --model sam-tiny >/dev/null || return 1
    expect 2 'is a packed store of images with masks; expected one that' no --set "data.images=$tmp/masks.pack" &&
        expect 2 'clip.pack has embeddings of the images of conversations, and neither images nor masks' "$binary" train "$tmp/run.yaml" --set model.path=null --set model.preset=sam-tiny --set model.freeze=null --set data.format=packed --set "data.train=$tmp/clip.pack" --set "train.out=$tmp/no" --set data.image_size=128 --set data.images=null --set data.sequence=null
}
check 'a store of masks for conversations, and the other way round' masks
of_others() {
    "$tools/forge_conversations" "$tmp/others" 40 1 1 2 && sed 's/_0.png/_9.png/' "$tmp/others/chats.json" >"$tmp/others/new.json" || return 1
    expect 2 '_9.png: it is not in the store .*clip.pack, which has 60 images: was it made of these conversations' no --set "data.train=$tmp/others/new.json"
}
check 'a store of other conversations' of_others
cut() { head -c 5000 "$tmp/clip.pack" >"$tmp/cut.pack" && expect 2 'cut.pack: it has 5000 bytes, its header says' no --set "data.images=$tmp/cut.pack"; }
check 'a store that was cut' cut
packing() { "$binary" data pack "$chats/chats.json" -o "$tmp/no.pack" --embeddings "$@"; }
check 'sizes of masks' expect 2 '--size, --masks-size, --model and --layout are for images with masks' packing "$model" --size 64
check 'a token allocator' expect 2 'a arr_coc_allocator' packing tests/golden/allocator_random
check 'one for images of any size' expect 2 'a arr_coc_qwen2_vl takes the pixels of its images besides' packing tests/golden/qwen_vl/arr_coc_qwen2_vl
text() { "$tools/forge_conversations" "$tmp/text" 4 0 0 4 && expect 2 'no conversation of 4 has an image' "$binary" data pack "$tmp/text/chats.json" -o "$tmp/no.pack" --embeddings "$model"; }
check 'conversations without images' text
gone() { expect 2 'none of 60 images can be read: no file is written' packing "$model" --images "$tmp/text"; }
check 'no image that can be read' gone
nothing() { [ ! -e "$tmp/no.pack" ] && ! ls "$tmp"/no.pack.tmp.* 2>/dev/null && [ ! -e "$tmp/no/model" ]; }
check 'refused commands leave no output' nothing
summary
