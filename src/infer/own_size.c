/*
 * own_size.c: see own_size.h.
 */
#include "infer/own_size.h"

#include "data/dataset.h"
#include "data/images/resize.h"
#include "batch/batch_plan.h"
#include "infer/predictor.h"
#include "io/file.h"

static const char *category_name(const void *of, int32_t category) { return dataset_category(of, category); }

bool own_size_open(struct own_size *o, const struct run *r, const struct feed *f, const char *const *prompts,
                   const double spacing[2], double tolerance)
{
    const id picks = graph_find_output(&r->planned.graph, PROGRAM_STEP, "picked_masks");
    if (!picks) return false;
    const struct loader_options l = batch_loader(f->config, &r->planned.model, &(struct packed_embeddings){0});
    const struct tensor *t = tensor_at(&r->planned.graph, picks);
    *o = (struct own_size){.set = feed_dataset(f),
                           .picks = picks,
                           .masks = l.masks,
                           .side = l.side,
                           .stretched = l.stretched,
                           .cells = l.cells,
                           .room_bytes = l.room};
    o->table = (struct mask_table){.prompts = prompts, .name = category_name, .names_of = o->set,
                                   .spacing = {spacing[0], spacing[1]},
                                   .tolerance = tolerance};
    uint32_t slice;
    const char *volume;
    const struct volume *first = spacing[0] == 0 ? dataset_slice(o->set, 0, &slice, &volume) : NULL;
    o->table.of_volumes = first && first->kind != VOLUME_TIFF; /* whose pages have no size in mm */
    volume_scores_open(&o->volumes, o->set, prompts, tolerance);
    if (spacing[0] == 0) o->table.spacing[0] = o->table.spacing[1] = 1;
    o->raw = mem_alloc(tensor_bytes(t));
    o->logits = mem_alloc((size_t)tensor_elements(t) * sizeof *o->logits);
    o->fitted = mem_alloc((size_t)l.side * l.side * sizeof *o->fitted);
    o->room = mem_alloc(o->room_bytes);
    o->records = mem_alloc(LOADER_RECORDS * sizeof *o->records);
    o->grid_memory = mem_alloc(grid_bytes(LOADER_MAX_SIDE, LOADER_MAX_SIDE));
    grid_init(&o->grid, o->grid_memory, LOADER_MAX_SIDE, LOADER_MAX_SIDE);
    o->polygon_memory = mem_alloc(polygon_bytes(l.polygon_runs) + 1);
    polygon_init(&o->polygons, o->polygon_memory, l.polygon_runs);
    return true;
}

void own_size_close(struct own_size *o)
{
    mask_table_free(&o->table);
    volume_scores_close(&o->volumes);
    void *const all[] = {o->raw,       o->logits, o->room, o->records, o->grid_memory, o->polygon_memory,
                         o->predicted, o->target, o->bits, o->fitted};
    for (size_t i = 0; i < COUNT(all); i++) mem_free(all[i]);
    memset(o, 0, sizeof *o);
}

/* --- the truth ------------------------------------------------------------------------------- */

/* Grows a buffer to at least n bytes; its contents are lost. */
static void reserve(void *buffer, size_t *room, size_t n)
{
    if (n <= *room) return;
    mem_free(*(void **)buffer);
    *(void **)buffer = mem_alloc(n);
    *room = n;
}

static void reserve_image(struct own_size *o)
{
    const size_t cells = (size_t)o->cells * o->cells, pixels = (size_t)o->w * o->h,
                 most = pixels > cells ? pixels : cells;
    const size_t bits[2] = {grid_mask_bytes(o->cells, o->cells), grid_mask_bytes(o->w, o->h)};
    reserve(&o->predicted, &o->room_of[0], most);
    reserve(&o->target, &o->room_of[1], most);
    reserve(&o->bits, &o->room_of[2], bits[bits[1] > bits[0]]);
}

/* Reads the masks of a sample again. */
static int read_sample(struct own_size *o, uint64_t sample, struct error *e)
{
    struct dataset_masks found;
    o->found = 0;
    if (dataset_check(o->set, sample, e) ||
        dataset_masks(o->set, sample, o->room, o->room_bytes, o->records, LOADER_RECORDS, &found, e))
        return PL_USAGE;
    if (!found.w || !found.h || found.w > LOADER_MAX_SIDE || found.h > LOADER_MAX_SIDE) return PL_USAGE;
    o->found = found.n;
    o->w = found.w;
    o->h = found.h;
    uint32_t slice;
    const char *name;
    const struct volume *v = o->table.of_volumes ? dataset_slice(o->set, sample, &slice, &name) : NULL;
    memcpy(o->mm, v ? v->spacing : o->table.spacing, sizeof o->mm);
    reserve_image(o);
    return PL_OK;
}

/* Rasterises a mask of the sample over `g` to bytes: *w x *h cells of the image. */
static bool raster(struct own_size *o, const struct feed_mask *m, const struct grid_geometry *g, uint32_t *w,
                   uint32_t *h)
{
    struct error ignored;
    const struct mask *from = NULL;
    for (uint32_t k = 0; k < o->found && !from; k++)
        if (o->records[k].id == m->id && o->records[k].category == m->category) from = &o->records[k];
    if (!from || grid_set(&o->grid, g, &ignored) || mask_raster(from, &o->grid, &o->polygons, o->bits, &ignored))
        return false;
    *w = o->grid.valid_w;
    *h = o->grid.valid_h;
    for (uint32_t y = 0; y < *h; y++)
        for (uint32_t x = 0; x < *w; x++)
            o->target[(size_t)y * *w + x] = o->bits[(size_t)y * o->grid.stride + x / 8] >> x % 8 & 1;
    return true;
}

/* --- scores --------------------------------------------------------------------------------- */

static void compare(const struct own_size *o, const struct cell_box *b, double *value)
{
    masks_compare(b, o->predicted, o->target, o->table.tolerance, value);
}

/* Adds the mask at the image's own size to the body that it is a slice of. */
static void add_slice(struct own_size *o, const struct mask_row *row)
{
    const char *name;
    struct body_slice at = {.sample = row->sample, .mask = row->mask, .category = row->category, .prompt = row->prompt};
    at.volume = dataset_slice(o->set, row->sample, &at.slice, &name);
    volume_scores_add(&o->volumes, &at, o->predicted, o->target);
}

static bool score(struct own_size *o, const struct feed_mask *m, const float *logits, struct mask_row *row)
{
    const double *mm = o->mm;
    struct grid_geometry g = {.h = o->h, .w = o->w, .crop_w = o->w, .crop_h = o->h, .resized_w = o->w,
                              .resized_h = o->h, .canvas_w = o->w, .canvas_h = o->h, .gw = o->w, .gh = o->h};
    uint32_t fit_w, fit_h, w, h;
    resize_canvas(o->w, o->h, o->side, o->stretched, &fit_w, &fit_h);
    if (!raster(o, m, &g, &w, &h)) return false;
    const struct mask_view v = mask_view_of(o->cells, o->side, o->stretched, o->w, o->h);
    mask_upsample(&v, logits, o->fitted, 0, o->predicted);
    compare(o, &(struct cell_box){w, h, 1, {mm[0], mm[1], 1}}, row->value[SIZE_OWN]);
    if (o->table.of_volumes) add_slice(o, row);
    g.resized_w = fit_w, g.resized_h = fit_h, g.canvas_w = g.canvas_h = o->side, g.gw = g.gh = o->cells;
    if (!raster(o, m, &g, &w, &h)) return false;
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++) o->predicted[(size_t)y * w + x] = logits[(size_t)y * o->cells + x] > 0;
    const double cell = (double)o->side / o->cells; /* pixels of the square */
    compare(o, &(struct cell_box){w, h, 1, {mm[0] * cell * o->w / fit_w, mm[1] * cell * o->h / fit_h, 1}},
            row->value[SIZE_LOSS]);
    return true;
}

int own_size_add(struct own_size *o, struct run *r, const struct feed *f, struct error *e)
{
    const struct tensor *t = tensor_at(&r->planned.graph, o->picks);
    const int64_t n = tensor_elements(t) / ((int64_t)o->cells * o->cells);
    int rc = run_read(r, o->picks, o->raw, e);
    if (rc) return rc;
    dtype_convert(o->logits, DT_F32, o->raw, t->dtype, tensor_elements(t));
    uint64_t sample = UINT64_MAX;
    for (int64_t i = 0; i < n; i++) {
        const struct feed_mask *m = &f->masks[i];
        struct error why;
        if (!m->area) continue;
        if (m->sample != sample && read_sample(o, sample = m->sample, &why)) o->found = 0;
        struct mask_row row = {.sample = m->sample, .mask = m->id, .category = m->category,
                               .prompt = (uint32_t)f->pass};
        if (o->found && score(o, m, o->logits + i * o->cells * o->cells, &row)) mask_table_add(&o->table, &row);
        else o->unreadable++;
    }
    return PL_OK;
}

/* --- the table -------------------------------------------------------------------------------- */

static void name_image(const void *of, uint64_t sample, char *out, size_t room) { dataset_name(of, sample, out, room); }

static void print_units(const struct mask_table *t, struct text *out)
{
    text_printf(out, "mean ± deviation; ");
    if (t->of_volumes)
        text_printf(out, "distances in mm, by the spacing of each volume, NSD within %g mm", t->tolerance);
    else if (t->spacing[0] == 1 && t->spacing[1] == 1)
        text_printf(out, "distances in pixels, NSD within %g", t->tolerance);
    else
        text_printf(out, "pixels of %g x %g mm, distances in mm, NSD within %g mm", t->spacing[0], t->spacing[1],
                    t->tolerance);
}

void own_size_print(const struct own_size *o, struct text *out)
{
    struct report_table list = mask_table_list(&o->table);
    text_printf(out, "\nat the image's own size (");
    print_units(&o->table, out);
    text_printf(out, "):\n");
    table_print(&list, 0, 0, out);
    table_free(&list);
    if (o->volumes.table.rows.n) volume_scores_print(&o->volumes, out);
    if (o->unreadable)
        text_printf(out, "%llu masks could not be read again at their own size\n", (unsigned long long)o->unreadable);
}

void own_size_page(const struct own_size *o, struct text *out)
{
    struct report_table list = mask_table_list(&o->table);
    text_printf(out, "<h2>Scores at the image's own size</h2>\n<p class='dim'>");
    print_units(&o->table, out);
    text_printf(out, "</p>\n");
    table_html(&list, "", 0, out);
    table_free(&list);
    if (o->volumes.table.rows.n) {
        list = mask_table_list(&o->volumes.table);
        text_printf(out, "<h2>Scores of whole volumes, in three dimensions</h2>\n");
        table_html(&list, "", 0, out);
        table_free(&list);
    }
    text_printf(out, "<h2>Worst masks</h2>\n");
}

void own_size_put(struct json_writer *w, const void *own_size)
{
    const struct own_size *o = own_size;
    const struct mask_table *t = &o->table;
    PUT_FACTS(w, FACT_NUMBERS("spacing", t->spacing, 2), FACT_IF(t->of_volumes, "spacing_of", "volumes"),
              FACT("tolerance", t->tolerance));
    mask_table_json(t, &(struct table_members){"structures", "images", "image"}, name_image, o->set, w);
    if (t->of_volumes)
        mask_table_json(&o->volumes.table, &(struct table_members){"volume_structures", "volumes", "volume"},
                        volume_scores_name, o->set, w);
}

int own_size_write(const struct own_size *o, const char *images, const char *structures, struct error *e)
{
    struct text rows = {0}, means = {0};
    mask_table_csv(&o->table, name_image, o->set, &rows);
    mask_table_structures(&o->table, &means);
    int rc = images ? file_write_atomic(images, rows.at, rows.n, e) : PL_OK;
    if (!rc && structures) rc = file_write_atomic(structures, means.at, means.n, e);
    text_free(&rows);
    text_free(&means);
    return rc;
}
