/*
 * range_tiles.cuh: ranges of keys (ranges.cuh) in the fragments and tiles of tiles.cuh, for
 * forward.cu, dq.cu and dkv.cu.
 */
#ifndef ATTENTION_RANGE_TILES_CUH
#define ATTENTION_RANGE_TILES_CUH

#include "cuda/attention/ranges.cuh"
#include "cuda/attention/tiles.cuh"

/* The bounds of the block's queries, in shared memory: registers are few. */
__device__ inline range_tile &block_bounds()
{
    __shared__ range_tile bounds;
    return bounds;
}

/* x = `with` where a query does not see a key. Rows are queries from t0 on, columns are keys from
 * s0 on. */
template <int M, int N>
__device__ inline void set_unseen(float (&x)[M][N][4], const attention &a, int64_t b, int t0, int s0, float with)
{
    const int lane = threadIdx.x % 32;
    each<M, 2>([&](int m, int half) {
        const int t = t0 + m * 16 + half * 8 + lane / 4;
        const span seen = t < a.T ? range_at(a, b, t) : span{0, 0};
        each<N, 2>([&](int n, int i) {
            if (!in_range(seen, s0 + 8 * n + lane % 4 * 2 + i)) x[m][n][2 * half + i] = with;
        });
    });
}

/* The same with keys as rows, for p and ds, which become 0. `delta`: of the queries; a NaN or
 * infinity in it, as do has it, becomes a NaN in p where the key is seen. */
template <int M, int N>
__device__ inline void clear_unseen(float (&p)[M][N][4], float (&ds)[M][N][4], const attention &a, int64_t b, int s0,
                                    int t0, const float *delta)
{
    const int lane = threadIdx.x % 32, column = lane % 4 * 2;
    const int64_t padded = (a.T + 63) / 64 * 64;
    const int4 *from = reinterpret_cast<const int4 *>(a.seen) + (b * padded + t0 + column) / 2;
    each<N>([&](int n) {
        const int4 two = from[4 * n];
        const float2 zero = {0 * delta[8 * n + column], 0 * delta[8 * n + column + 1]}; /* or NaN */
        each<M, 2>([&](int m, int half) {
            const int s = s0 + m * 16 + half * 8 + lane / 4;
            const bool left = in_range({two.x, two.y}, s), right = in_range({two.z, two.w}, s);
            float *own = &p[m][n][2 * half], *other = &ds[m][n][2 * half];
            own[0] = left ? own[0] + zero.x : 0.0f, own[1] = right ? own[1] + zero.y : 0.0f;
            other[0] = left ? other[0] : 0.0f, other[1] = right ? other[1] : 0.0f;
        });
    });
}

/* Turns rows of a tile that have a NaN or an infinity into zeros. `bad`, unless NULL, gets a bit
 * for each of them. All threads of the block call it; a barrier is before and behind it. */
template <typename T, int D, int ROWS> __device__ inline void clean_tile(char *tile, unsigned *bad)
{
    static_assert(ROWS <= FAST_BLOCK && ROWS % 32 == 0, "a thread has a row");
    if (threadIdx.x >= ROWS) return;
    const unsigned rows =
        __ballot_sync(0xffffffffu, clean_row<T, 2 * D>(tile + threadIdx.x * 2 * D, threadIdx.x % (D / 8)));
    if (bad && threadIdx.x % 32 == 0) bad[threadIdx.x / 32] = rows;
}

/* Scores of such keys become NaN where they are seen: where they are not -inf. */
template <int M, int N> __device__ inline void spoil_scores(float (&x)[M][N][4], const unsigned *bad)
{
    each<N, 2>([&](int n, int i) {
        const int column = 8 * n + threadIdx.x % 4 * 2 + i;
        const bool is_bad = bad[column / 32] >> column % 32 & 1;
        each<M, 2>([&](int m, int half) {
            float &score = x[m][n][2 * half + i];
            if (is_bad && score != -CUDART_INF_F) score = CUDART_NAN_F;
        });
    });
}

#endif
