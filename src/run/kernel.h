/*
 * kernel.h: how kernels register against rows of the op table.
 *
 * Two halves. The planning half (match, workspace, seconds) is pure C, always
 * compiled, and a function of shapes, dtypes and the device profile alone: a
 * plan made without the device is the plan made with it. The running half
 * launches on tensors at final addresses. For the CPU both halves stand in one
 * row; for CUDA the running half is bound by name when the device is opened.
 */
#ifndef KERNEL_H
#define KERNEL_H

#include "graph/graph.h"
#include "graph/ops.h"

enum device_kind { DEVICE_REF, DEVICE_CPU, DEVICE_CUDA, DEVICE_COUNT };

struct calibration; /* run/calibration.h */
struct kernel;

/* What is known of a device: measured or published ceilings, never a live query. */
struct profile {
    char name[64];
    enum device_kind kind;
    int threads;               /* CPU threads the plan is for */
    bool native_bf16;
    bool onednn;               /* CPU: oneDNN takes part where its kernels match */
    double flops_f32, flops_bf16;  /* matrix rate, per second */
    double memory_bandwidth;   /* bytes per second */
    double cache_bandwidth;    /* the same of what lies in caches: nodes that move up to... */
    double cache_bytes;        /* ...so many bytes; 0: not known */
    double copy_bandwidth;     /* between the two spaces */
    double launch_seconds;     /* fixed price of a node */
    uint64_t library_workspace; /* cap for cuBLASLt and cuDNN */
    uint64_t memory_bytes;     /* of the GPU; 0: not known */
    const char *published;     /* where ceilings that nobody measured stand; NULL: they are not published ones */
    const struct calibration *measured; /* NULL: these are the built-in ceilings */
};

/* Iterations of a loop that a GPU records: each is a captured graph of its own, or a part of one, and takes memory beside the arena. */
enum { GPU_TRIPS = 64 };

/* One node as the planning half sees it. Inputs not given are NULL. */
struct query {
    const union attr *attr;
    const struct tensor *in[MAX_IN], *out[MAX_OUT];
    int nin, nout;
    bool crosses;              /* input and output lie in different spaces */
    const struct profile *profile;
    const struct kernel *kernel; /* that takes it; NULL: not known, or not chosen yet */
};

/* One tensor as the running half sees it. data NULL: not given. */
struct operand {
    void *data;
    enum dtype dtype;
    int rank;
    int64_t dim[MAX_RANK], stride[MAX_RANK];
};

struct launch {
    const union attr *attr;
    struct operand in[MAX_IN], out[MAX_OUT];
    int nin, nout;
    void *work;                /* as many bytes as `workspace` asked for, 64-aligned */
    uint64_t work_bytes;
    int threads;
    void *state;               /* what the device's record() prepared for this entry */
    void *stream;              /* CUDA: the lane's stream */
};

struct kernel {
    enum op op;
    const char *name;                            /* "gemm_f32", shown by --explain */
    bool (*match)(const struct query *);
    uint64_t (*workspace)(const struct query *); /* NULL: none */
    void (*run)(const struct launch *);          /* NULL in a planning-only table */
};

/* By op the kernels in order of preference, a list that ends with op OP_NONE; NULL for a
 * view. Of CUDA they are families, each such a list over several ops; NULL ends them. */
extern const struct kernel *const ref_kernels[OP_COUNT], *const cpu_kernels[OP_COUNT];
extern const struct kernel *const cuda_kernels[];

/* The first kernel that matches; NULL: the device cannot run this node. */
const struct kernel *kernel_find(enum device_kind device, enum op op, const struct query *q);
/* The query of a node of a graph. */
void query_fill(struct query *q, const struct graph *g, const struct node *n, const struct profile *p);
/* What the node takes at the profile's ceilings; and what it should take, which is that,
 * corrected by what was measured, and the price of a launch. */
double kernel_ideal(const struct query *q, enum op op);
double kernel_seconds(const struct query *q, enum op op);

static inline int64_t operand_elements(const struct operand *x)
{
    int64_t n = 1;
    for (int i = 0; i < x->rank; i++) n *= x->dim[i];
    return n;
}
static inline int64_t operand_last(const struct operand *x) { return x->rank ? x->dim[x->rank - 1] : 1; }
static inline int64_t operand_rows(const struct operand *x)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < x->rank; i++) n *= x->dim[i];
    return n;
}

#endif
