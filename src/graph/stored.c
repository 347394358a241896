/*
 * stored.c: see stored.h.
 */
#include "graph/stored.h"

#include "base/nf4.h"

enum { PART_ALIGNMENT = NF4_PART_ALIGN };
_Static_assert((int)STORED_GROUP == (int)NF4_GROUP, "groups");

static void pack_plain(void *const *parts, enum dtype t, const void *values, enum dtype from, int64_t n)
{
    dtype_convert(parts[0], t, values, from, n);
}
static void unpack_plain(void *values, enum dtype to, const void *const *parts, enum dtype t, int64_t n)
{
    dtype_convert(values, to, parts[0], t, n);
}

/* Quantizes n values: parts[0] gets the codes, parts[1] the scales in f32. */
static void pack_nf4(void *const *parts, enum dtype t, const void *values, enum dtype from, int64_t n)
{
    (void)t;
    float converted[NF4_BLOCK];
    const bool direct = from == DT_F32 || from == DT_BF16 || from == DT_F16;
    if (direct) nf4_quantize(parts[0], parts[1], values, from, n);
    for (int64_t at = 0; at < n && !direct; at += NF4_BLOCK) {
        const int64_t width = min_i64(NF4_BLOCK, n - at);
        dtype_convert(converted, DT_F32, (const char *)values + at * dtype_size(from), from, width);
        nf4_quantize((uint8_t *)parts[0] + at / 2, (float *)parts[1] + at / NF4_BLOCK, converted, DT_F32, width);
    }
}

static void finish_nf4(void *const *parts, const float *kept, int64_t n)
{
    nf4_quantize_scales(parts[1], parts[2], parts[3], kept, nf4_blocks(n));
}

/* Dequantizes n values as the step reads them: rounded to t. */
static void unpack_blocks(void *values, enum dtype to, const struct nf4_parts *p, enum dtype t, int64_t n)
{
    for (int64_t at = 0; at < n; at += NF4_BLOCK) {
        float block[NF4_BLOCK];
        const int64_t width = min_i64(NF4_BLOCK, n - at);
        nf4_dequantize(block, t, p, at, width);
        dtype_convert((char *)values + at * dtype_size(to), to, block, t, width);
    }
}

static void unpack_nf4(void *values, enum dtype to, const void *const *parts, enum dtype t, int64_t n)
{
    unpack_blocks(values, to, &(struct nf4_parts){parts[0], parts[1], parts[2], parts[3]}, t, n);
}

static void unpack_nf4_f32(void *values, enum dtype to, const void *const *parts, enum dtype t, int64_t n)
{
    unpack_blocks(values, to, &(struct nf4_parts){parts[0], NULL, parts[1], NULL}, t, n);
}

const struct stored_form stored_forms[STORED_FORMS] = {
    [STORED_PLAIN] = {"plain", 1, 1, {{"elements", 1, 0}}, 0, pack_plain, unpack_plain, NULL},
    [STORED_NF4] = {"nf4",
                    NF4_GROUP,
                    4,
                    {{"codes", 2, 1}, {"scales", NF4_BLOCK, 1}, {"absmax", NF4_GROUP, 4}, {"offset", 0, 4}},
                    NF4_BLOCK,
                    pack_nf4,
                    unpack_nf4,
                    finish_nf4},
    [STORED_NF4_F32] =
        {"nf4-f32", NF4_BLOCK, 2, {{"codes", 2, 1}, {"scales", NF4_BLOCK, 4}}, 0, pack_nf4, unpack_nf4_f32, NULL},
};

const struct stored_form *tensor_form(const struct graph *g, const struct tensor *t)
{
    const uint8_t form = g->storages.at[t->storage].form;
    CHECK(form < STORED_FORMS);
    return &stored_forms[t->dtype == DT_U8 ? STORED_PLAIN : form];
}

bool stored_transposed(const struct graph *g, const struct param *p)
{
    return p->transposed && tensor_form(g, tensor_at(g, p->master)) != &stored_forms[STORED_PLAIN];
}

int64_t transposed_index(int64_t i, int64_t rows, int64_t columns) { return i % columns * rows + i / columns; }

uint64_t stored_part_bytes(const struct stored_form *f, int part, enum dtype t, int64_t n)
{
    const struct stored_part *p = &f->part[part];
    if (!p->values) return p->bytes;
    return (uint64_t)((n + p->values - 1) / p->values) * (p->bytes ? p->bytes : dtype_size(t));
}

uint64_t stored_part_at(const struct stored_form *f, int part, enum dtype t, int64_t at)
{
    return f->part[part].values ? stored_part_bytes(f, part, t, at) : 0;
}

uint64_t stored_part_offset(const struct stored_form *f, int part, enum dtype t, int64_t elements)
{
    uint64_t at = 0;
    for (int i = 0; i < part; i++) at = align_up(at + stored_part_bytes(f, i, t, elements), PART_ALIGNMENT);
    return at;
}

uint64_t stored_bytes(const struct graph *g, const struct tensor *t)
{
    const struct stored_form *f = tensor_form(g, t);
    const int64_t n = tensor_elements(t);
    return stored_part_offset(f, f->n_parts - 1, t->dtype, n) + stored_part_bytes(f, f->n_parts - 1, t->dtype, n);
}

uint64_t stored_file_bytes(const struct stored_form *f, enum dtype t, int64_t elements)
{
    uint64_t bytes = 0;
    for (int i = 0; i < f->n_parts; i++) bytes += stored_part_bytes(f, i, t, elements);
    return bytes;
}
