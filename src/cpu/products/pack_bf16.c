/*
 * pack_bf16.c: packs bf16 operands into bf16 panels (see pack.h), for the instructions that
 * multiply groups of neighbours in k (micro_bf16.h).
 *
 * A group of one row, 2 or 4 elements, is a word of 32 or 64 bits (or a cache line, for the matrix
 * instructions, with an A panel of rows of 32). So if k is contiguous a panel is a transpose of
 * words, and if the row index is, lanes of 2 or 4 steps of k are interleaved in registers:
 *
 *     along  = 1   row i   [g0][g1]       to  [g0 of i][g0 of i+1] .. width .. [g1 of i][g1 of i+1]
 *                  row i+1 [g0][g1]
 *     across = 1   k   a b c d            to  [a e i m][b f j n][c ..][d ..]
 *                  k+1 e f g h
 *                  k+2 i j k l
 *                  k+3 m n o p
 *
 * There is no arithmetic: bits are moved, and the padding is 0.
 */
#include "cpu/products/pack.h"

enum { STEPS = 16, STRIP = 96 }; /* of k and of lanes, if lanes are contiguous */

typedef uint16_t eight __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));
typedef uint64_t pair __attribute__((vector_size(16)));

static inline eight eight_load(const uint16_t *p)
{
    eight x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Loads four elements into the lower half. */
static inline eight four_load(const uint16_t *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return (eight)(pair){x, 0};
}

static inline eight zip_low(eight a, eight b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
static inline eight zip_high(eight a, eight b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }

/* --- k contiguous ---------------------------------------------------------------------- */

/* Moves two groups of 4 of two rows; the second group is stored `step` elements after the first. */
static inline void move_pairs(uint16_t *to, int64_t step, const uint16_t *a, const uint16_t *b)
{
    pair x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    pair first = __builtin_shufflevector(x, y, 0, 2), second = __builtin_shufflevector(x, y, 1, 3);
    memcpy(to, &first, sizeof first);
    memcpy(to + step, &second, sizeof second);
}

/* Moves four groups of 2 of four rows; each is stored `step` elements after the previous one. */
static inline void move_words(uint16_t *to, int64_t step, const uint16_t *from, int64_t across)
{
    words r[4], low[2], high[2];
    for (int i = 0; i < 4; i++) memcpy(&r[i], from + i * across, sizeof r[i]);
    for (int i = 0; i < 2; i++) {
        low[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 4, 1, 5);
        high[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 6, 3, 7);
    }
    r[0] = __builtin_shufflevector(low[0], low[1], 0, 1, 4, 5),
    r[1] = __builtin_shufflevector(low[0], low[1], 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(high[0], high[1], 0, 1, 4, 5),
    r[3] = __builtin_shufflevector(high[0], high[1], 2, 3, 6, 7);
    for (int i = 0; i < 4; i++) memcpy(to + i * step, &r[i], sizeof r[i]);
}

/* Packs one panel of n <= width lanes, `tall` steps of k including the padding. Eight steps of k
 * are moved at a time if groups are small enough; a group of 32 is a cache line already. */
static inline __attribute__((always_inline)) void pack_along(uint16_t *to, int width, int group, int64_t tall,
                                                             const uint16_t *from, int64_t across, int64_t n, int64_t K)
{
    int64_t step = (int64_t)width * group, whole = K / group * group;
    if (n < width || whole < tall) memset(to, 0, (size_t)(width * tall) * sizeof *to);
    for (int64_t k = 0, done = 0; k < whole; k = done) {
        bool eight_steps = group < 8 && k + 8 <= whole;
        done = k + (eight_steps ? 8 : group);
        uint16_t *at = to + k * width;
        int64_t i = 0;
        if (eight_steps && group == 4)
            for (; i + 2 <= n; i += 2) move_pairs(at + i * 4, step, from + i * across + k, from + (i + 1) * across + k);
        if (eight_steps && group == 2)
            for (; i + 4 <= n; i += 4) move_words(at + i * 2, step, from + i * across + k, across);
        for (int64_t g = 0; g < done - k; g += group)
            for (int64_t r = i; r < n; r++)
                memcpy(at + g * width + r * group, from + r * across + k + g, (size_t)group * sizeof *to);
    }
    for (int64_t i = 0; whole < K && i < n; i++)
        memcpy(to + whole * width + i * group, from + i * across + whole, (size_t)(K - whole) * sizeof *to);
}

/* Packs all panels, for the groups in use. */
static void pack_along_any(uint16_t *to, int width, int group, int64_t tall, const uint16_t *from, int64_t across,
                           int64_t n, int64_t K)
{
    for (int64_t i = 0; i < n; i += width, to += width * tall, from += width * across) {
        int64_t lanes = min_i64(width, n - i);
        if (group == 4) pack_along(to, width, 4, tall, from, across, lanes, K);
        else if (group == 2) pack_along(to, width, 2, tall, from, across, lanes, K);
        else pack_along(to, width, 32, tall, from, across, lanes, K);
    }
}

/* --- lanes contiguous --------------------------------------------------------------------- */

/* Stores four lanes of one group, with steps of k interleaved in pairs. */
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

/* Transposes eight steps of eight lanes to eight lanes of eight steps, which are 32 elements
 * apart. */
static inline void transpose_eight(uint16_t *to, const uint16_t *from, int64_t along)
{
    eight a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = eight_load(from + i * along);
    /* Interleave step i with step i+4, then i+2, then i+1: after three rounds all steps of a lane
     * are adjacent. */
    for (int i = 0; i < 4; i++) b[2 * i] = zip_low(a[i], a[i + 4]), b[2 * i + 1] = zip_high(a[i], a[i + 4]);
    for (int i = 0; i < 4; i++) a[2 * i] = zip_low(b[i], b[i + 4]), a[2 * i + 1] = zip_high(b[i], b[i + 4]);
    for (int i = 0; i < 4; i++) b[2 * i] = zip_low(a[i], a[i + 4]), b[2 * i + 1] = zip_high(a[i], a[i + 4]);
    for (int i = 0; i < 8; i++) memcpy(to + i * 32, &b[i], sizeof b[i]);
}

/* Moves eight lanes, and four, of a whole group. */
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

/* Moves a group at the end of the lanes or of k: the remaining elements, then 0. */
static void move_some(uint16_t *to, int width, int group, const uint16_t *from, int64_t along, int64_t lanes, int64_t K)
{
    for (int i = 0; i < width; i++)
        for (int k = 0; k < group; k++) to[i * group + k] = i < lanes && k < K ? from[k * along + i] : 0;
}

/* Moves one group of one panel. */
static inline void move_group(uint16_t *to, int width, int group, const uint16_t *from, int64_t along, int64_t lanes,
                              int64_t K)
{
    int i = 0;
    if (lanes < width || K < group) {
        move_some(to, width, group, from, along, lanes, K);
        return;
    }
    if (group == 32) {
        for (; i < width; i += 8)
            for (int k = 0; k < 32; k += 8) transpose_eight(to + i * 32 + k, from + i + k * along, along);
        return;
    }
    for (; i + 8 <= width; i += 8) move_eight(to + i * group, group, from + i, along);
    for (; i < width; i += 4) move_four(to + i * group, group, from + i, along);
}

/* Packs all panels. A strip of lanes is packed for a few groups of k before the next strip: reads
 * stay in a few rows, writes in a few panels. */
static inline __attribute__((always_inline)) void pack_across(uint16_t *to, int width, int group, int64_t tall,
                                                              const uint16_t *from, int64_t along, int64_t n, int64_t K)
{
    int64_t lanes = (n + width - 1) / width * width, steps = group > STEPS ? group : STEPS;
    for (int64_t k0 = 0; k0 < K; k0 += steps)
        for (int64_t i0 = 0; i0 < lanes; i0 += STRIP)
            for (int64_t k = k0; k < min_i64(K, k0 + steps); k += group)
                for (int64_t p = i0; p < min_i64(lanes, i0 + STRIP); p += width)
                    move_group(to + p * tall + k * width, width, group, from + p + k * along, along, n - p, K - k);
    int64_t moved = (K + group - 1) / group * group;
    for (int64_t p = 0; moved < tall && p < lanes; p += width)
        memset(to + p * tall + moved * width, 0, (size_t)((tall - moved) * width) * sizeof *to);
}

/* --- dispatch --------------------------------------------------------------------------------- */

static void pack_scattered(uint16_t *to, int width, int group, int64_t tall, const uint16_t *from, int64_t across,
                           int64_t along, int64_t n, int64_t K)
{
    for (int64_t p = 0; p < n; p += width)
        for (int64_t k = 0; k < tall; k += group)
            for (int64_t i = p; i < p + width; i++)
                for (int64_t x = k; x < k + group; x++) *to++ = i < n && x < K ? from[i * across + x * along] : 0;
}

void pack_panels_bf16(uint16_t *to, int width, int group, int whole, const uint16_t *from, int64_t across,
                      int64_t along, int64_t n, int64_t K)
{
    int64_t tall = (K + whole - 1) / whole * whole;
    if (along == 1) pack_along_any(to, width, group, tall, from, across, n, K);
    else if (across != 1) pack_scattered(to, width, group, tall, from, across, along, n, K);
    else if (group == 4 && width == 8) pack_across(to, 8, 4, tall, from, along, n, K);
    else if (group == 4 && width == 12) pack_across(to, 12, 4, tall, from, along, n, K);
    else if (group == 2 && width == 12) pack_across(to, 12, 2, tall, from, along, n, K);
    else if (group == 2 && width == 32) pack_across(to, 32, 2, tall, from, along, n, K);
    else if (group == 32) pack_across(to, width, 32, tall, from, along, n, K);
    else pack_across(to, width, group, tall, from, along, n, K);
}
