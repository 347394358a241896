/*
 * record.c: a tape becomes captured graphs, once, and running it is launching them.
 *
 *     program without loops      one graph
 *     a loop at the top level    a graph before it, one per iteration, one after:
 *                                the host may ask for fewer iterations than planned
 *     a loop inside a loop       unrolled into its parent's graph
 *
 *     lane compute   --o-----o-----o--          the capture begins and ends here;
 *                    fork \ wait ^  \ wait ^ join   other lanes are forked from it
 *     lane copy            --o---+---- o ---    and joined to it
 *
 * A lane is a stream, a wait is an event; both dissolve into the graph's edges.
 * Small launches of one kernel that follow each other become one (batch.c).
 * An iteration ends with a join of all lanes, as the tape's wait lists assume, and
 * graphs follow each other on one stream; so a wait for an entry of an earlier
 * graph is always met and is not recorded.
 *
 * Invariant: after cuda_record nothing is created or allocated any more; a launch
 * reads the same addresses at every step. The diagnostic that launches node by node
 * (nodes.c) is the exception. While it records the arena is a place to try products in (matmul_autotune.c);
 * then it is zero again, as it was allocated.
 */
#include <string.h>

#include "cuda/matmul_autotune.h"

/* One captured graph: launched always, or as one iteration of a loop. */
struct segment {
    cudaGraphExec_t graph;
    id loop;
    uint32_t iteration;
};

struct recording {
    VEC(struct segment) segments[PROGRAM_COUNT];
};

/* While one program is being captured. */
struct capture {
    struct cuda_state *s;
    struct tape *t;
    enum program program;
    struct recording *into;
    cudaEvent_t *done;      /* by entry: recorded behind it; NULL: nobody waits for it */
    uint32_t *seen;         /* by entry: the piece in which `done` was last recorded */
    cudaEvent_t meet[LANE_COUNT];
    uint32_t segment;         /* number of the one being captured, from 1 */
    id loop;                /* of that piece, with its iteration */
    uint32_t iteration, launches;
    struct batch batch;     /* entries first, first + 1 ... wait to be launched together */
    uint32_t first;
    bool open;
};

/* --- pieces ------------------------------------------------------------------------ */

/* The other lanes follow what the compute lane has so far. */
static int fork_lanes(struct capture *c, struct error *e)
{
    TRY_CUDA(cudaEventRecord(c->meet[LANE_COMPUTE], c->s->lane[LANE_COMPUTE]));
    for (int lane = LANE_COMPUTE + 1; lane < LANE_COUNT; lane++)
        TRY_CUDA(cudaStreamWaitEvent(c->s->lane[lane], c->meet[LANE_COMPUTE], 0));
    return PL_OK;
}

/* The compute lane follows what all the others have so far. */
static int gather_lanes(struct capture *c, struct error *e)
{
    for (int lane = LANE_COMPUTE + 1; lane < LANE_COUNT; lane++) {
        TRY_CUDA(cudaEventRecord(c->meet[lane], c->s->lane[lane]));
        TRY_CUDA(cudaStreamWaitEvent(c->s->lane[LANE_COMPUTE], c->meet[lane], 0));
    }
    return PL_OK;
}

/* Relaxed: the driver may load a library's kernel at its first launch, which is
 * here, and the capture's other modes would forbid the memory that takes. */
static int begin_segment(struct capture *c, id loop, uint32_t iteration, struct error *e)
{
    TRY_CUDA(cudaStreamBeginCapture(c->s->lane[LANE_COMPUTE], cudaStreamCaptureModeRelaxed));
    c->open = true;
    c->segment++;
    c->loop = loop;
    c->iteration = iteration;
    c->launches = 0;
    return fork_lanes(c, e);
}

static int instantiate(struct capture *c, cudaGraph_t graph, struct error *e)
{
    struct segment p = {.loop = c->loop, .iteration = c->iteration};
    size_t nodes = 0;
    TRY_CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
    TRY_CUDA(cudaGraphInstantiate(&p.graph, graph, 0));
    vec_push(&c->into->segments[c->program], p);
    TRY_CUDA(cudaGraphUpload(p.graph, c->s->lane[LANE_COMPUTE]));
    c->s->captures++;
    c->s->nodes += nodes;
    return PL_OK;
}

/* A piece without launches leaves nothing. */
static int end_segment(struct capture *c, struct error *e)
{
    TRY(gather_lanes(c, e));
    cudaGraph_t graph = NULL;
    c->open = false;
    TRY_CUDA(cudaStreamEndCapture(c->s->lane[LANE_COMPUTE], &graph));
    int rc = c->launches ? instantiate(c, graph, e) : PL_OK;
    cudaGraphDestroy(graph);
    return rc;
}

/* --- entries ------------------------------------------------------------------------ */

/* The launch with the addresses of the iteration being captured. */
static struct launch launch_now(const struct capture *c, const struct entry *entry)
{
    struct launch l = entry->launch;
    l.stream = c->s->lane[entry->lane];
    tape_advance(c->t, entry, &l);
    return l;
}

int cuda_name_entry(const struct tape *t, enum program p, const struct entry *entry, struct error *e)
{
    const struct node *n = node_at(t->graph, entry->node);
    return error_prepend(e, "%s: node %u %s in '%s' (%s)", program_name(p), entry->node, op_table[n->op].name,
                         graph_name(t->graph, t->graph->scopes.at[n->scope].name), entry->kernel->name);
}

static int wait_for_others(struct capture *c, const struct entry *entry, struct error *e)
{
    for (int i = 0; i < entry->nwait; i++)
        if (c->seen[entry->wait[i]] == c->segment)
            TRY_CUDA(cudaStreamWaitEvent(c->s->lane[entry->lane], c->done[entry->wait[i]], 0));
    return PL_OK;
}

/* Entry k is on its stream: whoever waits for it may. */
static int mark_done(struct capture *c, uint32_t k, struct error *e)
{
    c->launches++;
    if (!c->done[k]) return PL_OK;
    TRY_CUDA(cudaEventRecord(c->done[k], c->s->lane[c->t->program[c->program].at[k].lane]));
    c->seen[k] = c->segment;
    return PL_OK;
}

/* What waits to be launched together is launched. */
static int flush_batch(struct capture *c, struct error *e)
{
    const uint32_t n = c->batch.launches.n;
    uint32_t at = 0;
    if (batch_flush(&c->batch, &at, e))
        return cuda_name_entry(c->t, c->program, &c->t->program[c->program].at[c->first + at], e);
    for (uint32_t i = 0; i < n; i++) TRY(mark_done(c, c->first + i, e));
    return PL_OK;
}

/* One that waits for another lane does not make those before it wait. */
static int capture_entry(struct capture *c, uint32_t k, struct error *e)
{
    const struct entry *entry = &c->t->program[c->program].at[k];
    const struct cuda_kernel *kernel = cuda_kernel_named(entry->kernel->name);
    const struct launch l = launch_now(c, entry);
    if (entry->nwait || !batch_joins(&c->batch, kernel, &l)) TRY(flush_batch(c, e));
    TRY(wait_for_others(c, entry, e));
    if (!c->batch.launches.n) c->first = k;
    batch_add(&c->batch, kernel, &l);
    return kernel->batch ? PL_OK : flush_batch(c, e);
}

/* Index of the entry that closes the loop opened at k. */
static uint32_t find_end(const struct capture *c, uint32_t k)
{
    const id loop = c->t->program[c->program].at[k].loop;
    while (c->t->program[c->program].at[k].kind != ENTRY_END || c->t->program[c->program].at[k].loop != loop) k++;
    return k;
}

static int capture_range(struct capture *c, uint32_t from, uint32_t to, int depth, struct error *e);

static int capture_loop(struct capture *c, uint32_t k, uint32_t end, int depth, struct error *e)
{
    const id loop = c->t->program[c->program].at[k].loop;
    const uint32_t trip = c->t->graph->loops.at[loop].trip;
    if (trip > GPU_TRIPS) /* in a plan of somebody's: the planner makes none */
        return error_set(e, PL_FAIL, "%s: loop %s has %u iterations, CUDA records %d at most", program_name(c->program),
                         graph_name(c->t->graph, c->t->graph->loops.at[loop].name), trip, GPU_TRIPS);
    for (uint32_t i = 0; i < trip; i++) {
        c->t->iteration[loop] = i;
        if (depth == 0) {
            TRY(end_segment(c, e));
            TRY(begin_segment(c, loop, i, e));
        }
        TRY(capture_range(c, k + 1, end, depth + 1, e));
        if (depth == 0) continue; /* the piece's end joins the lanes */
        TRY(gather_lanes(c, e));
        TRY(fork_lanes(c, e));
    }
    if (depth > 0) return PL_OK;
    TRY(end_segment(c, e));
    return begin_segment(c, 0, 0, e);
}

static int capture_range(struct capture *c, uint32_t from, uint32_t to, int depth, struct error *e)
{
    for (uint32_t k = from; k < to; k++) {
        if (c->t->program[c->program].at[k].kind == ENTRY_LAUNCH) {
            TRY(capture_entry(c, k, e));
        } else {
            uint32_t end = find_end(c, k);
            TRY(flush_batch(c, e));
            TRY(capture_loop(c, k, end, depth, e));
            k = end;
        }
    }
    return flush_batch(c, e);
}

/* --- a program ----------------------------------------------------------------------- */

static int make_events(struct capture *c, struct error *e)
{
    for (int lane = 0; lane < LANE_COUNT; lane++)
        TRY_CUDA(cudaEventCreateWithFlags(&c->meet[lane], cudaEventDisableTiming));
    for (uint32_t k = 0; k < c->t->program[c->program].n; k++) {
        const struct entry *entry = &c->t->program[c->program].at[k];
        for (int i = 0; i < entry->nwait; i++)
            if (!c->done[entry->wait[i]])
                TRY_CUDA(cudaEventCreateWithFlags(&c->done[entry->wait[i]], cudaEventDisableTiming));
    }
    return PL_OK;
}

static int capture_program(struct capture *c, struct error *e)
{
    TRY(make_events(c, e));
    TRY(begin_segment(c, 0, 0, e));
    TRY(capture_range(c, 0, c->t->program[c->program].n, 0, e));
    return end_segment(c, e);
}

/* Whatever happened, no stream is left capturing and no event is left. */
static void close_capture(struct capture *c)
{
    if (c->open) {
        cudaGraph_t graph = NULL;
        cudaStreamEndCapture(c->s->lane[LANE_COMPUTE], &graph);
        if (graph) cudaGraphDestroy(graph);
        cudaGetLastError();
    }
    for (uint32_t k = 0; k < c->t->program[c->program].n; k++)
        if (c->done[k]) cudaEventDestroy(c->done[k]);
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (c->meet[lane]) cudaEventDestroy(c->meet[lane]);
    vec_free(&c->batch.launches);
    mem_free(c->done);
    mem_free(c->seen);
}

/* Everything a library wants to decide is decided here, before the capture. */
int cuda_prepare(const struct cuda_state *s, struct tape *t, enum program p, struct error *e)
{
    for (uint32_t k = 0; k < t->program[p].n; k++) {
        struct entry *entry = &t->program[p].at[k];
        if (entry->kind != ENTRY_LAUNCH) continue;
        const struct cuda_kernel *kernel = cuda_kernel_named(entry->kernel->name);
        CHECK(kernel, "no running half for %s: was the plan made for another device?", entry->kernel->name);
        if (kernel->prepare && !entry->launch.state && kernel->prepare(s, entry, e)) return cuda_name_entry(t, p, entry, e);
    }
    return PL_OK;
}

/* The graph holds what the launches were given: the descriptors can go. */
static void release_program(struct tape *t, enum program p)
{
    for (uint32_t k = 0; k < t->program[p].n; k++) {
        struct entry *entry = &t->program[p].at[k];
        if (entry->kind != ENTRY_LAUNCH || !entry->launch.state) continue;
        cuda_kernel_named(entry->kernel->name)->release(entry->launch.state);
        entry->launch.state = NULL;
    }
}

static int record_program(struct cuda_state *s, struct tape *t, enum program p, struct error *e)
{
    const uint32_t n = t->program[p].n;
    struct capture c = {.s = s, .t = t, .program = p, .into = t->device_state};
    c.done = mem_alloc((n + 1) * sizeof(cudaEvent_t));
    c.seen = mem_alloc((n + 1) * sizeof *c.seen);
    int rc = cuda_prepare(s, t, p, e);
    if (!rc) rc = capture_program(&c, e);
    close_capture(&c);
    release_program(t, p);
    return rc;
}

/* Into an arena in which nothing lies yet products may be tried. */
static int record_programs(struct device *d, struct tape *t, struct error *e)
{
    struct cuda_state *s = d->state;
    struct error also = {0};
    int rc = PL_OK;
    if (!d->deterministic && !s->arena_written && !s->autotune) rc = autotune_begin(s, d->arena[SPACE_DEVICE], d->bytes[SPACE_DEVICE], e);
    for (int p = 0; p < PROGRAM_COUNT && !rc; p++)
        if (t->program[p].n) rc = record_program(s, t, p, e);
    return rc ? (autotune_end(s, &also), rc) : autotune_end(s, e);
}

int cuda_record(struct device *d, struct tape *t, struct error *e)
{
    const struct cuda_state *s = d->state;
    t->device_state = mem_alloc(sizeof(struct recording));
    int rc = record_programs(d, t, e);
    /* The uploads end here, so that the first step waits for nothing. */
    cudaError_t done = rc ? cudaSuccess : cudaStreamSynchronize(s->lane[LANE_COMPUTE]);
    if (done != cudaSuccess) rc = cuda_failed(e, done, "cudaStreamSynchronize after recording");
    if (rc) cuda_forget(t);
    return rc;
}

void cuda_forget(struct tape *t)
{
    struct recording *r = t->device_state;
    if (!r) return;
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        release_program(t, p); /* what nodes.c had prepared again */
        for (uint32_t k = 0; k < r->segments[p].n; k++) cudaGraphExecDestroy(r->segments[p].at[k].graph);
        vec_free(&r->segments[p]);
    }
    mem_free(r);
    t->device_state = NULL;
}

/* --- running ---------------------------------------------------------------------------- */

/* Inner loops are unrolled by their planned trip; poison needs a host that writes into the arena. */
static void check_run(const struct tape *t, enum program p)
{
    CHECK(t->device_state, "%s was not recorded", program_name(p));
    CHECK(!t->poison, "poison is a diagnostic of the CPU device");
    for (id l = 1; l < t->graph->loops.n; l++) {
        const struct loop *loop = &t->graph->loops.at[l];
        if (loop->program != p) continue;
        CHECK(t->trip[l] >= 1 && t->trip[l] <= loop->trip, "loop %s", graph_name(t->graph, loop->name));
        CHECK(!loop->parent || t->trip[l] == loop->trip, "inner loop %s is recorded with all its iterations",
              graph_name(t->graph, loop->name));
    }
}

static int replay(struct cuda_state *s, const struct tape *t, enum program p, struct error *e)
{
    const struct recording *r = t->device_state;
    for (uint32_t k = 0; k < r->segments[p].n; k++) {
        const struct segment *x = &r->segments[p].at[k];
        if (x->loop && x->iteration >= t->trip[x->loop]) continue;
        TRY_CUDA(cudaGraphLaunch(x->graph, s->lane[LANE_COMPUTE]));
        s->launches++;
    }
    return PL_OK;
}

/* Enqueues and returns: reading is what waits. The next batch may come behind a program that reads one. */
int cuda_run(struct device *d, struct tape *t, enum program p, struct error *e)
{
    struct cuda_state *s = d->state;
    const bool reads = p != PROGRAM_UPDATE;
    check_run(t, p);
    s->arena_written = true;
    if (reads) TRY(cuda_join_prefetch(s, e));
    if (t->nodes || t->timing || t->observe) TRY(cuda_run_nodes(s, t, p, e));
    else TRY(replay(s, t, p, e));
    if (reads) TRY_CUDA(cudaEventRecord(s->batch_read, s->lane[LANE_COMPUTE]));
    return PL_OK;
}
