/*
 * quantize_folder.c: see new_folder.h.
 *
 *     read      [ W0 | W1 | norm ]
 *     written   [ norm | tables and absmax of W0, W1 | codes, scales and state of W0 | of W1 ]
 *
 * Tensors are in the order of safetensors' own writer: wide elements first, so that each is
 * aligned, then by name. The header states the length of a weight's state, a text with the mean of
 * all its scales, so each weight is read twice: for its scales, and for its codes.
 *
 * Memory: CHUNK weights, the scales of one weight, and an absmax for each 16384 weights of the
 * model.
 */
#include "folder/new_folder.h"

#include "base/nf4.h"
#include "base/progress.h"
#include "folder/transfer.h"
#include "folder/weights_4bit.h"
#include "graph/stored.h"
#include "io/file.h"
#include "io/json.h"
#include "passes/passes.h"

enum { CHUNK = 1 << 20, INDEX_MOST = 64 << 20 };

/* A weight in 4 bits. */
struct packed_weight {
    const struct weight_slot *slot; /* the tensor that it is read from */
    bool transposed;                /* it is [inputs,outputs], and its transpose is quantized */
    float *absmax;
    uint8_t *scales;                /* on the heap, from the codes to the scales of one file; else NULL */
    struct text state;
};

/* The tensors of a written file. */
enum written_part { PLAIN, CODES, SCALES, ABSMAX, MAP, LEVELS, STATE, PARTS };
static const char *const endings[PARTS] =
    {"", "", ".absmax", ".nested_absmax", ".nested_quant_map", ".quant_map", WEIGHTS_4BIT_STATE};

struct written_tensor {
    struct st_spec spec;
    int64_t dims[2];                /* of all parts but PLAIN */
    uint32_t slot;
    enum written_part part;
};
struct written_file {
    struct written_tensor *tensors;
    uint32_t n;
};

/* --- which weights ---------------------------------------------------------------------------- */

/* Chooses the weights to quantize: those that memory.quantize nf4 takes if all are frozen. */
static int choose_weights(struct quantize_folder *q, struct error *e)
{
    const struct settings s = {.quantize = QUANTIZE_NF4};
    struct graph *g = &q->graph;
    uint8_t *forms = bump_alloc(&q->memory, g->params.n);
    q->packed = bump_alloc(&q->memory, q->weights.in.n_slots * sizeof *q->packed);
    quantize_forms(g, &s, forms);
    for (uint32_t i = 0; i < g->params.n; i++) {
        for (uint32_t slot = q->weights.source[i]; forms[i] && slot; slot = q->weights.in.slots[slot - 1].next) {
            q->n_quantized += !q->packed[slot - 1].slot;
            q->packed[slot - 1].slot = &q->weights.in.slots[slot - 1];
            q->packed[slot - 1].transposed = g->params.at[i].transposed;
        }
    }
    if (q->n_quantized) return PL_OK;
    return error_set(e, PL_USAGE, "%s: a %s has no linear layer whose weight can be in 4 bits (an output head and what "
                     "an embedding shares stay as they are)", q->model.path, q->model.family->model_type);
}

static int check_plain(const struct model *m, struct error *e)
{
    struct bump b = {0};
    struct value *config;
    const char *method = "another program";
    int rc = json_parse(m->config_text, strlen(m->config_text), &b, &config, e);
    const struct value *how = rc ? NULL : value_get(config, "quantization_config");
    if (how && how->kind == VALUE_MAP && !value_opt_string(how, "quant_method", &method, e))
        rc = error_set(e, PL_USAGE, "%s: its weights are quantized already, by %.60s: give the folder of the model "
                       "before it was quantized", m->path, method);
    bump_free(&b);
    return rc;
}

static int check_dtypes(const struct quantize_folder *q, struct error *e)
{
    for (uint32_t i = 0; i < q->weights.in.n_slots; i++) {
        const struct st_entry *t = q->weights.in.slots[i].entry;
        if (t->dtype == DT_NONE)
            return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is %.40s, which convert does not support",
                             q->weights.in.dir, t->name, t->dtype_name);
    }
    return PL_OK;
}

static int open_weights(struct quantize_folder *q, struct error *e)
{
    const struct batch one = {.B = 1, .T = 2, .outputs = true};
    q->model.family->build(&q->model, &q->graph, &one);
    if (q->graph.error.code) {
        *e = q->graph.error;
        return e->code;
    }
    for (uint32_t i = 0; i < q->graph.params.n; i++) q->graph.params.at[i].frozen = true;
    TRY(weights_open(&q->weights, &q->model, &q->graph, NULL, e));
    TRY(check_dtypes(q, e));
    for (uint32_t i = 0; i < q->weights.in.n_slots; i++) q->bytes_before += q->weights.in.slots[i].entry->bytes;
    q->n_tensors = q->weights.in.n_slots;
    return choose_weights(q, e);
}

int quantize_folder_open(struct quantize_folder *q, const char *path, struct error *e)
{
    memset(q, 0, sizeof *q);
    int rc = model_open(&q->model, path, e);
    if (rc) return rc;
    graph_init(&q->graph);
    rc = check_plain(&q->model, e);
    if (!rc) rc = open_weights(q, e);
    if (rc) quantize_folder_close(q);
    return rc;
}

void quantize_folder_close(struct quantize_folder *q)
{
    for (uint32_t i = 0; q->packed && i < q->weights.in.n_slots; i++) {
        mem_free(q->packed[i].scales);
        text_free(&q->packed[i].state);
    }
    weights_close(&q->weights);
    graph_free(&q->graph);
    model_close(&q->model);
    bump_free(&q->memory);
    memset(q, 0, sizeof *q);
}

/* --- one weight ------------------------------------------------------------------------------- */

static int64_t absmax_count(int64_t n) { return (nf4_blocks(n) + NF4_SCALES - 1) / NF4_SCALES; }

/* Returns PyTorch's name of the dtype that a weight is computed in. */
static const char *torch_dtype(enum dtype t) { return t == DT_BF16 ? "bfloat16" : t == DT_F16 ? "float16" : "float32"; }

/* Quantizes n weights of p from `at` on, with room for CHUNK of them in `values` and `codes`;
 * `codes` NULL: fills only their scales. */
static int quantize_chunk(const struct st_file *f, const struct packed_weight *p, int64_t at, int64_t n, void *values,
                          uint8_t *codes, float *scales, struct error *e)
{
    const struct st_entry *t = p->slot->entry;
    const uint64_t size = dtype_size(t->dtype);
    if (p->transposed ? st_read_transposed(f, t, at, n, values, e)
                      : st_read(f, t, (uint64_t)at * size, (uint64_t)n * size, values, e))
        return e->code;
    const int64_t bad = transfer_nonfinite(values, t->dtype, n);
    if (bad >= 0)
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\": element %lld is %g; expected finite numbers: the file is "
                         "damaged, or training diverged before it was saved", f->path, t->name,
                         (long long)(p->transposed ? transposed_index(at + bad, t->dims[1], t->dims[0]) : at + bad),
                         dtype_load(values, t->dtype, bad));
    nf4_quantize(codes, scales + at / NF4_BLOCK, values, t->dtype, n);
    return PL_OK;
}

/* Writes the codes of a weight, and keeps its scales; `out` NULL: fills only absmax and *offset. */
static int quantize_weight(struct quantize_folder *q, struct packed_weight *p, struct st_writer *out, float *offset,
                           struct error *e)
{
    const struct st_entry *t = p->slot->entry;
    const struct st_file *f = &q->weights.in.files[p->slot->file];
    const int64_t blocks = nf4_blocks(t->elements);
    float *scales = mem_alloc((size_t)blocks * sizeof *scales);
    void *values = mem_alloc(CHUNK * (size_t)dtype_size(t->dtype));
    uint8_t *codes = out ? mem_alloc(CHUNK / 2) : NULL, *bytes = mem_alloc((size_t)blocks);
    int rc = PL_OK;
    for (int64_t at = 0, n; at < t->elements && !rc; at += n) {
        n = min_i64(CHUNK, t->elements - at);
        rc = quantize_chunk(f, p, at, n, values, codes, scales, e);
        if (!rc && out) rc = st_write_bytes(out, codes, (uint64_t)(n + 1) / 2, e);
    }
    if (!rc) nf4_quantize_scales(bytes, p->absmax, offset, scales, blocks);
    if (!rc && out) p->scales = bytes;
    else mem_free(bytes);
    mem_free(codes);
    mem_free(values);
    mem_free(scales);
    return rc;
}

/* Computes what headers need of all weights: their scales and offsets. */
static int measure_weights(struct quantize_folder *q, struct error *e)
{
    struct progress progress;
    int rc = PL_OK;
    progress_begin(&progress, "reading weights:", "tensors", q->n_quantized);
    for (uint32_t i = 0; i < q->weights.in.n_slots && !rc; i++) {
        struct packed_weight *p = &q->packed[i];
        if (!p->slot) continue;
        const struct st_entry *t = p->slot->entry;
        struct quant_state state = {.nested = true, .rank = t->rank};
        for (int k = 0; k < t->rank; k++) state.dim[k] = t->dims[p->transposed ? t->rank - 1 - k : k];
        p->absmax = bump_alloc(&q->memory, (size_t)absmax_count(t->elements) * sizeof *p->absmax);
        rc = quantize_weight(q, p, NULL, &state.offset, e);
        quant_state_print(&state, torch_dtype(t->dtype), &p->state);
        progress_add(&progress, 1);
    }
    progress_clear();
    return rc;
}

/* --- one file --------------------------------------------------------------------------------- */

static void add_tensor(struct quantize_folder *q, struct written_file *f, uint32_t slot, enum written_part part)
{
    const struct st_entry *t = q->weights.in.slots[slot].entry;
    const enum dtype dtype = part == PLAIN                                     ? t->dtype
                             : part == ABSMAX || part == MAP || part == LEVELS ? DT_F32
                                                                               : DT_U8;
    const int64_t counts[PARTS] =
        {0,  (t->elements + 1) / 2,           nf4_blocks(t->elements), absmax_count(t->elements), 256,
         16, (int64_t)q->packed[slot].state.n};
    struct written_tensor *x = &f->tensors[f->n++];
    *x = (struct written_tensor){.dims = {counts[part], 1}, .slot = slot, .part = part};
    x->spec = (struct st_spec){bump_format(&q->memory, "%s%s", t->name, endings[part]), dtype,
                               part == PLAIN   ? t->rank
                               : part == CODES ? 2
                                               : 1,
                               part == PLAIN ? t->dims : x->dims};
    q->bytes += part == PLAIN ? t->bytes : (uint64_t)counts[part] * dtype_size(dtype);
}

static int by_width(const void *a, const void *b)
{
    const struct st_spec *x = &((const struct written_tensor *)a)->spec, *y = &((const struct written_tensor *)b)->spec;
    if (dtype_size(x->dtype) != dtype_size(y->dtype)) return dtype_size(x->dtype) > dtype_size(y->dtype) ? -1 : 1;
    return x->dtype != y->dtype ? (int)x->dtype - (int)y->dtype : strcmp(x->name, y->name);
}

static void list_tensors(struct quantize_folder *q, uint32_t file)
{
    struct written_file *f = &q->files[file];
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->weights.in.n_slots; i++) n += q->weights.in.slots[i].file == file;
    f->tensors = bump_alloc(&q->memory, n * (PARTS - 1) * sizeof *f->tensors);
    for (uint32_t i = 0; i < q->weights.in.n_slots; i++) {
        const struct weight_slot *s = &q->weights.in.slots[i];
        if (s->file != file || !s->listed) continue;
        if (!q->packed[i].slot) add_tensor(q, f, i, PLAIN);
        for (enum written_part p = CODES; p < PARTS && q->packed[i].slot; p++) add_tensor(q, f, i, p);
    }
    qsort(f->tensors, f->n, sizeof *f->tensors, by_width);
    for (uint32_t i = 0; i < f->n; i++) /* the tensors have moved */
        if (f->tensors[i].part) f->tensors[i].spec.dims = f->tensors[i].dims;
}

static int copy_tensor(const struct st_file *f, const struct st_entry *t, struct st_writer *out, struct error *e)
{
    char *bytes = mem_alloc(min_u64(CHUNK, t->bytes));
    int rc = PL_OK;
    for (uint64_t at = 0, n; at < t->bytes && !rc; at += n) {
        n = min_u64(CHUNK, t->bytes - at);
        rc = st_read(f, t, at, n, bytes, e);
        if (!rc) rc = st_write_bytes(out, bytes, n, e);
    }
    mem_free(bytes);
    return rc;
}

static int write_tensor(struct quantize_folder *q, const struct written_tensor *x, struct st_writer *out,
                        struct error *e)
{
    const struct weight_slot *s = &q->weights.in.slots[x->slot];
    struct packed_weight *p = &q->packed[x->slot];
    const uint64_t bytes = (uint64_t)x->dims[0] * dtype_size(x->spec.dtype);
    float map[256], offset;
    switch (x->part) {
    case PLAIN: return copy_tensor(&q->weights.in.files[s->file], s->entry, out, e);
    case CODES: return quantize_weight(q, p, out, &offset, e);
    case ABSMAX: return st_write_bytes(out, p->absmax, bytes, e);
    case LEVELS: return st_write_bytes(out, nf4_levels, bytes, e);
    case STATE: return st_write_bytes(out, p->state.at, bytes, e);
    case MAP:
        for (int k = 0; k < 256; k++) map[k] = nf4_map(k);
        return st_write_bytes(out, map, bytes, e);
    default: break;
    }
    const int rc = st_write_bytes(out, p->scales, bytes, e); /* behind the codes, by its name */
    mem_free(p->scales);
    p->scales = NULL;
    return rc;
}

static int write_file(struct quantize_folder *q, uint32_t file, const char *dir, struct progress *progress,
                      struct error *e)
{
    static const struct st_pair format = {"format", "pt"}; /* transformers requires it */
    const struct written_file *f = &q->files[file];
    struct st_spec *specs = mem_alloc(f->n * sizeof *specs);
    struct st_writer out;
    struct text path = {0};
    for (uint32_t i = 0; i < f->n; i++) specs[i] = f->tensors[i].spec;
    text_printf(&path, "%s/%s", dir, q->weights.in.names[file]);
    int rc = st_write_begin(&out, path.at, specs, f->n, &format, 1, e);
    text_free(&path);
    mem_free(specs);
    if (rc) return rc;
    for (uint32_t i = 0; i < f->n && !rc; i++) {
        rc = write_tensor(q, &f->tensors[i], &out, e);
        progress_add(progress, 1);
    }
    return st_write_finish(&out, rc, e);
}

/* --- config.json and the index ---------------------------------------------------------------- */

/* Returns an array that tells, by storage, whether the forward reads it. The caller frees it. */
static bool *storages_read(const struct graph *g)
{
    bool *read = mem_alloc(g->storages.n * sizeof *read);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]) read[tensor_at(g, n->in[i])->storage] = true;
    }
    return read;
}

/* Returns the length of the name's beginning that versions of transformers spell in different ways,
 * or leave out. */
static size_t spelled_begin(const struct family *f, const char *name)
{
    size_t begin = f->root && !strncmp(name, f->root, strlen(f->root)) ? strlen(f->root) : 0;
    for (int i = 0; f->spellings && f->spellings[i].name; i++)
        for (int k = 0; k < spelling_count(&f->spellings[i]); k++) {
            const char *way = spelling_at(&f->spellings[i], k);
            if (!strncmp(name, way, strlen(way)) && strlen(way) > begin) begin = strlen(way);
        }
    return begin;
}

/* Adds the module of a weight: its name in the folder, and the end that it has in every version. */
static void skip_module(struct value *list, struct bump *b, const struct family *f, const char *weight)
{
    const size_t begin = spelled_begin(f, weight);
    const int n = (int)(strlen(weight) - strlen(".weight"));
    value_append(b, list, value_string(b, bump_format(b, "%.*s", n, weight)));
    if (begin) value_append(b, list, value_string(b, bump_format(b, "%.*s", n - (int)begin, weight + begin)));
}

/* Returns llm_int8_skip_modules: NULL, by which transformers leaves out the output head; else the
 * head, routers of experts, and the linear layers that it has beyond those of the graph, such as
 * the pooling head of a tower. */
static struct value *skipped_modules(const struct quantize_folder *q, struct bump *b)
{
    bool *read = storages_read(&q->graph), *routers = mem_alloc(q->graph.params.n + 1);
    quantize_routers(&q->graph, routers);
    struct value *list = value_new(b, VALUE_LIST);
    value_append(b, list, value_string(b, "lm_head"));
    for (uint32_t i = 0; i < q->weights.in.n_slots; i++) {
        const struct weight_slot *s = &q->weights.in.slots[i];
        const struct param *p = s->param ? &q->graph.params.at[s->param - 1] : NULL;
        const bool used = p && read[tensor_at(&q->graph, p->tensor)->storage] && !routers[s->param - 1];
        if (s->listed && !used && s->entry->rank == 2 && text_ends_with(s->entry->name, ".weight"))
            skip_module(list, b, q->model.family, s->entry->name);
    }
    mem_free(read);
    mem_free(routers);
    return list->count > 1 ? list : value_new(b, VALUE_NULL);
}

static enum dtype first_dtype(const struct quantize_folder *q)
{
    uint32_t i = 0;
    while (!q->packed[i].slot) i++;
    return q->packed[i].slot->entry->dtype;
}

static int write_json(const struct value *root, const char *path, struct error *e)
{
    struct text t = {0};
    json_write(root, 2, &t);
    text_printf(&t, "\n");
    return file_write_text(PL_OK, path, &t, e);
}

static int write_config(const struct quantize_folder *q, const char *dir, struct error *e)
{
    struct bump b = {0};
    struct value *root, *how = value_new(&b, VALUE_MAP);
    const char *dtype = torch_dtype(first_dtype(q));
    int rc = json_parse(q->model.config_text, strlen(q->model.config_text), &b, &root, e);
    if (!rc) {
        value_put(&b, how, "_load_in_4bit", value_bool(&b, true));
        value_put(&b, how, "_load_in_8bit", value_bool(&b, false));
        value_put(&b, how, "bnb_4bit_compute_dtype", value_string(&b, dtype));
        value_put(&b, how, "bnb_4bit_quant_storage", value_string(&b, "uint8"));
        value_put(&b, how, "bnb_4bit_quant_type", value_string(&b, "nf4"));
        value_put(&b, how, "bnb_4bit_use_double_quant", value_bool(&b, true));
        value_put(&b, how, "llm_int8_enable_fp32_cpu_offload", value_bool(&b, false));
        value_put(&b, how, "llm_int8_has_fp16_weight", value_bool(&b, false));
        value_put(&b, how, "llm_int8_skip_modules", skipped_modules(q, &b));
        value_put(&b, how, "llm_int8_threshold", value_digits(&b, "6.0", 3));
        value_put(&b, how, "load_in_4bit", value_bool(&b, true));
        value_put(&b, how, "load_in_8bit", value_bool(&b, false));
        value_put(&b, how, "quant_method", value_string(&b, "bitsandbytes"));
        value_put(&b, root, "quantization_config", how);
        /* Without it transformers takes the dtype of the file's first tensor, which is that of a
         * table. */
        if (!value_get(root, "dtype") && !value_get(root, "torch_dtype"))
            value_put(&b, root, "torch_dtype", value_string(&b, dtype));
        rc = write_json(root, bump_format(&b, "%s/config.json", dir), e);
    }
    bump_free(&b);
    return rc;
}

static int write_index(const struct quantize_folder *q, const char *dir, struct error *e)
{
    struct bump b = {0};
    struct value *root, *map = value_new(&b, VALUE_MAP);
    const char *path = bump_format(&b, "%s/%s", q->weights.in.dir, MODEL_INDEX);
    int rc = PL_OK;
    if (file_exists(path) && !(rc = json_read_file(path, INDEX_MOST, &b, &root, e))) {
        for (uint32_t f = 0; f < q->weights.in.n_files; f++)
            for (uint32_t i = 0; i < q->files[f].n; i++)
                value_put(&b, map, q->files[f].tensors[i].spec.name, value_string(&b, q->weights.in.names[f]));
        struct value *about = (struct value *)value_get(root, "metadata");
        if (about && about->kind == VALUE_MAP) value_put(&b, about, "total_size", value_uint(&b, q->bytes));
        value_put(&b, root, "weight_map", map);
        rc = write_json(root, bump_format(&b, "%s/%s", dir, MODEL_INDEX), e);
    }
    bump_free(&b);
    return rc;
}

/* --- the folder ------------------------------------------------------------------------------- */

int quantize_folder_write(struct quantize_folder *q, const char *dir, struct error *e)
{
    struct progress progress;
    uint64_t tensors = 0;
    q->files = bump_alloc(&q->memory, q->weights.in.n_files * sizeof *q->files);
    q->bytes = 0;
    int rc = measure_weights(q, e);
    for (uint32_t i = 0; i < q->weights.in.n_files && !rc; i++) {
        list_tensors(q, i);
        tensors += q->files[i].n;
    }
    progress_begin(&progress, "quantizing:", "tensors", tensors);
    for (uint32_t i = 0; i < q->weights.in.n_files && !rc; i++) rc = write_file(q, i, dir, &progress, e);
    progress_clear();
    if (!rc) rc = model_files_copy_others(&q->weights.in, q->weights.in.dir, dir, NULL, e);
    if (!rc) rc = write_config(q, dir, e);
    if (!rc) rc = write_index(q, dir, e);
    return rc ? rc : dir_sync(dir, e);
}
