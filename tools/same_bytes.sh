#!/bin/bash
# Shows that two programs compute the same bytes: what a change of the code's form must not alter.
#
#   tools/same_bytes.sh BEFORE AFTER      two builds of plimsoll, from the repository's root, after make
#
#   DEVICE=cpu     the device: cpu or cuda
#   JOBS=          comparisons in parallel; unset: one per core
#
# Compares the outputs and gradients of `step` for every golden case in f32 and bf16; the weights
# after 20 steps of small models under every technique; and the keys and numbers of `plan --json`
# for every preset. Prints each difference, and 'N passed, M failed' last.
set -u
cd "$(dirname "$0")/.." || exit 2
[ $# = 2 ] || { sed -n 2,4p "$0"; exit 2; }
export before=$1 after=$2 DEVICE=${DEVICE:-cpu} LC_ALL=C OMP_NUM_THREADS=1 BUILD=${BUILD:-build}
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
export tmp XDG_DATA_HOME=$tmp/data
binary=$before tools=$BUILD/tests
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
make_model llava_clip_llama "$tmp/llava" || exit 2
"$before" data make "$tmp/set" --images 8 --shards 1 --size 96x80 --masks 4 >/dev/null || exit 2
for i in {0..11}; do printf '{"messages": [{"role": "user", "content": "a b %d?"}, {"role": "assistant", "content": "c %d d"}]}\n' "$i" $((11 - i)); done >"$tmp/chats.jsonl"

# run_file NAME MODEL DATA
run_file() { printf 'model: {%s}\ndata: {%s}\ntrain: {steps: 20, effective_batch: 4, learning_rate: 0.001}\ndevice: {kind: %s, threads: 1}\n' "$2" "$3" "$DEVICE" >"$tmp/$1.yaml"; }
run_file llama 'preset: llama-tiny' 'format: bytes, train: LICENSE, sequence: 32'
run_file sam 'preset: sam-tiny' "format: sa1b, train: \"$tmp/set/*.tar\", max_masks: 4, image_size: 64"
run_file tinysam 'preset: tinysam-tiny' "format: sa1b, train: \"$tmp/set/*.tar\", max_masks: 4, image_size: 64"
run_file llava "path: \"$tmp/llava\"" "format: conversations, train: \"$tmp/chats.jsonl\", sequence: 48"

# one KIND NAME [ARGUMENT...]: a comparison.
one() {
    local kind=$1 name=$2 dir a b
    shift 2
    dir=$(mktemp -d "$tmp/one.XXXXXX")
    case $kind in
    step)
        # shellcheck disable=SC2046
        for a in before after; do "${!a}" step --model "tests/golden/$name" --batch "tests/golden/$name/batch.safetensors" --out "$dir/$a" --set "device.kind=$DEVICE" $(cat "tests/golden/$name/flags" 2>/dev/null) "$@" >"$dir/$a.log" 2>&1; done ;;
    train)
        for a in before after; do "${!a}" train "$tmp/$name.yaml" --set "train.out=$dir/$a.run" "$@" >"$dir/$a.log" 2>&1 && cp "$dir/$a.run/model/"*model.safetensors "$dir/$a"; done ;;
    plan)
        for a in before after; do "${!a}" plan "$tmp/plan.yaml" --preset "$name" "$@" --json 2>"$dir/$a.log" | grep -Ev '"(digest|text|note|warnings?|doc)"|GiB are free' >"$dir/$a"; done ;;
    esac
    if [ -s "$dir/before" ] && cmp -s "$dir/before" "$dir/after"; then echo "ok $kind $name $*"
    elif [ ! -s "$dir/before" ] && [ ! -s "$dir/after" ]; then echo "neither $kind $name $*: $(tail -n 1 "$dir/after.log")"
    else echo "FAIL $kind $name $*: $(tail -n 1 "$dir/after.log")"; fi
    rm -rf "$dir"
}
export -f one

printf 'data: {sequence: 128}\ntrain: {effective_batch: 8}\ndevice: {kind: cpu, threads: 2, profile: default}\n' >"$tmp/plan.yaml"
{
    for c in tests/golden/*/expect.safetensors; do
        c=$(basename "$(dirname "$c")")
        [ -s "tests/golden/$c/batch.safetensors" ] && [ -s "tests/golden/$c/config.json" ] && for p in f32 bf16; do echo "step $c --set memory.precision=$p"; done
    done
    for m in llama sam tinysam llava; do
        for t in precision=f32 precision=bf16 precision=f16 precision=bf16-pure recompute=all recompute=selective recompute=all+halves recompute=ratio:0.5+selective head_chunks=2 micro_batch=1 micro_batch=2 \
            optimizer=adamw-bf16 optimizer=adamw-8bit optimizer=sgd optimizer=adafactor offload=optimizer offload=optimizer+masters+weights+activations fused_step=on; do
            case $t in fused_step=on) echo "train $m --set memory.$t --set train.clip_norm=0 --set memory.micro_batch=4" ;; *) echo "train $m --set memory.$t" ;; esac
        done
        echo "train $m --set adapter.target_modules=[q_proj] --set adapter.r=4 --set memory.quantize=nf4"
    done
    for m in $("$before" modules nosuch 2>&1 | sed 's/.*presets //; s/, nor of .*//; s/,//g'); do echo "plan $m --memory 24GiB"; done
} >"$tmp/list"
xargs -P "${JOBS:-$(nproc)}" -I{} bash -c 'one {}' <"$tmp/list" | tee "$tmp/log" | grep --line-buffered -v '^ok'
awk '/^ok/ { p++ } /^FAIL/ { f++ } END { printf "%d passed, %d failed\n", p, f; exit f > 0 }' "$tmp/log"
