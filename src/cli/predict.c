/*
 * predict.c: `plimsoll predict`: inference: masks of images (report/requests.h), or their
 * classes (infer/predictor.h).
 */
#include "cli/cli.h"
#include "infer/predictor.h"
#include "report/requests.h"

struct predict {
    struct options o;
    struct mask_request masks;
    struct names texts;
};

/* The first rows are for masks. */
enum { MASK_OPTIONS = 16 };
#define OWN(name, kind, member) OPTION(struct predict, name, kind, member)
static const struct option OPTIONS[] = {
    OWN("--point", LIST, masks.points), OWN("--box", TEXT, masks.box), OWN("-o", TEXT, masks.many.output),
    OWN("--prompts", TEXT, masks.many.prompts), OWN("--data", TEXT, masks.data),
    OWN("--slices", TEXT, masks.many.slices), OWN("--single", SWITCH, masks.many.single),
    OWN("--side", POSITIVE, masks.many.reading.side), OWN("--prompt", TEXT, masks.many.derive),
    OWN("--max-new", POSITIVE, masks.max_new), OWN("--question", TEXT, masks.question),
    OWN("--everything", POSITIVE, masks.every.points), OWN("--multimask", SWITCH, masks.all),
    OWN("--overlay", TEXT, masks.overlay), OWN("--video", TEXT, masks.video), OWN("--mask", TEXT, masks.labels),
    OWN("--frame", COUNT, masks.frame), OWN("--out", TEXT, masks.many.output), OWN("--json", TEXT, masks.many.json),
    OWN("--batch", COUNT, masks.many.batch), OWN("--min-iou", REAL, masks.every.min_iou),
    OWN("--min-stability", REAL, masks.every.min_stability), OWN("--nms", REAL, masks.every.nms),
    OWN("--text", LIST, texts)};

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
    const char *other = p->masks.frame != UINT64_MAX ? "--frame" : options_given(o, OPTIONS, MASK_OPTIONS);
    if (!o->model)
        return error_set(e, PL_USAGE, "no model is given: add --model DIR, a folder with config.json and weights");
    o->run = p->masks.data;
    TRY(options_configure(o, e));
    if (!c->memory_precision.chosen) c->memory_precision = (struct config_setting){true, "f32"};
    if (p->texts.n) c->model_head = HEAD_CONTRASTIVE;
    use_other_model(o, "masks");
    TRY(config_check_read(c, "predict", o->run ? READS_OF_RUN : READS, e));
    TRY(config_check(c, CONFIG_OPTIONS_ONLY, e));
    p->masks.many.config = c, p->masks.many.paths = &o->paths;
    if (!p->texts.n && !classifier_applies(c)) return mask_request_run(&p->masks, e);
    if (other)
        return error_set(e, PL_USAGE,
                         "%s is for masks, and %s is a vision tower with a head, which predicts classes: leave it out",
                         other, o->model);
    return classify(c, &o->paths, &p->texts, p->masks.many.json, e);
}

const struct command command_predict =
    {"predict",
     "predict --model DIR (IMAGE | FOLDER | --data RUN.yaml | --video VIDEO [--frame N]) "
     "((--point X,Y[,LABEL])... [--box X0,Y0,X1,Y1] | --prompts FILE | --everything N | --question TEXT | "
     "--mask LABELS) -o OUT",
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
     "  --video VIDEO         a file, a folder of frames or a volume, for a sam2_video: the masks of objects\n"
     "                        on all frames. -o is a folder of label images, a value for each object, as\n"
     "                        those of DAVIS, or of a volume a label volume, OUT.nii.gz; --overlay a folder\n"
     "                        of frames with masks; --json a list of masks. With --prompts the CSV has the\n"
     "                        column frame instead of image, and ids from 1\n"
     "  --frame N             with --video: the frame that is prompted, counted from 0 (0)\n"
     "  --mask LABELS         with --video: the objects on that frame, a value for each: a PNG, or a label\n"
     "                        volume\n"
     "  --prompt box          with --data: the box of each mask; point: its most interior point; train:\n"
     "                        drawn as in training (prompts.box, prompts.jitter, train.seed)\n"
     "  --side N              resizes and pads the image to N x N pixels; default: the size of training if\n"
     "                        the model is in the folder of its run, else the model's image_size\n"
     "  --text TEXT           CLIP and SigLIP: a text that is compared with the images; give two or more\n"
     "  --memory SIZE         memory budget, memory.budget\n"
     "  --set key=value       sets a configuration key, such as device=cuda",
     .shared = OPT_PATHS | OPT_MODEL | OPT_SET | OPT_MEMORY,
     COMMAND_OPTIONS(OPTIONS),
     COMMAND_STATE(struct predict, .masks = {.frame = UINT64_MAX, .many.batch = 16,
                                             .every = {.min_iou = 0.88, .min_stability = 0.95, .nms = 0.7}}),
     .run = predict};
