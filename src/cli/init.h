/*
 * init.h: detects the format of a dataset for `plimsoll init`.
 */
#ifndef CLI_INIT_H
#define CLI_INIT_H

#include "io/file.h"

/* Values for the data keys of a run. The names are on the heap. */
struct detected {
    const char *format;     /* a choice of data.format; NULL: not recognised */
    const char *what;       /* a description of the format: "tar shards" */
    struct names train;     /* paths or patterns */
    struct names validation;
    const char *train_split, *validation_split; /* csv: values of its split column */
};
/* Detects the format of a folder, a file or a glob from file names and first bytes. PL_USAGE when
 * none is recognised: the message lists the files and the known formats. `bytes`: the format is
 * bytes, whatever the files are. */
int detect_data(const char *path, bool bytes, struct detected *f, struct error *e);
void detected_free(struct detected *f);

#endif
