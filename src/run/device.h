/*
 * device.h: a place where tapes run: the reference, the CPU, or a CUDA GPU.
 *
 * A device owns one arena per space, allocated once with the planned size. The
 * host reaches tensors through read and write only, so that the same training
 * loop drives memory it can and memory it cannot touch.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include "run/tape.h"

enum { DEVICE_MARKS = 2 };

struct device {
    enum device_kind kind;
    const struct device_ops *ops;
    struct profile profile;
    char *arena[SPACE_COUNT];
    uint64_t bytes[SPACE_COUNT];
    bool deterministic;    /* nothing is chosen by timing */
    char spill[512];       /* where the CPU's host memory keeps its file */
    double reached[DEVICE_MARKS]; /* the CPU: when it was done with what each mark stands for */
    void *state;           /* the device's own */
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
    /* Bytes of its memory that are free, and all; NULL: it is the host's. */
    void (*memory)(const struct device *, uint64_t *free, uint64_t *total);
    /* Without waiting; all NULL where a device has no need of it. What is the host's lies in the second
     * space; on the CPU, where programs run while the host waits, anywhere.
     *
     * write_later copies in a lane of its own: behind every program that was asked for but the update, before the
     * next one that is not the update. settle returns when what was so written need not be kept any more.
     * send copies, either way or within the device, in order with the programs. mark remembers, under one of
     * DEVICE_MARKS numbers, what was asked for so far; await returns when that is done. Its `reached` is the
     * clock_seconds() at which the device was done, which may be long before the call. Marks are awaited in order. */
    int (*write_later)(struct device *, void *to, const void *from, uint64_t bytes, struct error *);
    int (*settle)(struct device *, struct error *);
    int (*send)(struct device *, void *to, const void *from, uint64_t bytes, struct error *);
    int (*mark)(struct device *, int number, struct error *);
    int (*await)(struct device *, int number, double *reached, struct error *);
};
extern const struct device_ops ref_device, cpu_device;

/* The CUDA device; NULL when there is none: `e` says why. */
const struct device_ops *cuda_device(struct error *e);

/* A GPU that is in this machine, as its driver describes it. */
struct gpu {
    char name[128];
    int capability;            /* 90: compute capability 9.0 */
    int multiprocessors;
    double clock;              /* theirs, Hz */
    double memory_bandwidth;   /* bytes per second */
    uint64_t memory_bytes;
};
/* The GPU that device: cuda would open, the first that is visible; else `e` says what is missing.
 * Takes nothing from the GPU, so that a plan may ask. */
int cuda_gpu(struct gpu *c, struct error *e);

/* Fills kind, ops and a default profile; no memory is taken yet. threads 0: all. */
int device_open(struct device *d, enum device_kind kind, int threads, struct error *e);
int device_allocate(struct device *d, const uint64_t bytes[SPACE_COUNT], struct error *e);
void device_close(struct device *d, struct tape *t);

/* This processor multiplies bf16 itself, faster than f32 (src/cpu/micro_bf16.c). */
bool cpu_multiplies_bf16(void);
/* Which processor this is (src/cpu/peak.c). */
struct cpu_identity {
    char name[96]; /* "Intel(R) Xeon(R) ...", "aarch64 0x41 0xd40" */
    char isa[64];  /* the architecture and the inner loops that are used */
};
void cpu_identity(struct cpu_identity *c);

/* oneDNN is in this build and faster here than our own products (src/cpu/onednn.c). */
bool cpu_has_onednn(void), cpu_prefers_onednn(void);

/* The profile a plan uses when nobody measured this machine (profile.c). */
void profile_default(struct profile *p, enum device_kind kind, int threads);
/* A GPU that need not be here, by name: as it was measured, else its published ceilings
 * (gpus.c). `c` must live as long as the profile. */
int profile_gpu(struct profile *p, struct calibration *c, const char *name, struct error *e);
bool profile_is_gpu(const char *name);
/* Measured profiles that come with the program (profile_stored.c). */
bool profile_is_stored(const char *name);
int profile_stored(struct profile *p, struct calibration *c, const char *name, struct error *e);
/* The same of a GPU that is here: by its name, or else by what its driver says. */
void profile_here(struct profile *p, const struct gpu *c);
/* With or without oneDNN, which its name tells: a plan is followed only under the same name. */
void profile_onednn(struct profile *p, bool takes_part);

#endif
