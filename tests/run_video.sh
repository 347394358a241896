#!/bin/bash
# shellcheck disable=SC2015
# run_video.sh: videos: the frames that are taken from files that the program ffmpeg makes, and
# training on videos.
#
#   bash tests/run_video.sh       from the repository's root, after make; see run_lib.sh
#
# Frame number N of a file has the luma 16 + 6 N, so that the frames which come out tell their
# numbers. Without ffmpeg, or in a build without FFmpeg's libraries, files are skipped. Training is
# on folders of images (forge_videos.c): whether a video grows lighter. The model is that of
# tests/golden/llava_clip_llama, whose images have 4 tokens; its frames have one.
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
# shellcheck source=tests/tiny_llava.sh
. tests/tiny_llava.sh
tool video compare forge_videos

# has_ffmpeg [ENCODER]: skips a check that cannot run here.
has_ffmpeg() {
    command -v ffmpeg >/dev/null || { echo "the program ffmpeg is not installed"; return 77; }
    [ -z "${1:-}" ] || ffmpeg -hide_banner -encoders 2>/dev/null | grep -q " $1 " || { echo "ffmpeg has no encoder $1"; return 77; }
    echo none >"$tmp/none.avi"
    "$tools/video" 0 0 "$tmp/none.avi" 2>&1 | grep -E 'this build has no FFmpeg|is not found' || return 0
    return 77
}
# make_video RATE FRAMES FILE [OPTION...]
make_video() {
    local rate=$1 frames=$2 file=$3
    shift 3
    ffmpeg -nostdin -v error -y -f lavfi -i "color=gray:size=48x32:rate=$rate" -frames:v "$frames" -vf "geq=lum='16+6*N':cb=128:cr=128,format=yuv420p" "$@" "$file"
}
# frames FPS MAX_FRAMES FILE COUNTS NUMBERS: the frames that are taken are these, and COUNTS of them
# are replaced.
frames() {
    local got
    "$tools/video" "$1" "$2" "$3" >"$tmp/frames" 2>&1 || { cat "$tmp/frames"; return 1; }
    got=$(sed 's/^.*://' "$tmp/frames" | awk '{ for (i = 1; i <= NF; i++) printf("%s%d", (i > 1 ? " " : ""), $i * 219 / 255 / 6 + 0.5) }')
    [ "$got" = "$5" ] && grep -q "^$(echo "$5" | wc -w) frames, $4 replaced, " "$tmp/frames" || {
        echo "$3 at fps $1, max_frames $2: frames $got, expected $5 with $4 replaced: $(cat "$tmp/frames")"
        return 1
    }
    echo "fps $1, max_frames $2: $got"
}
# times FPS MAX_FRAMES FILE TIMES: when these frames are shown, in whole seconds, and how long the
# video is.
times() {
    "$tools/video" "$1" "$2" "$3" >"$tmp/frames" 2>&1 && grep -q ", at $4 s:" "$tmp/frames" || { echo "$3 at fps $1, max_frames $2: expected times $4: $(cat "$tmp/frames")"; return 1; }
}

# Frames 0 to 29 of 10 a second, in groups with references to later frames.
h264() {
    has_ffmpeg libx264 || return
    make_video 10 30 "$tmp/h264.mp4" -c:v libx264 -g 8 -bf 2 -preset ultrafast -x264-params bframes=2:b-adapt=0 &&
        frames 0 0 "$tmp/h264.mp4" 0 "$(seq -s ' ' 0 29)" && frames 2 0 "$tmp/h264.mp4" 0 '0 5 10 15 20 25' &&
        frames 100 4 "$tmp/h264.mp4" 0 '0 7 15 22' && frames 1 2 "$tmp/h264.mp4" 0 '0 10' && frames 3 0 "$tmp/h264.mp4" 0 '0 3 6 10 13 16 20 23 26' &&
        frames 0 1 "$tmp/h264.mp4" 0 0 && times 2 0 "$tmp/h264.mp4" '0 0 1 1 2 2 of 3' && times 0 4 "$tmp/h264.mp4" '0 0 1 2 of 3'
}
# In MPEG-TS, whose times do not begin with 0.
h264_ts() {
    has_ffmpeg libx264 || return
    make_video 10 30 "$tmp/h264.ts" -c:v libx264 -g 8 -preset ultrafast -x264-params bframes=2:b-adapt=0 &&
        frames 0 0 "$tmp/h264.ts" 0 "$(seq -s ' ' 0 29)" && frames 2 4 "$tmp/h264.ts" 0 '0 5 15 20' && times 2 4 "$tmp/h264.ts" '0 0 1 2 of 3'
}
vp9() {
    has_ffmpeg libvpx-vp9 || return
    make_video 10 30 "$tmp/vp9.webm" -c:v libvpx-vp9 -g 8 -deadline realtime -cpu-used 8 &&
        frames 0 0 "$tmp/vp9.webm" 0 "$(seq -s ' ' 0 29)" && frames 2 0 "$tmp/vp9.webm" 0 '0 5 10 15 20 25'
}
# VP8 has packets that are no frames.
vp8() {
    has_ffmpeg libvpx || return
    make_video 10 30 "$tmp/vp8.webm" -c:v libvpx -g 20 -auto-alt-ref 1 -lag-in-frames 10 -deadline good -cpu-used 4 &&
        frames 0 0 "$tmp/vp8.webm" 0 "$(seq -s ' ' 0 29)" && frames 2 0 "$tmp/vp8.webm" 0 '0 5 10 15 20 25'
}
mpeg4() {
    has_ffmpeg mpeg4 || return
    make_video 25 30 "$tmp/mpeg4.mp4" -c:v mpeg4 -qscale:v 2 -g 10 && frames 5 0 "$tmp/mpeg4.mp4" 0 '0 5 10 15 20 25' && frames 5 4 "$tmp/mpeg4.mp4" 0 '0 5 15 20'
}
# AVI gives packets of MPEG-4 with B-frames no time of display.
untimed() {
    has_ffmpeg mpeg4 || return
    make_video 10 30 "$tmp/untimed.avi" -c:v mpeg4 -qscale:v 2 -bf 2 && frames 0 0 "$tmp/untimed.avi" 0 "$(seq -s ' ' 0 29)" && frames 2 0 "$tmp/untimed.avi" 0 '0 5 10 15 20 25'
}
# Frames 0 to 9 come 10 a second, from 10 on they come 2 a second: frame 10 at 1.0, 11 at 1.5, ...
# 15 at 3.5.
variable() {
    has_ffmpeg mpeg4 || return
    make_video 10 16 "$tmp/variable.mkv" -vf "geq=lum='16+6*N':cb=128:cr=128,format=yuv420p,setpts='if(lt(N,10),N*0.1,1+(N-10)*0.5)/TB'" -fps_mode passthrough -c:v mpeg4 -qscale:v 2 2>/dev/null ||
        make_video 10 16 "$tmp/variable.mkv" -vf "geq=lum='16+6*N':cb=128:cr=128,format=yuv420p,setpts='if(lt(N,10),N*0.1,1+(N-10)*0.5)/TB'" -vsync passthrough -c:v mpeg4 -qscale:v 2 || return 1
    frames 1 0 "$tmp/variable.mkv" 0 '0 10 12 14' && frames 4 0 "$tmp/variable.mkv" 0 '0 2 5 7 10 11 12 13 14 15' && frames 4 5 "$tmp/variable.mkv" 0 '0 5 10 12 14' &&
        times 1 0 "$tmp/variable.mkv" '0 1 2 3 of 3'
}
# The second half of the file is gone: what is there is used.
cut_file() {
    has_ffmpeg mpeg4 || return
    make_video 10 30 "$tmp/whole.mp4" -c:v mpeg4 -qscale:v 2 -g 5 -movflags +faststart || return 1
    head -c $(($(stat -c %s "$tmp/whole.mp4") * 2 / 3)) "$tmp/whole.mp4" >"$tmp/cut.mp4"
    "$tools/video" 0 0 "$tmp/cut.mp4" | tee "$tmp/list"
    local n
    n=$(sed 's/ .*//' "$tmp/list")
    [ "$n" -gt 5 ] && [ "$n" -lt 30 ] || { echo "$n frames of 30"; return 1; }
    frames 0 0 "$tmp/cut.mp4" 0 "$(seq -s ' ' 0 $((n - 1)))" && frames 2 0 "$tmp/cut.mp4" 0 "$(seq -s ' ' 0 5 $((n - 1)))" && echo "$n of 30 frames are there"
}
# A frame whose data is damaged is replaced by the one before it; no PNG needs another.
damaged() {
    has_ffmpeg png || return
    make_video 10 12 "$tmp/good.mov" -c:v png -pix_fmt rgb24 || return 1
    cp "$tmp/good.mov" "$tmp/damaged.mov"
    local at
    for at in $(grep -abo IHDR "$tmp/good.mov" | sed -n '5,6s/:.*//p'); do
        dd if=/dev/zero of="$tmp/damaged.mov" bs=1 count=30 seek="$at" conv=notrunc status=none
    done
    frames 0 0 "$tmp/good.mov" 0 "$(seq -s ' ' 0 11)" && frames 0 0 "$tmp/damaged.mov" 2 '0 1 2 3 3 3 6 7 8 9 10 11'
}
no_frames() {
    has_ffmpeg mpeg4 || return
    ffmpeg -nostdin -v error -y -f lavfi -i sine=duration=0.2 "$tmp/sound.wav" &&
        expect 2 'sound.wav:.*FFmpeg' "$tools/video" 1 8 "$tmp/sound.wav" &&
        make_video 10 5 "$tmp/short.mp4" -c:v mpeg4 &&
        head -c $(($(stat -c %s "$tmp/short.mp4") / 2)) "$tmp/short.mp4" >"$tmp/half.mp4" &&
        expect 2 'half.mp4: (FFmpeg cannot read it as a video|a video without frames): ' "$tools/video" 1 8 "$tmp/half.mp4" &&
        : >"$tmp/empty.mp4" && expect 2 'empty.mp4: ' "$tools/video" 1 8 "$tmp/empty.mp4" &&
        [ "$(wc -l <"$tmp/err")" -eq 1 ]
}
# The images that ffmpeg writes into a folder are the video's frames.
folder_of_images() {
    has_ffmpeg mpeg4 || return
    mkdir "$tmp/images" && make_video 10 12 "$tmp/images/%03d.png" -pix_fmt rgb24 && frames 3 0 "$tmp/images" 0 "$(seq -s ' ' 0 11)" && frames 3 5 "$tmp/images" 0 '0 2 4 7 9' && times 3 5 "$tmp/images" '0 0 1 2 3 of 4'
}
# A file that names other files, as a playlist does, opens nothing.
playlist() {
    has_ffmpeg mpeg4 || return
    make_video 10 12 "$tmp/listed.ts" -c:v mpeg4 || return 1
    printf '#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.2,\n%s\n#EXT-X-ENDLIST\n' "$tmp/listed.ts" >"$tmp/list.m3u8"
    frames 0 4 "$tmp/listed.ts" 0 '0 3 6 9' && expect 2 'list.m3u8: ' "$tools/video" 1 8 "$tmp/list.m3u8"
}

check 'H.264 in MP4' h264
check 'H.264 in MPEG-TS' h264_ts
check 'VP9' vp9
check 'VP8 with hidden frames' vp8
check 'MPEG-4' mpeg4
check 'packets without times of display' untimed
check 'variable frame rate' variable
check 'a file that was cut off' cut_file
check 'damaged frames are replaced' damaged
check 'a video without frames' no_frames
check 'a folder of images' folder_of_images
check 'a playlist opens nothing' playlist

# --- training ---
model=$tmp/model train=$tmp/train held=$tmp/held
make_model llava_clip_llama "$model" && "$tools/forge_videos" "$train" 300 1 && "$tools/forge_videos" "$held" 60 2 || exit 2
cat >"$tmp/run.yaml" <<END
model: {path: $model}
data: {format: conversations, train: $train/chats.json, images: $train/videos, sequence: 64, max_images: 1, max_frames: 12, tokens_per_frame: 1}
train: {steps: 4, effective_batch: 4, learning_rate: 0.005, schedule: constant, warmup_steps: 0, out: $tmp/unused}
memory: {micro_batch: 4, precision: f32}
device: $DEVICE
END
rows() {
    expect 0 'data.train: 1200.*[0-9.]*.*12 \(data.max_frames\)' run plain || return 1
    grep 'frames of videos' "$tmp/err"
}
check 'rows with images and videos' rows
inspected() {
    "$binary" data inspect "$train/chats.json" --model "$model" --set data.sequence=64 --set data.max_images=1 --set data.max_frames=12 --set data.tokens_per_frame=1 --set "data.images=$train/videos" >"$tmp/out" || return 1
    grep '^frames      1200 of videos, 8.96 a row of at most 12' "$tmp/out" || { cat "$tmp/out"; return 1; }
}
check 'data inspect' inspected
check 'other threads and slots: same bytes' same_as other --set data.threads=4 --set data.prefetch=1
check 'recompute: same bytes' same_as other --set memory.recompute=all
# The tower in a loop over images and frames, or as a part of the step.
frozen() {
    local with=(--set 'model.freeze=["vision_tower.*"]') at_once
    expect 0 '' run plain "${with[@]}" --set memory.encode=inline || return 1
    for at_once in all 3; do expect 0 '' run other "${with[@]}" --set memory.encode=$at_once && same "$(weights plain)" "$(weights other)" || return 1; done
}
check 'a frozen tower apart: same bytes' frozen
resumes() {
    expect 0 '' run plain --set train.save_every=2 && expect 0 '' run other --set train.steps=2 --set train.save_every=2 || return 1
    # shellcheck disable=SC2086
    expect 0 'resuming after step 2' "$binary" train "$tmp/run.yaml" --set "train.out=$tmp/other" --set train.save_every=2 --resume $FLAGS && same "$(weights plain)" "$(weights other)"
}
check 'resume: same bytes' resumes
# A step of SGD with learning rate 1 subtracts the gradient: packed rows, and each sample in a row
# of its own.
gradients() {
    local sgd=(--set memory.optimizer=sgd --set train.momentum=0 --set train.learning_rate=1 --set train.weight_decay=0 --set train.clip_norm=0 --set train.steps=1 --set data.shuffle=false)
    sgd+=(--set "data.train=$held/chats.json" --set "data.images=$held/videos")
    expect 0 ' 60 conversations in 27 rows' run plain "${sgd[@]}" --set train.effective_batch=27 && expect 0 ' in 60 rows' run other "${sgd[@]}" --set train.effective_batch=60 --set data.packing=false || return 1
    "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-6 || return 1
    expect 0 '' run other "${sgd[@]}" --set train.effective_batch=27 --set memory.micro_batch=5 && "$tools/compare" "$(weights plain)" "$(weights other)" --logits 1e-6
}
check 'packed rows: the gradients of the samples by themselves, within 1e-6' gradients
# The frames as images of a conversation give the same, if they are not pooled.
as_images() {
    local alone=(--set data.max_images=0 --set data.max_frames=4 --set data.tokens_per_frame=0 --set data.packing=false)
    awk '/"video"/ && !/"image"/' "$train/chats.json" | head -n 40 | sed '1i [' | sed '$s/,$/]/' >"$train/alone.json"
    sed 's|"video": "\([0-9]*\)"|"images": ["\1/0.png", "\1/1.png", "\1/2.png", "\1/3.png"]|; s|<video>\\n|<image><image><image><image>\\n|' "$train/alone.json" >"$train/images.json"
    expect 0 '160 frames of videos, 4.00 a row' run plain --set "data.train=$train/alone.json" "${alone[@]}" || return 1
    expect 0 '160 images, 4.00 a row' run other --set "data.train=$train/images.json" --set data.packing=false --set data.max_images=4 --set data.max_frames=0 --set data.fps=0 || return 1
    same "$(weights plain)" "$(weights other)"
}
check 'frames that are not pooled: same bytes as images' as_images
# arena ARGUMENT...: the bytes of the plan's arena; no data is read.
arena() { "$binary" plan "$tmp/run.yaml" --set data.train=/nowhere.json --set data.max_images=0 "$@" --json >"$tmp/out" && "$tools/json_get" "$tmp/out" arena_bytes; }
planned() {
    local n last=0 bytes
    for n in 0 1 4 16; do
        bytes=$(arena --set "data.max_frames=$n") || return 1
        [ "$bytes" -gt "$last" ] || { echo "$n frames: $bytes bytes, fewer frames: $last"; return 1; }
        last=$bytes
    done
    [ "$(arena --frames 16 --set data.sequence=48)" = "$last" ] && echo "16 frames: $last bytes"
}
check 'the plan has the rows of data.max_frames, without data' planned
thinned() { expect 0 'data.train: 600.*2.00.*2' run plain --set data.max_frames=2; }
check 'data.max_frames thins a video' thinned
from_file() {
    has_ffmpeg mpeg4 || return
    local i
    mkdir -p "$tmp/clips" && make_video 10 20 "$tmp/clips/a.mp4" -c:v mpeg4 -qscale:v 2 || return 1
    for i in 1 2 3 4; do echo '{"video": "a.mp4", "conversations": [{"from": "human", "value": "<image>\nwhat?"}, {"from": "gpt", "value": "this"}]}'; done >"$tmp/clips/chats.jsonl"
    expect 0 'data.train: 16.*8.00.*8' run plain --set "data.train=$tmp/clips/chats.jsonl" --set "data.images=$tmp/clips" --set data.fps=2 --set data.max_frames=8 --set train.effective_batch=2 --set memory.micro_batch=2
}
check 'a video file at data.fps' from_file

# --- what cannot be used ---
no_room() { expect 2 'it has a video: set data.max_frames' run plain --set data.max_frames=0; }
check 'data.max_frames is 0' no_room
# init without --max-frames says which conversations are left out, with the remedy, in the run file
# too.
left_out() {
    local i said='1 of 40 samples cannot be used: 1 .*it has a video: set data.max_frames'
    { echo '{"video": "0", "conversations": [{"from": "human", "value": "<video> up?"}, {"from": "gpt", "value": "yes"}]}'
      for i in $(seq 39); do echo "{\"conversations\": [{\"from\": \"human\", \"value\": \"is it $i?\"}, {\"from\": \"gpt\", \"value\": \"yes\"}]}"; done; } >"$tmp/few.jsonl"
    expect 0 "warning: data.train: $said" "$binary" init --model "$model" --data "$tmp/few.jsonl" --images "$train/videos" && grep "^# Not used: $said" "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 0 '' "$binary" init --model "$model" --data "$tmp/few.jsonl" --images "$train/videos" --max-frames 12 && grep -q '^  max_frames: 12 ' "$tmp/out" && ! grep 'Not used' "$tmp/out" || { cat "$tmp/out"; return 1; }
    expect 2 'max-frames: expected at most 4096, and a model that takes images' "$binary" init --model tests/golden/chat/model --data "$tmp/few.jsonl" --max-frames 12
}
check 'init names what it leaves out, or takes videos' left_out
no_square() { expect 2 'data.tokens_per_frame is 3, expected a square number of at most 4, the features of an image: 2 x 2' run plain --set data.tokens_per_frame=3; }
check 'data.tokens_per_frame is no square' no_square
marks() {
    echo '[{"video": "0", "conversations": [{"from": "human", "value": "<video> or <video>?"}, {"from": "gpt", "value": "y"}]}]' >"$tmp/marks.json"
    expect 2 '2 <video> for 1' run plain --set "data.train=$tmp/marks.json"
}
check 'more <video> than videos' marks
# Videos that are missing, and whose folder is empty, when the text becomes ids; and one that is
# gone when it is read.
missing() {
    rm -rf "$tmp/gone" && cp -r "$held" "$tmp/gone" && rm -r "$tmp/gone/videos/5" && rm "$tmp/gone/videos/7/"* || return 1
    local with=(--set "data.train=$tmp/gone/chats.json" --set "data.images=$tmp/gone/videos")
    expect 0 '2 of 60 samples cannot be used: 2 an image or a video that cannot be read .*video:5: there is no such file in .*videos' run plain "${with[@]}" --set train.steps=6 || return 1
    "$binary" data tokenize "$tmp/run.yaml" "${with[@]}" >/dev/null 2>&1 && rm -r "$tmp/gone/videos/8" && rm "$tmp/gone/videos/10/0.png" || return 1
    expect 0 'broken sample .*chats.json:[0-9]*: .*another sample replaces it' run plain "${with[@]}" --set train.steps=6
}
check 'videos that are missing: left out, or replaced and counted' missing
frame_damaged() {
    rm -rf "$tmp/gone" && cp -r "$held" "$tmp/gone" && for i in 3 4 5; do head -c 50 "$held/videos/$i/2.png" >"$tmp/gone/videos/$i/2.png"; done
    expect 0 'gone/chats.json:[5-7]: a frame of its video cannot be decoded and is replaced by one beside it; 1 frames so far' run plain --set "data.train=$tmp/gone/chats.json" --set "data.images=$tmp/gone/videos" --set train.steps=6
}
check 'damaged frames: replaced, and said' frame_damaged

# --- learning ---
# loss OUT: the last evaluation's.
loss() { sed -n 's/.*"eval_loss":\([^,]*\),.*/\1/p' "$tmp/$1/metrics.jsonl" | tail -n 1; }
# The answer is y or n, then the end of the turn: half of ln 2, 0.35, is what cannot be known
# without the order of the frames.
learns() {
    local with=(--set train.effective_batch=16 --set memory.micro_batch=16 --set "data.validation=$held/chats.json") seen blind fresh
    local frames=(--set "data.images=$train/videos" --set "data.validation_images=$held/videos") blank=(--set "data.images=$train/blank" --set "data.validation_images=$held/blank")
    expect 0 '' run seen "${with[@]}" "${frames[@]}" --set train.steps=60 && seen=$(loss seen) || return 1
    expect 0 '' run plain "${with[@]}" "${blank[@]}" --set train.steps=60 && blind=$(loss plain) || return 1
    expect 0 '' run plain "${with[@]}" "${frames[@]}" --set train.steps=1 --set train.learning_rate=0 && fresh=$(loss plain) || return 1
    echo "loss $seen; without seeing $blind; untrained $fresh"
    awk -v a="$seen" -v b="$blind" -v c="$fresh" 'BEGIN { exit !(a < 0.05 && b > a + 0.25 && c > a + 0.25) }'
}
check 'the order of frames is learned: 0.25 below blank frames and the untrained' learns

# --- answers ---
about=(--set data.max_frames=12 --set data.tokens_per_frame=1)
# ask ARGUMENT...: of the trained model.
# shellcheck disable=SC2086
ask() { "$binary" generate --model "$tmp/seen/model" --set "device.kind=$DEVICE" --set memory.precision=f32 --max-new 4 --json $FLAGS "${about[@]}" "$@"; }
reply() { "$tools/json_get" "$1" text; }
# Sample N of the held-out ones: its line, and its answer.
sample() { grep "\"video\": \"$1\"" "$held/chats.json"; }
wanted() { sample "$1" | sed 's/.*"gpt", "value": "\([yn]\)".*/\1/'; }
generated() {
    local n right=0
    for n in 0 1 2 3 4 5 6 7 8 9; do
        sample $n | grep -q '"image"' && continue
        ask --video "$held/videos/$n" --prompt $'u:<video>\nlighter? a:' >"$tmp/a.json" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
        [[ $(reply "$tmp/a.json") = "$(wanted $n)"* ]] && right=$((right + 1))
        ask --video "$held/videos/$n" --prompt $'u:<video>\nlighter? a:' --chunk 3 >"$tmp/b.json" || return 1
        [ "$(reply "$tmp/a.json")" = "$(reply "$tmp/b.json")" ] || { cat "$tmp/a.json" "$tmp/b.json"; return 1; }
    done
    echo "$right of 6 videos"
    [ "$("$tools/json_get" "$tmp/a.json" frames)" = 4 ] && [ "$right" -ge 5 ]
}
check 'generate --video answers about the order of frames' generated
# The budget of the plan is what the run takes: that of the smallest plan runs, a byte less does
# not.
budget() {
    local least question=(--video "$held/videos/3" --prompt 'u:<video> lighter? a:')
    ask "${question[@]}" >"$tmp/a.json" && expect 3 'budget' ask "${question[@]}" --memory 4KiB || return 1
    least=$("$tools/json_get" "$tmp/out" smallest_budget_bytes) || return 1
    ask "${question[@]}" --memory "$least" >"$tmp/b.json" && [ "$(reply "$tmp/a.json")" = "$(reply "$tmp/b.json")" ] || return 1
    [ "$("$tools/json_get" "$tmp/b.json" arena_bytes)" -le "$least" ] && expect 3 '' ask "${question[@]}" --memory $((least - 1))
}
check 'generate --video: the smallest budget' budget
# A chat with a video and an image, and the same as options.
chats() {
    echo '[{"role": "user", "content": [{"type": "video", "video": "videos/0"}, {"type": "image", "image": "videos/0.png"}, {"type": "text", "text": "lighter?"}]}]' >"$held/chat.json"
    echo '[{"role": "user", "content": "<video>\n<image>\nlighter?"}]' >"$tmp/chat.json"
    ask --chat "$held/chat.json" >"$tmp/a.json" && ask --chat "$tmp/chat.json" --image "$held/videos/0.png" --video "$held/videos/0" >"$tmp/b.json" || return 1
    [ "$("$tools/json_get" "$tmp/a.json" videos)" = 1 ] && [ "$("$tools/json_get" "$tmp/a.json" images)" = 1 ] || { cat "$tmp/a.json"; return 1; }
    [ "$(reply "$tmp/a.json")" = "$(reply "$tmp/b.json")" ] && [ "$(reply "$tmp/a.json")" = "$(wanted 0)" ] || { cat "$tmp/a.json" "$tmp/b.json"; return 1; }
}
check 'a chat with a video and an image' chats
evaluated() {
    local data=(--set "data.validation=$held/chats.json" --set "data.validation_images=$held/videos") exact
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --model "$tmp/seen/model" --max-new 4 -o "$tmp/answers.jsonl" "${data[@]}" $FLAGS --json >"$tmp/eval.json" || return 1
    exact=$("$tools/json_get" "$tmp/eval.json" exact_match)
    [ "$("$tools/json_get" "$tmp/eval.json" prompts)" = 60 ] && awk -v x="$exact" 'BEGIN { exit !(x >= 95) }' || { cat "$tmp/eval.json"; return 1; }
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --model "$tmp/seen/model" --max-new 4 "${data[@]}" --set "data.validation_images=$held/blank" $FLAGS --json >"$tmp/eval.json" || return 1
    echo "exact match $exact %, of blank frames $("$tools/json_get" "$tmp/eval.json" exact_match) %"
    awk -v x="$exact" -v y="$("$tools/json_get" "$tmp/eval.json" exact_match)" 'BEGIN { exit !(y < x - 25) }'
}
check 'eval answers about videos' evaluated
# Evaluations in training answer as `eval` does, in the planned memory, and change no bit of
# training. The loader lists frames on the heap, here those of the validation loss; answers add no
# allocation.
trained() {
    local answers=(--set train.eval_samples=60 --set train.eval_max_new=4) with=(--json --set "data.validation=$held/chats.json" --set "data.validation_images=$held/videos" --set train.steps=2 --set train.eval_every=2)
    with+=(--set "model.path=$tmp/seen/model" --set "data.train=$tmp/text.json" --set train.effective_batch=1 --set memory.micro_batch=1)
    echo '[{"conversations": [{"from": "human", "value": "what?"}, {"from": "gpt", "value": "y"}]}, {"conversations": [{"from": "human", "value": "no?"}, {"from": "gpt", "value": "n"}]}]' >"$tmp/text.json"
    expect 0 '' run plain "${with[@]}" --set train.learning_rate=0 "${answers[@]}" && diff "$tmp/answers.jsonl" "$tmp/plain/answers/step-2.jsonl" || return 1
    expect 0 '' run plain "${with[@]}" "${answers[@]}" && mv "$tmp/out" "$tmp/answered" && expect 0 '' run other "${with[@]}" && same "$(weights plain)" "$(weights other)" || return 1
    [ "$("$tools/json_get" "$tmp/answered" arena_bytes)" = "$("$tools/json_get" "$tmp/answered" allocated_bytes)" ] &&
        [ "$("$tools/json_get" "$tmp/answered" allocations_in_steps)" = "$("$tools/json_get" "$tmp/out" allocations_in_steps)" ] || { cat "$tmp/answered" "$tmp/out"; return 1; }
}
check 'evaluations in training answer about videos' trained
unplanned() { expect 2 'data.max_frames' ask --video "$held/videos/0" --prompt Hi --set data.max_frames=0; }
check 'generate --video without data.max_frames' unplanned
check 'generate --video without a video' expect 2 'video:.*none: there is no such file' ask --video "$tmp/none" --prompt Hi
check 'generate --video of a model of text' expect 2 'takes .*text' "$binary" generate --model tests/golden/chat/model --video "$held/videos/0" --prompt Hi
check 'generate: more <video> than videos' expect 2 '2 <video> for 1 video' ask --video "$held/videos/0" --prompt '<video><video>'

# --- SmolVLM: a video is described in the text ---
golden=tests/golden/smolvlm_video smol=tests/golden/llava_text/smolvlm
# about_golden N: question N of the golden file, without its answer, beside the videos; fps, in
# $fps.
about_golden() {
    sed -n "$1p" $golden/chats.jsonl | sed 's/, {"role": "assistant", "content": \[[^]]*\]}\]}$/]}/; s|"path": "|&'"$PWD/$golden/|g" >"$tmp/chat.json"
    fps=$(sed -n "$1s/.*\"fps\": \([0-9.]*\),.*/\1/p" $golden/expected.jsonl)
}
# The ids of transformers' answers; a chunk of the prompt has frames of its own.
smol_answers() {
    local n got want
    for n in 1 2 3 4 6; do
        about_golden $n
        want=$(sed -n "${n}s/.*\"answer\": \[\(.*\)\].*/\1/p" $golden/expected.jsonl | tr -d ' ')
        for more in '' '--chunk 50'; do
            # shellcheck disable=SC2086
            "$binary" generate --model $smol --chat "$tmp/chat.json" --set "device.kind=$DEVICE" --set memory.precision=f32 --max-new 6 --json $FLAGS --set data.max_frames=64 --set "data.fps=$fps" $more >"$tmp/a.json" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
            got=$(tr -d ' \n' <"$tmp/a.json" | sed 's/.*"ids":\[//; s/\].*//')
            [ "$got" = "$want" ] || { echo "question $n: $got, expected $want"; return 1; }
        done
    done
}
check 'SmolVLM answers about videos as in transformers' smol_answers
# Eight conversations, and the same with what a video's text is, written out, and its frames as
# images.
smol_train() {
    local i frames
    mkdir -p "$tmp/smol" && for i in 0 1 2 3 4 5 6 7; do
        cp -r "$held/videos/$i" "$tmp/smol/$i"
        echo "{\"video\": \"$i\", \"conversations\": [{\"from\": \"human\", \"value\": \"<video>\\nlighter?\"}, {\"from\": \"gpt\", \"value\": \"$(wanted $i)\"}]}"
    done >"$tmp/smol/chats.jsonl"
    frames='You are provided the following series of four frames from a 0:00:02 [H:MM:SS] video.\\n\\nFrame from 00:00:<image>\\nFrame from 00:00:<image>\\nFrame from 00:01:<image>\\nFrame from 00:01:<image>\\n\\n\\n'
    sed "s|\"video\": \"\([0-9]*\)\"|\"images\": [\"\1/0.png\", \"\1/1.png\", \"\1/2.png\", \"\1/3.png\"]|; s|<video>.n|$frames|" "$tmp/smol/chats.jsonl" >"$tmp/smol/images.jsonl"
    cp -r $smol "$tmp/smol/model" && sed 's/"do_image_splitting": true/"do_image_splitting": false/' $smol/preprocessor_config.json >"$tmp/smol/model/preprocessor_config.json"
    # shellcheck disable=SC2016
    echo '{% for m in messages %}{{ m["role"] }}: {{ m["content"] }}<end_of_utterance>{% endfor %}' >"$tmp/smol/plain.jinja"
    with=(--set "model.path=$tmp/smol/model" --set "data.train=$tmp/smol/chats.jsonl" --set "data.images=$tmp/smol" --set data.sequence=256 --set data.max_images=0 --set data.max_frames=4 --set data.fps=2 --set data.tokens_per_frame=0)
    expect 0 'data.train: 32.*4.00.*4' run plain "${with[@]}" && same_as other "${with[@]}" --set memory.recompute=all --set data.threads=1 || return 1
    expect 0 '' run plain "${with[@]}" --set "data.template=$tmp/smol/plain.jinja" || return 1
    expect 0 '32 images, 4.00 a row' run other "${with[@]}" --set "data.template=$tmp/smol/plain.jinja" --set "data.train=$tmp/smol/images.jsonl" --set data.max_images=4 --set data.max_frames=0 --set data.fps=0 || return 1
    same "$(weights plain)" "$(weights other)"
}
check 'SmolVLM trains on videos: same bytes as frames with their text written out' smol_train
smol_pooled() {
    expect 0 'data.train: 32.*8.00.*8' run plain "${with[@]}" --set data.tokens_per_frame=1 --set data.max_frames=8 --set data.sequence=400 || return 1
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --model "$tmp/plain/model" --max-new 4 "${with[@]}" --set "data.validation=$tmp/smol/chats.jsonl" --set "data.validation_images=$tmp/smol" $FLAGS --json >"$tmp/eval.json" || return 1
    [ "$("$tools/json_get" "$tmp/eval.json" prompts)" = 8 ]
}
check 'SmolVLM: frames are pooled, packed and evaluated' smol_pooled
smol_plan() {
    local a b
    a=$(arena "${with[@]}" --set data.train=/nowhere.json --set data.max_frames=16 --set data.sequence=$((64 + 16 * 20))) && b=$(arena "${with[@]}" --set data.train=/nowhere.json --set data.sequence=64 --frames 16) || return 1
    [ "$a" = "$b" ] || { echo "16 frames of 4 + 16 tokens: $a bytes; --frames 16: $b"; return 1; }
}
check 'SmolVLM: plan --frames' smol_plan
idefics3() {
    make_model idefics3 "$tmp/idefics3" && expect 2 'video:.*the model takes no videos: give frames as images' "$binary" generate --model "$tmp/idefics3" --video "$held/videos/0" --prompt hi &&
        expect 2 'data.max_frames is 12, and idefics3 takes no videos: set it to 0, and give frames as images' run plain --set "model.path=$tmp/idefics3"
}
check 'Idefics3 takes no videos' idefics3
smol_unplanned() { expect 2 'data.max_frames' "$binary" generate --model $smol --video "$held/videos/0" --prompt Hi; }
check 'SmolVLM without data.max_frames' smol_unplanned

# --- videos in a tar ---
tarred() {
    tar -C "$train/videos" -cf "$tmp/videos.tar" . && tar -C "$held/videos" -cf "$tmp/held.tar" . || return 1
    expect 0 '' run plain && expect 0 'data.train: 1200 frames of videos' run other --set "data.images=$tmp/videos.tar" && same "$(weights plain)" "$(weights other)" || return 1
    # shellcheck disable=SC2086
    "$binary" eval "$tmp/run.yaml" --model "$tmp/seen/model" --max-new 4 -o "$tmp/tar.jsonl" --set "data.validation=$held/chats.json" --set "data.validation_images=$tmp/held.tar" $FLAGS >/dev/null &&
        diff "$tmp/answers.jsonl" "$tmp/tar.jsonl" || return 1
    ask --video "$held/videos/3" --prompt 'u:<video> lighter? a:' >"$tmp/a.json" && ask --video "$tmp/held.tar/3" --prompt 'u:<video> lighter? a:' >"$tmp/b.json" && [ "$(reply "$tmp/a.json")" = "$(reply "$tmp/b.json")" ]
}
check 'folders of frames in a tar: same bytes' tarred
tarred_file() {
    has_ffmpeg mpeg4 || return
    local with=(--set data.fps=2 --set data.max_frames=8 --set train.effective_batch=2 --set memory.micro_batch=2)
    echo '{"other": 1}' >"$tmp/clips/z.json" && tar -C "$tmp/clips" -cf "$tmp/clips.tar" a.mp4 z.json || return 1
    expect 0 '' run plain --set "data.train=$tmp/clips/chats.jsonl" --set "data.images=$tmp/clips" "${with[@]}" || return 1
    expect 0 '16 frames of videos, 8.00 a row' run other --set "data.train=$tmp/clips/chats.jsonl" --set "data.images=$tmp/clips.tar" "${with[@]}" && same "$(weights plain)" "$(weights other)" || return 1
    sed 's|a.mp4|b.mp4|' "$tmp/clips/chats.jsonl" >"$tmp/clips/none.jsonl"
    expect 2 'b.mp4:' run other --set "data.train=$tmp/clips/none.jsonl" --set "data.images=$tmp/clips.tar" "${with[@]}"
}
check 'a video file in a tar: same bytes' tarred_file

summary
