/*
 * classifier.h: a vision tower with a head: the classes of images, or which of some texts belong to
 * them.
 *
 * A contrastive model compares every image of a batch with every text of it: as many images run at
 * once as there are texts.
 */
#pragma once

#include "engine/run.h"
#include "io/file.h"
#include "io/json.h"

struct classifier {
    struct run run;
    id logits;
    struct image_files *files;
    struct image_reader *reader;
    void *room;
    float *pixels, *p;       /* of an image; [rows][n] probabilities */
    const char *const *names;
    int64_t n, rows;         /* classes or texts; images at once */
    bool sigmoid;            /* each text by itself */
};

/* Starts the model of a configuration. `texts`: those to compare with; none: the head's classes.
 * classifier_close is called in any case. */
int classifier_open(struct classifier *x, const struct config *c, const struct names *texts, struct error *e);
/* Fills the first n rows of x->p for n images, at most x->rows. The last image fills the other rows
 * of the batch. */
int classifier_run(struct classifier *x, char *const *paths, int64_t n, struct error *e);
/* Prints a line with the most probable classes of an image, whose probabilities are p[n]. */
void classifier_print(const struct classifier *x, const float *p, const char *path, struct text *out);
/* Puts a map: image, class, probability, and the probabilities of all. */
void classifier_put(const struct classifier *x, const float *p, const char *path, struct json_writer *w);
void classifier_close(struct classifier *x);
