/*
 * test_volumes.c: volumes (src/data/volumes) against what nibabel, tifffile, pydicom and SimpleITK read: tests/golden/volumes, which
 * tests/golden/make_volumes.py documents. Then what is refused, windows, and volumes that are written.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data/volumes/dicom.h"
#include "data/volumes/nifti.h"
#include "data/volumes/volume.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "temporary_folder.h"

#define GOLDEN "tests/golden/volumes/"
static const char *const axes[] = {"axial", "coronal", "sagittal"};
static struct st_file expected;

static double *read_entry(const char *name, const struct st_entry **out)
{
    struct error e;
    const struct st_entry *t = st_find(&expected, name);
    if (!t) fail_msg("expected.safetensors has no %s", name);
    char *raw = mem_alloc(t->bytes);
    double *to = mem_alloc((size_t)t->elements * sizeof *to);
    if (st_read(&expected, t, 0, t->bytes, raw, &e)) fail_msg("%s", e.text);
    const bool narrow = t->bytes == 4 * (uint64_t)t->elements;
    for (int64_t i = 0; i < t->elements; i++) to[i] = narrow ? (double)((float *)(void *)raw)[i] : ((double *)(void *)raw)[i];
    mem_free(raw);
    *out = t;
    return to;
}

/* "FILE|axial|0" */
static void compare(const char *name)
{
    char file[128], axis[16], spacing[160], path[256];
    unsigned modality;
    struct volume v;
    struct error e;
    const struct st_entry *t, *s;
    if (sscanf(name, "%127[^|]|%15[^|]|%u", file, axis, &modality) != 3) return;
    int a = 0;
    while (strcmp(axes[a], axis)) a++;
    snprintf(path, sizeof path, GOLDEN "%s", file);
    snprintf(spacing, sizeof spacing, "%s|%s|spacing", file, axis);
    if (!tiff_version() && strstr(file, ".tif")) return;
    if (volume_open(&v, path, &(struct volume_options){.axis = (enum volume_axis)a}, &e)) fail_msg("%s: %s", path, e.text);
    double *want = read_entry(name, &t), *mm = read_entry(spacing, &s);
    assert_int_equal(v.slices, t->dims[0]);
    assert_int_equal(v.h, t->dims[1]);
    assert_int_equal(v.w, t->dims[2]);
    assert_int_equal(v.channels, t->rank == 4 ? 3 : 1);
    for (int i = 0; i < 3; i++)
        if (fabs(v.spacing[i] - mm[i]) > 1e-5 * mm[i]) fail_msg("%s: spacing %d is %g, expected %g", name, i, v.spacing[i], mm[i]);
    const size_t room = volume_room(&v, false), n = (size_t)v.w * v.h * v.channels;
    void *memory = mem_alloc(room);
    for (uint32_t k = 0; k < v.slices; k++) {
        struct plane p;
        if (volume_read(&v, k, modality, false, memory, room, &p, &e)) {
            if (strstr(e.text, "no OpenJPEG")) break;
            fail_msg("%s: %s", name, e.text);
        }
        for (size_t i = 0; i < n; i++)
            if (plane_value(&p, i) != want[k * n + i]) fail_msg("%s: slice %u, value %zu is %g, expected %g", name, k, i, plane_value(&p, i), want[k * n + i]);
    }
    mem_free(memory);
    mem_free(want);
    mem_free(mm);
    volume_close(&v);
}

static void test_golden(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < expected.n_entries; i++) compare(expected.entries[i].name);
    assert_true(expected.n_entries > 100);
}

/* --- what is refused ------------------------------------------------------------------------------------------ */

static void refused(const char *path, const char *because)
{
    struct volume v;
    struct error e = {0};
    if (!volume_open(&v, path, &(struct volume_options){0}, &e)) fail_msg("%s is opened", path);
    assert_int_equal(e.code, PL_USAGE);
    if (!strstr(e.text, because)) fail_msg("%s: \"%s\" does not say \"%s\"", path, e.text, because);
    assert_null(strchr(e.text, '\n'));
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

static void test_refusals(void **state)
{
    (void)state;
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
    refused(forged("asl.nii", 0, "", 0, 0, "a.dcm"), "not a DICOM file");
}

/* --- windows ----------------------------------------------------------------------------------------------------- */

static void test_windows(void **state)
{
    (void)state;
    struct volume v;
    struct error e;
    if (volume_open(&v, GOLDEN "lps.nii.gz", &(struct volume_options){0}, &e)) fail_msg("%s", e.text);
    const struct pixel_range window = {.kind = RANGE_WINDOW, .window = {-160, 240}}, full = {.kind = RANGE_FULL}, percentiles = {.kind = RANGE_PERCENTILES, .percentiles = {10, 90}};
    assert_int_equal(volume_set_window(&v, 0, &window, &e), PL_OK);
    assert_true(v.window[0] == -160 && v.window[1] == 240);
    const struct volume_channels c = {.at = {&v}};
    const size_t room = volume_rgb_room(&c), plane_room = volume_room(&v, false);
    uint8_t *rgb = mem_alloc(room);
    void *memory = mem_alloc(plane_room);
    struct plane p;
    if (volume_rgb(&c, &window, 2, rgb, room, &e) || volume_read(&v, 2, 0, false, memory, plane_room, &p, &e)) fail_msg("%s", e.text);
    for (size_t i = 0; i < (size_t)v.w * v.h; i++) {
        const double x = plane_value(&p, i), y = x <= -160 ? 0 : x >= 240 ? 255 : floor((x + 160) / 400 * 255 + 0.5);
        assert_true(rgb[3 * i] == y && rgb[3 * i + 1] == y && rgb[3 * i + 2] == y);
    }
    /* Neighbours: the first slice has none before it. */
    const struct volume_channels three = {.at = {&v, &v, &v}, .step = {-1, 0, 1}};
    uint8_t *more = mem_alloc(room), *next = mem_alloc(room), *first = mem_alloc(room);
    if (volume_rgb(&three, &window, 0, more, room, &e) || volume_rgb(&c, &window, 0, first, room, &e) || volume_rgb(&c, &window, 1, next, room, &e)) fail_msg("%s", e.text);
    for (size_t i = 0; i < (size_t)v.w * v.h; i++) assert_true(more[3 * i] == first[3 * i] && more[3 * i + 1] == first[3 * i] && more[3 * i + 2] == next[3 * i]);
    assert_int_equal(volume_set_window(&v, 0, &full, &e), PL_OK);
    assert_true(v.window[0] >= -1024 && v.window[0] < -900 && v.window[1] > 1400);
    assert_int_equal(volume_set_window(&v, 0, &percentiles, &e), PL_OK);
    assert_true(v.window[0] > -900 && v.window[1] < 1400);
    mem_free(rgb), mem_free(memory), mem_free(more), mem_free(next), mem_free(first);
    volume_close(&v);
}

/* --- planes --------------------------------------------------------------------------------------------------------- */

static void test_labels(void **state)
{
    (void)state;
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

/* --- writing ----------------------------------------------------------------------------------------------------------- */

/* Reads a label volume and writes it as one that is like `like`, slice by slice from the last: what is read back is the same. */
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
        if (volume_read(&from, k, 0, true, memory, room, &p, &e) || volume_read(&to, k, 0, true, again, room, &q, &e)) fail_msg("%s", e.text);
        for (size_t i = 0; i < n; i++) assert_true(plane_value(&p, i) == plane_value(&q, i));
    }
    mem_free(memory), mem_free(again), mem_free(slice);
    volume_close(&from), volume_close(&of), volume_close(&to);
}

static void test_round_trip(void **state)
{
    (void)state;
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

static int open_expected(void **state)
{
    struct error e;
    if (make_folder(state)) return 1;
    setenv("XDG_CACHE_HOME", folder, 1);
    if (!st_open(GOLDEN "expected.safetensors", &expected, &e)) return 0;
    printf("%s\n", e.text);
    return 1;
}

static int close_expected(void **state)
{
    st_close(&expected);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden), cmocka_unit_test(test_refusals), cmocka_unit_test(test_windows), cmocka_unit_test(test_labels),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, open_expected, close_expected);
}
