/*
 * plan_request.h: the plan of a run, or a table of plans (tables.h), as a command asks for it:
 * planned and printed. And ways of fine-tuning a model, with the commands that run them (ways.c).
 */
#pragma once

#include "compare/tables.h"

struct plan_request {
    struct plan_source source;   /* `read` and `of` are given; plan_request_read sets the rest */
    const char *devices, *images, *frames, *image_size, *masks; /* as given; NULL: not given */
    const char *ranks;           /* numbers with commas, of a table; NULL: not given */
    const char *plan, *output;   /* plan files: to follow, to write; NULL: none */
    bool budget;                 /* one is given */
    bool explain, explain_all, compare, frontier, json;
};

/* Plans and prints. PL_USAGE names options that do not go together. */
int plan_request_run(struct plan_request *r, struct error *e);
/* Reads the numbers and sizes into r->source; `several`: those of --images and --frames are a
 * table's. */
int plan_request_read(struct plan_request *r, bool several, struct error *e);

/* Say how good the times of a table are, and which GPUs' figures were used for rows given by
 * memory. */
void plan_note_times(const struct plan_rows *rows, struct text *out);
void plan_note_gpus(const struct plan_rows *rows, struct text *out);

/* --- ways of fine-tuning (ways.c) ------------------------------------------------------------- */

/* What is asked: a model or a run, and GPUs. */
struct ways_request {
    const struct config *config;
    const struct model *model;
    const struct plan_source *source;
    const char *gpus;            /* a list with commas */
    const char *run;             /* the file of the commands that are printed */
    struct text first, keys;     /* commands before these; " --set key=value" of what was asked */
    int64_t tokens;              /* of a sample; 0: it has none */
    bool json;
};
/* Plans and prints every way that the model has something for on each GPU, with the host memory
 * that a machine with such a GPU is likely to have, or if that does not suffice with any. PL_NOFIT:
 * none fits. */
int ways_request_run(const struct ways_request *r, struct error *e);
