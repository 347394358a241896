/*
 * weights_load.c: reading weights into the arenas (see weights.h).
 *
 *     slot -> staging -> master, working copy
 *
 * weights_open has found every tensor, so only values and system calls can fail here.
 */
#include <math.h>

#include "base/coding.h"
#include "base/progress.h"
#include "base/random.h"
#include "dist/agree.h"
#include "folder/transfer.h"
#include "folder/weights.h"
#include "folder/weights_4bit.h"
#include "graph/stored.h"

static int load_constant(struct transfer *x, const struct graph *g, const struct param *p, struct error *e)
{
    CHECK(p->init.kind == INIT_DATA && p->init.data + tensor_bytes(tensor_at(g, p->tensor)) <= g->blob.n);
    return transfer_write(x, p->tensor, 0, tensor_elements(tensor_at(g, p->tensor)), &g->blob.at[p->init.data], e);
}

/* Reads elements [at, at + n) of a parameter to x->first: those of a stack from one tensor after
 * the other. *slot is that of the tensor with element `at`, and then of the one behind the last. */
static int read_elements(const struct weights *w, struct transfer *x, uint32_t *slot, bool transposed, int64_t at,
                         int64_t n, struct error *e)
{
    for (int64_t done = 0, k; done < n; done += k) {
        const struct weight_slot *s = &w->in.slots[*slot - 1];
        const struct st_entry *t = s->entry;
        const uint64_t size = dtype_size(t->dtype), from = (uint64_t)(at + done - s->number * t->elements);
        char *to = x->first + (uint64_t)done * size;
        k = min_i64(n - done, t->elements - (int64_t)from);
        TRY(transposed ? st_read_transposed(&w->in.files[s->file], t, (int64_t)from, k, to, e)
                       : st_read(&w->in.files[s->file], t, from * size, (uint64_t)k * size, to, e));
        if ((int64_t)from + k == t->elements && s->next) *slot = s->next;
    }
    return PL_OK;
}

/* Returns PL_USAGE for element `index` of the parameter, which is not finite. */
static int refuse_element(const struct weights *w, uint32_t slot, bool transposed, int64_t index, const struct bad *bad,
                          struct error *e)
{
    const struct weight_slot *s = &w->in.slots[slot - 1];
    for (; index >= s->entry->elements; index -= s->entry->elements) s = &w->in.slots[s->next - 1];
    const struct st_entry *t = s->entry;
    if (transposed) index = transposed_index(index, t->dims[1], t->dims[0]);
    return error_set(e, PL_USAGE,
                     "%s: tensor \"%.200s\": element %lld is %g%s%s; expected finite numbers: the file is damaged, or "
                     "training diverged before it was saved",
                     w->in.files[s->file].path, t->name, (long long)index, bad->value,
                     bad->as == t->dtype ? "" : ", as ", bad->as == t->dtype ? "" : dtype_name(bad->as));
}

/* Loads a parameter from its tensor, or those of a stack; extends *crc by the bytes of a frozen
 * one. */
static int load_from_file(const struct weights *w, struct transfer *x, const struct param *p, uint32_t source,
                          uint32_t *crc, struct error *e)
{
    const struct graph *g = x->tape->graph;
    const struct st_entry *t = w->in.slots[source - 1].entry;
    const bool transposed = stored_transposed(g, p);
    const int64_t elements = tensor_elements(tensor_at(g, p->tensor));
    uint32_t slot = source;
    struct bad bad = {.index = -1};
    for (; p->form && slot; slot = w->in.slots[slot - 1].next)
        TRY(weights_4bit_load(w, x, p, &w->in.slots[slot - 1], crc, e));
    for (int64_t at = 0; at < elements && !p->form; at += x->room) {
        const int64_t n = min_i64(x->room, elements - at);
        TRY(read_elements(w, x, &slot, transposed, at, n, e));
        if (p->frozen && !p->running) *crc = crc32c(*crc, x->first, (size_t)n * dtype_size(t->dtype));
        if (transfer_put(x, p, t->dtype, at, n, &bad, e)) return error_prepend(e, "loading %s", t->name);
        if (bad.index >= 0) return refuse_element(w, source, transposed, bad.index, &bad, e);
    }
    return PL_OK;
}

/* Computes elements [at, at + n) of a randomly initialised parameter with rows of C elements, in
 * f32. */
static void init_elements(const struct init *init, uint64_t key, float *to, int64_t at, int64_t n, int64_t C)
{
    if (init->kind == INIT_NORMAL) {
        random_normal(to, key, (uint64_t)at, n, init->std);
        const int64_t row = init->padding - 1, from = max_i64(row * C, at), end = min_i64((row + 1) * C, at + n);
        if (row >= 0 && end > from) memset(to + (from - at), 0, (size_t)(end - from) * sizeof *to);
        return;
    }
    if (init->kind == INIT_UNIFORM) random_uniform(to, key, (uint64_t)at, n, init->std);
    const float same = init->kind == INIT_FILL ? init->std : init->kind == INIT_ONE;
    for (int64_t i = 0; i < n && init->kind != INIT_UNIFORM; i++) to[i] = same;
}

/* Loads the Euclidean norms of the rows of another parameter's matrix [outputs,inputs], which is
 * loaded already; ranks may hold parts of it. */
static int load_row_norms(struct transfer *x, const struct graph *g, const struct param *p, struct error *e)
{
    const struct param *of = weight_origin(g, p);
    const int64_t rows = tensor_elements(tensor_at(g, p->tensor)), all = tensor_elements(tensor_at(g, of->master));
    const bool columns = of->transposed && !stored_transposed(g, of);
    double *squares = mem_alloc((size_t)rows * sizeof *squares);
    int rc = PL_OK;
    for (int64_t at = 0; at < all && !rc; at += x->room) {
        const int64_t n = min_i64(x->room, all - at);
        const void *data;
        rc = transfer_get(x, of->master, DT_F32, at, n, &data, NULL, e);
        for (int64_t k = 0; k < n && !rc; k++) {
            const double w = ((const float *)data)[k];
            squares[columns ? (at + k) % rows : (at + k) / (all / rows)] += w * w;
        }
    }
    for (int64_t at = 0; at < rows && !rc; at += x->room) {
        struct bad bad;
        const int64_t n = min_i64(x->room, rows - at);
        for (int64_t k = 0; k < n; k++) ((float *)(void *)x->first)[k] = (float)sqrt(squares[at + k]);
        rc = transfer_put(x, p, DT_F32, at, n, &bad, e);
    }
    mem_free(squares);
    return rc;
}

static int load_by_init(struct transfer *x, const struct graph *g, const struct param *p, uint64_t seed,
                        struct error *e)
{
    const struct tensor *t = tensor_at(g, p->tensor);
    const int64_t elements = tensor_elements(t), C = tensor_last(t);
    const bool transposed = stored_transposed(g, p);
    uint64_t key = random_key(seed, weight_name(g, weight_origin(g, p)));
    struct bad bad;
    if (p->init.kind == INIT_DATA) return load_constant(x, g, p, e);
    for (int64_t at = 0; at < elements; at += x->room) {
        int64_t n = min_i64(x->room, elements - at);
        float *to = (float *)(void *)x->first;
        if (!transposed) init_elements(&p->init, key, to, at, n, C);
#pragma omp parallel for schedule(static) if (transposed && n > 4096)
        for (int64_t k = 0; k < (transposed ? n : 0); k++)
            init_elements(&p->init, key, to + k, transposed_index(at + k, C, elements / C), 1, C);
        if (transfer_put(x, p, DT_F32, at, n, &bad, e)) return error_prepend(e, "initialising %s", weight_name(g, p));
        CHECK(bad.index < 0, "%s: initial element %lld is %g", weight_name(g, p), (long long)bad.index, bad.value);
    }
    return PL_OK;
}

/* Compares the bytes of two tensors of one size. */
static int compare_tensors(const struct weights *w, struct transfer *x, const struct weight_slot *a,
                           const struct weight_slot *b, bool *same, struct error *e)
{
    const uint64_t room = (uint64_t)(x->second - x->first), bytes = a->entry->bytes;
    *same = bytes == b->entry->bytes;
    for (uint64_t at = 0; *same && at < bytes; at += room) {
        const uint64_t n = bytes - at < room ? bytes - at : room;
        TRY(st_read(&w->in.files[a->file], a->entry, at, n, x->first, e));
        TRY(st_read(&w->in.files[b->file], b->entry, at, n, x->second, e));
        *same = !memcmp(x->first, x->second, n);
    }
    return PL_OK;
}

/* Refuses a tied weight that the files store with other values than those of the weight that it
 * shares, as transformers 5 would not tie them. Tensors of two dtypes are not compared. */
static int check_tied(const struct weights *w, struct transfer *x, struct error *e)
{
    for (uint32_t i = 0; i < w->in.n_slots; i++) {
        const struct weight_slot *s = &w->in.slots[i];
        const uint32_t source = s->param ? w->source[s->param - 1] : 0;
        bool same = true;
        if (!source || source == i + 1) continue;
        const struct weight_slot *shared = &w->in.slots[source - 1];
        if (shared->next || shared->entry->dtype != s->entry->dtype) continue; /* a stack has several tensors */
        TRY(compare_tensors(w, x, shared, s, &same, e));
        if (!same)
            return error_set(e, PL_USAGE,
                             "%s: tensor \"%.200s\" has other values than \"%.200s\", whose weight it shares in this "
                             "model: set tie_word_embeddings to false in config.json to keep both",
                             w->in.files[s->file].path, s->entry->name, shared->entry->name);
    }
    for (uint32_t k = 0; k < w->n_parts; k++) TRY(check_tied(&w->parts[k], x, e));
    return PL_OK;
}

int weights_load(struct weights *w, const struct graph *g, struct device *d, const struct tape *t, void *staging,
                 uint64_t staging_bytes, uint64_t seed, struct error *e)
{
    struct transfer x;
    transfer_init(&x, d, t, staging, staging_bytes);
    x.together = true;
    CHECK(w->n_params == g->params.n && t->graph == g, "weights were opened for another graph");
    struct progress progress;
    uint32_t crc = 0;
    bool norms = false;
    int rc = PL_OK;
    progress_begin(&progress, *w->in.dir || w->n_parts ? "reading weights:" : "initialising weights:", "tensors",
                   g->params.n);
    for (uint32_t i = 0; !rc && i < g->params.n; i++, progress_add(&progress, 1)) {
        const struct param *p = &g->params.at[i];
        const struct weights *from = weights_of(w, i);
        if (weight_is_constant(g, p)) rc = load_constant(&x, g, p, e);
        else if (from) rc = load_from_file(from, &x, p, from->source[i], &crc, e);
        else if (p->init.kind != INIT_ROW_NORMS) rc = load_by_init(&x, g, p, seed, e);
        else norms = true;
    }
    if (!rc) rc = check_tied(w, &x, e);
    if (norms) rc = agree_on(d->ranks, rc, e); /* no rank reads the parts of others while one of them has failed */
    for (uint32_t i = 0; !rc && norms && i < g->params.n; i++)
        if (g->params.at[i].init.kind == INIT_ROW_NORMS && !weights_of(w, i))
            rc = load_row_norms(&x, g, &g->params.at[i], e);
    progress_clear();
    transfer_end(&x);
    w->fingerprint |= crc;
    return rc;
}
