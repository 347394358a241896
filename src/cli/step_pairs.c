/*
 * step_pairs.c: the texts of `plimsoll step` for a model that matches the images of a batch with
 * its texts (models/heads.h): where CLIP pools each of them.
 */
#include "cli/step.h"
#include "models/heads.h"

bool step_pairs(const struct model *m) { return m->head && m->head->kind == HEAD_CONTRASTIVE; }

static int put_end(struct step *s, int64_t r, const struct st_entry *t, char *raw, int32_t *ids, struct error *e)
{
    const uint64_t bytes = (uint64_t)s->T * dtype_size(t->dtype);
    int rc = st_read(&s->in, t, (uint64_t)r * bytes, bytes, raw, e);
    if (rc) return rc;
    for (int64_t i = 0; i < s->T; i++)
        ids[i] = t->dtype == DT_I64 ? (int32_t)((const int64_t *)(const void *)raw)[i]
                                    : ((const int32_t *)(const void *)raw)[i];
    const struct head_model *h = s->run.planned.model.head;
    const int32_t end = (int32_t)head_text_end(h, ids, s->T);
    if (end < 0)
        return error_set(e, PL_USAGE,
                         "%s: input_ids, sample %lld has no end token (eos_token_id %lld of text_config), which its "
                         "text is pooled at",
                         s->in.path, (long long)r, (long long)text_tower_sizes(h->text).end);
    return run_write_input(&s->run, "text_end", r, &end, sizeof end, e);
}

int step_put_ends(struct step *s, struct error *e)
{
    const struct model *m = &s->run.planned.model;
    if (!step_pairs(m) || m->head->siglip) return PL_OK;
    char *raw = mem_alloc((size_t)s->T * 8);
    int32_t *ids = mem_alloc((size_t)s->T * sizeof *ids);
    int rc = PL_OK;
    for (int64_t r = 0; r < s->B && !rc; r++) rc = put_end(s, r, step_given(s, m, "input_ids"), raw, ids, e);
    mem_free(raw);
    mem_free(ids);
    return rc;
}
