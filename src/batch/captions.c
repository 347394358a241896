/*
 * captions.c: see captions.h.
 */
#include "batch/captions.h"

#include <inttypes.h>

int captions_open(struct captions *x, const struct config *c, const struct model *m, int64_t T, struct error *e)
{
    *x = (struct captions){.model = m, .T = T};
    int rc = tokenizer_open(&x->tokenizer, c->data_tokenizer ? c->data_tokenizer : m->head->folder, e);
    if (rc) return c->data_tokenizer ? error_prepend(e, "data.tokenizer") : rc;
    const int32_t pad = tokenizer_pad(x->tokenizer);
    x->padding = pad >= 0 && pad < m->vocabulary ? pad : 0;
    return PL_OK;
}

void captions_close(struct captions *x)
{
    tokenizer_close(x->tokenizer);
    *x = (struct captions){0};
}

static int check(const struct captions *x, const int32_t *ids, int64_t n, struct error *e)
{
    const struct model *m = x->model;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= m->vocabulary)
            return error_set(e, PL_USAGE,
                             "its token %" PRId64 " has the id %d, but the model's vocabulary has %" PRId64
                             " ids: the tokenizer is another model's",
                             i, ids[i], m->vocabulary);
    if (n && (m->head->siglip || head_text_end(m->head, ids, n) >= 0)) return PL_OK;
    return error_set(e, PL_USAGE,
                     "its text has no end token (eos_token_id %" PRId64
                     " of text_config), which it is pooled at: is the tokenizer (data.tokenizer) the model's?",
                     text_tower_sizes(m->head->text).end);
}

int captions_encode(struct captions *x, const char *text, int32_t *row, int64_t *n, struct error *e)
{
    struct token_list l = {0};
    const struct byte_range data = {0, (uint32_t)strlen(text)};
    int rc = tokenizer_encode(x->tokenizer, text, data.end, &data, 1, true, &l, e);
    *n = min_i64(l.n, x->T);
    for (int64_t i = 0; i < x->T; i++) row[i] = i < *n ? l.at[i].id : x->padding;
    if (!rc && l.n > x->T) {
        x->cut++;
        if (tokenizer_is_special(x->tokenizer, l.at[l.n - 1].id)) row[x->T - 1] = l.at[l.n - 1].id;
    }
    token_list_free(&l);
    return rc ? rc : check(x, row, *n, e);
}
