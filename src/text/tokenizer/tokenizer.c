/*
 * tokenizer.c: opens a tokenizer, encodes and decodes (see tokenizer.h).
 */
#include "io/file.h"
#include "io/json.h"
#include "text/tokenizer/tokenizer_parts.h"

/* ---- encoding and decoding ---- */

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

/* Makes the memory for calls of tokenizer_encode, which tokenizer_close frees. */
static struct work_pool *work_pool_new(void)
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

/* --- closing --------------------------------------------------------------------------------- */

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
    subword_free(&t->model);
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

/* Encodes normalized text without added tokens. */
static int encode_words(const struct encoding *c, struct aligned text)
{
    struct split_work *split = &c->work->split;
    if (pretokenize(&c->t->pretokenizer, split, &text, c->e)) return c->e->code;
    for (uint32_t i = 0; i < split->pieces.n; i++)
        if (subword_encode(&c->t->model, &c->work->model, &text, split->pieces.at[i].begin, split->pieces.at[i].end,
                         c->out, c->e))
            return c->e->code;
    return PL_OK;
}

/* Cuts the added tokens out, and gives the text between them to `each`. */
static int cut(const struct encoding *c, const struct trie *trie, struct aligned text,
               int (*each)(const struct encoding *c, struct aligned text))
{
    struct added_walk walk = {.added = &c->t->added, .trie = trie, .text = text, .data = c->data,
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

/* ---- tokenizer_config.json, special_tokens_map.json and added_tokens.json ---- */

/* A tokenizer.json has its own added tokens and post-processor; only the roles are read for it. A
 * tokenizer.model has neither: the other files say what transformers adds to it. */

enum { CONFIG_MOST = 64 << 20 };

const char *const role_names[ROLES] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

/* Reads a file of the folder; *out is NULL when there is none. */
static int read_file(const char *folder, const char *name, struct bump *tree, struct value **out, struct error *e)
{
    const char *path = bump_format(tree, "%s/%s", folder, name);
    *out = NULL;
    if (!file_exists(path)) return PL_OK;
    if (json_read_file(path, CONFIG_MOST, tree, out, e)) return e->code;
    return value_as_map(*out, "the document", e) ? error_prepend(e, "%s", path) : PL_OK;
}

/* Returns the content of a token, which is a string or {"content": ...}; NULL: neither. */
static const char *content_of(const struct value *v)
{
    if (v && v->kind == VALUE_MAP) v = value_get(v, "content");
    return v && v->kind == VALUE_STRING ? v->text : NULL;
}

static void read_roles(struct tokenizer *t, const struct value *config, const struct value *map)
{
    for (int i = 0; i < ROLES; i++) {
        const char *content = content_of(value_get(config, role_names[i]));
        if (!content) content = content_of(value_get(map, role_names[i]));
        if (content && *content) t->roles[i] = bump_string(&t->memory, content);
    }
}

/* --- for a tokenizer.model -------------------------------------------------------------------- */

static bool is_added(const struct tokenizer *t, const char *content)
{
    return id_map_get(&t->added.contents, content, strlen(content)) >= 0;
}

/* Reads "added_tokens_decoder": {"32000": {"content": "<image>", ...}}. */
static int read_decoder(struct tokenizer *t, const struct value *tokens, struct error *e)
{
    for (uint32_t i = 0; tokens && i < tokens->count; i++) {
        const struct value *v = tokens->items[i];
        struct added_token a = {.content = content_of(v)};
        char *end;
        const long id = strtol(v->key, &end, 10);
        if (*end || !a.content || id < 0 || id >= VOCABULARY_MOST)
            return error_set(e, PL_USAGE, "added_tokens_decoder: \"%.60s\" is no id of a token with a content", v->key);
        a.id = (int32_t)id;
        if (value_opt_bool(v, "special", &a.special, e) || value_opt_bool(v, "lstrip", &a.lstrip, e) ||
            value_opt_bool(v, "rstrip", &a.rstrip, e) || value_opt_bool(v, "single_word", &a.single_word, e))
            return error_prepend(e, "added_tokens_decoder[%s]", v->key);
        if (!is_added(t, a.content) && tokenizer_add(t, a, e))
            return error_prepend(e, "added_tokens_decoder[%s]", v->key);
    }
    return PL_OK;
}

/* Reads added tokens as {"<image>": 32000}. */
static int read_added_json(struct tokenizer *t, const struct value *tokens, struct error *e)
{
    for (uint32_t i = 0; tokens && i < tokens->count; i++) {
        const struct value *v = tokens->items[i];
        int64_t id;
        if (value_as_int(v, v->key, &id, e)) return e->code;
        if (id < 0 || id >= VOCABULARY_MOST)
            return error_set(e, PL_USAGE, "\"%.60s\" has the id %lld; expected 0 to %d", v->key, (long long)id,
                             VOCABULARY_MOST - 1);
        if (!is_added(t, v->key) && tokenizer_add(t, (struct added_token){.id = (int32_t)id, .content = v->key}, e))
            return e->code;
    }
    return PL_OK;
}

/* Adds the tokens with a role: such a token is special, and is found in the text. */
static int add_roles(struct tokenizer *t, struct error *e)
{
    for (int i = 0; i < ROLES; i++) {
        const int32_t id = t->roles[i] ? tokenizer_id(t, t->roles[i]) : -1;
        if (id >= 0 && !is_added(t, t->roles[i]) &&
            tokenizer_add(t, (struct added_token){.id = id, .content = t->roles[i], .special = true}, e))
            return e->code;
    }
    return PL_OK;
}

/* Reads which special tokens are added; add_bos_token is true by default in transformers' classes
 * for Llama. */
static int read_bos_eos(struct tokenizer *t, const struct value *config, struct error *e)
{
    const char *class = NULL;
    bool bos, eos = false, legacy = true;
    if (value_opt_string(config, "tokenizer_class", &class, e)) return e->code;
    bos = class && strstr(class, "Llama");
    if (value_opt_bool(config, "add_bos_token", &bos, e) || value_opt_bool(config, "add_eos_token", &eos, e) ||
        value_opt_bool(config, "legacy", &legacy, e))
        return e->code;
    if (bos && tokenizer_bos(t) >= 0) vec_push(&t->post, tokenizer_bos(t));
    vec_push(&t->post, POST_TEXT);
    if (eos && tokenizer_eos(t) >= 0) vec_push(&t->post, tokenizer_eos(t));
    t->normalizer.steps.at[0].first_only = !legacy;
    return PL_OK;
}

static int read_sentencepiece(struct tokenizer *t, const char *folder, const struct value *config, struct bump *tree,
                              struct error *e)
{
    struct value *added;
    if (read_file(folder, "added_tokens.json", tree, &added, e)) return e->code;
    if (read_decoder(t, value_get(config, "added_tokens_decoder"), e))
        return error_prepend(e, "%s/tokenizer_config.json", folder);
    if (read_added_json(t, added, e)) return error_prepend(e, "%s/added_tokens.json", folder);
    if (add_roles(t, e)) return error_prepend(e, "%s", folder);
    if (config && read_bos_eos(t, config, e)) return error_prepend(e, "%s/tokenizer_config.json", folder);
    return PL_OK;
}

/* Reads the roles of a folder's tokens. For a tokenizer.model also the added tokens, and whether
 * BOS and EOS are added. */
static int tokenizer_read_special(struct tokenizer *t, const char *folder, struct error *e)
{
    struct bump tree = {0};
    struct value *config, *map;
    int rc = read_file(folder, "tokenizer_config.json", &tree, &config, e);
    if (!rc) rc = read_file(folder, "special_tokens_map.json", &tree, &map, e);
    if (!rc) {
        read_roles(t, config, map);
        if (t->sentencepiece && (config || map)) rc = read_sentencepiece(t, folder, config, &tree, e);
    }
    bump_free(&tree);
    return rc;
}

/* ---- opening ---- */

/* Fills the tables by id, when all tokens are known. */
static void finish(struct tokenizer *t, size_t had)
{
    const size_t n = (size_t)t->vocabulary.size;
    t->decoded = mem_resize(t->decoded, (n + 1) * sizeof *t->decoded);
    t->special = mem_alloc((n + 1) * sizeof *t->special);
    for (size_t i = had; i < n; i++) t->decoded[i] = t->vocabulary.piece[i];
    for (uint32_t i = 0; i < t->added.n; i++) {
        const struct added_token *a = &t->added.at[i];
        t->decoded[a->id] = a->pattern;
        t->special[a->id] = a->special;
        const uint8_t flags[] = {a->special, a->normalized, a->lstrip, a->rstrip, a->single_word};
        t->fingerprint = hash_bytes(a->content, strlen(a->content), t->fingerprint + (uint64_t)(uint32_t)a->id);
        t->fingerprint = hash_bytes(flags, sizeof flags, t->fingerprint);
    }
    t->fingerprint = hash_bytes(t->post.at, t->post.n * sizeof *t->post.at, t->fingerprint);
    for (uint32_t i = 0; i < t->normalizer.steps.n; i++) t->fingerprint += t->normalizer.steps.at[i].first_only;
}

/* Recognizes Mistral's tekken.json, which lists {"rank", "token_bytes", "token_str"}. */
static bool is_tekken(const char *bytes, size_t n)
{
    static const char key[] = "\"token_bytes\"";
    return memmem(bytes, n < 1 << 16 ? n : 1 << 16, key, sizeof key - 1);
}

/* Opens a tokenizer's file. `folder`: where the neighbours of the file are read; NULL: nowhere. */
static int open_file(struct tokenizer *t, const char *path, const char *folder, struct error *e)
{
    char *bytes, first = 0;
    size_t n;
    file_peek(path, &first, 1);
    const bool json = path_has_ending(path, ".json") || first == '{' || first == '\xef';
    if (file_read(path, json ? TOKENIZER_JSON_MOST : TOKENIZER_MODEL_MOST, &bytes, &n, e)) return e->code;
    int rc = json && is_tekken(bytes, n)
                 ? error_set(e, PL_USAGE,
                             "it is a tokenizer of Mistral's tekken format, which is not read; transformers' "
                             "AutoTokenizer reads its folder, and save_pretrained writes tokenizer.json")
             : json ? tokenizer_read_json(t, bytes, n, e)
                    : tokenizer_read_sentencepiece(t, bytes, n, e);
    t->fingerprint = hash_bytes(bytes, n, 0);
    mem_free(bytes);
    if (rc) return error_prepend(e, "%s", path);
    const size_t had = t->decoded ? (size_t)t->vocabulary.size : 0;
    if (folder && tokenizer_read_special(t, folder, e)) return e->code;
    finish(t, had);
    return PL_OK;
}

static int open_folder(struct tokenizer *t, const char *folder, struct error *e)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const char *path = bump_format(&t->memory, "%s/%s", folder, names[i]);
        if (file_exists(path)) return open_file(t, path, folder, e);
    }
    return error_set(e, PL_USAGE,
                     "%s: has neither tokenizer.json nor tokenizer.model; transformers' AutoTokenizer writes "
                     "tokenizer.json with save_pretrained",
                     folder);
}

int tokenizer_open(struct tokenizer **out, const char *path, struct error *e)
{
    struct tokenizer *t = mem_alloc(sizeof *t);
    t->pool = work_pool_new();
    t->model.bpe.unk = -1;
    int rc = dir_exists(path) ? open_folder(t, path, e) : open_file(t, path, NULL, e);
    if (rc) tokenizer_close(t);
    else *out = t;
    return rc;
}
