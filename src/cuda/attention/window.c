/*
 * window.c: the running half of windowed attention: the operands and workspace of an
 * entry become a struct window_attention (launch_window.h).
 */
#include "cuda/attention/hopper.h"
#include "cuda/device/gpu.h"
#include "cuda/device/host.h"
#include "cuda/attention/launch_window.h"

static struct head_rows rows_of(const struct operand *x)
{
    return (struct head_rows){x->data, x->stride[0], x->stride[1], x->stride[2]};
}

/* q, k and v are the inputs from index `q` on, the tables and pad from `table` on. */
static struct window_attention window_of(const struct launch *l, int q, int table, const struct operand *lse)
{
    const struct operand *x = &l->in[q];
    struct window_attention a = {
        .q = rows_of(x), .k = rows_of(x + 1), .v = rows_of(x + 2), .lse = lse->data, .lse_sample = lse->stride[0],
        .lse_head = lse->stride[1], .lse_token = lse->stride[2], .type = store_of(x->dtype), .B = (int)x->dim[0], .T = (int)x->dim[1],
        .H = (int)x->dim[2], .D = (int)x->dim[3], .height = l->attr->windowed.height, .width = l->attr->windowed.width,
        .window = l->attr->windowed.window, .scale = l->attr->windowed.scale,
    };
    a.across = (a.width + a.window - 1) / a.window, a.down = (a.height + a.window - 1) / a.window;
    for (int i = 0; i < 2; i++) {
        const struct operand *t = &l->in[table + i];
        a.table[i] = (struct head_table){t->data, store_of(t->dtype), t->stride[0], t->stride[1]};
    }
    if (has(l, table + 2)) {
        const struct operand *pad = &l->in[table + 2];
        a.pad = pad->data, a.pad_type = store_of(pad->dtype);
        a.pad_which = pad->stride[0], a.pad_head = pad->stride[1], a.pad_element = pad->stride[2];
    }
    return a;
}

/* The kernel variant: without tensor cores, with mma.sync, with wgmma. */
enum variant { PLAIN, FAST, HOPPER };

/* Selects the variant that the GPU supports. A plan must not depend on that. */
static enum variant variant_of(const struct window_attention *a)
{
    if (gpu_is_hopper() && a->window == WINDOW_FAST && (a->D == 64 || a->D == 80)) return HOPPER;
    return gpu_capability() >= 80 || (gpu_capability() >= 75 && a->type == STORE_F16) ? FAST : PLAIN;
}

static int is_small(void) { return gpu_capability() < 80; }

static int forward(const struct launch *l, bool fast, struct error *e)
{
    struct window_attention a = window_of(l, 0, 3, &l->out[1]);
    a.o = rows_of(&l->out[0]);
    switch (fast ? variant_of(&a) : PLAIN) {
    case PLAIN: TRY_CUDA(cuda_window_plain(&a, l->stream)); break;
    case FAST: TRY_CUDA(cuda_window_fast(&a, is_small(), l->stream)); break;
    case HOPPER: TRY_CUDA(cuda_window_hopper(&a, l->stream)); break;
    }
    return PL_OK;
}

static int backward(const struct launch *l, bool fast, struct error *e)
{
    struct window_attention a = window_of(l, 1, 6, &l->in[5]);
    const struct window_work w = window_work_of((int64_t)a.B * a.across * a.down * a.H, a.window, a.D);
    CHECK(w.total <= l->work_bytes, "%llu bytes of workspace", (unsigned long long)l->work_bytes);
    a.dout = rows_of(&l->in[0]), a.o = rows_of(&l->in[4]);
    a.dq = rows_of(&l->out[0]), a.dk = rows_of(&l->out[1]), a.dv = rows_of(&l->out[2]);
    a.dtable[0] = l->out[3].data, a.dtable[1] = l->out[4].data, a.dpad = l->out[5].data;
    a.tables = (float *)(void *)((char *)l->work + w.tables), a.pads = (float *)(void *)((char *)l->work + w.pads);
    switch (fast ? variant_of(&a) : PLAIN) {
    case PLAIN: TRY_CUDA(cuda_window_plain_bwd(&a, l->stream)); break;
    case FAST: TRY_CUDA(cuda_window_fast_bwd(&a, is_small(), l->stream)); break;
    case HOPPER: TRY_CUDA(cuda_window_hopper_bwd(&a, l->stream)); break;
    }
    TRY_CUDA(cuda_window_sums(&a, l->stream));
    return PL_OK;
}

static int launch_forward(const struct launch *l, struct error *e) { return forward(l, false, e); }
static int launch_backward(const struct launch *l, struct error *e) { return backward(l, false, e); }
static int launch_fast(const struct launch *l, struct error *e) { return forward(l, true, e); }
static int launch_fast_bwd(const struct launch *l, struct error *e) { return backward(l, true, e); }

const struct cuda_kernel cuda_run_attention_window[] = {
    {"cuda_attention_window", NULL, launch_forward, NULL},
    {"cuda_attention_window_bwd", NULL, launch_backward, NULL},
    {"cuda_attention_window_fast", NULL, launch_fast, NULL},
    {"cuda_attention_window_fast_bwd", NULL, launch_fast_bwd, NULL},
    {0},
};
