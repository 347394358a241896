/*
 * hopper_dq.cu: the attention gradient dq on Hopper, bf16 and f16.
 *
 * Two or three warpgroups hold 64 queries and their do each and traverse the keys in tiles of 64,
 * skipping those that none of their queries sees. Blocks are persistent and process tile after tile
 * of queries, except on a grid: there a block has one tile, because its epilogue needs the memory
 * of the keys:
 *
 *     s = q k^T,  dp = do v^T   ->   ds = 2^(s - lse) (dp - delta)   ->   dq += ds k
 *
 * On a grid a tile of keys is one row of the grid, and so are 64 queries: the sum of ds over all
 * tiles is drel of the columns; its row sums, tile by tile, are drel of the rows. The epilogue
 * multiplies both by the tables,
 *
 *     dq += drel_rows th + g tw       th [row]: the row of table_h for the key's grid row
 *                                     g [query][row of table_w]: drel_columns at the table row of
 *                                     a query's column and a key's column
 *
 * with mma, in the memory of the tiles, and writes drel for the tables' gradients.
 *
 * With RANGES each query has a range of keys (ranges.cuh).
 */
#include "cuda/attention/range_hopper.cuh"

constexpr int KEYS = HOPPER_WALKED;
template <int D, bool MORE> constexpr int held_bytes = tile_bytes<D, workers_of<D, MORE> / 2>;
template <int D> constexpr int walked_bytes = tile_bytes<D, KEYS>;
template <int D> constexpr int slots_of = D <= 64 ? 4 : 3;
/* Whether a warpgroup multiplies the next tile's scores while it turns this one's into
 * probabilities; this needs registers. */
template <int D, bool GRID, bool RANGES>
constexpr bool is_ahead = (D <= 80 || !GRID) && HOPPER_GROUPS(D, GRID || RANGES) == 2;
/* Whether q stays in registers as an operand, so that it is not read from shared memory for each
 * tile. */
template <int D, bool MORE> constexpr bool is_kept = D <= 64 && !MORE;

/* The epilogue's memory: rows of table_w and, by warpgroup, rows of table_h, and g. The row pitch
 * is an odd number of 16-byte chunks. */
constexpr int GRID_ROWS = 64, GRID_ROWS_PITCH = GRID_ROWS + 8, TABLE_W_ROWS = 128, TABLE_W_PITCH = TABLE_W_ROWS + 8;
template <int D> struct alignas(16) grid_epilogue {
    uint16_t tw[TABLE_W_ROWS][D + 8];
    struct {
        uint16_t th[GRID_ROWS][D + 8], g[64][TABLE_W_PITCH];
    } of[2];
};
/* During the traversal, by warpgroup: drel of the rows. */
struct row_sums {
    uint16_t drel[2][64][GRID_ROWS_PITCH];
};
template <int D> constexpr int walk_bytes = slots_of<D> * 2 * walked_bytes<D>;
template <int D> constexpr int end_bytes = ((int)sizeof(grid_epilogue<D>) + 1023) / 1024 * 1024;
template <int D, bool GRID>
constexpr int ring_bytes = GRID && end_bytes<D> > walk_bytes<D> ? end_bytes<D> : walk_bytes<D>;

template <int SLOTS> struct barriers {
    uint64_t held, held_free, full[SLOTS], free[SLOTS];
};

/* Turns dp into ds, not yet scaled; s holds the probabilities. */
static __device__ void make_ds(float (&dp)[KEYS / 2], const float (&s)[KEYS / 2], const float (&delta)[2])
{
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++) dp[i] = s[i] * (dp[i] - delta[i / 2 % 2]);
}

template <typename T> __device__ inline uint16_t bits_of(float x)
{
    const T y = from_float<T>(x);
    return *reinterpret_cast<const uint16_t *>(&y);
}

/* Four numbers of a table, rounded; zeros if `from` is NULL. */
template <typename T> __device__ inline void put4(uint16_t *to, const float *from)
{
    const float4 x = from ? *reinterpret_cast<const float4 *>(from) : float4{0, 0, 0, 0};
    *reinterpret_cast<uint2 *>(to) = uint2{both(x.x, x.y, T()), both(x.z, x.w, T())};
}

/* The epilogue on a grid: the warpgroup's 64 queries are row y of the grid. */
template <typename T, int D>
static __device__ void run_grid_epilogue(float (&dq)[D / 2], const float (&dcolumns)[32], const attention &a,
                                         grid_epilogue<D> *end, const row_sums *rows, int group, int y)
{
    const int lane = threadIdx.x % 32, own = threadIdx.x % GROUP / 32 * 16, split = 2 * a.height - 1;
    named_barrier_sync<2 * GROUP>(1); /* the tiles are no longer read */
    for (int i = threadIdx.x; i < TABLE_W_ROWS * (D / 4); i += 2 * GROUP) {
        const int j = i / (D / 4), d = i % (D / 4) * 4;
        put4<T>(&end->tw[j][d], j < 2 * HOPPER_WIDTH - 1 ? a.tables + (int64_t)(split + j) * D + d : nullptr);
    }
    for (int i = threadIdx.x % GROUP; i < GRID_ROWS * (D / 4); i += GROUP) {
        const int c = i / (D / 4), d = i % (D / 4) * 4;
        put4<T>(&end->of[group].th[c][d],
                c < a.height && y < a.height ? a.tables + (int64_t)(y - c + a.height - 1) * D + d : nullptr);
    }
    uint4 *zero = reinterpret_cast<uint4 *>(end->of[group].g);
    for (int i = threadIdx.x % GROUP; i < 64 * TABLE_W_PITCH / 8; i += GROUP) zero[i] = uint4{0, 0, 0, 0};
    named_barrier_sync<2 * GROUP>(1);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int x = own + lane / 4 + i / 2 % 2 * 8, c = i / 4 * 8 + lane % 4 * 2 + i % 2;
        end->of[group].g[x][x - c + HOPPER_WIDTH - 1] = bits_of<T>(dcolumns[i]);
    }
    __syncwarp();
    float(&sums)[D / 8][4] = reinterpret_cast<float(&)[D / 8][4]>(dq);
    const auto lane_at = [&](const uint16_t *x, int pitch) {
        return reinterpret_cast<const T *>(x + lane % 16 * pitch + lane / 16 * 8);
    };
    add_product<T, D, GRID_ROWS, 2>(sums, lane_at(rows->drel[group][own], GRID_ROWS_PITCH),
                                    lane_at(end->of[group].th[0], D + 8));
    add_product<T, D, TABLE_W_ROWS, 2>(sums, lane_at(end->of[group].g[own], TABLE_W_PITCH), lane_at(end->tw[0], D + 8));
}

template <typename T, int D, bool GRID, bool RANGES>
__global__ void __launch_bounds__(workers_of<D, GRID || RANGES> + GROUP, 1)
    hopper_dq(const __grid_constant__ attention a, const __grid_constant__ attention_maps m)
{
    extern __shared__ char memory[];
    constexpr int WORKERS = workers_of<D, GRID || RANGES>, QUERIES = WORKERS / 2;
    constexpr int HELD_BYTES = held_bytes < D, GRID || RANGES >, TILE = walked_bytes<D>, PANELS = panels_of<D>,
                  SLOTS = slots_of<D>;
    constexpr bool AHEAD = is_ahead<D, GRID, RANGES>, KEPT = is_kept<D, GRID || RANGES>;
    char *q = memory + (1024 - shared_address(memory) % 1024) % 1024, *dout = q + HELD_BYTES, *ring = dout + HELD_BYTES;
    row_sums *rows = reinterpret_cast<row_sums *>(ring + ring_bytes<D, GRID>);
    barriers<SLOTS> *barrier =
        reinterpret_cast<barriers<SLOTS> *>(reinterpret_cast<char *>(rows) + (GRID ? sizeof(row_sums) : 0));
    range_task<QUERIES> *ranged = reinterpret_cast<range_task<QUERIES> *>(barrier + 1); /* with RANGES */
    const int items = a.B * a.H * ((a.T + QUERIES - 1) / QUERIES), group = threadIdx.x / GROUP;

    if (threadIdx.x == 0) {
        barrier_init(&barrier->held, 1), barrier_init(&barrier->held_free, WORKERS / 32);
        for (int i = 0; i < SLOTS; i++)
            barrier_init(&barrier->full[i], 1), barrier_init(&barrier->free[i], WORKERS / 32);
        fence_barrier_init();
    }
    if (GRID)
        for (int i = threadIdx.x; i < (int)(sizeof(row_sums) / 4); i += WORKERS + GROUP)
            reinterpret_cast<uint32_t *>(rows)[i] = 0;
    __syncthreads();

    if (group == WORKERS / GROUP) {
        registers_dec<WORKERS == 2 * GROUP ? 24 : 32>();
        if (threadIdx.x == WORKERS) {
            ring_slot at = {0, 1};
            int i = blockIdx.x; /* with RANGES: the number of the task */
            for (int n = 0; GRID ? n == 0 : RANGES || n * gridDim.x < items; n++) {
                const task x =
                    fetch_task<RANGES>(ranged, a, n, i, items, &barrier->held, 2 * HELD_BYTES, &barrier->held_free);
                if (x.head < 0 && RANGES) break;
                if (x.head < 0) continue;
                fetch_rows<QUERIES, PANELS>(q, &m.q, x.b, x.h, x.t0, &barrier->held);
                fetch_rows<QUERIES, PANELS>(dout, &m.dout, x.b, x.h, x.t0, &barrier->held);
                for (int s0 = x.keys.begin; s0 < x.keys.end; s0 += KEYS, next<SLOTS>(at)) {
                    char *slot = ring + at.slot * 2 * TILE;
                    barrier_wait(&barrier->free[at.slot], at.phase);
                    barrier_expect(&barrier->full[at.slot], 2 * TILE);
                    fetch_rows<KEYS, PANELS>(slot, &m.k, x.b, x.g, s0, &barrier->full[at.slot]);
                    fetch_rows<KEYS, PANELS>(slot + TILE, &m.v, x.b, x.g, s0, &barrier->full[at.slot]);
                }
            }
        }
    } else {
        registers_inc<WORKERS == 2 * GROUP ? 240 : 160>();
        const int lane = threadIdx.x % 32;
        const float factor = a.scale * LOG2E;
        const uint64_t q_at = operand_at(q + group * 64 * 128, 16), do_at = operand_at(dout + group * 64 * 128, 16);
        const uint64_t along = operand_at(ring, 16), across = operand_at(ring, KEYS * 128);
        const int64_t padded = (a.T + 63) / 64 * 64;
        ring_slot at = {0, 0};
        for (int n = 0; GRID ? n == 0 : RANGES || n * gridDim.x < items; n++) {
            const task x = await_task<RANGES>(ranged, a, n, items, &barrier->held);
            if (x.head < 0 && RANGES) break;
            if (x.head < 0) continue;
            span keys;
            if constexpr (RANGES) keys = own_keys<KEYS>(ranged);
            else keys = GRID ? x.keys : own_keys<KEYS>(a, x);
            const int first = x.t0 + threadIdx.x / 32 * 16;
            const float *rel = GRID ? a.rel + (int64_t)x.head * positions(a) * a.T : nullptr;
            float *drel = GRID ? a.drel + (int64_t)x.head * positions(a) * a.T : nullptr;
            float dq[D / 2], even[KEYS / 2], odd[KEYS / 2], dp[KEYS / 2], lse[2], delta[2], columns[32], dcolumns[32];
            unsigned ds[KEYS / 4], q_rows[KEPT ? D / 4 : 1];
            const auto times_q = [&](float(&to)[KEYS / 2], uint64_t y) {
                if constexpr (KEPT) product_along<T, D, KEYS>(to, q_rows, y, 0);
                else product_along<T, D, QUERIES, KEYS>(to, q_at, y, 0);
            };
            int query[2];
#pragma unroll
            for (int i = 0; i < D / 2; i++) dq[i] = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int t = first + lane / 4 + 8 * half;
                query[half] = min(t, a.T - 1);
                lse[half] = t < a.T ? a.lse2[x.head * padded + t] : CUDART_INF_F;
                delta[half] = t < a.T ? a.delta[x.head * padded + t] : 0.0f;
            }
            if (GRID)
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    const int c = a.height + i / 4 * 8 + lane % 4 * 2 + i % 2;
                    columns[i] = rel[(int64_t)c * a.T + query[i / 2 % 2]] * factor - lse[i / 2 % 2];
                    dcolumns[i] = 0;
                }
            float next_row_bias[2] = {0, 0}; /* for the next row of the grid, in flight */
            if (GRID)
#pragma unroll
                for (int half = 0; half < 2; half++) next_row_bias[half] = rel[query[half]];
            own_ranges seen;
            bool border = false;
            if constexpr (RANGES) seen = load_ranges(ranged, a, first), border = uniform(ranged->of.border);
            /* With RANGES, where a tile of keys has rows of another document: when all warpgroups
             * have computed its scores. */
            [[maybe_unused]] const auto clean = [&](int s0) {
                named_barrier_sync<WORKERS>(2);
                clean_panels<T, KEYS, PANELS, WORKERS>(ring + at.slot * 2 * TILE, x.keys.end - s0, border, nullptr);
            };
            const auto pass_by = [&](int from, int to) {
                for (int s0 = from; s0 < to; s0 += KEYS, next<SLOTS>(at)) {
                    barrier_wait(&barrier->full[at.slot], at.phase);
                    if constexpr (RANGES)
                        if (border || s0 + KEYS > x.keys.end) clean(s0);
                    barrier_arrive_warp(&barrier->free[at.slot]);
                }
            };
            if (!RANGES) barrier_wait(&barrier->held, n % 2);
            if (!GRID) pass_by(x.keys.begin, keys.begin);
            ring_slot soon = at;
            if constexpr (KEPT) load_rows<D, QUERIES>(q_rows, q, threadIdx.x / 32 * 16);
            if (AHEAD && keys.begin < keys.end) {
                barrier_wait(&barrier->full[at.slot], at.phase);
                pin_registers(even);
                wgmma_fence();
                times_q(even, along + at.slot * (2 * TILE >> 4));
                wgmma_commit();
                wgmma_wait<0>();
                pin_registers(even);
                next<SLOTS>(soon);
            }
            /* A tile of keys. s holds its products with q, computed one tile earlier or here;
             * `ahead` gets the next tile's. */
            const auto step = [&](float(&s)[KEYS / 2], float(&ahead)[KEYS / 2], int s0) {
                const int offset = at.slot * (2 * TILE >> 4);
                const float row_bias[2] = {GRID ? next_row_bias[0] * factor : 0, GRID ? next_row_bias[1] * factor : 0};
                if (GRID)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        next_row_bias[half] =
                            rel[(int64_t)min(s0 / HOPPER_WIDTH + 1, a.height - 1) * a.T + query[half]];
                if (AHEAD) {
                    /* after the last tile there is no next one: the product computed then is not
                     * used */
                    if (s0 + KEYS < keys.end) barrier_wait(&barrier->full[soon.slot], soon.phase);
                    pin_registers(s), pin_registers(dp), pin_registers(ahead);
                    issue_along<T, D, QUERIES, KEYS>(dp, do_at, along + offset + (TILE >> 4), 0);
                    times_q(ahead, along + soon.slot * (2 * TILE >> 4));
                    wgmma_commit();
                    next<SLOTS>(soon);
                } else {
                    barrier_wait(&barrier->full[at.slot], at.phase);
                    pin_registers(s), pin_registers(dp);
                    wgmma_fence();
                    times_q(s, along + offset);
                    wgmma_commit();
                    product_along<T, D, QUERIES, KEYS>(dp, do_at, along + offset + (TILE >> 4), 0);
                    wgmma_commit();
                    wgmma_wait<1>();
                    pin_registers(s);
                }
#pragma unroll
                for (int i = 0; i < KEYS / 2; i++)
                    s[i] = power_of_two(GRID ? fmaf(s[i], factor, columns[i]) + row_bias[i / 2 % 2]
                                             : fmaf(s[i], factor, -lse[i / 2 % 2]));
                if (!GRID && !RANGES && (s0 + KEYS > a.S || !all_seen(a, first, 16, s0, KEYS)))
#pragma unroll
                    for (int i = 0; i < KEYS / 2; i++)
                        if (!key_seen(a, first + lane / 4 + i / 2 % 2 * 8, s0 + i / 4 * 8 + lane % 4 * 2 + i % 2))
                            s[i] = 0;
                wgmma_wait<AHEAD ? 1 : 0>();
                pin_registers(dp);
                make_ds(dp, s, delta);
                if constexpr (RANGES) {
                    if (!sees_all(seen, s0, KEYS)) set_unseen(dp, seen, s0, 0);
                    if (border || s0 + KEYS > x.keys.end) {
                        wgmma_wait<0>();
                        pin_registers(ahead);
                        clean(s0);
                    }
                }
                round_all<T>(ds, dp);
                pin_registers(ds), pin_registers(dq);
                issue_across<T, KEYS / 16>(dq, ds, across + offset, 1);
                if (GRID) {
                    float sum[2] = {0, 0};
#pragma unroll
                    for (int i = 0; i < KEYS / 2; i++) dcolumns[i] += dp[i], sum[i / 2 % 2] += dp[i];
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        sum[half] = quad_sum(sum[half]);
                        const int t = first + lane / 4 + 8 * half;
                        if (lane % 4 == 0) {
                            rows->drel[group][t % 64][s0 / HOPPER_WIDTH] = bits_of<T>(sum[half]);
                            if (t < a.T) drel[(int64_t)(s0 / HOPPER_WIDTH) * a.T + t] = sum[half];
                        }
                    }
                }
                wgmma_wait<0>();
                pin_registers(dq), pin_registers(ds), pin_registers(ahead), pin_registers(q_rows);
                if (lane == 0) barrier_arrive(&barrier->free[at.slot]);
                next<SLOTS>(at);
            };
            int s0 = keys.begin;
            while (s0 < keys.end) {
                step(even, odd, s0);
                if ((s0 += KEYS) >= keys.end) break;
                step(odd, even, s0);
                s0 += KEYS;
            }
            if (!GRID) pass_by(s0, x.keys.end);
            barrier_arrive_warp(&barrier->held_free);
            if (GRID) {
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    const int t = first + lane / 4 + i / 2 % 2 * 8, c = a.height + i / 4 * 8 + lane % 4 * 2 + i % 2;
                    if (t < a.T) drel[(int64_t)c * a.T + t] = dcolumns[i];
                }
#pragma unroll
                for (int i = 0; i < D / 2; i++) dq[i] *= a.scale;
                run_grid_epilogue<T, D>(dq, dcolumns, a, reinterpret_cast<grid_epilogue<D> *>(ring), rows, group,
                                        x.t0 / HOPPER_WIDTH + group);
            }
            store_block<T>(a.dq, x.b, x.h, first, a.T, dq, GRID ? 1.0f : a.scale, GRID ? 1.0f : a.scale);
        }
    }
}

/* --- launching -------------------------------------------------------------------------------- */

extern "C" cudaError_t cuda_hopper_dq(const struct attention *a, const struct attention_maps *m, cudaStream_t stream)
{
    return by_kind(a, [&](auto t, auto d, auto grid, auto ranges) {
        constexpr int D = d, QUERIES = workers_of<D, grid || ranges> / 2;
        const size_t bytes = 1024 + 2 * held_bytes < D,
                     grid || ranges > +ring_bytes<D, grid> + (grid ? sizeof(row_sums) : 0) +
                                          sizeof(barriers<slots_of<D>>) + (ranges ? sizeof(range_task<QUERIES>) : 0);
        static_assert(sizeof(barriers<slots_of<D>>) % 16 == 0, "what follows is aligned");
        return start_tasks(hopper_dq<decltype(t), D, grid, ranges>, QUERIES, !grid, bytes, stream, a, m);
    });
}
