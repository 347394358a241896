/*
 * pretokenizer.c: cutting text into pre-tokens (see tokenizer_parts.h).
 */
#include "text/tokenizer/tokenizer_parts.h"

/* ---- the alphabet of byte-level BPE ---- */

static bool is_itself(uint32_t c) { return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255); }

static uint32_t byte_character(unsigned char b)
{
    if (is_itself(b)) return b;
    return b <= 32 ? 0x100u + b : b < 161 ? 0x100u + 33 + (b - 127u) : 0x143;
}

int character_byte(uint32_t c)
{
    if (c < 0x100) return is_itself(c) ? (int)c : -1;
    if (c <= 0x120) return (int)c - 0x100;
    if (c < 0x143) return (int)c - 0x100 - 33 + 127;
    return c == 0x143 ? 173 : -1;
}

int64_t characters_to_bytes(const char *s, size_t n, char *out)
{
    int64_t count = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        i += (size_t)utf8_next(s + i, &code);
        int byte = character_byte(code);
        if (byte < 0) return -1;
        out[count++] = (char)byte;
    }
    return count;
}

/* ---- cutting ---- */

/* Each step reads w->before, the pieces so far, and writes w->pieces. Empty pieces are dropped. */

static inline void add_piece(struct split_work *w, uint32_t begin, uint32_t end)
{
    if (begin == end) return;
    if (w->pieces.n == w->pieces.cap)
        vec_grow((void **)&w->pieces.at, &w->pieces.cap, w->pieces.n + 1, sizeof *w->pieces.at);
    w->pieces.at[w->pieces.n++] = (struct byte_range){begin, end};
}

/* --- matches ---------------------------------------------------------------------------------- */

static int gave_up(struct error *e)
{
    return error_set(e, PL_USAGE, "a regular expression of the pre-tokenizer gave up on this text");
}

/* Cuts at matches: every match, and what lies between them, is a piece. Most files ask for it. */
static int isolate(const struct finder *f, struct split_work *w, const char *text, struct byte_range piece,
                   struct error *e)
{
    struct finding at = {0};
    struct byte_range m;
    uint32_t done = 0;
    int rc;
    while ((rc = finder_next(f, w->search, text + piece.begin, piece.end - piece.begin, &at, &m)) == 1) {
        add_piece(w, piece.begin + done, piece.begin + m.begin);
        add_piece(w, piece.begin + m.begin, piece.begin + m.end);
        done = m.end;
    }
    add_piece(w, piece.begin + done, piece.end);
    return rc < 0 ? gave_up(e) : PL_OK;
}

static void add_match(struct split_work *w, uint32_t begin, uint32_t end, bool match)
{
    vec_push(&w->matches, ((struct split_match){{begin, end}, match}));
}

static int find_matches(const struct split_step *s, struct split_work *w, const char *text, struct byte_range piece,
                        struct error *e)
{
    struct finding at = {0};
    struct byte_range m;
    uint32_t done = piece.begin;
    int rc;
    while ((rc = finder_next(&s->find, w->search, text + piece.begin, piece.end - piece.begin, &at, &m)) == 1) {
        if (done != piece.begin + m.begin) add_match(w, done, piece.begin + m.begin, s->invert);
        add_match(w, piece.begin + m.begin, piece.begin + m.end, !s->invert);
        done = piece.begin + m.end;
    }
    if (done != piece.end) add_match(w, done, piece.end, s->invert);
    return rc < 0 ? gave_up(e) : PL_OK;
}

static bool is_of(enum split_kind kind, uint32_t code)
{
    if (kind == SPLIT_SPACES) return unicode_is_space(code);
    if (kind == SPLIT_PUNCTUATION) return unicode_is_punctuation(code);
    return code < 0x80 ? code >= '0' && code <= '9' : unicode_is_numeric(code);
}

/* Matches each character of the step's class. */
static void find_class(enum split_kind kind, struct split_work *w, const char *text, struct byte_range piece)
{
    uint32_t done = piece.begin, code;
    for (uint32_t i = piece.begin, length; i < piece.end; i += length) {
        length = (uint32_t)utf8_next(text + i, &code);
        if (!is_of(kind, code)) continue;
        if (done < i) add_match(w, done, i, false);
        add_match(w, i, i + length, true);
        done = i + length;
    }
    if (done < piece.end) add_match(w, done, piece.end, false);
}

/* Matches white space, which is removed; runs of word characters and of others lie between. */
static void find_words(struct split_work *w, const char *text, struct byte_range piece)
{
    enum { SPACE, WORD, OTHER } before = SPACE;
    uint32_t done = piece.begin, code;
    for (uint32_t i = piece.begin, length; i < piece.end; i += length) {
        length = (uint32_t)utf8_next(text + i, &code);
        const int now = unicode_is_word(code) ? WORD : unicode_is_space(code) ? SPACE : OTHER;
        if (now != (int)before && done < i) add_match(w, done, i, before == SPACE), done = i;
        before = now;
    }
    add_match(w, done, piece.end, before == SPACE);
}

/* Reports whether neighbours are one piece; `earlier` is the flag of the one that was seen
 * before. */
static bool joins(enum split_behavior b, bool match, bool earlier)
{
    return b == SPLIT_CONTIGUOUS ? match == earlier : match && !earlier;
}

static void add_pieces(struct split_work *w, enum split_behavior behavior)
{
    const uint32_t first = w->pieces.n;
    bool earlier = false;
    for (uint32_t k = 0; k < w->matches.n; k++) {
        const bool backward = behavior == SPLIT_WITH_NEXT;
        const struct split_match m = w->matches.at[backward ? w->matches.n - 1 - k : k];
        const bool may_join = behavior != SPLIT_ISOLATED && behavior != SPLIT_REMOVED && w->pieces.n > first;
        if (behavior == SPLIT_REMOVED && m.match) continue;
        if (may_join && joins(behavior, m.match, earlier)) {
            struct byte_range *last = &w->pieces.at[w->pieces.n - 1];
            if (backward) last->begin = m.at.begin;
            else last->end = m.at.end;
        } else vec_push(&w->pieces, m.at);
        earlier = m.match;
    }
    uint32_t n = first;
    for (uint32_t i = first; i < w->pieces.n; i++)
        if (w->pieces.at[i].begin < w->pieces.at[i].end) w->pieces.at[n++] = w->pieces.at[i];
    w->pieces.n = n;
    for (uint32_t i = first, j = n; behavior == SPLIT_WITH_NEXT && i + 1 < j; i++, j--) {
        struct byte_range t = w->pieces.at[i];
        w->pieces.at[i] = w->pieces.at[j - 1], w->pieces.at[j - 1] = t;
    }
}

/* Makes the pieces so far the input of a step. */
static void begin_step(struct split_work *w)
{
    VEC(struct byte_range) t;
    memcpy(&t, &w->before, sizeof t);
    memcpy(&w->before, &w->pieces, sizeof t);
    memcpy(&w->pieces, &t, sizeof t);
    w->pieces.n = 0;
}

static int split_pieces(const struct split_step *s, struct split_work *w, const char *text, struct error *e)
{
    begin_step(w);
    for (uint32_t i = 0; i < w->before.n; i++) {
        int rc = PL_OK;
        const bool class = s->kind == SPLIT_DIGITS || s->kind == SPLIT_SPACES || s->kind == SPLIT_PUNCTUATION;
        if (!class && s->kind != SPLIT_WORDS && s->behavior == SPLIT_ISOLATED)
            rc = isolate(&s->find, w, text, w->before.at[i], e);
        else {
            w->matches.n = 0;
            if (class) find_class(s->kind, w, text, w->before.at[i]);
            else if (s->kind == SPLIT_WORDS) find_words(w, text, w->before.at[i]);
            else rc = find_matches(s, w, text, w->before.at[i], e);
            add_pieces(w, s->behavior);
        }
        if (rc) return rc;
    }
    return PL_OK;
}

/* --- steps that change the text --------------------------------------------------------------- */

static struct aligned_buffer *begin_text(struct split_work *w)
{
    begin_step(w);
    w->turn ^= 1;
    aligned_clear(&w->buffers[w->turn], w->most);
    return &w->buffers[w->turn];
}

static struct byte_range first_character(const struct aligned *text, uint32_t begin)
{
    return aligned_from(text, begin, begin + (uint32_t)utf8_length(text->at[begin]));
}

static void add_prefix_spaces(struct split_work *w, struct aligned *text)
{
    uint32_t missing = 0;
    for (uint32_t i = 0; i < w->pieces.n; i++) missing += text->at[w->pieces.at[i].begin] != ' ';
    if (!missing) return;
    struct aligned_buffer *out = begin_text(w);
    for (uint32_t i = 0; i < w->before.n; i++) {
        const struct byte_range p = w->before.at[i];
        const uint32_t begin = out->n;
        if (text->at[p.begin] != ' ') aligned_put(out, " ", 1, first_character(text, p.begin));
        aligned_copy(out, text, p.begin, p.end);
        add_piece(w, begin, out->n);
    }
    *text = aligned_of(out);
}

static void translate_bytes(struct split_work *w, struct aligned *text)
{
    struct aligned_buffer *out = begin_text(w);
    for (uint32_t i = 0; i < w->before.n; i++) {
        const uint32_t begin = out->n;
        for (uint32_t k = w->before.at[i].begin; k < w->before.at[i].end; k++) {
            char bytes[4];
            aligned_put(out, bytes, (size_t)utf8_encode(byte_character((unsigned char)text->at[k]), bytes),
                        aligned_from(text, k, k + 1));
        }
        add_piece(w, begin, out->n);
    }
    *text = aligned_of(out);
}

static void replace_blanks(const struct split_step *s, struct split_work *w, struct aligned *text)
{
    struct aligned_buffer *out = begin_text(w);
    for (uint32_t i = 0; i < w->before.n; i++) {
        const struct byte_range p = w->before.at[i];
        const uint32_t begin = out->n;
        const bool there = text->at[p.begin] == ' ' ||
                           (p.end - p.begin >= s->find.n && !memcmp(text->at + p.begin, s->replacement, s->find.n));
        const bool wanted = s->prepend == PREPEND_ALWAYS ||
                            (s->prepend == PREPEND_FIRST && aligned_from(text, p.begin, p.begin + 1).begin == 0);
        if (wanted && !there) aligned_put(out, s->replacement, s->find.n, first_character(text, p.begin));
        for (uint32_t at = p.begin; at < p.end;) {
            const char *found = memchr(text->at + at, ' ', p.end - at);
            const uint32_t end = found ? (uint32_t)(found - text->at) : p.end;
            aligned_copy(out, text, at, end);
            if (found) aligned_put(out, s->replacement, s->find.n, aligned_from(text, end, end + 1));
            at = end + (found != NULL);
        }
        add_piece(w, begin, out->n);
    }
    *text = aligned_of(out);
}

static int run_step(const struct pretokenizer *p, const struct split_step *s, struct split_work *w,
                    struct aligned *text, struct error *e)
{
    const bool last = s == &p->steps.at[p->steps.n - 1];
    if (s->kind == SPLIT_METASPACE) {
        replace_blanks(s, w, text);
        return s->split ? split_pieces(s, w, text->at, e) : PL_OK;
    }
    if (s->kind != SPLIT_BYTE_LEVEL) return split_pieces(s, w, text->at, e);
    if (s->add_prefix_space) add_prefix_spaces(w, text);
    if (s->use_regex && split_pieces(s, w, text->at, e)) return e->code;
    if (!last || !p->raw) translate_bytes(w, text);
    return PL_OK;
}

int pretokenize(const struct pretokenizer *p, struct split_work *w, struct aligned *text, struct error *e)
{
    w->pieces.n = 0;
    w->buffers[w->turn].full = false;
    w->most = aligned_most(text->n);
    add_piece(w, 0, text->n);
    for (uint32_t i = 0; i < p->steps.n; i++)
        if (run_step(p, &p->steps.at[i], w, text, e)) return e->code;
        else if (w->buffers[w->turn].full)
            return error_set(e, PL_USAGE, "the pre-tokenizer makes more than %u bytes of a text", w->most);
    return PL_OK;
}

void split_work_free(struct split_work *w)
{
    vec_free(&w->pieces);
    vec_free(&w->before);
    vec_free(&w->matches);
    aligned_free(&w->buffers[0]);
    aligned_free(&w->buffers[1]);
    pattern_search_free(w->search);
    memset(w, 0, sizeof *w);
}

/* ---- reading the "pre_tokenizer" of a tokenizer.json ---- */

/* The expression of GPT-2, which ByteLevel has built in. */
#define GPT2_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static int read_behavior(struct split_step *s, const char *behavior, struct error *e)
{
    static const char *const behaviors[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                            "Contiguous"};
    size_t i = 0;
    while (i < COUNT(behaviors) && strcmp(behavior, behaviors[i])) i++;
    if (i == COUNT(behaviors))
        return error_set(e, PL_USAGE,
                         "pre_tokenizer.behavior is \"%.60s\"; expected Isolated, Removed, MergedWithPrevious, "
                         "MergedWithNext or Contiguous",
                         behavior);
    s->behavior = (enum split_behavior)i;
    return PL_OK;
}

static int read_split(struct split_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    const char *behavior;
    s->kind = SPLIT_PATTERN;
    if (value_as_string(value_get(v, "behavior"), "pre_tokenizer.behavior", &behavior, e) ||
        value_opt_bool(v, "invert", &s->invert, e) || read_behavior(s, behavior, e))
        return e->code;
    return finder_read(&s->find, value_get(v, "pattern"), "pre_tokenizer.pattern", memory, e);
}

static int read_byte_level(struct split_step *s, const struct value *v, struct error *e)
{
    *s = (struct split_step){.kind = SPLIT_BYTE_LEVEL, .use_regex = true, .add_prefix_space = true};
    if (value_opt_bool(v, "add_prefix_space", &s->add_prefix_space, e) ||
        value_opt_bool(v, "use_regex", &s->use_regex, e))
        return e->code;
    return s->use_regex ? finder_expression(&s->find, GPT2_WORDS, "ByteLevel", e) : PL_OK;
}

static int read_digits(struct split_step *s, const struct value *v, struct error *e)
{
    bool individual = false;
    if (value_opt_bool(v, "individual_digits", &individual, e)) return e->code;
    *s = (struct split_step){.kind = SPLIT_DIGITS, .behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    return PL_OK;
}

static int read_punctuation(struct split_step *s, const struct value *v, struct error *e)
{
    const char *behavior = "Isolated";
    *s = (struct split_step){.kind = SPLIT_PUNCTUATION};
    return value_opt_string(v, "behavior", &behavior, e) ? error_prepend(e, "pre_tokenizer")
                                                         : read_behavior(s, behavior, e);
}

static int read_delimiter(struct split_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    const char *delimiter;
    if (value_as_string(value_get(v, "delimiter"), "pre_tokenizer.delimiter", &delimiter, e)) return e->code;
    if (!*delimiter || (size_t)utf8_length(*delimiter) != strlen(delimiter))
        return error_set(e, PL_USAGE, "pre_tokenizer.delimiter is \"%.60s\"; expected one character", delimiter);
    *s = (struct split_step){.kind = SPLIT_PATTERN,
                             .behavior = SPLIT_REMOVED,
                             .find = {.literal = bump_string(memory, delimiter), .n = (uint32_t)strlen(delimiter)}};
    return PL_OK;
}

int metaspace_read(struct split_step *s, const struct value *v, const char *name, struct bump *memory, struct error *e)
{
    static const char *const schemes[] = {"always", "first", "never"};
    const char *replacement = NULL, *scheme = NULL;
    bool prefix = true;
    *s = (struct split_step){.kind = SPLIT_METASPACE, .behavior = SPLIT_WITH_NEXT, .split = true};
    if (value_as_string(value_get(v, "replacement"), "replacement", &replacement, e) ||
        value_opt_string(v, "prepend_scheme", &scheme, e) || value_opt_bool(v, "add_prefix_space", &prefix, e) ||
        value_opt_bool(v, "split", &s->split, e))
        return error_prepend(e, "%s", name);
    const size_t n = strlen(replacement);
    if (!n || (size_t)utf8_length(*replacement) != n)
        return error_set(e, PL_USAGE, "%s: replacement is \"%.60s\"; expected one character", name, replacement);
    size_t i = 0;
    while (scheme && i < COUNT(schemes) && strcmp(scheme, schemes[i])) i++;
    if (i == COUNT(schemes))
        return error_set(e, PL_USAGE, "%s: prepend_scheme is \"%.60s\"; expected always, first or never", name, scheme);
    if (!prefix && scheme && i != PREPEND_NEVER)
        return error_set(e, PL_USAGE, "%s: add_prefix_space is false, but prepend_scheme is \"%s\"", name, scheme);
    s->prepend = prefix ? (int)i : PREPEND_NEVER;
    s->replacement = bump_string(memory, replacement);
    s->find = (struct finder){.literal = s->replacement, .n = (uint32_t)n};
    return PL_OK;
}

static int read_step(struct split_step *s, const char *type, const struct value *v, struct bump *memory,
                     struct error *e)
{
    if (!strcmp(type, "Split")) return read_split(s, v, memory, e);
    if (!strcmp(type, "ByteLevel")) return read_byte_level(s, v, e);
    if (!strcmp(type, "Digits")) return read_digits(s, v, e);
    if (!strcmp(type, "Metaspace")) return metaspace_read(s, v, "pre_tokenizer", memory, e);
    if (!strcmp(type, "Whitespace"))
        return *s = (struct split_step){.kind = SPLIT_WORDS, .behavior = SPLIT_REMOVED}, PL_OK;
    if (!strcmp(type, "WhitespaceSplit"))
        return *s = (struct split_step){.kind = SPLIT_SPACES, .behavior = SPLIT_REMOVED}, PL_OK;
    if (!strcmp(type, "Punctuation")) return read_punctuation(s, v, e);
    if (!strcmp(type, "CharDelimiterSplit")) return read_delimiter(s, v, memory, e);
    return error_set(e, PL_USAGE,
                     "the pre-tokenizer \"%.60s\" is not known; known are Sequence, Split, ByteLevel, Digits, "
                     "Metaspace, Whitespace, WhitespaceSplit, Punctuation, CharDelimiterSplit and BertPreTokenizer",
                     type);
}

int pretokenizer_read(struct pretokenizer *p, const struct value *v, struct bump *memory, struct error *e)
{
    const char *type;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (value_as_map(v, "pre_tokenizer", e) || value_as_string(value_get(v, "type"), "pre_tokenizer.type", &type, e))
        return e->code;
    if (!strcmp(type, "Sequence")) {
        const struct value *list = value_get(v, "pretokenizers");
        if (value_as_list(list, "pre_tokenizer.pretokenizers", e)) return e->code;
        for (uint32_t i = 0; i < list->count; i++)
            if (pretokenizer_read(p, list->items[i], memory, e)) return e->code;
        return PL_OK;
    }
    struct split_step step = {0};
    if (p->steps.n + 1 >= SPLIT_STEPS_MOST)
        return error_set(e, PL_USAGE, "the pre-tokenizer has more than %d steps", SPLIT_STEPS_MOST - 1);
    if (!strcmp(type, "BertPreTokenizer")) {
        vec_push(&p->steps, ((struct split_step){.kind = SPLIT_SPACES, .behavior = SPLIT_REMOVED}));
        vec_push(&p->steps, ((struct split_step){.kind = SPLIT_PUNCTUATION, .behavior = SPLIT_ISOLATED}));
        return PL_OK;
    }
    int rc = read_step(&step, type, v, memory, e);
    if (!rc) vec_push(&p->steps, step);
    else finder_close(&step.find);
    return rc;
}

bool pretokenizer_is_byte_level(const struct pretokenizer *p)
{
    return p->steps.n && p->steps.at[p->steps.n - 1].kind == SPLIT_BYTE_LEVEL;
}

void pretokenizer_free(struct pretokenizer *p)
{
    for (uint32_t i = 0; i < p->steps.n; i++) finder_close(&p->steps.at[i].find);
    vec_free(&p->steps);
}
