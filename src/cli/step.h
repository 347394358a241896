/*
 * step.h: between the files of `plimsoll step`.
 *
 *     step.c           the command: plan, run once
 *     step_inputs.c    IN.safetensors, checked against the model's ports
 *     step_values.c    its values, checked and made into what the graph reads
 *     step_outputs.c   OUT.safetensors: outputs, loss, gradients
 */
#ifndef CLI_STEP_H
#define CLI_STEP_H

#include "io/safetensors.h"
#include "train/run.h"

struct step {
    struct st_file in;
    const struct st_entry *given[MODEL_PORTS]; /* by port; NULL: not given */
    int64_t size[DIM_COUNT];     /* by -DIM_B and so on; 0: no tensor had it */
    int64_t B, T;                /* T: 1 for a model without sequences */
    struct prompting prompts;    /* of a model that is asked for masks */
    const char *loss_output;     /* of a tower, from the file's metadata; NULL: its own choice */
    bool has_loss;
    struct run run;
    double counted;              /* what the loss is divided by: labels, elements */
};

/* Opens the file and finds the model's inputs in it; sets the sizes, prompts, loss_output and has_loss. */
int step_open(struct step *s, const struct model *m, const char *path, struct error *e);
/* Every value to its place, checked; sets `counted`. */
int step_put_inputs(struct step *s, struct error *e);
int step_write(struct step *s, const char *path, struct error *e);

#endif
