/*
 * kernels.h: the numbers of the CUDA kernels.
 */
#ifndef CUDA_KERNELS_H
#define CUDA_KERNELS_H

/* Positions in kernels.def. */
#define KERNEL(OP, NAME, ...) ROW_##NAME,
enum cuda_row {
#include "cuda/kernels.def"
    CUDA_ROWS
};
#undef KERNEL

#endif
