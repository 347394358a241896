/*
 * predict.c: `plimsoll predict`: inference: masks of an image for points, a box, a question, or
 * everything (report/mask_files.h); masks of many images (infer/many.h); classes of images
 * (infer/classifier.h).
 *
 * Prompts and masks are in pixels of the image as stored. The candidate with the best predicted
 * IoU is written, or all candidates.
 */
#include "cli/data.h"
#include "data/detect/match.h"
#include "infer/ask.h"
#include "infer/classifier.h"
#include "infer/many.h"
#include "models/model.h"
#include "report/mask_files.h"

enum { NEW_TOKENS = 128 };

struct predict {
    struct options o;
    struct names points, texts; /* as given */
    const char *box, *question, *data;
    struct many_options many; /* the options that many images have, too; `common` is that of --point and --box */
    struct mask_files files;
    struct everything_options every;
    uint64_t everything, batch, side, max_new; /* 0: not given */
    struct image image;
};

/* The first rows are for masks, and the last four of these for one image. */
enum { MASK_OPTIONS = 14, ONE_IMAGE = 4 };
#define OWN(name, kind, member) OPTION(struct predict, name, kind, member)
static const struct option OPTIONS[] = {
    OWN("--point", LIST, points), OWN("--box", TEXT, box), OWN("-o", TEXT, files.output),
    OWN("--prompts", TEXT, many.prompts), OWN("--data", TEXT, data), OWN("--slices", TEXT, many.slices),
    OWN("--single", SWITCH, many.single), OWN("--side", POSITIVE, side), OWN("--prompt", TEXT, many.derive),
    OWN("--max-new", POSITIVE, max_new), OWN("--question", TEXT, question), OWN("--everything", POSITIVE, everything),
    OWN("--multimask", SWITCH, files.all), OWN("--overlay", TEXT, files.overlay),
    OWN("--out", TEXT, files.output), OWN("--json", TEXT, files.json), OWN("--batch", COUNT, batch),
    OWN("--min-iou", REAL, every.min_iou), OWN("--min-stability", REAL, every.min_stability),
    OWN("--nms", REAL, every.nms), OWN("--text", LIST, texts)};

/* --- one image -------------------------------------------------------------------------------- */

static int predict_one(struct predict *p, struct text *said, struct error *e)
{
    const struct predictor_shape shape = {.prompts = 1, .points = p->points.n, .box = p->box, .single = p->many.single,
                                          .side = p->many.reading.side};
    const struct image_prompt *own = &p->many.common;
    struct predictor a;
    TRY(image_prompt_parse(&p->many.common, &p->points, p->box, &p->image, p->files.image_path, e));
    struct predictor_prompt q = {.points = (const float(*)[2])own->points, .labels = own->labels};
    memcpy(q.box, own->corners, sizeof q.box);
    TRY(predictor_open(&a, &p->o.config, &p->image, &shape, e));
    int rc = predictor_run(&a, &q, 1, e);
    if (!rc) rc = mask_files_write(&p->files, &a, &q, said, e);
    predictor_close(&a);
    return rc;
}

static int predict_question(struct predict *p, struct text *said, struct error *e)
{
    struct ask a;
    struct predictor mask = {0};
    struct answer answer = {0};
    if (p->many.reading.side) p->o.config.data_image_size = p->many.reading.side; /* of the model's run */
    int rc = ask_open(&a, &p->o.config, p->files.image_path, p->question, e);
    if (!rc) rc = ask_mask(&a, &p->image, &mask, e);
    if (!rc) rc = ask_answer(&a, p->max_new ? (int64_t)p->max_new : NEW_TOKENS, &answer, e);
    if (!rc) rc = mask_files_write_answer(&p->files, &mask, p->question, &answer, said, e);
    answer_free(&answer);
    ask_mask_free(&mask);
    ask_close(&a);
    return rc;
}

static int predict_everything(struct predict *p, struct text *said, struct error *e)
{
    struct everything g;
    p->every.points = (int64_t)p->everything, p->every.batch = (int64_t)p->batch;
    p->every.side = p->many.reading.side;
    int rc = everything_find(&g, &p->o.config, &p->image, &p->every, e);
    if (!rc) rc = mask_files_write_all(&p->files, &g, e);
    if (!rc)
        text_printf(said,
                    "%s: %u mask%s; of %llu candidates %llu have a predicted IoU of at least %g, %llu of these a "
                    "stability of at least %g, %llu are not empty\n",
                    p->files.output, g.masks.n, g.masks.n == 1 ? "" : "s", (unsigned long long)g.tested,
                    (unsigned long long)g.confident, p->every.min_iou, (unsigned long long)g.stable,
                    p->every.min_stability, (unsigned long long)g.filled);
    everything_free(&g);
    return rc;
}

static int check_one(const struct predict *p, bool prompt, struct error *e)
{
    const struct names *paths = &p->o.paths;
    const struct mask_files *f = &p->files;
    const bool single = p->many.single;
    if (paths->n != 1)
        return error_set(e, PL_USAGE,
                         paths->n ? "expected one image: %s and %s are given"
                                  : "no image is given: add a JPEG, PNG or WebP file",
                         paths->n ? paths->at[0] : "", paths->n ? paths->at[1] : "");
    if (!f->output) return error_set(e, PL_USAGE, "no output is given: add -o OUT.png");
    if (prompt && p->everything)
        return error_set(e, PL_USAGE, "--everything uses a grid of points: leave out --point and --box");
    if (!prompt && !p->everything && !p->question)
        return error_set(
            e, PL_USAGE,
            "no prompt is given: add --point X,Y, --box X0,Y0,X1,Y1 or --everything N; for a prs_med --question TEXT");
    if (single && f->all) return error_set(e, PL_USAGE, "--single and --multimask exclude each other");
    if (p->everything && (single || f->all || f->overlay))
        return error_set(
            e, PL_USAGE,
            "--everything writes one image of all masks to -o: leave out --single, --multimask and --overlay");
    if (p->everything > 256)
        return error_set(e, PL_USAGE, "--everything %llu: expected 1 to 256 points along each side",
                         (unsigned long long)p->everything);
    TRY(data_check_png("-o", f->output, e));
    TRY(data_check_png("--overlay", f->overlay, e));
    TRY(mask_files_check(f, f->output, e));
    TRY(mask_files_check(f, f->overlay, e));
    return mask_files_check(f, f->json, e);
}

/* Reads the image and says which values of 16 bits became black and white. */
static int read_image(struct predict *p, struct error *e)
{
    const struct pixel_range *range = &p->many.reading.range;
    const double *w = p->image.window;
    TRY(image_read(&p->image, p->files.image_path, range, e));
    if (w[0] < w[1])
        log_note("%s has more than 8 bits: values from %.10g to %.10g become 0 to 255 (%s; data.range sets another)",
                 p->files.image_path, w[0], w[1],
                 range->kind == RANGE_AUTO ? "auto, from this image" : "data.range of the run or of --set");
    return PL_OK;
}

/* --- many images ------------------------------------------------------------------------------ */

static int predict_many(struct predict *p, bool prompt, struct error *e)
{
    struct many_options *o = &p->many;
    struct many_result r;
    char time[32];
    o->config = &p->o.config, o->paths = &p->o.paths, o->batch = (int64_t)p->batch;
    o->output = p->files.output, o->json = p->files.json;
    if (p->data && !o->derive) o->derive = "box";
    if (prompt) TRY(image_prompt_parse(&o->common, &p->points, p->box, NULL, NULL, e));
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
static int check_many(const struct predict *p, bool volume, bool prompt, struct error *e)
{
    const int sources = (p->many.prompts != NULL) + (p->data != NULL) + prompt;
    const char *one = options_given(&p->o, OPTIONS + MASK_OPTIONS - ONE_IMAGE, ONE_IMAGE), *out = p->files.output,
               *path = p->o.paths.n ? p->o.paths.at[0] : NULL;
    if (one) return error_set(e, PL_USAGE, "%s is for one image, and several are given", one);
    if (sources != 1)
        return error_set(e, PL_USAGE,
                         "%s: give one of --prompts FILE, --data RUN.yaml, and --point or --box for all images",
                         sources ? "the images have prompts from several places" : "no prompts are given");
    if (p->data && path)
        return error_set(e, PL_USAGE, "the images are those of %s: leave out %s", p->data, path);
    if (p->many.derive && !p->data)
        return error_set(e, PL_USAGE, "--prompt is for prompts derived from the masks of --data RUN.yaml");
    if (!out && !p->files.json)
        return error_set(e, PL_USAGE,
                         "no output is given: add -o FOLDER for masks, --json FILE for run lengths, or both");
    if (p->many.slices && !volume)
        return error_set(
            e, PL_USAGE,
            "--slices is for one volume: a .nii, a .nii.gz, a TIFF of several pages or a folder of a DICOM series");
    if (volume && p->many.prompts)
        return error_set(e, PL_USAGE,
                         "%s is a volume: give --point or --box, and --slices FIRST-LAST; or --data RUN.yaml, for "
                         "prompts from label volumes",
                         path);
    if (volume && out && !path_has_ending(out, ".nii") && !path_has_ending(out, ".nii.gz"))
        return error_set(
            e, PL_USAGE,
            "-o %s: the masks of a volume are a label volume, expected a name that ends with .nii or .nii.gz", out);
    if (volume && out && file_same(out, path))
        return error_set(e, PL_USAGE, "%s is the input volume: give another output file", out);
    if (!volume && out && file_exists(out) && !dir_exists(out))
        return error_set(e, PL_USAGE, "-o %s is a file, expected a folder for the masks of several images", out);
    return PL_OK;
}

/* --- masks ------------------------------------------------------------------------------------ */

static int check_masks(const struct predict *p, bool prompt, struct error *e)
{
    if (p->question && (prompt || p->everything || p->many.single || p->files.all || p->side))
        return error_set(e, PL_USAGE,
                         "--question asks a model for a mask in words: leave out --point, --box, --everything, "
                         "--single, --multimask and --side");
    if (p->max_new > 1 << 16)
        return error_set(e, PL_USAGE, "--max-new %llu: expected at most %d tokens", (unsigned long long)p->max_new,
                         1 << 16);
    if (!p->batch || p->batch > 1024)
        return error_set(e, PL_USAGE, "--batch %llu: expected 1 to 1024 prompts at once", (unsigned long long)p->batch);
    if (p->side > 1 << 14)
        return error_set(e, PL_USAGE, "--side %llu: expected at most %d pixels", (unsigned long long)p->side, 1 << 14);
    return PL_OK;
}

static int predict_masks(struct predict *p, struct error *e)
{
    const struct names *paths = &p->o.paths;
    const bool prompt = p->points.n || p->box, volume = paths->n == 1 && many_is_volume(paths->at[0]),
               many = volume || p->many.prompts || p->data || paths->n > 1 || (paths->n && dir_exists(paths->at[0]));
    struct text said = {0};
    p->files.image_path = paths->n ? paths->at[0] : NULL, p->files.image = &p->image;
    TRY(check_masks(p, prompt, e));
    TRY(many ? check_many(p, volume, prompt, e) : check_one(p, prompt, e));
    p->many.reading.side = (int64_t)p->side;
    image_reading_find(&p->many.reading, &p->o.config);
    int rc = many ? predict_many(p, prompt, e) : read_image(p, e);
    if (!rc && !many)
        rc = (p->question ? predict_question : p->everything ? predict_everything : predict_one)(p, &said, e);
    if (said.n) fputs(said.at, stdout);
    text_free(&said);
    image_free(&p->image);
    mem_free(p->many.common.points);
    mem_free(p->many.common.labels);
    return rc;
}

/* --- classes ---------------------------------------------------------------------------------- */

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

static int predict_classes(struct predict *p, struct error *e)
{
    struct names images = {0};
    struct classifier x = {0};
    struct text lines = {0}, out = {0};
    struct json_writer w = {.out = &out, .indent = 2};
    const char *other = options_given(&p->o, OPTIONS, MASK_OPTIONS);
    if (other)
        return error_set(e, PL_USAGE,
                         "%s is for masks, and %s is a vision tower with a head, which predicts classes: leave it out",
                         other, p->o.model);
    int rc = image_paths(&images, &p->o.paths, e);
    if (!rc) rc = classifier_open(&x, &p->o.config, &p->texts, e);
    json_begin_list(&w, NULL);
    for (int64_t at = 0; at < images.n && !rc; at += x.rows) {
        const int64_t n = min_i64(x.rows, images.n - at);
        rc = classifier_run(&x, images.at + at, n, e);
        for (int64_t i = 0; i < n && !rc; i++) {
            classifier_print(&x, x.p + i * x.n, images.at[at + i], &lines);
            classifier_put(&x, x.p + i * x.n, images.at[at + i], &w);
        }
    }
    json_end(&w);
    text_printf(&out, "\n");
    if (lines.n) fputs(lines.at, stdout);
    if (!rc && p->files.json) rc = file_write_atomic(p->files.json, out.at, out.n, e);
    text_free(&lines);
    text_free(&out);
    classifier_close(&x);
    names_free(&images);
    return rc;
}

/* --- the command ----------------------------------------------------------------------------- */

#define READS_OF_RUN                                                                                                   \
    "model.* adapter.* data.* prompts.box prompts.jitter train.seed memory.* device.*" /* with --data */
#define READS                                                                                                          \
    "model.* adapter.* data.tokenizer data.template data.range data.window data.percentiles data.slice_axis "          \
    "data.slices data.neighbours data.modalities data.volume_cache data.labels memory.* device.*"

/* Runs with `memory.precision: auto` as f32, as in `step`, to match the results of other
 * frameworks. */
static int predict(struct options *o, struct error *e)
{
    struct predict *p = (struct predict *)o;
    struct config *c = &o->config;
    if (!o->model)
        return error_set(e, PL_USAGE, "no model is given: add --model DIR, a folder with config.json and weights");
    o->run = p->data;
    TRY(options_configure(o, e));
    if (!c->memory_precision.chosen) c->memory_precision = (struct config_setting){true, "f32"};
    if (p->texts.n) c->model_head = HEAD_CONTRASTIVE;
    use_model(c, o->model, "masks");
    config_use_adapter(c, o->adapter);
    /* their patterns are for the names of the run's model */
    c->model_freeze.n = c->train_groups.n = c->train_no_decay.n = 0;
    TRY(config_check_read(c, "predict", p->data ? READS_OF_RUN : READS, e));
    TRY(config_check(c, CONFIG_OPTIONS_ONLY, e));
    return has_head(p) ? predict_classes(p, e) : predict_masks(p, e);
}

static const struct predict START = {.batch = 16, .every = {.min_iou = 0.88, .min_stability = 0.95, .nms = 0.7}};

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
