/*
 * data_report.h: what `data inspect` shows, as text and as JSON.
 *
 *     dataset_facts.c    the statistics of images with masks, and the memory of the masks
 *     samples_sheet.c    a contact sheet of them
 *     text_report.c      what files of conversations and texts hold, what cannot be used and why,
 *                        lengths and labels
 */
#pragma once

#include "batch/text_facts.h"
#include "data/prepare/facts.h"
#include "data/samples.h"

void dataset_facts_print(const struct samples *all, const struct dataset_facts *f, const struct mask_memory *c,
                         struct text *out);
void dataset_facts_json(const struct samples *all, const struct dataset_facts *f, const struct mask_memory *c,
                        struct text *out);

/* Print the memory of the masks of one sample; of the whole sample too where that is known. */
void mask_memory_print(const struct mask_memory *c, struct text *out);
void mask_memory_json(const struct mask_memory *c, struct text *out);

/* Writes the sheet: an HTML page with `tables`, the printed statistics, if `path` ends in .html,
 * else a PNG with charts. */
int samples_sheet(const char *path, const struct samples *all, const struct dataset_facts *f,
                  const struct mask_memory *c, const char *tables, struct error *e);

/* `t`: the tokenizer; NULL: there is none, and no text is measured. */
void text_report_print(const struct text_facts *f, const struct text_measures *m, const struct tokenizer *t,
                       struct text *out);
void text_report_json(const struct text_facts *f, const struct text_measures *m, struct text *out);
