/*
 * stored.c: see stored.h.
 */
#include "graph/stored.h"

#include "base/e4m3.h"
#include "base/nf4.h"

enum { PART_ALIGNMENT = NF4_PART_ALIGN };
_Static_assert((int)STORED_GROUP == (int)NF4_GROUP, "groups");

static void pack_plain(void *const *parts, struct stored_shape s, const void *values, enum dtype from)
{
    dtype_convert(parts[0], s.dtype, values, from, s.n);
}
static void unpack_plain(void *values, enum dtype to, const void *const *parts, struct stored_shape s)
{
    dtype_convert(values, to, parts[0], s.dtype, s.n);
}

/* --- nf4 -------------------------------------------------------------------------------------- */

/* Quantizes values: parts[0] gets the codes, parts[1] the scales in f32. */
static void pack_nf4(void *const *parts, struct stored_shape s, const void *values, enum dtype from)
{
    const int64_t n = s.n;
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

static void unpack_nf4(void *values, enum dtype to, const void *const *parts, struct stored_shape s)
{
    unpack_blocks(values, to, &(struct nf4_parts){parts[0], parts[1], parts[2], parts[3]}, s.dtype, s.n);
}

static void unpack_nf4_f32(void *values, enum dtype to, const void *const *parts, struct stored_shape s)
{
    unpack_blocks(values, to, &(struct nf4_parts){parts[0], NULL, parts[1], NULL}, s.dtype, s.n);
}

/* --- e4m3 ------------------------------------------------------------------------------------- */

enum { E4M3_TILE = 256 };

static uint32_t magnitude(float x) { return shared_bits(x) & 0x7fffffffu; }

/* Quantizes a row of C values, as QUANTIZE_ROWS does. */
static void pack_row(uint8_t *codes, float *scale, const char *values, enum dtype from, int64_t C)
{
    float x[E4M3_TILE];
    uint32_t most = 0;
    for (int64_t at = 0; at < C; at += E4M3_TILE) {
        const int64_t n = min_i64(E4M3_TILE, C - at);
        dtype_convert(x, DT_F32, values + at * dtype_size(from), from, n);
        for (int64_t i = 0; i < n; i++) most = magnitude(x[i]) > most ? magnitude(x[i]) : most;
    }
    const struct e4m3_scale s = e4m3_scale_of(most);
    *scale = s.scale;
    for (int64_t at = 0; at < C; at += E4M3_TILE) {
        const int64_t n = min_i64(E4M3_TILE, C - at);
        dtype_convert(x, DT_F32, values + at * dtype_size(from), from, n);
        for (int64_t i = 0; i < n; i++) codes[at + i] = e4m3_from_f32(x[i] * s.factor);
    }
}

static void pack_e4m3(void *const *parts, struct stored_shape s, const void *values, enum dtype from)
{
    const int64_t C = s.row, R = s.n / C;
    uint8_t *codes = parts[0];
    float *scales = parts[1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < R; r++)
        pack_row(codes + r * C, scales + r, (const char *)values + r * C * dtype_size(from), from, C);
}

/* Quantizes the columns of the rows in e4m3, as QUANTIZE_COLUMNS does of all rows: columns c to
 * c + n. */
static void turn_columns(void *const *parts, int64_t R, int64_t C, int64_t c, int64_t n)
{
    const uint8_t *codes = parts[0];
    const float *scales = parts[1];
    uint8_t *turned = parts[2];
    uint32_t most[E4M3_TILE] = {0};
    float factor[E4M3_TILE];
    for (int64_t r = 0; r < R; r++)
        for (int64_t i = 0; i < n; i++) {
            const uint32_t m = magnitude(e4m3_to_f32(codes[r * C + c + i]) * scales[r]);
            most[i] = m > most[i] ? m : most[i];
        }
    for (int64_t i = 0; i < n; i++) {
        const struct e4m3_scale s = e4m3_scale_of(most[i]);
        ((float *)parts[3])[c + i] = s.scale;
        factor[i] = s.factor;
    }
    for (int64_t r = 0; r < R; r++)
        for (int64_t i = 0; i < n; i++)
            turned[(c + i) * R + r] = e4m3_from_f32(e4m3_to_f32(codes[r * C + c + i]) * scales[r] * factor[i]);
}

static void pack_e4m3_both(void *const *parts, struct stored_shape s, const void *values, enum dtype from)
{
    enum { COLUMNS = 64 };
    const int64_t C = s.row, R = s.n / C;
    pack_e4m3(parts, s, values, from);
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < C; c += COLUMNS) turn_columns(parts, R, C, c, min_i64(COLUMNS, C - c));
}

/* Decodes whole rows: the transpose has the same numbers. */
static void unpack_e4m3(void *values, enum dtype to, const void *const *parts, struct stored_shape s)
{
    const uint8_t *codes = parts[0];
    const float *scales = parts[1];
    float x[E4M3_TILE];
    for (int64_t r = 0; r < s.n / s.row; r++)
        for (int64_t at = 0; at < s.row; at += E4M3_TILE) {
            const int64_t n = min_i64(E4M3_TILE, s.row - at), from = r * s.row + at;
            for (int64_t i = 0; i < n; i++) x[i] = e4m3_to_f32(codes[from + i]) * scales[r];
            dtype_convert((char *)values + from * dtype_size(to), to, x, DT_F32, n);
        }
}

/* --- the forms -------------------------------------------------------------------------------- */

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
    [STORED_E4M3] =
        {"e4m3", 1, 2, {{"codes", 1, 1}, {"scales", STORED_ROW, 4}}, 0, pack_e4m3, unpack_e4m3, NULL, .whole = true},
    [STORED_E4M3_BOTH] = {"e4m3-both",
                          1,
                          4,
                          {{"codes", 1, 1},
                           {"scales", STORED_ROW, 4},
                           {"codes of the transpose", 1, 1},
                           {"scales of the transpose", STORED_COLUMN, 4}},
                          0,
                          pack_e4m3_both,
                          unpack_e4m3,
                          NULL,
                          .whole = true},
};

const struct stored_form *tensor_form(const struct graph *g, const struct tensor *t)
{
    const uint8_t form = g->storages.at[t->storage].form;
    CHECK(form < STORED_FORMS);
    return &stored_forms[t->dtype == DT_U8 || t->part ? STORED_PLAIN : form];
}

bool stored_transposed(const struct graph *g, const struct param *p)
{
    return p->transposed && tensor_form(g, tensor_at(g, p->master)) != &stored_forms[STORED_PLAIN];
}

int64_t transposed_index(int64_t i, int64_t rows, int64_t columns) { return i % columns * rows + i / columns; }

uint64_t stored_part_bytes(const struct stored_form *f, int part, struct stored_shape s)
{
    const struct stored_part *p = &f->part[part];
    if (p->values == STORED_WHOLE) return p->bytes;
    const int64_t each = p->values > 0 ? p->values : s.row;
    const int64_t entries = p->values == STORED_COLUMN ? s.row : (s.n + each - 1) / each;
    return (uint64_t)entries * (p->bytes ? p->bytes : dtype_size(s.dtype));
}

uint64_t stored_part_at(const struct stored_form *f, int part, struct stored_shape before)
{
    const int64_t values = f->part[part].values;
    return values == STORED_WHOLE || values == STORED_COLUMN ? 0 : stored_part_bytes(f, part, before);
}

uint64_t stored_part_offset(const struct stored_form *f, int part, struct stored_shape s)
{
    uint64_t at = 0;
    for (int i = 0; i < part; i++) at = align_up(at + stored_part_bytes(f, i, s), PART_ALIGNMENT);
    return at;
}

uint64_t stored_bytes(const struct graph *g, const struct tensor *t)
{
    const struct stored_form *f = tensor_form(g, t);
    const struct stored_shape s = stored_shape_of(t);
    return stored_part_offset(f, f->n_parts - 1, s) + stored_part_bytes(f, f->n_parts - 1, s);
}

uint64_t stored_file_bytes(const struct stored_form *f, struct stored_shape s)
{
    uint64_t bytes = 0;
    for (int i = 0; i < f->n_parts; i++) bytes += stored_part_bytes(f, i, s);
    return bytes;
}
