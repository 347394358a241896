/*
 * normalizer.c: normalizers (see normalizer.h).
 */
#include <string.h>

#include "text/tokenizer/normalizer.h"

/* --- reading -------------------------------------------------------------------------------- */

static int read_step(struct normal_step *s, const char *type, const struct value *v, struct bump *memory, struct error *e)
{
    static const struct { const char *type; enum unicode_form form; } forms[] = {{"NFC", FORM_NFC}, {"NFD", FORM_NFD}, {"NFKC", FORM_NFKC}, {"NFKD", FORM_NFKD}};
    const char *text;
    for (size_t i = 0; i < COUNT(forms); i++)
        if (!strcmp(type, forms[i].type)) return *s = (struct normal_step){.kind = NORMAL_FORM, .form = forms[i].form}, PL_OK;
    if (!strcmp(type, "Lowercase")) return s->kind = NORMAL_LOWERCASE, PL_OK;
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
    return error_set(e, PL_USAGE, "the normalizer \"%.60s\" is not known; known are Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Prepend and Replace", type);
}

int normalizer_read(struct normalizer *n, const struct value *v, struct bump *memory, struct error *e)
{
    const char *type;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (value_as_map(v, "normalizer", e) || value_as_string(value_get(v, "type"), "normalizer.type", &type, e)) return e->code;
    if (!strcmp(type, "Sequence")) {
        const struct value *list = value_get(v, "normalizers");
        if (value_as_list(list, "normalizer.normalizers", e)) return e->code;
        for (uint32_t i = 0; i < list->count; i++)
            if (normalizer_read(n, list->items[i], memory, e)) return e->code;
        return PL_OK;
    }
    struct normal_step step = {0};
    if (n->steps.n == NORMAL_STEPS_MOST) return error_set(e, PL_USAGE, "the normalizer has more than %d steps", NORMAL_STEPS_MOST);
    int rc = read_step(&step, type, v, memory, e);
    if (!rc) vec_push(&n->steps, step);
    else finder_close(&step.find);
    return rc;
}

void normalizer_free(struct normalizer *n)
{
    for (uint32_t i = 0; i < n->steps.n; i++) finder_close(&n->steps.at[i].find);
    vec_free(&n->steps);
}

/* --- normal forms ---------------------------------------------------------------------------- */

/* The first character at `at` or later that may change; text->n: none. */
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

/* Normalizes a part that no character around it depends on. What is the same at its begin and its end
 * comes from itself, the rest from the rest. */
static void form_part(const struct aligned *text, uint32_t begin, uint32_t end, enum unicode_form form, struct codes *codes, struct aligned_buffer *out)
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
    const struct byte_range from = begin < tail ? aligned_from(text, begin, tail) : begin < end ? aligned_from(text, begin, begin + 1) : (struct byte_range){0, 0};
    for (uint32_t i = first; i < last; i++) {
        char bytes[4];
        aligned_put(out, bytes, (size_t)utf8_encode(codes->at[i], bytes), from);
    }
    aligned_copy(out, text, tail, end);
}

/* A part is a character that may change and those that join it. It begins one character earlier if the
 * first one joins that. */
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

/* --- the other steps --------------------------------------------------------------------------- */

static void lowercase(struct aligned *text, struct aligned_buffer *out)
{
    for (uint32_t i = 0, length; i < text->n; i += length) {
        uint32_t code, lower[2];
        length = (uint32_t)utf8_next(text->at + i, &code);
        int n = unicode_lower(code, lower);
        if (n == 1 && lower[0] == code) aligned_copy(out, text, i, i + length);
        for (int k = 0; k < n && (n > 1 || lower[0] != code); k++) {
            char bytes[4];
            aligned_put(out, bytes, (size_t)utf8_encode(lower[k], bytes), aligned_from(text, i, i + length));
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

/* A match of no bytes comes from the character behind it or, at the end, before it. */
static struct byte_range match_from(const struct aligned *text, struct byte_range m)
{
    if (m.begin < m.end) return aligned_from(text, m.begin, m.end);
    return m.begin < text->n ? aligned_from(text, m.begin, m.begin + 1) : aligned_from(text, text->n - 1, text->n);
}

static int replace(const struct normal_step *s, struct normal_work *w, struct aligned *text, struct aligned_buffer *out, struct error *e)
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

/* What SentencePiece takes at a time: a piece that the user defined, else a character. */
static uint32_t unit_length(const struct normal_step *s, const struct aligned *text, uint32_t at)
{
    uint32_t best = 0, node = 0;
    for (uint32_t i = at; s->keep && i < text->n && (node = trie_step(s->keep, node, text->at[i])); i++)
        if (s->keep->values[node] >= 0) best = i + 1 - at;
    return best ? best : (uint32_t)utf8_length(text->at[at]);
}

static bool ends_with_blank(const struct normal_step *s, const struct aligned_buffer *out)
{
    const uint32_t n = s->escape ? 3 : 1;
    return out->n >= n && !memcmp(out->at + out->n - n, s->escape ? "\xe2\x96\x81" : " ", n);
}

/* Copies the text with one blank for each run of them; returns its end. */
static uint32_t squeeze_blanks(const struct normal_step *s, const struct aligned *text, uint32_t at, struct aligned_buffer *out, const char *blank)
{
    bool after_blank = true;
    for (uint32_t end; at < text->n; at = end) {
        end = at + unit_length(s, text, at);
        while (after_blank && at < end && text->at[at] == ' ') at++;
        if (at < end) after_blank = text->at[end - 1] == ' ';
        for (; at < end; at++) {
            if (text->at[at] == ' ') aligned_put(out, blank, strlen(blank), aligned_from(text, at, at + 1));
            else aligned_copy(out, text, at, at + 1);
        }
    }
    return at;
}

static void sentencepiece(const struct normal_step *s, struct aligned *text, struct aligned_buffer *out)
{
    const char *blank = s->escape ? "\xe2\x96\x81" : " ";
    const size_t blank_n = strlen(blank);
    uint32_t at = 0;
    while (s->remove_extra && at < text->n && text->at[at] == ' ' && unit_length(s, text, at) == 1) at++;
    const bool prefix = s->add_prefix && at < text->n && (!s->first_only || aligned_from(text, 0, 1).begin == 0);
    const struct byte_range first = at < text->n ? aligned_from(text, at, at + (uint32_t)utf8_length(text->at[at])) : (struct byte_range){0, 0};
    if (prefix && !s->suffix) aligned_put(out, blank, blank_n, first);
    if (s->remove_extra) at = squeeze_blanks(s, text, at, out, blank);
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
    if (n->steps.n && !w->search) w->search = pattern_search_new();
    uint32_t turn = 0;
    for (uint32_t i = 0; i < n->steps.n && text->n; i++) {
        const struct normal_step *s = &n->steps.at[i];
        struct aligned_buffer *out = &w->buffers[turn];
        aligned_clear(out);
        int rc = PL_OK;
        switch (s->kind) {
        case NORMAL_FORM: apply_form(s->form, w, text, out); break;
        case NORMAL_LOWERCASE: lowercase(text, out); break;
        case NORMAL_PREPEND: prepend(s->content, text, out); break;
        case NORMAL_REPLACE: rc = replace(s, w, text, out, e); break;
        case NORMAL_SENTENCEPIECE: sentencepiece(s, text, out); break;
        }
        if (rc) return rc;
        if (out->full) return error_set(e, PL_USAGE, "normalized, the text has more than %d bytes", ALIGNED_MOST);
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
