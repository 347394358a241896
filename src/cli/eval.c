/*
 * eval.c: `plimsoll eval`: scores a model on held-out data: masks, and texts for masks, here;
 * answers and losses of language models in eval_text.c.
 *
 * Masks: forward only: the memory is that of the weights and one batch's activations. The prompts
 * are those of the evaluation in training, so the same model and data give the same scores.
 */
#include <math.h>

#include "cli/data.h"
#include "cli/eval.h"
#include "data/dataset.h"
#include "infer/own_size.h"
#include "report/page.h"
#include "report/worst.h"
#include "batch/batch_plan.h"
#include "infer/mask_scores.h"
#include "infer/retrieval.h"
#include "io/table.h"
#include "io/temporary.h"

/* --- scores at the image's own size ------------------------------------------------------- */

/* Options, table, files and page; but for the first two functions, nothing is done unless open. */
struct eval_table {
    const char *images, *structures, *spacing; /* as given */
    bool wanted;                               /* --own-size */
    double tolerance, mm[2];
    bool open;
    struct own_size own;
};

static bool eval_table_wanted(const struct eval_table *t) { return t->wanted || t->images || t->structures; }

/* Reads --spacing and --tolerance. */
static int eval_table_options(struct eval_table *t, struct error *e)
{
    char *end = NULL;
    t->mm[0] = t->mm[1] = 0;
    if (t->spacing) {
        t->mm[0] = strtod(t->spacing, &end);
        t->mm[1] = *end == ',' ? strtod(end + 1, &end) : t->mm[0];
        if (end == t->spacing || *end || !(t->mm[0] > 0 && t->mm[1] > 0 && isfinite(t->mm[0]) && isfinite(t->mm[1])))
            return error_set(e, PL_USAGE, "--spacing %s: expected X,Y, the size of a pixel in mm, such as 0.7,0.7",
                             t->spacing);
    }
    if (!(t->tolerance >= 0)) return error_set(e, PL_USAGE, "--tolerance %g: expected at least 0 mm", t->tolerance);
    if (t->spacing && !eval_table_wanted(t))
        return error_set(e, PL_USAGE, "--spacing is for scores at the image's own size: add --own-size");
    return PL_OK;
}

/* Does nothing unless wanted. PL_USAGE: the model's masks are not promptable. */
static int eval_table_open(struct eval_table *t, const struct run *r, const struct feed *f, const char *const *prompts,
                    struct error *e)
{
    if (!eval_table_wanted(t)) return PL_OK;
    t->open = own_size_open(&t->own, r, f, prompts, t->mm, t->tolerance);
    if (t->open) return PL_OK;
    return error_set(e, PL_USAGE,
                     "scores at the image's own size are for models that take points and boxes, and a %s does not",
                     r->planned.model.family->model_type);
}

static void eval_table_close(struct eval_table *t)
{
    if (t->open) own_size_close(&t->own);
    t->open = false;
}

static void name_image(const void *of, uint64_t sample, char *out, size_t room) { dataset_name(of, sample, out, room); }

static void print_units(const struct mask_table *t, struct text *out)
{
    const bool pixels = t->spacing[0] == 1 && t->spacing[1] == 1;
    if (t->of_volumes)
        text_printf(out, "mean ± deviation; distances in mm, by the spacing of each volume, NSD within %g mm",
                    t->tolerance);
    else if (pixels) text_printf(out, "mean ± deviation; distances in pixels, NSD within %g", t->tolerance);
    else
        text_printf(out, "mean ± deviation; pixels of %g x %g mm, distances in mm, NSD within %g mm", t->spacing[0],
                    t->spacing[1], t->tolerance);
}

static void eval_table_print(const struct eval_table *t, struct text *out)
{
    if (!t->open) return;
    text_printf(out, "\nat the image's own size (");
    print_units(&t->own.table, out);
    text_printf(out, "):\n");
    struct report_table list = mask_table_list(&t->own.table);
    table_print(&list, 0, 0, out);
    table_free(&list);
    if (t->own.unreadable)
        text_printf(out, "%llu masks could not be read again at their own size\n",
                    (unsigned long long)t->own.unreadable);
}

static void eval_table_json(const struct eval_table *t, struct json_writer *w)
{
    if (!t->open) return;
    json_begin_list(w, "spacing");
    for (int k = 0; k < 2; k++) json_put_number(w, NULL, t->own.table.spacing[k]);
    json_end(w);
    if (t->own.table.of_volumes) json_put_string(w, "spacing_of", "volumes");
    json_put_number(w, "tolerance", t->own.table.tolerance);
    mask_table_json(&t->own.table, name_image, t->own.set, w);
}

static int eval_table_write(const struct eval_table *t, struct error *e)
{
    struct text images = {0}, structures = {0};
    if (!t->open) return PL_OK;
    mask_table_csv(&t->own.table, name_image, t->own.set, &images);
    mask_table_structures(&t->own.table, &structures);
    int rc = t->images ? file_write_atomic(t->images, images.at, images.n, e) : PL_OK;
    if (!rc && t->structures) rc = file_write_atomic(t->structures, structures.at, structures.n, e);
    text_free(&images);
    text_free(&structures);
    return rc;
}

/* Writes the table as HTML. */
static void eval_table_page(const struct mask_table *t, struct text *out)
{
    struct report_table list = mask_table_list(t);
    text_printf(out, "<h2>Scores at the image's own size</h2>\n<p class='dim'>");
    print_units(t, out);
    text_printf(out, "</p>\n");
    table_html(&list, "", 0, out);
    text_printf(out, "<h2>Worst masks</h2>\n");
    table_free(&list);
}

/* The options, and what is evaluated. */
struct eval {
    struct options o;
    const char *csv, *overlays;
    struct names data;
    uint64_t worst; /* UINT64_MAX: not given */
    uint64_t batch; /* prompts at once; 0: as the run file says */
    struct eval_text text;
    struct eval_table table;
    struct run run;
    struct feed feed;
    struct mask_scores found;
    struct retrieval retrieval;
    bool questions; /* masks were asked for by questions: the run is closed */
    double loss, seconds;
};

/* --- reporting --------------------------------------------------------------------------- */

static void print_worst(const struct eval *v, struct text *out)
{
    const struct scores *s = &v->found.scores;
    for (uint32_t i = 0; i < s->n_worst; i++) {
        const struct worst *w = &s->worst[i];
        char name[512];
        dataset_name(feed_dataset(&v->feed), w->sample, name, sizeof name);
        text_printf(out, "%s%-10s IoU %.4f  %s, mask %lld\n", i ? "" : "\nworst:\n", s->prompts[w->prompt], w->iou,
                    name, (long long)w->mask);
    }
}

/* Adds the scores of answers, of a model that answers in words too. It needs memory of its own, so
 * the run is closed. */
static int add_answers(struct eval *v, struct json_writer *w, struct text *out, struct error *e)
{
    struct scores *s = &v->found.scores;
    if (!prs_model(&v->run.planned.model)) return PL_OK;
    v->questions = true;
    /* they are drawn later */
    for (uint32_t i = 0; i < s->n_worst; i++) s->worst[i].sample = question_number(&v->feed, s->worst[i].sample);
    feed_close(&v->feed);
    run_close(&v->run);
    v->run = (struct run){0};
    return eval_questions(&v->o.config, &v->text, w, out, e);
}

static void put_prompts(struct json_writer *w, const void *of)
{
    const struct scores *s = of;
    json_begin_map(w, "prompts");
    for (uint32_t p = 0; p < s->n_prompts; p++) scores_json(s, p, w);
    json_end(w);
}

static int print_json(struct eval *v, struct text *out, struct error *e)
{
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_map(&w, NULL);
    PUT_FACTS(&w, FACT("model", v->o.model), FACT("samples", v->feed.samples), FACT("broken_samples", v->feed.broken),
              FACT("too_small_masks", v->feed.left.small), FACT("loss", v->loss), FACT("seconds", v->seconds),
              FACT("arena_bytes", plan_arena(&v->run.planned.plan)), FACT_CALL(put_prompts, &v->found.scores));
    eval_table_json(&v->table, &w);
    int rc = add_answers(v, &w, out, e);
    json_end(&w);
    text_printf(out, "\n");
    return rc;
}

static void print_loss(const struct eval *v, const char *unit, struct text *out)
{
    char arena[32], time[32], left[512];
    text_printf(out, "loss %.6g over %llu %s%s, %llu of them unreadable, %s, arena %s\n", v->loss,
                (unsigned long long)v->feed.samples, unit, v->feed.samples == 1 ? "" : "s",
                (unsigned long long)v->feed.broken, duration_print(v->seconds, time),
                size_print(plan_arena(&v->run.planned.plan), arena));
    if (feed_print_left(&v->feed, left, sizeof left)) text_printf(out, "%s\n", left);
}

static int report(struct eval *v, struct error *e)
{
    struct text out = {0}, csv = {0};
    int rc = PL_OK;
    scores_csv(&v->found.scores, &csv);
    if (v->o.json) rc = print_json(v, &out, e);
    else {
        scores_print(&v->found.scores, &out);
        eval_table_print(&v->table, &out);
        print_worst(v, &out);
        text_printf(&out, "\n");
        print_loss(v, "image", &out);
        rc = add_answers(v, NULL, &out, e);
    }
    if (!rc) fputs(out.at, stdout);
    if (!rc && v->csv) rc = file_write_atomic(v->csv, csv.at, csv.n, e);
    if (!rc) rc = eval_table_write(&v->table, e);
    text_free(&out);
    text_free(&csv);
    return rc;
}

/* Reports a model that matches masks with texts, or a vision tower with a head. */
static void report_retrieval(const struct eval *v)
{
    const struct retrieval *x = &v->retrieval;
    struct text out = {0};
    if (v->o.json)
        PRINT_FACTS(2, FACT("model", v->o.model), FACT("samples", v->feed.samples),
                    FACT("broken_samples", v->feed.broken), FACT("queries", x->queries),
                    FACT("accuracy", retrieval_accuracy(x)), FACT("chance", retrieval_chance(x)),
                    FACT("loss", v->loss), FACT("seconds", v->seconds),
                    FACT("arena_bytes", plan_arena(&v->run.planned.plan)));
    else {
        print_loss(v, "sample", &out);
        printf("%saccuracy %.4f: %llu of %llu %s; by chance %.4f would\n%s", retrieval_word(&v->run),
               retrieval_accuracy(x), (unsigned long long)x->right, (unsigned long long)x->queries,
               retrieval_found(&v->run), retrieval_chance(x), out.at);
    }
    text_free(&out);
}

static int draw(const struct eval *v, struct error *e)
{
    const struct scores *s = &v->found.scores;
    struct dataset *rows = NULL;
    struct text table = {0};
    if (v->table.open) eval_table_page(&v->table.own.table, &table);
    int rc = v->questions ? feed_open_questions(&rows, &v->o.config, FEED_VALIDATION, e) : PL_OK;
    if (!rc)
        rc = worst_sheet(&(struct worst_masks){&v->o.config, rows ? rows : feed_dataset(&v->feed), s->prompts, s->worst,
                                               s->n_worst, table.at},
                         v->overlays, e);
    dataset_close(rows);
    text_free(&table);
    return rc;
}

/* --- the command ------------------------------------------------------------------------------ */

/* Evaluates masks. `folder`: for what the feed prepares: texts of questions become tokens. */
static int evaluate(struct eval *v, const char *folder, struct error *e)
{
    const struct config *c = &v->o.config;
    /* an image is compared with the texts of its batch */
    const int64_t usual = c->data_format == FORMAT_CAPTIONS ? c->train_effective_batch : 1;
    struct run_options o = {.evaluate = true, .picks = eval_table_wanted(&v->table), .describe = feed_describe,
                            .B = c->memory_micro_batch.chosen ? config_micro_batch(c) : usual, .T = c->data_sequence};
    int rc = run_plan(&v->run, c, &o, e);
    if (!rc) rc = feed_open(&v->feed, c, &v->run, FEED_VALIDATION, e);
    if (!rc) rc = feed_prepare(&v->feed, &v->run, folder, e);
    if (!rc) rc = run_start(&v->run, NULL, true, e);
    if (!rc) rc = feed_start(&v->feed, &v->run, 0, 0, e);
    const bool matches = !rc && retrieval_open(&v->retrieval, &v->run, PROGRAM_STEP);
    if (!rc && matches && (v->csv || v->overlays))
        rc = error_set(e, PL_USAGE, "%s is for models that predict masks, and a %s %s", v->csv ? "--csv" : "--overlays",
                       v->run.planned.model.family->model_type,
                       v->run.planned.model.head ? "with a head predicts none" : "matches masks with texts");
    if (!rc && !matches && !mask_scores_open(&v->found, &v->run, &v->feed, PROGRAM_STEP, (uint32_t)v->worst))
        rc = error_set(e, PL_USAGE, "a %s predicts no masks, so there is nothing to score",
                       v->run.planned.model.family->model_type);
    if (!rc) rc = eval_table_open(&v->table, &v->run, &v->feed, v->found.prompts, e);
    const double from = clock_seconds();
    if (!rc)
        rc = eval_passes(&(struct eval_pass){&v->run, &v->feed, matches ? NULL : &v->found,
                                             matches ? &v->retrieval : NULL, v->table.open ? &v->table.own : NULL},
                         &v->loss, e);
    v->seconds = clock_seconds() - from;
    if (!rc && matches) report_retrieval(v);
    if (!rc && !matches) rc = report(v, e);
    if (!rc && v->overlays) rc = draw(v, e);
    eval_table_close(&v->table);
    mask_scores_close(&v->found);
    retrieval_close(&v->retrieval);
    feed_close(&v->feed);
    run_close(&v->run);
    return rc;
}

/* Refuses options of the other kind of model. */
static int check_options(struct eval *v, bool text, struct error *e)
{
    const bool table = v->o.config.data_format == FORMAT_CSV; /* which may have questions and answers */
    const struct {
        const char *name;
        bool given, text;
    } options[] = {{"--data", v->data.n > 0, true}, {"--samples", v->text.samples > 0 && !table, true},
                   {"--max-new", v->text.max_new > 0 && !table, true}, {"--batch", v->batch > 0 && !table, true},
                   {"-o", v->o.output, true}, {"--loss", v->text.loss, true}, {"--csv", v->csv, false},
                   {"--overlays", v->overlays, false}, {"--images", v->table.images, false},
                   {"--structures", v->table.structures, false}, {"--own-size", v->table.wanted, false},
                   {"--spacing", v->table.spacing, false}, {"--worst", v->worst != UINT64_MAX, false}};
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].given && options[i].text != text)
            return error_set(e, PL_USAGE, "%s is for %s, and data.format is %s", options[i].name,
                             options[i].text ? "conversations" : "masks", batch_format(&v->o.config));
    if (v->worst == UINT64_MAX) v->worst = 8;
    if (v->worst > 100000)
        return error_set(e, PL_USAGE, "--worst %llu: expected at most 100000", (unsigned long long)v->worst);
    int rc = eval_table_options(&v->table, e);
    return rc ? rc : data_check_png("--overlays", v->overlays, e);
}

/* Reads the run file, or takes files of conversations without one. */
static int read_sources(struct eval *v, struct error *e)
{
    struct config *c = &v->o.config;
    const bool tokens = v->data.n && (eval_is_text(v->data.at[0]) || eval_is_tokens(v->data.at[0])),
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
    if (config_tokens(c) && !text && (v->text.samples || v->text.max_new || v->batch || v->o.output))
        return error_set(e, PL_USAGE, "%s is for conversations; on tokens eval computes loss and perplexity",
                         v->text.samples   ? "--samples"
                         : v->text.max_new ? "--max-new"
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

static int evaluate_in_folder(struct eval *v, struct error *e)
{
    struct temporary t;
    if (temporary_work(&t, e)) return e->code;
    int rc = evaluate(v, t.path, e);
    temporary_drop(&t);
    return rc;
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
    v->text.answers = o->output;
    v->text.json = o->json;
    TRY(read_config(v, e));
    if (!config_tokens(&o->config)) return evaluate_in_folder(v, e);
    return o->config.data_format == FORMAT_CONVERSATIONS ? eval_text(&o->config, &v->text, e)
                                                         : eval_tokens(&o->config, &v->text, e);
}

static const struct eval START = {.worst = UINT64_MAX, .table.tolerance = 1};
static const struct option OPTIONS[] = {
    OPTION(struct eval, "--csv", TEXT, csv), OPTION(struct eval, "--worst", COUNT, worst),
    OPTION(struct eval, "--overlays", TEXT, overlays), OPTION(struct eval, "--data", LIST, data),
    OPTION(struct eval, "--samples", POSITIVE, text.samples),
    OPTION(struct eval, "--max-new", POSITIVE, text.max_new), OPTION(struct eval, "--batch", POSITIVE, batch),
    OPTION(struct eval, "--loss", SWITCH, text.loss), OPTION(struct eval, "--images", TEXT, table.images),
    OPTION(struct eval, "--structures", TEXT, table.structures),
    OPTION(struct eval, "--own-size", SWITCH, table.wanted), OPTION(struct eval, "--spacing", TEXT, table.spacing),
    OPTION(struct eval, "--tolerance", REAL, table.tolerance)};

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
