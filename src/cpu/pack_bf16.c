/*
 * pack_bf16.c: bf16 panels from bf16 operands (see pack.h), for the instructions that
 * multiply groups of neighbours in k (micro_bf16.h).
 *
 * A group of one row, 2 or 4 elements, is a word of 32 or 64 bits. So where k is
 * contiguous a panel is a transpose of words, and where the rows' index is, lanes of
 * 2 or 4 steps of k are interleaved in registers:
 *
 *     along  = 1   row i   [g0][g1]       to  [g0 of i][g0 of i+1] .. width .. [g1 of i][g1 of i+1]
 *                  row i+1 [g0][g1]
 *     across = 1   k   a b c d            to  [a e i m][b f j n][c ..][d ..]
 *                  k+1 e f g h
 *                  k+2 i j k l
 *                  k+3 m n o p
 *
 * No arithmetic: bits are moved, and what fills up is 0.
 */
#include <string.h>

#include "cpu/pack.h"

enum { STEPS = 16, STRIP = 96 }; /* of k and of lanes, where lanes are contiguous */

typedef uint16_t eight __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));
typedef uint64_t pair __attribute__((vector_size(16)));

static inline eight eight_load(const uint16_t *p)
{
    eight x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Four elements in the lower half. */
static inline eight four_load(const uint16_t *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return (eight)(pair){x, 0};
}

static inline eight zip_low(eight a, eight b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
static inline eight zip_high(eight a, eight b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }

/* --- k contiguous ---------------------------------------------------------------------- */

/* Two groups of 4 of two rows; the second group goes `step` elements behind the first. */
static inline void move_pairs(uint16_t *to, int64_t step, const uint16_t *a, const uint16_t *b)
{
    pair x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    pair first = __builtin_shufflevector(x, y, 0, 2), second = __builtin_shufflevector(x, y, 1, 3);
    memcpy(to, &first, sizeof first);
    memcpy(to + step, &second, sizeof second);
}

/* One panel of n <= width lanes. */
static void pack_along(uint16_t *to, int width, int group, const uint16_t *from, int64_t across, int64_t n, int64_t K)
{
    int64_t step = (int64_t)width * group, whole = K / group * group;
    if (n < width || whole < K) memset(to, 0, (size_t)panel_bf16(width, n, K, group) * sizeof *to);
    for (int64_t k = 0, done = 0; k < whole; k = done) {
        bool two = group == 4 && k + 8 <= whole;
        done = k + (two ? 8 : group);
        uint16_t *at = to + k * width;
        int64_t i = 0;
        for (; two && i + 2 <= n; i += 2) move_pairs(at + i * 4, step, from + i * across + k, from + (i + 1) * across + k);
        for (int64_t g = 0; g < done - k; g += group)
            for (int64_t r = i; r < n; r++)
                memcpy(at + g * width + r * group, from + r * across + k + g, (size_t)group * sizeof *to);
    }
    for (int64_t i = 0; whole < K && i < n; i++)
        memcpy(to + whole * width + i * group, from + i * across + whole, (size_t)(K - whole) * sizeof *to);
}

/* --- lanes contiguous --------------------------------------------------------------------- */

/* Four lanes of one group, whose steps of k are interleaved in pairs. */
static inline void store_lanes(uint16_t *to, int group, eight a, eight b)
{
    if (group == 2) {
        memcpy(to, &a, sizeof a);
        return;
    }
    words first = __builtin_shufflevector((words)a, (words)b, 0, 4, 1, 5);
    words second = __builtin_shufflevector((words)a, (words)b, 2, 6, 3, 7);
    memcpy(to, &first, sizeof first);
    memcpy(to + 8, &second, sizeof second);
}

/* Eight lanes and four of a whole group. */
static inline void move_eight(uint16_t *to, int group, const uint16_t *from, int64_t along)
{
    eight r0 = eight_load(from), r1 = eight_load(from + along), r2 = r0, r3 = r0;
    if (group == 4) r2 = eight_load(from + 2 * along), r3 = eight_load(from + 3 * along);
    store_lanes(to, group, zip_low(r0, r1), zip_low(r2, r3));
    store_lanes(to + 4 * group, group, zip_high(r0, r1), zip_high(r2, r3));
}

static inline void move_four(uint16_t *to, int group, const uint16_t *from, int64_t along)
{
    eight r0 = four_load(from), r1 = four_load(from + along), r2 = r0, r3 = r0;
    if (group == 4) r2 = four_load(from + 2 * along), r3 = four_load(from + 3 * along);
    store_lanes(to, group, zip_low(r0, r1), zip_low(r2, r3));
}

/* The end of the lanes or of k: what there is, then 0. */
static void move_some(uint16_t *to, int width, int group, const uint16_t *from, int64_t along, int64_t lanes, int64_t K)
{
    for (int i = 0; i < width; i++)
        for (int k = 0; k < group; k++) to[i * group + k] = i < lanes && k < K ? from[k * along + i] : 0;
}

/* One group of one panel. */
static inline void move_group(uint16_t *to, int width, int group, const uint16_t *from, int64_t along, int64_t lanes,
                              int64_t K)
{
    int i = 0;
    if (lanes < width || K < group) {
        move_some(to, width, group, from, along, lanes, K);
        return;
    }
    for (; i + 8 <= width; i += 8) move_eight(to + i * group, group, from + i, along);
    for (; i < width; i += 4) move_four(to + i * group, group, from + i, along);
}

/* All panels. A strip of lanes for a few groups of k before the next strip: reads stay on
 * a few rows, writes on a few panels. */
static inline __attribute__((always_inline)) void pack_across(uint16_t *to, int width, int group, const uint16_t *from,
                                                              int64_t along, int64_t n, int64_t K)
{
    int64_t tall = (K + group - 1) / group * group, lanes = (n + width - 1) / width * width;
    for (int64_t k0 = 0; k0 < K; k0 += STEPS)
        for (int64_t i0 = 0; i0 < lanes; i0 += STRIP)
            for (int64_t k = k0; k < min_i64(K, k0 + STEPS); k += group)
                for (int64_t p = i0; p < min_i64(lanes, i0 + STRIP); p += width)
                    move_group(to + p * tall + k * width, width, group, from + p + k * along, along, n - p, K - k);
}

/* --- any -------------------------------------------------------------------------------------- */

static void pack_scattered(uint16_t *to, int width, int group, const uint16_t *from, int64_t across, int64_t along,
                           int64_t n, int64_t K)
{
    for (int64_t p = 0; p < n; p += width)
        for (int64_t k = 0; k < K; k += group)
            for (int64_t i = p; i < p + width; i++)
                for (int64_t x = k; x < k + group; x++) *to++ = i < n && x < K ? from[i * across + x * along] : 0;
}

void pack_panels_bf16(uint16_t *to, int width, int group, const uint16_t *from, int64_t across, int64_t along, int64_t n,
                      int64_t K)
{
    if (along == 1) {
        for (int64_t i = 0; i < n; i += width)
            pack_along(to + panel_bf16(width, i, K, group), width, group, from + i * across, across, min_i64(width, n - i), K);
    } else if (across != 1) {
        pack_scattered(to, width, group, from, across, along, n, K);
    } else if (group == 4 && width == 8) {
        pack_across(to, 8, 4, from, along, n, K);
    } else if (group == 4 && width == 12) {
        pack_across(to, 12, 4, from, along, n, K);
    } else {
        pack_across(to, width, group, from, along, n, K);
    }
}
