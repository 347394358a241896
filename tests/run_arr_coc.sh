#!/bin/bash
# shellcheck disable=SC2015
# run_arr_coc.sh: the token allocator with levels of detail over images of any size
# (arr_coc_qwen2_vl and its kin): training in any split and with any technique; what begins from
# another model's folder; plans; what is refused.
#
#   bash tests/run_arr_coc.sh       from the repository's root, after make; see run_lib.sh
#
# The golden cases are tests/golden/allocator_qwen2_vl and others (make_allocator_levels.py) and
# tests/golden/qwen_vl/arr_coc_* (make_allocator_train.py), which run_qwen_vl.sh trains.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool compare
all="arr_coc_qwen2_vl arr_coc_qwen3_vl"
of() { echo "tests/golden/qwen_vl/$1"; }

# run OUT MODEL [ARGUMENT...]: four steps; rows of several images are packed, three a step.
run() {
    local out=$1 model=$2
    shift 2
    rm -rf "${tmp:?}/$out"
    # shellcheck disable=SC2086
    "$binary" train "$(of "$model")/run.yaml" --set "train.out=$tmp/$out" --set train.steps=4 --set train.effective_batch=3 --set memory.micro_batch=3 \
        --set train.schedule=constant --set train.warmup_steps=0 --set data.packing=true --set data.sequence=140 --set "device.kind=$DEVICE" $FLAGS "$@"
}
weights() { echo "$tmp/$1/model/model.safetensors"; }
same_as() { expect 0 '' run other "$@" && same "$(weights "plain.$1")" "$(weights other)"; }

# --- training -----------------------------------------------------------------------------------

techniques() {
    local m=$1
    expect 0 'images, [0-9.]* a row of at most 4 \(data.max_images\)' run "plain.$m" "$m" --set memory.head_chunks=2 || return 1
    set -- "$m" --set memory.head_chunks=2
    same_as "$@" --set memory.recompute=all && same_as "$@" --set memory.recompute=selective && same_as "$@" --set 'memory.offload=[weights, optimizer]' || return 1
    if [ "$DEVICE" = cpu ]; then same_as "$@" --set device.threads=2 && PLIMSOLL_POISON=1 same_as "$@" || return 1; fi
}
for m in $all; do check "$m: techniques: the same bytes" techniques "$m"; done

# Padding changes nothing: that of patches, in a row with room for more images, and of tokens.
room() {
    expect 0 '' run whole "$1" --set data.packing=false --set data.max_images=3 && expect 0 '' run other "$1" --set data.packing=false --set data.max_images=6 --set data.sequence=170 || return 1
    "$tools/compare" "$(weights whole)" "$(weights other)" --logits 1e-4
}
for m in $all; do check "$m: rows with more room: within 1e-4 after four steps" room "$m"; done

# A step of SGD with learning rate 1 subtracts the gradient: rows of several images, and each
# conversation in a row of its own.
sgd="--set train.steps=1 --set train.clip_norm=0 --set train.learning_rate=1 --set train.weight_decay=0 --set memory.optimizer=sgd --set train.momentum=0 --set train.schedule=constant"
gradients() {
    local m=$1 rows=$2 count=$3 micro
    # shellcheck disable=SC2086
    for micro in $rows 2 1; do
        expect 0 '' run other "$m" $sgd --set train.effective_batch=$rows --set memory.micro_batch=$micro || return 1
        if [ "$micro" = "$rows" ]; then rm -rf "$tmp/whole" && mv "$tmp/other" "$tmp/whole" && continue; fi
        "$tools/compare" "$(weights whole)" "$(weights other)" --logits 1e-6 || return 1
    done
    # shellcheck disable=SC2086
    expect 0 " in $count rows" run other "$m" $sgd --set data.packing=false --set train.effective_batch=$count --set memory.micro_batch=3 || return 1
    "$tools/compare" "$(weights whole)" "$(weights other)" --logits 1e-6
}
check 'gradients in micro-batches, packed and not: within 1e-6' gradients arr_coc_qwen2_vl 4 8
check 'the same of Qwen3-VL: within 1e-6' gradients arr_coc_qwen3_vl 7 16

resumes() {
    local m=$1
    expect 0 '' run other "$m" --set train.save_every=2 --set train.steps=2 || return 1
    expect 0 'resuming after step 2' "$binary" train "$(of "$m")/run.yaml" --resume --set "train.out=$tmp/other" --set train.steps=4 --set train.effective_batch=3 --set memory.micro_batch=3 \
        --set train.schedule=constant --set train.warmup_steps=0 --set data.packing=true --set data.sequence=140 --set "device.kind=$DEVICE" --set train.save_every=2 || return 1
    expect 0 '' run whole "$m" --set train.save_every=2 && same "$(weights whole)" "$(weights other)"
}
for m in $all; do check "$m: resume, the same bytes" resumes "$m"; done

# Two ranks, each with its part of gradients and optimizer state.
ranks() {
    [ "$DEVICE" = cpu ] && [ -f "$BUILD/plimsoll-mpi.so" ] && command -v mpirun >/dev/null || { echo 'skip: no MPI'; return 77; }
    local m=$1 with=(--set train.effective_batch=4 --set memory.micro_batch=1 --set memory.head_chunks=1 --set parallel.shares=4)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1
    expect 0 '' run whole "$m" "${with[@]}" && rm -rf "$tmp/other" || return 1
    expect 0 '' mpirun -np 2 --bind-to none --oversubscribe "$binary" train "$(of "$m")/run.yaml" --set "train.out=$tmp/other" --set train.steps=4 --set train.schedule=constant \
        --set train.warmup_steps=0 --set data.packing=true --set data.sequence=140 "${with[@]}" --set parallel.shard=gradients || return 1
    "$tools/compare" "$(weights whole)" "$(weights other)" --logits 1e-5
}
for m in $all; do check "$m: 2 ranks with sharded gradients: within 1e-5" ranks "$m"; done

half() { expect 0 '' run other "$1" --set memory.precision=bf16 --set train.eval_every=2 --set data.holdout=0.25 && grep -o '"eval_loss": *[0-9.e-]*' "$tmp/other/metrics.jsonl" | tail -n 1; }
for m in $all; do check "$m: bf16, evaluation" half "$m"; done

# With the base frozen the loss still has gradients for the new modules. reached MODEL FROZEN
reached() {
    expect 0 '' "$binary" step --model "tests/golden/allocator_$1" --batch "tests/golden/allocator_$1/batch.safetensors" --out "$tmp/step.safetensors" \
        --set "model.freeze=[$2]" --set memory.precision=f32 || return 1
    strings -n 8 "$tmp/step.safetensors" | head -n 1 | grep -o '"grad\.[a-z0-9_.]*"' | sort >"$tmp/names"
    [ "$(wc -l <"$tmp/names")" -eq 14 ] && ! grep -v 'grad.scorer\|grad.balancer\|grad.texture_adapter' "$tmp/names"
}
check 'the base frozen: what is trained' reached qwen2_vl '"visual.*", "model.*", "lm_head.*"'
check 'the same of Qwen3-VL' reached qwen3_vl '"model.*", "lm_head.*"'

# --- from another model's folder ----------------------------------------------------------------

# The folder has only a config.json; tokenizer, processor and weights are the base's.
begun() {
    mkdir -p "$tmp/new" && echo "{\"model_type\": \"arr_coc_qwen2_vl\", \"base_path\": \"$PWD/tests/golden/qwen_vl/qwen2_vl\", \"num_visual_tokens\": 16, \"max_patches\": 13, \"texture_adapter_width\": 8}" >"$tmp/new/config.json"
    expect 0 '' run first arr_coc_qwen2_vl --set "model.path=$tmp/new" --set train.learning_rate=0 --set train.steps=1 || return 1
    [ "$(ls "$tmp/first/model" | grep -c 'tokenizer.json\|preprocessor_config.json\|chat_template.jinja')" -ge 3 ] && grep -q '"num_visual_tokens": 16' "$tmp/first/model/config.json" || return 1
    # the new weights by seed, the others those of the base; a further run begins from that folder
    expect 0 '' run other arr_coc_qwen2_vl --set "model.path=$tmp/new" && expect 0 '' run whole arr_coc_qwen2_vl --set "model.path=$tmp/first/model" &&
        same "$(weights whole)" "$(weights other)"
}
check 'base_path: the weights of a Qwen2-VL, and new ones' begun
wrong_base() {
    sed "s/arr_coc_qwen2_vl/arr_coc_qwen3_vl/" "$tmp/new/config.json" >"$tmp/config.json" && mkdir -p "$tmp/wrong" && mv "$tmp/config.json" "$tmp/wrong/"
    expect 2 'base_path: .* is a qwen2_vl, expected a qwen3_vl for a arr_coc_qwen3_vl' run other arr_coc_qwen2_vl --set "model.path=$tmp/wrong"
}
check 'base_path of another family' wrong_base
adapted() {
    expect 0 '' run other arr_coc_qwen2_vl --set adapter.r=4 --set 'adapter.target_modules=[q_proj, v_proj]' --set 'adapter.modules_to_save=[scorer, balancer, texture_adapter]' || return 1
    ls "$tmp/other/model" | grep adapter_model && strings -n 8 "$tmp/other/model/adapter_model.safetensors" | head -n 1 | grep -q 'base_model.model.texture_adapter.up.weight'
}
check 'LoRA, and the new modules whole' adapted

# --- plans --------------------------------------------------------------------------------------

planned() {
    cat >"$tmp/plan.yaml" <<'END'
data: {sequence: 2048}
train: {effective_batch: 16, learning_rate: 2.0e-5}
memory: {precision: bf16}
device: cuda
END
    expect 0 '' "$binary" plan "$tmp/plan.yaml" --set "model.preset=$1" --images 4 --image-size 1024x1024 --memory 80GB --ranks 8 --set parallel.shard=gradients || return 1
    expect 0 '' "$binary" plan "$tmp/plan.yaml" --set "model.preset=$1" --images 4 --image-size 1024x1024 --memory 22GiB && grep -o 'arena .*' "$tmp/out"
}
for p in arr-coc-2b arr-coc-qwen3-2b; do check "$p on 8 ranks of 80 GB, and on 24 GB" planned $p; done

# --- refused ------------------------------------------------------------------------------------

check 'videos' expect 2 'data.max_frames is 4, and a arr_coc_qwen2_vl takes no videos|data.max_frames' run other arr_coc_qwen2_vl --set data.max_frames=4
check 'data.max_patches' expect 2 'data.max_patches is given, but the model is a arr_coc_qwen2_vl' run other arr_coc_qwen2_vl --set data.max_patches=640
check 'images that are too small' expect 2 'too few patches for num_visual_tokens 16: expected data.min_pixels of at least 256' run other arr_coc_qwen2_vl --set data.min_pixels=128
check 'more images than a row has room for' expect 0 'more images than data.max_images \(1' run other arr_coc_qwen2_vl --set data.max_images=1
check 'answers while training' expect 2 'train.eval_samples is 2, but a model of type arr_coc_qwen2_vl answers only in' run other arr_coc_qwen2_vl --set train.eval_samples=2 --set data.holdout=0.25
wrong_config() {
    rm -rf "$tmp/config" && cp -r tests/golden/allocator_qwen2_vl "$tmp/config" && sed -i "$1" "$tmp/config/config.json" &&
        expect 2 "$2" "$binary" step --model "$tmp/config" --batch "$tmp/config/batch.safetensors" --out "$tmp/step.safetensors"
}
check 'more tokens than the patches have' wrong_config 's/"num_visual_tokens": 8/"num_visual_tokens": 21/' 'num_visual_tokens is 21, and max_patches 5 have at most 4 tokens each'
check 'an image of too few patches' wrong_config 's/"num_visual_tokens": 8/"num_visual_tokens": 36/; s/"max_patches": 5/"max_patches": 100/' 'an image of 4 x 6 patches has 216 pixels; num_visual_tokens 36 needs at least 324'

# --- learning -----------------------------------------------------------------------------------

# The same question about seven images, and about pairs of them: only the images tell the answers.
looks() {
    local m=$1 i answers=('a red boat' 'hello there' 'very wide' yes 'one is tall' 'three images' 'green field') with
    mkdir -p "$tmp/look" && cp -r "$(of "$m")/images" "$tmp/look/" || return 1
    image() { echo "{\"type\": \"image\", \"image\": \"images/$1.png\"}"; }
    chat() { echo "{\"messages\": [{\"role\": \"user\", \"content\": [$1, {\"type\": \"text\", \"text\": \"what is this\"}]}, {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"$2\"}]}]}"; }
    for i in 0 1 2 3 4 5 6; do chat "$(image $i)" "${answers[i]}"; done >"$tmp/look/chats.jsonl"
    for i in '0 1' '1 0' '2 3' '3 2'; do chat "$(image "${i% *}"), $(image "${i#* }")" "${answers[${i% *}]}"; done >>"$tmp/look/chats.jsonl"
    with=(--set "data.train=$tmp/look/chats.jsonl" --set train.learning_rate=0.01 --set train.effective_batch=11 --set memory.micro_batch=11 --set data.packing=false --set data.max_images=2)
    expect 0 '' run other "$m" "${with[@]}" --set train.steps=50 || return 1
    "$binary" eval "$(of "$m")/run.yaml" --model "$tmp/other/model" --set "data.validation=$tmp/look/chats.jsonl" --set "device.kind=$DEVICE" --max-new 20 --loss --json >"$tmp/eval.json" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    echo "exact match $(json "$tmp/eval.json" exact_match) %"
    [ "$(json "$tmp/eval.json" exact_match)" = 100 ]
}
for m in $all; do check "$m: answers that only the images tell" looks "$m"; done

summary
