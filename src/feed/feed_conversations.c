/*
 * feed_conversations.c: rows of conversations for a language model (data/conversations.h): ids and labels;
 * for packed rows also positions, and for each token the range of keys that it may see. Everything textual happens in
 * `prepare`; a step copies ids out of a memory-mapped store.
 */
#include <inttypes.h>
#include <string.h>

#include "feed/batch_plan.h"
#include "feed/feed.h"
#include "feed/text_source.h"

struct conversation_feed {
    struct text_source source;    /* closed after `prepare` */
    struct conversations set;
    struct token_row row;
    size_t n_inputs;              /* of inputs[] that the rows need */
    bool open;                    /* `set` */
};

static const struct {
    const char *input;
    int32_t each;                 /* elements for a token */
} inputs[] = {{"input_ids", 1}, {"labels", 1}, {"position_ids", 1}, {"ranges", 2}};
enum { UNPACKED_INPUTS = 2 };     /* padding comes after the conversation, so no token of it sees padding */

static int32_t **row_array(struct token_row *r, size_t i)
{
    int32_t **const arrays[] = {&r->ids, &r->labels, &r->positions, &r->ranges};
    return arrays[i];
}

/* A model that a program defines gets token rows, without ranges. */
static int check_model(const struct run *r, struct error *e)
{
    struct run_input x;
    if (!model_port(&r->model, "input_ids") && !r->defined) return batch_refuse_tokens(r->config, &r->model, e);
    for (size_t i = 0; i < (r->batch.packed ? COUNT(inputs) : UNPACKED_INPUTS); i++)
        if (!run_input(r, inputs[i].input, &x) || x.dtype != DT_I32 || x.axis || x.sample != (uint64_t)r->config->data_sequence * (uint64_t)inputs[i].each * 4)
            return error_set(e, PL_USAGE, "conversations need a model with the inputs input_ids, labels and position_ids, i32 [batch, data.sequence], and ranges, i32 [batch, data.sequence, 2]; %s does not fit. With data.packing: false, input_ids and labels are enough",
                             inputs[i].input);
    return PL_OK;
}

static int conversation_open(struct feed *f, struct run *r, enum feed_role role, struct error *e)
{
    int rc = check_model(r, e);
    if (rc) return rc;
    struct conversation_feed *s = mem_alloc(sizeof *s);
    s->n_inputs = r->batch.packed ? COUNT(inputs) : UNPACKED_INPUTS;
    rc = text_source_open(&s->source, f->config, role, e);
    if (rc) mem_free(s);
    else f->state = s;
    return rc;
}

/* Says what the rows hold and what was left out. */
static void report(const struct feed *f, const struct conversations *c)
{
    const char *key = f->role == FEED_TRAIN ? "data.train" : f->config->data_holdout > 0 ? "data.holdout" : "data.validation";
    struct text left = {0};
    log_note("%s: %u conversations in %u rows of %" PRId64 " tokens, %.1f %% filled; %.1f %% of the tokens have labels", key, c->used.n, c->rows.n, c->o.sequence,
             100.0 * (double)c->tokens / ((double)c->rows.n * (double)c->o.sequence), 100.0 * (double)c->labels / (double)c->tokens);
    conversations_print_left(c, &left);
    if (left.n) log_warn("%s: %s", key, left.at);
    text_free(&left);
}

static int conversation_prepare(struct feed *f, struct run *r, const char *folder, struct error *e)
{
    struct conversation_feed *s = f->state;
    struct text path = {0};
    s->source.options.interrupted = f->interrupted;
    int rc = text_store_find(&s->source, f->config, folder, f->role, &path, e);
    const struct conversations_options o = text_rows(f->config, &s->source, f->role, r->model.vocabulary);
    if (!rc) rc = conversations_open(&s->set, path.at, &o, e);
    text_free(&path);
    text_source_close(&s->source);
    if (rc) return rc;
    s->open = true;
    for (size_t i = 0; i < COUNT(inputs); i++) *row_array(&s->row, i) = mem_alloc((size_t)o.sequence * (size_t)inputs[i].each * sizeof(int32_t));
    f->samples = conversations_count(&s->set);
    f->fingerprint = conversations_fingerprint(&s->set);
    report(f, &s->set);
    return PL_OK;
}

static int conversation_put(struct feed *f, struct run *r, uint64_t position, int64_t samples, int64_t rows, struct feed_batch *out, struct error *e)
{
    struct conversation_feed *s = f->state;
    int rc = PL_OK;
    for (int64_t i = 0; i < rows && !rc; i++) {
        if (i < samples) rc = conversations_read(&s->set, feed_sample(f, position + (uint64_t)i), &s->row, e);
        else conversations_pad(&s->set, &s->row);
        for (size_t k = 0; k < s->n_inputs && !rc; k++)
            rc = run_write_input(r, inputs[k].input, i, *row_array(&s->row, k), (uint64_t)s->set.o.sequence * (uint64_t)inputs[k].each * sizeof(int32_t), e);
        out->count[0] += s->row.labelled;
        out->units += s->row.tokens;
    }
    out->count[1] = (double)samples;
    return rc;
}

static void conversation_close(struct feed *f)
{
    struct conversation_feed *s = f->state;
    if (s->open) conversations_close(&s->set);
    for (size_t i = 0; i < COUNT(inputs); i++) mem_free(*row_array(&s->row, i));
    text_source_close(&s->source);
    mem_free(s);
}

const struct feed_ops conversations_feed = {.port = "input_ids", .unit = "tokens", .counts = {"tokens", "samples"}, .open = conversation_open, .prepare = conversation_prepare,
                                            .put = conversation_put, .close = conversation_close};
