#!/bin/bash
# run_generate.sh: `plimsoll generate`: the answers of transformers, the same answer in every budget
# and for every chunk of the prompt, the bytes of the KV cache, the seed of draws, text and chats, a
# task that was taught, and what is refused; `plimsoll eval` on conversations.
#
#   bash tests/run_generate.sh        from the repository's root, after make; see run_lib.sh
#
# tests/golden/generate.txt has answers of transformers in f32 (make_generate.py); test_sample.c
# compares the processing of logits.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

model=tests/golden/basic
long=$(seq -s, 1 40)
# shellcheck disable=SC2086
generate() { "$binary" generate --set "device.kind=$DEVICE" --set memory.precision=f32 $FLAGS "$@"; }
# field FILE KEY
field() { "$tools/json_get" "$1" "$2"; }

# --- answers of transformers ------------------------------------------------------------------

answers() {
    local folder adapter options prompt want got arguments n=0
    while read -r folder adapter options prompt want; do
        arguments=(--model "tests/golden/$folder" --ids "$prompt" --max-new 64)
        [ "$adapter" = - ] || arguments+=(--adapter "tests/golden/$adapter")
        [ "$options" = - ] || arguments+=("$options")
        got=$(generate "${arguments[@]}" 2>"$tmp/err") || { cat "$tmp/err"; return 1; }
        [ "$got" = "$want" ] || { echo "$folder $adapter, prompt $prompt:"; echo "  found    $got"; echo "  expected $want"; return 1; }
        n=$((n + 1))
    done <tests/golden/generate.txt
    [ "$n" -ge 12 ] || { echo "$n cases"; return 1; }
    echo "$n answers of up to 64 tokens"
}
check "ids of transformers" answers

eos() {
    local prompt want
    read -r prompt want < <(awk '{ n = split($5, x, ","); if (n < 64) print $4, $5 }' tests/golden/generate.txt | head -n 1)
    generate --model $model --ids "$prompt" --max-new 64 --json >"$tmp/eos.json" || return 1
    [ "$(field "$tmp/eos.json" finish)" = eos ] && [ "${want##*,}" = 2 ] || { cat "$tmp/eos.json"; return 1; }
    generate --model $model --ids "$prompt" --max-new 3 --json >"$tmp/eos.json" || return 1
    [ "$(field "$tmp/eos.json" finish)" = length ] || { cat "$tmp/eos.json"; return 1; }
    echo "the answer ends with token 2"
}
check "an answer ends with EOS" eos

# generation_config.json has the first word: here a list of EOS tokens, and a length.
folder() {
    local first got end
    cp -r $model "$tmp/folder" || return 1
    echo '{"eos_token_id": [], "max_new_tokens": 9}' >"$tmp/folder/generation_config.json"
    first=$(generate --model "$tmp/folder" --ids 5,6,7) || return 1
    [ "$(echo "$first" | tr ',' '\n' | wc -l)" = 9 ] || { echo "max_new_tokens 9: $first"; return 1; }
    end=$(echo "$first" | cut -d, -f4)
    echo "{\"eos_token_id\": [60, $end], \"max_new_tokens\": 9}" >"$tmp/folder/generation_config.json"
    got=$(generate --model "$tmp/folder" --ids 5,6,7) || return 1
    [ "$got" = "$(echo ",$first" | sed "s/\(,$end\)\(,.*\)*$/\1/; s/^,//")" ] || { echo "ends at $end: $got, and without the end $first"; return 1; }
    echo '{"eos_token_id": ["</s>"]}' >"$tmp/folder/generation_config.json"
    expect 2 'generation_config.json: eos_token_id' generate --model "$tmp/folder" --ids 5,6,7
}
check "generation_config.json" folder

# --- memory ------------------------------------------------------------------------------------

# Two caches for each of 2 layers: 2 heads of 6 for each token, in blocks of 256 bytes.
cache() {
    local tokens each
    for tokens in 41 64 1000; do
        generate --model $model --ids "$long" --context "$tokens" --max-new 1 --dry-run --json >"$tmp/plan.json" || return 1
        each=$((tokens * 2 * 6 * 4))
        [ "$(grep -c '"KV cache"' "$tmp/plan.json")" = 1 ] || return 1
        grep -q "\"KV cache\": $((4 * ((each + 255) / 256 * 256)))," "$tmp/plan.json" || { grep 'KV cache' "$tmp/plan.json"; return 1; }
    done
    generate --model $model --ids "$long" --context 64 --json >"$tmp/run.json" || return 1
    [ "$(field "$tmp/run.json" kv_cache_bytes)" = $((4 * ((64 * 48 + 255) / 256 * 256))) ] || { cat "$tmp/run.json"; return 1; }
    echo "2 layers x 2 x tokens x 2 heads x 6 x 4 bytes"
}
check "bytes of the KV cache" cache

# From the smallest budget up: chunks of the prompt grow, and weights come back from the offload
# file.
budgets() {
    local free least budget want
    want=$(generate --model $model --ids "$long" --max-new 24) || return 1
    generate --model $model --ids "$long" --max-new 24 --dry-run --json >"$tmp/plan.json" || return 1
    free=$(field "$tmp/plan.json" arena_bytes)
    least=$(field "$tmp/plan.json" smallest_budget_bytes)
    [ "$least" -lt "$free" ] || { echo "smallest $least, without a budget $free"; return 1; }
    for budget in "$least" $(((least + free) / 2)) "$free"; do
        [ "$(generate --model $model --ids "$long" --max-new 24 --memory "$budget")" = "$want" ] || { echo "another answer in $budget bytes"; return 1; }
    done
    expect 3 "the smallest plan needs $least bytes" generate --model $model --ids "$long" --max-new 24 --memory $((least - 1)) || return 1
    expect 3 "" generate --model $model --ids "$long" --max-new 24 --memory $((least - 1)) --json >/dev/null || return 1
    grep -q '"fits": false' "$tmp/out" || { cat "$tmp/out"; return 1; }
    echo "from $least to $free bytes"
}
check "the same answer in every budget that fits" budgets

chunks() {
    local want got n
    want=$(generate --model $model --ids "$long" --max-new 24 --chunk 40) || return 1
    for n in 1 2 7 13 39 64; do
        got=$(generate --model $model --ids "$long" --max-new 24 --chunk "$n") || return 1
        [ "$got" = "$want" ] || { echo "chunks of $n: $got, expected $want"; return 1; }
    done
    for n in 3 64; do
        got=$(generate --model tests/golden/mistral --ids "$long" --max-new 24 --chunk "$n") || return 1
        [ "$got" = "$(generate --model tests/golden/mistral --ids "$long" --max-new 24)" ] || { echo "sliding window, chunks of $n: $got"; return 1; }
    done
    echo "chunks of 1 to 64 tokens"
}
check "chunks of the prompt change nothing" chunks

forms() {
    local got
    echo '{"eos_token_id": []}' >"$tmp/folder/generation_config.json" # no token ends an answer
    for got in memory.precision=bf16 memory.quantize=nf4 memory.offload=weights memory.offload=none; do
        # The last --set of a key counts.
        [ "$(generate --model "$tmp/folder" --ids 1,5,9 --max-new 5 --set "$got" | tr ',' '\n' | wc -l)" = 5 ] || { echo "$got"; return 1; }
    done
    generate --model $model --ids "$long" --context 64 --set memory.precision=bf16 --json >"$tmp/run.json" || return 1
    [ "$(field "$tmp/run.json" kv_cache_bytes)" = $((4 * ((64 * 24 + 255) / 256 * 256))) ] || { cat "$tmp/run.json"; return 1; }
    generate --model $model --ids 1 --max-new 4 --set memory.quantize=nf4 --dry-run >"$tmp/plan.txt" || return 1
    grep -q 'frozen, NF4' "$tmp/plan.txt" || { cat "$tmp/plan.txt"; return 1; }
    echo "bf16 with a cache of half the bytes, NF4, offloaded weights"
}
check "precision, 4-bit weights, offload" forms

# Weights that are offloaded, and NaN in every byte that is not alive.
poison() {
    local want
    want=$(generate --model $model --ids "$long" --max-new 24) || return 1
    needs_cpu PLIMSOLL_POISON || return 77
    [ "$(PLIMSOLL_POISON=1 generate --model $model --ids "$long" --max-new 24)" = "$want" ] &&
        [ "$(PLIMSOLL_POISON=1 generate --model $model --ids "$long" --max-new 24 --set memory.offload=weights --chunk 16)" = "$want" ]
}
check "NaN in dead bytes" poison

# --- draws ------------------------------------------------------------------------------------

draws() {
    local a b c
    a=$(generate --model "$tmp/folder" --ids 1,2,3 --max-new 32 --temperature 1.5 --seed 7) || return 1
    b=$(generate --model "$tmp/folder" --ids 1,2,3 --max-new 32 --temperature 1.5 --seed 7) || return 1
    c=$(generate --model "$tmp/folder" --ids 1,2,3 --max-new 32 --temperature 1.5 --seed 8) || return 1
    [ "$a" = "$b" ] && [ "$a" != "$c" ] || { printf '%s\n' "$a" "$b" "$c"; return 1; }
    [ "$(generate --model $model --ids 1,2,3 --max-new 32 --temperature 2 --top-k 1)" = "$(generate --model $model --ids 1,2,3 --max-new 32)" ] || { echo "top-k 1 is greedy"; return 1; }
    echo "$a"
}
check "the same seed gives the same text" draws

# --- text -----------------------------------------------------------------------------------------

# The small model with a tokenizer: <unk> <s> </s> <|im_start|> <|im_end|>, line break, blank, a to
# z, A to Z.
words=$tmp/words
letters() { printf '%s\n' {a..z} {A..Z}; }
make_words() {
    cp -r $model "$words" || return 1
    {
        printf '{"version":"1.0","truncation":null,"padding":null,"added_tokens":['
        local id=0 token more=
        for token in '<unk>' '<s>' '</s>' '<|im_start|>' '<|im_end|>'; do
            printf '%s{"id":%d,"content":"%s","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}' "$more" $id "$token"
            id=$((id + 1)) more=,
        done
        printf '],"normalizer":null,"pre_tokenizer":null,"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],'
        printf '"pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}},'
        printf '"decoder":{"type":"Fuse"},"model":{"type":"BPE","dropout":null,"unk_token":"<unk>","continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,'
        printf '"byte_fallback":false,"ignore_merges":false,"vocab":{"<unk>":0,"<s>":1,"</s>":2,"<|im_start|>":3,"<|im_end|>":4,"\\n":5," ":6'
        letters | awk '{ printf ",\"%s\":%d", $1, NR + 6 }'
        printf '},"merges":[]}}\n'
    } >"$words/tokenizer.json"
    echo '{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}' >"$words/tokenizer_config.json"
    printf '%s' "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}" >"$words/chat_template.jinja"
}
# spell TEXT...: its ids, one a line; a word of several characters is a token.
ids_of() { local x; for x; do case $x in '<s>') echo 1 ;; '<|im_start|>') echo 3 ;; '<|im_end|>') echo 4 ;; '\n') echo 5 ;; ' ') echo 6 ;; *) letters | grep -nx "$x" | awk -F: '{ print $1 + 6 }' ;; esac; done | paste -sd,; }
# read_ids IDS: their text; a special token has none.
text_of() { echo "$1" | tr ',' '\n' | awk 'BEGIN { for (i = 0; i < 26; i++) { t[i + 7] = sprintf("%c", 97 + i); t[i + 33] = sprintf("%c", 65 + i) } t[5] = "\n"; t[6] = " " } { printf "%s", t[$1] }'; }

text() {
    local ids
    make_words || return 1
    ids=$(generate --model "$words" --ids "$(ids_of '<s>' h e l l o)" --max-new 40) || return 1
    generate --model "$words" --prompt hello --max-new 40 --json >"$tmp/text.json" || return 1
    [ "$(field "$tmp/text.json" prompt_tokens)" = 6 ] && grep -q "\"ids\": \[$(echo "$ids" | sed 's/,/, /g')\]" "$tmp/text.json" || { echo "$ids"; cat "$tmp/text.json"; return 1; }
    generate --model "$words" --prompt hello --max-new 40 >"$tmp/text.txt" || return 1
    printf '%s\n' "$(text_of "$ids")" | diff - "$tmp/text.txt" || return 1
    field "$tmp/text.json" text
}
check "text: the tokenizer's ids, streamed" text

chat() {
    local ids want
    want=$(generate --model "$words" --ids "$(ids_of '<|im_start|>' u s e r '\n' H i '<|im_end|>' '\n' '<|im_start|>' a s s i s t a n t '\n')" --max-new 30) || return 1
    echo '[{"role": "user", "content": "Hi"}]' >"$tmp/chat.json"
    generate --model "$words" --chat "$tmp/chat.json" --max-new 30 --json >"$tmp/text.json" || return 1
    grep -q "\"ids\": \[$(echo "$want" | sed 's/,/, /g')\]" "$tmp/text.json" || { echo "$want"; cat "$tmp/text.json"; return 1; }
    echo '{"messages": [{"role": "user", "content": "Hi"}], "tools": null}' >"$tmp/chat.json"
    generate --model "$words" --chat "$tmp/chat.json" --max-new 30 --json >"$tmp/map.json" || return 1
    [ "$(field "$tmp/map.json" text)" = "$(field "$tmp/text.json" text)" ] || return 1
    # What a message says is never a control token: <|im_end|> is ten characters here.
    echo '[{"role": "user", "content": "Hi<|im_end|>"}]' >"$tmp/chat.json"
    generate --model "$words" --chat "$tmp/chat.json" --max-new 1 --json >"$tmp/map.json" || return 1
    [ "$(field "$tmp/map.json" prompt_tokens)" = $(($(field "$tmp/text.json" prompt_tokens) + 10)) ] || { cat "$tmp/map.json"; return 1; }
    # A switch of the template: "<think>\n\n</think>\n" follows the generation prompt.
    local modes=(--set data.template=tests/golden/templates/modes.jinja --max-new 1 --json)
    generate --model "$words" --chat "$tmp/chat.json" "${modes[@]}" --set 'data.chat_template_kwargs={enable_thinking: true}' >"$tmp/on.json" &&
        generate --model "$words" --chat "$tmp/chat.json" "${modes[@]}" --set 'data.chat_template_kwargs={enable_thinking: false}' >"$tmp/off.json" || return 1
    [ "$(field "$tmp/off.json" prompt_tokens)" -gt $(($(field "$tmp/on.json" prompt_tokens) + 2)) ] || { cat "$tmp/on.json" "$tmp/off.json"; return 1; }
    echo '[{"role": "user"}, 7]' >"$tmp/chat.json"
    expect 2 'chat.json: message 2: a message is the number 7' generate --model "$words" --chat "$tmp/chat.json" || return 1
    echo '{}' >"$tmp/chat.json"
    expect 2 'chat.json: messages is missing' generate --model "$words" --chat "$tmp/chat.json" || return 1
    echo '[{"role": "user", "content": "Hi"}]' >"$tmp/chat.json"
    rm "$words/chat_template.jinja"
    expect 2 'template' generate --model "$words" --chat "$tmp/chat.json"
}
check "chat: rendered by the template, with the generation prompt" chat

# An answer ends before the stop string, also where several tokens make it up.
stops() {
    local whole stop
    whole=$(generate --model "$words" --prompt hello --max-new 40 | tr -d '\n')
    stop=${whole:3:2}
    generate --model "$words" --prompt hello --max-new 40 --stop "$stop" --stop '@@' --json >"$tmp/text.json" || return 1
    [ "$(field "$tmp/text.json" finish)" = stop ] || { echo "$whole"; cat "$tmp/text.json"; return 1; }
    [ "$(generate --model "$words" --prompt hello --max-new 40 --stop "$stop")" = "${whole%%"$stop"*}" ] || { echo "$whole without $stop"; return 1; }
    expect 2 'not empty' generate --model "$words" --prompt hello --stop '' || return 1
    echo "\"${whole%%"$stop"*}\" before \"$stop\""
}
check "an answer ends before a stop string" stops

# --- a model that was taught --------------------------------------------------------------------

# right MODEL [ARGUMENT]...: how many of 40 prompts that were held out a model answers exactly.
right() {
    local question want got n=0
    while read -r question want; do
        echo "[{\"role\": \"user\", \"content\": \"$question\"}]" >"$tmp/chat.json"
        got=$(generate --model "$@" --chat "$tmp/chat.json" --max-new 8 2>"$tmp/err") || { cat "$tmp/err" >&2; return 1; }
        [ "$got" != "$want" ] || n=$((n + 1))
    done <"$tmp/held.txt"
    echo "$n"
}
# Sorting three or four of six letters: 300 steps on rows of packed conversations.
teach() {
    local before after
    printf '%s' "{% for m in messages %}{{ '<|im_start|>' }}{% if m.role == 'user' %}{{ m.content }}{% else %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}" >"$words/chat_template.jinja"
    echo '{"eos_token": "<|im_end|>"}' >"$words/tokenizer_config.json"
    awk -v held="$tmp/held.txt" -v train="$tmp/train.jsonl" 'BEGIN { srand(3)
        for (i = 0; i < 4000; i++) {
            s = t = ""; split("", c)
            for (k = 3 + int(rand() * 2); k > 0; k--) { x = 1 + int(rand() * 6); c[x]++; s = s substr("abcdef", x, 1) }
            for (x = 1; x <= 6; x++) for (k = 0; k < c[x]; k++) t = t substr("abcdef", x, 1)
            if (s in seen) continue
            seen[s] = 1
            if (++m <= 40) print s, t >held
            else printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": \"%s\"}]}\n", s, t >train
        } }'
    cat >"$tmp/teach.yaml" <<YAML
model: {preset: llama-tiny}
data: {format: conversations, train: $tmp/train.jsonl, tokenizer: $words, sequence: 64}
train: {steps: 300, effective_batch: 8, learning_rate: 3e-3, schedule: cosine, warmup_steps: 20, out: $tmp/taught}
memory: {precision: f32}
device: {kind: $DEVICE}
YAML
    # shellcheck disable=SC2086
    "$binary" train "$tmp/teach.yaml" $FLAGS >"$tmp/out" 2>&1 || { tail -n 5 "$tmp/out"; return 1; }
    before=$(right llama-tiny --set "data.tokenizer=$words") && after=$(right "$tmp/taught/model") || return 1
    [ "$before" = 0 ] && [ "$after" -ge 30 ] || { echo "$before of 40 right before, $after after"; return 1; }
    right=$after
    echo "$before of 40 right before, $after after"
}
right=none
check "a task that 300 steps teach: sorting letters" teach

# A model folder has the tokenizer and the template that the run was trained with, whatever
# model.path has.
saved() { # FILES ARGUMENT...: a run of two steps saves these text files, and its model answers a chat
    local want=$1 got
    shift
    rm -rf "$tmp/saved"
    # shellcheck disable=SC2086
    "$binary" train "$tmp/teach.yaml" --set train.steps=2 --set "train.out=$tmp/saved" "$@" $FLAGS >"$tmp/out" 2>&1 || { tail -n 5 "$tmp/out"; return 1; }
    got=$(cd "$tmp/saved/model" && echo *token* chat_template*)
    [ "$got" = "$want" ] || { echo "$got, expected $want"; return 1; }
    [ "$(cd "$tmp/saved/checkpoints/step-2" && echo *token* chat_template*)" = "$want" ] || { echo "not in the checkpoint"; return 1; }
    expect 0 '' generate --model "$tmp/saved/model" --chat "$tmp/chat.json" --max-new 2
}
saved_tokenizers() {
    local lone=$tmp/lone
    mkdir "$lone" && cp "$words/tokenizer.json" "$lone/other.json" && cp "$words/chat_template.jinja" "$lone" || return 1
    saved 'tokenizer.json tokenizer_config.json chat_template.jinja' || return 1
    cmp "$words/tokenizer.json" "$tmp/saved/model/tokenizer.json" && cmp "$words/chat_template.jinja" "$tmp/saved/model/chat_template.jinja" || return 1
    saved 'tokenizer.json chat_template.jinja' --set "data.tokenizer=$lone/other.json" && cmp "$words/tokenizer.json" "$tmp/saved/model/tokenizer.json" && cmp "$words/chat_template.jinja" "$tmp/saved/model/chat_template.jinja" || return 1
    saved 'tokenizer.json tokenizer_config.json chat_template.jinja' --set data.template=chatml && grep -q "'<|im_start|>' + message\['role'\]" "$tmp/saved/model/chat_template.jinja" || return 1
    saved 'tokenizer.json tokenizer_config.json chat_template.jinja' --set "data.template='{% for m in messages %}{{ m.content }}{% endfor %}'" &&
        [ "$(cat "$tmp/saved/model/chat_template.jinja")" = '{% for m in messages %}{{ m.content }}{% endfor %}' ] || return 1
    # A folder with another tokenizer: its files are replaced, and the rest stays.
    rm -rf "$tmp/base" && cp -r $model "$tmp/base" && echo '{}' >"$tmp/base/tokenizer.model" && echo '{"a": 1}' >"$tmp/base/generation_config.json" || return 1
    saved 'tokenizer.json tokenizer_config.json chat_template.jinja' --set model.preset=null --set "model.path=$tmp/base" && [ -f "$tmp/saved/model/generation_config.json" ]
}
check "a saved model has its tokenizer and template" saved_tokenizers

# --- a file of prompts --------------------------------------------------------------------------

# Prompts of different lengths in a file: the answers that each has by itself, in their order,
# whatever the number at once is; drawn ones do not depend on it either, and the first has the draws
# that it has by itself. Answers end at different tokens.
prompts() {
    local i n taught=(--model "$tmp/taught/model" --max-new 12)
    { echo '{"prompt": "c a b"}'; sed -n 2,6p "$tmp/train.jsonl" | sed 's/, *{"role": "assistant".*/]}/'; printf '{"prompt": [{"role": "user", "content": "b d a"}], "more": 1}\n'; } >"$tmp/prompts.jsonl"
    for n in 1 2 7; do
        generate "${taught[@]}" --prompts "$tmp/prompts.jsonl" --batch $n >"$tmp/prompts.$n" 2>"$tmp/err" && grep -q "7 prompts in .*, $n at once" "$tmp/err" || { cat "$tmp/err"; return 1; }
        generate "${taught[@]}" --prompts "$tmp/prompts.jsonl" --batch $n --temperature 1.5 --seed 3 >"$tmp/drawn.$n" || return 1
    done
    cmp "$tmp/prompts.1" "$tmp/prompts.2" && cmp "$tmp/prompts.1" "$tmp/prompts.7" && cmp "$tmp/drawn.1" "$tmp/drawn.2" && cmp "$tmp/drawn.1" "$tmp/drawn.7" && ! cmp -s "$tmp/prompts.1" "$tmp/drawn.1" || return 1
    for i in 1 2 3 4 5 6 7; do
        sed -n "${i}p" "$tmp/prompts.jsonl" >"$tmp/chat.one"
        [ $i != 1 ] || { generate "${taught[@]}" --prompt 'c a b' --json >"$tmp/alone.json" && generate "${taught[@]}" --prompt 'c a b' --temperature 1.5 --seed 3 --json >"$tmp/drawn.json"; } || return 1
        [ $i = 1 ] || { sed 's/"prompt"/"messages"/' "$tmp/chat.one" >"$tmp/alone.chat" && generate "${taught[@]}" --chat "$tmp/alone.chat" --json >"$tmp/alone.json"; } || return 1
        sed -n "${i}p" "$tmp/prompts.7" >"$tmp/line.json"
        for n in text finish prompt_tokens; do [ "$(field "$tmp/line.json" $n)" = "$(field "$tmp/alone.json" $n)" ] || { cat "$tmp/line.json" "$tmp/alone.json"; return 1; }; done
    done
    [ "$(head -n 1 "$tmp/drawn.7" | sed 's/.*"ids": \[//; s/\].*//')" = "$(tr -d '\n' <"$tmp/drawn.json" | sed 's/.*"ids": *\[//; s/\].*//')" ] || { head -n 1 "$tmp/drawn.7"; cat "$tmp/drawn.json"; return 1; }
    [ "$(sed 's/.*"ids": \[//; s/\].*//' "$tmp/prompts.7" | awk -F, '{ print NF }' | sort -u | wc -l)" -gt 1 ] || { echo "all answers have one length"; return 1; }
    printf 'c a b\r\n\nb a' >"$tmp/prompts.txt"
    generate "${taught[@]}" --prompts "$tmp/prompts.txt" >"$tmp/lines" && [ "$(sed 's/"ids".*//' "$tmp/lines" | tr -d '\n')" = '{"line": 1, {"line": 3, ' ] && cmp <(head -n 1 "$tmp/lines") <(head -n 1 "$tmp/prompts.1")
}
check "a file of prompts, any number at once" prompts

# Plan = run: the plan's KV cache is that of the prompts at once. The smallest budget is that of one
# prompt at a time, and a larger one has more at once.
prompts_planned() {
    local least free taught=(--model "$tmp/taught/model" --max-new 12 --prompts "$tmp/prompts.jsonl")
    generate "${taught[@]}" --dry-run --json >"$tmp/plan.json" || return 1
    least=$(field "$tmp/plan.json" smallest_budget_bytes) free=$(field "$tmp/plan.json" arena_bytes)
    [ "$(field "$tmp/plan.json" prompt_batch)" = 7 ] || { field "$tmp/plan.json" prompt_batch; return 1; }
    generate "${taught[@]}" --memory "$least" >"$tmp/least" 2>"$tmp/err" && grep -q ', 1 at once' "$tmp/err" && cmp "$tmp/least" "$tmp/prompts.1" || { cat "$tmp/err"; return 1; }
    generate "${taught[@]}" --memory $(((least + free) / 2)) >"$tmp/half" 2>"$tmp/err" && grep -q ', [2-7] at once' "$tmp/err" && cmp "$tmp/half" "$tmp/prompts.1" || { cat "$tmp/err"; return 1; }
    expect 3 "$least bytes" generate "${taught[@]}" --memory $((least - 1)) || return 1
    expect 3 "does not fit" generate "${taught[@]}" --memory "$least" --batch 7
}
check "a file of prompts: the number at once is planned" prompts_planned
wrong_sample() { { head -n 1 "$tmp/prompts.jsonl"; echo '{"question": "x"}'; } >"$tmp/wrong.jsonl"; expect 2 'wrong.jsonl:2: .*question' generate --model "$tmp/taught/model" --prompts "$tmp/wrong.jsonl"; }
check "a file of prompts refused: a sample without a prompt" wrong_sample
check "a file of prompts refused: images of the command" expect 2 'name their own' generate --model "$tmp/taught/model" --prompts "$tmp/prompts.txt" --image x.png
check "a file of prompts refused: --batch for one prompt" expect 2 'batch is for a file of prompts' generate --model $model --ids 1 --batch 2
check "a file of prompts refused: too many at once" expect 2 'expected at most .* tokens in all' generate --model "$tmp/taught/model" --prompts "$tmp/prompts.txt" --batch 99999999 --max-new 99

# --- eval: scores of answers --------------------------------------------------------------------

# shellcheck disable=SC2086
evaluate() { "$binary" eval --set "device.kind=$DEVICE" --set memory.precision=f32 --set "data.tokenizer=$words" --max-new 8 $FLAGS "$@"; }
# turns QUESTION ANSWER: a conversation of the task.
turns() { printf '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "%s"}]}\n' "$1" "$2"; }

# The scores of the taught model are those of the answers that `generate` gave, and an untaught one
# has none right.
scores() {
    local question want
    while read -r question want; do turns "$question" "$want"; done <"$tmp/held.txt" >"$tmp/held.jsonl"
    # The training keys of a run file do not matter.
    evaluate "$tmp/teach.yaml" --set memory.micro_batch=2 --set memory.recompute=all --set "data.validation=$tmp/held.jsonl" --model "$tmp/taught/model" --json -o "$tmp/answers.jsonl" >"$tmp/eval.json" || return 1
    [ "$(field "$tmp/eval.json" prompts)" = 40 ] && [ "$(field "$tmp/eval.json" exact_match)" = "$(echo "$right" | awk '{ print $1 * 100 / 40 }')" ] || { cat "$tmp/eval.json"; return 1; }
    [ "$(wc -l <"$tmp/answers.jsonl")" = 40 ] && [ "$(grep -c '"exact_match": *100' "$tmp/answers.jsonl")" = "$right" ] || { head -n 3 "$tmp/answers.jsonl"; return 1; }
    read -r question want <"$tmp/held.txt"
    head -n 1 "$tmp/answers.jsonl" >"$tmp/line.json"
    grep -q "\"prompt\": \[{\"role\": \"user\", \"content\": \"$question\"}\]" "$tmp/line.json" && [ "$(field "$tmp/line.json" reference)" = "$want" ] &&
        [ "$(field "$tmp/line.json" line)" = 1 ] && [ "$(field "$tmp/line.json" finish)" = eos ] || { cat "$tmp/line.json"; return 1; }
    evaluate --data "$tmp/held.jsonl" --model llama-tiny --json >"$tmp/eval.json" || return 1
    [ "$(field "$tmp/eval.json" exact_match)" = 0 ] || { cat "$tmp/eval.json"; return 1; }
    echo "exact match: 0 before, $right of 40 after"
}
check "eval: scores of held-out conversations" scores

# --loss is the loss of the evaluation in training, in rows of any length.
loss() {
    local want got more
    # shellcheck disable=SC2086
    "$binary" train "$tmp/teach.yaml" --set "data.validation=$tmp/held.jsonl" --set train.steps=3 --set "train.out=$tmp/three" $FLAGS >"$tmp/out" 2>&1 || { tail -n 5 "$tmp/out"; return 1; }
    want=$(sed -n 's/.*"eval_loss":\([0-9.e+-]*\).*/\1/p' "$tmp/three/metrics.jsonl" | tail -n 1)
    for more in data.sequence=64 data.sequence=16 data.packing=false memory.micro_batch=3; do
        evaluate "$tmp/teach.yaml" --set "data.validation=$tmp/held.jsonl" --set $more --model "$tmp/three/model" --samples 1 --loss --json >"$tmp/eval.json" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
        got=$(field "$tmp/eval.json" loss)
        echo "$want $got" | awk '{ d = $1 - $2; exit !($1 > 0 && d < 1e-5 && d > -1e-5) }' || { echo "$more: loss $got, in training $want"; return 1; }
    done
    echo "$got, in training $want"
}
check "eval: --loss" loss

# A line for each file and one for all; --samples counts by file. Wrong references: 0 % exact.
files() {
    local question want
    while read -r question want; do turns "$question" "x$want"; done <"$tmp/held.txt" >"$tmp/wrong.jsonl"
    evaluate --data "$tmp/held.jsonl" --data "$tmp/wrong.jsonl" --samples 4 --model "$tmp/taught/model" >"$tmp/out" || return 1
    awk -v dir="$tmp" '$1 == dir "/held.jsonl" { a = $2 == 4 && $3 >= 75 } $1 == dir "/wrong.jsonl" { b = $2 == 4 && $3 == "0.0" } $1 == "all" { c = $2 == 8 && $3 >= 37.5 } END { exit !(a && b && c) }' \
        "$tmp/out" || { cat "$tmp/out"; return 1; }
    grep '^all' "$tmp/out"
}
check "eval: a line for each file and one for all" files

# What nothing fits is refused with the smallest budget, which changes no answer.
bound() {
    local least
    evaluate --data "$tmp/held.jsonl" --samples 6 --model "$tmp/taught/model" --json -o "$tmp/free.jsonl" >"$tmp/free.json" || return 1
    expect 3 'does not fit' evaluate --data "$tmp/held.jsonl" --samples 6 --model "$tmp/taught/model" --memory 10KiB || return 1
    least=$(sed -n 's/.* needs \([0-9]*\) bytes.*/\1/p' "$tmp/err")
    evaluate --data "$tmp/held.jsonl" --samples 6 --model "$tmp/taught/model" --memory "$least" --json -o "$tmp/bound.jsonl" >"$tmp/bound.json" || return 1
    [ "$(field "$tmp/bound.json" arena_bytes)" -le "$least" ] || { cat "$tmp/bound.json"; return 1; }
    cmp "$tmp/free.jsonl" "$tmp/bound.jsonl" || return 1
    echo "the same answers in $(field "$tmp/free.json" arena_bytes) and in $least bytes"
}
check "eval: within --memory" bound

# The answers are those of `generate` with the same adapter.
adapter() {
    local want
    turns Hi Ho >"$tmp/one.jsonl"
    echo '[{"role": "user", "content": "Hi"}]' >"$tmp/chat.json"
    want=$(generate --model "$words" --adapter tests/golden/peft/all_linear --chat "$tmp/chat.json" --max-new 8) || return 1
    evaluate --data "$tmp/one.jsonl" --model "$words" --adapter tests/golden/peft/all_linear -o "$tmp/line.json" >"$tmp/out" || return 1
    [ "$(field "$tmp/line.json" answer)" = "$want" ] && [ "$want" != "$(generate --model "$words" --chat "$tmp/chat.json" --max-new 8)" ] || { echo "$want"; cat "$tmp/line.json"; return 1; }
    echo "$want"
}
check "eval: with an adapter" adapter

# Texts with a prompt are asked; a text without one and a call of a tool are left out; bad samples
# count to data.max_bad.
samples() {
    {
        turns cab abc
        echo '{"prompt": "<|im_start|>cab<|im_start|>", "completion": "abc"}'
        echo '{"text": "abc"}'
        echo '{"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"}]}'
        echo '{"messages": [{"role": "user", "content": "a"}]}'
    } >"$tmp/mixed.jsonl"
    expect 2 'mixed.jsonl:5:.*data.max_bad is' evaluate --data "$tmp/mixed.jsonl" --model "$tmp/taught/model" || return 1
    evaluate --data "$tmp/mixed.jsonl" --model "$tmp/taught/model" --set data.max_bad=0.5 --json >"$tmp/eval.json" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    [ "$(field "$tmp/eval.json" prompts)" = 2 ] && [ "$(field "$tmp/eval.json" without_prompt)" = 2 ] && [ "$(field "$tmp/eval.json" unusable_samples)" = 1 ] || { cat "$tmp/eval.json"; return 1; }
    grep -q 'mixed.jsonl:5: no turn of the assistant' "$tmp/err" || { cat "$tmp/err"; return 1; }
    echo '{"text": "abc"}' >"$tmp/texts.jsonl"
    expect 2 'nothing to ask' evaluate --data "$tmp/texts.jsonl" --model "$tmp/taught/model" || return 1
    : >"$tmp/empty.jsonl"
    expect 2 'empty' evaluate --data "$tmp/empty.jsonl" --model "$tmp/taught/model"
}
check "eval: samples that ask nothing, and bad ones" samples

check "eval refused: no held-out conversations" expect 2 'has no held-out conversations' evaluate "$tmp/teach.yaml" --model "$tmp/taught/model"
check "eval refused: no data" expect 2 'expected one RUN.yaml .* or --data' evaluate --model "$tmp/taught/model"
check "eval refused: an option for masks" expect 2 '\-\-csv is for masks' evaluate --data "$tmp/held.jsonl" --model "$tmp/taught/model" --csv "$tmp/x.csv"
check "eval refused: answers into no folder" expect 2 'there is no folder' evaluate --data "$tmp/held.jsonl" --model "$tmp/taught/model" -o "$tmp/none/answers.jsonl"
check "eval refused: a file that is not there" expect 2 'none.jsonl:' evaluate --data "$tmp/none.jsonl" --model "$tmp/taught/model"
beyond() {
    sed 's/"a":7,/"a":700,/' "$words/tokenizer.json" >"$tmp/beyond.json"
    cp "$words/chat_template.jinja" "$words/tokenizer_config.json" "$tmp"
    { turns b b; turns a a; } >"$tmp/beyond.jsonl"
    expect 2 'beyond.jsonl:2: token.*700' evaluate --data "$tmp/beyond.jsonl" --model "$words" --set "data.tokenizer=$tmp/beyond.json"
}
check "eval refused: an id beyond the vocabulary" beyond
check "eval refused: a model of masks" expect 2 'generates no text' evaluate --data "$tmp/held.jsonl" --model sam-tiny

check "refused: text without a tokenizer" expect 2 'tokenizer' generate --model $model --prompt hello
check "refused: text for a preset" expect 2 'a preset has no tokenizer' generate --model llama-tiny --prompt hello
check "refused: two prompts" expect 2 'exclude each other' generate --model $model --prompt hello --ids 1

# --- what is refused ---------------------------------------------------------------------------

check "refused: no model" expect 2 'no model is given' generate --ids 1
check "refused: no prompt" expect 2 'no prompt is given' generate --model $model
check "refused: a prompt without tokens" expect 2 'no tokens' generate --model $model --ids ''
check "refused: ids that are no numbers" expect 2 'expected token ids with commas' generate --model $model --ids 1,two
check "refused: an id beyond the vocabulary" expect 2 'token 2.*61,.*from 0 to 60' generate --model $model --ids 1,2,61
check "refused: a prompt longer than the cache" expect 2 'the prompt has 40 tokens, and --context 40 leaves no room' generate --model $model --ids "$long" --context 40
check "refused: a model that generates no text" expect 2 'of type sam generates no text' generate --model sam-tiny --ids 1
check "refused: top-k without a temperature" expect 2 'at temperature 0 the most likely one' generate --model $model --ids 1 --top-k 5
check "refused: a temperature below 0" expect 2 'temperature is -1' generate --model $model --ids 1 --temperature -1
check "refused: top-p above 1" expect 2 'top-p is 1.5' generate --model $model --ids 1 --temperature 1 --top-p 1.5
check "refused: a mistyped option" expect 2 'did you mean --max-new' generate --model $model --ids 1 --max-ne 5

summary
