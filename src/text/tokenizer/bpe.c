/*
 * bpe.c: byte pair encoding of one word (see model.h).
 */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer/model.h"
#include "text/unicode.h"

bool find_fallback(const struct id_map *ids, int32_t fallback[256])
{
    bool all = true;
    for (int b = 0; b < 256; b++) {
        char piece[8];
        fallback[b] = id_map_get(ids, piece, (size_t)snprintf(piece, sizeof piece, "<0x%02X>", b));
        all &= fallback[b] >= 0;
    }
    return all;
}

enum { SEAM_JOINS_MOST = 64 };

/* --- seams --------------------------------------------------------------------------------- */

void bpe_find_seams(struct bpe *m, const struct vocabulary *v, const char *seam)
{
    const size_t n = strlen(seam);
    if (id_map_get(&v->ids, seam, n) < 0 || m->ignore_merges || m->prefix || m->suffix || m->raw || m->unused) return;
    for (int32_t id = 0; id < v->size; id++) {
        const char *piece = v->piece[id], *end = piece ? piece + v->length[id] : NULL, *found;
        uint32_t code = 0;
        for (const char *p = piece; p < end; p = found + n) {
            found = memmem(p, (size_t)(end - p), seam, n);
            if (!found) break;
            if (found == piece) continue;
            const char *last = found - 1;
            while (last > piece && ((unsigned char)*last & 0xc0) == 0x80) last--;
            utf8_next(last, &code);
            uint32_t i = 0;
            while (i < m->seam_joins.n && m->seam_joins.at[i] != code) i++;
            if (i == m->seam_joins.n) vec_push(&m->seam_joins, code);
        }
        if (m->seam_joins.n > SEAM_JOINS_MOST) return; /* cutting would cost more than it saves */
    }
    m->seam = seam, m->seam_n = (uint32_t)n;
}

static bool is_seam(const struct bpe *m, const char *text, uint32_t begin, uint32_t at)
{
    uint32_t last = at - 1, code;
    while (last > begin && ((unsigned char)text[last] & 0xc0) == 0x80) last--;
    utf8_next(text + last, &code);
    for (uint32_t i = 0; i < m->seam_joins.n; i++)
        if (m->seam_joins.at[i] == code) return false;
    return true;
}

uint32_t bpe_word_end(const struct bpe *m, const char *text, uint32_t begin, uint32_t end)
{
    for (uint32_t at = begin + 1; m->seam && at < end; at++) {
        const char *found = memchr(text + at, m->seam[0], end - at);
        if (!found) break;
        at = (uint32_t)(found - text);
        if (end - at >= m->seam_n && !memcmp(found, m->seam, m->seam_n) && is_seam(m, text, begin, at)) return at;
    }
    return end;
}

/* --- symbols ------------------------------------------------------------------------------- */

static void add_symbol(struct model_work *w, int32_t id, uint32_t begin, uint32_t end)
{
    vec_push(&w->symbols, ((struct token){id, begin, end}));
}

/* The id of a character with the prefix or suffix that its position asks for. */
static int32_t affixed_id(const struct bpe *m, const char *at, uint32_t n, bool first, bool last)
{
    char text[2 * AFFIX_MOST + 4];
    const size_t before = m->prefix && !first ? strlen(m->prefix) : 0,
                 after = m->suffix && last ? strlen(m->suffix) : 0;
    if (before) memcpy(text, m->prefix, before);
    memcpy(text + before, at, n);
    if (after) memcpy(text + before + n, m->suffix, after);
    return id_map_get(&m->ids, text, before + n + after);
}

static int32_t symbol_of(const struct bpe *m, const char *word, uint32_t n, uint32_t begin, uint32_t end)
{
    if (m->prefix || m->suffix) return affixed_id(m, word + begin, end - begin, !begin, end == n);
    if (end - begin == 1) return m->ascii[(unsigned char)word[begin]];
    return id_map_get(&m->ids, word + begin, end - begin);
}

/* The bytes of an unknown character, if the vocabulary has all of them. */
static bool add_bytes(const struct bpe *m, struct model_work *w, const char *word, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        if (m->fallback[(unsigned char)word[i]] < 0) return false;
    for (uint32_t i = begin; i < end; i++) add_symbol(w, m->fallback[(unsigned char)word[i]], i, i + 1);
    return true;
}

/* Unknown characters become bytes, or the unknown token, or nothing, before anything is joined. */
static void split_known(const struct bpe *m, struct model_work *w, const char *word, uint32_t n)
{
    struct token unk = {-1, 0, 0};
    for (uint32_t begin = 0, end; begin < n; begin = end) {
        end = begin + (m->raw ? 1 : (uint32_t)utf8_length(word[begin]));
        int32_t id = symbol_of(m, word, n, begin, end);
        if (id < 0 && m->byte_fallback && add_bytes(m, w, word, begin, end)) continue;
        if (id < 0 && m->unk < 0) continue;
        if (id < 0 && unk.id >= 0 && m->fuse_unk) {
            unk.end = end;
            continue;
        }
        if (unk.id >= 0) add_symbol(w, unk.id, unk.begin, unk.end);
        unk = (struct token){id < 0 ? m->unk : -1, begin, end};
        if (id >= 0) add_symbol(w, id, begin, end);
    }
    if (unk.id >= 0) add_symbol(w, unk.id, unk.begin, unk.end);
}

static void split_any(const struct bpe *m, struct model_work *w, const char *word, uint32_t n)
{
    for (uint32_t begin = 0, end; begin < n; begin = end) {
        end = begin + (uint32_t)utf8_length(word[begin]);
        add_symbol(w, symbol_of(m, word, n, begin, end), begin, end);
    }
}

/* --- by scores: what is left at the end ------------------------------------------------------ */

static void finish_unknown(const struct bpe *m, struct model_work *w, const char *word, struct token s)
{
    struct token *last = w->tokens.n ? &w->tokens.at[w->tokens.n - 1] : NULL;
    if (m->byte_fallback) {
        for (uint32_t i = s.begin; i < s.end; i++)
            vec_push(&w->tokens, ((struct token){m->fallback[(unsigned char)word[i]], i, i + 1}));
    } else if (last && last->id == m->unk && last->end == s.begin) last->end = s.end;
    else vec_push(&w->tokens, ((struct token){m->unk, s.begin, s.end}));
}

/* A piece that is not used is split into the pair that it was last considered for. */
static void finish(const struct bpe *m, struct model_work *w, const char *word, struct token s)
{
    if (s.id < 0 || s.id >= m->n_tokens) {
        finish_unknown(m, w, word, s);
        return;
    }
    const struct merge_seen *seen = NULL;
    for (uint32_t i = m->unused && m->unused[s.id] ? w->merger.seen.n : 0; i && !seen; i--)
        if (w->merger.seen.at[i - 1].id == s.id) seen = &w->merger.seen.at[i - 1];
    if (!seen) {
        vec_push(&w->tokens, s);
        return;
    }
    uint32_t middle = s.begin;
    const struct merge_seen pair = *seen;
    /* The left part is the longest prefix that has its id. */
    for (uint32_t end = s.begin; end < s.end;) {
        end += (uint32_t)utf8_length(word[end]);
        if (id_map_get(&m->ids, word + s.begin, end - s.begin) == pair.left) middle = end;
    }
    finish(m, w, word, (struct token){pair.left, s.begin, middle});
    finish(m, w, word, (struct token){pair.right, middle, s.end});
}

void bpe_word(const struct bpe *m, struct model_work *w, const char *word, uint32_t n)
{
    w->tokens.n = w->symbols.n = 0;
    int32_t whole = m->ignore_merges ? id_map_get(&m->ids, word, n) : -1;
    if (whole >= 0) {
        vec_push(&w->tokens, ((struct token){whole, 0, n}));
        return;
    }
    if (m->by_score) split_any(m, w, word, n);
    else split_known(m, w, word, n);
    w->merger.watched = m->unused;
    const uint32_t left = w->symbols.n ? merge_all(&m->merges, &w->merger, w->symbols.at, w->symbols.n) : 0;
    for (uint32_t i = 0; i < left; i++) {
        if (m->by_score) finish(m, w, word, w->symbols.at[i]);
        else vec_push(&w->tokens, w->symbols.at[i]);
    }
}
