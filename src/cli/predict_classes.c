/*
 * predict_classes.c: `plimsoll predict` with a vision tower that has a head: the classes of images,
 * or which of some texts (--text) belong to them.
 *
 * A contrastive model compares every image of a batch with every text of it: as many images run at
 * once as there are texts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/predict.h"
#include "models/model.h"
#include "data/detect/match.h"
#include "data/image_list.h"
#include "feed/batch_plan.h"
#include "feed/captions.h"
#include "feed/feed.h"
#include "io/json.h"

enum { PRINTED = 5 };

struct classes {
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

bool predict_has_head(const struct predict *p)
{
    struct model m;
    struct error ignored;
    if (config_open_model(&p->config, &m, &ignored)) return p->texts.n; /* start reports it */
    const bool head = m.head;
    model_close(&m);
    return head || p->texts.n;
}

/* --- a run ------------------------------------------------------------------------------------ */

static int open_reader(struct classes *x, const struct config *c, struct error *e)
{
    const struct head_batches *b = head_batches(&x->run);
    struct image_reader_options o = b->list.reader;
    o.room = batch_room(c);
    x->room = mem_alloc(image_reader_bytes(&o) + 64);
    x->reader = image_reader_new(&o, (char *)x->room + (64 - (uintptr_t)x->room % 64) % 64);
    x->pixels = mem_alloc(image_reader_floats(&o) * sizeof *x->pixels);
    return image_files_open(&x->files, &(struct image_scope){.anywhere = true, .room = o.room}, e);
}

/* The same number n times, as row i of an input. */
static int put_row(struct classes *x, const char *input, int64_t i, int32_t value, int64_t n, struct error *e)
{
    int32_t *row = mem_alloc((size_t)n * sizeof *row);
    for (int64_t k = 0; k < n; k++) row[k] = value;
    int rc = run_write_input(&x->run, input, i, row, (uint64_t)n * sizeof *row, e);
    mem_free(row);
    return rc;
}

/* The texts in the rows of the batch. There is no loss: no pair is a label. */
static int put_texts(struct classes *p, const struct config *c, const struct names *texts, struct error *e)
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

static int start(struct classes *x, const struct config *c, const struct names *texts, struct error *e)
{
    const struct run_options o = {.evaluate = true, .describe = feed_describe, .B = max_i64(1, texts->n), .T = 1};
    const struct step_block b = {.inv_count = {1}, .loss_scale = 1, .step = 1, .adam_t = 1};
    int rc = run_plan(&x->run, c, &o, e);
    if (!rc) rc = run_start(&x->run, NULL, true, e);
    if (!rc) rc = run_put_step(&x->run, &b, e);
    if (!rc) rc = open_reader(x, c, e);
    if (rc) return rc;
    const struct head_model *h = x->run.planned.model.head;
    x->logits = graph_find_output(&x->run.planned.graph, PROGRAM_STEP, texts->n ? "logits_per_image" : "logits");
    x->names = texts->n ? (const char *const *)texts->at : h->names, x->n = texts->n ? texts->n : h->classes;
    x->rows = o.B, x->sigmoid = texts->n && h->siglip;
    if (texts->n == 1 && !h->siglip)
        return error_set(e, PL_USAGE, "--text is given once, and CLIP chooses among texts: give two or more");
    x->p = mem_alloc((size_t)(x->rows * x->n) * sizeof *x->p);
    return texts->n ? put_texts(x, c, texts, e) : put_row(x, "labels", 0, -100, 1, e);
}

static void finish(struct classes *x)
{
    image_files_close(x->files);
    image_reader_free(x->reader);
    mem_free(x->room), mem_free(x->pixels), mem_free(x->p);
    run_close(&x->run);
}

/* Logits of an image to probabilities: of classes and CLIP's texts together 1, of SigLIP's texts
 * each by itself. */
static void normalize(const struct classes *x, float *p)
{
    double sum = 0;
    float most = p[0];
    for (int64_t i = 1; i < x->n; i++) most = fmaxf(most, p[i]);
    for (int64_t i = 0; i < x->n; i++) sum += exp((double)(p[i] - most));
    for (int64_t i = 0; i < x->n; i++)
        p[i] = (float)(x->sigmoid ? 1 / (1 + exp(-(double)p[i])) : exp((double)(p[i] - most)) / sum);
}

/* The next images, of which there are n, at most x->rows; the last one fills the other rows. */
static int classify(struct classes *x, char *const *paths, int64_t n, struct error *e)
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

/* --- results ---------------------------------------------------------------------------------- */

/* The class with the highest probability that was not taken; of equal ones the first. */
static int64_t next_best(const struct classes *x, const float *p, const bool *taken)
{
    int64_t best = -1;
    for (int64_t i = 0; i < x->n; i++)
        if (!taken[i] && (best < 0 || p[i] > p[best])) best = i;
    return best;
}

static void print(const struct classes *x, const float *p, const char *path)
{
    bool *taken = mem_alloc((size_t)x->n * sizeof *taken);
    printf("%s", path);
    for (int64_t k = 0; k < min_i64(PRINTED, x->n); k++) {
        const int64_t i = next_best(x, p, taken);
        printf("%s %s %.4f", k ? "," : ":", x->names[i], (double)p[i]);
        taken[i] = true;
    }
    printf("\n");
    mem_free(taken);
}

static void put(const struct classes *x, const float *p, const char *path, struct json_writer *w)
{
    bool *taken = mem_alloc((size_t)x->n * sizeof *taken);
    const int64_t best = next_best(x, p, taken);
    json_begin_map(w, NULL);
    json_put_string(w, "image", path);
    json_put_string(w, "class", x->names[best]);
    json_put_number(w, "probability", (double)p[best]);
    json_begin_map(w, "probabilities");
    for (int64_t i = 0; i < x->n; i++) json_put_number(w, x->names[i], (double)p[i]);
    json_end(w);
    json_end(w);
    mem_free(taken);
}

/* --- the command ------------------------------------------------------------------------------ */

/* The images of the paths, of which one may be a folder. */
static int list_images(const struct predict *p, struct names *out, struct error *e)
{
    struct image_tree t;
    for (uint32_t i = 0; i < p->paths.n; i++) {
        if (!dir_exists(p->paths.at[i])) {
            vec_push(out, mem_string(p->paths.at[i]));
            continue;
        }
        int rc = image_tree_read(&t, p->paths.at[i], NULL, e);
        for (uint32_t k = 0; k < t.files.n && !rc; k++) {
            struct text path = {0};
            text_printf(&path, "%s/%s", p->paths.at[i], t.files.at[k].path);
            vec_push(out, path.at);
        }
        image_tree_free(&t);
        if (rc) return rc;
    }
    return out->n ? PL_OK : error_set(e, PL_USAGE, "no image is given: add JPEG, PNG or WebP files, or a folder");
}

static int check(const struct predict *p, struct error *e)
{
    const struct {
        const char *name;
        bool given;
    } options[] = {{"--point", p->points.n},
                   {"--box", p->box},
                   {"--question", p->question},
                   {"-o", p->output},
                   {"--overlay", p->overlay},
                   {"--prompts", p->prompts},
                   {"--data", p->data},
                   {"--slices", p->slices},
                   {"--everything", p->everything},
                   {"--multimask", p->multimask},
                   {"--single", p->single},
                   {"--side", p->side},
                   {"--prompt", p->derive},
                   {"--max-new", p->max_new}};
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].given)
            return error_set(
                e, PL_USAGE,
                "%s is for masks, and %s is a vision tower with a head, which predicts classes: leave it out",
                options[i].name, p->model);
    return PL_OK;
}

int predict_classes(struct predict *p, struct error *e)
{
    struct names images = {0};
    struct classes x = {0};
    struct text out = {0};
    struct json_writer w = {.out = &out, .indent = 2};
    int rc = check(p, e);
    if (!rc) rc = list_images(p, &images, e);
    if (!rc) rc = start(&x, &p->config, &p->texts, e);
    json_begin_list(&w, NULL);
    for (int64_t at = 0; at < images.n && !rc; at += x.rows) {
        const int64_t n = min_i64(x.rows, images.n - at);
        rc = classify(&x, images.at + at, n, e);
        for (int64_t i = 0; i < n && !rc; i++)
            print(&x, x.p + i * x.n, images.at[at + i]), put(&x, x.p + i * x.n, images.at[at + i], &w);
    }
    json_end(&w);
    text_printf(&out, "\n");
    if (!rc && p->json) rc = file_write_atomic(p->json, out.at, out.n, e);
    text_free(&out);
    finish(&x);
    names_free(&images);
    return rc;
}
