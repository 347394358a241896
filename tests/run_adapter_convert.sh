#!/bin/bash
# shellcheck disable=SC2015
# run_adapter_convert.sh: `plimsoll convert BASE --adapter DIR -o OUT`: adapters merged into their
# base.
#
#   bash tests/run_adapter_convert.sh      from the repository's root, after make; see run_lib.sh
#
# tests/golden/peft_merge holds small bases, adapters that PEFT saved, and the tensors of PEFT's own
# merge (make_peft_merge.py).
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare forge_pth
from=tests/golden/peft_merge

# tensors FILE...: name, dtype, shape and a hash of the values of each tensor, sorted.
tensors() { for f; do "$tools/forge_pth" list "$f"; done | sort; }

# --- PEFT's merge -----------------------------------------------------------------------------

# merged CASE BOUND: the tensors that PEFT changed are within BOUND of PEFT's, the others have the
# base's bytes.
merged() {
    local base out=$tmp/$1
    base=$from/$(cat "$from/$1/base")
    expect 0 '' "$binary" convert "$base" --adapter "$from/$1" -o "$out" || return 1
    tail -n 1 "$tmp/out" >"$tmp/summary"
    for f in "$out"/model*.safetensors; do
        local name
        name=$(basename "$f")
        "$tools/compare" "$from/$1/${name/model/expect}" "$f" --logits "$2" || return 1
    done
    tensors "$base"/model*.safetensors >"$tmp/before" && tensors "$out"/model*.safetensors >"$tmp/after" || return 1
    tensors "$from/$1"/expect*.safetensors | awk '{print $1}' | sort -u >"$tmp/changed"
    # The lines of tensors that must not change, of both.
    for f in before after; do awk 'NR == FNR { skip[$1]; next } !($1 in skip)' "$tmp/changed" "$tmp/$f" >"$tmp/$f.kept"; done
    same "$tmp/before.kept" "$tmp/after.kept" && [ -s "$tmp/after.kept" ] && [ -f "$out/config.json" ] && cat "$tmp/summary"
}
check 'LoRA with rank_pattern and alpha_pattern, sharded base' merged patterns 1e-6
check 'rsLoRA on all linears of a bf16 base' merged rslora 1e-3
check 'LoRA that began orthogonal' merged orthogonal 1e-6
check 'DoRA, all biases' merged dora 1e-6
check 'biases of adapted modules; adapter_model.bin' merged biases 1e-6
check 'modules_to_save, all biases' merged whole 1e-6
check 'LoRA on a head that shares the embedding' merged tied_lora 1e-6
check 'a saved embedding that the head shared' merged tied_saved 1e-6

check 'GPT-2, whose weights are [inputs,outputs]: rsLoRA on all linears' merged gpt2_lora 1e-6
check 'GPT-2: DoRA' merged gpt2_dora 1e-6
check 'GPT-2: a saved embedding that the head shared' merged gpt2_saved 1e-6

# untied CASE: the merged model has both tensors, and config.json says so.
untied() {
    [ "$(json "$tmp/$1/config.json" tie_word_embeddings)" = false ] && "$tools/forge_pth" list "$tmp/$1/model.safetensors" | grep '^lm_head.weight'
}
check 'a head of its own in config.json and the file: LoRA' untied tied_lora
check 'a head of its own in config.json and the file: saved' untied tied_saved
check 'a head of its own in config.json and the file: GPT-2' untied gpt2_saved

as_json() {
    expect 0 '' "$binary" convert "$from/tied" --adapter "$from/tied_lora" -o "$tmp/json" --json && json "$tmp/out" untied && json "$tmp/out" merged
}
check '--json' as_json

# --- merged and unmerged ------------------------------------------------------------------------

# agrees NAME [KEY=VALUE...]: an adapter that was trained here, beside its base and merged into it:
# the same logits.
agrees() {
    local out=$tmp/agree-$1 sets=()
    shift
    for s; do sets+=(--set "adapter.$s"); done
    train "$out" --set train.steps=2 --set adapter.init_lora_weights=false "${sets[@]}" && "$binary" convert "$golden" --adapter "$out/model" -o "$out/merged" || return 1
    local batch=(--batch tests/golden/basic/batch.safetensors --set device.kind=cpu --set memory.precision=f32)
    "$binary" step --model "$golden" --set "adapter.path=$out/model" "${batch[@]}" --out "$out/beside.safetensors" &&
        "$binary" step --model "$out/merged" --set 'model.freeze=["*"]' "${batch[@]}" --out "$out/merged.safetensors" || return 1
    # Only the outputs are compared: the merged model has no adapter to take a gradient of.
    sed 's/"grad\./"none./g' "$out/beside.safetensors" >"$out/outputs.safetensors"
    "$tools/compare" "$out/merged.safetensors" "$out/outputs.safetensors" --logits 1e-5
}
check 'merged and unmerged: LoRA' agrees lora 'target_modules=[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]' r=4 use_rslora=true 'rank_pattern={q_proj: 2}'
check 'merged and unmerged: DoRA' agrees dora 'target_modules=[q_proj, up_proj]' use_dora=true lora_alpha=3
check 'merged and unmerged: modules_to_save' agrees save 'target_modules=[v_proj]' 'modules_to_save=[lm_head, norm]'

# --- names ------------------------------------------------------------------------------------

# A base whose names have no root: the same merge under its names.
no_root() {
    mkdir -p "$tmp/no_root" && cp "$from/qwen/config.json" "$tmp/no_root" &&
        sed -E 's/"model\.([a-z_.0-9]*)"/"\1"      /g' "$from/qwen/model.safetensors" >"$tmp/no_root/model.safetensors" &&
        expect 0 '' "$binary" convert "$tmp/no_root" --adapter "$from/dora" -o "$tmp/no_root.out" || return 1
    tensors "$tmp/no_root.out/model.safetensors" >"$tmp/got"
    tensors "$tmp/dora/model.safetensors" | sed 's/^model\.//' | sort >"$tmp/want"
    same "$tmp/want" "$tmp/got" && grep -c . "$tmp/got"
}
check 'a base without the root of its names' no_root
# The published GPT-2 is such a base; it does not say that its head is tied.
no_root_gpt2() {
    mkdir -p "$tmp/gpt2_base" && sed -E 's/"transformer\.([a-z_.0-9]*)"/"\1"            /g' "$from/gpt2/model.safetensors" >"$tmp/gpt2_base/model.safetensors" &&
        sed '/tie_word_embeddings/d' "$from/gpt2/config.json" >"$tmp/gpt2_base/config.json" && expect 0 '' "$binary" convert "$tmp/gpt2_base" --adapter "$from/gpt2_saved" -o "$tmp/gpt2_base.out" || return 1
    tensors "$tmp/gpt2_base.out/model.safetensors" >"$tmp/got"
    tensors "$tmp/gpt2_saved/model.safetensors" | sed 's/^transformer\.//' | sort >"$tmp/want"
    same "$tmp/want" "$tmp/got" && grep -c . "$tmp/got"
}
check 'GPT-2 without the root of its names' no_root_gpt2

# --- errors: one line, nothing written ----------------------------------------------------------

# refuse PATTERN BASE ADAPTER: refused with one line that matches, and no file is left.
refuse() {
    expect 2 "$1" "$binary" convert "$2" --adapter "$3" -o "$tmp/refused" || return 1
    [ "$(grep -c . "$tmp/err")" -eq 1 ] || { echo "more than one line"; cat "$tmp/err"; return 1; }
    [ -z "$(find "$tmp" -maxdepth 1 -name 'refused*')" ] || { echo "left behind: $(ls -d "$tmp"/refused*)"; return 1; }
    tail -n 1 "$tmp/err"
}
# changed CASE FILE SCRIPT: a copy of an adapter in $tmp/changed, with FILE changed by sed.
changed() {
    rm -rf "$tmp/changed" && cp -r "$from/$1" "$tmp/changed" && chmod -R u+w "$tmp/changed" && sed -E "$3" "$from/$1/$2" >"$tmp/changed/$2"
}
check 'another base: names' refuse 'another base: .*qwen has no tensor "model.layers.1.*nearest name' "$from/qwen" "$from/patterns"
check 'another base: shapes' refuse 'another base: tensor .* has the shape \[.*, which does not fit \[' tests/golden/basic "$from/patterns"
no_partner() {
    changed patterns adapter_model.safetensors 's/0\.self_attn\.q_proj\.lora_B/0.self_attn.z_proj.lora_B/' && refuse 'q_proj.lora_A.weight" has no partner' "$from/llama" "$tmp/changed"
}
check 'a tensor without its partner' no_partner
other_rank() {
    changed patterns adapter_config.json 's/"r": 3/"r": 4/' && refuse 'adapter_config.json gives this module the rank 4' "$from/llama" "$tmp/changed"
}
check 'r that disagrees with the shapes' other_rank
no_magnitude() {
    changed patterns adapter_config.json 's/"use_dora": false/"use_dora": true/' && refuse 'has no partner .*lora_magnitude_vector' "$from/llama" "$tmp/changed"
}
check 'use_dora without magnitudes' no_magnitude
magnitude() {
    changed dora adapter_config.json 's/"use_dora": true/"use_dora": false/' && refuse 'belongs to DoRA' "$from/qwen" "$tmp/changed"
}
check 'magnitudes without use_dora' magnitude
cut() {
    cp -r "$from/patterns" "$tmp/cut" && chmod -R u+w "$tmp/cut" && head -c 2000 "$from/patterns/adapter_model.safetensors" >"$tmp/cut/adapter_model.safetensors" &&
        refuse 'cut/adapter_model.safetensors' "$from/llama" "$tmp/cut"
}
check 'a cut file' cut
cut_bin() {
    cp -r "$from/biases" "$tmp/cut_bin" && chmod -R u+w "$tmp/cut_bin" && head -c 1500 "$from/biases/adapter_model.bin" >"$tmp/cut_bin/adapter_model.bin" &&
        refuse 'cut_bin/adapter_model.bin' "$from/qwen" "$tmp/cut_bin"
}
check 'a cut file: adapter_model.bin' cut_bin
pissa() {
    changed patterns adapter_config.json 's/"init_lora_weights": true/"init_lora_weights": "pissa"/' && refuse 'init_lora_weights is the string "pissa"' "$from/llama" "$tmp/changed"
}
check 'an initialization that is not done' pissa
other_type() {
    changed patterns adapter_config.json 's/"LORA"/"IA3"/' && refuse 'peft_type is "IA3"; Plimsoll does LORA only' "$from/llama" "$tmp/changed"
}
check 'a PEFT type that is not done' other_type
not_finite() {
    changed patterns adapter_config.json 's/"lora_alpha": 5/"lora_alpha": 1e39/' && refuse 'is (inf|-inf|-?[0-9.e+]+) when merged, which is not finite as F32' "$from/llama" "$tmp/changed" &&
        changed rslora adapter_config.json 's/"lora_alpha": 3/"lora_alpha": 2e39/' && refuse 'not finite as BF16' "$from/half" "$tmp/changed"
}
check 'values that are not finite when merged' not_finite
check 'an adapter as the base' refuse 'convert BASE --adapter.*patterns -o OUT' "$from/patterns" "$from/patterns"
check 'a model folder as the adapter' refuse 'has no adapter_config.json' "$from/llama" "$from/llama"
check 'no such adapter' refuse 'is not a folder; expected a PEFT folder' "$from/llama" "$tmp/none"
occupied() {
    mkdir "$tmp/occupied" && touch "$tmp/occupied/file" && expect 2 'is not empty' "$binary" convert "$from/llama" --adapter "$from/patterns" -o "$tmp/occupied"
}
check 'OUT that has files' occupied
as_model() {
    expect 2 'patterns holds an adapter, not a model: give it as adapter.path' "$binary" plan examples/tiny.yaml --set "model.path=$from/patterns" &&
        expect 2 'holds an adapter, which is merged into its base model' "$binary" convert "$from/patterns" -o "$tmp/x.pth"
}
check 'an adapter as model.path' as_model
bases() { ! grep -rE '"base_model_name_or_path": "/' --include=adapter_config.json tests/golden; }
check 'stored adapters name their bases by paths of the repository' bases
summary
