#!/bin/bash
# Training on many images of mixed sizes: does memory stay as it was planned? A small Qwen2.5-VL on
# conversations with 1 to 3 images of 8 x 8 to 4096 x 3072 pixels, of extreme aspects, and at the
# bounds of the processor. Prints the arena, and the resident memory over the run.
#
#   COUNT=10000 STEPS=2000 bench/mixed_images.sh [FOLDER]      FOLDER keeps images and run; needs Python with Pillow
#   FILL=1 STEPS=12 bench/mixed_images.sh      the time of a step by the share of its room that images fill, with
#                                              a tower that is trained and with a frozen one
#
# MODEL is another folder, PATCH the side of its patches in pixels, PATCHES the room of a row, SET
# further arguments of the runs:
#
#   MODEL=models/Qwen2.5-VL-3B-Instruct PATCH=14 SET='--set device.kind=cuda --set adapter.r=16'
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build} PYTHON=${PYTHON:-python3} COUNT=${COUNT:-10000} STEPS=${STEPS:-2000}
if [[ ${1-} ]]; then tmp=$1 && mkdir -p "$tmp"; else tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT; fi
model=${MODEL:-tests/golden/qwen_vl/qwen2_5_vl}
if [[ ${FILL-} ]]; then
    patches=${PATCHES:-4096} steps=${STEPS:-12} patch=${PATCH:-4}
    # sides in patches of a square image for each share of the room
    for side in 0 8 16 24 32 44 56 64; do
        ((side * side > patches)) && continue
        "$PYTHON" - "$tmp" "$side" "$patch" <<'PY'
import json, sys
from PIL import Image
folder, side, patch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
Image.new("RGB", (patch * side or 1, patch * side or 1), (90, 120, 30)).save(f"{folder}/{side}.png")
user = [{"type": "image", "image": f"{side}.png"}] if side else []
with open(f"{folder}/{side}.jsonl", "w") as f:
    for i in range(8):
        f.write(json.dumps({"messages": [{"role": "user", "content": user + [{"type": "text", "text": f"what is this {i}"}]}, {"role": "assistant", "content": "a red boat"}]}) + "\n")
PY
        for frozen in '' --set=model.freeze='["vision_tower"]'; do
            rm -rf "$tmp/run"
            # shellcheck disable=SC2086
            "$BUILD/plimsoll" train tests/golden/qwen_vl/qwen2_5_vl/run.yaml --set "model.path=$model" --set "data.train=$tmp/$side.jsonl" --set data.packing=false \
                --set data.sequence=$((patches / 4 + 64)) --set "data.max_patches=$patches" --set data.max_pixels=$((patch * patch * patches)) --set data.min_pixels=$((4 * patch * patch)) --set "train.steps=$steps" \
                --set train.effective_batch=2 --set memory.micro_batch=1 --set train.warmup_steps=0 --set train.eval_every=0 --set train.save_every=0 --set "train.out=$tmp/run" \
                ${frozen:+--set "${frozen#--set=}"} ${SET-} >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; exit 1; }
            "$PYTHON" - "$tmp/run" "$side" "$patches" "${frozen:+frozen}" <<'PY'
import json, statistics, sys
run, side, patches, frozen = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
steps = [json.loads(l) for l in open(run + "/metrics.jsonl")]
plan = json.load(open(run + "/plan.json"))
print(f"{100 * side * side / patches:5.1f} % of {patches} patches, {frozen or 'trained'} tower: {statistics.median(s['seconds'] for s in steps if 'loss' in s):.4f} s a step; arena {plan['arena_bytes'] / 2 ** 20:.1f} MiB")
PY
        done
    done
    exit
fi
[[ -f $tmp/chats.jsonl ]] || "$PYTHON" - "$tmp" "$COUNT" <<'PY'
import json, os, random, sys
from PIL import Image
folder, count = sys.argv[1], int(sys.argv[2])
os.makedirs(folder + "/images", exist_ok=True)
r = random.Random(3)
bounds = [(8, 8), (4096, 3072), (3072, 4096), (8, 1600), (1600, 8), (16, 16), (15, 17), (50, 51), (51, 50), (2560, 1)]
def size():
    w = int(2 ** r.uniform(3, 11 if r.random() < 0.98 else 12))
    h = int(2 ** r.uniform(3, 11 if r.random() < 0.98 else 11.58))
    return (w, h) if max(w, h) <= 200 * min(w, h) else size()
for i in range(count):
    w, h = bounds[i] if i < len(bounds) else size()
    Image.new("RGB", (w, h), tuple(r.randrange(256) for _ in range(3))).save(f"{folder}/images/{i}.png", compress_level=1)
with open(folder + "/chats.jsonl", "w") as f:
    i = 0
    while i < count:
        n = min(r.randrange(1, 4), count - i)
        user = [{"type": "image", "image": f"images/{k}.png"} for k in range(i, i + n)] + [{"type": "text", "text": "what is this"}]
        f.write(json.dumps({"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": "a red boat"}]}) + "\n")
        i += n
PY
"$BUILD/plimsoll" init --model $model --data "$tmp/chats.jsonl" --out "$tmp/run" >"$tmp/init.yaml"
grep 'sequence:\|max_patches:' "$tmp/init.yaml"
rm -rf "$tmp/run"
"$BUILD/plimsoll" train "$tmp/init.yaml" --set device=cpu --set train.epochs=null --set "train.steps=$STEPS" --set train.effective_batch=4 --set train.eval_every=0 \
    --set train.eval_samples=0 --set data.holdout=0 --set train.save_every=0 --set train.monitor_every=1 --set train.warmup_steps=0 --set data.max_bad=1 >"$tmp/out" 2>"$tmp/err" &
train=$!
: >"$tmp/resident"
while kill -0 $train 2>/dev/null; do
    awk '/VmRSS/ { print $2 }' /proc/$train/status >>"$tmp/resident" 2>/dev/null || true
    sleep 2
done
wait $train
grep -h 'conversations in\|patches\|broken' "$tmp/err" | head -n 5
"$PYTHON" - "$tmp" <<'PY'
import json, statistics, sys
folder = sys.argv[1]
resident = [int(l) / 1024 for l in open(folder + "/resident") if l.strip()]
plan = json.load(open(folder + "/run/plan.json"))
steps = [json.loads(l) for l in open(folder + "/run/metrics.jsonl")]
steps = [s for s in steps if "loss" in s]
later = resident[len(resident) // 10:]
print(f"{len(steps)} steps; arena {plan['arena_bytes'] / 2 ** 20:.2f} MiB; resident MiB: first tenth {max(resident[:len(resident) // 10 + 1]):.1f}, then {min(later):.1f} to {max(later):.1f}, last {resident[-1]:.1f}")
PY
