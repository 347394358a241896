/*
 * eval_tokens.c: `plimsoll eval` of a language model on a file: loss and perplexity.
 *
 * The file holds tokens (data.format tokens or bytes), or text, which the model's tokenizer makes
 * tokens of. It is read in rows of data.sequence tokens that do not overlap; what is left at its
 * end is not used. A run on data.format: text evaluates the rows that it held out.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/eval.h"
#include "data/text/tokens.h"
#include "io/file.h"
#include "io/json.h"
#include "io/temporary.h"
#include "text/tokenizer/tokenizer.h"

enum { TEXT_MOST = 1 << 30 };

bool eval_is_text(const char *path) { return is_plain_text(path); }
bool eval_is_tokens(const char *path)
{
    return path_has_ending(path, ".bin") || path_has_ending(path, ".tokens") || path_has_ending(path, ".npy") ||
           path_has_ending(path, ".safetensors");
}

/* Writes the tokens of a text as a file of int32. */
static int tokenize_file(const char *path, const char *model, const char *to, uint64_t *n, struct error *e)
{
    struct tokenizer *t;
    struct token_list ids = {0};
    char *bytes;
    size_t size;
    int rc = tokenizer_open(&t, model, e);
    if (rc) return rc;
    rc = file_read(path, TEXT_MOST, &bytes, &size, e);
    if (!rc) {
        rc = tokenizer_encode(t, bytes, size, NULL, 0, true, &ids, e);
        mem_free(bytes);
        if (rc) error_prepend(e, "%s", path);
    }
    int32_t *values = mem_alloc((ids.n + 1) * sizeof *values);
    for (uint32_t i = 0; i < ids.n; i++) values[i] = ids.at[i].id;
    if (!rc) rc = file_write_atomic(to, values, ids.n * sizeof *values, e);
    mem_free(values);
    *n = ids.n;
    vec_free(&ids);
    tokenizer_close(t);
    return rc;
}

/* Replaces texts in data.validation by their tokens, in files of the folder. */
static int tokenize_texts(struct config *c, const char *folder, struct bump *memory, struct error *e)
{
    struct config_list *files = &c->data_validation;
    char **paths = bump_alloc(memory, files->n * sizeof *paths);
    uint64_t shortest = UINT64_MAX;
    for (uint32_t i = 0; i < files->n; i++) {
        uint64_t n;
        paths[i] = bump_format(memory, "%s/%u.bin", folder, i);
        if (!eval_is_text(files->at[i]))
            return error_set(e, PL_USAGE, "%s and %s are given: expected files of the same kind, texts or tokens",
                             files->at[0], files->at[i]);
        if (!c->model_path)
            return error_set(e, PL_USAGE, "a preset has no tokenizer: give a model folder, or a file of tokens");
        if (tokenize_file(files->at[i], c->data_tokenizer ? c->data_tokenizer : c->model_path, paths[i], &n, e))
            return e->code;
        if (n < 2)
            return error_set(e, PL_USAGE, "%s has %llu tokens, expected at least 2", files->at[i],
                             (unsigned long long)n);
        shortest = min_u64(shortest, n);
    }
    *files = (struct config_list){paths, files->n};
    c->data_token_dtype = TOKENS_I32;
    if (shortest < (uint64_t)c->data_sequence) c->data_sequence = (int64_t)shortest;
    return PL_OK;
}

static void report(const struct config *c, const char *model, const struct eval_loss *x, bool json)
{
    struct text out = {0};
    char arena[32];
    const uint64_t tokens = (uint64_t)x->tokens;
    if (json) {
        struct json_writer w = {.out = &out, .indent = 2};
        json_begin_map(&w, NULL);
        json_put_string(&w, "model", model);
        json_put_number(&w, "loss", x->loss);
        json_put_number(&w, "perplexity", exp(x->loss));
        json_put_uint(&w, "rows", x->samples);
        json_put_int(&w, "sequence", c->data_sequence);
        json_put_uint(&w, "predicted_tokens", tokens);
        json_put_uint(&w, "arena_bytes", x->arena);
        json_end(&w);
        text_printf(&out, "\n");
    } else {
        text_printf(&out,
                    "loss %.6g, perplexity %.6g over %llu tokens, in %llu rows of %lld (data.sequence), arena %s\n",
                    x->loss, exp(x->loss), (unsigned long long)tokens, (unsigned long long)x->samples,
                    (long long)c->data_sequence, size_print(x->arena, arena));
    }
    fputs(out.at, stdout);
    text_free(&out);
}

int eval_tokens(struct config *c, const char *model, bool json, struct error *e)
{
    struct bump memory = {0};
    struct eval_loss x;
    struct temporary t;
    if (temporary_work(&t, e)) return e->code;
    const struct config_list given = c->data_validation;
    int rc = c->data_format != FORMAT_TEXT && given.n && eval_is_text(given.at[0])
                 ? tokenize_texts(c, t.path, &memory, e)
                 : PL_OK;
    if (!rc) rc = eval_loss(c, t.path, &x, e);
    if (!rc) report(c, model, &x, json);
    c->data_validation = given;
    temporary_drop(&t);
    bump_free(&memory);
    return rc;
}
