/*
 * mask_table.c: see own_size.h.
 */
#include "infer/own_size.h"

#include <math.h>

#include "io/json.h"

const char *const metric_names[METRICS] = {"dice", "iou", "hd95", "nsd"};
const char *const size_names[SIZES] = {"own", "loss"};

/* Returns how many of the sizes the rows have. */
static int sizes_of(const struct mask_table *t) { return t->bodies ? 1 : SIZES; }

void mask_table_add(struct mask_table *t, const struct mask_row *row) { vec_push(&t->rows, *row); }
void mask_table_free(struct mask_table *t) { vec_free(&t->rows); }

/* --- means ----------------------------------------------------------------------------------- */

static int by_structure(const void *a, const void *b)
{
    const struct mask_row *x = *(const struct mask_row *const *)a, *y = *(const struct mask_row *const *)b;
    if (x->prompt != y->prompt) return x->prompt < y->prompt ? -1 : 1;
    if (x->category != y->category) return x->category < y->category ? -1 : 1;
    return (x > y) - (x < y); /* sums have the order of the rows */
}

static struct mask_mean mean_of(const struct mask_row *const *rows, uint32_t n, enum mask_size s, enum mask_metric m)
{
    struct mask_mean o = {NAN, NAN, 0};
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(rows[i]->value[s][m])) sum += rows[i]->value[s][m], o.n++;
    if (o.n) o.mean = sum / (double)o.n;
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(rows[i]->value[s][m])) squares += (rows[i]->value[s][m] - o.mean) * (rows[i]->value[s][m] - o.mean);
    if (o.n > 1) o.deviation = sqrt(squares / (double)(o.n - 1));
    return o;
}

static struct mask_line line_of(const struct mask_row *const *rows, uint32_t n, bool all)
{
    struct mask_line l = {.prompt = rows[0]->prompt, .category = rows[0]->category, .all = all, .masks = n};
    for (int s = 0; s < SIZES; s++)
        for (int m = 0; m < METRICS; m++) l.of[s][m] = mean_of(rows, n, (enum mask_size)s, (enum mask_metric)m);
    return l;
}

/* Counts rows from `at` on that have the same prompt, or the same structure, too. */
static uint32_t same_rows(const struct mask_row *const *rows, uint32_t at, uint32_t n, bool structure)
{
    uint32_t end = at;
    while (end < n && rows[end]->prompt == rows[at]->prompt &&
           (!structure || rows[end]->category == rows[at]->category))
        end++;
    return end - at;
}

/* Lists all structures, then each of them, for each prompt; the caller frees the list. */
static struct mask_line *mask_table_lines(const struct mask_table *t, uint32_t *n)
{
    const uint32_t rows = t->rows.n;
    const struct mask_row **order = mem_alloc((rows + 1) * sizeof *order);
    VEC(struct mask_line) lines = {0};
    for (uint32_t i = 0; i < rows; i++) order[i] = &t->rows.at[i];
    qsort(order, rows, sizeof *order, by_structure);
    for (uint32_t at = 0, k; at < rows; at += k) {
        k = same_rows(order, at, rows, false);
        vec_push(&lines, line_of(order + at, k, true));
        for (uint32_t i = at, of; i < at + k; i += of) {
            of = same_rows(order, i, at + k, true);
            const bool only = of == k && !(t->name && t->name(t->names_of, order[i]->category));
            if (!only) vec_push(&lines, line_of(order + i, of, false));
        }
    }
    mem_free(order);
    *n = lines.n;
    return lines.at;
}

static const char *category_name(const struct mask_table *t, int32_t category, char room[16])
{
    const char *name = t->name ? t->name(t->names_of, category) : NULL;
    snprintf(room, 16, "%d", category);
    return name ? name : room;
}

static const char *mask_line_name(const struct mask_table *t, const struct mask_line *l, char room[16])
{
    return l->all ? "all" : category_name(t, l->category, room);
}

/* --- text and CSV ----------------------------------------------------------------------------- */

/* Writes "0.8123 ± 0.0456"; a dash for what does not exist. */
static const char *print_mean(const struct mask_mean *m, int digits, char out[64])
{
    int n = m->n ? snprintf(out, 64, "%.*f ± ", digits, m->mean) : snprintf(out, 64, "- ± ");
    if (m->n > 1) snprintf(out + n, (size_t)(64 - n), "%.*f", digits, m->deviation);
    else snprintf(out + n, (size_t)(64 - n), "-");
    return out;
}

struct report_table mask_table_list(const struct mask_table *t)
{
#define COLUMNS(counted)                                                                                              \
    {{NULL, "prompt"}, {NULL, "structure"}, {NULL, counted, ""}, {NULL, "Dice"}, {NULL, "IoU"}, {NULL, "HD95"},       \
     {NULL, "NSD"}, {NULL, ""}}
    static const struct report_column of_masks[] = COLUMNS("masks"), of_bodies[] = COLUMNS("volumes");
    struct report_table out = REPORT_TABLE(of_masks);
    if (t->bodies) out.columns = of_bodies;
    uint32_t n;
    char room[16], mean[METRICS][64], fewer[64];
    struct mask_line *lines = mask_table_lines(t, &n);
    for (const struct mask_line *l = lines; l < lines + n; l++) {
        const struct mask_mean *o = l->of[SIZE_OWN];
        for (int m = 0; m < METRICS; m++) print_mean(&o[m], m == METRIC_HD95 ? 3 : 4, mean[m]);
        snprintf(fewer, sizeof fewer, "(HD95 of %llu)", (unsigned long long)o[METRIC_HD95].n);
        TABLE_ADD(&out, CELL(t->prompts[l->prompt]), CELL(mask_line_name(t, l, room)), CELL(l->masks),
                  CELL((const char *)mean[METRIC_DICE]), CELL((const char *)mean[METRIC_IOU]),
                  CELL((const char *)mean[METRIC_HD95]), CELL((const char *)mean[METRIC_NSD]),
                  CELL_IF(o[METRIC_HD95].n < l->masks, (const char *)fewer));
    }
    mem_free(lines);
    return out;
}

static void put_value(struct text *out, double x)
{
    if (isnan(x)) text_printf(out, ",");
    else text_printf(out, ",%.6f", x);
}

void mask_table_structures(const struct mask_table *t, struct text *out)
{
    uint32_t n;
    char room[16];
    struct mask_line *lines = mask_table_lines(t, &n);
    text_printf(out, "prompt,category,size,masks");
    for (int m = 0; m < METRICS; m++)
        text_printf(out, ",%s_mean,%s_sd,%s_n", metric_names[m], metric_names[m], metric_names[m]);
    text_printf(out, "\n");
    for (uint32_t i = 0; i < n; i++)
        for (int s = 0; s < sizes_of(t); s++) {
            csv_put_field(out, t->prompts[lines[i].prompt]);
            csv_put_field(out, mask_line_name(t, &lines[i], room));
            text_printf(out, "%s,%llu", size_names[s], (unsigned long long)lines[i].masks);
            for (int m = 0; m < METRICS; m++) {
                put_value(out, lines[i].of[s][m].mean);
                put_value(out, lines[i].of[s][m].deviation);
                text_printf(out, ",%llu", (unsigned long long)lines[i].of[s][m].n);
            }
            text_printf(out, "\n");
        }
    mem_free(lines);
}

void mask_table_csv(const struct mask_table *t, table_image_name *image, const void *of, struct text *out)
{
    char name[512], room[16];
    text_printf(out, "%s,prompt,category,mask", t->bodies ? "volume" : "image");
    for (int s = 0; s < sizes_of(t); s++)
        for (int m = 0; m < METRICS; m++) text_printf(out, ",%s%s", s == SIZE_LOSS ? "loss_" : "", metric_names[m]);
    text_printf(out, "\n");
    for (uint32_t i = 0; i < t->rows.n; i++) {
        const struct mask_row *r = &t->rows.at[i];
        image(of, r->sample, name, sizeof name);
        csv_put_field(out, name);
        csv_put_field(out, t->prompts[r->prompt]);
        csv_put_field(out, category_name(t, r->category, room));
        text_printf(out, "%lld", (long long)r->mask);
        for (int s = 0; s < sizes_of(t); s++)
            for (int m = 0; m < METRICS; m++) put_value(out, r->value[s][m]);
        text_printf(out, "\n");
    }
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void put_line(const struct mask_table *t, const struct mask_line *l, struct json_writer *w)
{
    char room[16];
    json_begin_map(w, NULL);
    json_put_string(w, "prompt", t->prompts[l->prompt]);
    json_put_string(w, "category", mask_line_name(t, l, room));
    json_put_uint(w, t->bodies ? "volumes" : "masks", l->masks);
    for (int s = 0; s < sizes_of(t); s++) {
        json_begin_map(w, size_names[s]);
        for (int m = 0; m < METRICS; m++) {
            json_begin_map(w, metric_names[m]);
            json_put_number(w, "mean", l->of[s][m].mean);
            json_put_number(w, "sd", l->of[s][m].deviation);
            json_put_uint(w, "n", l->of[s][m].n);
            json_end(w);
        }
        json_end(w);
    }
    json_end(w);
}

void mask_table_json(const struct mask_table *t, const struct table_members *members, table_image_name *image,
                     const void *of, struct json_writer *w)
{
    uint32_t n;
    char name[512], room[16];
    struct mask_line *lines = mask_table_lines(t, &n);
    json_begin_list(w, members->structures);
    for (uint32_t i = 0; i < n; i++) put_line(t, &lines[i], w);
    json_end(w);
    mem_free(lines);
    json_begin_list(w, members->rows);
    for (uint32_t i = 0; i < t->rows.n; i++) {
        const struct mask_row *r = &t->rows.at[i];
        image(of, r->sample, name, sizeof name);
        json_begin_map(w, NULL);
        json_put_string(w, members->image, name);
        json_put_string(w, "prompt", t->prompts[r->prompt]);
        json_put_string(w, "category", category_name(t, r->category, room));
        json_put_int(w, "mask", r->mask);
        for (int s = 0; s < sizes_of(t); s++) {
            json_begin_map(w, size_names[s]);
            for (int m = 0; m < METRICS; m++) json_put_number(w, metric_names[m], r->value[s][m]);
            json_end(w);
        }
        json_end(w);
    }
    json_end(w);
}
