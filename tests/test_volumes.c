/*
 * test_volumes.c: volumes (src/data/volumes) against what nibabel, tifffile, pydicom and SimpleITK
 * read: tests/golden/volumes and tests/golden/scans, which make_volumes.py and make_scans.py there
 * document. Then labels on images, what is refused, windows, memory, and volumes that are written.
 */
#include <fcntl.h>
#include "data/dataset.h"
#include "data/images/image.h"
#include "data/volumes/dicom.h"
#include "data/volumes/nifti.h"
#include "data/volumes/volume.h"
#include "io/file.h"
#include "io/gunzip.h"
#include "io/png.h"
#include "io/safetensors.h"

#include "harness.h"

#define GOLDEN "tests/golden/volumes/"
#define SCANS "tests/golden/scans/"
static const char *const axes[] = {"axial", "coronal", "sagittal"};
static struct st_file expected; /* of one of both folders */

static double *read_entry(const char *name, const struct st_entry **out)
{
    struct error e;
    const struct st_entry *t = st_find(&expected, name);
    if (!t) fail_msg("expected.safetensors has no %s", name);
    char *raw = mem_alloc(t->bytes);
    double *to = mem_alloc((size_t)t->elements * sizeof *to);
    if (st_read(&expected, t, 0, t->bytes, raw, &e)) fail_msg("%s", e.text);
    const bool narrow = t->bytes == 4 * (uint64_t)t->elements;
    for (int64_t i = 0; i < t->elements; i++)
        to[i] = narrow ? (double)((float *)(void *)raw)[i] : ((double *)(void *)raw)[i];
    mem_free(raw);
    *out = t;
    return to;
}

/* "FILE|axial|0" */
static void compare(const char *golden, const char *name)
{
    char file[128], axis[16], spacing[160], path[256];
    unsigned modality;
    struct volume v;
    struct error e;
    const struct st_entry *t, *s;
    if (sscanf(name, "%127[^|]|%15[^|]|%u", file, axis, &modality) != 3) return;
    int a = 0;
    while (strcmp(axes[a], axis)) a++;
    snprintf(path, sizeof path, "%s%s", golden, file);
    snprintf(spacing, sizeof spacing, "%s|%s|spacing", file, axis);
    if (!tiff_version() && strstr(file, ".tif")) return;
    if (volume_open(&v, path, &(struct volume_options){.axis = (enum volume_axis)a}, &e))
        fail_msg("%s: %s", path, e.text);
    double *want = read_entry(name, &t), *mm = read_entry(spacing, &s);
    assert_int_equal(v.slices, t->dims[0]);
    assert_int_equal(v.h, t->dims[1]);
    assert_int_equal(v.w, t->dims[2]);
    assert_int_equal(v.channels, t->rank == 4 ? 3 : 1);
    for (int i = 0; i < 3; i++)
        if (fabs(v.spacing[i] - mm[i]) > 1e-5 * mm[i])
            fail_msg("%s: spacing %d is %g, expected %g", name, i, v.spacing[i], mm[i]);
    const size_t room = volume_room(&v, false), n = (size_t)v.w * v.h * v.channels;
    void *memory = mem_alloc(room);
    for (uint32_t k = 0; k < v.slices; k++) {
        struct plane p;
        if (volume_read(&v, k, modality, false, memory, room, &p, &e)) {
            if (strstr(e.text, "no OpenJPEG")) break;
            fail_msg("%s: %s", name, e.text);
        }
        for (size_t i = 0; i < n; i++)
            if (plane_value(&p, i) != want[k * n + i])
                fail_msg("%s: slice %u, value %zu is %g, expected %g", name, k, i, plane_value(&p, i), want[k * n + i]);
    }
    mem_free(memory);
    mem_free(want);
    mem_free(mm);
    volume_close(&v);
}

static void compare_all(const char *golden, uint32_t least)
{
    char path[256];
    struct error e;
    snprintf(path, sizeof path, "%sexpected.safetensors", golden);
    if (st_open(path, &expected, &e)) fail_msg("%s", e.text);
    for (uint32_t i = 0; i < expected.n_entries; i++) compare(golden, expected.entries[i].name);
    assert_true(expected.n_entries > least);
    st_close(&expected);
}

TEST(test_golden)
{
    compare_all(GOLDEN, 100);
    compare_all(SCANS, 30);
}

/* The numbers of a palette of one bit are labels 0 and 1. */
TEST(test_palette)
{
    struct volume v;
    struct plane p;
    struct error e;
    const struct st_entry *t;
    int bytes;
    if (!tiff_version()) skip();
    if (st_open(SCANS "expected.safetensors", &expected, &e) ||
        volume_open(&v, SCANS "palette1.tif", &(struct volume_options){0}, &e))
        fail_msg("%s", e.text);
    double *want = read_entry("palette1.tif|numbers", &t);
    const size_t room = volume_room(&v, true);
    void *memory = mem_alloc(room);
    if (volume_read(&v, 0, 0, true, memory, room, &p, &e) || plane_to_labels(&p, &bytes, &e)) fail_msg("%s", e.text);
    assert_int_equal(t->elements, (int64_t)p.w * p.h);
    for (int64_t i = 0; i < t->elements; i++) assert_int_equal(((uint8_t *)p.at)[i], (int)want[i]);
    mem_free(memory);
    mem_free(want);
    volume_close(&v);
    st_close(&expected);
}

/* --- labels on images ------------------------------------------------------------------------- */

/* Labels in another orientation, laid on an image, are those that have its orientation, in every
 * slice. */
static void lies_on(const char *image, const char *labels, const char *same, enum volume_axis axis)
{
    struct volume of, like, v;
    struct error e;
    const struct volume_options o = {.axis = axis};
    if (volume_open(&of, image, &o, &e) || volume_open(&v, labels, &o, &e) || volume_open(&like, same, &o, &e))
        fail_msg("%s", e.text);
    if (volume_lay_on(&v, &of, &e) || volume_lay_on(&like, &of, &e)) fail_msg("%s on %s: %s", labels, image, e.text);
    const size_t n = (size_t)of.w * of.h, room = volume_room(&v, true) + volume_room(&like, true);
    void *memory = mem_alloc(room), *again = mem_alloc(room);
    assert_true(v.w == of.w && v.h == of.h && v.slices == of.slices);
    uint64_t labelled = 0;
    for (uint32_t k = 0; k < of.slices; k++) {
        struct plane p, q;
        if (volume_read(&v, k, 0, true, memory, room, &p, &e) || volume_read(&like, k, 0, true, again, room, &q, &e))
            fail_msg("%s", e.text);
        for (size_t i = 0; i < n; i++) {
            labelled += plane_value(&q, i) > 0;
            if (plane_value(&p, i) != plane_value(&q, i))
                fail_msg("%s, %s: voxel %zu of slice %u is %g, expected %g", labels, axes[axis], i, k,
                         plane_value(&p, i), plane_value(&q, i));
        }
    }
    assert_true(labelled > 0);
    mem_free(memory), mem_free(again);
    volume_close(&of), volume_close(&v), volume_close(&like);
}

static void not_on(const char *image, const char *labels, const char *because)
{
    struct volume of, v;
    struct error e;
    if (volume_open(&of, image, &(struct volume_options){0}, &e) ||
        volume_open(&v, labels, &(struct volume_options){0}, &e))
        fail_msg("%s", e.text);
    assert_int_equal(volume_lay_on(&v, &of, &e), PL_USAGE);
    if (!strstr(e.text, because)) fail_msg("\"%s\" does not say \"%s\"", e.text, because);
    volume_close(&of), volume_close(&v);
}

TEST(test_labels_on_images)
{
    static const char *const ways[] = {"labels_RAS", "labels_LAS", "labels_PIR", "labels_SLA",
                                       "labels_ASL", "labels_IPR", "unplaced"};
    for (int axis = 0; axis < 3; axis++)
        for (size_t i = 0; i < COUNT(ways); i++) {
            char path[128];
            snprintf(path, sizeof path, SCANS "%s.nii.gz", ways[i]);
            lies_on(GOLDEN "lps.nii.gz", path, GOLDEN "labels.nii.gz", (enum volume_axis)axis);
        }
    lies_on(GOLDEN "series", SCANS "series_labels.nii.gz", GOLDEN "series_labels.nii.gz", AXIS_AXIAL);
    not_on(GOLDEN "lps.nii.gz", SCANS "shifted.nii.gz",
           "it does not lie on the voxels of its image, which by both affine maps run from (-0.50, ");
    not_on(GOLDEN "lps.nii.gz", GOLDEN "oblique.nii.gz", "it does not lie on the voxels of its image");
    not_on(GOLDEN "lps.nii.gz", GOLDEN "uint8.nii", "it has 5 x 4 x 3 voxels, and its image 7 x 6 x 5");
    if (tiff_version())
        not_on(GOLDEN "lps.nii.gz", GOLDEN "stack_labels.tif", "the pages of a TIFF have no position in the patient");
}

/* --- what is refused -------------------------------------------------------------------------- */

static void refused(const char *path, const char *because)
{
    struct volume v;
    struct error e = {0};
    if (!volume_open(&v, path, &(struct volume_options){0}, &e)) fail_msg("%s is opened", path);
    assert_int_equal(e.code, PL_USAGE);
    if (!strstr(e.text, because)) fail_msg("%s: \"%s\" does not say \"%s\"", path, e.text, because);
    assert_null(strchr(e.text, '\n'));
}

/* What opens, and whose pixels are damaged. */
static void unreadable(const char *path, const char *because)
{
    struct volume v;
    struct plane p;
    struct error e = {0};
    if (volume_open(&v, path, &(struct volume_options){0}, &e)) fail_msg("%s: %s", path, e.text);
    const size_t room = volume_room(&v, false);
    void *memory = mem_alloc(room);
    assert_int_equal(volume_read(&v, 0, 0, false, memory, room, &p, &e), PL_USAGE);
    if (!strstr(e.text, because)) fail_msg("%s: \"%s\" does not say \"%s\"", path, e.text, because);
    mem_free(memory);
    volume_close(&v);
}

/* Writes a golden file with `change` bytes from `at` on, cut to n bytes (0: not cut). */
static char *forged(const char *from, size_t at, const void *change, size_t change_n, size_t n, const char *name)
{
    static char path[512];
    struct error e;
    char *bytes;
    size_t all;
    snprintf(path, sizeof path, GOLDEN "%s", from);
    if (file_read(path, 1 << 24, &bytes, &all, &e)) fail_msg("%s", e.text);
    memcpy(bytes + at, change, change_n);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_write_atomic(path, bytes, n ? n : all, &e)) fail_msg("%s", e.text);
    mem_free(bytes);
    return path;
}

TEST(test_refusals)
{
    const int16_t many = 32767, none = 0, negative = -4, five[8] = {5, 7, 6, 5, 1, 3, 1, 1};
    const float early = 4, half = 352.5f, nan_ = NAN;
    refused(forged("asl.nii", 0, "", 0, 200, "a.nii"), "less than a NIfTI header");
    refused(forged("asl.nii", 0, "", 0, 700, "a.nii"), "its header describes 772 bytes, and it has 700");
    refused(forged("asl.nii", 42, &many, 2, 0, "a.nii"), "its header describes");
    refused(forged("asl.nii", 42, &none, 2, 0, "a.nii"), "0 voxels along dimension 1");
    refused(forged("asl.nii", 44, &negative, 2, 0, "a.nii"), "-4 voxels along dimension 2");
    refused(forged("asl.nii", 40, &many, 2, 0, "a.nii"), "32767 dimensions");
    refused(forged("asl.nii", 40, five, 16, 0, "a.nii"), "5 dimensions");
    refused(forged("asl.nii", 70, &many, 2, 0, "a.nii"), "NIfTI's type 32767");
    refused(forged("asl.nii", 72, &many, 2, 0, "a.nii"), "int16 and of 32767 bits");
    refused(forged("asl.nii", 108, &early, 4, 0, "a.nii"), "begin at byte 4");
    refused(forged("asl.nii", 108, &half, 4, 0, "a.nii"), "begin at byte 352.5");
    refused(forged("asl.nii", 108, &nan_, 4, 0, "a.nii"), "begin at byte nan");
    refused(forged("asl.nii", 344, "ni1", 4, 0, "a.nii"), "pair .hdr and .img");
    refused(forged("asl.nii", 344, "abc", 4, 0, "a.nii"), "not a NIfTI file");
    refused(forged("lps.nii.gz", 0, "", 0, 300, "a.nii.gz"), "and it has");
    refused(forged("lps.nii.gz", 0, "", 0, 12, "a.nii.gz"), "less than a NIfTI header");
    refused(GOLDEN "none.nii", "none.nii");
    if (tiff_version()) {
        refused(forged("grey16.tif", 0, "", 0, 100, "a.tif"), "TIFF");
        refused(forged("grey16.tif", 0, "abcd", 4, 0, "a.tif"), "TIFF cannot be read");
    }
    refused(GOLDEN "series_coronal", "its slices are coronal");
    refused(SCANS "gap",
            "1 slice is missing between slices 2 and 3 (06.dcm and 09.dcm), which are 4 mm apart, and the others 2 mm");
    refused(SCANS "uneven", "its slices are not evenly spaced: slices 2 and 3");
    if (tiff_version()) {
        refused(SCANS "complex64.tif", "the TIFF has complex numbers of 64 bits");
        unreadable(SCANS "missing_strip.tif", "its strip 2 is missing");
        unreadable(SCANS "damaged_g4.tif", "the TIFF cannot be read");
    }
    refused(forged("asl.nii", 0, "", 0, 0, "a.dcm"), "not a DICOM file");
}

/* --- windows ---------------------------------------------------------------------------------- */

TEST(test_windows)
{
    struct volume v;
    struct error e;
    if (volume_open(&v, GOLDEN "lps.nii.gz", &(struct volume_options){0}, &e)) fail_msg("%s", e.text);
    const struct pixel_range window = {.kind = RANGE_WINDOW, .window = {-160, 240}}, full = {.kind = RANGE_FULL},
                             percentiles = {.kind = RANGE_PERCENTILES, .percentiles = {10, 90}};
    assert_int_equal(volume_set_window(&v, 0, &window, &e), PL_OK);
    assert_true(v.window[0] == -160 && v.window[1] == 240);
    const struct volume_channels c = {.at = {&v}};
    const size_t room = volume_rgb_room(&c), plane_room = volume_room(&v, false);
    uint8_t *rgb = mem_alloc(room);
    void *memory = mem_alloc(plane_room);
    struct plane p;
    if (volume_rgb(&c, &window, 2, rgb, room, &e) || volume_read(&v, 2, 0, false, memory, plane_room, &p, &e))
        fail_msg("%s", e.text);
    for (size_t i = 0; i < (size_t)v.w * v.h; i++) {
        const double x = plane_value(&p, i), y = x <= -160 ? 0 : x >= 240 ? 255 : floor((x + 160) / 400 * 255 + 0.5);
        assert_true(rgb[3 * i] == y && rgb[3 * i + 1] == y && rgb[3 * i + 2] == y);
    }
    /* Neighbours: the first slice has none before it. */
    const struct volume_channels three = {.at = {&v, &v, &v}, .step = {-1, 0, 1}};
    uint8_t *more = mem_alloc(room), *next = mem_alloc(room), *first = mem_alloc(room);
    if (volume_rgb(&three, &window, 0, more, room, &e) || volume_rgb(&c, &window, 0, first, room, &e) ||
        volume_rgb(&c, &window, 1, next, room, &e))
        fail_msg("%s", e.text);
    for (size_t i = 0; i < (size_t)v.w * v.h; i++)
        assert_true(more[3 * i] == first[3 * i] && more[3 * i + 1] == first[3 * i] && more[3 * i + 2] == next[3 * i]);
    assert_int_equal(volume_set_window(&v, 0, &full, &e), PL_OK);
    assert_true(v.window[0] >= -1024 && v.window[0] < -900 && v.window[1] > 1400);
    assert_int_equal(volume_set_window(&v, 0, &percentiles, &e), PL_OK);
    assert_true(v.window[0] > -900 && v.window[1] < 1400);
    mem_free(rgb), mem_free(memory), mem_free(more), mem_free(next), mem_free(first);
    volume_close(&v);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* A slice that takes more than the room is refused by the header: a sparse file of 1 GiB, and a .gz
 * that is not decompressed. */
TEST(test_room)
{
    const int16_t dims[8] = {3, 8192, 8192, 2, 1, 1, 1, 1}, type[2] = {64, 64};
    struct volume v;
    struct error e;
    char path[512], packed[512];
    snprintf(path, sizeof path, "%s", forged("down.nii", 40, dims, sizeof dims, 0, "big.nii"));
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pwrite(fd, type, sizeof type, 70) == sizeof type &&
                !ftruncate(fd, 352 + 2ll * 8192 * 8192 * 8));
    assert_int_equal(volume_open(&v, path, &(struct volume_options){.room = 64 << 20}, &e), PL_USAGE);
    assert_non_null(
        strstr(e.text,
               "reading a slice of 8192 x 8192 voxels takes 1217 MiB; expected at most 64 (data.sample_memory)"));
    snprintf(packed, sizeof packed, "%s/big.nii.gz", folder);
    assert_int_equal(ftruncate(fd, 4096), 0);
    int to = open(packed, O_WRONLY | O_CREAT, 0600);
    assert_true(to >= 0 && !gzip(fd, to, &e));
    close(fd), close(to);
    assert_int_equal(volume_open(&v, packed, &(struct volume_options){.room = 64 << 20}, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "data.sample_memory"));
    if (volume_open(&v, GOLDEN "lps.nii.gz", &(struct volume_options){.room = 1 << 20}, &e)) fail_msg("%s", e.text);
    volume_close(&v);
    assert_int_equal(volume_open(&v, GOLDEN "series_j2k", &(struct volume_options){.room = 1 << 20}, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "decoding the JPEG 2000 of a slice of 40 x 36 voxels may take 3 MiB more; expected "
                                   "at most 1 (data.sample_memory)"));
    /* A float TIFF: its pixels, its values, and the counts that percentiles are found with. */
    char *bytes;
    size_t n, need;
    uint32_t w, h;
    if (!tiff_version()) return;
    if (file_read(GOLDEN "float32.tif", 1 << 20, &bytes, &n, &e) ||
        image_peek(bytes, n, &(struct image_options){0}, &w, &h, &need, &e))
        fail_msg("%s", e.text);
    assert_true(need >= (size_t)w * h * 7 + 2 * RANGE_VALUES * sizeof(uint64_t));
    mem_free(bytes);
}

/* What OpenJPEG takes is known from the markers: of code blocks of 4 x 4 it is 30 bytes a pixel,
 * which is more than is kept for it. */
TEST(test_j2k_memory)
{
    uint8_t head[] = {0xff, 0x4f, 0xff, 0x51, 0,  41, 0, 0,    0,    0, 8,  0, 0, 0, 8,    0,   0, 0, 0,
                      0,    0,    0,    0,    0,  0,  0, 8,    0,    0, 0,  8, 0, 0, 0,    0,   0, 0, 0,
                      0,    0,    0,    1,    15, 1,  1, 0xff, 0x52, 0, 12, 0, 0, 0, 1,    0,   5, 4, 4,
                      0,    1,    0xff, 0x90, 0,  10, 0, 0,    0,    0, 0,  0, 0, 1, 0xff, 0x93};
    const uint64_t pixels = 2048 * 2048, room = j2k_room(2048, 2048, 1, sizeof head);
    const uint64_t usual = j2k_memory(head, sizeof head);
    assert_true(usual > 4 * pixels && usual <= room);
    head[55] = head[56] = 0; /* blocks of 4 x 4 */
    assert_true(j2k_memory(head, sizeof head) > 30 * pixels);
    head[55] = head[56] = 4;
    head[26] = head[30] = 0, head[27] = head[31] = 16; /* tiles of 16 x 16 */
    assert_true(j2k_memory(head, sizeof head) > 40 * pixels);
    assert_true(j2k_memory(head, 40) == UINT64_MAX);
    size_t n = sizeof head;
    assert_ptr_equal(j2k_codestream(head, &n), head);
}

/* --- splits ----------------------------------------------------------------------------------- */

static void put_mask(const char *name, uint32_t w, uint32_t h)
{
    char path[512];
    uint8_t pixels[64 * 64] = {1};
    struct text png = {0};
    struct error e;
    snprintf(path, sizeof path, "%s/patients/masks/%s.png", folder, name);
    if (png_encode(&png, PNG_GREY, w, h, pixels, 0, &e) || file_write_atomic(path, png.at, png.n, &e))
        fail_msg("%s", e.text);
    text_free(&png);
}

/* Images of one patient are kept together; where all have one ID it says nothing. Rows of a table
 * that name one image are on one side. */
TEST(test_patients)
{
    static const char *const to[] = {"patients/images/a.dcm", "patients/images/b.dcm", "patients/images/c.dcm"};
    char root[512], group[64], *paths[] = {root};
    struct names files;
    struct error e;
    struct dataset *d;
    snprintf(root, sizeof root, "%s/patients/images", folder);
    if (dir_make(root, &e) || dir_list(GOLDEN "series", &files, &e)) fail_msg("%s", e.text);
    snprintf(root, sizeof root, "%s/patients/masks", folder);
    if (dir_make(root, &e)) fail_msg("%s", e.text);
    for (int i = 0; i < 3; i++) {
        char from[256];
        snprintf(from, sizeof from, "series/%s", files.at[i]);
        forged(i < 2 ? from : "../scans/unknown/1.dcm", 0, "", 0, 0, to[i]);
        put_mask((const char[][2]){"a", "b", "c"}[i], i < 2 ? 40 : 4, i < 2 ? 36 : 5);
    }
    names_free(&files);
    snprintf(root, sizeof root, "%s/patients", folder);
    const struct dataset_options o = {.format = "pairs", .paths = paths, .n_paths = 1, .labels = LABELS_BINARY};
    if (dataset_open(&d, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(dataset_count(d), 3);
    for (uint64_t i = 0; i < 3; i++) {
        assert_true(dataset_split_group(d, i, group, sizeof group));
        assert_string_equal(group, i < 2 ? "patient 1" : "patient one");
    }
    dataset_close(d);
    snprintf(root, sizeof root, "%s/patients/images/c.dcm", folder);
    unlink(root);
    snprintf(root, sizeof root, "%s/patients", folder);
    if (dataset_open(&d, &o, &e)) fail_msg("%s", e.text);
    assert_false(dataset_split_group(d, 0, group, sizeof group));
    dataset_close(d);

    struct text table = {0};
    text_printf(&table, "image,mask\n");
    for (int i = 0; i < 9; i++) text_printf(&table, "images/%c.dcm,masks/%c.png\n", "ab"[i % 2], "ab"[i % 2]);
    snprintf(root, sizeof root, "%s/patients/table.csv", folder);
    if (file_write_atomic(root, table.at, table.n, &e)) fail_msg("%s", e.text);
    text_free(&table);
    const struct dataset_options rows = {.format = "csv",
                                         .paths = paths,
                                         .n_paths = 1,
                                         .labels = LABELS_BINARY,
                                         .split = {.fraction = 0.3}};
    if (dataset_open(&d, &rows, &e)) fail_msg("%s", e.text);
    assert_true(dataset_count(d) == 4 || dataset_count(d) == 5);
    dataset_name(d, 0, root, sizeof root);
    for (uint64_t i = 1; i < dataset_count(d); i++) {
        dataset_name(d, i, group, sizeof group);
        assert_string_equal(group, root);
    }
    dataset_close(d);
}

/* --- planes ----------------------------------------------------------------------------------- */

TEST(test_labels)
{
    struct error e;
    int bytes;
    double real[] = {0, 1, 2, 65535}, third[] = {0, 1 / 3.0}, minus[] = {-1, 0};
    struct plane p = {.h = 2, .w = 2, .channels = 1, .type = PLANE_F64, .slope = 1, .at = real};
    assert_int_equal(plane_to_labels(&p, &bytes, &e), PL_OK);
    assert_int_equal(bytes, 2);
    assert_memory_equal(real, ((uint16_t[]){0, 1, 2, 65535}), 8);
    p = (struct plane){.h = 1, .w = 2, .channels = 1, .type = PLANE_F64, .slope = 1, .at = third};
    assert_int_equal(plane_to_labels(&p, &bytes, &e), PL_USAGE);
    p.at = minus;
    assert_int_equal(plane_to_labels(&p, &bytes, &e), PL_USAGE);
}

static int compare_reals(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Percentiles without sorting are those of sorting: of the finite values above 0, or above the
 * smallest. */
TEST(test_percentiles)
{
    enum { N = 20000 };
    double *values = mem_alloc(N * sizeof *values), *sorted = mem_alloc(N * sizeof *sorted), window[2];
    float *narrow = mem_alloc(N * sizeof *narrow);
    for (int round = 0; round < 4; round++) {
        size_t n = 0;
        double least = 0;
        for (uint32_t i = 0; i < N; i++) {
            const double u = (double)(i * 2654435761u % 100003) / 100003;
            narrow[i] = (float)(round == 0   ? u
                                : round == 1 ? 1e30 * (u - 0.5)
                                : round == 2 ? floor(9 * u)
                                             : 1e-30 * u * u);
            if (i % 97 == 0) narrow[i] = NAN;
            values[i] = narrow[i];
            if (narrow[i] < least) least = narrow[i];
        }
        for (uint32_t i = 0; i < N; i++)
            if (isfinite(values[i]) && values[i] > least) sorted[n++] = values[i];
        qsort(sorted, n, sizeof *sorted, compare_reals);
        const struct pixel_range r = {.kind = RANGE_PERCENTILES, .percentiles = {3, 80}};
        for (int wide = 0; wide < 2; wide++) {
            const struct plane p = {.h = 100,
                                    .w = N / 100,
                                    .channels = 1,
                                    .type = wide ? PLANE_F64 : PLANE_F32,
                                    .slope = 1,
                                    .at = wide ? (void *)values : narrow};
            uint64_t *counts = mem_alloc(plane_counts(&p));
            plane_window(&p, &r, counts, window);
            assert_true(window[0] == sorted[(size_t)ceil(0.03 * (double)n) - 1] &&
                        window[1] == sorted[(size_t)ceil(0.8 * (double)n) - 1]);
            mem_free(counts);
        }
    }
    mem_free(values), mem_free(sorted), mem_free(narrow);
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Reads a label volume and writes it as one that is like `like`, slice by slice from the last: what
 * is read back is the same. */
static void round_trip(const char *labels, const char *like, enum volume_axis axis, const char *name, uint32_t largest)
{
    char path[512];
    struct volume from, of, to;
    struct error e;
    struct nifti_writer *w;
    const struct volume_options o = {.axis = axis};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (volume_open(&from, labels, &o, &e) || volume_open(&of, like, &o, &e)) fail_msg("%s", e.text);
    const size_t room = volume_room(&from, true) + volume_room(&of, true), n = (size_t)from.w * from.h;
    void *memory = mem_alloc(room), *again = mem_alloc(room);
    uint16_t *slice = mem_alloc(n * sizeof *slice);
    if (nifti_write_begin(&w, path, &of, largest, &e)) fail_msg("%s", e.text);
    for (uint32_t k = from.slices; k-- > 0;) {
        struct plane p;
        if (volume_read(&from, k, 0, true, memory, room, &p, &e)) fail_msg("%s", e.text);
        for (size_t i = 0; i < n; i++) slice[i] = (uint16_t)plane_value(&p, i);
        if (nifti_write_slice(w, k, slice, &e)) fail_msg("%s", e.text);
    }
    if (nifti_write_end(w, false, &e)) fail_msg("%s", e.text);
    if (volume_open(&to, path, &o, &e)) fail_msg("%s", e.text);
    assert_memory_equal(to.dims, of.dims, sizeof of.dims);
    assert_int_equal(to.type, largest > 255 ? PLANE_U16 : PLANE_U8);
    for (int i = 0; i < 12; i++) assert_true(fabs(to.affine[i / 4][i % 4] - of.affine[i / 4][i % 4]) < 1e-5);
    for (uint32_t k = 0; k < from.slices; k++) {
        struct plane p, q;
        if (volume_read(&from, k, 0, true, memory, room, &p, &e) || volume_read(&to, k, 0, true, again, room, &q, &e))
            fail_msg("%s", e.text);
        for (size_t i = 0; i < n; i++) assert_true(plane_value(&p, i) == plane_value(&q, i));
    }
    mem_free(memory), mem_free(again), mem_free(slice);
    volume_close(&from), volume_close(&of), volume_close(&to);
}

TEST(test_round_trip)
{
    for (int axis = 0; axis < 3; axis++) {
        round_trip(GOLDEN "labels.nii.gz", GOLDEN "lps.nii.gz", (enum volume_axis)axis, "a.nii.gz", 2);
        round_trip(GOLDEN "labels.nii.gz", GOLDEN "big.nii", (enum volume_axis)axis, "b.nii", 300);
        round_trip(GOLDEN "labels_float.nii.gz", GOLDEN "second.nii.gz", (enum volume_axis)axis, "c.nii.gz", 2);
        round_trip(GOLDEN "four_labels.nii.gz", GOLDEN "four.nii.gz", (enum volume_axis)axis, "d.nii.gz", 2);
    }
    round_trip(GOLDEN "series_labels.nii.gz", GOLDEN "series", AXIS_AXIAL, "e.nii.gz", 1);
    /* Everything of the header that says where the volume is stays as it is. */
    uint8_t from[348], to[348];
    char path[512];
    struct volume v;
    struct error e;
    if (volume_open(&v, GOLDEN "lps.nii.gz", &(struct volume_options){0}, &e)) fail_msg("%s", e.text);
    assert_int_equal(file_peek(v.data, from, sizeof from), sizeof from);
    volume_close(&v);
    snprintf(path, sizeof path, "%s/a.nii.gz", folder);
    if (volume_open(&v, path, &(struct volume_options){0}, &e)) fail_msg("%s", e.text);
    assert_int_equal(file_peek(v.data, to, sizeof to), sizeof to);
    volume_close(&v);
    assert_memory_equal(from + 76, to + 76, 32);   /* pixdim */
    assert_memory_equal(from + 252, to + 252, 76); /* qform and sform */
}

static int start(void **state)
{
    if (make_folder(state)) return 1;
    return setenv("XDG_CACHE_HOME", folder, 1);
}

MAIN(start, remove_folder)
