/*
 * feed_tokens.c: token rows for a language model. Labels are the same tokens: the model shifts
 * them. A padding row at the end of the data has the label -100 everywhere.
 */
#include <inttypes.h>

#include "data/text/tokens.h"
#include "batch/batch_plan.h"
#include "batch/feed.h"

/* A byte-level vocabulary: 256 bytes and some special ids. A larger one is a tokenizer's. */
enum { BYTE_VOCABULARY = 512 };

struct token_feed {
    struct tokens tokens;
    int32_t *row;              /* one sample */
    int32_t *zeros, *ignored;  /* a row of padding, and its labels */
};

/* Checks the model. A built-in family has ports; a user-defined model accepts token files if its
 * inputs are token rows. */
static int check_model(const struct run *r, struct error *e)
{
    static const char *const names[] = {"input_ids", "labels"};
    int64_t T = r->planned.config->data_sequence;
    struct planned_input x;
    if (!r->planned.defined && !model_port(&r->planned.model, "input_ids"))
        return batch_refuse_tokens(r->planned.config, &r->planned.model, e);
    for (size_t i = 0; i < COUNT(names) && r->planned.defined; i++)
        if (!planned_input(&r->planned, names[i], &x) || x.dtype != DT_I32 || x.axis || x.sample != (uint64_t)T * 4 ||
            (!i && !r->planned.model.vocabulary))
            return error_set(
                e, PL_USAGE,
                "token files need a model with the inputs input_ids and labels, i32 [batch, data.sequence = %" PRId64
                "], and an embedding of input_ids; %s does not fit",
                T, names[i]);
    for (id s = 1; s < r->planned.graph.storages.n && r->planned.defined; s++) {
        const char *name = graph_name(&r->planned.graph, r->planned.graph.storages.at[s].name);
        if (r->planned.graph.storages.at[s].kind != KIND_INPUT || !planned_input(&r->planned, name, &x) ||
            !planned_input_used(&r->planned, &x))
            continue;
        if (strcmp(name, "input_ids") && strcmp(name, "labels") && strcmp(name, "samples"))
            return error_set(e, PL_USAGE,
                             "token files give input_ids and labels, but the model also reads the input %s; call "
                             "pl_step with inputs of your own",
                             name);
    }
    return PL_OK;
}

static int token_open(struct feed *f, struct run *r, enum feed_role role, struct error *e)
{
    const struct config *c = f->config;
    const struct config_list *paths = role == FEED_TRAIN ? &c->data_train : &c->data_validation;
    struct tokens_options o = {.paths = paths->at, .n_paths = paths->n, .sequence = c->data_sequence,
                               .dtype = c->data_token_dtype, .vocab_size = r->planned.model.vocabulary,
                               .bytes = c->data_format == FORMAT_BYTES};
    int rc = check_model(r, e);
    if (rc) return rc;
    struct token_feed *t = mem_alloc(sizeof *t);
    rc = tokens_open(&t->tokens, &o, e);
    if (!rc && role == FEED_TRAIN && (rc = tokens_fingerprint(&t->tokens, &f->fingerprint, e)))
        tokens_close(&t->tokens);
    if (rc) {
        mem_free(t);
        return rc;
    }
    if (o.bytes && role == FEED_TRAIN && r->planned.model.vocabulary > BYTE_VOCABULARY)
        log_warn("data.format is bytes: the ids are byte values from 0 to 255, and the model's vocabulary has %" PRId64
                 " ids",
                 r->planned.model.vocabulary);
    const size_t T = (size_t)c->data_sequence;
    t->row = mem_alloc(T * sizeof *t->row);
    t->zeros = mem_alloc(T * sizeof *t->zeros);
    t->ignored = mem_alloc(T * sizeof *t->ignored);
    for (size_t i = 0; i < T; i++) t->ignored[i] = -100;
    f->samples = tokens_count(&t->tokens);
    f->state = t;
    return PL_OK;
}

static int token_put(struct feed *f, const struct batch_target *target, uint64_t position, int64_t samples,
                     int64_t rows, struct feed_batch *out, struct error *e)
{
    struct token_feed *t = f->state;
    for (int64_t i = 0; i < rows; i++) {
        const struct batch_record padding = {.is = {[ROW_IDS] = {t->zeros}, [ROW_LABELS] = {t->ignored}}},
                                  sample = {.is = {[ROW_IDS] = {t->row}, [ROW_LABELS] = {t->row}}};
        if (i < samples) TRY(tokens_read(&t->tokens, feed_sample(f, position + (uint64_t)i), t->row, e));
        TRY(batch_write(f->writer, target, i, i < samples ? &sample : &padding, e));
    }
    out->count[0] = (double)samples * (double)(f->config->data_sequence - 1);
    out->count[1] = (double)samples;
    out->units = (double)samples * (double)f->config->data_sequence;
    return PL_OK;
}

static void token_close(struct feed *f)
{
    struct token_feed *t = f->state;
    tokens_close(&t->tokens);
    mem_free(t->row), mem_free(t->zeros), mem_free(t->ignored);
    mem_free(t);
}

const struct feed_ops tokens_feed = {.port = "input_ids",
                                     .unit = "tokens",
                                     .counts = {"tokens", "samples"},
                                     .open = token_open,
                                     .put = token_put,
                                     .close = token_close};
