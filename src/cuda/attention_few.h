/*
 * attention_few.h: how attention over few tokens is cut into blocks, and its workspace; once for
 * the planning half, which asks for it, and the running half, which uses it.
 *
 * One side of the attention is few (`few`, at most N to a block, in shared memory), the other is many
 * (`rows`, streamed through registers). A lane holds V elements of a row; `lanes` of them, a power of
 * two, hold a head; a warp holds `heads` heads of one row or, where that leaves lanes free, of several.
 *
 *     FEW_KEYS      S <= 16: rows are queries. dk and dv are sums over rows.
 *     FEW_QUERIES   else: rows are keys, queries come in tiles of N. o, lse and dq are sums over rows.
 *
 * Sums over rows are made by splits of the rows, then by the splits in their order:
 *
 *     FEW_KEYS      backward  dk, dv  [splits,B,S,H,D] each
 *     FEW_QUERIES   forward   o       [splits,B,T,H,D], maximum and sum [splits,B,T,H] each
 *                   backward  dq      [splits,B,T,H,D]
 *
 * With one split a gradient is written at once. Everything here is a function of the shape alone.
 */
#ifndef ATTENTION_FEW_H
#define ATTENTION_FEW_H

#include <stdint.h>

enum few_side { FEW_KEYS, FEW_QUERIES };
enum {
    FEW_MOST = 16,      /* of the few side in one tile */
    FEW_TILE = 8,       /* queries to a tile where there are more than that */
    FEW_WARPS = 8,      /* to a block */
    FEW_BLOCKS = 1024,  /* wanted: some waves on a large GPU */
    FEW_TURNS = 4,      /* a split's rows are at least so many for each lane */
    FEW_MMA_WIDTH = 16, /* D of the kernels on tensor cores */
};

struct few_cut {
    enum few_side side;
    int N, V, lanes, heads;             /* see above; heads: to a block */
    int groups, tiles, splits;          /* of heads, of queries, of rows */
    int64_t rows, split_rows;
    uint64_t other, total;              /* workspace, in bytes: o, dq or dk, then maximum and sum, or dv */
};

static inline int64_t few_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline struct few_cut few_cut_of(int64_t B, int64_t T, int64_t S, int64_t H, int64_t D, int backward)
{
    struct few_cut c = {S <= FEW_MOST ? FEW_KEYS : FEW_QUERIES, FEW_TILE, 8, 1, 1, 1, 1, 1, 0, 0, 0, 0};
    const int64_t few = c.side == FEW_KEYS ? S : T;
    if (few > FEW_TILE && few <= FEW_MOST) c.N = 16, c.V = 4;
    if (few > FEW_MOST) c.tiles = (int)few_ceil(few, FEW_TILE);
    while (c.lanes * c.V < D) c.lanes *= 2;
    c.heads = 32 / c.lanes < H ? 32 / c.lanes : (int)H;
    c.groups = (int)few_ceil(H, c.heads);
    c.rows = c.side == FEW_KEYS ? T : S;
    const int64_t turn = (int64_t)FEW_WARPS * (32 / (c.heads * c.lanes)), units = B * c.groups * c.tiles;
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
