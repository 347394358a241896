/*
 * predict_names.c: the file names of the masks of many images (predict_many.h).
 *
 *     flat      OUT/x.png, OUT/d_x-1.png     the name of the image, a slash becomes an underscore
 *     folders   OUT/a/x.png, OUT/b/x.png     where names would be equal otherwise
 *
 * Two masks never get one name: where folders do not tell them apart either, nothing is predicted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/predict_many.h"

/* Appends `n` bytes of a name. Whatever it is, the path stays below the folder: no part is hidden,
 * or leads upwards. */
static void put_name(struct text *out, const char *name, size_t n, bool folders)
{
    const size_t from = out->n;
    text_printf(out, "%.*s", (int)n, name);
    for (size_t i = from; i < out->n; i++) {
        const bool begins = i == from || out->at[i - 1] == '/';
        if ((out->at[i] == '/' && (!folders || begins)) || (out->at[i] == '.' && begins)) out->at[i] = '_';
    }
}

void predict_mask_path(const char *folder, const char *name, bool folders, const char *id, uint32_t number,
                       struct text *out)
{
    const char *slash = strrchr(name, '/'), *dot = strrchr(name, '.');
    const size_t stem = dot && dot > name && (!slash || dot > slash + 1) ? (size_t)(dot - name) : strlen(name);
    text_printf(out, "%s/", folder);
    put_name(out, name, stem, folders);
    const size_t from = out->n;
    if (*id) text_printf(out, "-%s", id);
    else if (number) text_printf(out, "-%u", number);
    for (size_t i = from; i < out->n; i++)
        if (out->at[i] == '/') out->at[i] = '_';
    text_printf(out, ".png");
}

void predict_label_path(const char *folder, const char *name, bool folders, struct text *out)
{
    text_printf(out, "%s/", folder);
    put_name(out, name, strlen(name), folders);
    text_printf(out, ".nii.gz");
}

/* --- equal names ------------------------------------------------------------------------------ */

struct named {
    char *path;
    uint64_t item;
};

struct paths {
    VEC(struct named) all;
    bool folders;
};

static int by_path(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    const int order = strcmp(x->path, y->path);
    return order ? order : (x->item > y->item) - (x->item < y->item);
}

static void add(struct paths *p, struct text *path, uint64_t item)
{
    vec_push(&p->all, ((struct named){mem_string(path->at), item}));
    text_free(path);
}

/* The names of all masks as far as they are known: those of a dataset get the numbers of their
 * masks when they are read. */
static void list_paths(const struct predict_source *s, struct paths *p)
{
    const void *before = NULL;
    char name[sizeof((struct predict_item *)0)->name];
    for (uint64_t i = 0; i < s->n; i++) {
        struct predict_about about = {0};
        struct text path = {0};
        s->about(s, i, p->folders, name, sizeof name, &about);
        if (about.volume && about.volume == before) continue;
        before = about.volume;
        if (about.volume) predict_label_path("", about.volume_name, p->folders, &path), add(p, &path, i);
        else if (!about.n) predict_mask_path("", name, p->folders, "", 0, &path), add(p, &path, i);
        for (uint32_t k = 0; k < about.n && !about.volume; k++) {
            predict_mask_path("", name, p->folders, about.prompts[k].id, about.n > 1 ? k + 1 : 0, &path);
            add(p, &path, i);
        }
    }
}

/* Finds two masks with one name. */
static bool find_equal(const struct predict_source *s, bool folders, struct text *path, uint64_t item[2])
{
    struct paths p = {.folders = folders};
    bool found = false;
    list_paths(s, &p);
    if (p.all.n) qsort(p.all.at, p.all.n, sizeof *p.all.at, by_path);
    for (uint32_t i = 0; i < p.all.n; i++) {
        if (i && !found && !strcmp(p.all.at[i - 1].path, p.all.at[i].path)) {
            found = true;
            item[0] = p.all.at[i - 1].item, item[1] = p.all.at[i].item;
            text_printf(path, "%s", p.all.at[i].path + 1);
        }
        if (i) mem_free(p.all.at[i - 1].path);
    }
    if (p.all.n) mem_free(p.all.at[p.all.n - 1].path);
    vec_free(&p.all);
    return found;
}

int predict_choose_names(struct predict_source *s, struct error *e)
{
    struct text path = {0};
    struct predict_about about;
    uint64_t item[2];
    char name[2][sizeof((struct predict_item *)0)->name];
    s->folders = false;
    if (!find_equal(s, false, &path, item)) return PL_OK;
    text_free(&path);
    s->folders = true;
    if (!find_equal(s, true, &path, item)) return PL_OK;
    for (int i = 0; i < 2; i++) s->about(s, item[i], true, name[i], sizeof name[i], &about);
    if (item[0] == item[1])
        error_set(e, PL_USAGE, "%s has two prompts whose masks would both be %s: give each prompt an id of its own",
                  name[0], path.at);
    else
        error_set(e, PL_USAGE,
                  "the masks of %s and %s would both be %s: rename one of them, or predict them with another -o",
                  name[0], name[1], path.at);
    text_free(&path);
    return e->code;
}

int predict_make_folder(const char *path, struct error *e)
{
    char folder[4096];
    return path_dir(path, folder, sizeof folder, e) ? e->code : dir_make(folder, e);
}

int predict_check_ids(const struct predict_item *x, struct error *e)
{
    for (uint32_t i = 0; i < x->n && !x->volume; i++)
        for (uint32_t k = i + 1; k < x->n; k++)
            if (*x->prompts[i].id && !strcmp(x->prompts[i].id, x->prompts[k].id))
                return error_set(e, PL_USAGE, "two of its masks have the id %s: they would be one file",
                                 x->prompts[i].id);
    return PL_OK;
}
