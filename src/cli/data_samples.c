/*
 * data_samples.c: see data_samples.h. Buffers start at a common size and grow, up to a limit, when
 * a sample needs more.
 */
#include "cli/data_samples.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/init.h"
#include "data/masks/cells.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/images/unread.h"

enum { MASKS = 1024, MAX_MASKS = 1 << 20, POLYGON_RUNS = 1 << 19 };
static const size_t first_bytes = 4 << 20, most_bytes = (size_t)1 << 30;

/* ---- opening ---- */

/* Whether a JSON file is a list. The index of a memory map (data/formats/memmap.h) is a list, a
 * COCO file is a map. */
static bool is_list(const char *path)
{
    char head[64];
    head[file_peek(path, head, sizeof head - 1)] = 0;
    return head[strspn(head, " \n\r\t")] == '[';
}

/* The format of a path by its name: coco for .json (packed if it is the index of a memory map),
 * packed for .pack, parquet for .parquet, csv for .csv and .tsv, else sa1b, where a folder of tars
 * means all of them. */
static const char *format_of(const char *path)
{
    if (text_ends_with(path, ".json")) return is_list(path) ? "packed" : "coco";
    if (text_ends_with(path, ".pack")) return "packed";
    if (text_ends_with(path, ".parquet")) return "parquet";
    return text_ends_with(path, ".csv") || text_ends_with(path, ".tsv") ? "csv" : "sa1b";
}

/* A folder that holds tars means all of them. */
static int add_path(struct names *to, const char *path, bool tars_wanted, struct error *e)
{
    struct names tars = {0};
    int rc = tars_wanted && dir_exists(path) ? dir_list_ending(path, ".tar", &tars, e) : PL_OK;
    for (uint32_t i = 0; i < tars.n; i++) vec_push(to, mem_string(tars.at[i]));
    if (!rc && !tars.n) vec_push(to, mem_string(path));
    names_free(&tars);
    return rc;
}

static int find_files(struct samples *s, const struct names *paths, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths->n && !rc; i++) {
        struct names found = {0};
        rc = file_glob(paths->at[i], &found, e);
        if (!rc && !found.n) rc = error_set(e, PL_USAGE, "%s: no such file or folder", paths->at[i]);
        const struct unread *u = !rc && !s->format && !dir_exists(found.at[0]) ? unread_by_name(found.at[0]) : NULL;
        if (u) rc = unread_refuse(u, found.n, NULL, found.at[0], e);
        else if (!rc && !s->format && !dir_exists(found.at[0]) && is_volume_name(found.at[0], NULL))
            rc = volume_refuse(found.at[0], e);
        if (!rc && !s->format) s->format = format_of(found.at[0]);
        for (uint32_t k = 0; k < found.n && !rc; k++)
            rc = add_path(&s->files, found.at[k], !strcmp(s->format, "sa1b"), e);
        names_free(&found);
    }
    return rc;
}

static int parse_labels(const char *word, enum label_kind *to, struct error *e)
{
    static const char *const words[] = {"auto", "binary", "classes", "instances"};
    for (size_t i = 0; i < COUNT(words) && word; i++)
        if (!strcmp(word, words[i])) {
            *to = (enum label_kind)i;
            return PL_OK;
        }
    return word ? error_set(e, PL_USAGE, "--labels %s: expected auto, binary, classes or instances", word) : PL_OK;
}

static int parse_range(const char *word, struct pixel_range *to, struct error *e)
{
    static const char *const words[] = {"auto", "full", "percentiles"};
    char end;
    *to = (struct pixel_range){.percentiles = {0.5, 99.5}};
    for (size_t i = 0; i < COUNT(words) && word; i++)
        if (!strcmp(word, words[i])) {
            to->kind = (enum range_kind)i;
            return PL_OK;
        }
    if (!word) return PL_OK;
    to->kind = RANGE_WINDOW;
    if (sscanf(word, "%lf,%lf%c", &to->window[0], &to->window[1], &end) == 2 && to->window[0] < to->window[1] &&
        isfinite(to->window[0]) && isfinite(to->window[1]))
        return PL_OK;
    return error_set(
        e, PL_USAGE,
        "--range %s: expected auto, full, percentiles, or two values, the smaller one first, such as 0,4095", word);
}

static int parse_slices(struct samples *s, const struct samples_options *o, struct slice_options *to, struct error *e)
{
    static const char *const words[] = {"axial", "coronal", "sagittal"};
    int64_t *m = s->modalities;
    char end;
    to->neighbours = o->neighbours;
    bool known = !o->slice_axis;
    for (size_t i = 0; i < COUNT(words) && !known; i++)
        if (!strcmp(o->slice_axis, words[i])) to->axis = (enum volume_axis)i, known = true;
    if (!known) return error_set(e, PL_USAGE, "--slice-axis %s: expected axial, coronal or sagittal", o->slice_axis);
    if (!o->modalities) return PL_OK;
    const int n = sscanf(o->modalities, "%" SCNd64 ",%" SCNd64 ",%" SCNd64 "%c", &m[0], &m[1], &m[2], &end);
    to->modalities = m, to->n_modalities = (uint32_t)n;
    for (int i = 0; i < n && i < 3; i++)
        if (m[i] < 0 || m[i] > 9999) to->n_modalities = 0;
    if ((n == 1 || n == 3) && to->n_modalities) return PL_OK;
    return error_set(e, PL_USAGE, "--modalities %s: expected the number of one modality, or of three, such as 0,1,2",
                     o->modalities);
}

static bool is_empty(const char *folder)
{
    struct names l;
    struct error ignored;
    bool empty = !dir_list(folder, &l, &ignored) && !l.n;
    names_free(&l);
    return empty;
}

/* A folder is looked into, unless the options say how to read it. Shards are opened by their
 * folder. */
static int detect(struct samples *s, const struct samples_options *o, const struct names *paths, struct error *e)
{
    if (o->format || paths->n != 1 || !dir_exists(paths->at[0]) || is_empty(paths->at[0])) return PL_OK;
    struct detected f;
    if (detect_data(paths->at[0], false, o, &f, e)) return e->code;
    bool tokens = !strcmp(f.format, "tokens") || !strcmp(f.format, "text"), shards = !strcmp(f.format, "sa1b");
    if (tokens) error_set(e, PL_USAGE, "%s: it has %s, expected images with masks", paths->at[0], f.what);
    if (tokens || shards) return detected_free(&f), tokens ? e->code : PL_OK;
    s->detected = mem_copy(&f, sizeof f);
    s->format = f.format;
    return PL_OK;
}

/* The options' values replace those that were found. */
static int dataset_options(struct samples *s, const struct samples_options *o, struct dataset_options *to,
                           struct error *e)
{
    struct dataset_options d = {.images = o->images,
                                .masks = o->masks,
                                .image_prefix = o->image_prefix,
                                .image_suffix = o->image_suffix,
                                .mask_prefix = o->mask_prefix,
                                .mask_suffix = o->mask_suffix,
                                .image_column = o->image_column,
                                .mask_column = o->mask_column};
    if (s->detected) d = detected_options(s->detected, false);
    d.format = s->format, d.paths = s->files.at, d.n_paths = s->files.n, d.crowds = true, d.room = (size_t)o->room;
    d.split = (struct dataset_split){0}; /* all of its files */
    if (o->ignore) d.ignore = (int)min_u64(o->ignore, 65535);
    d.threshold = (uint32_t)min_u64(o->threshold, 65535);
    *to = d;
    if (parse_labels(o->labels, &to->labels, e) || parse_slices(s, o, &to->slices, e)) return e->code;
    return parse_range(o->range, &to->range, e);
}

int samples_open(struct samples *s, const struct samples_options *o, const struct names *paths, struct error *e)
{
    *s = (struct samples){.format = o->format};
    if (!o->format && (o->images || o->masks || o->mask_suffix || o->mask_prefix) && paths->n == 1 &&
        dir_exists(paths->at[0]))
        s->format = "pairs";
    int rc = s->format ? PL_OK : detect(s, o, paths, e);
    if (!rc) rc = find_files(s, s->detected ? &s->detected->train : paths, e);
    struct dataset_options d;
    if (!rc) rc = dataset_options(s, o, &d, e);
    const char *found = rc ? NULL : s->format;
    if (!rc) rc = dataset_open(&s->set, &d, e);
    if (rc) {
        samples_close(s);
        s->format = found;
        return rc;
    }
    s->n = dataset_count(s->set);
    if (dataset_unpaired(s->set)) log_warn("%s: %s", paths->at[0], dataset_unpaired(s->set));
    return PL_OK;
}

void samples_close(struct samples *s)
{
    dataset_close(s->set);
    names_free(&s->files);
    if (s->detected) detected_free(s->detected);
    mem_free(s->detected);
    memset(s, 0, sizeof *s);
}

/* ---- reading ---- */

static enum data_fault read_image(const struct samples *s, uint64_t i, struct sample *out, struct error *e)
{
    enum data_fault f = FAULT_TOO_LARGE;
    for (size_t room = first_bytes; f == FAULT_TOO_LARGE && room <= most_bytes; room *= 4) {
        mem_free(out->image);
        out->image = mem_alloc(room);
        f = dataset_image(s->set, i, out->image, room, &out->facts, e);
    }
    struct dataset_image *x = &out->facts;
    if (f || !x->decoded) return f;
    uint8_t *to = mem_alloc((size_t)x->h * x->w * 3);
    for (uint32_t y = 0; y < x->h; y++) memcpy(to + (size_t)y * x->w * 3, x->pixels + y * x->stride, (size_t)x->w * 3);
    mem_free(out->image); /* the rows may be in it */
    out->image = to;
    x->pixels = to, x->stride = (size_t)x->w * 3;
    return f;
}

static enum data_fault read_masks(const struct samples *s, uint64_t i, struct sample *out, struct error *e)
{
    size_t room = first_bytes;
    uint32_t masks = MASKS;
    for (;;) {
        mem_free(out->scratch);
        mem_free(out->masks);
        out->scratch = mem_alloc(room);
        out->masks = mem_alloc(masks * sizeof *out->masks);
        enum data_fault f = dataset_masks(s->set, i, out->scratch, room, out->masks, masks, &out->found, e);
        if (f == FAULT_TOO_LARGE && room < most_bytes) room *= 4;
        else if (f == FAULT_MANY && masks < MAX_MASKS) masks *= 4;
        else return f;
    }
}

int samples_read(const struct samples *s, uint64_t i, struct sample *out, struct error *e)
{
    memset(out, 0, sizeof *out);
    dataset_name(s->set, i, out->name, sizeof out->name);
    enum data_fault f = read_image(s, i, out, e);
    if (f) return error_prepend(e, "image"), PL_USAGE;
    f = read_masks(s, i, out, e);
    if (f) {
        out->found.n = 0;
        return error_prepend(e, "annotations"), PL_USAGE;
    }
    for (uint32_t k = 0; k < out->found.n && !out->runs_memory; k++)
        if (out->masks[k].shape.kind == SHAPE_POLYGONS) {
            out->runs_memory = mem_alloc(polygon_bytes(POLYGON_RUNS));
            polygon_init(&out->runs, out->runs_memory, POLYGON_RUNS);
        }
    e->code = PL_OK; /* attempts with too small a buffer set it */
    return PL_OK;
}

void sample_free(struct sample *s)
{
    mem_free(s->image);
    mem_free(s->masks);
    mem_free(s->scratch);
    mem_free(s->runs_memory);
    memset(s, 0, sizeof *s);
}

/* ---- facts ---- */

/* One label of a label image. */
static bool label_is_on(const void *of, uint32_t y, uint32_t x)
{
    const struct shape *s = of;
    const uint8_t *at = (const uint8_t *)s->label.pixels + y * s->label.stride;
    return (s->label.bytes == 2 ? ((const uint16_t *)at)[x] : at[x]) == s->label.id;
}

int sample_measure(const struct sample *s, uint32_t k, struct rle_facts *f, struct error *e)
{
    const struct shape *shape = &s->masks[k].shape;
    struct rle runs = shape->rle;
    struct polygon_scratch scratch = s->runs;
    enum rle_status status = RLE_OK;
    if (shape->kind == SHAPE_LABEL) {
        rle_measure_pixels(f, shape->h, shape->w, label_is_on, shape);
        return PL_OK;
    }
    if (shape->kind == SHAPE_BITS) {
        cells_measure(shape, f);
        /* in pixels of the image, not in cells of the store */
        if (s->masks[k].area >= 0) f->area = (uint32_t)s->masks[k].area;
        return PL_OK;
    }
    if (shape->kind == SHAPE_POLYGONS)
        status = polygons_union(shape->polygons.at, shape->polygons.n, shape->h, shape->w, &scratch, &runs);
    if (status == RLE_OK) status = rle_measure(&runs, f);
    if (status == RLE_OK) return PL_OK;
    return error_set(e, PL_USAGE, "mask %lld: %s", (long long)s->masks[k].id, rle_status_text(status));
}

int sample_size(const struct sample *s, uint32_t *w, uint32_t *h, struct error *e)
{
    if (!s->facts.decoded) return image_size(s->image, s->facts.n, w, h, e);
    *w = s->facts.full_w, *h = s->facts.full_h;
    return PL_OK;
}

/* ---- images ---- */

bool image_is_png(const void *bytes, size_t n) { return image_format(bytes, n) == IMAGE_PNG; }

int image_size(const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct error *e)
{
    struct jpg_header j;
    size_t room;
    if (image_is_whole(bytes, n)) return image_peek(bytes, n, &(struct image_options){0}, w, h, &room, e);
    if (jpg_peek(bytes, n, &j, e)) return e->code;
    *w = j.width, *h = j.height;
    return PL_OK;
}

/* Decodes row by row, without a buffer of the image's size. */
static int check_jpeg(struct jpg *j, const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct error *e)
{
    if (jpg_start(j, bytes, n, 1, w, h, e)) return e->code;
    uint8_t *row = mem_alloc((size_t)*w * 3);
    int rc = PL_OK;
    for (uint32_t y = 0; y < *h && !rc; y++) rc = jpg_rows(j, row, 0, 1, e);
    if (!rc) rc = jpg_finish(j, e);
    mem_free(row);
    return rc;
}

int image_check(struct jpg *j, const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct error *e)
{
    struct image x;
    if (!image_is_whole(bytes, n)) return check_jpeg(j, bytes, n, w, h, e);
    if (image_decode(&x, bytes, n, &(struct image_options){.range = {.kind = RANGE_FULL}}, NULL, 0, e)) return e->code;
    *w = x.width, *h = x.height;
    mem_free(x.rgb);
    return PL_OK;
}

/* ---- halves ---- */

/* A tar states the size of a member. For a file in a folder the first read attempt returns it. */
int samples_read_half(const struct shard *s, uint32_t i, enum shard_half half, struct text *out, struct error *e)
{
    size_t n = s->pairs[i].n[half] ? s->pairs[i].n[half] : 1 << 20, got = 0;
    int rc = PL_NOFIT;
    for (int attempt = 0; attempt < 2 && rc == PL_NOFIT; attempt++) {
        mem_free(out->at);
        *out = (struct text){mem_alloc(n + 1), 0, n + 1};
        rc = shard_read(s, i, half, out->at, n, &got, e);
        if (rc == PL_NOFIT) n = got;
    }
    out->n = rc ? 0 : got;
    if (!rc) e->code = PL_OK; /* the first attempt may have set it */
    return rc;
}
