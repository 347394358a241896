#!/bin/bash
# Shows that a release can be reproduced: builds it twice from the same commit, in two folders of
# different names and with different clocks of their files, and compares the bytes.
#
#   tools/reproduce.sh [COMMIT]     HEAD, by default; SWITCHES='CUDA=0 CC=...' for make
#
# Compare with a published release: sha256sum -c SHA256SUMS in the folder that it prints.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=$(git rev-parse "${1:-HEAD}")
work=$(mktemp -d "${TMPDIR:-/tmp}/plimsoll-reproduce-XXXXXX")
for folder in "$work/one" "$work/a longer name/two"; do
    mkdir -p "$(dirname "$folder")"
    git clone -q --no-hardlinks . "$folder"
    git -C "$folder" checkout -q "$commit"
    [[ $folder == */one ]] || find "$folder" -name .git -prune -o -type f -exec touch -d '2020-02-02' {} +
    # Names with blanks are no folders for make: the second one is reached by a link.
    ln -sfn "$folder" "$work/${folder##*/}-link"
    # shellcheck disable=SC2086
    make -s -C "$work/${folder##*/}-link" -j"$(nproc)" ${SWITCHES-} dist >"$work/${folder##*/}.log" 2>&1 || { tail "$work/${folder##*/}.log"; exit 1; }
done
if diff -r "$work/one/dist" "$work/a longer name/two/dist"; then
    echo "the same bytes twice, of commit ${commit:0:12}:"
    cat "$work/one/dist/SHA256SUMS"
else
    echo "the two builds differ; they are in $work" >&2
    exit 1
fi
rm -rf "$work"
