/*
 * graph.h: training as data.
 *
 *     storage   bytes somewhere: what the planner places
 *     tensor    a typed, strided view of a storage
 *     node      one op: reads tensors, writes tensors
 *     scope     the module a node belongs to ("model.layers.3")
 *     loop      a counted repetition of consecutive nodes
 *     program   an ordered list of nodes: step, update, evaluation
 *
 * Everything is a 32-bit id into a flat array; id 0 is invalid everywhere, and
 * each array's element 0 is a dummy. Nothing points into anything, so a graph
 * is copied by copying its arrays and its printed form is stable.
 *
 * Order. A program's `order` lists its nodes as they will run. Passes rewrite
 * it. Nodes of one loop are consecutive in it (inner loops nest).
 *
 * Loops. The body's addresses are fixed. A tensor with `loop` set advances by
 * `advance` bytes in each iteration of that loop: that is how a slice moves.
 * A storage written before the loop and updated in place inside it is carried.
 *
 * In place. A node that updates gives a new tensor id on the same storage; the
 * old id must not be read afterwards (the verifier checks).
 *
 * Errors. The first bad call records one message with names and shapes and
 * returns 0; a call on 0 returns 0; graph_error reports once, at the end.
 */
#ifndef GRAPH_H
#define GRAPH_H

#include "base/base.h"
#include "base/dtype.h"
#include "graph/step.h"

typedef uint32_t id; /* storage, tensor, node, scope or loop; 0 is invalid */

enum { MAX_RANK = 6, MAX_IN = 9, MAX_OUT = 6 };

enum space { SPACE_DEVICE, SPACE_HOST, SPACE_COUNT };

/* What a storage is for: the classes of the memory table. The persistent ones
 * (kind_is_persistent) live through every program; the others come and go. */
enum kind {
    KIND_NONE,
    KIND_PARAM,     /* weights that the forward reads */
    KIND_MASTER,    /* f32 copy behind lower-precision weights */
    KIND_GRAD,      /* gradients of parameters */
    KIND_STATE,     /* optimizer state */
    KIND_INPUT,     /* the step's batch */
    KIND_CONST,     /* tables computed once */
    KIND_STEP,      /* struct step_block */
    KIND_OUTPUT,    /* what the host reads after a program */
    KIND_STAGING,   /* buffers for loading and saving */
    KIND_ACT,       /* activations and their gradients */
    KIND_WORKSPACE, /* scratch of one node */
    KIND_COUNT
};
const char *kind_name(enum kind k);
bool kind_is_persistent(enum kind k);

enum phase { PHASE_FORWARD, PHASE_BACKWARD, PHASE_RECOMPUTE, PHASE_UPDATE, PHASE_COUNT };
const char *phase_name(enum phase p);
enum program { PROGRAM_STEP, PROGRAM_UPDATE, PROGRAM_EVAL, PROGRAM_COUNT };
const char *program_name(enum program p);

/* Copies between spaces run in lanes of their own, one each way, since a bus carries both at once; waits join the lanes. */
enum lane { LANE_COMPUTE, LANE_IN, LANE_OUT, LANE_COUNT };
const char *lane_name(enum lane lane);

struct storage {
    uint64_t bytes;
    uint8_t space; /* enum space */
    uint8_t kind;  /* enum kind */
    id name;
    bool handed;   /* made in program step for program update, and dead outside of them */
};

struct tensor {
    id storage;
    id name;
    uint64_t offset;          /* bytes into the storage */
    int64_t dim[MAX_RANK];
    int64_t stride[MAX_RANK]; /* in elements */
    uint8_t dtype, rank;
    id node;                  /* its producer; 0: from outside (parameter, input) */
    id loop;                  /* advances with this loop... */
    int64_t advance;          /* ...by so many bytes an iteration */
};

/* How a parameter or a constant begins. */
enum init_kind { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_DATA };
struct init {
    enum init_kind kind;
    float std;   /* INIT_NORMAL */
    id data;     /* INIT_DATA: offset into graph.blob */
};

struct param {
    id tensor;   /* what the forward reads */
    id master;   /* what the optimizer updates; = tensor unless precision split them */
    id grad;     /* after differentiation; 0: frozen or unreached */
    struct init init;
    bool frozen;
    bool running; /* a statistic: frozen, and yet the step moves it */
};

/* The functions of one variable that ACT knows. */
enum act_kind {
    ACT_GELU,       /* x P(X <= x), X normal: by erf */
    ACT_GELU_TANH,  /* its approximation by tanh */
    ACT_QUICK_GELU, /* x sigmoid(1.702 x) */
    ACT_RELU,
    ACT_SIGMOID,
    ACT_SILU,       /* x sigmoid(x) */
    ACT_TANH,
    ACT_KINDS
};

/* Typed attributes: one member per op that has any. */
union attr {
    struct { float eps; } rmsnorm;
    struct { float eps; } layernorm;
    struct { uint8_t ta, tb, dtype; } matmul; /* BMM too; dtype of the result */
    struct { float scale; uint8_t causal; int64_t window; } attention; /* window 0: none */
    struct { float scale; int32_t height, width; } relative; /* ATTENTION_REL and ATTENTION_BIAS: the grid */
    struct { float scale; int32_t height, width, window; } windowed; /* ATTENTION_WINDOW: the grid, and a window's side */
    struct { float scale; uint8_t inverse; } rope;
    struct { uint8_t rank; int64_t dim[MAX_RANK]; } reshape;
    struct { uint8_t axis; int64_t start, length; } slice;
    struct { uint8_t dtype; } cast;
    struct { double value; uint8_t dtype, rank; int64_t dim[MAX_RANK]; } fill;
    struct { double value; } scale;
    struct { int64_t rows; } embedding_dw;    /* vocabulary: rows of the table */
    /* Of every update; SGD: beta1 is the momentum; ADAFACTOR: neither betas nor eps. key: of the
     * random numbers by which a bf16 p is rounded. */
    struct { double beta1, beta2, eps, weight_decay, lr_scale; uint64_t key; } adamw;
    struct { uint8_t space; } copy;
    struct { uint8_t dtype, rank; int64_t dim[MAX_RANK]; } sum_to; /* of the result */
    struct { float p; uint8_t per_sample; uint32_t key; } dropout; /* key: of the op's random numbers */
    struct { uint8_t kind; } act;             /* enum act_kind */
    struct { uint8_t axes[MAX_RANK]; } permute;
    /* CONV, CONV_DX (H, W: the size of its result) and CONV_DW (kh, kw: its kernel). */
    struct { int32_t stride, pad, groups, kh, kw; int64_t H, W; } conv;
    struct { uint8_t axis; } concat;
    struct { int64_t before[MAX_RANK], after[MAX_RANK]; } pad;
    struct { int64_t rows; } scatter_add;     /* N of the result [B,N,C] */
    struct { int64_t H, W; uint8_t align_corners; } resize; /* H, W of the result; also in RESIZE_BWD */
    struct attr_avgpool {
        int64_t k[2], stride[2], pad[2];      /* of H and W */
        uint8_t count_pad, adaptive;
        int64_t H, W;                         /* of the result; only where the rest does not say */
    } avgpool;
    struct { int64_t group; float eps; } batchnorm;  /* images that share statistics */
    struct { float eps; } batchnorm_frozen;
    struct { double momentum; int64_t count; float eps; } batchnorm_update;
    struct { int32_t size; int64_t H, W; } window;   /* H, W: of UNWINDOW's result */
    struct { uint8_t dtype; } fourier;               /* of the result */
    /* Weights of the three terms; alpha_both: alpha weighs both classes, not 1 - alpha the background. */
    struct { float mean[3], std[3]; uint8_t dtype; } image; /* dtype of the result */
    struct { int32_t rounds, first; } prompt_next;          /* rounds behind the first one; the slot that the first of them fills */
    struct { float focal, dice, iou, alpha, gamma, smooth; uint8_t alpha_both; } mask_loss;
};

struct node {
    uint16_t op;                       /* enum op */
    uint8_t phase, program, lane;
    uint8_t nin, nout;
    bool silent;                       /* it launches nothing (first_sum.c) */
    id in[MAX_IN];                     /* 0: optional input not given */
    id out[MAX_OUT];
    id loop, scope;
    id origin;                         /* the node it was made from; 0: the model's own */
    id made_by;                        /* name of the pass that made it; 0: the model */
    uint32_t stable;                   /* stable id of the forward op: keys random numbers */
    union attr attr;
};

/* Facts of the model's mathematics that passes may use. */
enum scope_flag {
    SCOPE_BLOCK = 1, /* one of a row of like blocks: a unit of recomputation */
    SCOPE_ROWS = 2,  /* rows of its inputs are independent and its result is a sum over them */
};

struct scope {
    id parent, name;                   /* full name, "model.layers.3.mlp" */
    uint8_t flags;                     /* enum scope_flag */
};

struct loop {
    id parent, name;
    uint32_t trip;                     /* planned, the most that may be asked for */
    uint8_t program;
};

/* A tensor that a loop walks over: `slice` is the view of `whole` that advances
 * with `loop`. Autodiff gathers the slices' gradients into the whole's. */
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

/* Where emitted nodes go and what they are marked with. A pass that moves it saves it
 * first and puts it back. */
struct cursor {
    uint8_t program, phase;
    id scope, loop, made_by, origin;
};

/* Where a name is found, and what it is the name of (names.c). */
struct name_slot {
    id name;
    uint32_t hash;
    uint32_t param;                    /* its place in params, plus 1; 0: none */
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
    VEC(struct output) outputs;        /* from element 0 */
    VEC(char) names;                   /* interned strings, each once; an id is an offset */
    struct name_index index;           /* of names */
    struct output_index output_names;
    VEC(uint8_t) blob;                 /* data of constants */
    struct order order[PROGRAM_COUNT];
    id step;                           /* the tensor over struct step_block */

    struct cursor at;                  /* where the next node goes */
    /* What a parameter is called that is declared by `name`; NULL: the same. So layer code
     * serves models whose weights were published under other names. */
    const char *(*rename)(const char *name, char *out, size_t room);
    uint32_t next_stable;

    struct error error;                /* sticky */
};

/* --- life ------------------------------------------------------------- */
void graph_init(struct graph *g);
void graph_free(struct graph *g);
void graph_copy(struct graph *to, const struct graph *from);
/* Both reuse the memory of a graph that is made anew again and again: as graph_init leaves it; a copy. A graph of zeros
 * has no memory yet. */
void graph_clear(struct graph *g);
void graph_copy_over(struct graph *to, const struct graph *from);
/* The sticky error: PL_OK, or its code with `e` filled. */
int graph_error(const struct graph *g, struct error *e);
/* Records the first error; always returns 0. */
id graph_fail(struct graph *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* --- names ------------------------------------------------------------- */
id graph_intern(struct graph *g, const char *s);
const char *graph_name(const struct graph *g, id name);

/* --- making things ----------------------------------------------------- */
id graph_storage(struct graph *g, const char *name, enum kind kind, enum space space, uint64_t bytes);
/* A dense tensor over a storage, from `offset` on. */
id graph_tensor(struct graph *g, const char *name, id storage, enum dtype t, int rank,
                const int64_t *dim, uint64_t offset);
/* A weight by its published name. The second call with one name gives the first
 * one's tensor: that is how a model ties weights and how programs share them. */
id graph_param(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim,
               struct init init);
id graph_input(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim);
id graph_const(struct graph *g, const char *name, enum dtype t, int rank, const int64_t *dim,
               const void *data);
id graph_step(struct graph *g); /* the step storage's tensor, made on first use */
/* Names a tensor of the current program that the host will read afterwards. */
void graph_output(struct graph *g, const char *name, id tensor);
id graph_find_output(const struct graph *g, enum program p, const char *name);
/* A second view of the same elements; same producer, no node. */
id graph_view(struct graph *g, id tensor, enum dtype t, int rank, const int64_t *dim,
              const int64_t *stride, uint64_t offset);

id graph_scope_push(struct graph *g, const char *name, int flags); /* returns the previous one */
void graph_scope_pop(struct graph *g, id previous);
id graph_loop(struct graph *g, const char *name, uint32_t trip);

/* Points the cursor at a program's end, for nodes of `phase` made by pass `made_by`;
 * returns where it stood: `g->at = before` puts it back. */
struct cursor graph_move(struct graph *g, enum program p, enum phase phase, const char *made_by);

/* Appends a node to the current program; shapes and dtypes come from the op's
 * row. Fills n->out; returns the node's id, 0 on (sticky) error. */
id graph_emit(struct graph *g, int op, const union attr *attr, const id *in, int nin);

/* --- looking ------------------------------------------------------------ */
static inline struct tensor *tensor_at(const struct graph *g, id t) { return &g->tensors.at[t]; }
static inline struct node *node_at(const struct graph *g, id n) { return &g->nodes.at[n]; }
static inline struct storage *storage_of(const struct graph *g, id t)
{
    return &g->storages.at[g->tensors.at[t].storage];
}
/* Does it keep its bytes through every program? */
static inline bool storage_lasts(const struct storage *s) { return kind_is_persistent(s->kind) && !s->handed; }
int64_t tensor_elements(const struct tensor *t);
/* Product of all dimensions but the last; the last one. */
int64_t tensor_rows(const struct tensor *t);
static inline int64_t tensor_last(const struct tensor *t) { return t->rank ? t->dim[t->rank - 1] : 1; }
uint64_t tensor_bytes(const struct tensor *t);   /* elements x size */
bool tensor_is_dense(const struct tensor *t);    /* row-major, no gaps */
bool tensors_alike(const struct tensor *a, const struct tensor *b); /* one dtype and shape, both dense */
void tensor_dense_strides(struct tensor *t);
/* "hidden f32[2,128,64]", in a buffer of the caller's. */
char *tensor_print(const struct graph *g, id t, char out[160]);
/* The block scope (or the outermost one) around a node's scope; 0: none. */
id graph_block_of(const struct graph *g, id scope);
/* The scope, or one around it, has the flag. */
bool graph_scope_is(const struct graph *g, id scope, enum scope_flag flag);
/* True when `loop` is `of` or inside it. Everything is inside 0. */
bool loop_inside(const struct graph *g, id loop, id of);
struct param *graph_param_of(const struct graph *g, id tensor); /* NULL: not a parameter */

/* Makes `tensor`, a node's fresh output, be written to where `target` lies: its
 * storage, offset, strides and advance. Shapes must agree in elements. */
void graph_redirect(struct graph *g, id tensor, id target);
/* Replaces input `from` by `to` in every node of the program. */
void graph_replace(struct graph *g, enum program p, id from, id to);
/* The same for many at once: instead[from], by tensor up to `count`; 0: it stays. */
void graph_replace_all(struct graph *g, enum program p, const id *instead, uint32_t count);

/* Adds to program `p` the gradients of `loss` (a scalar of it) with respect to every
 * parameter that is not frozen; fills params' grad (autodiff.c). The loss's own gradient is 1,
 * or `seed`, a scalar like it. */
void graph_differentiate(struct graph *g, enum program p, id loss);
void graph_differentiate_from(struct graph *g, enum program p, id loss, id seed);

/* Runs every node's shape rule again, in order: after a pass changed dtypes
 * or leading dimensions, outputs and storages follow. */
void graph_infer(struct graph *g, enum program p);

/* Drops nodes whose results nobody reads. */
void graph_prune(struct graph *g, enum program p);

/* --- verifier and printer ------------------------------------------------- */
/* Aborts with pass and node when the graph breaks an invariant (verify.c). */
void graph_verify(const struct graph *g, const char *pass);
void graph_print(const struct graph *g, enum program p, struct text *out);

#endif
