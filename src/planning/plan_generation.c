/*
 * plan_generation.c: the plan of a run that generates text (see run.h).
 *
 *     | weights | KV cache of each prompt | inputs |  prompt: activations of a chunk              |
 *     |         |                         |        |  next: those of one token of each prompt     |
 *
 * The KV cache of a prompt is as large as the longest text. What the planner chooses is the number
 * of prompts that are answered at once, the number of their tokens that are processed at once, and
 * whether the weights of blocks are offloaded. The choices are few, so each is compiled and placed:
 * the plan is the fastest that fits, and the smallest budget is exact.
 */
#include "planning/stages.h"

/* Chunks are at most this long: a longer one is not faster. */
enum { CHUNK_MOST = 1024, CHUNK_LEAST = 16, CHUNK_STEP = 4, CHOICES = 16 };
/* Slots of the KV caches of all prompts are counted in an int by the attention kernels. */
enum { SLOTS_MOST = INT32_MAX / 4 - 1 };

struct choice {
    struct settings settings;
    uint64_t arena[SPACE_COUNT];
    double seconds;
};
struct choices {
    VEC(struct choice) list;
};

static int64_t prompts_of(const struct run_generation *o) { return max_i64(1, o->prompts); }
static int64_t tokens_of(const struct run_generation *o) { return o->tokens ? o->tokens : o->prompt; }
/* Predicts the time of all prompts and their answers, if those that are answered at once begin and
 * end together. */
static double seconds_of(const struct plan *p, const struct run_generation *o)
{
    const int64_t chunk = p->settings.prompt_chunk, rounds = ceil_div(prompts_of(o), p->settings.prompts);
    const int64_t parts = o->apart ? prompts_of(o) : rounds,
                  runs = parts * ceil_div(ceil_div(tokens_of(o), parts), chunk);
    return (double)runs * p->program_seconds[PROGRAM_PROMPT] +
           (double)(rounds * o->answer) * p->program_seconds[PROGRAM_NEXT];
}

static int compile(struct planned *r, const struct settings *s, struct plan *p, struct graph *g, struct error *e)
{
    memset(p, 0, sizeof *p);
    r->prompt_chunk = s->prompt_chunk;
    r->prompts = s->prompts;
    int rc = plan_compile(g, &r->source, s, e);
    if (rc) return rc;
    p->settings = *s;
    if ((rc = plan_place(p, g, &r->profile, e))) graph_free(g);
    return rc;
}

static int try_choice(struct planned *r, const struct settings *s, const struct run_generation *o, struct choice *out,
                      struct error *e)
{
    struct plan p;
    struct graph g;
    TRY(compile(r, s, &p, &g, e));
    *out = (struct choice){.settings = *s, .seconds = seconds_of(&p, o)};
    memcpy(out->arena, p.placement.arena, sizeof out->arena);
    plan_free(&p);
    graph_free(&g);
    return PL_OK;
}

/* Lists the lengths of a chunk that are tried, the longest first, and returns their number. */
static int list_chunks(const struct run_generation *o, int64_t prompts, int out[CHOICES])
{
    const int64_t longest =
        o->apart ? o->prompt : max_i64(o->prompt, min_i64(tokens_of(o), prompts * o->prompt));
    int n = 0;
    if (o->chunk) out[n++] = (int)o->chunk;
    else
        for (int64_t chunk = min_i64((int64_t)align_up((uint64_t)longest, CHUNK_LEAST), CHUNK_MOST); n < CHOICES;
             chunk = max_i64(CHUNK_LEAST, chunk / CHUNK_STEP)) {
            out[n++] = (int)chunk;
            if (chunk <= CHUNK_LEAST) break;
        }
    return n;
}

/* Appends the choices with `s.prompts` prompts at once. */
static int list_choices(struct planned *r, struct settings s, const struct run_generation *o, struct choices *out,
                        struct error *e)
{
    int chunks[CHOICES], n_chunks = list_chunks(o, s.prompts, chunks), rc = PL_OK;
    const bool free = !config_technique(r->config, TECHNIQUE_offload)->chosen;
    for (int offload = 0; offload < 1 + free; offload++)
        for (int i = 0; i < n_chunks && !rc; i++) {
            struct choice c;
            s.prompt_chunk = chunks[i];
            if (offload) s.offload = OFFLOAD_WEIGHTS;
            if (!(rc = try_choice(r, &s, o, &c, e))) vec_push(&out->list, c);
        }
    return rc;
}

/* Reports whether a choice fits. Without a budget, several prompts at once must fit the memory that
 * is free; one prompt is tried in any case. */
static bool fits(const struct planned *r, const struct choice *c)
{
    const uint64_t free = c->settings.prompts > 1 ? planned_free_memory(r) : 0, budget = r->budget ? r->budget : free;
    return (!budget || c->arena[SPACE_DEVICE] <= budget) && (!r->host_budget || c->arena[SPACE_HOST] <= r->host_budget);
}

/* Reports whether a is the smaller choice: one within the host memory is smaller than one that is
 * not; otherwise device memory decides. */
static bool is_smaller(const struct choice *a, const struct choice *b, uint64_t host)
{
    const bool a_fits = !host || a->arena[SPACE_HOST] <= host, b_fits = !host || b->arena[SPACE_HOST] <= host;
    if (a_fits != b_fits) return a_fits;
    return a->arena[SPACE_DEVICE] < b->arena[SPACE_DEVICE];
}

/* Lists the choices, from most prompts at once to one. Fewer prompts than fit without offloaded
 * weights are not faster, and only one is listed besides, for the smallest budget. */
static int list_all(struct planned *r, struct settings s, const struct run_generation *o, struct choices *out,
                    struct error *e)
{
    const int64_t most = o->batch ? o->batch : min_i64(prompts_of(o), PROMPTS_MOST);
    bool enough = false;
    int rc = PL_OK;
    for (int64_t n = most; n >= 1 && !rc; n = o->batch ? 0 : n / 2) {
        const uint32_t from = out->list.n;
        if (n > 1 && (enough || n * o->cache > SLOTS_MOST)) continue;
        s.prompts = (int)n;
        rc = list_choices(r, s, o, out, e);
        for (uint32_t i = from; i < out->list.n; i++)
            enough |= !(out->list.at[i].settings.offload & OFFLOAD_WEIGHTS) && fits(r, &out->list.at[i]);
    }
    return rc;
}

int planned_search_generation(struct planned *r, struct settings s, const struct run_generation *o, struct error *e)
{
    struct choices choices = {0};
    /* the head has one row of each text; memory.micro_batch is for training */
    s.micro_batch = s.accumulation = s.head_chunks = 1;
    /* a chunk of the prompt has few images */
    if (r->model.encoder && !config_technique(r->config, TECHNIQUE_encode)->chosen) s.encode = 1;
    if (o->batch > 1 && o->batch * o->cache > SLOTS_MOST)
        return error_set(e, PL_USAGE, "%lld prompts at once, of up to %lld tokens each: expected at most %d tokens in "
                         "all", (long long)o->batch, (long long)o->cache, SLOTS_MOST);
    int rc = list_all(r, s, o, &choices, e);
    const struct choice *best = NULL, *least = choices.list.at;
    for (uint32_t i = 0; i < choices.list.n && !rc; i++) {
        const struct choice *c = &choices.list.at[i];
        if (is_smaller(c, least, r->host_budget)) least = c;
        if (fits(r, c) && (!best || c->seconds < best->seconds)) best = c;
    }
    const bool found = best != NULL;
    if (!rc) rc = compile(r, &(found ? best : least)->settings, &r->plan, &r->graph, e);
    if (!rc)
        r->has_graph = true, r->plan.smallest = least->arena[SPACE_DEVICE],
        r->plan.seconds = (found ? best : least)->seconds;
    vec_free(&choices.list);
    const struct freedom f = {.budget = r->budget, .host_budget = r->host_budget};
    return rc || found ? rc : plan_refuse(&r->plan, &r->graph, &f, e);
}

/* --- answers of a run that trains ------------------------------------------------------------- */

/* Replaces the plan by one of the same settings with another number of prompts; what a search found
 * beside it stays. */
static void replace(struct planned *r, struct plan *p, struct graph *g)
{
    const struct plan old = r->plan;
    plan_free(&r->plan);
    graph_free(&r->graph);
    r->plan = old;
    r->plan.settings = p->settings;
    r->plan.placement = p->placement;
    r->plan.peak = p->peak;
    memcpy(r->plan.persistent, p->persistent, sizeof p->persistent);
    memcpy(r->plan.program_seconds, p->program_seconds, sizeof p->program_seconds);
    r->graph = *g;
}

int planned_search_answers(struct planned *r, int64_t most, struct error *e)
{
    const uint64_t room = r->budget ? r->budget : plan_arena(&r->plan) + plan_arena(&r->plan) / 100;
    struct settings s = r->plan.settings;
    for (int64_t n = most; n > s.prompts; n /= 2) {
        struct plan p;
        struct graph g;
        s.prompts = (int)n;
        if (compile(r, &s, &p, &g, e)) return e->code;
        if (plan_arena(&p) <= room && p.placement.arena[SPACE_HOST] <= r->plan.placement.arena[SPACE_HOST]) {
            replace(r, &p, &g);
            return PL_OK;
        }
        plan_free(&p);
        graph_free(&g);
        s.prompts = r->plan.settings.prompts;
    }
    r->prompts = s.prompts;
    return PL_OK;
}
