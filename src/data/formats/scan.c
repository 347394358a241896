/*
 * scan.c: the JSON scanner (see scan.h). Every read is preceded by a comparison with `end`.
 */
#include "data/formats/scan.h"

#include <math.h>

struct scan scan_begin(const char *text, size_t n)
{
    return (struct scan){.begin = text, .at = text, .end = text + n};
}

bool scan_fail(struct scan *s, const char *expected)
{
    if (!s->fault) s->fault = expected;
    return false;
}

static inline void skip_blank(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t')) s->at++;
}

bool scan_finish(struct scan *s)
{
    if (s->fault) return false;
    skip_blank(s);
    return s->at == s->end ? true : scan_fail(s, "the end");
}

char scan_peek(struct scan *s)
{
    if (s->fault) return 0;
    skip_blank(s);
    return s->at < s->end ? *s->at : 0;
}

/* --- maps and lists ------------------------------------------------------------------- */

bool scan_enter(struct scan *s, char open)
{
    if (scan_peek(s) != open) return scan_fail(s, open == '{' ? "a map {...}" : "a list [...]");
    if (s->depth == SCAN_DEPTH) return scan_fail(s, "less nesting");
    s->depth++;
    s->at++;
    return true;
}

/* Reads the comma before all but the first item; false after the closing bracket. */
static bool next_item(struct scan *s, bool *first, char close)
{
    char c = scan_peek(s);
    if (s->fault) return false;
    if (c == close) {
        s->at++;
        s->depth--;
        return false;
    }
    if (!*first) {
        if (c != ',') return scan_fail(s, close == '}' ? "a comma or }" : "a comma or ]");
        s->at++;
    }
    *first = false;
    return true;
}

bool scan_member(struct scan *s, bool *first, struct scan_key *key)
{
    if (!next_item(s, first, '}') || !scan_text(s, &key->at, &key->n)) return false;
    if (scan_peek(s) != ':') return scan_fail(s, "a colon");
    s->at++;
    return true;
}

bool scan_element(struct scan *s, bool *first)
{
    bool was_first = *first;
    if (!next_item(s, first, ']')) return false;
    if (!was_first && scan_peek(s) == ']') return scan_fail(s, "a value");
    return true;
}

/* --- values ------------------------------------------------------------------------------ */

/* Scans a text up to its closing quote, which follows an even number of backslashes. */
bool scan_text(struct scan *s, const char **at, size_t *n)
{
    if (scan_peek(s) != '"') return scan_fail(s, "a text in quotes");
    const char *from = s->at + 1, *p = from;
    for (;; p++) {
        p = memchr(p, '"', (size_t)(s->end - p));
        if (!p) return scan_fail(s, "a closing quote");
        size_t slashes = 0;
        while (p - slashes > from && p[-1 - (ptrdiff_t)slashes] == '\\') slashes++;
        if (slashes % 2 == 0) break;
    }
    *at = from;
    *n = (size_t)(p - from);
    s->at = p + 1;
    return true;
}

static int hex4(const char *at)
{
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Encodes a code point as UTF-8; returns the bytes, 0 for an invalid one. */
static size_t put_utf8(uint32_t c, char out[4])
{
    if (!c || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)(lead[n] | c);
    return n;
}

bool scan_unescape(const char *at, size_t n, char *out, size_t room)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t used = 0;
    for (const char *end = at + n; at < end;) {
        char utf8[4] = {*at++};
        size_t k = 1;
        if (utf8[0] == '\\') {
            if (at == end) return false;
            char c = *at++;
            const char *known = c ? strchr(from, c) : NULL;
            if (known) utf8[0] = to[known - from];
            else if (c != 'u' || end - at < 4 || hex4(at) < 0) return false;
            else {
                uint32_t code = (uint32_t)hex4(at);
                at += 4;
                if (code >> 10 == 0x36 && end - at >= 6 && at[0] == '\\' && at[1] == 'u' &&
                    hex4(at + 2) >> 10 == 0x37) {
                    code = 0x10000 + ((code & 0x3ff) << 10) + ((uint32_t)hex4(at + 2) & 0x3ff);
                    at += 6;
                }
                k = put_utf8(code, utf8);
            }
        }
        if (!k || !utf8[0] || used + k >= room) return false;
        memcpy(out + used, utf8, k);
        used += k;
    }
    if (!room) return false;
    out[used] = 0;
    return true;
}

static size_t digits(struct scan *s, uint64_t *mantissa, int *used)
{
    const char *from = s->at;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++)
        if (*mantissa < 1000000000000000000ull) *mantissa = *mantissa * 10 + (uint64_t)(*s->at - '0'), ++*used;
    return (size_t)(s->at - from);
}

/* Converts numbers of more than 53 bits or with a large exponent. */
static bool convert_slowly(struct scan *s, const char *from, double *out)
{
    char copy[400];
    size_t n = (size_t)(s->at - from);
    if (n >= sizeof copy) return scan_fail(s, "a shorter number");
    memcpy(copy, from, n);
    copy[n] = 0;
    *out = strtod(copy, NULL);
    return isfinite(*out) ? true : scan_fail(s, "a number that a double holds");
}

/* Scans a number. A mantissa below 2^53 and a power of ten up to 22 are exact, so their quotient
 * is rounded once: the nearest double, like strtod. A longer mantissa is rounded before, and the
 * quotient is off by one unit in the last place; with `exact` such a number takes the slow path. */
static bool number(struct scan *s, bool exact, double *out)
{
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    scan_peek(s);
    if (s->fault) return false;
    const char *from = s->at;
    bool negative = s->at < s->end && *s->at == '-', exponent = false;
    s->at += negative;
    uint64_t mantissa = 0;
    int used = 0;
    const char *whole_from = s->at;
    size_t whole = digits(s, &mantissa, &used), all = whole, fraction = 0;
    if (!whole || (whole > 1 && *whole_from == '0')) return scan_fail(s, "a number");
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        fraction = digits(s, &mantissa, &used);
        all += fraction;
        if (!fraction) return scan_fail(s, "a digit");
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        exponent = true;
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
        uint64_t ignored = 0;
        int none = 0;
        if (!digits(s, &ignored, &none)) return scan_fail(s, "a digit");
    }
    if (exponent || (size_t)used != all || (exact && mantissa >> 53) || fraction > 22)
        return convert_slowly(s, from, out);
    double x = (double)mantissa / power[fraction];
    *out = negative ? -x : x;
    return true;
}

bool scan_number(struct scan *s, double *out) { return number(s, true, out); }

bool scan_float(struct scan *s, float *out)
{
    double x;
    if (!number(s, false, &x)) return false;
    if (!isfinite((float)x)) return scan_fail(s, "a number that a float holds");
    *out = (float)x;
    return true;
}

bool scan_integer(struct scan *s, int64_t *out)
{
    double x;
    if (!scan_number(s, &x)) return false;
    if (x != floor(x) || fabs(x) > 0x1p53) return scan_fail(s, "a whole number up to 2^53");
    *out = (int64_t)x;
    return true;
}

static bool literal(struct scan *s, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n)) return scan_fail(s, "a value");
    s->at += n;
    return true;
}

bool scan_bool(struct scan *s, bool *out)
{
    char c = scan_peek(s);
    if (c == 't') return *out = true, literal(s, "true");
    if (c == 'f') return *out = false, literal(s, "false");
    int64_t x;
    if (!scan_integer(s, &x) || (x != 0 && x != 1)) return scan_fail(s, "true, false, 0 or 1");
    *out = x != 0;
    return true;
}

bool scan_numbers(struct scan *s, float *out, int n)
{
    int i = 0;
    for (bool first = scan_enter(s, '['); scan_element(s, &first); i++) {
        if (i == n) return scan_fail(s, "fewer numbers");
        if (!scan_float(s, &out[i])) return false;
    }
    return s->fault || i == n ? !s->fault : scan_fail(s, "more numbers");
}

/* Skips a value. scan_enter bounds the depth, and so the recursion. */
bool scan_skip(struct scan *s)
{
    const char *at;
    size_t n;
    double x;
    struct scan_key key;
    bool first;
    switch (scan_peek(s)) {
    case '{':
        for (first = scan_enter(s, '{'); scan_member(s, &first, &key);) scan_skip(s);
        return !s->fault;
    case '[':
        for (first = scan_enter(s, '['); scan_element(s, &first);) scan_skip(s);
        return !s->fault;
    case '"': return scan_text(s, &at, &n);
    case 't': return literal(s, "true");
    case 'f': return literal(s, "false");
    case 'n': return literal(s, "null");
    default: return scan_number(s, &x);
    }
}

bool scan_span(struct scan *s, const char **at, size_t *n)
{
    scan_peek(s);
    const char *from = s->at;
    if (!scan_skip(s)) return false;
    *at = from;
    *n = (size_t)(s->at - from);
    return true;
}
