#!/bin/bash
# run_augment.sh: augmentation in training: drawn by the sample's position, so that threads and a
# resume change no bit; every byte planned.
#
#   bash tests/run_augment.sh        from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

"$binary" data make "$tmp/set" --images 12 --size 96x72 --masks 4 >/dev/null || exit 2
cat >"$tmp/run.yaml" <<END
model: {preset: sam-tiny}
data: {format: sa1b, train: $tmp/set/*.tar, max_masks: 4, image_size: 64, flip: 0.5, flip_vertical: 0.5, turn: 0.5, rotate: 15, scale: 0.9,
       brightness: 0.1, contrast: 0.2, gamma: 0.3, noise: 0.02}
train: {steps: 6, effective_batch: 3, learning_rate: 1.0e-3, monitor_every: 0}
memory: {precision: f32}
END
# run OUT ARGUMENT...
run() {
    local out=$1
    shift
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --json --set "train.out=$tmp/$out" $FLAGS "$@" >"$tmp/$out.json" 2>"$tmp/$out.err" || { cat "$tmp/$out.err"; return 1; }
}
same() { cmp "$tmp/$1/model/model.safetensors" "$tmp/$2/model/model.safetensors"; }
field() { "$tools/json_get" "$tmp/$1.json" "$2"; }

threads() { run one --set data.threads=1 --set data.prefetch=1 && run four --set data.threads=4 --set data.prefetch=9 && same one four; }
check "the same bits with any number of threads" threads
planned() { [ "$(field one arena_bytes)" = "$(field one allocated_bytes)" ] && [ "$(field one allocations_in_steps)" = 0 ] && field one arena_bytes; }
check "every byte is planned" planned
resumed() { run half --set train.steps=3 && run half --resume --set train.steps=6 && same one half; }
check "the same bits after a resume" resumed
# Each key changes what is trained on.
matter() {
    local key
    run plain --set data.threads=1 --set data.prefetch=1 --set data.flip=0 --set data.flip_vertical=0 --set data.turn=0 --set data.rotate=0 --set data.scale=1 --set data.brightness=0 --set data.contrast=0 --set data.gamma=0 --set data.noise=0 || return 1
    for key in flip_vertical turn rotate brightness contrast gamma noise; do
        rm -rf "$tmp/less" && run less --set "data.$key=0" || return 1
        ! cmp -s "$tmp/less/model/model.safetensors" "$tmp/one/model/model.safetensors" || { echo "data.$key changes nothing"; return 1; }
    done
    ! cmp -s "$tmp/plain/model/model.safetensors" "$tmp/one/model/model.safetensors" && [ "$(field plain arena_bytes)" -lt "$(field one arena_bytes)" ]
}
check "each key matters, and none takes memory when it is off" matter
refused() {
    local rc=0
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/no" "${@:2}" $FLAGS >"$tmp/said" 2>&1 || rc=$?
    [ "$rc" = 2 ] && grep -- "$1" "$tmp/said"
}
check "a turn that is no probability" refused "data.turn" --set data.turn=90

summary
