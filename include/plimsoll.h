/*
 * plimsoll.h: Plimsoll as a library: train models in the memory you have.
 *
 *     struct pl_session *s = pl_open();
 *     pl_read_yaml(s, "run.yaml");                    options, as in a run's YAML file
 *     pl_set(s, "train.learning_rate", "1e-3");
 *     pl_set_memory(s, "8GiB");                       the budget
 *     pl_define(s, build, NULL, NULL);                a model of your own, or model.path, model.preset
 *     struct pl_plan_info plan;
 *     pl_plan(s, &plan);                              where every byte will be; nothing has run
 *     pl_start(s);                                    one allocation of plan.arena_bytes
 *     for (...) {
 *         pl_write_input(s, "x", x, sizeof x);
 *         pl_step(s, &loss, &norm);
 *     }
 *     pl_save(s, "model");
 *     pl_close(s);
 *
 * or, instead of pl_start and all after it, pl_train(s): what `plimsoll train` does.
 *
 * Rules. A function that can fail returns a code, PL_OK is 0, and pl_message(s) says what
 * was found, what was expected and what to do. Calls in the wrong order are PL_USAGE. Strings
 * and arrays that you pass are copied or used within the call, those that you get belong
 * to the session until the next call on it. One thread at a time uses the library. It
 * writes to stderr only after pl_verbose(1), apart from warnings; it never exits,
 * except that a bug of its own, and a host that is out of memory, abort.
 */
#ifndef PLIMSOLL_H
#define PLIMSOLL_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PL_API __attribute__((visibility("default")))
#else
#define PL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- version and errors ------------------------------------------------------------ */

#define PL_VERSION "0.1.0"
/* The version of the library that runs: compare with PL_VERSION, that of this header. */
PL_API const char *pl_version(void);

enum {
    PL_OK = 0,
    PL_FAIL = 1,    /* the environment refused, or the numbers are no longer finite */
    PL_USAGE = 2,   /* a wrong option, model, file, name, size, or order of calls */
    PL_NOFIT = 3,   /* the budget is too small; pl_plan says what would do */
    PL_STOPPED = 4  /* a step callback ended pl_train; everything is saved */
};

struct pl_session;

PL_API struct pl_session *pl_open(void);
/* Gives everything back. NULL is fine. */
PL_API void pl_close(struct pl_session *s);

/* Of the last call on the session: its code, and its message, "" when it was PL_OK. */
PL_API int pl_code(const struct pl_session *s);
PL_API const char *pl_message(const struct pl_session *s);

/* Notes and progress on stderr, for all sessions; off at first. */
PL_API void pl_verbose(int on);

/* --- options -------------------------------------------------------------------------- */

/* One key of the configuration (docs/reference/configuration.md): pl_set(s, "train.steps", "100"),
 * pl_set(s, "model.freeze", "[a.*, b.*]"), pl_set(s, "device", "cpu"). "null" puts the default
 * back. The last call wins, whether it is pl_set or pl_read_yaml; one that fails sets nothing. A plan that was made
 * before is dropped. After pl_start only train.learning_rate and train.clip_norm may change. */
PL_API int pl_set(struct pl_session *s, const char *key, const char *value);
PL_API int pl_read_yaml(struct pl_session *s, const char *path);
/* memory.budget: a size ("8GiB", "500 MB", "123456"), "auto" or "none". */
PL_API int pl_set_memory(struct pl_session *s, const char *size);

/* --- a model of your own ------------------------------------------------------------------
 *
 * The build callback emits the forward for `batch` samples: parameters, inputs, layers, and
 * an output "loss", a scalar. It is called many times, with different batches, while the
 * planner looks for the best split of the effective batch (train.effective_batch); it must be a
 * function of its arguments alone. It says nothing of memory.
 *
 * Errors are sticky: the first bad call is recorded with names and shapes and returns 0, a
 * call on 0 returns 0, and pl_plan reports it. So a callback needs no error handling.
 */
struct pl_builder;
typedef uint32_t pl_tensor; /* valid within one call of the callback; 0: none */
typedef void (*pl_build)(struct pl_builder *b, int64_t batch, void *user);

/* `config_json` is written as config.json by pl_save; NULL: {"model_type": "custom"}. With
 * model.path set, weights are read from that folder; otherwise they begin as pl_param says.
 * build NULL takes the definition back. */
PL_API int pl_define(struct pl_session *s, pl_build build, void *user, const char *config_json);

/* Rank and dimensions in one: pl_param(b, "w", PL_SHAPE(10, 64), PL_NORMAL, 0.02f). */
#ifndef __cplusplus
#define PL_SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__}
#endif
enum { PL_MAX_RANK = 6 };

enum pl_dtype { PL_F32 = 1, PL_I32 = 2 };

enum pl_init { PL_ZEROS, PL_ONES, PL_NORMAL };
/* A weight. Its name is the tensor's name in model.safetensors; the second call with one name
 * gives the first one's tensor, which ties weights. `std` is for PL_NORMAL; the values come
 * from train.seed and the name. */
PL_API pl_tensor pl_param(struct pl_builder *b, const char *name, int rank, const int64_t *dim, enum pl_init init,
                          float std);
/* What pl_write_input fills. The first dimension is `batch`, or a multiple of it. */
PL_API pl_tensor pl_input(struct pl_builder *b, const char *name, enum pl_dtype type, int rank, const int64_t *dim);
/* A table of numbers that is part of the model and of no file. */
PL_API pl_tensor pl_constant(struct pl_builder *b, const char *name, int rank, const int64_t *dim, const float *data);

/* Names a tensor for pl_read_output. "loss" must be a scalar and must be there. */
PL_API void pl_output(struct pl_builder *b, const char *name, pl_tensor x);

/* Modules: names in messages and plans. PL_BLOCK: one of a row of like blocks, whose
 * activations the planner may compute twice instead of keeping them. Scopes nest. */
enum { PL_BLOCK = 1 };
PL_API void pl_scope_begin(struct pl_builder *b, const char *name, int flags);
PL_API void pl_scope_end(struct pl_builder *b);

/* Records an error of your own; the first one counts. */
PL_API void pl_fail(struct pl_builder *b, const char *message);

/* The ops (docs/reference/ops.md). "rows x C" takes all leading dimensions together. */
PL_API pl_tensor pl_reshape(struct pl_builder *b, pl_tensor x, int rank, const int64_t *dim); /* one dim may be -1 */
PL_API pl_tensor pl_slice(struct pl_builder *b, pl_tensor x, int axis, int64_t start, int64_t length);
PL_API pl_tensor pl_linear(struct pl_builder *b, pl_tensor x, pl_tensor w, pl_tensor bias); /* x w^T + bias; bias 0: none */
PL_API pl_tensor pl_matmul(struct pl_builder *b, pl_tensor x, pl_tensor y, int transpose_x, int transpose_y);
PL_API pl_tensor pl_rmsnorm(struct pl_builder *b, pl_tensor x, pl_tensor w, float eps);
PL_API pl_tensor pl_rope(struct pl_builder *b, pl_tensor x, pl_tensor inv_freq, float scale);
PL_API pl_tensor pl_silu_gate(struct pl_builder *b, pl_tensor gate, pl_tensor up); /* silu(gate) * up */
PL_API pl_tensor pl_attention(struct pl_builder *b, pl_tensor q, pl_tensor k, pl_tensor v, float scale, int causal);
PL_API pl_tensor pl_embedding(struct pl_builder *b, pl_tensor ids, pl_tensor table);
PL_API pl_tensor pl_shift_labels(struct pl_builder *b, pl_tensor labels);
PL_API pl_tensor pl_add(struct pl_builder *b, pl_tensor x, pl_tensor y);
PL_API pl_tensor pl_mul(struct pl_builder *b, pl_tensor x, pl_tensor y);
PL_API pl_tensor pl_scale(struct pl_builder *b, pl_tensor x, double value);
PL_API pl_tensor pl_sum(struct pl_builder *b, pl_tensor x); /* of all elements: a scalar */
PL_API pl_tensor pl_bmm(struct pl_builder *b, pl_tensor x, pl_tensor y, int transpose_x, int transpose_y); /* [...,M,K] times [...,K,N] */
PL_API pl_tensor pl_layernorm(struct pl_builder *b, pl_tensor x, pl_tensor w, pl_tensor bias, float eps);
PL_API pl_tensor pl_softmax(struct pl_builder *b, pl_tensor x); /* over the last dimension */
enum pl_activation { PL_GELU, PL_GELU_TANH, PL_QUICK_GELU, PL_RELU, PL_SIGMOID, PL_SILU, PL_TANH };
PL_API pl_tensor pl_activate(struct pl_builder *b, pl_tensor x, enum pl_activation kind);
/* Of each element, or of each whole sample: 0 with probability p, else x / (1 - p). x is
 * [batch,...]. Evaluation drops nothing. */
PL_API pl_tensor pl_dropout(struct pl_builder *b, pl_tensor x, float p);
PL_API pl_tensor pl_drop_path(struct pl_builder *b, pl_tensor x, float p);
/* Axis i of the result is axis axes[i] of x. */
PL_API pl_tensor pl_permute(struct pl_builder *b, pl_tensor x, int rank, const int *axes);
PL_API pl_tensor pl_concat(struct pl_builder *b, int n, const pl_tensor *x, int axis);
PL_API pl_tensor pl_gather(struct pl_builder *b, pl_tensor x, pl_tensor index); /* x [B,N,C], index i32 [B,M]: [B,M,C] */
/* Maps are [B,H,W,C]. w [O,C/groups,kh,kw]; groups is 1 or C; bias 0: none. */
PL_API pl_tensor pl_conv(struct pl_builder *b, pl_tensor x, pl_tensor w, pl_tensor bias, int stride, int pad, int groups);
PL_API pl_tensor pl_conv_transpose(struct pl_builder *b, pl_tensor x, pl_tensor w, pl_tensor bias, int stride, int pad); /* w [C,O,kh,kw] */
PL_API pl_tensor pl_resize(struct pl_builder *b, pl_tensor x, int64_t H, int64_t W, int align_corners); /* bilinear */
PL_API pl_tensor pl_avgpool(struct pl_builder *b, pl_tensor x, int64_t H, int64_t W); /* to H x W means that cover the map */

/* Any op by the name that docs/reference/ops.md gives it, capitals or not, with its attributes as text
 * ("" or NULL: none; those not named are 0); the first output:
 *     y = pl_op(b, "rmsnorm", PL_TENSORS(x, w), "eps=1e-6");
 *     y = pl_op(b, "avgpool", PL_TENSORS(x), "k=3,3 stride=2,2 pad=1,1");
 * Not ops of the backward and the update, nor an input that an op would write to. */
PL_API pl_tensor pl_op(struct pl_builder *b, const char *name, int n, const pl_tensor *x, const char *attributes);
#ifndef __cplusplus
#define PL_TENSORS(...) (int)(sizeof((pl_tensor[]){__VA_ARGS__}) / sizeof(pl_tensor)), (const pl_tensor[]){__VA_ARGS__}
#endif

/* Losses. A step's loss is a sum over all its samples divided by its count (pl_set_count):
 * then no split into micro-batches changes it. pl_cross_entropy divides by itself, labels of
 * -100 weigh nothing; another sum goes through pl_per_count. */
PL_API pl_tensor pl_cross_entropy(struct pl_builder *b, pl_tensor logits, pl_tensor labels);
PL_API pl_tensor pl_per_count(struct pl_builder *b, pl_tensor sum);

/* --- the plan -------------------------------------------------------------------------------- */

/* What bytes are for. */
enum pl_kind {
    PL_PARAMETERS, /* weights that the forward reads */
    PL_MASTERS,    /* f32 copies behind lower-precision weights */
    PL_GRADIENTS,
    PL_OPTIMIZER,
    PL_INPUTS,
    PL_CONSTANTS,
    PL_STEP,       /* learning rate, count and the like */
    PL_OUTPUTS,
    PL_STAGING,    /* the buffer through which weights are read and written */
    PL_ACTIVATIONS,
    PL_WORKSPACE,
    PL_KINDS
};
PL_API const char *pl_kind_name(enum pl_kind kind);

struct pl_plan_info {
    int fits;
    uint64_t arena_bytes;           /* what pl_start allocates; what the budget bounds */
    uint64_t host_bytes;            /* of host memory, where optimizer state may go */
    uint64_t lower_bound_bytes;     /* live at the peak instant: no placement needs less */
    uint64_t smallest_budget_bytes; /* one byte less does not fit, in any way */
    uint64_t bytes[PL_KINDS];       /* live at the peak; they add up to the lower bound */
    uint64_t parameters, trainable; /* elements */
    int64_t effective_batch;
    int64_t micro_batch;            /* samples in one forward and backward... */
    int64_t accumulation;           /* ...and how many of those make a step */
    const char *precision;          /* "f32", "bf16", "f16", "bf16-pure" */
    int recompute;                  /* 0: nothing, 1: whole blocks, 2: what is cheap */
    int offload_optimizer;
    int head_chunks;
    double predicted_seconds;       /* of a step, from the device's profile: not a promise */
};

/* Finds the fastest step that fits the budget. PL_NOFIT: `out` holds the smallest plan, with
 * fits 0. Called again without a change of options it gives the same. `out` may be NULL. */
PL_API int pl_plan(struct pl_session *s, struct pl_plan_info *out);
/* The same as JSON (what `plimsoll plan --json` prints) and as the table that people read.
 * NULL on an error. */
PL_API const char *pl_plan_json(struct pl_session *s);
PL_API const char *pl_plan_table(struct pl_session *s);

/* --- step by step ------------------------------------------------------------------------------ */

/* Allocates what the plan says, and loads the weights. Plans first where pl_plan did not. */
PL_API int pl_start(struct pl_session *s);

/* The samples of the whole effective batch, one behind the other: effective_batch times what
 * one sample takes. The input stays as it is until it is written again. Ids and labels are
 * checked against the table or the classes that they choose from. */
PL_API int pl_write_input(struct pl_session *s, const char *name, const void *data, uint64_t bytes);

/* What the losses are divided by from the next step on: samples, tokens, labels that count.
 * 0 puts the default back: the samples of the effective batch; for a model with a family
 * of its own, its tokens less one per sample. */
PL_API int pl_set_count(struct pl_session *s, double count);

/* One optimizer step: forward, backward, clipping, AdamW, with the learning rate of the
 * schedule. The loss is that before the update. Either pointer may be NULL. */
PL_API int pl_step(struct pl_session *s, double *loss, double *gradient_norm);

/* The loss of the batch as it was written with the weights as they are; changes nothing. */
PL_API int pl_evaluate(struct pl_session *s, double *loss);
/* Any output, likewise by a forward: floats, or int32_t for an integer output. A scalar is
 * summed over the micro-batches; of anything else the rows of all samples follow each other.
 * `bytes` is the size of `data` and must be the output's. */
PL_API int pl_read_output(struct pl_session *s, const char *name, void *data, uint64_t bytes);

/* Steps done since pl_start. */
PL_API int64_t pl_steps(const struct pl_session *s);

struct pl_parameter {
    const char *name;
    int rank;
    int64_t dim[PL_MAX_RANK];
    uint64_t elements;
    int frozen;
};
/* The parameter at an index from 0, after pl_plan; PL_USAGE beyond the last. */
PL_API int pl_parameter_at(struct pl_session *s, int64_t index, struct pl_parameter *out);
/* Weights as f32, whatever they are kept in; `bytes` is 4 times the elements. */
PL_API int pl_read_parameter(struct pl_session *s, const char *name, float *data, uint64_t bytes);
PL_API int pl_write_parameter(struct pl_session *s, const char *name, const float *data, uint64_t bytes);

/* Writes a model folder: config.json and safetensors, whole or not at all. `dir` must be new
 * or empty. */
PL_API int pl_save(struct pl_session *s, const char *dir);

/* --- the whole loop -------------------------------------------------------------------------------- */

struct pl_step_info {
    int64_t step, steps;            /* done, and in the whole run */
    double loss, learning_rate, gradient_norm, seconds;
};
/* Called by pl_train after each step, once its metrics are written. Not 0 ends the run as
 * SIGTERM ends `plimsoll train`: a checkpoint is saved and pl_resume goes on from it. The
 * callback must not call functions of the same session. NULL: none. */
typedef int (*pl_step_callback)(const struct pl_step_info *info, void *user);
PL_API int pl_on_step(struct pl_session *s, pl_step_callback callback, void *user);

/* What `plimsoll train` does: data.train, train.steps or train.epochs, train.out must be set;
 * metrics, checkpoints and the model go to train.out. Not on a started session. A model of
 * your own needs the inputs input_ids and labels, i32 [batch, data.sequence]. Signals are yours.
 * One run at a time in a process. PL_STOPPED when the callback said so. */
PL_API int pl_train(struct pl_session *s);
/* Goes on from the last checkpoint in train.out, bit for bit. */
PL_API int pl_resume(struct pl_session *s);

/* The folder that the last pl_train, pl_resume or pl_save left the model in; "" when none. */
PL_API const char *pl_model_path(const struct pl_session *s);

#ifdef __cplusplus
}
#endif
#endif
