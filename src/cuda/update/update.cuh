/*
 * update.cuh: functions shared by the optimizer kernels: when a step is skipped, scalar factors,
 * and the store of an updated weight.
 *
 * The update of an element is in base/optimizers.h: the bits are those of the CPU.
 */
#pragma once

#include "cuda/device/kernel.cuh"
#include "base/optimizers.h"
#include "cuda/rows/keyed.cuh"
#include "cuda/update/update_blocks.h"

/* The arguments that all updates share; the attributes are those of ADAMW. All addresses, including
 * step, are device addresses. */
struct update {
    typed_ptr p;          /* f32 or bf16, updated in place */
    typed_ptr g, w;       /* w: may be absent */
    const step_block *step;
    const float *clip;    /* {norm, factor}, or nullptr */
    int64_t n;
    double beta1, beta2, eps, weight_decay, lr_scale;
    uint64_t key;         /* of the random numbers for the stochastic rounding of a bf16 p */
    int64_t first;        /* place of p in the whole weight, if it is a shard: a multiple of 256 */
};

/* Fills the arguments of an update. `step`, `clip` and `w` are the indices of these inputs. */
static inline update update_of(const struct launch *l, int step, int clip, int w)
{
    const auto &a = l->attr->adamw;
    return {typed_of(&l->in[0]), typed_of(&l->in[1]), typed_in(l, w), in_as<step_block>(l, step), in_as<float>(l, clip),
            operand_elements(&l->in[0]), a.beta1, a.beta2, a.eps, a.weight_decay, a.lr_scale,
            launch_key(l, a.key, a.of), launch_first(l, a.part)};
}

/* Reports whether the update changes nothing: with step.found_inf, or a gradient norm that is not
 * finite. */
static __device__ inline bool is_skipped(const update &u)
{
    return u.step->found_inf || (u.clip && !isfinite(u.clip[0]));
}
static __device__ inline float clip_of(const update &u) { return u.clip ? u.clip[1] : 1.0f; }
static __device__ inline double rate_of(const update &u) { return (double)u.step->learning_rate * u.lr_scale; }

/* Returns the tensor of a batch that item `number` belongs to: the last one whose first item is not
 * after it. If the table is in the launch parameters, all threads read the same word of it at a
 * time. */
static __device__ inline int tensor_of(const uint32_t *first, int count, uint32_t number)
{
    int low = 0, high = count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (first[middle] <= number) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* Stores elements at .. at+V of p; `at` is a multiple of V, V is 4 or 1. A bf16 p is rounded
 * stochastically, with one random draw for four elements. Then w gets the new value of p. */
template <typename P, int V>
static __device__ inline void store_weight(const update &u, int64_t at, float (&p)[V], uint64_t key)
{
    static_assert(V == 1 || V == 4, "a draw serves four elements");
    if constexpr (sizeof(P) == 2) {
        uint64_t bits = keyed_bits(key, (uint64_t)(u.first + at) / 4) >> (V == 1 ? 16 * (at % 4) : 0);
        wide_pack<__nv_bfloat16, V> rounded;
#pragma unroll
        for (int i = 0; i < V; i++, bits >>= 16) {
            rounded.at[i] = round_at_random(p[i], (uint32_t)bits);
            p[i] = to_float(rounded.at[i]);
        }
        *reinterpret_cast<wide_pack<__nv_bfloat16, V> *>(static_cast<__nv_bfloat16 *>(u.p.data) + at) = rounded;
    } else {
        store<V>(static_cast<float *>(u.p.data) + at, p);
    }
    if (u.w.data) store<V>(u.w, at, p);
}

/* The scalars of one tensor in a step. */
struct adam_scalars : adamw_scalars {
    uint64_t key;
};

/* Fills the scalars. A block calls it, and a barrier follows. Two powers in double take longer than
 * the load of a pack, so two warps compute one each. */
static __device__ inline void fill_scalars(adam_scalars &s, const update &u)
{
    const int32_t t = u.step->adam_t;
    if (threadIdx.x == 0) {
        const double lr = rate_of(u);
        s.keep = decay_keep(lr, u.weight_decay);
        s.rate1 = (float)(1 - u.beta1);
        s.eps = (float)u.eps;
        s.clip = clip_of(u);
        s.size = (float)(lr / adamw_correction(u.beta1, t));
    } else if (threadIdx.x == WARP) {
        s.b2 = (float)u.beta2;
        s.rate2 = (float)(1 - u.beta2);
        s.key = keyed_round(u.step, u.key);
        s.root = adamw_root(u.beta2, t);
    }
}

static __device__ inline void adam(float &p, float &m, float &v, float g, const adamw_scalars &s)
{
    adamw_moments(&m, &v, g, &s);
    p = adamw_weight(p, m, v, &s);
}

/* Returns the number of blocks of 256 threads for `items` items. */
static inline unsigned update_grid(int64_t items) { return grid_of_rows(items, BLOCK, 2 * UPDATE_BLOCKS); }

/* Calls f(P()) with P the storage type of the weights. */
template <typename F> static inline cudaError_t by_weight(enum store type, F f)
{
    if (type == STORE_F32) f(float());
    else if (type == STORE_BF16) f(__nv_bfloat16());
    else return cudaErrorInvalidValue;
    return cudaGetLastError();
}
