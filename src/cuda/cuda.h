/*
 * cuda.h: the interface of the CUDA device to the rest of the program, beyond struct device_ops.
 * Plain C: no CUDA header is needed to include it.
 *
 * The device is a plug-in, plimsoll-cuda.so, beside the program or the library. It is opened when a
 * GPU is requested. The program therefore starts without loading a CUDA library, runs on machines
 * without one, and a CPU run pays nothing for the GPU support.
 */
#pragma once

#include "base/caller.h"
#include "run/device.h"
#include "run/tape.h"

/* The numbers of the CUDA kernels: positions in kernels.def. */
#define KERNEL(OP, NAME, ...) ROW_##NAME,
enum cuda_row {
#include "cuda/kernels.def"
    CUDA_ROWS
};
#undef KERNEL

/* Returns the number of usable GPUs: 0 without a driver, a GPU, or the plug-in. */
int cuda_gpus(void);
/* Takes, for process `local` of `ranks` on this host, the GPU of that number, or, if there are
 * fewer GPUs, shares one. It is called before anything else of the GPU is used. */
void cuda_take_gpu(int local, int ranks);

/* Counters of an open device, and the current state of the GPU's memory. */
struct cuda_view {
    char gpu[256];
    uint64_t captures;               /* captured graphs */
    uint64_t nodes;                  /* in all captured graphs */
    uint64_t launches;               /* graph launches */
    uint64_t free_bytes, total_bytes;
};
/* Returns false without the plug-in, or when the GPU does not respond. */
bool cuda_get_view(const struct device *d, struct cuda_view *out);

/* Program and plug-in must agree on this value: a plug-in that was built from other sources is not
 * opened. */
#define CUDA_PLUGIN_ABI                                                                                                \
    ((uint64_t)sizeof(struct device) << 48 ^ (uint64_t)sizeof(struct tape) << 36 ^                                     \
     (uint64_t)sizeof(struct entry) << 24 ^ (uint64_t)sizeof(struct cuda_view) << 12 ^                                 \
     (uint64_t)sizeof(struct device_ops) << 6 ^ (uint64_t)CUDA_ROWS << 16 ^                                       \
     (uint64_t)sizeof(struct cuda_plugin) << 32 ^ (uint64_t)OP_COUNT)

/* The plug-in exports one such struct under the name plimsoll_cuda_plugin. */
struct cuda_plugin {
    uint64_t abi;              /* CUDA_PLUGIN_ABI */
    void (*quiet)(bool quiet); /* the plug-in's own copy of log_quiet */
    void (*on_exhaustion)(void (*end)(void)); /* its own copy of mem_on_exhaustion */
    void (*share)(struct caller_slot *slot);    /* its own copy of caller_share */
    const struct device_ops *ops;
    int (*gpus)(void);
    void (*take_gpu)(int local, int ranks);
    bool (*get_view)(const struct device *d, struct cuda_view *out);
    int (*gpu)(struct gpu *c, struct error *e);
};
extern const struct cuda_plugin plimsoll_cuda_plugin __attribute__((visibility("default")));
