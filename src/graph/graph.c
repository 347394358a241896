/*
 * graph.c: building and querying graphs (see graph.h for what a graph is).
 *
 * graph_emit is the only function that adds a node: it checks the arity against the op's row, runs
 * the shape rule, gives each output a storage of its own, or the input's storage that the row
 * names, and appends the node to the current program.
 */
#include "graph/graph.h"

#include <stdarg.h>

#include "graph/names.h"
#include "graph/ops.h"

enum { NAME_ROOM = 256 };

const char *kind_name(enum kind k)
{
    static const char *const names[KIND_COUNT] = {"none",     "parameters",  "masters",   "gradients",    "optimizer",
                                                  "KV cache", "inputs",      "constants", "step",         "outputs",
                                                  "staging",  "activations", "workspace", "communication"};
    CHECK(k < KIND_COUNT);
    return names[k];
}

bool kind_is_persistent(enum kind k) { return k != KIND_NONE && k < KIND_ACT; }

const char *phase_name(enum phase p)
{
    static const char *const names[PHASE_COUNT] = {"forward", "backward", "recompute", "update"};
    return names[p];
}

const char *lane_name(enum lane lane)
{
    static const char *const names[LANE_COUNT] = {"compute", "copy in", "copy out", "communication",
                                                  "host",    "copy back"};
    return names[lane];
}

const char *program_name(enum program p)
{
    static const char *const names[PROGRAM_COUNT] = {
#define PROGRAM(NAME, name, flags) name,
#include "graph/programs.def"
#undef PROGRAM
    };
    return names[p];
}

bool program_is(enum program p, unsigned flag)
{
    static const unsigned flags_of[PROGRAM_COUNT] = {
#define PROGRAM(NAME, name, flags) flags,
#include "graph/programs.def"
#undef PROGRAM
    };
    return flags_of[p] & flag;
}

bool program_steps(enum program p) { return program_is(p, PROGRAM_TIMED) && !program_is(p, PROGRAM_GENERATES); }
bool program_evaluates(enum program p) { return program_is(p, PROGRAM_FORWARD) && !program_is(p, PROGRAM_TRAINS); }

/* --- construction and destruction ---------------------------------------- */

/* Puts an empty element 0 into each array: id 0 means none. */
static void put_dummies(struct graph *g)
{
    vec_push(&g->storages, (struct storage){0});
    vec_push(&g->tensors, (struct tensor){0});
    vec_push(&g->nodes, (struct node){0});
    vec_push(&g->scopes, (struct scope){0});
    vec_push(&g->loops, (struct loop){0});
    vec_push(&g->names, '\0');
}

void graph_init(struct graph *g)
{
    memset(g, 0, sizeof *g);
    put_dummies(g);
}

void graph_free(struct graph *g)
{
    vec_free(&g->storages);
    vec_free(&g->tensors);
    vec_free(&g->nodes);
    vec_free(&g->scopes);
    vec_free(&g->loops);
    vec_free(&g->cuts);
    vec_free(&g->params);
    vec_free(&g->divisions);
    vec_free(&g->outputs);
    vec_free(&g->names);
    name_index_free(&g->index);
    output_index_free(&g->output_names);
    vec_free(&g->blob);
    for (int p = 0; p < PROGRAM_COUNT; p++) vec_free(&g->order[p].nodes);
}

void graph_clear(struct graph *g)
{
    struct graph x = {0};
#define KEEP(v) (x.v.at = g->v.at, x.v.cap = g->v.cap)
    KEEP(storages), KEEP(tensors), KEEP(nodes), KEEP(scopes), KEEP(loops), KEEP(cuts), KEEP(params), KEEP(divisions),
        KEEP(outputs), KEEP(names), KEEP(blob);
    for (int p = 0; p < PROGRAM_COUNT; p++) KEEP(order[p].nodes);
#undef KEEP
    name_index_free(&g->index);
    output_index_free(&g->output_names);
    *g = x;
    put_dummies(g);
}

/* Copies n elements into memory that is there; where there is too little, into new memory with room
 * for what a pass will add. */
static void copy_over(void **to, uint32_t *cap, const void *from, uint32_t n, size_t size)
{
    if (*cap < n) {
        mem_free(*to);
        *cap = n + n / 2;
        *to = mem_resize(NULL, *cap * size);
    }
    if (n) memcpy(*to, from, n * size);
}

void graph_copy_over(struct graph *to, const struct graph *from)
{
    struct graph x = *from;
#define OVER(v)                                                                                                        \
    (x.v.at = to->v.at, x.v.cap = to->v.cap,                                                                           \
     copy_over((void **)&x.v.at, &x.v.cap, from->v.at, from->v.n, sizeof *from->v.at))
    OVER(storages), OVER(tensors), OVER(nodes), OVER(scopes), OVER(loops), OVER(cuts), OVER(params), OVER(divisions),
        OVER(outputs), OVER(names), OVER(blob);
    for (int p = 0; p < PROGRAM_COUNT; p++) OVER(order[p].nodes);
#undef OVER
    x.index = to->index;
    x.output_names = to->output_names;
    name_index_copy_over(&x.index, &from->index);
    output_index_copy_over(&x.output_names, &from->output_names);
    *to = x;
}

int graph_error(const struct graph *g, struct error *e)
{
    if (g->error.code) *e = g->error;
    return g->error.code;
}

id graph_fail(struct graph *g, const char *fmt, ...)
{
    if (g->error.code) return 0;
    va_list ap;
    va_start(ap, fmt);
    char text[1024];
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const char *scope = g->at.scope ? graph_name(g, g->scopes.at[g->at.scope].name) : "";
    error_set(&g->error, PL_USAGE, "%s%s%s", scope, *scope ? ": " : "", text);
    return 0;
}

/* --- building ----------------------------------------------------------------- */

id graph_storage(struct graph *g, const char *name, enum kind kind, enum space space, uint64_t bytes)
{
    vec_push(&g->storages, ((struct storage){bytes, space, kind, graph_intern(g, name)}));
    return g->storages.n - 1;
}

id graph_tensor(struct graph *g, const char *name, id storage, enum dtype t, int rank, const int64_t *dim,
                uint64_t offset)
{
    struct tensor x = {.storage = storage, .name = graph_intern(g, name), .dtype = t, .rank = rank, .offset = offset};
    for (int i = 0; i < rank; i++) x.dim[i] = dim[i];
    tensor_dense_strides(&x);
    vec_push(&g->tensors, x);
    return g->tensors.n - 1;
}

static id storage_by_name(struct graph *g, enum kind kind, const char *name)
{
    id interned = graph_intern(g, name);
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == kind && g->storages.at[s].name == interned) return s;
    return 0;
}

/* Adds a tensor with a storage of its own that exists before any node runs; returns 0 on error. */
static id leaf(struct graph *g, const char *name, enum kind kind, enum dtype t, int rank, const int64_t *dim)
{
    if (g->error.code) return 0;
    if (rank < 0 || rank > MAX_RANK) return graph_fail(g, "%s: rank %d, at most %d", name, rank, MAX_RANK);
    struct tensor x = {.dtype = t, .rank = rank};
    for (int i = 0; i < rank; i++) {
        if (dim[i] < 1) return graph_fail(g, "%s: dimension %d is %lld", name, i, (long long)dim[i]);
        x.dim[i] = dim[i];
    }
    id s = graph_storage(g, name, kind, SPACE_DEVICE, tensor_bytes(&x));
    return graph_tensor(g, name, s, t, rank, dim, 0);
}

static bool same_shape(const struct tensor *x, int rank, const int64_t *dim)
{
    return x->rank == rank && !memcmp(x->dim, dim, rank * sizeof *dim);
}

static id add_param(struct graph *g, const char *name, struct param p)
{
    vec_push(&g->params, p);
    names_slot(g, name)->param = g->params.n;
    return p.tensor;
}

/* Returns the name behind the name of the part that is being built, if one is; NULL: it is too
 * long. */
static const char *name_in_part(struct graph *g, const char *name, char out[NAME_ROOM])
{
    id s = g->at.scope;
    while (s && !(g->scopes.at[s].flags & SCOPE_PART)) s = g->scopes.at[s].parent;
    if (!s) return name;
    if (snprintf(out, NAME_ROOM, "%s.%s", graph_name(g, g->scopes.at[s].name), name) < NAME_ROOM) return out;
    graph_fail(g, "the name of %s is too long after that of its part", name);
    return NULL;
}

id graph_param(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim, struct init init)
{
    char other[NAME_ROOM], full[NAME_ROOM];
    if (g->rename) name = g->rename(name, other, sizeof other);
    if (!(name = name_in_part(g, name, full))) return 0;
    const struct name_slot *known = names_slot(g, name);
    if (known->param) {
        id have = g->params.at[known->param - 1].tensor;
        if (!same_shape(tensor_at(g, have), rank, dim))
            return graph_fail(g, "parameter %s is used with two shapes", name);
        return have;
    }
    id x = leaf(g, name, KIND_PARAM, t, rank, dim);
    return x ? add_param(g, name, (struct param){.tensor = x, .master = x, .init = init}) : 0;
}

id graph_input(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim)
{
    id s = storage_by_name(g, KIND_INPUT, name);
    if (!s) return leaf(g, name, KIND_INPUT, t, rank, dim);
    id x = graph_tensor(g, name, s, t, rank, dim, 0);
    if (tensor_bytes(tensor_at(g, x)) > g->storages.at[s].bytes)
        g->storages.at[s].bytes = tensor_bytes(tensor_at(g, x));
    return x;
}

id graph_input_along(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim, int axis)
{
    if (axis < INPUT_SHARED || axis >= rank)
        return graph_fail(g, "input %s: axis %d counts its samples, and it has %d dimensions", name, axis, rank);
    id known = storage_by_name(g, KIND_INPUT, name);
    if (known && g->storages.at[known].axis != axis)
        return graph_fail(g, "input %s: its samples are counted by dimension %d and by dimension %d", name,
                          g->storages.at[known].axis, axis);
    id x = graph_input(g, name, t, rank, dim);
    if (x) storage_of(g, x)->axis = (int8_t)axis;
    return x;
}

void graph_set_along(struct graph *g, id input, int axis)
{
    if (input) tensor_at(g, input)->along = (uint8_t)(1 + axis);
}

void graph_set_sequence(struct graph *g, id ranges, int64_t samples, int64_t bucket)
{
    graph_set_along(g, ranges, 1);
    if (!ranges) return;
    g->sequence.ranges = tensor_at(g, ranges)->storage;
    g->sequence.samples = samples;
    g->sequence.bucket = bucket;
}

id graph_const(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim, const void *data)
{
    char full[NAME_ROOM];
    if (!(name = name_in_part(g, name, full))) return 0;
    const struct name_slot *known = names_slot(g, name);
    if (known->param && storage_of(g, g->params.at[known->param - 1].tensor)->kind == KIND_CONST)
        return g->params.at[known->param - 1].tensor;
    id x = leaf(g, name, KIND_CONST, t, rank, dim);
    if (!x) return 0;
    id at = g->blob.n;
    uint64_t bytes = tensor_bytes(tensor_at(g, x));
    vec_grow((void **)&g->blob.at, &g->blob.cap, at + (uint32_t)bytes, 1);
    memcpy(g->blob.at + at, data, bytes);
    g->blob.n += (uint32_t)bytes;
    return add_param(g, name, (struct param){.tensor = x, .master = x, .init = {INIT_DATA, 0, at}, .frozen = true});
}

id graph_cache(struct graph *g, const char *name, int rank, const int64_t *dim)
{
    char full[NAME_ROOM];
    if (!(name = name_in_part(g, name, full))) return 0;
    id s = storage_by_name(g, KIND_CACHE, name);
    return s ? graph_tensor(g, name, s, DT_F32, rank, dim, 0) : leaf(g, name, KIND_CACHE, DT_F32, rank, dim);
}

id graph_step(struct graph *g)
{
    if (!g->step) g->step = leaf(g, "step", KIND_STEP, DT_U8, 1, (int64_t[]){sizeof(struct step_block)});
    return g->step;
}

id graph_count(struct graph *g, const char *name)
{
    const id text = name ? graph_intern(g, name) : 0;
    uint32_t k = 0;
    if (g->error.code) return 0;
    while (k < g->n_counts && g->counts[k] != text) k++;
    if (k == STEP_COUNTS)
        return graph_fail(g, "the count %s: a model has at most %d counts", name ? name : "without a name",
                          STEP_COUNTS);
    if (k == g->n_counts) g->counts[g->n_counts++] = text;
    return graph_view(g, graph_step(g), DT_F32, 0, NULL, NULL,
                      offsetof(struct step_block, inv_count) + k * sizeof(float));
}

const char *graph_count_name(const struct graph *g, uint32_t k)
{
    return g->counts[k] ? graph_name(g, g->counts[k]) : "";
}

void graph_output(struct graph *g, const char *name, id tensor)
{
    if (!tensor) return;
    struct storage *s = storage_of(g, tensor);
    if (!kind_is_persistent(s->kind)) s->kind = KIND_OUTPUT;
    vec_push(&g->outputs, ((struct output){graph_intern(g, name), tensor, g->at.program}));
}

id graph_find_output(const struct graph *g, enum program p, const char *name)
{
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i].program == p && !strcmp(graph_name(g, g->outputs.at[i].name), name))
            return g->outputs.at[i].tensor;
    return 0;
}

id graph_view(struct graph *g, id tensor, enum dtype t, int rank, const int64_t *dim, const int64_t *stride,
              uint64_t offset)
{
    struct tensor x = *tensor_at(g, tensor);
    x.dtype = t;
    x.rank = rank;
    x.offset = offset;
    for (int i = 0; i < rank; i++) x.dim[i] = dim[i];
    if (stride) memcpy(x.stride, stride, rank * sizeof *stride);
    else tensor_dense_strides(&x);
    vec_push(&g->tensors, x);
    return g->tensors.n - 1;
}

id graph_scope_push(struct graph *g, const char *name, int flags)
{
    id before = g->at.scope;
    char full[256];
    const char *outer = before ? graph_name(g, g->scopes.at[before].name) : "";
    snprintf(full, sizeof full, "%s%s%s", outer, *outer ? "." : "", name);
    /* The programs share scopes: evaluation's layer 3 is training's layer 3. */
    struct name_slot *known = names_slot(g, full);
    if (!known->scope) {
        vec_push(&g->scopes, ((struct scope){before, known->name, flags}));
        known->scope = g->scopes.n - 1;
    }
    g->at.scope = known->scope;
    return before;
}

void graph_scope_pop(struct graph *g, id previous) { g->at.scope = previous; }

bool graph_scope_is(const struct graph *g, id scope, enum scope_flag flag)
{
    while (scope && !(g->scopes.at[scope].flags & flag)) scope = g->scopes.at[scope].parent;
    return scope != 0;
}

id graph_rows_of(const struct graph *g, id scope)
{
    id found = 0;
    for (; scope; scope = g->scopes.at[scope].parent)
        if (g->scopes.at[scope].flags & SCOPE_ROWS) found = scope;
    return found;
}

id graph_loop(struct graph *g, const char *name, uint32_t trip)
{
    vec_push(&g->loops, ((struct loop){.parent = g->at.loop, .name = graph_intern(g, name), .trip = trip,
                                       .program = g->at.program}));
    return g->loops.n - 1;
}

struct inside graph_enter_scope(struct graph *g, const char *name, int flags)
{
    struct inside in = {g, g->at.scope, g->at.loop, true};
    graph_scope_push(g, name, flags);
    return in;
}

struct inside graph_enter_part(struct graph *g, const char *name, int flags)
{
    if (*name) return graph_enter_scope(g, name, SCOPE_PART | flags);
    return (struct inside){g, g->at.scope, g->at.loop, true};
}

struct inside graph_enter_loop(struct graph *g, const char *name, uint32_t trip)
{
    struct inside in = {g, g->at.scope, g->at.loop, true};
    if (trip) g->at.loop = graph_loop(g, name, trip);
    return in;
}

void graph_leave(struct inside *in)
{
    in->g->at.scope = in->scope;
    in->g->at.loop = in->loop;
    in->open = false;
}

struct cursor graph_move(struct graph *g, enum program p, enum phase phase, const char *made_by)
{
    struct cursor before = g->at;
    g->at.program = p;
    g->at.phase = phase;
    g->at.made_by = graph_intern(g, made_by);
    return before;
}

/* --- emitting ------------------------------------------------------------------ */

static bool arity_ok(struct graph *g, const struct op_row *row, const id *in, int nin)
{
    if (nin > row->max_in) return graph_fail(g, "%s takes at most %d inputs, %d given", row->name, row->max_in, nin);
    for (int i = 0; i < row->min_in; i++)
        if (i >= nin || !in[i]) return false; /* a failed call upstream: already recorded */
    return true;
}

/* Fails with "LINEAR(x f32[2,3], w f32[4,5]): " before the rule's message. */
static id infer_failed(struct graph *g, const struct op_row *row, const struct infer *f, const id *in, int nin)
{
    char text[700] = "", one[160];
    for (int i = 0; i < nin; i++)
        if (in[i]) {
            size_t n = strlen(text);
            snprintf(text + n, sizeof text - n, "%s%s", n ? ", " : "", tensor_print(g, in[i], one));
        }
    return graph_fail(g, "%s(%s): %s", row->name, text, f->error);
}

int op_must_alias(const struct node *n, int o)
{
    int a = op_table[n->op].alias[o];
    if (a <= 0 || a - 1 >= n->nin || !n->in[a - 1]) return -1;
    return a - 1;
}

/* Appends as much of `s` as fits before `end`. */
static char *put(char *out, const char *end, const char *s)
{
    while (*s && out < end) *out++ = *s++;
    return out;
}

/* Interns the name of an output, such as "d:model.layers.3.mlp.LINEAR/1". */
static id new_output_name(struct graph *g, const struct op_row *row, int o)
{
    char text[256], index[3] = {'/', (char)('0' + o), 0};
    char *at = text, *end = text + sizeof text - 1;
    if (g->at.phase == PHASE_BACKWARD) at = put(at, end, "d:");
    if (g->at.phase == PHASE_RECOMPUTE) at = put(at, end, "r:");
    const char *scope = g->at.scope ? graph_name(g, g->scopes.at[g->at.scope].name) : "";
    at = put(at, end, scope);
    if (*scope) at = put(at, end, ".");
    at = put(at, end, row->name);
    if (o) at = put(at, end, index);
    *at = 0;
    return graph_intern(g, text);
}

/* Returns the name of an output, which is made once for each scope, op and phase: a search emits
 * millions of nodes, and the blocks of one graph need few names. */
static id output_name(struct graph *g, int op, int o)
{
    const uint64_t key = (uint64_t)g->at.scope << 32 | (uint64_t)op << 16 | (uint64_t)g->at.phase << 8 | (uint64_t)o;
    id *name = names_of_output(g, key);
    return *name ? *name : (*name = new_output_name(g, &op_table[op], o));
}

/* Assigns output `o` its bytes: those of input `from`, or a storage of its own. */
static void place_output(struct graph *g, struct node *n, int o, struct tensor *x, int from, id name)
{
    const struct op_row *row = &op_table[n->op];
    if (from >= 0) {
        const struct tensor *base = tensor_at(g, n->in[from]);
        x->storage = base->storage;
        x->loop = base->loop;
        x->advance = base->advance;
        if (!(row->flags & OPF_VIEW)) {
            x->offset = base->offset;
            /* A dense accumulator may have another shape than the tensor that is added to it. */
            if (tensor_is_dense(base)) tensor_dense_strides(x);
            else memcpy(x->stride, base->stride, sizeof x->stride);
        }
    } else {
        tensor_dense_strides(x);
        enum space space = n->op == OP_COPY ? n->attr.copy.space : SPACE_DEVICE;
        vec_push(&g->storages, ((struct storage){tensor_bytes(x), space, KIND_ACT, name}));
        x->storage = g->storages.n - 1;
    }
    x->name = name;
    vec_push(&g->tensors, *x);
    n->out[o] = g->tensors.n - 1;
}

id graph_emit(struct graph *g, int op, const union attr *attr, const id *in, int nin)
{
    const struct op_row *row = &op_table[op];
    while (nin > row->min_in && !in[nin - 1]) nin--;
    if (g->error.code || !arity_ok(g, row, in, nin)) return 0;
    struct node n = {.op = op, .phase = g->at.phase, .program = g->at.program, .nin = nin, .nout = row->outs,
                     .loop = g->at.loop, .scope = g->at.scope, .origin = g->at.origin, .made_by = g->at.made_by};
    if (attr) n.attr = *attr;
    for (int i = 0; i < nin; i++) n.in[i] = in[i];
    if (op == OP_COPY && storage_of(g, in[0])->space != n.attr.copy.space)
        n.lane = n.attr.copy.space == SPACE_DEVICE ? LANE_IN : LANE_OUT;
    if (row->flags & OPF_COMM) n.lane = LANE_COMM;

    struct infer f = {.op = op, .attr = &n.attr, .nin = nin};
    for (int i = 0; i < nin; i++) f.in[i] = in[i] ? tensor_at(g, in[i]) : NULL;
    op_infer(&f);
    if (f.error[0]) return infer_failed(g, row, &f, in, nin);

    id self = g->nodes.n;
    for (int o = 0; o < row->outs; o++) {
        int from = row->flags & OPF_VIEW ? 0 : op_must_alias(&n, o);
        if (f.out[o].dtype == DT_NONE) continue; /* an optional output */
        f.out[o].node = self;
        place_output(g, &n, o, &f.out[o], from, output_name(g, op, o));
    }
    vec_push(&g->nodes, n);
    vec_push(&g->order[g->at.program].nodes, self);
    return self;
}

/* --- queries ---------------------------------------------------------------------- */

id graph_block_of(const struct graph *g, id scope)
{
    for (id s = scope; s; s = g->scopes.at[s].parent)
        if (g->scopes.at[s].flags & SCOPE_BLOCK) return s;
    return 0;
}

bool loop_inside(const struct graph *g, id loop, id of)
{
    for (id l = loop; l != of; l = g->loops.at[l].parent)
        if (!l) return false;
    return true;
}

/* Takes about half of a counted loop over tokens to run: in a conversation only the answers have a
 * label. About four fifths of the room for images are filled. What is counted ends within an
 * iteration. */
double loop_iterations(const struct graph *g, id loop)
{
    double times = 1;
    for (; loop; loop = g->loops.at[loop].parent) {
        const struct loop *l = &g->loops.at[loop];
        const bool images = l->block.rows || l->counted == g->sequence.ranges;
        const double filled = !l->counted ? 1 : images ? 0.8 : 0.5;
        times *= filled * l->trip + (1 - filled);
    }
    return times;
}

struct param *graph_param_of(const struct graph *g, id tensor)
{
    for (uint32_t i = g->params.n; i-- > 0;) /* most are asked for soon after they are added */
        if (g->params.at[i].tensor == tensor) return &g->params.at[i];
    return NULL;
}

/* --- rewriting helpers that more than one pass needs --------------------------------- */

void graph_redirect(struct graph *g, id tensor, id target)
{
    struct tensor *x = tensor_at(g, tensor);
    const struct tensor *to = tensor_at(g, target);
    CHECK(tensor_elements(x) == tensor_elements(to) && x->dtype == to->dtype && tensor_is_dense(to));
    x->storage = to->storage;
    x->offset = to->offset;
    x->loop = to->loop;
    x->advance = to->advance;
}

void graph_replace(struct graph *g, enum program p, id from, id to)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        struct node *n = node_at(g, g->order[p].nodes.at[k]);
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] == from) n->in[i] = to;
    }
}

void graph_replace_all(struct graph *g, enum program p, const id *instead, uint32_t count)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        struct node *n = node_at(g, g->order[p].nodes.at[k]);
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] < count && instead[n->in[i]]) n->in[i] = instead[n->in[i]];
    }
}

void graph_infer(struct graph *g, enum program p)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n && !g->error.code; k++) {
        struct node *n = node_at(g, g->order[p].nodes.at[k]);
        const struct op_row *row = &op_table[n->op];
        struct infer f = {.op = n->op, .attr = &n->attr, .nin = n->nin};
        for (int i = 0; i < n->nin; i++) f.in[i] = n->in[i] ? tensor_at(g, n->in[i]) : NULL;
        op_infer(&f);
        if (f.error[0]) {
            infer_failed(g, row, &f, n->in, n->nin);
            return;
        }
        for (int o = 0; o < row->outs; o++) {
            if (!n->out[o]) continue;
            struct tensor *x = tensor_at(g, n->out[o]);
            x->dtype = f.out[o].dtype;
            x->rank = f.out[o].rank;
            memcpy(x->dim, f.out[o].dim, sizeof x->dim);
            if (row->flags & OPF_VIEW) {
                x->storage = f.in[0]->storage; /* differs when a pass gave the node another input */
                x->offset = f.out[o].offset;
                memcpy(x->stride, f.out[o].stride, sizeof x->stride);
            } else if (op_must_alias(n, o) >= 0) {
                const struct tensor *base = f.in[op_must_alias(n, o)];
                x->storage = base->storage;
                x->offset = base->offset;
                memcpy(x->stride, base->stride, sizeof x->stride);
            } else {
                tensor_dense_strides(x);
                g->storages.at[x->storage].bytes = tensor_bytes(x);
            }
        }
    }
}

void graph_prune(struct graph *g, enum program p)
{
    bool *storage = mem_alloc(g->storages.n), *tensor = mem_alloc(g->tensors.n);
    for (id s = 1; s < g->storages.n; s++) storage[s] = kind_is_persistent(g->storages.at[s].kind);
    for (uint32_t i = 0; i < g->outputs.n; i++) tensor[g->outputs.at[i].tensor] = true;
    for (uint32_t i = 0; i < g->params.n; i++) tensor[g->params.at[i].grad] = true; /* it may be a view */

    struct order *order = &g->order[p];
    bool *keep = mem_alloc(order->nodes.n + 1);
    for (uint32_t k = order->nodes.n; k-- > 0;) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        bool live = op_table[n->op].flags & OPF_EFFECT;
        for (int o = 0; o < n->nout && !live; o++)
            live = n->out[o] && (op_table[n->op].flags & OPF_VIEW ? tensor[n->out[o]]
                                                                   : storage[tensor_at(g, n->out[o])->storage]);
        keep[k] = live;
        for (int i = 0; i < n->nin && live; i++) {
            if (!n->in[i]) continue;
            storage[tensor_at(g, n->in[i])->storage] = tensor[n->in[i]] = true;
            /* A view without a node of its own (a loop's slice) keeps its producer. */
            id made = tensor_at(g, n->in[i])->node;
            if (made) tensor[node_at(g, made)->out[0]] = true;
        }
    }
    uint32_t n = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++)
        if (keep[k]) order->nodes.at[n++] = order->nodes.at[k];
    order->nodes.n = n;
    mem_free(storage);
    mem_free(tensor);
    mem_free(keep);
}
