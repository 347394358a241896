#!/bin/bash
# shellcheck disable=SC2015
# run_ranks_models.sh: models with texts and images on ranks against one process with shares:
# grounding with its retrieval accuracy, conversations with images, questions about images.
#
#   bash tests/run_ranks_models.sh    from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
tool forge_shapes forge_conversations forge_questions
numbers() { grep -oE '^\{"step":[0-9]*,("loss":[^,]*,"learning_rate":[^,]*,"grad_norm":[^,]*|"eval_loss":.*)' "$1/metrics.jsonl"; }
# equal N RUN STEPS [ARGUMENT...]
equal() {
    local n=$1 run=$2 steps=$3
    shift 3
    rm -rf "$tmp/one" "$tmp/many"
    expect 0 '' "$binary" train "$run" --set "train.out=$tmp/one" --set "parallel.shares=$n" --set "train.steps=$steps" --set parallel.shard=optimizer "$@" &&
        expect 0 '' ranks "$n" "$binary" train "$run" --set "train.out=$tmp/many" --set "train.steps=$steps" --set parallel.shard=optimizer "$@" || return 1
    same "$tmp/one/model/model.safetensors" "$tmp/many/model/model.safetensors" && same "$tmp/one/checkpoints/step-$steps/state.safetensors" "$tmp/many/checkpoints/step-$steps/state.safetensors" && diff <(numbers "$tmp/one") <(numbers "$tmp/many") && numbers "$tmp/many" | tail -n 1
}
mkdir -p "$tmp/train" "$tmp/held" && "$tools/forge_shapes" "$tmp/train" 0 40 1 && "$tools/forge_shapes" "$tmp/held" 1000 10 2 || exit 2
cat >"$tmp/shapes.yaml" <<END
model: {preset: grounding-tiny}
data: {format: coco, train: $tmp/train/masks.json, images: $tmp/train, queries: $tmp/train/queries.csv, validation: $tmp/held/masks.json,
       validation_images: $tmp/held, validation_queries: $tmp/held/queries.csv, sequence: 128, max_queries: 8, max_masks: 8, threads: 1}
train: {effective_batch: 4, learning_rate: 1.0e-3}
memory: {precision: f32, micro_batch: 1}
device: cpu
END
check '3 ranks: grounding, and its accuracy' equal 3 "$tmp/shapes.yaml" 2 --set train.eval_every=1
make_model llava_clip_llama "$tmp/model" && "$tools/forge_conversations" "$tmp/mixed" 20 0 3 1 || exit 2
cat >"$tmp/chats.yaml" <<END
model: {path: $tmp/model}
data: {format: conversations, train: $tmp/mixed/chats.json, images: $tmp/mixed/images, sequence: 64, max_images: 4, threads: 1}
train: {effective_batch: 4, learning_rate: 0.005, schedule: constant, warmup_steps: 0}
memory: {micro_batch: 2, precision: f32}
device: cpu
END
check '2 ranks: conversations with images' equal 2 "$tmp/chats.yaml" 3
# Samples have 0 to 3 images: ranks run the frozen tower's rounds, whose weights they gather
# together, as often as they have images.
check '2 ranks: images in rounds, weights divided' equal 2 "$tmp/chats.yaml" 3 --set parallel.shard=weights --set memory.encode=1 --set 'model.freeze=[vision_tower.*]' --set parallel.timeout=20
"$tools/forge_questions" "$tmp/questions" 32 48 1 || exit 2
cat >"$tmp/questions.yaml" <<END
model: {preset: prs-med-tiny}
data: {format: csv, train: ["$tmp/questions/annotations/*.csv"], train_split: train, validation_split: test, tokenizer: "$tmp/questions/tokenizer", sequence: 40, threads: 1, sample_memory: 4,
       template: "{% for m in messages %}{{ m['content'] + (eos_token if m['role'] == 'assistant' else ' ') }}{% endfor %}"}
train: {effective_batch: 4, learning_rate: 4.0e-3, seed: 1}
memory: {micro_batch: 1}
device: {kind: cpu, threads: 1}
END
# Statistics of batch normalization stay as they are in a model that was saved.
questions() {
    expect 0 '' "$binary" train "$tmp/questions.yaml" --set "train.out=$tmp/first" --set train.steps=1 && sed -i "s|preset: prs-med-tiny|path: $tmp/first/model|" "$tmp/questions.yaml" && equal 2 "$tmp/questions.yaml" 2
}
check '2 ranks: statistics over groups of images, in chunks of the mask head' equal 2 "$tmp/questions.yaml" 2 --set model.bn_group=2 --set train.effective_batch=8 --set memory.micro_batch=4 --set memory.mask_chunks=2
check '2 ranks: questions about images' questions
summary
