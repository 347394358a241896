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
    [ "$("$tools/json_get" "$tmp/out" models)" -gt 30 ] && holds '"name": "meta-llama/Llama-2-7b-hf"[^}]*"parameters": 6738415616[^}]*"published_parameters": "6738417664"[^}]*"context": 4096'
}
check 'models: a row for each published model, with its source in JSON' lists
check 'plan: a name in any case, with an ending' expect 0 '' "$binary" plan --preset qwen/qwen2.5-0.5b-INSTRUCT --set data.sequence=256 --set device.kind=cuda
counted() { expect 0 '' "$binary" modules HuggingFaceTB/SmolLM2-135M && holds '134,515,008 weights'; }
check 'modules: a name' counted
check 'a near miss' expect 2 'did you mean Qwen/Qwen2\.5-7B' "$binary" plan --preset Qwen/Qwen2.5-7
check 'a near miss without the owner' expect 2 'did you mean meta-llama/Llama-3\.2-1B' "$binary" plan --preset llama-3.2-1b
echo 'model: {path: Qwen/Qwen2.5-7B}' >"$tmp/folder.yaml"
check 'as a folder it says how to download it, and how to plan without' expect 2 'hf download Qwen/Qwen2\.5-7B --local-dir models/Qwen2\.5-7B.*model\.preset: Qwen/Qwen2\.5-7B' "$binary" plan "$tmp/folder.yaml"

made() { # init and train take a name; train says that the weights are random
    printf 'some bytes to train on, more than one row of them\n%.0s' {1..40} >"$tmp/text.bytes"
    expect 0 '' "$binary" init --model HuggingFaceTB/SmolLM2-135M --data "$tmp/text.bytes" --bytes --out "$tmp/run" && holds 'preset: "HuggingFaceTB/SmolLM2-135M"' || return 1
    cp "$tmp/out" "$tmp/run.yaml"
    "$binary" train "$tmp/run.yaml" --set train.steps=1 --set train.effective_batch=1 --set data.sequence=16 --memory 1MiB >"$tmp/out" 2>"$tmp/err"
    grep -q 'weights of HuggingFaceTB/SmolLM2-135M are random here.*hf download HuggingFaceTB/SmolLM2-135M --local-dir models/SmolLM2-135M' "$tmp/err" || { cat "$tmp/err"; return 1; }
}
check 'init and train take a name; train says how to get the weights' made

summary
