#!/bin/sh
# Compares the binary with the golden files (tests/golden/README.md documents how they were made).
#
#   sh tests/golden.sh [CASE...]        from the repository's root, after make
#
# A folder with expect.safetensors is a `plimsoll step` case: logits, loss and every gradient are
# compared with PyTorch's; its file `flags`, if any, holds further arguments. A folder with
# losses.json is a `plimsoll train` case: it runs once for each micro-batch size in MICRO, and every
# step of metrics.jsonl must have the reference's loss, gradient norm and learning rate. The
# reference never splits its batch, so the runs also prove that splitting into micro-batches changes
# nothing.
#
# A folder with adapter_config.json is an adapter: the model, the batch and the run are those of the
# folder that its base_model_name_or_path names, seen from the repository's root.
# GOLDEN=tests/golden/peft has these.
#
# The output has one line per case, the reason below a failed case, and 'N passed, M failed' last.
#
#   BUILD=build           the build folder
#   GOLDEN=tests/golden   the cases; for those of make_llama.py --random K --out DIR
#   MICRO="8 2"           micro-batch sizes of the training cases
#   PRECISION=f32         the precision of the run: f32, bf16 or f16
#
# Each tensor's bound follows from the folder's rounding.txt (tests/golden/README.md). A folder
# outside tests/golden may lack this file: the bounds in f32 are then 1e-4 for outputs and 1e-3 for
# gradients.
#
#   FLAGS=                further arguments of the binary, such as --set device=cuda
set -u
LC_ALL=C
export LC_ALL
BUILD=${BUILD:-build}
GOLDEN=${GOLDEN:-tests/golden}
MICRO=${MICRO:-8 2}
PRECISION=${PRECISION:-f32}
FLAGS=${FLAGS:-}
case $PRECISION in
    f32) column=4 FLAGS="--set memory.precision=f32 $FLAGS" ;;
    bf16) column=2 FLAGS="--set memory.precision=bf16 $FLAGS" ;;
    f16) column=3 FLAGS="--set memory.precision=f16 $FLAGS" ;;
    *) echo "golden: PRECISION is $PRECISION, expected f32, bf16 or f16" >&2; exit 2 ;;
esac

binary=$BUILD/plimsoll
compare=$BUILD/tests/compare
if [ ! -x "$binary" ]; then
    echo "golden: no $binary: run make first, from the repository's root" >&2
    exit 2
fi
[ -x "$compare" ] || make -s BUILD="$BUILD" "$compare" || exit 2

tmp=$(mktemp -d) || exit 2
export XDG_DATA_HOME="$tmp/data" # a profile measured on this machine would change plans
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
passed=0
failed=0

# report STATUS NAME: prints the case's line with the last line of $tmp/log; on failure the whole
# log.
report() {
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
        printf 'ok    %-28s %s\n' "$2" "$(tail -n 1 "$tmp/log")"
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n' "$2"
        sed 's/^/      /' "$tmp/log"
    fi
}

# ran STATUS COMMAND: true if the binary succeeded; else prints its exit status.
ran() {
    [ "$1" -eq 0 ] || { echo "plimsoll $2 ended with status $1"; return 1; }
}

# needs_rounding FOLDER: whether the case uses bounds per tensor. Only a case outside tests/golden
# may lack rounding.txt, in f32.
needs_rounding() {
    case $GOLDEN in tests/golden | tests/golden/peft) return 0 ;; esac
    [ "$PRECISION" != f32 ] || [ -f "$1/rounding.txt" ]
}

# model_of FOLDER: the model folder of the case; of an adapter the folder that it was trained on.
model_of() {
    if [ ! -f "$1/adapter_config.json" ]; then echo "$1"; else sed -n 's/.*"base_model_name_or_path": "\(.*\)".*/\1/p' "$1/adapter_config.json"; fi
}
# adapter_of FOLDER OPTION: OPTION with the folder, if that is an adapter.
adapter_of() { [ ! -f "$1/adapter_config.json" ] || echo "$2$1"; }

check_step() {
    rm -f "$tmp/got.safetensors"
    model=$(model_of "$1") batch=$1/batch.safetensors
    [ -f "$batch" ] || batch=$model/batch.safetensors
    # FLAGS and the case's file `flags` are lists of words.
    # shellcheck disable=SC2046,SC2086
    "$binary" step --model "$model" $(adapter_of "$1" '--adapter ') --batch "$batch" \
        --out "$tmp/got.safetensors" $(cat "$1/flags" 2>/dev/null) $FLAGS
    ran $? step || return 1
    set -- "$1" "$1/expect.safetensors" "$tmp/got.safetensors" --logits 1e-4 --grad 1e-3
    needs_rounding "$1" && set -- "$@" --rounding "$1/rounding.txt" "$PRECISION"
    shift
    "$compare" "$@"
}

# losses EXPECTED METRICS ROUNDING: the first two files have one step per line. Evaluation lines are
# skipped. A value that is missing or not finite does not parse as a number, and so fails. ROUNDING
# gives the bound of each number, as in tests/compare.c.
losses() {
    needed=0
    needs_rounding "${3%/*}" && needed=1
    awk -v rounding="$3" -v column=$column -v needed=$needed '
    BEGIN {
        while ((getline entry < rounding) > 0) {
            split(entry, word, " ")
            known[word[1]] = 1
            room[word[1]] = 4 * word[column]
            least = word[2] / 65536 < word[3] / 8192 ? word[2] / 65536 : word[3] / 8192
            near[word[1]] = 20 * (word[4] > least ? word[4] : least) + 4 / 8388608
        }
    }
    # The bound of a step in ROUNDING; below f32 that of an earlier step if it is larger, because
    # what rounding has moved stays in the weights. A number that is exact in every precision is
    # not listed there.
    function bound_of(key, step, most,    name) {
        name = key "." step
        if (room[name] > moved[key]) moved[key] = room[name]
        if (column < 4) return most + moved[key]
        return name in known && near[name] < most ? near[name] : most
    }
    function number(line, key,    at) {
        if (!match(line, "\"" key "\"[ ]*:[ ]*[-+0-9.][-+0-9.eE]*")) return "none"
        at = substr(line, RSTART, RLENGTH)
        sub(/^[^:]*:[ ]*/, "", at)
        return at
    }
    function check(step, key, want, got, bound,    off) {
        if (want == "none" || got == "none") {
            printf "step %d: no %s, expected %s, found %s\n", step, key, want, got
            return bad++
        }
        want += 0  # a number from here on, not its text
        if (key != "learning_rate" && needed && !(key "." step in known)) {
            printf "step %d: %s has no bound in %s\n", step, key, rounding
            return bad++
        }
        bound = bound_of(key, step, bound)
        off = got - want
        if (off < 0) off = -off
        if (want != 0) off /= want < 0 ? -want : want
        if (off > worst[key]) worst[key] = off
        if (!(off <= bound)) {
            printf "step %d: %s is %s, expected %.9g: off by %.2g, at most %g\n", \
                step, key, got, want, off, bound
            bad++
        }
    }
    { step = number($0, "step") }
    step == "none" || /"eval/ { next }
    NR == FNR { line[step] = $0; steps++; next }
    { seen++
      if (!(step in line)) { printf "step %s is repeated or not expected\n", step; bad++; next }
      check(step, "loss", number(line[step], "loss"), number($0, "loss"), 1e-4)
      check(step, "grad_norm", number(line[step], "grad_norm"), number($0, "grad_norm"), 1e-3)
      check(step, "learning_rate", number(line[step], "learning_rate"), \
            number($0, "learning_rate"), 1e-5)
      delete line[step] }
    END {
        if (!steps || seen != steps) {
            printf "found %d steps, expected %d\n", seen, steps
            bad++
        }
        printf "%d steps, worst loss %.1e, norm %.1e\n", seen, worst["loss"], worst["grad_norm"]
        exit bad > 0
    }' "$1" "$2"
}

# check_train FOLDER MICRO_BATCH
check_train() {
    out=$tmp/run
    rm -rf "$out"
    # shellcheck disable=SC2046,SC2086
    "$binary" train "$(model_of "$1")/run.yaml" $(adapter_of "$1" '--set adapter.path=') --set "train.out=$out" --set "memory.micro_batch=$2" $(cat "$1/flags" 2>/dev/null) $FLAGS
    ran $? train || return 1
    if [ ! -f "$out/metrics.jsonl" ]; then
        echo "plimsoll train succeeded and left no metrics.jsonl in train.out"
        return 1
    fi
    losses "$1/losses.json" "$out/metrics.jsonl" "$1/rounding.txt"
}

wanted=" $* "
for name; do
    if [ ! -f "$GOLDEN/$name/expect.safetensors" ] && [ ! -f "$GOLDEN/$name/losses.json" ]; then
        echo "no case $name in $GOLDEN" >"$tmp/log"
        report 1 "$name"
    fi
done
for folder in "$GOLDEN"/*/; do
    folder=${folder%/}
    name=${folder##*/}
    case $wanted in
        "  " | *" $name "*) ;;
        *) continue ;;
    esac
    if [ -f "$folder/expect.safetensors" ]; then
        check_step "$folder" >"$tmp/log" 2>&1
        report $? "$name"
    fi
    if [ -f "$folder/losses.json" ]; then
        for micro in $MICRO; do
            check_train "$folder" "$micro" >"$tmp/log" 2>&1
            report $? "$name, micro-batch $micro"
        done
    fi
    if [ -f "$folder/batch.safetensors" ] && [ ! -f "$folder/expect.safetensors" ]; then
        echo "a batch without expect.safetensors: nothing to compare with" >"$tmp/log"
        report 1 "$name"
    fi
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
