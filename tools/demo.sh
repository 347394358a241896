#!/bin/bash
# A small Segment Anything model from data to predictions: makes and inspects data, plans with and
# without a memory budget, trains within the budget, kills and resumes the run, evaluates, predicts
# masks, and writes an HTML report. Needs a built $BUILD/plimsoll (`make demo`).
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
export LC_ALL=C
plimsoll=$BUILD/plimsoll
run=examples/sam-tiny.yaml
out=runs/demo
data=runs/demo-data
pid=
trap 'if [[ $pid ]]; then kill -KILL "$pid" 2>/dev/null || true; fi' EXIT

say() { printf '\n--- %s\n' "$*"; }
show() { echo "\$ $*"; "$@"; }

# member NAME: the first number with that key in JSON on stdin.
member() { sed -n "s/.*\"$1\": *\([0-9][0-9.]*\).*/\1/p" | head -n 1; }
# The last step in metrics.jsonl, 0 before the first.
last_step() { { tail -n 1 "$out/metrics.jsonl" 2>/dev/null || true; } | sed -n 's/.*"step":\([0-9]*\).*/\1/p' | grep . || echo 0; }
# Complete lines of metrics.jsonl, without times.
numbers() { grep '}$' "$out/metrics.jsonl" | sed 's/,"seconds".*//'; }

rm -rf "$out" "$data"
mkdir -p runs

say "make a synthetic dataset in SA-1B's format: images of overlapping shapes with exact masks, 600 to train, 40 to validate"
show "$plimsoll" data make "$data/train" --images 600 --shards 2 --size 256x192 --masks 4 --seed 1
show "$plimsoll" data make "$data/held-out" --images 40 --size 256x192 --masks 4 --seed 2
show "$plimsoll" data inspect "$data/train" -o "$data/sheet.html"

say "the fastest plan without a memory budget"
show "$plimsoll" plan "$run"

arena=$("$plimsoll" plan "$run" --json | member arena_bytes)
budget=$((arena * 7 / 10))
say "the same run in 70 % of that memory: the plan changes, the result of training does not"
show "$plimsoll" plan "$run" --memory "$budget"

say "train within that budget"
command=("$plimsoll" train "$run" --memory "$budget")
echo "\$ ${command[*]}"
"${command[@]}" &
pid=$!
while kill -0 "$pid" 2>/dev/null && { [[ ! -f $out/checkpoints/step-200/DONE ]] || (($(last_step) < 230)); }; do sleep 0.1; done
if kill -KILL "$pid" 2>/dev/null; then
    wait "$pid" 2>/dev/null || true
    pid=
    numbers >"$out/.before"
    saved=("$out"/checkpoints/step-*)
    say "killed (SIGKILL) after step $(last_step); the last checkpoint is ${saved[-1]}. Resume:"
    show "${command[@]}" --resume
    say "compare the $(wc -l <"$out/.before") lines of metrics.jsonl from before the kill with the same steps after the resume"
    numbers >"$out/.after" # a file, not a pipe: head would exit before numbers is done
    if head -n "$(wc -l <"$out/.before")" "$out/.after" | cmp - "$out/.before"; then echo "  equal: the same losses and gradient norms, digit for digit"; else exit 1; fi
    rm "$out/.before" "$out/.after"
else
    pid=
    say "training finished before the script could kill it"
fi

say "scores on the validation images, before the first step and after the last"
awk '/"eval_iou"/ {
    match($0, /"step":[0-9]*/); step = substr($0, RSTART + 7, RLENGTH - 7)
    match($0, /"eval_iou":[0-9.]*/); iou = substr($0, RSTART + 11, RLENGTH - 11)
    match($0, /"eval_dice":[0-9.]*/); dice = substr($0, RSTART + 12, RLENGTH - 12)
    printf "  step %4d   mean IoU %.4f   mean Dice %.4f\n", step, iou, dice
}' "$out/metrics.jsonl"
show "$plimsoll" eval "$run" --model "$out/model"

say "predict masks of a validation image: for a point, for a box, and for everything in it"
mkdir -p "$out/images" "$data/images"
tar xf "$data/held-out/sa_000000.tar" -C "$data/images"
image=$data/images/sa_1.jpg
# A point on the largest annotated mask, and its box.
read -r point box < <(tr '{' '\n' <"$data/images/sa_1.json" | awk '
/"bbox"/ { match($0, /"bbox": *\[[^]]*/); split(substr($0, RSTART), b, /[][,]/); match($0, /"area": *[0-9]+/); area = substr($0, RSTART + 8, RLENGTH - 8) + 0 }
/"point_coords"/ { match($0, /"point_coords": *\[\[[^]]*/); split(substr($0, RSTART), p, /[][,]+/)
    if (area > most) { most = area; best = sprintf("%g,%g %g,%g,%g,%g", p[2], p[3], b[2], b[3], b[2] + b[4] + 1, b[3] + b[5] + 1) } }
END { print best }')
show "$plimsoll" predict --model "$out/model" "$image" --point "$point" -o "$out/mask.png" --overlay "$out/images/1-by-a-point.png" --json "$out/mask.json"
show "$plimsoll" predict --model "$out/model" "$image" --box "$box" -o "$out/mask-box.png" --overlay "$out/images/2-by-a-box.png"
show "$plimsoll" predict --model "$out/model" "$image" --everything 12 --min-iou 0.6 --min-stability 0.8 -o "$out/images/3-everything.png"

show "$plimsoll" report "$out"

cat <<END

Open $out/report.html: scores, memory, training curves, and images with their masks.
Open $data/sheet.html: the training images with their masks.
The model is in $out/model: config.json and model.safetensors, which SamModel of transformers loads.
Try next:
END
try() { printf '  %s\n      %s\n' "$plimsoll $1" "$2"; }
try "plan $run --explain" "the memory over the step, and the largest tensors"
try "plan $run --memory 1MiB" "a budget that is too small: the error names one that fits"
try "plan $run --memory 24GiB --set model.preset=sam-vit-h" "a larger model"
try "train $run --set prompts.iterations=8 --set train.out=runs/rounds" "iterative training: new points where the masks are wrong"
try "train --help" "every configuration key"
