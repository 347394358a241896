/*
 * init.h: what `plimsoll init` finds in a folder.
 */
#ifndef CLI_INIT_H
#define CLI_INIT_H

#include "io/file.h"

/* What a run's data keys should say. Texts are on the heap. */
struct found {
    const char *format;     /* a choice of data.format; NULL: nothing was recognised */
    const char *what;       /* the same for people: "tar shards" */
    struct names train;     /* paths or patterns */
    struct names validation;
    const char *train_split, *validation_split; /* csv: values of its split column */
};
/* Looks at a folder, a file or a pattern, by names and first bytes. PL_USAGE when nothing is
 * recognised: the message says what was there and what would have been. */
int init_look(const char *path, struct found *f, struct error *e);
void found_free(struct found *f);

#endif
