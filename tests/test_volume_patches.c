/*
 * test_volume_patches.c: volumes as the patches of a modality (data/volumes/volume.h)
 * against PyTorch: tests/golden/volume_patches.safetensors, by make_volume_patches.py there. Then
 * what is no volume of a modality, references, and modalities of a configuration.
 */

#include "data/volumes/dicom.h"
#include "data/volumes/volume.h"
#include "io/json.h"
#include "io/safetensors.h"

#include "harness.h"

#define GOLDEN "tests/golden/"

/* Parses modalities from JSON with ' for ". */
static int parse(struct modality_list *l, const char *json, struct bump *b, struct error *e)
{
    char text[1024];
    struct value *v;
    snprintf(text, sizeof text, "%s", json);
    for (char *s = text; *s; s++)
        if (*s == '\'') *s = '"';
    assert_int_equal(json_parse(text, strlen(text), b, &v, e), PL_OK);
    return modalities_parse(l, v, e);
}

static int read_patches(const char *path, const struct modality *x, const struct pixel_range *r, float *to,
                        struct error *e)
{
    struct volume v;
    TRY(volume_open(&v, path, &(struct volume_options){0}, e));
    void *memory = mem_alloc(volume_patches_room(&v, x));
    const uint64_t before = mem_allocations();
    const int rc = volume_patches(&v, x, r, memory, to, e);
    assert_int_equal(mem_allocations(), before);
    mem_free(memory);
    volume_close(&v);
    return rc;
}

/* A tensor "FILE|SIZE|PATCH|RANGE". */
static void compare(const struct st_file *f, const struct st_entry *t)
{
    char file[64], size[64], patch[64], range[64], json[256], path[128];
    struct modality_list l;
    struct bump b = {0};
    struct error e = {0};
    assert_int_equal(sscanf(t->name, "%63[^|]|%63[^|]|%63[^|]|%63s", file, size, patch, range), 4);
    snprintf(json, sizeof json, "{'X': {'size': [%s], 'patch': [%s]}}", size, patch);
    if (parse(&l, json, &b, &e)) fail_msg("%s", e.text);
    const struct modality *x = &l.at[0];
    const struct pixel_range r = {.kind = !strcmp(range, "auto")   ? RANGE_AUTO
                                          : !strcmp(range, "full") ? RANGE_FULL
                                          : !strcmp(range, "window") ? RANGE_WINDOW
                                                                     : RANGE_PERCENTILES,
                                  .window = {-160, 240}};
    assert_int_equal(t->dims[0], x->tokens);
    assert_int_equal(t->dims[1], x->values);
    float *want = mem_alloc(t->bytes), *got = mem_alloc(t->bytes);
    assert_int_equal(st_read(f, t, 0, t->bytes, want, &e), PL_OK);
    snprintf(path, sizeof path, GOLDEN "volumes/%s", file);
    if (read_patches(path, x, &r, got, &e)) fail_msg("%s: %s", t->name, e.text);
    for (int64_t i = 0; i < t->elements; i++)
        if (fabsf(got[i] - want[i]) > 2e-6f) fail_msg("%s: value %lld is %g, expected %g", t->name, (long long)i,
                                                      (double)got[i], (double)want[i]);
    mem_free(want);
    mem_free(got);
    bump_free(&b);
}

static void test_values(void **state)
{
    struct st_file f;
    struct error e;
    (void)state;
    if (st_open(GOLDEN "volume_patches.safetensors", &f, &e)) fail_msg("%s", e.text);
    assert_int_equal(f.n_entries, 12);
    for (uint32_t i = 0; i < f.n_entries; i++)
        if (dicom_j2k_version() || !strstr(f.entries[i].name, "j2k")) compare(&f, &f.entries[i]);
    st_close(&f);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void refuse_file(const char *file, const char *json, const char *text)
{
    char path[128];
    struct modality_list l;
    struct bump b = {0};
    struct error e = {0};
    float to[256];
    snprintf(path, sizeof path, GOLDEN "volumes/%s", file);
    assert_int_equal(parse(&l, json, &b, &e), PL_OK);
    assert_int_equal(read_patches(path, &l.at[0], &(struct pixel_range){0}, to, &e), PL_USAGE);
    if (!strstr(e.text, text)) fail_msg("%s: \"%s\", expected \"%s\"", file, e.text, text);
    bump_free(&b);
}

static void test_refused(void **state)
{
    static const char *const three = "{'T1': {'size': [4, 4, 4], 'patch': [2, 2, 2]}}",
                             *const four = "{'rsfMRI': {'size': [2, 4, 4, 4], 'patch': [2, 2, 2, 2]}}";
    (void)state;
    refuse_file("four.nii.gz", three, "a fourth dimension), and T1 takes one volume");
    refuse_file("lps.nii.gz", four, "it is one volume, and rsfMRI takes series of 2");
    refuse_file("rgb.nii", three, "its voxels are colours");
    refuse_file("grey16.tif", three, "expected a volume, and not a slice");
}

static void refuse_map(const char *json, const char *text)
{
    struct modality_list l;
    struct bump b = {0};
    struct error e = {0};
    assert_int_equal(parse(&l, json, &b, &e), PL_USAGE);
    if (!strstr(e.text, text)) fail_msg("%s: \"%s\", expected \"%s\"", json, e.text, text);
    bump_free(&b);
}

static void test_maps(void **state)
{
    struct modality_list l;
    struct bump b = {0};
    struct error e = {0};
    (void)state;
    refuse_map("[]", "modalities");
    refuse_map("{'T1': 3}", "modalities.T1");
    refuse_map("{'a b': {}}", "expected 1 to 32 letters");
    refuse_map("{'T1': {'size': [4, 4], 'patch': [1, 1]}}", "size has 2 numbers");
    refuse_map("{'T1': {'size': [4, 4, 4]}}", "patch");
    refuse_map("{'T1': {'size': [4, 4, 4], 'patch': [1, 2, 2, 2]}}", "size has 3 numbers and patch 4");
    refuse_map("{'T1': {'size': [4, 4, 4], 'patch': [2, 5, 2]}}", "a patch of 5 is larger than the size 4");
    refuse_map("{'T1': {'size': [4, 0, 4], 'patch': [2, 1, 2]}}", "expected 1 to 4096");
    refuse_map("{'T1': {'size': [4, 4, 4], 'patch': [2, 2, 2], 'to': 'decoder'}}", "expected tower or projector");
    refuse_map("{'T1': {'size': [4, 4, 4], 'patch': [2, 2, 2], 'width': 3}}", "unknown key width");
    refuse_map("{'T1': {'size': [4096, 4096, 4096], 'patch': [4, 4, 4]}}", "at most 1048576 tokens");
    refuse_map("{'a': 1, 'b': 1, 'c': 1, 'd': 1, 'e': 1}", "5 entries, expected at most 4");
    assert_int_equal(parse(&l, "{'T1': {'size': [96, 96, 96], 'patch': [10, 10, 10]}, 'f': {'size': [24, 96, 96, 96], "
                               "'patch': [3, 16, 16, 16], 'to': 'projector'}}", &b, &e), PL_OK);
    assert_int_equal(l.at[0].tokens, 729);
    assert_int_equal(l.at[1].tokens, 1728);
    assert_int_equal(l.at[1].values, 3 * 16 * 16 * 16);
    assert_true(l.at[0].to_tower && !l.at[1].to_tower && l.at[1].series && !l.at[0].series);
    assert_int_equal(media_modality(&l, "volume:f:a/b:c.nii", &e), 1);
    assert_string_equal(media_volume_path("volume:f:a/b:c.nii"), "a/b:c.nii");
    assert_string_equal(media_volume_path("volume::x.nii.gz"), "x.nii.gz");
    assert_true(media_modality(&l, "volume::x.nii.gz", &e) < 0 && strstr(e.text, "without its modality"));
    assert_true(media_modality(&l, "volume:dMRI:x.nii", &e) < 0 && strstr(e.text, "its modality is dMRI"));
    l.n = 1;
    assert_int_equal(media_modality(&l, "volume::x.nii.gz", &e), 0);
    l.n = 0;
    assert_true(media_modality(&l, "volume::x.nii.gz", &e) < 0 && strstr(e.text, "the model takes none"));
    bump_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_maps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
