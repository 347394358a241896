/*
 * predict_files.c: see predict_many.h.
 *
 * With a file of prompts, its names of images are relative to the folder that is given, or to the
 * file's own. Without one, every image has the prompt of the command line.
 */
#include <stdio.h>
#include <string.h>

#include "cli/predict_many.h"
#include "data/images/image.h"

struct image_file {
    char *path;
    const char *name;
    uint32_t first, n; /* prompts */
};

struct files {
    const struct predict *p;
    struct image_prompts prompts;
    VEC(struct image_file) all;
};

static void close_files(struct predict_source *s)
{
    struct files *f = s->state;
    for (uint32_t i = 0; i < f->all.n; i++) mem_free(f->all.at[i].path);
    vec_free(&f->all);
    image_prompts_free(&f->prompts);
    mem_free(f);
}

static int read_file(struct predict_source *s, uint64_t i, struct predict_item *out, struct error *e)
{
    const struct files *f = s->state;
    const struct image_file *x = &f->all.at[i];
    struct pixel_range range = f->p->range;
    snprintf(out->name, sizeof out->name, "%s", x->name);
    out->prompts = f->prompts.all.at + x->first;
    out->n = x->n;
    return predictor_image_read(&out->image, x->path, &range, e);
}

int predict_shape(struct predict_source *s, uint32_t points, bool box, struct error *e)
{
    for (uint32_t k = 0; k < s->n_shapes; k++)
        if (s->shapes[k].points == points && s->shapes[k].box == box) return PL_OK;
    if (s->n_shapes == PREDICTORS_MOST) return error_set(e, PL_USAGE, "prompts have more than %d numbers of points, with and without a box; each takes memory of its own", PREDICTORS_MOST);
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
        vec_push(&f->all, ((struct image_file){joined(folder, q->all.at[i].image), q->all.at[i].image, i, n}));
        if (!file_exists(f->all.at[f->all.n - 1].path)) return error_set(e, PL_USAGE, "%s has prompts for %s, and there is no %s; give the folder of the images", f->p->prompts, q->all.at[i].image, f->all.at[f->all.n - 1].path);
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
    vec_push(&f->all, ((struct image_file){kept, kept + (slash ? slash + 1 - path : 0), 0, f->prompts.all.n}));
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
    if (image_prompts_read(&f->prompts, p->prompts, e) || path_dir(p->prompts, folder, sizeof folder, e)) return e->code;
    if (p->paths.n > 1 || (p->paths.n && !dir_exists(p->paths.at[0])))
        return error_set(e, PL_USAGE, "%s names the images: give the folder that they are in, or nothing; %s is given", p->prompts, p->paths.at[0]);
    return list_prompted(f, s, p->paths.n ? p->paths.at[0] : folder, e);
}

/* Masks must not overwrite images. */
static int check_output(const struct files *f, struct error *e)
{
    char folder[4096];
    for (uint32_t i = 0; i < f->all.n && f->p->output; i++) {
        if (path_dir(f->all.at[i].path, folder, sizeof folder, e)) return e->code;
        if (file_same(folder, f->p->output)) return error_set(e, PL_USAGE, "-o %s is a folder of the images: give another one", f->p->output);
    }
    return PL_OK;
}

int predict_files(struct predict_source *s, const struct predict *p, struct error *e)
{
    struct files *f = mem_alloc(sizeof *f);
    *f = (struct files){.p = p};
    *s = (struct predict_source){.read = read_file, .close = close_files, .state = f};
    int rc = list(f, s, p, e);
    if (!rc) rc = check_output(f, e);
    s->n = f->all.n;
    if (rc) close_files(s);
    return rc;
}
