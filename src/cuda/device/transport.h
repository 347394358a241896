/*
 * transport.h: moves bytes between the GPUs of ranks, in stream order, for the kernels of
 * collectives.
 *
 *     nccl       NCCL's sends and receives, GPU to GPU (nccl.c)
 *     staged     through pinned host memory, which is planned (storage "exchange"), and the
 *                transport of the ranks (run/ranks.h), once for every part that fits the host
 *                memory:
 *
 *         stream   copy out | host function: exchange | copy in
 *
 * Both are captured with the kernels around them. They move bytes and add nothing, so that the
 * result has the same bits with either. NCCL is used where every rank has it and a GPU of its own;
 * PLIMSOLL_NCCL is its file if that is not libnccl.so.2, and with PLIMSOLL_NCCL=0 everything is
 * staged.
 */
#pragma once

#include "cuda/device/host.h"
#include "run/ranks.h"

struct nccl;

struct transport {
    struct ranks *ranks;
    struct nccl *nccl;           /* NULL: staged */
    char *out, *in;              /* staged: pinned host memory... */
    uint64_t each;               /* ...this many bytes for each of as many moves as there are ranks */
    VEC(struct staged_call *) calls; /* of captured host functions */
};

/* Called by all ranks alike, before a tape is recorded. */
int transport_open(struct device *d, const struct tape *t, struct error *e);
void transport_close(struct cuda_state *s);
/* Enqueues the moves, whose addresses are on the GPU: staged ones at most as many sends, and
 * receives, as there are ranks. The only rank may send to itself. */
int transport_exchange(struct transport *t, const struct move *moves, int n, const char *where, cudaStream_t stream,
                       struct error *e);
/* Waits for an event, or for a stream if the event is NULL. With NCCL, whose kernels wait for other
 * ranks, this ends after the timeout of ranks, or with NCCL's own error. */
int transport_wait(const struct cuda_state *s, cudaStream_t stream, cudaEvent_t event, struct error *e);

/* Opens only the library (nccl.c): NULL if it is not there or too old, with the reason in `e`. */
struct nccl *nccl_load(struct error *e);
/* Connects all ranks: to each other, too, so that nothing is allocated later. `scratch`: 2 KiB of
 * GPU memory. */
int nccl_connect(struct nccl *x, struct ranks *r, char *scratch, cudaStream_t stream, struct error *e);
int nccl_exchange(struct nccl *x, const struct move *moves, int n, cudaStream_t stream, struct error *e);
/* An error that NCCL found on its own. */
int nccl_check(const struct nccl *x, struct error *e);
const char *nccl_version(const struct nccl *x);
void nccl_close(struct nccl *x, bool abort);
