/*
 * retrieval.c: see retrieval.h.
 */
#include "infer/retrieval.h"

bool retrieval_open(struct retrieval *x, const struct run *r, const struct feed *f, enum program p)
{
    *x = (struct retrieval){.similarity = f->matches ? graph_find_output(&r->planned.graph, p, f->matches->output) : 0};
    if (!x->similarity) return false;
    CHECK(tensor_at(&r->planned.graph, x->similarity)->dtype == DT_F32, "similarities are f32");
    x->values = mem_alloc(tensor_bytes(tensor_at(&r->planned.graph, x->similarity)));
    return true;
}

void retrieval_close(struct retrieval *x)
{
    mem_free(x->values);
    *x = (struct retrieval){0};
}

void retrieval_reset(struct retrieval *x)
{
    x->queries = x->right = 0;
    x->chance = 0;
}

static void add_query(struct retrieval *x, const float *similarity, const bool *is_mask, int64_t M, int32_t target)
{
    int64_t best = -1, masks = 0;
    for (int64_t m = 0; m < M; m++) {
        if (is_mask && !is_mask[m]) continue;
        masks++;
        if (best < 0 || similarity[m] > similarity[best]) best = m;
    }
    x->queries++;
    x->right += best == target;
    x->chance += 1.0 / (double)masks;
}

int retrieval_add(struct retrieval *x, struct run *r, const struct feed *f, struct error *e)
{
    const struct feed_queries *q = f->queries;
    const int64_t rows = tensor_at(&r->planned.graph, x->similarity)->dim[0];
    int rc = run_read(r, x->similarity, x->values, e);
    for (int64_t i = 0; i < rows * q->Q && !rc; i++)
        if (q->targets[i] >= 0)
            add_query(x, x->values + i * q->M, q->is_mask ? q->is_mask + i / q->Q * q->M : NULL, q->M, q->targets[i]);
    return rc;
}

double retrieval_accuracy(const struct retrieval *x) { return x->queries ? (double)x->right / (double)x->queries : 0; }
double retrieval_chance(const struct retrieval *x) { return x->queries ? x->chance / (double)x->queries : 0; }
