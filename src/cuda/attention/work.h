/*
 * work.h: the workspace layout of the CUDA attention kernels, shared by the planning
 * half, which reserves it, and the running half, which uses it.
 *
 *     delta    [B,H,T up to 64s]       rowsum(do * o)                             backward
 *     lse2     the same                lse in base 2                              backward
 *     tables   [J,D], then [D,J]       both tables in f32, J = 2 height + 2 width - 2      REL
 *     rel      [B,H,T,height+width]    a query's term for each grid row and column         REL
 *              (64 columns: [B,H,height+width,T])
 *     drel     the same                sums of ds by a key's row and column       backward, REL
 *     bias     [H,T]                   the table in f32                                    BIAS
 *     partial  REL  [groups,J,D]       gradients of the tables, by groups of heads  backward
 *              BIAS [B,tiles,H,T]      by samples and tiles of queries              backward
 *     seen     [B,T up to 64s,2]       a query's range of keys within 0 .. S, the window applied      ranges
 *     bounds   [B,T / 64]              struct range_bounds of each 64 queries                         ranges
 *     order    [B,T / 64]              tiles of queries, those with most keys first                   ranges
 *     key_order   [2,B,S / 64]         tiles of keys, those with most queries first; their work       backward, ranges
 *     taken    [2]                     how many tiles blocks have taken so far                        ranges
 *
 * and of ATTENTION_WINDOW_BWD's, where a window is one of a sample and a head, ((b * down + y) *
 * across + x) * H + h:
 *
 *     tables   [windows, 2 (2 window - 1), D]    gradients of both tables, window by window
 *     pads     [windows, 2, D]                   gradient of pad, likewise
 */
#ifndef ATTENTION_WORK_H
#define ATTENTION_WORK_H

#include <stdint.h>

enum attention_mode { ATTENTION_PLAIN, ATTENTION_BY_TABLES, ATTENTION_BY_BIAS };

/* What a tensor-core kernel adds to the scores: nothing, a mask by key, the position terms of a
 * grid, those of a grid of 64 columns, a bias by distance. */
enum score_terms { ADDS_NOTHING, ADDS_MASK, ADDS_TABLES, ADDS_GRID64, ADDS_BIAS };

/* Heads are split into at most ATTENTION_GROUPS groups, each with a partial sum of the tables'
 * gradients. With a grid of 64 columns the grid's rows are split instead, into more groups
 * (grid64.cu). */
enum { ATTENTION_GROUPS = 64, ATTENTION_ROW_GROUPS = 264 };

/* The columns of a head in the tiles of the tensor-core kernels, which multiply 16 at a time: a
 * head of 72 is one of 80 whose last columns are zeros and are not stored. */
#define ATTENTION_PADDED(D) (((D) + 15) / 16 * 16)

/* Limits of the tensor-core kernels for a grid: rows plus columns; positions, in the gradient of a
 * bias. Within them the tiles fit the shared memory that a block may have on any GPU from 8.0 on.
 * Tiles of heads up to ATTENTION_SMALL, with nothing added or a grid of 64 columns, also fit that
 * of 7.5. */
enum {
    ATTENTION_GRID = 160,
    ATTENTION_BIASES = 1024,
    ATTENTION_SMALL = 80,
    ATTENTION_SHARED = 99 * 1024,
    ATTENTION_SHARED_SM75 = 64 * 1024
};

/* The width of a grid for which a tile of 64 keys is exactly one row of the grid. */
enum { ATTENTION_GRID64_WIDTH = 64 };

/* The least number of queries and of keys for the kernels of 9.0: the length of their tiles. */
enum { ATTENTION_HOPPER_LEAST = 64 };

/* The largest window of ATTENTION_WINDOW, without tensor cores and with them. */
enum { WINDOW_PLAIN = 32, WINDOW_FAST = 14 };

struct attention_sizes {
    int64_t B, T, H, D, height, width;
    enum attention_mode mode;
    int backward;
    int ranges; /* whether each query has a range of keys; S then counts */
    int64_t S;
};

/* The ranges of 64 queries (ranges.cu): the keys that any of them sees, and those that all of them
 * see; queries without keys count in the latter only. */
struct range_bounds {
    int32_t begin, end, all_begin, all_end;
    int32_t border;  /* another document begins at one of them but the first */
    int32_t fresh;   /* another document begins at the first */
    int32_t unused[2];
};

/* Offsets in bytes. */
struct attention_work {
    uint64_t delta, lse2, tables, rel, drel, bias, partial, seen, bounds, order, key_order, taken, total;
};

/* Queries per block of the backward without tensor cores: the smallest tile of any kernel. */
static inline int64_t attention_small_tile(int64_t D) { return D <= 64 ? 32 : 16; }

/* The forms of the kernels without tensor cores: tiles for heads up to 64 or up to 256; with ranges
 * of keys. */
enum plain_form { PLAIN_64, PLAIN_256, PLAIN_64_RANGES, PLAIN_256_RANGES };
static inline enum plain_form plain_form(int64_t D, int ranges)
{
    return ranges ? D <= 64 ? PLAIN_64_RANGES : PLAIN_256_RANGES : D <= 64 ? PLAIN_64 : PLAIN_256;
}

/* Those of the dense and the Hopper kernels: a query sees all keys that causality and a window
 * allow, or a range of them. Hopper's ranges need an order of tiles: a block makes it after the
 * bounds, or, where these take several blocks, a launch of its own (ranges.cu). */
enum seen_form { SEEN_ALL, SEEN_RANGES, SEEN_RANGES_APART };
enum {
    RANGES_THREADS = 1024,
    RANGES_TILES = RANGES_THREADS / 32 /* 64s of queries of a block at a time */,
    RANGES_ALONE = 8 /* of them, up to which a second launch would take longer */
};
static inline int64_t ranges_blocks(int64_t B, int64_t T)
{
    return (B * ((T + 63) / 64) + RANGES_TILES - 1) / RANGES_TILES;
}
static inline enum seen_form seen_form(int64_t B, int64_t T, int ranges, int ordered)
{
    return !ranges ? SEEN_ALL : ordered && ranges_blocks(B, T) > RANGES_ALONE ? SEEN_RANGES_APART : SEEN_RANGES;
}

static inline int64_t attention_groups(int64_t heads, int64_t height, int64_t width)
{
    const int64_t n = width == 64 ? heads * height : heads,
                  most = width == 64 ? ATTENTION_ROW_GROUPS : ATTENTION_GROUPS;
    return n < most ? n : most;
}

static inline uint64_t attention_reserve(uint64_t *at, int64_t floats)
{
    uint64_t here = *at;
    *at += ((uint64_t)floats * sizeof(float) + 255) / 256 * 256;
    return here;
}

static inline struct attention_work attention_work_of(const struct attention_sizes *n)
{
    struct attention_work w = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint64_t at = 0;
    const int64_t heads = n->B * n->H, rows = heads * n->T, R = n->height + n->width, J = 2 * R - 2;
    const int64_t tile = attention_small_tile(n->D), tiles = (n->T + tile - 1) / tile;
    const int64_t padded = heads * ((n->T + 63) / 64 * 64);
    if (n->backward) w.delta = attention_reserve(&at, padded), w.lse2 = attention_reserve(&at, padded);
    if (n->mode == ATTENTION_BY_TABLES) {
        w.tables = attention_reserve(&at, 2 * J * n->D);
        w.rel = attention_reserve(&at, rows * R);
        if (n->backward) w.drel = attention_reserve(&at, rows * R);
        if (n->backward) w.partial = attention_reserve(&at, attention_groups(heads, n->height, n->width) * J * n->D);
    }
    if (n->mode == ATTENTION_BY_BIAS) {
        w.bias = attention_reserve(&at, n->H * n->T);
        if (n->backward) w.partial = attention_reserve(&at, heads * tiles * n->T);
    }
    if (n->ranges) {
        const int64_t sixty_fours = n->B * ((n->T + 63) / 64);
        w.seen = attention_reserve(&at, 2 * 64 * sixty_fours);
        w.bounds = attention_reserve(&at, sixty_fours * (int64_t)(sizeof(struct range_bounds) / sizeof(float)));
        w.order = attention_reserve(&at, sixty_fours);
        if (n->backward) w.key_order = attention_reserve(&at, 2 * n->B * ((n->S + 63) / 64));
        w.taken = attention_reserve(&at, 2);
    }
    w.total = at;
    return w;
}

struct window_work {
    uint64_t tables, pads, total;
};

/* Offsets in bytes, for `windows` windows. */
static inline struct window_work window_work_of(int64_t windows, int64_t window, int64_t D)
{
    struct window_work w = {0, 0, 0};
    uint64_t at = 0;
    w.tables = attention_reserve(&at, windows * 2 * (2 * window - 1) * D);
    w.pads = attention_reserve(&at, windows * 2 * D);
    w.total = at;
    return w;
}

#endif
