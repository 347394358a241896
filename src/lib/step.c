/*
 * step.c: a started session: inputs and steps.
 *
 * Invariant: all inputs of a started session are in range before a step reads them. After pl_start
 * a step allocates nothing; what saves, and an input that is converted for the first time, do.
 *
 *     submitted, not asked for:  s->early (retired already)   trainer (in flight)
 */
#include "plimsoll.h"

#include "batch/writer.h"
#include "lib/session.h"


/* --- starting ---------------------------------------------------------------------- */

static int list_inputs(struct pl_session *s)
{
    const struct run *r = session_run(s);
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
    const struct graph *g = &session_run(s)->planned.graph;
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
    ENTER(s);
    if (s->stage == STAGE_STARTED) return error_set(&s->error, PL_USAGE, "pl_start: the session is started already");
    if (check_schedule(s) || session_plan(s) || apply_counts(s)) return s->error.code;
    session_evict(s); /* the budget is for one of them */
    if (trainer_start(s->trainer, &s->error)) {
        /* A partly opened run is closed with the trainer; the options are kept. */
        trainer_close(s->trainer);
        s->trainer = NULL;
        s->stage = STAGE_OPTIONS;
        return s->error.code;
    }
    s->stage = STAGE_STARTED;
    s->steps = 0;
    s->n_early = 0;
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
    return x->is.sample * (uint64_t)(x->is.axis == INPUT_SHARED ? 1 : session_run(s)->planned.effective_batch);
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

static int check_bytes(struct pl_session *s, const struct session_input *x, uint64_t bytes, uint64_t want)
{
    if (bytes == want) return PL_OK;
    if (x->is.axis == INPUT_SHARED)
        return error_set(&s->error, PL_USAGE, "pl_write_input: %s: %llu bytes, expected %llu, once for all samples",
                         x->name, (unsigned long long)bytes, (unsigned long long)want);
    const int samples = session_run(s)->planned.effective_batch;
    return error_set(&s->error, PL_USAGE, "pl_write_input: %s: %llu bytes, expected %llu: %llu for each of %d samples",
                     x->name, (unsigned long long)bytes, (unsigned long long)want,
                     (unsigned long long)(want / (uint64_t)samples), samples);
}

/* Converts integers to i32, each of which must be in its range. */
static int narrow(struct pl_session *s, const struct session_input *x, const void *data, enum dtype from, int64_t n)
{
    int32_t *to = (int32_t *)(void *)s->room.at;
    for (int64_t i = 0; i < n; i++) {
        int64_t v;
        if (from == DT_U8) v = ((const uint8_t *)data)[i];
        else memcpy(&v, (const char *)data + i * 8, 8);
        if (v < INT32_MIN || v > INT32_MAX)
            return error_set(&s->error, PL_USAGE, "pl_write_input: element %lld of %s is %lld, beyond i32",
                             (long long)i, x->name, (long long)v);
        to[i] = (int32_t)v;
    }
    return PL_OK;
}

/* Converts data to the dtype of the input, into s->room. */
static int convert_input(struct pl_session *s, const struct session_input *x, const void *data, enum dtype from)
{
    const enum dtype to = x->is.dtype;
    const uint64_t bytes = input_bytes(s, x);
    const int64_t n = (int64_t)(bytes / dtype_size(to));
    if (bytes > UINT32_MAX)
        return error_set(&s->error, PL_USAGE, "pl_write_input: %s has %llu bytes; give it as %s", x->name,
                         (unsigned long long)bytes, dtype_name(to));
    vec_grow((void **)&s->room.at, &s->room.cap, (uint32_t)bytes, 1);
    if (to == DT_I32 && (from == DT_I64 || from == DT_U8)) return narrow(s, x, data, from, n);
    if (!dtype_is_float(to) || !(dtype_is_float(from) || from == DT_U8))
        return error_set(&s->error, PL_USAGE, "pl_write_input: %s is %s, and the data is %s: convert it first", x->name,
                         dtype_name(to), dtype_name(from));
    if (from != DT_U8) dtype_convert(s->room.at, to, data, from, n);
    for (int64_t i = 0; i < n && from == DT_U8; i++) dtype_store(s->room.at, to, i, ((const uint8_t *)data)[i]);
    return PL_OK;
}

static int write_input(struct pl_session *s, const char *name, enum dtype from, const void *data, uint64_t bytes)
{
    if (session_require(s, STAGE_STARTED, "pl_write_input")) return s->error.code;
    if (!name || !data) return error_set(&s->error, PL_USAGE, "pl_write_input: the %s is NULL", name ? "data" : "name");
    struct session_input *x = find_input(s, name);
    if (!x) return s->error.code;
    if (from == DT_NONE) from = x->is.dtype;
    if (x->idle) return PL_OK;
    const uint64_t want = input_bytes(s, x);
    if (check_bytes(s, x, bytes, want / dtype_size(x->is.dtype) * dtype_size(from))) return s->error.code;
    if (from != x->is.dtype) {
        if (convert_input(s, x, data, from)) return s->error.code;
        data = s->room.at;
    }
    if (check_ids(s, x, data) || trainer_write_begin(s->trainer, &s->error) ||
        batch_write_all(session_run(s), name, data, &s->error))
        return s->error.code;
    x->written = true;
    return PL_OK;
}

int pl_write_input(struct pl_session *s, const char *name, const void *data, uint64_t bytes)
{
    ENTER(s);
    return write_input(s, name, DT_NONE, data, bytes);
}

int pl_write_input_as(struct pl_session *s, const char *name, enum pl_dtype type, const void *data, uint64_t bytes)
{
    ENTER(s);
    const enum dtype from = session_dtype_of((int)type);
    if (!from)
        return error_set(&s->error, PL_USAGE, "pl_write_input_as: dtype %d is not one of enum pl_dtype", (int)type);
    return write_input(s, name, from, data, bytes);
}

int session_written(struct pl_session *s, const char *call)
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
    ENTER(s);
    return set_count(s, "pl_set_count", "", count);
}

int pl_set_count_of(struct pl_session *s, const char *name, double count)
{
    ENTER(s);
    if (!name || !*name) return error_set(&s->error, PL_USAGE, "pl_set_count_of: the count has no name");
    return set_count(s, "pl_set_count_of", name, count);
}

/* --- steps ---------------------------------------------------------------------------------- */

/* Returns the number of submitted steps whose results were not asked for. */
static uint32_t outstanding(const struct pl_session *s)
{
    return s->n_early + trainer_in_flight(s->trainer);
}

int session_settled(struct pl_session *s, const char *call)
{
    if (session_require(s, STAGE_STARTED, call) || !outstanding(s)) return s->error.code;
    return error_set(&s->error, PL_USAGE, "%s: %u of the submitted steps are not retired; call pl_retire first", call,
                     outstanding(s));
}

static struct pl_step_info step_info(const struct train_event *v)
{
    return (struct pl_step_info){.size = sizeof(struct pl_step_info),
                                 .step = v->step,
                                 .steps = v->total,
                                 .loss = v->loss,
                                 .learning_rate = v->learning_rate,
                                 .gradient_norm = v->gradient_norm,
                                 .seconds = v->seconds,
                                 .units = v->units,
                                 .loss_scale = v->loss_scale,
                                 .skipped = v->skipped};
}

/* Retires the oldest step. A failed step ends all that were submitted after it. */
static int retire(struct pl_session *s, struct train_event *v)
{
    if (s->n_early) {
        *v = s->early[0];
        memmove(s->early, s->early + 1, --s->n_early * sizeof *s->early);
    } else if (trainer_retire(s->trainer, v, &s->error)) return s->error.code;
    s->steps = v->step;
    return PL_OK;
}

/* Submits a step. A device that runs it at once has retired the step before it by then. */
static int submit(struct pl_session *s)
{
    if (trainer_in_flight(s->trainer) == trainer_most_in_flight(s->trainer)) {
        if (trainer_retire(s->trainer, &s->early[s->n_early], &s->error)) return s->error.code;
        s->n_early++;
    }
    return trainer_submit(s->trainer, &s->error);
}

int pl_submit(struct pl_session *s)
{
    ENTER(s);
    if (session_require(s, STAGE_STARTED, "pl_submit") || session_written(s, "pl_submit")) return s->error.code;
    if (outstanding(s) == COUNT(s->early))
        return error_set(&s->error, PL_USAGE, "pl_submit: %u steps are submitted, which is the most; call pl_retire",
                         outstanding(s));
    return submit(s);
}

int pl_retire(struct pl_session *s, struct pl_step_info *out)
{
    ENTER(s);
    struct train_event v;
    if (session_require(s, STAGE_STARTED, "pl_retire")) return s->error.code;
    if (out && session_sized(s, "pl_retire", out, sizeof *out)) return s->error.code;
    if (!outstanding(s)) return error_set(&s->error, PL_USAGE, "pl_retire: no step is submitted; call pl_submit first");
    if (retire(s, &v)) return s->error.code;
    const struct pl_step_info info = step_info(&v);
    if (out) session_give(out, &info, sizeof info);
    return PL_OK;
}

int pl_step(struct pl_session *s, double *loss, double *gradient_norm)
{
    ENTER(s);
    struct train_event v;
    if (session_settled(s, "pl_step") || session_written(s, "pl_step") || submit(s) || retire(s, &v))
        return s->error.code;
    if (loss) *loss = v.loss;
    if (gradient_norm) *gradient_norm = v.gradient_norm;
    return PL_OK;
}

int64_t pl_steps(const struct pl_session *s) { return s ? s->steps : 0; }

/* --- what the loop calls (loop.c) ----------------------------------------------------------- */

int session_pass_event(void *session, const struct train_event *v)
{
    struct pl_session *s = session;
    const struct pl_step_info info = step_info(v);
    s->steps = v->step;
    return s->on_step ? s->on_step(&info, s->on_step_user) : 0;
}
