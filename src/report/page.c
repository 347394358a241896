/*
 * page.c: see page.h.
 */
#include "report/page.h"

static const char style[] =
    "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}"
    "h1,h2{font-weight:600}table{border-collapse:collapse;margin:.5em 0}td,th{padding:.15em .9em .15em 0;text-align:left}"
    "td+td,th+th{text-align:right;font-variant-numeric:tabular-nums}td i{display:inline-block;width:.8em;height:.8em;margin-right:.5em}"
    ".bar{display:flex;height:26px;border-radius:4px;overflow:hidden}.row{display:flex;flex-wrap:wrap;gap:14px}"
    "figure{margin:0}figcaption{font-size:12px;color:#555}img{max-width:460px;border:1px solid #ccc}"
    "svg{border:1px solid #e2e2e2;border-radius:4px}svg text{font-size:11px;fill:#555}svg .title{font-weight:600;fill:#222}"
    "pre{background:#f6f6f6;padding:1em;overflow:auto;font-size:12px}</style>\n";

void page_escaped(struct text *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') text_printf(out, "&lt;");
        else if (*s == '>') text_printf(out, "&gt;");
        else if (*s == '&') text_printf(out, "&amp;");
        else if (*s == '\'') text_printf(out, "&#39;");
        else text_append(out, s, 1);
    }
}

void page_begin(struct text *out, const char *title)
{
    text_printf(out, "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>");
    page_escaped(out, title);
    text_printf(out, "</title>\n%s</head><body>\n<h1>", style);
    page_escaped(out, title);
    text_printf(out, "</h1>\n");
}

void page_end(struct text *out) { text_printf(out, "</body></html>\n"); }

const char *page_colour(uint32_t i)
{
    static const char *const colours[] = {"#1b6ca8", "#d1495b", "#edae49", "#66a182", "#8d6a9f", "#2e4057", "#b56b45", "#7fb7be",
                                          "#c9a227", "#5fa8d3", "#a44a3f", "#6b717e"};
    return colours[i % COUNT(colours)];
}
