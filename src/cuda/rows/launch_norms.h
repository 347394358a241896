/*
 * launch_norms.h: the launchers of the normalisations (norms.cu, norm_packs.cu, batchnorm.cu). Rows
 * are [rows, C] with the storage `type`; vectors of C have types of their own.
 */
#pragma once

#include "cuda/rows/norm_blocks.h"
#include "cuda/device/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mean NULL: RMSNORM, which has no b either. */
struct norm_stats {
    float *mean, *rstd; /* [rows] */
    float offset;       /* added to the weights w: 1 with unit_offset, else 0 */
};
cudaError_t cuda_norm(void *y, struct norm_stats stats, const void *x, struct typed_ptr w, struct typed_ptr b,
                      enum store type, int64_t rows, int64_t C, float eps, int access, cudaStream_t stream);
/* The same for r = x + more; r may alias either of the two. */
struct norm_sum {
    void *r;
    const void *more;
};
cudaError_t cuda_add_norm(void *y, struct norm_stats stats, const void *x, struct norm_sum sum, struct typed_ptr w,
                          struct typed_ptr b, enum store type, int64_t rows, int64_t C, float eps, int access,
                          cudaStream_t stream);
/* The rows of a launch, the first of `whole`, which decide the order of the sums. */
struct norm_rows {
    int64_t rows, whole;
};
/* Computes the gradients. add has the rows' type or is NULL; it is added to dx, which may alias any
 * input. db is NULL if mean is. partial: norm_partial floats. */
cudaError_t cuda_norm_bwd(void *dx, float *dw, float *db, float *partial, const void *dy, const void *x,
                          struct typed_ptr w, const void *add, struct norm_stats stats, enum store type,
                          struct norm_rows n, int64_t C, int access, enum norm_bwd_form form, cudaStream_t stream);

/* norm_packs.cu: the functions above where norm_in_packs, everything is aligned to 16 bytes, and w
 * and b have the rows' type. sum.r NULL: nothing is added to x. */
cudaError_t cuda_norm_packs(void *y, struct norm_stats stats, const void *x, struct norm_sum sum, const void *w,
                            const void *b, enum store type, int64_t rows, int64_t C, float eps,
                            enum norm_packs_form form, cudaStream_t stream);
cudaError_t cuda_norm_packs_bwd(void *dx, float *dw, float *db, float *partial, const void *dy, const void *x,
                                const void *w, const void *add, struct norm_stats stats, enum store type,
                                struct norm_rows n, int64_t C, enum norm_packs_form form, cudaStream_t stream);

/* Results may alias inputs. */
cudaError_t cuda_l2norm(void *y, const void *x, enum store type, int64_t rows, int64_t C, float eps, int access,
                        cudaStream_t stream);
cudaError_t cuda_l2norm_bwd(void *dx, const void *dy, const void *x, enum store type, int64_t rows, int64_t C,
                            float eps, int access, cudaStream_t stream);
cudaError_t cuda_softmax(void *y, const void *x, enum store type, int64_t rows, int64_t C, int access,
                         cudaStream_t stream);
cudaError_t cuda_softmax_bwd(void *dx, const void *dy, const void *y, enum store type, int64_t rows, int64_t C,
                             int access, cudaStream_t stream);

/* Statistics of a channel: [G,C] each. Frozen: [C], and `spread` is the variance instead of
 * rstd. */
struct channel {
    struct typed_ptr mean, spread, w, b;
    int frozen;
    float eps;
};
/* Maps: G groups of n rows of C. work: batch_partial(G, n, C) floats. */
struct maps {
    enum store type;
    int64_t G, n, C;
};
cudaError_t cuda_batchnorm(void *y, float *mean, float *rstd, float *work, const void *x, struct typed_ptr w,
                           struct typed_ptr b, struct maps m, float eps, int access, cudaStream_t stream);
cudaError_t cuda_batchnorm_frozen(void *y, const void *x, struct channel c, struct maps m, int access,
                                  cudaStream_t stream);
/* dx may alias dy. work: as above, followed by [G,2,C]; frozen: as above. */
cudaError_t cuda_batchnorm_bwd(void *dx, float *dw, float *db, float *work, const void *dy, const void *x,
                               struct channel c, struct maps m, int access, cudaStream_t stream);
cudaError_t cuda_batchnorm_update(float *mean, float *var, const float *batch_mean, const float *batch_rstd, int64_t G,
                                  int64_t C, int64_t count, double momentum, double eps, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
