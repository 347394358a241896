/*
 * nifti.c: see nifti.h.
 *
 *   NIfTI-1  348 bytes: 16-bit dimensions, 32-bit floats;  NIfTI-2  540 bytes: 64-bit dimensions
 *                                                                   and floats
 *
 * A slice is read by its runs of neighbouring voxels: along the third axis it is one run, along the
 * second one run per k, along the first one voxel of every row, and the rows are read in blocks.
 */
#include "data/volumes/nifti.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/file.h"
#include "io/gunzip.h"
#include "io/temporary.h"

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
/* Returns the offsets of the two versions, of element i of an array. */
static int64_t dim(const struct fields *f, int i)
{
    return f->second ? int_at(f, 16 + 8 * (size_t)i, 8) : int_at(f, 40 + 2 * (size_t)i, 2);
}
static double pixdim(const struct fields *f, int i)
{
    return f->second ? real_at(f, 104 + 8 * (size_t)i) : real_at(f, 76 + 4 * (size_t)i);
}
/* Returns a number of the quaternion: b c d, then the offsets. */
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
    return error_set(e, PL_USAGE,
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

/* Computes the rotation of a unit quaternion, NIfTI's method 2. */
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

/* Finds the affine map as nibabel does: sform before qform; neither: the voxel size, columns to
 * the left of the patient, the origin in the middle. */
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

/* Reads the slice as [the higher axis][the lower axis] of the array. */
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

/* Returns the position of pixel x, y of the view in a slice of the array, which is [the higher
 * axis][the lower axis]. */
static size_t nifti_raw_index(const struct volume *v, uint32_t x, uint32_t y)
{
    const uint32_t column = v->view.flip[0] ? v->w - 1 - x : x, row = v->view.flip[1] ? v->h - 1 - y : y;
    return v->view.axis[0] < v->view.axis[1] ? (size_t)row * v->w + column : (size_t)column * v->h + row;
}

/* Returns the position of a slice of the view in the array. */
static uint32_t nifti_raw_slice(const struct volume *v, uint32_t slice)
{
    return v->view.flip[2] ? v->slices - 1 - slice : slice;
}

/* Copies voxels in the order of the view. The compiler makes a loop of each size. */
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
    *out = (struct plane){
        .h = v->h, .w = v->w, .channels = v->channels, .type = v->type, .slope = v->slope, .inter = v->inter, .at = to};
    if (!as_stored) turn_all(v, raw, to);
    if (v->swapped) plane_swap_bytes(out);
    return PL_OK;
}

/* ---- The cache of decompressed volumes ---- */

static const uint64_t kept_free = 1ull << 30;

static int find_folder(const char *given, struct text *out, struct error *e)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (given && *given) text_printf(out, "%s", given);
    else if (base && *base) text_printf(out, "%s/plimsoll/volumes", base);
    else if (home && *home) text_printf(out, "%s/.cache/plimsoll/volumes", home);
    else
        return error_set(e, PL_FAIL,
                         "there is no folder for decompressed volumes: set data.volume_cache, or XDG_CACHE_HOME");
    return dir_make(out->at, e);
}

int volume_cache_path(const char *volume, const char *folder, const char *ending, struct text *out, struct error *e)
{
    struct stat s;
    char *full = realpath(volume, NULL);
    if (!full || stat(full, &s)) return free(full), file_error(volume, "open", e);
    const int64_t facts[] = {s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
    const uint64_t hash = hash_bytes(facts, sizeof facts, hash_bytes(full, strlen(full), 0));
    const char *base = strrchr(full, '/') + 1;
    int rc = find_folder(folder, out, e);
    if (!rc) text_printf(out, "/%016llx-%.120s%s", (unsigned long long)hash, base, ending);
    free(full);
    return rc;
}

static int check_disk(const char *path, uint64_t bytes, struct error *e)
{
    uint64_t left;
    char need[32], has[32];
    if (disk_free(path, &left, e)) return e->code;
    if (left >= bytes + kept_free) return PL_OK;
    return error_set(e, PL_FAIL, "it is decompressed to %s, which needs %s and 1 GiB more: the disk has %s free; set "
                     "data.volume_cache to a folder of another disk",
                     path, size_print(bytes, need), size_print(left, has));
}

static int decompress(int from, int to, uint64_t bytes, struct error *e)
{
    struct gunzip_report r;
    if (gunzip_at_most(from, to, bytes, &r, e)) return e->code;
    if (r.out < bytes)
        return error_set(e, PL_USAGE, "its header describes %llu bytes, and it has %llu%s%s", (unsigned long long)bytes,
                         (unsigned long long)r.out, r.damaged ? ": " : "", r.reason);
    if (r.damaged) return error_set(e, PL_USAGE, "it cannot be decompressed: %s", r.reason);
    return PL_OK;
}

int volume_cache_gunzip(const char *from, const char *to, uint64_t bytes, struct error *e)
{
    uint64_t have, packed;
    struct error ignored;
    if (file_exists(to) && !file_size(to, &have, &ignored) && have == bytes) return PL_OK;
    int fd = file_open(from, &packed, e);
    if (fd < 0) return e->code;
    int rc = bytes / 1032 > packed
                 ? error_set(e, PL_USAGE, "its header describes %llu bytes, more than %llu compressed bytes can hold",
                             (unsigned long long)bytes, (unsigned long long)packed)
                 : check_disk(to, bytes, e);
    struct temporary t = {.fd = -1};
    if (!rc) rc = temporary_file(&t, to, e);
    if (!rc) rc = decompress(fd, t.fd, bytes, e);
    if (!rc) rc = temporary_keep(&t, to, false, e);
    temporary_drop(&t);
    close(fd);
    return rc;
}

/* ---- Writing ----
 *
 * label volumes (see nifti.h).
 *
 * The voxels are written into a file beside the path, at their positions: it is as large as the
 * volume and sparse where there are no labels. Its end compresses it, or renames it.
 */

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

/* Changes the header to that of a volume of labels: three dimensions, another type, no scaling, no
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

/* Makes the header for a DICOM series, or for the pages of a TIFF: NIfTI-1 with the affine map as
 * sform. */
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
    *w = (struct nifti_writer){.like = like, .path = mem_string(path), .to = {.fd = -1},
                               .bytes = largest > 255 ? 2 : 1, .packed = path_has_ending(path, ".gz")};
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

/* Writes runs along the first axis of the array; along that axis itself voxel by voxel, those with
 * a label. */
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
    TRY(temporary_file(&packed, w->path, e));
    int rc = lseek(w->to.fd, 0, SEEK_SET) ? file_error(w->path, "read", e) : gzip(w->to.fd, packed.fd, e);
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
