#!/bin/bash
# shellcheck disable=SC2015
# run_quantize_convert.sh: `plimsoll convert BASE --quantize nf4 -o OUT`: 4-bit folders as
# transformers writes them.
#
#   bash tests/run_quantize_convert.sh      from the repository's root, after make; see run_lib.sh
#
# tests/golden/nf4 and tests/golden/peft/odd_4bit hold folders that transformers saved with
# bitsandbytes, of models in tests/golden (check_4bit.py, which compares more of them, and reads
# converted folders with transformers).
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool forge_pth
from=tests/golden

# tensors FILE...: name, dtype, shape and a hash of the values of each tensor, sorted.
tensors() { for f; do "$tools/forge_pth" list "$f"; done | sort; }
# quantize BASE OUT [ARGUMENT...]
quantize() { expect 0 '' "$binary" convert "$1" --quantize nf4 -o "$2" "${@:3}"; }
no_leftovers() {
    local found
    found=$(find "$tmp" -name '*.tmp*')
    [ -z "$found" ] || { echo "left behind: $found"; return 1; }
}

# --- transformers' folders ------------------------------------------------------------------------

# golden NAME FOLDER: the tensors that transformers and bitsandbytes make of tests/golden/NAME.
golden() {
    quantize "$from/$1" "$tmp/$1" && tensors "$from/$2"/model*.safetensors >"$tmp/want" && tensors "$tmp/$1"/model*.safetensors >"$tmp/got" &&
        same "$tmp/want" "$tmp/got" && no_leftovers && tail -n 1 "$tmp/out"
}
check 'f32, odd sizes: the bits of bitsandbytes' golden odd peft/odd_4bit
check 'GPT-2, whose weights are [inputs,outputs]: the bits of bitsandbytes' golden gpt2 peft/gpt2_4bit
check 'bf16: the bits of bitsandbytes' golden bf16 nf4/bf16
check 'three files: the bits of bitsandbytes' golden sharded nf4/sharded
check 'an image and text model: the bits of bitsandbytes' golden llava_siglip_qwen2 nf4/llava_siglip_qwen2
check 'a vision tower with a head that is not read' golden siglip_vision nf4/siglip_vision

index() {
    local list=$tmp/sharded/model.safetensors.index.json bytes=0 f
    for f in "$tmp"/sharded/model-*.safetensors; do bytes=$((bytes + $(stat -c %s "$f") - 8 - $(od -An -tu8 -N8 "$f"))); done
    [ "$(json "$list" weight_map)" -eq "$(tensors "$tmp"/sharded/model-*.safetensors | wc -l)" ] && [ "$(json "$list" metadata.total_size)" -eq "$bytes" ] && echo "$bytes bytes"
}
check 'three files: the index lists every tensor' index
# described NAME FOLDER: quantization_config is that of transformers.
described() {
    local key
    for key in '' .{_,}load_in_{4,8}bit .bnb_4bit_{compute_dtype,quant_storage,quant_type,use_double_quant} .llm_int8_{enable_fp32_cpu_offload,has_fp16_weight,skip_modules,threshold} .quant_method; do
        cmp <(json "$tmp/$1/config.json" "quantization_config$key") <(json "$from/$2/config.json" "quantization_config$key") || { echo "$key"; return 1; }
    done
    cmp <(json "$tmp/$1/config.json" hidden_size) <(json "$from/$1/config.json" hidden_size)
}
check 'config.json: quantization_config of transformers' described odd peft/odd_4bit
skipped() {
    grep -F '"vision_model.head.mlp.fc1"' "$tmp/siglip_vision/config.json" && grep -F '"lm_head"' "$tmp/siglip_vision/config.json" &&
        [ "$(json "$tmp/bf16/config.json" quantization_config.bnb_4bit_compute_dtype)" = bfloat16 ]
}
check 'config.json: layers that stay as they are; the compute dtype' skipped
dtype() {
    cp -r "$from/odd" "$tmp/plain" && chmod -R u+w "$tmp/plain" && sed -i '/"dtype"/d' "$tmp/plain/config.json" && quantize "$tmp/plain" "$tmp/named" && [ "$(json "$tmp/named/config.json" torch_dtype)" = float32 ]
}
check 'config.json: the dtype, where it was not stated' dtype
others() {
    quantize "$from/chat/model" "$tmp/chat" || return 1
    for f in "$from"/chat/model/*; do
        case $f in *.safetensors | */config.json) continue ;; esac
        [ ! -f "$f" ] || same "$f" "$tmp/chat/${f##*/}" || return 1
    done
    [ -f "$tmp/chat/tokenizer.json" ]
}
check 'tokenizer and templates are copied' others

# --- runs ---------------------------------------------------------------------------------------

# equal NAME [ARGUMENT...]: a step on the converted folder has the bits of one on the original with
# memory.quantize nf4.
equal() {
    local step=("$binary" step --batch "$from/$1/batch.safetensors" --set "device.kind=$DEVICE" --set 'model.freeze=["*"]' "${@:2}")
    expect 0 'are in 4 bits' "${step[@]}" --model "$tmp/$1" --out "$tmp/folder.safetensors" && expect 0 '' "${step[@]}" --model "$from/$1" --set memory.quantize=nf4 --out "$tmp/loaded.safetensors" &&
        expect 0 '' "${step[@]}" --model "$from/$1" --out "$tmp/plain.safetensors" || return 1
    same "$tmp/folder.safetensors" "$tmp/loaded.safetensors" && ! cmp -s "$tmp/folder.safetensors" "$tmp/plain.safetensors" || { echo "the same without 4 bits"; return 1; }
}
check 'a step has the bits of memory.quantize nf4: f32' equal odd --set memory.precision=f32
check 'a step has the bits of memory.quantize nf4: GPT-2' equal gpt2 --set memory.precision=f32
check 'a step has the bits of memory.quantize nf4: GPT-2 in bf16' equal gpt2 --set memory.precision=bf16
check 'a step has the bits of memory.quantize nf4: bf16' equal bf16 --set memory.precision=bf16
check 'a step has the bits of memory.quantize nf4: f32 in bf16' equal odd --set memory.precision=bf16
check 'a step has the bits of memory.quantize nf4: three files' equal sharded --set memory.precision=f32
check 'a step has the bits of memory.quantize nf4: images' equal llava_siglip_qwen2 --set memory.precision=f32
sam() { quantize "$from/sam_points" "$tmp/sam_points" && equal sam_points --set memory.precision=f32; }
check 'a step has the bits of memory.quantize nf4: SAM' sam
tiny() { quantize "$from/tinysam_mask" "$tmp/tinysam_mask" && equal tinysam_mask --set memory.precision=f32; }
check 'a step has the bits of memory.quantize nf4: TinySAM' tiny
trained() {
    local lora=(--set train.steps=3 --set adapter.r=2 --set adapter.target_modules=all-linear)
    quantize "$golden" "$tmp/untied" && train "$tmp/on_folder" "${lora[@]}" --set "model.path=$tmp/untied" && train "$tmp/on_load" "${lora[@]}" --set memory.quantize=nf4 &&
        same "$tmp/on_folder/model/adapter_model.safetensors" "$tmp/on_load/model/adapter_model.safetensors"
}
check 'LoRA on the folder: the bits of memory.quantize nf4' trained

# --- with an adapter ----------------------------------------------------------------------------

merged() {
    local merge=$from/peft_merge
    quantize "$merge/llama" "$tmp/both" --adapter "$merge/patterns" --json && json "$tmp/out" adapter && [ "$(json "$tmp/out" in)" = "$merge/llama" ] &&
        expect 0 '' "$binary" convert "$merge/llama" --adapter "$merge/patterns" -o "$tmp/merged" && quantize "$tmp/merged" "$tmp/after" || return 1
    for f in "$tmp"/after/*; do same "$f" "$tmp/both/${f##*/}" || return 1; done
    no_leftovers
}
check 'an adapter is merged, then quantized' merged

# --- output and memory --------------------------------------------------------------------------

as_json() {
    quantize "$from/odd" "$tmp/json" --json && [ "$(json "$tmp/out" quantized)" = 14 ] && [ "$(json "$tmp/out" model_type)" = llama ] && [ "$(json "$tmp/out" bytes)" -lt "$(json "$tmp/out" bytes_before)" ] &&
        json "$tmp/out" bytes
}
check '--json' as_json
# A weight is read in chunks: the memory of the process stays far below the 375 MB of weights, which
# are 0 here.
limited() (
    "$tools/forge_pth" make "$from/convert/vit_b.names" "$tmp/vit_b.pth" && expect 0 '' "$binary" convert "$tmp/vit_b.pth" -o "$tmp/vit_b" || return 1
    sanitized || ulimit -d 65536
    quantize "$tmp/vit_b" "$tmp/vit_b4" && tail -n 1 "$tmp/out"
)
check 'ViT-B in 64 MiB' limited

# --- refused ------------------------------------------------------------------------------------

# refused PATTERN BASE [ARGUMENT...]: status 2 with one line, and no output remains.
refused() {
    expect 2 "$1" "$binary" convert "$2" --quantize nf4 -o "$tmp/never" "${@:3}" && [ ! -e "$tmp/never" ] && no_leftovers && tail -n 1 "$tmp/err"
}
for form in fp4 int8 none; do
    check "--quantize $form" expect 2 "--quantize $form: expected nf4" "$binary" convert "$from/odd" --quantize $form -o "$tmp/never"
done
check '--quantize without a value' expect 2 '--quantize needs a value' "$binary" convert "$from/odd" -o "$tmp/never" --quantize
check 'a misspelt option' expect 2 'did you mean --quantize' "$binary" convert "$from/odd" -o "$tmp/never" --quantise nf4
check 'a folder in 4 bits' refused 'odd_4bit: its weights are quantized already, by bitsandbytes: give the folder of the model before' "$from/peft/odd_4bit"
gptq() {
    cp -r "$from/odd" "$tmp/gptq" && chmod -R u+w "$tmp/gptq" && sed -i 's/^{/{"quantization_config": {"quant_method": "gptq"},/' "$tmp/gptq/config.json" && refused 'quantized already, by gptq' "$tmp/gptq"
}
check 'a folder of GPTQ' gptq
not_finite() {
    cp -r "$from/odd" "$tmp/inf" && chmod -R u+w "$tmp/inf" || return 1
    printf '\0\0\200\177' | dd of="$tmp/inf/model.safetensors" bs=1 conv=notrunc seek=$(($(stat -c %s "$tmp/inf/model.safetensors") - 400)) status=none
    refused 'element [0-9]* is inf; expected finite numbers' "$tmp/inf"
}
check 'a weight that is not finite' not_finite
check 'a checkpoint file' refused '--quantize takes a model folder, and .*sam.pth is a file' "$from/convert/sam.pth"
check 'an adapter as the base' refused 'patterns holds an adapter' "$from/peft_merge/patterns"
check 'an adapter of another base' refused 'another base' "$from/odd" --adapter "$from/peft_merge/patterns"
check 'an adapter on a folder in 4 bits' refused 'quantized already' "$from/peft/odd_4bit" --adapter "$from/peft_merge/patterns"
mkdir "$tmp/unknown" && echo '{"model_type": "qwen3_5"}' >"$tmp/unknown/config.json"
check 'a model that is not supported' refused 'Qwen3.5 .*is not supported' "$tmp/unknown"
occupied() { mkdir "$tmp/occupied" && touch "$tmp/occupied/file" && expect 2 'is not empty' "$binary" convert "$from/odd" --quantize nf4 -o "$tmp/occupied"; }
check 'OUT that has files' occupied
helped() { "$binary" convert --help | grep -e '--quantize nf4, writes'; }
check '--help' helped
summary
