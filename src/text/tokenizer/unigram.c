/*
 * unigram.c: the Unigram model of one word (see model.h): the pieces with the largest sum of
 * scores.
 *
 * nodes[i] is the best way to write the first i bytes: its score, its last piece and where that
 * begins.
 */
#include <string.h>

#include "text/tokenizer/model.h"
#include "text/unicode.h"

struct unigram_node {
    double score;
    uint32_t begin; /* of the last piece */
    int32_t id;     /* of the last piece; -1: no way is known; -2: it is an unknown character */
};

static void offer(const struct unigram *m, struct unigram_node *node, double score, uint32_t begin, int32_t id)
{
    if (m->single) score = (float)score;
    if (node->id == -1 || score > node->score) *node = (struct unigram_node){score, begin, id};
}

static void find_best(const struct unigram *m, struct unigram_node *nodes, const char *word, uint32_t n)
{
    for (uint32_t i = 0; i <= n; i++) nodes[i] = (struct unigram_node){0, 0, -1};
    for (uint32_t begin = 0, length; begin < n; begin += length) {
        bool single = false;
        length = (uint32_t)utf8_length(word[begin]);
        for (uint32_t i = begin, node = 0; i < n && (node = trie_step(&m->trie, node, word[i])); i++) {
            const int32_t id = m->trie.values[node];
            if (id < 0) continue;
            offer(m, &nodes[i + 1], m->scores[id] + nodes[begin].score, begin, id);
            single |= i + 1 - begin == length;
        }
        if (!single) offer(m, &nodes[begin + length], m->unk_score + nodes[begin].score, begin, -2);
    }
}

static int32_t whole_id(const struct unigram *m, const char *s, uint32_t n)
{
    uint32_t node = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!(node = trie_step(&m->trie, node, s[i]))) return -1;
    return m->trie.values[node];
}

/* A run of unknown characters: bytes, if the vocabulary has all of them, else one unknown token. */
static void add_unknown(const struct unigram *m, struct model_work *w, const char *word, struct token run)
{
    bool bytes = m->byte_fallback;
    int32_t id = whole_id(m, word + run.begin, run.end - run.begin);
    for (uint32_t i = run.begin; i < run.end && bytes; i++) bytes = m->fallback[(unsigned char)word[i]] >= 0;
    if (id >= 0 || !bytes) {
        vec_push(&w->tokens, ((struct token){id >= 0 ? id : m->unk, run.begin, run.end}));
        return;
    }
    for (uint32_t i = run.begin; i < run.end; i++)
        vec_push(&w->tokens, ((struct token){m->fallback[(unsigned char)word[i]], i, i + 1}));
}

int unigram_word(const struct unigram *m, struct model_work *w, const char *word, uint32_t n, struct error *e)
{
    vec_grow((void **)&w->nodes, &w->cap_nodes, n + 1, sizeof *w->nodes);
    find_best(m, w->nodes, word, n);
    w->tokens.n = w->symbols.n = 0;
    for (uint32_t end = n; end; end = w->nodes[end].begin) /* from the end to the begin */
        vec_push(&w->symbols, ((struct token){w->nodes[end].id, w->nodes[end].begin, end}));
    struct token run = {-1, 0, 0};
    for (uint32_t i = w->symbols.n; i--;) {
        const struct token s = w->symbols.at[i];
        const bool unknown = s.id == -2 || s.id == m->unk;
        if (s.id == -2 && m->unk < 0)
            return error_set(e, PL_USAGE, "the model has no unknown token, and the vocabulary does not have \"%.*s\"",
                             (int)(s.end - s.begin), word + s.begin);
        if (unknown && run.id == -2) run.end = s.end;
        else if (unknown) run = (struct token){-2, s.begin, s.end};
        if (unknown) continue;
        if (run.id == -2) add_unknown(m, w, word, run);
        run.id = -1;
        vec_push(&w->tokens, s);
    }
    if (run.id == -2) add_unknown(m, w, word, run);
    return PL_OK;
}
