/*
 * ticket.c: see ticket.h.
 */
#include "engine/ticket.h"

#include <math.h>

_Static_assert(sizeof(struct ticket) * TICKETS <= PLAN_TICKETS, "the tickets fit into the plan's buffer");

/* Finds the outputs NAME_loss, which a model with several losses has for each. */
static void find_parts(struct tickets *t)
{
    const struct graph *g = &t->run->planned.graph;
    for (uint32_t i = 0; i < g->outputs.n && t->parts < LOSS_PARTS; i++) {
        const struct output *o = &g->outputs.at[i];
        const struct tensor *x = tensor_at(g, o->tensor);
        if (o->program != PROGRAM_STEP || x->rank || x->dtype != DT_F32 ||
            !text_ends_with(graph_name(g, o->name), "_loss"))
            continue;
        t->part[t->parts] = o->tensor;
        t->part_name[t->parts++] = graph_name(g, o->name);
    }
}

void tickets_begin(struct tickets *t, struct run *r)
{
    *t = (struct tickets){.run = r, .scaled = settings_scale_loss(&r->planned.plan.settings)};
    t->loss = graph_find_output(&r->planned.graph, PROGRAM_STEP, "loss");
    t->clip = run_clip(r);
    find_parts(t);
    for (uint32_t i = 0; i < r->planned.graph.params.n; i++) t->running |= r->planned.graph.params.at[i].running;
    void *planned = r->device.ops->send ? run_tickets(r) : NULL;
    t->at = planned ? planned : t->own;
}

static bool is_pipelined(const struct tickets *t) { return t->at != t->own; }

bool tickets_overlap(const struct tickets *t)
{
    const struct tape *tape = &t->run->tape;
    return is_pipelined(t) && !t->run->planned.serial_steps && !t->running && !tape->nodes && !tape->timing &&
           !tape->observe;
}

uint32_t tickets_in_flight(const struct tickets *t) { return (uint32_t)(t->submitted - t->retired); }

bool ticket_fatal(const struct tickets *t, double loss) { return !isfinite(loss) && !(t->scaled && !t->running); }

/* --- a device that runs asynchronously -------------------------------------------------------- */

static int send(const struct tickets *t, void *to, const void *from, uint64_t bytes, struct error *e)
{
    struct device *d = &t->run->device;
    return d->ops->send(d, to, from, bytes, e);
}

/* Sends the step block. With another step in flight, the members that its update writes are not
 * overwritten, and its next_scale becomes this step's loss_scale. */
static int send_block(const struct tickets *t, const struct ticket *k, struct error *e)
{
    const bool in_flight = tickets_in_flight(t);
    struct step_block *to = tape_address(&t->run->tape, t->run->planned.graph.step);
    const uint64_t known = !in_flight  ? sizeof *to
                           : t->scaled ? offsetof(struct step_block, loss_scale)
                                       : offsetof(struct step_block, found_inf);
    TRY(send(t, to, &k->block, known, e));
    return in_flight && t->scaled ? send(t, &to->loss_scale, &to->next_scale, sizeof to->loss_scale, e) : PL_OK;
}

/* Submits step and update. The loss is copied before the update, which may reuse its memory. */
static int submit_pipelined(struct tickets *t, struct ticket *k, struct error *e)
{
    struct run *r = t->run;
    TRY(send_block(t, k, e));
    TRY(run_program(r, PROGRAM_STEP, e));
    TRY(send(t, &k->loss, tape_address(&r->tape, t->loss), sizeof k->loss, e));
    for (int i = 0; i < t->parts; i++)
        TRY(send(t, &k->part[i], tape_address(&r->tape, t->part[i]), sizeof k->part[i], e));
    TRY(run_program(r, PROGRAM_UPDATE, e));
    TRY(send(t, k->clip, tape_address(&r->tape, t->clip), sizeof k->clip, e));
    if (t->scaled) TRY(send(t, &k->block, tape_address(&r->tape, r->planned.graph.step), sizeof k->block, e));
    return r->device.ops->record_event(&r->device, (int)(t->submitted % TICKETS), e);
}

/* --- a synchronous device --------------------------------------------------------------------- */

static int run_synchronously(struct tickets *t, struct ticket *k, struct error *e)
{
    struct run *r = t->run;
    k->clip[0] = k->clip[1] = NAN;
    TRY(run_put_step(r, &k->block, e));
    TRY(run_program(r, PROGRAM_STEP, e));
    TRY(run_read(r, t->loss, &k->loss, e));
    for (int i = 0; i < t->parts; i++) TRY(run_read(r, t->part[i], &k->part[i], e));
    if (ticket_fatal(t, k->loss)) return PL_OK;
    TRY(run_program(r, PROGRAM_UPDATE, e));
    TRY(run_read(r, t->clip, k->clip, e));
    return t->scaled ? run_get_step(r, &k->block, e) : PL_OK;
}

/* --- both ------------------------------------------------------------------------------------- */

int ticket_submit(struct tickets *t, const struct step_block *b, double from, struct error *e)
{
    const int number = (int)(t->submitted % TICKETS);
    struct ticket *k = &t->at[number];
    CHECK(tickets_in_flight(t) < TICKETS && (!tickets_in_flight(t) || is_pipelined(t)), "%u steps are in flight",
          tickets_in_flight(t));
    k->block = *b;
    t->from[number] = tickets_in_flight(t) ? -1 : from;
    int rc = is_pipelined(t) ? submit_pipelined(t, k, e) : run_synchronously(t, k, e);
    t->submitted += !rc;
    return rc;
}

int ticket_retire(struct tickets *t, struct ticket *out, struct error *e)
{
    const int number = (int)(t->retired % TICKETS);
    CHECK(tickets_in_flight(t), "no step is in flight");
    double done = clock_seconds();
    if (is_pipelined(t) && t->run->device.ops->wait_event(&t->run->device, number, &done, e))
        return run_failed(t->run, PROGRAM_UPDATE, e);
    *out = t->at[number];
    t->seconds = fmax(done - (t->from[number] < 0 ? t->done : t->from[number]), 0);
    t->done = done;
    t->retired++;
    return PL_OK;
}
