/*
 * step_values.c: reads and checks the values of `plimsoll step`'s inputs and converts them to the
 * graph's inputs. They go through a buffer of one row, an element of the first dimension, which
 * usually is a sample: the memory does not grow with the batch.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/step.h"
#include "graph/sizes.h"
#include "models/images.h"

/* The buffer of one row: as in the file (raw), and in the graph's layout (ready). */
struct row_buffer {
    char *raw, *ready;
    int64_t n;     /* elements of a row in the file */
    int64_t bytes; /* of a row in the graph */
};

/* A row of an input in messages. */
static const char *row_word(const struct port *p) { return p->dim[0] == OPEN('B') ? "sample" : "row"; }

static int bad_id(const struct step *s, const struct port *p, int64_t r, int64_t i, int64_t x, struct error *e)
{
    return error_set(e, PL_USAGE, "%s: %s[%lld,%lld] is %lld, the vocabulary has %lld entries", s->in.path, p->name,
                     (long long)r, (long long)i, (long long)x, (long long)s->run.planned.model.vocabulary);
}

static int convert_ids(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct row_buffer *b,
                       struct error *e)
{
    int32_t *out = (int32_t *)b->ready;
    for (int64_t i = 0; i < b->n; i++) {
        int64_t x = t == DT_I64 ? ((const int64_t *)b->raw)[i] : ((const int32_t *)b->raw)[i];
        bool ignored = p->values == VALUES_LABELS && x == -100;
        /* a feature takes its place */
        if (s->run.planned.model.images && p->values == VALUES_IDS && x == s->run.planned.model.images->token &&
            (x < 0 || x >= s->run.planned.model.vocabulary))
            x = 0;
        if (!ignored && (x < 0 || x >= s->run.planned.model.vocabulary)) return bad_id(s, p, r, i, x, e);
        if (p->values == VALUES_LABELS && i) s->labels += !ignored; /* the first label predicts nothing */
        out[i] = (int32_t)x;
    }
    return PL_OK;
}

static int convert_reals(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct row_buffer *b,
                         struct error *e)
{
    const float *out = (const float *)b->ready;
    dtype_convert(b->ready, DT_F32, b->raw, t, b->n);
    for (int64_t i = 0; i < b->n; i++)
        if (!isfinite(out[i]))
            return error_set(e, PL_USAGE, "%s: %s, %s %lld: element %lld is %g", s->in.path, p->name, row_word(p),
                             (long long)r, (long long)i, (double)out[i]);
    return PL_OK;
}

/* Converts coordinates in pixels to 0..1 over the image, from the corner of the first pixel. */
static int convert_coords(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct row_buffer *b,
                          struct error *e)
{
    const struct model *m = &s->run.planned.model;
    const float side = (float)(m->masks->extent * (double)s->prompts.image / (double)m->image);
    int rc = convert_reals(s, p, t, r, b, e);
    float *out = (float *)b->ready;
    for (int64_t i = 0; i < b->n; i++) out[i] = (out[i] + 0.5f) / side;
    return rc;
}

static int convert_labels(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct row_buffer *b,
                          struct error *e)
{
    int32_t *out = (int32_t *)b->ready;
    for (int64_t i = 0; i < b->n; i++) {
        int64_t x = t == DT_I64 ? ((const int64_t *)b->raw)[i] : ((const int32_t *)b->raw)[i];
        if (x != 0 && x != 1 && x != -1 && x != -10)
            return error_set(
                e, PL_USAGE,
                "%s: %s, sample %lld: element %lld is %lld, expected 1, 0, -1 (not a point) or -10 (padding)",
                s->in.path, p->name, (long long)r, (long long)i, (long long)x);
        out[i] = x == 1 ? POINT_FOREGROUND : x == 0 ? POINT_BACKGROUND : x == -1 ? POINT_FILLER : POINT_UNUSED;
    }
    return PL_OK;
}

/* An index below a size that the port names; negative ones stand for none: -1, of a target -100. */
static int convert_index(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct row_buffer *b,
                         struct error *e)
{
    const int64_t below = p->below > 0 ? p->below : s->size[-p->below];
    int32_t *out = (int32_t *)b->ready;
    for (int64_t i = 0; i < b->n; i++) {
        int64_t x = t == DT_I64 ? ((const int64_t *)b->raw)[i] : ((const int32_t *)b->raw)[i];
        if (x >= below)
            return error_set(e, PL_USAGE, "%s: %s[%lld,%lld] is %lld, expected an index below %lld, or -1 for none",
                             s->in.path, p->name, (long long)r, (long long)i, (long long)x, (long long)below);
        if (p->values == VALUES_TARGETS) s->labels += x >= 0;
        out[i] = x >= 0 ? (int32_t)x : p->values == VALUES_INDEX ? -1 : -100;
    }
    return PL_OK;
}

/* Size of a port's dimension. */
static int64_t size_of(const struct step *s, const struct port *p, int i)
{
    return p->dim[i] > 0 ? p->dim[i] : s->size[-p->dim[i]];
}

/* The first token and one past the last, within the row. */
static int convert_range(struct step *s, const struct port *p, enum dtype t, int64_t r, const struct row_buffer *b,
                         struct error *e)
{
    int64_t x[2];
    for (int i = 0; i < 2; i++) x[i] = t == DT_I64 ? ((const int64_t *)b->raw)[i] : ((const int32_t *)b->raw)[i];
    if (x[0] < 0 || x[1] < x[0] || x[1] > s->T)
        return error_set(e, PL_USAGE,
                         "%s: %s[%lld] is %lld, %lld; expected a first token and one past the last, from 0 to %lld",
                         s->in.path, p->name, (long long)r, (long long)x[0], (long long)x[1], (long long)s->T);
    for (int i = 0; i < 2; i++) ((int32_t *)b->ready)[i] = (int32_t)x[i];
    return PL_OK;
}

/* Packs bytes to bits, the first pixel in the lowest bit, rows padded to whole words. */
static int convert_masks(struct step *s, const struct port *p, int64_t r, const struct row_buffer *b, struct error *e)
{
    const int64_t w = size_of(s, p, p->rank - 1), row = mask_row_bytes(w);
    const uint8_t *raw = (const uint8_t *)b->raw;
    uint8_t *out = (uint8_t *)b->ready;
    memset(out, 0, (size_t)b->bytes);
    for (int64_t i = 0; i < b->n; i++) {
        if (raw[i] > 1)
            return error_set(e, PL_USAGE, "%s: %s, sample %lld: element %lld is %d, expected 0 or 1", s->in.path,
                             p->name, (long long)r, (long long)i, raw[i]);
        out[i / w * row + i % w / 8] |= (uint8_t)(raw[i] << (i % w % 8));
    }
    return PL_OK;
}

/* Fills in an input that is not given: labels and targets are ignored (-100), points are
 * foreground. */
static void fill_absent(const struct port *p, const struct row_buffer *b)
{
    const bool labels = p->values == VALUES_LABELS || p->values == VALUES_TARGETS;
    CHECK(labels || p->values == VALUES_POINTS, "port %s has no default", p->name);
    for (int64_t i = 0; i < b->n; i++) ((int32_t *)b->ready)[i] = labels ? -100 : POINT_FOREGROUND;
}

static int convert(struct step *s, const struct port *p, const struct st_entry *t, int64_t r,
                   const struct row_buffer *b, struct error *e)
{
    switch (p->values) {
    case VALUES_REAL: return convert_reals(s, p, t->dtype, r, b, e);
    case VALUES_COORDS: return convert_coords(s, p, t->dtype, r, b, e);
    case VALUES_POINTS: return convert_labels(s, p, t->dtype, r, b, e);
    case VALUES_MASKS: return convert_masks(s, p, r, b, e);
    case VALUES_INDEX: case VALUES_TARGETS: case VALUES_CLASS: return convert_index(s, p, t->dtype, r, b, e);
    case VALUES_RANGE: return convert_range(s, p, t->dtype, r, b, e);
    case VALUES_BYTES: memcpy(b->ready, b->raw, (size_t)b->n); return PL_OK;
    default: return convert_ids(s, p, t->dtype, r, b, e);
    }
}

/* The graph's input for a port: frames follow the images. */
static const char *input_name(const struct port *p) { return p->dim[0] == OPEN_FRAMES ? "pixel_values" : p->name; }

/* Whether the graph has an input for this port. Prompts that are not given have none. */
static bool is_input(const struct step *s, const struct port *p)
{
    struct planned_input x;
    return planned_input(&s->run.planned, input_name(p), &x);
}

static int put_port(struct step *s, int k, const struct row_buffer *b, struct error *e)
{
    const struct port *p = &s->run.planned.model.ports[k];
    const struct st_entry *t = s->given[k];
    bool input = is_input(s, p);
    if (p->values == VALUES_PADDING || p->values == VALUES_POSITIONS) return PL_OK; /* step_put_rows */
    if (!t && !input) return PL_OK;
    const int64_t rows = p->dim[0] > 0 ? p->dim[0] : s->size[-p->dim[0]],
                  before = p->dim[0] == OPEN_FRAMES ? s->size['N'] : 0;
    const uint64_t bytes = t && t->elements ? (uint64_t)b->n * (t->bytes / (uint64_t)t->elements) : 0;
    int rc = PL_OK;
    for (int64_t r = 0; r < rows && !rc; r++) {
        const int64_t at = s->image_at && p->dim[0] == OPEN_IMAGES ? s->image_at[r] : r;
        if (t) rc = st_read(&s->in, t, (uint64_t)at * bytes, bytes, b->raw, e);
        if (!t) fill_absent(p, b);
        else if (!rc) rc = convert(s, p, t, r, b, e);
        if (!rc && input)
            rc = run_write_bytes(&s->run, input_name(p), (uint64_t)((before + r) * b->bytes), b->ready,
                                 (uint64_t)b->bytes, e);
    }
    return rc;
}

/* The number of elements of a row in the file, and its bytes in the graph. */
static struct row_buffer measure(const struct step *s, const struct port *p)
{
    struct row_buffer b = {.n = 1};
    for (int i = 1; i < p->rank; i++) b.n *= size_of(s, p, i);
    const int64_t w = size_of(s, p, p->rank - 1);
    b.bytes = p->values == VALUES_MASKS && w ? b.n / w * mask_row_bytes(w) : p->values == VALUES_BYTES ? b.n : b.n * 4;
    return b;
}

/* Marks every pixel of the masks of port `of`, or of its images, as valid. */
static int put_valid(struct step *s, const char *input, const char *of, int axis, struct error *e)
{
    const struct port *p = model_port(&s->run.planned.model, of);
    struct planned_input x;
    if (!p || !planned_input(&s->run.planned, input, &x)) return PL_OK;
    const int32_t h = (int32_t)size_of(s, p, axis < 0 ? p->rank + axis : axis), area[2] = {h, h};
    int32_t *all = mem_alloc(x.sample);
    for (uint64_t i = 0; i < x.sample / sizeof area; i++) memcpy(all + 2 * i, area, sizeof area);
    int rc = PL_OK;
    for (int64_t r = 0; r < s->B && !rc; r++) rc = run_write_input(&s->run, input, r, all, x.sample, e);
    mem_free(all);
    return rc;
}

/* The divisor of the loss: the number of masks, of labels (counted while reading), or of elements
 * of the output whose mean square is the loss. */
static double count(const struct step *s)
{
    const struct graph *g = &s->run.planned.graph;
    const struct model *m = &s->run.planned.model;
    if (s->prompts.targets) return (double)(s->B * s->prompts.masks);
    if (step_pairs(m)) return (double)s->B;
    if (!m->loss_output) return s->labels;
    const char *name = s->loss_output ? s->loss_output : m->loss_output;
    return (double)tensor_elements(tensor_at(g, graph_find_output(g, PROGRAM_STEP, name)));
}

double step_count(const struct step *s, const char *name)
{
    if (!strcmp(name, "tokens")) return s->labels;
    if (!strcmp(name, "masks")) return (double)s->B;
    return s->counted;
}

int step_put_inputs(struct step *s, struct error *e)
{
    const struct model *m = &s->run.planned.model;
    int rc = PL_OK;
    for (int k = 0; k < m->n_ports && !rc; k++) {
        struct row_buffer b = measure(s, &m->ports[k]);
        b.raw = mem_alloc((size_t)b.n * 8);
        b.ready = mem_alloc((size_t)(b.n * 4 > b.bytes ? b.n * 4 : b.bytes));
        rc = put_port(s, k, &b, e);
        mem_free(b.raw);
        mem_free(b.ready);
    }
    if (!rc) rc = put_valid(s, "gt_valid", "gt_masks", -1, e);
    if (!rc) rc = put_valid(s, "image_valid", "images", 1, e);
    if (!rc) rc = step_put_rows(s, e);
    if (!rc) rc = step_put_images(s, e);
    if (!rc) rc = step_put_candidates(s, e);
    if (!rc) rc = step_put_ends(s, e);
    if (!rc) s->counted = count(s);
    if (!rc && s->has_loss && !s->prs.targets && !(s->counted > 0))
        rc = error_set(e, PL_USAGE, "%s: every label is ignored, so there is no loss", s->in.path);
    return rc;
}
