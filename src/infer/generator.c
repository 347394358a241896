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

/* Checks the model before anything is planned. *whole: it takes a prompt as one chunk. `media`: the
 * prompt may have some. */
static int check_model(const struct config *c, bool media, bool *whole, struct error *e)
{
    struct model m;
    char known[256];
    int rc = config_open_model(c, &m, e);
    if (rc) return rc;
    if (!m.family->generates)
        rc = error_set(e, PL_USAGE, "%s: a model of type %s generates no text; expected a language model: %s",
                       c->model_path ? c->model_path : c->model_preset, m.family->model_type,
                       model_list_decoders(known, "or"));
    *whole = m.whole >= (media ? WHOLE_WITH_IMAGES : WHOLE_PROMPT);
    model_close(&m);
    return rc;
}

int generator_plan(struct generator *a, const struct config *c, const struct run_generation *o,
                   const struct image_source *source, const struct media *media, struct error *e)
{
    memset(a, 0, sizeof *a);
    struct run_generation g = *o;
    struct contents holds = {.media = media ? *media : (struct media){0}};
    g.apart = media_any(&holds.media);
    bool whole = false;
    const struct run_options options =
        {.forward = true, .B = 1, .T = 1, .generate = &g, .holds = g.apart ? &holds : NULL};
    int rc = check_model(c, g.apart, &whole, e);
    if (!rc && g.apart) rc = image_source_table(&holds.pixels, source, &holds.media, &a->memory, e);
    if (!rc && whole && o->chunk && o->chunk < o->prompt)
        rc = error_set(e, PL_USAGE,
                       "the prompt has %lld tokens, and chunks are to have %lld: in this model the tokens of an image "
                       "depend on those after them; leave the chunk out",
                       (long long)o->prompt, (long long)o->chunk);
    if (whole) g.chunk = max_i64(o->prompt, 2);
    a->run = &a->own;
    if (!rc) rc = run_plan(&a->own, c, &options, e);
    a->cache = o->cache;
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

/* Finds the outputs, and allocates what the host reads and writes. */
static void open_buffers(struct generator *a)
{
    const struct run *r = a->run;
    const int64_t V = r->planned.model.vocabulary;
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
    text_media_open(&a->media, a->run, a->writer, a->texts, a->cache, max_i64(a->chunk, a->texts));
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
    *a = (struct generator){.run = r,
                            .together = settings_meet(&r->planned.plan.settings) ? r->planned.ranks : NULL,
                            .texts = r->planned.prompts,
                            .cache = r->planned.batch.cache,
                            .chunk = r->planned.prompt_chunk};
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
    text_media_close(&a->media);
    bump_free(&a->memory);
    memset(a, 0, sizeof *a);
}

uint64_t generator_cache_bytes(const struct generator *a) { return plan_cache_bytes(&a->run->planned.graph); }

/* --- running ---------------------------------------------------------------------------------- */

void generator_begin(struct generator *a, int64_t text)
{
    a->length[text] = 0;
    text_media_begin(&a->media, text);
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
    struct batch_record row = {.is = {[ROW_IDS] = {a->ids, bytes},
                                      [ROW_POSITIONS] = {a->positions, bytes},
                                      [ROW_RANGES] = {a->ranges, 2 * bytes},
                                      [ROW_SLOTS] = {apart && !a->media.walk ? NULL : a->slots, bytes},
                                      [ROW_LAST] = {apart ? NULL : a->last, (uint64_t)a->texts * sizeof *a->last}}};
    text_media_put(&a->media, a->row, T, apart, &row);
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
    int64_t features = a->media.feature[0];
    for (int64_t i = 0; i < x->n; i++) {
        if (text_media_is_token(&a->media, x->ids[i], features)) features++;
        else if (x->ids[i] < 0 || x->ids[i] >= V)
            return error_set(e, PL_USAGE,
                             "token %lld has the id %d, and the model's vocabulary (vocab_size) has ids from 0 to %lld",
                             (long long)(length + i), x->ids[i], (long long)V - 1);
    }
    const bool media = text_media_tokens(&a->media);
    const bool whole = a->run->planned.model.whole >= (media ? WHOLE_WITH_IMAGES : WHOLE_PROMPT);
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
        const int32_t last = x[i].ids[x[i].n - 1];
        if (a->rest[i] > 1 || (a->rest[i] && text_media_is_token(&a->media, last, a->media.feature[0])))
            *p = PROGRAM_PROMPT;
        any |= a->rest[i] > 0;
    }
    return any;
}

int generator_put(struct generator *a, const struct text_tokens *x, uint32_t n, struct error *e)
{
    const int64_t feature[] = {a->media.feature[0], a->media.feature[1]};
    enum program p;
    int rc = PL_OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        CHECK(x[i].n > 0 && x[i].text >= 0 && x[i].text < a->texts, "tokens");
        a->rest[i] = x[i].n;
        rc = generator_check(a, &x[i], e);
        if (!rc) rc = text_media_place(&a->media, x[i].text, a->length[x[i].text], x[i].ids, x[i].n, e);
    }
    if (rc) return rc;
    while (!rc && next_program(a, x, n, &p)) rc = run_tokens(a, p, x, n, e);
    for (uint32_t i = 0; i < n && rc; i++) a->length[x[i].text] -= x[i].n - a->rest[i];
    if (rc) memcpy(a->media.feature, feature, sizeof feature);
    return rc;
}

const float *generator_logits(struct generator *a, int64_t text)
{
    const int64_t V = a->run->planned.model.vocabulary;
    const enum dtype t = tensor_at(&a->run->planned.graph, a->output[PROGRAM_NEXT])->dtype;
    dtype_convert(a->logits, DT_F32, a->raw + (uint64_t)(text * V) * dtype_size(t), t, V);
    return a->logits;
}
