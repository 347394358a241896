/*
 * data_report.h: what `data inspect` shows, as text and as JSON.
 *
 *     dataset_facts.c    the statistics of images with masks, and the memory of the masks
 *     samples_sheet.c    a contact sheet of them
 *     text_report.c      what files of conversations and texts hold, what cannot be used and why,
 *                        lengths and labels; stores of the embeddings of their images
 */
#pragma once

#include "batch/text_source.h"
#include "data/prepare/facts.h"
#include "data/samples.h"

/* Prints the statistics of a dataset, and writes a contact sheet to a path (NULL: nowhere). Masks
 * that are too small for `cells` cells along a side are counted. */
int inspect_samples(struct samples_options *o, const struct names *paths, uint32_t cells, const char *sheet, bool json,
                    struct error *e);
/* Prints the memory of the masks of "WxH,MASKS". */
int inspect_given(const char *given, bool json, struct error *e);
/* Prints what conversations or texts hold, and some samples where the configuration has a
 * tokenizer. */
int inspect_texts(const struct config *c, uint64_t shown, bool json, struct error *e);

/* Reports whether the first path is a store of the embeddings of conversations' images; inspects it
 * or, with `check`, verifies it. */
bool embeddings_alone(const struct names *paths);
int inspect_embeddings(const struct names *paths, bool check, bool json, struct error *e);

/* Writes the sheet: an HTML page with `tables`, the printed statistics, if `path` ends in .html,
 * else a PNG with charts. */
int samples_sheet(const char *path, const struct samples *all, const struct dataset_facts *f,
                  const struct mask_memory *c, const char *tables, struct error *e);
