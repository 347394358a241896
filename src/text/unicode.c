/*
 * unicode.c: characters (see unicode.h), on utf8proc. The only file that includes its header.
 *
 * A form is computed in three steps: each character is decomposed; each run of marks is put into the
 * order of their combining classes; for NFC and NFKC, utf8proc composes what can be composed.
 * Only the characters of the tables below need it, so that nearly all text is left as it is.
 */
#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

#include "io/value.h"
#include "text/unicode.h"

enum { CODES = 0x110000, DECOMPOSED_MOST = 32 };

/* --- UTF-8 ------------------------------------------------------------------------------- */

int utf8_encode(uint32_t code, char out[4]) { return (int)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)out); }

size_t utf8_check(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t word;
        while (n - i >= sizeof word) { /* eight ASCII characters at a time */
            memcpy(&word, s + i, sizeof word);
            if (word & 0x8080808080808080u) break;
            i += sizeof word;
        }
        if (i == n) break;
        uint32_t code;
        int length = utf8_decode(s + i, n - i, &code);
        if (!length) return i;
        i += (size_t)length;
    }
    return n;
}

/* --- classes ----------------------------------------------------------------------------- */

bool unicode_is_space(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool unicode_is_word(uint32_t c)
{
    /* Circled and squared letters are symbols (So) that count as letters. */
    if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189)) return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_PC: return true;
    default: return c == 0x200c || c == 0x200d;
    }
}

bool unicode_is_numeric(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

int unicode_lower(uint32_t code, uint32_t out[2])
{
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    if (code != 0x130) return 1;
    out[0] = 'i', out[1] = 0x307; /* the one character whose lower case is two */
    return 2;
}

/* --- normal forms ------------------------------------------------------------------------ */

static bool composes(enum unicode_form f) { return f == FORM_NFC || f == FORM_NFKC; }

/* The normal forms of the tokenizers library are those of Unicode 9. To it these characters of later
 * versions (up to 14) have no combining class and no decomposition. */
static bool is_later(uint32_t c)
{
    static const uint32_t ranges[][2] = {
        {0x7fd, 0x7fd}, {0x898, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe}, {0xc3c, 0xc3c}, {0xd3b, 0xd3c}, {0xeba, 0xeba}, {0x1715, 0x1715}, {0x1abf, 0x1ace},
        {0x1df6, 0x1dfa}, {0x32ff, 0x32ff}, {0xa7f2, 0xa7f4}, {0xa82c, 0xa82c}, {0xab69, 0xab69}, {0x10781, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac},
        {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930},
        {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
        {0x11d42, 0x11d45}, {0x11d97, 0x11d97}, {0x16ff0, 0x16ff1}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};
    if (c < ranges[0][0]) return false;
    size_t low = 0, high = COUNT(ranges); /* the last range that begins at c or before */
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (ranges[middle][0] <= c) low = middle;
        else high = middle;
    }
    return c <= ranges[low][1];
}

static int class_of(uint32_t code) { return is_later(code) ? 0 : utf8proc_get_property((utf8proc_int32_t)code)->combining_class; }

/* The whole decomposition of one character; returns the number of characters. */
static int decompose(enum unicode_form form, uint32_t code, uint32_t out[DECOMPOSED_MOST])
{
    int last_boundclass = 0;
    if (is_later(code)) return out[0] = code, 1;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (form == FORM_NFKC || form == FORM_NFKD ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, (utf8proc_int32_t *)out, DECOMPOSED_MOST, options, &last_boundclass);
    CHECK(n >= 1 && n <= DECOMPOSED_MOST, "U+%04X decomposes to %ld characters", code, (long)n);
    return (int)n;
}

/* A later character neither joins what stands before it nor lets others join across it. */
static int compose(uint32_t *codes, int n)
{
    int out = 0;
    for (int begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && !is_later(codes[end]); end++) {}
        const bool alone = is_later(codes[begin]);
        if (alone) codes[out++] = codes[begin];
        const int first = begin + alone;
        memmove(codes + out, codes + first, (size_t)(end - first) * sizeof *codes);
        if (end > first) out += (int)utf8proc_normalize_utf32((utf8proc_int32_t *)codes + out, end - first, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    }
    return out;
}

/* One bit per character and form: see unicode_may_change and unicode_joins. */
static uint8_t changes[FORMS][CODES / 8], follows[FORMS][CODES / 8];
static void mark(uint8_t *table, uint32_t code) { table[code / 8] |= (uint8_t)(1 << code % 8); }
static bool is_marked(const uint8_t *table, uint32_t code) { return table[code / 8] >> code % 8 & 1; }

/* Marks follow; where characters are composed, so does what is the second half of one. */
static void find_followers(enum unicode_form form)
{
    for (uint32_t c = 0x80; c < CODES; c++) {
        uint32_t d[DECOMPOSED_MOST];
        if (c >= 0xd800 && c < 0xe000) continue;
        if (class_of(c)) mark(follows[form], c);
        int n = decompose(FORM_NFD, c, d);
        const uint32_t last = d[n - 1];
        if (composes(form) && n > 1 && compose(d, n) == 1 && d[0] == c) mark(follows[form], last);
    }
}

static void build_form(enum unicode_form form)
{
    find_followers(form);
    for (uint32_t c = 0x80; c < CODES; c++) {
        uint32_t d[DECOMPOSED_MOST];
        if (c >= 0xd800 && c < 0xe000) continue;
        int n = decompose(form, c, d);
        if (is_marked(follows[form], d[0])) mark(follows[form], c);
        if (composes(form)) n = compose(d, n);
        if (is_marked(follows[form], c) || n != 1 || d[0] != c) mark(changes[form], c);
    }
}

static void build_nfc(void) { build_form(FORM_NFC); }
static void build_nfd(void) { build_form(FORM_NFD); }
static void build_nfkc(void) { build_form(FORM_NFKC); }
static void build_nfkd(void) { build_form(FORM_NFKD); }
static pthread_once_t built[FORMS] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};
static void (*const builders[FORMS])(void) = {build_nfc, build_nfd, build_nfkc, build_nfkd};

bool unicode_may_change(enum unicode_form form, uint32_t code)
{
    pthread_once(&built[form], builders[form]);
    return is_marked(changes[form], code);
}

bool unicode_joins(enum unicode_form form, uint32_t code)
{
    pthread_once(&built[form], builders[form]);
    return is_marked(follows[form], code);
}

/* Sorts a run of marks by combining class and keeps the order within a class. */
static void order_marks(uint32_t *at, uint32_t n)
{
    if (n <= 32) {
        for (uint32_t i = 1; i < n; i++)
            for (uint32_t j = i; j && class_of(at[j - 1]) > class_of(at[j]); j--) {
                uint32_t t = at[j];
                at[j] = at[j - 1], at[j - 1] = t;
            }
        return;
    }
    uint32_t begin[257] = {0}, *sorted = mem_alloc(n * sizeof *sorted);
    for (uint32_t i = 0; i < n; i++) begin[class_of(at[i]) + 1]++;
    for (int k = 0; k < 256; k++) begin[k + 1] += begin[k];
    for (uint32_t i = 0; i < n; i++) sorted[begin[class_of(at[i])]++] = at[i];
    memcpy(at, sorted, n * sizeof *sorted);
    mem_free(sorted);
}

void unicode_normalize(enum unicode_form form, const char *text, size_t n, struct codes *out)
{
    out->n = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code, d[DECOMPOSED_MOST];
        i += (size_t)utf8_next(text + i, &code);
        int count = decompose(form, code, d);
        for (int k = 0; k < count; k++) vec_push(out, d[k]);
    }
    for (uint32_t i = 0, run; i < out->n; i = run + 1) {
        for (run = i; run < out->n && class_of(out->at[run]); run++) {}
        if (run - i > 1) order_marks(out->at + i, run - i);
    }
    if (composes(form) && out->n) out->n = (uint32_t)compose(out->at, (int)out->n);
}
