/*
 * convert.c: `plimsoll convert IN -o OUT`: PyTorch checkpoints to model folders and back, adapters
 * merged into their base, and weights in 4 bits.
 *
 * A file becomes a folder, a folder becomes a file; a folder with --adapter (adapter/merge.h) or
 * --quantize (folder/quantize_folder.h) becomes a folder. From a file or to one, tensors are copied
 * one by one, without a change of dtype or value. A checkpoint file is mapped into memory; a tensor
 * of a folder goes through a buffer of CHUNK bytes; only a tensor that is not contiguous is
 * assembled in memory. A folder is written under a temporary name and renamed when it is complete.
 */
#include <unistd.h>

#include "base/progress.h"
#include "cli/cli.h"
#include "adapter/merge.h"
#include "folder/quantize_folder.h"
#include "io/file.h"
#include "io/pth.h"
#include "io/safetensors.h"
#include "io/table.h"
#include "io/temporary.h"
#include "models/masks.h"
#include "models/sam_names.h"

enum { CHUNK = 4 << 20, PATH_MOST = 4096 }; /* bytes of a tensor per copy; bytes of a folder's path */

struct request {
    struct options o;
    const char *in, *quantize;
};

/* --- the summary -------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct sam_tensor *t)
{
    uint64_t n = dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++) n *= (uint64_t)t->dim[i];
    return n;
}

static void print_summary(const struct request *w, const struct sam_names *n, uint32_t tensors, uint32_t left_out)
{
    uint64_t bytes = 0;
    char size[32];
    const char *type = n->tiny ? "tinysam" : "sam";
    for (uint32_t i = 0; i < n->found.n; i++) bytes += bytes_of(&n->found.at[i]);
    if (w->o.json)
        PRINT_FACTS(2, FACT("in", w->in), FACT("out", w->o.output), FACT("model_type", type), FACT("tensors", tensors),
                    FACT("bytes", bytes), FACT("left_out", left_out));
    else
        printf("%s: %s, %u tensors, %s%s\n", w->o.output, type, tensors, size_print(bytes, size),
               left_out ? "; derived buffers were left out" : "");
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

static int write_weights(const struct pth *p, const char *from, const struct sam_names *n, const char *path,
                         struct error *e)
{
    static const struct st_pair format = {"format", "pt"};
    struct st_spec *specs = mem_alloc(n->parts.n * sizeof *specs);
    struct st_writer w;
    for (uint32_t i = 0; i < n->parts.n; i++) {
        const struct sam_tensor *t = n->parts.at[i].from;
        specs[i] = (struct st_spec){n->parts.at[i].name, t->dtype, t->rank, t->dim};
    }
    int rc = st_write_begin(&w, path, specs, n->parts.n, &format, 1, e);
    mem_free(specs);
    if (rc) return rc;
    struct progress progress;
    progress_begin(&progress, "writing", "tensors", n->parts.n);
    for (uint32_t i = 0; i < n->parts.n && !rc; i++, progress_add(&progress, 1))
        rc = copy_tensor(&w, &p->tensors.at[n->parts.at[i].from->source], e);
    progress_clear();
    if (!rc) rc = pth_check(p, from, e);
    if (!rc) return st_write_end(&w, e);
    st_write_abort(&w);
    return rc;
}

/* What a folder is filled from. */
struct sources {
    const struct pth *checkpoint;  /* at the path `from`, with these names; or */
    const char *from;
    const struct sam_names *names;
    const struct merge *merge;
    struct quantize_folder *quantize;
};

static int fill_folder(const struct sources *s, const char *dir, struct error *e)
{
    if (s->merge) return merge_write(s->merge, dir, e);
    if (s->quantize) return quantize_folder_write(s->quantize, dir, e);
    struct bump paths = {0};
    struct text config = {0}, processor = {0};
    sam_config_json(s->names, &config);
    sam_preprocessor_json(s->names, &processor);
    int rc = write_weights(s->checkpoint, s->from, s->names, bump_format(&paths, "%s/model.safetensors", dir), e);
    if (!rc) rc = file_write_atomic(bump_format(&paths, "%s/config.json", dir), config.at, config.n, e);
    if (!rc)
        rc = file_write_atomic(bump_format(&paths, "%s/preprocessor_config.json", dir), processor.at, processor.n, e);
    text_free(&config);
    text_free(&processor);
    bump_free(&paths);
    return rc ? rc : dir_sync(dir, e);
}

/* Checks that OUT does not exist or is an empty folder, so that no file is overwritten. */
static int check_free(const char *out, struct error *e)
{
    struct names l = {0};
    if (!file_exists(out)) return PL_OK;
    if (!dir_exists(out)) return error_set(e, PL_USAGE, "%s is a file; expected the name of a new folder", out);
    int rc = dir_list(out, &l, e);
    if (!rc && l.n) rc = error_set(e, PL_USAGE, "%s is not empty: give another folder, or remove it first", out);
    names_free(&l);
    return rc;
}

/* Fills a temporary folder beside `out`; on failure there is none. */
static int fill_temporary(const struct sources *s, const char *out, struct temporary *t, struct error *e)
{
    char parent[PATH_MOST];
    if (path_dir(out, parent, sizeof parent, e) || dir_make(parent, e) || temporary_folder(t, out, e)) return e->code;
    int rc = fill_folder(s, t->path, e);
    if (rc) temporary_drop(t);
    return rc;
}

static int write_folder(const struct sources *s, const char *out, struct error *e)
{
    struct temporary t;
    TRY(fill_temporary(s, out, &t, e));
    return temporary_keep(&t, out, true, e);
}

static int to_folder(const struct request *w, struct error *e)
{
    struct pth p;
    struct sam_names n = {0};
    TRY(check_free(w->o.output, e));
    TRY(pth_open(&p, w->in, e));
    for (uint32_t i = 0; i < p.tensors.n; i++) {
        const struct pth_tensor *t = &p.tensors.at[i];
        sam_names_add(&n, t->name, t->dtype, t->rank, t->dim, i);
    }
    int rc = sam_names_resolve(&n, e);
    if (rc) error_prepend(e, "%s", w->in);
    else rc = write_folder(&(struct sources){.checkpoint = &p, .from = w->in, .names = &n}, w->o.output, e);
    if (!rc) print_summary(w, &n, n.parts.n, p.tensors.n - n.found.n + p.skipped);
    sam_names_free(&n);
    pth_close(&p);
    return rc;
}

/* --- a folder to a checkpoint ----------------------------------------------------------------- */

/* All weight files of a folder. A tensor's index is file index * STRIDE + index in the file. */
struct shards {
    VEC(struct st_file) files;
};
enum { STRIDE = 1 << 20, SHARDS_MOST = 1 << 11 };

static void close_shards(struct shards *s)
{
    for (uint32_t i = 0; i < s->files.n; i++) st_close(&s->files.at[i]);
    vec_free(&s->files);
}

static int add_shard(struct shards *s, struct sam_names *n, const char *path, struct error *e)
{
    struct st_file f;
    int rc = s->files.n < SHARDS_MOST ? st_open(path, &f, e)
                                      : error_set(e, PL_USAGE, "%s: more than %d weight files", path, SHARDS_MOST);
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
static int open_shards(struct shards *s, struct sam_names *n, const char *dir, struct error *e)
{
    struct names l = {0};
    const char *whole = bump_format(&n->memory, "%s/model.safetensors", dir);
    if (file_exists(whole)) return add_shard(s, n, whole, e);
    int rc = dir_list(dir, &l, e);
    for (uint32_t i = 0; i < l.n && !rc; i++)
        if (pattern_match("*.safetensors", l.at[i]))
            rc = add_shard(s, n, bump_format(&n->memory, "%s/%s", dir, l.at[i]), e);
    names_free(&l);
    if (!rc && !s->files.n)
        rc = error_set(e, PL_USAGE, "%s: the folder has no *.safetensors; expected a model folder", dir);
    return rc;
}

static int copy_entry(struct pth_writer *w, const struct sam_part *part, const struct shards *s, char *chunk,
                      struct error *e)
{
    const struct sam_tensor *t = part->from;
    const struct st_file *f = &s->files.at[t->source / STRIDE];
    const struct st_entry *entry = &f->entries[t->source % STRIDE];
    int rc = pth_write_begin(w, part->original, t->dtype, t->rank, t->dim, e);
    for (uint64_t at = 0, n; at < entry->bytes && !rc; at += n) {
        n = min_u64(CHUNK, entry->bytes - at);
        rc = st_read(f, entry, at, n, chunk, e);
        if (!rc) rc = pth_write_bytes(w, chunk, n, e);
    }
    return rc;
}

static int write_checkpoint(const struct sam_names *n, const struct shards *s, const char *out, uint32_t *tensors,
                            struct error *e)
{
    struct pth_writer *w;
    int rc = pth_begin(&w, out, e);
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
    "convert makes a checkpoint file of a folder of SAM, MedSAM, MobileSAM or TinySAM, and a folder of such a file";

/* Opens the folder's model if it has a config.json, which must be SAM's or TinySAM's. *has: it has
 * one. */
static int open_folder_model(const struct request *w, struct model *m, bool *has, struct error *e)
{
    struct text path = {0};
    text_printf(&path, "%s/config.json", w->in);
    *has = file_exists(path.at);
    text_free(&path);
    if (!*has) return PL_OK;
    if (model_open(m, w->in, e)) return error_prepend(e, "%s", PURPOSE);
    if (m->masks && (!strcmp(m->family->model_type, "sam") || !strcmp(m->family->model_type, "tinysam"))) return PL_OK;
    error_set(e, PL_USAGE, "%s; %s is a %s", PURPOSE, w->in, m->family->model_type);
    model_close(m);
    return e->code;
}

/* Refuses a folder whose config.json differs from what the weights imply: a checkpoint holds
 * weights only, and would convert back to another model. */
static int check_config(const struct request *w, struct sam_names *n, const struct model *m, struct error *e)
{
    struct pixel_norm usual;
    int rc = sam_config_check(n, m, e);
    if (!rc) rc = pixel_norm_read(&usual, "", e);
    if (!rc && memcmp(&usual, &m->masks->norm, sizeof usual))
        log_warn("%s: the image normalisation differs from SAM's and a checkpoint cannot store it: keep "
                 "preprocessor_config.json",
                 w->in);
    return rc;
}

static int to_checkpoint(const struct request *w, struct error *e)
{
    struct shards s = {0};
    struct sam_names n = {0};
    struct model m;
    uint32_t tensors = 0;
    bool has;
    if (dir_exists(w->o.output))
        return error_set(e, PL_USAGE, "%s is a folder; a model folder is converted to a file, such as model.pth",
                         w->o.output);
    if (file_exists(w->o.output))
        return error_set(e, PL_USAGE, "%s exists already: give another name, or remove it first", w->o.output);
    if (open_folder_model(w, &m, &has, e)) return e->code;
    int rc = open_shards(&s, &n, w->in, e);
    if (!rc) {
        rc = sam_names_resolve(&n, e);
        if (rc) error_prepend(e, "%s", w->in);
    }
    if (!rc && has) rc = check_config(w, &n, &m, e);
    if (!rc) rc = write_checkpoint(&n, &s, w->o.output, &tensors, e);
    if (!rc) print_summary(w, &n, tensors, 0);
    if (has) model_close(&m);
    sam_names_free(&n);
    close_shards(&s);
    return rc;
}

/* --- an adapter into its base ----------------------------------------------------------------- */

static void print_merged(const struct request *w, const struct merge *m)
{
    const uint32_t tensors = m->base.n_slots + (m->untied && !m->head);
    if (w->o.json)
        PRINT_FACTS(2, FACT("in", w->in), FACT("adapter", w->o.adapter), FACT("out", w->o.output),
                    FACT("tensors", tensors), FACT("merged", m->n_merged), FACT("whole", m->n_whole),
                    FACT("untied", m->untied));
    else
        printf("%s: %s merged into %s: %u linear modules with LoRA, %u whole tensors, %u tensors in all%s\n",
               w->o.output, w->o.adapter, w->in, m->n_merged, m->n_whole, tensors,
               m->untied ? "; the head no longer shares the embedding's weight" : "");
}

static int merge(const struct request *w, struct error *e)
{
    struct merge m;
    TRY(check_free(w->o.output, e));
    TRY(merge_open(&m, w->in, w->o.adapter, e));
    int rc = write_folder(&(struct sources){.merge = &m}, w->o.output, e);
    if (!rc) print_merged(w, &m);
    merge_close(&m);
    return rc;
}

/* --- weights in 4 bits ------------------------------------------------------------------------ */

static void print_quantized(const struct request *w, const struct quantize_folder *q)
{
    const char *adapter = w->o.adapter;
    char before[32], after[32];
    if (w->o.json)
        PRINT_FACTS(2, FACT("in", w->in), FACT_IF(adapter, "adapter", adapter), FACT("out", w->o.output),
                    FACT("model_type", q->model.family->model_type), FACT("quantize", w->quantize),
                    FACT("tensors", q->n_tensors), FACT("quantized", q->n_quantized),
                    FACT("bytes_before", q->bytes_before), FACT("bytes", q->bytes));
    else
        printf("%s: %s%s%s with %u weights of linear layers in 4 bits (NF4), of %u tensors in all: %s, before %s\n",
               w->o.output, w->in, adapter ? " and " : "", adapter ? adapter : "", q->n_quantized, q->n_tensors,
               size_print(q->bytes, after), size_print(q->bytes_before, before));
}

static int quantize(const struct request *w, const char *from, struct error *e)
{
    struct quantize_folder q;
    TRY(check_free(w->o.output, e));
    TRY(quantize_folder_open(&q, from, e));
    int rc = write_folder(&(struct sources){.quantize = &q}, w->o.output, e);
    if (!rc) print_quantized(w, &q);
    quantize_folder_close(&q);
    return rc;
}

/* Merges the adapter into a temporary folder, in the dtypes of the base, and quantizes that. */
static int merge_and_quantize(const struct request *w, struct error *e)
{
    struct quantize_folder base;
    struct merge m;
    struct temporary t;
    TRY(check_free(w->o.output, e));
    TRY(quantize_folder_open(&base, w->in, e)); /* refuses what the merged model would be refused for */
    quantize_folder_close(&base);
    TRY(merge_open(&m, w->in, w->o.adapter, e));
    int rc = fill_temporary(&(struct sources){.merge = &m}, w->o.output, &t, e);
    merge_close(&m);
    if (rc) return rc;
    rc = quantize(w, t.path, e);
    temporary_drop(&t);
    return rc;
}

/* --- the command ------------------------------------------------------------------------------ */

static int convert(struct options *o, struct error *e)
{
    struct request *w = (struct request *)o;
    if (o->paths.n > 1)
        return error_set(e, PL_USAGE, "two inputs are given: %s and %s", o->paths.at[0], o->paths.at[1]);
    if (!o->paths.n || !o->output || !*o->output)
        return error_set(e, PL_USAGE,
                         "expected a checkpoint and -o FOLDER, a folder and -o FILE, or a folder, --adapter FOLDER or "
                         "--quantize nf4, and -o FOLDER: plimsoll %s",
                         command_convert.usage);
    if (w->quantize && strcmp(w->quantize, "nf4"))
        return error_set(e, PL_USAGE,
                         "--quantize %s: expected nf4, the one form in few bits that Plimsoll writes and reads",
                         w->quantize);
    w->in = o->paths.at[0];
    if (!file_exists(w->in)) return model_missing(w->in, e);
    if (adapter_folder_is(w->in))
        return error_set(
            e, PL_USAGE,
            "%s holds an adapter, which is merged into its base model: plimsoll convert BASE --adapter %s -o OUT",
            w->in, w->in);
    if (w->quantize && !dir_exists(w->in))
        return error_set(e, PL_USAGE,
                         "--quantize takes a model folder, and %s is a file: plimsoll convert %s -o FOLDER first",
                         w->in, w->in);
    if (w->quantize) return o->adapter ? merge_and_quantize(w, e) : quantize(w, w->in, e);
    if (o->adapter) return merge(w, e);
    return dir_exists(w->in) ? to_checkpoint(w, e) : to_folder(w, e);
}

static const struct request START;
static const struct option OPTIONS[] = {OPTION(struct request, "--quantize", TEXT, quantize),
                                        OPTION(struct request, "--adapter", TEXT, o.adapter)};

const struct command command_convert = {
    "convert",
    "convert IN.pth -o DIR | DIR -o OUT.pth | BASE [--adapter DIR] [--quantize nf4] -o OUT [--json]",
    "Converts a PyTorch checkpoint of SAM, MedSAM, MobileSAM or TinySAM to a model folder (config.json,\n"
    "model.safetensors, preprocessor_config.json), or a model folder to a checkpoint with the published\n"
    "parameter names. The names and shapes of the tensors determine the model; values and dtypes do not\n"
    "change. A checkpoint is read as data: no code in it is executed. With --adapter, merges a LoRA\n"
    "adapter that PEFT or Plimsoll wrote (adapter_config.json, adapter_model.safetensors) into the model\n"
    "folder BASE and writes the merged model folder, in the dtypes of BASE. With --quantize nf4, writes\n"
    "BASE with the weights of its linear layers in 4 bits, all but the output head, as transformers does\n"
    "with bitsandbytes (load_in_4bit, nf4, bnb_4bit_use_double_quant): transformers and Plimsoll read the\n"
    "folder, and a run on it has the bits of a run on BASE with memory.quantize nf4. With --adapter too,\n"
    "the adapter is merged first.",
    .shared = OPT_PATHS | OPT_OUTPUT | OPT_JSON, COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(START), .run = convert};
