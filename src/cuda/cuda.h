/*
 * cuda.h: what the rest of the program may know of the CUDA device beyond
 * struct device_ops. Plain C: no CUDA header is needed to include it.
 *
 * The device itself is a plug-in, plimsoll-cuda.so beside the program or the library, opened
 * when a GPU is asked for: the program starts without loading a CUDA library,
 * runs where there is none, and a CPU run pays nothing for the GPU.
 */
#ifndef PLIMSOLL_CUDA_H
#define PLIMSOLL_CUDA_H

#include "graph/ops.h"
#include "run/device.h"
#include "run/tape.h"

/* GPUs that can be used: 0 without a driver, a GPU, or the plug-in. */
int cuda_gpus(void);

/* Of an open device: what was recorded and run so far, and the GPU's memory now. */
struct cuda_view {
    char gpu[256];
    uint64_t captures;               /* graphs captured */
    uint64_t nodes;                  /* in all of them */
    uint64_t launches;               /* of graphs */
    uint64_t free_bytes, total_bytes;
};
/* False without the plug-in, or when the GPU does not answer. */
bool cuda_look(const struct device *d, struct cuda_view *out);

/* For tests: what is recorded from now on runs the kernels on tensor cores of a lesser GPU, of compute capability 86 or 75; 0: the GPU's own. */
void cuda_act_like(int capability);

/* What both sides of the plug-in have to agree on: one that was built from other sources is not opened. */
#define CUDA_PLUGIN_ABI                                                                                                             \
    ((uint64_t)sizeof(struct device) << 48 ^ (uint64_t)sizeof(struct tape) << 36 ^ (uint64_t)sizeof(struct entry) << 24 ^            \
     (uint64_t)sizeof(struct cuda_view) << 12 ^ (uint64_t)sizeof(struct device_ops) << 6 ^ (uint64_t)OP_COUNT)

/* What the plug-in exports, by the name plimsoll_cuda_plugin. */
struct cuda_plugin {
    uint64_t abi;             /* CUDA_PLUGIN_ABI */
    void (*quiet)(bool quiet); /* its own log_quiet */
    const struct device_ops *ops;
    int (*gpus)(void);
    bool (*get_view)(const struct device *d, struct cuda_view *out);
    int (*gpu)(struct gpu *c, struct error *e);
    void (*act_like)(int capability);
};
extern const struct cuda_plugin plimsoll_cuda_plugin __attribute__((visibility("default")));

#endif
