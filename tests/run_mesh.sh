#!/bin/bash
# shellcheck disable=SC2015
# run_mesh.sh: ranks that compute parts of the same products (parallel.tensor) under mpirun, against
# one process with as many parts: weights, optimizer state and checkpoints have the same bytes, and
# losses and norms the same digits. Checkpoints go on with any mesh.
#
#   bash tests/run_mesh.sh       from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/ranks_lib.sh
. tests/ranks_lib.sh
cat tests/golden/*.py | head -c 600 >"$tmp/validation.txt"
own=(--set memory.head_chunks=1 --set memory.micro_batch=1 --set train.effective_batch=4 --set train.clip_norm=1 --set train.save_every=1 --set train.keep=9)

numbers() { grep -oE '^\{"step":[0-9]*,("loss":[^,]*,"learning_rate":[^,]*,"grad_norm":[^,]*|"eval_loss":.*)' "$1/metrics.jsonl"; }
# equal DATA TENSOR STEPS [ARGUMENT...]
equal() {
    local data=$1 tensor=$2 steps=$3
    shift 3
    rm -rf "$tmp/one" "$tmp/many"
    set -- "${own[@]}" --set "train.steps=$steps" --set "parallel.shares=$data" --set "parallel.tensor_shares=$tensor" "$@"
    expect 0 '' train_ranks 1 "$tmp/one" "$@" || return 1
    expect 0 '' train_ranks $((data * tensor)) "$tmp/many" "$@" --set "parallel.tensor=$tensor" || return 1
    same_run "$tmp/one" "$tmp/many" "$steps" && diff <(numbers "$tmp/one") <(numbers "$tmp/many") && numbers "$tmp/many" | tail -n 1
}
check '2 ranks, f32, evaluation' equal 1 2 2 --set memory.precision=f32 --set train.eval_every=1 --set "data.validation=$tmp/validation.txt"
check '2 x 2 ranks, bf16, weights in shards, evaluation' equal 2 2 2 --set memory.precision=bf16 --set memory.recompute=all --set memory.micro_batch=2 --set parallel.shard=weights \
    --set train.eval_every=1 --set train.keep_best=true --set "data.validation=$tmp/validation.txt"
check '4 ranks: heads of keys are repeated' equal 1 4 2 --set memory.precision=f32 --set memory.offload=optimizer
adapter() {
    local with=("${own[@]}" --set train.steps=2 --set parallel.tensor_shares=2 --set memory.precision=bf16 --set adapter.target_modules=all-linear)
    expect 0 '' train_ranks 1 "$tmp/a1" "${with[@]}" && expect 0 '' train_ranks 2 "$tmp/a2" "${with[@]}" --set parallel.tensor=2 &&
        cmp "$tmp/a1/model/adapter_model.safetensors" "$tmp/a2/model/adapter_model.safetensors" && cmp "$tmp/a1/checkpoints/step-2/state.safetensors" "$tmp/a2/checkpoints/step-2/state.safetensors" && echo 'the same files'
}
check '2 ranks, an adapter' adapter

# Conversations: a head in chunks computes the rows with labels, each rank its part of the
# vocabulary, and the logits of an answer are gathered: the answers are those of one process.
chat_run
chunked=(--set memory.head_chunks=4 --set parallel.tensor_shares=2)
answers() {
    expect 0 '' "$binary" train "$tmp/chat.yaml" "${chunked[@]}" --set "train.out=$tmp/c1" && expect 0 '' ranks 2 "$binary" train "$tmp/chat.yaml" "${chunked[@]}" --set "train.out=$tmp/c2" --set parallel.tensor=2 &&
        same_run "$tmp/c1" "$tmp/c2" 2 && same "$tmp/c1/answers/step-2.jsonl" "$tmp/c2/answers/step-2.jsonl" && grep -o '"eval_prompts":[0-9]*' "$tmp/c2/metrics.jsonl"
}
check '2 ranks answer prompts' answers

# A run goes on with another mesh, and with the same parts and shares every bit is that of one that
# never stopped.
continued() {
    local keep=("${own[@]}" --set parallel.shard=optimizer --set parallel.shares=2 --set parallel.tensor_shares=2 --set memory.precision=f32)
    rm -rf "$tmp/whole" "$tmp/run"
    expect 0 '' train_ranks 1 "$tmp/whole" "${keep[@]}" --set train.steps=4 &&
        expect 0 '4 ranks, 4 on this host, 2 shares of a step.s batch, products in 2 parts on 2 ranks each' train_ranks 4 "$tmp/run" "${keep[@]}" --set parallel.tensor=2 --set train.steps=1 &&
        expect 0 'resuming after step 1' train_ranks 2 "$tmp/run" "${keep[@]}" --set parallel.tensor=2 --set train.steps=2 --resume &&
        expect 0 'resuming after step 2' train_ranks 2 "$tmp/run" "${keep[@]}" --set train.steps=3 --resume &&
        expect 0 'resuming after step 3' train_ranks 1 "$tmp/run" "${keep[@]}" --set train.steps=4 --resume &&
        same_run "$tmp/whole" "$tmp/run" 4 && echo '2 x 2, 1 x 2, 2 x 1 and 1 rank: the same bits'
}
check 'a run goes on with another mesh' continued
other() {
    expect 0 'resume: parallel.tensor_shares changed' train_ranks 3 "$tmp/run" "${own[@]}" --set parallel.shard=optimizer --set parallel.tensor_shares=1 --set train.steps=5 --resume && steps_once "$tmp/run" 5
}
check '3 ranks without parts: the same samples' other

# auto: the fastest that fits; its smallest plan is that of all numbers; a run has the bits of one
# that was given the number, and keeps it when it is resumed.
free=(--set memory.micro_batch=auto --set parallel.shard=none --set memory.recompute=none --set memory.offload=none)
time_of() { "$binary" plan "$tmp/tiny.yaml" --ranks 4 "${free[@]}" --json "$@" >"$tmp/plan.json" 2>"$tmp/err"; json "$tmp/plan.json" "$field"; }
fastest() {
    local n chosen
    field=predicted_step_seconds
    chosen=$(time_of --set parallel.tensor=auto "$@") || return 1
    for n in 1 2 4; do
        expect 0 '' "$binary" plan "$tmp/tiny.yaml" --ranks 4 "${free[@]}" "$@" --set "parallel.tensor=$n" || continue
        awk -v a="$chosen" -v b="$(time_of --set "parallel.tensor=$n" "$@")" 'BEGIN { exit !(a <= b) }' || { echo "auto takes $chosen s, $n is faster"; return 1; }
    done
    echo "$chosen s"
}
check 'parallel.tensor auto: the fastest' fastest
check 'parallel.tensor auto: the fastest within a budget' fastest --memory 8MiB
least() {
    local n of
    expect 3 '' "$binary" plan "$tmp/tiny.yaml" --ranks 4 "${free[@]}" --memory 1MiB --set parallel.tensor=auto || return 1
    field=smallest_budget_bytes
    of=$(time_of --memory 1MiB --set parallel.tensor=auto)
    for n in 1 2 4; do [ "$(time_of --memory 1MiB --set "parallel.tensor=$n")" -ge "$of" ] || return 1; done
    echo "$of bytes"
}
check 'parallel.tensor auto: the smallest budget of all' least
chosen() {
    local with=("${own[@]}" --memory 10MiB --set memory.recompute=none --set parallel.shard=none --set memory.offload=none)
    expect 0 'products in 2 parts on 2 ranks' train_ranks 2 "$tmp/auto" "${with[@]}" --set parallel.tensor=auto --set train.steps=1 &&
        expect 0 'resuming after step 1' train_ranks 2 "$tmp/auto" "${with[@]}" --set parallel.tensor=auto --set train.steps=2 --resume && ! grep -q 'tensor.* changed' "$tmp/err" &&
        expect 0 '' train_ranks 2 "$tmp/given" "${with[@]}" --set parallel.tensor=2 --set train.steps=2 && same_run "$tmp/auto" "$tmp/given" 2 && grep -h '^  *tensor:' "$tmp/auto/config.yaml"
}
check 'parallel.tensor auto: a run' chosen

check '3 ranks are no groups of 2' expect 2 'parallel.tensor is 2, which does not divide the 3 ranks' "$binary" plan "$tmp/tiny.yaml" --ranks 3 --set parallel.tensor=2
check 'heads that cannot be divided' expect 2 'no block of the model can be divided into 5 parts' "$binary" plan "$tmp/tiny.yaml" --ranks 5 --set parallel.tensor=5
summary
