/*
 * best.h: what is known of the best model so far: checkpoints/best/eval.json.
 *
 * The file beside the model is the only record. Evaluation gives the same bits again, so
 * a run that was killed and repeats some steps finds the same model to be the best, also
 * when that one is of a step that the run has yet to reach again.
 */
#ifndef BEST_H
#define BEST_H

#include "train/config.h"

struct best {
    int64_t step;   /* -1: none */
    double loss;    /* infinity: none */
};

/* One evaluation. */
struct evaluation {
    int64_t step, samples;
    double loss;
};

/* exp(loss), or NaN (null in JSON) where that is beyond a double. */
double perplexity(double loss);

/* Reads DIR/eval.json. No file, one that cannot be read (with a warning), or one of other
 * validation files than the configuration's: none. */
void best_read(const char *dir, const struct config *c, struct best *b);

/* Writes DIR/eval.json. */
int best_write(const char *dir, const struct config *c, const struct evaluation *v, struct error *e);

#endif
