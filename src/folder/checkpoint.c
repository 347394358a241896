/*
 * checkpoint.c: see new_folder.h.
 */

#include "base/progress.h"
#include "folder/new_folder.h"
#include "io/file.h"
#include "io/pth.h"
#include "io/safetensors.h"
#include "models/masks.h"
#include "models/model.h"
#include "models/sam_names.h"

enum { CHUNK = 4 << 20 }; /* bytes of a tensor per copy */

static uint64_t bytes_of(const struct sam_tensor *t)
{
    uint64_t n = dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++) n *= (uint64_t)t->dim[i];
    return n;
}

static struct checkpoint_summary summarize(const struct sam_names *n, uint32_t tensors, uint32_t left_out)
{
    struct checkpoint_summary s = {.type = n->second ? "sam2" : n->type,
                                   .tensors = tensors,
                                   .left_out = left_out};
    for (uint32_t i = 0; i < n->found.n; i++) s.bytes += bytes_of(&n->found.at[i]);
    return s;
}

static int resolve(struct sam_names *n, struct error *e)
{
    return sam2_is(n) ? sam2_resolve(n, e) : sam_names_resolve(n, e);
}

/* --- a checkpoint to a folder --------------------------------------------------------------- */

static int copy_tensor(struct st_writer *w, const struct pth_tensor *t, struct error *e)
{
    uint64_t bytes = (uint64_t)pth_elements(t) * dtype_size(t->dtype);
    void *row_major = mem_alloc(bytes);
    pth_read(t, row_major);
    int rc = st_write_bytes(w, row_major, bytes, e);
    mem_free(row_major);
    return rc;
}

/* Writes the tensors of a SAM checkpoint under their published names, then checks that what was
 * read of the file `from` is valid. */
static int write_weights(const struct pth *p, const char *from, const struct sam_names *n, const char *path,
                         struct error *e)
{
    static const struct st_pair format = {"format", "pt"};
    struct st_spec *specs = mem_alloc(n->parts.n * sizeof *specs);
    struct st_writer w;
    struct bump memory = {0};
    for (uint32_t i = 0; i < n->parts.n; i++) {
        const struct sam_part *part = &n->parts.at[i];
        const struct sam_tensor *t = part->from;
        int64_t *dim = bump_alloc(&memory, sizeof t->dim);
        memcpy(dim, t->dim, sizeof t->dim);
        if (part->joined) dim[0] *= part->joined;
        specs[i] = (struct st_spec){part->name, t->dtype, t->rank, dim};
    }
    int rc = st_write_begin(&w, path, specs, n->parts.n, &format, 1, e);
    bump_free(&memory);
    mem_free(specs);
    if (rc) return rc;
    struct progress progress;
    progress_begin(&progress, "writing", "tensors", n->parts.n);
    for (uint32_t i = 0; i < n->parts.n && !rc; i++, progress_add(&progress, 1))
        for (int k = 0; k < max_i64(1, n->parts.at[i].joined) && !rc; k++)
            rc = copy_tensor(&w, &p->tensors.at[n->parts.at[i].from[k].source], e);
    progress_clear();
    if (!rc) rc = pth_check(p, from, e);
    return st_write_finish(&w, rc, e);
}

/* What a folder is filled from. */
struct opened {
    struct pth checkpoint; /* at the path `from` */
    const char *from;
    struct sam_names names;
};

static int fill(void *of, const char *dir, struct error *e)
{
    struct opened *s = of;
    struct bump paths = {0};
    struct text config = {0}, processor = {0};
    if (s->names.second) {
        sam2_config_json(&s->names, &config);
        sam2_preprocessor_json(&processor);
    } else {
        sam_config_json(&s->names, &config);
        sam_preprocessor_json(&s->names, &processor);
    }
    int rc = write_weights(&s->checkpoint, s->from, &s->names, bump_format(&paths, "%s/model.safetensors", dir), e);
    if (!rc) rc = file_write_atomic(bump_format(&paths, "%s/config.json", dir), config.at, config.n, e);
    if (!rc)
        rc = file_write_atomic(bump_format(&paths, "%s/preprocessor_config.json", dir), processor.at, processor.n, e);
    text_free(&config);
    text_free(&processor);
    bump_free(&paths);
    return rc ? rc : dir_sync(dir, e);
}

int checkpoint_to_folder(const char *in, const char *out, struct checkpoint_summary *x, struct error *e)
{
    struct opened s = {.from = in};
    struct sam_names *n = &s.names;
    TRY(new_folder_check(out, e));
    TRY(pth_open(&s.checkpoint, in, e));
    for (uint32_t i = 0; i < s.checkpoint.tensors.n; i++) {
        const struct pth_tensor *t = &s.checkpoint.tensors.at[i];
        sam_names_add(n, t->name, t->dtype, t->rank, t->dim, i);
    }
    int rc = resolve(n, e);
    if (rc) error_prepend(e, "%s", in);
    else rc = new_folder_write(out, fill, &s, e);
    if (!rc) *x = summarize(n, n->parts.n, s.checkpoint.tensors.n - n->found.n + s.checkpoint.skipped);
    sam_names_free(n);
    pth_close(&s.checkpoint);
    return rc;
}

/* --- a folder to a checkpoint ----------------------------------------------------------------- */

/* All weight files of a folder. A tensor's index is file index * STRIDE + index in the file. */
struct weight_files {
    VEC(struct st_file) files;
};
enum { STRIDE = 1 << 20, FILES_MOST = 1 << 11 };

static void close_files(struct weight_files *s)
{
    for (uint32_t i = 0; i < s->files.n; i++) st_close(&s->files.at[i]);
    vec_free(&s->files);
}

static int add_file(struct weight_files *s, struct sam_names *n, const char *path, struct error *e)
{
    struct st_file f;
    int rc = s->files.n < FILES_MOST ? st_open(path, &f, e)
                                      : error_set(e, PL_USAGE, "%s: more than %d weight files", path, FILES_MOST);
    if (rc) return rc;
    vec_push(&s->files, f);
    if (f.n_entries > STRIDE) return error_set(e, PL_USAGE, "%s: more than %d tensors", path, STRIDE);
    for (uint32_t i = 0; i < f.n_entries; i++) {
        const struct st_entry *t = &f.entries[i];
        if (t->dtype == DT_NONE || t->rank > SAM_RANK)
            return error_set(e, PL_USAGE,
                             "%s: tensor %s has dtype %s and %d dimensions, which convert does not support", path,
                             t->name, t->dtype_name, t->rank);
        sam_names_add(n, t->name, t->dtype, t->rank, t->dims, (s->files.n - 1) * STRIDE + i);
    }
    return PL_OK;
}

/* Opens model.safetensors if it exists, else every *.safetensors of the folder. */
static int open_files(struct weight_files *s, struct sam_names *n, const char *dir, struct error *e)
{
    struct names l = {0};
    const char *whole = bump_format(&n->memory, "%s/model.safetensors", dir);
    if (file_exists(whole)) return add_file(s, n, whole, e);
    int rc = dir_list(dir, &l, e);
    for (uint32_t i = 0; i < l.n && !rc; i++)
        if (pattern_match("*.safetensors", l.at[i]))
            rc = add_file(s, n, bump_format(&n->memory, "%s/%s", dir, l.at[i]), e);
    names_free(&l);
    if (!rc && !s->files.n)
        rc = error_set(e, PL_USAGE, "%s: the folder has no *.safetensors; expected a model folder", dir);
    return rc;
}

static int copy_entry(struct pth_writer *w, const struct sam_part *part, const struct weight_files *s, char *chunk,
                      struct error *e)
{
    const struct sam_tensor *t = part->from;
    const struct st_file *f = &s->files.at[t->source / STRIDE];
    const struct st_entry *entry = &f->entries[t->source % STRIDE];
    int64_t dim[SAM_RANK];
    memcpy(dim, t->dim, sizeof dim);
    const uint64_t row = t->rank ? entry->bytes / (uint64_t)t->dim[0] : entry->bytes;
    const uint64_t from = part->rows ? (uint64_t)part->row * row : 0,
                   end = part->rows ? from + (uint64_t)part->rows * row : entry->bytes;
    if (part->rows) dim[0] = part->rows;
    int rc = pth_write_begin(w, part->original, t->dtype, t->rank, dim, e);
    for (uint64_t at = from, n; at < end && !rc; at += n) {
        n = min_u64(CHUNK, end - at);
        rc = st_read(f, entry, at, n, chunk, e);
        if (!rc) rc = pth_write_bytes(w, chunk, n, e);
    }
    return rc;
}

static int write_checkpoint(const struct sam_names *n, const struct weight_files *s, const char *out, uint32_t *tensors,
                            struct error *e)
{
    struct pth_writer *w;
    int rc = n->second ? pth_begin_inside(&w, out, "model", e) : pth_begin(&w, out, e);
    if (rc) return rc;
    char *chunk = mem_alloc(CHUNK);
    for (uint32_t i = 0; i < n->parts.n && !rc; i++) {
        if (n->parts.at[i].again) continue;
        rc = copy_entry(w, &n->parts.at[i], s, chunk, e);
        (*tensors)++;
    }
    mem_free(chunk);
    if (!rc) return pth_end(w, e);
    pth_abandon(w);
    return rc;
}

static const char PURPOSE[] =
    "convert makes a checkpoint file of a folder of SAM, SAM 2, MedSAM, MobileSAM or TinySAM, and a folder of such a "
    "file";

/* Opens the folder's model if it has a config.json, which must be SAM's or TinySAM's. *has: it has
 * one. */
static int open_folder_model(const char *in, struct model *m, bool *has, struct error *e)
{
    struct text path = {0};
    text_printf(&path, "%s/config.json", in);
    *has = file_exists(path.at);
    text_free(&path);
    if (!*has) return PL_OK;
    if (model_open(m, in, e)) return error_prepend(e, "%s", PURPOSE);
    const char *type = m->family->model_type;
    struct mask_canvas x;
    if (model_canvas(m, 0, &x) && (!strncmp(type, "sam", 3) || !strcmp(type, "tinysam"))) return PL_OK;
    error_set(e, PL_USAGE, "%s; %s is a %s", PURPOSE, in, type);
    model_close(m);
    return e->code;
}

/* Refuses a folder whose config.json differs from what the weights imply: a checkpoint holds
 * weights only, and would convert back to another model. */
static int check_config(const char *in, struct sam_names *n, const struct model *m, struct error *e)
{
    struct pixel_norm usual;
    struct mask_canvas x = {0};
    int rc = n->second ? sam2_config_check(n, m, e) : sam_config_check(n, m, e);
    if (!rc) rc = pixel_norm_read(&usual, "", e);
    if (!rc && model_canvas(m, 0, &x) && memcmp(&usual, &x.norm, sizeof usual))
        log_warn("%s: the image normalisation differs from SAM's and a checkpoint cannot store it: keep "
                 "preprocessor_config.json",
                 in);
    return rc;
}

int checkpoint_from_folder(const char *in, const char *out, struct checkpoint_summary *x, struct error *e)
{
    struct weight_files s = {0};
    struct sam_names n = {0};
    struct model m;
    uint32_t tensors = 0;
    bool has;
    if (dir_exists(out))
        return error_set(e, PL_USAGE, "%s is a folder; a model folder is converted to a file, such as model.pth",
                         out);
    if (file_exists(out))
        return error_set(e, PL_USAGE, "%s exists already: give another name, or remove it first", out);
    if (open_folder_model(in, &m, &has, e)) return e->code;
    int rc = open_files(&s, &n, in, e);
    if (!rc) {
        rc = resolve(&n, e);
        if (rc) error_prepend(e, "%s", in);
    }
    if (!rc && has) rc = check_config(in, &n, &m, e);
    if (!rc) rc = write_checkpoint(&n, &s, out, &tensors, e);
    if (!rc) *x = summarize(&n, tensors, 0);
    if (has) model_close(&m);
    sam_names_free(&n);
    close_files(&s);
    return rc;
}
