#!/bin/bash
# run_torture.sh: the smallest run of every command, with its N-th fallible call failing
# (tests/torture.c): an allocation, an open, a read, a write, a rename, a mapping, a thread, a call
# of MPI or CUDA.
#
#   bash tests/run_torture.sh                from the repository's root, after make; see run_lib.sh
#   CALLS=2                                  2 calls of each command fail, one a run, spread over the distinct places
#   CALLS=places                             each distinct place fails once
#   CALLS=all, CALLS=1/16                    every call fails once, or every 16th
#   LASTING=+                                all later calls of its kind fail with it
#   COMMANDS='plan train'                    these commands; default: all
#   JOBS=2                                   runs in parallel
#
# Whatever fails, a command ends by itself with status 0, 1, 2 or 3, never by a signal. With 0, it
# has written what it writes without the failure. Otherwise its last line on standard error says
# why, no partly written or temporary file is left, and each file that it wrote is whole. `train`
# then ends with the same weights when it is started again with --resume auto.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload torture
CALLS=${CALLS:-2}
JOBS=${JOBS:-$(nproc)}
export in=$tmp/in binary tools tmp DEVICE LASTING=${LASTING:-} OMP_NUM_THREADS=1
mkdir -p "$in"

# ---- inputs ----
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
make_model llava_clip_llama "$in/llava" || exit 2
"$binary" data make "$in/set" --images 2 --shards 1 --size 64x48 --masks 2 >/dev/null || exit 2
cp tests/golden/predict/wide.png "$in/a.png"
printf 'one line\nof text\n' >"$in/text.txt"
printf '[{"messages": [{"role": "user", "content": "a b?"}, {"role": "assistant", "content": "c"}]}]\n' >"$in/chats.json"
printf '[{"role": "user", "content": "a b?"}]\n' >"$in/chat.json"
cat >"$in/tokens.yaml" <<YAML
model: {preset: llama-tiny}
data: {format: bytes, train: "$in/text.txt", sequence: 8}
train: {steps: 2, effective_batch: 2, save_every: 1, learning_rate: 0.001, out: "$tmp/unused"}
memory: {micro_batch: 1, precision: f32}
device: {kind: $DEVICE, threads: 1}
YAML
cat >"$in/masks.yaml" <<YAML
model: {preset: sam-tiny}
data: {format: sa1b, train: "$in/set/sa_*.tar", max_masks: 1, image_size: 64, threads: 1}
train: {steps: 1, effective_batch: 1, learning_rate: 0.001, out: "$tmp/unused"}
memory: {precision: f32}
device: {kind: $DEVICE, threads: 1}
YAML
cat >"$in/chats.yaml" <<YAML
model: {path: "$in/llava"}
data: {format: conversations, train: "$in/chats.json", sequence: 32}
adapter: {r: 2, target_modules: [q_proj]}
train: {steps: 1, effective_batch: 1, learning_rate: 0.001, out: "$tmp/unused"}
memory: {precision: f32}
device: {kind: $DEVICE, threads: 1}
YAML
"$binary" train "$in/tokens.yaml" --set "train.out=$in/run" >/dev/null 2>&1 || exit 2
"$binary" train "$in/chats.yaml" --set "train.out=$in/adapted" >/dev/null 2>&1 && mv "$in/adapted/model" "$in/adapter" || exit 2
"$binary" data tokenize "$in/chats.yaml" -o "$in/tokenized" >/dev/null 2>&1 || exit 2

# ---- commands ----

# arguments COMMAND: sets `args`, the smallest run of a command, which writes into the folder $out.
arguments() {
    local kind=(--set "device.kind=$DEVICE" --set device.threads=1)
    case $1 in
        init) args=(init --model sam-tiny --data "$in/set") ;;
        modules) args=(modules "$in/tokens.yaml") ;;
        plan) args=(plan "$in/tokens.yaml" --memory 6MiB -o "$out/plan.json") ;;
        train) args=(train "$in/tokens.yaml" --set "train.out=$out/run") ;;
        train-masks) args=(train "$in/masks.yaml" --set "train.out=$out/run") ;;
        train-adapter) args=(train "$in/chats.yaml" --set "train.out=$out/run") ;;
        train-rank*) args=(train "$in/tokens.yaml" --ranks 2 --set "train.out=$out/run") ;;
        eval) args=(eval "$in/masks.yaml" --set data.holdout=0.5 --model sam-tiny --images "$out/scores.csv") ;;
        predict) args=(predict "$in/a.png" --model sam-tiny --point 9,9 -o "$out/mask.png" --overlay "$out/overlay.png" --json "$out/mask.json" "${kind[@]}") ;;
        generate) args=(generate --model "$in/llava" --chat "$in/chat.json" --max-new 2 "${kind[@]}") ;;
        report) args=(report "$out/run") ;;
        data-make) args=(data make "$out/set" --images 1 --shards 1 --size 32x32 --masks 1) ;;
        data-prepare) args=(data prepare "$in/set" -o "$out/set" --long-side 32) ;;
        data-inspect) args=(data inspect "$in/set" -o "$out/sheet.png") ;;
        data-verify) args=(data verify "$in/set") ;;
        data-pack) args=(data pack "$in/set" -o "$out/set.pack" --size 32) ;;
        data-tokenize) args=(data tokenize "$in/chats.yaml" -o "$out/tokenized") ;;
        tokenize) args=(tokenize --model "$in/llava" "$in/text.txt" --json) ;;
        convert) args=(convert "$in/llava" --adapter "$in/adapter" -o "$out/model") ;;
        convert-4bit) args=(convert "$in/llava" --adapter "$in/adapter" --quantize nf4 -o "$out/model") ;;
        doctor) args=(doctor "$in/tokens.yaml" --steps 1) ;;
        profile) args=(profile "$in/tokens.yaml" --steps 1 -o "$out/profile") ;;
        bench) args=(bench "$in/tokens.yaml" --steps 1) ;;
        step) args=(step --model tests/golden/basic --batch tests/golden/basic/batch.safetensors --out "$out/out.safetensors" "${kind[@]}") ;;
    esac
}
commands='init modules plan train train-masks train-adapter train-ranks train-rank-0 train-rank-1 eval predict generate
    report data-make data-prepare data-inspect data-verify data-pack data-tokenize tokenize convert convert-4bit doctor
    profile bench step'

# begin COMMAND FOLDER: makes the folder $out, and sets `args`. Only the rank that the command names
# fails, or with train-ranks the process that starts them.
begin() {
    export out=$2
    unset TORTURE_RANK
    [[ $1 != train-rank-* ]] || export TORTURE_RANK=${1##*-}
    mkdir -p "$out"
    [ "$1" != report ] || cp -R "$in/run" "$out/run"
    arguments "$1"
}

# ---- one run with a failure ----

# says_why STATUS: the status is one with which a command ends, and a failure has a sentence.
says_why() {
    case $1 in
        0) ;;
        1 | 2 | 3) grep -Eq "^(\[rank [0-9]+ on [^]]*\] |[a-z]).* .* .*" "$err" || { echo "no sentence"; return 1; } ;;
        137) echo "it did not end, or was killed"; return 1 ;;
        *) echo "a crash"; return 1 ;;
    esac
}
# whole STATUS: every file in $out is one of an undisturbed run and equal to it; with status 0 none
# is missing. - A command that warns and goes on, as with a sample that cannot be read, may write
# other values. - A run that ends while it saves, and data make, leave what they remove or finish
# when they are started again, as after a kill. - Files with times differ, and so does the sheet of
# samples: it shows that a sample cannot be read.
whole() {
    local f good=$tmp/whole.$name
    if [ "$1" -eq 0 ] && grep -qE '^ *(warning|left out): ' "$err" "$err.out"; then return 0; fi
    while read -r f; do
        case $f in
            */tb/* | run/*.tmp/*) continue ;;
            set/.make) [ "$1" -eq 0 ] || continue ;;
        esac
        [ -f "$good/$f" ] || { echo "left behind: $f"; return 1; }
        case $f in
            */metrics.jsonl | */report.html | *.idx | sheet.png | */config.yaml | */.lock | profile/*) ;;
            *) cmp "$out/$f" "$good/$f" || return 1 ;;
        esac
    done < <(cd "$out" && find . -type f -printf '%P\n')
    [ "$1" -eq 0 ] || return 0
    while read -r f; do [ -f "$out/$f" ] || { echo "missing: $f"; return 1; }; done < <(cd "$good" && find . -type f ! -path '*/tb/*' ! -name '*.idx' -printf '%P\n')
}
# again STATUS: a training run that failed ends with the weights of an undisturbed one when it is
# started again.
again() {
    local f
    [ "$1" -ne 0 ] && [[ $name == train* ]] || return 0
    "$binary" "${args[@]}" --resume auto >"$err.out" 2>&1 || { echo "started again: $(tail -n 1 "$err.out")"; return 1; }
    for f in model/model.safetensors model/adapter_model.safetensors; do
        [ ! -f "$tmp/whole.$name/run/$f" ] || cmp "$out/run/$f" "$tmp/whole.$name/run/$f" || return 1
    done
}
# strike COMMAND CALL: runs the command with that call failing. Prints a line if it ends badly.
strike() {
    local name=$1 rc=0 why err=$tmp/strike.$1.$2.err
    begin "$name" "$tmp/strike.$1.$2"
    { TORTURE=$2$LASTING TORTURE_LOG=$err.log LD_PRELOAD=$tools/torture.so TMPDIR=$out timeout -s KILL 120 "$binary" "${args[@]}" >"$err.out" 2>"$err" </dev/null; } 2>/dev/null || rc=$?
    why=$(says_why $rc && whole $rc && again $rc) && rm -rf "$out" "$err" "$err".* ||
        echo "call $2, $(sed -n 's/^[0-9]* //p' "$err.log" | tail -n 1): status $rc, $(tail -n 1 <<<"$why"); it said: $(tail -n 1 "$err")"
}
export -f arguments begin says_why whole again strike

# chosen COMMAND: prints the numbers of the calls that fail.
chosen() {
    local log=$tmp/calls.$1 n
    n=$(head -n 1 "$log" | tr -d " ")
    case $CALLS in
        all) seq 1 "$n" ;;
        1/*) seq 1 "${CALLS#1/}" "$n" ;;
        places) awk 'NR > 1 { print $1 }' "$log" ;;
        *) awk -v want="$CALLS" 'NR > 1 { at[++n] = $1 } END { for (i = 0; i < want && i < n; i++) print at[1 + int((i + 0.5) * n / want)] }' "$log" ;;
    esac
}
# struck COMMAND: all of the chosen calls.
struck() {
    needs_preload || return
    local name=$1 n
    begin "$name" "$tmp/whole.$name"
    TORTURE=0 TORTURE_LOG=$tmp/calls.$name LD_PRELOAD=$tools/torture.so TMPDIR=$out "$binary" "${args[@]}" >"$tmp/out" 2>"$tmp/err" || { tail -n 1 "$tmp/err"; return 1; }
    n=$(chosen "$name" | wc -l)
    chosen "$name" | xargs -P "$JOBS" -I{} bash -c 'strike "$@"' - "$name" {} >"$tmp/bad"
    cat "$tmp/bad"
    echo "$((n - $(wc -l <"$tmp/bad"))) of $n failing calls ($(head -n 1 "$tmp/calls.$name" | tr -d ' ') in all) end well"
    [ "$n" -gt 0 ] && [ ! -s "$tmp/bad" ]
}
for c in ${COMMANDS:-$commands}; do
    if [[ $c == train-rank* ]] && [ ! -e "$BUILD/plimsoll-mpi.so" ]; then continue; fi
    check "plimsoll $c" struck "$c"
done
summary
