#!/bin/bash
# shellcheck disable=SC2015
# run_resume.sh: what `train --resume` refuses or reports, before it changes a file.
#
#   bash tests/run_resume.sh      from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault

# A run of 4 steps on copies of the golden model and its tokens, with a frozen embedding; 2 steps
# are done.
cp -r "$golden" "$tmp/model" || exit 2
own=(--set "model.path=$tmp/model" --set "data.train=$tmp/model/tokens.bin" --set "model.freeze=[model.embed_tokens.weight]" --set train.save_every=1 --set train.keep=2)
half() { rm -rf "$tmp/half" && expect 0 '' train "$tmp/half" "${own[@]}" --set train.steps=2 && sum "$tmp/half" >"$tmp/before"; }
# sum RUN: every file of the run with its checksum.
sum() { (cd "$1" && find . -type f ! -name .lock -exec cksum {} + | sort -k 3); }
# refused PATTERN: the resume stops with PATTERN, and no file of the run changed.
refused() {
    expect 2 "$1" train "$tmp/half" "${own[@]}" --set train.steps=4 --resume && sum "$tmp/half" >"$tmp/after" && diff "$tmp/before" "$tmp/after" && tail -n 1 "$tmp/err"
}
resumed() { expect 0 "$1" train "$tmp/half" "${own[@]}" --set train.steps=4 --resume && steps_once "$tmp/half" 4; }

no_checkpoint() {
    half && rm -r "$tmp/half/checkpoints" && sum "$tmp/half" >"$tmp/before" && refused 'half has no checkpoint to resume from, only the final model, in model/; to start again from step 0, remove the folder .* or set another train.out, and leave --resume out'
}
check 'without a checkpoint: refused, nothing changes' no_checkpoint
killed_early() {
    needs_preload || return
    rm -rf "$tmp/half"
    FAULT=kill:3 FAULT_PATH=$tmp/half/metrics.jsonl LD_PRELOAD=$tools/fault.so expect 137 '' train "$tmp/half" "${own[@]}" --set train.save_every=0 --set train.steps=4
    sum "$tmp/half" >"$tmp/before" && refused 'no checkpoint to resume from; to start again'
}
check 'killed before the first checkpoint: refused' killed_early

# One command for every job of a queue: it begins, begins again what has no checkpoint, and
# continues.
automatic() {
    rm -rf "$tmp/half"
    local run=(train "$tmp/half" "${own[@]}" --set train.steps=4 --resume auto)
    expect 0 'resume auto: .*half has no checkpoint; the run begins' "${run[@]}" --set train.steps=2 && expect 0 'resuming after step 2' "${run[@]}" && steps_once "$tmp/half" 4 || return 1
    rm -r "$tmp/half/checkpoints" && expect 2 'has no checkpoint to resume from, only the final model' "${run[@]}" || return 1
    rm -r "$tmp/half/model" && expect 0 'has no checkpoint; the run begins' "${run[@]}" && steps_once "$tmp/half" 4 && [ -d "$tmp/half/model" ] || return 1
    mkdir "$tmp/thesis" && touch "$tmp/thesis/text" && expect 2 'the folder is not empty, and holds no run' train "$tmp/thesis" "${own[@]}" --set train.steps=1 --resume=auto &&
        expect 2 '--resume' train "$tmp/thesis" "${own[@]}" --resume=maybe && cat "$tmp/err"
}
check 'resume auto: begins, begins again, continues' automatic

# flip FILE BYTE: changes one bit.
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1") && printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
flipped_tensor() {
    half && flip "$tmp/half/checkpoints/step-2/state.safetensors" $(($(wc -c <"$tmp/half/checkpoints/step-2/state.safetensors") - 1000)) && sum "$tmp/half" >"$tmp/before" &&
        refused 'step-2/state.safetensors: it is damaged: the checksum is wrong; .*step-1 is intact: remove .*/step-2' || return 1
    rm -r "$tmp/half/checkpoints/step-2" && resumed 'resuming after step 1'
}
check 'a changed bit in state.safetensors: refused' flipped_tensor
flipped_json() {
    half && sed -i 's/"position": 16/"position": 17/' "$tmp/half/checkpoints/step-2/state.json" && sum "$tmp/half" >"$tmp/before" && refused 'step-2/state.json: it is damaged: the checksum is wrong'
}
check 'a changed digit in state.json: refused' flipped_json
# State of a program without checksums and fingerprint of the model.
older() { half && sed -i '/crc32c\|"model"/d; s/\("data": "[0-9a-f]*"\),/\1/' "$tmp/half/checkpoints/step-2/state.json" && resumed 'resuming after step 2'; }
check 'a checkpoint without checksums resumes' older

frozen() {
    half && cp "$tmp/model/model.safetensors" "$tmp/kept" && cp "$tmp/kept" "$tmp/other" || return 1
    # The frozen embedding is the first tensor of the data.
    flip "$tmp/other" $((8 + $(od -An -tu8 -N 8 "$tmp/kept") + embedding)) && mv "$tmp/other" "$tmp/model/model.safetensors"
    refused 'the frozen weights of model.path, .*model, changed since the checkpoint was saved: restore the folder'
    local rc=$?
    cp "$tmp/kept" "$tmp/model/model.safetensors"
    return $rc
}
embedding=$(grep -ao '"model.embed_tokens.weight":{[^}]*}' "$tmp/model/model.safetensors" | sed 's/.*"data_offsets":\[\([0-9]*\),.*/\1/')
check 'changed frozen weights: refused' frozen
# The values of trained tensors are in the checkpoint: the model folder may have others.
trained() {
    half && cp "$tmp/model/model.safetensors" "$tmp/kept" && cp "$tmp/kept" "$tmp/other" && flip "$tmp/other" $(($(wc -c <"$tmp/kept") - 8)) && mv "$tmp/other" "$tmp/model/model.safetensors" && resumed 'resuming after step 2'
    local rc=$?
    cp "$tmp/kept" "$tmp/model/model.safetensors"
    return $rc
}
check 'changed trained weights: resumed' trained
config() {
    half && cp "$tmp/model/config.json" "$tmp/kept.json" && sed -i 's/\("rms_norm_eps": *\)[^,]*/\10.001/' "$tmp/model/config.json" && ! cmp -s "$tmp/kept.json" "$tmp/model/config.json" || return 1
    refused 'config.json of model.path, .*, changed since the checkpoint was saved'
    local rc=$?
    cp "$tmp/kept.json" "$tmp/model/config.json"
    return $rc
}
check 'a changed config.json: refused' config
tokens() {
    half && cp "$tmp/model/tokens.bin" "$tmp/kept.bin" && flip "$tmp/model/tokens.bin" 100 && resumed 'warning: resume: the files of data.train are not those of the checkpoint' || return 1
    cp "$tmp/kept.bin" "$tmp/model/tokens.bin" && half && resumed '' && ! grep 'not those' "$tmp/err"
}
check 'a changed token: reported' tokens

# The lock file is removed while a run is alive: the folder still has one writer.
unlocked() {
    needs_preload || return
    local out=$tmp/locked rc=0
    FAULT=stop:4 FAULT_PATH=$out/metrics.jsonl LD_PRELOAD=$tools/fault.so "$binary" train "$golden/run.yaml" --set "train.out=$out" --set train.steps=6 --set train.save_every=1 >"$tmp/paused.out" 2>"$tmp/paused.err" &
    local pid=$!
    stopped=$pid
    for _ in $(seq 300); do
        grep -q '^State:.T' "/proc/$pid/status" 2>/dev/null && break
        sleep 0.05
    done
    rm "$out/.lock"
    expect 1 'another run, process unknown, is using this folder' train "$out" --set train.steps=6 --set train.save_every=1 --resume || rc=1
    kill -CONT "$pid" && wait "$pid" || rc=1
    stopped=
    [ "$rc" -eq 0 ] && steps_once "$out" 6
}
check 'a removed lock file: one writer' unlocked

summary
