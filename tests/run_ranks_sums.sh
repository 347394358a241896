#!/bin/bash
# shellcheck disable=SC2015
# run_ranks_sums.sh: what docs/guides/ranks.md promises of sums: the same bits where their order is
# the same, and in another order the same gradients to 1e-6 of each weight's in f32.
#
# A gradient is seen in the weights after one step of SGD whose learning rate is so high that little
# else is left in them. The gradient of a bias that only shifts the scores of a softmax is 0 but for
# rounding: below 1e-7 of the whole gradient, a difference counts relative to that
# (tests/compare.c).
#
#   bash tests/run_ranks_sums.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
tool compare forge_shapes forge_conversations forge_questions
bound=1e-6
sgd=(--set train.steps=1 --set memory.optimizer=sgd --set train.momentum=0 --set train.weight_decay=0 --set train.learning_rate=1099511627776)
# layout OUT RUN RANKS SHARES MICRO_BATCH LEVEL [ARGUMENT...]: trains on one process or ranks; LEVEL
# is that of parallel.shard.
layout() {
    local out=$tmp/$1 run=$2 n=$3 launch=()
    local own=(--set "parallel.shares=$4" --set "memory.micro_batch=$5" --set "parallel.shard=$6" --set memory.head_chunks=1)
    shift 6
    [ "$n" -eq 1 ] || launch=(ranks "$n")
    rm -rf "$out"
    expect 0 '' "${launch[@]}" "$binary" train "$run" --set "train.out=$out" "${own[@]}" "$@"
}
losses() { sed -n 's/^{"step":[0-9]*,"loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2/p' "$tmp/$1/metrics.jsonl"; }
# near_losses A B: losses and norms of the steps agree to 1e-6.
near_losses() {
    paste <(losses "$1") <(losses "$2") | awk 'function off(a, b) { return a > b ? a / b - 1 : b / a - 1 }
        { for (i = 1; i < 3; i++) if (off($i, $(i + 2)) > most) most = off($i, $(i + 2)); if (NF != 4) bad = 1 }
        END { printf "losses and norms of %d steps differ by %.1e at most\n", NR, most; exit bad || !NR || !(most <= 1e-6) }'
}
gradients() { "$tools/compare" "$(weights "$1")" "$(weights "$2")" --gradients --grad "$bound"; }

# Three orders of the same sums. Layouts of one order have the same bits; the orders are near each
# other.
orders() {
    local run=$tmp/tiny.yaml own=("${sgd[@]}" --set train.effective_batch=12 --set train.clip_norm=1)
    layout shares "$run" 1 4 1 none "${own[@]}" && layout none "$run" 4 4 1 none "${own[@]}" && layout optimizer "$run" 2 4 1 optimizer "${own[@]}" && layout four "$run" 4 4 1 optimizer "${own[@]}" || return 1
    for out in none optimizer four; do same "$(weights shares)" "$(weights $out)" || return 1; done
    layout gradients "$run" 2 2 1 gradients "${own[@]}" && layout sharded "$run" 2 2 1 weights "${own[@]}" && same "$(weights gradients)" "$(weights sharded)" || return 1
    layout whole "$run" 1 3 4 none "${own[@]}" || return 1
    for out in none optimizer gradients weights; do layout three "$run" 3 3 4 $out "${own[@]}" && same "$(weights whole)" "$(weights three)" || return 1; done
    for out in shares gradients; do near_losses whole $out && gradients whole $out || return 1; done
}
check 'the same bits in the same order, 1e-6 in another' orders

# near RUN [ARGUMENT...]: one process with one micro-batch against ranks that add before and after
# micro-batches.
near() {
    local run=$1
    shift
    layout whole "$run" 1 1 6 none "${sgd[@]}" "$@" && layout parts "$run" 2 2 1 weights "${sgd[@]}" "$@" && layout others "$run" 3 3 1 optimizer "${sgd[@]}" "$@" || return 1
    near_losses whole parts && near_losses whole others && gradients whole parts && gradients whole others
}
"$binary" data make "$tmp/masks" --images 8 --size 96x80 --masks 3 >/dev/null && mkdir "$tmp/shapes" && "$tools/forge_shapes" "$tmp/shapes" 0 12 1 || exit 2
make_model llava_clip_llama "$tmp/model" && "$tools/forge_conversations" "$tmp/mixed" 20 0 3 1 && "$tools/forge_questions" "$tmp/questions" 12 2 1 || exit 2
# run_file NAME MODEL DATA
run_file() {
    cat >"$tmp/$1.yaml" <<END
model: {$2}
data: {$3, threads: 1}
train: {effective_batch: 6, learning_rate: 1.0e-3}
memory: {precision: f32}
device: cpu
END
}
masks="format: sa1b, train: '$tmp/masks/*.tar', max_masks: 3"
run_file sam 'preset: sam-tiny' "$masks"
run_file tinysam-first 'preset: tinysam-tiny' "$masks"
run_file tinysam "path: $tmp/tinysam-first/model" "$masks"
run_file grounding 'preset: grounding-tiny' "format: coco, train: $tmp/shapes/masks.json, images: $tmp/shapes, queries: $tmp/shapes/queries.csv, sequence: 128, max_queries: 8, max_masks: 8"
run_file llava "path: $tmp/model" "format: conversations, train: $tmp/mixed/chats.json, images: $tmp/mixed/images, sequence: 64, max_images: 4"
questions="format: csv, train: ['$tmp/questions/annotations/*.csv'], train_split: train, tokenizer: $tmp/questions/tokenizer, sequence: 40, sample_memory: 4,
       template: \"{% for m in messages %}{{ m['content'] + (eos_token if m['role'] == 'assistant' else ' ') }}{% endfor %}\""
run_file prs-med-first 'preset: prs-med-tiny' "$questions"
run_file prs-med "path: $tmp/prs-med-first/model" "$questions"
check 'grounding' near "$tmp/grounding.yaml"
check 'conversations with images' near "$tmp/llava.yaml"
# In the gradients of a mask decoder few terms of both signs are added: 1e-6 of the sum of their
# sizes is more of the sum.
bound=2e-6
check 'sam-tiny' near "$tmp/sam.yaml"
# Statistics of batch normalization stay as they are in a model that was saved.
saved() { expect 0 '' "$binary" train "$tmp/$1-first.yaml" --set "train.out=$tmp/$1-first" --set train.steps=1 --set memory.micro_batch=2 && near "$tmp/$1.yaml"; }
check 'tinysam-tiny' saved tinysam
check 'questions about images, with dropout' saved prs-med

# AdamW divides by the size of the gradient, also where that is rounding: single weights differ, the
# losses do not.
adamw() {
    layout whole "$tmp/$1.yaml" 1 1 6 none --set train.steps=6 && layout parts "$tmp/$1.yaml" 2 2 1 weights --set train.steps=6 && near_losses whole parts
}
check 'AdamW, 6 steps: sam-tiny' adamw sam
check 'AdamW, 6 steps: conversations with images' adamw llava
summary
