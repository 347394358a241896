/*
 * step_values.c: the values of `plimsoll step`'s inputs: read, checked, and made into what
 * the graph reads. Samples go through one row buffer, so a batch of any size takes no
 * memory of its size.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/step.h"

/* One sample at a time: as in the file, and as the graph wants it. */
struct rows {
    char *raw, *ready;
    int64_t n;     /* elements of a sample in the file */
    int64_t bytes; /* of a sample in the graph */
};

static int bad_id(const struct step *s, const struct port *p, int64_t r, int64_t i, int64_t x, struct error *e)
{
    if (p->values == VALUES_ONES)
        return error_set(e, PL_USAGE, "%s: %s[%lld,%lld] is %lld; padded batches are not taken, ignore labels with -100 instead", s->in.path,
                         p->name, (long long)r, (long long)i, (long long)x);
    return error_set(e, PL_USAGE, "%s: %s[%lld,%lld] is %lld, the vocabulary has %lld entries", s->in.path, p->name, (long long)r,
                     (long long)i, (long long)x, (long long)s->run.model.vocabulary);
}

static int take_ids(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct rows *b, struct error *e)
{
    int32_t *out = (int32_t *)b->ready;
    for (int64_t i = 0; i < b->n; i++) {
        int64_t x = t == DT_I64 ? ((const int64_t *)b->raw)[i] : ((const int32_t *)b->raw)[i];
        bool ignored = p->values == VALUES_LABELS && x == -100;
        bool good = p->values == VALUES_ONES ? x == 1 : ignored || (x >= 0 && x < s->run.model.vocabulary);
        if (!good) return bad_id(s, p, r, i, x, e);
        if (p->values == VALUES_LABELS && i) s->counted += !ignored; /* the first label predicts nothing */
        out[i] = (int32_t)x;
    }
    return PL_OK;
}

static int take_reals(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct rows *b, struct error *e)
{
    const float *out = (const float *)b->ready;
    dtype_convert(b->ready, DT_F32, b->raw, t, b->n);
    for (int64_t i = 0; i < b->n; i++)
        if (!isfinite(out[i]))
            return error_set(e, PL_USAGE, "%s: %s, sample %lld: element %lld is %g", s->in.path, p->name, (long long)r, (long long)i, (double)out[i]);
    return PL_OK;
}

/* Coordinates in pixels: 0 to 1 over the image, from the corner of its first pixel. */
static int take_places(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct rows *b, struct error *e)
{
    const struct model *m = &s->run.model;
    const float side = (float)(m->extent * (double)s->prompts.image / (double)m->image);
    int rc = take_reals(s, p, t, r, b, e);
    float *out = (float *)b->ready;
    for (int64_t i = 0; i < b->n; i++) out[i] = (out[i] + 0.5f) / side;
    return rc;
}

static int take_points(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct rows *b, struct error *e)
{
    int32_t *out = (int32_t *)b->ready;
    for (int64_t i = 0; i < b->n; i++) {
        int64_t x = t == DT_I64 ? ((const int64_t *)b->raw)[i] : ((const int32_t *)b->raw)[i];
        if (x != 0 && x != 1 && x != -1 && x != -10)
            return error_set(e, PL_USAGE, "%s: %s, sample %lld: element %lld is %lld, expected 1, 0, -1 (not a point) or -10 (padding)",
                             s->in.path, p->name, (long long)r, (long long)i, (long long)x);
        out[i] = x == 1 ? POINT_ON : x == 0 ? POINT_BESIDE : x == -1 ? POINT_FILLER : POINT_NOTHING;
    }
    return PL_OK;
}

/* Bytes to bits, the first pixel lowest, rows of whole words. */
static int take_masks(struct step *s, const struct port *p, int64_t r, const struct rows *b, struct error *e)
{
    const int64_t w = s->size[-DIM_H], row = mask_row_bytes(w);
    const uint8_t *raw = (const uint8_t *)b->raw;
    uint8_t *out = (uint8_t *)b->ready;
    memset(out, 0, (size_t)b->bytes);
    for (int64_t i = 0; i < b->n; i++) {
        if (raw[i] > 1)
            return error_set(e, PL_USAGE, "%s: %s, sample %lld: element %lld is %d, expected 0 or 1", s->in.path, p->name, (long long)r,
                             (long long)i, raw[i]);
        out[i / w * row + i % w / 8] |= (uint8_t)(raw[i] << (i % w % 8));
    }
    return PL_OK;
}

/* What stands for an input that is not given: labels that count nowhere, points that are on
 * what is asked for. */
static void take_absent(const struct port *p, const struct rows *b)
{
    CHECK(p->values == VALUES_LABELS || p->values == VALUES_POINTS, "port %s has nothing to stand in for it", p->name);
    for (int64_t i = 0; i < b->n; i++) ((int32_t *)b->ready)[i] = p->values == VALUES_LABELS ? -100 : POINT_ON;
}

static int take(struct step *s, const struct port *p, const struct st_entry *t, int64_t r, const struct rows *b, struct error *e)
{
    switch (p->values) {
    case VALUES_REAL: return take_reals(s, p, t->dtype, r, b, e);
    case VALUES_PLACES: return take_places(s, p, t->dtype, r, b, e);
    case VALUES_POINTS: return take_points(s, p, t->dtype, r, b, e);
    case VALUES_MASKS: return take_masks(s, p, r, b, e);
    default: return take_ids(s, p, t->dtype, r, b, e);
    }
}

/* Has the graph an input for this port? Prompts that are not given are not there at all. */
static bool is_input(const struct step *s, const struct port *p)
{
    struct run_input x;
    return p->values != VALUES_ONES && run_input(&s->run, p->name, &x);
}

static int put_port(struct step *s, int k, const struct rows *b, struct error *e)
{
    const struct port *p = &s->run.model.ports[k];
    const struct st_entry *t = s->given[k];
    bool input = is_input(s, p);
    if (!t && !input) return PL_OK;
    uint64_t bytes = t ? t->bytes / (uint64_t)s->B : 0;
    int rc = PL_OK;
    for (int64_t r = 0; r < s->B && !rc; r++) {
        if (t) rc = st_read(&s->in, t, (uint64_t)r * bytes, bytes, b->raw, e);
        if (!t) take_absent(p, b);
        else if (!rc) rc = take(s, p, t, r, b, e);
        if (!rc && input) rc = run_write_input(&s->run, p->name, r, b->ready, (uint64_t)b->bytes, e);
    }
    return rc;
}

/* Elements of a sample as in the file; bytes of it in the graph. */
static struct rows measure(const struct step *s, const struct port *p)
{
    struct rows b = {.n = 1};
    for (int i = 1; i < p->rank; i++) b.n *= p->dim[i] > 0 ? p->dim[i] : s->size[-p->dim[i]];
    const int64_t w = s->size[-DIM_H];
    b.bytes = p->values == VALUES_MASKS && w ? b.n / w * mask_row_bytes(w) : b.n * 4;
    return b;
}

/* In a step every pixel of every mask counts. */
static int put_valid(struct step *s, struct error *e)
{
    const int32_t h = (int32_t)s->size[-DIM_H], area[2] = {h, h};
    struct run_input x;
    if (!run_input(&s->run, "gt_valid", &x)) return PL_OK;
    int32_t *all = mem_alloc(x.sample);
    for (uint64_t i = 0; i < x.sample / sizeof area; i++) memcpy(all + 2 * i, area, sizeof area);
    int rc = PL_OK;
    for (int64_t r = 0; r < s->B && !rc; r++) rc = run_write_input(&s->run, "gt_valid", r, all, x.sample, e);
    mem_free(all);
    return rc;
}

/* What the step's loss is divided by: masks, labels (counted as they came), or the elements of
 * the output that it is the mean of. */
static double count(const struct step *s)
{
    const struct graph *g = &s->run.graph;
    const struct model *m = &s->run.model;
    if (s->prompts.targets) return (double)(s->B * s->prompts.masks);
    if (!m->loss_output) return s->counted;
    const char *name = s->loss_output ? s->loss_output : m->loss_output;
    return (double)tensor_elements(tensor_at(g, graph_find_output(g, PROGRAM_STEP, name)));
}

int step_put_inputs(struct step *s, struct error *e)
{
    const struct model *m = &s->run.model;
    int rc = PL_OK;
    for (int k = 0; k < m->n_ports && !rc; k++) {
        struct rows b = measure(s, &m->ports[k]);
        b.raw = mem_alloc((size_t)b.n * 8);
        b.ready = mem_alloc((size_t)(b.n * 4 > b.bytes ? b.n * 4 : b.bytes));
        rc = put_port(s, k, &b, e);
        mem_free(b.raw);
        mem_free(b.ready);
    }
    if (!rc) rc = put_valid(s, e);
    if (!rc) s->counted = count(s);
    if (!rc && s->has_loss && !(s->counted > 0))
        rc = error_set(e, PL_USAGE, "%s: every label is ignored, so there is no loss", s->in.path);
    return rc;
}
