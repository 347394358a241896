#!/bin/bash
# run_models.sh: `plimsoll models` and `plimsoll fits`: published models by name, without a folder,
# and what of them fits a GPU.
#
#   bash tests/run_models.sh      from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

holds() { # PATTERN...: each matches standard output, whose lines are joined
    local pattern
    for pattern; do tr -s '\n ' ' ' <"$tmp/out" | grep -qE -- "$pattern" || { echo "no /$pattern/"; cat "$tmp/out"; return 1; }; done
}
lists() {
    expect 0 '' "$binary" models && holds 'Qwen/Qwen2\.5-7B qwen2 7,615,616,512 131,072' || return 1
    expect 0 '' "$binary" models --json || return 1
    [ "$("$tools/json_get" "$tmp/out" models)" -ge 70 ] && holds '"name": "meta-llama/Llama-2-7b-hf"[^}]*"parameters": 6738415616[^}]*"published_parameters": "6738417664"[^}]*"context": 4096'
}
check 'models: a row for each published model, with its source in JSON' lists
# The stored budgets are those of today's plans.
smallest() {
    local model
    for model in HuggingFaceTB/SmolLM2-135M openai-community/gpt2; do
        grep -xF "$(tools/smallest.sh "$binary" "$model")" src/models/smallest.def || return 1
    done
    expect 0 '' "$binary" models --json && holds '"name": "HuggingFaceTB/SmolLM2-135M"[^}]*"qlora_smallest_bytes": [0-9]+'
}
check 'models: the smallest budget of QLoRA' smallest
check 'plan: a name in any case, with an ending' expect 0 '' "$binary" plan --preset qwen/qwen2.5-0.5b-INSTRUCT --set data.sequence=256 --set device.kind=cuda
counted() { expect 0 '' "$binary" modules HuggingFaceTB/SmolLM2-135M && holds '134,515,008 weights'; }
check 'modules: a name' counted
check 'a near miss' expect 2 'did you mean Qwen/Qwen2\.5-7B' "$binary" plan --preset Qwen/Qwen2.5-7
check 'a near miss without the owner' expect 2 'did you mean meta-llama/Llama-3\.2-1B' "$binary" plan --preset llama-3.2-1b
echo 'model: {path: Qwen/Qwen2.5-7B}' >"$tmp/folder.yaml"
check 'as a folder it says how to download it, and how to plan without' expect 2 'hf download Qwen/Qwen2\.5-7B --local-dir models/Qwen2\.5-7B.*model\.preset: Qwen/Qwen2\.5-7B' "$binary" plan "$tmp/folder.yaml"

made() { # init and train take a name; train says that the weights are random
    printf '0123 456 789, 1 + 2 - 3, 4 + 5 - 9\n%.0s' {1..60} >"$tmp/text.bytes"
    expect 0 '' "$binary" init --model HuggingFaceTB/SmolLM2-135M --data "$tmp/text.bytes" --bytes --out "$tmp/run" && holds 'preset: "HuggingFaceTB/SmolLM2-135M"' || return 1
    cp "$tmp/out" "$tmp/run.yaml"
    "$binary" train "$tmp/run.yaml" --set train.steps=1 --set train.effective_batch=1 --set data.sequence=16 --memory 1MiB >"$tmp/out" 2>"$tmp/err"
    grep -q 'weights of HuggingFaceTB/SmolLM2-135M are random here.*hf download HuggingFaceTB/SmolLM2-135M --local-dir models/SmolLM2-135M' "$tmp/err" || { cat "$tmp/err"; return 1; }
}
check 'init and train take a name; train says how to get the weights' made

# --- fits ---
fits() { expect 0 '' "$binary" fits "$@"; }
rows() {
    fits HuggingFaceTB/SmolLM2-135M --gpu 8,rtx-4090 --tokens 256 || return 1
    holds 'full fine-tuning 8 GiB [0-9.]+ [MG]iB' 'LoRA, r 16 8 GiB' 'QLoRA, r 16, NF4 8 GiB' 'QLoRA, r 16, NF4 rtx-4090' \
        'hf download HuggingFaceTB/SmolLM2-135M --local-dir models/SmolLM2-135M plimsoll init --model models/SmolLM2-135M --data DIR > run.yaml' \
        'plimsoll train run.yaml --set train.effective_batch=8 --set data.sequence=256 --set adapter.target_modules=all-linear --set adapter.r=16 --set memory.quantize=nf4' \
        'In a step by itself, a row of [0-9]+ tokens fits: QLoRA, r 16, NF4, 8 GiB'
}
check 'fits: a row for each way and GPU, and the commands' rows
keys() {
    fits HuggingFaceTB/SmolLM2-135M --gpu 8 --tokens 256 --batch 4 --json || return 1
    [ "$("$tools/json_get" "$tmp/out" fits)" = true ] && [ "$("$tools/json_get" "$tmp/out" ways)" = 3 ] &&
        holds '"way": "qlora", "gpu": "8 GiB", "fits": true, "arena_bytes": [0-9]+, "host_bytes": [0-9]+, "budget_bytes": [0-9]+, "gpu_memory_bytes": [0-9]+, "samples_per_second": [0-9.e+]+, "tokens_per_second": [0-9.e+]+, "longest_row": [0-9]+, "profile": "rtx-4060", "measured": false, "techniques": "[^"]+", "command": "plimsoll train'
}
check 'fits --json: keys' keys
frozen() { fits facebook/sam-vit-base --gpu 8 --json && holds '"way": "frozen"' '"command": "plimsoll train run.yaml --set train.effective_batch=8 --set model.freeze=vision_tower"'; }
check 'fits: a frozen vision tower is a row where there is one' frozen
check 'fits: a near miss' expect 2 'did you mean HuggingFaceTB/SmolLM2-135M' "$binary" fits HuggingFaceTB/SmolLM2-135 --gpu 8
check 'fits: no such GPU' expect 2 'gpu: rtx-40900 is not a number of GiB: .*did you mean rtx-4090' "$binary" fits HuggingFaceTB/SmolLM2-135M --gpu rtx-40900
check 'fits: no GPU' expect 2 'add --gpu' "$binary" fits HuggingFaceTB/SmolLM2-135M
nothing() {
    expect 3 'nothing fits' "$binary" fits HuggingFaceTB/SmolLM2-135M --gpu 0.05 --json || return 1
    [ "$("$tools/json_get" "$tmp/out" fits)" = false ] && holds '"fits": false, "smallest_budget_bytes": [0-9]+'
}
check 'fits: nothing fits, exit code 3' nothing

# The commands of a folder work as they are printed: init, then each train.
pasted() {
    local line
    fits tests/golden/train_untied --gpu 8 --tokens 8 --batch 2 || return 1
    grep -E '^  plimsoll' "$tmp/out" | sed 's/ *#.*//' >"$tmp/lines"
    [ "$(wc -l <"$tmp/lines")" = 4 ] || { cat "$tmp/out"; return 1; }
    while read -r line; do
        line=${line//DIR/$tmp/text.bytes --bytes --out $tmp/pasted}
        line=${line//run.yaml/$tmp/pasted.yaml}
        case $line in *' train '*) line+=" --set train.epochs=0.02 --set device=cpu --set train.out=$tmp/pasted$RANDOM" ;; esac
        eval "$binary ${line#plimsoll }" >"$tmp/said" 2>&1 || { echo "$line"; cat "$tmp/said"; return 1; }
    done <"$tmp/lines"
}
check 'fits: a folder; its commands run as printed' pasted
file() {
    printf 'model: {preset: llama-tiny}\ndata: {format: bytes, train: [%s], sequence: 16}\ntrain: {steps: 1, effective_batch: 2, out: %s/r}\n' "$tmp/text.bytes" "$tmp" >"$tmp/fits.yaml"
    fits "$tmp/fits.yaml" --gpu 8 && holds "plimsoll train $tmp/fits.yaml --set adapter.target_modules=all-linear --set adapter.r=16 " '2 samples a step. A sample has 16 tokens'
}
check 'fits: a run file' file

summary
