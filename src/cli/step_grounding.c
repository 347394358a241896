/*
 * step_grounding.c: what the queries of `plimsoll step` are matched with, for a model that matches
 * masks with texts (models/grounding.h): the masks that cover something, and the queries with other
 * targets.
 */
#include "cli/step.h"
#include "models/grounding.h"

struct sample {
    char *raw;
    float *areas;
    bool *is_mask;
    int32_t *target, *answers;
    float *candidates;
};

/* Which masks of sample r cover a patch. */
static int find_masks(const struct step *s, const struct st_entry *t, int64_t r, const struct sample *x,
                      struct error *e)
{
    const int64_t M = s->size['M'], patches = t->dims[2] * t->dims[3], n = M * patches;
    const uint64_t bytes = (uint64_t)n * dtype_size(t->dtype);
    int rc = st_read(&s->in, t, (uint64_t)r * bytes, bytes, x->raw, e);
    if (rc) return rc;
    dtype_convert(x->areas, DT_F32, x->raw, t->dtype, n);
    for (int64_t m = 0; m < M; m++) {
        x->is_mask[m] = false;
        for (int64_t i = 0; i < patches; i++) {
            const float area = x->areas[m * patches + i];
            if (!(area >= 0))
                return error_set(e, PL_USAGE, "%s: masks, sample %lld: mask %lld covers %g of a patch, expected 0 to 1",
                                 s->in.path, (long long)r, (long long)m, (double)area);
            x->is_mask[m] |= area > 0;
        }
    }
    return PL_OK;
}

static int find_targets(const struct step *s, const struct st_entry *t, int64_t r, const struct sample *x,
                        struct error *e)
{
    const int64_t Q = s->size['Q'];
    const uint64_t bytes = t ? t->bytes / (uint64_t)s->B : 0;
    int rc = t ? st_read(&s->in, t, (uint64_t)r * bytes, bytes, x->raw, e) : PL_OK;
    for (int64_t q = 0; q < Q && !rc; q++) {
        const int64_t m = !t                   ? -1
                          : t->dtype == DT_I64 ? ((const int64_t *)(const void *)x->raw)[q]
                                               : ((const int32_t *)(const void *)x->raw)[q];
        x->target[q] = m < 0 ? -1 : (int32_t)m;
        if (m >= 0 && !x->is_mask[m])
            rc = error_set(e, PL_USAGE, "%s: target_masks[%lld,%lld] is %lld, and that mask is empty", s->in.path,
                           (long long)r, (long long)q, (long long)m);
    }
    return rc;
}

static int put_sample(struct step *s, int64_t r, const struct sample *x, struct error *e)
{
    const struct model *m = &s->run.planned.model;
    const int64_t M = s->size['M'], Q = s->size['Q'];
    int rc = find_masks(s, step_given(s, m, "masks"), r, x, e);
    if (!rc) rc = find_targets(s, step_given(s, m, "target_masks"), r, x, e);
    if (rc) return rc;
    ground_candidates(x->is_mask, M, x->target, Q, x->candidates, x->answers);
    rc = run_write_input(&s->run, "candidates", r, x->candidates, (uint64_t)(2 * Q * (M + Q)) * sizeof *x->candidates,
                         e);
    return rc ? rc : run_write_input(&s->run, "answers", r, x->answers, (uint64_t)(2 * Q) * sizeof *x->answers, e);
}

int step_put_candidates(struct step *s, struct error *e)
{
    const struct ground_model *g = s->run.planned.model.ground;
    if (!g) return PL_OK;
    const size_t M = (size_t)s->size['M'], Q = (size_t)s->size['Q'], areas = M * (size_t)(g->side * g->side);
    struct sample x = {mem_alloc(8 * (areas > Q ? areas : Q)),
                       mem_alloc(areas * 4),
                       mem_alloc(M * sizeof(bool)),
                       mem_alloc(Q * 4),
                       mem_alloc(2 * Q * 4),
                       mem_alloc(2 * Q * (M + Q) * 4)};
    int rc = PL_OK;
    for (int64_t r = 0; r < s->B && !rc; r++) rc = put_sample(s, r, &x, e);
    mem_free(x.raw), mem_free(x.areas), mem_free(x.is_mask), mem_free(x.target), mem_free(x.answers),
        mem_free(x.candidates);
    return rc;
}
