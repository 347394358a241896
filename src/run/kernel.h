/*
 * kernel.h: how kernels register for rows of the op table.
 *
 * A kernel has two halves. The planning half (match, workspace, seconds) is C and always compiled;
 * it depends on shapes, dtypes and the device profile only: a plan made without the device equals
 * the plan made with it. The running half launches on tensors at final addresses. For the CPU both
 * halves are in one row; for CUDA a row of cuda/kernels.def ties them together.
 */
#pragma once

#include "graph/graph.h"
#include "run/ranks.h"
#include "run/traits.h"

struct calibration; /* cost/calibration.h */
struct ranks;       /* run/ranks.h */
struct kernel;

/* A link between ranks (cost/links.h). */
struct link {
    double latency;            /* seconds of an exchange, whatever its size... */
    double peer;               /* ...and for each peer */
    double bandwidth;          /* bytes per second in one direction; 0: not known */
    int ranks;                 /* the number of ranks it was measured between; 0: not measured */
    char name[16];
};

/* Properties of a device: measured or published ceilings, never a live query. */
struct profile {
    char name[64];
    enum device_kind kind;
    int threads;               /* CPU threads of the plan */
    int capability;            /* compute capability of the GPU: 90 is 9.0; 0: not a GPU */
    bool native_bf16;
    bool onednn;               /* CPU: use oneDNN kernels where they match */
    double flops_f32, flops_bf16;  /* of matrix products, per second */
    double flops_fp8;          /* the same of e4m3; a CPU emulates them */
    double memory_bandwidth;   /* bytes per second */
    double cache_bandwidth;    /* the same in the caches, for nodes that move up to... */
    double cache_bytes;        /* ...this many bytes; 0: not known */
    double copy_bandwidth;     /* between device and host memory (CPU: the offload file) */
    double host_bandwidth;     /* GPU: of updates on the host's processors; 0: not measured */
    double launch_seconds;     /* fixed cost of a node */
    uint64_t library_workspace; /* limit for cuBLASLt */
    uint64_t memory_bytes;     /* of the GPU; 0: not known */
    const char *published;     /* source of published ceilings; NULL: not published ones */
    struct link link[2];       /* between ranks of one host, and of different ones */
    int per_host;              /* ranks of a host; 0: all are on one */
    const struct calibration *measured; /* NULL: built-in or published ceilings */
    /* of the times that are shown (calibrate/time_factor.h); 0: they are as predicted. The planner
     * does not read it */
    double factor;
};

/* Maximum iterations of a loop on a GPU: each is captured, as a CUDA graph or a part of one, and
 * takes memory outside the arena. */
enum { GPU_TRIPS = 64 };

/* One node as the planning half sees it. Absent inputs are NULL. */
struct query {
    const union attr *attr;
    const struct tensor *in[MAX_IN], *out[MAX_OUT];
    int nin, nout;
    bool crosses;              /* copy between device and host */
    bool host;                 /* the host's processor computes it, beside a GPU */
    double away;               /* bytes of its inputs that are in host memory, and stay there */
    struct portion portion;    /* of the loop around the node */
    struct mesh mesh;          /* of the ranks */
    const struct profile *profile;
    const struct kernel *kernel; /* the chosen kernel; NULL: none yet */
};

/* One tensor as the running half sees it. data NULL: absent. */
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
    void *work;                /* work_bytes bytes, as `workspace` returned, 64-byte aligned */
    uint64_t work_bytes;
    int threads;
    int access;                /* as the kernel's `access` returned; 0: it has none */
    int form;                  /* as the kernel's `forms` chose; 0: it has one */
    void *state;               /* prepared by the device's record() for this entry */
    void *stream;              /* CUDA: the stream of the entry's lane */
    uint32_t iteration;        /* of the loop around the node */
    struct portion portion;    /* of that loop */
    int64_t token;             /* in a loop over tokens: the first one of the iteration; else 0 */
    struct portion extent;     /* of a sequence: the entries that there are, of those planned (sequence.h) */
    struct ranks *ranks;       /* NULL: this process is the only one (run/ranks.h) */
    struct mesh mesh;          /* in which these are */
    int shard;                 /* number of this rank's shards (graph/shard.h) */
};

/* Returns the rows that the launch would have if nothing were left out of its loop or sequence.
 * What decides the order of a sum, or an algorithm, is a function of these. */
static inline int64_t launch_whole(const struct launch *l, int64_t rows)
{
    return portion_whole(l->extent, portion_whole(l->portion, rows));
}

/* Returns the number, in its sample, of the first of the `elements` elements that a launch has of a
 * sample. */
static inline int64_t launch_element(const struct launch *l, int64_t elements)
{
    return l->token ? l->token * (elements / l->portion.part) : 0;
}

/* Returns the first element, in the whole, of the shard that a launch works on, which has `part`
 * elements; 0: it works on the whole. */
static inline int64_t launch_first(const struct launch *l, int64_t part) { return l->shard * part; }

/* Returns the place of this rank on AXIS_TENSOR. */
static inline int launch_place(const struct launch *l)
{
    return l->ranks ? mesh_place(l->mesh, l->ranks->rank, AXIS_TENSOR) : 0;
}
/* Reports whether a part that the launch works on is the first of its copies. */
static inline bool launch_is_first(const struct launch *l, const int32_t number[3])
{
    const struct part_number of = part_number_read(number);
    return !of.here || (launch_place(l) * of.here + of.part) % mesh_size(of.copies) == 0;
}
/* Returns the key of the random numbers of a part; copies have the same. */
static inline uint64_t launch_key(const struct launch *l, uint64_t key, const int32_t number[3])
{
    return key + (uint64_t)part_index(part_number_read(number), launch_place(l)) * 0x9e3779b97f4a7c15ull;
}

/* Returns the row of EMBEDDING_DW's table that gets no gradient, if it is in this part; outside of
 * the table: none. */
static inline int64_t launch_padding(const struct launch *l)
{
    const int64_t padding = l->attr->embedding_dw.padding, rows = l->attr->embedding_dw.rows;
    const struct part_number of = part_number_read(l->attr->embedding_dw.of);
    return padding ? padding - 1 - part_index(of, launch_place(l)) * rows : -1;
}

/* Returns the n ranks, of those of a collective (attr.group), that this rank is one of. */
static inline struct rank_group launch_group(const struct launch *l, int n, bool across)
{
    return ranks_group(l->mesh, l->ranks->n, l->ranks->rank, (enum rank_axis)l->attr->group.axis, n, across);
}
/* Reports whether there are the ranks that a collective is for: all of its line, or some. */
static inline bool launch_group_fits(const struct launch *l)
{
    const int line = l->ranks ? mesh_line(l->mesh, l->ranks->n, (enum rank_axis)l->attr->group.axis) : 1,
              n = l->attr->group.ranks;
    return l->attr->group.axis > AXIS_DATA ? line % n == 0 : line == n;
}

/* A kernel that is several GPU functions, or algorithms, under one name. The plan chooses one by
 * the node; a launch that it does not fit is an error. */
enum { FORMS_MOST = 6 };
struct forms {
    int (*choose)(const struct query *);         /* an index of `names` */
    const char *names[FORMS_MOST + 1];           /* shown by --explain; ended by NULL */
};

struct kernel {
    uint16_t op;                                 /* CUDA: enum op; the lists of the CPU are each of one op */
    const char *name;                            /* "gemm_f32", shown by --explain */
    bool (*match)(const struct query *);
    uint64_t (*workspace)(const struct query *); /* NULL: none */
    void (*run)(const struct launch *);          /* NULL in a planning-only table */
    int capability;                              /* CUDA: the lowest compute capability; 90: only that one */
    int row;                                     /* CUDA: its number in cuda/kernels.def */
    int (*access)(const struct query *);         /* CUDA: bytes that a thread moves at a time; NULL: always the same */
    const struct forms *forms;                   /* CUDA: NULL: it has one form */
};

/* Returns the form in which a kernel runs a node; and its name. They are 0 and "" if the kernel has
 * one form. */
static inline int kernel_form(const struct kernel *k, const struct query *q)
{
    return k->forms ? k->forms->choose(q) : 0;
}
static inline const char *kernel_form_name(const struct kernel *k, int form)
{
    return k->forms ? k->forms->names[form] : "";
}

/* Reports whether a GPU of this compute capability has the instructions of a kernel. */
static inline bool capability_suffices(int needed, int capability)
{
    return needed == 90 ? capability == 90 : capability >= needed;
}

/* By op: its kernels in order of preference, ended by one without a name; NULL for a view.
 * cuda_kernels is a NULL-terminated list of families, each such a list over several ops. */
extern const struct kernel *const ref_kernels[], *const cpu_kernels[];
extern const struct kernel *const cuda_kernels[];

/* Returns the first matching kernel; NULL: the device cannot run this node. */
const struct kernel *kernel_find(enum device_kind device, uint16_t op, const struct query *q);
/* Fills the query of a node of a graph. */
void query_fill(struct query *q, const struct graph *g, const struct node *n, const struct profile *p);

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
