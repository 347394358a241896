/*
 * html.c: see html.h. All text from files is escaped.
 */
#include "report/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/file.h"
#include "io/json.h"
#include "report/curve.h"
#include "report/page.h"

enum { METRICS_LIMIT = 256 << 20, IMAGE_LIMIT = 32 << 20, IMAGES = 48 };

static void put_base64(struct text *out, const uint8_t *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t word = (uint32_t)bytes[i] << 16 | (have > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) | (have > 2 ? bytes[i + 2] : 0);
        char quad[4] = {digits[word >> 18], digits[word >> 12 & 63], have > 1 ? digits[word >> 6 & 63] : '=', have > 2 ? digits[word & 63] : '='};
        text_append(out, quad, 4);
    }
}

/* --- curves -------------------------------------------------------------------------- */

/* The charts: each draws one or two members of metrics.jsonl over the step, if they exist. */
static const struct {
    const char *title, *members[2];
} charts[] = {
    {"loss", {"loss", "eval_loss"}},
    {"mean IoU on validation images", {"eval_iou", NULL}},
    {"mean Dice on validation images", {"eval_dice", NULL}},
    {"learning rate", {"learning_rate", NULL}},
    {"gradient norm", {"grad_norm", NULL}},
    {"seconds per step", {"seconds", NULL}},
};
enum { CHARTS = COUNT(charts) };

static void collect(struct series all[CHARTS][2], const struct value *line)
{
    const struct value *step = value_get(line, "step");
    if (!step || step->kind != VALUE_NUMBER) return;
    for (size_t d = 0; d < CHARTS; d++)
        for (int k = 0; k < 2 && charts[d].members[k]; k++) {
            const struct value *v = value_get(line, charts[d].members[k]);
            if (!v || v->kind != VALUE_NUMBER) continue;
            vec_push(&all[d][k].x, step->number);
            vec_push(&all[d][k].y, v->number);
        }
}

/* An incomplete last line (of a run in progress) is ignored. */
static void read_metrics(char *bytes, struct series all[CHARTS][2])
{
    for (char *at = bytes, *end; (end = strchr(at, '\n')); at = end + 1) {
        struct bump b = {0};
        struct value *line;
        struct error ignored;
        if (!json_parse(at, (size_t)(end - at), &b, &line, &ignored)) collect(all, line);
        bump_free(&b);
    }
}

static void put_curves(struct text *out, struct series all[CHARTS][2])
{
    text_printf(out, "<h2>Training curves</h2>\n<div class='row'>\n");
    for (size_t d = 0; d < CHARTS; d++) {
        const struct series *drawn[2];
        int n = 0;
        for (int k = 0; k < 2; k++) {
            all[d][k].name = charts[d].members[k];
            if (all[d][k].y.n) drawn[n++] = &all[d][k];
        }
        if (n) curve_draw(out, charts[d].title, drawn, n);
    }
    text_printf(out, "</div>\n");
}

/* A table of the first, last and best value of the losses and the validation scores. */
static void put_results(struct text *out, struct series all[CHARTS][2])
{
    text_printf(out, "<table><tr><th></th><th>first</th><th>last</th><th>best</th></tr>\n");
    for (size_t d = 0; d < 3; d++)
        for (int k = 0; k < 2; k++) {
            const struct series *s = &all[d][k];
            if (!s->y.n) continue;
            double best = s->y.at[0];
            for (uint32_t i = 0; i < s->y.n; i++) best = d ? fmax(best, s->y.at[i]) : fmin(best, s->y.at[i]);
            text_printf(out, "<tr><td>%s</td><td>%.4g</td><td>%.4g</td><td>%.4g</td></tr>\n", charts[d].members[k], s->y.at[0],
                        s->y.at[s->y.n - 1], best);
        }
    text_printf(out, "</table>\n");
}

/* --- memory ----------------------------------------------------------------------------- */

static void put_memory(struct text *out, const struct value *plan)
{
    const struct value *parts = value_get(plan, "breakdown"), *total = value_get(plan, "lower_bound_bytes"), *arena = value_get(plan, "arena_bytes");
    char text[32];
    if (!parts || parts->kind != VALUE_MAP || !total || !(total->number > 0) || !arena) return;
    text_printf(out, "<h2>Peak memory</h2>\n<p>The arena of %s was planned before the first step and allocated once. Live memory at the peak, by class:</p>\n",
                size_print((uint64_t)arena->number, text));
    text_printf(out, "<div class='bar'>");
    for (uint32_t i = 0; i < parts->count; i++) {
        text_printf(out, "<span style='width:%.3f%%;background:%s' title='", 100 * parts->items[i]->number / total->number, page_colour(i));
        page_escaped(out, parts->items[i]->key);
        text_printf(out, "'></span>");
    }
    text_printf(out, "</div>\n<table>\n");
    for (uint32_t i = 0; i < parts->count; i++) {
        const struct value *p = parts->items[i];
        text_printf(out, "<tr><td><i style='background:%s'></i>", page_colour(i));
        page_escaped(out, p->key);
        text_printf(out, "</td><td>%s</td><td>%.1f %%</td></tr>\n", size_print((uint64_t)p->number, text), 100 * p->number / total->number);
    }
    text_printf(out, "</table>\n");
}

/* --- images ------------------------------------------------------------------------------ */

/* Appends all PNGs of DIR/NAME/ under a heading. */
static int put_image_folder(struct text *out, const char *dir, const char *name, const char *title, struct error *e)
{
    char path[4200];
    struct names names = {0};
    uint32_t shown = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!dir_exists(path)) return PL_OK;
    int rc = dir_list(path, &names, e);
    for (uint32_t i = 0; i < names.n && !rc && shown < IMAGES; i++) {
        size_t n = strlen(names.at[i]);
        char *bytes;
        if (n < 4 || strcmp(names.at[i] + n - 4, ".png")) continue;
        snprintf(path, sizeof path, "%s/%s/%s", dir, name, names.at[i]);
        if ((rc = file_read(path, IMAGE_LIMIT, &bytes, &n, e))) break;
        if (!shown++) text_printf(out, "<h2>%s</h2>\n<div class='row'>\n", title);
        text_printf(out, "<figure><img src='data:image/png;base64,");
        put_base64(out, (const uint8_t *)bytes, n);
        text_printf(out, "'><figcaption>");
        page_escaped(out, names.at[i]);
        text_printf(out, "</figcaption></figure>\n");
        mem_free(bytes);
    }
    if (shown) text_printf(out, "</div>\n");
    names_free(&names);
    return rc;
}

/* --- the page ---------------------------------------------------------------------------------- */

static void put_file(struct text *out, const char *dir, const char *name, const char *title)
{
    char path[4200], *bytes;
    size_t n;
    struct error ignored;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (file_read(path, 1 << 20, &bytes, &n, &ignored)) return;
    text_printf(out, "<h2>%s</h2>\n<pre>", title);
    page_escaped(out, bytes);
    text_printf(out, "</pre>\n");
    mem_free(bytes);
}

static void put_numbers(struct text *out, const char *dir)
{
    char path[4200], *bytes;
    size_t n;
    struct error ignored;
    struct series all[CHARTS][2] = {0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    if (!file_read(path, METRICS_LIMIT, &bytes, &n, &ignored)) {
        read_metrics(bytes, all);
        put_results(out, all);
        put_curves(out, all);
        mem_free(bytes);
    }
    for (size_t d = 0; d < CHARTS; d++)
        for (int k = 0; k < 2; k++) {
            vec_free(&all[d][k].x);
            vec_free(&all[d][k].y);
        }
}

int report_html(const char *dir, struct error *e)
{
    char path[4200];
    struct text out = {0};
    struct bump b = {0};
    struct value *plan;
    struct error ignored;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    if (!file_exists(path)) return error_set(e, PL_USAGE, "%s: no metrics.jsonl: this is not the folder of a run", dir);
    page_begin(&out, dir);
    put_numbers(&out, dir);
    int rc = put_image_folder(&out, dir, "images", "Images", e);
    if (!rc) rc = put_image_folder(&out, dir, "worst", "Worst masks: prediction in blue, ground truth in green, prompt in yellow", e);
    snprintf(path, sizeof path, "%s/plan.json", dir);
    if (!json_read_file(path, 256 << 20, &b, &plan, &ignored)) put_memory(&out, plan);
    bump_free(&b);
    put_file(&out, dir, "eval.txt", "Evaluation");
    put_file(&out, dir, "config.yaml", "Configuration");
    page_end(&out);
    snprintf(path, sizeof path, "%s/report.html", dir);
    if (!rc) rc = file_write_atomic(path, out.at, out.n, e);
    text_free(&out);
    return rc;
}
