/*
 * train_save.c: saves checkpoints and models, and loads them in a resumed run.
 *
 *     checkpoints/step-N   weights and state            every train.save_every steps, at the end,
 *                                                       when interrupted
 *     checkpoints/best     a model and its evaluation   when an evaluation is the best so far
 *     model                a model                      at the end
 *
 * All are written under a temporary name and then renamed (folder.c), through the staging buffer in
 * the arena. Within the loop, lists and headers are allocated from a pool that exists before the
 * first step. A checkpoint holds everything that a resume needs: weights and optimizer state to the
 * bit, the step, and the position in the data, which is one number because the order is a pure
 * function.
 */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>

#include "data/images/image_files.h"
#include "dist/agree.h"
#include "folder/transfer.h"
#include "io/file.h"
#include "io/json.h"
#include "text/template/template.h"

static bool keeps_best(const struct config *c) { return c->train_keep_best && c->train_eval_every; }

/* --- with other ranks ----------------------------------------------------------------------- */

/* Reports whether weights or optimizer state are divided among ranks: rank 0 writes all, and gets
 * the parts of the others. */
static bool is_divided(const struct trainer *t)
{
    const struct graph *g = &t->run.planned.graph;
    for (id s = 1; s < g->storages.n && t->o->ranks; s++)
        if (g->storages.at[s].shard || g->storages.at[s].division) return true;
    return false;
}

static struct transfer staging_of(struct trainer *t)
{
    struct transfer x;
    transfer_init(&x, &t->run.device, &t->run.tape, run_staging(&t->run), PLAN_STAGING);
    return x;
}

/* Waits until all ranks come to a save, or returns the error of one that does not. */
static int meet(struct trainer *t, struct error *e) { return is_divided(t) ? agree_on(t->o->ranks, PL_OK, e) : PL_OK; }

/* Serves rank 0 while it saves, on the other ranks. */
static int serve(struct trainer *t, struct error *e)
{
    if (!is_divided(t)) return PL_OK;
    struct transfer x = staging_of(t);
    mem_pool_enter();
    int rc = transfer_serve(&x, "saving", e);
    mem_pool_leave();
    return rc;
}

/* Ends the service of the others when rank 0 has saved or failed to; returns `rc`, or the error of
 * ending it. */
static int release(struct trainer *t, int rc, struct error *e)
{
    struct error failed = {0};
    if (!is_divided(t)) return rc;
    struct transfer x = staging_of(t);
    if (!transfer_release(&x, &failed) || rc) return rc;
    *e = failed;
    return e->code;
}

/* --- the best model ------------------------------------------------------------------------- */

/* Step and loss of the best model so far are in checkpoints/best/eval.json, and nowhere else.
 * Evaluation is reproducible to the bit, so a run that was killed and repeats some steps finds the
 * same best model, even if that model belongs to a step that the resumed run has not reached. */

double perplexity(double loss)
{
    double x = exp(loss);
    return isfinite(x) ? x : NAN;
}

enum { BY_LOSS, BY_DICE, BY_IOU }; /* the choices of train.best */
static const char *const names[] = {"eval_loss", "eval_dice", "eval_iou"};

/* Returns what train.best compares: lower is better. */
static double best_rank(const struct config *c, const struct scored *v)
{
    return c->train_best == BY_DICE ? -v->dice : c->train_best == BY_IOU ? -v->iou : v->loss;
}

/* Reports whether the validation data are the same: losses over other data cannot be compared. */
static bool same_data(const struct value *root, const struct config *c)
{
    const struct value *list = value_get(root, "validation");
    if (!list || list->kind != VALUE_LIST || list->count != c->data_validation.n) return false;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i]->kind != VALUE_STRING || strcmp(list->items[i]->text, c->data_validation.at[i]))
            return false;
    return true;
}

/* Reads DIR/eval.json. *b stays empty if there is no file, if it cannot be read (with a
 * warning), or if it lists other validation files than the configuration or was chosen by
 * another train.best. */
static void best_read(const char *dir, const struct config *c, struct best *b)
{
    struct bump memory = {0};
    struct value *root;
    struct error e = {0};
    char path[FOLDER_PATH + 16];
    *b = (struct best){-1, INFINITY, INFINITY};
    snprintf(path, sizeof path, "%s/eval.json", dir);
    if (!file_exists(path)) return;
    struct best found = {0};
    struct scored of = {.iou = NAN, .dice = NAN};
    const char *by = names[BY_LOSS];
    int rc = json_read_file(path, 1 << 20, &memory, &root, &e);
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

/* Writes DIR/eval.json. */
static int best_write(const char *dir, const struct config *c, const struct scored *v, struct error *e)
{
    struct text out = {0};
    struct json_writer j = {.out = &out, .indent = 2};
    char path[FOLDER_PATH + 16];
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
    return file_write_text(PL_OK, path, &out, e);
}

/* --- the tokenizer and the chat template ---------------------------------------------------- */

/* A model folder is saved with the other files of model.path. With data.tokenizer or data.template
 * the run used other ones, and a preset has none: then these are saved in their place, so that
 * `generate` and transformers read the tokens that the model was trained on. */

enum { TEXT_PATH = 4096 };
/* The files that tokenizer_open and template_open read, here and in transformers. */
static const char *const tokenizer_names[] =
    {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
     "vocab.json",     "merges.txt"};
static const char *const template_names[] = {"chat_template.jinja", "chat_template.json"};

static int join_path(char out[TEXT_PATH], const char *folder, const char *name, struct error *e)
{
    if ((size_t)snprintf(out, TEXT_PATH, "%s/%s", folder, name) < TEXT_PATH) return PL_OK;
    return error_set(e, PL_USAGE, "the path %.200s... is too long", folder);
}

/* Reports whether the tokenizer is a tokenizer.json, as tokenizer_open decides. */
static bool is_json(const char *path)
{
    char first = 0;
    file_peek(path, &first, 1);
    return path_has_ending(path, ".json") || first == '{' || first == '\xef';
}

/* Keeps the source of the template that the conversations were rendered with: that of
 * data.template, or of the folder of a tokenizer that is one file. Texts need none. */
static void keep_template(struct text_files *t, const struct config *c)
{
    char folder[TEXT_PATH];
    const char *from = t->folder ? t->folder : c->model_path;
    struct template *template;
    struct error ignored;
    if (t->file) {
        if (path_dir(t->file, folder, sizeof folder, &ignored)) return;
        from = folder;
    }
    if (template_open(&template, from, c->data_template, NULL, &ignored)) return;
    t->template = mem_string(template_source(template));
    template_close(template);
}

static void add_bytes(struct text_files *t, const char *path)
{
    uint64_t bytes;
    struct error ignored;
    if (file_exists(path) && !file_size(path, &bytes, &ignored)) t->bytes += bytes;
}

int text_files_open(struct text_files *t, const struct config *c, struct error *e)
{
    char path[TEXT_PATH];
    *t = (struct text_files){0};
    if (c->data_format == FORMAT_TOKENS) return PL_OK;
    if (c->data_tokenizer && dir_exists(c->data_tokenizer)) t->folder = c->data_tokenizer;
    else if (c->data_tokenizer)
        t->file = c->data_tokenizer, t->as = is_json(t->file) ? "tokenizer.json" : "tokenizer.model";
    if (t->file || c->data_template) keep_template(t, c);
    for (size_t i = 0; t->folder && i < COUNT(tokenizer_names) + COUNT(template_names); i++) {
        const char *name = i < COUNT(tokenizer_names) ? tokenizer_names[i] : template_names[i - COUNT(tokenizer_names)];
        if (join_path(path, t->folder, name, e)) return e->code;
        add_bytes(t, path);
    }
    if (t->file) add_bytes(t, t->file);
    if (t->template) t->bytes += strlen(t->template);
    return PL_OK;
}

void text_files_close(struct text_files *t)
{
    mem_free(t->template);
    *t = (struct text_files){0};
}

/* Removes the files of these names, and copies those that `from` has; NULL: none. */
static int replace(const char *const *names, size_t n, const char *from, const char *dir, struct error *e)
{
    char source[TEXT_PATH], target[TEXT_PATH];
    for (size_t i = 0; i < n; i++) {
        TRY(join_path(target, dir, names[i], e));
        TRY(tree_remove(target, e));
        if (from) TRY(join_path(source, from, names[i], e));
        if (from && file_exists(source)) TRY(file_copy(source, target, e));
    }
    return PL_OK;
}

/* Replaces the files of a tokenizer in the folder. */
static int text_files_save(const struct text_files *t, const char *dir, struct error *e)
{
    char path[TEXT_PATH];
    if (t->folder && !dir_exists(t->folder))
        log_warn("data.tokenizer: there is no %s any more: %s is saved without a tokenizer", t->folder, dir);
    if (t->folder || t->file) TRY(replace(tokenizer_names, COUNT(tokenizer_names), t->folder, dir, e));
    if (t->folder || t->file || t->template)
        TRY(replace(template_names, COUNT(template_names), t->template ? NULL : t->folder, dir, e));
    if (t->file) TRY(join_path(path, dir, t->as, e));
    if (t->file) TRY(file_copy(t->file, path, e));
    if (!t->template) return PL_OK;
    TRY(join_path(path, dir, "chat_template.jinja", e));
    return file_write_atomic(path, t->template, strlen(t->template), e);
}

/* --- saving --------------------------------------------------------------------------------- */

/* Saves the model, with the tokenizer that it was trained with. */
static int save_weights(struct trainer *t, const char *dir, struct error *e)
{
    struct run *r = &t->run;
    TRY(weights_save(&r->weights, &r->planned.model, &r->planned.graph, &r->device, &r->tape, run_staging(r),
                     PLAN_STAGING, dir, e));
    return text_files_save(&t->text, dir, e);
}

bool trainer_save_due(const struct trainer *t, uint64_t step)
{
    return t->c->train_save_every && (int64_t)step % t->c->train_save_every == 0;
}

int trainer_save(struct trainer *t, struct error *e)
{
    struct run *r = &t->run;
    const char *dir;
    TRY(meet(t, e));
    if (!trainer_leads(t)) {
        t->saved = (int64_t)t->state.step;
        return serve(t, e);
    }
    mem_pool_enter();
    int rc = folder_checkpoint_begin(&t->folder, (int64_t)t->state.step, &dir, e);
    if (!rc) rc = save_weights(t, dir, e);
    if (!rc) rc = state_save(dir, &t->state, &r->planned.graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, e);
    if (!rc) rc = events_sync(&t->events, e); /* like the metrics, it must include the checkpoint's step */
    if (!rc) rc = folder_checkpoint_commit(&t->folder, t->c->train_keep, e);
    rc = release(t, rc, e);
    mem_pool_leave();
    if (rc) return error_prepend(e, "saving step %" PRId64, t->state.step);
    t->saved = (int64_t)t->state.step;
    return PL_OK;
}

/* Saves a model folder; the best one also holds its evaluation. */
static int save_model(struct trainer *t, enum folder_model which, const struct scored *v, struct error *e)
{
    const char *dir;
    TRY(folder_model_begin(&t->folder, which, &dir, e));
    TRY(save_weights(t, dir, e));
    if (v) TRY(best_write(dir, t->c, v, e));
    return folder_model_publish(&t->folder, which, e);
}

int trainer_keep_best(struct trainer *t, const struct scored *v, struct error *e)
{
    int rc = keeps_best(t->c) ? meet(t, e) : PL_OK;
    if (rc || !keeps_best(t->c)) return rc;
    if (!trainer_leads(t)) return serve(t, e);
    const bool best = best_rank(t->c, v) < t->best.rank;
    mem_pool_enter();
    rc = release(t, best ? save_model(t, FOLDER_BEST, v, e) : PL_OK, e);
    mem_pool_leave();
    if (rc) return error_prepend(e, "saving the best model, of step %" PRId64, v->step);
    if (best) t->best = (struct best){v->step, v->loss, best_rank(t->c, v)};
    return PL_OK;
}

int trainer_publish(struct trainer *t, struct error *e)
{
    TRY(meet(t, e));
    if (!trainer_leads(t)) return serve(t, e);
    return release(t, save_model(t, FOLDER_FINAL, NULL, e), e) ? error_prepend(e, "writing the model") : PL_OK;
}

static int load_state(struct trainer *t, const char *path, struct error *e)
{
    struct run *r = &t->run;
    return state_load(path, &t->state, &r->planned.graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, e);
}

/* Returns the error of the newest checkpoint, which cannot be read, with an older one that can be,
 * and the command. The user decides to lose the steps. */
static int advise_older(struct trainer *t, int64_t newest, const char *path, struct error *e)
{
    char older[FOLDER_PATH];
    struct error why = *e, ignored = {0};
    int64_t step = newest;
    while (!folder_checkpoint_before(&t->folder, step, &step, older, &ignored) && step >= 0)
        if (!load_state(t, older, &ignored))
            return error_set(e, why.code,
                             "checkpoint %s: %s; %s is intact: remove %s, and --resume continues after step %" PRId64,
                             path, why.text, older, path, step);
    return error_prepend(e, "checkpoint %s", path);
}

/* Checks that frozen weights and the shape of the model are those that the run began with: they are
 * not in a checkpoint, but read from model.path again. */
static int check_model(const struct trainer *t, struct error *e)
{
    const uint64_t then = t->state.model, now = t->run.weights.fingerprint;
    if (!then || !now || then == now) return PL_OK;
    const char *path = t->run.planned.model.path;
    return error_set(e, PL_USAGE,
                     "--resume: %s of %s%s%s changed since the checkpoint was saved: restore the folder, or start a "
                     "new run in another train.out",
                     then >> 32 != now >> 32 ? "config.json" : "the frozen weights",
                     *path ? "model.path, " : "the folder of a part", path, *path ? "," : "");
}

/* Reads the newest checkpoint on rank 0; the others get their parts from it. */
static int load_latest(struct trainer *t, struct error *e)
{
    char path[FOLDER_PATH];
    int64_t step = -1;
    TRY(folder_checkpoint_latest(&t->folder, &step, path, e));
    CHECK(step >= 0, "folder_open found a checkpoint");
    if (load_state(t, path, e)) return advise_older(t, step, path, e);
    t->saved = step;
    TRY(check_model(t, e));
    if (t->state.data && t->state.data != t->data.fingerprint && t->data.fingerprint)
        log_warn("resume: the files of data.train are not those of the checkpoint; the run continues with these from "
                 "its position");
    log_note("resuming after step %" PRId64 " from %s", t->state.step, path);
    return PL_OK;
}

int trainer_load(struct trainer *t, struct error *e)
{
    struct transfer x = staging_of(t);
    if (!trainer_leads(t)) return transfer_serve(&x, "loading the checkpoint", e);
    struct error failed = {0};
    int rc = load_latest(t, e);
    if (transfer_release(&x, &failed) && !rc) *e = failed, rc = e->code;
    return rc;
}

void trainer_find_best(struct trainer *t)
{
    char path[FOLDER_PATH];
    t->best = (struct best){-1, INFINITY, INFINITY};
    if (folder_model_path(&t->folder, FOLDER_BEST, path)) best_read(path, t->c, &t->best);
}

/* Returns how many checkpoints there will be at most: train.keep, which may be more than the run
 * writes. */
static int64_t checkpoints_kept(const struct trainer *t, int64_t there)
{
    const int64_t left = max_i64(0, (int64_t)t->total - t->state.step),
                  writes = 1 + (t->c->train_save_every ? left / t->c->train_save_every : 0);
    return min_i64(t->c->train_keep, there + writes + 1);
}

/* Requires descriptors for what reading opens later, and for saving, which would otherwise fail
 * after the steps are done. */
static int require_descriptors(const struct trainer *t, struct error *e)
{
    enum { SAVING = 16, THREAD = 2 };
    const uint32_t tars = t->c->data_format == FORMAT_CONVERSATIONS ? image_files_descriptors() : 0;
    return files_spare(SAVING + tars + THREAD * (uint32_t)t->c->data_threads, e);
}

/* Requires disk space for at least two checkpoints at a time, and for the model beside an older
 * one; existing checkpoints will be removed. The best model needs space for itself and for its
 * successor. */
int trainer_require_space(struct trainer *t, struct error *e)
{
    uint64_t model = weights_bytes(&t->run.weights, &t->run.planned.graph) + t->text.bytes,
             each = model + state_bytes(&t->run.planned.graph);
    int64_t there = 0;
    char best[FOLDER_PATH];
    TRY(require_descriptors(t, e));
    TRY(folder_checkpoint_count(&t->folder, &there, e));
    int64_t more = max_i64(1, checkpoints_kept(t, there) + 1 - there), models = 1;
    if (keeps_best(t->c)) models += folder_model_path(&t->folder, FOLDER_BEST, best) ? 1 : 2;
    return folder_require_space(&t->folder, each * (uint64_t)more + model * (uint64_t)models, e);
}
