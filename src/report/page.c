/*
 * page.c: see page.h.
 *
 * Colours are CSS variables with a value for light and one for dark mode. The colours of the kinds
 * of memory are the same in both, so that a kind is recognised on every page.
 */
#include "report/page.h"

#include "base/coding.h"

static const char style[] =
    "<style>"
    ":root{color-scheme:light "
    "dark;--bg:#fff;--fg:#1d2229;--dim:#5b6470;--line:#dde1e6;--soft:#f4f6f8;--one:#1f6fb5;--two:#c4463d}"
    "@media(prefers-color-scheme:dark){:root{--bg:#15181c;--fg:#e3e6ea;--dim:#9aa4b0;--line:#333a42;--soft:#1e2329;--"
    "one:#62ade8;--two:#f08a7e}}"
    "*{box-sizing:border-box}"
    "body{font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica "
    "Neue',sans-serif;background:var(--bg);color:var(--fg);max-width:1080px;"
    "margin:0 auto;padding:24px 16px 64px;overflow-wrap:anywhere}"
    "h1{font-size:26px;line-height:1.25;margin:0 0 16px}h2{font-size:20px;line-height:1.3;margin:40px 0 "
    "8px}p{margin:8px 0}"
    "a{color:var(--one)}.above,.dim{color:var(--dim);font-size:14px}"
    ".facts{display:flex;flex-wrap:wrap;gap:1px;margin:0;background:var(--line);border:1px solid "
    "var(--line);border-radius:8px;overflow:hidden}"
    ".facts div{flex:1 1 230px;background:var(--bg);padding:10px 14px}.facts dt{color:var(--dim);font-size:13px}"
    ".facts dd{margin:0;font-size:19px;font-weight:600;line-height:1.3}.facts "
    "dd+dd{font-size:13px;font-weight:400;color:var(--dim);margin-top:2px}"
    ".bar{display:flex;height:28px;border-radius:6px;overflow:hidden;background:var(--line);margin:12px 0}.bar "
    "span{min-width:1px}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;margin:8px 0;font-size:14px}td,th{padding:3px 18px 3px "
    "0;text-align:left;white-space:nowrap}"
    "th{color:var(--dim);font-weight:500}tr+tr td{border-top:1px solid var(--line)}"
    "td+td,th+th{text-align:right;font-variant-numeric:tabular-nums}.names td+td,.names th+th{text-align:left}.names "
    "td{overflow-wrap:normal}"
    ".chip{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:8px;vertical-align:-1px}.chips{"
    "font-size:14px}.chips span{margin-right:18px;white-space:nowrap}"
    ".row{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,460px),1fr));gap:16px;margin-top:12px}"
    ".images{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr));gap:16px;margin-top:12px;"
    "align-items:start}"
    "figure{margin:0;min-width:0}figcaption{font-size:14px;margin:6px "
    "0}img{display:block;max-width:100%;height:auto;border-radius:6px}.images img{width:100%}"
    ".answer{border:1px solid var(--line);border-radius:8px;padding:10px 14px;min-width:0}.answer "
    "img{display:inline-block;min-height:64px;max-height:160px;margin:0 8px 8px 0}"
    ".answer dl{margin:0}.answer dt{color:var(--dim);font-size:13px}.answer dd{margin:0 0 6px;white-space:pre-wrap}"
    ".chart{border:1px solid var(--line);border-radius:8px;padding:6px 10px}"
    "svg{display:block;width:100%;height:auto}svg text{font-size:11px;fill:var(--dim)}svg line{stroke:var(--line)}"
    "polyline{fill:none;stroke-width:1.5;stroke-linejoin:round}.one polyline{stroke:var(--one)}.two "
    "polyline{stroke:var(--two)}"
    ".one circle{fill:var(--one)}.two "
    "circle{fill:var(--two)}b.one,b.two{font-weight:500;margin-left:12px}b.one{color:var(--one)}b.two{color:var(--two)}"
    "pre{background:var(--soft);border-radius:8px;padding:14px;overflow:auto;font-size:13px;line-height:1.45;overflow-"
    "wrap:normal}"
    "canvas{display:block;width:100%;height:560px;border:1px solid var(--line);border-radius:8px;touch-action:pan-y}"
    "summary{cursor:pointer;font-size:20px;font-weight:600;margin:40px 0 8px}"
    "@media(max-width:600px){body{padding:16px 12px 48px}h1{font-size:22px}svg text{font-size:15px}canvas{height:360px}"
    ".facts div{flex-basis:150px;padding:8px 10px}.facts dd{font-size:17px}td,th{padding-right:12px}}"
    "</style>\n";

/* Returns the length of the absolute path at s[0] in a text; 0: there is none. In quotes it may
 * have blanks. */
static size_t path_length(const char *s, char before)
{
    if (s[0] != '/' || s[1] == '/' || !strchr(" \t\n\"'[({,=:", before)) return 0;
    return strcspn(s, before == '"' ? "\"\n" : before == '\'' ? "'\n" : " \t\n\"',])}");
}

void page_text(struct text *out, const char *s)
{
    struct text copy = {0};
    for (size_t i = 0; s[i];) {
        const size_t n = path_length(s + i, i ? s[i - 1] : ' ');
        size_t last = n;
        while (last > 1 && s[i + last - 1] == '/') last--;
        while (last && s[i + last - 1] != '/') last--;
        if (last > 1) text_printf(&copy, "\u2026/%.*s", (int)(n - last), s + i + last);
        else text_append(&copy, s + i, n ? n : 1);
        i += n ? n : 1;
    }
    if (copy.n) html_escape(out, copy.at);
    text_free(&copy);
}

const char *page_name(const char *path, int parts, char out[256])
{
    snprintf(out, 256, "%.255s", path);
    for (char *slash; (slash = strrchr(out, '/')) && (strpbrk(slash, "*?[") || !slash[1]) && slash > out;) *slash = 0;
    char *at = out + strlen(out);
    for (; at > out; at--)
        if (at[-1] == '/' && !--parts) break;
    return *at ? at : out;
}

void page_begin(struct text *out, const char *above, const char *title)
{
    text_printf(out, "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
                     "content='width=device-width,initial-scale=1'>\n<title>");
    html_escape(out, title);
    text_printf(out, "</title>\n%s</head><body>\n<div class='above'>", style);
    html_escape(out, above);
    text_printf(out, "</div>\n<h1>");
    html_escape(out, title);
    text_printf(out, "</h1>\n");
}

void page_end(struct text *out) { text_printf(out, "</body></html>\n"); }

/* --- the headline ---------------------------------------------------------------------- */

void page_facts_begin(struct text *out) { text_printf(out, "<dl class='facts'>\n"); }

void page_fact(struct text *out, const char *label, const char *value, const char *remark)
{
    text_printf(out, "<div><dt>");
    html_escape(out, label);
    text_printf(out, "</dt><dd>");
    html_escape(out, value);
    if (*remark) text_printf(out, "</dd><dd>");
    html_escape(out, remark);
    text_printf(out, "</dd></div>\n");
}

void page_facts_end(struct text *out) { text_printf(out, "</dl>\n"); }

/* --- memory ------------------------------------------------------------------------------ */

const char *page_kind_colour(const char *kind)
{
    static const struct {
        const char *kind, *colour;
    } colours[] = {
        {"parameters", "#2a78bd"}, {"masters", "#8b5fbf"},     {"gradients", "#e09f3e"}, {"optimizer", "#4c9f70"},
        {"inputs", "#b0579b"},     {"constants", "#6d7b8a"},   {"step", "#b56b45"},      {"outputs", "#3fa7a7"},
        {"staging", "#a3a23c"},    {"activations", "#6bb5e3"}, {"workspace", "#d2584f"}, {"communication", "#7a8f2e"},
    };
    for (size_t i = 0; i < COUNT(colours); i++)
        if (!strcmp(colours[i].kind, kind)) return colours[i].colour;
    return "var(--line)"; /* padding */
}

/* Reports whether a part would be 0.0 %: those share a row. */
static bool is_small(const struct page_part *p, uint64_t whole) { return (double)p->bytes < 0.0005 * (double)whole; }

void page_memory(struct text *out, const struct page_part *parts, uint32_t n, uint64_t whole)
{
    char size[32];
    text_printf(out, "<div class='bar'>");
    for (uint32_t i = 0; i < n; i++)
        text_printf(out, "<span style='width:%.3f%%;background:%s' title='%s: %s'></span>",
                    100 * (double)parts[i].bytes / (double)whole, page_kind_colour(parts[i].kind), parts[i].kind,
                    size_print(parts[i].bytes, size));
    text_printf(out, "</div>\n<div class='wide'><table>\n");
    struct text small = {0};
    uint64_t rest = 0;
    uint32_t hidden = 0;
    for (uint32_t i = 0; i < n; i++)
        if (is_small(&parts[i], whole))
            text_printf(&small, "%s%s", hidden++ ? ", " : "", parts[i].kind), rest += parts[i].bytes;
    for (uint32_t i = 0; i < n; i++) {
        if (hidden > 1 && is_small(&parts[i], whole)) continue;
        text_printf(out,
                    "<tr><td><span class='chip' style='background:%s'></span>%s</td><td>%s</td><td>%.1f %%</td></tr>\n",
                    page_kind_colour(parts[i].kind), parts[i].kind, size_print(parts[i].bytes, size),
                    100 * (double)parts[i].bytes / (double)whole);
    }
    if (hidden > 1)
        text_printf(out, "<tr><td><span class='chip'></span>%s</td><td>%s</td><td>%.1f %%</td></tr>\n", small.at,
                    size_print(rest, size), 100 * (double)rest / (double)whole);
    text_free(&small);
    text_printf(out, "<tr><td><b>arena</b></td><td><b>%s</b></td><td></td></tr></table></div>\n",
                size_print(whole, size));
}

/* --- images ------------------------------------------------------------------------------- */

void page_figure(struct text *out, const void *png, size_t n, const char *caption)
{
    text_printf(out, "<figure><img alt='' src='data:image/png;base64,");
    base64_encode(out, png, n);
    text_printf(out, "'><figcaption>%s</figcaption></figure>\n", caption);
}
