/*
 * test_match.c: prefixes and suffixes are found from lists of names, joined, and refused where they
 * are ambiguous.
 */
#include "data/detect/match.h"

#include "harness.h"

static void add(struct image_tree *t, const char *path)
{
    const char *base = strrchr(path, '/');
    struct image_file f = {.path = mem_string(path), .base = base ? (uint32_t)(base + 1 - path) : 0,
                           .stem = (uint32_t)(strrchr(path, '.') - path)};
    vec_push(&t->files, f);
}

/* Names from a list with blanks between them. */
static struct image_tree tree(const char *names)
{
    struct image_tree t = {0};
    char copy[4096], *rest;
    snprintf(copy, sizeof copy, "%s", names);
    for (char *name = strtok_r(copy, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) add(&t, name);
    return t;
}

static void assert_affixes(const struct affixes *a, const char *ip, const char *is, const char *mp, const char *ms)
{
    const char *const expected[AFFIXES] = {ip, is, mp, ms};
    for (int i = 0; i < AFFIXES; i++) assert_string_equal(a->at[i], expected[i]);
}

TEST(test_names)
{
    static const struct { const char *images, *masks, *affixes[AFFIXES]; uint64_t n;
    } cases[] = {
        {"a.jpg b.jpg", "a.png b.png", {"", "", "", ""}, 2},
        {"a.jpg b.jpg c.jpg", "a_mask.png b_mask.png", {"", "", "", "_mask"}, 2},
        {"a.jpg b.jpg c.jpg", "a_mask.png b_mask.png c.png", {"", "", "", ""}, 3}, /* the suffix is optional */
        {"ISIC_0000000.jpg ISIC_0000001.jpg",
         "ISIC_0000000_segmentation.png ISIC_0000001_segmentation.png",
         {"", "", "", "_segmentation"},
         2},
        {"la_003_0000.png la_004_0000.png", "la_003.png la_004.png", {"", "_0000", "", ""}, 2},
        {"1.png 2.png 10.png 11.png 12.png 21.png",
         "mask_1.png mask_2.png mask_10.png mask_11.png mask_12.png mask_21.png",
         {"", "", "mask_", ""},
         6},
        {"img1.png img2.png img11.png img12.png", "gt1.png gt2.png gt11.png gt12.png", {"img", "", "gt", ""}, 4},
        {"img_1.png img_2.png", "lbl_1.png lbl_2.png", {"img_", "", "lbl_", ""}, 2},
        {"a/x_leftImg8bit.png b/x_leftImg8bit.png",
         "a/x_gtFine_labelIds.png a/x_gtFine_color.png b/x_gtFine_labelIds.png b/x_gtFine_color.png",
         {"", "_leftImg8bit", "", "_gtFine_labelIds"},
         2},
        {"case-1-image.png case-2-image.png", "case-1-inst.png case-2-inst.png", {"", "-image", "", "-inst"}, 2},
        {"t1.jpg t2.jpg t3.jpg", "q7.png q8.png", {"", "", "", ""}, 0},
        {"2012_1.jpg 2012_2.jpg", "2007_1.png 2007_2.png", {"", "", "", ""}, 0}, /* other samples */
        {"a/1.png b/1.png", "b/1.png c/1.png", {"", "", "", ""}, 1},             /* only in the same subfolder */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct image_tree images = tree(cases[i].images), masks = tree(cases[i].masks);
        struct affixes a;
        struct error e = {0};
        uint64_t n;
        assert_int_equal(match_find(&images, &masks, &a, &n, &e), PL_OK);
        assert_int_equal(n, cases[i].n);
        if (n) assert_affixes(&a, cases[i].affixes[0], cases[i].affixes[1], cases[i].affixes[2], cases[i].affixes[3]);
        assert_int_equal(match_count(&images, &masks, &a), n);
        image_tree_free(&images);
        image_tree_free(&masks);
    }
}

TEST(test_one_folder)
{
    static const struct { const char *files, *affixes[AFFIXES]; uint64_t n; } cases[] = {
        {"a.jpg a_mask.png b.jpg b_mask.png", {"", "", "", "_mask"}, 2},
        {"1.png 11.png 2.png label_1.png label_11.png label_2.png", {"", "", "label_", ""}, 3},
        {"100_sat.jpg 100_mask.png 200_sat.jpg 200_mask.png", {"", "_sat", "", "_mask"}, 2},
        {"a.jpg a.png b.jpg b.png", {"", "", "", ""}, 2},
        {"a.png b.png ab.png abc.png", {"", "", "", ""}, 0}, /* nothing is called a mask */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct image_tree t = tree(cases[i].files);
        struct affixes a;
        struct error e = {0};
        uint64_t n;
        assert_int_equal(match_find(&t, &t, &a, &n, &e), PL_OK);
        assert_int_equal(n, cases[i].n);
        if (n) assert_affixes(&a, cases[i].affixes[0], cases[i].affixes[1], cases[i].affixes[2], cases[i].affixes[3]);
        image_tree_free(&t);
    }
}

TEST(test_ambiguous)
{
    struct image_tree images = tree("a.png b.png"), masks = tree("a_1.png a_2.png b_1.png b_2.png");
    struct affixes a;
    struct error e = {0};
    uint64_t n;
    assert_int_equal(match_find(&images, &masks, &a, &n, &e), PL_USAGE);
    assert_non_null(strstr(e.text, "set data.mask_suffix"));
    image_tree_free(&images);
    image_tree_free(&masks);
}

TEST(test_left_over)
{
    struct image_tree images = tree("a.jpg a.png b.jpg c.jpg"), masks = tree("a.png z.png");
    struct match m;
    struct text out = {0};
    match_join(&m, &images, &masks, &(struct affixes){0});
    assert_true(m.pairs.n == 1 && m.alone[0] == 2 && m.alone[1] == 1 && m.duplicates == 1);
    assert_string_equal(images.files.at[m.pairs.at[0].image].path, "a.jpg");
    match_print(&m, &images, &masks, &out);
    assert_string_equal(
        out.at,
        "2 images have no mask (such as b.jpg), 1 mask has no image (z.png), 1 file has the name of another one");
    text_free(&out);
    match_free(&m);
    image_tree_free(&images);
    image_tree_free(&masks);
}

MAIN(NULL, NULL)
