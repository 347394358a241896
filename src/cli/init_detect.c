/*
 * init_detect.c: detects the format of data from file names, and where these are ambiguous from the
 * first bytes. The most specific tests come first: a .pack has one meaning, a .bin may be anything.
 */
#include "cli/init.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "data/csv.h"

enum { LISTED = 64 }; /* up to this many token files are listed one by one, so that one can be held out */

void detected_free(struct detected *f)
{
    names_free(&f->train);
    names_free(&f->validation);
}

static bool ends_in(const char *s, const char *ending)
{
    size_t n = strlen(s), m = strlen(ending);
    return n > m && !strcasecmp(s + n - m, ending);
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

/* Reads the first n - 1 bytes of a file after leading white space. */
static void peek(const char *path, char *to, size_t n)
{
    FILE *file = fopen(path, "rb");
    size_t got = 0;
    int c;
    while (file && got + 1 < n && (c = fgetc(file)) != EOF)
        if (got || (c != ' ' && c != '\n' && c != '\r' && c != '\t')) to[got++] = (char)c;
    to[got] = 0;
    if (file) fclose(file);
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
    if (!strncmp(base, "instances", 9)) return "coco";
    const char *images = strstr(head, "\"images\""), *annotations = strstr(head, "\"annotations\"");
    return head[0] == '{' && (images || annotations) && !strstr(head, "\"image\"") ? "coco" : NULL;
}

/* Whether the first line of the table has the columns image and mask; also finds the values of
 * the split column. */
static bool detect_csv(const char *path, struct detected *f)
{
    char *text;
    size_t n;
    bool more, val = false, validation = false, test = false, train = false;
    struct error e;
    if (file_read(path, 1ull << 30, &text, &n, &e)) return false;
    struct csv *c = mem_alloc(sizeof *c);
    csv_begin(c, text, n);
    bool fits = !csv_next(c, &more, &e) && more && csv_column(c, "image") >= 0 && csv_column(c, "mask") >= 0;
    int split = fits ? csv_column(c, "split") : -1;
    while (split >= 0 && !csv_next(c, &more, &e) && more && (uint32_t)split < c->n) {
        const char *value = c->fields[split];
        train |= !strcmp(value, "train");
        val |= !strcmp(value, "val");
        validation |= !strcmp(value, "validation");
        test |= !strcmp(value, "test");
    }
    if (train && (val || validation || test)) f->train_split = "train", f->validation_split = val ? "val" : validation ? "validation" : "test";
    mem_free(c);
    mem_free(text);
    return fits;
}

static bool is_tokens(const char *name) { return ends_in(name, ".npy") || ends_in(name, ".bin") || ends_in(name, ".tokens") || ends_in(name, ".safetensors"); }

static int detect_file(const char *path, struct detected *f, struct error *e)
{
    const char *json = ends_in(path, ".json") ? json_kind(path) : NULL;
    vec_push(&f->train, mem_string(path));
    if (ends_in(path, ".pack")) return set_format(f, "packed", "a packed store");
    if (ends_in(path, ".tar")) return set_format(f, "sa1b", "a tar shard");
    if (json) return set_format(f, json, *json == 'p' ? "an index with a memory map of masks" : "COCO's instances");
    if (ends_in(path, ".csv") && detect_csv(path, f)) return set_format(f, "csv", "a table of images and masks");
    if (is_tokens(path)) return set_format(f, "tokens", "a file of tokens");
    return error_set(e, PL_USAGE, "%s: the format is not recognised; known are: a .pack, a .tar shard, COCO's instances (.json), a .csv with columns image and mask, "
                     "tokens (.npy, .bin, .tokens, .safetensors)", path);
}

/* ---- a folder ---- */

static uint32_t count(const struct names *l, const char *ending)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) n += ends_in(l->at[i], ending);
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

/* The COCO files of a folder. Files with val or test in their names are for validation. */
static bool detect_coco(const char *folder, const struct names *l, struct detected *f)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l->at[i]);
        const char *kind = ends_in(l->at[i], ".json") ? json_kind(path.at) : NULL;
        if (kind && *kind == 'c') add(strstr(l->at[i], "val") || strstr(l->at[i], "test") ? &f->validation : &f->train, folder, l->at[i]);
        text_free(&path);
    }
    if (!f->train.n && f->validation.n) {
        struct names only = f->validation;
        f->validation = f->train;
        f->train = only;
    }
    return f->train.n;
}

static bool detect_annotations(const char *folder, struct detected *f)
{
    struct names l = {0};
    struct error ignored;
    struct text path = {0};
    text_printf(&path, "%s/annotations", folder);
    bool found = dir_exists(path.at) && !dir_list(path.at, &l, &ignored) && detect_coco(path.at, &l, f);
    names_free(&l);
    text_free(&path);
    return found;
}

static bool detect_index(const char *folder, const struct names *l, struct detected *f)
{
    for (uint32_t i = 0; i < l->n; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l->at[i]);
        const char *kind = ends_in(l->at[i], ".json") ? json_kind(path.at) : NULL;
        if (kind && *kind == 'p') vec_push(&f->train, mem_string(path.at));
        text_free(&path);
        if (f->train.n) return true;
    }
    return false;
}

static bool detect_tables(const char *folder, const struct names *l, struct detected *f)
{
    for (uint32_t i = 0; i < l->n && !f->train.n; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l->at[i]);
        if (ends_in(l->at[i], ".csv") && detect_csv(path.at, f)) add(&f->train, folder, l->at[i]);
        text_free(&path);
    }
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
        if (dir_exists(path.at) && !dir_list(path.at, &below, &ignored) && has_pairs(&below)) add(&f->train, folder, l->at[i]);
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
        if (l->at[i][0] != '.' && ends_in(l->at[i], ending) && !has_folder(folder, l->at[i])) add(strstr(l->at[i], "val") ? &f->validation : &f->train, folder, l->at[i]);
    if (n <= LISTED && !f->validation.n && f->train.n > 1) vec_push(&f->validation, f->train.at[--f->train.n]);
    if (!f->train.n && f->validation.n) vec_push(&f->train, f->validation.at[--f->validation.n]);
}

/* Token files of one extension. */
static bool detect_tokens(const char *folder, const struct names *l, struct detected *f)
{
    static const char *const endings[] = {".npy", ".bin", ".tokens", ".safetensors"};
    for (size_t k = 0; k < COUNT(endings) && !f->train.n; k++) {
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

static int detect_folder(const char *folder, const struct names *l, struct detected *f, struct error *e)
{
    if (count(l, ".pack")) return add(&f->train, folder, "*.pack"), set_format(f, "packed", "packed stores");
    if (detect_index(folder, l, f)) return set_format(f, "packed", "an index with a memory map of masks");
    if (count(l, ".tar")) return add(&f->train, folder, "*.tar"), set_format(f, "sa1b", "tar shards");
    if (detect_coco(folder, l, f) || detect_annotations(folder, f)) return set_format(f, "coco", "COCO's instances");
    if (has_folder(folder, "images") && has_folder(folder, "masks")) return vec_push(&f->train, mem_string(folder)), set_format(f, "pairs", "images and masks by name");
    if (detect_tables(folder, l, f)) return set_format(f, "csv", "a table of images and masks");
    if (detect_extracted(folder, l, f)) return set_format(f, "sa1b", "extracted shards");
    if (detect_tokens(folder, l, f)) return set_format(f, "tokens", "files of tokens");
    struct text names = {0};
    for (uint32_t i = 0; i < l->n && i < 5; i++) text_printf(&names, "%s%s", i ? ", " : "", l->at[i]);
    error_set(e, PL_USAGE, "%s: no known format among %u %s (%.200s%s). Known are: *.tar shards, or folders of x.jpg + x.json; COCO's instances_*.json; "
              "images/ and masks/; a .csv with columns image and mask; *.pack; index.json + masks.u8; tokens as .npy, .bin, .tokens, .safetensors",
              folder, l->n, l->n == 1 ? "file" : "files", names.n ? names.at : "the folder is empty", l->n > 5 ? ", ..." : "");
    text_free(&names);
    return e->code;
}

int detect_data(const char *path, bool bytes, struct detected *f, struct error *e)
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
        if (!rc) rc = detect_folder(folder, &l, f, e);
    } else if (file_exists(folder)) {
        rc = detect_file(folder, f, e);
    } else {
        rc = file_glob(path, &matches, e);
        if (!rc && !matches.n) rc = error_set(e, PL_USAGE, "%s: no such file or folder", path);
        if (!rc) rc = detect_file(matches.at[0], f, e);
        if (!rc) mem_free(f->train.at[0]), f->train.at[0] = mem_string(path); /* keep the glob, which matches all of them */
    }
    if (rc) detected_free(f);
    names_free(&matches);
    names_free(&l);
    mem_free(folder);
    return rc;
}
