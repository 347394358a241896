#!/bin/bash
# shellcheck disable=SC2015
# run_sam.sh: training on masks gives the same result for any number of reading threads, any split
# into micro-batches and chunks, with recomputation, and after a kill and resume.
#
#   bash tests/run_sam.sh         from the repository's root, after make; see run_lib.sh
#
# sam-tiny on a synthetic dataset. Bit-equal: killed and resumed, any number of reading threads,
# recomputation; with broken samples too. Within 1e-5 over five steps: micro-batches and chunks,
# with one round of prompts and with three.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault
# fault.so replaces fsync: these runs need not reach the disk.
sanitized || export LD_PRELOAD=$tools/fault.so

"$binary" data make "$tmp/set" --images 48 --shards 2 --size 96x80 --masks 5 >/dev/null || exit 2
"$binary" data make "$tmp/good" --images 200 --shards 1 --size 48x36 --masks 4 --extracted >/dev/null || exit 2
cat >"$tmp/sam.yaml" <<YAML
model: {preset: sam-tiny}
data: {format: sa1b, train: "$tmp/set/*.tar", max_masks: 4, image_size: 64}
train: {steps: 5, effective_batch: 8, learning_rate: 0.001, clip_norm: 1, out: "$tmp/unused"}
memory: {micro_batch: 8, precision: f32, recompute: none, head_chunks: 1}
device: cpu
YAML

# sam OUT [ARGUMENT...]: five steps; the output of --json goes to $tmp/OUT.json.
sam() {
    local out=$tmp/$1
    shift
    # FLAGS is a list of words.
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/sam.yaml" --set "train.out=$out" $FLAGS "$@" --json && cp "$tmp/out" "$out.json" && steady "$out.json"
}
steady() { [ "$(json "$1" allocations_in_steps)" -eq 0 ] || { echo "$(json "$1" allocations_in_steps) allocations in steps"; return 1; }; }
# killed OUT N [ARGUMENT...]: the same run, killed at its N-th write to metrics.jsonl.
killed() {
    local out=$tmp/$1 n=$2
    shift 2
    # shellcheck disable=SC2086
    FAULT=kill:$n FAULT_PATH=$out/metrics.jsonl expect 137 '' "$binary" train "$tmp/sam.yaml" --set "train.out=$out" $FLAGS "$@"
}

# --- reading ----------------------------------------------------------------------------------

# An epoch has six steps; checkpoints are at steps 4 and 8, both in the middle of an epoch.
long=(--set train.steps=10 --set train.save_every=4 --set train.keep=9)
calm() { sam calm "${long[@]}" && steps_once "$tmp/calm" 10; }
check 'an undisturbed run of ten steps' calm

resumed() {
    needs_preload || return
    killed cut 7 "${long[@]}" && killed cut 9 "${long[@]}" --set data.threads=4 --resume && grep -q 'resuming after step 4' "$tmp/err" || { cat "$tmp/err"; return 1; }
    sam cut "${long[@]}" --resume && grep 'resuming after step 8' "$tmp/err" || { cat "$tmp/err"; return 1; }
    same_run "$tmp/calm" "$tmp/cut" 10 && steps_once "$tmp/cut" 10 && no_debris "$tmp/cut"
}
check 'killed twice within epochs, resumed: same bytes' resumed

reading() {
    sam one "${long[@]}" --set data.threads=1 --set data.prefetch=1 && sam four "${long[@]}" --set data.threads=4 --set data.prefetch=19 || return 1
    same_run "$tmp/calm" "$tmp/one" 10 && same_run "$tmp/calm" "$tmp/four" 10
}
check '1 and 4 reading threads: same bytes' reading

# --- broken samples -----------------------------------------------------------------------------

# Of 200 samples one image is truncated and one mask has invalid run lengths: 1 %.
folder=$tmp/good/sa_000000
small=(--set "data.train=$folder" --set data.image_size=32 --set train.effective_batch=10 --set memory.micro_batch=10 --set train.steps=20 --set train.save_every=7 --set train.keep=9)
damage() {
    local bytes
    bytes=$(wc -c <"$folder/sa_17.jpg") && head -c $((bytes * 2 / 3)) "$folder/sa_17.jpg" >"$tmp/cut.jpg" && mv "$tmp/cut.jpg" "$folder/sa_17.jpg" || return 1
    sed -i 's/"counts": *"[^"]*"/"counts": "~~~"/g' "$folder/sa_90.json" && grep -q '~~~' "$folder/sa_90.json"
}
broken() {
    damage && sam bad1 "${small[@]}" --set data.threads=1 && cp "$tmp/err" "$tmp/bad.err" && sam bad4 "${small[@]}" --set data.threads=4 && same_run "$tmp/bad1" "$tmp/bad4" 20 || return 1
    [ "$(json "$tmp/bad1.json" broken_samples) $(json "$tmp/bad4.json" broken_samples)" = '2 2' ] || { cat "$tmp/bad1.json"; return 1; }
    grep -q 'broken sample .*sa_17' "$tmp/bad.err" && grep -q 'broken sample .*sa_90' "$tmp/bad.err" || { cat "$tmp/bad.err"; return 1; }
    echo '2 of 200, 1 and 4 threads'
}
check '1 % broken: finished, counted, named, same bytes' broken

broken_resumed() {
    needs_preload || return
    killed badcut 19 "${small[@]}" && sam badcut "${small[@]}" --resume && grep 'resuming after step 14' "$tmp/err" || { cat "$tmp/err"; return 1; }
    same_run "$tmp/bad1" "$tmp/badcut" 20 && [ "$(json "$tmp/badcut.json" broken_samples)" = 2 ]
}
check '1 % broken, killed, resumed: same bytes and count' broken_resumed

too_many() { expect 1 '2 of 200.*data.max_bad is 0.005;.*last.*sa_(17|90)' "$binary" train "$tmp/sam.yaml" --set "train.out=$tmp/stop" "${small[@]}" --set data.max_bad=0.005; }
check 'more broken samples than data.max_bad: the run stops' too_many

# --- memory techniques --------------------------------------------------------------------------

# losses RUN: the loss of each step.
losses() { sed -n 's/.*"loss":\([^,]*\),"learning.*/\1/p' "$tmp/$1/metrics.jsonl"; }
# agree A B: the losses of two runs agree within 1e-5 at each of five steps.
agree() {
    paste <(losses "$1") <(losses "$2") | awk '
        { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d; n++; if (!(d <= 1e-5)) bad = 1 }
        END { printf "largest relative difference %.1e over %d steps\n", most, n; exit bad || n != 5 }' || { paste <(losses "$1") <(losses "$2"); return 1; }
}
# technique NAME ROUNDS ARGUMENT...: the losses of the plain run, within 1e-5.
technique() {
    local name=$1-$2 plain=plain-$2
    shift 2
    sam "$name" --set "prompts.iterations=${plain#plain-}" "$@" && agree "$plain" "$name"
}
# exactly NAME ROUNDS ARGUMENT...: the bits of the plain run, in less memory.
exactly() {
    technique "$@" && same_run "$tmp/plain-$2" "$tmp/$1-$2" 5 || return 1
    [ "$(json "$tmp/$1-$2.json" arena_bytes)" -lt "$(json "$tmp/plain-$2.json" arena_bytes)" ] || { echo 'not in less memory'; return 1; }
    echo "$(json "$tmp/plain-$2.json" arena_bytes) -> $(json "$tmp/$1-$2.json" arena_bytes) bytes"
}
planned() {
    expect 0 '' "$binary" plan "$tmp/sam.yaml" "$@" --json
}
# as_planned NAME ARGUMENT...: the run NAME allocated the planned bytes.
as_planned() {
    local name=$1 plan run
    shift
    planned "$@" || return 1
    plan=$(json "$tmp/out" arena_bytes)
    run="$(json "$tmp/$name.json" arena_bytes) $(json "$tmp/$name.json" allocated_bytes)"
    [ "$run" = "$plan $plan" ] || { echo "plan $plan, run and allocated $run"; return 1; }
    echo "$plan bytes"
}
for rounds in 1 3; do
    check "rounds $rounds: five steps" sam "plain-$rounds" --set "prompts.iterations=$rounds"
    check "rounds $rounds: micro-batches of 2" technique micro $rounds --set memory.micro_batch=2
    check "rounds $rounds: head chunks 2" technique chunks $rounds --set memory.head_chunks=2
    check "rounds $rounds: recompute all, same bytes" exactly all $rounds --set memory.recompute=all
    check "rounds $rounds: recompute selective, same bytes" exactly selective $rounds --set memory.recompute=selective
    check "rounds $rounds: plan = run" as_planned "plain-$rounds" --set "prompts.iterations=$rounds"
    check "rounds $rounds: plan = run, micro-batches of 2" as_planned "micro-$rounds" --set "prompts.iterations=$rounds" --set memory.micro_batch=2
done

# --- freezing and the folder --------------------------------------------------------------------

# tensors FILE: name, shape, and first and last byte offset after the header of each tensor, one per
# line.
tensors() {
    local n
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c +9 "$1" | head -c "$n" | sed 's/}, */}\n/g' |
        sed -n 's/^{*"\([^"]*\)": *{"dtype": *"[^"]*", *"shape": *\(\[[^]]*\]\), *"data_offsets": *\[\([0-9]*\), *\([0-9]*\)\].*/\1 \2 \3 \4/p' | sed 's/, /,/g'
}
names() {
    diff <(tensors "$tmp/plain-1/model/model.safetensors" | cut -d ' ' -f 1,2 | sort) <(sed 's/, /,/g' tests/golden/sam_tiny_names.txt | sort) && echo "$(wc -l <tests/golden/sam_tiny_names.txt) tensors"
}
check "the folder has transformers' names and shapes" names

# A frozen encoder has no gradient, no optimizer state and no saved activation, whatever is trained
# after it.
frozen=(--set 'model.freeze=vision_encoder.*')
frozen_plan() {
    planned && cp "$tmp/out" "$tmp/all.plan" && planned "${frozen[@]}" && cp "$tmp/out" "$tmp/frozen.plan" || return 1
    local all part trained moments
    all=$(json "$tmp/all.plan" arena_bytes) part=$(json "$tmp/frozen.plan" arena_bytes)
    trained=$(json "$tmp/frozen.plan" trained_parameters) moments=$(json "$tmp/frozen.plan" breakdown.optimizer)
    echo "$all -> $part bytes, $trained weights trained"
    # AdamW's moments are two floats per weight; each tensor is padded to 256 bytes.
    [ "$trained" -lt $(($(json "$tmp/all.plan" trained_parameters) / 2)) ] && [ "$moments" -ge $((trained * 8)) ] && [ "$moments" -lt $((trained * 8 + 202 * 2 * 256)) ] || return 1
    [ $((all - part)) -gt $(($(json "$tmp/all.plan" breakdown.optimizer) - moments)) ]
}
check 'a frozen encoder: the plan' frozen_plan

frozen_run() {
    sam rate0 --set train.steps=1 --set train.learning_rate=0 && sam frozen "${frozen[@]}" && as_planned frozen "${frozen[@]}" || return 1
    local before=$tmp/rate0/model/model.safetensors after=$tmp/frozen/model/model.safetensors state=$tmp/frozen/checkpoints/step-5/state.safetensors from name first end n=0 changed=0
    ! tensors "$state" | grep -q vision_encoder && tensors "$state" | grep -q mask_decoder || { echo 'the state:'; tensors "$state" | grep vision_encoder; return 1; }
    diff <(tensors "$before") <(tensors "$after") || return 1
    from=$((8 + $(od -An -tu8 -N8 "$before")))
    while read -r name _ first end; do
        if cmp -s -i $((from + first)) -n $((end - first)) "$before" "$after"; then
            case $name in vision_encoder.*) n=$((n + 1)) ;; esac
        else
            case $name in vision_encoder.* | *positional_embedding) echo "$name changed"; return 1 ;; esac
            changed=$((changed + 1))
        fi
    done < <(tensors "$before")
    echo "$n tensors of the encoder as they were, $changed others trained"
    [ "$n" -eq "$(grep -c '^vision_encoder' tests/golden/sam_tiny_names.txt)" ] && [ "$changed" -gt 80 ]
}
check 'a frozen encoder: no state, the same bytes' frozen_run

summary
