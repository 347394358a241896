/*
 * statistics.c: data parallel training: the running statistics of batch normalisation move by the
 * groups of all ranks, in the order of samples.
 *
 *     one process     step     BATCHNORM gives mean and rstd of each group, BATCHNORM_UPDATE moves the running ones
 *     ranks           step     BATCHNORM; its mean and rstd are kept
 *                     update   ALL_GATHER of them, BATCHNORM_UPDATE over the groups of all ranks
 *
 * A group lies within a share, and the shares of a rank follow each other, as the ranks do. So the
 * groups are those of one process, in the same order, and the running statistics have its bits, the
 * same on every rank. What is kept are two numbers for each channel and group. The exchange goes
 * over all ranks at once: its parts are in the order of ranks.
 */
#include "graph/ops.h"
#include "passes/passes.h"

/* The statistics of an iteration that are copied to a place of their own, behind the loop in which
 * they are made. */
struct copied {
    uint32_t update;     /* into `updates` */
    int which;           /* 0: mean, 1: rstd */
    id from, loop;       /* [rows,C]; the loop around the place of the copy */
};

struct statistics {
    struct graph *g;
    int ranks, levels;   /* levels: loops around a micro-batch */
    VEC(id) updates;     /* nodes */
    VEC(id) kept;        /* the statistics of a rank, two for each of them */
    VEC(struct copied) pending;
};

static int depth_of(const struct graph *g, id loop)
{
    int depth = 0;
    for (; loop; loop = g->loops.at[loop].parent) depth++;
    return depth;
}

/* Copies [rows,C] of each iteration of a loop into one tensor, which lasts until the update. */
static id copy_all(struct statistics *s, id from, id loop)
{
    struct graph *g = s->g;
    const struct tensor x = *tensor_at(g, from);
    int64_t rows = x.dim[0];
    for (id l = loop; l; l = g->loops.at[l].continues ? g->loops.at[l].parent : 0) rows *= g->loops.at[l].trip;
    const int64_t dim[2] = {rows, x.dim[1]};
    const id storage = graph_storage(g, "statistics of a rank", KIND_OUTPUT, SPACE_DEVICE,
                                     (uint64_t)(rows * x.dim[1]) * sizeof(float));
    const id all = graph_tensor(g, "statistics of a rank", storage, DT_F32, 2, dim, 0),
             into = graph_tensor(g, "statistics of a rank", storage, DT_F32, 2, x.dim, 0);
    tensor_at(g, into)->loop = loop;
    tensor_at(g, into)->advance = loop ? (int64_t)tensor_bytes(&x) : 0;
    g->at.loop = loop;
    op_apply(g, OP_COPY, &(union attr){.copy = {SPACE_DEVICE}}, (id[]){from, into}, 2);
    g->at.loop = 0;
    return all;
}

/* Copies what the iterations of a loop leave, and keeps it for the update. A loop inside of a
 * micro-batch (chunks of a head) begins again with each of them: what it leaves is copied again
 * behind it. */
static void keep(struct statistics *s, struct copied c)
{
    const struct graph *g = s->g;
    const bool inner = depth_of(g, c.loop) > s->levels;
    if (c.loop && !inner && g->loops.at[c.loop].parent) s->g->loops.at[c.loop].continues = true;
    const id all = copy_all(s, c.from, c.loop);
    if (inner) vec_push(&s->pending, ((struct copied){c.update, c.which, all, g->loops.at[c.loop].parent}));
    else s->kept.at[2 * c.update + (uint32_t)c.which] = all;
}

/* Copies what is pending where the loop that left it has ended: the next node is at `loop`. */
static void keep_pending(struct statistics *s, id loop, bool end)
{
    for (uint32_t i = 0; i < s->pending.n; i++) {
        const struct copied c = s->pending.at[i];
        if (!end && depth_of(s->g, loop) > depth_of(s->g, c.loop) && loop_inside(s->g, loop, c.loop)) continue;
        s->pending.at[i--] = s->pending.at[--s->pending.n];
        keep(s, c);
    }
}

static void take_updates(struct statistics *s)
{
    struct graph *g = s->g;
    struct order *order = &g->order[PROGRAM_STEP];
    const uint32_t n = order->nodes.n;
    id *old = mem_copy(order->nodes.at, n * sizeof *old);
    order->nodes.n = 0;
    for (uint32_t k = 0; k < n; k++) {
        const struct node x = *node_at(g, old[k]);
        keep_pending(s, x.loop, false);
        if (x.op != OP_BATCHNORM_UPDATE) {
            vec_push(&order->nodes, old[k]);
            continue;
        }
        g->at.scope = x.scope;
        vec_push(&s->updates, old[k]);
        vec_push(&s->kept, 0);
        vec_push(&s->kept, 0);
        for (int i = 0; i < 2; i++) keep(s, (struct copied){s->updates.n - 1, i, x.in[i], x.loop});
    }
    keep_pending(s, 0, true);
    mem_free(old);
}

static void put_updates(struct statistics *s)
{
    struct graph *g = s->g;
    for (uint32_t i = 0; i < s->kept.n; i++) { /* side by side: a GPU exchanges neighbours at once */
        const struct tensor x = *tensor_at(g, s->kept.at[i]);
        const int64_t part = tensor_elements(&x), dim[2] = {x.dim[0] * s->ranks, x.dim[1]};
        const id flat = op_reshape(g, s->kept.at[i], 1, &part);
        const id all =
            op_apply(g, OP_ALL_GATHER, &(union attr){.group = {.ranks = s->ranks, .part = part}}, (id[]){flat}, 1);
        s->kept.at[i] = op_reshape(g, all, 2, dim);
    }
    for (uint32_t i = 0; i < s->updates.n && !g->error.code; i++) {
        struct node *u = node_at(g, s->updates.at[i]);
        u->in[0] = s->kept.at[2 * i];
        u->in[1] = s->kept.at[2 * i + 1];
        u->loop = 0;
        u->phase = PHASE_UPDATE;
        u->program = PROGRAM_UPDATE;
        vec_push(&g->order[PROGRAM_UPDATE].nodes, s->updates.at[i]);
    }
}

void pass_statistics(struct graph *g, const struct settings *settings)
{
    if (!settings->train || !settings_group(settings) || g->error.code) return;
    struct statistics s = {.g = g, .ranks = settings_group(settings),
                           .levels = (settings->shares > 1) + (settings->accumulation > 1)};
    struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_FORWARD, "statistics");
    take_updates(&s);
    g->at.scope = 0;
    graph_move(g, PROGRAM_UPDATE, PHASE_UPDATE, "statistics");
    put_updates(&s);
    vec_free(&s.updates);
    vec_free(&s.kept);
    vec_free(&s.pending);
    g->at = before;
}
