/*
 * samples_sheet.h: a contact sheet of the images of a dataset with their masks.
 */
#pragma once

#include "base/base.h"

struct samples;
struct dataset_facts;
struct mask_memory;
/* Writes the sheet: an HTML page with `tables`, the printed statistics, if `path` ends in .html,
 * else a PNG with charts. */
int samples_sheet(const char *path, const struct samples *all, const struct dataset_facts *f,
                  const struct mask_memory *c, const char *tables, struct error *e);
