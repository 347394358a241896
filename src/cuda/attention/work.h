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
 *     and with ranges:
 *     seen     [B,T up to 64s,2]       a query's range of keys within 0 .. S, the window applied
 *     bounds   [B,T / 64]              struct range_bounds of each 64 queries
 *     order    [B,T / 64]              tiles of queries, those with most keys first
 *     key_order   [2,B,S / 64]         tiles of keys, those with most queries first; their work
 *                                                                                 backward
 *     taken    [2]                     the number of tiles that blocks have taken
 *
 * and of ATTENTION_WINDOW_BWD's, where a window is one of a sample and a head, ((b * down + y) *
 * across + x) * H + h:
 *
 *     tables   [windows, 2 (2 window - 1), D]    gradients of both tables, window by window
 *     pads     [windows, 2, D]                   gradient of pad, likewise
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum attention_mode { ATTENTION_PLAIN, ATTENTION_BY_TABLES, ATTENTION_BY_BIAS };

/* What a tensor-core kernel adds to the scores: nothing; nothing, but a cap is on them; a mask by
 * key, the position terms of a grid, those of a grid of 64 columns, a bias by distance. */
enum score_terms { ADDS_NOTHING, ADDS_CAP, ADDS_MASK, ADDS_TABLES, ADDS_GRID64, ADDS_BIAS };

/* Heads are split into at most ATTENTION_GROUPS groups, each with a partial sum of the tables'
 * gradients. With a grid of 64 columns the grid's rows are split instead, into more groups
 * (grid64.cu). */
enum { ATTENTION_GROUPS = 64, ATTENTION_ROW_GROUPS = 264 };

/* The columns of a head in the tiles of the tensor-core kernels, which multiply 16 at a time: a
 * head of 72 is one of 80, and one of 56 one of 64, whose last columns are zeros and are not
 * stored. */
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

/* Returns the queries per block of the backward without tensor cores: the smallest tile of any
 * kernel. */
static inline int64_t attention_small_tile(int64_t D) { return D <= 64 ? 32 : 16; }

/* The forms of the kernels without tensor cores: tiles for heads up to 64 or up to 256; with ranges
 * of keys. */
enum plain_form { PLAIN_64, PLAIN_256, PLAIN_64_RANGES, PLAIN_256_RANGES };
static inline enum plain_form plain_form(int64_t D, int ranges)
{
    return ranges ? D <= 64 ? PLAIN_64_RANGES : PLAIN_256_RANGES : D <= 64 ? PLAIN_64 : PLAIN_256;
}

/* The forms of the dense and the Hopper kernels: a query sees all keys that causality and a window
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

/* Returns the offsets in bytes, for `windows` windows. */
static inline struct window_work window_work_of(int64_t windows, int64_t window, int64_t D)
{
    struct window_work w = {0, 0, 0};
    uint64_t at = 0;
    w.tables = attention_reserve(&at, windows * 2 * (2 * window - 1) * D);
    w.pads = attention_reserve(&at, windows * 2 * D);
    w.total = at;
    return w;
}

/* --- shared memory of a block ----------------------------------------------------------------- */

/* The shared memory per block of the tensor-core kernels that add a term to the scores
 * (forward.cu, dkv.cu, dq.cu), in bytes. The kernels use it to launch, the plan to see whether
 * a GPU of compute capability 7.5 has as much. */

#ifdef __cplusplus
#define SHARED_BYTES static constexpr size_t __host__ __device__
#define SHARED_COUNT static constexpr int __host__ __device__
#else
#define SHARED_BYTES static inline size_t
#define SHARED_COUNT static inline int
#endif

/* Rows that a block holds; the tiles by which it traverses the other side. */
enum {
    FAST_WARPS = 4,
    FAST_HELD = 16 * FAST_WARPS,
    FAST_KEYS = 64,
    FAST_DKV_QUERIES = 32,
    FAST_DKV_STATS = 3 * FAST_DKV_QUERIES
};

/* Returns the pitch in floats of a tile of position terms: accesses by pairs cause few bank
 * conflicts. */
SHARED_COUNT position_stride(int numbers) { return (numbers + 11) / 16 * 16 + 4; }

/* Returns where the columns of a grid begin behind its rows: in the forward, and in the dk/dv
 * kernel, which holds the rows of the grid that its keys are in. */
SHARED_COUNT forward_columns(int height) { return (height + 1) / 2 * 2; }
SHARED_COUNT dkv_key_rows(int height, int width)
{
    return (FAST_HELD - 1) / width + 2 < height ? (FAST_HELD - 1) / width + 2 : height;
}
SHARED_COUNT dkv_columns(int height, int width) { return (dkv_key_rows(height, width) + 3) / 4 * 4; }

SHARED_COUNT dq_keys(int D) { return D <= 80 ? 64 : 32; }
SHARED_COUNT dq_slots(int D, enum score_terms added) { return added == ADDS_TABLES || D > 128 ? 1 : 2; }
SHARED_BYTES dq_tile_bytes(int D, enum score_terms added)
{
    return (size_t)(2 * FAST_HELD + 2 * dq_slots(D, added) * dq_keys(D)) * D * 2;
}

/* Returns the bytes of a block. `stride`: of the positions; `biases`: the number of positions, for
 * ADDS_BIAS. */
SHARED_BYTES fast_bytes(int D, enum score_terms added, int stride, int biases)
{
    return (size_t)(FAST_HELD + 2 * FAST_KEYS) * D * 2 + (size_t)(FAST_KEYS + (added == ADDS_TABLES ? FAST_HELD * stride
                                                                               : added == ADDS_BIAS ? biases
                                                                                                    : 0)) *
                                                             sizeof(float);
}
SHARED_BYTES fast_dq_bytes(int D, enum score_terms added, int stride, int biases)
{
    return dq_tile_bytes(D, added) +
           (size_t)(dq_slots(D, added) * dq_keys(D) +
                    (added == ADDS_MASK
                         ? 0
                         : FAST_HELD * (dq_keys(D) + 4) +
                               (added == ADDS_TABLES ? FAST_HELD * stride : (FAST_WARPS + 1) * biases))) *
               sizeof(float);
}
SHARED_BYTES fast_dkv_bytes(int D, enum score_terms added, int stride, int biases)
{
    return (size_t)4 * FAST_DKV_QUERIES * D * 2 +
           (size_t)(2 * FAST_DKV_STATS + (added == ADDS_TABLES ? 2 * FAST_DKV_QUERIES * stride
                                          : added == ADDS_BIAS ? biases
                                                               : 0)) *
               sizeof(float);
}

/* --- few queries ------------------------------------------------------------------------------ */

/* The split of attention with few queries or few keys into blocks, and its
 * workspace; shared by the planning half, which reserves it, and the running half, which uses it.
 *
 * One side of the attention has few items (`few`, at most N per block, in shared memory), the other
 * has many (`rows`, streamed through registers). A lane holds V elements of a row; `lanes` of them,
 * a power of two, hold a head; a warp holds `heads` heads of one row or, if that leaves lanes free,
 * of several rows.
 *
 *     FEW_KEYS      S <= 16: rows are queries. dk and dv are sums over rows.
 *     FEW_QUERIES   else: rows are keys, queries are in tiles of N. o, lse, dq are sums over rows.
 *
 * Sums over rows are computed per split of the rows, then over the splits in order:
 *
 *     FEW_KEYS      backward  dk, dv  [splits,B,S,H,D] each
 *     FEW_QUERIES   forward   o       [splits,B,T,H,D], maximum and sum [splits,B,T,H] each
 *                   backward  dq      [splits,B,T,H,D]
 *
 * With one split a gradient is written directly. All of this is a function of the shape. */

enum few_side { FEW_KEYS, FEW_QUERIES };
enum {
    FEW_MOST = 16,      /* items of the few side per tile */
    FEW_TILE = 8,       /* queries per tile if there are more than that */
    FEW_WARPS = 8,      /* per block */
    FEW_BLOCKS = 1024,  /* target: a few waves on a large GPU */
    FEW_TURNS = 4,      /* minimum rows per lane in a split */
    FEW_MMA_WIDTH = 16, /* D of the tensor-core kernels */
};

/* The kernels: the few items are held as 8 or 16, or queries beyond that are in tiles, with dk and
 * dv in a launch of their own. */
enum few_form { FEW_KEYS_8, FEW_KEYS_16, FEW_QUERIES_8, FEW_QUERIES_16, FEW_QUERY_TILES };
static inline enum few_form few_form(int64_t T, int64_t S)
{
    if (S <= FEW_MOST) return S <= FEW_TILE ? FEW_KEYS_8 : FEW_KEYS_16;
    return T <= FEW_TILE ? FEW_QUERIES_8 : T <= FEW_MOST ? FEW_QUERIES_16 : FEW_QUERY_TILES;
}

struct few_cut {
    enum few_side side;
    int N, V, lanes, heads;             /* see above; heads: per block */
    int groups, tiles, splits;          /* groups of heads, tiles of queries, splits of rows */
    int64_t rows, split_rows;
    uint64_t other, total;              /* workspace in bytes: o, dq or dk, then, at `other`, maximum and sum, or dv */
};

static inline int64_t few_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Splits an attention into blocks. `whole`: the samples of which B are a part (struct portion): the
 * splits, and so the order of the sums, are those of all. */
static inline struct few_cut few_cut_of(int64_t B, int64_t whole, int64_t T, int64_t S, int64_t H, int64_t D,
                                        int backward)
{
    struct few_cut c = {S <= FEW_MOST ? FEW_KEYS : FEW_QUERIES, FEW_TILE, 8, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    const int64_t few = c.side == FEW_KEYS ? S : T;
    if (few > FEW_TILE && few <= FEW_MOST) c.N = 16, c.V = 4;
    if (few > FEW_MOST) c.tiles = (int)few_ceil(few, FEW_TILE);
    while (c.lanes * c.V < D) c.lanes *= 2;
    c.heads = 32 / c.lanes < H ? 32 / c.lanes : (int)H;
    c.groups = (int)few_ceil(H, c.heads);
    c.rows = c.side == FEW_KEYS ? T : S;
    const int64_t turn = (int64_t)FEW_WARPS * (32 / (c.heads * c.lanes)), units = whole * c.groups * c.tiles;
    int64_t splits = few_ceil(FEW_BLOCKS, units);
    if (splits > few_ceil(c.rows, turn * FEW_TURNS)) splits = few_ceil(c.rows, turn * FEW_TURNS);
    c.split_rows = few_ceil(few_ceil(c.rows, splits), turn) * turn;
    c.splits = (int)few_ceil(c.rows, c.split_rows);

    const uint64_t sums = (uint64_t)(c.splits * B * few * H * D) * sizeof(float);
    const uint64_t behind = (sums + 255) / 256 * 256;
    if (c.side == FEW_KEYS && backward && c.splits > 1) c.other = behind, c.total = behind + sums;
    if (c.side == FEW_QUERIES && backward && c.splits > 1) c.total = sums;
    if (c.side == FEW_QUERIES && !backward) c.other = behind, c.total = behind + 2 * sums / (uint64_t)D;
    return c;
}
