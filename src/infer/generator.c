/*
 * generator.c: see generator.h.
 *
 * A chunk shorter than the planned one is padded with tokens at position -1 that see no key: they are not
 * written to the cache, and no other token sees them.
 */
#include "infer/generator.h"

#include <string.h>

#include "config/config_model.h"
#include "dist/agree.h"

/* --- opening ------------------------------------------------------------------------------------- */

/* What a model that chooses tokens gets with a prompt, which is one chunk of the generator. */
struct whole_prompt {
    struct allocation *allocation;
    float *pixels;               /* of its image */
    struct token_row row;        /* positions and labels; no token has a label */
};

/* Checks the model before anything is planned. *whole: it takes a prompt as one chunk. */
static int check_model(const struct config *c, bool *whole, struct error *e)
{
    struct model m;
    int rc = config_open_model(c, &m, e);
    if (rc) return rc;
    if (!m.family->generates)
        rc = error_set(e, PL_USAGE, "%s: a model of type %s generates no text; expected a language model: llama, mistral or qwen2", c->model_path ? c->model_path : c->model_preset,
                       m.family->model_type);
    *whole = m.images && m.images->single;
    model_close(&m);
    return rc;
}

int generator_plan(struct generator *a, const struct config *c, const struct run_generation *o, struct error *e)
{
    memset(a, 0, sizeof *a);
    struct run_generation g = *o;
    bool whole = false;
    const struct run_options options = {.forward = true, .B = 1, .T = 1, .generate = &g, .own = images_any(&o->images) ? &o->images : NULL, .own_bytes = sizeof o->images};
    int rc = check_model(c, &whole, e);
    if (!rc && whole && o->chunk && o->chunk < o->prompt)
        rc = error_set(e, PL_USAGE, "the prompt has %lld tokens, and chunks are to have %lld: this model chooses the tokens of an image by the whole prompt; leave the chunk out", (long long)o->prompt, (long long)o->chunk);
    if (whole) g.chunk = max_i64(o->prompt, 2);
    a->run = &a->own;
    if (!rc) rc = run_plan(&a->own, c, &options, e);
    a->cache = o->cache;
    a->room = o->images;
    a->chunk = a->own.plan.settings.prompt_chunk;
    return rc;
}

/* What a kernel may read of the cache is finite from the start. */
static int clear_cache(struct generator *a, struct error *e)
{
    struct run *r = a->run;
    int rc = PL_OK;
    memset(run_staging(r), 0, PLAN_STAGING);
    for (id s = 1; s < r->graph.storages.n; s++) {
        const struct storage *x = &r->graph.storages.at[s];
        char *to = r->device.arena[x->space] + r->plan.placement.offset[s];
        for (uint64_t at = 0; x->kind == KIND_CACHE && at < x->bytes && !rc; at += PLAN_STAGING)
            rc = r->device.ops->write(&r->device, to + at, run_staging(r), min_u64(PLAN_STAGING, x->bytes - at), e);
    }
    return rc;
}

static void open_whole(struct generator *a)
{
    const struct model *m = &a->run->model;
    if (!m->images || !m->images->single) return;
    a->whole = mem_alloc(sizeof *a->whole);
    a->whole->pixels = mem_alloc((size_t)(m->images->channels * m->image * m->image) * sizeof(float));
    a->whole->row.positions = mem_alloc((size_t)a->chunk * sizeof(int32_t));
    a->whole->row.labels = mem_alloc((size_t)a->chunk * sizeof(int32_t));
    for (int64_t i = 0; i < a->chunk; i++) a->whole->row.labels[i] = -100;
}

static void close_whole(struct whole_prompt *w)
{
    if (!w) return;
    allocation_free(w->allocation);
    mem_free(w->pixels), mem_free(w->row.positions), mem_free(w->row.labels);
    mem_free(w);
}

/* Finds the outputs, and allocates what the host reads and writes. */
static void open_buffers(struct generator *a)
{
    const struct run *r = a->run;
    const size_t V = (size_t)r->model.vocabulary;
    FOR_PROGRAMS(p, PROGRAM_GENERATES) {
        a->output[p] = graph_find_output(&r->graph, p, "logits");
        CHECK(a->output[p] && tensor_elements(tensor_at(&r->graph, a->output[p])) == (int64_t)V, "program %s", program_name(p));
    }
    a->logits = mem_alloc(V * sizeof *a->logits);
    a->raw = mem_alloc(tensor_bytes(tensor_at(&r->graph, a->output[PROGRAM_NEXT])));
    a->inputs = mem_alloc((size_t)max_i64(a->chunk, 1) * 2 * sizeof *a->inputs);
    open_whole(a);
    a->runs = mem_alloc((size_t)(a->room.images + a->room.frames) * sizeof *a->runs);
}

int generator_start(struct generator *a, struct error *e)
{
    int rc = run_start(a->run, NULL, true, e);
    if (!rc) rc = generator_enter(a, e);
    if (!rc) open_buffers(a);
    return rc;
}

void generator_join(struct generator *a, struct run *r)
{
    CHECK(r->answers, "the run has no programs that generate");
    const struct image_batch *images = r->model.images ? r->batch.own : NULL;
    *a = (struct generator){.run = r, .together = r->plan.settings.shard == SHARD_WEIGHTS ? r->ranks : NULL, .cache = r->batch.cache, .chunk = r->prompt_chunk, .room = images ? *images : (struct image_batch){0}};
    open_buffers(a);
}

int generator_enter(struct generator *a, struct error *e)
{
    struct step_block b = {.inv_count = {1}, .loss_scale = 1, .step = 1, .adam_t = 1};
    int rc = run_put_step(a->run, &b, e);
    return rc ? rc : clear_cache(a, e);
}

void generator_close(struct generator *a)
{
    run_close(&a->own);
    mem_free(a->logits);
    mem_free(a->raw);
    mem_free(a->inputs);
    mem_free(a->runs);
    close_whole(a->whole);
    memset(a, 0, sizeof *a);
}

uint64_t generator_cache_bytes(const struct generator *a) { return plan_cache_bytes(&a->run->graph); }

/* --- running ------------------------------------------------------------------------------------- */

void generator_begin(struct generator *a)
{
    a->length = a->feature = a->n_runs = 0;
    a->images = (struct image_batch){0};
}

int64_t generator_image_tokens(const struct generator *a) { return a->n_runs ? a->runs[a->n_runs - 1].end : 0; }

/* An image or a video on its way into the tower's input. */
struct putting {
    struct generator *a;
    bool frames;
};

/* Frames have their places after those of all images. */
static int put_pixels(void *user, const float *values, uint32_t count, struct error *e)
{
    const struct putting *p = user;
    struct generator *a = p->a;
    const struct model *m = &a->run->model;
    const uint64_t bytes = (uint64_t)(m->images->channels * m->image * m->image) * sizeof(float);
    struct image_batch *n = &a->images;
    const int64_t place = p->frames ? a->room.images + n->frames : n->images;
    *(p->frames ? &n->frames : &n->images) += count;
    if (a->whole) memcpy(a->whole->pixels, values, bytes);
    if (images_fit(&a->room, n)) return run_write_bytes(a->run, "pixel_values", (uint64_t)place * bytes, values, count * bytes, e);
    return error_set(e, PL_USAGE, "the text has more than %lld images or tiles and %lld frames of videos, for which memory is planned", (long long)a->room.images, (long long)a->room.frames);
}

int generator_images(struct generator *a, const struct image_source *s, char *const *references, uint32_t n, struct error *e)
{
    const struct image_model *m = a->run->model.images;
    int rc = PL_OK;
    CHECK(!a->length, "images come first");
    if (a->whole && !a->whole->allocation) a->whole->allocation = allocation_new(a->run, a->chunk, s ? &s->processor : &(struct image_processor){0});
    if (n && m->channels != 3) return error_set(e, PL_USAGE, "the vision tower takes images of %lld channels, and files have 3", (long long)m->channels);
    for (uint32_t i = 0; i < n && !rc; i++) {
        struct putting p = {a, media_is_video(references[i])};
        struct image_pixels x;
        const struct image_batch before = a->images;
        const int64_t tokens = p.frames && a->room.tokens_per_frame ? a->room.tokens_per_frame : m->features;
        if ((rc = image_source_read(s, references[i], put_pixels, &p, &x, e))) break;
        const int64_t row = p.frames ? a->room.images * m->features + before.frames * tokens : before.images * tokens;
        a->runs[a->n_runs] = (struct image_run){generator_image_tokens(a) + x.count * tokens, row};
        a->n_runs++;
    }
    return rc;
}

/* The row of the features that the k-th image token stands for. */
static int64_t row_of(const struct generator *a, int64_t k)
{
    uint32_t i = 0;
    while (k >= a->runs[i].end) i++;
    return a->runs[i].row + k - (i ? a->runs[i - 1].end : 0);
}

/* Whether an id stands for a feature of an image. After the last feature it is a token like any other. */
static bool is_image(const struct generator *a, int32_t id, int64_t feature)
{
    return a->n_runs && id == a->run->model.images->token && feature < generator_image_tokens(a);
}

static int put_input(struct generator *a, const char *name, int64_t n, struct error *e)
{
    return run_write_bytes(a->run, name, 0, a->inputs, (uint64_t)n * sizeof *a->inputs, e);
}

/* Which features the tokens stand for; text without images has none, whatever its ids are. */
static int put_index(struct generator *a, int32_t *ids, int64_t n, int64_t T, struct error *e)
{
    int32_t *index = ids + T;
    for (int64_t t = 0; t < T; t++) index[t] = -1;
    if (a->n_runs) image_index(&a->run->model, ids, n, &a->feature, index);
    for (int64_t t = 0; t < n; t++)
        if (index[t] >= 0) index[t] = (int32_t)row_of(a, index[t]);
    int rc = run_write_bytes(a->run, "image_index", 0, index, (uint64_t)T * sizeof *index, e);
    if (rc || !a->whole) return rc;
    for (int64_t t = 0; t < T; t++) a->whole->row.positions[t] = t < n ? (int32_t)t : -1;
    return allocation_put(a->whole->allocation, a->run, 0, 0, &a->whole->row, index, a->images.images ? a->whole->pixels : NULL, e);
}

/* Runs a program of T tokens on the next n of the text. */
static int run_tokens(struct generator *a, enum program p, int64_t T, const int32_t *ids, int64_t n, struct error *e)
{
    struct run_input image_tokens;
    int32_t *x = a->inputs;
    int rc = PL_OK;
    for (int64_t t = 0; t < T; t++) x[t] = t < n ? ids[t] : 0;
    if (p == PROGRAM_PROMPT && run_input(a->run, "image_index", &image_tokens)) rc = put_index(a, x, n, T, e);
    if (!rc) rc = put_input(a, "input_ids", T, e);
    for (int64_t t = 0; t < T; t++) x[t] = t < n ? (int32_t)(a->length + t) : -1;
    if (!rc) rc = put_input(a, "position_ids", T, e);
    for (int64_t t = 0; t < T; t++) {
        x[2 * t] = 0;
        x[2 * t + 1] = t < n ? (int32_t)(a->length + t + 1) : 0;
    }
    if (!rc) rc = put_input(a, "ranges", 2 * T, e);
    x[0] = (int32_t)(n - 1);
    if (!rc && T > 1) rc = put_input(a, "last_token", 1, e);
    if (p == PROGRAM_PROMPT) rc = agree_on(a->together, rc, e);
    if (!rc) rc = run_program(a->run, p, e);
    if (!rc) a->length += n;
    return rc;
}

static int check_ids(const struct generator *a, const int32_t *ids, int64_t n, struct error *e)
{
    const int64_t V = a->run->model.vocabulary;
    int64_t features = a->feature;
    for (int64_t i = 0; i < n; i++) {
        if (is_image(a, ids[i], features)) features++;
        else if (ids[i] < 0 || ids[i] >= V)
            return error_set(e, PL_USAGE, "token %lld has the id %d, and the model's vocabulary (vocab_size) has ids from 0 to %lld", (long long)(a->length + i), ids[i], (long long)V - 1);
    }
    if (a->whole && !a->length && n > a->chunk)
        return error_set(e, PL_USAGE, "the prompt has %lld tokens, and memory is planned for one of %lld", (long long)n, (long long)a->chunk);
    if (a->length + n > a->cache)
        return error_set(e, PL_USAGE, "a text of %lld tokens does not fit into the KV cache, which is planned for %lld; plan a longer one (generate --context), or shorten the prompt",
                         (long long)(a->length + n), (long long)a->cache);
    return PL_OK;
}

int generator_agree(struct generator *a, int32_t *id, int rc, struct error *e)
{
    struct agreement x = {0};
    if (!a->together) return rc;
    x.seen = rc || a->together->rank ? 0 : (uint64_t)*id;
    rc = agree(a->together, &x, rc, e);
    if (!rc) *id = (int32_t)x.seen;
    return rc;
}

int generator_put(struct generator *a, const int32_t *ids, int64_t n, struct error *e)
{
    const int64_t before = a->length, feature = a->feature;
    enum program p = PROGRAM_NEXT;
    CHECK(n > 0, "no tokens");
    int rc = check_ids(a, ids, n, e);
    for (int64_t done = 0; done < n && !rc;) {
        const int64_t k = min_i64(n - done, a->chunk);
        p = k > 1 || is_image(a, ids[done], a->feature) ? PROGRAM_PROMPT : PROGRAM_NEXT;
        rc = run_tokens(a, p, p == PROGRAM_PROMPT ? a->chunk : 1, ids + done, k, e);
        done += k;
    }
    if (!rc) rc = run_read(a->run, a->output[p], a->raw, e);
    if (!rc) dtype_convert(a->logits, DT_F32, a->raw, tensor_at(&a->run->graph, a->output[p])->dtype, a->run->model.vocabulary);
    if (rc) a->length = before, a->feature = feature;
    return rc;
}
