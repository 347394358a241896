#!/bin/bash
# run_completion.sh: what a shell and man get: completion for bash, zsh and fish, manual pages; and
# that files which name the version name the same one.
#
#   bash tests/run_completion.sh     from the repository's root, after make; see run_lib.sh
# shellcheck source=tests/run_lib.sh
. tests/run_lib.sh

# completes LINE WORDS: pressing the tab key at the end of LINE offers WORDS, among others.
completes() {
    local line=$1 word
    shift
    "$binary" completion bash >"$tmp/bash" || return 1
    bash -c '. "$1"; read -r -a COMP_WORDS <<<"$2"; [[ $2 != *" " ]] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _plimsoll; printf "%s\n" "${COMPREPLY[@]}"' - "$tmp/bash" "$line" >"$tmp/offered"
    for word; do grep -qxF -- "$word" "$tmp/offered" || { echo "no $word at: $line"; cat "$tmp/offered"; return 1; }; done
    echo "$(wc -l <"$tmp/offered") words"
}
check 'bash: commands' completes 'plimsoll ' plan train completion --version
check 'bash: options' completes 'plimsoll plan --' --memory --frontier --set --help
check 'bash: subcommands' completes 'plimsoll data ' pack verify
check 'bash: options of a subcommand' completes 'plimsoll data pack x --' --embeddings --help
check 'bash: keys' completes 'plimsoll train run.yaml --set train.s' train.steps= train.seed=
all_commands() {
    local command
    for command in $("$binary" --help | sed -n 's/^  \([a-z][a-z]*\)  *[a-z].*/\1/p' | grep -vx plimsoll); do
        grep -q -- "\"$command\") words=" "$tmp/bash" || { echo "nothing for $command"; return 1; }
    done
    # Every option that the help of a command explains is offered.
    for command in plan train eval predict generate doctor; do
        "$binary" "$command" --help | sed -n 's/^  \(--[a-z-]*\) .*/\1/p' | sort -u | while read -r option; do
            grep -- "\"$command\") words=" "$tmp/bash" | grep -qw -- "$option" || { echo "$command: no $option"; exit 1; }
        done || return 1
    done
}
check 'bash: all commands, and the options that are explained' all_commands
shells() {
    local shell found=
    for shell in zsh fish; do
        "$binary" completion $shell >"$tmp/$shell" && [ "$(wc -l <"$tmp/$shell")" -gt 20 ] || return 1
        if command -v $shell >/dev/null; then $shell -n "$tmp/$shell" && found="$found $shell" || return 1; fi
    done
    echo "checked by:${found:- neither, which are not here}"
}
check 'zsh and fish' shells
wrong() { expect 2 'expected bash, zsh or fish, found csh' "$binary" completion csh && expect 2 'expected bash' "$binary" completion; }
check 'another shell is refused' wrong

pages() {
    BUILD=$BUILD tools/man.sh "$tmp/man" || return 1
    local page command
    for command in $("$binary" --help | sed -n 's/^  \([a-z][a-z]*\)  *[a-z].*/\1/p' | grep -vx plimsoll); do
        [ -s "$tmp/man/plimsoll-$command.1" ] || { echo "no page of $command"; return 1; }
    done
    grep -q '^.BR train.steps' <(sed 's/\\//g' "$tmp/man/plimsoll.yaml.5") || return 1
    SOURCE_DATE_EPOCH=0 BUILD=$BUILD tools/man.sh "$tmp/old" && grep -q 1970-01-01 "$tmp/old/plimsoll.1" || return 1
    if command -v groff >/dev/null; then
        for page in "$tmp"/man/*; do groff -man -Tutf8 -ww "$page" 2>&1 >/dev/null | grep . && { echo "$page"; return 1; }; done
    fi
    echo "$(find "$tmp/man" -type f | wc -l) pages"
}
check 'manual pages' pages

machine() {
    "$binary" doctor --machine --json >"$tmp/machine" && "$binary" doctor --json >"$tmp/plain" || return 1
    [ "$("$tools/json_get" "$tmp/machine" version)" = "$("$tools/json_get" "$tmp/plain" version)" ] && expect 2 'leave the rest out' "$binary" doctor --machine x.yaml
}
check 'doctor --machine' machine

versions() {
    local version
    version=$("$binary" --version --json | sed -n 's/.*"version": "\(.*\)",.*/\1/p')
    echo "$version"
    grep -qx "version: $version" CITATION.cff && grep -q "^## $version" CHANGELOG.md && grep -qx "VERSION = \"$version\"" python/plimsoll/_library.py
}
check 'one version in all files' versions

summary
