#!/bin/bash
# run_data.sh: `plimsoll data` makes, prepares, inspects, verifies and packs a synthetic dataset,
# also a damaged one.
#
#   bash tests/run_data.sh        from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh
tool forge_png

plimsoll() { "$binary" data "$@"; }
# ends STATUS PATTERN ARGUMENT...: the command ends with STATUS and prints PATTERN.
ends() {
    local status=$1 pattern=$2 rc=0
    shift 2
    plimsoll "$@" >"$tmp/out" 2>&1 || rc=$?
    [ "$rc" = "$status" ] && grep -q -- "$pattern" "$tmp/out" || { echo "status $rc, expected $status with \"$pattern\":"; cat "$tmp/out"; return 1; }
    tail -n 1 "$tmp/out"
}
make_set() { plimsoll make "$tmp/$1" --images 10 --shards 2 --size 160x120 --masks 6 "${@:2}"; }

make_twice() {
    make_set a && make_set b && make_set c --seed 1 && cmp "$tmp/a/sa_000000.tar" "$tmp/b/sa_000000.tar" || return 1
    ! cmp -s "$tmp/a/sa_000000.tar" "$tmp/c/sa_000000.tar" && [ "$(tar tf "$tmp/a/sa_000001.tar" | wc -l)" = 10 ]
}
check "the same seed makes the same shards" make_twice
threads() { OMP_NUM_THREADS=3 make_set d && cmp "$tmp/a/sa_000001.tar" "$tmp/d/sa_000001.tar"; }
check "the number of threads changes no byte" threads
sorted() { make_set s --order sorted && tar tf "$tmp/s/sa_000000.tar" | head -n 2 | tr '\n' ' ' | grep -q '^./sa_1.jpg ./sa_1.json '; }
check "sorted order" sorted
extracted() { make_set x --extracted && [ -s "$tmp/x/sa_000001/sa_10.jpg" ] && ends 0 "10 samples" verify "$tmp"/x/sa_00000?; }
check "extracted files" extracted
# Existing files keep their bytes, and no new file appears beside them.
in_the_way() {
    ls -l --time-style=+%s%N "$tmp/a" "$tmp/x" >"$tmp/before" || return 1
    ends 2 "a/sa_000000.tar exists already" make "$tmp/a" --images 1 && ends 2 "exists already" make "$tmp/a" --images 1 --extracted || return 1
    ends 2 "x/sa_000000 exists already" make "$tmp/x" --images 1 --extracted && ls -l --time-style=+%s%N "$tmp/a" "$tmp/x" | same - "$tmp/before"
}
check "an output that exists is not overwritten" in_the_way
check "verify finds no bad sample" ends 0 "10 samples.* 0 bad samples" verify "$tmp/a"

# --- damage -----------------------------------------------------------------------------------

gzipped() {
    mkdir -p "$tmp/g" && gzip -c "$tmp/a/sa_000000.tar" >"$tmp/g/one.tar" && head -c 20000 "$tmp/g/one.tar" >"$tmp/g/cut.tar" || return 1
    ends 2 "compressed with gzip.*prepare" verify "$tmp/g/one.tar" || return 1
    ends 0 "damaged (it ends too early)" prepare "$tmp/g/*.tar" -o "$tmp/ready" && ends 0 " 0 bad samples" verify "$tmp/ready" || return 1
    [ "$(tar tf "$tmp/ready/one.tar" | head -n 2 | tr '\n' ' ')" = "sa_1.jpg sa_1.json " ] && [ -s "$tmp/ready/one.tar.idx" ] && [ -z "$(ls "$tmp/ready" | grep -v 'tar$\|tar.idx$')" ]
}
check "gzip, whole and cut, is prepared" gzipped
prepared_twice() { ends 0 "exists already" prepare "$tmp/g/one.tar" -o "$tmp/ready"; }
check "prepare does not change an existing shard" prepared_twice
broken() {
    cp -r "$tmp/x/sa_000000" "$tmp/broken" && head -c 900 "$tmp/x/sa_000000/sa_2.jpg" >"$tmp/broken/sa_2.jpg" || return 1
    sed -i 's/"area": [0-9]*/"area": 7/' "$tmp/broken/sa_3.json" && rm "$tmp/broken/sa_5.json" || return 1
    ends 1 "1 of 4 samples and 1 of 1 shards are bad" verify "$tmp/broken" && grep -q "^bad: .*sa_2: the JPEG cannot be read" "$tmp/out" && grep -q "^note: .*sa_3: mask .* area of 7" "$tmp/out"
}
check "bad pairs are named" broken
shrunk() {
    ends 0 "10 written, 0 left out" prepare "$tmp"/a/sa_*.tar -o "$tmp/small" --long-side 96 && ends 0 " 0 bad samples" verify "$tmp/small" || return 1
    plimsoll inspect "$tmp/small" --json >"$tmp/json" && grep -q '"width": 96, "height": 72, "count": 10' "$tmp/json"
}
check "images and masks shrink together" shrunk
# An image that ends early is left out, with --long-side and without: cut within its pixels, without
# its end marker by itself, and with the end marker after half of the pixels.
cut_images() {
    local from=$tmp/x/sa_000000 to=$tmp/cuts size
    cp -r "$from" "$to" && head -c 900 "$from/sa_1.jpg" >"$to/sa_1.jpg" && head -c -2 "$from/sa_2.jpg" >"$to/sa_2.jpg" || return 1
    rm "$to/sa_3.jpg" && "$tools/forge_png" "$tmp/whole.png" 160 120 && head -c -20 "$tmp/whole.png" >"$to/sa_3.png" || return 1
    { head -c 2000 "$from/sa_4.jpg"; tail -c 2 "$from/sa_4.jpg"; } >"$to/sa_4.jpg"
    for size in "" 96 200; do
        rm -rf "$tmp/uncut"
        ends 0 "5 pairs read, 1 written, 4 left out" prepare "$to" -o "$tmp/uncut" ${size:+--long-side "$size"} && grep -q "left out: sa_1: the JPEG cannot be read" "$tmp/out" || return 1
        grep -q "left out: sa_2: the JPEG" "$tmp/out" && grep -q "left out: sa_3: the PNG" "$tmp/out" && grep -q "left out: sa_4: the JPEG" "$tmp/out" && ends 0 "1 sample, .* 0 bad samples" verify "$tmp/uncut" || return 1
    done
}
check "images that were cut are left out" cut_images
# PNGs are resized as JPEGs are, and the result is a JPEG. A PNG that is small enough is copied. A
# PNG whose size differs from its annotations is left out.
png_images() {
    local from=$tmp/x/sa_000000 to=$tmp/png
    mkdir -p "$to" && cp "$from"/sa_[123].json "$to" && "$tools/forge_png" "$to/sa_1.png" 160 120 && cp "$from/sa_2.jpg" "$to" && "$tools/forge_png" "$to/sa_3.png" 120 160 || return 1
    ends 0 "2 written, 1 left out" prepare "$to" -o "$tmp/png_small" --long-side 96 && grep -q "left out: sa_3: the image is 120x160" "$tmp/out" || return 1
    ends 0 "2 samples.* 0 bad samples" verify "$tmp/png_small" && [ "$(tar tf "$tmp/png_small/png.tar" | tr '\n' ' ')" = "sa_1.jpg sa_1.json sa_2.jpg sa_2.json " ] || return 1
    plimsoll inspect "$tmp/png_small" --json >"$tmp/json" && grep -q '"width": 96, "height": 72, "count": 2' "$tmp/json" || return 1
    ends 0 "2 written, 1 left out" prepare "$to" -o "$tmp/png_same" --long-side 160 && tar xf "$tmp/png_same/png.tar" -O sa_1.png | cmp - "$to/sa_1.png"
}
check "PNGs shrink too" png_images
# Names longer than a tar header's field, with and without a character that JSON escapes.
long_names() {
    local from=$tmp/x/sa_000000 to=$tmp/long long
    long=$(printf 'n%.0s' {1..200})
    mkdir -p "$to" && for half in jpg json; do cp "$from/sa_1.$half" "$to/$long.$half" && cp "$from/sa_2.$half" "$to/\"$long.$half" || return 1; done
    ends 0 "2 written, 0 left out" prepare "$to" -o "$tmp/longer" && ends 0 "2 samples.* 0 bad samples, 0 shards" verify "$tmp/longer" || return 1
    ends 0 "2 written, 0 left out" prepare "$tmp/longer" -o "$tmp/long_small" --long-side 96 && ends 0 "2 samples.* 0 bad samples, 0 shards" verify "$tmp/long_small" || return 1
    tar xf "$tmp/longer/long.tar" -C "$tmp/longer" && cmp "$tmp/longer/$long.json" "$from/sa_1.json" && cmp "$tmp/longer/\"$long.jpg" "$from/sa_2.jpg"
}
check "names over 100 bytes" long_names

# --- inspecting -------------------------------------------------------------------------------

sheet() { ends 0 "2 files, 10 samples" inspect "$tmp/a" -o "$tmp/sheet.png" && head -c 4 "$tmp/sheet.png" | grep -q PNG; }
check "a contact sheet of samples" sheet
check "a sheet under the name of a JPEG" ends 2 "images are written as PNG" inspect "$tmp/a" -o "$tmp/sheet.jpg"
page() {
    ends 0 'samples' inspect "$tmp/a" -o "$tmp/sheet.html" && grep -q '<h2>[0-9]* of [0-9]* images with their masks' "$tmp/sheet.html" || return 1
    grep -c "<img alt='' src='data:image/png;base64," "$tmp/sheet.html"
}
check "a contact sheet as an HTML page" page
given() { ends 0 "float32 *1.26 GiB *400.00 MiB *25.00 MiB" inspect --given 2250x1500,100; }
check "memory of masks only from sizes" given
# 2250 x 1500 x 3 bytes, 100 masks of 500 bytes of JSON, and both with the masks in bytes and in
# float32.
given_sample() {
    ends 0 "total, masks float32 *1.27 GiB" inspect --given 2250x1500,100 && ends 0 "image, RGB *9.66 MiB *3.00 MiB *192.00 KiB" inspect --given 2250x1500,100 && ends 0 "annotations *48.83 KiB" inspect --given 2250x1500,100 &&
        "$binary" data inspect --given 2250x1500,100 --json >"$tmp/given.json" && [ "$(json "$tmp/given.json" image.full)" = 10125000 ] && [ "$(json "$tmp/given.json" annotations.full)" = 50000 ] &&
        [ "$(json "$tmp/given.json" total_uint8.full)" = 347675000 ] && [ "$(json "$tmp/given.json" total_float32.full)" = 1360175000 ]
}
check "memory of a sample only from sizes: image, annotations, total" given_sample

# --- packing ----------------------------------------------------------------------------------

packed() {
    ends 0 "10 samples with 60 masks, images of side 128, masks of side 64" pack "$tmp/a" -o "$tmp/a.pack" --model sam-tiny && ends 0 " 0 bad samples" verify "$tmp/a.pack" || return 1
    OMP_NUM_THREADS=3 plimsoll pack "$tmp/a.pack" -o "$tmp/again.pack" --size 128 --masks-size 64 && cmp "$tmp/a.pack" "$tmp/again.pack"
}
check "a packed store, and a store packed from that store" packed
cut() {
    head -c 100000 "$tmp/a.pack" >"$tmp/cut.pack" && ends 1 "it was truncated" verify "$tmp/cut.pack" && ends 2 "it was truncated" inspect "$tmp/cut.pack" && ends 2 "no such file" verify "$tmp/none.pack" || return 1
    cp "$tmp/a.pack" "$tmp/hurt.pack" && printf x | dd of="$tmp/hurt.pack" bs=1 seek=5000 conv=notrunc 2>/dev/null && ends 1 "1 of 10 samples" verify "$tmp/hurt.pack"
}
check "a store that was cut, and one that was changed" cut
packs_sound() { ends 0 "1 samples and 0 masks left out" pack "$tmp/broken" -o "$tmp/b.pack" --size 64 && ! ls "$tmp"/b.pack.tmp.* 2>/dev/null; }
check "a packed store leaves bad pairs out" packs_sound
mapped() { ends 0 "masks of side 64" pack "$tmp/a" -o "$tmp/map" --layout memmap --size 256 && [ "$(wc -c <"$tmp/map/masks.u8")" = $((60 * 64 * 64)) ] && ends 0 " 0 bad samples" verify "$tmp/map/index.json"; }
check "an index and a memory map" mapped
check "an output that exists" ends 2 "exists already" pack "$tmp/a" -o "$tmp/map" --layout memmap
check "no output" ends 2 "no output is given" pack "$tmp/a"

# --- usage ------------------------------------------------------------------------------------

folder() {
    ends 0 "10 pairs read, 10 written" prepare "$tmp/a" -o "$tmp/whole" && ends 0 "10 samples.* 0 bad samples" verify "$tmp/whole" || return 1
    mkdir -p "$tmp/in/zipped" && gzip -c "$tmp/a/sa_000000.tar" >"$tmp/in/zipped/first.tar.gz" && cp -r "$tmp/x/sa_000001" "$tmp/in/second" || return 1
    ends 0 "10 pairs read, 10 written" prepare "$tmp/in/*" -o "$tmp/mixed" && [ -s "$tmp/mixed/first.tar" ] && [ -s "$tmp/mixed/second.tar" ] || return 1
    ends 2 "would both become" prepare "$tmp/a" "$tmp/b" -o "$tmp/clash"
}
check "a folder of shards is prepared" folder
# A path that exists is that file, even if it is also a pattern that matches others.
literal() {
    mkdir -p "$tmp/l[1]" "$tmp/l1" && cp "$tmp/a/sa_000000.tar" "$tmp/l[1]/q[2].tar" && cp "$tmp/a/sa_000000.tar" "$tmp/l1/" && cp "$tmp/a/sa_000001.tar" "$tmp/l[1]/q2.tar" || return 1
    ends 0 "1 shards, 5 samples" verify "$tmp/l[1]/q[2].tar" && ends 0 "2 shards, 10 samples" verify "$tmp/l[1]"
}
check "names with the characters of a pattern" literal
# Extracted files: one whose name JSON escapes, one with a number that no float holds, one that is a
# pipe.
odd_files() {
    local from=$tmp/x/sa_000000 to=$tmp/odd
    mkdir -p "$to" && cp "$from/sa_1.jpg" "$to/a\"b.jpg" && cp "$from/sa_1.json" "$to/a\"b.json" && cp "$from/sa_2.jpg" "$to/sa_2.jpg" || return 1
    sed 's/"predicted_iou": *[0-9.]*/"predicted_iou": 1e39/' "$from/sa_2.json" >"$to/sa_2.json"
    cp "$from/sa_3.jpg" "$to/sa_3.jpg" && mkfifo "$to/sa_3.json" || return 1
    timeout 20 "$binary" data verify "$to" >"$tmp/out" 2>&1
    grep -q 'a number that a float holds' "$tmp/out" && grep -q '2 bad samples' "$tmp/out" || { cat "$tmp/out"; return 1; }
    timeout 20 "$binary" data prepare "$to" -o "$tmp/odder" --long-side 64 >"$tmp/out" 2>&1
    ends 0 "1 sample, .* 0 bad samples" verify "$tmp/odder"
}
check "odd names, numbers and files" odd_files
# Zero is a value, not an absent option. A command that has nothing to write fails and leaves no
# output.
check "a size of 0" ends 2 "--size 0: expected a whole number above 0" pack "$tmp/a" -o "$tmp/zero.pack" --size 0
check "masks of size 0" ends 2 "--masks-size 0: expected" pack "$tmp/a" -o "$tmp/zero.pack" --masks-size 0
check "a longer side of 0" ends 2 "--long-side 0: expected" prepare "$tmp/a" -o "$tmp/zero" --long-side 0
empty_input() {
    mkdir -p "$tmp/empty" "$tmp/useless" "$tmp/mine" && head -c 900 "$tmp/x/sa_000000/sa_2.jpg" >"$tmp/useless/sa_2.jpg" && cp "$tmp/x/sa_000000/sa_2.json" "$tmp/useless" || return 1
    ends 2 "empty: no usable pair" prepare "$tmp/empty" -o "$tmp/zero" && ends 2 "nothere: no such file" prepare "$tmp/nothere" -o "$tmp/zero" || return 1
    ends 2 "useless: no usable pair" prepare "$tmp/useless" -o "$tmp/zero" && ends 2 "no usable pair" prepare "$tmp/empty" -o "$tmp/mine" || return 1
    [ ! -e "$tmp/zero" ] && [ ! -e "$tmp/zero.pack" ] && [ -d "$tmp/mine" ] && ends 0 "written" prepare "$tmp/empty" "$tmp/x/sa_000001" -o "$tmp/zero"
}
check "inputs without a pair" empty_input
# A limit on the size of files simulates a full disk.
full() {
    (trap '' XFSZ; ulimit -f 20; plimsoll make "$tmp/full" --images 10 --size 160x120) >"$tmp/out" 2>&1 && return 1
    grep -q 'full/sa_000000.tar: cannot write at byte [0-9]*: ' "$tmp/out" && [ -z "$(ls "$tmp/full")" ] || { cat "$tmp/out"; return 1; }
}
check "a full disk, with the file's name" full
nothing_in_it() { ends 2 "empty: no sample has both an image and masks" verify "$tmp/empty"; }
check "a folder without samples, with its name" nothing_in_it
check "no sub-command" ends 2 "make, prepare, inspect, verify, pack or tokenize"
check "an unknown one" ends 2 "unknown subcommand mak; did you mean .data make." mak
check "an unknown option" ends 2 "did you mean --images" make "$tmp/n" --image 3
check "a wrong size" ends 2 "expected WIDTHxHEIGHT" make "$tmp/n" --size 20
check "more shards than images" ends 2 "expected 1 to the number of images" make "$tmp/n" --images 2 --shards 3
check "no such file" ends 2 "nothing: no such file" inspect "$tmp/nothing"
check "help" ends 0 "usage: plimsoll data make" make --help
summary
