/*
 * batch.c: pending launches of one kernel, merged into few launches.
 *
 *     tape      SUMSQ SUMSQ SUMSQ ... CLIP ADAMW ADAMW ADAMW ...
 *     capture   [ one launch, two  ] CLIP [ one, two, six  ]
 *
 * Each launch costs a captured graph 2 us or more, one after the other, and most weights of a model
 * are vectors that take the GPU less than that. A kernel that has `batch` takes many tensors by a
 * table; the recorder passes it consecutive launches of the tape.
 *
 * Invariant: the pending launches could run concurrently: none writes a byte that another reads or
 * writes. This is checked by address, so storages that share bytes are covered too. An output that
 * all of them add to, in order, is handled by the kernel. Workspaces may overlap each other, since
 * a batch uses only the first launch's workspace. Any launch may become the first of a batch, so
 * each workspace counts as written with respect to the operands of all other launches.
 */
#include "cuda/device/host.h"

enum { BATCH_MAX = 256 }; /* each launch is compared with all before it */

struct span {
    const char *from, *to;
};

static struct span span_of(const struct operand *x)
{
    int64_t last = 0;
    if (!x->data) return (struct span){0};
    for (int i = 0; i < x->rank; i++) {
        if (x->dim[i] == 0) return (struct span){0};
        last += x->stride[i] * (x->dim[i] - 1);
    }
    return (struct span){x->data, (const char *)x->data + (uint64_t)(last + 1) * dtype_size(x->dtype)};
}

static bool overlap(struct span a, struct span b) { return a.from < b.to && b.from < a.to; }

/* Reports whether nothing that `a` writes, including its workspace, is read or written by `b`. With
 * `chain`, output 0 of both, and the input that it updates in place, may be the same. */
static bool is_independent(const struct launch *a, const struct launch *b, bool chain)
{
    struct span written[MAX_OUT + 1];
    int n = 0;
    written[n++] = (struct span){a->work, (const char *)a->work + a->work_bytes};
    for (int o = 0; o < a->nout; o++) written[n++] = span_of(&a->out[o]);
    for (int k = 0; k < b->nin + b->nout; k++) {
        const struct operand *x = k < b->nin ? &b->in[k] : &b->out[k - b->nin];
        if (chain && x->data == a->out[0].data) continue;
        const struct span touched = span_of(x);
        for (int i = 0; i < n; i++)
            if (overlap(written[i], touched)) return false;
    }
    return true;
}

bool batch_joins(const struct launch_batch *b, const struct cuda_kernel *kernel, const struct launch *l)
{
    if (!b->launches.n) return true;
    if (!kernel->batch || kernel != b->kernel || b->launches.n == BATCH_MAX || l->stream != b->launches.at[0].stream)
        return false;
    for (uint32_t i = 0; i < b->launches.n; i++) {
        const struct launch *x = &b->launches.at[i];
        const bool chain = kernel->chains && x->out[0].data == l->out[0].data;
        if (!is_independent(x, l, chain) || !is_independent(l, x, chain)) return false;
    }
    return true;
}

void batch_add(struct launch_batch *b, const struct cuda_kernel *kernel, const struct launch *l)
{
    b->kernel = kernel;
    vec_push(&b->launches, *l);
}

int batch_flush(struct launch_batch *b, uint32_t *at, struct error *e)
{
    const uint32_t n = b->launches.n;
    b->launches.n = 0;
    for (uint32_t taken; *at < n; *at += taken) {
        const struct launch *l = &b->launches.at[*at];
        taken = 1;
        TRY(b->kernel->batch ? b->kernel->batch(l, n - *at, &taken, e) : b->kernel->launch(l, e));
        CHECK(taken >= 1 && taken <= n - *at, "%u of %u launches were merged", taken, n - *at);
    }
    return PL_OK;
}
