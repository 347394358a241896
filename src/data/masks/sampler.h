/*
 * sampler.h: chooses the masks of a sample to train on.
 *
 * The choice uses only the annotations, before anything is decoded:
 *
 *     random          all masks are equally likely
 *     diverse         one mask per k-means cluster of position, size and aspect ratio: the one with
 *                     the highest predicted IoU
 *     quality         the highest predicted IoU
 *     size_balanced   equally many from each quarter of the range of log sizes
 *     all             all, in the file's order, up to max_masks
 *
 * The result is a pure function of the masks, the options and (seed, epoch, position): every
 * thread and every resumed run chooses the same masks. Indices ascend. When at most max_masks
 * masks pass the filters, every strategy chooses all of them.
 */
#pragma once

#include "data/masks/mask.h"

enum sampler_strategy { SAMPLE_RANDOM, SAMPLE_DIVERSE, SAMPLE_QUALITY, SAMPLE_SIZE_BALANCED, SAMPLE_ALL };

struct sampler_options {
    enum sampler_strategy strategy;
    uint32_t max_masks;
    float min_iou, min_stability;
    double min_area, max_area; /* share of the image; max_area 0 means 1 */
    bool crowds;               /* crowds may be chosen */
};

/* Returns the scratch for samples of up to max_records masks. */
size_t sampler_bytes(uint32_t max_records, uint32_t max_masks);

/* Fills chosen[max_masks] with indices into masks[n] and returns their number. */
uint32_t sampler_choose(const struct sampler_options *o, const struct mask *masks, uint32_t n, uint32_t h, uint32_t w,
                        uint64_t seed, uint64_t epoch, uint64_t position, void *scratch, uint32_t *chosen);
