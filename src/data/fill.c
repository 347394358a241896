/*
 * fill.c: see fill.h.
 *
 * Three coordinate systems meet here, all described by one geometry (grid.h): the stored image,
 * with its masks and crops; the canvas, which is the model's input; the grid of cells over the
 * canvas, which the loss reads. The image is mapped to the canvas by a window and a size
 * (resize.h), the masks to the grid by the same window and size (grid.h).
 *
 * Random decisions are counter-based random numbers, indexed by position: see random.h.
 */
#include "data/fill.h"

#include <math.h>

#include "base/random.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/order.h"
#include "data/masks/polygon.h"
#include "data/images/resize.h"
#include "data/ring.h"

struct filler {
    struct loader_options o;
    char *room;               /* [o.room] files of the current sample */
    struct mask *records;     /* [LOADER_RECORDS] */
    void *choosing;           /* scratch of the sampler */
    uint32_t *chosen;         /* [o.masks] */
    void *grid_memory, *resize_memory, *polygon_memory;
    size_t resize_room;
    uint8_t *row;             /* one decoded row of a JPEG */
    uint16_t *distance;       /* [(cells + 2)^2] distance of each cell to a mask's edge */
    uint8_t *before;          /* the image, or a mask, before it is moved (loader.h) */
    struct augment augment;   /* of the current sample */
    struct grid grid;
    struct polygon_scratch polygons;
    struct jpg *jpg;
};

/* --- memory -------------------------------------------------------------------------- */

static uint64_t bits_bytes(const struct loader_options *o)
{
    return (uint64_t)o->masks * grid_mask_bytes(o->cells, o->cells);
}

/* Returns the bytes of the image, or of the embedding that replaces it. */
static uint64_t image_bytes(const struct loader_options *o)
{
    return o->embedding ? o->embedding : (uint64_t)o->side * o->side * 3;
}

uint64_t slot_layout(struct slot *s, const struct loader_options *o, char *at)
{
    uint64_t used = 0;
    s->image = ring_carve(at, &used, image_bytes(o));
    s->bits = ring_carve(at, &used, bits_bytes(o));
    s->masks = ring_carve(at, &used, o->masks * sizeof *s->masks);
    return used;
}

static uint64_t filler_layout(struct filler *f, const struct loader_options *o, char *at)
{
    uint64_t used = 0, cells = o->cells + 2;
    double least = o->least > 0 && o->least < 1 ? o->least : 1;
    uint32_t small = (uint32_t)max_i64(1, (int64_t)(least * o->side));
    size_t a = resize_scratch_most(LOADER_MAX_SIDE, o->side), b = resize_scratch_most(LOADER_MAX_SIDE, small);
    f->resize_room = o->embedding ? 0 : a > b ? a : b; /* no image is decoded or resized */
    f->room = ring_carve(at, &used, o->room);
    f->records = ring_carve(at, &used, LOADER_RECORDS * sizeof *f->records);
    f->choosing = ring_carve(at, &used, sampler_bytes(LOADER_RECORDS, o->masks));
    f->chosen = ring_carve(at, &used, o->masks * sizeof *f->chosen);
    f->grid_memory = ring_carve(at, &used, grid_bytes(LOADER_MAX_SIDE, o->cells));
    f->resize_memory = ring_carve(at, &used, f->resize_room);
    f->polygon_memory = ring_carve(at, &used, polygon_bytes(o->polygon_runs));
    f->row = ring_carve(at, &used, o->embedding ? 0 : LOADER_MAX_SIDE * 3);
    f->distance = ring_carve(at, &used, cells * cells * sizeof *f->distance);
    if (o->moves)
        f->before = ring_carve(at, &used, (uint64_t)max_i64((int64_t)(o->embedding ? 0 : image_bytes(o)),
                                                 (int64_t)grid_mask_bytes(o->cells, o->cells)));
    return used;
}

uint64_t filler_size(const struct loader_options *o)
{
    struct filler f = {0};
    return filler_layout(&f, o, NULL);
}

struct filler *filler_new(const struct loader_options *o, char *at)
{
    struct filler *f = mem_alloc(sizeof *f);
    f->o = *o;
    filler_layout(f, o, at);
    grid_init(&f->grid, f->grid_memory, LOADER_MAX_SIDE, o->cells);
    polygon_init(&f->polygons, f->polygon_memory, o->polygon_runs);
    f->jpg = jpg_new(&(struct jpg_limits){.memory = LOADER_POOL});
    return f;
}

void filler_free(struct filler *f)
{
    if (!f) return;
    jpg_free(f->jpg);
    mem_free(f);
}

/* --- geometry --------------------------------------------------------------------------- */

/* Returns a number in [0, 1), uniform, from the position's stream. */
static double draw(uint64_t key, uint64_t i) { return (double)(random_bits(key, i) >> 11) * 0x1p-53; }

enum { DRAW_FLIP, DRAW_SCALE, DRAW_CROP_W, DRAW_CROP_H, DRAW_CROP_X, DRAW_CROP_Y };

static uint32_t window(uint32_t side, double least, double at, double where, uint32_t *from)
{
    uint32_t n = (uint32_t)max_i64(1, (int64_t)(side * (least + (1 - least) * at) + 0.5));
    *from = (uint32_t)(where * (side - n + 1));
    return n;
}

static uint64_t augment_key(const struct loader_source *source, uint64_t position)
{
    return random_bits(random_key(source->order.seed, "augment"), position);
}

static struct grid_geometry choose_geometry(const struct filler *f, const struct loader_source *source,
                                            uint64_t position, uint32_t h, uint32_t w)
{
    const struct loader_augment *a = &source->augment;
    uint64_t key = augment_key(source, position);
    struct grid_geometry g = {.h = h, .w = w, .crop_w = w, .crop_h = h, .canvas_w = f->o.side, .canvas_h = f->o.side,
                              .gw = f->o.cells, .gh = f->o.cells, .flip = draw(key, DRAW_FLIP) < a->flip};
    uint32_t side = f->o.side;
    if (a->scale > 0 && a->scale < 1)
        side = (uint32_t)max_i64(1, (int64_t)(side * (a->scale + (1 - a->scale) * draw(key, DRAW_SCALE)) + 0.5));
    if (a->crop > 0 && a->crop < 1) {
        g.crop_w = window(w, a->crop, draw(key, DRAW_CROP_W), draw(key, DRAW_CROP_X), &g.crop_x);
        g.crop_h = window(h, a->crop, draw(key, DRAW_CROP_H), draw(key, DRAW_CROP_Y), &g.crop_y);
    }
    resize_canvas(g.crop_w, g.crop_h, side, f->o.stretched, &g.resized_w, &g.resized_h);
    return g;
}

/* --- masks ------------------------------------------------------------------------------- */

/* Computes area and box from the bits. */
static void measure(const struct grid *g, uint32_t rows, const uint8_t *bits, struct loader_mask *m)
{
    uint32_t words = g->stride / 8, x0 = UINT32_MAX, x1 = 0, y0 = UINT32_MAX, y1 = 0;
    for (uint32_t y = 0; y < rows; y++) {
        const uint64_t *row = (const uint64_t *)(const void *)(bits + (size_t)y * g->stride);
        for (uint32_t k = 0; k < words; k++) {
            if (!row[k]) continue;
            uint32_t low = k * 64 + (uint32_t)__builtin_ctzll(row[k]),
                     high = k * 64 + 63 - (uint32_t)__builtin_clzll(row[k]);
            m->area += (uint32_t)__builtin_popcountll(row[k]);
            if (low < x0) x0 = low;
            if (high > x1) x1 = high;
            if (y < y0) y0 = y;
            y1 = y;
        }
    }
    if (m->area) m->x = x0, m->y = y0, m->w = x1 - x0 + 1, m->h = y1 - y0 + 1;
}

static inline uint16_t nearest(uint16_t a, uint16_t straight, uint16_t left, uint16_t right)
{
    uint32_t d = a, s = straight + 3u, l = left + 4u, r = right + 4u;
    d = s < d ? s : d;
    d = l < d ? l : d;
    return (uint16_t)(r < d ? r : d);
}

/* Finds the cell with the largest distance to the mask's edge, the first of several. Distances
 * come from two sweeps (chamfer: 3 for a step along an axis, 4 for a diagonal step), within the
 * box and a margin around it that counts as outside. */
static void find_interior(struct filler *f, const uint8_t *bits, struct loader_mask *m)
{
    size_t W = m->w + 2, stride = f->grid.stride;
    uint16_t *d = f->distance, most = 0;
    memset(d, 0, W * (m->h + 2) * sizeof *d);
    for (uint32_t y = 0; y < m->h; y++)
        for (uint32_t x = 0; x < m->w; x++) {
            uint16_t *at = d + (y + 1) * W + x + 1;
            uint32_t c = m->x + x;
            if (!(bits[(m->y + y) * stride + c / 8] >> c % 8 & 1)) continue;
            at[0] = nearest((uint16_t)(at[-1] + 3), at[-(ptrdiff_t)W], at[-(ptrdiff_t)W - 1], at[-(ptrdiff_t)W + 1]);
        }
    for (uint32_t y = m->h; y-- > 0;)
        for (uint32_t x = m->w; x-- > 0;) {
            uint16_t *at = d + (y + 1) * W + x + 1;
            if (!at[0]) continue;
            uint16_t along = (uint16_t)(at[1] + 3);
            at[0] = nearest(along < at[0] ? along : at[0], at[W], at[W + 1], at[W - 1]);
            if (at[0] >= most) most = at[0], m->interior[0] = m->x + x, m->interior[1] = m->y + y;
        }
}

/* Rasterises the chosen masks, one after the other. A malformed mask is dropped, and so is one
 * that covers no cell. A mask of another size than the image is a fault of the sample. */
static enum data_fault raster(struct filler *f, const struct loader_source *source, uint32_t n, struct slot *s,
                              struct error *e)
{
    size_t bytes = grid_mask_bytes(f->o.cells, f->o.cells);
    for (uint32_t k = 0; k < n; k++) {
        const struct mask *from = &f->records[f->chosen[k]];
        uint8_t *to = s->bits + s->out.n * bytes;
        enum data_fault fault = mask_raster(from, &f->grid, &f->polygons, to, e);
        if (fault == FAULT_SIZE) return fault;
        if (fault) {
            s->bad_masks++;
            continue;
        }
        struct loader_mask m = {.category = from->category, .id = from->id};
        augment_bits(&f->augment, f->o.side, f->o.cells, s->out.mask_rows, s->out.mask_columns, to, f->before);
        measure(&f->grid, s->out.mask_rows, to, &m);
        if (!m.area) {
            s->lost_masks++;
            continue;
        }
        if (source->interior) find_interior(f, to, &m);
        s->masks[s->out.n++] = m;
    }
    memset(s->bits + s->out.n * bytes, 0, (f->o.masks - s->out.n) * bytes);
    if (s->out.n) return FAULT_NONE;
    return error_set(e, PL_USAGE,
                     "none of %u chosen masks can be used: %u are malformed, %u are too small or outside of the crop",
                     n, s->bad_masks, s->lost_masks), s->bad_masks ? FAULT_MASK : FAULT_NO_MASKS;
}

static bool is_wanted(const struct loader_wanted *w, uint64_t sample, int64_t id)
{
    for (uint32_t i = w->first[sample]; i < w->first[sample + 1]; i++)
        if (w->ids[i] == id) return true;
    return false;
}

/* Adds the sample's wanted masks of n records to the chosen ones, of which there are at most
 * `most`; those that are replaced are the last that are not wanted. Returns the number of chosen
 * masks. */
static uint32_t choose_wanted(struct filler *f, const struct loader_wanted *w, uint64_t sample, uint32_t n,
                              uint32_t chosen, uint32_t most)
{
    for (uint32_t k = 0; k < n; k++) {
        if (!is_wanted(w, sample, f->records[k].id)) continue;
        uint32_t at = 0;
        while (at < chosen && f->chosen[at] != k) at++;
        if (at < chosen) continue;
        if (chosen < most) {
            f->chosen[chosen++] = k;
            continue;
        }
        for (at = chosen; at-- > 0 && is_wanted(w, sample, f->records[f->chosen[at]].id);) {}
        if (at < chosen) f->chosen[at] = k; /* else all are wanted */
    }
    return chosen;
}

static enum data_fault fill_masks(struct filler *f, const struct loader_source *source, uint64_t position,
                                  uint64_t sample, struct slot *s, struct error *e)
{
    struct dataset_masks found;
    enum data_fault fault =
        dataset_masks(source->set, sample, f->room, f->o.room, f->records, LOADER_RECORDS, &found, e);
    if (fault) return fault;
    if (!found.h || !found.w || found.h > LOADER_MAX_SIDE || found.w > LOADER_MAX_SIDE)
        return error_set(e, PL_USAGE, "the image has %u x %u pixels; expected sides of 1 to %d", found.w, found.h,
                         LOADER_MAX_SIDE), FAULT_TOO_LARGE;
    struct grid_geometry at = choose_geometry(f, source, position, found.h, found.w);
    if (grid_set(&f->grid, &at, e)) return FAULT_SIZE;
    uint64_t n = dataset_count(source->set), epoch = source->order.once ? 0 : position / n;
    struct sampler_options o = source->sampler;
    o.max_masks = (uint32_t)min_u64(o.max_masks, f->o.masks);
    uint32_t chosen = sampler_choose(&o, f->records, found.n, found.h, found.w, source->order.seed, epoch, position,
                                     f->choosing, f->chosen);
    if (source->wanted.first) chosen = choose_wanted(f, &source->wanted, sample, found.n, chosen, o.max_masks);
    if (!chosen) return error_set(e, PL_USAGE, "none of its %u masks passes the filters", found.n), FAULT_NO_MASKS;
    f->augment = augment_draw(&source->augment, augment_key(source, position), at.resized_h, at.resized_w);
    const bool turned = f->augment.rows != at.resized_h || f->augment.columns != at.resized_w;
    s->out.height = found.h;
    s->out.width = found.w;
    s->out.rows = f->augment.rows;
    s->out.columns = f->augment.columns;
    s->out.mask_rows = turned ? f->grid.valid_w : f->grid.valid_h;
    s->out.mask_columns = turned ? f->grid.valid_h : f->grid.valid_w;
    return raster(f, source, chosen, s, e);
}

/* --- the image --------------------------------------------------------------------------- */

static enum data_fault check_size(const struct slot *s, uint32_t w, uint32_t h, struct error *e)
{
    if (w == s->out.width && h == s->out.height) return FAULT_NONE;
    return mask_size_differs(w, h, s->out.width, s->out.height, e), FAULT_SIZE;
}

/* Starts resizing the crop out of an image decoded to w x h. */
static enum data_fault begin_resize(struct filler *f, struct slot *s, uint32_t w, uint32_t h, struct resize *r,
                                    struct error *e)
{
    const struct grid_geometry *g = &f->grid.at;
    double W = w, H = h;
    struct resize_view v = {.width = w, .height = h, .x = g->crop_x * W / g->w, .y = g->crop_y * H / g->h,
                            .w = g->crop_w * W / g->w, .h = g->crop_h * H / g->h, .to_width = g->resized_w,
                            .to_height = g->resized_h, .flip = g->flip, .to = s->image,
                            .stride = (size_t)f->o.side * 3};
    size_t need = resize_scratch(&v);
    if (need > f->resize_room)
        return error_set(e, PL_USAGE, "resizing it takes %zu bytes; expected at most %zu", need, f->resize_room),
               FAULT_TOO_LARGE;
    resize_begin(r, &v, f->resize_memory, f->resize_room);
    return FAULT_NONE;
}

static enum data_fault resize_rows(struct filler *f, struct slot *s, const uint8_t *rgb, size_t stride, uint32_t w,
                                   uint32_t h, struct error *e)
{
    struct resize r;
    enum data_fault fault = begin_resize(f, s, w, h, &r, e);
    for (uint32_t y = 0; !fault && resize_wants(&r); y++) resize_row(&r, rgb + y * stride);
    return fault;
}

/* Fills from decoded rows. Rows that already have the size of the canvas are copied. */
static enum data_fault fill_rows(struct filler *f, struct slot *s, const struct dataset_image *i, struct error *e)
{
    const struct grid_geometry *g = &f->grid.at;
    enum data_fault fault = check_size(s, i->full_w, i->full_h, e);
    if (fault) return fault;
    if (g->flip || g->crop_w != g->w || g->crop_h != g->h || i->w != g->resized_w || i->h != g->resized_h)
        return resize_rows(f, s, i->pixels, i->stride, i->w, i->h, e);
    for (uint32_t y = 0; y < i->h; y++)
        memcpy(s->image + (size_t)y * f->o.side * 3, i->pixels + y * i->stride, (size_t)i->w * 3);
    return FAULT_NONE;
}

/* Decodes a PNG or WebP as a whole, into the buffer after its file. */
static enum data_fault fill_whole(struct filler *f, struct slot *s, const struct pixel_range *range, size_t n,
                                  struct error *e)
{
    const struct image_options o = {.range = *range};
    struct image x;
    uint32_t w, h;
    size_t at = align_up(n, 64), need;
    if (image_peek(f->room, n, &o, &w, &h, &need, e)) return FAULT_IMAGE;
    enum data_fault fault = check_size(s, w, h, e);
    if (fault) return fault;
    if (at > f->o.room || need > f->o.room - at)
        return error_set(e, PL_NOFIT, "the image and its pixels take %zu bytes; expected at most %llu", at + need,
                         (unsigned long long)f->o.room), FAULT_TOO_LARGE;
    if (image_decode(&x, f->room, n, &o, f->room + at, f->o.room - at, e)) return FAULT_IMAGE;
    return resize_rows(f, s, x.rgb, (size_t)w * 3, w, h, e);
}

static enum data_fault fill_jpg(struct filler *f, struct slot *s, size_t n, struct error *e)
{
    const struct grid_geometry *g = &f->grid.at;
    struct jpg_header h;
    struct resize r;
    uint32_t w, rows, target = g->resized_w > g->resized_h ? g->resized_w : g->resized_h;
    if (jpg_peek(f->room, n, &h, e)) return FAULT_IMAGE;
    enum data_fault fault = check_size(s, h.width, h.height, e);
    if (fault) return fault;
    if (jpg_start(f->jpg, f->room, n, jpg_divisor(g->crop_w, g->crop_h, target), &w, &rows, e)) return FAULT_IMAGE;
    fault = begin_resize(f, s, w, rows, &r, e);
    while (!fault && resize_wants(&r)) {
        if (jpg_rows(f->jpg, f->row, 0, 1, e)) return FAULT_IMAGE; /* jpg_rows has released everything */
        resize_row(&r, f->row);
    }
    struct error ignored;
    if (jpg_finish(f->jpg, fault ? &ignored : e)) fault = fault ? fault : FAULT_IMAGE;
    return fault;
}

static void pad(const struct filler *f, struct slot *s)
{
    const uint32_t rows = f->grid.at.resized_h;
    size_t stride = (size_t)f->o.side * 3, used = (size_t)f->grid.at.resized_w * 3;
    for (uint32_t y = 0; y < rows; y++) memset(s->image + y * stride + used, 0, stride - used);
    memset(s->image + rows * stride, 0, (f->o.side - rows) * stride);
}

static enum data_fault fill_image(struct filler *f, const struct loader_source *source, uint64_t sample, struct slot *s,
                                  struct error *e)
{
    struct dataset_image i;
    enum data_fault fault = dataset_image(source->set, sample, f->room, f->o.room, &i, e);
    if (fault) return fault;
    if (i.decoded) {
        fault = fill_rows(f, s, &i, e);
    } else if (image_is_whole(f->room, i.n)) {
        fault = fill_whole(f, s, &source->set->range, i.n, e);
    } else {
        fault = fill_jpg(f, s, i.n, e);
    }
    if (!fault) pad(f, s);
    return fault;
}

/* --- for data packing ------------------------------------------------------------------ */

enum data_fault fill_records(struct filler *f, const struct dataset *set, uint64_t sample, bool stretched,
                             struct fill_facts *out, struct error *e)
{
    struct dataset_masks found;
    if (dataset_check(set, sample, e)) return FAULT_READ;
    enum data_fault fault = dataset_masks(set, sample, f->room, f->o.room, f->records, LOADER_RECORDS, &found, e);
    if (fault) return fault;
    uint32_t canvas = stretched ? f->o.cells : f->o.side;
    struct grid_geometry g = {.h = found.h, .w = found.w, .crop_w = found.w, .crop_h = found.h, .resized_w = canvas,
                              .resized_h = canvas, .canvas_w = canvas, .canvas_h = canvas, .gw = f->o.cells,
                              .gh = f->o.cells};
    if (!stretched && found.h && found.w)
        resize_canvas(found.w, found.h, canvas, f->o.stretched, &g.resized_w, &g.resized_h);
    if (grid_set(&f->grid, &g, e)) return FAULT_SIZE;
    *out = (struct fill_facts){.records = f->records, .n = found.n, .empty = found.empty, .h = found.h, .w = found.w,
                               .rows = g.resized_h, .columns = g.resized_w};
    return FAULT_NONE;
}

enum data_fault fill_bits(struct filler *f, uint32_t k, void *bits, struct error *e)
{
    return mask_raster(&f->records[k], &f->grid, &f->polygons, bits, e);
}

void fill_measure(const struct filler *f, const void *bits, struct loader_mask *m)
{
    measure(&f->grid, f->grid.valid_h, bits, m);
}

enum data_fault fill_sample_image(struct filler *f, const struct dataset *set, uint64_t sample, uint8_t *to,
                                  struct error *e)
{
    const struct grid_geometry *g = &f->grid.at;
    struct slot s = {.image = to,
                     .out = {.height = g->h, .width = g->w, .rows = g->resized_h, .columns = g->resized_w}};
    return fill_image(f, &(struct loader_source){.set = set}, sample, &s, e);
}

/* Fills the embedding instead of the image. The geometry is that of the unchanged image, so masks
 * and prompts are the same in both cases. */
static enum data_fault fill_embedding(struct filler *f, const struct loader_source *source, uint64_t sample,
                                      struct slot *s)
{
    memcpy(s->image, dataset_embedding(source->set, sample), f->o.embedding);
    s->out.embedding = s->image;
    s->out.image = NULL;
    return FAULT_NONE;
}

/* --- a whole slot -------------- */

uint64_t source_sample(const struct loader_source *source, uint64_t position)
{
    const struct sample_order *o = &source->order;
    return o->once ? position : sample_at(o->seed, position, dataset_count(source->set), o->shuffle);
}

static enum data_fault fill(struct filler *f, const struct loader_source *source, uint64_t position, uint64_t sample,
                            struct slot *s, struct error *e)
{
    s->out = (struct loader_sample){.position = position, .sample = sample, .image = s->image, .bits = s->bits,
                                    .masks = s->masks};
    s->bad_masks = s->lost_masks = 0;
    if (dataset_check(source->set, sample, e)) return FAULT_READ;
    enum data_fault fault = fill_masks(f, source, position, sample, s, e);
    if (fault) return fault;
    if (f->o.embedding) return fill_embedding(f, source, sample, s);
    fault = fill_image(f, source, sample, s, e);
    if (!fault) augment_image(&f->augment, f->o.side, s->image, f->before);
    return fault;
}

/* Clears a slot: no image, no mask. */
static void clear(struct filler *f, struct slot *s)
{
    memset(s->image, 0, image_bytes(&f->o));
    if (f->o.embedding) s->out.embedding = s->image, s->out.image = NULL;
    memset(s->bits, 0, bits_bytes(&f->o));
    s->out.n = s->out.rows = s->out.columns = s->out.mask_rows = s->out.mask_columns = 0;
}

void fill_slot(struct filler *f, const struct loader_source *source, uint64_t position, struct slot *s)
{
    struct error e = {0};
    const uint64_t n = dataset_count(source->set), sample = source_sample(source, position);
    s->rc = PL_OK;
    s->why.fault = FAULT_NONE;
    enum data_fault first = fill(f, source, position, sample, s, &e), fault = first;
    s->why.broken = first != FAULT_NONE;
    if (first) {
        dataset_name(source->set, sample, s->why.name, sizeof s->why.name);
        faults_set(&s->why, first, &e);
    }
    for (uint64_t i = 0; fault && !source->order.once && i < FAULTS_TRIES && s->why.fault != FAULT_OPEN; i++) {
        fault = fill(f, source, position, faults_substitute(source->order.seed, position, i, n), s, &e);
        if (fault && e.no_descriptors) faults_set(&s->why, fault, &e);
    }
    if (fault) clear(f, s);
    if (fault && !source->order.once) s->rc = PL_FAIL;
    s->out.fault = first;
}
