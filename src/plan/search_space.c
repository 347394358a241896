/*
 * search_space.c: see survey.h.
 *
 *     split   all surveys of one micro-batch:
 *
 *              head chunks           1    2    8  ..
 *              kept                  x    x    x      recompute none, or as configured
 *              selective             x    x    x      recompute selective
 *              whole                 x    x    x      recompute all
 *              halves                x    x    x      recompute all+halves
 *              whole, selective      x    x    x      recompute all+selective
 *
 * A choice takes its recomputed blocks, and what is in no block, from one of the last three rows,
 * and the other blocks from one of the first two (compose.h).
 *
 * Offloaded weights and activations, and a fused step, change the step. For each of these streams a
 * split has one more column, the five rows with all weights or all activations offloaded, or a
 * fused step, or several of these; a choice takes the blocks whose weights are fetched from there.
 * Few searches need a stream of a split, so it is surveyed when one does.
 *
 * A choice is rough while its figures are only lower bounds, until it is surveyed itself: loose
 * before the surveys of its stream are made, composed after that.
 *
 * Ranks that divide gradients or weights add collectives to the step. Such choices are rough too.
 * They compute no less than with only the optimizer state divided, keep no fewer bytes but for
 * whole gradients, and send what a few surveys of their own say.
 */
#include "plan/compose.h"

enum { STEPS = 8, LADDER_MOST = 8, CHUNKS_MOST = 32, SUBSETS = 4, UPDATES = STATE_DTYPES * SUBSETS };
/* What changes the step program as a whole, as a number: a stream. */
enum { STREAM_WEIGHTS = 1, STREAM_ACTIVATIONS = 2, STREAM_FUSED = 4, STREAM_UPDATE = 8, STREAMS = 32 };
/* Part of the update's work that a bound counts where offloaded weights change it: blocks of
 * different size are not told apart. */
#define UPDATE_PART 0.95

/* The values of memory.recompute's ladder in techniques.def. */
enum { KEPT, SELECTIVE, WHOLE, HALVES, WHOLE_SELECTIVE, ROWS };

struct split {
    struct settings base;
    struct survey row[ROWS][CHUNKS_MOST]; /* by recompute and chunks of the heads */
    VEC(struct column *) columns;         /* the same for streams, as far as they were surveyed */
};

struct column {
    int stream, chunk;
    struct survey row[ROWS];
};

/* One variant of the update: dtype and location of optimizer state and master weights. */
struct update {
    struct settings s;
    struct survey survey;
};

/* How many blocks of each chain are recomputed, or how many blocks have offloaded weights; and
 * which. */
struct extent {
    int n;
    bool all;
    bool *has;               /* by block; 0: whether any has */
};

/* A value of memory.recompute, and the rows of which it is composed. */
struct mode {
    struct recompute recompute;
    int rest, recomputed;
    const struct extent *extent;
};

struct search_builder {
    struct plan_space *x;
    struct settings base;
    struct search_builder *from; /* its splits are taken instead of own ones; NULL: none */
    const struct survey *plain;  /* with which the splits' persistent bytes are compared */
    /* the splits are lower bounds of its own; these surveys say how long a step sends: */
    bool rough;
    /* of the first split, by chunks of the heads; of the last split, with the most
     * micro-batches */
    struct survey whole[CHUNKS_MOST], most;
    struct survey fetching;      /* the first update, with all weights offloaded; made with the first stream of these */
    bool has_fetching;
    VEC(struct split) splits;
    struct { int head, mask; } chunk[CHUNKS_MOST];
    int chunks, same; /* how many there are; the first have as many chunks of the mask head, or as many as configured */
    struct update update[UPDATES];
    int updates;
    VEC(struct extent) extents, fetched;
    VEC(struct mode) modes;
    uint32_t blocks;
};

/* Choices with the same split, stream and chunks of the heads. */
struct search_group {
    struct search_builder *b;
    uint32_t split, first, end;  /* choices */
    int stream, chunk;
    bool made;
};

static bool is_fused(const struct search_group *g) { return g->stream & STREAM_FUSED; }

/* Reports whether a group has choices with an update. The step of a fused one contains it: the
 * number of the stream says what of it is offloaded, but for a state of another dtype, which is
 * bounded by the step that offloads nothing of it. */
static bool has_update(const struct search_group *g, const struct update *u)
{
    const int part = g->stream / STREAM_UPDATE;
    const bool other = u->s.state != g->b->update[0].s.state;
    if (!is_fused(g) || !g->b->x->f.free[TECHNIQUE_offload]) return true;
    return other ? !part : (int)u->s.offload == part;
}


/* Sets a technique to value `rung` of its ladder; false: the ladder ends before. */
static bool take_rung(struct settings *s, enum technique_id id, int rung)
{
    char value[SETTING_ROOM];
    if (rung >= LADDER_MOST || !technique_value(techniques[id].ladder, rung, value)) return false;
    CHECK(technique_parse(id, value, s), "%s %s", techniques[id].name, value);
    return true;
}

static struct recompute recompute_of_row(int row)
{
    struct settings s = {0};
    CHECK(take_rung(&s, TECHNIQUE_recompute, row), "%d", row);
    return s.recompute;
}

/* --- surveys -------------------------------------------------------------------------- */

static void add_job(struct survey_jobs *jobs, struct settings s, struct recompute recompute, struct survey *to)
{
    s.recompute = recompute;
    survey_jobs_add(jobs, &s, true, to);
}

static struct settings with_chunks(const struct search_builder *b, struct settings s, int c)
{
    s.head_chunks = b->chunk[c].head;
    s.mask_chunks = b->chunk[c].mask;
    return s;
}

static void add_split_jobs(struct search_builder *b, struct split *f, struct survey_jobs *jobs)
{
    bool free = b->x->f.free[TECHNIQUE_recompute];
    for (int row = 0; row < (free ? b->blocks ? ROWS : WHOLE : SELECTIVE); row++)
        for (int c = 0; c < b->chunks; c++)
            add_job(jobs, with_chunks(b, f->base, c), free ? recompute_of_row(row) : b->base.recompute,
                    &f->row[row][c]);
}

/* --- the dimensions ------------------------------------------------------------------------ */

/* Reports whether a micro-batch has no more images than are encoded at once: that is the choice
 * `all`. */
static bool encodes_all(const struct search_builder *b, const struct settings *s)
{
    return b->x->f.free[TECHNIQUE_encode] && s->encode < ENCODE_ALL && s->encode >= b->x->images * s->micro_batch;
}

/* Lists every number of micro-batches up to 16, then two per doubling; for each the smallest
 * micro-batch that covers the batch. */
static void list_splits(struct search_builder *b)
{
    const struct freedom *f = &b->x->f;
    int E = f->effective_batch;
    for (int n = 1, last = 0; n <= E;) {
        struct settings s = b->base;
        if (f->free[TECHNIQUE_micro_batch]) s.micro_batch = (E + n - 1) / n;
        s.accumulation = (E + s.micro_batch - 1) / s.micro_batch;
        bool ragged = s.micro_batch * s.accumulation != E, apart = f->multiple && s.micro_batch % f->multiple;
        /* a configured fused step needs a step of one micro-batch */
        bool fusable = !s.fused_step || s.accumulation == 1;
        bool many = f->trips && s.accumulation > f->trips;
        if (s.micro_batch != last && !(ragged && f->whole) && !apart && fusable && !many && !encodes_all(b, &s))
            vec_push(&b->splits, ((struct split){.base = s}));
        last = s.micro_batch;
        if (!f->free[TECHNIQUE_micro_batch] || n == E) break;
        n = n < 16 ? n + 1 : n & (n - 1) ? n / 3 * 4 : n / 2 * 3;
        if (n > E) n = E;
    }
}

static void add_chunks(struct search_builder *b, int head, int mask)
{
    CHECK(b->chunks < CHUNKS_MOST, "%d", b->chunks);
    b->chunk[b->chunks].head = head;
    b->chunk[b->chunks++].mask = mask;
}

/* Lists the chunks of the LM head, or of the only head; a mask head beside it has as many or, after
 * these, another number. */
static void list_chunks(struct search_builder *b, const struct graph *g)
{
    bool rows = false;
    for (id s = 1; s < g->scopes.n; s++) rows |= g->scopes.at[s].flags & SCOPE_ROWS;
    struct settings s = b->base;
    if (!b->x->f.free[TECHNIQUE_head_chunks]) add_chunks(b, s.head_chunks, s.mask_chunks);
    else
        for (; (rows || !b->chunks) && take_rung(&s, TECHNIQUE_head_chunks, b->chunks);)
            add_chunks(b, s.head_chunks, s.mask_chunks);
    b->same = b->chunks;
    for (int c = 0; c < b->same && b->x->f.free[TECHNIQUE_mask_chunks] && chunk_has_masks(g); c++)
        for (int rung = 0; take_rung(&s, TECHNIQUE_mask_chunks, rung); rung++)
            if (s.mask_chunks != b->chunk[c].head) add_chunks(b, b->chunk[c].head, s.mask_chunks);
}

static uint32_t count_recomputed(const struct search_builder *b, const struct graph *g, int n)
{
    struct settings s = b->base;
    s.recompute = (struct recompute){.kind = RECOMPUTE_FIRST, .n = n};
    bool *some = survey_recomputed(g, &s, b->blocks);
    uint32_t count = 0;
    for (uint32_t i = 1; i <= b->blocks; i++) count += some[i];
    mem_free(some);
    return count;
}

/* Reports whether first:n would split a short chain. first:n counts in every chain of blocks. In a
 * chain as short as a mask decoder's, blocks share what selective recomputes, and half a chain is
 * not a sum of its blocks: n is at least as long as all such chains. */
static bool splits_short_chain(const struct search_builder *b, const struct graph *g, int n)
{
    return n < 4 && count_recomputed(b, g, n + 1) > count_recomputed(b, g, n) + 1;
}

static void list_extents(struct search_builder *b, const struct graph *g)
{
    struct settings s = b->base;
    s.recompute = (struct recompute){.kind = RECOMPUTE_ALL};
    bool *all = survey_recomputed(g, &s, b->blocks);
    int step = (int)(b->blocks + STEPS - 1) / STEPS;
    vec_push(&b->extents, ((struct extent){.has = mem_alloc(b->blocks + 1)}));
    for (int n = step; n && n < (int)b->blocks; n += step) {
        s.recompute = (struct recompute){.kind = RECOMPUTE_FIRST, .n = n};
        bool *some = survey_recomputed(g, &s, b->blocks), whole = !memcmp(some, all, b->blocks + 1);
        if (whole || splits_short_chain(b, g, n)) mem_free(some);
        else vec_push(&b->extents, ((struct extent){.n = n, .has = some}));
        if (whole) break;
    }
    if (b->blocks) vec_push(&b->extents, ((struct extent){.all = true, .has = all}));
    else mem_free(all);
}

static bool state_allowed(const struct search_builder *b, enum state_dtype state)
{
    const struct freedom *f = &b->x->f;
    return state == b->base.state || (state == STATE_BF16 && f->allow_bf16) || (state == STATE_8BIT && f->allow_8bit);
}

/* Lists how many blocks may have their weights offloaded: none, eighths of them, all. */
static void list_fetched(struct search_builder *b)
{
    const int step = (int)(b->blocks + STEPS - 1) / STEPS;
    vec_push(&b->fetched, ((struct extent){.has = mem_alloc(b->blocks + 1)}));
    for (int n = step; n; n = n + step < (int)b->blocks ? n + step : n < (int)b->blocks ? (int)b->blocks : 0) {
        struct extent x = {.n = n < (int)b->blocks ? n : 0, .all = n == (int)b->blocks,
                           .has = mem_alloc(b->blocks + 1)};
        const struct settings s = {.offload_blocks = x.n};
        x.has[0] = true;
        for (uint32_t i = 1; i <= b->blocks; i++) x.has[i] = offload_has_block(&s, i, b->blocks);
        vec_push(&b->fetched, x);
    }
}

static void list_modes(struct search_builder *b)
{
    static const struct {
        int rest, recomputed;
    } pairs[] = {{KEPT, WHOLE}, {KEPT, HALVES}, {SELECTIVE, WHOLE_SELECTIVE}};
    const struct extent *none = &b->extents.at[0];
    const bool free = b->x->f.free[TECHNIQUE_recompute];
    vec_push(&b->modes, ((struct mode){free ? recompute_of_row(KEPT) : b->base.recompute, KEPT, KEPT, none}));
    if (!free) return;
    vec_push(&b->modes, ((struct mode){recompute_of_row(SELECTIVE), SELECTIVE, SELECTIVE, none}));
    for (size_t k = 0; k < COUNT(pairs); k++)
        for (uint32_t i = 1; i < b->extents.n; i++) {
            const struct extent *x = &b->extents.at[i];
            struct mode m = {recompute_of_row(pairs[k].recomputed), pairs[k].rest, pairs[k].recomputed, x};
            if (m.recompute.halves && !x->all) continue;
            m.recompute.kind = x->all ? RECOMPUTE_ALL : RECOMPUTE_FIRST;
            m.recompute.n = x->n;
            vec_push(&b->modes, m);
        }
}

static void add_update(struct search_builder *b, struct settings s)
{
    const struct settings *first = &b->update[0].s;
    if (b->updates && s.state == first->state && s.offload == first->offload) return;
    CHECK(b->updates < UPDATES, "%d", b->updates);
    b->update[b->updates++].s = s;
}

/* Lists the updates: every subset of optimizer state and master weights offloaded, in every
 * dtype of the state. The first is the update of the base settings, with which splits are
 * surveyed. */
static void list_updates(struct search_builder *b)
{
    struct settings s = b->base;
    const bool free = b->x->f.free[TECHNIQUE_offload];
    if (free) s.offload = 0, s.offload_blocks = 0;
    add_update(b, s);
    for (enum state_dtype state = STATE_F32; state < STATE_DTYPES; state++)
        for (unsigned subset = 0; subset < (free ? SUBSETS : 1) && state_allowed(b, state); subset++) {
            struct settings one = s;
            one.state = state;
            if (free) one.offload = subset;
            if (!(subset & OFFLOAD_MASTERS) || offload_has_masters(&one)) add_update(b, one);
        }
}

/* --- bounds ------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static double later(double a, double b) { return a > b ? a : b; }
static double latest(const double seconds[LANE_COUNT])
{
    double most = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++) most = later(most, seconds[lane]);
    return most;
}

/* Returns the split whose surveys are taken. */
static struct split *split_of(const struct search_builder *b, uint32_t i)
{
    return &(b->from ? b->from : b)->splits.at[i];
}

/* Returns a lower bound of how long a rank sends in a step, on a GPU. Each micro-batch sends what
 * is in blocks anew. */
static double sent_seconds(const struct search_builder *b, const struct split *f, int chunk)
{
    const struct settings *first = &b->splits.at[0].base, *last = &b->splits.at[b->splits.n - 1].base;
    double whole = 0, blocks = 0;
    for (uint32_t i = 0; i <= b->blocks; i++) whole += b->whole[chunk].block[i].seconds[LANE_COMM];
    for (uint32_t i = 1; i <= b->blocks; i++) blocks += b->most.block[i].seconds[LANE_COMM];
    return f->base.micro_batch == first->micro_batch ? whole : blocks * f->base.accumulation / last->accumulation;
}

/* A step of a group, with any update. */
struct stepped {
    double seconds, lane[LANE_COUNT];
    uint64_t bytes;                  /* transients */
    uint64_t weights, shared;        /* offloaded; of several blocks, some of which may be */
    double part;                     /* of all weights that can be, by bytes or by blocks */
    const struct survey *shown;      /* has the persistent bytes of step and evaluation */
};

/* Adds up the weights that are offloaded. Ranks that divide weights offload a part of them. */
static void add_weights(const struct search_builder *b, const struct survey *v, const struct extent *fetched,
                        struct stepped *out)
{
    uint64_t all = 0;
    uint32_t n = 0;
    for (uint32_t i = 1; i <= b->blocks; i++) {
        all += v->block[i].weights;
        if (fetched->has[i]) n++, out->weights += v->block[i].weights;
    }
    out->shared = fetched->has[0] && !fetched->all ? v->block[0].weights : 0;
    if (fetched->all) out->weights += v->block[0].weights;
    const double bytes = all ? (double)out->weights / (double)all : 0, blocks = (double)n / b->blocks;
    out->part = bytes < blocks ? bytes : blocks;
    if (b->base.shard != SHARD_WEIGHTS) return;
    out->shared += out->weights;
    out->weights = 0;
}

/* Returns the surveys of a stream; NULL: they were not made. */
static const struct column *find_column(const struct split *f, int stream, int chunk)
{
    for (uint32_t i = 0; i < f->columns.n; i++)
        if (f->columns.at[i]->stream == stream && f->columns.at[i]->chunk == chunk) return f->columns.at[i];
    return NULL;
}

static struct stepped bound_step(const struct search_group *group, const struct plan_point *at)
{
    const struct search_builder *b = group->b;
    const struct split *f = split_of(b, group->split);
    const struct mode *m = &b->modes.at[at->mode];
    const struct extent *fetched = &b->fetched.at[at->fetched];
    const struct survey *rest = &f->row[m->rest][group->chunk], *recomputed = &f->row[m->recomputed][group->chunk];
    struct composition c = {.of = {{rest, recomputed}, {rest, recomputed}}, .is_fetched = b->fetched.at[0].has,
                            .is_recomputed = m->extent->has, .lean = b->rough || is_fused(group)};
    struct stepped out = {.shown = m->extent->all ? recomputed : rest};
    const bool away = group->stream & STREAM_ACTIVATIONS;
    if (group->made && group->stream) {
        const struct column *all = find_column(f, group->stream, group->chunk),
                            *kept = find_column(f, group->stream & ~STREAM_WEIGHTS, group->chunk);
        for (int k = 0; k < 2; k++) {
            const int row = k ? m->recomputed : m->rest;
            if (kept) c.of[0][k] = &kept->row[row];
            c.of[1][k] = &all->row[row];
        }
        c.is_fetched = fetched->has;
        c.away = away;
        c.lean = b->rough;
    }
    const struct composed composed = compose(&c);
    out.bytes = composed.bytes;
    if (away && !group->made) {
        const uint64_t one = rest->accessed[!c.lean], other = recomputed->accessed[!c.lean];
        out.bytes = one < other ? one : other;
    }
    memcpy(out.lane, composed.lane, sizeof out.lane);
    out.seconds = group->stream && (b->rough || !group->made) ? out.lane[LANE_COMPUTE] : composed.seconds;
    add_weights(b, rest, fetched, &out);
    return out;
}

/* Sets the seconds of the update, and adds it to the step. The update of offloaded weights fetches
 * and writes back a part of what it does with all of them. A fused step has the first update in its
 * surveys. */
static void bound_seconds(const struct search_group *group, const struct stepped *step, const struct update *update,
                          struct plan_choice *c)
{
    const struct search_builder *b = group->b;
    const struct survey *u = &update->survey, *first = &b->update[0].survey;
    const bool cuda = b->x->profile->kind == DEVICE_CUDA, divided = b->base.shard == SHARD_WEIGHTS,
               fetches = group->stream & STREAM_WEIGHTS && b->has_fetching && !divided,
               whole = group->stream >= STREAM_UPDATE; /* the step's surveys have the update's copies */
    double lane[LANE_COUNT], work[LANE_COUNT], sum = 0, saved = 0;
    for (int k = 0; k < LANE_COUNT; k++) {
        const double all = fetches ? b->fetching.update_busy[k] - first->update_busy[k] : 0,
                     more = all > 0 ? UPDATE_PART * step->part * all : 0,
                     other = u->update_busy[k] - first->update_busy[k];
        lane[k] = u->update_busy[k] + more;
        work[k] = step->lane[k] + (k != LANE_COMPUTE && other > 0 && !whole ? UPDATE_PART * other : 0);
        sum += more;
        if (other < 0) saved -= other;
    }
    if (is_fused(group)) {
        c->update = 0;
        c->seconds = group->made && !b->rough && cuda ? later(step->seconds, latest(work)) : step->seconds;
        if (group->made && update->s.state != b->update[0].s.state) c->seconds -= saved;
    } else {
        const bool bounds = group->stream & STREAM_WEIGHTS && divided;
        const double least = bounds ? UPDATE_PART * u->update_seconds : u->update_seconds;
        c->update = cuda ? later(least, fetches ? latest(lane) : 0) : least + sum;
        c->seconds = step->seconds + c->update;
    }
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static void bound_choice(const struct search_group *group, const struct stepped *step, const struct update *update,
                         struct plan_choice *c)
{
    const struct search_builder *b = group->b;
    const struct survey *u = &update->survey;
    struct stepped sent = *step;
    if (b->rough) sent.seconds = later(step->seconds, sent_seconds(b, &b->splits.at[group->split], group->chunk));
    bound_seconds(group, &sent, update, c);
    c->update_bytes = is_fused(group) ? 0 : u->update;
    for (int s = 0; s < SPACE_COUNT; s++)
        c->lasting[s] = step->shown->persistent[s] - b->plain->persistent[s] + u->persistent[s];
    memcpy(c->weights, u->weights, sizeof c->weights);
    c->lasting[SPACE_DEVICE] -= step->weights + step->shared; /* differences are exact, even below 0 */
    c->weights[SPACE_DEVICE] = less(c->weights[SPACE_DEVICE], step->weights + step->shared);
    if (group->made) c->lasting[SPACE_HOST] += step->weights;
    if (group->made) c->weights[SPACE_HOST] += step->weights;
    memcpy(c->bound, c->lasting, sizeof c->bound);
    if ((int64_t)c->bound[SPACE_DEVICE] < 0) c->bound[SPACE_DEVICE] = 0;
    c->bound[SPACE_DEVICE] += larger(larger(step->bytes, c->update_bytes), step->shown->eval);
}

/* --- choices ------------------------------------------------------------------------------ */

/* Reports whether the choices are those of fewer chunks: more chunks than a head has rows are as
 * many as it has rows. */
static bool repeats_chunks(const struct split *f, int chunk)
{
    for (int c = 0; c < chunk; c++)
        if (!memcmp(f->row[KEPT][c].rows, f->row[KEPT][chunk].rows, sizeof f->row[KEPT][c].rows)) return true;
    return false;
}

/* Reports whether a split has a stream with a number of chunks: every second one, with as many
 * chunks of a mask head beside the LM head, and a whole mask head. */
static bool has_chunk(const struct search_builder *b, uint32_t split, int stream, int chunk)
{
    if (repeats_chunks(split_of(b, split), chunk)) return false;
    return !stream || (chunk < b->same ? chunk % 2 == 0 : b->chunk[chunk].mask == 1);
}

static struct settings settings_at(const struct search_group *group, const struct plan_point *at)
{
    const struct search_builder *b = group->b;
    struct settings s = with_chunks(b, b->splits.at[group->split].base, group->chunk);
    s.recompute = b->modes.at[at->mode].recompute;
    if (is_fused(group)) s.fused_step = true;
    return s;
}

static void add_step(struct search_group *group, uint32_t number, struct plan_point at)
{
    const struct search_builder *b = group->b;
    struct plan_space *x = b->x;
    const struct stepped step = bound_step(group, &at);
    struct plan_choice c = {.settings = settings_at(group, &at), .step = x->choices.n, .way = x->ways, .group = number,
                            .rough = group->stream ? ROUGH_LOOSE : b->rough ? ROUGH_COMPOSED : 0};
    for (int u = 0; u < b->updates; u++) {
        if (!has_update(group, &b->update[u])) continue;
        at.update = (uint16_t)u;
        c.point = at;
        if (is_fused(group)) c.step = x->choices.n;
        c.settings.state = b->update[u].s.state;
        c.settings.offload = b->update[u].s.offload;
        c.settings.offload_blocks = b->update[u].s.offload_blocks;
        if (group->stream & STREAM_WEIGHTS) {
            c.settings.offload |= OFFLOAD_WEIGHTS;
            c.settings.offload_blocks = b->fetched.at[at.fetched].n;
        }
        if (group->stream & STREAM_ACTIVATIONS) c.settings.offload |= OFFLOAD_ACTIVATIONS;
        bound_choice(group, &step, &b->update[u], &c);
        vec_push(&x->choices, c);
    }
}

static void add_group(struct search_builder *b, uint32_t split, int stream, int chunk)
{
    struct plan_space *x = b->x;
    struct search_group group = {.b = b, .split = split, .stream = stream, .chunk = chunk, .first = x->choices.n};
    const uint16_t from = stream & STREAM_WEIGHTS ? 1 : 0, end = stream & STREAM_WEIGHTS ? (uint16_t)b->fetched.n : 1;
    for (uint16_t mode = 0; mode < b->modes.n; mode++)
        for (uint16_t k = from; k < end; k++)
            add_step(&group, x->groups.n, (struct plan_point){.mode = mode, .fetched = k});
    group.end = x->choices.n;
    vec_push(&x->groups, group);
}

/* Reports whether a split has a stream. What of the update is offloaded tells fused steps apart. */
static bool has_stream(const struct search_builder *b, int stream, bool streams, bool fusable)
{
    bool found = stream < STREAM_UPDATE;
    for (int u = 0; u < b->updates; u++) found |= b->update[u].s.offload == (unsigned)stream / STREAM_UPDATE;
    if (stream & STREAM_FUSED ? !fusable : stream >= STREAM_UPDATE) return false;
    if (stream >= STREAM_UPDATE && !b->x->f.free[TECHNIQUE_offload]) return false;
    return found && (streams || !(stream & (STREAM_WEIGHTS | STREAM_ACTIVATIONS)));
}

/* Adds all choices. On a GPU the weights and activations of 1, 2, 4 ... micro-batches per step
 * may be offloaded, because each one fetches the weights anew, and those of the smallest micro-
 * batch. On a CPU the offload is a file, and a choice that offloads less is better there: only
 * those of the smallest micro-batch. The fused step is for a step of one micro-batch. */
static void add_choices(struct search_builder *b)
{
    const struct freedom *f = &b->x->f;
    for (uint32_t i = 0; i < b->splits.n; i++, b->x->ways++) {
        const struct settings *s = &b->splits.at[i].base;
        const bool doubled = s->device.copies_overlap && !(s->accumulation & (s->accumulation - 1)),
                   fusable = f->free[TECHNIQUE_fused_step] && s->accumulation == 1,
                   free = f->free[TECHNIQUE_offload] && b->blocks, streams = free && (doubled || i + 1 == b->splits.n);
        for (int stream = 0; stream < STREAMS; stream++)
            for (int c = 0; c < b->chunks && has_stream(b, stream, stream & STREAM_FUSED ? free : streams, fusable);
                 c++)
                if (has_chunk(b, i, stream, c)) add_group(b, i, stream, c);
    }
}

/* --- surveys of a stream ------------------------------------------------------------------- */

static unsigned offload_of(int stream)
{
    return (stream & STREAM_WEIGHTS ? OFFLOAD_WEIGHTS : 0u) |
           (stream & STREAM_ACTIVATIONS ? OFFLOAD_ACTIVATIONS : 0u) | (unsigned)stream / STREAM_UPDATE;
}

static void add_column_jobs(struct search_builder *b, struct split *f, int stream, int chunk, struct survey_jobs *jobs)
{
    const bool free = b->x->f.free[TECHNIQUE_recompute];
    struct settings s = with_chunks(b, f->base, chunk);
    if (!stream || find_column(f, stream, chunk)) return;
    struct column *c = mem_alloc(sizeof *c);
    c->stream = stream;
    c->chunk = chunk;
    vec_push(&f->columns, c);
    s.offload |= offload_of(stream);
    if (stream & STREAM_FUSED) s.fused_step = true;
    for (int row = 0; row < (free ? b->blocks ? ROWS : WHOLE : SELECTIVE); row++)
        add_job(jobs, s, free ? recompute_of_row(row) : b->base.recompute, &c->row[row]);
}

static void add_fetching_job(struct search_builder *b, struct survey_jobs *jobs)
{
    struct settings s = b->splits.at[0].base;
    if (b->has_fetching) return;
    s.offload = b->update[0].s.offload | OFFLOAD_WEIGHTS;
    if (b->x->f.free[TECHNIQUE_recompute]) s.recompute = recompute_of_row(KEPT);
    survey_jobs_add(jobs, &s, false, &b->fetching);
    b->has_fetching = true;
}

/* Bounds the choices of a group anew, by the surveys of its stream. */
static void bound_group(struct search_group *group)
{
    struct plan_space *x = group->b->x;
    for (uint32_t i = group->first; i < group->end;) {
        const struct plan_point at = x->choices.at[i].point;
        const struct stepped step = bound_step(group, &at);
        for (int u = 0; u < group->b->updates; u++) {
            if (!has_update(group, &group->b->update[u])) continue;
            struct plan_choice *c = &x->choices.at[i++];
            bound_choice(group, &step, &group->b->update[u], c);
            c->rough = ROUGH_COMPOSED;
        }
    }
}

/* Makes the surveys of a group's stream. */
static int survey_stream(struct plan_space *x, struct search_group *group, struct error *e)
{
    struct search_builder *root = group->b->from ? group->b->from : group->b;
    struct split *f = &root->splits.at[group->split];
    struct survey_jobs jobs = {0};
    add_column_jobs(root, f, group->stream & ~STREAM_WEIGHTS, group->chunk, &jobs);
    add_column_jobs(root, f, group->stream, group->chunk, &jobs);
    if (group->stream & STREAM_WEIGHTS) add_fetching_job(group->b, &jobs);
    int rc = survey_jobs_run(&jobs, x, e);
    vec_free(&jobs.list);
    group->made = !rc;
    if (!rc) bound_group(group);
    return rc;
}

/* --- the search space -------------------------------------------------------------------- */

static void free_builder(struct search_builder *b)
{
    for (uint32_t i = 0; i < b->splits.n && !b->from; i++) {
        struct split *f = &b->splits.at[i];
        for (int row = 0; row < ROWS; row++) {
            for (int c = 0; c < CHUNKS_MOST; c++) survey_free(&f->row[row][c]);
            for (uint32_t k = 0; k < f->columns.n; k++) survey_free(&f->columns.at[k]->row[row]);
        }
        for (uint32_t k = 0; k < f->columns.n; k++) mem_free(f->columns.at[k]);
        vec_free(&f->columns);
    }
    for (int u = 0; u < b->updates; u++) survey_free(&b->update[u].survey);
    for (int c = 0; c < CHUNKS_MOST; c++) survey_free(&b->whole[c]);
    survey_free(&b->most);
    survey_free(&b->fetching);
    for (uint32_t i = 0; i < b->extents.n; i++) mem_free(b->extents.at[i].has);
    for (uint32_t i = 0; i < b->fetched.n; i++) mem_free(b->fetched.at[i].has);
    vec_free(&b->splits);
    vec_free(&b->extents);
    vec_free(&b->fetched);
    vec_free(&b->modes);
    mem_free(b);
}

void search_space_free(struct plan_space *x)
{
    for (uint32_t i = 0; i < x->builders.n; i++) free_builder(x->builders.at[i]);
    vec_free(&x->builders);
    vec_free(&x->groups);
}

/* Surveys a first graph to find the dimensions: blocks, and a head that can run in chunks. */
static int survey_first(struct search_builder *b, struct error *e)
{
    struct plan_drafts *drafts = &b->x->surveyed[0];
    struct survey v;
    struct settings s = b->update[0].s;
    s.micro_batch = b->splits.at[0].base.micro_batch;
    s.accumulation = b->splits.at[0].base.accumulation;
    s.head_chunks = b->base.head_chunks;
    if (b->x->f.free[TECHNIQUE_recompute]) s.recompute = (struct recompute){.kind = RECOMPUTE_NONE};
    TRY(survey_make(&v, drafts, &s, true, NULL, b->x->profile, e));
    b->blocks = v.blocks;
    list_chunks(b, &drafts->graph);
    list_extents(b, &drafts->graph);
    list_fetched(b);
    list_modes(b);
    b->update[0].survey = v;
    return PL_OK;
}

static void add_sent_jobs(struct search_builder *b, struct survey_jobs *jobs)
{
    const struct recompute kept = b->x->f.free[TECHNIQUE_recompute] ? recompute_of_row(KEPT) : b->base.recompute;
    for (int c = 0; c < b->chunks; c++) add_job(jobs, with_chunks(b, b->splits.at[0].base, c), kept, &b->whole[c]);
    add_job(jobs, with_chunks(b, b->splits.at[b->splits.n - 1].base, 0), kept, &b->most);
}

/* Adds the choices with the base's values of the techniques that have a dimension by their
 * ladder. */
static int add_dimensions(struct search_builder *b, struct error *e)
{
    struct plan_space *x = b->x;
    struct survey_jobs jobs = {0};
    list_splits(b);
    list_updates(b);
    /* no micro-batch has more images than that */
    const bool repeats = x->f.free[TECHNIQUE_encode] && b->base.encode < ENCODE_ALL;
    CHECK(b->splits.n || repeats, "no micro-batch is possible");
    if (!b->splits.n) return PL_OK;
    int rc = survey_first(b, e);
    b->plain = b->from ? b->from->plain : &b->update[0].survey;
    for (uint32_t i = 0; i < b->splits.n && !rc; i++) {
        b->splits.at[i].base.offload = b->update[0].s.offload;
        b->splits.at[i].base.offload_blocks = b->update[0].s.offload_blocks;
        if (!b->from) add_split_jobs(b, &b->splits.at[i], &jobs);
    }
    /* Only collectives are added to program step; at level optimizer they are all in program
     * update, and the splits of the first level are exact. */
    b->rough = b->from && b->base.shard != SHARD_OPTIMIZER;
    if (b->rough && !rc) add_sent_jobs(b, &jobs);
    for (int u = 1; u < b->updates && !rc; u++) {
        struct settings s = b->splits.at[0].base;
        s.state = b->update[u].s.state;
        s.offload = b->update[u].s.offload;
        if (x->f.free[TECHNIQUE_recompute]) s.recompute = (struct recompute){.kind = RECOMPUTE_NONE};
        survey_jobs_add(&jobs, &s, false, &b->update[u].survey);
    }
    if (!rc) rc = survey_jobs_run(&jobs, x, e);
    if (!rc) add_choices(b);
    vec_free(&jobs.list);
    return rc;
}

bool search_has_ladder(const struct freedom *f, enum technique_id id)
{
    return f->free[id] && techniques[id].ladder && !techniques[id].composed;
}

static bool is_level(enum technique_id id) { return id == TECHNIQUE_shard || id == TECHNIQUE_group; }

/* Takes the next combination of values, of levels of sharding or of the other techniques; false:
 * there is none. */
static bool next_rungs(const struct freedom *f, bool levels, int rung[TECHNIQUES])
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char value[SETTING_ROOM];
        if (!search_has_ladder(f, id) || is_level(id) != levels) continue;
        if (technique_value(techniques[id].ladder, ++rung[id], value)) return true;
        rung[id] = 0;
    }
    return false;
}

/* Sets the values; false: a technique lacks what it needs of another. */
static bool take_rungs(struct settings *s, const struct freedom *f, const int rung[TECHNIQUES])
{
    bool met = true;
    enum technique_id other;
    const char *values;
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        if (search_has_ladder(f, id)) CHECK(take_rung(s, id, rung[id]), "%s", techniques[id].name);
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        met &= !search_has_ladder(f, id) || technique_met(id, s, &other, &values);
    return met;
}

/* Finds out whether there is a frozen tower: how many images it encodes at once is then a
 * dimension. */
static int find_images(struct plan_space *x, const struct settings *base, struct error *e)
{
    struct plan_drafts drafts = {.source = x->source};
    int64_t images = 0;
    int rc = x->f.free[TECHNIQUE_encode] ? plan_draft_images(&drafts, base, &images, e) : PL_OK;
    x->images = images / base->micro_batch;
    x->f.free[TECHNIQUE_encode] &= x->images > 0;
    plan_drafts_free(&drafts);
    return rc;
}

/* Adds all levels of sharding with the same values of the other techniques. Where a rank has
 * several shares, the gradients of each are kept until they are added, which depends on the level:
 * there, every level has its own splits. */
static int add_levels(struct plan_space *x, const struct settings *base, int rung[TECHNIQUES], struct error *e)
{
    struct search_builder *first = NULL;
    int rc = PL_OK;
    do {
        struct settings s = *base;
        if (!take_rungs(&s, &x->f, rung)) continue;
        struct search_builder *b = mem_alloc(sizeof *b);
        vec_push(&x->builders, b);
        b->x = x;
        b->base = s;
        if (first && x->f.free[TECHNIQUE_shard] && base->shares <= 1) b->from = first;
        else if (!first) first = b;
        rc = add_dimensions(b, e);
    } while (!rc && next_rungs(&x->f, true, rung));
    return rc;
}

int search_space_fill(struct plan_space *x, const struct settings *base, struct error *e)
{
    int rung[TECHNIQUES] = {0}, rc = find_images(x, base, e);
    if (rc) return rc;
    do rc = add_levels(x, base, rung, e);
    while (!rc && next_rungs(&x->f, false, rung));
    return rc;
}

/* Records what a survey says about a rough choice, and about the others with the same step. Those
 * have another update: where it fetches weights, its time is only bounded. */
static void take_survey(struct plan_space *x, uint32_t choice, const struct survey *v)
{
    const struct plan_choice of = x->choices.at[choice];
    const bool fetches = x->groups.at[of.group].stream & STREAM_WEIGHTS;
    for (uint32_t i = of.step; i < x->choices.n && x->choices.at[i].step == of.step; i++) {
        struct plan_choice *c = &x->choices.at[i];
        if (i != choice && fetches && x->profile->kind != DEVICE_CUDA) continue;
        c->rough = 0;
        if (i == choice) c->update_bytes = v->update;
        if (i == choice) memcpy(c->weights, v->weights, sizeof c->weights);
        /* the order of gradients changes it a little */
        if (i == choice || !fetches) c->update += v->total_seconds - v->step_seconds - of.update;
        c->seconds = later(v->step_seconds, v->placed_seconds) + c->update;
        c->timed = v->placed_seconds > 0;
        for (int s = 0; s < SPACE_COUNT; s++) c->bound[s] = c->lasting[s] - of.lasting[s] + v->persistent[s];
        c->bound[SPACE_DEVICE] += larger(larger(v->step, c->update_bytes), v->eval);
    }
}

bool search_space_refine(struct plan_space *x, uint32_t choice, int *rc, struct error *e)
{
    const struct plan_choice *c = &x->choices.at[choice];
    if (c->rough != ROUGH_LOOSE) return false;
    *rc = survey_stream(x, &x->groups.at[c->group], e);
    return true;
}

int search_space_survey(struct plan_space *x, const uint32_t *rough, uint32_t n, const struct survey_limits *placed,
                        struct error *e)
{
    struct survey *all = mem_alloc((n + 1) * sizeof *all);
    struct survey_jobs jobs = {.placed = placed};
    for (uint32_t i = 0; i < n; i++) survey_jobs_add(&jobs, &x->choices.at[rough[i]].settings, false, &all[i]);
    int rc = survey_jobs_run(&jobs, x, e);
    for (uint32_t i = 0; i < n && !rc; i++) take_survey(x, rough[i], &all[i]);
    for (uint32_t i = 0; i < n; i++) survey_free(&all[i]);
    vec_free(&jobs.list);
    mem_free(all);
    return rc;
}
