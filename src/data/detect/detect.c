/*
 * detect.c: see detect.h. The most specific tests come first: a .pack has one meaning, a .bin may
 * be anything.
 *
 * Names say which part of the dataset a file belongs to, for every format: files with val in their
 * names are evaluated on, or if there are none those with test; the others are trained on.
 */
#include "data/detect/detect.h"

#include <strings.h>

#include "data/detect/layout.h"
#include "data/formats/csv.h"
#include "data/images/image_files.h"
#include "data/images/image.h"
#include "data/text/conversation.h"
#include "data/text/tokens.h"
#include "data/text/records.h"
#include "io/parquet.h"

/* PARTS: subfolders that are looked into for COCO files. LISTED: up to this many files are listed
 * one by one, so that one can be held out. */
enum { PARTS = 64, LISTED = 64, OBJECTS_TRIED = 16, OBJECTS_READ = 64, IMAGES_TRIED = 8 };

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
    struct dataset_options o = f->set;
    o.paths = paths->at, o.n_paths = paths->n;
    if (validation && f->validation_images) o.images = f->validation_images;
    if (validation && f->validation_masks) o.masks = f->validation_masks;
    o.split.column = validation ? f->validation_split : f->train_split;
    o.split.list = validation ? f->validation_list : f->train_list;
    return o;
}

static int set_format(struct detected *f, const char *format, const char *what)
{
    f->set.format = format;
    f->what = what;
    return PL_OK;
}

/* --- one file ------------------------------------------------------------------------------- */

/* Reads up to n - 1 bytes from the beginning of a file, less leading white space. */
static void peek(const char *path, char *to, size_t n)
{
    to[file_peek(path, to, n - 1)] = 0;
    size_t blank = strspn(to, " \n\r\t");
    memmove(to, to + blank, strlen(to + blank) + 1);
}

/* Returns packed for a list of rows of a memory map, coco for a map with the lists images and
 * annotations; NULL: another file, such as the annotations of one image. */
static const char *json_kind(const char *path)
{
    char head[4096];
    if (!path_has_ending(path, ".json")) return NULL;
    peek(path, head, sizeof head);
    if (head[0] == '[') return strstr(head, "mask_start_idx") ? "packed" : NULL;
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    /* CVAT and others; Roboflow */
    if (!strncmp(base, "instances", 9) || path_has_ending(base, ".coco.json")) return "coco";
    return head[0] == '{' && !strstr(head, "\"image\"") &&
                   (strstr(head, "\"images\"") || strstr(head, "\"annotations\"") || strstr(head, "\"supercategory\""))
               ? "coco"
               : NULL;
}

static bool is_table(const char *name) { return path_has_ending(name, ".csv") || path_has_ending(name, ".tsv"); }

const char *detect_format(const char *path)
{
    if (path_has_ending(path, ".pack")) return "packed";
    if (path_has_ending(path, ".tar")) return "sa1b";
    if (is_table(path)) return "csv";
    return parquet_is(path) ? "parquet" : json_kind(path);
}

const char *detect_conversations(const char *path)
{
    static const char *const keys[] = {"\"messages\"",    "\"conversations\"", "\"conversation\"",
                                       "\"instruction\"", "\"completion\"",    "\"text\""};
    struct records r;
    struct record x;
    struct error ignored;
    const bool table = parquet_is(path);
    bool more = true, may_be = table;
    const char *what = NULL;
    if (table ? parquet_set_usual(path) : !records_peek(path)) return NULL; /* images and masks, perhaps with texts */
    if (!table) { /* a key of conversations in the first bytes: other JSON, such as COCO's, can be large */
        enum { LOOKED_AT = 1 << 16 };
        char *head = mem_alloc(LOOKED_AT + 1);
        const size_t n = file_peek(path, head, LOOKED_AT);
        for (size_t i = 0; i < COUNT(keys) && !may_be; i++) may_be = memmem(head, n, keys[i], strlen(keys[i]));
        mem_free(head);
    }
    if (!may_be || records_open(&r, path, RECORD_MOST, &ignored)) return NULL;
    /* the first ones may be damaged */
    for (int i = 0; i < OBJECTS_TRIED && !what && !records_next(&r, &x, &more, &ignored) && more; i++) {
        struct bump b = {0};
        struct value *sample;
        if (!conversation_parse(x.text, x.n, RECORD_MOST, &b, &sample, &ignored)) what = conversation_format(sample);
        bump_free(&b);
    }
    records_close(&r);
    return !what && table ? "a table of conversations" : what; /* by its columns; reading it says what is wrong */
}

/* Finds the values of the split column, from the current row on: train and, to evaluate on, val,
 * valid, validation or test. */
static void detect_splits(struct csv *c, int column, struct detected *f)
{
    static const char *const values[] = {"train", "val", "valid", "validation", "test"};
    bool train = false, more;
    size_t held = COUNT(values);
    struct error ignored;
    do {
        for (size_t i = 0; i < COUNT(values) && (uint32_t)column < c->n; i++) {
            if (strcasecmp(c->fields[column], values[i])) continue;
            if (!i) train = true;
            else if (i < held) held = i;
        }
    } while (!csv_next(c, &more, &ignored) && more);
    if (train && held < COUNT(values)) f->train_split = values[0], f->validation_split = values[held];
}

static const char *unusual(struct detected *f, const struct csv *c, int column, const char *usual)
{
    return column < 0 || !strcmp(c->fields[column], usual) ? NULL : bump_string(&f->memory, c->fields[column]);
}

static bool names_image(const struct csv *c, int column)
{
    return (uint32_t)column < c->n && (is_image_name(c->fields[column]) || unread_by_name(c->fields[column]));
}

/* Reports whether the table has columns of images and masks, by the given or by usual names, and
 * keeps those with other names: `label` may as well be the class of an image, so the first row must
 * name files. */
static bool detect_csv(const char *path, const struct dataset_options *given, struct detected *f)
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
        const char *images = unusual(f, c, image, "image"), *masks = unusual(f, c, mask, "mask"),
                   *splits = unusual(f, c, split, "split");
        fits = !csv_next(c, &more, &e) && more && names_image(c, image) && names_image(c, mask);
        if (fits && split >= 0) detect_splits(c, split, f);
        f->set.image_column = fits ? images : NULL, f->set.mask_column = fits ? masks : NULL;
        f->set.split_column = f->train_split ? splits : NULL;
    }
    mem_free(c);
    mem_free(text);
    return fits;
}

static bool is_tokens(const char *name)
{
    return path_has_ending(name, ".npy") || path_has_ending(name, ".bin") || path_has_ending(name, ".tokens") ||
           path_has_ending(name, ".safetensors");
}

/* Sets the format of Parquet tables by the first of them. Opening it names the columns that are
 * missing. */
static int set_parquet(struct detected *f)
{
    const char *text = detect_conversations(f->train.at[0]);
    return set_format(f, text ? "conversations" : "parquet", text ? text : "a Parquet table of images and masks");
}

static int detect_file(const char *path, const struct dataset_options *given, struct detected *f, struct error *e)
{
    TRY(file_check(path, e));
    const char *format = detect_format(path);
    const struct unread *u = unread_file(path);
    vec_push(&f->train, mem_string(path));
    if (format && !strcmp(format, "parquet")) {
        set_parquet(f);
        if (!strcmp(f->set.format, "conversations")) f->set.images = given->images;
        return PL_OK;
    }
    if (format && !strcmp(format, "csv")) detect_csv(path, given, f); /* opening it names missing columns */
    if (format)
        return set_format(f, format, path_has_ending(path, ".pack")  ? "a packed store"
                          : path_has_ending(path, ".tar") ? "a tar shard"
                          : is_table(path)                ? "a table of images and masks"
                          : *format == 'p'                ? "an index with a memory map of masks"
                                                          : "COCO's instances");
    const char *text = detect_conversations(path);
    if (text) return f->set.images = given->images, set_format(f, "conversations", text);
    if (is_tokens(path)) return set_format(f, "tokens", "a file of tokens");
    if (is_plain_text(path)) return set_format(f, "text", "plain text");
    if (u) return unread_refuse(u, 1, NULL, path, e);
    if (is_volume_name(path, NULL)) return volume_refuse(path, e);
    return error_set(e, PL_USAGE,
                     "%s: the format is not recognised; known are: a .pack, a .tar shard, COCO's instances (.json), a "
                     ".csv or .tsv with columns of images and masks, "
                     "tokens (.npy, .bin, .tokens, .safetensors), plain text (.txt, .md), conversations (.json, "
                     ".jsonl), Parquet tables of either", path);
}

/* --- the files of a folder ------------------------------------------------------------------ */

/* Files by the part of the dataset that their names say. */
struct parts {
    struct names train, validation, test;
};

/* Adds FOLDER/NAME to the part that `says` names. */
static void add(struct parts *p, const char *says, const char *folder, const char *name)
{
    vec_push(strcasestr(says, "val")    ? &p->validation
             : strcasestr(says, "test") ? &p->test
                                        : &p->train, path_join(folder, name));
}

/* Decides what is trained and evaluated on; returns false if there are no files. A missing part is
 * replaced by the next one; test files beside validation files are not used. */
static bool settle(struct detected *f, struct parts *p)
{
    struct names *const order[] = {&p->train, &p->validation, &p->test};
    for (int i = 0; i < 3; i++)
        for (int k = i + 1; k < 3 && !order[i]->n; k++) {
            const struct names empty = *order[i];
            *order[i] = *order[k];
            *order[k] = empty;
        }
    for (uint32_t i = 0; i < p->test.n; i++)
        log_warn("%s is not used: the files with val in their names are evaluated on", p->test.at[i]);
    f->train = p->train, f->validation = p->validation;
    names_free(&p->test);
    return f->train.n;
}

static uint32_t count(const struct names *l, const char *ending)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) n += path_has_ending(l->at[i], ending);
    return n;
}

/* Adds the COCO files of a folder. Their names say the part, or that of the folder, `part`. */
static void add_coco(struct parts *p, const char *outer, const char *inner, const char *part)
{
    struct names l = {0};
    struct error ignored;
    char *folder = *inner ? path_join(outer, inner) : mem_string(outer);
    if (!dir_list(folder, &l, &ignored))
        for (uint32_t i = 0; i < l.n; i++) {
            char *path = path_join(folder, l.at[i]);
            const char *kind = json_kind(path);
            if (kind && *kind == 'c') add(p, part ? part : l.at[i], folder, l.at[i]);
            mem_free(path);
        }
    names_free(&l);
    mem_free(folder);
}

/* Finds the COCO files of a folder, of its annotations/, or of its parts as Roboflow has them:
 * train/_annotations.coco.json, valid/, test/. */
static bool detect_coco(const char *folder, const struct names *l, struct detected *f)
{
    struct parts p = {0};
    add_coco(&p, folder, "", NULL);
    if (!p.train.n && !p.validation.n && !p.test.n) add_coco(&p, folder, "annotations", NULL);
    const bool parts = !p.train.n && !p.validation.n && !p.test.n && l->n <= PARTS;
    for (uint32_t i = 0; i < l->n && parts; i++)
        if (strstr(l->at[i], "val") || strstr(l->at[i], "test") || !strncmp(l->at[i], "train", 5))
            add_coco(&p, folder, l->at[i], l->at[i]);
    return settle(f, &p);
}

/* Finds the index of a memory map. */
static bool detect_index(const char *folder, const struct names *l, struct detected *f)
{
    for (uint32_t i = 0; i < l->n && !f->train.n; i++) {
        char *path = path_join(folder, l->at[i]);
        const char *kind = json_kind(path);
        if (kind && *kind == 'p') vec_push(&f->train, path);
        else mem_free(path);
    }
    return f->train.n;
}

/* Finds tables with columns of images and masks; of those to train on the first. */
static bool detect_tables(const char *folder, const struct names *l, const struct dataset_options *given,
                          struct detected *f)
{
    struct parts p = {0};
    for (uint32_t i = 0; i < l->n; i++) {
        const bool held = strcasestr(l->at[i], "val") || strcasestr(l->at[i], "test");
        char *path = path_join(folder, l->at[i]);
        if (is_table(l->at[i]) && (held || !p.train.n) && detect_csv(path, given, f))
            add(&p, l->at[i], folder, l->at[i]);
        mem_free(path);
    }
    const bool found = settle(f, &p);
    if (f->validation.n) f->train_split = f->validation_split = f->set.split_column = NULL;
    return found;
}

/* Reports whether at least one a.jpg has an a.json beside it. */
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

/* Finds extracted shards: the pairs are in the folder or in its subfolders. */
static bool detect_extracted(const char *folder, const struct names *l, struct detected *f)
{
    if (has_pairs(l)) return vec_push(&f->train, mem_string(folder)), true;
    for (uint32_t i = 0; i < l->n; i++) {
        struct names below = {0};
        struct error ignored;
        char *path = path_join(folder, l->at[i]);
        if (dir_exists(path) && !dir_list(path, &below, &ignored) && has_pairs(&below)) vec_push(&f->train, path);
        else mem_free(path);
        names_free(&below);
    }
    return f->train.n;
}

/* Refuses files of labelme, whose JSON beside an image looks like an extracted shard. */
static int refuse_labelme(const struct names *folders, struct error *e)
{
    for (uint32_t i = 0; i < folders->n; i++) {
        struct names l = {0};
        if (dir_list_ending(folders->at[i], ".json", &l, e)) return e->code;
        char head[4096] = "";
        if (l.n) peek(l.at[0], head, sizeof head);
        bool labelme = strstr(head, "\"shapes\"") && !strstr(head, "\"annotations\"");
        if (labelme)
            error_set(e, PL_USAGE,
                "%s is a file of labelme, which is not read: convert the folder to COCO with labelme's labelme2coco.py",
                l.at[0]);
        names_free(&l);
        if (labelme) return e->code;
    }
    return PL_OK;
}

/* Takes the shards or stores of a pattern "*.ending": the pattern itself, or file by file if some
 * are of another part. */
static void take_pattern(const char *folder, const struct names *l, const char *pattern, struct detected *f)
{
    struct parts p = {0};
    for (uint32_t i = 0; i < l->n; i++)
        if (path_has_ending(l->at[i], pattern + 1)) add(&p, l->at[i], folder, l->at[i]);
    settle(f, &p);
    if (f->validation.n) return;
    names_free(&f->train);
    vec_push(&f->train, path_join(folder, pattern));
}

/* Takes the files of a folder that have this ending; "": all. If no name says that a file is
 * evaluated on, the last of several files is. */
static bool take_files(const char *folder, const struct names *l, const char *ending, struct detected *f)
{
    struct parts p = {0};
    const uint32_t n = count(l, ending);
    if (n > LISTED) {
        char pattern[32];
        snprintf(pattern, sizeof pattern, "*%s", ending);
        return vec_push(&f->train, path_join(folder, pattern)), true;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        char *path = path_join(folder, l->at[i]);
        if (l->at[i][0] != '.' && path_has_ending(l->at[i], ending) && !dir_exists(path))
            add(&p, l->at[i], folder, l->at[i]);
        mem_free(path);
    }
    settle(f, &p);
    if (!f->validation.n && f->train.n > 1) vec_push(&f->validation, f->train.at[--f->train.n]);
    return f->train.n;
}

/* Reports whether there are images below the folder, also of formats that are not read. A .npy in
 * the folder itself is a file of tokens. */
static bool has_images(const char *folder, const struct names *l)
{
    struct image_tree t;
    struct error ignored;
    bool found = !image_tree_read(&t, folder, NULL, &ignored) &&
                 (t.files.n || (t.unread && !(count(l, ".npy") && is_tokens(t.unread_example))));
    image_tree_free(&t);
    return found;
}

/* Finds files of conversations. */
static bool detect_texts(const char *folder, const struct names *l, struct detected *f)
{
    struct parts p = {0};
    const char *what = NULL;
    for (uint32_t i = 0; i < l->n; i++) {
        char *path = path_join(folder, l->at[i]);
        const bool json = path_has_ending(path, ".json") || path_has_ending(path, ".jsonl") ||
                          path_has_ending(path, ".ndjson");
        const char *found = json ? detect_conversations(path) : NULL;
        if (found && !strcmp(found, "texts") && has_images(folder, l)) found = NULL; /* captions of images */
        if (found) add(&p, l->at[i], folder, l->at[i]), what = found;
        mem_free(path);
    }
    set_format(f, "conversations", what);
    return settle(f, &p);
}

/* Finds Parquet tables, as a dataset of Hugging Face is downloaded:
 * DIR/train-00000-of-00002.parquet, DIR/data/train-00000-of-00002.parquet or
 * DIR/default/train/0000.parquet. The folders below DIR say the part, too. */
static bool detect_parquet(const char *folder, struct detected *f)
{
    struct parts p = {0};
    struct names files = {0};
    struct error ignored;
    char *pattern = path_join(folder, "{,*/,*/*/}*.parquet");
    if (!file_glob(pattern, &files, &ignored))
        for (uint32_t i = 0; i < files.n; i++) add(&p, files.at[i] + strlen(folder), "", files.at[i]);
    mem_free(pattern);
    names_free(&files);
    return settle(f, &p) && !set_parquet(f);
}

/* Takes the keys of a layout; those with the default value are left out. */
static void put_layout(const struct layout *l, struct detected *f)
{
    const struct layout_part *t = &l->train, *v = &l->validation;
    const bool usual = !strcmp(t->images, "images") && !strcmp(t->masks, "masks"),
               shared = v->pairs && !strcmp(l->root, l->validation_root);
    const char **const to[AFFIXES] = {&f->set.image_prefix, &f->set.image_suffix, &f->set.mask_prefix,
                                      &f->set.mask_suffix};
    vec_push(&f->train, mem_string(l->root));
    if (v->pairs && !shared) vec_push(&f->validation, mem_string(l->validation_root));
    if (!usual || shared) f->set.images = t->images, f->set.masks = t->masks;
    if (shared) f->validation_images = v->images, f->validation_masks = v->masks;
    for (int i = 0; i < AFFIXES; i++)
        if (*t->affixes.at[i]) *to[i] = bump_string(&f->memory, t->affixes.at[i]);
    f->train_list = l->train_list, f->validation_list = l->validation_list;
    if (l->voc) f->set.labels = LABELS_CLASSES, f->set.ignore = 255;
}

static int detect_layout(const char *folder, const struct dataset_options *given, struct detected *f, struct error *e)
{
    const char *const from[AFFIXES] = {given->image_prefix, given->image_suffix, given->mask_prefix,
                                       given->mask_suffix};
    struct affixes a = {0};
    struct layout l;
    bool any = false;
    for (int i = 0; i < AFFIXES; i++)
        if (from[i]) any = true, snprintf(a.at[i], sizeof a.at[i], "%s", from[i]);
    TRY(layout_find(&l, folder, any ? &a : NULL, &f->memory, e));
    put_layout(&l, f);
    return set_format(f, "pairs", l.voc ? "images and masks of Pascal VOC" : "images and masks by name");
}

/* Refuses what a folder of no known format holds: files without an ending may be DICOM. */
static int refuse_folder(const char *folder, const struct names *l, struct error *e)
{
    struct text names = {0};
    for (uint32_t i = 0; i < l->n; i++) {
        char *path = path_join(folder, l->at[i]);
        const struct unread *u = strchr(l->at[i], '.') || dir_exists(path) ? NULL : unread_file(path);
        mem_free(path);
        if (u) return unread_refuse(u, l->n, folder, l->at[i], e);
    }
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

static int detect_folder(const char *folder, const struct names *l, const struct dataset_options *given,
                         struct detected *f, struct error *e)
{
    static const char *const tokens[] = {".npy", ".bin", ".tokens", ".safetensors"}, *const texts[] = {".txt", ".text"};
    if (given->images || given->masks) { /* the user says where they are */
        f->set = (struct dataset_options){.images = given->images, .masks = given->masks,
                                          .image_prefix = given->image_prefix, .image_suffix = given->image_suffix,
                                          .mask_prefix = given->mask_prefix, .mask_suffix = given->mask_suffix};
        vec_push(&f->train, mem_string(folder));
        return set_format(f, "pairs", "images and masks by name");
    }
    if (count(l, ".pack")) return take_pattern(folder, l, "*.pack", f), set_format(f, "packed", "packed stores");
    if (detect_index(folder, l, f)) return set_format(f, "packed", "an index with a memory map of masks");
    if (count(l, ".tar")) return take_pattern(folder, l, "*.tar", f), set_format(f, "sa1b", "tar shards");
    if (detect_coco(folder, l, f)) return set_format(f, "coco", "COCO's instances");
    if (detect_tables(folder, l, given, f)) return set_format(f, "csv", "a table of images and masks");
    if (detect_extracted(folder, l, f))
        return refuse_labelme(&f->train, e) ? e->code : set_format(f, "sa1b", "extracted shards");
    if (detect_texts(folder, l, f) || detect_parquet(folder, f)) return PL_OK;
    if (has_images(folder, l)) return detect_layout(folder, given, f, e);
    for (size_t i = 0; i < COUNT(tokens); i++)
        if (count(l, tokens[i]) && take_files(folder, l, tokens[i], f))
            return set_format(f, "tokens", "files of tokens");
    for (size_t i = 0; i < COUNT(texts); i++)
        if (count(l, texts[i]) && take_files(folder, l, texts[i], f))
            return set_format(f, "text", "files of plain text");
    return refuse_folder(folder, l, e);
}

static int detect_bytes(const char *path, const struct names *l, struct detected *f, struct error *e)
{
    if (!dir_exists(path)) vec_push(&f->train, mem_string(path));
    else if (!take_files(path, l, "", f)) return error_set(e, PL_USAGE, "%s: the folder has no files", path);
    return set_format(f, "bytes", f->train.n + f->validation.n > 1 ? "the bytes of files" : "the bytes of a file");
}

int detect_data(struct detected *f, const char *path, bool bytes, const struct dataset_options *given, struct error *e)
{
    struct names l = {0};
    *f = (struct detected){0};
    char *folder = mem_string(path);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--) folder[n - 1] = 0;
    const bool glob = !bytes && !file_exists(folder);
    int rc = dir_exists(folder) ? dir_list(folder, &l, e) : glob ? file_glob(path, &l, e) : PL_OK;
    if (!rc && glob && !l.n) rc = error_set(e, PL_USAGE, "%s: no such file or folder", path);
    if (!rc)
        rc = bytes                ? detect_bytes(folder, &l, f, e)
             : dir_exists(folder) ? detect_folder(folder, &l, given, f, e)
                                  : detect_file(glob ? l.at[0] : folder, given, f, e);
    /* keep the glob, which matches all of them */
    if (!rc && glob) mem_free(f->train.at[0]), f->train.at[0] = mem_string(path);
    if (given->image_column) f->set.image_column = given->image_column;
    if (given->mask_column) f->set.mask_column = given->mask_column;
    if (rc) detected_free(f);
    names_free(&l);
    mem_free(folder);
    return rc;
}

/* --- images of conversations, and of classes ------------------------------------------------ */

/* Lists the first references to images in a file. */
static void list_images(const char *path, struct names *out)
{
    struct records r;
    struct record x;
    struct error ignored;
    bool more = true;
    if (records_open(&r, path, RECORD_MOST, &ignored)) return;
    for (int i = 0; i < OBJECTS_READ && out->n < IMAGES_TRIED && !records_next(&r, &x, &more, &ignored) && more; i++) {
        struct bump b = {0};
        struct value *sample;
        struct conversation c;
        if (!conversation_parse(x.text, x.n, RECORD_MOST, &b, &sample, &ignored) &&
            !conversation_read(sample, NULL, "", &b, &c, &ignored))
            for (uint32_t k = 0; k < c.media->count && out->n < IMAGES_TRIED; k++)
                vec_push(out, mem_string(c.media->items[k]->text));
        bump_free(&b);
    }
    records_close(&r);
}

/* Reports whether most of the images are below a folder. */
static bool holds_images(const char *folder, const struct names *images)
{
    struct image_files *files;
    struct error ignored;
    uint64_t bytes;
    uint32_t found = 0;
    if (image_files_open(&files, &(struct image_scope){.where = folder}, &ignored)) return false;
    for (uint32_t i = 0; i < images->n; i++) found += !image_files_find(files, images->at[i], &bytes, &ignored);
    image_files_close(files);
    return 2 * found > images->n;
}

/* Returns the folder that has all images, whose paths are absolute; NULL: some are not. */
static char *common_folder(const struct names *images, struct bump *memory)
{
    char *out = bump_string(memory, images->at[0]);
    for (uint32_t i = 0; i < images->n; i++) {
        size_t n = 0, slash = 0;
        for (; out[n] && out[n] == images->at[i][n]; n++)
            if (out[n] == '/') slash = n;
        if (images->at[i][0] != '/') return NULL;
        if (out[n] || !i || images->at[i][n] != '/') out[slash] = 0;
    }
    return *out ? out : bump_string(memory, "/");
}

const char *detect_images(const char *path, struct bump *memory)
{
    static const char *const places[] = {"/images", "/image", "/imgs", "/..", "/../images"};
    struct names images = {0};
    struct error ignored;
    char folder[4096], *found = NULL;
    list_images(path, &images);
    if (images.n && !path_dir(path, folder, sizeof folder, &ignored) && !holds_images(folder, &images)) {
        found = common_folder(&images, memory);
        if (found && !holds_images(found, &images)) found = NULL;
        for (size_t i = 0; i < COUNT(places) && !found; i++) {
            char *place = bump_format(memory, "%s%s", folder, places[i]);
            if (holds_images(place, &images)) found = place;
        }
        if (!found)
            log_warn("%s is not found, nor are most of the first images, in %s or the usual folders beside it: give "
                     "their folder or tar as --images", images.at[0], folder);
    }
    names_free(&images);
    return found;
}

void detect_class_folders(const char *folder, char train[4096], char validation[4096])
{
    static const char *const held[] = {"val", "valid", "validation", "test"};
    validation[0] = 0;
    snprintf(train, 4096, "%s/train", folder);
    if (!dir_exists(train)) {
        snprintf(train, 4096, "%s", folder);
        return;
    }
    for (size_t i = 0; i < COUNT(held) && !dir_exists(validation); i++)
        snprintf(validation, 4096, "%s/%s", folder, held[i]);
    if (!dir_exists(validation)) validation[0] = 0;
}
