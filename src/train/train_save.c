/*
 * train_save.c: saves checkpoints and models, and loads them in a resumed run.
 *
 *     checkpoints/step-N    weights and state             every train.save_every steps, at the end, when interrupted
 *     checkpoints/best      a model and its evaluation    when an evaluation is the best so far (train.best)
 *     model                 a model                       at the end
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

static bool keeps_best(const struct config *c)
{
    return c->train_keep_best && c->train_eval_every;
}

/* --- with other ranks ------------------------------------------------------------------------- */

/* True if weights or optimizer state are divided among ranks: rank 0 writes all, and gets the parts
 * of the others. */
static bool is_divided(const struct trainer *t)
{
    const struct graph *g = &t->run.planned.graph;
    for (id s = 1; s < g->storages.n && t->o->ranks; s++)
        if (g->storages.at[s].shard) return true;
    return false;
}

static struct transfer staging_of(struct trainer *t)
{
    struct transfer x;
    transfer_init(&x, &t->run.device, &t->run.tape, run_staging(&t->run), PLAN_STAGING);
    return x;
}

/* All ranks come to a save, or hear why one of them does not. */
static int meet(struct trainer *t, struct error *e) { return is_divided(t) ? agree_on(t->o->ranks, PL_OK, e) : PL_OK; }

/* The others, while rank 0 saves. */
static int serve(struct trainer *t, struct error *e)
{
    if (!is_divided(t)) return PL_OK;
    struct transfer x = staging_of(t);
    mem_pool_enter();
    int rc = transfer_serve(&x, "saving", e);
    mem_pool_leave();
    return rc;
}

/* Rank 0, when it has saved or failed to: `rc`, and `e` with it. */
static int release(struct trainer *t, int rc, struct error *e)
{
    struct error failed = {0};
    if (!is_divided(t)) return rc;
    struct transfer x = staging_of(t);
    if (!transfer_release(&x, &failed) || rc) return rc;
    *e = failed;
    return e->code;
}

/* --- saving ----------------------------------------------------------------------------------- */

/* The model, with the tokenizer that it was trained with. */
static int save_weights(struct trainer *t, const char *dir, struct error *e)
{
    struct run *r = &t->run;
    int rc = weights_save(&r->weights, &r->planned.model, &r->planned.graph, &r->device, &r->tape, run_staging(r),
                          PLAN_STAGING, dir, e);
    return rc ? rc : text_files_save(&t->text, dir, e);
}

bool trainer_save_due(const struct trainer *t, uint64_t step)
{
    return t->c->train_save_every && (int64_t)step % t->c->train_save_every == 0;
}

int trainer_save(struct trainer *t, struct error *e)
{
    struct run *r = &t->run;
    const char *dir;
    int rc = meet(t, e);
    if (rc) return rc;
    if (!trainer_leads(t)) {
        t->saved = (int64_t)t->state.step;
        return serve(t, e);
    }
    mem_pool_enter();
    rc = folder_checkpoint_begin(&t->folder, (int64_t)t->state.step, &dir, e);
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
static int save_model(struct trainer *t, enum folder_model which, const struct evaluation *v, struct error *e)
{
    const char *dir;
    int rc = folder_model_begin(&t->folder, which, &dir, e);
    if (!rc) rc = save_weights(t, dir, e);
    if (!rc && v) rc = best_write(dir, t->c, v, e);
    return rc ? rc : folder_model_publish(&t->folder, which, e);
}

int trainer_keep_best(struct trainer *t, const struct evaluation *v, struct error *e)
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
    int rc = meet(t, e);
    if (rc) return rc;
    if (!trainer_leads(t)) return serve(t, e);
    return release(t, save_model(t, FOLDER_FINAL, NULL, e), e) ? error_prepend(e, "writing the model") : PL_OK;
}

static int load_state(struct trainer *t, const char *path, struct error *e)
{
    struct run *r = &t->run;
    return state_load(path, &t->state, &r->planned.graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, e);
}

/* The newest checkpoint cannot be read: names an older one that can be, and the command. The
 * user decides to lose the steps. */
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

/* Frozen weights and the shape of the model are not in a checkpoint: they are read from model.path
 * again, and must be those that the run began with. */
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

/* Rank 0 reads the checkpoint; the others get their parts from it. */
static int load_latest(struct trainer *t, struct error *e)
{
    char path[FOLDER_PATH];
    int64_t step = -1;
    int rc = folder_checkpoint_latest(&t->folder, &step, path, e);
    if (rc) return rc;
    CHECK(step >= 0, "folder_open found a checkpoint");
    if (load_state(t, path, e)) return advise_older(t, step, path, e);
    t->saved = step;
    rc = check_model(t, e);
    if (!rc && t->state.data && t->state.data != t->data.fingerprint && t->data.fingerprint)
        log_warn("resume: the files of data.train are not those of the checkpoint; the run continues with these from "
                 "its position");
    if (!rc) log_note("resuming after step %" PRId64 " from %s", t->state.step, path);
    return rc;
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

/* The checkpoints that will be there at most: train.keep, which may be more than the run writes. */
static int64_t checkpoints_kept(const struct trainer *t, int64_t there)
{
    const int64_t left = max_i64(0, (int64_t)t->total - t->state.step),
                  writes = 1 + (t->c->train_save_every ? left / t->c->train_save_every : 0);
    return min_i64(t->c->train_keep, there + writes + 1);
}

/* Descriptors for what reading opens later, and for saving, which would otherwise fail after the
 * steps are done. */
static int require_descriptors(const struct trainer *t, struct error *e)
{
    enum { SAVING = 16, THREAD = 2 };
    const uint32_t tars = t->c->data_format == FORMAT_CONVERSATIONS ? image_files_descriptors() : 0;
    return files_spare(SAVING + tars + THREAD * (uint32_t)t->c->data_threads, e);
}

/* Disk space for at least two checkpoints at a time, and for the model beside an older one;
 * existing checkpoints will be removed. The best model needs space for itself and for its
 * successor. */
int trainer_require_space(struct trainer *t, struct error *e)
{
    uint64_t model = weights_bytes(&t->run.weights, &t->run.planned.graph) + t->text.bytes,
             each = model + state_bytes(&t->run.planned.graph);
    int64_t there = 0;
    char best[FOLDER_PATH];
    int rc = require_descriptors(t, e);
    if (!rc) rc = folder_checkpoint_count(&t->folder, &there, e);
    int64_t more = max_i64(1, checkpoints_kept(t, there) + 1 - there), models = 1;
    if (keeps_best(t->c)) models += folder_model_path(&t->folder, FOLDER_BEST, best) ? 1 : 2;
    return rc ? rc : folder_require_space(&t->folder, each * (uint64_t)more + model * (uint64_t)models, e);
}
