/*
 * tokenizer.c: encodes and decodes (see tokenizer.h and tokenizer_parts.h; tokenizer_open.c opens).
 */
#include <string.h>

#include "io/file.h"
#include "text/tokenizer/tokenizer_parts.h"

/* Memory of one call of tokenizer_encode. Idle ones wait in the pool, with the words that they
 * know. */
struct work {
    struct work *next;
    struct normal_work normal;
    struct split_work split;
    struct model_work model;
};

struct work_pool {
    pthread_mutex_t lock;
    struct work *idle;
};

struct work_pool *work_pool_new(void)
{
    struct work_pool *p = mem_alloc(sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

static struct work *borrow(const struct tokenizer *t)
{
    pthread_mutex_lock(&t->pool->lock);
    struct work *w = t->pool->idle;
    if (w) t->pool->idle = w->next;
    pthread_mutex_unlock(&t->pool->lock);
    if (w) return w;
    w = mem_alloc(sizeof *w);
    w->normal.search = pattern_search_new();
    w->split.search = pattern_search_new();
    return w;
}

static void give_back(const struct tokenizer *t, struct work *w)
{
    pthread_mutex_lock(&t->pool->lock);
    w->next = t->pool->idle;
    t->pool->idle = w;
    pthread_mutex_unlock(&t->pool->lock);
}

static void work_free(struct work *w)
{
    normal_work_free(&w->normal);
    split_work_free(&w->split);
    model_work_free(&w->model);
    mem_free(w);
}

/* --- adding and closing ----------------------------------------------------------------------- */

/* What is searched for in the normalized text, and what the decoder sees. */
static int normalized_content(struct tokenizer *t, const char *content, const char **out, struct error *e)
{
    struct normal_work w = {.search = pattern_search_new()};
    struct aligned text = {.at = content, .n = (uint32_t)strlen(content)};
    int rc = normalize(&t->normalizer, &w, &text, e);
    if (!rc) *out = memcpy(bump_alloc(&t->memory, text.n + 1), text.at, text.n);
    normal_work_free(&w);
    return rc;
}

int tokenizer_add(struct tokenizer *t, struct added_token token, struct error *e)
{
    const size_t n = strlen(token.content);
    if (!n) return PL_OK;
    const int32_t known = id_map_get(&t->vocabulary.ids, token.content, n);
    if (known >= 0 && known != token.id)
        return error_set(e, PL_USAGE, "\"%.100s\" has the id %d, but %d in the vocabulary", token.content, token.id,
                         known);
    if (known < 0 && vocabulary_add(&t->vocabulary, token.content, n, token.id, e)) return e->code;
    token.content = t->vocabulary.piece[token.id];
    token.pattern = token.content;
    if (token.normalized && normalized_content(t, token.content, &token.pattern, e)) return e->code;
    id_map_put(&t->added.contents, token.content, n, (int32_t)t->added.n);
    vec_push(&t->added, token);
    struct trie *trie = token.normalized ? &t->added.normalized : &t->added.raw;
    if (*token.pattern && !trie_add(trie, token.pattern, strlen(token.pattern), (int32_t)t->added.n - 1))
        return error_set(e, PL_USAGE, "\"%.100s\" is searched for twice", token.pattern);
    return PL_OK;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    for (struct work *w = t->pool->idle, *next; w; w = next) {
        next = w->next;
        work_free(w);
    }
    pthread_mutex_destroy(&t->pool->lock);
    mem_free(t->pool);
    vocabulary_free(&t->vocabulary);
    added_free(&t->added);
    normalizer_free(&t->normalizer);
    pretokenizer_free(&t->pretokenizer);
    model_free(&t->model);
    decoder_free(&t->decoder);
    trie_free(&t->user_defined);
    vec_free(&t->post);
    mem_free(t->decoded);
    mem_free(t->special);
    bump_free(&t->memory);
    mem_free(t);
}

/* --- facts ------------------------------------------------------------------------------------ */

uint64_t tokenizer_fingerprint(const struct tokenizer *t) { return t->fingerprint; }
int32_t tokenizer_size(const struct tokenizer *t) { return t->vocabulary.size; }
int32_t tokenizer_id(const struct tokenizer *t, const char *content)
{
    return id_map_get(&t->vocabulary.ids, content, strlen(content));
}
const char *tokenizer_piece(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocabulary.size ? t->vocabulary.piece[id] : NULL;
}
bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocabulary.size && t->special[id];
}

static int32_t role_id(const struct tokenizer *t, enum role role)
{
    return t->roles[role] ? tokenizer_id(t, t->roles[role]) : -1;
}
int32_t tokenizer_bos(const struct tokenizer *t) { return role_id(t, ROLE_BOS); }
int32_t tokenizer_eos(const struct tokenizer *t) { return role_id(t, ROLE_EOS); }
int32_t tokenizer_pad(const struct tokenizer *t) { return role_id(t, ROLE_PAD); }

const char *tokenizer_special(const struct tokenizer *t, const char *role)
{
    for (int i = 0; i < ROLES; i++)
        if (!strcmp(role, role_names[i])) return t->roles[i];
    return NULL;
}

/* --- encoding --------------------------------------------------------------------------------- */

struct encoding {
    const struct tokenizer *t;
    struct work *work;
    struct protected_text data;
    struct token_list *out;
    struct error *e;
};

static void add_token(struct token_list *out, int32_t id, uint32_t begin, uint32_t end)
{
    vec_push(out, ((struct token){id, begin, end}));
}

/* Normalized text without added tokens. */
static int encode_words(const struct encoding *c, struct aligned text)
{
    struct split_work *split = &c->work->split;
    if (pretokenize(&c->t->pretokenizer, split, &text, c->e)) return c->e->code;
    for (uint32_t i = 0; i < split->pieces.n; i++)
        if (model_encode(&c->t->model, &c->work->model, &text, split->pieces.at[i].begin, split->pieces.at[i].end,
                         c->out, c->e))
            return c->e->code;
    return PL_OK;
}

/* Cuts the added tokens out, and gives the text between them to `each`. */
static int cut(const struct encoding *c, const struct trie *trie, struct aligned text,
               int (*each)(const struct encoding *c, struct aligned text))
{
    struct added_walk walk = {.added = &c->t->added,
                              .trie = trie,
                              .text = text,
                              .data = c->data,
                              .ended = !trie->n_nodes};
    const struct added_token *token;
    struct byte_range piece;
    while (added_next(&walk, &token, &piece)) {
        const struct byte_range from = aligned_from(&text, piece.begin, piece.end);
        if (token) add_token(c->out, token->id, from.begin, from.end);
        else if (each(c, aligned_part(&text, piece.begin, piece.end))) return c->e->code;
    }
    return PL_OK;
}

static int encode_plain(const struct encoding *c, struct aligned text)
{
    if (normalize(&c->t->normalizer, &c->work->normal, &text, c->e)) return c->e->code;
    return text.n ? cut(c, &c->t->added.normalized, text, encode_words) : PL_OK;
}

static int encode_all(const struct encoding *c, const char *text, uint32_t n, bool add_special)
{
    const struct aligned whole = {.at = text, .n = n};
    bool before = true;
    for (uint32_t i = 0; i < c->t->post.n; i++) {
        const int32_t id = c->t->post.at[i];
        if (id != POST_TEXT && add_special) add_token(c->out, id, before ? 0 : n, before ? 0 : n);
        if (id != POST_TEXT) continue;
        if (cut(c, &c->t->added.raw, whole, encode_plain)) return c->e->code;
        before = false;
    }
    return c->t->post.n ? PL_OK : cut(c, &c->t->added.raw, whole, encode_plain);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, const struct byte_range *data,
                     uint32_t n_data, bool add_special, struct token_list *out, struct error *e)
{
    if (n > TOKENIZER_TEXT_MOST)
        return error_set(e, PL_USAGE, "a text of %zu bytes is too long to tokenize; at most %zu are accepted", n,
                         TOKENIZER_TEXT_MOST);
    const size_t valid = utf8_check(text, n);
    if (valid < n) return error_set(e, PL_USAGE, "byte %zu of the text is not UTF-8", valid);
    const uint32_t before = out->n;
    const struct encoding c = {.t = t, .work = borrow(t), .data = {data, n_data}, .out = out, .e = e};
    pattern_search_begin(c.work->normal.search, n);
    pattern_search_begin(c.work->split.search, n);
    int rc = encode_all(&c, text, (uint32_t)n, add_special);
    give_back(t, c.work);
    if (rc) out->n = before;
    return rc;
}

void token_list_free(struct token_list *l) { vec_free(l); }

/* --- decoding --------------------------------------------------------------------------------- */

struct token_stream {
    const struct tokenizer *t;
    struct decoding *decoding;
    bool skip_special;
};

static struct token_stream *stream_begin(const struct tokenizer *t, bool skip_special, bool whole)
{
    struct token_stream *s = mem_alloc(sizeof *s);
    *s = (struct token_stream){t, decoding_begin(&t->decoder, whole && !t->sentencepiece), skip_special};
    return s;
}

struct token_stream *token_stream_begin(const struct tokenizer *t, bool skip_special)
{
    return stream_begin(t, skip_special, false);
}

int token_stream_put(struct token_stream *s, int32_t id, struct text *out, struct error *e)
{
    if (!tokenizer_piece(s->t, id))
        return error_set(e, PL_USAGE, "no token has the id %d; the tokenizer has ids below %d", id,
                         s->t->vocabulary.size);
    if (s->skip_special && s->t->special[id]) return PL_OK;
    const char *token = s->t->decoded[id];
    decoding_put(s->decoding, token, strlen(token), out);
    return PL_OK;
}

void token_stream_end(struct token_stream *s, struct text *out)
{
    struct text unused = {0};
    decoding_end(s->decoding, out ? out : &unused);
    text_free(&unused);
    mem_free(s);
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, uint32_t n, bool skip_special, struct text *out,
                     struct error *e)
{
    for (uint32_t i = 0; i < n; i++)
        if (!tokenizer_piece(t, ids[i]))
            return error_set(e, PL_USAGE, "id %u of %u is %d; the tokenizer has ids below %d", i + 1, n, ids[i],
                             t->vocabulary.size);
    struct token_stream *s = stream_begin(t, skip_special, true);
    for (uint32_t i = 0; i < n; i++) token_stream_put(s, ids[i], out, e);
    token_stream_end(s, out);
    return PL_OK;
}
