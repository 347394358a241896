/*
 * adamw_8bit.cu: ADAMW with 8-bit optimizer state.
 *
 *     m = code * absmax  ->  ADAMW in f32, p too  ->  absmax = max |m|, code of m / absmax
 *
 * A warp handles a quantization block of 256 elements, a lane eight adjacent ones: no other lane
 * reads or writes its bytes. The code maps (base/state_codes.h) are computed by the host, copied to
 * the GPU once, and from there into the shared memory of each block, where lanes look up different
 * entries at once.
 */
#include "cuda/update/update.cuh"

extern "C" {
#include "base/state_codes.h"
}

constexpr int EACH = 8; /* elements per lane */
constexpr int STATE = WARP * EACH;

struct maps {
    codes with_sign, without_sign;
};

__device__ maps gpu_maps;

/* Copies the code maps to the current GPU. */
static int prepare_adamw_8bit(const struct cuda_state *, struct entry *, struct error *e)
{
    const maps both = {*codes_signed(), *codes_unsigned()};
    TRY_CUDA(cudaMemcpyToSymbol(gpu_maps, &both, sizeof both));
    /* A small copy may return before it has arrived, and the non-blocking streams do not wait for
     * the default stream. */
    TRY_CUDA(cudaStreamSynchronize(nullptr));
    return PL_OK;
}

static __device__ inline float warp_max(float x)
{
    for (int mask = WARP / 2; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, mask));
    return x;
}

/* A lane's range: `count` elements from `at` on. */
struct lane_state {
    int64_t at;
    int count;
    bool wide; /* all EACH elements exist and allow wide accesses */
};

template <typename T> static __device__ void read(float (&to)[EACH], const T *from, const lane_state &l)
{
    if (l.wide) return load<EACH>(to, from + l.at);
#pragma unroll
    for (int i = 0; i < EACH; i++) to[i] = i < l.count ? to_float(from[l.at + i]) : 0.0f;
}

static __device__ void read_gradient(float (&to)[EACH], typed_ptr g, const lane_state &l)
{
    if (l.wide) return load<EACH>(to, g, l.at);
#pragma unroll
    for (int i = 0; i < EACH; i++) to[i] = i < l.count ? element(g, l.at + i) : 0.0f;
}

static __device__ wide_pack<uint8_t, EACH> read_codes(const uint8_t *from, const lane_state &l)
{
    wide_pack<uint8_t, EACH> c = {};
    if (l.wide) return *reinterpret_cast<const wide_pack<uint8_t, EACH> *>(from + l.at);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i < l.count) c.at[i] = from[l.at + i];
    return c;
}

static __device__ void write_codes(uint8_t *to, const wide_pack<uint8_t, EACH> &c, const lane_state &l)
{
    if (l.wide) {
        *reinterpret_cast<wide_pack<uint8_t, EACH> *>(to + l.at) = c;
        return;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (i < l.count) to[l.at + i] = c.at[i];
}

template <typename P>
static __device__ void write_weights(const update &u, float (&p)[EACH], const lane_state &l, uint64_t key)
{
#pragma unroll
    for (int half = 0; half < EACH; half += 4) {
        float four[4] = {p[half], p[half + 1], p[half + 2], p[half + 3]};
        if (l.wide) {
            store_weight<P, 4>(u, l.at + half, four, key);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float one[1] = {four[i]};
            if (half + i < l.count) store_weight<P, 1>(u, l.at + half + i, one, key);
        }
    }
}

template <typename P>
static __global__ void adamw_8bit_kernel(update u, uint8_t *m, uint8_t *v, float *absmax, bool aligned)
{
    __shared__ maps both;
    __shared__ adam_scalars s;
    if (is_skipped(u)) return;
    static_assert(sizeof(maps) % 4 == 0, "copied by words");
    for (unsigned i = threadIdx.x; i < sizeof(maps) / 4; i += BLOCK)
        reinterpret_cast<uint32_t *>(&both)[i] = reinterpret_cast<const uint32_t *>(&gpu_maps)[i];
    fill_scalars(s, u);
    __syncthreads();

    const int64_t blocks = (u.n + STATE - 1) / STATE, warps = (int64_t)gridDim.x * (BLOCK / WARP);
    const int lane = threadIdx.x % WARP;
    for (int64_t block = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP; block < blocks; block += warps) {
        lane_state l;
        l.at = block * STATE + lane * EACH;
        const int64_t left = u.n - l.at;
        l.count = left < 0 ? 0 : left < EACH ? (int)left : EACH;
        l.wide = aligned && l.count == EACH;
        float p[EACH], g[EACH], mean[EACH], square[EACH];
        wide_pack<uint8_t, EACH> mc = read_codes(m, l), vc = read_codes(v, l);
        const float most_m = absmax[2 * block], most_v = absmax[2 * block + 1];
        read(p, static_cast<const P *>(u.p.data), l);
        read_gradient(g, u.g, l);
        float top_m = 0, top_v = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            mean[i] = __fmul_rn(both.with_sign.value[mc.at[i]], most_m);
            square[i] = __fmul_rn(both.without_sign.value[vc.at[i]], most_v);
            adam(p[i], mean[i], square[i], g[i], s);
            if (i >= l.count) continue;
            top_m = fmaxf(top_m, fabsf(mean[i]));
            top_v = fmaxf(top_v, fabsf(square[i]));
        }
        write_weights<P>(u, p, l, s.key);
        top_m = warp_max(top_m); /* after this all lanes have read absmax */
        top_v = warp_max(top_v);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            mc.at[i] = (uint8_t)code_signed(&both.with_sign, __fdiv_rn(mean[i], top_m > 0 ? top_m : 1.0f));
            vc.at[i] = (uint8_t)code_magnitude(&both.without_sign, __fdiv_rn(square[i], top_v > 0 ? top_v : 1.0f));
        }
        write_codes(m, mc, l);
        write_codes(v, vc, l);
        if (lane == 0) {
            absmax[2 * block] = top_m;
            absmax[2 * block + 1] = top_v;
        }
    }
}

/* Updates p with m, v [n] and absmax [blocks of 256, 2]. */
static int launch_adamw_8bit(const struct launch *l, struct error *e)
{
    const update u = update_of(l, 5, 6, 7);
    uint8_t *m = (uint8_t *)l->in[2].data, *v = (uint8_t *)l->in[3].data;
    float *absmax = (float *)l->in[4].data;
    if (misaligned(l->access, u.p.data, u.g.data, u.w.data, m, v)) TRY_CUDA(cudaErrorMisalignedAddress);
    const unsigned grid = grid_of_rows((u.n + STATE - 1) / STATE, BLOCK / WARP, UPDATE_BLOCKS);
    TRY_CUDA(by_weight(u.p.type, [&](auto p) {
        adamw_8bit_kernel<decltype(p)><<<grid, BLOCK, 0, stream_of(l)>>>(u, m, v, absmax, l->access == 16);
    }));
    return PL_OK;
}

CUDA_KERNEL(cuda_adamw_8bit, .prepare = prepare_adamw_8bit, .launch = launch_adamw_8bit);
