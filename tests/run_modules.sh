#!/bin/bash
# run_modules.sh: `plimsoll modules`: the modules of a model with their type, shape and number of
# weights, and which are trained.
#
#   bash tests/run_modules.sh     from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

lists() { # MODEL LINE...: each a pattern of a line of the output
    local model=$1 line
    shift
    expect 0 '' "$binary" modules "$model" || return 1
    for line; do grep -qE "$line" "$tmp/out" || { echo "no line $line"; cat "$tmp/out"; return 1; }; done
}
check 'a language model: layers are one line, with the pattern that matches them' lists llama-tiny \
    '^model\.embed_tokens +embedding +256 x 128 +1 +32,768 +yes$' \
    '^model\.layers\.\*\.self_attn\.q_proj +linear +128 x 128 +4 +65,536 +yes$' \
    '^model\.layers\.\*\.mlp\.down_proj +linear +128 x 352 +4 +180,224 +yes$' \
    '^model\.layers\.\*\.input_layernorm +norm +128 +4 +512 +yes$'
check 'SAM: convolutions, norms, biases and tables' lists sam-tiny \
    '^vision_encoder\.patch_embed\.projection +conv +96 x 3 x 8 x 8 \+ bias' '^vision_encoder\.layers\.\*\.attn\.qkv +linear +288 x 96 \+ bias +4 '
check 'a folder' lists tests/golden/basic '^model\.layers\.\*\.self_attn\.k_proj +linear'

frozen() {
    printf 'model: {preset: llama-tiny, freeze: ["model.layers.0.*", model.embed_tokens.weight]}\n' >"$tmp/run.yaml"
    lists "$tmp/run.yaml" '^model\.embed_tokens .* no$' '^model\.layers\.0\.self_attn\.q_proj .* 1 +16,384 +no$' '^model\.layers\.\*\.self_attn\.q_proj .* 3 +49,152 +yes$'
}
check 'a run file: what model.freeze matches is not trained' frozen
adapted() { # what the adapter does not train is frozen
    printf 'model: {preset: llama-tiny}\nadapter: {r: 4, target_modules: [q_proj], modules_to_save: [lm_head]}\n' >"$tmp/run.yaml"
    lists "$tmp/run.yaml" '^model\.layers\.\*\.self_attn\.q_proj .* 65,536 +no$' '^model\.layers\.\*\.self_attn\.q_proj\.lora_A .* 4 x 128 .* 4 +2,048 +yes$' '^model\.embed_tokens .* no$' '^lm_head .* yes$' &&
        expect 0 '' "$binary" modules "$tmp/run.yaml" --json && [ "$(json "$tmp/out" trained_parameters)" = $((2 * 4 * 4 * 128 + 256 * 128)) ]
}
check 'a run file with an adapter: the weights below it are not trained' adapted
wrong() { expect 2 'model.freeze: the pattern "model.layer.\*".*model\.layers\.' "$binary" modules llama-tiny --set 'model.freeze=[model.layer.*]'; }
check 'a pattern that matches nothing is an error' wrong

total() {
    "$binary" modules "$1" --json >"$tmp/modules.json" && "$binary" plan "$tmp/$2.yaml" --json >"$tmp/plan.json" || return 1
    [ "$(json "$tmp/modules.json" parameters)" = "$(json "$tmp/plan.json" parameters)" ] || { json "$tmp/modules.json" parameters; json "$tmp/plan.json" parameters; return 1; }
}
printf 'model: {preset: sam-tiny}\ndata: {format: sa1b, max_masks: 2}\n' >"$tmp/sam-tiny.yaml"
printf 'model: {preset: llama-tiny}\n' >"$tmp/llama-tiny.yaml"
check '--json: the number of weights is the plan'"'"'s, language model' total llama-tiny llama-tiny
check '--json: the number of weights is the plan'"'"'s, SAM' total sam-tiny sam-tiny
# Every name that is printed matches: NAME.* in model.freeze, and those for memory.modules in a
# plan, among them parts of the model that a training step visits in rounds.
named() {
    local model=$1 names frozen
    expect 0 '' "$binary" modules "$model" && frozen=$(awk 'NR > 1 && !NF { exit } NR > 1 { printf "%s%s.*", n++ ? ", " : "", $1 }' "$tmp/out") &&
        names=$(sed -n '/^Names for memory.modules/,$s/^  \([^ ]*\).*/\1/p' "$tmp/out" | paste -sd ,) && [ "$names" ] || return 1
    expect 0 '' "$binary" modules "$model" --set "model.freeze=[$frozen]" || return 1
    expect 0 '' "$binary" plan --preset "$model" --set "memory.modules=[{match: [$names], precision: f32}]" "${@:2}" && echo "$names"
}
check 'every name matches: a language model' named llama-tiny
check 'every name matches: SAM' named sam-tiny --set data.format=sa1b
check 'every name matches: TinySAM' named tinysam-tiny --set data.format=sa1b
check 'every name matches: LLaVA' named llava-tiny --set data.format=conversations
decoder() {
    local run=("$binary" plan "$tmp/sam-tiny.yaml" --set memory.precision=f32 --set memory.recompute=none --set memory.head_chunks=1 --json)
    lists sam-tiny '^  mask_decoder$' '^  mask_decoder.transformer.layers.\* \(blocks\)$' '^  prompt_encoder$' && ! grep '^  masks' "$tmp/out" || return 1
    expect 0 '' "${run[@]}" --set 'memory.modules=[{match: mask_decoder, recompute: all}]' && json "$tmp/out" arena_bytes >"$tmp/arena" && expect 0 '' "${run[@]}" && [ "$(json "$tmp/out" arena_bytes)" -gt "$(cat "$tmp/arena")" ] &&
        expect 2 'the pattern "mask_decode" matches no module; the nearest is mask_decoder \(`plimsoll modules` lists the names\)' "${run[@]}" --set 'memory.modules=[{match: mask_decode, recompute: all}]'
}
check 'the mask decoder by its name' decoder
check 'no such model' expect 2 'there is no folder no-such-model: .* presets llama-tiny' "$binary" modules no-such-model
check 'no model' expect 2 'expected a model folder, a preset or a RUN.yaml' "$binary" modules
summary
