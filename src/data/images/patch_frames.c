/*
 * patch_frames.c: which frames of a video transformers' processors take, and when they are shown
 * (see patches.h).
 *
 * Qwen2-VL takes torch.arange(0, frames, frames / n) in f32, rounded down; Qwen3-VL numpy.linspace
 * from the first to the last frame, rounded half to even.
 */
#include "data/images/patches.h"

#include <math.h>

static bool is_qwen3(const struct patch_rules *p) { return p->family == PATCHES_QWEN3_VL; }

static double rate_of(const struct patch_rules *p, const struct video_facts *v)
{
    return v->fps > 0 ? v->fps : p->folder_fps;
}

/* Returns n, or the largest multiple of the frames of a grid below it: what Qwen2-VL takes. */
static uint32_t whole_grids(const struct patch_rules *p, double n)
{
    return is_qwen3(p) ? (uint32_t)n : (uint32_t)floor(n / p->temporal) * p->temporal;
}

/* Returns how many frames are taken where the rate is sampled. */
static uint32_t count_sampled(const struct patch_rules *p, const struct video_facts *v)
{
    const double all = v->frames, n = all / v->fps * p->fps, least = p->min_frames;
    const double most = whole_grids(p, fmin(p->max_frames, all));
    return whole_grids(p, fmin(fmax(is_qwen3(p) ? floor(n) : n, least), most));
}

static uint32_t count(const struct patch_rules *p, const struct video_facts *v)
{
    if (p->sample && v->fps > 0) return count_sampled(p, v);
    return p->most_frames && v->frames > p->most_frames ? whole_grids(p, p->most_frames) : v->frames;
}

int patch_frames_choose(const void *rules, const struct video_facts *v, uint32_t *chosen, uint32_t *n,
                        struct error *e)
{
    const struct patch_rules *p = rules;
    const uint32_t least = is_qwen3(p) || p->sample ? p->temporal : 1;
    *n = count(p, v);
    if (*n < least || v->frames < least)
        return error_set(e, PL_USAGE, "the video has %u frames, of which %u are taken; expected at least %u", v->frames,
                         *n, least);
    if (*n == v->frames) {
        for (uint32_t i = 0; i < *n; i++) chosen[i] = i;
        return PL_OK;
    }
    const double last = v->frames - 1.0, step = last / (*n > 1 ? *n - 1 : 1);
    if (!is_qwen3(p)) video_spread(v->frames, *n, chosen);
    else for (uint32_t i = 0; i < *n; i++) chosen[i] = (uint32_t)fmin(rint(i * step), last);
    return PL_OK;
}

double patch_seconds_per_grid(const struct patch_rules *p, const struct video_facts *v, uint32_t n)
{
    return p->temporal / ((double)n / v->frames * rate_of(p, v));
}

void patch_grid_seconds(const struct patch_rules *p, const struct video_facts *v, const uint32_t *chosen, uint32_t n,
                        double *seconds)
{
    const double rate = rate_of(p, v);
    for (uint64_t i = 0; i < n; i += p->temporal) {
        const uint32_t last = chosen[min_u64(i + p->temporal, n) - 1];
        *seconds++ = (chosen[i] / rate + last / rate) / 2;
    }
}
