/*
 * subwords.c: the models of a tokenizer: pre-tokens to tokens, word by word, through a cache of
 * words.
 */
#include "text/tokenizer/tokenizer_parts.h"

/* ---- words ---- */

static inline void append(struct token_list *out, const struct aligned *text, uint32_t base, const struct token *tokens,
                          uint32_t n)
{
    if (out->cap - out->n < n) vec_grow((void **)&out->at, &out->cap, out->n + n, sizeof *out->at);
    for (uint32_t i = 0; i < n; i++) {
        const struct byte_range from = aligned_from(text, base + tokens[i].begin, base + tokens[i].end);
        out->at[out->n++] = (struct token){tokens[i].id, from.begin, from.end};
    }
}

int subword_encode(const struct subword_model *m, struct model_work *w, const struct aligned *text, uint32_t begin,
                   uint32_t end, struct token_list *out, struct error *e)
{
    const bool bpe = m->kind == MODEL_BPE;
    for (uint32_t next; begin < end; begin = next) {
        next = bpe && m->bpe.seam ? bpe_word_end(&m->bpe, text->at, begin, end) : end;
        const char *word = text->at + begin;
        const uint32_t n = next - begin;
        const bool keep = n <= WORD_MOST && !(bpe && m->bpe.unused);
        const uint64_t hash = keep ? word_hash(word, n) : 0;
        const struct token *tokens;
        uint32_t count;
        if (keep && words_get(&w->words, hash, word, n, &tokens, &count)) {
            append(out, text, begin, tokens, count);
            continue;
        }
        if (bpe) bpe_word(&m->bpe, w, word, n);
        else if (m->kind == MODEL_UNIGRAM ? unigram_word(&m->unigram, w, word, n, e)
                                          : wordpiece_word(&m->wordpiece, w, word, n, e))
            return e->code;
        if (keep) words_put(&w->words, hash, word, n, w->tokens.at, w->tokens.n);
        append(out, text, begin, w->tokens.at, w->tokens.n);
    }
    return PL_OK;
}

void model_work_free(struct model_work *w)
{
    words_free(&w->words);
    merger_free(&w->merger);
    vec_free(&w->symbols);
    vec_free(&w->tokens);
    mem_free(w->nodes);
    text_free(&w->key);
    memset(w, 0, sizeof *w);
}

void subword_free(struct subword_model *m)
{
    merges_free(&m->bpe.merges);
    id_map_free(&m->bpe.ids);
    mem_free(m->bpe.unused);
    vec_free(&m->bpe.seam_joins);
    trie_free(&m->unigram.trie);
    mem_free(m->unigram.scores);
    memset(m, 0, sizeof *m);
}

/* ---- byte pair encoding ---- */

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

/* Returns the id of a character with the prefix or suffix that its position asks for. */
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

/* Returns the bytes of an unknown character, if the vocabulary has all of them. */
static bool add_bytes(const struct bpe *m, struct model_work *w, const char *word, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        if (m->fallback[(unsigned char)word[i]] < 0) return false;
    for (uint32_t i = begin; i < end; i++) add_symbol(w, m->fallback[(unsigned char)word[i]], i, i + 1);
    return true;
}

/* Splits a word into symbols. Unknown characters become bytes, or the unknown token, or nothing,
 * before anything is joined. */
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

/* Appends a token; a piece that is not used is split into the pair that it was last considered
 * for. */
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

/* ---- joining pairs of symbols ---- */

/* A short word keeps the merge of each pair in an array and scans it for the best one. A long one,
 * such as a whole text without blanks, has a heap of candidates over a linked list of symbols:
 *
 *     links   [ th ]-[ e ]-[ r ]-[ e ]        prev and next are positions; a joined symbol has end 0
 *     heap    (rank, position): a candidate whose pair has changed since is dropped when it comes up */

enum { SHORT_WORD = 48 };
#define NO_RANK UINT32_MAX

struct merge_link {
    int32_t id;
    uint32_t begin, end;
    int32_t prev, next; /* -1: none */
    bool gone;
};

struct merge_candidate {
    uint32_t rank, position;
    int32_t id;
};

/* --- the table ---------------------------------------------------------------------------- */

static struct merge *slot_of(const struct merges *m, uint64_t pair)
{
    uint32_t i = (uint32_t)(pair * KEYED_GOLDEN >> 32) & m->mask;
    while (m->slots[i].pair && m->slots[i].pair != pair) i = (i + 1) & m->mask;
    return &m->slots[i];
}

static void grow(struct merges *m)
{
    struct merges larger = {.mask = m->slots ? 2 * m->mask + 1 : 63, .n = m->n};
    larger.slots = mem_alloc(((size_t)larger.mask + 1) * sizeof *larger.slots);
    for (uint32_t i = 0; m->slots && i <= m->mask; i++)
        if (m->slots[i].pair) *slot_of(&larger, m->slots[i].pair) = m->slots[i];
    mem_free(m->slots);
    *m = larger;
}

void merges_put(struct merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    CHECK(left >= 0 && right >= 0);
    if (!m->slots || 2 * (m->n + 1) > m->mask) grow(m);
    const uint64_t pair = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
    struct merge *slot = slot_of(m, pair);
    m->n += !slot->pair;
    *slot = (struct merge){pair, rank, id};
}

void merges_free(struct merges *m)
{
    mem_free(m->slots);
    memset(m, 0, sizeof *m);
}

/* --- short words -------------------------------------------------------------------------- */

static uint32_t merge_short(const struct merges *m, struct token *symbols, uint32_t n)
{
    uint32_t rank[SHORT_WORD];
    int32_t id[SHORT_WORD];
    for (uint32_t i = 0; i + 1 < n; i++) {
        const struct merge *pair = merges_get(m, symbols[i].id, symbols[i + 1].id);
        rank[i] = pair ? pair->rank : NO_RANK;
        id[i] = pair ? pair->id : -1;
    }
    while (n > 1) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_RANK) break;
        symbols[best].id = id[best];
        symbols[best].end = symbols[best + 1].end;
        n--;
        memmove(symbols + best + 1, symbols + best + 2, (n - best - 1) * sizeof *symbols);
        memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof *rank);
        memmove(id + best, id + best + 1, (n - best - 1) * sizeof *id);
        for (uint32_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct merge *pair = merges_get(m, symbols[i].id, symbols[i + 1].id);
            rank[i] = pair ? pair->rank : NO_RANK;
            id[i] = pair ? pair->id : -1;
        }
    }
    return n;
}

/* --- long words --------------------------------------------------------------------------- */

static bool before(const struct merge_candidate *a, const struct merge_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void heap_push(struct merger *w, struct merge_candidate c)
{
    vec_grow((void **)&w->heap, &w->cap_heap, w->n_heap + 1, sizeof *w->heap);
    uint32_t i = w->n_heap++;
    for (; i && before(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static struct merge_candidate heap_pop(struct merger *w)
{
    struct merge_candidate top = w->heap[0], last = w->heap[--w->n_heap];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && before(&w->heap[child + 1], &w->heap[child])) child++;
        if (!before(&w->heap[child], &last)) break;
        w->heap[i] = w->heap[child];
    }
    if (w->n_heap) w->heap[i] = last;
    return top;
}

/* Looks the pair of a position and the one behind it up. */
static void consider(const struct merges *m, struct merger *w, int32_t position)
{
    if (position < 0 || w->links[position].next < 0) return;
    const struct merge_link *left = &w->links[position], *right = &w->links[left->next];
    const struct merge *pair = merges_get(m, left->id, right->id);
    if (!pair) return;
    heap_push(w, (struct merge_candidate){pair->rank, (uint32_t)position, pair->id});
    if (w->watched && w->watched[pair->id]) vec_push(&w->seen, ((struct merge_seen){pair->id, left->id, right->id}));
}

static void join(const struct merges *m, struct merger *w, struct merge_candidate c)
{
    struct merge_link *left = &w->links[c.position];
    if (left->gone || left->next < 0) return;
    struct merge_link *right = &w->links[left->next];
    const struct merge *pair = merges_get(m, left->id, right->id);
    if (!pair || pair->id != c.id) return;
    left->id = pair->id;
    left->end = right->end;
    left->next = right->next;
    right->gone = true;
    if (right->next >= 0) w->links[right->next].prev = (int32_t)c.position;
    consider(m, w, left->prev);
    consider(m, w, (int32_t)c.position);
}

static uint32_t merge_long(const struct merges *m, struct merger *w, struct token *symbols, uint32_t n)
{
    vec_grow((void **)&w->links, &w->cap_links, n, sizeof *w->links);
    w->n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        w->links[i] = (struct merge_link){symbols[i].id,
                                          symbols[i].begin,
                                          symbols[i].end,
                                          (int32_t)i - 1,
                                          i + 1 < n ? (int32_t)i + 1 : -1,
                                          false};
    for (uint32_t i = 0; i < n; i++) consider(m, w, (int32_t)i);
    while (w->n_heap) join(m, w, heap_pop(w));
    uint32_t left = 0;
    for (int32_t i = 0; n && i >= 0; i = w->links[i].next)
        symbols[left++] = (struct token){w->links[i].id, w->links[i].begin, w->links[i].end};
    return left;
}

uint32_t merge_all(const struct merges *m, struct merger *w, struct token *symbols, uint32_t n)
{
    w->seen.n = 0;
    return n <= SHORT_WORD && !w->watched ? merge_short(m, symbols, n) : merge_long(m, w, symbols, n);
}

void merger_free(struct merger *w)
{
    mem_free(w->links);
    mem_free(w->heap);
    vec_free(&w->seen);
    memset(w, 0, sizeof *w);
}

/* ---- Unigram ---- */

/* nodes[i] is the best way to write the first i bytes: its score, its last piece and where that
 * begins. */

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

/* Puts a run of unknown characters: bytes, if the vocabulary has all of them, else one unknown
 * token. */
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

/* ---- WordPiece ---- */

/* Returns the end of the longest piece that begins at `begin`; 0: there is none. */
static uint32_t longest(const struct wordpiece *m, struct text *key, const char *word, uint32_t begin, uint32_t n,
                        int32_t *id)
{
    key->n = 0;
    if (begin) text_append(key, m->prefix, strlen(m->prefix));
    const size_t before = key->n;
    text_append(key, word + begin, n - begin);
    for (uint32_t end = n; end > begin;) {
        if ((*id = id_map_get(&m->vocabulary->ids, key->at, before + end - begin)) >= 0) return end;
        do end--;
        while (end > begin && ((unsigned char)word[end] & 0xc0) == 0x80);
    }
    return 0;
}

int wordpiece_word(const struct wordpiece *m, struct model_work *w, const char *word, uint32_t n, struct error *e)
{
    uint64_t characters = 0;
    for (uint32_t i = 0; i < n; i++) characters += ((unsigned char)word[i] & 0xc0) != 0x80;
    w->tokens.n = 0;
    bool known = characters <= m->most;
    for (uint32_t begin = 0, end; begin < n && known; begin = end) {
        int32_t id;
        end = longest(m, &w->key, word, begin, n, &id);
        known = end;
        if (known) vec_push(&w->tokens, ((struct token){id, begin, end}));
    }
    if (known) return PL_OK;
    if (m->unk < 0)
        return error_set(e, PL_USAGE,
                         "the vocabulary has not the unknown token of the model, and the word \"%.*s\" needs it",
                         (int)min_u64(n, 60), word);
    w->tokens.n = 0;
    vec_push(&w->tokens, ((struct token){m->unk, 0, n}));
    return PL_OK;
}

/* ---- a cache of words ---- */

enum { KEYS = 4 << 20, TOKENS = 256 << 10 };

static void start(struct words *w)
{
    if (!w->slots) {
        w->slots = mem_alloc(WORD_SLOTS * sizeof *w->slots);
        w->keys = mem_alloc(KEYS);
        w->tokens = mem_alloc(TOKENS * sizeof *w->tokens);
    } else memset(w->slots, 0, WORD_SLOTS * sizeof *w->slots);
    w->n = w->n_keys = w->n_tokens = 0;
}

void words_put(struct words *w, uint64_t hash, const char *word, uint32_t n, const struct token *tokens, uint32_t count)
{
    if (!n || n > WORD_MOST || count > WORD_MOST) return;
    if (!w->slots || w->n > WORD_SLOTS / 2 || w->n_keys + n > KEYS || w->n_tokens + count > TOKENS) start(w);
    struct word_slot *slot = NULL;
    for (uint32_t i = 0; i < WORD_PROBES && !slot; i++) {
        struct word_slot *s = &w->slots[(hash + i) % WORD_SLOTS];
        if (!s->n) slot = s;
    }
    if (!slot) slot = &w->slots[hash % WORD_SLOTS]; /* the older word gives way */
    else w->n++;
    *slot = (struct word_slot){.hash = (uint32_t)(hash >> 32),
                               .n = (uint16_t)n,
                               .count = (uint16_t)count,
                               .tokens = w->n_tokens};
    if (n > WORD_INLINE) {
        memcpy(slot->key, &w->n_keys, sizeof w->n_keys);
        memcpy(w->keys + w->n_keys, word, n);
        w->n_keys += n;
    } else memcpy(slot->key, word, n);
    if (count) memcpy(w->tokens + w->n_tokens, tokens, count * sizeof *tokens);
    w->n_tokens += count;
}

void words_free(struct words *w)
{
    mem_free(w->slots);
    mem_free(w->keys);
    mem_free(w->tokens);
    memset(w, 0, sizeof *w);
}
