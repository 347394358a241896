/*
 * packed.c: the format `packed`: memory-mapped files of packed.h, one after the other.
 *
 * Invariant: in an opened file every number that is used for an address has been checked, so the
 * functions below do not check. A file that becomes shorter while it is mapped reads as zeros
 * (base/mapped.h): a sample's record is therefore copied before it is used, and dataset_intact
 * fails. A store is replaced by renaming, as packed_finish does.
 */
#include "data/formats/packed.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/coding.h"
#include "base/mapped.h"
#include "data/dataset.h"
#include "io/file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a packed store is read in place");
_Static_assert(sizeof(struct packed_header) == 80 && sizeof(struct packed_sample) == 56 &&
                   sizeof(struct packed_mask) == 56 && sizeof(struct packed_category) == 8 &&
                   sizeof(struct packed_embeddings) == 192 && sizeof(struct packed_range) == 40,
               "the file's structs have these sizes");

/* --- checking -------------------------------------------------------------------------- */

/* Reports whether a store has embeddings and nothing else. */
static bool is_alone(const struct packed_header *h) { return h->version >= PACKED_EMBEDDINGS_ALONE; }

static int check_header(const struct packed_header *h, size_t n, struct error *e)
{
    if (n < PACKED_DATA || memcmp(h->magic, PACKED_MAGIC, sizeof h->magic))
        return error_set(e, PL_USAGE,
                         "it does not begin like a packed store; it is another file, or was never finished");
    if (h->version < PACKED_VERSION || h->version > PACKED_ANY_SIZE)
        return error_set(e, PL_USAGE,
                         "the packed store has version %u, this program reads versions %d to %d: write it again with "
                         "`plimsoll data pack`", h->version, PACKED_VERSION, PACKED_ANY_SIZE);
    if (h->header_sum != crc32c(0, h, offsetof(struct packed_header, header_sum)))
        return error_set(e, PL_USAGE, "its header is damaged: the checksum is wrong");
    if (h->bytes != n)
        return error_set(e, PL_USAGE, "it has %zu bytes, its header says %llu: it was truncated, or copied in part", n,
                         (unsigned long long)h->bytes);
    const bool alone = is_alone(h);
    if (alone && (h->cells || h->masks))
        return error_set(e, PL_USAGE, "it has only embeddings, and its header speaks of masks");
    if (!h->side || h->side > PACKED_MAX_SIDE || (!h->cells && !alone) || h->cells > PACKED_MAX_SIDE)
        return error_set(e, PL_USAGE, "its images have a side of %u, its masks of %u; expected 1 to %d", h->side,
                         h->cells, PACKED_MAX_SIDE);
    return PL_OK;
}

size_t packed_embedding_bytes(const struct packed_embeddings *e)
{
    return (size_t)e->channels * (e->tokens ? e->tokens : (size_t)e->grid * e->grid) *
           dtype_size(packed_dtype(e->type));
}

enum dtype packed_dtype(uint32_t type) { return type == PACKED_F32 ? DT_F32 : type == PACKED_BF16 ? DT_BF16 : DT_NONE; }

static int check_embeddings(const struct packed_embeddings *x, const struct packed_header *h, struct error *e)
{
    const bool alone = is_alone(h);
    const uint32_t side = h->side;
    if (x->sum != crc32c(0, x, offsetof(struct packed_embeddings, sum)))
        return error_set(e, PL_USAGE, "the description of its embeddings is damaged: the checksum is wrong");
    if (packed_dtype(x->type) == DT_NONE)
        return error_set(e, PL_USAGE, "its embeddings have type %u; expected %d (f32) or %d (bf16)", x->type,
                         PACKED_F32, PACKED_BF16);
    if (!x->channels || x->channels > PACKED_MAX_CHANNELS ||
        (alone ? !x->tokens || x->tokens > PACKED_MAX_TOKENS || x->grid : !x->grid || x->grid > side || x->tokens))
        return error_set(e, PL_USAGE,
            "its embeddings have %u channels of %u tokens on a grid of %u; expected 1 to %d, and 1 to %d or 1 to %u",
            x->channels, x->tokens, x->grid, PACKED_MAX_CHANNELS, PACKED_MAX_TOKENS, side);
    if (x->any_size != (h->version == PACKED_ANY_SIZE))
        return error_set(e, PL_USAGE, "its version %u and its embeddings do not say the same of the size of images",
                         h->version);
    if (x->model[sizeof x->model - 1])
        return error_set(e, PL_USAGE, "the name of its embeddings' model is not terminated");
    return PL_OK;
}

static int check_range(const struct packed_range *r, struct error *e)
{
    const bool sound = r->kind <= PACKED_REAL_WINDOW && r->window[0] < RANGE_VALUES && r->window[1] < RANGE_VALUES &&
                       (r->kind != RANGE_WINDOW || r->window[0] < r->window[1]) &&
                       (r->kind != PACKED_REAL_WINDOW || r->percentiles[0] < r->percentiles[1]) &&
                       isfinite(r->percentiles[0]) && isfinite(r->percentiles[1]);
    if (r->sum == crc32c(0, r, offsetof(struct packed_range, sum)) && sound) return PL_OK;
    return error_set(e, PL_USAGE, "the description of its images' range is damaged: the checksum or a value is wrong");
}

/* Sets the pointers to the four tables of the index, which must end where the file does. */
static int locate_index(struct packed_file *f, size_t n, struct error *e)
{
    const struct packed_header *h = &f->header;
    uint64_t most = n / 8; /* no count is larger, so no product below overflows */
    bool sound = h->index >= PACKED_DATA && h->index <= n && h->index % 8 == 0 && h->samples <= most &&
                 h->masks <= most && h->categories <= most && h->names && h->names <= n;
    uint64_t masks = 0, categories = 0, names = 0;
    if (sound) {
        masks = h->index + h->samples * sizeof *f->samples;
        categories = masks + h->masks * sizeof *f->masks;
        names = categories + h->categories * sizeof *f->categories;
        sound = names <= n && h->names == n - names;
    }
    if (!sound) return error_set(e, PL_USAGE, "its index does not end where the file does");
    f->samples = (const void *)(f->at + h->index);
    f->masks = (const void *)(f->at + masks);
    f->categories = (const void *)(f->at + categories);
    f->names = (const char *)f->at + names;
    if (h->index_sum != crc32c(0, f->at + h->index, (size_t)(n - h->index)))
        return error_set(e, PL_USAGE, "its index is damaged: the checksum is wrong");
    if (f->names[h->names - 1]) return error_set(e, PL_USAGE, "its last name is not terminated");
    return PL_OK;
}

static bool check_sample(const struct packed_file *f, const struct packed_sample *s)
{
    const struct packed_header *h = &f->header;
    if (s->at < PACKED_DATA || s->at % PACKED_ALIGN || s->at > h->index || h->index - s->at < f->head_bytes)
        return false;
    if (s->first > h->masks || s->masks > h->masks - s->first) return false;
    if (s->masks > (h->index - s->at - f->head_bytes) / f->mask_bytes) return false;
    if (!s->rows || s->rows > h->side || !s->columns || s->columns > h->side) return false;
    return s->h && s->w && s->h <= 1u << 20 && s->w <= 1u << 20 && s->name < h->names && s->key < h->names &&
           s->group <= h->names;
}

/* Reports whether an image has as many embeddings as its tiles, or its tokens, are. */
static bool check_shape(const struct packed_header *h, const struct packed_sample *s)
{
    const uint64_t cells = (uint64_t)s->rows * s->columns;
    if (h->version == PACKED_ANY_SIZE) return s->fault || cells == s->count;
    return !(s->rows || s->columns) || cells + 1 == s->count;
}

/* Checks a sample that has only embeddings. Names are ascending, each once. */
static bool check_output(const struct packed_file *f, uint64_t i)
{
    const struct packed_header *h = &f->header;
    const struct packed_sample *s = &f->samples[i], *before = i ? s - 1 : NULL;
    if (s->at < PACKED_DATA || s->at % PACKED_ALIGN || s->at > h->index || s->masks || s->first ||
        s->fault >= FAULT_KINDS)
        return false;
    if (!s->count || (!s->fault && s->count > (h->index - s->at) / packed_embedding_bytes(f->embeddings)) ||
        s->replaced > s->count)
        return false;
    return check_shape(h, s) && s->name < h->names && s->key < h->names &&
           (!before || strcmp(f->names + before->name, f->names + s->name) < 0);
}

static bool check_mask(const struct packed_mask *m)
{
    return isfinite(m->area) && isfinite(m->box[0]) && isfinite(m->box[1]) && isfinite(m->box[2]) &&
           isfinite(m->box[3]) && isfinite(m->predicted_iou) && isfinite(m->stability);
}

int packed_parse(struct packed_file *f, const void *bytes, size_t n, struct error *e)
{
    *f = (struct packed_file){.at = bytes};
    CHECK((uintptr_t)bytes % PACKED_ALIGN == 0);
    if (n < sizeof f->header) return error_set(e, PL_USAGE, "it has %zu bytes; a packed store has more", n);
    memcpy(&f->header, bytes, sizeof f->header);
    if (check_header(&f->header, n, e) || locate_index(f, n, e)) return e->code;
    const struct packed_header *h = &f->header;
    const bool alone = is_alone(h);
    f->encoded_bytes = (size_t)align_up((uint64_t)h->side * h->side * 3, PACKED_ALIGN);
    if (h->version != PACKED_VERSION) {
        f->embeddings = (const void *)(f->at + sizeof *h);
        if (check_embeddings(f->embeddings, h, e)) return e->code;
        f->embedding_bytes = (size_t)align_up(packed_embedding_bytes(f->embeddings), PACKED_ALIGN);
    }
    const struct packed_range *range = (const void *)(f->at + PACKED_RANGE);
    if (range->kind && check_range(range, e)) return e->code;
    if (range->kind) f->range = range;
    f->head_bytes = f->encoded_bytes + f->embedding_bytes;
    f->stride = grid_stride(h->cells);
    f->mask_bytes = grid_mask_bytes(h->cells, h->cells);
    for (uint64_t i = 0; i < h->samples; i++)
        if (alone ? !check_output(f, i) : !check_sample(f, &f->samples[i]))
            return error_set(e, PL_USAGE, "sample %llu of its index is invalid", (unsigned long long)i);
    for (uint64_t i = 0; i < h->masks; i++)
        if (!check_mask(&f->masks[i]))
            return error_set(e, PL_USAGE, "mask %llu of its index is invalid", (unsigned long long)i);
    for (uint64_t i = 0; i < h->categories; i++)
        if (f->categories[i].name >= h->names)
            return error_set(e, PL_USAGE, "category %llu of its index has no name", (unsigned long long)i);
    return PL_OK;
}

bool packed_is(const char *path)
{
    char magic[sizeof PACKED_MAGIC - 1] = {0};
    struct error ignored;
    int fd = dir_exists(path) ? -1 : file_open(path, NULL, &ignored);
    if (fd < 0) return false;
    const bool found =
        pread(fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic && !memcmp(magic, PACKED_MAGIC, sizeof magic);
    close(fd);
    return found;
}

int packed_peek(const char *path, struct packed_header *header, struct packed_embeddings *out, struct error *e)
{
    struct {
        struct packed_header header;
        struct packed_embeddings embeddings;
    } head = {0};
    uint64_t bytes;
    int fd = file_open(path, &bytes, e), rc = PL_OK;
    *out = (struct packed_embeddings){0};
    if (fd < 0) return e->code;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head)
        rc = error_set(e, PL_USAGE, "it is too short for a packed store");
    if (!rc) rc = check_header(&head.header, (size_t)bytes, e);
    close(fd);
    if (!rc && head.header.version != PACKED_VERSION) {
        rc = check_embeddings(&head.embeddings, &head.header, e);
        if (!rc) *out = head.embeddings;
    }
    *header = head.header;
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

/* --- opening ---------------------------------------------------------------------------- */

struct packed {
    struct packed_part {
        struct packed_file file;
        struct mapped map;
        char *path;
        uint64_t first; /* index of its first sample */
        atomic_uchar *checked; /* a bit per sample: its checksum was compared once */
    } *parts;
    uint32_t n;
    int32_t *only;      /* [n_only] categories; none: all */
    uint32_t n_only;
};

static void close_part(struct packed_part *p)
{
    mapped_close(&p->map);
    mem_free(p->path);
    mem_free(p->checked);
}

static void packed_close(struct dataset *d)
{
    struct packed *p = d->state;
    for (uint32_t i = 0; i < p->n; i++) close_part(&p->parts[i]);
    mem_free(p->parts);
    mem_free(p->only);
}

static int open_part(struct packed_part *p, const char *path, struct error *e)
{
    TRY(file_map(&p->map, path, e));
    p->path = mem_string(path);
    int rc = PL_OK;
    if (p->map.bytes < PACKED_DATA)
        rc = error_set(e, PL_USAGE, "%s: it has %zu bytes; a packed store has more", path, p->map.bytes);
    else if (packed_parse(&p->file, p->map.at, p->map.bytes, e)) rc = error_prepend(e, "%s", path);
    if (mapped_failed(&p->map)) rc = mapped_check(&p->map, path, e); /* that is the reason, whatever was parsed */
    if (rc) close_part(p);
    else p->checked = mem_alloc((size_t)p->file.header.samples / 8 + 1);
    return rc;
}

/* Finds a category by name or by number. */
static int find_category(const struct packed *p, const char *word, int32_t *to, struct error *e)
{
    char *end;
    long long number = strtoll(word, &end, 10);
    if (end != word && !*end && number >= INT32_MIN && number <= INT32_MAX) {
        *to = (int32_t)number;
        return PL_OK;
    }
    for (uint32_t k = 0; k < p->n; k++)
        for (uint64_t i = 0; i < p->parts[k].file.header.categories; i++) {
            const struct packed_category *c = &p->parts[k].file.categories[i];
            if (strcmp(p->parts[k].file.names + c->name, word)) continue;
            *to = c->number;
            return PL_OK;
        }
    return error_set(e, PL_USAGE, "the packed store has no category %s", word);
}

/* Notes the range of the first file, which is that of the dataset. */
static void note_range(struct dataset *d, const struct packed_part *part, bool first, const char *path)
{
    const struct packed_range *r = part->file.range;
    struct pixel_range x = {0};
    char here[96], there[96];
    if (r && r->kind == PACKED_REAL_WINDOW)
        x = (struct pixel_range){.kind = RANGE_WINDOW, .window = {r->percentiles[0], r->percentiles[1]}};
    else if (r)
        x = (struct pixel_range){.kind = (enum range_kind)r->kind, .window = {r->window[0], r->window[1]},
                                 .percentiles = {r->percentiles[0], r->percentiles[1]}};
    if (first) d->range = x;
    else if (x.kind != d->range.kind || memcmp(x.window, d->range.window, sizeof x.window))
        log_warn("%s: its images of 16 bits were packed with the range %s, those of the first file with %s: pack all "
                 "of them with the same --range", path, range_print(&x, here), range_print(&d->range, there));
}

static int check_kind(const struct packed_header *h, const struct dataset_options *o, const char *path, struct error *e)
{
    const bool alone = is_alone(h);
    if (alone == o->embeddings_alone) return PL_OK;
    if (alone)
        return error_set(e, PL_USAGE,
                         "%s has embeddings of the images of conversations, and neither images nor masks: it is for "
                         "data.images of a run with data.format conversations", path);
    return error_set(e, PL_USAGE,
                     "%s is a packed store of images with masks; expected one that `plimsoll data pack --embeddings` "
                     "makes of conversations", path);
}

static int packed_open(struct dataset *d, const struct dataset_options *o, struct names *paths, struct error *e)
{
    struct packed *p = d->state;
    p->parts = mem_alloc(paths->n * sizeof *p->parts);
    for (uint32_t i = 0; i < paths->n; i++) {
        struct packed_part *part = &p->parts[p->n];
        TRY(open_part(part, paths->at[i], e));
        const struct packed_header *h = &part->file.header;
        p->n++;
        TRY(check_kind(h, o, paths->at[i], e));
        part->first = d->total;
        d->total += h->samples;
        d->fingerprint = hash_bytes(h, sizeof *h, d->fingerprint);
        const struct packed_embeddings *x = part->file.embeddings;
        bool alike =
            x && (p->n == 1 || (d->embeddings && !memcmp(x, d->embeddings, offsetof(struct packed_embeddings, model))));
        d->embeddings = alike ? x : NULL;
        d->report.members += h->samples;
        note_range(d, part, p->n == 1, paths->at[i]);
    }
    p->only = mem_alloc(o->n_categories * sizeof *p->only);
    for (uint32_t i = 0; i < o->n_categories; i++) TRY(find_category(p, o->categories[i], &p->only[p->n_only++], e));
    return PL_OK;
}

/* --- reading ---------------------------------------------------------------------------- */

/* Returns the part of a sample, and a copy of its record. */
static const struct packed_part *find(const struct dataset *d, uint64_t i, struct packed_sample *s)
{
    const struct packed *p = d->state;
    uint32_t low = 0, high = p->n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        *(p->parts[middle].first <= i ? &low : &high) = middle;
    }
    *s = p->parts[low].file.samples[i - p->parts[low].first];
    return &p->parts[low];
}

static void packed_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key)
{
    struct packed_sample s;
    const struct packed_file *f = &find(d, i, &s)->file;
    *key = f->names + s.key;
    snprintf(name, room, "%s", f->names + s.name);
}

static bool packed_split_group(const struct dataset *d, uint64_t i, char *out, size_t room)
{
    struct packed_sample s;
    const struct packed_file *f = &find(d, i, &s)->file;
    if (is_alone(&f->header) || !s.group) return false;
    snprintf(out, room, "%s", f->names + s.group - 1);
    return true;
}

static enum data_fault packed_image(const struct dataset *d, uint64_t i, void *to, size_t room,
                                    struct dataset_image *out, struct error *e)
{
    struct packed_sample s;
    const struct packed_part *part = find(d, i, &s);
    const struct packed_file *f = &part->file;
    (void)to, (void)room;
    if (mapped_check(&part->map, part->path, e)) return FAULT_READ;
    *out = (struct dataset_image){.n = (size_t)s.rows * s.columns * 3, .decoded = true, .h = s.rows, .w = s.columns,
                                  .pixels = f->at + s.at, .stride = (size_t)f->header.side * 3, .full_h = s.h,
                                  .full_w = s.w};
    return FAULT_NONE;
}

static bool wanted(const struct packed *p, int32_t category)
{
    for (uint32_t i = 0; i < p->n_only; i++)
        if (p->only[i] == category) return true;
    return !p->n_only;
}

static enum data_fault packed_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                                    uint32_t room, struct dataset_masks *out, struct error *e)
{
    struct packed_sample s;
    const struct packed_part *part = find(d, i, &s);
    const struct packed_file *f = &part->file;
    const struct packed_header *h = &f->header;
    (void)scratch, (void)n;
    if (mapped_check(&part->map, part->path, e)) return FAULT_READ;
    *out = (struct dataset_masks){.empty = s.empty, .h = s.h, .w = s.w};
    for (uint32_t k = 0; k < s.masks; k++) {
        const struct packed_mask *m = &f->masks[s.first + k];
        if (!wanted(d->state, m->category)) continue;
        if (out->n == room)
            return error_set(e, PL_NOFIT, "it has %u masks; expected at most %u", s.masks, room), FAULT_MANY;
        struct mask *to = &masks[out->n++];
        *to = (struct mask){.id = m->id, .category = m->category, .crowd = m->crowd != 0, .area = m->area,
                            .predicted_iou = m->predicted_iou, .stability = m->stability,
                            .point = {m->point[0], m->point[1]},
                            .shape = {.kind = SHAPE_BITS, .h = s.h, .w = s.w}};
        memcpy(to->box, m->box, sizeof to->box);
        to->shape.cells.at = f->at + s.at + f->head_bytes + k * f->mask_bytes;
        to->shape.cells.stride = f->stride;
        to->shape.cells.w = to->shape.cells.h = h->cells;
        to->shape.cells.over_w = s.columns * h->cells;
        to->shape.cells.over_h = s.rows * h->cells;
        to->shape.cells.per = h->side;
    }
    return FAULT_NONE;
}

static void advise_willneed(const uint8_t *at, size_t n)
{
    uintptr_t page = 4096, from = (uintptr_t)at / page * page;
    madvise((void *)from, (size_t)((uintptr_t)at - from) + n, MADV_WILLNEED);
}

static void packed_prefetch(const struct dataset *d, uint64_t i)
{
    struct packed_sample s;
    const struct packed_file *f = &find(d, i, &s)->file;
    /* Only one of image and embedding is read. */
    advise_willneed(f->at + s.at + (d->from_embeddings ? f->encoded_bytes : 0),
                    d->from_embeddings ? f->embedding_bytes : f->encoded_bytes);
    advise_willneed(f->at + s.at + f->head_bytes, s.masks * f->mask_bytes);
}

static const void *packed_embedding(const struct dataset *d, uint64_t i)
{
    struct packed_sample s;
    const struct packed_file *f = &find(d, i, &s)->file;
    return f->at + s.at + f->encoded_bytes;
}

/* --- embeddings by reference ------------------------------------------------------------ */

const char *packed_name(const char *reference, char room[PACKED_NAME])
{
    enum { LONGEST = 1024 };
    const size_t n = strlen(reference);
    if (n <= LONGEST && strncmp(reference, "data:", 5)) return reference;
    snprintf(room, PACKED_NAME, "data:%016llx%016llx", (unsigned long long)hash_bytes(reference, n, 1),
             (unsigned long long)hash_bytes(reference, n, 2));
    return room;
}

static bool find_output(const struct packed_part *part, const char *name, uint64_t *out)
{
    const struct packed_file *f = &part->file;
    uint64_t low = 0, high = f->header.samples;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const int order = strcmp(f->names + f->samples[middle].name, name);
        if (!order) return *out = middle, true;
        *(order < 0 ? &low : &high) = order < 0 ? middle + 1 : middle;
    }
    return false;
}

bool packed_find(const struct dataset *d, const char *reference, struct packed_output *out)
{
    const struct packed *p = d->state;
    char room[PACKED_NAME];
    const char *name = packed_name(reference, room);
    uint64_t i;
    for (uint32_t k = 0; k < p->n; k++) {
        const struct packed_file *f = &p->parts[k].file;
        if (!find_output(&p->parts[k], name, &i)) continue;
        const struct packed_sample s = f->samples[i];
        *out = (struct packed_output){.sample = p->parts[k].first + i, .at = s.fault ? NULL : f->at + s.at,
                                      .fault = (enum data_fault)s.fault, .why = f->names + s.key, .count = s.count,
                                      .replaced = s.replaced, .rows = s.rows, .columns = s.columns};
        return true;
    }
    return false;
}

static const char *packed_category_name(const struct dataset *d, int32_t category)
{
    const struct packed *p = d->state;
    for (uint32_t k = 0; k < p->n; k++)
        for (uint64_t i = 0; i < p->parts[k].file.header.categories; i++)
            if (p->parts[k].file.categories[i].number == category)
                return p->parts[k].file.names + p->parts[k].file.categories[i].name;
    return NULL;
}

static int packed_check(const struct dataset *d, uint64_t i, struct error *e)
{
    struct packed_sample s;
    const struct packed_part *part = find(d, i, &s);
    const struct packed_file *f = &part->file;
    const uint64_t k = i - part->first;
    const unsigned char bit = (unsigned char)(1u << k % 8);
    if (atomic_load_explicit(&part->checked[k / 8], memory_order_relaxed) & bit) return PL_OK;
    const size_t bytes = !is_alone(&f->header) ? f->head_bytes + s.masks * f->mask_bytes
                         : s.fault             ? 0
                                               : s.count * packed_embedding_bytes(f->embeddings);
    const bool equal = crc32c(0, f->at + s.at, bytes) == s.sum;
    if (mapped_check(&part->map, part->path, e)) return e->code;
    if (!equal)
        return error_set(e, PL_USAGE, "the bytes at %llu are damaged: the checksum is wrong; pack the dataset again",
                         (unsigned long long)s.at);
    atomic_fetch_or_explicit(&part->checked[k / 8], bit, memory_order_relaxed);
    return PL_OK;
}

static int packed_intact(const struct dataset *d, struct error *e)
{
    const struct packed *p = d->state;
    for (uint32_t i = 0; i < p->n; i++)
        if (mapped_check(&p->parts[i].map, p->parts[i].path, e)) return e->code;
    return PL_OK;
}

const struct dataset_format dataset_packed = {
    .name = "packed", .state = sizeof(struct packed), .open = packed_open, .close = packed_close,
    .describe = packed_describe, .split_group = packed_split_group, .image = packed_image, .masks = packed_masks,
    .prefetch = packed_prefetch, .category = packed_category_name, .check = packed_check, .intact = packed_intact,
    .embedding = packed_embedding,
};
