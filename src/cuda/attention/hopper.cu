/*
 * hopper.cu: the attention forward on Hopper, bf16 and f16.
 *
 * One thread of the last warpgroup (the producer) issues TMA copies of tiles; two or three
 * warpgroups hold 64 queries each and traverse the keys. Blocks are persistent: a block processes
 * tile after tile of queries, and the next tile's rows are in flight while this one's are stored. A
 * warpgroup overlaps: while it turns this tile's scores into probabilities, the tensor cores add
 * the previous tile's to o,
 *
 *     s = q k(j)^T   |   o += p(j-1) v(j-1)   |   p(j) = 2^(s - running maximum)   ->   o *= shrink
 *
 * and the warpgroups hide each other's latency. On a grid of 64 columns a tile of 64 keys is one
 * row of the grid: the column terms of a query stay in registers, the same for every row, and the
 * row term is one number per tile.
 *
 * With RANGES each query has a range of keys (ranges.cuh). Where a warpgroup sees nothing of the
 * second half of its last tile, as at the end of causal ranges, it multiplies only the first half;
 * it passes by the tiles that only others see.
 */
#include "cuda/attention/range_hopper.cuh"

constexpr int SLOTS = 2, KEYS = HOPPER_KEYS;

/* The mbarriers, stored after the tiles. */
struct barriers {
    uint64_t q, q_free, k[SLOTS], k_free[SLOTS], v[SLOTS], v_free[SLOTS];
};
/* With ranges: the task, and the keys of a tile whose values are not finite, panel by panel. */
template <int QUERIES> struct range_memory {
    range_task<QUERIES> task;
    unsigned bad[SLOTS][2][KEYS / 32];
};

/* Masks the scores of keys that a query does not see. */
static __device__ void mask_scores(float (&s)[KEYS / 2], const attention &a, int first, int s0)
{
    const int lane = threadIdx.x % 32, column = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < KEYS / 2; i++)
        if (!key_seen(a, first + lane / 4 + i / 2 % 2 * 8, s0 + i / 4 * 8 + column + i % 2)) s[i] = -CUDART_INF_F;
}

/* The running statistics of a row. */
struct running {
    float top[2], sum[2], shrink[2];
};

/* Turns scores into probabilities relative to the running maximum of each of the thread's two
 * rows. */
template <bool GRID, int N>
static __device__ void online_softmax(float (&s)[N], running &r, float factor, const float (&columns)[32],
                                      const float (&row_bias)[2][2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most[2] = {-CUDART_INF_F, -CUDART_INF_F}, here, part = 0;
#pragma unroll
        for (int n = 0; n < N / 4; n++)
#pragma unroll
            for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; i++) {
                if (GRID) s[i] = fmaf(s[i], factor, columns[i % 32]);
                most[n / 8] = fmaxf(most[n / 8], s[i]);
            }
        here =
            GRID ? fmaxf(most[0] + row_bias[half][0], most[1] + row_bias[half][1]) : fmaxf(most[0], most[1]) * factor;
        here = quad_max(here);
        here = fmaxf(here, r.top[half]);
        const float base = here == -CUDART_INF_F ? 0.0f : here; /* no key seen so far: 2^-inf = 0 */
        r.shrink[half] = power_of_two(r.top[half] - base);
        r.top[half] = here;
        const float off[2] = {base - row_bias[half][0], base - row_bias[half][1]};
#pragma unroll
        for (int n = 0; n < N / 4; n++)
#pragma unroll
            for (int i = 4 * n + 2 * half; i < 4 * n + 2 * half + 2; i++)
                part += s[i] = power_of_two(GRID ? s[i] - off[n / 8] : fmaf(s[i], factor, -base));
        r.sum[half] = r.sum[half] * r.shrink[half] + part; /* over this thread's columns */
    }
}

/* Loads the row terms of the thread's two queries for the grid rows of a tile of keys. */
static __device__ void load_row_bias(float (&row_bias)[2][2], const attention &a, const float *rel, int first, int s0)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = min(s0 / HOPPER_WIDTH + r, a.height - 1),
                      t = min(first + (int)threadIdx.x % 32 / 4 + 8 * half, a.T - 1);
            row_bias[half][r] = rel[(int64_t)row * a.T + t];
        }
}

/* Scores of the keys in `bad` become NaN where they are seen: where they are not -inf. */
template <int PANELS, int N> static __device__ void spoil_scores(float (&s)[N], const unsigned (&bad)[2][KEYS / 32])
{
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int word = 0; word < N / 16; word++) {
        const unsigned rows = bad[0][word] | bad[PANELS - 1][word];
        if (!rows) continue;
#pragma unroll
        for (int i = 16 * word; i < 16 * word + 16; i++)
            if (rows >> (i / 4 % 4 * 8 + column + i % 2) & 1 && s[i] != -CUDART_INF_F) s[i] = CUDART_NAN_F;
    }
}

template <typename T, int D, bool GRID, bool RANGES>
__global__ void __launch_bounds__(workers_of<D, GRID || RANGES> + GROUP, 1)
    hopper_forward(const __grid_constant__ attention a, const __grid_constant__ attention_maps m)
{
    extern __shared__ char memory[];
    constexpr int WORKERS = workers_of<D, GRID || RANGES>, QUERIES = WORKERS / 2, PANELS = panels_of<D>;
    constexpr int HELD_BYTES = tile_bytes<D, QUERIES>, TILE = tile_bytes<D, KEYS>;
    char *q = memory + (1024 - shared_address(memory) % 1024) % 1024, *k = q + HELD_BYTES, *v = k + SLOTS * TILE;
    barriers *barrier = reinterpret_cast<barriers *>(v + SLOTS * TILE);
    range_memory<QUERIES> *more = reinterpret_cast<range_memory<QUERIES> *>(barrier + 1); /* with RANGES */
    const int items = a.B * a.H * ((a.T + QUERIES - 1) / QUERIES), group = threadIdx.x / GROUP;

    if (threadIdx.x == 0) {
        barrier_init(&barrier->q, 1), barrier_init(&barrier->q_free, WORKERS / 32);
        for (int i = 0; i < SLOTS; i++) {
            barrier_init(&barrier->k[i], 1), barrier_init(&barrier->v[i], 1);
            barrier_init(&barrier->k_free[i], WORKERS / 32), barrier_init(&barrier->v_free[i], WORKERS / 32);
        }
        fence_barrier_init();
    }
    __syncthreads();

    if (group == WORKERS / GROUP) {
        registers_dec<WORKERS == 2 * GROUP ? 24 : 32>();
        if (threadIdx.x == WORKERS) {
            ring_slot at = {0, 1};
            int i = blockIdx.x; /* with RANGES: the number of the task */
            for (int n = 0; RANGES || n * gridDim.x < items; n++) {
                const task x =
                    fetch_task<RANGES>(&more->task, a, n, i, items, &barrier->q, HELD_BYTES, &barrier->q_free);
                if (x.head < 0 && RANGES) break;
                if (x.head < 0) continue;
                fetch_rows<QUERIES, PANELS>(q, &m.q, x.b, x.h, x.t0, &barrier->q);
                for (int s0 = x.keys.begin; s0 < x.keys.end; s0 += KEYS, next<SLOTS>(at)) {
                    barrier_wait(&barrier->k_free[at.slot], at.phase);
                    barrier_expect(&barrier->k[at.slot], TILE);
                    fetch_rows<KEYS, PANELS>(k + at.slot * TILE, &m.k, x.b, x.g, s0, &barrier->k[at.slot]);
                    barrier_wait(&barrier->v_free[at.slot], at.phase);
                    barrier_expect(&barrier->v[at.slot], TILE);
                    fetch_rows<KEYS, PANELS>(v + at.slot * TILE, &m.v, x.b, x.g, s0, &barrier->v[at.slot]);
                }
            }
        }
    } else {
        registers_inc<WORKERS == 2 * GROUP ? 240 : 160>();
        const int lane = threadIdx.x % 32;
        const float factor = a.scale * LOG2E;
        const uint64_t mine = operand_at(q + group * 64 * 128, 16), k_at = operand_at(k, 16),
                       v_at = operand_at(v, KEYS * 128);
        ring_slot at = {0, 0};
        for (int n = 0; RANGES || n * gridDim.x < items; n++) {
            const task x = await_task<RANGES>(&more->task, a, n, items, &barrier->q);
            if (x.head < 0 && RANGES) break;
            if (x.head < 0) continue;
            const int first = x.t0 + threadIdx.x / 32 * 16;
            const float *rel = GRID ? a.rel + (int64_t)x.head * positions(a) * a.T : nullptr;
            /* soon: row_bias of the next tile, in flight */
            float o[D / 2], s[KEYS / 2], columns[32], row_bias[2][2] = {{0, 0}, {0, 0}}, soon[2][2];
            unsigned p[KEYS / 4];
            running r = {{-CUDART_INF_F, -CUDART_INF_F}, {0, 0}, {0, 0}};
            ring_slot last = at;
#pragma unroll
            for (int i = 0; i < D / 2; i++) o[i] = 0;
            if (GRID) {
                load_row_bias(soon, a, rel, first, x.keys.begin);
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    const int t = min(first + lane / 4 + i / 2 % 2 * 8, a.T - 1),
                              c = a.height + i / 4 * 8 + lane % 4 * 2 + i % 2;
                    columns[i] = rel[(int64_t)c * a.T + t] * factor;
                }
            }
            own_ranges seen;
            bool border = false;
            int end = x.keys.end, s0 = x.keys.begin; /* end: of the keys that the warpgroup sees */
            if constexpr (RANGES)
                seen = load_ranges(&more->task, a, first), border = uniform(more->task.of.border),
                end = uniform(more->task.of.own[group].end);
            if (!RANGES) barrier_wait(&barrier->q, n % 2);
            /* With RANGES, where the values have rows of another document. */
            [[maybe_unused]] const auto is_mixed = [&] { return border || s0 + KEYS > x.keys.end; };
            [[maybe_unused]] const auto clean = [&] {
                barrier_wait(&barrier->v[at.slot], at.phase);
                clean_panels<T, KEYS, PANELS, WORKERS>(v + at.slot * TILE, x.keys.end - s0, border,
                                                       more->bad[at.slot][0]);
            };
            for (; RANGES ? s0 + KEYS / 2 < end : s0 < end; s0 += KEYS) {
                if (GRID) {
                    for (int i = 0; i < 4; i++) row_bias[i / 2][i % 2] = soon[i / 2][i % 2] * factor;
                    load_row_bias(soon, a, rel, first, s0 + KEYS);
                }
                barrier_wait(&barrier->k[at.slot], at.phase);
                pin_registers(s), pin_registers(o), pin_registers(p);
                issue_along<T, D, QUERIES, KEYS>(s, mine, k_at + at.slot * (TILE >> 4), 0);
                if (s0 > x.keys.begin) {
                    barrier_wait(&barrier->v[last.slot], last.phase);
                    issue_across<T, KEYS / 16>(o, p, v_at + last.slot * (TILE >> 4), 1);
                    wgmma_wait<1>();
                } else {
                    wgmma_wait<0>();
                }
                pin_registers(s);
                if (lane == 0) barrier_arrive(&barrier->k_free[at.slot]);
                if constexpr (RANGES) {
                    if (!sees_all(seen, s0, KEYS)) set_unseen(s, seen, s0, -CUDART_INF_F);
                    if (is_mixed()) {
                        wgmma_wait<0>();
                        pin_registers(o), pin_registers(p);
                        clean();
                        if (border) spoil_scores<PANELS>(s, more->bad[at.slot]);
                    }
                } else if (s0 + KEYS > a.S || !all_seen(a, first, 16, s0, KEYS)) {
                    mask_scores(s, a, first, s0);
                }
                online_softmax<GRID>(s, r, factor, columns, row_bias);
                wgmma_wait<0>();
                pin_registers(o), pin_registers(p);
                if (s0 > x.keys.begin && lane == 0) barrier_arrive(&barrier->v_free[last.slot]);
#pragma unroll
                for (int i = 0; i < D / 2; i++) o[i] *= r.shrink[i / 2 % 2];
                round_all<T>(p, s);
                last = at;
                next<SLOTS>(at);
            }
            /* the last tile to o, or there is none */
            bool added = RANGES ? s0 == x.keys.begin : x.keys.begin >= x.keys.end;
            if constexpr (RANGES) {
                if (s0 < end) {
                    float few[KEYS / 4];
                    unsigned few_p[KEYS / 8];
                    barrier_wait(&barrier->k[at.slot], at.phase);
                    pin_registers(few), pin_registers(o), pin_registers(p);
                    issue_along<T, D, QUERIES, KEYS>(few, mine, k_at + at.slot * (TILE >> 4), 0);
                    if (!added) {
                        barrier_wait(&barrier->v[last.slot], last.phase);
                        issue_across<T, KEYS / 16>(o, p, v_at + last.slot * (TILE >> 4), 1);
                    }
                    wgmma_wait<0>();
                    pin_registers(few), pin_registers(o), pin_registers(p);
                    if (lane == 0) barrier_arrive(&barrier->k_free[at.slot]);
                    if (!added && lane == 0) barrier_arrive(&barrier->v_free[last.slot]);
                    if (!sees_all(seen, s0, KEYS / 2)) set_unseen(few, seen, s0, -CUDART_INF_F);
                    if (is_mixed()) {
                        clean();
                        if (border) spoil_scores<PANELS>(few, more->bad[at.slot]);
                    }
                    online_softmax<false>(few, r, factor, columns, row_bias);
#pragma unroll
                    for (int i = 0; i < D / 2; i++) o[i] *= r.shrink[i / 2 % 2];
                    round_all<T>(few_p, few);
                    barrier_wait(&barrier->v[at.slot], at.phase);
                    pin_registers(o), pin_registers(few_p);
                    issue_across<T, KEYS / 32>(o, few_p, v_at + at.slot * (TILE >> 4), 1);
                    wgmma_wait<0>();
                    pin_registers(o), pin_registers(few_p);
                    if (lane == 0) barrier_arrive(&barrier->v_free[at.slot]);
                    added = true;
                    s0 += KEYS;
                    next<SLOTS>(at);
                }
            }
            barrier_arrive_warp(&barrier->q_free);
            if (!added) {
                barrier_wait(&barrier->v[last.slot], last.phase);
                pin_registers(o), pin_registers(p);
                issue_across<T, KEYS / 16>(o, p, v_at + last.slot * (TILE >> 4), 1);
                wgmma_wait<0>();
                pin_registers(o);
                if (lane == 0) barrier_arrive(&barrier->v_free[last.slot]);
            }
            if constexpr (RANGES) { /* with braces: without them nvcc 13 discards the loop after it as well */
                for (; s0 < x.keys.end; s0 += KEYS, next<SLOTS>(at)) {
                    barrier_wait(&barrier->k[at.slot], at.phase);
                    barrier_wait(&barrier->v[at.slot], at.phase);
                    if (is_mixed()) clean();
                    barrier_arrive_warp(&barrier->k_free[at.slot]);
                    if (lane == 0) barrier_arrive(&barrier->v_free[at.slot]);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                r.sum[half] = quad_sum(r.sum[half]);
                const int t = first + lane / 4 + 8 * half;
                if (lane % 4 == 0 && t < a.T)
                    *lse_at(a, x.b, x.h, t) = r.sum[half] == 0 ? -CUDART_INF_F : r.top[half] * LN2 + logf(r.sum[half]);
            }
            store_block<T>(a.o, x.b, x.h, first, a.T, o, r.sum[0] == 0 ? 0.0f : 1 / r.sum[0],
                           r.sum[1] == 0 ? 0.0f : 1 / r.sum[1]);
        }
    }
}

/* --- launching -------------------------------------------------------------------------------- */

extern "C" cudaError_t cuda_hopper_forward(const struct attention *a, const struct attention_maps *m,
                                           cudaStream_t stream)
{
    return by_kind(a, [&](auto t, auto d, auto grid, auto ranges) {
        constexpr int D = d, WORKERS = workers_of<D, grid || ranges>, QUERIES = WORKERS / 2;
        const size_t bytes = 1024 + tile_bytes<D, QUERIES> + 2 * SLOTS * tile_bytes<D, KEYS> + sizeof(barriers) +
                             (ranges ? sizeof(range_memory<QUERIES>) : 0);
        static_assert(sizeof(barriers) % 16 == 0, "what follows is aligned");
        return start_tasks(hopper_forward<decltype(t), D, grid, ranges>, QUERIES, true, bytes, stream, a, m);
    });
}
