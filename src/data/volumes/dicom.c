/*
 * dicom.c: see dicom.h: a series as a volume.
 *
 * Slices are sorted by their position along the normal of the image plane. The distance between neighbours gives the third axis of the affine
 * map, which DICOM states in LPS and volumes in RAS.
 */
#include "data/volumes/dicom.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"

bool dicom_looks(const char *path)
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
        found = dicom_looks(full.at);
        tried++;
        text_free(&full);
    }
    names_free(&l);
    return found;
}

/* --- opening -------------------------------------------------------------------------------------------------- */

struct found {
    struct dicom_header h;
    struct dicom_slice slice;
};
struct series {
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

/* All files of a series have one form. */
static int check_alike(const struct found *a, const struct found *b, struct error *e)
{
    const struct dicom_header *x = &a->h, *y = &b->h;
    if (strcmp(x->series, y->series))
        return error_set(e, PL_USAGE, "it has several series (%s and %s are of different ones): put each series into a folder of its own", base_name(a->slice.path), base_name(b->slice.path));
    bool same = x->rows == y->rows && x->columns == y->columns && x->samples == y->samples && x->allocated == y->allocated && x->is_signed == y->is_signed;
    for (int i = 0; i < 6; i++) same &= fabs(x->orientation[i] - y->orientation[i]) < 1e-3;
    if (same) return PL_OK;
    return error_set(e, PL_USAGE, "%s and %s differ in size, type or orientation: expected one volume in a folder", base_name(a->slice.path), base_name(b->slice.path));
}

static int add_file(struct series *s, const char *path, struct error *e)
{
    struct found f = {0};
    double n[3];
    if (parse_file(path, &f.h, e)) return error_prepend(e, "%s", base_name(path));
    if (!f.h.rows) return PL_OK; /* no image */
    if (!f.h.has_orientation) memcpy(f.h.orientation, (double[]){1, 0, 0, 0, 1, 0}, sizeof f.h.orientation);
    normal_of(&f.h, n);
    f.slice = (struct dicom_slice){.path = mem_string(path), .pixels = f.h.pixels, .pixels_n = f.h.pixels_n, .slope = f.h.slope, .inter = f.h.inter, .along = dot(n, f.h.position)};
    if (!strcmp(f.h.photometric, "MONOCHROME1")) { /* the largest value is black */
        const double most = f.h.is_signed ? -1 : (double)((1ull << f.h.stored) - 1);
        f.slice.inter += most * f.slice.slope, f.slice.slope = -f.slice.slope;
    }
    vec_push(&s->files, f);
    return s->files.n > 1 ? check_alike(&s->files.at[0], &s->files.at[s->files.n - 1], e) : PL_OK;
}

static int add_folder(struct series *s, const char *folder, struct error *e)
{
    struct names l;
    int rc = dir_list(folder, &l, e);
    for (uint32_t i = 0; i < l.n && !rc; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l.at[i]);
        if (l.at[i][0] != '.' && dicom_looks(path.at)) rc = add_file(s, path.at, e);
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

static int order(struct series *s, struct error *e)
{
    for (uint32_t i = 0; i < s->files.n && s->files.n > 1; i++)
        if (!s->files.at[i].h.has_position) return error_set(e, PL_USAGE, "%s has no position in the patient (0020,0032), so the slices have no order: convert the series with dcm2niix", base_name(s->files.at[i].slice.path));
    qsort(s->files.at, s->files.n, sizeof *s->files.at, compare);
    for (uint32_t i = 1; i < s->files.n; i++)
        if (s->files.at[i].slice.along - s->files.at[i - 1].slice.along < 1e-4)
            return error_set(e, PL_USAGE, "%s and %s have one position: a series over time, or with several echoes, is not one volume: convert it with dcm2niix", base_name(s->files.at[i - 1].slice.path),
                             base_name(s->files.at[i].slice.path));
    return PL_OK;
}

static void set_affine(struct volume *v, const struct series *s)
{
    const struct dicom_header *h = &s->files.at[0].h, *last = &s->files.at[s->files.n - 1].h;
    double n[3];
    normal_of(h, n);
    for (int i = 0; i < 3; i++) {
        const double sign = i < 2 ? -1 : 1; /* LPS to RAS */
        v->affine[i][0] = sign * h->orientation[i] * h->spacing[1];
        v->affine[i][1] = sign * h->orientation[3 + i] * h->spacing[0];
        v->affine[i][2] = sign * (s->files.n > 1 ? (last->position[i] - h->position[i]) / (s->files.n - 1) : n[i] * (h->between > 0 ? h->between : 1));
        v->affine[i][3] = sign * h->position[i];
    }
}

int dicom_open(struct volume *v, struct error *e)
{
    struct series s = {0};
    int rc = dir_exists(v->path) ? add_folder(&s, v->path, e) : add_file(&s, v->path, e);
    if (!rc && !s.files.n) rc = error_set(e, PL_USAGE, "it has no image");
    if (!rc) rc = order(&s, e);
    if (!rc) {
        const struct dicom_header *h = &s.files.at[0].h;
        v->dims[0] = h->columns, v->dims[1] = h->rows, v->dims[2] = s.files.n;
        v->modalities = 1, v->channels = h->samples;
        v->type = h->allocated == 8 ? h->is_signed ? PLANE_I8 : PLANE_U8 : h->is_signed ? PLANE_I16 : PLANE_U16;
        v->slope = s.files.at[0].slice.slope, v->inter = s.files.at[0].slice.inter;
        set_affine(v, &s);
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

/* --- a slice ----------------------------------------------------------------------------------------------------- */

static size_t plane_room(const struct volume *v) { return (size_t)align_up((uint64_t)v->w * v->h * v->channels * plane_type_bytes(v->type), 8); }

size_t dicom_room(const struct volume *v)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < v->slices; i++) most = most > v->files[i].pixels_n ? most : v->files[i].pixels_n;
    return 2 * plane_room(v) + (size_t)align_up(most, 8);
}

static int read_pixels(const struct dicom_slice *f, uint8_t *to, struct error *e)
{
    int fd = file_open(f->path, NULL, e);
    if (fd < 0) return e->code;
    int rc = fd_read_at(fd, f->pixels, to, (size_t)f->pixels_n, e);
    close(fd);
    return rc;
}

/* The view may mirror rows and columns, and exchange them. */
static void turn(const struct volume *v, const uint8_t *from, uint8_t *to)
{
    const size_t voxel = v->channels * plane_type_bytes(v->type);
    const bool swap = v->view.axis[0] == 1;
    for (uint32_t y = 0; y < v->h; y++)
        for (uint32_t x = 0; x < v->w; x++) {
            const uint32_t column = v->view.flip[0] ? v->w - 1 - x : x, row = v->view.flip[1] ? v->h - 1 - y : y;
            memcpy(to + ((size_t)y * v->w + x) * voxel, from + (swap ? (size_t)column * v->h + row : (size_t)row * v->w + column) * voxel, voxel);
        }
}

int dicom_read(const struct volume *v, uint32_t slice, void *to, size_t room, struct plane *out, struct error *e)
{
    const struct dicom_slice *f = &v->files[v->view.flip[2] ? v->slices - 1 - slice : slice];
    uint8_t *raw = (uint8_t *)to + plane_room(v), *file = raw + plane_room(v);
    struct dicom_header h;
    CHECK(room >= dicom_room(v), "a slice of %ux%u voxels in %zu bytes", v->w, v->h, room);
    if (parse_file(f->path, &h, e)) return error_prepend(e, "%s", base_name(f->path));
    if (h.columns != v->dims[0] || h.rows != v->dims[1] || h.pixels != f->pixels || h.pixels_n != f->pixels_n || dicom_decoded_bytes(&h) != (size_t)v->w * v->h * v->channels * plane_type_bytes(v->type))
        return error_set(e, PL_USAGE, "%s has changed since it was opened", base_name(f->path));
    if (read_pixels(f, file, e) || dicom_decode(&h, file, raw, e)) return error_prepend(e, "%s", base_name(f->path));
    turn(v, raw, to);
    *out = (struct plane){.h = v->h, .w = v->w, .channels = v->channels, .type = v->type, .slope = f->slope, .inter = f->inter, .at = to};
    return PL_OK;
}
