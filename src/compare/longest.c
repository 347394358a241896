/*
 * longest.c: the longest row that fits (plan_request.h).
 *
 *     search      what needs the least memory at some length
 *     follow      how long a row these settings take: a few graphs
 *     confirm     the search at that length, and at 64 tokens more, which it refuses
 *
 * A step with given settings needs more bytes for a longer row, nearly in proportion: two lengths
 * tell where a third one is. What needs the least depends on the length, so the first two steps
 * are repeated until nothing else fits.
 */
#include "base/progress.h"
#include "compare/plan_request.h"

enum { FIRST = 1 << 15, SECANTS = 8, SETS = TECHNIQUES + 16 };

/* The search for a row's length. */
struct lengths {
    const struct plan_source *source;
    const char *sets[SETS];      /* of the GPU, then the length, then the settings that are followed */
    size_t n, own;               /* all of them; those of the GPU */
    char length[48], followed[TECHNIQUES][2 * SETTING_ROOM];
    struct plan_change change;
    int64_t good, bad;           /* the longest row that fits, the shortest one that does not */
    uint64_t refused;            /* the bytes that it needs */
};

/* What one length needs. */
struct length_need {
    int64_t tokens;
    bool fits;
    uint64_t bytes[SPACE_COUNT], budget[SPACE_COUNT];
    struct settings settings;    /* what needs the least device memory */
};

/* Plans rows of some length with the sets of `x`; fills *row, unless NULL, if they fit. */
static int try_length(struct lengths *x, int64_t tokens, struct length_need *out, struct plan_row *row,
                      struct error *e)
{
    struct plan_trial p;
    struct error ignored;
    uint32_t least;
    snprintf(x->length, sizeof x->length, "data.sequence=%lld", (long long)tokens);
    x->change.sets = x->sets, x->change.n = x->n;
    TRY(plan_trial_open(&p, x->source, &x->change, e));
    *out = (struct length_need){.tokens = tokens, .fits = !p.rc, .budget = {p.run.budget, p.run.host_budget}};
    if (out->fits && row) plan_row_fill(row, &p), row->tokens = tokens;
    const int rc = plan_smallest(&p.run.space, p.run.host_budget, &least, &ignored);
    if (!rc) {
        const struct plan_choice *c = &p.run.space.choices.at[least];
        for (int s = 0; s < SPACE_COUNT; s++) out->bytes[s] = plan_choice_need(c, s);
        out->settings = c->settings;
    }
    plan_trial_close(&p);
    return rc ? error_set(e, rc, "%s", ignored.text) : PL_OK;
}

/* Lets the trials have some settings, where the run leaves them to the planner; NULL: the planner
 * chooses. */
static void follow(struct lengths *x, const struct settings *s)
{
    struct config c;
    struct error e;
    char value[SETTING_ROOM];
    x->n = x->own + 1;
    x->sets[x->own] = x->length;
    if (!s || plan_source_read(x->source, &c, &e)) return;
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        const struct technique *t = &techniques[id];
        if (t->changes_results || t->class == CLASS_SHARES || config_technique(&c, id)->chosen) continue;
        if (technique_is_off(id, s) && (t->excluded || t->models)) continue; /* it may not apply to the model */
        snprintf(x->followed[id], sizeof *x->followed, "%s.%s=%s", t->section, t->name, technique_print(id, s, value));
        x->sets[x->n++] = x->followed[id];
    }
    config_free(&c);
}

/* Returns the length at which the line through two needs meets a budget; ROW_MOST: it does not. */
static double meet(const struct length_need *a, const struct length_need *b)
{
    double least = ROW_MOST;
    for (int s = 0; s < SPACE_COUNT; s++) {
        const double slope = ((double)b->bytes[s] - (double)a->bytes[s]) / (double)(b->tokens - a->tokens),
                     at = (double)b->tokens + ((double)b->budget[s] - (double)b->bytes[s]) / slope;
        if (b->budget[s] && slope > 0 && at < least) least = at;
    }
    return least;
}

/* Finds the longest row that fits with the settings of `at`, between x->good and x->bad; x->good if
 * none does. With `row` the first one that two lengths tell is enough, and fills *row. */
static int follow_settings(struct lengths *x, const struct length_need *at, int64_t *out, struct plan_row *row,
                           struct error *e)
{
    struct length_need a = *at, b = *at;
    int64_t good = x->good, bad = x->bad;
    int rc = PL_OK;
    follow(x, &at->settings);
    for (int i = 0; bad - good > ROW_UNIT && !rc && !(row && i > 1 && b.fits); i++) {
        const double middle = (double)(good + bad) / 2, twice = (double)b.tokens * (b.fits ? 2 : 0.5),
                     to = !i ? twice : i < SECANTS ? meet(&a, &b) : middle;
        const int64_t next = (int64_t)(to < 0 ? 0 : to < ROW_MOST ? to : ROW_MOST) / ROW_UNIT * ROW_UNIT;
        a = b;
        rc = try_length(x, max_i64(good + ROW_UNIT, min_i64(next, bad - ROW_UNIT)), &b, row, e);
        *(b.fits ? &good : &bad) = b.tokens;
    }
    follow(x, NULL);
    *out = good;
    return rc;
}

/* Reports whether two steps have the same techniques. */
static bool same_settings(const struct settings *a, const struct settings *b)
{
    bool same = true;
    for (enum technique_id id = 0; id < TECHNIQUES; id++) same &= technique_same(id, a, b);
    return same;
}

/* Searches from row->tokens on, until 64 tokens more do not fit. */
static int find_longest(struct lengths *x, struct plan_row *row, struct error *e)
{
    struct length_need at;
    struct settings followed = {0};
    int64_t next = row->tokens;
    for (bool first = true;; first = false) {
        TRY(try_length(x, next, &at, row, e));
        *(at.fits ? &x->good : &x->bad) = next;
        if (!at.fits) x->refused = at.bytes[SPACE_DEVICE];
        if (x->bad - x->good <= ROW_UNIT) return PL_OK;
        if (first || !same_settings(&followed, &at.settings)) {
            followed = at.settings;
            TRY(follow_settings(x, &at, &next, NULL, e));
        }
        if (next <= x->good || next >= x->bad) next = x->good + ROW_UNIT;
    }
}

/* Searches again from the next power of two on, where more parts of a row are a choice
 * (CLASS_ROWS): less memory may do. */
static int look_beyond(struct lengths *x, int64_t most, struct plan_row *row, struct error *e)
{
    const struct lengths found = *x;
    struct plan_row beyond = *row;
    beyond.tokens = ROW_UNIT;
    while (beyond.tokens <= x->bad) beyond.tokens *= 2;
    if (beyond.tokens > most) return PL_OK;
    x->bad = most + ROW_UNIT;
    struct length_need at;
    TRY(try_length(x, beyond.tokens, &at, NULL, e));
    if (at.fits) TRY(find_longest(x, &beyond, e));
    if (at.fits) *row = beyond;
    else x->bad = found.bad, x->refused = found.refused;
    return PL_OK;
}

/* Finds a row that fits with what needs the least memory at some length, by halves until one fits.
 * What is a choice there is one for longer rows too. */
static int find_some(struct lengths *x, struct plan_row *row, struct error *e)
{
    struct length_need at = {0};
    for (int64_t next = row->tokens; !at.fits && next >= ROW_UNIT; next = next / 2 / ROW_UNIT * ROW_UNIT) {
        TRY(try_length(x, next, &at, row, e));
        *(at.fits ? &x->good : &x->bad) = next;
        x->refused = at.bytes[SPACE_DEVICE];
    }
    return at.fits ? follow_settings(x, &at, &x->good, row, e) : PL_OK;
}

/* Finds the most tokens that a row may have, and those of the run. */
static int find_limits(const struct plan_source *s, int64_t *most, int64_t *first, struct error *e)
{
    struct config c;
    struct model m;
    TRY(plan_source_read(s, &c, e));
    int rc = config_check(&c, CONFIG_NEEDS_MODEL, e);
    if (!rc && !config_tokens(&c))
        rc = error_set(e, PL_USAGE, "rows of tokens are those of language models; with this data.format a sample is "
                       "one image");
    if (!rc && !(rc = config_open_model(&c, &m, e))) {
        *most = (m.positions ? min_i64(m.positions, ROW_MOST) : ROW_MOST) / ROW_UNIT * ROW_UNIT;
        model_close(&m);
    }
    *first = max_i64(FIRST, c.data_sequence / ROW_UNIT * ROW_UNIT);
    config_free(&c);
    return rc;
}

int plan_longest_row(const struct plan_source *s, const struct plan_change *change, bool quick, struct plan_row *row,
                     struct error *e)
{
    struct lengths *x = mem_alloc(sizeof *x);
    int64_t most = 0, first = 0;
    int rc = find_limits(s, &most, &first, e);
    if (!rc) {
        *x = (struct lengths){.source = s, .own = change->n, .change = *change, .bad = most + ROW_UNIT};
        x->change.plain = x->change.fitting = true;
        CHECK(change->n < SETS - TECHNIQUES, "%zu", change->n);
        memcpy(x->sets, change->sets, change->n * sizeof *change->sets);
        row->tokens = min_i64(first, most);
        follow(x, NULL);
        rc = quick ? find_some(x, row, e) : find_longest(x, row, e);
        if (!rc && !quick) rc = look_beyond(x, most, row, e);
        row->fits = x->good;
        row->tokens = x->good;
        row->refused = x->bad > most || quick ? 0 : x->refused;
        if (!row->fits) row->arena = x->refused;
    }
    mem_free(x);
    return rc;
}

/* --- on several GPUs -------------------------------------------------------------------------- */

int plan_longest(const struct plan_source *s, const char *gpus, struct plan_rows *rows, struct error *e)
{
    char list[512], profile[64], set[96], *at = list;
    const char *sets[] = {"device.kind=cuda", set};
    struct progress progress;
    int rc = PL_OK;
    snprintf(list, sizeof list, "%s", gpus ? gpus : "");
    progress_begin(&progress, "planning", "rows", 0);
    for (char *gpu; !rc && (gpu = strsep(&at, ","));) {
        struct plan_row row = {0};
        struct plan_change x = {.sets = sets, .n = gpus ? COUNT(sets) : 0, .budget = !gpus};
        if (gpus && plan_row_gpu(gpu, &row, profile, e)) rc = error_prepend(e, "--devices");
        snprintf(set, sizeof set, "device.profile=%s", profile);
        x.gpu = row.gpu;
        if (!rc) rc = plan_longest_row(s, &x, false, &row, e);
        if (!rc && !gpus) size_print(row.budget, row.label);
        if (!rc) vec_push(&rows->list, row);
        progress_add(&progress, 1);
    }
    progress_clear();
    return rc;
}
