/*
 * pth.c: see pth.h. The reading half; pth_write.c writes.
 */
#include "io/pth.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/pickle.h"
#include "io/zip.h"

enum { LEGACY_KEYS = 1 << 16 };

/* Where the bytes of storages are. */
struct storages {
    const struct zip *zip;      /* NULL: legacy */
    const char *folder;         /* "NAME/data/" */
    const struct pickle *keys;  /* legacy: in the order of the file */
    const uint8_t **at;         /* legacy: by that order; NULL: not yet met */
    uint64_t *elements;
};

struct reading {
    struct pth *p;
    struct storages s;
    struct error *e;
};

/* --- types -------------------------------------------------------------------------- */

static const struct {
    const char *storage;
    enum dtype dtype;
} types[] = {
    {"FloatStorage", DT_F32}, {"HalfStorage", DT_F16}, {"BFloat16Storage", DT_BF16}, {"DoubleStorage", DT_F64},
    {"IntStorage", DT_I32},   {"LongStorage", DT_I64}, {"ByteStorage", DT_U8},
};

/* The type of "torch FloatStorage"; DT_NONE: one that we have no name for. */
static enum dtype storage_type(const struct pickle *name)
{
    for (size_t i = 0; i < COUNT(types); i++)
        if (pickle_is_name(name, "torch", types[i].storage)) return types[i].dtype;
    return DT_NONE;
}

/* Bytes of an element of any storage type, to step over those of other types; 0: unknown. */
static uint64_t element_bytes(const struct pickle *name)
{
    enum dtype t = storage_type(name);
    if (t != DT_NONE) return dtype_size(t);
    if (pickle_is_name(name, "torch", "BoolStorage") || pickle_is_name(name, "torch", "CharStorage")) return 1;
    return pickle_is_name(name, "torch", "ShortStorage") ? 2 : 0;
}

/* --- storages ------------------------------------------------------------------------- */

/* The tuple ("storage", type, key, place, elements, ..) of a persistent id; NULL: not one. */
static const struct pickle *storage_tuple(const struct pickle *p)
{
    if (!p || p->kind != PICKLE_PERSISTENT) return NULL;
    const struct pickle *t = p->items[0];
    bool good = t->kind == PICKLE_TUPLE && t->n >= 5 && t->items[0]->kind == PICKLE_STRING && !strcmp(t->items[0]->text, "storage") &&
                t->items[1]->kind == PICKLE_NAME && t->items[2]->kind == PICKLE_STRING && t->items[4]->kind == PICKLE_INT;
    return good ? t : NULL;
}

static int storage_bytes(struct reading *r, const char *key, const uint8_t **data, uint64_t *bytes, uint64_t each)
{
    if (r->s.zip) {
        char path[600];
        snprintf(path, sizeof path, "%s%s", r->s.folder, key);
        const struct zip_member *m = zip_find(r->s.zip, path);
        if (!m || !m->stored) return error_set(r->e, PL_USAGE, m ? "%s is compressed; save it again with torch.save" : "%s is missing", path);
        *data = m->data;
        *bytes = m->bytes;
        return PL_OK;
    }
    for (uint32_t i = 0; i < r->s.keys->n; i++)
        if (!strcmp(r->s.keys->items[i]->text, key) && r->s.at[i]) {
            *data = r->s.at[i];
            *bytes = r->s.elements[i] * each;
            return PL_OK;
        }
    return error_set(r->e, PL_USAGE, "storage %s is missing", key);
}

/* --- tensors --------------------------------------------------------------------------- */

static bool whole_numbers(const struct pickle *t, int64_t *to)
{
    if (!t || (t->kind != PICKLE_TUPLE && t->kind != PICKLE_LIST) || t->n > PTH_RANK) return false;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->items[i]->kind != PICKLE_INT || t->items[i]->integer < 0 || t->items[i]->integer > INT64_MAX / 64) return false;
        to[i] = t->items[i]->integer;
    }
    return true;
}

/* The last element that is touched, from the first; false: beyond any file. */
static bool reach(const struct pth_tensor *t, uint64_t *last)
{
    uint64_t sum = 0;
    for (int i = 0; i < t->rank; i++) {
        uint64_t part;
        if (t->dim[i] == 0) {
            *last = 0;
            return true;
        }
        if (__builtin_mul_overflow((uint64_t)t->dim[i] - 1, (uint64_t)t->stride[i], &part) || __builtin_add_overflow(sum, part, &sum)) return false;
    }
    *last = sum;
    return true;
}

/* The call that makes a tensor, behind a parameter's: its arguments; NULL: not one. */
static const struct pickle *tensor_arguments(const struct pickle *p, int depth)
{
    if (!p || p->kind != PICKLE_CALL || p->n < 2 || p->items[1]->kind != PICKLE_TUPLE || depth > 4) return NULL;
    const struct pickle *name = p->items[0], *a = p->items[1];
    if (pickle_is_name(name, "torch._utils", "_rebuild_parameter") || pickle_is_name(name, "torch._utils", "_rebuild_parameter_with_state"))
        return a->n ? tensor_arguments(a->items[0], depth + 1) : NULL;
    bool tensor = pickle_is_name(name, "torch._utils", "_rebuild_tensor_v2") || pickle_is_name(name, "torch._utils", "_rebuild_tensor") ||
                  pickle_is_name(name, "torch._utils", "_rebuild_tensor_v3");
    return tensor && a->n >= 4 ? a : NULL;
}

static int add_tensor(struct reading *r, const char *name, const struct pickle *a)
{
    struct pth_tensor t = {.name = name};
    const struct pickle *s = storage_tuple(a->items[0]);
    uint64_t bytes = 0, last, offset, each, elements = 1;
    if (!s || a->items[1]->kind != PICKLE_INT || a->items[1]->integer < 0 || !whole_numbers(a->items[2], t.dim) ||
        !whole_numbers(a->items[3], t.stride) || a->items[2]->n != a->items[3]->n)
        return error_set(r->e, PL_USAGE, "tensor %s: its description is damaged", name);
    t.dtype = storage_type(s->items[1]);
    if (t.dtype == DT_NONE) {
        r->p->skipped++;
        return PL_OK;
    }
    t.rank = (int)a->items[2]->n;
    each = dtype_size(t.dtype);
    int rc = storage_bytes(r, s->items[2]->text, &t.data, &bytes, each);
    if (rc) return error_prepend(r->e, "tensor %s", name);
    bool overflow = false;
    for (int i = 0; i < t.rank; i++) overflow |= __builtin_mul_overflow(elements, (uint64_t)t.dim[i], &elements);
    offset = (uint64_t)a->items[1]->integer;
    bool empty = elements == 0, fits = !overflow && elements <= bytes && reach(&t, &last) && (empty || (last < bytes && offset < bytes && (offset + last + 1) <= bytes / each));
    if (!fits) return error_set(r->e, PL_USAGE, "tensor %s does not fit its storage of %llu bytes; was the file cut off?", name, (unsigned long long)bytes);
    t.data += empty ? 0 : offset * each;
    vec_push(&r->p->tensors, t);
    return PL_OK;
}

/* --- the state dictionary ------------------------------------------------------------------ */

static uint32_t count_tensors(const struct pickle *d)
{
    uint32_t n = 0;
    for (uint32_t i = 0; d && d->kind == PICKLE_DICT && i + 1 < d->n; i += 2)
        n += d->items[i]->kind == PICKLE_STRING && tensor_arguments(d->items[i + 1], 0);
    return n;
}

/* The first dictionary that holds tensors; those that people call a model come first. */
static const struct pickle *find_state(struct pickle *d, int depth)
{
    static const char *const usual[] = {"model", "state_dict", "model_state_dict", "model_state", "net", "params", "module"};
    if (!d || d->kind != PICKLE_DICT || d->seen || depth > 4) return NULL;
    d->seen = true;
    if (count_tensors(d)) return d;
    const struct pickle *found = NULL;
    for (size_t i = 0; i < COUNT(usual) && !found; i++) found = find_state(pickle_get(d, usual[i]), depth + 1);
    for (uint32_t i = 1; i < d->n && !found; i += 2) found = find_state(d->items[i], depth + 1);
    return found;
}

/* What wrappers put before every name. */
static size_t wrapper_length(const struct pickle *d)
{
    static const char *const wrappers[] = {"module.", "_orig_mod.", "model."};
    size_t cut = 0;
    for (bool again = true; again;) {
        again = false;
        for (size_t w = 0; w < COUNT(wrappers) && !again; w++) {
            size_t n = strlen(wrappers[w]);
            bool all = true;
            for (uint32_t i = 0; i + 1 < d->n && all; i += 2)
                all = d->items[i]->kind == PICKLE_STRING && d->items[i]->length > cut + n && !strncmp(d->items[i]->text + cut, wrappers[w], n);
            if (all && d->n) cut += n, again = true;
        }
    }
    return cut;
}

static int add_state(struct reading *r, struct pickle *root)
{
    const struct pickle *d = find_state(root, 0);
    if (!d && root->kind == PICKLE_CALL)
        return error_set(r->e, PL_USAGE, "holds a whole Python object (torch.save(model)), which only its own program can open; save model.state_dict() there");
    if (!d) return error_set(r->e, PL_USAGE, "no dictionary of tensors in it");
    size_t cut = wrapper_length(d);
    int rc = PL_OK;
    for (uint32_t i = 0; i + 1 < d->n && !rc; i += 2) {
        const struct pickle *a = tensor_arguments(d->items[i + 1], 0);
        if (a && d->items[i]->kind == PICKLE_STRING) rc = add_tensor(r, d->items[i]->text + cut, a);
    }
    return rc;
}

/* --- the two forms ---------------------------------------------------------------------------- */

static int open_zip(struct reading *r)
{
    struct zip z;
    struct pickle *root;
    size_t used;
    int rc = zip_read(&z, r->p->bytes, r->p->n, &r->p->memory, r->e);
    const struct zip_member *data = NULL;
    for (uint32_t i = 0; i < z.members.n && !data && !rc; i++) {
        const char *slash = strchr(z.members.at[i].name, '/');
        if (slash && !strcmp(slash, "/data.pkl")) data = &z.members.at[i];
    }
    if (!rc && (!data || !data->stored)) rc = error_set(r->e, PL_USAGE, "a zip archive without a data.pkl that can be read: not written by torch.save");
    if (!rc) rc = pickle_read(data->data, data->bytes, &used, &r->p->memory, &root, r->e);
    if (!rc) {
        int name = (int)(strchr(data->name, '/') - data->name);
        r->s = (struct storages){.zip = &z, .folder = bump_format(&r->p->memory, "%.*s/data/", name, data->name)};
        rc = add_state(r, root);
    }
    zip_free(&z);
    return rc;
}

/* Every storage that the tree names gets its element size, by key. */
static void find_sizes(struct pickle *p, const struct pickle *keys, uint64_t *each, int depth)
{
    const struct pickle *s = storage_tuple(p);
    if (p->weighed) return;
    p->weighed = true;
    for (uint32_t i = 0; s && i < keys->n; i++)
        if (keys->items[i]->kind == PICKLE_STRING && !strcmp(keys->items[i]->text, s->items[2]->text)) each[i] = element_bytes(s->items[1]);
    for (uint32_t i = 0; i < p->n && depth < PICKLE_DEPTH; i++) find_sizes(p->items[i], keys, each, depth + 1);
}

/* Behind the pickles: for each key its number of elements, 8 bytes, and the elements. */
static int place_storages(struct reading *r, struct pickle *root, size_t at)
{
    const struct pickle *keys = r->s.keys;
    uint64_t *each = bump_alloc(&r->p->memory, (keys->n + 1) * sizeof *each);
    memset(each, 0, (keys->n + 1) * sizeof *each);
    r->s.at = bump_alloc(&r->p->memory, (keys->n + 1) * sizeof *r->s.at);
    memset(r->s.at, 0, (keys->n + 1) * sizeof *r->s.at);
    r->s.elements = bump_alloc(&r->p->memory, (keys->n + 1) * sizeof *r->s.elements);
    find_sizes(root, keys, each, 0);
    for (uint32_t i = 0; i < keys->n; i++) {
        uint64_t elements = 0;
        if (keys->items[i]->kind != PICKLE_STRING || !each[i]) return error_set(r->e, PL_USAGE, "a storage of an unknown type");
        if (r->p->n - at < 8) return error_set(r->e, PL_USAGE, "cut off before storage %u of %u", i + 1, keys->n);
        for (int k = 0; k < 8; k++) elements |= (uint64_t)r->p->bytes[at + (size_t)k] << (8 * k);
        at += 8;
        if (elements > (r->p->n - at) / each[i]) return error_set(r->e, PL_USAGE, "cut off inside storage %u of %u", i + 1, keys->n);
        r->s.at[i] = r->p->bytes + at;
        r->s.elements[i] = elements;
        at += elements * each[i];
    }
    return PL_OK;
}

static int open_legacy(struct reading *r)
{
    struct pickle *part[5];
    size_t at = 0, used;
    int rc = PL_OK;
    for (int i = 0; i < 5 && !rc; i++, at += used) rc = pickle_read(r->p->bytes + at, r->p->n - at, &used, &r->p->memory, &part[i], r->e);
    if (rc) return error_prepend(r->e, "neither a zip archive nor a legacy checkpoint of torch.save");
    if (part[4]->kind != PICKLE_LIST || part[4]->n > LEGACY_KEYS) return error_set(r->e, PL_USAGE, "a legacy checkpoint without its list of storages");
    r->s = (struct storages){.keys = part[4]};
    rc = place_storages(r, part[3], at);
    return rc ? rc : add_state(r, part[3]);
}

int pth_open_memory(struct pth *p, const uint8_t *bytes, size_t n, struct error *e)
{
    *p = (struct pth){.bytes = bytes, .n = n};
    struct reading r = {.p = p, .e = e};
    int rc = zip_is(bytes, n) ? open_zip(&r) : open_legacy(&r);
    if (rc) {
        vec_free(&p->tensors);
        bump_free(&p->memory);
    }
    return rc;
}

int pth_open(struct pth *p, const char *path, struct error *e)
{
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_error(path, "open", e);
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || s.st_size < 16) {
        close(fd);
        return error_set(e, PL_USAGE, "%s: not a checkpoint: it is %s", path, S_ISREG(s.st_mode) ? "almost empty" : "no plain file");
    }
    void *map = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return file_error(path, "map", e);
    int rc = pth_open_memory(p, map, (size_t)s.st_size, e);
    if (rc) {
        munmap(map, (size_t)s.st_size);
        p->bytes = NULL;
        return error_prepend(e, "%s", path);
    }
    return PL_OK;
}

void pth_close(struct pth *p)
{
    if (p->bytes) munmap((void *)(uintptr_t)p->bytes, p->n);
    vec_free(&p->tensors);
    bump_free(&p->memory);
    p->bytes = NULL;
}

const struct pth_tensor *pth_find(const struct pth *p, const char *name)
{
    for (uint32_t i = 0; i < p->tensors.n; i++)
        if (!strcmp(p->tensors.at[i].name, name)) return &p->tensors.at[i];
    return NULL;
}

int64_t pth_elements(const struct pth_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dim[i];
    return n;
}

void pth_read(const struct pth_tensor *t, void *to)
{
    size_t each = dtype_size(t->dtype);
    int64_t n = pth_elements(t), at[PTH_RANK] = {0};
    for (int64_t i = 0; i < n; i++) {
        int64_t from = 0;
        for (int k = 0; k < t->rank; k++) from += at[k] * t->stride[k];
        memcpy((char *)to + (size_t)i * each, t->data + (size_t)from * each, each);
        for (int k = t->rank; k-- > 0 && ++at[k] == t->dim[k];) at[k] = 0;
    }
}
