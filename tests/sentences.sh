#!/bin/bash
# sentences.sh: comments, messages and pages are sentences, and no line is too long.
#
#   bash tests/sentences.sh [ROOM...]    from the repository's root; a room is a folder, or a file at the
#                                        root. Default: all
#
# Three rules. Each hit is printed as 'FILE:LINE: what is wrong'; 'N passed, M failed' counts rooms.
#
#   phrases    no comment, string or page uses a construction of the table below, also across lines
#   contracts  in src and include, the comment above a function begins with a verb in the third person:
#              "Returns ...", "Reads ...". Above several declarations in a row it may be their heading
#   columns    prose and comments have at most 100 columns; C, CUDA, .def and JavaScript files, and commands
#              and tables in comments, which are indented, at most 120. Tables and code blocks of pages and
#              the code of shell and Python scripts may be wider
#
# To ban a construction, add a row: an extended regular expression, a tab, and what to write
# instead. Case matters. It matches between blanks and punctuation. A third column is a regular
# expression of honest uses, as in words.sh.
set -u
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C

phrases=$(sed -e '/^#/d' -e '/^$/d' <<'TABLE'
[Ss]o many	name the number
[Aa]lone	only; by itself	(stand|let|leave|leaves|left) alone|stand-alone
(make|makes|made) of (it|them|him|this|that|these|those|[a-z]+ alone)	name what is computed	made of (this|that|these|those|them)
[Ww]hat [a-z ]+ makes? of	name what is computed
[Hh]ands? on	passes to; returns
[Ss]tands? for	means; marks; is a placeholder for
# A dot begins a sentence's head: the start of a comment or paragraph, or the end of the one before.
\. (That|Those) of	name it
\. Of [a-z]+	"For ...", or make it the subject	Of course
TABLE
)

# Words that end in s and are no verbs: a contract does not begin with one.
nouns='This Its As Thus Always Less Contiguous Progress Axis Loss Minus Plus Across Besides Was
Bytes Bits Rows Elements Parts Images Numbers Pixels Blocks Weights Samples Results Tiles Queries Keys Frames
Floats Files Words Seconds Milliseconds Steps Programs Paths Options Offsets Lines Integers Folders Zeros Values
Tokens Tables Prompts Points Nodes Losses Logits Letters Lanes Items Ids Digits Corners Chunks Blanks Windows
Warnings Voxels Videos Vendors Variables Times Threads Tensors Symbols Storages Statistics Squares Slices Settings
Scalars References Ranges Products Positions Patches Parameters Pages Ops Operators Neighbours Milestones Messages
Members Matmuls Lookups Labels Kernels Inputs Outputs Halves Expressions Embeddings Distances Descriptors
Coordinates Columns Codes Classes Boxes Ranks Errors Names Strings Batches Heads Layers Gradients Dims'

tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT

# The rooms, and the files of those that are checked.
rooms=(Makefile README.md include bench docs examples page tests tools src/*)
selected=("$@")
(($# > 0)) || selected=("${rooms[@]}")
find "${selected[@]}" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' -o -name '*.def' \
    -o -name '*.js' -o -name '*.sh' -o -name '*.py' -o -name '*.md' -o -name '*.yaml' -o -name Makefile \) \
    -not -path 'tests/fuzz/corpus/*' -not -path tests/sentences.sh -not -path tests/words.sh | sort >"$tmp/files"

tr '\n' '\0' <"$tmp/files" | PHRASES=$phrases NOUNS=$nouns xargs -0 awk '
BEGIN {
    n = split(ENVIRON["PHRASES"], row, "\n")
    for (i = 1; i <= n; i++) {
        split(row[i], column, "\t")
        pattern[i] = (column[1] ~ /^\\\./ ? "" : "[^A-Za-z_/$>`-]") "(" column[1] ")([^A-Za-z_/`-]|$)"; instead[i] = column[2]; allowed[i] = column[3]
        any = any (i > 1 ? "|" : "") column[1]
    }
    m = split(ENVIRON["NOUNS"], row, /[ \n]+/)
    for (i = 1; i <= m; i++) noun[row[i]]
}
function hit(line, text) { print file ":" line ": " text }
# Reports the phrases of a text that begins at a line; a dot before it makes its first sentence one
# like the others.
function phrases(text, line,    i, rest) {
    text = ". " text
    gsub(/\*\*/, "", text)
    if (text !~ any) return
    for (i = 1; i <= n; i++) {
        rest = text
        if (allowed[i]) gsub(allowed[i], "", rest)
        if (match(rest, pattern[i])) hit(line, "\"" substr(rest, RSTART, RLENGTH) "\" -> " instead[i])
    }
}
# Reports the phrases of the strings of a line of code that have several words.
function strings(line,    part, i, k, marks) {
    if (line !~ any) return
    marks = c ? 1 : 2
    for (k = 1; k <= marks; k++)
        for (i = split(line, part, substr("\"'"'"'", k, 1)); i > 1; i--)
            if (i % 2 == 0 && part[i] ~ / /) phrases(part[i], FNR)
}
# The end of a comment or paragraph.
function end_text() { if (text != "") phrases(text, at); text = "" }
function add(s) { if (text == "") { text = s; at = FNR } else text = text " " s }
# The first word of the comment above a function; heading: other declarations follow without a
# comment.
function contract(heading,    w) {
    w = above
    sub(/[^A-Za-z].*/, "", w)
    if (heading ? w ~ /^(Whether|What|Which|How|Of|As|That|Those|Where|When)$/ : w !~ /^[A-Z][a-z]*s$/ || w in noun)
        hit(above_at, "begins with no verb: " substr(above, 1, 60))
    above = ""; declared = 0
}
function end_file() { end_text(); if (declared) contract(0); above = ""; declared = comment = fence = 0 }
FNR == 1 {
    end_file()
    file = FILENAME
    kind = file; sub(/.*[.\/]/, "", kind)
    c = kind ~ /^(c|h|cu|cuh|inc|def)$/
    contracts = c && kind != "def" && file ~ /^(src|include)\//
}
{
    width = length($0)
    if (width > 100) { s = $0; gsub(/[\200-\277]/, "", s); width = length(s) }
}
c {
    if (comment) { s = $0; sub(/^[ \t]*(\* |\*$)?/, "", s) }
    else if ($0 ~ /^[ \t]*\/\*/) {
        end_text(); comment = 1; begun = FNR; indented = $0 ~ /^[ \t]/
        if (declared == 2) contract(0)
        s = $0; sub(/^[ \t]*\/\*+ ?/, "", s)
    }
    if (comment) {
        if (width > ($0 ~ /^ \*   / ? 120 : 100)) hit(FNR, width " columns in a comment")
        # Code behind a comment of one line: an argument or a member.
        ended = index(s, "*/")
        if (ended) s = substr(s, 1, ended - 1)
        if (s ~ /^[ \t]*$/) end_text(); else add(s)
        if (ended) { comment = 0; whole = text; end_text(); above = ""; if (!indented) { above = whole; above_at = begun; declared = 0 } }
        next
    }
    if (width > 120) hit(FNR, width " columns of code")
    strings($0)
    # A comment behind code.
    if (match($0, /\/\* .*/)) phrases(substr($0, RSTART + 3), FNR)
    if (!contracts || above == "") next
    if (declared == 2) contract($0 ~ /^[A-Za-z_].*\(/)
    else if (!declared && ($0 !~ /^[A-Za-z_][A-Za-z0-9_ *():,]*[ *)][A-Za-z_][A-Za-z0-9_]*\(/ || $0 ~ /^(typedef|extern "C"|_Static_assert)| = /)) above = ""
    else if ($0 ~ /\{/) contract(0)
    else declared = $0 ~ /;[ \t]*(\/\*.*)?$/ ? 2 : 1
    next
}
kind == "md" {
    if ($0 ~ /^```/) fence = !fence
    # A list may go on after an empty line; that it is a code block there is rare.
    if (fence || $0 ~ /^(\||    )/) { end_text(); phrases($0, FNR); next }
    if (width > 100 && $0 !~ /^[^ ]*https?:[^ ]*$/) hit(FNR, width " columns of prose")
    if ($0 ~ /^[ \t]*$|^#/) { end_text(); phrases($0, FNR) } else { if ($0 ~ /^ *([-*]|[0-9]+\.) /) end_text(); add($0) }
    next
}
{
    if (width > 120 && kind == "js") hit(FNR, width " columns of code")
    if ($0 ~ (kind == "js" ? "^[ \t]*//" : "^[ \t]*#")) {
        # An indented line of a comment is a command or a table.
        if (width > ($0 ~ /^(#|\/\/)  / ? 120 : 100) && $0 !~ /^#!|shellcheck|noqa/) hit(FNR, width " columns in a comment")
        s = $0; sub(/^[ \t]*(#+|\/\/) ?/, "", s)
        if (s ~ /^[ \t]*$/) end_text(); else add(s)
        next
    }
    end_text(); strings($0)
}
END { end_file() }' >"$tmp/hits"

passed=0 failed=0
for room in "${selected[@]}"; do
    if grep -E "^${room//./\\.}[/:]" "$tmp/hits"; then failed=$((failed + 1)); else passed=$((passed + 1)); fi
done
echo "$passed passed, $failed failed"
((failed == 0))
