/*
 * window.c: the running half of windowed attention: the operands and workspace of an
 * entry become a struct window_attention (launch_window.h).
 */
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

typedef cudaError_t window_fn(const struct window_attention *a, cudaStream_t stream);

static int forward(const struct launch *l, window_fn *kernel, struct error *e)
{
    struct window_attention a = window_of(l, 0, 3, &l->out[1]);
    a.o = rows_of(&l->out[0]);
    TRY_CUDA(kernel(&a, l->stream));
    return PL_OK;
}

static int backward(const struct launch *l, window_fn *kernel, struct error *e)
{
    struct window_attention a = window_of(l, 1, 6, &l->in[5]);
    const struct window_work w = window_work_of((int64_t)a.B * a.across * a.down * a.H, a.window, a.D);
    CHECK(w.total <= l->work_bytes, "%llu bytes of workspace", (unsigned long long)l->work_bytes);
    a.dout = rows_of(&l->in[0]), a.o = rows_of(&l->in[4]);
    a.dq = rows_of(&l->out[0]), a.dk = rows_of(&l->out[1]), a.dv = rows_of(&l->out[2]);
    a.dtable[0] = l->out[3].data, a.dtable[1] = l->out[4].data, a.dpad = l->out[5].data;
    a.tables = (float *)(void *)((char *)l->work + w.tables), a.pads = (float *)(void *)((char *)l->work + w.pads);
    TRY_CUDA(kernel(&a, l->stream));
    TRY_CUDA(cuda_window_sums(&a, l->stream));
    return PL_OK;
}

/* With the tiles of 8.0 and later, and the smaller ones of 7.5. */
static cudaError_t window_fast(const struct window_attention *a, cudaStream_t stream) { return cuda_window_fast(a, 0, stream); }
static cudaError_t window_fast_bwd(const struct window_attention *a, cudaStream_t stream) { return cuda_window_fast_bwd(a, 0, stream); }
static cudaError_t window_small(const struct window_attention *a, cudaStream_t stream) { return cuda_window_fast(a, 1, stream); }
static cudaError_t window_small_bwd(const struct window_attention *a, cudaStream_t stream) { return cuda_window_fast_bwd(a, 1, stream); }

static int launch_hopper(const struct launch *l, struct error *e) { return forward(l, cuda_window_hopper, e); }
static int launch_hopper_bwd(const struct launch *l, struct error *e) { return backward(l, cuda_window_hopper_bwd, e); }
static int launch_fast(const struct launch *l, struct error *e) { return forward(l, window_fast, e); }
static int launch_fast_bwd(const struct launch *l, struct error *e) { return backward(l, window_fast_bwd, e); }
static int launch_small(const struct launch *l, struct error *e) { return forward(l, window_small, e); }
static int launch_small_bwd(const struct launch *l, struct error *e) { return backward(l, window_small_bwd, e); }
static int launch_plain(const struct launch *l, struct error *e) { return forward(l, cuda_window_plain, e); }
static int launch_plain_bwd(const struct launch *l, struct error *e) { return backward(l, cuda_window_plain_bwd, e); }

CUDA_KERNEL(cuda_attention_window_hopper, .launch = launch_hopper);
CUDA_KERNEL(cuda_attention_window_hopper_bwd, .launch = launch_hopper_bwd);
CUDA_KERNEL(cuda_attention_window_fast, .launch = launch_fast);
CUDA_KERNEL(cuda_attention_window_fast_bwd, .launch = launch_fast_bwd);
CUDA_KERNEL(cuda_attention_window_small, .launch = launch_small);
CUDA_KERNEL(cuda_attention_window_small_bwd, .launch = launch_small_bwd);
CUDA_KERNEL(cuda_attention_window, .launch = launch_plain);
CUDA_KERNEL(cuda_attention_window_bwd, .launch = launch_plain_bwd);
