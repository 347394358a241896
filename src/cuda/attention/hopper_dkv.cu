/*
 * hopper_dkv.cu: the attention gradient dk, dv on Hopper, bf16 and f16.
 *
 * Two warpgroups hold 64 keys and their values each and traverse the queries of all heads that read
 * these keys, in tiles of 64. Everything is transposed, keys as rows, so that a result is the next
 * operand without a change of layout:
 *
 *     s^T = k q^T,  dp^T = v do^T   ->   p^T, ds^T   ->   dv += p^T do,  dk += ds^T q
 *
 * A tile of queries comes with its lse, delta and, on a grid, position terms: 64 keys are one row
 * of the grid, so a query has one term for the row and, for the columns, a tile [64][queries].
 *
 * With RANGES each query has a range of keys (ranges.cuh), in the place of the row's terms. The
 * producer fetches the tiles of queries that see one of the keys, and says which they are.
 */
#include "cuda/attention/range_hopper.cuh"

constexpr int WORKERS = 2 * GROUP, THREADS = WORKERS + GROUP, KEYS = HOPPER_HELD, QUERIES = HOPPER_WALKED;

template <int D> constexpr int held_bytes = tile_bytes<D, KEYS>;
template <int D> constexpr int walked_bytes = tile_bytes<D, QUERIES>;
template <int D> constexpr int slots_of = D <= 64 ? 4 : 3;
/* Whether a warpgroup multiplies the next tile's scores while it turns this one's into
 * probabilities; this needs registers. */
template <int D> constexpr bool is_ahead = D <= 80;
/* Whether k stays in registers as an operand, so that it is not read from shared memory for each
 * tile. With v in registers as well, ptxas 13.0 assigned v's registers to ds, at 64 columns and no
 * grid, and dk was wrong. */
template <int D> constexpr bool is_kept = D <= 80;

/* The data that comes with a tile of queries, after q and do. */
struct grid_bias {
    float columns[2][HOPPER_WIDTH][QUERIES / 2]; /* in the TMA swizzle of 16-byte chunks */
};
struct row_stats {
    float lse[QUERIES], delta[QUERIES], row_bias[2][QUERIES];
};
template <int D, bool GRID> constexpr int slot_bytes = 2 * walked_bytes<D> + (GRID ? (int)sizeof(grid_bias) : 0) + 1024;
static_assert(sizeof(row_stats) == 1024 && sizeof(grid_bias) == 16384, "tiles begin at multiples of 1024");

template <int SLOTS> struct barriers {
    uint64_t held, full[SLOTS], free[SLOTS];
};

/* With ranges, what is known of a tile of queries: for each warpgroup, whether some of its keys are
 * seen (MEETS << group); whether some of the keys are not seen by some query; whether queries and
 * keys are of several documents. END: there is no tile left. */
enum range_walk : int { MEETS = 1, IS_PARTIAL = 4, IS_MIXED = 8, END = 16 };

/* Turns products into probabilities. */
template <bool GRID>
static __device__ void to_probabilities(float (&s)[QUERIES / 2], const row_stats *of, const grid_bias *from, int group,
                                        float factor)
{
    const int lane = threadIdx.x % 32, column = lane % 4 * 2, row = threadIdx.x % GROUP / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        const float2 lse = pair_at(&of->lse[8 * n + column]);
        float2 off = {-lse.x, -lse.y}, more[2] = {{0, 0}, {0, 0}};
        if (GRID) {
            const float2 row_bias = pair_at(&of->row_bias[group][8 * n + column]);
            const int chunk = (n % 4 * 2 + lane % 4 / 2) ^ (lane / 4);
            off.x = fmaf(row_bias.x, factor, off.x), off.y = fmaf(row_bias.y, factor, off.y);
#pragma unroll
            for (int half = 0; half < 2; half++)
                more[half] = pair_at(&from->columns[n / 4][row + 8 * half][chunk * 4 + lane % 2 * 2]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 base =
                GRID ? float2{fmaf(more[half].x, factor, off.x), fmaf(more[half].y, factor, off.y)} : off;
            s[4 * n + 2 * half] = power_of_two(fmaf(s[4 * n + 2 * half], factor, base.x));
            s[4 * n + 2 * half + 1] = power_of_two(fmaf(s[4 * n + 2 * half + 1], factor, base.y));
        }
    }
}

/* Sets the probabilities of keys that a query does not see to zero. */
static __device__ void mask_probabilities(float (&p)[QUERIES / 2], const attention &a, int t0, int first)
{
    const int lane = threadIdx.x % 32, column = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++)
        if (!key_seen(a, t0 + i / 4 * 8 + column + i % 2, first + lane / 4 + i / 2 % 2 * 8)) p[i] = 0;
}

/* Does as mask_probabilities, but with ranges. A NaN or infinity in delta, as do has it, becomes a
 * NaN in p where the key is seen. */
static __device__ void set_unseen(float (&p)[QUERIES / 2], const row_stats *of, int first)
{
    const int lane = threadIdx.x % 32, column = lane % 4 * 2, key = first + lane / 4;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        const int4 two = reinterpret_cast<const int4 *>(of->row_bias)[4 * n + lane % 4];
        const float2 delta = pair_at(&of->delta[8 * n + column]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *own = &p[4 * n + 2 * half];
            own[0] = in_range({two.x, two.y}, key + 8 * half) ? fmaf(0, delta.x, own[0]) : 0.0f;
            own[1] = in_range({two.z, two.w}, key + 8 * half) ? fmaf(0, delta.y, own[1]) : 0.0f;
        }
    }
}

/* Turns dp into ds, not yet scaled. */
static __device__ void make_ds(float (&dp)[QUERIES / 2], const float (&p)[QUERIES / 2], const row_stats *of)
{
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        const float2 delta = pair_at(&of->delta[8 * n + column]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 4 * n + 2 * half;
            dp[i] = p[i] * (dp[i] - delta.x), dp[i + 1] = p[i + 1] * (dp[i + 1] - delta.y);
        }
    }
}

/* The producer warp with ranges: a lane looks at the ranges of one tile of queries, and the first
 * lane fetches those that see a key. */
template <typename T, int D>
static __device__ void fetch_ranged(const attention &a, const attention_maps &m, char *k, char *v, char *ring,
                                    barriers<slots_of<D>> *barrier, int *walk, int b, int g, int s0)
{
    constexpr int TILE = walked_bytes<D>, PANELS = panels_of<D>, SLOTS = slots_of<D>, SLOT = slot_bytes<D, false>;
    const int lane = threadIdx.x % 32, tiles = (a.T + QUERIES - 1) / QUERIES, each = a.H / a.G;
    const int64_t padded = (int64_t)tiles * QUERIES;
    if (lane == 0) {
        barrier_expect(&barrier->held, 2 * held_bytes<D>);
        fetch_rows<KEYS, PANELS>(k, &m.k, b, g, s0, &barrier->held);
        fetch_rows<KEYS, PANELS>(v, &m.v, b, g, s0, &barrier->held);
    }
    ring_slot at = {0, 1};
    for (int h = g * each; h < (g + 1) * each; h++)
        for (int first = 0; first < tiles; first += 32) {
            range_tile x = {INT32_MAX, 0, 0, 0, false};
            if (first + lane < tiles) x = bounds_at(a, b, (first + lane) * QUERIES);
            const bool lower = meets(x, s0, 64), upper = meets(x, s0 + 64, 64);
            /* a warpgroup of which no key is seen passes by, unless it is ahead */
            const bool is_mix = is_ahead<D> ? is_mixed(x, s0, KEYS)
                                            : (lower && is_mixed(x, s0, 64)) || (upper && is_mixed(x, s0 + 64, 64));
            const unsigned partial = __ballot_sync(0xffffffffu, !sees_all(x, s0, KEYS)),
                           mixed = __ballot_sync(0xffffffffu, is_mix);
            const unsigned low = __ballot_sync(0xffffffffu, lower), high = __ballot_sync(0xffffffffu, upper);
            for (unsigned left = low | high; left; left &= left - 1, next<SLOTS>(at)) {
                if (lane != 0) continue;
                const int n = __ffs(left) - 1, t0 = (first + n) * QUERIES, head = b * a.H + h;
                char *slot = ring + at.slot * SLOT;
                row_stats *with = reinterpret_cast<row_stats *>(slot + SLOT - sizeof(row_stats));
                uint64_t *full = &barrier->full[at.slot];
                barrier_wait(&barrier->free[at.slot], at.phase);
                walk[at.slot] = (int)((low >> n & 1) * MEETS | (high >> n & 1) * MEETS * 2 |
                                      (partial >> n & 1) * IS_PARTIAL | (mixed >> n & 1) * IS_MIXED);
                barrier_expect(full, SLOT);
                fetch_rows<QUERIES, PANELS>(slot, &m.q, b, h, t0, full);
                fetch_rows<QUERIES, PANELS>(slot + TILE, &m.dout, b, h, t0, full);
                fetch2(with->delta, &m.row_stats, t0, head, full);
                fetch2(with->lse, &m.row_stats, t0, a.B * a.H + head, full);
                fetch_bytes(with->row_bias, a.seen + (b * padded + t0) * 2, (int)sizeof with->row_bias, full);
            }
        }
    if (lane != 0) return;
    barrier_wait(&barrier->free[at.slot], at.phase);
    walk[at.slot] = END;
    barrier_arrive(&barrier->full[at.slot]);
}

template <typename T, int D, bool GRID, bool RANGES>
__global__ void __launch_bounds__(THREADS, 1)
    hopper_dkv(const __grid_constant__ attention a, const __grid_constant__ attention_maps m)
{
    extern __shared__ char memory[];
    constexpr int HELD_BYTES = held_bytes<D>, TILE = walked_bytes<D>, PANELS = panels_of<D>, SLOTS = slots_of<D>,
                  SLOT = slot_bytes<D, GRID>;
    constexpr bool AHEAD = is_ahead<D>, KEPT = is_kept<D>;
    char *k = memory + (1024 - shared_address(memory) % 1024) % 1024, *v = k + HELD_BYTES, *ring = v + HELD_BYTES;
    barriers<SLOTS> *barrier = reinterpret_cast<barriers<SLOTS> *>(ring + SLOTS * SLOT);
    int *walk = reinterpret_cast<int *>(barrier + 1); /* with RANGES, by slot: of range_walk */
    const int tiles = (a.S + KEYS - 1) / KEYS, pairs = a.B * a.G;
    /* causal, and with RANGES: the blocks with most work first */
    const int ranked = RANGES ? a.key_order[blockIdx.x / a.G] : 0;
    const int s0 = RANGES ? ranked % tiles * KEYS : (int)(a.causal ? blockIdx.x / pairs : blockIdx.x % tiles) * KEYS;
    const int64_t pair = RANGES     ? (int64_t)(ranked / tiles) * a.G + blockIdx.x % a.G
                         : a.causal ? blockIdx.x % pairs
                                    : blockIdx.x / tiles;
    const int b = (int)(pair / a.G), g = (int)(pair % a.G), each = a.H / a.G, group = threadIdx.x / GROUP;
    span queries = queries_of(a, s0, KEYS);
    queries.begin = queries.begin / QUERIES * QUERIES;

    if (threadIdx.x == 0) {
        barrier_init(&barrier->held, 1);
        for (int i = 0; i < SLOTS; i++)
            barrier_init(&barrier->full[i], 1), barrier_init(&barrier->free[i], WORKERS / 32);
        fence_barrier_init();
    }
    __syncthreads();

    if (group == WORKERS / GROUP) {
        registers_dec<24>();
        if constexpr (RANGES) {
            if (threadIdx.x / 32 == WORKERS / 32) fetch_ranged<T, D>(a, m, k, v, ring, barrier, walk, b, g, s0);
        } else if (threadIdx.x == WORKERS) {
            barrier_expect(&barrier->held, 2 * HELD_BYTES);
            fetch_rows<KEYS, PANELS>(k, &m.k, b, g, s0, &barrier->held);
            fetch_rows<KEYS, PANELS>(v, &m.v, b, g, s0, &barrier->held);
            ring_slot at = {0, 1};
            for (int h = g * each; h < (g + 1) * each; h++)
                for (int t0 = queries.begin; t0 < queries.end; t0 += QUERIES, next<SLOTS>(at)) {
                    char *slot = ring + at.slot * SLOT;
                    const int head = b * a.H + h;
                    row_stats *with = reinterpret_cast<row_stats *>(slot + SLOT - sizeof(row_stats));
                    uint64_t *full = &barrier->full[at.slot];
                    barrier_wait(&barrier->free[at.slot], at.phase);
                    barrier_expect(full, GRID ? SLOT : SLOT - (int)sizeof with->row_bias);
                    fetch_rows<QUERIES, PANELS>(slot, &m.q, b, h, t0, full);
                    fetch_rows<QUERIES, PANELS>(slot + TILE, &m.dout, b, h, t0, full);
                    fetch2(with->delta, &m.row_stats, t0, head, full);
                    fetch2(with->lse, &m.row_stats, t0, a.B * a.H + head, full);
                    if (GRID) {
                        grid_bias *columns = reinterpret_cast<grid_bias *>(slot + 2 * TILE);
                        const int first = head * positions(a);
                        for (int i = 0; i < 2; i++) {
                            fetch2(columns->columns[i], &m.columns, t0 + i * QUERIES / 2, first + a.height, full);
                            fetch2(with->row_bias[i], &m.rows, t0, first + min(s0 / HOPPER_WIDTH + i, a.height - 1),
                                   full);
                        }
                    }
                }
        }
    } else {
        registers_inc<240>();
        const int first = s0 + threadIdx.x / 32 * 16;
        const float factor = a.scale * LOG2E;
        const uint64_t k_at = operand_at(k + group * 64 * 128, 16), v_at = operand_at(v + group * 64 * 128, 16);
        const uint64_t along = operand_at(ring, 16), across = operand_at(ring, QUERIES * 128);
        float dk[D / 2], dv[D / 2], s[QUERIES / 2], ahead[QUERIES / 2], dp[QUERIES / 2];
        unsigned p[QUERIES / 4], ds[QUERIES / 4], k_rows[KEPT ? D / 4 : 1];
        const auto times_k = [&](float(&to)[QUERIES / 2], uint64_t y) {
            if constexpr (KEPT) product_along<T, D, QUERIES>(to, k_rows, y, 0);
            else product_along<T, D, KEYS, QUERIES>(to, k_at, y, 0);
        };
        const int span_tiles = max(0, (queries.end - queries.begin + QUERIES - 1) / QUERIES),
                  count = RANGES ? INT32_MAX : each * span_tiles;
        ring_slot at = {0, 0}, soon = {0, 0};
        int t0 = queries.begin;
        [[maybe_unused]] const int own_group = uniform(group);
        int tile = 0, coming = 0; /* with RANGES: what is known of this tile and, if AHEAD, of the next */
        [[maybe_unused]] const auto look = [&](const ring_slot &slot) {
            barrier_wait(&barrier->full[slot.slot], slot.phase);
            return uniform(walk[slot.slot]);
        };
        /* Zeros in the place of queries, and their do, that are not finite, when both warpgroups
         * have computed the scores. */
        [[maybe_unused]] const auto clean = [&] {
            named_barrier_sync<WORKERS>(2);
            clean_panels<T, QUERIES, 2 * PANELS, WORKERS>(ring + at.slot * SLOT, QUERIES, true, nullptr);
        };
#pragma unroll
        for (int i = 0; i < D / 2; i++) dk[i] = dv[i] = 0;
        barrier_wait(&barrier->held, 0);
        if constexpr (KEPT) load_rows<D, KEYS>(k_rows, k, threadIdx.x / 32 * 16);
        if (RANGES) tile = look(at);
        if (AHEAD && count > 0 && tile != END) {
            if (!RANGES) barrier_wait(&barrier->full[soon.slot], soon.phase);
            multiply_now(ahead, [&] { times_k(ahead, along); });
            next<SLOTS>(soon);
        }
        for (int i = 0; RANGES ? tile != END : i < count; i++) {
            if constexpr (RANGES && !AHEAD) {
                if (!(tile >> own_group & MEETS)) {
                    if (tile & IS_MIXED) clean();
                    barrier_arrive_warp(&barrier->free[at.slot]);
                    next<SLOTS>(at);
                    tile = look(at);
                    continue;
                }
            }
            const int offset = at.slot * (SLOT >> 4);
            const row_stats *with =
                reinterpret_cast<const row_stats *>(ring + (at.slot + 1) * SLOT - sizeof(row_stats));
            if (AHEAD) {
#pragma unroll
                for (int n = 0; n < QUERIES / 2; n++) s[n] = ahead[n];
                /* after the last tile there is no next one: the product computed then is not
                 * used */
                if (RANGES) coming = look(soon);
                else if (i + 1 < count) barrier_wait(&barrier->full[soon.slot], soon.phase);
                pin_registers(dp), pin_registers(ahead);
                issue_along<T, D, KEYS, QUERIES>(dp, v_at, along + offset + (TILE >> 4), 0);
                times_k(ahead, along + soon.slot * (SLOT >> 4));
                wgmma_commit();
                next<SLOTS>(soon);
            } else {
                if (!RANGES) barrier_wait(&barrier->full[at.slot], at.phase);
                pin_registers(s), pin_registers(dp);
                wgmma_fence();
                times_k(s, along + offset);
                wgmma_commit();
                product_along<T, D, KEYS, QUERIES>(dp, v_at, along + offset + (TILE >> 4), 0);
                wgmma_commit();
                wgmma_wait<1>();
                pin_registers(s);
            }
            to_probabilities<GRID>(s, with, reinterpret_cast<const grid_bias *>(ring + at.slot * SLOT + 2 * TILE),
                                   group, factor);
            if (!GRID && !RANGES && !all_seen(a, t0, QUERIES, first, 16)) mask_probabilities(s, a, t0, first);
            if constexpr (RANGES) {
                if (tile & IS_PARTIAL) set_unseen(s, with, first);
                if (tile & IS_MIXED) {
                    wgmma_wait<0>();
                    pin_registers(dp), pin_registers(ahead);
                    clean();
                }
            }
            round_all<T>(p, s);
            if (AHEAD) wgmma_wait<1>();
            pin_registers(p), pin_registers(dv), pin_registers(dp);
            issue_across<T, QUERIES / 16>(dv, p, across + offset + (TILE >> 4), 1);
            if (!AHEAD) wgmma_wait<1>();
            pin_registers(dp);
            make_ds(dp, s, with);
            if constexpr (RANGES) {
                if (tile & IS_PARTIAL) {
#pragma unroll
                    for (int n = 0; n < QUERIES / 2; n++)
                        if (s[n] == 0) dp[n] = 0;
                }
            }
            round_all<T>(ds, dp);
            pin_registers(ds), pin_registers(dk);
            issue_across<T, QUERIES / 16>(dk, ds, across + offset, 1);
            wgmma_wait<0>();
            pin_registers(dk), pin_registers(dv), pin_registers(p), pin_registers(ds), pin_registers(ahead),
                pin_registers(k_rows);
            barrier_arrive_warp(&barrier->free[at.slot]);
            next<SLOTS>(at);
            if constexpr (RANGES) tile = AHEAD ? coming : look(at);
            t0 += QUERIES;
            if (t0 >= queries.end) t0 = queries.begin; /* start of the next head */
        }
        store_block<T>(a.dk, b, g, first, a.S, dk, a.scale, a.scale);
        store_block<T>(a.dv, b, g, first, a.S, dv, 1.0f, 1.0f);
    }
}

/* --- launching -------------------------------------------------------------------------------- */

extern "C" cudaError_t cuda_hopper_dkv(const struct attention *a, const struct attention_maps *m, cudaStream_t stream)
{
    return by_kind(a, [&](auto t, auto d, auto grid, auto ranges) {
        constexpr int D = d, SLOTS = slots_of<D>;
        const size_t bytes = 1024 + 2 * held_bytes<D> + SLOTS * slot_bytes<D, grid> + sizeof(barriers<SLOTS>) +
                             (ranges ? SLOTS * sizeof(int) : 0);
        return start_kernel(hopper_dkv<decltype(t), D, grid, ranges>, (int64_t)a->B * a->G * ((a->S + KEYS - 1) / KEYS),
                            THREADS, bytes, stream, *a, *m);
    });
}
