/*
 * volume.c: see volume.h. What all kinds share: names, views, windows, RGB.
 */
#include "data/volumes/volume.h"

#include <math.h>
#include <unistd.h>

#include "data/volumes/dicom.h"
#include "data/volumes/nifti.h"
#include "io/file.h"

enum { WINDOW_SLICES = 64, WINDOW_VALUES = 1 << 22 };

bool is_volume_name(const char *name, size_t *ending)
{
    static const char *const endings[] = {".nii", ".nii.gz", ".tif", ".tiff", ".dcm"};
    for (size_t i = 0; i < COUNT(endings); i++) {
        if (!path_has_ending(name, endings[i])) continue;
        if (ending) *ending = strlen(endings[i]);
        return true;
    }
    return false;
}

int volume_refuse(const char *path, struct error *e)
{
    return error_set(e, PL_USAGE,
                     "%s is one volume or image: give the folder that holds the images and their masks, such as "
                     "imagesTr and labelsTr", path);
}

/* --- views ------------------------------------------------------------------------------------ */

static double axis_length(const double affine[3][4], int axis)
{
    return sqrt(affine[0][axis] * affine[0][axis] + affine[1][axis] * affine[1][axis] +
                affine[2][axis] * affine[2][axis]);
}

/* Finds which world axis each axis of the array is nearest to, each once: the largest cosine
 * first. */
static void find_world(const double affine[3][4], int world[3], bool positive[3])
{
    bool used[3] = {0}, done[3] = {0};
    for (int round = 0; round < 3; round++) {
        double best = -1;
        int axis = 0, to = 0;
        for (int a = 0; a < 3; a++)
            for (int w = 0; w < 3; w++) {
                const double length = axis_length(affine, a), cosine = length > 0 ? fabs(affine[w][a]) / length : 0;
                if (!done[a] && !used[w] && cosine > best) best = cosine, axis = a, to = w;
            }
        done[axis] = used[to] = true;
        world[axis] = to;
        positive[axis] = affine[to][axis] >= 0;
    }
}

/* World axes (0 R, 1 A, 2 S) of columns, rows and slices, and whether these go along the axis or
 * against it. */
static const struct {
    uint8_t world[3];
    bool along[3];
} cuts[] = {
    [AXIS_AXIAL] = {{0, 1, 2}, {false, false, true}},
    [AXIS_CORONAL] = {{0, 2, 1}, {false, false, true}},
    [AXIS_SAGITTAL] = {{1, 2, 0}, {false, false, true}},
};

static void set_sizes(struct volume *v)
{
    v->w = v->dims[v->view.axis[0]], v->h = v->dims[v->view.axis[1]], v->slices = v->dims[v->view.axis[2]];
    for (int i = 0; i < 3; i++) {
        const double mm = axis_length(v->affine, v->view.axis[i]);
        v->spacing[i] = mm > 0 && isfinite(mm) ? mm : 1;
    }
}

static void set_view(struct volume *v, enum volume_axis axis)
{
    int world[3];
    bool positive[3];
    find_world(v->affine, world, positive);
    for (int i = 0; i < 3; i++)
        for (int a = 0; a < 3; a++)
            if (world[a] == cuts[axis].world[i])
                v->view.axis[i] = (uint8_t)a, v->view.flip[i] = positive[a] != cuts[axis].along[i];
    set_sizes(v);
}

/* --- volumes on each other -------------------------------------------------------------------- */

static double determinant(const double a[3][4])
{
    return a[0][0] * (a[1][1] * a[2][2] - a[1][2] * a[2][1]) - a[0][1] * (a[1][0] * a[2][2] - a[1][2] * a[2][0]) +
           a[0][2] * (a[1][0] * a[2][1] - a[1][1] * a[2][0]);
}

/* Solves a * x = b, by Cramer's rule. */
static void solve(const double a[3][4], const double b[3], double x[3])
{
    const double d = determinant(a);
    for (int k = 0; k < 3; k++) {
        double changed[3][4];
        memcpy(changed, a, sizeof changed);
        for (int i = 0; i < 3; i++) changed[i][k] = b[i];
        x[k] = determinant(changed) / d;
    }
}

/* Finds where voxel at[3] of `image` is in the array of `v`. */
static void find_voxel(const struct volume *v, const struct volume *image, const double at[3], double out[3])
{
    double mm[3];
    for (int i = 0; i < 3; i++) {
        mm[i] = image->affine[i][3] - v->affine[i][3];
        for (int k = 0; k < 3; k++) mm[i] += image->affine[i][k] * at[k];
    }
    solve(v->affine, mm, out);
}

/* Finds the axes of `v` that those of `image` are nearest to, and whether they run the other
 * way. */
static void find_axes(const struct volume *v, const struct volume *image, uint8_t axis[3], bool flip[3])
{
    double origin[3];
    find_voxel(v, image, (double[3]){0}, origin);
    for (int k = 0; k < 3; k++) {
        double at[3] = {0}, to[3];
        at[k] = 1;
        find_voxel(v, image, at, to);
        axis[k] = 0;
        for (uint8_t i = 1; i < 3; i++)
            if (fabs(to[i] - origin[i]) > fabs(to[axis[k]] - origin[axis[k]])) axis[k] = i;
        flip[k] = to[axis[k]] < origin[axis[k]];
    }
}

static bool same_size(const struct volume *v, const struct volume *image, const uint8_t axis[3])
{
    if (axis[0] == axis[1] || axis[0] == axis[2] || axis[1] == axis[2]) return false;
    return v->dims[axis[0]] == image->dims[0] && v->dims[axis[1]] == image->dims[1] &&
           v->dims[axis[2]] == image->dims[2];
}

/* Reports whether all voxels of the image are voxels of `v`: its corners are, within a quarter of
 * a voxel, and then all between them. */
static bool same_voxels(const struct volume *v, const struct volume *image, const uint8_t axis[3], const bool flip[3])
{
    for (int corner = 0; corner < 8; corner++) {
        double at[3], to[3];
        for (int k = 0; k < 3; k++) at[k] = corner >> k & 1 ? image->dims[k] - 1 : 0;
        find_voxel(v, image, at, to);
        for (int k = 0; k < 3; k++)
            if (!(fabs(to[axis[k]] - (flip[k] ? image->dims[k] - 1 - at[k] : at[k])) <= 0.25)) return false;
    }
    return true;
}

static int refuse_place(const struct volume *v, const struct volume *image, struct error *e)
{
    const double last[3] = {image->dims[0] - 1, image->dims[1] - 1, image->dims[2] - 1};
    double from[3], to[3];
    find_voxel(v, image, (double[3]){0}, from);
    find_voxel(v, image, last, to);
    return error_set(e, PL_USAGE,
                     "it does not lie on the voxels of its image, which by both affine maps run from (%.2f, %.2f, "
                     "%.2f) to (%.2f, %.2f, %.2f) in its array of %u x %u x %u; expected the same voxels, mirrored or "
                     "with exchanged axes at most: resample it to its image, or, if it is drawn on the image's array, "
                     "save it with the image's affine map",
                     from[0], from[1], from[2], to[0], to[1], to[2], v->dims[0], v->dims[1], v->dims[2]);
}

int volume_lay_on(struct volume *v, struct volume *image, struct error *e)
{
    uint8_t axis[3] = {0, 1, 2};
    bool flip[3] = {0};
    const bool pages = v->kind == VOLUME_TIFF, others = image->kind == VOLUME_TIFF;
    if (pages != others && (v->slices > 1 || image->slices > 1))
        return error_set(e, PL_USAGE,
                         "the pages of a TIFF have no position in the patient, so that they cannot be laid on %s: "
                         "convert the TIFF to NIfTI, with the other volume's affine map", pages ? "its image" : "it");
    if (pages != others) return volume_as_stored(pages ? image : v, e);
    const bool placed = v->placed && image->placed;
    if (placed) find_axes(v, image, axis, flip);
    if (!same_size(v, image, axis))
        return error_set(e, PL_USAGE, "it has %u x %u x %u voxels, and its image %u x %u x %u", v->dims[0], v->dims[1],
                         v->dims[2], image->dims[0], image->dims[1], image->dims[2]);
    if (placed && !same_voxels(v, image, axis, flip)) return refuse_place(v, image, e);
    for (int k = 0; k < 3; k++)
        v->view.axis[k] = axis[image->view.axis[k]], v->view.flip[k] = image->view.flip[k] != flip[image->view.axis[k]];
    set_sizes(v);
    if (v->kind == VOLUME_DICOM && v->view.axis[2] != 2)
        return error_set(e, PL_USAGE,
                         "its slices are not those of its image but lie across them, and a DICOM series is read along "
                         "its own axis: convert it with dcm2niix");
    return PL_OK;
}

int volume_as_stored(struct volume *v, struct error *e)
{
    if (v->kind == VOLUME_NIFTI)
        return error_set(e, PL_USAGE,
                         "it is a NIfTI file, and its partner an image without a position: which row and column are "
                         "which is not known; save both as NIfTI, or both as images");
    v->view = (struct volume_view){.axis = {0, 1, 2}};
    set_sizes(v);
    return PL_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

static int open_tiff(struct volume *v, struct error *e)
{
    struct tiff_source s = {0};
    s.fd = file_open(v->path, &s.n, e);
    if (s.fd < 0) return e->code;
    int rc = tiff_list(&v->pages, &s, e);
    close(s.fd);
    if (rc) return rc;
    const struct tiff_page *first = &v->pages.pages.at[0];
    for (uint32_t i = 1; i < v->pages.pages.n; i++) {
        const struct tiff_page *p = &v->pages.pages.at[i];
        if (p->w != first->w || p->h != first->h || p->channels != first->channels || p->type != first->type)
            return error_set(e, PL_USAGE,
                             "page %u of the TIFF has %ux%u pixels of %u x %s, the first one %ux%u of %u x %s: "
                             "expected pages of one size and type",
                             i + 1, p->w, p->h, p->channels, plane_type_name(p->type), first->w, first->h,
                             first->channels, plane_type_name(first->type));
    }
    v->dims[0] = first->w, v->dims[1] = first->h, v->dims[2] = v->pages.pages.n;
    v->modalities = 1, v->channels = first->palette ? 3 : first->channels, v->type = first->type, v->slope = 1;
    for (int i = 0; i < 3; i++) v->affine[i][i] = 1;
    v->view = (struct volume_view){.axis = {0, 1, 2}};
    set_sizes(v);
    return PL_OK;
}

static int open_kind(struct volume *v, const struct volume_options *o, struct error *e)
{
    if (path_has_ending(v->path, ".tif") || path_has_ending(v->path, ".tiff"))
        return v->kind = VOLUME_TIFF, open_tiff(v, e);
    v->kind = path_has_ending(v->path, ".nii") || path_has_ending(v->path, ".nii.gz") ? VOLUME_NIFTI : VOLUME_DICOM;
    if (v->kind == VOLUME_NIFTI ? nifti_open(v, e) : dicom_open(v, e)) return e->code;
    const double det = fabs(determinant(v->affine)),
                 box = axis_length(v->affine, 0) * axis_length(v->affine, 1) * axis_length(v->affine, 2);
    v->placed &= isfinite(det) && det > 1e-6 * box; /* else it is no map */
    set_view(v, o->axis);
    if (v->kind == VOLUME_DICOM && v->view.axis[2] != 2)
        return error_set(e, PL_USAGE,
                         "its slices are %s: a DICOM series is read along its own axis; set data.slice_axis, or "
                         "convert it with dcm2niix", dicom_axis(v));
    return PL_OK;
}

uint64_t volume_outside(const struct volume *v) { return v->kind == VOLUME_DICOM ? dicom_outside_most(v) : 0; }

/* Checks the size before a slice is read or the file decompressed. */
static int check_size(const struct volume *v, const struct volume_options *o, struct error *e)
{
    const size_t need = volume_rgb_room(&(struct volume_channels){.at = {v}}), room = o->room ? o->room : VOLUME_ROOM;
    if (v->w > VOLUME_MAX_SIDE || v->h > VOLUME_MAX_SIDE)
        return error_set(e, PL_USAGE, "its slices have %u x %u voxels; expected sides of at most %d", v->w, v->h,
                         VOLUME_MAX_SIDE);
    if (need > room)
        return error_set(e, PL_USAGE,
                         "reading a slice of %u x %u voxels takes %zu MiB; expected at most %zu (data.sample_memory)",
                         v->w, v->h, (need >> 20) + 1, room >> 20);
    const uint64_t outside = volume_outside(v);
    if (outside <= room) return PL_OK;
    return error_set(e, PL_USAGE,
                     "decoding the JPEG 2000 of a slice of %u x %u voxels may take %llu MiB more; expected at most %zu "
                     "(data.sample_memory)", v->w, v->h, (unsigned long long)(outside >> 20) + 1, room >> 20);
}

int volume_open(struct volume *v, const char *path, const struct volume_options *o, struct error *e)
{
    *v = (struct volume){.path = mem_string(path)};
    int rc = open_kind(v, o, e);
    if (!rc) rc = check_size(v, o, e);
    if (!rc && v->kind == VOLUME_NIFTI) rc = nifti_unpack(v, o, e);
    if (rc) volume_close(v);
    return rc;
}

void volume_close(struct volume *v)
{
    vec_free(&v->pages.pages);
    dicom_close(v);
    mem_free(v->path);
    mem_free(v->data);
    *v = (struct volume){0};
}

/* --- reading ---------------------------------------------------------------------------------- */

size_t volume_room(const struct volume *v, bool labels)
{
    if (v->kind == VOLUME_NIFTI) return nifti_room(v);
    if (v->kind == VOLUME_DICOM) return dicom_room(v);
    size_t most = 0;
    for (uint32_t i = 0; i < v->pages.pages.n; i++) {
        const size_t room = tiff_room(&v->pages.pages.at[i], labels);
        most = room > most ? room : most;
    }
    return most;
}

static int read_page(const struct volume *v, uint32_t slice, bool labels, void *to, size_t room, struct plane *out,
                     struct error *e)
{
    struct tiff_source s = {0};
    s.fd = file_open(v->path, &s.n, e);
    if (s.fd < 0) return e->code;
    int rc = tiff_read(&s, &v->pages.pages.at[slice], labels, to, room, out, e);
    close(s.fd);
    return rc;
}

int volume_read(const struct volume *v, uint32_t slice, uint32_t modality, bool labels, void *to, size_t room,
                struct plane *out, struct error *e)
{
    CHECK(slice < v->slices && modality < v->modalities, "slice %u of %u, modality %u of %u", slice, v->slices,
          modality, v->modalities);
    if (v->kind == VOLUME_NIFTI) return nifti_read(v, slice, modality, to, room, out, e);
    if (v->kind == VOLUME_DICOM) return dicom_read(v, slice, to, room, out, e);
    return read_page(v, slice, labels, to, room, out, e);
}

/* --- windows ---------------------------------------------------------------------------------- */

static bool is_deep(const struct volume *v) { return v->type == PLANE_U16 && v->slope == 1 && v->inter == 0; }

/* Returns how many slices give values for a window; then how many values each gives. */
static uint32_t window_slices(const struct volume *v) { return (uint32_t)min_u64(v->slices, WINDOW_SLICES); }
static size_t window_values(const struct volume *v)
{
    return (size_t)min_u64(WINDOW_VALUES / window_slices(v), (uint64_t)v->w * v->h * v->channels);
}

static const struct plane any_values = {.type = PLANE_F64, .slope = 1};

/* Returns the bytes of the values, and then of a slice, which lies behind them; the counts that the
 * window is found with follow. */
static size_t values_bytes(const struct volume *v) { return window_slices(v) * window_values(v) * sizeof(double); }
static size_t slice_bytes(const struct volume *v) { return (size_t)align_up(volume_room(v, false), 8); }
size_t volume_window_room(const struct volume *v)
{
    return values_bytes(v) + slice_bytes(v) + plane_counts(&any_values);
}

/* Reads the values of some slices, as a plane at the beginning of the memory. */
static int sample_volume(const struct volume *v, uint32_t modality, char *memory, struct plane *out, struct error *e)
{
    const uint32_t n = window_slices(v);
    double *values = (double *)(void *)memory;
    size_t taken = 0;
    for (uint32_t k = 0; k < n; k++) {
        struct plane p;
        TRY(volume_read(v, (uint32_t)((uint64_t)k * v->slices / n), modality, false, memory + values_bytes(v),
                        slice_bytes(v), &p, e));
        taken += plane_take(&p, window_values(v), values + taken);
    }
    *out = any_values;
    out->h = 1, out->w = (uint32_t)taken, out->channels = 1, out->at = values;
    return PL_OK;
}

void volume_auto_range(struct pixel_range *r, double least)
{
    r->kind = least <= -500 ? RANGE_WINDOW : RANGE_PERCENTILES;
    r->window[0] = -160, r->window[1] = 240;
}

int volume_find_window(const struct volume *v, uint32_t modality, const struct pixel_range *r, void *memory,
                       double window[2], struct error *e)
{
    struct pixel_range own = *r;
    struct plane values;
    double least = 0;
    window[0] = 0, window[1] = is_deep(v) ? RANGE_VALUES - 1 : 255;
    if (r->kind == RANGE_WINDOW) memcpy(window, r->window, sizeof r->window);
    if (r->kind == RANGE_WINDOW || (is_deep(v) && r->kind == RANGE_FULL)) return PL_OK;
    TRY(sample_volume(v, modality, memory, &values, e));
    for (uint32_t i = 0; i < values.w; i++) least = fmin(least, plane_value(&values, i));
    if (r->kind == RANGE_AUTO && !is_deep(v)) volume_auto_range(&own, least);
    uint64_t *counts = (uint64_t *)(void *)((char *)memory + values_bytes(v) + slice_bytes(v));
    if (values.w) plane_window(&values, &own, counts, window);
    return PL_OK;
}

int volume_set_window(struct volume *v, uint32_t modality, const struct pixel_range *r, struct error *e)
{
    void *memory = mem_alloc(volume_window_room(v));
    const int rc = volume_find_window(v, modality, r, memory, v->window, e);
    mem_free(memory);
    return rc;
}

/* --- RGB -------------------------------------------------------------------------------------- */

static size_t rgb_bytes(const struct volume *v) { return (size_t)align_up((uint64_t)v->w * v->h * 3, 64); }
/* Returns the bytes of the counts, with which the window of an image is found when it is read. */
static size_t count_bytes(const struct volume *v)
{
    return v->slices == 1 ? plane_counts(&(struct plane){.type = v->type, .slope = v->slope, .inter = v->inter}) : 0;
}

size_t volume_rgb_room(const struct volume_channels *c)
{
    size_t most = 0;
    for (int i = 0; i < 3 && c->at[i]; i++) {
        const size_t room = (size_t)align_up(volume_room(c->at[i], false), 8) + count_bytes(c->at[i]);
        most = room > most ? room : most;
    }
    return rgb_bytes(c->at[0]) + most;
}

int volume_rgb(const struct volume_channels *c, const struct pixel_range *r, uint32_t slice, void *to, size_t room,
               struct error *e)
{
    const size_t at = rgb_bytes(c->at[0]);
    for (int i = 0; i < 3 && c->at[i]; i++) {
        const struct volume *v = c->at[i];
        const int64_t step = (int64_t)slice + c->step[i];
        const size_t plane = (size_t)align_up(volume_room(v, false), 8);
        struct plane p;
        double window[2] = {v->window[0], v->window[1]};
        if (volume_read(v, step < 0 || step >= v->slices ? slice : (uint32_t)step, c->modality[i], false,
                        (char *)to + at, room - at, &p, e))
            return e->code;
        if (v->slices == 1) plane_window(&p, r, (uint64_t *)(void *)((char *)to + at + plane), window); /* an image */
        plane_to_rgb(&p, window, c->at[1] ? i : -1, to);
    }
    return PL_OK;
}
