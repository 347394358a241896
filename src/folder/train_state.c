/*
 * train_state.c: training state in a checkpoint (see train_state.h).
 *
 * Saving and loading use one list: the trained master weights in the order of parameters, then the
 * optimizer's storages in the order of the graph. A load therefore expects exactly what is saved.
 *
 * Invariant: save, load, save gives the same bytes.
 */
#include "folder/train_state.h"

#include <inttypes.h>
#include <math.h>

#include "base/coding.h"
#include "graph/stored.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "folder/transfer.h"

enum { STATE_FORMAT = 1, JSON_MOST = 1 << 20, PATH_ROOM = 4096 };

/* One tensor of the state. */
struct item {
    const char *name;
    id tensor;
    const struct param *param; /* of a master weight; NULL: optimizer state */
};

struct list {
    VEC(struct item) items;
    struct bump memory;        /* owns the names */
};

/* --- the tensors of the state ---------------------------------------------------------- */

static void list_masters(struct list *l, const struct graph *g)
{
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if ((p->frozen && !p->running) || storage_of(g, p->tensor)->kind == KIND_CONST) continue;
        const char *name = bump_format(&l->memory, "master.%s", graph_name(g, tensor_at(g, p->tensor)->name));
        vec_push(&l->items, ((struct item){name, p->master, p}));
    }
}

/* Lists the optimizer state. A storage has several tensors, one for each op that updates it in
 * place; the one without a producer represents the storage, and that of the first part of a divided
 * weight represents all parts. */
static void list_optimizer(struct list *l, const struct graph *g)
{
    bool *seen = mem_alloc(g->storages.n);
    for (id t = 1; t < g->tensors.n; t++) {
        const struct tensor *x = tensor_at(g, t);
        const struct storage *s = &g->storages.at[x->storage];
        if (s->kind != KIND_STATE || x->node || seen[x->storage] || s->part) continue;
        CHECK(s->shard || s->division || stored_bytes(g, x) == s->bytes, "%s is a part of its storage",
              graph_name(g, x->name));
        seen[x->storage] = true;
        vec_push(&l->items, ((struct item){graph_name(g, s->name), t, NULL}));
    }
    mem_free(seen);
}

static void list_init(struct list *l, const struct graph *g)
{
    memset(l, 0, sizeof *l);
    list_masters(l, g);
    list_optimizer(l, g);
}

static void list_free(struct list *l)
{
    vec_free(&l->items);
    bump_free(&l->memory);
}

static int path_print(char out[PATH_ROOM], const char *dir, const char *name, struct error *e)
{
    int n = snprintf(out, PATH_ROOM, "%s/%s", dir, name);
    return n < PATH_ROOM ? PL_OK
                         : error_set(e, PL_USAGE, "a path of %d bytes, at most %d: %.200s...", n, PATH_ROOM - 1, out);
}

/* --- saving ------------------------------------------------------------------------------ */

/* Extends *crc by the bytes that it writes. */
static int write_item(struct transfer *x, const struct graph *g, const struct item *i, struct st_writer *out,
                      uint32_t *crc, struct error *e)
{
    const struct tensor *t = tensor_at(g, i->tensor);
    int64_t elements = tensor_elements(t);
    for (int64_t at = 0; at < elements; at += x->room) {
        int64_t n = min_i64(x->room, elements - at);
        const void *data;
        if (transfer_get(x, i->tensor, t->dtype, at, n, &data, NULL, e)) return error_prepend(e, "saving %s", i->name);
        if (st_write_bytes(out, data, (uint64_t)n * dtype_size(t->dtype), e)) return e->code;
        *crc = crc32c(*crc, data, (size_t)n * dtype_size(t->dtype));
    }
    return PL_OK;
}

/* Begins the tensors' file. It holds the step too, so that files of different checkpoints are not
 * combined. */
static int begin_tensors(struct st_writer *out, const char *path, const struct list *l, const struct graph *g,
                         uint64_t step, struct error *e)
{
    struct st_spec *specs = mem_alloc(l->items.n * sizeof *specs);
    char digits[24];
    snprintf(digits, sizeof digits, "%" PRIu64, step);
    struct st_pair metadata[] = {{"format", "pt"}, {"step", digits}};
    for (uint32_t i = 0; i < l->items.n; i++) {
        const struct tensor *t = tensor_at(g, l->items.at[i].tensor);
        specs[i] = (struct st_spec){l->items.at[i].name, t->dtype, t->rank, t->dim};
    }
    int rc = st_write_begin(out, path, specs, l->items.n, metadata, COUNT(metadata), e);
    mem_free(specs);
    return rc;
}

static int save_tensors(const char *path, const struct list *l, uint64_t step, struct transfer *x, uint32_t *crc,
                        struct error *e)
{
    const struct graph *g = x->tape->graph;
    struct st_writer out;
    int rc = PL_OK;
    TRY(begin_tensors(&out, path, l, g, step, e));
    for (uint32_t i = 0; i < l->items.n && !rc; i++) rc = write_item(x, g, &l->items.at[i], &out, crc, e);
    return st_write_finish(&out, rc, e);
}

/* Computes the checksum of state.json's numbers, of which one is the checksum of the tensors. */
static uint32_t state_crc(const struct train_state *s, uint32_t tensors)
{
    uint32_t scale;
    memcpy(&scale, &s->scale, sizeof scale);
    const uint64_t all[] = {s->step,  s->adam_t,  s->position, s->seed,       s->broken,   s->data,
                            s->model, s->skipped, scale,       s->good_steps, s->in_a_row, tensors};
    return crc32c(0, all, sizeof all);
}

static void put_hex(struct json_writer *j, const char *key, int digits, uint64_t x)
{
    char text[24];
    snprintf(text, sizeof text, "%0*" PRIx64, digits, x);
    json_put_string(j, key, text);
}

/* Hashes are hexadecimal text, because most JSON readers keep only 53 bits of a number. */
static int save_json(const char *path, const struct train_state *s, uint32_t tensors, struct error *e)
{
    struct text out = {0};
    struct json_writer j = {.out = &out, .indent = 2};
    json_begin_map(&j, NULL);
    json_put_int(&j, "format", STATE_FORMAT);
    json_put_uint(&j, "step", s->step);
    json_put_uint(&j, "adam_t", s->adam_t);
    json_put_uint(&j, "position", s->position);
    json_put_uint(&j, "seed", s->seed);
    json_put_uint(&j, "skipped", s->skipped);
    if (s->broken) json_put_uint(&j, "broken", s->broken);
    if (s->scale > 0) {
        json_put_number(&j, "loss_scale", s->scale);
        json_put_uint(&j, "good_steps", s->good_steps);
        json_put_uint(&j, "skipped_in_a_row", s->in_a_row);
    }
    if (s->data) put_hex(&j, "data", 16, s->data);
    if (s->model) put_hex(&j, "model", 16, s->model);
    put_hex(&j, "tensors_crc32c", 8, tensors);
    put_hex(&j, "crc32c", 8, state_crc(s, tensors));
    json_end(&j);
    text_append(&out, "\n", 1);
    return file_write_text(PL_OK, path, &out, e);
}

int state_save(const char *dir, const struct train_state *s, const struct graph *g, struct device *d,
               const struct tape *t, void *staging, uint64_t staging_bytes, struct error *e)
{
    struct transfer x;
    struct list l;
    char path[PATH_ROOM];
    uint32_t crc = 0;
    CHECK(t->graph == g);
    transfer_init(&x, d, t, staging, staging_bytes);
    list_init(&l, g);
    int rc = path_print(path, dir, "state.safetensors", e);
    if (!rc) rc = save_tensors(path, &l, s->step, &x, &crc, e);
    if (!rc) rc = path_print(path, dir, "state.json", e);
    if (!rc) rc = save_json(path, s, crc, e);
    list_free(&l);
    return rc;
}

/* --- loading ------------------------------------------------------------------------------ */

/* Reads the members of an f16 run; all three are present or none. */
static int json_get_scale(const struct value *root, struct train_state *s, struct error *e)
{
    const struct value *scale = value_get(root, "loss_scale");
    double x = 0;
    if (!scale) return PL_OK;
    if (value_as_number(scale, "loss_scale", &x, e)) return e->code;
    if (!(x > 0) || !isfinite((float)x))
        return error_set(e, PL_USAGE, "loss_scale is %g; expected a positive number", x);
    s->scale = (float)x;
    if (value_as_uint(value_get(root, "good_steps"), "good_steps", &s->good_steps, e)) return e->code;
    return value_as_uint(value_get(root, "skipped_in_a_row"), "skipped_in_a_row", &s->in_a_row, e);
}

/* Reads a member of hexadecimal text; *to is unchanged if there is none. */
static int json_get_hex(const struct value *root, const char *key, int digits, uint64_t *to, struct error *e)
{
    const struct value *v = value_get(root, key);
    if (!v) return PL_OK;
    if (v->kind != VALUE_STRING || strlen(v->text) != (size_t)digits ||
        strspn(v->text, "0123456789abcdef") != (size_t)digits)
        return error_set(e, PL_USAGE, "%s is not %d hexadecimal digits", key, digits);
    *to = strtoull(v->text, NULL, 16);
    return PL_OK;
}

/* Reads and checks the checksums. *tensors is that of the tensors; UINT64_MAX: the state of an
 * older program, without checksums. */
static int json_get_checksums(const struct value *root, const struct train_state *s, uint64_t *tensors, struct error *e)
{
    uint64_t crc = UINT64_MAX;
    *tensors = UINT64_MAX;
    if (json_get_hex(root, "tensors_crc32c", 8, tensors, e) || json_get_hex(root, "crc32c", 8, &crc, e)) return e->code;
    if (crc == UINT64_MAX && *tensors == UINT64_MAX) return PL_OK;
    if (crc != state_crc(s, (uint32_t)*tensors)) return error_set(e, PL_USAGE, "it is damaged: the checksum is wrong");
    return PL_OK;
}

static int json_get(const struct value *root, struct train_state *s, uint64_t *tensors, struct error *e)
{
    uint64_t format = 0;
    const struct {
        const char *key;
        uint64_t *to;
    } numbers[] = {{"format", &format}, {"step", &s->step}, {"adam_t", &s->adam_t}, {"position", &s->position},
                   {"seed", &s->seed},  {"skipped", &s->skipped}};
    if (value_as_map(root, "the state", e)) return e->code;
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (value_as_uint(value_get(root, numbers[i].key), numbers[i].key, numbers[i].to, e)) return e->code;
    const struct value *broken = value_get(root, "broken");
    if (broken && value_as_uint(broken, "broken", &s->broken, e)) return e->code;
    if (json_get_scale(root, s, e)) return e->code;
    if (json_get_hex(root, "data", 16, &s->data, e) || json_get_hex(root, "model", 16, &s->model, e)) return e->code;
    if (format != STATE_FORMAT)
        return error_set(e, PL_USAGE,
                         "format is %" PRIu64 "; this program reads format %d: resume with the program that wrote it",
                         format, STATE_FORMAT);
    return json_get_checksums(root, s, tensors, e);
}

static int read_json(const char *dir, struct train_state *s, uint64_t *tensors, struct error *e)
{
    struct bump memory = {0};
    struct value *root;
    char path[PATH_ROOM];
    *s = (struct train_state){0};
    int rc = path_print(path, dir, "state.json", e);
    if (!rc) rc = json_read_file(path, JSON_MOST, &memory, &root, e);
    if (!rc && json_get(root, s, tensors, e)) rc = error_prepend(e, "%s", path);
    bump_free(&memory);
    return rc;
}

int state_read(const char *dir, struct train_state *s, struct error *e)
{
    uint64_t tensors;
    return read_json(dir, s, &tensors, e);
}

static char *shape_print(const char *type, int rank, const int64_t *dims, char out[160])
{
    int n = snprintf(out, 160, "%.20s[", type);
    for (int i = 0; i < rank && n < 130; i++)
        n += snprintf(out + n, 160 - n, "%s%lld", i ? "," : "", (long long)dims[i]);
    snprintf(out + n, 160 - n, "]");
    return out;
}

static int check_item(const struct st_file *f, const struct graph *g, const struct item *i, struct error *e)
{
    const struct tensor *t = tensor_at(g, i->tensor);
    const struct st_entry *have = st_find(f, i->name);
    char found[160], expected[160];
    if (!have)
        return error_set(e, PL_USAGE, "%s: no tensor \"%.200s\", which this run trains; were the model or model.freeze "
                         "changed since?", f->path, i->name);
    /* A weight is converted between float dtypes, with or without a master weight; optimizer
     * state is not. */
    bool type =
        have->dtype == (enum dtype)t->dtype || (i->param && dtype_is_float(have->dtype) && dtype_is_float(t->dtype));
    if (!type || have->rank != t->rank || memcmp(have->dims, t->dim, (size_t)t->rank * sizeof *t->dim))
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is %s; this run needs %s", f->path, i->name,
                         shape_print(have->dtype_name, have->rank, have->dims, found),
                         shape_print(dtype_table[t->dtype].safetensors, t->rank, t->dim, expected));
    return PL_OK;
}

/* Returns the name of a tensor of the file that is not in the list. There must be one. */
static const char *find_unexpected(const struct st_file *f, const struct list *l)
{
    for (uint32_t k = 0; k < f->n_entries; k++) {
        uint32_t i = 0;
        while (i < l->items.n && strcmp(f->entries[k].name, l->items.at[i].name)) i++;
        if (i == l->items.n) return f->entries[k].name;
    }
    return "";
}

static int check_file(const struct st_file *f, const struct list *l, const struct graph *g, uint64_t step,
                      struct error *e)
{
    char digits[24];
    const char *found = st_metadata(f, "step");
    snprintf(digits, sizeof digits, "%" PRIu64, step);
    if (!found || strcmp(found, digits))
        return error_set(e, PL_USAGE,
                         "%s: is of step %.40s, but state.json is of step %s; the files are of different checkpoints",
                         f->path, found ? found : "(none)", digits);
    for (uint32_t i = 0; i < l->items.n; i++)
        if (check_item(f, g, &l->items.at[i], e)) return e->code;
    if (f->n_entries != l->items.n)
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is not trained by this run; were the model or "
                         "model.freeze changed since?", f->path, find_unexpected(f, l));
    return PL_OK;
}

/* Reads the data of the whole file and compares its checksum. */
static int check_data(const struct st_file *f, struct transfer *x, uint64_t expected, struct error *e)
{
    uint32_t crc = 0;
    if (expected == UINT64_MAX) return PL_OK;
    for (uint32_t i = 0; i < f->n_entries; i++)
        for (uint64_t at = 0, n; at < f->entries[i].bytes; at += n) {
            n = min_u64(x->bytes, f->entries[i].bytes - at);
            if (st_read(f, &f->entries[i], at, n, x->first, e)) return e->code;
            crc = crc32c(crc, x->first, n);
        }
    return crc == expected ? PL_OK : error_set(e, PL_USAGE, "%s: it is damaged: the checksum is wrong", f->path);
}

static int read_item(struct transfer *x, const struct st_file *f, const struct item *i, struct error *e)
{
    const struct st_entry *t = st_find(f, i->name);
    uint32_t size = dtype_size(t->dtype);
    for (int64_t at = 0; at < t->elements; at += x->room) {
        int64_t n = min_i64(x->room, t->elements - at);
        struct bad bad = {.index = -1};
        if (st_read(f, t, (uint64_t)at * size, (uint64_t)n * size, x->first, e)) return e->code;
        int rc = i->param ? transfer_put(x, i->param, t->dtype, at, n, &bad, e)
                          : transfer_write(x, i->tensor, at, n, x->first, e);
        if (rc) return error_prepend(e, "loading %s", i->name);
        if (bad.index >= 0)
            return error_set(e, PL_USAGE, "%s: tensor \"%.200s\": element %lld is %g as %s; expected finite numbers; "
                             "resume from an earlier checkpoint", f->path, i->name, (long long)bad.index, bad.value,
                             dtype_name(bad.as));
    }
    return PL_OK;
}

int state_load(const char *dir, struct train_state *s, const struct graph *g, struct device *d,
               const struct tape *t, void *staging, uint64_t staging_bytes, struct error *e)
{
    struct transfer x;
    struct list l;
    struct st_file f;
    char path[PATH_ROOM];
    CHECK(t->graph == g);
    transfer_init(&x, d, t, staging, staging_bytes);
    uint64_t tensors;
    if (read_json(dir, s, &tensors, e) || path_print(path, dir, "state.safetensors", e) || st_open(path, &f, e))
        return e->code;
    list_init(&l, g);
    int rc = check_file(&f, &l, g, s->step, e);
    if (!rc) rc = check_data(&f, &x, tensors, e);
    x.spreads = transfer_has_ranks(&x);
    for (uint32_t i = 0; !rc && i < l.items.n; i++) rc = read_item(&x, &f, &l.items.at[i], e);
    list_free(&l);
    st_close(&f);
    return rc;
}

/* --- a new run -------------------------------------------------------------------------------- */

int state_reset(const struct graph *g, struct device *d, const struct tape *t, void *staging, uint64_t staging_bytes,
                struct error *e)
{
    struct transfer x;
    struct list l = {0};
    int rc = PL_OK;
    CHECK(t->graph == g);
    transfer_init(&x, d, t, staging, staging_bytes);
    memset(x.first, 0, staging_bytes / 2);
    list_optimizer(&l, g);
    for (uint32_t i = 0; !rc && i < l.items.n; i++) {
        int64_t elements = tensor_elements(tensor_at(g, l.items.at[i].tensor));
        for (int64_t at = 0; !rc && at < elements; at += x.room)
            rc = transfer_write(&x, l.items.at[i].tensor, at, min_i64(x.room, elements - at), x.first, e);
    }
    list_free(&l);
    return rc;
}

uint64_t state_bytes(const struct graph *g)
{
    /* Upper bounds of a header that is not written yet: braces, keys, dtype, and the digits of
     * each number. */
    enum { HEADER_ENTRY = 128 + 21 * (MAX_RANK + 2), FIXED = 8192 };
    struct list l;
    uint64_t bytes = FIXED;
    list_init(&l, g);
    for (uint32_t i = 0; i < l.items.n; i++)
        bytes += stored_bytes(g, tensor_at(g, l.items.at[i].tensor)) + 6 * strlen(l.items.at[i].name) + HEADER_ENTRY;
    list_free(&l);
    return bytes;
}
