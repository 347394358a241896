#!/bin/bash
# shellcheck disable=SC2015
# run_precision.sh: whole runs in f16 and in bf16 without master weights.
#
#   bash tests/run_precision.sh   after make; MODELS and SECTIONS (models runs): see run_lib.sh
#
# Losses fall and stay near those of f32. The loss scale falls, grows and is reported. A skipped
# step, a kill and another number of threads change no bit of the later steps. A run that cannot be
# trained in f16 ends and names the tensor. The arena shrinks as the precision implies.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
preload fault
# fault.so replaces fsync: these runs need not reach the disk.
sanitized || export LD_PRELOAD=$tools/fault.so

"$binary" data make "$tmp/set" --images 16 --shards 1 --size 96x80 --masks 5 >/dev/null || exit 2
for m in sam-tiny tinysam-tiny; do
    cat >"$tmp/$m.yaml" <<YAML
model: {preset: $m}
data: {format: sa1b, train: "$tmp/set/*.tar", max_masks: 4, image_size: 64}
train: {steps: 4, effective_batch: 4, learning_rate: 0.001, clip_norm: 1, out: "$tmp/unused"}
memory: {micro_batch: 2}
device: $DEVICE
YAML
done

# losses RUN: the loss of each step, one per line; that of a skipped step may be null.
losses() { sed -n 's/^{"step":[0-9]*,"loss":\([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
field() { sed -n "s/.*\"$2\":\([^,}]*\)[,}].*/\1/p" "$1/metrics.jsonl"; }
# falls RUN: the last loss is finite and below the first.
falls() { losses "$1" | awk 'NR == 1 { a = $1 } { b = $1 } !($1 > 0) { bad = 1 } END { print a " -> " b; exit bad || !(b < a) }'; }
# near A B SHARE: the last losses of two runs differ by at most this share.
near() { awk -v a="$(losses "$1" | tail -n 1)" -v b="$(losses "$2" | tail -n 1)" -v most="$3" 'BEGIN { d = (a - b) / b; if (d < 0) d = -d; print a " and " b; exit d > most }'; }
bytes() { json "$1/plan.json" arena_bytes; }

# --- three models in four precisions ------------------------------------------------------------

# model NAME PRECISION
model() {
    local out=$tmp/$1-$2
    case $1 in
        llama-tiny) expect 0 '' train_tiny "$out" --set memory.precision="$2" --set memory.micro_batch=4 || return 1 ;;
        # shellcheck disable=SC2086
        *) expect 0 '' "$binary" train "$tmp/$1.yaml" --set "train.out=$out" --set memory.precision="$2" $FLAGS || return 1 ;;
    esac
    falls "$out" && near "$out" "$tmp/$1-f32" 0.03
}
tried=$(part models && models llama sam tinysam | sed 's/$/-tiny/')
for m in $tried; do for p in f32 bf16 f16 bf16-pure; do
    check "$m in $p: finite, falling, near f32" model "$m" $p
done; done

# f16 has one storage less than bf16: the gradient of the loss is a constant 1 in a storage of its
# own with bf16, and with f16 it is the loss scale, which is in the step's inputs anyway. A storage
# of one number takes 256 bytes, the unit of a plan. On the CPU this storage is not alive at the
# peak, so the sizes are equal. On a GPU workspaces move the peak, and the sizes differ: by that
# storage, or by how the others pack.
smaller() {
    local a b h c unit=256
    [ "$DEVICE" != cpu ] || unit=0
    a=$(bytes "$tmp/$1-f32") b=$(bytes "$tmp/$1-bf16") h=$(bytes "$tmp/$1-f16") c=$(bytes "$tmp/$1-bf16-pure")
    [ "$h" -le "$b" ] && [ $((b - h)) -le $unit ] && [ "$c" -lt "$h" ] && [ "$b" -lt "$a" ] && echo "$a -> $b -> $c bytes" ||
        { echo "f32 $a, bf16 $b, f16 $h, bf16-pure $c; f16 may have $unit less than bf16"; return 1; }
}
for m in $tried; do check "$m: f32 > bf16 = f16 > pure, in bytes" smaller "$m"; done

part runs || { summary; exit; }

# --- the loss scale -----------------------------------------------------------------------------

# From a scale that is far too high: it halves until gradients are finite, and doubles after three
# good steps.
small=(--set data.sequence=16 --set train.effective_batch=2 --set memory.micro_batch=1 --set train.steps=16)
high=("${small[@]}" --set memory.precision=f16 --set train.loss_scale=4194304 --set train.scale_window=3)
scale() {
    expect 0 'skipped: gradients are not finite at loss scale' train_tiny "$tmp/scale" "${high[@]}" --json || return 1
    cp "$tmp/out" "$tmp/scale.json"
    steps_once "$tmp/scale" 16 || return 1
    paste -d ' ' <(field "$tmp/scale" loss_scale) <(field "$tmp/scale" skipped_steps) | awk '
        NR > 1 && was && $1 != last / 2 { print "step " NR ": after a skipped step the scale is " $1 ", it was " last; bad = 1 }
        NR > 1 && !was && $1 != last && $1 != last * 2 { print "step " NR ": the scale is " $1 ", it was " last; bad = 1 }
        NR > 1 && $1 > last { grown++ }
        { was = $2 > skipped; skipped = $2; last = $1 }
        END { if (!grown) print "it never grew"; print skipped " skipped, grown " grown " times, last " last; exit bad || !grown || skipped < 3 }'
}
check 'the scale halves at each skipped step, and grows again' scale
counted() {
    [ "$(json "$tmp/scale.json" skipped_steps)" = "$(field "$tmp/scale" skipped_steps | tail -n 1)" ] || { cat "$tmp/scale.json"; return 1; }
    [ "$(json "$tmp/scale/checkpoints/step-16/state.json" adam_t)" -eq $((16 - $(json "$tmp/scale.json" skipped_steps))) ] || { echo "Adam's t"; return 1; }
    [ "$(json "$tmp/scale.json" allocations_in_steps)" -eq 0 ] && echo "scale $(json "$tmp/scale.json" loss_scale), $(json "$tmp/scale.json" skipped_steps) skipped"
}
check "skipped steps are counted, and do not count for Adam" counted

# resumed NAME ARGUMENT...: killed while it still skips steps, killed a second time, resumed: the
# bytes of the undisturbed run.
resumed() {
    local name=$1
    shift
    needs_preload || return
    [ -d "$tmp/$name" ] || expect 0 '' train_tiny "$tmp/$name" "$@" || return 1
    FAULT=kill:6 FAULT_PATH=$tmp/cut/metrics.jsonl expect 137 '' train_tiny "$tmp/cut" "$@" --set train.save_every=3 || return 1
    FAULT=kill:8 FAULT_PATH=$tmp/cut/metrics.jsonl expect 137 '' train_tiny "$tmp/cut" "$@" --set train.save_every=3 --resume || return 1
    expect 0 'resuming after step' train_tiny "$tmp/cut" "$@" --set train.save_every=3 --resume || return 1
    same_run "$tmp/$name" "$tmp/cut" 16 && steps_once "$tmp/cut" 16
    local rc=$?
    rm -rf "$tmp/cut"
    return $rc
}
check 'f16: killed twice, resumed: same bytes' resumed scale "${high[@]}"
pure=("${small[@]}" --set memory.precision=bf16-pure)
check 'bf16-pure: killed twice, resumed: same bytes' resumed pure "${pure[@]}"

threads() {
    needs_cpu device.threads || return
    for n in 1 3; do expect 0 '' train_tiny "$tmp/threads$n" "$@" --set "device.threads=$n" --set train.steps=5 || return 1; done
    same_run "$tmp/threads1" "$tmp/threads3" 5
    local rc=$?
    rm -rf "$tmp"/threads?
    return $rc
}
check 'f16: 1 and 3 threads: same bytes' threads "${high[@]}"
check 'bf16-pure: 1 and 3 threads: same bytes' threads "${pure[@]}"

seeds() {
    expect 0 '' train_tiny "$tmp/other" "${pure[@]}" --set train.steps=1 --set train.seed=0 && expect 0 '' train_tiny "$tmp/same" "${pure[@]}" --set train.steps=1 --set train.seed=0 &&
        same_run "$tmp/other" "$tmp/same" 1
}
check 'bf16-pure: a second run: same bytes' seeds

# Gradients of matrices are bf16; accumulated naively over many micro-batches, their sums would be
# too small. A GPU takes 64 micro-batches at most.
sums() {
    local batch=512 n
    [ "$DEVICE" != cuda ] || batch=64
    for n in 1 "$batch"; do
        expect 0 '' train_tiny "$tmp/sum-$n" "${pure[@]}" --set train.steps=1 --set "train.effective_batch=$batch" --set "memory.micro_batch=$n" --set train.clip_norm=1 || return 1
    done
    paste -d ' ' <(field "$tmp/sum-1" grad_norm) <(field "$tmp/sum-$batch" grad_norm) | awk '{ print "norms " $1 " and " $2; d = $1 / $2 - 1; exit !(d < 2e-3 && d > -2e-3) }'
}
check 'bf16-pure: one micro-batch or one per sample: same norm' sums

# A run may be resumed in another precision, from the weights and state that its checkpoint has.
changed() {
    cp -r "$tmp/pure" "$tmp/back" && expect 0 'memory.precision changed' train_tiny "$tmp/back" "${pure[@]}" --set memory.precision=bf16 --set train.steps=18 --resume || return 1
    cp -r "$tmp/back" "$tmp/forth" && expect 0 'memory.precision changed' train_tiny "$tmp/forth" "${pure[@]}" --set memory.precision=f16 --set train.steps=20 --resume || return 1
    steps_once "$tmp/forth" 20 && echo 'steps 1 to 20'
}
check 'from bf16-pure to bf16 with masters to f16' changed

# --- modules ------------------------------------------------------------------------------------

# The last matching rule applies: layer 0, with its MLP, is in f16, so the loss is scaled.
sed 's/precision: f32/precision: bf16, modules: [{match: "model.layers.*.mlp", precision: f32}, {match: "model.layers.0", precision: f16}]/' "$tmp/tiny.yaml" >"$tmp/modules.yaml"
modules() {
    # shellcheck disable=SC2086
    expect 0 '' "$binary" train "$tmp/modules.yaml" --set "train.out=$tmp/modules" "${small[@]}" $FLAGS --json || return 1
    cp "$tmp/out" "$tmp/modules.json"
    steps_once "$tmp/modules" 16 || return 1
    echo "loss $(losses "$tmp/modules" | tail -n 1), scale $(json "$tmp/modules.json" loss_scale)" # a loss scale exists only if a module is in f16
    [ -n "$(field "$tmp/modules" loss_scale)" ] || { echo 'no loss scale'; return 1; }
}
check 'a module in f32 and one in f16, inside bf16' modules

# The LM head shares the weight of the embedding table but needs another precision, in training and
# in evaluation.
sed 's/precision: f32/precision: bf16, modules: [{match: lm_head, precision: f32}]/' "$tmp/tiny.yaml" >"$tmp/tied.yaml"
tied() {
    # shellcheck disable=SC2086
    expect 0 '' "$binary" plan "$tmp/tied.yaml" --set memory.micro_batch=auto --memory "$([ "$DEVICE" = cuda ] && echo 40MiB || echo 9MiB)" $FLAGS &&
        expect 0 '' "$binary" train "$tmp/tied.yaml" --set "train.out=$tmp/tied" "${small[@]}" --set data.validation=tests/golden/make_rle.py --set train.eval_every=16 $FLAGS --json || return 1
    steps_once "$tmp/tied" 16 && echo "loss $(losses "$tmp/tied" | tail -n 1)"
}
check 'a head in f32 that shares its weight with a table in bf16' tied

# --- runs that cannot be trained ----------------------------------------------------------------

hopeless() { expect 1 'the loss scale fell below 1: 17 steps in a row had gradients that are not finite in f16; first seen in [a-z_.0-9]+' train_tiny "$tmp/hopeless" \
    "${small[@]}" --set memory.precision=f16 --set train.learning_rate=1e7 --set train.steps=40; }
check 'weights beyond f16: the run ends and names the tensor' hopeless

summary
