/*
 * html.c: see html.h. All text from files is escaped.
 *
 *     headline, memory, curves, answers, worst masks, other images, evaluation, configuration
 */
#include "report/html.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "io/file.h"
#include "io/json.h"
#include "io/yaml.h"
#include "report/mask_drawing.h"
#include "report/page.h"

enum { PLAN_LIMIT = 256 << 20, CONFIG_LIMIT = 1 << 20, IMAGE_LIMIT = 32 << 20, IMAGES = 48 };

/* --- what the run's folder says ----------------------------------------------------- */

/* The charts: each draws one or two members of metrics.jsonl over the step, if they exist. */
static const struct chart {
    const char *title, *members[2], *names[2];
    int best; /* of the table of results: -1 the lowest value, 1 the highest, 0: not in the table */
} charts[] = {
    {"loss", {"loss", "eval_loss"}, {"training", "validation"}, -1},
    {"mean IoU on validation images", {"eval_iou"}, {"mean IoU"}, 1},
    {"mean Dice on validation images", {"eval_dice"}, {"mean Dice"}, 1},
    {"perplexity on validation tokens", {"eval_perplexity"}, {"perplexity"}, -1},
    {"exact match of answers, in %", {"eval_exact_match"}, {"exact match"}, 1},
    {"token F1 of answers", {"eval_token_f1"}, {"token F1"}, 1},
    {"losses before their weights", {"text_loss", "mask_loss"}, {"text", "masks"}, 0},
    {"loss that balances experts, before its weight", {"aux_loss"}, {"auxiliary"}, 0},
    {"learning rate", {"learning_rate"}, {"learning rate"}, 0},
    {"gradient norm", {"grad_norm"}, {"gradient norm"}, 0},
    {"seconds of a step", {"seconds"}, {"seconds"}, 0},
};
enum { LOSS, IOU, DICE, PERPLEXITY, SECONDS = COUNT(charts) - 1, CHARTS = COUNT(charts) };

struct run_facts {
    const char *dir;
    struct bump b;
    struct value *plan, *config;      /* NULL: the file is missing */
    struct series all[CHARTS][2];
    /* samples: of the whole run; units: images or tokens, seconds of the steps that have them */
    double samples, units, seconds;
    const char *unit;                 /* images or tokens; NULL: no step */
    VEC(uint32_t) slowest;            /* by rank: steps in which it was the slowest; empty: one process */
    double slow, median;              /* seconds of the slowest rank and of the median one, over all steps */
};

static void add_units(struct run_facts *f, const struct value *line, const char *member, const char *unit)
{
    const struct value *speed = value_get(line, member), *seconds = value_get(line, "seconds");
    if (!speed || !seconds) return;
    f->unit = unit;
    f->units += speed->number * seconds->number;
    f->seconds += seconds->number;
}

/* Adds "ranks":4,"slowest":[2,0.51,0.44] of a line. */
static void add_ranks(struct run_facts *f, const struct value *line)
{
    const struct value *ranks = value_get(line, "ranks"), *slowest = value_get(line, "slowest");
    if (!ranks || ranks->kind != VALUE_NUMBER || ranks->number < 1 || ranks->number > 65536 || !slowest ||
        slowest->kind != VALUE_LIST || slowest->count != 3)
        return;
    while (f->slowest.n < (uint32_t)ranks->number) vec_push(&f->slowest, 0);
    const double rank = value_at(slowest, 0)->number;
    if (rank >= 0 && rank < f->slowest.n) f->slowest.at[(uint32_t)rank]++;
    f->slow += value_at(slowest, 1)->number;
    f->median += value_at(slowest, 2)->number;
}

static void add_line(struct run_facts *f, const struct value *line)
{
    const struct value *step = value_get(line, "step"), *samples = value_get(line, "samples");
    if (!step || step->kind != VALUE_NUMBER) return;
    if (samples) f->samples = samples->number;
    add_ranks(f, line);
    add_units(f, line, "images_per_second", "images");
    add_units(f, line, "tokens_per_second", "tokens");
    for (size_t d = 0; d < CHARTS; d++)
        for (int k = 0; k < 2 && charts[d].members[k]; k++) {
            const struct value *v = value_get(line, charts[d].members[k]);
            if (!v || v->kind != VALUE_NUMBER) continue;
            vec_push(&f->all[d][k].x, step->number);
            vec_push(&f->all[d][k].y, v->number);
        }
}

static void parse_line(struct run_facts *f, const char *at, size_t n)
{
    struct bump b = {0};
    struct value *line;
    struct error ignored;
    if (!json_parse(at, n, &b, &line, &ignored)) add_line(f, line);
    bump_free(&b);
}

/* Reads metrics.jsonl, of any size, a block at a time. An incomplete last line (of a run in
 * progress) and a line that is longer than a block, which no run writes, are ignored. */
static int read_metrics(struct run_facts *f, const char *path, struct error *e)
{
    enum { BLOCK = 1 << 20 };
    int fd = file_open(path, NULL, e), rc = PL_OK;
    if (fd < 0) return e->code;
    char *block = mem_alloc(BLOCK), *end;
    size_t kept = 0; /* bytes of a line whose end is not read yet */
    bool skipping = false;
    for (ssize_t got; (got = read(fd, block + kept, BLOCK - kept));) {
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            rc = file_error(path, "read it", e);
            break;
        }
        const size_t n = kept + (size_t)got;
        char *at = block;
        for (; (end = memchr(at, '\n', n - (size_t)(at - block))); at = end + 1, skipping = false)
            if (!skipping) parse_line(f, at, (size_t)(end - at));
        kept = n - (size_t)(at - block);
        if (kept == BLOCK) skipping = true, kept = 0;
        memmove(block, at, kept);
    }
    mem_free(block);
    close(fd);
    return rc;
}

static int facts_read(struct run_facts *f, const char *dir, struct error *e)
{
    char path[RUN_PATH];
    struct error ignored;
    *f = (struct run_facts){.dir = dir};
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    if (!file_exists(path)) return error_set(e, PL_USAGE, "%s: no metrics.jsonl: this is not the folder of a run", dir);
    if (!run_file(dir, "metrics.jsonl", path, e) || read_metrics(f, path, e)) return e->code;
    if (!run_file(dir, "plan.json", path, &ignored) || json_read_file(path, PLAN_LIMIT, &f->b, &f->plan, &ignored))
        f->plan = NULL;
    if (!run_file(dir, "config.yaml", path, &ignored) ||
        yaml_read_file(path, CONFIG_LIMIT, &f->b, &f->config, &ignored))
        f->config = NULL;
    return PL_OK;
}

static void facts_free(struct run_facts *f)
{
    vec_free(&f->slowest);
    bump_free(&f->b);
    for (size_t d = 0; d < CHARTS; d++)
        for (int k = 0; k < 2; k++) {
            vec_free(&f->all[d][k].x);
            vec_free(&f->all[d][k].y);
        }
}

static double number_of(const struct value *map, const char *path)
{
    const struct value *v = value_path(map, path);
    return v && v->kind == VALUE_NUMBER ? v->number : 0;
}

static const char *text_of(const struct value *map, const char *path)
{
    const struct value *v = value_path(map, path);
    return v && v->kind == VALUE_STRING ? v->text : "";
}

/* --- the headline -------------------------------------------------------------------------- */

/* Prints a count of weights as people write it: "158 k", "1.1 B". */
static char *print_count(double n, char out[32])
{
    static const char *const units[] = {"", " k", " M", " B"};
    size_t u = 0;
    for (; n >= 999.5 && u + 1 < COUNT(units); u++) n /= 1000;
    snprintf(out, 32, u && n < 9.95 ? "%.1f%s" : "%.0f%s", n, units[u]);
    return out;
}

static void put_model(struct text *out, const struct run_facts *f)
{
    const char *path = text_of(f->config, "model.path"), *slash = strrchr(path, '/'),
               *preset = text_of(f->config, "model.preset");
    const double all = number_of(f->plan, "parameters"), trained = number_of(f->plan, "trained_parameters");
    char remark[160] = "", a[32], b[32];
    if (all > 0) {
        int n = snprintf(remark, sizeof remark, "%s parameters", print_count(all, a));
        if (trained != all)
            n += snprintf(remark + n, sizeof remark - (size_t)n, ", %s trained", print_count(trained, b));
        snprintf(remark + n, sizeof remark - (size_t)n, ", %.20s", text_of(f->plan, "settings.precision"));
    }
    if (*path || *preset) page_fact(out, "Model", !*path ? preset : slash && slash[1] ? slash + 1 : path, remark);
}

/* Returns the name of a path; a name that says nothing has its folder before it. */
static const char *data_name(const char *path, char out[256])
{
    static const char *const vague[] = {"train", "training",   "data", "dataset",    "images",
                                        "val",   "validation", "test", "train.json", "train.jsonl"};
    const char *name = page_name(path, 1, out);
    for (size_t i = 0; i < COUNT(vague); i++)
        if (!strcmp(name, vague[i])) return page_name(path, 2, out);
    return name;
}

static void put_data(struct text *out, const struct run_facts *f)
{
    const struct value *train = value_path(f->config, "data.train"),
                       *first = train && train->kind == VALUE_LIST ? value_at(train, 0) : train;
    char name[256], remark[160];
    int n = snprintf(remark, sizeof remark, "%.40s", text_of(f->config, "data.format"));
    if (train && train->kind == VALUE_LIST && train->count > 1)
        n += snprintf(remark + n, sizeof remark - (size_t)n, " and %u more paths", train->count - 1);
    if (f->samples > 0) snprintf(remark + n, sizeof remark - (size_t)n, ", %.0f samples read", f->samples);
    if (first && first->kind == VALUE_STRING) page_fact(out, "Data", data_name(first->text, name), remark);
}

static void put_time(struct text *out, const struct run_facts *f)
{
    const struct series *s = &f->all[LOSS][0];
    const double batch = number_of(f->plan, "settings.effective_batch");
    char value[64], remark[128] = "", time[32];
    double seconds = 0;
    const struct series *steps = &f->all[SECONDS][0];
    for (uint32_t i = 0; i < steps->y.n; i++) seconds += steps->y.at[i];
    if (!s->x.n) return;
    snprintf(value, sizeof value, "%.0f", s->x.at[s->x.n - 1]);
    if (batch > 0) snprintf(remark, sizeof remark, "%.0f sample%s each", batch, batch == 1 ? "" : "s");
    page_fact(out, "Steps", value, remark);
    if (!steps->y.n) return;
    snprintf(remark, sizeof remark, "%s a step, without evaluation", duration_print(seconds / steps->y.n, time));
    page_fact(out, "Time", duration_print(seconds < 10 ? seconds : round(seconds), time), remark);
    if (!f->unit || !(f->seconds > 0)) return;
    snprintf(value, sizeof value, f->units / f->seconds < 100 ? "%.3g %s/s" : "%.0f %s/s", f->units / f->seconds,
             f->unit);
    snprintf(remark, sizeof remark, "profile %.60s", text_of(f->plan, "profile"));
    page_fact(out, "Speed", value, text_of(f->plan, "profile")[0] ? remark : "");
}

static void put_ranks(struct text *out, const struct run_facts *f)
{
    char value[32], remark[160] = "";
    uint32_t most = 0;
    if (!f->slowest.n) return;
    for (uint32_t i = 1; i < f->slowest.n; i++)
        if (f->slowest.at[i] > f->slowest.at[most]) most = i;
    snprintf(value, sizeof value, "%u", f->slowest.n);
    if (f->median > 0)
        snprintf(remark, sizeof remark,
                 "the slowest one of a step took %.2f times the median's time, without waiting; most often rank %u",
                 f->slow / f->median, most);
    page_fact(out, "Ranks", value, f->slowest.n > 1 ? remark : "");
}

static void put_budget(struct text *out, const struct run_facts *f)
{
    const double budget = number_of(f->plan, "budget_bytes"), arena = number_of(f->plan, "arena_bytes"),
                 host = number_of(f->plan, "arenas.host");
    char size[32], more[32], remark[128];
    if (!(arena > 0)) return;
    if (budget > 0) snprintf(remark, sizeof remark, "of a budget of %s", size_print((uint64_t)budget, more));
    else snprintf(remark, sizeof remark, "no budget was set");
    if (host > 0)
        snprintf(remark + strlen(remark), sizeof remark - strlen(remark), "; %s offloaded",
                 size_print((uint64_t)host, more));
    page_fact(out, "Peak memory", size_print((uint64_t)arena, size), remark);
}

/* Returns the index of the best value; s->y.n: there is none. */
static uint32_t best_of(const struct series *s, int sign)
{
    uint32_t best = s->y.n;
    for (uint32_t i = 0; i < s->y.n; i++)
        if (isfinite(s->y.at[i]) && (best == s->y.n || sign * s->y.at[i] > sign * s->y.at[best])) best = i;
    return best;
}

static void put_score(struct text *out, const struct run_facts *f)
{
    static const struct {
        int chart, member;
        const char *label;
    } scores[] = {{IOU, 0, "Best mean IoU"},
                  {PERPLEXITY, 0, "Best perplexity"},
                  {LOSS, 1, "Best validation loss"},
                  {LOSS, 0, "Lowest loss"}};
    char value[64], remark[96];
    for (size_t k = 0; k < COUNT(scores); k++) {
        const struct series *s = &f->all[scores[k].chart][scores[k].member];
        const uint32_t best = best_of(s, charts[scores[k].chart].best);
        if (best == s->y.n) continue;
        snprintf(value, sizeof value, "%.4g", s->y.at[best]);
        snprintf(remark, sizeof remark, "at step %.0f%s", s->x.at[best],
                 scores[k].chart == LOSS && !scores[k].member ? "; no validation" : ", on validation data");
        page_fact(out, scores[k].label, value, remark);
        return;
    }
}

static void put_headline(struct text *out, const struct run_facts *f)
{
    page_facts_begin(out);
    put_model(out, f);
    put_data(out, f);
    put_score(out, f);
    put_budget(out, f);
    put_time(out, f);
    put_ranks(out, f);
    page_facts_end(out);
}

/* Writes what each of several ranks holds and sends. */
static void put_sends(struct text *out, const struct value *plan)
{
    const double ranks = number_of(plan, "ranks.world");
    char sent[32], time[32];
    if (ranks < 2) return;
    text_printf(out, ", shard ");
    html_escape(out, text_of(plan, "ranks.shard"));
    text_printf(out, ". Each of %.0f ranks has this memory, and sends %s in a step: %s predicted, over links of ",
                ranks, size_print((uint64_t)number_of(plan, "ranks.sent_bytes"), sent),
                duration_print(number_of(plan, "ranks.communication_seconds"), time));
    html_escape(out, text_of(plan, "ranks.links"));
}

/* --- memory ------------------------------------------------------------------------------- */

static void put_memory(struct text *out, const struct value *plan)
{
    const struct value *kinds = value_get(plan, "breakdown");
    const uint64_t arena = (uint64_t)number_of(plan, "arena_bytes"), padding = (uint64_t)number_of(plan, "padding");
    char word[64];
    if (!kinds || kinds->kind != VALUE_MAP || !arena) return;
    VEC(struct page_part) parts = {0};
    for (uint32_t i = 0; i < kinds->count; i++)
        if (kinds->items[i]->kind == VALUE_NUMBER && page_kind_colour(kinds->items[i]->key)[0] == '#' &&
            kinds->items[i]->number > 0)
            vec_push(&parts, ((struct page_part){kinds->items[i]->key, (uint64_t)kinds->items[i]->number}));
    if (padding) vec_push(&parts, ((struct page_part){"padding", padding}));
    text_printf(out, "<h2>Memory at the peak</h2>\n<p>Planned before the first step and allocated once: ");
    snprintf(word, sizeof word, "micro-batch %.0f x %.0f", number_of(plan, "settings.micro_batch"),
             number_of(plan, "settings.accumulation"));
    html_escape(out, word);
    static const char *const settings[][2] = {{"precision", "settings.precision"},
                                              {"recompute", "settings.recompute"},
                                              {"optimizer", "settings.optimizer"},
                                              {"offload", "settings.offload"}};
    for (size_t i = 0; i < COUNT(settings); i++) {
        text_printf(out, ", %s ", settings[i][0]);
        html_escape(out, text_of(plan, settings[i][1]));
    }
    put_sends(out, plan);
    text_printf(out, ".</p>\n");
    page_memory(out, parts.at, parts.n, arena);
    vec_free(&parts);
}

/* --- curves -------------------------------------------------------------------------- */

/* Writes a table of the first, last and best value of the losses and the validation scores. */
static void put_results(struct text *out, const struct run_facts *f)
{
    text_printf(out,
                "<h2>Training</h2>\n<div "
                "class='wide'><table><tr><th></th><th>first</th><th>last</th><th>best</th><th>at step</th></tr>\n");
    for (size_t d = 0; d < CHARTS; d++)
        for (int k = 0; k < 2 && charts[d].best; k++) {
            const struct series *s = &f->all[d][k];
            const uint32_t best = best_of(s, charts[d].best);
            if (best == s->y.n) continue;
            text_printf(out, "<tr><td>%s%s</td><td>%.4g</td><td>%.4g</td><td>%.4g</td><td>%.0f</td></tr>\n",
                        charts[d].names[k], d == LOSS ? " loss" : "", s->y.at[0], s->y.at[s->y.n - 1], s->y.at[best],
                        s->x.at[best]);
        }
    text_printf(out, "</table></div>\n<div class='row'>\n");
    for (size_t d = 0; d < CHARTS; d++) {
        const struct series *drawn[2];
        struct series named[2];
        int n = 0;
        for (int k = 0; k < 2; k++) {
            named[k] = f->all[d][k];
            named[k].name = charts[d].names[k];
            if (named[k].y.n) drawn[n++] = &named[k];
        }
        if (n) curve_draw(out, charts[d].title, "step", drawn, n);
    }
    text_printf(out, "</div>\n");
}

/* --- images ------------------------------------------------------------------------------ */

/* Writes the caption "By a point" for "1-by-a-point.png". */
static void caption_of_name(struct text *out, const char *name)
{
    char words[256];
    snprintf(words, sizeof words, "%.*s", (int)(strlen(name) - 4), name);
    char *from = words + strspn(words, "0123456789");
    from = from > words && *from == '-' && from[1] ? from + 1 : words;
    for (char *c = from; *c; c++)
        if (*c == '-' || *c == '_') *c = ' ';
    from[0] = (char)toupper((unsigned char)from[0]);
    html_escape(out, from);
}

/* Writes the caption of an image of worst/, from worst/index.json; false: the index does not name
 * it. */
static bool caption_of_index(struct text *out, const struct value *index, const char *name)
{
    for (uint32_t i = 0; index && i < index->count; i++) {
        const struct value *x = value_at(index, i);
        if (strcmp(text_of(x, "file"), name)) continue;
        masks_caption(out, number_of(x, "iou"), text_of(x, "prompt"), text_of(x, "sample"),
                      (int64_t)number_of(x, "mask"));
        return true;
    }
    return false;
}

/* Reads a PNG file of a folder. False: it is left out, and the log says why. */
static bool read_png(const char *dir, const char *folder, const char *file, char **bytes, size_t *n)
{
    static const char signature[] = "\x89PNG\r\n\x1a\n";
    char name[4200], path[RUN_PATH];
    struct error e;
    *bytes = NULL;
    snprintf(name, sizeof name, "%s/%s", folder, file);
    int rc = run_file(dir, name, path, &e) ? file_read(path, IMAGE_LIMIT, bytes, n, &e) : e.code;
    if (!rc && (*n < sizeof signature - 1 || memcmp(*bytes, signature, sizeof signature - 1)))
        rc = error_set(&e, PL_USAGE, "%s: it is no PNG", path);
    if (!rc) return true;
    log_warn("left out of the report: %s", e.text);
    mem_free(*bytes);
    return false;
}

/* Appends all PNGs of DIR/NAME/ under a heading. */
static void put_image_folder(struct text *out, const char *dir, const char *name, const char *heading, bool legend)
{
    char path[RUN_PATH], file[64];
    struct names names = {0};
    struct bump b = {0};
    struct value *index = NULL;
    struct error ignored;
    uint32_t shown = 0;
    if (!run_folder(dir, name, path) || dir_list(path, &names, &ignored)) return;
    snprintf(file, sizeof file, "%s/index.json", name);
    if (!run_file(dir, file, path, &ignored) || json_read_file(path, 1 << 20, &b, &index, &ignored)) index = NULL;
    for (uint32_t i = 0; i < names.n && shown < IMAGES; i++) {
        struct text caption = {0};
        char *bytes;
        size_t n;
        if (!text_ends_with(names.at[i], ".png") || strlen(names.at[i]) < 5) continue;
        if (!read_png(dir, name, names.at[i], &bytes, &n)) continue;
        if (!shown) text_printf(out, "<h2>%s</h2>\n", heading);
        if (!shown && legend) masks_legend(out);
        if (!shown++) text_printf(out, "<div class='images'>\n");
        if (!caption_of_index(&caption, index, names.at[i])) caption_of_name(&caption, names.at[i]);
        page_figure(out, bytes, n, caption.at);
        text_free(&caption);
        mem_free(bytes);
    }
    if (shown) text_printf(out, "</div>\n");
    bump_free(&b);
    names_free(&names);
}

/* --- the page --------------------------------------------------------------------------------- */

/* Writes a file as text; a long one is folded. */
static void put_file(struct text *out, const char *dir, const char *name, const char *title, bool folded)
{
    char path[RUN_PATH], *bytes;
    size_t n;
    struct error ignored;
    if (!run_file(dir, name, path, &ignored) || file_read(path, 1 << 20, &bytes, &n, &ignored)) return;
    text_printf(out, folded ? "<details><summary>%s</summary>\n<pre>" : "<h2>%s</h2>\n<pre>", title);
    page_text(out, bytes);
    text_printf(out, folded ? "</pre></details>\n" : "</pre>\n");
    mem_free(bytes);
}

int report_html(const char *dir, struct error *e)
{
    char path[4200], name[256];
    struct text out = {0};
    struct run_facts f;
    int rc = facts_read(&f, dir, e);
    if (rc) return facts_free(&f), rc;
    char *whole = realpath(dir, NULL);
    page_begin(&out, "Plimsoll: report of a training run", page_name(whole ? whole : dir, 1, name));
    free(whole);
    put_headline(&out, &f);
    put_memory(&out, f.plan);
    put_results(&out, &f);
    answers_section(&out, dir);
    put_image_folder(&out, dir, "images", "Images", false);
    put_image_folder(&out, dir, "worst", "Worst masks of the last evaluation", true);
    put_file(&out, dir, "eval.txt", "Evaluation", false);
    put_file(&out, dir, "config.yaml", "Configuration", true);
    page_end(&out);
    snprintf(path, sizeof path, "%s/report.html", dir);
    rc = file_write_atomic(path, out.at, out.n, e);
    text_free(&out);
    facts_free(&f);
    return rc;
}
