/*
 * predict_many.c: `plimsoll predict` on many images with one load of the model.
 *
 *     images with prompts ─ encoder, once an image ─ decoder, in batches of prompts ─ best
 *     candidate ─ PNG, COCO RLE
 *
 * An image that cannot be used is named and left out; then the command ends with status 1, and
 * everything else is written.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "cli/predict_volumes.h"
#include "io/json.h"
#include "io/png.h"

struct many {
    const struct predict *p;
    struct predict_source source;
    struct predictors models;
    struct label_output labels;
    struct text text;
    struct json_writer json;
    uint64_t masks, unused, without; /* written; images that cannot be used, images without a prompt */
    char first[512];                 /* of the former */
    uint8_t *mask;                   /* for the largest image so far */
    size_t room;
};

/* --- output ----------------------------------------------------------------------------------- */

/* A result as pycocotools reads it. */
static void put_result(struct many *m, const struct predict_item *x, uint32_t k, const struct predictor *a,
                       double score)
{
    const struct image_prompt *q = &x->prompts[k];
    struct traced t = {0};
    predict_trace(&t, m->mask, a->w, a->h);
    json_begin_map(&m->json, NULL);
    if (q->image_id >= 0) json_put_int(&m->json, "image_id", q->image_id);
    else json_put_string(&m->json, "image_id", x->name);
    json_put_string(&m->json, "file_name", x->name);
    if (*q->id) json_put_string(&m->json, "prompt_id", q->id);
    if (q->category >= 0) json_put_int(&m->json, "category_id", q->category);
    predict_put_result(&m->json, &t, a->w, a->h, score);
    json_end(&m->json);
    trace_free(&t);
}

static int write_mask(struct many *m, struct predictor *a, int64_t i, const struct predict_item *x, uint32_t k,
                      struct error *e)
{
    const int64_t best = predictor_best(a, i);
    struct text path = {0}, file = {0};
    int rc = PL_OK;
    predictor_mask(a, i, best, 0, m->mask);
    if (m->p->output && x->volume) {
        rc = label_output_add(&m->labels, x, k, m->mask, e);
    } else if (m->p->output) {
        predict_mask_path(m->p->output, x->name, m->source.folders, x->prompts[k].id, x->n > 1 ? k + 1 : 0, &path);
        rc = png_encode(&file, PNG_BITS, a->w, a->h, m->mask, 0, e);
        if (!rc && m->source.folders) rc = predict_make_folder(path.at, e);
        if (!rc) rc = file_write_unsynced(path.at, file.at, file.n, e);
    }
    if (!rc && m->p->json) put_result(m, x, k, a, a->scores[i * a->candidates + best]);
    m->masks += !rc;
    text_free(&file);
    text_free(&path);
    return rc;
}

/* --- an image --------------------------------------------------------------------------------- */

/* Boxes are cut at the image's border, which those of COCO cross by fractions of a pixel. */
static int fit_prompt(const struct predict_item *x, uint32_t k, struct predictor_prompt *out, struct error *e)
{
    const struct image_prompt *q = &x->prompts[k];
    const float w = (float)x->image.w, h = (float)x->image.h;
    *out = (struct predictor_prompt){.points = (const float(*)[2])q->points, .labels = q->labels};
    for (uint32_t i = 0; i < q->n; i++)
        if (!(q->points[i][0] >= 0 && q->points[i][1] >= 0 && q->points[i][0] <= w && q->points[i][1] <= h))
            return error_set(e, PL_USAGE, "the point %g,%g lies outside of the image, which has %u x %u pixels",
                             (double)q->points[i][0], (double)q->points[i][1], x->image.w, x->image.h);
    if (!q->box) return PL_OK;
    for (int i = 0; i < 4; i++) out->box[i] = fminf(fmaxf(q->corners[i], 0), i % 2 ? h : w);
    if (out->box[0] < out->box[2] && out->box[1] < out->box[3]) return PL_OK;
    return error_set(e, PL_USAGE, "the box %g,%g,%g,%g covers nothing of the image, which has %u x %u pixels",
                     (double)q->corners[0], (double)q->corners[1], (double)q->corners[2], (double)q->corners[3],
                     x->image.w, x->image.h);
}

static struct predictor *decoder_of(struct many *m, const struct image_prompt *q)
{
    uint32_t k = 0;
    while (k + 1 < m->models.n && !(m->models.of[k].shape.points == q->n && m->models.of[k].shape.box == q->box)) k++;
    return &m->models.of[k];
}

/* Prompts one after the other, as many of the same shape at once as the decoder takes. */
static int predict_item(struct many *m, const struct predict_item *x, struct predictor_prompt *prompts, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t at = 0, n; at < x->n && !rc; at += n) {
        struct predictor *a = decoder_of(m, &x->prompts[at]);
        for (n = 0; at + n < x->n && n < a->shape.prompts && decoder_of(m, &x->prompts[at + n]) == a && !rc; n++)
            rc = fit_prompt(x, at + n, &prompts[n], e);
        if (rc) return rc;
        rc = predictor_run(a, prompts, n, e);
        for (uint32_t i = 0; i < n && !rc; i++) rc = write_mask(m, a, i, x, at + i, e);
    }
    return rc;
}

static int predict_next(struct many *m, uint64_t i, struct predictor_prompt *prompts, struct error *e)
{
    struct predict_item x = {0};
    struct error why;
    int rc = m->source.read(&m->source, i, &x, &why);
    if (!rc && m->p->output) rc = predict_check_ids(&x, &why);
    if (!rc && !x.n) m->without++;
    else if (!rc) {
        const size_t pixels = (size_t)x.image.w * x.image.h;
        if (pixels > m->room) {
            mem_free(m->mask);
            m->mask = mem_alloc(m->room = pixels);
        }
        rc = predictors_encode(&m->models, &x.image, &why);
        if (!rc) rc = predict_item(m, &x, prompts, &why);
        if (!rc && m->p->output && x.volume) rc = label_output_slice(&m->labels, &x, &why);
    }
    predictor_image_free(&x.image);
    if (rc != PL_USAGE) {
        if (rc) *e = why;
        return rc;
    }
    log_warn("%s: %s", x.name, why.text);
    if (!m->unused++) snprintf(m->first, sizeof m->first, "%s", x.name);
    return PL_OK;
}

/* --- all of them ------------------------------------------------------------------------------ */

static int loop(struct many *m, struct error *e)
{
    struct predictor_prompt *prompts = mem_alloc(m->models.of[0].shape.prompts * sizeof *prompts);
    struct progress progress;
    const double from = clock_seconds();
    char time[32];
    int rc = PL_OK;
    progress_begin(&progress, "predicting", "images", m->source.n);
    for (uint64_t i = 0; i < m->source.n && !rc; i++) {
        rc = predict_next(m, i, prompts, e);
        progress_add(&progress, 1);
    }
    progress_clear();
    mem_free(prompts);
    if (rc) return rc;
    const double seconds = clock_seconds() - from;
    const uint64_t images = m->source.n - m->unused - m->without;
    printf("%llu mask%s of %llu image%s in %s, %.2f images a second\n", (unsigned long long)m->masks,
           m->masks == 1 ? "" : "s", (unsigned long long)images, images == 1 ? "" : "s", duration_print(seconds, time),
           seconds > 0 ? (double)m->source.n / seconds : 0);
    return PL_OK;
}

static int open_models(struct many *m, struct error *e)
{
    struct predict_source *s = &m->source;
    for (uint32_t k = 0; k < s->n_shapes; k++) {
        s->shapes[k].prompts = min_i64((int64_t)m->p->batch, s->most);
        s->shapes[k].single = m->p->single;
        s->shapes[k].side = (int64_t)m->p->side;
    }
    return predictors_open(&m->models, &m->p->config, s->shapes, s->n_shapes, e);
}

int predict_many(struct predict *p, struct error *e)
{
    struct many m = {.p = p, .json = {.out = &m.text}, .labels = {.p = p}};
    const bool volume = p->paths.n == 1 && predict_is_volume(p->paths.at[0]);
    int rc = p->data  ? predict_labels(&m.source, p, e)
             : volume ? predict_slices(&m.source, p, e)
                      : predict_files(&m.source, p, e);
    if (rc) return rc;
    m.labels.folders = m.source.folders;
    if (p->output && !volume) rc = dir_make(p->output, e);
    if (!rc) rc = open_models(&m, e);
    json_begin_list(&m.json, NULL);
    if (!rc) rc = loop(&m, e);
    struct error unused;
    const int ended = label_output_end(&m.labels, rc, rc ? &unused : e);
    if (!rc) rc = ended;
    if (!rc && m.labels.volumes)
        printf("%llu label %s in %s\n", (unsigned long long)m.labels.volumes,
               m.labels.volumes == 1 ? "volume" : "volumes", p->output);
    json_end(&m.json);
    text_printf(&m.text, "\n");
    if (!rc && p->json) rc = file_write_atomic(p->json, m.text.at, m.text.n, e);
    if (!rc && m.unused)
        rc = error_set(e, PL_FAIL,
                       "%llu of %llu images could not be used, the first is %s; the masks of the others are written",
                       (unsigned long long)m.unused, (unsigned long long)m.source.n, m.first);
    predictors_close(&m.models);
    m.source.close(&m.source);
    text_free(&m.text);
    mem_free(m.mask);
    return rc;
}
