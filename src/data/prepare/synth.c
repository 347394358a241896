/*
 * synth.c: a scene is a list of polygons, painted from the largest to the smallest. Painting
 * writes the shape's number into the owner map; the colours are a second pass over that map,
 * so the masks are exact by construction: pixel p belongs to shape i when owner[p] is i + 1.
 *
 *     shapes (ellipse, rectangle, polygon, star)  ->  owner map  ->  colours  ->  JPEG
 *                                                          \->  runs per shape  ->  JSON
 */
#include "data/prepare/prepare.h"

#include <math.h>

#include "base/random.h"
#include "data/masks/annotation.h"
#include "data/images/jpeg.h"

enum { MAX_CORNERS = 96, QUALITY = 95 };

enum figure { ELLIPSE, RECTANGLE, POLYGON, STAR, FIGURES };
enum fabric { PLAIN, STRIPES, CHECKS, DOTS, CLOUDS, FABRICS };

/* A surface: two colours and the pattern that mixes them. */
struct surface {
    enum fabric fabric;
    float a[3], b[3];
    float cosine, sine, period; /* the pattern's direction and size in pixels */
    float light_x, light_y;     /* brightness per pixel from the middle */
    float x, y;
    uint32_t salt;
};

struct synth_shape {
    uint32_t corners;
    float x[MAX_CORNERS], y[MAX_CORNERS];
    float extent; /* the sort key */
    uint32_t painted;
    struct surface surface;
};

/* The random numbers of one scene, in order. */
struct dice {
    uint64_t key, next;
};

static double roll(struct dice *d, double low, double high)
{
    return low + (high - low) * (double)(random_bits(d->key, d->next++) >> 11) * 0x1p-53;
}

static uint32_t pick(struct dice *d, uint32_t n) { return (uint32_t)(roll(d, 0, n)); }

/* ---- shapes ---- */

static void add_corner(struct synth_shape *s, double x, double y)
{
    s->x[s->corners] = (float)x;
    s->y[s->corners++] = (float)y;
}

/* Places corners around the origin, radius about 1. */
static void outline(struct synth_shape *s, struct dice *d)
{
    enum figure kind = pick(d, FIGURES);
    double flat = roll(d, 0.45, 1), inner = roll(d, 0.4, 0.6);
    uint32_t n = kind == ELLIPSE     ? MAX_CORNERS
                 : kind == RECTANGLE ? 4
                 : kind == POLYGON   ? 3 + pick(d, 6)
                                     : 2 * (5 + pick(d, 4));
    for (uint32_t k = 0; k < n; k++) {
        double turn = 2 * M_PI * k / n, radius = 1;
        if (kind == POLYGON) turn += roll(d, -0.3, 0.3) * 2 * M_PI / n, radius = roll(d, 0.7, 1);
        if (kind == STAR) radius = k % 2 ? inner : 1;
        if (kind == STAR || kind == POLYGON) flat = 1;
        if (kind == RECTANGLE) add_corner(s, k == 0 || k == 3 ? -1 : 1, (k < 2 ? -1 : 1) * flat);
        else add_corner(s, radius * cos(turn), radius * flat * sin(turn));
    }
}

static void place(struct synth_shape *s, double x, double y, double size, double turn)
{
    for (uint32_t k = 0; k < s->corners; k++) {
        double u = s->x[k] * size, v = s->y[k] * size;
        s->x[k] = (float)(x + u * cos(turn) - v * sin(turn));
        s->y[k] = (float)(y + u * sin(turn) + v * cos(turn));
    }
}

static void choose_surface(struct surface *s, struct dice *d, double size, bool ground)
{
    double contrast = ground ? 30 : 60;
    s->fabric = ground ? CLOUDS : pick(d, FABRICS);
    double value[3];
    for (int c = 0; c < 3; c++) value[c] = roll(d, 40, 215);
    /* Shapes are more colourful than the ground: one channel high, one low. The ground is near
     * grey. */
    double middle = (value[0] + value[1] + value[2]) / 3;
    for (int c = 0; c < 3 && ground; c++) value[c] = middle + (value[c] - middle) * 0.45;
    if (!ground) {
        uint32_t high = pick(d, 3);
        value[high] = roll(d, 180, 235);
        uint32_t low = pick(d, 3);
        value[low] = roll(d, 20, 75);
    }
    double shift = roll(d, 0, 1) < 0.5 ? -contrast : contrast;
    for (int c = 0; c < 3; c++) {
        s->a[c] = (float)value[c];
        s->b[c] = (float)(value[c] + shift * roll(d, 0.6, 1));
    }
    double turn = roll(d, 0, 2 * M_PI), light = roll(d, 0, 2 * M_PI);
    s->cosine = (float)cos(turn);
    s->sine = (float)sin(turn);
    s->period = (float)fmax(size * roll(d, 0.2, 0.5), 6);
    s->light_x = (float)(cos(light) * 22 / size);
    s->light_y = (float)(sin(light) * 22 / size);
    s->salt = (uint32_t)random_bits(d->key, d->next++);
}

static void make_shape(struct synth_shape *s, struct dice *d, const struct synth_options *o)
{
    double side = o->width < o->height ? o->width : o->height;
    /* Many shapes are smaller: their total area is about that of the image. */
    double largest = fmin(0.30, 1.2 / sqrt(o->masks)), size = side * exp(roll(d, log(largest * 0.25), log(largest)));
    double x = roll(d, 0, o->width), y = roll(d, 0, o->height);
    outline(s, d);
    place(s, x, y, size, roll(d, 0, 2 * M_PI));
    s->extent = (float)size;
    choose_surface(&s->surface, d, size, false);
    s->surface.x = (float)x;
    s->surface.y = (float)y;
}

static int larger_first(const void *a, const void *b)
{
    float x = ((const struct synth_shape *)a)->extent, y = ((const struct synth_shape *)b)->extent;
    return (x < y) - (x > y);
}

/* ---- painting ---- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Returns the crossings of the outline with the line through the middle of row y, left to right. */
static uint32_t crossings(const struct synth_shape *s, double y, float out[MAX_CORNERS])
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < s->corners; k++) {
        uint32_t next = (k + 1) % s->corners;
        if ((s->y[k] <= y) == (s->y[next] <= y)) continue;
        out[n++] = (float)(s->x[k] + (y - s->y[k]) * (s->x[next] - s->x[k]) / (s->y[next] - s->y[k]));
    }
    qsort(out, n, sizeof *out, by_value);
    return n;
}

/* Paints the pixels whose centre is inside, by the even-odd rule. */
static void paint(struct synth_scene *s, uint32_t i)
{
    struct synth_shape *shape = &s->shapes[i];
    int64_t width = s->options.width, height = s->options.height;
    float top = shape->y[0], bottom = shape->y[0], cross[MAX_CORNERS];
    for (uint32_t k = 1; k < shape->corners; k++) top = fminf(top, shape->y[k]), bottom = fmaxf(bottom, shape->y[k]);
    int64_t from = max_i64((int64_t)floorf(top), 0), to = min_i64((int64_t)ceilf(bottom), height);
    for (int64_t y = from; y < to; y++) {
        uint32_t n = crossings(shape, (double)y + 0.5, cross);
        for (uint32_t k = 0; k + 1 < n; k += 2) {
            int64_t x0 = max_i64((int64_t)ceilf(cross[k] - 0.5f), 0),
                    x1 = min_i64((int64_t)ceilf(cross[k + 1] - 0.5f), width);
            for (int64_t x = x0; x < x1; x++) s->owner[y * width + x] = (uint16_t)(i + 1);
            if (x1 > x0) shape->painted += (uint32_t)(x1 - x0);
        }
    }
}

/* ---- colours ---- */

static uint32_t mix(uint32_t x, uint32_t y, uint32_t salt)
{
    uint32_t h = x * 0x9e3779b1u ^ y * 0x85ebca77u ^ salt;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    h = (h ^ h >> 12) * 0x297a2d39u;
    return h ^ h >> 15;
}

/* Returns smooth noise in 0..1: random numbers on a lattice, interpolated smoothly. */
static float noise(float x, float y, uint32_t salt)
{
    float fx = floorf(x), fy = floorf(y), u = x - fx, v = y - fy;
    uint32_t ix = (uint32_t)(int32_t)fx, iy = (uint32_t)(int32_t)fy;
    float a = (float)(mix(ix, iy, salt) >> 8), b = (float)(mix(ix + 1, iy, salt) >> 8);
    float c = (float)(mix(ix, iy + 1, salt) >> 8), d = (float)(mix(ix + 1, iy + 1, salt) >> 8);
    u = u * u * (3 - 2 * u);
    v = v * v * (3 - 2 * v);
    return ((a + (b - a) * u) * (1 - v) + (c + (d - c) * u) * v) * 0x1p-24f;
}

static float wave(float t) { return 0.5f + 0.5f * sinf(6.2831853f * t); }

/* Returns the share of the second colour at a pixel: 0..1. */
static float pattern(const struct surface *s, float x, float y)
{
    float u = ((x - s->x) * s->cosine + (y - s->y) * s->sine) / s->period,
          v = ((y - s->y) * s->cosine - (x - s->x) * s->sine) / s->period;
    switch (s->fabric) {
    case STRIPES: return wave(u) > 0.5f;
    case CHECKS: return (wave(u) > 0.5f) != (wave(v) > 0.5f);
    case DOTS: return wave(u) * wave(v) > 0.45f;
    case CLOUDS: return 0.6f * noise(u * 2, v * 2, s->salt) + 0.4f * noise(u * 7, v * 7, s->salt + 1);
    default: return 0;
    }
}

static void colour_pixel(const struct surface *s, uint32_t x, uint32_t y, uint8_t *rgb)
{
    float share = pattern(s, (float)x, (float)y);
    float light = ((float)x - s->x) * s->light_x + ((float)y - s->y) * s->light_y;
    float grain = (float)(mix(x, y, s->salt) & 15) - 7.5f;
    for (int c = 0; c < 3; c++) {
        float value = s->a[c] + (s->b[c] - s->a[c]) * share + light + grain * 0.8f;
        rgb[c] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

int synth_check(const struct synth_options *o, struct error *e)
{
    if (o->width < 16 || o->height < 16 || o->width > SYNTH_MAX_SIDE || o->height > SYNTH_MAX_SIDE)
        return error_set(e, PL_USAGE, "the size is %ux%u; expected 16 to %d pixels per side", o->width, o->height,
                         SYNTH_MAX_SIDE);
    if (!o->masks || o->masks > SYNTH_MAX_MASKS)
        return error_set(e, PL_USAGE, "%u masks; expected 1 to %d", o->masks, SYNTH_MAX_MASKS);
    return PL_OK;
}

void synth_draw(struct synth_scene *s, const struct synth_options *o, uint64_t id)
{
    /* The key is part of the data: another text would make other images. */
    struct dice d = {random_bits(random_key(o->seed, "synthetic pictures"), id), 0};
    struct surface ground = {0};
    size_t pixels = (size_t)o->width * o->height;
    *s = (struct synth_scene){*o, id, mem_alloc(pixels * 3), mem_alloc(pixels * sizeof *s->owner),
                              mem_alloc(o->masks * sizeof *s->shapes)};
    choose_surface(&ground, &d, o->width < o->height ? o->width : o->height, true);
    ground.x = (float)o->width / 2;
    ground.y = (float)o->height / 2;
    for (uint32_t i = 0; i < o->masks; i++) make_shape(&s->shapes[i], &d, o);
    qsort(s->shapes, o->masks, sizeof *s->shapes, larger_first);
    for (uint32_t i = 0; i < o->masks; i++) paint(s, i);
    for (uint32_t y = 0; y < o->height; y++)
        for (uint32_t x = 0; x < o->width; x++) {
            size_t p = (size_t)y * o->width + x;
            colour_pixel(s->owner[p] ? &s->shapes[s->owner[p] - 1].surface : &ground, x, y, s->rgb + 3 * p);
        }
}

void synth_free(struct synth_scene *s)
{
    mem_free(s->rgb);
    mem_free(s->owner);
    mem_free(s->shapes);
    memset(s, 0, sizeof *s);
}

/* ---- annotations ---- */

struct region {
    uint32_t area, x0, y0, x1, y1; /* both ends included */
};

static struct region *find_regions(const struct synth_scene *s)
{
    struct region *r = mem_alloc(s->options.masks * sizeof *r);
    for (uint32_t y = 0; y < s->options.height; y++)
        for (uint32_t x = 0; x < s->options.width; x++) {
            uint32_t i = s->owner[(size_t)y * s->options.width + x];
            if (!i--) continue;
            if (!r[i].area++) r[i] = (struct region){1, x, y, x, y};
            if (x < r[i].x0) r[i].x0 = x;
            if (x > r[i].x1) r[i].x1 = x;
            r[i].y1 = y;
        }
    return r;
}

struct who {
    const struct synth_scene *scene;
    uint32_t i;
};

static bool owned(const void *of, uint32_t x, uint32_t y)
{
    const struct who *who = of;
    return who->scene->owner[(size_t)y * who->scene->options.width + x] == who->i + 1;
}

static void print_mask(const struct synth_scene *s, uint32_t i, uint32_t number, const struct region *g,
                       struct traced *t, struct text *out)
{
    const struct synth_options *o = &s->options;
    struct dice d = {random_bits(random_key(o->seed, "synthetic scores"), s->id), 2 * (uint64_t)i};
    trace_runs(t, o->height, o->width, g->x0, g->y0, g->x1, g->y1, owned, &(struct who){s, i});
    struct annotation_mask m = {.shape = t, .point = {t->point[0] + 0.5, t->point[1] + 0.5},
                                .crop_box = {0, 0, o->width, o->height},
                                .id = (int64_t)((s->id * SYNTH_MAX_MASKS + number) & 0x7fffffff)};
    m.predicted_iou = roll(&d, 0.88, 1.0);
    m.stability = roll(&d, 0.95, 1.0);
    annotation_write_mask(out, number, o->width, o->height, &m);
}

uint32_t synth_json(const struct synth_scene *s, struct text *out)
{
    struct region *g = find_regions(s);
    struct traced t = {0};
    uint32_t n = 0;
    char name[40];
    snprintf(name, sizeof name, "sa_%llu.jpg", (unsigned long long)s->id);
    annotation_write_begin(out, (int64_t)s->id, s->options.width, s->options.height, name);
    /* A shape counts as an object if a fifth of it and 24 pixels are visible. */
    for (uint32_t i = 0; i < s->options.masks; i++)
        if (g[i].area >= 24 && g[i].area * 5 >= s->shapes[i].painted) print_mask(s, i, n++, &g[i], &t, out);
    annotation_write_end(out);
    trace_free(&t);
    mem_free(g);
    return n;
}

int synth_jpeg(const struct synth_scene *s, struct text *out, struct error *e)
{
    return jpg_encode(out, s->options.width, s->options.height, s->rgb, 0, QUALITY, e);
}
