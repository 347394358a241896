/*
 * launch_update.h: the launchers of the optimizer step: optimizer.cu, adamw.cu, adamw_8bit.cu,
 * adafactor.cu. All addresses, including step, are device addresses.
 */
#pragma once

#include "base/state_codes.h"
#include "cuda/device/launch.h"
#include "cuda/update/update_blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The arguments that all updates share; the attributes are those of ADAMW. */
struct update {
    struct typed_ptr p;       /* f32 or bf16, updated in place */
    struct typed_ptr g, w;    /* w: may be absent */
    const struct step_block *step;
    const float *clip;    /* {norm, factor}, or NULL */
    int64_t n;
    double beta1, beta2, eps, weight_decay, lr_scale;
    uint64_t key;         /* of the random numbers for the stochastic rounding of a bf16 p */
    int64_t first;        /* place of p in the whole weight, if it is a shard: a multiple of 256 */
};

/* Tensors of one type whose squares are added to one sum: square_blocks of all together are at most
 * UPDATE_BLOCKS. */
#define SUM_MOST 128
struct sum_batch {
    double *acc, *work;              /* work: UPDATE_BLOCKS doubles */
    const void *x[SUM_MOST];
    int64_t n[SUM_MOST];
    uint32_t first[SUM_MOST + 1];    /* first block of each tensor, then the number of blocks; set by the launcher */
    int count;
    enum store type;
};
/* acc f64 [1] += the sum of squares of the first tensor, then += that of the next, and so on. */
cudaError_t cuda_sumsq(struct sum_batch b, int access, cudaStream_t stream);
cudaError_t cuda_clip(float *out, const double *sum, const struct step_block *step, cudaStream_t stream);
cudaError_t cuda_scaler(struct step_block *step, const double *sum, struct typed_ptr loss, cudaStream_t stream);
cudaError_t cuda_guard(struct step_block *step, const double *sum, struct typed_ptr loss, cudaStream_t stream);

/* Weights that one ADAMW launch updates. They share the types, the step, the clip and all
 * attributes except the learning-rate scale, the decay and the key. As many as the 4 KB of launch
 * parameters hold. */
struct adam_weight {
    void *p, *g, *m, *v, *w;         /* w: may be absent */
    int64_t n;
    double weight_decay, lr_scale;
    uint64_t key;
};
#define ADAM_MOST 50
struct adam_batch {
    struct adam_weight at[ADAM_MOST];
    uint32_t cell[ADAM_MOST];        /* place of p in the whole weight, in cells of 256, if it is a shard */
    uint32_t first[ADAM_MOST + 1];   /* first tile of each weight, then the number of tiles; set by the launcher */
    int count;
    enum store p, g, m, w;           /* p, and m (the type of v too): f32 or bf16 */
    const struct step_block *step;
    const float *clip;               /* {norm, factor}, or NULL */
    double beta1, beta2, eps;
};
/* All weights of a batch have the same access. */
cudaError_t cuda_adamw(struct adam_batch b, int access, cudaStream_t stream);
cudaError_t cuda_sgd(struct update u, float *m, int access, cudaStream_t stream);

/* Copies the code maps to the current GPU; called before any capture. */
cudaError_t cuda_put_codes(const struct codes *with_sign, const struct codes *without_sign);
/* Updates with m, v [n]; absmax [blocks of 256, 2]. */
cudaError_t cuda_adamw_8bit(struct update u, uint8_t *m, uint8_t *v, float *absmax, int access, cudaStream_t stream);

/* Updates p, N matrices of R x C; r [N,R], c [N,C], or c NULL and r of p's shape. work: factor_work
 * bytes. */
cudaError_t cuda_adafactor(struct update u, float *r, float *c, void *work, int64_t N, int64_t R, int64_t C, int access,
                           enum factor_form form, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
