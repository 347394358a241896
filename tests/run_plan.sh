#!/bin/bash
# run_plan.sh: plimsoll plan and its tables: the ladder, the frontier, GPUs; every example plans.
#
#   bash tests/run_plan.sh        from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

printf 'model: {preset: llama-tiny}\ndata: {sequence: 128}\ntrain: {effective_batch: 8}\n' >"$tmp/words.yaml"
printf 'model: {preset: sam-tiny}\ndata: {format: sa1b, max_masks: 8}\ntrain: {effective_batch: 8}\n' >"$tmp/masks.yaml"
table() { "$binary" plan "$@" --json >"$tmp/table.json"; }
values() { awk -F': ' -v k="\"$1\"" '$1 ~ k { v = $2; gsub(/[",]/, "", v); print v }' "$tmp/table.json"; }

for example in examples/*.yaml; do
    case $example in *finetune* | *medsam* | *llava* | *prs-med* | *clip*) continue ;; esac # the model is a folder of the user's
    plans() { "$binary" plan "$1" --json >"$tmp/plan.json" && json "$tmp/plan.json" arena_bytes; }
    check "$(basename "$example") plans" plans "$example"
done

bars() {
    "$binary" plan "$tmp/masks.yaml" >"$tmp/out" && grep -qE '^  activations +[0-9.]+ MiB +[0-9.]+ %  ##' "$tmp/out" && sed -n '/^By module/,/^Plan/p' "$tmp/out" | grep -E '^  vision_encoder.layers .*##'
}
check 'bars by kind and by module' bars
# --explain adds a page whose highest row is the peak; --explain all lists every op and storage
# behind it.
page() {
    expect 0 '' "$binary" plan "$tmp/$1.yaml" && wc -l <"$tmp/out" >"$tmp/lines" && expect 0 '' "$binary" plan "$tmp/$1.yaml" --explain || return 1
    for part in 'Over the step: the most memory at once' '  backward  [a-z]' 'Largest tensors at the peak' '.* x .* kept for the backward  .*layers\.\*' 'Largest persistent tensors' 'By module at the peak' 'Kernels: '; do
        grep -q "^$part" "$tmp/out" || { echo "no $part"; cat "$tmp/out"; return 1; }
    done
    sed -n '/^Over the step/,/^Largest/p' "$tmp/out" | grep -q '#\{30\}' && ! grep -q '^program step: \| [rd]:[a-z]' "$tmp/out" && [ $(($(wc -l <"$tmp/out") - $(cat "$tmp/lines"))) -lt 90 ] || { cat "$tmp/out"; return 1; }
    expect 0 '' "$binary" plan "$tmp/$1.yaml" --explain all && grep -q '^Over the step' "$tmp/out" && grep -q '^schedule of step' "$tmp/out" && grep -q '^placement of update' "$tmp/out" && wc -l <"$tmp/out"
}
check 'explained: a page for words' page words
check 'explained: a page for masks' page masks
check 'explained: what is not all' expect 2 '--explain takes no value but all' "$binary" plan "$tmp/words.yaml" --explain=most
printf 'model: {preset: sam-tiny}\n' >"$tmp/bare.yaml"
check 'a model of masks without a format of data' expect 2 'data.format.*set data.format to sa1b' "$binary" plan "$tmp/bare.yaml"
# Each row of the ladder is planned; an added technique does not raise the arena.
ladder() {
    table "$tmp/$1.yaml" --compare && sed -i '/"what_if"/,$d' "$tmp/table.json" || return 1
    values arena_bytes | awk 'NR > 1 && $1 > last { print "rung " NR " is larger: " $1 " after " last; exit 1 } { last = $1; if (NR == 1) first = $1 }
        END { if (NR < 11) { print NR " rungs"; exit 1 } print first " to " last " bytes in " NR " rungs" }'
}
check 'the ladder of words' ladder words
check 'the ladder of masks' ladder masks
# what_if RUN LABELS ARGUMENT...: the rows after the ladder have these labels, and each has fewer
# bytes than the one before.
what_if() {
    table "$tmp/$1.yaml" --compare "${@:3}" && sed -i '1,/"what_if"/d' "$tmp/table.json" || return 1
    [ "$(sed -n 's/.*"label": "\(.*\)",/\1/p' "$tmp/table.json" | paste -sd '|')" = "$2" ] || { values label; return 1; }
    [ "$(values arena_bytes | wc -l)" = "$(values predicted_step_seconds | wc -l)" ] && values arena_bytes | awk 'NR > 1 && $1 >= last { print "row " NR " is not smaller"; exit 1 } { last = $1; printf "%d ", $1 }'
}
# The same bytes as a plan with these keys.
what_if_is_a_plan() {
    local lora=(--set adapter.target_modules=all-linear --set adapter.r=16 --set memory.quantize=nf4)
    table "$tmp/words.yaml" --compare --set device=cpu && sed -i '1,/"what_if"/d' "$tmp/table.json" || return 1
    "$binary" plan "$tmp/words.yaml" --set device=cpu "${lora[@]}" --set memory.precision=bf16 --set memory.optimizer=adamw-8bit --set memory.recompute=all --set memory.head_chunks=4 --set memory.micro_batch=1 \
        --set memory.gradients=bf16 --set memory.fused_step=off --set memory.offload=none --json >"$tmp/plan.json" || return 1
    [ "$(json "$tmp/plan.json" arena_bytes)" = "$(values arena_bytes | tail -n 1)" ] || { json "$tmp/plan.json" arena_bytes; values arena_bytes; return 1; }
}
check 'what if: LoRA, LoRA + NF4' what_if words 'LoRA, r 16 on all linear layers|LoRA + NF4'
check 'what if: an encoder is frozen' what_if masks 'LoRA, r 16 on all linear layers|LoRA + NF4' --set 'model.freeze=vision_encoder.*'
check 'what if: a run with an adapter' what_if words NF4 --set 'adapter.target_modules=[q_proj]'
check 'what if: the plan with these keys' what_if_is_a_plan
nothing_left() {
    expect 0 '' "$binary" plan "$tmp/words.yaml" --compare --set 'adapter.target_modules=[q_proj]' --set memory.quantize=nf4 && ! grep -i 'what if' "$tmp/out"
}
check 'what if: a run with both' nothing_left
# Where no smaller change fits, a refusal names an adapter and 4-bit weights, and they fit. SGD, the
# shortest sequence and any offload file leave nothing smaller to change.
least=(--set device=cpu --set device.threads=1 --set device.profile=default --set memory.precision=bf16 --set memory.optimizer=sgd --set train.momentum=0 --set data.sequence=16 --set memory.host_budget=none)
remedy() { # CHANGES ARGUMENT...: the changes as KEY=VALUE, separated by blanks; the budget is the smallest with them
    local words=${1//=/: } sets=() change size
    for change in $1; do sets+=(--set "$change"); done
    expect 3 '' "$binary" plan "$tmp/words.yaml" "${least[@]}" "${@:2}" "${sets[@]}" --memory 2KiB --json && size=$(json "$tmp/out" smallest_budget_bytes) || return 1
    expect 3 "${words// memory/ and memory} \\(" "$binary" plan "$tmp/words.yaml" "${least[@]}" "${@:2}" --memory "$size" || return 1
    expect 0 '' "$binary" plan "$tmp/words.yaml" "${least[@]}" "${@:2}" "${sets[@]}" --memory "$size" && grep '^  arena' "$tmp/out"
}
check 'a change that would fit: an adapter' remedy adapter.target_modules=all-linear --set train.effective_batch=256
check 'a change that would fit: an adapter and 4 bits' remedy 'adapter.target_modules=all-linear memory.quantize=nf4' --set train.effective_batch=256
# The smallest memory.host_budget that suffices: one byte less does not. For a
# mask model, a frozen encoder and stored embeddings are named too.
host_remedy() {
    local run=("$binary" plan "$tmp/masks.yaml" --set device=cpu --set device.threads=1 --set device.profile=default) size named
    expect 3 '' "${run[@]}" --memory 2KiB --set memory.host_budget=none --json && size=$(json "$tmp/out" smallest_budget_bytes) || return 1
    expect 3 'model.freeze: \[vision_encoder.\*\] with stored embeddings' "${run[@]}" --memory "$size" --set memory.host_budget=1000 || return 1
    named=$(sed -n 's/.*fits: memory.host_budget: \([0-9]*\).*/\1/p' "$tmp/err")
    echo "$named bytes"
    expect 0 '' "${run[@]}" --memory "$size" --set "memory.host_budget=$named" && expect 3 '' "${run[@]}" --memory "$size" --set "memory.host_budget=$((named - 1))" &&
        expect 0 '' "${run[@]}" --memory "$size" --set memory.host_budget=1000 --set 'model.freeze=vision_encoder.*'
}
check 'changes that would fit: the smallest host budget, a frozen encoder' host_remedy
check 'a change that would fit: 4 bits' remedy memory.quantize=nf4 --set 'adapter.target_modules=[q_proj]'

# The last split uses the smallest micro-batches that a GPU or a group of batch statistics allows.
split() { expect 0 '' "$binary" plan "$tmp/$1.yaml" "${@:3}" --compare && grep -F "+ micro-batches of $2 " "$tmp/out"; }
check 'the ladder splits as far as it may: 1' split words 1
check 'the ladder splits as far as it may: a GPU' split words 2 --set device=cuda --set train.effective_batch=128
check 'the ladder splits as far as it may: groups' split masks 4 --set device=cpu --set model.preset=tinysam-tiny --set model.bn_group=4
# More budget is never slower, and every row fits its budget; the last row may be the plan without a
# budget.
frontier() {
    table "$tmp/$1.yaml" --frontier || return 1
    values samples_per_second | awk 'NR > 1 && $1 < last * (1 - 1e-12) { print "row " NR " is slower"; exit 1 } { last = $1 } END { if (NR < 3) { print NR " rows"; exit 1 } print NR " rows" }' || return 1
    paste <(values budget_bytes) <(values arena_bytes) | awk 'NF == 2 { pairs++ } NF == 2 && $2 > $1 { print "row " NR " does not fit"; bad = 1 }
        END { print pairs " of " NR " rows have a budget, each is within it"; exit bad || pairs < NR - 1 || NR < 3 }'
}
check 'the frontier of words' frontier words
check 'the frontier of masks' frontier masks
devices() {
    table "$tmp/masks.yaml" --devices 1,8,24 && [ "$(values fits | sort -u)" = true ] && [ "$(values effective_batch | sort -u)" = 8 ] && [ "$(values micro_batch | grep -c '^[1-8]$')" = 3 ] && values micro_batch | tr '\n' ' '
}
check 'GPUs by memory' devices
small() { table "$tmp/words.yaml" --devices 0.0016 && [ "$(values fits)" = false ] && values smallest_budget_bytes | grep '^[1-9]'; }
check 'a GPU that is too small' small
# The changes that are named with a row that does not fit do fit, as --memory names them.
remedied() {
    expect 0 '' "$binary" plan "$tmp/words.yaml" --devices 0.07 --set train.clip_norm=1 && grep -q '^0.07 GiB *does not fit: the smallest plan needs' "$tmp/out" &&
        grep -E '^ +fits with: adapter.target_modules: all-linear \([0-9.]+ MiB, host memory [0-9.]+ MiB\), or parallel.ranks: [0-9]+ ' "$tmp/out" || { cat "$tmp/out"; return 1; }
    table "$tmp/words.yaml" --devices 0.07 --set train.clip_norm=1 && grep -q '"change": "adapter.target_modules: all-linear"' "$tmp/table.json" || { cat "$tmp/table.json"; return 1; }
    table "$tmp/words.yaml" --devices 0.07 --set train.clip_norm=1 --set adapter.target_modules=all-linear && [ "$(values fits)" = true ]
}
check 'a GPU that is too small: changes that fit' remedied
check 'no GPU is meant' expect 2 '0 GiB.*GPU$' "$binary" plan "$tmp/words.yaml" --devices 0
check 'a GPU by only its number' expect 2 '4070 GiB is not the memory of a GPU; did you mean rtx-4070\?' "$binary" plan "$tmp/words.yaml" --devices 4070
# A V100 can be planned for, and the table says that it cannot be used.
spelled() {
    table "$tmp/words.yaml" --devices 'rtx3060,RTX 3070,v100' && [ "$(values profile | tr '\n' ' ')" = 'rtx-3060 rtx-3070 v100 ' ] && [ "$(values precision | tr '\n' ' ')" = 'bf16 bf16 f16 ' ] || { values profile; return 1; }
    expect 0 '' "$binary" plan "$tmp/words.yaml" --devices v100,rtx-3070 && grep -q '^Times are unmeasured' "$tmp/out" && ! grep 'WARNING: rtx-3070' "$tmp/out" &&
        grep '^WARNING: v100: v100 is planned for and cannot be used: it has compute capability 7.0, and there are kernels for 7.5 and later only' "$tmp/out"
}
check 'GPUs by other spellings, and one without kernels' spelled
# The reserve of a GPU is that of memory.budget: auto, and a row states the profile of its times. A
# size is planned with the profile of a GPU of that class, in 16 bits, whatever the run's device is.
reserve() {
    table "$tmp/masks.yaml" --devices 24,rtx-3090,rtx-4090 --set device=cpu && [ "$(values budget_bytes | head -n 1)" = "$(values budget_bytes | sed -n 2p)" ] || return 1
    [ "$(values profile | tr '\n' ' ')" = "rtx-3090 rtx-3090 rtx-4090 " ] && [ "$(values precision | sort -u)" = bf16 ] || { values profile; values precision; return 1; }
    "$binary" plan "$tmp/masks.yaml" --set device=cuda --set device.profile=rtx-4090 --memory auto --json >"$tmp/auto.json" &&
        [ "$(json "$tmp/auto.json" budget_bytes)" = "$(values budget_bytes | tail -n 1)" ] || { json "$tmp/auto.json" budget_bytes; values budget_bytes; return 1; }
    expect 0 '' "$binary" plan "$tmp/masks.yaml" --devices rtx-4090 && grep -q 'rtx-4090' "$tmp/out" && ! grep 'A size is planned' "$tmp/out"
}
check 'the reserve of a GPU, and the profile of a row' reserve
# Each class has a GPU of its own, and a key that is given is kept: a precision, and no CPU's
# profile.
classes() {
    table "$tmp/words.yaml" --devices 4,8,10,11,12,16,24,32,40,48,80,96,141,192 --set device=cpu --set device.profile=tests/golden/profiles/arm64-2.json --set memory.precision=f32 || return 1
    [ "$(values profile | tr '\n' ' ')" = 'rtx-4060 rtx-4060 rtx-3080 rtx-3060 rtx-3060 rtx-4080 rtx-3090 rtx-5090 a100-40 l40s a100-80 a100-80 h200 h200 ' ] || { values profile | tr '\n' ' '; return 1; }
    [ "$(values precision | sort -u)" = f32 ] || { values precision; return 1; }
    expect 0 '' "$binary" plan "$tmp/words.yaml" --devices 8,141 && grep -q 'slowest listed GPU of about that memory (8 GiB: rtx-4060, 141 GiB: h200)' "$tmp/out" && grep '^Times of 8 GiB are unmeasured' "$tmp/out"
}
check 'GPUs by memory: the GPU of each class' classes
# Host memory stands beside the GPU's; more than a machine is likely to have is said.
beside() {
    expect 0 '' "$binary" plan "$tmp/words.yaml" --set model.preset=llama-7b --set data.sequence=1024 --devices 4,80 || return 1
    grep -Eq '^GPU +arena +host memory +batch' "$tmp/out" && grep -Eq '^4 GiB +[0-9.]+ GiB +[0-9.]+ GiB ' "$tmp/out" || { cat "$tmp/out"; return 1; }
    grep -q '^WARNING: 4 GiB: the plan needs [0-9.]* GiB of host memory, more than a machine with such a GPU is likely to have: 32.00 GiB (twice' "$tmp/out" || { cat "$tmp/out"; return 1; }
    ! grep 'WARNING: 80 GiB' "$tmp/out" || return 1
    expect 0 '' "$binary" plan "$tmp/words.yaml" --set model.preset=llama-7b --set data.sequence=1024 --set device=cuda --set device.profile=rtx-4060 --memory 4GiB --json &&
        grep 'the plan needs .* GiB of host memory, more than a machine with such a GPU is likely to have' "$tmp/out"
}
check 'host memory beside a GPU, and more than is likely' beside
# Times depend on the number of threads and on the profile; what is larger than any machine does
# not.
larger() {
    expect 0 '' "$binary" plan "$tmp/words.yaml" --set device=cpu --set data.sequence=65536 --set train.effective_batch=1048576 --set memory.micro_batch=1048576 --set memory.recompute=none --set memory.offload=none --set memory.head_chunks=1 &&
        grep 'WARNING: the plan is larger than this machine: [0-9.]* [TP]iB; this machine has [0-9.]* [GT]iB of memory; memory.budget: auto plans for it' "$tmp/out" || { tail -n 3 "$tmp/out"; return 1; }
    expect 0 '' "$binary" plan "$tmp/words.yaml" --set device=cuda --set device.profile=rtx-4060 --set data.sequence=65536 --set memory.micro_batch=8 --set memory.recompute=none --set memory.offload=none &&
        grep 'WARNING: the plan is larger than that GPU: .* GiB; rtx-4060 has 7.60 GiB, of which 6.60 GiB' "$tmp/out" || { tail -n 3 "$tmp/out"; return 1; }
    expect 0 '' "$binary" plan "$tmp/words.yaml" --set device=cuda --set device.profile=rtx-4060 --set data.sequence=65536 --set memory.micro_batch=8 --set memory.recompute=none --set memory.offload=none --json &&
        grep -q '^  "fits": true' "$tmp/out" && grep -q '^  "fits_machine": false' "$tmp/out" || { head -n 5 "$tmp/out"; return 1; }
    expect 0 '' "$binary" plan "$tmp/words.yaml" --json && grep -q '^  "fits_machine": true' "$tmp/out" && ! grep warnings "$tmp/out" || return 1
    expect 0 '' "$binary" plan "$tmp/words.yaml" && ! grep WARNING "$tmp/out"
}
check 'a plan that is larger than this machine, or than that GPU' larger
# A row of --ranks 1,2 warns as --ranks 2 does.
larger_ranks() {
    local run=("$binary" plan "$tmp/words.yaml" --set device=cuda --set device.profile=rtx-4060 --set data.sequence=65536 --set memory.micro_batch=4 --set memory.recompute=none --set memory.offload=none)
    run+=(--set model.preset=llama-124m --set memory.head_chunks=1)
    expect 0 '' "${run[@]}" --ranks 1,2 --json && [ "$(grep -c 'the plan is larger than that GPU: ' "$tmp/out")" = 2 ] || { cat "$tmp/out"; return 1; }
    expect 0 '' "${run[@]}" --ranks 1,2 && grep -q '^WARNING: 1 rank: the plan is larger than that GPU: ' "$tmp/out" && grep '^WARNING: 2 ranks: the plan is larger than that GPU: ' "$tmp/out"
}
check 'numbers of ranks whose plans are larger than that GPU' larger_ranks
named() { table "$tmp/masks.yaml" --devices rtx-4060,rtx-4090,h200 && [ "$(values fits | sort -u)" = true ] && [ "$(values samples_per_second | grep -c '^[0-9.]*[1-9]')" = 3 ] && values samples_per_second | tr '\n' ' '; }
check 'GPUs by name' named
# A row that does not fit names its bound; times without a measured profile are marked.
# Which plans fit depends on the precision and, through workspaces, on the number of threads.
cpu=(--set device=cpu --set device.threads=2 --set device.profile=default --set memory.precision=bf16 --set memory.host_budget=3MiB)
bounded() {
    expect 0 '' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --compare && [ "$(grep -c 'does not fit: offload file needs [0-9.]* MiB, memory.host_budget is 3.00 MiB' "$tmp/out")" = 3 ] || { cat "$tmp/out"; return 1; }
    expect 0 '' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --set memory.offload=optimizer --frontier && [ "$(grep -c 'does not fit: offload file' "$tmp/out")" = 2 ] || { cat "$tmp/out"; return 1; }
    tail -n 1 "$tmp/out"
}
check 'rows that do not fit host memory' bounded
# SAM ViT-H in 8 GiB is fastest with an offload file of 55 GiB. Within a bound its file is small,
# and the plan says what that costs.
file=(--set model.preset=sam-vit-h --set data.max_masks=32 --set device=cpu --set device.threads=2 --set device.profile=default --set memory.precision=f32 --memory 8GiB)
large_file() {
    expect 0 '' "$binary" plan "$tmp/masks.yaml" "${file[@]}" --set memory.host_budget=6GiB --json && cp "$tmp/out" "$tmp/small.json" || return 1
    expect 0 '' "$binary" plan "$tmp/masks.yaml" "${file[@]}" --set memory.host_budget=none --json && cp "$tmp/out" "$tmp/large.json" || return 1
    [ "$(json "$tmp/small.json" arenas.host)" -lt 6000000000 ] && [ "$(json "$tmp/large.json" arenas.host)" -gt 50000000000 ] || { json "$tmp/small.json" arenas.host; return 1; }
    [ "$(json "$tmp/small.json" without_host_budget.host_bytes)" = "$(json "$tmp/large.json" arenas.host)" ] && ! grep without_host_budget "$tmp/large.json" || return 1
    expect 0 '' "$binary" plan "$tmp/masks.yaml" "${file[@]}" --set memory.host_budget=6GiB && grep -q 'the offload file is limited to 6.00 GiB' "$tmp/out" &&
        grep 'with 55.06 GiB of offload file: .* less); memory.host_budget does not allow it' "$tmp/out"
}
check 'a bound on the offload file, and what it costs' large_file
unmeasured() {
    for gpus in h200,rtx-4090 rtx-4090,h200; do
        expect 0 '' "$binary" plan "$tmp/masks.yaml" --devices $gpus && grep -q '^Times of rtx-4090 are unmeasured' "$tmp/out" || { cat "$tmp/out"; return 1; }
    done
    expect 0 '' "$binary" plan "$tmp/masks.yaml" --devices t4,rtx-4090 && grep '^Times are unmeasured' "$tmp/out"
}
check 'GPUs without a measured profile' unmeasured
# A row for each number of images, each what the number by itself gives.
images() {
    local args=("$tmp/words.yaml" --set model.preset=llava-tiny --devices 8,24) both
    table "${args[@]}" --images 1,3 && [ "$(values images | tr '\n' ' ')" = '1 3 1 3 ' ] && both=$(values arena_bytes | sed -n '2~2p') && table "${args[@]}" --images 3 || return 1
    [ "$(values arena_bytes)" = "$both" ] || { echo "$both"; values arena_bytes; return 1; }
    expect 0 '' "$binary" plan "${args[@]}" --frames 2,4 --set data.tokens_per_frame=4 && grep -q '^24 GiB, 4 frames ' "$tmp/out" && grep -q '(8 GiB: rtx-4060, 24 GiB: rtx-3090)' "$tmp/out" &&
        expect 2 '--images is x, expected a number' "$binary" plan "${args[@]}" --images 1,x
}
check 'GPUs by numbers of images and frames' images
check "--devices 8GB is 8" expect 0 '' "$binary" plan "$tmp/words.yaml" --devices 8GB,16GiB
check "--devices with nothing between commas" expect 2 'a GPU is missing; expected GiB of memory or names' "$binary" plan "$tmp/words.yaml" --devices 8,,16
full() { "$binary" train --help 2>"$tmp/err" >/dev/full; [ $? = 1 ] && grep 'standard output cannot be written' "$tmp/err"; }
[ -w /dev/full ] && check "a long output to a full disk" full
noted() { "$binary" plan "$tmp/words.yaml" --devices 8 --set train.effective_batch=64 | grep 'outside of 8 to 32'; }
check 'an effective batch outside of 8 to 32 is noted' noted
# plan and train say it where trained weights are fine-tuned, and count ranks; not of fresh weights,
# nor of token files.
printf 'model: {path: tests/golden/chat/model}\ndata: {format: conversations, sequence: 64}\n' >"$tmp/chat.yaml"
usual() {
    local plan=("$binary" plan "$tmp/chat.yaml" --set)
    expect 0 '' "${plan[@]}" train.effective_batch=4 && grep -q '  note: train.effective_batch is 4: recipes for fine-tuning have 8 to 32 samples a step$' "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 0 '' "${plan[@]}" train.effective_batch=129 --ranks 4 && grep -q 'is 129: recipes for fine-tuning have 8 to 128 samples a step on 4 ranks' "$tmp/out" || { cat "$tmp/out"; return 1; }
    for one in "${plan[*]} train.effective_batch=8" "${plan[*]} train.effective_batch=128 --ranks 4" "${plan[*]} train.effective_batch=64 --set data.format=tokens" "$binary plan $tmp/words.yaml --set train.effective_batch=64"; do
        # shellcheck disable=SC2086
        expect 0 '' $one && ! grep 'recipes for fine-tuning' "$tmp/out" || return 1
    done
    expect 0 'train.effective_batch is 2: recipes for fine-tuning' "$binary" train "$tmp/chat.yaml" --set data.train=tests/golden/chat/chats.jsonl --set train.effective_batch=2 --set train.steps=1 --set "train.out=$tmp/usual"
}
check 'an effective batch that is unusual for fine-tuning: plan and train' usual
for given in '--devices 1e-12' '--devices 12x' '--compare --frontier' '--compare --memory 1GiB' '--images none'; do
    # shellcheck disable=SC2086
    refused() { expect 2 '' "$binary" plan "$tmp/words.yaml" $given && cat "$tmp/err"; }
    check "refused: $given" refused
done
# The message names the budget that refuses the plan, also where no technique is in use.
refused_by() {
    expect 3 'memory.host_budget is 1048576' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --set memory.host_budget=1MiB --set memory.offload=optimizer --json || return 1
    cp "$tmp/out" "$tmp/table.json" && [ "$(values refused_by)" = memory.host_budget ] && [ "$(values host_budget_bytes)" = 1048576 ] || { head -n 12 "$tmp/out"; return 1; }
    expect 3 'the budget is 1048576' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --memory 1MiB --json || return 1
    cp "$tmp/out" "$tmp/table.json" && [ "$(values refused_by)" = memory.budget ]
}
check 'a refusal names its bound' refused_by
# Where memory.host_budget keeps the smallest plan large, the message states that and the budget
# that would fit.
binding() {
    local need
    expect 3 'Set --memory [0-9]+ within memory.host_budget 1048576 \(1.00 MiB\);.*memory.host_budget: [0-9]+ ' \
        "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --set memory.host_budget=1MiB --memory 6MiB || return 1
    need=$(sed -n 's/.*each of which fits: memory.host_budget: \([0-9]*\).*/\1/p' "$tmp/err")
    expect 0 '' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --set memory.host_budget="$need" --memory 6MiB && echo "$need bytes"
}
check 'a refusal names host memory where it is the cause' binding
# The host memory beside a GPU that is not in this machine is unknown.
elsewhere() {
    expect 0 '' "$binary" plan "$tmp/words.yaml" --set device=cuda --set device.profile=rtx-4060 --set memory.offload=optimizer && grep 'host memory is not limited: the GPU is not in this machine' "$tmp/out" || return 1
    expect 0 '' "$binary" plan "$tmp/words.yaml" --set device=cuda --set device.profile=rtx-4060 --set memory.offload=optimizer --set memory.host_budget=1GiB && grep 'limited to 1.00 GiB (memory.host_budget)' "$tmp/out"
}
check 'host memory beside a GPU that is not in this machine' elsewhere
# next_gib is the plan for exactly 1 GiB more. No 64-bit number is 1 GiB more than the last budget,
# which has no next_gib.
more() {
    local budget arena more next
    for budget in 33554432 1073741824 9223372035781033983; do
        expect 0 '' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --memory $budget --json || return 1
        arena=$(json "$tmp/out" arena_bytes) && more=$(json "$tmp/out" next_gib.arena_bytes) && next=$(json "$tmp/out" next_gib.budget_bytes) || return 1
        [ "$next" = $((budget + 1073741824)) ] || { echo "budget_bytes is $next after $budget"; return 1; }
        [ "$arena" -le $budget ] && [ "$more" -gt 0 ] && [ "$more" -le "$next" ] || { echo "arena_bytes $arena of $budget, then $more of $next"; return 1; }
    done
    for budget in 18446744072635809792 18446744073709551615; do # 2^64 - 1 GiB, 2^64 - 1
        expect 0 '' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --memory $budget --json || return 1
        if grep -q next_gib "$tmp/out"; then grep -A 2 next_gib "$tmp/out"; return 1; fi
        expect 0 '' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --memory $budget || return 1
        if grep '1 GiB more' "$tmp/out"; then return 1; fi
    done
}
check 'the plan with 1 GiB more' more
unfused() {
    expect 3 'memory.fused_step: auto' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --set memory.host_budget=none --set memory.fused_step=off --set data.sequence=16 --memory 3MiB
}
check 'a change that would fit: the fused step' unfused
# Clipping holds all gradients until their norm is known; without it the step is fused.
unclipped() {
    local run=("$binary" plan "$tmp/words.yaml" "${cpu[@]}" --set memory.host_budget=none --set memory.precision=f32 --set data.sequence=16 --memory 3MiB)
    expect 3 'train.clip_norm: 0 ' "${run[@]}" --set train.clip_norm=1 && expect 0 '' "${run[@]}" --set train.clip_norm=0
}
check 'a change that would fit: no clipping' unclipped
# The loader of sam-tiny takes two thirds of the smallest plan.
ahead() {
    local run=("$binary" plan examples/sam-tiny.yaml "${cpu[@]}" --set memory.precision=f32 --set memory.host_budget=none)
    expect 3 'data.prefetch: 1 and data.threads: 1 ' "${run[@]}" --memory 20MiB || return 1
    expect 0 '' "${run[@]}" --memory 20MiB --set data.prefetch=1 --set data.threads=1 || return 1
    expect 3 'Set --memory [0-9]+, or use a smaller model' "${run[@]}" --memory 4MiB
}
check 'a change that would fit: fewer images read ahead' ahead
# Samples that would fit are shorter than what the user asked for: an adapter and more ranks are
# named as well.
large() {
    expect 3 'data.sequence: [0-9]+ \(.*, or adapter.target_modules: all-linear \(.*, or parallel.ranks: 2 \(' \
        "$binary" plan "$tmp/words.yaml" --set model.preset=llama-7b --set data.sequence=2048 --set train.effective_batch=512 --set memory.precision=bf16 --set device.kind=cuda --set device.profile=h200 --memory 24GiB
}
check 'changes that would fit: an adapter, more ranks' large
check 'a budget whose unit was forgotten' expect 3 'the budget is 8 \(8 B\).*a size without a unit is in bytes: did you mean 8GiB\?' "$binary" plan "$tmp/words.yaml" "${cpu[@]}" --memory 8
rate() {
    head -c 20000 /dev/urandom >"$tmp/words.bin"
    "$binary" train "$tmp/words.yaml" --set "data.train=$tmp/words.bin" --set data.token_dtype=uint8 --set train.steps=1 --set train.effective_batch=16 --set train.learning_rate=1e-4 \
        --set "train.lr_scaling=$1" --set "train.out=$tmp/rate-$1" >/dev/null 2>&1 || return 1
    awk -F'"learning_rate":' -v want="$2" '{ split($2, a, ","); if (a[1] / want - 1 > 1e-4 || 1 - a[1] / want > 1e-4) { print a[1] ", not " want; bad = 1 } print a[1] } END { exit bad || !NR }' "$tmp/rate-$1/metrics.jsonl"
}
check 'the rate of 16 samples, unscaled' rate none 1e-4
check 'the rate of 16 samples, linear' rate linear 2e-4
check 'the rate of 16 samples, by the root' rate sqrt 1.41421e-4
# A stored plan decides the keys that were left open; it must agree with the keys that are given,
# and it does not fuse a step where fusing is not allowed.
follows() { expect "$1" "$2" "$binary" plan "$tmp/words.yaml" --plan "$tmp/P.json" --set train.clip_norm=0 "${@:3}"; }
stored() {
    expect 0 '' "$binary" plan "$tmp/words.yaml" --set memory.precision=f32 --set memory.fused_step=on --set train.clip_norm=0 -o "$tmp/P.json" || return 1
    follows 0 '' && follows 2 'another memory.precision' --set memory.precision=bf16 && follows 2 'another memory.optimizer' --set memory.optimizer=sgd &&
        follows 2 'train.clip_norm is set' --set train.clip_norm=1 && follows 0 '' --set memory.fused_step=on --set memory.recompute=none --set memory.offload=none --set memory.head_chunks=1 || return 1
    for other in recompute=all offload=optimizer head_chunks=4 fused_step=off micro_batch=4; do follows 2 "another memory.${other%=*} than the configuration has" --set memory.$other || return 1; done
    # A plan for other ranks is refused as that, whatever keys depend on them.
    expect 0 '' "$binary" plan "$tmp/words.yaml" --set parallel.shard=weights --ranks 4 -o "$tmp/P4.json" &&
        expect 2 'P4.json: made for ranks 4, shares of each 1; this run has 1 and 1; plan again' "$binary" plan "$tmp/words.yaml" --set parallel.shard=weights --plan "$tmp/P4.json" || return 1
    # The budget refuses the stored plan: the output shows that plan and names it.
    follows 3 'needs [0-9]+ bytes, the budget is' --memory 15MiB && grep -q '^The given plan does not fit the budget' "$tmp/out"
}
check 'a stored plan and keys that were given' stored
# Ranks that are not there.
ranks=("$binary" plan --preset llama-tiny "${cpu[@]}" --set train.effective_batch=16 --set data.sequence=64 --set memory.precision=bf16)
ranked() {
    expect 0 '' "${ranks[@]}" --ranks 1,2,8 --per-host 4 --links shm,eth-1g && grep -qE '^ranks +shard +group +micro-batch' "$tmp/out" && grep -q 'Links: shm and eth-1g, unmeasured' "$tmp/out" && expect 0 '' "${ranks[@]}" --ranks 2,4,8 --json || return 1
    [ "$(grep -c '"communication_seconds"' "$tmp/out")" = 3 ] || return 1
    # Whole gradients take as long and more memory. Less memory: more is divided. The smallest
    # budget of 8 ranks fits, one byte less does not.
    "${ranks[@]}" --ranks 8 --json >"$tmp/8.json" && [ "$(json "$tmp/8.json" settings.shard)" = gradients ] || return 1
    local least
    least=$(json "$tmp/8.json" smallest_budget_bytes)
    expect 0 '' "${ranks[@]}" --ranks 8 --memory "$least" && grep -q 'shard weights' "$tmp/out" && expect 3 'needs' "${ranks[@]}" --ranks 8 --memory $((least - 1)) && echo "$least bytes"
}
check 'plan --ranks: a table, and levels under a budget' ranked
# Ranks of a host share its memory, and the disk of their offload files.
divided() {
    local two four
    expect 0 '' "${ranks[@]}" --ranks 2 --memory auto --json && two=$(json "$tmp/out" budget_bytes) && expect 0 '' "${ranks[@]}" --ranks 4 --per-host 4 --memory auto --json && four=$(json "$tmp/out" budget_bytes) &&
        awk "BEGIN { r = ($two + 536870912) / ($four + 536870912); exit !(r > 1.9 && r < 2.1) }" || { echo "$two and $four"; return 1; }
    expect 0 '' "${ranks[@]}" --ranks 4 --set memory.offload=optimizer --set memory.host_budget=auto && grep -q "memory.host_budget auto: a rank's part of half of" "$tmp/out" && expect 0 '' "${ranks[@]}" --ranks 4 --per-host 1 --set memory.offload=optimizer --set memory.host_budget=auto && grep 'memory.host_budget auto: half of' "$tmp/out"
}
check 'ranks of a host divide its memory and its disk' divided
# The ladder begins with all samples of a rank's share, and has the levels.
compared() {
    expect 0 '' "${ranks[@]}" --ranks 8 --compare --json && [ "$(grep -m 1 '"micro_batch"' "$tmp/out" | tr -dc 0-9)" = 2 ] && expect 0 '' "${ranks[@]}" --ranks 8 --compare &&
        [ "$(sed -n 's/^+ \(shard [a-z]*\) .*/\1/p' "$tmp/out" | tr '\n' ' ')" = 'shard optimizer shard gradients shard weights ' ] && expect 0 '' "${ranks[@]}" --compare && ! grep shard "$tmp/out"
}
check 'plan --ranks --compare: levels are rungs' compared
# Between hosts a slow link: weights stay inside a host, which takes more memory. With one host
# there is no choice.
grouped() {
    expect 0 '' "${ranks[@]}" --ranks 8 --per-host 4 --links nvlink4,eth-1g --set parallel.shard=weights --json && [ "$(json "$tmp/out" settings.group)" = host ] && [ "$(json "$tmp/out" settings.group_ranks)" = 4 ] || return 1
    local host all
    host=$(json "$tmp/out" predicted_step_seconds)
    expect 0 '' "${ranks[@]}" --ranks 8 --per-host 4 --links nvlink4,eth-1g --set parallel.shard=weights --set parallel.group=all --json && all=$(json "$tmp/out" predicted_step_seconds) || return 1
    expect 0 '' "${ranks[@]}" --ranks 8 --set parallel.shard=HYBRID_SHARD --json && [ -z "$(json "$tmp/out" settings.group 2>/dev/null)" ] && awk "BEGIN { exit !($host < $all) }" && echo "$host s, not $all"
}
check 'plan --ranks: groups of a host' grouped
check 'a host of 3 ranks has no group' expect 2 'parallel.group host: a host has 3 ranks' "${ranks[@]}" --ranks 6 --per-host 3 --set parallel.shard=HYBRID_SHARD
check 'a group without shards' expect 2 'parallel.group host needs parallel.shard optimizer' "${ranks[@]}" --ranks 4 --per-host 2 --set parallel.shard=none --set parallel.group=host
# With one micro-batch, gradients are sent beside the backward; with two, behind it.
beside() {
    local a b own=("$binary" plan --preset llama-tiny --set device=cuda --set device.profile=h100 --set memory.precision=bf16 --set memory.recompute=none --set train.effective_batch=32 --set data.sequence=512 --ranks 2 --links nvlink4 --set parallel.shard=none --json)
    a=$("${own[@]}" --set memory.micro_batch=16 >"$tmp/out" && json "$tmp/out" ranks.hidden_seconds) && b=$("${own[@]}" --set memory.micro_batch=8 >"$tmp/out" && json "$tmp/out" ranks.hidden_seconds) && awk "BEGIN { exit !($a > 1.5 * $b) }" && echo "$a s hidden, not $b"
}
check 'sums over ranks beside the backward' beside
# One rank is too small for the weights, and several are not.
more() {
    local one
    "${ranks[@]}" --set memory.offload=none --json >"$tmp/1.json" && one=$(json "$tmp/1.json" smallest_budget_bytes) &&
        expect 3 'parallel.ranks: [248]' "${ranks[@]}" --set memory.offload=none --memory $((one / 2))
}
check 'more ranks as a change that would fit' more
check 'an unknown link' expect 2 'parallel.links: found "infiniband"; known links are nvlink4' "${ranks[@]}" --ranks 2 --links infiniband
check 'ranks that hosts cannot hold evenly' expect 2 'parallel.per_host is 3, which does not divide the 4 ranks' "${ranks[@]}" --ranks 4 --per-host 3
check 'adafactor has no shards' expect 2 'parallel.shard weights: adafactor' "${ranks[@]}" --ranks 2 --set memory.optimizer=adafactor --set parallel.shard=weights
modules() { expect 0 '' "$binary" plan "$tmp/words.yaml" --set train.clip_norm=0 --set memory.precision=f32 --set 'memory.modules=[{match: "model.layers.1", precision: f16}]' --memory 8GiB; }
check 'a module in f16 where a step could be fused' modules

summary
