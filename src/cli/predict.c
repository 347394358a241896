/*
 * predict.c: `plimsoll predict`: inference: masks of an image for points, a box, or everything.
 *
 * Prompts and masks are in pixels of the image as stored. The candidate with the best predicted
 * IoU is written, or all candidates.
 */
#include "cli/predict_volumes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "io/png.h"
#include "feed/feed.h"

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

/* Prompts of many images are checked when an image is read. */
static bool inside(const struct predict *p, const float at[2])
{
    if (!p->image_path) return true;
    return at[0] >= 0 && at[1] >= 0 && at[0] <= (float)p->image.w && at[1] <= (float)p->image.h;
}

static int outside_error(const struct predict *p, const char *option, const char *given, struct error *e)
{
    return error_set(e, PL_USAGE, "%s %s lies outside of the image: %s has %u x %u pixels, with 0,0 at the upper left",
                     option, given, p->image_path, p->image.w, p->image.h);
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

/* --- one prompt -------------------------------------------------------------------------- */

/* The path of candidate k: OUT.png becomes OUT-2.png for the second. */
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
    snprintf(path, sizeof path, "%s", p->output);
    snprintf(overlay, sizeof overlay, "%s", p->overlay ? p->overlay : "");
    if (p->multimask) numbered_path(p->output, k, path, sizeof path);
    if (p->multimask && p->overlay) numbered_path(p->overlay, k, overlay, sizeof overlay);
    predictor_mask(a, 0, k, 0, mask);
    predict_trace(&t, mask, w, h);
    int rc = check_not_input(p, path, e);
    if (!rc && p->overlay) rc = check_not_input(p, overlay, e);
    if (!rc) rc = png_write(path, PNG_BITS, w, h, mask, 0, e);
    if (!rc && p->overlay)
        rc = predict_overlay(p, overlay, &(struct predict_drawn){mask, q, a->shape.points, a->shape.box}, e);
    predict_put_mask(json, &t, w, h, a->scores[k]);
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
    if (!rc && p->json) rc = file_write_atomic(p->json, out.at, out.n, e);
    text_free(&out);
    return rc;
}

/* --point and --box; the caller frees points and labels. */
static int parse_prompt(const struct predict *p, struct image_prompt *q, struct error *e)
{
    *q = (struct image_prompt){.id = "", .category = -1, .image_id = -1, .n = p->points.n, .box = p->box};
    q->points = mem_alloc((q->n + 1) * sizeof *q->points);
    q->labels = mem_alloc((q->n + 1) * sizeof *q->labels);
    int rc = p->box ? parse_box(p, q->corners, e) : PL_OK;
    for (uint32_t i = 0; i < q->n && !rc; i++) rc = parse_point(p, p->points.at[i], q->points[i], &q->labels[i], e);
    return rc;
}

static int predict_one(struct predict *p, struct error *e)
{
    struct predictor_shape shape = {.prompts = 1,
                                    .points = p->points.n,
                                    .box = p->box,
                                    .single = p->single,
                                    .side = (int64_t)p->side};
    struct image_prompt *own = &p->common;
    struct predictor a;
    int rc = parse_prompt(p, own, e);
    struct predictor_prompt q = {.points = (const float(*)[2])own->points, .labels = own->labels};
    memcpy(q.box, own->corners, sizeof q.box);
    if (!rc) rc = predictor_open(&a, &p->config, &p->image, &shape, e);
    if (!rc) {
        rc = predictor_run(&a, &q, 1, e);
        if (!rc) rc = write_candidates(p, &a, &q, e);
        predictor_close(&a);
    }
    return rc;
}

/* --- the command ----------------------------------------------------------------------------- */

static bool is_many(const struct predict *p)
{
    return (p->paths.n == 1 && predict_is_volume(p->paths.at[0])) || p->prompts || p->data || p->paths.n > 1 ||
           (p->paths.n && dir_exists(p->paths.at[0]));
}

/* Many images: -o is a folder. */
static int check_many(const struct predict *p, bool prompt, struct error *e)
{
    const int sources = (p->prompts != NULL) + (p->data != NULL) + prompt;
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
    if (p->data && p->paths.n)
        return error_set(e, PL_USAGE, "the images are those of %s: leave out %s", p->data, p->paths.at[0]);
    if (p->derive && !p->data)
        return error_set(e, PL_USAGE, "--prompt is for prompts derived from the masks of --data RUN.yaml");
    if (!p->output && !p->json)
        return error_set(e, PL_USAGE,
                         "no output is given: add -o FOLDER for masks, --json FILE for run lengths, or both");
    const bool volume = p->paths.n == 1 && predict_is_volume(p->paths.at[0]);
    if (p->slices && !volume)
        return error_set(
            e, PL_USAGE,
            "--slices is for one volume: a .nii, a .nii.gz, a TIFF of several pages or a folder of a DICOM series");
    if (volume && p->prompts)
        return error_set(e, PL_USAGE,
                         "%s is a volume: give --point or --box, and --slices FIRST-LAST; or --data RUN.yaml, for "
                         "prompts from label volumes",
                         p->paths.at[0]);
    if (volume && p->output && !path_has_ending(p->output, ".nii") && !path_has_ending(p->output, ".nii.gz"))
        return error_set(
            e, PL_USAGE,
            "-o %s: the masks of a volume are a label volume, expected a name that ends with .nii or .nii.gz",
            p->output);
    if (volume && p->output && file_same(p->output, p->paths.at[0]))
        return error_set(e, PL_USAGE, "%s is the input volume: give another output file", p->output);
    if (!volume && p->output && file_exists(p->output) && !dir_exists(p->output))
        return error_set(e, PL_USAGE, "-o %s is a file, expected a folder for the masks of several images", p->output);
    if (!p->batch || p->batch > 1024)
        return error_set(e, PL_USAGE, "--batch %llu: expected 1 to 1024 prompts at once", (unsigned long long)p->batch);
    return p->side > 1 << 14
               ? error_set(e, PL_USAGE, "--side %llu: expected at most %d pixels", (unsigned long long)p->side, 1 << 14)
               : PL_OK;
}

static int check_options(struct predict *p, struct error *e)
{
    const bool prompt = p->points.n || p->box;
    if (p->question && (prompt || p->everything || p->single || p->multimask || p->side))
        return error_set(e, PL_USAGE,
                         "--question asks a model for a mask in words: leave out --point, --box, --everything, "
                         "--single, --multimask and --side");
    if (p->max_new > 1 << 16)
        return error_set(e, PL_USAGE, "--max-new %llu: expected at most %d tokens", (unsigned long long)p->max_new,
                         1 << 16);
    if (is_many(p)) return check_many(p, prompt, e);
    if (p->paths.n != 1)
        return error_set(e, PL_USAGE,
                         p->paths.n ? "expected one image: %s and %s are given"
                                    : "no image is given: add a JPEG, PNG or WebP file",
                         p->paths.n ? p->paths.at[0] : "", p->paths.n ? p->paths.at[1] : "");
    if (!p->output) return error_set(e, PL_USAGE, "no output is given: add -o OUT.png");
    if (prompt && p->everything)
        return error_set(e, PL_USAGE, "--everything uses a grid of points: leave out --point and --box");
    if (!prompt && !p->everything && !p->question)
        return error_set(
            e, PL_USAGE,
            "no prompt is given: add --point X,Y, --box X0,Y0,X1,Y1 or --everything N; for a prs_med --question TEXT");
    if (p->single && p->multimask) return error_set(e, PL_USAGE, "--single and --multimask exclude each other");
    if (p->everything && (p->single || p->multimask || p->overlay))
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
    p->image_path = p->paths.at[0];
    if (data_check_png("-o", p->output, e) || data_check_png("--overlay", p->overlay, e)) return e->code;
    if (check_not_input(p, p->output, e) || check_not_input(p, p->overlay, e)) return e->code;
    return check_not_input(p, p->json, e);
}

/* `memory.precision: auto` is f32 here, as in `step`, to match the results of other frameworks. */
static int make_config(struct predict *p, struct error *e)
{
    struct config *c = &p->config;
    int rc = p->data ? config_read(c, p->data, e) : PL_OK;
    for (uint32_t i = 0; i < p->set.n && !rc; i++) rc = config_set(c, p->set.at[i], e);
    if (!rc && p->memory) rc = config_set_memory(c, p->memory, e);
    if (!c->memory_precision.chosen) c->memory_precision = (struct config_setting){true, "f32"};
    if (p->texts.n) c->model_head = HEAD_CONTRASTIVE;
    use_model(c, p->model, "masks");
    config_use_adapter(c, p->adapter);
    /* their patterns are for the names of the run's model */
    c->model_freeze.n = c->train_groups.n = c->train_no_decay.n = 0;
    return rc;
}

/* What was not given is that of the model's run. */
static void read_run(struct predict *p)
{
    const struct config *c = &p->config;
    p->range = feed_range(c);
    p->slicing = feed_slices(c);
    if (!c->model_path) return;
    const struct trained_images run =
        predict_trained_images(p->config.adapter_path ? p->config.adapter_path : p->model);
    if (!p->side) p->side = (uint64_t)run.side;
    if (p->range.kind == RANGE_AUTO) p->range = run.range;
    if (!config_given(c, KEY_data_slice_axis)) p->slicing.axis = run.slices.axis;
    if (!config_given(c, KEY_data_neighbours)) p->slicing.neighbours = run.slices.neighbours;
    if (config_given(c, KEY_data_modalities)) return;
    memcpy(p->modalities, run.modalities, sizeof p->modalities);
    p->slicing.modalities = p->modalities, p->slicing.n_modalities = run.slices.n_modalities;
}

/* Reads the image and says which values of 16 bits became black and white. */
static int read_image(struct predict *p, struct error *e)
{
    const double *w = p->image.window;
    if (predictor_image_read(&p->image, p->image_path, &p->range, e)) return e->code;
    if (w[0] < w[1])
        log_note("%s has more than 8 bits: values from %.10g to %.10g become 0 to 255 (%s; data.range sets another)",
                 p->image_path, w[0], w[1],
                 p->range.kind == RANGE_AUTO ? "auto, from this image" : "data.range of the run or of --set");
    return PL_OK;
}

#define READS_OF_RUN "model.* adapter.* data.* prompts.box prompts.jitter train.seed memory.* device.*" /* with --data */
#define READS                                                                                                                    \
    "model.* adapter.* data.tokenizer data.template data.range data.window data.percentiles data.slice_axis data.slices data.neighbours " \
    "data.modalities data.volume_cache data.labels memory.* device.*"

static int predict_masks(struct predict *p, struct error *e)
{
    int rc = check_options(p, e);
    if (!rc) read_run(p);
    if (!rc && is_many(p)) {
        rc = p->points.n || p->box ? parse_prompt(p, &p->common, e) : PL_OK;
        if (!rc) rc = predict_many(p, e);
    } else if (!rc && !(rc = read_image(p, e)))
        rc = p->question ? predict_question(p, e) : p->everything ? predict_everything(p, e) : predict_one(p, e);
    predictor_image_free(&p->image);
    mem_free(p->common.points);
    mem_free(p->common.labels);
    return rc;
}

static int predict_file(struct predict *p, struct error *e)
{
    if (!p->model)
        return error_set(e, PL_USAGE, "no model is given: add --model DIR, a folder with config.json and weights");
    config_init(&p->config);
    int rc = make_config(p, e);
    if (!rc) rc = config_check_read(&p->config, "predict", p->data ? READS_OF_RUN : READS, e);
    if (!rc) rc = config_check(&p->config, CONFIG_OPTIONS_ONLY, e);
    if (!rc) rc = predict_has_head(p) ? predict_classes(p, e) : predict_masks(p, e);
    config_free(&p->config);
    return rc;
}

static int predict(int argc, char **argv, struct error *e)
{
    struct predict p = {.batch = 16, .min_iou = 0.88, .min_stability = 0.95, .nms = 0.7};
    const struct data_option table[] = {
        {"--model", DATA_TEXT, &p.model},
        {"--point", DATA_LIST, &p.points},
        {"--adapter", DATA_TEXT, &p.adapter},
        {"--box", DATA_TEXT, &p.box},
        {"--multimask", DATA_SWITCH, &p.multimask},
        {"--single", DATA_SWITCH, &p.single},
        {"-o", DATA_TEXT, &p.output},
        {"--out", DATA_TEXT, &p.output},
        {"--overlay", DATA_TEXT, &p.overlay},
        {"--json", DATA_TEXT, &p.json},
        {"--everything", DATA_POSITIVE, &p.everything},
        {"--batch", DATA_COUNT, &p.batch},
        {"--side", DATA_POSITIVE, &p.side},
        {"--min-iou", DATA_REAL, &p.min_iou},
        {"--min-stability", DATA_REAL, &p.min_stability},
        {"--nms", DATA_REAL, &p.nms},
        {"--set", DATA_LIST, &p.set},
        {"--memory", DATA_TEXT, &p.memory},
        {"--question", DATA_TEXT, &p.question},
        {"--max-new", DATA_POSITIVE, &p.max_new},
        {"--prompts", DATA_TEXT, &p.prompts},
        {"--data", DATA_TEXT, &p.data},
        {"--slices", DATA_TEXT, &p.slices},
        {"--prompt", DATA_TEXT, &p.derive},
        {"--text", DATA_LIST, &p.texts},
    };
    bool help;
    int rc = data_options(&command_predict, table, COUNT(table), argc, argv, &p.paths, &help, e);
    if (!rc && !help) rc = predict_file(&p, e);
    names_free(&p.paths);
    names_free(&p.points);
    names_free(&p.set);
    names_free(&p.texts);
    return rc;
}

const struct command command_predict = {
    "predict",
    "predict --model DIR (IMAGE | FOLDER | --data RUN.yaml) ((--point X,Y[,LABEL])... [--box X0,Y0,X1,Y1] | --prompts "
    "FILE | --everything N | --question TEXT) -o OUT",
    "Runs inference: predicts masks of a JPEG, PNG or WebP image, or of many, for prompts. Coordinates are in pixels "
    "of the stored image.\n"
    "A vision tower with a head predicts classes: predict --model DIR IMAGE... [--json FILE]; and a CLIP or SigLIP "
    "which of some texts\n"
    "belong to an image: predict --model DIR IMAGE... --text \"a cat\" --text \"a dog\".\n\n"
    "  --model DIR           a model folder, or the name of a preset\n"
    "  --adapter DIR         a LoRA adapter for that model, as PEFT or a run with an adapter saves it\n"
    "  --point X,Y[,LABEL]   a point on the object (LABEL 1, foreground, the default) or beside it (0, background);\n"
    "                        several points describe one object\n"
    "  --box X0,Y0,X1,Y1     a box around the object\n"
    "  --question TEXT       asks a PRS-Med model: prints its answer, and the mask is what the question asks for; "
    "--json has both\n"
    "  --max-new 128         with --question: tokens of the answer, at most\n"
    "  -o OUT.png            the mask: the candidate with the best predicted IoU\n"
    "  --multimask           writes all candidates, as OUT-1.png, OUT-2.png, ...\n"
    "  --single              uses the model's single-mask output instead of the candidates\n"
    "  --overlay OVER.png    draws the mask and the prompt over the image\n"
    "  --json FILE           the mask as COCO RLE with score, bbox and area; with --multimask a list\n"
    "  --everything N        segments everything: prompts with a grid of N x N points; -o is an image of all masks,\n"
    "                        --json a file in SA-1B's format. With --everything:\n"
    "  --min-iou 0.88        keeps masks with at least this predicted IoU\n"
    "  --min-stability 0.95  keeps masks with at least this stability: the IoU of the masks at thresholds +1 and -1\n"
    "  --nms 0.7             non-maximum suppression: of masks whose boxes overlap more, keeps the best predicted IoU\n"
    "  --batch 16            prompts per batch; more take more memory and less time\n"
    "  --prompts FILE        many images, with one load of the model: the prompts of a CSV "
    "(image,id,x0,y0,x1,y1,x,y,label,category:\n"
    "                        boxes, points or both; rows with the same image and id are one prompt) or of a COCO file "
    "(the bbox of each\n"
    "                        annotation). Images are in FOLDER, or beside the file. Without it --point and --box hold "
    "for all images.\n"
    "                        -o is then a folder of masks, NAME-ID.png; --json a list of COCO results\n"
    "  --data RUN.yaml       the images of that run's validation data, or training data, with prompts derived from "
    "their masks\n"
    "  --slices FIRST-LAST   of a volume (.nii, .nii.gz, TIFF pages, a folder of a DICOM series): slices that get the "
    "prompt, counted from 0 along\n"
    "                        data.slice_axis; -o is a label volume, OUT.nii.gz, of the same geometry. With --data the "
    "volumes of\n"
    "                        the dataset become label volumes in the folder -o\n"
    "  --prompt box          with --data: the box of each mask; point: its most interior point; train: drawn as in "
    "training\n"
    "                        (prompts.box, prompts.jitter, train.seed)\n"
    "  --side N              resizes and pads the image to N x N pixels; default: the size of training if the model "
    "is\n"
    "                        in the folder of its run, else the model's image_size\n"
    "  --text TEXT           CLIP and SigLIP: a text that is compared with the images; give two or more\n"
    "  --memory SIZE         memory budget, memory.budget\n"
    "  --set key=value       sets a configuration key, such as device=cuda",
    predict};
