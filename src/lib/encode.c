/*
 * encode.c: tokenizers for users of the library (the contract is in plimsoll.h).
 */
#include "plimsoll.h"

#include "text/tokenizer/tokenizer.h"

struct pl_tokenizer {
    struct tokenizer *tokenizer; /* NULL: it could not be opened, and `opening` says why */
    struct error opening, error; /* of the last call */
    struct token_list tokens;
    struct text text;
};

/* pl_encode gives them out as they are. */
_Static_assert(sizeof(struct pl_token) == sizeof(struct token) &&
                   offsetof(struct pl_token, end) == offsetof(struct token, end),
               "struct pl_token is struct token");

struct pl_tokenizer *pl_tokenizer_open(const char *path)
{
    struct pl_tokenizer *t = mem_alloc(sizeof *t);
    if (path) tokenizer_open(&t->tokenizer, path, &t->opening);
    else error_set(&t->opening, PL_USAGE, "pl_tokenizer_open: the path is NULL");
    t->error = t->opening;
    return t;
}

void pl_tokenizer_close(struct pl_tokenizer *t)
{
    if (!t) return;
    tokenizer_close(t->tokenizer);
    token_list_free(&t->tokens);
    text_free(&t->text);
    mem_free(t);
}

int pl_tokenizer_code(const struct pl_tokenizer *t) { return t ? t->error.code : PL_USAGE; }
const char *pl_tokenizer_message(const struct pl_tokenizer *t)
{
    return t ? t->error.text : "there is no tokenizer: it is NULL";
}

/* Begins a call; PL_OK if it can go on. */
static int enter(struct pl_tokenizer *t, bool has_all, const char *call)
{
    if (!t) return PL_USAGE;
    t->error = t->opening;
    if (!t->error.code && !has_all) error_set(&t->error, PL_USAGE, "%s: a pointer is NULL", call);
    return t->error.code;
}

int pl_encode(struct pl_tokenizer *t, const char *text, size_t n, int add_special, const struct pl_token **tokens,
              size_t *count)
{
    if (enter(t, (text || !n) && tokens && count, "pl_encode")) return pl_tokenizer_code(t);
    t->tokens.n = 0;
    if (tokenizer_encode(t->tokenizer, n ? text : "", n, NULL, 0, add_special, &t->tokens, &t->error))
        return t->error.code;
    *tokens = (const struct pl_token *)t->tokens.at;
    *count = t->tokens.n;
    return PL_OK;
}

int pl_decode(struct pl_tokenizer *t, const int32_t *ids, size_t count, int skip_special, const char **text, size_t *n)
{
    if (enter(t, (ids || !count) && text && n, "pl_decode")) return pl_tokenizer_code(t);
    if (count > UINT32_MAX / 2) return error_set(&t->error, PL_USAGE, "pl_decode: %zu ids are too many", count);
    t->text.n = 0;
    if (tokenizer_decode(t->tokenizer, ids, (uint32_t)count, skip_special, &t->text, &t->error)) return t->error.code;
    text_append(&t->text, "", 0);
    *text = t->text.at;
    *n = t->text.n;
    return PL_OK;
}

int32_t pl_token_count(const struct pl_tokenizer *t) { return t && t->tokenizer ? tokenizer_size(t->tokenizer) : 0; }
int32_t pl_token_id(const struct pl_tokenizer *t, const char *content)
{
    return t && t->tokenizer && content ? tokenizer_id(t->tokenizer, content) : -1;
}
const char *pl_token_content(const struct pl_tokenizer *t, int32_t id)
{
    return t && t->tokenizer ? tokenizer_piece(t->tokenizer, id) : NULL;
}
