/*
 * prompts.c: what a simulated user does between two rounds: IMAGE, MASK_PICK,
 * PROMPT_NEXT. None has a gradient: prompts and fed-back masks are given,
 * not learnt.
 *
 * Targets are bits, row by row, lowest bit first, each row a whole number of 8-byte
 * words. A mask is worked on by one thread, so the threads' number changes nothing,
 * and a draw is keyed by seed, step, op, mask and round: a resume, a split of the batch
 * and a repetition draw the same points.
 *
 * The reference kernels are these: they compute in integers, or copy.
 */
#include <string.h>

#include "base/random.h"
#include "cpu/cpu.h"
#include "cpu/ref.h"
#include "cpu/rows.h"

static bool is_dense_type(const struct tensor *x, enum dtype t) { return x && x->dtype == t && tensor_is_dense(x); }

/* --- IMAGE ------------------------------------------------------------------------- */

static bool image_match(const struct query *q)
{
    return is_dense_type(q->in[0], DT_U8) && is_dense_type(q->in[1], DT_I32) && tensor_is_fast(q->out[0]);
}

static void image_row(float *to, const uint8_t *from, int64_t columns, const union attr *a)
{
    float scale[3], shift[3];
    for (int c = 0; c < 3; c++) {
        scale[c] = 1 / a->image.std[c];
        shift[c] = -a->image.mean[c] / a->image.std[c];
    }
    for (int64_t x = 0; x < columns; x++)
        for (int c = 0; c < 3; c++) to[3 * x + c] = (float)from[3 * x + c] * scale[c] + shift[c];
}

static void image_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t B = x->dim[0], H = x->dim[1], W = x->dim[2];
    const int32_t *valid = l->in[1].data;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (B * H * W > 4096)
    for (int64_t r = 0; r < B * H; r++) {
        const int64_t b = r / H, columns = r % H < valid[2 * b] ? max_i64(0, min_i64(valid[2 * b + 1], W)) : 0;
        for (int64_t from = 0, each = TILE / 3; from < W; from += each) {
            float scratch[TILE];
            const int64_t n = min_i64(each, W - from), inside = max_i64(0, min_i64(n, columns - from)), at = (r * W + from) * 3;
            float *to = row_place(y, at, scratch);
            image_row(to, (const uint8_t *)x->data + at, inside, l->attr);
            memset(to + inside * 3, 0, (size_t)(n - inside) * 3 * sizeof *to);
            row_store(y, at, (int)(3 * n), to);
        }
    }
}

static void ref_image(const struct launch *l)
{
    const int64_t H = l->in[0].dim[1], W = l->in[0].dim[2], n = operand_elements(&l->in[0]);
    for (int64_t i = 0; i < n; i++) {
        int64_t c = i % 3, x = i / 3 % W, y = i / 3 / W % H, b = i / 3 / W / H;
        bool inside = y < (int64_t)ref_get(&l->in[1], 2 * b) && x < (int64_t)ref_get(&l->in[1], 2 * b + 1);
        ref_put(&l->out[0], i, inside ? (ref_get(&l->in[0], i) - l->attr->image.mean[c]) / l->attr->image.std[c] : 0);
    }
}

/* --- MASK_PICK ------------------------------------------------------------------------ */

/* The candidate of the best predicted score; of equal ones, and of none that is a number, the first. */
static int64_t best_candidate(const struct operand *scores, int64_t n)
{
    int64_t K = scores->dim[1], best = 0;
    for (int64_t k = 1; k < K; k++)
        if (ref_get(scores, n * K + k) > ref_get(scores, n * K + best)) best = k;
    return best;
}

static bool mask_pick_match(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && tensor_is_dense(q->out[0]) && q->in[0]->dtype == q->out[0]->dtype;
}

static void mask_pick_run(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t N = x->dim[0], K = x->dim[1];
    const size_t bytes = (size_t)(x->dim[2] * x->dim[3]) * dtype_size(x->dtype);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++)
        memcpy((char *)l->out[0].data + (size_t)n * bytes, (const char *)x->data + (size_t)(n * K + best_candidate(&l->in[1], n)) * bytes, bytes);
}

static void ref_mask_pick(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t N = x->dim[0], K = x->dim[1], each = x->dim[2] * x->dim[3];
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0, k = best_candidate(&l->in[1], n); i < each; i++)
            ref_put(&l->out[0], n * each + i, ref_get(x, (n * K + k) * each + i));
}

/* --- PROMPT_NEXT ---------------------------------------------------------------------- */

/* One mask in its grid. */
struct region {
    const struct operand *logits; /* [N,h,w] */
    const uint8_t *bits;          /* of this mask */
    int64_t n, w, row_bytes;
    int64_t rows, columns;        /* that are valid */
};

static bool target_at(const struct region *r, int64_t y, int64_t x) { return r->bits[y * r->row_bytes + x / 8] >> (x % 8) & 1; }

/* Is the pixel one to draw from: predicted wrongly, or with `error` false of the target. */
static bool drawn_from(const struct region *r, int64_t h, int64_t y, int64_t x, bool error)
{
    bool target = target_at(r, y, x);
    return error ? (ref_get(r->logits, (r->n * h + y) * r->w + x) > 0) != target : target;
}

static int64_t count_region(const struct region *r, int64_t h, bool error)
{
    int64_t n = 0;
    for (int64_t y = 0; y < r->rows; y++)
        for (int64_t x = 0; x < r->columns; x++) n += drawn_from(r, h, y, x, error);
    return n;
}

/* The k-th pixel of the region, in rows. */
static void find_pixel(const struct region *r, int64_t h, bool error, int64_t k, int64_t at[2])
{
    for (int64_t y = 0; y < r->rows; y++)
        for (int64_t x = 0; x < r->columns; x++)
            if (drawn_from(r, h, y, x, error) && k-- == 0) {
                at[0] = y;
                at[1] = x;
                return;
            }
}

/* Rounds count from 1. Of four or more the last and one other, at random, add no point. */
static bool adds_point(int32_t round, int rounds, uint64_t key)
{
    if (rounds < 4) return true;
    int64_t idle = (int64_t)(random_bits(key, 0) % (uint64_t)(rounds - 1)) + 1;
    return round != rounds && round != idle;
}

static void next_point(const struct launch *l, int64_t n, int32_t round)
{
    const struct operand *logits = &l->in[3];
    const struct step_block *step = l->in[7].data;
    const int64_t P = l->in[0].dim[1], h = logits->dim[1], w = logits->dim[2];
    const int32_t *valid = (const int32_t *)l->in[5].data + 2 * n;
    struct region r = {logits, (const uint8_t *)l->in[4].data + n * h * l->in[4].dim[2], n, w, l->in[4].dim[2],
                       min_i64(valid[0], h), min_i64(valid[1], w)};
    const int64_t slot = n * P + l->attr->prompt_next.first + round - 1;
    float *place = (float *)l->out[0].data + slot * 2;
    uint64_t key = random_bits(random_bits(random_key(step->seed, "prompts"), step->rng_step), (uint64_t)(uint32_t)((const int32_t *)l->in[6].data)[n]);
    if (valid[0] <= 0 || !adds_point(round, l->attr->prompt_next.rounds, key)) return;
    bool error = true;
    int64_t count = count_region(&r, h, true), at[2] = {0, 0};
    if (!count) {
        error = false;
        count = count_region(&r, h, false);
    }
    if (!count) return;
    find_pixel(&r, h, error, (int64_t)(random_bits(key, (uint64_t)round) % (uint64_t)count), at);
    place[0] = ((float)at[1] + 0.5f) / (float)w;
    place[1] = ((float)at[0] + 0.5f) / (float)h;
    ((int32_t *)l->out[1].data)[slot] = target_at(&r, at[0], at[1]);
}

static bool prompt_next_match(const struct query *q)
{
    return is_dense_type(q->in[0], DT_F32) && is_dense_type(q->in[1], DT_I32) && is_dense_type(q->in[2], DT_I32) &&
           is_dense_type(q->in[4], DT_U8) && is_dense_type(q->in[5], DT_I32) && is_dense_type(q->in[6], DT_I32);
}

static void prompt_next_run(const struct launch *l)
{
    const int64_t N = l->in[0].dim[0];
    const int32_t round = ++*(int32_t *)l->out[2].data;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++)
        if (round <= l->attr->prompt_next.rounds) next_point(l, n, round);
}
static void ref_prompt_next(const struct launch *l) { prompt_next_run(l); }

CPU_KERNEL(IMAGE, image);
CPU_KERNEL(MASK_PICK, mask_pick);
CPU_KERNEL(PROMPT_NEXT, prompt_next);
REF_KERNEL(IMAGE, image);
REF_KERNEL(MASK_PICK, mask_pick);
REF_KERNEL(PROMPT_NEXT, prompt_next);
