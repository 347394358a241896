/*
 * dicom.c: see dicom.h: a series as a volume.
 *
 * Slices are sorted by their position along the normal of the image plane. The distance between
 * neighbours gives the third axis of the affine map, which DICOM states in LPS and volumes in RAS.
 */
#include "data/volumes/dicom.h"

#include <math.h>
#include <unistd.h>

#include "io/file.h"

/* Reports whether the first bytes are those of a DICOM file. */
static bool is_dicom(const char *path)
{
    char head[132];
    return file_peek(path, head, sizeof head) == sizeof head && !memcmp(head + 128, "DICM", 4);
}

bool is_dicom_folder(const char *path)
{
    enum { TRIED = 4 }; /* files without an ending that are looked into */
    struct names l;
    struct error ignored;
    bool found = false;
    if (!dir_exists(path)) return false;
    if (dir_list(path, &l, &ignored)) return names_free(&l), false;
    for (uint32_t i = 0, tried = 0; i < l.n && !found && tried < TRIED; i++) {
        const bool plain = !strchr(l.at[i], '.') || path_has_ending(l.at[i], ".ima");
        if (l.at[i][0] == '.' || !(path_has_ending(l.at[i], ".dcm") || plain)) continue;
        struct text full = {0};
        text_printf(&full, "%s/%s", path, l.at[i]);
        found = is_dicom(full.at);
        tried++;
        text_free(&full);
    }
    names_free(&l);
    return found;
}

/* --- opening ---------------------------------------------------------------------------------- */

struct found {
    struct dicom_header h;
    struct dicom_slice slice;
};
struct dicom_series {
    VEC(struct found) files;
};

static int parse_file(const char *path, struct dicom_header *h, struct error *e)
{
    struct dicom_source s = {0};
    s.fd = file_open(path, &s.n, e);
    if (s.fd < 0) return e->code;
    int rc = dicom_parse(h, &s, e);
    close(s.fd);
    return rc;
}

static double dot(const double *a, const double *b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

static void normal_of(const struct dicom_header *h, double n[3])
{
    const double *r = h->orientation, *c = h->orientation + 3;
    n[0] = r[1] * c[2] - r[2] * c[1], n[1] = r[2] * c[0] - r[0] * c[2], n[2] = r[0] * c[1] - r[1] * c[0];
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Checks that all files of a series have one form. */
static int check_alike(const struct found *a, const struct found *b, struct error *e)
{
    const struct dicom_header *x = &a->h, *y = &b->h;
    if (strcmp(x->series, y->series))
        return error_set(e, PL_USAGE,
            "it has several series (%s and %s are of different ones): put each series into a folder of its own",
            base_name(a->slice.path), base_name(b->slice.path));
    bool same =
        x->rows == y->rows && x->columns == y->columns && x->samples == y->samples && dicom_type(x) == dicom_type(y);
    for (int i = 0; i < 6; i++) same &= fabs(x->orientation[i] - y->orientation[i]) < 1e-3;
    if (same) return PL_OK;
    return error_set(e, PL_USAGE, "%s and %s differ in size, type or orientation: expected one volume in a folder",
                     base_name(a->slice.path), base_name(b->slice.path));
}

static int add_file(struct dicom_series *s, const char *path, struct error *e)
{
    struct found f = {0};
    double n[3];
    if (parse_file(path, &f.h, e)) return error_prepend(e, "%s", base_name(path));
    if (!f.h.rows) return PL_OK; /* no image */
    if (!f.h.has_orientation) memcpy(f.h.orientation, (double[]){1, 0, 0, 0, 1, 0}, sizeof f.h.orientation);
    normal_of(&f.h, n);
    f.slice = (struct dicom_slice){.path = mem_string(path), .pixels = f.h.pixels, .pixels_n = f.h.pixels_n,
                                   .slope = f.h.slope, .inter = f.h.inter, .along = dot(n, f.h.position)};
    f.slice.scratch = dicom_scratch(&f.h) + dicom_lut_bytes(&f.h);
    f.slice.outside = dicom_outside(&f.h);
    if (!strcmp(f.h.photometric, "MONOCHROME1")) { /* the largest value is black */
        const double most = f.h.lut.n       ? (double)((1u << f.h.lut.bits) - 1)
                            : f.h.is_signed ? -1
                                            : (double)((1ull << f.h.stored) - 1);
        f.slice.inter += most * f.slice.slope, f.slice.slope = -f.slice.slope;
    }
    vec_push(&s->files, f);
    return s->files.n > 1 ? check_alike(&s->files.at[0], &s->files.at[s->files.n - 1], e) : PL_OK;
}

static int add_folder(struct dicom_series *s, const char *folder, struct error *e)
{
    struct names l;
    int rc = dir_list(folder, &l, e);
    for (uint32_t i = 0; i < l.n && !rc; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l.at[i]);
        if (l.at[i][0] != '.' && is_dicom(path.at)) rc = add_file(s, path.at, e);
        text_free(&path);
    }
    names_free(&l);
    if (!rc && !s->files.n) rc = error_set(e, PL_USAGE, "no file of it is a DICOM image");
    return rc;
}

static int compare(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (x->slice.along != y->slice.along) return x->slice.along < y->slice.along ? -1 : 1;
    return strcmp(x->slice.path, y->slice.path);
}

static int compare_reals(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double distance(const struct dicom_series *s, uint32_t i)
{
    return s->files.at[i].slice.along - s->files.at[i - 1].slice.along;
}

/* Returns the distance that half of the neighbours do not exceed. */
static double usual_distance(const struct dicom_series *s)
{
    const uint32_t n = s->files.n - 1;
    double *all = mem_alloc(n * sizeof *all);
    for (uint32_t i = 0; i < n; i++) all[i] = distance(s, i + 1);
    qsort(all, n, sizeof *all, compare_reals);
    const double usual = all[(n - 1) / 2];
    mem_free(all);
    return usual;
}

/* Checks that voxels have one height: all neighbours are as far apart, within a tenth. */
static int check_even(const struct dicom_series *s, struct error *e)
{
    const double usual = usual_distance(s);
    for (uint32_t i = 1; i < s->files.n; i++) {
        const double d = distance(s, i), missing = floor(d / usual + 0.5) - 1;
        const char *before = base_name(s->files.at[i - 1].slice.path), *after = base_name(s->files.at[i].slice.path);
        if (fabs(d - usual) <= 0.1 * usual) continue;
        if (missing >= 1 && fabs(d - (missing + 1) * usual) <= 0.1 * usual)
            return error_set(e, PL_USAGE,
                             "%.0f %s missing between slices %u and %u (%s and %s), which are %g mm apart, and the "
                             "others %g mm: copy the whole series, or convert it with dcm2niix",
                             missing, missing > 1 ? "slices are" : "slice is", i - 1, i, before, after, d, usual);
        return error_set(e, PL_USAGE,
                         "its slices are not evenly spaced: slices %u and %u (%s and %s) are %g mm apart, and others "
                         "%g mm: convert the series with dcm2niix, which resamples it",
                         i - 1, i, before, after, d, usual);
    }
    return PL_OK;
}

static int order(struct dicom_series *s, struct error *e)
{
    if (s->files.n < 2) return PL_OK;
    for (uint32_t i = 0; i < s->files.n; i++)
        if (!s->files.at[i].h.has_position)
            return error_set(e, PL_USAGE,
                             "%s has no position in the patient (0020,0032), so the slices have no order: convert the "
                             "series with dcm2niix", base_name(s->files.at[i].slice.path));
    qsort(s->files.at, s->files.n, sizeof *s->files.at, compare);
    for (uint32_t i = 1; i < s->files.n; i++)
        if (distance(s, i) < 1e-4)
            return error_set(e, PL_USAGE,
                             "%s and %s have one position: a series over time, or with several echoes, is not one "
                             "volume: convert it with dcm2niix",
                             base_name(s->files.at[i - 1].slice.path), base_name(s->files.at[i].slice.path));
    return check_even(s, e);
}

static void set_affine(struct volume *v, const struct dicom_series *s)
{
    const struct dicom_header *h = &s->files.at[0].h, *last = &s->files.at[s->files.n - 1].h;
    double n[3];
    normal_of(h, n);
    for (int i = 0; i < 3; i++) {
        const double sign = i < 2 ? -1 : 1; /* LPS to RAS */
        v->affine[i][0] = sign * h->orientation[i] * h->spacing[1];
        v->affine[i][1] = sign * h->orientation[3 + i] * h->spacing[0];
        v->affine[i][2] = sign * (s->files.n > 1 ? (last->position[i] - h->position[i]) / (s->files.n - 1)
                                                 : n[i] * (h->between > 0 ? h->between : 1));
        v->affine[i][3] = sign * h->position[i];
    }
}

int dicom_open(struct volume *v, struct error *e)
{
    struct dicom_series s = {0};
    int rc = dir_exists(v->path) ? add_folder(&s, v->path, e) : add_file(&s, v->path, e);
    if (!rc && !s.files.n) rc = error_set(e, PL_USAGE, "it has no image");
    if (!rc) rc = order(&s, e);
    if (!rc) {
        const struct dicom_header *h = &s.files.at[0].h;
        v->dims[0] = h->columns, v->dims[1] = h->rows, v->dims[2] = s.files.n;
        v->modalities = 1, v->channels = h->samples;
        v->type = dicom_type(h);
        v->slope = s.files.at[0].slice.slope, v->inter = s.files.at[0].slice.inter;
        set_affine(v, &s);
        v->placed = h->has_position && h->has_orientation;
        memcpy(v->patient, h->patient, sizeof v->patient);
        v->files = mem_alloc(s.files.n * sizeof *v->files);
    }
    for (uint32_t i = 0; i < s.files.n; i++) {
        if (v->files) v->files[i] = s.files.at[i].slice;
        else mem_free(s.files.at[i].slice.path);
    }
    vec_free(&s.files);
    return rc;
}

void dicom_close(struct volume *v)
{
    for (uint32_t i = 0; v->files && i < v->dims[2]; i++) mem_free(v->files[i].path);
    mem_free(v->files);
    v->files = NULL;
}

const char *dicom_axis(const struct volume *v)
{
    int best = 0;
    for (int i = 1; i < 3; i++)
        if (fabs(v->affine[i][2]) > fabs(v->affine[best][2])) best = i;
    return best == 0 ? "sagittal" : best == 1 ? "coronal" : "axial";
}

/* --- a slice ---------------------------------------------------------------------------------- */

static size_t plane_room(const struct volume *v)
{
    return (size_t)align_up((uint64_t)v->w * v->h * v->channels * plane_type_bytes(v->type), 8);
}

size_t dicom_room(const struct volume *v)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < v->slices; i++) {
        const uint64_t bytes = align_up(v->files[i].pixels_n, 64) + 64 + v->files[i].scratch;
        most = most > bytes ? most : bytes;
    }
    return 2 * plane_room(v) + (size_t)most;
}

uint64_t dicom_outside_most(const struct volume *v)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < v->slices; i++) most = most > v->files[i].outside ? most : v->files[i].outside;
    return most;
}

static int read_pixels(const struct dicom_slice *f, const struct dicom_header *h, uint8_t *to, uint8_t *lut,
                       struct error *e)
{
    int fd = file_open(f->path, NULL, e);
    if (fd < 0) return e->code;
    int rc = fd_read_at(fd, h->pixels, to, (size_t)h->pixels_n, e);
    if (!rc && h->lut.n) rc = fd_read_at(fd, h->lut.at, lut, dicom_lut_bytes(h), e);
    close(fd);
    return rc;
}

/* Turns a slice: the view may mirror rows and columns, and exchange them. */
static void turn(const struct volume *v, const uint8_t *from, uint8_t *to)
{
    const size_t voxel = v->channels * plane_type_bytes(v->type);
    const bool swap = v->view.axis[0] == 1;
    for (uint32_t y = 0; y < v->h; y++)
        for (uint32_t x = 0; x < v->w; x++) {
            const uint32_t column = v->view.flip[0] ? v->w - 1 - x : x, row = v->view.flip[1] ? v->h - 1 - y : y;
            memcpy(to + ((size_t)y * v->w + x) * voxel,
                   from + (swap ? (size_t)column * v->h + row : (size_t)row * v->w + column) * voxel, voxel);
        }
}

int dicom_read(const struct volume *v, uint32_t slice, void *to, size_t room, struct plane *out, struct error *e)
{
    const struct dicom_slice *f = &v->files[v->view.flip[2] ? v->slices - 1 - slice : slice];
    uint8_t *raw = (uint8_t *)to + plane_room(v), *file = raw + plane_room(v);
    uint8_t *scratch = (uint8_t *)(uintptr_t)align_up((uintptr_t)file + f->pixels_n, 64);
    struct dicom_header h;
    CHECK(room >= dicom_room(v), "a slice of %ux%u voxels in %zu bytes", v->w, v->h, room);
    if (parse_file(f->path, &h, e)) return error_prepend(e, "%s", base_name(f->path));
    if (h.columns != v->dims[0] || h.rows != v->dims[1] || h.samples != v->channels || dicom_type(&h) != v->type ||
        h.pixels != f->pixels || h.pixels_n != f->pixels_n || dicom_scratch(&h) + dicom_lut_bytes(&h) != f->scratch)
        return error_set(e, PL_USAGE, "%s has changed since it was opened", base_name(f->path));
    uint8_t *lut = scratch + dicom_scratch(&h);
    if (read_pixels(f, &h, file, lut, e) || dicom_decode(&h, file, lut, scratch, raw, e))
        return error_prepend(e, "%s", base_name(f->path));
    turn(v, raw, to);
    *out = (struct plane){
        .h = v->h, .w = v->w, .channels = v->channels, .type = v->type, .slope = f->slope, .inter = f->inter, .at = to};
    return PL_OK;
}
