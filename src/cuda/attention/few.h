/*
 * few.h: the split of attention with few queries or few keys into blocks, and its
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
 * With one split a gradient is written directly. Everything here is a function of the shape alone.
 */
#ifndef ATTENTION_FEW_H
#define ATTENTION_FEW_H

#include <stdint.h>

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

/* `whole`: the samples of which B are a part (struct portion): the splits, and so the order of the
 * sums, are those of all. */
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

#endif
