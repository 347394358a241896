/*
 * prompts.cu: a simulated user: MASK_PICK, the candidate that is fed back, and PROMPT_NEXT, the
 * next pixel that is clicked (cpu/rows/prompts.c has the rules).
 *
 * PROMPT_NEXT has one block per mask. A warp takes words of 32 pixels of a row, a pixel per lane,
 * and determines by a ballot which of them are in the region; its words are consecutive, so that
 * the order of the warps is the order of the pixels. The region is counted, a number below the
 * count is drawn, and the warp that has the pixel of that number traverses its words again.
 * Everything but the comparison is integer arithmetic: the pixel is the CPU's.
 */
#include "cuda/device/kernel.cuh"
#include "cuda/rows/keyed.cuh"

/* --- MASK_PICK -------------------------------------------------------------------------------- */

/* Returns the first of equal scores; the first candidate if all scores are NaN. */
static __device__ int64_t best_candidate(typed_ptr scores, int64_t n, int64_t K)
{
    int64_t best = 0;
    float most = element(scores, n * K);
    for (int64_t k = 1; k < K; k++) {
        const float score = element(scores, n * K + k);
        if (!(score > most)) continue;
        best = k;
        most = score;
    }
    return best;
}

template <typename P> static __global__ void pick_kernel(P *y, const P *x, typed_ptr scores, int64_t K, int64_t packs)
{
    const int64_t n = blockIdx.y;
    const P *from = x + (n * K + best_candidate(scores, n, K)) * packs;
    for (int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x; k < packs; k += (int64_t)gridDim.x * BLOCK)
        y[n * packs + k] = from[k];
}

template <typename P> static void pick(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t packs = x->dim[2] * x->dim[3] * dtype_size(x->dtype) / (int64_t)sizeof(P);
    const dim3 grid(grid_of_rows(packs, 4 * BLOCK, 64), (unsigned)x->dim[0]);
    pick_kernel<P><<<grid, BLOCK, 0, stream_of(l)>>>(out_as<P>(l, 0), in_as<P>(l, 0), typed_of(&l->in[1]), x->dim[1],
                                                     packs);
}

static int launch_mask_pick(const struct launch *l, struct error *e)
{
    if (misaligned(l->access, l->out[0].data, l->in[0].data)) TRY_CUDA(cudaErrorMisalignedAddress);
    if (l->access == 16) pick<uint4>(l);
    else pick<uint16_t>(l); /* no element is smaller */
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

/* --- PROMPT_NEXT ------------------------------------------------------------------------------ */

constexpr int SEARCH = 1024, SEARCHERS = SEARCH / WARP;

struct prompt_task {
    float *coords;               /* [N,P,2] */
    int32_t *kinds, *round;      /* [N,P], [1] */
    typed_ptr logits;            /* [N,h,w] */
    const uint8_t *bits;         /* [N,h,row_bytes] */
    const int32_t *valid, *keys; /* [N,2], [N] */
    const step_block *step;
    int64_t N, P, h, w, row_bytes;
    int32_t rounds, first;
};

/* One mask in its grid, as a lane of a warp sees it. */
struct region {
    typed_ptr logits;
    const uint8_t *bits;
    int64_t first, w, row_bytes;
    int64_t columns, across; /* valid columns; 32-pixel words per row */
};

/* The pixels of word `word` that are wrong, and those of the target. */
struct votes {
    unsigned error, target;
};

static __device__ votes votes_of(const region &r, int64_t word)
{
    const int64_t y = word / r.across, x = word % r.across * WARP + threadIdx.x % WARP;
    const bool inside = x < r.columns;
    const bool target = inside && (r.bits[y * r.row_bytes + x / 8] >> (x % 8) & 1);
    const bool predicted = inside && element(r.logits, r.first + y * r.w + x) > 0.0f;
    votes v;
    v.error = __ballot_sync(ALL_LANES, predicted != target);
    v.target = __ballot_sync(ALL_LANES, target);
    return v;
}

/* Rounds count from 1. With four rounds or more, the last and a random other one add no point. */
static __device__ bool adds_point(int32_t round, int32_t rounds, uint64_t key)
{
    if (rounds < 4) return true;
    const int64_t idle = (int64_t)(keyed_bits(key, 0) % (uint64_t)(rounds - 1)) + 1;
    return round != rounds && round != idle;
}

static __device__ void put_point(const prompt_task &t, int64_t n, int32_t round, int64_t y, int64_t x, int kind)
{
    const int64_t slot = n * t.P + t.first + round - 1;
    t.coords[2 * slot] = __fdiv_rn((float)x + 0.5f, (float)t.w);
    t.coords[2 * slot + 1] = __fdiv_rn((float)y + 0.5f, (float)t.h);
    t.kinds[slot] = kind;
}

static __global__ void __launch_bounds__(SEARCH) next_kernel(prompt_task t)
{
    __shared__ int errors[SEARCHERS], targets[SEARCHERS];
    const int64_t n = blockIdx.x;
    const int32_t round = *t.round + 1; /* count_kernel, which runs next, increments it */
    const uint64_t key = keyed_bits(keyed_bits(keyed_name(t.step->seed, NAME_PROMPTS, 7), t.step->rng_step),
                                    (uint64_t)(uint32_t)t.keys[n]);
    const int64_t rows = t.valid[2 * n] < t.h ? t.valid[2 * n] : t.h,
                  columns = t.valid[2 * n + 1] < t.w ? t.valid[2 * n + 1] : t.w;
    /* the whole block */
    if (round > t.rounds || rows <= 0 || columns <= 0 || !adds_point(round, t.rounds, key)) return;

    const int64_t across = (columns + WARP - 1) / WARP, words = rows * across,
                  each = (words + SEARCHERS - 1) / SEARCHERS;
    const region r = {t.logits, t.bits + n * t.h * t.row_bytes, n * t.h * t.w, t.w, t.row_bytes, columns, across};
    const int warp = threadIdx.x / WARP;
    const int64_t from = warp * each < words ? warp * each : words, to = from + each < words ? from + each : words;
    int wrong = 0, on = 0;
#pragma unroll 4
    for (int64_t word = from; word < to; word++) {
        const votes v = votes_of(r, word);
        wrong += __popc(v.error);
        on += __popc(v.target);
    }
    if (threadIdx.x % WARP == 0) {
        errors[warp] = wrong;
        targets[warp] = on;
    }
    __syncthreads();

    int64_t all_errors = 0, all_targets = 0;
    for (int w = 0; w < SEARCHERS; w++) {
        all_errors += errors[w];
        all_targets += targets[w];
    }
    const bool error = all_errors > 0;
    const int64_t count = error ? all_errors : all_targets;
    if (!count) return;
    int64_t k = (int64_t)(keyed_bits(key, (uint64_t)round) % (uint64_t)count);
    for (int w = 0; w < warp; w++) k -= error ? errors[w] : targets[w];
    if (k < 0 || k >= (error ? wrong : on)) return; /* another warp has the pixel */
    for (int64_t word = from; word < to; word++) {
        const votes v = votes_of(r, word);
        unsigned in = error ? v.error : v.target;
        const int here = __popc(in);
        if (k >= here) {
            k -= here;
            continue;
        }
        for (; k; k--) in &= in - 1;
        const int bit = __ffs((int)in) - 1;
        if (threadIdx.x % WARP == 0)
            put_point(t, n, round, word / across, word % across * WARP + bit, (int)(v.target >> bit & 1));
        return;
    }
}

static __global__ void count_kernel(int32_t *round) { ++*round; }

static int launch_prompt_next(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[3];
    const prompt_task t = {out_as<float>(l, 0), out_as<int32_t>(l, 1), out_as<int32_t>(l, 2), typed_of(x),
                           in_as<uint8_t>(l, 4), in_as<int32_t>(l, 5), in_as<int32_t>(l, 6), in_as<step_block>(l, 7),
                           x->dim[0], l->in[0].dim[1], x->dim[1], x->dim[2], l->in[4].dim[2],
                           l->attr->prompt_next.rounds, l->attr->prompt_next.first};
    next_kernel<<<(unsigned)t.N, SEARCH, 0, stream_of(l)>>>(t);
    count_kernel<<<1, 1, 0, stream_of(l)>>>(t.round);
    TRY_CUDA(cudaGetLastError());
    return PL_OK;
}

CUDA_KERNEL(cuda_mask_pick, .launch = launch_mask_pick);
CUDA_KERNEL(cuda_prompt_next, .launch = launch_prompt_next);
