#!/bin/bash
# Videos: the frames that are taken from files that the program ffmpeg makes. Frame number N has the luma
# 16 + 6 N, so that the frames which come out tell their numbers. Without ffmpeg, or in a build without FFmpeg's
# libraries, files are skipped.
#
#   BUILD=build tests/run_video.sh      see run_lib.sh
cd "$(dirname "$0")/.." || exit 2
. tests/run_lib.sh
tool video

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
# frames FPS MAX_FRAMES FILE COUNTS NUMBERS: the frames that are taken are these, and so many are replaced.
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

# Frames 0 to 29 of 10 a second, in groups with references to later frames.
h264() {
    has_ffmpeg libx264 || return
    make_video 10 30 "$tmp/h264.mp4" -c:v libx264 -g 8 -bf 2 -preset ultrafast -x264-params bframes=2:b-adapt=0 &&
        frames 0 0 "$tmp/h264.mp4" 0 "$(seq -s ' ' 0 29)" && frames 2 0 "$tmp/h264.mp4" 0 '0 5 10 15 20 25' &&
        frames 100 4 "$tmp/h264.mp4" 0 '0 7 15 22' && frames 1 2 "$tmp/h264.mp4" 0 '0 10' && frames 3 0 "$tmp/h264.mp4" 0 '0 3 6 10 13 16 20 23 26' &&
        frames 0 1 "$tmp/h264.mp4" 0 0
}
# In MPEG-TS, whose times do not begin with 0.
h264_ts() {
    has_ffmpeg libx264 || return
    make_video 10 30 "$tmp/h264.ts" -c:v libx264 -g 8 -preset ultrafast -x264-params bframes=2:b-adapt=0 &&
        frames 0 0 "$tmp/h264.ts" 0 "$(seq -s ' ' 0 29)" && frames 2 4 "$tmp/h264.ts" 0 '0 5 15 20'
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
# Frames 0 to 9 come 10 a second, from 10 on they come 2 a second: frame 10 at 1.0, 11 at 1.5, ... 15 at 3.5.
variable() {
    has_ffmpeg mpeg4 || return
    make_video 10 16 "$tmp/variable.mkv" -vf "geq=lum='16+6*N':cb=128:cr=128,format=yuv420p,setpts='if(lt(N,10),N*0.1,1+(N-10)*0.5)/TB'" -fps_mode passthrough -c:v mpeg4 -qscale:v 2 2>/dev/null ||
        make_video 10 16 "$tmp/variable.mkv" -vf "geq=lum='16+6*N':cb=128:cr=128,format=yuv420p,setpts='if(lt(N,10),N*0.1,1+(N-10)*0.5)/TB'" -vsync passthrough -c:v mpeg4 -qscale:v 2 || return 1
    frames 1 0 "$tmp/variable.mkv" 0 '0 10 12 14' && frames 4 0 "$tmp/variable.mkv" 0 '0 2 5 7 10 11 12 13 14 15' && frames 4 5 "$tmp/variable.mkv" 0 '0 5 10 12 14'
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
        expect 2 'sound.wav: a video without frames: FFmpeg finds no video' "$tools/video" 1 8 "$tmp/sound.wav" &&
        make_video 10 5 "$tmp/short.mp4" -c:v mpeg4 &&
        head -c $(($(stat -c %s "$tmp/short.mp4") / 2)) "$tmp/short.mp4" >"$tmp/half.mp4" &&
        expect 2 'half.mp4: (FFmpeg cannot read it as a video|a video without frames): ' "$tools/video" 1 8 "$tmp/half.mp4" &&
        : >"$tmp/empty.mp4" && expect 2 'empty.mp4: ' "$tools/video" 1 8 "$tmp/empty.mp4" &&
        [ "$(wc -l <"$tmp/err")" -eq 1 ]
}
# The images that ffmpeg writes into a folder are the video's frames.
folder_of_images() {
    has_ffmpeg mpeg4 || return
    mkdir "$tmp/images" && make_video 10 12 "$tmp/images/%03d.png" -pix_fmt rgb24 && frames 3 0 "$tmp/images" 0 "$(seq -s ' ' 0 11)" && frames 3 5 "$tmp/images" 0 '0 2 4 7 9'
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
summary
