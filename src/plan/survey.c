/*
 * survey.c: see survey.h.
 */
#include "plan/survey.h"

#include <math.h>
#include <omp.h>

#include "graph/ops.h"
#include "passes/techniques/recompute.h"

/* Counts the blocks and gives each a number by its scope, from 1 in the order of the forward;
 * returns their count. */
static uint32_t number_blocks(const struct graph *g, uint32_t *number)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        id block = x->phase == PHASE_FORWARD ? graph_block_of(g, x->scope) : 0;
        if (block && !number[block]) number[block] = ++n;
    }
    return n;
}

/* The step program, split by block. */
struct split {
    const struct graph *g;
    const struct plan *p;
    uint32_t n;              /* instants */
    uint32_t *owner;         /* by instant: the block's number; 0: none */
    uint32_t *opens, *closes; /* by block number: the instants between which the block is open; closes 0: never */
};

/* Finds the block that owns each instant, and where blocks open and close. The weights of a block
 * are gathered before the block that runs before it: that block owns the instant. */
static void find_brackets(struct split *a, const uint32_t *number)
{
    const struct graph *g = a->g;
    for (uint32_t k = a->n; k-- > 0;) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        a->owner[k] = x->op == OP_ALL_GATHER ? a->owner[k + 1] : number[graph_block_of(g, x->scope)];
    }
    for (uint32_t k = 0; k < a->n; k++) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        const uint32_t b = a->owner[k];
        if (!b || x->op == OP_ALL_GATHER) continue;
        if (x->phase != PHASE_FORWARD && !a->closes[b]) a->closes[b] = k;
        if (!a->closes[b]) a->opens[b] = k;
    }
}

/* Adds an instant to the moment with the same owner and the same open blocks; there are few
 * moments. */
static void add_instant(struct survey *v, uint32_t owner, uint64_t signature, uint32_t k, uint64_t bytes,
                        uint64_t handed)
{
    uint32_t i = v->moments;
    while (i > 0 && !(v->moment[i - 1].owner == owner && v->moment[i - 1].signature == signature)) i--;
    if (!i) {
        v->moment = mem_resize(v->moment, (v->moments + 1) * sizeof *v->moment);
        v->moment[v->moments++] =
            (struct moment){owner, signature, bytes, k, handed, mem_alloc((v->blocks + 1) * sizeof(uint64_t))};
    } else if (bytes > v->moment[i - 1].bytes) {
        v->moment[i - 1].bytes = bytes;
        v->moment[i - 1].instant = k;
        v->moment[i - 1].handed = handed;
    }
}

static void find_moments(struct survey *v, const struct split *a)
{
    uint64_t *mark = mem_alloc((a->n + 2) * sizeof *mark), signature = 0;
    uint64_t *alive = plan_alive(a->p, a->g, PROGRAM_STEP, true), *lean = plan_alive(a->p, a->g, PROGRAM_STEP, false);
    for (uint32_t b = 1; b <= v->blocks; b++) {
        if (!a->closes[b]) continue;
        uint64_t h = hash_bytes(&b, sizeof b, 1);
        mark[a->opens[b] + 1] += h;
        mark[a->closes[b]] -= h;
    }
    for (uint32_t k = 0; k < a->n; k++)
        add_instant(v, a->owner[k], signature += mark[k], k, alive[k], alive[k] - lean[k]);
    mem_free(mark);
    mem_free(alive);
    mem_free(lean);
}

/* Returns the block for whose backward a storage is kept; 0: none. */
static uint32_t kept_for(const struct split *a, id s, uint32_t end)
{
    const struct graph *g = a->g;
    if (g->storages.at[s].handed) return 0;
    return node_at(g, g->order[PROGRAM_STEP].nodes.at[end])->phase == PHASE_FORWARD ? 0 : a->owner[end];
}

static void attribute_storages(struct survey *v, const struct split *a)
{
    const struct life *life = a->p->placement.life[PROGRAM_STEP];
    for (id s = 1; s < a->g->storages.n; s++) {
        const struct storage *x = &a->g->storages.at[s];
        if (!life[s].used || storage_is_persistent(x) || x->space != SPACE_DEVICE) continue;
        uint32_t b = kept_for(a, s, life[s].end);
        uint64_t bytes = align_up(x->bytes, PLAN_ALIGN);
        if (b && b != a->owner[life[s].start] && bytes > v->shared) v->shared = bytes;
        for (uint32_t i = 0; i < v->moments && b; i++) {
            struct moment *m = &v->moment[i];
            if (life[s].start <= m->instant && m->instant <= life[s].end && b != m->owner) m->kept[b] += bytes;
        }
    }
    for (uint32_t i = 0; i < v->moments; i++) {
        struct moment *m = &v->moment[i];
        m->kept[0] = m->bytes;
        for (uint32_t b = 1; b <= v->blocks; b++) m->kept[0] -= m->kept[b];
    }
}

static void add_seconds(struct survey *v, const struct split *a, const double *seconds, bool cuda)
{
    const struct graph *g = a->g;
    for (uint32_t k = 0; k < a->n; k++) {
        const id n = g->order[PROGRAM_STEP].nodes.at[k];
        v->block[a->owner[k]].seconds[cuda ? node_at(g, n)->lane : LANE_COMPUTE] += seconds[n];
    }
}

/* Adds up the weights of each block: those that nodes of the block read and no other. */
static void add_block_weights(struct survey *v, const struct split *a, const uint32_t *number)
{
    enum { SEVERAL = UINT32_MAX - 1, OUTSIDE };
    const struct graph *g = a->g;
    uint32_t *of = mem_alloc(g->storages.n * sizeof *of);
    for (uint32_t k = 0; k < a->n; k++) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        const uint32_t block = number[graph_block_of(g, x->scope)], b = block ? block : OUTSIDE;
        for (int i = 0; i < x->nin + x->nout; i++) {
            const id t = i < x->nin ? x->in[i] : x->out[i - x->nin], s = t ? tensor_at(g, t)->storage : 0;
            if (!s || g->storages.at[s].kind != KIND_PARAM || x->phase == PHASE_UPDATE) continue;
            of[s] = !of[s] || of[s] == b ? b : of[s] == OUTSIDE || b == OUTSIDE ? OUTSIDE : SEVERAL;
        }
    }
    for (id s = 1; s < g->storages.n; s++) {
        const uint64_t bytes = align_up(g->storages.at[s].bytes, PLAN_ALIGN);
        if (of[s] == SEVERAL) v->block[0].weights += bytes;
        else if (of[s] && of[s] != OUTSIDE) v->block[of[s]].weights += bytes;
    }
    mem_free(of);
}

static void survey_step(struct survey *v, const struct plan *p, const struct graph *g, const double *seconds, bool cuda)
{
    uint32_t *number = mem_alloc(g->scopes.n * sizeof *number);
    v->blocks = number_blocks(g, number);
    v->block = mem_alloc((v->blocks + 1) * sizeof *v->block);
    struct split a = {.g = g, .p = p, .n = g->order[PROGRAM_STEP].nodes.n};
    a.owner = mem_alloc((a.n + 1) * sizeof *a.owner);
    a.opens = mem_alloc((v->blocks + 1) * sizeof *a.opens);
    a.closes = mem_alloc((v->blocks + 1) * sizeof *a.closes);
    find_brackets(&a, number);
    find_moments(v, &a);
    attribute_storages(v, &a);
    add_seconds(v, &a, seconds, cuda);
    add_block_weights(v, &a, number);
    mem_free(a.owner);
    mem_free(a.opens);
    mem_free(a.closes);
    mem_free(number);
}

static uint64_t peak_bytes(const struct plan *p, const struct graph *g, enum program program)
{
    uint64_t *alive = plan_alive(p, g, program, true), most = 0;
    for (uint32_t k = 0; k < g->order[program].nodes.n; k++)
        if (alive[k] > most) most = alive[k];
    mem_free(alive);
    return most;
}

/* Returns the most bytes of transients in host memory at an instant of program step. */
static uint64_t host_bytes(const struct plan *p, const struct graph *g)
{
    const struct life *life = p->placement.life[PROGRAM_STEP];
    int64_t *change = mem_alloc((g->order[PROGRAM_STEP].nodes.n + 2) * sizeof *change), live = 0, most = 0;
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (!life[s].used || storage_is_persistent(x) || x->space != SPACE_HOST) continue;
        change[life[s].start] += (int64_t)align_up(x->bytes, PLAN_ALIGN);
        change[life[s].end + 1] -= (int64_t)align_up(x->bytes, PLAN_ALIGN);
    }
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++)
        if ((live += change[k]) > most) most = live;
    mem_free(change);
    return (uint64_t)most;
}

/* Returns the bytes of a node's operands and workspace. `seen`, by storage, has the last number for
 * which a storage was counted. */
static uint64_t accessed_bytes(const struct plan *p, const struct graph *g, id node, uint32_t *seen, uint32_t number)
{
    const struct node *x = node_at(g, node);
    uint64_t bytes = align_up(p->placement.binding[node].work_bytes, PLAN_ALIGN);
    for (int i = 0; i < x->nin + x->nout; i++) {
        const id s = tensor_at(g, i < x->nin ? x->in[i] : x->out[i - x->nin])->storage;
        const struct storage *y = &g->storages.at[s];
        if (seen[s] != number && !y->handed && !storage_is_persistent(y) && y->space == SPACE_DEVICE)
            bytes += align_up(y->bytes, PLAN_ALIGN);
        seen[s] = number;
    }
    return bytes;
}

static void keep_most(uint64_t *most, uint64_t bytes)
{
    if (bytes > *most) *most = bytes;
}

static void find_peaks(struct survey *v, const struct plan *p, const struct graph *g)
{
    uint64_t *lean = plan_alive(p, g, PROGRAM_STEP, false), *full = plan_alive(p, g, PROGRAM_STEP, true);
    uint32_t *seen = mem_alloc(g->storages.n * sizeof *seen);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const uint64_t accessed = accessed_bytes(p, g, g->order[PROGRAM_STEP].nodes.at[k], seen, k + 1),
                       gradients = full[k] - lean[k];
        keep_most(&v->all[0], lean[k]);
        keep_most(&v->all[1], full[k]);
        keep_most(&v->accessed[0], accessed);
        keep_most(&v->accessed[1], accessed + gradients);
    }
    mem_free(seen);
    mem_free(lean);
    mem_free(full);
}

static bool is_weight(const struct storage *x)
{
    return x->kind == KIND_PARAM || x->kind == KIND_MASTER || x->kind == KIND_STATE;
}

static void add_weights(struct survey *v, const struct plan *p, const struct graph *g)
{
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (is_weight(x) && storage_is_persistent(x) && plan_reached(p, g, s))
            v->weights[x->space] += align_up(x->bytes, PLAN_ALIGN);
    }
}

/* Reports whether the program is one of a step after the one that trains. */
static bool is_update(enum program p) { return program_steps(p) && !program_is(p, PROGRAM_TRAINS); }

/* Returns the time of a step and an evaluation; the time of the update may be known from an earlier
 * draft. */
static double total_seconds(const struct plan *p, const struct known_program *update)
{
    double sum = 0;
    for (enum program k = 0; k < PROGRAM_COUNT; k++)
        if (program_steps(k) || program_is(k, PROGRAM_BESIDE))
            sum += update && is_update(k) ? update->takes : p->program_seconds[k];
    return sum;
}

/* Returns the figures of the programs of a draft that `is` selects, for drafts without them. */
static struct known_program know(const struct graph *g, const struct plan *p, bool (*is)(enum program p),
                                 const double *seconds)
{
    struct known_program k = {0};
    struct graph others = *g;
    for (enum program program = 0; program < PROGRAM_COUNT; program++) {
        if (!is(program)) continue;
        const uint64_t most = peak_bytes(p, g, program);
        if (most > k.most) k.most = most;
        k.takes += p->program_seconds[program];
        for (uint32_t i = 0; i < g->order[program].nodes.n; i++) {
            const id n = g->order[program].nodes.at[i];
            k.seconds += seconds[n];
            k.busy[node_at(g, n)->lane] += seconds[n];
        }
        others.order[program].nodes.n = 0;
    }
    bool *all = plan_mark_reached(g), *rest = plan_mark_reached(&others);
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (!all[s] || rest[s] || !storage_is_persistent(x)) continue;
        k.persistent[x->space] += align_up(x->bytes, PLAN_ALIGN);
        if (is_weight(x)) k.weights[x->space] += align_up(x->bytes, PLAN_ALIGN);
    }
    mem_free(all);
    mem_free(rest);
    return k;
}

/* Keeps the figures of program update and of evaluation for the drafts that follow. */
static void keep_programs(struct plan_drafts *d, const struct plan *p, const struct settings *s, const double *seconds)
{
    if (!d->update && !s->fused_step) {
        struct known_program k = know(&d->graph, p, is_update, seconds);
        k.of = plan_update_of(s);
        k.trained = d->trained;
        vec_push(&d->updates, k);
        d->update = &d->updates.at[d->updates.n - 1];
    }
    if (!d->eval) {
        struct known_program k = know(&d->graph, p, program_evaluates, seconds);
        k.of = plan_eval_of(s);
        k.trained = s->offload & OFFLOAD_WEIGHTS ? d->trained : 0;
        vec_push(&d->evals, k);
        d->eval = &d->evals.at[d->evals.n - 1];
    }
}

/* Adds what a program is known to need that the draft was compiled without. */
static void add_known(struct survey *v, const struct known_program *k)
{
    for (int s = 0; s < SPACE_COUNT && k; s++) {
        v->persistent[s] += k->persistent[s];
        v->weights[s] += k->weights[s];
    }
}

bool survey_may_wait(const struct settings *s)
{
    const bool sends = settings_group(s) && s->shard != SHARD_OPTIMIZER;
    return s->device.copies_overlap && (sends || s->offload & (OFFLOAD_WEIGHTS | OFFLOAD_ACTIVATIONS));
}

static bool is_within(const struct survey *v, const struct survey_limits *most)
{
    bool within = v->total_seconds <= most->seconds;
    for (int s = 0; s < SPACE_COUNT; s++) {
        uint64_t bytes = s == SPACE_HOST ? v->host : 0;
        if (s == SPACE_DEVICE) {
            keep_most(&bytes, v->step);
            keep_most(&bytes, v->update);
            keep_most(&bytes, v->eval);
        }
        within &= !most->bytes[s] || v->persistent[s] + bytes <= most->bytes[s];
    }
    return within;
}

int survey_make(struct survey *v, struct plan_drafts *d, const struct settings *s, bool blocks,
                const struct survey_limits *placed, const struct profile *profile, struct error *e)
{
    struct plan p = {.settings = *s};
    memset(v, 0, sizeof *v);
    d->brief = true;
    TRY(plan_draft_next(d, s, e));
    const struct graph *g = &d->graph;
    double *seconds = mem_alloc(g->nodes.n * sizeof *seconds);
    int rc = plan_bind(&p, g, profile, &d->kernels, seconds, e);
    if (!rc) {
        memcpy(v->persistent, p.persistent, sizeof v->persistent);
        add_weights(v, &p, g);
        add_known(v, d->update);
        add_known(v, d->eval);
        keep_programs(d, &p, s, seconds);
        if (blocks) survey_step(v, &p, g, seconds, profile->kind == DEVICE_CUDA);
        if (blocks) find_peaks(v, &p, g);
        v->step = blocks ? v->all[1] : peak_bytes(&p, g, PROGRAM_STEP);
        if (s->offload & (OFFLOAD_ACTIVATIONS | OFFLOAD_UPDATE)) v->host = host_bytes(&p, g);
        v->update = d->update ? d->update->most : 0;
        v->eval = d->eval->most;
        if (d->update) {
            v->update_seconds = profile->kind == DEVICE_CUDA ? d->update->takes : d->update->seconds;
            memcpy(v->update_busy, d->update->busy, sizeof v->update_busy);
        }
        v->step_seconds = p.program_seconds[PROGRAM_STEP];
        v->total_seconds = total_seconds(&p, d->update);
        if (placed && survey_may_wait(s) && is_within(v, placed)) v->placed_seconds = plan_time_step(&p, g, seconds);
        plan_free(&p);
    }
    mem_free(seconds);
    return rc;
}

static void survey_copy(struct survey *to, const struct survey *from)
{
    *to = *from;
    to->block = from->block ? mem_copy(from->block, (from->blocks + 1) * sizeof *from->block) : NULL;
    to->moment = from->moment ? mem_copy(from->moment, from->moments * sizeof *from->moment) : NULL;
    for (uint32_t i = 0; i < from->moments; i++)
        to->moment[i].kept = mem_copy(from->moment[i].kept, (from->blocks + 1) * sizeof *from->moment[i].kept);
}

void survey_free(struct survey *v)
{
    for (uint32_t i = 0; i < v->moments; i++) mem_free(v->moment[i].kept);
    mem_free(v->moment);
    mem_free(v->block);
    memset(v, 0, sizeof *v);
}

bool *survey_recomputed(const struct graph *g, const struct settings *s, uint32_t blocks)
{
    bool *recomputed = mem_alloc(blocks + 1);
    bool any = false;
    uint32_t *number = mem_alloc(g->scopes.n * sizeof *number);
    struct units u;
    number_blocks(g, number);
    units_find(&u, g, s);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        id n = g->order[PROGRAM_STEP].nodes.at[k];
        uint32_t b = number[graph_block_of(g, node_at(g, n)->scope)];
        if (b && node_at(g, n)->phase == PHASE_FORWARD && u.of[n]) any = recomputed[b] = true;
    }
    recomputed[0] = any;
    units_free(&u);
    mem_free(number);
    return recomputed;
}

/* --- many surveys ---------------------------------------------------------------------------- */

void survey_jobs_add(struct survey_jobs *jobs, const struct settings *s, bool blocks, struct survey *to)
{
    vec_push(&jobs->list, ((struct survey_job){.s = *s, .to = to, .blocks = blocks, .number = jobs->list.n}));
}

/* Jobs whose graphs share most phases follow each other. */
static int by_sharing(const void *a, const void *b)
{
    const struct survey_job *x = a, *y = b;
    const int order = settings_order(&x->s, &y->s, PIPELINE_PHASES - 1);
    return order ? order : x->number < y->number ? -1 : x->number > y->number;
}

/* Reports whether the survey of `a` serves for `b`: more chunks than the head has rows are as many
 * as it has rows. */
static bool is_same_graph(const struct survey_job *a, const struct survey_job *b)
{
    struct settings s = a->s;
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        if (techniques[id].class == CLASS_CHUNKS) technique_copy(id, &s, &b->s);
    return !memcmp(a->rows, b->rows, sizeof a->rows) && (a->blocks || !b->blocks) && !memcmp(&s, &b->s, sizeof s);
}

/* Surveys job `i`; one of the same graph among those from `first` on is copied. */
static int run_job(const struct plan_space *x, struct survey_jobs *jobs, uint32_t first, uint32_t i,
                   struct plan_drafts *drafts, struct error *e)
{
    struct survey_job *job = &jobs->list.at[i];
    const struct survey_job *before = i > first ? job - 1 : NULL;
    int rc = PL_OK;
    if (before && before->done && !settings_order(&before->s, &job->s, PIPELINE_BACKWARD))
        memcpy(job->rows, before->rows, sizeof job->rows);
    else rc = plan_draft_chunk_rows(drafts, &job->s, job->rows, e);
    for (uint32_t k = i; k-- > first && !rc && !job->done;)
        if (jobs->list.at[k].done && is_same_graph(&jobs->list.at[k], job)) {
            survey_copy(job->to, jobs->list.at[k].to);
            job->done = true;
        }
    if (!rc && !job->done) {
        drafts->next = i + 1 < jobs->list.n ? &job[1].s : NULL;
        rc = survey_make(job->to, drafts, &job->s, job->blocks, jobs->placed, x->profile, e);
    }
    if (!rc) memcpy(job->to->rows, job->rows, sizeof job->rows);
    job->done = !rc;
    return rc;
}

/* Runs the jobs on threads. Each thread has a run of jobs, and drafts of its own, which later jobs
 * go on with. */
int survey_jobs_run(struct survey_jobs *jobs, struct plan_space *x, struct error *e)
{
    int failed = PL_OK;
    uint32_t first = UINT32_MAX; /* the same message in any order of threads */
    if (!jobs->list.n) return PL_OK;
    qsort(jobs->list.at, jobs->list.n, sizeof *jobs->list.at, by_sharing);
#pragma omp parallel num_threads(x->threads) if (!x->source->serial)
    {
        struct plan_drafts *drafts = &x->surveyed[omp_get_thread_num()];
        uint32_t own = UINT32_MAX; /* the first job of this thread */
#pragma omp for schedule(static)
        for (uint32_t i = 0; i < jobs->list.n; i++) {
            struct error mine;
            const struct survey_job *job = &jobs->list.at[i];
            if (own > i) own = i;
            int rc = run_job(x, jobs, own, i, drafts, &mine);
            if (rc)
#pragma omp critical
                if (job->number < first) {
                    first = job->number;
                    failed = rc;
                    *e = mine;
                }
        }
    }
    return failed;
}
