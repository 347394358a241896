/*
 * patch_config.c: reads the processors of Qwen2-VL, Qwen2.5-VL and Qwen3-VL from a model folder
 * (see patches.h).
 *
 * What a file does not state is the class's default, as in transformers, and not what is published
 * with a model: Qwen2VLImageProcessor has patches of 14 pixels, and Qwen3-VL's file states 16.
 * min_pixels and max_pixels come before size, except in the class of Qwen3-VL's videos, which does
 * not know them. A folder without any such file gets what the models are published with.
 */
#include <math.h>

#include "data/images/patches.h"
#include "data/images/processor_file.h"

enum { PATCH_MOST = 256, COUNT_MOST = 16, FOLDER_FPS = 24 };
static const uint64_t PIXELS_MOST = UINT64_C(1) << 32; /* sides stay below 2^20, their products below 2^53 */

/* --- defaults --------------------------------------------------------------------------------- */

static const double clip_mean[3] = {0.48145466, 0.4578275, 0.40821073},
                    clip_std[3] = {0.26862954, 0.26130258, 0.27577711};
static const double half[3] = {0.5, 0.5, 0.5};

/* Sets the defaults of transformers' classes: Qwen2VLImageProcessor, Qwen2VLVideoProcessor and
 * Qwen3VLVideoProcessor. */
static void class_default(struct patch_rules *p, enum patch_family family, bool videos)
{
    const bool qwen3 = videos && family == PATCHES_QWEN3_VL;
    *p = (struct patch_rules){.family = family, .patch = qwen3 ? 16 : 14, .temporal = 2, .merge = 2,
                              .filter = RESIZE_TORCH_BICUBIC, .rescale = true, .normalize = true, .factor = 1 / 255.0,
                              .sample = qwen3, .fps = qwen3 ? 2 : 0, .folder_fps = FOLDER_FPS, .min_frames = 4,
                              .max_frames = 768, .cap_tokens = qwen3 ? 768 : 128000};
    memcpy(p->mean, qwen3 ? half : clip_mean, sizeof p->mean);
    memcpy(p->std, qwen3 ? half : clip_std, sizeof p->std);
    p->min_pixels = qwen3 ? 128 * 32 * 32 : videos ? 128 * 28 * 28 : 56 * 56;
    p->max_pixels = qwen3 ? 768 * 32 * 32 : videos ? 768 * 28 * 28 : 1280 * 28 * 28;
}

void patch_rules_default(struct patch_rules *p, enum patch_family family, bool videos)
{
    class_default(p, family, videos);
    p->min_pixels = 56 * 56;
    p->max_pixels = 12845056;
    if (family != PATCHES_QWEN3_VL) return;
    p->patch = 16;
    p->min_pixels = videos ? 4096 : 65536;
    p->max_pixels = videos ? 25165824 : 16777216;
    memcpy(p->mean, half, sizeof p->mean);
    memcpy(p->std, half, sizeof p->std);
}

/* --- values ----------------------------------------------------------------------------------- */

/* Checks the class, if it is stated. What videos get from the file for images has the class of
 * those. */
static int check_class(const struct value *v, enum patch_family family, bool videos, struct error *e)
{
    const bool own = videos && value_get(v, "video_processor_type");
    const char *key = own ? "video_processor_type" : "image_processor_type", *name = NULL,
               *expected = !own                         ? "Qwen2VLImageProcessor"
                           : family == PATCHES_QWEN3_VL ? "Qwen3VLVideoProcessor"
                                                        : "Qwen2VLVideoProcessor";
    if (value_opt_string(v, key, &name, e)) return e->code;
    if (!name || processor_is_class(name, expected) || (!own && processor_is_class(name, "Qwen2_5_VLImageProcessor")))
        return PL_OK;
    return error_set(e, PL_USAGE, "%s is %.100s; expected %s", key, name, expected);
}

/* Reads a whole number from 1 to `most`. */
static int read_count(const struct value *map, const char *path, uint64_t most, uint64_t *out, struct error *e)
{
    uint64_t x = *out;
    if (value_opt_uint(map, path, &x, e)) return e->code;
    if (x != *out && (!x || x > most))
        return error_set(e, PL_USAGE, "%s is %llu; expected 1 to %llu", path, (unsigned long long)x,
                         (unsigned long long)most);
    *out = x;
    return PL_OK;
}

static int read_small(const struct value *map, const char *path, uint32_t most, uint32_t *out, struct error *e)
{
    uint64_t x = *out;
    TRY(read_count(map, path, most, &x, e));
    *out = (uint32_t)x;
    return PL_OK;
}

/* Reports whether a key has a value. */
static bool is_set(const struct value *map, const char *key)
{
    const struct value *v = value_get(map, key);
    return v && v->kind != VALUE_NULL;
}

static int read_pixels(struct patch_rules *p, const struct value *v, bool videos, struct error *e)
{
    if (is_set(v, "size")) {
        TRY(value_as_map(value_get(v, "size"), "size", e));
        p->min_pixels = p->max_pixels = 0;
        TRY(read_count(v, "size.shortest_edge", PIXELS_MOST, &p->min_pixels, e));
        TRY(read_count(v, "size.longest_edge", PIXELS_MOST, &p->max_pixels, e));
    }
    if (!videos || p->family != PATCHES_QWEN3_VL) {
        TRY(read_count(v, "min_pixels", PIXELS_MOST, &p->min_pixels, e));
        TRY(read_count(v, "max_pixels", PIXELS_MOST, &p->max_pixels, e));
    }
    if (p->min_pixels && p->max_pixels) return PL_OK;
    return error_set(e, PL_USAGE,
                     "size has no %s: expected shortest_edge and longest_edge, the fewest and the most pixels of an "
                     "image", p->min_pixels ? "longest_edge" : "shortest_edge");
}

static int read_resample(const struct value *v, struct error *e)
{
    int64_t x = 3;
    TRY(value_opt_int(v, "resample", &x, e));
    return x == 3 ? PL_OK : error_set(e, PL_USAGE, "resample is %lld; expected 3 (bicubic)", (long long)x);
}

static int read_values(struct patch_rules *p, const struct value *v, bool videos, struct error *e)
{
    bool resize = true;
    TRY(value_opt_bool(v, "do_resize", &resize, e));
    if (!resize)
        return error_set(e, PL_USAGE,
                         "do_resize is false; expected true: images of any size have to become whole patches");
    TRY(read_resample(v, e));
    TRY(value_opt_bool(v, "do_rescale", &p->rescale, e));
    TRY(value_opt_bool(v, "do_normalize", &p->normalize, e));
    TRY(value_opt_number(v, "rescale_factor", &p->factor, e));
    TRY(processor_three(v, "image_mean", p->mean, e));
    TRY(processor_three(v, "image_std", p->std, e));
    TRY(read_small(v, "patch_size", PATCH_MOST, &p->patch, e));
    TRY(read_small(v, "temporal_patch_size", COUNT_MOST, &p->temporal, e));
    TRY(read_small(v, "merge_size", COUNT_MOST, &p->merge, e));
    return read_pixels(p, v, videos, e);
}

static int read_sampling(struct patch_rules *p, const struct value *v, struct error *e)
{
    TRY(value_opt_bool(v, "do_sample_frames", &p->sample, e));
    TRY(value_opt_number(v, "fps", &p->fps, e));
    TRY(read_small(v, "min_frames", UINT32_MAX, &p->min_frames, e));
    TRY(read_small(v, "max_frames", UINT32_MAX, &p->max_frames, e));
    TRY(value_opt_bool(v, "cap_pixels_per_frame", &p->cap, e));
    TRY(read_count(v, "max_video_tokens", UINT32_MAX, &p->cap_tokens, e));
    if (p->sample && is_set(v, "num_frames"))
        return error_set(e, PL_USAGE,
                         "num_frames is set, and a fixed number of frames is not supported: set fps instead");
    return PL_OK;
}

/* --- overrides and checks --------------------------------------------------------------------- */

static void override(struct patch_rules *p, const struct patch_overrides *o)
{
    if (!o) return;
    if (o->min_pixels) p->min_pixels = o->min_pixels;
    if (o->max_pixels) p->max_pixels = o->max_pixels;
    if (o->fps > 0) p->sample = true, p->fps = p->folder_fps = o->fps;
    if (o->max_frames) p->max_frames = p->most_frames = o->max_frames;
}

static int check(const struct patch_rules *p, bool videos, struct error *e)
{
    if (p->min_pixels > p->max_pixels)
        return error_set(e, PL_USAGE, "min_pixels is %llu, and max_pixels is %llu; expected at most that",
                         (unsigned long long)p->min_pixels, (unsigned long long)p->max_pixels);
    if (p->max_pixels > PIXELS_MOST)
        return error_set(e, PL_USAGE, "max_pixels is %llu; expected at most %llu", (unsigned long long)p->max_pixels,
                         (unsigned long long)PIXELS_MOST);
    if (p->rescale && (!(p->factor > 0) || !isfinite((float)(1 / p->factor)) || !isfinite((float)p->factor)))
        return error_set(e, PL_USAGE, "rescale_factor is %g; expected a number above 0, such as 0.00392156862745098",
                         p->factor);
    for (int c = 0; c < 3; c++)
        if (p->normalize && !((float)p->std[c] > 0))
            return error_set(e, PL_USAGE, "image_std is %g; expected numbers above 0", p->std[c]);
    if (videos && p->sample && !(p->fps > 0 && p->fps <= UINT32_MAX))
        return error_set(e, PL_USAGE, "do_sample_frames is true, and fps is %g; expected a number above 0", p->fps);
    if (videos && p->max_frames < p->temporal)
        return error_set(e, PL_USAGE, "max_frames is %u; expected at least %u, the frames of a patch", p->max_frames,
                         p->temporal);
    return PL_OK;
}

static int from_value(struct patch_rules *p, const struct value *v, enum patch_family family, bool videos,
                      struct error *e)
{
    TRY(value_as_map(v, videos ? "the video processor" : "the image processor", e));
    TRY(check_class(v, family, videos, e));
    class_default(p, family, videos);
    TRY(read_values(p, v, videos, e));
    return videos ? read_sampling(p, v, e) : PL_OK;
}

int patch_rules_parse(struct patch_rules *p, const char *json, size_t n, const char *path, enum patch_family family,
                      bool videos, const struct patch_overrides *o, struct error *e)
{
    struct bump b = {0};
    const struct value *v;
    int rc = processor_file_parse(json, n, videos ? "video_processor" : "image_processor", &b, &v, e);
    if (!rc) rc = from_value(p, v, family, videos, e);
    if (!rc) override(p, o), rc = check(p, videos, e);
    bump_free(&b);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

int patch_rules_read(struct patch_rules *p, const char *folder, enum patch_family family, bool videos,
                     const struct patch_overrides *o, struct error *e)
{
    struct bump b = {0};
    const struct value *v = NULL;
    const char *name = NULL;
    int rc = *folder ? processor_file_find(folder, videos, &b, &v, &name, e) : PL_OK;
    if (!rc && !v) patch_rules_default(p, family, videos);
    if (!rc && v) rc = from_value(p, v, family, videos, e);
    if (!rc) override(p, o), rc = check(p, videos, e);
    if (rc && v) error_prepend(e, "%s/%s", folder, name);
    bump_free(&b);
    return rc;
}

uint64_t patch_rules_hash(const struct patch_rules *p)
{
    const uint64_t sizes[] = {p->family,     p->patch,      p->temporal,    p->merge, p->min_pixels, p->max_pixels,
                              p->sample,     p->min_frames, p->max_frames,  p->cap,   p->cap_tokens, p->most_frames};
    const double rates[] = {p->fps, p->folder_fps};
    return hash_bytes(rates, sizeof rates, hash_bytes(sizes, sizeof sizes, 1));
}
