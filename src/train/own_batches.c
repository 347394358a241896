/*
 * own_batches.c: the trainer of a program with its own batches, call by call (train.h).
 *
 *     write inputs ─► submit ─► write the next inputs ─► submit ─► retire ─► ...
 *                     GPU [ step 1 ................][ step 2 ...
 *
 * With a step in flight, inputs are written as those of the next batch are in training: into a
 * buffer that is copied to the GPU after the step (engine/run.h).
 */
#include "train/trainer.h"

bool trainer_count(struct trainer *t, const char *name, double count)
{
    const struct graph *g = &t->run.planned.graph;
    for (uint32_t k = 0; k < g->n_counts; k++)
        if (!strcmp(graph_count_name(g, k), name)) {
            t->count[k] = count;
            return true;
        }
    return false;
}

/* --- steps ---------------------------------------------------------------------------------- */

int trainer_write_begin(struct trainer *t, struct error *e)
{
    const bool ahead = tickets_in_flight(&t->steps.tickets) && !t->run.prefetching && run_can_prefetch(&t->run);
    return ahead ? run_prefetch_begin(&t->run, e) : PL_OK;
}

int trainer_submit(struct trainer *t, struct error *e)
{
    if (t->run.prefetching) run_prefetch_end(&t->run, true);
    return trainer_submit_step(t, e);
}

int trainer_retire(struct trainer *t, struct train_event *out, struct error *e)
{
    TRY(trainer_retire_step(t, out, e));
    t->gradient_scale = out->loss_scale;
    return PL_OK;
}

uint32_t trainer_most_in_flight(const struct trainer *t) { return tickets_overlap(&t->steps.tickets) ? TICKETS : 1; }
uint32_t trainer_in_flight(const struct trainer *t) { return tickets_in_flight(&t->steps.tickets); }

/* --- single programs ------------------------------------------------------------------------ */

/* Writes the step block of the next step. The inputs may have been written ahead of a step that is
 * retired by now. */
static int put_block(struct trainer *t, struct error *e)
{
    struct step_block b = trainer_step_block(t);
    if (t->run.prefetching) run_prefetch_end(&t->run, true);
    trainer_set_counts(t, NULL, &b);
    return run_put_step(&t->run, &b, e);
}

int trainer_forward(struct trainer *t, id output, void *to, struct error *e)
{
    TRY(put_block(t, e));
    return run_forward(&t->run, output, to, e);
}

int trainer_backward(struct trainer *t, float *loss, struct error *e)
{
    TRY(put_block(t, e));
    t->gradient_scale = t->steps.tickets.scaled ? (double)t->state.scale : 0;
    TRY(run_program(&t->run, PROGRAM_STEP, e));
    return run_read(&t->run, t->steps.tickets.loss, loss, e);
}

double trainer_gradient_scale(const struct trainer *t) { return t->gradient_scale > 0 ? t->gradient_scale : 1; }

/* --- the state ------------------------------------------------------------------------------ */

int trainer_write_state(struct trainer *t, const char *dir, struct error *e)
{
    struct run *r = &t->run;
    TRY(weights_save(&r->weights, &r->planned.model, &r->planned.graph, &r->device, &r->tape, run_staging(r),
                     PLAN_STAGING, dir, e));
    return state_save(dir, &t->state, &r->planned.graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, e);
}

int trainer_read_state(struct trainer *t, const char *dir, struct error *e)
{
    struct run *r = &t->run;
    struct train_state found = {0};
    TRY(state_load(dir, &found, &r->planned.graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, e));
    found.scale = t->steps.tickets.scaled && !(found.scale > 0) ? t->state.scale : found.scale;
    t->state = found;
    return PL_OK;
}

int64_t trainer_steps(const struct trainer *t) { return (int64_t)t->state.step; }
