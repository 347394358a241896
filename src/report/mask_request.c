/*
 * mask_request.c: see requests.h.
 */
#include "report/requests.h"

#include "data/masks/annotation.h"
#include "infer/ask.h"
#include "io/file.h"
#include "io/json.h"
#include "io/png.h"
#include "report/mask_drawing.h"

enum { NEW_TOKENS = 128 };

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

/* Refuses to overwrite the input image; `path` may be NULL. */
static int check_output(const struct mask_request *r, const char *path, struct error *e)
{
    if (!path || !file_same(path, r->image_path)) return PL_OK;
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

static int write_candidate(const struct mask_request *r, struct predictor *a, int64_t k,
                           const struct predictor_prompt *q, struct json_writer *json, struct text *said,
                           struct error *e)
{
    struct traced t = {0};
    char path[4200], overlay[4200];
    snprintf(path, sizeof path, "%s", r->many.output);
    snprintf(overlay, sizeof overlay, "%s", r->overlay ? r->overlay : "");
    if (r->all) numbered_path(r->many.output, k, path, sizeof path);
    if (r->all && r->overlay) numbered_path(r->overlay, k, overlay, sizeof overlay);
    uint8_t *mask = mask_of(a, k, &t);
    int rc = check_output(r, path, e);
    if (!rc && r->overlay) rc = check_output(r, overlay, e);
    if (!rc) rc = png_write(path, PNG_BITS, a->w, a->h, mask, 0, e);
    if (!rc && r->overlay) rc = masks_write_prompted(overlay, &r->image, mask, q, &a->shape, e);
    put_mask(json, NULL, &t, a, &a->scores[k]);
    if (!rc)
        text_printf(said, "%s: predicted IoU %.4f, %u of %u x %u pixels\n", path, (double)a->scores[k], t.area, a->w,
                    a->h);
    trace_free(&t);
    mem_free(mask);
    return rc;
}

/* Writes a JSON text, which it frees, unless rc is a failure. */
static int write_json(const struct mask_request *r, struct text *out, int rc, struct error *e)
{
    text_printf(out, "\n");
    if (!rc && r->many.json) rc = file_write_atomic(r->many.json, out->at, out->n, e);
    text_free(out);
    return rc;
}

static int write_masks(const struct mask_request *r, struct predictor *a, const struct predictor_prompt *q,
                     struct text *said, struct error *e)
{
    struct text out = {0};
    struct json_writer json = {.out = &out};
    const int64_t best = predictor_best(a, 0);
    int rc = PL_OK;
    if (r->all) json_begin_list(&json, NULL);
    for (int64_t k = 0; k < a->candidates && !rc; k++)
        if (r->all || k == best) rc = write_candidate(r, a, k, q, &json, said, e);
    if (r->all) json_end(&json);
    return write_json(r, &out, rc, e);
}

static int write_answer(const struct mask_request *r, struct predictor *m, const char *question,
                            const struct answer *a, struct text *said, struct error *e)
{
    const struct predictor_prompt none = {0};
    const char *answer = a->text.n ? a->text.at : "";
    struct traced t = {0};
    struct text out = {0};
    struct json_writer json = {.out = &out};
    uint8_t *mask = mask_of(m, 0, &t);
    int rc = png_write(r->many.output, PNG_BITS, m->w, m->h, mask, 0, e);
    if (!rc && r->overlay)
        rc = masks_write_prompted(r->overlay, &r->image, mask, &none, &(struct predictor_shape){0}, e);
    json_begin_map(&json, NULL);
    json_put_string(&json, "question", question);
    json_put_bytes(&json, "answer", answer, a->text.n);
    json_put_string(&json, "finish", generate_end_name(a->end));
    put_mask(&json, "mask", &t, m, NULL);
    json_end(&json);
    rc = write_json(r, &out, rc, e);
    if (!rc) text_printf(said, "%s\n%s: %u of %u x %u pixels\n", answer, r->many.output, t.area, m->w, m->h);
    trace_free(&t);
    mem_free(mask);
    return rc;
}

/* --- everything ------------------------------------------------------------------------------- */

static int write_everything(const struct mask_request *r, const struct everything *g, struct error *e)
{
    const uint32_t w = r->image.width, h = r->image.height;
    const char *slash = strrchr(r->image_path, '/');
    struct text out = {0};
    TRY(masks_write_all(r->many.output, &r->image, g, e));
    annotation_write_begin(&out, 0, w, h, slash ? slash + 1 : r->image_path);
    for (uint32_t i = 0; i < g->masks.n; i++) {
        const struct everything_mask *x = &g->masks.at[i];
        annotation_write_mask(&out, i, w, h, &(struct annotation_mask){
            .shape = &x->shape, .predicted_iou = x->iou, .stability = x->stability, .point = {x->point[0], x->point[1]},
            .crop_box = {0, 0, w, h}, .id = i});
    }
    annotation_write_end(&out);
    return write_json(r, &out, PL_OK, e);
}

/* --- one image -------------------------------------------------------------------------------- */

static int predict_one(struct mask_request *r, struct text *said, struct error *e)
{
    struct image_prompt *own = &r->many.common;
    const struct predictor_shape shape = {.prompts = 1, .points = r->points.n, .box = r->box, .single = r->many.single,
                                          .side = r->many.reading.side};
    struct predictor a;
    TRY(image_prompt_parse(own, &r->points, r->box, &r->image, r->image_path, e));
    struct predictor_prompt q = {.points = (const float(*)[2])own->points, .labels = own->labels};
    memcpy(q.box, own->corners, sizeof q.box);
    TRY(predictor_open(&a, r->many.config, &r->image, &shape, e));
    int rc = predictor_run(&a, &q, 1, e);
    if (!rc) rc = write_masks(r, &a, &q, said, e);
    predictor_close(&a);
    return rc;
}

static int predict_question(struct mask_request *r, struct text *said, struct error *e)
{
    struct config c = *r->many.config;
    struct ask a;
    struct predictor mask = {0};
    struct answer answer = {0};
    if (r->many.reading.side) c.data_image_size = r->many.reading.side; /* of the model's run */
    int rc = ask_open(&a, &c, r->image_path, r->question, e);
    if (!rc) rc = ask_mask(&a, &r->image, &mask, e);
    if (!rc) rc = ask_answer(&a, r->max_new ? (int64_t)r->max_new : NEW_TOKENS, &answer, e);
    if (!rc) rc = write_answer(r, &mask, r->question, &answer, said, e);
    answer_free(&answer);
    ask_mask_free(&mask);
    ask_close(&a);
    return rc;
}

static int predict_everything(struct mask_request *r, struct text *said, struct error *e)
{
    struct everything g;
    r->every.batch = r->many.batch, r->every.side = r->many.reading.side;
    int rc = everything_find(&g, r->many.config, &r->image, &r->every, e);
    if (!rc) rc = write_everything(r, &g, e);
    if (!rc)
        text_printf(said,
                    "%s: %u mask%s; of %llu candidates %llu have a predicted IoU of at least %g, %llu of these a "
                    "stability of at least %g, %llu are not empty\n",
                    r->many.output, g.masks.n, g.masks.n == 1 ? "" : "s", (unsigned long long)g.tested,
                    (unsigned long long)g.confident, r->every.min_iou, (unsigned long long)g.stable,
                    r->every.min_stability, (unsigned long long)g.filled);
    everything_free(&g);
    return rc;
}

static int check_one(const struct mask_request *r, bool prompt, struct error *e)
{
    const struct names *paths = r->many.paths;
    const bool single = r->many.single, everything = r->every.points;
    if (paths->n != 1)
        return error_set(e, PL_USAGE,
                         paths->n ? "expected one image: %s and %s are given"
                                  : "no image is given: add a JPEG, PNG or WebP file",
                         paths->n ? paths->at[0] : "", paths->n ? paths->at[1] : "");
    if (!r->many.output) return error_set(e, PL_USAGE, "no output is given: add -o OUT.png");
    if (prompt && everything)
        return error_set(e, PL_USAGE, "--everything uses a grid of points: leave out --point and --box");
    if (!prompt && !everything && !r->question)
        return error_set(
            e, PL_USAGE,
            "no prompt is given: add --point X,Y, --box X0,Y0,X1,Y1 or --everything N; for a prs_med --question TEXT");
    if (single && r->all) return error_set(e, PL_USAGE, "--single and --multimask exclude each other");
    if (everything && (single || r->all || r->overlay))
        return error_set(
            e, PL_USAGE,
            "--everything writes one image of all masks to -o: leave out --single, --multimask and --overlay");
    if ((uint64_t)r->every.points > 256)
        return error_set(e, PL_USAGE, "--everything %llu: expected 1 to 256 points along each side",
                         (unsigned long long)r->every.points);
    TRY(png_check_name("-o", r->many.output, e));
    TRY(png_check_name("--overlay", r->overlay, e));
    TRY(check_output(r, r->many.output, e));
    TRY(check_output(r, r->overlay, e));
    return check_output(r, r->many.json, e);
}

/* Reads the image and says which values of 16 bits became black and white. */
static int read_image(struct mask_request *r, struct error *e)
{
    const struct pixel_range *range = &r->many.reading.range;
    const double *w = r->image.window;
    TRY(image_read(&r->image, r->image_path, range, e));
    if (w[0] < w[1])
        log_note("%s has more than 8 bits: values from %.10g to %.10g become 0 to 255 (%s; data.range sets another)",
                 r->image_path, w[0], w[1],
                 range->kind == RANGE_AUTO ? "auto, from this image" : "data.range of the run or of --set");
    return PL_OK;
}

/* Predicts and writes the masks of one image. */
static int run_one(struct mask_request *r, struct error *e)
{
    struct text said = {0};
    int rc = read_image(r, e);
    if (!rc) rc = (r->question ? predict_question : r->every.points ? predict_everything : predict_one)(r, &said, e);
    if (said.n) fputs(said.at, stdout);
    text_free(&said);
    image_free(&r->image);
    return rc;
}

/* --- many images ------------------------------------------------------------------------------ */

static int run_many(struct mask_request *q, struct error *e)
{
    struct many_options *o = &q->many;
    struct many_result r;
    char time[32];
    if (q->data && !o->derive) o->derive = "box";
    if (q->points.n || q->box) TRY(image_prompt_parse(&o->common, &q->points, q->box, NULL, NULL, e));
    TRY(many_predict(o, &r, e));
    printf("%llu mask%s of %llu image%s in %s, %.2f images a second\n", (unsigned long long)r.masks,
           r.masks == 1 ? "" : "s", (unsigned long long)r.images, r.images == 1 ? "" : "s",
           duration_print(r.seconds, time), r.seconds > 0 ? (double)r.all / r.seconds : 0);
    if (r.volumes)
        printf("%llu label %s in %s\n", (unsigned long long)r.volumes, r.volumes == 1 ? "volume" : "volumes",
               o->output);
    if (!r.unused) return PL_OK;
    return error_set(e, PL_FAIL,
                     "%llu of %llu images could not be used, the first is %s; the masks of the others are written",
                     (unsigned long long)r.unused, (unsigned long long)r.all, r.first);
}

/* Checks the options of many images: -o is a folder. */
static int check_many(const struct mask_request *r, bool volume, bool prompt, struct error *e)
{
    const struct many_options *o = &r->many;
    const int sources = (o->prompts != NULL) + (r->data != NULL) + prompt;
    const char *one = r->question       ? "--question"
                      : r->every.points ? "--everything"
                      : r->all          ? "--multimask"
                      : r->overlay      ? "--overlay"
                                        : NULL,
               *path = o->paths->n ? o->paths->at[0] : NULL;
    if (one) return error_set(e, PL_USAGE, "%s is for one image, and several are given", one);
    if (sources != 1)
        return error_set(e, PL_USAGE,
                         "%s: give one of --prompts FILE, --data RUN.yaml, and --point or --box for all images",
                         sources ? "the images have prompts from several places" : "no prompts are given");
    if (r->data && path)
        return error_set(e, PL_USAGE, "the images are those of %s: leave out %s", r->data, path);
    if (o->derive && !r->data)
        return error_set(e, PL_USAGE, "--prompt is for prompts derived from the masks of --data RUN.yaml");
    if (!o->output && !o->json)
        return error_set(e, PL_USAGE,
                         "no output is given: add -o FOLDER for masks, --json FILE for run lengths, or both");
    if (o->slices && !volume)
        return error_set(
            e, PL_USAGE,
            "--slices is for one volume: a .nii, a .nii.gz, a TIFF of several pages or a folder of a DICOM series");
    if (volume && o->prompts)
        return error_set(e, PL_USAGE,
                         "%s is a volume: give --point or --box, and --slices FIRST-LAST; or --data RUN.yaml, for "
                         "prompts from label volumes",
                         path);
    if (volume && o->output && !path_has_ending(o->output, ".nii") && !path_has_ending(o->output, ".nii.gz"))
        return error_set(
            e, PL_USAGE,
            "-o %s: the masks of a volume are a label volume, expected a name that ends with .nii or .nii.gz",
            o->output);
    if (volume && o->output && file_same(o->output, path))
        return error_set(e, PL_USAGE, "%s is the input volume: give another output file", o->output);
    if (!volume && o->output && file_exists(o->output) && !dir_exists(o->output))
        return error_set(e, PL_USAGE, "-o %s is a file, expected a folder for the masks of several images", o->output);
    return PL_OK;
}

/* --- a request -------------------------------------------------------------------------------- */

static int check(const struct mask_request *r, bool prompt, struct error *e)
{
    const uint64_t batch = (uint64_t)r->many.batch, side = (uint64_t)r->many.reading.side;
    if (r->question && (prompt || r->every.points || r->many.single || r->all || side))
        return error_set(e, PL_USAGE,
                         "--question asks a model for a mask in words: leave out --point, --box, --everything, "
                         "--single, --multimask and --side");
    if (r->max_new > 1 << 16)
        return error_set(e, PL_USAGE, "--max-new %llu: expected at most %d tokens", (unsigned long long)r->max_new,
                         1 << 16);
    if (!batch || batch > 1024)
        return error_set(e, PL_USAGE, "--batch %llu: expected 1 to 1024 prompts at once", (unsigned long long)batch);
    if (side > 1 << 14)
        return error_set(e, PL_USAGE, "--side %llu: expected at most %d pixels", (unsigned long long)side, 1 << 14);
    return PL_OK;
}

int mask_request_run(struct mask_request *r, struct error *e)
{
    const struct names *paths = r->many.paths;
    const bool prompt = r->points.n || r->box, volume = paths->n == 1 && many_is_volume(paths->at[0]),
               many = volume || r->many.prompts || r->data || paths->n > 1 || (paths->n && dir_exists(paths->at[0]));
    r->image_path = paths->n ? paths->at[0] : NULL;
    TRY(check(r, prompt, e));
    if (r->video) return video_request_run(r, e);
    if (r->labels || r->frame != UINT64_MAX)
        return error_set(e, PL_USAGE, "%s is for a video: add --video FILE", r->labels ? "--mask" : "--frame");
    TRY(many ? check_many(r, volume, prompt, e) : check_one(r, prompt, e));
    image_reading_find(&r->many.reading, r->many.config);
    const int rc = many ? run_many(r, e) : run_one(r, e);
    mem_free(r->many.common.points);
    mem_free(r->many.common.labels);
    return rc;
}
