#!/bin/bash
# shellcheck disable=SC2015
# run_masks.sh: training on images with masks gives the same weights for any number of loader
# threads, after a kill, and with evaluation; broken samples are counted; formats that do not fit
# the model are refused.
#
#   bash tests/run_masks.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
steps=10

cat >"$tmp/masks.yaml" <<EOF
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/whole/sa_*", image_size: 64, max_masks: 3, flip: 0.5, crop: 0.7, max_bad: 0.2}
prompts: {iterations: 3}
train: {steps: $steps, effective_batch: 4, learning_rate: 0.001, save_every: 1, out: "$tmp/unused"}
memory: {precision: f32}
device: cpu
EOF
# masks OUT [ARGUMENT...]
masks() {
    local out=$1
    shift
    # shellcheck disable=SC2086
    "$binary" train "$tmp/masks.yaml" --set "train.out=$out" $FLAGS "$@"
}

# 20 images; a copy of them with two truncated files; 4 others.
make_sets() {
    "$binary" data make "$tmp/whole" --images 20 --size 96x72 --masks 6 --extracted && cp -r "$tmp/whole" "$tmp/broken" &&
        truncate -s 2000 "$tmp/broken/sa_000000/sa_7.jpg" && truncate -s 300 "$tmp/broken/sa_000000/sa_12.json" &&
        "$binary" data make "$tmp/held" --images 4 --size 72x96 --masks 6 --seed 3 --extracted
}
check 'images to train on' make_sets

calm() { expect 0 '' masks "$tmp/calm" --json && cp "$tmp/out" "$tmp/calm.json" && steps_once "$tmp/calm" $steps && no_debris "$tmp/calm"; }
check 'a run' calm
planned() {
    grep -q '"images_per_second":' "$tmp/calm/metrics.jsonl" && ! grep -q tokens_per_second "$tmp/calm/metrics.jsonl" || return 1
    [ "$(json "$tmp/calm.json" allocations_in_steps)" = 0 ] && grep -q '"name": *"loader"' "$tmp/calm/plan.json" || { cat "$tmp/calm.json"; return 1; }
}
check 'its loader is in the plan; nothing is allocated in steps' planned
for threads in 1 4; do
    threads() { expect 0 '' masks "$tmp/t$threads" --set data.threads=$threads --set data.prefetch=$threads && same_run "$tmp/calm" "$tmp/t$threads" $steps; }
    check "$threads loader threads: the same weights" threads
done

# Killed as soon as metrics.jsonl has that many steps; then resumed with another number of threads.
killed() {
    local out=$tmp/killed pid
    for at in 3 6; do
        set --
        ! begun "$out" || set -- --resume --set data.threads=1
        # shellcheck disable=SC2086
        "$binary" train "$tmp/masks.yaml" --set "train.out=$out" $FLAGS "$@" >"$tmp/out" 2>"$tmp/err" &
        pid=$!
        until grep -q "\"step\":$at," "$out/metrics.jsonl" 2>/dev/null || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
        kill -KILL $pid 2>/dev/null
        wait $pid 2>/dev/null
    done
    expect 0 'resuming after step' masks "$out" --resume --set data.threads=3 && same_run "$tmp/calm" "$out" $steps && steps_once "$out" $steps
}
check 'killed twice and resumed: the same weights' killed

evaluated() {
    expect 0 'evaluation loss' masks "$tmp/evaluated" --set "data.validation=$tmp/held/sa_*" --set train.eval_every=3 || return 1
    same_run "$tmp/calm" "$tmp/evaluated" $steps && [ "$(grep -c eval_loss "$tmp/evaluated/metrics.jsonl")" = 5 ]
}
check 'evaluation changes nothing' evaluated
evaluated_twice() {
    expect 0 '' masks "$tmp/again" --set "data.validation=$tmp/held/sa_*" --set train.eval_every=1 --set train.learning_rate=0 || return 1
    [ "$(grep -o '"eval_loss":[^,]*' "$tmp/again/metrics.jsonl" | sort -u | wc -l)" = 1 ]
}
check 'evaluations of the same weights are equal' evaluated_twice
held() { expect 0 'over 5 samples' masks "$tmp/heldout" --set data.holdout=0.25; }
check 'a share of the samples held out' held

# --- broken samples ---------------------------------------------------------------------------

broken() {
    expect 0 'broken sample sa_000000/sa_7: the image cannot be decoded' masks "$tmp/bad" --set "data.train=$tmp/broken/sa_*" --json || return 1
    [ "$(json "$tmp/out" broken_samples)" = 4 ] || { echo "2 of 20 are broken, and in two epochs: $(cat "$tmp/out")"; return 1; }
}
check 'broken samples are named and counted' broken
broken_resumed() {
    expect 0 '' masks "$tmp/bad2" --set "data.train=$tmp/broken/sa_*" --set train.steps=4 --set data.threads=4 &&
        expect 0 '' masks "$tmp/bad2" --set "data.train=$tmp/broken/sa_*" --resume --json && same_run "$tmp/bad" "$tmp/bad2" $steps || return 1
    [ "$(json "$tmp/out" broken_samples)" = 4 ]
}
check 'also over a resume: same weights, same count' broken_resumed
too_many() { expect 1 '2 of 20.*data.max_bad is 0.05' masks "$tmp/many" --set "data.train=$tmp/broken/sa_*" --set data.max_bad=0.05; }
check 'more than data.max_bad: the run stops' too_many
other_files() {
    expect 0 'not those of the checkpoint' masks "$tmp/bad2" --set "data.train=$tmp/held/sa_*" --set train.steps=11 --resume
}
check 'a resume with other files reports it' other_files

# --- data that does not fit the model -----------------------------------------------------------

check 'a language model' expect 2 'data.format sa1b.*input_ids.*set data.format to tokens' masks "$tmp/no" --set model.preset=llama-tiny
check 'a vision tower' expect 2 'data.format sa1b gives .* takes pixel_values; a vision tower trains with a head: set data.format to classes' masks "$tmp/no" --set model.preset=clip-vit-b-16
check 'tokens for SAM' expect 2 'data.format tokens gives rows of tokens, and a sam takes .*set data.format to sa1b, coco, pairs, csv, packed or parquet' masks "$tmp/no" --set data.format=tokens --set data.max_bad=null
for side in 70 20 36; do
    check "a size between patches: $side" expect 2 "data.image_size is $side,.*model.s patches of 8 pixels" masks "$tmp/no" --set data.image_size=$side
done
for side in 255 238 72 36; do
    check "a size between larger patches: $side" expect 2 "data.image_size is $side,.*model.s patches of 16 pixels" "$binary" plan "$tmp/masks.yaml" --set model.preset=sam-vit-b --set data.image_size=$side
done
check 'evaluated on what is trained on' expect 2 'data.validation_match is given and data.train_match is not' masks "$tmp/no" --set 'data.validation_match=*1'
check 'categories that the format does not have' expect 2 'data.categories names cat, but this format has no categories .sa1b.' masks "$tmp/no" --set data.categories=cat
check 'no images' expect 2 'nowhere.*there is no such file' masks "$tmp/no" --set "data.train=$tmp/nowhere"

# An error found with the first batch: no step ran, no folder remains, and the same command with the
# right key starts.
can_start_again() {
    local out=$tmp/begun
    expect 2 'no sample is left: .*passes the filters.*0 are broken and 1 have no mask that passes the filters .data.min_iou 2, data.area 0.5 to 1.' masks "$out" --set data.min_iou=2 --set data.area=0.5,1 && [ ! -e "$out" ] || return 1
    expect 2 'data.validation: none of its 4 samples has something to predict: no mask passes data.min_iou' masks "$out" --set data.min_iou=2 --set "data.validation=$tmp/held/sa_*" --set train.eval_every=1 && [ ! -e "$out" ] || return 1
    # Evaluation runs before the first step, and then there is no sample to train on.
    cp -r "$tmp/whole" "$tmp/none" && truncate -s 100 "$tmp"/none/sa_000000/*.jpg && expect 2 '1 are broken and 0 have' masks "$out" --set "data.train=$tmp/none/sa_*" \
        --set "data.validation=$tmp/held/sa_*" --set train.eval_every=1 && grep -q 'step 0: evaluation loss' "$tmp/err" && [ ! -e "$out" ] || return 1
    expect 0 '' masks "$out" --set train.steps=1
}
check 'nothing to train on: no folder remains, and the run can start again' can_start_again
tables() {
    printf 'image,mask\na.png,b.png\nc.png,d.png\n' >"$tmp/table.csv"
    expect 2 'no sample is left: .*cannot be used' masks "$tmp/table" --set data.format=csv --set "data.train=$tmp/table.csv" --set "data.images=$tmp" && [ ! -e "$tmp/table" ]
}
check 'a table of images that are not there' tables
scored() { expect 2 'data.min_iou' "$binary" eval "$tmp/masks.yaml" --model "$tmp/calm/model" --set data.min_iou=2 --set data.holdout=0.4; }
check 'an evaluation of nothing' scored

# config.yaml stores loss.preset and not the keys that it sets, so a resumed run uses the same loss.
preset() {
    expect 0 '' masks "$tmp/preset" --set loss.preset=equal-weights --set train.steps=4 && cp "$tmp/preset/metrics.jsonl" "$tmp/preset.lines" || return 1
    rm -rf "$tmp/preset/checkpoints/step-4" "$tmp/preset/model"
    expect 0 'resuming after step 3' "$binary" train "$tmp/preset/config.yaml" --resume || return 1
    diff <(grep -o '"loss":[^,]*' "$tmp/preset.lines") <(grep -o '"loss":[^,]*' "$tmp/preset/metrics.jsonl") || return 1
    expect 2 'loss.focal differs' "$binary" train "$tmp/preset/config.yaml" --resume --set loss.focal=20
}
check 'a preset of the loss, resumed' preset
# With batch statistics no step is short: 20 images are 2 steps of 8; without them 3 steps.
whole_steps() {
    local n
    for n in sam-tiny tinysam-tiny; do
        sed "s/steps: $steps/epochs: 1/; s/sam-tiny/$n/; s/effective_batch: 4/effective_batch: 8/" "$tmp/masks.yaml" >"$tmp/steps.yaml"
        expect 0 '' "$binary" train "$tmp/steps.yaml" --set "train.out=$tmp/steps-$n" || return 1
        echo "$n $(grep -c '"loss"' "$tmp/steps-$n/metrics.jsonl")"
    done | tee "$tmp/steps" | tr '\n' ' '
    diff <(printf 'sam-tiny 3\ntinysam-tiny 2\n') "$tmp/steps"
}
check 'full steps only where a model has batch statistics' whole_steps

summary
