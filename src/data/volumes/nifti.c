/*
 * nifti.c: see nifti.h.
 *
 *     NIfTI-1  348 bytes: 16-bit dimensions, 32-bit floats;     NIfTI-2  540 bytes: 64-bit dimensions and floats
 *
 * A slice is read by its runs of neighbouring voxels: along the third axis it is one run, along the
 * second one run per k, along the first one voxel of every row, and the rows are read in blocks.
 */
#include "data/volumes/nifti.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "data/volumes/volume_cache.h"
#include "io/file.h"
#include "io/gunzip.h"

enum { BLOCK = 256 << 10 }; /* bytes of rows that are read at once for slices along the first axis */

/* --- the header ------------------------------------------------------------------------------- */

/* Fields of a header at their offsets, in the file's byte order. */
struct fields {
    const uint8_t *at;
    bool swapped, second; /* second: NIfTI-2 */
};

static uint64_t unsigned_at(const struct fields *f, size_t at, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++) v |= (uint64_t)f->at[at + (f->swapped ? bytes - 1 - i : i)] << (8 * i);
    return v;
}
static int64_t int_at(const struct fields *f, size_t at, size_t bytes)
{
    const uint64_t v = unsigned_at(f, at, bytes);
    return bytes == 2 ? (int16_t)v : bytes == 4 ? (int32_t)v : (int64_t)v;
}
static double real_at(const struct fields *f, size_t at)
{
    const uint64_t bits = unsigned_at(f, at, f->second ? 8 : 4);
    const uint32_t narrow = (uint32_t)bits;
    float single;
    double wide;
    memcpy(&single, &narrow, sizeof single);
    memcpy(&wide, &bits, sizeof wide);
    return f->second ? wide : single;
}
/* Offsets of the two versions, of element i of an array. */
static int64_t dim(const struct fields *f, int i)
{
    return f->second ? int_at(f, 16 + 8 * (size_t)i, 8) : int_at(f, 40 + 2 * (size_t)i, 2);
}
static double pixdim(const struct fields *f, int i)
{
    return f->second ? real_at(f, 104 + 8 * (size_t)i) : real_at(f, 76 + 4 * (size_t)i);
}
/* b c d, then the offsets */
static double quatern(const struct fields *f, int i)
{
    return f->second ? real_at(f, 352 + 8 * (size_t)i) : real_at(f, 256 + 4 * (size_t)i);
}
static double srow(const struct fields *f, int r, int c)
{
    return f->second ? real_at(f, 400 + 8 * (size_t)(4 * r + c)) : real_at(f, 280 + 4 * (size_t)(4 * r + c));
}

static int find_version(struct fields *f, const void *bytes, size_t n, struct error *e)
{
    *f = (struct fields){.at = bytes};
    if (n < 348) return error_set(e, PL_USAGE, "it has %zu bytes, less than a NIfTI header", n);
    for (int swapped = 0; swapped < 2; swapped++) {
        f->swapped = swapped;
        const uint64_t size = unsigned_at(f, 0, 4);
        f->second = size == 540;
        if (size != 348 && size != 540) continue;
        if (f->second && n < 540) return error_set(e, PL_USAGE, "it has %zu bytes, less than a NIfTI-2 header", n);
        const uint8_t *magic = f->at + (f->second ? 4 : 344);
        if (!memcmp(magic, "ni1", 3) || !memcmp(magic, "ni2", 3))
            return error_set(e, PL_USAGE,
                             "it is the header of a pair .hdr and .img: convert it to one file, such as with nibabel: "
                             "nibabel.save(nibabel.load(\"a.hdr\"), \"a.nii.gz\")");
        if (memcmp(magic, f->second ? "n+2" : "n+1", 3)) break;
        return PL_OK;
    }
    return error_set(e, PL_USAGE, "it is not a NIfTI file: neither the size of its header nor its magic bytes fit");
}

static int find_type(const struct fields *f, struct nifti_header *h, struct error *e)
{
    static const struct {
        int code;
        enum plane_type type;
    } types[] = {{2, PLANE_U8},    {4, PLANE_I16},    {8, PLANE_I32},   {16, PLANE_F32},
                 {64, PLANE_F64},  {128, PLANE_U8},   {256, PLANE_I8},  {512, PLANE_U16},
                 {768, PLANE_U32}, {1024, PLANE_I64}, {1280, PLANE_U64}};
    const int64_t code = int_at(f, f->second ? 12 : 70, 2), bits = int_at(f, f->second ? 14 : 72, 2);
    h->channels = code == 128 ? 3 : 1;
    for (size_t i = 0; i < COUNT(types); i++) {
        if (types[i].code != code) continue;
        h->type = types[i].type;
        if (bits == (int64_t)(8 * h->channels * plane_type_bytes(h->type))) return PL_OK;
        return error_set(e, PL_USAGE, "its header says voxels of type %s and of %lld bits", plane_type_name(h->type),
                         (long long)bits);
    }
    return error_set(
        e, PL_USAGE,
        "its voxels are of NIfTI's type %lld; expected integers of 8 to 64 bits, float32, float64 or RGB24",
        (long long)code);
}

static int find_dims(const struct fields *f, struct nifti_header *h, struct error *e)
{
    const int64_t n = dim(f, 0);
    uint64_t voxels = 1;
    if (n < 1 || n > 7) return error_set(e, PL_USAGE, "its header says %lld dimensions; expected 3", (long long)n);
    for (int i = 1; i <= 7; i++) {
        const int64_t d = i <= n ? dim(f, i) : 1;
        if (d < 1 || d > INT32_MAX)
            return error_set(e, PL_USAGE, "its header says %lld voxels along dimension %d", (long long)d, i);
        if (i > 4 && d > 1)
            return error_set(e, PL_USAGE,
                             "it has %lld dimensions, with %lld along dimension %d; expected 3, or 4 with modalities",
                             (long long)n, (long long)d, i);
        if (i <= 3) h->dims[i - 1] = (uint32_t)d;
        if (i == 4) h->modalities = (uint32_t)d;
        voxels *= (uint64_t)d;
        if (voxels > (uint64_t)1 << 40) return error_set(e, PL_USAGE, "its header says more than 2^40 voxels");
    }
    h->bytes = h->offset + voxels * h->channels * plane_type_bytes(h->type);
    return PL_OK;
}

/* The rotation of a unit quaternion, NIfTI's method 2. */
static void from_quaternion(const struct fields *f, double to[3][4])
{
    double b = quatern(f, 0), c = quatern(f, 1), d = quatern(f, 2), s = b * b + c * c + d * d,
           a = s < 1 ? sqrt(1 - s) : 0;
    const double length = sqrt(a * a + s);
    if (s >= 1) a /= length, b /= length, c /= length, d /= length;
    const double r[3][3] = {{a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)},
                            {2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)},
                            {2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - c * c - b * b}};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) to[i][k] = r[i][k] * pixdim(f, 1 + k) * (k == 2 && pixdim(f, 0) < 0 ? -1 : 1);
        to[i][3] = quatern(f, 3 + i);
    }
}

/* As nibabel: sform before qform; neither: the voxel size, columns to the left of the patient, the
 * origin in the middle. */
static void find_affine(const struct fields *f, struct nifti_header *h)
{
    const int64_t qform = f->second ? int_at(f, 344, 4) : int_at(f, 252, 2),
                  sform = f->second ? int_at(f, 348, 4) : int_at(f, 254, 2);
    memset(h->affine, 0, sizeof h->affine);
    h->placed = sform > 0 || qform > 0;
    if (sform > 0) {
        for (int r = 0; r < 3; r++)
            for (int c = 0; c < 4; c++) h->affine[r][c] = srow(f, r, c);
    } else if (qform > 0) {
        from_quaternion(f, h->affine);
    } else {
        for (int i = 0; i < 3; i++) {
            h->affine[i][i] = (i ? 1 : -1) * pixdim(f, 1 + i);
            h->affine[i][3] = -h->affine[i][i] * (h->dims[i] - 1) / 2;
        }
    }
}

int nifti_parse(struct nifti_header *h, const void *bytes, size_t n, struct error *e)
{
    struct fields f;
    *h = (struct nifti_header){0};
    if (find_version(&f, bytes, n, e) || find_type(&f, h, e)) return e->code;
    h->swapped = f.swapped;
    const double offset = f.second ? (double)int_at(&f, 168, 8) : real_at(&f, 108);
    if (!(offset >= (f.second ? 540 : 348)) || offset > 1 << 30 || offset != floor(offset))
        return error_set(e, PL_USAGE, "its header says that the voxels begin at byte %g", offset);
    h->offset = (uint64_t)offset;
    if (find_dims(&f, h, e)) return e->code;
    h->slope = real_at(&f, f.second ? 176 : 112);
    h->inter = real_at(&f, f.second ? 184 : 116);
    if (h->slope == 0 || !isfinite(h->slope) || !isfinite(h->inter) || h->channels == 3) h->slope = 1, h->inter = 0;
    find_affine(&f, h);
    return PL_OK;
}

/* --- a volume --------------------------------------------------------------------------------- */

static size_t voxel_bytes(const struct volume *v) { return v->channels * plane_type_bytes(v->type); }
static uint64_t array_bytes(const struct volume *v)
{
    return (uint64_t)v->dims[0] * v->dims[1] * v->dims[2] * voxel_bytes(v);
}

int nifti_open(struct volume *v, struct error *e)
{
    uint8_t head[NIFTI_HEAD];
    struct nifti_header h;
    uint64_t have;
    int fd = file_open(v->path, &have, e);
    if (fd < 0) return e->code;
    close(fd);
    size_t n = file_peek(v->path, head, sizeof head);
    const bool packed = n >= 2 && head[0] == 0x1f && head[1] == 0x8b;
    if (packed) n = gunzip_peek(v->path, head, sizeof head);
    if (nifti_parse(&h, head, n, e)) return e->code;
    if (!packed && have < h.bytes)
        return error_set(e, PL_USAGE, "its header describes %llu bytes, and it has %llu", (unsigned long long)h.bytes,
                         (unsigned long long)have);
    if (!packed) v->data = mem_string(v->path);
    v->offset = h.offset, v->placed = h.placed;
    memcpy(v->dims, h.dims, sizeof v->dims);
    memcpy(v->affine, h.affine, sizeof v->affine);
    v->modalities = h.modalities, v->channels = h.channels, v->type = h.type, v->swapped = h.swapped,
    v->slope = h.slope, v->inter = h.inter;
    return PL_OK;
}

int nifti_unpack(struct volume *v, const struct volume_options *o, struct error *e)
{
    struct text path = {0};
    if (v->data) return PL_OK;
    int rc = volume_cache_path(v->path, o->cache, ".nii", &path, e);
    if (!rc) rc = volume_cache_gunzip(v->path, path.at, v->offset + v->modalities * array_bytes(v), e);
    v->data = path.at;
    return rc;
}

/* --- a slice ---------------------------------------------------------------------------------- */

static size_t slice_bytes(const struct volume *v)
{
    return (size_t)align_up((uint64_t)v->w * v->h * voxel_bytes(v), 8);
}

size_t nifti_room(const struct volume *v)
{
    const size_t row = (size_t)v->dims[0] * voxel_bytes(v);
    return 2 * slice_bytes(v) + (v->view.axis[2] == 0 ? row + BLOCK : 0);
}

/* Takes voxel `slice` of each row, reading the rows in blocks. */
static int gather(const struct volume *v, int fd, uint64_t at, uint32_t slice, uint8_t *to, uint8_t *block,
                  struct error *e)
{
    const size_t voxel = voxel_bytes(v), row = v->dims[0] * voxel;
    const uint64_t rows = (uint64_t)v->dims[1] * v->dims[2], once = BLOCK / row + 1;
    for (uint64_t r = 0; r < rows; r += once) {
        const uint64_t n = min_u64(once, rows - r);
        if (fd_read_at(fd, at + r * row, block, (size_t)n * row, e)) return e->code;
        for (uint64_t i = 0; i < n; i++) memcpy(to + (r + i) * voxel, block + i * row + slice * voxel, voxel);
    }
    return PL_OK;
}

/* The slice as [the higher axis][the lower axis] of the array. */
static int read_raw(const struct volume *v, int fd, uint64_t at, uint32_t slice, uint8_t *to, uint8_t *block,
                    struct error *e)
{
    const size_t row = v->dims[0] * voxel_bytes(v), plane = v->dims[1] * row;
    if (v->view.axis[2] == 2) return fd_read_at(fd, at + slice * (uint64_t)plane, to, plane, e);
    if (v->view.axis[2] == 0) return gather(v, fd, at, slice, to, block, e);
    for (uint32_t k = 0; k < v->dims[2]; k++)
        if (fd_read_at(fd, at + (uint64_t)k * plane + slice * (uint64_t)row, to + k * row, row, e)) return e->code;
    return PL_OK;
}

size_t nifti_raw_index(const struct volume *v, uint32_t x, uint32_t y)
{
    const uint32_t column = v->view.flip[0] ? v->w - 1 - x : x, row = v->view.flip[1] ? v->h - 1 - y : y;
    return v->view.axis[0] < v->view.axis[1] ? (size_t)row * v->w + column : (size_t)column * v->h + row;
}

uint32_t nifti_raw_slice(const struct volume *v, uint32_t slice)
{
    return v->view.flip[2] ? v->slices - 1 - slice : slice;
}

/* Voxels in the order of the view. The compiler makes a loop of each size. */
static inline void turn(const struct volume *v, const uint8_t *from, uint8_t *to, size_t voxel)
{
    for (uint32_t y = 0; y < v->h; y++)
        for (uint32_t x = 0; x < v->w; x++)
            memcpy(to + ((size_t)y * v->w + x) * voxel, from + nifti_raw_index(v, x, y) * voxel, voxel);
}

static void turn_all(const struct volume *v, const uint8_t *from, uint8_t *to)
{
    switch (voxel_bytes(v)) {
    case 1: turn(v, from, to, 1); break;
    case 2: turn(v, from, to, 2); break;
    case 4: turn(v, from, to, 4); break;
    default: turn(v, from, to, voxel_bytes(v)); break;
    }
}

int nifti_read(const struct volume *v, uint32_t slice, uint32_t modality, void *to, size_t room, struct plane *out,
               struct error *e)
{
    const size_t bytes = slice_bytes(v);
    const bool as_stored = v->view.axis[0] < v->view.axis[1] && !v->view.flip[0] && !v->view.flip[1];
    uint8_t *raw = (uint8_t *)to + (as_stored ? 0 : bytes);
    CHECK(room >= nifti_room(v), "a slice of %ux%u voxels in %zu bytes", v->w, v->h, room);
    int fd = file_open(v->data, NULL, e);
    if (fd < 0) return e->code;
    int rc = read_raw(v, fd, v->offset + modality * array_bytes(v), nifti_raw_slice(v, slice), raw,
                      (uint8_t *)to + 2 * bytes, e);
    close(fd);
    if (rc) return rc;
    *out = (struct plane){.h = v->h, .w = v->w, .channels = v->channels, .type = v->type, .slope = v->slope, .inter = v->inter, .at = to};
    if (!as_stored) turn_all(v, raw, to);
    if (v->swapped) plane_swap_bytes(out);
    return PL_OK;
}
