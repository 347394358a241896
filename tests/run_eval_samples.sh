#!/bin/bash
# run_eval_samples.sh: `train.eval_samples`: evaluations in training that answer held-out prompts.
#
#   bash tests/run_eval_samples.sh        after make; the variables are described in tests/run_lib.sh
# shellcheck disable=SC2015
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
chat=tests/golden/chat

head -n 5 $chat/chats.jsonl >"$tmp/first.jsonl"
sed -n '6,8p' $chat/chats.jsonl >"$tmp/second.jsonl"
cat >"$tmp/run.yaml" <<END
model: {path: $chat/model}
data: {format: conversations, train: $chat/chats.jsonl, validation: ["$tmp/first.jsonl", "$tmp/second.jsonl"], sequence: 128}
train: {steps: 4, effective_batch: 4, learning_rate: 0.01, eval_every: 2, save_every: 2, keep: 9, monitor_every: 0, out: "$tmp/unused"}
memory: {micro_batch: 2, precision: f32}
device: $DEVICE
END
# run OUT [ARGUMENT...]: trains into OUT.
run() {
    local out=$1 most=()
    shift
    [[ "$*" != *eval_samples* ]] || most=(--set train.eval_max_new=12)
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" "${most[@]}" --json --set "train.out=$out" $FLAGS "$@" >"$out.json" 2>"$out.err" || { cat "$out.err"; return 1; }
}
field() { "$tools/json_get" "$1" "$2"; }
losses() { grep -o '"step":[0-9]*,"\(eval_\)\?loss":[^,]*' "$1/metrics.jsonl"; }
# metrics OUT: without the times of steps and the bytes of the plan.
metrics() { sed 's/"seconds":.*"samples"/"samples"/; s/"arena_bytes":[0-9]*//' "$1/metrics.jsonl"; }

# The weights and losses of a run are the same with and without answers; the plan has every byte.
trains() {
    run "$tmp/plain" && run "$tmp/asked" --set train.eval_samples=4 || return 1
    cmp "$tmp/plain/model/model.safetensors" "$tmp/asked/model/model.safetensors" && diff <(losses "$tmp/plain") <(losses "$tmp/asked") || return 1
    [ "$(field "$tmp/asked.json" arena_bytes)" = "$(field "$tmp/asked.json" allocated_bytes)" ] && [ "$(field "$tmp/asked.json" allocations_in_steps)" = 0 ] || { cat "$tmp/asked.json"; return 1; }
    [ "$(ls "$tmp/asked/answers")" = "$(printf 'step-2.jsonl\nstep-4.jsonl')" ] && [ ! -e "$tmp/plain/answers" ] || { ls "$tmp/asked/answers"; return 1; }
    grep -q 'step 4: exact match .*, token F1 .*, BLEU .*, ROUGE-L .* over 7 prompts$' "$tmp/asked.err" && grep -q "over 4 prompts of $tmp/first.jsonl" "$tmp/asked.err" || { cat "$tmp/asked.err"; return 1; }
    grep '"eval_prompts":7' "$tmp/asked/metrics.jsonl" | tail -n 1
}
check "answers change no bit of training" trains

# Conversations with one answer: it is learned, and the scores say so.
learns() {
    local i
    for i in cat dog hat mat sun; do echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$i\"}, {\"role\": \"assistant\", \"content\": \"one two three four five\"}]}"; done >"$tmp/one.jsonl"
    run "$tmp/learned" --set "data.train=$tmp/one.jsonl" --set "data.validation=$tmp/one.jsonl" --set train.eval_samples=3 --set train.steps=60 --set train.eval_every=59 --set train.save_every=0 \
        --set train.eval_max_new=40 --set train.effective_batch=2 --set memory.micro_batch=1 || return 1
    [ "$(field "$tmp/learned.json" eval_exact_match) $(field "$tmp/learned.json" eval_prompts)" = '100 3' ] || { cat "$tmp/learned.json"; return 1; }
    grep '"step":60,"eval_loss".*"eval_exact_match":100,"eval_token_f1":100,"eval_bleu":100,"eval_rouge_l":100,"eval_prompts":3' "$tmp/learned/metrics.jsonl" || { grep eval_ "$tmp/learned/metrics.jsonl"; cat "$tmp/learned/answers/step-60.jsonl"; return 1; }
}
check "an answer that is learned" learns

# asked_of FILE: the prompts of answers, with their places and references.
asked_of() { sed 's/"answer": .*"reference"/"reference"/; s/"finish".*//' "$1"; }

# `eval` with the final model asks the same and has the same scores. (Weights of this model are
# saved in bf16 and trained in f32: answers are compared where they do not depend on the last bits.)
agrees() {
    local key
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --model "$tmp/asked/model" --samples 4 --max-new 12 -o "$tmp/answers.jsonl" $FLAGS >"$tmp/out" 2>&1 && diff <(asked_of "$tmp/answers.jsonl") <(asked_of "$tmp/asked/answers/step-4.jsonl") || return 1
    # shellcheck disable=SC2086
    "$binary" eval --data "$tmp/one.jsonl" --set memory.precision=f32 --set "device.kind=$DEVICE" --model "$tmp/learned/model" --samples 3 --json -o "$tmp/answers.jsonl" $FLAGS >"$tmp/eval.json" || return 1
    diff "$tmp/answers.jsonl" "$tmp/learned/answers/step-60.jsonl" || return 1
    for key in exact_match token_f1 bleu rouge_l; do [ "$(field "$tmp/eval.json" $key)" = 100 ] || { cat "$tmp/eval.json"; return 1; }; done
    for key in first second; do grep -q "\"step\": *4, *\"file\": *\"$tmp/$key.jsonl\", *\"prompts\": *[34], *\"exact_match\"" "$tmp/asked/metrics.jsonl" || { cat "$tmp/asked/metrics.jsonl"; return 1; }; done
    wc -l <"$tmp/asked/answers/step-4.jsonl"
}
check "the prompts and scores are those of eval" agrees

# `plan` shows the same bytes; the smallest budget runs, and one byte less is refused.
plans() {
    local least at_once
    # shellcheck disable=SC2086
    "$binary" plan "$tmp/run.yaml" --set train.eval_samples=4 --set train.eval_max_new=12 --json $FLAGS >"$tmp/plan.json" || return 1
    [ "$(field "$tmp/plan.json" arena_bytes)" = "$(field "$tmp/asked.json" arena_bytes)" ] || { field "$tmp/plan.json" arena_bytes; return 1; }
    # k and v of 2 layers: 2 heads of 8 x 4 bytes for each of 128 + 12 tokens, of each prompt at
    # once. A GPU's workspaces may leave room for fewer prompts.
    at_once=$(field "$tmp/plan.json" prompt_batch)
    [ "$DEVICE" != cpu ] || [ "$at_once" = 4 ] || { echo "$at_once prompts at once"; return 1; }
    [ "$(field "$tmp/plan.json" kv_cache_bytes)" = $((at_once * 2 * 2 * 2 * 8 * 4 * 140)) ] && [ "$(field "$tmp/plan.json" prompt_chunk)" = 128 ] || { cat "$tmp/plan.json"; return 1; }
    # shellcheck disable=SC2086
    "$binary" plan "$tmp/run.yaml" --set train.eval_samples=4 --set train.eval_max_new=12 $FLAGS | grep -E "evaluations answer $at_once prompts? at once, in chunks of 128 tokens, with a KV cache of" || return 1
    least=$(field "$tmp/plan.json" smallest_budget_bytes)
    run "$tmp/least" --set train.eval_samples=4 --memory "$least" && [ "$(field "$tmp/least.json" arena_bytes)" -le "$least" ] || return 1
    # shellcheck disable=SC2086
    expect 3 'does not fit' "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/refused" --set train.eval_samples=4 --set train.eval_max_new=12 --memory $((least - 1)) $FLAGS || return 1
    [ "$(field "$tmp/plan.json" kv_cache_bytes)" -gt $(($(field "$tmp/asked.json" arena_bytes) - $(field "$tmp/plain.json" arena_bytes))) ] || { echo "the cache shares no memory"; return 1; }
    echo "smallest budget $least; a KV cache of $(field "$tmp/plan.json" kv_cache_bytes) bytes adds $(($(field "$tmp/asked.json" arena_bytes) - $(field "$tmp/plain.json" arena_bytes)))"
}
check "the plan has the programs and the KV cache" plans

# One prompt at a time, or more than there are: the same answers, and the same bits of training;
# every byte is in the plan.
batches() {
    local n
    for n in 1 7; do
        run "$tmp/by$n" --set train.eval_samples=4 --set train.eval_batch=$n && diff -r "$tmp/asked/answers" "$tmp/by$n/answers" && cmp "$tmp/asked/model/model.safetensors" "$tmp/by$n/model/model.safetensors" || return 1
        [ "$(field "$tmp/by$n.json" arena_bytes)" = "$(field "$tmp/by$n.json" allocated_bytes)" ] && [ "$(field "$tmp/by$n.json" allocations_in_steps)" = 0 ] || { cat "$tmp/by$n.json"; return 1; }
        grep -q "\"prompt_batch\": $n," "$tmp/by$n/plan.json" || { grep prompt_ "$tmp/by$n/plan.json"; return 1; }
    done
    # In the smallest budget prompts are answered one by one, unless more take no more memory.
    [ "$(field "$tmp/least.json" arena_bytes)" -le "$(field "$tmp/by1.json" arena_bytes)" ] || return 1
    rm -rf "$tmp/by1/checkpoints/step-4" "$tmp/by1/model"
    run "$tmp/by1" --resume --set train.eval_samples=4 --set train.eval_batch=2 && diff -r "$tmp/asked/answers" "$tmp/by1/answers" && grep 'train.eval_batch changed, so the plan is searched again' "$tmp/by1.err"
}
check "several prompts at once" batches

# Memory techniques change no answer. PLIMSOLL_POISON: what is dead is NaN.
techniques() {
    PLIMSOLL_POISON=1 run "$tmp/offload" --set train.eval_samples=4 --set memory.recompute=all --set memory.offload=weights+activations+optimizer &&
        PLIMSOLL_POISON=1 run "$tmp/chunks" --set train.eval_samples=4 --set memory.head_chunks=8 &&
        PLIMSOLL_POISON=1 run "$tmp/fused" --set train.eval_samples=4 --set train.effective_batch=2 --set memory.fused_step=on && run "$tmp/small" --set train.effective_batch=2 --set train.eval_samples=4 || return 1
    diff -r "$tmp/asked/answers" "$tmp/offload/answers" && cmp "$tmp/asked/model/model.safetensors" "$tmp/offload/model/model.safetensors" && [ "$(grep -c . "$tmp/chunks/answers/step-4.jsonl")" = 7 ] &&
         diff -r "$tmp/small/answers" "$tmp/fused/answers" && cmp "$tmp/small/model/model.safetensors" "$tmp/fused/model/model.safetensors"
}
check "recompute, offload, chunks of the head, fused step" techniques

# With an adapter over weights of 4 bits, and rows that are not packed: the bits of training are
# those without answers.
adapters() {
    local out more=(--set adapter.target_modules=all-linear --set adapter.r=4 --set adapter.lora_dropout=0.1 --set memory.quantize=nf4)
    for out in packed padded; do
        run "$tmp/$out-plain" "${more[@]}" && PLIMSOLL_POISON=1 run "$tmp/$out-asked" "${more[@]}" --set train.eval_samples=2 || return 1
        cmp "$tmp/$out-plain/model/adapter_model.safetensors" "$tmp/$out-asked/model/adapter_model.safetensors" && diff <(losses "$tmp/$out-plain") <(losses "$tmp/$out-asked") || return 1
        more+=(--set data.packing=false)
    done
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --set memory.quantize=nf4 --model $chat/model --adapter "$tmp/packed-asked/model" --samples 2 --max-new 12 -o "$tmp/answers.jsonl" $FLAGS >"$tmp/out" || return 1
    diff "$tmp/answers.jsonl" "$tmp/packed-asked/answers/step-4.jsonl" && grep -c . "$tmp/answers.jsonl"
}
check "with LoRA, NF4 and padded rows" adapters

# A run that goes on from its first checkpoint has the metrics and answers of one that was not
# stopped.
resumes() {
    cp -r "$tmp/asked" "$tmp/again" && rm -rf "$tmp/again/checkpoints/step-4" "$tmp/again/model" "$tmp/again/answers/step-4.jsonl" || return 1
    run "$tmp/again" --resume --set train.eval_samples=4 && diff <(metrics "$tmp/asked") <(metrics "$tmp/again") && diff -r "$tmp/asked/answers" "$tmp/again/answers" || return 1
    cmp "$tmp/asked/model/model.safetensors" "$tmp/again/model/model.safetensors" || return 1
    # Another number of prompts keeps the plan; none needs another one.
    rm -rf "$tmp/again/checkpoints/step-4" "$tmp/again/model"
    run "$tmp/again" --resume --set train.eval_samples=1 && [ "$(grep -c . "$tmp/again/answers/step-4.jsonl")" = 2 ] && ! grep -q 'plan is searched again' "$tmp/again.err" || { cat "$tmp/again.err"; return 1; }
    rm -rf "$tmp/again/checkpoints/step-4" "$tmp/again/model"
    run "$tmp/again" --resume && grep 'train.eval_samples changed, so the plan is searched again' "$tmp/again.err"
}
check "a resumed run has the same metrics" resumes

# Killed while it writes an answer, a run resumes from the checkpoint before.
killed() {
    needs_preload || return
    # shellcheck disable=SC2086
    FAULT=kill:3 FAULT_PATH=$tmp/killed/answers/.step-4.jsonl.tmp LD_PRELOAD=$tools/fault.so expect 137 '' "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/killed" --set train.eval_samples=4 --set train.eval_max_new=12 $FLAGS || return 1
    [ ! -e "$tmp/killed/answers/step-4.jsonl" ] || return 1
    run "$tmp/killed" --resume --set train.eval_samples=4 && diff <(metrics "$tmp/asked") <(metrics "$tmp/killed") && diff -r "$tmp/asked/answers" "$tmp/killed/answers"
}
preload fault
check "killed while it answers" killed

# A prompt that is longer than a row is left out and counted.
long() {
    { printf '{"messages": [{"role": "user", "content": "%0600d"}, {"role": "assistant", "content": "no"}]}\n' 7; head -n 2 $chat/chats.jsonl; } >"$tmp/long.jsonl"
    run "$tmp/long" --set train.eval_samples=2 --set "data.validation=$tmp/long.jsonl" --set train.steps=1 --set data.too_long=drop && [ "$(grep -c . "$tmp/long/answers/step-1.jsonl")" = 2 ] || return 1
    grep '1 prompts have more than 128 tokens' "$tmp/long.err"
}
check "a prompt that is too long" long

# data.holdout: a run is that of two files, one with the samples that are held out and one with the
# others.
holds_out() {
    local lines
    run "$tmp/held" --set data.validation=null --set data.holdout=0.25 --set train.eval_samples=99 || return 1
    lines=$(sed 's/.*"line": *\([0-9]*\),.*/\1/' "$tmp/held/answers/step-4.jsonl" | tr '\n' ' ')
    [ "$(echo "$lines" | wc -w)" = 7 ] && grep -q 'data.holdout: 7 conversations' "$tmp/held.err" && grep -q 'data.train: 19 conversations' "$tmp/held.err" && [ ! -e "$tmp/held/validation.tokenized" ] || { echo "$lines"; cat "$tmp/held.err"; return 1; }
    awk -v lines=" $lines" -v a="$tmp/rest.jsonl" -v b="$tmp/part.jsonl" '{ print >(index(lines, " " NR " ") ? b : a) }' $chat/chats.jsonl
    run "$tmp/two" --set "data.train=$tmp/rest.jsonl" --set "data.validation=$tmp/part.jsonl" --set train.eval_samples=99 && cmp "$tmp/held/model/model.safetensors" "$tmp/two/model/model.safetensors" || return 1
    diff <(losses "$tmp/held") <(losses "$tmp/two") && diff <(grep -o '"prompt".*' "$tmp/held/answers/step-4.jsonl") <(grep -o '"prompt".*' "$tmp/two/answers/step-4.jsonl") || return 1
    # `eval` finds the same samples, and its loss is that of training.
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --set data.validation=null --set data.holdout=0.25 --model "$tmp/held/model" --max-new 12 --loss --json -o "$tmp/answers.jsonl" $FLAGS >"$tmp/eval.json" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    diff <(asked_of "$tmp/answers.jsonl") <(asked_of "$tmp/held/answers/step-4.jsonl") || return 1
    echo "$(field "$tmp/eval.json" loss) $(field "$tmp/held.json" eval_loss)" | awk '{ d = $1 - $2; exit !(d < 2e-2 && d > -2e-2) }' || { field "$tmp/eval.json" loss; return 1; }
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --set data.validation=null --set data.holdout=0.25 --set data.split_seed=1 --model "$tmp/held/model" --max-new 1 -o "$tmp/other.jsonl" $FLAGS >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    [ "$(sed 's/.*"line": *\([0-9]*\),.*/\1/' "$tmp/other.jsonl" | tr '\n' ' ')" != "$lines" ] || { echo "another seed holds out the same"; return 1; }
    echo "lines $lines"
}
check "data.holdout: conversations of data.train" holds_out
# One of 27 samples is malformed, and one of the 7 that are held out: what training accepts, `eval`
# of the same file accepts.
accepted() {
    { cat $chat/chats.jsonl; echo '{"messages": []}'; } >"$tmp/one_bad.jsonl"
    # shellcheck disable=SC2086
    expect 0 '1 of 7 samples cannot be used' "$binary" eval "$tmp/run.yaml" --set data.validation=null --set data.holdout=0.25 --set data.split_seed=2 --set "data.train=$tmp/one_bad.jsonl" --model $chat/model --max-new 1 $FLAGS
}
check "data.max_bad is a share of all samples, also where some are held out" accepted
reported() { grep -q 'Answers after step 4' "$tmp/held/report.html" && [ "$(grep -c "class='answer'" "$tmp/held/report.html")" = 7 ]; }
check "the report shows the answers of the last evaluation" reported

refused() {
    local pattern=$1
    shift
    # shellcheck disable=SC2086
    expect 2 "$pattern" "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/refused" --set train.eval_samples=2 $FLAGS "$@" && [ ! -e "$tmp/refused" ]
}
check "refused: nothing is held out" refused 'there is no validation data' --set data.validation=null --set train.eval_every=0
check "refused: too little is held out" refused 'data.holdout is 0.01 of' --set data.validation=null --set data.holdout=0.01
check "refused: held out and validation files" refused 'both data.holdout and data.validation' --set data.holdout=0.5
check "refused: no conversations" refused 'data.format is bytes, expected conversations' --set data.format=bytes
no_prompts() { echo '{"text": "abc"}' >"$tmp/texts.jsonl"; refused 'train.eval_samples: .*nothing to ask' --set "data.validation=$tmp/texts.jsonl"; }
check "refused: no sample has a prompt" no_prompts

summary
