/*
 * plan_tables.h: what `plimsoll plan` and `plimsoll fits` share: their options, and the notes and
 * tables of plan_tables.c.
 */
#pragma once

#include "cli/cli.h"
#include "compare/trial.h"

enum { IMAGES_MOST = 4096, FRAMES_MOST = 65536 };

struct plan_options {
    struct options o;
    const char *devices, *images, *frames, *image_size, *masks;
    bool explain, explain_all, compare, frontier;
    struct plan_source source; /* of plan_options_read */
};

/* Makes o->source of the options. The numbers of --images and --frames are those of a table if it
 * has several. */
int plan_options_read(struct plan_options *o, bool several, struct error *e);

/* Say how good the times of a table are, and which GPUs' figures were used for rows given by
 * memory. */
void plan_note_times(const struct plan_rows *rows, struct text *out);
void plan_note_gpus(const struct plan_rows *rows, struct text *out);

/* Each plans and prints a table. */
int table_compare(const struct plan_options *o, struct error *e);
int table_frontier(const struct plan_options *o, struct error *e);
int table_devices(const struct plan_options *o, struct error *e);
int table_ranks(const struct plan_options *o, struct error *e);
