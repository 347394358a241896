/*
 * predict_labels.c: see predict_many.h.
 *
 * The images are those of a run's validation data, or of its training data if it has no other. Each
 * mask gives a prompt, by the code of training and of its evaluation (feed/first_prompts.h): its
 * box, its most interior point, or what training draws: boxes with jitter and random points.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/model.h"
#include "base/random.h"
#include "data/samples.h"
#include "cli/predict_many.h"
#include "models/model.h"
#include "data/images/resize.h"
#include "data/loader.h"
#include "feed/feed.h"
#include "feed/first_prompts.h"

struct labels {
    struct dataset *set;
    struct loader_options o;
    struct loader_source source;
    struct loader *loader;
    char *memory;
    struct first_prompts how;
    const char *kind;              /* box, point or train */
    struct image_prompt *prompts;  /* [o.masks] */
    float (*points)[2];
    char (*ids)[24];
};

static void close_labels(struct predict_source *s)
{
    struct labels *l = s->state;
    loader_close(l->loader);
    if (l->set) dataset_close(l->set);
    mem_free(l->memory);
    mem_free(l->prompts);
    mem_free(l->points);
    mem_free(l->ids);
    mem_free(l);
}

static int read_image(const struct labels *l, uint64_t i, struct predict_item *out, struct error *e)
{
    struct sample x;
    int rc = samples_read(l->set, i, &x, e);
    if (!rc && x.facts.decoded)
        out->image = (struct predictor_image){.w = x.facts.w, .h = x.facts.h, .rgb = mem_copy(x.image, x.facts.n)};
    else if (!rc) rc = predictor_image_decode(&out->image, x.image, x.facts.n, &l->set->range, e);
    sample_free(&x);
    return rc;
}

/* From 0 to 1 over the canvas to pixels of the image. */
static void to_pixels(const struct labels *l, const struct predictor_image *p, const float from[2], float to[2])
{
    uint32_t fit_w, fit_h;
    resize_longest(p->w, p->h, l->o.side, &fit_w, &fit_h);
    to[0] = fminf(fmaxf((from[0] * (float)l->o.side - 0.5f) * (float)p->w / (float)fit_w, 0), (float)p->w);
    to[1] = fminf(fmaxf((from[1] * (float)l->o.side - 0.5f) * (float)p->h / (float)fit_h, 0), (float)p->h);
}

static void derive(struct labels *l, const struct loader_sample *s, uint32_t k, const struct predictor_image *image)
{
    static int on = 1;
    float coords[FIRST_SLOTS * 2];
    int32_t kinds[FIRST_SLOTS];
    struct image_prompt *q = &l->prompts[k];
    if (!strcmp(l->kind, "box")) prompt_box(&l->how, s, k, coords, kinds);
    else if (!strcmp(l->kind, "point")) prompt_interior(&l->how, s, k, coords, kinds);
    else prompt_random(&l->how, s, k, coords, kinds);
    snprintf(l->ids[k], sizeof l->ids[k], "%lld", (long long)s->masks[k].id);
    *q = (struct image_prompt){.id = l->ids[k], .category = s->masks[k].category, .image_id = -1, .box = kinds[0] == POINT_FIRST};
    if (!q->box) {
        to_pixels(l, image, coords, l->points[k]);
        q->points = &l->points[k];
        q->labels = &on;
        q->n = 1;
        return;
    }
    to_pixels(l, image, coords, q->corners);
    to_pixels(l, image, coords + 2, q->corners + 2);
}

static void about_sample(const struct predict_source *s, uint64_t i, bool folders, char *name, size_t room,
                         struct predict_about *out)
{
    const struct labels *l = s->state;
    uint32_t slice;
    (void)folders; /* the names of a dataset have theirs */
    *out = (struct predict_about){0};
    dataset_name(l->set, i, name, room);
    out->volume = dataset_slice(l->set, i, &slice, &out->volume_name);
}

static int read_sample(struct predict_source *s, uint64_t i, struct predict_item *out, struct error *e)
{
    struct labels *l = s->state;
    const struct loader_sample *x;
    dataset_name(l->set, i, out->name, sizeof out->name);
    if (!loader_at(l->loader, &l->source, i)) loader_seek(l->loader, &l->source, i);
    if (loader_next(l->loader, &x, e) || read_image(l, i, out, e)) return e->code;
    for (uint32_t k = 0; k < x->n; k++) derive(l, x, k, &out->image);
    out->prompts = l->prompts;
    out->n = x->n;
    out->volume = dataset_slice(l->set, i, &out->slice, &out->volume_name);
    return PL_OK;
}

/* The options of the loader depend on the model. */
static int open_loader(struct labels *l, const struct predict *p, struct error *e)
{
    const struct config *c = &p->config;
    const enum feed_role role = config_validates(c) ? FEED_VALIDATION : FEED_TRAIN;
    struct model m;
    int rc = config_open_model(c, &m, e);
    if (rc) return rc;
    if (m.masks) l->o = batch_loader(c, &m, &(struct packed_embeddings){0});
    else rc = error_set(e, PL_USAGE, "a model of type %s predicts no masks for points and boxes", m.family->model_type);
    model_close(&m);
    if (rc || (rc = feed_open_dataset(&l->set, c, role, e))) return rc;
    l->source = feed_source(c, l->set, FEED_VALIDATION);
    l->source.max_bad = 1;
    l->memory = mem_alloc(loader_bytes(&l->o) + 64);
    return loader_open(&l->loader, &l->o, l->memory + (64 - (uintptr_t)l->memory % 64) % 64, e);
}

int predict_labels(struct predict_source *s, struct predict *p, struct error *e)
{
    struct labels *l = mem_alloc(sizeof *l);
    const struct config *c = &p->config;
    *l = (struct labels){.kind = p->derive ? p->derive : "box"};
    *s = (struct predict_source){.read = read_sample, .close = close_labels, .about = about_sample, .state = l};
    int rc = PL_OK;
    if (strcmp(l->kind, "box") && strcmp(l->kind, "point") && strcmp(l->kind, "train"))
        rc = error_set(e, PL_USAGE,
                       "--prompt %s: expected box, point, or train for prompts that are drawn as in training "
                       "(prompts.box, prompts.jitter)",
                       l->kind);
    if (!rc) rc = open_loader(l, p, e);
    if (!rc) {
        l->how = (struct first_prompts){.side = l->o.side,
                                        .cells = l->o.cells,
                                        .masks = l->o.masks,
                                        .key = random_key((uint64_t)c->train_seed, "first prompts"),
                                        .box = c->prompts_box,
                                        .jitter = c->prompts_jitter};
        l->prompts = mem_alloc(l->o.masks * sizeof *l->prompts);
        l->points = mem_alloc(l->o.masks * sizeof *l->points);
        l->ids = mem_alloc(l->o.masks * sizeof *l->ids);
        s->n = dataset_count(l->set);
        s->most = l->o.masks;
        p->side = l->o.side;
        if (strcmp(l->kind, "point")) rc = predict_shape(s, 0, true, e);
        if (!rc && strcmp(l->kind, "box")) rc = predict_shape(s, 1, false, e);
    }
    if (!rc) rc = predict_choose_names(s, e);
    if (rc) close_labels(s);
    return rc;
}
