/*
 * best.h: step and loss of the best model so far, in checkpoints/best/eval.json. Best is what
 * train.best says: the lowest loss, or the highest mean Dice or IoU.
 *
 * The file beside the model is the only record. Evaluation is reproducible to the bit, so a run
 * that was killed and repeats some steps finds the same best model, even if that model belongs to
 * a step that the resumed run has not reached yet.
 */
#ifndef BEST_H
#define BEST_H

#include "config/config.h"

struct best {
    int64_t step;   /* -1: no best model yet */
    double loss;    /* of its evaluation; infinity: no best model yet */
    double rank;    /* lower is better: the loss, or the negative Dice or IoU; infinity: no best model yet */
};

/* One evaluation. */
struct evaluation {
    int64_t step, samples;
    double loss;
    double iou, dice; /* means over masks; NaN: it has none */
};
/* What train.best compares: lower is better. */
double best_rank(const struct config *c, const struct evaluation *v);

/* exp(loss), or NaN (null in JSON) if that overflows a double. */
double perplexity(double loss);

/* Reads DIR/eval.json. *b stays empty if there is no file, if it cannot be read (with a
 * warning), or if it lists other validation files than the configuration or was chosen by another
 * train.best. */
void best_read(const char *dir, const struct config *c, struct best *b);

/* Writes DIR/eval.json. */
int best_write(const char *dir, const struct config *c, const struct evaluation *v, struct error *e);

#endif
