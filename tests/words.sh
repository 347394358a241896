#!/bin/bash
# words.sh: no file of the tree uses a word that the glossary bans.
#
#   bash tests/words.sh       from the repository's root
#
# Reads comments, messages, identifiers, documents and file names, and what `plimsoll COMMAND
# --help` prints where $BUILD/plimsoll exists. Leaves out the golden data, the fuzz corpora and this
# file.
#
# Each row of the table below is one check. Each hit is printed as
#
#   FILE:LINE: the words found -> use instead
#
# (line 0: the file's name), and 'N passed, M failed' comes last. To ban a word, add a row. Columns
# are separated by tabs:
#
#   pattern       extended regular expression; case does not matter. It matches between characters that
#                 are not letters: `cards?` finds "card", "Cards" and "card_name", but not "discard"
#   use instead   printed with each hit
#   paths         optional: files and folders to search, separated by blanks; `help` is the --help text;
#                 `!path` leaves a file or folder out. `-` or nothing: everything
#   allowed       optional: extended regular expression of honest uses; a hit within one does not count
set -u
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C
BUILD=${BUILD:-build}

# A blank column becomes `-`: read takes several tabs for one.
table=$(sed -e '/^#/d' -e '/^$/d' -e 's/\t\t/\t-\t/' <<'TABLE'
cards?	GPU	-	(model|dataset) cards?
graphics[ -]cards?	GPU
pictures?	image, plot, figure		synthetic pictures|Picture \{\{
second space	host memory (on a CPU: the offload file)
(made|makes?|making) again	recompute, rebuild (an index, a plan)
comes? and goe?s?	transient
wanted soon	prefetch
by what was seen	measured on ...
kinds? of numbers?	dtype, precision
head in ([0-9]+|N|K|two|three|four) (pieces|parts)	LM head in N chunks
do(es)? not divide by	not divisible by
an? GPU of [0-9]	compute capability 9.0 (sm_90); a GPU with 24 GB
loss\.preset[:=] ?seed	loss.preset: equal-weights
# In texts for users a seed is a random seed.
seeds?	"random seed" where it is one; else name the thing	README.md docs examples help	random seeds?|train\.seed|split_seed|--seed|(^|[^[:alpha:]])seed: [0-9]|(by|same|another|different|each|two|three|four|five|its) seeds?|seeds? (and|or) (position|name|epoch|step)|seed, (epoch|step|position)|same-seed|keyed by the seed|^ *seed  +0|seed, the step|`(data_)?seed`
TABLE
)

tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT

# The files to search, one per line. The --help text of each command becomes a file. Of tests/golden
# only the scripts and documents are searched.
find README.md Makefile .ci docs include src python examples tools bench tests -type f \
    -not \( -path 'tests/golden/*' -not -name '*.py' -not -name '*.md' \) -not -path 'tests/fuzz/corpus/*' \
    -not -path '*/__pycache__/*' -not -path tests/words.sh -not -name LICENSE | sort >"$tmp/files"
if [ -x "$BUILD/plimsoll" ]; then
    mkdir "$tmp/help"
    "$BUILD/plimsoll" --help >"$tmp/help/plimsoll" 2>&1
    # Names of commands have no blanks.
    # shellcheck disable=SC2013
    for command in $(sed -n 's/^  \(plimsoll \)\{0,1\}\([a-z]\{1,\}\) .*/\2/p' "$tmp/help/plimsoll" | sort -u); do
        "$BUILD/plimsoll" "$command" --help >"$tmp/help/plimsoll-$command" 2>&1
    done
    for command in make prepare inspect verify pack tokenize; do
        "$BUILD/plimsoll" data "$command" --help >"$tmp/help/plimsoll-data-$command" 2>&1
    done
    find "$tmp/help" -type f | sort >>"$tmp/files"
fi

# selected PATHS: prints the files that a row searches.
selected() {
    local path inside=() outside=() words
    read -r -a words <<<"$1"
    for path in ${words[@]+"${words[@]}"}; do
        case $path in
            -) ;;
            !*) outside+=(-e "^${path#!}\(/\|$\)") ;;
            help) inside+=(-e "^$tmp/help/") ;;
            *) inside+=(-e "^$path\(/\|$\)") ;;
        esac
    done
    ((${#inside[@]})) || inside=(-e '')
    ((${#outside[@]})) || outside=(-e '^$')
    grep "${inside[@]}" "$tmp/files" | grep -v "${outside[@]}"
}

# search PATTERN INSTEAD PATHS ALLOWED: prints the hits and fails if there are any.
search() {
    local pattern="(^|[^[:alpha:]])($1)([^[:alpha:]]|$)" hit text where hits=0
    selected "$3" >"$tmp/selected"
    { sed 's/.*/&:0:&/' "$tmp/selected" | grep -v "^$tmp" | grep -iE -- ":0:.*$pattern"
      tr '\n' '\0' <"$tmp/selected" | xargs -0 grep -nHIiE -e "$pattern"; } >"$tmp/hits"
    while IFS= read -r hit; do
        where=$(cut -d : -f 1,2 <<<"$hit")
        text=${hit#"$where":}
        [ -z "$4" ] || text=$(sed -E "s/$4//Ig" <<<"$text")
        text=$(grep -oiE -m 1 -e "$pattern" <<<"$text" | head -n 1) || continue
        [ -n "$text" ] || continue
        echo "${where/#$tmp\/help\//--help of }: $(tr -s '[:space:]' ' ' <<<"$text" | sed 's/^[^[:alpha:]-]*//; s/[^[:alnum:]]*$//') -> $2"
        hits=$((hits + 1))
    done <"$tmp/hits"
    ((hits == 0))
}

passed=0 failed=0
while IFS=$'\t' read -r pattern instead paths allowed; do
    if search "$pattern" "$instead" "${paths:--}" "${allowed:-}"; then
        passed=$((passed + 1))
    else
        echo "FAIL  $pattern"
        failed=$((failed + 1))
    fi
done <<<"$table"
echo "$passed passed, $failed failed"
((failed == 0))
