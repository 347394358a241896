/*
 * loop.c: the whole training loop, and what a session writes: model folders, training state.
 */
#include "plimsoll.h"

#include <stdio.h>
#include <string.h>

#include "folder/weights.h"
#include "io/file.h"
#include "io/temporary.h"
#include "lib/session.h"

/* --- saving --------------------------------------------------------------------------------- */

static int require_empty(struct pl_session *s, const char *call, const char *dir)
{
    struct names all;
    if (!dir || !*dir) return error_set(&s->error, PL_USAGE, "%s: the folder has no name", call);
    if (strlen(dir) > 4000) return error_set(&s->error, PL_USAGE, "%s: a path of %zu bytes", call, strlen(dir));
    if (!file_exists(dir) && !dir_exists(dir)) return PL_OK;
    if (!dir_exists(dir)) return error_set(&s->error, PL_USAGE, "%s: %s is not a folder", call, dir);
    if (dir_list(dir, &all, &s->error)) return s->error.code;
    uint32_t n = all.n;
    names_free(&all);
    return n ? error_set(&s->error, PL_USAGE, "%s: %s is not empty; give a new folder", call, dir) : PL_OK;
}

/* Fills a new folder under a temporary name and renames it: a folder of that name is complete. */
static int save(struct pl_session *s, const char *call, const char *dir, bool state)
{
    struct error *e = &s->error;
    struct run *r = session_run(s);
    struct temporary t;
    char path[4100];
    if (session_settled(s, call) || require_empty(s, call, dir)) return e->code;
    size_t n = (size_t)snprintf(path, sizeof path, "%s", dir);
    while (n > 1 && path[n - 1] == '/') path[--n] = '\0';
    int rc = temporary_folder(&t, path, e);
    if (!rc)
        rc = state ? trainer_write_state(s->trainer, t.path, e)
                   : weights_save(&r->weights, &r->planned.model, &r->planned.graph, &r->device, &r->tape,
                                  run_staging(r), PLAN_STAGING, t.path, e);
    if (!rc) rc = temporary_keep(&t, path, true, e);
    temporary_drop(&t);
    if (rc) return error_prepend(e, "%s", call);
    snprintf(s->model, sizeof s->model, "%s", path);
    return PL_OK;
}

int pl_save(struct pl_session *s, const char *dir)
{
    ENTER(s);
    return session_require(s, STAGE_STARTED, "pl_save") ? s->error.code : save(s, "pl_save", dir, false);
}

int pl_save_state(struct pl_session *s, const char *dir)
{
    ENTER(s);
    return session_require(s, STAGE_STARTED, "pl_save_state") ? s->error.code : save(s, "pl_save_state", dir, true);
}

int pl_load_state(struct pl_session *s, const char *dir)
{
    ENTER(s);
    if (session_settled(s, "pl_load_state")) return s->error.code;
    if (!dir) return error_set(&s->error, PL_USAGE, "pl_load_state: the folder is NULL");
    if (trainer_read_state(s->trainer, dir, &s->error)) return error_prepend(&s->error, "pl_load_state");
    s->steps = trainer_steps(s->trainer);
    return PL_OK;
}

const char *pl_model_path(const struct pl_session *s) { return s ? s->model : ""; }

/* --- the whole loop ------------------------------------------------------------------------- */

int pl_on_step(struct pl_session *s, pl_step_callback callback, void *user)
{
    ENTER(s);
    s->on_step = callback;
    s->on_step_user = user;
    return PL_OK;
}

/* The saves of a run use a memory pool that exists once per process (mem_pool_create). */
static bool run_in_process;

static int train(struct pl_session *s, bool resume, const char *call)
{
    struct train_summary summary;
    struct error e = {0};
    if (run_in_process)
        return error_set(&s->error, PL_USAGE,
                         "%s: another session's run is active in this process; only one at a time is possible", call);
    if (s->stage == STAGE_STARTED)
        return error_set(&s->error, PL_USAGE,
                         "%s: the session is started, to be driven by pl_step; use another session", call);
    if (s->build && s->config.model_preset)
        return error_set(&s->error, PL_USAGE, "%s: model.preset is set, and pl_define gave a model: remove one of them",
                         call);
    struct train_options o = {.resume = resume, .command = "pl_resume", .define = s->build ? &s->definition : NULL,
                              .on_step = session_pass_event, .user = s,
                              .progress = s->on_log != NULL};
    session_evict(s); /* the budget is for one of them */
    s->model[0] = '\0';
    s->steps = 0;
    s->busy = run_in_process = true;
    int rc = train_run(&s->config, &o, &summary, &e);
    s->busy = run_in_process = false;
    if (rc == PL_FAIL && atomic_load(&s->cancelled)) rc = e.code = PL_STOPPED; /* before the first step */
    s->error = e;
    if (!rc) snprintf(s->model, sizeof s->model, "%s", summary.model);
    if (rc != PL_STOPPED) return rc;
    /* a checkpoint is a model folder too */
    snprintf(s->model, sizeof s->model, "%s/checkpoints/step-%lld", s->config.train_out, (long long)s->steps);
    if (!s->config.train_out || !dir_exists(s->model)) s->model[0] = '\0';
    return rc;
}

int pl_train(struct pl_session *s)
{
    ENTER(s);
    return train(s, false, "pl_train");
}

int pl_resume(struct pl_session *s)
{
    ENTER(s);
    return train(s, true, "pl_resume");
}
