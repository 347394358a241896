#!/bin/bash
# A small training run from beginning to end: planned with and without a budget, trained
# within the budget, killed, resumed, evaluated. Needs a built $BUILD/plimsoll (`make demo`).
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
export LC_ALL=C
plimsoll=$BUILD/plimsoll
run=examples/tiny.yaml
out=runs/demo
pid=
trap 'if [[ $pid ]]; then kill -KILL "$pid" 2>/dev/null || true; fi' EXIT

say() { printf '\n--- %s\n' "$*"; }
show() { echo "\$ $*"; "$@"; }

# member NAME: the first number of that name in JSON on stdin.
member() { sed -n "s/.*\"$1\": *\([0-9][0-9.]*\).*/\1/p" | head -n 1; }
# The last step that metrics.jsonl has, 0 before the first.
last_step() { { tail -n 1 "$out/metrics.jsonl" 2>/dev/null || true; } | sed -n 's/.*"step":\([0-9]*\).*/\1/p' | grep . || echo 0; }

# Whole lines of metrics.jsonl, without times.
numbers() { grep '}$' "$out/metrics.jsonl" | sed 's/,"seconds".*//'; }

rm -rf "$out"
mkdir -p runs

say "the fastest plan, with no bound on memory"
show "$plimsoll" plan "$run"

arena=$("$plimsoll" plan "$run" --json | member arena_bytes)
budget=$((arena * 6 / 10))
say "the same run in 60 % of that memory: a result must not change, only how it is computed"
show "$plimsoll" plan "$run" --memory "$budget"

say "training within that budget, on the bytes of this project's own pages"
command=("$plimsoll" train "$run" --memory "$budget" --set "train.out=$out")
echo "\$ ${command[*]}"
"${command[@]}" &
pid=$!
while kill -0 "$pid" 2>/dev/null && { [[ ! -f $out/checkpoints/step-50/DONE ]] || (($(last_step) < 80)); }; do sleep 0.1; done
if kill -KILL "$pid" 2>/dev/null; then
    wait "$pid" 2>/dev/null || true
    pid=
    numbers >"$out/.before"
    saved=("$out"/checkpoints/step-*)
    say "killed (SIGKILL) after step $(last_step); the last checkpoint is ${saved[-1]}. Going on:"
    show "${command[@]}" --resume
    say "the $(wc -l <"$out/.before") lines of metrics.jsonl from before the kill, and those steps now:"
    numbers >"$out/.after" # a file, not a pipe: head would leave before numbers is done
    if head -n "$(wc -l <"$out/.before")" "$out/.after" | cmp - "$out/.before"; then echo "  the same losses and gradient norms, digit for digit"; else exit 1; fi
    rm "$out/.before" "$out/.after"
else
    pid=
    say "this machine was done before it could be killed"
fi

say "what $out/metrics.jsonl says: loss of the training batch, and on the held-out page"
awk '
function number(key) { return match($0, "\"" key "\":[-0-9.e+]*") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : "" }
{ step = last = number("step") + 0 }
number("loss") != "" { loss[step] = number("loss"); bytes[number("arena_bytes")] }
number("eval_loss") != "" { held[step] = number("eval_loss") }
END {
    printf "  %6s  %10s  %10s\n", "step", "loss", "held out"
    for (s = 1; s <= last; s++)
        if (s == 1 || s % 50 == 0 || s == last) printf "  %6d  %10.4f  %10s\n", s, loss[s], s in held ? sprintf("%.4f", held[s]) : ""
    for (b in bytes) printf "  the arena in every step: %d bytes", b
}' "$out/metrics.jsonl"
printf ', the budget: %d\n' "$budget"

cat <<END

The model is in $out/model: config.json and model.safetensors, as transformers reads them.
To try next:
END
try() { printf '  %-62s %s\n' "$plimsoll $1" "$2"; }
try "plan $run --explain | less" "every storage, its place and its lifetime"
try "plan $run --memory 1MiB" "what it says when nothing fits"
try "plan $run --memory 24GiB --set model.preset=llama-1b" "a larger model"
try "train --help" "every key"
