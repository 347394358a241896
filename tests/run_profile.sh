#!/bin/bash
# run_profile.sh: plimsoll profile writes its files, and its page works in a browser (where chromium
# is installed): no script fails, and hovering over the chart names a tensor.
#
#   bash tests/run_profile.sh     from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

printf 'model: {preset: sam-tiny}\ndata: {format: sa1b, max_masks: 3}\ntrain: {effective_batch: 2}\n' >"$tmp/masks.yaml"
printf 'model: {preset: llama-tiny}\ndata: {sequence: 32}\ntrain: {effective_batch: 4}\nmemory: {micro_batch: 2, recompute: all}\n' >"$tmp/words.yaml"
files() {
    "$binary" profile "$tmp/$1.yaml" --steps 2 -o "$tmp/$1" --json >"$tmp/profile.json" || return 1
    for f in profile.html trace.json snapshot.pickle; do [ -s "$tmp/$1/$f" ] || { echo "no $f"; return 1; }; done
    [ "$(grep -o '"ph": "X"' "$tmp/$1/trace.json" | wc -l)" = "$(json "$tmp/profile.json" launches)" ] || { echo "launches and slices differ"; return 1; }
    grep -o '"ph": "C"' "$tmp/$1/trace.json" | wc -l
}
check 'profile of masks: its files' files masks
check 'profile of words, in a loop: its files' files words
text() { "$binary" profile "$tmp/words.yaml" --steps 1 -o "$tmp/text" | grep -E 'alive at the peak'; }
check 'profile: the text output' text
refused() { expect 2 'expected a number' "$binary" profile "$tmp/words.yaml" --steps none; }
check 'profile: --steps none' refused
page() {
    local browser
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || { echo 'no chromium'; return 77; }
    # A weight lies at the middle of the lower edge: the script moves the pointer there and reads
    # the page.
    sed 's#</body>#<script>window.onerror=m=>{document.title="failed: "+m};const R=C.getBoundingClientRect();C.dispatchEvent(new PointerEvent("pointermove",{clientX:R.left+R.width/2,clientY:R.bottom-2}));</script></body>#' \
        "$tmp/$1/profile.html" >"$tmp/$1/hover.html"
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$tmp/browser" --virtual-time-budget=3000 --dump-dom "file://$tmp/$1/hover.html" >"$tmp/dom" 2>/dev/null
    [ -s "$tmp/dom" ] || { echo 'the browser does not run here'; return 77; }
    ! grep -q '<title>failed' "$tmp/dom" && grep -o "<p id=\"tip\"[^<]*" "$tmp/dom" | grep 'bytes) at [0-9]*, parameters, persistent'
}
check 'profile of masks: the page in a browser' page masks
check 'profile of words: the page in a browser' page words
summary
