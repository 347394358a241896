/*
 * init_look.c: recognises data by the names of files, and where these leave a doubt by their
 * first bytes. The order of the tests is that of how sure they are: a .pack is nothing else,
 * while a .bin or a .txt may be anything.
 */
#include "cli/init.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "data/csv.h"

enum { LISTED = 64 }; /* token files that are named one by one, so that one can be held out */

void found_free(struct found *f)
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

static int settle(struct found *f, const char *format, const char *what)
{
    f->format = format;
    f->what = what;
    return PL_OK;
}

/* The first n - 1 bytes of a file, without white space before them. */
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

/* A list of rows with masks in a memory map; a map with lists of images and annotations; else
 * something that is not ours, such as the annotations of one image. */
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

/* Whether the table's first line names the columns, and which splits its rows name. */
static bool look_csv(const char *path, struct found *f)
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

static bool is_tokens(const char *name) { return ends_in(name, ".npy") || ends_in(name, ".bin") || ends_in(name, ".tokens") || ends_in(name, ".txt") || ends_in(name, ".safetensors"); }

static int look_file(const char *path, struct found *f, struct error *e)
{
    const char *json = ends_in(path, ".json") ? json_kind(path) : NULL;
    vec_push(&f->train, mem_string(path));
    if (ends_in(path, ".pack")) return settle(f, "packed", "a packed store");
    if (ends_in(path, ".tar")) return settle(f, "sa1b", "a tar shard");
    if (json) return settle(f, json, *json == 'p' ? "an index with a memory map of masks" : "COCO's instances");
    if (ends_in(path, ".csv") && look_csv(path, f)) return settle(f, "csv", "a table of images and masks");
    if (is_tokens(path)) return settle(f, "tokens", "a file of tokens");
    return error_set(e, PL_USAGE, "%s: it is none of the files that are known: a .pack, a .tar shard, COCO's instances (.json), a .csv with columns image and mask, "
                     "tokens (.npy, .bin, .tokens, .safetensors, .txt)", path);
}

/* ---- a folder ---- */

static uint32_t count(const struct names *l, const char *ending)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) n += ends_in(l->at[i], ending);
    return n;
}

/* a.jpg beside a.json, of which some are enough. */
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

/* COCO's files of a folder: what is called val or test is for validation. */
static bool look_coco(const char *folder, const struct names *l, struct found *f)
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

static bool look_annotations(const char *folder, struct found *f)
{
    struct names l = {0};
    struct error ignored;
    struct text path = {0};
    text_printf(&path, "%s/annotations", folder);
    bool found = dir_exists(path.at) && !dir_list(path.at, &l, &ignored) && look_coco(path.at, &l, f);
    names_free(&l);
    text_free(&path);
    return found;
}

static bool look_index(const char *folder, const struct names *l, struct found *f)
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

static bool look_tables(const char *folder, const struct names *l, struct found *f)
{
    for (uint32_t i = 0; i < l->n && !f->train.n; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", folder, l->at[i]);
        if (ends_in(l->at[i], ".csv") && look_csv(path.at, f)) add(&f->train, folder, l->at[i]);
        text_free(&path);
    }
    return f->train.n;
}

/* Extracted shards: the pairs lie in the folder or in those below it. */
static bool look_extracted(const char *folder, const struct names *l, struct found *f)
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

/* Files of one ending. What is called val is for validation; else the last of several. */
static bool look_tokens(const char *folder, const struct names *l, struct found *f)
{
    static const char *const endings[] = {".npy", ".bin", ".tokens", ".safetensors", ".txt"};
    for (size_t k = 0; k < COUNT(endings); k++) {
        uint32_t n = count(l, endings[k]);
        if (!n) continue;
        char pattern[32];
        snprintf(pattern, sizeof pattern, "*%s", endings[k]);
        if (n > LISTED) add(&f->train, folder, pattern);
        for (uint32_t i = 0; i < l->n && n <= LISTED; i++)
            if (ends_in(l->at[i], endings[k])) add(strstr(l->at[i], "val") ? &f->validation : &f->train, folder, l->at[i]);
        if (n <= LISTED && !f->validation.n && f->train.n > 1) vec_push(&f->validation, f->train.at[--f->train.n]);
        if (!f->train.n) vec_push(&f->train, f->validation.at[--f->validation.n]);
        return true;
    }
    return false;
}

static int look_folder(const char *folder, const struct names *l, struct found *f, struct error *e)
{
    if (count(l, ".pack")) return add(&f->train, folder, "*.pack"), settle(f, "packed", "packed stores");
    if (look_index(folder, l, f)) return settle(f, "packed", "an index with a memory map of masks");
    if (count(l, ".tar")) return add(&f->train, folder, "*.tar"), settle(f, "sa1b", "tar shards");
    if (look_coco(folder, l, f) || look_annotations(folder, f)) return settle(f, "coco", "COCO's instances");
    if (has_folder(folder, "images") && has_folder(folder, "masks")) return vec_push(&f->train, mem_string(folder)), settle(f, "pairs", "images and masks by name");
    if (look_tables(folder, l, f)) return settle(f, "csv", "a table of images and masks");
    if (look_extracted(folder, l, f)) return settle(f, "sa1b", "extracted shards");
    if (look_tokens(folder, l, f)) return settle(f, "tokens", "files of tokens");
    struct text names = {0};
    for (uint32_t i = 0; i < l->n && i < 5; i++) text_printf(&names, "%s%s", i ? ", " : "", l->at[i]);
    error_set(e, PL_USAGE, "%s: nothing is recognised among %u %s (%.200s%s). Known are: *.tar shards, or folders of x.jpg + x.json; COCO's instances_*.json; "
              "images/ and masks/; a .csv with columns image and mask; *.pack; index.json + masks.u8; tokens as .npy, .bin, .tokens, .safetensors, .txt",
              folder, l->n, l->n == 1 ? "name" : "names", names.n ? names.at : "the folder is empty", l->n > 5 ? ", ..." : "");
    text_free(&names);
    return e->code;
}

int init_look(const char *path, struct found *f, struct error *e)
{
    struct names l = {0}, matches = {0};
    *f = (struct found){0};
    char *folder = mem_string(path);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--) folder[n - 1] = 0;
    int rc = PL_OK;
    if (dir_exists(folder)) {
        rc = dir_list(folder, &l, e);
        if (!rc) rc = look_folder(folder, &l, f, e);
    } else if (file_exists(folder)) {
        rc = look_file(folder, f, e);
    } else {
        rc = file_glob(path, &matches, e);
        if (!rc && !matches.n) rc = error_set(e, PL_USAGE, "%s: there is no such file or folder", path);
        if (!rc) rc = look_file(matches.at[0], f, e);
        if (!rc) mem_free(f->train.at[0]), f->train.at[0] = mem_string(path); /* the pattern for all of them */
    }
    if (rc) found_free(f);
    names_free(&matches);
    names_free(&l);
    mem_free(folder);
    return rc;
}
