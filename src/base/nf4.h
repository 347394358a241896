/*
 * nf4.h: weights in 4 bits, NF4 with double quantization, bit for bit as bitsandbytes has them.
 *
 *     weights   [ 64 | 64 | ... ]   blocks over the flat tensor; the last one may be short
 *     codes     4 bits per weight: the nearest of 16 levels to weight / scale, two codes per byte, the
 *               first in the high bits
 *     scale     of a block: its largest magnitude. As one byte (double quantization):
 *               scale = map[byte] * absmax + offset, with an absmax per 256 blocks and an offset
 *               per
 *               tensor, the mean of all scales. map: nf4_map, the signed map of 8-bit Adam
 *
 *     4 + 8/64 + 32/(64 * 256) = 4.127 bits per weight
 *
 * Without double quantization scales are f32: 4.5 bits per weight.
 *
 * The mean depends on the order of its sum. It is that of PyTorch on one thread of an x86
 * processor; on several threads PyTorch adds tensors of 2^21 weights and more in another order. The
 * byte of a scale is chosen as bitsandbytes does it on a CPU since version 0.50: from the value
 * rounded to a multiple of 2/65535, so that near the border between two bytes it is not always the
 * nearest.
 */
#pragma once

#include "base/dtype.h"
#include "base/shared.h"

enum {
    NF4_BLOCK = 64,                       /* weights that share a scale */
    NF4_SCALES = 256,                     /* scales that share an absmax */
    NF4_GROUP = NF4_BLOCK * NF4_SCALES,
    NF4_PART_ALIGN = 16,
};

/* The levels: quantiles of a normal distribution, scaled to -1..1. */
#define NF4_LEVELS                                                                                                     \
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,                  \
     -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,                   \
     0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f}

/* Returns border k of 2^i equal steps from 0.1 to 1. nf4_map returns the number from -0.993 to 1
 * that a scale's byte means. From 127, the code of 0, to either side: 2^i numbers of decade i,
 * 10^(i-7) to 10^(i-6), i = 0..6, half way between equal steps; 255 is 1. Each step is rounded to
 * f32, as torch.linspace does it, so the numbers of the optimizer's map (base/state_codes.h) may
 * differ in the last bit. */
SHARED float nf4_step(int i, int k)
{
    const double step = (double)shared_sub(1.0f, 0.1f) / (1 << i); /* exact: a power of two */
    return 2 * k < (1 << i) + (i == 0) ? (float)((double)0.1f + step * k) : (float)(1 - step * ((1 << i) - k));
}
SHARED float nf4_map(int code)
{
    const float decade[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 0.1f, 1.0f};
    const int m = code < 127 ? 127 - code : code - 127;
    int i = 0;
    if (m == 0 || m == 128) return m ? 1.0f : 0.0f;
    while (2 << i <= m) i++;
    const int k = m - (1 << i);
    const float x = shared_mul(shared_mul(shared_add(nf4_step(i, k), nf4_step(i, k + 1)), 0.5f), decade[i]);
    return code < 127 ? -x : x;
}

/* Computes a scale from its byte's number; nf4_weight computes a weight from its level. */
SHARED float nf4_scale(float value, float absmax, float offset)
{
    return shared_add(shared_mul(value, absmax), offset);
}
SHARED float nf4_weight(float level, float scale) { return shared_mul(level, scale); }

/* The parts of n weights. `scales` NULL: absmax has the scales themselves. */
struct nf4_parts {
    const uint8_t *codes;   /* [(n + 1) / 2] */
    const uint8_t *scales;  /* [blocks] */
    const float *absmax;    /* [blocks / 256], rounded up; without double quantization [blocks] */
    const float *offset;    /* [1] */
};
/* Where the parts of a tensor of n weights lie, in bytes from its begin; each is aligned to 16. */
struct nf4_layout {
    uint64_t scales, absmax, offset, bytes;
};
SHARED int64_t nf4_blocks(int64_t n) { return (n + NF4_BLOCK - 1) / NF4_BLOCK; }
SHARED uint64_t nf4_aligned(uint64_t bytes) { return (bytes + NF4_PART_ALIGN - 1) / NF4_PART_ALIGN * NF4_PART_ALIGN; }
SHARED struct nf4_layout nf4_layout(int64_t n, int nested)
{
    const uint64_t blocks = (uint64_t)nf4_blocks(n);
    struct nf4_layout l;
    l.scales = nf4_aligned((uint64_t)(n + 1) / 2);
    l.absmax = nested ? nf4_aligned(l.scales + blocks) : l.scales;
    l.offset = nf4_aligned(l.absmax + (nested ? (blocks + NF4_SCALES - 1) / NF4_SCALES : blocks) * 4);
    l.bytes = nested ? l.offset + 4 : l.absmax + blocks * 4;
    return l;
}

extern const float nf4_levels[16];

/* Computes the codes of n weights, and the scale of each block; `codes` NULL: the scales only. The
 * weights begin at a block; only the last block of a tensor is short. */
void nf4_quantize(uint8_t *codes, float *scales, const void *weights, enum dtype t, int64_t n);
/* Quantizes the scales of a whole tensor to bytes. */
void nf4_quantize_scales(uint8_t *bytes, float *absmax, float *offset, const float *scales, int64_t blocks);
/* Computes weights [at, at + n), rounded to t; `at` is the begin of a block. */
void nf4_dequantize(void *to, enum dtype t, const struct nf4_parts *p, int64_t at, int64_t n);
