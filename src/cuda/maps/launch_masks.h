/*
 * launch_masks.h: the launchers of the mask loss (masks.cu), of the structure loss (structure.cu)
 * and of simulated prompts (prompts.cu).
 */
#pragma once

#include "base/mask_terms.h"
#include "cuda/device/launch.h"
#include "cuda/maps/filters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a mask per partial sum. */
enum { MASK_ROWS = 16 };
static inline int64_t mask_blocks(int64_t h) { return (h + MASK_ROWS - 1) / MASK_ROWS; }

struct mask_task {
    const void *logits;          /* [N,K,h,w], of `type` */
    enum store type;
    struct typed_ptr iou;        /* [N,K] */
    const uint8_t *bits;         /* [N,h,row_bytes] */
    const int32_t *valid;        /* [N,2] */
    const float *inv_count;
    int64_t N, K, h, w, row_bytes;
    float focal, dice, weight, alpha_on, alpha_off, gamma, smooth; /* weight: of the IoU term */
};
/* Computes the mask loss; stats f32 [N,4]. */
cudaError_t cuda_mask_loss(float *loss, float *stats, double *work, struct mask_task t, int access,
                           cudaStream_t stream);
/* Computes its gradient d, which has the shape of logits and may alias it. */
cudaError_t cuda_mask_loss_bwd(void *d, struct typed_ptr diou, const float *stats, const float *dloss,
                               struct mask_task t, int access, cudaStream_t stream);

/* Rows and columns of a mask per partial sum. */
enum { STRUCTURE_ROWS = 32, STRUCTURE_COLUMNS = 256 };
SHARED int64_t structure_blocks(int64_t h, int64_t w)
{
    return (h + STRUCTURE_ROWS - 1) / STRUCTURE_ROWS * ((w + STRUCTURE_COLUMNS - 1) / STRUCTURE_COLUMNS);
}

struct structure_task {
    const void *logits;          /* [N,1,h,w], of `type` */
    enum store type;
    const uint8_t *bits;         /* [N,h,row_bytes] */
    const int32_t *valid;        /* [N,2] */
    const float *inv_count;
    int64_t N, h, w, row_bytes;
    float edge, bce_edge, smooth;
    int size;
};
/* Computes the structure loss; stats f32 [N,4], weights f32 [N]. */
cudaError_t cuda_structure_loss(float *loss, float *stats, float *weights, double *work, struct structure_task t,
                                cudaStream_t stream);
/* Computes its gradient d, which has the shape of logits and may alias it. */
cudaError_t cuda_structure_loss_bwd(void *d, const float *stats, const float *weights, const float *dloss,
                                    struct structure_task t, cudaStream_t stream);

/* Picks y [N], each of `bytes` bytes, from x [N,K]: the candidate with the best score. */
cudaError_t cuda_mask_pick(void *y, const void *x, struct typed_ptr scores, int64_t N, int64_t K, int64_t bytes,
                           int access, cudaStream_t stream);

struct prompt_task {
    float *coords;               /* [N,P,2] */
    int32_t *kinds, *round;      /* [N,P], [1] */
    struct typed_ptr logits;     /* [N,h,w] */
    const uint8_t *bits;         /* [N,h,row_bytes] */
    const int32_t *valid, *keys; /* [N,2], [N] */
    const struct step_block *step;
    int64_t N, P, h, w, row_bytes;
    int32_t rounds, first;
};
cudaError_t cuda_prompt_next(struct prompt_task t, cudaStream_t stream);

/* Filters over an activation (filters.cu). */
cudaError_t cuda_filters(struct typed_ptr y, struct typed_ptr a, struct typed_ptr z, struct filters n,
                         cudaStream_t stream);
/* Computes the gradients; dz may alias z. */
cudaError_t cuda_filters_bwd(struct typed_ptr da, struct typed_ptr dz, struct typed_ptr dy, struct typed_ptr a,
                             struct typed_ptr z, struct filters n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
