/*
 * score.c: see score.h.
 */
#include "infer/score.h"

#include "io/table.h"

enum { ROW_ALL, ROW_OTHER, ROW_FIRST }; /* rows of a prompt */

/* --- one mask ---------------------------------------------------------------------------- */

static inline void count(struct overlap *o, bool p, bool t)
{
    o->both += p && t;
    o->either += p || t;
    o->predicted += p;
    o->target += t;
}

struct overlap overlap_masks(const uint8_t *predicted, const uint8_t *target, size_t n)
{
    struct overlap o = {0};
    for (size_t i = 0; i < n; i++) count(&o, predicted[i], target[i]);
    return o;
}

double overlap_iou(const struct overlap *o) { return o->either ? (double)o->both / (double)o->either : 1; }

double overlap_dice(const struct overlap *o)
{
    uint64_t sum = o->predicted + o->target;
    return sum ? 2 * (double)o->both / (double)sum : 1;
}

/* --- adding up ------------------------------------------------------------------------------ */

static uint32_t rows_of(const struct scores *s) { return ROW_FIRST + s->most_categories; }

void scores_open(struct scores *s, const char *const *prompts, uint32_t n_prompts, uint32_t categories, uint32_t worst)
{
    CHECK(n_prompts, "scores without prompts");
    *s =
        (struct scores){.prompts = prompts, .n_prompts = n_prompts, .most_categories = categories, .most_worst = worst};
    s->categories = mem_alloc((categories + 1) * sizeof *s->categories);
    s->rows = mem_alloc((size_t)n_prompts * rows_of(s) * sizeof *s->rows);
    s->worst = mem_alloc((worst + 1) * sizeof *s->worst);
}

void scores_names(struct scores *s, score_name *name, const void *of)
{
    s->name = name;
    s->names_of = of;
}

void scores_close(struct scores *s)
{
    mem_free(s->categories);
    mem_free(s->rows);
    mem_free(s->worst);
    memset(s, 0, sizeof *s);
}

void scores_reset(struct scores *s)
{
    memset(s->rows, 0, (size_t)s->n_prompts * rows_of(s) * sizeof *s->rows);
    s->n_worst = s->n_categories = 0;
}

static void add(struct score *r, double iou, double dice)
{
    r->masks++;
    r->above_half += iou > 0.5;
    r->above_most += iou > 0.75;
    r->iou += iou;
    r->dice += dice;
}

static bool worse(const struct worst *a, const struct worst *b)
{
    if (a->iou != b->iou) return a->iou < b->iou;
    if (a->sample != b->sample) return a->sample < b->sample;
    return a->mask != b->mask ? a->mask < b->mask : a->prompt < b->prompt;
}

/* Keeps the list sorted; an entry that drops off its end is forgotten. */
static void keep_worst(struct scores *s, const struct worst *w)
{
    if (s->n_worst == s->most_worst && (!s->n_worst || !worse(w, &s->worst[s->n_worst - 1]))) return;
    uint32_t at = s->n_worst < s->most_worst ? s->n_worst++ : s->n_worst - 1;
    for (; at && worse(w, &s->worst[at - 1]); at--) s->worst[at] = s->worst[at - 1];
    s->worst[at] = *w;
}

/* Returns the row of a category, assigned when the category is first seen. */
static uint32_t find_row(struct scores *s, int32_t id)
{
    uint32_t at = 0, end = s->n_categories;
    while (at < end) {
        uint32_t middle = (at + end) / 2;
        if (s->categories[middle].id < id) at = middle + 1;
        else end = middle;
    }
    if (at < s->n_categories && s->categories[at].id == id) return s->categories[at].row;
    if (s->n_categories == s->most_categories) return ROW_OTHER;
    memmove(s->categories + at + 1, s->categories + at, (s->n_categories - at) * sizeof *s->categories);
    s->categories[at] = (struct score_category){id, ROW_FIRST + s->n_categories++};
    return s->categories[at].row;
}

void scores_add(struct scores *s, uint32_t prompt, int32_t category, double iou, double dice, const struct worst *where)
{
    CHECK(prompt < s->n_prompts, "prompt %u of %u", prompt, s->n_prompts);
    struct score *rows = s->rows + (size_t)prompt * rows_of(s);
    add(&rows[ROW_ALL], iou, dice);
    if (s->most_categories) add(&rows[find_row(s, category)], iou, dice);
    if (!where) return;
    struct worst w = *where;
    w.iou = iou;
    w.prompt = prompt;
    keep_worst(s, &w);
}

/* --- results ---------------------------------------------------------------------------------- */

struct score scores_of(const struct scores *s, uint32_t prompt)
{
    struct score sum = {0};
    for (uint32_t p = 0; p < s->n_prompts; p++) {
        const struct score *r = &s->rows[(size_t)p * rows_of(s)];
        if (prompt < s->n_prompts && p != prompt) continue;
        sum.masks += r->masks, sum.above_half += r->above_half, sum.above_most += r->above_most;
        sum.iou += r->iou, sum.dice += r->dice;
    }
    return sum;
}

static double share(double x, uint64_t n) { return n ? x / (double)n : 0; }
double score_iou(const struct score *s) { return share(s->iou, s->masks); }
double score_dice(const struct score *s) { return share(s->dice, s->masks); }

/* Counts the lines of a table: all, then the seen categories by id, then other. row_of is a line's
 * row. */
static uint32_t lines_of(const struct scores *s)
{
    bool plain = s->n_categories == 1 && !(s->name && s->name(s->names_of, s->categories[0].id));
    return plain ? 1 : s->n_categories + 2;
}

static uint32_t row_of(const struct scores *s, uint32_t line)
{
    return !line ? ROW_ALL : line <= s->n_categories ? s->categories[line - 1].row : ROW_OTHER;
}

static const char *line_name(const struct scores *s, uint32_t line, char out[16])
{
    if (!line || line > s->n_categories) return line ? "other" : "all";
    int32_t id = s->categories[line - 1].id;
    const char *name = s->name ? s->name(s->names_of, id) : NULL;
    snprintf(out, 16, "%d", id);
    return name ? name : out;
}

void scores_print(const struct scores *s, struct text *out)
{
    static const struct report_column columns[] = {
        {NULL, "prompt"}, {NULL, "category"}, {NULL, "masks", ""}, {NULL, "mean IoU", "%.4f"},
        {NULL, "mean Dice", "%.4f"}, {NULL, "above 0.50", "%.1f %%", 100}, {NULL, "above 0.75", "%.1f %%", 100}};
    struct report_table t = REPORT_TABLE(columns);
    char number[16];
    for (uint32_t p = 0; p < s->n_prompts; p++)
        for (uint32_t l = 0; l < lines_of(s); l++) {
            const struct score *x = &s->rows[(size_t)p * rows_of(s) + row_of(s, l)];
            if (x->masks)
                TABLE_ADD(&t, CELL(s->prompts[p]), CELL(line_name(s, l, number)), CELL(x->masks), CELL(score_iou(x)),
                          CELL(score_dice(x)), CELL(share((double)x->above_half, x->masks)),
                          CELL(share((double)x->above_most, x->masks)));
        }
    table_print(&t, 0, 0, out);
    table_free(&t);
}

void csv_put_field(struct text *out, const char *s)
{
    bool quote = strpbrk(s, ",\"\r\n");
    if (quote) text_append(out, "\"", 1);
    for (; *s; s++) text_append(out, *s == '"' ? "\"\"" : s, *s == '"' ? 2 : 1);
    if (quote) text_append(out, "\"", 1);
    text_append(out, ",", 1);
}

static void put_score(struct json_writer *w, const char *name, const struct score *x)
{
    json_begin_map(w, name);
    json_put_uint(w, "masks", x->masks);
    json_put_number(w, "mean_iou", score_iou(x));
    json_put_number(w, "mean_dice", score_dice(x));
}

void scores_json(const struct scores *s, uint32_t prompt, struct json_writer *w)
{
    const struct score *rows = &s->rows[(size_t)prompt * rows_of(s)];
    const bool named = s->n_categories && s->name && s->name(s->names_of, s->categories[0].id);
    char number[16];
    put_score(w, s->prompts[prompt], rows);
    if (named) json_begin_map(w, "categories");
    for (uint32_t l = 1; l < lines_of(s) && named; l++) {
        if (!rows[row_of(s, l)].masks) continue;
        put_score(w, line_name(s, l, number), &rows[row_of(s, l)]);
        json_end(w);
    }
    if (named) json_end(w);
    json_end(w);
}

void scores_csv(const struct scores *s, struct text *out)
{
    char number[16];
    text_printf(out, "prompt,category,masks,mean_iou,mean_dice,above_50,above_75\n");
    for (uint32_t p = 0; p < s->n_prompts; p++)
        for (uint32_t l = 0; l < lines_of(s); l++) {
            const struct score *x = &s->rows[(size_t)p * rows_of(s) + row_of(s, l)];
            if (!x->masks) continue;
            csv_put_field(out, s->prompts[p]);
            csv_put_field(out, line_name(s, l, number));
            text_printf(out, "%llu,%.6f,%.6f,%.6f,%.6f\n", (unsigned long long)x->masks, score_iou(x), score_dice(x),
                        share((double)x->above_half, x->masks), share((double)x->above_most, x->masks));
        }
}
