/*
 * init_detect.c: detects the format of data from file names, and where these are ambiguous from the
 * first bytes. The most specific tests come first: a .pack has one meaning, a .bin may be anything.
 */
#include "cli/init.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli/data_samples.h"
#include "data/formats/csv.h"
#include "data/masks/label.h"
#include "data/formats/layout.h"
#include "data/images/unread.h"
#include "data/text/not_tokens.h"
#include "io/parquet.h"

/* LISTED: up to this many token files are listed one by one, so that one can be held out */
enum { PARTS = 64, LISTED = 64 };

void detected_free(struct detected *f)
{
    names_free(&f->train);
    names_free(&f->validation);
    bump_free(&f->memory);
}

bool detected_validation(const struct detected *f)
{
    return f->validation.n || f->validation_split || f->validation_list || f->validation_images;
}

struct dataset_options detected_options(const struct detected *f, bool validation)
{
    const struct names *paths = validation && f->validation.n ? &f->validation : &f->train;
    return (struct dataset_options){.format = f->format,
                                    .paths = paths->at,
                                    .n_paths = paths->n,
                                    .images = validation && f->validation_images ? f->validation_images : f->images,
                                    .masks = validation && f->validation_masks ? f->validation_masks : f->masks,
                                    .image_prefix = f->image_prefix,
                                    .image_suffix = f->image_suffix,
                                    .mask_prefix = f->mask_prefix,
                                    .mask_suffix = f->mask_suffix,
                                    .image_column = f->image_column,
                                    .mask_column = f->mask_column,
                                    .split_column = f->split_column,
                                    .labels = f->voc ? LABELS_CLASSES : LABELS_AUTO,
                                    .ignore = f->voc ? 255 : 0,
                                    .split = {.column = validation ? f->validation_split : f->train_split,
                                              .list = validation ? f->validation_list : f->train_list}};
}

static void add(struct names *to, const char *folder, const char *name)
{
    struct text path = {0};
    text_printf(&path, "%s/%s", folder, name);
    vec_push(to, path.at);
}

static bool has_folder(const char *path, const char *name)
{
    struct text t = {0};
    text_printf(&t, "%s/%s", path, name);
    bool found = dir_exists(t.at);
    text_free(&t);
    return found;
}

static int set_format(struct detected *f, const char *format, const char *what)
{
    f->format = format;
    f->what = what;
    return PL_OK;
}

/* Reads up to n - 1 bytes from the beginning of a file, less leading white space. */
static void peek(const char *path, char *to, size_t n)
{
    to[file_peek(path, to, n - 1)] = 0;
    size_t blank = strspn(to, " \n\r\t");
    memmove(to, to + blank, strlen(to + blank) + 1);
}

/* ---- one file ---- */

/* packed: a list of rows of a memory map; coco: a map with the lists images and annotations; NULL:
 * another file, such as the annotations of one image. */
static const char *json_kind(const char *path)
{
    char head[4096];
    peek(path, head, sizeof head);
    if (head[0] == '[') return strstr(head, "mask_start_idx") ? "packed" : NULL;
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    /* CVAT and others; Roboflow */
    if (!strncmp(base, "instances", 9) || path_has_ending(base, ".coco.json")) return "coco";
    const char *images = strstr(head, "\"images\""), *annotations = strstr(head, "\"annotations\""),
               *categories = strstr(head, "\"supercategory\"");
    return head[0] == '{' && (images || annotations || categories) && !strstr(head, "\"image\"") ? "coco" : NULL;
}

static const char *split_value(const bool *found)
{
    static const char *const values[] = {"train", "val", "valid", "validation", "test"};
    for (size_t i = 0; i < COUNT(values); i++)
        if (found[i]) return values[i];
    return NULL;
}

/* Finds the values of the split column, from the current row on: train and, to evaluate on, val,
 * valid, validation or test. */
static void detect_splits(struct csv *c, int column, struct detected *f)
{
    static const char *const values[] = {"train", "val", "valid", "validation", "test"};
    bool found[2][COUNT(values)] = {0}, more;
    struct error ignored;
    do {
        for (size_t i = 0; i < COUNT(values) && (uint32_t)column < c->n; i++)
            if (!strcasecmp(c->fields[column], values[i])) found[i > 0][i] = true;
    } while (!csv_next(c, &more, &ignored) && more);
    f->train_split = split_value(found[0]);
    f->validation_split = split_value(found[1]);
    if (!f->train_split || !f->validation_split) f->train_split = f->validation_split = NULL;
}

static const char *unusual(struct detected *f, const struct csv *c, int column, const char *usual)
{
    return column < 0 || !strcmp(c->fields[column], usual) ? NULL : bump_string(&f->memory, c->fields[column]);
}

static bool names_file(const char *field) { return is_image_name(field) || unread_by_name(field); }

/* Whether the table has columns of images and masks, by the given or by usual names: `label` may as
 * well be the class of an image, so the first row must name files. */
static bool detect_csv(const char *path, const struct samples_options *given, struct detected *f)
{
    char *text;
    size_t n;
    bool more;
    struct error e;
    if (file_read(path, 1ull << 30, &text, &n, &e)) return false;
    struct csv *c = mem_alloc(sizeof *c);
    csv_begin(c, text, n);
    bool fits = !csv_next(c, &more, &e) && more;
    int image = !fits ? -1 : given->image_column ? csv_column(c, given->image_column) : csv_usual_column(c, CSV_IMAGE);
    int mask = !fits ? -1 : given->mask_column ? csv_column(c, given->mask_column) : csv_usual_column(c, CSV_MASK);
    fits = image >= 0 && mask >= 0;
    if (fits) {
        int split = csv_usual_column(c, CSV_SPLIT);
        f->image_column = unusual(f, c, image, "image");
        f->mask_column = unusual(f, c, mask, "mask");
        f->split_column = unusual(f, c, split, "split");
        fits = !csv_next(c, &more, &e) && more && (uint32_t)image < c->n && (uint32_t)mask < c->n &&
               names_file(c->fields[image]) && names_file(c->fields[mask]);
        if (fits && split >= 0) detect_splits(c, split, f);
        if (!fits) f->image_column = f->mask_column = NULL;
        if (!f->train_split) f->split_column = NULL;
    }
    mem_free(c);
    mem_free(text);
    return fits;
}

static bool is_table(const char *name) { return path_has_ending(name, ".csv") || path_has_ending(name, ".tsv"); }

static bool is_tokens(const char *name)
{
    return path_has_ending(name, ".npy") || path_has_ending(name, ".bin") || path_has_ending(name, ".tokens") ||
           path_has_ending(name, ".safetensors");
}

static int detect_file(const char *path, const struct samples_options *given, struct detected *f, struct error *e)
{
    if (file_check(path, e)) return e->code;
    const char *json = path_has_ending(path, ".json") ? json_kind(path) : NULL,
               *text = json ? NULL : detect_conversations(path);
    const struct unread *u = unread_file(path);
    vec_push(&f->train, mem_string(path));
    if (path_has_ending(path, ".pack")) return set_format(f, "packed", "a packed store");
    if (path_has_ending(path, ".tar")) return set_format(f, "sa1b", "a tar shard");
    if (!text && parquet_is(path)) return detect_parquet_file(path, f), PL_OK;
    if (text) return f->images = given->images, set_format(f, "conversations", text);
    if (json) return set_format(f, json, *json == 'p' ? "an index with a memory map of masks" : "COCO's instances");
    /* opening it names the columns that are missing */
    if (is_table(path)) return detect_csv(path, given, f), set_format(f, "csv", "a table of images and masks");
    if (is_tokens(path)) return set_format(f, "tokens", "a file of tokens");
    if (is_plain_text(path)) return set_format(f, "text", "plain text");
    if (u) return unread_refuse(u, 1, NULL, path, e);
    if (is_volume_name(path, NULL)) return volume_refuse(path, e);
    return error_set(e, PL_USAGE,
                     "%s: the format is not recognised; known are: a .pack, a .tar shard, COCO's instances (.json), a "
                     ".csv or .tsv with columns of images and masks, "
                     "tokens (.npy, .bin, .tokens, .safetensors), plain text (.txt, .md), conversations (.json, "
                     ".jsonl), Parquet tables of either",
                     path);
}

/* ---- a folder ---- */

static uint32_t count(const struct names *l, const char *ending)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) n += path_has_ending(l->at[i], ending);
    return n;
}

/* Whether at least one a.jpg has an a.json beside it. */
static bool has_pairs(const struct names *l)
{
    for (uint32_t i = 0; i + 1 < l->n; i++) {
        const char *dot = strrchr(l->at[i], '.');
        if (!dot || strcasecmp(dot, ".jpg")) continue;
        size_t n = (size_t)(dot - l->at[i]) + 1;
        for (uint32_t k = i + 1; k < l->n && !strncmp(l->at[k], l->at[i], n); k++)
            if (!strcasecmp(l->at[k] + n, "json")) return true;
    }
    return false;
}

static bool is_validation(const char *name) { return strstr(name, "val") || strstr(name, "test"); }

/* Adds the COCO files of a folder. Files with val or test in their names, or in a folder of such a
 * name, are for validation. */
static void add_coco(const char *folder, const char *part, struct names *train, struct names *validation,
                     struct names *test)
{
    struct names l = {0};
    struct error ignored;
    if (dir_list(folder, &l, &ignored)) return;
    for (uint32_t i = 0; i < l.n; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l.at[i]);
        const char *kind = path_has_ending(l.at[i], ".json") ? json_kind(path.at) : NULL, *name = part ? part : l.at[i];
        if (kind && *kind == 'c')
            add(strstr(name, "val") ? validation : strstr(name, "test") ? test : train, folder, l.at[i]);
        text_free(&path);
    }
    names_free(&l);
}

/* The COCO files of a folder, of its annotations/, or of its parts as Roboflow has them:
 * train/_annotations.coco.json, valid/, test/. A test set is used where there is no other one. */
static bool detect_coco(const char *folder, const struct names *l, struct detected *f)
{
    struct names test = {0};
    add_coco(folder, NULL, &f->train, &f->validation, &test);
    for (uint32_t i = 0; i < l->n && !f->train.n && !f->validation.n && !test.n; i++)
        if (!strcmp(l->at[i], "annotations") && has_folder(folder, "annotations")) {
            struct text path = {0};
            text_printf(&path, "%s/annotations", folder);
            add_coco(path.at, NULL, &f->train, &f->validation, &test);
            text_free(&path);
        }
    const bool parts = !f->train.n && !f->validation.n && !test.n && l->n <= PARTS;
    for (uint32_t i = 0; i < l->n && parts; i++)
        if ((is_validation(l->at[i]) || !strncmp(l->at[i], "train", 5)) && has_folder(folder, l->at[i])) {
            struct text path = {0};
            text_printf(&path, "%s/%s", folder, l->at[i]);
            add_coco(path.at, l->at[i], &f->train, &f->validation, &test);
            text_free(&path);
        }
    struct names *const rest[] = {&f->validation, &test};
    for (int k = 0; k < 2 && !f->train.n; k++) { /* only a part to evaluate on: it is trained on */
        f->train = *rest[k];
        *rest[k] = (struct names){0};
    }
    if (!f->validation.n) f->validation = test, test = (struct names){0};
    names_free(&test);
    return f->train.n;
}

static bool detect_index(const char *folder, const struct names *l, struct detected *f)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l->at[i]);
        const char *kind = path_has_ending(l->at[i], ".json") ? json_kind(path.at) : NULL;
        if (kind && *kind == 'p') vec_push(&f->train, mem_string(path.at));
        text_free(&path);
        if (f->train.n) return true;
    }
    return false;
}

/* Tables with columns of images and masks. Those with val or test in their names are for
 * validation. */
static bool detect_tables(const char *folder, const struct names *l, const struct samples_options *given,
                          struct detected *f)
{
    struct names test = {0};
    for (uint32_t i = 0; i < l->n; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l->at[i]);
        bool val = strstr(l->at[i], "val"), tests = strstr(l->at[i], "test");
        if (is_table(l->at[i]) && (val || tests || !f->train.n) && detect_csv(path.at, given, f))
            add(val ? &f->validation : tests ? &test : &f->train, folder, l->at[i]);
        text_free(&path);
    }
    if (!f->validation.n) f->validation = test, test = (struct names){0};
    names_free(&test);
    if (!f->train.n) f->train = f->validation, f->validation = (struct names){0};
    if (f->validation.n) f->train_split = f->validation_split = f->split_column = NULL;
    return f->train.n;
}

/* Extracted shards: the pairs are in the folder or in its subfolders. */
static bool detect_extracted(const char *folder, const struct names *l, struct detected *f)
{
    if (has_pairs(l)) {
        vec_push(&f->train, mem_string(folder));
        return true;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        struct names below = {0};
        struct error ignored;
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l->at[i]);
        if (dir_exists(path.at) && !dir_list(path.at, &below, &ignored) && has_pairs(&below))
            add(&f->train, folder, l->at[i]);
        names_free(&below);
        text_free(&path);
    }
    return f->train.n;
}

/* The n files of the folder that have this ending; "": any file. Files with val in their names are
 * for validation; if there is none, the last of several files is. */
static void list_files(const char *folder, const struct names *l, const char *ending, uint32_t n, struct detected *f)
{
    char pattern[32];
    snprintf(pattern, sizeof pattern, "*%s", ending);
    if (n > LISTED) add(&f->train, folder, pattern);
    for (uint32_t i = 0; i < l->n && n <= LISTED; i++)
        if (l->at[i][0] != '.' && path_has_ending(l->at[i], ending) && !has_folder(folder, l->at[i]))
            add(strstr(l->at[i], "val") ? &f->validation : &f->train, folder, l->at[i]);
    if (n <= LISTED && !f->validation.n && f->train.n > 1) vec_push(&f->validation, f->train.at[--f->train.n]);
    if (!f->train.n && f->validation.n) vec_push(&f->train, f->validation.at[--f->validation.n]);
}

/* Shards or stores, by a pattern "*.ending". Files with val in their names, or test if there are
 * none, are for validation; a test file beside them is not used. */
static void list_shards(const char *folder, const struct names *l, const char *pattern, struct detected *f)
{
    uint32_t n = count(l, pattern + 1), val = 0, test = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (path_has_ending(l->at[i], pattern + 1))
            val += strstr(l->at[i], "val") != NULL, test += !strstr(l->at[i], "val") && strstr(l->at[i], "test");
    if (val + test == 0 || val + test == n) {
        add(&f->train, folder, pattern);
        return;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        if (!path_has_ending(l->at[i], pattern + 1)) continue;
        if (strstr(l->at[i], val ? "val" : "test")) add(&f->validation, folder, l->at[i]);
        else if (strstr(l->at[i], "test"))
            log_warn("%s/%s is not used: the files with val in their names are evaluated on", folder, l->at[i]);
        else add(&f->train, folder, l->at[i]);
    }
}

/* Files of one extension of a list that ends with NULL. */
static bool detect_endings(const char *folder, const struct names *l, const char *const *endings, struct detected *f)
{
    for (size_t k = 0; endings[k] && !f->train.n; k++) {
        uint32_t n = count(l, endings[k]);
        if (n) list_files(folder, l, endings[k], n, f);
    }
    return f->train.n;
}

static int detect_bytes(const char *path, struct detected *f, struct error *e)
{
    struct names l = {0};
    if (!dir_exists(path)) vec_push(&f->train, mem_string(path));
    else if (dir_list(path, &l, e)) return e->code;
    else list_files(path, &l, "", l.n, f);
    names_free(&l);
    if (!f->train.n) return error_set(e, PL_USAGE, "%s: the folder has no files", path);
    return set_format(f, "bytes", f->train.n + f->validation.n > 1 ? "the bytes of files" : "the bytes of a file");
}

/* A JSON of labelme beside an image looks like an extracted shard. */
static int refuse_labelme(const struct names *folders, struct error *e)
{
    for (uint32_t i = 0; i < folders->n; i++) {
        struct names l = {0};
        if (dir_list_ending(folders->at[i], ".json", &l, e)) return e->code;
        char head[4096] = "";
        if (l.n) peek(l.at[0], head, sizeof head);
        bool labelme = strstr(head, "\"shapes\"") && !strstr(head, "\"annotations\"");
        if (labelme)
            error_set(
                e, PL_USAGE,
                "%s is a file of labelme, which is not read: convert the folder to COCO with labelme's labelme2coco.py",
                l.at[0]);
        names_free(&l);
        if (labelme) return e->code;
    }
    return PL_OK;
}

static const char *put_affix(struct detected *f, const char *affix)
{
    return *affix ? bump_string(&f->memory, affix) : NULL;
}

/* The keys of a layout; those with the default value are left out. */
static void put_layout(const struct layout *l, struct detected *f)
{
    const struct layout_part *t = &l->train, *v = &l->validation;
    const struct affixes *a = &t->affixes;
    bool usual = !strcmp(t->images, "images") && !strcmp(t->masks, "masks"),
         shared = v->pairs && !strcmp(l->root, l->validation_root);
    vec_push(&f->train, mem_string(l->root));
    if (v->pairs && !shared) vec_push(&f->validation, mem_string(l->validation_root));
    if (!usual || shared) f->images = bump_string(&f->memory, t->images), f->masks = bump_string(&f->memory, t->masks);
    if (shared)
        f->validation_images = bump_string(&f->memory, v->images),
        f->validation_masks = bump_string(&f->memory, v->masks);
    f->image_prefix = put_affix(f, a->at[IMAGE_PREFIX]);
    f->image_suffix = put_affix(f, a->at[IMAGE_SUFFIX]);
    f->mask_prefix = put_affix(f, a->at[MASK_PREFIX]);
    f->mask_suffix = put_affix(f, a->at[MASK_SUFFIX]);
    if (l->train_list)
        f->train_list = bump_string(&f->memory, l->train_list),
        f->validation_list = bump_string(&f->memory, l->validation_list);
    f->voc = l->voc;
}

static int detect_layout(const char *folder, const struct samples_options *given, struct detected *f, struct error *e)
{
    const char *const from[AFFIXES] = {given->image_prefix, given->image_suffix, given->mask_prefix,
                                       given->mask_suffix};
    struct affixes a = {0};
    struct layout l;
    bool any = false;
    for (int i = 0; i < AFFIXES; i++)
        if (from[i]) any = true, snprintf(a.at[i], sizeof a.at[i], "%s", from[i]);
    int rc = layout_find(&l, folder, any ? &a : NULL, e);
    if (!rc) put_layout(&l, f);
    layout_free(&l);
    return rc ? rc : set_format(f, "pairs", f->voc ? "images and masks of Pascal VOC" : "images and masks by name");
}

/* The folders of --images and --masks. */
static int use_given(const char *folder, const struct samples_options *given, struct detected *f)
{
    vec_push(&f->train, mem_string(folder));
    f->images = given->images, f->masks = given->masks;
    f->image_prefix = given->image_prefix, f->image_suffix = given->image_suffix, f->mask_prefix = given->mask_prefix,
    f->mask_suffix = given->mask_suffix;
    return set_format(f, "pairs", "images and masks by name");
}

/* Files without an ending may be DICOM. */
static int refuse_plain(const char *folder, const struct names *l, struct error *e)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l->at[i]);
        const struct unread *u = strchr(l->at[i], '.') || dir_exists(path.at) ? NULL : unread_file(path.at);
        text_free(&path);
        if (u) return unread_refuse(u, l->n, folder, l->at[i], e);
    }
    return PL_OK;
}

/* Whether there are images below the folder, also of formats that are not read. A .npy in the
 * folder itself is a file of tokens. */
static bool has_images(const char *folder, const struct names *l)
{
    struct image_tree t;
    struct error ignored;
    bool found = !image_tree_read(&t, folder, NULL, &ignored) &&
                 (t.files.n || (t.unread && !(count(l, ".npy") && is_tokens(t.unread_example))));
    image_tree_free(&t);
    return found;
}

/* Files of conversations. Those with val or test in their names are for validation. */
static bool detect_texts(const char *folder, const struct names *l, struct detected *f)
{
    const char *what = NULL;
    for (uint32_t i = 0; i < l->n; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l->at[i]);
        const bool json = path_has_ending(l->at[i], ".json") || path_has_ending(l->at[i], ".jsonl") ||
                          path_has_ending(l->at[i], ".ndjson");
        const char *found = json ? detect_conversations(path.at) : NULL;
        if (found && !strcmp(found, "texts") && has_images(folder, l)) found = NULL; /* captions of images */
        if (found) add(is_validation(l->at[i]) ? &f->validation : &f->train, folder, l->at[i]), what = found;
        text_free(&path);
    }
    if (!f->train.n) f->train = f->validation, f->validation = (struct names){0};
    if (what) set_format(f, "conversations", what);
    return what;
}

static int detect_folder(const char *folder, const struct names *l, const struct samples_options *given,
                         struct detected *f, struct error *e)
{
    if (given->images || given->masks) return use_given(folder, given, f);
    if (count(l, ".pack")) return list_shards(folder, l, "*.pack", f), set_format(f, "packed", "packed stores");
    if (detect_index(folder, l, f)) return set_format(f, "packed", "an index with a memory map of masks");
    if (count(l, ".tar")) return list_shards(folder, l, "*.tar", f), set_format(f, "sa1b", "tar shards");
    if (detect_coco(folder, l, f)) return set_format(f, "coco", "COCO's instances");
    if (detect_tables(folder, l, given, f)) return set_format(f, "csv", "a table of images and masks");
    if (detect_extracted(folder, l, f))
        return refuse_labelme(&f->train, e) ? e->code : set_format(f, "sa1b", "extracted shards");
    if (detect_texts(folder, l, f) || detect_parquet(folder, f)) return PL_OK;
    if (has_images(folder, l)) return detect_layout(folder, given, f, e);
    if (detect_endings(folder, l, (const char *const[]){".npy", ".bin", ".tokens", ".safetensors", NULL}, f))
        return set_format(f, "tokens", "files of tokens");
    if (detect_endings(folder, l, (const char *const[]){".txt", ".text", NULL}, f))
        return set_format(f, "text", "files of plain text");
    if (refuse_plain(folder, l, e)) return e->code;
    struct text names = {0};
    for (uint32_t i = 0; i < l->n && i < 5; i++) text_printf(&names, "%s%s", i ? ", " : "", l->at[i]);
    error_set(e, PL_USAGE,
              "%s: no known format among %u %s (%.200s%s). Known are: *.tar shards, or folders of x.jpg + x.json; "
              "COCO's instances_*.json; "
              "images and masks, in two folders or in one; a .csv with columns of images and masks; *.pack; index.json "
              "+ masks.u8; tokens as .npy, .bin, .tokens, .safetensors; plain text as .txt; conversations as .json, "
              ".jsonl; Parquet tables of conversations, or of images and masks",
              folder, l->n, l->n == 1 ? "file" : "files", names.n ? names.at : "the folder is empty",
              l->n > 5 ? ", ..." : "");
    text_free(&names);
    return e->code;
}

int detect_data(const char *path, bool bytes, const struct samples_options *given, struct detected *f, struct error *e)
{
    struct names l = {0}, matches = {0};
    *f = (struct detected){0};
    char *folder = mem_string(path);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--) folder[n - 1] = 0;
    int rc = PL_OK;
    if (bytes) {
        rc = detect_bytes(folder, f, e);
    } else if (dir_exists(folder)) {
        rc = dir_list(folder, &l, e);
        if (!rc) rc = detect_folder(folder, &l, given, f, e);
    } else if (file_exists(folder)) {
        rc = detect_file(folder, given, f, e);
    } else {
        rc = file_glob(path, &matches, e);
        if (!rc && !matches.n) rc = error_set(e, PL_USAGE, "%s: no such file or folder", path);
        if (!rc) rc = detect_file(matches.at[0], given, f, e);
        /* keep the glob, which matches all of them */
        if (!rc) mem_free(f->train.at[0]), f->train.at[0] = mem_string(path);
    }
    if (!rc && given->image_column) f->image_column = given->image_column;
    if (!rc && given->mask_column) f->mask_column = given->mask_column;
    if (rc) detected_free(f);
    names_free(&matches);
    names_free(&l);
    mem_free(folder);
    return rc;
}
