/*
 * conversations.c: see conversations.h.
 */
#include "data/conversations.h"

#include "data/holdout.h"

#include <stdio.h>
#include <string.h>

enum { IGNORED = -100 };

/* --- labels --------------------------------------------------------------------------------- */

/* The label ranges of a sample: the last may reach beyond a cut. */
struct labels {
    struct byte_range whole;
    const struct byte_range *at;
    uint32_t n;
};

static void find_labels(const struct conversations *c, const struct stored_sample *x, uint32_t tokens, struct labels *out)
{
    *out = (struct labels){.whole = {0, tokens}, .at = c->store.answers + x->first_answer};
    while (out->n < x->answers && out->at[out->n].begin < tokens) out->n++;
    if (c->o.train_on == TRAIN_ON_LAST && out->n) out->at += out->n - 1, out->n = 1;
    if (c->o.train_on == TRAIN_ON_ALL) out->at = &out->whole, out->n = 1;
}

/* Without token 0, which nothing predicts, and without what a cut removed. */
static struct byte_range clip(struct byte_range r, uint32_t tokens)
{
    if (!r.begin) r.begin = 1;
    if (r.end > tokens) r.end = tokens;
    if (r.end < r.begin) r.end = r.begin;
    return r;
}

static uint32_t count_labels(const struct conversations *c, const struct stored_sample *x, uint32_t tokens)
{
    struct labels l;
    uint32_t sum = 0;
    find_labels(c, x, tokens, &l);
    for (uint32_t k = 0; k < l.n; k++) sum += clip(l.at[k], tokens).end - clip(l.at[k], tokens).begin;
    return sum;
}

/* --- which samples are used --------------------------------------------------------------------- */

/* The tokens of a sample that is too long up to the end of the last answer that fits; 0: none does. */
static uint32_t cut_tokens(const struct conversations *c, const struct stored_sample *x)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < x->answers && c->store.answers[x->first_answer + i].end <= c->o.sequence; i++) end = c->store.answers[x->first_answer + i].end;
    return x->plain ? (uint32_t)c->o.sequence : end;
}

static void use_samples(struct conversations *c)
{
    const uint64_t n = c->store.header->samples;
    const uint64_t read = c->store.header->report.read;
    bool *held = holdout_mark(read, c->o.holdout, c->o.split_seed);
    c->used = mem_alloc((n + 1) * sizeof *c->used);
    for (uint64_t i = 0; i < n; i++) {
        const struct stored_sample *x = &c->store.samples[i];
        uint32_t tokens = x->tokens;
        if (held && (x->number < read && held[x->number]) != c->o.held) continue;
        const bool cut = tokens > c->o.sequence && c->o.too_long == TOO_LONG_CUT;
        if (tokens > c->longest) c->longest = tokens;
        if (cut) tokens = cut_tokens(c, x);
        if (!tokens || tokens > c->o.sequence) {
            c->too_long++;
            continue;
        }
        const uint32_t labels = count_labels(c, x, tokens);
        if (!labels) {
            c->unlabelled++;
            continue;
        }
        c->used[c->n_used++] = (struct used_sample){(uint32_t)i, tokens};
        c->cut += cut;
        c->tokens += tokens;
        c->labels += labels;
    }
    mem_free(held);
}

/* Names the first id beyond the vocabulary. */
static int refuse_id(const struct conversations *c, struct error *e)
{
    for (uint64_t i = 0; i < c->store.header->samples; i++) {
        const struct stored_sample *x = &c->store.samples[i];
        for (uint32_t k = 0; k < x->tokens; k++)
            if (c->store.ids[x->first + k] >= c->o.vocabulary)
                return error_set(e, PL_USAGE, "%s:%llu: its token %u has the id %d, but the model's vocabulary has %lld ids: the tokenizer is another model's, or tokens were added to it and not to the model",
                                 c->store.names + x->file, (unsigned long long)x->line, k, c->store.ids[x->first + k], (long long)c->o.vocabulary);
    }
    return PL_OK;
}

static int check_samples(const struct conversations *c, struct error *e)
{
    const struct sample_report *r = &c->store.header->report;
    const uint64_t bad = report_bad(r);
    if (!r->read) return error_set(e, PL_USAGE, "the files have no samples");
    if ((double)bad > c->o.max_bad * (double)r->read || bad == r->read) {
        struct text t = {0};
        report_print(r, &t);
        if (bad < r->read) error_set(e, PL_USAGE, "%s. data.max_bad is %g; `plimsoll data inspect` shows samples", t.at, c->o.max_bad);
        else error_set(e, PL_USAGE, "%s", t.at);
        text_free(&t);
        return e->code;
    }
    if (c->o.vocabulary && c->store.header->largest >= c->o.vocabulary) return refuse_id(c, e);
    if (!c->n_used && !c->too_long && !c->unlabelled && c->o.holdout > 0)
        return error_set(e, PL_USAGE, "data.holdout is %g of %llu samples, which leaves none %s", c->o.holdout, (unsigned long long)r->read, c->o.held ? "to evaluate on" : "to train on");
    if (!c->n_used && c->too_long)
        return error_set(e, PL_USAGE, "all %llu samples are longer than data.sequence, %lld tokens; the longest has %llu: set data.sequence, or data.too_long: cut",
                         (unsigned long long)c->too_long, (long long)c->o.sequence, (unsigned long long)c->longest);
    return c->n_used ? PL_OK : error_set(e, PL_USAGE, "no sample has a token to train on");
}

int conversations_open(struct conversations *c, const char *path, const struct conversations_options *o, struct error *e)
{
    memset(c, 0, sizeof *c);
    c->o = *o;
    int rc = token_store_open(&c->store, path, e);
    if (rc) return rc;
    c->path = mem_string(path);
    use_samples(c);
    rc = check_samples(c, e);
    if (rc) {
        conversations_close(c);
        return rc;
    }
    uint32_t *lengths = mem_alloc((c->n_used + 1) * sizeof *lengths);
    for (uint64_t i = 0; i < c->n_used; i++) lengths[i] = c->used[i].tokens;
    rows_pack(&c->rows, lengths, (uint32_t)c->n_used, (uint32_t)o->sequence, o->packing);
    mem_free(lengths);
    return PL_OK;
}

void conversations_close(struct conversations *c)
{
    rows_free(&c->rows);
    mem_free(c->used);
    mem_free(c->path);
    token_store_close(&c->store);
    c->used = NULL, c->path = NULL;
}

/* --- a row ----------------------------------------------------------------------------------------- */

static void pad_from(const struct conversations *c, uint32_t at, struct token_row *out)
{
    for (uint32_t t = at; t < c->o.sequence; t++) {
        out->ids[t] = c->o.padding;
        out->labels[t] = IGNORED;
        out->positions[t] = 0;
        out->ranges[2 * t] = out->ranges[2 * t + 1] = 0; /* sees nothing */
    }
}

static void put_sample(const struct conversations *c, const struct used_sample *u, uint32_t at, struct token_row *out)
{
    const struct stored_sample *x = &c->store.samples[u->sample];
    const int32_t *ids = c->store.ids + x->first;
    struct labels l;
    for (uint32_t t = 0; t < u->tokens; t++) {
        out->ids[at + t] = ids[t];
        out->labels[at + t] = IGNORED;
        out->positions[at + t] = (int32_t)t;
        out->ranges[2 * (at + t)] = (int32_t)at;
        out->ranges[2 * (at + t) + 1] = (int32_t)(at + t + 1);
    }
    find_labels(c, x, u->tokens, &l);
    for (uint32_t k = 0; k < l.n; k++) {
        const struct byte_range r = clip(l.at[k], u->tokens);
        for (uint32_t t = r.begin; t < r.end; t++) out->labels[at + t] = ids[t];
        out->labelled += r.end - r.begin;
    }
}

int conversations_read(const struct conversations *c, uint64_t row, struct token_row *out, struct error *e)
{
    CHECK(row < c->rows.n, "row %llu of %u", (unsigned long long)row, c->rows.n);
    out->tokens = out->labelled = 0;
    for (uint32_t k = c->rows.first[row]; k < c->rows.first[row + 1]; k++) {
        const struct used_sample *u = &c->used[c->rows.samples[k]];
        put_sample(c, u, out->tokens, out);
        out->tokens += u->tokens;
    }
    pad_from(c, out->tokens, out);
    return token_store_check(&c->store, c->path, e);
}

void conversations_pad(const struct conversations *c, struct token_row *out)
{
    out->tokens = out->labelled = 0;
    pad_from(c, 0, out);
}

uint64_t conversations_fingerprint(const struct conversations *c)
{
    const struct token_store_header *h = c->store.header;
    const uint64_t facts[] = {h->tokens_sum, h->index_sum, h->tokens, (uint64_t)c->o.sequence, c->o.train_on, c->o.too_long, c->o.packing};
    uint64_t hash = hash_bytes(facts, sizeof facts, 0);
    if (c->o.holdout > 0) hash = hash_bytes(&c->o.holdout, sizeof c->o.holdout, hash ^ c->o.split_seed);
    return hash ? hash : 1;
}

void conversations_print_left(const struct conversations *c, struct text *out)
{
    report_print(&c->store.header->report, out);
    if (c->too_long)
        text_printf(out, "%s%llu %s longer than data.sequence (%lld tokens; the longest has %llu) and left out%s", out->n ? ". " : "", (unsigned long long)c->too_long,
                    c->too_long == 1 ? "sample is" : "samples are", (long long)c->o.sequence, (unsigned long long)c->longest,
                    c->o.too_long == TOO_LONG_CUT ? ": no answer ends within it" : "; data.too_long: cut keeps the turns that fit");
    if (c->cut)
        text_printf(out, "%s%llu %s longer than data.sequence and cut after the last answer that fits", out->n ? ". " : "", (unsigned long long)c->cut,
                    c->cut == 1 ? "sample is" : "samples are");
    if (c->unlabelled)
        text_printf(out, "%s%llu %s no token to train on", out->n ? ". " : "", (unsigned long long)c->unlabelled, c->unlabelled == 1 ? "sample has" : "samples have");
}
