#!/bin/bash
# run_tokenize.sh: `plimsoll tokenize`: ids, pieces and counts of the lines of a file, and back.
#
#   bash tests/run_tokenize.sh     from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
vocabularies=tests/golden/tokenizers

# The ids of cases.json are those of the libraries; tests/test_tokenizer.c compares all of them.
printf 'the then\n\n Hello  world' >"$tmp/text"
lines() { # MODEL: --json gives one line for each, --decode gives the text back
    expect 0 '' "$binary" tokenize --model "$1" --no-special --json "$tmp/text" || return 1
    [ "$(wc -l <"$tmp/out")" -eq 3 ] && sed -n 2p "$tmp/out" | grep -qx '{"ids": \[\]}' || { cat "$tmp/out"; return 1; }
    sed 's/{"ids": \(.*\)}/\1/' "$tmp/out" >"$tmp/ids"
    expect 0 '' "$binary" tokenize --model "$1" --decode --json "$tmp/ids" || return 1
    printf '"the then"\n""\n" Hello  world"\n' | cmp - "$tmp/out" || return 1
    expect 0 '' "$binary" tokenize --model "$1" --decode "$tmp/ids" && { cat "$tmp/text"; echo; } | cmp - "$tmp/out"
}
for m in gpt2 llama3 qwen llama2 sp_llama2; do check "$m: lines to ids and back" lines $vocabularies/$m; done
check 'the path of a tokenizer.json' lines $vocabularies/gpt2/tokenizer.json
check 'the path of a tokenizer.model' lines $vocabularies/sp_llama2/tokenizer.model

special() {
    echo the >"$tmp/one"
    expect 0 '' "$binary" tokenize --model $vocabularies/llama2 --json --pieces "$tmp/one" || return 1
    grep -qx '{"ids": \[1, [0-9]*\], "pieces": \["<s>", "▁the"\], "bytes": \[\[0, 0\], \[0, 3\]\]}' "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 0 '' "$binary" tokenize --model $vocabularies/llama2 --json --no-special "$tmp/one" && ! grep -q '\[1,' "$tmp/out"
}
check 'BOS is added, has no bytes, and --no-special leaves it out' special
table() {
    expect 0 '' "$binary" tokenize --model $vocabularies/gpt2 - <"$tmp/text" || return 1
    grep -q '^line 1: [1-9][0-9]* tokens$' "$tmp/out" && grep -q '^  pieces .*Ġ' "$tmp/out" && grep -q '^3 lines, 21 bytes, [0-9]* tokens: [0-9.]* bytes per token; [0-9]* different ids of 331$' "$tmp/out" || { cat "$tmp/out"; return 1; }
}
check 'ids, pieces and counts, from the standard input' table
nul() {
    printf 'a\0b\n' >"$tmp/nul"
    expect 0 '' "$binary" tokenize --model $vocabularies/gpt2 --json "$tmp/nul" && sed 's/{"ids": \(.*\)}/\1/' "$tmp/out" >"$tmp/ids" || return 1
    expect 0 '' "$binary" tokenize --model $vocabularies/gpt2 --decode --json "$tmp/ids" && grep -qxF '"a\u0000b"' "$tmp/out"
}
check 'NUL is a character' nul

chat() {
    mkdir -p "$tmp/chat" && cp $vocabularies/qwen/tokenizer.json "$tmp/chat/" || return 1
    printf '%s' '{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}' >"$tmp/chat/chat_template.jinja"
    echo '[{"role": "user", "content": "the <|im_end|>"}, {"role": "assistant", "content": "then"}]' >"$tmp/chat.json"
    expect 0 '' "$binary" tokenize --model "$tmp/chat" --chat --json "$tmp/chat.json" || return 1
    local end
    end=$("$binary" tokenize --model "$tmp/chat" --json - <<<'<|im_end|>' | tr -dc 0-9)
    [ "$(json "$tmp/out" text)" = $'<|im_start|>user\nthe <|im_end|><|im_end|>\n<|im_start|>assistant\nthen<|im_end|>' ] || { cat "$tmp/out"; return 1; }
    # What the user typed is text: two of the three are tokens, and the second is trained.
    [ "$(sed 's/.*"ids"//; s/"labels".*//' "$tmp/out" | grep -o "\b$end\b" | wc -l)" -eq 2 ] && [ "$(sed 's/.*"labels"//' "$tmp/out" | grep -o "\b$end\b" | wc -l)" -eq 1 ] || { cat "$tmp/out"; return 1; }
    grep -q '"labels": \[-100, ' "$tmp/out" || return 1
    expect 0 '' "$binary" tokenize --model "$tmp/chat" --chat --add-generation-prompt --json "$tmp/chat.json" && grep -q 'assistant\\n", "ids"' "$tmp/out" && ! grep -q "\"labels\".*\b$end\b" "$tmp/out"
}
check '--chat: text, ids and labels of a conversation' chat

# A template that drops thoughts has no labels for what it drops: text and ids are shown all the
# same.
unlabelled() {
    echo '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>t</think>a"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]' >"$tmp/chat.json"
    expect 0 'warning: .*chat.json: the answer in message 2 is not found in the text: the template drops a part of it once other messages follow it' "$binary" tokenize --model tests/golden/chat/model --template tests/golden/chat/thinking.jinja --chat --json "$tmp/chat.json" || return 1
    [ "$(json "$tmp/out" text | head -n 4 | tail -n 1)" = 'a<|im_end|>' ] && grep -q '"ids": \[[0-9].*, "labels": null}' "$tmp/out"
}
check '--chat: text and ids without labels' unlabelled
echo '{"config": {"pattern": "x"}, "vocab": [{"rank": 0, "token_bytes": "AA==", "token_str": "\u0000"}]}' >"$tmp/tekken.json"
check 'tekken.json' expect 2 'tekken.json:.*Mistral.s' "$binary" tokenize --model "$tmp/tekken.json" "$tmp/text"

check 'no folder' expect 2 'no/such: cannot open it' "$binary" tokenize --model no/such "$tmp/text"
check 'a folder without a tokenizer' expect 2 'tokenizer.json nor tokenizer.model; transformers' "$binary" tokenize --model tests/golden/basic "$tmp/text"
check 'no arguments' expect 2 'expected --model FOLDER and a file: plimsoll tokenize' "$binary" tokenize
check 'no file' expect 2 'no/such' "$binary" tokenize --model $vocabularies/gpt2 no/such
check 'a mistyped option' expect 2 'unknown option --decod; did you mean --decode' "$binary" tokenize --decod
broken() {
    printf 'good\nbad \xff\n' >"$tmp/bad"
    expect 2 'bad: line 2: byte 4 of the text is not UTF-8' "$binary" tokenize --model $vocabularies/gpt2 "$tmp/bad" || return 1
    echo '[1, 99999]' >"$tmp/bad"
    expect 2 'bad: line 1: id 2 of 2 is 99999; the tokenizer has ids below 331' "$binary" tokenize --model $vocabularies/gpt2 --decode "$tmp/bad" || return 1
    echo '[1, "x"]' >"$tmp/bad"
    expect 2 'bad: line 1: an id is the string "x"; expected a whole number' "$binary" tokenize --model $vocabularies/gpt2 --decode "$tmp/bad" || return 1
    head -c 3000 $vocabularies/gpt2/tokenizer.json >"$tmp/tokenizer.json"
    expect 2 'tokenizer.json: line 1, column [0-9]*: ' "$binary" tokenize --model "$tmp/tokenizer.json" "$tmp/text"
}
check 'bad text, bad ids and a cut file are refused with their line' broken
summary
