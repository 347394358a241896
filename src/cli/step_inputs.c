/*
 * step_inputs.c: the inputs of `plimsoll step`, by the model's ports.
 *
 * A port says which shape and which values an input has; the sizes that it leaves open
 * come from the first tensor that has them, and all others must agree. Samples go
 * through one row buffer, so a batch of any size takes no memory of its size.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/step.h"

enum { SIZE_MOST = 1 << 20 }; /* of B and of T */

/* --- which tensors ------------------------------------------------------------------ */

/* "[B,T]" or "[2,3,224,224]". */
static char *print_shape(int rank, const int64_t *dim, char out[96])
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < rank && n < 96; i++) {
        const char *before = i ? "," : "[", *after = i == rank - 1 ? "]" : "";
        if (dim[i] < 0) n += (size_t)snprintf(out + n, 96 - n, "%s%c%s", before, dim[i] == DIM_B ? 'B' : 'T', after);
        else n += (size_t)snprintf(out + n, 96 - n, "%s%lld%s", before, (long long)dim[i], after);
    }
    return out;
}

static bool is_real(enum dtype t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

/* One dimension: given by the port, or by whichever tensor came first. */
static bool agrees(struct step *s, int64_t wanted, int64_t found)
{
    int64_t *open = wanted == DIM_B ? &s->B : &s->T;
    if (wanted > 0) return found == wanted;
    if (!*open) *open = found;
    return *open == found;
}

static int check_entry(struct step *s, const struct port *p, const struct st_entry *t, struct error *e)
{
    char expected[96], found[96];
    const char *path = s->in.path;
    if (t->rank != p->rank)
        return error_set(e, PL_USAGE, "%s: %s must be %s, it has rank %d", path, t->name, print_shape(p->rank, p->dim, expected), t->rank);
    if (p->values == VALUES_REAL ? !is_real(t->dtype) : t->dtype != DT_I32 && t->dtype != DT_I64)
        return error_set(e, PL_USAGE, "%s: %s is %s, it must be %s", path, t->name, t->dtype_name,
                         p->values == VALUES_REAL ? "F32, BF16 or F16" : "I32 or I64");
    for (int i = 0; i < t->rank; i++) {
        if (p->dim[i] == DIM_T && t->dims[i] < 2)
            return error_set(e, PL_USAGE, "%s: %s has T = %lld, it must be at least 2", path, t->name, (long long)t->dims[i]);
        if (t->dims[i] < 1 || (p->dim[i] < 0 && t->dims[i] > SIZE_MOST))
            return error_set(e, PL_USAGE, "%s: %s has %lld in dimension %d, it must lie between 1 and %d", path, t->name,
                             (long long)t->dims[i], i, SIZE_MOST);
        if (!agrees(s, p->dim[i], t->dims[i]))
            return error_set(e, PL_USAGE, "%s: %s has the shape %s; expected %s%s", path, t->name, print_shape(t->rank, t->dims, found),
                             print_shape(p->rank, p->dim, expected), p->dim[i] < 0 ? ", the same B and T in all inputs" : " by the model's config.json");
    }
    return PL_OK;
}

static int find_entries(struct step *s, const struct model *m, struct error *e)
{
    char known[256];
    for (uint32_t i = 0; i < s->in.n_entries; i++)
        if (!model_port(m, s->in.entries[i].name))
            return error_set(e, PL_USAGE, "%s: unknown input %s; this model takes %s", s->in.path, s->in.entries[i].name,
                             model_list_ports(m, known));
    for (int i = 0; i < m->n_ports; i++) {
        const struct port *p = &m->ports[i];
        s->given[i] = st_find(&s->in, p->name);
        if (!s->given[i] && !p->optional)
            return error_set(e, PL_USAGE, "%s: no %s; this model takes %s", s->in.path, p->name, model_list_ports(m, known));
        if (s->given[i] && check_entry(s, p, s->given[i], e)) return e->code;
    }
    return PL_OK;
}

/* A tower always has a loss; a language model has one where labels are given. */
static int find_loss(struct step *s, const struct model *m, struct error *e)
{
    const char *wanted = st_metadata(&s->in, "loss_output");
    const struct port *labels = model_port(m, "labels");
    s->has_loss = m->loss_output || (labels && s->given[labels - m->ports]);
    if (!wanted) return PL_OK;
    if (!m->loss_output)
        return error_set(e, PL_USAGE, "%s: loss_output \"%s\": a %s has a loss of its own, from labels", s->in.path, wanted, m->family->model_type);
    if (!model_has_output(m, wanted))
        return error_set(e, PL_USAGE, "%s: loss_output \"%s\" is no output of this model; it has last_hidden_state and %s to %s", s->in.path,
                         wanted, m->outputs[0], m->outputs[m->n_outputs - 2]);
    s->loss_output = wanted;
    return PL_OK;
}

int step_open(struct step *s, const struct model *m, const char *path, struct error *e)
{
    int rc = st_open(path, &s->in, e);
    if (!rc) rc = find_entries(s, m, e);
    if (!rc) rc = find_loss(s, m, e);
    if (!s->T) s->T = 1;
    return rc;
}

/* --- values ---------------------------------------------------------------------------- */

/* One sample at a time: as in the file, and as the graph wants it. */
struct rows {
    char *raw, *ready;
    int64_t n; /* elements of a sample */
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

/* Labels that are not given count nowhere. */
static void absent_labels(const struct rows *b)
{
    for (int64_t i = 0; i < b->n; i++) ((int32_t *)b->ready)[i] = -100;
}

static int put_port(struct step *s, int k, const struct rows *b, struct error *e)
{
    const struct port *p = &s->run.model.ports[k];
    const struct st_entry *t = s->given[k];
    if (!t && p->values == VALUES_ONES) return PL_OK;
    CHECK(t || p->values == VALUES_LABELS, "port %s has nothing to stand in for it", p->name);
    uint64_t bytes = t ? (uint64_t)b->n * dtype_size(t->dtype) : 0;
    int rc = PL_OK;
    for (int64_t r = 0; r < s->B && !rc; r++) {
        if (t) rc = st_read(&s->in, t, (uint64_t)r * bytes, bytes, b->raw, e);
        if (!t) absent_labels(b);
        else if (!rc) rc = p->values == VALUES_REAL ? take_reals(s, p, t->dtype, r, b, e) : take_ids(s, p, t->dtype, r, b, e);
        if (!rc && p->values != VALUES_ONES) rc = run_write_input(&s->run, p->name, r, b->ready, (uint64_t)b->n * 4, e);
    }
    return rc;
}

/* Elements of the output that the loss is the mean of. */
static double loss_elements(const struct step *s)
{
    const struct graph *g = &s->run.graph;
    const char *name = s->loss_output ? s->loss_output : s->run.model.loss_output;
    return (double)tensor_elements(tensor_at(g, graph_find_output(g, PROGRAM_STEP, name)));
}

int step_put_inputs(struct step *s, struct error *e)
{
    const struct model *m = &s->run.model;
    int rc = PL_OK;
    for (int k = 0; k < m->n_ports && !rc; k++) {
        struct rows b = {.n = 1};
        for (int i = 1; i < m->ports[k].rank; i++) b.n *= m->ports[k].dim[i] > 0 ? m->ports[k].dim[i] : s->T;
        b.raw = mem_alloc((size_t)b.n * 8);
        b.ready = mem_alloc((size_t)b.n * 4);
        rc = put_port(s, k, &b, e);
        mem_free(b.raw);
        mem_free(b.ready);
    }
    if (!rc && m->loss_output) s->counted = loss_elements(s);
    if (!rc && s->has_loss && !(s->counted > 0))
        rc = error_set(e, PL_USAGE, "%s: every label is ignored, so there is no loss", s->in.path);
    return rc;
}
