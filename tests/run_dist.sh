#!/bin/bash
# run_dist.sh: a release as `make dist` leaves it: complete, with the right sums, the same bytes if
# it is packed again; and the program archive in a root folder that has nothing but glibc.
# tools/reproduce.sh compares two whole builds.
#
#   bash tests/run_dist.sh     from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh disable=SC2154
. tests/run_lib.sh

dist=$tmp/dist
export LEVEL=1 # of compression
version=$("$binary" --version | sed -n 's/^plimsoll //p;q')
usable() { command -v python3 dpkg-deb strip >/dev/null && git rev-parse HEAD >/dev/null 2>&1 && ! sanitized; }
released() {
    usable || { echo 'python3, dpkg-deb, binutils or the git repository is not here'; return 77; }
    make -s BUILD="$BUILD" released && python3 tools/dist.py "$BUILD" "$dist" >"$tmp/made" 2>&1 || { cat "$tmp/made"; return 1; }
    (cd "$dist" && sha256sum -c SHA256SUMS) | grep -v ': OK$' && return 1
    echo "$(wc -l <"$dist/SHA256SUMS") files"
}
check 'make dist: all files, with their sums' released
if [ ! -f "$dist/SHA256SUMS" ]; then
    summary
    exit
fi

again() {
    (umask 077 && TZ=Asia/Tokyo python3 tools/dist.py "$BUILD" "$tmp/again" >/dev/null 2>&1) && diff -r "$dist" "$tmp/again" && echo "$(find "$dist" -type f | wc -l) files"
}
check 'packed again: the same bytes' again

# Opens the archives by their own tools.
contents() {
    tar tzf "$dist/plimsoll-$version.tar.gz" >"$tmp/source" && grep -qx "plimsoll-$version/Makefile" "$tmp/source" || return 1
    ! grep -E '\.git/|/build/|/runs/' "$tmp/source" || return 1
    dpkg-deb -c "$dist"/plimsoll_*.deb >"$tmp/deb" || return 1
    local file
    for file in usr/bin/plimsoll usr/lib/libplimsoll.so.0 usr/include/plimsoll.h usr/share/man/man1/plimsoll.1.gz \
        usr/share/bash-completion/completions/plimsoll usr/share/doc/plimsoll/copyright; do
        grep -q "\./$file\( \|$\)" "$tmp/deb" || { echo "no $file"; return 1; }
    done
    ! grep -v ' root/root ' "$tmp/deb" || return 1
    dpkg-deb -f "$dist"/plimsoll_*.deb Depends | tee "$tmp/depends"
    grep -q 'libc6 (>= ' "$tmp/depends" && grep -q libyaml "$tmp/depends"
}
check 'the source archive and the package' contents

bill() {
    python3 - "$dist" <<'END'
import glob, hashlib, json, os, sys
found = json.load(open(glob.glob(sys.argv[1] + "/*.spdx.json")[0], encoding="utf-8"))
assert found["spdxVersion"] == "SPDX-2.3"
for f in found["files"]:
    data = open(os.path.join(sys.argv[1], f["fileName"]), "rb").read()
    assert f["checksums"][0]["checksumValue"] == hashlib.sha256(data).hexdigest(), f["fileName"]
names = {p["SPDXID"] for p in found["packages"]} | {f["SPDXID"] for f in found["files"]} | {"SPDXRef-DOCUMENT"}
for r in found["relationships"]:
    assert r["spdxElementId"] in names and r["relatedSpdxElement"] in names, r
print(len(found["packages"]), "packages,", len(found["files"]), "files")
END
}
check 'the SBOM' bill

# A root folder with glibc and the archive: plans and trains.
bare_root() {
    [ "$(id -u)" = 0 ] && command -v chroot >/dev/null || { echo 'only root can change the root folder'; return 77; }
    local root=$tmp/root unpacked file
    mkdir -p "$root/tmp" "$root/proc" "$root/dev"
    mknod -m 666 "$root/dev/null" c 1 3 2>/dev/null || { echo 'this machine makes no devices'; return 77; }
    tar xzf "$dist"/plimsoll-"$version"-linux-*.tar.gz -C "$root" && unpacked=$(cd "$root" && echo plimsoll-"$version"-linux-*) || return 1
    for file in $(ldd "$root/$unpacked/bin/plimsoll" | grep -oE '/[^ ]*/(libc|libm|libdl|libpthread|ld-linux[^ ]*)\.so[^ ]*' | sort -u); do
        mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"
    done
    head -c 20000 README.md >"$root/tmp/text"
    printf '{model: {preset: llama-tiny}, data: {format: bytes, train: /tmp/text, sequence: 16},\n train: {steps: 2, effective_batch: 2, out: /tmp/run}}\n' >"$root/tmp/run.yaml"
    # The loader finds what is beside a program by /proc.
    mount --bind /proc "$root/proc" 2>/dev/null || { echo 'this machine mounts nothing'; return 77; }
    mounts="$mounts $root/proc"
    chroot "$root" "/$unpacked/bin/plimsoll" plan /tmp/run.yaml --json >"$tmp/plan" && chroot "$root" "/$unpacked/bin/plimsoll" train /tmp/run.yaml >"$tmp/out" 2>&1 || { cat "$tmp/out"; return 1; }
    [ -s "$root/tmp/run/model/model.safetensors" ] && echo "$(find "$root/lib" "$root/lib64" "$root/usr/lib" -name '*.so*' 2>/dev/null | wc -l) files of glibc, $(du -sh "$root/$unpacked" | cut -f1) of the archive"
}
check 'a root folder with glibc only: plan and train' bare_root

summary
