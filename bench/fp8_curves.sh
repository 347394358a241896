#!/bin/bash
# Loss curves of fp8 beside bf16: the same data, order and first weights in each precision.
#
#   bench/fp8_curves.sh FOLDER
#
#     lm      a Llama of 124 M weights on text (TEXT: files or a glob; default: the documentation and
#             copyright files of Debian's packages on this machine), 2,000 steps of 32 x 512 tokens
#     sam     sam-tiny on synthetic shapes, 2,000 steps of 8 images
#     lora    LoRA r = 16 on the Llama that `lm` trained in bf16, 2,000 steps on the same text reversed
#     tiny    llama-tiny on the text of this repository, 400 steps: minutes on a CPU
#
#   RUNS='lm sam lora'  SEEDS='1 2 3': random seeds of bf16; fp8 and fp8-all have the first one
#   STEPS=2000  DEVICE=cuda  PRECISIONS='bf16 fp8 fp8-all'  BUILD=build
#
# Prints for each run the mean loss of the last tenth, and how far it is from bf16's; below it the
# spread of the seeds of bf16. FOLDER keeps the runs, and a table NAME.tsv of each one's losses.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: bench/fp8_curves.sh FOLDER}
mkdir -p "$folder"
BUILD=${BUILD:-build} DEVICE=${DEVICE:-cuda} STEPS=${STEPS:-2000} RUNS=${RUNS:-lm sam lora}
SEEDS=${SEEDS:-1 2 3} PRECISIONS=${PRECISIONS:-bf16 fp8 fp8-all}
TEXT=${TEXT:-}
first=${SEEDS%% *}

# text: a file of at least a few MB, the same on machines with the same packages.
text() {
    [[ -s $folder/text ]] && return
    if [[ -n $TEXT ]]; then
        # shellcheck disable=SC2086
        cat $TEXT >"$folder/text"
    else
        find /usr/share/doc /usr/share/perl /usr/lib/python3 -type f \( -name copyright -o -name '*.txt' -o -name '*.pod' -o -name '*.py' \) 2>/dev/null | sort | xargs -d '\n' cat 2>/dev/null | head -c 64000000 >"$folder/text"
    fi
    tac "$folder/text" >"$folder/reversed"
}
text

cat >"$folder/lm.yaml" <<YAML
model: {preset: ${LM:-llama-124m}}
data: {format: bytes, train: "$folder/text", sequence: 512}
train: {steps: $STEPS, effective_batch: 32, learning_rate: 6e-4, schedule: cosine, warmup_steps: $((STEPS / 20)), weight_decay: 0.1, clip_norm: 1}
device: $DEVICE
YAML
cat >"$folder/tiny.yaml" <<YAML
model: {preset: llama-tiny}
data: {format: bytes, train: "src/*/*.c", sequence: 128}
train: {steps: $STEPS, effective_batch: 8, learning_rate: 2e-3, schedule: cosine, warmup_steps: $((STEPS / 20)), clip_norm: 1}
device: $DEVICE
YAML
cat >"$folder/sam.yaml" <<YAML
model: {preset: sam-tiny}
data: {format: sa1b, train: "$folder/shapes/*.tar", max_masks: 8, image_size: 256}
train: {steps: $STEPS, effective_batch: 8, learning_rate: 3e-4, schedule: cosine, warmup_steps: $((STEPS / 20)), clip_norm: 1}
device: $DEVICE
YAML
cat >"$folder/lora.yaml" <<YAML
model: {path: "$folder/lm-bf16-$first/model"}
adapter: {target_modules: all-linear, r: 16, lora_alpha: 32}
data: {format: bytes, train: "$folder/reversed", sequence: 512}
train: {steps: $STEPS, effective_batch: 32, learning_rate: 2e-4, schedule: cosine, warmup_steps: $((STEPS / 20)), clip_norm: 1}
device: $DEVICE
YAML

# train RUN PRECISION SEED: keeps a run that has ended.
train() {
    local out=$folder/$1-$2-$3 sets=(--set "memory.precision=$2")
    [[ $1 != lora || $2 != fp8 ]] || sets=(--set memory.precision=bf16 --set memory.quantize=fp8) # a frozen base in fp8
    [[ -d $out/model || -d $out/adapter ]] || "$BUILD/plimsoll" train "$folder/$1.yaml" --set "train.out=$out" --set "train.seed=$3" "${sets[@]}" >"$out.log" 2>&1 || { tail -n 2 "$out.log"; return 1; }
    sed -n 's/^{"step":\([0-9]*\),"loss":\([^,]*\),.*/\1\t\2/p' "$out/metrics.jsonl" >"$folder/$1-$2-$3.tsv"
}
# last RUN PRECISION SEED: the mean loss of the last tenth.
last() { awk -v n="$STEPS" '$1 > 0.9 * n { s += $2; k++ } END { printf "%.5f\n", s / k }' "$folder/$1-$2-$3.tsv"; }

for run in $RUNS; do
    [[ $run != sam || -d $folder/shapes ]] || "$BUILD/plimsoll" data make "$folder/shapes" --images 512 --shards 1 --size 256x256 --masks 8 >/dev/null
    for seed in $SEEDS; do train "$run" bf16 "$seed"; done
    base=$(last "$run" bf16 "$first")
    for p in $PRECISIONS; do
        train "$run" "$p" "$first"
        awk -v r="$run" -v p="$p" -v a="$(last "$run" "$p" "$first")" -v b="$base" 'BEGIN { printf "%-6s %-8s loss %.4f, %+.2f %% of bf16\n", r, p, a, 100 * (a - b) / b }'
    done
    for seed in $SEEDS; do last "$run" bf16 "$seed"; done | awk -v r="$run" -v b="$base" '{ if (NR == 1 || $1 < lo) lo = $1; if (NR == 1 || $1 > hi) hi = $1 } END { printf "%-6s bf16     %d seeds: %.4f to %.4f, %.2f %% apart\n", r, NR, lo, hi, 100 * (hi - lo) / b }'
done
