/*
 * rope.cu: ROPE: rotates the pair (x[i], x[i+D/2]) of each head by the angle p * inv_freq[i], p the
 * token's place in its sequence, or its position if positions are given, or one of three.
 *
 * A block has one or several positions of one sequence: it computes their D/2 sines and cosines
 * once, in shared memory, for all heads. Both halves of a pair are read by the thread that writes
 * them: y may alias x.
 */
#include "cuda/rows/rope.cuh"

template <typename T, int V, bool GIVEN>
static __global__ void rope_kernel(T *y, const T *x, const float *inv_freq, rope_shape s, int each)
{
    extern __shared__ float turns[]; /* [each, 2, D/2]: cosines, sines */
    const int64_t first = (int64_t)blockIdx.x * each, left = s.B * s.T - first;
    const int half = (int)(s.D / 2), packs = half / V, items = (int)s.H * packs, rows = left < each ? (int)left : each;
    int item = threadIdx.x;
    float a[V], b[V], c[V], d[V];
    auto place = [&] { return (first * s.H + item / packs) * s.D + item % packs * V; };
    auto read = [&] {
        load<V>(a, x + place());
        load<V>(b, x + place() + half);
    };
    if (item < rows * items) read(); /* in flight while the sines and cosines are computed */
    fill_turns<GIVEN>(turns, inv_freq, s, first, rows);
    __syncthreads();
    while (item < rows * items) {
        const float *turn = turns + item / items * 2 * half + item % packs * V;
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float cosine = turn[i], sine = turn[half + i];
            c[i] = a[i] * cosine - b[i] * sine;
            d[i] = b[i] * cosine + a[i] * sine;
        }
        store<V>(y + place(), c);
        store<V>(y + place() + half, d);
        item += blockDim.x;
        if (item < rows * items) read();
    }
}

rope_shape rope_shape_of(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const auto *a = &l->attr->rope;
    rope_shape s = {x->dim[0], x->dim[1], x->dim[2], x->dim[3], l->token, a->scale, a->inverse ? -1.0f : 1.0f};
    s.per = has(l, 2) && l->in[2].rank == 3 ? 3 : 1;
    s.positions = in_as<int32_t>(l, 2);
    s.interleaved = a->interleaved;
    memcpy(s.sections, a->sections, sizeof s.sections);
    return s;
}

/* Launches blocks of as many positions as give work to all their threads. */
int launch_rope(const struct launch *l, struct error *e)
{
    const rope_shape s = rope_shape_of(l);
    TRY_CUDA(by_access(store_of(l->in[0].dtype), l->access, [&](auto zero, auto width) {
        using T = decltype(zero);
        constexpr int V = decltype(width)::value;
        const int64_t items = s.H * (s.D / 2 / V), most = 4096 / s.D;
        int64_t each = BLOCK / items;
        if (each > most) each = most;
        if (each < 1) each = 1;
        const int64_t all = each * items;
        const unsigned threads = (unsigned)(all < 64 ? 64 : all > BLOCK ? BLOCK : (all + WARP - 1) / WARP * WARP);
        const unsigned grid = (unsigned)((s.B * s.T + each - 1) / each);
        const auto kernel = s.positions ? rope_kernel<T, V, true> : rope_kernel<T, V, false>;
        kernel<<<grid, threads, (size_t)(each * s.D) * sizeof(float), stream_of(l)>>>(
            out_as<T>(l, 0), in_as<T>(l, 0), in_as<float>(l, 1), s, (int)each);
    }, l->out[0].data, l->in[0].data));
    return PL_OK;
}

CUDA_KERNEL(cuda_rope, .launch = launch_rope);
