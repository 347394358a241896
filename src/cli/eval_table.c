/*
 * eval_table.c: see eval_table.h.
 */
#include "cli/eval_table.h"

#include <math.h>
#include <stdlib.h>

#include "data/dataset.h"
#include "io/file.h"
#include "io/json.h"
#include "report/page.h"

bool eval_table_wanted(const struct eval_table *t) { return t->wanted || t->images || t->structures; }

int eval_table_options(struct eval_table *t, struct error *e)
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

int eval_table_open(struct eval_table *t, const struct run *r, const struct feed *f, const char *const *prompts,
                    struct error *e)
{
    if (!eval_table_wanted(t)) return PL_OK;
    t->open = own_size_open(&t->own, r, f, prompts, t->mm, t->tolerance);
    if (t->open) return PL_OK;
    return error_set(e, PL_USAGE,
                     "scores at the image's own size are for models that take points and boxes, and a %s does not",
                     r->planned.model.family->model_type);
}

void eval_table_close(struct eval_table *t)
{
    if (t->open) own_size_close(&t->own);
    t->open = false;
}

/* --- output ---------------------------------------------------------------------------------- */

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

void eval_table_print(const struct eval_table *t, struct text *out)
{
    if (!t->open) return;
    text_printf(out, "\nat the image's own size (");
    print_units(&t->own.table, out);
    text_printf(out, "):\n");
    mask_table_print(&t->own.table, out);
    if (t->own.unreadable)
        text_printf(out, "%llu masks could not be read again at their own size\n",
                    (unsigned long long)t->own.unreadable);
}

void eval_table_json(const struct eval_table *t, struct json_writer *w)
{
    if (!t->open) return;
    json_begin_list(w, "spacing");
    for (int k = 0; k < 2; k++) json_put_number(w, NULL, t->own.table.spacing[k]);
    json_end(w);
    if (t->own.table.of_volumes) json_put_string(w, "spacing_of", "volumes");
    json_put_number(w, "tolerance", t->own.table.tolerance);
    mask_table_json(&t->own.table, name_image, t->own.set, w);
}

int eval_table_write(const struct eval_table *t, struct error *e)
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

static void put_mean(struct text *out, const struct mask_mean *m, int digits)
{
    if (m->n) text_printf(out, "<td>%.*f", digits, m->mean);
    else text_printf(out, "<td>");
    if (m->n > 1) text_printf(out, " ± %.*f", digits, m->deviation);
    text_printf(out, "</td>");
}

void eval_table_page(const struct mask_table *t, struct text *out)
{
    uint32_t n;
    char room[16];
    struct mask_line *lines = mask_table_lines(t, &n);
    text_printf(out, "<h2>Scores at the image's own size</h2>\n<p class='dim'>");
    print_units(t, out);
    text_printf(out, "</p>\n<div "
                     "class='wide'><table>\n<tr><th>structure</th><th>prompt</th><th>masks</th><th>Dice</th><th>IoU</"
                     "th><th>HD95</th><th>NSD</th></tr>\n");
    for (uint32_t i = 0; i < n; i++) {
        text_printf(out, "<tr><td>");
        html_escape(out, mask_line_name(t, &lines[i], room));
        text_printf(out, "</td><td>%s</td><td>%llu</td>", t->prompts[lines[i].prompt],
                    (unsigned long long)lines[i].masks);
        for (int m = 0; m < METRICS; m++) put_mean(out, &lines[i].of[SIZE_OWN][m], m == METRIC_HD95 ? 3 : 4);
        text_printf(out, "</tr>\n");
    }
    text_printf(out, "</table></div>\n<h2>Worst masks</h2>\n");
    mem_free(lines);
}
