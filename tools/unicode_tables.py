#!/usr/bin/env python3
"""Writes src/text/template/unicode.inc: letter case and printability of code points, as Python has them.

    python3 tools/unicode_tables.py >src/text/template/unicode.inc      (Python 3.11: Unicode 14)

Runs of code points with the same distance to their mapping become one row {first, last, step, distance}.
"""
import sys
import unicodedata

CODES = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]


def rows(mapping):
    """Rows of a dict from code point to code point."""
    out = []
    for c in sorted(mapping):
        d = mapping[c] - c
        if out:
            first, last, step, distance = out[-1]
            gap = c - last
            if d == distance and gap in (1, 2) and (first == last or gap == step):
                out[-1] = (first, c, gap, d)
                continue
        out.append((c, c, 1, d))
    return out


def table(kind, name, lines, width=6):
    print(f"static const struct {kind} {name}[] = {{")
    for i in range(0, len(lines), width):
        print("    " + " ".join(lines[i:i + width]))
    print("};")


def case(name, method):
    one = {c: ord(method(chr(c))) for c in CODES if len(method(chr(c))) == 1 and method(chr(c)) != chr(c)}
    more = {c: method(chr(c)) for c in CODES if len(method(chr(c))) > 1}
    table("case_run", name + "_runs", ["{0x%x, 0x%x, %d, %d}," % r for r in rows(one)])
    table("case_long", name + "_long", ['{0x%x, "%s"},' % (c, "".join("\\x%02x" % b for b in s.encode())) for c, s in more.items()])


def ranges(name, has):
    out = []
    for c in range(0x80, 0x110000):
        if has(c):
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
    table("code_range", name, ["{0x%x, 0x%x}," % tuple(r) for r in out], 8)


print(f"/* Written by tools/unicode_tables.py from Unicode {unicodedata.unidata_version}. */")
case("upper", str.upper)
case("lower", str.lower)
# Where the title case differs from the upper case.
title = {c: chr(c).title() for c in CODES if chr(c).title() != chr(c).upper()}
table("case_long", "title_long", ['{0x%x, "%s"},' % (c, "".join("\\x%02x" % b for b in s.encode())) for c, s in title.items()])
ranges("not_printable", lambda c: not chr(c).isprintable())
sys.exit(0)
