/*
 * tables.c: what there is: the inputs and outputs of a planned model, and the tables of the
 * program: keys (config/config.def) and ops (graph/ops.def).
 */
#include "plimsoll.h"

#include "config/config_rows.h"
#include "graph/ops.h"
#include "lib/builder.h"
#include "lib/session.h"

/* --- ports ---------------------------------------------------------------------------------- */

/* Returns the tensor that is the whole of an input's storage. */
static const struct tensor *leaf_of(const struct graph *g, id storage)
{
    for (id t = 1; t < g->tensors.n; t++)
        if (tensor_at(g, t)->storage == storage && !tensor_at(g, t)->node && !tensor_at(g, t)->offset)
            return tensor_at(g, t);
    return NULL;
}

static void set_port(struct pl_port *out, const char *name, const struct tensor *t, enum dtype type)
{
    *out = (struct pl_port){.size = sizeof *out, .name = name, .type = session_dtype(type), .rank = t->rank};
    memcpy(out->dim, t->dim, (size_t)t->rank * sizeof *t->dim);
}

/* Counts the elements of the whole effective batch. */
static uint64_t port_bytes(const struct pl_port *p, enum dtype type)
{
    uint64_t n = dtype_size(type);
    for (int i = 0; i < p->rank; i++) n *= (uint64_t)p->dim[i];
    return n;
}

/* Describes the input in a storage; false: it is none. */
static bool describe_input(const struct planned *r, id storage, struct pl_port *out)
{
    const struct graph *g = &r->graph;
    struct planned_input x;
    const char *name = graph_name(g, g->storages.at[storage].name);
    if (g->storages.at[storage].kind != KIND_INPUT || !planned_input(r, name, &x)) return false;
    const struct tensor *t = leaf_of(g, storage);
    if (!t || t->rank > PL_MAX_RANK) return false;
    set_port(out, name, t, x.dtype);
    out->axis = x.axis == INPUT_SHARED ? PL_SHARED : x.axis;
    out->bytes = x.sample * (x.axis == INPUT_SHARED ? 1 : (uint64_t)r->effective_batch);
    const uint64_t rest = x.axis >= 0 ? port_bytes(out, x.dtype) / (uint64_t)max_i64(1, out->dim[x.axis]) : 0;
    if (rest) out->dim[x.axis] = (int64_t)(out->bytes / rest);
    out->used = planned_input_used(r, &x) && strcmp(out->name, "samples");
    return true;
}

int pl_input_at(struct pl_session *s, int64_t index, struct pl_port *out)
{
    ENTER(s);
    struct pl_port port = {.size = sizeof port};
    int64_t n = 0;
    if (session_require(s, STAGE_PLANNED, "pl_input_at") || session_sized(s, "pl_input_at", out, sizeof *out))
        return s->error.code;
    const struct planned *r = &session_run(s)->planned;
    for (id k = 1; k < r->graph.storages.n; k++) {
        if (!describe_input(r, k, &port) || n++ != index) continue;
        session_give(out, &port, sizeof port);
        return PL_OK;
    }
    return error_set(&s->error, PL_USAGE, "pl_input_at: %lld, the model has %lld inputs", (long long)index,
                     (long long)n);
}

int pl_output_at(struct pl_session *s, int64_t index, struct pl_port *out)
{
    ENTER(s);
    int64_t n = 0;
    if (session_require(s, STAGE_PLANNED, "pl_output_at") || session_sized(s, "pl_output_at", out, sizeof *out))
        return s->error.code;
    const struct run *r = session_run(s);
    const struct graph *g = &r->planned.graph;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        if (g->outputs.at[i].program != PROGRAM_EVAL || n++ != index) continue;
        struct pl_port port;
        const struct tensor *t = tensor_at(g, g->outputs.at[i].tensor);
        const enum dtype type = dtype_is_float(t->dtype) ? DT_F32 : DT_I32;
        set_port(&port, graph_name(g, g->outputs.at[i].name), t, type);
        port.axis = t->rank ? 0 : PL_SHARED;
        port.used = 1;
        port.bytes = (uint64_t)run_forward_elements(r, g->outputs.at[i].tensor) * dtype_size(type);
        const uint64_t rest = t->rank ? port_bytes(&port, type) / (uint64_t)max_i64(1, port.dim[0]) : 0;
        if (rest) port.dim[0] = (int64_t)(port.bytes / rest);
        session_give(out, &port, sizeof port);
        return PL_OK;
    }
    return error_set(&s->error, PL_USAGE, "pl_output_at: %lld, the model has %lld outputs", (long long)index,
                     (long long)n);
}

/* --- tables, which need no session ---------------------------------------------------------- */

static bool has_size(const void *of)
{
    size_t size = 0;
    if (of) memcpy(&size, of, sizeof size);
    return size > sizeof size && size <= 1 << 16;
}

static const char *const types[] = {
    [ROW_STRING] = "string",   [ROW_LIST] = "list",       [ROW_INT] = "integer",    [ROW_INTS] = "integers",
    [ROW_AUTO_INT] = "integer or auto", [ROW_REAL] = "number", [ROW_RANGE] = "range", [ROW_BOOL] = "boolean",
    [ROW_CHOICE] = "word",     [ROW_BUDGET] = "size",     [ROW_GROUPS] = "list of maps", [ROW_MODULES] = "list of maps",
    [ROW_FORMS] = "map",       [ROW_SETTING] = "setting", [ROW_NAMES] = "names",    [ROW_NUMBERS] = "map of numbers",
    [ROW_MAP] = "map"};

int pl_key_at(int64_t index, struct pl_key *out)
{
    if (!has_size(out) || index < 0 || index >= CONFIG_KEYS) return PL_USAGE;
    const struct config_row *r = &config_rows[index];
    const struct pl_key key = {.size = sizeof key, .name = r->path, .type = types[r->type], .standard = r->standard,
                               .allowed = r->allowed, .needs = r->needs, .doc = r->doc};
    session_give(out, &key, sizeof key);
    return PL_OK;
}

int pl_op_at(int64_t index, struct pl_op_info *out)
{
    if (!has_size(out) || index < 0 || index >= OP_COUNT - 1) return PL_USAGE;
    const enum op op = (enum op)(index + 1);
    const struct op_row *r = &op_table[op];
    const char *names = strchr(r->attributes, ':');
    const struct pl_op_info info = {.size = sizeof info,
                                    .name = r->name,
                                    .signature = r->signature,
                                    .attributes = names ? names + 1 + strspn(names + 1, " ") : "",
                                    .doc = r->doc,
                                    .inputs_least = r->min_in,
                                    .inputs_most = r->max_in,
                                    .outputs = r->outs,
                                    .in_models = builder_op_refused(op) == NULL};
    session_give(out, &info, sizeof info);
    return PL_OK;
}
