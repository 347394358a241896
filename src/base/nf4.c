/*
 * nf4.c: see nf4.h. This file is compiled without fused multiply-add: each product and sum is
 * rounded.
 */
#include "base/nf4.h"

#include <math.h>
#include <pthread.h>

const float nf4_levels[16] = NF4_LEVELS;

/* The smallest scale that a block is divided by. */
#define LEAST_SCALE 1e-38f

/* --- quantizing ------------------------------------------------------------------------------- */

/* Counts the borders between levels below each x: a number half way between two levels gets the
 * lower one. */
static void codes_of(uint8_t *to, const float *x, int n)
{
    float border[15];
    for (int k = 0; k < 15; k++) border[k] = (nf4_levels[k] + nf4_levels[k + 1]) / 2;
    for (int i = 0; i < n; i++) to[i] = 0;
    for (int k = 0; k < 15; k++)
        for (int i = 0; i < n; i++) to[i] = (uint8_t)(to[i] + (x[i] > border[k]));
}

static float largest(const float *x, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    return most;
}

void nf4_quantize(uint8_t *codes, float *scales, const void *weights, enum dtype t, int64_t n)
{
    const uint32_t size = dtype_size(t);
#pragma omp parallel for schedule(static) if (n > 64 * NF4_BLOCK)
    for (int64_t at = 0; at < n; at += NF4_BLOCK) {
        const int width = (int)min_i64(NF4_BLOCK, n - at);
        float x[NF4_BLOCK + 1];
        uint8_t code[NF4_BLOCK + 1];
        dtype_convert(x, DT_F32, (const char *)weights + at * size, t, width);
        float scale = largest(x, width);
        if (width < NF4_BLOCK) scale = fmaxf(scale, LEAST_SCALE);
        scales[at / NF4_BLOCK] = scale;
        if (!codes) continue;
        if (width < NF4_BLOCK) { /* as in bitsandbytes: a short block is divided, others are multiplied */
            for (int i = 0; i < width; i++) x[i] = x[i] / scale;
        } else {
            const float factor = 1.0f / fmaxf(scale, LEAST_SCALE);
            for (int i = 0; i < width; i++) x[i] = x[i] * factor;
        }
        x[width] = 0; /* fills the last byte of an odd count */
        codes_of(code, x, width + width % 2);
        for (int i = 0; i < width; i += 2) codes[(at + i) / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
    }
}

/* --- the mean of the scales ------------------------------------------------------------------- */

/* PyTorch sums eight interleaved sequences, each split in four again; such a column is summed in
 * runs, runs of runs and so on, in four levels. */
enum { LANES = 8, ROWS = 4, LEVELS = 4 };

static int ceil_log2(int64_t n)
{
    int bits = 0;
    while ((int64_t)1 << bits < n) bits++;
    return bits;
}

/* Sums `size` rows of `width` numbers; out: the sum of each column. */
static void sum_rows(float *out, const float *x, int64_t size, int width)
{
    const int power = (int)max_i64(4, ceil_log2(size) / LEVELS);
    const int64_t run = (int64_t)1 << power;
    float acc[LEVELS][LANES * ROWS] = {{0}};
    int64_t i = 0;
    while (i + run <= size) {
        for (const int64_t end = i + run; i < end; i++)
            for (int k = 0; k < width; k++) acc[0][k] += x[i * width + k];
        for (int level = 1; level < LEVELS; level++) {
            for (int k = 0; k < width; k++) {
                acc[level][k] += acc[level - 1][k];
                acc[level - 1][k] = 0;
            }
            if (i & (run - 1) << (level * power)) break;
        }
    }
    for (; i < size; i++)
        for (int k = 0; k < width; k++) acc[0][k] += x[i * width + k];
    for (int k = 0; k < width; k++) out[k] = acc[0][k];
    for (int level = 1; level < LEVELS; level++)
        for (int k = 0; k < width; k++) out[k] += acc[level][k];
}

/* Sums `size` vectors of `lanes` numbers. */
static void sum_vectors(float *out, const float *x, int64_t size, int lanes)
{
    float part[ROWS * LANES];
    const int64_t quarters = size / ROWS;
    sum_rows(part, x, quarters, ROWS * lanes);
    for (int64_t i = quarters * ROWS; i < size; i++)
        for (int k = 0; k < lanes; k++) part[k] += x[i * lanes + k];
    for (int r = 1; r < ROWS; r++)
        for (int k = 0; k < lanes; k++) part[k] += part[r * lanes + k];
    for (int k = 0; k < lanes; k++) out[k] = part[k];
}

static float mean_of(const float *x, int64_t n)
{
    float lane[LANES], sum = 0;
    if (n < LANES) {
        sum_vectors(&sum, x, n, 1);
        return sum / (float)n;
    }
    const int64_t vectors = n / LANES;
    sum_vectors(lane, x, vectors, LANES);
    for (int64_t i = vectors * LANES; i < n; i++) sum += x[i];
    for (int k = 0; k < LANES; k++) sum += lane[k];
    return sum / (float)n;
}

/* --- the scales ------------------------------------------------------------------------------- */

static float map[256];
static void make_map(void)
{
    for (int k = 0; k < 256; k++) map[k] = nf4_map(k);
}

/* Returns the numbers of all bytes, ascending. */
static const float *map_of_bytes(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_map);
    return map;
}

/* Returns the byte whose number is nearest to x, the lower one where two are equally near. */
static uint8_t nearest_byte(const float *number, float x)
{
    int low = 0, high = 255; /* number[high] >= x, or it is the last */
    while (low < high) {
        const int middle = (low + high) / 2;
        if (number[middle] < x) low = middle + 1;
        else high = middle;
    }
    if (!high) return 0;
    return (uint8_t)(fabsf(number[high] - x) < fabsf(x - number[high - 1]) ? high : high - 1);
}

/* Rounds x, in -1..1, to one of 65536 numbers. */
static float rounded(float x)
{
    const int index = (int)((x + 1) * 0.5f * 65535 + 0.5f);
    return 2 * (float)index / 65535 - 1;
}

void nf4_quantize_scales(uint8_t *bytes, float *absmax, float *offset, const float *scales, int64_t blocks)
{
    const float *number = map_of_bytes();
    *offset = mean_of(scales, blocks);
    for (int64_t at = 0; at < blocks; at += NF4_SCALES) {
        const int width = (int)min_i64(NF4_SCALES, blocks - at);
        float x[NF4_SCALES];
        for (int i = 0; i < width; i++) x[i] = scales[at + i] - *offset;
        const float most = largest(x, width), factor = 1.0f / most;
        for (int i = 0; i < width; i++)
            bytes[at + i] = most > 0 ? nearest_byte(number, rounded(fminf(fmaxf(x[i] * factor, -1), 1))) : 0;
        absmax[at / NF4_SCALES] = most;
    }
}

/* --- dequantizing ----------------------------------------------------------------------------- */

/* Two weights per byte. The table has the 16 weights of the block, as elements of the result. A
 * whole block has a constant length, which the compiler unrolls. */
#define UNPACK_OF(type)                                                                                \
    static void unpack_##type(type *restrict to, const uint8_t *restrict codes, const type *restrict table, int64_t n) \
    {                                                                                                  \
        for (int i = 0; i < NF4_BLOCK && n == NF4_BLOCK; i += 2) {                                     \
            to[i] = table[codes[i / 2] >> 4];                                                          \
            to[i + 1] = table[codes[i / 2] & 15];                                                      \
        }                                                                                              \
        for (int64_t i = 0; i < n && n != NF4_BLOCK; i++) to[i] = table[codes[i / 2] >> (i % 2 ? 0 : 4) & 15]; \
    }
UNPACK_OF(uint16_t)
UNPACK_OF(uint32_t)

union table {
    float f[16];
    uint16_t u16[16];
    uint32_t u32[16];
};

static void make_table(union table *to, enum dtype t, float scale)
{
    float weight[16];
    for (int k = 0; k < 16; k++) weight[k] = nf4_weight(nf4_levels[k], scale);
    if (t == DT_BF16) /* without a call: a block is short */
        for (int k = 0; k < 16; k++) to->u16[k] = f32_to_bf16(weight[k]);
    else dtype_convert(to, t, weight, DT_F32, 16);
}

void nf4_dequantize(void *to, enum dtype t, const struct nf4_parts *p, int64_t at, int64_t n)
{
    const float *number = p->scales ? map_of_bytes() : NULL;
    const bool half = dtype_size(t) == 2;
    for (int64_t i = 0; i < n; i += NF4_BLOCK) {
        const int64_t block = (at + i) / NF4_BLOCK, width = min_i64(NF4_BLOCK, n - i);
        const float scale =
            number ? nf4_scale(number[p->scales[block]], p->absmax[block / NF4_SCALES], *p->offset) : p->absmax[block];
        const uint8_t *codes = p->codes + (at + i) / 2;
        union table table;
        make_table(&table, t, scale);
        if (half) unpack_uint16_t((uint16_t *)to + i, codes, table.u16, width);
        else unpack_uint32_t((uint32_t *)to + i, codes, table.u32, width);
    }
}
