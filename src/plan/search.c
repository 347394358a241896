/*
 * search.c: finds the fastest settings that fit a budget.
 *
 * The choices (survey.h) do not depend on the budget. Each has predicted seconds and a bound:
 * no placement of it needs fewer bytes. For a budget, the search visits the choices in order of
 * seconds. It skips those whose bound is too large, compiles and places the others, and takes the
 * first whose arena fits. A choice needs the larger of its bound and its arena, and no budget
 * changes that. Hence a larger budget is never slower, the smallest budget is the smallest need,
 * and one byte less fits nothing. Few choices are ever compiled, and rough ones are surveyed only
 * when their turn comes. A step that may wait for bytes is placed by itself first: its seconds grow
 * by the waits, and its choices move back in the order.
 *
 * On a CPU what is offloaded fills a file. There a choice is passed over if another one is nearly
 * as fast (NEARLY), needs no more memory and has a smaller file. This too does not depend on a
 * budget.
 */
#include <math.h>
#include <omp.h>

#include "base/caller.h"
#include "plan/plan.h"
#include "graph/ops.h"
#include "plan/survey.h"

/* Sums of seconds in another order differ in their last bits; choices this close are both
 * compared. */
#define SAME_TIME 1e-9
/* A step that takes 1 % longer is nearly as fast. */
#define NEARLY 0.01
enum { SURVEYED_AT_ONCE = 8, PLACED_AT_ONCE = 8, TRIES = 3 };

int plan_space_open(struct plan_space *x, const struct source *source, const struct settings *base,
                    const struct freedom *f, const struct profile *profile, struct error *e)
{
    memset(x, 0, sizeof *x);
    x->source = source;
    x->profile = profile;
    x->threads = omp_get_max_threads();
    x->drafts = mem_alloc((size_t)x->threads * sizeof *x->drafts);
    x->surveyed = mem_alloc((size_t)x->threads * sizeof *x->surveyed);
    for (int i = 0; i < x->threads; i++) x->drafts[i].source = x->surveyed[i].source = source;
    x->f = *f;
    x->held = UINT32_MAX;
    int rc = search_space_fill(x, base, e);
    if (rc) plan_space_close(x);
    return rc;
}

/* Frees the plan that is held; the next draft takes over the memory of its graph. */
static void free_held(struct plan_space *x)
{
    if (x->held == UINT32_MAX) return;
    plan_free(&x->plan);
    graph_free(&x->drafts->graph);
    x->drafts->graph = x->graph;
    x->held = UINT32_MAX;
}

void plan_space_close(struct plan_space *x)
{
    free_held(x);
    for (int i = 0; i < x->threads; i++) {
        plan_drafts_free(&x->drafts[i]);
        plan_drafts_free(&x->surveyed[i]);
    }
    mem_free(x->drafts);
    mem_free(x->surveyed);
    vec_free(&x->choices);
}

/* Raises the seconds of all choices with a step: on a GPU they grow where lanes wait for bytes,
 * which placing the step shows. */
static void raise_seconds(struct plan_space *x, uint32_t step, double seconds, bool placed)
{
    for (uint32_t i = step; i < x->choices.n && x->choices.at[i].step == step; i++) {
        x->choices.at[i].seconds = fmax(x->choices.at[i].seconds, seconds + x->choices.at[i].update);
        x->choices.at[i].timed |= placed;
    }
}

/* Raises the seconds of a choice by the waits of its program step, which is a fraction of the work
 * of placing all programs. */
static int time_waits(struct plan_space *x, uint32_t i, double most, struct error *e)
{
    const struct plan_choice *c = &x->choices.at[i];
    struct survey v;
    if (c->timed || !survey_may_wait(&c->settings)) return PL_OK;
    int rc =
        survey_make(&v, &x->surveyed[0], &c->settings, false, &(struct survey_limits){.seconds = most}, x->profile, e);
    if (rc) return rc;
    raise_seconds(x, c->step, fmax(v.step_seconds, v.placed_seconds), v.placed_seconds > 0);
    survey_free(&v);
    return PL_OK;
}

/* Compiles choice `i` into d->graph and places it. */
static int place_choice(const struct plan_space *x, uint32_t i, struct plan_drafts *d, struct plan *p, struct error *e)
{
    const struct settings *s = &x->choices.at[i].settings;
    *p = (struct plan){.settings = *s};
    TRY(plan_draft_next(d, s, e));
    return plan_arrange(p, &d->graph, x->profile, &d->kernels, e);
}

static void record_placed(struct plan_space *x, uint32_t i, const struct plan *p)
{
    struct plan_choice *c = &x->choices.at[i];
    c->known = true;
    c->exact = p->seconds;
    if (c->settings.device.copies_overlap) raise_seconds(x, c->step, p->program_seconds[PROGRAM_STEP], true);
    for (size_t k = 0; k < COUNT(p->missing); k++) c->missing |= p->missing[k] != 0;
    memcpy(c->arena, p->placement.arena, sizeof c->arena);
}

/* Compiles and places a choice; x->plan and x->graph hold it until the next call. */
static int compile_choice(struct plan_space *x, uint32_t i, struct error *e)
{
    if (x->held == i) return PL_OK;
    TRY(caller_check(e));
    free_held(x);
    TRY(place_choice(x, i, x->drafts, &x->plan, e));
    x->graph = x->drafts->graph;
    memset(&x->drafts->graph, 0, sizeof x->drafts->graph);
    x->held = i;
    record_placed(x, i, &x->plan);
    return PL_OK;
}

/* Places choices on all threads. An error is left to a search that needs the choice. */
static void place_choices(struct plan_space *x, const uint32_t *choice, uint32_t n)
{
#pragma omp parallel for num_threads(x->threads) schedule(dynamic)
    for (uint32_t i = 0; i < n; i++) {
        struct plan_drafts *drafts = &x->drafts[omp_get_thread_num()];
        struct plan p;
        struct error e;
        if (place_choice(x, choice[i], drafts, &p, &e)) continue;
#pragma omp critical
        record_placed(x, choice[i], &p);
        plan_free(&p);
    }
}

static int ensure_placed(struct plan_space *x, uint32_t i, struct error *e)
{
    return x->choices.at[i].known ? PL_OK : compile_choice(x, i, e);
}

uint64_t plan_choice_need(const struct plan_choice *c, enum space space)
{
    return c->known && c->arena[space] > c->bound[space] ? c->arena[space] : c->bound[space];
}

/* Reports whether `a` offloads all that `b` does, and more. */
static bool offloads_more(const struct settings *a, const struct settings *b)
{
    if ((a->offload & b->offload) != b->offload) return false;
    if (a->offload != b->offload) return true;
    return b->offload_blocks && (!a->offload_blocks || a->offload_blocks > b->offload_blocks);
}

static bool fits_budget(const struct plan_choice *c, const uint64_t budget[SPACE_COUNT])
{
    for (int s = 0; s < SPACE_COUNT; s++)
        if (budget[s] && plan_choice_need(c, s) > budget[s]) return false;
    return true;
}

/* --- walks ------------------------------------------------------------------------------------ */

struct candidate {
    double seconds;
    uint64_t bound;
    uint32_t choice;
    bool rough;
};

/* The choices in ascending order of their seconds, or of their bounds of a space. */
struct walk {
    struct plan_space *x;
    enum space space;
    int (*by)(const void *, const void *);
    struct candidate *at;
    uint32_t k;
    double seconds;  /* what takes longer, or needs at least `bytes`, is not visited */
    uint64_t bytes;
    /* what takes as long as this choice and offloads more is not visited; NULL: none */
    const struct plan_choice *best;
};

static int by_seconds(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->bound != y->bound) return x->bound < y->bound ? -1 : 1;
    return x->choice < y->choice ? -1 : x->choice > y->choice;
}

static int by_bound(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->bound != y->bound) return x->bound < y->bound ? -1 : 1;
    if (x->rough != y->rough) return x->rough ? 1 : -1;
    return by_seconds(a, b);
}

/* Sorts the choices that are not visited yet. */
static void walk_sort(struct walk *w)
{
    for (uint32_t i = w->k; i < w->x->choices.n; i++) {
        const struct plan_choice *c = &w->x->choices.at[w->at[i].choice];
        w->at[i].seconds = c->seconds;
        w->at[i].bound = c->bound[w->space];
        w->at[i].rough = c->rough;
    }
    if (w->x->choices.n) qsort(w->at + w->k, w->x->choices.n - w->k, sizeof *w->at, w->by);
}

static struct walk walk_begin(struct plan_space *x, enum space space, int (*by)(const void *, const void *))
{
    struct walk w = {.x = x, .space = space, .by = by, .at = mem_alloc((x->choices.n + 1) * sizeof *w.at),
                     .seconds = INFINITY, .bytes = UINT64_MAX};
    for (uint32_t i = 0; i < x->choices.n; i++) w.at[i].choice = i;
    walk_sort(&w);
    return w;
}

static bool walk_reaches(const struct walk *w, uint32_t k)
{
    return k < w->x->choices.n && w->at[k].seconds <= w->seconds && w->at[k].bound < w->bytes;
}

/* Reports whether the walk visits a choice within the budget. */
static bool walk_takes(const struct walk *w, const struct plan_choice *c, const uint64_t budget[SPACE_COUNT])
{
    if (!fits_budget(c, budget) || c->seconds > w->seconds) return false;
    return !w->best || c->seconds < w->best->exact * (1 - SAME_TIME) ||
           (!offloads_more(&c->settings, &w->best->settings) &&
            plan_choice_need(c, SPACE_HOST) <= w->best->arena[SPACE_HOST]);
}

/* Surveys rough choices. Those that may be the answer of a search are placed too, where that shows
 * waits. */
static int survey_rough(struct plan_space *x, const uint32_t *rough, uint32_t n, const uint64_t budget[SPACE_COUNT],
                        double seconds, struct error *e)
{
    const struct survey_limits placed = {seconds, {budget[SPACE_DEVICE], budget[SPACE_HOST]}};
    return search_space_survey(x, rough, n, &placed, e);
}

/* Surveys the next rough choices within the budget, before the first one that is not rough: they
 * stay where they are in the order, or move back. Several at once share phases of their graphs. */
static int walk_survey(struct walk *w, const uint64_t budget[SPACE_COUNT], struct error *e)
{
    uint32_t rough[SURVEYED_AT_ONCE], n = 0;
    for (uint32_t i = w->k; n < SURVEYED_AT_ONCE && walk_reaches(w, i); i++) {
        const struct plan_choice *c = &w->x->choices.at[w->at[i].choice];
        if (!walk_takes(w, c, budget)) continue;
        if (!c->rough) break;
        bool listed = false; /* one of several with the same step is enough */
        for (uint32_t k = 0; k < n; k++) listed |= w->x->choices.at[rough[k]].step == c->step;
        if (!listed) rough[n++] = w->at[i].choice;
    }
    TRY(caller_check(e));
    if (w->by == by_seconds) TRY(survey_rough(w->x, rough, n, budget, w->seconds, e));
    else TRY(search_space_survey(w->x, rough, n, NULL, e));
    walk_sort(w);
    return PL_OK;
}

/* Finds the next choice within the budget, surveyed, in order of seconds also with the waits of its
 * step; PL_NOFIT: there is none. */
static int walk_next(struct walk *w, const uint64_t budget[SPACE_COUNT], uint32_t *choice, struct error *e)
{
    while (walk_reaches(w, w->k)) {
        const struct plan_choice *c = &w->x->choices.at[*choice = w->at[w->k].choice];
        const bool takes = walk_takes(w, c, budget);
        const double seconds = c->seconds;
        if (c->rough && takes) {
            TRY(walk_survey(w, budget, e));
            continue; /* another choice may be here now */
        }
        if (w->by == by_seconds && takes) TRY(time_waits(w->x, *choice, w->seconds, e));
        if (c->seconds > seconds) {
            walk_sort(w);
            continue;
        }
        w->k++;
        if (takes) return PL_OK;
    }
    return PL_NOFIT;
}

/* Places choice `i`, to which the walk just came, and with it the next ones that it is likely to
 * come to, at most `most`. */
static int walk_place(struct walk *w, const uint64_t budget[SPACE_COUNT], uint32_t i, uint32_t most, struct error *e)
{
    struct plan_space *x = w->x;
    uint32_t list[PLACED_AT_ONCE] = {i}, n = 1;
    if (x->source->serial || x->choices.at[i].known) return PL_OK;
    TRY(caller_check(e));
    if (most > (uint32_t)x->threads) most = (uint32_t)x->threads;
    for (uint32_t k = w->k; n < most && walk_reaches(w, k); k++) {
        const struct plan_choice *c = &x->choices.at[w->at[k].choice];
        if (c->known || !walk_takes(w, c, budget)) continue;
        if (c->rough || (!c->timed && survey_may_wait(&c->settings))) break;
        list[n++] = w->at[k].choice;
    }
    if (n > 1) place_choices(x, list, n);
    return PL_OK;
}

/* --- the fastest ------------------------------------------------------------------------------ */

static bool is_better(const struct plan_choice *a, const struct plan_choice *b)
{
    if (fabs(a->exact - b->exact) > SAME_TIME * b->exact) return a->exact < b->exact;
    if (a->arena[SPACE_HOST] != b->arena[SPACE_HOST]) return a->arena[SPACE_HOST] < b->arena[SPACE_HOST];
    if (a->arena[SPACE_DEVICE] != b->arena[SPACE_DEVICE]) return a->arena[SPACE_DEVICE] < b->arena[SPACE_DEVICE];
    return a < b;
}

/* Reports whether the tensors of `c` have the sizes of choice `of`, for which the device lacks a
 * kernel. */
static bool same_sizes(const struct plan_space *x, const struct plan_choice *c, uint32_t of)
{
    bool same = true;
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        if (techniques[id].class <= CLASS_ROWS) same &= technique_same(id, &c->settings, &x->choices.at[of].settings);
    return same;
}

/* Reports whether placed choice `c` is passed over for placed choice `d`. */
static bool has_smaller_file(const struct plan_choice *d, const struct plan_choice *c)
{
    return !d->missing && d->exact <= c->exact * (1 + NEARLY) &&
           plan_choice_need(d, SPACE_DEVICE) <= plan_choice_need(c, SPACE_DEVICE) &&
           plan_choice_need(d, SPACE_HOST) < plan_choice_need(c, SPACE_HOST);
}

/* Looks for a choice for which choice `i`, which is placed, is passed over; those that are placed
 * already first. */
static int find_smaller_file(struct plan_space *x, uint32_t i, bool *found, struct error *e)
{
    const struct plan_choice *c = &x->choices.at[i];
    *found = false;
    if (c->settings.device.separate_memory || !c->arena[SPACE_HOST]) return PL_OK;
    for (uint32_t k = 0; k < x->choices.n && !*found; k++)
        *found = x->choices.at[k].known && has_smaller_file(&x->choices.at[k], c);
    struct walk w = walk_begin(x, SPACE_DEVICE, by_seconds);
    w.seconds = c->exact * (1 + NEARLY) * (1 + SAME_TIME);
    const uint64_t most[SPACE_COUNT] = {plan_choice_need(c, SPACE_DEVICE), plan_choice_need(c, SPACE_HOST) - 1};
    int rc = PL_OK;
    for (uint32_t k; !*found && !(rc = walk_next(&w, most, &k, e)) && !(rc = ensure_placed(x, k, e));)
        *found = has_smaller_file(&x->choices.at[k], c);
    mem_free(w.at);
    return rc == PL_NOFIT ? PL_OK : rc;
}

/* A search for the fastest choice. */
struct fastest {
    const uint64_t *budget;
    uint32_t best, unable, last; /* UINT32_MAX: none; unable: the device cannot run it; last: the last of these */
    double seconds;              /* what takes longer is not better */
};

/* Compares the next choice of a walk with the best one so far. */
static int consider(struct plan_space *x, struct fastest *f, uint32_t i, struct error *e)
{
    const struct plan_choice *c = &x->choices.at[i];
    bool passed_over;
    int rc;
    if (f->last != UINT32_MAX && same_sizes(x, c, f->last)) return PL_OK;
    if (c->seconds > f->seconds) return PL_OK;
    if ((rc = ensure_placed(x, i, e))) return rc;
    if (!fits_budget(c, f->budget)) return PL_OK;
    if (c->missing) {
        f->last = i;
        if (f->unable == UINT32_MAX) f->unable = i;
    }
    if (c->missing || (f->best != UINT32_MAX && !is_better(c, &x->choices.at[f->best]))) return PL_OK;
    if ((rc = find_smaller_file(x, i, &passed_over, e)) || passed_over) return rc;
    f->best = i;
    f->seconds = c->exact * (1 + SAME_TIME);
    return PL_OK;
}

/* Takes the best of the choices that earlier searches placed. */
static void take_known(struct plan_space *x, struct fastest *f)
{
    for (uint32_t i = 0; i < x->choices.n; i++) {
        const struct plan_choice *c = &x->choices.at[i];
        if (!c->known || c->missing || !c->settings.device.separate_memory || !fits_budget(c, f->budget)) continue;
        if (f->best == UINT32_MAX || is_better(c, &x->choices.at[f->best])) f->best = i;
    }
    if (f->best != UINT32_MAX) f->seconds = x->choices.at[f->best].exact * (1 + SAME_TIME);
}

/* Returns the choice with the least seconds within the budget, of a way that was tried less than
 * TRIES times; UINT32_MAX: none that may be faster. Copies of weights and activations are not in
 * the seconds of rough choices. */
static uint32_t next_untried(const struct plan_space *x, const struct fastest *f, const uint8_t *tried)
{
    uint32_t next = UINT32_MAX;
    for (uint32_t i = 0; i < x->choices.n; i++) {
        const struct plan_choice *c = &x->choices.at[i];
        if (tried[c->way] >= TRIES || c->settings.offload & (OFFLOAD_WEIGHTS | OFFLOAD_ACTIVATIONS)) continue;
        if (c->seconds > (next == UINT32_MAX ? f->seconds : x->choices.at[next].seconds) || !fits_budget(c, f->budget))
            continue;
        if (next == UINT32_MAX || c->seconds < x->choices.at[next].seconds) next = i;
    }
    return next;
}

/* Tries one choice of each way first: where ranks send in program step, lanes wait for bytes, more
 * or less alike in all choices of a way. The best of them leaves few others to place. */
static int try_ways(struct plan_space *x, struct fastest *f, struct error *e)
{
    uint8_t *tried = mem_alloc(x->ways + 1);
    bool sends = false;
    int rc = PL_OK;
    for (uint32_t i = 0; i < x->choices.n; i++) {
        const struct plan_choice *c = &x->choices.at[i];
        sends |= settings_group(&c->settings) && survey_may_wait(&c->settings);
        if (c->timed) tried[c->way] = TRIES; /* in an earlier search */
    }
    for (uint32_t i; sends && !rc && (i = next_untried(x, f, tried)) != UINT32_MAX;) {
        const struct plan_choice *c = &x->choices.at[i];
        if (c->rough) rc = survey_rough(x, &i, 1, f->budget, f->seconds, e);
        const bool fits = fits_budget(c, f->budget);
        tried[c->way] = fits ? TRIES : tried[c->way] + 1;
        if (!rc && fits) rc = consider(x, f, i, e);
    }
    mem_free(tried);
    return rc;
}

/* Returns a choice that the device cannot run only if there is no other, so that it can be
 * shown. */
int plan_choose(struct plan_space *x, const uint64_t budget[SPACE_COUNT], uint32_t *choice, struct error *e)
{
    struct fastest f = {budget, UINT32_MAX, UINT32_MAX, UINT32_MAX, INFINITY};
    take_known(x, &f);
    int rc = try_ways(x, &f, e);
    struct walk w = walk_begin(x, SPACE_DEVICE, by_seconds);
    for (uint32_t i, most = 1; !rc; most = most < PLACED_AT_ONCE ? 2 * most : most) {
        w.seconds = f.seconds;
        w.best = f.best != UINT32_MAX ? &x->choices.at[f.best] : NULL;
        rc = walk_next(&w, budget, &i, e);
        if (!rc) rc = walk_place(&w, budget, i, most, e);
        if (!rc) rc = consider(x, &f, i, e);
    }
    mem_free(w.at);
    *choice = f.best != UINT32_MAX ? f.best : f.unable;
    return rc != PL_NOFIT ? rc : *choice != UINT32_MAX ? PL_OK : PL_NOFIT;
}

/* --- the smallest ---------------------------------------------------------------------------- */

/* Finds the choice with the least need of one space, among those whose other spaces are within
 * `limit`. */
static int find_least(struct plan_space *x, enum space space, const uint64_t limit[SPACE_COUNT], uint32_t *choice,
                      struct error *e)
{
    struct walk w = walk_begin(x, space, by_bound);
    uint32_t i;
    int rc;
    while (!(rc = walk_next(&w, limit, &i, e)) && !(rc = ensure_placed(x, i, e))) {
        const struct plan_choice *c = &x->choices.at[i];
        if (!fits_budget(c, limit) || plan_choice_need(c, space) >= w.bytes) continue;
        w.bytes = plan_choice_need(c, space);
        *choice = i;
    }
    mem_free(w.at);
    return rc == PL_NOFIT && w.bytes != UINT64_MAX ? PL_OK : rc;
}

int plan_smallest(struct plan_space *x, uint64_t host_budget, uint32_t *choice, struct error *e)
{
    int rc = find_least(x, SPACE_DEVICE, (uint64_t[SPACE_COUNT]){[SPACE_HOST] = host_budget}, choice, e);
    return rc == PL_NOFIT ? find_least(x, SPACE_HOST, (uint64_t[SPACE_COUNT]){0}, choice, e) : rc;
}

int plan_least_host(struct plan_space *x, uint64_t budget, uint32_t *choice, struct error *e)
{
    return find_least(x, SPACE_HOST, (uint64_t[SPACE_COUNT]){[SPACE_DEVICE] = budget}, choice, e);
}

bool plan_weights_fit(const struct plan_space *x, const uint64_t budget[SPACE_COUNT])
{
    for (uint32_t i = 0; i < x->choices.n; i++) {
        bool fits = true;
        for (int s = 0; s < SPACE_COUNT; s++) fits &= !budget[s] || x->choices.at[i].weights[s] <= budget[s];
        if (fits) return true;
    }
    return false;
}

/* --- the plan --------------------------------------------------------------------------------- */

/* Compiles, verifies and checks a choice; the caller owns plan and graph. */
static int plan_build_choice(struct plan_space *x, uint32_t choice, struct plan *p, struct graph *g, struct error *e)
{
    TRY(compile_choice(x, choice, e));
    *p = x->plan;
    *g = x->graph;
    x->held = UINT32_MAX;
    graph_verify(g, "search");
    plan_check(p, g);
    return PL_OK;
}

/* Prints the largest transients at the peak: "attention.q (1.5 GiB), ...". */
static void print_alive(const struct plan *p, const struct graph *g, struct text *out)
{
    id seen[3] = {0};
    for (int i = 0; i < (int)COUNT(seen); i++) {
        const struct life *life = p->placement.life[p->peak.program];
        char size[32], words[TENSOR_WORDS];
        for (id s = 1; s < g->storages.n; s++) {
            const struct storage *x = &g->storages.at[s];
            bool alive = life[s].used && life[s].start <= p->peak.instant && p->peak.instant <= life[s].end;
            if (!alive || x->space != SPACE_DEVICE || storage_is_persistent(x) || s == seen[0] || s == seen[1])
                continue;
            if (!seen[i] || x->bytes > g->storages.at[seen[i]].bytes) seen[i] = s;
        }
        if (!seen[i]) break;
        text_printf(out, "%s%s (%s)", i ? ", " : "", tensor_words(graph_name(g, g->storages.at[seen[i]].name), words),
                    size_print(g->storages.at[seen[i]].bytes, size));
    }
}

/* Prints "memory.host_budget is N (SIZE)". A bound of one byte, which `auto` has on a full disk,
 * leaves no room. */
static const char *print_host_budget(uint64_t budget, char out[96])
{
    char size[32];
    if (budget > 1)
        snprintf(out, 96, "memory.host_budget is %llu (%s)", (unsigned long long)budget, size_print(budget, size));
    else snprintf(out, 96, "memory.host_budget leaves no room for it");
    return out;
}

int plan_refuse(const struct plan *p, const struct graph *g, const struct freedom *f, struct error *e)
{
    char want[32], have[32], lasting[32], size[32], bound[96], offloaded[64] = "";
    const struct node *n = node_at(g, g->order[p->peak.program].nodes.at[p->peak.instant]);
    const uint64_t file = p->placement.arena[SPACE_HOST];
    bool host = f->host_budget && file > f->host_budget;
    uint64_t need = host ? file : p->smallest;
    if (host) print_host_budget(f->host_budget, bound);
    else
        snprintf(bound, sizeof bound, "the budget is %llu (%s)", (unsigned long long)f->budget,
                 size_print(f->budget, have));
    struct text alive = {0};
    print_alive(p, g, &alive);
    if (!host && file)
        snprintf(offloaded, sizeof offloaded, " and %s of %s", size_print(file, size), plan_host_name(p));
    int rc = error_set(e, PL_NOFIT,
                       "does not fit: the smallest plan needs %llu bytes (%s) of %s%s, %s; its peak is in the "
                       "%s of %s (op %s): %s persistent%s%s. Set --%s%s%llu",
                       (unsigned long long)need, size_print(need, want), host ? plan_host_name(p) : "memory", offloaded,
                       bound, phase_name(n->phase), n->scope ? graph_name(g, g->scopes.at[n->scope].name) : "the step",
                       op_table[n->op].name, size_print(p->persistent[SPACE_DEVICE], lasting), alive.n ? ", and " : "",
                       alive.n ? alive.at : "", host ? "set memory.host_budget" : "memory", host ? "=" : " ",
                       (unsigned long long)need);
    text_free(&alive);
    return rc;
}

int plan_search_in(struct plan_space *x, struct plan *p, struct graph *g, struct error *e)
{
    const uint64_t budget[SPACE_COUNT] = {x->f.budget, x->f.host_budget};
    uint32_t small = 0, choice;
    const int fit = plan_choose(x, budget, &choice, e);
    if (fit && fit != PL_NOFIT) return fit;
    if (fit && x->f.fitting) return error_set(e, fit, "nothing fits");
    const bool sized = fit || !x->f.unsized;
    if (sized) TRY(plan_smallest(x, x->f.host_budget, &small, e));
    const uint64_t smallest = sized ? plan_choice_need(&x->choices.at[small], SPACE_DEVICE) : 0;
    TRY(plan_build_choice(x, fit ? small : choice, p, g, e));
    p->smallest = smallest;
    return fit ? plan_refuse(p, g, &x->f, e) : PL_OK;
}

int plan_search(struct plan *p, struct graph *g, const struct source *source, const struct settings *base,
                const struct freedom *f, const struct profile *profile, struct error *e)
{
    struct plan_space x;
    TRY(plan_space_open(&x, source, base, f, profile, e));
    int rc = plan_search_in(&x, p, g, e);
    if (!rc && f->ablation) plan_ablation(&x, p, base);
    plan_space_close(&x);
    return rc;
}
