#!/bin/bash
# shellcheck disable=SC2015
# run_ranks.sh: N ranks under mpirun against one process with N shares: weights, optimizer state and
# checkpoints have the same bytes, and losses and norms the same digits.
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
    set -- --set memory.head_chunks=1 "$@" # the planner may choose another number for other ranks
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
check '4 ranks as 2 hosts of 2: a copy of the weights on each, evaluation' equal 4 4 2 --set train.effective_batch=8 --set memory.micro_batch=2 --set memory.precision=bf16 --set memory.optimizer=adamw-8bit \
    --set parallel.shard=HYBRID_SHARD --set parallel.per_host=2 --set train.eval_every=1 --set train.keep_best=true --set "data.validation=$tmp/validation.txt"
check '4 ranks as 2 hosts of 2: weights divided among all, evaluation' equal 4 4 2 --set train.effective_batch=8 --set memory.micro_batch=2 --set memory.precision=bf16 \
    --set parallel.shard=weights --set parallel.group=all --set parallel.per_host=2 --set train.eval_every=1 --set train.keep_best=true --set "data.validation=$tmp/validation.txt"
check '6 ranks as 3 hosts of 2, optimizer state, clipping' equal 6 6 2 --set train.effective_batch=11 --set memory.micro_batch=1 --set train.clip_norm=1 --set parallel.shard=optimizer --set parallel.group=host --set parallel.per_host=2
check '4 ranks, recompute, evaluation' equal 4 4 3 --set train.effective_batch=6 --set memory.micro_batch=1 --set memory.recompute=all \
    --set train.eval_every=2 --set "data.validation=$tmp/validation.txt"

# gradients and weights of auto's choices: the run names the keys to set for the same bits.
named_keys() {
    local keys with=(--set train.effective_batch=8 --set memory.micro_batch=auto --set train.steps=2 --set memory.recompute=none --set memory.offload=none)
    rm -rf "$tmp/g" "$tmp/w"
    expect 0 'the order of sums depends on ' train_ranks 2 "$tmp/g" "${with[@]}" --set parallel.shard=gradients --memory 13MiB || return 1
    keys=$(sed -n 's/.*the order of sums depends on \(.*\), which the planner chose.*/\1/p' "$tmp/err" | sed 's/: /=/g; s/, / --set /g')
    # A list of words.
    # shellcheck disable=SC2086
    expect 0 '' train_ranks 2 "$tmp/w" "${with[@]}" --set parallel.shard=weights --set $keys || return 1
    ! grep -q 'the order of sums' "$tmp/err" && same_run "$tmp/g" "$tmp/w" 2 && echo "$keys"
}
check '2 ranks: weights have the bits of gradients, with the keys that the run names' named_keys

# An epoch of 15 rows in steps of 6: the last has 3, and one of 4 ranks none.
short() {
    sed 's/steps: 10/epochs: 1/' "$tmp/tiny.yaml" >"$tmp/short.yaml"
    local own=(train "$tmp/short.yaml" --set "data.train=$tmp/validation.txt" --set train.effective_batch=6 --set memory.micro_batch=1)
    expect 0 '' "$binary" "${own[@]}" --set "train.out=$tmp/e1" --set parallel.shares=4 && expect 0 '' ranks 4 "$binary" "${own[@]}" --set "train.out=$tmp/e4" &&
        same_run "$tmp/e1" "$tmp/e4" 3 && diff <(numbers "$tmp/e1") <(numbers "$tmp/e4") && json "$tmp/e4/checkpoints/step-3/state.json" position
}
check '4 ranks, a short last step' short

# The losses and norms of PyTorch's own data parallel, two processes (losses_ddp.json, made by
# make_ddp.py).
pytorch() {
    expect 0 '' ranks 2 "$binary" train "$golden/run.yaml" --set train.steps=20 --set "train.out=$tmp/pytorch" --set memory.micro_batch=auto || return 1
    paste <(sed -n 's/.*"loss": \([^,]*\),.*"grad_norm": \([^}]*\)}.*/\1 \2/p' "$golden/losses_ddp.json") <(sed -n 's/.*"loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2/p' "$tmp/pytorch/metrics.jsonl") |
        awk 'function off(a, b) { return a > b ? a / b - 1 : b / a - 1 }
             { n++; for (i = 1; i < 3; i++) if (off($i, $(i + 2)) > most) most = off($i, $(i + 2)) }
             END { printf "%d steps, at most %.1e off\n", n, most; exit !(n == 20 && most < 1e-5) }'
}
check "2 ranks: the losses and norms of PyTorch's data parallel" pytorch

"$binary" data make "$tmp/masks" --images 10 --size 96x80 --masks 5 >/dev/null || exit 2
cat >"$tmp/sam.yaml" <<EOF
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/masks/*.tar", max_masks: 3, threads: 1}
train: {steps: 2, effective_batch: 5, learning_rate: 0.001, clip_norm: 1}
memory: {micro_batch: 1, precision: f32}
device: cpu
EOF
masks() {
    rm -rf "$tmp/s1" "$tmp/s2"
    expect 0 '' "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/s1" --set "parallel.shares=$1" "${@:2}" || return 1
    expect 0 '' ranks "$1" "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/s2" "${@:2}" || return 1
    same_run "$tmp/s1" "$tmp/s2" 2 && diff <(numbers "$tmp/s1") <(numbers "$tmp/s2") && numbers "$tmp/s2" | tail -n 1
}
check '2 ranks of sam-tiny, uneven masks' masks 2
# An evaluation of 10 images is divided among 3 ranks; the table by prompt and category has the same
# bytes.
scored() { masks 3 --set "data.validation=$tmp/masks/*.tar" --set train.eval_every=1 --set data.min_iou=0.5 && same "$tmp/s1/eval.csv" "$tmp/s2/eval.csv" && same "$tmp/s1/eval.txt" "$tmp/s2/eval.txt" && sed -n 2p "$tmp/s2/eval.csv"; }
check '3 ranks score masks: the table of one' scored

# Rank 0 answers prompts; with weights in shards all ranks do, and rank 0 writes. The answers are
# those of one process.
chat_run
answers() {
    rm -rf "$tmp/c1" "$tmp/c2"
    expect 0 '' "$binary" train "$tmp/chat.yaml" --set "train.out=$tmp/c1" --set parallel.shares=2 && expect 0 '' ranks 2 "$binary" train "$tmp/chat.yaml" --set "train.out=$tmp/c2" --set "parallel.shard=$1" &&
        same "$tmp/c1/answers/step-2.jsonl" "$tmp/c2/answers/step-2.jsonl" && [ "$(ls "$tmp/c2/answers")" = step-2.jsonl ] && grep -o '"eval_prompts":[0-9]*' "$tmp/c2/metrics.jsonl"
}
check '2 ranks answer prompts, optimizer in shards' answers optimizer
check '2 ranks answer prompts, weights in shards' answers weights

# One of 10 images is broken, 10 %. It is 20 % of the 5 that its rank reads: the share of all ranks
# counts.
broken() {
    cp -r "$tmp/masks" "$tmp/broken"
    local tar at
    for tar in "$tmp"/broken/*.tar; do break; done
    at=$(grep -abo 'sa_[0-9]*\.jpg' "$tar" | sed -n 8p | cut -d : -f 1)
    head -c 300 /dev/zero | dd of="$tar" bs=1 seek=$((at + 512)) conv=notrunc 2>/dev/null
    local own=(train "$tmp/sam.yaml" --set "data.train=$tmp/broken/*.tar" --set train.effective_batch=10 --set train.steps=6 --set data.shuffle=false)
    expect 0 '' "$binary" "${own[@]}" --set data.max_bad=0.1 --set parallel.shares=2 --set "train.out=$tmp/b1" && expect 0 '' ranks 2 "$binary" "${own[@]}" --set data.max_bad=0.1 --set "train.out=$tmp/b2" &&
        same_run "$tmp/b1" "$tmp/b2" 6 && expect 1 'of [0-9]*.*data.max_bad is 0.09' ranks 2 "$binary" "${own[@]}" --set data.max_bad=0.09 --set "train.out=$tmp/b3" &&
        grep -o '[0-9]* of [0-9]* samples are broken' "$tmp/err" | head -n 1
}
check '2 ranks: data.max_bad is of all' broken

# Every rank: the arena is the plan's, nothing is allocated in steps 3 to 50, and the process does
# not grow.
memory() {
    rm -rf "$tmp/many"
    "$binary" plan "$tmp/tiny.yaml" --ranks 3 --set memory.micro_batch=1 --json >"$tmp/plan.json" && expect 0 '' train_ranks 3 "$tmp/many" --set train.steps=50 --set memory.micro_batch=1 --json || return 1
    awk -v plan="$(json "$tmp/plan.json" arena_bytes)" -F '[:,]' '
        /"allocated_bytes"/ { n++; if ($2 + 0 != plan) { print "allocated " $2 ", planned " plan; bad = 1 } }
        /"allocations_in_steps"/ { if ($2 + 0) { print "allocations in steps: " $2; bad = 1 } }
        /"anonymous_growth_bytes"/ { grown = grown " " $2 + 0; if ($2 > 65536) bad = 1 }
        END { print plan " bytes on each rank, grown by" grown; exit bad || n != 4 }' "$tmp/out"
}
check '3 ranks: plan = run, and no allocation, on each' memory

# Rank 1 gets another run file and other options: it takes the configuration of rank 0.
configured() {
    cat >"$tmp/own.sh" <<EOT
#!/bin/bash
if [ "\$OMPI_COMM_WORLD_RANK" = 1 ]; then exec "$binary" train "$tmp/none.yaml" --set train.learning_rate=0.5; fi
exec "$binary" "\$@"
EOT
    chmod +x "$tmp/own.sh"
    rm -rf "$tmp/one" "$tmp/many"
    expect 0 '' train_ranks 2 "$tmp/one" --set train.steps=2 --set memory.micro_batch=auto && expect 0 '' ranks 2 "$tmp/own.sh" train "$tmp/tiny.yaml" --set "train.out=$tmp/many" --set train.steps=2 --set memory.micro_batch=auto &&
        same_run "$tmp/one" "$tmp/many" 2 && echo 'the same bits'
}
check "rank 0's configuration counts" configured

started() {
    rm -rf "$tmp/own" "$tmp/one"
    expect 0 '2 ranks, 2 on this host, 2 shares' train_tiny "$tmp/own" --ranks 2 --set train.steps=2 --set memory.micro_batch=auto &&
        expect 0 '' train_tiny "$tmp/one" --set parallel.shares=2 --set train.steps=2 --set memory.micro_batch=auto && same_run "$tmp/one" "$tmp/own" 2 &&
        [ "$(grep -c '"ranks":2,"slowest":\[' "$tmp/own/metrics.jsonl")" = 2 ] && grep -q '>Ranks</dt><dd>2<' "$tmp/own/report.html" && grep -q 'Each of 2 ranks has this memory, and sends' "$tmp/own/report.html" && echo 'the same bits'
}
check 'train --ranks 2 starts them' started
planned() {
    rm -rf "$tmp/many"
    "$binary" plan "$tmp/tiny.yaml" --ranks 2 --set memory.micro_batch=auto --json >"$tmp/plan.json" && expect 0 '' train_ranks 2 "$tmp/many" --set train.steps=1 --set memory.micro_batch=auto &&
        [ "$(json "$tmp/plan.json" digest)" = "$(json "$tmp/many/plan.json" digest)" ] && json "$tmp/plan.json" digest
}
check 'plan --ranks 2 without ranks is their plan' planned
summary
