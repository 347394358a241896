/*
 * search_space.c: see survey.h.
 *
 * What the search knows of a technique are its row's domain and class (techniques.def). The figures
 * of most choices are composed from
 *
 *     split   all surveys of one micro-batch:
 *
 *              chunks                1    2    8  ..  values of CLASS_CHUNKS
 *              none                  x    x    x      values of CLASS_BLOCKS, or the configured one
 *              selective             x    x    x
 *              all                   x    x    x
 *              ...
 *
 * A choice takes some blocks, and what is in no block, from the row of one value, and the other
 * blocks from that of the value's `rest`; and its update from a survey of CLASS_UPDATE's and
 * CLASS_PLACES' values.
 *
 * A fused step, or one with weights or activations offloaded, is no sum of these: it is surveyed as
 * a whole, and only if a search needs it. Until then the choice is rough: its figures are lower
 * bounds. They come from the survey of the same step that is not fused and offloads nothing, and
 * from surveys of the first split that tell how long its copies take and how much host memory they
 * need. Steps that differ only in what the update offloads are surveyed once.
 *
 * Ranks that divide gradients or weights add collectives to the step. Such choices are rough too.
 * They compute no less than with only the optimizer state divided, keep no fewer bytes but for
 * whole gradients, and send what a few surveys of their own say.
 *
 * Where rows are long, choices of CLASS_ROWS compute them in parts, each surveyed as it is and with
 * activations offloaded; they are rough too.
 */

#include "plan/survey.h"

enum { STEPS = 8, ROWS = 8, CHUNKS_MOST = 32, FORMS = 4, UPDATES = FORMS * (OFFLOAD_ALL + 1) / 2, PARTS_MOST = 16 };
/* Offloads that change the step program: a graph with them is no sum of surveys without them. */
enum { OFFLOAD_IN_STEP = OFFLOAD_WEIGHTS | OFFLOAD_ACTIVATIONS };

/* The part of the time of copies, and of a fused update, that a bound counts. */
#define ROUNDED 0.98

struct split {
    struct settings base;
    struct survey row[ROWS][CHUNKS_MOST]; /* by value of CLASS_BLOCKS and of CLASS_CHUNKS */
};

/* Values of CLASS_ROWS, with the smallest micro-batch: the settings, and surveys of the step as it
 * is and with activations offloaded. */
struct parts {
    struct settings s;
    struct survey step, away;
};

/* What a rough choice's figures come from: a survey of its step, and one of a step that offloads
 * activations, with this micro-batch. */
struct origin {
    const struct survey *step, *away;
    int micro_batch;
};

/* One variant of the update: its form, and what of it is in host memory. */
struct update {
    struct settings s;
    bool in_step; /* it changes the step too: no split is composed with it */
    bool fetches; /* on a GPU, the first with offloaded weights: its blocks are surveyed too */
    struct survey survey;
};

/* How many blocks of each chain have a value of CLASS_BLOCKS, and which. */
struct extent {
    int n;
    bool all;
    bool *has;
};

struct builder {
    struct plan_space *x;
    struct settings base;
    const struct builder *from;  /* its splits are taken instead of own ones; NULL: none */
    const struct survey *plain;  /* with which the splits' persistent bytes are compared */
    /* the splits are lower bounds of its own; these surveys say how long a step sends: */
    bool rough;
    /* of the first split, by chunks of the heads; of the last split, with the most
     * micro-batches */
    struct survey whole[CHUNKS_MOST], most;
    struct survey away[ROWS]; /* of the first split, on a GPU, with activations offloaded */
    struct parts parts[PARTS_MOST];
    int n_parts;
    VEC(struct split) splits;
    struct settings chunk[CHUNKS_MOST]; /* values of CLASS_CHUNKS... */
    int chunks, same;                   /* ...how many there are; the first are those of one technique */
    struct settings form[FORMS];        /* values of CLASS_UPDATE */
    int forms;
    struct update update[UPDATES];
    int updates;
    VEC(struct extent) extents;
    uint32_t blocks;
};

/* --- values --------------------------------------------------------------------------- */

/* Reports whether the search chooses the value of the technique of a class. */
static bool is_free(const struct builder *b, enum technique_class class) { return b->x->f.free[technique_in(class)]; }

static void take(struct settings *s, enum technique_id id, const char *value)
{
    CHECK(technique_parse(id, value, s), "%s %s", techniques[id].name, value);
}

/* Sets a technique to value `rung` of its ladder; false: the ladder ends before. */
static bool take_rung(struct settings *s, enum technique_id id, int rung)
{
    char value[SETTING_ROOM];
    if (!technique_value(techniques[id].ladder, rung, value)) return false;
    take(s, id, value);
    return true;
}

/* Returns settings with value `row` of CLASS_BLOCKS, or as they are if that is not free. */
static struct settings with_row(const struct builder *b, struct settings s, int row)
{
    if (is_free(b, CLASS_BLOCKS)) CHECK(take_rung(&s, technique_in(CLASS_BLOCKS), row), "%d", row);
    return s;
}

/* Returns the row that the blocks have which do not have this one; -1: the row is for a whole
 * step. */
static int rest_of(int row)
{
    const struct technique *t = &techniques[technique_in(CLASS_BLOCKS)];
    char rest[SETTING_ROOM];
    return technique_value(t->rest, row, rest) && *rest ? technique_rung(t->ladder, rest) : -1;
}

/* Sets a value of CLASS_BLOCKS for the first n blocks; false: it is only for all. */
static bool take_part(struct settings *s, int row, int n)
{
    const enum technique_id id = technique_in(CLASS_BLOCKS);
    char format[SETTING_ROOM], value[SETTING_ROOM];
    if (!technique_value(techniques[id].part, row, format) || !*format) return false;
    const char *at = strstr(format, "%d");
    snprintf(value, sizeof value, "%.*s%d%s", (int)(at - format), format, n, at + 2);
    take(s, id, value);
    return true;
}

/* Reports whether a row is surveyed: only a whole step has one where there are no blocks, and all
 * have the configured one where the technique is not free. */
static bool has_row(const struct builder *b, int row)
{
    char value[SETTING_ROOM];
    if (!is_free(b, CLASS_BLOCKS)) return !row;
    return technique_value(techniques[technique_in(CLASS_BLOCKS)].ladder, row, value) &&
           (b->blocks || rest_of(row) < 0);
}

/* Returns settings with the chunks of number `c`. */
static struct settings with_chunks(const struct builder *b, struct settings s, int c)
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        if (techniques[id].class == CLASS_CHUNKS) technique_copy(id, &s, &b->chunk[c]);
    return s;
}

static void add_split_jobs(struct builder *b, struct split *f, struct survey_jobs *jobs)
{
    for (int row = 0; has_row(b, row); row++)
        for (int c = 0; c < b->chunks; c++) {
            const struct settings s = with_row(b, with_chunks(b, f->base, c), row);
            survey_jobs_add(jobs, &s, true, &f->row[row][c]);
        }
}

/* --- the dimensions ------------------------------------------------------------------------ */

/* Reports whether a value counts as many as a micro-batch has: that is as good as all of them, the
 * first value of its ladder. */
static bool counts_all(const struct builder *b, const struct settings *s)
{
    bool all = false;
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        struct settings first = *s;
        if (!b->x->f.free[id] || !techniques[id].counted || techniques[id].class == CLASS_ROWS) continue;
        take_rung(&first, id, 0);
        all |= !technique_same(id, s, &first) && technique_count(id, s) >= b->x->counted[id] * s->micro_batch;
    }
    return all;
}

/* Lists every number of micro-batches up to 16, then two per doubling; for each the smallest
 * micro-batch that covers the batch. */
static void list_splits(struct builder *b)
{
    const struct freedom *f = &b->x->f;
    int E = f->effective_batch;
    for (int n = 1, last = 0; n <= E;) {
        struct settings s = b->base;
        if (is_free(b, CLASS_SPLIT)) s.micro_batch = (E + n - 1) / n;
        s.accumulation = (E + s.micro_batch - 1) / s.micro_batch;
        bool ragged = s.micro_batch * s.accumulation != E, apart = f->multiple && s.micro_batch % f->multiple;
        /* a configured fused step needs a step of one micro-batch */
        bool fusable = !s.fused_step || s.accumulation == 1;
        bool many = f->trips && s.accumulation > f->trips;
        if (s.micro_batch != last && !(ragged && f->whole) && !apart && fusable && !many && !counts_all(b, &s))
            vec_push(&b->splits, ((struct split){.base = s}));
        last = s.micro_batch;
        if (!is_free(b, CLASS_SPLIT) || n == E) break;
        n = n < 16 ? n + 1 : n & (n - 1) ? n / 3 * 4 : n / 2 * 3;
        if (n > E) n = E;
    }
}

/* Lists the chunks: those of the first kind of scope, then each of them with other numbers for the
 * next kind. */
static void list_chunks(struct builder *b, const struct graph *g)
{
    b->chunk[0] = b->base;
    b->chunks = 1;
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        const struct technique *t = &techniques[id];
        const int before = b->chunks;
        if (t->class != CLASS_CHUNKS) continue;
        for (int c = 0; c < before && b->x->f.free[id] && t->applies(g); c++) {
            struct settings s = b->chunk[c];
            for (int rung = 0; take_rung(&s, id, rung); rung++) {
                if (chunk_same(&s, &b->chunk[c])) continue;
                CHECK(b->chunks < CHUNKS_MOST, "%d", b->chunks);
                b->chunk[b->chunks++] = s;
            }
        }
        if (!b->same) b->same = b->chunks;
    }
}

/* Reports whether the last kind of scope is whole: its chunks are the first value of its ladder. */
static bool is_last_whole(const struct builder *b, int c)
{
    struct settings s = b->chunk[c];
    for (enum technique_id id = TECHNIQUES; id-- > 0;)
        if (techniques[id].class == CLASS_CHUNKS) return take_rung(&s, id, 0) && technique_same(id, &s, &b->chunk[c]);
    return true;
}

/* Returns by block whether it has row `row` if the first n blocks of each chain have it, 0: all;
 * the caller frees the result. */
static bool *blocks_with(const struct builder *b, const struct graph *g, int row, int n)
{
    struct settings s = b->base;
    if (n) CHECK(take_part(&s, row, n), "%d", row);
    else CHECK(take_rung(&s, technique_in(CLASS_BLOCKS), row), "%d", row);
    return survey_recomputed(g, &s, b->blocks);
}

static uint32_t count_blocks(const struct builder *b, const struct graph *g, int row, int n)
{
    bool *some = blocks_with(b, g, row, n);
    uint32_t count = 0;
    for (uint32_t i = 1; i <= b->blocks; i++) count += some[i];
    mem_free(some);
    return count;
}

/* Reports whether the first n blocks would split a short chain: n counts in every chain of blocks.
 * In a chain as short as a mask decoder's, blocks share what selective recomputes, and half a chain
 * is not a sum of its blocks: n is at least as long as all such chains. */
static bool splits_short_chain(const struct builder *b, const struct graph *g, int row, int n)
{
    return n < 4 && count_blocks(b, g, row, n + 1) > count_blocks(b, g, row, n) + 1;
}

static void list_extents(struct builder *b, const struct graph *g)
{
    int step = (int)(b->blocks + STEPS - 1) / STEPS, row = 0;
    while (rest_of(row) < 0) row++; /* all rows have the same blocks */
    bool *all = blocks_with(b, g, row, 0);
    vec_push(&b->extents, ((struct extent){.has = mem_alloc(b->blocks + 1)}));
    for (int n = step; n && n < (int)b->blocks; n += step) {
        bool *some = blocks_with(b, g, row, n), whole = !memcmp(some, all, b->blocks + 1);
        if (whole || splits_short_chain(b, g, row, n)) mem_free(some);
        else vec_push(&b->extents, ((struct extent){.n = n, .has = some}));
        if (whole) break;
    }
    if (b->blocks) vec_push(&b->extents, ((struct extent){.all = true, .has = all}));
    else mem_free(all);
}

/* Lists the values of CLASS_UPDATE: the configured one, and those that are permitted. */
static void list_forms(struct builder *b)
{
    const enum technique_id id = technique_in(CLASS_UPDATE);
    struct settings s = b->form[b->forms++] = b->base;
    for (int rung = 0; take_rung(&s, id, rung); rung++)
        if (b->x->f.permitted[id] >> rung & 1 && !technique_same(id, &s, &b->base)) {
            CHECK(b->forms < FORMS, "%d", b->forms);
            b->form[b->forms++] = s;
        }
}

static struct settings with_form(const struct builder *b, struct settings s, int form)
{
    technique_copy(technique_in(CLASS_UPDATE), &s, &b->form[form]);
    return s;
}

/* Reports whether the search has choices that offload this set. */
static bool may_offload(const struct builder *b, unsigned set)
{
    if (!is_free(b, CLASS_PLACES)) return set == b->base.offload;
    if (set & OFFLOAD_IN_STEP && !b->blocks) return false;
    if (set & OFFLOAD_UPDATE && !b->x->profile->host_bandwidth) return false;
    return offload_is_whole(&b->base, set) && (!(set & OFFLOAD_MASTERS) || offload_has_masters(&b->base));
}

/* Lists the updates: each set of what can be offloaded of them, in each form. The first is the
 * update of the base settings, with which splits are surveyed. */
static void list_updates(struct builder *b)
{
    const bool free = is_free(b, CLASS_PLACES);
    bool fetches = !b->base.device.copies_overlap;
    list_forms(b);
    for (int form = 0; form < b->forms; form++)
        for (unsigned set = 0; set <= OFFLOAD_ALL; set++) {
            struct settings s = with_form(b, b->update[0].s, form);
            s.offload = set;
            const bool same = !form && set == b->update[0].s.offload;
            if (same || !may_offload(b, set) || (free && set & OFFLOAD_ACTIVATIONS)) continue;
            const bool in_step = free && set & OFFLOAD_WEIGHTS;
            b->update[b->updates++] = (struct update){.s = s, .in_step = in_step, .fetches = in_step && !fetches};
            fetches |= in_step;
        }
}

/* --- composing ------------------------------------------------------------------------------ */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static double later(double a, double b) { return a > b ? a : b; }
static double latest(const double lane[LANE_COUNT])
{
    double most = 0;
    for (int k = 0; k < LANE_COUNT; k++) most = later(most, lane[k]);
    return most;
}

/* Returns a lower bound of how long a rank sends in a step, on a GPU. Each micro-batch sends what
 * is in blocks anew. */
static double sent_seconds(const struct builder *b, const struct split *f, int chunk)
{
    const struct settings *first = &b->splits.at[0].base, *last = &b->splits.at[b->splits.n - 1].base;
    double whole = 0, blocks = 0;
    for (uint32_t i = 0; i <= b->blocks; i++) whole += b->whole[chunk].block[i].seconds[LANE_COMM];
    for (uint32_t i = 1; i <= b->blocks; i++) blocks += b->most.block[i].seconds[LANE_COMM];
    return f->base.micro_batch == first->micro_batch ? whole : blocks * f->base.accumulation / last->accumulation;
}

/* Returns the update in the form of some settings that offloads a set. Offloaded activations do not
 * change it. */
static const struct survey *find_update(const struct builder *b, const struct settings *s, unsigned offload)
{
    for (int u = 0; u < b->updates; u++)
        if (technique_same(technique_in(CLASS_UPDATE), &b->update[u].s, s) &&
            !((b->update[u].s.offload ^ offload) & ~(unsigned)OFFLOAD_ACTIVATIONS))
            return &b->update[u].survey;
    CHECK(false, "no update with offload %u", offload);
}

static const struct survey *find_fetches(const struct builder *b)
{
    for (int u = 1; u < b->updates; u++)
        if (b->update[u].fetches) return &b->update[u].survey;
    return NULL;
}

/* The weights of some blocks: their bytes; those that several blocks read, which may be among them;
 * the part of all blocks, by bytes or by number, whichever is less. */
struct some_weights {
    uint64_t bytes, shared;
    double part;
};

static struct some_weights find_weights(const struct builder *b, const struct survey *step, const struct settings *s)
{
    struct some_weights out = {.part = 1};
    uint64_t all = 0;
    if (!s->offload_blocks || !(s->offload & OFFLOAD_WEIGHTS)) return out;
    for (uint32_t i = 1; i <= b->blocks; i++) {
        all += step->block[i].weights;
        if (offload_has_block(s, i, b->blocks)) out.bytes += step->block[i].weights;
    }
    const double bytes = all ? (double)out.bytes / (double)all : 0, blocks = (double)s->offload_blocks / b->blocks;
    out.part = ROUNDED * (bytes < blocks ? bytes : blocks);
    out.shared = step->block[0].weights;
    return out;
}

/* Adds to each lane a lower bound of how long program step copies, with a part of all weights. Each
 * micro-batch fetches the weights of blocks anew; the activations of a step are as many bytes in
 * any split, but for rounding. A fused step copies what the update does, and has its weights there
 * for it, unless the host updates them. */
static void add_copies(const struct builder *b, const struct settings *s, const struct survey *away, double part,
                       double lane[LANE_COUNT])
{
    const struct survey *v = s->offload & OFFLOAD_WEIGHTS ? find_fetches(b) : NULL;
    for (uint32_t i = 1; v && i <= v->blocks; i++)
        lane[LANE_IN] += part * v->block[i].seconds[LANE_IN] * s->accumulation / b->splits.at[0].base.accumulation;
    for (int k = LANE_IN; s->offload & OFFLOAD_ACTIVATIONS && k <= LANE_OUT; k++)
        for (uint32_t i = 0; away->block && i <= away->blocks; i++) lane[k] += ROUNDED * away->block[i].seconds[k];
    if (!s->fused_step) return;
    const struct survey *update = find_update(b, s, s->offload),
                        *held = find_update(b, s, s->offload & ~(unsigned)OFFLOAD_WEIGHTS);
    if (s->offload & OFFLOAD_UPDATE) held = update;
    lane[LANE_COMPUTE] += ROUNDED * update->update_busy[LANE_COMPUTE];
    lane[LANE_IN] += held->update_busy[LANE_IN];
    lane[LANE_OUT] += (s->offload_blocks ? held : update)->update_busy[LANE_OUT];
    lane[LANE_HOST] += update->update_busy[LANE_HOST];
}

/* Returns the same moment in another survey of the model; `m` if it has none. */
static const struct moment *same_moment(const struct survey *v, const struct moment *m)
{
    for (uint32_t i = 0; i < v->moments; i++)
        if (v->moment[i].owner == m->owner && v->moment[i].signature == m->signature) return &v->moment[i];
    return m;
}

/* Returns the step's transients, and its seconds, with the blocks marked in `has` from survey `row`
 * and the others from `rest`. A tensor that passes between blocks of two
 * surveys may be counted in both; the bound must not count it twice. The seconds are those of the
 * busiest lane: exact without copies, a lower bound with them. `lean`: without the gradients that
 * are handed to program update. */
static uint64_t compose(const struct survey *rest, const struct survey *row, const bool *has, bool lean,
                        double *seconds)
{
    uint64_t most = 0;
    *seconds = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        double busy = 0;
        for (uint32_t i = 0; i <= rest->blocks; i++)
            busy += (has[i] ? row : rest)->block[i].seconds[lane];
        if (busy > *seconds) *seconds = busy;
    }
    for (int turn = 0; turn < 2; turn++) {
        const struct survey *v = turn ? row : rest;
        for (uint32_t i = 0; i < v->moments; i++) {
            const struct moment *m = &v->moment[i], *other = same_moment(turn ? rest : row, m);
            uint64_t bytes = m->kept[0] - (lean ? m->handed : 0);
            if (has[m->owner] != turn) continue;
            for (uint32_t b = 1; b <= rest->blocks; b++) bytes += (has[b] == turn ? m : other)->kept[b];
            most = larger(most, bytes);
        }
    }
    bool mixed = false;
    for (uint32_t b = 1; b <= rest->blocks; b++) mixed |= has[b] != has[1];
    return !mixed ? most : most > rest->shared ? most - rest->shared : 0;
}

/* Returns a lower bound of the seconds of an update: on the host they depend on the order in which
 * gradients are complete, which another step changes. */
static double least_update(const struct survey *update, unsigned offload)
{
    return offload & OFFLOAD_UPDATE ? latest(update->update_busy) : update->update_seconds;
}

/* Adds choices with the settings `s`, in which the blocks of `extent` have one row and the others
 * another. */
static void add_choice(struct builder *b, const struct split *f, struct settings s, int chunk, int rest, int row,
                       const struct extent *extent)
{
    const struct survey *others = &f->row[rest][chunk], *shown = extent->all ? &f->row[row][chunk] : others;
    double seconds;
    uint64_t step = compose(others, &f->row[row][chunk], extent->has, b->rough, &seconds);
    struct plan_choice c = {.settings = s, .rough = b->rough, .step = b->x->choices.n, .way = b->x->ways};
    if (b->rough) seconds = later(seconds, sent_seconds(b, f, chunk));
    for (int u = 0; u < b->updates; u++) {
        const struct survey *update = &b->update[u].survey;
        if (b->update[u].in_step) continue;
        technique_copy(technique_in(CLASS_UPDATE), &c.settings, &b->update[u].s);
        technique_copy(technique_in(CLASS_PLACES), &c.settings, &b->update[u].s);
        c.update = least_update(update, c.settings.offload);
        c.seconds = seconds + c.update;
        c.update_bytes = update->update;
        for (int s = 0; s < SPACE_COUNT; s++)
            c.bound[s] = c.lasting[s] = shown->persistent[s] - b->plain->persistent[s] + update->persistent[s];
        c.bound[SPACE_DEVICE] += larger(larger(step, update->update), shown->eval);
        memcpy(c.weights, update->weights, sizeof c.weights);
        vec_push(&b->x->choices, c);
    }
}

/* Adds all values of CLASS_BLOCKS, for one micro-batch and one number of chunks: those of a whole
 * step, then those of some or all of the blocks. */
static void add_rows(struct builder *b, const struct split *f, int chunk)
{
    const struct settings base = with_chunks(b, f->base, chunk);
    for (int row = 0; has_row(b, row); row++)
        if (rest_of(row) < 0 || !is_free(b, CLASS_BLOCKS))
            add_choice(b, f, with_row(b, base, row), chunk, row, row, &b->extents.at[0]);
    for (int row = 0; has_row(b, row) && is_free(b, CLASS_BLOCKS); row++)
        for (uint32_t i = 1; i < b->extents.n && rest_of(row) >= 0; i++) {
            const struct extent *x = &b->extents.at[i];
            struct settings s = with_row(b, base, row);
            if (x->all || take_part(&s, row, x->n)) add_choice(b, f, s, chunk, rest_of(row), row, x);
        }
}

/* Reports whether the choices are those of fewer chunks: more chunks than a head has rows are as
 * many as it has rows. */
static bool repeats_chunks(const struct split *f, int chunk)
{
    for (int c = 0; c < chunk; c++)
        if (!memcmp(f->row[0][c].rows, f->row[0][chunk].rows, sizeof f->row[0][c].rows)) return true;
    return false;
}

static void add_composed(struct builder *b)
{
    for (uint32_t i = 0; i < b->splits.n; i++, b->x->ways++)
        for (int c = 0; c < b->chunks; c++)
            if (!repeats_chunks(&b->splits.at[i], c)) add_rows(b, &b->splits.at[i], c);
}

/* --- rough choices -------------------------------------------------------------------------- */

/* Returns a lower bound of the host memory of offloaded activations: a step with a larger
 * micro-batch has more rows. */
static uint64_t away_bytes(const struct settings *s, const struct origin *o)
{
    return (uint64_t)(ROUNDED * (double)o->away->host * s->micro_batch / o->micro_batch);
}

/* Returns the step's transients, without the gradients that are handed to program update if it is
 * `lean`: what the nodes of the step access where activations are offloaded, else all that is
 * alive. A survey of this step with offloaded activations says what is alive then, with its whole
 * gradients. */
static uint64_t transients(const struct settings *s, const struct origin *o, bool away, bool lean)
{
    const uint64_t least = (away ? o->step->accessed : o->step->all)[!lean];
    const bool same = o->away->block && o->micro_batch == s->micro_batch &&
                      !memcmp(o->away->rows, o->step->rows, sizeof o->step->rows);
    return away && same && !lean ? larger(least, o->away->all[1]) : least;
}

/* Offloads, a fused step and a level of sharding leave the nodes of the step that compute, and what
 * these access is in device memory. */
static void add_rough(struct builder *b, const struct split *f, const struct settings *s, int chunk,
                      const struct origin *o, uint32_t number)
{
    const bool free = is_free(b, CLASS_PLACES);
    const struct survey *step = o->step, *whole = find_update(b, s, s->offload),
                        *held = free ? find_update(b, s, s->offload & ~(unsigned)OFFLOAD_WEIGHTS) : whole,
                        *update = s->offload_blocks && s->offload & OFFLOAD_WEIGHTS ? held : whole;
    const struct some_weights some = find_weights(b, step, s);
    const bool away = free && s->offload & OFFLOAD_ACTIVATIONS,
               lean = s->fused_step || b->rough;
    uint64_t transient = larger(step->eval, transients(s, o, away, lean));
    struct plan_choice c = {.settings = *s, .rough = true, .step = number, .way = b->x->ways};
    double lane[LANE_COUNT] = {0};
    for (uint32_t i = 0; i <= step->blocks; i++) lane[LANE_COMPUTE] += step->block[i].seconds[LANE_COMPUTE];
    if (free) add_copies(b, s, o->away, some.part, lane);
    /* more micro-batches, and more that the step copies or does, add to the first split's */
    c.seconds = later(latest(lane), away ? ROUNDED * o->away->step_seconds : 0);
    if (b->rough) c.seconds = later(c.seconds, sent_seconds(b, f, chunk));
    if (!s->fused_step) {
        const bool fetches = s->offload & OFFLOAD_WEIGHTS || !s->device.copies_overlap;
        c.update = fetches ? latest((s->offload & OFFLOAD_UPDATE ? whole : update)->update_busy)
                           : least_update(update, s->offload);
        c.update_bytes = update->update;
        c.seconds += c.update;
    }
    for (int space = 0; space < SPACE_COUNT; space++)
        c.bound[space] = c.lasting[space] =
            step->persistent[space] - b->plain->persistent[space] + update->persistent[space];
    const uint64_t most = some.bytes + some.shared;
    c.bound[SPACE_DEVICE] -= c.bound[SPACE_DEVICE] > most ? most : c.bound[SPACE_DEVICE];
    c.bound[SPACE_HOST] += some.bytes;
    c.bound[SPACE_DEVICE] += larger(transient, c.update_bytes);
    if (away) c.bound[SPACE_HOST] += away_bytes(s, o);
    memcpy(c.weights, update->weights, sizeof c.weights);
    c.weights[SPACE_DEVICE] -= c.weights[SPACE_DEVICE] > most ? most : c.weights[SPACE_DEVICE];
    c.weights[SPACE_HOST] += some.bytes;
    vec_push(&b->x->choices, c);
}

/* Adds a step with each update. What the step itself accesses is offloaded as in `s`. A fused step
 * with another update is another step; on a CPU the update's copies depend on the step before. */
static void add_updates(struct builder *b, const struct split *f, struct settings s, int chunk, const struct origin *o)
{
    const unsigned in_step = s.offload & OFFLOAD_IN_STEP;
    const uint32_t number = b->x->choices.n;
    const bool shared = !s.fused_step && s.device.copies_overlap;
    for (int form = 0; form < b->forms; form++)
        for (unsigned set = 0; set <= OFFLOAD_ALL; set++) {
            s = with_form(b, s, form);
            s.offload = set;
            if ((set & OFFLOAD_IN_STEP) == in_step && may_offload(b, set))
                add_rough(b, f, &s, chunk, o, shared ? number : b->x->choices.n);
        }
}

/* Adds settings, where weights are offloaded those of all blocks. Where that is all that the step
 * accesses, those of eighths of the blocks are choices too, but for ranks that divide weights. */
static void add_blocks(struct builder *b, const struct split *f, struct settings s, int chunk, const struct origin *o)
{
    const int step = (int)(b->blocks + STEPS - 1) / STEPS;
    const bool some = is_free(b, CLASS_PLACES) && (s.offload & OFFLOAD_IN_STEP) == OFFLOAD_WEIGHTS &&
                      s.device.copies_overlap && !s.fused_step && s.shard != SHARD_WEIGHTS;
    add_updates(b, f, s, chunk, o);
    for (s.offload_blocks = step; some && s.offload_blocks < (int)b->blocks; s.offload_blocks += step)
        add_updates(b, f, s, chunk, o);
}

/* Adds settings with one row. */
static void add_row(struct builder *b, const struct split *f, const struct settings *s, int chunk, int row)
{
    add_blocks(b, f, with_row(b, *s, row), chunk,
               &(struct origin){&f->row[row][chunk], &b->away[row], b->splits.at[0].base.micro_batch});
}

/* Adds settings with one number of chunks and the rows that are offloaded with; `all`: also the
 * others. Without blocks, or where CLASS_BLOCKS is not free, there is the first row only. */
static void add_single_of(struct builder *b, const struct split *f, struct settings s, int chunk, bool all)
{
    const struct technique *t = &techniques[technique_in(CLASS_BLOCKS)];
    const bool rows = is_free(b, CLASS_BLOCKS) && b->blocks;
    char value[SETTING_ROOM];
    s = with_chunks(b, s, chunk);
    for (int i = 0; technique_value(t->streamed, i, value) && (rows || !i); i++) {
        add_row(b, f, &s, chunk, technique_rung(t->ladder, value));
    }
    for (int row = 0; technique_value(t->ladder, row, value) && rows && all; row++)
        if (technique_rung(t->streamed, value) < 0) add_row(b, f, &s, chunk, row);
}

/* Adds choices for every other number of chunks of the first kind of scope, and for those with
 * which the last kind is whole. */
static void add_single(struct builder *b, const struct split *f, struct settings s, bool all)
{
    for (int c = 0; c < b->same; c += 2) add_single_of(b, f, s, c, all);
    for (int c = b->same; c < b->chunks; c++)
        if (is_last_whole(b, c)) add_single_of(b, f, s, c, all);
}

/* Adds choices with weights, activations or both offloaded, for the smallest micro-batch, and on a
 * GPU for 1, 2, 4 ... micro-batches per step, because each one fetches the weights anew. On a CPU
 * the offload is a file, and a choice that offloads less is better there. Adds the fused step for a
 * step of one micro-batch, with every offload. */
static void add_singles(struct builder *b)
{
    for (uint32_t i = 0; i < b->splits.n; i++, b->x->ways++) {
        const struct split *split = &b->splits.at[i];
        struct settings s = split->base;
        const bool doubled = s.device.copies_overlap && !(s.accumulation & (s.accumulation - 1)),
                   streams = is_free(b, CLASS_PLACES) && (doubled || i + 1 == b->splits.n),
                   fusable = is_free(b, CLASS_FUSED) && s.accumulation == 1;
        for (unsigned set = 0; set <= OFFLOAD_ALL; set++) {
            if (is_free(b, CLASS_PLACES) ? set & ~(unsigned)OFFLOAD_IN_STEP : set != b->base.offload) continue;
            s.offload = set;
            s.fused_step = split->base.fused_step;
            if (streams && set) add_single(b, split, s, false);
            s.fused_step = true;
            if (fusable) add_single(b, split, s, true);
        }
    }
}

/* --- long rows ------------------------------------------------------------------------------ */

/* Returns how many values of a technique's ladder are at most what it counts. */
static int count_values(const struct builder *b, enum technique_id id)
{
    struct settings s = {0};
    int n = 0;
    while (take_rung(&s, id, n) && technique_count(id, &s) <= b->x->counted[id]) n++;
    return n;
}

/* Lists the values of CLASS_ROWS: of each technique the two largest, beside each of those of the
 * technique before it; with the smallest micro-batch, the most chunks of the first kind of scope,
 * and all blocks as in the first row of blocks. */
static void list_parts(struct builder *b)
{
    struct settings s = with_chunks(b, b->splits.at[b->splits.n - 1].base, b->same - 1);
    int row = 0, first = 0;
    while (rest_of(row) < 0) row++;
    b->parts[0].s = b->blocks ? with_row(b, s, row) : s;
    b->n_parts = 1;
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        if (techniques[id].class != CLASS_ROWS || !b->x->f.free[id]) continue;
        const int before = b->n_parts, values = count_values(b, id);
        for (int rung = values > 3 ? values - 2 : 1; rung < values; rung++)
            for (int k = first; k < before; k++) {
                CHECK(b->n_parts < PARTS_MOST, "%d", b->n_parts);
                struct settings *to = &b->parts[b->n_parts++].s;
                *to = b->parts[k].s;
                take_rung(to, id, rung);
            }
        if (!first && b->n_parts > 1) first = 1;
    }
}

static void add_part_jobs(struct builder *b, struct survey_jobs *jobs)
{
    for (int k = 1; k < b->n_parts; k++) {
        struct settings s = b->parts[k].s;
        survey_jobs_add(jobs, &s, true, &b->parts[k].step);
        s.offload |= OFFLOAD_ACTIVATIONS;
        if (is_free(b, CLASS_PLACES) && b->blocks) survey_jobs_add(jobs, &s, true, &b->parts[k].away);
    }
}

/* Adds choices in parts, with every offload and, where a step is one micro-batch, fused or not. */
static void add_parts(struct builder *b)
{
    const struct split *split = &b->splits.at[b->splits.n - 1];
    for (int k = 1; k < b->n_parts; k++)
        for (unsigned set = 0; set <= OFFLOAD_ALL; set++) {
            struct settings s = b->parts[k].s;
            const struct origin o = {&b->parts[k].step, &b->parts[k].away, s.micro_batch};
            if (is_free(b, CLASS_PLACES) ? set & ~(unsigned)OFFLOAD_IN_STEP : set != b->base.offload) continue;
            s.offload = set;
            add_blocks(b, split, s, b->same - 1, &o);
            s.fused_step = true;
            if (is_free(b, CLASS_FUSED) && s.accumulation == 1) add_blocks(b, split, s, b->same - 1, &o);
        }
    b->x->ways += b->n_parts > 1;
}

/* --- the search space -------------------------------------------------------------------- */

static void free_builder(struct builder *b)
{
    for (uint32_t i = 0; i < b->splits.n && !b->from; i++) {
        for (int row = 0; row < ROWS; row++)
            for (int c = 0; c < CHUNKS_MOST; c++) survey_free(&b->splits.at[i].row[row][c]);
    }
    for (int u = 0; u < b->updates; u++) survey_free(&b->update[u].survey);
    for (int c = 0; c < CHUNKS_MOST; c++) survey_free(&b->whole[c]);
    survey_free(&b->most);
    for (int row = 0; row < ROWS; row++) survey_free(&b->away[row]);
    for (int k = 1; k < b->n_parts && !b->from; k++) survey_free(&b->parts[k].step), survey_free(&b->parts[k].away);
    for (uint32_t i = 0; i < b->extents.n; i++) mem_free(b->extents.at[i].has);
    vec_free(&b->splits);
    vec_free(&b->extents);
}

/* Surveys a first graph to find the dimensions: blocks, and a head that can run in chunks. */
static int survey_first(struct builder *b, struct error *e)
{
    struct plan_drafts *drafts = &b->x->surveyed[0];
    struct survey v;
    struct settings s = with_row(b, b->update[0].s, 0);
    technique_copy(technique_in(CLASS_SPLIT), &s, &b->splits.at[0].base);
    int rc = survey_make(&v, drafts, &s, true, NULL, b->x->profile, e);
    if (!rc) {
        b->blocks = v.blocks;
        list_chunks(b, &drafts->graph);
        list_extents(b, &drafts->graph);
        list_parts(b);
        b->update[0].survey = v;
    }
    return rc;
}

static void add_sent_jobs(struct builder *b, struct survey_jobs *jobs)
{
    for (int c = 0; c < b->chunks; c++) {
        const struct settings s = with_row(b, with_chunks(b, b->splits.at[0].base, c), 0);
        survey_jobs_add(jobs, &s, true, &b->whole[c]);
    }
    const struct settings s = with_row(b, with_chunks(b, b->splits.at[b->splits.n - 1].base, 0), 0);
    survey_jobs_add(jobs, &s, true, &b->most);
}

/* Adds surveys of the first split with activations offloaded, where they can be. */
static void add_away_jobs(struct builder *b, struct survey_jobs *jobs)
{
    struct settings s = with_chunks(b, b->splits.at[0].base, 0);
    if (!is_free(b, CLASS_PLACES) || !b->blocks || !s.device.copies_overlap) return;
    s.offload = OFFLOAD_ACTIVATIONS;
    for (int row = 0; has_row(b, row); row++) {
        const struct settings of = with_row(b, s, row);
        survey_jobs_add(jobs, &of, true, &b->away[row]);
    }
}

/* Takes the splits of the first level of sharding for a level beside it. Only collectives are added
 * to program step; at level optimizer they are all in program update, and the splits are exact. */
static void take_splits(struct builder *b)
{
    for (uint32_t i = 0; i < b->splits.n; i++)
        memcpy(b->splits.at[i].row, b->from->splits.at[i].row, sizeof b->splits.at[i].row);
    for (int k = 1; k < b->n_parts; k++)
        b->parts[k].step = b->from->parts[k].step, b->parts[k].away = b->from->parts[k].away;
    b->plain = b->from->plain;
}

/* Adds the choices with the base's values of the techniques that have a dimension by their
 * ladder. */
static int add_dimensions(struct builder *b, struct error *e)
{
    struct plan_space *x = b->x;
    struct survey_jobs jobs = {0};
    list_splits(b);
    b->update[b->updates++].s = b->base;
    const enum technique_id places = technique_in(CLASS_PLACES);
    if (x->f.free[places]) take(&b->update[0].s, places, techniques[places].off);
    if (!b->splits.n) return PL_OK; /* all counts_all */
    int rc = survey_first(b, e);
    if (!rc) list_updates(b);
    b->plain = &b->update[0].survey;
    for (uint32_t i = 0; i < b->splits.n && !rc; i++) {
        b->splits.at[i].base.offload = b->update[0].s.offload;
        if (!b->from) add_split_jobs(b, &b->splits.at[i], &jobs);
    }
    b->rough = b->from && b->base.shard != SHARD_OPTIMIZER;
    if (b->rough && !rc) add_sent_jobs(b, &jobs);
    if (!rc) add_away_jobs(b, &jobs);
    if (!rc && !b->from) add_part_jobs(b, &jobs);
    for (int u = 1; u < b->updates && !rc; u++) {
        struct settings s = with_row(b, b->splits.at[0].base, 0);
        technique_copy(technique_in(CLASS_UPDATE), &s, &b->update[u].s);
        technique_copy(technique_in(CLASS_PLACES), &s, &b->update[u].s);
        survey_jobs_add(&jobs, &s, b->update[u].fetches, &b->update[u].survey);
    }
    if (!rc) rc = survey_jobs_run(&jobs, x, e);
    if (!rc) {
        if (b->from) take_splits(b);
        add_composed(b);
        add_singles(b);
        add_parts(b);
    }
    vec_free(&jobs.list);
    return rc;
}

/* Reports whether each value of the technique's ladder stands with all other choices. */
static bool has_ladder(const struct freedom *f, enum technique_id id)
{
    return f->free[id] && techniques[id].ladder && techniques[id].class <= CLASS_SHARES;
}

/* Takes the next combination of values of the techniques of a class; false: there is none. */
static bool next_rungs(const struct freedom *f, enum technique_class class, int rung[TECHNIQUES])
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char value[SETTING_ROOM];
        if (!has_ladder(f, id) || techniques[id].class != class) continue;
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
        if (has_ladder(f, id)) CHECK(take_rung(s, id, rung[id]), "%s", techniques[id].name);
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        met &= !has_ladder(f, id) || technique_met(id, s, &other, &values);
    return met;
}

/* Finds what techniques count in a sample. One that finds nothing to count is no dimension. */
static int find_counted(struct plan_space *x, const struct settings *base, struct error *e)
{
    int rc = PL_OK;
    for (enum technique_id id = 0; id < TECHNIQUES && !rc; id++) {
        if (!x->f.free[id] || !techniques[id].counted) continue;
        rc = plan_draft_counted(&x->surveyed[0], base, id, &x->counted[id], e);
        x->counted[id] /= base->micro_batch;
        x->f.free[id] = x->counted[id] > 0;
    }
    return rc;
}

/* Adds all levels of sharding with the same values of the other techniques. Where a rank has
 * several shares, the gradients of each are kept until they are added, which depends on the level:
 * there, every level has its own splits. */
static int add_levels(struct plan_space *x, const struct settings *base, int rung[TECHNIQUES], struct error *e)
{
    struct builder first = {0};
    int rc = PL_OK;
    do {
        struct builder b = {.x = x, .base = *base};
        if (!take_rungs(&b.base, &x->f, rung)) continue;
        if (first.x && is_free(&b, CLASS_SHARES) && base->shares <= 1) b.from = &first;
        struct builder *to = first.x ? &b : &first;
        *to = b;
        rc = add_dimensions(to, e);
        if (to == &b) free_builder(to);
    } while (!rc && next_rungs(&x->f, CLASS_SHARES, rung));
    free_builder(&first);
    return rc;
}

int search_space_fill(struct plan_space *x, const struct settings *base, struct error *e)
{
    int rung[TECHNIQUES] = {0}, rc = find_counted(x, base, e);
    if (rc) return rc;
    do rc = add_levels(x, base, rung, e);
    while (!rc && next_rungs(&x->f, CLASS_STEP, rung));
    return rc;
}

/* Records what a survey says about a rough choice, and about the others with the same step. */
static void take_survey(struct plan_space *x, uint32_t choice, const struct survey *v)
{
    const struct plan_choice of = x->choices.at[choice];
    for (uint32_t i = of.step; i < x->choices.n && x->choices.at[i].step == of.step; i++) {
        struct plan_choice *c = &x->choices.at[i];
        c->rough = false;
        if (i == choice) c->update_bytes = v->update;
        if (i == choice) memcpy(c->weights, v->weights, sizeof c->weights);
        /* the order of gradients changes it a little; where weights are fetched, or on the host, it
         * is a bound */
        if (i == choice || !(c->settings.offload & (OFFLOAD_WEIGHTS | OFFLOAD_UPDATE)))
            c->update += v->total_seconds - v->step_seconds - of.update;
        c->seconds = later(v->step_seconds, v->placed_seconds) + c->update;
        c->timed = v->placed_seconds > 0;
        for (int s = 0; s < SPACE_COUNT; s++) c->bound[s] = c->lasting[s] - of.lasting[s] + v->persistent[s];
        c->bound[SPACE_DEVICE] += larger(larger(v->step, c->update_bytes), v->eval);
        c->bound[SPACE_HOST] += v->host;
    }
}

/* Returns the choice that is surveyed for a rough one: the first with the same step, if the host
 * computes its update. */
static uint32_t surveyed_for(const struct plan_space *x, uint32_t rough)
{
    const struct plan_choice *c = &x->choices.at[rough];
    return c->settings.offload & OFFLOAD_UPDATE ? c->step : rough;
}

int search_space_survey(struct plan_space *x, const uint32_t *rough, uint32_t n, const struct survey_limits *placed,
                        struct error *e)
{
    struct survey *all = mem_alloc((n + 1) * sizeof *all);
    struct survey_jobs jobs = {.placed = placed};
    for (uint32_t i = 0; i < n; i++)
        survey_jobs_add(&jobs, &x->choices.at[surveyed_for(x, rough[i])].settings, false, &all[i]);
    int rc = survey_jobs_run(&jobs, x, e);
    for (uint32_t i = 0; i < n && !rc; i++) take_survey(x, surveyed_for(x, rough[i]), &all[i]);
    for (uint32_t i = 0; i < n; i++) survey_free(&all[i]);
    vec_free(&jobs.list);
    mem_free(all);
    return rc;
}
