#!/bin/bash
# shellcheck disable=SC2015
# run_errors.sh: every failure is named, ends with the right status, and leaves no partly written
# file.
#
#   bash tests/run_errors.sh      from the repository's root, after make; see run_lib.sh
#
# Status 1: the environment failed; 2: bad usage or input; 3: does not fit. After each failure the
# run's folder is absent or resumable. The full and the read-only disk are real mounts where this
# user may mount them; fault.c simulates disks that fill up at a chosen call.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool forge
preload fault

# absent OUT: a run that never began left no file or folder.
absent() {
    [ ! -e "$1" ] || { echo "left behind:"; find "$1"; return 1; }
}
# refused STATUS PATTERN ARGUMENT...: train ends with STATUS and PATTERN, and leaves no folder.
refused() {
    local status=$1 pattern=$2
    shift 2
    expect "$status" "$pattern" train "$tmp/never" "$@" && absent "$tmp/never"
}

# --- usage ------------------------------------------------------------------------------------

says() {
    local pattern=$1
    shift
    expect 0 '' "$@" || return 1
    grep -E -m 1 -- "$pattern" "$tmp/out" || { echo "no /$pattern/ in:"; cat "$tmp/out"; return 1; }
}
check '--help' says 'plimsoll train' "$binary" --help
check '--version' says '^plimsoll [0-9]' "$binary" --version
for command in plan train step bench report eval predict init profile doctor convert; do
    check "$command --help" says "usage: plimsoll $command" "$binary" $command --help
    check "$command --version" says '^plimsoll [0-9]' "$binary" $command --version
done
check 'no command: usage' expect 2 'plimsoll plan  RUN.yaml' "$binary"
# one_line STATUS PATTERN COMMAND...: as expect, and standard error is one line.
one_line() { expect "$@" && [ "$(wc -l <"$tmp/err")" -eq 1 ]; }
check 'a mistyped command, with the nearest' one_line 2 'unknown command trian; did you mean train\?' "$binary" trian
check 'a related word for a command' one_line 2 'unknown command evaluate; did you mean eval\?' "$binary" evaluate x.yaml
check 'a word of other trainers' one_line 2 'unknown command finetune; did you mean train\?' "$binary" finetune
check 'a command that is like none' one_line 2 'unknown command xyzzy; the commands are fits, init, models, modules, plan, train' "$binary" xyzzy
check 'a run file without a command' one_line 2 'expected a command before run.yaml, such as .plimsoll plan run.yaml' "$binary" run.yaml
check 'an option before the command' one_line 2 'expected a command before the option --memory' "$binary" --memory 8GiB train
check 'a mistyped subcommand, with the nearest' one_line 2 'unknown subcommand mkae; did you mean .data make.' "$binary" data mkae
check '--set mistyped' one_line 2 'unknown option --sett; did you mean --set' "$binary" train x.yaml --sett a=1
check 'convert: unknown option, with the nearest' one_line 2 'unknown option --jsn; did you mean --json' "$binary" convert x -o y --jsn
check 'help of a command' says 'usage: plimsoll train' "$binary" help train
check 'help of a command of data' says 'usage: plimsoll data pack' "$binary" help data pack
check 'help of an unknown command' expect 2 'plann' "$binary" help plann
check 'unknown option, with the nearest' expect 2 'jsn.*--json' "$binary" plan --jsn x.yaml
check 'an option without its value' expect 2 '--memory' "$binary" plan x.yaml --memory
check 'no run file' expect 2 'RUN.yaml' "$binary" train
check 'eval of a model that is not there' expect 2 'runs/tiny/model: cannot open it' "$binary" eval examples/tiny.yaml --model runs/tiny/model
check 'a run file that is not there' expect 2 'nowhere.yaml' "$binary" train "$tmp/nowhere.yaml"
check 'unknown key, with the nearest' refused 2 'train.learning_rat.*train.learning_rate' --set train.learning_rat=1
check 'a value of the wrong type' refused 2 'train.steps.*many' --set train.steps=many
check 'a value out of range' refused 2 'data.sequence.*1' --set data.sequence=1
check 'a word that is none of the allowed' refused 2 'memory.recompute.*some.*all' --set memory.recompute=some
check 'a size that is none' expect 2 'lots' "$binary" plan "$golden/run.yaml" --memory lots
check 'a pattern that matches nothing: freeze' refused 2 'model.freeze.*"model.layer.\*" matches no parameter.*model.layers.0' --set 'model.freeze=model.layer.*'
check 'a pattern of no_decay that matches nothing is a note' expect 0 'train.no_decay: the pattern "\*.bias" matches no parameter' \
    "$binary" plan "$golden/run.yaml" --set 'train.no_decay=["*norm.weight", "*.bias"]'
check 'a pattern that matches nothing: a group' refused 2 'train.groups\[0\].match.*"lm_hed.weight".*lm_head.weight' \
    --set 'train.groups=[{match: lm_hed.weight, lr_scale: 2}]'
check 'an unknown key of a group, with the nearest' refused 2 'train.groups\[0\].lr_scal; did you mean lr_scale' --set 'train.groups=[{match: "*", lr_scal: 2}]'
check 'nothing left to train' refused 2 'every parameter is frozen' --set 'model.freeze=*'
yaml() { printf 'model: {path: %s}\ntrain: {steps: 3\n' "$golden" >"$tmp/bad.yaml" && expect 2 'bad.yaml.*[0-9]' "$binary" train "$tmp/bad.yaml"; }
check 'a run file that is no YAML' yaml
check 'an unknown preset' refused 2 '--set: model.preset: .*llama-huge.*llama-tiny' --set model.path=null --set model.preset=llama-huge
check 'a value of an option is blamed on the option' refused 2 'train: --set: memory.micro_batch is 16,' --set memory.micro_batch=16
# The message for a missing model or profile names its line in the run file.
lines() {
    printf 'device:\n  kind: cpu\n  profile: %s\nmodel:\n  path: %s\n' "$1" "$2" >"$tmp/lines.yaml" && expect 2 "lines.yaml:$3: .*nowhere" "$binary" plan "$tmp/lines.yaml"
}
check 'a model that is not there, with its line' lines default nowhere '5: model.path'
check 'a profile that is not there, with its line' lines nowhere "$golden" '3: device.profile'

one_object() {
    local status=$1
    shift
    expect "$status" '' "$@" && json "$tmp/out" && [ -s "$tmp/out" ]
}
check '--json is one object: plan' one_object 0 "$binary" plan "$golden/run.yaml" --json
check '--json is one object: plan that does not fit' one_object 3 "$binary" plan "$golden/run.yaml" --json --memory 1
check '--json is one object: train' one_object 0 train "$tmp/object" --json
check '--json is one object: train that does not fit' one_object 3 train "$tmp/never" --json --memory 1

# --- the model -----------------------------------------------------------------------------------

# model NAME ARGUMENT...: a copy of the golden model with forged weights, in $tmp/NAME.
weight=model.layers.1.mlp.up_proj.weight
model() {
    local to=$tmp/$1
    shift
    rm -rf "$to"
    mkdir "$to" && cp "$golden/config.json" "$to" && "$tools/forge" "$golden/model.safetensors" "$to/model.safetensors" "$@"
}
broken() {
    local pattern=$1
    shift
    model broken "$@" && refused 2 "$pattern" --set "model.path=$tmp/broken" || return 1
    rm -f "$tmp/step.out"
    expect 2 "$pattern" "$binary" step --model "$tmp/broken" --batch tests/golden/basic/batch.safetensors --out "$tmp/step.out" && absent "$tmp/step.out"
}
check 'a missing tensor' broken "$weight.*missing" drop $weight
check 'a wrong shape' broken "$weight.*\[960\].*\[40,24\]" flatten $weight
check 'NaN in the weights' broken "$weight.*element 7.*nan" set $weight 7 nan
check 'infinity in the weights' broken "$weight.*element 7.*inf" set $weight 7 inf
check 'a truncated file' broken 'model.safetensors.*(truncated|damaged)' cut 1000
check 'a file cut within its header' broken 'model.safetensors.*header' cut 51000
check 'a header that claims too much' broken 'model.safetensors.*header of 99999' length 99999
check 'a header of 2^63 bytes' broken 'model.safetensors.*header' length 9223372036854775808
check 'a header one byte too long' broken 'model.safetensors' length "$(($(od -An -t u8 -N 8 "$golden/model.safetensors") + 1))"
check 'offsets beyond the file' broken "$weight.*data_offsets" offsets $weight
no_weights() { rm -rf "$tmp/bare" && mkdir "$tmp/bare" && cp "$golden/config.json" "$tmp/bare" && refused 2 'no weights' --set "model.path=$tmp/bare"; }
check 'no weights' no_weights
check 'no model folder' refused 2 'missing-model' --set "model.path=$tmp/missing-model"

# Names that people have for a model: each message has the command that makes a folder of it.
: >"$tmp/sam_vit_b_01ec64.pth"
check 'an id of the Hub' refused 2 'model.path: facebook/sam-vit-base is not a folder.*hf download facebook/sam-vit-base --local-dir models/sam-vit-base; then use models/sam-vit-base' \
    --set model.path=facebook/sam-vit-base
check 'plan: an address of the Hub' expect 2 'model.path: .*hf download meta-llama/Llama-3.2-1B --local-dir models/Llama-3.2-1B' \
    "$binary" plan "$golden/run.yaml" --set model.path=https://huggingface.co/meta-llama/Llama-3.2-1B
check 'init: an id of the Hub' expect 2 'hf download facebook/sam-vit-huge --local-dir models/sam-vit-huge' "$binary" init --model facebook/sam-vit-huge --data "$tmp"
check 'predict: an id of the Hub' expect 2 'hf download facebook/sam-vit-base --local-dir' "$binary" predict --model facebook/sam-vit-base tests/golden/predict/wide.png --point 1,1 -o "$tmp/no.png"
check 'step: an id of the Hub' expect 2 'hf download facebook/sam-vit-base --local-dir' "$binary" step --model facebook/sam-vit-base --batch x --out y
check 'a checkpoint that is here' refused 2 'is a PyTorch checkpoint.*plimsoll convert .*/sam_vit_b_01ec64.pth -o models/sam_vit_b_01ec64; then use models/sam_vit_b_01ec64' \
    --set "model.path=$tmp/sam_vit_b_01ec64.pth"
check 'init: a checkpoint that is here' expect 2 'plimsoll convert.*/sam_vit_b_01ec64.pth -o models' "$binary" init --model "$tmp/sam_vit_b_01ec64.pth" --data "$tmp"
check 'predict: a checkpoint to download' expect 2 'curl -LO https://dl.fbaipublicfiles.com/segment_anything/sam_vit_h_4b8939.pth && plimsoll convert sam_vit_h_4b8939.pth -o models/sam_vit_h_4b8939' \
    "$binary" predict --model sam_vit_h_4b8939.pth tests/golden/predict/wide.png --point 1,1 -o "$tmp/no.png"
check 'convert: a checkpoint to download' expect 2 'mobile_sam.pt is not here. Download it.*MobileSAM/raw/master/weights/mobile_sam.pt' "$binary" convert mobile_sam.pt -o "$tmp/no"
check 'a preset as a path' refused 2 'sam-tiny is not a folder: it is the name of a preset' --set model.path=sam-tiny
check 'a preset mistyped' expect 2 'sam-tinny is not one of the presets .*did you mean sam-tiny\?' "$binary" init --model sam-tinny --data "$tmp"
check 'a folder of a folder mistyped' refused 2 'train_untid.*folder.*tests/golden has ' --set model.path=tests/golden/train_untid
meta() { mkdir -p "$tmp/meta" && echo '{}' >"$tmp/meta/params.json" && : >"$tmp/meta/consolidated.00.pth" && refused 2 "these are Meta's own files" --set "model.path=$tmp/meta"; }
check "Meta's own folder of a Llama" meta
pth_folder() { mkdir -p "$tmp/medsam" && : >"$tmp/medsam/medsam_vit_b.pth" && refused 2 'plimsoll convert .*/medsam/medsam_vit_b.pth -o FOLDER' --set "model.path=$tmp/medsam"; }
check 'a folder with a checkpoint by itself' pth_folder
no_config() { rm -f "$tmp/bare/config.json" && refused 2 'config.json' --set "model.path=$tmp/bare"; }
check 'no config.json' no_config
bad_config() { sed 's/"hidden_size": 24/"hidden_size": -24/' "$golden/config.json" >"$tmp/bare/config.json" && refused 2 'hidden_size' --set "model.path=$tmp/bare"; }
check 'a nonsensical config.json' bad_config
pad_token() { sed 's/"hidden_size"/"pad_token_id": 61, &/' "$golden/config.json" >"$tmp/bare/config.json" && refused 2 'pad_token_id is 61, it must be an id of the vocabulary of 61' --set "model.path=$tmp/bare"; }
check 'a padding token outside the vocabulary' pad_token

# --- the data -----------------------------------------------------------------------------------

: >"$tmp/empty.bin"
printf '\1\0\2\0\3\0' >"$tmp/short.bin"
printf '\1\0\2\0\3' >"$tmp/odd.bin"
check 'an empty token file' refused 2 'empty.bin.*empty' --set "data.train=$tmp/empty.bin"
check 'a token file too short for one sample' refused 2 'short.bin.*3 tokens.*16' --set "data.train=$tmp/short.bin"
check 'half a token at the end' refused 2 'odd.bin.*5 bytes' --set "data.train=$tmp/odd.bin"
check 'no file matches' refused 2 'nothing-\*.bin' --set "data.train=$tmp/nothing-*.bin"
check 'no data' refused 2 'data.train' --set data.train=null

# Files that hold no token ids are refused with what to do, and nothing is written.
printf 'It was the best of times, it was the worst of times, it was the age of wisdom.\n' >"$tmp/corpus.txt"
printf '{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]}\n' >"$tmp/chat.jsonl"
for f in corpus.py corpus.md corpus.csv corpus.json corpus.bin corpus.raw corpus; do cp "$tmp/corpus.txt" "$tmp/$f"; done
gzip -c "$tmp/corpus.txt" >"$tmp/corpus.txt.gz"
{ printf 'PAR1\025\004\025\200'; head -c 100 /dev/zero; printf 'PAR1'; } >"$tmp/table.parquet"
{ printf 'ARROW1\0\0'; head -c 100 /dev/zero; } >"$tmp/table.arrow"
head -c 100 /dev/zero >"$tmp/ids.dat"
not_tokens() { refused 2 "$1: it holds $2, not token ids. The model's tokenizer .*set data.format: bytes" --set "data.train=$tmp/$1"; }
for f in corpus.txt:text corpus.py:text corpus.md:text corpus.csv:'a table of text' corpus.json:JSON chat.jsonl:'JSON records' corpus.bin:text corpus.raw:text \
    corpus:text corpus.txt.gz:'gzip data' table.parquet:'a Parquet table' table.arrow:'an Arrow table'; do
    check "not tokens: ${f%%:*}" not_tokens "${f%%:*}" "${f#*:}"
done
check 'not tokens as validation data either' refused 2 'data.validation: .*corpus.txt: it holds text' --set "data.validation=$tmp/corpus.txt" --set train.eval_every=5
check 'raw integers of an unknown type' refused 2 'ids.dat: it is not a known token file.*set data.token_dtype' --set "data.train=$tmp/ids.dat"
bytes() {
    rm -rf "$tmp/bytes"
    expect 0 '' "$binary" train "$tmp/tiny.yaml" --set "data.train=$tmp/corpus.txt" --set data.sequence=16 --set train.steps=1 --set train.effective_batch=2 --set memory.micro_batch=2 \
        --set "train.out=$tmp/bytes" && grep -h 'format:' "$tmp/bytes/config.yaml"
}
check 'the bytes of a text, for those who mean it' bytes

# One token of the fifth batch is outside the vocabulary: four steps are good and saved. With the
# file repaired, the resumed run ends with the bytes of an undisturbed run.
vocabulary() {
    local out=$tmp/vocabulary
    cp "$golden/tokens.bin" "$tmp/ids.bin" && printf '\377\0' | dd of="$tmp/ids.bin" bs=1 seek=$((2 * (4 * 8 * 16 + 5))) conv=notrunc status=none
    local sets=(--set "data.train=$tmp/ids.bin" --set train.save_every=2)
    expect 2 'ids.bin: token 517 is 255.*61' train "$out" "${sets[@]}" || return 1
    no_debris "$out" && [ ! -e "$out/model" ] && steps_once "$out" 4 && cp "$tmp/err" "$tmp/first" || return 1
    cp "$golden/tokens.bin" "$tmp/ids.bin"
    expect 0 '' train "$out" "${sets[@]}" --resume && same_run "$tmp/object" "$out" 10 && cat "$tmp/first"
}
check 'an id outside the vocabulary: named, resumable' vocabulary

# The same in the first batch: no step ran, so no folder remains and the same command can start
# again.
first_batch() {
    local out=$tmp/first-batch
    printf '\377\0' | dd of="$tmp/ids.bin" bs=1 seek=10 conv=notrunc status=none
    expect 2 'ids.bin: token 5 is 255.*61' train "$out" --set "data.train=$tmp/ids.bin" --set data.shuffle=false && [ ! -e "$out" ] || return 1
    mkdir "$out" && expect 2 'token 5 is 255' train "$out" --set "data.train=$tmp/ids.bin" --set data.shuffle=false && [ -d "$out" ] && [ -z "$(ls -A "$out")" ] || return 1
    expect 0 '' train "$out" --set train.steps=1
}
check 'an id outside the vocabulary in the first batch: can start again' first_batch

batch() {
    local pattern=$1
    shift
    "$tools/forge" tests/golden/basic/batch.safetensors "$tmp/batch.safetensors" "$@" || return 1
    rm -f "$tmp/step.out"
    expect 2 "$pattern" "$binary" step --model tests/golden/basic --batch "$tmp/batch.safetensors" --out "$tmp/step.out" && absent "$tmp/step.out"
}
check 'step: an id outside the vocabulary' batch 'input_ids\[0,3\] is 9999' set input_ids 3 9999
check 'step: no input_ids' batch 'no input_ids' drop input_ids
check 'step: a wrong shape' batch 'input_ids.*rank 1' flatten input_ids
check 'step: a truncated batch' batch 'batch.safetensors' cut 8

# tower CASE PATTERN FORGERY...: the same for a batch of images.
tower() {
    local model=tests/golden/$1 pattern=$2
    shift 2
    "$tools/forge" tests/golden/clip_vision/batch.safetensors "$tmp/batch.safetensors" "$@" || return 1
    rm -f "$tmp/step.out"
    expect 2 "$pattern" "$binary" step --model "$model" --batch "$tmp/batch.safetensors" --out "$tmp/step.out" && absent "$tmp/step.out"
}
check 'step: no pixel_values' tower clip_vision 'no pixel_values' drop pixel_values
check 'step: pixels of a wrong rank' tower clip_vision 'pixel_values.*\[B,3,14,14\].*rank 1' flatten pixel_values
check 'step: a pixel that is not finite' tower clip_vision 'pixel_values, sample 0: element 5 is nan' set pixel_values 5 nan
check 'step: images of another size' tower clip_odd 'pixel_values.*\[2,3,14,14\]; expected \[B,3,15,15\]' set pixel_values 0 0
check 'step: pixels for a language model' tower basic 'unknown input pixel_values.*input_ids' set pixel_values 0 0
check 'train: a tower has no tokens' refused 2 'clip_vision_model takes pixel_values' --set model.path=tests/golden/clip_vision --set data.sequence=null

# prompted CASE PATTERN FORGERY...: the same for the case's own batch of prompts.
prompted() {
    local model=tests/golden/$1 pattern=$2
    shift 2
    "$tools/forge" "$model/batch.safetensors" "$tmp/batch.safetensors" "$@" || return 1
    rm -f "$tmp/step.out"
    expect 2 "$pattern" "$binary" step --model "$model" --batch "$tmp/batch.safetensors" --out "$tmp/step.out" && absent "$tmp/step.out"
}
check 'step: a label that no point has' prompted sam_points 'input_labels, sample 0: element 1 is 7, expected 1, 0, -1' set input_labels 1 7
check 'step: labels without points' prompted sam_points 'input_labels without input_points' drop input_points
check 'step: a place that is not finite' prompted sam_boxes 'input_boxes, sample 0: element 2 is nan' set input_boxes 2 nan
check 'step: a target that is not 0 or 1' prompted sam_target 'gt_masks, sample 0: element 3 is 2, expected 0 or 1' set gt_masks 3 2
check 'step: targets of a wrong rank' prompted sam_target 'gt_masks.*\[B,M,H,H\].*rank 1' flatten gt_masks

check 'step: an output folder that is not there' expect 2 'out.safetensors: no such folder: .*no-such$' "$binary" step --model tests/golden/basic \
    --batch tests/golden/basic/batch.safetensors --out "$tmp/no-such/out.safetensors"

# --- numbers that are not finite ------------------------------------------------------------------

diverged() {
    local out=$tmp/diverged
    rm -rf "$out"
    expect 1 "step 2: the $2 is -?(nan|inf); first seen in .*(model\.|lm_head)" train "$out" --set "train.learning_rate=$1" \
        --set train.warmup_steps=0 --set train.clip_norm=0 --set train.save_every=1 || return 1
    no_debris "$out" && [ -f "$out/checkpoints/step-1/DONE" ] && absent "$out/model"
}
check 'a loss that is not finite: step and tensor' diverged 1e20 loss
check 'a gradient that is not finite: step and tensor' diverged 1e30 'gradient norm'

# --- memory -------------------------------------------------------------------------------------

smallest() {
    local free=(--set memory.micro_batch=auto) least
    expect 3 'does not fit.*--memory' "$binary" plan "$golden/run.yaml" "${free[@]}" --memory 100KiB --json || return 1
    [ "$(json "$tmp/out" fits)" = false ] || return 1
    least=$(json "$tmp/out" smallest_budget_bytes) || return 1
    expect 3 "$least" train "$tmp/never" "${free[@]}" --memory $((least - 1)) --json && absent "$tmp/never" || return 1
    [ "$(json "$tmp/out" fits smallest_budget_bytes | tr '\n' ' ')" = "false $least " ] || { cat "$tmp/out"; return 1; }
    expect 0 '' train "$tmp/least" "${free[@]}" --memory "$least" --json || return 1
    [ "$(json "$tmp/out" allocated_bytes)" -le "$least" ] || { cat "$tmp/out"; return 1; }
    # The same model by another plan: within the bound of the split into micro-batches.
    "$tools/compare" "$tmp/object/model/model.safetensors" "$tmp/least/model/model.safetensors" --logits 1e-4 >/dev/null || { echo 'another result'; return 1; }
    echo "$least bytes run, $((least - 1)) do not"
}
tool compare
check 'the smallest budget runs, one byte less does not' smallest
step_memory() {
    rm -f "$tmp/step.out"
    expect 3 'does not fit' "$binary" step --model tests/golden/basic --batch tests/golden/basic/batch.safetensors --out "$tmp/step.out" --memory 1000 && absent "$tmp/step.out"
}
check 'step: does not fit' step_memory

other_plan() {
    expect 0 '' "$binary" plan tests/golden/train_tied/run.yaml -o "$tmp/tied.json" || return 1
    refused 2 'tied.json.*another model' --plan "$tmp/tied.json"
}
check 'a plan of another model' other_plan
cut_plan() { head -c 300 "$tmp/tied.json" >"$tmp/cut.json" && refused 2 'cut.json' --plan "$tmp/cut.json"; }
check 'a plan that is cut short' cut_plan
own_plan() {
    expect 0 '' "$binary" plan "$golden/run.yaml" -o "$tmp/own.json" && expect 0 '' train "$tmp/planned" --plan "$tmp/own.json" --json &&
        [ "$(json "$tmp/own.json" arena_bytes)" = "$(json "$tmp/out" allocated_bytes)" ] && same_run "$tmp/object" "$tmp/planned" 10
}
check 'its own plan is followed' own_plan
plan_nowhere() { expect 3 '' "$binary" plan "$golden/run.yaml" --memory 1 -o "$tmp/no-plan.json" && absent "$tmp/no-plan.json"; }
check 'plan -o writes nothing that does not fit' plan_nowhere

# --- disks --------------------------------------------------------------------------------------

# disk OPTIONS: mounts a small file system at $tmp/disk.
disk() {
    mkdir -p "$tmp/disk"
    umount "$tmp/disk" 2>/dev/null
    mount -t tmpfs -o "$1" tmpfs "$tmp/disk" 2>/dev/null || { echo 'this user cannot mount a tmpfs'; return 77; }
    mounts=$tmp/disk
}

read_only() {
    if [ "$(id -u)" -eq 0 ]; then
        disk size=1m || return
        mount -o remount,ro "$tmp/disk" || return 1
    else
        mkdir -p "$tmp/disk" && chmod 555 "$tmp/disk" || return 1
    fi
    expect 1 "disk.*(Read-only|Permission denied)" train "$tmp/disk/run" && absent "$tmp/disk/run" || return 1
    expect 1 "disk.*(Read-only|Permission denied)" "$binary" step --model tests/golden/basic --batch tests/golden/basic/batch.safetensors --out "$tmp/disk/out" &&
        absent "$tmp/disk/out"
}
check 'a read-only folder' read_only

full_before() {
    disk size=400k || return
    expect 1 'disk/run.*need .* bytes.*free' train "$tmp/disk/run" && absent "$tmp/disk/run"
}
check 'a full disk is found before the first step' full_before

# The run is paused until the disk is full.
full_during() {
    needs_preload || return
    disk size=2m || return
    local out=$tmp/disk/run rc=0 pid
    FAULT=stop:4 FAULT_PATH=$out/metrics.jsonl LD_PRELOAD=$tools/fault.so \
        "$binary" train "$golden/run.yaml" --set "train.out=$out" --set train.save_every=2 >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    stopped="$stopped $pid"
    while kill -0 "$pid" && ! grep -q '^State:.T' "/proc/$pid/status"; do sleep 0.02; done
    dd if=/dev/zero of="$tmp/disk/fill" bs=4k status=none 2>/dev/null
    kill -CONT "$pid"
    wait "$pid" || rc=$?
    [ "$rc" -eq 1 ] && grep -q 'No space left' "$tmp/err" || { echo "status $rc:"; cat "$tmp/err"; return 1; }
    no_debris "$out" && [ -f "$out/checkpoints/step-2/DONE" ] && [ ! -e "$out/model" ] || { find "$out"; return 1; }
    tail -n 1 "$tmp/err" >"$tmp/first"
    rm "$tmp/disk/fill"
    expect 0 'after step 2' train "$out" --set train.save_every=2 --resume && same_run "$tmp/object" "$out" 10 && steps_once "$out" 10 && cat "$tmp/first"
}
check 'a disk that fills up: status 1, earlier checkpoint whole' full_during

# A run that just fits on the disk must be resumable too: its old checkpoints take the room that the
# new ones need, and are removed first.
full_resume() {
    needs_preload || return
    disk size=2m || return
    local out=$tmp/disk/run need
    expect 1 '' train "$out" --set train.keep=1000 --set train.save_every=1 --set train.steps=2000 || return 1
    need=$(sed -n 's/.*(\([0-9]*\) bytes) on disk.*/\1/p' "$tmp/err")
    # need = (keep + 1) * each + model
    local model each
    model=$(du -bc "$tmp/object/model" | tail -n 1 | cut -f 1)
    each=$(((need - model) / 1001))
    dd if=/dev/zero of="$tmp/disk/fill" bs=1k count=$(((2097152 - 3 * each - model) / 1024 - 160)) status=none || return 1
    expect 137 '' env FAULT=kill:10 FAULT_PATH="$out/metrics.jsonl" LD_PRELOAD="$tools/fault.so" \
        "$binary" train "$golden/run.yaml" --set "train.out=$out" --set train.save_every=2 || return 1
    expect 0 '' train "$out" --set train.save_every=2 --resume && same_run "$tmp/object" "$out" 10
}
check 'a run on a disk that is just large enough can be resumed' full_resume

# A disk that is full from the N-th call on: for every N tried, status 1 and only complete files on
# the disk; the run resumes when there is room again.
full_at() {
    local out=$tmp/filling n=$1 rc=0
    rm -rf "$out"
    FAULT=nospace:$n FAULT_PATH=$out LD_PRELOAD=$tools/fault.so train "$out" --set train.save_every=3 >"$tmp/out" 2>"$tmp/err" || rc=$?
    [ "$rc" -eq 1 ] && grep -q 'No space left' "$tmp/err" || { echo "full at call $n, status $rc:"; cat "$tmp/err"; return 1; }
    no_debris "$out" && [ ! -e "$out/model" ] || { echo "full at call $n"; find "$out"; return 1; }
    set -- --set train.save_every=3
    ! begun "$out" || set -- "$@" --resume
    expect 0 '' env FAULT=count FAULT_PATH="$out" LD_PRELOAD="$tools/fault.so" "$binary" train "$golden/run.yaml" --set "train.out=$out" "$@" &&
        same_run "$tmp/object" "$out" 10 && steps_once "$out" 10 || { echo "full at call $n, resumed"; return 1; }
}
full_anywhere() {
    needs_preload || return
    local n tried=0 total
    expect 0 '' env FAULT=count FAULT_PATH="$tmp/counted" FAULT_LOG="$tmp/fault.log" LD_PRELOAD="$tools/fault.so" \
        "$binary" train "$golden/run.yaml" --set "train.out=$tmp/counted" --set train.save_every=3 || return 1
    total=$(cat "$tmp/fault.log")
    # The last calls only sync and rename, which takes no room.
    for ((n = 1; n < total - 12; n += n < 20 ? 2 : 13)); do
        full_at "$n" || return 1
        tried=$((tried + 1))
    done
    echo "$tried of $total calls that change files"
}
check 'a disk that fills up at any call: nothing half written' full_anywhere

step_full() {
    needs_preload || return
    local n rc
    for n in 1 2 3 4 6 9; do
        rm -f "$tmp/step.out"
        rc=0
        FAULT=nospace:$n FAULT_PATH=$tmp/step.out LD_PRELOAD=$tools/fault.so \
            "$binary" step --model tests/golden/basic --batch tests/golden/basic/batch.safetensors --out "$tmp/step.out" >"$tmp/out" 2>"$tmp/err" || rc=$?
        [ "$rc" -eq 1 ] && absent "$tmp/step.out" || { echo "call $n, status $rc"; cat "$tmp/err"; return 1; }
    done
    tail -n 1 "$tmp/err"
}
check 'step: a full disk leaves no output' step_full

summary
