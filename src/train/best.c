/*
 * best.c: see best.h.
 */
#include "train/best.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "io/file.h"
#include "io/json.h"

enum { JSON_MOST = 1 << 20, PATH_ROOM = 4200 };

double perplexity(double loss)
{
    double x = exp(loss);
    return isfinite(x) ? x : NAN;
}

enum { BY_LOSS, BY_DICE, BY_IOU }; /* the choices of train.best */
static const char *const names[] = {"eval_loss", "eval_dice", "eval_iou"};

double best_rank(const struct config *c, const struct evaluation *v)
{
    return c->train_best == BY_DICE ? -v->dice : c->train_best == BY_IOU ? -v->iou : v->loss;
}

/* Losses over different validation data cannot be compared. */
static bool same_data(const struct value *root, const struct config *c)
{
    const struct value *list = value_get(root, "validation");
    if (!list || list->kind != VALUE_LIST || list->count != c->data_validation.n) return false;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i]->kind != VALUE_STRING || strcmp(list->items[i]->text, c->data_validation.at[i]))
            return false;
    return true;
}

void best_read(const char *dir, const struct config *c, struct best *b)
{
    struct bump memory = {0};
    struct value *root;
    struct error e = {0};
    char path[PATH_ROOM];
    *b = (struct best){-1, INFINITY, INFINITY};
    snprintf(path, sizeof path, "%s/eval.json", dir);
    if (!file_exists(path)) return;
    struct best found = {0};
    struct evaluation of = {.iou = NAN, .dice = NAN};
    const char *by = names[BY_LOSS];
    int rc = json_read_file(path, JSON_MOST, &memory, &root, &e);
    if (!rc) rc = value_as_map(root, path, &e);
    if (!rc) rc = value_as_int(value_get(root, "step"), "step", &found.step, &e);
    if (!rc) rc = value_as_number(value_get(root, "eval_loss"), "eval_loss", &found.loss, &e);
    if (!rc) rc = value_opt_string(root, "best", &by, &e);
    if (!rc) rc = value_opt_number(root, "eval_dice", &of.dice, &e);
    if (!rc) rc = value_opt_number(root, "eval_iou", &of.iou, &e);
    of.loss = found.loss;
    found.rank = best_rank(c, &of);
    if (rc) log_warn("%s cannot be read (%s); the next evaluation counts as the best", path, e.text);
    else if (strcmp(by, names[c->train_best]))
        log_note("train.best is not that of %s, which has the best %s; the next evaluation counts as the best", path,
                 by);
    else if (same_data(root, c)) *b = found;
    else log_note("data.validation is not that of %s; the next evaluation counts as the best", path);
    bump_free(&memory);
}

int best_write(const char *dir, const struct config *c, const struct evaluation *v, struct error *e)
{
    struct text out = {0};
    struct json_writer j = {.out = &out, .indent = 2};
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s/eval.json", dir);
    json_begin_map(&j, NULL);
    json_put_int(&j, "step", v->step);
    json_put_number(&j, "eval_loss", v->loss);
    if (config_tokens(c)) json_put_number(&j, "eval_perplexity", perplexity(v->loss));
    if (isfinite(v->dice)) json_put_number(&j, "eval_dice", v->dice);
    if (isfinite(v->iou)) json_put_number(&j, "eval_iou", v->iou);
    if (c->train_best != BY_LOSS) json_put_string(&j, "best", names[c->train_best]);
    json_put_int(&j, "eval_samples", v->samples);
    json_begin_list(&j, "validation");
    for (uint32_t i = 0; i < c->data_validation.n; i++) json_put_string(&j, NULL, c->data_validation.at[i]);
    json_end(&j);
    json_end(&j);
    text_append(&out, "\n", 1);
    int rc = file_write_atomic(path, out.at, out.n, e);
    text_free(&out);
    return rc;
}
