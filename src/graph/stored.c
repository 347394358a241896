/*
 * stored.c: see stored.h.
 */
#include "graph/stored.h"

enum { PART_ALIGNMENT = 16 };

static void pack_plain(void *const *parts, enum dtype t, const void *values, enum dtype from, int64_t n) { dtype_convert(parts[0], t, values, from, n); }
static void unpack_plain(void *values, enum dtype to, const void *const *parts, enum dtype t, int64_t n) { dtype_convert(values, to, parts[0], t, n); }

const struct stored_form stored_forms[STORED_FORMS] = {
    [STORED_PLAIN] = {"plain", 1, 1, {{"elements", 1, 0}}, pack_plain, unpack_plain},
};

const struct stored_form *tensor_form(const struct graph *g, const struct tensor *t)
{
    const uint8_t form = g->storages.at[t->storage].form;
    CHECK(form < STORED_FORMS);
    return &stored_forms[form];
}

uint64_t stored_part_bytes(const struct stored_form *f, int part, enum dtype t, int64_t n)
{
    const struct stored_part *p = &f->part[part];
    return (uint64_t)((n + p->values - 1) / p->values) * (p->bytes ? p->bytes : dtype_size(t));
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
