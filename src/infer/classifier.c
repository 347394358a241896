/*
 * classifier.c: see classifier.h.
 */
#include "infer/classifier.h"

#include <math.h>

#include "data/image_list.h"
#include "feed/batch_plan.h"
#include "feed/captions.h"
#include "feed/feed.h"
#include "models/heads.h"

static int open_reader(struct classifier *x, const struct config *c, struct error *e)
{
    const struct head_batches *b = head_batches(&x->run);
    struct image_reader_options o = b->list.reader;
    o.room = batch_room(c);
    x->room = mem_alloc(image_reader_bytes(&o) + 64);
    x->reader = image_reader_new(&o, (char *)x->room + (64 - (uintptr_t)x->room % 64) % 64);
    x->pixels = mem_alloc(image_reader_floats(&o) * sizeof *x->pixels);
    return image_files_open(&x->files, &(struct image_scope){.anywhere = true, .room = o.room}, e);
}

/* Writes the same number n times, as row i of an input. */
static int put_row(struct classifier *x, const char *input, int64_t i, int32_t value, int64_t n, struct error *e)
{
    int32_t *row = mem_alloc((size_t)n * sizeof *row);
    for (int64_t k = 0; k < n; k++) row[k] = value;
    int rc = run_write_input(&x->run, input, i, row, (uint64_t)n * sizeof *row, e);
    mem_free(row);
    return rc;
}

/* Writes the texts into the rows of the batch. There is no loss: no pair is a label. */
static int put_texts(struct classifier *p, const struct config *c, const struct names *texts, struct error *e)
{
    const struct model *m = &p->run.planned.model;
    struct captions x;
    int64_t n;
    int rc = captions_open(&x, c, m, p->run.planned.batch.T, e);
    int32_t *row = mem_alloc((size_t)p->run.planned.batch.T * sizeof *row);
    for (uint32_t i = 0; i < texts->n && !rc; i++) {
        if ((rc = captions_encode(&x, texts->at[i], row, &n, e))) error_prepend(e, "--text %s", texts->at[i]);
        if (!rc) rc = run_write_input(&p->run, "input_ids", i, row, (uint64_t)x.T * sizeof *row, e);
        if (!rc && !m->head->siglip) rc = put_row(p, "text_end", i, (int32_t)head_text_end(m->head, row, x.T), 1, e);
        if (!rc) rc = put_row(p, "pair_labels", i, -100, m->head->siglip ? p->rows : 1, e);
        if (!rc && !m->head->siglip) rc = put_row(p, "pair_mask", i, 0, 1, e);
    }
    captions_close(&x);
    mem_free(row);
    return rc;
}

int classifier_open(struct classifier *x, const struct config *c, const struct names *texts, struct error *e)
{
    const struct run_options o = {.evaluate = true, .describe = feed_describe, .B = max_i64(1, texts->n), .T = 1};
    const struct step_block b = {.inv_count = {1}, .loss_scale = 1, .step = 1, .adam_t = 1};
    *x = (struct classifier){0};
    TRY(run_plan(&x->run, c, &o, e));
    TRY(run_start(&x->run, NULL, true, e));
    TRY(run_put_step(&x->run, &b, e));
    TRY(open_reader(x, c, e));
    const struct head_model *h = x->run.planned.model.head;
    x->logits = graph_find_output(&x->run.planned.graph, PROGRAM_STEP, texts->n ? "logits_per_image" : "logits");
    x->names = texts->n ? (const char *const *)texts->at : h->names, x->n = texts->n ? texts->n : h->classes;
    x->rows = o.B, x->sigmoid = texts->n && h->siglip;
    if (texts->n == 1 && !h->siglip)
        return error_set(e, PL_USAGE, "--text is given once, and CLIP chooses among texts: give two or more");
    x->p = mem_alloc((size_t)(x->rows * x->n) * sizeof *x->p);
    return texts->n ? put_texts(x, c, texts, e) : put_row(x, "labels", 0, -100, 1, e);
}

void classifier_close(struct classifier *x)
{
    image_files_close(x->files);
    image_reader_free(x->reader);
    mem_free(x->room), mem_free(x->pixels), mem_free(x->p);
    run_close(&x->run);
}

/* Turns the logits of an image into probabilities: of classes and CLIP's texts together 1, of
 * SigLIP's texts each by itself. */
static void normalize(const struct classifier *x, float *p)
{
    double sum = 0;
    float most = p[0];
    for (int64_t i = 1; i < x->n; i++) most = fmaxf(most, p[i]);
    for (int64_t i = 0; i < x->n; i++) sum += exp((double)(p[i] - most));
    for (int64_t i = 0; i < x->n; i++)
        p[i] = (float)(x->sigmoid ? 1 / (1 + exp(-(double)p[i])) : exp((double)(p[i] - most)) / sum);
}

int classifier_run(struct classifier *x, char *const *paths, int64_t n, struct error *e)
{
    const uint64_t bytes = image_reader_floats(&head_batches(&x->run)->list.reader) * sizeof *x->pixels;
    int rc = PL_OK;
    for (int64_t i = 0; i < x->rows && !rc; i++) {
        if (i < n && image_reader_read(x->reader, x->files, paths[i], 1, x->pixels, e))
            return e->code ? e->code : error_set(e, PL_USAGE, "%s cannot be read", paths[i]);
        rc = run_write_input(&x->run, "pixel_values", i, x->pixels, bytes, e);
    }
    if (!rc) rc = run_program(&x->run, PROGRAM_STEP, e);
    if (!rc) rc = run_read(&x->run, x->logits, x->p, e);
    for (int64_t i = 0; i < n && !rc; i++) normalize(x, x->p + i * x->n);
    return rc;
}
