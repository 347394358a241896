/*
 * prompts.c: inputs of a prompted model: IMAGE converts bytes to normalised pixels, MASK_PICK
 * selects the mask that is fed back. Neither has a gradient: images and fed-back masks are
 * constants. The next point is in prompt_next.c.
 */
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/reference/ref.h"
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

/* --- MASK_PICK ------------------------------------------------------------------------ */

/* The candidate with the best predicted score; of equal ones, or if all are NaN, the first. */
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
CPU_KERNEL(MASK_PICK, mask_pick);
REF_KERNEL(IMAGE, image);
REF_KERNEL(MASK_PICK, mask_pick);
