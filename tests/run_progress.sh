#!/bin/bash
# run_progress.sh: what people read while a long command runs, and the units of what it prints.
#
# Progress goes to stderr: plain lines now and then in a pipe, one line that is rewritten on a
# terminal, nothing from a short command. Sizes are in KiB, MiB, GiB; times in ms, s, min, h, never
# with an exponent. PLIMSOLL_PROGRESS is the number of seconds between the lines; the checks lower
# it, so that short commands show some.
#
#   bash tests/run_progress.sh     from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

data=$tmp/images
printf 'model: {preset: sam-tiny}\ndata: {format: sa1b, train: "%s/*.tar", max_masks: 3, image_size: 64}\ntrain: {effective_batch: 2, steps: 2, out: %s/run}\ndevice: cpu\n' \
    "$data" "$tmp" >"$tmp/masks.yaml"
printf 'model: {preset: llama-1b}\ndata: {sequence: 1024}\ntrain: {effective_batch: 32}\nmemory: {precision: f32}\ndevice: cpu\n' >"$tmp/words.yaml"
small=(--set model.preset=llama-tiny --set data.sequence=32 --set train.effective_batch=4)
escape=$(printf '\033')
left='[0-9.]+ (s|min|h)( [0-9]+ (s|min|h))? left$'

# lines PATTERN COMMAND...: the command succeeds; its stderr has lines of progress and no control
# characters.
lines() {
    local pattern=$1
    shift
    PLIMSOLL_PROGRESS=0.001 expect 0 '' "$@" || return 1
    ! grep -q "$escape" "$tmp/err" && ! grep -q $'\r' "$tmp/err" || { echo 'control characters:'; cat -v "$tmp/err"; return 1; }
    grep -E "$pattern" "$tmp/err" >"$tmp/found" || { echo "no line like $pattern:"; cat "$tmp/err"; return 1; }
    tail -n 1 "$tmp/found"
}
check 'data make' lines "^making [0-9]+/60 images  [0-9.]+ images/s  $left" "$binary" data make "$data" --images 60 --size 256x192 --masks 3
check 'data inspect --json' lines "^inspecting [0-9]+/60 images .*$left" "$binary" data inspect "$data" --json
json_alone() { [ "$(head -c 1 "$tmp/out")" = '{' ] && ! grep -q inspecting "$tmp/out" && json "$tmp/out" samples; }
check 'progress is not in the JSON' json_alone
check 'data verify' lines "^verifying [0-9]+/60 images .*$left" "$binary" data verify "$data"
check 'data pack' lines "^packing [0-9]+/60 images .*$left" "$binary" data pack "$data" -o "$tmp/all.pack" --size 256
encoder() {
    lines 'step 2/2' "$binary" train "$tmp/masks.yaml" || return 1
    "$binary" data make "$tmp/few" --images 6 --size 64x64 --masks 2 >/dev/null || return 1
    lines "^packing with embeddings [0-9]+/6 images .*$left" "$binary" data pack "$tmp/few" -o "$tmp/embedded.pack" --embeddings "$tmp/run/model" --size 64
}
check 'data pack --embeddings' encoder
train_line() { grep -E "^step 2/2  loss [0-9.]+  lr [0-9.e-]+  grad [0-9.]+  [0-9.]+ images/s  [0-9.]+ [KMG]iB  0 s left$" "$tmp/train"; }
worst() {
    rm -rf "$tmp/run"
    lines '^evaluating [0-9]+/[0-9]+ batches' "$binary" train "$tmp/masks.yaml" --set data.holdout=0.05 --set train.worst=4 || return 1
    cp "$tmp/err" "$tmp/train"
    grep -E '^drawing the worst masks: [0-9]/4 masks' "$tmp/err"
}
check 'train: evaluation and worst masks' worst
check 'train: the line of a step' train_line
check 'plan --frontier' lines "^planning [0-9]+/[0-9]+ budgets .*$left" "$binary" plan "$tmp/words.yaml" --frontier
doctor() {
    lines "^largest micro-batch with (this plan's|any) techniques: [0-9]+ plans, [0-9]+ s so far" "$binary" doctor "$tmp/words.yaml" "${small[@]}" --memory 60MiB --steps 3 || return 1
    grep -E "^planning changes: [0-9]+/[0-9]+ plans" "$tmp/err" && grep -E "^measuring [0-9]+/3 steps" "$tmp/err"
}
check 'doctor' doctor

# A command that takes a moment says nothing, and 0 silences the longer ones.
silent() { expect 0 '' "$binary" data verify "$data" && [ ! -s "$tmp/err" ] || { cat "$tmp/err"; return 1; }; }
check 'a short command shows no progress in a pipe' silent
off() { PLIMSOLL_PROGRESS=0 expect 0 '' "$binary" train "$tmp/masks.yaml" --set "train.out=$tmp/off" && ! grep '^step' "$tmp/err"; }
check 'PLIMSOLL_PROGRESS=0 shows none' off

# On a terminal of 60 columns: the line is rewritten, never wraps, and is gone at the end.
terminal() {
    command -v script >/dev/null || { echo 'no script'; return 77; }
    script -qec "stty cols 60; $binary data verify $data >$tmp/out" "$tmp/screen" >/dev/null </dev/null || { cat -v "$tmp/screen"; return 1; }
    sed '/^Script /d' "$tmp/screen" | tr '\r' '\n' | sed "s/$escape\[K//g" | grep . >"$tmp/updates" || { echo 'the terminal shows nothing:'; cat -v "$tmp/screen"; return 1; }
    awk 'length > 59 { print "wraps: " $0; exit 1 }' "$tmp/updates" || return 1
    sed '/^Script /d' "$tmp/screen" | tr -d '\n' | tail -c 4 | grep -q "$escape\[K" || { echo 'the line is left on the screen:'; cat -v "$tmp/screen"; return 1; }
    grep -q '^verifying' "$tmp/updates" && tail -n 1 "$tmp/updates"
}
check 'a terminal: one line, rewritten' terminal

# Units: no exponents in times, no powers of 1000 in sizes.
units() { # PATTERN COMMAND...
    local pattern=$1
    shift
    expect 0 '' "$@" || return 1
    ! grep -E '[0-9]e[+-]?[0-9]+ ?(s|ms|us)|[0-9] ?[KMG]B' "$tmp/out" "$tmp/err" || return 1
    grep -ohE "$pattern" "$tmp/out" "$tmp/err" | head -n 1 | grep .
}
check 'plan: a step of half an hour' units 'predicted step time [0-9]+ min( [0-9]+ s)?' "$binary" plan "$tmp/words.yaml" --memory 16GiB
check 'plan --compare' units '[0-9.]+ GiB +[0-9]+ min( [0-9]+ s)? +[0-9.]+x' "$binary" plan "$tmp/words.yaml" --compare
check 'doctor: what changes cost' units 'B +\+[0-9.]+ (us|ms|s) +--set memory' "$binary" doctor "$tmp/words.yaml" "${small[@]}" --steps 0
check 'data inspect: the memory of masks' units 'float32 +[0-9.]+ (MiB|KiB) +[0-9.]+ MiB +[0-9.]+ (MiB|KiB)' "$binary" data inspect "$data"
check 'train: the memory line' units '\[Step 1\] CPU: Alloc=[0-9.]+ [KMG]iB Reserved=[0-9.]+ [KMG]iB \([0-9.]+% of Total\)' "$binary" train "$tmp/masks.yaml" --set "train.out=$tmp/units"
summary
