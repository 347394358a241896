/*
 * optimizers.c: the update: SUMSQ, CLIP, ADAMW with optimizer state of 32, 16 and 8 bits, SGD, and
 * SCALER and GUARD (base/optimizers.h has the arithmetic of an element).
 *
 * Values that change per step come from the step block. A step with an inf or NaN in its gradients
 * (step.found_inf, or a norm in clip that is not finite) leaves every byte of p, m, v and w
 * unchanged.
 */
#include <math.h>

#include "base/random.h"
#include "base/state_codes.h"
#include "cpu/reference/ref.h"
#include "cpu/update/update.h"
#include "graph/sizes.h"

_Static_assert((int)STATE_BLOCK == (int)TILE, "a block of 8-bit state is a tile");

/* --- shared by all updates (see update.h) ----------------------------------------------------- */

bool update_is_off(const struct launch *l, struct update_slots at)
{
    const struct step_block *step = l->in[at.step].data;
    return step->found_inf || (launch_has(l, at.clip) && !isfinite(*(const float *)l->in[at.clip].data));
}

float update_clip(const struct launch *l, struct update_slots at)
{
    return launch_has(l, at.clip) ? ((const float *)l->in[at.clip].data)[1] : 1.0f;
}

double update_rate(const struct launch *l, struct update_slots at)
{
    const struct step_block *step = l->in[at.step].data;
    return (double)step->learning_rate * l->attr->adamw.lr_scale;
}

bool update_match(const struct query *q, struct update_slots at)
{
    const struct tensor *clip = query_in(q, at.clip), *w = query_in(q, at.w);
    return (tensor_is(q->in[0], DT_F32) || tensor_is(q->in[0], DT_BF16)) && tensor_is_fast(q->in[1]) &&
           (!clip || tensor_is(clip, DT_F32)) && (!w || tensor_is_fast(w));
}

uint64_t round_key(const struct step_block *step, uint64_t parameter)
{
    return random_bits(random_bits(random_key(step->seed, "round"), step->rng_step), parameter);
}

uint16_t round_at_random(float x, uint32_t bits)
{
    return shared_is_finite(x) ? shared_round_at_random(x, bits) : f32_to_bf16(x);
}

void round_store(uint16_t *p, int64_t at, int64_t first, int n, const float *from, uint64_t key)
{
    for (int i = 0; i < n; i += 4) {
        uint64_t bits = random_bits(key, (uint64_t)(first + at + i) / 4);
        for (int k = i; k < n && k < i + 4; k++, bits >>= 16) p[at + k] = round_at_random(from[k], (uint32_t)bits);
    }
}

void update_store(const struct launch *l, struct update_slots at, int64_t from, int n, const float *p)
{
    if (l->in[0].dtype == DT_BF16)
        round_store(l->in[0].data, from, launch_first(l, l->attr->adamw.part), n, p,
                    round_key(l->in[at.step].data, launch_key(l, l->attr->adamw.key, l->attr->adamw.of)));
    if (!launch_has(l, at.w)) return;
    float scratch[TILE];
    row_store(&l->in[at.w], from, n, row_view(&l->in[0], from, n, scratch));
}

void update_nothing(const struct launch *l, struct update_slots at)
{
    const int64_t n = operand_elements(&l->in[0]);
    if (!launch_has(l, at.w) || !l->attr->adamw.fresh) return;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 16384)
    for (int64_t from = 0; from < n; from += TILE) {
        float scratch[TILE];
        const int width = row_tile(n - from);
        row_store(&l->in[at.w], from, width, row_view(&l->in[0], from, width, scratch));
    }
}

/* --- SUMSQ and CLIP --------------------------------------------------------------------------- */

static bool sumsq_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_F64) && tensor_is(q->out[0], DT_F64);
}
static uint64_t sumsq_workspace(const struct query *q) { return reduce_workspace(tensor_elements(q->in[0])); }
static void sumsq_run(const struct launch *l)
{
    CHECK(l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    *(double *)l->out[0].data += reduce_sum(&l->in[0], true, l->work, l->threads);
}

static bool clip_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_F64) && tensor_is(q->out[0], DT_F32);
}
static void clip_run(const struct launch *l)
{
    step_clip(l->out[0].data, *(const double *)l->in[0].data, l->in[1].data);
}

/* --- adamw: base/optimizers.h, as torch.optim.AdamW (single tensor, without amsgrad) ---------- */

static const struct update_slots adamw_at = {4, 5, 6}, adamw_8bit_at = {5, 6, 7};

static struct adamw_scalars adamw_prepare(const struct launch *l, struct update_slots at)
{
    const struct step_block *step = l->in[at.step].data;
    const double b1 = l->attr->adamw.beta1, b2 = l->attr->adamw.beta2;
    const double lr = update_rate(l, at);
    return (struct adamw_scalars){
        .keep = decay_keep(lr, l->attr->adamw.weight_decay),
        .rate1 = (float)(1 - b1),
        .b2 = (float)b2,
        .rate2 = (float)(1 - b2),
        .root = adamw_root(b2, step->adam_t),
        .eps = l->attr->adamw.eps,
        .size = (float)(lr / adamw_correction(b1, step->adam_t)),
        .clip = update_clip(l, at),
    };
}

static void adamw_tile(float *p, float *m, float *v, const float *g, int n, struct adamw_scalars s)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float mean = m[i], square = v[i];
        adamw_moments(&mean, &square, g[i], &s);
        m[i] = mean;
        v[i] = square;
        p[i] = adamw_weight(p[i], mean, square, &s);
    }
}

/* Reports whether the kernel runs ADAMW: m and v are f32, or bf16, which are converted to f32,
 * updated, and rounded to nearest even. */
static bool adamw_match(const struct query *q)
{
    for (int i = 2; i < 4; i++)
        if (!tensor_is(q->in[i], DT_F32) && !tensor_is(q->in[i], DT_BF16)) return false;
    return update_match(q, adamw_at);
}

static void adamw_run(const struct launch *l)
{
    if (update_is_off(l, adamw_at)) {
        update_nothing(l, adamw_at);
        return;
    }
    const struct adamw_scalars s = adamw_prepare(l, adamw_at);
    const int64_t n = operand_elements(&l->in[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 16384)
    for (int64_t at = 0; at < n; at += TILE) {
        float scratch[4][TILE];
        const int width = row_tile(n - at);
        float *p = update_view(&l->in[0], at, width, scratch[0]);
        float *m = update_view(&l->in[2], at, width, scratch[1]), *v = update_view(&l->in[3], at, width, scratch[2]);
        adamw_tile(p, m, v, row_view(&l->in[1], at, width, scratch[3]), width, s);
        row_store(&l->in[2], at, width, m);
        row_store(&l->in[3], at, width, v);
        update_store(l, adamw_at, at, width, p);
    }
}

/* --- adamw with 8-bit state ------------------------------------------------------------
 *
 *     m = code * absmax  ->  ADAMW in f32, p too  ->  absmax = max |m|, code of m / absmax
 *
 * A block of 256 is a tile: only one thread reads or writes its bytes, so threads change no bit. A
 * block of zeros has absmax 0, and so has the initial state of zero bytes. */

static bool adamw_8bit_match(const struct query *q)
{
    for (int i = 2; i < 4; i++)
        if (!tensor_is(q->in[i], DT_U8)) return false;
    return tensor_is(q->in[4], DT_F32) && update_match(q, adamw_8bit_at);
}

static void decode(float *to, const uint8_t *code, const float *value, float absmax, int n)
{
    for (int i = 0; i < n; i++) to[i] = value[code[i]] * absmax;
}

static float largest(const float *x, int n)
{
    float most = 0;
#pragma omp simd reduction(max : most)
    for (int i = 0; i < n; i++) most = __builtin_fabsf(x[i]) > most ? __builtin_fabsf(x[i]) : most;
    return most;
}

/* Divides x by `most` in place; all stay 0 if `most` is 0. */
static void normalise(float *x, float most, int n)
{
    const float by = most > 0 ? most : 1;
#pragma omp simd
    for (int i = 0; i < n; i++) x[i] /= by;
}

static void adamw_8bit_block(const struct launch *l, int64_t block, int n, const struct adamw_scalars *s)
{
    const struct codes *cm = codes_signed(), *cv = codes_unsigned();
    const int64_t at = block * STATE_BLOCK;
    uint8_t *mc = (uint8_t *)l->in[2].data + at, *vc = (uint8_t *)l->in[3].data + at;
    float *absmax = (float *)l->in[4].data + 2 * block;
    float scratch[2][TILE], m[STATE_BLOCK], v[STATE_BLOCK];
    decode(m, mc, cm->value, absmax[0], n);
    decode(v, vc, cv->value, absmax[1], n);
    float *p = update_view(&l->in[0], at, n, scratch[0]);
    adamw_tile(p, m, v, row_view(&l->in[1], at, n, scratch[1]), n, *s);
    update_store(l, adamw_8bit_at, at, n, p);
    absmax[0] = largest(m, n);
    absmax[1] = largest(v, n);
    normalise(m, absmax[0], n);
    normalise(v, absmax[1], n);
    for (int i = 0; i < n; i++) mc[i] = (uint8_t)code_signed(cm, m[i]);
    for (int i = 0; i < n; i++) vc[i] = (uint8_t)code_magnitude(cv, v[i]);
}

static void adamw_8bit_run(const struct launch *l)
{
    if (update_is_off(l, adamw_8bit_at)) {
        update_nothing(l, adamw_8bit_at);
        return;
    }
    const struct adamw_scalars s = adamw_prepare(l, adamw_8bit_at);
    const int64_t n = operand_elements(&l->in[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 16384)
    for (int64_t block = 0; block < state_blocks(n); block++)
        adamw_8bit_block(l, block, (int)min_i64(STATE_BLOCK, n - block * STATE_BLOCK), &s);
}

CPU_KERNEL_WORK(SUMSQ, sumsq);
CPU_KERNEL(CLIP, clip);
CPU_KERNEL(ADAMW, adamw);
CPU_KERNEL(ADAMW_8BIT, adamw_8bit);

/* --- SGD: as torch.optim.SGD without dampening and without Nesterov ---------------------------
 *
 * Weight decay is part of the gradient; m begins as 0, so that the first m is the gradient. */

static const struct update_slots sgd_at = {2, 3, 4};
enum { SGD_MOMENT = 5 };

static bool sgd_match(const struct query *q)
{
    return (!query_in(q, SGD_MOMENT) || tensor_is(query_in(q, SGD_MOMENT), DT_F32)) && update_match(q, sgd_at);
}

static void sgd_tile(float *p, float *m, const float *g, int n, struct sgd_scalars s)
{
    if (!m) {
#pragma omp simd
        for (int i = 0; i < n; i++) p[i] = sgd_weight(p[i], sgd_direction(p[i], g[i], &s), &s);
        return;
    }
#pragma omp simd
    for (int i = 0; i < n; i++) {
        m[i] = sgd_moment(m[i], sgd_direction(p[i], g[i], &s), &s);
        p[i] = sgd_weight(p[i], m[i], &s);
    }
}

static void sgd_run(const struct launch *l)
{
    if (update_is_off(l, sgd_at)) {
        update_nothing(l, sgd_at);
        return;
    }
    const struct sgd_scalars s = {update_clip(l, sgd_at), (float)l->attr->adamw.weight_decay,
                                  (float)l->attr->adamw.beta1, (float)update_rate(l, sgd_at)};
    const int64_t n = operand_elements(&l->in[0]);
    float *m = launch_has(l, SGD_MOMENT) ? l->in[SGD_MOMENT].data : NULL;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 16384)
    for (int64_t at = 0; at < n; at += TILE) {
        float scratch[2][TILE];
        const int width = row_tile(n - at);
        float *p = update_view(&l->in[0], at, width, scratch[0]);
        sgd_tile(p, m ? m + at : NULL, row_view(&l->in[1], at, width, scratch[1]), width, s);
        update_store(l, sgd_at, at, width, p);
    }
}

CPU_KERNEL(SGD, sgd);

/* --- SCALER: the next loss scale after a step, as torch.amp.GradScaler ------------------------
 *
 *     gradients finite   Adam's t + 1, good_steps + 1; after scale_window of them the scale doubles
 *     inf or NaN         the update is skipped (found_inf), the scale halves
 *
 * A scale that would overflow f32 is unchanged. These are a few scalars, so one implementation
 * serves as the reference too; tests/golden/scaler.txt has independent values.
 *
 * GUARD, for other precisions, only sets found_inf and never clears it (passes/guard.c). */

static bool scaler_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_F64) && tensor_is(q->in[1], DT_U8);
}

static bool all_finite(const struct launch *l)
{
    const struct operand *loss = &l->in[2];
    return isfinite(dtype_load(l->in[0].data, l->in[0].dtype, 0)) &&
           (!launch_has(l, 2) || isfinite(dtype_load(loss->data, loss->dtype, 0)));
}

static void scaler_run(const struct launch *l)
{
    CHECK(l->in[1].data == l->out[0].data, "the step is updated in place");
    step_scale(l->out[0].data, all_finite(l));
}

static bool guard_match(const struct query *q) { return scaler_match(q); }

static void guard_run(const struct launch *l)
{
    CHECK(l->in[1].data == l->out[0].data, "the step is updated in place");
    if (!all_finite(l)) ((struct step_block *)l->out[0].data)->found_inf = 1;
}

CPU_KERNEL(SCALER, scaler);
CPU_KERNEL(GUARD, guard);
REF_KERNEL_AS(SCALER, scaler);
REF_KERNEL_AS(GUARD, guard);
