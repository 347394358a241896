#!/bin/bash
# Long rows on a GPU, each part one step with random weights and tokens; nothing is downloaded:
#
#   ROWS='chunks 24gib' bench/long_rows.sh
#
#     table    Llama 3.1 8B, NF4 + LoRA r = 32: the longest row on GPUs of 8 to 80 GiB; only planned
#     24gib    the same model, 300,032 tokens within 24 GiB (6 minutes a step on an H200)
#     1m       8 layers of a 1B Llama, NF4 + LoRA, 1,000,000 tokens (7 minutes)
#     chunks   the same layers in f32, 32,000 tokens: loss and gradients in parts and whole
#     video    LLaVA-OneVision 7B, NF4 + LoRA: a conversation about 200 frames of 196 tokens, 8 GiB
#
# ROWS: the parts, default: table. The lines say the bytes of the plan and those that were
# allocated, and the predicted and the measured seconds of the step. TOKENS: another length of 24gib
# and 1m, such as the longest whose step ends in time. BUILD (build), PYTHON (python3), HOST
# (memory.host_budget, default: auto), LIMIT (seconds of a step's program, 580). DEVICE=cpu tests
# the script with small models.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build} PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} HOST=${HOST:-auto} LIMIT=${LIMIT:-580}
ROWS=${ROWS:-table}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/long-rows-XXXXXX")
trap 'rm -rf "$tmp"' EXIT
small=
[[ $DEVICE == cuda ]] || small=1
set_device=(--set "device=$DEVICE" --set "memory.host_budget=$HOST")

# A run of one step on random bytes as tokens, and the adapter of the table.
run_of() { # run_of NAME MODEL TOKENS BATCH-KEYS MEMORY-KEYS
    head -c $(($3 + 4096)) /dev/urandom >"$tmp/$1.bytes"
    cat >"$tmp/$1.yaml" <<YAML
model: {$2}
adapter: {target_modules: all-linear, r: 32}
data: {format: bytes, train: $tmp/$1.bytes, sequence: $3}
train: {steps: 1, effective_batch: 1, clip_norm: 0, warmup_steps: 0, $4}
memory: {$5}
YAML
}

# step NAME OUT OPTION...: plans and trains one step; a line of both.
step() {
    local name=$1 out=$tmp/$2
    shift 2
    if timeout "$LIMIT" "$BUILD/plimsoll" train "$tmp/$name.yaml" --set "train.out=$out" "${set_device[@]}" "$@" --json >"$out.json" 2>"$out.err"; then
        "$PYTHON" - "$out" "$name" "$*" <<'PY'
import json, sys
out, name, options = sys.argv[1:]
ran, plan = json.load(open(out + ".json")), json.load(open(out + "/plan.json"))
row = json.loads(open(out + "/metrics.jsonl").readline())
same = "as planned" if ran["allocated_bytes"] == ran["arena_bytes"] == plan["arena_bytes"] else f"allocated {ran['allocated_bytes']}, planned {plan['arena_bytes']}"
print(f"{name}: loss {row['loss']}, gradient {row['grad_norm']}; arena {ran['arena_bytes'] / 2**30:.2f} GiB ({same}), host {ran['host_bytes'] / 2**30:.2f} GiB; "
      f"step {row['seconds']:.1f} s, predicted {plan['predicted_step_seconds']:.1f} s, {row['tokens_per_second']:.0f} tokens/s{' [' + options + ']' if options else ''}", flush=True)
PY
    else
        tail -n 3 "$out.err"
        return 1
    fi
}

# layers FOLDER: writes 8 layers in the shape of Llama 3.2 1B with random weights in bf16.
layers() {
    "$PYTHON" - "$1" $small <<'PY'
import json, os, struct, sys
folder, small = sys.argv[1], len(sys.argv) > 2
D, F, V, H, G, L = (64, 128, 256, 4, 2, 2) if small else (2048, 8192, 128256, 32, 8, 8)
E = D // H
json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": D, "intermediate_size": F, "vocab_size": V,
           "num_attention_heads": H, "num_key_value_heads": G, "num_hidden_layers": L, "head_dim": E, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
           "max_position_embeddings": 1048576, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}, open(folder + "/config.json", "w"))
shapes = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,)}
for i in range(L):
    p = f"model.layers.{i}."
    shapes |= {p + "input_layernorm.weight": (D,), p + "post_attention_layernorm.weight": (D,), p + "self_attn.q_proj.weight": (H * E, D),
               p + "self_attn.k_proj.weight": (G * E, D), p + "self_attn.v_proj.weight": (G * E, D), p + "self_attn.o_proj.weight": (D, H * E),
               p + "mlp.gate_proj.weight": (F, D), p + "mlp.up_proj.weight": (F, D), p + "mlp.down_proj.weight": (D, F)}
header, at = {}, 0
for name, dim in shapes.items():
    size = 2 * dim[0] * (dim[1] if len(dim) > 1 else 1)
    header[name] = {"dtype": "BF16", "shape": dim, "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header).encode()
sign = bytes(0x3C if b < 128 else 0xBC for b in range(256)) # 2^-7 to 2^-5, or less than 0
with open(folder + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for dim in shapes.values():
        if len(dim) == 1:
            f.write(b"\x80\x3f" * dim[0])
            continue
        for _ in range(dim[0]):
            row = bytearray(2 * dim[1])
            row[0::2], row[1::2] = os.urandom(dim[1]), os.urandom(dim[1]).translate(sign)
            f.write(row)
PY
}

llama='preset: meta-llama/Llama-3.1-8B' big=${TOKENS:-300032} most=${TOKENS:-1000000} parts=32000
[[ -z $small ]] || llama='preset: llama-tiny' big=${TOKENS:-1024} most=${TOKENS:-2048} parts=960

for r in $ROWS; do
    case $r in
        table)
            run_of table "$llama" 8192 'learning_rate: 1e-4' 'quantize: nf4'
            "$BUILD/plimsoll" plan "$tmp/table.yaml" --longest --devices 8,12,16,24,40,80 ;;
        24gib)
            run_of 24gib "$llama" "$big" 'learning_rate: 1e-4' "quantize: nf4, budget: 23GiB" # 1 GiB less: a reserve
            step 24gib 24gib ;;
        1m)
            mkdir -p "$tmp/layers" && layers "$tmp/layers"
            run_of 1m "path: $tmp/layers" "$most" 'learning_rate: 1e-4' 'quantize: nf4'
            step 1m 1m ;;
        chunks)
            mkdir -p "$tmp/layers" && layers "$tmp/layers"
            [[ -x $BUILD/tests/compare ]] || make -s BUILD="$BUILD" "$BUILD/tests/compare"
            run_of chunks "path: $tmp/layers" $parts 'learning_rate: 1' 'precision: f32, optimizer: sgd, recompute: all, head_chunks: 8'
            step chunks whole --set memory.token_chunks=1 --set memory.attention_chunks=1
            step chunks heads --set memory.token_chunks=1 --set memory.attention_chunks=2
            step chunks tokens --set memory.token_chunks=32 --set memory.attention_chunks=2
            # A step of SGD with learning rate 1 subtracts the gradient.
            if cmp -s "$tmp/whole/checkpoints/step-1/state.safetensors" "$tmp/heads/checkpoints/step-1/state.safetensors"; then
                echo 'chunks: groups of heads: the same bytes'
            else
                echo 'chunks: groups of heads: OTHER bytes'
            fi
            echo "chunks: tokens: $("$BUILD/tests/compare" "$tmp/whole/checkpoints/step-1/state.safetensors" "$tmp/tokens/checkpoints/step-1/state.safetensors" --logits 1e-6 | tail -n 1)" ;;
        video)
            cat >"$tmp/video.yaml" <<YAML
model: {preset: llava-hf/llava-onevision-qwen2-7b-ov-hf, freeze: [vision_tower]}
adapter: {target_modules: all-linear, r: 16}
data: {format: conversations, sequence: 39936, max_images: 0, max_frames: 200}
train: {effective_batch: 1, learning_rate: 1e-4, clip_norm: 0}
memory: {quantize: nf4, budget: 7GiB}
YAML
            if [[ -n $small ]]; then
                "$BUILD/plimsoll" plan "$tmp/video.yaml" --set device.kind=cuda --set device.profile=h200 | grep -E '^ *(arena|host memory|micro-batch|predicted)'
            else
                timeout "$LIMIT" "$BUILD/plimsoll" bench "$tmp/video.yaml" --steps 2 "${set_device[@]}" --json >"$tmp/video.json"
                "$PYTHON" - "$tmp/video.json" <<'PY'
import json, sys
b = json.load(open(sys.argv[1]))
print(f"video: arena {b['arena_bytes'] / 2**30:.2f} GiB, step {b['measured_median_seconds']:.2f} s, predicted {b['predicted_step_seconds']:.2f} s", flush=True)
PY
            fi ;;
        *) echo "long_rows: no part $r" >&2; exit 2 ;;
    esac
done
