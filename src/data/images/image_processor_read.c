/*
 * image_processor_read.c: an image processor from a model folder (see image_processor.h).
 *
 * The files are transformers': processor_config.json of version 5, with the map image_processor,
 * and preprocessor_config.json of all versions. Before version 4.26 a size was a number, and the
 * class had the key feature_extractor_type. What a file does not state is the class's default, as
 * in transformers.
 */
#include <string.h>

#include "data/images/image_processor.h"
#include "io/file.h"
#include "io/json.h"

enum { FILE_MOST = 1 << 20, SIDE_MOST = 4096, EDGE_MOST = 1 << 16 };

static const double clip_mean[3] = {0.48145466, 0.4578275, 0.40821073},
                    clip_std[3] = {0.26862954, 0.26130258, 0.27577711};
static const double half[3] = {0.5, 0.5, 0.5};

void image_processor_default(struct image_processor *p, enum image_family family, uint32_t side)
{
    const bool clip = family == IMAGES_CLIP;
    *p = (struct image_processor){.resize = true, .filter = RESIZE_BICUBIC, .rescale = true, .normalize = true, .factor = 1 / 255.0};
    memcpy(p->mean, clip ? clip_mean : half, sizeof p->mean);
    memcpy(p->std, clip ? clip_std : half, sizeof p->std);
    if (!side) side = family == IMAGES_IDEFICS3 ? 364 : 224;
    if (clip) {
        p->crop = true;
        p->shortest_edge = p->crop_height = p->crop_width = side;
    } else if (family == IMAGES_SIGLIP) {
        p->height = p->width = side;
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
};

/* The row of a name; ...Fast and ...Pil are other implementations of a class. */
static const struct class_name *find_class(const char *name)
{
    for (size_t i = 0; i < COUNT(classes); i++) {
        size_t n = strlen(classes[i].name);
        if (!strncmp(name, classes[i].name, n) && (!name[n] || !strcmp(name + n, "Fast") || !strcmp(name + n, "Pil")))
            return &classes[i];
    }
    return NULL;
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
                         "Idefics3ImageProcessor or SmolVLMImageProcessor",
                         name);
    if (c) *out = *c;
    if ((out->family == IMAGES_IDEFICS3) != (family == IMAGES_IDEFICS3))
        return error_set(e, PL_USAGE, "image_processor_type is %.100s, which %s; the model expects the opposite", name,
                         out->family == IMAGES_IDEFICS3 ? "splits images into tiles" : "makes one image of each");
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

/* A number or a list of three. */
static int read_three(const struct value *map, const char *key, double out[3], struct error *e)
{
    const struct value *v = value_get(map, key);
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (v->kind == VALUE_LIST && v->count != 3)
        return error_set(e, PL_USAGE, "%s has %u numbers; expected 3", key, v->count);
    for (uint32_t c = 0; c < 3; c++)
        if (value_as_number(v->kind == VALUE_LIST ? value_at(v, c) : v, key, &out[c], e)) return e->code;
    return PL_OK;
}

static int read_filter(const struct value *map, enum resize_filter *out, struct error *e)
{
    static const struct {
        int64_t number;
        enum resize_filter filter;
    } known[] = {{1, RESIZE_LANCZOS}, {2, RESIZE_BILINEAR}, {3, RESIZE_BICUBIC}};
    const struct value *v = value_get(map, "resample");
    int64_t number;
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (value_as_int(v, "resample", &number, e)) return e->code;
    for (size_t i = 0; i < COUNT(known); i++)
        if (known[i].number == number) return *out = known[i].filter, PL_OK;
    return error_set(e, PL_USAGE, "resample is %lld; expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic)",
                     (long long)number);
}

/* A list [height, width], or a number for both. */
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
        return error_set(e, PL_USAGE, "size is not understood: expected %s alone, or height and width",
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

static int read_values(const struct value *v, const struct class_name *c, struct image_processor *p, struct error *e)
{
    bool pad = false;
    if (value_opt_bool(v, "do_resize", &p->resize, e) || value_opt_bool(v, "do_center_crop", &p->crop, e) ||
        value_opt_bool(v, "do_rescale", &p->rescale, e) || value_opt_bool(v, "do_normalize", &p->normalize, e) ||
        value_opt_number(v, "rescale_factor", &p->factor, e) || read_filter(v, &p->filter, e) ||
        read_three(v, "image_mean", p->mean, e) || read_three(v, "image_std", p->std, e) ||
        read_size(v, c->family, p, e) || read_crop(v, p, e))
        return e->code;
    if (p->tile && (read_side(v, "max_image_size.longest_edge", SIDE_MOST, &p->tile, e) ||
                    value_opt_bool(v, "do_image_splitting", &p->split, e)))
        return e->code;
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
    struct value *v;
    int rc = json_parse(json, n, &b, &v, e);
    const struct value *inner = rc ? NULL : value_get(v, "image_processor");
    if (!rc) rc = from_value(p, inner && inner->kind == VALUE_MAP ? inner : v, family, side, e);
    bump_free(&b);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

/* --- the folder ------------------------------------------------------------------------------- */

/* A file of the folder into a tree; *v is NULL when there is none. */
static int read_file(const char *folder, const char *name, struct bump *b, struct value **v, struct error *e)
{
    const char *path = bump_format(b, "%s/%s", folder, name);
    *v = NULL;
    return file_exists(path) ? json_read_file(path, FILE_MOST, b, v, e) : PL_OK;
}

/* image_aspect_ratio of LLaVA's original layout, which mm_vision_tower marks; transformers' folders
 * may have the key, and transformers does not use it. */
static int read_aspect(const char *folder, struct bump *b, bool *pad, struct error *e)
{
    struct value *v;
    const char *aspect = NULL;
    if (read_file(folder, "config.json", b, &v, e)) return e->code;
    if (!value_get(v, "mm_vision_tower")) return PL_OK;
    if (value_opt_string(v, "image_aspect_ratio", &aspect, e)) return error_prepend(e, "%s/config.json", folder);
    if (aspect && !strcmp(aspect, "pad")) *pad = true;
    else if (aspect && strcmp(aspect, "square") != 0)
        return error_set(e, PL_USAGE, "%s/config.json: image_aspect_ratio is %.40s; expected pad or square", folder,
                         aspect);
    return PL_OK;
}

/* The tree of the processor and the name of its file; NULL when the folder has none. */
static int find_value(const char *folder, struct bump *b, const struct value **out, const char **name, struct error *e)
{
    struct value *v;
    *name = "processor_config.json";
    if (read_file(folder, *name, b, &v, e)) return e->code;
    *out = value_get(v, "image_processor");
    if (*out) return PL_OK;
    *name = "preprocessor_config.json";
    if (read_file(folder, *name, b, &v, e)) return e->code;
    *out = v;
    return PL_OK;
}

/* The tree of the video processor and the name of its file; NULL: what the folder has of images
 * counts. */
static int find_video_value(const char *folder, struct bump *b, const struct value **out, const char **name,
                            struct error *e)
{
    static const char *const files[] = {"processor_config.json", "video_preprocessor_config.json",
                                        "preprocessor_config.json"};
    for (size_t i = 0; i < COUNT(files) && !*out; i++) {
        struct value *v;
        *name = files[i];
        if (read_file(folder, *name, b, &v, e)) return e->code;
        *out = i ? v : value_get(v, "video_processor");
    }
    return PL_OK;
}

/* The values of a video processor; size counts before video_sampling.video_size. */
static int from_video_value(struct image_processor *p, const struct value *v, enum image_family family, uint32_t side,
                            struct error *e)
{
    if (from_value(p, v, family, side, e)) return e->code;
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
    if (!rc && family == IMAGES_IDEFICS3) {
        rc = find_video_value(folder, &b, &v, &name, e);
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
    int rc = find_value(folder, &b, &v, &name, e);
    if (!rc && v && from_value(p, v, family, side, e)) rc = error_prepend(e, "%s/%s", folder, name);
    if (!rc && !v) image_processor_default(p, family, side);
    if (!rc) rc = read_aspect(folder, &b, &pad, e);
    if (!rc && pad) p->pad_square = true;
    bump_free(&b);
    return rc;
}
