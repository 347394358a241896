#!/bin/bash
# run_experts.sh: mixtures of experts: adapters of all experts of a layer, 4 bits, plans of
# published models. Techniques, folders and ranks are those of run_families.sh; the numbers of
# transformers, PEFT and bitsandbytes are compared by golden.sh.
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
routers() { # a loss of routers is refused
    rm -rf "$tmp/broken" && mkdir "$tmp/broken" && cp $cases/mixtral/model.safetensors "$tmp/broken" &&
        sed 's/^{/{"output_router_logits": true,/' $cases/mixtral/config.json >"$tmp/broken/config.json" &&
        expect 2 'output_router_logits is true, which is not supported' train_on "$tmp/broken" "$tmp/never"
}
check 'the loss of routers is refused' routers
linear() { "$binary" modules $cases/qwen3_moe | grep -E 'experts\.\*\.gate_proj +linear +9 x 7 x 16'; }
check 'modules: experts are linear layers' linear

within() {
    expect 0 '' "$binary" plan examples/tiny.yaml --set model.preset=Qwen/Qwen3-30B-A3B --set data.sequence=2048 \
        --set train.effective_batch=4 --set 'adapter.target_modules=[q_proj,k_proj,v_proj,o_proj,gate]' --set adapter.r=16 \
        --set memory.quantize=nf4 --set memory.precision=bf16 --set device.kind=cuda --set device.profile=h200 --set memory.offload=none --memory 20GiB &&
        grep 'arena ' "$tmp/out"
}
check 'Qwen3-30B-A3B: LoRA on attention and routers in 20 GiB, nothing offloaded' within
summary
