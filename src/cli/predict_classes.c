/*
 * predict_classes.c: `plimsoll predict` with a vision tower that has a head: the classes of images.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/predict.h"
#include "config/config_model.h"
#include "data/formats/match.h"
#include "data/image_list.h"
#include "feed/batch_plan.h"
#include "feed/feed.h"
#include "io/json.h"

enum { PRINTED = 5 };

struct classes {
    struct run run;
    id logits;
    struct image_files *files;
    struct image_reader *reader;
    void *room;
    float *pixels, *p;       /* of an image; [classes] its probabilities */
    const char *const *names;
    int64_t n;
};

bool predict_has_head(const struct predict *p)
{
    struct model m;
    struct error ignored;
    if (config_open_model(&p->config, &m, &ignored)) return false;
    const bool head = m.head;
    model_close(&m);
    return head;
}

/* --- a run ------------------------------------------------------------------------------------------ */

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

static int start(struct classes *x, const struct config *c, struct error *e)
{
    const struct run_options o = {.evaluate = true, .describe = feed_describe, .B = 1, .T = 1};
    const struct step_block b = {.inv_count = {1}, .loss_scale = 1, .step = 1, .adam_t = 1};
    int rc = run_plan(&x->run, c, &o, e);
    if (!rc) rc = run_start(&x->run, NULL, true, e);
    if (!rc) rc = run_put_step(&x->run, &b, e);
    if (!rc) rc = open_reader(x, c, e);
    if (rc) return rc;
    const struct head_model *h = x->run.model.head;
    x->logits = graph_find_output(&x->run.graph, PROGRAM_STEP, "logits");
    x->names = h->names, x->n = h->classes;
    x->p = mem_alloc((size_t)x->n * sizeof *x->p);
    return PL_OK;
}

static void finish(struct classes *x)
{
    image_files_close(x->files);
    image_reader_free(x->reader);
    mem_free(x->room), mem_free(x->pixels), mem_free(x->p);
    run_close(&x->run);
}

static void softmax(float *x, int64_t n)
{
    double sum = 0;
    float most = x[0];
    for (int64_t i = 1; i < n; i++) most = fmaxf(most, x[i]);
    for (int64_t i = 0; i < n; i++) sum += exp((double)(x[i] - most));
    for (int64_t i = 0; i < n; i++) x[i] = (float)(exp((double)(x[i] - most)) / sum);
}

static int classify(struct classes *x, const char *path, struct error *e)
{
    const int32_t none = -100;
    const uint64_t bytes = image_reader_floats(&head_batches(&x->run)->list.reader) * sizeof *x->pixels;
    if (image_reader_read(x->reader, x->files, path, 1, x->pixels, e)) return e->code ? e->code : error_set(e, PL_USAGE, "%s cannot be read", path);
    int rc = run_write_input(&x->run, "pixel_values", 0, x->pixels, bytes, e);
    if (!rc) rc = run_write_input(&x->run, "labels", 0, &none, sizeof none, e);
    if (!rc) rc = run_program(&x->run, PROGRAM_STEP, e);
    if (!rc) rc = run_read(&x->run, x->logits, x->p, e);
    if (!rc) softmax(x->p, x->n);
    return rc;
}

/* --- results ---------------------------------------------------------------------------------------- */

/* The class with the highest probability that was not taken; of equal ones the first. */
static int64_t next_best(const struct classes *x, const bool *taken)
{
    int64_t best = -1;
    for (int64_t i = 0; i < x->n; i++)
        if (!taken[i] && (best < 0 || x->p[i] > x->p[best])) best = i;
    return best;
}

static void print(const struct classes *x, const char *path)
{
    bool *taken = mem_alloc((size_t)x->n * sizeof *taken);
    printf("%s", path);
    for (int64_t k = 0; k < min_i64(PRINTED, x->n); k++) {
        const int64_t i = next_best(x, taken);
        printf("%s %s %.4f", k ? "," : ":", x->names[i], (double)x->p[i]);
        taken[i] = true;
    }
    printf("\n");
    mem_free(taken);
}

static void put(const struct classes *x, const char *path, struct json_writer *w)
{
    bool *taken = mem_alloc((size_t)x->n * sizeof *taken);
    const int64_t best = next_best(x, taken);
    json_begin_map(w, NULL);
    json_put_string(w, "image", path);
    json_put_string(w, "class", x->names[best]);
    json_put_number(w, "probability", (double)x->p[best]);
    json_begin_map(w, "probabilities");
    for (int64_t i = 0; i < x->n; i++) json_put_number(w, x->names[i], (double)x->p[i]);
    json_end(w);
    json_end(w);
    mem_free(taken);
}

/* --- the command ------------------------------------------------------------------------------------ */

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
    } options[] = {{"--point", p->points.n}, {"--box", p->box}, {"--question", p->question}, {"-o", p->output}, {"--overlay", p->overlay}, {"--prompts", p->prompts}, {"--data", p->data}, {"--slices", p->slices},
                   {"--everything", p->everything}, {"--multimask", p->multimask}, {"--single", p->single}, {"--side", p->side}, {"--prompt", p->derive}, {"--max-new", p->max_new}};
    for (size_t i = 0; i < COUNT(options); i++)
        if (options[i].given) return error_set(e, PL_USAGE, "%s is for masks, and %s is a vision tower with a head, which predicts classes: leave it out", options[i].name, p->model);
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
    if (!rc) rc = start(&x, &p->config, e);
    json_begin_list(&w, NULL);
    for (uint32_t i = 0; i < images.n && !rc; i++) {
        rc = classify(&x, images.at[i], e);
        if (!rc) print(&x, images.at[i]), put(&x, images.at[i], &w);
    }
    json_end(&w);
    text_printf(&out, "\n");
    if (!rc && p->json) rc = file_write_atomic(p->json, out.at, out.n, e);
    text_free(&out);
    finish(&x);
    names_free(&images);
    return rc;
}
