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
static int class_of(uint32_t code) { return utf8proc_get_property((utf8proc_int32_t)code)->combining_class; }

/* The whole decomposition of one character; returns the number of characters. */
static int decompose(enum unicode_form form, uint32_t code, uint32_t out[DECOMPOSED_MOST])
{
    int last_boundclass = 0;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (form == FORM_NFKC || form == FORM_NFKD ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, (utf8proc_int32_t *)out, DECOMPOSED_MOST, options, &last_boundclass);
    CHECK(n >= 1 && n <= DECOMPOSED_MOST, "U+%04X decomposes to %ld characters", code, (long)n);
    return (int)n;
}

static int compose(uint32_t *codes, int n)
{
    return (int)utf8proc_normalize_utf32((utf8proc_int32_t *)codes, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
}

/* One bit per character and form: see unicode_may_change. */
static uint8_t changes[FORMS][CODES / 8];
static void mark(enum unicode_form form, uint32_t code) { changes[form][code / 8] |= (uint8_t)(1 << code % 8); }

static void build_form(enum unicode_form form)
{
    for (uint32_t c = 0x80; c < CODES; c++) {
        if (c >= 0xd800 && c < 0xe000) continue;
        uint32_t d[DECOMPOSED_MOST];
        int n = decompose(form, c, d);
        if (class_of(c)) mark(form, c);
        if (n == 1 && d[0] == c) continue;
        const uint32_t last = d[n - 1];
        if (!composes(form)) {
            mark(form, c);
            continue;
        }
        n = compose(d, n);
        if (n != 1 || d[0] != c) mark(form, c);
        else mark(form, last); /* c = something + last: `last` joins what stands before it */
    }
    for (uint32_t c = 0x1161; composes(form) && c < 0x11c3; c++) /* vowels and finals of Hangul join */
        if (c <= 0x1175 || c >= 0x11a8) mark(form, c);
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
    return changes[form][code / 8] >> code % 8 & 1;
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
