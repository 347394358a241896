/*
 * volume_patches.c: see volume.h.
 *
 * A slice is read, resampled along its rows and columns, and added to the slices of the result that
 * it takes part in. So memory is that of a few slices, and the result itself.
 */
#include "data/volumes/volume.h"

#include <math.h>

#include "data/ring.h"

/* --- references ------------------------------------------------------------------------------- */

bool media_is_volume(const char *reference) { return !strncmp(reference, VOLUME_REFERENCE, strlen(VOLUME_REFERENCE)); }

const char *media_volume(const char *path, const char *modality, struct bump *b)
{
    static const char *const images[] = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"};
    const bool volume = path_has_ending(path, ".nii") || path_has_ending(path, ".nii.gz");
    if (media_is_volume(path) || (!volume && !modality)) return NULL;
    for (size_t i = 0; i < COUNT(images); i++)
        if (path_has_ending(path, images[i])) return NULL;
    return bump_format(b, VOLUME_REFERENCE "%s:%s", modality ? modality : "", path);
}

/* Returns the name of the modality and what follows it. */
static const char *name_of(const char *reference, size_t *n)
{
    const char *name = reference + strlen(VOLUME_REFERENCE);
    *n = strcspn(name, ":");
    return name;
}

const char *media_volume_path(const char *reference)
{
    size_t n;
    const char *name = name_of(reference, &n);
    return name + n + (name[n] == ':');
}

int media_modality(const struct modality_list *l, const char *reference, struct error *e)
{
    char known[256];
    size_t n;
    const char *name = name_of(reference, &n), *path = media_volume_path(reference);
    const int found = n || l->n != 1 ? modality_find(l, name, n) : 0;
    if (found >= 0) return found;
    if (!l->n)
        error_set(e, PL_USAGE, "%.100s: a volume is given, and the model takes none: model.modalities describes those "
                  "that it is to take", path);
    else if (n)
        error_set(e, PL_USAGE, "%.100s: its modality is %.*s, and the model takes %s (model.modalities)", path,
                  (int)min_u64(n, 60), name, modality_names(l, known));
    else
        error_set(e, PL_USAGE, "%.100s: a volume is given without its modality, which is one of %s: name it in "
                  "modality_paths, or beside the path of the image", path, modality_names(l, known));
    return -1;
}

/* --- resampling ------------------------------------------------------------------------------- */

/* How an axis of `from` voxels becomes one of `to`: voxel i of the result is the sum of n[i] voxels
 * from first[i] on, by their weights; at[i] is its part of the place among the patches. */
struct axis {
    int64_t from, to, most;
    int64_t *first, *n, *at;
    float *weights; /* [to][most] */
};

/* Makes an axis at `memory`; NULL: only counts its bytes. */
static struct axis make_axis(const struct modality *x, int axis, int64_t from, char *memory, uint64_t *used)
{
    const int64_t to = x->size[axis];
    const double scale = (double)from / (double)to, width = fmax(scale, 1);
    struct axis a = {.from = from, .to = to, .most = 2 * (int64_t)ceil(width) + 1};
    a.first = ring_carve(memory, used, (uint64_t)to * sizeof *a.first);
    a.n = ring_carve(memory, used, (uint64_t)to * sizeof *a.n);
    a.at = ring_carve(memory, used, (uint64_t)to * sizeof *a.at);
    a.weights = ring_carve(memory, used, (uint64_t)(to * a.most) * sizeof *a.weights);
    for (int64_t i = 0; i < to && memory; i++) {
        const double centre = ((double)i + 0.5) * scale;
        const int64_t first = max_i64(0, (int64_t)(centre - width + 0.5)),
                      end = min_i64(from, (int64_t)(centre + width + 0.5));
        double sum = 0;
        for (int64_t k = first; k < end; k++) sum += fmax(0, 1 - fabs((double)k + 0.5 - centre) / width);
        a.first[i] = first, a.n[i] = end - first, a.at[i] = modality_offset(x, axis, i);
        for (int64_t k = first; k < end; k++)
            a.weights[i * a.most + k - first] = (float)(fmax(0, 1 - fabs((double)k + 0.5 - centre) / width) / sum);
    }
    return a;
}

/* The memory of a volume that is being read. */
struct work {
    void *plane;            /* a slice as it is stored; before that what the window is found with */
    float *values, *across; /* [h][w] it from 0 to 1, and [h][width] */
    struct axis axis[4];    /* time is not resampled: only its `at` is used */
};

static struct work make_work(const struct volume *v, const struct modality *x, char *memory, uint64_t *used)
{
    const uint64_t plane = volume_room(v, false), window = volume_window_room(v);
    struct work w = {.plane = ring_carve(memory, used, plane > window ? plane : window)};
    w.values = ring_carve(memory, used, (uint64_t)v->w * v->h * sizeof *w.values);
    w.across = ring_carve(memory, used, (uint64_t)x->size[3] * v->h * sizeof *w.across);
    const int64_t from[4] = {x->size[0], v->slices, v->h, v->w};
    for (int k = 0; k < 4; k++) w.axis[k] = make_axis(x, k, from[k], memory, used);
    return w;
}

uint64_t volume_patches_room(const struct volume *v, const struct modality *x)
{
    uint64_t used = 0;
    make_work(v, x, NULL, &used);
    return used;
}

/* --- values ----------------------------------------------------------------------------------- */

/* Scales the slice to 0..1. Returns how many values are not finite. */
static uint64_t scale_values(const struct plane *p, const double window[2], float *to)
{
    const double low = window[0], span = window[1] - window[0];
    uint64_t bad = 0;
    for (size_t i = 0, n = (size_t)p->h * p->w; i < n; i++) {
        const double value = plane_value(p, i);
        bad += !isfinite(value);
        to[i] = (float)fmin(1, fmax(0, span > 0 ? (value - low) / span : value > low));
    }
    return bad;
}

/* Adds a slice of the volume at this time to the slices of the result. */
static void add_slice(const struct work *w, int64_t time, int64_t slice, float *to)
{
    const struct axis *depth = &w->axis[1], *rows = &w->axis[2], *columns = &w->axis[3];
    for (int64_t r = 0; r < rows->from; r++)
        for (int64_t i = 0; i < columns->to; i++) {
            const float *from = w->values + r * columns->from + columns->first[i],
                        *weights = columns->weights + i * columns->most;
            float sum = 0;
            for (int64_t k = 0; k < columns->n[i]; k++) sum += weights[k] * from[k];
            w->across[r * columns->to + i] = sum;
        }
    for (int64_t d = 0; d < depth->to; d++) {
        const int64_t nth = slice - depth->first[d];
        if (nth < 0 || nth >= depth->n[d] || depth->at[d] < 0 || w->axis[0].at[time] < 0) continue;
        const float weight = depth->weights[d * depth->most + nth];
        for (int64_t r = 0; r < rows->to; r++) {
            const float *weights = rows->weights + r * rows->most,
                        *from = w->across + rows->first[r] * columns->to;
            float *out = to + w->axis[0].at[time] + depth->at[d] + rows->at[r];
            for (int64_t i = 0; i < columns->to && rows->at[r] >= 0; i++) {
                if (columns->at[i] < 0) break;
                float sum = 0;
                for (int64_t k = 0; k < rows->n[r]; k++) sum += weights[k] * from[k * columns->to + i];
                out[columns->at[i]] += weight * sum;
            }
        }
    }
}

static int check_volume(const struct volume *v, const struct modality *x, struct error *e)
{
    if (v->dims[0] < 2 || v->dims[1] < 2 || v->dims[2] < 2)
        return error_set(e, PL_USAGE, "it has %u x %u x %u voxels; expected a volume, and not a slice", v->dims[0],
                         v->dims[1], v->dims[2]);
    if (v->channels != 1) return error_set(e, PL_USAGE, "its voxels are colours; expected one value each");
    if (x->series && v->modalities < 2)
        return error_set(e, PL_USAGE, "it is one volume, and %s takes series of %lld", x->name, (long long)x->size[0]);
    if (!x->series && v->modalities > 1)
        return error_set(e, PL_USAGE, "it is a series of %u volumes (a fourth dimension), and %s takes one volume",
                         v->modalities, x->name);
    return PL_OK;
}

int volume_patches(const struct volume *v, const struct modality *x, const struct pixel_range *r, void *memory,
                   float *to, struct error *e)
{
    uint64_t used = 0, bad = 0;
    double window[2] = {0, 255};
    TRY(check_volume(v, x, e));
    const struct work w = make_work(v, x, memory, &used);
    const int64_t times = min_i64(v->modalities, x->size[0]), first = (v->modalities - times) / 2;
    if (!(v->type == PLANE_U8 && v->slope == 1 && v->inter == 0))
        TRY(volume_find_window(v, (uint32_t)(first + times / 2), r, w.plane, window, e));
    memset(to, 0, (size_t)modality_floats(x) * sizeof *to);
    for (int64_t t = 0; t < times; t++)
        for (uint32_t k = 0; k < v->slices; k++) {
            struct plane p;
            TRY(volume_read(v, k, (uint32_t)(first + t), false, w.plane, volume_room(v, false), &p, e));
            bad += scale_values(&p, window, w.values);
            add_slice(&w, t, k, to);
        }
    if (!bad) return PL_OK;
    return error_set(e, PL_USAGE, "%llu of its values are not finite; replace them, by 0 for example",
                     (unsigned long long)bad);
}
