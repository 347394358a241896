#!/bin/bash
# fp8 beside bf16 on a GPU, in one call of a few minutes:
#
#   bench/fp8.sh [FOLDER]
#
#     Llama 1.1 B      8 x 2048 tokens, all weights trained: bf16, fp8, fp8-all
#     SAM ViT-H        8 images of 1024 x 1024, 32 prompts each: bf16, fp8, fp8-all
#     Mistral 7 B      LoRA r = 16 on all layers, 4 x 2048 tokens: base in bf16, fp8, NF4
#     PyTorch          the Llama compiled, in bf16 and with torchao's float8 (PEERS=1)
#
# ROWS='lm sam lora': some of them. MODES='fp8 nf4': only these of their lines, by the last word.
# PEERS=1: PyTorch too. STEPS, BUILD, PYTHON, SETS, DEVICE: as in bench/cuda_common.sh. The first
# call on a GPU times cuBLASLt's algorithms, two or three seconds for each new shape;
# SETS='--set device.deterministic=true' takes the library's proposals instead.
set -euo pipefail
cd "$(dirname "$0")/.."
PEERS=${PEERS:-0}
# shellcheck source=bench/cuda_common.sh
. bench/cuda_common.sh
folder=${1:-$tmp/rows}
ROWS=${ROWS:-lm sam lora}
open_rows "$folder" fp8
lm=llama-1b vit=sam-vit-h base=mistral-7b B=8 T=2048 N=4
[[ $DEVICE == cuda ]] || lm=llama-tiny vit=sam-tiny base=llama-tiny B=2 T=128 N=2

# row NAME UNITS UNIT RUN.yaml OPTION...: a line: units per second, ms of a step, GiB.
row() {
    local name=$1 units=$2 unit=$3 run=$4
    shift 4
    [[ -z ${MODES:-} || " $MODES " == *" ${name##* } "* ]] || return 0
    # shellcheck disable=SC2086
    if timeout "$LIMIT" "$BUILD/plimsoll" bench "$run" --steps "$STEPS" --set "device=$DEVICE" "$@" ${SETS:-} --json >"$tmp/bench.json" 2>"$tmp/err"; then
        rows_py bench "$rows" "$tmp/bench.json" what=fp8 "mode=$name"
        "$PYTHON" - "$tmp/bench.json" "$name" "$units" "$unit" <<'PY'
import json, sys
b, (name, units, unit) = json.load(open(sys.argv[1])), sys.argv[2:]
s = b["measured_median_seconds"]
print(f"{name:34s} {float(units) / s:10.1f} {unit:9s} {1e3 * s:8.1f} ms, predicted {1e3 * b['predicted_step_seconds']:8.1f} ms {b['arena_bytes'] / 2**30:7.2f} GiB", flush=True)
PY
    else
        cat "$tmp/err" >>"$log"
        echo "$name: $(tail -n 1 "$tmp/err")"
    fi
}

cat >"$tmp/lm.yaml" <<YAML
model: {preset: $lm}
data: {sequence: $T}
train: {effective_batch: $B, learning_rate: 1e-5}
memory: {optimizer: adamw-bf16, offload: none, recompute: none, micro_batch: $B}
YAML
cat >"$tmp/sam.yaml" <<YAML
model: {preset: $vit}
data: {format: sa1b, max_masks: 32}
prompts: {iterations: 1}
train: {effective_batch: $B, learning_rate: 1e-5}
memory: {offload: none, recompute: none, micro_batch: $B}
YAML
cat >"$tmp/lora.yaml" <<YAML
model: {preset: $base}
adapter: {target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj], r: 16, lora_alpha: 32}
data: {sequence: $T}
train: {effective_batch: $N}
memory: {precision: bf16, offload: none, recompute: none, micro_batch: $N}
YAML
for r in $ROWS; do
    case $r in
        lm)
            row "Llama 1.1B, bf16-pure" $((B * T)) tokens/s "$tmp/lm.yaml" --set memory.precision=bf16-pure
            row "Llama 1.1B, bf16" $((B * T)) tokens/s "$tmp/lm.yaml" --set memory.precision=bf16 --set memory.gradients=bf16
            for p in fp8 fp8-all; do row "Llama 1.1B, $p" $((B * T)) tokens/s "$tmp/lm.yaml" --set memory.precision=$p --set memory.gradients=bf16; done ;;
        sam) for p in bf16 fp8 fp8-all; do row "SAM ViT-H, $p" "$B" images/s "$tmp/sam.yaml" --set memory.precision=$p; done ;;
        lora) for q in none fp8 nf4; do row "Mistral 7B LoRA, base ${q/none/bf16}" $((N * T)) tokens/s "$tmp/lora.yaml" --set memory.quantize=$q; done ;;
    esac
done
[[ $PEERS != 0 ]] || exit 0
peer peer_lm.py --steps "$STEPS" --modes compile,compile+float8 --by-block
"$PYTHON" - "$rows" <<'PY'
import json, sys
for r in map(json.loads, open(sys.argv[1])):
    if r.get("side") != "ours" and "per_second" in r:
        print(f"PyTorch, {r.get('mode'):25s} {r['per_second']:10.1f} tokens/s  {r['median_ms']:8.1f} ms")
PY
