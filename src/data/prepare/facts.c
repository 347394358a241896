/*
 * facts.c: see facts.h.
 */
#include "data/prepare/facts.h"

#include <math.h>

#include "base/progress.h"
#include "data/images/resize.h"
#include "data/masks/grid.h"
#include "data/samples.h"

/* ---- counting ---- */

void facts_free(struct dataset_facts *f)
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

double facts_quantile(const numbers *v, double q) { return v->n ? v->at[(uint32_t)(q * (v->n - 1) + 0.5)] : 0; }

double facts_mean(const numbers *v)
{
    double sum = 0;
    for (uint32_t i = 0; i < v->n; i++) sum += v->at[i];
    return v->n ? sum / v->n : 0;
}

static void count_size(struct dataset_facts *f, uint32_t w, uint32_t h)
{
    for (uint32_t i = 0; i < f->sizes.n; i++)
        if (f->sizes.at[i].w == w && f->sizes.at[i].h == h) {
            f->sizes.at[i].n++;
            return;
        }
    vec_push(&f->sizes, ((struct size_count){w, h, 1}));
}

/* Counts a mask of a category; 0 is that of masks that have none. */
static void count_category(struct dataset_facts *f, int32_t number)
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

/* Counts masks that cover no cell of the loss's grid: they can be neither trained on nor scored.
 * The grid is that of a model with patches of 16: a quarter of the side to which the longer side is
 * resized. */
static uint32_t count_small(const struct sample *s, uint32_t cells)
{
    uint32_t side = s->found.w > s->found.h ? s->found.w : s->found.h, n = 0;
    struct grid_geometry at =
        {.h = s->found.h, .w = s->found.w, .canvas_w = 4 * cells, .canvas_h = 4 * cells, .gw = cells, .gh = cells};
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

static void count_sample(struct dataset_facts *f, const struct sample *s)
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

void facts_count(struct dataset_facts *f, const struct samples *all)
{
    uint64_t first = UINT64_MAX;
    struct progress progress;
    progress_begin(&progress, "inspecting", "images", all->n);
#pragma omp parallel for schedule(dynamic)
    for (uint64_t i = 0; i < all->n; i++) {
        struct sample s;
        struct error e = {0};
        uint32_t w = 0, h = 0;
        int rc = samples_read(all->set, i, &s, &e);
        if (!rc) rc = sample_size(&s, &w, &h, &e);
        if (!rc && (w != s.found.w || h != s.found.h)) rc = mask_size_differs(w, h, s.found.w, s.found.h, &e);
        uint32_t small = rc ? 0 : count_small(&s, f->cells);
#pragma omp critical
        {
            f->small += small;
            if (!rc) count_sample(f, &s);
            else if (f->bad++, i < first)
                first = i, snprintf(f->first_bad, sizeof f->first_bad, "%.200s: %.300s", s.name, e.text);
            progress_add(&progress, 1);
        }
        sample_free(&s);
    }
    progress_clear();
    numbers *const each[] = {&f->masks, &f->w,    &f->h,      &f->mask_pixels, &f->image_bytes,
                             &f->area,  &f->runs, &f->counts, &f->iou,         &f->stability};
    for (size_t k = 0; k < COUNT(each); k++)
        if (each[k]->n) qsort(each[k]->at, each[k]->n, sizeof *each[k]->at, ascending);
    if (f->sizes.n) qsort(f->sizes.at, f->sizes.n, sizeof *f->sizes.at, commonest);
    if (f->categories.n) qsort(f->categories.at, f->categories.n, sizeof *f->categories.at, most_masks);
}

/* ---- areas ---- */

/* upper ends of the bins, as fractions of the image */
static const double steps[AREAS] = {0.0001, 0.001, 0.01, 0.1, 1.000001};
const char *const area_names[AREAS] = {"below 0.01 %", "0.01 - 0.1 %", "0.1 - 1 %", "1 - 10 %", "above 10 %"};

void facts_areas(const numbers *area, uint64_t out[AREAS])
{
    memset(out, 0, AREAS * sizeof *out);
    for (uint32_t i = 0; i < area->n; i++) {
        size_t k = 0;
        while (k + 1 < AREAS && area->at[i] >= steps[k]) k++;
        out[k]++;
    }
}

/* ---- memory of the masks ---- */

/* Fills in the bytes. The number of runs of a mask is proportional to the length of its outline, so
 * to the image's side. A run takes 4 bytes. */
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

/* Computes with the numbers of SA-1B, whose masks have 345 runs each at 2000x1500 on average, and
 * about 500 bytes of JSON: id, area, boxes, scores, RLE. */
struct mask_memory mask_memory_of(double w, double h, double masks)
{
    struct mask_memory c = {.w = w, .h = h, .masks = masks, .mask_pixels = w * h * masks,
                            .runs = 345 * fmax(w, h) / 2000,
                            .estimated = true};
    fill_bytes(&c);
    c.annotations = 500 * masks;
    for (int s = 0; s < SIZES; s++) c.image[s] = 3 * c.bytes[UINT8][s] / masks;
    return c;
}

struct mask_memory mask_memory_measured(const struct dataset_facts *f)
{
    struct mask_memory c = {.w = facts_mean(&f->w), .h = facts_mean(&f->h), .masks = facts_mean(&f->masks),
                            .mask_pixels = facts_mean(&f->mask_pixels), .most = facts_quantile(&f->mask_pixels, 1),
                            .runs = facts_mean(&f->runs)};
    fill_bytes(&c);
    return c;
}
