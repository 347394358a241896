/*
 * scaled_products.c: the running half of SCALED_LINEAR and SCALED_DW: products of numbers in e4m3
 * with scales, described as matrix products of gemm.h.
 *
 *     GPU of 9.0        the library applies the scales of rows, or of blocks of 128 terms
 *     others from 8.9   the library has one scale for a matrix: it computes the sums in f32, and
 *                       another kernel scales them, adds and rounds once
 *     other shapes      a slow kernel of our own (scaled.cu)
 *
 * SCALED_DW with blocks of another length multiplies one block after the other, and adds in f32.
 */
#include "cuda/products/gemm.h"
#include "cuda/products/launch_products.h"

/* Returns rows of codes as a matrix [rows, last], or its transpose. */
static struct view coded_view(const struct entry *entry, int slot, bool transposed)
{
    const struct operand *x = &entry->launch.in[slot];
    const int64_t K = operand_last(x);
    return (struct view){.dtype = x->dtype, .row = transposed ? 1 : K, .column = transposed ? K : 1,
                         .align = gemm_align_operand(entry, slot)};
}

static struct gemm *gemm_new(struct entry *entry)
{
    CHECK((uintptr_t)entry->launch.work % 256 == 0, "cuBLASLt needs a workspace aligned to 256 bytes");
    return entry->launch.state = mem_alloc(sizeof(struct gemm));
}

static void release(void *state)
{
    gemm_end(state);
    mem_free(state);
}

static void list(const void *state, struct text *out) { gemm_list(state, out); }

/* --- rows ------------------------------------------------------------------------------------- */

/* Describes the product of SCALED_LINEAR into a result of dtype c. */
static struct gemm_shape linear_of(const struct entry *entry, enum dtype c, uint32_t align)
{
    const struct launch *l = &entry->launch;
    const int64_t M = operand_rows(&l->in[0]), N = l->in[2].dim[0];
    return (struct gemm_shape){.M = M,
                               .N = N,
                               .K = operand_last(&l->in[0]),
                               .batches = 1,
                               .whole_M = portion_whole(l->portion, M),
                               .a = coded_view(entry, 0, false),
                               .b = coded_view(entry, 2, true),
                               .c = {.dtype = c, .row = N, .column = 1, .align = align},
                               .least = entry->least};
}

static int prepare_linear(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    const struct launch *l = &entry->launch;
    struct gemm_shape shape = linear_of(entry, l->out[0].dtype, gemm_align_operand(entry, MAX_IN));
    shape.scales = SCALES_ROWS;
    shape.bias = has(l, 4);
    if (shape.bias) shape.bias_dtype = l->in[4].dtype, shape.bias_align = gemm_align_operand(entry, 4);
    if (has(l, 5)) shape.from_align = gemm_align_operand(entry, 5);
    return gemm_begin(gemm_new(entry), s, &shape, l->work_bytes, e);
}

/* Describes the rows that a launch has, of those that follow a sequence. */
static int fit(struct gemm *p, const struct launch *l, struct error *e)
{
    struct gemm_shape s = p->shape;
    s.M = operand_rows(&l->in[0]);
    return l->extent.part && s.M != p->shape.M ? gemm_describe(p, &s, e) : PL_OK;
}

static int launch_linear(const struct launch *l, struct error *e)
{
    struct gemm *p = l->state;
    TRY(fit(p, l, e));
    const struct gemm_at at = {l->out[0].data, l->in[0].data, l->in[2].data, has(l, 4) ? l->in[4].data : NULL,
                               has(l, 5) ? l->in[5].data : NULL, l->in[1].data, l->in[3].data};
    return gemm_run(p, &at, l->work, l->work_bytes, l->stream, e);
}

/* Returns the bytes of the sums in f32, which are behind the library's workspace. */
static uint64_t sums_bytes(const struct launch *l, int64_t rows)
{
    return (uint64_t)(rows * l->in[2].dim[0]) * sizeof(float);
}

static int prepare_apart(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    const struct launch *l = &entry->launch;
    const struct gemm_shape shape = linear_of(entry, DT_F32, 256);
    return gemm_begin(gemm_new(entry), s, &shape, l->work_bytes - sums_bytes(l, shape.M), e);
}

static int launch_apart(const struct launch *l, struct error *e)
{
    struct gemm *p = l->state;
    const int64_t M = operand_rows(&l->in[0]), N = l->in[2].dim[0];
    const uint64_t library = l->work_bytes - sums_bytes(l, portion_whole(l->extent, M));
    float *sums = (float *)(void *)((char *)l->work + library);
    const struct gemm_at at = {.c = sums, .a = l->in[0].data, .b = l->in[2].data};
    TRY(fit(p, l, e));
    TRY(gemm_run(p, &at, l->work, library, l->stream, e));
    TRY_CUDA(cuda_scale_product(typed_of(&l->out[0]), sums, l->in[1].data, l->in[3].data, typed_in(l, 4),
                                typed_in(l, 5), M, N, l->stream));
    return PL_OK;
}

static int launch_linear_slow(const struct launch *l, struct error *e)
{
    const struct scaled_gemm p = {operand_rows(&l->in[0]), l->in[2].dim[0], operand_last(&l->in[0]), 1,
                                  l->in[0].data, l->in[2].data, l->in[1].data, l->in[3].data};
    TRY_CUDA(cuda_gemm_scaled(typed_of(&l->out[0]), &p, typed_in(l, 4), typed_in(l, 5), l->stream));
    return PL_OK;
}

/* --- blocks ----------------------------------------------------------------------------------- */

static int prepare_dw(const struct cuda_state *s, struct entry *entry, struct error *e)
{
    const struct launch *l = &entry->launch;
    const int64_t T = operand_last(&l->in[0]), blocks = l->in[1].dim[0], N = l->in[2].dim[0];
    const bool one_by_one = T != GEMM_BLOCK * blocks;
    const struct gemm_shape shape = {
        .M = l->in[0].dim[0], .N = N, .K = one_by_one ? T / blocks : T, .batches = 1, .a = coded_view(entry, 0, false),
        .b = coded_view(entry, 2, true),
        .c = {.dtype = l->out[0].dtype, .row = N, .column = 1, .align = gemm_align_operand(entry, MAX_IN)},
        .from_align = has(l, 4) || (one_by_one && blocks > 1) ? gemm_align_operand(entry, MAX_IN) : 0,
        .scales = one_by_one ? SCALES_ROWS : SCALES_BLOCKS};
    return gemm_begin(gemm_new(entry), s, &shape, l->work_bytes, e);
}

static int launch_dw(const struct launch *l, struct error *e)
{
    const struct gemm *p = l->state;
    const struct gemm_shape *s = &p->shape;
    const int64_t products = s->scales == SCALES_BLOCKS ? 1 : l->in[1].dim[0];
    void *dw = l->out[0].data;
    CHECK(!has(l, 4) || l->in[4].data == dw, "the result is not in the accumulator's bytes");
    for (int64_t i = 0; i < products; i++) {
        const struct gemm_at at = {dw, (const uint8_t *)l->in[0].data + i * s->K,
                                   (const uint8_t *)l->in[2].data + i * s->K, NULL, i || has(l, 4) ? dw : NULL,
                                   (const float *)l->in[1].data + i * s->M, (const float *)l->in[3].data + i * s->N};
        TRY(gemm_run(p, &at, l->work, l->work_bytes, l->stream, e));
    }
    return PL_OK;
}

static int launch_dw_slow(const struct launch *l, struct error *e)
{
    const struct scaled_gemm p = {l->in[0].dim[0], l->in[2].dim[0], operand_last(&l->in[0]), l->in[1].dim[0],
                                  l->in[0].data, l->in[2].data, l->in[1].data, l->in[3].data};
    TRY_CUDA(
        cuda_gemm_scaled(typed_of(&l->out[0]), &p, (struct typed_ptr){NULL, STORE_F32}, typed_in(l, 4), l->stream));
    return PL_OK;
}

CUDA_KERNEL(cublaslt_scaled_linear, .prepare = prepare_linear, .launch = launch_linear, .list = list,
            .release = release);
CUDA_KERNEL(cublaslt_scaled_linear_apart, .prepare = prepare_apart, .launch = launch_apart, .list = list,
            .release = release);
CUDA_KERNEL(cuda_scaled_linear, .launch = launch_linear_slow);
CUDA_KERNEL(cublaslt_scaled_dw, .prepare = prepare_dw, .launch = launch_dw, .list = list, .release = release);
CUDA_KERNEL(cuda_scaled_dw, .launch = launch_dw_slow);
