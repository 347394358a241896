#!/bin/bash
# shellcheck disable=SC2015
# run_families.sh: every family of language models, on the smallest of its golden cases: techniques
# that must not change a result, folders that are written back as they were read, an adapter on
# weights in 4 bits that is trained, saved, read again and merged, folders in 4 bits, evaluation,
# answers, ranks.
#
#   bash tests/run_families.sh       from the repository's root, after make; see run_lib.sh
#
# The families are those that the program lists, which are the rows of families.def: a new row is
# tested here without a line. The numbers of transformers are compared by tests/golden.sh, answers
# by run_generate.sh.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/golden_step.sh
. tests/golden_step.sh
tool compare json_get
families=$("$binary" generate --model $cases/clip_vision --ids 1,2 2>&1 | sed -n 's/.*expected a language model: //p' | sed 's/,//g; s/ or / /')
[ -n "$families" ] || { echo "$0: the program lists no families"; exit 2; }

# Ids below 29, which every case has.
for i in {0..511}; do printf '\\x%02x\\x00' $((i * 7 % 29)); done | xargs -0 printf '%b' >"$tmp/tokens.bin"

# case_of FAMILY: the golden case with the fewest bytes of weights.
case_of() {
    local folder
    for folder in $(grep -lx "  \"model_type\": \"$1\",*" $cases/*/config.json); do
        folder=${folder%/config.json}
        [ -f "$folder/model.safetensors" ] && [ -f "$folder/batch.safetensors" ] && wc -c "$folder/model.safetensors"
    done | sort -n | sed -n "1s|.*/\([^/][^/]*\)/model.safetensors|\1|p"
}
# train FOLDER OUT ARGUMENT...
train_on() {
    local folder=$1 out=$2
    shift 2
    rm -rf "$out"
    # shellcheck disable=SC2086
    "${launch[@]}" "$binary" train "$golden/run.yaml" --set "model.path=$folder" --set "data.train=$tmp/tokens.bin" --set "train.out=$out" \
        --set train.steps=2 --set train.effective_batch=4 --set memory.micro_batch=2 --set "device.kind=$DEVICE" $FLAGS "$@"
}
launch=()
written() {
    expect 0 '' train_on "$cases/$1" "$tmp/run" --set train.learning_rate=0 --set train.warmup_steps=0 &&
        same "$tmp/run/model/model.safetensors" "$cases/$1/model.safetensors" && same "$tmp/run/model/config.json" "$cases/$1/config.json"
}
numbers() { grep -oE '"(loss|grad_norm|eval_loss)":[^,}]*' "$1/metrics.jsonl"; }
# The adapter that a run saves is the one that it trained: a run that begins with it, and trains
# nothing, writes it again.
adapted() {
    local lora=(--set adapter.target_modules=all-linear --set adapter.r=2 --set adapter.init_lora_weights=false --set memory.quantize=nf4)
    expect 0 '' train_on "$cases/$1" "$tmp/lora" "${lora[@]}" || return 1
    expect 0 '' train_on "$cases/$1" "$tmp/again" --set "adapter.path=$tmp/lora/model" --set memory.quantize=nf4 --set train.learning_rate=0 --set train.warmup_steps=0 || return 1
    same "$tmp/lora/model/adapter_model.safetensors" "$tmp/again/model/adapter_model.safetensors" && numbers "$tmp/lora" | tail -n 1
}
# The adapter of adapted, beside its base and merged into it: the same answer.
merged() {
    local ask=(--ids 1,2,3,4 --max-new 6 --set "device.kind=$DEVICE" --set memory.precision=f32)
    rm -rf "$tmp/merged"
    expect 0 '' "$binary" convert "$cases/$1" --adapter "$tmp/lora/model" -o "$tmp/merged" || return 1
    expect 0 '' "$binary" generate --model "$cases/$1" --adapter "$tmp/lora/model" "${ask[@]}" && mv "$tmp/out" "$tmp/beside" || return 1
    expect 0 '' "$binary" generate --model "$tmp/merged" "${ask[@]}" && same "$tmp/beside" "$tmp/out" && cat "$tmp/out"
}
# A step on the folder in 4 bits has the bits of one that quantizes the weights as it loads them.
# Experts have scales of their own in a folder, which run_experts.sh compares.
four_bits() {
    local step=("$binary" step --batch "$cases/$1/batch.safetensors" --set "device.kind=$DEVICE" --set 'model.freeze=["*"]' --set memory.precision=f32)
    rm -rf "$tmp/nf4"
    expect 0 '' "$binary" convert "$cases/$1" --quantize nf4 -o "$tmp/nf4" || return 1
    expect 0 'are in 4 bits' "${step[@]}" --model "$tmp/nf4" --out "$tmp/folder.safetensors" || return 1
    expect 0 '' "${step[@]}" --model "$cases/$1" --set memory.quantize=nf4 --out "$tmp/loaded.safetensors" && same "$tmp/folder.safetensors" "$tmp/loaded.safetensors"
}
# A model that is not trained has the loss of `eval` in every evaluation.
evaluated() {
    local found
    expect 0 '' train_on "$cases/$1" "$tmp/eval" --set train.learning_rate=0 --set train.warmup_steps=0 --set train.eval_every=2 --set "data.validation=$tmp/tokens.bin" || return 1
    expect 0 '' "$binary" eval "$tmp/eval/config.yaml" --model "$cases/$1" --set memory.micro_batch=1 --json || return 1
    found=$("$tools/json_get" "$tmp/out" loss)
    numbers "$tmp/eval" | sed -n 's/"eval_loss"://p' | awk -v loss="$found" 'BEGIN { n = 0 } { d = $1 - loss; n++; if (d < 0) d = -d; if (d > 1e-5 * loss) bad = 1 } END { print loss; exit bad || !n }'
}
# Two ranks give what one process gives with two shares, if both plans have the head in one chunk.
on_ranks() {
    local how=(--set parallel.shard=weights --set memory.head_chunks=1)
    expect 0 "" train_on "$cases/$1" "$tmp/one" --set parallel.shares=2 "${how[@]}" || return 1
    launch=(ranks 2)
    expect 0 "" train_on "$cases/$1" "$tmp/many" "${how[@]}" || { launch=(); return 1; }
    launch=()
    same "$tmp/one/model/model.safetensors" "$tmp/many/model/model.safetensors" && diff <(numbers "$tmp/one") <(numbers "$tmp/many")
}

for family in $families; do
    name=$(case_of "$family")
    if [ -z "$name" ]; then
        check "$family: a golden case" false
        continue
    fi
    check "$family: recompute: same bytes" equal "$name" --set memory.recompute=all
    check "$family: offload: same bytes" equal "$name" --set memory.offload=weights
    check "$family: the LM head in chunks: near" near "$name" --set memory.head_chunks=3
    check "$family: written as it was read" written "$name"
    check "$family: LoRA on NF4, saved and read again" adapted "$name"
    check "$family: the adapter merged: the same answer" merged "$name"
    if ! grep -q '\.experts\.' "$cases/$name/model.safetensors"; then
        check "$family: a folder in 4 bits: the bits of memory.quantize" four_bits "$name"
    fi
    check "$family: eval: the loss of the evaluation in training" evaluated "$name"
done
if [ "$DEVICE" = cpu ] && [ -f "$BUILD/plimsoll-mpi.so" ] && command -v mpirun >/dev/null; then
    # shellcheck source=tests/ranks_lib.sh
    . tests/ranks_lib.sh
    for family in $families; do check "$family: 2 ranks, weights divided" on_ranks "$(case_of "$family")"; done
fi
summary
