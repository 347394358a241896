/*
 * dataset_facts.h: the statistics of a dataset of images with masks, and the memory of its masks
 * (data/prepare/facts.h), as text and as JSON.
 */
#pragma once

#include "data/prepare/facts.h"
#include "data/samples.h"

void dataset_facts_print(const struct samples *all, const struct dataset_facts *f, const struct mask_memory *c,
                          struct text *out);
void dataset_facts_json(const struct samples *all, const struct dataset_facts *f, const struct mask_memory *c,
                         struct text *out);

/* Print the memory of the masks of one sample; of the whole sample too where that is known. */
void mask_memory_print(const struct mask_memory *c, struct text *out);
void mask_memory_json(const struct mask_memory *c, struct text *out);
