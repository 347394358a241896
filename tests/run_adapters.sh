#!/bin/bash
# shellcheck disable=SC2015
# run_adapters.sh: LoRA on frozen weights, plain and in NF4: what is trained, what a run writes,
# which techniques leave every bit as it is, what is refused.
#
#   bash tests/run_adapters.sh    from the repository's root, after make; see run_lib.sh
#   SECTIONS=                     folder match equal merge commands refused
#   MODELS=                       llama sam
#
# The numbers of PEFT are compared by tests/golden.sh with GOLDEN=tests/golden/peft. Here the same
# is promised as for a run without an adapter (run_equal.sh), with lora_dropout: recomputation,
# offload, the fused step, threads, a kill and resume, and NaN in every dead byte leave the bits as
# they are; micro-batches and head chunks sum in another order, within 1e-6.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
preload fault
# fault.so replaces fsync: these runs need not reach the disk.
sanitized || export LD_PRELOAD=$tools/fault.so

peft=tests/golden/peft
near=1e-6
[ "$DEVICE" = cpu ] || near=5e-6
lora=(--set adapter.r=4 --set adapter.lora_alpha=8 --set "adapter.target_modules=[q_proj, v_proj]")
# adapted RUN: the adapter's file in its final model.
adapted() { echo "$1/model/adapter_model.safetensors"; }
# same_adapter A B STEP: two finished runs have the same adapter and the same training state.
same_adapter() {
    local file
    same "$(adapted "$1")" "$(adapted "$2")" && same "$1/model/adapter_config.json" "$2/model/adapter_config.json" || return 1
    for file in adapter_model.safetensors state.safetensors state.json; do
        same "$1/checkpoints/step-$3/$file" "$2/checkpoints/step-$3/$file" || return 1
    done
}
# data_bytes FILE: the bytes behind the header of a safetensors file.
data_bytes() { echo $(($(wc -c <"$1") - 8 - $(od -An -tu8 -N 8 "$1"))); }
# loss RUN STEP
loss() { sed -n "s/^{\"step\":$2,\"loss\":\([^,]*\),.*/\1/p" "$1/metrics.jsonl"; }
# number_near A B BOUND: relative.
number_near() {
    awk -v a="${1:-none}" -v b="${2:-none}" -v most="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= most * b) }' ||
        { echo "found ${1:-none}, expected ${2:-none} within $3"; return 1; }
}

# --- folders --------------------------------------------------------------------------------

# In two layers of 24: q has 4 (24 + 24) weights, v 4 (24 + 12).
files() {
    expect 0 '' train "$tmp/files" "${lora[@]}" --set train.save_every=5 || return 1
    [ "$(cd "$tmp/files/model" && echo *)" = 'adapter_config.json adapter_model.safetensors' ] || { ls -l "$tmp/files/model"; return 1; }
    [ "$(data_bytes "$(adapted "$tmp/files")")" -eq $((672 * 4)) ] || { echo "$(data_bytes "$(adapted "$tmp/files")") bytes, expected 672 weights"; return 1; }
    [ "$(json "$tmp/files/model/adapter_config.json" peft_type r lora_alpha target_modules base_model_name_or_path | tr '\n' ' ')" = "LORA 4 8 2 $golden " ] ||
        { cat "$tmp/files/model/adapter_config.json"; return 1; }
    ! grep -lE 'embed_tokens|_proj\.weight' "$(adapted "$tmp/files")" "$tmp"/files/checkpoints/step-10/* || { echo 'these have frozen weights'; return 1; }
    grep -qa 'base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight' "$(adapted "$tmp/files")" || { echo 'not the names of PEFT'; return 1; }
    local bytes
    bytes=$(cat "$tmp"/files/checkpoints/step-10/* | wc -c)
    # Weights and two moments, three headers' worth of names and some settings; the model has 12,000
    # weights.
    [ "$bytes" -lt $((3 * 672 * 4 + 12000)) ] || { ls -l "$tmp/files/checkpoints/step-10"; return 1; }
    echo "a checkpoint has $bytes bytes"
}
# lora_B starts as zeros: the first loss is that of the model.
first_loss() {
    expect 0 '' train "$tmp/whole" --set train.steps=1 && number_near "$(loss "$tmp/files" 1)" "$(loss "$tmp/whole" 1)" 1e-7
}
# An adapter does not hold the model: one with fresh weights would be lost, and a warning says so.
fresh_base() {
    local run=(--set model.path=null --set model.preset=llama-tiny --set train.steps=1)
    expect 0 '^warning: the frozen weights are fresh ones' train "$tmp/fresh" "${lora[@]}" "${run[@]}" || return 1
    ! grep -q 'fresh ones' <(train "$tmp/not-fresh" "${lora[@]}" --set train.steps=1 2>&1)
}
onward() {
    expect 0 '' train "$tmp/onward" --set "adapter.path=$tmp/files/model" --set train.steps=2 || return 1
    expect 0 '' train "$tmp/from-checkpoint" --set "adapter.path=$tmp/files/checkpoints/step-10" --set train.steps=2 && same_adapter "$tmp/onward" "$tmp/from-checkpoint" 2
}
# written_again CASE: read and written again, after a step with learning rate 0.
written_again() {
    local from=$peft/$1 base out=$tmp/again-$1
    base=$(json "$from/adapter_config.json" base_model_name_or_path)
    expect 0 '' train "$out" --set "model.path=$base" --set "adapter.path=$from" --set train.steps=1 --set train.learning_rate=0 || return 1
    same "$from/adapter_model.safetensors" "$(adapted "$out")" && same "$from/adapter_config.json" "$out/model/adapter_config.json"
}
# adapter_model.bin is read, and written as adapter_model.safetensors.
from_bin() {
    local out=$tmp/from-bin
    expect 0 '' train "$out" --set model.path=tests/golden/basic --set "adapter.path=$peft/bin" --set train.steps=1 --set train.learning_rate=0 || return 1
    [ -f "$(adapted "$out")" ] && [ ! -e "$out/model/adapter_model.bin" ] || { ls -l "$out/model"; return 1; }
    # shellcheck disable=SC2086
    expect 0 '' "$binary" step --model tests/golden/basic --adapter "$out/model" --batch tests/golden/basic/batch.safetensors --out "$tmp/from-bin.safetensors" --set memory.precision=f32 \
        --set "device.kind=$DEVICE" $FLAGS || return 1
    "$tools/compare" $peft/bin/expect.safetensors "$tmp/from-bin.safetensors"
}
if wanted llama folder; then
    check 'model/ and checkpoints hold an adapter by itself' files
    check 'a new adapter changes nothing at first' first_loss
    check 'a new adapter on fresh weights: a warning' fresh_base
    check 'a folder of ours is trained on' onward
    check 'adapter_model.bin is read and written as safetensors' from_bin
    for name in list regex regex_ahead all_linear bias_lora_only patterns dora dora_bias save_head save_both save_norm tied tied_save layers exclude noprefix; do
        check "$name: read and written again, same bytes" written_again $name
    done
fi

# --- what matches -----------------------------------------------------------------------------

# matched WEIGHTS ARGUMENT...: the run has this many trained weights; `plan` and `train` say so.
matched() {
    local want=$1 out=$tmp/matched
    shift
    rm -rf "$out"
    expect 0 '' train "$out" --set train.steps=1 "$@" || return 1
    [ "$(data_bytes "$(adapted "$out")")" -eq $((want * 4)) ] || { echo "$(($(data_bytes "$(adapted "$out")") / 4)) weights are trained, expected $want"; return 1; }
    # shellcheck disable=SC2086
    expect 0 '' "$binary" plan "$golden/run.yaml" --set "device.kind=$DEVICE" $FLAGS "$@" || return 1
}
# The model: hidden 24, 2 layers, 4 heads on 2, 40 inside, vocabulary 61. A linear has r (in + out)
# weights.
forms() {
    matched 672 "${lora[@]}" || return 1
    matched 336 --set adapter.r=4 --set 'adapter.target_modules=[q_proj, v_proj]' --set 'adapter.layers_to_transform=[1]' || return 1
    matched 288 --set adapter.r=4 --set 'adapter.target_modules=[q_proj, v_proj]' --set 'adapter.exclude_modules=[v_proj, layers.0.self_attn.q_proj]' --set 'adapter.modules_to_save=[]' --set 'adapter.rank_pattern={q_proj: 6}' || return 1
    matched $((2 * 2 * (48 + 36 + 36 + 48 + 64 + 64 + 64))) --set adapter.r=2 --set adapter.target_modules=all-linear || return 1
    matched $((672 + 61 * 24)) "${lora[@]}" --set 'adapter.modules_to_save=[lm_head]' || return 1
    matched $((672 + 2 * 36)) "${lora[@]}" --set adapter.use_dora=true
}
# A head of its own is left out also behind Gemma 2's soft cap.
capped_head() {
    mkdir -p "$tmp/capped" && sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' tests/golden/gemma2/config.json >"$tmp/capped/config.json" || return 1
    printf 'model: {path: %s}\ndata: {sequence: 16}\ndevice: cpu\nadapter: {target_modules: all-linear}\n' "$tmp/capped" >"$tmp/capped.yaml"
    expect 0 '' "$binary" plan "$tmp/capped.yaml" --explain all || return 1
    grep -q SOFTCAP "$tmp/out" && grep -q 'q_proj.lora_A' "$tmp/out" && grep -q 'lm_head.weight' "$tmp/out" && ! grep 'lm_head.lora' "$tmp/out"
}
expression() { matched 672 --set adapter.r=4 --set 'adapter.target_modules=.*\.(q|v)_proj'; }
# What plan and train say: modules by pattern, trained weights, share of all.
says() {
    expect 0 '' train "$tmp/says" --set train.steps=1 "${lora[@]}" && cat "$tmp/out" "$tmp/err" >"$tmp/said" || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" plan "$golden/run.yaml" --set "device.kind=$DEVICE" $FLAGS "${lora[@]}" && cat "$tmp/out" "$tmp/err" >"$tmp/planned" || return 1
    for file in "$tmp/said" "$tmp/planned"; do
        grep -E 'q_proj' "$file" && grep -E '\b672\b' "$file" || { cat "$file"; return 1; }
    done
}
init() {
    # With learning rate 0 the adapter stays as it was drawn: B zeros, or not; another seed draws
    # another A.
    local out=$tmp/init
    for seed in 1 2; do
        expect 0 '' train "$out$seed" "${lora[@]}" --set train.steps=1 --set train.learning_rate=0 --set "train.seed=$seed" || return 1
    done
    ! cmp -s "$(adapted "${out}1")" "$(adapted "${out}2")" || { echo 'seeds 1 and 2 give the same adapter'; return 1; }
    expect 0 '' train "$out-gaussian" "${lora[@]}" --set train.steps=1 --set train.learning_rate=0 --set adapter.init_lora_weights=gaussian || return 1
    [ "$(json "$out-gaussian/model/adapter_config.json" init_lora_weights)" = gaussian ]
}
if wanted llama match; then
    check 'target_modules in each form, layers, ranks, modules_to_save' forms
    check 'target_modules as a regular expression' expression
    check 'all-linear leaves out a head with a soft cap' capped_head
    check 'plan and train say what matched' says
    check 'init_lora_weights and the random seed' init
fi

# --- the same bits ------------------------------------------------------------------------------

# The models to adapt: the golden Llama, and sam-tiny with the weights of one step. Four steps with
# dropout; every technique is off unless an argument sets it. With nf4 the frozen linears have 4
# bits.
steps=4
# shellcheck disable=SC2034
llama=(--set adapter.target_modules=all-linear --set adapter.r=3 --set adapter.lora_dropout=0.1)
sam=(--set 'adapter.target_modules=[qkv]' --set adapter.r=4 --set adapter.lora_dropout=0.1 --set 'adapter.modules_to_save=[mask_decoder]')
cat >"$tmp/sam.yaml" <<YAML
model: {path: "$tmp/sam-base/model"}
data: {format: sa1b, train: "$tmp/set/*.tar", max_masks: 4, image_size: 64}
train: {steps: $steps, effective_batch: 4, learning_rate: 0.001, seed: 2, out: "$tmp/unused"}
memory: {micro_batch: 4, precision: f32}
YAML
make_base() {
    "$binary" data make "$tmp/set" --images 24 --shards 1 --size 96x80 --masks 5 >/dev/null || return 1
    sed 's/{path: .*}/{preset: sam-tiny}/' "$tmp/sam.yaml" >"$tmp/base.yaml"
    expect 0 '' "$binary" train "$tmp/base.yaml" --set train.steps=1 --set "train.out=$tmp/sam-base"
}
# start MODEL FORM RUN [ARGUMENT...]: into $tmp/MODEL-FORM-RUN; an adapter has to be among the
# arguments.
start() {
    local out=$tmp/$1-$2-$3 yaml=$golden/run.yaml form=()
    [ "$1" = llama ] || yaml=$tmp/$1.yaml
    [ "$2" = plain ] || form=(--set memory.quantize="$2")
    shift 3
    # shellcheck disable=SC2086
    "$binary" train "$yaml" --set "device.kind=$DEVICE" --set "train.out=$out" --set "train.steps=$steps" --set train.clip_norm=0 --set memory.recompute=none \
        --set memory.offload=none --set memory.head_chunks=1 --set memory.fused_step=off ${form[@]+"${form[@]}"} $FLAGS "$@"
}
# adapt MODEL FORM RUN [ARGUMENT...]: a new run with the model's adapter.
adapt() {
    local -n adapter=$1
    rm -rf "${tmp:?}/$1-$2-$3"
    start "$1" "$2" "$3" "${adapter[@]}" "${@:4}"
}
usual() { expect 0 '' adapt "$1" "$2" usual --set train.save_every=1 --set train.keep=9 "${@:3}" && no_debris "$tmp/$1-$2-usual"; }
# technique MODEL FORM ARGUMENT...: the bits of the usual run.
technique() { expect 0 '' adapt "$1" "$2" other "${@:3}" && same_adapter "$tmp/$1-$2-usual" "$tmp/$1-$2-other" $steps; }
threads() {
    needs_cpu device.threads || return
    for n in 1 2 3; do technique "$1" "$2" --set "device.threads=$n" || return 1; done
}
poison() {
    needs_cpu PLIMSOLL_POISON || return
    PLIMSOLL_POISON=1 technique "$@"
}
# Killed before a write of the metrics, after the second and the third step, and resumed.
resumed() {
    needs_preload || return
    local -n adapter=$1
    local cut=$tmp/$1-$2-cut n save=(--set train.save_every=1 --set train.keep=9)
    for n in 5 6; do
        FAULT=kill:$n FAULT_PATH=$cut/metrics.jsonl expect 137 '' adapt "$1" "$2" cut "${save[@]}" || return 1
        begun "$cut" || { echo 'killed before the first checkpoint: this shows nothing'; return 1; }
        expect 0 'resuming after step' start "$1" "$2" cut "${adapter[@]}" "${save[@]}" --resume || return 1
        same_adapter "$tmp/$1-$2-usual" "$cut" $steps && steps_once "$cut" $steps && no_debris "$cut" || return 1
    done
}
dropped() {
    expect 0 '' adapt "$1" "$2" other --set adapter.lora_dropout=0 || return 1
    ! cmp -s "$(adapted "$tmp/$1-$2-usual")" "$(adapted "$tmp/$1-$2-other")" || { echo 'dropout changes nothing'; return 1; }
}
# split MODEL FORM BOUND ARGUMENT...: steps from the trained adapter, whose lora_B is not zero.
# Llama: AdamW's moments after one step, which hold the gradients themselves. SAM has gradients that
# are 0 but for rounding (biases of keys): the losses of four steps.
split() {
    local from=(--set train.warmup_steps=0 --set "adapter.path=$tmp/$1-$2-usual/model") one=$tmp/$1-$2-one other=$tmp/$1-$2-split n
    [ "$1" = sam ] || from+=(--set train.steps=1)
    [ -d "$one" ] || expect 0 '' start "$1" "$2" one "${from[@]}" || return 1
    rm -rf "$other"
    expect 0 '' start "$1" "$2" split "${from[@]}" "${@:4}" || return 1
    if [ "$1" = llama ]; then
        "$tools/compare" "$one/checkpoints/step-1/state.safetensors" "$other/checkpoints/step-1/state.safetensors" --logits "$3"
    else
        for n in $(seq $steps); do number_near "$(loss "$other" "$n")" "$(loss "$one" "$n")" "$3" || return 1; done
    fi
}
# rounded MODEL FORM PRECISION: near f32, and recomputation and offload leave the bits as they are.
rounded() {
    local n
    expect 0 '' adapt "$1" "$2" "$3" --set "memory.precision=$3" || return 1
    for n in $(seq $steps); do number_near "$(loss "$tmp/$1-$2-$3" "$n")" "$(loss "$tmp/$1-$2-usual" "$n")" 0.015625 || return 1; done
    expect 0 '' adapt "$1" "$2" other --set "memory.precision=$3" --set memory.recompute=all --set memory.offload=optimizer+masters+weights+activations &&
        same_adapter "$tmp/$1-$2-$3" "$tmp/$1-$2-other" $steps
}
if wanted sam equal || wanted sam commands; then check 'sam: a model to adapt' make_base; fi
for model in $(models llama sam); do for form in plain nf4; do
    part equal || continue
    what="$model, $form"
    bound=$near
    [ "$model" = llama ] || bound=1e-5
    check "$what: four steps" usual "$model" $form
    check "$what: dropout acts" dropped "$model" $form
    for rule in all selective; do check "$what: recompute $rule, same bits" technique "$model" $form --set memory.recompute=$rule; done
    check "$what: offload, same bits" technique "$model" $form --set memory.offload=optimizer+weights+activations
    check "$what: recompute and offload, same bits" technique "$model" $form --set memory.recompute=all --set memory.offload=optimizer+weights+activations
    check "$what: fused step, same bits" technique "$model" $form --set memory.fused_step=on
    check "$what: threads, same bits" threads "$model" $form
    check "$what: NaN in dead bytes, same bits" poison "$model" $form
    check "$what: NaN in dead bytes, recomputed and offloaded, same bits" poison "$model" $form --set memory.recompute=all --set memory.offload=optimizer+weights+activations
    check "$what: killed and resumed, same bits" resumed "$model" $form
    for micro in 1 2 4; do check "$what: micro-batch $micro, within $bound" split "$model" $form $bound --set memory.micro_batch=$micro; done
    check "$what: head chunks 4, within $bound" split "$model" $form $bound --set memory.head_chunks=4
    check "$what: micro-batch 2, 2 chunks, recomputed, offloaded, within $bound" split "$model" $form $bound --set memory.micro_batch=2 --set memory.head_chunks=2 --set memory.recompute=all \
        --set memory.offload=optimizer+weights+activations
    check "$what: tokens in 3 chunks, heads in 2 groups, micro-batch 1, recomputed, offloaded, within $bound" split "$model" $form $bound --set memory.token_chunks=3 \
        --set memory.attention_chunks=2 --set memory.micro_batch=1 --set memory.recompute=all --set memory.offload=optimizer+weights+activations
    for precision in bf16 f16; do check "$what: $precision, near f32; recomputed and offloaded, same bits" rounded "$model" $form $precision; done
done; done

# --- merging ----------------------------------------------------------------------------------

# merged CASE: the base with the adapter merged gives the adapter's outputs, within 1e-5.
merged() {
    local folder=$peft/$1 base
    base=$(json "$folder/adapter_config.json" base_model_name_or_path)
    expect 0 '' "$binary" convert "$base" --adapter "$folder" -o "$tmp/merged-$1" || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" step --model "$tmp/merged-$1" --batch "$base/batch.safetensors" --out "$tmp/merged.safetensors" --set memory.precision=f32 --set "device.kind=$DEVICE" $FLAGS || return 1
    "$tools/compare" "$folder/expect.safetensors" "$tmp/merged.safetensors" --logits 1e-5 --outputs
}
if wanted llama merge; then
    for name in list bin regex all_linear bias_all bias_lora_only patterns rslora dora dora_bias save_head save_both save_norm head tied tied_head layers exclude noprefix clip clip_old clip_regex bias_saved siglip; do
        check "$name: merged, within 1e-5" merged $name
    done
fi
if wanted sam merge; then for name in sam sam_parts; do check "$name: merged, within 1e-5" merged $name; done; fi

# --- the other commands -------------------------------------------------------------------------

# A run that evaluates, then the same numbers from base and adapter and from the merged model.
json_loss() { sed -n 's/.*"loss": \([0-9.e+-]*\).*/\1/p' "$1"; }
evaluated() {
    local yaml=$tmp/sam.yaml more=(--set data.holdout=0.25 --set "device.kind=$DEVICE") out=$tmp/evaluated
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$yaml" "${more[@]}" "${sam[@]}" --set "train.out=$out" $FLAGS || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" eval "$yaml" "${more[@]}" --model "$tmp/sam-base/model" --adapter "$out/model" --json $FLAGS && cp "$tmp/out" "$tmp/adapted.json" || return 1
    number_near "$(json_loss "$tmp/adapted.json")" "$(sed -n 's/.*"eval_loss":\([0-9.e+-]*\).*/\1/p' "$out/metrics.jsonl" | tail -n 1)" 1e-5 || return 1
    expect 0 '' "$binary" convert "$tmp/sam-base/model" --adapter "$out/model" -o "$tmp/sam-merged" || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" eval "$yaml" "${more[@]}" --model "$tmp/sam-merged" --json $FLAGS && number_near "$(json_loss "$tmp/out")" "$(json_loss "$tmp/adapted.json")" 1e-5 || return 1
    # shellcheck disable=SC2086
    expect 2 'adapter' "$binary" eval "$yaml" "${more[@]}" --model "$out/model" --json $FLAGS
}
# predict OUT.png ARGUMENT...; the size of training is known beside the adapter by itself, so it is
# given
predict() { expect 0 '' "$binary" predict "${@:2}" --side 128 tests/golden/predict/wide.png --point 150,60 -o "$tmp/$1"; }
predicted() {
    predict base.png --model "$tmp/sam-base/model" && predict adapted.png --model "$tmp/sam-base/model" --adapter "$tmp/evaluated/model" && cp "$tmp/out" "$tmp/adapted.txt" || return 1
    predict merged.png --model "$tmp/sam-merged" || return 1
    # Scores have few digits; the masks may differ where a logit is 0.
    [ "$(sed 's/.*IoU \([^,]*\),.*/\1/' "$tmp/out")" = "$(sed 's/.*IoU \([^,]*\),.*/\1/' "$tmp/adapted.txt")" ] || { cat "$tmp/out" "$tmp/adapted.txt"; return 1; }
    expect 2 'adapter' "$binary" predict --model "$tmp/evaluated/model" tests/golden/predict/wide.png --point 1,1 -o "$tmp/no.png"
}
# measured COMMAND ARGUMENT...: the command ends well with a new adapter and with that of a folder.
measured() {
    # shellcheck disable=SC2086
    expect 0 '' "$binary" "$1" "$golden/run.yaml" --set "device.kind=$DEVICE" $FLAGS "${lora[@]}" "${@:2}" || return 1
    # shellcheck disable=SC2086
    expect 0 '' "$binary" "$1" "$golden/run.yaml" --set "device.kind=$DEVICE" $FLAGS --set "adapter.path=$peft/train" "${@:2}"
}
if wanted sam commands; then
    check 'eval: base and adapter, merged, during training: the same loss' evaluated
    check 'predict: base and adapter, merged: the same score' predicted
fi
if wanted llama commands; then
    check 'plan --compare' measured plan --compare
    check 'doctor' measured doctor --steps 3
    check 'bench' measured bench --steps 2
fi

# --- what is refused ----------------------------------------------------------------------------

# refused PATTERN ARGUMENT...: one line that matches PATTERN, and nothing is written.
refused() {
    local pattern=$1
    shift
    rm -rf "$tmp/refused"
    expect 2 "$pattern" train "$tmp/refused" "$@" || return 1
    [ ! -e "$tmp/refused" ] || { ls -lR "$tmp/refused"; return 1; }
    [ "$(wc -l <"$tmp/err")" -eq 1 ] && ! grep 'unknown key' "$tmp/err" || { cat "$tmp/err"; return 1; }
}
# edited PATTERN SED [CASE]: the adapter of the case with a changed adapter_config.json.
edited() {
    rm -rf "$tmp/edited" && cp -r "$peft/${3:-train}" "$tmp/edited" && sed -i "$2" "$tmp/edited/adapter_config.json" || return 1
    ! cmp -s "$tmp/edited/adapter_config.json" "$peft/${3:-train}/adapter_config.json" || { echo "$2 changes nothing"; return 1; }
    refused "$1" --set "adapter.path=$tmp/edited"
}
# An initialization that changes the base weight is refused in a folder, too: its adapter belongs to
# a changed base.
initialized() {
    edited 'init_lora_weights.*pissa' 's/"init_lora_weights": true/"init_lora_weights": "pissa"/'
}
# cut_file BYTES: the adapter's file ends there.
cut_file() {
    rm -rf "$tmp/edited" && cp -r $peft/train "$tmp/edited" && head -c "$1" $peft/train/adapter_model.safetensors >"$tmp/edited/adapter_model.safetensors" || return 1
    refused 'adapter_model.safetensors' --set "adapter.path=$tmp/edited"
}
cut_bin() {
    rm -rf "$tmp/edited" && cp -r $peft/bin "$tmp/edited" && head -c "$1" $peft/bin/adapter_model.bin >"$tmp/edited/adapter_model.bin" || return 1
    refused 'adapter_model.bin' --set model.path=tests/golden/basic --set "adapter.path=$tmp/edited"
}
# four_bits PATTERN SED: a 4-bit model whose files have a text of the same length changed.
four_bits() {
    rm -rf "$tmp/edited" && cp -r $peft/odd_4bit "$tmp/edited" && sed -i "$2" "$tmp/edited/model.safetensors" "$tmp/edited/config.json" || return 1
    refused "$1" --set "model.path=$tmp/edited" --set "adapter.path=$peft/nf4_folder"
}
no_file() {
    rm -rf "$tmp/edited" && mkdir "$tmp/edited" && cp $peft/train/adapter_config.json "$tmp/edited" && refused "$tmp/edited" --set "adapter.path=$tmp/edited"
}
if wanted llama refused; then
    one=(--set 'adapter.target_modules=[q_proj]')
    check 'a name that matches nothing: the nearest module' refused 'q_porj.*q_proj' --set 'adapter.target_modules=[q_porj]'
    check 'a regular expression that matches nothing' refused 'target_modules' --set 'adapter.target_modules=model\.layer\.\d\.q_proj'
    check 'modules_to_save that matches nothing' refused 'modules_to_save.*lm_haed.*lm_head' "${one[@]}" --set 'adapter.modules_to_save=[lm_haed]'
    check 'everything is excluded' refused 'exclude_modules' "${one[@]}" --set 'adapter.exclude_modules=[q_proj]'
    check 'r = 0' refused 'adapter\.r' "${one[@]}" --set adapter.r=0
    check 'lora_dropout 1' refused 'adapter\.lora_dropout' "${one[@]}" --set adapter.lora_dropout=1
    check 'a regular expression that does not compile' refused 'adapter\.target_modules.*\(' --set 'adapter.target_modules=.*(q_proj'
    check 'a regular expression of rank_pattern that does not compile' refused 'rank_pattern' "${one[@]}" --set 'adapter.rank_pattern={"(q_proj": 2}'
    for init in pissa pissa_niter_4 olora eva corda loftq lora_ga orthogonal; do check "init_lora_weights $init" refused "init_lora_weights.*$init" "${one[@]}" --set adapter.init_lora_weights=$init; done
    check 'bias of an unknown kind' refused 'adapter\.bias' "${one[@]}" --set adapter.bias=some
    check 'a linear that is no linear' refused 'norm' --set 'adapter.target_modules=[norm]'
    check 'path and keys that contradict it' refused 'adapter\.r' --set "adapter.path=$peft/train" --set adapter.r=2

    check 'an adapter of another model: names' refused 'adapter|base' --set "adapter.path=$peft/clip"
    check 'an adapter of another model: shapes' refused 'lora_[AB]' --set "adapter.path=$peft/nf4"
    check 'an adapter folder as model.path' refused 'adapter\.path' --set "model.path=$peft/train"
    check 'a model folder as adapter.path' refused 'adapter_config\.json' --set "adapter.path=tests/golden/basic"
    check 'a folder without a file of weights' no_file
    for bytes in 0 7 100 2000 5700; do check "an adapter file cut at $bytes bytes" cut_file $bytes; done
    for bytes in 0 7 2000 5000; do check "an adapter_model.bin cut at $bytes bytes" cut_bin $bytes; done
    check 'another PEFT type' edited 'peft_type.*IA3' 's/"peft_type": "LORA"/"peft_type": "IA3"/'
    check 'no PEFT type' edited 'peft_type' '/"peft_type"/d'
    check 'an initialization that changes the base' initialized
    check 'lora_bias' edited 'lora_bias' 's/"lora_bias": false/"lora_bias": true/'
    check 'use_qalora' edited 'use_qalora' 's/"use_qalora": false/"use_qalora": true/'
    check 'trainable_token_indices' edited 'trainable_token_indices' 's/"trainable_token_indices": null/"trainable_token_indices": [1]/'
    check 'target_parameters' edited 'target_parameters' 's/"target_parameters": null/"target_parameters": ["x"]/'
    check 'layer_replication' edited 'layer_replication' 's/"layer_replication": null/"layer_replication": [[0, 1]]/'
    check 'a key that we do not know, and that is set' edited 'new_kind' 's/"peft_type"/"new_kind": true, "peft_type"/'
    check 'r of another adapter' edited 'lora_[AB]' 's/"r": 4/"r": 5/'
    check 'r is a text' edited '"?r"?' 's/"r": 4/"r": "four"/'

    check 'NF4 of a trained weight' refused 'memory\.quantize.*trained' --set 'memory.quantize=[{match: "*.q_proj", form: nf4}]'
    check 'NF4 of a tied weight' refused 'memory\.quantize.*tied' --set model.path=tests/golden/tied "${one[@]}" --set 'memory.quantize=[{match: model.embed_tokens, form: nf4}]'
    check 'fp4' refused 'fp4' "${one[@]}" --set memory.quantize=fp4
    check 'a folder in fp4' four_bits 'fp4' 's/bitsandbytes__nf4/bitsandbytes__fp4/g; s/"nf4"/"fp4"/g'
    check 'a folder with another block size' four_bits 'block' 's/"blocksize": 64,/"blocksize": 32,/g'
fi

summary
