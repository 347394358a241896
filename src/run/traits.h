/*
 * traits.h: properties of a kind of device that decide which graph it gets.
 */
#pragma once

#include <stdbool.h>

enum device_kind { DEVICE_REF, DEVICE_CPU, DEVICE_CUDA, DEVICE_COUNT };

struct device_traits {
    /* the host cannot access device memory: staging buffers lie in host memory, which SPACE_HOST
     * is; else that is a file */
    bool separate_memory;
    bool copies_overlap;  /* copies between the two memories run beside kernels */
    bool dense_operands;  /* some kernels need dense operands (plan/dense.c) */
    bool fuses_strided;   /* LINEAR_ACT takes strided inputs and rounds as LINEAR and ACT do (rewrites/fuse.c) */
    bool sums_columns;    /* the gradient of an activation can sum its columns (rewrites/bias_grad.c) */
};

static inline struct device_traits device_traits(enum device_kind kind)
{
    const bool gpu = kind == DEVICE_CUDA;
    return (struct device_traits){.separate_memory = gpu, .copies_overlap = gpu, .dense_operands = gpu,
                                  .fuses_strided = gpu, .sums_columns = gpu};
}
