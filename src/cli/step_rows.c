/*
 * step_rows.c: attention_mask and position_ids of `plimsoll step`, with the meaning that they have
 * in transformers, as the inputs of a packed batch (models/model.h): position_ids and ranges.
 *
 *     attention_mask   0 is padding, at the left or the right end of a row. A token sees the tokens up
 *                      to itself that are no padding.
 *     position_ids     not given: 0, 1, 2, ... also where the row is padded. Without an attention_mask
 *                      another document begins wherever they do not go up by 1, and a token sees
 *                      its
 *                      own document.
 *
 * A batch without padding and without position_ids needs neither input: its graph is the plain one.
 */
#include <string.h>

#include "cli/step.h"

/* What a row of the file says: T tokens, and the inputs that follow. */
struct row {
    int64_t *mask, *positions; /* NULL: not given */
    int32_t *at, (*range)[2];
    char *raw;
};

static int64_t element(const struct st_entry *t, const char *raw, int64_t i)
{
    const uint64_t size = t->bytes / (uint64_t)t->elements;
    return size == 8   ? ((const int64_t *)(const void *)raw)[i]
           : size == 4 ? ((const int32_t *)(const void *)raw)[i]
                       : ((const uint8_t *)raw)[i];
}

static int read_row(const struct step *s, const struct st_entry *t, int64_t r, char *raw, int64_t *out, struct error *e)
{
    const uint64_t bytes = t->bytes / (uint64_t)s->B;
    int rc = st_read(&s->in, t, (uint64_t)r * bytes, bytes, raw, e);
    for (int64_t i = 0; i < s->T && !rc; i++) out[i] = element(t, raw, i);
    return rc;
}

/* --- checking --------------------------------------------------------------------------------- */

/* Finds the tokens begin .. end that are no padding. */
static int check_mask(const struct step *s, int64_t r, const int64_t *mask, int64_t *begin, int64_t *end,
                      struct error *e)
{
    *begin = *end = 0;
    for (int64_t i = 0; i < s->T; i++) {
        if (mask[i] != 0 && mask[i] != 1)
            return error_set(e, PL_USAGE, "%s: attention_mask[%lld,%lld] is %lld, expected 1, or 0 for padding",
                             s->in.path, (long long)r, (long long)i, (long long)mask[i]);
        if (!mask[i]) continue;
        if (*end && *end != i)
            return error_set(e, PL_USAGE,
                             "%s: attention_mask[%lld,%lld] is 0 between ones; padding must be at the left or the "
                             "right end of a row",
                             s->in.path, (long long)r, (long long)(i - 1));
        if (!*end) *begin = i;
        *end = i + 1;
    }
    return PL_OK;
}

static int check_positions(const struct step *s, const struct model *m, int64_t r, const int64_t *positions,
                           struct error *e)
{
    const int64_t most = m->positions ? m->positions - 1 : INT32_MAX;
    for (int64_t i = 0; i < s->T; i++)
        if (positions[i] < 0 || positions[i] > most)
            return error_set(e, PL_USAGE, "%s: position_ids[%lld,%lld] is %lld, expected 0 to %lld%s", s->in.path,
                             (long long)r, (long long)i, (long long)positions[i], (long long)most,
                             m->positions
                                 ? " (max_position_embeddings), because rope type dynamic has other frequencies beyond"
                                 : "");
    return PL_OK;
}

/* --- the inputs ------------------------------------------------------------------------------- */

/* With a mask: from its first token that is no padding to the token itself, at most to the last one
 * that is no padding. */
static void padded_ranges(const struct step *s, struct row *x, int64_t begin, int64_t end)
{
    for (int64_t i = 0; i < s->T; i++) {
        const int64_t last = min_i64(i + 1, end);
        x->range[i][0] = last > begin ? (int32_t)begin : 0;
        x->range[i][1] = last > begin ? (int32_t)last : 0;
    }
}

static void document_ranges(const struct step *s, struct row *x)
{
    for (int64_t i = 0, begin = 0; i < s->T; i++) {
        if (i && x->positions[i] != x->positions[i - 1] + 1) begin = i;
        x->range[i][0] = (int32_t)begin;
        x->range[i][1] = (int32_t)i + 1;
    }
}

/* Reads and checks row r; `padded`: whether any of it is padding. */
static int convert_row(const struct step *s, const struct model *m, int64_t r, struct row *x, bool *padded,
                       struct error *e)
{
    int64_t begin = 0, end = s->T;
    int rc = PL_OK;
    if (x->mask) rc = read_row(s, step_given(s, m, "attention_mask"), r, x->raw, x->mask, e);
    if (x->mask && !rc) rc = check_mask(s, r, x->mask, &begin, &end, e);
    if (x->positions && !rc) rc = read_row(s, step_given(s, m, "position_ids"), r, x->raw, x->positions, e);
    if (x->positions && !rc) rc = check_positions(s, m, r, x->positions, e);
    if (rc) return rc;
    *padded |= begin > 0 || end < s->T;
    for (int64_t i = 0; i < s->T; i++) x->at[i] = (int32_t)(x->positions ? x->positions[i] : i);
    if (x->mask || !x->positions) padded_ranges(s, x, begin, end);
    else document_ranges(s, x);
    return PL_OK;
}

static struct row row_new(const struct step *s, const struct model *m)
{
    const size_t T = (size_t)s->T;
    struct row x = {.at = mem_alloc(T * sizeof *x.at),
                    .range = mem_alloc(T * sizeof *x.range),
                    .raw = mem_alloc(T * 8)};
    if (step_given(s, m, "attention_mask")) x.mask = mem_alloc(T * sizeof *x.mask);
    if (step_given(s, m, "position_ids")) x.positions = mem_alloc(T * sizeof *x.positions);
    return x;
}

static void row_free(struct row *x)
{
    mem_free(x->mask), mem_free(x->positions), mem_free(x->at), mem_free(x->range), mem_free(x->raw);
}

int step_check_rows(struct step *s, const struct model *m, struct error *e)
{
    struct row x = row_new(s, m);
    int rc = PL_OK;
    s->packed = x.positions;
    for (int64_t r = 0; r < s->B && !rc && (x.mask || x.positions); r++) rc = convert_row(s, m, r, &x, &s->packed, e);
    row_free(&x);
    return rc;
}

int step_put_rows(struct step *s, struct error *e)
{
    if (!s->packed) return PL_OK;
    struct row x = row_new(s, &s->run.planned.model);
    const uint64_t T = (uint64_t)s->T;
    int rc = PL_OK;
    for (int64_t r = 0; r < s->B && !rc; r++) {
        rc = convert_row(s, &s->run.planned.model, r, &x, &s->packed, e);
        if (!rc) rc = run_write_input(&s->run, "position_ids", r, x.at, T * sizeof *x.at, e);
        if (!rc) rc = run_write_input(&s->run, "ranges", r, x.range, T * sizeof *x.range, e);
    }
    row_free(&x);
    return rc;
}
