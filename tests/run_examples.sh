#!/bin/bash
# run_examples.sh: the files in examples/ run as they are, from the folder that their comments
# expect, or with one path set. The runs are shortened, and large models replaced by small ones;
# nothing else is changed. The C programs in examples/ are in run_library.sh.
#
#   bash tests/run_examples.sh        from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
root=$PWD
program=$binary
saved=model.safetensors # of a finished run
tool forge_png
case $binary in /*) ;; *) program=$PWD/$binary ;; esac

# in_folder FOLDER EXAMPLE STEPS [ARGUMENT...]: plans the example and trains STEPS steps in FOLDER,
# into the folder that the example names.
in_folder() {
    local folder=$1 example=$2 steps=$3 out
    shift 3
    out=$(sed -n 's/^  out: *\([^ ]*\).*/\1/p' "$root/examples/$example")
    [ -n "$out" ] || { echo "$example has no train.out"; return 1; }
    # shellcheck disable=SC2086
    (cd "$folder" && "$program" plan "$root/examples/$example" "$@" $FLAGS >/dev/null &&
        "$program" train "$root/examples/$example" --set train.steps="$steps" --set train.epochs=null --set train.eval_every=$((steps < 2 ? 0 : 2)) "$@" $FLAGS) >"$tmp/out" 2>"$tmp/err" ||
        { cat "$tmp/out" "$tmp/err"; return 1; }
    steps_once "$folder/$out" "$steps" && [ -s "$folder/$out/model/$saved" ] && grep -Em 1 ' steps?, loss ' "$tmp/out"
}

# As it is, from the root of a clone: a folder with the same files.
tiny() {
    mkdir -p "$tmp/clone/tests/golden" && cp README.md "$tmp/clone" && cp -R docs "$tmp/clone" && cp tests/golden/README.md "$tmp/clone/tests/golden" &&
        in_folder "$tmp/clone" tiny.yaml 2
}
check 'tiny.yaml, as it is' tiny

# The token files have the names that the guide writes, as numpy.save writes them.
npy() { # FILE IDS: a .npy of uint16 from a raw file
    local n
    n=$(($(wc -c <"$2") / 2))
    { printf '\223NUMPY\001\000v\000%-117s\n' "{'descr': '<u2', 'fortran_order': False, 'shape': ($n,), }" && cat "$2"; } >"$1"
}
finetune() {
    mkdir -p "$tmp/finetune/tokens" && npy "$tmp/finetune/tokens/train.npy" "$golden/tokens.bin" && npy "$tmp/finetune/tokens/val.npy" "$golden/tokens.bin" || return 1
    # The model has 64 positions; the example's sequence is for large ones.
    in_folder "$tmp/finetune" finetune.yaml 2 --set "model.path=$root/$golden" --set data.sequence=16 --set train.effective_batch=4 || return 1
    grep 'train.no_decay: the pattern "\*.bias" matches no parameter' "$tmp/err"
}
check 'finetune.yaml, with the model set' finetune

# The two commands in the comment of the file, with fewer images.
sam_tiny() {
    local lines
    lines=$(sed -n 's/^#   plimsoll \(data make .*\)/\1/p' examples/sam-tiny.yaml | sed 's/--images [0-9]*/--images 4/; s/--shards 2//')
    [ "$(wc -l <<<"$lines")" = 2 ] && mkdir -p "$tmp/sam" || return 1
    # shellcheck disable=SC2086
    while read -r line; do (cd "$tmp/sam" && "$program" $line) >"$tmp/out" || return 1; done <<<"$lines"
    in_folder "$tmp/sam" sam-tiny.yaml 2 --set train.effective_batch=2
}
check 'sam-tiny.yaml, as it is' sam_tiny

# Planned as it is; a step with a small model instead of ViT-H.
sa1b() {
    expect 0 '' "$binary" plan examples/sa1b.yaml --json && json "$tmp/out" arena_bytes || return 1
    in_folder "$tmp/sam" sa1b.yaml 1 --set 'data.train=runs/demo-data/train/*.tar' --set model.preset=sam-tiny --set train.effective_batch=2
}
check 'sa1b.yaml, with the data set' sa1b

# The small SAM from above in the folder that the file names, and images with forged masks; then
# eval with base and adapter, as the file's comment has it.
medsam_lora() {
    local folder=$tmp/medsam saved=adapter_model.safetensors part image
    mkdir -p "$folder/models" && cp -R "$tmp/sam/runs/demo/model" "$folder/models/sam-vit-base" || return 1
    for part in train val; do
        "$program" data make "$folder/$part" --images 4 --size 96x80 --masks 1 --extracted >/dev/null && mkdir -p "$folder/data/medical/$part/images" "$folder/data/medical/$part/masks" || return 1
        for image in "$folder/$part"/*/*.jpg; do
            mv "$image" "$folder/data/medical/$part/images" && "$tools/forge_png" "$folder/data/medical/$part/masks/$(basename "$image" .jpg).png" 96 80 || return 1
        done
    done
    in_folder "$folder" medsam-lora.yaml 2 --set train.effective_batch=2 || return 1
    grep -h 'LoRA on 4 modules (qkv 4)' "$tmp/out" "$tmp/err" || { cat "$tmp/out" "$tmp/err"; return 1; }
    # shellcheck disable=SC2086
    (cd "$folder" && "$program" eval "$root/examples/medsam-lora.yaml" --model models/sam-vit-base --adapter runs/medsam-lora/model $FLAGS) >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
    grep '^box  *all' "$tmp/out"
}
check 'medsam-lora.yaml, with a small SAM' medsam_lora

# A small LLaVA with a tokenizer, images and questions; then an answer, as the file's comment has
# it.
llava_lora() {
    local folder=$tmp/llava base=models/llava-1.5-7b-hf saved=adapter_model.safetensors
    make_model llava_clip_llama "$folder/$base" && "$tools/forge_conversations" "$folder/data" 60 1 2 5 || return 1
    in_folder "$folder" llava-lora.yaml 2 --set data.sequence=64 --set data.max_images=4 --set data.holdout=0.2 --set train.effective_batch=2 --set train.eval_samples=2 --set train.eval_max_new=2 || return 1
    grep -q 'answer' "$folder/runs/llava/report.html" || { echo 'no answers in the report'; return 1; }
    (cd "$folder" && "$program" generate --model $base --adapter runs/llava/model --image data/images/0_0.png --prompt 'how many?' --max-new 2 --set "device.kind=$DEVICE") 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
}
check 'llava-lora.yaml, with a small LLaVA' llava_lora

# The same model with new modalities; then a question about the volumes of a chat.
llava_volumes() {
    local folder=$tmp/modalities
    make_model llava_clip_llama "$folder/models/llava-interleave" && "$tools/forge_volumes" "$folder/data" 60 5 && mv "$folder/data/chats.json" "$folder/data/subjects.json" || return 1
    in_folder "$folder" llava-volumes.yaml 2 --set data.images=data --set data.sequence=64 --set train.effective_batch=2 --set 'model.modalities={T1: {size: [8, 8, 8], patch: [4, 4, 4]}, rsfMRI: {size: [2, 8, 8, 8], patch: [1, 4, 4, 4]}}' || return 1
    echo '[{"role": "user", "content": [{"type": "image", "modality": "T1", "path": "data/volumes/0_T1.nii"}, {"type": "text", "text": "how many?"}]}]' >"$folder/question.json"
    (cd "$folder" && "$program" generate --model runs/volumes/model --chat question.json --max-new 2 --set "device.kind=$DEVICE") 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
}
check 'llava-volumes.yaml, with a small LLaVA' llava_volumes

clip_classes() {
    local folder=$tmp/clip
    mkdir -p "$folder/models" "$folder/data/flowers/rose" "$folder/data/flowers/tulip" "$folder/all" && cp -R tests/golden/clip_full "$folder/models/clip-vit-base-patch32" &&
        "$binary" data make "$folder/all" --images 20 --size 48x40 --masks 2 --extracted >/dev/null || return 1
    find "$folder/all" -name '*.jpg' | sort | awk -v to="$folder/data/flowers" '{ printf "cp \"%s\" \"%s/%s/%d.jpg\"\n", $0, to, NR % 2 ? "rose" : "tulip", NR }' | sh && in_folder "$folder" clip-classes.yaml 2 --set train.effective_batch=4
}
check 'clip-classes.yaml, with a small CLIP' clip_classes

# A model of two parts, as docs/guides/prs-med.md makes it.
prs_med() {
    local folder=$tmp/prs-med saved=adapter_model.safetensors
    mkdir -p "$folder/models/prs-med" && "$tools/forge_questions" "$folder/data" 24 8 1 && cp -R tests/golden/tinyvit_points "$folder/models/tinysam" && make_model llava_clip_llama "$folder/models/llava-med" || return 1
    echo '{"model_type": "prs_med", "decoder": "fusion", "num_attention_heads": 2, "pooled_size": 2, "tinysam_path": "../tinysam", "llava_path": "../llava-med"}' >"$folder/models/prs-med/config.json"
    in_folder "$folder" prs-med.yaml 2 --set data.sequence=64 --set train.effective_batch=4
}
check 'prs-med.yaml, with a small PRS-Med' prs_med

coco() {
    command -v python3 >/dev/null || { echo 'no python3 here'; return 77; }
    (cd "$tmp/sam" && "$program" data make runs/shapes --images 12 --size 96x80 --masks 2 --extracted && python3 "$root/examples/make_coco.py" runs/shapes runs/coco) >"$tmp/out" || return 1
    expect 0 '' "$binary" init --model sam-tiny --data "$tmp/sam/runs/coco" && grep 'format: coco' "$tmp/out" && grep '^# .*11 samples to train on, 1 to evaluate on' "$tmp/out"
}
check 'make_coco.py: a dataset that init knows' coco

ct() {
    command -v python3 >/dev/null || { echo 'no python3 here'; return 77; }
    python3 examples/make_ct.py "$tmp/ct" >"$tmp/out" || return 1
    expect 0 '' "$binary" init --model sam-tiny --data "$tmp/ct" && grep '^# .*144 samples to train on, 48 to evaluate on' "$tmp/out" && grep '^  labels: classes' "$tmp/out" && grep '^  window: \[1, 1524\]' "$tmp/out"
}
check 'make_ct.py: slices of 16 bits that init knows' ct

ct_volumes() { # the same slices from volumes, with the names of structures
    command -v python3 >/dev/null || { echo 'no python3 here'; return 77; }
    export XDG_CACHE_HOME=$tmp/cache
    python3 examples/make_ct.py "$tmp/volumes" --nifti >"$tmp/out" || return 1
    expect 0 '' "$binary" init --model sam-tiny --data "$tmp/volumes" && grep '^# .*144 samples to train on, 48 to evaluate on' "$tmp/out" && grep '^  window: \[-160, 240\]' "$tmp/out" || return 1
    "$binary" data inspect "$tmp/volumes" | grep -q 'liver'
}
check 'make_ct.py --nifti: volumes that init knows' ct_volumes

# Every example is above.
every() {
    local f
    for f in examples/*; do
        grep -q "$(basename "$f" .c)" tests/run_examples.sh tests/run_library.sh tests/run_python.sh || { echo "$f is in no test"; return 1; }
    done
}
check 'each example is in a test' every
summary
