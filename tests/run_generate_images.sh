#!/bin/bash
# run_generate_images.sh: text about images: `plimsoll generate --image` gives the answers of
# transformers for every chunk of the prompt, by ids, by text and by chats; `plimsoll eval` and
# evaluations in training answer conversations with images; what is refused.
#
#   bash tests/run_generate_images.sh        from the repository's root, after make; see run_lib.sh
#
# tests/golden/generate_images.txt has the answers (make_generate_images.py),
# tests/golden/llava_text images and tokenizers.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

images=tests/golden/llava_text/images
# shellcheck disable=SC2086
generate() { "$binary" generate --set "device.kind=$DEVICE" --set memory.precision=f32 $FLAGS "$@"; }
field() { "$tools/json_get" "$1" "$2"; }

# --- answers of transformers ------------------------------------------------------------------

# answers CHUNK: 0 is the planner's.
answers() {
    local folder adapter names options prompt want got arguments name n=0
    while read -r folder adapter names options prompt want; do
        arguments=(--model "tests/golden/$folder" "--ids=$prompt" --max-new 24)
        [ "$1" = 0 ] || arguments+=(--chunk "$1")
        [ "$options" = - ] || arguments+=("$options")
        [ "$adapter" = - ] || arguments+=(--adapter "tests/golden/$adapter")
        [ "$names" = - ] || for name in ${names//,/ }; do arguments+=(--image "$images/$name.png"); done
        got=$(generate "${arguments[@]}" 2>"$tmp/err") || { cat "$tmp/err"; return 1; }
        [ "$got" = "$want" ] || { echo "$folder $adapter $names, prompt $prompt:"; echo "  found    $got"; echo "  expected $want"; return 1; }
        n=$((n + 1))
    done <tests/golden/generate_images.txt
    [ "$n" -ge 11 ] || { echo "$n cases"; return 1; }
    echo "$n answers of up to 24 tokens, 0 to 3 images"
}
check "ids of transformers" answers 0
check "chunks of 5 tokens, which cut images" answers 5
check "chunks of 1 token" answers 1

# --- text and chats ------------------------------------------------------------------------------

text=tests/golden/llava_text
# want NAME LINE: the ids of transformers' answer to prompt-LINE.json.
want() { sed -n "$2p" "$text/$1.expected.jsonl" | sed 's/.*"answer": \[//; s/[] }]*$//; s/, /,/g'; }
ids() { tr -d ' \n' <"$1" | sed 's/.*"ids":\[//; s/\].*//'; }
chats() {
    local i
    for i in 1 2 3 4 5 6; do
        generate --model "$text/$1" --chat "$text/prompt-$i.json" --max-new 8 --json >"$tmp/chat.json" || return 1
        [ "$(ids "$tmp/chat.json")" = "$(want "$1" $i)" ] || { echo "prompt-$i: found $(ids "$tmp/chat.json"), expected $(want "$1" $i)"; return 1; }
    done
    echo "6 answers"
}
check "chats of a llava" chats llava
check "chats of a smolvlm, with tiles" chats smolvlm
check "chats of an internvl, with tiles" chats internvl
# PaliGemma's folders have no template: its processor's text is that of --prompt, and of
# data.template: paligemma.
paligemma() {
    local asks=('What is this?' 'Compare both.' 'Describe the house.') shown=("small" "wide tall" "large") i k
    for i in 1 2 3; do
        local with=()
        for k in ${shown[i - 1]}; do with+=(--image "$images/$k.png"); done
        generate --model $text/paligemma "${with[@]}" --prompt "${asks[i - 1]}" --max-new 8 --json >"$tmp/chat.json" || return 1
        [ "$(ids "$tmp/chat.json")" = "$(want paligemma $i)" ] || { echo "prompt $i: found $(ids "$tmp/chat.json"), expected $(want paligemma $i)"; return 1; }
        echo "[{\"role\": \"user\", \"content\": \"${asks[i - 1]}\"}]" >"$tmp/plain.json"
        generate --model $text/paligemma "${with[@]}" --chat "$tmp/plain.json" --set data.template=paligemma --max-new 8 --json >"$tmp/chat.json" || return 1
        [ "$(ids "$tmp/chat.json")" = "$(want paligemma $i)" ] || { echo "chat $i: found $(ids "$tmp/chat.json"), expected $(want paligemma $i)"; return 1; }
    done
    # prompts by themselves, and several at once
    printf '{"prompt": "What?"}\n{"prompt": "Who sat on the mat?"}\n' >"$tmp/plain.jsonl"
    generate --model $text/paligemma --prompts "$tmp/plain.jsonl" --max-new 4 --batch 1 >"$tmp/a.json" && generate --model $text/paligemma --prompts "$tmp/plain.jsonl" --max-new 4 --batch 2 >"$tmp/b.json" || return 1
    [ "$(grep -o '"ids": *\[[^]]*' "$tmp/a.json")" = "$(grep -o '"ids": *\[[^]]*' "$tmp/b.json")" ] && [ "$(grep -c ids "$tmp/a.json")" = 2 ] || { cat "$tmp/a.json" "$tmp/b.json"; return 1; }
}
check "questions to a paligemma, whose prompts are seen in both directions" paligemma
check "chats of a gemma3, whose image tokens see each other" chats gemma3

# Images of the command stand before the prompt, or where <image> is; a chat's own, or added to its
# last question.
same_answer() { [ "$(ids "$tmp/a.json")" = "$(ids "$tmp/b.json")" ] || { cat "$tmp/a.json" "$tmp/b.json"; return 1; }; }
before() {
    generate --model $text/llava --image $images/small.png --image $images/wide.png --prompt 'What is this?' --max-new 8 --json >"$tmp/a.json" &&
        generate --model $text/llava --image $images/small.png --image $images/wide.png --prompt $'<image>\n<image>\nWhat is this?' --max-new 8 --json >"$tmp/b.json" || return 1
    [ "$(field "$tmp/a.json" images)" = 2 ] && same_answer || return 1
    generate --model $text/llava --image $images/wide.png --image $images/small.png --prompt 'What is this?' --max-new 8 --json >"$tmp/b.json" || return 1
    [ "$(ids "$tmp/a.json")" != "$(ids "$tmp/b.json")" ] || { echo "the order of images does not matter"; return 1; }
    echo '[{"role": "user", "content": "What is this?"}]' >"$tmp/plain.json"
    generate --model $text/llava --image $images/small.png --chat "$tmp/plain.json" --max-new 8 --json >"$tmp/a.json" || return 1
    [ "$(ids "$tmp/a.json")" = "$(want llava 2)" ] || { cat "$tmp/a.json"; return 1; }
}
check "images before a prompt, and in a chat" before

# Prompts of a file, with 0 to 3 images each, several at once: the answers of transformers, in
# order.
many() {
    local i n
    ln -sfn "$PWD/$images" "$tmp/images"
    for i in 1 2 3 4 5 6; do tr -d '\n' <"$text/prompt-$i.json" && echo; done >"$tmp/many.jsonl"
    for n in 1 4 6; do
        generate --model "$text/$1" --prompts "$tmp/many.jsonl" --max-new 8 --batch $n >"$tmp/many.out" 2>"$tmp/err" && [ "$(grep -c . "$tmp/many.out")" = 6 ] || { cat "$tmp/err"; return 1; }
        for i in 1 2 3 4 5 6; do
            sed -n "${i}p" "$tmp/many.out" >"$tmp/a.json"
            [ "$(ids "$tmp/a.json")" = "$(want "$1" $i)" ] && grep -q "\"line\": $i," "$tmp/a.json" || { echo "prompt-$i, $n at once: found $(ids "$tmp/a.json"), expected $(want "$1" $i)"; return 1; }
        done
    done
    grep '6 prompts in .*, 6 at once' "$tmp/err"
}
check "a file of prompts: chats of a llava" many llava
check "a file of prompts: chats of a smolvlm" many smolvlm
check "a file of prompts: chats of an internvl" many internvl
check "a file of prompts: chats of a gemma3" many gemma3
lost_image() { echo '{"prompt": "<image> what?", "image": "images/none.png"}' >>"$tmp/many.jsonl"; expect 2 'many.jsonl:7: .*none.png' generate --model $text/llava --prompts "$tmp/many.jsonl" --max-new 2; }
check "a file of prompts: an image that is missing" lost_image

# --- memory -------------------------------------------------------------------------------------

# The plan holds the tower; one byte less than the smallest plan is refused, and that plan gives the
# same answer.
budget() {
    local least arguments=(--model $text/llava --chat $text/prompt-4.json --max-new 8)
    generate "${arguments[@]}" --json >"$tmp/a.json" || return 1
    expect 3 'budget' generate "${arguments[@]}" --memory 4KiB || return 1
    generate "${arguments[@]}" --memory 4KiB --json >"$tmp/no.json" 2>/dev/null
    least=$(field "$tmp/no.json" smallest_budget_bytes) || return 1
    generate "${arguments[@]}" --memory "$least" --json >"$tmp/b.json" && same_answer || return 1
    expect 3 '' generate "${arguments[@]}" --memory $((least - 1)) || return 1
    echo "$least bytes"
}
check "the smallest budget" budget

# --- evaluation ---------------------------------------------------------------------------------

evaluate() {
    local i
    cat >"$tmp/run.yaml" <<END
model: {path: $text/llava}
data: {format: conversations, validation: [$text/chats.jsonl], sequence: 192}
END
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --model $text/llava --max-new 8 -o "$tmp/answers.jsonl" --set "device.kind=$DEVICE" --set memory.precision=f32 $FLAGS --json >"$tmp/eval.json" || return 1
    [ "$(field "$tmp/eval.json" prompts)" = 6 ] || { cat "$tmp/eval.json"; return 1; }
    for i in 1 2 3 4 5 6; do
        generate --model $text/llava --chat $text/prompt-$i.json --max-new 8 --json >"$tmp/a.json" || return 1
        sed -n "${i}p" "$tmp/answers.jsonl" >"$tmp/line.json"
        [ "$(field "$tmp/line.json" answer)" = "$(field "$tmp/a.json" text)" ] || { cat "$tmp/line.json" "$tmp/a.json"; return 1; }
    done
    grep -q '"images": *\["images/wide.png", *"images/tall.png", *"images/large.png"\]' "$tmp/answers.jsonl" || { cat "$tmp/answers.jsonl"; return 1; }
    echo "6 prompts"
}
check "eval answers as generate does" evaluate
# Samples that cannot be used are counted, and the others are answered.
faults() {
    mkdir -p "$tmp/data" && cp -r $images "$tmp/data/" && cp $text/chats.jsonl "$tmp/data/" || return 1
    printf 'no image' >"$tmp/data/images/broken.png"
    cat >>"$tmp/data/chats.jsonl" <<'END'
{"image": "images/none.png", "conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "Yes."}]}
{"image": "images/broken.png", "conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "Yes."}]}
{"image": "images/small.png", "conversations": [{"from": "human", "value": "<image>\n<image>\nWhat?"}, {"from": "gpt", "value": "Yes."}]}
END
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --model $text/llava --max-new 2 --set "data.validation=$tmp/data/chats.jsonl" --set data.max_bad=0.5 --set "device.kind=$DEVICE" $FLAGS --json >"$tmp/eval.json" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    [ "$(field "$tmp/eval.json" prompts)" = 6 ] && [ "$(field "$tmp/eval.json" unusable_samples)" = 3 ] || { cat "$tmp/eval.json"; return 1; }
    grep -q '2 an image .*that cannot be read' "$tmp/err" && grep -q '2 <image> for 1 image' "$tmp/err" || { cat "$tmp/err"; return 1; }
}
check "samples that cannot be used are counted" faults

# Evaluations in training (train.eval_samples) answer as `eval` does with the final model, and
# change no bit of training. The model's weights are saved in bf16: it is trained at learning rate
# 0.
trains() {
    local k run=("$binary" train "$tmp/run.yaml" --json --set "data.train=$text/chats.jsonl" --set data.max_images=3 --set train.steps=2 --set train.effective_batch=2
        --set train.eval_every=2 --set memory.micro_batch=1 --set memory.precision=f32 --set "device.kind=$DEVICE")
    # shellcheck disable=SC2086
    for k in 0 6; do "${run[@]}" --set train.eval_samples=$k $([ $k = 0 ] || echo --set train.eval_max_new=8) --set "train.out=$tmp/run-$k" $FLAGS >"$tmp/run-$k.json" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }; done
    same "$tmp/run-0/model/model.safetensors" "$tmp/run-6/model/model.safetensors" || return 1
    [ "$(field "$tmp/run-6.json" arena_bytes)" = "$(field "$tmp/run-6.json" allocated_bytes)" ] && [ "$(field "$tmp/run-6.json" allocations_in_steps)" = 0 ] || { cat "$tmp/run-6.json"; return 1; }
    # shellcheck disable=SC2086
    "${run[@]}" --set train.eval_samples=6 --set train.eval_max_new=8 --set train.learning_rate=0 --set train.warmup_steps=0 --set "train.out=$tmp/still" $FLAGS >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    diff "$tmp/answers.jsonl" "$tmp/still/answers/step-2.jsonl" && tail -n 1 "$tmp/err"
}
check "evaluations in training answer about images" trains

# --- what is refused ----------------------------------------------------------------------------

llava=(--model $text/llava --max-new 2)
check "a model of text" expect 2 'takes .*text' generate --model tests/golden/chat/model --image $images/small.png --prompt Hi
check "more <image> than images" expect 2 '2 <image>, and 1 image is given' generate "${llava[@]}" --image $images/small.png --prompt '<image><image>'
check "fewer <image> than images" expect 2 '1 <image>, and 2 images are given' generate "${llava[@]}" --image $images/small.png --image $images/wide.png --prompt '<image>'
check "<image> without an image" expect 2 '1 <image>, and 0' generate "${llava[@]}" --prompt '<image> what?'
check "an image that is missing" expect 2 'none.png' generate "${llava[@]}" --image none.png --prompt Hi
check "a file that is no image" expect 2 'chats.jsonl' generate "${llava[@]}" --image $text/chats.jsonl --prompt Hi
check "ids without image tokens" expect 2 'the prompt has 1 image tokens .id 340., and its images need 16' generate "${llava[@]}" --image $images/small.png --ids 1,340,5
check "predict names generate" expect 2 'plimsoll generate' "$binary" predict --model $text/llava $images/small.png --point 1,1 -o "$tmp/x.png"
summary
