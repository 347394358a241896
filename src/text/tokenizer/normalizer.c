/*
 * normalizer.c: normalizers, the matches that they replace, and the aligned text that they write.
 */
#include "base/coding.h"
#include "text/tokenizer/tokenizer_parts.h"

/* ---- matches in a text ---- */

int finder_expression(struct finder *f, const char *expression, const char *what, struct error *e)
{
    if (pattern_compile(&f->pattern, expression, e)) return error_prepend(e, "%s", what);
    return PL_OK;
}

int finder_read(struct finder *f, const struct value *v, const char *name, struct bump *memory, struct error *e)
{
    const char *text;
    if (value_as_map(v, name, e)) return e->code;
    const struct value *string = value_get(v, "String"), *regex = value_get(v, "Regex");
    if (!string == !regex) return error_set(e, PL_USAGE, "%s: expected {\"String\": ...} or {\"Regex\": ...}", name);
    if (value_as_string(string ? string : regex, name, &text, e)) return e->code;
    if (regex || !*text) return finder_expression(f, text, name, e);
    f->literal = bump_string(memory, text);
    f->n = (uint32_t)strlen(text);
    return PL_OK;
}

void finder_close(struct finder *f)
{
    pattern_free(f->pattern);
    f->pattern = NULL;
}

int finder_next(const struct finder *f, struct pattern_search *s, const char *text, size_t n, struct finding *at,
                struct byte_range *match)
{
    if (f->literal) {
        const char *found = at->from < n ? memmem(text + at->from, n - at->from, f->literal, f->n) : NULL;
        if (!found) return 0;
        *match = (struct byte_range){(uint32_t)(found - text), (uint32_t)(found - text) + f->n};
        at->from = match->end;
        return 1;
    }
    while (at->from <= n) {
        size_t begin, end;
        int rc = pattern_find(f->pattern, s, text, n, at->from, &begin, &end);
        if (rc != 1) return rc;
        if (begin == end && at->last_end == end + 1) {
            at->from += at->from < n ? (size_t)utf8_length(text[at->from]) : 1;
            continue;
        }
        at->from = end;
        at->last_end = end + 1;
        *match = (struct byte_range){(uint32_t)begin, (uint32_t)end};
        return 1;
    }
    return 0;
}

/* ---- text that knows where it came from ---- */

/* Makes room for n more bytes. False: the text would be too large. */
static bool reserve(struct aligned_buffer *b, size_t n)
{
    b->full |= n > b->most - b->n;
    if (b->full || b->cap - b->n >= n) return !b->full;
    size_t cap = max_i64(2 * (int64_t)b->cap, (int64_t)(b->n + n));
    if (cap < 1024) cap = 1024;
    b->at = mem_resize(b->at, cap);
    b->from = mem_resize(b->from, cap * sizeof *b->from);
    b->cap = (uint32_t)cap;
    return true;
}

void aligned_put(struct aligned_buffer *b, const char *bytes, size_t n, struct byte_range from)
{
    if (!reserve(b, n)) return;
    for (size_t i = 0; i < n; i++) b->at[b->n + i] = bytes[i], b->from[b->n + i] = from;
    b->n += (uint32_t)n;
}

void aligned_copy(struct aligned_buffer *b, const struct aligned *a, uint32_t begin, uint32_t end)
{
    const uint32_t n = end - begin;
    if (!n || !reserve(b, n)) return;
    memcpy(b->at + b->n, a->at + begin, n);
    if (a->from) memcpy(b->from + b->n, a->from + begin, n * sizeof *a->from);
    else
        for (uint32_t i = 0; i < n; i++)
            b->from[b->n + i] = (struct byte_range){a->shift + begin + i, a->shift + begin + i + 1};
    b->n += n;
}

void aligned_free(struct aligned_buffer *b)
{
    mem_free(b->at);
    mem_free(b->from);
    memset(b, 0, sizeof *b);
}

/* ---- tables of replacements ---- */

/* A unit of the trie has a label in bits 0 to 7 (bit 31 marks a value instead), bit 8 says that a
 * string ends here, and the other bits are the distance to the children: child = (node ^ distance)
 * ^ byte. */

int charsmap_read(struct charsmap *m, const char *bytes, size_t n, struct error *e)
{
    uint32_t size = 0;
    if (n >= sizeof size) memcpy(&size, bytes, sizeof size);
    if (n < 5 || n > UINT32_MAX || size > n - 5 || size % 4 || !size || bytes[n - 1])
        return error_set(e, PL_USAGE,
                         "the table of replacements (precompiled_charsmap) of %zu bytes is cut or malformed", n);
    if (utf8_check(bytes + 4 + size, n - 4 - size) != n - 4 - size)
        return error_set(e, PL_USAGE, "the table of replacements (precompiled_charsmap) has a text that is not UTF-8");
    m->n_units = size / 4;
    m->n_strings = (uint32_t)(n - 4 - size);
    m->units = mem_alloc(size);
    m->strings = mem_alloc(m->n_strings);
    memcpy(m->units, bytes + 4, size);
    memcpy(m->strings, bytes + 4 + size, m->n_strings);
    return PL_OK;
}

static void charsmap_free(struct charsmap *m)
{
    mem_free(m->units);
    mem_free(m->strings);
    *m = (struct charsmap){0};
}

static bool inside_character(char c) { return (c & 0xc0) == 0x80; }
static uint32_t distance(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

/* Finds the replacement of a string that text[0, n) begins with, and the length of that string: the
 * longest one, or the shortest. NULL: there is none. */
static const char *charsmap_find(const struct charsmap *m, const char *text, size_t n, bool longest, uint32_t *length)
{
    const char *found = NULL;
    uint32_t node = distance(m->units[0]);
    for (size_t i = 0; i < n; i++) {
        node ^= (unsigned char)text[i];
        if (node >= m->n_units || (m->units[node] & (1u << 31 | 0xff)) != (unsigned char)text[i]) break;
        const uint32_t unit = m->units[node];
        node ^= distance(unit);
        if (!(unit >> 8 & 1)) continue;
        const uint32_t value = node < m->n_units ? m->units[node] & ~(1u << 31) : UINT32_MAX;
        if (value >= m->n_strings || inside_character(m->strings[value]) ||
            (i + 1 < n && inside_character(text[i + 1])))
            break;
        found = m->strings + value;
        *length = (uint32_t)i + 1;
        if (!longest) break;
    }
    return found;
}

/* ---- steps ---- */

/* --- reading -------------------------------------------------------------------------------- */

static int read_precompiled(struct normal_step *s, const struct value *v, struct error *e)
{
    const char *text;
    size_t bad;
    s->kind = NORMAL_PRECOMPILED;
    if (value_as_string(value_get(v, "precompiled_charsmap"), "normalizer.precompiled_charsmap", &text, e))
        return e->code;
    const size_t n = strlen(text);
    char *bytes = mem_alloc(n / 4 * 3 + 3);
    const int64_t size = base64_decode(bytes, text, n, &bad);
    int rc = size < 0 ? error_set(e, PL_USAGE, "normalizer.precompiled_charsmap is not base64 at character %zu", bad)
                      : charsmap_read(&s->map, bytes, (size_t)size, e);
    mem_free(bytes);
    return rc;
}

/* Reads a step. After a failure `s` is empty but for its kind, or can be freed. */
static int read_step(struct normal_step *s, const char *type, const struct value *v, struct bump *memory,
                     struct error *e)
{
    static const struct { const char *type; struct normal_step step;
    } plain[] = {{"NFC", {.kind = NORMAL_FORM, .form = FORM_NFC}},   {"NFD", {.kind = NORMAL_FORM, .form = FORM_NFD}},
                 {"NFKC", {.kind = NORMAL_FORM, .form = FORM_NFKC}}, {"NFKD", {.kind = NORMAL_FORM, .form = FORM_NFKD}},
                 {"Lowercase", {.kind = NORMAL_LOWERCASE}},          {"StripAccents", {.kind = NORMAL_MARKS}}};
    const char *text;
    for (size_t i = 0; i < COUNT(plain); i++)
        if (!strcmp(type, plain[i].type)) return *s = plain[i].step, PL_OK;
    if (!strcmp(type, "Precompiled")) return read_precompiled(s, v, e);
    if (!strcmp(type, "Strip")) {
        *s = (struct normal_step){.kind = NORMAL_STRIP, .left = true, .right = true};
        return value_opt_bool(v, "strip_left", &s->left, e) || value_opt_bool(v, "strip_right", &s->right, e)
                   ? error_prepend(e, "normalizer")
                   : PL_OK;
    }
    if (!strcmp(type, "Prepend")) {
        if (value_as_string(value_get(v, "prepend"), "normalizer.prepend", &text, e)) return e->code;
        *s = (struct normal_step){.kind = NORMAL_PREPEND, .content = bump_string(memory, text)};
        return PL_OK;
    }
    if (!strcmp(type, "Replace")) {
        if (value_as_string(value_get(v, "content"), "normalizer.content", &text, e)) return e->code;
        *s = (struct normal_step){.kind = NORMAL_REPLACE, .content = bump_string(memory, text)};
        return finder_read(&s->find, value_get(v, "pattern"), "normalizer.pattern", memory, e);
    }
    return error_set(e, PL_USAGE,
                     "the normalizer \"%.60s\" is not known; known are Sequence, NFC, NFD, NFKC, NFKD, Lowercase, "
                     "StripAccents, Strip, Prepend, Replace, Precompiled and BertNormalizer",
                     type);
}

static int add_step(struct normalizer *n, struct normal_step step, struct error *e)
{
    if (n->steps.n == NORMAL_STEPS_MOST)
        return error_set(e, PL_USAGE, "the normalizer has more than %d steps", NORMAL_STEPS_MOST);
    vec_push(&n->steps, step);
    return PL_OK;
}

/* Reads BERT's normalizer: five steps, each of which can be switched off. Without strip_accents
 * accents are stripped where letters become small. */
static int read_bert(struct normalizer *n, const struct value *v, struct error *e)
{
    bool clean = true, chinese = true, lower = true;
    if (value_opt_bool(v, "clean_text", &clean, e) || value_opt_bool(v, "handle_chinese_chars", &chinese, e) ||
        value_opt_bool(v, "lowercase", &lower, e))
        return error_prepend(e, "normalizer");
    bool accents = lower;
    if (value_opt_bool(v, "strip_accents", &accents, e)) return error_prepend(e, "normalizer");
    const struct { bool used; struct normal_step step;
    } steps[] = {{clean, {.kind = NORMAL_CLEAN}},
                 {chinese, {.kind = NORMAL_CHINESE}},
                 {accents, {.kind = NORMAL_FORM, .form = FORM_NFD}},
                 {accents, {.kind = NORMAL_MARKS, .nonspacing = true}},
                 {lower, {.kind = NORMAL_LOWERCASE}}};
    for (size_t i = 0; i < COUNT(steps); i++)
        if (steps[i].used && add_step(n, steps[i].step, e)) return e->code;
    return PL_OK;
}

static void step_free(struct normal_step *s)
{
    finder_close(&s->find);
    charsmap_free(&s->map);
}

int normalizer_read(struct normalizer *n, const struct value *v, struct bump *memory, struct error *e)
{
    const char *type;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (value_as_map(v, "normalizer", e) || value_as_string(value_get(v, "type"), "normalizer.type", &type, e))
        return e->code;
    if (!strcmp(type, "Sequence")) {
        const struct value *list = value_get(v, "normalizers");
        if (value_as_list(list, "normalizer.normalizers", e)) return e->code;
        for (uint32_t i = 0; i < list->count; i++)
            if (normalizer_read(n, list->items[i], memory, e)) return e->code;
        return PL_OK;
    }
    if (!strcmp(type, "BertNormalizer")) return read_bert(n, v, e);
    struct normal_step step = {0};
    int rc = read_step(&step, type, v, memory, e);
    if (!rc) rc = add_step(n, step, e);
    if (rc) step_free(&step);
    return rc;
}

void normalizer_free(struct normalizer *n)
{
    for (uint32_t i = 0; i < n->steps.n; i++) step_free(&n->steps.at[i]);
    vec_free(&n->steps);
}

/* --- normal forms ---------------------------------------------------------------------------- */

/* Finds the first character at `at` or later that may change; text->n: none. */
static uint32_t next_change(const struct aligned *text, enum unicode_form form, uint32_t at)
{
    while (at < text->n) {
        uint32_t code;
        int length = utf8_next(text->at + at, &code);
        if (code >= 0x80 && unicode_may_change(form, code)) return at;
        at += (uint32_t)length;
    }
    return at;
}

/* Normalizes a part that no character around it depends on. What is the same at its begin and its
 * end comes from itself, the rest from the rest. */
static void form_part(const struct aligned *text, uint32_t begin, uint32_t end, enum unicode_form form,
                      struct code_points *codes, struct aligned_buffer *out)
{
    uint32_t first = 0, last, code;
    unicode_normalize(form, text->at + begin, end - begin, codes);
    last = codes->n;
    for (int n; first < last && begin < end; begin += (uint32_t)n, first++) {
        n = utf8_next(text->at + begin, &code);
        if (code != codes->at[first]) break;
        aligned_copy(out, text, begin, begin + (uint32_t)n);
    }
    uint32_t tail = end;
    while (last > first && tail > begin) {
        uint32_t at = tail;
        do at--;
        while (((unsigned char)text->at[at] & 0xc0) == 0x80);
        utf8_next(text->at + at, &code);
        if (code != codes->at[last - 1]) break;
        tail = at, last--;
    }
    const struct byte_range from = begin < tail  ? aligned_from(text, begin, tail)
                                   : begin < end ? aligned_from(text, begin, begin + 1)
                                                 : (struct byte_range){0, 0};
    for (uint32_t i = first; i < last; i++) {
        char bytes[4];
        aligned_put(out, bytes, (size_t)utf8_encode(codes->at[i], bytes), from);
    }
    aligned_copy(out, text, tail, end);
}

/* Normalizes the text by parts. A part is a character that may change and those that join it. It
 * begins one character earlier if the first one joins that. */
static void apply_form(enum unicode_form form, struct normal_work *w, struct aligned *text, struct aligned_buffer *out)
{
    uint32_t change = next_change(text, form, 0), done = 0;
    if (change == text->n) return;
    while (change < text->n) {
        uint32_t begin = change, end, code;
        end = change + (uint32_t)utf8_next(text->at + change, &code);
        if (begin > done && unicode_joins(form, code))
            do begin--;
            while (begin > done && ((unsigned char)text->at[begin] & 0xc0) == 0x80);
        while (end < text->n) {
            const int n = utf8_next(text->at + end, &code);
            if (code < 0x80 || !unicode_joins(form, code)) break;
            end += (uint32_t)n;
        }
        aligned_copy(out, text, done, begin);
        form_part(text, begin, end, form, &w->codes, out);
        done = end;
        change = next_change(text, form, end);
    }
    aligned_copy(out, text, done, text->n);
    *text = aligned_of(out);
}

/* --- the other steps -------------------------------------------------------------------------- */

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

/* Applies a step to one character; returns the number of characters. */
static int map_character(const struct normal_step *s, uint32_t code, uint32_t out[3])
{
    out[0] = code;
    if (s->kind == NORMAL_LOWERCASE) return unicode_lower(code, out);
    if (s->kind == NORMAL_MARKS) return !unicode_is_mark(code, s->nonspacing);
    if (s->kind == NORMAL_CHINESE && is_chinese(code)) return out[0] = out[2] = ' ', out[1] = code, 3;
    if (s->kind != NORMAL_CLEAN) return 1;
    const bool line = code == '\t' || code == '\n' || code == '\r';
    if (!line && (!code || code == 0xfffd || unicode_is_other(code))) return 0;
    return unicode_is_space(code) ? out[0] = ' ', 1 : 1;
}

static void map_characters(const struct normal_step *s, struct aligned *text, struct aligned_buffer *out)
{
    for (uint32_t i = 0, length; i < text->n; i += length) {
        uint32_t code, to[3];
        length = (uint32_t)utf8_next(text->at + i, &code);
        const int n = map_character(s, code, to);
        if (n == 1 && to[0] == code) aligned_copy(out, text, i, i + length);
        for (int k = 0; k < n && (n > 1 || to[0] != code); k++) {
            char bytes[4];
            aligned_put(out, bytes, (size_t)utf8_encode(to[k], bytes), aligned_from(text, i, i + length));
        }
    }
    *text = aligned_of(out);
}

static void strip(const struct normal_step *s, struct aligned *text)
{
    uint32_t begin = 0, end = text->n, code;
    for (uint32_t n;
         s->left && begin < end && (n = (uint32_t)utf8_next(text->at + begin, &code), unicode_is_space(code));
         begin += n) {}
    while (s->right && end > begin) {
        uint32_t at = end;
        do at--;
        while (((unsigned char)text->at[at] & 0xc0) == 0x80);
        utf8_next(text->at + at, &code);
        if (!unicode_is_space(code)) break;
        end = at;
    }
    *text = aligned_part(text, begin, end);
}

/* Replaces text[at, at + length) by what the table has for its beginning; false: the table has
 * nothing, and nothing is written. */
static bool put_mapped(const struct normal_step *s, const struct aligned *text, uint32_t at, uint32_t length,
                       struct aligned_buffer *out)
{
    uint32_t matched;
    const char *to = charsmap_find(&s->map, text->at + at, length, false, &matched);
    if (to && *to) aligned_put(out, to, strlen(to), aligned_from(text, at, at + length));
    return to;
}

/* Does as the tokenizers library: a grapheme of less than six bytes as a whole, else character
 * by character. */
static void precompiled(const struct normal_step *s, struct aligned *text, struct aligned_buffer *out)
{
    enum { WHOLE = 6 };
    for (uint32_t at = 0, length; at < text->n; at += length) {
        length = (uint32_t)unicode_grapheme(text->at + at, text->n - at);
        if (length < WHOLE && put_mapped(s, text, at, length, out)) continue;
        for (uint32_t i = at, n; i < at + length; i += n) {
            n = (uint32_t)utf8_length(text->at[i]);
            if (!put_mapped(s, text, i, n, out)) aligned_copy(out, text, i, i + n);
        }
    }
    *text = aligned_of(out);
}

static void prepend(const char *content, struct aligned *text, struct aligned_buffer *out)
{
    aligned_put(out, content, strlen(content), aligned_from(text, 0, (uint32_t)utf8_length(text->at[0])));
    aligned_copy(out, text, 0, text->n);
    *text = aligned_of(out);
}

/* Returns the bytes that a match came from. One of no bytes comes from the character behind it or,
 * at the end, before it. */
static struct byte_range match_from(const struct aligned *text, struct byte_range m)
{
    if (m.begin < m.end) return aligned_from(text, m.begin, m.end);
    return m.begin < text->n ? aligned_from(text, m.begin, m.begin + 1) : aligned_from(text, text->n - 1, text->n);
}

static int replace(const struct normal_step *s, struct normal_work *w, struct aligned *text, struct aligned_buffer *out,
                   struct error *e)
{
    struct finding at = {0};
    struct byte_range m;
    uint32_t done = 0;
    const size_t n = strlen(s->content);
    int rc;
    while ((rc = finder_next(&s->find, w->search, text->at, text->n, &at, &m)) == 1) {
        aligned_copy(out, text, done, m.begin);
        aligned_put(out, s->content, n, match_from(text, m));
        done = m.end;
    }
    if (rc < 0) return error_set(e, PL_USAGE, "a regular expression of the normalizer gave up on this text");
    aligned_copy(out, text, done, text->n);
    *text = aligned_of(out);
    return PL_OK;
}

/* Returns the bytes of the piece that the user defined at a position; 0: there is none. */
static uint32_t kept_length(const struct normal_step *s, const struct aligned *text, uint32_t at)
{
    uint32_t best = 0, node = 0;
    for (uint32_t i = at; s->keep && i < text->n && (node = trie_step(s->keep, node, text->at[i])); i++)
        if (s->keep->values[node] >= 0) best = i + 1 - at;
    return best;
}

/* Finds what SentencePiece takes at a time: a piece that the user defined, the longest string that
 * its table replaces, or a character. */
struct unit {
    const char *at; /* what becomes of it */
    uint32_t n, length; /* bytes of that; bytes of the text */
};

static struct unit next_unit(const struct normal_step *s, const struct aligned *text, uint32_t at)
{
    uint32_t length = kept_length(s, text, at);
    const char *to =
        s->map.n_units && !length ? charsmap_find(&s->map, text->at + at, text->n - at, true, &length) : NULL;
    if (to) return (struct unit){to, (uint32_t)strlen(to), length};
    if (!length) length = (uint32_t)utf8_length(text->at[at]);
    return (struct unit){text->at + at, length, length};
}

static bool ends_with_blank(const struct normal_step *s, const struct aligned_buffer *out)
{
    const uint32_t n = s->escape ? 3 : 1;
    return out->n >= n && !memcmp(out->at + out->n - n, s->escape ? "\xe2\x96\x81" : " ", n);
}

/* Writes the text from `at` on unit by unit, with remove_extra one blank for each run of them;
 * returns its end. */
static uint32_t put_units(const struct normal_step *s, const struct aligned *text, uint32_t at,
                          struct aligned_buffer *out, const char *blank)
{
    bool after_blank = s->remove_extra;
    for (struct unit u; at < text->n; at += u.length) {
        u = next_unit(s, text, at);
        uint32_t k = 0;
        while (after_blank && k < u.n && u.at[k] == ' ') k++;
        if (k < u.n) after_blank = s->remove_extra && u.at[u.n - 1] == ' ';
        for (; k < u.n; k++) {
            const bool own = u.at == text->at + at, is_blank = u.at[k] == ' ';
            aligned_put(out, is_blank ? blank : u.at + k, is_blank ? strlen(blank) : 1,
                        own ? aligned_from(text, at + k, at + k + 1) : aligned_from(text, at, at + u.length));
        }
    }
    return at;
}

static void sentencepiece(const struct normal_step *s, struct aligned *text, struct aligned_buffer *out)
{
    const char *blank = s->escape ? "\xe2\x96\x81" : " ";
    const size_t blank_n = strlen(blank);
    uint32_t at = 0;
    for (struct unit u; s->remove_extra && at < text->n && (u = next_unit(s, text, at), u.n == 1 && *u.at == ' ');
         at += u.length) {}
    const bool prefix = s->add_prefix && at < text->n && (!s->first_only || aligned_from(text, 0, 1).begin == 0);
    const struct byte_range first =
        at < text->n ? aligned_from(text, at, at + (uint32_t)utf8_length(text->at[at])) : (struct byte_range){0, 0};
    if (prefix && !s->suffix) aligned_put(out, blank, blank_n, first);
    if (s->remove_extra || s->map.n_units) at = put_units(s, text, at, out, blank);
    while (at < text->n) {
        const char *found = memchr(text->at + at, ' ', text->n - at);
        const uint32_t end = found ? (uint32_t)(found - text->at) : text->n;
        aligned_copy(out, text, at, end);
        if (found) aligned_put(out, blank, blank_n, aligned_from(text, end, end + 1));
        at = end + (found != NULL);
    }
    while (s->remove_extra && ends_with_blank(s, out)) out->n -= (uint32_t)blank_n;
    if (prefix && s->suffix && out->n) aligned_put(out, blank, blank_n, out->from[out->n - 1]);
    *text = aligned_of(out);
}

int normalize(const struct normalizer *n, struct normal_work *w, struct aligned *text, struct error *e)
{
    const uint32_t given = text->n, most = aligned_most(given);
    uint32_t turn = 0;
    for (uint32_t i = 0; i < n->steps.n && text->n; i++) {
        const struct normal_step *s = &n->steps.at[i];
        struct aligned_buffer *out = &w->buffers[turn];
        aligned_clear(out, most);
        int rc = PL_OK;
        switch (s->kind) {
        case NORMAL_FORM: apply_form(s->form, w, text, out); break;
        case NORMAL_LOWERCASE:
        case NORMAL_CLEAN:
        case NORMAL_CHINESE:
        case NORMAL_MARKS: map_characters(s, text, out); break;
        case NORMAL_STRIP: strip(s, text); break;
        case NORMAL_PRECOMPILED: precompiled(s, text, out); break;
        case NORMAL_PREPEND: prepend(s->content, text, out); break;
        case NORMAL_REPLACE: rc = replace(s, w, text, out, e); break;
        case NORMAL_SENTENCEPIECE: sentencepiece(s, text, out); break;
        }
        if (rc) return rc;
        if (out->full)
            return error_set(e, PL_USAGE, "the normalizer makes more than %u bytes of a text of %u", most, given);
        if (text->at == out->at) turn ^= 1;
    }
    return PL_OK;
}

void normal_work_free(struct normal_work *w)
{
    aligned_free(&w->buffers[0]);
    aligned_free(&w->buffers[1]);
    vec_free(&w->codes);
    pattern_search_free(w->search);
    memset(w, 0, sizeof *w);
}
