/*
 * launch_update.h: launchers of the update: optimizer.cu, adamw_8bit.cu, adafactor.cu. All
 * addresses are the card's, step's too.
 */
#ifndef LAUNCH_UPDATE_H
#define LAUNCH_UPDATE_H

#include "cpu/codes.h"
#include "cuda/typed.h"
#include "cuda/update_blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What all updates have in common; attributes are adamw's. */
struct update {
    struct typed p;       /* f32 or bf16, changed in place */
    struct typed g, w;    /* w: may not be given */
    const struct step_block *step;
    const float *clip;    /* {norm, factor}, or NULL */
    int64_t n;
    double beta1, beta2, eps, weight_decay, lr_scale;
    uint64_t key;         /* of the random numbers that a bf16 p is rounded by */
};

/* acc f64 [1] += the sum of squares of n elements; work: UPDATE_BLOCKS doubles. */
cudaError_t cuda_sumsq(double *acc, double *work, const void *x, enum store type, int64_t n, cudaStream_t stream);
cudaError_t cuda_clip(float *out, const double *sum, const struct step_block *step, cudaStream_t stream);
cudaError_t cuda_scaler(struct step_block *step, const double *sum, struct typed loss, cudaStream_t stream);

/* m and v: both f32 or both bf16. */
cudaError_t cuda_adamw(struct update u, struct typed m, struct typed v, cudaStream_t stream);
cudaError_t cuda_sgd(struct update u, float *m, cudaStream_t stream);

/* The maps of codes, to the current card; before any capture. */
cudaError_t cuda_put_codes(const struct codes *with_sign, const struct codes *without_sign);
/* m, v [n]; absmax [blocks of 256, 2]. */
cudaError_t cuda_adamw_8bit(struct update u, uint8_t *m, uint8_t *v, float *absmax, cudaStream_t stream);

/* p is N matrices of R x C; r [N,R], c [N,C], or c NULL and r like p. work: factor_work bytes. */
cudaError_t cuda_adafactor(struct update u, float *r, float *c, void *work, int64_t N, int64_t R, int64_t C, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
