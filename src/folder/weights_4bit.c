/*
 * weights_4bit.c: see weights_4bit.h.
 *
 * Invariant: weights_4bit_check compares the size of every tensor with the parameter's, so that
 * weights_4bit_load writes exactly the parts of its stored form.
 */
#include "folder/weights_4bit.h"

#include <math.h>

#include "base/coding.h"
#include "base/nf4.h"
#include "graph/stored.h"
#include "io/file.h"
#include "io/json.h"

enum { STATE_MOST = 1 << 16, NAME_ROOM = 512 };
static const char state_end[] = WEIGHTS_4BIT_STATE, fp4_end[] = ".quant_state.bitsandbytes__fp4";

bool weights_4bit_beside(const char *name)
{
    static const char *const ends[] = {".absmax", ".nested_absmax", ".nested_quant_map", ".quant_map", state_end};
    for (size_t i = 0; i < COUNT(ends); i++)
        if (text_ends_with(name, ends[i])) return true;
    return false;
}

/* --- the JSON of a weight --------------------------------------------------------------------- */

static int read_shape(const struct value *v, struct quant_state *out, struct error *e)
{
    const struct value *shape = value_get(v, "shape");
    if (value_as_list(shape, "shape", e)) return e->code;
    if (shape->count < 1 || shape->count > MAX_RANK)
        return error_set(e, PL_USAGE, "shape has %u dimensions", shape->count);
    int64_t elements = 1;
    for (uint32_t i = 0; i < shape->count; i++) {
        if (value_as_int(value_at(shape, i), "shape", &out->dim[i], e)) return e->code;
        if (out->dim[i] < 1 || out->dim[i] > INT64_MAX / 4 / elements)
            return error_set(e, PL_USAGE, "shape: %lld is not a size", (long long)out->dim[i]);
        elements *= out->dim[i];
    }
    out->rank = (int)shape->count;
    return PL_OK;
}

static int expect_block(const struct value *v, const char *key, int64_t expected, struct error *e)
{
    int64_t block = 0;
    if (value_as_int(value_get(v, key), key, &block, e)) return e->code;
    if (block == expected) return PL_OK;
    return error_set(e, PL_USAGE, "%s is %lld; only %lld is read: save the model again with that block size, or use a "
                     "folder in 16 bits", key, (long long)block, (long long)expected);
}

static int read_state(const struct value *v, struct quant_state *out, struct error *e)
{
    const char *type, *nested_type = "float32";
    double offset = 0;
    if (value_as_map(v, "the quantization state", e) ||
        value_as_string(value_get(v, "quant_type"), "quant_type", &type, e))
        return e->code;
    if (strcmp(type, "nf4"))
        return error_set(e, PL_USAGE, "quant_type is %.40s; only nf4 is read: use a folder in NF4 or in 16 bits", type);
    if (expect_block(v, "blocksize", NF4_BLOCK, e) || read_shape(v, out, e)) return e->code;
    const struct value *size = value_get(v, "nested_blocksize");
    out->nested = size && size->kind != VALUE_NULL;
    if (!out->nested) return PL_OK;
    if (expect_block(v, "nested_blocksize", NF4_SCALES, e) || value_opt_string(v, "nested_dtype", &nested_type, e) ||
        value_as_number(value_get(v, "nested_offset"), "nested_offset", &offset, e))
        return e->code;
    if (strcmp(nested_type, "float32"))
        return error_set(e, PL_USAGE, "nested_dtype is %.40s, expected float32", nested_type);
    if (!isfinite((float)offset)) return error_set(e, PL_USAGE, "nested_offset is not a finite number");
    out->offset = (float)offset;
    return PL_OK;
}

int quant_state_read(const char *json, size_t n, struct quant_state *out, struct error *e)
{
    struct bump b = {0};
    struct value *v = NULL;
    memset(out, 0, sizeof *out);
    int rc = json_parse(json, n, &b, &v, e);
    if (!rc) rc = read_state(v, out, e);
    bump_free(&b);
    return rc;
}

void quant_state_print(const struct quant_state *s, const char *dtype, struct text *out)
{
    char offset[32];
    number_print(s->offset, offset);
    text_printf(out, "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"%s\", \"shape\": [", NF4_BLOCK, dtype);
    for (int i = 0; i < s->rank; i++) text_printf(out, "%s%lld", i ? ", " : "", (long long)s->dim[i]);
    text_printf(out, "], \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %s%s}", NF4_SCALES,
                offset, strpbrk(offset, ".e") ? "" : ".0");
}

static int read_entry(const struct st_file *f, const struct st_entry *t, struct quant_state *out, struct error *e)
{
    char *json = t->bytes > STATE_MOST ? NULL : mem_alloc(t->bytes + 1);
    int rc = json ? st_read(f, t, 0, t->bytes, json, e)
                  : error_set(e, PL_USAGE, "%llu bytes, expected a short text", (unsigned long long)t->bytes);
    if (!rc) rc = quant_state_read(json, t->bytes, out, e);
    mem_free(json);
    return rc ? error_prepend(e, "%s: tensor \"%.300s\"", f->path, t->name) : PL_OK;
}

/* --- the weights of a folder ------------------------------------------------------------------ */

struct found {
    const char *name;
    uint8_t form;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->name, ((const struct found *)b)->name);
}

/* Reads config.json; *bitsandbytes: its weights may be in 4 bits. */
static int read_config(const struct model *m, bool *bitsandbytes, struct error *e)
{
    struct bump b = {0};
    struct value *v = NULL;
    struct error ignored;
    const char *method = "";
    bool eight = false;
    *bitsandbytes = false;
    /* the model's own parser reports it */
    if (!m->config_text || json_parse(m->config_text, strlen(m->config_text), &b, &v, &ignored)) return PL_OK;
    const struct value *q = value_get(v, "quantization_config");
    int rc = PL_OK;
    if (q && q->kind == VALUE_MAP) {
        rc = value_opt_string(q, "quant_method", &method, e);
        if (!rc) rc = value_opt_bool(q, "load_in_8bit", &eight, e);
        *bitsandbytes = !rc && !strcmp(method, "bitsandbytes");
        if (!rc && (!*bitsandbytes || eight))
            rc = error_set(e, PL_USAGE,
                           "its weights are quantized by %.60s%s; only NF4 of bitsandbytes is read (load_in_4bit, "
                           "bnb_4bit_quant_type nf4): use such a folder, or one in 16 bits",
                           *method ? method : "an unknown method", eight ? " in 8 bits" : "");
        if (rc) error_prepend(e, "%s/config.json: quantization_config", m->path);
    }
    bump_free(&b);
    return rc;
}

typedef VEC(struct found) found_list;

static int scan_file(const struct st_file *f, found_list *out, struct bump *b, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < f->n_entries && !rc; i++) {
        const struct st_entry *t = &f->entries[i];
        struct quant_state state;
        if (text_ends_with(t->name, fp4_end))
            rc = error_set(e, PL_USAGE, "%s: tensor \"%.300s\" is of a weight in fp4; only nf4 is read: use a folder "
                           "in NF4 or in 16 bits", f->path, t->name);
        if (rc || !text_ends_with(t->name, state_end) || (rc = read_entry(f, t, &state, e))) continue;
        const int length = (int)(strlen(t->name) - strlen(state_end));
        vec_push(out,
                 ((struct found){bump_format(b, "%.*s", length, t->name), state.nested ? STORED_NF4 : STORED_NF4_F32}));
    }
    return rc;
}

int weights_4bit_find(struct weights_4bit *x, const struct model *m, struct bump *b, struct error *e)
{
    bool bitsandbytes = false;
    *x = (struct weights_4bit){.spellings = m->family ? m->family->spellings : NULL};
    if (!*m->path) return PL_OK;
    int rc = read_config(m, &bitsandbytes, e);
    if (rc || !bitsandbytes) return rc;
    struct model_files folder = {0};
    found_list list = {0};
    rc = model_files_open(&folder, m->path, true, e);
    for (uint32_t i = 0; !rc && i < folder.n_files; i++) rc = scan_file(&folder.files[i], &list, b, e);
    model_files_close(&folder);
    if (list.n) qsort(list.at, list.n, sizeof *list.at, by_name);
    x->n = rc ? 0 : list.n;
    x->names = bump_alloc(b, list.n * sizeof *x->names);
    x->forms = bump_alloc(b, list.n);
    for (uint32_t i = 0; i < list.n; i++) {
        x->names[i] = list.at[i].name;
        x->forms[i] = list.at[i].form;
    }
    vec_free(&list);
    return rc;
}

static int compare_name(const void *key, const void *name) { return strcmp(key, *(const char *const *)name); }

/* Returns the form of a parameter by its published name. The folder may spell it without its first
 * parts, or with others before them (weights.h). */
static uint8_t form_of(const struct weights_4bit *x, const char *name)
{
    char ending[NAME_ROOM];
    for (const char *part = name; part; part = strchr(part, '.') ? strchr(part, '.') + 1 : NULL) {
        const char **found = bsearch(part, x->names, x->n, sizeof *x->names, compare_name);
        if (found) return x->forms[found - x->names];
    }
    snprintf(ending, sizeof ending, ".%s", name);
    for (uint32_t i = 0; i < x->n; i++)
        if (text_ends_with(x->names[i], ending)) return x->forms[i];
    return STORED_PLAIN;
}

/* Returns the form of a parameter in any spelling of its name. */
static uint8_t form_in_folder(const struct weights_4bit *x, const char *name)
{
    const int i = spelling_of(x->spellings, name);
    uint8_t form = form_of(x, name);
    for (int k = 1; i >= 0 && !form && k < spelling_count(&x->spellings[i]); k++) {
        char other[NAME_ROOM];
        struct spelled how = {{0}};
        how.by[i] = (uint8_t)k;
        form = form_of(x, spelling_apply(x->spellings, how, name, other, sizeof other));
    }
    return form;
}

void weights_4bit_mark(const struct weights_4bit *x, struct graph *g)
{
    for (uint32_t i = 0; i < g->params.n && x->n; i++) {
        struct param *p = &g->params.at[i];
        const char *name = weight_name(g, p);
        const bool stacked = name_is_stack(name);
        char first[NAME_ROOM];
        if (tensor_at(g, p->tensor)->rank != 2 + stacked) continue;
        p->form = form_in_folder(x, name_in_stack(name, 0, first, sizeof first));
        if (p->form && stacked) p->form = STORED_NF4_F32;
    }
}

/* --- the tensors of a weight ------------------------------------------------------------------ */

/* Returns the tensor NAME.KEY beside the codes, in any file of the folder; NULL: none. */
static const struct st_entry *beside(const struct weights *w, const char *name, const char *key,
                                     const struct st_file **file)
{
    char full[NAME_ROOM];
    snprintf(full, sizeof full, "%s.%s", name, key);
    for (uint32_t i = 0; i < w->in.n_files; i++) {
        const struct st_entry *t = st_find(&w->in.files[i], full);
        *file = &w->in.files[i];
        if (t) return t;
    }
    return NULL;
}

/* Returns the tensor NAME.KEY, which must have this dtype and number of elements; NULL: `e` says
 * why not. */
static const struct st_entry *expect_beside(const struct weights *w, const char *name, const char *key, enum dtype t,
                                            int64_t elements, const struct st_file **file, struct error *e)
{
    const struct st_entry *x = beside(w, name, key, file);
    if (x && x->dtype == t && x->elements == elements) return x;
    if (!x)
        error_set(e, PL_USAGE, "%s: the 4-bit weight \"%.300s\" has no tensor \"%s\"; the folder is not complete",
                  w->in.dir, name, key);
    else
        error_set(e, PL_USAGE, "%s: tensor \"%.300s\" has %lld elements of %.20s; the weight's shape needs %lld of %s",
                  (*file)->path, x->name, (long long)x->elements, x->dtype_name, (long long)elements,
                  dtype_table[t].safetensors);
    return NULL;
}

/* Checks that a table of the file is ours: all values are computed with ours. PyTorch makes the map
 * of the scales, and its last bit depends on the processor. */
static int check_table(const struct weights *w, const char *name, const char *key, int n, float (*value)(int),
                       struct error *e)
{
    const struct st_file *f;
    float table[256];
    const struct st_entry *t = expect_beside(w, name, key, DT_F32, n, &f, e);
    if (!t || st_read(f, t, 0, t->bytes, table, e)) return e->code;
    for (int i = 0; i < n; i++)
        if (!(fabsf(table[i] - value(i)) <= 1e-6f * fabsf(value(i))))
            return error_set(e, PL_USAGE, "%s: tensor \"%.300s\": element %d is %g, expected %g: not the values of NF4",
                             f->path, t->name, i, (double)table[i], (double)value(i));
    return PL_OK;
}

static float level(int code) { return nf4_levels[code]; }

static int state_of(const struct weights *w, const char *name, struct quant_state *out, struct error *e)
{
    const struct st_file *f;
    const struct st_entry *t = beside(w, name, state_end + 1, &f);
    if (!t)
        return error_set(e, PL_USAGE, "%s: the 4-bit weight \"%.300s\" has no tensor \"%s\"; the folder is not "
                         "complete", w->in.dir, name, state_end + 1);
    return read_entry(f, t, out, e);
}

int weights_4bit_check(const struct weights *w, const struct graph *g, const struct param *p,
                       const struct weight_slot *slot, struct error *e)
{
    const struct tensor *x = tensor_at(g, p->tensor);
    const char *name = slot->entry->name;
    const int64_t n = weight_tensor_elements(g, p), blocks = nf4_blocks(n);
    const bool stacked = weight_tensors(g, p) > 1;
    const struct st_file *f;
    struct quant_state state;
    if (state_of(w, name, &state, e)) return e->code;
    const int first = x->rank - 2;
    const int64_t dim[] = {x->dim[first + p->transposed], x->dim[first + !p->transposed]};
    if (state.rank != 2 || memcmp(state.dim, dim, sizeof dim)) {
        char found[160], expected[160];
        return error_set(e, PL_USAGE, "%s/%s: the 4-bit tensor \"%.300s\" has the shape %s; config.json asks for %s",
                         w->in.dir, w->in.names[slot->file], name, shape_print(state.rank, state.dim, found),
                         shape_print(2, dim, expected));
    }
    if (stacked && n % NF4_BLOCK)
        return error_set(e, PL_USAGE, "%s/%s: the 4-bit tensor \"%.300s\" has %lld weights; those of experts must be "
                         "a multiple of %d: use a folder in 16 bits", w->in.dir, w->in.names[slot->file], name,
                         (long long)n, NF4_BLOCK);
    if (slot->entry->bytes != (uint64_t)(n + 1) / 2)
        return error_set(e, PL_USAGE, "%s/%s: tensor \"%.300s\" has %llu bytes; %lld weights in 4 bits need %lld",
                         w->in.dir, w->in.names[slot->file], name, (unsigned long long)slot->entry->bytes, (long long)n,
                         (long long)(n + 1) / 2);
    if (check_table(w, name, "quant_map", 16, level, e)) return e->code;
    if (p->form != (state.nested && !stacked ? STORED_NF4 : STORED_NF4_F32))
        return error_set(e, PL_USAGE, "%s: the files have the 4-bit weight \"%.300s\" twice, with and without double "
                         "quantization; keep one of them", w->in.dir, name);
    if (!expect_beside(w, name, "absmax", state.nested ? DT_U8 : DT_F32, blocks, &f, e)) return e->code;
    if (!state.nested) return PL_OK;
    if (!expect_beside(w, name, "nested_absmax", DT_F32, (blocks + NF4_SCALES - 1) / NF4_SCALES, &f, e)) return e->code;
    return check_table(w, name, "nested_quant_map", 256, nf4_map, e);
}

/* --- loading ---------------------------------------------------------------------------------- */

static uint64_t part_offset(const struct transfer *x, const struct param *p, int part)
{
    const struct tensor *t = tensor_at(x->tape->graph, p->tensor);
    return stored_part_offset(tensor_form(x->tape->graph, t), part, stored_shape_of(t));
}

/* Writes bytes [at, at + n) of a matrix's share of a part; the matrix `number` of a stack has
 * `bytes` in all. */
static int write_part(struct transfer *x, const struct param *p, int part, uint64_t number, uint64_t bytes, uint64_t at,
                      uint64_t n, const void *data, struct error *e)
{
    return transfer_write_bytes(x, p->tensor, part_offset(x, p, part) + number * bytes + at, n, data, e);
}

static int load_part(struct transfer *x, const struct param *p, int part, uint64_t number, const struct st_file *f,
                     const struct st_entry *t, uint32_t *crc, struct error *e)
{
    const uint64_t room = x->bytes / 2 / 64 * 64;
    for (uint64_t at = 0; at < t->bytes; at += room) {
        const uint64_t n = min_u64(room, t->bytes - at);
        if (st_read(f, t, at, n, x->first, e)) return e->code;
        if (t->dtype == DT_F32 && part && transfer_nonfinite(x->first, DT_F32, (int64_t)n / 4) >= 0)
            return error_set(e, PL_USAGE, "%s: tensor \"%.300s\" has a scale that is not finite: the file is damaged",
                             f->path, t->name);
        *crc = crc32c(*crc, x->first, (size_t)n);
        if (write_part(x, p, part, number, t->bytes, at, n, x->first, e))
            return error_prepend(e, "loading %s", t->name);
    }
    return PL_OK;
}

/* Loads the scales of a matrix of a stack, which are in two levels in the file: bytes, and absmax
 * for each 256 of them. */
static int load_nested(struct transfer *x, const struct param *p, uint64_t number, const struct st_file *f,
                       const struct st_entry *t, const float *absmax, float offset, uint32_t *crc, struct error *e)
{
    const uint64_t room = x->bytes / 2 / sizeof(float);
    const uint8_t *bytes = (const uint8_t *)x->first;
    float *scales = (float *)(void *)x->second;
    for (uint64_t at = 0; at < t->bytes; at += room) {
        const uint64_t n = min_u64(room, t->bytes - at);
        if (st_read(f, t, at, n, x->first, e)) return e->code;
        *crc = crc32c(*crc, x->first, (size_t)n);
        for (uint64_t i = 0; i < n; i++)
            scales[i] = nf4_scale(nf4_map(bytes[i]), absmax[(at + i) / NF4_SCALES], offset);
        if (write_part(x, p, 1, number, t->bytes * sizeof *scales, at * sizeof *scales, n * sizeof *scales, scales, e))
            return error_prepend(e, "loading %s", t->name);
    }
    return PL_OK;
}

static int load_stacked_scales(const struct weights *w, struct transfer *x, const struct param *p,
                               const struct weight_slot *slot, float offset, uint32_t *crc, struct error *e)
{
    const struct st_file *f = NULL, *of = NULL;
    const struct st_entry *t = beside(w, slot->entry->name, "absmax", &f),
                          *nested = beside(w, slot->entry->name, "nested_absmax", &of);
    float *absmax = mem_alloc(nested->bytes);
    int rc = st_read(of, nested, 0, nested->bytes, absmax, e);
    *crc = crc32c(*crc, absmax, (size_t)nested->bytes);
    if (!rc && transfer_nonfinite(absmax, DT_F32, nested->elements) >= 0)
        rc = error_set(e, PL_USAGE, "%s: tensor \"%.300s\" has a scale that is not finite: the file is damaged",
                       of->path, nested->name);
    if (!rc) rc = load_nested(x, p, slot->number, f, t, absmax, offset, crc, e);
    mem_free(absmax);
    return rc;
}

int weights_4bit_load(const struct weights *w, struct transfer *x, const struct param *p,
                      const struct weight_slot *slot, uint32_t *crc, struct error *e)
{
    const char *name = slot->entry->name;
    const struct st_file *f = NULL;
    struct quant_state state;
    TRY(state_of(w, name, &state, e));
    TRY(load_part(x, p, 0, slot->number, &w->in.files[slot->file], slot->entry, crc, e));
    if (state.nested) *crc = crc32c(*crc, &state.offset, sizeof state.offset);
    if (state.nested && p->form == STORED_NF4_F32) return load_stacked_scales(w, x, p, slot, state.offset, crc, e);
    const struct st_entry *t = beside(w, name, "absmax", &f);
    TRY(load_part(x, p, 1, slot->number, f, t, crc, e));
    if (!state.nested) return PL_OK;
    t = beside(w, name, "nested_absmax", &f);
    TRY(load_part(x, p, 2, slot->number, f, t, crc, e));
    return transfer_write_bytes(x, p->tensor, part_offset(x, p, 3), sizeof state.offset, &state.offset, e);
}
