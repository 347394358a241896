/*
 * data_inspect.c: `plimsoll data inspect`: statistics of a dataset, the memory of its masks, and a
 * contact sheet of images with their masks.
 *
 * The statistics cover all samples and come from the annotations and the image headers; only
 * the images on the sheet are decoded.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "cli/data.h"
#include "cli/data_samples.h"
#include "cli/init.h"
#include "data/masks/grid.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"
#include "data/formats/packed.h"
#include "feed/embed.h"
#include "data/images/resize.h"
#include "io/json.h"
#include "io/png.h"
#include "report/draw.h"
#include "report/page.h"

/* ---- counting ---- */

typedef VEC(double) numbers;

struct size_count {
    uint32_t w, h;
    uint64_t n;
};

struct category_count {
    int32_t number;
    uint64_t n; /* masks */
};

struct facts {
    uint64_t bad, empty, crowds, small; /* small: covering no cell of the grid */
    uint32_t cells;                     /* side of the grid */
    char first_bad[512];
    numbers masks, w, h, mask_pixels, image_bytes; /* per sample; mask_pixels: pixels x masks */
    numbers area, runs, counts, iou, stability;   /* per mask; area as a share of the image */
    VEC(struct size_count) sizes;
    VEC(struct category_count) categories; /* none if no mask has one */
};

static void facts_free(struct facts *f)
{
    vec_free(&f->masks), vec_free(&f->w), vec_free(&f->h), vec_free(&f->mask_pixels), vec_free(&f->image_bytes);
    vec_free(&f->area), vec_free(&f->runs), vec_free(&f->counts), vec_free(&f->iou), vec_free(&f->stability);
    vec_free(&f->sizes), vec_free(&f->categories);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The quantile q in 0..1 of sorted numbers. */
static double quantile(const numbers *v, double q) { return v->n ? v->at[(uint32_t)(q * (v->n - 1) + 0.5)] : 0; }

static double mean(const numbers *v)
{
    double sum = 0;
    for (uint32_t i = 0; i < v->n; i++) sum += v->at[i];
    return v->n ? sum / v->n : 0;
}

static void sort(numbers *v) { if (v->n) qsort(v->at, v->n, sizeof *v->at, ascending); }

static void count_size(struct facts *f, uint32_t w, uint32_t h)
{
    for (uint32_t i = 0; i < f->sizes.n; i++)
        if (f->sizes.at[i].w == w && f->sizes.at[i].h == h) {
            f->sizes.at[i].n++;
            return;
        }
    vec_push(&f->sizes, ((struct size_count){w, h, 1}));
}

/* 0 is the category of masks that have none. */
static void count_category(struct facts *f, int32_t number)
{
    uint32_t i = 0;
    while (i < f->categories.n && f->categories.at[i].number != number) i++;
    if (i < f->categories.n) f->categories.at[i].n++;
    else if (number) vec_push(&f->categories, ((struct category_count){number, 1}));
}

static int most_masks(const void *a, const void *b)
{
    const struct category_count *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? 1 : -1) : (x->number > y->number) - (x->number < y->number);
}

static int commonest(const void *a, const void *b)
{
    const struct size_count *x = a, *y = b;
    if (x->n != y->n) return x->n < y->n ? 1 : -1;
    return x->w != y->w ? (x->w < y->w ? -1 : 1) : (x->h > y->h) - (x->h < y->h);
}

/* Masks that cover no cell of the loss's grid: they can be neither trained on nor scored. The grid
 * is that of a model with patches of 16: a quarter of the side to which the longer side is resized. */
static uint32_t count_small(const struct sample *s, uint32_t cells)
{
    uint32_t side = s->found.w > s->found.h ? s->found.w : s->found.h, n = 0;
    struct grid_geometry at = {.h = s->found.h, .w = s->found.w, .canvas_w = 4 * cells, .canvas_h = 4 * cells, .gw = cells, .gh = cells};
    void *memory = mem_alloc(grid_bytes(side, cells));
    uint8_t *bits = mem_alloc(grid_mask_bytes(cells, cells));
    struct polygon_scratch runs = s->runs;
    struct grid g;
    struct error ignored;
    resize_longest(at.w, at.h, at.canvas_w, &at.resized_w, &at.resized_h);
    grid_init(&g, memory, side, cells);
    bool set = !grid_set(&g, &at, &ignored);
    for (uint32_t k = 0; k < s->found.n && set; k++) {
        bool any = mask_raster(&s->masks[k], &g, &runs, bits, &ignored) != FAULT_NONE;
        for (size_t i = 0; i < grid_mask_bytes(cells, cells) && !any; i++) any = bits[i];
        n += !any;
    }
    mem_free(bits);
    mem_free(memory);
    return n;
}

static void count_sample(struct facts *f, const struct sample *s)
{
    double pixels = (double)s->found.w * s->found.h;
    vec_push(&f->masks, s->found.n);
    vec_push(&f->w, s->found.w);
    vec_push(&f->h, s->found.h);
    vec_push(&f->mask_pixels, pixels * s->found.n);
    vec_push(&f->image_bytes, (double)s->facts.n);
    f->empty += s->found.empty;
    count_size(f, s->found.w, s->found.h);
    for (uint32_t k = 0; k < s->found.n; k++) {
        const struct mask *m = &s->masks[k];
        struct rle_facts r;
        struct error unused;
        if (sample_measure(s, k, &r, &unused)) continue;
        f->crowds += m->crowd;
        vec_push(&f->area, r.area / pixels);
        vec_push(&f->runs, r.runs);
        if (m->shape.kind == SHAPE_RLE) vec_push(&f->counts, m->shape.rle.n);
        vec_push(&f->iou, m->predicted_iou);
        vec_push(&f->stability, m->stability);
        count_category(f, m->category);
    }
}

static void count_all(struct facts *f, const struct samples *all)
{
    uint64_t first = UINT64_MAX;
    struct progress progress;
    progress_begin(&progress, "inspecting", "images", all->n);
#pragma omp parallel for schedule(dynamic)
    for (uint64_t i = 0; i < all->n; i++) {
        struct sample s;
        struct error e = {0};
        uint32_t w = 0, h = 0;
        int rc = samples_read(all, i, &s, &e);
        if (!rc) rc = sample_size(&s, &w, &h, &e);
        if (!rc && (w != s.found.w || h != s.found.h)) rc = mask_size_differs(w, h, s.found.w, s.found.h, &e);
        uint32_t small = rc ? 0 : count_small(&s, f->cells);
#pragma omp critical
        {
            f->small += small;
            if (!rc) count_sample(f, &s);
            else if (f->bad++, i < first) first = i, snprintf(f->first_bad, sizeof f->first_bad, "%.200s: %.300s", s.name, e.text);
            progress_add(&progress, 1);
        }
        sample_free(&s);
    }
    progress_clear();
    numbers *const each[] = {&f->masks, &f->w, &f->h, &f->mask_pixels, &f->image_bytes, &f->area, &f->runs, &f->counts, &f->iou, &f->stability};
    for (size_t k = 0; k < COUNT(each); k++) sort(each[k]);
    if (f->sizes.n) qsort(f->sizes.at, f->sizes.n, sizeof *f->sizes.at, commonest);
    if (f->categories.n) qsort(f->categories.at, f->categories.n, sizeof *f->categories.at, most_masks);
}

/* ---- memory of the masks ---- */

/* Bytes of all masks of a sample, for each encoding and each mask size. */
enum encoding { FLOAT32, UINT8, BITS, RUNS, ENCODINGS };
enum grid_size { FULL, AT_1024, AT_256, SIZES };
static const char *const encoding_names[ENCODINGS] = {"float32", "uint8", "1 bit", "RLE"};
static const char *const encoding_keys[ENCODINGS] = {"float32", "uint8", "bits", "rle"};
static const char *const size_keys[SIZES] = {"full", "1024", "256"};

struct mask_memory {
    double w, h, masks;        /* means */
    double mask_pixels, most;  /* pixels x masks of a sample: the mean (not the product of the means) and the largest */
    double runs;               /* per mask at full size */
    bool estimated;            /* `runs` is estimated, not counted in data */
    double bytes[ENCODINGS][SIZES];
};

/* The number of runs of a mask is proportional to the length of its outline, so to the image's
 * side. A run takes 4 bytes. */
static void fill_bytes(struct mask_memory *c)
{
    double longest = fmax(c->w, c->h);
    for (int s = 0; s < SIZES; s++) {
        double side = s == AT_1024 ? 1024 : 256, pixels = s == FULL ? c->mask_pixels : side * side * c->masks;
        c->bytes[FLOAT32][s] = 4 * pixels;
        c->bytes[UINT8][s] = pixels;
        c->bytes[BITS][s] = pixels / 8;
        c->bytes[RUNS][s] = 4 * c->runs * c->masks * (s == FULL ? 1 : fmin(1, side / longest));
    }
}

/* The masks of SA-1B have 345 runs each at 2000x1500 on average. */
static struct mask_memory estimate_memory(double w, double h, double masks)
{
    struct mask_memory c = {.w = w, .h = h, .masks = masks, .mask_pixels = w * h * masks, .runs = 345 * fmax(w, h) / 2000, .estimated = true};
    fill_bytes(&c);
    return c;
}

static struct mask_memory measure_memory(const struct facts *f)
{
    struct mask_memory c = {.w = mean(&f->w), .h = mean(&f->h), .masks = mean(&f->masks), .mask_pixels = mean(&f->mask_pixels), .most = quantile(&f->mask_pixels, 1), .runs = mean(&f->runs)};
    fill_bytes(&c);
    return c;
}

static void print_memory(const struct mask_memory *c, struct text *out)
{
    text_printf(out, "Memory of the masks of one sample%s: %.0fx%.0f, %.1f masks\n", c->estimated ? "" : ", mean", c->w, c->h, c->masks);
    text_printf(out, "  %-10s %12s %12s %12s\n", "", "full size", "1024x1024", "256x256");
    for (int f = 0; f < ENCODINGS; f++) {
        text_printf(out, "  %-10s", encoding_names[f]);
        for (int s = 0; s < SIZES; s++) {
            char size[32], about[40];
            snprintf(about, sizeof about, "%s%s", f == RUNS && (s != FULL || c->estimated) ? "~" : "", size_print((uint64_t)(c->bytes[f][s] + 0.5), size));
            text_printf(out, " %12s", about);
        }
        text_printf(out, "\n");
    }
    text_printf(out, "  RLE: %s%.0f runs per mask, 4 bytes each; ~ estimated in proportion to the image's side%s\n", c->estimated ? "~" : "", c->runs,
                c->estimated ? ", from 345 runs at 2000x1500 in SA-1B" : "");
    char largest[32];
    if (c->most > 0) text_printf(out, "  the largest sample takes %s as float32 at full size\n", size_print((uint64_t)(4 * c->most), largest));
}

static void json_memory(const struct mask_memory *c, struct text *out)
{
    text_printf(out, "{\"width\": %.2f, \"height\": %.2f, \"masks\": %.3f, \"runs_per_mask\": %.2f", c->w, c->h, c->masks, c->runs);
    for (int f = 0; f < ENCODINGS; f++) {
        text_printf(out, ", \"%s\": {", encoding_keys[f]);
        for (int s = 0; s < SIZES; s++) text_printf(out, "%s\"%s\": %.0f", s ? ", " : "", size_keys[s], c->bytes[f][s]);
        text_printf(out, "}");
    }
    text_printf(out, "}");
}

/* ---- tables ---- */

static const double steps[] = {0.0001, 0.001, 0.01, 0.1, 1.000001}; /* upper ends of the bins, as fractions of the image */
static const char *const step_names[] = {"below 0.01 %", "0.01 - 0.1 %", "0.1 - 1 %", "1 - 10 %", "above 10 %"};

static void count_steps(const numbers *area, uint64_t out[COUNT(steps)])
{
    memset(out, 0, COUNT(steps) * sizeof *out);
    for (uint32_t i = 0; i < area->n; i++) {
        size_t k = 0;
        while (k + 1 < COUNT(steps) && area->at[i] >= steps[k]) k++;
        out[k]++;
    }
}

static void print_row(struct text *out, const char *name, const numbers *v, double unit, int digits)
{
    if (!v->n) return;
    text_printf(out, "  %-22s %10.*f %10.*f %10.*f %10.*f %10.*f %10.*f\n", name, digits, quantile(v, 0) * unit, digits, quantile(v, 0.1) * unit, digits,
                quantile(v, 0.5) * unit, digits, quantile(v, 0.9) * unit, digits, quantile(v, 1) * unit, digits, mean(v) * unit);
}

static void print_areas(const struct facts *f, struct text *out)
{
    uint64_t n[COUNT(steps)];
    count_steps(&f->area, n);
    text_printf(out, "\nArea of the masks, as a share of the image\n");
    for (size_t k = 0; k < COUNT(steps); k++) {
        double share = f->area.n ? (double)n[k] / f->area.n : 0;
        text_printf(out, "  %-14s %9llu  %5.1f %%  %.*s\n", step_names[k], (unsigned long long)n[k], 100 * share, (int)(40 * share + 0.5),
                    "########################################");
    }
}

static void print_sizes(const struct facts *f, struct text *out)
{
    text_printf(out, "\nSizes of the images: %u different %s\n", f->sizes.n, f->sizes.n == 1 ? "size" : "sizes");
    for (uint32_t i = 0; i < f->sizes.n && i < 8; i++)
        text_printf(out, "  %5ux%-5u %9llu  %5.1f %%\n", f->sizes.at[i].w, f->sizes.at[i].h, (unsigned long long)f->sizes.at[i].n,
                    100.0 * (double)f->sizes.at[i].n / f->masks.n);
}

/* What is decided over the dataset, and what is left out of it. */
static void print_choices(const struct samples *all, const struct facts *f, struct text *out)
{
    bool (*const each[])(const struct dataset *, struct text *) = {survey_print_labels, survey_print_range};
    struct text line = {0};
    if (dataset_print_left(all->set, false, &line)) text_printf(out, "  %s\n", line.at);
    else if (f->crowds) text_printf(out, "  left out: %llu crowds (data.crowds: true uses them)\n", (unsigned long long)f->crowds);
    text_free(&line);
    if (f->small)
        text_printf(out, "  left out: %llu %s too small to be trained on or scored (on no cell of a grid of %u x %u: --masks-size; 256 for SAM at 1024)\n",
                    (unsigned long long)f->small, f->small == 1 ? "mask" : "masks", f->cells, f->cells);
    for (size_t i = 0; i < COUNT(each); i++) {
        if (each[i](all->set, &line)) text_printf(out, "  %s\n", line.at);
        text_free(&line);
    }
    for (int k = 0; survey_next_warning(all->set, &k, &line); text_free(&line)) text_printf(out, "  warning: %s\n", line.at);
}

static void print_categories(const struct samples *all, const struct facts *f, struct text *out)
{
    enum { SHOWN = 20 };
    if (!f->categories.n) return;
    text_printf(out, "\nCategories of the masks: %u, by name or number for data.categories\n", f->categories.n);
    for (uint32_t i = 0; i < f->categories.n && i < SHOWN; i++) {
        const struct category_count *c = &f->categories.at[i];
        const char *name = dataset_category(all->set, c->number);
        text_printf(out, "  %5d %-22s %9llu  %5.1f %%\n", c->number, name ? name : "", (unsigned long long)c->n, 100.0 * (double)c->n / f->area.n);
    }
    if (f->categories.n > SHOWN) text_printf(out, "  and %u more\n", f->categories.n - SHOWN);
}

/* Whether the files rate their masks: those without ratings have 1 everywhere. */
static bool is_rated(const numbers *v) { return quantile(v, 0) != 1 || quantile(v, 1) != 1; }

static void print_facts(const struct samples *all, const struct facts *f, struct text *out)
{
    const struct shard_report *r = dataset_report(all->set);
    const struct packed_embeddings *x = dataset_embeddings(all->set);
    text_printf(out, "%s: %u %s, %llu samples, %llu masks\n", all->format, all->files.n, all->files.n == 1 ? "file" : "files", (unsigned long long)all->n, (unsigned long long)f->area.n);
    text_printf(out, "  images without annotations %llu, annotations without an image %llu, duplicates %llu\n", (unsigned long long)r->no_text,
                (unsigned long long)r->no_image, (unsigned long long)r->duplicates);
    text_printf(out, "  damaged headers %llu (%llu bytes lost), truncated shards %llu, other files %llu\n", (unsigned long long)r->damaged, (unsigned long long)r->lost,
                (unsigned long long)r->partial, (unsigned long long)r->others);
    if (x) text_printf(out, "  embeddings %s, computed with %s\n", embed_print(x, (char[64]){0}), x->model);
    text_printf(out, "  unusable samples %llu, empty masks %llu\n", (unsigned long long)f->bad, (unsigned long long)f->empty);
    print_choices(all, f, out);
    if (f->bad) text_printf(out, "  first unusable sample: %s\n", f->first_bad);
    text_printf(out, "\n  %-22s %10s %10s %10s %10s %10s %10s\n", "", "min", "10 %", "median", "90 %", "max", "mean");
    print_row(out, "masks per image", &f->masks, 1, 1);
    print_row(out, "area, % of the image", &f->area, 100, 3);
    print_row(out, "runs per mask", &f->runs, 1, 1);
    print_row(out, "RLE chars per mask", &f->counts, 1, 1);
    if (is_rated(&f->iou)) print_row(out, "predicted_iou", &f->iou, 1, 3);
    if (is_rated(&f->stability)) print_row(out, "stability_score", &f->stability, 1, 3);
    print_row(out, "image, KiB", &f->image_bytes, 1.0 / 1024, 1);
    print_areas(f, out);
    print_categories(all, f, out);
    print_sizes(f, out);
    text_printf(out, "\n");
}

static void json_quantiles(struct text *out, const char *name, const numbers *v)
{
    text_printf(out, ", \"%s\": {\"min\": %.9g, \"p10\": %.9g, \"p50\": %.9g, \"p90\": %.9g, \"max\": %.9g, \"mean\": %.9g}", name, quantile(v, 0), quantile(v, 0.1),
                quantile(v, 0.5), quantile(v, 0.9), quantile(v, 1), mean(v));
}

static void json_choices(const struct samples *all, const struct facts *f, struct text *out)
{
    static const char *const labels[] = {"auto", "binary", "classes", "instances"}, *const ranges[] = {"auto", "full", "percentiles", "window"};
    const struct dataset *d = all->set;
    const struct dataset_survey *s = dataset_survey(d);
    text_printf(out, ", \"crowd_masks\": %llu, \"one_part_crowds\": %llu, \"too_small_masks\": %llu", (unsigned long long)f->crowds, (unsigned long long)d->left.one_part,
                (unsigned long long)f->small);
    if (d->format->label)
        text_printf(out, ", \"labels\": {\"kind\": \"%s\", \"values\": %u, \"ignore\": %d, \"threshold\": %u, \"soft\": %s, \"mask_images\": %llu, \"looked_at\": %llu}", labels[d->labels.kind],
                    s->values, d->labels.ignore, d->labels.threshold, s->soft ? "true" : "false", (unsigned long long)s->labels, (unsigned long long)s->labels_seen);
    text_printf(out, ", \"range\": {\"kind\": \"%s\", \"low\": %.10g, \"high\": %.10g, \"images_of_16_bits\": %llu, \"looked_at\": %llu, \"brightness\": %d}", ranges[d->range.kind], d->range.window[0],
                d->range.window[1], (unsigned long long)s->deep, (unsigned long long)s->images_seen, s->bright);
}

static void json_categories(const struct samples *all, const struct facts *f, struct text *out)
{
    struct json_writer w = {.out = out};
    json_begin_list(&w, NULL);
    for (uint32_t i = 0; i < f->categories.n; i++) {
        const char *name = dataset_category(all->set, f->categories.at[i].number);
        json_begin_map(&w, NULL);
        json_put_int(&w, "number", f->categories.at[i].number);
        if (name) json_put_string(&w, "name", name);
        json_put_uint(&w, "masks", f->categories.at[i].n);
        json_end(&w);
    }
    json_end(&w);
}

static void json_facts(const struct samples *all, const struct facts *f, const struct mask_memory *c, struct text *out)
{
    const struct shard_report *r = dataset_report(all->set);
    uint64_t n[COUNT(steps)];
    count_steps(&f->area, n);
    text_printf(out, "{\"format\": \"%s\", \"files\": %u, \"samples\": %llu, \"masks\": %llu, \"bad\": %llu, \"empty_masks\": %llu, \"no_text\": %llu, \"no_image\": %llu, \"duplicates\": %llu, "
                     "\"damaged\": %llu, \"partial\": %llu",
                all->format, all->files.n, (unsigned long long)all->n, (unsigned long long)f->area.n, (unsigned long long)f->bad, (unsigned long long)f->empty,
                (unsigned long long)r->no_text, (unsigned long long)r->no_image, (unsigned long long)r->duplicates, (unsigned long long)r->damaged,
                (unsigned long long)r->partial);
    json_choices(all, f, out);
    json_quantiles(out, "masks_per_image", &f->masks);
    json_quantiles(out, "area_share", &f->area);
    json_quantiles(out, "runs_per_mask", &f->runs);
    json_quantiles(out, "predicted_iou", &f->iou);
    json_quantiles(out, "stability_score", &f->stability);
    json_quantiles(out, "image_bytes", &f->image_bytes);
    text_printf(out, ", \"area_histogram\": [");
    for (size_t k = 0; k < COUNT(steps); k++) text_printf(out, "%s%llu", k ? ", " : "", (unsigned long long)n[k]);
    text_printf(out, "], \"sizes\": [");
    for (uint32_t i = 0; i < f->sizes.n; i++)
        text_printf(out, "%s{\"width\": %u, \"height\": %u, \"count\": %llu}", i ? ", " : "", f->sizes.at[i].w, f->sizes.at[i].h, (unsigned long long)f->sizes.at[i].n);
    text_printf(out, "], \"categories\": ");
    json_categories(all, f, out);
    text_printf(out, ", \"memory\": ");
    json_memory(c, out);
    text_printf(out, "}\n");
}

/* ---- the sheet ---- */

enum { CELL_W = 400, CELL_H = 300, ON_SHEET = 12, COLUMNS = 3 };

static int decode(const struct sample *s, const struct pixel_range *range, struct canvas *p, struct error *e)
{
    if (s->facts.decoded) {
        *p = (struct canvas){s->facts.w, s->facts.h, mem_copy(s->image, (size_t)s->facts.w * s->facts.h * 3)};
        return PL_OK;
    }
    if (image_is_whole(s->image, s->facts.n)) {
        struct image q;
        if (image_decode(&q, s->image, s->facts.n, &(struct image_options){.range = *range}, NULL, 0, e)) return e->code;
        *p = (struct canvas){q.width, q.height, q.rgb};
        return PL_OK;
    }
    struct jpg_header h;
    if (jpg_peek(s->image, s->facts.n, &h, e)) return e->code;
    struct jpg *j = jpg_new(NULL);
    int rc = jpg_decode(j, s->image, s->facts.n, jpg_divisor(h.width, h.height, 2 * CELL_W), &p->w, &p->h, &p->rgb, e);
    jpg_free(j);
    return rc;
}

/* Masks are drawn over the image at its size on the sheet, rasterised at that resolution. Large
 * masks come first, so that small masks on top of them stay visible. */
static int by_area(const void *a, const void *b)
{
    double x = ((const struct mask *)a)->area, y = ((const struct mask *)b)->area;
    return (x < y) - (x > y);
}

static int draw_masks(struct canvas *cell, struct draw_area at, struct sample *s, struct error *e)
{
    uint32_t side = s->found.w > s->found.h ? s->found.w : s->found.h, cells = at.w > at.h ? at.w : at.h;
    struct grid g;
    void *memory = mem_alloc(grid_bytes(side, cells)), *bits = mem_alloc(grid_mask_bytes(at.w, at.h));
    grid_init(&g, memory, side, cells);
    struct grid_geometry geometry = {.h = s->found.h, .w = s->found.w, .resized_w = at.w, .resized_h = at.h, .canvas_w = at.w, .canvas_h = at.h, .gw = at.w, .gh = at.h};
    int rc = grid_set(&g, &geometry, e);
    qsort(s->masks, s->found.n, sizeof *s->masks, by_area);
    for (uint32_t k = 0; k < s->found.n && !rc; k++)
        if (!mask_raster(&s->masks[k], &g, &s->runs, bits, e))
            draw_overlay(cell, at, &(struct draw_mask){bits, g.stride, at.w, at.h, true}, draw_colour(k), 0.5, 1);
    mem_free(bits);
    mem_free(memory);
    return rc;
}

/* Draws one sample as an image and two lines of text. An unusable sample is a grey field with
 * the error. */
static void draw_sample(const struct samples *all, uint64_t i, struct draw_cell *cell, char lines[2][300])
{
    struct sample s;
    struct error e = {0};
    struct canvas p = {0};
    cell->image = canvas_new(CELL_W, CELL_H, (struct colour){235, 236, 238});
    int rc = samples_read(all, i, &s, &e);
    if (!rc) rc = decode(&s, &all->set->range, &p, &e);
    if (!rc) rc = draw_masks(&cell->image, draw_fit(&cell->image, 0, 0, CELL_W, CELL_H, &p), &s, &e);
    snprintf(lines[0], 300, "%.290s", s.name);
    if (rc) snprintf(lines[1], 300, "bad: %.290s", e.text);
    else snprintf(lines[1], 300, "%ux%u, %u masks", s.found.w, s.found.h, s.found.n);
    cell->lines[0] = lines[0];
    cell->lines[1] = lines[1];
    canvas_free(&p);
    sample_free(&s);
}

/* The samples on a sheet, evenly spread over the dataset. */
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

static struct canvas draw_areas(const struct facts *f, uint32_t width)
{
    struct draw_bar bars[COUNT(steps)];
    char shown[COUNT(steps)][32];
    uint64_t n[COUNT(steps)];
    count_steps(&f->area, n);
    for (size_t k = 0; k < COUNT(steps); k++) {
        snprintf(shown[k], sizeof shown[k], "%.1f %%", f->area.n ? 100.0 * (double)n[k] / f->area.n : 0);
        bars[k] = (struct draw_bar){step_names[k], shown[k], (double)n[k]};
    }
    return draw_bars("Area of the masks, as a share of the image", bars, COUNT(steps), width);
}

static struct canvas draw_memory(const struct mask_memory *c, uint32_t width)
{
    static const struct {
        enum encoding encoding;
        enum grid_size size;
        const char *label;
    } rows[] = {{FLOAT32, FULL, "float32, full size"}, {UINT8, FULL, "uint8, full size"}, {BITS, FULL, "1 bit, full size"},
                {RUNS, FULL, "RLE, full size"},        {FLOAT32, AT_256, "float32, 256"}, {BITS, AT_256, "1 bit, 256"}};
    struct draw_bar bars[COUNT(rows)];
    char shown[COUNT(rows)][32], title[96];
    for (size_t k = 0; k < COUNT(rows); k++) {
        double bytes = c->bytes[rows[k].encoding][rows[k].size];
        bars[k] = (struct draw_bar){rows[k].label, size_print((uint64_t)(bytes + 0.5), shown[k]), bytes};
    }
    snprintf(title, sizeof title, "Memory of one sample's masks: %.0fx%.0f, %.1f masks", c->w, c->h, c->masks);
    return draw_bars(title, bars, COUNT(rows), width);
}

static int write_sheet(const char *path, const struct samples *all, const struct facts *f, const struct mask_memory *c, struct error *e)
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

static void put_headline(const struct samples *all, const struct facts *f, struct text *out)
{
    char value[64], remark[96];
    page_facts_begin(out);
    snprintf(value, sizeof value, "%llu", (unsigned long long)all->n);
    snprintf(remark, sizeof remark, "%s, %llu unusable", all->format, (unsigned long long)f->bad);
    page_fact(out, "Images", value, remark);
    snprintf(value, sizeof value, "%u", f->area.n);
    snprintf(remark, sizeof remark, "%.1f an image, at most %.0f", mean(&f->masks), quantile(&f->masks, 1));
    page_fact(out, "Masks", value, remark);
    if (f->sizes.n) {
        snprintf(value, sizeof value, "%ux%u", f->sizes.at[0].w, f->sizes.at[0].h);
        snprintf(remark, sizeof remark, f->sizes.n == 1 ? "all images" : "the commonest of %u sizes", f->sizes.n);
        page_fact(out, "Size", value, remark);
    }
    snprintf(value, sizeof value, "%.2g %%", 100 * quantile(&f->area, 0.5));
    page_fact(out, "Median mask", value, "of the image");
    page_facts_end(out);
}

static int put_samples(const struct samples *all, struct text *out, struct error *e)
{
    const uint32_t n = (uint32_t)min_u64(all->n, ON_SHEET);
    int rc = PL_OK;
    text_printf(out, "<h2>%u of %llu images with their masks</h2>\n<div class='images'>\n", n, (unsigned long long)all->n);
    for (uint32_t k = 0; k < n && !rc; k++) {
        struct draw_cell cell = {0};
        struct text png = {0}, caption = {0};
        char lines[2][300];
        draw_sample(all, on_sheet(all, k, n), &cell, lines);
        rc = png_encode(&png, PNG_RGB, cell.image.w, cell.image.h, cell.image.rgb, 0, e);
        page_escaped(&caption, lines[0]);
        text_printf(&caption, "<br><span class='dim'>");
        page_escaped(&caption, lines[1]);
        text_printf(&caption, "</span>");
        if (!rc) page_figure(out, png.at, png.n, caption.at);
        canvas_free(&cell.image);
        text_free(&png);
        text_free(&caption);
    }
    text_printf(out, "</div>\n");
    return rc;
}

/* The sheet as an HTML page: the images, and the tables that are also printed. */
static int write_page(const char *path, const struct samples *all, const struct facts *f, const struct mask_memory *c, struct error *e)
{
    struct text out = {0}, tables = {0}, title = {0};
    text_printf(&title, "%s", all->files.at[0]);
    if (all->files.n > 1) text_printf(&title, " and %u more", all->files.n - 1);
    page_begin(&out, "Plimsoll: images and masks of a dataset", title.at);
    put_headline(all, f, &out);
    int rc = put_samples(all, &out, e);
    print_facts(all, f, &tables);
    print_memory(c, &tables);
    text_printf(&out, "<h2>Statistics</h2>\n<pre>");
    page_escaped(&out, tables.at);
    text_printf(&out, "</pre>\n");
    page_end(&out);
    if (!rc) rc = file_write_atomic(path, out.at, out.n, e);
    text_free(&out);
    text_free(&tables);
    text_free(&title);
    return rc;
}

/* ---- the command ---- */

static int inspect(const struct samples_options *o, const struct names *paths, uint32_t cells, const char *sheet, bool json, struct error *e)
{
    struct samples all;
    struct facts f = {.cells = cells};
    struct text out = {0};
    if (samples_open(&all, o, paths, e)) return e->code;
    count_all(&f, &all);
    struct mask_memory c = measure_memory(&f);
    if (json) json_facts(&all, &f, &c, &out);
    else print_facts(&all, &f, &out), print_memory(&c, &out);
    fputs(out.at, stdout);
    int rc = dataset_intact(all.set, e);
    if (!rc && sheet) rc = text_ends_with(sheet, ".html") ? write_page(sheet, &all, &f, &c, e) : write_sheet(sheet, &all, &f, &c, e);
    text_free(&out);
    facts_free(&f);
    samples_close(&all);
    return rc;
}

/* "WxH,MASKS" */
static int inspect_given(const char *given, bool json, struct error *e)
{
    char size[64], *end;
    uint32_t wh[2];
    const char *comma = strchr(given, ',');
    double masks = comma ? strtod(comma + 1, &end) : 0;
    if (!comma || end == comma + 1 || *end || !(masks > 0 && masks <= 1e6) || (size_t)(comma - given) >= sizeof size)
        return error_set(e, PL_USAGE, "--given %s: expected WIDTHxHEIGHT,MASKS, such as 2250x1500,100", given);
    snprintf(size, sizeof size, "%.*s", (int)(comma - given), given);
    if (!data_parse_size(size, wh)) return error_set(e, PL_USAGE, "--given %s: expected WIDTHxHEIGHT,MASKS, such as 2250x1500,100", given);
    struct mask_memory c = estimate_memory(wh[0], wh[1], masks);
    struct text out = {0};
    if (json) json_memory(&c, &out), text_printf(&out, "\n");
    else print_memory(&c, &out);
    fputs(out.at, stdout);
    text_free(&out);
    return PL_OK;
}

/* Conversations, by the option, by the name of a configuration, or by the first object of the file. */
static bool is_text(const struct names *paths, const char *format)
{
    if (format) return !strcmp(format, "conversations");
    return path_has_ending(paths->at[0], ".jsonl") || path_has_ending(paths->at[0], ".ndjson") || path_has_ending(paths->at[0], ".yaml") || path_has_ending(paths->at[0], ".yml") || detect_conversations(paths->at[0]);
}

static int run(int argc, char **argv, struct error *e)
{
    const char *sheet = NULL, *given = NULL, *model = NULL;
    bool json = false, help;
    uint64_t cells = 256, samples = 3;
    struct names paths = {0}, set = {0};
    struct samples_options o = {0};
    const struct data_option table[] = {
        SAMPLES_OPTIONS(o), {"--masks-size", DATA_POSITIVE, &cells}, {"-o", DATA_TEXT, &sheet}, {"--out", DATA_TEXT, &sheet}, {"--json", DATA_SWITCH, &json}, {"--given", DATA_TEXT, &given},
        {"--model", DATA_TEXT, &model}, {"--set", DATA_LIST, &set}, {"--samples", DATA_COUNT, &samples},
    };
    int rc = data_options(&data_inspect, table, COUNT(table), argc, argv, &paths, &help, e);
    if (!rc && !help) {
        if (given && (paths.n || sheet)) rc = error_set(e, PL_USAGE, "--given computes from sizes only: leave out the paths and -o");
        else if (given) rc = inspect_given(given, json, e);
        else if (!paths.n) rc = error_set(e, PL_USAGE, "no data is given: add shards, folders or globs, or sizes with --given (see --help)");
        else if (embeddings_alone(&paths)) rc = inspect_embeddings(&paths, false, json, e);
        else if (is_text(&paths, o.format)) {
            const bool run = path_has_ending(paths.at[0], ".yaml") || path_has_ending(paths.at[0], ".yml");
            rc = inspect_text(&(struct inspect_text){.paths = &paths, .set = &set, .run = run ? paths.at[0] : NULL, .model = model, .samples = samples, .json = json}, e);
        } else if (model || set.n) rc = error_set(e, PL_USAGE, "%s is for conversations, and %s is not a file of them", model ? "--model" : "--set", paths.at[0]);
        else if (cells < 4 || cells > GRID_MAX_CELLS) rc = error_set(e, PL_USAGE, "--masks-size %llu: expected 4 to %d", (unsigned long long)cells, GRID_MAX_CELLS);
        else if (!(rc = data_check_png("-o", sheet, e))) rc = inspect(&o, &paths, (uint32_t)cells, sheet, json, e);
    }
    names_free(&paths);
    names_free(&set);
    return rc;
}

const struct command data_inspect = {
    "inspect", "data inspect PATHS [--format F] [--images DIR] [--masks DIR] [--labels KIND] [--range R] [-o SHEET] [--json]  |  data inspect --given WxH,MASKS [--json]  |  "
    "data inspect (FILES --model DIR | RUN.yaml) [--set KEY=VALUE]... [--samples N] [--json]",
    "Prints statistics of a dataset: images, masks, sizes and damage, and the memory of the masks as\n"
    "float32, uint8, bits and run lengths (RLE), at full size, 1024 and 256.\n"
    "\n"
    "  PATHS           shards (tar), folders of extracted files, folders of shards; the annotation\n"
    "                  file of COCO; a folder of images and masks; a table; globs\n"
    SAMPLES_HELP "\n"
    "  --masks-size N  side of the grid on which masks too small to be trained on are counted: the\n"
    "                  resolution of the loss, 4 x size / patch (256)\n"
    "  -o SHEET        writes a contact sheet of images with their masks: SHEET.html or SHEET.png\n"
    "  --json          prints the numbers as JSON\n"
    "  --given         computes the memory only, for images of this size with this many masks; needs no data\n"
    "\n"
    "Of conversations (JSON files, or a RUN.yaml with data.format conversations) it prints how many can be\n"
    "used and why the others cannot, lengths in tokens, how rows are filled, and samples as the model\n"
    "reads them, with the tokens that have labels marked.\n"
    "\n"
    "  --model DIR     the folder of the tokenizer and the chat template, or a tokenizer's file\n"
    "  --set KEY=VALUE sets a key, such as data.sequence, data.template or data.train_on\n"
    "  --samples N     samples to show (3)",
    run};
