/*
 * nifti_write.c: label volumes (see nifti.h).
 *
 * The voxels are written into a file beside the path, at their positions: it is as large as the
 * volume and sparse where there are no labels. Its end compresses it, or renames it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/volumes/nifti.h"
#include "io/file.h"
#include "io/gunzip.h"
#include "io/temporary.h"

struct nifti_writer {
    const struct volume *like;
    char *path;
    struct temporary to; /* the voxels */
    uint32_t bytes;    /* of a label */
    bool packed;
    bool swapped;      /* as the header that was copied */
    uint64_t offset;
    uint8_t *plane;    /* [the higher axis][the lower axis] of a slice */
};

/* --- the header ------------------------------------------------------------------------------- */

static void put(uint8_t *head, size_t at, const void *value, size_t bytes, bool swapped)
{
    const uint8_t *from = value;
    for (size_t i = 0; i < bytes; i++) head[at + i] = from[swapped ? bytes - 1 - i : i];
}

static void put_short(uint8_t *head, size_t at, int16_t v, bool swapped) { put(head, at, &v, sizeof v, swapped); }
static void put_float(uint8_t *head, size_t at, float v, bool swapped) { put(head, at, &v, sizeof v, swapped); }

/* The same header, of a volume of labels: three dimensions, another type, no scaling, no
 * extensions. */
static void change_header(const struct nifti_writer *w, uint8_t *head, bool second)
{
    const int16_t type = w->bytes == 1 ? 2 : 512, bits = (int16_t)(8 * w->bytes);
    put_short(head, second ? 12 : 70, type, w->swapped);
    put_short(head, second ? 14 : 72, bits, w->swapped);
    for (int i = 0; i < 8; i++) {
        const int64_t d = i == 0 ? 3 : i <= 3 ? (int64_t)w->like->dims[i - 1] : 1;
        if (second) put(head, 16 + 8 * (size_t)i, &d, sizeof d, w->swapped);
        else put_short(head, 40 + 2 * (size_t)i, (int16_t)d, w->swapped);
    }
    if (second) {
        const double reals[] = {1, 0, 0, 0}; /* slope, inter, cal_max, cal_min */
        const int64_t offset = (int64_t)w->offset;
        put(head, 168, &offset, sizeof offset, w->swapped);
        for (size_t i = 0; i < COUNT(reals); i++) put(head, 176 + 8 * i, &reals[i], sizeof reals[i], w->swapped);
    } else {
        put_float(head, 108, (float)w->offset, w->swapped);
        put_float(head, 112, 1, w->swapped);
        put_float(head, 116, 0, w->swapped);
        put_float(head, 124, 0, w->swapped);
        put_float(head, 128, 0, w->swapped);
    }
}

/* Of a DICOM series, or of the pages of a TIFF: NIfTI-1 with the affine map as sform. */
static void make_header(const struct nifti_writer *w, uint8_t *head)
{
    const struct volume *v = w->like;
    const int32_t size = 348;
    memset(head, 0, NIFTI_HEAD);
    memcpy(head, &size, sizeof size);
    memcpy(head + 344, "n+1", 4);
    put_float(head, 76, 1, false);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            if (v->view.axis[k] == i) put_float(head, 80 + 4 * (size_t)i, (float)v->spacing[k], false);
    head[123] = 2; /* mm */
    put_short(head, 254, 1, false);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++) put_float(head, 280 + 4 * (size_t)(4 * i + k), (float)v->affine[i][k], false);
}

static int write_header(struct nifti_writer *w, struct error *e)
{
    uint8_t head[NIFTI_HEAD] = {0};
    const bool copied = w->like->kind == VOLUME_NIFTI;
    if (copied) file_peek(w->like->data, head, sizeof head);
    else make_header(w, head);
    w->swapped = copied && w->like->swapped;
    const bool second = copied && !memcmp(head + 4, "n+2", 3);
    w->offset = second ? 544 : 352;
    memset(head + (second ? 540 : 348), 0, 4); /* no extensions */
    change_header(w, head, second);
    const uint64_t voxels = (uint64_t)w->like->dims[0] * w->like->dims[1] * w->like->dims[2];
    if (fd_write(w->to.fd, head, w->offset) || ftruncate(w->to.fd, (off_t)(w->offset + voxels * w->bytes)))
        return file_error(w->path, "write", e);
    return PL_OK;
}

/* --- slices ----------------------------------------------------------------------------------- */

int nifti_write_begin(struct nifti_writer **out, const char *path, const struct volume *like, uint32_t largest,
                      struct error *e)
{
    struct nifti_writer *w = *out = mem_alloc(sizeof *w);
    *w = (struct nifti_writer){.like = like,
                               .path = mem_string(path),
                               .to = {.fd = -1},
                               .bytes = largest > 255 ? 2 : 1,
                               .packed = path_has_ending(path, ".gz")};
    int rc = PL_OK;
    for (int i = 0; i < 3; i++)
        if (like->dims[i] > INT16_MAX)
            rc = error_set(e, PL_USAGE,
                           "%s: the volume has %u voxels along an axis; a NIfTI file of version 1 has at most %d", path,
                           like->dims[i], INT16_MAX);
    if (!rc) {
        rc = temporary_file(&w->to, path, e);
        if (!rc) rc = write_header(w, e);
    }
    w->plane = mem_alloc((size_t)like->w * like->h * w->bytes);
    if (!rc) return PL_OK;
    struct error first = *e;
    nifti_write_end(w, true, e);
    *e = first;
    *out = NULL;
    return rc;
}

static int write_at(const struct nifti_writer *w, uint64_t voxel, const uint8_t *from, size_t n, struct error *e)
{
    for (size_t done = 0; done < n * w->bytes;) {
        ssize_t got = pwrite(w->to.fd, from + done, n * w->bytes - done, (off_t)(w->offset + voxel * w->bytes + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return file_error(w->path, "write", e);
        done += (size_t)got;
    }
    return PL_OK;
}

/* Runs along the first axis of the array; along that axis itself voxel by voxel, those with a
 * label. */
static int write_plane(const struct nifti_writer *w, uint32_t slice, struct error *e)
{
    const struct volume *v = w->like;
    const uint64_t row = v->dims[0], plane = row * v->dims[1];
    const uint8_t axis = v->view.axis[2];
    if (axis == 2) return write_at(w, slice * plane, w->plane, (size_t)plane, e);
    for (uint64_t k = 0; k < v->dims[2]; k++) {
        if (axis == 1 && write_at(w, k * plane + slice * row, w->plane + k * row * w->bytes, (size_t)row, e))
            return e->code;
        for (uint64_t j = 0; j < v->dims[1] && axis == 0; j++) {
            const uint8_t *label = w->plane + (k * v->dims[1] + j) * w->bytes;
            if ((label[0] || label[w->bytes - 1]) && write_at(w, k * plane + j * row + slice, label, 1, e))
                return e->code;
        }
    }
    return PL_OK;
}

int nifti_write_slice(struct nifti_writer *w, uint32_t slice, const uint16_t *labels, struct error *e)
{
    const struct volume *v = w->like;
    for (uint32_t y = 0; y < v->h; y++)
        for (uint32_t x = 0; x < v->w; x++) {
            const uint16_t label = labels[(size_t)y * v->w + x];
            uint8_t *to = w->plane + nifti_raw_index(v, x, y) * w->bytes;
            if (w->bytes == 1) *to = (uint8_t)label;
            else put(to, 0, &label, sizeof label, w->swapped);
        }
    return write_plane(w, nifti_raw_slice(v, slice), e);
}

/* --- the end ---------------------------------------------------------------------------------- */

static int compress(struct nifti_writer *w, struct error *e)
{
    struct temporary packed;
    int rc = temporary_file(&packed, w->path, e);
    if (rc) return rc;
    rc = lseek(w->to.fd, 0, SEEK_SET) ? file_error(w->path, "read", e) : gzip(w->to.fd, packed.fd, e);
    if (!rc) return temporary_keep(&packed, w->path, true, e);
    temporary_drop(&packed);
    return rc;
}

int nifti_write_end(struct nifti_writer *w, bool failed, struct error *e)
{
    int rc = PL_OK;
    if (!failed) rc = w->packed ? compress(w, e) : temporary_keep(&w->to, w->path, true, e);
    temporary_drop(&w->to);
    mem_free(w->path);
    mem_free(w->plane);
    mem_free(w);
    return rc;
}
