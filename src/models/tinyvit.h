/*
 * tinyvit.h: the sizes of TinyViT, which tinysam.c reads and tinyvit.c builds.
 */
#ifndef TINYVIT_H
#define TINYVIT_H

#include <stdint.h>

enum { STAGES = 8, SHRINK = 4 /* total stride of the two convolutions of the stem */ };

struct stage {
    int64_t width, depth, heads, window;
    int64_t stride; /* of the downsampling to the next stage */
};

struct tinyvit {
    struct stage stage[STAGES];
    int64_t stages;
    double mlp_ratio, expand; /* expansion within a block: of attention, of convolutions */
    int64_t classes;          /* of a classifier head that is never used; 0: there is none */
};

#endif
