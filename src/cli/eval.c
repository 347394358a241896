/*
 * eval.c: `plimsoll eval`: scores a model on held-out data: masks here, answers in eval_text.c.
 *
 * Masks: forward only: the memory is that of the weights and one batch's activations. The prompts
 * are those of the evaluation in training, so the same model and data give the same scores.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/data.h"
#include "cli/eval.h"
#include "cli/eval_table.h"
#include "report/worst.h"
#include "io/file.h"
#include "io/json.h"
#include "feed/batch_plan.h"
#include "infer/mask_scores.h"
#include "infer/retrieval.h"
#include "io/temporary.h"

struct eval {
    const char *model, *adapter, *csv, *overlays, *memory;
    struct names paths, from, set, data;
    uint64_t worst; /* UINT64_MAX: not given */
    uint64_t batch; /* prompts at once; 0: as the run file says */
    struct eval_text text;
    bool json;
    struct config config;
    struct run run;
    struct feed feed;
    struct mask_scores found;
    struct retrieval retrieval;
    bool questions; /* masks were asked for by questions: the run is closed */
    struct eval_table table;
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

/* Of a model that answers in words too: their scores, after those of the masks. It needs memory of
 * its own, so the run is closed. */
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
    return eval_questions(&v->config, &v->text, w, out, e);
}

static int print_json(struct eval *v, struct text *out, struct error *e)
{
    const struct scores *s = &v->found.scores;
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_map(&w, NULL);
    json_put_string(&w, "model", v->model);
    json_put_uint(&w, "samples", v->feed.samples);
    json_put_uint(&w, "broken_samples", v->feed.broken);
    json_put_uint(&w, "too_small_masks", v->feed.left.small);
    json_put_number(&w, "loss", v->loss);
    json_put_number(&w, "seconds", v->seconds);
    json_put_uint(&w, "arena_bytes", plan_arena(&v->run.planned.plan));
    json_begin_map(&w, "prompts");
    for (uint32_t p = 0; p < s->n_prompts; p++) scores_json(s, p, &w);
    json_end(&w);
    eval_table_json(&v->table, &w);
    int rc = add_answers(v, &w, out, e);
    json_end(&w);
    text_printf(out, "\n");
    return rc;
}

static int report(struct eval *v, struct error *e)
{
    struct text out = {0}, csv = {0};
    char arena[32], time[32], left[512];
    int rc = PL_OK;
    scores_csv(&v->found.scores, &csv);
    if (v->json) {
        rc = print_json(v, &out, e);
    } else {
        scores_print(&v->found.scores, &out);
        eval_table_print(&v->table, &out);
        print_worst(v, &out);
        text_printf(&out, "\nloss %.6g over %llu image%s, %llu of them unreadable, %s, arena %s\n", v->loss,
                    (unsigned long long)v->feed.samples, v->feed.samples == 1 ? "" : "s",
                    (unsigned long long)v->feed.broken, duration_print(v->seconds, time),
                    size_print(plan_arena(&v->run.planned.plan), arena));
        if (feed_print_left(&v->feed, left, sizeof left)) text_printf(&out, "%s\n", left);
        rc = add_answers(v, NULL, &out, e);
    }
    if (!rc) fputs(out.at, stdout);
    if (!rc && v->csv) rc = file_write_atomic(v->csv, csv.at, csv.n, e);
    if (!rc) rc = eval_table_write(&v->table, e);
    text_free(&out);
    text_free(&csv);
    return rc;
}

/* Of a model that matches masks with texts, and of a vision tower with a head. */
static void report_retrieval(const struct eval *v)
{
    const struct retrieval *x = &v->retrieval;
    struct text out = {0};
    char arena[32], time[32], left[512];
    if (v->json) {
        struct json_writer w = {.out = &out, .indent = 2};
        json_begin_map(&w, NULL);
        json_put_string(&w, "model", v->model);
        json_put_uint(&w, "samples", v->feed.samples);
        json_put_uint(&w, "broken_samples", v->feed.broken);
        json_put_uint(&w, "queries", x->queries);
        json_put_number(&w, "accuracy", retrieval_accuracy(x));
        json_put_number(&w, "chance", retrieval_chance(x));
        json_put_number(&w, "loss", v->loss);
        json_put_number(&w, "seconds", v->seconds);
        json_put_uint(&w, "arena_bytes", plan_arena(&v->run.planned.plan));
        json_end(&w);
        text_printf(&out, "\n");
    } else {
        text_printf(&out, "%saccuracy %.4f: %llu of %llu %s; by chance %.4f would\n", retrieval_word(&v->run),
                    retrieval_accuracy(x), (unsigned long long)x->right, (unsigned long long)x->queries,
                    retrieval_found(&v->run), retrieval_chance(x));
        text_printf(&out, "loss %.6g over %llu sample%s, %llu of them unreadable, %s, arena %s\n", v->loss,
                    (unsigned long long)v->feed.samples, v->feed.samples == 1 ? "" : "s",
                    (unsigned long long)v->feed.broken, duration_print(v->seconds, time),
                    size_print(plan_arena(&v->run.planned.plan), arena));
        if (feed_print_left(&v->feed, left, sizeof left)) text_printf(&out, "%s\n", left);
    }
    fputs(out.at, stdout);
    text_free(&out);
}

static int draw(const struct eval *v, struct error *e)
{
    const struct scores *s = &v->found.scores;
    struct dataset *rows = NULL;
    struct text table = {0};
    if (v->table.open) eval_table_page(&v->table.own.table, &table);
    int rc = v->questions ? feed_open_questions(&rows, &v->config, FEED_VALIDATION, e) : PL_OK;
    if (!rc)
        rc = worst_sheet(&(struct worst_masks){&v->config, rows ? rows : feed_dataset(&v->feed), s->prompts, s->worst,
                                               s->n_worst, table.at},
                         v->overlays, e);
    dataset_close(rows);
    text_free(&table);
    return rc;
}

/* --- the command ------------------------------------------------------------------------------ */

/* `folder`: for what the feed prepares: texts of questions become tokens. */
static int evaluate(struct eval *v, const char *folder, struct error *e)
{
    const struct config *c = &v->config;
    /* an image is compared with the texts of its batch */
    const int64_t usual = c->data_format == FORMAT_CAPTIONS ? c->train_effective_batch : 1;
    struct run_options o = {.evaluate = true,
                            .picks = eval_table_wanted(&v->table),
                            .describe = feed_describe,
                            .B = c->memory_micro_batch.chosen ? config_micro_batch(c) : usual,
                            .T = c->data_sequence};
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

/* Options of the other kind of model. */
static int check_options(struct eval *v, bool text, struct error *e)
{
    const bool table = v->config.data_format == FORMAT_CSV; /* which may have questions and answers */
    const struct {
        const char *name;
        bool given, text;
    } options[] = {{"--data", v->data.n > 0, true},
                   {"--samples", v->text.samples > 0 && !table, true},
                   {"--max-new", v->text.max_new > 0 && !table, true},
                   {"--batch", v->batch > 0 && !table, true},
                   {"-o", v->text.answers, true},
                   {"--loss", v->text.loss, true},
                   {"--csv", v->csv, false},
                   {"--overlays", v->overlays, false},
                   {"--images", v->table.images, false},
                   {"--structures", v->table.structures, false},
                   {"--own-size", v->table.wanted, false},
                   {"--spacing", v->table.spacing, false},
                   {"--worst", v->worst != UINT64_MAX, false}};
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].given && options[i].text != text)
            return error_set(e, PL_USAGE, "%s is for %s, and data.format is %s", options[i].name,
                             options[i].text ? "conversations" : "masks", batch_format(&v->config));
    if (v->worst == UINT64_MAX) v->worst = 8;
    if (v->worst > 100000)
        return error_set(e, PL_USAGE, "--worst %llu: expected at most 100000", (unsigned long long)v->worst);
    int rc = eval_table_options(&v->table, e);
    return rc ? rc : data_check_png("--overlays", v->overlays, e);
}

/* The run file, or files of conversations without one. */
static int read_sources(struct eval *v, struct error *e)
{
    struct config *c = &v->config;
    const bool tokens = v->data.n && (eval_is_text(v->data.at[0]) || eval_is_tokens(v->data.at[0])),
               run = v->paths.n || v->from.n;
    struct import f = {0};
    int rc = v->from.n ? from_read(&f, (const char *const *)v->from.at, (int)v->from.n, c, e) : PL_OK;
    if (!rc && v->paths.n) rc = config_read(c, v->paths.at[0], e);
    if (!rc && tokens && (!run || c->data_format != FORMAT_BYTES)) rc = config_assign(c, "data.format", "tokens", e);
    else if (!rc && !run) rc = config_assign(c, "data.format", "conversations", e);
    for (uint32_t i = 0; i < v->set.n && !rc; i++) rc = config_set(c, v->set.at[i], e);
    if (!rc && v->memory) rc = config_set_memory(c, v->memory, e);
    if (!rc) rc = from_settle(&f, c, e);
    import_free(&f);
    if (v->data.n) {
        c->data_validation = (struct config_list){v->data.at, v->data.n}; /* names with commas stay whole */
        c->data_holdout = 0;
        c->data_store = NULL;
    }
    return rc;
}

/* The file that the run's data come from. */
static const char *run_name(const struct eval *v)
{
    return v->paths.n ? v->paths.at[0] : v->from.n ? v->from.at[0] : "the run";
}

/* Takes data and prompts from the run; its model and training keys are ignored. */
static int read_config(struct eval *v, struct error *e)
{
    struct config *c = &v->config;
    int rc = read_sources(v, e);
    if (rc) return rc;
    const bool text = c->data_format == FORMAT_CONVERSATIONS;
    if ((rc = check_options(v, config_tokens(c), e))) return rc;
    if (config_tokens(c) && !text && (v->text.samples || v->text.max_new || v->batch || v->text.answers))
        return error_set(e, PL_USAGE, "%s is for conversations; on tokens eval computes loss and perplexity",
                         v->text.samples   ? "--samples"
                         : v->text.max_new ? "--max-new"
                         : v->batch        ? "--batch"
                                           : "-o");
    if (v->batch) c->train_eval_batch = (int64_t)min_u64(v->batch, INT32_MAX);
    use_model(c, v->model, config_tokens(c) ? "text" : "masks");
    config_use_adapter(c, v->adapter);
    /* their patterns are for the names of the run's model */
    c->model_freeze.n = c->train_groups.n = c->train_no_decay.n = 0;
    if (text && !c->data_validation.n && !(c->data_holdout > 0))
        return error_set(
            e, PL_USAGE,
            "%s has no held-out conversations: set data.validation or data.holdout, or give files with --data",
            run_name(v));
    if (!config_validates(c))
        return error_set(e, PL_USAGE,
                         "%s has no validation data: set data.validation or data.holdout, in the file or with --set",
                         run_name(v));
    rc = config_check_read(c, "eval", "model.* adapter.* data.* prompts.* loss.* train.seed memory.* device.*", e);
    return !rc && config_tokens(c) ? config_check(c, CONFIG_OPTIONS_ONLY, e) : rc;
}

static int evaluate_in_folder(struct eval *v, struct error *e)
{
    struct temporary t;
    if (temporary_work(&t, e)) return e->code;
    int rc = evaluate(v, t.path, e);
    temporary_drop(&t);
    return rc;
}

static int run_eval(struct eval *v, struct error *e)
{
    if (v->paths.n > 1 || (!v->paths.n && !v->data.n && !v->from.n))
        return error_set(e, PL_USAGE,
                         "expected one RUN.yaml with the validation data, or --data FILE with conversations, tokens or "
                         "text; %u files are given",
                         v->paths.n);
    if (!v->model) return error_set(e, PL_USAGE, "no model is given: add --model DIR, such as train.out/model");
    int rc = read_config(v, e);
    if (rc) return rc;
    if (!config_tokens(&v->config)) return evaluate_in_folder(v, e);
    if (v->config.data_format != FORMAT_CONVERSATIONS) return eval_tokens(&v->config, v->model, v->json, e);
    v->text.model = v->model;
    v->text.json = v->json;
    return eval_text(&v->config, &v->text, e);
}

static int eval(int argc, char **argv, struct error *e)
{
    struct eval v = {.worst = UINT64_MAX, .table.tolerance = 1};
    const struct data_option table[] = {{"--model", DATA_TEXT, &v.model},
                                        {"--adapter", DATA_TEXT, &v.adapter},
                                        {"--csv", DATA_TEXT, &v.csv},
                                        {"--worst", DATA_COUNT, &v.worst},
                                        {"--overlays", DATA_TEXT, &v.overlays},
                                        {"--data", DATA_LIST, &v.data},
                                        {"--samples", DATA_POSITIVE, &v.text.samples},
                                        {"--max-new", DATA_POSITIVE, &v.text.max_new},
                                        {"--batch", DATA_POSITIVE, &v.batch},
                                        {"-o", DATA_TEXT, &v.text.answers},
                                        {"--out", DATA_TEXT, &v.text.answers},
                                        {"--loss", DATA_SWITCH, &v.text.loss},
                                        {"--images", DATA_TEXT, &v.table.images},
                                        {"--structures", DATA_TEXT, &v.table.structures},
                                        {"--own-size", DATA_SWITCH, &v.table.wanted},
                                        {"--spacing", DATA_TEXT, &v.table.spacing},
                                        {"--tolerance", DATA_REAL, &v.table.tolerance},
                                        {"--json", DATA_SWITCH, &v.json},
                                        {"--config-from", DATA_LIST, &v.from},
                                        {"--set", DATA_LIST, &v.set},
                                        {"--memory", DATA_TEXT, &v.memory}};
    bool help;
    int rc = data_options(&command_eval, table, COUNT(table), argc, argv, &v.paths, &help, e);
    if (!rc && !help) {
        config_init(&v.config);
        rc = run_eval(&v, e);
        config_free(&v.config);
    }
    names_free(&v.paths);
    names_free(&v.from);
    names_free(&v.set);
    names_free(&v.data);
    return rc;
}

const struct command command_eval =
    {"eval",
     "eval (RUN.yaml | --config-from FILE... | --data FILE) --model DIR [--adapter DIR] [--samples N] [--batch N] "
     "[--loss] [-o FILE] [--csv FILE] [--own-size] [--images FILE] [--structures FILE] [--spacing X,Y] [--worst N] "
     "[--overlays FILE] [--json] [--memory SIZE] [--set key=value]...",
     "Evaluates a model on the validation data of RUN.yaml. Masks: mean IoU and Dice by prompt and category. "
     "Conversations: the model answers\n"
     "the last question of each, greedily, and the answers are scored against the references: exact match, token F1, "
     "BLEU and ROUGE-L by file.\n"
     "Files of tokens and texts (.txt, .md), which the model's tokenizer makes tokens of: loss and perplexity, in rows "
     "of data.sequence tokens.\n"
     "Masks and texts (data.queries): the share of queries that find their mask among those of the image.\n\n"
     "  --model DIR    a model folder, such as train.out/model, or the name of a preset\n"
     "  --adapter DIR  a LoRA adapter for that model, such as train.out/model of a run with an adapter\n"
     "  --json         prints one JSON object instead of the table\n"
     "  --memory SIZE  memory budget, memory.budget\n" CONFIG_FROM_HELP "  --set key=value  sets a key of RUN.yaml\n\n"
     "For masks:\n\n"
     "  --csv FILE     writes the table as CSV: prompt,category,masks,mean_iou,mean_dice,above_50,above_75\n"
     "  --own-size     also scores masks at the image's own size: Dice, IoU, HD95 and NSD by structure (category), "
     "mean and\n"
     "                 deviation; --json then has the lists structures and images, of the own size and of the loss's\n"
     "  --images FILE  writes these scores as CSV, a row for each image, prompt and mask (implies --own-size)\n"
     "  --structures FILE  writes their means, standard deviations and counts as CSV, by prompt and structure (implies "
     "--own-size)\n"
     "  --spacing X,Y  size of a pixel in mm, for HD95 and NSD; default: that of the volume, else\n"
     "                 1,1: distances are in pixels\n"
     "  --tolerance T  NSD: surfaces that are at most T mm apart agree (1)\n"
     "  --worst N      lists the N worst masks (8)\n"
     "  --overlays F   draws the worst masks into F, an HTML page (F ends in .html) or a PNG: the prediction in blue, "
     "the ground\n"
     "                 truth in green, the prompt in yellow\n\n"
     "For conversations, and --data for files of tokens and texts:\n\n"
     "  --data FILE    a file of conversations, tokens or text, or a glob, instead of data.validation; may be given "
     "several times, and without RUN.yaml\n"
     "  --samples N    answers the first N conversations of each file; default: all\n"
     "  --max-new N    tokens of an answer, at most; default: max_new_tokens of generation_config.json, else 256\n"
     "  --batch N      prompts that are answered at once, train.eval_batch; default: as many as --memory allows, at "
     "most 32; without it as\n"
     "                 many as the free memory allows\n"
     "  --loss         also computes loss and perplexity over all conversations, as the evaluation in training does; "
     "planned within\n"
     "                 --memory by itself, with rows of data.sequence tokens\n"
     "  -o FILE        writes the answers as JSON lines: file, line, prompt, answer, reference, finish, and the scores "
     "of each",
     eval};
