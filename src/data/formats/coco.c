/*
 * coco.c: the format `coco`.
 *
 * Opening parses the file once and keeps the image, the category and the file offset of each
 * annotation: about 32 bytes. Masks are read from the file on demand, by the same scanner that
 * reads SA-1B; a file of half a gigabyte takes only the memory of its table.
 */
#include "data/formats/coco.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/mapped.h"
#include "data/masks/annotation.h"
#include "data/faults.h"
#include "io/file.h"

/* --- the table ------------------------------------------------------------------------ */

static bool keep_text(struct scan *s, struct coco_table *t, uint32_t *name)
{
    const char *at;
    size_t n;
    char plain[4096];
    if (!scan_text(s, &at, &n)) return false;
    if (!scan_unescape(at, n, plain, sizeof plain)) return scan_fail(s, "a name of at most 4095 bytes");
    if (t->names.n > UINT32_MAX - sizeof plain) return scan_fail(s, "fewer names");
    *name = (uint32_t)t->names.n;
    text_append(&t->names, plain, strlen(plain) + 1);
    return true;
}

/* Returns a path; Windows programs write images\a.jpg. */
static bool keep_path(struct scan *s, struct coco_table *t, uint32_t *name)
{
    if (!keep_text(s, t, name)) return false;
    path_from_windows(t->names.at + *name);
    return true;
}

static bool scan_side(struct scan *s, uint32_t *out)
{
    int64_t x;
    if (!scan_integer(s, &x)) return false;
    if (x < 1 || x > 1 << 20) return scan_fail(s, "a side of 1 to 2^20 pixels");
    *out = (uint32_t)x;
    return true;
}

/* Returns a number, a text or null. The images of a video usually follow each other. */
static bool keep_video(struct scan *s, struct coco_table *t, uint32_t *video)
{
    const uint32_t last = t->images.n ? t->images.at[t->images.n - 1].video : 0;
    const char *at;
    size_t n;
    if (scan_peek(s) == 'n') return scan_skip(s);
    if (!scan_span(s, &at, &n)) return false;
    if (n > 4095 || t->names.n > UINT32_MAX - 8192) return scan_fail(s, "a video_id of at most 4095 bytes");
    *video = last;
    if (last && strlen(t->names.at + last - 1) == n && !memcmp(t->names.at + last - 1, at, n)) return true;
    *video = (uint32_t)t->names.n + 1;
    text_append(&t->names, at, n);
    text_append(&t->names, "", 1);
    return true;
}

static bool scan_images(struct scan *s, struct coco_table *t)
{
    struct scan_key key;
    for (bool first = scan_enter(s, '['); scan_element(s, &first);) {
        struct coco_image m = {.name = UINT32_MAX};
        bool id = false;
        for (bool one = scan_enter(s, '{'); scan_member(s, &one, &key);) {
            if (scan_is(&key, "id")) id = scan_integer(s, &m.id);
            else if (scan_is(&key, "video_id")) keep_video(s, t, &m.video);
            else if (scan_is(&key, "width")) scan_side(s, &m.w);
            else if (scan_is(&key, "height")) scan_side(s, &m.h);
            else if (scan_is(&key, "file_name")) keep_path(s, t, &m.name);
            else scan_skip(s);
        }
        if (s->fault) return false;
        if (!id || !m.w || !m.h || m.name == UINT32_MAX)
            return scan_fail(s, "an image with id, width, height and file_name");
        vec_push(&t->images, m);
    }
    return !s->fault;
}

static bool has_no_mask(const struct mask *m)
{
    /* [] or [[]] */
    return m->area == 0 || m->shape.kind == SHAPE_NONE || (m->shape.kind == SHAPE_POLYGONS && m->shape.polygons.n < 6);
}

/* Reports whether a mask with iscrowd 1 is one object. COCO marks groups of objects so, and writes
 * them as run lengths. CVAT and Datumaro write every painted mask so, since a polygon cannot hold
 * it. A group has several parts, an object usually one. */
static bool is_one_part(const struct shape *shape)
{
    uint32_t parts = 0;
    if (shape->kind == SHAPE_RLE) return !rle_parts(&shape->rle, &parts) && parts == 1;
    if (shape->kind != SHAPE_POLYGONS) return false;
    struct scan s = scan_begin(shape->polygons.at, shape->polygons.n);
    for (bool first = scan_enter(&s, '['); scan_element(&s, &first); parts++) scan_skip(&s);
    return parts == 1;
}

static bool scan_annotations(struct scan *s, struct coco_table *t)
{
    for (bool first = scan_enter(s, '['); scan_element(s, &first);) {
        struct mask m;
        scan_peek(s);
        const char *from = s->at;
        if (!annotation_scan_mask(s, &m)) return false;
        if (s->at - from > UINT32_MAX) return scan_fail(s, "a shorter annotation");
        struct coco_annotation a = {.image = m.image, .at = (uint64_t)(from - s->begin),
                                    .bytes = (uint32_t)(s->at - from), .category = m.category,
                                    .no_mask = has_no_mask(&m)};
        a.one_part = m.crowd && !a.no_mask && is_one_part(&m.shape);
        a.crowd = m.crowd && !a.no_mask && !a.one_part;
        vec_push(&t->annotations, a);
    }
    return !s->fault;
}

static bool scan_categories(struct scan *s, struct coco_table *t)
{
    struct scan_key key;
    for (bool first = scan_enter(s, '['); scan_element(s, &first);) {
        struct coco_category c = {.name = UINT32_MAX};
        for (bool one = scan_enter(s, '{'); scan_member(s, &one, &key);) {
            if (scan_is(&key, "id")) scan_integer(s, &c.id);
            else if (scan_is(&key, "name")) keep_text(s, t, &c.name);
            else scan_skip(s);
        }
        if (s->fault) return false;
        if (c.name == UINT32_MAX) return scan_fail(s, "a category with id and name");
        vec_push(&t->categories, c);
    }
    return !s->fault;
}

/* --- joining ------------------------------------------------------------------------------ */

static int compare_images(const void *pa, const void *pb)
{
    const struct coco_image *a = pa, *b = pb; /* names are in the file's order */
    return a->id != b->id ? (a->id < b->id ? -1 : 1) : a->name < b->name ? -1 : a->name > b->name;
}

static int compare_annotations(const void *pa, const void *pb)
{
    const struct coco_annotation *a = pa, *b = pb;
    return a->image != b->image ? (a->image < b->image ? -1 : 1) : a->at < b->at ? -1 : a->at > b->at;
}

static int compare_categories(const void *pa, const void *pb)
{
    const struct coco_category *a = pa, *b = pb;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int unknown_category(const struct coco_table *t, const char *name, struct error *e)
{
    char known[512];
    size_t n = 0;
    known[0] = 0;
    for (uint32_t i = 0; i < t->categories.n && n < sizeof known; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%.60s", i ? ", " : "",
                              t->names.at + t->categories.at[i].name);
    return error_set(e, PL_USAGE, "there is no category %s; the categories are: %s%s", name, known,
                     n >= sizeof known ? " ..." : "");
}

/* Finds the ids of the categories that the filter names. */
static int resolve(const struct coco_table *t, const struct coco_filter *f, int64_t *ids, struct error *e)
{
    for (uint32_t i = 0; i < f->n; i++) {
        char *end;
        bool found = false;
        long long number = strtoll(f->categories[i], &end, 10);
        bool is_number = *f->categories[i] && !*end;
        for (uint32_t k = 0; k < t->categories.n && !found; k++) {
            const struct coco_category *c = &t->categories.at[k];
            found = !strcmp(t->names.at + c->name, f->categories[i]) || (is_number && c->id == number);
            ids[i] = c->id;
        }
        if (!found) return unknown_category(t, f->categories[i], e);
    }
    return PL_OK;
}

static int drop_filtered(struct coco_table *t, const struct coco_filter *f, struct error *e)
{
    int64_t *ids = mem_alloc(f->n * sizeof *ids);
    int rc = resolve(t, f, ids, e);
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->annotations.n && !rc; i++) {
        const struct coco_annotation *a = &t->annotations.at[i];
        bool wanted = !f->n;
        for (uint32_t k = 0; k < f->n; k++) wanted |= ids[k] == a->category;
        if (!wanted) t->left.other_categories++;
        else if (a->no_mask) t->left.no_mask++;
        else if (a->crowd) t->left.crowds++;
        else if (a->one_part) t->left.one_part++;
        if (wanted && (f->crowds || !a->crowd)) t->annotations.at[n++] = *a;
    }
    if (!rc) t->annotations.n = n;
    mem_free(ids);
    return rc;
}

/* Sorts both lists by image id, then merges them. */
static void join(struct coco_table *t)
{
    if (t->images.n) qsort(t->images.at, t->images.n, sizeof *t->images.at, compare_images);
    if (t->annotations.n) qsort(t->annotations.at, t->annotations.n, sizeof *t->annotations.at, compare_annotations);
    uint32_t n = 0, a = 0;
    int64_t last = 0;
    for (uint32_t i = 0; i < t->images.n; i++) {
        struct coco_image m = t->images.at[i];
        if (i && m.id == last) {
            t->report.duplicates++;
            continue;
        }
        last = m.id;
        for (; a < t->annotations.n && t->annotations.at[a].image < m.id; a++) t->report.no_image++;
        for (m.first = a; a < t->annotations.n && t->annotations.at[a].image == m.id; a++) m.n++;
        if (m.n) t->images.at[n++] = m;
        else t->report.no_text++;
    }
    t->report.no_image += t->annotations.n - a;
    t->images.n = n;
}

int coco_parse(const char *text, size_t n, const struct coco_filter *f, struct coco_table *t, struct error *e)
{
    struct scan s = scan_begin(text, n);
    struct scan_key key;
    bool images = false, annotations = false;
    if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) s.at += 3; /* a byte order mark, as Windows programs write it */
    *t = (struct coco_table){0};
    text_append(&t->names, "", 1);
    for (bool first = scan_enter(&s, '{'); scan_member(&s, &first, &key);) {
        if (scan_is(&key, "images") && !images) images = scan_images(&s, t);
        else if (scan_is(&key, "annotations") && !annotations) annotations = scan_annotations(&s, t);
        else if (scan_is(&key, "categories") && !t->categories.n) scan_categories(&s, t);
        else scan_skip(&s);
    }
    if (!scan_finish(&s)) return error_set(e, PL_USAGE, "byte %zu: expected %s", scan_offset(&s), s.fault);
    if (!images || !annotations)
        return error_set(e, PL_USAGE, "expected COCO instances: lists of \"images\" and \"annotations\"");
    if (t->categories.n) qsort(t->categories.at, t->categories.n, sizeof *t->categories.at, compare_categories);
    if (drop_filtered(t, f, e)) return e->code;
    t->report.members = (uint64_t)t->images.n + t->annotations.n;
    join(t);
    return PL_OK;
}

void coco_free(struct coco_table *t)
{
    vec_free(&t->images);
    vec_free(&t->annotations);
    vec_free(&t->categories);
    text_free(&t->names);
}

/* --- the format ---------------------------------------------------------------------------- */

struct coco_file {
    char *path, *folder; /* the JSON; where its images are */
    int fd;
    struct coco_table table;
    uint64_t first; /* index of its first sample */
};

struct coco {
    VEC(struct coco_file) files;
};

static const struct coco_file *find_file(const struct coco *c, uint64_t i, uint32_t *image)
{
    uint32_t k = c->files.n - 1;
    while (k && c->files.at[k].first > i) k--;
    *image = (uint32_t)(i - c->files.at[k].first);
    return &c->files.at[k];
}

/* Finds the folder of the images: beside the JSON, in images/, or as in COCO's own layout, which
 * has train2017/ for annotations/instances_train2017.json. */
static int find_folder(struct coco_file *f, const char *given, struct error *e)
{
    char dir[2048];
    if (path_dir(f->path, dir, sizeof dir, e)) return e->code;
    const char *base = strrchr(f->path, '/'), *image = f->table.names.at + f->table.images.at[0].name;
    base = base ? base + 1 : f->path;
    const char *set = strchr(base, '_') ? strchr(base, '_') + 1 : base;
    int n = (int)strcspn(set, ".");
    struct text at[7] = {0};
    if (image[0] == '/' && file_exists(image)) text_printf(&at[0], "%s", dir); /* names are absolute */
    else if (given) text_printf(&at[0], "%s", given);
    else {
        text_printf(&at[0], "%s", dir);
        text_printf(&at[1], "%s/images", dir);
        text_printf(&at[2], "%s/../%.*s", dir, n, set);
        text_printf(&at[3], "%s/../images", dir);
        text_printf(&at[4], "%s/../images/%.*s", dir, n, set);
        text_printf(&at[5], "%s/%.*s", dir, n, set);
        text_printf(&at[6], "%s/..", dir); /* file_name has the folder: images/a.jpg */
    }
    for (size_t i = 0; i < COUNT(at); i++) {
        struct text path = {0};
        if (at[i].at) text_printf(&path, "%s%s%s", image[0] == '/' ? "" : at[i].at, image[0] == '/' ? "" : "/", image);
        if (!f->folder && path.at && (given || file_exists(path.at))) f->folder = mem_string(at[i].at);
        text_free(&path);
        text_free(&at[i]);
    }
    if (f->folder && dir_exists(f->folder)) return PL_OK;
    if (given)
        return error_set(e, PL_USAGE,
                         "data.images is %s, but there is no such folder: set it to the folder of the images", given);
    return error_set(e, PL_USAGE,
        "the image %s is not beside it, in images/ or in ../%.*s/: set data.images to the folder of the images", image,
        n, set);
}

static int open_file(struct coco_file *f, const struct dataset_options *o, struct error *e)
{
    uint64_t bytes;
    struct mapped text = {0};
    struct coco_filter filter = {o->categories, o->n_categories, o->crowds};
    f->fd = file_open(f->path, &bytes, e);
    if (f->fd < 0) return e->code;
    if (!bytes) return error_set(e, PL_USAGE, "%s is empty", f->path);
    if (mapped_open(&text, f->fd, (size_t)bytes, PROT_READ, MAP_PRIVATE)) return file_error(f->path, "map it", e);
    int rc = coco_parse(text.at, text.bytes, &filter, &f->table, e);
    mapped_close(&text);
    if (mapped_failed(&text)) return mapped_check(&text, f->path, e);
    if (!rc && f->table.annotations.n && f->table.annotations.n == f->table.left.no_mask)
        rc = error_set(e, PL_USAGE,
                       "none of its %u annotations has a mask: their \"segmentation\" is missing or empty, or their "
                       "area is 0 (boxes without masks are not trained on)", f->table.annotations.n);
    if (!rc && f->table.images.n) rc = find_folder(f, o->images, e);
    return rc ? error_prepend(e, "%s", f->path) : PL_OK;
}

static void coco_close(struct dataset *d)
{
    struct coco *c = d->state;
    for (uint32_t i = 0; i < c->files.n; i++) {
        struct coco_file *f = &c->files.at[i];
        if (f->fd >= 0) close(f->fd);
        coco_free(&f->table);
        mem_free(f->path);
        mem_free(f->folder);
    }
    vec_free(&c->files);
}

/* Prints nothing of images without annotations, which are usual in COCO: `data inspect` counts
 * them. */
static void print_unpaired(struct dataset *d)
{
    const struct shard_report *r = &d->report;
    if (r->no_image)
        text_printf(&d->unpaired, "%llu %s an image_id that no image has", (unsigned long long)r->no_image,
                    r->no_image == 1 ? "annotation has" : "annotations have");
    if (r->duplicates)
        text_printf(&d->unpaired, "%s%llu %s the id of another one", d->unpaired.n ? ", " : "",
                    (unsigned long long)r->duplicates, r->duplicates == 1 ? "image has" : "images have");
}

static int coco_open(struct dataset *d, const struct dataset_options *o, struct names *paths, struct error *e)
{
    struct coco *c = d->state;
    for (uint32_t i = 0; i < paths->n; i++) {
        struct coco_file fresh = {.path = mem_string(paths->at[i]), .fd = -1, .first = d->total};
        vec_push(&c->files, fresh);
        struct coco_file *f = &c->files.at[i];
        TRY(open_file(f, o, e));
        const struct shard_report *r = &f->table.report;
        d->total += f->table.images.n;
        d->report.members += r->members;
        d->report.no_image += r->no_image;
        d->report.no_text += r->no_text;
        d->report.duplicates += r->duplicates;
        d->left.crowds += f->table.left.crowds;
        d->left.one_part += f->table.left.one_part;
        d->left.no_mask += f->table.left.no_mask;
        d->left.other_categories += f->table.left.other_categories;
        d->fingerprint = hash_bytes(f->table.names.at, f->table.names.n, d->fingerprint + d->total);
        for (uint32_t k = 0; k < f->table.annotations.n; k++)
            d->fingerprint = d->fingerprint * 31 + f->table.annotations.at[k].at;
    }
    print_unpaired(d);
    dataset_warn_unpaired(d, o, paths->at[0]);
    return PL_OK;
}

static void coco_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key)
{
    uint32_t image;
    const struct coco *c = d->state;
    const struct coco_file *f = find_file(c, i, &image);
    const char *base = strrchr(f->path, '/');
    base = base ? base + 1 : f->path;
    *key = f->table.names.at + f->table.images.at[image].name;
    if (c->files.n > 1) snprintf(name, room, "%.*s/%s", (int)strcspn(base, "."), base, *key);
    else snprintf(name, room, "%s", *key);
}

static bool coco_split_group(const struct dataset *d, uint64_t i, char *out, size_t room)
{
    uint32_t image;
    const struct coco *c = d->state;
    const struct coco_file *f = find_file(c, i, &image);
    const struct coco_image *m = &f->table.images.at[image];
    if (m->video) snprintf(out, room, "video %s of %s", f->table.names.at + m->video - 1, f->path);
    return m->video;
}

static enum data_fault coco_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                                  struct error *e)
{
    uint32_t image;
    char path[8192];
    const struct coco_file *f = find_file(d->state, i, &image);
    const struct coco_image *m = &f->table.images.at[image];
    const char *name = f->table.names.at + m->name;
    if (name[0] == '/') snprintf(path, sizeof path, "%s", name);
    else snprintf(path, sizeof path, "%s/%s", f->folder, name);
    out->w = m->w;
    out->h = m->h;
    return fault_read_file(path, to, room, &out->n, e);
}

/* Reads one annotation from the file into a mask; *used grows by its bytes. */
static enum data_fault read_mask(const struct coco_file *f, const struct coco_image *image,
                                 const struct coco_annotation *a, char *scratch, size_t n, size_t *used,
                                 struct mask *m, struct error *e)
{
    if (a->bytes > n - *used)
        return error_set(e, PL_NOFIT, "its annotations take more than %zu bytes", n), FAULT_TOO_LARGE;
    char *text = scratch + *used;
    if (pread(f->fd, text, a->bytes, (off_t)a->at) != (ssize_t)a->bytes)
        return error_set(e, PL_FAIL, "%s: cannot read %u bytes at %llu", f->path, a->bytes, (unsigned long long)a->at),
               FAULT_READ;
    *used += a->bytes;
    struct scan s = scan_begin(text, a->bytes);
    if (!annotation_scan_mask(&s, m) || !scan_finish(&s) || m->image != image->id)
        return error_set(e, PL_USAGE, "%s has changed since it was opened, at byte %llu", f->path,
                         (unsigned long long)a->at), FAULT_SYNTAX;
    if (m->shape.kind == SHAPE_RLE && (m->shape.h != image->h || m->shape.w != image->w))
        return error_set(e, PL_USAGE, "mask %lld has %u x %u pixels (width x height), its image %u x %u",
                         (long long)m->id, m->shape.w, m->shape.h, image->w, image->h), FAULT_SIZE;
    m->shape.h = image->h;
    m->shape.w = image->w;
    return FAULT_NONE;
}

static enum data_fault coco_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                                  uint32_t room, struct dataset_masks *out, struct error *e)
{
    uint32_t number;
    const struct coco_file *f = find_file(d->state, i, &number);
    const struct coco_image *image = &f->table.images.at[number];
    size_t used = 0;
    out->h = image->h;
    out->w = image->w;
    for (uint32_t k = 0; k < image->n; k++) {
        struct mask m;
        enum data_fault fault =
            read_mask(f, image, &f->table.annotations.at[image->first + k], scratch, n, &used, &m, e);
        if (fault) return fault;
        if (has_no_mask(&m)) { /* a box without a segmentation is not a mask */
            out->empty++;
            continue;
        }
        if (out->n == room) return error_set(e, PL_USAGE, "more than %u masks", room), FAULT_MANY;
        m.crowd = f->table.annotations.at[image->first + k].crowd;
        masks[out->n++] = m;
    }
    return FAULT_NONE;
}

static const char *coco_category(const struct dataset *d, int32_t category)
{
    const struct coco *c = d->state;
    struct coco_category key = {.id = category};
    for (uint32_t i = 0; i < c->files.n; i++) {
        const struct coco_table *t = &c->files.at[i].table;
        const struct coco_category *found =
            t->categories.n ? bsearch(&key, t->categories.at, t->categories.n, sizeof key, compare_categories) : NULL;
        if (found) return t->names.at + found->name;
    }
    return NULL;
}

const struct dataset_format dataset_coco = {
    .name = "coco", .state = sizeof(struct coco), .open = coco_open, .close = coco_close, .describe = coco_describe,
    .split_group = coco_split_group, .image = coco_image, .masks = coco_masks, .category = coco_category,
};
