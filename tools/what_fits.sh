#!/bin/bash
# Prints the table of docs/guides/what-fits.md: the models of `plimsoll models` up to 15 B weights
# on one GPU, by `plimsoll fits`. tools/docs.sh --quotes calls it; it takes minutes.
#
#   tools/what_fits.sh PLIMSOLL GIB
set -euo pipefail
plimsoll=$1
export LC_ALL=C PLIMSOLL_PROGRESS=0 PLIMSOLL_MEASURE=0 gib=$2 plimsoll

# row MODEL: one line of the table; a cell is GPU memory + host memory of at least 1 GiB, and speed.
row() {
    { "$plimsoll" fits "$1" --gpu "$gib" --json 2>/dev/null || true; } | awk -v model="$1" '
    function value(s) { sub(/^[^:]*: /, "", s); gsub(/[",]/, "", s); return s }
    /"way":/ { way = value($0) }
    /"fits":/ { fits[way] = value($0) == "true" }
    /"(arena|smallest_budget)_bytes":/ { arena[way] = value($0) / 2 ^ 30 }
    /"host_bytes":/ { host[way] = value($0) / 2 ^ 30 }
    /"samples_per_second":/ { samples[way] = value($0) }
    /"tokens_per_second":/ { tokens[way] = value($0) }
    function cell(w) {
        if (!(w in arena)) return ""
        return (fits[w] ? "" : "needs ") sprintf("%.1f", arena[w]) (host[w] >= 1 ? sprintf(" + %.0f", host[w]) : "") " GiB" \
            (!fits[w] ? "" : w in tokens ? sprintf(", %d tokens/s", tokens[w] < 1000 ? tokens[w] : int(tokens[w] / 10 + 0.5) * 10) : sprintf(", %.2g images/s", samples[w]))
    }
    END { printf "| %s | %s | %s | %s |\n", model, cell("full"), cell("lora"), cell("qlora") }'
}
export -f row
printf '| model | full fine-tuning | LoRA | QLoRA |\n|---|---|---|---|\n'
# Models of more than 15 B weights take minutes each to plan for so small a GPU.
"$plimsoll" models --json | awk -F'"' '/"name":/ { name = $4 } /"parameters":/ { sub(/[^0-9]*/, "", $3); if ($3 + 0 < 15e9) print name }' | xargs -P "$(nproc)" -I{} bash -c 'printf "%s\n" "$(row {})"' | sort -f
