#!/bin/bash
# run_conversations.sh: `data.format: conversations`, from files to a trained model.
#
#   bash tests/run_conversations.sh        after make; the variables are described in tests/run_lib.sh
#
#   data     inspect, tokenize, init; what is refused
#   train    rows, resume, splits, the token store
# shellcheck disable=SC2015
cd "$(dirname "$0")/.." || exit 2
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
chat=tests/golden/chat
model=$chat/model

cp "$chat/chats.jsonl" "$tmp/chats.jsonl"
cat >"$tmp/run.yaml" <<END
model: {path: $model}
data: {format: conversations, train: "$tmp/chats.jsonl", sequence: 128}
train: {steps: 6, effective_batch: 4, learning_rate: 0.01, out: "$tmp/unused"}
memory: {micro_batch: 4, precision: f32}
device: $DEVICE
END
# run OUT [ARGUMENT...]: trains into OUT.
run() {
    local out=$1
    shift
    rm -rf "$out"
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set "train.out=$out" $FLAGS "$@"
}
# refused PATTERN [ARGUMENT...]: `train` ends with 2, says it, and leaves no folder.
refused() {
    local pattern=$1
    shift
    rm -rf "$tmp/refused"
    expect 2 "$pattern" "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/refused" "$@" || return 1
    [ ! -e "$tmp/refused" ] || { echo "a run folder was left"; return 1; }
}
losses() { sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }

# --- data ---------------------------------------------------------------------------------------

inspects() {
    "$binary" data inspect "$tmp/chats.jsonl" --model $model --set data.sequence=128 --samples 1 >"$tmp/out" || return 1
    grep -q '^samples     26, OpenAI messages' "$tmp/out" && grep -q '^rows        [0-9]* of 128 tokens, 9[5-9]' "$tmp/out" || { cat "$tmp/out"; return 1; }
    grep -A 1 '^<|im_start|>assistant' "$tmp/out" | tr '\n' ' ' | grep -q '{+[A-Z].*<|im_end|>' || { cat "$tmp/out"; return 1; }
    grep '^rows' "$tmp/out"
}
# Labels by {% generation %} end before the line break that follows the end of the turn.
inspects_marked() {
    "$binary" data inspect "$tmp/chats.jsonl" --model $model --set data.template=$chat/generation.jinja --samples 1 >"$tmp/out" || return 1
    grep -q '^{+.*<|im_end|>+}$' "$tmp/out" || { cat "$tmp/out"; return 1; }
}
# Variables of the template: those of the run, those of a conversation before them, and words that
# are none.
variables() {
    local text=tests/golden/templates/modes.jinja off='data.chat_template_kwargs={enable_thinking: false}'
    local show=("$binary" data inspect "$tmp/one.jsonl" --model $model --set data.template=$text --samples 1)
    head -n 1 "$chat/chats.jsonl" >"$tmp/one.jsonl"
    "${show[@]}" >"$tmp/out" && grep -q '^Mode: /think' "$tmp/out" || { cat "$tmp/out"; return 1; }
    "${show[@]}" --set "$off" >"$tmp/out" && grep -q '^Mode: /plain' "$tmp/out" && grep -q '^<think>' "$tmp/out" || { cat "$tmp/out"; return 1; }
    sed 's/}$/, "chat_template_kwargs": {"enable_thinking": true}}/' "$tmp/one.jsonl" >"$tmp/own.jsonl" && mv "$tmp/own.jsonl" "$tmp/one.jsonl"
    "${show[@]}" --set "$off" >"$tmp/out" && grep -q '^Mode: /think' "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 2 'chat_template_kwargs: .*modes.jinja has no variable thinking: it would have no effect' "${show[@]}" --set 'data.chat_template_kwargs={thinking: true}' &&
        expect 2 'chat_template_kwargs: messages is decided by the conversation' "${show[@]}" --set 'data.chat_template_kwargs={messages: []}' &&
        expect 2 'found the string "x", expected a map' "${show[@]}" --set data.chat_template_kwargs=x
}
inspects_without_model() { "$binary" data inspect "$tmp/chats.jsonl" | grep 'turns .* at most 7'; }
# The files of every format have the messages of the same conversation.
formats() {
    printf '%s\n' '[{"conversations": [{"from": "human", "value": "cat?"}, {"from": "gpt", "value": "Mat."}]},' '{"instruction": "cat?", "output": "Mat."}]' >"$tmp/list.json"
    printf '%s\n' '{"messages": [{"role": "user", "content": "cat?"}, {"role": "assistant", "content": [{"type": "text", "text": "Mat."}]}]}' \
        '{"prompt": [{"role": "user", "content": "cat?"}], "completion": [{"role": "assistant", "content": "Mat."}]}' >"$tmp/lines.jsonl"
    "$binary" data inspect "$tmp/list.json" "$tmp/lines.jsonl" --model $model --samples 2 >"$tmp/out" || return 1
    [ "$(grep -c 'user, assistant; 18 tokens, 5 with labels' "$tmp/out")" = 2 ] && grep -q '^usable      4' "$tmp/out" && grep '^tokens      72;' "$tmp/out" || { cat "$tmp/out"; return 1; }
}
tokenizes() {
    "$binary" data tokenize "$tmp/run.yaml" -o "$tmp/store" >"$tmp/out" || return 1
    [ -f "$tmp/store/train.tokenized" ] || return 1
    OMP_NUM_THREADS=1 "$binary" data tokenize "$tmp/run.yaml" -o "$tmp/store1" >/dev/null && same "$tmp/store/train.tokenized" "$tmp/store1/train.tokenized" && tail -n 1 "$tmp/out"
}
inits() {
    "$binary" init --model $model --data "$tmp/chats.jsonl" --out "$tmp/init" >"$tmp/init.yaml" || return 1
    # shellcheck disable=SC2086
    "$binary" train "$tmp/init.yaml" --set train.epochs=1 --set "device.kind=$DEVICE" $FLAGS >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    grep -q 'evaluation loss' "$tmp/err" && grep -q '^  format: conversations' "$tmp/init.yaml" && grep -E '^  holdout: [0-9.]+ +# share of the conversations held out for validation: [0-9]+ of' "$tmp/init.yaml"
}
# Plain text, from a file to a model; the rows that init holds out are evaluated, and the ids are
# those of a .npy of the same text.
plain_text() {
    for i in 1 2 3 4 5 6 7 8; do sed -n "s/.*\"content\": \"\([^\"]*\)\".*/\1/p" "$chat/chats.jsonl"; done >"$tmp/book.txt"
    "$binary" init --model $model --data "$tmp/book.txt" --out "$tmp/text" >"$tmp/text.yaml" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    grep -q '^  format: text' "$tmp/text.yaml" && grep -q '^  holdout: [0-9.]* *# share of the rows held out' "$tmp/text.yaml" || { cat "$tmp/text.yaml"; return 1; }
    # shellcheck disable=SC2086
    "$binary" train "$tmp/text.yaml" --set train.epochs=1 --set train.effective_batch=16 --set data.sequence=64 --set "device.kind=$DEVICE" $FLAGS >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    grep -q 'data.train: 1 text in [1-9][0-9]* rows of 64 tokens, \(9[0-9]\|100\)' "$tmp/err" && grep -q 'evaluation loss' "$tmp/err" && ! grep -q 'left out\|cut' "$tmp/err" || { cat "$tmp/err"; return 1; }
    "$binary" eval "$tmp/text.yaml" --model "$tmp/text/model" --set data.sequence=64 --set "device.kind=$DEVICE" >"$tmp/out" || return 1
    grep -q 'perplexity .* rows of 64' "$tmp/out" || { cat "$tmp/out"; return 1; }
    "$binary" data tokenize "$tmp/text.yaml" -o "$tmp/book.npy" >"$tmp/out" && [ ! -e "$tmp/book.npy.tokenized" ] || return 1
    expect 0 '' "$binary" plan "$tmp/run.yaml" --set data.format=tokens --set "data.train=$tmp/book.npy" && grep ': [0-9]* tokens of 1 samples' "$tmp/out" || grep tokens "$tmp/out"
}
long_texts() { # the median is no larger than the 95th percentile, and no token of a long text is lost
    awk 'BEGIN { for (k = 1; k < 3; k++) { printf "{\"text\": \""; for (i = 0; i < 300 * k; i++) printf "the cat sat "; print "\"}" } }' >"$tmp/docs.jsonl"
    "$binary" data inspect "$tmp/docs.jsonl" --model $model --set data.sequence=64 --samples 0 >"$tmp/out" && ! grep -q '^cut\|^too long' "$tmp/out" || { cat "$tmp/out"; return 1; }
    read -r all median p95 < <(sed -n 's/^tokens *\([0-9]*\); a sample has \([0-9]*\) (median), \([0-9]*\) (95 %).*/\1 \2 \3/p' "$tmp/out")
    [ "$median" -lt "$p95" ] && [ $((median + p95)) -eq "$all" ] || { cat "$tmp/out"; return 1; }
    run "$tmp/long" --set "data.train=$tmp/docs.jsonl" --set data.sequence=64 --set data.too_long=cut --set train.steps=1 --set train.effective_batch=2 --set memory.micro_batch=2 2>"$tmp/err" >/dev/null || { cat "$tmp/err"; return 1; }
    grep "2 texts are longer than data.sequence and cut: $((all - 128)) of $all tokens are left out; data.too_long: split keeps them" "$tmp/err" || { cat "$tmp/err"; return 1; }
}
# says_endless COMMAND...: warns about answers without an end token, with the remedy.
says_endless() { "$@" >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }; grep 'no answer of .* ends with an end token such as <|im_end|>, .* data.template .* chatml' "$tmp/out" || { cat "$tmp/out"; return 1; }; }
endless() {
    local open="{% for m in messages %}{{ m.role + ': ' }}{% generation %}{{ m.content + ' ' }}{% endgeneration %}{% endfor %}"
    printf '%s' "$open" >"$tmp/open.jinja"
    for command in "init --model $model --data $tmp/chats.jsonl --template $tmp/open.jinja" "data inspect $tmp/chats.jsonl --model $model --set data.template=$tmp/open.jinja" \
        "plan $tmp/run.yaml --set data.template=$tmp/open.jinja" "train $tmp/run.yaml --set data.template=$tmp/open.jinja --set train.steps=1 --set train.out=$tmp/endless"; do
        # shellcheck disable=SC2086
        says_endless "$binary" $command || return 1
    done
    "$binary" plan "$tmp/run.yaml" --set data.template=chatml >"$tmp/out" 2>&1 && ! grep 'end token' "$tmp/out"
}
inits_one() { # a single conversation is not split
    head -n 1 "$tmp/chats.jsonl" >"$tmp/one_chat.jsonl"
    "$binary" init --model $model --data "$tmp/one_chat.jsonl" --out "$tmp/init1" >"$tmp/init.yaml" && ! grep '^  holdout' "$tmp/init.yaml" && grep '^  # validation: ' "$tmp/init.yaml"
}
if part data; then
    check "inspect shows samples with labels" inspects
    check "inspect by {% generation %}" inspects_marked
    check "inspect without a tokenizer" inspects_without_model
    check "variables of the template" variables
    check "all formats" formats
    check "tokenize: the same bytes by one thread" tokenizes
    check "init writes a run that trains" inits
    check "init of one conversation holds out none" inits_one
    check "answers without an end token are said" endless
    check "plain text" plain_text
    check "long texts are split into rows" long_texts
    check "plain text as conversations" refused 'book.txt:1: expected JSON.*; for plain text set data.format: text' --set "data.train=$tmp/book.txt"
    check "JSON as plain text" refused 'docs.jsonl: it holds JSON; .* set data.format: conversations' --set "data.train=$tmp/docs.jsonl" --set data.format=text
fi

# Bad samples among good ones, in each case one.
bad() { # bad LINE PATTERN [ARGUMENT...]
    cp "$chat/chats.jsonl" "$tmp/bad.jsonl"
    printf '%s\n' "$1" >>"$tmp/bad.jsonl"
    local pattern=$2
    shift 2
    refused "1 of 27 samples cannot be used: 1 $pattern" --set "data.train=$tmp/bad.jsonl" --set data.max_bad=0 "$@"
}
tolerated() {
    { echo '{"messages": [}'; cat "$chat/chats.jsonl"; } >"$tmp/bad.jsonl"
    run "$tmp/tolerated" --set "data.train=$tmp/bad.jsonl" --set data.max_bad=0.05 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    grep '1 of 27 samples cannot be used' "$tmp/err"
}
file() { # file PATTERN: $tmp/file.jsonl is refused
    refused "$1" --set "data.train=$tmp/file.jsonl"
}
if part data; then
    check "a sample that is not JSON" bad '{"messages": x}' 'malformed JSON .*bad.jsonl:27: '
    check "invalid UTF-8" bad "$(printf '{"text": "\xff"}')" 'malformed JSON .*bad.jsonl:27: .*UTF-8'
    check "unknown keys" bad '{"a": 1}' 'keys of no known format .*its keys are a;'
    check "an unknown role" bad '{"messages": [{"role": "poet", "content": "x"}]}' 'unknown role .*turn 1 has the role "poet"'
    check "turns out of order" bad '{"messages": [{"role": "assistant", "content": "x"}]}' 'turns out of order'
    check "no answer" bad '{"messages": [{"role": "user", "content": "x"}]}' 'no answer'
    check "an image" bad '{"image": "a.png", "conversations": [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "x"}]}' 'images or videos, which this run does not read .*a.png'
    check "answers that the template changes later" bad '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>t</think>a"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]}' \
        'answers not found in the rendered text' --set data.template=$chat/thinking.jinja
    check "bad samples within data.max_bad" tolerated
    { printf '[' && sed '$!s/$/,/' "$chat/chats.jsonl" && printf ', {"a": 1}]'; } | tr '\n' ' ' >"$tmp/file.jsonl"
    check "a list on one line: the sample is numbered" refused '1 of 27 samples cannot be used: 1 keys of no known format .*file.jsonl:1 \(sample 27\): ' --set "data.train=$tmp/file.jsonl" --set data.max_bad=0
    : >"$tmp/file.jsonl"
    check "an empty file" file 'file.jsonl: the file is empty'
    head -c 3000 "$chat/chats.jsonl" >"$tmp/file.jsonl"
    check "a truncated file" file 'file.jsonl:[0-9]+: the object that begins here does not end'
    { printf '['; head -n 1 "$chat/chats.jsonl"; } >"$tmp/file.jsonl"
    check "a truncated list" file 'file.jsonl:2: the list of samples does not end'
    printf '{"text": "' >"$tmp/file.jsonl" && truncate -s 1G "$tmp/file.jsonl"
    check "1 GiB on one line" file 'file.jsonl:1: the object that begins here is longer than 64 MiB'
    rm -f "$tmp/file.jsonl"
    check "no file" file 'file.jsonl: no file has this name'
    mkdir -p "$tmp/plain" && cp $model/tokenizer.json "$tmp/plain"
    check "no template" refused 'chats.jsonl:1 is a conversation: .*chatml' --set "data.tokenizer=$tmp/plain"
    check "ids beyond the vocabulary" refused "chats.jsonl:1: its token [0-9]+ has the id [0-9]+, but the model's vocabulary has 61 ids" --set data.tokenizer=$model --set model.path=tests/golden/basic
    check "all samples too long" refused 'all 26 samples are longer than data.sequence, 4 tokens' --set data.sequence=4
    check "a preset has no tokenizer" refused 'there is no tokenizer: a preset has none' --set model.path=null --set model.preset=llama-tiny
fi

# --- training -----------------------------------------------------------------------------------

trains() {
    run "$tmp/a" >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    grep -q 'data.train: 26 conversations in [0-9]* rows of 128 tokens, 9[5-9]' "$tmp/err" || { cat "$tmp/err"; return 1; }
    [ -f "$tmp/a/train.tokenized" ] && steps_once "$tmp/a" 6 && no_debris "$tmp/a" || return 1
    awk 'NR == 1 { first = $1 } { last = $1 } END { print first " -> " last; exit !(last < first) }' <(losses "$tmp/a")
}
# A step over samples of the same tokens in other rows has the same loss: packed or padded, in one
# micro-batch or several. All conversations are in one step.
same_loss() { # same_loss NAME [ARGUMENT...]
    local name=$1
    shift
    run "$tmp/$name" --set train.steps=2 "$@" >/dev/null 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
}
packing() {
    local rows
    rows=$(sed -n 's/.*conversations in \([0-9]*\) rows.*/\1/p' "$tmp/err.rows")
    same_loss packed --set train.effective_batch="$rows" --set memory.micro_batch="$rows" && same_loss split --set train.effective_batch="$rows" --set memory.micro_batch=1 &&
        same_loss padded --set train.effective_batch=26 --set memory.micro_batch=26 --set data.packing=false || return 1
    paste <(losses "$tmp/packed") <(losses "$tmp/split") <(losses "$tmp/padded") |
        awk '{ for (i = 2; i <= 3; i++) if (($i - $1) ^ 2 > (1e-5 * $1) ^ 2) bad = 1; print } END { exit bad || NR != 2 }'
}
# Every step has all conversations but one: the losses of the same loop in PyTorch
# (tests/golden/check_chat.py).
like_torch() {
    local rows
    sed 25d "$chat/chats.jsonl" >"$tmp/torch.jsonl"
    rows=$("$binary" data tokenize "$tmp/run.yaml" --set "data.train=$tmp/torch.jsonl" --json | sed 's/.*"rows": *\([0-9]*\).*/\1/')
    run "$tmp/torch" --set "data.train=$tmp/torch.jsonl" --set train.steps=8 --set train.effective_batch="$rows" --set memory.micro_batch=3 --set train.learning_rate=0.003 >/dev/null 2>"$tmp/err" ||
        { cat "$tmp/err"; return 1; }
    paste <(losses "$tmp/torch") "$chat/torch_losses.txt" | awk '{ d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > worst) worst = d } END { print "largest relative difference " worst; exit NR != 8 || worst > 1e-4 }'
}
# Chunks of the LM head without labels are left out: the losses are those of the whole head.
chunks() {
    run "$tmp/whole" --set train.steps=3 --set memory.head_chunks=1 >/dev/null 2>"$tmp/err" && run "$tmp/chunks" --set train.steps=3 --set memory.head_chunks=16 >/dev/null 2>"$tmp/err" &&
        run "$tmp/both" --set train.steps=3 --set memory.head_chunks=5 --set memory.micro_batch=3 >/dev/null 2>"$tmp/err" &&
        run "$tmp/tokens" --set train.steps=3 --set memory.head_chunks=1 --set memory.token_chunks=7 --set memory.attention_chunks=2 --set memory.recompute=all >/dev/null 2>"$tmp/err" ||
        { cat "$tmp/err"; return 1; }
    paste <(losses "$tmp/whole") <(losses "$tmp/chunks") <(losses "$tmp/both") <(losses "$tmp/tokens") |
        awk '{ for (i = 2; i <= 4; i++) if (($i - $1) ^ 2 > (1e-6 * $1) ^ 2) bad = 1; print } END { exit bad || NR != 3 }'
}
resumes() {
    run "$tmp/b" --set train.steps=3 --set train.save_every=3 >/dev/null 2>&1 || return 1
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/b" --resume $FLAGS >/dev/null 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    same_run "$tmp/a" "$tmp/b" 6
}
train_on() {
    run "$tmp/last" --set train.steps=1 --set data.train_on=last >/dev/null 2>"$tmp/err" && run "$tmp/all" --set train.steps=1 --set data.train_on=all >/dev/null 2>>"$tmp/err" || { cat "$tmp/err"; return 1; }
    sed -n 's/.*filled; //p' "$tmp/err" | sort -u | awk 'END { exit NR != 2 }' && sed -n 's/.*filled; //p' "$tmp/err" | tr '\n' ' '
}
too_long() {
    run "$tmp/drop" --set train.steps=1 --set data.sequence=40 >/dev/null 2>"$tmp/err" && grep -q 'longer than data.sequence (40 tokens; the longest has [0-9]*) and left out' "$tmp/err" &&
        run "$tmp/cut" --set train.steps=1 --set data.sequence=40 --set data.too_long=cut >/dev/null 2>"$tmp/err" && grep -o '[0-9]* samples are longer than data.sequence and cut after the last answer' "$tmp/err" || { cat "$tmp/err"; return 1; }
}
evaluates() {
    head -n 5 "$chat/chats.jsonl" >"$tmp/val.jsonl"
    run "$tmp/eval" --set train.steps=2 --set "data.validation=$tmp/val.jsonl" >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    [ -f "$tmp/eval/validation.tokenized" ] && grep -o '"eval_loss":[^,]*,"eval_perplexity":[^,]*' "$tmp/eval/metrics.jsonl"
}
# A store that is up to date is used, and one that is not is rebuilt; a named one is an error.
stores() {
    cp "$chat/chats.jsonl" "$tmp/s.jsonl"
    "$binary" data tokenize "$tmp/run.yaml" --set "data.train=$tmp/s.jsonl" >/dev/null && [ -f "$tmp/s.jsonl.tokenized" ] || return 1
    run "$tmp/s" --set "data.train=$tmp/s.jsonl" --set train.steps=1 >/dev/null 2>&1 && [ ! -e "$tmp/s/train.tokenized" ] || { echo "the store beside the data is not used"; return 1; }
    sed -i '1s/kind/mild/' "$tmp/s.jsonl"
    run "$tmp/s" --set "data.train=$tmp/s.jsonl" --set train.steps=1 >/dev/null 2>"$tmp/err" && [ -e "$tmp/s/train.tokenized" ] && grep 's.jsonl.tokenized is stale: it was made from other data files' "$tmp/err"
}
named() { refused "$1" --set "data.store=$tmp/named" "${@:2}"; }
if part train; then
    check "train: the loss falls" trains
    cp "$tmp/err" "$tmp/err.rows" 2>/dev/null
    check "packed, padded and split: the same loss" packing
    check "the losses of PyTorch" like_torch
    check "LM head on the rows with labels" chunks
    check "resume is bit for bit" resumes
    check "data.train_on" train_on
    check "data.too_long" too_long
    check "evaluation" evaluates
    check "token stores" stores
    "$binary" data tokenize "$tmp/run.yaml" -o "$tmp/named" >/dev/null 2>&1
    check "a stale store that is named: template" named 'train.tokenized is stale: it was made from another chat template; make it with' --set data.template=$chat/generation.jinja
    "$binary" data tokenize "$tmp/run.yaml" --set data.template=tests/golden/templates/modes.jinja -o "$tmp/modes" >/dev/null 2>&1
    check "a stale store that is named: the template's variables" refused 'train.tokenized is stale: it was made from another chat template' \
        --set "data.store=$tmp/modes" --set data.template=tests/golden/templates/modes.jinja --set 'data.chat_template_kwargs={enable_thinking: false}'
    check "a stale store that is named: system" named 'stale: it was made from another system prompt' --set data.system=Hello
    truncate -s -9 "$tmp/named/train.tokenized"
    check "a cut store that is named" named 'train.tokenized: it has [0-9]+ bytes, its header says [0-9]+: it is cut'
    check "a named store that is not there" named 'there is no .*none/train.tokenized' --set "data.store=$tmp/none"
fi
summary
