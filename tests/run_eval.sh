#!/bin/bash
# run_eval.sh: `plimsoll eval` scores a model's masks on held-out images; the scores equal those of
# the evaluation during training.
#
#   bash tests/run_eval.sh        from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

model=tests/golden/predict/model
"$binary" data make "$tmp/set" --images 24 --size 96x72 --masks 4 >/dev/null || exit 2
cat >"$tmp/run.yaml" <<END
model: {preset: sam-tiny}
data: {format: sa1b, train: $tmp/set/*.tar, holdout: 0.25, max_masks: 4, image_size: 64}
train: {steps: 3, effective_batch: 3, learning_rate: 1.0e-3, out: $tmp/out}
memory: {precision: f32}
END
# shellcheck disable=SC2086
run() { "$binary" eval "$tmp/run.yaml" "$@" $FLAGS; }
# ends STATUS PATTERN ARGUMENT...: the command ends with STATUS and prints PATTERN.
ends() {
    local status=$1 pattern=$2 rc=0
    shift 2
    run "$@" >"$tmp/said" 2>&1 || rc=$?
    [ "$rc" = "$status" ] && grep -q -- "$pattern" "$tmp/said" || { echo "status $rc, expected $status with \"$pattern\":"; cat "$tmp/said"; return 1; }
    tail -n 1 "$tmp/said"
}

table() {
    ends 0 "^point *all *24 " --model $model --csv "$tmp/a.csv" --worst 3 || return 1
    grep -q "^box *all *24 " "$tmp/said" && [ "$(grep -c "IoU 0.*, mask " "$tmp/said")" = 3 ] || { cat "$tmp/said"; return 1; }
    grep -q '^prompt,category,masks,mean_iou,mean_dice,above_50,above_75$' "$tmp/a.csv" && grep -q '^box,all,24,0\.' "$tmp/a.csv" && cat "$tmp/a.csv"
}
check "a table and a CSV file" table
batch() { run --model $model --csv "$tmp/b.csv" --set memory.micro_batch=4 && cmp "$tmp/a.csv" "$tmp/b.csv"; }
check "the same whatever the batch" batch
# At the image's own size: a row for each image and mask; the columns of the loss's size have the
# mean of the table, whatever the batch and the rounds; MONAI's numbers are those of
# tests/test_surface.c.
own() {
    ends 0 "^point *all *24  0\." --model $model --images "$tmp/i.csv" --structures "$tmp/s.csv" --spacing 0.7,0.5 --tolerance 2 || return 1
    grep -q "pixels of 0.7 x 0.5 mm, distances in mm, NSD within 2 mm" "$tmp/said" || { cat "$tmp/said"; return 1; }
    head -n 1 "$tmp/i.csv" | grep -q '^image,prompt,category,mask,dice,iou,hd95,nsd,loss_dice,loss_iou,loss_hd95,loss_nsd$' && [ "$(wc -l <"$tmp/i.csv")" = 49 ] || return 1
    [ "$(grep -c '^\(point\|box\),all,\(own\|loss\),24,0\.[0-9]*,0\.[0-9]*,24,' "$tmp/s.csv")" = 4 ] || { cat "$tmp/s.csv"; return 1; }
    awk -F, 'NR == FNR { want[$1] = $4; next } FNR > 1 { sum[$2] += $10; n[$2]++ } END { for (k in n) { d = sum[k] / n[k] - want[k]; if (d > 2e-6 || d < -2e-6) { print k, sum[k] / n[k], want[k]; exit 1 } } }' \
        "$tmp/a.csv" "$tmp/i.csv" || return 1
    run --model $model --images "$tmp/i3.csv" --spacing 0.7,0.5 --tolerance 2 --set prompts.iterations=3 --set memory.micro_batch=4 >/dev/null && cmp "$tmp/i.csv" "$tmp/i3.csv"
}
check "scores at the image's own size" own
own_json() {
    run --model $model --own-size --json >"$tmp/own.json" && [ "$("$tools/json_get" "$tmp/own.json" structures images | tr "\n" " ")" = "2 48 " ] || return 1
    run --model $model --own-size --worst 2 --overlays "$tmp/own.html" >/dev/null && grep -q "<td>box</td><td>all</td><td>24</td><td>0\." "$tmp/own.html"
}
check "the same as JSON and on the page" own_json
check "a spacing that is none" ends 2 "spacing 0.7,: expected X,Y" --model $model --own-size --spacing 0.7,
rounds() { ends 0 "^box, round 3 *all *24 " --model $model --set prompts.iterations=3; }
check "the last of several rounds" rounds
images() { run --model $model --worst 5 --overlays "$tmp/worst.png" && head -c 4 "$tmp/worst.png" | grep -q PNG; }
check "images of the worst masks" images
page() { run --model $model --worst 5 --overlays "$tmp/worst.html" && [ "$(grep -c "<img alt='' src='data:image/png;base64,.*<b>IoU " "$tmp/worst.html")" = 5 ]; }
check "an HTML page of the worst masks" page
same() {
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" $FLAGS >"$tmp/train" 2>&1 || { cat "$tmp/train"; return 1; }
    run --model "$tmp/out/model" --json >"$tmp/json" || return 1
    local trained found
    trained=$(sed -n 's/.*"eval_loss":\([0-9.e+-]*\).*/\1/p' "$tmp/out/metrics.jsonl" | tail -n 1)
    found=$(sed -n 's/.*"loss": \([0-9.e+-]*\).*/\1/p' "$tmp/json")
    echo "$trained in training, $found after it"
    awk -v a="$trained" -v b="$found" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-5 && d > -1e-5) }'
}
check "the loss of the evaluation during training" same
# The run's own images of the worst masks: as many as train.worst, the worst first, the same worst
# mask as eval's, and in report.html.
drawn() {
    local first
    [ "$(ls "$tmp/out/worst" | grep -c '^0[1-8]-.*-[01]\.[0-9]*\.png$')" = 8 ] || { ls "$tmp/out/worst"; return 1; }
    grep -q "<h2>Worst masks" "$tmp/out/report.html" || { echo "report.html does not show them"; return 1; }
    run --model "$tmp/out/model" --worst 1 >"$tmp/said" || return 1
    first=$(awk '$2 == "IoU" { printf "01-%s-%.3f.png", $1, $3 }' "$tmp/said")
    echo "the worst: $first"
    [ -s "$tmp/out/worst/$first" ] && grep -q "\"file\": \"$first\"" "$tmp/out/worst/index.json" && [ "$(grep -c '"sample"' "$tmp/out/worst/index.json")" = 8 ] || return 1
    # Captions are text of the page, not drawn into the images.
    [ "$(grep -c '<b>IoU [01]\.[0-9]*</b>, prompt: ' "$tmp/out/report.html")" = 8 ]
}
check "training draws its worst masks" drawn
undrawn() {
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set train.worst=0 --set "train.out=$tmp/none" $FLAGS >"$tmp/train" 2>&1 && [ ! -e "$tmp/none/worst" ]
}
check "train.worst=0 draws none" undrawn
# Later rounds sample their points per image, and images without a counted mask have weight 0: the
# micro-batch size does not matter.
any_batch() { # ARGUMENT...
    local n
    for n in 1 2 6; do run --model $model --json --set "memory.micro_batch=$n" "$@" | sed -n 's/.*"loss": \([0-9.e+-]*\).*/\1/p' || return 1; done >"$tmp/losses"
    tr '\n' ' ' <"$tmp/losses"
    awk 'NR == 1 { a = $1 } { d = $1 / a - 1; if (d > 1e-6 || d < -1e-6) bad = 1 } END { exit bad || NR != 3 }' "$tmp/losses"
}
check "three rounds, with any micro-batch size" any_batch --set prompts.iterations=3
check "images without masks that count" any_batch --set data.area=0.1,1
# Batch normalisation uses the trained running statistics, whatever groups training had.
norms() {
    sed "s/sam-tiny/tinysam-tiny, bn_group: 1/" "$tmp/run.yaml" >"$tmp/norm.yaml"
    # shellcheck disable=SC2086
    "$binary" train "$tmp/norm.yaml" --set "train.out=$tmp/norm" $FLAGS >"$tmp/train" 2>&1 && "$binary" eval "$tmp/norm/config.yaml" --model "$tmp/norm/model" --json >"$tmp/json" || { cat "$tmp/train"; return 1; }
    paste <(sed -n 's/.*"eval_loss":\([0-9.e+-]*\).*/\1/p' "$tmp/norm/metrics.jsonl" | tail -n 1) <(sed -n 's/.*"loss": \([0-9.e+-]*\).*/\1/p' "$tmp/json") >"$tmp/both"
    cat "$tmp/both"
    awk '{ d = $1 - $2; exit !($1 > 0 && d < 1e-5 && d > -1e-5) }' "$tmp/both"
}
check "running statistics of batch normalisation" norms
no_model() { ends 2 "no model is given" && ends 2 "is not a folder" --model nowhere; }
check "no model" no_model
check "a model of another kind" ends 2 "takes pixel_values" --model tests/golden/clip_vision
check "overlays under the name of a JPEG" ends 2 "images are written as PNG" --model $model --overlays "$tmp/worst.jpg"
check "nothing to evaluate on" ends 2 "has no validation data" --model $model --set data.holdout=0
check "tokens, with a mask model" ends 2 "takes" --model $model --set data.format=tokens --set data.holdout=0 --set "data.validation=tests/golden/train_untied/tokens.bin"
# A language model on a file of tokens, and on a text: the loss that transformers computes over the
# same rows.
tokens() {
    "$binary" eval --data tests/golden/train_untied/tokens.bin --model tests/golden/train_untied --set data.sequence=16 --set memory.precision=f32 --json >"$tmp/json" || return 1
    local first
    first=$("$tools/json_get" "$tmp/json" loss)
    "$binary" eval tests/golden/train_untied/run.yaml --data tests/golden/train_untied/tokens.bin --model tests/golden/train_untied --set memory.micro_batch=4 | tee "$tmp/said" | grep "loss 4.57796, perplexity 97.315. over 1260 tokens, in 84 rows of 16" || { cat "$tmp/said"; return 1; }
    awk -v a="$first" 'BEGIN { d = a - 4.577958; exit !(d < 1e-4 && d > -1e-4) }'
}
check "loss and perplexity on tokens" tokens
text() {
    printf 'The quick brown fox jumps over the lazy dog. %.0s' 1 2 3 4 5 6 7 8 9 >"$tmp/a.txt"
    "$binary" eval --data "$tmp/a.txt" --model tests/golden/chat/model --set data.sequence=64 --set memory.precision=f32 >"$tmp/said" && cat "$tmp/said" && grep -q "loss 5.7755[78].*, perplexity 322.3[23].* over 315 tokens, in 5 rows of 64" "$tmp/said" || return 1
    "$binary" eval --data "$tmp/a.txt" --model tests/golden/chat/model --set data.sequence=999 | grep "in 1 rows of 360"
}
check "loss and perplexity on a text" text
not_tokens() { local rc=0; "$binary" eval --data "$tmp/a.txt" --model tests/golden/chat/model --samples 3 >"$tmp/said" 2>&1 || rc=$?; [ $rc = 2 ] && grep "samples is for conversations" "$tmp/said"; }
check "an option for conversations on tokens" not_tokens
# train.best: the model of the highest Dice, whose evaluation is in eval.json; the lowest loss is
# another one here.
best() {
    # shellcheck disable=SC2086
    "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/best" --set train.steps=6 --set train.eval_every=1 --set train.best=dice --set train.worst=0 $FLAGS >"$tmp/train" 2>&1 || { cat "$tmp/train"; return 1; }
    awk -F'[:,]' '/eval_dice/ { for (i = 1; i < NF; i++) { if ($i == "{\"step\"") s = $(i + 1); if ($i == "\"eval_dice\"") d = $(i + 1) } if (s > 0 && (!n++ || d > most)) { most = d; at = s } } END { print at, most }' "$tmp/best/metrics.jsonl" >"$tmp/want"
    echo "$("$tools/json_get" "$tmp/best/checkpoints/best/eval.json" step eval_dice best | tr '\n' ' '), expected $(cat "$tmp/want")"
    [ "$("$tools/json_get" "$tmp/best/checkpoints/best/eval.json" step)" = "$(cut -d' ' -f1 "$tmp/want")" ] && [ "$("$tools/json_get" "$tmp/best/checkpoints/best/eval.json" best)" = eval_dice ]
}
check "the model of the best Dice" best
no_best() {
    local rc=0; "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/best2" --set train.best=dice >"$tmp/said" 2>&1 || rc=$?
    [ $rc = 2 ] && grep "train.best is given, but train.eval_every is not set" "$tmp/said"
}
check "train.best without evaluations" no_best
check "an option for conversations" ends 2 "samples is for conversations" --model $model --samples 3
check "a budget too small" ends 3 "does not fit" --model $model --memory 100KiB

summary
