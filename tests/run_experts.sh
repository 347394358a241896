#!/bin/bash
# run_experts.sh: mixtures of experts: adapters of all experts of a layer, 4 bits, the loss that
# balances experts, plans of published models. Techniques, folders and ranks are those of
# run_families.sh; the numbers of transformers, PEFT and bitsandbytes are compared by golden.sh.
#
#   bash tests/run_experts.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
cases=tests/golden
tool forge

# Ids below 29, which every case has.
for i in {0..511}; do printf '\\x%02x\\x00' $((i * 7 % 29)); done | xargs -0 printf '%b' >"$tmp/tokens.bin"

# train_on FOLDER OUT ARGUMENT...
train_on() {
    local folder=$1 out=$2
    shift 2
    # shellcheck disable=SC2086
    "$binary" train "$golden/run.yaml" --set "model.path=$folder" --set "data.train=$tmp/tokens.bin" --set "train.out=$out" \
        --set train.steps=3 --set train.effective_batch=4 --set memory.micro_batch=2 --set "device.kind=$DEVICE" $FLAGS "$@"
}
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }
# near A B MOST: the losses of two runs, of which the relative difference is at most MOST.
near() {
    paste -d ' ' <(losses "$1") <(losses "$2") | tr -c '0-9.\n' ' ' |
        awk -v most="$3" '{ d = ($1 - $2) / $2; print $1, $2; if (d * d > most * most || $1 == 0) bad = 1 } END { exit bad || NR != 3 }'
}

# Random numbers follow the sample, not the order in which its rows lie.
dropped() {
    local how=(--set adapter.target_modules=all-linear --set adapter.r=2 --set adapter.lora_dropout=0.3)
    expect 0 '' train_on $cases/mixtral "$tmp/whole" "${how[@]}" --set memory.micro_batch=4 &&
        expect 0 '' train_on $cases/mixtral "$tmp/split" "${how[@]}" --set memory.micro_batch=1 &&
        near "$tmp/whole" "$tmp/split" 1e-6
}
check 'LoRA with dropout: the split of the batch changes nothing' dropped

targets() { tr -d ' \n' <"$tmp/whole/model/adapter_config.json" | grep -o '"target_modules":\["q_proj","k_proj","v_proj","o_proj","gate","w1","w3","w2"\]'; }
check 'all-linear is written as the last parts of names' targets

answer() { "$binary" generate "$@" --ids 1,2,3 --max-new 6 --json --set "device.kind=$DEVICE" | grep -o '"ids": \[[^]]*'; }
merged() {
    expect 0 '' "$binary" convert $cases/mixtral --adapter "$tmp/whole/model" -o "$tmp/merged" && grep -h '40 linear modules' "$tmp/out" "$tmp/err" &&
        answer --model "$tmp/merged" >"$tmp/one" && answer --model $cases/mixtral --adapter "$tmp/whole/model" | diff - "$tmp/one"
}
check 'an adapter of experts, merged' merged

some() {
    expect 2 'not the same for all experts of model.layers.0.block_sparse_moe.experts.\*.w1: .*experts.3.w1 differs' \
        train_on $cases/mixtral "$tmp/some" --set 'adapter.target_modules=.*experts\.[0-2]\.w1'
}
check 'an adapter of some experts is refused' some
dora() { expect 2 'experts.\*.w1 is a layer of experts, which takes LoRA without DoRA' train_on $cases/mixtral "$tmp/dora" --set 'adapter.target_modules=[w1]' --set adapter.use_dora=true; }
check 'DoRA on experts is refused' dora

# 4 bits: the folder's scales are those of each expert, others those of the whole stack.
quantized() {
    expect 0 '' "$binary" convert $cases/mixtral -o "$tmp/nf4" --quantize nf4 && grep -h '38 weights of linear layers in 4 bits' "$tmp/out" "$tmp/err" &&
        expect 0 '' train_on "$tmp/nf4" "$tmp/folder" --set 'adapter.target_modules=[q_proj,w1,gate]' --set adapter.r=2 &&
        expect 0 '' train_on $cases/mixtral "$tmp/loaded" --set 'adapter.target_modules=[q_proj,w1,gate]' --set adapter.r=2 --set memory.quantize=nf4 &&
        near "$tmp/folder" "$tmp/loaded" 1e-2
}
check 'NF4: a folder of 4 bits, and weights quantized as they are loaded' quantized

# broken PATTERN CHANGE...: a folder whose weights forge has changed.
broken() {
    local pattern=$1
    shift
    rm -rf "$tmp/broken" && mkdir "$tmp/broken" && cp $cases/mixtral/config.json "$tmp/broken" &&
        "$tools/forge" $cases/mixtral/model.safetensors "$tmp/broken/model.safetensors" "$@" &&
        expect 2 "$pattern" train_on "$tmp/broken" "$tmp/never"
}
expert=model.layers.1.block_sparse_moe.experts.3.w2.weight
check 'an expert is missing' broken "tensor \"$expert\" is missing \\(1 in all" drop $expert
check 'an expert has another shape' broken "tensor \"$expert\" has the shape \[192\]; config.json asks for \[16,12\]" flatten $expert
check 'a NaN in an expert' broken "tensor \"$expert\": element 7 is -?nan" set $expert 7 nan
# --- folders with the experts of a layer in two tensors ---

fused_written() {
    local file
    expect 0 'experts of a layer in two tensors, which is kept' train_on "$cases/$1" "$tmp/$1" --set train.learning_rate=0 --set train.warmup_steps=0 || return 1
    for file in "$cases/$1"/config.json "$cases/$1"/model*; do same "$tmp/$1/model/${file##*/}" "$file" || return 1; done
}
# The experts that a run saves are those that it trained.
fused_trained() {
    local near=$1 trained saved
    shift
    expect 0 '' train_on $cases/mixtral_fused "$tmp/fused" --set train.eval_every=3 --set "data.validation=$tmp/tokens.bin" --set data.sequence=8 --set memory.precision=f32 "$@" &&
        trained=$(sed -n 's/.*"eval_loss":\([^,}]*\).*/\1/p' "$tmp/fused/metrics.jsonl" | tail -n 1) &&
        expect 0 '' "$binary" eval "$tmp/fused/config.yaml" --model "$tmp/fused/model" --json && saved=$("$tools/json_get" "$tmp/out" loss) || return 1
    ! cmp -s "$tmp/fused/model/model-00001-of-00002.safetensors" $cases/mixtral_fused/model-00001-of-00002.safetensors || return 1
    awk -v a="$trained" -v b="$saved" -v most="$near" 'BEGIN { d = (a - b) / b; print a, b; exit d > most || d < -most || b == 0 }'
}
fused_merged() {
    expect 0 '' train_on $cases/mixtral_fused "$tmp/lora" --set adapter.target_modules=all-linear --set adapter.r=2 --set adapter.init_lora_weights=false &&
        expect 0 '' "$binary" convert $cases/mixtral_fused --adapter "$tmp/lora/model" -o "$tmp/remerged" && grep -h '40 linear modules' "$tmp/out" "$tmp/err" || return 1
    answer --model "$tmp/remerged" --set memory.precision=f32 >"$tmp/one" &&
        answer --model $cases/mixtral_fused --adapter "$tmp/lora/model" --set memory.precision=f32 | diff - "$tmp/one"
}
fused_4bit() {
    local lora=(--set 'adapter.target_modules=[q_proj,w1,gate]' --set adapter.r=2)
    expect 0 '' "$binary" convert $cases/mixtral_fused -o "$tmp/fused4" --quantize nf4 && expect 0 '' train_on "$tmp/fused4" "$tmp/folder4" "${lora[@]}" &&
        expect 0 '' train_on $cases/mixtral_fused "$tmp/loaded4" "${lora[@]}" --set memory.quantize=nf4 && near "$tmp/folder4" "$tmp/loaded4" 1e-2
}
fused_shape() {
    rm -rf "$tmp/broken" && mkdir "$tmp/broken" && cp $cases/qwen3_moe_fused/config.json "$tmp/broken" &&
        "$tools/forge" $cases/qwen3_moe_fused/model.safetensors "$tmp/broken/model.safetensors" flatten model.layers.0.mlp.experts.gate_up_proj &&
        expect 2 'tensor "model.layers.0.mlp.experts.gate_up_proj" has the shape \[2016\]; expected \[experts,2 x rows,columns\]' train_on "$tmp/broken" "$tmp/never"
}
for name in mixtral_fused qwen3_moe_fused; do check "$name: written as it was read" fused_written $name; done
check 'fused: the experts that are saved are those that were trained' fused_trained 1e-6
check 'fused: an adapter of all linear layers, merged' fused_merged
check 'fused: NF4, a folder and as they are loaded' fused_4bit
check 'fused: a tensor of another shape' fused_shape

# --- the loss that balances experts: over groups of samples that no technique changes ---

# balanced OUT ARGUMENT...: a run whose groups have two samples.
balanced() { expect 0 '' train_on $cases/mixtral_balanced "$tmp/$1" --set model.router_group=2 --set memory.precision=f32 "${@:2}"; }
values() { grep -oE '"(loss|aux_loss|grad_norm)":[^,}]*' "$tmp/$1/metrics.jsonl"; }
# same_values A B MOST: the losses and gradient norms of two runs, whose relative difference is at
# most MOST.
same_values() {
    paste -d ' ' <(values "$1") <(values "$2") | awk -F '[: ]' -v most="$3" '{ d = ($2 - $4) / $4; if (d < 0) d = -d
        if (d > worst) worst = d } END { print NR " numbers, worst difference " worst; exit worst > most || NR != 9 }'
}
balanced_split() {
    balanced whole4 --set memory.micro_batch=4 && balanced split2 --set memory.micro_batch=2 && same_values whole4 split2 1e-6
}
check 'balanced: the split into micro-batches changes nothing' balanced_split
balanced_techniques() {
    balanced recomputed --set memory.recompute=all --set memory.offload=weights && same "$tmp/split2/model/model.safetensors" "$tmp/recomputed/model/model.safetensors" &&
        diff <(values split2) <(values recomputed)
}
check 'balanced: recompute and offload: same bytes' balanced_techniques
# Groups of other sizes are another loss, and the whole batch is the default of so few samples.
balanced_groups() {
    expect 0 '' train_on $cases/mixtral_balanced "$tmp/four" --set memory.micro_batch=4 --set model.router_group=4 --set memory.precision=f32 &&
        expect 0 '' train_on $cases/mixtral_balanced "$tmp/auto" --set memory.micro_batch=4 --set memory.precision=f32 || return 1
    diff <(values four) <(values auto) && ! same_values whole4 auto 1e-4
}
check 'balanced: the groups are those of model.router_group' balanced_groups
check 'balanced: a group that does not divide the batch' expect 2 'model.router_group: train.effective_batch of 4 samples is not divisible into groups of 3 that share a loss of experts' \
    train_on $cases/mixtral_balanced "$tmp/never" --set model.router_group=3
check 'balanced: a group that no micro-batch holds' expect 2 'memory.micro_batch is 2; with a loss of experts over groups of 4 samples .* must be a multiple of 4' \
    train_on $cases/mixtral_balanced "$tmp/never" --set model.router_group=4
check 'balanced: groups of a model without the loss' expect 2 'model.router_group is given, but the model is a mixtral' \
    train_on $cases/mixtral "$tmp/never" --set model.router_group=2
balanced_weight() {
    rm -rf "$tmp/broken" && mkdir "$tmp/broken" && cp $cases/mixtral/model.safetensors "$tmp/broken" &&
        sed 's/^{/{"output_router_logits": true, "router_aux_loss_coef": -1,/' $cases/mixtral/config.json >"$tmp/broken/config.json" &&
        expect 2 'router_aux_loss_coef is -1, it must be 0 or more' train_on "$tmp/broken" "$tmp/never"
}
check 'balanced: a weight below 0' balanced_weight
# Evaluation has no such loss: that of the folder is that of the folder without the key.
balanced_eval() {
    rm -rf "$tmp/plain" && mkdir "$tmp/plain" && cp $cases/mixtral_balanced/model.safetensors "$tmp/plain" &&
        sed '/output_router_logits/d' $cases/mixtral_balanced/config.json >"$tmp/plain/config.json" || return 1
    for folder in $cases/mixtral_balanced "$tmp/plain"; do
        expect 0 '' "$binary" eval --model "$folder" --data "$tmp/tokens.bin" --set data.sequence=8 --json --set "device.kind=$DEVICE" &&
            "$tools/json_get" "$tmp/out" loss || return 1
    done >"$tmp/losses"
    cat "$tmp/losses" && [ "$(sort -u "$tmp/losses" | wc -l)" = 1 ]
}
check 'balanced: evaluation is without it' balanced_eval
balanced_ranks() {
    balanced shares --set parallel.shares=2 --set memory.head_chunks=1 || return 1
    rm -rf "$tmp/many"
    # shellcheck disable=SC2086
    expect 0 '' ranks 2 "$binary" train "$golden/run.yaml" --set model.path=$cases/mixtral_balanced --set "data.train=$tmp/tokens.bin" --set "train.out=$tmp/many" \
        --set train.steps=3 --set train.effective_batch=4 --set memory.micro_batch=2 --set device.kind=cpu --set model.router_group=2 --set memory.precision=f32 \
        --set memory.head_chunks=1 $FLAGS && same "$tmp/shares/model/model.safetensors" "$tmp/many/model/model.safetensors" && diff <(values shares) <(values many)
}
if [ "$DEVICE" = cpu ] && [ -f "$BUILD/plimsoll-mpi.so" ] && command -v mpirun >/dev/null; then
    # shellcheck source=tests/ranks_lib.sh
    . tests/ranks_lib.sh
    check 'balanced: 2 ranks: the bits of two shares' balanced_ranks
fi
linear() { "$binary" modules $cases/qwen3_moe | grep -E 'experts\.\*\.gate_proj +linear +9 x 7 x 16'; }
check 'modules: experts are linear layers' linear

# within TARGETS OFFLOAD BUDGET HOST: the plan of LoRA on Qwen3-30B-A3B, NF4, 4 x 2048 tokens, fits
# both budgets, and docs/guides/adapters.md states what it needs.
within() {
    local arena host
    expect 0 '' "$binary" plan examples/tiny.yaml --set model.preset=Qwen/Qwen3-30B-A3B --set data.sequence=2048 --set train.effective_batch=4 \
        --set "adapter.target_modules=$1" --set adapter.r=16 --set memory.quantize=nf4 --set memory.precision=bf16 --set device.kind=cuda --set device.profile=h200 \
        --set "memory.offload=$2" --memory "$3" --set "memory.host_budget=$4" || return 1
    arena=$(sed -n 's/^ *arena *\([0-9.]* GiB\) .*/\1/p' "$tmp/out") host=$(sed -n 's/^ *host memory *\([0-9.]* [GK]iB\) .*/\1/p' "$tmp/out")
    echo "$arena, host memory $host" && grep -q "| $arena |" docs/guides/adapters.md && case $host in *KiB) ;; *) grep -q "| $host |" docs/guides/adapters.md ;; esac
}
check 'Qwen3-30B-A3B: LoRA on attention and routers in 20 GiB, nothing offloaded' within '[q_proj,k_proj,v_proj,o_proj,gate]' none 20GiB 1GiB
check 'Qwen3-30B-A3B: LoRA on all linear layers in 24 GiB, its state in 10 GiB of host memory' within all-linear '[optimizer,masters]' 24GiB 10GiB
summary
