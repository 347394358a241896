/*
 * launch_shuffle.h: the launchers of shuffle.cu and maps.cu (see launch.h).
 */
#pragma once

#include "cuda/rows/loop_nest.h"
#include "cuda/rows/launch_elementwise.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- shuffle.cu: moves elements of `size` bytes of any type ------------------- */

/* Computes y = a over the loop nest, in units of `access` bytes, which divide both addresses. */
cudaError_t cuda_move(void *y, const void *a, struct loop_nest nest, int size, int access, enum move_form form,
                      cudaStream_t stream);
/* Copies x, `count` bytes, to y from byte `before` on, with zeros around it; all are multiples of
 * 16 bytes and aligned to 16. */
cudaError_t cuda_pad(void *y, const void *x, int64_t before, int64_t count, int64_t bytes, cudaStream_t stream);
/* y [outer,sum of rows] = all x [outer,row bytes], concatenated. */
#define JOIN_MOST 9
struct join {
    const void *x[JOIN_MOST];
    int64_t row[JOIN_MOST];
    int count;
};
cudaError_t cuda_join(void *y, struct join j, int64_t outer, int access, cudaStream_t stream);
/* Gathers y [B,M,row bytes] from x [B,N,row bytes] by index [B,M]; zeros for an index out of
 * range. */
cudaError_t cuda_gather(void *y, const void *x, const int32_t *index, int64_t B, int64_t N, int64_t M, int64_t row,
                        int access, cudaStream_t stream);
/* Repeats each row of x, `row` bytes, n times. */
cudaError_t cuda_repeat(void *y, const void *x, int64_t rows, int64_t n, int64_t row, int access, cudaStream_t stream);
/* map [B,H,W,pixel bytes], windows [B nh nw,size,size,pixel bytes]; back: windows to map. */
cudaError_t cuda_window(void *y, const void *x, int64_t B, int64_t H, int64_t W, int64_t pixel, int64_t size, int back,
                        int access, enum window_form form, cudaStream_t stream);
cudaError_t cuda_shift_labels(int32_t *y, const int32_t *x, int64_t B, int64_t T, int32_t ignored, cudaStream_t stream);
/* x [rows]: the labels other than `ignored` first, with the row of each and the position of each
 * row. */
cudaError_t cuda_labelled_first(int32_t *labels, int32_t *index, int32_t *position, const int32_t *x, int64_t rows,
                                int32_t ignored, cudaStream_t stream);
cudaError_t cuda_used_first(int32_t *used, const int32_t *index, int64_t B, int64_t T, int64_t blocks,
                            struct feature_blocks of, int64_t room, cudaStream_t stream);
/* Computes y [B,N,C] = acc (y itself, if `accumulate`) + rows of x [B,M,C] by index [B,M], in
 * order. */
cudaError_t cuda_scatter_add(void *y, const void *x, const int32_t *index, enum store type, enum store from, int64_t B,
                             int64_t N, int64_t M, int64_t C, int accumulate, cudaStream_t stream);

/* --- maps.cu ---------------------------------------------------------------------- */

struct image_scale {
    float mean[3], std[3];
};
cudaError_t cuda_image(void *y, const uint8_t *x, const int32_t *valid, enum store type, int64_t B, int64_t H,
                       int64_t W, struct image_scale s, cudaStream_t stream);
/* Computes n values y of bytes x by a table [rows,256]. */
cudaError_t cuda_pixels(void *y, const uint8_t *x, const float *table, enum store type, int64_t plane, int64_t rows,
                        int64_t n, cudaStream_t stream);
/* Computes y [points,2F] from coords [points,2] and gauss [2,F]. */
cudaError_t cuda_fourier(void *y, const void *coords, const void *gauss, struct any_types types, int64_t points,
                         int64_t F, cudaStream_t stream);

/* The forward's input is [B,H,W,C] and its result [B,H2,W2,C], also in the backward. */
struct map_sizes {
    int64_t B, H, W, C, H2, W2;
};
cudaError_t cuda_resize(void *y, const void *x, enum store type, struct map_sizes m, int align, int backward,
                        int access, cudaStream_t stream);
struct pool {
    int64_t k[2], stride[2], pad[2];
    int count_pad, adaptive;
};
cudaError_t cuda_avgpool(void *y, const void *x, enum store type, struct map_sizes m, struct pool p, int backward,
                         int access, cudaStream_t stream);
cudaError_t cuda_maxpool(void *y, const void *x, enum store type, struct map_sizes m, int size, int access,
                         cudaStream_t stream);
/* Computes dx, which may be x. */
cudaError_t cuda_maxpool_bwd(void *dx, const void *dy, const void *x, enum store type, struct map_sizes m, int size,
                             int access, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
