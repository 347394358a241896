/*
 * follow.h: the inputs that follow from what a record holds.
 */
#pragma once

#include "batch/writer.h"

struct follow;
/* Makes room for what follows in a run; `used` says which inputs are written. */
struct follow *follow_new(const struct run *r, const bool used[ROW_INPUTS]);
void follow_free(struct follow *f);
void follow_set_pixels(struct follow *f, const struct image_processor *p);
/* Adds to the record what follows from it; pointers into `f`, valid until the next call. Returns
 * false if its image tokens and its images do not match. */
bool follow_record(struct follow *f, const bool used[ROW_INPUTS], struct batch_record *x);
