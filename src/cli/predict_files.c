/*
 * predict_files.c: see predict_many.h.
 *
 * With a file of prompts, its names of images are relative to the folder that is given, or to the
 * file's own. Without one, every image has the prompt of the command line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/predict_many.h"
#include "data/images/image.h"

struct image_file {
    char *path;
    const char *name; /* without folders, or as the file of prompts names it */
    /* the path with its whole folder, of an image that is given; NULL: its name is that of a file
     * of prompts */
    char *whole;
    uint32_t first, n; /* prompts */
};

struct files {
    const struct predict *p;
    struct image_prompts prompts;
    VEC(struct image_file) all;
    size_t common; /* bytes of `whole` that are the folder of all images */
};

static void close_files(struct predict_source *s)
{
    struct files *f = s->state;
    for (uint32_t i = 0; i < f->all.n; i++) mem_free(f->all.at[i].path), mem_free(f->all.at[i].whole);
    vec_free(&f->all);
    image_prompts_free(&f->prompts);
    mem_free(f);
}

static const char *name_of(const struct files *f, const struct image_file *x, bool folders)
{
    return folders && x->whole ? x->whole + f->common : x->name;
}

static void about_file(const struct predict_source *s, uint64_t i, bool folders, char *name, size_t room,
                       struct predict_about *out)
{
    const struct files *f = s->state;
    const struct image_file *x = &f->all.at[i];
    snprintf(name, room, "%s", name_of(f, x, folders));
    *out = (struct predict_about){.prompts = f->prompts.all.at + x->first, .n = x->n};
}

static int read_file(struct predict_source *s, uint64_t i, struct predict_item *out, struct error *e)
{
    const struct files *f = s->state;
    const struct image_file *x = &f->all.at[i];
    struct pixel_range range = f->p->range;
    snprintf(out->name, sizeof out->name, "%s", name_of(f, x, s->folders));
    out->prompts = f->prompts.all.at + x->first;
    out->n = x->n;
    return predictor_image_read(&out->image, x->path, &range, e);
}

int predict_shape(struct predict_source *s, uint32_t points, bool box, struct error *e)
{
    for (uint32_t k = 0; k < s->n_shapes; k++)
        if (s->shapes[k].points == points && s->shapes[k].box == box) return PL_OK;
    if (s->n_shapes == PREDICTORS_MOST)
        return error_set(
            e, PL_USAGE,
            "prompts have more than %d numbers of points, with and without a box; each takes memory of its own",
            PREDICTORS_MOST);
    s->shapes[s->n_shapes++] = (struct predictor_shape){.points = points, .box = box};
    return PL_OK;
}

/* --- the list of images ----------------------------------------------------------------------- */

static char *joined(const char *folder, const char *name)
{
    struct text path = {0};
    if (*name == '/') text_printf(&path, "%s", name);
    else text_printf(&path, "%s/%s", folder, name);
    char *kept = mem_string(path.at);
    text_free(&path);
    return kept;
}

/* Images of the file of prompts: all must be there. */
static int list_prompted(struct files *f, struct predict_source *s, const char *folder, struct error *e)
{
    const struct image_prompts *q = &f->prompts;
    for (uint32_t i = 0, n; i < q->all.n; i += n) {
        for (n = 1; i + n < q->all.n && !strcmp(q->all.at[i + n].image, q->all.at[i].image);) n++;
        vec_push(&f->all, ((struct image_file){joined(folder, q->all.at[i].image), q->all.at[i].image, NULL, i, n}));
        if (!file_exists(f->all.at[f->all.n - 1].path))
            return error_set(e, PL_USAGE, "%s has prompts for %s, and there is no %s; give the folder of the images",
                             f->p->prompts, q->all.at[i].image, f->all.at[f->all.n - 1].path);
        s->most = (uint32_t)max_i64(s->most, n);
        for (uint32_t k = 0; k < n; k++)
            if (predict_shape(s, q->all.at[i + k].n, q->all.at[i + k].box, e)) return e->code;
    }
    return PL_OK;
}

static bool is_image(const char *path)
{
    uint8_t head[16];
    return image_format(head, file_peek(path, head, sizeof head)) != IMAGE_UNKNOWN;
}

static void add_path(struct files *f, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *kept = mem_string(path);
    vec_push(&f->all, ((struct image_file){kept, kept + (slash ? slash + 1 - path : 0), NULL, 0, f->prompts.all.n}));
}

static int by_whole(const void *a, const void *b)
{
    const struct image_file *x = *(const struct image_file *const *)a, *y = *(const struct image_file *const *)b;
    const int order = strcmp(x->whole, y->whole);
    return order ? order : (x > y) - (x < y);
}

/* Drops images that are given twice, as by a folder and by name, and finds the folder that all are
 * in. */
static void find_whole(struct files *f)
{
    const struct image_file **sorted = mem_alloc(f->all.n * sizeof *sorted);
    for (uint32_t i = 0; i < f->all.n; i++) {
        struct image_file *x = &f->all.at[i];
        char *folder = x->name == x->path ? mem_string(".") : mem_copy(x->path, (size_t)(x->name - x->path) + 1);
        if (x->name > x->path) folder[x->name - x->path] = '\0';
        char *real = realpath(folder, NULL);
        x->whole = joined(real && strcmp(real, "/") ? real : real ? "" : folder, x->name);
        mem_free(folder);
        free(real);
        sorted[i] = x;
    }
    qsort(sorted, f->all.n, sizeof *sorted, by_whole);
    /* what these two share is what all share */
    const char *first = sorted[0]->whole, *last = sorted[f->all.n - 1]->whole;
    for (size_t i = 0; first[i] && first[i] == last[i]; i++)
        if (first[i] == '/') f->common = i + 1;
    if (!strcmp(first, last)) f->common = (size_t)(strrchr(first, '/') ? strrchr(first, '/') + 1 - first : 0);
    for (uint32_t i = 1; i < f->all.n; i++)
        if (!strcmp(sorted[i - 1]->whole, sorted[i]->whole)) f->all.at[sorted[i] - f->all.at].n = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < f->all.n; i++) {
        const struct image_file x = f->all.at[i];
        if (x.n) f->all.at[kept++] = x;
        else mem_free(x.path), mem_free(x.whole);
    }
    f->all.n = kept;
    mem_free(sorted);
}

/* Folders give their images, in the order of their names. */
static int list_given(struct files *f, const struct names *paths, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths->n && !rc; i++) {
        struct names inside = {0};
        const bool folder = dir_exists(paths->at[i]);
        if (!folder) add_path(f, paths->at[i]);
        else rc = dir_list_ending(paths->at[i], "", &inside, e);
        for (uint32_t k = 0; k < inside.n; k++)
            if (is_image(inside.at[k])) add_path(f, inside.at[k]);
        names_free(&inside);
    }
    if (!rc && !f->all.n) rc = error_set(e, PL_USAGE, "%s has no image that is read", paths->at[0]);
    if (!rc) find_whole(f);
    return rc;
}

static int list(struct files *f, struct predict_source *s, const struct predict *p, struct error *e)
{
    char folder[4096];
    if (!p->prompts) {
        vec_push(&f->prompts.all, p->common);
        s->most = 1;
        int rc = predict_shape(s, p->common.n, p->common.box, e);
        return rc ? rc : list_given(f, &p->paths, e);
    }
    if (image_prompts_read(&f->prompts, p->prompts, e) || path_dir(p->prompts, folder, sizeof folder, e))
        return e->code;
    if (p->paths.n > 1 || (p->paths.n && !dir_exists(p->paths.at[0])))
        return error_set(e, PL_USAGE, "%s names the images: give the folder that they are in, or nothing; %s is given",
                         p->prompts, p->paths.at[0]);
    return list_prompted(f, s, p->paths.n ? p->paths.at[0] : folder, e);
}

/* Masks must not overwrite images. */
static int check_output(const struct files *f, bool folders, struct error *e)
{
    char folder[4096];
    if (f->p->output && folders && f->common) { /* masks are laid out as the images are */
        char *all = mem_copy(f->all.at[0].whole, f->common + 1);
        all[f->common] = '\0';
        const bool same = file_same(all, f->p->output);
        mem_free(all);
        if (same) return error_set(e, PL_USAGE, "-o %s is the folder of all images: give another one", f->p->output);
    }
    for (uint32_t i = 0; i < f->all.n && f->p->output; i++) {
        if (path_dir(f->all.at[i].path, folder, sizeof folder, e)) return e->code;
        if (file_same(folder, f->p->output))
            return error_set(e, PL_USAGE, "-o %s is a folder of the images: give another one", f->p->output);
    }
    return PL_OK;
}

int predict_files(struct predict_source *s, const struct predict *p, struct error *e)
{
    struct files *f = mem_alloc(sizeof *f);
    *f = (struct files){.p = p};
    *s = (struct predict_source){.read = read_file, .close = close_files, .about = about_file, .state = f};
    int rc = list(f, s, p, e);
    s->n = f->all.n;
    if (!rc) rc = predict_choose_names(s, e);
    if (!rc) rc = check_output(f, s->folders, e);
    if (rc) close_files(s);
    return rc;
}
