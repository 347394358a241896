#!/bin/bash
# shellcheck disable=SC2015
# run_embed.sh: training from stored image embeddings gives the same bits as training from the
# images with a frozen encoder, but needs no encoder. Settings that would make the two differ are
# refused.
#
#   bash tests/run_embed.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
steps=3

"$binary" data make "$tmp/set" --images 20 --size 160x120 --masks 6 >/dev/null || exit 2
cat >"$tmp/start.yaml" <<END
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/set/*.tar", max_masks: 3}
train: {steps: 1, effective_batch: 2, learning_rate: 0.001, out: "$tmp/unused"}
memory: {precision: f32}
device: cpu
END
cat >"$tmp/run.yaml" <<END
model: {path: "$tmp/sam/model", freeze: "vision_encoder.*"}
data: {format: packed, train: "$tmp/sam.pack", holdout: 0.2, max_masks: 3}
prompts: {iterations: 3}
train: {steps: $steps, effective_batch: 4, learning_rate: 0.001, save_every: 1, eval_every: 2, out: "$tmp/unused"}
memory: {precision: f32, micro_batch: 4, recompute: none, head_chunks: 1, offload: none}
device: cpu
END
# train_run OUT [ARGUMENT...]
train_run() {
    local out=$1
    shift
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set "train.out=$out" $FLAGS "$@"
}
# start NAME PRESET SEED: a folder with a randomly initialised model.
start() { expect 0 '' "$binary" train "$tmp/start.yaml" --set "model.preset=$2" --set "train.seed=$3" --set "train.out=$tmp/$1"; }
# pack NAME MODEL [ARGUMENT...]
pack() { "$binary" data pack "$tmp/set" -o "$tmp/$1" --embeddings "$tmp/$2/model" "${@:3}"; }
# losses RUN: all of its losses and scores, without times. same_training A B STEPS: as same_run, for
# runs from images and from embeddings: the image encoder is a part of the model only in the first,
# so the states name another model.
same_training() {
    local run
    for run in "$1" "$2"; do grep -v '"model"\|"crc32c"' "$run/checkpoints/step-$3/state.json" >"$run/numbers"; done
    same "$1/model/model.safetensors" "$2/model/model.safetensors" && same "$1/numbers" "$2/numbers" &&
        same "$1/checkpoints/step-$3/state.safetensors" "$2/checkpoints/step-$3/state.safetensors"
}
losses() { sed 's/,"seconds.*//; s/,"eval_seconds.*//' "$1/metrics.jsonl"; }

models() { start sam sam-tiny 0 && start other sam-tiny 1 && start tiny tinysam-tiny 0; }
check 'initial models' models
stores() {
    pack sam.pack sam --embeddings-dtype f32 | grep 'embeddings f32 \[64,16,16\]' && pack half.pack sam --embeddings-dtype bf16 | grep 'embeddings bf16' &&
        pack tiny.pack tiny --embeddings-dtype f32 && "$binary" data pack "$tmp/set" -o "$tmp/plain.pack" --model sam-tiny || return 1
    "$binary" data verify "$tmp/sam.pack" | grep ' 0 bad samples' && "$binary" data inspect "$tmp/sam.pack" | grep 'embeddings f32 \[64,16,16\], computed with'
}
check 'stores with embeddings' stores
repacked() {
    "$binary" data pack "$tmp/plain.pack" -o "$tmp/later.pack" --embeddings "$tmp/sam/model" --embeddings-dtype f32 && same "$tmp/sam.pack" "$tmp/later.pack" || return 1
    "$binary" data pack "$tmp/sam.pack" -o "$tmp/less.pack" --model sam-tiny && same "$tmp/plain.pack" "$tmp/less.pack"
}
check 'embeddings added to a store later, and removed from it' repacked

# --- the same training --------------------------------------------------------------------------

both() {
    expect 0 'the encoder does not run' train_run "$tmp/e" --set data.embeddings=use --json && cp "$tmp/out" "$tmp/e.json" || return 1
    expect 0 '' train_run "$tmp/p" --set data.embeddings=off --json && cp "$tmp/out" "$tmp/p.json" || return 1
    losses "$tmp/e" >"$tmp/e.losses" && losses "$tmp/p" >"$tmp/p.losses" && same "$tmp/e.losses" "$tmp/p.losses" && same_training "$tmp/e" "$tmp/p" $steps &&
        [ "$(json "$tmp/e.json" allocations_in_steps)" = 0 ] && [ "$(grep -c eval_loss "$tmp/e.losses")" = 3 ]
}
check 'embeddings and images: the same losses and weights' both
# Bytes of the encoder's weights in f32, by their published shapes.
encoder=$(awk '/^vision_encoder/ { sub(/^[^[]*\[/, ""); sub(/\].*/, ""); n = split($0, d, ", "); x = 4; for (i = 1; i <= n; i++) x *= d[i]; sum += x } END { print sum }' tests/golden/sam_tiny_names.txt)
smaller() {
    local e p
    e=$(json "$tmp/e/plan.json" arena_bytes) p=$(json "$tmp/p/plan.json" arena_bytes)
    echo "arena of $e bytes instead of $p; the encoder's weights are $encoder"
    ! grep -q 'vision_encoder\|"images"' "$tmp/e/plan.json" && grep -q '"image_embeddings"' "$tmp/e/plan.json" && grep -q 'vision_encoder' "$tmp/p/plan.json" &&
        [ "$encoder" -gt 1000000 ] && [ $((p - e)) -ge "$encoder" ]
}
check 'the plan has no encoder' smaller
# A smaller last micro-batch, head chunks, recomputation, and NaN in every dead byte.
split() {
    set -- --set train.effective_batch=5 --set memory.micro_batch=2 --set memory.head_chunks=2 --set memory.recompute=all
    export PLIMSOLL_POISON=1
    expect 0 '' train_run "$tmp/se" "$@" && expect 0 '' train_run "$tmp/sp" "$@" --set data.embeddings=off && same_training "$tmp/se" "$tmp/sp" $steps
    local rc=$?
    unset PLIMSOLL_POISON
    return $rc
}
check 'uneven micro-batches, with poison in dead bytes' split
killed() {
    local out=$tmp/killed pid
    for at in 1 2; do
        set --
        ! begun "$out" || set -- --resume --set data.threads=1
        # shellcheck disable=SC2086
        "$binary" train "$tmp/run.yaml" --set "train.out=$out" $FLAGS "$@" >"$tmp/out" 2>"$tmp/err" &
        pid=$!
        until grep -q "\"step\":$at," "$out/metrics.jsonl" 2>/dev/null || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
        kill -KILL $pid 2>/dev/null
        wait $pid 2>/dev/null
    done
    expect 0 'resuming after step' train_run "$out" --resume && same_run "$tmp/e" "$out" $steps && steps_once "$out" $steps
}
check 'killed twice and resumed: the same weights' killed
changed() {
    expect 0 '' train_run "$tmp/changed" --set train.steps=2 && expect 2 'data.embeddings' train_run "$tmp/changed" --resume --set data.embeddings=off || return 1
    expect 0 'resuming after step 2' train_run "$tmp/changed" --resume && same_run "$tmp/e" "$tmp/changed" $steps
}
check 'a resume keeps data.embeddings of the run' changed
for precision in f32 bf16; do
    half() {
        expect 0 '' train_run "$tmp/h$precision" --set "data.train=$tmp/half.pack" --set memory.precision=$precision || return 1
        [ $precision = f32 ] || { expect 0 '' train_run "$tmp/hp" --set "data.train=$tmp/half.pack" --set memory.precision=bf16 --set data.embeddings=off && same_training "$tmp/hbf16" "$tmp/hp" $steps; }
    }
    check "embeddings in bf16, computing in $precision" half
done
tiny() {
    set -- --set "model.path=$tmp/tiny/model" --set 'model.freeze=image_encoder.*' --set "data.train=$tmp/tiny.pack"
    expect 0 '' train_run "$tmp/te" "$@" && expect 0 '' train_run "$tmp/tp" "$@" --set data.embeddings=off && same_training "$tmp/te" "$tmp/tp" $steps
}
check 'TinySAM' tiny
evaluated() {
    # shellcheck disable=SC2086
    scored() { "$binary" eval "$tmp/run.yaml" --model "$tmp/e/model" --csv "$1" --overlays "$tmp/worst.png" $FLAGS "${@:2}"; }
    scored "$tmp/e.csv" && scored "$tmp/p.csv" --set data.embeddings=off && same "$tmp/e.csv" "$tmp/p.csv" && head -c 4 "$tmp/worst.png" | grep -q PNG
}
check 'evaluation from embeddings and from images: the same scores' evaluated
check 'what comes out has the encoder: trained from again' expect 0 'does not run' train_run "$tmp/next" --set "model.path=$tmp/e/model" --set train.steps=1
none() { expect 0 '' train_run "$tmp/plain" --set "data.train=$tmp/plain.pack" && same "$tmp/e/model/model.safetensors" "$tmp/plain/model/model.safetensors"; }
check 'a store without embeddings: images' none
# Training, evaluation, embeddings and (in run_predict.sh) predict obey preprocessor_config.json.
toned() {
    cp -r "$tmp/sam/model" "$tmp/toned" && cp -r "$tmp/sam/model" "$tmp/bytes" || return 1
    echo '{"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}' >"$tmp/toned/preprocessor_config.json"
    echo '{"do_rescale": false, "image_mean": [123.675, 116.28, 103.53], "image_std": [58.395, 57.12, 57.375]}' >"$tmp/bytes/preprocessor_config.json"
    for m in sam/model toned bytes; do
        set -- --set data.embeddings=off
        expect 0 '' train_run "$tmp/of-$m" --set "model.path=$tmp/$m" --set train.steps=2 "$@" && losses "$tmp/of-$m" >>"$tmp/losses-${m%/*}" || return 1
        # shellcheck disable=SC2086
        "$binary" eval "$tmp/run.yaml" --model "$tmp/$m" --csv "$tmp/csv-${m%/*}" $FLAGS "$@" >/dev/null || return 1
    done
    same "$tmp/losses-sam" "$tmp/losses-bytes" && same "$tmp/csv-sam" "$tmp/csv-bytes" && ! cmp -s "$tmp/losses-sam" "$tmp/losses-toned" && ! cmp -s "$tmp/csv-sam" "$tmp/csv-toned" || return 1
    same "$tmp/toned/preprocessor_config.json" "$tmp/of-toned/model/preprocessor_config.json"
}
check 'preprocessor_config.json sets the normalisation of images' toned
toned_store() {
    expect 2 'other layers, sizes or normalisation' train_run "$tmp/no" --set "model.path=$tmp/toned" || return 1
    "$binary" data pack "$tmp/set" -o "$tmp/toned.pack" --embeddings "$tmp/toned" --embeddings-dtype f32 || return 1
    expect 0 '' train_run "$tmp/toned-e" --set "model.path=$tmp/toned" --set "data.train=$tmp/toned.pack" --set train.steps=2 && same "$tmp/of-toned/model/model.safetensors" "$tmp/toned-e/model/model.safetensors"
}
check 'preprocessor_config.json sets the normalisation of embeddings' toned_store
init() {
    "$binary" init --model "$tmp/sam/model" --data "$tmp/sam.pack" >"$tmp/init.yaml" && grep 'embeddings: use' "$tmp/init.yaml" && grep -q 'freeze: \["vision_encoder.\*"\]' "$tmp/init.yaml" || return 1
    expect 0 '' "$binary" plan "$tmp/init.yaml" && ! grep -q vision_encoder "$tmp/out" && expect 0 '' "$binary" plan "$tmp/init.yaml" --set data.embeddings=off || return 1
    "$binary" init --model "$tmp/toned" --data "$tmp/sam.pack" >"$tmp/other.yaml" && grep 'embeddings: off .*which has another encoder' "$tmp/other.yaml" && ! grep -q '^  freeze' "$tmp/other.yaml" && expect 0 '' "$binary" plan "$tmp/other.yaml"
}
check 'init writes the run that uses the embeddings of its model' init

# --- refused settings -----------------------------------------------------------------------------

no() { train_run "$tmp/no" "$@"; }
check 'other weights' expect 2 'its embeddings were made with other weights: .*sam/model has the fingerprint [0-9a-f]{16}, that of .*other/model has [0-9a-f]{16}: pack again with --embeddings .*or set data.embeddings to off' no --set "model.path=$tmp/other/model"
check 'another kind of encoder' expect 2 'embeddings of \[64,16,16\], made with .*sam/model; this model.s encoder makes \[64,8,8\]' no --set "model.path=$tmp/tiny/model" --set 'model.freeze=image_encoder.*'
check 'an encoder that is trained' expect 2 'vision_encoder.*and 64.*65 parameters: set model.freeze to "vision_encoder.\*"' no --set 'model.freeze=[]'
check 'a part of it is' expect 2 'vision_encoder.patch_embed.projection.weight and' no --set 'model.freeze=vision_encoder.layers.*'
check 'a group thaws it' expect 2 'vision_encoder.neck' no --set 'train.groups=[{match: "*.neck.*", frozen: false}]'
check 'statistics that move' expect 2 'model.bn_group is 1, so the encoder.s batch statistics change' no --set "model.path=$tmp/tiny/model" --set 'model.freeze=image_encoder.*' --set "data.train=$tmp/tiny.pack" --set model.bn_group=1
for key in flip=0.5 scale=0.5 crop=0.5; do
    check "augmentation: $key" expect 2 "data.${key%=*} is 0.5, and the store.s" no --set "data.$key"
done
check 'images of another size' expect 2 'has embeddings of images of 128 pixels, but data.image_size is 64: set it to 128' no --set data.image_size=64
check 'a preset' expect 2 'the encoder of a preset has random weights' no --set model.preset=sam-tiny
check 'none to use' expect 2 'data.embeddings.*plain.pack has none: .plimsoll data pack' no --set data.embeddings=use --set "data.train=$tmp/plain.pack"
check 'a format that has none' expect 2 'data.embeddings is use, and data of this format has none' no --set data.embeddings=use --set data.format=sa1b --set "data.train=$tmp/set/*.tar"
check 'one file without' expect 2 'data.train: not all of its files have the embeddings' no --set "data.train=[$tmp/sam.pack, $tmp/plain.pack]"
check 'validation without' expect 2 'data.validation:' no --set data.holdout=0 --set "data.validation=$tmp/plain.pack"
check 'evaluated with other weights' expect 2 'made with other weights' "$binary" eval "$tmp/run.yaml" --model "$tmp/other/model"
planned() { expect 0 'no such file or folder, so the plan is for images' "$binary" plan "$tmp/run.yaml" --set "data.train=$tmp/nowhere.pack"; }
check 'a plan without the store' planned
check 'a preset as an encoder' expect 2 'is not a folder' "$binary" data pack "$tmp/set" -o "$tmp/no.pack" --embeddings sam-tiny
check 'a size between patches' expect 2 'the image size 100 is not divisible by the patch size 8' pack no.pack sam --size 100
check 'so is one for a model without a run file' expect 2 'sam-tiny:.*100.*8' "$binary" data pack "$tmp/set" -o "$tmp/no.pack" --model sam-tiny --size 100
check 'a layout without a place for them' expect 2 '--layout memmap cannot store embeddings' pack no sam --layout memmap
check 'a dtype of another kind' expect 2 '--embeddings-dtype f16: expected f32 or bf16' pack no.pack sam --embeddings-dtype f16
check 'a dtype of nothing' expect 2 'needs --embeddings' "$binary" data pack "$tmp/set" -o "$tmp/no.pack" --embeddings-dtype f32
nothing() { [ ! -e "$tmp/no.pack" ] && ! ls "$tmp"/no.pack.tmp.* 2>/dev/null && [ ! -e "$tmp/no/model" ]; }
check 'refused commands leave no output' nothing

summary
