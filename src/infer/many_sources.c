/*
 * many_sources.c: the images of many.h and their prompts: files, the slices of a volume, and the
 * samples of a dataset.
 */
#include <math.h>

#include "base/random.h"
#include "models/model.h"
#include "data/loader.h"
#include "data/samples.h"
#include "batch/feed.h"
#include "batch/first_prompts.h"
#include "infer/many.h"
#include "infer/slice_images.h"

/* Adds a shape of prompts if it is new. PL_USAGE: too many. */
static int add_shape(struct many_source *s, uint32_t points, bool box, struct error *e)
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

/* --- files ------------------------------------------------------------------------------------ */

/* With a file of prompts, its names of images are relative to the folder that is given, or to the
 * file's own. Without one, every image has the common prompt. */

struct file {
    char *path;
    const char *name; /* without folders, or as the file of prompts names it */
    /* the path with its whole folder, of an image that is given; NULL: its name is that of a file
     * of prompts */
    char *whole;
    uint32_t first, n; /* prompts */
};

struct files {
    struct image_prompts prompts;
    VEC(struct file) all;
    size_t common; /* bytes of `whole` that are the folder of all images */
};

static void close_files(struct many_source *s)
{
    struct files *f = s->state;
    for (uint32_t i = 0; i < f->all.n; i++) mem_free(f->all.at[i].path), mem_free(f->all.at[i].whole);
    vec_free(&f->all);
    image_prompts_free(&f->prompts);
    mem_free(f);
}

static void look_at_file(const struct many_source *s, uint64_t i, bool folders, struct many_image *out)
{
    const struct files *f = s->state;
    const struct file *x = &f->all.at[i];
    snprintf(out->name, sizeof out->name, "%s", folders && x->whole ? x->whole + f->common : x->name);
    out->prompts = f->prompts.all.at + x->first, out->n = x->n;
}

static int read_file(struct many_source *s, uint64_t i, struct many_image *out, struct error *e)
{
    return image_read(&out->image, ((struct files *)s->state)->all.at[i].path, &s->o->reading.range, e);
}

static char *path_from(const char *folder, const char *name) { return path_join(*name == '/' ? "" : folder, name); }

/* Lists the images of the file of prompts: all must be there. */
static int list_prompted(struct files *f, struct many_source *s, const char *folder, struct error *e)
{
    const struct image_prompts *q = &f->prompts;
    for (uint32_t i = 0, n; i < q->all.n; i += n) {
        const char *name = q->all.at[i].image;
        for (n = 1; i + n < q->all.n && !strcmp(q->all.at[i + n].image, name);) n++;
        vec_push(&f->all, ((struct file){path_from(folder, name), name, NULL, i, n}));
        const char *path = f->all.at[f->all.n - 1].path;
        if (!file_exists(path))
            return error_set(e, PL_USAGE, "%s has prompts for %s, and there is no %s; give the folder of the images",
                             s->o->prompts, name, path);
        s->most = (uint32_t)max_i64(s->most, n);
        for (uint32_t k = 0; k < n; k++) TRY(add_shape(s, q->all.at[i + k].n, q->all.at[i + k].box, e));
    }
    return PL_OK;
}

static void add_path(struct files *f, const char *path)
{
    const char *slash = strrchr(path, '/');
    char *kept = mem_string(path);
    vec_push(&f->all, ((struct file){kept, kept + (slash ? slash + 1 - path : 0), NULL, 0, f->prompts.all.n}));
}

static int by_whole(const void *a, const void *b)
{
    const struct file *x = *(const struct file *const *)a, *y = *(const struct file *const *)b;
    const int order = strcmp(x->whole, y->whole);
    return order ? order : (x > y) - (x < y);
}

/* Drops images that are given twice, as by a folder and by name, and finds the folder that all are
 * in. */
static void find_common_folder(struct files *f)
{
    const struct file **sorted = mem_alloc(f->all.n * sizeof *sorted);
    for (uint32_t i = 0; i < f->all.n; i++) {
        struct file *x = &f->all.at[i];
        char *folder = x->name == x->path ? mem_string(".") : mem_copy(x->path, (size_t)(x->name - x->path) + 1);
        if (x->name > x->path) folder[x->name - x->path] = '\0';
        char *real = realpath(folder, NULL);
        struct text whole = {0};
        text_printf(&whole, "%s/%s", !real ? folder : strcmp(real, "/") ? real : "", x->name);
        x->whole = whole.at;
        mem_free(folder);
        free(real);
        sorted[i] = x;
    }
    qsort(sorted, f->all.n, sizeof *sorted, by_whole);
    /* what these two share is what all share */
    const char *first = sorted[0]->whole, *last = sorted[f->all.n - 1]->whole, *slash = strrchr(first, '/');
    for (size_t i = 0; first[i] && first[i] == last[i]; i++)
        if (first[i] == '/') f->common = i + 1;
    if (!strcmp(first, last)) f->common = slash ? (size_t)(slash + 1 - first) : 0;
    for (uint32_t i = 1; i < f->all.n; i++)
        if (!strcmp(sorted[i - 1]->whole, sorted[i]->whole)) f->all.at[sorted[i] - f->all.at].n = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < f->all.n; i++) {
        const struct file x = f->all.at[i];
        if (x.n) f->all.at[kept++] = x;
        else mem_free(x.path), mem_free(x.whole);
    }
    f->all.n = kept;
    mem_free(sorted);
}

/* Lists the images of the paths. Folders give theirs, in the order of their names. */
static int list_given(struct files *f, const struct names *paths, struct error *e)
{
    for (uint32_t i = 0; i < paths->n; i++) {
        struct names inside = {0};
        if (!dir_exists(paths->at[i])) add_path(f, paths->at[i]);
        else TRY(dir_list_ending(paths->at[i], "", &inside, e));
        for (uint32_t k = 0; k < inside.n; k++) {
            uint8_t head[16];
            if (image_format(head, file_peek(inside.at[k], head, sizeof head))) add_path(f, inside.at[k]);
        }
        names_free(&inside);
    }
    if (!f->all.n) return error_set(e, PL_USAGE, "%s has no image that is read", paths->at[0]);
    find_common_folder(f);
    return PL_OK;
}

static int list_files(struct files *f, struct many_source *s, struct error *e)
{
    const struct many_options *o = s->o;
    char folder[4096];
    if (!o->prompts) {
        vec_push(&f->prompts.all, o->common);
        s->most = 1;
        TRY(add_shape(s, o->common.n, o->common.box, e));
        return list_given(f, o->paths, e);
    }
    TRY(image_prompts_read(&f->prompts, o->prompts, e));
    TRY(path_dir(o->prompts, folder, sizeof folder, e));
    if (o->paths->n > 1 || (o->paths->n && !dir_exists(o->paths->at[0])))
        return error_set(e, PL_USAGE, "%s names the images: give the folder that they are in, or nothing; %s is given",
                         o->prompts, o->paths->at[0]);
    return list_prompted(f, s, o->paths->n ? o->paths->at[0] : folder, e);
}

/* Masks must not overwrite images. */
static int check_output(const struct many_source *s, struct error *e)
{
    const struct files *f = s->state;
    const char *output = s->o->output;
    char folder[4096];
    if (output && s->folders && f->common) { /* masks are laid out as the images are */
        char *all = mem_copy(f->all.at[0].whole, f->common + 1);
        all[f->common] = '\0';
        const bool same = file_same(all, output);
        mem_free(all);
        if (same) return error_set(e, PL_USAGE, "-o %s is the folder of all images: give another one", output);
    }
    for (uint32_t i = 0; i < f->all.n && output; i++) {
        TRY(path_dir(f->all.at[i].path, folder, sizeof folder, e));
        if (file_same(folder, output))
            return error_set(e, PL_USAGE, "-o %s is a folder of the images: give another one", output);
    }
    return PL_OK;
}

int many_open_files(struct many_source *s, struct error *e)
{
    struct files *f = s->state = mem_alloc(sizeof *f);
    s->look = look_at_file, s->read = read_file, s->close = close_files, s->check = check_output;
    int rc = list_files(f, s, e);
    s->n = f->all.n;
    return rc;
}

/* --- slices of a volume ----------------------------------------------------------------------- */

bool many_is_volume(const char *path)
{
    struct volume v;
    struct error ignored;
    if (path_has_ending(path, ".nii") || path_has_ending(path, ".nii.gz") || path_has_ending(path, ".dcm") ||
        is_dicom_folder(path))
        return true;
    if (!path_has_ending(path, ".tif") && !path_has_ending(path, ".tiff")) return false;
    if (volume_open(&v, path, &(struct volume_options){0}, &ignored)) return false;
    const bool pages = v.slices > 1; /* one page is an image */
    volume_close(&v);
    return pages;
}

struct slices {
    struct slice_images images;
    uint32_t first;
};

static void close_slices(struct many_source *s)
{
    struct slices *v = s->state;
    slice_images_close(&v->images);
    mem_free(v);
}

static void look_at_slice(const struct many_source *s, uint64_t i, bool folders, struct many_image *out)
{
    const struct slices *v = s->state;
    (void)folders;
    out->slice = v->first + (uint32_t)i;
    out->volume = &v->images.at[0], out->volume_name = v->images.name;
    out->prompts = &s->o->common, out->n = 1;
    snprintf(out->name, sizeof out->name, "%s_%03u", v->images.name, out->slice);
}

static int read_slice(struct many_source *s, uint64_t i, struct many_image *out, struct error *e)
{
    const struct slices *v = s->state;
    (void)i;
    return slice_images_read(&v->images, &s->o->reading.range, out->slice, &out->image, e);
}

/* Reads "FIRST-LAST", counted from 0, both included. */
static int choose_slices(const char *given, const struct volume *v, uint32_t *first, uint64_t *n, struct error *e)
{
    unsigned from = 0, to = v->slices - 1;
    char end;
    const int got = given ? sscanf(given, "%u-%u%c", &from, &to, &end) : 2;
    if (got == 1) to = from;
    if ((got != 1 && got != 2) || from > to)
        return error_set(e, PL_USAGE, "--slices %s: expected one number, or the first and the last, such as 40-60",
                         given);
    if (to >= v->slices)
        return error_set(e, PL_USAGE, "--slices %s: %s has the slices 0 to %u", given, v->path, v->slices - 1);
    *first = from, *n = to - from + 1;
    return PL_OK;
}

int many_open_slices(struct many_source *s, struct error *e)
{
    struct slices *v = s->state = mem_alloc(sizeof *v);
    s->look = look_at_slice, s->read = read_slice, s->close = close_slices, s->most = 1;
    int rc = slice_images_open(&v->images, s->o->paths->at[0], &s->o->reading, e);
    if (!rc) rc = choose_slices(s->o->slices, &v->images.at[0], &v->first, &s->n, e);
    return rc ? rc : add_shape(s, s->o->common.n, s->o->common.box, e);
}

/* --- samples of a dataset --------------------------------------------------------------------- */

/* Each mask gives a prompt, by the code of training and of its evaluation
 * (batch/first_prompts.h). */

struct labelled_images {
    struct dataset *set;
    struct loader_options o;
    struct loader_source source;
    struct reader *reader;
    char *memory;
    struct first_prompts how;
    struct image_prompt *prompts; /* [o.masks] */
    float (*points)[2];
    char (*ids)[24];
};

static void close_labels(struct many_source *s)
{
    struct labelled_images *l = s->state;
    reader_close(l->reader);
    if (l->set) dataset_close(l->set);
    mem_free(l->memory);
    mem_free(l->prompts);
    mem_free(l->points);
    mem_free(l->ids);
    mem_free(l);
}

static void derive(struct labelled_images *l, const char *kind, const struct loader_sample *s, uint32_t k,
                   const struct image *image)
{
    static int on = 1;
    const uint32_t side = l->o.side, w = image->width, h = image->height;
    float coords[FIRST_SLOTS * 2];
    int32_t kinds[FIRST_SLOTS];
    struct image_prompt *q = &l->prompts[k];
    if (!strcmp(kind, "box")) prompt_box(&l->how, s, k, coords, kinds);
    else if (!strcmp(kind, "point")) prompt_interior(&l->how, s, k, coords, kinds);
    else prompt_random(&l->how, s, k, coords, kinds);
    snprintf(l->ids[k], sizeof l->ids[k], "%lld", (long long)s->masks[k].id);
    *q = (struct image_prompt){.id = l->ids[k],
                               .category = s->masks[k].category,
                               .image_id = -1,
                               .box = kinds[0] == POINT_FIRST};
    if (!q->box) {
        predictor_to_pixels(side, l->o.stretched, w, h, coords, l->points[k]);
        q->points = &l->points[k], q->labels = &on, q->n = 1;
        return;
    }
    predictor_to_pixels(side, l->o.stretched, w, h, coords, q->corners);
    predictor_to_pixels(side, l->o.stretched, w, h, coords + 2, q->corners + 2);
}

static void look_at_sample(const struct many_source *s, uint64_t i, bool folders, struct many_image *out)
{
    const struct labelled_images *l = s->state;
    (void)folders; /* the names of a dataset have theirs */
    dataset_name(l->set, i, out->name, sizeof out->name);
    out->volume = dataset_slice(l->set, i, &out->slice, &out->volume_name);
}

static int read_sample(struct many_source *s, uint64_t i, struct many_image *out, struct error *e)
{
    struct labelled_images *l = s->state;
    const struct loader_sample *x;
    struct sample files;
    if (!reader_at(l->reader, &l->source, i)) reader_seek(l->reader, &l->source, i);
    if (!(x = reader_next(l->reader, e))) return e->code;
    int rc = samples_read(l->set, i, &files, e);
    if (!rc) rc = sample_decode(&files, &l->set->range, &out->image, e);
    sample_free(&files);
    TRY(rc);
    for (uint32_t k = 0; k < x->n; k++) derive(l, s->o->derive, x, k, &out->image);
    out->prompts = l->prompts, out->n = x->n;
    return PL_OK;
}

/* Opens the dataset and a loader, whose options depend on the model. */
static int open_loader(struct labelled_images *l, const struct config *c, struct error *e)
{
    struct model m;
    struct mask_canvas x;
    int rc = PL_OK;
    TRY(config_open_model(c, &m, e));
    if (model_canvas(&m, 0, &x)) l->o = batch_loader(c, &m, &(struct packed_embeddings){0});
    else rc = error_set(e, PL_USAGE, "a model of type %s predicts no masks for points and boxes", m.family->model_type);
    model_close(&m);
    TRY(rc);
    TRY(feed_open_dataset(&l->set, c, config_validates(c) ? FEED_VALIDATION : FEED_TRAIN, e));
    l->source = feed_source(c, l->set, FEED_VALIDATION);
    l->source.order.max_bad = 1;
    l->memory = mem_alloc(reader_bytes(&loader_kind, &l->o) + 64);
    return reader_open(&l->reader, &loader_kind, &l->o, (char *)align_up((uintptr_t)l->memory, 64), e);
}

int many_open_dataset(struct many_source *s, struct error *e)
{
    struct labelled_images *l = s->state = mem_alloc(sizeof *l);
    const char *kind = s->o->derive;
    const struct config *c = s->o->config;
    s->look = look_at_sample, s->read = read_sample, s->close = close_labels;
    if (strcmp(kind, "box") && strcmp(kind, "point") && strcmp(kind, "train"))
        return error_set(e, PL_USAGE,
                         "--prompt %s: expected box, point, or train for prompts that are drawn as in training "
                         "(prompts.box, prompts.jitter)",
                         kind);
    TRY(open_loader(l, c, e));
    l->how = (struct first_prompts){.side = l->o.side, .cells = l->o.cells, .masks = l->o.masks,
                                    .key = random_key((uint64_t)c->train_seed, "first prompts"), .box = c->prompts_box,
                                    .jitter = c->prompts_jitter};
    l->prompts = mem_alloc(l->o.masks * sizeof *l->prompts);
    l->points = mem_alloc(l->o.masks * sizeof *l->points);
    l->ids = mem_alloc(l->o.masks * sizeof *l->ids);
    s->n = dataset_count(l->set);
    s->most = l->o.masks;
    s->side = l->o.side;
    if (strcmp(kind, "point")) TRY(add_shape(s, 0, true, e));
    return strcmp(kind, "box") ? add_shape(s, 1, false, e) : PL_OK;
}
