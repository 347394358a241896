/*
 * adamw.cu: ADAMW (base/optimizers.h), as torch.optim.AdamW, for many weights in one launch.
 *
 * A model has hundreds of weights, most of them vectors that do not even fill one block. The launch
 * parameters hold a table of the weights. Each weight has as many tiles ("turns") as its elements
 * fill blocks, with V elements per thread. The grid has as many blocks as run at once, and they
 * take all tiles in order, so they finish together.
 *
 *     turns    0 1 2 3 4 5 6 7 8       first   0 5 6 9
 *     tensor   0 0 0 0 0 1 2 2 2
 *     block    0 1 2 3 0 1 2 3 0       for four blocks
 *
 * The loads of a tile are in flight while the tile before it is computed. They stay in their
 * storage type, because a conversion would wait for the load at once.
 *
 * Invariant: the new value of an element is a function of only its operands and its index, with
 * the CPU's bits. sqrt and both divisions are correctly rounded. `quick` computes them in a third
 * of the instructions of the IEEE versions for operands of ordinary magnitude, and detects the
 * others.
 */
#include "cuda/update/update.cuh"

/* Weights that one launch updates. They share the types, the step, the clip and all attributes
 * except the learning-rate scale, the decay and the key. As many as the 4 KB of launch parameters
 * hold. */
struct adam_weight {
    void *p, *g, *m, *v, *w;         /* w: may be absent */
    int64_t n;
    double weight_decay, lr_scale;
    uint64_t key;
};
constexpr int ADAM_MOST = 50;
struct adam_batch {
    adam_weight at[ADAM_MOST];
    uint32_t cell[ADAM_MOST];        /* place of p in the whole weight, in cells of 256, if it is a shard */
    uint32_t first[ADAM_MOST + 1];   /* first tile of each weight, then the number of tiles */
    int count;
    enum store p, g, m, w;           /* p, and m (the type of v too): f32 or bf16 */
    const step_block *step;
    const float *clip;               /* {norm, factor}, or nullptr */
    double beta1, beta2, eps;
};

/* --- loads in storage type -------------------------------------------------------------------- */

template <typename T, int V> using words = wide_pack<uint32_t, (int)(V * sizeof(T) / 4)>;

template <typename T, int V> static __device__ inline void read_words(words<T, V> &to, const void *from, int64_t at)
{
    to = *reinterpret_cast<const words<T, V> *>(static_cast<const T *>(from) + at);
}

template <typename T, int V> static __device__ inline void unpack(float (&to)[V], const words<T, V> &from)
{
#pragma unroll
    for (int i = 0; i < V; i++) {
        if constexpr (sizeof(T) == 4) to[i] = __uint_as_float(from.at[i]);
        else if constexpr (std::is_same_v<T, __nv_bfloat16>)
            to[i] = __uint_as_float(i % 2 ? from.at[i / 2] & 0xffff0000u : from.at[i / 2] << 16);
        else to[i] = __half2float(__ushort_as_half((unsigned short)(from.at[i / 2] >> 16 * (i % 2))));
    }
}

/* V elements of every operand: as loaded words, and as numbers. */
template <typename P, typename M, typename G, int V> struct adam_words {
    words<P, V> p;
    words<G, V> g;
    words<M, V> m, v;
};
template <int V> struct adam_pack {
    float p[V], g[V], mean[V], square[V];
};

template <typename P, typename M, typename G, int V>
static __device__ inline void adamw_fetch(adam_words<P, M, G, V> &a, const adam_weight &x, int64_t at)
{
    read_words<G, V>(a.g, x.g, at);
    read_words<M, V>(a.m, x.m, at);
    read_words<M, V>(a.v, x.v, at);
    read_words<P, V>(a.p, x.p, at);
}

template <typename P, typename M, typename G, int V>
static __device__ inline void adamw_unpack(adam_pack<V> &to, const adam_words<P, M, G, V> &a)
{
    unpack<P, V>(to.p, a.p);
    unpack<G, V>(to.g, a.g);
    unpack<M, V>(to.mean, a.m);
    unpack<M, V>(to.square, a.v);
}

/* --- scalars -------------------------------------------------------------------------------------
 *
 * The quick versions: v is scaled by 2^48, and so sqrt(1-b2^t) by 2^24, so that no v except 0 is
 * too small for them; 0 becomes 2^-126, whose root does not change eps. An overflow, or a v below
 * 0, makes p Inf or NaN. m / (...) may be rounded incorrectly below 2^-102, or where it is itself
 * below 2^-126: that step is at most 2^-102 lr / eps, which does not change a p of 2^27 times that
 * or more. So p shows whether the result is correct: it has to be finite and at least `least`.
 */

constexpr float UP = 0x1p48f, ROOT_UP = 0x1p24f;

/* The scalars of one tensor. `least`: its bits without the sign, times two. */
struct adam_row {
    float keep, size;
    uint32_t least;
    uint64_t key, mixed;
    int64_t first; /* place in the whole weight */
};

/* The scalars that all tensors share: `s` without keep, size and key. */
struct adam_common {
    adam_scalars s;
    float root, inverse; /* s.root and 1 / s.root for the quick versions */
    float nothing;       /* replaces v = 0 */
    double correct;      /* 1-b1^t */
};

/* Computes 1/x in one approximate instruction, the start of the IEEE version, like those below. */
static __device__ inline float approx_inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ inline float approx_rsqrt(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Computes 1/x, correct to all bits but the last. */
static __device__ inline float near_inverse(float x)
{
    const float y = approx_inverse(x);
    return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);
}

/* Computes a/x, with near_inverse of x. A zero keeps its sign. */
static __device__ inline float quotient_by(float a, float x, float inverse)
{
    const float q = __fmul_rn(a, inverse);
    return __fmaf_rn(-inverse, __fmaf_rn(x, q, -a), q);
}

static __device__ inline float root_of(float x)
{
    const float y = approx_rsqrt(x), root = __fmul_rn(x, y);
    return __fmaf_rn(__fmaf_rn(-root, root, x), __fmul_rn(y, 0.5f), root);
}

/* Fills the scalars. A block calls it, and a barrier follows. Two powers in double take longer than
 * the load of a pack, so two warps compute one each. */
static __device__ inline void fill_common(adam_common &c, const adam_batch &b)
{
    const int32_t t = b.step->adam_t;
    if (threadIdx.x == 0) {
        c.s.rate1 = (float)(1 - b.beta1);
        c.s.clip = b.clip ? b.clip[1] : 1.0f;
        c.correct = adamw_correction(b.beta1, t);
    } else if (threadIdx.x == WARP) {
        const float eps = (float)b.eps, root = adamw_root(b.beta2, t);
        c.s.b2 = (float)b.beta2;
        c.s.rate2 = (float)(1 - b.beta2);
        c.s.root = root;
        c.s.eps = eps;
        c.root = root * ROOT_UP;
        c.inverse = near_inverse(root * ROOT_UP);
        c.nothing = eps + 0x1p-63f / (root * ROOT_UP) == eps ? 0x1p-126f : 0.0f;
    }
}

/* Returns the scalars of weight i, after the barrier. For an eps outside the range of the quick
 * versions, `least` is out of reach for any p. */
static __device__ inline adam_row row_of(const adam_common &c, const adam_batch &b, int i)
{
    const adam_weight &x = b.at[i];
    const double lr = (double)b.step->learning_rate * x.lr_scale;
    const float size = (float)(lr / c.correct), least = (float)(fabs((double)size) * 0x1p-73 / (double)c.s.eps);
    const uint64_t key = keyed_round(b.step, x.key);
    return {decay_keep(lr, x.weight_decay),
            size,
            c.s.eps <= 1 && least < 1 ? 2 * __float_as_uint(least) : 0xff000000u,
            key,
            keyed_mix(key),
            (int64_t)b.cell[i] * 256};
}

/* --- an element at a time --------------------------------------------------------------------- */

/* With IEEE sqrt and division, for any operands. */
template <typename P, typename M, typename G>
static __device__ inline void adamw_one(const adam_batch &b, const adam_weight &x, const adam_common &c,
                                        const adam_row &row, int64_t at)
{
    M *m = static_cast<M *>(x.m) + at, *v = static_cast<M *>(x.v) + at;
    adam_scalars s = c.s;
    s.keep = row.keep;
    s.size = row.size;
    const update u = {.p = {x.p, b.p}, .w = {x.w, b.w}, .first = row.first};
    adam_pack<1> a;
    load<1>(a.p, static_cast<const P *>(x.p) + at);
    load<1>(a.g, static_cast<const G *>(x.g) + at);
    load<1>(a.mean, m);
    load<1>(a.square, v);
    adam(a.p[0], a.mean[0], a.square[0], a.g[0], s);
    store<1>(m, a.mean);
    store<1>(v, a.square);
    store_weight<P, 1>(u, at, a.p, row.key);
}

/* --- V elements ------------------------------------------------------------------------------- */

/* Computes the same bits as `adam`, if the new p satisfies the condition of the section above. */
static __device__ inline void quick(float &p, float &m, float &v, float g, const adam_common &c, float keep, float size)
{
    adamw_moments(&m, &v, g, &c.s);
    const float root = root_of(__fmaf_rn(v, UP, c.nothing));
    const float under = __fadd_rn(quotient_by(root, c.root, c.inverse), c.s.eps);
    p = __fsub_rn(__fmul_rn(p, keep), __fmul_rn(size, quotient_by(m, under, near_inverse(under))));
}

/* Like store_weight, for finite numbers. */
template <typename P, int V>
static __device__ inline void store_finite(const adam_batch &b, const adam_weight &x, int64_t at, float (&p)[V],
                                           const adam_row &row)
{
    if constexpr (sizeof(P) == 2) {
        words<P, V> rounded;
#pragma unroll
        for (int i = 0; i < V; i += 4) {
            const uint64_t bits = keyed_bits_mixed(row.key, row.mixed, (uint64_t)(row.first + at) / 4 + i / 4);
#pragma unroll
            for (int k = 0; k < 4; k += 2) {
                const uint32_t two = (uint32_t)(bits >> 16 * k);
                const uint32_t low = __float_as_uint(p[i + k]) + (two & 0xffffu),
                               high = __float_as_uint(p[i + k + 1]) + (two >> 16);
                rounded.at[(i + k) / 2] = __byte_perm(low, high, 0x7632);
            }
        }
        *reinterpret_cast<words<P, V> *>(static_cast<P *>(x.p) + at) = rounded;
        if (x.w) unpack<P, V>(p, rounded);
    } else {
        store<V>(static_cast<float *>(x.p) + at, p);
    }
    if (x.w) store<V>(typed_ptr{x.w, b.w}, at, p);
}

/* Returns whether the quick version was valid; if not, nothing was stored. */
template <typename P, typename M, int V>
static __device__ inline bool adamw_pack(adam_pack<V> &a, const adam_batch &b, const adam_weight &x,
                                         const adam_common &c, const adam_row &row, int64_t at)
{
    uint32_t worst = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        quick(a.p[i], a.mean[i], a.square[i], a.g[i], c, row.keep, row.size);
        worst = max(worst, 2 * __float_as_uint(a.p[i]) - row.least);
    }
    if (worst >= 0xff000000u - row.least) return false;
    store<V>(static_cast<M *>(x.m) + at, a.mean);
    store<V>(static_cast<M *>(x.v) + at, a.square);
    store_finite<P, V>(b, x, at, a.p, row);
    return true;
}

/* The first element of this thread in a tile. */
template <int V> static __device__ inline int64_t element_of(const adam_batch &b, int at, uint32_t turn)
{
    return ((int64_t)(turn - b.first[at]) * BLOCK + threadIdx.x) * V;
}

template <typename P, typename M, typename G, int V>
static __global__ void __launch_bounds__(BLOCK, 3) adamw_kernel(const __grid_constant__ adam_batch b, bool wide)
{
    __shared__ adam_common shared;
    __shared__ adam_row rows[ADAM_MOST];
    const uint32_t turns = b.first[b.count];
    uint32_t turn = blockIdx.x;
    int at = tensor_of(b.first, b.count, turn);
    int64_t i = element_of<V>(b, at, turn);
    adam_words<P, M, G, V> ahead = {};
    if (wide && i + V <= b.at[at].n) adamw_fetch<P, M, G, V>(ahead, b.at[at], i);
    if (b.step->found_inf || (b.clip && !isfinite(b.clip[0]))) return;
    fill_common(shared, b);
    __syncthreads();
    if ((int)threadIdx.x < b.count) rows[threadIdx.x] = row_of(shared, b, (int)threadIdx.x);
    __syncthreads();
    const adam_common c = shared;
    do {
        const int here = at;
        const int64_t from = i;
        adam_pack<V> a;
        adamw_unpack<P, M, G, V>(a, ahead);
        turn += gridDim.x;
        if (turn < turns) {
            while (b.first[at + 1] <= turn) at++;
            i = element_of<V>(b, at, turn);
            if (wide && i + V <= b.at[at].n) adamw_fetch<P, M, G, V>(ahead, b.at[at], i);
        }
        const adam_weight &x = b.at[here];
        const adam_row row = rows[here];
        if (wide && from + V <= x.n && adamw_pack<P, M, V>(a, b, x, c, row, from)) continue;
#pragma unroll 1
        for (int64_t k = from; k < x.n && k < from + V; k++) adamw_one<P, M, G>(b, x, c, row, k);
    } while (turn < turns);
}

/* --- the host's side -------------------------------------------------------------------------- */

/* As many blocks as are resident at once. */
template <typename K> static unsigned blocks_at_once(K kernel)
{
    int gpu = 0, processors = 1, each = 1;
    if (cudaGetDevice(&gpu) == cudaSuccess) cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, gpu);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, BLOCK, 0);
    return (unsigned)(processors * (each < 1 ? 1 : each));
}

template <typename P, typename M, typename G> static void run_batch(adam_batch &b, const struct launch *l)
{
    constexpr int V = sizeof(P) + sizeof(M) == 4 ? 8 : 4; /* 16 bytes of the most frequent operand type */
    for (int i = 0; i < b.count; i++) b.first[i + 1] = b.first[i] + grid_of_rows(b.at[i].n, BLOCK * V, INT32_MAX);
    const unsigned most = blocks_at_once(adamw_kernel<P, M, G, V>), turns = b.first[b.count];
    adamw_kernel<P, M, G, V><<<turns < most ? turns : most, BLOCK, 0, stream_of(l)>>>(b, l->access == 16);
}

static adam_weight adam_weight_of(const struct launch *l)
{
    const auto &a = l->attr->adamw;
    return {l->in[0].data, l->in[1].data, l->in[2].data, l->in[3].data, data_in(l, 6), operand_elements(&l->in[0]),
            a.weight_decay, a.lr_scale, launch_key(l, a.key, a.of)};
}

/* Returns an empty batch with the parameters of this launch. */
static adam_batch adam_batch_of(const struct launch *l)
{
    const auto &a = l->attr->adamw;
    return {.p = store_of(l->in[0].dtype), .g = store_of(l->in[1].dtype), .m = store_of(l->in[2].dtype),
            .w = typed_in(l, 6).type, .step = in_as<step_block>(l, 4), .clip = in_as<float>(l, 5), .beta1 = a.beta1,
            .beta2 = a.beta2, .eps = a.eps};
}

/* Reports whether a weight joins the batch. One without w has no type of w; the first weight that
 * has w sets the type of the batch. */
static bool adam_joins(adam_batch &b, bool &has_w_type, const struct launch *l, const adam_weight &x)
{
    const adam_batch a = adam_batch_of(l);
    if (b.count == ADAM_MOST || a.p != b.p || a.g != b.g || a.m != b.m || a.step != b.step || a.clip != b.clip ||
        a.beta1 != b.beta1 || a.beta2 != b.beta2 || a.eps != b.eps || (has_w_type && x.w && a.w != b.w))
        return false;
    if (x.w) b.w = a.w;
    has_w_type |= x.w != nullptr;
    return true;
}

static int batch_adamw(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e)
{
    adam_batch b = adam_batch_of(l);
    static_assert(sizeof b + sizeof(bool) <= 4096, "the parameters of a launch");
    bool has_w_type = false;
    for (uint32_t i = 0; i < n; i++) {
        const adam_weight x = adam_weight_of(&l[i]);
        if (l[i].access != l->access || !adam_joins(b, has_w_type, &l[i], x)) break;
        if (misaligned(l->access, x.p, x.g, x.m, x.v, x.w)) TRY_CUDA(cudaErrorMisalignedAddress);
        b.cell[b.count] = (uint32_t)(launch_first(&l[i], l[i].attr->adamw.part) / 256);
        b.at[b.count++] = x;
    }
    *taken = (uint32_t)b.count;
    TRY_CUDA(by_weight(b.p, [&](auto p) {
        by_weight(b.m, [&](auto state) {
            by_type(b.g, [&](auto gradient) { run_batch<decltype(p), decltype(state), decltype(gradient)>(b, l); });
        });
    }));
    return PL_OK;
}

CUDA_KERNEL(cuda_adamw, .batch = batch_adamw);
