#!/bin/bash
# shellcheck disable=SC2015
# run_ranks.sh: N ranks under mpirun against one process with N shares: weights, optimizer state and checkpoints have the
# same bytes, and losses and norms the same digits.
#
#   bash tests/run_ranks.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh

# numbers RUN: step, loss, rate and norm of every step, and evaluations.
numbers() { grep -oE '^\{"step":[0-9]*,("loss":[^,]*,"learning_rate":[^,]*,"grad_norm":[^,]*|"eval_loss":.*)' "$1/metrics.jsonl"; }
# equal N SHARES STEPS [ARGUMENT...]
equal() {
    local n=$1 shares=$2 steps=$3
    shift 3
    rm -rf "$tmp/one" "$tmp/many"
    expect 0 '' train_ranks 1 "$tmp/one" --set "parallel.shares=$shares" --set "train.steps=$steps" "$@" || return 1
    expect 0 '' train_ranks "$n" "$tmp/many" --set "parallel.shares=$shares" --set "train.steps=$steps" "$@" || return 1
    same_run "$tmp/one" "$tmp/many" "$steps" && steps_once "$tmp/many" "$steps" && diff <(numbers "$tmp/one") <(numbers "$tmp/many") && numbers "$tmp/many" | tail -n 1
}
check '2 ranks, f32, clipping' equal 2 2 4 --set memory.micro_batch=auto --set train.clip_norm=1
check '3 ranks, accumulation, uneven batch, bf16' equal 3 3 3 --set train.effective_batch=10 --set memory.micro_batch=2 --set memory.precision=bf16
check '2 ranks with 4 shares each, sgd' equal 2 8 3 --set memory.micro_batch=1 --set memory.optimizer=sgd
check '8 ranks, 5 samples: idle ranks' equal 8 8 2 --set train.effective_batch=5 --set memory.micro_batch=1
cat tests/golden/*.py | head -c 1000 >"$tmp/validation.txt"
check '2 ranks, nothing divided' equal 2 2 2 --set memory.micro_batch=auto --set parallel.shard=none
check '3 ranks, gradients in shards, bf16' equal 3 3 2 --set train.effective_batch=9 --set memory.micro_batch=3 --set memory.precision=bf16 --set parallel.shard=gradients
check '4 ranks, weights in shards, 8-bit Adam, evaluation' equal 4 4 2 --set train.effective_batch=8 --set memory.micro_batch=2 --set memory.precision=bf16 --set memory.optimizer=adamw-8bit \
    --set memory.recompute=all --set parallel.shard=weights --set train.eval_every=1 --set train.keep_best=true --set "data.validation=$tmp/validation.txt"
check '4 ranks, recompute, evaluation' equal 4 4 3 --set train.effective_batch=6 --set memory.micro_batch=1 --set memory.recompute=all \
    --set train.eval_every=2 --set "data.validation=$tmp/validation.txt"

# An epoch of 15 rows in steps of 6: the last has 3, and one of 4 ranks none.
short() {
    sed 's/steps: 10/epochs: 1/' "$tmp/tiny.yaml" >"$tmp/short.yaml"
    local own=(train "$tmp/short.yaml" --set "data.train=$tmp/validation.txt" --set train.effective_batch=6 --set memory.micro_batch=1)
    expect 0 '' "$binary" "${own[@]}" --set "train.out=$tmp/e1" --set parallel.shares=4 && expect 0 '' ranks 4 "$binary" "${own[@]}" --set "train.out=$tmp/e4" &&
        same_run "$tmp/e1" "$tmp/e4" 3 && diff <(numbers "$tmp/e1") <(numbers "$tmp/e4") && json "$tmp/e4/checkpoints/step-3/state.json" position
}
check '4 ranks, a short last step' short

# The losses and norms of PyTorch, over the whole batch of each step (losses.json, made by make_train.py).
pytorch() {
    expect 0 '' ranks 2 "$binary" train "$golden/run.yaml" --set "train.out=$tmp/pytorch" --set memory.micro_batch=auto || return 1
    paste <(sed -n 's/.*"loss": \([^,]*\),.*"grad_norm": \([^}]*\)}.*/\1 \2/p' "$golden/losses.json") <(sed -n 's/.*"loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2/p' "$tmp/pytorch/metrics.jsonl") |
        awk 'function off(a, b) { return a > b ? a / b - 1 : b / a - 1 }
             { n++; for (i = 1; i < 3; i++) if (off($i, $(i + 2)) > most) most = off($i, $(i + 2)) }
             END { printf "%d steps, at most %.1e off\n", n, most; exit !(n == 10 && most < 1e-5) }'
}
check '2 ranks: the losses and norms of PyTorch' pytorch

"$binary" data make "$tmp/masks" --images 10 --size 96x80 --masks 5 >/dev/null || exit 2
cat >"$tmp/sam.yaml" <<EOF
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/masks/*.tar", max_masks: 3, threads: 1}
train: {steps: 2, effective_batch: 5, learning_rate: 0.001, clip_norm: 1}
memory: {micro_batch: 1, precision: f32}
device: cpu
EOF
masks() {
    expect 0 '' "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/s1" --set parallel.shares=2 || return 1
    expect 0 '' ranks 2 "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/s2" || return 1
    same_run "$tmp/s1" "$tmp/s2" 2 && diff <(numbers "$tmp/s1") <(numbers "$tmp/s2") && numbers "$tmp/s2" | tail -n 1
}
check '2 ranks of sam-tiny, uneven masks' masks

started() {
    rm -rf "$tmp/own" "$tmp/one"
    expect 0 '2 ranks, 2 on this host, 2 shares' train_tiny "$tmp/own" --ranks 2 --set train.steps=2 --set memory.micro_batch=auto &&
        expect 0 '' train_tiny "$tmp/one" --set parallel.shares=2 --set train.steps=2 --set memory.micro_batch=auto && same_run "$tmp/one" "$tmp/own" 2 &&
        [ "$(grep -c '"ranks":2,"slowest":\[' "$tmp/own/metrics.jsonl")" = 2 ] && echo 'the same bits'
}
check 'train --ranks 2 starts them' started
planned() {
    rm -rf "$tmp/many"
    "$binary" plan "$tmp/tiny.yaml" --ranks 2 --set memory.micro_batch=auto --json >"$tmp/plan.json" && expect 0 '' train_ranks 2 "$tmp/many" --set train.steps=1 --set memory.micro_batch=auto &&
        [ "$(json "$tmp/plan.json" digest)" = "$(json "$tmp/many/plan.json" digest)" ] && json "$tmp/plan.json" digest
}
check 'plan --ranks 2 without ranks is their plan' planned
summary
