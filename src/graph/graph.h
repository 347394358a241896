/*
 * graph.h: a training step as a graph.
 *
 *     storage   a range of bytes, which the planner places in memory
 *     tensor    a typed, strided view of a storage
 *     node      one op: reads tensors, writes tensors
 *     scope     the module a node belongs to ("model.layers.3")
 *     loop      a counted repetition of consecutive nodes
 *     program   an ordered list of nodes: step, update, ... (programs.def)
 *
 * Everything is a 32-bit id into a flat array; id 0 is invalid everywhere, and each array's element
 * 0 is a dummy. The arrays contain no pointers, so a graph is copied by copying its arrays, and its
 * printed form is stable.
 *
 * Order. A program's `order` lists its nodes in execution order. Passes rewrite it. The nodes of
 * one loop are consecutive in it (inner loops nest).
 *
 * Loops. The body's addresses are fixed. A tensor with `loop` set advances by `advance` bytes in
 * each iteration of that loop: this is how a slice moves. A storage that is written before the loop
 * and updated in place inside it is carried from iteration to iteration.
 *
 * In place. A node that updates a tensor in place returns a new tensor id on the same storage. The
 * old id must not be read afterwards (the verifier checks this).
 *
 * Errors. The first bad call records one message with names and shapes and returns 0; a call on 0
 * returns 0; graph_error returns the message at the end.
 */
#pragma once

#include "base/base.h"
#include "base/dtype.h"
#include "graph/mesh.h"
#include "graph/step.h"

typedef uint32_t id; /* storage, tensor, node, scope or loop; 0 is invalid */

enum { MAX_RANK = 6, MAX_IN = 9, MAX_OUT = 6 };

enum space { SPACE_DEVICE, SPACE_HOST, SPACE_COUNT };

/* The purpose of a storage: the classes of the memory table. Persistent classes
 * (kind_is_persistent) keep their bytes through every program; the others are transient. */
enum kind {
    KIND_NONE,
    KIND_PARAM,     /* weights that the forward reads */
    KIND_MASTER,    /* f32 master copy of lower-precision weights */
    KIND_GRAD,      /* gradients of parameters */
    KIND_STATE,     /* optimizer state */
    KIND_CACHE,     /* keys and values of the tokens so far, in generation */
    KIND_INPUT,     /* the step's batch */
    KIND_CONST,     /* tables that are computed once */
    KIND_STEP,      /* struct step_block */
    KIND_OUTPUT,    /* results that the host reads after a program */
    KIND_STAGING,   /* buffers for loading and saving */
    KIND_ACT,       /* activations and their gradients */
    KIND_WORKSPACE, /* scratch of one node */
    KIND_COMM,      /* what ranks send each other: gathered weights, sums over ranks, scratch of collectives */
    KIND_COUNT
};
const char *kind_name(enum kind k);
/* Writes what a tensor is, for people: "gradient of lm_head.MATMUL" for the name
 * "d:lm_head.MATMUL". Returns `out`. */
enum { TENSOR_WORDS = 300 };
const char *tensor_words(const char *name, char out[TENSOR_WORDS]);
bool kind_is_persistent(enum kind k);

enum phase { PHASE_FORWARD, PHASE_BACKWARD, PHASE_RECOMPUTE, PHASE_UPDATE, PHASE_COUNT };
const char *phase_name(enum phase p);
enum program {
#define PROGRAM(NAME, name, flags) PROGRAM_##NAME,
#include "graph/programs.def"
#undef PROGRAM
    PROGRAM_COUNT
};
/* flags of programs.def */
enum {
    PROGRAM_FORWARD = 1,
    PROGRAM_TRAINS = 2,
    PROGRAM_HANDED = 4,
    PROGRAM_TIMED = 8,
    PROGRAM_BESIDE = 16,
    PROGRAM_GENERATES = 32,
    PROGRAM_SINGLE = 64
};
const char *program_name(enum program p);
/* Reports whether the program has the flag. */
bool program_is(enum program p, unsigned flag);
/* Reports whether evaluations in training run the program: one of the model's forward, without a
 * backward. */
bool program_evaluates(enum program p);
/* Reports whether a training step runs the program. */
bool program_steps(enum program p);
#define FOR_STEP_PROGRAMS(p) for (enum program p = 0; p < PROGRAM_COUNT; p++) if (program_steps(p))
/* The programs that have a flag, in order. */
#define FOR_PROGRAMS(p, flag) for (enum program p = 0; p < PROGRAM_COUNT; p++) if (program_is(p, flag))

/* Copies between spaces run in lanes (streams) of their own, one per direction, because the bus is
 * full duplex; what ranks send each other runs in LANE_COMM. LANE_HOST is what the host's processor
 * computes beside a GPU, and LANE_BACK the copies of its results to the GPU: in LANE_IN they would
 * keep back the copies behind them. Waits synchronise the lanes. */
enum lane { LANE_COMPUTE, LANE_IN, LANE_OUT, LANE_COMM, LANE_HOST, LANE_BACK, LANE_COUNT };
const char *lane_name(enum lane lane);

struct storage {
    uint64_t bytes;
    uint8_t space; /* enum space */
    uint8_t kind;  /* enum kind */
    id name;
    /* alive in two programs, the second of which is HANDED (programs.def): from step to update, or
     * a cache from prompt to next */
    bool handed;
    /* KIND_INPUT: the dimension that counts samples, along which micro-batches split it;
     * INPUT_SHARED: none */
    int8_t axis;
    uint8_t form;  /* enum stored (stored.h): how it keeps values; 0: plain */
    /* enum rank_axis: each of these ranks holds `bytes` bytes of the whole, which a tensor without
     * a node describes (shard.h); 0: it is the whole */
    uint8_t shard;
    /* 1 + the index in graph.divisions: it holds one part of the whole; 0: it is the whole */
    uint16_t division;
    uint16_t part; /* with `division`: the number among the parts of this rank */
};

/* How a weight, or the state of its optimizer, is divided into parts, which the ranks of
 * AXIS_TENSOR hold (division.h). */
enum { SECTIONS_MOST = 4 };
struct section {
    int64_t length; /* along the axis, of the whole */
    int32_t copies; /* parts that follow each other and hold the same */
};
struct division {
    uint8_t rank, axis, sections;
    bool blocks;           /* of a weight of this shape a pair of numbers for each block of 8-bit state */
    int32_t parts, here;   /* of all ranks; of each rank */
    int64_t dim[MAX_RANK]; /* of the whole */
    struct section section[SECTIONS_MOST];
};

struct tensor {
    id storage;
    id name;
    uint64_t offset;          /* bytes into the storage */
    int64_t dim[MAX_RANK];
    int64_t stride[MAX_RANK]; /* in elements */
    uint8_t dtype, rank;
    bool part;                /* one of the arrays in which its storage keeps the values of another tensor (stored.h) */
    id node;                  /* its producer; 0: none (parameter, input) */
    id loop;                  /* advances with this loop, */
    int64_t advance;          /* by this many bytes per iteration */
    /* 1 + the dimension that counts entries of the graph's sequence, where it is declared (an
     * input, or a part of one); what follows from it is found in sequence.c; 0: none */
    uint8_t along;
};

/* The initial value of a parameter or a constant. */
enum init_kind { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_DATA, INIT_UNIFORM, INIT_ROW_NORMS, INIT_FILL };
struct init {
    enum init_kind kind;
    float std;   /* INIT_NORMAL; INIT_UNIFORM: the values are between -std and std; INIT_FILL: all are std */
    id data;     /* INIT_DATA: offset into graph.blob */
    int64_t padding; /* INIT_NORMAL: 1 + the row that is 0; 0: none */
};

struct param {
    id tensor;   /* the weights that the forward reads */
    id master;   /* the weights that the optimizer updates; = tensor unless the precision pass split them */
    id grad;     /* set by differentiation; 0: frozen, or the loss does not depend on it */
    struct init init;
    bool frozen;
    bool running; /* a running statistic: frozen, but the step updates it */
    bool added;   /* by a pass (lora.c): it is not in the model's own folder */
    /* a matrix [inputs,outputs] of a linear layer, which reads its transpose (layers.h): adapters
     * and forms with fewer bits are those of the transpose */
    bool transposed;
    /* enum stored: the form that the model's folder has; 0: plain. The storage has the form that is
     * used */
    uint8_t form;
    /* never quantized: training trains it, but this graph is for inference, where all weights are
     * frozen */
    bool exact;
    /* 1 + the index of the parameter whose values, or norms of rows (INIT_ROW_NORMS), it starts
     * with; 0: none */
    uint32_t like;
    /* 1 + the index of the parameter whose first part this rank holds beside this one; 0: it is a
     * parameter itself. Such parameters are the last ones, while passes run */
    uint32_t main;
};

/* The activation functions of ACT. */
enum act_kind {
    ACT_GELU,       /* x P(X <= x), X standard normal: exact, by erf */
    ACT_GELU_TANH,  /* the tanh approximation of GELU */
    ACT_QUICK_GELU, /* x sigmoid(1.702 x) */
    ACT_RELU,
    ACT_SIGMOID,
    ACT_SILU,       /* x sigmoid(x) */
    ACT_TANH,
    ACT_EXP,
    ACT_KINDS
};

/* Typed attributes: a struct for each ATTRS row of ops.def, which make writes there. */
union attr {
#include "attrs.h"
};

enum { OPS_MOST = 256 };

struct node {
    uint16_t op;                       /* enum op */
    uint8_t phase, program, lane;
    uint8_t nin, nout;
    bool silent;                       /* it launches no kernel (first_sum.c) */
    id in[MAX_IN];                     /* 0: an optional input that is not given */
    id out[MAX_OUT];
    id loop, scope;
    id origin;                         /* the node it was derived from; 0: built by the model */
    id made_by;                        /* name of the pass that created it; 0: the model */
    union attr attr;
};

/* Properties of the model's mathematics that passes may use. */
enum scope_flag {
    SCOPE_BLOCK = 1, /* one of a sequence of similar blocks: the unit of recomputation (gradient checkpointing) */
    SCOPE_ROWS = 2,  /* the rows of its inputs are independent and its result is a sum over them */
    SCOPE_PART = 4,  /* a part of the model: names of parameters and constants inside begin with the scope's name */
    SCOPE_IMAGES = 8, /* the first dimension of its inputs and results counts images, which are independent */
    SCOPE_PASS = 16, /* a pass over parts of the model, such as a round of prompts: no module of the model */
};

struct scope {
    id parent, name;                   /* full name, "model.layers.3.mlp" */
    uint8_t flags;                     /* enum scope_flag */
};

/* How much of a whole is computed at a time: `part` of `whole` independent samples. A kernel that
 * may compute a sample otherwise among fewer samples is chosen as for all of them: a sample has the
 * same bits either way. */
struct portion {
    uint32_t part, whole;              /* 0, 0: all of it */
};
/* Returns the rows of the whole, of which the portion has `rows`. */
static inline int64_t portion_whole(struct portion p, int64_t rows) { return p.part ? rows * p.whole / p.part : rows; }

struct loop {
    id parent, name;
    uint32_t trip;                     /* planned trip count: the maximum at run time */
    uint8_t program;
    /* A loop over rows with labels (LABELLED_FIRST) or images that are used (USED_FIRST), which
     * come first: at run time the iterations without any are left out. */
    /* the storage of the input in which they are counted; 0: all iterations are run */
    id counted;
    uint32_t rows;                     /* with `counted`: rows, or images, of one iteration */
    /* no rows: the input has labels; else indices of features, in blocks of an image each */
    struct feature_blocks block;
    /* Slices go on from one iteration of the loop around to the next, instead of beginning again:
     * iteration i of that one and j of this one read slice i * trip + j. */
    bool continues;
    struct portion portion;            /* of an iteration, where the loop computes what could be computed at once */
    /* The portion is tokens of rows, the first iteration's from `first` on (token_chunks.c). Such a
     * loop is inside one block, and has no copies between memory spaces. `row`: the tokens of a
     * sample; 0: not known. */
    bool tokens;
    uint32_t first, row;
    /* enum rank_axis; a loop with one is never entered: its iteration is the number of the rank's
     * shard, and its trip the number of ranks */
    uint8_t axis;
    uint32_t host;                     /* with `axis`: attr.group.host, which decides these numbers (run/ranks.h) */
};

/* A tensor that a loop iterates over: `slice` is the view of `whole` that advances with `loop`.
 * Autodiff gathers the slices' gradients into the gradient of the whole. */
struct cut {
    id loop, whole, slice;
};

struct order {
    VEC(id) nodes;
};

struct output {
    id name, tensor;
    uint8_t program;
};

/* The insertion point of emitted nodes and the labels that they get. A pass that moves it saves it
 * first and restores it afterwards. */
struct cursor {
    uint8_t program, phase;
    id scope, loop, made_by, origin;
};

/* An entry of the name table: a name, and the parameter or scope that has it (names.c). */
struct name_slot {
    id name;
    uint32_t hash;
    uint32_t param;                    /* index in params, plus 1; 0: none */
    id scope;
};
struct name_index {
    struct name_slot *slot;
    uint32_t slots, used;
};

/* The name of what an op gives in a scope, so that its text is put together once (names.c). */
struct output_slot {
    uint64_t key;                      /* scope, op, phase and number of the output; 0: a free slot */
    id name;
};
struct output_index {
    struct output_slot *slot;
    uint32_t slots, used;
};

struct graph {
    VEC(struct storage) storages;
    VEC(struct tensor) tensors;
    VEC(struct node) nodes;
    VEC(struct scope) scopes;
    VEC(struct loop) loops;
    VEC(struct cut) cuts;              /* from element 0 */
    VEC(struct param) params;          /* from element 0 */
    VEC(struct division) divisions;    /* from element 0 */
    VEC(struct output) outputs;        /* from element 0 */
    VEC(char) names;                   /* interned strings, each once; an id is an offset */
    struct name_index index;           /* hash index of names */
    struct output_index output_names;
    VEC(uint8_t) blob;                 /* data of constants */
    struct order order[PROGRAM_COUNT];
    struct mesh mesh;                  /* of the ranks that run it */
    id step;                           /* the tensor over struct step_block */
    /* names of the counts in it that losses are divided by; 0: the one without a name */
    id counts[STEP_COUNTS];
    uint32_t n_counts;

    struct cursor at;                  /* insertion point of the next node */
    /* Maps the name that layer code gives a parameter to its published name; NULL: they are the
     * same. With it, shared layer code serves models with other weight names. */
    const char *(*rename)(const char *name, char *out, size_t room);
    uint32_t dropouts;                 /* dropouts in training so far: the key of the last one */

    /* A sequence of planned length that the samples of a micro-batch share, such as the patches of
     * their images. A batch may have fewer entries, and these first (run/sequence.h). */
    struct {
        id ranges;                     /* storage, i32 [1,entries,2], empty behind the last entry; 0: no sequence */
        int64_t samples;               /* each has room for an equal part of the entries */
        int64_t bucket;                /* the entries of a sample are rounded up to a multiple of this number */
        /* Every sample's entries are at the beginning of its room, as a pass may visit samples by
         * themselves (encode.c); else they follow those of the sample before. Ranges count from
         * the beginning of a section, of as many samples as are visited at once; 0: all. */
        bool apart;
        int64_t section;
    } sequence;

    struct error error;                /* sticky */
};

/* --- construction and destruction ------------------------------------- */
void graph_init(struct graph *g);
void graph_free(struct graph *g);
/* Reuses the memory of a graph that is rebuilt many times: graph_clear leaves it as graph_init
 * does, graph_copy_over makes it a copy. A graph of zeros has no memory yet. */
void graph_clear(struct graph *g);
void graph_copy_over(struct graph *to, const struct graph *from);
/* Returns the sticky error: PL_OK, or its code with `e` filled. */
int graph_error(const struct graph *g, struct error *e);
/* Records the first error; always returns 0. */
id graph_fail(struct graph *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* --- names ------------------------------------------------------------- */
id graph_intern(struct graph *g, const char *s);
const char *graph_name(const struct graph *g, id name);

/* --- building ---------------------------------------------------------- */

id graph_storage(struct graph *g, const char *name, enum kind kind, enum space space, uint64_t bytes);
/* Adds a dense tensor over a storage, from `offset` on. */
id graph_tensor(struct graph *g, const char *name, id storage, enum dtype t, int rank,
                const int64_t *dim, uint64_t offset);
/* Returns a weight by its published name. A second call with the same name returns the tensor of
 * the first: this is how a model ties weights and how programs share them. */
id graph_param(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim,
               struct init init);
id graph_input(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim);
/* An input whose samples are counted by dimension `axis` instead of the first one: [T,B,C] has axis
 * 1. INPUT_SHARED: it has no such dimension, and all micro-batches read the same. */
enum { INPUT_SHARED = -1 };
id graph_input_along(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim, int axis);
/* Says that dimension `axis` of an input counts entries of the graph's sequence, and which input
 * has the ranges of these entries. Id 0 is allowed. */
void graph_set_along(struct graph *g, id input, int axis);
void graph_set_sequence(struct graph *g, id ranges, int64_t samples, int64_t bucket);
id graph_const(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim,
               const void *data);
/* Returns memory of the model, by name: what one program leaves in it the next one finds there.
 * CACHE_WRITE writes it. Its dtype is that of the rows that are written. */
id graph_cache(struct graph *g, const char *name, int rank, const int64_t *dim);
id graph_step(struct graph *g); /* the tensor of the step block, created on first use */
/* Returns 1 / count of the whole step, a scalar of the step block that a loss is multiplied by.
 * `name` says what is counted, in a model with several losses; NULL: the count of a model with one.
 * Before each step the host writes the count of every name (graph.counts). */
id graph_count(struct graph *g, const char *name);
/* Returns the name of count k; "": it has none. */
const char *graph_count_name(const struct graph *g, uint32_t k);
/* Names a tensor of the current program that the host reads after the program. */
void graph_output(struct graph *g, const char *name, id tensor);
id graph_find_output(const struct graph *g, enum program p, const char *name);
/* Adds a second view of the same elements, with the same producer and no node. */
id graph_view(struct graph *g, id tensor, enum dtype t, int rank, const int64_t *dim,
              const int64_t *stride, uint64_t offset);

id graph_scope_push(struct graph *g, const char *name, int flags); /* returns the previous scope */
void graph_scope_pop(struct graph *g, id previous);
id graph_loop(struct graph *g, const char *name, uint32_t trip);
/* The statement that follows is built in a scope, or in a loop inside the current one (trip 0: in
 * none). It ends at its end: no return, break or goto leaves it.
 *
 *     IN_SCOPE(g, "mlp", 0) x = op_add(g, x, mlp(b, x));
 */
struct inside {
    struct graph *g;
    id scope, loop; /* around it */
    bool open;
};
struct inside graph_enter_scope(struct graph *g, const char *name, int flags);
struct inside graph_enter_loop(struct graph *g, const char *name, uint32_t trip);
struct inside graph_enter_part(struct graph *g, const char *name, int flags);
void graph_leave(struct inside *in);
#define INSIDE_NAME(what, line) what##line
#define INSIDE(what, line, entered)                                                                                    \
    for (struct inside INSIDE_NAME(what, line) = entered; INSIDE_NAME(what, line).open;                                \
         graph_leave(&INSIDE_NAME(what, line)))
#define INSIDE_AT(what, line, entered) INSIDE(what, line, entered)
#define IN_SCOPE(g, name, flags) INSIDE_AT(scope_, __LINE__, graph_enter_scope(g, name, flags))
/* A scope with SCOPE_PART, and other flags; "": none, the model itself. */
#define IN_PART(g, name) IN_PART_WITH(g, name, 0)
#define IN_PART_WITH(g, name, flags) INSIDE_AT(part_, __LINE__, graph_enter_part(g, name, flags))
#define IN_LOOP(g, name, trip) INSIDE_AT(loop_, __LINE__, graph_enter_loop(g, name, trip))

/* Moves the cursor to the end of a program, for nodes of `phase` emitted by pass `made_by`; returns
 * the previous cursor: `g->at = before` restores it. */
struct cursor graph_move(struct graph *g, enum program p, enum phase phase, const char *made_by);

/* Appends a node to the current program; shapes and dtypes come from the op's row. Fills n->out.
 * Returns the node's id, or 0 on a (sticky) error. */
id graph_emit(struct graph *g, int op, const union attr *attr, const id *in, int nin);

/* --- queries ------------------------------------------------------------ */

static inline struct tensor *tensor_at(const struct graph *g, id t) { return &g->tensors.at[t]; }
static inline struct node *node_at(const struct graph *g, id n) { return &g->nodes.at[n]; }
static inline struct storage *storage_of(const struct graph *g, id t)
{
    return &g->storages.at[g->tensors.at[t].storage];
}
/* Reports whether the storage keeps its bytes through every program. */
static inline bool storage_is_persistent(const struct storage *s)
{
    return kind_is_persistent((enum kind)s->kind) && !s->handed;
}
int64_t tensor_elements(const struct tensor *t);
/* Returns the product of all dimensions except the last, or (tensor_last) the last dimension. */
int64_t tensor_rows(const struct tensor *t);
static inline int64_t tensor_last(const struct tensor *t) { return t->rank ? t->dim[t->rank - 1] : 1; }
uint64_t tensor_bytes(const struct tensor *t);   /* elements x size */
bool tensor_is_dense(const struct tensor *t);    /* row-major, no gaps */
bool tensors_alike(const struct tensor *a, const struct tensor *b); /* same dtype and shape, both dense */
void tensor_dense_strides(struct tensor *t);
/* Writes a tensor as "hidden f32[2,128,64]" into the caller's buffer and returns the buffer. */
char *tensor_print(const struct graph *g, id t, char out[160]);
/* Returns the block scope (or the outermost one) around a node's scope; 0: none. */
id graph_block_of(const struct graph *g, id scope);
/* Reports whether the scope or one of its parents has the flag. */
bool graph_scope_is(const struct graph *g, id scope, enum scope_flag flag);
/* Returns the outermost row-wise scope (SCOPE_ROWS) that a scope is in; 0: none. */
id graph_rows_of(const struct graph *g, id scope);
/* Reports whether `loop` is `of` or inside it. Every loop is inside 0. */
bool loop_inside(const struct graph *g, id loop, id of);
/* Returns the loop around the loop over tokens that `loop` is, or `loop` itself. */
static inline id loop_body(const struct graph *g, id loop)
{
    return g->loops.at[loop].tokens ? g->loops.at[loop].parent : loop;
}
/* Returns how often the body of `loop` is expected to run in its program; 1 for 0, no loop. */
double loop_iterations(const struct graph *g, id loop);
struct param *graph_param_of(const struct graph *g, id tensor); /* NULL: not a parameter */

/* Makes the producer of `tensor`, a node's fresh output, write into `target` instead: takes over
 * its storage, offset, strides and advance. Both must have the same number of elements. */
void graph_redirect(struct graph *g, id tensor, id target);
/* Replaces input `from` by `to` in every node of the program. */
void graph_replace(struct graph *g, enum program p, id from, id to);
/* Replaces many inputs at once: instead[from], indexed by tensor up to `count`; 0: unchanged. */
void graph_replace_all(struct graph *g, enum program p, const id *instead, uint32_t count);

/* Adds to program `p` the gradients of `loss` (a scalar of that program) with respect to every
 * parameter that is not frozen, and fills the params' grad (autodiff.c). The gradient of the loss
 * itself is 1, or `seed`, a scalar of the same dtype. */
void graph_differentiate(struct graph *g, enum program p, id loss);
void graph_differentiate_from(struct graph *g, enum program p, id loss, id seed);

/* Reruns every node's shape rule, in order, after a pass changed dtypes or leading dimensions:
 * updates outputs and storages. */
void graph_infer(struct graph *g, enum program p);

/* Removes nodes whose results are never read. */
void graph_prune(struct graph *g, enum program p);

/* --- verifier and printer ------------------------------------------------- */
/* Aborts with pass and node when the graph breaks an invariant (verify.c). */
void graph_verify(const struct graph *g, const char *pass);
void graph_print(const struct graph *g, enum program p, struct text *out);
