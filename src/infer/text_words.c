/*
 * text_words.c: see text_words.h.
 */
#include "infer/text_words.h"

#include <string.h>

#include "io/value.h"

/* --- code points ------------------------------------------------------------------------------ */

/* One code point at s; a byte that is not UTF-8 stands for itself. */
static int next_code(const char *s, size_t n, uint32_t *code)
{
    const int length = utf8_decode(s, n, code);
    if (length) return length;
    *code = (unsigned char)*s;
    return 1;
}

/* Python's str.isspace. */
static bool is_blank(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static uint32_t lower(uint32_t c)
{
    if (c >= 'A' && c <= 'Z') return c + 32;
    if (c >= 0xc0 && c <= 0xde && c != 0xd7) return c + 32;                           /* Latin-1 */
    /* Latin Extended-A: pairs, the upper case first... */
    if (c >= 0x100 && c <= 0x137 && c != 0x130) return c | 1;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e)) return c + (c & 1); /* ...or at odd numbers */
    if (c >= 0x14a && c <= 0x177) return c | 1;
    if (c == 0x178) return 0xff;
    if (c >= 0x391 && c <= 0x3a9 && c != 0x3a2) return c + 32;                        /* Greek */
    if (c >= 0x410 && c <= 0x42f) return c + 32;                                      /* Cyrillic */
    if (c >= 0x400 && c <= 0x40f) return c + 80;
    return c == 0x212a ? 'k' : c == 0x2126 ? 0x3c9 : c; /* the signs of Kelvin and Ohm */
}

static void put_code(struct text *out, uint32_t c)
{
    char s[4];
    size_t n = 0;
    if (c < 0x80) s[n++] = (char)c;
    else if (c < 0x800) s[n++] = (char)(0xc0 | c >> 6), s[n++] = (char)(0x80 | (c & 63));
    else if (c < 0x10000)
        s[n++] = (char)(0xe0 | c >> 12), s[n++] = (char)(0x80 | (c >> 6 & 63)), s[n++] = (char)(0x80 | (c & 63));
    else
        s[n++] = (char)(0xf0 | c >> 18), s[n++] = (char)(0x80 | (c >> 12 & 63)), s[n++] = (char)(0x80 | (c >> 6 & 63)),
        s[n++] = (char)(0x80 | (c & 63));
    text_append(out, s, n);
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_punctuation(uint32_t c) { return c > 32 && c < 127 && !is_letter((char)c) && !is_digit((char)c); }

/* --- SQuAD ------------------------------------------------------------------------------------ */

static bool is_article(const char *s, size_t n)
{
    return (n == 1 && *s == 'a') || (n == 2 && !memcmp(s, "an", 2)) || (n == 3 && !memcmp(s, "the", 3));
}

void words_squad(const char *s, struct text *out)
{
    size_t first = out->n; /* of the word */
    uint32_t last = 0;     /* its last letter, in the text's case */
    for (size_t n = strlen(s);;) {
        uint32_t c = 0;
        const int length = n ? next_code(s, n, &c) : 0;
        if (!n || is_blank(c)) {
            /* a sigma at the end has another lower case */
            if (last == 0x3a3 && out->n > first + 2) out->at[out->n - 1] = '\x82';
            if (out->n > first && is_article(out->at + first, out->n - first)) out->n = first;
            if (out->n > first) text_append(out, " ", 1);
            first = out->n;
            last = 0;
        } else if (!is_punctuation(c)) {
            put_code(out, lower(last = c));
        }
        if (!n) break;
        s += length;
        n -= (size_t)length;
    }
    text_append(out, "", 0);
}

/* --- ROUGE ------------------------------------------------------------------------------------ */

void words_rouge(const char *s, struct text *out)
{
    for (size_t n = strlen(s); n;) {
        uint32_t c;
        const int length = next_code(s, n, &c);
        c = lower(c);
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) put_code(out, c);
        else text_append(out, c == 0x130 ? "i " : " ", c == 0x130 ? 2 : 1); /* its lower case is i and a dot above */
        s += length;
        n -= (size_t)length;
    }
    text_append(out, "", 0);
}

/* --- 13a -------------------------------------------------------------------------------------- */

/* A symbol that is a word of its own: every ASCII symbol except ' , - and the full stop. */
static bool stands_alone(char c)
{
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
           (c >= ':' && c <= '@') || c == '/';
}

static bool is_point(char c) { return c == '.' || c == ','; }

static void replace(struct text *x, const char *from, const char *to)
{
    struct text y = {0};
    const char *s = x->at;
    for (const char *found; (found = strstr(s, from)); s = found + strlen(from)) {
        text_append(&y, s, (size_t)(found - s));
        text_append(&y, to, strlen(to));
    }
    text_append(&y, s, strlen(s));
    text_free(x);
    *x = y;
}

/* Two neighbours become "first second " or " first second", and the search goes on behind them. */
static void part_pairs(struct text *x, bool (*matches)(char a, char b), const char *before, const char *between,
                       const char *after)
{
    struct text y = {0};
    for (size_t i = 0; i < x->n;) {
        const bool pair = i + 1 < x->n && matches(x->at[i], x->at[i + 1]);
        if (pair) text_append(&y, before, strlen(before));
        text_append(&y, x->at + i++, 1);
        if (!pair) continue;
        text_append(&y, between, strlen(between));
        text_append(&y, x->at + i++, 1);
        text_append(&y, after, strlen(after));
    }
    text_free(x);
    *x = y;
}

static bool point_after(char a, char b) { return !is_digit(a) && is_point(b); }
static bool point_before(char a, char b) { return is_point(a) && !is_digit(b); }
static bool dash_after(char a, char b) { return is_digit(a) && b == '-'; }

static void put_symbols(struct text *x)
{
    struct text y = {0};
    for (size_t i = 0; i < x->n; i++) {
        const bool alone = stands_alone(x->at[i]);
        text_append(&y, " ", alone);
        text_append(&y, x->at + i, 1);
        text_append(&y, " ", alone);
    }
    text_free(x);
    *x = y;
}

/* Blanks of any kind become spaces. */
static void put_words(const struct text *x, struct text *out)
{
    for (size_t i = 0; i < x->n;) {
        uint32_t c;
        const int length = next_code(x->at + i, x->n - i, &c);
        if (is_blank(c)) text_append(out, " ", 1);
        else text_append(out, x->at + i, (size_t)length);
        i += (size_t)length;
    }
    text_append(out, "", 0);
}

void words_13a(const char *s, struct text *out)
{
    static const char *const replaced[][2] = {{"<skipped>", ""}, {"-\n", ""},   {"\n", " "},  {"&quot;", "\""},
                                              {"&amp;", "&"},    {"&lt;", "<"}, {"&gt;", ">"}};
    struct text x = {0};
    size_t n = strlen(s);
    /* a line break at the end joins nothing */
    while (n && (unsigned char)s[n - 1] < 128 && is_blank((unsigned char)s[n - 1])) n--;
    text_append(&x, s, n);
    for (size_t i = 0; i < COUNT(replaced); i++) replace(&x, replaced[i][0], replaced[i][1]);
    struct text line = {0};
    text_append(&line, " ", 1);
    text_append(&line, x.at, x.n);
    text_append(&line, " ", 1);
    text_free(&x);
    put_symbols(&line);
    part_pairs(&line, point_after, "", " ", " ");
    part_pairs(&line, point_before, " ", " ", "");
    part_pairs(&line, dash_after, "", " ", " ");
    put_words(&line, out);
    text_free(&line);
}
