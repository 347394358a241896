#!/bin/bash
# shellcheck disable=SC2015
# run_quantize.sh: memory.quantize: frozen weights in 4 bits give the bits of a run on the
# dequantized weights, with every other technique, and take 4.127 bits each; what cannot be
# quantized is refused.
#
#   bash tests/run_quantize.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
preload fault
sanitized || export LD_PRELOAD=$tools/fault.so

losses() { sed -n 's/^{"step":[0-9]*,"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
# tiny OUT ARGUMENT...: linear layers of llama-tiny are frozen; norms, embeddings and the head are
# trained.
freeze=(--set 'model.freeze=["*_proj.weight"]' --set train.steps=6)
plain=("${freeze[@]}" --set memory.recompute=none --set memory.offload=none --set memory.head_chunks=1)
nf4=("${plain[@]}" --set memory.quantize=nf4)
arena() { json "$1/plan.json" arena_bytes; }

# A model with the dequantized weights: what a run of one step with learning rate 0 saves.
dequantized() {
    expect 0 '' train_tiny "$tmp/zero" "${nf4[@]}" --set train.learning_rate=0 --set train.weight_decay=0 --set train.steps=1 || return 1
    cp -r "$tmp/zero/model" "$tmp/base"
    expect 0 '' train_tiny "$tmp/on_values" "${plain[@]}" --set model.preset=null --set "model.path=$tmp/base" || return 1
    expect 0 '' train_tiny "$tmp/nf4" "${nf4[@]}" || return 1
    losses "$tmp/nf4" >"$tmp/a"
    losses "$tmp/on_values" >"$tmp/b"
    same "$tmp/a" "$tmp/b" && same "$tmp/nf4/model/model.safetensors" "$tmp/on_values/model/model.safetensors" || return 1
    expect 0 '' train_tiny "$tmp/f32" "${plain[@]}" || return 1
    losses "$tmp/f32" >"$tmp/b"
    ! cmp -s "$tmp/a" "$tmp/b" || { echo "the losses are those without memory.quantize"; return 1; }
    echo "$(arena "$tmp/f32") -> $(arena "$tmp/nf4") bytes"
    [ "$(arena "$tmp/nf4")" -lt "$(arena "$tmp/f32")" ]
}
check 'f32: the bits of a run on the dequantized weights' dequantized

# equal NAME ARGUMENT...: the bytes of the plain run in 4 bits.
equal() {
    local name=$1
    shift
    expect 0 '' train_tiny "$tmp/$name" "${nf4[@]}" "$@" && same_run "$tmp/nf4" "$tmp/$name" 6
}
check 'recompute: same bytes' equal recompute --set memory.recompute=all
check 'recompute of halves and cheap ops: same bytes' equal halves --set memory.recompute=all+halves+selective
check 'offload: same bytes' equal offload --set memory.offload=optimizer+weights+activations
check 'offload and recompute: same bytes' equal both --set memory.offload=weights --set memory.recompute=all
check 'fused step: same bytes' equal fused --set memory.fused_step=on
check 'threads: same bytes' equal threads --set device.threads=3
rules='[{match: [model.layers], form: nf4}]'
check 'rules that name the same layers: same bytes' equal rules --set "memory.quantize=$rules"
resumed() {
    needs_preload || return
    FAULT=kill:7 FAULT_PATH=$tmp/cut/metrics.jsonl expect 137 '' train_tiny "$tmp/cut" "${nf4[@]}" --set train.save_every=2 || return 1
    expect 0 'resuming after step [24]' train_tiny "$tmp/cut" "${nf4[@]}" --set train.save_every=2 --resume || return 1
    same_run "$tmp/nf4" "$tmp/cut" 6
}
check 'kill -9 and resume: same bytes' resumed
poisoned() { PLIMSOLL_POISON=1 equal poison --set memory.recompute=all --set memory.offload=weights; }
check 'poisoned dead memory: same bytes' poisoned
# Micro-batches and chunks add in another order.
near() {
    local name=$1
    shift
    expect 0 '' train_tiny "$tmp/$name" "${nf4[@]}" "$@" || return 1
    awk -v a="$(losses "$tmp/nf4" | tail -n 1)" -v b="$(losses "$tmp/$name" | tail -n 1)" 'BEGIN { d = (a - b) / a; exit !(d < 1e-4 && d > -1e-4) }'
}
check 'micro-batches: near' near micro --set memory.micro_batch=2
check 'chunks: near' near chunks --set memory.head_chunks=4
check 'bf16 and offload: runs' expect 0 '' train_tiny "$tmp/bf16" "${nf4[@]}" --set memory.precision=bf16 --set memory.offload=weights
check 'f16: runs' expect 0 '' train_tiny "$tmp/f16" "${nf4[@]}" --set memory.precision=f16

# --- with LoRA ---
lora=("${nf4[@]}" --set 'model.freeze=[]' --set adapter.r=4 --set adapter.lora_dropout=0.1 --set adapter.target_modules=all-linear)
adapted() {
    expect 0 '' train_tiny "$tmp/lora" "${lora[@]}" || return 1
    json "$tmp/lora/plan.json" weights.nf4
    [ "$(json "$tmp/lora/plan.json" weights.nf4)" -gt 300000 ]
}
check 'LoRA: the base is in 4 bits' adapted
# lora_equal NAME ARGUMENT...: the adapter and the state of the run above.
lora_equal() {
    local name=$1
    shift
    expect 0 '' train_tiny "$tmp/$name" "${lora[@]}" "$@" && same "$tmp/lora/model/adapter_model.safetensors" "$tmp/$name/model/adapter_model.safetensors" &&
        same "$tmp/lora/checkpoints/step-6/state.safetensors" "$tmp/$name/checkpoints/step-6/state.safetensors"
}
check 'LoRA, recompute: same bytes' lora_equal lora_recompute --set memory.recompute=all
check 'LoRA, offload: same bytes' lora_equal lora_offload --set memory.offload=optimizer+weights+activations --set memory.recompute=all
check 'LoRA, fused step: same bytes' lora_equal lora_fused --set memory.fused_step=on
check 'LoRA, rules: same bytes' lora_equal lora_rules --set "memory.quantize=$rules"
# DoRA reads a weight also for the norms of its rows, which it starts with: those of the dequantized
# weights.
dora() {
    expect 0 '' train_tiny "$tmp/dora" "${lora[@]}" --set adapter.use_dora=true || return 1
    expect 0 '' train_tiny "$tmp/dora_values" "${lora[@]}" --set adapter.use_dora=true --set model.preset=null --set "model.path=$tmp/base" --set memory.quantize=none || return 1
    same "$tmp/dora/model/adapter_model.safetensors" "$tmp/dora_values/model/adapter_model.safetensors" && cmp <(losses "$tmp/dora") <(losses "$tmp/dora_values")
}
check 'DoRA: the bits of a run on the dequantized weights' dora
lora_values() {
    expect 0 '' train_tiny "$tmp/lora_values" "${lora[@]}" --set model.preset=null --set "model.path=$tmp/base" --set memory.quantize=none || return 1
    same "$tmp/lora/model/adapter_model.safetensors" "$tmp/lora_values/model/adapter_model.safetensors" && cmp <(losses "$tmp/lora") <(losses "$tmp/lora_values")
}
check 'LoRA: the bits of a run on the dequantized weights' lora_values
lora_resumed() {
    needs_preload || return
    FAULT=kill:7 FAULT_PATH=$tmp/lora_cut/metrics.jsonl expect 137 '' train_tiny "$tmp/lora_cut" "${lora[@]}" --set train.save_every=2 || return 1
    lora_equal lora_cut --set train.save_every=2 --resume
}
check 'LoRA, kill -9 and resume: same bytes' lora_resumed

# A model whose plain weights would take 340 MB more: what is resident, reading included, is the
# arena and at most 64 MiB.
resident() {
    needs_cpu 'resident memory' || return
    expect 0 '' train_tiny "$tmp/large" --set model.preset=llama-124m --set memory.quantize=nf4 --set adapter.r=4 --set adapter.target_modules=[q_proj] --set data.sequence=16 \
        --set train.effective_batch=1 --set memory.micro_batch=1 --set train.steps=1 --set train.monitor_every=1 || return 1
    local peak
    peak=$(grep -o '"host_resident_peak":[0-9]*' "$tmp/large/metrics.jsonl" | tail -n 1 | cut -d: -f2)
    echo "resident $peak, arena $(arena "$tmp/large"), weights in 4 bits $(json "$tmp/large/plan.json" weights.nf4)"
    [ "$peak" -le $(($(arena "$tmp/large") + (64 << 20))) ]
}
sanitized || check 'reading takes the arena and at most 64 MiB' resident

# --- SAM: LoRA on qkv of a base in 4 bits, and a mask decoder that is trained as a whole ---
"$binary" data make "$tmp/set" --images 24 --shards 2 --size 96x80 --masks 5 >/dev/null 2>&1 || exit 2
cat >"$tmp/sam.yaml" <<YAML
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/set/*.tar", holdout: 0.2, max_masks: 4, image_size: 64}
train: {steps: 4, effective_batch: 4, learning_rate: 0.001, eval_every: 4, out: "$tmp/unused"}
memory: {micro_batch: 4, precision: f32, recompute: none, head_chunks: 1, offload: none}
device: {kind: $DEVICE, threads: 1}
YAML
sam_lora=(--set model.preset=null --set "model.path=$tmp/sam_base/model" --set memory.quantize=nf4 --set adapter.r=4 --set adapter.target_modules=[qkv] --set adapter.modules_to_save=[mask_decoder])
# sam OUT ARGUMENT...
sam() { expect 0 '' "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/$1" "${@:2}"; }
sam_begin() { sam sam_base --set train.steps=1 --set train.learning_rate=0 --set train.weight_decay=0 && sam sam "${sam_lora[@]}"; }
sam_equal() {
    sam "$1" "${sam_lora[@]}" "${@:2}" && same "$tmp/sam/model/adapter_model.safetensors" "$tmp/$1/model/adapter_model.safetensors" &&
        cmp <(grep eval_loss "$tmp/sam/metrics.jsonl") <(grep eval_loss "$tmp/$1/metrics.jsonl")
}
sam_near() {
    sam "$1" "${sam_lora[@]}" "${@:2}" || return 1
    awk -v a="$(losses "$tmp/sam" | tail -n 1)" -v b="$(losses "$tmp/$1" | tail -n 1)" 'BEGIN { d = (a - b) / a; exit !(d < 1e-4 && d > -1e-4) }'
}
# eval of base and adapter: the loss of the evaluation in training; without 4 bits it is another.
sam_evaluated() {
    local loss
    loss=$(sed -n 's/.*"eval_loss":\([^,]*\),.*/\1/p' "$tmp/sam/metrics.jsonl" | tail -n 1)
    for form in nf4 none; do
        expect 0 '' "$binary" eval "$tmp/sam.yaml" --model "$tmp/sam_base/model" --adapter "$tmp/sam/model" --json --set memory.quantize=$form && cp "$tmp/out" "$tmp/eval-$form" || return 1
    done
    echo "$loss, $(json "$tmp/eval-nf4" loss), without 4 bits $(json "$tmp/eval-none" loss)"
    awk -v a="$loss" -v b="$(json "$tmp/eval-nf4" loss)" -v c="$(json "$tmp/eval-none" loss)" 'BEGIN { d = (a - b) / a; e = (a - c) / a; exit !(d < 1e-7 && d > -1e-7 && (e > 1e-5 || e < -1e-5)) }'
}
check 'SAM, LoRA: runs' sam_begin
check 'SAM, LoRA, recompute: same bytes' sam_equal sam_recompute --set memory.recompute=all
check 'SAM, LoRA, offload: same bytes' sam_equal sam_offload --set memory.offload=optimizer+weights+activations --set memory.recompute=all+selective
check 'SAM, LoRA, micro-batches and chunks: near' sam_near sam_split --set memory.micro_batch=2 --set memory.head_chunks=2
check 'SAM, LoRA: eval has the loss of training' sam_evaluated

# --- folders that transformers saved in 4 bits ---
# folder CASE: PyTorch's loss, logits and gradients.
four=tests/golden/nf4
stepped() {
    expect 0 "$1: 7 weights are in 4 bits" "$binary" step --model "$1" --batch "$four/nested/batch.safetensors" --out "$tmp/got.safetensors" \
        --set 'model.freeze=["*_proj.weight"]' --set memory.precision=f32 "${@:2}"
}
folder() { stepped "$four/$1" "${@:2}" && "$tools/compare" "$four/$1/expect.safetensors" "$tmp/got.safetensors" --logits 1e-4 --grad 1e-3; }
check '4-bit folder: values of PyTorch and bitsandbytes' folder nested
check '4-bit folder without double quantization' folder single
check '4-bit folder, recompute and offload' folder nested --set memory.recompute=all --set memory.offload=weights
four_trained() {
    tr -c ' -/' '#' <tests/golden/make_nf4.py >"$tmp/tokens.txt" # the vocabulary has 48 ids: space to slash
    local run=("$binary" train "$tmp/tiny.yaml" --set model.preset=null --set "model.path=$four/nested" --set "data.train=$tmp/tokens.txt"
        --set data.sequence=16 --set train.steps=3 --set 'model.freeze=["*_proj.weight"]')
    expect 0 '' "${run[@]}" --set "train.out=$tmp/four" || return 1
    # What is in 4 bits is copied; the rest is trained. The result is such a folder again.
    stepped "$tmp/four/model" || return 1
    expect 0 '' "${run[@]}" --set "train.out=$tmp/four_lora" --set 'model.freeze=[]' --set adapter.r=4 --set adapter.target_modules=all-linear
}
check '4-bit folder: trained, and with an adapter' four_trained
# changed NAME FILE SED: a copy of the folder with a changed file.
changed() {
    rm -rf "$tmp/changed"
    cp -r "$four/nested" "$tmp/changed" && chmod -R u+w "$tmp/changed" && sed -i "$2" "$tmp/changed/$1"
}
refused() {
    changed "$2" "$3" && expect 2 "$1" "$binary" step --model "$tmp/changed" --batch "$four/nested/batch.safetensors" --out "$tmp/got.safetensors" --set 'model.freeze=["*_proj.weight"]'
}
check '4-bit folder: trained weights are refused' expect 2 'the model.s folder has its weight in 4 bits \(NF4\), which cannot be trained; freeze it' \
    "$binary" step --model "$four/nested" --batch "$four/nested/batch.safetensors" --out "$tmp/got.safetensors"
check '4-bit folder: fp4' expect 2 'is of a weight in fp4; only nf4 is read' "$binary" step --model "$four/fp4" --batch "$four/nested/batch.safetensors" --out "$tmp/got.safetensors"
check '4-bit folder: another block size' refused 'blocksize is 32; only 64 is read' model.safetensors 's/"blocksize": 64, "dtype"/"blocksize": 32, "dtype"/'
check '4-bit folder: another nested block size' refused 'nested_blocksize is 128; only 256 is read' model.safetensors 's/"nested_blocksize": 256/"nested_blocksize": 128/'
check '4-bit folder: another shape' refused 'the 4-bit tensor ".*" has the shape \[64,99\]; config.json asks for \[64,64\]' model.safetensors 's/"shape": \[64, 64\]/"shape": [64, 99]/'
check '4-bit folder: other levels' refused 'has no tensor "quant_map"' model.safetensors 's/self_attn.q_proj.weight.quant_map/self_attn.q_proj.weight.quant_mab/'
check '4-bit folder: no scales' refused 'has no tensor "absmax"; the folder is not complete' model.safetensors 's/self_attn.q_proj.weight.absmax/self_attn.q_proj.weight.absmaz/'
check '4-bit folder: the state is not JSON' refused 'quant_state.bitsandbytes__nf4' model.safetensors 's/{"quant_type": "nf4"/["quant_type": "nf4"/'
# A tensor of 8 TiB that should be a short text; the file is sparse.
huge() {
    local n=8796093022208 h
    h='{"x.quant_state.bitsandbytes__nf4":{"dtype":"U8","shape":['$n'],"data_offsets":[0,'$n']}}'
    changed config.json '' && printf "\\x$(printf %02x ${#h})\\0\\0\\0\\0\\0\\0\\0%s" "$h" >"$tmp/changed/extra.safetensors" || return 1
    truncate -s $((8 + ${#h} + n)) "$tmp/changed/extra.safetensors" 2>/dev/null || { echo 'no file of 8 TiB here'; return 77; }
    expect 2 "$n bytes, expected a short text" "$binary" step --model "$tmp/changed" --batch "$four/nested/batch.safetensors" --out "$tmp/got.safetensors"
    rm -rf "$tmp/changed"
}
check '4-bit folder: a state of 8 TiB' huge
check '8 bits' refused 'its weights are quantized by bitsandbytes in 8 bits; only NF4 of bitsandbytes is read' config.json 's/"load_in_8bit": false/"load_in_8bit": true/'
check 'GPTQ' refused 'its weights are quantized by gptq' config.json 's/"quant_method": "bitsandbytes"/"quant_method": "gptq"/'

allowed() {
    local least
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" "${freeze[@]}" --set 'memory.allow=[nf4]' -o "$tmp/open.json" || return 1
    grep -q '"quantize": "none"' "$tmp/open.json" || { echo "no budget, but quantized"; return 1; }
    least=$(json "$tmp/open.json" smallest_budget_bytes)
    expect 0 '' "$binary" plan "$tmp/tiny.yaml" "${freeze[@]}" --set 'memory.allow=[nf4]' --memory "$least" -o "$tmp/small.json" || return 1
    grep -q '"quantize": "nf4"' "$tmp/small.json" || { echo "not quantized"; return 1; }
    expect 3 "" "$binary" plan "$tmp/tiny.yaml" "${freeze[@]}" --memory "$least"
}
check 'memory.allow: nf4 only where it is listed' allowed

no=(--set 'model.freeze=["*mlp*"]' --set memory.quantize=nf4)
check 'nothing is frozen' expect 2 'memory.quantize nf4: no linear layer is frozen' train_tiny "$tmp/no" --set memory.quantize=nf4
check 'a rule names a trained layer' expect 2 'memory.quantize\[0\]: model.layers.0.self_attn.q_proj is trained, and only frozen weights are quantized' \
    train_tiny "$tmp/no" "${no[@]}" --set 'memory.quantize=[{match: ["*.self_attn.*"], form: nf4}]'
tied='[{match: [lm_head], form: nf4}]'
check 'a rule names a tied weight' expect 2 'memory.quantize\[0\]: model.embed_tokens is tied' \
    "$binary" train "$tmp/tiny.yaml" --set "train.out=$tmp/no" --set model.preset=null --set model.path=tests/golden/train_tied --set 'model.freeze=["*"]' --set 'train.groups=[{match: ["*norm*"], frozen: false}]' --set "memory.quantize=$tied"
check 'a rule names nothing' expect 2 'memory.quantize\[0\].match: the pattern "model.layer.0" matches no linear layer; the nearest is model.layers.0' \
    train_tiny "$tmp/no" "${no[@]}" --set 'memory.quantize=[{match: [model.layer.0], form: nf4}]'
check 'fp4' expect 2 'memory.quantize: found the string "fp4", expected none, nf4, fp8, or a list of rules with match and form' train_tiny "$tmp/no" --set memory.quantize=fp4
check 'fp4 in a rule' expect 2 'memory.quantize\[0\].form:.*"fp4",.*nf4' train_tiny "$tmp/no" --set 'memory.quantize=[{match: ["*"], form: fp4}]'
check 'rules without a list' expect 2 'memory.quantize: found the string "rules"' train_tiny "$tmp/no" --set memory.quantize=rules
summary
