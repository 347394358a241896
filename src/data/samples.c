/*
 * samples.c: see samples.h. Buffers start at a common size and grow, up to a limit, when a sample
 * needs more.
 */
#include "data/samples.h"

#include <inttypes.h>
#include <math.h>

#include "data/detect/detect.h"
#include "data/images/image.h"
#include "data/masks/grid.h"

enum { MASKS = 1024, MAX_MASKS = 1 << 20, POLYGON_RUNS = 1 << 19 };
static const size_t first_bytes = 4 << 20, most_bytes = (size_t)1 << 30;

/* ---- opening ---- */

/* Lists the files of the paths; the first one decides the format unless it is given. A folder of
 * tars means all of them; a path of no known name is taken for a shard. */
static int find_files(struct samples *s, const struct names *paths, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths->n && !rc; i++) {
        struct names found = {0};
        rc = file_glob(paths->at[i], &found, e);
        if (!rc && !found.n) rc = error_set(e, PL_USAGE, "%s: no such file or folder", paths->at[i]);
        if (!rc && !s->format && !dir_exists(found.at[0])) {
            const struct unread *u = unread_by_name(found.at[0]);
            if (u) rc = unread_refuse(u, found.n, NULL, found.at[0], e);
            else if (is_volume_name(found.at[0], NULL)) rc = volume_refuse(found.at[0], e);
            s->format = detect_format(found.at[0]);
            if (!s->format && path_has_ending(found.at[0], ".json")) s->format = "coco";
        }
        if (!s->format) s->format = "sa1b";
        for (uint32_t k = 0; k < found.n && !rc; k++) {
            const uint32_t before = s->files.n;
            if (!strcmp(s->format, "sa1b") && dir_exists(found.at[k])) {
                struct names tars = {0};
                rc = dir_list_ending(found.at[k], ".tar", &tars, e);
                for (uint32_t t = 0; t < tars.n; t++) vec_push(&s->files, mem_string(tars.at[t]));
                names_free(&tars);
            }
            if (s->files.n == before) vec_push(&s->files, mem_string(found.at[k]));
        }
        names_free(&found);
    }
    return rc;
}

/* Looks into a folder that is not empty. Shards are opened by their folder. */
static int detect(struct samples *s, const struct dataset_options *given, const char *folder, struct error *e)
{
    struct names l;
    struct detected f;
    TRY(dir_list(folder, &l, e));
    const bool empty = !l.n;
    names_free(&l);
    if (empty) return PL_OK;
    TRY(detect_data(&f, folder, false, given, e));
    const char *format = f.set.format;
    const bool tokens = !strcmp(format, "tokens") || !strcmp(format, "text"), shards = !strcmp(format, "sa1b");
    if (tokens) error_set(e, PL_USAGE, "%s: it has %s, expected images with masks", folder, f.what);
    if (tokens || shards) return detected_free(&f), tokens ? e->code : PL_OK;
    s->detected = mem_copy(&f, sizeof f);
    s->format = format;
    return PL_OK;
}

int samples_open(struct samples *s, const struct dataset_options *given, const struct names *paths, struct error *e)
{
    const bool folder = paths->n == 1 && dir_exists(paths->at[0]);
    struct dataset_options o = *given;
    *s = (struct samples){.format = given->format};
    if (!s->format && (o.images || o.masks || o.mask_suffix || o.mask_prefix) && folder) s->format = "pairs";
    int rc = !s->format && folder ? detect(s, given, paths->at[0], e) : PL_OK;
    if (!rc) rc = find_files(s, s->detected ? &s->detected->train : paths, e);
    if (s->detected) {
        o = s->detected->set;
        if (given->labels) o.labels = given->labels;
        if (given->ignore) o.ignore = given->ignore;
        o.threshold = given->threshold, o.range = given->range, o.slices = given->slices, o.room = given->room;
    }
    o.format = s->format, o.paths = s->files.at, o.n_paths = s->files.n, o.crowds = true;
    const char *found = rc ? NULL : s->format;
    if (!rc) rc = dataset_open(&s->set, &o, e);
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

static enum data_fault read_image(const struct dataset *d, uint64_t i, struct sample *out, struct error *e)
{
    enum data_fault f = FAULT_TOO_LARGE;
    for (size_t room = first_bytes; f == FAULT_TOO_LARGE && room <= most_bytes; room *= 4) {
        mem_free(out->image);
        out->image = mem_alloc(room);
        f = dataset_image(d, i, out->image, room, &out->facts, e);
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

static enum data_fault read_masks(const struct dataset *d, uint64_t i, struct sample *out, struct error *e)
{
    size_t room = first_bytes;
    uint32_t masks = MASKS;
    for (;;) {
        mem_free(out->scratch);
        mem_free(out->masks);
        out->scratch = mem_alloc(room);
        out->masks = mem_alloc(masks * sizeof *out->masks);
        enum data_fault f = dataset_masks(d, i, out->scratch, room, out->masks, masks, &out->found, e);
        if (f == FAULT_TOO_LARGE && room < most_bytes) room *= 4;
        else if (f == FAULT_MANY && masks < MAX_MASKS) masks *= 4;
        else return f;
    }
}

int samples_read(const struct dataset *d, uint64_t i, struct sample *out, struct error *e)
{
    memset(out, 0, sizeof *out);
    dataset_name(d, i, out->name, sizeof out->name);
    enum data_fault f = read_image(d, i, out, e);
    if (f) return error_prepend(e, "image"), PL_USAGE;
    f = read_masks(d, i, out, e);
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

/* Reports whether a pixel of a label image has the label of the shape. */
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
    size_t room;
    if (!s->facts.decoded) return image_peek(s->image, s->facts.n, &(struct image_options){0}, w, h, &room, e);
    *w = s->facts.full_w, *h = s->facts.full_h;
    return PL_OK;
}

int sample_decode(const struct sample *s, const struct pixel_range *range, struct image *out, struct error *e)
{
    const struct dataset_image *x = &s->facts;
    if (!x->decoded) return image_decode(out, s->image, x->n, &(struct image_options){.range = *range}, NULL, 0, e);
    *out = (struct image){x->w, x->h, mem_copy(s->image, (size_t)x->w * x->h * 3), {0, 0}};
    return PL_OK;
}

uint8_t *sample_raster(const struct sample *s, uint32_t k, uint32_t w, uint32_t h, size_t *stride)
{
    const uint32_t side = s->found.w > s->found.h ? s->found.w : s->found.h, cells = w > h ? w : h;
    const struct grid_geometry all = {.h = s->found.h, .w = s->found.w, .resized_w = w, .resized_h = h, .canvas_w = w,
                                      .canvas_h = h, .gw = w, .gh = h};
    if (cells > GRID_MAX_CELLS) return NULL;
    void *memory = mem_alloc(grid_bytes(side, cells));
    uint8_t *bits = mem_alloc(grid_mask_bytes(w, h));
    struct grid g;
    struct polygon_scratch runs = s->runs;
    struct error ignored;
    grid_init(&g, memory, side, cells);
    const bool made = !grid_set(&g, &all, &ignored) && !mask_raster(&s->masks[k], &g, &runs, bits, &ignored);
    *stride = grid_stride(w);
    mem_free(memory);
    if (made) return bits;
    mem_free(bits);
    return NULL;
}

/* --- options ---------------------------------------------------------------------------------- */

/* Returns the number of a word of a list that ends with NULL; -1: it is none of them. */
static int find_word(const char *word, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(word, words[i])) return i;
    return -1;
}

static int parse_range(const char *word, struct pixel_range *to, struct error *e)
{
    const int kind = word ? find_word(word, (const char *const[]){"auto", "full", "percentiles", NULL}) : 0;
    char end;
    *to = (struct pixel_range){.kind = kind < 0 ? RANGE_WINDOW : (enum range_kind)kind, .percentiles = {0.5, 99.5}};
    if (kind >= 0 ||
        (sscanf(word, "%lf,%lf%c", &to->window[0], &to->window[1], &end) == 2 && to->window[0] < to->window[1] &&
         isfinite(to->window[0]) && isfinite(to->window[1])))
        return PL_OK;
    return error_set(
        e, PL_USAGE,
        "--range %s: expected auto, full, percentiles, or two values, the smaller one first, such as 0,4095", word);
}

int samples_options_read(struct samples_options *o, struct error *e)
{
    struct slice_options *s = &o->set.slices;
    int64_t *m = o->numbers;
    const int labels =
        o->labels ? find_word(o->labels, (const char *const[]){"auto", "binary", "classes", "instances", NULL}) : 0;
    const int axis =
        o->slice_axis ? find_word(o->slice_axis, (const char *const[]){"axial", "coronal", "sagittal", NULL}) : 0;
    if (labels < 0)
        return error_set(e, PL_USAGE, "--labels %s: expected auto, binary, classes or instances", o->labels);
    if (axis < 0) return error_set(e, PL_USAGE, "--slice-axis %s: expected axial, coronal or sagittal", o->slice_axis);
    o->set.labels = (enum label_kind)labels, s->axis = (enum volume_axis)axis;
    o->set.ignore = (int)min_u64(o->ignore, 65535);
    o->set.threshold = (uint32_t)min_u64(o->threshold, 65535);
    TRY(parse_range(o->range, &o->set.range, e));
    if (!o->modalities) return PL_OK;
    char end;
    const int n = sscanf(o->modalities, "%" SCNd64 ",%" SCNd64 ",%" SCNd64 "%c", &m[0], &m[1], &m[2], &end);
    bool fits = n == 1 || n == 3;
    for (int i = 0; i < n && i < 3; i++) fits &= m[i] >= 0 && m[i] <= 9999;
    s->modalities = m, s->n_modalities = (uint32_t)n;
    return fits ? PL_OK
                : error_set(e, PL_USAGE,
                            "--modalities %s: expected the number of one modality, or of three, such as 0,1,2",
                            o->modalities);
}
