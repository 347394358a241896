/*
 * train.c: the training loop: a batch from the data files to the weight update.
 *
 *     samples at positions p .. p+E-1  ->  input storages  ->  step and update are asked for
 *     the step before is taken: its loss checked  ->  metrics line  ->  checkpoint?
 *
 * A card runs a step while the host looks at the one before (ticket.h): what is `asked` is then one step
 * ahead of `state`, which is what has been taken. Nothing is asked for beyond a step that is followed by an
 * evaluation or a checkpoint, so that those see its weights. On the CPU every step is taken at once.
 *
 * Everything a step needs is allocated before the first one. What a resume needs
 * is in the checkpoint: weights and moments to the bit, the step, and the
 * position in the data, which is a number because the order is a pure function.
 */
#include "train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "io/file.h"
#include "train/best.h"
#include "train/events.h"
#include "train/feed.h"
#include "train/folder.h"
#include "train/mask_scores.h"
#include "train/monitor.h"
#include "train/progress.h"
#include "train/recipe.h"
#include "train/run.h"
#include "train/scaler.h"
#include "train/signals.h"
#include "train/state.h"
#include "train/ticket.h"

/* Bytes for the lists and headers of a save, taken before the first step. */
enum { SAVE_POOL = 1 << 20, SAVE_POOL_PER_WEIGHT = 4096 };

struct trainer {
    const struct config *c;
    const struct train_options *o;
    struct run run;
    struct folder folder;
    struct events events;
    struct feed data, validation; /* not open: a program brings its own batches */
    struct progress progress;
    struct train_state state;
    uint64_t total;          /* steps of the whole run */
    uint64_t end;            /* the position at which the last epoch ends; UINT64_MAX: train.steps decides */
    struct schedule schedule;
    int64_t saved;           /* step of the last checkpoint; -1: none */
    double units;            /* trained on in this process: tokens, images */
    id eval_loss;            /* tensor */
    double eval;             /* the last evaluation */
    struct mask_scores scores; /* of the last evaluation, where there are masks */
    struct best best;        /* in checkpoints/best */
    double count;            /* what losses are divided by; 0: the default */
    struct tickets tickets;
    struct {                 /* of a step that was asked for */
        int64_t samples;
        uint64_t broken;
        double units, from;
    } pending[TICKETS];
    uint64_t position;       /* in the data, behind all steps that were asked for */
    double taken_at;         /* when the last step was taken */
    bool has_folder, has_run, has_pool, has_scores;
    bool stopped;            /* by on_step */
    struct {                 /* the batch of the step to come, where the run has it (run.ahead_ready) */
        uint64_t position, broken;
        int64_t samples;
        struct feed_batch batch;
        struct error failed; /* what is wrong with it, to be said when its step comes */
    } next;
};

/* --- a step's batch ------------------------------------------------------------------ */

/* Samples of the step at a position: the effective batch, and at the end of the last epoch what
 * is left. Borders of other epochs pass within a batch. */
static int64_t samples_at(const struct trainer *t, uint64_t position)
{
    if (!t->data.ops) return t->run.effective_batch;
    uint64_t left = t->end - min_u64(t->end, position);
    return (int64_t)min_u64(left, (uint64_t)t->run.effective_batch);
}

/* Steps done when all that were asked for are. */
static uint64_t steps_asked(const struct trainer *t) { return t->state.step + tickets_pending(&t->tickets); }

/* After the last step, and every train.eval_every before it. */
static bool evaluation_due_at(const struct trainer *t, uint64_t step)
{
    int64_t every = t->c->train_eval_every;
    return t->validation.ops && (step == t->total || (every && (int64_t)step % every == 0));
}
static bool evaluation_due(const struct trainer *t) { return evaluation_due_at(t, t->state.step); }

/* The batch of the step to come is put together while this one runs, and copied behind it:
 *
 *     host    ask n, put n+1, take n-1      ask n+1, put n+2, take n
 *     card    .. n-1][ step n ............][update n][ step n+1 ..........][update n+1]
 *     lane                                 [copy n+1]                      [copy n+2]
 *
 * It lies in one buffer, which is free when the batch before has been copied: behind the step before, so the
 * card has the whole of this one left to do. An evaluation would write over the batch, so before one nothing
 * is put ahead. */
static int put_next(struct trainer *t, struct error *e)
{
    const uint64_t position = t->position, done = steps_asked(t);
    const int64_t n = samples_at(t, position);
    if (!t->data.ops || done >= t->total || !n || evaluation_due_at(t, done) || !run_can_go_ahead(&t->run)) return PL_OK;
    int rc = run_ahead_begin(&t->run, e);
    if (rc) return rc;
    t->next.position = position;
    t->next.samples = n;
    t->next.failed.code = PL_OK;
    rc = feed_put(&t->data, &t->run, position, n, run_samples(&t->run), &t->next.batch, &t->next.failed);
    t->next.broken = t->data.broken;
    run_ahead_end(&t->run, !rc);
    return PL_OK;
}

/* The batch of the step that is asked for now: put ahead, or put now. `broken`: samples so far. */
static int take_batch(struct trainer *t, int64_t samples, struct feed_batch *batch, uint64_t *broken, struct error *e)
{
    if (!t->data.ops) return PL_OK;
    const bool asked = t->next.samples && t->next.position == t->position;
    if (asked && t->next.failed.code) {
        *e = t->next.failed;
        return e->code;
    }
    if (asked && t->run.ahead_ready && t->next.samples == samples) {
        *batch = t->next.batch;
        *broken = t->next.broken;
        return PL_OK;
    }
    int rc = feed_put(&t->data, &t->run, t->position, samples, run_samples(&t->run), batch, e);
    *broken = t->data.broken;
    return rc;
}

/* For the step that was just taken and is looked at again: its batch, its numbers and its gradients
 * may have made way for those of a step that was asked for since. The weights have not. */
static void bring_back(struct trainer *t, const struct ticket *k)
{
    struct feed_batch batch;
    struct error ignored;
    const bool behind = tickets_pending(&t->tickets);
    if (t->data.ops && (behind || t->run.ahead_ready))
        feed_put(&t->data, &t->run, t->state.position, samples_at(t, t->state.position), run_samples(&t->run), &batch, &ignored);
    if (!behind) return;
    struct step_block b = k->block;
    b.found_inf = 1; /* a fused step must not update weights again */
    if (!run_put_step(&t->run, &b, &ignored)) run_program(&t->run, PROGRAM_STEP, &ignored);
}

/* --- one step --------------------------------------------------------------------- */

/* What losses are divided by where a program brings its own batches: samples, or tokens
 * where the model has a family. */
static double own_count(const struct trainer *t)
{
    if (t->count) return t->count;
    return (double)t->run.effective_batch * (t->run.defined ? 1 : (double)(t->c->data_sequence - 1));
}

static struct step_block step_block(const struct trainer *t, double count)
{
    int64_t step = (int64_t)steps_asked(t); /* done when this one begins: its index from 0 */
    struct step_block b = {
        .learning_rate = (float)(recipe_rate(t->c) * schedule_factor(&t->schedule, step)),
        .inv_count = (float)(1 / count),
        .clip_norm = (float)t->c->train_clip_norm,
        .step = (int32_t)step + 1,
        .adam_t = (int32_t)t->state.adam_t + (int32_t)tickets_pending(&t->tickets) + 1,
        .seed = (uint64_t)t->c->train_seed,
        .rng_step = (uint64_t)step,
    };
    scaler_put(&t->state, t->c, t->tickets.scaled, &b);
    return b;
}

/* After an update that was fused the weights are spoilt too, so only the gradients can still tell. */
static int complain_nonfinite(struct trainer *t, const struct ticket *k, struct error *e)
{
    char name[256];
    const bool updated = isfinite(k->loss);
    const char *what = updated ? "gradient norm" : "loss";
    const double x = updated ? k->clip[0] : k->loss;
    bring_back(t, k);
    if (updated) run_find_nonfinite_gradient(&t->run, name, sizeof name);
    else run_find_nonfinite(&t->run, name, sizeof name);
    return error_set(e, PL_FAIL, "step %" PRId64 ": the %s is %g%s%s; lower train.learning_rate, set train.clip_norm, or resume from an earlier checkpoint",
                     t->state.step + 1, what, x, name[0] ? "; first seen in " : "", name);
}

/* What a step says of itself: its loss, the norm of its gradients, and in f16 the scale to come. */
static int check_step(struct trainer *t, const struct ticket *k, struct error *e)
{
    const struct step_block *b = &k->block;
    if (ticket_fatal(&t->tickets, k->loss)) return complain_nonfinite(t, k, e);
    if (!t->tickets.scaled) {
        t->state.adam_t++;
        return isfinite(k->clip[0]) ? PL_OK : complain_nonfinite(t, k, e);
    }
    if (scaler_take(&t->state, b)) {
        progress_break(&t->progress);
        log_note("step %d: skipped: gradients are not finite at loss scale %g; the next step's is %g", b->step, b->loss_scale, b->next_scale);
    }
    if (!scaler_hopeless(&t->state)) return PL_OK;
    bring_back(t, k);
    return scaler_complain(&t->state, b, &t->run, e);
}

/* Asks for the step to come, and puts the batch behind it. */
static int ask_step(struct trainer *t, struct error *e)
{
    const int at = (int)(t->tickets.asked % TICKETS);
    struct feed_batch batch = {.count = own_count(t)};
    if (!tickets_pending(&t->tickets)) t->position = t->state.position;
    t->pending[at].from = clock_seconds();
    t->pending[at].samples = samples_at(t, t->position);
    t->pending[at].broken = t->state.broken;
    int rc = take_batch(t, t->pending[at].samples, &batch, &t->pending[at].broken, e);
    struct step_block b = step_block(t, t->count ? t->count : batch.count);
    if (!rc) rc = ticket_ask(&t->tickets, &b, e);
    if (rc) return rc;
    t->pending[at].units = batch.units;
    t->position += (uint64_t)t->pending[at].samples;
    return put_next(t, e);
}

/* Waits for the oldest step that was asked for. Its time began when it was asked for, or when the one
 * before it was done. */
static int take_step(struct trainer *t, struct train_event *out, struct error *e)
{
    const int at = (int)(t->tickets.taken % TICKETS);
    struct ticket k;
    int rc = ticket_take(&t->tickets, &k, e);
    if (!rc) rc = check_step(t, &k, e);
    if (rc) return rc;
    const double from = fmax(t->pending[at].from, t->taken_at);
    t->taken_at = clock_seconds();
    t->state.step++;
    t->state.position += (uint64_t)t->pending[at].samples;
    t->state.broken = t->pending[at].broken;
    *out = (struct train_event){(int64_t)t->state.step, (int64_t)t->total, k.loss, k.begun.learning_rate, k.clip[0], t->taken_at - from,
                                t->pending[at].units, t->tickets.scaled ? k.block.loss_scale : 0, k.block.found_inf};
    t->units += out->units;
    return PL_OK;
}

int trainer_step(struct trainer *t, struct train_event *out, struct error *e)
{
    int rc = ask_step(t, e);
    return rc ? rc : take_step(t, out, e);
}

/* --- evaluation ------------------------------------------------------------------------- */

/* One pass of an evaluation: its losses and what they count, added up. */
static int evaluate_pass(struct trainer *t, double *sum, double *count, struct error *e)
{
    int64_t B = t->run.plan.settings.micro_batch, n = (int64_t)t->validation.samples;
    int rc = PL_OK;
    for (int64_t at = 0; at < n && !rc; at += B) {
        struct feed_batch batch;
        float l = 0;
        rc = feed_put(&t->validation, &t->run, (uint64_t)at, min_i64(B, n - at), B, &batch, e);
        if (!rc) rc = run_program(&t->run, PROGRAM_EVAL, e);
        if (!rc) rc = run_read(&t->run, t->eval_loss, &l, e);
        if (!rc && !isfinite(l))
            rc = error_set(e, PL_FAIL, "step %" PRIu64 ": the evaluation loss is %g in samples %" PRId64 " to %" PRId64 " of data.validation; lower train.learning_rate, or resume from an earlier checkpoint",
                           t->state.step, l, at, min_i64(at + B, n) - 1);
        if (!rc && t->has_scores) rc = mask_scores_add(&t->scores, &t->run, &t->validation, e);
        *sum += l;
        *count += batch.count;
    }
    return rc;
}

/* Mean loss over the whole validation set, per token or mask, over all passes. The program
 * reads weights and writes its own transients, and the next step puts its own numbers and
 * batch: nothing that training goes on with is touched. */
static int evaluate(struct trainer *t, struct evaluation *out, struct error *e)
{
    struct step_block b = step_block(t, 1);
    double sum = 0, count = 0;
    b.rng_step = 0; /* points of later rounds are drawn alike in every evaluation */
    int rc = run_put_step(&t->run, &b, e);
    if (t->has_scores) scores_reset(&t->scores.scores);
    for (int pass = 0; pass < feed_passes(&t->validation) && !rc; pass++) {
        feed_set_pass(&t->validation, pass);
        rc = evaluate_pass(t, &sum, &count, e);
    }
    *out = (struct evaluation){(int64_t)t->state.step, (int64_t)t->validation.samples, sum / count};
    return rc;
}

/* The scores by prompt and category beside the metrics: eval.txt, eval.csv. */
static int write_scores(struct trainer *t, struct error *e)
{
    struct text table = {0}, csv = {0};
    mem_pool_enter();
    text_printf(&table, "step %" PRIu64 "\n", t->state.step);
    scores_print(&t->scores.scores, &table);
    scores_csv(&t->scores.scores, &csv);
    int rc = folder_write(&t->folder, "eval.txt", table.at, table.n, e);
    if (!rc) rc = folder_write(&t->folder, "eval.csv", csv.at, csv.n, e);
    text_free(&table);
    text_free(&csv);
    mem_pool_leave();
    return rc;
}

/* Of tokens the perplexity as well, one beyond a double is null; of masks IoU and Dice. */
static int report_evaluation(struct trainer *t, const struct evaluation *v, struct error *e)
{
    char number[32] = "null", more[128] = "", said[128] = "";
    struct scalar scalars[3] = {{"eval_loss", v->loss}};
    uint32_t n_scalars = 1;
    double p = perplexity(v->loss);
    if (isfinite(p)) snprintf(number, sizeof number, "%.9g", p);
    if (t->validation.ops == &tokens_feed) {
        snprintf(more, sizeof more, ",\"eval_perplexity\":%s", number);
        snprintf(said, sizeof said, ", perplexity %.6g", p);
    } else if (t->has_scores) {
        struct score all = mask_scores_of(&t->scores, false), last = mask_scores_of(&t->scores, true);
        int n = snprintf(more, sizeof more, ",\"eval_iou\":%.6f,\"eval_dice\":%.6f", score_iou(&all), score_dice(&all));
        int k = snprintf(said, sizeof said, ", mean IoU %.4f, mean Dice %.4f", score_iou(&all), score_dice(&all));
        if (t->scores.last) {
            snprintf(more + n, sizeof more - (size_t)n, ",\"eval_iou_last\":%.6f", score_iou(&last));
            snprintf(said + k, sizeof said - (size_t)k, ", after the last round IoU %.4f", score_iou(&last));
        }
        scalars[n_scalars++] = (struct scalar){"eval_iou", score_iou(&all)};
        scalars[n_scalars++] = (struct scalar){"eval_dice", score_dice(&all)};
        int rc = write_scores(t, e);
        if (rc) return rc;
    }
    t->eval = v->loss;
    progress_break(&t->progress);
    log_note("step %" PRId64 ": evaluation loss %.6g%s over %" PRId64 " samples", v->step, v->loss, said, v->samples);
    int rc = folder_metrics(&t->folder, e, "{\"step\":%" PRId64 ",\"eval_loss\":%.9g%s,\"eval_samples\":%" PRId64 "}", v->step, v->loss, more,
                            v->samples);
    return rc ? rc : events_write(&t->events, v->step, scalars, n_scalars, e);
}

static bool keeps_best(const struct config *c)
{
    return c->train_keep_best && c->train_eval_every;
}

/* --- saving ----------------------------------------------------------------------------------- */

static int save_checkpoint(struct trainer *t, struct error *e)
{
    struct run *r = &t->run;
    const char *dir;
    mem_pool_enter();
    int rc = folder_checkpoint_begin(&t->folder, (int64_t)t->state.step, &dir, e);
    if (!rc) rc = weights_save(&r->weights, &r->model, &r->graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, dir, e);
    if (!rc) rc = state_save(dir, &t->state, &r->graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, e);
    if (!rc) rc = events_sync(&t->events, e); /* like the metrics: not behind the checkpoint */
    if (!rc) rc = folder_checkpoint_commit(&t->folder, t->c->train_keep, e);
    mem_pool_leave();
    if (rc) return error_prepend(e, "saving step %" PRId64, t->state.step);
    t->saved = (int64_t)t->state.step;
    return PL_OK;
}

/* A model folder; beside the best one lies its evaluation. */
static int save_model(struct trainer *t, enum folder_model which, const struct evaluation *v, struct error *e)
{
    struct run *r = &t->run;
    const char *dir;
    int rc = folder_model_begin(&t->folder, which, &dir, e);
    if (!rc) rc = weights_save(&r->weights, &r->model, &r->graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, dir, e);
    if (!rc && v) rc = best_write(dir, t->c, v, e);
    if (!rc) rc = folder_model_publish(&t->folder, which, e);
    return rc;
}

static int save_best(struct trainer *t, const struct evaluation *v, struct error *e)
{
    mem_pool_enter();
    int rc = save_model(t, FOLDER_BEST, v, e);
    mem_pool_leave();
    if (rc) return error_prepend(e, "saving the best model, of step %" PRId64, v->step);
    t->best = (struct best){v->step, v->loss};
    return PL_OK;
}

static int publish_model(struct trainer *t, struct error *e)
{
    return save_model(t, FOLDER_FINAL, NULL, e) ? error_prepend(e, "writing the model") : PL_OK;
}

/* --- beginning ----------------------------------------------------------------------------------- */

/* Keys that a resumed run may change; memory and device keys ask for a new plan. */
static bool may_change(enum config_key k)
{
    return k == KEY_train_out || k == KEY_train_steps || k == KEY_train_epochs || k == KEY_train_eval_every ||
           k == KEY_train_save_every || k == KEY_train_monitor_every || k == KEY_train_keep || k == KEY_train_keep_best || k == KEY_train_worst || k == KEY_data_validation ||
           k == KEY_data_threads || k == KEY_data_prefetch || k == KEY_data_max_bad;
}

/* Compares with the stored configuration; *plan_again when memory or device changed. */
static int compare_config(const struct config *c, const char *dir, bool *plan_again, struct error *e)
{
    char path[FOLDER_PATH];
    struct config stored;
    snprintf(path, sizeof path, "%s/config.yaml", dir);
    config_init(&stored);
    int rc = config_read(&stored, path, e);
    for (int k = 0; k < CONFIG_KEYS && !rc; k++) {
        if (config_same(c, &stored, k) || may_change(k)) continue;
        const char *name = config_key_name(k);
        if (k == KEY_data_train) {
            log_warn("resume: data.train changed; the run goes on with the new files from its position");
        } else if (!strncmp(name, "memory.", 7) || !strncmp(name, "device.", 7)) {
            log_note("resume: %s changed, so the plan is made again", name);
            *plan_again = true;
        } else {
            rc = error_set(e, PL_USAGE, "--resume: %s differs from the run in %s; restore it, or start a new run in another train.out",
                           name, dir);
        }
    }
    config_free(&stored);
    return rc;
}

static struct schedule make_schedule(const struct config *c, int64_t total)
{
    return (struct schedule){.kind = (enum schedule_kind)c->train_schedule, .warmup = c->train_warmup_steps, .total = total,
                             .gamma = c->train_step_gamma, .every = c->train_step_size,
                             .milestones = c->train_milestones.at, .n_milestones = c->train_milestones.n};
}

/* Steps are given, or follow from the samples that are left from the position on. A run
 * whose last step was a short one and that is given more epochs goes on behind it. */
static void measure_run(struct trainer *t)
{
    uint64_t E = (uint64_t)t->run.effective_batch;
    if (t->c->train_steps || !t->data.ops) {
        t->total = (uint64_t)t->c->train_steps;
        t->end = UINT64_MAX;
    } else {
        t->end = t->data.samples * (uint64_t)t->c->train_epochs;
        uint64_t left = t->end - min_u64(t->end, t->state.position);
        t->total = t->state.step + (left + E - 1) / E;
    }
    t->schedule = make_schedule(t->c, (int64_t)t->total);
}

static int open_data(struct trainer *t, struct error *e)
{
    int rc = feed_open(&t->data, t->c, &t->run, FEED_TRAIN, e);
    if (!rc && config_validates(t->c)) rc = feed_open(&t->validation, t->c, &t->run, FEED_VALIDATION, e);
    return rc;
}

/* On a resume the stored plan is followed, unless it cannot be: then we say why. */
static int make_plan(struct trainer *t, const struct train_options *o, bool plan_again, struct error *e)
{
    char stored[FOLDER_PATH];
    struct run_options ro = {.plan = o->plan, .train = true, .define = o->define};
    snprintf(stored, sizeof stored, "%s/plan.json", t->c->train_out);
    bool follow = o->resume && !plan_again && !o->plan && file_exists(stored);
    if (follow) ro.plan = stored;
    t->has_run = true;
    int rc = run_plan(&t->run, t->c, &ro, e);
    if (!rc || !follow) return rc;
    log_note("resume: the stored plan cannot be followed (%s); planning again", e->text);
    run_close(&t->run);
    ro.plan = o->plan;
    return run_plan(&t->run, t->c, &ro, e);
}

static int write_run_files(struct trainer *t, struct error *e)
{
    struct text text = {0};
    config_write(t->c, &text);
    int rc = folder_write(&t->folder, "config.yaml", text.at, text.n, e);
    text_free(&text);
    struct plan_note note = run_note(&t->run, true);
    note.storages = true;
    plan_write(&t->run.plan, &t->run.graph, &note, &text);
    if (!rc) rc = folder_write(&t->folder, "plan.json", text.at, text.n, e);
    text_free(&text);
    return rc;
}

/* Loads the newest checkpoint, if there is one; *found says so. */
static int load_checkpoint(struct trainer *t, bool *found, struct error *e)
{
    char path[FOLDER_PATH];
    int64_t step = -1;
    struct run *r = &t->run;
    int rc = folder_checkpoint_latest(&t->folder, &step, path, e);
    *found = !rc && step >= 0;
    if (!rc) rc = folder_metrics_cut(&t->folder, step < 0 ? 0 : step, e);
    if (rc || !*found) return rc;
    rc = state_load(path, &t->state, &r->graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, e);
    t->saved = step;
    if (!rc && t->state.data && t->state.data != t->data.fingerprint && t->data.fingerprint)
        log_warn("resume: the files of data.train are not those of the checkpoint; the run goes on with these from its position");
    if (!rc) log_note("resuming after step %" PRId64 " from %s", t->state.step, path);
    return rc ? error_prepend(e, "checkpoint %s", path) : PL_OK;
}

/* Two checkpoints or more at once, and the model beside an older one; the checkpoints
 * that are there already will make room. The best model has a place of its own, and one
 * where the next is written. */
static int require_space(struct trainer *t, struct error *e)
{
    uint64_t model = weights_bytes(&t->run.weights, &t->run.graph), each = model + state_bytes(&t->run.graph);
    int64_t there = 0;
    char best[FOLDER_PATH];
    int rc = folder_checkpoint_count(&t->folder, &there, e);
    int64_t more = max_i64(1, t->c->train_keep + 1 - there), models = 1;
    if (keeps_best(t->c)) models += folder_model_path(&t->folder, FOLDER_BEST, best) ? 1 : 2;
    return rc ? rc : folder_require_space(&t->folder, each * (uint64_t)more + model * (uint64_t)models, e);
}

static void find_best(struct trainer *t)
{
    char path[FOLDER_PATH];
    t->best = (struct best){-1, INFINITY};
    if (folder_model_path(&t->folder, FOLDER_BEST, path)) best_read(path, t->c, &t->best);
}

static int open_events(struct trainer *t, struct error *e)
{
    char path[FOLDER_PATH + 8];
    snprintf(path, sizeof path, "%s/tb", t->folder.dir);
    return events_open(&t->events, path, (int64_t)t->state.step, e);
}

static int reset_state(struct trainer *t, struct error *e)
{
    struct run *r = &t->run;
    t->state = (struct train_state){.seed = (uint64_t)t->c->train_seed};
    return state_reset(&r->graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, e);
}

/* What a step has to look at, and the scale that it begins with. */
static void find_outputs(struct trainer *t)
{
    tickets_begin(&t->tickets, &t->run);
    scaler_begin(&t->state, t->c, t->tickets.scaled);
    t->eval_loss = graph_find_output(&t->run.graph, PROGRAM_EVAL, "loss");
}

/* Training last: its loader reads ahead of the first step. */
static int start_data(struct trainer *t, struct error *e)
{
    t->state.data = t->data.fingerprint;
    int rc = t->validation.ops ? feed_start(&t->validation, &t->run, 0, 0, e) : PL_OK;
    return rc ? rc : feed_start(&t->data, &t->run, t->state.position, t->state.broken, e);
}

static int begin(struct trainer *t, const struct train_options *o, struct error *e)
{
    bool plan_again = false, found = false;
    int rc = config_check(t->c, (o->define ? 0 : CONFIG_NEEDS_MODEL) | CONFIG_NEEDS_DATA | CONFIG_NEEDS_TRAIN, e);
    if (!rc && o->resume) rc = compare_config(t->c, t->c->train_out, &plan_again, e);
    if (!rc) rc = make_plan(t, o, plan_again, e);
    if (!rc) rc = open_data(t, e);
    if (!rc) rc = folder_open(&t->folder, t->c->train_out, o->resume, e);
    if (rc) return rc;
    t->has_folder = true;
    /* Weights are loaded first in any case: constants, and what no checkpoint holds. */
    rc = run_start(&t->run, t->c->train_out, true, e);
    if (!rc && o->resume) rc = load_checkpoint(t, &found, e);
    if (!rc && !found) rc = reset_state(t, e);
    if (!rc) rc = start_data(t, e);
    if (!rc) measure_run(t);
    if (!rc) find_best(t);
    if (!rc) rc = require_space(t, e);
    if (!rc) rc = write_run_files(t, e);
    if (!rc) rc = open_events(t, e);
    return rc;
}

/* --- the loop ------------------------------------------------------------------------------------------ */

static bool stopping(const struct trainer *t) { return t->stopped || (t->o->signals && signals_received()); }

static const char *unit(const struct trainer *t) { return t->data.ops ? t->data.ops->unit : "tokens"; }

/* Memory at this step as members of its metrics, and in the log; "" when it is not due. */
static void report_memory(struct trainer *t, char *out, size_t room)
{
    int64_t every = t->c->train_monitor_every, step = (int64_t)t->state.step;
    struct memory_state m;
    out[0] = '\0';
    if (!every || (step != 1 && step % every)) return;
    monitor_read(&m, &t->run);
    monitor_members(&m, out, room);
    if (!t->o->progress) return;
    progress_break(&t->progress);
    monitor_log(&m, &t->run, step);
}

/* As JSON has them: what is not finite, in a skipped step, is null. */
static const char *number(double x, char out[32])
{
    snprintf(out, 32, isfinite(x) ? "%.9g" : "null", x);
    return out;
}

static int report_step(struct trainer *t, const struct train_event *v, struct error *e)
{
    char memory[768];
    double speed = v->units / v->seconds;
    char per_second[32];
    snprintf(per_second, sizeof per_second, "%s_per_second", unit(t));
    const struct scalar scalars[] = {{"loss", v->loss}, {"learning_rate", v->learning_rate}, {"grad_norm", v->gradient_norm}, {per_second, speed},
                                     {"loss_scale", v->loss_scale}};
    char loss[32], norm[32], scale[80] = "";
    if (t->tickets.scaled) snprintf(scale, sizeof scale, ",\"loss_scale\":%.9g,\"skipped_steps\":%" PRIu64, v->loss_scale, t->state.skipped);
    if (t->o->progress) progress_step(&t->progress, (int64_t)t->state.step, v->loss, v->learning_rate, v->gradient_norm, v->units, v->seconds);
    report_memory(t, memory, sizeof memory);
    int rc = folder_metrics(&t->folder, e,
                            "{\"step\":%" PRId64 ",\"loss\":%s,\"learning_rate\":%.9g,\"grad_norm\":%s,\"seconds\":%.6f,"
                            "\"%s\":%.*f,\"samples\":%" PRIu64 ",\"arena_bytes\":%" PRIu64 "%s%s}",
                            t->state.step, number(v->loss, loss), v->learning_rate, number(v->gradient_norm, norm), v->seconds, per_second,
                            t->data.ops == &tokens_feed ? 1 : 3, speed, t->state.position, plan_arena(&t->run.plan), scale, memory);
    return rc ? rc : events_write(&t->events, (int64_t)t->state.step, scalars, COUNT(scalars) - !t->tickets.scaled, e);
}

/* Of masks the evaluation before the first step too: what training starts from. */
static int evaluate_first(struct trainer *t, struct error *e)
{
    struct evaluation found;
    if (!t->has_scores || t->state.step || t->o->resume || !t->c->train_eval_every) return PL_OK;
    int rc = evaluate(t, &found, e);
    return rc ? rc : report_evaluation(t, &found, e);
}

static bool save_due_at(const struct trainer *t, uint64_t step)
{
    return t->c->train_save_every && (int64_t)step % t->c->train_save_every == 0;
}

static int after_step(struct trainer *t, const struct train_event *v, struct error *e)
{
    int rc = report_step(t, v, e);
    if (!rc && evaluation_due(t)) {
        struct evaluation found;
        rc = evaluate(t, &found, e);
        if (!rc) rc = report_evaluation(t, &found, e);
        if (!rc && keeps_best(t->c) && found.loss < t->best.loss) rc = save_best(t, &found, e);
    }
    if (!rc && t->o->on_step) t->stopped = t->o->on_step(t->o->user, v) != 0;
    bool last = t->state.step == t->total, stop = stopping(t) && !tickets_pending(&t->tickets);
    if (!rc && (save_due_at(t, t->state.step) || last || stop)) rc = save_checkpoint(t, e);
    return rc;
}

/* The next step may be asked for before the last one that was is taken. One that a callback looks at, and may end the run
 * with, is the last one. */
static bool may_overlap(const struct trainer *t)
{
    const uint64_t step = steps_asked(t);
    return tickets_overlap(&t->tickets) && !t->o->on_step && step < t->total && !evaluation_due_at(t, step) && !save_due_at(t, step);
}

/* Takes steps until `left` are open, and does what each is followed by. */
static int take_steps(struct trainer *t, uint32_t left, struct train_event *v, struct error *e)
{
    int rc = PL_OK;
    while (tickets_pending(&t->tickets) > left && !rc) {
        rc = take_step(t, v, e);
        if (!rc) rc = after_step(t, v, e);
    }
    return rc;
}

/* One more step, and what is known by then of those before. What went wrong with an earlier one comes first. */
static int go_on(struct trainer *t, struct train_event *v, struct error *e)
{
    struct error failed;
    int asked = ask_step(t, &failed);
    int rc = take_steps(t, !asked && may_overlap(t) ? 1 : 0, v, e);
    if (rc || !asked) return rc;
    *e = failed;
    return asked;
}

static int interrupted(const struct trainer *t, const char *command, struct error *e)
{
    return error_set(e, t->stopped ? PL_STOPPED : PL_FAIL, "stopped by %s after step %" PRIu64 " of %" PRIu64 "; saved. Go on with: %s",
                     t->stopped ? "the step callback" : signals_name(signals_received()), t->state.step, t->total, command);
}

static int loop(struct trainer *t, const struct train_options *o, struct train_summary *out, struct error *e)
{
    struct train_event v = {.loss = NAN};
    double begun = clock_seconds();
    uint64_t allocations = 0;
    int rc = PL_OK;
    out->first_step = (int64_t)t->state.step;
    progress_begin(&t->progress, (int64_t)t->state.step, (int64_t)t->total, plan_arena(&t->run.plan), unit(t));
    mem_pool_take(SAVE_POOL + t->run.graph.params.n * SAVE_POOL_PER_WEIGHT);
    t->has_pool = true;
    if (t->validation.ops) t->has_scores = mask_scores_open(&t->scores, &t->run, &t->validation, PROGRAM_EVAL, o->worst ? (uint32_t)t->c->train_worst : 0);
    rc = evaluate_first(t, e);
    while (t->state.step < t->total && !rc && !stopping(t)) {
        if (!allocations) allocations = mem_allocations();
        rc = go_on(t, &v, e);
    }
    if (!rc) rc = take_steps(t, 0, &v, e);
    progress_break(&t->progress);
    if (rc) return rc;
    if (t->state.step < t->total) {
        /* A signal between two steps, or before the first one, found nobody saving. */
        if (t->saved != (int64_t)t->state.step && (rc = save_checkpoint(t, e))) return rc;
        return interrupted(t, o->command, e);
    }
    out->steps = (int64_t)t->state.step;
    out->loss = v.loss;
    out->seconds = clock_seconds() - begun;
    out->units_per_second = t->units / out->seconds;
    out->unit = unit(t);
    out->broken_samples = t->state.broken;
    out->loss_scale = t->state.scale;
    out->skipped_steps = t->state.skipped;
    out->allocations = allocations ? mem_allocations() - allocations : 0;
    if (t->has_scores && o->worst) {
        out->worst = t->scores.scores.n_worst;
        memcpy(o->worst, t->scores.scores.worst, out->worst * sizeof *o->worst);
    }
    return publish_model(t, e);
}

void trainer_close(struct trainer *t)
{
    if (!t) return;
    feed_close(&t->data);
    feed_close(&t->validation);
    if (t->has_scores) mask_scores_close(&t->scores);
    if (t->has_run) run_close(&t->run);
    events_close(&t->events);
    if (t->has_folder) folder_close(&t->folder);
    if (t->has_pool) mem_pool_drop();
    mem_free(t);
}

/* --- the parts, for others ------------------------------------------------------------------------------ */

struct trainer *trainer_open(const struct config *c, const struct train_options *o)
{
    struct trainer *t = mem_alloc(sizeof *t);
    t->c = c;
    t->o = o;
    t->eval = NAN;
    t->saved = -1;
    return t;
}

int trainer_plan(struct trainer *t, struct error *e)
{
    if (t->has_run) run_close(&t->run);
    t->has_run = false;
    return make_plan(t, t->o, false, e);
}

int trainer_start(struct trainer *t, struct error *e)
{
    int rc = run_start(&t->run, NULL, true, e);
    if (!rc) rc = reset_state(t, e);
    if (!rc) measure_run(t);
    if (!rc) rc = run_fill_ragged(&t->run, e);
    if (!rc) find_outputs(t);
    return rc;
}

struct run *trainer_run(struct trainer *t) { return &t->run; }
void trainer_count(struct trainer *t, double count) { t->count = count; }

int trainer_forward(struct trainer *t, id output, void *to, struct error *e)
{
    struct step_block b = step_block(t, own_count(t));
    int rc = run_put_step(&t->run, &b, e);
    return rc ? rc : run_forward(&t->run, output, to, e);
}

/* --- the whole ------------------------------------------------------------------------------------------ */

int train_run(const struct config *c, const struct train_options *o, struct train_summary *out, struct error *e)
{
    struct trainer *t = trainer_open(c, o);
    *out = (struct train_summary){.eval_loss = NAN};
    if (o->signals) signals_install();
    int rc = begin(t, o, e);
    if (rc == PL_NOFIT) out->smallest_budget = t->run.plan.smallest;
    if (rc && t->has_folder && !o->resume) {
        folder_abandon(&t->folder);
        t->has_folder = false;
    }
    if (!rc) {
        find_outputs(t);
        out->arena_bytes = plan_arena(&t->run.plan);
        out->allocated_bytes = t->run.device.bytes[SPACE_DEVICE];
        out->host_bytes = t->run.device.bytes[SPACE_HOST];
        snprintf(out->model, sizeof out->model, "%s/model", c->train_out);
        rc = loop(t, o, out, e);
        out->eval_loss = t->eval;
        out->best_step = t->best.step;
        out->best_loss = isfinite(t->best.loss) ? t->best.loss : NAN;
    }
    trainer_close(t);
    return rc;
}
