/*
 * predict.c: `plimsoll predict`: inference: masks of an image for points, a box, a question, or
 * everything; masks of many images (infer/many.h); classes of images (infer/classifier.h).
 *
 * Prompts and masks are in pixels of the image as stored. The candidate with the best predicted
 * IoU is written, or all candidates.
 */
#include <math.h>

#include "cli/data.h"
#include "models/model.h"
#include "data/detect/match.h"
#include "batch/feed.h"
#include "infer/ask.h"
#include "infer/classifier.h"
#include "infer/everything.h"
#include "infer/many.h"
#include "io/json.h"
#include "io/png.h"
#include "report/masks.h"

enum { NEW_TOKENS = 128, CLASSES_PRINTED = 5 };

struct predict {
    struct options o;
    const char *image_path;
    struct names points, texts; /* as given */
    const char *box, *question, *overlay, *data;
    struct many_options many; /* the options that many images have, too; `common` is that of --point and --box */
    struct everything_options every;
    bool multimask;
    uint64_t everything, batch, side, max_new; /* 0: not given */
    int64_t modalities[3];
    struct image image;
};

/* --- prompts -------------------------------------------------------------------------- */

/* Parses "1,2.5,3", at most `room` numbers; returns their count, or 0 for anything else. */
static int parse_numbers(const char *s, float *out, int room)
{
    for (int n = 0; n < room;) {
        char *end;
        out[n] = strtof(s, &end);
        if (end == s || !isfinite(out[n])) return 0;
        n++;
        if (!*end) return n;
        if (*end != ',') return 0;
        s = end + 1;
    }
    return 0;
}

/* Reports whether a point is in the image. Prompts of many images are checked when they are
 * read. */
static bool inside(const struct predict *p, const float at[2])
{
    if (!p->image_path) return true;
    return at[0] >= 0 && at[1] >= 0 && at[0] <= (float)p->image.width && at[1] <= (float)p->image.height;
}

static int outside_error(const struct predict *p, const char *option, const char *given, struct error *e)
{
    return error_set(e, PL_USAGE, "%s %s lies outside of the image: %s has %u x %u pixels, with 0,0 at the upper left",
                     option, given, p->image_path, p->image.width, p->image.height);
}

static int parse_point(const struct predict *p, const char *s, float at[2], int *label, struct error *e)
{
    float x[3] = {0, 0, 1};
    int n = parse_numbers(s, x, 3);
    if (n < 2 || (x[2] != 0 && x[2] != 1))
        return error_set(e, PL_USAGE,
                         "--point %s: expected X,Y or X,Y,LABEL: pixels, and the label 1 (foreground, the default) or "
                         "0 (background)",
                         s);
    at[0] = x[0], at[1] = x[1];
    *label = x[2] != 0;
    return inside(p, at) ? PL_OK : outside_error(p, "--point", s, e);
}

static int parse_box(const struct predict *p, float box[4], struct error *e)
{
    if (parse_numbers(p->box, box, 4) != 4)
        return error_set(e, PL_USAGE, "--box %s: expected X0,Y0,X1,Y1 in pixels", p->box);
    if (!(box[0] < box[2] && box[1] < box[3]))
        return error_set(e, PL_USAGE, "--box %s is empty: X0,Y0 is the upper left corner, X1,Y1 the lower right",
                         p->box);
    return inside(p, box) && inside(p, box + 2) ? PL_OK : outside_error(p, "--box", p->box, e);
}

/* Parses --point and --box; the caller frees points and labels. */
static int parse_prompt(const struct predict *p, struct image_prompt *q, struct error *e)
{
    *q = (struct image_prompt){.id = "", .category = -1, .image_id = -1, .n = p->points.n, .box = p->box};
    q->points = mem_alloc((q->n + 1) * sizeof *q->points);
    q->labels = mem_alloc((q->n + 1) * sizeof *q->labels);
    int rc = p->box ? parse_box(p, q->corners, e) : PL_OK;
    for (uint32_t i = 0; i < q->n && !rc; i++) rc = parse_point(p, p->points.at[i], q->points[i], &q->labels[i], e);
    return rc;
}

/* --- one prompt -------------------------------------------------------------------------- */

/* Puts {"size": [h, w], "counts": "...", "score": x, "bbox": [x, y, w, h], "area": n}; score NULL:
 * it has none. */
static void put_mask(struct json_writer *w, const char *key, const struct traced *t, uint32_t width, uint32_t height,
                     const double *score)
{
    json_begin_map(w, key);
    trace_put_runs(t, width, height, w);
    if (score) json_put_number(w, "score", *score);
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

/* Refuses to overwrite the input image. */
static int check_not_input(const struct predict *p, const char *path, struct error *e)
{
    if (!path || !file_same(path, p->image_path)) return PL_OK;
    return error_set(e, PL_USAGE, "%s is the input image: give another output file", path);
}

static int write_mask(const struct predict *p, struct predictor *a, int64_t k, const struct predictor_prompt *q,
                      struct json_writer *json, struct error *e)
{
    const uint32_t w = a->w, h = a->h;
    uint8_t *mask = mem_alloc((size_t)w * h);
    struct traced t = {0};
    char path[4200], overlay[4200];
    snprintf(path, sizeof path, "%s", p->many.output);
    snprintf(overlay, sizeof overlay, "%s", p->overlay ? p->overlay : "");
    if (p->multimask) numbered_path(p->many.output, k, path, sizeof path);
    if (p->multimask && p->overlay) numbered_path(p->overlay, k, overlay, sizeof overlay);
    predictor_mask(a, 0, k, 0, mask);
    trace_bytes(&t, mask, w, h);
    int rc = check_not_input(p, path, e);
    if (!rc && p->overlay) rc = check_not_input(p, overlay, e);
    if (!rc) rc = png_write(path, PNG_BITS, w, h, mask, 0, e);
    if (!rc && p->overlay)
        rc = masks_write_prompted(overlay, &p->image, mask, q, &a->shape, e);
    put_mask(json, NULL, &t, w, h, &(double){a->scores[k]});
    if (!rc) printf("%s: predicted IoU %.4f, %u of %u x %u pixels\n", path, (double)a->scores[k], t.area, w, h);
    trace_free(&t);
    mem_free(mask);
    return rc;
}

static int write_candidates(const struct predict *p, struct predictor *a, const struct predictor_prompt *q,
                            struct error *e)
{
    struct text out = {0};
    struct json_writer json = {.out = &out};
    const int64_t best = predictor_best(a, 0);
    int rc = PL_OK;
    if (p->multimask) json_begin_list(&json, NULL);
    for (int64_t k = 0; k < a->candidates && !rc; k++)
        if (p->multimask || k == best) rc = write_mask(p, a, k, q, &json, e);
    if (p->multimask) json_end(&json);
    text_printf(&out, "\n");
    if (!rc && p->many.json) rc = file_write_atomic(p->many.json, out.at, out.n, e);
    text_free(&out);
    return rc;
}

static int predict_one(struct predict *p, struct error *e)
{
    struct predictor_shape shape = {.prompts = 1,
                                    .points = p->points.n,
                                    .box = p->box,
                                    .single = p->many.single,
                                    .side = (int64_t)p->side};
    struct image_prompt *own = &p->many.common;
    struct predictor a;
    int rc = parse_prompt(p, own, e);
    struct predictor_prompt q = {.points = (const float(*)[2])own->points, .labels = own->labels};
    memcpy(q.box, own->corners, sizeof q.box);
    if (!rc) rc = predictor_open(&a, &p->o.config, &p->image, &shape, e);
    if (!rc) {
        rc = predictor_run(&a, &q, 1, e);
        if (!rc) rc = write_candidates(p, &a, &q, e);
        predictor_close(&a);
    }
    return rc;
}

/* --- a question ------------------------------------------------------------------------------- */

static int write_answer(const struct predict *p, struct predictor *m, const struct answer *a, struct error *e)
{
    const uint32_t w = m->w, h = m->h;
    uint8_t *mask = mem_alloc((size_t)w * h);
    const struct predictor_prompt none = {0};
    struct traced t = {0};
    struct text out = {0};
    struct json_writer json = {.out = &out};
    predictor_mask(m, 0, 0, 0, mask);
    trace_bytes(&t, mask, w, h);
    int rc = png_write(p->many.output, PNG_BITS, w, h, mask, 0, e);
    if (!rc && p->overlay)
        rc = masks_write_prompted(p->overlay, &p->image, mask, &none, &(struct predictor_shape){0}, e);
    json_begin_map(&json, NULL);
    json_put_string(&json, "question", p->question);
    json_put_bytes(&json, "answer", a->text.n ? a->text.at : "", a->text.n);
    json_put_string(&json, "finish", generate_end_name(a->end));
    put_mask(&json, "mask", &t, w, h, NULL);
    json_end(&json);
    text_printf(&out, "\n");
    if (!rc && p->many.json) rc = file_write_atomic(p->many.json, out.at, out.n, e);
    if (!rc) printf("%s\n%s: %u of %u x %u pixels\n", a->text.n ? a->text.at : "", p->many.output, t.area, w, h);
    trace_free(&t);
    text_free(&out);
    mem_free(mask);
    return rc;
}

static int predict_question(struct predict *p, struct error *e)
{
    struct ask a;
    struct predictor mask = {0};
    struct answer answer = {0};
    if (p->side) p->o.config.data_image_size = (int64_t)p->side; /* of the model's run */
    int rc = ask_open(&a, &p->o.config, p->image_path, p->question, e);
    if (!rc) rc = ask_mask(&a, &p->image, &mask, e);
    if (!rc) rc = ask_answer(&a, p->max_new ? (int64_t)p->max_new : NEW_TOKENS, &answer, e);
    if (!rc) rc = write_answer(p, &mask, &answer, e);
    answer_free(&answer);
    ask_mask_free(&mask);
    ask_close(&a);
    return rc;
}

/* --- everything ------------------------------------------------------------------------------- */

static int write_annotations(const struct predict *p, const struct everything *g, struct error *e)
{
    const uint32_t w = p->image.width, h = p->image.height;
    struct text out = {0};
    const char *slash = strrchr(p->image_path, '/');
    annotation_write_begin(&out, 0, w, h, slash ? slash + 1 : p->image_path);
    for (uint32_t i = 0; i < g->masks.n; i++) {
        const struct everything_mask *f = &g->masks.at[i];
        annotation_write_mask(&out, i, w, h, &(struct annotation_mask){
            .shape = &f->shape, .predicted_iou = f->iou, .stability = f->stability, .point = {f->point[0], f->point[1]},
            .crop_box = {0, 0, w, h}, .id = i});
    }
    annotation_write_end(&out);
    text_printf(&out, "\n");
    int rc = file_write_atomic(p->many.json, out.at, out.n, e);
    text_free(&out);
    return rc;
}

static int predict_everything(struct predict *p, struct error *e)
{
    struct everything g;
    p->every.points = (int64_t)p->everything, p->every.batch = (int64_t)p->batch, p->every.side = (int64_t)p->side;
    int rc = everything_find(&g, &p->o.config, &p->image, &p->every, e);
    if (!rc) rc = masks_write_all(p->many.output, &p->image, &g, e);
    if (!rc && p->many.json) rc = write_annotations(p, &g, e);
    if (!rc)
        printf("%s: %u mask%s; of %llu candidates %llu have a predicted IoU of at least %g, %llu of these a stability "
               "of at least %g, %llu are not empty\n",
               p->many.output, g.masks.n, g.masks.n == 1 ? "" : "s", (unsigned long long)g.tested,
               (unsigned long long)g.confident, p->every.min_iou, (unsigned long long)g.stable, p->every.min_stability,
               (unsigned long long)g.filled);
    everything_free(&g);
    return rc;
}

/* --- many images ------------------------------------------------------------------------------ */

static int predict_many(struct predict *p, struct error *e)
{
    struct many_options *o = &p->many;
    struct many_result r;
    char time[32];
    o->config = &p->o.config, o->paths = &p->o.paths, o->batch = (int64_t)p->batch, o->side = (int64_t)p->side;
    if (p->data && !o->derive) o->derive = "box";
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

/* --- classes ---------------------------------------------------------------------------------- */

/* Returns the class with the highest probability that was not taken; of equal ones the first. */
static int64_t next_best(const struct classifier *x, const float *p, const bool *taken)
{
    int64_t best = -1;
    for (int64_t i = 0; i < x->n; i++)
        if (!taken[i] && (best < 0 || p[i] > p[best])) best = i;
    return best;
}

static void print_classes(const struct classifier *x, const float *p, const char *path)
{
    bool *taken = mem_alloc((size_t)x->n * sizeof *taken);
    printf("%s", path);
    for (int64_t k = 0; k < min_i64(CLASSES_PRINTED, x->n); k++) {
        const int64_t i = next_best(x, p, taken);
        printf("%s %s %.4f", k ? "," : ":", x->names[i], (double)p[i]);
        taken[i] = true;
    }
    printf("\n");
    mem_free(taken);
}

static void put_classes(const struct classifier *x, const float *p, const char *path, struct json_writer *w)
{
    bool *taken = mem_alloc((size_t)x->n * sizeof *taken);
    const int64_t best = next_best(x, p, taken);
    json_begin_map(w, NULL);
    json_put_string(w, "image", path);
    json_put_string(w, "class", x->names[best]);
    json_put_number(w, "probability", (double)p[best]);
    json_begin_map(w, "probabilities");
    for (int64_t i = 0; i < x->n; i++) json_put_number(w, x->names[i], (double)p[i]);
    json_end(w);
    json_end(w);
    mem_free(taken);
}

/* Reports whether the model of the configuration is a vision tower with a head. */
static bool has_head(const struct predict *p)
{
    struct model m;
    struct error ignored;
    if (config_open_model(&p->o.config, &m, &ignored)) return p->texts.n; /* start reports it */
    const bool head = m.head;
    model_close(&m);
    return head || p->texts.n;
}

/* Lists the images of the paths, of which some may be folders. */
static int list_images(const struct predict *p, struct names *out, struct error *e)
{
    struct image_tree t;
    for (uint32_t i = 0; i < p->o.paths.n; i++) {
        if (!dir_exists(p->o.paths.at[i])) {
            vec_push(out, mem_string(p->o.paths.at[i]));
            continue;
        }
        int rc = image_tree_read(&t, p->o.paths.at[i], NULL, e);
        for (uint32_t k = 0; k < t.files.n && !rc; k++)
            vec_push(out, path_join(p->o.paths.at[i], t.files.at[k].path));
        image_tree_free(&t);
        if (rc) return rc;
    }
    return out->n ? PL_OK : error_set(e, PL_USAGE, "no image is given: add JPEG, PNG or WebP files, or a folder");
}

static int check_classes(const struct predict *p, struct error *e)
{
    const struct {
        const char *name;
        bool given;
    } options[] = {{"--point", p->points.n},
                   {"--box", p->box},
                   {"--question", p->question},
                   {"-o", p->many.output},
                   {"--overlay", p->overlay},
                   {"--prompts", p->many.prompts},
                   {"--data", p->data},
                   {"--slices", p->many.slices},
                   {"--everything", p->everything},
                   {"--multimask", p->multimask},
                   {"--single", p->many.single},
                   {"--side", p->side},
                   {"--prompt", p->many.derive},
                   {"--max-new", p->max_new}};
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].given)
            return error_set(
                e, PL_USAGE,
                "%s is for masks, and %s is a vision tower with a head, which predicts classes: leave it out",
                options[i].name, p->o.model);
    return PL_OK;
}

static int predict_classes(struct predict *p, struct error *e)
{
    struct names images = {0};
    struct classifier x = {0};
    struct text out = {0};
    struct json_writer w = {.out = &out, .indent = 2};
    int rc = check_classes(p, e);
    if (!rc) rc = list_images(p, &images, e);
    if (!rc) rc = classifier_open(&x, &p->o.config, &p->texts, e);
    json_begin_list(&w, NULL);
    for (int64_t at = 0; at < images.n && !rc; at += x.rows) {
        const int64_t n = min_i64(x.rows, images.n - at);
        rc = classifier_run(&x, images.at + at, n, e);
        for (int64_t i = 0; i < n && !rc; i++)
            print_classes(&x, x.p + i * x.n, images.at[at + i]), put_classes(&x, x.p + i * x.n, images.at[at + i], &w);
    }
    json_end(&w);
    text_printf(&out, "\n");
    if (!rc && p->many.json) rc = file_write_atomic(p->many.json, out.at, out.n, e);
    text_free(&out);
    classifier_close(&x);
    names_free(&images);
    return rc;
}

/* --- the command ----------------------------------------------------------------------------- */

static bool is_many(const struct predict *p)
{
    return (p->o.paths.n == 1 && many_is_volume(p->o.paths.at[0])) || p->many.prompts || p->data || p->o.paths.n > 1 ||
           (p->o.paths.n && dir_exists(p->o.paths.at[0]));
}

/* Checks the options of many images: -o is a folder. */
static int check_many(const struct predict *p, bool prompt, struct error *e)
{
    const int sources = (p->many.prompts != NULL) + (p->data != NULL) + prompt;
    if (p->question || p->everything || p->multimask || p->overlay)
        return error_set(e, PL_USAGE, "%s is for one image, and several are given",
                         p->question     ? "--question"
                         : p->everything ? "--everything"
                         : p->multimask  ? "--multimask"
                                         : "--overlay");
    if (sources != 1)
        return error_set(e, PL_USAGE,
                         "%s: give one of --prompts FILE, --data RUN.yaml, and --point or --box for all images",
                         sources ? "the images have prompts from several places" : "no prompts are given");
    if (p->data && p->o.paths.n)
        return error_set(e, PL_USAGE, "the images are those of %s: leave out %s", p->data, p->o.paths.at[0]);
    if (p->many.derive && !p->data)
        return error_set(e, PL_USAGE, "--prompt is for prompts derived from the masks of --data RUN.yaml");
    if (!p->many.output && !p->many.json)
        return error_set(e, PL_USAGE,
                         "no output is given: add -o FOLDER for masks, --json FILE for run lengths, or both");
    const bool volume = p->o.paths.n == 1 && many_is_volume(p->o.paths.at[0]);
    if (p->many.slices && !volume)
        return error_set(
            e, PL_USAGE,
            "--slices is for one volume: a .nii, a .nii.gz, a TIFF of several pages or a folder of a DICOM series");
    if (volume && p->many.prompts)
        return error_set(e, PL_USAGE,
                         "%s is a volume: give --point or --box, and --slices FIRST-LAST; or --data RUN.yaml, for "
                         "prompts from label volumes",
                         p->o.paths.at[0]);
    if (volume && p->many.output && !path_has_ending(p->many.output, ".nii") &&
        !path_has_ending(p->many.output, ".nii.gz"))
        return error_set(
            e, PL_USAGE,
            "-o %s: the masks of a volume are a label volume, expected a name that ends with .nii or .nii.gz",
            p->many.output);
    if (volume && p->many.output && file_same(p->many.output, p->o.paths.at[0]))
        return error_set(e, PL_USAGE, "%s is the input volume: give another output file", p->many.output);
    if (!volume && p->many.output && file_exists(p->many.output) && !dir_exists(p->many.output))
        return error_set(e, PL_USAGE, "-o %s is a file, expected a folder for the masks of several images",
                         p->many.output);
    if (!p->batch || p->batch > 1024)
        return error_set(e, PL_USAGE, "--batch %llu: expected 1 to 1024 prompts at once", (unsigned long long)p->batch);
    return p->side > 1 << 14
               ? error_set(e, PL_USAGE, "--side %llu: expected at most %d pixels", (unsigned long long)p->side, 1 << 14)
               : PL_OK;
}

static int check_options(struct predict *p, struct error *e)
{
    const bool prompt = p->points.n || p->box;
    if (p->question && (prompt || p->everything || p->many.single || p->multimask || p->side))
        return error_set(e, PL_USAGE,
                         "--question asks a model for a mask in words: leave out --point, --box, --everything, "
                         "--single, --multimask and --side");
    if (p->max_new > 1 << 16)
        return error_set(e, PL_USAGE, "--max-new %llu: expected at most %d tokens", (unsigned long long)p->max_new,
                         1 << 16);
    if (is_many(p)) return check_many(p, prompt, e);
    if (p->o.paths.n != 1)
        return error_set(e, PL_USAGE,
                         p->o.paths.n ? "expected one image: %s and %s are given"
                                    : "no image is given: add a JPEG, PNG or WebP file",
                         p->o.paths.n ? p->o.paths.at[0] : "", p->o.paths.n ? p->o.paths.at[1] : "");
    if (!p->many.output) return error_set(e, PL_USAGE, "no output is given: add -o OUT.png");
    if (prompt && p->everything)
        return error_set(e, PL_USAGE, "--everything uses a grid of points: leave out --point and --box");
    if (!prompt && !p->everything && !p->question)
        return error_set(
            e, PL_USAGE,
            "no prompt is given: add --point X,Y, --box X0,Y0,X1,Y1 or --everything N; for a prs_med --question TEXT");
    if (p->many.single && p->multimask) return error_set(e, PL_USAGE, "--single and --multimask exclude each other");
    if (p->everything && (p->many.single || p->multimask || p->overlay))
        return error_set(
            e, PL_USAGE,
            "--everything writes one image of all masks to -o: leave out --single, --multimask and --overlay");
    if (p->everything > 256)
        return error_set(e, PL_USAGE, "--everything %llu: expected 1 to 256 points along each side",
                         (unsigned long long)p->everything);
    if (!p->batch || p->batch > 1024)
        return error_set(e, PL_USAGE, "--batch %llu: expected 1 to 1024 prompts at once", (unsigned long long)p->batch);
    if (p->side > 1 << 14)
        return error_set(e, PL_USAGE, "--side %llu: expected at most %d pixels", (unsigned long long)p->side, 1 << 14);
    p->image_path = p->o.paths.at[0];
    if (data_check_png("-o", p->many.output, e) || data_check_png("--overlay", p->overlay, e)) return e->code;
    if (check_not_input(p, p->many.output, e) || check_not_input(p, p->overlay, e)) return e->code;
    return check_not_input(p, p->many.json, e);
}

/* Makes the configuration. `memory.precision: auto` is f32 here, as in `step`, to match the results
 * of other frameworks. */
static int make_config(struct predict *p, struct error *e)
{
    struct config *c = &p->o.config;
    p->o.run = p->data;
    TRY(options_configure(&p->o, e));
    if (!c->memory_precision.chosen) c->memory_precision = (struct config_setting){true, "f32"};
    if (p->texts.n) c->model_head = HEAD_CONTRASTIVE;
    use_model(c, p->o.model, "masks");
    config_use_adapter(c, p->o.adapter);
    /* their patterns are for the names of the run's model */
    c->model_freeze.n = c->train_groups.n = c->train_no_decay.n = 0;
    return PL_OK;
}

/* Takes what was not given from the model's run. */
static void read_run(struct predict *p)
{
    const struct config *c = &p->o.config;
    p->many.range = feed_range(c);
    p->many.slicing = feed_slices(c);
    if (!c->model_path) return;
    const struct trained_images run =
        predictor_trained(p->o.config.adapter_path ? p->o.config.adapter_path : p->o.model);
    if (!p->side) p->side = (uint64_t)run.side;
    if (p->many.range.kind == RANGE_AUTO) p->many.range = run.range;
    if (!config_given(c, KEY_data_slice_axis)) p->many.slicing.axis = run.slices.axis;
    if (!config_given(c, KEY_data_neighbours)) p->many.slicing.neighbours = run.slices.neighbours;
    if (config_given(c, KEY_data_modalities)) return;
    memcpy(p->modalities, run.modalities, sizeof p->modalities);
    p->many.slicing.modalities = p->modalities, p->many.slicing.n_modalities = run.slices.n_modalities;
}

/* Reads the image and says which values of 16 bits became black and white. */
static int read_image(struct predict *p, struct error *e)
{
    const double *w = p->image.window;
    if (image_read(&p->image, p->image_path, &p->many.range, e)) return e->code;
    if (w[0] < w[1])
        log_note("%s has more than 8 bits: values from %.10g to %.10g become 0 to 255 (%s; data.range sets another)",
                 p->image_path, w[0], w[1],
                 p->many.range.kind == RANGE_AUTO ? "auto, from this image" : "data.range of the run or of --set");
    return PL_OK;
}

#define READS_OF_RUN                                                                                                   \
    "model.* adapter.* data.* prompts.box prompts.jitter train.seed memory.* device.*" /* with --data */
#define READS                                                                                                          \
    "model.* adapter.* data.tokenizer data.template data.range data.window data.percentiles data.slice_axis "          \
    "data.slices data.neighbours "                                                                                     \
    "data.modalities data.volume_cache data.labels memory.* device.*"

static int predict_masks(struct predict *p, struct error *e)
{
    int rc = check_options(p, e);
    if (!rc) read_run(p);
    if (!rc && is_many(p)) {
        rc = p->points.n || p->box ? parse_prompt(p, &p->many.common, e) : PL_OK;
        if (!rc) rc = predict_many(p, e);
    } else if (!rc && !(rc = read_image(p, e)))
        rc = p->question ? predict_question(p, e) : p->everything ? predict_everything(p, e) : predict_one(p, e);
    image_free(&p->image);
    mem_free(p->many.common.points);
    mem_free(p->many.common.labels);
    return rc;
}

static int predict(struct options *o, struct error *e)
{
    struct predict *p = (struct predict *)o;
    struct config *c = &o->config;
    if (!o->model)
        return error_set(e, PL_USAGE, "no model is given: add --model DIR, a folder with config.json and weights");
    TRY(make_config(p, e));
    TRY(config_check_read(c, "predict", p->data ? READS_OF_RUN : READS, e));
    TRY(config_check(c, CONFIG_OPTIONS_ONLY, e));
    return has_head(p) ? predict_classes(p, e) : predict_masks(p, e);
}

static const struct predict START = {.batch = 16, .every = {.min_iou = 0.88, .min_stability = 0.95, .nms = 0.7}};
#define OWN(name, kind, member) OPTION(struct predict, name, kind, member)
static const struct option OPTIONS[] = {
    OWN("--point", LIST, points), OWN("--box", TEXT, box), OWN("--multimask", SWITCH, multimask),
    OWN("--single", SWITCH, many.single), OWN("-o", TEXT, many.output), OWN("--out", TEXT, many.output),
    OWN("--overlay", TEXT, overlay), OWN("--json", TEXT, many.json), OWN("--everything", POSITIVE, everything),
    OWN("--batch", COUNT, batch), OWN("--side", POSITIVE, side), OWN("--min-iou", REAL, every.min_iou),
    OWN("--min-stability", REAL, every.min_stability), OWN("--nms", REAL, every.nms), OWN("--question", TEXT, question),
    OWN("--max-new", POSITIVE, max_new), OWN("--prompts", TEXT, many.prompts), OWN("--data", TEXT, data),
    OWN("--slices", TEXT, many.slices), OWN("--prompt", TEXT, many.derive), OWN("--text", LIST, texts)};

const struct command command_predict =
    {"predict",
     "predict --model DIR (IMAGE | FOLDER | --data RUN.yaml) ((--point X,Y[,LABEL])... [--box X0,Y0,X1,Y1] | "
     "--prompts FILE | --everything N | --question TEXT) -o OUT",
     "Runs inference: predicts masks of a JPEG, PNG or WebP image, or of many, for prompts. Coordinates\n"
     "are in pixels of the stored image. A vision tower with a head predicts classes: predict --model DIR\n"
     "IMAGE... [--json FILE]; and a CLIP or SigLIP which of some texts belong to an image: predict --model\n"
     "DIR IMAGE... --text \"a cat\" --text \"a dog\".\n"
     "\n"
     "  --model DIR           a model folder, or the name of a preset\n"
     "  --adapter DIR         a LoRA adapter for that model, as PEFT or a run with an adapter saves it\n"
     "  --point X,Y[,LABEL]   a point on the object (LABEL 1, foreground, the default) or beside it (0,\n"
     "                        background); several points describe one object\n"
     "  --box X0,Y0,X1,Y1     a box around the object\n"
     "  --question TEXT       asks a PRS-Med model: prints its answer, and the mask is what the question\n"
     "                        asks for; --json has both\n"
     "  --max-new 128         with --question: tokens of the answer, at most\n"
     "  -o OUT.png            the mask: the candidate with the best predicted IoU\n"
     "  --multimask           writes all candidates, as OUT-1.png, OUT-2.png, ...\n"
     "  --single              uses the model's single-mask output instead of the candidates\n"
     "  --overlay OVER.png    draws the mask and the prompt over the image\n"
     "  --json FILE           the mask as COCO RLE with score, bbox and area; with --multimask a list\n"
     "  --everything N        segments everything: prompts with a grid of N x N points; -o is an image of\n"
     "                        all masks, --json a file in SA-1B's format. With --everything:\n"
     "  --min-iou 0.88        keeps masks with at least this predicted IoU\n"
     "  --min-stability 0.95  keeps masks with at least this stability: the IoU of the masks at thresholds\n"
     "                        +1 and -1\n"
     "  --nms 0.7             non-maximum suppression: of masks whose boxes overlap more, keeps the best\n"
     "                        predicted IoU\n"
     "  --batch 16            prompts per batch; more take more memory and less time\n"
     "  --prompts FILE        many images, with one load of the model: the prompts of a CSV\n"
     "                        (image,id,x0,y0,x1,y1,x,y,label,category: boxes, points or both; rows with\n"
     "                        the same image and id are one prompt) or of a COCO file (the bbox of each\n"
     "                        annotation). Images are in FOLDER, or beside the file. Without it --point\n"
     "                        and --box hold for all images. -o is then a folder of masks, NAME-ID.png;\n"
     "                        --json a list of COCO results\n"
     "  --data RUN.yaml       the images of that run's validation data, or training data, with prompts\n"
     "                        derived from their masks\n"
     "  --slices FIRST-LAST   of a volume (.nii, .nii.gz, TIFF pages, a folder of a DICOM series): slices\n"
     "                        that get the prompt, counted from 0 along data.slice_axis; -o is a label\n"
     "                        volume, OUT.nii.gz, of the same geometry. With --data the volumes of the\n"
     "                        dataset become label volumes in the folder -o\n"
     "  --prompt box          with --data: the box of each mask; point: its most interior point; train:\n"
     "                        drawn as in training (prompts.box, prompts.jitter, train.seed)\n"
     "  --side N              resizes and pads the image to N x N pixels; default: the size of training if\n"
     "                        the model is in the folder of its run, else the model's image_size\n"
     "  --text TEXT           CLIP and SigLIP: a text that is compared with the images; give two or more\n"
     "  --memory SIZE         memory budget, memory.budget\n"
     "  --set key=value       sets a configuration key, such as device=cuda",
     .shared = OPT_PATHS | OPT_MODEL | OPT_SET | OPT_MEMORY,
     COMMAND_OPTIONS(OPTIONS),
     COMMAND_STATE(START),
     .run = predict};
