/*
 * record.c: captures a tape into CUDA graphs once; running the tape launches these graphs.
 *
 *     program without loops      one graph
 *     a loop at the top level    a graph before it, one per iteration, one after:
 *                                the host may request fewer iterations than planned
 *     a loop in such a loop      the same if its iterations depend on the labels or images of the
 *                                batch (loop.counted), in each iteration of the loop around it;
 *                                else unrolled into its parent's graph
 *
 *     lane compute   --o-----o-----o--          the capture begins and ends here;
 *                    fork \ wait ^  \ wait ^ join   other lanes are forked from it
 *     lane copy            --o---+---- o ---    and joined to it
 *
 * Launches that follow a sequence (run/sequence.h) have other sizes in every step. They are in no
 * graph: between two graphs they are enqueued one by one, by the code that captures the others. So
 * are all launches of a program with loops over tokens.
 *
 * A lane is a stream and a wait is an event; both become edges of the graph.
 * Small consecutive launches of one kernel become one launch (batch.c).
 * An iteration ends with a join of all lanes, as the tape's wait lists assume, and
 * graphs run in order on one stream. So a wait for an entry of an earlier graph is
 * always satisfied and is not recorded.
 *
 * Invariant: after cuda_record nothing is created or allocated any more but the library's
 * descriptors, on the host, of a product that has another size; a launch reads the same addresses
 * at every step. The diagnostic that launches node by node
 * (nodes.c) is the exception. During recording the arena serves as scratch memory to time
 * matmuls in (matmul_autotune.c); afterwards it is zeroed, as it was allocated.
 */
#include "cuda/device/transport.h"
#include "cuda/products/matmul_autotune.h"
#include "graph/ops.h"
#include "run/ranks.h"

/* One captured graph: launched once per run, or as one iteration of a loop. Or the entries from
 * `from` to before `to`, which are launched one by one. */
struct segment {
    cudaGraphExec_t graph;    /* NULL: entries */
    uint32_t from, to;
    uint32_t *iterations;     /* of all loops, for the entries */
    id loop;
    uint32_t iteration;
    uint32_t around;          /* iteration of the loop around that loop */
};

/* A library's algorithm, and how many entries have it. */
struct chosen {
    char *line;               /* "cublaslt_linear [8,16] by ..." */
    uint32_t entries;
};

struct recording {
    VEC(struct segment) segments[PROGRAM_COUNT];
    VEC(struct chosen) chosen;
    struct capture *by_entry[PROGRAM_COUNT]; /* launches the entries of a program; NULL: it has only graphs */
};

/* State while one program is being captured, or entries of it are launched. */
struct capture {
    struct cuda_state *s;
    struct tape *t;
    enum program program;
    struct recording *into;
    cudaEvent_t *done;        /* by entry: recorded after it; NULL: no entry waits for it */
    uint32_t *seen;           /* by entry: the segment in which `done` was last recorded */
    cudaEvent_t join_event[LANE_COUNT];
    uint32_t segment;         /* number of the segment being captured, from 1 */
    id loop;                  /* of that segment, with its iteration */
    uint32_t iteration, around, launches;
    struct launch_batch batch;       /* pending entries first, first + 1 ..., launched together */
    uint32_t first;
    bool open;
};

/* --- segments ---------------------------------------------------------------------- */

/* Makes the other lanes wait for the work captured on the compute lane so far. */
static int fork_lanes(struct capture *c, struct error *e)
{
    TRY_CUDA(cudaEventRecord(c->join_event[LANE_COMPUTE], c->s->lane[LANE_COMPUTE]));
    for (int lane = LANE_COMPUTE + 1; lane < LANE_COUNT; lane++)
        TRY_CUDA(cudaStreamWaitEvent(c->s->lane[lane], c->join_event[LANE_COMPUTE], 0));
    return PL_OK;
}

/* Makes the compute lane wait for the work captured on all other lanes so far. */
static int join_lanes(struct capture *c, struct error *e)
{
    for (int lane = LANE_COMPUTE + 1; lane < LANE_COUNT; lane++) {
        TRY_CUDA(cudaEventRecord(c->join_event[lane], c->s->lane[lane]));
        TRY_CUDA(cudaStreamWaitEvent(c->s->lane[LANE_COMPUTE], c->join_event[lane], 0));
    }
    return PL_OK;
}

/* Begins a capture in relaxed mode: a library may load a kernel at its first launch, which happens
 * during the capture, and the other capture modes forbid the allocation that this needs. */
static int begin_segment(struct capture *c, id loop, uint32_t iteration, struct error *e)
{
    const id parent = c->t->graph->loops.at[loop].parent;
    TRY_CUDA(cudaStreamBeginCapture(c->s->lane[LANE_COMPUTE], cudaStreamCaptureModeRelaxed));
    c->open = true;
    c->segment++;
    c->loop = loop;
    c->iteration = iteration;
    c->around = parent ? c->t->iteration[parent] : 0;
    c->launches = 0;
    return fork_lanes(c, e);
}

static int instantiate(struct capture *c, cudaGraph_t graph, struct error *e)
{
    struct segment p = {.loop = c->loop, .iteration = c->iteration, .around = c->around};
    size_t nodes = 0;
    TRY_CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
    TRY_CUDA(cudaGraphInstantiate(&p.graph, graph, 0));
    vec_push(&c->into->segments[c->program], p);
    TRY_CUDA(cudaGraphUpload(p.graph, c->s->lane[LANE_COMPUTE]));
    c->s->captures++;
    c->s->nodes += nodes;
    return PL_OK;
}

/* Ends a segment; one without launches produces no graph. */
static int end_segment(struct capture *c, struct error *e)
{
    TRY(join_lanes(c, e));
    cudaGraph_t graph = NULL;
    c->open = false;
    TRY_CUDA(cudaStreamEndCapture(c->s->lane[LANE_COMPUTE], &graph));
    int rc = c->launches ? instantiate(c, graph, e) : PL_OK;
    cudaGraphDestroy(graph);
    return rc;
}

/* --- entries ------------------------------------------------------------------------ */

/* Returns the launch with the addresses of the iteration being captured. */
static struct launch launch_of_iteration(const struct capture *c, const struct entry *entry)
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

/* Records the event that other entries wait for, once entry k is on its stream. */
static int mark_done(struct capture *c, uint32_t k, struct error *e)
{
    c->launches++;
    if (!c->done[k]) return PL_OK;
    TRY_CUDA(cudaEventRecord(c->done[k], c->s->lane[c->t->program[c->program].at[k].lane]));
    c->seen[k] = c->segment;
    return PL_OK;
}

/* Launches the pending batch. */
static int flush_batch(struct capture *c, struct error *e)
{
    const uint32_t n = c->batch.launches.n;
    uint32_t at = 0;
    if (batch_flush(&c->batch, &at, e))
        return cuda_name_entry(c->t, c->program, &c->t->program[c->program].at[c->first + at], e);
    for (uint32_t i = 0; i < n; i++) TRY(mark_done(c, c->first + i, e));
    return PL_OK;
}

/* Captures an entry. One that waits for another lane is not batched with the entries before it,
 * which need not wait, unless its kernel says so. */
static int capture_entry(struct capture *c, uint32_t k, struct error *e)
{
    const struct entry *entry = &c->t->program[c->program].at[k];
    const struct cuda_kernel *kernel = cuda_kernel_of(entry->kernel);
    const struct launch l = launch_of_iteration(c, entry);
    if ((entry->nwait && !kernel->meets) || !batch_joins(&c->batch, kernel, &l)) TRY(flush_batch(c, e));
    TRY(wait_for_others(c, entry, e));
    if (!c->batch.launches.n) c->first = k;
    batch_add(&c->batch, kernel, &l);
    return kernel->batch ? PL_OK : flush_batch(c, e);
}

/* Returns the index of the entry that closes the loop opened at k. */
static uint32_t find_end(const struct capture *c, uint32_t k)
{
    const id loop = c->t->program[c->program].at[k].loop;
    while (c->t->program[c->program].at[k].kind != ENTRY_END || c->t->program[c->program].at[k].loop != loop) k++;
    return k;
}

/* Returns the end of the entries from k on, before `to`, that are launched one by one: the last one
 * that follows the sequence, with few others among them. */
static uint32_t find_follower(const struct capture *c, uint32_t k, uint32_t to)
{
    enum { OTHERS = 16 };
    uint32_t end = k;
    for (; k < to && k < end + OTHERS && c->t->program[c->program].at[k].kind == ENTRY_LAUNCH; k++)
        if (c->t->program[c->program].at[k].follows) end = k + 1;
    return end;
}

/* Ends the graph, and begins another one after entries that are in none. */
static int leave_entries(struct capture *c, uint32_t from, uint32_t to, struct error *e)
{
    struct segment p = {.loop = c->loop, .iteration = c->iteration, .around = c->around, .from = from, .to = to};
    p.iterations = mem_copy(c->t->iteration, c->t->graph->loops.n * sizeof *p.iterations);
    TRY(end_segment(c, e));
    vec_push(&c->into->segments[c->program], p);
    c->into->by_entry[c->program] = c;
    return begin_segment(c, p.loop, p.iteration, e);
}

static int capture_range(struct capture *c, uint32_t from, uint32_t to, struct error *e);

/* Reports whether each iteration of the loop is a graph of its own. */
static bool has_graphs(const struct graph *g, id loop)
{
    const id parent = g->loops.at[loop].parent;
    return !parent || (g->loops.at[loop].counted && !g->loops.at[parent].parent);
}

static int capture_loop(struct capture *c, uint32_t k, uint32_t end, struct error *e)
{
    const id loop = c->t->program[c->program].at[k].loop;
    const uint32_t trip = c->t->graph->loops.at[loop].trip;
    if (trip > GPU_TRIPS) /* only in an external plan: the planner makes no such loop */
        return error_set(e, PL_FAIL, "%s: loop %s has %u iterations, CUDA graphs are captured for at most %d",
                         program_name(c->program), graph_name(c->t->graph, c->t->graph->loops.at[loop].name), trip,
                         GPU_TRIPS);
    const bool apart = has_graphs(c->t->graph, loop);
    const id loop_of_segment = c->loop;
    const uint32_t iteration = c->iteration;
    for (uint32_t i = 0; i < trip; i++) {
        c->t->iteration[loop] = i;
        if (apart) {
            TRY(end_segment(c, e));
            TRY(begin_segment(c, loop, i, e));
        }
        TRY(capture_range(c, k + 1, end, e));
        if (apart) continue; /* the end of the segment joins the lanes */
        TRY(join_lanes(c, e));
        TRY(fork_lanes(c, e));
    }
    c->t->iteration[loop] = 0;
    if (!apart) return PL_OK;
    TRY(end_segment(c, e));
    return begin_segment(c, loop_of_segment, iteration, e); /* the rest of the iteration around the loop */
}

static int capture_range(struct capture *c, uint32_t from, uint32_t to, struct error *e)
{
    for (uint32_t k = from; k < to; k++) {
        const struct entry *entry = &c->t->program[c->program].at[k];
        if (entry->kind == ENTRY_LAUNCH && entry->follows) {
            const uint32_t end = find_follower(c, k, to);
            TRY(flush_batch(c, e));
            TRY(leave_entries(c, k, end, e));
            k = end - 1;
        } else if (entry->kind == ENTRY_LAUNCH) {
            TRY(capture_entry(c, k, e));
        } else {
            uint32_t end = find_end(c, k);
            TRY(flush_batch(c, e));
            TRY(capture_loop(c, k, end, e));
            k = end;
        }
    }
    return flush_batch(c, e);
}

/* --- a program ----------------------------------------------------------------------- */

static int make_events(struct capture *c, struct error *e)
{
    for (int lane = 0; lane < LANE_COUNT; lane++)
        TRY_CUDA(cudaEventCreateWithFlags(&c->join_event[lane], cudaEventDisableTiming));
    for (uint32_t k = 0; k < c->t->program[c->program].n; k++) {
        const struct entry *entry = &c->t->program[c->program].at[k];
        for (int i = 0; i < entry->nwait; i++)
            if (!c->done[entry->wait[i]])
                TRY_CUDA(cudaEventCreateWithFlags(&c->done[entry->wait[i]], cudaEventDisableTiming));
    }
    return PL_OK;
}

/* Reports whether a program has loops over tokens (passes/techniques/token_chunks.c): thousands of
 * launches that take long. They are in no graph, which would have a node for each. */
static bool has_tokens(const struct tape *t, enum program p)
{
    bool any = false;
    for (id l = 1; l < t->graph->loops.n; l++)
        any |= t->graph->loops.at[l].tokens && t->graph->loops.at[l].program == p;
    return any;
}

static int capture_program(struct capture *c, struct error *e)
{
    struct tape *t = c->t;
    TRY(make_events(c, e));
    if (has_tokens(t, c->program)) {
        struct segment all = {.to = t->program[c->program].n};
        all.iterations = mem_copy(t->iteration, t->graph->loops.n * sizeof *all.iterations);
        vec_push(&c->into->segments[c->program], all);
        c->into->by_entry[c->program] = c;
        return PL_OK;
    }
    TRY(begin_segment(c, 0, 0, e));
    TRY(capture_range(c, 0, c->t->program[c->program].n, e));
    return end_segment(c, e);
}

/* Runs on success and failure: no stream is left capturing and no event is leaked. */
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
        if (c->join_event[lane]) cudaEventDestroy(c->join_event[lane]);
    vec_free(&c->batch.launches);
    mem_free(c->done);
    mem_free(c->seen);
    mem_free(c);
}

/* Returns PL_FAIL if the GPU lacks what a kernel needs: a plan may have been made with the profile
 * of another GPU. */
static int check_capability(const struct cuda_state *s, const struct kernel *k, struct error *e)
{
    if (capability_suffices(k->capability, s->capability)) return PL_OK;
    return error_set(e, PL_FAIL, "the plan uses the kernel %s of compute capability %d.%d, %s has %d.%d; plan with the "
                     "profile of this GPU", k->name, k->capability / 10, k->capability % 10, s->gpu, s->capability / 10,
                     s->capability % 10);
}

/* Lets the kernels make all library decisions (algorithms, descriptors) before the capture. */
int cuda_prepare(const struct cuda_state *s, struct tape *t, enum program p, struct error *e)
{
    for (uint32_t k = 0; k < t->program[p].n; k++) {
        struct entry *entry = &t->program[p].at[k];
        if (entry->kind != ENTRY_LAUNCH) continue;
        const struct cuda_kernel *kernel = cuda_kernel_of(entry->kernel);
        TRY(check_capability(s, entry->kernel, e));
        if (kernel->prepare && !entry->launch.state && kernel->prepare(s, entry, e))
            return cuda_name_entry(t, p, entry, e);
    }
    return PL_OK;
}

static void note_choice(struct recording *r, const char *kernel, const char *what, size_t n)
{
    struct text line = {0};
    text_printf(&line, "%s %.*s", kernel, (int)n, what);
    for (uint32_t i = 0; i < r->chosen.n; i++)
        if (!strcmp(r->chosen.at[i].line, line.at)) {
            r->chosen.at[i].entries++;
            text_free(&line);
            return;
        }
    vec_push(&r->chosen, ((struct chosen){mem_string(line.at), 1}));
    text_free(&line);
}

/* Notes the choices before the capture, so that they can be shown (`plimsoll profile
 * --explain`). */
static void note_choices(const struct tape *t, enum program p)
{
    for (uint32_t k = 0; k < t->program[p].n; k++) {
        const struct entry *entry = &t->program[p].at[k];
        const struct cuda_kernel *kernel = entry->kind == ENTRY_LAUNCH ? cuda_kernel_of(entry->kernel) : NULL;
        struct text lines = {0};
        if (!kernel || !kernel->list) continue;
        kernel->list(entry->launch.state, &lines);
        for (const char *at = lines.at, *end; at && (end = strchr(at, '\n')); at = end + 1)
            note_choice(t->device_state, entry->kernel->name, at, (size_t)(end - at));
        text_free(&lines);
    }
}

void cuda_explain(const struct tape *t, struct text *out)
{
    const struct recording *r = t->device_state;
    for (uint32_t i = 0; r && i < r->chosen.n; i++)
        text_printf(out, "%6u  %s\n", r->chosen.at[i].entries, r->chosen.at[i].line);
}

/* Frees the descriptors: the graph holds the launch parameters, but for what is kept until
 * `all` are freed. */
static void release_program(struct tape *t, enum program p, bool all)
{
    for (uint32_t k = 0; k < t->program[p].n; k++) {
        struct entry *entry = &t->program[p].at[k];
        if (entry->kind != ENTRY_LAUNCH || !entry->launch.state) continue;
        if (cuda_kernel_of(entry->kernel)->kept && !all) continue;
        cuda_kernel_of(entry->kernel)->release(entry->launch.state);
        entry->launch.state = NULL;
    }
}

static int record_program(struct cuda_state *s, struct tape *t, enum program p, struct error *e)
{
    const uint32_t n = t->program[p].n;
    struct recording *r = t->device_state;
    struct capture *c = mem_alloc(sizeof *c);
    *c = (struct capture){.s = s, .t = t, .program = p, .into = r};
    c->done = mem_alloc((n + 1) * sizeof(cudaEvent_t));
    c->seen = mem_alloc((n + 1) * sizeof *c->seen);
    int rc = cuda_prepare(s, t, p, e);
    if (!rc) note_choices(t, p);
    if (!rc) rc = capture_program(c, e);
    if (r->by_entry[p]) return rc; /* launching needs events and descriptors */
    close_capture(c);
    release_program(t, p, false);
    return rc;
}

/* Shares the choices. All ranks call it, whatever failed: they wait for each other. */
static int share_choices(struct device *d, int rc, struct error *e)
{
    struct error also = {0};
    if (!autotune_share(d->state, d->ranks, &also) || rc) return rc;
    *e = also;
    return also.code;
}

/* Records all programs. Matmuls may be timed in the arena as long as nothing has been written to
 * it. */
static int record_programs(struct device *d, struct tape *t, struct error *e)
{
    struct cuda_state *s = d->state;
    struct error also = {0};
    const bool tunes = !d->deterministic && !s->arena_written && !s->autotune,
               shares = tunes && d->ranks && d->ranks->n > 1;
    int rc = tunes ? autotune_begin(s, d->arena[SPACE_DEVICE], d->bytes[SPACE_DEVICE], e) : PL_OK;
    if (shares && d->ranks->rank) rc = share_choices(d, rc, e);
    for (int p = 0; p < PROGRAM_COUNT && !rc; p++)
        if (t->program[p].n) rc = record_program(s, t, p, e);
    if (shares && !d->ranks->rank) rc = share_choices(d, rc, e);
    return rc ? (autotune_end(s, &also), rc) : autotune_end(s, e);
}

int cuda_record(struct device *d, struct tape *t, struct error *e)
{
    const struct cuda_state *s = d->state;
    t->device_state = mem_alloc(sizeof(struct recording));
    int rc = transport_open(d, t, e);
    if (!rc) rc = record_programs(d, t, e);
    /* Waits for the graph uploads, so that the first step does not. */
    cudaError_t done = rc ? cudaSuccess : cudaStreamSynchronize(s->lane[LANE_COMPUTE]);
    if (done != cudaSuccess) rc = cuda_failed(e, done, "cudaStreamSynchronize after recording");
    if (rc) cuda_free_recording(t);
    return rc;
}

void cuda_free_recording(struct tape *t)
{
    struct recording *r = t->device_state;
    if (!r) return;
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        release_program(t, p, true); /* the descriptors that were kept, or that nodes.c created anew */
        if (r->by_entry[p]) close_capture(r->by_entry[p]);
        for (uint32_t k = 0; k < r->segments[p].n; k++) {
            if (r->segments[p].at[k].graph) cudaGraphExecDestroy(r->segments[p].at[k].graph);
            mem_free(r->segments[p].at[k].iterations);
        }
        vec_free(&r->segments[p]);
    }
    for (uint32_t i = 0; i < r->chosen.n; i++) mem_free(r->chosen.at[i].line);
    vec_free(&r->chosen);
    mem_free(r);
    t->device_state = NULL;
}

/* --- running ---------------------------------------------------------------------------- */

/* Checks a run: an unrolled loop has its planned trip count, and poison needs a host that writes to
 * the arena. */
static void check_run(const struct tape *t, enum program p)
{
    CHECK(t->device_state, "%s was not recorded", program_name(p));
    CHECK(!t->poison, "poison is a diagnostic of the CPU device");
    for (id l = 1; l < t->graph->loops.n; l++) {
        const struct loop *loop = &t->graph->loops.at[l];
        if (loop->program != p) continue;
        for (uint32_t i = 0; i < (loop->parent ? t->graph->loops.at[loop->parent].trip : 1); i++) {
            CHECK(t->trip[l][i] <= loop->trip, "loop %s", graph_name(t->graph, loop->name));
            CHECK(has_graphs(t->graph, l) || t->trip[l][i] == loop->trip,
                  "inner loop %s is recorded with all its iterations", graph_name(t->graph, loop->name));
        }
    }
}

/* Reports whether the segment is an iteration beyond those to run, of its loop or of the loop
 * around it. */
static bool is_left_out(const struct tape *t, const struct segment *x)
{
    const id parent = t->graph->loops.at[x->loop].parent;
    return x->loop && (x->iteration >= t->trip[x->loop][x->around] || (parent && x->around >= t->trip[parent][0]));
}

/* Begins or ends an iteration of a loop among the entries of a segment. */
static int pass_bracket(struct capture *c, const struct entry *entry, struct error *e)
{
    TRY(flush_batch(c, e));
    if (entry->kind != ENTRY_END || c->t->graph->loops.at[entry->loop].tokens) return PL_OK;
    TRY(join_lanes(c, e));
    return fork_lanes(c, e);
}

/* Launches the entries of a segment, in order behind the graph before it. */
static int launch_entries(struct capture *c, const struct segment *x, struct error *e)
{
    memcpy(c->t->iteration, x->iterations, c->t->graph->loops.n * sizeof *x->iterations);
    c->segment++;
    TRY(fork_lanes(c, e));
    for (uint32_t k = x->from; k < x->to; k = tape_follow(c->t, c->program, k)) {
        const struct entry *entry = &c->t->program[c->program].at[k];
        TRY(entry->kind == ENTRY_LAUNCH ? capture_entry(c, k, e) : pass_bracket(c, entry, e));
    }
    TRY(flush_batch(c, e));
    return join_lanes(c, e);
}

static int replay(struct cuda_state *s, const struct tape *t, enum program p, struct error *e)
{
    const struct recording *r = t->device_state;
    for (uint32_t k = 0; k < r->segments[p].n; k++) {
        const struct segment *x = &r->segments[p].at[k];
        if (is_left_out(t, x)) continue;
        if (x->graph) TRY_CUDA(cudaGraphLaunch(x->graph, s->lane[LANE_COMPUTE]));
        else TRY(launch_entries(r->by_entry[p], x, e));
        s->launches++;
    }
    return PL_OK;
}

/* Enqueues the graphs and returns; only a read blocks. The copy of the next batch may start after a
 * program that reads a batch. */
int cuda_run(struct device *d, struct tape *t, enum program p, struct error *e)
{
    struct cuda_state *s = d->state;
    const bool reads = program_is(p, PROGRAM_FORWARD);
    check_run(t, p);
    s->arena_written = true;
    if (reads) TRY(cuda_join_prefetch(s, e));
    if (t->nodes || t->timing || t->observe) TRY(cuda_run_nodes(s, t, p, e));
    else TRY(replay(s, t, p, e));
    if (reads) TRY_CUDA(cudaEventRecord(s->batch_read, s->lane[LANE_COMPUTE]));
    return PL_OK;
}
