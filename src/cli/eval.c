/*
 * eval.c: `plimsoll eval`: scores a model on held-out data (infer/validate.h): masks, and texts for
 * masks, here; answers and losses of language models in eval_text.c.
 */
#include <math.h>

#include "batch/batch_plan.h"
#include "cli/data.h"
#include "cli/eval.h"
#include "data/dataset.h"
#include "data/text/tokens.h"
#include "io/table.h"
#include "report/worst.h"

/* The options, and what is evaluated. */
struct eval {
    struct options o;
    const char *csv, *overlays;
    const char *images, *structures, *spacing; /* of scores at the image's own size */
    bool wants_own;                            /* --own-size */
    struct own_size_options own;
    struct names data;
    uint64_t worst; /* UINT64_MAX: not given */
    uint64_t batch; /* prompts at once; 0: as the run file says */
    struct eval_text text;
    struct mask_validation masks;
    bool questions; /* masks were asked for by questions: the run is closed */
};

/* --- reporting --------------------------------------------------------------------------- */

static void print_worst(const struct eval *v, struct text *out)
{
    const struct scores *s = &v->masks.found.scores;
    for (uint32_t i = 0; i < s->n_worst; i++) {
        const struct worst *w = &s->worst[i];
        char name[512];
        dataset_name(feed_dataset(&v->masks.feed), w->sample, name, sizeof name);
        text_printf(out, "%s%-10s IoU %.4f  %s, mask %lld\n", i ? "" : "\nworst:\n", s->prompts[w->prompt], w->iou,
                    name, (long long)w->mask);
    }
}

static void print_loss(const struct mask_validation *x, const char *unit, struct text *out)
{
    char arena[32], time[32], left[512];
    text_printf(out, "loss %.6g over %llu %s%s, %llu of them unreadable, %s, arena %s\n", x->loss,
                (unsigned long long)x->feed.samples, unit, x->feed.samples == 1 ? "" : "s",
                (unsigned long long)x->feed.broken, duration_print(x->seconds, time),
                size_print(plan_arena(&x->run.planned.plan), arena));
    if (feed_print_left(&x->feed, left, sizeof left)) text_printf(out, "%s\n", left);
}

static void put_prompts(struct json_writer *w, const void *of)
{
    const struct scores *s = of;
    json_begin_map(w, "prompts");
    for (uint32_t p = 0; p < s->n_prompts; p++) scores_json(s, p, w);
    json_end(w);
}

/* Prints the scores. A model that answers in words too gets the memory of the run for that. */
static int report_masks(struct eval *v, struct text *out, struct error *e)
{
    struct mask_validation *x = &v->masks;
    struct json_writer w = {.out = out, .indent = 2};
    v->questions = prs_model(&x->run.planned.model);
    if (v->o.json) {
        json_begin_map(&w, NULL);
        PUT_FACTS(&w, FACT("model", v->o.model), FACT("samples", x->feed.samples),
                  FACT("broken_samples", x->feed.broken), FACT("too_small_masks", x->feed.left.small),
                  FACT("loss", x->loss), FACT("seconds", x->seconds),
                  FACT("arena_bytes", plan_arena(&x->run.planned.plan)), FACT_CALL(put_prompts, &x->found.scores),
                  FACT_CALL_IF(x->has_own, own_size_put, &x->own));
    } else {
        scores_print(&x->found.scores, out);
        if (x->has_own) own_size_print(&x->own, out);
        print_worst(v, out);
        text_printf(out, "\n");
        print_loss(x, "image", out);
    }
    int rc = PL_OK;
    if (v->questions) {
        mask_validation_end_run(x);
        rc = eval_questions(&v->o.config, &v->text, v->o.json ? &w : NULL, out, e);
    }
    if (v->o.json) json_end(&w), text_printf(out, "\n");
    return rc;
}

static int report(struct eval *v, struct error *e)
{
    struct text out = {0}, csv = {0};
    scores_csv(&v->masks.found.scores, &csv);
    int rc = report_masks(v, &out, e);
    if (!rc) fputs(out.at, stdout);
    if (!rc && v->csv) rc = file_write_atomic(v->csv, csv.at, csv.n, e);
    if (!rc && v->masks.has_own) rc = own_size_write(&v->masks.own, v->images, v->structures, e);
    text_free(&out);
    text_free(&csv);
    return rc;
}

/* Reports a model that matches masks with texts, or a vision tower with a head. */
static void report_retrieval(const struct eval *v)
{
    const struct mask_validation *m = &v->masks;
    const struct retrieval *x = &m->retrieval;
    struct text out = {0};
    if (v->o.json)
        PRINT_FACTS(2, FACT("model", v->o.model), FACT("samples", m->feed.samples),
                    FACT("broken_samples", m->feed.broken), FACT("queries", x->queries),
                    FACT("accuracy", retrieval_accuracy(x)), FACT("chance", retrieval_chance(x)),
                    FACT("loss", m->loss), FACT("seconds", m->seconds),
                    FACT("arena_bytes", plan_arena(&m->run.planned.plan)));
    else {
        print_loss(m, "sample", &out);
        printf("%saccuracy %.4f: %llu of %llu %s; by chance %.4f would\n%s", retrieval_word(&m->run),
               retrieval_accuracy(x), (unsigned long long)x->right, (unsigned long long)x->queries,
               retrieval_found(&m->run), retrieval_chance(x), out.at);
    }
    text_free(&out);
}

static int draw(const struct eval *v, struct error *e)
{
    const struct mask_validation *x = &v->masks;
    const struct scores *s = &x->found.scores;
    struct dataset *rows = NULL;
    struct text table = {0};
    if (x->has_own) own_size_page(&x->own, &table);
    int rc = v->questions ? feed_open_questions(&rows, &v->o.config, FEED_VALIDATION, e) : PL_OK;
    if (!rc)
        rc = worst_sheet(&(struct worst_masks){&v->o.config, rows ? rows : feed_dataset(&x->feed), s->prompts, s->worst,
                                               s->n_worst, table.at},
                         v->overlays, e);
    dataset_close(rows);
    text_free(&table);
    return rc;
}

static int evaluate(struct eval *v, struct error *e)
{
    struct mask_validation *x = &v->masks;
    const bool own = v->wants_own || v->images || v->structures;
    int rc = mask_validation_open(x, &v->o.config, (uint32_t)v->worst, own ? &v->own : NULL, e);
    if (!rc && x->matches && (v->csv || v->overlays))
        rc = error_set(e, PL_USAGE, "%s is for models that predict masks, and a %s %s", v->csv ? "--csv" : "--overlays",
                       x->run.planned.model.family->model_type,
                       x->run.planned.model.head ? "with a head predicts none" : "matches masks with texts");
    if (!rc) rc = mask_validation_run(x, e);
    if (!rc && x->matches) report_retrieval(v);
    if (!rc && !x->matches) rc = report(v, e);
    if (!rc && v->overlays) rc = draw(v, e);
    mask_validation_close(x);
    return rc;
}

/* --- the command ------------------------------------------------------------------------------ */

/* The options for masks; then those for text, of which the first three are for questions too. */
#define OWN(name, kind, member) OPTION(struct eval, name, kind, member)
static const struct option OPTIONS[] = {
    OWN("--csv", TEXT, csv), OWN("--overlays", TEXT, overlays), OWN("--images", TEXT, images),
    OWN("--structures", TEXT, structures), OWN("--own-size", SWITCH, wants_own), OWN("--spacing", TEXT, spacing),
    OWN("--samples", POSITIVE, text.answers.samples), OWN("--max-new", POSITIVE, text.answers.max_new),
    OWN("--batch", POSITIVE, batch), OWN("--data", LIST, data), OWN("-o", TEXT, o.output),
    OWN("--loss", SWITCH, text.answers.loss), OWN("--worst", COUNT, worst), OWN("--tolerance", REAL, own.tolerance)};
enum { MASK_OPTIONS = 6, QUESTION_OPTIONS = 3, TEXT_OPTIONS = 6 };

/* Reads --spacing and --tolerance. */
static int read_own_size(struct eval *v, struct error *e)
{
    double *mm = v->own.mm;
    char *end = NULL;
    if (v->spacing) {
        mm[0] = strtod(v->spacing, &end);
        mm[1] = *end == ',' ? strtod(end + 1, &end) : mm[0];
        if (end == v->spacing || *end || !(mm[0] > 0 && mm[1] > 0 && isfinite(mm[0]) && isfinite(mm[1])))
            return error_set(e, PL_USAGE, "--spacing %s: expected X,Y, the size of a pixel in mm, such as 0.7,0.7",
                             v->spacing);
    }
    if (!(v->own.tolerance >= 0))
        return error_set(e, PL_USAGE, "--tolerance %g: expected at least 0 mm", v->own.tolerance);
    if (v->spacing && !(v->wants_own || v->images || v->structures))
        return error_set(e, PL_USAGE, "--spacing is for scores at the image's own size: add --own-size");
    return PL_OK;
}

/* Refuses options of the other kind of model. */
static int check_options(struct eval *v, bool text, struct error *e)
{
    const bool table = v->o.config.data_format == FORMAT_CSV; /* which may have questions and answers */
    const uint32_t first = text ? 0 : MASK_OPTIONS + (table ? QUESTION_OPTIONS : 0),
                   end = text ? MASK_OPTIONS : MASK_OPTIONS + TEXT_OPTIONS;
    const char *other = text && v->worst != UINT64_MAX ? "--worst" : options_given(&v->o, OPTIONS + first, end - first);
    if (other)
        return error_set(e, PL_USAGE, "%s is for %s, and data.format is %s", other, text ? "masks" : "conversations",
                         batch_format(&v->o.config));
    if (v->worst == UINT64_MAX) v->worst = 8;
    if (v->worst > 100000)
        return error_set(e, PL_USAGE, "--worst %llu: expected at most 100000", (unsigned long long)v->worst);
    TRY(read_own_size(v, e));
    return data_check_png("--overlays", v->overlays, e);
}

/* Reports whether a path has the name of a file of tokens. */
static bool is_tokens(const char *path)
{
    return path_has_ending(path, ".bin") || path_has_ending(path, ".tokens") || path_has_ending(path, ".npy") ||
           path_has_ending(path, ".safetensors");
}

/* Reads the run file, or takes files of conversations without one. */
static int read_sources(struct eval *v, struct error *e)
{
    struct config *c = &v->o.config;
    const bool tokens = v->data.n && (is_plain_text(v->data.at[0]) || is_tokens(v->data.at[0])),
               run = v->o.run || v->o.from.n;
    struct import f = {0};
    config_init(c);
    v->o.configured = true;
    int rc = options_begin(&v->o, &f, c, e);
    if (!rc && tokens && (!run || c->data_format != FORMAT_BYTES)) rc = config_assign(c, "data.format", "tokens", e);
    else if (!rc && !run) rc = config_assign(c, "data.format", "conversations", e);
    if (!rc) rc = options_end(&v->o, &f, c, e);
    import_free(&f);
    if (v->data.n) {
        c->data_validation = (struct config_list){v->data.at, v->data.n}; /* names with commas stay whole */
        c->data_holdout = 0;
        c->data_store = NULL;
    }
    return rc;
}

/* Takes data and prompts from the run; its model and training keys are ignored. */
static int read_config(struct eval *v, struct error *e)
{
    struct config *c = &v->o.config;
    const char *run = v->o.run ? v->o.run : v->o.from.n ? v->o.from.at[0] : "the run";
    TRY(read_sources(v, e));
    const bool text = c->data_format == FORMAT_CONVERSATIONS;
    TRY(check_options(v, config_tokens(c), e));
    if (config_tokens(c) && !text && (v->text.answers.samples || v->text.answers.max_new || v->batch || v->o.output))
        return error_set(e, PL_USAGE, "%s is for conversations; on tokens eval computes loss and perplexity",
                         v->text.answers.samples   ? "--samples"
                         : v->text.answers.max_new ? "--max-new"
                         : v->batch        ? "--batch"
                                           : "-o");
    if (v->batch) c->train_eval_batch = (int64_t)min_u64(v->batch, INT32_MAX);
    use_model(c, v->o.model, config_tokens(c) ? "text" : "masks");
    config_use_adapter(c, v->o.adapter);
    /* their patterns are for the names of the run's model */
    c->model_freeze.n = c->train_groups.n = c->train_no_decay.n = 0;
    if (text && !c->data_validation.n && !(c->data_holdout > 0))
        return error_set(
            e, PL_USAGE,
            "%s has no held-out conversations: set data.validation or data.holdout, or give files with --data",
            run);
    if (!config_validates(c))
        return error_set(e, PL_USAGE,
                         "%s has no validation data: set data.validation or data.holdout, in the file or with --set",
                         run);
    TRY(config_check_read(c, "eval", "model.* adapter.* data.* prompts.* loss.* train.seed memory.* device.*", e));
    return config_tokens(c) ? config_check(c, CONFIG_OPTIONS_ONLY, e) : PL_OK;
}

static int eval(struct options *o, struct error *e)
{
    struct eval *v = (struct eval *)o;
    if (o->paths.n > 1 || (!o->paths.n && !v->data.n && !o->from.n))
        return error_set(e, PL_USAGE,
                         "expected one RUN.yaml with the validation data, or --data FILE with conversations, tokens or "
                         "text; %u files are given",
                         o->paths.n);
    if (!o->model) return error_set(e, PL_USAGE, "no model is given: add --model DIR, such as train.out/model");
    if (o->paths.n) o->run = o->paths.at[0];
    v->text.model = o->model;
    v->text.output = o->output;
    v->text.json = o->json;
    TRY(read_config(v, e));
    if (!config_tokens(&o->config)) return evaluate(v, e);
    return o->config.data_format == FORMAT_CONVERSATIONS ? eval_text(&o->config, &v->text, e)
                                                         : eval_tokens(&o->config, &v->text, e);
}

static const struct eval START = {.worst = UINT64_MAX, .own.tolerance = 1};

const struct command command_eval = {
    "eval",
    "eval (RUN.yaml | --config-from FILE... | --data FILE) --model DIR [--adapter DIR] [--samples N] [--batch N] "
    "[--loss] [-o FILE] [--csv FILE] [--own-size] [--images FILE] [--structures FILE] [--spacing X,Y] [--worst N] "
    "[--overlays FILE] [--json] [--memory SIZE] [--set key=value]...",
    "Evaluates a model on the validation data of RUN.yaml. Masks: mean IoU and Dice by prompt and\n"
    "category. Conversations: the model answers the last question of each, greedily, and the answers are\n"
    "scored against the references: exact match, token F1, BLEU and ROUGE-L by file. Files of tokens and\n"
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
    COMMAND_STATE(START),
    .run = eval};
