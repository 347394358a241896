/*
 * update.c: the running half of the gradient norm and of the optimizers (optimizer.cu,
 * adamw.cu, adamw_8bit.cu, adafactor.cu).
 */
#include "cuda/update/launch_update.h"
#include "cuda/device/host.h"

/* Reports whether a tensor joins the batch. The order of a sum depends on the access: the tensors
 * of one batch have the same. */
static bool sum_joins(const struct sum_batch *b, uint32_t blocks, const struct launch *first, const struct launch *l)
{
    return b->count < SUM_MOST && l->out[0].data == b->acc && store_of(l->in[0].dtype) == b->type &&
           l->access == first->access && blocks <= UPDATE_BLOCKS;
}

/* Launches a batch; the partial sums of all tensors are in the first launch's workspace. */
static int batch_sumsq(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e)
{
    struct sum_batch b = {.acc = l->out[0].data, .work = l->work, .type = store_of(l->in[0].dtype),
                          .x = {l->in[0].data}};
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int64_t elements = operand_elements(&l[i].in[0]);
        blocks += (uint32_t)square_blocks(elements);
        CHECK(l[i].in[1].data == l[i].out[0].data, "the accumulator is updated in place");
        if (!sum_joins(&b, blocks, l, &l[i])) break;
        b.x[b.count] = l[i].in[0].data;
        b.n[b.count++] = elements;
    }
    *taken = (uint32_t)b.count;
    TRY_CUDA(cuda_sumsq(b, l->access, l->stream));
    return PL_OK;
}

static int launch_clip(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_clip(l->out[0].data, l->in[0].data, l->in[1].data, l->stream));
    return PL_OK;
}

static int launch_scaler(const struct launch *l, struct error *e)
{
    CHECK(l->in[1].data == l->out[0].data, "the step is updated in place");
    TRY_CUDA(cuda_scaler(l->out[0].data, l->in[0].data, typed_in(l, 2), l->stream));
    return PL_OK;
}

static int launch_guard(const struct launch *l, struct error *e)
{
    CHECK(l->in[1].data == l->out[0].data, "the step is updated in place");
    TRY_CUDA(cuda_guard(l->out[0].data, l->in[0].data, typed_in(l, 2), l->stream));
    return PL_OK;
}

/* --- optimizers --------------------------------------------------------------------------- */

/* Fills the arguments of an update. `step`, `clip` and `w` are the indices of these inputs. */
static struct update update_of(const struct launch *l, int step, int clip, int w)
{
    const union attr *a = l->attr;
    return (struct update){
        .p = typed_of(&l->in[0]), .g = typed_of(&l->in[1]), .w = typed_in(l, w), .step = l->in[step].data,
        .clip = data_in(l, clip), .n = operand_elements(&l->in[0]), .beta1 = a->adamw.beta1, .beta2 = a->adamw.beta2,
        .eps = a->adamw.eps, .weight_decay = a->adamw.weight_decay, .lr_scale = a->adamw.lr_scale, .key = a->adamw.key,
        .first = launch_first(l, a->adamw.part),
    };
}

static struct adam_weight adam_weight_of(const struct launch *l)
{
    const union attr *a = l->attr;
    return (struct adam_weight){
        .p = l->in[0].data, .g = l->in[1].data, .m = l->in[2].data, .v = l->in[3].data, .w = data_in(l, 6),
        .n = operand_elements(&l->in[0]), .weight_decay = a->adamw.weight_decay, .lr_scale = a->adamw.lr_scale,
        .key = a->adamw.key,
    };
}

/* Returns an empty batch with the parameters of this launch. */
static struct adam_batch adam_batch_of(const struct launch *l)
{
    const union attr *a = l->attr;
    return (struct adam_batch){
        .p = store_of(l->in[0].dtype), .g = store_of(l->in[1].dtype), .m = store_of(l->in[2].dtype),
        .w = typed_in(l, 6).type, .step = l->in[4].data, .clip = data_in(l, 5), .beta1 = a->adamw.beta1,
        .beta2 = a->adamw.beta2, .eps = a->adamw.eps,
    };
}

/* Reports whether a weight joins the batch. One without w has no type of w; the first weight that
 * has w sets the type of the batch. */
static bool adam_joins(struct adam_batch *b, bool *has_w_type, const struct launch *l, const struct adam_weight *x)
{
    const struct adam_batch a = adam_batch_of(l);
    if (b->count == ADAM_MOST || a.p != b->p || a.g != b->g || a.m != b->m || a.step != b->step || a.clip != b->clip ||
        a.beta1 != b->beta1 || a.beta2 != b->beta2 || a.eps != b->eps || (*has_w_type && x->w && a.w != b->w))
        return false;
    if (x->w) b->w = a.w;
    *has_w_type |= x->w != NULL;
    return true;
}

static int batch_adamw(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e)
{
    struct adam_batch b = adam_batch_of(l);
    bool has_w_type = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct adam_weight x = adam_weight_of(&l[i]);
        if (l[i].access != l->access || !adam_joins(&b, &has_w_type, &l[i], &x)) break;
        b.cell[b.count] = (uint32_t)(launch_first(&l[i], l[i].attr->adamw.part) / 256);
        b.at[b.count++] = x;
    }
    *taken = (uint32_t)b.count;
    TRY_CUDA(cuda_adamw(b, l->access, l->stream));
    return PL_OK;
}

static int prepare_adamw_8bit(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    (void)s, (void)entry;
    TRY_CUDA(cuda_put_codes(codes_signed(), codes_unsigned()));
    return PL_OK;
}

static int launch_adamw_8bit(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_adamw_8bit(update_of(l, 5, 6, 7), l->in[2].data, l->in[3].data, l->in[4].data, l->access, l->stream));
    return PL_OK;
}

static int launch_sgd(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_sgd(update_of(l, 2, 3, 4), data_in(l, 5), l->access, l->stream));
    return PL_OK;
}

static int launch_adafactor(const struct launch *l, struct error *e)
{
    const struct operand *p = &l->in[0];
    const int64_t C = operand_last(p), R = p->rank >= 2 ? p->dim[p->rank - 2] : 1;
    TRY_CUDA(cuda_adafactor(update_of(l, 3, 4, 5), l->in[2].data, data_in(l, 6), l->work, operand_elements(p) / (R * C),
                            R, C, l->access, (enum factor_form)l->form, l->stream));
    return PL_OK;
}

CUDA_KERNEL(cuda_sumsq, .batch = batch_sumsq, .chains = true);
CUDA_KERNEL(cuda_clip, .launch = launch_clip);
CUDA_KERNEL(cuda_scaler, .launch = launch_scaler);
CUDA_KERNEL(cuda_guard, .launch = launch_guard);
CUDA_KERNEL(cuda_adamw, .batch = batch_adamw);
CUDA_KERNEL(cuda_adamw_8bit, .prepare = prepare_adamw_8bit, .launch = launch_adamw_8bit);
CUDA_KERNEL(cuda_sgd, .launch = launch_sgd);
CUDA_KERNEL(cuda_adafactor, .launch = launch_adafactor);
