/*
 * pth.c: see pth.h. This file reads; pth_write.c writes.
 */
#include "io/pth.h"

#include "io/file.h"

struct zip_member {
    const char *name;      /* in the bump, terminated */
    const uint8_t *data;
    uint64_t bytes;
    bool stored;           /* false: compressed, data is NULL */
};

struct zip {
    VEC(struct zip_member) members; /* sorted by name */
};

/* ---- Zip archives ----
 *
 * The directory at the end of the file has the offsets of the members:
 *
 *     member: header, name, extra, bytes   ...   directory   [64-bit end, its offset]   end
 */

enum { LOCAL = 0x04034b50, CENTRAL = 0x02014b50, END = 0x06054b50, END64 = 0x06064b50, PLACE64 = 0x07064b50,
       LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, PLACE64_BYTES = 20, END64_BYTES = 56 };

static uint64_t number(const uint8_t *p, int bytes)
{
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++) x |= (uint64_t)p[i] << (8 * i);
    return x;
}

static bool zip_is(const uint8_t *bytes, size_t n) { return n >= END_BYTES && number(bytes, 4) == LOCAL; }

static int damaged(struct error *e, const char *what)
{
    return error_set(e, PL_USAGE, "damaged zip archive: %s", what);
}

/* Finds the offset of the directory and its number of entries. */
static int find_directory(const uint8_t *bytes, size_t n, uint64_t *at, uint64_t *count, struct error *e)
{
    size_t k = n - END_BYTES, last = k > UINT16_MAX ? k - UINT16_MAX : 0;
    while (k > last && number(bytes + k, 4) != END) k--;
    if (number(bytes + k, 4) != END) return damaged(e, "no directory at its end; was the file truncated?");
    *count = number(bytes + k + 10, 2);
    *at = number(bytes + k + 16, 4);
    if (k < PLACE64_BYTES || number(bytes + k - PLACE64_BYTES, 4) != PLACE64) return PL_OK;
    uint64_t end = number(bytes + k - PLACE64_BYTES + 8, 8);
    if (end > n || n - end < END64_BYTES || number(bytes + end, 4) != END64)
        return damaged(e, "the 64-bit end record is not at its offset");
    *count = number(bytes + end + 32, 8);
    *at = number(bytes + end + 48, 8);
    return PL_OK;
}

struct pth_entry {
    uint64_t packed, bytes, at;
};

/* Reads the numbers that do not fit 32 bits from the extra field, in this order. */
static void read_extra(struct pth_entry *x, const uint8_t *extra, size_t n)
{
    while (n >= 4) {
        size_t length = number(extra + 2, 2);
        if (length > n - 4) return;
        if (number(extra, 2) == 1) {
            uint64_t *const wide[] = {&x->bytes, &x->packed, &x->at};
            const uint8_t *p = extra + 4;
            for (int i = 0; i < 3; i++)
                if (*wide[i] == UINT32_MAX && (size_t)(p - extra) + 8 <= 4 + length) *wide[i] = number(p, 8), p += 8;
            return;
        }
        extra += 4 + length;
        n -= 4 + length;
    }
}

static int add_member(struct zip *z, const uint8_t *bytes, size_t n, const uint8_t *central, struct bump *b,
                      struct error *e)
{
    struct pth_entry x = {number(central + 20, 4), number(central + 24, 4), number(central + 42, 4)};
    size_t name = number(central + 28, 2), extra = number(central + 30, 2);
    read_extra(&x, central + CENTRAL_BYTES + name, extra);
    if (x.at > n || n - x.at < LOCAL_BYTES || number(bytes + x.at, 4) != LOCAL)
        return damaged(e, "a member is not at the offset in the directory");
    uint64_t skip = LOCAL_BYTES + number(bytes + x.at + 26, 2) + number(bytes + x.at + 28, 2);
    bool stored = number(central + 10, 2) == 0 && x.packed == x.bytes;
    if (skip > n - x.at || x.packed > n - x.at - skip) return damaged(e, "a member ends beyond the end of the file");
    char *text = bump_alloc(b, name + 1);
    memcpy(text, central + CENTRAL_BYTES, name);
    text[name] = 0;
    vec_push(&z->members, ((struct zip_member){text, stored ? bytes + x.at + skip : NULL, x.bytes, stored}));
    return PL_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct zip_member *)a)->name, ((const struct zip_member *)b)->name);
}

/* Reads the directory; names live in `b`. Call zip_free after a failure too. */
static int zip_read(struct zip *z, const uint8_t *bytes, size_t n, struct bump *b, struct error *e)
{
    uint64_t at = 0, count = 0;
    *z = (struct zip){0};
    if (n < END_BYTES) return damaged(e, "too short");
    int rc = find_directory(bytes, n, &at, &count, e);
    for (uint64_t i = 0; i < count && !rc; i++) {
        if (at > n || n - at < CENTRAL_BYTES || number(bytes + at, 4) != CENTRAL)
            return damaged(e, "its directory is truncated");
        uint64_t length =
            CENTRAL_BYTES + number(bytes + at + 28, 2) + number(bytes + at + 30, 2) + number(bytes + at + 32, 2);
        if (length > n - at) return damaged(e, "its directory is truncated");
        rc = add_member(z, bytes, n, bytes + at, b, e);
        at += length;
    }
    if (!rc && z->members.n) qsort(z->members.at, z->members.n, sizeof *z->members.at, by_name);
    return rc;
}

static void zip_free(struct zip *z) { vec_free(&z->members); }

static const struct zip_member *zip_find(const struct zip *z, const char *name)
{
    struct zip_member key = {.name = name};
    return z->members.n ? bsearch(&key, z->members.at, z->members.n, sizeof key, by_name) : NULL;
}

/* Limits: storages of a legacy file; depth of nested dictionaries; elements that a tensor may
 * have beyond the bytes of its storage, when it repeats them (stride 0). */
enum { LEGACY_KEYS = 1 << 20, NESTED = 4, REPEATED = 1 << 20 };

/* One storage. */
struct pth_storage {
    const char *key;
    uint32_t order;             /* legacy: its index in the file */
    uint64_t each;              /* bytes of an element; 0: no tensor names the storage */
    const uint8_t *data;
    uint64_t bytes;
};

/* Where the bytes of storages are. */
struct storages {
    const struct zip *zip;      /* NULL: legacy */
    const char *folder;         /* "NAME/data/" */
    struct pth_storage *at;         /* legacy: sorted by key */
    uint32_t n;
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

/* Returns the dtype of "torch FloatStorage"; DT_NONE: unsupported. */
static enum dtype storage_type(const struct pickle *name)
{
    for (size_t i = 0; i < COUNT(types); i++)
        if (pickle_is_name(name, "torch", types[i].storage)) return types[i].dtype;
    return DT_NONE;
}

/* Returns the bytes of an element, also of unsupported storage types, to skip them; 0: unknown. */
static uint64_t element_bytes(const struct pickle *name)
{
    enum dtype t = storage_type(name);
    if (t != DT_NONE) return dtype_size(t);
    if (pickle_is_name(name, "torch", "BoolStorage") || pickle_is_name(name, "torch", "CharStorage")) return 1;
    return pickle_is_name(name, "torch", "ShortStorage") ? 2 : 0;
}

/* --- storages ------------------------------------------------------------------------- */

/* Reads the tuple ("storage", type, key, location, elements, ..) of a persistent id, or NULL. */
static const struct pickle *storage_tuple(const struct pickle *p)
{
    if (!p || p->kind != PICKLE_PERSISTENT) return NULL;
    const struct pickle *t = p->items[0];
    bool good = t->kind == PICKLE_TUPLE && t->n >= 5 && t->items[0]->kind == PICKLE_STRING &&
                !strcmp(t->items[0]->text, "storage") && t->items[1]->kind == PICKLE_NAME &&
                t->items[2]->kind == PICKLE_STRING && t->items[4]->kind == PICKLE_INT;
    /* A sixth item: the storage is a view of another, which torch no longer writes. */
    return good && (t->n < 6 || t->items[5]->kind == PICKLE_NONE) ? t : NULL;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct pth_storage *)a)->key, ((const struct pth_storage *)b)->key);
}

static struct pth_storage *find_storage(const struct storages *s, const char *key)
{
    struct pth_storage wanted = {.key = key};
    return s->n ? bsearch(&wanted, s->at, s->n, sizeof wanted, by_key) : NULL;
}

static int storage_bytes(struct reading *r, const char *key, const uint8_t **data, uint64_t *bytes)
{
    if (!r->s.zip) {
        const struct pth_storage *found = find_storage(&r->s, key);
        if (!found) return error_set(r->e, PL_USAGE, "storage %.64s is missing", key);
        *data = found->data;
        *bytes = found->bytes;
        return PL_OK;
    }
    char path[PICKLE_NAME_MOST];
    size_t a = strlen(r->s.folder), b = strlen(key);
    if (a + b >= sizeof path) return error_set(r->e, PL_USAGE, "the name of a storage has %zu bytes", b);
    memcpy(path, r->s.folder, a);
    memcpy(path + a, key, b + 1);
    const struct zip_member *m = zip_find(r->s.zip, path);
    if (!m) return error_set(r->e, PL_USAGE, "%s is missing from the archive", path);
    if (!m->stored) return error_set(r->e, PL_USAGE, "%s is compressed; save it again with torch.save", path);
    *data = m->data;
    *bytes = m->bytes;
    return PL_OK;
}

/* --- tensors --------------------------------------------------------------------------- */

static bool whole_numbers(const struct pickle *t, int64_t *to)
{
    if (!t || (t->kind != PICKLE_TUPLE && t->kind != PICKLE_LIST) || t->n > PTH_RANK) return false;
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->items[i]->kind != PICKLE_INT || t->items[i]->integer < 0 || t->items[i]->integer > INT64_MAX / 64)
            return false;
        to[i] = t->items[i]->integer;
    }
    return true;
}

/* Reports whether a tensor is empty: its other sizes are not bounded. */
static bool is_empty(const struct pth_tensor *t)
{
    for (int i = 0; i < t->rank; i++)
        if (!t->dim[i]) return true;
    return false;
}

/* Returns the distance from the first element to the last one touched; false: beyond any file. */
static bool last_element(const struct pth_tensor *t, uint64_t *last)
{
    uint64_t sum = 0;
    for (int i = 0; i < t->rank; i++) {
        uint64_t part;
        if (__builtin_mul_overflow((uint64_t)t->dim[i] - 1, (uint64_t)t->stride[i], &part) ||
            __builtin_add_overflow(sum, part, &sum))
            return false;
    }
    *last = sum;
    return true;
}

static const struct pickle *tensor_arguments(const struct pickle *p, int depth);

/* Returns the arguments of the call `name`(a) when it rebuilds a tensor, unwrapped from the calls
 * that build a parameter or a tensor subclass; NULL: the call builds something else. */
static const struct pickle *rebuild_arguments(const struct pickle *name, const struct pickle *a, int depth)
{
    if (a->kind != PICKLE_TUPLE || depth > 4) return NULL;
    if (pickle_is_name(name, "torch._utils", "_rebuild_parameter") ||
        pickle_is_name(name, "torch._utils", "_rebuild_parameter_with_state"))
        return a->n ? tensor_arguments(a->items[0], depth + 1) : NULL;
    if (pickle_is_name(name, "torch._tensor", "_rebuild_from_type_v2")) /* function, type, its arguments, state */
        return a->n >= 3 ? rebuild_arguments(a->items[0], a->items[2], depth + 1) : NULL;
    bool tensor = pickle_is_name(name, "torch._utils", "_rebuild_tensor_v2") ||
                  pickle_is_name(name, "torch._utils", "_rebuild_tensor") ||
                  pickle_is_name(name, "torch._utils", "_rebuild_tensor_v3");
    return tensor && a->n >= 4 ? a : NULL;
}

static const struct pickle *tensor_arguments(const struct pickle *p, int depth)
{
    return p && p->kind == PICKLE_CALL && p->n >= 2 ? rebuild_arguments(p->items[0], p->items[1], depth) : NULL;
}

/* Reports whether all elements are inside the storage, and how many there are. The count is
 * bounded by the storage plus a little: a file of a few bytes cannot demand a disk full of
 * zeros. */
static bool fits(const struct pth_tensor *t, uint64_t offset, uint64_t bytes)
{
    uint64_t last, elements = 1, each = dtype_size(t->dtype);
    if (is_empty(t)) return true;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(elements, (uint64_t)t->dim[i], &elements)) return false;
    if (!last_element(t, &last) || last >= bytes || offset >= bytes) return false;
    return offset + last + 1 <= bytes / each && elements <= bytes / each + REPEATED;
}

static int add_tensor(struct reading *r, const char *name, const struct pickle *a)
{
    struct pth_tensor t = {.name = name};
    const struct pickle *s = storage_tuple(a->items[0]);
    uint64_t bytes = 0;
    if (!s || a->items[1]->kind != PICKLE_INT || a->items[1]->integer < 0 || !whole_numbers(a->items[2], t.dim) ||
        !whole_numbers(a->items[3], t.stride) || a->items[2]->n != a->items[3]->n)
        return error_set(r->e, PL_USAGE, "tensor %.200s: its description is damaged", name);
    t.dtype = storage_type(s->items[1]);
    if (t.dtype == DT_NONE) {
        r->p->skipped++;
        return PL_OK;
    }
    t.rank = (int)a->items[2]->n;
    uint64_t offset = (uint64_t)a->items[1]->integer;
    if (storage_bytes(r, s->items[2]->text, &t.data, &bytes)) return error_prepend(r->e, "tensor %.200s", name);
    if (!fits(&t, offset, bytes))
        return error_set(r->e, PL_USAGE,
                         "tensor %.200s does not fit its storage of %llu bytes; was the file truncated?", name,
                         (unsigned long long)bytes);
    if (pth_elements(&t)) t.data += offset * dtype_size(t.dtype);
    vec_push(&r->p->tensors, t);
    return PL_OK;
}

/* --- the state dictionary ------------------------------------------------------------------ */

static bool is_tensor(const struct pickle *d, uint32_t i)
{
    return d->items[i]->kind == PICKLE_STRING && tensor_arguments(d->items[i + 1], 0);
}

static uint32_t count_tensors(const struct pickle *d)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i + 1 < d->n; i += 2) n += is_tensor(d, i);
    return n;
}

/* Keeps in *best the dictionary with the most tensors, because a training state also has the loss
 * and the optimizer state. Among equal counts the first wins: training programs save the model
 * first (an averaged copy has as many tensors). */
static void find_state(struct pickle *d, int depth, const struct pickle **best, uint32_t *most)
{
    static const char *const usual[] = {"model",  "state_dict", "model_state_dict", "model_state", "net",
                                        "params", "module"};
    if (!d || d->kind != PICKLE_DICT || d->seen || depth > NESTED) return;
    d->seen = true;
    uint32_t n = count_tensors(d);
    if (n > *most) *most = n, *best = d;
    for (size_t i = 0; i < COUNT(usual); i++) find_state(pickle_get(d, usual[i]), depth + 1, best, most);
    for (uint32_t i = 1; i < d->n; i += 2) find_state(d->items[i], depth + 1, best, most);
}

/* Reports whether every tensor's name has `prefix` after its first `cut` bytes. */
static bool all_begin(const struct pickle *d, size_t cut, const char *prefix)
{
    size_t n = strlen(prefix);
    for (uint32_t i = 0; i + 1 < d->n; i += 2)
        if (is_tensor(d, i) && (d->items[i]->length <= cut + n || strncmp(d->items[i]->text + cut, prefix, n)))
            return false;
    return true;
}

/* Returns the length of the prefixes that wrappers put before every name. */
static size_t wrapper_length(const struct pickle *d)
{
    static const char *const wrappers[] = {"module.", "_orig_mod.", "model.", "sam."};
    size_t cut = 0;
    for (size_t w = 0; w < COUNT(wrappers); w++)
        if (all_begin(d, cut, wrappers[w])) {
            cut += strlen(wrappers[w]);
            w = (size_t)-1; /* several wrappers, in any order */
        }
    return cut;
}

static int by_tensor_name(const void *a, const void *b)
{
    const struct pth_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Builds the index by name and checks that no name occurs twice. */
static int sort_names(struct pth *p, struct error *e)
{
    p->by_name = bump_alloc(&p->memory, (p->tensors.n + 1) * sizeof *p->by_name);
    for (uint32_t i = 0; i < p->tensors.n; i++) p->by_name[i] = &p->tensors.at[i];
    if (p->tensors.n) qsort(p->by_name, p->tensors.n, sizeof *p->by_name, by_tensor_name);
    for (uint32_t i = 1; i < p->tensors.n; i++)
        if (!by_tensor_name(&p->by_name[i - 1], &p->by_name[i]))
            return error_set(e, PL_USAGE, "two tensors have the name %.200s", p->by_name[i]->name);
    return PL_OK;
}

static int add_state(struct reading *r, struct pickle *root)
{
    const struct pickle *d = NULL;
    uint32_t most = 0;
    find_state(root, 0, &d, &most);
    if (!d && root->kind == PICKLE_CALL)
        return error_set(r->e, PL_USAGE,
                         "holds a whole Python object (%.200s), which only its own program can load; nothing in it was "
                         "executed. In that program: "
                         "torch.save(model.state_dict(), \"weights.pth\")",
                         root->items[0]->kind == PICKLE_NAME ? root->items[0]->text : "of a computed type");
    if (!d)
        return error_set(r->e, PL_USAGE,
                         "it has no dictionary of tensors: expected a file from torch.save(model.state_dict())");
    size_t cut = wrapper_length(d);
    int rc = PL_OK;
    for (uint32_t i = 0; i + 1 < d->n && !rc; i += 2) {
        if (!is_tensor(d, i)) continue;
        if (strlen(d->items[i]->text) != d->items[i]->length)
            rc = error_set(r->e, PL_USAGE, "a name contains a zero byte");
        else rc = add_tensor(r, d->items[i]->text + cut, tensor_arguments(d->items[i + 1], 0));
    }
    return rc ? rc : sort_names(r->p, r->e);
}

/* --- the two formats -------------------------------------------------------------------------- */

/* Returns "NAME/data.pkl"; NULL: not written by torch.save. */
static const struct zip_member *find_data(const struct zip *z)
{
    for (uint32_t i = 0; i < z->members.n; i++) {
        const char *slash = strchr(z->members.at[i].name, '/');
        if (slash && !strcmp(slash, "/data.pkl") && z->members.at[i].stored) return &z->members.at[i];
    }
    return NULL;
}

/* Reads the archive's byte order; an archive without one is little-endian. */
static int check_order(struct reading *r, const struct zip *z, const char *archive)
{
    const struct zip_member *m = zip_find(z, bump_format(&r->p->memory, "%s/byteorder", archive));
    if (!m || !m->stored || (m->bytes == 6 && !memcmp(m->data, "little", 6))) return PL_OK;
    return error_set(r->e, PL_USAGE, "the data is big-endian; save it again on a little-endian machine");
}

static int read_archive(struct reading *r, const struct zip *z)
{
    const struct zip_member *data = find_data(z);
    struct pickle *root;
    size_t used;
    if (!data) return error_set(r->e, PL_USAGE, "the zip archive has no readable data.pkl: not written by torch.save");
    char *archive = bump_string(&r->p->memory, data->name);
    *strchr(archive, '/') = 0;
    r->s = (struct storages){.zip = z, .folder = bump_format(&r->p->memory, "%s/data/", archive)};
    TRY(check_order(r, z, archive));
    TRY(pickle_read(data->data, data->bytes, &used, &r->p->memory, &root, r->e));
    return add_state(r, root);
}

static int open_zip(struct reading *r)
{
    struct zip z;
    int rc = zip_read(&z, r->p->bytes, r->p->n, &r->p->memory, r->e);
    if (!rc) rc = read_archive(r, &z);
    zip_free(&z);
    return rc;
}

/* Sets the element size of every storage that the tree names. */
static void find_sizes(struct pickle *p, struct storages *all, int depth)
{
    if (p->weighed) return;
    p->weighed = true;
    const struct pickle *s = storage_tuple(p);
    struct pth_storage *found = s ? find_storage(all, s->items[2]->text) : NULL;
    if (found) found->each = element_bytes(s->items[1]);
    for (uint32_t i = 0; i < p->n && depth < PICKLE_DEPTH; i++) find_sizes(p->items[i], all, depth + 1);
}

static int list_storages(struct reading *r, const struct pickle *keys)
{
    if (keys->kind != PICKLE_LIST || keys->n > LEGACY_KEYS)
        return error_set(r->e, PL_USAGE, "the legacy checkpoint has no list of storages");
    r->s = (struct storages){.at = bump_alloc(&r->p->memory, (keys->n + 1) * sizeof *r->s.at), .n = keys->n};
    for (uint32_t i = 0; i < keys->n; i++) {
        if (keys->items[i]->kind != PICKLE_STRING) return error_set(r->e, PL_USAGE, "a storage has no name");
        r->s.at[i] = (struct pth_storage){.key = keys->items[i]->text, .order = i};
    }
    if (keys->n) qsort(r->s.at, keys->n, sizeof *r->s.at, by_key);
    for (uint32_t i = 1; i < keys->n; i++)
        if (!by_key(&r->s.at[i - 1], &r->s.at[i])) return error_set(r->e, PL_USAGE, "two storages have the same name");
    return PL_OK;
}

/* Finds what follows the pickles: for each key, in the order of the list, the number of elements
 * (8 bytes) and the elements. */
static int place_storages(struct reading *r, size_t at)
{
    struct pth_storage **in_file = bump_alloc(&r->p->memory, (r->s.n + 1) * sizeof *in_file);
    for (uint32_t i = 0; i < r->s.n; i++) in_file[r->s.at[i].order] = &r->s.at[i];
    for (uint32_t i = 0; i < r->s.n; i++) {
        struct pth_storage *s = in_file[i];
        uint64_t elements = 0;
        if (!s->each) return error_set(r->e, PL_USAGE, "storage %.64s has an unknown type", s->key);
        if (r->p->n - at < 8) return error_set(r->e, PL_USAGE, "truncated before storage %u of %u", i + 1, r->s.n);
        for (int k = 0; k < 8; k++) elements |= (uint64_t)r->p->bytes[at + (size_t)k] << (8 * k);
        at += 8;
        if (elements > (r->p->n - at) / s->each)
            return error_set(r->e, PL_USAGE, "truncated inside storage %u of %u", i + 1, r->s.n);
        s->data = r->p->bytes + at;
        s->bytes = elements * s->each;
        at += s->bytes;
    }
    return PL_OK;
}

/* Reads the pickles: magic number, version, machine properties, object, keys of the storages. */
static int open_legacy(struct reading *r)
{
    struct pickle *part[5] = {0};
    size_t at = 0, used;
    int rc = PL_OK;
    for (int i = 0; i < 5 && !rc; i++, at += used) {
        rc = pickle_read(r->p->bytes + at, r->p->n - at, &used, &r->p->memory, &part[i], r->e);
        if (i == 1 && !rc && (part[1]->kind != PICKLE_INT || part[1]->integer != 1001))
            rc = error_set(r->e, PL_USAGE, "the second pickle is not version 1001");
    }
    if (rc) return error_prepend(r->e, "neither a zip archive nor a legacy checkpoint of torch.save");
    const struct pickle *little = pickle_get(part[2], "little_endian");
    if (little && !little->integer)
        return error_set(r->e, PL_USAGE, "the data is big-endian; save it again on a little-endian machine");
    rc = list_storages(r, part[4]);
    if (!rc) {
        find_sizes(part[3], &r->s, 0);
        rc = place_storages(r, at);
    }
    return rc ? rc : add_state(r, part[3]);
}

int pth_open_memory(struct pth *p, const uint8_t *bytes, size_t n, struct error *e)
{
    *p = (struct pth){.bytes = bytes, .n = n};
    struct reading r = {.p = p, .e = e};
    int rc = zip_is(bytes, n) ? open_zip(&r) : open_legacy(&r);
    if (rc) pth_close(p);
    return rc;
}

int pth_open(struct pth *p, const char *path, struct error *e)
{
    struct mapped *map = mem_alloc(sizeof *map);
    int rc = file_map(map, path, e);
    if (!rc && map->bytes < 16) rc = error_set(e, PL_USAGE, "%s: not a checkpoint: it is almost empty", path);
    else if (!rc) {
        rc = pth_open_memory(p, (const uint8_t *)map->at, map->bytes, e);
        if (rc) error_prepend(e, "%s", path);
        if (mapped_failed(map)) { /* that is the reason, whatever was parsed */
            if (!rc) pth_close(p);
            rc = mapped_check(map, path, e);
        }
    }
    if (!rc) return p->map = map, PL_OK;
    mapped_close(map);
    mem_free(map);
    return rc;
}

void pth_close(struct pth *p)
{
    if (p->map) mapped_close(p->map);
    mem_free(p->map);
    vec_free(&p->tensors);
    bump_free(&p->memory);
    *p = (struct pth){0};
}

const struct pth_tensor *pth_find(const struct pth *p, const char *name)
{
    struct pth_tensor wanted = {.name = name};
    const struct pth_tensor *key = &wanted;
    const struct pth_tensor **found =
        p->tensors.n ? bsearch(&key, p->by_name, p->tensors.n, sizeof key, by_tensor_name) : NULL;
    return found ? *found : NULL;
}

int64_t pth_elements(const struct pth_tensor *t)
{
    int64_t n = !is_empty(t);
    for (int i = 0; i < t->rank && n; i++) n *= t->dim[i];
    return n;
}

bool pth_is_contiguous(const struct pth_tensor *t)
{
    int64_t each = 1;
    if (is_empty(t)) return true;
    for (int i = t->rank; i-- > 0; each *= t->dim[i])
        if (t->dim[i] != 1 && t->stride[i] != each) return false;
    return true;
}

void pth_read(const struct pth_tensor *t, void *to)
{
    size_t each = dtype_size(t->dtype);
    int64_t n = pth_elements(t), at[PTH_RANK] = {0};
    if (!n) return;
    if (pth_is_contiguous(t)) {
        memcpy(to, t->data, (size_t)n * each);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t from = 0;
        for (int k = 0; k < t->rank; k++) from += at[k] * t->stride[k];
        memcpy((char *)to + (size_t)i * each, t->data + (size_t)from * each, each);
        for (int k = t->rank; k-- > 0 && ++at[k] == t->dim[k];) at[k] = 0;
    }
}

int pth_check(const struct pth *p, const char *path, struct error *e)
{
    return p->map ? mapped_check(p->map, path, e) : PL_OK;
}
