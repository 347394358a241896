#!/bin/bash
# run_report.sh: report.html of a run folder, and what it shares with profile.html. The folder is written
# here, as `train` writes it, so no training is needed. Where chromium is installed, both pages are opened
# at the width of a phone, in light and in dark mode.
#
#   bash tests/run_report.sh     from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

run=$tmp/run
mkdir -p "$run/worst" "$run/images"
{
    printf '{"step":0,"eval_loss":3.5,"eval_iou":0.031,"eval_dice":0.06,"eval_samples":5}\n'
    for i in $(seq 1 40); do printf '{"step":%d,"loss":%s,"learning_rate":0.001,"grad_norm":1.5,"seconds":45.0,"images_per_second":0.178,"samples":%d,"arena_bytes":104857600}\n' "$i" "$((40 - i)).5" $((8 * i)); done
    printf '{"step":20,"eval_loss":1.5,"eval_iou":0.734,"eval_dice":0.81,"eval_samples":5}\n{"step":40,"eval_loss":1.6,"eval_iou":0.712,"eval_dice":0.80,"eval_samples":5}\n'
    printf '{"step":41,"loss":' # a run that is still going on
} >"$run/metrics.jsonl"
cat >"$run/plan.json" <<'END'
{"arena_bytes": 104857600, "arenas": {"device": 104857600, "host": 3221225472}, "lower_bound_bytes": 94371840, "padding": 10485760, "budget_bytes": 8589934592,
 "breakdown": {"parameters": 10485760, "optimizer": 20971520, "activations": 62914560},
 "settings": {"effective_batch": 8, "micro_batch": 2, "accumulation": 4, "precision": "bf16", "recompute": "all", "optimizer": "adamw", "offload": "optimizer"},
 "profile": "cpu-2", "parameters": 93700000, "trained_parameters": 4100000}
END
printf 'model:\n  path: models/<sam>-vit-b\ndata:\n  format: sa1b\n  train: [data/shards/sa_*.tar]\n' >"$run/config.yaml"
printf '[{"file": "01-box-0.012.png", "prompt": "box", "iou": 0.0123, "sample": "sa_000020/sa_223750", "mask": 7}]\n' >"$run/worst/index.json"
cp docs/images/plan.png "$run/worst/01-box-0.012.png"
cp docs/images/plan.png "$run/images/1-by-a-point.png"
page=$run/report.html

write() { expect 0 '' "$binary" report "$run" && [ -s "$page" ]; }
check 'a report of a run that is still going on' write
# fact LABEL VALUE REMARK: the headline has it.
fact() { grep -o "<dt>$1</dt>.*" "$page" | sed 's/<[^>]*>/ /g' | tee "$tmp/fact"; grep -qF "<div><dt>$1</dt><dd>$2</dd><dd>$3</dd></div>" "$page"; }
check 'headline: the model' fact Model '&lt;sam&gt;-vit-b' '94 M parameters, 4.1 M trained, bf16'
check 'headline: the data' fact Data shards 'sa1b, 320 samples read'
check 'headline: the best score' fact 'Best mean IoU' 0.734 'at step 20, on validation data'
check 'headline: peak and budget' fact 'Peak memory' '100.00 MiB' 'of a budget of 8.00 GiB; 3.00 GiB offloaded'
check 'headline: the steps' fact Steps 40 '8 samples each'
check 'headline: the time' fact Time '30 min' '45 s a step, without evaluation'
check 'headline: the speed' fact Speed '0.178 images/s' 'profile cpu-2'
order() { [ "$(grep -o '<h2>[^<]*' "$page" | tr '\n' ' ')" = '<h2>Memory at the peak <h2>Training <h2>Images <h2>Worst masks of the last evaluation ' ] || { grep -o '<h2>[^<]*' "$page"; return 1; }; }
check 'memory comes first, then training' order
captions() { grep -qF "<b>IoU 0.012</b>, prompt: box<br><span class='dim'>sa_000020/sa_223750, mask 7</span></figcaption>" "$page" && grep -qF '<figcaption>By a point</figcaption>' "$page"; }
check 'captions of masks are text' captions
units() { ! sed "s/base64,[^']*//" "$page" | grep -oE '[0-9.]+ ?[KMG]B\b|[0-9]e\+[0-9]+'; }
check 'sizes in MiB and GiB, no exponents' units
bare() {
    mkdir -p "$tmp/bare" && printf '{"step":1,"loss":null,"seconds":0.5}\n' >"$tmp/bare/metrics.jsonl"
    expect 0 '' "$binary" report "$tmp/bare" && [ -s "$tmp/bare/report.html" ] && expect 2 'not the folder of a run' "$binary" report "$tmp"
}
check 'a run without a plan, a configuration and a loss' bare

# One table of colours: each kind of memory has the same on both pages.
printf 'model: {preset: llama-tiny}\ndata: {sequence: 16}\ntrain: {effective_batch: 2}\ndevice: cpu\n' >"$tmp/words.yaml"
colours() {
    expect 0 '' "$binary" profile "$tmp/words.yaml" --steps 1 -o "$tmp/profile" || return 1
    for kind in parameters optimizer activations; do
        for p in "$page" "$tmp/profile/profile.html"; do sed -n "s/.*<td><span class='chip' style='background:\(#[0-9a-f]*\)'><\/span>$kind<.*/$kind \1/p" "$p"; done | sort -u >"$tmp/colour"
        [ "$(wc -l <"$tmp/colour")" = 1 ] || { cat "$tmp/colour"; return 1; }
        cat "$tmp/colour"
    done
}
check 'the same colours as profile.html' colours

# open PAGE DARK WIDTH: the page in a browser; prints the background's colour and what sticks out on the right.
# A frame gives the page its width: a headless window is never narrower than 500 pixels.
open_page() {
    local browser
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || { echo 'no chromium'; return 77; }
    cat >"$tmp/frame.html" <<END
<!doctype html><title>waiting</title><iframe id='f' src='file://$1' style='width:390px;height:800px;border:0'></iframe>
<script>document.getElementById('f').onload=e=>{const d=e.target.contentDocument,w=e.target.contentWindow;
document.title=w.getComputedStyle(d.body).backgroundColor+' '+(d.documentElement.scrollWidth>390?'too wide: '+d.documentElement.scrollWidth:'fits')}</script>
END
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --allow-file-access-from-files --user-data-dir="$tmp/browser" --blink-settings=preferredColorScheme="$2" \
        --virtual-time-budget=4000 --dump-dom "file://$tmp/frame.html" >"$tmp/dom" 2>/dev/null
    [ -s "$tmp/dom" ] || { echo 'the browser does not run here'; return 77; }
    sed -n 's/.*<title>\(.*\)<\/title>.*/\1/p' "$tmp/dom"
}
phone() { # PAGE DARK COLOUR
    local found
    found=$(open_page "$1" "$2") || { echo "$found"; return 77; }
    echo "$found"
    [ "$found" = "$3 fits" ]
}
check 'report.html on a phone, light' phone "$page" 1 'rgb(255, 255, 255)'
check 'report.html on a phone, dark' phone "$page" 0 'rgb(21, 24, 28)'
check 'profile.html on a phone, light' phone "$tmp/profile/profile.html" 1 'rgb(255, 255, 255)'
check 'profile.html on a phone, dark' phone "$tmp/profile/profile.html" 0 'rgb(21, 24, 28)'
summary
