#!/bin/bash
# Prints include/plimsoll_ops.h: a function for each op of src/graph/ops.def that a model may use,
# with the op's inputs as parameters. tools/docs.sh keeps the file up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
CC=${CC:-gcc}

cat <<'END'
/*
 * plimsoll_ops.h: a function for each op of a model, by its name in docs/reference/ops.md;
 * generated from src/graph/ops.def by tools/ops_header.sh (`make docs`).
 *
 *     y = pl_op_rmsnorm(b, x, w, "eps=1e-6");
 *
 * Each returns the op's first output, and is pl_op by another spelling. Inputs that an op can do
 * without are 0; `attributes` is text, in which what is not named is 0.
 */
#ifndef PLIMSOLL_OPS_H
#define PLIMSOLL_OPS_H

#include "plimsoll.h"

END
{
    echo '#define OP(NAME, ATTRIBUTES, SIGNATURE, RULE, VJP, READS, ALIASES, COST, CLASS, FLAGS, DOC) ROW NAME@SIGNATURE@ATTRIBUTES@ALIASES@FLAGS'
    cat src/graph/ops.def
} | $CC -E -P -x c - | awk -F@ '
    function trim(s) { gsub(/^ +| +$/, "", s); return s }
    function text(s) { gsub(/" *"/, "", s); gsub(/^ *"|" *$/, "", s); return s }
    function filled(first, next_, s, most,    n, word, i, out) {
        n = split(s, word, " ")
        out = first word[1]
        for (i = 2; i <= n; i++)
            if (length(out) + 1 + length(word[i]) <= most) out = out " " word[i]
            else { gsub(/~/, " ", out); print out; out = next_ word[i] }
        gsub(/~/, " ", out)
        print out
    }
    /^ROW/ {
        name = trim(substr($1, 4)); signature = text($2); attributes = text($3)
        if ($5 ~ /OPF_GRAD|OPF_EFFECT/ || name == "XENT" || name == "MASK_LOSS") next
        has = sub(/^[^:]*: */, "", attributes)
        if (!has && attributes != "") next # nothing of it can be given as text
        split("", written)
        aliases = $4
        while (match(aliases, /MUST\([0-9]+\)/)) {
            written[substr(aliases, RSTART + 5, RLENGTH - 6) + 0] = 1
            aliases = substr(aliases, RSTART + RLENGTH)
        }
        inputs = signature
        sub(/ *->.*/, "", inputs)
        n = split(inputs, word, " ")
        parameters = list = ""
        for (i = 1; i <= n && !((i - 1) in written); i++) {
            input = word[i]; sub(/[^A-Za-z0-9_].*/, "", input)
            parameters = parameters ", pl_tensor~" input
            list = list (list ? ", " : "") input
        }
        count = i - 1
        if (!count) next
        line = tolower("pl_op_" name)
        filled("/* ", " * ", "Emits " name ": " signature (has ? " (attributes: " attributes ")" : "") " */", 100)
        head = "static inline pl_tensor " line "("
        filled(head, sprintf("%*s", length(head), ""), "struct~pl_builder~*builder" parameters (has ? ", const~char~*attributes" : "") ")", 118)
        print "{"
        print "    const pl_tensor x_[] = {" list "};"
        print "    return pl_op(builder, \"" name "\", " count ", x_, " (has ? "attributes" : "NULL") ");"
        print "}\n"
    }'
echo '#endif'
