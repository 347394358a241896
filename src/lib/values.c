/*
 * values.c: what a started session can be asked for: outputs, the loss, parameters, gradients.
 */
#include "plimsoll.h"

#include <string.h>

#include "folder/transfer.h"
#include "folder/weights.h"
#include "lib/session.h"

/* --- dtypes --------------------------------------------------------------------------------- */

/* Converts n results, f32 or i32, to a dtype that the user chose. */
static int convert_out(struct pl_session *s, const char *call, void *to, enum dtype as, const void *from,
                       enum dtype is, int64_t n)
{
    if (dtype_is_float(is) != dtype_is_float(as))
        return error_set(&s->error, PL_USAGE, "%s: it is %s, which is not read as %s", call, dtype_name(is),
                         dtype_name(as));
    for (int64_t i = 0; i < n && as == DT_U8; i++)
        if (((const int32_t *)from)[i] < 0 || ((const int32_t *)from)[i] > 255)
            return error_set(&s->error, PL_USAGE, "%s: element %lld is %d, beyond u8", call, (long long)i,
                             ((const int32_t *)from)[i]);
    if (dtype_is_float(is)) dtype_convert(to, as, from, is, n);
    for (int64_t i = 0; i < n && !dtype_is_float(is); i++) dtype_store(to, as, i, ((const int32_t *)from)[i]);
    return PL_OK;
}

/* --- outputs -------------------------------------------------------------------------------- */

static id find_output(struct pl_session *s, const char *call, const char *name)
{
    const struct graph *g = &session_run(s)->planned.graph;
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
    ENTER(s);
    float x = 0;
    if (session_settled(s, "pl_evaluate")) return s->error.code;
    id output = find_output(s, "pl_evaluate", "loss");
    if (!output || session_written(s, "pl_evaluate") || trainer_forward(s->trainer, output, &x, &s->error))
        return s->error.code;
    if (loss) *loss = x;
    return PL_OK;
}

/* Reads an output into data; `as` DT_NONE: f32 or i32, as it is. */
static int read_output(struct pl_session *s, const char *name, enum dtype as, void *data, uint64_t bytes)
{
    const char *call = "pl_read_output";
    if (session_settled(s, call)) return s->error.code;
    if (!name || !data) return error_set(&s->error, PL_USAGE, "%s: the %s is NULL", call, name ? "data" : "name");
    const id output = find_output(s, call, name);
    if (!output || session_written(s, call)) return s->error.code;
    struct run *r = session_run(s);
    const enum dtype is = dtype_is_float(tensor_at(&r->planned.graph, output)->dtype) ? DT_F32 : DT_I32;
    const int64_t n = run_forward_elements(r, output);
    if (!as) as = is;
    if (bytes != (uint64_t)n * dtype_size(as))
        return error_set(&s->error, PL_USAGE, "%s: %s: the buffer has %llu bytes, expected %llu", call, name,
                         (unsigned long long)bytes, (unsigned long long)n * dtype_size(as));
    if (as == is) return trainer_forward(s->trainer, output, data, &s->error);
    void *room = mem_alloc((size_t)n * 4);
    if (!trainer_forward(s->trainer, output, room, &s->error)) convert_out(s, call, data, as, room, is, n);
    mem_free(room);
    return s->error.code;
}

int pl_read_output(struct pl_session *s, const char *name, void *data, uint64_t bytes)
{
    ENTER(s);
    return read_output(s, name, DT_NONE, data, bytes);
}

int pl_read_output_as(struct pl_session *s, const char *name, enum pl_dtype type, void *data, uint64_t bytes)
{
    ENTER(s);
    const enum dtype as = session_dtype_of((int)type);
    if (!as)
        return error_set(&s->error, PL_USAGE, "pl_read_output_as: dtype %d is not one of enum pl_dtype", (int)type);
    return read_output(s, name, as, data, bytes);
}

/* --- parameters ----------------------------------------------------------------------------- */

int pl_parameter_at(struct pl_session *s, int64_t index, struct pl_parameter *out)
{
    ENTER(s);
    if (session_require(s, STAGE_PLANNED, "pl_parameter_at")) return s->error.code;
    if (session_sized(s, "pl_parameter_at", out, sizeof *out)) return s->error.code;
    const struct graph *g = &session_run(s)->planned.graph;
    int64_t at = 0;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const struct tensor *t = tensor_at(g, p->tensor);
        if (weight_is_constant(g, p) || at++ != index) continue;
        struct pl_parameter found = {.size = sizeof found,
                                     .name = graph_name(g, t->name),
                                     .rank = t->rank,
                                     .elements = (uint64_t)tensor_elements(t),
                                     .frozen = p->frozen,
                                     .type = session_dtype(t->dtype)};
        memcpy(found.dim, t->dim, (size_t)t->rank * sizeof *t->dim);
        session_give(out, &found, sizeof found);
        return PL_OK;
    }
    session_give(out, &(struct pl_parameter){.size = sizeof *out}, sizeof *out);
    return error_set(&s->error, PL_USAGE, "pl_parameter_at: %lld, the model has %lld parameters", (long long)index,
                     (long long)at);
}

const struct param *session_parameter(struct pl_session *s, const char *call, const char *name)
{
    const struct graph *g = &session_run(s)->planned.graph;
    for (uint32_t i = 0; i < g->params.n && name; i++)
        if (!weight_is_constant(g, &g->params.at[i]) && !strcmp(weight_name(g, &g->params.at[i]), name))
            return &g->params.at[i];
    if (!name) error_set(&s->error, PL_USAGE, "%s: the name is NULL", call);
    else
        error_set(&s->error, PL_USAGE, "%s: the model has no parameter %.200s; pl_parameter_at lists them", call, name);
    return NULL;
}

/* Finds the parameter, whose elements fill `bytes` in a dtype; NULL, with an error: they do not. */
static const struct param *sized_parameter(struct pl_session *s, const char *call, const char *name, const void *data,
                                           enum dtype as, uint64_t bytes)
{
    if (name && !data) {
        error_set(&s->error, PL_USAGE, "%s: the data is NULL", call);
        return NULL;
    }
    const struct param *p = session_parameter(s, call, name);
    if (!p) return NULL;
    const uint64_t want = (uint64_t)tensor_elements(tensor_at(&session_run(s)->planned.graph, p->tensor)) *
                          dtype_size(as);
    if (bytes == want) return p;
    error_set(&s->error, PL_USAGE, "%s: %s: %llu bytes, expected %llu", call, name, (unsigned long long)bytes,
              (unsigned long long)want);
    return NULL;
}

static struct transfer staging_of(struct run *r)
{
    struct transfer x;
    transfer_init(&x, &r->device, &r->tape, run_staging(r), PLAN_STAGING);
    return x;
}

/* Reads n elements of a tensor into `to`, of a dtype, each divided by `scale`. */
static int read_tensor(struct pl_session *s, id tensor, enum dtype as, int64_t n, double scale, char *to)
{
    struct transfer x = staging_of(session_run(s));
    for (int64_t at = 0; at < n; at += x.room) {
        const int64_t k = min_i64(x.room, n - at);
        const void *from;
        TRY(transfer_get(&x, tensor, DT_F32, at, k, &from, NULL, &s->error));
        char *part = to + (uint64_t)at * dtype_size(as);
        dtype_convert(part, as, from, DT_F32, k);
        for (int64_t i = 0; i < k && scale != 1; i++) dtype_store(part, as, i, dtype_load(from, DT_F32, i) / scale);
    }
    return PL_OK;
}

int pl_read_parameter(struct pl_session *s, const char *name, float *data, uint64_t bytes)
{
    return pl_read_parameter_as(s, name, PL_F32, data, bytes);
}

int pl_read_parameter_as(struct pl_session *s, const char *name, enum pl_dtype type, void *data, uint64_t bytes)
{
    ENTER(s);
    const char *call = "pl_read_parameter";
    const enum dtype as = session_dtype_of((int)type);
    if (session_settled(s, call)) return s->error.code;
    if (!dtype_is_float(as)) return error_set(&s->error, PL_USAGE, "%s: dtype %d is no float", call, (int)type);
    const struct param *p = sized_parameter(s, call, name, data, as, bytes);
    return p ? read_tensor(s, p->master, as, (int64_t)(bytes / dtype_size(as)), 1, data) : s->error.code;
}

static int write_parameter(struct pl_session *s, const struct param *p, const char *name, enum dtype is,
                           const void *data, int64_t elements)
{
    struct transfer x = staging_of(session_run(s));
    const int64_t bad_at = transfer_nonfinite(data, is, elements);
    if (bad_at >= 0)
        return error_set(&s->error, PL_USAGE, "pl_write_parameter: %s: element %lld is %g, expected finite numbers",
                         name, (long long)bad_at, dtype_load(data, is, bad_at));
    for (int64_t at = 0; at < elements; at += x.room) {
        const int64_t n = min_i64(x.room, elements - at);
        struct bad bad;
        dtype_convert(x.first, DT_F32, (const char *)data + (uint64_t)at * dtype_size(is), is, n);
        TRY(transfer_put(&x, p, DT_F32, at, n, &bad, &s->error));
        if (bad.index >= 0)
            return error_set(&s->error, PL_USAGE, "pl_write_parameter: %s: element %lld, %g, is not finite as %s", name,
                             (long long)bad.index, bad.value, dtype_name(bad.as));
    }
    return PL_OK;
}

int pl_write_parameter(struct pl_session *s, const char *name, const float *data, uint64_t bytes)
{
    return pl_write_parameter_as(s, name, PL_F32, data, bytes);
}

int pl_write_parameter_as(struct pl_session *s, const char *name, enum pl_dtype type, const void *data, uint64_t bytes)
{
    ENTER(s);
    const char *call = "pl_write_parameter";
    const enum dtype is = session_dtype_of((int)type);
    if (session_settled(s, call)) return s->error.code;
    if (!dtype_is_float(is)) return error_set(&s->error, PL_USAGE, "%s: dtype %d is no float", call, (int)type);
    const struct param *p = sized_parameter(s, call, name, data, is, bytes);
    return p ? write_parameter(s, p, name, is, data, (int64_t)(bytes / dtype_size(is))) : s->error.code;
}

/* --- gradients ------------------------------------------------------------------------------ */

/* Checks that the plan keeps gradients after a step. */
static int keeps_gradients(struct pl_session *s, const char *call)
{
    if (!session_run(s)->planned.plan.settings.fused_step) return PL_OK;
    return error_set(&s->error, PL_USAGE,
                     "%s: the step of the plan is fused with the update and keeps no gradients; set memory.fused_step "
                     "off before pl_plan", call);
}

int session_gradient(struct pl_session *s, const char *call, const struct param *p, const char *name)
{
    const struct graph *g = &session_run(s)->planned.graph;
    if (keeps_gradients(s, call)) return s->error.code;
    if (p->frozen) return error_set(&s->error, PL_USAGE, "%s: %s is frozen and has no gradient", call, name);
    if (p->grad && (storage_of(g, p->grad)->kind != KIND_GRAD || !tensor_is_dense(tensor_at(g, p->grad))))
        return error_set(&s->error, PL_USAGE, "%s: the plan does not keep the gradient of %s", call, name);
    return PL_OK;
}

int pl_backward(struct pl_session *s, double *loss)
{
    ENTER(s);
    const char *call = "pl_backward";
    float x = 0;
    if (session_settled(s, call) || keeps_gradients(s, call) || session_written(s, call) ||
        trainer_backward(s->trainer, &x, &s->error))
        return s->error.code;
    if (loss) *loss = x;
    return PL_OK;
}

int pl_read_gradient(struct pl_session *s, const char *name, float *data, uint64_t bytes)
{
    ENTER(s);
    const char *call = "pl_read_gradient";
    if (session_settled(s, call)) return s->error.code;
    const struct param *p = sized_parameter(s, call, name, data, DT_F32, bytes);
    if (!p || session_gradient(s, call, p, name)) return s->error.code;
    if (!p->grad) memset(data, 0, bytes);
    return p->grad ? read_tensor(s, p->grad, DT_F32, (int64_t)(bytes / 4), trainer_gradient_scale(s->trainer),
                                 (char *)data)
                   : PL_OK;
}
