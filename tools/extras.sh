#!/bin/bash
# Writes what a shell and man look for below SHARE, the folder share of an installation: completion
# and manual pages, made by the program that was just built.
#
#   tools/extras.sh SHARE
set -euo pipefail
share=$1
BUILD=${BUILD:-build}
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT

# completes SHELL FOLDER NAME
completes() {
    mkdir -p "$share/$2"
    "$BUILD/plimsoll" completion "$1" >"$share/$2/$3"
}
completes bash bash-completion/completions plimsoll
completes zsh zsh/site-functions _plimsoll
completes fish fish/vendor_completions.d plimsoll.fish

tools/man.sh "$pages"
for section in 1 5; do
    mkdir -p "$share/man/man$section"
    install -m 644 "$pages"/*."$section" "$share/man/man$section/"
done
