/*
 * step.c: a started session: inputs, steps, outputs, parameters, saving, the whole loop.
 *
 * Invariant: all inputs of a started session are in range before a step reads them. After pl_start
 * only pl_save allocates memory, which it frees again.
 */
#include "plimsoll.h"

#include <math.h>
#include <unistd.h>

#include "batch/writer.h"
#include "io/file.h"
#include "lib/session.h"
#include "folder/transfer.h"
#include "folder/weights.h"
#include "io/temporary.h"

static struct run *run_of(const struct pl_session *s) { return trainer_run(s->trainer); }

/* Begins a call that needs a started session. */
static bool started(struct pl_session *s, const char *call)
{
    return session_enter(s) && !session_require(s, STAGE_STARTED, call);
}

/* --- starting ---------------------------------------------------------------------- */

static int list_inputs(struct pl_session *s)
{
    const struct run *r = run_of(s);
    const struct graph *g = &r->planned.graph;
    for (id k = 1; k < g->storages.n; k++) {
        struct session_input x = {.name = graph_name(g, g->storages.at[k].name)};
        if (g->storages.at[k].kind != KIND_INPUT || !planned_input(&r->planned, x.name, &x.is)) continue;
        planned_input_ids(&r->planned, &x.is);
        x.idle = !planned_input_used(&r->planned, &x.is);
        x.written = x.idle || !strcmp(x.name, "samples"); /* the run fills "samples" itself */
        vec_push(&s->inputs, x);
    }
    return PL_OK;
}

/* Checks that the number of steps is set for a schedule that ends. */
static int check_schedule(struct pl_session *s)
{
    if (s->config.train_schedule == SCHEDULE_CONSTANT || s->config.train_steps) return PL_OK;
    return error_set(&s->error, PL_USAGE,
                     "pl_start: train.schedule ends with the run: set train.steps, or train.schedule constant");
}

/* Hands the counts that were set to the model, which must have them: a count without a name it may
 * lack. */
static int apply_count(struct pl_session *s, const struct session_count *x)
{
    const struct graph *g = &run_of(s)->planned.graph;
    char known[512] = "";
    if (trainer_count(s->trainer, x->name, x->count) || !*x->name || !x->count) return PL_OK;
    for (uint32_t k = 0; k < g->n_counts; k++) {
        size_t n = strlen(known);
        if (*graph_count_name(g, k))
            snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", graph_count_name(g, k));
    }
    return error_set(&s->error, PL_USAGE, "pl_set_count_of: no loss of the model is divided by a count %s; %s%s",
                     x->name, *known ? "it has: " : "it has no named counts", known);
}

static int apply_counts(struct pl_session *s)
{
    for (uint32_t i = 0; i < s->counts.n; i++)
        if (apply_count(s, &s->counts.at[i])) return s->error.code;
    return PL_OK;
}

int pl_start(struct pl_session *s)
{
    if (!session_enter(s)) return PL_USAGE;
    if (s->stage == STAGE_STARTED) return error_set(&s->error, PL_USAGE, "pl_start: the session is started already");
    if (check_schedule(s) || session_plan(s) || apply_counts(s)) return s->error.code;
    session_drop_generator(s); /* the budget is for one of the two */
    if (trainer_start(s->trainer, &s->error)) {
        /* A partly opened run is closed with the trainer; the options are kept. */
        trainer_close(s->trainer);
        s->trainer = NULL;
        s->stage = STAGE_OPTIONS;
        return s->error.code;
    }
    s->stage = STAGE_STARTED;
    s->steps = 0;
    return list_inputs(s);
}

/* --- inputs ----------------------------------------------------------------------------- */

static struct session_input *find_input(struct pl_session *s, const char *name)
{
    char known[512] = "";
    for (uint32_t i = 0; i < s->inputs.n; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%.60s", n ? ", " : "", s->inputs.at[i].name);
        if (!strcmp(s->inputs.at[i].name, name)) return &s->inputs.at[i];
    }
    error_set(&s->error, PL_USAGE, "pl_write_input: the model has no input %.100s; it has: %s", name, known);
    return NULL;
}

/* Returns the bytes of the whole effective batch. */
static uint64_t input_bytes(const struct pl_session *s, const struct session_input *x)
{
    return x->is.sample * (uint64_t)(x->is.axis == INPUT_SHARED ? 1 : run_of(s)->planned.effective_batch);
}

/* Rejects invalid ids, because kernels do not check ids. */
static int check_ids(struct pl_session *s, const struct session_input *x, const void *data)
{
    int64_t n = x->is.below ? (int64_t)(input_bytes(s, x) / 4) : 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t v;
        memcpy(&v, (const char *)data + i * 4, 4);
        if ((v < 0 || v >= x->is.below) && !(x->is.ignores && v == -100))
            return error_set(&s->error, PL_USAGE, "pl_write_input: element %lld of %s is %d, expected 0 to %lld%s",
                             (long long)i, x->name, v, (long long)x->is.below - 1, x->is.ignores ? ", or -100" : "");
    }
    return PL_OK;
}

int pl_write_input(struct pl_session *s, const char *name, const void *data, uint64_t bytes)
{
    if (!started(s, "pl_write_input")) return PL_USAGE;
    if (!name || !data) return error_set(&s->error, PL_USAGE, "pl_write_input: the %s is NULL", name ? "data" : "name");
    struct session_input *x = find_input(s, name);
    if (!x) return s->error.code;
    if (x->idle) return PL_OK;
    struct run *r = run_of(s);
    uint64_t want = input_bytes(s, x);
    if (bytes != want && x->is.axis == INPUT_SHARED)
        return error_set(&s->error, PL_USAGE, "pl_write_input: %s: %llu bytes, expected %llu, once for all samples",
                         name, (unsigned long long)bytes, (unsigned long long)want);
    if (bytes != want)
        return error_set(&s->error, PL_USAGE,
                         "pl_write_input: %s: %llu bytes, expected %llu: %llu for each of %d samples", name,
                         (unsigned long long)bytes, (unsigned long long)want, (unsigned long long)x->is.sample,
                         r->planned.effective_batch);
    if (check_ids(s, x, data) || batch_write_all(r, name, data, &s->error)) return s->error.code;
    x->written = true;
    return PL_OK;
}

static int check_written(struct pl_session *s, const char *call)
{
    for (uint32_t i = 0; i < s->inputs.n; i++)
        if (!s->inputs.at[i].written)
            return error_set(&s->error, PL_USAGE, "%s: input %s was never written; call pl_write_input first", call,
                             s->inputs.at[i].name);
    return PL_OK;
}

static int set_count(struct pl_session *s, const char *call, const char *name, double count)
{
    struct session_count x = {.count = count};
    uint32_t i = 0;
    if (!(count >= 0 && isfinite(count)) || (count > 0 && !isfinite((float)(1 / count))))
        return error_set(&s->error, PL_USAGE, "%s: %g, expected a number above 0, or 0 for the default", call, count);
    if (strlen(name) >= sizeof x.name)
        return error_set(&s->error, PL_USAGE, "%s: a name of %zu bytes, at most %zu", call, strlen(name),
                         sizeof x.name - 1);
    memcpy(x.name, name, strlen(name));
    if (s->stage == STAGE_STARTED && apply_count(s, &x)) return s->error.code;
    while (i < s->counts.n && strcmp(s->counts.at[i].name, name)) i++;
    if (i == s->counts.n) vec_push(&s->counts, x);
    s->counts.at[i] = x;
    return PL_OK;
}

int pl_set_count(struct pl_session *s, double count)
{
    return session_enter(s) ? set_count(s, "pl_set_count", "", count) : PL_USAGE;
}

int pl_set_count_of(struct pl_session *s, const char *name, double count)
{
    if (!session_enter(s)) return PL_USAGE;
    if (!name || !*name) return error_set(&s->error, PL_USAGE, "pl_set_count_of: the count has no name");
    return set_count(s, "pl_set_count_of", name, count);
}

/* --- steps and outputs --------------------------------------------------------------------- */

int pl_step(struct pl_session *s, double *loss, double *gradient_norm)
{
    struct train_event v;
    if (!started(s, "pl_step")) return PL_USAGE;
    if (check_written(s, "pl_step") || trainer_step(s->trainer, &v, &s->error)) return s->error.code;
    s->steps = v.step;
    if (loss) *loss = v.loss;
    if (gradient_norm) *gradient_norm = v.gradient_norm;
    return PL_OK;
}

int64_t pl_steps(const struct pl_session *s) { return s ? s->steps : 0; }

static id find_output(struct pl_session *s, const char *call, const char *name)
{
    const struct graph *g = &run_of(s)->planned.graph;
    char known[512] = "";
    id found = graph_find_output(g, PROGRAM_EVAL, name);
    for (uint32_t i = 0; i < g->outputs.n && !found; i++) {
        size_t n = strlen(known);
        if (g->outputs.at[i].program == PROGRAM_EVAL)
            snprintf(known + n, sizeof known - n, "%s%.60s", n ? ", " : "", graph_name(g, g->outputs.at[i].name));
    }
    if (!found) error_set(&s->error, PL_USAGE, "%s: the model has no output %.100s; it has: %s", call, name, known);
    return found;
}

int pl_evaluate(struct pl_session *s, double *loss)
{
    float x = 0;
    if (!started(s, "pl_evaluate")) return PL_USAGE;
    id output = find_output(s, "pl_evaluate", "loss");
    if (!output || check_written(s, "pl_evaluate") || trainer_forward(s->trainer, output, &x, &s->error))
        return s->error.code;
    if (loss) *loss = x;
    return PL_OK;
}

int pl_read_output(struct pl_session *s, const char *name, void *data, uint64_t bytes)
{
    if (!started(s, "pl_read_output")) return PL_USAGE;
    if (!name || !data) return error_set(&s->error, PL_USAGE, "pl_read_output: the %s is NULL", name ? "data" : "name");
    id output = find_output(s, "pl_read_output", name);
    if (!output || check_written(s, "pl_read_output")) return s->error.code;
    uint64_t want = (uint64_t)run_forward_elements(run_of(s), output) * 4;
    if (bytes != want)
        return error_set(&s->error, PL_USAGE, "pl_read_output: %s: the buffer has %llu bytes, expected %llu", name,
                         (unsigned long long)bytes, (unsigned long long)want);
    return trainer_forward(s->trainer, output, data, &s->error);
}

/* --- parameters ------------------------------------------------------------------------------- */

int pl_parameter_at(struct pl_session *s, int64_t index, struct pl_parameter *out)
{
    if (out) memset(out, 0, sizeof *out);
    if (!session_enter(s) || session_require(s, STAGE_PLANNED, "pl_parameter_at")) return PL_USAGE;
    if (!out) return error_set(&s->error, PL_USAGE, "pl_parameter_at: out is NULL");
    const struct graph *g = &run_of(s)->planned.graph;
    int64_t at = 0;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const struct tensor *t = tensor_at(g, p->tensor);
        if (weight_is_constant(g, p) || at++ != index) continue;
        *out = (struct pl_parameter){.name = graph_name(g, t->name),
                                     .rank = t->rank,
                                     .elements = (uint64_t)tensor_elements(t),
                                     .frozen = p->frozen};
        memcpy(out->dim, t->dim, (size_t)t->rank * sizeof *t->dim);
        return PL_OK;
    }
    return error_set(&s->error, PL_USAGE, "pl_parameter_at: %lld, the model has %lld parameters", (long long)index,
                     (long long)at);
}

/* Returns the parameter of that name, if `bytes` is its size in f32; NULL, with an error: it is
 * not. */
static const struct param *find_parameter(struct pl_session *s, const char *call, const char *name, const void *data,
                                          uint64_t bytes)
{
    const struct graph *g = &run_of(s)->planned.graph;
    const struct param *p = NULL;
    if (!name || !data) {
        error_set(&s->error, PL_USAGE, "%s: the %s is NULL", call, name ? "data" : "name");
        return NULL;
    }
    for (uint32_t i = 0; i < g->params.n && !p; i++)
        if (!weight_is_constant(g, &g->params.at[i]) && !strcmp(weight_name(g, &g->params.at[i]), name))
            p = &g->params.at[i];
    uint64_t want = p ? (uint64_t)tensor_elements(tensor_at(g, p->tensor)) * sizeof(float) : 0;
    if (!p)
        error_set(&s->error, PL_USAGE, "%s: the model has no parameter %.200s; pl_parameter_at lists them", call, name);
    else if (bytes != want)
        error_set(&s->error, PL_USAGE, "%s: %s: %llu bytes, expected %llu", call, name, (unsigned long long)bytes,
                  (unsigned long long)want);
    return bytes == want ? p : NULL;
}

int pl_read_parameter(struct pl_session *s, const char *name, float *data, uint64_t bytes)
{
    if (!started(s, "pl_read_parameter")) return PL_USAGE;
    const struct param *p = find_parameter(s, "pl_read_parameter", name, data, bytes);
    if (!p) return s->error.code;
    struct run *r = run_of(s);
    struct transfer x;
    int64_t elements = (int64_t)(bytes / sizeof(float));
    transfer_init(&x, &r->device, &r->tape, run_staging(r), PLAN_STAGING);
    for (int64_t at = 0; at < elements; at += x.room) {
        int64_t n = min_i64(x.room, elements - at);
        const void *from;
        if (transfer_get(&x, p->master, DT_F32, at, n, &from, NULL, &s->error)) return s->error.code;
        memcpy(data + at, from, (size_t)n * sizeof *data);
    }
    return PL_OK;
}

int pl_write_parameter(struct pl_session *s, const char *name, const float *data, uint64_t bytes)
{
    if (!started(s, "pl_write_parameter")) return PL_USAGE;
    const struct param *p = find_parameter(s, "pl_write_parameter", name, data, bytes);
    if (!p) return s->error.code;
    struct run *r = run_of(s);
    struct transfer x;
    int64_t elements = (int64_t)(bytes / sizeof(float)), bad_at = transfer_nonfinite(data, DT_F32, elements);
    if (bad_at >= 0)
        return error_set(&s->error, PL_USAGE, "pl_write_parameter: %s: element %lld is %g, expected finite numbers",
                         name, (long long)bad_at, (double)data[bad_at]);
    transfer_init(&x, &r->device, &r->tape, run_staging(r), PLAN_STAGING);
    for (int64_t at = 0; at < elements; at += x.room) {
        int64_t n = min_i64(x.room, elements - at);
        struct bad bad;
        memcpy(x.first, data + at, (size_t)n * sizeof *data);
        if (transfer_put(&x, p, DT_F32, at, n, &bad, &s->error)) return s->error.code;
        if (bad.index >= 0)
            return error_set(&s->error, PL_USAGE, "pl_write_parameter: %s: element %lld, %g, is not finite as %s", name,
                             (long long)bad.index, bad.value, dtype_name(bad.as));
    }
    return PL_OK;
}

/* --- saving ----------------------------------------------------------------------------------- */

static int require_empty(struct pl_session *s, const char *dir)
{
    struct names all;
    if (!file_exists(dir) && !dir_exists(dir)) return PL_OK;
    if (!dir_exists(dir)) return error_set(&s->error, PL_USAGE, "pl_save: %s is not a folder", dir);
    if (dir_list(dir, &all, &s->error)) return s->error.code;
    uint32_t n = all.n;
    names_free(&all);
    return n ? error_set(&s->error, PL_USAGE, "pl_save: %s is not empty; give a new folder", dir) : PL_OK;
}

/* Writes under a temporary name and renames: a folder of that name is complete. */
int pl_save(struct pl_session *s, const char *dir)
{
    if (!started(s, "pl_save")) return PL_USAGE;
    if (!dir || !*dir) return error_set(&s->error, PL_USAGE, "pl_save: the folder has no name");
    if (strlen(dir) > 4000) return error_set(&s->error, PL_USAGE, "pl_save: a path of %zu bytes", strlen(dir));
    if (require_empty(s, dir)) return s->error.code;
    struct run *r = run_of(s);
    struct error *e = &s->error;
    struct temporary t;
    char path[4100];
    size_t n = (size_t)snprintf(path, sizeof path, "%s", dir);
    while (n > 1 && path[n - 1] == '/') path[--n] = '\0';
    int rc = temporary_folder(&t, path, e);
    if (!rc)
        rc = weights_save(&r->weights, &r->planned.model, &r->planned.graph, &r->device, &r->tape, run_staging(r),
                          PLAN_STAGING, t.path, e);
    if (!rc) rc = temporary_keep(&t, path, true, e);
    temporary_drop(&t);
    if (rc) return error_prepend(e, "pl_save");
    snprintf(s->model, sizeof s->model, "%s", path);
    return PL_OK;
}

const char *pl_model_path(const struct pl_session *s) { return s ? s->model : ""; }

/* --- the whole loop --------------------------------------------------------------------------- */

int pl_on_step(struct pl_session *s, pl_step_callback callback, void *user)
{
    if (!session_enter(s)) return PL_USAGE;
    s->on_step = callback;
    s->on_step_user = user;
    return PL_OK;
}

static int forward_event(void *session, const struct train_event *v)
{
    struct pl_session *s = session;
    s->steps = v->step;
    struct pl_step_info info = {v->step, v->total, v->loss, v->learning_rate, v->gradient_norm, v->seconds};
    return s->on_step(&info, s->on_step_user);
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
                              .on_step = s->on_step ? forward_event : NULL, .user = s, .progress = session_verbose()};
    session_drop_generator(s); /* the budget is for one of the two */
    s->model[0] = '\0';
    s->steps = 0;
    s->busy = run_in_process = true;
    int rc = train_run(&s->config, &o, &summary, &e);
    s->busy = run_in_process = false;
    s->error = e;
    if (!rc) snprintf(s->model, sizeof s->model, "%s", summary.model);
    else if (rc == PL_STOPPED) /* a checkpoint is a model folder too */
        snprintf(s->model, sizeof s->model, "%s/checkpoints/step-%lld", s->config.train_out, (long long)s->steps);
    return rc;
}

int pl_train(struct pl_session *s) { return session_enter(s) ? train(s, false, "pl_train") : PL_USAGE; }
int pl_resume(struct pl_session *s) { return session_enter(s) ? train(s, true, "pl_resume") : PL_USAGE; }
