/*
 * host.h: what the host files of the CUDA device share.
 *
 *     device.c   the GPU: open, memory, copies, running, close
 *     record.c   a tape becomes captured graphs
 *     batch.c    runs of small launches become one
 *     nodes.c    the diagnostic: a tape is launched node by node, and timed
 *     fastest.c  which of cuBLASLt's algorithms is taken; choices.c keeps it
 *     bind.c     running halves of the kernels, by name
 *     products.c, conv.c, attention.c, elementwise.c ...   those, family by family (plan.h)
 */
#ifndef CUDA_HOST_H
#define CUDA_HOST_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "cuda/launch.h"
#include "run/device.h"

struct cuda_state {
    char gpu[256];
    cudaStream_t lane[LANE_COUNT];
    cudaStream_t ahead;                 /* the next batch's lane */
    cudaEvent_t asked, arrived;         /* behind the last program that reads a batch; behind the next one */
    bool coming;                        /* copies that no program waits for yet */
    cudaEvent_t marks[DEVICE_MARKS][2]; /* two for each number, in turn: the event before the awaited one stays readable */
    int turn[DEVICE_MARKS];             /* which of the two is the number's last */
    cudaEvent_t last;                   /* the event that was awaited last; NULL: none */
    double last_at;                     /* clock_seconds() at which it was reached */
    cublasLtHandle_t blas;
    bool written;                       /* the arena may hold something: no place to try things any more */
    struct fastest *fastest;            /* what was chosen by timing (fastest.h); NULL: nothing is */
    uint64_t captures, nodes, launches; /* see struct cuda_view */
};

/* The running half of a kernel. `prepare` is called once per entry, before any
 * capture, and leaves in the launch's state what every launch of it needs; it may
 * be NULL. `launch` enqueues on l->stream and nothing else: it is captured. Both
 * return PL_OK, or the code with `e` filled. */
struct cuda_kernel {
    const char *name;
    int (*prepare)(const struct cuda_state *s, struct entry *entry, struct error *e);
    int (*launch)(const struct launch *l, struct error *e);
    void (*release)(void *state);
    /* Instead of `launch`, for kernels that take many launches at once: enqueues the first
     * of n, and those behind it that go along; says how many, at least 1. They are
     * independent of each other (batch.c), and may use the first one's workspace for all.
     * What each of them leaves has the same bits, whoever goes along. */
    int (*batch)(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e);
    bool chains; /* launches of a batch may have one output 0, to which they add in order */
};
/* By the planning half's name; NULL: there is none. */
const struct cuda_kernel *cuda_kernel_named(const char *name);

/* The families, each ended by a kernel without a name. */
extern const struct cuda_kernel cuda_run_thin[], cuda_run_filters[], cuda_run_products[], cuda_run_conv[], cuda_run_attention_few[], cuda_run_attention_window[], cuda_run_attention[], cuda_run_elementwise[], cuda_run_shuffle[], cuda_run_norms[], cuda_run_tokens[], cuda_run_masks[], cuda_run_update[];

static inline bool has(const struct launch *l, int i) { return i < l->nin && l->in[i].data; }
enum store store_of(enum dtype t);

/* batch.c: launches of one kernel, one behind the other on one stream, that are enqueued
 * together. */
struct batch {
    const struct cuda_kernel *kernel;
    VEC(struct launch) launches;
};
/* Whether a launch may join those that wait; the first always may. */
bool batch_joins(const struct batch *b, const struct cuda_kernel *kernel, const struct launch *l);
void batch_add(struct batch *b, const struct cuda_kernel *kernel, const struct launch *l);
/* Enqueues all, by as few launches as the kernel can; from 0 `*at` becomes the one at fault.
 * None waits then, but their launches are still there to be read. */
int batch_flush(struct batch *b, uint32_t *at, struct error *e);

/* record.c: fills t->device_state; on failure leaves nothing behind. */
int cuda_record(struct device *d, struct tape *t, struct error *e);
int cuda_run(struct device *d, struct tape *t, enum program p, struct error *e);
void cuda_forget(struct tape *t);
/* Lets every kernel of a program prepare its launches, those that have not. They keep it
 * until the capture's end, or, for nodes.c, until cuda_forget. */
int cuda_prepare(const struct cuda_state *s, struct tape *t, enum program p, struct error *e);
/* "step: node 3 LINEAR in model.layers.0 (cublaslt_linear): ..." */
int cuda_name_entry(const struct tape *t, enum program p, const struct entry *entry, struct error *e);
/* device.c: what comes next on the compute lane follows the copies in the next batch's. */
int cuda_join_ahead(struct cuda_state *s, struct error *e);
/* nodes.c: returns when the program has ended. */
int cuda_run_nodes(const struct cuda_state *s, struct tape *t, enum program p, struct error *e);

/* Fills `e` with the call, the error's name and what it means; clears CUDA's own
 * record of it; returns PL_FAIL. */
int cuda_failed(struct error *e, cudaError_t rc, const char *call);
int blas_failed(struct error *e, cublasStatus_t rc, const char *call);

/* For functions that return a code and have `e`. */
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
#define TRY(call)              \
    do {                       \
        int rc_ = (call);      \
        if (rc_) return rc_;   \
    } while (0)

#endif
