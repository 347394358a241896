#!/bin/bash
# Draws the figure of README.md from two tables of docs/notes/benchmarks.md: images a second against
# GiB, of SAM ViT-H within budgets and in PyTorch. tools/docs.sh calls it and compares.
#
#   tools/figure.sh >docs/images/budget.svg
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
page=docs/notes/benchmarks.md

# Lines of points: whose, GiB, images a second, and the label, which is the budget or the batch.
points() {
    awk -F ' *[|] *' '
    /^\| budget \| img\/s predicted/ { ours = 1; next }
    /^\| ViT-H \| 1 / { theirs = 1 }
    !/^\|/ || ($2 != "" && $2 != "ViT-H") { theirs = 0 }
    !/^\|/ { ours = 0 }
    ours && $5 + 0 { print "ours", $5, $4, $2 }
    theirs && $4 != "" { split($4, x, " / "); print "theirs", x[2], x[1], $3 }' "$page"
    tr '\n' ' ' <"$page" | sed -E 's/.*SamModel within ([0-9.]+) GiB[^:]*: ([0-9.]+) img\/s at B = 4 with gradient checkpointing.*/checkpointed \1 \2 4, gradient checkpointing\n/'
}

points | awk '
function x(gib) { return sprintf("%.1f", 46 + 4.75 * gib) }
function y(rate) { return sprintf("%.1f", 290 - 8.4 * rate) }
function text(at, below, class, s) { printf "<text x=\"%s\" y=\"%s\" class=\"%s\">%s</text>\n", at, below, class, s }
function line(class, d) { printf "<path class=\"%s\" d=\"%s\"/>\n", class, d }
{
    who = $1; n[who]++
    gib[who, n[who]] = $2; rate[who, n[who]] = $3
    label = $4; for (i = 5; i <= NF; i++) label = label " " $i
    name[who, n[who]] = label
    path[who] = path[who] (path[who] ? "L" : "M") x($2) " " y($3)
}
END {
    if (n["ours"] < 2 || n["theirs"] < 2 || n["checkpointed"] != 1) { print "the tables are not there" >"/dev/stderr"; exit 1 }
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 560 340\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"14\">"
    print "<title>Images a second against GPU memory: training SAM ViT-H</title>"
    print "<style>"
    print "text { fill: #24292f } .dim { fill: #5b6069 } .mid { text-anchor: middle } .end { text-anchor: end }"
    print ".grid { stroke: #d5d8de } .ours { stroke: #0b63c4 } .theirs { stroke: #a3581b }"
    print "path { fill: none; stroke-width: 2.5 } .grid { stroke-width: 1 }"
    print "circle.ours, text.ours { fill: #0b63c4; stroke: none } circle.theirs, text.theirs { fill: #a3581b; stroke: none }"
    print ".back { fill: #ffffff } .bold { font-weight: 600 } circle.hollow { fill: #ffffff; stroke: #a3581b; stroke-width: 2 }"
    print "@media (prefers-color-scheme: dark) {"
    print "text { fill: #e7e9ed } .dim { fill: #a3a9b4 } .grid { stroke: #353a43 } .back { fill: #14161a }"
    print ".ours { stroke: #6cb0ff } .theirs { stroke: #e5a55e }"
    print "circle.ours, text.ours { fill: #6cb0ff } circle.theirs, text.theirs { fill: #e5a55e }"
    print "circle.hollow { fill: #14161a; stroke: #e5a55e } }"
    print "</style>"
    print "<rect class=\"back\" width=\"560\" height=\"340\" rx=\"8\"/>"
    for (i = 0; i <= 30; i += 10) {
        line("grid", "M46 " y(i) "H545")
        text(40, y(i) + 5, "dim end", i)
    }
    for (i = 0; i <= 100; i += 20) text(x(i), 309, "dim mid", i)
    text(46, 22, "dim", "images a second")
    text(545, 330, "dim end", "GiB of GPU memory for the step")
    for (k = 1; k <= 2; k++) {
        who = k == 1 ? "ours" : "theirs"
        line(who, path[who])
        for (i = 1; i <= n[who]; i++) {
            printf "<circle class=\"%s\" cx=\"%s\" cy=\"%s\" r=\"4.5\"/>\n", who, x(gib[who, i]), y(rate[who, i])
            if (who == "ours") text(x(gib[who, i]) + 7, y(rate[who, i]) + 17, "", name[who, i])
            else text(x(gib[who, i]), y(rate[who, i]) + 21, "mid", name[who, i])
        }
    }
    printf "<circle class=\"theirs hollow\" cx=\"%s\" cy=\"%s\" r=\"5\"/>\n", x(gib["checkpointed", 1]), y(rate["checkpointed", 1])
    text(x(gib["checkpointed", 1]) - 8, y(rate["checkpointed", 1]) - 21, "", name["checkpointed", 1])
    text(x(gib["ours", n["ours"]]) + 12, y(rate["ours", n["ours"]]) - 8, "ours bold", "Plimsoll, by budget")
    text(545, y(rate["theirs", n["theirs"]]) - 26, "theirs bold end", "PyTorch, by images at once")
    print "</svg>"
}'
