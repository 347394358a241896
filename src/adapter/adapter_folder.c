/*
 * adapter_folder.c: reading a PEFT folder (see adapter_folder.h).
 *
 * Invariant: after adapter_folder_open every module of the list has A and B of two dimensions that
 * share the configured rank, and with DoRA a magnitude of B's rows; so their users check only
 * against the base.
 */
#include "adapter/adapter_folder.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/file.h"

static const char prefix[] = "base_model.model.";

bool adapter_folder_is(const char *dir)
{
    struct bump paths = {0};
    bool is = file_exists(bump_format(&paths, "%s/adapter_config.json", dir)) &&
              !file_exists(bump_format(&paths, "%s/config.json", dir));
    bump_free(&paths);
    return is;
}

/* --- the tensors of the file ---------------------------------------------------------------- */

/* The endings that PEFT gives to the tensors of a module. Older versions wrote magnitudes with
 * .weight. */
static const struct {
    const char *ending;
    enum adapter_part part;
} endings[] = {{".lora_A.weight", ADAPTER_A},
               {".lora_B.weight", ADAPTER_B},
               {".lora_magnitude_vector", ADAPTER_MAGNITUDE},
               {".lora_magnitude_vector.weight", ADAPTER_MAGNITUDE}};

/* Removes a part of the name that PEFT's wrappers add: ".base_layer" of an adapted module's bias,
 * ".modules_to_save.default" of a copied module. */
static void remove_part(char *name, const char *part)
{
    char *at = strstr(name, part);
    size_t n = strlen(part);
    if (at && at[n] == '.') memmove(at, at + n, strlen(at + n) + 1);
}

/* Fills part and module from the name. False: the tensor is an original that PEFT keeps beside its
 * copy (bias: all saves it), and nothing reads it. */
static bool classify(struct adapter_folder *f, struct adapter_tensor *t)
{
    const char *own = t->name + strlen(prefix);
    t->part = ADAPTER_WHOLE;
    char *module = bump_string(&f->memory, own);
    for (size_t i = 0; i < COUNT(endings); i++)
        if (text_ends_with(own, endings[i].ending)) {
            t->part = endings[i].part;
            module[strlen(own) - strlen(endings[i].ending)] = 0;
        }
    if (t->part == ADAPTER_WHOLE) {
        if (strstr(module, ".original_module.")) return false;
        remove_part(module, ".base_layer");
        remove_part(module, ".modules_to_save.default");
        remove_part(module, ".modules_to_save");
    }
    t->module = module;
    return true;
}

static int add_tensor(struct adapter_folder *f, struct adapter_tensor t, const char *dtype_found, struct error *e)
{
    if (strncmp(t.name, prefix, strlen(prefix)))
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" does not begin with \"%s\": this is not an adapter that "
                         "PEFT wrote", f->path, t.name, prefix);
    if (!classify(f, &t)) return PL_OK;
    if (t.part == ADAPTER_WHOLE && (strstr(t.module, ".lora_") || strstr(t.module, ".trainable_tokens")))
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" adapts something other than a linear module, which "
                         "Plimsoll does not do", f->path, t.name);
    if (t.dtype == DT_NONE || (t.part != ADAPTER_WHOLE && !dtype_is_float(t.dtype)))
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is %.40s; expected F32, BF16, F16 or F64", f->path, t.name,
                         dtype_found);
    f->tensors[f->n++] = t;
    return PL_OK;
}

static int list_safetensors(struct adapter_folder *f, struct error *e)
{
    f->tensors = bump_alloc(&f->memory, f->file.n_entries * sizeof *f->tensors);
    for (uint32_t i = 0; i < f->file.n_entries; i++) {
        const struct st_entry *t = &f->file.entries[i];
        if (add_tensor(f,
                       (struct adapter_tensor){.name = t->name, .dtype = t->dtype, .rank = t->rank, .dims = t->dims,
                                               .elements = t->elements, .source = i},
                       t->dtype_name, e))
            return e->code;
    }
    return PL_OK;
}

static int list_pth(struct adapter_folder *f, struct error *e)
{
    f->tensors = bump_alloc(&f->memory, f->pth.tensors.n * sizeof *f->tensors);
    for (uint32_t i = 0; i < f->pth.tensors.n; i++) {
        const struct pth_tensor *t = &f->pth.tensors.at[i];
        if (add_tensor(f,
                       (struct adapter_tensor){.name = t->name, .dtype = t->dtype, .rank = t->rank, .dims = t->dim,
                                               .elements = pth_elements(t), .source = i},
                       dtype_name(t->dtype), e))
            return e->code;
    }
    if (f->pth.skipped)
        return error_set(e, PL_USAGE, "%s: %u tensors have a dtype that is not read; expected F32, BF16, F16 or F64",
                         f->path, f->pth.skipped);
    return PL_OK;
}

static int tensor_order(const void *a, const void *b)
{
    const struct adapter_tensor *x = a, *y = b;
    int order = strcmp(x->module, y->module);
    return order ? order : (int)x->part - (int)y->part;
}

/* Returns the tensor of a module (as the adapter spells it) and part; NULL: none. */
static const struct adapter_tensor *adapter_folder_find(const struct adapter_folder *f, const char *module,
                                                        enum adapter_part part)
{
    const struct adapter_tensor key = {.module = module, .part = part};
    return f->n ? bsearch(&key, f->tensors, f->n, sizeof key, tensor_order) : NULL;
}

/* Removes the second copies: with bias: all PEFT saves the biases of a copied module under two
 * names. */
static void remove_copies(struct adapter_folder *f)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        const bool same = n && !tensor_order(&f->tensors[n - 1], &f->tensors[i]);
        if (same && strstr(f->tensors[i].name, ".modules_to_save.")) continue;
        if (same && strstr(f->tensors[n - 1].name, ".modules_to_save.")) n--;
        f->tensors[n++] = f->tensors[i];
    }
    f->n = n;
}

/* --- checks --------------------------------------------------------------------------------- */

static int check_partner(const struct adapter_folder *f, const struct adapter_tensor *t, enum adapter_part part,
                         const char *ending, struct error *e)
{
    if (adapter_folder_find(f, t->module, part)) return PL_OK;
    return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" has no partner \"%s%.200s%s\": the file is incomplete",
                     f->path, t->name, prefix, t->module, ending);
}

static int check_shape(const struct adapter_folder *f, const struct adapter_tensor *t, struct error *e)
{
    const int64_t r = adapter_rank(&f->config, t->module);
    char shape[160];
    if (t->rank != 2)
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" has the shape %s; expected two dimensions: Plimsoll "
                         "adapts linear modules only", f->path, t->name, shape_print(t->rank, t->dims, shape));
    if (t->dims[t->part == ADAPTER_A ? 0 : 1] != r)
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" has the shape %s, but adapter_config.json gives this "
                         "module the rank %lld (r, rank_pattern)", f->path, t->name,
                         shape_print(t->rank, t->dims, shape), (long long)r);
    return PL_OK;
}

static int check_magnitude(const struct adapter_folder *f, const struct adapter_tensor *t, struct error *e)
{
    const struct adapter_tensor *B = adapter_folder_find(f, t->module, ADAPTER_B);
    char shape[160];
    if (!f->config.dora)
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" belongs to DoRA, but adapter_config.json does not set "
                         "use_dora", f->path, t->name);
    if (t->rank != 1 || t->dims[0] != B->dims[0])
        return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" has the shape %s; expected [%lld], a value for each "
                         "output", f->path, t->name, shape_print(t->rank, t->dims, shape), (long long)B->dims[0]);
    return PL_OK;
}

static int check_tensor(const struct adapter_folder *f, const struct adapter_tensor *t, struct error *e)
{
    if (t->part == ADAPTER_WHOLE) return PL_OK;
    if (check_partner(f, t, ADAPTER_A, ".lora_A.weight", e) || check_partner(f, t, ADAPTER_B, ".lora_B.weight", e))
        return e->code;
    if (t->part == ADAPTER_MAGNITUDE) return check_magnitude(f, t, e);
    if (f->config.dora && check_partner(f, t, ADAPTER_MAGNITUDE, ".lora_magnitude_vector", e)) return e->code;
    return check_shape(f, t, e);
}

static int check_all(const struct adapter_folder *f, struct error *e)
{
    if (!f->n) return error_set(e, PL_USAGE, "%s: the file has no tensors", f->path);
    for (uint32_t i = 0; i < f->n; i++) {
        if (i && !tensor_order(&f->tensors[i - 1], &f->tensors[i]))
            return error_set(e, PL_USAGE, "%s: the tensors \"%.200s\" and \"%.200s\" are the same", f->path,
                             f->tensors[i - 1].name, f->tensors[i].name);
        if (check_tensor(f, &f->tensors[i], e)) return e->code;
    }
    return adapter_unanswered(&f->config, "", e) ? error_prepend(e, "%s/adapter_config.json", f->dir) : PL_OK;
}

/* --- opening -------------------------------------------------------------------------------- */

/* Opens the file of tensors and lists them. */
static int open_tensors(struct adapter_folder *f, struct error *e)
{
    const char *bin = bump_format(&f->memory, "%s/adapter_model.bin", f->dir);
    f->path = bump_format(&f->memory, "%s/adapter_model.safetensors", f->dir);
    if (file_exists(f->path)) return st_open(f->path, &f->file, e) ? e->code : list_safetensors(f, e);
    if (!file_exists(bin))
        return error_set(e, PL_USAGE, "%s: no adapter_model.safetensors or adapter_model.bin; expected a folder that "
                         "PEFT's save_pretrained wrote", f->dir);
    f->path = bin;
    if (pth_open(&f->pth, bin, e)) return e->code;
    f->is_pth = true;
    return list_pth(f, e);
}

int adapter_folder_open(struct adapter_folder *f, const char *dir, struct error *e)
{
    memset(f, 0, sizeof *f);
    f->file.fd = -1;
    f->dir = bump_string(&f->memory, dir);
    const char *config = bump_format(&f->memory, "%s/adapter_config.json", dir);
    int rc = PL_OK;
    if (!dir_exists(dir))
        rc = error_set(e, PL_USAGE, "%s is not a folder; expected a PEFT folder with adapter_config.json and "
                       "adapter_model.safetensors", dir);
    else if (!file_exists(config))
        rc = error_set(e, PL_USAGE, "%s has no adapter_config.json; expected a PEFT folder with adapter_config.json "
                       "and adapter_model.safetensors", dir);
    if (!rc) rc = adapter_config_read(config, &f->memory, &f->config, e);
    if (!rc) rc = open_tensors(f, e);
    if (!rc) {
        if (f->n) qsort(f->tensors, f->n, sizeof *f->tensors, tensor_order);
        remove_copies(f);
        rc = check_all(f, e);
    }
    if (rc) adapter_folder_close(f);
    return rc;
}

void adapter_folder_close(struct adapter_folder *f)
{
    if (f->is_pth) pth_close(&f->pth);
    else if (f->file.fd >= 0) st_close(&f->file);
    bump_free(&f->memory);
    memset(f, 0, sizeof *f);
    f->file.fd = -1;
}

/* --- reading -------------------------------------------------------------------------------- */

/* Reads elements in row-major order, whatever the strides. */
static void read_pth(const struct pth_tensor *t, int64_t at, int64_t n, uint8_t *to)
{
    const uint32_t size = dtype_size(t->dtype);
    if (pth_is_contiguous(t)) {
        memcpy(to, t->data + (size_t)at * size, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t left = at + i, from = 0;
        for (int k = t->rank - 1; k >= 0; k--) {
            from += left % t->dim[k] * t->stride[k];
            left /= t->dim[k];
        }
        memcpy(to + (size_t)i * size, t->data + (size_t)from * size, size);
    }
}

int adapter_folder_read(const struct adapter_folder *f, const struct adapter_tensor *t, int64_t at, int64_t n, void *to,
                        struct error *e)
{
    const uint64_t size = dtype_size(t->dtype);
    CHECK(at >= 0 && n >= 0 && at + n <= t->elements, "%s", t->name);
    if (!f->is_pth)
        return st_read(&f->file, &f->file.entries[t->source], (uint64_t)at * size, (uint64_t)n * size, to, e);
    read_pth(&f->pth.tensors.at[t->source], at, n, to);
    return pth_check(&f->pth, f->path, e);
}

int adapter_folder_read_f32(const struct adapter_folder *f, const struct adapter_tensor *t, float **to, struct error *e)
{
    void *bytes = mem_alloc((size_t)t->elements * dtype_size(t->dtype));
    int rc = adapter_folder_read(f, t, 0, t->elements, bytes, e);
    *to = NULL;
    if (!rc) {
        *to = mem_alloc((size_t)t->elements * sizeof **to);
        dtype_convert(*to, DT_F32, bytes, t->dtype, t->elements);
    }
    mem_free(bytes);
    return rc;
}

/* --- the names of the base ------------------------------------------------------------------ */

/* Renamings: how a name of the adapter becomes a name of the base. The first rule whose beginning
 * the name has applies; a name without a rule stays. */
enum { RULES = 4 };
static const struct renaming {
    struct {
        const char *from, *to;
    } rules[RULES];
} renamings[] = {
    {{{NULL}}},
    {{{"model.", ""}, {"transformer.", ""}}}, /* the base's file has no root */
    {{{"", "model."}}}, /* the adapter was made on the model without its head */
    /* LLaVA: in memory, in files */
    {{{"model.language_model.", "language_model.model."},
      {"model.vision_tower.", "vision_tower.vision_model."},
      {"model.multi_modal_projector.", "multi_modal_projector."},
      {"lm_head.", "language_model.lm_head."}}},
    {{{"language_model.model.", "model.language_model."},
      {"vision_tower.vision_model.", "model.vision_tower."},
      {"multi_modal_projector.", "model.multi_modal_projector."},
      {"language_model.lm_head.", "lm_head."}}},
    /* Qwen2-VL: in memory, in files */
    {{{"model.language_model.", "model."}, {"model.visual.", "visual."}}},
    {{{"visual.", "model.visual."}, {"model.", "model.language_model."}}},
};

/* Returns the name of the base that an adapter's tensor belongs to by a spelling, behind a
 * prefix. */
static const char *base_name(struct bump *b, const struct adapter_tensor *t, const struct renaming *s,
                             const char *before)
{
    const char *own = t->part == ADAPTER_WHOLE ? t->module : bump_format(b, "%s.weight", t->module);
    for (int i = 0; i < RULES && s->rules[i].from; i++) {
        size_t n = strlen(s->rules[i].from);
        if (!strncmp(own, s->rules[i].from, n)) return bump_format(b, "%s%s%s", before, s->rules[i].to, own + n);
    }
    return bump_format(b, "%s%s", before, own);
}

static int name_order(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

struct base_names {
    const char **at; /* sorted */
    uint32_t n;
};

/* Returns the number of tensors whose base is found; *first is the first that is not. */
static uint32_t count_matched(const struct adapter_folder *f, const struct base_names *l, const struct renaming *s,
                              const char *before, uint32_t *first)
{
    struct bump b = {0};
    uint32_t found = 0;
    for (uint32_t i = f->n; i-- > 0;) {
        const char *name = base_name(&b, &f->tensors[i], s, before);
        if (l->n && bsearch(&name, l->at, l->n, sizeof *l->at, name_order)) found++;
        else *first = i;
    }
    bump_free(&b);
    return found;
}

/* Returns what precedes the name of the adapter's first tensor in the base: "module."; NULL:
 * nothing that fits. */
static const char *prefix_in(struct adapter_folder *f, const struct base_names *l)
{
    const char *own = base_name(&f->memory, &f->tensors[0], &renamings[0], ".");
    for (uint32_t i = 0; i < l->n; i++)
        if (text_ends_with(l->at[i], own))
            return bump_format(&f->memory, "%.*s", (int)(strlen(l->at[i]) - strlen(own) + 1), l->at[i]);
    return NULL;
}

static int not_matched(const struct adapter_folder *f, const char *base, const struct base_names *l, const char *name,
                       uint32_t found, struct error *e)
{
    struct closest x = {.to = name};
    for (uint32_t i = 0; i < l->n; i++) closest_try(&x, l->at[i]);
    return error_set(e, PL_USAGE,
                     "%s: the adapter belongs to another base: %s has no tensor \"%.200s\" (%u of %u tensors of the "
                     "adapter fit); the nearest name is \"%.200s\"",
                     f->path, base, name, found, f->n, x.found ? x.found : "");
}

int adapter_folder_match(struct adapter_folder *f, const char *base, const char *const *names, uint32_t n,
                         struct error *e)
{
    struct base_names l = {bump_alloc(&f->memory, (n ? n : 1) * sizeof *l.at), n};
    if (n) memcpy(l.at, names, n * sizeof *l.at);
    if (n) qsort(l.at, n, sizeof *l.at, name_order);
    const struct renaming *best = &renamings[0];
    const char *before = "", *found_prefix = prefix_in(f, &l);
    uint32_t most = 0, first = 0;
    for (size_t i = 0; i <= COUNT(renamings) && most < f->n; i++) {
        const bool own = i < COUNT(renamings);
        const struct renaming *s = own ? &renamings[i] : &renamings[0];
        const char *p = own ? "" : found_prefix;
        uint32_t unknown = 0, found = p ? count_matched(f, &l, s, p, &unknown) : 0;
        if (!i || found > most) most = found, best = s, before = p, first = unknown;
    }
    if (most < f->n) return not_matched(f, base, &l, base_name(&f->memory, &f->tensors[first], best, before), most, e);
    for (uint32_t i = 0; i < f->n; i++) f->tensors[i].base = base_name(&f->memory, &f->tensors[i], best, before);
    return PL_OK;
}

/* --- adapter_model.bin as safetensors --------------------------------------------------------- */

static int write_tensors(const struct adapter_folder *f, const char *path, struct error *e)
{
    static const struct st_pair format = {"format", "pt"};
    struct st_spec *specs = mem_alloc((f->n + 1) * sizeof *specs);
    struct st_writer w;
    for (uint32_t i = 0; i < f->n; i++)
        specs[i] = (struct st_spec){f->tensors[i].name, f->tensors[i].dtype, f->tensors[i].rank, f->tensors[i].dims};
    int rc = st_write_begin(&w, path, specs, f->n, &format, 1, e);
    mem_free(specs);
    if (rc) return rc;
    for (uint32_t i = 0; i < f->n && !rc; i++) {
        const struct adapter_tensor *t = &f->tensors[i];
        const size_t bytes = (size_t)t->elements * dtype_size(t->dtype);
        void *data = mem_alloc(bytes + 1);
        rc = adapter_folder_read(f, t, 0, t->elements, data, e);
        if (!rc) rc = st_write_bytes(&w, data, bytes, e);
        mem_free(data);
    }
    return st_write_finish(&w, rc, e);
}

int adapter_folder_convert(const char *dir, struct st_file *out, bool *converted, struct error *e)
{
    struct adapter_folder f;
    char path[64];
    *converted = false;
    if (adapter_folder_open(&f, dir, e)) return e->code;
    int rc = PL_OK;
    if (f.is_pth) {
        const int fd = memfd_create("adapter", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (fd < 0) rc = error_set(e, PL_FAIL, "%s: cannot be converted: %s", f.path, strerror(errno));
        if (!rc) rc = write_tensors(&f, path, e);
        if (!rc) rc = st_open(path, out, e);
        *converted = !rc;
        if (fd >= 0) close(fd);
    }
    adapter_folder_close(&f);
    return rc;
}
