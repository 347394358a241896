/*
 * host.h: declarations shared by the host files of the CUDA device.
 *
 *     device.c            the GPU: open, memory, copies, running, close
 *     record.c            captures a tape into CUDA graphs
 *     batch.c             merges runs of small launches into one
 *     nodes.c             the diagnostic: launches and times a tape node by node
 *     host_lane.c         lets the host's processor compute a node
 *     transport.c         moves bytes between ranks; nccl.c: by NCCL
 *     matmul_autotune.c   selects cuBLASLt's algorithms by timing; autotune_file.c stores them
 *     bind.c              the list of the running halves of all kernels
 *     products.c, conv.c, attention.c, elementwise.c ...   the running halves by family
 *     (plan_kernels.h)
 */
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "cuda/device/launch.h"
#include "run/device.h"

struct transport; /* transport.h */

struct cuda_state {
    char gpu[256];
    cudaStream_t lane[LANE_COUNT];
    cudaStream_t prefetch;                /* the stream that copies the next batch */
    cudaEvent_t batch_read, batch_copied; /* after the last program that reads a batch; after the prefetch copies */
    bool prefetch_pending;                /* there are prefetch copies that no program waits for yet */
    /* two of each, used in turn: the one before the one that is waited for stays readable */
    cudaEvent_t events[DEVICE_EVENTS][2];
    int turn[DEVICE_EVENTS];               /* which of the two was recorded last */
    cudaEvent_t begin;                    /* before the first of these */
    cudaEvent_t last;                     /* the last event that was waited for, at first `begin`; NULL: none */
    double last_at;                       /* clock_seconds() when it was reached */
    int capability;                       /* compute capability of the GPU: 90 is 9.0 */
    cublasLtHandle_t blas;
    bool arena_written;                   /* the arena may hold data: matmuls can no longer be timed in it */
    struct autotune *autotune;            /* algorithms selected by timing (matmul_autotune.h); NULL: none */
    struct transport *transport;          /* to the GPUs of other ranks; NULL: this is the only process */
    uint64_t captures, nodes, launches;   /* see struct cuda_view */
};

/* The running half of a kernel. `prepare` is called once per entry, before any capture, and stores
 * in the launch's state what every launch of the entry needs; it may be NULL. `launch` only
 * enqueues on l->stream, so that it can be captured. Both return PL_OK, or an error code with `e`
 * filled. */
struct cuda_kernel {
    int (*prepare)(const struct cuda_state *s, struct entry *entry, struct error *e);
    int (*launch)(const struct launch *l, struct error *e);
    void (*release)(void *state);
    /* Appends a line for each algorithm that `prepare` chose of a library; NULL: it chooses
     * none. */
    void (*list)(const void *state, struct text *out);
    /* Replaces `launch` for kernels that merge many launches into one. It enqueues the first of n
     * launches and as many of the following as it can merge, and sets the count, at least 1. The
     * launches are independent of each other (batch.c) and may share the first one's workspace.
     * The result of each launch has the same bits, whichever launches it is merged with. */
    int (*batch)(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e);
    bool chains; /* launches of a batch may share output 0, to which they add in order */
    bool kept;   /* a captured launch reads its state whenever it runs */
    /* a launch that waits for another lane joins those before it, which then wait too: ranks
     * exchange once for all */
    bool meets;
};
/* Defines the running half of a row of kernels.def: CUDA_KERNEL(cuda_softmax, .launch =
 * launch_softmax). */
#define CUDA_KERNEL(NAME, ...) const struct cuda_kernel run_##NAME = {__VA_ARGS__}
#define KERNEL(OP, NAME, ...) extern const struct cuda_kernel run_##NAME;
#include "cuda/kernels.def"
#undef KERNEL
/* Returns the running half of a kernel that the plan chose: for one of the CPU, cuda_host_kernel
 * (host_lane.c). */
const struct cuda_kernel *cuda_kernel_of(const struct kernel *k);
extern const struct cuda_kernel cuda_host_kernel;

static inline bool has(const struct launch *l, int i) { return i < l->nin && l->in[i].data; }
enum store store_of(enum dtype t);

/* batch.c: consecutive launches of one kernel on one stream that are enqueued together. */
struct launch_batch {
    const struct cuda_kernel *kernel;
    VEC(struct launch) launches;
};
/* Reports whether a launch may join the pending ones; the first always may. */
bool batch_joins(const struct launch_batch *b, const struct cuda_kernel *kernel, const struct launch *l);
void batch_add(struct launch_batch *b, const struct cuda_kernel *kernel, const struct launch *l);
/* Enqueues all pending launches with as few kernel launches as the kernel allows. *at starts at 0;
 * on failure it is the index of the launch at fault. Afterwards none is pending, but the array can
 * still be read. */
int batch_flush(struct launch_batch *b, uint32_t *at, struct error *e);

/* record.c: fills t->device_state; on failure frees everything it made. */
int cuda_record(struct device *d, struct tape *t, struct error *e);
int cuda_run(struct device *d, struct tape *t, enum program p, struct error *e);
void cuda_free_recording(struct tape *t);
/* Prints the choices of `prepare`, a line each, with the number of launches that have it. */
void cuda_explain(const struct tape *t, struct text *out);
/* Calls `prepare` for every launch of a program that is not prepared yet. The state is kept until
 * the end of the capture or, for nodes.c, until cuda_free_recording. */
int cuda_prepare(const struct cuda_state *s, struct tape *t, enum program p, struct error *e);
/* Prepends "step: node 3 LINEAR in model.layers.0 (cublaslt_linear): ..." to the error. */
int cuda_name_entry(const struct tape *t, enum program p, const struct entry *entry, struct error *e);
/* Reports whether other ranks use this GPU too (device.c). */
bool cuda_gpu_is_shared(void);
/* Makes later work on the compute lane wait for the prefetch copies (device.c). */
int cuda_join_prefetch(struct cuda_state *s, struct error *e);
/* Runs a program node by node, and returns when it has finished (nodes.c). */
int cuda_run_nodes(const struct cuda_state *s, struct tape *t, enum program p, struct error *e);

/* Fills `e` with the call, the error's name and its description; clears CUDA's last error; returns
 * PL_FAIL. */
int cuda_failed(struct error *e, cudaError_t rc, const char *call);
int blas_failed(struct error *e, cublasStatus_t rc, const char *call);

/* For functions that return an error code and have `e` in scope. */
#define TRY_CUDA(call)                                                \
    do {                                                              \
        cudaError_t rc_ = (call);                                     \
        if (rc_ != cudaSuccess) return cuda_failed(e, rc_, #call);    \
    } while (0)
#define TRY_BLAS(call)                                                       \
    do {                                                                     \
        cublasStatus_t rc_ = (call);                                         \
        if (rc_ != CUBLAS_STATUS_SUCCESS) return blas_failed(e, rc_, #call); \
    } while (0)

/* --- operands of a launch as arguments of launchers ------------------------------------------- */

static inline struct typed_ptr typed_of(const struct operand *x)
{
    return (struct typed_ptr){x->data, store_of(x->dtype)};
}

/* Returns input i, which may be absent. */
static inline struct typed_ptr typed_in(const struct launch *l, int i)
{
    return has(l, i) ? typed_of(&l->in[i]) : (struct typed_ptr){NULL, STORE_F32};
}
static inline void *data_in(const struct launch *l, int i) { return has(l, i) ? l->in[i].data : NULL; }
