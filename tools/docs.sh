#!/bin/bash
# Writes the generated pages of docs/reference. With --check it reports pages that are out of date,
# links in README.md and docs/ that lead nowhere, and files and functions that they name and that do
# not exist. With --quotes it renews quoted outputs instead, which takes minutes: in docs/guides,
# the lines below an indented "$ build/plimsoll plan ..." become what that command prints now, and
# the table of published models in what-fits.md (tools/what_fits.sh) and the smallest budgets that
# `plimsoll models` prints (tools/smallest.sh) are renewed.
#
#   ops.md             from src/graph/ops.def
#   commands.md        from the --help of each command
#   passes.md          from src/passes/pipeline.def
#   gpu-kernels.md     from src/cuda/kernels.def
#   other-programs.md  from src/import/import.def and ignored.def
#   ../../include/plimsoll_ops.h   from src/graph/ops.def, by tools/ops_header.sh
#   ../images/budget.svg           from tables of docs/notes/benchmarks.md, by tools/figure.sh
#   configuration.md   the tables between its two "generated" comments, from
#                      `plimsoll train --help`, which prints src/config/config.def
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
CC=${CC:-gcc}
export LC_ALL=C PLIMSOLL_PROGRESS=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# Headings of ops.def become lines of their own and the preprocessor does the rest: each row
# comes out as ROW with its fields between @ signs, texts as one or more quoted strings.
ops() {
    cat <<'END'
# The ops

Generated from `src/graph/ops.def` by `tools/docs.sh`. [Adding an op](../guides/adding-an-op.md)
explains how the columns are used.

- **signature**: the inputs, an arrow, the outputs, and conditions after a semicolon. A tensor is a
  name, a dtype after a colon, and a shape. `?` marks an optional input, `!` one that must be dense;
  `=x` is the dtype of x, `float` any floating-point dtype, `stat` f32 (f64 in an f64 graph), `...`
  any number of dimensions, and `#x` the number of elements of x. Where text does not suffice, a
  rule in `src/graph/shape.c` checks the rest.
- **gradient**: whether the op can be differentiated, and which of its inputs and outputs the
  gradient reads. A tensor that no gradient reads is not kept for the backward.
- **in place**: `1 = in 2` means that output 1 is input 2, updated, where that input is given;
  `1 ~ in 2` means that output 1 may reuse the bytes of input 2 after its last use.
- **attributes**: the names that `pl_op` takes. Where a `dtype` is not given, the first input's is
  used.
- **flags**: VIEW has no kernel, the output is a view of input 0. ACCUM adds to its last input where
  that is given. EFFECT is never dropped or repeated. GRAD belongs to a backward or an update. LOCAL
  computes token by token: a row of the result follows from the same rows of the inputs. HOST has a
  CPU kernel with the bits of the GPU's, so that it may run beside a GPU.

END
    {
        echo '#define OP(NAME, ATTRIBUTES, SIGNATURE, RULE, VJP, READS, ALIASES, COST, CLASS, FLAGS, DOC) ROW NAME@SIGNATURE@ATTRIBUTES@VJP@READS@ALIASES@FLAGS@DOC'
        sed -E 's|^/\* --- (.*[a-z]) -+ \*/|HEADING \1|' src/graph/ops.def
    } | "$CC" -E -P -x c - | awk -F@ '
    function trim(s) { gsub(/^ +| +$/, "", s); return s }
    function clean(s) { gsub(/" *"/, "", s); gsub(/^ *"|" *$/, "", s); gsub(/\|/, "\\|", s); return s }
    function reads(s) {
        if (s ~ /NONE/) return "reads nothing"
        gsub(/ *\| */, ", ", s); gsub(/I\(/, "in ", s); gsub(/O\(/, "out ", s); gsub(/\)/, "", s)
        return "reads " trim(s)
    }
    function aliases(s,    n, part, i, out) {
        sub(/^ *ALIAS\(/, "", s); sub(/\) *$/, "", s)
        n = split(s, part, ",")
        for (i = 1; i <= n; i++) {
            if (part[i] ~ /NEW/) continue
            out = out (out ? ", " : "") i - 1 (part[i] ~ /MUST/ ? " = " : " ~ ")
            if (part[i] ~ /ANY/) out = out "any in"
            else { gsub(/[^0-9]/, "", part[i]); out = out "in " part[i] }
        }
        return out
    }
    function flags(s) { gsub(/OPF_/, "", s); gsub(/ *\| */, ", ", s); s = trim(s); return s == "0" ? "" : s }
    function listed(s) { if (!sub(/^[^:]*: /, "", s)) return ""; gsub(/ /, ", ", s); return s }
    /^HEADING/ {
        sub(/^HEADING /, "")
        printf "%s## %s\n\n| op | signature | what it does | gradient | in place | attributes | flags |\n|---|---|---|---|---|---|---|\n", \
            heading++ ? "\n" : "", toupper(substr($0, 1, 1)) substr($0, 2)
    }
    /^ROW/ {
        printf "| %s | `%s` | %s | %s | %s | %s | %s |\n", trim(substr($1, 4)), clean($2), clean($8), \
            trim($4) == "none" ? "none" : reads($5), aliases($6), listed(clean($3)), flags($7)
    }'
}

# The passes in order, one line each.
passes() {
    cat <<'END'
# Passes

Generated from `src/passes/pipeline.def` by `tools/docs.sh`. A plan runs these passes over the
model's forward graph, in this order. A **technique** does nothing unless its key of section
`memory` asks for it, or the planner chooses it. A **rewrite** runs in every plan: it saves memory
or time and keeps the result. [Adding a memory technique](../guides/adding-a-pass.md) explains how
one is written.

| phase | pass | kind | file | what it does |
|---|---|---|---|---|
END
    {
        echo '#define BASE_PASS(NAME, PHASE, PROGRAMS, DOC) ROW NAME@PHASE@@passes@DOC'
        echo '#define TECHNIQUE_PASS(NAME, PHASE, TECHNIQUE, PROGRAMS, DOC) ROW NAME@PHASE@TECHNIQUE@passes/techniques@DOC'
        echo '#define REWRITE_PASS(NAME, PHASE, DOC) ROW NAME@PHASE@rewrite@passes/rewrites@DOC'
        echo '#define AGAIN(NAME, PHASE) ROW NAME@PHASE@rewrite@passes/rewrites@"once more, over the backward"'
        cat src/passes/pipeline.def
    } | "$CC" -E -P -x c - | awk -F@ '
    /^ROW/ {
        name = substr($1, 5); doc = $5; gsub(/^ *"|" *$/, "", doc)
        kind = $3 == "rewrite" ? "rewrite" : $3 == "" ? "always" : "technique `memory." $3 "`"
        folder = name == "dense" ? "plan" : $4
        printf "| %s | %s | %s | `src/%s/%s.c` | %s |\n", tolower($2), name, kind, folder, name, doc
    }'
}

# A line 'FORMS KERNEL@name; name; ...' for each kernel with several forms: the planning halves as
# the compiler sees them have a struct forms with the names, and behind it the table whose rows
# point to it.
kernel_forms() {
    local file
    for file in src/cuda/*/plan_*.c; do
        "$CC" -Isrc -Iinclude -I"$BUILD" -E -P "$file" | tr '\n' ' ' | sed -E 's/(static const struct forms|\{OP_)/\n\1/g; s/, (forms_[a-z0-9_]+ = )/\nstatic const struct forms \1/g' | awk '
        function names(s,    out) {
            for (; match(s, /"[^"]*"/); s = substr(s, RSTART + RLENGTH)) out = out (out ? "; " : "") substr(s, RSTART + 1, RLENGTH - 2)
            return out
        }
        /^static const struct forms/ { forms[$5] = names($0) }
        /^\{OP_/ && match($0, /&forms_[a-z0-9_]+/) {
            of = substr($0, RSTART + 1, RLENGTH - 1)
            split($0, part, "\"")
            print "FORMS " part[2] "@" forms[of]
        }'
    done
}

# The CUDA kernels by op, in order of preference.
kernels() {
    cat <<'END'
# GPU kernels

Generated from `src/cuda/kernels.def` by `tools/docs.sh`. A plan for a GPU gives each node the first
kernel of its op that the GPU has and that takes the node's shapes, dtypes and strides; `plan
--explain all` names it, and nothing is chosen later. **From** is the lowest compute capability. A
kernel of 9.0 runs only on 9.0. **Forms**, where a kernel has several, are GPU functions or
algorithms under its name: the plan chooses among them by the node's shapes, and `plan --explain
all` shows which. Names with `cublaslt` call NVIDIA's library; the others are in `src/cuda`. [CUDA
kernels](../explanation/kernels.md#cuda-kernels) says what is behind them, and [adding an
op](../guides/adding-an-op.md) how one is added.

| op | kernel | from | forms |
|---|---|---|---|
END
    {
        kernel_forms
        {
            echo '#define KERNEL(OP, NAME, CAPABILITY, ...) ROW OP@NAME@CAPABILITY'
            cat src/cuda/kernels.def
        } | "$CC" -Isrc -E -P -x c -
    } | awk -F@ '
    /^FORMS/ { forms[substr($1, 7)] = $2 }
    /^ROW/ {
        op = substr($1, 5); from = $3 + 0
        if (!(op in rows)) order[++n] = op
        rows[op] = rows[op] sprintf("| %s | `%s` | %s | %s |\n", op, $2, from ? sprintf("%d.%d", from / 10, from % 10) : "any", forms[$2])
    }
    END { for (i = 1; i <= n; i++) printf "%s", rows[order[i]] }'
}

# The keys of other programs, a table for each, in which keys with the same reason share a row.
imported() {
    cat <<'END'
# Configurations of other programs

Generated from `src/import/import.def` and `src/import/ignored.def` by `tools/docs.sh`.
`--config-from FILE` reads these keys; [the guide](../guides/other-programs.md) shows how.
**Default** is the program's, which is used where the file does not have the key. A key that is not
listed is an error, as in the program itself. DeepSpeed ignores unknown keys outside of its
sections, and so does Plimsoll, with a line that says so.

A key changes neither the memory of a step nor what is trained, or it has a row in the first table
of its program. **Asks** means: another value has no key here, and `train` and `init` stop until our
key is set.
END
    {
        echo '#define PROGRAM(ID, NAME, PARENT, LEAVES, REFUSED) PROGRAM ID@NAME@PARENT@REFUSED@'
        echo '#define KEY(KEYS, HOW, OURS, DETAIL) ROW HOW@KEYS@OURS@DETAIL@'
        echo '#define IGNORED(CLASS, TEXT, KEYS) ROW NONE@KEYS@""@TEXT@'
        sed 's|^#undef.*||' src/import/import.def src/import/ignored.def
    } | "$CC" -E -P -Isrc -x c - | sed -E 's/(PROGRAM|ROW) [a-z0-9A-Z_]+@/\n&/g' | awk -F@ '
    function clean(s) { gsub(/" *"/, "", s); gsub(/^ *"|" *$/, "", s); gsub(/\|/, "\\|", s); return s }
    function how(h, s, standard) {
        if (h == "WORD") { gsub(/=/, ": ", s); gsub(/ ([a-z0-9_]+:)/, "; &", s); gsub(/; +/, "; ", s) }
        else if (h == "POSITIVE") s = "if above 0"
        else if (h == "IF_TRUE") s = "true: " s
        else if (h ~ /^ONLY/) s = "only " (h == "ONLY_TRUE" ? "true" : standard == "" ? "off" : standard) "; else refused: " s
        else if (h == "ASK") s = (standard == "" ? "asks: " : standard ", else asks: ") s
        return s
    }
    function wrap(s,    n, word, i, line, out) {
        for (n = split(s, word, " "); i++ < n; line = line (line == "" ? "" : " ") word[i])
            if (length(line) + length(word[i]) > 98) { out = out line "\n"; line = "" }
        return out line
    }
    /^PROGRAM/ { id = substr($1, 9); order[++n] = id; name[id] = clean($2); parent[id] = $3; refused[id] = clean($4); gsub(/ /, "", parent[id]) }
    # "program,program:prefix/key|key=default ...", of one meaning
    /^ROW/ {
        h = substr($1, 5); ours = clean($3); detail = clean($4)
        spec = $2; gsub(/" *"/, "", spec); gsub(/^ *"|" *$/, "", spec)
        for (m = split(spec, group, " "); m; m--) { # backwards: rows are put before those of later groups
            split(group[m], part, ":"); value = standard = substr(group[m], length(part[1]) + 2)
            sub(/=.*/, "", value); standard = substr(standard, length(value) + 2); gsub(/\|/, "\\|", standard)
            prefix = value ~ /\// ? substr(value, 1, index(value, "/") - 1) : ""
            sub(/.*\//, "", value); gsub(/\|/, "`, `" prefix, value); value = "`" prefix value "`"
            for (p = split(part[1], of, ","); p; p--)
                if (h == "NONE") keys[of[p], detail] = value (keys[of[p], detail] ? ", " keys[of[p], detail] : "")
                else now[of[p]] = sprintf("| %s | %s | %s | %s |\n", value, standard != "" && h !~ /^ONLY|^ASK/ ? "`" standard "`" : "", ours ? "`" ours "`" : "", how(h, detail, standard)) now[of[p]]
        }
        for (p in now) { rows[p] = rows[p] now[p]; delete now[p] }
        if (h == "NONE") reasons[++count] = detail
    }
    END {
        for (i = 1; i <= n; i++) {
            id = order[i]
            title = name[id]
            sub(/^a /, "A ", title)
            printf "\n## %s\n\n", title
            if (refused[id] != "") { print wrap("Not read: " refused[id] "."); continue }
            if (parent[id] != id) printf "Also has the keys of %s.\n\n", name[parent[id]]
            printf "| key | default | our key | how |\n|---|---|---|---|\n%s", rows[id]
            for (k = head = 1; k <= count; k++) {
                if (!((id, reasons[k]) in keys)) continue
                printf "%s| %s | %s |\n", head ? "\n| keys without effect here | why |\n|---|---|\n" : "", keys[id, reasons[k]], reasons[k]
                head = 0
            }
        }
    }' | awk '/^\|/ { print; next } { print | "fold -s -w 100 | sed \"s/ *$//\""; close("fold -s -w 100 | sed \"s/ *$//\"") }'
}

# --help prints two lines for each key: name, default and meaning; then the allowed values in
# brackets.
keys() {
    "$BUILD/plimsoll" train --help | awk '
    /^[a-z.]+(\[\])?:$/ {
        section = substr($1, 1, length($1) - 1)
        printf "\n### %s\n\n| key | default | meaning | allowed |\n|---|---|---|---|\n", section
        next
    }
    !section { next }
    /^  [a-z]/ {
        key = $1; standard = $2 == "-" ? "" : "`" $2 "`"
        doc = $0; sub(/^ *[^ ]+ +[^ ]+ +/, "", doc)
        next
    }
    /^ +\(.*\)$/ {
        sub(/^ +\(/, ""); sub(/\)$/, "")
        printf "| `%s.%s` | %s | %s | %s |\n", section, key, standard, doc, $0
    }
    END { print "" }'
}

# Prints the page with the text between its two comments replaced by a file.
splice() {
    awk -v table="$2" '
    /<!-- generated by/ { print; while ((getline line <table) > 0) print line; skip = 1; next }
    /<!-- end of generated/ { skip = 0 }
    !skip' "$1"
}

# commands.md: the --help text of each command, without the keys, which configuration.md lists.
commands() {
    local command
    cat <<'END'
# Commands

Generated by `tools/docs.sh` from `plimsoll COMMAND --help`. The keys of a run file, which most
commands also take as `--set key=value`, are in [configuration](configuration.md). What `--json`
prints is in [output](output.md).
END
    "$BUILD/plimsoll" --help | awk '$1 != "plimsoll" && /^  [a-z]/ { print $1 }
        $1 == "data" { for (i = split("make prepare inspect verify pack", what, " "); i; i--) list = "data " what[i] "\n" list; printf "%s", list }' | while read -r command; do
        printf '\n## %s\n\n' "$command"
        # shellcheck disable=SC2086
        "$BUILD/plimsoll" $command --help | sed '/^Keys of RUN.yaml/,$d; /^`plimsoll data WHAT --help`/d' |
            awk 'NF { while (blank) { print ""; blank-- } print "    " $0; next } { blank++ }'
    done
}

# quotes PAGE: the page with the output below each "    $ build/plimsoll plan" renewed.
quotes() {
    local line command='' reading='' skipping=''
    while IFS= read -r line || [[ $line ]]; do
        if [[ $line == '    $ build/plimsoll plan '* ]]; then
            command='' reading=1 skipping=''
        elif [[ $skipping ]]; then
            if [[ ! $line || $line == '    '* ]]; then continue; fi
            printf '\n'
            skipping=''
        fi
        printf '%s\n' "$line"
        if [[ ! $reading ]]; then continue; fi
        command+=${line%\\}
        if [[ $line == *\\ ]]; then continue; fi
        reading='' skipping=1
        command=${command#    \$ build/}
        # A plan that does not fit exits with 3: that is what some pages show.
        { XDG_DATA_HOME=$tmp/none PLIMSOLL_MEASURE=0 bash -c "$BUILD/$command" 2>&1 || true; } | sed 's/ *$//; s/^\(.\)/    \1/'
    done <"$1"
}

# The anchor that a heading gets: lower case, spaces become hyphens, other punctuation goes.
anchors() { sed -n 's/^##* //p' "$1" | tr 'A-Z ' 'a-z-' | sed 's/[^a-z0-9_-]//g'; }

# Reports relative links without a target; its status is 1 then.
links() {
    local page link file anchor bad=0
    while read -r page; do
        while read -r link; do
            file=${link%%#*} anchor=
            if [[ $link == *#* ]]; then anchor=${link#*#}; fi
            if [[ $file ]]; then file=$(dirname "$page")/$file; else file=$page; fi
            if [[ ! -e $file ]]; then
                echo "$page: $link leads to no file"
                bad=1
            elif [[ $anchor ]] && ! anchors "$file" | grep -qxF -e "$anchor"; then
                echo "$page: $link leads to no heading"
                bad=1
            fi
        done < <(grep -o '\](\([^()]*\))' "$page" | sed 's/^](//; s/)$//' | grep -v '^[a-z]*://')
    done < <(find README.md docs tests/golden/README.md -name '*.md')
    return $bad
}

# Reports source files that the pages name and that do not exist; its status is 1 then.
sources() {
    local page file bad=0
    # shellcheck disable=SC2016
    while IFS=: read -r page file; do
        compgen -G "$file" >/dev/null || { echo "$page: there is no $file"; bad=1; }
    done < <(grep -roE --include='*.md' '`(src|tests|bench|tools|examples|include)/[^` ]+`' README.md docs | tr -d '`')
    return $bad
}

# Reports names in a file that does not have them: "`src/data/order.c` `sample_at`" and
# "`trace_node` in `src/planning/planned_inputs.c`", also across the ends of lines, and C files by a
# part of their path that no file ends with. Its status is 1 then.
names() {
    local page words name file bad=0
    local c='`[a-z_0-9/]+\.(c|h|cu|cuh|def|inc)`' word='`[A-Za-z_0-9]+`'
    find src tests bench tools examples include -type f >"$tmp/files"
    while read -r page; do
        tr -s '\n ' ' ' <"$page" >"$tmp/text"
        while read -r file; do
            grep -qE "(^|/)$file\$" "$tmp/files" || { echo "$page: no file is $file"; bad=1; }
        done < <(grep -oE "$c" "$tmp/text" | tr -d '`' | sort -u)
        while read -r words; do
            name=$(grep -oE "$word" <<<"$words" | tr -d '`') file=$(grep -oE "$c" <<<"$words" | tr -d '`')
            # shellcheck disable=SC2046
            grep -qw -- "$name" $(grep -E "(^|/)$file\$" "$tmp/files") /dev/null || { echo "$page: $file has no $name"; bad=1; }
        done < <(grep -oE "$c $word|$word (in|of) $c" "$tmp/text")
    done < <(find README.md docs -name '*.md')
    return $bad
}

if [[ ${1-} == --quotes ]]; then
    tools/smallest.sh "$BUILD/plimsoll" >"$tmp/smallest"
    cp "$tmp/smallest" src/models/smallest.def
    tools/what_fits.sh "$BUILD/plimsoll" 24 >"$tmp/table"
    splice docs/guides/what-fits.md "$tmp/table" >"$tmp/page"
    cp "$tmp/page" docs/guides/what-fits.md
    for page in docs/guides/*.md; do
        quotes "$page" >"$tmp/page"
        cmp -s "$tmp/page" "$page" || { cp "$tmp/page" "$page"; echo "$page written"; }
    done
    exit
fi

ops >"$tmp/ops.md"
commands >"$tmp/commands.md"
passes >"$tmp/passes.md"
kernels >"$tmp/gpu-kernels.md"
imported >"$tmp/other-programs.md"
keys >"$tmp/keys"
splice docs/reference/configuration.md "$tmp/keys" >"$tmp/configuration.md"
mkdir "$tmp/made"
mv "$tmp"/{ops,commands,passes,gpu-kernels,other-programs,configuration}.md "$tmp/made"
tools/ops_header.sh >"$tmp/made/plimsoll_ops.h"
tools/figure.sh >"$tmp/made/budget.svg"

passed=0 failed=0
for page in "$tmp/made"/*; do
    name=${page##*/} to=docs/reference
    case $name in *.h) to=include ;; *.svg) to=docs/images ;; esac
    if [[ ${1-} != --check ]]; then
        cmp -s "$page" "$to/$name" || { cp "$page" "$to/$name"; echo "$to/$name written"; }
    elif diff -u "$to/$name" "$page"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "$to/$name is out of date: run make docs"
    fi
done
if links; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
if sources; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
if names; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
if [[ ${1-} == --check ]]; then echo "$passed passed, $failed failed"; fi
((failed == 0))
