#!/bin/bash
# run_report.sh: report.html of a run folder, and what it shares with profile.html. The folder is
# written here, as `train` writes it, so no training is needed. Where chromium is installed, both
# pages are opened at the width of a phone, in light and in dark mode.
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

# A folder that somebody else made: no script runs, nothing is read through a link, and what is no
# image is left out.
foreign() {
    local r=$tmp/foreign secret=$tmp/secret
    mkdir -p "$r/answers" "$r/images" "$tmp/pngs" && cp "$run/metrics.jsonl" "$r/" && echo 'the secret text' >"$secret" && cp docs/images/plan.png "$tmp/pngs/x.png" || return 1
    echo '{"prompt":[{"role":"<script>alert(1)</script>","content":"x"}],"reference":"r","answer":"a"}' >"$r/answers/step-1.jsonl"
    ln -s "$secret" "$r/images/x.png" && ln -s "$secret" "$r/eval.txt" && ln -s "$secret" "$r/config.yaml" && ln -s "$tmp/pngs" "$r/worst" && mkfifo "$r/images/f.png" && cp "$secret" "$r/images/s.png" && cp docs/images/plan.png "$r/images/y.png" || return 1
    expect 0 'left out of the report: .*images/x.png: it is a link' "$binary" report "$r" && grep -q 'f.png: it is no regular file' "$tmp/err" && grep -q 's.png: it is no PNG' "$tmp/err" || { cat "$tmp/err"; return 1; }
    [ "$(grep -c '<img ' "$r/report.html")" = 1 ] && ! grep -e '<script>' -e 'secret' -e "$(head -c 12 "$secret" | base64)" "$r/report.html" && grep -o '&lt;script&gt;alert(1)&lt;/script&gt;' "$r/report.html" || return 1
    rm "$r/metrics.jsonl" && ln -s "$run/metrics.jsonl" "$r/metrics.jsonl" && expect 2 'metrics.jsonl:' "$binary" report "$r"
}
check 'the folder of a stranger' foreign
# Absolute paths are cut to their last part; so are headings.
paths() {
    local r="$tmp/abs/my run"
    mkdir -p "$r" && cp "$run/metrics.jsonl" "$r/" && printf 'model:\n  path: /home/joe/models/sam\ndata:\n  train: [/home/joe/a b/train, "/home/joe/c d/x.tar", rel/joe2]\n  url: http://x/y\n' >"$r/config.yaml" || return 1
    expect 0 '' "$binary" report "$r" && grep -q '<h1>my run</h1>' "$r/report.html" && grep -q 'c d/x.tar\|&quot;…/x.tar\|"…/x.tar"' "$r/report.html" || return 1
    grep -q 'path: …/sam' "$r/report.html" && grep -q 'rel/joe2' "$r/report.html" && grep -q 'http://x/y' "$r/report.html" && ! grep -E "home/joe|$tmp" "$r/report.html"
}
check 'no absolute paths' paths
# A constant 0 has an axis from 0 to 1; an evaluation is a dot on its line.
axes() {
    local r=$tmp/zero
    mkdir -p "$r" && for i in 1 2 3; do printf '{"step":%d,"loss":1.5,"learning_rate":0,"seconds":1}\n{"step":%d,"eval_loss":%d.5}\n' $i $i $i; done >"$r/metrics.jsonl"
    expect 0 '' "$binary" report "$r" && ! grep e-09 "$r/report.html" && [ "$(sed -n '/<figcaption>learning rate/,/<\/svg>/p' "$r/report.html" | grep -oE '>[0-9.]+</text>' | head -n 6 | tr -d '\n')" = '>0</text>>0.2</text>>0.4</text>>0.6</text>>0.8</text>>1.0</text>' ] || return 1
    [ "$(sed -n '/<figcaption>loss/,/<\/svg>/p' "$r/report.html" | sed -n "/<g class='two'>/,/<\/g>/p" | grep -c '<circle')" = 3 ]
}
check 'axes and dots' axes

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

# open PAGE DARK WIDTH: the page in a browser; prints the background's colour and what sticks out on
# the right. A frame gives the page its width: a headless window is never narrower than 500 pixels.
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
