/*
 * memmap.c: reading an index with a memory map of masks (see memmap.h).
 *
 * Invariant: in an opened dataset every range of masks lies in the map. Areas and boxes are not
 * in the index; they are computed when a sample is read.
 */
#include "data/formats/memmap.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mapped.h"
#include "data/masks/grid.h"
#include "data/images/image.h"
#include "data/formats/npy.h"
#include "data/faults.h"
#include "io/file.h"
#include "io/json.h"
#include "io/temporary.h"

struct row {
    uint64_t first;
    uint32_t n, h, w;
    char *image, *name;
    char *group; /* NULL: none */
};

struct memmap {
    struct bump memory;
    struct row *rows;
    struct mapped map;
    char *path;
    uint64_t bytes;
    const uint8_t *masks;
    uint64_t total;     /* masks in the index */
    uint32_t h, w;      /* size of a mask */
};

bool memmap_is_index(const struct dataset_options *o) { return o->n_paths && text_ends_with(o->paths[0], ".json"); }

static void memmap_close(struct dataset *d)
{
    struct memmap *m = d->state;
    mapped_close(&m->map);
    bump_free(&m->memory);
}

/* --- the images ------------------------------------------------------------------------- */

/* Finds an image by its path, by its path relative to the index's folder, or by its name in
 * images/ there, because an index may be moved together with its folder. */
static char *find_image(struct memmap *m, const char *dir, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *below = bump_format(&m->memory, "%s/%s", dir, path),
         *among = bump_format(&m->memory, "%s/images/%s", dir, slash ? slash + 1 : path);
    if (path[0] != '/' && file_exists(below)) return below;
    if (file_exists(path)) return bump_string(&m->memory, path);
    return file_exists(among) ? among : NULL;
}

/* Reads the image's header, from pages that are mapped only meanwhile. */
static int image_size(const char *path, uint32_t *h, uint32_t *w, struct error *e)
{
    struct mapped map;
    size_t room;
    TRY(file_map(&map, path, e));
    if (!map.bytes) return error_set(e, PL_USAGE, "%s is not an image", path);
    int rc = PL_OK;
    *h = *w = 0;
    if (image_peek(map.at, map.bytes, &(struct image_options){0}, w, h, &room, e)) rc = error_prepend(e, "%s", path);
    if (mapped_failed(&map)) rc = mapped_check(&map, path, e);
    mapped_close(&map);
    return rc;
}

/* --- the index ------------------------------------------------------------------------------ */

static int read_row(struct dataset *d, const struct value *v, const char *dir, struct row *r, struct error *e)
{
    struct memmap *m = d->state;
    const char *path, *name = NULL, *group = NULL;
    uint64_t first, end, h = 0, w = 0, mh = m->h, mw = m->w;
    if (value_as_map(v, "a row", e) || value_as_string(value_get(v, "image_path"), "image_path", &path, e) ||
        value_as_uint(value_get(v, "mask_start_idx"), "mask_start_idx", &first, e) ||
        value_as_uint(value_get(v, "mask_end_idx"), "mask_end_idx", &end, e) || value_opt_uint(v, "height", &h, e) ||
        value_opt_uint(v, "width", &w, e) || value_opt_uint(v, "mask_height", &mh, e) ||
        value_opt_uint(v, "mask_width", &mw, e) || value_opt_string(v, "name", &name, e) ||
        value_opt_string(v, "group", &group, e))
        return e->code;
    if (first > end || end - first > UINT32_MAX || end > 1ull << 48)
        return error_set(e, PL_USAGE, "masks %llu to %llu are not a range", (unsigned long long)first,
                         (unsigned long long)end);
    if (h > 1u << 20 || w > 1u << 20 || mh > 32768 || mw > 32768)
        return error_set(e, PL_USAGE, "its sizes are invalid");
    if (m->h && (mh != m->h || mw != m->w))
        return error_set(e, PL_USAGE, "its masks have %llu x %llu pixels, those of earlier rows %u x %u",
                         (unsigned long long)mw, (unsigned long long)mh, m->w, m->h);
    m->h = (uint32_t)mh, m->w = (uint32_t)mw;
    if (end > m->total) m->total = end;
    *r = (struct row){.first = first, .n = (uint32_t)(end - first), .h = (uint32_t)h, .w = (uint32_t)w,
                      .image = find_image(m, dir, path)};
    const char *slash = strrchr(path, '/');
    r->name = bump_string(&m->memory, name ? name : slash ? slash + 1 : path);
    if (group) r->group = bump_string(&m->memory, group);
    if (!r->image) {
        d->report.no_image++;
        return PL_OK;
    }
    return h && w ? PL_OK : image_size(r->image, &r->h, &r->w, e);
}

static int read_index(struct dataset *d, const char *path, struct error *e)
{
    struct memmap *m = d->state;
    struct bump tree = {0};
    struct value *list;
    char dir[2048];
    int rc = path_dir(path, dir, sizeof dir, e);
    if (!rc) rc = json_read_file(path, 1ull << 31, &tree, &list, e);
    if (!rc && value_as_list(list, "the index", e)) rc = error_prepend(e, "%s", path);
    if (!rc) m->rows = bump_alloc(&m->memory, list->count * sizeof *m->rows);
    for (uint32_t i = 0; !rc && i < list->count; i++) {
        struct row *r = &m->rows[d->total];
        rc = read_row(d, list->items[i], dir, r, e);
        if (rc) error_prepend(e, "%s: row %u", path, i);
        else if (r->image && r->n) d->total++;
        else if (r->image) d->report.no_text++;
        d->report.members++;
    }
    bump_free(&tree);
    return rc;
}

/* --- the masks -------------------------------------------------------------------------------- */

static int find_masks(const struct dataset_options *o, const char *index, struct text *to, struct error *e)
{
    static const char *const endings[] = {".u8", ".dat", ".bin", ".memmap", ".npy"};
    char dir[2048];
    if (path_dir(index, dir, sizeof dir, e)) return e->code;
    if (o->masks) text_printf(to, "%s", o->masks);
    for (int place = 0; place < 2 && !o->masks; place++)
        for (size_t i = 0; i < COUNT(endings); i++) {
            to->n = 0;
            if (place) text_printf(to, "%s/masks%s", dir, endings[i]);
            else text_printf(to, "%.*s%s", (int)(strlen(index) - 5), index, endings[i]);
            if (file_exists(to->at)) return PL_OK;
        }
    if (o->masks) return PL_OK;
    return error_set(e, PL_USAGE,
        "%s: its masks are neither beside it under its name nor in %s/masks.u8; set data.masks to their file", index,
        dir);
}

/* Finds the shape of the masks. A .npy file has it in the header; for other files the size must be
 * that of square masks, unless the index has the shape. */
static int find_shape(struct memmap *m, const char *path, int fd, uint64_t *start, struct error *e)
{
    struct npy_header h;
    *start = 0;
    if (text_ends_with(path, ".npy")) {
        if (npy_read_header(fd, m->bytes, &h, e)) return e->code;
        if (h.rank != 3 || h.size != 1 || h.fortran_order || (h.type != 'u' && h.type != 'b') || !h.shape[1] ||
            h.shape[1] > 32768 || !h.shape[2] || h.shape[2] > 32768)
            return error_set(e, PL_USAGE, "expected an array of bytes, masks x height x width, in C order");
        *start = h.data;
        m->h = (uint32_t)h.shape[1], m->w = (uint32_t)h.shape[2];
    } else if (!m->h || !m->w) {
        uint64_t each = m->total ? m->bytes / m->total : 0, side = (uint64_t)(sqrt((double)each) + 0.5);
        if (!side || side > 32768 || side * side * m->total != m->bytes)
            return error_set(e, PL_USAGE,
                "its %llu bytes are not %llu square masks; add mask_height and mask_width to the rows of the index",
                (unsigned long long)m->bytes, (unsigned long long)m->total);
        m->h = m->w = (uint32_t)side;
    }
    if (*start > m->bytes || m->total > (m->bytes - *start) / ((uint64_t)m->h * m->w))
        return error_set(e, PL_USAGE, "it has %llu bytes; expected %llu masks of %u x %u", (unsigned long long)m->bytes,
                         (unsigned long long)m->total, m->w, m->h);
    return PL_OK;
}

static int map_masks(struct memmap *m, const char *path, struct error *e)
{
    uint64_t start;
    int fd = file_open(path, &m->bytes, e), rc = PL_OK;
    if (fd < 0) return e->code;
    if (!m->bytes) rc = error_set(e, PL_USAGE, "%s is empty; expected a file of masks", path);
    if (!rc && find_shape(m, path, fd, &start, e)) rc = error_prepend(e, "%s", path);
    if (!rc && mapped_open(&m->map, fd, (size_t)m->bytes, PROT_READ, MAP_SHARED)) rc = file_error(path, "map it", e);
    if (!rc) m->masks = (const uint8_t *)m->map.at + start, m->path = bump_string(&m->memory, path);
    close(fd);
    return rc;
}

static int memmap_open(struct dataset *d, const struct dataset_options *o, struct names *paths, struct error *e)
{
    struct memmap *m = d->state;
    struct text masks = {0};
    if (paths->n != 1)
        return error_set(e, PL_USAGE, "%u indexes of memory maps are given; expected one", paths->n);
    TRY(read_index(d, paths->at[0], e));
    int rc = find_masks(o, paths->at[0], &masks, e);
    if (!rc) rc = map_masks(m, masks.at, e);
    char what[512];
    if (!rc && shard_report_print(&d->report, what, sizeof what)) log_warn("%s: %s", paths->at[0], what);
    for (uint64_t i = 0; !rc && i < d->total; i++) {
        d->fingerprint = hash_bytes(m->rows[i].name, strlen(m->rows[i].name), d->fingerprint);
        d->fingerprint = hash_bytes(&m->rows[i].first, sizeof m->rows[i].first, d->fingerprint);
    }
    text_free(&masks);
    return rc;
}

/* --- reading ----- */

static void memmap_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key)
{
    const struct memmap *m = d->state;
    *key = m->rows[i].name;
    snprintf(name, room, "%s", *key);
}

static bool memmap_split_group(const struct dataset *d, uint64_t i, char *out, size_t room)
{
    const struct memmap *m = d->state;
    if (m->rows[i].group) snprintf(out, room, "%s", m->rows[i].group);
    return m->rows[i].group;
}

static enum data_fault memmap_image(const struct dataset *d, uint64_t i, void *to, size_t room,
                                    struct dataset_image *out, struct error *e)
{
    const struct memmap *m = d->state;
    return fault_read_file(m->rows[i].image, to, room, &out->n, e);
}

/* Returns the value of a mask's pixels (1, 255 or another non-zero value); 0 when it has none. */
static uint8_t value_of(const uint8_t *at, size_t n, bool *mixed)
{
    uint8_t value = 0;
    for (size_t i = 0; i < n && !value; i++) value = at[i];
    for (size_t i = 0; i < n && value && !*mixed; i++) *mixed = at[i] && at[i] != value;
    return value;
}

static enum data_fault memmap_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                                    uint32_t room, struct dataset_masks *out, struct error *e)
{
    const struct memmap *m = d->state;
    const struct row *r = &m->rows[i];
    size_t bytes = (size_t)m->h * m->w;
    (void)scratch, (void)n;
    *out = (struct dataset_masks){.h = r->h, .w = r->w};
    for (uint32_t k = 0; k < r->n; k++) {
        const uint8_t *at = m->masks + (r->first + k) * bytes;
        bool mixed = false;
        uint8_t value = value_of(at, bytes, &mixed);
        if (mixed)
            return error_set(e, PL_USAGE, "mask %llu has several values besides 0; expected one",
                             (unsigned long long)(r->first + k)), FAULT_MASK;
        if (!value) {
            out->empty++;
            continue;
        }
        if (out->n == room)
            return error_set(e, PL_NOFIT, "it has %u masks; expected at most %u", r->n, room), FAULT_MANY;
        struct mask *to = &masks[out->n++];
        struct rle_facts f;
        double x = (double)r->w / m->w, y = (double)r->h / m->h;
        *to = (struct mask){.id = (int64_t)(r->first + k), .predicted_iou = 1, .stability = 1, .point = {NAN, NAN},
                            .shape = {.kind = SHAPE_BITS, .h = r->h, .w = r->w}};
        to->shape.cells.at = at;
        to->shape.cells.stride = m->w;
        to->shape.cells.id = value;
        to->shape.cells.w = to->shape.cells.over_w = m->w;
        to->shape.cells.h = to->shape.cells.over_h = m->h;
        to->shape.cells.per = 1;
        cells_measure(&to->shape, &f);
        to->area = f.area * x * y;
        const float box[4] = {(float)(f.x * x), (float)(f.y * y), (float)(f.w * x), (float)(f.h * y)};
        memcpy(to->box, box, sizeof box);
    }
    return FAULT_NONE;
}

static int memmap_intact(const struct dataset *d, struct error *e)
{
    const struct memmap *m = d->state;
    return mapped_check(&m->map, m->path, e);
}

const struct dataset_format dataset_memmap = {
    .name = "packed", .state = sizeof(struct memmap), .open = memmap_open, .close = memmap_close,
    .describe = memmap_describe, .split_group = memmap_split_group, .image = memmap_image, .masks = memmap_masks,
    .intact = memmap_intact, .no_categories = "an index with a memory map of masks",
};

/* ---- Writing ----
 *
 * writes an index, a memory map and the images (see memmap.h) into a temporary
 * folder beside the target, which is renamed at the end.
 *
 * If several processes write one target, the first that is done leaves its whole folder, and the
 * others fail.
 */

struct memmap_writer {
    char *folder;
    struct temporary to; /* the folder until it is whole */
    int fd;             /* of the masks */
    uint32_t side;
    uint64_t masks, samples;
    uint8_t *bytes;     /* [side][side] of one mask */
    struct text index;
    struct json_writer json;
};

int memmap_create(struct memmap_writer **out, const char *folder, uint32_t side, struct error *e)
{
    struct names there = {0};
    bool folder_there = dir_exists(folder);
    if ((file_exists(folder) && !folder_there) || (folder_there && dir_list(folder, &there, e)) || there.n) {
        names_free(&there);
        return error_set(e, PL_USAGE, "%s exists already: choose another name, or remove it first", folder);
    }
    struct memmap_writer *w = mem_alloc(sizeof *w);
    struct text path = {0};
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    w->folder = mem_string(folder);
    w->folder[n] = 0;
    w->side = side;
    w->bytes = mem_alloc((size_t)side * side);
    w->fd = -1;
    w->json = (struct json_writer){.out = &w->index};
    json_begin_list(&w->json, NULL);
    int rc = temporary_folder(&w->to, w->folder, e);
    if (!rc) text_printf(&path, "%s/images", w->to.path), rc = dir_make(path.at, e);
    path.n = 0;
    if (!rc) text_printf(&path, "%s/masks.u8", w->to.path);
    if (!rc && (w->fd = open(path.at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        rc = file_error(path.at, "be written", e);
    text_free(&path);
    names_free(&there);
    if (rc) memmap_abandon(w);
    else *out = w;
    return rc;
}

static int put_mask(struct memmap_writer *w, const uint8_t *bits, struct error *e)
{
    size_t stride = grid_stride(w->side);
    for (uint32_t y = 0; y < w->side; y++)
        for (uint32_t x = 0; x < w->side; x++)
            w->bytes[(size_t)y * w->side + x] = bits[y * stride + x / 8] >> x % 8 & 1;
    return fd_write(w->fd, w->bytes, (size_t)w->side * w->side) ? file_error(w->to.path, "be written", e) : PL_OK;
}

/* Prints "000012_sa_13.jpg": the number distinguishes equal keys of two shards. */
static void image_name(const struct memmap_writer *w, const struct memmap_new *s, struct text *to)
{
    const char *slash = strrchr(s->key, '/'), *key = slash ? slash + 1 : s->key, *dot = strrchr(key, '.');
    text_printf(to, "%06llu_%.*s.%s", (unsigned long long)w->samples,
                (int)min_u64(dot && dot > key ? (uint64_t)(dot - key) : strlen(key), 128), key,
                image_ending(s->image, s->n));
}

int memmap_add(struct memmap_writer *w, const struct memmap_new *s, struct error *e)
{
    struct text name = {0}, path = {0};
    size_t bytes = grid_mask_bytes(w->side, w->side);
    image_name(w, s, &name);
    text_printf(&path, "%s/images/%s", w->to.path, name.at);
    int fd = open(path.at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = fd < 0 || fd_write(fd, s->image, s->n) ? file_error(path.at, "be written", e) : PL_OK;
    if (fd >= 0 && close(fd) && !rc) rc = file_error(path.at, "be written", e);
    for (uint32_t k = 0; k < s->masks && !rc; k++) rc = put_mask(w, s->bits + k * bytes, e);
    json_begin_map(&w->json, NULL);
    struct text image = {0};
    text_printf(&image, "%s/images/%s", w->folder, name.at);
    json_put_string(&w->json, "image_path", image.at);
    text_free(&image);
    json_put_uint(&w->json, "mask_start_idx", w->masks);
    json_put_uint(&w->json, "mask_end_idx", w->masks + s->masks);
    json_put_string(&w->json, "name", s->name);
    if (s->group) json_put_string(&w->json, "group", s->group);
    json_put_uint(&w->json, "height", s->h);
    json_put_uint(&w->json, "width", s->w);
    json_put_uint(&w->json, "mask_height", w->side);
    json_put_uint(&w->json, "mask_width", w->side);
    json_end(&w->json);
    w->masks += s->masks;
    w->samples++;
    text_free(&name);
    text_free(&path);
    return rc;
}

int memmap_finish(struct memmap_writer *w, struct error *e)
{
    struct text path = {0};
    text_printf(&path, "%s/index.json", w->to.path);
    json_end(&w->json);
    text_append(&w->index, "\n", 1);
    int rc = fsync(w->fd) ? file_error(w->to.path, "be written", e)
                          : file_write_atomic(path.at, w->index.at, w->index.n, e);
    if (!rc) rc = temporary_keep(&w->to, w->folder, true, e); /* which may be an empty folder */
    text_free(&path);
    memmap_abandon(w);
    return rc;
}

void memmap_abandon(struct memmap_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    temporary_drop(&w->to);
    mem_free(w->folder);
    mem_free(w->bytes);
    text_free(&w->index);
    mem_free(w);
}
