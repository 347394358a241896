/*
 * eval.h: between the files of `plimsoll eval`.
 *
 *     eval.c          the command: a pass over the data for each kind of prompt
 *     eval_worst.c    the worst masks as pictures
 */
#ifndef CLI_EVAL_H
#define CLI_EVAL_H

#include "cli/cli.h"
#include "io/file.h"
#include "train/mask_scores.h"

struct eval {
    const char *model, *csv, *overlays, *memory;
    struct names paths, set;
    uint64_t worst;
    bool json;
    struct config config;
    struct run run;
    struct feed feed;
    struct mask_scores found;
    double loss, seconds;
};

/* A sheet of the worst masks, to v->overlays. */
int eval_worst(const struct eval *v, struct error *e);

#endif
