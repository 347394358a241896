#!/bin/bash
# run_page.sh: the page "Does it fit on my GPU?" (`make page`) plans what the program plans, byte
# for byte: 50 runs in node and in headless Chromium; and the page itself is opened there.
#
#   bash tests/run_page.sh     from the repository's root, after make and make page; see run_lib.sh
#   SCREENSHOTS=DIR            keeps the screenshots there
# shellcheck source=tests/run_lib.sh disable=SC2154
. tests/run_lib.sh

page=$BUILD/page
# The page is built by `make page`, which takes minutes: a page that is not there is skipped.
built() {
    command -v emcc >/dev/null || { echo 'there is no emcc (apt-get install emscripten)'; return 77; }
    [ -f "$page/planner.js" ] || { echo 'the page is not built: make page'; return 77; }
    [ -z "$(find src -name "*.[chd]*" -newer "$page/planner.js"; for f in page/*; do cmp "$f" "$page/${f##*/}"; done)" ] || { echo 'the page is older than its source: make page'; return 77; }
    local raw packed
    raw=$(cat "$page"/* 2>/dev/null | wc -c) packed=$(cat "$page"/* 2>/dev/null | gzip -9 | wc -c)
    echo "$raw bytes, $packed compressed"
    [ "$raw" -lt 3145728 ]
}
check 'the page: less than 3 MiB' built
if [ "$passed" -eq 0 ]; then
    skipped=$((skipped + 3))
    summary
    [ "$failed" -eq 0 ]
    exit
fi

# The runs: models of every kind, GPUs, budgets that fit and that do not, all techniques.
runs=$tmp/runs
mkdir -p "$runs/folder"
cat >"$runs/folder/config.json" <<'END'
{"model_type": "llama", "vocab_size": 32000, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6,
 "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 2048, "hidden_act": "silu",
 "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "rope_theta": 10000.0}
END
n=0
# run MODEL DATA MEMORY GPU [MORE]: members of sections model, data and memory; further sections.
run() {
    n=$((n + 1))
    printf '{"model": {%s}, "data": {%s}, "train": {"effective_batch": 4}, "memory": {%s}, %s"device": {"kind": "cuda", "profile": "%s"}}\n' \
        "$1" "$2" "$3" "${5:+$5, }" "$4" >"$runs/$(printf %02d $n).json"
}
chats='"format": "conversations", "train": "data/train.jsonl", "sequence": 512'
with_images="$chats, \"images\": \"data/images\""
masks='"format": "sa1b", "train": "data/masks", "max_masks": 8'
lora='"adapter": {"r": 16, "target_modules": "all-linear"}'
for model in '"path": "folder"' '"preset": "openai-community/gpt2"' '"preset": "llama-tiny"'; do
    run "$model" '"sequence": 256' '"budget": "auto"' rtx-4090
    run "$model" "$chats" '"budget": "900MiB"' rtx-3060
    run "$model" "$chats" '"budget": "auto"' t4 "$lora"
    run "$model" "$chats" '"budget": "300MiB", "quantize": "nf4"' rtx-3070 "$lora"
    run "$model" "$chats" '"budget": "200MiB", "host_budget": "1KiB"' h200
done
for model in sam-tiny tinysam-tiny; do
    run "\"preset\": \"$model\"" "$masks" '"budget": "auto"' rtx-4090
    run "\"preset\": \"$model\"" "$masks" '"budget": "100MiB"' rtx-3060
    run "\"preset\": \"$model\"" "$masks" '"budget": "auto"' a10 "$lora"
    run "\"preset\": \"$model\", \"freeze\": [\"*_encoder.*\"]" "$masks" '"budget": "auto"' h200
done
run '"preset": "facebook/sam-vit-base"' "$masks" '"budget": "auto", "micro_batch": 2' rtx-4090
run '"preset": "facebook/sam2.1-hiera-tiny"' "$masks" '"budget": "auto", "micro_batch": 2' l40s
for model in llava-tiny smolvlm-256m-shape; do
    run "\"preset\": \"$model\"" "${with_images/512/1024}, \"max_images\": 1" '"budget": "auto"' a100-80
    run "\"preset\": \"$model\"" "${with_images/512/1024}, \"max_images\": 1" '"budget": "auto", "quantize": "nf4"' a100-40 "$lora"
    run "\"preset\": \"$model\"" '"sequence": 1024, "max_images": 1' '"budget": "2GiB", "micro_batch": 1' h200
done
run '"preset": "Qwen/Qwen2-VL-2B-Instruct"' "${with_images/512/2048}, \"max_patches\": 2048" '"budget": "auto", "quantize": "nf4", "micro_batch": 1' l4 "$lora"
run '"preset": "llava-hf/llava-1.5-7b-hf"' '"sequence": 1024, "max_images": 1' '"budget": "12GiB", "quantize": "nf4", "micro_batch": 1' h200 "$lora"
run '"preset": "google/gemma-3-270m"' '"sequence": 512' '"budget": "auto", "micro_batch": 2' rtx-5080
run '"preset": "Qwen/Qwen3-0.6B"' "$chats" '"budget": "auto", "quantize": "nf4", "micro_batch": 2' rtx-4070 "$lora"
run '"preset": "Qwen/Qwen3-30B-A3B"' '"sequence": 512' '"budget": "auto", "quantize": "nf4", "micro_batch": 1, "recompute": "all"' h100 "$lora"
run '"path": "folder"' "$chats" '"budget": "700MiB", "allow": ["adamw-8bit"]' v100
run '"path": "folder"' '"sequence": 512' '"budget": "250MiB"' rtx-2080-ti
run '"path": "folder"' '"sequence": 512' '"budget": "600MiB"' rtx-5090
run '"path": "folder"' '"sequence": 384' '"budget": "auto"' rtx-4080
for keys in '"precision": "f32"' '"precision": "f16"' '"recompute": "all"' '"offload": "optimizer"' '"head_chunks": 8' '"optimizer": "adafactor"' '"optimizer": "sgd"'; do
    run '"path": "folder"' '"sequence": 512' "\"budget\": \"auto\", $keys" rtx-3090
done
run '"preset": "clip-vit-b-16"' '"format": "tokens"' '"budget": "auto"' rtx-3080
run '"path": "folder"' "$chats, \"packing\": false" '"budget": "auto"' rtx-4060
run '"preset": "Qwen/Qwen3-8B"' "${chats/512/2048}" '"budget": "auto", "quantize": "nf4"' rtx-4090 "$lora"

# The program plans each run, as the page does.
mkdir -p "$tmp/program"
program() {
    local f wrong=
    ln -s "$runs/folder" "$tmp/folder"
    for f in "$runs"/*.json; do
        (cd "$tmp" && CUDA_VISIBLE_DEVICES='' "$OLDPWD/$binary" plan "$f" --json >"program/${f##*/}" 2>"program/${f##*/}.said")
        [ -s "$tmp/program/${f##*/}" ] || { cat "$f" "$tmp/program/${f##*/}.said"; wrong=1; }
    done
    echo "$n runs, $(cat "$tmp"/program/*.json | grep -c '"fits": true,') fit"
    [ "$n" -eq 50 ] && [ -z "$wrong" ]
}
check 'the program plans the runs' program

same() { # FOLDER: its plans are the program's
    local f other=0 all=0
    for f in "$runs"/*.json; do
        all=$((all + 1))
        cmp "$tmp/program/${f##*/}" "$1/${f##*/}" || { other=$((other + 1)); cat "$f"; }
    done
    [ "$other" -eq 0 ] && echo "$all runs, all bytes the same"
}
in_node() {
    command -v node >/dev/null || { echo 'there is no node'; return 77; }
    mkdir -p "$tmp/node"
    node tests/page_runs.js "$page" "$runs" "$tmp/node" >"$tmp/node/log" || { cat "$tmp/node/log"; return 1; }
    ! grep differs "$tmp/node/log" || return 1
    same "$tmp/node" && echo "$(same "$tmp/node"); Qwen3-8B in $(awk '$1 == "50.json" {print $3}' "$tmp/node/log") s"
}
check 'the same plans in node' in_node

# Forms that are filled in; the run file that the page shows is planned by the program.
cat >"$runs/forms" <<'END'
[{"model": "openai-community/gpt2", "way": "full", "gpu": "rtx-3060", "rows": 4, "tokens": 512},
 {"model": "HuggingFaceTB/SmolLM2-360M", "way": "lora", "gpu": "t4"},
 {"model": "Qwen/Qwen3-0.6B", "way": "qlora", "gpu": "rtx-3070", "tokens": 1024},
 {"model": "google/gemma-3-270m", "way": "full", "gpu": "rtx-4060"},
 {"model": "facebook/sam-vit-base", "way": "full", "gpu": "rtx-4090", "masks": 16},
 {"model": "facebook/sam2.1-hiera-tiny", "way": "full", "gpu": "rtx-3080"},
 {"model": "HuggingFaceTB/SmolVLM-256M-Instruct", "way": "lora", "gpu": "rtx-4070", "images": 1},
 {"model": "Qwen/Qwen2-VL-2B-Instruct", "way": "qlora", "gpu": "rtx-5080", "images": 2, "size": "640x480"},
 {"model": "meta-llama/Llama-3.2-1B", "way": "qlora", "gpu": "", "gib": 10},
 {"model": "Qwen/Qwen2.5-0.5B", "way": "qlora", "gpu": "rtx-4090", "host": 32}]
END
in_chromium() {
    command -v node >/dev/null && command -v chromium >/dev/null || { echo 'there is no chromium or no node'; return 77; }
    mkdir -p "$tmp/chromium"
    local i failures=0
    timeout 900 node tests/page_chromium.js "$page" "$runs" "$tmp/chromium" || failures=1
    [ -z "${SCREENSHOTS:-}" ] || cp "$tmp"/chromium/*.png "$SCREENSHOTS"
    same "$tmp/chromium" || return 1
    for i in 0 1 2 3 4 5 6 7 8 9 10; do
        CUDA_VISIBLE_DEVICES='' "$binary" plan "$tmp/chromium/form$i.yaml" --json >"$tmp/form.plan" 2>"$tmp/form.said"
        # the tenth is a point of the curve that was dragged to
        [ "$i" -eq 10 ] || cmp "$tmp/form.plan" "$tmp/chromium/form$i.plan" || { cat "$tmp/chromium/form$i.yaml" "$tmp/form.said"; return 1; }
        grep -q "\"arena_bytes\": $(cat "$tmp/chromium/form$i.bytes")," "$tmp/form.plan" || { echo "form $i shows other bytes"; return 1; }
    done
    [ "$failures" -eq 0 ] && echo "$(same "$tmp/chromium"); 10 models by the form"
}
check 'the same plans in Chromium, and the page there' in_chromium
summary
