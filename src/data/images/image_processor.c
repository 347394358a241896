/*
 * image_processor.c: see image_processor.h.
 *
 * A resize that is followed by a crop computes only the part that stays, so a very long image costs
 * no more than a square one. Padding to a square is never stored: the resize is fed rows with the
 * colour at both ends. Tiles need the image twice: at the size by its longer edge, and at multiples
 * of the tile. InternVL's are both of the image itself.
 *
 *   scratch  | resized by the longer edge | multiples of a tile | result, bytes | one padded row |
 *            resize.h |
 */
#include "data/images/image_processor.h"
#include "data/images/processor_file.h"

#include <math.h>

enum { MAX_SIDE = 4096 }; /* of an image that is resized by its longer edge */

struct size { uint32_t w, h; };

static size_t bytes_of(struct size s) { return align_up((size_t)s.w * s.h * 3, 64); }

/* --- sizes ------------------------------------------------------------------------------------ */

static struct size square_of(struct size s)
{
    uint32_t side = s.w > s.h ? s.w : s.h;
    return (struct size){side, side};
}

/* Returns the shorter edge exactly, the longer one rounded down. */
static struct size by_shortest(struct size s, uint32_t edge)
{
    const bool upright = s.w <= s.h;
    uint32_t longer = (uint32_t)min_u64((uint64_t)edge * (upright ? s.h : s.w) / (upright ? s.w : s.h), UINT32_MAX);
    return upright ? (struct size){edge, longer} : (struct size){longer, edge};
}

/* Returns the longer edge exactly, the other one an even number; then within MAX_SIDE. The
 * arithmetic is that of transformers, in double. */
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

/* Returns the number of tiles, rounded up, at least one. */
static uint32_t multiple(uint32_t n, uint32_t of) { return n ? (n + of - 1) / of * of : of; }

/* Rounds both sides to multiples of a tile: the longer one first, the other by the aspect ratio. */
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

/* Returns columns x rows tiles: the aspect ratio nearest to the image's; of several, the one with
 * the most tiles as long as these have less than twice the image's area. The arithmetic is that of
 * transformers, in double. */
static struct size by_aspect(const struct image_processor *p, struct size s)
{
    const double aspect = (double)s.w / s.h, area = (double)s.w * s.h, tile = 0.5 * p->tile * p->tile;
    double best = INFINITY;
    struct size grid = {1, 1};
    for (uint32_t n = p->min_tiles; n <= p->max_tiles; n++)
        for (uint32_t w = 1; w <= n; w++) {
            const double off = fabs(aspect - (double)w / (n / w));
            if (n % w || off > best || (off == best && !(area > tile * n))) continue;
            best = off;
            grid = (struct size){w, n / w};
        }
    return (struct size){grid.w * p->tile, grid.h * p->tile};
}

static struct size resized(const struct image_processor *p, struct size s)
{
    if (!p->resize) return s;
    if (p->shortest_edge) return by_shortest(s, p->shortest_edge);
    if (p->longest_edge) return by_longest(s, p->longest_edge);
    return (struct size){p->width, p->height};
}

/* Returns the size of all tiles of an image that is split. */
static struct size tiled(const struct image_processor *p, struct size image)
{
    return p->max_tiles ? by_aspect(p, image) : by_tiles(resized(p, image), p->tile);
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

/* Reports whether an image is a whole and tiles within a size of image_grid_pinpoints. */
static bool has_tiles_and_whole(const struct image_processor *p) { return p->anyres.n && p->split; }

/* Reports whether an image is tiles of what it is resized to, and that as a whole: Idefics3's and
 * InternVL's. */
static bool has_tiles(const struct image_processor *p) { return p->tile && !p->anyres.n; }

struct image_processor image_processor_beside(const struct image_processor *p)
{
    struct image_processor x = *p;
    if (!p->torchvision) return x;
    x.split = false;
    x.pad_square = true;
    return x;
}

uint32_t image_processor_count(const struct image_processor *p, uint32_t width, uint32_t height, uint32_t *rows,
                               uint32_t *columns)
{
    *rows = *columns = 0;
    if (!p->tile || !p->split) return 1;
    if (has_tiles_and_whole(p)) {
        const int32_t *size = p->anyres.sizes[anyres_choose(&p->anyres, width, height)];
        *rows = (uint32_t)size[0] / p->tile, *columns = (uint32_t)size[1] / p->tile;
        return *rows * *columns + 1;
    }
    const struct size s = tiled(p, (struct size){width, height});
    if (s.w <= p->tile && s.h <= p->tile) return 1;
    *rows = s.h / p->tile;
    *columns = s.w / p->tile;
    return *rows * *columns + 1;
}

/* --- values ----------------------------------------------------------------------------------- */

/* Computes the value of each byte in f32, as torchvision does: the factor is moved into mean and
 * standard deviation. */
static void fill_values_at_once(const struct image_processor *p, uint32_t c, float value[256])
{
    const float inverse = p->rescale ? (float)(1 / p->factor) : 1;
    const float mean = (float)p->mean[c] * inverse, std = (float)p->std[c] * inverse;
    for (int v = 0; v < 256; v++) {
        if (p->normalize) value[v] = ((float)v - mean) / std;
        else value[v] = p->rescale ? (float)v * (float)p->factor : (float)v;
    }
}

/* Computes the value of each byte: rescaled in double and rounded to f32, then normalised in f32,
 * as NumPy does it. */
static void fill_values(const struct image_processor *p, uint32_t c, float value[256])
{
    const float mean = (float)p->mean[c], std = (float)p->std[c];
    if (p->torchvision) {
        fill_values_at_once(p, c, value);
        return;
    }
    for (int v = 0; v < 256; v++) {
        float x = p->rescale ? (float)(v * p->factor) : (float)v;
        value[v] = p->normalize ? (x - mean) / std : x;
    }
}

void image_processor_values(const struct image_processor *p, float value[3][256])
{
    for (uint32_t c = 0; c < 3; c++) fill_values(p, c, value[c]);
}

/* Writes the bytes of s, rows `stride` apart, as planes. */
static void put_planes(const uint8_t *rgb, size_t stride, struct size s, uint8_t *to)
{
    for (uint32_t c = 0; c < 3; c++)
        for (uint32_t y = 0; y < s.h; y++)
            for (uint32_t x = 0; x < s.w; x++) *to++ = rgb[y * stride + (size_t)x * 3 + c];
}

/* --- resizing --------------------------------------------------------------------------------- */

struct scratch {
    uint8_t *first, *second; /* two images on the way to tiles */
    uint8_t *bytes;          /* the result before it becomes planes */
    uint8_t *row;            /* a row of the image padded to a square */
    void *resize;
    size_t resize_room;
};

static void resize_whole(const struct image_processor *p, const uint8_t *rgb, struct size from, struct size to,
                         uint8_t *out, const struct scratch *s)
{
    struct resize_view v = {.filter = p->filter, .width = from.w, .height = from.h, .to_width = to.w, .to_height = to.h,
                            .to = out, .stride = (size_t)to.w * 3};
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
    return (struct resize_view){.filter = p->filter, .width = from.w, .height = from.h, .to_width = to.w,
                                .to_height = to.h, .out_x = x.from, .out_y = y.from, .out_w = x.n, .out_h = y.n,
                                .to = out ? out + ((size_t)y.at * result.w + x.at) * 3 : NULL,
                                .stride = (size_t)result.w * 3};
}

/* Computes the mean as a colour, rounded down. */
static void mean_colour(const struct image_processor *p, uint8_t colour[3])
{
    for (int c = 0; c < 3; c++) colour[c] = (uint8_t)fmin(fmax(p->mean[c] * 255, 0), 255);
}

static void paint(uint8_t *row, uint32_t pixels, const uint8_t colour[3])
{
    for (uint32_t x = 0; x < pixels; x++) memcpy(row + (size_t)x * 3, colour, 3);
}

/* Returns row y of the image, or of the square that it is set into. */
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

/* Returns the size of an image within another, whose aspect ratio it keeps. */
static struct size within(struct size s, struct size room)
{
    const double x = (double)room.w / s.w, y = (double)room.h / s.h;
    if (x < y) return (struct size){room.w, (uint32_t)min_u64((uint64_t)ceil(s.h * x), room.h)};
    return (struct size){(uint32_t)min_u64((uint64_t)ceil(s.w * y), room.w), room.h};
}

static struct size anyres_size(const struct image_processor *p, struct size image)
{
    const int32_t *size = p->anyres.sizes[anyres_choose(&p->anyres, image.w, image.h)];
    return (struct size){(uint32_t)size[1], (uint32_t)size[0]};
}

/* Writes the whole image, then tiles of it with black around it. */
static void put_whole_and_tiles(const struct image_processor *p, const uint8_t *rgb, struct size image,
                                const struct scratch *s, uint8_t *to)
{
    const struct size tile = {p->tile, p->tile}, all = anyres_size(p, image), inner = within(image, all);
    const size_t plane = (size_t)3 * p->tile * p->tile;
    resize_whole(p, rgb, image, tile, s->bytes, s);
    put_planes(s->bytes, (size_t)tile.w * 3, tile, to);
    to += plane;
    resize_whole(p, rgb, image, inner, s->first, s);
    memset(s->second, 0, bytes_of(all));
    for (uint32_t y = 0; y < inner.h; y++)
        memcpy(s->second + ((size_t)((all.h - inner.h) / 2 + y) * all.w + (all.w - inner.w) / 2) * 3,
               s->first + (size_t)y * inner.w * 3, (size_t)inner.w * 3);
    for (uint32_t y = 0; y < all.h; y += p->tile)
        for (uint32_t x = 0; x < all.w; x += p->tile, to += plane)
            put_planes(s->second + ((size_t)y * all.w + x) * 3, (size_t)all.w * 3, tile, to);
}

static void put_tiles(const struct image_processor *p, const uint8_t *rgb, struct size image, const struct scratch *s,
                      uint8_t *to)
{
    const struct size first = p->max_tiles ? image : resized(p, image), tile = {p->tile, p->tile},
                      second = p->split ? tiled(p, image) : tile;
    const size_t plane = (size_t)3 * p->tile * p->tile;
    if (!p->max_tiles) resize_whole(p, rgb, image, first, s->first, s);
    resize_whole(p, p->max_tiles ? rgb : s->first, first, second, s->second, s);
    if (second.w <= p->tile && second.h <= p->tile) {
        put_planes(s->second, (size_t)tile.w * 3, tile, to);
        return;
    }
    for (uint32_t y = 0; y < second.h; y += p->tile)
        for (uint32_t x = 0; x < second.w; x += p->tile, to += plane)
            put_planes(s->second + ((size_t)y * second.w + x) * 3, (size_t)second.w * 3, tile, to);
    if (p->max_tiles) resize_whole(p, rgb, image, tile, s->bytes, s);
    else resize_whole(p, s->second, second, tile, s->bytes, s);
    put_planes(s->bytes, (size_t)tile.w * 3, tile, to);
}

/* --- scratch and the whole -------------------------------------------------------------------- */

static size_t resize_room(const struct image_processor *p, struct size from, struct size to)
{
    return resize_scratch(&(struct resize_view){.filter = p->filter, .width = from.w, .height = from.h,
                                                .to_width = to.w, .to_height = to.h});
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
    if (has_tiles_and_whole(p)) {
        const struct size all = anyres_size(p, image), inner = within(image, all);
        s->resize_room = resize_room(p, image, result);
        if (resize_room(p, image, inner) > s->resize_room) s->resize_room = resize_room(p, image, inner);
        first = bytes_of(inner), second = bytes_of(all);
    } else if (has_tiles(p)) {
        const struct size a = p->max_tiles ? image : resized(p, image), b = p->split ? tiled(p, image) : result;
        const size_t rooms[] = {resize_room(p, image, a), resize_room(p, a, b),
                                resize_room(p, p->max_tiles ? image : b, result)};
        first = p->max_tiles ? 0 : bytes_of(a), second = bytes_of(b);
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
    const struct image_processor beside = image_processor_beside(p);
    const struct size image = {width, height};
    struct scratch s;
    const size_t alone = lay_out(p, image, NULL, &s), other = lay_out(&beside, image, NULL, &s);
    return alone > other ? alone : other;
}

void image_processor_run(const struct image_processor *p, const uint8_t *rgb, uint32_t width, uint32_t height,
                         void *scratch, size_t room, uint8_t *to)
{
    const struct size image = {width, height}, result = result_size(p);
    struct scratch s;
    CHECK(width && height && lay_out(p, image, scratch, &s) <= room, "processing %ux%u in %zu bytes", width, height,
          room);
    if (has_tiles_and_whole(p)) {
        put_whole_and_tiles(p, rgb, image, &s, to);
        return;
    }
    if (has_tiles(p)) {
        put_tiles(p, rgb, image, &s, to);
        return;
    }
    resize_and_crop(p, rgb, image, &s);
    put_planes(s.bytes, (size_t)result.w * 3, result, to);
}

/* ---- Reading from a model folder ----
 *
 * an image processor from a model folder (see image_processor.h).
 *
 * The files are those of processor_file.h. Before version 4.26 of transformers a size was a number,
 * and the class had the key feature_extractor_type. What a file does not state is the class's
 * default, as in transformers.
 */

enum { SIDE_MOST = 4096, EDGE_MOST = 1 << 16, TILES_MOST = 256 };

static const double clip_mean[3] = {0.48145466, 0.4578275, 0.40821073},
                    clip_std[3] = {0.26862954, 0.26130258, 0.27577711};
static const double half[3] = {0.5, 0.5, 0.5};

void image_processor_default(struct image_processor *p, enum image_family family, uint32_t side)
{
    const bool clip = family == IMAGES_CLIP || family == IMAGES_ANYRES || family == IMAGES_ONEVISION,
               crops = family == IMAGES_INTERNVL;
    *p = (struct image_processor){.resize = true, .filter = RESIZE_BICUBIC, .rescale = true, .normalize = true,
                                  .factor = 1 / 255.0};
    memcpy(p->mean, clip || crops ? clip_mean : half, sizeof p->mean);
    memcpy(p->std, clip || crops ? clip_std : half, sizeof p->std);
    if (!side) side = family == IMAGES_IDEFICS3 ? 364 : crops || family == IMAGES_ONEVISION ? 384 : 224;
    if (family == IMAGES_ANYRES) {
        struct error none;
        p->shortest_edge = p->crop_height = p->crop_width = p->tile = side;
        p->split = true;
        anyres_parse(&p->anyres, NULL, false, &none);
    } else if (family == IMAGES_ONEVISION) {
        struct error none;
        p->height = p->width = p->tile = side;
        p->split = p->torchvision = p->frames.on = true;
        p->filter = RESIZE_TORCH_BICUBIC;
        anyres_parse(&p->anyres, NULL, true, &none);
    } else if (clip) {
        p->crop = true;
        p->shortest_edge = p->crop_height = p->crop_width = side;
    } else if (family == IMAGES_SIGLIP || family == IMAGES_GEMMA3) {
        p->height = p->width = side;
        if (family == IMAGES_GEMMA3) p->filter = RESIZE_BILINEAR;
    } else if (crops) {
        p->height = p->width = p->tile = side;
        p->split = true;
        p->min_tiles = 1;
        p->max_tiles = 12;
    } else {
        p->filter = RESIZE_LANCZOS;
        p->longest_edge = 4 * side;
        p->tile = side;
        p->split = true;
    }
}

/* --- the class -------------------------------------------------------------------------------- */

static const struct class_name {
    const char *name;
    enum image_family family;
    bool pads; /* do_pad: to a square. In the other classes it concerns a batch. */
} classes[] = {
    {"CLIPImageProcessor", IMAGES_CLIP, false},         {"CLIPFeatureExtractor", IMAGES_CLIP, false},
    {"LlavaImageProcessor", IMAGES_CLIP, true},         {"SiglipImageProcessor", IMAGES_SIGLIP, false},
    {"Idefics3ImageProcessor", IMAGES_IDEFICS3, false}, {"SmolVLMImageProcessor", IMAGES_IDEFICS3, false},
    {"GotOcr2ImageProcessor", IMAGES_INTERNVL, false},  {"Gemma3ImageProcessor", IMAGES_GEMMA3, false},
    {"LlavaNextImageProcessor", IMAGES_ANYRES, false},  {"LlavaOnevisionImageProcessor", IMAGES_ONEVISION, false},
};

static const struct class_name *find_class(const char *name)
{
    for (size_t i = 0; i < COUNT(classes); i++)
        if (processor_is_class(name, classes[i].name)) return &classes[i];
    return NULL;
}

/* Says what images of a family become. */
static const char *kind_of(enum image_family family)
{
    static const char one[] = "makes one image of each";
    static const char *const kinds[] = {one, one, "splits images into tiles of their size",
                                        "splits images into tiles of their shape", one,
                                        "makes a whole image and tiles with padding of each",
                                        "makes a whole image and tiles with padding of the only image of a text"};
    return kinds[family];
}

static int read_class(const struct value *v, enum image_family family, struct class_name *out, struct error *e)
{
    const char *name = NULL;
    *out = (struct class_name){.family = family};
    if (value_opt_string(v, "feature_extractor_type", &name, e) ||
        value_opt_string(v, "image_processor_type", &name, e))
        return e->code;
    const struct class_name *c = name ? find_class(name) : NULL;
    if (name && !c)
        return error_set(e, PL_USAGE,
                         "image_processor_type is %.100s, which is not known: expected CLIPImageProcessor, "
                         "LlavaImageProcessor, SiglipImageProcessor, "
                         "Idefics3ImageProcessor, SmolVLMImageProcessor, GotOcr2ImageProcessor, "
                         "Gemma3ImageProcessor, LlavaNextImageProcessor or LlavaOnevisionImageProcessor", name);
    if (c) *out = *c;
    if (kind_of(out->family) != kind_of(family))
        return error_set(e, PL_USAGE, "image_processor_type is %.100s, which %s; the model expects one that %s", name,
                         kind_of(out->family), kind_of(family));
    return PL_OK;
}

/* --- values ----------------------------------------------------------------------------------- */

static int read_side(const struct value *map, const char *path, uint64_t most, uint32_t *out, struct error *e)
{
    uint64_t x = *out;
    if (value_opt_uint(map, path, &x, e)) return e->code;
    if (value_path(map, path) && (!x || x > most) && value_path(map, path)->kind != VALUE_NULL)
        return error_set(e, PL_USAGE, "%s is %llu; expected 1 to %llu", path, (unsigned long long)x,
                         (unsigned long long)most);
    *out = (uint32_t)x;
    return PL_OK;
}

static int read_filter(const struct value *map, enum resize_filter *out, struct error *e)
{
    const bool torch = *out == RESIZE_TORCH_BICUBIC;
    static const struct {
        int64_t number;
        enum resize_filter filter;
    } known[] = {{1, RESIZE_LANCZOS}, {2, RESIZE_BILINEAR}, {3, RESIZE_BICUBIC}};
    const struct value *v = value_get(map, "resample");
    int64_t number;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (value_as_int(v, "resample", &number, e)) return e->code;
    if (torch)
        return number == 3 ? PL_OK
                           : error_set(e, PL_USAGE, "resample is %lld; expected 3 (bicubic)", (long long)number);
    for (size_t i = 0; i < COUNT(known); i++)
        if (known[i].number == number) return *out = known[i].filter, PL_OK;
    return error_set(e, PL_USAGE, "resample is %lld; expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic)",
                     (long long)number);
}

/* Reads a list [height, width], or a number for both. */
static int read_pair(const struct value *v, const char *key, uint32_t *height, uint32_t *width, struct error *e)
{
    const bool list = v->kind == VALUE_LIST;
    uint64_t x[2];
    if (list && v->count != 2)
        return error_set(e, PL_USAGE, "%s has %u numbers; expected height and width", key, v->count);
    for (uint32_t i = 0; i < 2; i++) {
        if (value_as_uint(list ? value_at(v, i) : v, key, &x[i], e)) return e->code;
        if (!x[i] || x[i] > SIDE_MOST)
            return error_set(e, PL_USAGE, "%s is %llu; expected 1 to %d", key, (unsigned long long)x[i], SIDE_MOST);
    }
    *height = (uint32_t)x[0];
    *width = (uint32_t)x[1];
    return PL_OK;
}

static int read_size(const struct value *map, enum image_family family, struct image_processor *p, struct error *e)
{
    const struct value *v = value_get(map, "size");
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    p->shortest_edge = p->longest_edge = p->height = p->width = 0;
    if (v->kind != VALUE_MAP) {
        if (read_pair(v, "size", &p->height, &p->width, e)) return e->code;
        if (family == IMAGES_CLIP && v->kind != VALUE_LIST) p->shortest_edge = p->height, p->height = p->width = 0;
        return PL_OK;
    }
    if (read_side(map, "size.shortest_edge", SIDE_MOST, &p->shortest_edge, e) ||
        read_side(map, "size.longest_edge", EDGE_MOST, &p->longest_edge, e) ||
        read_side(map, "size.height", SIDE_MOST, &p->height, e) ||
        read_side(map, "size.width", SIDE_MOST, &p->width, e))
        return e->code;
    const bool tiles = family == IMAGES_IDEFICS3, edge = tiles ? p->longest_edge : p->shortest_edge,
               exact = p->height && p->width;
    if ((tiles ? p->shortest_edge : p->longest_edge) || edge + exact != 1)
        return error_set(e, PL_USAGE, "size is not understood: expected only %s, or height and width",
                         tiles ? "longest_edge" : "shortest_edge");
    return PL_OK;
}

static int read_crop(const struct value *map, struct image_processor *p, struct error *e)
{
    const struct value *v = value_get(map, "crop_size");
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (v->kind != VALUE_MAP) return read_pair(v, "crop_size", &p->crop_height, &p->crop_width, e);
    if (read_side(map, "crop_size.height", SIDE_MOST, &p->crop_height, e)) return e->code;
    return read_side(map, "crop_size.width", SIDE_MOST, &p->crop_width, e);
}

static int check_pinpoints(const struct image_processor *p, const char *key, struct error *e)
{
    for (uint32_t i = 0; i < p->anyres.n; i++)
        if ((uint32_t)p->anyres.sizes[i][0] % p->tile || (uint32_t)p->anyres.sizes[i][1] % p->tile)
            return error_set(e, PL_USAGE, "image_grid_pinpoints: %d x %d pixels are not divisible by %s, which is %u",
                             p->anyres.sizes[i][1], p->anyres.sizes[i][0], key, p->tile);
    return PL_OK;
}

/* Reads what only LLaVA-OneVision's processors of images and of videos have. One size is for
 * all. */
static int read_onevision(const struct value *v, struct image_processor *p, struct error *e)
{
    bool samples = false;
    uint32_t frames = 0;
    if (p->shortest_edge) p->height = p->width = p->shortest_edge, p->shortest_edge = 0;
    p->tile = p->height;
    if (p->width != p->tile || !p->tile)
        return error_set(e, PL_USAGE, "size is %u x %u, expected equal height and width: tiles are squares", p->width,
                         p->height);
    if (p->crop_height && (p->crop_height != p->tile || p->crop_width != p->tile))
        return error_set(e, PL_USAGE, "crop_size is %u x %u, and size %u x %u: expected no crop_size", p->crop_width,
                         p->crop_height, p->width, p->height);
    if (!p->resize) return error_set(e, PL_USAGE, "do_resize is false; expected true: a tower takes one size");
    TRY(anyres_parse(&p->anyres, v, true, e));
    TRY(value_opt_bool(v, "do_sample_frames", &samples, e));
    if (samples) {
        TRY(value_opt_number(v, "fps", &p->frames.fps, e));
        TRY(read_side(v, "num_frames", EDGE_MOST, &frames, e));
        p->frames.frames = frames;
        if (frames && p->frames.fps > 0)
            return error_set(e, PL_USAGE,
                             "num_frames and fps are both set, and do_sample_frames is true: expected one of them");
    }
    return value_get(v, "video_processor_type") ? PL_OK : check_pinpoints(p, "size", e);
}

static int read_values(const struct value *v, const struct class_name *c, struct image_processor *p, struct error *e)
{
    bool pad = false, crops = false;
    TRY(value_opt_bool(v, "do_pan_and_scan", &crops, e));
    if (crops) return error_set(e, PL_USAGE, "do_pan_and_scan is true, which is not supported: set it to false");
    if (value_opt_bool(v, "do_resize", &p->resize, e) || value_opt_bool(v, "do_center_crop", &p->crop, e) ||
        value_opt_bool(v, "do_rescale", &p->rescale, e) || value_opt_bool(v, "do_normalize", &p->normalize, e) ||
        value_opt_number(v, "rescale_factor", &p->factor, e) || read_filter(v, &p->filter, e) ||
        processor_three(v, "image_mean", p->mean, e) || processor_three(v, "image_std", p->std, e) ||
        read_size(v, c->family, p, e) || read_crop(v, p, e))
        return e->code;
    if (c->family == IMAGES_IDEFICS3 && (read_side(v, "max_image_size.longest_edge", SIDE_MOST, &p->tile, e) ||
                                         value_opt_bool(v, "do_image_splitting", &p->split, e)))
        return e->code;
    /* crop_to_patches is true in transformers, whatever the file says: InternVLProcessor sets it */
    if (c->family == IMAGES_INTERNVL && (read_side(v, "min_patches", TILES_MOST, &p->min_tiles, e) ||
                                         read_side(v, "max_patches", TILES_MOST, &p->max_tiles, e)))
        return e->code;
    if (c->family == IMAGES_INTERNVL) p->tile = p->height;
    if (c->family == IMAGES_ANYRES) {
        TRY(anyres_parse(&p->anyres, v, false, e));
        p->tile = p->crop_height;
        const uint32_t height = p->shortest_edge ? p->shortest_edge : p->height,
                       width = p->shortest_edge ? p->shortest_edge : p->width;
        if (p->crop_width != p->tile || height != p->tile || width != p->tile)
            return error_set(e, PL_USAGE, "size and crop_size differ, or are no square: expected one side for both");
        TRY(check_pinpoints(p, "crop_size", e));
    }
    if (c->family == IMAGES_ONEVISION) TRY(read_onevision(v, p, e));
    if (c->pads && value_opt_bool(v, "do_pad", &pad, e)) return e->code;
    p->pad_square = pad;
    if (p->tile) p->crop = false; /* its class has no crop */
    return PL_OK;
}

/* --- checks ----------------------------------------------------------------------------------- */

static int check(const struct image_processor *p, uint32_t side, struct error *e)
{
    uint32_t h, w;
    for (int c = 0; c < 3; c++)
        if (p->normalize && !(p->std[c] > 0))
            return error_set(e, PL_USAGE, "image_std is %g; expected numbers above 0", p->std[c]);
    if (!p->tile && !p->crop && (!p->resize || !p->height))
        return error_set(e, PL_USAGE,
                         "images would keep their shape, and a tower takes one size: set do_center_crop with "
                         "crop_size, or size with height and width");
    if (p->max_tiles && (p->height != p->width || !p->height))
        return error_set(e, PL_USAGE, "size is %u x %u, expected equal height and width: tiles are squares", p->width,
                         p->height);
    if (p->max_tiles < p->min_tiles)
        return error_set(e, PL_USAGE, "max_patches is %u, less than min_patches, which is %u", p->max_tiles,
                         p->min_tiles);
    if (p->crop && (!p->crop_height || !p->crop_width))
        return error_set(e, PL_USAGE, "do_center_crop needs crop_size with height and width");
    image_processor_size(p, &h, &w);
    if (side && (h != side || w != side))
        return error_set(e, PL_USAGE, "it makes images of %u x %u pixels, and the vision tower takes %u x %u", w, h,
                         side, side);
    return PL_OK;
}

static int from_value(struct image_processor *p, const struct value *v, enum image_family family, uint32_t side,
                      struct error *e)
{
    struct class_name c;
    if (value_as_map(v, "the image processor", e) || read_class(v, family, &c, e)) return e->code;
    image_processor_default(p, c.family, 0);
    if (read_values(v, &c, p, e)) return e->code;
    return check(p, side, e);
}

int image_processor_parse(struct image_processor *p, const char *json, size_t n, const char *path,
                          enum image_family family, uint32_t side, struct error *e)
{
    struct bump b = {0};
    const struct value *v;
    int rc = processor_file_parse(json, n, "image_processor", &b, &v, e);
    if (!rc) rc = from_value(p, v, family, side, e);
    bump_free(&b);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

/* --- the folder ------------------------------------------------------------------------------- */

/* Reads image_aspect_ratio of LLaVA's original layout, which mm_vision_tower marks; transformers'
 * folders may have the key, and transformers does not use it. */
static int read_aspect(const char *folder, struct bump *b, bool *pad, struct error *e)
{
    const struct value *v;
    const char *aspect = NULL;
    if (processor_file_read(folder, "config.json", b, &v, e)) return e->code;
    if (!value_get(v, "mm_vision_tower")) return PL_OK;
    if (value_opt_string(v, "image_aspect_ratio", &aspect, e)) return error_prepend(e, "%s/config.json", folder);
    if (aspect && !strcmp(aspect, "pad")) *pad = true;
    else if (aspect && strcmp(aspect, "square") != 0)
        return error_set(e, PL_USAGE, "%s/config.json: image_aspect_ratio is %.40s; expected pad or square", folder,
                         aspect);
    return PL_OK;
}

/* Reads the values of a video processor; size counts before video_sampling.video_size. */
static int from_video_value(struct image_processor *p, const struct value *v, enum image_family family, uint32_t side,
                            struct error *e)
{
    const char *name = NULL;
    if (from_value(p, v, family, side, e)) return e->code;
    if (family == IMAGES_ONEVISION) {
        const struct value *edge = value_path(v, "size.shortest_edge");
        if (edge && edge->kind != VALUE_NULL)
            return error_set(e, PL_USAGE, "size has shortest_edge, which keeps the shape of a frame; expected height "
                             "and width: a tower takes squares");
        TRY(value_opt_string(v, "video_processor_type", &name, e));
        if (!name || processor_is_class(name, "LlavaOnevisionVideoProcessor")) return PL_OK;
        return error_set(e, PL_USAGE, "video_processor_type is %.100s; expected LlavaOnevisionVideoProcessor", name);
    }
    return value_get(v, "size")
               ? PL_OK
               : read_side(v, "video_sampling.video_size.longest_edge", EDGE_MOST, &p->longest_edge, e);
}

int image_processor_read_frames(struct image_processor *p, const char *folder, enum image_family family, uint32_t side,
                                struct error *e)
{
    struct bump b = {0};
    const struct value *v = NULL;
    const char *name = NULL;
    int rc = image_processor_read(p, folder, family, side, e);
    if (!rc && (family == IMAGES_IDEFICS3 || family == IMAGES_INTERNVL || family == IMAGES_ONEVISION)) {
        rc = processor_file_find(folder, true, &b, &v, &name, e);
        if (!rc && v && from_video_value(p, v, family, side, e)) rc = error_prepend(e, "%s/%s", folder, name);
        p->split = false;
    }
    bump_free(&b);
    return rc;
}

int image_processor_read(struct image_processor *p, const char *folder, enum image_family family, uint32_t side,
                         struct error *e)
{
    struct bump b = {0};
    const struct value *v = NULL;
    const char *name = NULL;
    bool pad = false;
    int rc = processor_file_find(folder, false, &b, &v, &name, e);
    if (!rc && v && from_value(p, v, family, side, e)) rc = error_prepend(e, "%s/%s", folder, name);
    if (!rc && !v) image_processor_default(p, family, side);
    if (!rc) rc = read_aspect(folder, &b, &pad, e);
    if (!rc && pad) p->pad_square = true;
    bump_free(&b);
    return rc;
}
