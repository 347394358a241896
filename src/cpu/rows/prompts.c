/*
 * prompts.c: images and prompts: IMAGE and PIXELS convert bytes to normalised pixels, FOURIER
 * computes features of points, MASK_PICK selects the mask that is fed back, PROMPT_NEXT draws the
 * next point. None has a gradient: images, points and fed-back masks are constants.
 */
#include <math.h>

#include "base/random.h"
#include "cpu/cpu.h"
#include "cpu/reference/ref.h"

/* --- IMAGE ------------------------------------------------------------------------- */

static bool image_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_U8) && tensor_is(q->in[1], DT_I32) && tensor_is_fast(q->out[0]);
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
            const int64_t n = min_i64(each, W - from), inside = max_i64(0, min_i64(n, columns - from)),
                          at = (r * W + from) * 3;
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

/* --- PIXELS: values of bytes by a table ------------------------------------------------------- */

static bool pixels_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_U8) && tensor_is(q->in[1], DT_F32) && tensor_is_fast(q->out[0]);
}

/* Computes n values from byte `at` on, plane by plane. */
static void pixel_values(const struct launch *l, int64_t at, int64_t n, float *to)
{
    const int64_t plane = l->attr->pixels.plane, rows = l->in[1].dim[0];
    const uint8_t *from = (const uint8_t *)l->in[0].data + at;
    for (int64_t k = 0; k < n;) {
        const int64_t number = (at + k) / plane, end = min_i64(n, (number + 1) * plane - at);
        const float *value = (const float *)l->in[1].data + number % rows * 256;
        for (; k < end; k++) to[k] = value[from[k]];
    }
}

static void pixels_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 4096)
    for (int64_t at = 0; at < n; at += TILE) {
        float scratch[TILE], *to = row_place(&l->out[0], at, scratch);
        pixel_values(l, at, min_i64(TILE, n - at), to);
        row_store(&l->out[0], at, (int)min_i64(TILE, n - at), to);
    }
}

static void ref_pixels(const struct launch *l)
{
    const int64_t plane = l->attr->pixels.plane, rows = l->in[1].dim[0], n = operand_elements(&l->in[0]);
    for (int64_t i = 0; i < n; i++)
        ref_put(&l->out[0], i, ref_get(&l->in[1], i / plane % rows * 256 + (int64_t)ref_get(&l->in[0], i)));
}

/* --- FOURIER: Fourier features of points ------------------------------------------------------ */

/* Computes n frequencies of one point. Whole turns are subtracted in double: they would use up the
 * precision of a float angle. */
static void waves(float *sine, float *cosine, const float *gx, const float *gy, int n, double x, double y)
{
    for (int i = 0; i < n; i++) {
        double turns = x * (double)gx[i] + y * (double)gy[i];
        float angle = (float)(2 * M_PI * (turns - rint(turns)));
        sine[i] = sinf(angle);
        cosine[i] = cosf(angle);
    }
}

static void fourier_run(const struct launch *l)
{
    const struct operand *coords = &l->in[0], *gauss = &l->in[1], *out = &l->out[0];
    const int64_t F = gauss->dim[1], points = operand_rows(coords);
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t i = 0; i < points; i++) {
        double x = 2 * dtype_load(coords->data, coords->dtype, 2 * i) - 1;
        double y = 2 * dtype_load(coords->data, coords->dtype, 2 * i + 1) - 1;
        for (int64_t f = 0; f < F; f += TILE) {
            float gx[TILE], gy[TILE], sine[TILE], cosine[TILE];
            int n = row_tile(F - f);
            waves(sine, cosine, row_view(gauss, f, n, gx), row_view(gauss, F + f, n, gy), n, x, y);
            dtype_convert((char *)out->data + (i * 2 * F + f) * dtype_size(out->dtype), out->dtype, sine, DT_F32, n);
            dtype_convert((char *)out->data + (i * 2 * F + F + f) * dtype_size(out->dtype), out->dtype, cosine, DT_F32,
                          n);
        }
    }
}

/* --- MASK_PICK ------------------------------------------------------------------------ */

/* Returns the candidate with the best predicted score; of equal ones, or if all are NaN, the
 * first. */
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
        memcpy((char *)l->out[0].data + (size_t)n * bytes,
               (const char *)x->data + (size_t)(n * K + best_candidate(&l->in[1], n)) * bytes, bytes);
}

static void ref_mask_pick(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t N = x->dim[0], K = x->dim[1], each = x->dim[2] * x->dim[3];
    for (int64_t n = 0; n < N; n++)
        for (int64_t i = 0, k = best_candidate(&l->in[1], n); i < each; i++)
            ref_put(&l->out[0], n * each + i, ref_get(x, (n * K + k) * each + i));
}

CPU_KERNEL(IMAGE, image);
CPU_KERNEL(PIXELS, pixels);
CPU_KERNEL_DENSE(FOURIER, fourier);
CPU_KERNEL(MASK_PICK, mask_pick);
REF_KERNEL(IMAGE, image);
REF_KERNEL(PIXELS, pixels);
REF_KERNEL(MASK_PICK, mask_pick);

/* --- PROMPT_NEXT: the next simulated point -----------------------------------------------------
 *
 * It is a pixel drawn from the wrong pixels of the last mask or, if there are none, from the
 * target.
 *
 * Targets are bits, row by row, lowest bit first, each row a whole number of 8-byte words. The
 * pixels of the region are counted, a number below the count is drawn, and the pixel of that
 * number, row by row, is located. The fast kernel does both passes in words of 64 pixels, the
 * reference pixel by pixel:
 *
 *     logits > 0   ..11 1..1 11..     64 comparisons, packed into a word
 *     target       .111 1... 11..     as it is stored
 *     wrong        .1.. ...1 ....     their exclusive or, masked to the valid columns
 *
 * Both draw the same pixel: everything except the comparison is integer arithmetic. A mask is
 * processed by one thread, so the number of threads changes nothing, and a draw is keyed by seed,
 * step, mask and round: a resume, a split of the batch and a recomputation draw the same points. */

enum { WORD = 64 }; /* pixels; divides TILE */

/* One mask in its grid. */
struct region {
    const struct operand *logits; /* [N,h,w] */
    const uint8_t *bits;          /* of this mask */
    int64_t first, w, row_bytes;  /* first: index of its first logit */
    int64_t rows, columns;        /* valid rows and columns */
    bool error;                   /* the region is the wrong pixels; else the target */
};

/* How a region is searched. */
struct searching {
    int64_t (*count)(const struct region *r);
    void (*find)(const struct region *r, int64_t k, int64_t at[2]); /* row and column of the k-th pixel, row by row */
};

static bool target_at(const struct region *r, int64_t y, int64_t x)
{
    return r->bits[y * r->row_bytes + x / 8] >> (x % 8) & 1;
}

/* Pixel by pixel. */

static bool pixel_is_in(const struct region *r, int64_t y, int64_t x)
{
    bool target = target_at(r, y, x);
    return r->error ? (ref_get(r->logits, r->first + y * r->w + x) > 0) != target : target;
}

static int64_t count_pixels(const struct region *r)
{
    int64_t n = 0;
    for (int64_t y = 0; y < r->rows; y++)
        for (int64_t x = 0; x < r->columns; x++) n += pixel_is_in(r, y, x);
    return n;
}

static void find_pixel(const struct region *r, int64_t k, int64_t at[2])
{
    for (int64_t y = 0; y < r->rows; y++)
        for (int64_t x = 0; x < r->columns; x++)
            if (pixel_is_in(r, y, x) && k-- == 0) {
                at[0] = y;
                at[1] = x;
                return;
            }
}

/* Returns the positive ones of n <= 64 values as a word, the first in the lowest bit. One
 * multiplication packs eight bytes of 0 or 1 into eight bits: byte i goes to bit 56 + i, and the
 * shifted copies do not overlap. */
static uint64_t positive(const float *x, int n)
{
    uint8_t on[WORD] = {0};
    uint64_t word = 0;
    if (n == WORD) {
        for (int i = 0; i < WORD; i++) on[i] = x[i] > 0;
    } else {
        for (int i = 0; i < n; i++) on[i] = x[i] > 0;
    }
    for (int k = 0; k < WORD / 8; k++) {
        uint64_t eight = 0;
        for (int i = 0; i < 8; i++) eight |= (uint64_t)on[8 * k + i] << (8 * i); /* one load, for any byte order */
        word |= (eight * 0x0102040810204080u >> 56) << (8 * k);
    }
    return word;
}

/* Returns the pixels x .. x + 63 of a row that are in the region. */
static uint64_t word_at(const struct region *r, int64_t y, int64_t x)
{
    const int n = (int)min_i64(WORD, r->columns - x);
    float scratch[TILE];
    uint64_t word;
    memcpy(&word, r->bits + y * r->row_bytes + x / 8, sizeof word);
    if (r->error) word ^= positive(row_view(r->logits, r->first + y * r->w + x, n, scratch), n);
    return n == WORD ? word : word & ((UINT64_C(1) << n) - 1);
}

static int64_t count_words(const struct region *r)
{
    int64_t n = 0;
    for (int64_t y = 0; y < r->rows; y++)
        for (int64_t x = 0; x < r->columns; x += WORD) n += __builtin_popcountll(word_at(r, y, x));
    return n;
}

static void find_in_words(const struct region *r, int64_t k, int64_t at[2])
{
    for (int64_t y = 0; y < r->rows; y++)
        for (int64_t x = 0; x < r->columns; x += WORD) {
            uint64_t word = word_at(r, y, x);
            int64_t n = __builtin_popcountll(word);
            if (k >= n) {
                k -= n;
                continue;
            }
            for (; k; k--) word &= word - 1;
            at[0] = y;
            at[1] = x + __builtin_ctzll(word);
            return;
        }
}

/* Reports whether a round adds a point. Rounds count from 1. If there are four or more, the
 * last and one other, chosen at random, add no point. */
static bool adds_point(int32_t round, int rounds, uint64_t key)
{
    if (rounds < 4) return true;
    int64_t idle = (int64_t)(random_bits(key, 0) % (uint64_t)(rounds - 1)) + 1;
    return round != rounds && round != idle;
}

static uint64_t mask_key(const struct launch *l, int64_t n)
{
    const struct step_block *step = l->in[7].data;
    return random_bits(random_bits(random_key(step->seed, "prompts"), step->rng_step),
                       (uint64_t)(uint32_t)((const int32_t *)l->in[6].data)[n]);
}

static void next_point(const struct launch *l, int64_t n, int32_t round, const struct searching *s)
{
    const struct operand *logits = &l->in[3];
    const int64_t P = l->in[0].dim[1], h = logits->dim[1], w = logits->dim[2], row_bytes = l->in[4].dim[2];
    const int32_t *valid = (const int32_t *)l->in[5].data + 2 * n;
    struct region r = {logits,    (const uint8_t *)l->in[4].data + n * h * row_bytes, n * h * w, w,
                       row_bytes, min_i64(valid[0], h), min_i64(valid[1], w), true};
    const int64_t slot = n * P + l->attr->prompt_next.first + round - 1;
    const uint64_t key = mask_key(l, n);
    if (valid[0] <= 0 || !adds_point(round, l->attr->prompt_next.rounds, key)) return;
    int64_t count = s->count(&r), at[2] = {0, 0};
    if (!count) {
        r.error = false;
        count = s->count(&r);
    }
    if (!count) return;
    s->find(&r, (int64_t)(random_bits(key, (uint64_t)round) % (uint64_t)count), at);
    ref_put(&l->out[0], 2 * slot, ((float)at[1] + 0.5f) / (float)w);
    ref_put(&l->out[0], 2 * slot + 1, ((float)at[0] + 0.5f) / (float)h);
    ((int32_t *)l->out[1].data)[slot] = target_at(&r, at[0], at[1]);
}

static void next_points(const struct launch *l, const struct searching *s)
{
    const int64_t N = l->in[0].dim[0];
    const int32_t round = ++*(int32_t *)l->out[2].data;
    if (round > l->attr->prompt_next.rounds) return;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (N > 1)
    for (int64_t n = 0; n < N; n++) next_point(l, n, round, s);
}

static bool prompt_next_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_F32) && tensor_is(q->in[1], DT_I32) && tensor_is(q->in[2], DT_I32) &&
           tensor_is_fast(q->in[3]) && tensor_is(q->in[4], DT_U8) && tensor_is(q->in[5], DT_I32) &&
           tensor_is(q->in[6], DT_I32);
}

static void prompt_next_run(const struct launch *l) { next_points(l, &(struct searching){count_words, find_in_words}); }
static void ref_prompt_next(const struct launch *l) { next_points(l, &(struct searching){count_pixels, find_pixel}); }

CPU_KERNEL(PROMPT_NEXT, prompt_next);
REF_KERNEL(PROMPT_NEXT, prompt_next);
