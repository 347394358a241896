/*
 * image_processor.c: see image_processor.h.
 *
 * A resize that is followed by a crop computes only the part that stays, so a very long image costs
 * no more than a square one. Padding to a square is never stored: the resize is fed rows with the
 * colour at both ends. Tiles need the image twice: at the size by its longer edge, and at multiples
 * of the tile.
 *
 *     scratch   | resized by the longer edge | multiples of a tile | result, bytes | one padded row | resize.h |
 */
#include "data/images/image_processor.h"

#include <math.h>
#include <string.h>

enum { MAX_SIDE = 4096 }; /* of an image that is resized by its longer edge */

struct size { uint32_t w, h; };

static size_t bytes_of(struct size s) { return align_up((size_t)s.w * s.h * 3, 64); }

/* --- sizes ------------------------------------------------------------------------------------ */

static struct size square_of(struct size s)
{
    uint32_t side = s.w > s.h ? s.w : s.h;
    return (struct size){side, side};
}

/* The shorter edge exactly, the longer one rounded down. */
static struct size by_shortest(struct size s, uint32_t edge)
{
    const bool upright = s.w <= s.h;
    uint32_t longer = (uint32_t)min_u64((uint64_t)edge * (upright ? s.h : s.w) / (upright ? s.w : s.h), UINT32_MAX);
    return upright ? (struct size){edge, longer} : (struct size){longer, edge};
}

/* The longer edge exactly, the other one an even number; then within MAX_SIDE. The arithmetic is
 * that of transformers, in double. */
static struct size by_longest(struct size s, uint32_t edge)
{
    double aspect = (double)s.w / s.h;
    if (s.w >= s.h) s = (struct size){edge, (uint32_t)(edge / aspect)}, s.h += s.h % 2;
    else s = (struct size){(uint32_t)(edge * aspect), edge}, s.w += s.w % 2;
    if (!s.h) s.h = 1;
    if (!s.w) s.w = 1;
    aspect = (double)s.w / s.h;
    if (s.w >= s.h && s.w > MAX_SIDE) s = (struct size){MAX_SIDE, (uint32_t)(MAX_SIDE / aspect)};
    else if (s.h > s.w && s.h > MAX_SIDE) s = (struct size){(uint32_t)(MAX_SIDE * aspect), MAX_SIDE};
    if (!s.h) s.h = 1;
    if (!s.w) s.w = 1;
    return s;
}

/* Rounded up, at least one. */
static uint32_t multiple(uint32_t n, uint32_t of) { return n ? (n + of - 1) / of * of : of; }

/* Both sides to multiples of a tile: the longer one first, the other by the aspect ratio. */
static struct size by_tiles(struct size s, uint32_t tile)
{
    const double aspect = (double)s.w / s.h;
    if (s.w >= s.h) {
        s.w = multiple(s.w, tile);
        s.h = multiple((uint32_t)(s.w / aspect), tile);
    } else {
        s.h = multiple(s.h, tile);
        s.w = multiple((uint32_t)(s.h * aspect), tile);
    }
    return s;
}

static struct size resized(const struct image_processor *p, struct size s)
{
    if (!p->resize) return s;
    if (p->shortest_edge) return by_shortest(s, p->shortest_edge);
    if (p->longest_edge) return by_longest(s, p->longest_edge);
    return (struct size){p->width, p->height};
}

void image_processor_size(const struct image_processor *p, uint32_t *height, uint32_t *width)
{
    *height = p->tile ? p->tile : p->crop ? p->crop_height : p->height;
    *width = p->tile ? p->tile : p->crop ? p->crop_width : p->width;
}

static struct size result_size(const struct image_processor *p)
{
    struct size s;
    image_processor_size(p, &s.h, &s.w);
    return s;
}

uint32_t image_processor_count(const struct image_processor *p, uint32_t width, uint32_t height, uint32_t *rows,
                               uint32_t *columns)
{
    *rows = *columns = 0;
    if (!p->tile || !p->split) return 1;
    struct size s = by_tiles(resized(p, (struct size){width, height}), p->tile);
    if (s.w <= p->tile && s.h <= p->tile) return 1;
    *rows = s.h / p->tile;
    *columns = s.w / p->tile;
    return *rows * *columns + 1;
}

/* --- values ----------------------------------------------------------------------------------- */

/* The value of each byte: rescaled in double and rounded to f32, then normalised in f32, as NumPy
 * does it. */
static void fill_values(const struct image_processor *p, uint32_t c, float value[256])
{
    const float mean = (float)p->mean[c], std = (float)p->std[c];
    for (int v = 0; v < 256; v++) {
        float x = p->rescale ? (float)(v * p->factor) : (float)v;
        value[v] = p->normalize ? (x - mean) / std : x;
    }
}

/* Bytes of s, rows `stride` apart, to planes. */
static void put_planes(const struct image_processor *p, const uint8_t *rgb, size_t stride, struct size s, float *to)
{
    for (uint32_t c = 0; c < 3; c++) {
        float value[256];
        fill_values(p, c, value);
        for (uint32_t y = 0; y < s.h; y++)
            for (uint32_t x = 0; x < s.w; x++) *to++ = value[rgb[y * stride + (size_t)x * 3 + c]];
    }
}

/* --- resizing --------------------------------------------------------------------------------- */

struct scratch {
    uint8_t *first, *second; /* two images on the way to tiles */
    uint8_t *bytes;          /* the result before it is normalised */
    uint8_t *row;            /* a row of the image padded to a square */
    void *resize;
    size_t resize_room;
};

static void resize_whole(const struct image_processor *p, const uint8_t *rgb, struct size from, struct size to,
                         uint8_t *out, const struct scratch *s)
{
    struct resize_view v = {.filter = p->filter,
                            .width = from.w,
                            .height = from.h,
                            .to_width = to.w,
                            .to_height = to.h,
                            .to = out,
                            .stride = (size_t)to.w * 3};
    struct resize r;
    resize_begin(&r, &v, s->resize, s->resize_room);
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, rgb + (size_t)y * from.w * 3);
}

/* One axis of a centre crop: the part of the resized image that stays, and where it begins in the
 * result, which is larger than the image if black surrounds it. */
struct kept { uint32_t from, n, at; };

static struct kept keep(uint32_t side, uint32_t crop)
{
    if (side >= crop) return (struct kept){(side - crop) / 2, crop, 0};
    return (struct kept){0, side, (crop - side + 1) / 2};
}

static struct resize_view view_of(const struct image_processor *p, struct size from, uint8_t *out)
{
    const struct size to = resized(p, from), result = result_size(p);
    const struct kept x = keep(to.w, result.w), y = keep(to.h, result.h);
    return (struct resize_view){.filter = p->filter,
                                .width = from.w,
                                .height = from.h,
                                .to_width = to.w,
                                .to_height = to.h,
                                .out_x = x.from,
                                .out_y = y.from,
                                .out_w = x.n,
                                .out_h = y.n,
                                .to = out ? out + ((size_t)y.at * result.w + x.at) * 3 : NULL,
                                .stride = (size_t)result.w * 3};
}

/* The mean as a colour, rounded down. */
static void mean_colour(const struct image_processor *p, uint8_t colour[3])
{
    for (int c = 0; c < 3; c++) colour[c] = (uint8_t)fmin(fmax(p->mean[c] * 255, 0), 255);
}

static void paint(uint8_t *row, uint32_t pixels, const uint8_t colour[3])
{
    for (uint32_t x = 0; x < pixels; x++) memcpy(row + (size_t)x * 3, colour, 3);
}

/* Row y of the image, or of the square that it is set into. */
static const uint8_t *source_row(const uint8_t *rgb, struct size image, struct size padded, uint32_t y,
                                 const uint8_t colour[3], uint8_t *row)
{
    const uint32_t top = (padded.h - image.h) / 2, left = (padded.w - image.w) / 2;
    if (padded.w == image.w && y >= top && y < top + image.h) return rgb + (size_t)(y - top) * image.w * 3;
    paint(row, padded.w, colour);
    if (y >= top && y < top + image.h)
        memcpy(row + (size_t)left * 3, rgb + (size_t)(y - top) * image.w * 3, (size_t)image.w * 3);
    return row;
}

/* Pads, resizes and crops in one pass. */
static void resize_and_crop(const struct image_processor *p, const uint8_t *rgb, struct size image,
                            const struct scratch *s)
{
    const struct size result = result_size(p), padded = p->pad_square ? square_of(image) : image;
    struct resize_view v = view_of(p, padded, s->bytes);
    struct resize r;
    uint8_t colour[3];
    mean_colour(p, colour);
    if (v.out_w < result.w || v.out_h < result.h) memset(s->bytes, 0, bytes_of(result));
    resize_begin(&r, &v, s->resize, s->resize_room);
    for (uint32_t y = 0; resize_wants(&r); y++) resize_row(&r, source_row(rgb, image, padded, y, colour, s->row));
}

/* --- tiles ------------------------------------------------------------------------------------ */

static void put_tiles(const struct image_processor *p, const uint8_t *rgb, struct size image, const struct scratch *s,
                      float *to)
{
    const struct size first = resized(p, image), tile = {p->tile, p->tile},
                      second = p->split ? by_tiles(first, p->tile) : tile;
    const size_t plane = (size_t)3 * p->tile * p->tile;
    resize_whole(p, rgb, image, first, s->first, s);
    resize_whole(p, s->first, first, second, s->second, s);
    if (second.w <= p->tile && second.h <= p->tile) {
        put_planes(p, s->second, (size_t)tile.w * 3, tile, to);
        return;
    }
    for (uint32_t y = 0; y < second.h; y += p->tile)
        for (uint32_t x = 0; x < second.w; x += p->tile, to += plane)
            put_planes(p, s->second + ((size_t)y * second.w + x) * 3, (size_t)second.w * 3, tile, to);
    resize_whole(p, s->second, second, tile, s->bytes, s);
    put_planes(p, s->bytes, (size_t)tile.w * 3, tile, to);
}

/* --- scratch and the whole -------------------------------------------------------------------- */

static size_t resize_room(const struct image_processor *p, struct size from, struct size to)
{
    return resize_scratch(&(struct resize_view){.filter = p->filter,
                                                .width = from.w,
                                                .height = from.h,
                                                .to_width = to.w,
                                                .to_height = to.h});
}

static uint8_t *take(uint8_t *at, size_t *used, size_t bytes)
{
    uint8_t *p = at ? at + *used : NULL;
    *used += align_up(bytes, 64);
    return p;
}

/* Divides the scratch; at = NULL only counts. Returns the bytes. */
static size_t lay_out(const struct image_processor *p, struct size image, uint8_t *at, struct scratch *s)
{
    const struct size result = result_size(p), padded = p->pad_square ? square_of(image) : image;
    size_t used = 0, first = 0, second = 0;
    *s = (struct scratch){0};
    if (p->tile) {
        const struct size a = resized(p, image), b = p->split ? by_tiles(a, p->tile) : result;
        const size_t rooms[] = {resize_room(p, image, a), resize_room(p, a, b), resize_room(p, b, result)};
        first = bytes_of(a), second = bytes_of(b);
        for (int i = 0; i < 3; i++)
            if (rooms[i] > s->resize_room) s->resize_room = rooms[i];
    } else {
        struct resize_view v = view_of(p, padded, NULL);
        s->resize_room = resize_scratch(&v);
    }
    s->first = take(at, &used, first);
    s->second = take(at, &used, second);
    s->bytes = take(at, &used, bytes_of(result));
    s->row = take(at, &used, (size_t)padded.w * 3);
    s->resize = take(at, &used, s->resize_room);
    return used;
}

size_t image_processor_scratch(const struct image_processor *p, uint32_t width, uint32_t height)
{
    struct scratch s;
    return lay_out(p, (struct size){width, height}, NULL, &s);
}

void image_processor_run(const struct image_processor *p, const uint8_t *rgb, uint32_t width, uint32_t height,
                         void *scratch, size_t room, float *to)
{
    const struct size image = {width, height}, result = result_size(p);
    struct scratch s;
    CHECK(width && height && lay_out(p, image, scratch, &s) <= room, "processing %ux%u in %zu bytes", width, height,
          room);
    if (p->tile) {
        put_tiles(p, rgb, image, &s, to);
        return;
    }
    resize_and_crop(p, rgb, image, &s);
    put_planes(p, s.bytes, (size_t)result.w * 3, result, to);
}
