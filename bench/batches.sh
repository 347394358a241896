#!/bin/bash
# Answers in batches: prompts per second of `plimsoll generate --prompts`, by the number of prompts
# at once. 64 prompts of 9 to 72 tokens, 32 new tokens each, random weights: no answer ends early.
# Prints them by the time of the processor, without loading the model, which other programs on the
# machine hardly change with one thread, and by the clock.
#
#   bash bench/batches.sh                 on the CPU, llama-124m, f32 and bf16
#   DEVICE=cuda MODEL=llama-1b BATCHES="1 8 32" PRECISIONS=bf16 bash bench/batches.sh
set -euo pipefail
cd "$(dirname "$0")/.."
program=${BUILD:-build}/plimsoll model=${MODEL:-llama-124m} device=${DEVICE:-cpu}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
awk 'BEGIN {
    srand(1)
    split("the cat sat on a mat and saw one dog run by it", word)
    for (i = 0; i < 64; i++) {
        n = 9 + int(rand() * 64)
        line = word[1]
        for (k = 1; k < n; k++) line = line " " word[1 + int(rand() * 13)]
        print line
    }
}' >"$tmp/prompts.txt"
# run BATCH PROMPTS NEW: prints the seconds of the processor; the program's own line is in $tmp/err.
run() {
    TIMEFORMAT=%U
    { time "$program" generate --model "$model" --set data.tokenizer=tests/golden/tokenizers/gpt2 --set "device.kind=$device" --set "device.threads=${THREADS:-1}" \
        --set "memory.precision=$precision" --prompts "$2" --max-new "$3" --batch "$1" >"$tmp/out" 2>"$tmp/err"; } 2>&1
}
head -n 1 "$tmp/prompts.txt" | cut -d ' ' -f 1 >"$tmp/one.txt"
for precision in ${PRECISIONS:-f32 bf16}; do
    loading=$(run 1 "$tmp/one.txt" 1)
    for batch in ${BATCHES:-1 8 32}; do
        busy=$(run "$batch" "$tmp/prompts.txt" 32)
        awk -v p="$precision" -v b="$batch" -v s="$busy" -v l="$loading" -v line="$(grep 'prompts in' "$tmp/err")" \
            'BEGIN { printf "%-5s %2d at once   %6.2f prompts by second of the processor; %s\n", p, b, 64 / (s - l), line }'
    done
done
