/*
 * launch_update.h: launchers of the update: optimizer.cu, adamw.cu, adamw_8bit.cu, adafactor.cu. All
 * addresses are the GPU's, step's too.
 */
#ifndef LAUNCH_UPDATE_H
#define LAUNCH_UPDATE_H

#include "cpu/codes.h"
#include "cuda/typed_ptr.h"
#include "cuda/update_blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What all updates have in common; attributes are adamw's. */
struct update {
    struct typed_ptr p;       /* f32 or bf16, changed in place */
    struct typed_ptr g, w;    /* w: may not be given */
    const struct step_block *step;
    const float *clip;    /* {norm, factor}, or NULL */
    int64_t n;
    double beta1, beta2, eps, weight_decay, lr_scale;
    uint64_t key;         /* of the random numbers that a bf16 p is rounded by */
};

/* Tensors of one type, the squares of which go to one sum: square_blocks of all together at most UPDATE_BLOCKS. */
#define SUM_MOST 128
struct sum_batch {
    double *acc, *work;              /* work: UPDATE_BLOCKS doubles */
    const void *x[SUM_MOST];
    int64_t n[SUM_MOST];
    uint32_t first[SUM_MOST + 1];    /* block of each, and behind the last: the launcher's */
    int count;
    enum store type;
};
/* acc f64 [1] += the sum of squares of the first tensor, += that of the next... */
cudaError_t cuda_sumsq(struct sum_batch b, cudaStream_t stream);
cudaError_t cuda_clip(float *out, const double *sum, const struct step_block *step, cudaStream_t stream);
cudaError_t cuda_scaler(struct step_block *step, const double *sum, struct typed_ptr loss, cudaStream_t stream);
cudaError_t cuda_guard(struct step_block *step, const double *sum, struct typed_ptr loss, cudaStream_t stream);

/* Weights that ADAMW updates by one launch. They share the types, the step, the clip and what the
 * attributes say but for the rate, the decay and the key. As many as a launch's 4 KB of parameters hold. */
struct adam_weight {
    void *p, *g, *m, *v, *w;         /* w: may not be given */
    int64_t n;
    double weight_decay, lr_scale;
    uint64_t key;
};
#define ADAM_MOST 52
struct adam_batch {
    struct adam_weight at[ADAM_MOST];
    uint32_t first[ADAM_MOST + 1];   /* turn of each, and behind the last: the launcher's */
    int count;
    enum store p, g, m, w;           /* p and m, which is v's too: f32 or bf16 */
    const struct step_block *step;
    const float *clip;               /* {norm, factor}, or NULL */
    double beta1, beta2, eps;
};
/* Whether 16 bytes of all operands may be accessed at once: the same for all of a batch. */
static inline int adam_is_wide(const struct adam_weight *x)
{
    return (((uintptr_t)x->p | (uintptr_t)x->g | (uintptr_t)x->m | (uintptr_t)x->v | (uintptr_t)x->w) & 15) == 0;
}
cudaError_t cuda_adamw(struct adam_batch b, cudaStream_t stream);
cudaError_t cuda_sgd(struct update u, float *m, cudaStream_t stream);

/* The maps of codes, to the current GPU; before any capture. */
cudaError_t cuda_put_codes(const struct codes *with_sign, const struct codes *without_sign);
/* m, v [n]; absmax [blocks of 256, 2]. */
cudaError_t cuda_adamw_8bit(struct update u, uint8_t *m, uint8_t *v, float *absmax, cudaStream_t stream);

/* p is N matrices of R x C; r [N,R], c [N,C], or c NULL and r like p. work: factor_work bytes. */
cudaError_t cuda_adafactor(struct update u, float *r, float *c, void *work, int64_t N, int64_t R, int64_t C, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
