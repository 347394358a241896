# golden_step.sh: steps of golden cases, for test scripts, which source it after run_lib.sh. Needs
# the tool compare.
# shellcheck shell=bash
cases=tests/golden

# step CASE OUT ARGUMENT...: a step of a golden case, or of $model, on its batch or on $batch.
step() {
    local name=$1 out=$2
    shift 2
    # The case's flags and FLAGS are lists of words.
    # shellcheck disable=SC2046,SC2086
    "$binary" step --model "${model:-$cases/$name}" --batch "${batch:-$cases/$name/batch.safetensors}" --out "$out" --set "device.kind=$DEVICE" \
        $(cat "$cases/$name/flags" 2>/dev/null) $FLAGS "$@"
}

# equal CASE ARGUMENT...: the bytes of the plain step. near: within 1e-6.
equal() {
    local name=$1
    shift
    step "$name" "$tmp/plain.safetensors" && step "$name" "$tmp/other.safetensors" "$@" && same "$tmp/plain.safetensors" "$tmp/other.safetensors"
}
near() {
    local name=$1
    shift
    step "$name" "$tmp/plain.safetensors" && step "$name" "$tmp/other.safetensors" "$@" &&
        "$tools/compare" "$tmp/plain.safetensors" "$tmp/other.safetensors" --logits 1e-6 --grad 1e-5
}
