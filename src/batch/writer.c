/*
 * writer.c: see writer.h.
 */
#include "batch/writer.h"

#include "models/heads.h"

#define READER FILLED_BY_READER
#define WRITER FILLED_BY_WRITER
#define RUN FILLED_BY_RUN
const struct batch_input_row batch_inputs[ROW_INPUTS] = {
#define INPUT(ID, NAME, FILLER, HOLDS) {NAME, FILLER, HOLDS},
#include "batch/inputs.def"
#undef INPUT
};

enum batch_input batch_find(const char *name)
{
    int i = 0;
    while (i < ROW_INPUTS && strcmp(batch_inputs[i].name, name)) i++;
    CHECK(i < ROW_INPUTS, "input %s is not in inputs.def", name);
    return (enum batch_input)i;
}

struct batch_writer {
    struct run *run;
    struct follow *follow;
    bool used[ROW_INPUTS];        /* whether it is written */
    uint64_t sample[ROW_INPUTS];  /* bytes */
    uint64_t sequence[ROW_INPUTS]; /* bytes of a patch, where rows share a sequence of patches; else 0 */
    int32_t *pairs;               /* [micro-batch] a row of pair_labels; NULL: the model has none */
};

struct batch_writer *batch_writer_new(struct run *r)
{
    struct batch_writer *w = mem_alloc(sizeof *w);
    w->run = r;
    for (int i = 0; i < ROW_INPUTS; i++) {
        struct planned_input x;
        const enum batch_filler filler = batch_inputs[i].filler;
        const bool known = filler == FILLED_BY_READER || (filler == FILLED_BY_WRITER && !r->planned.defined);
        w->used[i] = known && planned_input(&r->planned, batch_inputs[i].name, &x) &&
                     (planned_input_used(&r->planned, &x) || x.storage == r->planned.graph.sequence.ranges);
        w->sample[i] = w->used[i] ? x.sample : 0;
        w->sequence[i] = w->used[i] && x.axis == 1 && r->planned.graph.sequence.ranges && x.outer == 1 ? x.entry : 0;
    }
    w->follow = follow_new(r, w->used);
    if (w->used[ROW_PAIR_LABELS]) w->pairs = mem_alloc(w->sample[ROW_PAIR_LABELS]);
    return w;
}

void batch_writer_free(struct batch_writer *w)
{
    if (!w) return;
    follow_free(w->follow);
    mem_free(w->pairs);
    mem_free(w);
}

void batch_writer_set_pixels(struct batch_writer *w, const struct image_processor *p)
{
    follow_set_pixels(w->follow, p);
}

bool batch_writes(const struct batch_writer *w, enum batch_input i) { return w->used[i]; }
void batch_leave_out(struct batch_writer *w, enum batch_input i) { w->used[i] = false; }

/* Writes what patches have, into the sequence of the row's micro-batch. */
static int write_patches(const struct batch_writer *w, enum batch_input i, const struct batch_record *x,
                         struct error *e)
{
    const int64_t micro = w->run->planned.plan.settings.micro_batch;
    const uint64_t first = (uint64_t)(x->row / micro * micro) * w->sample[i], all = (uint64_t)micro * w->sample[i];
    if (w->run->whole && !x->patch) { /* what is behind is read */
        void *zeros = mem_alloc(all);
        const int rc = run_write_bytes(w->run, batch_inputs[i].name, first, zeros, all, e);
        mem_free(zeros);
        if (rc) return rc;
    }
    return run_write_bytes(w->run, batch_inputs[i].name, first + (uint64_t)x->patch * w->sequence[i], x->is[i].at,
                           (uint64_t)x->patches * w->sequence[i], e);
}

int batch_write(struct batch_writer *w, const struct batch_target *t, int64_t row, const struct batch_record *x,
                struct error *e)
{
    struct batch_record all = *x;
    all.row = t->row + row;
    if (!follow_record(w->follow, w->used, &all))
        return error_set(e, PL_USAGE, "a row of the data has image tokens that belong to no image: ids of images and "
                                      "videos may only stand where conversations have these");
    for (int i = 0; i < ROW_INPUTS; i++)
        if (w->used[i] && all.is[i].at)
            TRY(w->sequence[i] ? write_patches(w, (enum batch_input)i, &all, e)
                               : run_write_input(w->run, batch_inputs[i].name, all.row, all.is[i].at,
                                                 all.is[i].bytes ? all.is[i].bytes : w->sample[i], e));
    return PL_OK;
}

int batch_write_once(struct run *r, int64_t row, const struct batch_record *x, struct error *e)
{
    struct batch_writer *w = batch_writer_new(r);
    const int rc = batch_write(w, &(struct batch_target){0}, row, x, e);
    batch_writer_free(w);
    return rc;
}

int batch_write_pairs(struct batch_writer *w, const struct batch_target *t, const bool *is_sample, int64_t B,
                      struct error *e)
{
    for (int64_t i = 0; i < B; i++) {
        float mask;
        head_pair(w->run->planned.model.head, is_sample, B, i, w->pairs, &mask);
        const struct batch_record x = {.is = {[ROW_PAIR_LABELS] = {w->pairs}, [ROW_PAIR_MASK] = {&mask}}};
        TRY(batch_write(w, t, i, &x, e));
    }
    return PL_OK;
}

int batch_write_all(struct run *r, const char *input, const void *data, struct error *e)
{
    return run_write_batch(r, input, data, e);
}

int batch_write_part(struct run *r, const char *input, uint64_t from, const void *data, uint64_t bytes, struct error *e)
{
    return run_write_bytes(r, input, from, data, bytes, e);
}
