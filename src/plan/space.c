/*
 * space.c: see space.h.
 *
 *     family   all surveys of one micro-batch:
 *
 *              pieces of the head    1    2    4  ..
 *              kept                  x    x    x          recompute none
 *              selective             x    x    x          recompute selective
 *              whole, halves         x                    recompute all, all+halves; for each
 *                                                         number of pieces where these hold blocks
 *
 * A setting takes the rebuilt blocks from `whole` or `halves` and all else from one of the
 * two rows above. Where recompute is set by hand there is one row, surveyed as it is.
 */
#include "plan/space.h"

#include <stdlib.h>
#include <string.h>

#include "plan/survey.h"

enum { STEPS = 8, UPDATES = 16 };

/* Pieces of the head that are tried. */
static const int pieces[] = {1, 2, 8, 32};
enum { CHUNKINGS = COUNT(pieces) };

struct family {
    struct settings base;
    struct survey row[2][CHUNKINGS]; /* kept or as set by hand; selective */
    struct survey again[2][CHUNKINGS]; /* whole, halves */
};

/* One form of the update: state and masters, and where they are. */
struct update {
    struct settings s;
    struct survey survey;
};

/* How many blocks of each chain are rebuilt, and which those are. */
struct extent {
    int n;
    bool all;
    bool *rebuilt;
};

struct builder {
    struct plan_space *x;
    const struct settings *base;
    VEC(struct family) families;
    int chunk[CHUNKINGS], chunks;
    bool inside;                     /* there are blocks in the pieces */
    struct update update[UPDATES];
    int updates;
    VEC(struct extent) extents;
    uint32_t blocks;
};

/* --- what is surveyed -------------------------------------------------------------------- */

struct job {
    struct settings s;
    struct survey *to;
};
struct jobs {
    VEC(struct job) list;
};

static int run_jobs(const struct plan_space *x, const struct jobs *jobs, struct error *e)
{
    int failed = PL_OK;
    uint32_t first = UINT32_MAX; /* the same message whoever comes first */
#pragma omp parallel for schedule(dynamic, 1) if (!x->source->alone)
    for (uint32_t i = 0; i < jobs->list.n; i++) {
        struct error mine;
        int rc = survey_make(jobs->list.at[i].to, x->source, &jobs->list.at[i].s, x->profile, NULL, &mine);
        if (rc)
#pragma omp critical
            if (i < first) {
                first = i;
                failed = rc;
                *e = mine;
            }
    }
    return failed;
}

static void add_job(struct jobs *jobs, struct settings s, int chunks, struct rebuild recompute, struct survey *to)
{
    s.head_chunks = chunks;
    s.recompute = recompute;
    vec_push(&jobs->list, ((struct job){s, to}));
}

static void add_family_jobs(struct builder *b, struct family *f, struct jobs *jobs)
{
    bool free = b->x->f.recompute;
    for (int c = 0; c < b->chunks; c++) {
        add_job(jobs, f->base, b->chunk[c], free ? (struct rebuild){.kind = REBUILD_NONE} : b->base->recompute, &f->row[0][c]);
        if (free) add_job(jobs, f->base, b->chunk[c], (struct rebuild){.kind = REBUILD_SELECTIVE}, &f->row[1][c]);
    }
    for (int halves = 0; halves < 2 && free && b->blocks; halves++)
        for (int c = 0; c < (b->inside ? b->chunks : 1); c++)
            add_job(jobs, f->base, b->chunk[c], (struct rebuild){.kind = REBUILD_ALL, .halves = halves}, &f->again[halves][c]);
}

/* --- the dimensions ------------------------------------------------------------------------ */

/* Up to 16 every number of iterations, beyond that two to each doubling; and the smallest
 * micro-batch that covers the batch in so many. */
static void list_families(struct builder *b)
{
    const struct freedom *f = &b->x->f;
    int E = f->effective_batch;
    for (int n = 1, last = 0; n <= E;) {
        struct settings s = *b->base;
        if (f->micro_batch) s.micro_batch = (E + n - 1) / n;
        s.accumulation = (E + s.micro_batch - 1) / s.micro_batch;
        bool ragged = s.micro_batch * s.accumulation != E, apart = f->multiple && s.micro_batch % f->multiple;
        if (s.micro_batch != last && !(ragged && f->whole) && !apart) vec_push(&b->families, ((struct family){.base = s}));
        last = s.micro_batch;
        if (!f->micro_batch || n == E) break;
        n = n < 16 ? n + 1 : n & (n - 1) ? n / 3 * 4 : n / 2 * 3;
        if (n > E) n = E;
    }
}

static void list_chunks(struct builder *b, const struct graph *g)
{
    bool rows = false;
    for (id s = 1; s < g->scopes.n; s++) {
        rows |= g->scopes.at[s].flags & SCOPE_ROWS;
        b->inside |= g->scopes.at[s].flags & SCOPE_BLOCK && graph_scope_is(g, s, SCOPE_ROWS);
    }
    if (!b->x->f.head_chunks) b->chunk[b->chunks++] = b->base->head_chunks;
    else
        for (; b->chunks < (rows ? (int)CHUNKINGS : 1); b->chunks++) b->chunk[b->chunks] = pieces[b->chunks];
}

static void list_extents(struct builder *b, const struct graph *g)
{
    struct settings s = *b->base;
    s.recompute = (struct rebuild){.kind = REBUILD_ALL};
    bool *all = survey_rebuilt(g, &s, b->blocks);
    int step = (int)(b->blocks + STEPS - 1) / STEPS;
    vec_push(&b->extents, ((struct extent){.rebuilt = mem_alloc(b->blocks + 1)}));
    for (int n = step; n && n < (int)b->blocks; n += step) {
        s.recompute = (struct rebuild){.kind = REBUILD_FIRST, .n = n};
        bool *some = survey_rebuilt(g, &s, b->blocks);
        if (!memcmp(some, all, b->blocks + 1)) {
            mem_free(some);
            break;
        }
        vec_push(&b->extents, ((struct extent){.n = n, .rebuilt = some}));
    }
    if (b->blocks) vec_push(&b->extents, ((struct extent){.all = true, .rebuilt = all}));
    else mem_free(all);
}

/* The first is the base's own: what families are surveyed with. */
static void list_updates(struct builder *b)
{
    static const unsigned ladder[] = {0, AWAY_STATE};
    const struct freedom *f = &b->x->f;
    for (int state = 0; state < STATE_FORMS; state++)
        for (size_t i = 0; i < COUNT(ladder); i++) {
            struct settings s = *b->base;
            if (state && !(f->states & 1u << state)) continue;
            if (state) s.state = state;
            if (f->offload) s.offload = ladder[i];
            if (!f->offload && i) continue;
            b->update[b->updates++].s = s;
        }
}

/* --- composing ------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The step's transients and seconds with the given blocks rebuilt, as `again` has them. */
static uint64_t compose(const struct survey *rest, const struct survey *again, const bool *rebuilt, double *seconds)
{
    uint64_t most = 0;
    *seconds = 0;
    for (uint32_t i = 0; i <= rest->blocks; i++) *seconds += (rebuilt[i] ? again : rest)->block[i].seconds;
    for (int turn = 0; turn < 2; turn++) {
        const struct survey *v = turn ? again : rest;
        for (uint32_t i = 0; i < v->moments; i++) {
            const struct moment *m = &v->moment[i];
            uint64_t bytes = m->own;
            if (rebuilt[m->owner] != turn) continue;
            for (const uint32_t *b = m->open; *b; b++) bytes += (rebuilt[*b] ? again : rest)->block[*b].saved;
            most = larger(most, bytes);
        }
    }
    return most;
}

static void add_choice(struct builder *b, const struct family *f, int chunk, int row, const struct extent *extent, int halves)
{
    const struct survey *rest = &f->row[row][chunk], *plain = &b->update[0].survey;
    double seconds;
    uint64_t step = compose(rest, &f->again[halves][b->inside ? chunk : 0], extent->rebuilt, &seconds);
    struct plan_choice c = {.settings = f->base};
    c.settings.head_chunks = b->chunk[chunk];
    c.settings.recompute = extent->all ? (struct rebuild){.kind = REBUILD_ALL} : (struct rebuild){.kind = REBUILD_FIRST, .n = extent->n};
    c.settings.recompute.halves = halves;
    c.settings.recompute.selective = row;
    if (!extent->all && !extent->n) c.settings.recompute = (struct rebuild){.kind = row ? REBUILD_SELECTIVE : REBUILD_NONE};
    if (!b->x->f.recompute) c.settings.recompute = b->base->recompute;
    for (int u = 0; u < b->updates; u++) {
        const struct survey *update = &b->update[u].survey;
        c.settings.state = b->update[u].s.state;
        c.settings.offload = b->update[u].s.offload;
        c.seconds = seconds + update->update_seconds;
        c.bound[SPACE_DEVICE] = rest->persistent[SPACE_DEVICE] - plain->persistent[SPACE_DEVICE] + update->persistent[SPACE_DEVICE] +
                                larger(larger(step, update->update), rest->eval);
        c.bound[SPACE_HOST] = rest->persistent[SPACE_HOST] - plain->persistent[SPACE_HOST] + update->persistent[SPACE_HOST];
        vec_push(&b->x->choices, c);
    }
}

static int by_seconds(const void *a, const void *b)
{
    const struct plan_choice *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->bound[SPACE_DEVICE] != y->bound[SPACE_DEVICE]) return x->bound[SPACE_DEVICE] < y->bound[SPACE_DEVICE] ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void add_choices(struct builder *b)
{
    int rows = b->x->f.recompute ? 2 : 1;
    for (uint32_t i = 0; i < b->families.n; i++)
        for (int c = 0; c < b->chunks; c++)
            for (int row = 0; row < rows; row++)
                for (uint32_t k = 0; k < b->extents.n && (k == 0 || b->x->f.recompute); k++)
                    for (int halves = 0; halves < (b->extents.at[k].all ? 2 : 1); halves++)
                        add_choice(b, &b->families.at[i], c, row, &b->extents.at[k], halves);
    for (uint32_t i = 0; i < b->x->choices.n; i++) b->x->choices.at[i].number = i;
    qsort(b->x->choices.at, b->x->choices.n, sizeof *b->x->choices.at, by_seconds);
}

/* --- the whole ---------------------------------------------------------------------------------- */

static void free_builder(struct builder *b)
{
    for (uint32_t i = 0; i < b->families.n; i++) {
        for (int row = 0; row < 2; row++)
            for (int c = 0; c < (int)CHUNKINGS; c++) {
                survey_free(&b->families.at[i].row[row][c]);
                survey_free(&b->families.at[i].again[row][c]);
            }
    }
    for (int u = 0; u < b->updates; u++) survey_free(&b->update[u].survey);
    for (uint32_t i = 0; i < b->extents.n; i++) mem_free(b->extents.at[i].rebuilt);
    vec_free(&b->families);
    vec_free(&b->extents);
}

/* A first graph shows what there is to choose from: blocks, and rows of a head. */
static int look(struct builder *b, struct error *e)
{
    struct graph g;
    struct survey v;
    struct settings s = b->update[0].s;
    s.micro_batch = b->families.at[0].base.micro_batch;
    s.accumulation = b->families.at[0].base.accumulation;
    s.head_chunks = b->base->head_chunks;
    if (b->x->f.recompute) s.recompute = (struct rebuild){.kind = REBUILD_NONE};
    int rc = survey_make(&v, b->x->source, &s, b->x->profile, &g, e);
    if (rc) return rc;
    b->blocks = v.blocks;
    list_chunks(b, &g);
    list_extents(b, &g);
    graph_free(&g);
    b->update[0].survey = v;
    return PL_OK;
}

int space_fill(struct plan_space *x, const struct settings *base, struct error *e)
{
    struct builder b = {.x = x, .base = base};
    struct jobs jobs = {0};
    list_families(&b);
    list_updates(&b);
    CHECK(b.families.n, "no micro-batch is possible");
    int rc = look(&b, e);
    for (uint32_t i = 0; i < b.families.n && !rc; i++) {
        b.families.at[i].base.offload = b.update[0].s.offload;
        add_family_jobs(&b, &b.families.at[i], &jobs);
    }
    for (int u = 1; u < b.updates && !rc; u++) {
        struct settings s = b.families.at[0].base;
        s.state = b.update[u].s.state;
        s.offload = b.update[u].s.offload;
        add_job(&jobs, s, base->head_chunks, x->f.recompute ? (struct rebuild){.kind = REBUILD_NONE} : base->recompute, &b.update[u].survey);
    }
    if (!rc) rc = run_jobs(x, &jobs, e);
    x->surveyed = jobs.list.n + 1;
    if (!rc) add_choices(&b);
    vec_free(&jobs.list);
    free_builder(&b);
    return rc;
}
