/*
 * unicode.c: characters (see unicode.h), on utf8proc. The only file that includes its header.
 *
 * A form is computed in three steps: each character is decomposed; each run of marks is put into
 * the order of their combining classes; for NFC and NFKC, utf8proc composes what can be composed.
 * Only the characters of the tables below need it, so that nearly all text is left as it is.
 */
#include <pthread.h>
#include <utf8proc.h>

#include "io/value.h"
#include "text/unicode.h"

enum { CODES = 0x110000, DECOMPOSED_MOST = 32 };

/* --- UTF-8 ------------------------------------------------------------------------------- */

int utf8_encode(uint32_t code, char out[4])
{
    return (int)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)out);
}

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
    return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool unicode_is_word(uint32_t c)
{
    /* Circled and squared letters are symbols (So) that count as letters. */
    if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
        (c >= 0x1f170 && c <= 0x1f189))
        return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_PC: return true;
        default: return c == 0x200c || c == 0x200d;
    }
}

bool unicode_is_numeric(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

/* Reports whether a mark, punctuation or format is newer than version `than` of Unicode, 8 or 9.
 * The tokenizers library has the categories of Unicode 8, and those of marks, where it takes them
 * all, of Unicode 9. The table has the characters of later versions (up to 15), each with the
 * first version, 9 or from 10 on, that has it. */
static bool is_newer(uint32_t c, int than)
{
    static const struct { uint32_t first, last; int version;
    } ranges[] = {{0x61d, 0x61d, 9},      {0x7fd, 0x7fd, 10},     {0x890, 0x891, 9},      {0x898, 0x8d3, 10},
                  {0x8d4, 0x8e2, 9},      {0x9fd, 0x9fd, 9},      {0x9fe, 0x9fe, 10},     {0xa76, 0xa76, 9},
                  {0xafa, 0xaff, 10},     {0xb55, 0xb55, 10},     {0xc04, 0xc3c, 10},     {0xc77, 0xc77, 9},
                  {0xc84, 0xc84, 9},      {0xcf3, 0xd00, 10},     {0xd3b, 0xd3c, 10},     {0xd81, 0xd81, 10},
                  {0xeba, 0xeba, 10},     {0xece, 0xece, 10},     {0x1715, 0x1715, 10},   {0x1734, 0x1734, 9},
                  {0x180f, 0x180f, 10},   {0x1885, 0x1886, 9},    {0x1abf, 0x1ace, 10},   {0x1b7d, 0x1b7e, 9},
                  {0x1cf7, 0x1cf7, 10},   {0x1df6, 0x1dfa, 10},   {0x1dfb, 0x1dfb, 9},    {0x2e43, 0x2e5d, 9},
                  {0xa82c, 0xa82c, 10},   {0xa8c5, 0xa8c5, 9},    {0xa8ff, 0xa8ff, 10},   {0xa9bd, 0xa9bd, 9},
                  {0x10d24, 0x10eac, 10}, {0x10ead, 0x10ead, 9},  {0x10efd, 0x10f50, 10}, {0x10f55, 0x10f59, 9},
                  {0x10f82, 0x10f85, 10}, {0x10f86, 0x10f89, 9},  {0x11070, 0x11074, 10}, {0x110c2, 0x110c2, 10},
                  {0x110cd, 0x110cd, 9},  {0x11145, 0x11146, 10}, {0x111c9, 0x111c9, 10}, {0x111ce, 0x111cf, 10},
                  {0x1123e, 0x1123e, 9},  {0x11241, 0x11241, 10}, {0x1133b, 0x1133b, 10}, {0x11438, 0x1143f, 9},
                  {0x11442, 0x11444, 9},  {0x11446, 0x1145d, 9},  {0x1145e, 0x1145e, 10}, {0x11660, 0x1166c, 9},
                  {0x116b9, 0x116b9, 9},  {0x1182c, 0x1183a, 10}, {0x1183b, 0x1183b, 9},  {0x11930, 0x11943, 10},
                  {0x11944, 0x11946, 9},  {0x119d1, 0x119e0, 10}, {0x119e2, 0x119e2, 9},  {0x119e4, 0x11a3e, 10},
                  {0x11a3f, 0x11a46, 9},  {0x11a47, 0x11a99, 10}, {0x11a9a, 0x11b09, 9},  {0x11c30, 0x11c3d, 9},
                  {0x11c3f, 0x11ca7, 9},  {0x11caa, 0x11cb0, 9},  {0x11cb2, 0x11cb3, 9},  {0x11cb5, 0x11cb6, 9},
                  {0x11d31, 0x11ef6, 10}, {0x11ef7, 0x11ef8, 9},  {0x11f00, 0x11f42, 10}, {0x11f43, 0x11fff, 9},
                  {0x12ff1, 0x1343f, 9},  {0x13440, 0x13455, 10}, {0x16e97, 0x16e9a, 9},  {0x16f4f, 0x16f4f, 10},
                  {0x16f7f, 0x16f87, 10}, {0x16fe2, 0x16fe2, 9},  {0x16fe4, 0x16ff1, 10}, {0x1cf00, 0x1cf46, 10},
                  {0x1e000, 0x1e02a, 9},  {0x1e08f, 0x1e4ef, 10}, {0x1e944, 0x1e95f, 9}};
    for (size_t low = 0, high = COUNT(ranges); low < high;) {
        const size_t middle = (low + high) / 2;
        if (c < ranges[middle].first) high = middle;
        else if (c > ranges[middle].last) low = middle + 1;
        else return ranges[middle].version > than;
    }
    return false;
}

bool unicode_is_mark(uint32_t c, bool nonspacing)
{
    const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    if (nonspacing && c == 0x1734) return true;
    return (k == UTF8PROC_CATEGORY_MN ||
            (!nonspacing && (k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME || c == 0x1cf2 || c == 0x1cf3))) &&
           !is_newer(c, nonspacing ? 8 : 9);
}

bool unicode_is_other(uint32_t c)
{
    const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CO || (k == UTF8PROC_CATEGORY_CF && !is_newer(c, 8));
}

bool unicode_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return c > ' ' && c < 0x7f && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_PC: case UTF8PROC_CATEGORY_PD: case UTF8PROC_CATEGORY_PS: case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI: case UTF8PROC_CATEGORY_PF: case UTF8PROC_CATEGORY_PO: return !is_newer(c, 8);
    default: return c == 0x166d || c == 0x111c9;
    }
}

size_t unicode_grapheme(const char *text, size_t n)
{
    uint32_t code, next;
    utf8proc_int32_t state = 0;
    size_t at = (size_t)utf8_next(text, &code);
    for (; at < n; code = next) {
        const size_t length = (size_t)utf8_next(text + at, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)code, (utf8proc_int32_t)next, &state)) break;
        at += length;
    }
    return at;
}

int unicode_lower(uint32_t code, uint32_t out[2])
{
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    if (code != 0x130) return 1;
    out[0] = 'i', out[1] = 0x307; /* the one character whose lower case is two */
    return 2;
}

/* --- as Python's str sees them ------------------------------------------------------------ */

bool python_is_space(uint32_t c) { return unicode_is_space(c) || (c >= 0x1c && c <= 0x1f); }

bool python_is_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool python_is_printable(uint32_t c)
{
    const utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c == ' ' || (k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS); /* ZS, ZL, ZP, CC, CF, CS, CO */
}

bool python_is_cased(uint32_t code)
{
    uint32_t upper[UNICODE_CASE], lower[2];
    return python_upper(code, upper) > 1 || upper[0] != code || unicode_lower(code, lower) > 1 || lower[0] != code;
}

/* Characters whose upper case is several, such as the sharp s and ligatures, are those that case
 * folding divides; each part has an upper case of its own. */
int python_upper(uint32_t code, uint32_t out[UNICODE_CASE])
{
    utf8proc_int32_t folded[DECOMPOSED_MOST];
    int boundary = 0;
    const bool upper = utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_LU;
    const utf8proc_ssize_t n =
        code < 0x80 || upper
            ? 1
            : utf8proc_decompose_char((utf8proc_int32_t)code, folded, DECOMPOSED_MOST, UTF8PROC_CASEFOLD, &boundary);
    if (n < 2) folded[0] = (utf8proc_int32_t)code;
    for (int i = 0; i < (n < 2 ? 1 : (int)n); i++) out[i] = (uint32_t)utf8proc_toupper(folded[i]);
    return n < 2 ? 1 : (int)n;
}

/* Writes the title case: of several characters only the first one with a case is upper case. */
int python_title(uint32_t code, uint32_t out[UNICODE_CASE])
{
    const uint32_t title = (uint32_t)utf8proc_totitle((utf8proc_int32_t)code);
    const bool is_title = utf8proc_category((utf8proc_int32_t)code) == UTF8PROC_CATEGORY_LT;
    const int n = python_upper(code, out);
    if (n == 1 || is_title || (title != code && title != 0x1e9e)) return out[0] = title, 1;
    if (out[n - 1] == 0x399) return 0; /* a Greek vowel with an iota below and no title case of its own */
    bool upper = true;
    for (int i = 0; i < n; i++) {
        const uint32_t c = out[i];
        if (!upper) unicode_lower(c, out + i);
        if (python_is_cased(c)) upper = false;
    }
    return n;
}

/* --- normal forms ------------------------------------------------------------------------ */

static bool composes(enum unicode_form f) { return f == FORM_NFC || f == FORM_NFKC; }

/* Reports whether a character is later than Unicode 9, whose normal forms the tokenizers library
 * has. To it these characters of later versions (up to 14) have no combining class and no
 * decomposition. */
static bool is_later(uint32_t c)
{
    static const uint32_t ranges[][2] = {{0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
                                         {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
                                         {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
                                         {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x107ba}, {0x10d24, 0x10d27},
                                         {0x10eab, 0x10eac}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
                                         {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930},
                                         {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
                                         {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d45},
                                         {0x11d97, 0x11d97}, {0x16ff0, 0x16ff1}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
                                         {0x1e2ec, 0x1e2ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};
    if (c < ranges[0][0]) return false;
    size_t low = 0, high = COUNT(ranges); /* the last range that begins at c or before */
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (ranges[middle][0] <= c) low = middle;
        else high = middle;
    }
    return c <= ranges[low][1];
}

static int class_of(uint32_t code)
{
    return is_later(code) ? 0 : utf8proc_get_property((utf8proc_int32_t)code)->combining_class;
}

/* Decomposes one character wholly; returns the number of characters. */
static int decompose(enum unicode_form form, uint32_t code, uint32_t out[DECOMPOSED_MOST])
{
    int last_boundclass = 0;
    if (is_later(code)) return out[0] = code, 1;
    utf8proc_option_t options =
        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (form == FORM_NFKC || form == FORM_NFKD ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, (utf8proc_int32_t *)out, DECOMPOSED_MOST,
                                                 options, &last_boundclass);
    CHECK(n >= 1 && n <= DECOMPOSED_MOST, "U+%04X decomposes to %ld characters", code, (long)n);
    return (int)n;
}

/* Composes the characters. A later one neither joins what stands before it nor lets others join
 * across it. */
static int compose(uint32_t *codes, int n)
{
    int out = 0;
    for (int begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && !is_later(codes[end]); end++) {}
        const bool alone = is_later(codes[begin]);
        if (alone) codes[out++] = codes[begin];
        const int first = begin + alone;
        memmove(codes + out, codes + first, (size_t)(end - first) * sizeof *codes);
        if (end > first)
            out += (int)utf8proc_normalize_utf32((utf8proc_int32_t *)codes + out, end - first,
                                                 UTF8PROC_STABLE | UTF8PROC_COMPOSE);
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

void unicode_normalize(enum unicode_form form, const char *text, size_t n, struct code_points *out)
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
