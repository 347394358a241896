/*
 * tokenizer_open.c: opens a tokenizer: a model folder, a tokenizer.json or a tokenizer.model.
 */
#include <string.h>

#include "io/file.h"
#include "text/tokenizer/tokenizer_parts.h"

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

/* Mistral's tekken.json lists {"rank", "token_bytes", "token_str"}. */
static bool is_tekken(const char *bytes, size_t n)
{
    static const char key[] = "\"token_bytes\"";
    return memmem(bytes, n < 1 << 16 ? n : 1 << 16, key, sizeof key - 1);
}

/* `folder`: where the neighbours of the file are read; NULL: nowhere. */
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
