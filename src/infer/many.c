/*
 * many.c: see many.h. The file names of masks:
 *
 *     flat      OUT/x.png, OUT/d_x-1.png     the name of the image, a slash becomes an underscore
 *     folders   OUT/a/x.png, OUT/b/x.png     where names would be equal otherwise
 *
 * The masks of a volume's slices become a label volume of the same geometry. A label is the
 * category of its prompt, else its id or number, from 1. Where masks of a slice overlap the
 * smallest is written.
 */
#include "infer/many.h"

#include <math.h>

#include "base/progress.h"
#include "data/masks/annotation.h"
#include "data/volumes/nifti.h"
#include "io/json.h"
#include "io/png.h"

struct many {
    const struct many_options *o;
    struct many_result *out;
    struct many_source source;
    struct predictors models;
    struct json_writer json;
    struct predictor_prompt *prompts; /* of a batch */
    uint8_t *mask;                    /* for the largest image so far */
    size_t room;
    uint64_t without;                 /* images without a prompt */
    /* the label volume that is being written */
    struct nifti_writer *writer;
    const struct volume *volume;      /* its image; NULL: none yet */
    uint16_t *labels;                 /* [h][w] of the slice */
    uint32_t *area;                   /* of the mask of each pixel */
};

/* --- names ------------------------------------------------------------------------------------ */

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

/* Prints the path of mask k: FOLDER/NAME-ID.png; without an id FOLDER/NAME-NUMBER.png, or of an
 * image with one prompt FOLDER/NAME.png. For a volume: FOLDER/NAME.nii.gz. */
static void mask_path(const char *folder, const struct many_image *x, bool folders, uint32_t k, struct text *out)
{
    text_printf(out, "%s/", folder);
    if (x->volume) {
        put_name(out, x->volume_name, strlen(x->volume_name), folders);
        text_printf(out, ".nii.gz");
        return;
    }
    const char *name = x->name, *slash = strrchr(name, '/'), *dot = strrchr(name, '.');
    put_name(out, name, dot && dot > name && (!slash || dot > slash + 1) ? (size_t)(dot - name) : strlen(name),
             folders);
    const size_t from = out->n;
    if (k < x->n && *x->prompts[k].id) text_printf(out, "-%s", x->prompts[k].id);
    else if (x->n > 1) text_printf(out, "-%u", k + 1);
    for (size_t i = from; i < out->n; i++)
        if (out->at[i] == '/') out->at[i] = '_';
    text_printf(out, ".png");
}

struct named {
    char *path;
    uint64_t item;
};

static int by_path(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    const int order = strcmp(x->path, y->path);
    return order ? order : (x->item > y->item) - (x->item < y->item);
}

/* Finds two masks with one name, as far as names are known: those of a dataset get the numbers of
 * their masks when they are read. */
static bool find_equal(const struct many_source *s, bool folders, struct text *path, uint64_t item[2])
{
    VEC(struct named) all = {0};
    const void *before = NULL;
    bool found = false;
    for (uint64_t i = 0; i < s->n; i++) {
        struct many_image x = {0};
        s->look(s, i, folders, &x);
        if (x.volume && x.volume == before) continue;
        before = x.volume;
        const uint32_t masks = x.volume || !x.n ? 1 : x.n;
        for (uint32_t k = 0; k < masks; k++) {
            struct text name = {0};
            mask_path("", &x, folders, k, &name);
            vec_push(&all, ((struct named){name.at, i}));
        }
    }
    if (all.n) qsort(all.at, all.n, sizeof *all.at, by_path);
    for (uint32_t i = 1; i < all.n && !found; i++) {
        if (strcmp(all.at[i - 1].path, all.at[i].path)) continue;
        found = true;
        item[0] = all.at[i - 1].item, item[1] = all.at[i].item;
        text_printf(path, "%s", all.at[i].path + 1);
    }
    for (uint32_t i = 0; i < all.n; i++) mem_free(all.at[i].path);
    vec_free(&all);
    return found;
}

/* Sets s->folders so that no two masks have one name. PL_USAGE: two have one either way. */
static int choose_names(struct many_source *s, struct error *e)
{
    struct text path = {0};
    struct many_image x[2] = {{{0}}, {{0}}};
    uint64_t item[2];
    for (int folders = 0; folders < 2; folders++) {
        text_free(&path);
        s->folders = folders;
        if (!find_equal(s, folders, &path, item)) return PL_OK;
    }
    for (int i = 0; i < 2; i++) s->look(s, item[i], true, &x[i]);
    if (item[0] == item[1])
        error_set(e, PL_USAGE, "%s has two prompts whose masks would both be %s: give each prompt an id of its own",
                  x[0].name, path.at);
    else
        error_set(e, PL_USAGE,
                  "the masks of %s and %s would both be %s: rename one of them, or predict them with another -o",
                  x[0].name, x[1].name, path.at);
    text_free(&path);
    return e->code;
}

static int make_folder(const char *path, struct error *e)
{
    char folder[4096];
    TRY(path_dir(path, folder, sizeof folder, e));
    return dir_make(folder, e);
}

/* --- label volumes ---------------------------------------------------------------------------- */

/* Finishes the volume that is being written; `failed`: removes it. */
static int end_volume(struct many *m, bool failed, struct error *e)
{
    int rc = m->writer ? nifti_write_end(m->writer, failed, e) : PL_OK;
    m->out->volumes += m->writer && !rc && !failed;
    mem_free(m->labels);
    mem_free(m->area);
    m->writer = NULL, m->volume = NULL, m->labels = NULL, m->area = NULL;
    return rc;
}

static int begin_volume(struct many *m, const struct many_image *x, struct error *e)
{
    const struct volume *v = x->volume;
    const char *out = m->o->output;
    const bool instances = m->o->config->data_labels == LABELS_INSTANCES;
    struct text path = {0};
    TRY(end_volume(m, false, e));
    if (path_has_ending(out, ".nii") || path_has_ending(out, ".nii.gz")) text_printf(&path, "%s", out);
    else mask_path(out, x, m->source.folders, 0, &path);
    int rc = m->source.folders ? make_folder(path.at, e) : PL_OK;
    if (!rc) rc = nifti_write_begin(&m->writer, path.at, v, instances ? UINT16_MAX : 255, e);
    text_free(&path);
    m->volume = v;
    m->labels = mem_alloc((size_t)v->w * v->h * sizeof *m->labels);
    m->area = mem_alloc((size_t)v->w * v->h * sizeof *m->area);
    return rc;
}

/* Adds m->mask, of prompt k, to the labels of a slice. */
static int add_labels(struct many *m, const struct many_image *x, uint32_t k, struct error *e)
{
    const struct image_prompt *q = &x->prompts[k];
    const size_t n = (size_t)x->volume->w * x->volume->h;
    const int64_t id = q->id ? strtoll(q->id, NULL, 10) : 0;
    const uint16_t label =
        (uint16_t)min_i64(q->category > 0 ? q->category : id > 0 ? id : (int64_t)k + 1, UINT16_MAX);
    uint32_t area = 0;
    if (m->volume != x->volume) TRY(begin_volume(m, x, e));
    if (label > 255 && m->o->config->data_labels != LABELS_INSTANCES)
        return error_set(e, PL_USAGE,
                         "a label volume of classes has the values 1 to 255, and a mask has the category %u; "
                         "data.labels: instances has more",
                         label);
    for (size_t i = 0; i < n; i++) area += m->mask[i] != 0;
    for (size_t i = 0; i < n; i++)
        if (m->mask[i] && (!m->labels[i] || area < m->area[i])) m->labels[i] = label, m->area[i] = area;
    return PL_OK;
}

/* Writes the labels of a slice after its last mask, if it has one. */
static int write_slice(struct many *m, const struct many_image *x, struct error *e)
{
    const size_t n = (size_t)x->volume->w * x->volume->h;
    if (m->volume != x->volume) return PL_OK;
    int rc = nifti_write_slice(m->writer, x->slice, m->labels, e);
    memset(m->labels, 0, n * sizeof *m->labels);
    memset(m->area, 0, n * sizeof *m->area);
    return rc;
}

/* --- masks ------------------------------------------------------------------------------------ */

/* Puts a result as pycocotools reads it. */
static void put_result(struct many *m, const struct many_image *x, uint32_t k, double score)
{
    const struct image_prompt *q = &x->prompts[k];
    struct json_writer *w = &m->json;
    struct traced t = {0};
    trace_bytes(&t, m->mask, x->image.width, x->image.height);
    json_begin_map(w, NULL);
    if (q->image_id >= 0) json_put_int(w, "image_id", q->image_id);
    else json_put_string(w, "image_id", x->name);
    json_put_string(w, "file_name", x->name);
    if (*q->id) json_put_string(w, "prompt_id", q->id);
    if (q->category >= 0) json_put_int(w, "category_id", q->category);
    json_begin_map(w, "segmentation");
    trace_put_runs(&t, x->image.width, x->image.height, w);
    json_end(w);
    json_put_number(w, "score", score);
    trace_put_box(&t, w);
    json_end(w);
    trace_free(&t);
}

static int write_png(struct many *m, const struct many_image *x, uint32_t k, struct error *e)
{
    struct text path = {0}, file = {0};
    mask_path(m->o->output, x, m->source.folders, k, &path);
    int rc = png_encode(&file, PNG_BITS, x->image.width, x->image.height, m->mask, 0, e);
    if (!rc && m->source.folders) rc = make_folder(path.at, e);
    if (!rc) rc = file_write_unsynced(path.at, file.at, file.n, e);
    text_free(&file);
    text_free(&path);
    return rc;
}

/* Fits prompt k to its image. Boxes are cut at the image's border, which those of COCO cross by
 * fractions of a pixel. */
static int fit_prompt(const struct many_image *x, uint32_t k, struct predictor_prompt *out, struct error *e)
{
    const struct image_prompt *q = &x->prompts[k];
    const float w = (float)x->image.width, h = (float)x->image.height;
    *out = (struct predictor_prompt){.points = (const float(*)[2])q->points, .labels = q->labels};
    for (uint32_t i = 0; i < q->n; i++)
        if (!(q->points[i][0] >= 0 && q->points[i][1] >= 0 && q->points[i][0] <= w && q->points[i][1] <= h))
            return error_set(e, PL_USAGE, "the point %g,%g lies outside of the image, which has %u x %u pixels",
                             (double)q->points[i][0], (double)q->points[i][1], x->image.width, x->image.height);
    if (!q->box) return PL_OK;
    for (int i = 0; i < 4; i++) out->box[i] = fminf(fmaxf(q->corners[i], 0), i % 2 ? h : w);
    if (out->box[0] < out->box[2] && out->box[1] < out->box[3]) return PL_OK;
    return error_set(e, PL_USAGE, "the box %g,%g,%g,%g covers nothing of the image, which has %u x %u pixels",
                     (double)q->corners[0], (double)q->corners[1], (double)q->corners[2], (double)q->corners[3],
                     x->image.width, x->image.height);
}

static struct predictor *decoder_of(struct many *m, const struct image_prompt *q)
{
    uint32_t k = 0;
    while (k + 1 < m->models.n && !(m->models.of[k].shape.points == q->n && m->models.of[k].shape.box == q->box)) k++;
    return &m->models.of[k];
}

/* Predicts and writes the masks of an image: prompts one after the other, as many of the same shape
 * at once as the decoder takes. */
static int predict_image(struct many *m, const struct many_image *x, struct error *e)
{
    const char *out = m->o->output;
    for (uint32_t i = 0; out && i < x->n && !x->volume; i++)
        for (uint32_t k = i + 1; k < x->n; k++)
            if (*x->prompts[i].id && !strcmp(x->prompts[i].id, x->prompts[k].id))
                return error_set(e, PL_USAGE, "two of its masks have the id %s: they would be one file",
                                 x->prompts[i].id);
    if (!x->n) return m->without++, PL_OK;
    const size_t pixels = (size_t)x->image.width * x->image.height;
    if (pixels > m->room) mem_free(m->mask), m->mask = mem_alloc(m->room = pixels);
    TRY(predictors_encode(&m->models, &x->image, e));
    for (uint32_t at = 0, n; at < x->n; at += n) {
        struct predictor *a = decoder_of(m, &x->prompts[at]);
        for (n = 0; at + n < x->n && n < a->shape.prompts && decoder_of(m, &x->prompts[at + n]) == a; n++)
            TRY(fit_prompt(x, at + n, &m->prompts[n], e));
        TRY(predictor_run(a, m->prompts, n, e));
        for (uint32_t i = 0; i < n; i++) {
            const int64_t best = predictor_best(a, i);
            predictor_mask(a, i, best, 0, m->mask);
            if (out) TRY(x->volume ? add_labels(m, x, at + i, e) : write_png(m, x, at + i, e));
            if (m->o->json) put_result(m, x, at + i, a->scores[i * a->candidates + best]);
            m->out->masks++;
        }
    }
    return out && x->volume ? write_slice(m, x, e) : PL_OK;
}

/* --- all of them ------------------------------------------------------------------------------ */

/* Predicts all images. One that cannot be used is PL_USAGE; other errors end the loop. */
static int predict_all(struct many *m, struct error *e)
{
    struct many_source *s = &m->source;
    struct progress progress;
    const double from = clock_seconds();
    int rc = PL_OK;
    progress_begin(&progress, "predicting", "images", s->n);
    for (uint64_t i = 0; i < s->n && !rc; i++) {
        struct many_image x = {0};
        s->look(s, i, s->folders, &x);
        rc = s->read(s, i, &x, e);
        if (!rc) rc = predict_image(m, &x, e);
        image_free(&x.image);
        if (rc == PL_USAGE) {
            log_warn("%s: %s", x.name, e->text);
            if (!m->out->unused++) snprintf(m->out->first, sizeof m->out->first, "%s", x.name);
            rc = e->code = PL_OK;
        }
        progress_add(&progress, 1);
    }
    progress_clear();
    m->out->seconds = clock_seconds() - from;
    m->out->all = s->n;
    m->out->images = s->n - m->out->unused - m->without;
    return rc;
}

int many_predict(const struct many_options *o, struct many_result *out, struct error *e)
{
    struct text list = {0};
    struct many m = {.o = o, .out = out, .json = {.out = &list}, .source = {.o = o, .side = o->reading.side}};
    struct many_source *s = &m.source;
    const bool volume = o->paths->n == 1 && many_is_volume(o->paths->at[0]);
    *out = (struct many_result){0};
    int rc = o->derive ? many_open_dataset(s, e) : volume ? many_open_slices(s, e) : many_open_files(s, e);
    if (!rc) rc = choose_names(s, e);
    if (!rc && s->check) rc = s->check(s, e);
    for (uint32_t k = 0; k < s->n_shapes; k++) {
        s->shapes[k].prompts = min_i64(o->batch, s->most);
        s->shapes[k].single = o->single;
        s->shapes[k].side = s->side;
    }
    if (!rc && o->output && !volume) rc = dir_make(o->output, e);
    if (!rc) rc = predictors_open(&m.models, o->config, s->shapes, s->n_shapes, e);
    m.prompts = mem_alloc((size_t)o->batch * sizeof *m.prompts);
    json_begin_list(&m.json, NULL);
    if (!rc) rc = predict_all(&m, e);
    struct error unused;
    const int ended = end_volume(&m, rc, rc ? &unused : e);
    if (!rc) rc = ended;
    json_end(&m.json);
    text_printf(&list, "\n");
    if (!rc && o->json) rc = file_write_atomic(o->json, list.at, list.n, e);
    predictors_close(&m.models);
    s->close(s);
    text_free(&list);
    mem_free(m.prompts);
    mem_free(m.mask);
    return rc;
}
