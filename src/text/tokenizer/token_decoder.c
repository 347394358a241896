/*
 * token_decoder.c: decoders: tokens back to text (see tokenizer_parts.h).
 */
#include "text/tokenizer/tokenizer_parts.h"

/* ---- decoding ---- */

/* token ──► step 0 ──► step 1 ──► ... ──► the text
 *
 * Each step may hold something back: a code point that is not whole, blanks that may be the last
 * ones, the begin of what it replaces. Behind a step that joins the tokens, the steps see one
 * string in parts. */

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

struct step_state {
    struct text held;   /* what is held back */
    struct text work;   /* the output of one call */
    uint32_t stripped;  /* DECODE_STRIP, fused: characters that were cut off at the start */
    bool begun;         /* a token was seen; DECODE_STRIP, fused: the start is over */
};

struct decoding {
    const struct token_decoder *decoder;
    bool whole;
    struct pattern_search *search;
    struct step_state *states; /* [steps] */
};

static void put(struct decoding *s, uint32_t i, const char *token, size_t n, struct text *out);

static void drop(struct text *t, size_t n)
{
    if (n) memmove(t->at, t->at + n, t->n - n);
    t->n -= n;
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* Reports whether n bytes, 1 to 3, can be the begin of a code point. */
static bool may_continue(const char *s, size_t n)
{
    const unsigned char a = (unsigned char)s[0], b = n > 1 ? (unsigned char)s[1] : 0;
    if (a < 0xc2 || a > 0xf4 || n >= (size_t)utf8_length(s[0])) return false;
    if (n == 1) return true;
    const unsigned low = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80, high = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
    if (b < low || b > high) return false;
    return n == 2 || ((unsigned char)s[2] & 0xc0) == 0x80;
}

/* Moves what is final from `held` to `to`: whole code points, and U+FFFD for bytes that cannot
 * become one. `each`: one for each byte, else one for each attempt at a code point. `all`: nothing
 * stays. */
static void take_final(struct text *held, struct text *to, bool each, bool all)
{
    size_t at = 0;
    while (at < held->n) {
        uint32_t code;
        const char *s = held->at + at;
        const size_t left = held->n - at;
        int length = utf8_decode(s, left, &code);
        if (length) {
            text_append(to, s, (size_t)length);
            at += (size_t)length;
            continue;
        }
        size_t attempt = 0; /* the longest begin of a code point */
        for (size_t n = 1; n <= left && n <= 3 && may_continue(s, n); n++) attempt = n;
        if (attempt == left && !all) break;
        text_append(to, REPLACEMENT, 3);
        at += each || !attempt ? 1 : attempt;
    }
    drop(held, at);
}

static void put_byte_level(struct decoding *s, uint32_t i, const char *token, size_t n, struct text *out)
{
    struct step_state *state = &s->states[i];
    char local[256], *bytes = n <= sizeof local ? local : mem_alloc(n);
    int64_t count = characters_to_bytes(token, n, bytes);
    if (count < 0) text_append(&state->held, token, n);
    else text_append(&state->held, bytes, (size_t)count);
    if (bytes != local) mem_free(bytes);
    state->work.n = 0;
    take_final(&state->held, &state->work, false, false);
    if (state->work.n) put(s, i + 1, state->work.at, state->work.n, out);
}

/* Returns the byte of a token such as <0xE2>; -1: it is no such token. */
static int byte_of(const char *token, size_t n)
{
    if (n != 6 || memcmp(token, "<0x", 3) || token[5] != '>') return -1;
    int byte = 0;
    for (int k = 3; k < 5; k++) {
        const char c = token[k];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        byte = 16 * byte + digit;
    }
    return byte;
}

/* Ends a run of byte tokens. `whole`: if it is not UTF-8, each of its bytes becomes U+FFFD. */
static void end_run(struct decoding *s, uint32_t i, struct text *out)
{
    struct step_state *state = &s->states[i];
    if (!state->held.n) return;
    state->work.n = 0;
    if (s->whole && utf8_check(state->held.at, state->held.n) < state->held.n) {
        for (size_t k = 0; k < state->held.n; k++) text_append(&state->work, REPLACEMENT, 3);
        state->held.n = 0;
    } else take_final(&state->held, &state->work, true, true);
    put(s, i + 1, state->work.at, state->work.n, out);
}

static void put_byte_fallback(struct decoding *s, uint32_t i, const char *token, size_t n, struct text *out)
{
    struct step_state *state = &s->states[i];
    const int byte = byte_of(token, n);
    if (byte < 0) {
        end_run(s, i, out);
        put(s, i + 1, token, n, out);
        return;
    }
    text_append(&state->held, &(char){(char)byte}, 1);
    if (s->whole) return;
    state->work.n = 0;
    take_final(&state->held, &state->work, true, false);
    if (state->work.n) put(s, i + 1, state->work.at, state->work.n, out);
}

/* --- text ------------------------------------------------------------------------------------- */

static void put_replace(struct decoding *s, uint32_t i, const char *token, size_t n, bool last, struct text *out)
{
    const struct decode_step *step = &s->decoder->steps.at[i];
    struct step_state *state = &s->states[i];
    if (step->fused) { /* a match may begin in one part and end in another */
        text_append(&state->held, token, n);
        if (step->find.pattern && !last) return;
        token = state->held.at, n = state->held.n;
    }
    struct finding at = {0};
    struct byte_range m;
    size_t done = 0, keep = 0;
    state->work.n = 0;
    if (s->search) pattern_search_begin(s->search, n);
    while (finder_next(&step->find, s->search, token, n, &at, &m) == 1) {
        text_append(&state->work, token + done, m.begin - done);
        text_append(&state->work, step->content, strlen(step->content));
        done = m.end;
    }
    if (step->fused && !last)
        for (size_t k = min_u64(step->find.n - 1, n - done); k && !keep; k--)
            if (!memcmp(token + n - k, step->find.literal, k)) keep = k;
    text_append(&state->work, token + done, n - keep - done);
    if (step->fused) drop(&state->held, n - keep);
    put(s, i + 1, state->work.at, state->work.n, out);
}

/* Strips one token: up to `start` characters of the content at its begin, `stop` at its end. */
static void put_strip(struct decoding *s, uint32_t i, const char *token, size_t n, struct text *out)
{
    const struct decode_step *step = &s->decoder->steps.at[i];
    const size_t c = strlen(step->content);
    for (uint32_t k = 0; k < step->start && n >= c && !memcmp(token, step->content, c); k++) token += c, n -= c;
    for (uint32_t k = 0; k < step->stop && n >= c && !memcmp(token + n - c, step->content, c); k++) n -= c;
    put(s, i + 1, token, n, out);
}

/* Does the same for a string that comes in parts: the last `stop` characters of the content are
 * held back. */
static void put_strip_parts(struct decoding *s, uint32_t i, const char *token, size_t n, struct text *out)
{
    const struct decode_step *step = &s->decoder->steps.at[i];
    struct step_state *state = &s->states[i];
    const size_t c = strlen(step->content);
    while (!state->begun && n >= c && state->stripped < step->start && !memcmp(token, step->content, c))
        token += c, n -= c, state->stripped++;
    if (!n) return;
    state->begun = true;
    text_append(&state->held, token, n);
    size_t keep = 0;
    while (keep < step->stop * c && state->held.n - keep >= c &&
           !memcmp(state->held.at + state->held.n - keep - c, step->content, c))
        keep += c;
    state->work.n = 0;
    text_append(&state->work, state->held.at, state->held.n - keep);
    drop(&state->held, state->held.n - keep);
    if (state->work.n) put(s, i + 1, state->work.at, state->work.n, out);
}

/* Strips the blank of the first token; the others get a blank for its sign. */
static void put_metaspace(struct decoding *s, uint32_t i, const char *token, size_t n, struct text *out)
{
    const struct decode_step *step = &s->decoder->steps.at[i];
    struct step_state *state = &s->states[i];
    const size_t c = strlen(step->content);
    state->work.n = 0;
    for (size_t k = 0; k < n;) {
        const bool blank = n - k >= c && !memcmp(token + k, step->content, c);
        const size_t length = blank ? c : (size_t)utf8_length(token[k]);
        if (!blank) text_append(&state->work, token + k, length);
        else if (state->begun || !step->strip_first) text_append(&state->work, " ", 1);
        k += length;
    }
    state->begun = true;
    put(s, i + 1, state->work.at, state->work.n, out);
}

static void replace_all(struct text *t, const char *from, const char *to)
{
    struct text out = {0};
    const char *at = t->at, *found;
    const size_t n = strlen(from);
    if (!t->n || !memmem(t->at, t->n, from, n)) return;
    for (; (found = memmem(at, (size_t)(t->at + t->n - at), from, n)); at = found + n) {
        text_append(&out, at, (size_t)(found - at));
        text_append(&out, to, strlen(to));
    }
    text_append(&out, at, (size_t)(t->at + t->n - at));
    text_free(t);
    *t = out;
}

/* Continues the word with a token that has the prefix, or begins a word. */
static void put_wordpiece(struct decoding *s, uint32_t i, const char *token, size_t n, struct text *out)
{
    static const char *const forms[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                           {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                           {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    const struct decode_step *step = &s->decoder->steps.at[i];
    struct step_state *state = &s->states[i];
    const size_t c = strlen(step->content);
    state->work.n = 0;
    const bool within = state->begun && n >= c && !memcmp(token, step->content, c);
    if (state->begun && !within) text_append(&state->work, " ", 1);
    text_append(&state->work, token + (within ? c : 0), n - (within ? c : 0));
    state->begun = true;
    for (size_t k = 0; k < COUNT(forms) && step->cleanup; k++) replace_all(&state->work, forms[k][0], forms[k][1]);
    put(s, i + 1, state->work.n ? state->work.at : "", state->work.n, out);
}

/* Writes the token that was held back, the suffix of words in it as a blank, and holds this one
 * back. The suffix of the last token is dropped. */
static void put_suffix(struct decoding *s, uint32_t i, const char *token, size_t n, bool last, struct text *out)
{
    struct step_state *state = &s->states[i];
    if (state->begun) {
        replace_all(&state->held, s->decoder->steps.at[i].content, last ? "" : " ");
        put(s, i + 1, state->held.n ? state->held.at : "", state->held.n, out);
    }
    state->held.n = 0;
    text_append(&state->held, token, n);
    state->begun = !last;
}

/* Writes a token, each U+2581 in it as a blank; at the begin of the text one blank, or all of
 * them, is cut off. */
static void put_sentencepiece(struct decoding *s, uint32_t i, const char *token, size_t n, struct text *out)
{
    static const char blank[] = "\xe2\x96\x81";
    const struct decode_step *step = &s->decoder->steps.at[i];
    struct step_state *state = &s->states[i];
    state->work.n = 0;
    bool cut = false;
    if (step->strip_first && !state->begun && n >= 3 && !memcmp(token, blank, 3)) token += 3, n -= 3, cut = true;
    for (size_t k = 0; k < n;) {
        const bool is_blank = n - k >= 3 && !memcmp(token + k, blank, 3);
        text_append(&state->work, is_blank ? " " : token + k, 1);
        k += is_blank ? 3 : 1;
    }
    state->begun |= state->work.n || (cut && !step->strip_all);
    put(s, i + 1, state->work.at, state->work.n, out);
}

/* --- the chain -------------------------------------------------------------------------------- */

static void put(struct decoding *s, uint32_t i, const char *token, size_t n, struct text *out)
{
    if (i == s->decoder->steps.n) {
        if (n) text_append(out, token, n);
        return;
    }
    if (!n) token = "";
    const struct decode_step *step = &s->decoder->steps.at[i];
    switch (step->kind) {
    case DECODE_BYTE_LEVEL: put_byte_level(s, i, token, n, out); break;
    case DECODE_REPLACE: put_replace(s, i, token, n, false, out); break;
    case DECODE_BYTE_FALLBACK: put_byte_fallback(s, i, token, n, out); break;
    case DECODE_FUSE: put(s, i + 1, token, n, out); break;
    case DECODE_STRIP: (step->fused ? put_strip_parts : put_strip)(s, i, token, n, out); break;
    case DECODE_METASPACE: put_metaspace(s, i, token, n, out); break;
    case DECODE_SENTENCEPIECE: put_sentencepiece(s, i, token, n, out); break;
    case DECODE_WORDPIECE: put_wordpiece(s, i, token, n, out); break;
    case DECODE_SUFFIX: put_suffix(s, i, token, n, false, out); break;
    case DECODE_SPACES:
        if (s->states[i].begun) put(s, i + 1, " ", 1, out);
        s->states[i].begun = true;
        put(s, i + 1, token, n, out);
    }
}

struct decoding *decoding_begin(const struct token_decoder *d, bool whole)
{
    struct decoding *s = mem_alloc(sizeof *s);
    *s = (struct decoding){.decoder = d, .whole = whole, .states = mem_alloc((d->steps.n + 1) * sizeof *s->states)};
    for (uint32_t i = 0; i < d->steps.n; i++)
        if (d->steps.at[i].find.pattern && !s->search) s->search = pattern_search_new();
    return s;
}

void decoding_put(struct decoding *s, const char *token, size_t n, struct text *out) { put(s, 0, token, n, out); }

/* Ends each step in turn: what it still holds goes through the steps behind it. */
void decoding_end(struct decoding *s, struct text *out)
{
    for (uint32_t i = 0; i < s->decoder->steps.n; i++) {
        const struct decode_step *step = &s->decoder->steps.at[i];
        struct step_state *state = &s->states[i];
        if (step->kind == DECODE_BYTE_FALLBACK) end_run(s, i, out);
        if (step->kind == DECODE_SUFFIX) put_suffix(s, i, "", 0, true, out);
        if (step->kind == DECODE_REPLACE && step->fused) put_replace(s, i, "", 0, true, out);
        if (step->kind == DECODE_BYTE_LEVEL && state->held.n) {
            state->work.n = 0;
            take_final(&state->held, &state->work, false, true);
            put(s, i + 1, state->work.at, state->work.n, out);
        }
        text_free(&state->held);
        text_free(&state->work);
    }
    pattern_search_free(s->search);
    mem_free(s->states);
    mem_free(s);
}

/* ---- reading the "decoder" of a tokenizer.json ---- */

static int read_strip(struct decode_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    const char *content;
    uint64_t start, stop;
    if (value_as_string(value_get(v, "content"), "decoder.content", &content, e) ||
        value_as_uint(value_get(v, "start"), "decoder.start", &start, e) ||
        value_as_uint(value_get(v, "stop"), "decoder.stop", &stop, e))
        return e->code;
    if (!*content || (size_t)utf8_length(*content) != strlen(content))
        return error_set(e, PL_USAGE, "decoder.content is \"%.60s\"; expected one character", content);
    if (start > 1000 || stop > 1000) return error_set(e, PL_USAGE, "decoder.start and decoder.stop are at most 1000");
    *s = (struct decode_step){.kind = DECODE_STRIP,
                              .content = bump_string(memory, content),
                              .start = (uint32_t)start,
                              .stop = (uint32_t)stop};
    return PL_OK;
}

static int read_replace(struct decode_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    const char *content;
    s->kind = DECODE_REPLACE;
    if (value_as_string(value_get(v, "content"), "decoder.content", &content, e)) return e->code;
    s->content = bump_string(memory, content);
    return finder_read(&s->find, value_get(v, "pattern"), "decoder.pattern", memory, e);
}

static int read_metaspace(struct decode_step *s, const struct value *v, struct bump *memory, struct error *e)
{
    struct split_step m;
    if (metaspace_read(&m, v, "decoder", memory, e)) return e->code;
    *s = (struct decode_step){.kind = DECODE_METASPACE,
                              .content = m.replacement,
                              .strip_first = m.prepend != PREPEND_NEVER};
    return PL_OK;
}

static int read_words(struct decode_step *s, bool wordpiece, const struct value *v, struct bump *memory,
                      struct error *e)
{
    const char *text = wordpiece ? "##" : "</w>";
    *s = (struct decode_step){.kind = wordpiece ? DECODE_WORDPIECE : DECODE_SUFFIX, .cleanup = true};
    if (value_opt_string(v, wordpiece ? "prefix" : "suffix", &text, e) || value_opt_bool(v, "cleanup", &s->cleanup, e))
        return error_prepend(e, "decoder");
    if (!*text) return error_set(e, PL_USAGE, "decoder.%s is empty", wordpiece ? "prefix" : "suffix");
    s->content = bump_string(memory, text);
    return PL_OK;
}

static int read_step(struct decode_step *s, const char *type, const struct value *v, struct bump *memory,
                     struct error *e)
{
    if (!strcmp(type, "ByteLevel")) return s->kind = DECODE_BYTE_LEVEL, PL_OK;
    if (!strcmp(type, "ByteFallback")) return s->kind = DECODE_BYTE_FALLBACK, PL_OK;
    if (!strcmp(type, "Fuse")) return s->kind = DECODE_FUSE, PL_OK;
    if (!strcmp(type, "Replace")) return read_replace(s, v, memory, e);
    if (!strcmp(type, "Strip")) return read_strip(s, v, memory, e);
    if (!strcmp(type, "Metaspace")) return read_metaspace(s, v, memory, e);
    if (!strcmp(type, "WordPiece") || !strcmp(type, "BPEDecoder")) return read_words(s, *type == 'W', v, memory, e);
    return error_set(e, PL_USAGE,
                     "the decoder \"%.60s\" is not known; known are Sequence, ByteLevel, ByteFallback, Fuse, Replace, "
                     "Strip, Metaspace, WordPiece and BPEDecoder",
                     type);
}

static int read_steps(struct token_decoder *d, const struct value *v, struct bump *memory, struct error *e)
{
    const char *type;
    if (value_as_map(v, "decoder", e) || value_as_string(value_get(v, "type"), "decoder.type", &type, e))
        return e->code;
    if (!strcmp(type, "Sequence")) {
        const struct value *list = value_get(v, "decoders");
        if (value_as_list(list, "decoder.decoders", e)) return e->code;
        for (uint32_t i = 0; i < list->count; i++)
            if (read_steps(d, list->items[i], memory, e)) return e->code;
        return PL_OK;
    }
    struct decode_step step = {0};
    if (d->steps.n == DECODE_STEPS_MOST)
        return error_set(e, PL_USAGE, "the decoder has more than %d steps", DECODE_STEPS_MOST);
    if (read_step(&step, type, v, memory, e)) {
        finder_close(&step.find);
        return e->code;
    }
    const struct decode_step *last = d->steps.n ? &d->steps.at[d->steps.n - 1] : NULL;
    step.fused = last && (last->fused || last->kind == DECODE_FUSE || last->kind == DECODE_BYTE_LEVEL);
    vec_push(&d->steps, step);
    if (step.fused && (step.kind == DECODE_BYTE_LEVEL || step.kind == DECODE_BYTE_FALLBACK ||
                       step.kind == DECODE_METASPACE || step.kind == DECODE_WORDPIECE || step.kind == DECODE_SUFFIX))
        return error_set(e, PL_USAGE, "the decoder \"%s\" needs the tokens, but stands behind one that joins them",
                         type);
    return PL_OK;
}

int decoder_read(struct token_decoder *d, const struct value *v, struct bump *memory, struct error *e)
{
    if (v && v->kind != VALUE_NULL) return read_steps(d, v, memory, e);
    vec_push(&d->steps, ((struct decode_step){.kind = DECODE_SPACES}));
    return PL_OK;
}

void decoder_free(struct token_decoder *d)
{
    for (uint32_t i = 0; i < d->steps.n; i++) finder_close(&d->steps.at[i].find);
    vec_free(&d->steps);
}
