/*
 * device.h: devices that run tapes: the reference, the CPU, or a CUDA GPU.
 *
 * A device owns one arena per space, allocated once with the planned size. The host accesses
 * tensors through read and write only, so that the same training loop drives memory that the host
 * can access and memory that it cannot.
 */
#pragma once

#include "run/tape.h"

enum { DEVICE_EVENTS = 2 };

struct device {
    enum device_kind kind;
    const struct device_ops *ops;
    struct profile profile;
    char *arena[SPACE_COUNT];
    uint64_t bytes[SPACE_COUNT];
    struct ranks *ranks;   /* NULL: this process is the only one */
    uint64_t outside_bytes; /* CUDA: GPU memory that NCCL took for itself, which is in no plan */
    bool deterministic;    /* no kernel is chosen by timing */
    char spill[4096];      /* CPU: the folder of the offload file */
    bool no_file;          /* CPU: anonymous memory instead of the offload file */
    double reached[DEVICE_EVENTS]; /* CPU: completion time of each event (mark) */
    void *state;           /* private to the device */
};

struct device_ops {
    const char *name;
    int (*open)(struct device *, struct error *);
    int (*allocate)(struct device *, const uint64_t bytes[SPACE_COUNT], struct error *);
    /* After tape_build: prepares descriptors, captures graphs. */
    int (*record)(struct device *, struct tape *, struct error *);
    int (*run)(struct device *, struct tape *, enum program, struct error *);
    int (*write)(struct device *, void *to, const void *from, uint64_t bytes, struct error *);
    int (*read)(struct device *, void *to, const void *from, uint64_t bytes, struct error *);
    void (*close)(struct device *, struct tape *);
    /* Free and total bytes of device memory; NULL: the device uses the host's memory. */
    void (*memory)(const struct device *, uint64_t *free, uint64_t *total);
    /* Asynchronous operations; all NULL if a device does not need them. Host pointers lie in host
     * memory (SPACE_HOST); on the CPU, where programs run while the host waits, anywhere.
     *
     * write_later copies on a stream of its own: after every submitted program except the update,
     * before the next program that is not the update. synchronize_writes returns when the
     * sources of these copies may be reused. send copies, in either direction or within the device,
     * in order with the programs. record_event records an event, one of DEVICE_EVENTS, after
     * everything submitted so far; wait_event waits for it. Its `reached` is the clock_seconds() at
     * which the device completed the event, which may be long before the call. Events are waited
     * for in order. */
    int (*write_later)(struct device *, void *to, const void *from, uint64_t bytes, struct error *);
    int (*synchronize_writes)(struct device *, struct error *);
    int (*send)(struct device *, void *to, const void *from, uint64_t bytes, struct error *);
    int (*record_event)(struct device *, int number, struct error *);
    int (*wait_event)(struct device *, int number, double *reached, struct error *);
    /* Appends what `record` chose beyond the plan, a line each: algorithms of a library. NULL:
     * nothing. */
    void (*explain)(const struct tape *, struct text *out);
};
extern const struct device_ops ref_device, cpu_device;

/* Returns the CUDA device; NULL if there is none: `e` holds the reason. */
const struct device_ops *cuda_device(struct error *e);

/* The lowest compute capability that there are kernels for: 7.5. An older GPU can be planned for,
 * and cannot be used. */
enum { GPU_CAPABILITY_LEAST = 75 };

/* A GPU of this machine, as its driver describes it. */
struct gpu {
    char name[128];
    int capability;            /* 90: compute capability 9.0 (sm_90) */
    int multiprocessors;
    double clock;              /* of the multiprocessors, Hz */
    double memory_bandwidth;   /* bytes per second */
    uint64_t memory_bytes;
};
/* Describes the GPU that `device: cuda` opens, the first visible one; on failure `e` holds the
 * reason. Allocates nothing on the GPU, so that `plimsoll plan` may call it. */
int cuda_gpu(struct gpu *c, struct error *e);

/* Fills kind, ops and a default profile; allocates no memory. threads 0: all. */
int device_open(struct device *d, enum device_kind kind, int threads, struct error *e);
int device_allocate(struct device *d, const uint64_t bytes[SPACE_COUNT], struct error *e);
void device_close(struct device *d, struct tape *t);

/* Reports whether this processor has bf16 matrix instructions that are faster than f32
 * (src/cpu/products/micro_bf16.c). */
bool cpu_multiplies_bf16(void);
/* The model of this processor (src/cpu/peak.c). */
struct cpu_identity {
    char name[96]; /* "Intel(R) Xeon(R) ...", "aarch64 0x41 0xd40" */
    char isa[64];  /* the architecture and the instruction set of the kernels */
};
void cpu_identity(struct cpu_identity *c);

/* Reports whether PLIMSOLL_ONEDNN=1 is set and this build has oneDNN (src/cpu/products/onednn.c);
 * for measurements only. */
bool cpu_prefers_onednn(void);
/* Returns the version of oneDNN; NULL: this build has none. */
const char *onednn_version(void);

/* Fills the profile of a plan for a machine that was not calibrated (device.c). */
void profile_default(struct profile *p, enum device_kind kind, int threads);
/* Enables oneDNN in a profile and its name: a plan is accepted only under the same profile name. */
void profile_onednn(struct profile *p, bool takes_part);
