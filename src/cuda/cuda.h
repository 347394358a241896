/*
 * cuda.h: what the rest of the program may know of the CUDA device beyond
 * struct device_ops. Plain C: no CUDA header is needed to include it, and both
 * builds define it (device.c with CUDA, none.c without).
 */
#ifndef PLIMSOLL_CUDA_H
#define PLIMSOLL_CUDA_H

#include "run/device.h"

/* Cards that this build can see: 0 without a driver, a card, or CUDA in the build. */
int cuda_cards(void);

/* Of an open device: what was recorded and run so far, and the card's memory now. */
struct cuda_view {
    char card[256];
    uint64_t captures;               /* graphs captured */
    uint64_t nodes;                  /* in all of them */
    uint64_t launches;               /* of graphs */
    uint64_t free_bytes, total_bytes;
};
/* False in a build without CUDA, or when the card does not answer. */
bool cuda_look(const struct device *d, struct cuda_view *out);

#endif
