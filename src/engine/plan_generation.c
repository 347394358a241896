/*
 * plan_generation.c: the plan of a run that generates text (see run.h).
 *
 *     | weights | KV cache | inputs |  prompt: activations of a chunk     |
 *     |         |          |        |  next token: those of one token     |
 *
 * The KV cache is as large as the longest text. What the planner chooses is the number of tokens of the
 * prompt that are processed at once, and whether the weights of blocks are offloaded. The choices are few,
 * so each is compiled and placed: the plan is the fastest that fits, and the smallest budget is exact.
 */
#include <string.h>

#include "engine/run.h"

/* Chunks are at most this long: a longer one is not faster. */
enum { CHUNK_MOST = 1024, CHUNK_LEAST = 16, CHUNK_STEP = 4, CHOICES = 16 };

struct choice {
    struct settings settings;
    uint64_t arena[SPACE_COUNT];
    double seconds;
};

/* The time of a whole prompt and its answer. */
static double seconds_of(const struct plan *p, const struct run_generation *o)
{
    const int64_t chunk = p->settings.prompt_chunk;
    return (double)((o->prompt + chunk - 1) / chunk) * p->program_seconds[PROGRAM_PROMPT] + (double)o->answer * p->program_seconds[PROGRAM_NEXT];
}

static int compile(struct run *r, const struct settings *s, const struct run_generation *o, struct plan *p, struct graph *g, struct error *e)
{
    memset(p, 0, sizeof *p);
    r->prompt_chunk = s->prompt_chunk;
    int rc = plan_compile(g, &r->source, s, e);
    if (rc) return rc;
    p->settings = *s;
    if ((rc = plan_place(p, g, &r->device.profile, e))) graph_free(g);
    else p->seconds = seconds_of(p, o);
    return rc;
}

static int try_choice(struct run *r, const struct settings *s, const struct run_generation *o, struct choice *out, struct error *e)
{
    struct plan p;
    struct graph g;
    int rc = compile(r, s, o, &p, &g, e);
    if (rc) return rc;
    *out = (struct choice){.settings = *s, .seconds = p.seconds};
    memcpy(out->arena, p.placement.arena, sizeof out->arena);
    plan_free(&p);
    graph_free(&g);
    return PL_OK;
}

/* The lengths of a chunk that are tried, the longest first. */
static int list_chunks(const struct run_generation *o, int out[CHOICES])
{
    int n = 0;
    if (o->chunk) out[n++] = (int)o->chunk;
    else
        for (int64_t chunk = min_i64((int64_t)align_up((uint64_t)o->prompt, CHUNK_LEAST), CHUNK_MOST); n < CHOICES; chunk = max_i64(CHUNK_LEAST, chunk / CHUNK_STEP)) {
            out[n++] = (int)chunk;
            if (chunk <= CHUNK_LEAST) break;
        }
    return n;
}

static int list_choices(struct run *r, struct settings s, const struct run_generation *o, struct choice out[2 * CHOICES], int *n, struct error *e)
{
    int chunks[CHOICES], n_chunks = list_chunks(o, chunks), rc = PL_OK;
    const bool free = !config_technique(r->config, TECHNIQUE_offload)->chosen;
    for (int offload = 0; offload < 1 + free; offload++)
        for (int i = 0; i < n_chunks && !rc; i++) {
            s.prompt_chunk = chunks[i];
            if (offload) s.offload = OFFLOAD_WEIGHTS;
            rc = try_choice(r, &s, o, &out[(*n)++], e);
        }
    return rc;
}

static bool fits(const struct choice *c, uint64_t budget, uint64_t host)
{
    return (!budget || c->arena[SPACE_DEVICE] <= budget) && (!host || c->arena[SPACE_HOST] <= host);
}

/* The smaller one; of two without a difference in what matters most, the one that is smaller in the rest. */
static bool is_smaller(const struct choice *a, const struct choice *b, uint64_t host)
{
    if (fits(a, 0, host) != fits(b, 0, host)) return fits(a, 0, host);
    return a->arena[SPACE_DEVICE] < b->arena[SPACE_DEVICE];
}

int run_plan_generation(struct run *r, struct settings s, const struct run_generation *o, struct error *e)
{
    struct choice choices[2 * CHOICES];
    const struct choice *best = NULL, *least = choices;
    int n = 0;
    s.micro_batch = s.accumulation = s.head_chunks = 1; /* one text, and the head has one row of it; memory.micro_batch is for training */
    s.prompt_chunk = 1;
    if (r->model.images && !config_technique(r->config, TECHNIQUE_encode)->chosen) s.encode = 1; /* a chunk of the prompt has few images */
    int rc = list_choices(r, s, o, choices, &n, e);
    if (rc) return rc;
    for (int i = 0; i < n; i++) {
        const struct choice *c = &choices[i];
        if (is_smaller(c, least, r->host_budget)) least = c;
        if (fits(c, r->budget, r->host_budget) && (!best || c->seconds < best->seconds)) best = c;
    }
    if ((rc = compile(r, &(best ? best : least)->settings, o, &r->plan, &r->graph, e))) return rc;
    r->has_graph = true;
    r->plan.smallest = least->arena[SPACE_DEVICE];
    const struct freedom f = {.budget = r->budget, .host_budget = r->host_budget};
    return best ? PL_OK : plan_refuse(&r->plan, &r->graph, &f, e);
}
