/*
 * mask_files.c: see mask_files.h.
 */
#include "report/mask_files.h"

#include "data/masks/annotation.h"
#include "io/file.h"
#include "io/png.h"
#include "report/mask_drawing.h"

/* --- the candidates of a prompt --------------------------------------------------------------- */

/* Puts {"size": [h, w], "counts": "...", "score": x, "bbox": [x, y, w, h], "area": n}; score NULL:
 * it has none. */
static void put_mask(struct json_writer *w, const char *key, const struct traced *t, const struct predictor *a,
                     const float *score)
{
    json_begin_map(w, key);
    trace_put_runs(t, a->w, a->h, w);
    if (score) json_put_number(w, "score", (double)*score);
    trace_put_box(t, w);
    json_end(w);
}

/* Prints the path of candidate k: OUT.png becomes OUT-2.png for the second. */
static void numbered_path(const char *path, int64_t k, char *out, size_t room)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    size_t stem = dot && (!slash || dot > slash + 1) ? (size_t)(dot - path) : strlen(path);
    snprintf(out, room, "%.*s-%lld%s", (int)stem, path, (long long)k + 1, path + stem);
}

int mask_files_check(const struct mask_files *f, const char *path, struct error *e)
{
    if (!path || !file_same(path, f->image_path)) return PL_OK;
    return error_set(e, PL_USAGE, "%s is the input image: give another output file", path);
}

/* Predicts the pixels of candidate k, which the caller frees, with their runs. */
static uint8_t *mask_of(struct predictor *a, int64_t k, struct traced *t)
{
    uint8_t *mask = mem_alloc((size_t)a->w * a->h);
    predictor_mask(a, 0, k, 0, mask);
    trace_bytes(t, mask, a->w, a->h);
    return mask;
}

static int write_candidate(const struct mask_files *f, struct predictor *a, int64_t k, const struct predictor_prompt *q,
                           struct json_writer *json, struct text *said, struct error *e)
{
    struct traced t = {0};
    char path[4200], overlay[4200];
    snprintf(path, sizeof path, "%s", f->output);
    snprintf(overlay, sizeof overlay, "%s", f->overlay ? f->overlay : "");
    if (f->all) numbered_path(f->output, k, path, sizeof path);
    if (f->all && f->overlay) numbered_path(f->overlay, k, overlay, sizeof overlay);
    uint8_t *mask = mask_of(a, k, &t);
    int rc = mask_files_check(f, path, e);
    if (!rc && f->overlay) rc = mask_files_check(f, overlay, e);
    if (!rc) rc = png_write(path, PNG_BITS, a->w, a->h, mask, 0, e);
    if (!rc && f->overlay) rc = masks_write_prompted(overlay, f->image, mask, q, &a->shape, e);
    put_mask(json, NULL, &t, a, &a->scores[k]);
    if (!rc)
        text_printf(said, "%s: predicted IoU %.4f, %u of %u x %u pixels\n", path, (double)a->scores[k], t.area, a->w,
                    a->h);
    trace_free(&t);
    mem_free(mask);
    return rc;
}

/* Writes a JSON text, which it frees, unless rc is a failure. */
static int write_json(const struct mask_files *f, struct text *out, int rc, struct error *e)
{
    text_printf(out, "\n");
    if (!rc && f->json) rc = file_write_atomic(f->json, out->at, out->n, e);
    text_free(out);
    return rc;
}

int mask_files_write(const struct mask_files *f, struct predictor *a, const struct predictor_prompt *q,
                     struct text *said, struct error *e)
{
    struct text out = {0};
    struct json_writer json = {.out = &out};
    const int64_t best = predictor_best(a, 0);
    int rc = PL_OK;
    if (f->all) json_begin_list(&json, NULL);
    for (int64_t k = 0; k < a->candidates && !rc; k++)
        if (f->all || k == best) rc = write_candidate(f, a, k, q, &json, said, e);
    if (f->all) json_end(&json);
    return write_json(f, &out, rc, e);
}

int mask_files_write_answer(const struct mask_files *f, struct predictor *m, const char *question,
                            const struct answer *a, struct text *said, struct error *e)
{
    const struct predictor_prompt none = {0};
    const char *answer = a->text.n ? a->text.at : "";
    struct traced t = {0};
    struct text out = {0};
    struct json_writer json = {.out = &out};
    uint8_t *mask = mask_of(m, 0, &t);
    int rc = png_write(f->output, PNG_BITS, m->w, m->h, mask, 0, e);
    if (!rc && f->overlay)
        rc = masks_write_prompted(f->overlay, f->image, mask, &none, &(struct predictor_shape){0}, e);
    json_begin_map(&json, NULL);
    json_put_string(&json, "question", question);
    json_put_bytes(&json, "answer", answer, a->text.n);
    json_put_string(&json, "finish", generate_end_name(a->end));
    put_mask(&json, "mask", &t, m, NULL);
    json_end(&json);
    rc = write_json(f, &out, rc, e);
    if (!rc) text_printf(said, "%s\n%s: %u of %u x %u pixels\n", answer, f->output, t.area, m->w, m->h);
    trace_free(&t);
    mem_free(mask);
    return rc;
}

/* --- everything ------------------------------------------------------------------------------- */

int mask_files_write_all(const struct mask_files *f, const struct everything *g, struct error *e)
{
    const uint32_t w = f->image->width, h = f->image->height;
    const char *slash = strrchr(f->image_path, '/');
    struct text out = {0};
    TRY(masks_write_all(f->output, f->image, g, e));
    annotation_write_begin(&out, 0, w, h, slash ? slash + 1 : f->image_path);
    for (uint32_t i = 0; i < g->masks.n; i++) {
        const struct everything_mask *x = &g->masks.at[i];
        annotation_write_mask(&out, i, w, h, &(struct annotation_mask){
            .shape = &x->shape, .predicted_iou = x->iou, .stability = x->stability, .point = {x->point[0], x->point[1]},
            .crop_box = {0, 0, w, h}, .id = i});
    }
    annotation_write_end(&out);
    return write_json(f, &out, PL_OK, e);
}
