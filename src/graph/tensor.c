/*
 * tensor.c: shapes, strides and sizes of a tensor, and what it is in words.
 */
#include "graph/graph.h"

int64_t tensor_elements(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dim[i];
    return n;
}

int64_t tensor_rows(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t->rank; i++) n *= t->dim[i];
    return n;
}

uint64_t tensor_bytes(const struct tensor *t) { return (uint64_t)tensor_elements(t) * dtype_size(t->dtype); }

bool tensor_is_dense(const struct tensor *t)
{
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->dim[i] != 1 && t->stride[i] != stride) return false;
        stride *= t->dim[i];
    }
    return true;
}

bool tensors_alike(const struct tensor *a, const struct tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && !memcmp(a->dim, b->dim, a->rank * sizeof *a->dim) &&
           tensor_is_dense(a) && tensor_is_dense(b);
}

void tensor_dense_strides(struct tensor *t)
{
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        t->stride[i] = stride;
        stride *= t->dim[i];
    }
}

char *tensor_print(const struct graph *g, id t, char out[160])
{
    const struct tensor *x = tensor_at(g, t);
    int n = snprintf(out, 160, "%.80s %s[", graph_name(g, x->name), dtype_name(x->dtype));
    for (int i = 0; i < x->rank; i++) n += snprintf(out + n, 160 - n, "%s%lld", i ? "," : "", (long long)x->dim[i]);
    snprintf(out + n, 160 - n, "]");
    return out;
}

const char *tensor_words(const char *name, char out[TENSOR_WORDS])
{
    const bool gradient = !strncmp(name, "d:", 2), recomputed = !strncmp(name, "r:", 2);
    snprintf(out, TENSOR_WORDS, "%s%s%s", gradient ? "gradient of " : "", gradient || recomputed ? name + 2 : name,
             recomputed ? ", recomputed" : "");
    return out;
}
