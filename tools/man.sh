#!/bin/bash
# Writes manual pages, made from what `plimsoll --help` and `plimsoll COMMAND --help` print:
#
#   tools/man.sh OUT        OUT/plimsoll.1, OUT/plimsoll-COMMAND.1, and the keys of a run file,
#                           OUT/plimsoll.yaml.5
#
# `make install` and `make dist` call it. The date is that of the last commit, or SOURCE_DATE_EPOCH.
set -euo pipefail
out=$1
BUILD=${BUILD:-build}
export LC_ALL=C
program=$BUILD/plimsoll
version=$("$program" --version | sed -n 's/^plimsoll //p;q')
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
date=$(date -u -d "@$epoch" +%F)
mkdir -p "$out"

# page NAME SECTION WHAT [SYNOPSIS...]: reads help text and writes a page. Lines that begin with an
# option are a list, lines that are indented stay as they are, others are paragraphs.
page() {
    awk -v name="$1" -v section="$2" -v what="$3" -v synopsis="${4-}" -v date="$date" -v version="$version" '
    function clean(s) {
        gsub(/\\/, "\\e", s)
        gsub(/-/, "\\-", s)
        if (s ~ /^[.'"'"']/) s = "\\&" s
        return s
    }
    function close_block() { if (block) print ".fi\n.RE"; block = 0 }
    BEGIN {
        upper = toupper(name)
        print ".TH " clean(upper) " " section " \"" date "\" \"plimsoll " version "\" \"Plimsoll\""
        print ".SH NAME\n" clean(name) " \\- " clean(what)
        if (synopsis != "") print ".SH SYNOPSIS\n" synopsis
        print ".SH DESCRIPTION"
    }
    /^ +-/ && match($0, /^ +-[^ ].*[^ ]  +[^ ]/) || /^ +--?[^ ]+( [^ ]+)*$/ {
        close_block()
        line = $0
        sub(/^ +/, "", line)
        at = match(line, /  +/)
        option = at ? substr(line, 1, at - 1) : line
        rest = at ? substr(line, at + RLENGTH) : ""
        print ".TP\n.B " clean(option)
        if (rest != "") print clean(rest)
        listed = 1
        next
    }
    /^@/ { close_block(); print ".SS " clean(substr($0, 2)); listed = 0; next }
    /^ *$/ { close_block(); print ".PP"; listed = 0; next }
    /^          / && listed { sub(/^ +/, ""); print clean($0); next }
    /^  / {
        if (!block) { print ".RS 2\n.nf"; block = 1 }
        print clean($0)
        next
    }
    { close_block(); if (listed) print ".PP"; listed = 0; print clean($0) }
    END {
        close_block()
        if (section == 1) print ".SH EXIT STATUS\n0 done, 1 failed, 2 bad usage or input, 3 does not fit in memory."
        print ".SH SEE ALSO\n.BR plimsoll (1), .BR plimsoll.yaml (5)"
    }' >"$out/$1.$2"
}

# Each line of the usage is a paragraph of the synopsis, with a hanging indent.
synopsis() { sed 's/^ *//; s/\\/\\\\e/g; s/-/\\\\-/g; s/^/.HP 4\n/'; }

# What a command does: its help without the usage and without the keys of a run file.
body() { sed '1,/^$/d; /^Keys of RUN.yaml/,$d' "$1"; }

# The keys of a run file: sections, and each key with its default, its documentation and its values.
keys() {
    awk -v date="$date" -v version="$version" '
    function clean(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); if (s ~ /^[.'"'"']/) s = "\\&" s; return s }
    BEGIN {
        print ".TH PLIMSOLL.YAML 5 \"" date "\" \"plimsoll " version "\" \"Plimsoll\""
        print ".SH NAME\nplimsoll.yaml \\- the keys of a run file"
        print ".SH DESCRIPTION\nA run file is a map of these sections. Each key may also be given as \\-\\-set SECTION.KEY=VALUE."
    }
    /^[a-z_]+:$/ { section = substr($0, 1, length($0) - 1); print ".SS " section; next }
    /^  [a-z]/ {
        line = substr($0, 3)
        key = line; sub(/ .*/, "", key)
        sub(/^[^ ]+ +/, "", line)
        standard = line; sub(/ .*/, "", standard)
        sub(/^[^ ]+ +/, "", line)
        print ".TP\n.BR " clean(section "." key) (standard == "-" ? "" : " \" (default " clean(standard) ")\"")
        print clean(line)
        next
    }
    /^ +\(/ { sub(/^ +/, ""); print ".br\n" clean($0); next }
    /^ *$/ { next }
    { sub(/^ +/, ""); print clean($0) }
    END { print ".SH SEE ALSO\n.BR plimsoll (1), .BR plimsoll\\-train (1)" }'
}

"$program" --help >"$out/help"
sed -n '3,$p' "$out/help" | page plimsoll 1 'train models in the memory you have' 'plimsoll COMMAND [OPTION]...'
while read -r command what; do
    "$program" "$command" --help >"$out/text" || continue
    usage=$(sed -n '/^usage:$/d; s/^usage: //; /^$/q; p' "$out/text" | synopsis)
    {
        body "$out/text"
        for part in $(sed -n "s/^  plimsoll $command \\([a-z]*\\) .*/\\1/p" "$out/text"); do
            echo "@$part"
            "$program" "$command" "$part" --help >"$out/part"
            body "$out/part"
        done
    } | page "plimsoll-$command" 1 "$what" "$usage"
done < <(sed -n 's/^  \([a-z][a-z]*\)  *\([^ ].*\)/\1 \2/p' "$out/help" | grep -v '^plimsoll ')
"$program" train --help | sed '1,/^Keys of RUN.yaml/d' | keys >"$out/plimsoll.yaml.5"
rm -f "$out/help" "$out/text" "$out/part"
