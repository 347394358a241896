/*
 * samples_sheet.c: see data_report.h. Only the images on the sheet are decoded.
 */
#include "data/images/image.h"
#include "data/prepare/facts.h"
#include "data/samples.h"
#include "io/file.h"
#include "io/png.h"
#include "report/draw.h"
#include "report/page.h"
#include "report/data_report.h"

enum { CELL_W = 400, CELL_H = 300, ON_SHEET = 12, COLUMNS = 3 };

/* Orders masks by area. They are drawn over the image at its size on the sheet, rasterised at that
 * resolution. Large masks come first, so that small masks on top of them stay visible. */
static int by_area(const void *a, const void *b)
{
    double x = ((const struct mask *)a)->area, y = ((const struct mask *)b)->area;
    return (x < y) - (x > y);
}

static void draw_masks(struct canvas *cell, struct draw_area at, struct sample *s)
{
    size_t stride;
    qsort(s->masks, s->found.n, sizeof *s->masks, by_area);
    for (uint32_t k = 0; k < s->found.n; k++) {
        uint8_t *bits = sample_raster(s, k, at.w, at.h, &stride);
        if (bits)
            draw_overlay(cell, at, &(struct draw_mask){bits, stride, at.w, at.h, true}, draw_colour(k), 0.5, 1);
        mem_free(bits);
    }
}

/* Draws one sample as an image and two lines of text. An unusable sample is a grey field with
 * the error. */
static void draw_sample(const struct samples *all, uint64_t i, struct draw_cell *cell, char lines[2][300])
{
    struct sample s;
    struct error e = {0};
    struct image p = {0};
    cell->image = canvas_new(CELL_W, CELL_H, (struct colour){235, 236, 238});
    int rc = samples_read(all->set, i, &s, &e);
    if (!rc) rc = sample_decode(&s, &all->set->range, &p, &e);
    if (!rc) {
        const struct canvas whole = {p.width, p.height, p.rgb};
        draw_masks(&cell->image, draw_fit(&cell->image, 0, 0, CELL_W, CELL_H, &whole), &s);
    }
    snprintf(lines[0], 300, "%.290s", s.name);
    if (rc) snprintf(lines[1], 300, "bad: %.290s", e.text);
    else snprintf(lines[1], 300, "%ux%u, %u masks", s.found.w, s.found.h, s.found.n);
    cell->lines[0] = lines[0];
    cell->lines[1] = lines[1];
    image_free(&p);
    sample_free(&s);
}

/* Returns the k-th sample of n on a sheet, evenly spread over the dataset. */
static uint64_t on_sheet(const struct samples *all, uint32_t k, uint32_t n) { return all->n * k / n; }

static struct canvas draw_samples(const struct samples *all)
{
    struct draw_cell cells[ON_SHEET] = {0};
    char(*lines)[2][300] = mem_alloc(ON_SHEET * sizeof *lines), title[128];
    uint32_t n = (uint32_t)min_u64(all->n, ON_SHEET);
    for (uint32_t k = 0; k < n; k++) draw_sample(all, on_sheet(all, k, n), &cells[k], lines[k]);
    snprintf(title, sizeof title, "%u of %llu images with their masks", n, (unsigned long long)all->n);
    struct canvas p = draw_sheet(title, cells, n, COLUMNS, CELL_W, CELL_H);
    for (uint32_t k = 0; k < n; k++) canvas_free(&cells[k].image);
    mem_free(lines);
    return p;
}

static struct canvas draw_areas(const struct dataset_facts *f, uint32_t width)
{
    struct draw_bar bars[AREAS];
    char shown[AREAS][32];
    uint64_t n[AREAS];
    facts_areas(&f->area, n);
    for (size_t k = 0; k < AREAS; k++) {
        snprintf(shown[k], sizeof shown[k], "%.1f %%", f->area.n ? 100.0 * (double)n[k] / f->area.n : 0);
        bars[k] = (struct draw_bar){area_names[k], shown[k], (double)n[k]};
    }
    return draw_bars("Area of the masks, as a share of the image", bars, AREAS, width);
}

static struct canvas draw_memory(const struct mask_memory *c, uint32_t width)
{
    static const struct {
        enum encoding encoding;
        enum grid_size size;
        const char *label;
    } rows[] = {{FLOAT32, FULL, "float32, full size"}, {UINT8, FULL, "uint8, full size"},
                {BITS, FULL, "1 bit, full size"},      {RUNS, FULL, "RLE, full size"},
                {FLOAT32, AT_256, "float32, 256"},     {BITS, AT_256, "1 bit, 256"}};
    struct draw_bar bars[COUNT(rows)];
    char shown[COUNT(rows)][32], title[96];
    for (size_t k = 0; k < COUNT(rows); k++) {
        double bytes = c->bytes[rows[k].encoding][rows[k].size];
        bars[k] = (struct draw_bar){rows[k].label, size_print((uint64_t)(bytes + 0.5), shown[k]), bytes};
    }
    snprintf(title, sizeof title, "Memory of one sample's masks: %.0fx%.0f, %.1f masks", c->w, c->h, c->masks);
    return draw_bars(title, bars, COUNT(rows), width);
}

static int write_image(const char *path, const struct samples *all, const struct dataset_facts *f,
                       const struct mask_memory *c, struct error *e)
{
    struct canvas parts[3] = {draw_samples(all)};
    uint32_t width = parts[0].w > 900 ? parts[0].w : 900;
    parts[1] = draw_memory(c, width);
    parts[2] = draw_areas(f, width);
    struct canvas sheet = draw_stack(parts, 3);
    int rc = png_write(path, PNG_RGB, sheet.w, sheet.h, sheet.rgb, 0, e);
    for (int k = 0; k < 3; k++) canvas_free(&parts[k]);
    canvas_free(&sheet);
    return rc;
}

static void put_headline(const struct samples *all, const struct dataset_facts *f, struct text *out)
{
    char value[64], remark[96];
    page_facts_begin(out);
    snprintf(value, sizeof value, "%llu", (unsigned long long)all->n);
    snprintf(remark, sizeof remark, "%s, %llu unusable", all->format, (unsigned long long)f->bad);
    page_fact(out, "Images", value, remark);
    snprintf(value, sizeof value, "%u", f->area.n);
    snprintf(remark, sizeof remark, "%.1f an image, at most %.0f", facts_mean(&f->masks), facts_quantile(&f->masks, 1));
    page_fact(out, "Masks", value, remark);
    if (f->sizes.n) {
        snprintf(value, sizeof value, "%ux%u", f->sizes.at[0].w, f->sizes.at[0].h);
        snprintf(remark, sizeof remark, f->sizes.n == 1 ? "all images" : "the commonest of %u sizes", f->sizes.n);
        page_fact(out, "Size", value, remark);
    }
    snprintf(value, sizeof value, "%.2g %%", 100 * facts_quantile(&f->area, 0.5));
    page_fact(out, "Median mask", value, "of the image");
    page_facts_end(out);
}

static int put_samples(const struct samples *all, struct text *out, struct error *e)
{
    const uint32_t n = (uint32_t)min_u64(all->n, ON_SHEET);
    int rc = PL_OK;
    text_printf(out, "<h2>%u of %llu images with their masks</h2>\n<div class='images'>\n", n,
                (unsigned long long)all->n);
    for (uint32_t k = 0; k < n && !rc; k++) {
        struct draw_cell cell = {0};
        struct text png = {0}, caption = {0};
        char lines[2][300];
        draw_sample(all, on_sheet(all, k, n), &cell, lines);
        rc = png_encode(&png, PNG_RGB, cell.image.w, cell.image.h, cell.image.rgb, 0, e);
        html_escape(&caption, lines[0]);
        text_printf(&caption, "<br><span class='dim'>");
        html_escape(&caption, lines[1]);
        text_printf(&caption, "</span>");
        if (!rc) page_figure(out, png.at, png.n, caption.at);
        canvas_free(&cell.image);
        text_free(&png);
        text_free(&caption);
    }
    text_printf(out, "</div>\n");
    return rc;
}

static int write_page(const char *path, const struct samples *all, const struct dataset_facts *f, const char *tables,
                      struct error *e)
{
    struct text out = {0}, title = {0};
    char name[256];
    text_printf(&title, "%s", page_name(all->files.at[0], 2, name));
    if (all->files.n > 1) text_printf(&title, " and %u more", all->files.n - 1);
    page_begin(&out, "Plimsoll: images and masks of a dataset", title.at);
    put_headline(all, f, &out);
    int rc = put_samples(all, &out, e);
    text_printf(&out, "<h2>Statistics</h2>\n<pre>");
    html_escape(&out, tables);
    text_printf(&out, "</pre>\n");
    page_end(&out);
    rc = file_write_text(rc, path, &out, e);
    text_free(&title);
    return rc;
}

int samples_sheet(const char *path, const struct samples *all, const struct dataset_facts *f,
                  const struct mask_memory *c, const char *tables, struct error *e)
{
    return text_ends_with(path, ".html") ? write_page(path, all, f, tables, e) : write_image(path, all, f, c, e);
}
