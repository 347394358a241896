/*
 * update.c: the running half of the norm of the gradients and of the optimizers (optimizer.cu,
 * adamw_8bit.cu, adafactor.cu).
 */
#include "cuda/launch_update.h"
#include "cuda/operands.h"

static int launch_sumsq(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    CHECK(l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    TRY_CUDA(cuda_sumsq(l->out[0].data, l->work, x->data, store_of(x->dtype), operand_elements(x), l->stream));
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

/* --- optimizers --------------------------------------------------------------------------- */

/* `step`, `clip` and `w`: where they stand among the inputs. */
static struct update update_of(const struct launch *l, int step, int clip, int w)
{
    const union attr *a = l->attr;
    return (struct update){
        .p = typed_of(&l->in[0]), .g = typed_of(&l->in[1]), .w = typed_in(l, w), .step = l->in[step].data, .clip = data_in(l, clip),
        .n = operand_elements(&l->in[0]), .beta1 = a->adamw.beta1, .beta2 = a->adamw.beta2, .eps = a->adamw.eps,
        .weight_decay = a->adamw.weight_decay, .lr_scale = a->adamw.lr_scale, .key = a->adamw.key,
    };
}

static int launch_adamw(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_adamw(update_of(l, 4, 5, 6), typed_of(&l->in[2]), typed_of(&l->in[3]), l->stream));
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
    TRY_CUDA(cuda_adamw_8bit(update_of(l, 5, 6, 7), l->in[2].data, l->in[3].data, l->in[4].data, l->stream));
    return PL_OK;
}

static int launch_sgd(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_sgd(update_of(l, 2, 3, 4), data_in(l, 5), l->stream));
    return PL_OK;
}

static int launch_adafactor(const struct launch *l, struct error *e)
{
    const struct operand *p = &l->in[0];
    const int64_t C = operand_last(p), R = p->rank >= 2 ? p->dim[p->rank - 2] : 1;
    TRY_CUDA(cuda_adafactor(update_of(l, 3, 4, 5), l->in[2].data, data_in(l, 6), l->work, operand_elements(p) / (R * C), R, C, l->stream));
    return PL_OK;
}

const struct cuda_kernel cuda_run_update[] = {
    {"cuda_sumsq", NULL, launch_sumsq, NULL},
    {"cuda_clip", NULL, launch_clip, NULL},
    {"cuda_scaler", NULL, launch_scaler, NULL},
    {"cuda_adamw", NULL, launch_adamw, NULL},
    {"cuda_adamw_8bit", prepare_adamw_8bit, launch_adamw_8bit, NULL},
    {"cuda_sgd", NULL, launch_sgd, NULL},
    {"cuda_adafactor", NULL, launch_adafactor, NULL},
    {0},
};
