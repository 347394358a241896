/*
 * eval.c: `plimsoll eval`: scores a model on held-out data (report/requests.h).
 */
#include "batch/batch_plan.h"
#include "cli/cli.h"
#include "data/text/tokens.h"
#include "report/requests.h"

struct eval {
    struct options o;
    struct evaluation of;
    struct names data;
    uint64_t batch; /* prompts at once; 0: as the run file says */
};

/* The options for masks; then those for text, of which the first three are for questions too. */
#define OWN(name, kind, member) OPTION(struct eval, name, kind, member)
static const struct option OPTIONS[] = {
    OWN("--csv", TEXT, of.csv), OWN("--prompt", TEXT, of.prompt), OWN("--overlays", TEXT, of.overlays),
    OWN("--images", TEXT, of.images),
    OWN("--structures", TEXT, of.structures), OWN("--own-size", SWITCH, of.own_size),
    OWN("--spacing", TEXT, of.spacing), OWN("--samples", POSITIVE, of.answers.samples),
    OWN("--max-new", POSITIVE, of.answers.max_new), OWN("--batch", POSITIVE, batch), OWN("--data", LIST, data),
    OWN("-o", TEXT, o.output), OWN("--loss", SWITCH, of.answers.loss), OWN("--worst", COUNT, of.worst),
    OWN("--tolerance", REAL, of.own.tolerance)};
enum { MASK_OPTIONS = 7, QUESTION_OPTIONS = 3, TEXT_OPTIONS = 6 };

/* Refuses options of the other kind of model. */
static int check_options(struct eval *v, bool text, struct error *e)
{
    const bool table = v->o.config.data_format == FORMAT_CSV; /* which may have questions and answers */
    const uint32_t first = text ? 0 : MASK_OPTIONS + (table ? QUESTION_OPTIONS : 0),
                   end = text ? MASK_OPTIONS : MASK_OPTIONS + TEXT_OPTIONS;
    const char *given = options_given(&v->o, OPTIONS + first, end - first),
               *other = text && v->of.worst != UINT64_MAX ? "--worst" : given;
    if (other)
        return error_set(e, PL_USAGE, "%s is for %s, and data.format is %s", other, text ? "masks" : "conversations",
                         batch_format(&v->o.config));
    if (v->of.prompt && !v->o.config.data_frames)
        return error_set(e, PL_USAGE, "--prompt is for videos (data.frames); images are evaluated by points and boxes");
    return evaluation_check(&v->of, e);
}

/* Takes files of conversations, tokens or text without a run file. */
static int choose_format(const struct options *o, struct config *c, struct error *e)
{
    const struct names *data = &((const struct eval *)o)->data;
    const bool run = o->run || o->from.n,
               tokens = data->n && (is_plain_text(data->at[0]) || is_token_file(data->at[0]));
    if (tokens && (!run || c->data_format != FORMAT_BYTES)) return config_assign(c, "data.format", "tokens", e);
    return run ? PL_OK : config_assign(c, "data.format", "conversations", e);
}

/* Takes data and prompts from the run; its model and training keys are ignored. */
static int read_config(struct eval *v, struct error *e)
{
    struct config *c = &v->o.config;
    const char *run = v->o.run ? v->o.run : v->o.from.n ? v->o.from.at[0] : "the run",
               *other = options_given(&v->o, OPTIONS + MASK_OPTIONS, QUESTION_OPTIONS);
    TRY(options_configure(&v->o, e));
    if (v->data.n) {
        c->data_validation = (struct config_list){v->data.at, v->data.n}; /* names with commas stay whole */
        c->data_holdout = 0;
        c->data_store = NULL;
    }
    const bool tokens = config_tokens(c), text = c->data_format == FORMAT_CONVERSATIONS;
    TRY(check_options(v, tokens, e));
    if (tokens && !text && (other || v->o.output))
        return error_set(e, PL_USAGE, "%s is for conversations; on tokens eval computes loss and perplexity",
                         other ? other : "-o");
    if (v->batch) c->train_eval_batch = (int64_t)min_u64(v->batch, INT32_MAX);
    use_other_model(&v->o, tokens ? "text" : "masks");
    if (text && !c->data_validation.n && !(c->data_holdout > 0))
        return error_set(
            e, PL_USAGE,
            "%s has no held-out conversations: set data.validation or data.holdout, or give files with --data", run);
    if (!config_validates(c))
        return error_set(
            e, PL_USAGE,
            "%s has no validation data: set data.validation or data.holdout, in the file or with --set", run);
    TRY(config_check_read(c, "eval", "model.* adapter.* data.* prompts.* loss.* train.seed memory.* device.*", e));
    return tokens ? config_check(c, CONFIG_OPTIONS_ONLY, e) : PL_OK;
}

static int eval(struct options *o, struct error *e)
{
    struct eval *v = (struct eval *)o;
    if (o->paths.n > 1 || (!o->paths.n && !v->data.n && !o->from.n))
        return error_set(e, PL_USAGE, "expected one RUN.yaml with the validation data, or --data FILE with "
                         "conversations, tokens or text; %u files are given", o->paths.n);
    if (!o->model) return error_set(e, PL_USAGE, "no model is given: add --model DIR, such as train.out/model");
    if (o->paths.n) o->run = o->paths.at[0];
    v->of.model = o->model, v->of.output = o->output, v->of.json = o->json;
    TRY(read_config(v, e));
    return (o->config.data_frames                           ? evaluate_videos
            : !config_tokens(&o->config)                    ? evaluate_masks
            : o->config.data_format == FORMAT_CONVERSATIONS ? evaluate_answers
                                                            : evaluate_tokens)(&o->config, &v->of, e);
}

const struct command command_eval = {
    "eval",
    "eval (RUN.yaml | --config-from FILE... | --data FILE) --model DIR [--adapter DIR] [--samples N] [--batch N] "
    "[--loss] [-o FILE] [--csv FILE] [--own-size] [--images FILE] [--structures FILE] [--spacing X,Y] [--worst N] "
    "[--overlays FILE] [--json] [--memory SIZE] [--set key=value]...",
    "Evaluates a model on the validation data of RUN.yaml. Masks: mean IoU and Dice by prompt and\n"
    "category. Videos (data.frames): J and F by object, as the DAVIS challenges; volumes: Dice, IoU,\n"
    "HD95 and NSD by structure in three dimensions.\n"
    "Conversations: the model answers the last question of each, greedily, and the answers are scored\n"
    "against the references: exact match, token F1, BLEU and ROUGE-L by file. Files of tokens and\n"
    "texts (.txt, .md), which the model's tokenizer makes tokens of: loss and perplexity, in rows of\n"
    "data.sequence tokens. Masks and texts (data.queries): the share of queries that find their mask\n"
    "among those of the image.\n"
    "\n"
    "  --model DIR    a model folder, such as train.out/model, or the name of a preset\n"
    "  --adapter DIR  a LoRA adapter for that model, such as train.out/model of a run with an adapter\n"
    "  --json         prints one JSON object instead of the table\n"
    "  --memory SIZE  memory budget, memory.budget\n"
    CONFIG_FROM_HELP
    "  --set key=value  sets a key of RUN.yaml\n"
    "\n"
    "For masks:\n"
    "\n"
    "  --csv FILE     writes the table as CSV: prompt,category,masks,mean_iou,mean_dice,above_50,above_75\n"
    "  --prompt mask  videos (data.frames): the objects' masks on the first frame are the prompts; box:\n"
    "                 the boxes of these masks\n"
    "  --own-size     also scores masks at the image's own size: Dice, IoU, HD95 and NSD by structure\n"
    "                 (category), mean and deviation; --json then has the lists structures and images, of\n"
    "                 the own size and of the loss's\n"
    "  --images FILE  writes these scores as CSV, a row for each image, prompt and mask (implies\n"
    "                 --own-size)\n"
    "  --structures FILE  writes their means, standard deviations and counts as CSV, by prompt and\n"
    "                 structure (implies --own-size)\n"
    "  --spacing X,Y  size of a pixel in mm, for HD95 and NSD; default: that of the volume, else 1,1:\n"
    "                 distances are in pixels\n"
    "  --tolerance T  NSD: surfaces that are at most T mm apart agree (1)\n"
    "  --worst N      lists the N worst masks (8)\n"
    "  --overlays F   draws the worst masks into F, an HTML page (F ends in .html) or a PNG: the\n"
    "                 prediction in blue, the ground truth in green, the prompt in yellow\n"
    "\n"
    "For conversations, and --data for files of tokens and texts:\n"
    "\n"
    "  --data FILE    a file of conversations, tokens or text, or a glob, instead of data.validation; may\n"
    "                 be given several times, and without RUN.yaml\n"
    "  --samples N    answers the first N conversations of each file; default: all\n"
    "  --max-new N    tokens of an answer, at most; default: max_new_tokens of generation_config.json,\n"
    "                 else 256\n"
    "  --batch N      prompts that are answered at once, train.eval_batch; default: as many as --memory\n"
    "                 allows, at most 32; without it as many as the free memory allows\n"
    "  --loss         also computes loss and perplexity over all conversations, as the evaluation in\n"
    "                 training does; planned within --memory by itself, with rows of data.sequence tokens\n"
    "  -o FILE        writes the answers as JSON lines: file, line, prompt, answer, reference, finish,\n"
    "                 and the scores of each",
    .shared = OPT_PATHS | OPT_MODEL | OPT_MEMORY | OPT_OUTPUT | OPT_JSON | OPT_SET | OPT_FROM,
    COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(struct eval, .of = {.worst = UINT64_MAX, .own.tolerance = 1}), .between = choose_format, .run = eval};
