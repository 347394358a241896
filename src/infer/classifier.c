/*
 * classifier.c: see predictor.h.
 */
#include "infer/predictor.h"

#include <math.h>

#include "batch/batch_plan.h"
#include "batch/captions.h"
#include "batch/feed.h"
#include "data/detect/match.h"
#include "engine/run.h"
#include "io/json.h"
#include "models/heads.h"

enum { CLASSES_PRINTED = 5 };

/* A started model. A contrastive one compares every image of a batch with every text of it: as many
 * images run at once as there are texts. */
struct classifier {
    struct run run;
    id logits;
    struct image_files *files;
    struct image_reader *reader;
    void *room;
    uint8_t *pixels;         /* of an image */
    float *p;                /* [rows][n] probabilities */
    const char *const *names;
    int64_t n, rows;         /* classes or texts; images at once */
    bool sigmoid;            /* each text by itself */
};

static int open_reader(struct classifier *x, const struct config *c, struct error *e)
{
    const struct feed_plan *b = x->run.planned.batches.feed;
    struct image_reader_options o = b->list.reader;
    o.room = batch_room(c);
    x->room = mem_alloc(image_reader_bytes(&o) + 64);
    x->reader = image_reader_new(&o, (char *)x->room + (64 - (uintptr_t)x->room % 64) % 64);
    x->pixels = mem_alloc(image_reader_size(&o));
    return image_files_open(&x->files, &(struct image_scope){.anywhere = true, .room = o.room}, e);
}

/* Writes the texts into the rows of the batch. There is no loss: no pair is a label. */
static int put_texts(struct classifier *p, const struct config *c, const struct names *texts, struct error *e)
{
    const struct model *m = &p->run.planned.model;
    struct captions x;
    int64_t n;
    int rc = captions_open(&x, c, m, p->run.planned.batch.T, e);
    int32_t *row = mem_alloc((size_t)p->run.planned.batch.T * sizeof *row),
            *labels = mem_alloc((size_t)p->rows * sizeof *labels);
    const float mask = 0;
    for (int64_t k = 0; k < p->rows; k++) labels[k] = -100;
    for (uint32_t i = 0; i < texts->n && !rc; i++) {
        if ((rc = captions_encode(&x, texts->at[i], row, &n, e))) error_prepend(e, "--text %s", texts->at[i]);
        const struct batch_record text = {
            .is = {[ROW_IDS] = {row}, [ROW_PAIR_LABELS] = {labels}, [ROW_PAIR_MASK] = {&mask}}};
        if (!rc) rc = batch_write_once(&p->run, i, &text, e);
    }
    captions_close(&x);
    mem_free(row), mem_free(labels);
    return rc;
}

/* Starts the model; `texts`: those to compare with; none: the head's classes. `end` follows in any
 * case. */
static int start(struct classifier *x, const struct config *c, const struct names *texts, struct error *e)
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
    if (texts->n) return put_texts(x, c, texts, e);
    return batch_write_once(&x->run, 0, &(struct batch_record){.is = {[ROW_LABELS] = {&(int32_t){-100}}}}, e);
}

static void end(struct classifier *x)
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

/* Fills the first n rows of x->p for n images, at most x->rows. The last image fills the other rows
 * of the batch. */
static int run_images(struct classifier *x, char *const *paths, int64_t n, struct error *e)
{
    int rc = PL_OK;
    for (int64_t i = 0; i < x->rows && !rc; i++) {
        if (i < n && image_reader_read(x->reader, x->files, paths[i], 1, x->pixels, e))
            return e->code ? e->code : error_set(e, PL_USAGE, "%s cannot be read", paths[i]);
        rc = batch_write_once(&x->run, i, &(struct batch_record){.is = {[ROW_PIXELS] = {x->pixels}}}, e);
    }
    if (!rc) rc = run_program(&x->run, PROGRAM_STEP, e);
    if (!rc) rc = run_read(&x->run, x->logits, x->p, e);
    for (int64_t i = 0; i < n && !rc; i++) normalize(x, x->p + i * x->n);
    return rc;
}

/* --- results ---------------------------------------------------------------------------------- */

/* Returns the class with the highest probability that was not taken; of equal ones the first. */
static int64_t next_best(const struct classifier *x, const float *p, const bool *taken)
{
    int64_t best = -1;
    for (int64_t i = 0; i < x->n; i++)
        if (!(taken && taken[i]) && (best < 0 || p[i] > p[best])) best = i;
    return best;
}

/* Prints a line with the most probable classes of an image, whose probabilities are p[n]. */
static void print(const struct classifier *x, const float *p, const char *path, struct text *out)
{
    bool *taken = mem_alloc((size_t)x->n * sizeof *taken);
    text_printf(out, "%s", path);
    for (int64_t k = 0; k < min_i64(CLASSES_PRINTED, x->n); k++) {
        const int64_t i = next_best(x, p, taken);
        text_printf(out, "%s %s %.4f", k ? "," : ":", x->names[i], (double)p[i]);
        taken[i] = true;
    }
    text_printf(out, "\n");
    mem_free(taken);
}

/* Puts a map: image, class, probability, and the probabilities of all. */
static void put(const struct classifier *x, const float *p, const char *path, struct json_writer *w)
{
    const int64_t best = next_best(x, p, NULL);
    json_begin_map(w, NULL);
    json_put_string(w, "image", path);
    json_put_string(w, "class", x->names[best]);
    json_put_number(w, "probability", (double)p[best]);
    json_begin_map(w, "probabilities");
    for (int64_t i = 0; i < x->n; i++) json_put_number(w, x->names[i], (double)p[i]);
    json_end(w);
    json_end(w);
}

/* --- all images ------------------------------------------------------------------------------- */

bool classifier_applies(const struct config *c)
{
    struct model m;
    struct error ignored;
    if (config_open_model(c, &m, &ignored)) return false; /* starting the model reports it */
    const bool head = m.head;
    model_close(&m);
    return head;
}

int classify(const struct config *c, const struct names *paths, const struct names *texts, const char *json,
             struct error *e)
{
    struct names images = {0};
    struct classifier x = {0};
    struct text lines = {0}, out = {0};
    struct json_writer w = {.out = &out, .indent = 2};
    int rc = image_paths(&images, paths, e);
    if (!rc) rc = start(&x, c, texts, e);
    json_begin_list(&w, NULL);
    for (int64_t at = 0; at < images.n && !rc; at += x.rows) {
        const int64_t n = min_i64(x.rows, images.n - at);
        rc = run_images(&x, images.at + at, n, e);
        for (int64_t i = 0; i < n && !rc; i++) {
            print(&x, x.p + i * x.n, images.at[at + i], &lines);
            put(&x, x.p + i * x.n, images.at[at + i], &w);
        }
    }
    json_end(&w);
    text_printf(&out, "\n");
    if (lines.n) fputs(lines.at, stdout);
    if (!rc && json) rc = file_write_atomic(json, out.at, out.n, e);
    text_free(&lines);
    text_free(&out);
    end(&x);
    names_free(&images);
    return rc;
}
