/*
 * plimsoll.h: Plimsoll as a library: train models in the memory you have.
 *
 *     struct pl_session *s = pl_open();
 *     pl_read_yaml(s, "run.yaml");                    options, as in a run's YAML file
 *     pl_set(s, "train.learning_rate", "1e-3");
 *     pl_set_memory(s, "8GiB");                       the budget
 *     pl_define(s, build, NULL, NULL);                a model of your own, or model.path, model.preset
 *     struct pl_plan_info plan = PL_INIT(pl_plan_info);
 *     pl_plan(s, &plan);                              the memory layout; nothing runs yet
 *     pl_start(s);                                    one allocation of plan.arena_bytes
 *     for (...) {
 *         pl_write_input(s, "x", x, sizeof x);
 *         pl_step(s, &loss, &norm);
 *     }
 *     pl_save(s, "model");
 *     pl_close(s);
 *
 * or, instead of pl_start and the calls after it, pl_train(s), which does what `plimsoll train`
 * does.
 *
 * Rules. A function that can fail returns a code, PL_OK is 0, and pl_message(s) contains what was
 * found, what was expected and what to do. Calls in the wrong order are PL_USAGE. Strings and
 * arrays that you pass are copied or used within the call; those that you get belong to the session
 * and are valid until the next call on it. The library prints nothing (pl_on_log has what it would
 * say) and never exits. After an internal bug or a failed allocation of host memory the call
 * returns PL_FAIL and the session is of no further use. Only within its own threads either ends the
 * process.
 *
 * Threads. Any thread may call; calls on all sessions run one after the other. pl_cancel returns at
 * once.
 *
 * The ABI. A struct that you pass begins with its size, which PL_INIT sets: a later library may
 * have more members at its end, and both sides use those that both have. Members keep their
 * offsets, numbers of enums their values, functions their arguments, for as long as the name of the
 * library is libplimsoll.so.0 (docs/guides/c-library.md).
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

/* Number of elements and array in one, for PL_SHAPE and PL_TENSORS; both exist until the end of the
 * call that they are arguments of. C++ (11 and later) has no compound literals. */
#ifdef __cplusplus
namespace pl_detail {
template <typename T, int N> struct array {
    T at[N];
    operator const T *() const { return at; }
};
template <typename T, typename... X> array<T, sizeof...(X)> list(X... x) { return {{static_cast<T>(x)...}}; }
}
#define PL_LIST(type, ...)                                                                                             \
    int(sizeof(pl_detail::list<type>(__VA_ARGS__).at) / sizeof(type)), pl_detail::list<type>(__VA_ARGS__)
#else
#define PL_LIST(type, ...) (int)(sizeof((type[]){__VA_ARGS__}) / sizeof(type)), (const type[]){__VA_ARGS__}
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* An empty struct of this type with its size: struct pl_plan_info plan = PL_INIT(pl_plan_info); */
#ifdef __cplusplus
extern "C++" {
namespace pl_detail {
template <typename T> T sized()
{
    T x = T();
    x.size = sizeof x;
    return x;
}
}
}
#define PL_INIT(type) pl_detail::sized<struct type>()
#else
#define PL_INIT(type) {.size = sizeof(struct type)}
#endif

/* --- version and errors ------------------------------------------------------------ */

#define PL_VERSION "0.1.0"
/* Returns the version of the library at run time; PL_VERSION is the version of this header. */
PL_API const char *pl_version(void);

enum {
    PL_OK = 0,
    PL_FAIL = 1,    /* a system error, or values that are not finite */
    PL_USAGE = 2,   /* a wrong option, model, file, name, size, or order of calls */
    PL_NOFIT = 3,   /* the budget is too small; pl_plan reports one that fits */
    PL_STOPPED = 4  /* a step callback or pl_cancel ended the call; pl_train has saved a checkpoint */
};

struct pl_session;

/* Returns a new session; NULL: host memory is exhausted. */
PL_API struct pl_session *pl_open(void);
/* Frees everything; with views of its tensors, when the last of them is freed. NULL is allowed. */
PL_API void pl_close(struct pl_session *s);

/* Returns the code (pl_message: the message) of the last call on the session; the message is ""
 * after PL_OK. */
PL_API int pl_code(const struct pl_session *s);
PL_API const char *pl_message(const struct pl_session *s);

enum pl_log { PL_LOG_NOTE = 0, PL_LOG_WARNING = 1, PL_LOG_PROGRESS = 2 };
/* Takes a line that the library would log, without a newline. It may be called on another thread
 * than the call's, and calls no function of the library but pl_cancel. */
typedef void (*pl_log_callback)(enum pl_log level, const char *line, void *user);
/* Sets what takes the lines of this session's calls; NULL: they are dropped, as at first. */
PL_API int pl_on_log(struct pl_session *s, pl_log_callback callback, void *user);
/* Prints lines to stderr: pl_on_log(s, pl_log_stderr, NULL). */
PL_API void pl_log_stderr(enum pl_log level, const char *line, void *user);

/* Asks the running call of the session to end soon with PL_STOPPED: a search for a plan between two
 * candidates, pl_train after the current step with a checkpoint, pl_score after a batch, an answer
 * after its next token, with the tokens so far.
 * From any thread, and from a signal handler. With no call running it ends the next one that can
 * end; `on` 0 withdraws it. */
PL_API void pl_cancel(struct pl_session *s, int on);

/* --- options -------------------------------------------------------------------------- */

/* Sets one key of the configuration (docs/reference/configuration.md): pl_set(s, "train.steps",
 * "100"), pl_set(s, "model.freeze", "[a.*, b.*]"), pl_set(s, "device", "cpu"). "null" restores the
 * default. A later call of pl_set or pl_read_yaml overrides an earlier one; a call that fails sets
 * nothing. An existing plan is dropped. After pl_start only train.learning_rate and train.clip_norm
 * may change. */
PL_API int pl_set(struct pl_session *s, const char *key, const char *value);
PL_API int pl_read_yaml(struct pl_session *s, const char *path);
/* Reads the same from text, YAML or JSON; `name` is its name in messages. */
PL_API int pl_read_text(struct pl_session *s, const char *text, const char *name);
/* Sets memory.budget: a size ("8GiB", "500 MB", "123456"), "auto" or "none". */
PL_API int pl_set_memory(struct pl_session *s, const char *size);

/* --- a model of your own ------------------------------------------------------------------
 *
 * The build callback builds the forward pass for `batch` samples: parameters, inputs, layers, and
 * an output "loss", a scalar. It is called many times, with different batch sizes, while the
 * planner searches for the best split of the effective batch (train.effective_batch) into
 * micro-batches. It must be a pure function of its arguments. It does not deal with memory.
 *
 * Errors are sticky: the first invalid call is recorded with names and shapes and returns 0, a call
 * on 0 returns 0, and pl_plan reports the error. So a callback needs no error handling.
 */
struct pl_builder;
typedef uint32_t pl_tensor; /* valid within one call of the callback; 0: none */
typedef void (*pl_build)(struct pl_builder *b, int64_t batch, void *user);

/* Defines the model of the session. pl_save writes `config_json` as config.json; NULL:
 * {"model_type": "custom"}. With model.path set, weights are read from that folder; otherwise they
 * are initialised as pl_param specifies. build NULL removes the definition. */
PL_API int pl_define(struct pl_session *s, pl_build build, void *user, const char *config_json);
/* Gives a part of that model a folder of weights of its own: parameter "PART.NAME" is read as NAME
 * from `folder`. pl_save writes one folder with the full names; with model.path set, that is read
 * and the folders of parts are not. folder NULL: the part has none. */
PL_API int pl_part(struct pl_session *s, const char *part, const char *folder);

/* Rank and dimensions in one: pl_param(b, "w", PL_SHAPE(10, 64), PL_NORMAL, 0.02f). */
#define PL_SHAPE(...) PL_LIST(int64_t, __VA_ARGS__)
enum { PL_MAX_RANK = 6 };

/* Inputs of a model of your own are PL_F32 or PL_I32; the others are dtypes of data. */
enum pl_dtype { PL_F32 = 1, PL_I32 = 2, PL_F64 = 3, PL_U8 = 4, PL_I64 = 5, PL_F16 = 6, PL_BF16 = 7 };

enum pl_init { PL_ZEROS = 0, PL_ONES = 1, PL_NORMAL = 2 };
/* Returns a weight. Its name is the tensor's name in model.safetensors. A second call with the same
 * name returns the same tensor, which ties weights. `std` is for PL_NORMAL; the values depend on
 * train.seed and the name. */
PL_API pl_tensor pl_param(struct pl_builder *b, const char *name, int rank, const int64_t *dim, enum pl_init init,
                          float std);
/* Returns an input that pl_write_input fills. The first dimension is `batch`, or a multiple of
 * it. */
PL_API pl_tensor pl_input(struct pl_builder *b, const char *name, enum pl_dtype type, int rank, const int64_t *dim);
/* The same for an input whose dimension `axis` is the batch, or a multiple of it:
 *     pl_input_along(b, "series", PL_F32, 1, PL_SHAPE(steps, batch, channels));
 * With PL_SHARED it has no such dimension: all samples of a step use the same values. */
enum { PL_SHARED = -1 };
PL_API pl_tensor pl_input_along(struct pl_builder *b, const char *name, enum pl_dtype type, int axis, int rank,
                                const int64_t *dim);
/* Returns a table of numbers that is part of the model and is not saved in any file. */
PL_API pl_tensor pl_constant(struct pl_builder *b, const char *name, int rank, const int64_t *dim, const float *data);

/* Gives a tensor a name for pl_read_output. An output "loss" is required and must be a scalar. */
PL_API void pl_output(struct pl_builder *b, const char *name, pl_tensor x);

/* Modules: names in messages and plans. PL_BLOCK: one of a sequence of similar blocks; the planner
 * may recompute its activations in the backward pass (gradient checkpointing). PL_ROWS: the first
 * dimension of what the scope reads of the batch counts rows, which are independent of one another,
 * and the scalars that leave it are sums over them, such as a loss. The planner may run it over
 * chunks of the rows (memory.head_chunks), so that wide tensors in it, such as the logits of many
 * classes, exist for a chunk at a time. Only scalars leave it, for pl_add and pl_scale
 * (pl_per_count is within it), and what pl_output names. Scopes nest. */
enum { PL_BLOCK = 1, PL_ROWS = 2 };
PL_API void pl_scope_begin(struct pl_builder *b, const char *name, int flags);
PL_API void pl_scope_end(struct pl_builder *b);

/* The layers of a model: the statement that follows is built for i = 0, 1, ... count - 1, each time
 * in the scope "name.i", a PL_BLOCK. Names of parameters inside begin with "name.i.", so each layer
 * has weights of its own:
 *     PL_LAYERS(b, i, "layers", 12) x = layer(b, x);                         layers.3.up.weight ...
 *
 * A loop with shared weights, such as a recurrent network. Names of parameters are as they are
 * given, so all iterations have the same weights, and their gradients are summed. What an iteration
 * hands to the next is a variable. Dropout chooses anew in each iteration, and the same again where
 * it is recomputed.
 *     PL_LOOP(b, t, "steps", T) h = cell(b, pl_at(b, x, 0, t), h);
 *
 * Both nest. They are unrolled: each iteration is nodes of its own, among which the planner chooses
 * what the backward pass recomputes. No break, goto or return leaves the statement. */
#define PL_LAYERS(b, i, name, count) for (int64_t i = 0; pl_layer(b, name, i, count); i++)
#define PL_LOOP(b, i, name, count) for (int64_t i = 0; pl_iteration(b, name, i, count); i++)
/* Ends iteration i - 1 and begins i; 0: the loop ends, or the builder has an error. */
PL_API int pl_layer(struct pl_builder *b, const char *name, int64_t i, int64_t count);
PL_API int pl_iteration(struct pl_builder *b, const char *name, int64_t i, int64_t count);

/* Records an error of your own; the first error is reported. */
PL_API void pl_fail(struct pl_builder *b, const char *message);

/* The ops (docs/reference/ops.md). "rows x C" means that all leading dimensions are taken
 * together. */
PL_API pl_tensor pl_reshape(struct pl_builder *b, pl_tensor x, int rank, const int64_t *dim); /* one dim may be -1 */
PL_API pl_tensor pl_slice(struct pl_builder *b, pl_tensor x, int axis, int64_t start, int64_t length);
/* Returns element i along an axis, which x has and the result does not: row i of a matrix with axis
 * 0. */
PL_API pl_tensor pl_at(struct pl_builder *b, pl_tensor x, int axis, int64_t i);
/* Stacks n tensors of one shape along a new axis: the opposite of pl_at. */
PL_API pl_tensor pl_stack(struct pl_builder *b, int n, const pl_tensor *x, int axis);
/* Computes x w^T + bias; bias 0: none. */
PL_API pl_tensor pl_linear(struct pl_builder *b, pl_tensor x, pl_tensor w, pl_tensor bias);
PL_API pl_tensor pl_matmul(struct pl_builder *b, pl_tensor x, pl_tensor y, int transpose_x, int transpose_y);
PL_API pl_tensor pl_rmsnorm(struct pl_builder *b, pl_tensor x, pl_tensor w, float eps);
PL_API pl_tensor pl_rope(struct pl_builder *b, pl_tensor x, pl_tensor inv_freq, float scale);
/* Does as pl_rope with the position of each token as an input, PL_I32 [batch,T]. */
PL_API pl_tensor pl_rope_at(struct pl_builder *b, pl_tensor x, pl_tensor inv_freq, pl_tensor positions, float scale);
PL_API pl_tensor pl_silu_gate(struct pl_builder *b, pl_tensor gate, pl_tensor up); /* silu(gate) * up */
PL_API pl_tensor pl_attention(struct pl_builder *b, pl_tensor q, pl_tensor k, pl_tensor v, float scale, int causal);
/* Does as pl_attention with ranges, an input PL_I32 [batch,T,2]: for each query the first key that
 * it sees and one past the last, for rows of several documents, padding, prefixes. window > 0: only
 * the last `window` of these keys. */
PL_API pl_tensor pl_attention_ranges(struct pl_builder *b, pl_tensor q, pl_tensor k, pl_tensor v, pl_tensor ranges,
                                     float scale, int64_t window);
PL_API pl_tensor pl_embedding(struct pl_builder *b, pl_tensor ids, pl_tensor table);
PL_API pl_tensor pl_shift_labels(struct pl_builder *b, pl_tensor labels);
PL_API pl_tensor pl_add(struct pl_builder *b, pl_tensor x, pl_tensor y);
PL_API pl_tensor pl_mul(struct pl_builder *b, pl_tensor x, pl_tensor y);
PL_API pl_tensor pl_scale(struct pl_builder *b, pl_tensor x, double value);
PL_API pl_tensor pl_sum(struct pl_builder *b, pl_tensor x); /* sum of all elements: a scalar */
/* Multiplies [...,M,K] by [...,K,N]. */
PL_API pl_tensor pl_bmm(struct pl_builder *b, pl_tensor x, pl_tensor y, int transpose_x, int transpose_y);
PL_API pl_tensor pl_layernorm(struct pl_builder *b, pl_tensor x, pl_tensor w, pl_tensor bias, float eps);
PL_API pl_tensor pl_softmax(struct pl_builder *b, pl_tensor x); /* over the last dimension */
enum pl_activation {
    PL_GELU = 0,
    PL_GELU_TANH = 1,
    PL_QUICK_GELU = 2,
    PL_RELU = 3,
    PL_SIGMOID = 4,
    PL_SILU = 5,
    PL_TANH = 6,
    PL_EXP = 7
};
PL_API pl_tensor pl_activate(struct pl_builder *b, pl_tensor x, enum pl_activation kind);
/* Sets each element (pl_dropout) or each whole sample to 0 with probability p, else x / (1 - p). x
 * is [batch,...]. Evaluation drops nothing. */
PL_API pl_tensor pl_dropout(struct pl_builder *b, pl_tensor x, float p);
PL_API pl_tensor pl_drop_path(struct pl_builder *b, pl_tensor x, float p);
/* Axis i of the result is axis axes[i] of x. */
PL_API pl_tensor pl_permute(struct pl_builder *b, pl_tensor x, int rank, const int *axes);
PL_API pl_tensor pl_concat(struct pl_builder *b, int n, const pl_tensor *x, int axis);
/* Gathers rows of x [B,N,C] by index i32 [B,M] into [B,M,C]. */
PL_API pl_tensor pl_gather(struct pl_builder *b, pl_tensor x, pl_tensor index);
/* Convolves a feature map [B,H,W,C] with w [O,C/groups,kh,kw]; groups is 1 or C; bias 0: none. */
PL_API pl_tensor pl_conv(struct pl_builder *b, pl_tensor x, pl_tensor w, pl_tensor bias, int stride, int pad,
                         int groups);
/* Convolves transposed, with w [C,O,kh,kw]; bias 0: none. */
PL_API pl_tensor pl_conv_transpose(struct pl_builder *b, pl_tensor x, pl_tensor w, pl_tensor bias, int stride, int pad);
PL_API pl_tensor pl_resize(struct pl_builder *b, pl_tensor x, int64_t H, int64_t W, int align_corners); /* bilinear */
/* Averages over the whole map, to H x W means. */
PL_API pl_tensor pl_avgpool(struct pl_builder *b, pl_tensor x, int64_t H, int64_t W);

/* Emits any op by its name in docs/reference/ops.md, in upper or lower case, with its attributes as
 * text ("" or NULL: none; attributes that are not named are 0); returns the first output:
 *     y = pl_op(b, "rmsnorm", PL_TENSORS(x, w), "eps=1e-6");
 *     y = pl_op(b, "avgpool", PL_TENSORS(x), "k=3,3 stride=2,2 pad=1,1");
 * Ops of the backward pass and the update are excluded, and inputs that an op would write to.
 * plimsoll_ops.h has a function for each op that is not. */
PL_API pl_tensor pl_op(struct pl_builder *b, const char *name, int n, const pl_tensor *x, const char *attributes);
#define PL_TENSORS(...) PL_LIST(pl_tensor, __VA_ARGS__)

/* Losses. A step's loss is a sum over all its samples divided by its count (pl_set_count), so that
 * the split into micro-batches does not change it. pl_cross_entropy includes this division, and
 * labels of -100 have weight 0; any other sum goes through pl_per_count. */
PL_API pl_tensor pl_cross_entropy(struct pl_builder *b, pl_tensor logits, pl_tensor labels);
PL_API pl_tensor pl_per_count(struct pl_builder *b, pl_tensor sum);
/* Does the same for one of several losses, each with a count of its own, named by what it
 * counts:
 *     loss = pl_add(b, pl_cross_entropy_of(b, logits, labels, "tokens"), pl_per_count_of(b, squares, "boxes"));
 * pl_set_count_of sets it. With pl_train the data sets it, and has the counts "tokens" (those
 * that have a successor) and "samples". A model has at most 7 counts. */
PL_API pl_tensor pl_cross_entropy_of(struct pl_builder *b, pl_tensor logits, pl_tensor labels, const char *count);
PL_API pl_tensor pl_per_count_of(struct pl_builder *b, pl_tensor sum, const char *count);

/* --- the plan ------------------------------------------------------------------------------- */

/* What memory is used for. */
enum pl_kind {
    PL_PARAMETERS = 0, /* weights that the forward reads */
    PL_MASTERS = 1,    /* f32 master weights of lower-precision weights */
    PL_GRADIENTS = 2,
    PL_OPTIMIZER = 3,
    PL_KV_CACHE = 4,   /* keys and values of the tokens so far, in generation */
    PL_INPUTS = 5,
    PL_CONSTANTS = 6,
    PL_STEP = 7,       /* learning rate, count and the like */
    PL_OUTPUTS = 8,
    PL_STAGING = 9,    /* the buffer through which weights are read and written */
    PL_ACTIVATIONS = 10,
    PL_WORKSPACE = 11,
    PL_COMMUNICATION = 12, /* what ranks send each other; none with one rank */
    PL_KINDS           /* those that this header knows */
};
enum { PL_KINDS_MOST = 32 };
PL_API const char *pl_kind_name(enum pl_kind kind);

/* A memory technique of the plan by the name of its key in section `memory`, and its value as text:
 * {"recompute", "first:12+selective"}. */
enum { PL_TECHNIQUES = 32 };
struct pl_technique {
    const char *name, *value;
};

struct pl_plan_info {
    size_t size;
    int fits;
    uint64_t arena_bytes;           /* memory that pl_start allocates; the budget bounds it */
    uint64_t host_bytes;            /* host memory for offload (on a CPU: the offload file) */
    uint64_t lower_bound_bytes;     /* live memory at the peak: no placement needs less */
    uint64_t smallest_budget_bytes; /* the smallest budget for which a plan exists */
    uint64_t bytes[PL_KINDS_MOST];  /* live at the peak, by kind; the sum is the lower bound */
    uint64_t parameters, trainable; /* elements */
    int64_t effective_batch;
    int64_t micro_batch;            /* samples in one forward and backward pass... */
    int64_t accumulation;           /* ...and gradient accumulation steps per optimizer step */
    double predicted_seconds;       /* estimated time of a step, from the device's profile */
    int techniques;                 /* how many there are in... */
    struct pl_technique technique[PL_TECHNIQUES];
};
/* Returns the value of a technique; NULL: there is no technique of that name. */
PL_API const char *pl_technique_value(const struct pl_plan_info *plan, const char *name);

/* Finds the plan with the shortest predicted step that fits the budget. PL_NOFIT: `out` holds the
 * smallest plan, with fits 0. A second call without a change of options returns the same. `out` may
 * be NULL. */
PL_API int pl_plan(struct pl_session *s, struct pl_plan_info *out);
/* An input or output of the planned model, over the whole effective batch. */
struct pl_port {
    size_t size;
    const char *name;
    int type;                /* enum pl_dtype, as it is written or read without a dtype */
    int rank;
    int64_t dim[PL_MAX_RANK];
    uint64_t bytes;
    int axis;                /* the dimension that counts samples; PL_SHARED: none */
    int used;                /* 0: no program reads it, or the library fills it; it need not be written */
};
/* Describes the input or output at an index from 0, after pl_plan; PL_USAGE beyond the last one. */
PL_API int pl_input_at(struct pl_session *s, int64_t index, struct pl_port *out);
PL_API int pl_output_at(struct pl_session *s, int64_t index, struct pl_port *out);

/* A tensor in the memory of a step: a rectangle of the memory map, over the ops of the step in
 * their order. Entries of arrays like this one have no size and never change. */
struct pl_block {
    const char *name;
    uint64_t offset, bytes;  /* in the arena */
    uint32_t from, to;       /* the ops during which it lives, `to` not included */
    int32_t kind;            /* enum pl_kind */
    int32_t persistent;      /* 1: it lives through all steps */
};
/* Lists them; `ops`: how many ops a step has. */
PL_API int pl_plan_blocks(struct pl_session *s, const struct pl_block **blocks, size_t *n, uint32_t *ops);

/* Returns the plan as JSON (as `plimsoll plan --json` prints it) or as a readable table; NULL on an
 * error. */
PL_API const char *pl_plan_json(struct pl_session *s);
PL_API const char *pl_plan_table(struct pl_session *s);

/* Return the best plan for each of several budgets, and for each GPU of a list with commas, by
 * GiB of memory or by name ("8,24,h200"): `plimsoll plan --frontier --json`, `--devices`. NULL
 * on an error. The session's own plan stays. */
PL_API const char *pl_frontier_json(struct pl_session *s);
PL_API const char *pl_devices_json(struct pl_session *s, const char *gpus);

/* --- step by step --------------------------------------------------------------------------- */

/* Allocates the planned memory and loads the weights. Plans first if there is no plan. */
PL_API int pl_start(struct pl_session *s);

/* Writes the samples of the whole effective batch as one array of the input's dimensions, with the
 * effective batch in place of `batch`: effective_batch times the bytes of one sample. An input of
 * PL_SHARED is written as it is. The input keeps its values until it is written again. Ids and
 * labels are checked against the size of their table or the number of classes. */
PL_API int pl_write_input(struct pl_session *s, const char *name, const void *data, uint64_t bytes);

/* Does the same with data of another dtype, which is converted: integers to integers that are in
 * range, floats and PL_U8 to floats. */
PL_API int pl_write_input_as(struct pl_session *s, const char *name, enum pl_dtype type, const void *data,
                             uint64_t bytes);

/* Sets the divisor of the loss from the next step on: samples, tokens, or labels that count. 0
 * restores the default: the samples of the effective batch; for a built-in model family its tokens
 * less one per sample. */
PL_API int pl_set_count(struct pl_session *s, double count);
/* Does the same for the losses that pl_cross_entropy_of and pl_per_count_of divide by the count
 * `name`. */
PL_API int pl_set_count_of(struct pl_session *s, const char *name, double count);

/* Runs one optimizer step: forward, backward, gradient clipping, update, with the schedule's
 * learning rate. The loss is the one before the update. Either pointer may be NULL. */
PL_API int pl_step(struct pl_session *s, double *loss, double *gradient_norm);

/* What is known of a step. */
struct pl_step_info {
    size_t size;
    int64_t step, steps;            /* steps so far, and of the whole run */
    double loss, learning_rate, gradient_norm, seconds;
    double units;                   /* tokens or images of the step; 0: not known */
    double loss_scale;              /* f16: of this step; 0: another precision */
    int skipped;                    /* f16: gradients were not finite, and nothing was updated */
};
/* The two halves of a step, apart: a GPU runs a step while the host prepares the next one.
 *
 *     pl_write_input(s, ...); pl_submit(s);
 *     for (...) {
 *         pl_write_input(s, ...);              the next batch: copied to the GPU after the step
 *         pl_submit(s);
 *         pl_retire(s, &info);                 waits for the step before
 *     }
 *     pl_retire(s, &info);
 *
 * Two steps may be submitted; the results come in their order, and `out` may be NULL. The other
 * functions of a started session, but for pl_write_input and pl_set_count, need all steps to be
 * retired. On a CPU pl_submit runs the step. */
PL_API int pl_submit(struct pl_session *s);
PL_API int pl_retire(struct pl_session *s, struct pl_step_info *out);

/* Computes loss and gradients of the current inputs, and updates nothing. The plan keeps gradients
 * with memory.fused_step off. `loss` may be NULL. */
PL_API int pl_backward(struct pl_session *s, double *loss);
/* Reads the gradient of a parameter after pl_step or pl_backward, before clipping; `bytes` is 4
 * times the number of elements. */
PL_API int pl_read_gradient(struct pl_session *s, const char *name, float *data, uint64_t bytes);

/* Computes the loss of the current inputs with the current weights; changes nothing. */
PL_API int pl_evaluate(struct pl_session *s, double *loss);
/* Reads any output by a forward pass: floats, or int32_t for an integer output. A scalar is summed
 * over the micro-batches; for any other output the rows of all samples are concatenated. `bytes` is
 * the size of `data` and must equal the output's. */
PL_API int pl_read_output(struct pl_session *s, const char *name, void *data, uint64_t bytes);

/* Does the same in another dtype: floats as any float, integers as PL_U8, PL_I32 or PL_I64. */
PL_API int pl_read_output_as(struct pl_session *s, const char *name, enum pl_dtype type, void *data, uint64_t bytes);

/* Returns the number of steps since pl_start, those of pl_load_state included. */
PL_API int64_t pl_steps(const struct pl_session *s);

struct pl_parameter {
    size_t size;
    const char *name;
    int rank;
    int64_t dim[PL_MAX_RANK];
    uint64_t elements;
    int frozen;
    int type;                       /* enum pl_dtype that the forward reads; 0: packed, such as 4 bits */
};
/* Describes the parameter at an index from 0, after pl_plan; PL_USAGE beyond the last one. */
PL_API int pl_parameter_at(struct pl_session *s, int64_t index, struct pl_parameter *out);
/* Reads or writes a weight as f32, whatever its dtype; `bytes` is 4 times the number of
 * elements. */
PL_API int pl_read_parameter(struct pl_session *s, const char *name, float *data, uint64_t bytes);
PL_API int pl_write_parameter(struct pl_session *s, const char *name, const float *data, uint64_t bytes);

/* The same in PL_F64, PL_F16 or PL_BF16. */
PL_API int pl_read_parameter_as(struct pl_session *s, const char *name, enum pl_dtype type, void *data, uint64_t bytes);
PL_API int pl_write_parameter_as(struct pl_session *s, const char *name, enum pl_dtype type, const void *data,
                                 uint64_t bytes);

/* DLPack, without a copy: a tensor of the arena, master weights and gradients; it is valid until
 * its deleter is called, also after pl_close. Later steps change what it holds. The caller frees
 * it. */
struct DLManagedTensor;
PL_API int pl_view_parameter(struct pl_session *s, const char *name, struct DLManagedTensor **out);
PL_API int pl_view_gradient(struct pl_session *s, const char *name, struct DLManagedTensor **out);
/* Writes an input from a contiguous tensor in host memory, which stays the caller's. */
PL_API int pl_write_input_view(struct pl_session *s, const char *name, const struct DLManagedTensor *from);

/* Writes a model folder atomically: config.json and safetensors. `dir` must be new or empty. */
PL_API int pl_save(struct pl_session *s, const char *dir);
/* Does the same with the training state: master weights, optimizer state, step. pl_load_state reads
 * it into a started session of the same model, which continues bit for bit; a plan with another
 * budget may read it too. */
PL_API int pl_save_state(struct pl_session *s, const char *dir);
PL_API int pl_load_state(struct pl_session *s, const char *dir);

/* --- the whole loop ------------------------------------------------------------------------- */

/* pl_train calls it after each step, after its metrics are written. A nonzero result ends the
 * run as SIGTERM ends `plimsoll train`: the step in flight, if there is one, is retired too, a
 * checkpoint is saved, and pl_resume continues from it.
 * The callback must not call functions of the same session. NULL: none. */
typedef int (*pl_step_callback)(const struct pl_step_info *info, void *user);
PL_API int pl_on_step(struct pl_session *s, pl_step_callback callback, void *user);

/* Does what `plimsoll train` does: data.train, train.steps or train.epochs, and train.out must
 * be set; metrics, checkpoints and the model go to train.out. The session must not be started. A
 * user-defined model needs the inputs input_ids and labels, i32 [batch, data.sequence]. The
 * library handles no signals. Only one run at a time in a process. PL_STOPPED if the callback or
 * pl_cancel ended the run. */
PL_API int pl_train(struct pl_session *s);
/* Continues from the last checkpoint in train.out, bit for bit. */
PL_API int pl_resume(struct pl_session *s);

/* Returns the model folder that the last pl_train, pl_resume or pl_save wrote; "" if none. */
PL_API const char *pl_model_path(const struct pl_session *s);

/* --- generation --------------------------------------------------------------------------------
 *
 * A language model continues token ids, as `plimsoll generate` does, within the session's budget.
 *
 *     struct pl_session *s = pl_open();
 *     pl_set(s, "model.path", "model");
 *     struct pl_generation o = PL_INIT(pl_generation);
 *     pl_generation_defaults(s, &o);                  those of the model's generation_config.json
 *     o.temperature = 0.7;
 *     struct pl_answer a = PL_INIT(pl_answer);
 *     if (pl_generate(s, ids, count, &o, each_token, NULL, &a)) puts(pl_message(s));
 *     pl_close(s);
 */
struct pl_generation {
    size_t size;
    int64_t max_new;           /* tokens of the answer, at most */
    /* tokens of prompt and answer for which the KV cache is planned; 0: those of this call */
    int64_t context;
    int64_t chunk;             /* tokens of the prompt that are processed at once; 0: the planner chooses */
    double temperature;        /* 0: greedy, always the most likely token; above: tokens are drawn */
    int64_t top_k;             /* draws among the k most likely tokens; 0: all */
    double top_p;              /* draws among the most likely tokens that together have this probability; 1: all */
    double repetition_penalty; /* makes tokens of the text so far less likely; 1: none */
    uint64_t seed;             /* of the draws: the same seed gives the same tokens */
    const int32_t *ends;       /* tokens that end the answer, besides eos_token_id of the model's folder... */
    size_t n_ends;
    const char *const *stops;  /* ...and texts that do; they need a tokenizer: the model's, or data.tokenizer */
    size_t n_stops;
};
/* Fills all members: the values of generation_config.json, 256 new tokens where it has none, no
 * further ends and stops. */
PL_API int pl_generation_defaults(struct pl_session *s, struct pl_generation *out);

enum { PL_END_EOS = 0, PL_END_STOP = 1, PL_END_LENGTH = 2, PL_END_CALLBACK = 3 };
struct pl_answer {
    size_t size;
    const int32_t *ids;        /* the new tokens, with the one that ended the answer */
    size_t count;
    /* their text, without special tokens and without the stop text; "" if there is no tokenizer */
    const char *text;
    size_t bytes;              /* of the text, which has a NUL behind it */
    int end;                   /* why it ended: PL_END_EOS ... */
    double prompt_seconds, seconds; /* for the prompt; for the tokens */
    uint64_t arena_bytes, kv_cache_bytes; /* planned, and allocated */
};
/* Called with each new token; a nonzero result ends the answer after it. It must not call functions
 * of the same session. */
typedef int (*pl_token_callback)(int32_t id, void *user);
/* Continues a prompt of n ids. `options` NULL: pl_generation_defaults; `callback` may be NULL. The
 * first call plans and loads the model, as does one with a longer context, another chunk, or after
 * an option was changed; others reuse it. The session must not be started; pl_start, pl_train and
 * pl_resume free the model that was loaded here. The ids and the text of the answer are valid until
 * the next call on the session. PL_NOFIT: nothing fits the budget. */
PL_API int pl_generate(struct pl_session *s, const int32_t *ids, size_t n, const struct pl_generation *options,
                       pl_token_callback callback, void *user, struct pl_answer *out);
/* Does the same for a text about n images, files that a model with a vision tower sees: <image> is
 * in the text where each of them belongs, or they come before it. "video:PATH" is a video, a file
 * or a folder of its frames, at <video>; data.max_frames, data.fps and data.tokens_per_frame are as
 * in training. The model's tokenizer, or data.tokenizer, encodes the text. */
PL_API int pl_generate_images(struct pl_session *s, const char *text, const char *const *images, size_t n,
                              const struct pl_generation *options, pl_token_callback callback, void *user,
                              struct pl_answer *out);
/* Does the same for a chat, as JSON: a list of {"role", "content"}, or a map with "messages" and
 * perhaps "tools", "images" and "videos". The model's chat template renders it. */
PL_API int pl_chat(struct pl_session *s, const char *messages, const char *const *images, size_t n,
                   const struct pl_generation *options, pl_token_callback callback, void *user, struct pl_answer *out);

/* --- masks, scores, merging --------------------------------------------------------------------
 *
 * The model is model.path; the session must not be started.
 *
 *     float box[4] = {100, 80, 320, 240};
 *     struct pl_image image = PL_INIT(pl_image);
 *     struct pl_prompt prompt = PL_INIT(pl_prompt);
 *     struct pl_masks masks = PL_INIT(pl_masks);
 *     image.path = "photo.jpg";
 *     prompt.box = box;
 *     pl_predict(s, &image, &prompt, 1, 0, &masks);
 *     uint8_t *mask = malloc(masks.width * masks.height);
 *     pl_mask(s, 0, -1, mask, masks.width * masks.height);
 */

/* An image: a file, or pixels in rows from the top, 3 bytes each; one of the two. */
struct pl_image {
    size_t size;
    const char *path;
    const uint8_t *rgb;
    int64_t width, height;     /* of rgb */
};
/* An object: points, a box, or both, in pixels of the image. */
struct pl_prompt {
    size_t size;
    const float *points;       /* x, y of each */
    const int32_t *labels;     /* 1: on the object; 0: beside it */
    size_t n_points;
    const float *box;          /* x0, y0, x1, y1; NULL: none */
};
struct pl_masks {
    size_t size;
    int64_t width, height;     /* of the image */
    int64_t prompts, candidates;
    const float *scores;       /* [prompts][candidates] predicted IoU */
    const int32_t *best;       /* [prompts] the candidate with the highest */
    uint64_t arena_bytes;
};
/* Predicts masks of n prompts, which have the same number of points. `single`: the model's
 * single-mask output instead of the candidates. Scores are valid until the next call. */
PL_API int pl_predict(struct pl_session *s, const struct pl_image *image, const struct pl_prompt *prompts, size_t n,
                      int single, struct pl_masks *out);
/* Fills a mask of the last pl_predict, a byte for each pixel: 1 on the object. Candidate -1: the
 * best. */
PL_API int pl_mask(struct pl_session *s, int64_t prompt, int64_t candidate, uint8_t *mask, uint64_t bytes);

struct pl_scores {
    size_t size;
    double loss, tokens;       /* tokens with a label; 0: it is a model of masks */
    uint64_t samples, masks;
    double iou, dice;          /* means over masks; NaN: there are none */
    double seconds;
    uint64_t arena_bytes;
};
/* Scores the model over data.validation or data.holdout, forward only: the loss of a language
 * model; for masks also IoU and Dice. */
PL_API int pl_score(struct pl_session *s, struct pl_scores *out);

/* Runs one forward and backward on the tensors of a safetensors file, in f32 unless a precision was
 * set, and writes outputs, loss and gradients to another one: `plimsoll step`. The session need not
 * be planned. */
PL_API int pl_step_files(struct pl_session *s, const char *batch, const char *out);

/* Merges a LoRA adapter into its base, folder by folder, as `plimsoll convert --adapter` does. */
PL_API int pl_merge(struct pl_session *s, const char *base, const char *adapter, const char *dir);

/* --- what there is -------------------------------------------------------------------------- */

/* A key of the configuration, as docs/reference/configuration.md lists them. */
struct pl_key {
    size_t size;
    const char *name;          /* "train.steps" */
    const char *type;          /* "integer", "number", "word", ... */
    const char *standard;      /* its default; "": not given */
    const char *allowed;       /* an interval, or words with | between them; "": anything */
    const char *needs;         /* what it needs to have an effect; "": nothing */
    const char *doc;
};
/* An op, as docs/reference/ops.md lists them. */
struct pl_op_info {
    size_t size;
    const char *name, *signature;
    const char *attributes;    /* names, with blanks between them */
    const char *doc;
    int inputs_least, inputs_most, outputs;
    int in_models;             /* 0: pl_op refuses it: it belongs to a backward or an update */
};
/* Describes the key or op at an index from 0; PL_USAGE beyond the last one. */
PL_API int pl_key_at(int64_t index, struct pl_key *out);
PL_API int pl_op_at(int64_t index, struct pl_op_info *out);

/* --- tokenizers --------------------------------------------------------------------------------
 *
 * Text to token ids and back, as a model folder's tokenizer.json or tokenizer.model defines them:
 * the ids of the Hugging Face tokenizers library, or of SentencePiece. No session is needed.
 *
 *     struct pl_tokenizer *t = pl_tokenizer_open("model");
 *     const struct pl_token *tokens;
 *     size_t count;
 *     if (pl_encode(t, "Hello", 5, 1, &tokens, &count)) puts(pl_tokenizer_message(t));
 *     pl_tokenizer_close(t);
 *
 * Results belong to the tokenizer and are valid until the next call on it.
 */
struct pl_tokenizer;

/* A token and the bytes of the text that it encodes; begin == end: it was added, such as BOS. */
struct pl_token {
    int32_t id;
    uint32_t begin, end;
};

/* Opens a model folder, a tokenizer.json or a tokenizer.model. Never NULL: if the file is not
 * accepted, pl_tokenizer_code is not PL_OK, and every later call that returns a code returns the
 * same. */
PL_API struct pl_tokenizer *pl_tokenizer_open(const char *path);
/* Frees the tokenizer; NULL is allowed. */
PL_API void pl_tokenizer_close(struct pl_tokenizer *t);
/* Returns the code (pl_tokenizer_message: the message) of the last call, at first of
 * pl_tokenizer_open; the message is "" after PL_OK. */
PL_API int pl_tokenizer_code(const struct pl_tokenizer *t);
PL_API const char *pl_tokenizer_message(const struct pl_tokenizer *t);

/* Encodes n bytes of UTF-8 as tokens. add_special: with the tokens that the tokenizer adds, such as
 * BOS. */
PL_API int pl_encode(struct pl_tokenizer *t, const char *text, size_t n, int add_special,
                     const struct pl_token **tokens, size_t *count);
/* Decodes ids to text, with a NUL behind its n bytes. skip_special: without special tokens. */
PL_API int pl_decode(struct pl_tokenizer *t, const int32_t *ids, size_t count, int skip_special, const char **text,
                     size_t *n);

/* Returns the largest id + 1; 0: the tokenizer is not open. */
PL_API int32_t pl_token_count(const struct pl_tokenizer *t);
/* Returns the id of a token by its content as stored, such as "<|im_end|>"; -1: there is none. */
PL_API int32_t pl_token_id(const struct pl_tokenizer *t, const char *content);
/* Returns the content of a token as stored; NULL: no token has this id. */
PL_API const char *pl_token_content(const struct pl_tokenizer *t, int32_t id);

#ifdef __cplusplus
}
#endif
#endif
