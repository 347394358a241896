/*
 * weights_save.c: writing model folders (see weights.h).
 *
 *     source file   [ length | header | frozen | trained | extra | ... ]
 *     written file  [  the same bytes | same   | master  | same  | ... ]
 *                                                in the file's dtype
 *
 * Invariant: a written file has the size of its source, and each byte outside of the trained
 * tensors is the source's byte. Running statistics that the step updates count as trained.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graph/stored.h"
#include "io/file.h"
#include "folder/transfer.h"
#include "folder/weights.h"

enum { PATH_ROOM = 4096 };

static int path_print(char out[PATH_ROOM], const char *dir, const char *name, struct error *e)
{
    int n = snprintf(out, PATH_ROOM, "%s/%s", dir, name);
    return n < PATH_ROOM ? PL_OK
                         : error_set(e, PL_USAGE, "a path of %d bytes, at most %d: %.200s...", n, PATH_ROOM - 1, out);
}

/* --- tensors -------------------------------------------------------------------------- */

/* Appends the values of a parameter whose storage has their transpose; in memory, all at once. */
static int write_transposed(struct transfer *x, const struct graph *g, const struct param *p, enum dtype to,
                            struct st_writer *out, struct error *e)
{
    const struct tensor *t = tensor_at(g, p->master);
    const int64_t elements = tensor_elements(t);
    const size_t size = dtype_size(to);
    char *all = mem_alloc((size_t)elements * size);
    int rc = PL_OK;
    for (int64_t at = 0; at < elements && !rc; at += x->room) {
        const int64_t n = min_i64(x->room, elements - at);
        const void *data;
        rc = transfer_get(x, p->master, to, at, n, &data, NULL, e);
        for (int64_t k = 0; k < n && !rc; k++)
            memcpy(all + (size_t)transposed_index(at + k, t->dim[1], t->dim[0]) * size,
                   (const char *)data + (size_t)k * size, size);
    }
    if (!rc) rc = st_write_bytes(out, all, (uint64_t)elements * size, e);
    mem_free(all);
    return rc;
}

/* Appends elements [first, end) of the master weights in dtype `to` to the file. */
static int write_part(struct transfer *x, const struct graph *g, const struct param *p, int64_t first, int64_t end,
                      enum dtype to, struct st_writer *out, struct error *e)
{
    for (int64_t at = first; at < end; at += x->room) {
        int64_t n = min_i64(x->room, end - at);
        const void *data;
        struct bad bad;
        if (transfer_get(x, p->master, to, at, n, &data, &bad, e))
            return error_prepend(e, "saving %s", weight_name(g, p));
        if (bad.index >= 0)
            return error_set(e, PL_FAIL, "%s: not saved: element %lld of the trained tensor %s is %g, not finite as "
                             "%s; lower the learning rate, or convert the model that the run starts from to a wider "
                             "dtype", out->path, (long long)bad.index, weight_name(g, p), bad.value,
                             dtype_table[to].safetensors);
        if (st_write_bytes(out, data, (uint64_t)n * dtype_size(to), e)) return e->code;
    }
    return PL_OK;
}

static int write_trained(struct transfer *x, const struct graph *g, const struct param *p, enum dtype to,
                         struct st_writer *out, struct error *e)
{
    if (stored_transposed(g, p)) return write_transposed(x, g, p, to, out, e);
    return write_part(x, g, p, 0, tensor_elements(tensor_at(g, p->master)), to, out, e);
}

static int copy_tensor(struct transfer *x, const struct st_file *f, const struct st_entry *t, struct st_writer *out,
                       struct error *e)
{
    for (uint64_t at = 0; at < t->bytes; at += x->bytes) {
        uint64_t n = t->bytes - at < x->bytes ? t->bytes - at : x->bytes;
        if (st_read(f, t, at, n, x->first, e) || st_write_bytes(out, x->first, n, e)) return e->code;
    }
    return PL_OK;
}

/* --- copying a file ------------------------------------------------------------------------ */

/* Copies the length word and the header. Staging may be smaller than the header. */
static int copy_header(struct transfer *x, const struct st_file *f, struct st_writer *out, struct error *e)
{
    for (uint64_t at = 0; at < f->data_begin;) {
        uint64_t n = f->data_begin - at < x->bytes ? f->data_begin - at : x->bytes;
        ssize_t k = pread(f->fd, x->first, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            if (!k) errno = EIO; /* the file was truncated while it was open */
            file_error(f->path, "read its header", e);
            return e->code = PL_FAIL;
        }
        if (st_write_bytes(out, x->first, (uint64_t)k, e)) return e->code;
        at += (uint64_t)k;
    }
    return PL_OK;
}

/* Opens a writer over the whole file, header included: st_write_bytes counts, st_write_end checks
 * and syncs. The disk space is reserved at once, so that a full disk shows before hours of writing;
 * a file system that cannot reserve space is not an error. */
static int open_raw(struct st_writer *out, const char *path, uint64_t bytes, struct error *e)
{
    *out = (struct st_writer){.path = mem_string(path),
                              .fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), .wanted = bytes};
    bool failed = out->fd < 0;
    out->is_regular = !failed;
    if (!failed && fallocate(out->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes))
        failed = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
    if (!failed) return PL_OK;
    char doing[64];
    snprintf(doing, sizeof doing, "write %llu bytes", (unsigned long long)bytes);
    file_error(path, doing, e);
    st_write_abort(out);
    return e->code = PL_FAIL;
}

static int save_slots(const struct weights *w, const struct graph *g, struct transfer *x, uint32_t file,
                      struct st_writer *out, struct error *e)
{
    for (uint32_t i = 0; i < w->in.n_slots; i++) {
        const struct weight_slot *s = &w->in.slots[i];
        if (s->file != file) continue;
        const struct param *p = s->param ? &g->params.at[s->param - 1] : NULL;
        const int64_t first = s->number * s->entry->elements;
        if (p && (!p->frozen || p->running))
            TRY(write_part(x, g, p, first, first + s->entry->elements, s->entry->dtype, out, e));
        else TRY(copy_tensor(x, &w->in.files[file], s->entry, out, e));
    }
    return PL_OK;
}

static int save_file(const struct weights *w, const struct graph *g, struct transfer *x, uint32_t file, const char *dir,
                     struct error *e)
{
    const struct st_file *f = &w->in.files[file];
    struct st_writer out;
    char path[PATH_ROOM];
    if (path_print(path, dir, w->in.names[file], e) || open_raw(&out, path, f->data_begin + f->data_bytes, e))
        return e->code;
    int rc = copy_header(x, f, &out, e);
    if (!rc) rc = save_slots(w, g, x, file, &out, e);
    return st_write_finish(&out, rc, e);
}

/* --- the folder of a preset, or of a model put together from parts ---------------------------- */

/* Returns the tensor of a part's file that a parameter was read from; NULL: none. */
static const struct weight_slot *slot_of(const struct weights *from, uint32_t param)
{
    return from ? &from->in.slots[from->source[param] - 1] : NULL;
}

static enum dtype dtype_to_save(const struct weights *w, uint32_t param)
{
    const struct weight_slot *s = w->adapter ? NULL : slot_of(weights_of(w, param), param);
    return s ? s->entry->dtype : DT_F32;
}

/* Reports whether a parameter is saved: with the model, or with its adapter. */
static bool is_saved(const struct weights *w, const struct graph *g, const struct param *p)
{
    return !weight_is_constant(g, p) && (!w->adapter || weight_is_adapted(p));
}

static int save_new_tensor(const struct weights *w, const struct graph *g, struct transfer *x, uint32_t param,
                           struct st_writer *out, struct error *e)
{
    const struct param *p = &g->params.at[param];
    const struct weights *from = w->adapter ? NULL : weights_of(w, param);
    const struct weight_slot *s = slot_of(from, param);
    if (!s || !p->frozen || p->running) return write_trained(x, g, p, s ? s->entry->dtype : DT_F32, out, e);
    for (; s; s = s->next ? &from->in.slots[s->next - 1] : NULL)
        TRY(copy_tensor(x, &from->in.files[s->file], s->entry, out, e));
    return PL_OK;
}

typedef VEC(struct st_spec) spec_list;

/* Writes a file of the tensors of a new model or adapter. */
static int save_new(const struct weights *w, const struct graph *g, struct transfer *x, const char *dir,
                    const char *file, struct error *e)
{
    static const struct st_pair format = {"format", "pt"}; /* transformers requires it */
    struct bump names = {0};
    spec_list specs = {0};
    struct st_writer out;
    char path[PATH_ROOM], room[1024];
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if (!is_saved(w, g, p)) continue;
        const char *name = w->adapter ? weights_name_in_adapter(w->adapter, g, p, room) : weight_name(g, p);
        for (int64_t k = 0; k < weight_tensors(g, p); k++)
            vec_push(&specs, weight_spec(g, p, name, k, dtype_to_save(w, i), &names));
    }
    int rc = path_print(path, dir, file, e);
    if (!rc) rc = st_write_begin(&out, path, specs.at, specs.n, &format, 1, e);
    vec_free(&specs);
    bump_free(&names);
    if (rc) return rc;
    for (uint32_t i = 0; i < g->params.n && !rc; i++)
        if (is_saved(w, g, &g->params.at[i])) rc = save_new_tensor(w, g, x, i, &out, e);
    return st_write_finish(&out, rc, e);
}

static bool matches(const char *name, const char *const *patterns, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (pattern_match(patterns[i], name) && !text_ends_with(name, ".index.json")) return true;
    return false;
}

/* Reports whether a tokenizer, its chat template or the ends of an answer are loaded from the
 * file. */
static bool is_text_file(const char *name)
{
    static const char *const patterns[] =
        {"*token*", "vocab*", "merges.txt", "*.tiktoken", "spiece.model", "chat_template*", "generation_config.json"};
    return matches(name, patterns, COUNT(patterns));
}

static bool is_image_file(const char *name)
{
    static const char *const patterns[] = {"*processor_config.json"};
    return matches(name, patterns, COUNT(patterns));
}

/* Copies what a part gives the folder of a model that was put together: one that reads text its
 * tokenizer, and a vision tower its processor. A model of masks, beside which another one reads the
 * text, gives none. */
static int copy_files_of(const struct weights *part, const struct model *m, const char *dir, struct error *e)
{
    if (!*part->in.dir) return PL_OK;
    if (m->vocabulary) TRY(model_files_copy_others(&part->in, part->in.dir, dir, is_text_file, e));
    if (!model_port(m, "pixel_values") || model_port(m, "input_points")) return PL_OK;
    return model_files_copy_others(&part->in, part->in.dir, dir, is_image_file, e);
}

static const struct weights *part_named(const struct weights *w, const char *name)
{
    for (uint32_t i = 0; i < w->n_parts; i++)
        if (!strcmp(w->parts[i].part, name)) return &w->parts[i];
    return NULL;
}

/* Copies the files of the parts, those of a tower in a third folder first. */
static int copy_files_of_parts(const struct weights *w, const struct model *m, const char *dir, struct error *e)
{
    for (int i = 0; i < m->n_parts; i++) {
        const struct part *p = &m->parts[i];
        char name[PATH_ROOM];
        for (int k = 0; k < p->model.n_parts; k++) {
            snprintf(name, sizeof name, "%s.%s", p->name, p->model.parts[k].name);
            const struct weights *inner = part_named(w, name);
            if (inner) TRY(copy_files_of(inner, &p->model.parts[k].model, dir, e));
        }
        const struct weights *part = part_named(w, p->name);
        if (part) TRY(copy_files_of(part, &p->model, dir, e));
    }
    return PL_OK;
}

/* --- the folder of an adapter ----------------------------------------------------------------- */

/* Reports whether PEFT saves the file beside an adapter. */
static bool is_processor_file(const char *name)
{
    return strcmp(name, "generation_config.json") && (is_text_file(name) || is_image_file(name));
}

/* Saves the adapter. One from a folder is written back as it was, but for the trained values. */
static int save_adapter(const struct weights *w, const struct graph *g, struct transfer *x, const char *dir,
                        struct error *e)
{
    if (!*w->adapter->in.dir) {
        char path[PATH_ROOM];
        TRY(save_new(w, g, x, dir, "adapter_model.safetensors", e));
        TRY(path_print(path, dir, "adapter_config.json", e));
        TRY(file_write_atomic(path, w->adapter_config, strlen(w->adapter_config), e));
        return *w->in.dir ? model_files_copy_others(&w->in, w->in.dir, dir, is_processor_file, e) : PL_OK;
    }
    for (uint32_t i = 0; i < w->adapter->in.n_files; i++) TRY(save_file(w->adapter, g, x, i, dir, e));
    return model_files_copy_others(&w->adapter->in, w->adapter->in.dir, dir, NULL, e);
}

/* Reports whether a part that has a folder of its own beside the model's is trained, or modules are
 * in no folder yet. */
static bool trains_outside(const struct weights *w, const struct graph *g)
{
    if (w->n_fresh) return true;
    for (uint32_t i = 0; i < g->params.n && w->n_outside; i++)
        if (weights_of(w, i) && weights_of(w, i) != w && (!g->params.at[i].frozen || g->params.at[i].running))
            return true;
    return false;
}

static bool is_no_index(const char *name) { return !text_ends_with(name, ".index.json"); }

/* --- the folder ------------------------------------------------------------------------------- */

int weights_save(struct weights *w, const struct model *m, const struct graph *g, struct device *d,
                 const struct tape *t, void *staging, uint64_t staging_bytes, const char *dir, struct error *e)
{
    struct transfer x;
    char path[PATH_ROOM];
    transfer_init(&x, d, t, staging, staging_bytes);
    CHECK(w->n_params == g->params.n && t->graph == g, "weights were opened for another graph");
    if (w->adapter) return save_adapter(w, g, &x, dir, e);
    TRY(path_print(path, dir, "config.json", e));
    if (m->config_text) TRY(file_write_atomic(path, m->config_text, strlen(m->config_text), e));
    const bool outside = trains_outside(w, g);
    if (!*w->in.dir || outside) TRY(save_new(w, g, &x, dir, "model.safetensors", e));
    if (!*w->in.dir) return copy_files_of_parts(w, m, dir, e);
    for (uint32_t i = 0; !outside && i < w->in.n_files; i++) TRY(save_file(w, g, &x, i, dir, e));
    return model_files_copy_others(&w->in, w->in.dir, dir, outside ? is_no_index : NULL, e);
}

uint64_t weights_bytes(const struct weights *w, const struct graph *g)
{
    /* Upper bounds of a header that is not written yet: braces, keys, dtype, and the digits of
     * each number. */
    enum { HEADER_ENTRY = 128 + 21 * (MAX_RANK + 2), HEADER_FIXED = 4096 };
    if (w->adapter && *w->adapter->in.dir) return weights_bytes(w->adapter, g);
    uint64_t bytes = w->other_bytes;
    for (uint32_t i = 0; i < w->n_parts && !*w->in.dir; i++) bytes += w->parts[i].other_bytes;
    for (uint32_t i = 0; i < w->in.n_files && !w->adapter; i++)
        bytes += w->in.files[i].data_begin + w->in.files[i].data_bytes;
    if (*w->in.dir && !w->adapter && !trains_outside(w, g)) return bytes;
    if (w->adapter) bytes += strlen(w->adapter_config);
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if (!is_saved(w, g, p)) continue;
        const enum dtype t = dtype_to_save(w, i);
        const struct tensor *m = tensor_at(g, p->master);
        bytes +=
            stored_file_bytes(&stored_forms[p->form], (struct stored_shape){t, tensor_elements(m), tensor_last(m)}) +
            (uint64_t)weight_tensors(g, p) * (6 * strlen(weight_name(g, p)) + HEADER_ENTRY);
    }
    return bytes + HEADER_FIXED;
}
