/*
 * generator.c: see generate.h.
 *
 * A chunk shorter than the planned one is padded with tokens at position -1 that see no key: they
 * are not written to the cache, and no other token sees them. So is the row of a text without a
 * next token.
 */
#include "infer/generate.h"

#include "models/model.h"
#include "dist/agree.h"

/* --- opening ---------------------------------------------------------------------------------- */

/* Checks the model before anything is planned. *whole: it takes a prompt as one chunk. `any`: the
 * prompt may have images. */
static int check_model(const struct config *c, bool any, bool *whole, struct error *e)
{
    struct model m;
    char known[256];
    int rc = config_open_model(c, &m, e);
    if (rc) return rc;
    if (!m.family->generates)
        rc = error_set(e, PL_USAGE, "%s: a model of type %s generates no text; expected a language model: %s",
                       c->model_path ? c->model_path : c->model_preset, m.family->model_type,
                       model_list_decoders(known, "or"));
    *whole = image_chooses(&m) || images_both(&m) == BOTH_PROMPT || ((images_both(&m) || images_tiles(&m)) && any);
    model_close(&m);
    return rc;
}

int generator_plan(struct generator *a, const struct config *c, const struct run_generation *o,
                   const struct image_batch *images, struct error *e)
{
    memset(a, 0, sizeof *a);
    const struct image_batch text = {0};
    struct run_generation g = *o;
    if (!images) images = &text;
    g.apart = images_any(images);
    bool whole = false;
    const struct run_options options = {.forward = true, .B = 1, .T = 1, .generate = &g, .own = g.apart ? images : NULL,
                                        .own_bytes = sizeof *images};
    int rc = check_model(c, g.apart, &whole, e);
    if (!rc && whole && o->chunk && o->chunk < o->prompt)
        rc = error_set(e, PL_USAGE,
                       "the prompt has %lld tokens, and chunks are to have %lld: in this model the tokens of an image "
                       "depend on those after them; leave the chunk out",
                       (long long)o->prompt, (long long)o->chunk);
    if (whole) g.chunk = max_i64(o->prompt, 2);
    a->run = &a->own;
    if (!rc) rc = run_plan(&a->own, c, &options, e);
    a->cache = o->cache;
    a->room = *images;
    a->texts = a->own.planned.prompts;
    a->chunk = a->own.planned.plan.settings.prompt_chunk;
    return rc;
}

/* Clears the cache: what a kernel may read of it is finite from the start. */
static int clear_cache(struct generator *a, struct error *e)
{
    struct run *r = a->run;
    int rc = PL_OK;
    memset(run_staging(r), 0, PLAN_STAGING);
    for (id s = 1; s < r->planned.graph.storages.n; s++) {
        const struct storage *x = &r->planned.graph.storages.at[s];
        char *to = r->device.arena[x->space] + r->planned.plan.placement.offset[s];
        for (uint64_t at = 0; x->kind == KIND_CACHE && at < x->bytes && !rc; at += PLAN_STAGING)
            rc = r->device.ops->write(&r->device, to + at, run_staging(r), min_u64(PLAN_STAGING, x->bytes - at), e);
    }
    return rc;
}

/* Returns the bytes of an image for the vision tower. */
static uint64_t image_bytes(const struct model *m)
{
    return (uint64_t)(m->images->channels * m->image * m->image) * sizeof(float);
}

/* Allocates what images of any size take. */
static void open_grids(struct generator *a, const struct grid_model *g)
{
    const size_t P = (size_t)a->room.patches, tokens = (size_t)(a->texts * a->cache),
                 rows = (size_t)max_i64(a->chunk, a->texts);
    a->walk = mem_alloc((size_t)a->texts * sizeof *a->walk);
    a->three = mem_alloc(tokens * sizeof *a->three), a->index = mem_alloc(tokens * sizeof *a->index);
    a->row_three = mem_alloc(rows * sizeof *a->row_three), a->row_index = mem_alloc(rows * sizeof *a->row_index);
    if (!P) return;
    a->grids = mem_alloc(P * sizeof *a->grids);
    a->patches = mem_alloc(P * (size_t)grid_values(g) * sizeof *a->patches);
    a->grid.feature = mem_alloc(P * sizeof *a->grid.feature);
}

/* Finds the outputs, and allocates what the host reads and writes. */
static void open_buffers(struct generator *a)
{
    const struct run *r = a->run;
    const struct model *m = &r->planned.model;
    const int64_t V = m->vocabulary;
    FOR_PROGRAMS(p, PROGRAM_GENERATES) {
        a->output[p] = graph_find_output(&r->planned.graph, p, "logits");
        CHECK(a->output[p] && tensor_elements(tensor_at(&r->planned.graph, a->output[p])) == a->texts * V, "program %s",
              program_name(p));
    }
    a->logits = mem_alloc((size_t)V * sizeof *a->logits);
    a->raw = mem_alloc(tensor_bytes(tensor_at(&r->planned.graph, a->output[PROGRAM_NEXT])));
    const size_t rows = (size_t)max_i64(a->chunk, a->texts) * sizeof *a->ids;
    a->writer = batch_writer_new(a->run);
    a->ids = mem_alloc(rows), a->positions = mem_alloc(rows), a->slots = mem_alloc(rows);
    a->ranges = mem_alloc(2 * rows);
    a->length = mem_alloc((size_t)a->texts * sizeof *a->length);
    a->rest = mem_alloc((size_t)a->texts * sizeof *a->rest);
    a->last = mem_alloc((size_t)a->texts * sizeof *a->last);
    a->row = mem_alloc((size_t)max_i64(a->chunk, a->texts) * sizeof *a->row);
    if (images_single(m)) a->whole = mem_alloc(image_bytes(m));
    int64_t media = a->room.images + a->room.frames;
    for (int k = 0; k < MODALITIES; k++) media += a->room.volumes[k];
    a->runs = mem_alloc((size_t)media * sizeof *a->runs);
    if (images_grids(m)) open_grids(a, images_grids(m));
}

void generator_warn_longest(const struct generator *a, int64_t tokens, const char *what)
{
    const int64_t longest = a->run->planned.model.longest;
    if (longest && tokens > longest)
        log_warn("%s may have %lld tokens, and the model was made for at most %lld (max_position_embeddings): what "
                 "comes after may be worse",
                 what, (long long)tokens, (long long)longest);
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
    CHECK(r->planned.answers, "the run has no programs that generate");
    const struct image_batch *images = model_takes_images(&r->planned.model) ? r->planned.batch.own : NULL;
    *a = (struct generator){.run = r,
                            .together = settings_meet(&r->planned.plan.settings) ? r->planned.ranks : NULL,
                            .texts = r->planned.prompts,
                            .cache = r->planned.batch.cache,
                            .chunk = r->planned.prompt_chunk,
                            .room = images ? *images : (struct image_batch){0}};
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
    batch_writer_free(a->writer);
    mem_free(a->ids), mem_free(a->positions), mem_free(a->slots), mem_free(a->ranges);
    mem_free(a->length);
    mem_free(a->rest);
    mem_free(a->last);
    mem_free(a->row);
    mem_free(a->runs);
    mem_free(a->whole);
    mem_free(a->walk), mem_free(a->three), mem_free(a->index), mem_free(a->row_three), mem_free(a->row_index);
    mem_free(a->grids), mem_free(a->patches), mem_free(a->grid.feature);
    memset(a, 0, sizeof *a);
}

uint64_t generator_cache_bytes(const struct generator *a) { return plan_cache_bytes(&a->run->planned.graph); }

/* --- running ---------------------------------------------------------------------------------- */

void generator_begin(struct generator *a, int64_t text)
{
    a->length[text] = a->feature[0] = a->feature[1] = a->n_runs = 0;
    a->images = (struct image_batch){0};
    a->n_grids = 0;
    if (a->walk) a->walk[text] = (struct grid_walk){.model = images_grids(&a->run->planned.model)};
    if (a->walk && a->room.patches) a->walk[text].grids = a->grids, a->walk[text].feature = a->grid.feature;
}

int64_t generator_image_tokens(const struct generator *a) { return a->n_runs ? a->runs[a->n_runs - 1].end : 0; }

/* An image, a video or a volume on its way into the tower's input. */
struct putting {
    struct generator *a;
    const struct image_pixels *x;
    bool frames;
};

static int refuse_more(const struct generator *a, struct error *e)
{
    return error_set(e, PL_USAGE, "the text has more than %lld images or tiles, %lld frames of videos and the volumes "
                     "for which memory is planned", (long long)a->room.images, (long long)a->room.frames);
}

/* Writes the patches of a volume. */
static int put_volume(struct generator *a, int modality, const float *values, struct error *e)
{
    const struct modality *x = &a->run->planned.model.images->modalities.at[modality];
    const uint64_t bytes = (uint64_t)modality_floats(x) * sizeof(float),
                   place = (uint64_t)a->images.volumes[modality]++;
    if (!images_fit(&a->room, &a->images)) return refuse_more(a, e);
    return batch_write_part(a->run, batch_inputs[ROW_VOLUMES_0 + modality].name, place * bytes, values, bytes, e);
}

/* Writes pixels to the tower's input. Frames have their places after those of all images. */
static int put_pixels(void *user, const float *values, uint32_t count, struct error *e)
{
    const struct putting *p = user;
    struct generator *a = p->a;
    const uint64_t bytes = image_bytes(&a->run->planned.model);
    struct image_batch *n = &a->images;
    if (p->x->modality >= 0) return put_volume(a, p->x->modality, values, e);
    const int64_t place = p->frames ? a->room.images + n->frames : n->images;
    *(p->frames ? &n->frames : &n->images) += count;
    if (!images_fit(&a->room, n)) return refuse_more(a, e);
    if (!a->whole) return batch_write_part(a->run, "pixel_values", (uint64_t)place * bytes, values, count * bytes, e);
    memcpy(a->whole, values, bytes);
    return PL_OK;
}

/* An image of any size on its way. */
struct putting_patches {
    struct generator *a;
    const struct image_pixels *x;
};

static int put_patches(void *user, const float *values, uint32_t count, struct error *e)
{
    const struct putting_patches *p = user;
    struct generator *a = p->a;
    const int64_t K = grid_values(images_grids(&a->run->planned.model));
    if (a->images.patches + count > a->room.patches)
        return error_set(e, PL_USAGE, "the images of the text have more than %lld patches, for which memory is planned",
                         (long long)a->room.patches);
    memcpy(a->patches + a->images.patches * K, values, (size_t)(count * K) * sizeof *values);
    a->images.patches += count;
    a->grids[a->n_grids++] = (struct image_grid){p->x->grid.t, p->x->grid.h, p->x->grid.w, p->x->video, p->x->seconds};
    return PL_OK;
}

/* Reads images of any size, and writes them to the tower's inputs. */
static int put_grids(struct generator *a, const struct image_source *s, char *const *references, uint32_t n,
                     struct error *e)
{
    for (uint32_t i = 0; i < n; i++) {
        struct image_pixels x;
        TRY(image_source_read(s, references[i], false, put_patches, &(struct putting_patches){a, &x}, &x, e));
    }
    if (!a->room.patches) return PL_OK;
    if (s) {
        const struct image_processor normalisation = image_source_normalisation(&s->patches);
        batch_writer_set_pixels(a->writer, &normalisation);
    }
    grid_lay_out(images_grids(&a->run->planned.model), a->grids, a->n_grids, a->room.patches, &a->grid);
    const struct batch_record images = {.is = {[ROW_PIXELS] = {a->patches}}, .grids = a->grids, .n_grids = a->n_grids};
    return batch_write(a->writer, &(struct batch_target){0}, 0, &images, e);
}

int generator_images(struct generator *a, const struct image_source *s, char *const *references, uint32_t n,
                     struct error *e)
{
    const struct image_model *m = a->run->planned.model.images;
    int rc = PL_OK;
    if (m && m->grids) return put_grids(a, s, references, n, e);
    if (s) batch_writer_set_pixels(a->writer, &s->processor);
    if (n && m->channels != 3)
        return error_set(e, PL_USAGE, "the vision tower takes images of %lld channels, and files have 3",
                         (long long)m->channels);
    const bool beside = image_source_images(references, n) > 1;
    for (uint32_t i = 0; i < n && !rc; i++) {
        struct image_pixels x;
        struct putting p = {a, &x, media_is_video(references[i])};
        const struct image_batch before = a->images;
        if ((rc = image_source_read(s, references[i], beside, put_pixels, &p, &x, e))) break;
        const int64_t tokens = x.modality >= 0                          ? m->modalities.at[x.modality].tokens
                               : p.frames && a->room.tokens_per_frame ? a->room.tokens_per_frame
                                                                      : m->features;
        const int64_t row = x.modality >= 0 ? images_volume_row(&a->run->planned.model, &a->room, x.modality) +
                                                  before.volumes[x.modality] * tokens
                            : p.frames      ? a->room.images * m->features + before.frames * tokens
                                            : before.images * tokens;
        a->runs[a->n_runs] = (struct image_run){generator_image_tokens(a) + x.count * tokens, row, x.modality >= 0};
        a->n_runs++;
    }
    return rc;
}

/* Reports whether an id is the placeholder of an image's feature. After the last feature it is a
 * token like any other. */
static bool is_image(const struct generator *a, int32_t id, int64_t feature)
{
    const struct image_model *m = a->run->planned.model.images;
    if (a->n_runs && m->anyres) return anyres_is_token(m->anyres, id);
    return a->n_runs && id == m->token && feature < generator_image_tokens(a);
}

/* Takes tokens for a run of a program: of program next one of each text, in the row of the text;
 * else as many as are left, text after text, up to a chunk. */
static void take_tokens(struct generator *a, enum program p, const struct text_tokens *x, uint32_t n)
{
    const bool single = p == PROGRAM_NEXT;
    int64_t at = 0;
    for (int64_t t = 0; t < (single ? a->texts : a->chunk); t++) a->row[t].text = -1;
    for (int64_t t = 0; t < a->texts; t++) a->last[t] = -1;
    for (uint32_t i = 0; i < n; i++) {
        const int64_t text = x[i].text, most = single ? 1 : a->chunk - at;
        for (int64_t k = 0; k < most && a->rest[i]; k++, a->rest[i]--) {
            const int64_t t = single ? text : at++;
            a->row[t] = (struct row_token){text, x[i].ids[x[i].n - a->rest[i]], (int32_t)a->length[text]++};
            a->last[text] = a->rest[i] == 1 ? (int32_t)t : -1;
        }
    }
}

/* Writes the inputs of a program: its rows, and the features that replace image tokens. Text
 * without images has none, whatever its ids are. */
static int put_rows(struct generator *a, enum program p, struct error *e)
{
    const bool apart = p == PROGRAM_NEXT; /* each text has a row of the cache, and its slots begin at 0 */
    const int64_t T = apart ? a->texts : a->chunk;
    for (int64_t t = 0; t < T; t++) {
        const struct row_token *x = &a->row[t];
        const bool padding = x->text < 0;
        const int32_t first = padding || apart ? 0 : (int32_t)(x->text * a->cache);
        a->ids[t] = padding ? 0 : x->id;
        a->positions[t] = padding ? -1 : x->position;
        a->slots[t] = padding ? -1 : first + x->position;
        a->ranges[2 * t] = first;
        a->ranges[2 * t + 1] = padding ? first : first + x->position + 1;
    }
    const uint64_t bytes = (uint64_t)T * sizeof *a->ids;
    for (int64_t t = 0; t < T && a->walk; t++) {
        const struct row_token *x = &a->row[t];
        const int64_t at = x->text < 0 ? 0 : x->text * a->cache + x->position;
        a->row_index[t] = x->text < 0 ? -1 : a->index[at];
        memcpy(a->row_three[t], a->three[at], sizeof *a->row_three);
    }
    struct batch_record row = {.is = {[ROW_IDS] = {a->ids, bytes},
                                            [ROW_POSITIONS] = {a->positions, bytes},
                                            [ROW_RANGES] = {a->ranges, 2 * bytes},
                                            [ROW_SLOTS] = {apart ? NULL : a->slots, bytes},
                                            [ROW_LAST] = {apart ? NULL : a->last, (uint64_t)a->texts * sizeof *a->last},
                                            [ROW_PIXELS] = {apart || !a->images.images ? NULL : a->whole}},
                                     .runs = a->runs,
                                     .n_runs = a->n_runs,
                                     .feature = a->feature,
                                     .documents = a->room.images && !apart ? a->positions : NULL,
                                     .text = apart};
    if (a->walk) {
        row.is[ROW_POSITIONS].at = a->row_three, row.is[ROW_POSITIONS].bytes = 3 * bytes;
        row.is[ROW_INDEX].at = a->row_index, row.is[ROW_INDEX].bytes = bytes;
        row.is[ROW_SLOTS].at = a->slots;
    }
    return batch_write(a->writer, &(struct batch_target){0}, 0, &row, e);
}

/* Reads the logits of the texts whose last token was in this run; those of neighbours at once. */
static int read_logits(struct generator *a, enum program p, struct error *e)
{
    struct run *r = a->run;
    const uint64_t row = tensor_bytes(tensor_at(&r->planned.graph, a->output[p])) / (uint64_t)a->texts;
    const char *from = tape_address(&r->tape, a->output[p]);
    int rc = PL_OK;
    for (int64_t first = 0, n; first < a->texts && !rc; first += n + 1) {
        for (n = 0; first + n < a->texts && a->last[first + n] >= 0; n++) {}
        if (n)
            rc = r->device.ops->read(&r->device, a->raw + (uint64_t)first * row, from + (uint64_t)first * row,
                                     (uint64_t)n * row, e);
    }
    return rc;
}

/* Runs a program on the next tokens of texts. */
static int run_tokens(struct generator *a, enum program p, const struct text_tokens *x, uint32_t n, struct error *e)
{
    take_tokens(a, p, x, n);
    int rc = put_rows(a, p, e);
    if (p == PROGRAM_PROMPT) rc = agree_on(a->together, rc, e);
    if (!rc) rc = run_program(a->run, p, e);
    return rc ? rc : read_logits(a, p, e);
}

int generator_check(const struct generator *a, const struct text_tokens *x, struct error *e)
{
    const int64_t V = a->run->planned.model.vocabulary, length = a->length[x->text];
    int64_t features = a->feature[0];
    for (int64_t i = 0; i < x->n; i++) {
        if (is_image(a, x->ids[i], features)) features++;
        else if (x->ids[i] < 0 || x->ids[i] >= V)
            return error_set(e, PL_USAGE,
                             "token %lld has the id %d, and the model's vocabulary (vocab_size) has ids from 0 to %lld",
                             (long long)(length + i), x->ids[i], (long long)V - 1);
    }
    const struct model *m = &a->run->planned.model;
    const bool whole = a->whole || (a->walk && a->room.images) || images_both(m) == BOTH_PROMPT ||
                       ((images_both(m) || images_tiles(m)) && a->n_runs);
    if (whole && !length && x->n > a->chunk)
        return error_set(e, PL_USAGE, "the prompt has %lld tokens, and memory is planned for one of %lld",
                         (long long)x->n, (long long)a->chunk);
    if (length + x->n > a->cache)
        return error_set(e, PL_USAGE,
                         "a text of %lld tokens does not fit into the KV cache, which is planned for %lld; plan a "
                         "longer one (generate --context), or shorten the prompt",
                         (long long)(length + x->n), (long long)a->cache);
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

/* Finds the program for what is left of the tokens: one that takes a token of each text, if none
 * has more and none is an image's. False: nothing is left. */
static bool next_program(const struct generator *a, const struct text_tokens *x, uint32_t n, enum program *p)
{
    bool any = false;
    *p = PROGRAM_NEXT;
    for (uint32_t i = 0; i < n; i++) {
        if (a->rest[i] > 1 || (a->rest[i] && is_image(a, x[i].ids[x[i].n - 1], a->feature[0]))) *p = PROGRAM_PROMPT;
        any |= a->rest[i] > 0;
    }
    return any;
}

int generator_put(struct generator *a, const struct text_tokens *x, uint32_t n, struct error *e)
{
    const int64_t feature[] = {a->feature[0], a->feature[1]};
    enum program p;
    int rc = PL_OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        CHECK(x[i].n > 0 && x[i].text >= 0 && x[i].text < a->texts, "tokens");
        a->rest[i] = x[i].n;
        rc = generator_check(a, &x[i], e);
        const int64_t at = x[i].text * a->cache + a->length[x[i].text];
        if (!rc && a->walk) {
            a->walk[x[i].text].n = a->n_grids;
            if (!grid_tokens(&a->walk[x[i].text], x[i].ids, x[i].n, a->three + at, a->index + at))
                rc = error_set(e, PL_USAGE, "the image tokens of the prompt do not match its images");
        }
    }
    if (rc) return rc;
    while (!rc && next_program(a, x, n, &p)) rc = run_tokens(a, p, x, n, e);
    for (uint32_t i = 0; i < n && rc; i++) a->length[x[i].text] -= x[i].n - a->rest[i];
    if (rc) memcpy(a->feature, feature, sizeof feature);
    return rc;
}

const float *generator_logits(struct generator *a, int64_t text)
{
    const int64_t V = a->run->planned.model.vocabulary;
    const enum dtype t = tensor_at(&a->run->planned.graph, a->output[PROGRAM_NEXT])->dtype;
    dtype_convert(a->logits, DT_F32, a->raw + (uint64_t)(text * V) * dtype_size(t), t, V);
    return a->logits;
}
