/*
 * heads.c: shared by attention's forward and backward, plain and on a grid: which keys a query
 * sees, rows of heads, and products of panels (see attention.h).
 */
#include "cpu/attention/attention.h"

#include <math.h>

#include "cpu/cpu.h"
#include "cpu/products/pack.h"

struct heads heads_of(const int64_t *q, const int64_t *k, const union attr *attr)
{
    struct heads n = {.B = q[0], .T = q[1], .S = k[1], .H = q[2], .G = k[2], .D = q[3],
                      .scale = attr->attention.scale, .cap = attr->attention.cap};
    int64_t offset = n.S - n.T; /* query t is at key t + offset: both sequences end together */
    n.last = attr->attention.causal ? offset : n.S;
    n.first = -n.T - n.S;
    if (attr->attention.window) n.first = max_i64(n.first, offset - attr->attention.window + 1);
    n.window = attr->attention.window;
    return n;
}

struct heads heads_of_launch(const struct launch *l, int q, int k, int ranges)
{
    struct heads n = heads_of(l->in[q].dim, l->in[k].dim, l->attr);
    n.ranged = launch_has(l, ranges);
    if (n.ranged) n.ranges = l->in[ranges];
    return n;
}

/* Returns the keys of query t's range. */
static struct span heads_range(const struct heads *n, int64_t b, int64_t t)
{
    const struct operand *x = &n->ranges;
    const int32_t *at = (const int32_t *)x->data + b * x->stride[0] + t * x->stride[1];
    const int64_t begin = at[0], end = at[x->stride[2]];
    struct span seen = {max_i64(0, n->window ? max_i64(begin, end - n->window) : begin), min_i64(n->S, end)};
    return seen.begin < seen.end ? seen : (struct span){0, 0};
}

static struct span heads_visible(const struct heads *n, int64_t t, int64_t tn)
{
    return (struct span){max_i64(0, t + n->first), max_i64(0, min_i64(n->S, t + tn + n->last))};
}

/* Ends where neighbours do not belong together: they do if a key is visible to both, or none to
 * either. */
int64_t heads_document(const struct heads *n, int64_t b, int64_t t, int64_t end, struct span *seen)
{
    if (!n->ranged) return *seen = heads_visible(n, t, end - t), end;
    *seen = heads_range(n, b, t++);
    for (struct span last = *seen; t < end; t++) {
        const struct span next = heads_range(n, b, t),
                          both = {max_i64(last.begin, next.begin), min_i64(last.end, next.end)};
        if (span_is_empty(both) && !(span_is_empty(last) && span_is_empty(next))) return t;
        *seen = (struct span){min_i64(seen->begin, next.begin), max_i64(seen->end, next.end)};
        last = next;
    }
    return end;
}

void heads_ranges(const struct heads *n, int64_t b, int64_t t, int64_t tn, struct key_range *range)
{
    for (int64_t i = 0; n->ranged && i < tn; i++) {
        const struct span x = heads_range(n, b, t + i);
        range[i] = (struct key_range){(int32_t)x.begin, (int32_t)x.end};
    }
}

struct span heads_seen(const struct heads *n, int64_t t, int64_t tn, const struct key_range *range)
{
    if (!n->ranged) return heads_visible(n, t, tn);
    struct key_range all = range[0];
    for (int64_t i = 1; i < tn; i++) {
        if (range[i].begin < all.begin) all.begin = range[i].begin;
        if (range[i].end > all.end) all.end = range[i].end;
    }
    return (struct span){all.begin, all.end};
}

struct key_band heads_band(const struct heads *n, int64_t t, int64_t tn, const struct key_range *range, int64_t s,
                           const float *bias, struct key_range *own, int64_t room)
{
    if (!n->ranged) return (struct key_band){t + n->first - s, t + n->last - s, bias, NULL};
    const int32_t from = (int32_t)s;
    for (int64_t i = 0; i < tn; i++) own[i] = (struct key_range){range[i].begin - from, range[i].end - from};
    for (int64_t i = tn; i < room; i++) own[i] = (struct key_range){0, 0};
    return (struct key_band){0, 0, bias, own};
}

bool heads_bias(const struct operand *mask, int64_t b, int64_t s, int64_t sn, float *bias, int64_t room)
{
    const float *from = (const float *)mask->data + b * mask->stride[0] + s * mask->stride[1];
    bool any = false;
    for (int64_t i = 0; i < sn; i++) {
        bias[i] = from[i * mask->stride[1]] * (float)M_LOG2E;
        any |= bias[i] != -INFINITY;
    }
    for (int64_t i = sn; i < room; i++) bias[i] = 0;
    return any;
}

bool heads_fit(const struct tensor *t)
{
    return t->rank == 4 && (t->stride[3] == 1 || t->dim[3] == 1) && t->dim[3] <= HEAD_MAX &&
           (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16);
}

bool heads_mask_fits(const struct query *q, int input)
{
    return (q->nin <= input || !q->in[input] || q->in[input]->dtype == DT_F32) &&
           (q->nin <= input + 1 || !q->in[input + 1] || q->in[input + 1]->dtype == DT_I32);
}

const struct micro_bf16 *heads_bf16(const struct micro *u, const struct operand *x, int n)
{
    const struct micro_bf16 *h = micro_bf16_vectors();
    for (int i = 0; i < n; i++)
        if (x[i].dtype != DT_BF16) return NULL;
    return h && h->mr == u->mr && h->nr == u->nr ? h : NULL;
}

void heads_store(const struct operand *x, int64_t b, int64_t t, int64_t h, const float *panel, int width, int64_t n,
                 int64_t D, const float *factor, float *rows)
{
    if (x->dtype == DT_F32) {
        panel_to_rows(heads_row(x, b, t, h), x->stride[1], panel, width, n, D, factor);
        return;
    }
    panel_to_rows(rows, D, panel, width, n, D, factor);
    for (int64_t i = 0; i < n; i++) dtype_convert(heads_row(x, b, t + i, h), x->dtype, rows + i * D, DT_F32, D);
}

void panels_pack(const struct panels *p, void *to, int width, const void *from, enum dtype t, int64_t across,
                 int64_t along, int64_t n, int64_t length)
{
    if (p->half) pack_panels_bf16(to, width, p->half->group, p->half->group, from, across, along, n, length);
    else pack_panels(to, width, from, t, across, along, n, length);
}

void panels_edge(const struct panels *p, int64_t K, const void *a, int64_t at, const void *b, int64_t bt, float *c,
                 int64_t ldc, bool add, int64_t m, int64_t n)
{
    const struct micro *u = p->u;
    if (m == u->mr && n == u->nr) {
        panels_product(p, K, a, at, b, bt, c, ldc, add);
        return;
    }
    float buffer[MR_MAX * NR_MAX] __attribute__((aligned(64)));
    panels_product(p, K, a, at, b, bt, buffer, u->nr, false);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float *to = c + i * ldc + j, value = buffer[i * u->nr + j];
            *to = add ? *to + value : value;
        }
}
