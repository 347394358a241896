/*
 * merge.c: opens and checks a base and its adapter, and writes the merged model folder (see
 * adapter_folder.h).
 *
 *     base's file   [ length | header | W0 | W1 | W2 | ... ]
 *     written file  [  the same bytes | W0'| W1 | W2'| ... ]
 *
 * Memory: ROWS_BYTES of a tensor in its dtype, half of that in f32, and one module's A and B in
 * f32. Only the file that gets the head of an untied model has another header: one more tensor,
 * behind the others.
 */
#include "adapter/adapter_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "base/progress.h"
#include "graph/stored.h"
#include "io/file.h"
#include "io/json.h"
#include "models/decoder.h"

enum { JSON_MOST = 64 << 20 };

/* Tensors that are a second name of another one, and that a file may leave out. The adapter's copy
 * of such a tensor, in a module that it saves, is not trained. */
static const struct {
    const char *name, *same_as;
} aliases[] = {{"prompt_encoder.shared_embedding.positional_embedding", "shared_image_embedding.positional_embedding"}};

/* Returns the listed tensor of that name; NULL: none. */
static struct weight_slot *find_tensor(const struct merge *m, const char *name)
{
    const uint32_t slot = model_files_find_slot(&m->base, name);
    return slot ? &m->base.slots[slot - 1] : NULL;
}

/* --- a tied head ---------------------------------------------------------------------------- */

static bool is_tied(const struct merge *m)
{
    const struct value *whole = value_get(m->config, "tie_word_embeddings"),
                       *text = value_path(m->config, "text_config.tie_word_embeddings");
    return (whole && whole->kind == VALUE_BOOL && whole->truth) || (text && text->kind == VALUE_BOOL && text->truth);
}

static bool ends_in(const char *name, const char *module)
{
    const size_t n = strlen(name), k = strlen(module);
    return text_ends_with(name, ".weight") && n >= k + 7 && !strncmp(name + n - 7 - k, module, k) &&
           (n == k + 7 || name[n - 8 - k] == '.');
}

/* Finds the embedding, by the last part of its name, and the head of a tied model; without them it
 * counts as not tied. */
static void find_tied(struct merge *m, const char *embedding)
{
    for (uint32_t i = 0; i < m->base.n_slots; i++) {
        const char *name = m->base.slots[i].entry->name;
        if (!m->base.slots[i].listed) continue;
        if (ends_in(name, embedding)) m->embedding = &m->base.slots[i];
        if (ends_in(name, "lm_head")) m->head = &m->base.slots[i];
    }
    if (!m->embedding) m->head = NULL;
    else if (m->head) m->head_name = m->head->entry->name;
    else
        m->head_name = strncmp(m->embedding->entry->name, "language_model.", 15) ? "lm_head.weight"
                                                                                 : "language_model.lm_head.weight";
}

/* Finds what the tensors do not say: whether the head is tied, how weights are stored, and which
 * tensors are fused. config.json says whether it is tied in a model that Plimsoll does not
 * train. */
static int find_layout(struct merge *m, struct error *e)
{
    struct text config = {0};
    struct model model;
    struct error ignored;
    bool tied = is_tied(m), fused;
    int rc = PL_OK;
    const char *embedding = "embed_tokens";
    json_write(m->config, 0, &config);
    const bool known = !model_text(&model, config.at, m->base.dir, &ignored);
    if (known && model.family->decoder) {
        const struct decoder *c = model.config;
        tied = c->tied;
        m->transposed = c->transposed;
        embedding = c->names.embedding;
    }
    if (known) rc = model_files_split(&m->base, model.family->fused, &fused, e);
    if (!rc && tied) find_tied(m, embedding);
    if (known) model_close(&model);
    text_free(&config);
    return rc;
}

/* Lists the names that an adapter may refer to: those of the files, a tied head, and aliases of
 * tensors that are there. */
static const char **names_of_base(struct merge *m, uint32_t *n)
{
    const char **names = bump_alloc(&m->base.memory, (m->base.n_slots + 1 + COUNT(aliases)) * sizeof *names);
    *n = 0;
    for (uint32_t i = 0; i < m->base.n_slots; i++)
        if (m->base.slots[i].listed) names[(*n)++] = m->base.slots[i].entry->name;
    if (m->embedding && !m->head) names[(*n)++] = m->head_name;
    for (size_t i = 0; i < COUNT(aliases); i++)
        if (!find_tensor(m, aliases[i].name) && find_tensor(m, aliases[i].same_as)) names[(*n)++] = aliases[i].name;
    return names;
}

/* --- adapter and base ----------------------------------------------------------------------- */

static int check_dtype(const struct merge *m, const struct st_entry *t, const struct adapter_tensor *x, struct error *e)
{
    const bool same = t->dtype != DT_NONE && t->dtype == x->dtype && x->part == ADAPTER_WHOLE;
    if (same || (dtype_is_float(t->dtype) && dtype_is_float(x->dtype))) return PL_OK;
    return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is %.40s; an adapter is merged into F32, BF16, F16 or F64%s",
                     m->base.dir, t->name, t->dtype_name,
                     value_get(m->config, "quantization_config")
                         ? ": give the folder of the base model before it was quantized"
                         : "");
}

/* Checks that an adapter's tensor fits the tensor of the base. */
static int check_fits(const struct merge *m, const struct st_entry *t, bool transposed, const struct adapter_tensor *x,
                      struct error *e)
{
    char base[160], adapter[160];
    if (check_dtype(m, t, x, e)) return e->code;
    bool fits = x->part == ADAPTER_WHOLE
                    ? t->rank == x->rank && (!t->rank || !memcmp(t->dims, x->dims, (size_t)t->rank * sizeof *t->dims))
                    : t->rank == 2 && (x->part == ADAPTER_A ? x->dims[1] == t->dims[!transposed]
                                                         : x->dims[0] == t->dims[transposed]);
    if (fits) return PL_OK;
    return error_set(e, PL_USAGE, "%s: the adapter belongs to another base: tensor \"%.200s\" has the shape %s, which "
                     "does not fit %s of \"%.200s\" in %s", m->adapter.path, x->name,
                     shape_print(x->rank, x->dims, adapter), shape_print(t->rank, t->dims, base), t->name, m->base.dir);
}

static int attach(struct merge *m, const struct adapter_tensor *x, struct error *e)
{
    const bool head = m->embedding && !strcmp(x->base, m->head_name);
    const struct weight_slot *t = find_tensor(m, x->base);
    if (!t && !head) return PL_OK; /* an alias */
    struct merge_change *c = head ? &m->head_change : &m->changes[t - m->base.slots];
    c->transposed = m->transposed && !head && !ends_in(x->base, "lm_head");
    if (check_fits(m, head ? m->embedding->entry : t->entry, c->transposed, x, e)) return e->code;
    if (x->part == ADAPTER_A) c->A = x, m->n_merged++;
    else if (x->part == ADAPTER_B) c->B = x;
    else if (x->part == ADAPTER_MAGNITUDE) c->magnitude = x;
    else c->whole = x, m->n_whole++;
    m->untied |= head || t == m->embedding;
    return PL_OK;
}

static int attach_all(struct merge *m, struct error *e)
{
    uint32_t n;
    const char **names = names_of_base(m, &n);
    if (adapter_folder_match(&m->adapter, m->base.dir, names, n, e)) return e->code;
    for (uint32_t i = 0; i < m->adapter.n; i++)
        if (attach(m, &m->adapter.tensors[i], e)) return e->code;
    return PL_OK;
}

static int open_base(struct merge *m, const char *dir, struct error *e)
{
    const char *config = bump_format(&m->base.memory, "%s/config.json", dir);
    if (!dir_exists(dir)) return model_missing(dir, e);
    if (!file_exists(config)) return model_missing_config(dir, e);
    if (json_read_file(config, JSON_MOST, &m->base.memory, &m->config, e)) return e->code;
    if (value_as_map(m->config, "the file", e)) return error_prepend(e, "%s", config);
    if (model_files_open(&m->base, dir, true, e)) return e->code;
    TRY(find_layout(m, e));
    m->changes = bump_alloc(&m->base.memory, m->base.n_slots * sizeof *m->changes);
    return PL_OK;
}

int merge_open(struct merge *m, const char *base, const char *adapter, struct error *e)
{
    memset(m, 0, sizeof *m);
    m->adapter.file.fd = -1;
    int rc = open_base(m, base, e);
    if (!rc) rc = adapter_folder_open(&m->adapter, adapter, e);
    if (!rc) rc = attach_all(m, e);
    if (rc) merge_close(m);
    return rc;
}

void merge_close(struct merge *m)
{
    model_files_close(&m->base);
    adapter_folder_close(&m->adapter);
    memset(m, 0, sizeof *m);
    m->adapter.file.fd = -1;
}

/* --- writing -------------------------------------------------------------------------------- */

enum { ROWS_BYTES = 16 << 20 };

/* A file that is being written. */
struct out_file {
    const char *path;
    int fd;
};

static int put(const struct out_file *o, const void *bytes, size_t n, struct error *e)
{
    if (!fd_write(o->fd, bytes, n)) return PL_OK;
    file_error(o->path, "write it", e);
    return e->code = PL_FAIL;
}

/* --- one tensor ----------------------------------------------------------------------------- */

/* The factors of a tensor [R,C] in f32, which gains B A; A NULL: no LoRA. The rows of a weight
 * [outputs,inputs] are outputs; of its transpose A is the adapter's B^T, and B its A^T. */
struct factors {
    float *A, *B;     /* [r,C], [R,r] */
    float *magnitude; /* DoRA: [R], of a transpose [C]; NULL: none */
    double *squares;  /* of a transpose with DoRA: [C], the sums of the merged columns' squares; else NULL */
    int64_t r;
    float scale;
};

/* Replaces x [rows,columns] by its transpose. */
static void transpose(float **x, int64_t rows, int64_t columns)
{
    float *to = mem_alloc((size_t)(rows * columns) * sizeof *to + 1);
    for (int64_t i = 0; i < rows * columns; i++) to[transposed_index(i, rows, columns)] = (*x)[i];
    mem_free(*x);
    *x = to;
}

static int read_factors(const struct merge *m, const struct merge_change *c, struct factors *to, struct error *e)
{
    *to = (struct factors){0};
    if (!c->A) return PL_OK;
    to->r = c->A->dims[0];
    to->scale = (float)adapter_scale(&m->adapter.config, c->A->module);
    TRY(adapter_folder_read_f32(&m->adapter, c->A, &to->A, e));
    TRY(adapter_folder_read_f32(&m->adapter, c->B, &to->B, e));
    if (c->magnitude) TRY(adapter_folder_read_f32(&m->adapter, c->magnitude, &to->magnitude, e));
    if (!c->transposed) return PL_OK;
    float *A = to->A;
    transpose(&A, to->r, c->A->dims[1]);
    transpose(&to->B, c->B->dims[0], to->r);
    to->A = to->B;
    to->B = A;
    if (c->magnitude) to->squares = mem_alloc((size_t)c->B->dims[0] * sizeof *to->squares);
    return PL_OK;
}

static void free_factors(struct factors *f)
{
    mem_free(f->A);
    mem_free(f->B);
    mem_free(f->magnitude);
    mem_free(f->squares);
}

/* Merges row `row` of the weight in place: w [C]; sum [C] is scratch. */
static void merge_row(const struct factors *f, int64_t row, int64_t C, float *w, float *sum)
{
    memset(sum, 0, (size_t)C * sizeof *sum);
    for (int64_t k = 0; k < f->r; k++) {
        const float b = f->B[row * f->r + k], *a = f->A + k * C;
        for (int64_t i = 0; i < C; i++) sum[i] += b * a[i];
    }
    for (int64_t i = 0; i < C; i++) w[i] += f->scale * sum[i];
    if (!f->magnitude || f->squares) return;
    double squares = 0;
    for (int64_t i = 0; i < C; i++) squares += (double)w[i] * w[i];
    const float factor = squares > 0 ? (float)(f->magnitude[row] / sqrt(squares)) : 0;
    for (int64_t i = 0; i < C; i++) w[i] *= factor;
}

static void merge_rows(const struct factors *f, int64_t first, int64_t rows, int64_t C, float *w)
{
#pragma omp parallel
    {
        float *sum = mem_alloc((size_t)C * sizeof *sum);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) merge_row(f, first + i, C, w + i * C, sum);
        mem_free(sum);
    }
}

/* Adds the squares of merged rows to those of their columns. */
static void add_squares(const struct factors *f, int64_t rows, int64_t C, const float *w)
{
    for (int64_t i = 0; i < rows * C; i++) f->squares[i % C] += (double)w[i] * w[i];
}

/* Multiplies the columns of merged rows by magnitude / norm. */
static void scale_columns(const struct factors *f, int64_t rows, int64_t C, float *w)
{
    for (int64_t i = 0; i < rows * C; i++) {
        const double squares = f->squares[i % C];
        w[i] *= squares > 0 ? (float)(f->magnitude[i % C] / sqrt(squares)) : 0;
    }
}

/* Returns the magnitude from which on a number is not finite when rounded to the dtype. */
static float too_large(enum dtype t) { return t == DT_F16 ? 65520.0f : t == DT_BF16 ? 0x1.ffp127f : INFINITY; }

/* Converts n elements to the base's dtype; an element that is not finite there is an error. */
static int round_to(const struct merge *m, const struct st_entry *t, int64_t at, const float *w, void *to, int64_t n,
                    struct error *e)
{
    const float most = too_large(t->dtype);
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) bad += !(fabsf(w[i]) < most);
    for (int64_t i = 0; bad && i < n; i++)
        if (!(fabsf(w[i]) < most))
            return error_set(e, PL_USAGE, "%s: element %lld of \"%.200s\" is %g when merged, which is not finite as "
                             "%s; the adapter is damaged, or its training diverged, or the base needs a wider dtype",
                             m->adapter.dir, (long long)(at + i), t->name, w[i], t->dtype_name);
    dtype_convert(to, t->dtype, w, DT_F32, n);
    return PL_OK;
}

/* Returns the number of elements that are handled at once: whole rows of C. */
static int64_t block_of(int64_t elements, int64_t C)
{
    int64_t rows = max_i64(1, ROWS_BYTES / 8 / max_i64(1, C));
    return min_i64(elements, rows * C);
}

/* Reads elements of W in f32: of the adapter's whole tensor, else of the base's tensor t of file
 * f. */
static int read_weight(const struct merge *m, const struct st_file *f, const struct st_entry *t,
                       const struct adapter_tensor *whole, int64_t at, int64_t n, void *bytes, float *w,
                       struct error *e)
{
    const enum dtype dtype = whole ? whole->dtype : t->dtype;
    const uint64_t size = dtype_size(dtype);
    int rc = whole ? adapter_folder_read(&m->adapter, whole, at, n, bytes, e)
                   : st_read(f, t, (uint64_t)at * size, (uint64_t)n * size, bytes, e);
    if (!rc) dtype_convert(w, DT_F32, bytes, dtype, n);
    return rc;
}

/* Writes the base's tensor t of file f with LoRA or a whole tensor of floats in another dtype. */
static int put_changed(const struct merge *m, const struct st_file *f, const struct st_entry *t,
                       const struct merge_change *c, const struct out_file *o, struct error *e)
{
    struct factors x;
    const int64_t C = c->A ? t->dims[1] : 1, block = block_of(t->elements, C);
    void *bytes = mem_alloc((size_t)block * 8 + 1);
    float *w = mem_alloc((size_t)block * sizeof *w + 1);
    int rc = read_factors(m, c, &x, e);
    for (int64_t at = 0, n; at < t->elements && x.squares && !rc; at += n) {
        n = min_i64(block, t->elements - at);
        rc = read_weight(m, f, t, c->whole, at, n, bytes, w, e);
        if (!rc) merge_rows(&x, at / C, n / C, C, w);
        if (!rc) add_squares(&x, n / C, C, w);
    }
    for (int64_t at = 0, n; at < t->elements && !rc; at += n) {
        n = min_i64(block, t->elements - at);
        rc = read_weight(m, f, t, c->whole, at, n, bytes, w, e);
        if (!rc && c->A) merge_rows(&x, at / C, n / C, C, w);
        if (!rc && x.squares) scale_columns(&x, n / C, C, w);
        if (!rc) rc = round_to(m, t, at, w, bytes, n, e);
        if (!rc) rc = put(o, bytes, (size_t)n * dtype_size(t->dtype), e);
    }
    free_factors(&x);
    mem_free(bytes);
    mem_free(w);
    return rc;
}

/* Writes the adapter's tensor, whose dtype is the base's. */
static int put_whole(const struct merge *m, const struct adapter_tensor *t, const struct out_file *o, struct error *e)
{
    const int64_t block = block_of(t->elements, 1);
    const size_t size = dtype_size(t->dtype);
    void *bytes = mem_alloc((size_t)block * size + 1);
    int rc = PL_OK;
    for (int64_t at = 0, n; at < t->elements && !rc; at += n) {
        n = min_i64(block, t->elements - at);
        rc = adapter_folder_read(&m->adapter, t, at, n, bytes, e);
        if (!rc) rc = put(o, bytes, (size_t)n * size, e);
    }
    mem_free(bytes);
    return rc;
}

static int put_copy(const struct st_file *f, const struct st_entry *t, const struct out_file *o, struct error *e)
{
    void *bytes = mem_alloc(min_u64(ROWS_BYTES, t->bytes) + 1);
    int rc = PL_OK;
    for (uint64_t at = 0, n; at < t->bytes && !rc; at += n) {
        n = min_u64(ROWS_BYTES, t->bytes - at);
        rc = st_read(f, t, at, n, bytes, e);
        if (!rc) rc = put(o, bytes, n, e);
    }
    mem_free(bytes);
    return rc;
}

/* Writes the base's tensor t of file f with its change, if it has one. */
static int put_tensor(const struct merge *m, const struct st_file *f, const struct st_entry *t,
                      const struct merge_change *c, const struct out_file *o, struct error *e)
{
    if (!c->A && !c->whole) return put_copy(f, t, o, e);
    if (!c->A && c->whole->dtype == t->dtype) return put_whole(m, c->whole, o, e);
    return put_changed(m, f, t, c, o, e);
}

static int put_head(const struct merge *m, const struct out_file *o, struct error *e)
{
    return put_tensor(m, &m->base.files[m->embedding->file], m->embedding->entry, &m->head_change, o, e);
}

/* --- one file ------------------------------------------------------------------------------- */

/* Reports whether the head of an untied model is added to this file. */
static bool gets_head(const struct merge *m, uint32_t file)
{
    return m->untied && !m->head && m->embedding->file == file;
}

static int read_header(const struct st_file *f, char **out, struct error *e)
{
    *out = mem_alloc(f->data_begin + 1);
    for (uint64_t at = 0; at < f->data_begin;) {
        ssize_t k = pread(f->fd, *out + at, f->data_begin - at, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            if (!k) errno = EIO; /* the file was truncated while it was open */
            mem_free(*out);
            *out = NULL;
            file_error(f->path, "read its header", e);
            return e->code = PL_FAIL;
        }
        at += (uint64_t)k;
    }
    return PL_OK;
}

/* Adds the head's entry to a header, before the brace that ends it: its data lies behind all
 * others. */
static void extend_header(const struct merge *m, const struct st_file *f, const char *header, struct text *out)
{
    const struct st_entry *t = m->embedding->entry;
    struct text entry = {0};
    struct json_writer w = {.out = &entry};
    size_t n = f->data_begin;
    while (header[--n] != '}') continue;
    json_begin_map(&w, NULL);
    json_begin_map(&w, m->head_name);
    json_put_string(&w, "dtype", t->dtype_name);
    json_begin_list(&w, "shape");
    for (int i = 0; i < t->rank; i++) json_put_int(&w, NULL, t->dims[i]);
    json_end(&w);
    json_begin_list(&w, "data_offsets");
    json_put_uint(&w, NULL, f->data_bytes);
    json_put_uint(&w, NULL, f->data_bytes + t->bytes);
    json_end(&w);
    json_end(&w);
    json_end(&w);
    text_append(out, header, n);
    text_printf(out, ", %s", entry.at + 1);
    while (out->n % 8) text_append(out, " ", 1);
    for (int i = 0; i < 8; i++) out->at[i] = (char)((uint64_t)(out->n - 8) >> (8 * i));
    text_free(&entry);
}

static int put_header(const struct merge *m, uint32_t file, const struct out_file *o, struct error *e)
{
    const struct st_file *f = &m->base.files[file];
    struct text longer = {0};
    char *header;
    int rc = read_header(f, &header, e);
    if (!rc && gets_head(m, file)) {
        extend_header(m, f, header, &longer);
        rc = put(o, longer.at, longer.n, e);
    } else if (!rc) rc = put(o, header, f->data_begin, e);
    text_free(&longer);
    mem_free(header);
    return rc;
}

static int put_file(const struct merge *m, uint32_t file, const struct out_file *o, struct progress *progress,
                    struct error *e)
{
    TRY(put_header(m, file, o, e));
    for (uint32_t i = 0; i < m->base.n_slots; i++) {
        const struct weight_slot *t = &m->base.slots[i];
        if (t->file != file) continue;
        if (m->untied && t == m->head) TRY(put_head(m, o, e));
        else TRY(put_tensor(m, &m->base.files[file], t->entry, &m->changes[i], o, e));
        progress_add(progress, 1);
    }
    return gets_head(m, file) ? put_head(m, o, e) : PL_OK;
}

static int write_file(const struct merge *m, uint32_t file, const char *dir, struct progress *progress, struct error *e)
{
    struct bump b = {0};
    struct out_file o = {.path = bump_format(&b, "%s/%s", dir, m->base.names[file])};
    o.fd = open(o.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = PL_OK;
    if (o.fd < 0) {
        file_error(o.path, "create it", e);
        rc = e->code = PL_FAIL;
    } else {
        rc = put_file(m, file, &o, progress, e);
        const bool failed = fsync(o.fd) | close(o.fd);
        if (!rc && failed) {
            file_error(o.path, "write it", e);
            rc = e->code = PL_FAIL;
        }
    }
    bump_free(&b);
    return rc;
}

/* --- the other files ------------------------------------------------------------------------ */

/* Writes config.json and the index of an untied model, which name the head. */
static int write_untied(const struct merge *m, const char *dir, struct error *e)
{
    struct bump b = {0};
    struct text config = {0}, list = {0};
    struct value *root = value_copy(&b, m->config), *index;
    const struct value *text = value_get(root, "text_config");
    if (text && text->kind == VALUE_MAP && value_get(text, "tie_word_embeddings"))
        value_put(&b, (struct value *)text, "tie_word_embeddings", value_bool(&b, false));
    value_put(&b, root, "tie_word_embeddings", value_bool(&b, false));
    json_write(root, 2, &config);
    text_printf(&config, "\n");
    int rc = file_write_atomic(bump_format(&b, "%s/config.json", dir), config.at, config.n, e);
    if (!rc && m->base.map && !m->head) {
        rc = json_read_file(bump_format(&b, "%s/%s", m->base.dir, MODEL_INDEX), 64 << 20, &b, &index, e);
        if (!rc) {
            struct value *map = (struct value *)value_get(index, "weight_map"),
                         *about = (struct value *)value_get(index, "metadata");
            const struct value *size = value_get(about, "total_size");
            value_put(&b, map, m->head_name, value_string(&b, m->base.names[m->embedding->file]));
            if (size && size->kind == VALUE_NUMBER && size->number >= 0)
                value_put(&b, about, "total_size", value_uint(&b, (uint64_t)size->number + m->embedding->entry->bytes));
            json_write(index, 2, &list);
            text_printf(&list, "\n");
            rc = file_write_atomic(bump_format(&b, "%s/%s", dir, MODEL_INDEX), list.at, list.n, e);
        }
    }
    text_free(&config);
    text_free(&list);
    bump_free(&b);
    return rc;
}

static int copy_others(const struct merge *m, const char *dir, struct error *e)
{
    struct bump b = {0};
    int rc = file_copy(bump_format(&b, "%s/config.json", m->base.dir), bump_format(&b, "%s/config.json", dir), e);
    bump_free(&b);
    return rc ? rc : model_files_copy_others(&m->base, m->base.dir, dir, NULL, e);
}

int merge_write(const struct merge *m, const char *dir, struct error *e)
{
    struct progress progress;
    int rc = PL_OK;
    progress_begin(&progress, "merging:", "tensors", m->base.n_slots);
    for (uint32_t i = 0; i < m->base.n_files && !rc; i++) rc = write_file(m, i, dir, &progress, e);
    progress_clear();
    if (!rc) rc = copy_others(m, dir, e);
    if (!rc && m->untied) rc = write_untied(m, dir, e);
    return rc ? rc : dir_sync(dir, e);
}
