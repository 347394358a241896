/*
 * tokenizer_json.c: reads tokenizer.json, and adds tokens to a vocabulary (see tokenizer_parts.h).
 *
 * "truncation" and "padding" are left alone: they change no token, only how many are kept.
 */
#include <math.h>

#include "io/json.h"
#include "text/tokenizer/tokenizer_parts.h"

/* --- added tokens ---------------------------------------------------------------------------- */

/* Sets what is searched for in the normalized text, and what the decoder sees. */
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

/* --- BPE -------------------------------------------------------------------------------------- */

static int read_vocabulary(struct tokenizer *t, const struct value *v, struct error *e)
{
    if (value_as_map(v, "model.vocab", e)) return e->code;
    for (uint32_t i = 0; i < v->count; i++) {
        int64_t id;
        const struct value *item = v->items[i];
        if (value_as_int(item, item->key, &id, e) ||
            vocabulary_add(&t->vocabulary, item->key, strlen(item->key), id, e))
            return error_prepend(e, "model.vocab");
    }
    return PL_OK;
}

/* Adds the tokens as the model sees them: with `raw`, as the bytes that they mean. */
static void index_tokens(struct tokenizer *t, struct bpe *m)
{
    const struct vocabulary *v = &t->vocabulary;
    for (int32_t id = 0; id < v->size; id++) {
        if (!v->piece[id]) continue;
        const char *key = v->piece[id];
        int64_t n = v->length[id];
        if (m->raw) {
            char *bytes = bump_alloc(&t->memory, (size_t)n);
            n = characters_to_bytes(key, (size_t)n, bytes);
            key = bytes;
        }
        if (n >= 0) id_map_put(&m->ids, key, (size_t)n, id);
    }
    for (int b = 0; b < 256; b++) m->ascii[b] = m->raw || b < 128 ? id_map_get(&m->ids, &(char){(char)b}, 1) : -1;
    m->n_tokens = v->size;
}

/* Reads the two sides of a merge, "a b" or ["a", "b"]. */
static int merge_sides(const struct value *item, const char **left, size_t *n, const char **right, struct error *e)
{
    if (item->kind == VALUE_LIST && item->count == 2) {
        if (value_as_string(item->items[0], "its first part", left, e) ||
            value_as_string(item->items[1], "its second part", right, e))
            return e->code;
        *n = strlen(*left);
        return PL_OK;
    }
    const char *blank = item->kind == VALUE_STRING ? strchr(item->text, ' ') : NULL;
    if (!blank || strchr(blank + 1, ' '))
        return error_set(e, PL_USAGE, "expected \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
    *left = item->text, *n = (size_t)(blank - item->text), *right = blank + 1;
    return PL_OK;
}

static int read_merge(struct tokenizer *t, const struct value *item, uint32_t rank, struct text *joined,
                      struct error *e)
{
    struct bpe *m = &t->model.bpe;
    const struct id_map *ids = &t->vocabulary.ids;
    const char *left, *right;
    size_t n = 0, skip = m->prefix ? strlen(m->prefix) : 0;
    if (merge_sides(item, &left, &n, &right, e)) return e->code;
    const int32_t a = id_map_get(ids, left, n), b = id_map_get(ids, right, strlen(right));
    if (a < 0 || b < 0)
        return error_set(e, PL_USAGE, "\"%.*s\" is not in the vocabulary", a < 0 ? (int)min_u64(n, 100) : 100,
                         a < 0 ? left : right);
    if (strlen(right) < skip)
        return error_set(e, PL_USAGE, "\"%.100s\" is shorter than continuing_subword_prefix", right);
    joined->n = 0;
    text_append(joined, left, n);
    text_append(joined, right + skip, strlen(right + skip));
    const int32_t id = id_map_get(ids, joined->at, joined->n);
    if (id < 0) return error_set(e, PL_USAGE, "it makes \"%.100s\", which is not in the vocabulary", joined->at);
    merges_put(&m->merges, a, b, rank, id);
    return PL_OK;
}

static int read_merges(struct tokenizer *t, const struct value *list, struct error *e)
{
    if (value_as_list(list, "model.merges", e)) return e->code;
    struct text joined = {0};
    int rc = PL_OK;
    uint32_t rank = 0;
    for (uint32_t i = 0; i < list->count && !rc; i++) {
        const struct value *item = list->items[i];
        if (item->kind == VALUE_STRING && !strncmp(item->text, "#version", 8)) continue;
        if (read_merge(t, item, rank++, &joined, e)) rc = error_prepend(e, "model.merges: the merge at index %u", i);
    }
    text_free(&joined);
    return rc;
}

static bool is_ascii(const char *s)
{
    while (s && *s > ' ' && *s < 127) s++;
    return !s || !*s;
}

static int read_affix(struct tokenizer *t, const struct value *v, const char *key, const char **out, struct error *e)
{
    const char *text = NULL;
    if (value_opt_string(v, key, &text, e)) return error_prepend(e, "model");
    if (text && strlen(text) > AFFIX_MOST)
        return error_set(e, PL_USAGE, "model.%s has more than %d bytes", key, AFFIX_MOST);
    if (text && *text) *out = bump_string(&t->memory, text);
    return PL_OK;
}

static int read_bpe(struct tokenizer *t, const struct value *v, struct error *e)
{
    struct bpe *m = &t->model.bpe;
    const char *unk = NULL;
    double dropout = 0;
    if (value_opt_string(v, "unk_token", &unk, e) || value_opt_bool(v, "fuse_unk", &m->fuse_unk, e) ||
        value_opt_bool(v, "byte_fallback", &m->byte_fallback, e) ||
        value_opt_bool(v, "ignore_merges", &m->ignore_merges, e) || value_opt_number(v, "dropout", &dropout, e))
        return error_prepend(e, "model");
    if (dropout != 0)
        return error_set(e, PL_USAGE, "model.dropout is %g: it would leave out merges at random; set it to null",
                         dropout);
    if (read_affix(t, v, "continuing_subword_prefix", &m->prefix, e) ||
        read_affix(t, v, "end_of_word_suffix", &m->suffix, e))
        return e->code;
    if (read_vocabulary(t, value_get(v, "vocab"), e) || read_merges(t, value_get(v, "merges"), e)) return e->code;
    m->raw =
        pretokenizer_is_byte_level(&t->pretokenizer) && !m->byte_fallback && is_ascii(m->prefix) && is_ascii(m->suffix);
    t->pretokenizer.raw = m->raw;
    m->unk = unk ? id_map_get(&t->vocabulary.ids, unk, strlen(unk)) : -1;
    const bool all = find_fallback(&t->vocabulary.ids, m->fallback);
    index_tokens(t, m);
    /* Where unknown characters vanish, their neighbours join. */
    if (m->unk >= 0 || (m->byte_fallback && all)) bpe_find_seams(m, &t->vocabulary, "\xe2\x96\x81");
    return PL_OK;
}

/* --- Unigram ---------------------------------------------------------------------------------- */

static int read_piece(struct tokenizer *t, const struct value *pair, uint32_t i, double *score, struct error *e)
{
    const char *piece;
    if (pair->kind != VALUE_LIST || pair->count != 2) return error_set(e, PL_USAGE, "expected [PIECE, SCORE]");
    if (value_as_string(pair->items[0], "the piece", &piece, e) ||
        value_as_number(pair->items[1], "the score", score, e))
        return e->code;
    if (!isfinite(*score)) return error_set(e, PL_USAGE, "the score is not finite");
    if (vocabulary_add(&t->vocabulary, piece, strlen(piece), i, e)) return e->code;
    if (*piece) trie_add(&t->model.unigram.trie, piece, strlen(piece), (int32_t)i);
    return PL_OK;
}

static int read_unigram(struct tokenizer *t, const struct value *v, struct error *e)
{
    struct unigram *m = &t->model.unigram;
    const struct value *list = value_get(v, "vocab");
    int64_t unk = -1;
    if (value_opt_int(v, "unk_id", &unk, e) || value_opt_bool(v, "byte_fallback", &m->byte_fallback, e))
        return error_prepend(e, "model");
    if (value_as_list(list, "model.vocab", e)) return e->code;
    if (unk < -1 || unk >= list->count)
        return error_set(e, PL_USAGE, "model.unk_id is %lld; the vocabulary has %u pieces", (long long)unk,
                         list->count);
    m->scores = mem_alloc((list->count + 1) * sizeof *m->scores);
    m->n = (int32_t)list->count, m->unk = (int32_t)unk;
    double least = INFINITY;
    for (uint32_t i = 0; i < list->count; i++) {
        if (read_piece(t, list->items[i], i, &m->scores[i], e))
            return error_prepend(e, "model.vocab: the piece at index %u", i);
        least = fmin(least, m->scores[i]);
    }
    m->unk_score = least - 10;
    find_fallback(&t->vocabulary.ids, m->fallback);
    return PL_OK;
}

/* --- WordPiece -------------------------------------------------------------------------------- */

static int read_wordpiece(struct tokenizer *t, const struct value *v, struct error *e)
{
    struct wordpiece *m = &t->model.wordpiece;
    const char *unk = "[UNK]", *prefix = "##";
    *m = (struct wordpiece){.vocabulary = &t->vocabulary, .most = 100};
    if (value_opt_string(v, "unk_token", &unk, e) || value_opt_string(v, "continuing_subword_prefix", &prefix, e) ||
        value_opt_uint(v, "max_input_chars_per_word", &m->most, e))
        return error_prepend(e, "model");
    if (strlen(prefix) > AFFIX_MOST || m->most > WORDPIECE_MOST)
        return error_set(e, PL_USAGE, "model.%s is larger than %d",
                         m->most > WORDPIECE_MOST ? "max_input_chars_per_word" : "continuing_subword_prefix",
                         m->most > WORDPIECE_MOST ? WORDPIECE_MOST : AFFIX_MOST);
    if (read_vocabulary(t, value_get(v, "vocab"), e)) return e->code;
    m->prefix = bump_string(&t->memory, prefix);
    m->unk = id_map_get(&t->vocabulary.ids, unk, strlen(unk));
    return PL_OK;
}

static int read_model(struct tokenizer *t, const struct value *v, struct error *e)
{
    const char *type = NULL;
    if (value_as_map(v, "model", e) || value_opt_string(v, "type", &type, e)) return e->code;
    if (!type) type = value_get(v, "merges") ? "BPE" : value_get(v, "max_input_chars_per_word") ? "WordPiece" : "";
    if (!strcmp(type, "BPE")) return t->model.kind = MODEL_BPE, read_bpe(t, v, e);
    if (!strcmp(type, "Unigram")) return t->model.kind = MODEL_UNIGRAM, read_unigram(t, v, e);
    if (!strcmp(type, "WordPiece")) return t->model.kind = MODEL_WORDPIECE, read_wordpiece(t, v, e);
    return error_set(e, PL_USAGE, "the model \"%.60s\" is not known; known are BPE, Unigram and WordPiece", type);
}

/* --- added tokens, post-processor ------------------------------------------------------------- */

static int read_added(struct tokenizer *t, const struct value *list, struct error *e)
{
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    if (value_as_list(list, "added_tokens", e)) return e->code;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct value *v = list->items[i];
        struct added_token a = {0};
        int64_t id;
        if (value_as_map(v, "the token", e) || value_as_int(value_get(v, "id"), "id", &id, e) ||
            value_as_string(value_get(v, "content"), "content", &a.content, e) ||
            value_opt_bool(v, "special", &a.special, e) || value_opt_bool(v, "lstrip", &a.lstrip, e) ||
            value_opt_bool(v, "rstrip", &a.rstrip, e) || value_opt_bool(v, "single_word", &a.single_word, e))
            return error_prepend(e, "added_tokens[%u]", i);
        a.normalized = !a.special;
        if (id < 0 || id >= VOCABULARY_MOST)
            return error_set(e, PL_USAGE, "added_tokens[%u]: the id is %lld; expected 0 to %d", i, (long long)id,
                             VOCABULARY_MOST - 1);
        a.id = (int32_t)id;
        if (value_opt_bool(v, "normalized", &a.normalized, e) || tokenizer_add(t, a, e))
            return error_prepend(e, "added_tokens[%u]", i);
    }
    return PL_OK;
}

static int add_post(struct tokenizer *t, int64_t id, struct error *e)
{
    if (id < 0 || id >= t->vocabulary.size || !t->vocabulary.piece[id])
        return error_set(e, PL_USAGE, "post_processor: no token has the id %lld", (long long)id);
    if (t->post.n == POST_MOST)
        return error_set(e, PL_USAGE, "post_processor: it adds more than %d tokens to a text", POST_MOST);
    vec_push(&t->post, (int32_t)id);
    return PL_OK;
}

/* Reads {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
 * "special_tokens": {"<s>": {"ids": [1]}}}. */
static int read_template(struct tokenizer *t, const struct value *v, struct error *e)
{
    const struct value *single = value_get(v, "single"), *tokens = value_get(v, "special_tokens");
    uint32_t text = 0;
    if (value_as_list(single, "post_processor.single", e)) return e->code;
    for (uint32_t i = 0; i < single->count; i++) {
        const char *name;
        const struct value *sequence = value_get(single->items[i], "Sequence"),
                           *special = value_get(single->items[i], "SpecialToken");
        if (!sequence == !special)
            return error_set(e, PL_USAGE, "post_processor.single[%u]: expected a Sequence or a SpecialToken", i);
        if (value_as_string(value_get(sequence ? sequence : special, "id"), "post_processor.single.id", &name, e))
            return e->code;
        if (sequence && strcmp(name, "A"))
            return error_set(e, PL_USAGE, "post_processor.single[%u]: the sequence is \"%.60s\"; expected \"A\"", i,
                             name);
        if (sequence && text++)
            return error_set(
                e, PL_USAGE,
                "post_processor.single[%u]: the sequence \"A\" stands there a second time; expected it once", i);
        if (sequence) {
            vec_push(&t->post, POST_TEXT);
            continue;
        }
        const struct value *ids = value_get(value_get(tokens, name), "ids");
        if (value_as_list(ids, name, e)) return error_prepend(e, "post_processor.special_tokens");
        for (uint32_t k = 0; k < ids->count; k++) {
            int64_t id;
            if (value_as_int(ids->items[k], name, &id, e) || add_post(t, id, e)) return e->code;
        }
    }
    return PL_OK;
}

/* Reads {"cls": ["<s>", 0], "sep": ["</s>", 2]}. */
static int read_cls_sep(struct tokenizer *t, const struct value *v, struct error *e)
{
    int64_t cls, sep;
    if (value_as_int(value_at(value_get(v, "cls"), 1), "post_processor.cls[1]", &cls, e) ||
        value_as_int(value_at(value_get(v, "sep"), 1), "post_processor.sep[1]", &sep, e))
        return e->code;
    if (add_post(t, cls, e)) return e->code;
    vec_push(&t->post, POST_TEXT);
    return add_post(t, sep, e);
}

static int read_post(struct tokenizer *t, const struct value *v, struct error *e)
{
    const char *type;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (value_as_map(v, "post_processor", e) || value_as_string(value_get(v, "type"), "post_processor.type", &type, e))
        return e->code;
    if (!strcmp(type, "ByteLevel")) return PL_OK; /* changes offsets only */
    if (!strcmp(type, "Sequence")) {
        const struct value *list = value_get(v, "processors");
        if (value_as_list(list, "post_processor.processors", e)) return e->code;
        for (uint32_t i = 0; i < list->count; i++)
            if (read_post(t, list->items[i], e)) return e->code;
        return PL_OK;
    }
    const bool template = !strcmp(type, "TemplateProcessing");
    if (!template && strcmp(type, "BertProcessing") && strcmp(type, "RobertaProcessing"))
        return error_set(e, PL_USAGE,
                         "the post-processor \"%.60s\" is not known; known are Sequence, TemplateProcessing, "
                         "ByteLevel, BertProcessing and RobertaProcessing",
                         type);
    if (t->post.n) return error_set(e, PL_USAGE, "post_processor: more than one part adds tokens");
    return template ? read_template(t, v, e) : read_cls_sep(t, v, e);
}

static int read_parts(struct tokenizer *t, const struct value *v, struct error *e)
{
    if (value_as_map(v, "the document", e)) return e->code;
    if (normalizer_read(&t->normalizer, value_get(v, "normalizer"), &t->memory, e) ||
        pretokenizer_read(&t->pretokenizer, value_get(v, "pre_tokenizer"), &t->memory, e) ||
        decoder_read(&t->decoder, value_get(v, "decoder"), &t->memory, e) || read_model(t, value_get(v, "model"), e) ||
        read_added(t, value_get(v, "added_tokens"), e))
        return e->code;
    return read_post(t, value_get(v, "post_processor"), e);
}

int tokenizer_read_json(struct tokenizer *t, const char *bytes, size_t n, struct error *e)
{
    struct bump tree = {0};
    struct value *v = NULL;
    int rc = json_parse(bytes, n, &tree, &v, e);
    if (!rc) rc = read_parts(t, v, e);
    bump_free(&tree);
    return rc;
}
