/*
 * encode.c: a frozen vision tower runs in a loop of its own at the head of the program, over the
 * images that the batch really has, some of them at a time.
 *
 *     pixels [N,...] ─ tower ─ projector ─ features [N,tokens,C] ─ REPLACE_ROWS(text, index, features)
 *
 * becomes
 *
 *     used = USED_FIRST(index)                               N = 6   images  0 1 .   3 . .    used  0 1 3 . . .
 *     features = 0                                                   loops of 2               |0 1|3 .| not run
 *     loop {
 *         k pixels = GATHER(pixels, used[i..])
 *         features = CACHE_WRITE(features, projector(tower(k pixels)), used[i..])
 *     }
 *     REPLACE_ROWS(text, index, features)
 *
 * The activations of the tower are those of k images, and die before the rest of the program
 * begins. Each image keeps its place, so the rest reads what it read before. The bits are the same:
 * the loop says of how many images its k are a part (struct portion), and products are computed as
 * for all of them. Images that no index points into are left out: how many there are is known on
 * the host when the batch is written, and so is the number of iterations (loop.counted). On their
 * way to REPLACE_ROWS the images of a sample may be parted in two, and the features of each pooled:
 * those of images and of frames (models/images.c). Where features are read in another way, all
 * images are encoded.
 *
 * Images of any size are a sequence of patches (graph.sequence). The loop visits the samples one by
 * one, up to the last that has images, because only the head of what is visited at once can be
 * computed by itself (run/sequence.h).
 *
 * What moves is all that depends only on the images and on frozen weights, in the scopes where
 * images are independent (SCOPE_IMAGES): tower and projector, or the tower without a projector that
 * is trained, or the blocks before the first with an adapter. Where nothing is trained, all weights
 * are frozen. What depends only on weights is computed once, before the loop. The backward never
 * enters the loop, and nothing in it is recomputed.
 */
#include "graph/ops.h"
#include "passes/techniques/recompute.h"
#include "run/kernel.h"

/* Where a node runs. */
enum place { AFTER, BEFORE, INSIDE };

struct encoder {
    struct graph *g;
    enum program program;
    bool forward;            /* nothing is trained */
    id *nodes;               /* the program's original order */
    uint32_t count, tensors; /* of the order, and of the graph before */
    uint8_t *place;          /* by node: enum place */
    bool *trained;           /* by scope: a block that does not move */
    int64_t images, at_once;
    bool sequence;           /* images are of any size: `images` counts samples, or then sections, of the sequence */
    uint32_t trip;
    id loop;
    id used, slice;          /* the images in the order of the loop, -1: none; those of an iteration [1,at_once] */
    id *map;                 /* by original tensor: its replacement, inside the loop or after it */
};

/* --- what moves ------------------------------------------------------------------------------- */

static const struct node *node_of(const struct encoder *e, uint32_t k) { return node_at(e->g, e->nodes[k]); }

static bool is_encoding(const struct encoder *e, const struct node *n)
{
    return graph_scope_is(e->g, n->scope, SCOPE_IMAGES);
}

static bool is_frozen(const struct encoder *e, id t)
{
    const struct graph *g = e->g;
    for (uint32_t i = 0; i < g->params.n && !e->forward; i++)
        if (tensor_at(g, g->params.at[i].tensor)->storage == tensor_at(g, t)->storage) return g->params.at[i].frozen;
    return e->forward;
}

static bool is_images(const struct encoder *e, id t)
{
    const struct tensor *x = tensor_at(e->g, t);
    if (storage_of(e->g, t)->kind != KIND_INPUT || !tensor_is_dense(x)) return false;
    return e->sequence ? x->along > 0 : x->dim[0] == e->images;
}

/* Returns the place where a node that reads `t` may run. */
static enum place place_of(const struct encoder *e, id t)
{
    const struct graph *g = e->g;
    if (tensor_at(g, t)->node) return e->place[tensor_at(g, t)->node];
    if (storage_of(g, t)->kind == KIND_CONST || (storage_of(g, t)->kind == KIND_PARAM && is_frozen(e, t)))
        return BEFORE;
    return is_images(e, t) ? INSIDE : AFTER;
}

/* Finds the dimension of a reshape of images that counts them, with others: the first one larger
 * than 1. Returns the rank if there is none, or if it follows from the others. */
static int images_dim(const struct node *n)
{
    int i = 0;
    while (i < n->attr.reshape.rank && n->attr.reshape.dim[i] == 1) i++;
    return i < n->attr.reshape.rank && n->attr.reshape.dim[i] > 0 ? i : n->attr.reshape.rank;
}

static bool keeps_images(const struct encoder *e, const struct node *n)
{
    const int i = n->op == OP_RESHAPE ? images_dim(n) : 0;
    return n->op != OP_RESHAPE || i == n->attr.reshape.rank || n->attr.reshape.dim[i] % e->images == 0;
}

static bool is_read_outside(const struct encoder *e, id t)
{
    for (uint32_t k = 0; k < e->count; k++)
        for (int i = 0; i < node_of(e, k)->nin && !is_encoding(e, node_of(e, k)); i++)
            if (node_of(e, k)->in[i] == t) return true;
    return false;
}

/* Reports whether a node converts pixels before they come into the scope of images. A table with
 * rows for the images of a sample depends on which these are. */
static bool makes_pixels(const struct graph *g, const struct node *n)
{
    if (n->op == OP_CAST) return true;
    return n->op == OP_PIXELS && tensor_elements(tensor_at(g, n->in[0])) / tensor_at(g, n->in[0])->dim[0] %
                                         (n->attr.pixels.plane * tensor_at(g, n->in[1])->dim[0]) == 0;
}

/* Reports whether a node may move if its inputs do: it is in the scope of images, outside of
 * loops and of trained blocks, and has no effect; or it makes the pixels before they come into the
 * scope. */
static bool may_move(const struct encoder *e, const struct node *n)
{
    if (!is_encoding(e, n) && makes_pixels(e->g, n))
        return is_images(e, n->in[0]) && !is_read_outside(e, n->out[0]);
    return !n->loop && !(op_table[n->op].flags & OPF_EFFECT) && is_encoding(e, n) &&
           !e->trained[graph_block_of(e->g, n->scope)];
}

/* Fills place[]. Returns false if a block would move in part: it is marked as trained. */
static bool place_nodes(struct encoder *e)
{
    bool whole = true;
    for (uint32_t k = 0; k < e->count; k++) {
        const struct node *n = node_of(e, k);
        const id block = graph_block_of(e->g, n->scope);
        enum place place = may_move(e, n) ? BEFORE : AFTER;
        for (int i = 0; i < n->nin && place != AFTER; i++) {
            const enum place from = n->in[i] ? place_of(e, n->in[i]) : BEFORE;
            if (from != BEFORE) place = from;
        }
        if (place == INSIDE && !keeps_images(e, n)) place = AFTER;
        e->place[e->nodes[k]] = (uint8_t)place;
        if (place != AFTER || !block || e->trained[block] || !is_encoding(e, n)) continue;
        e->trained[block] = true;
        whole = false;
    }
    return whole;
}

/* Reports whether the rest of the program, or the host, reads `t`. */
static bool is_read_after(const struct encoder *e, id t)
{
    for (uint32_t i = 0; i < e->g->outputs.n; i++)
        if (e->g->outputs.at[i].tensor == t) return true;
    for (uint32_t k = 0; k < e->count; k++)
        for (int i = 0; i < node_of(e, k)->nin; i++)
            if (node_of(e, k)->in[i] == t && e->place[e->nodes[k]] == AFTER) return true;
    return false;
}

/* Views of what the loop makes are taken after it. */
static void keep_views(struct encoder *e)
{
    for (uint32_t k = e->count; k-- > 0;) {
        const struct node *n = node_of(e, k);
        if (e->place[e->nodes[k]] == INSIDE && op_table[n->op].flags & OPF_VIEW && is_read_after(e, n->out[0]))
            e->place[e->nodes[k]] = AFTER;
    }
}

/* Counts the images of the first input that a node in the scope reads; 0: there is none. */
static int64_t count_images(const struct encoder *e)
{
    const struct graph *g = e->g;
    for (uint32_t k = 0; k < e->count; k++)
        for (int i = 0; i < node_of(e, k)->nin && is_encoding(e, node_of(e, k)); i++) {
            id t = node_of(e, k)->in[i];
            while (tensor_at(g, t)->node && makes_pixels(g, node_at(g, tensor_at(g, t)->node)))
                t = node_at(g, tensor_at(g, t)->node)->in[0];
            if (storage_of(g, t)->kind == KIND_INPUT)
                return tensor_at(g, t)->along ? g->sequence.samples : tensor_at(g, t)->dim[0];
        }
    return 0;
}

/* Finds the nodes that move. Returns false if no block does: without one, nothing is worth a
 * loop. */
static bool find_nodes(struct encoder *e)
{
    bool blocks = false;
    if (!(e->images = count_images(e))) return false;
    e->sequence = e->g->sequence.ranges;
    while (!place_nodes(e)) {}
    keep_views(e);
    for (uint32_t k = 0; k < e->count; k++)
        blocks |= e->place[e->nodes[k]] == INSIDE && graph_block_of(e->g, node_of(e, k)->scope);
    return blocks;
}

/* --- which images are used -------------------------------------------------------------------- */

/* The features that a tensor holds, by sample: those of images from `first` on; or of two such
 * parts, one after the other. */
struct contents {
    int parts;
    bool whole;              /* of all images, however they are divided into samples */
    struct {
        int64_t first, count, rows; /* images, and the rows of each, once they are known */
    } part[2];
};

/* Describes a slice of [B,n,...] with all images: a part of each sample's images. No parts: the
 * slice is another one. */
static struct contents hold_slice(const struct encoder *e, const struct node *n, const struct contents *from)
{
    const struct tensor *x = tensor_at(e->g, n->in[0]);
    if (!from->whole || n->attr.slice.axis != 1 || x->rank < 3 || x->dim[0] * x->dim[1] != e->images)
        return (struct contents){0};
    return (struct contents){1, false, {{n->attr.slice.start, n->attr.slice.length, 0}}};
}

/* Describes two parts that are joined as rows [B,R,C]. No parts: they are not two such parts. */
static struct contents hold_both(const struct encoder *e, const struct node *n, const struct contents *by_tensor)
{
    struct contents out = {.parts = 2};
    if (n->nin != 2 || n->attr.concat.axis != 1 || tensor_at(e->g, n->in[0])->rank != 3) return (struct contents){0};
    for (int i = 0; i < 2; i++) {
        const struct contents *from = &by_tensor[n->in[i]];
        const int64_t rows = tensor_at(e->g, n->in[i])->dim[1];
        if (from->parts != 1 || from->whole || rows % from->part[0].count) return (struct contents){0};
        out.part[i] = from->part[0];
        out.part[i].rows = rows / from->part[0].count;
    }
    return out;
}

/* Describes the features in the result of a node that is not in the scope of images. No parts: the
 * node mixes them, or is not known. */
static struct contents hold(const struct encoder *e, const struct node *n, const struct contents *by_tensor)
{
    const struct contents *from = &by_tensor[n->in[0]];
    if (n->op == OP_SLICE) return hold_slice(e, n, from);
    if (n->op == OP_CONCAT) return hold_both(e, n, by_tensor);
    /* which pools within an image */
    const bool keeps = op_table[n->op].flags & OPF_VIEW || n->op == OP_COPY || n->op == OP_CAST || n->op == OP_AVGPOOL;
    return keeps ? *from : (struct contents){0};
}

/* Finds the REPLACE_ROWS that reads features by rows, and sets `rows` to the features that it
 * reads. Returns NULL if there is none, if another reads other rows, or if features are read in any
 * other way. */
static const struct node *find_reader(const struct encoder *e, struct contents *rows)
{
    const struct graph *g = e->g;
    const struct node *reader = NULL;
    struct contents *by_tensor = mem_alloc(g->tensors.n * sizeof *by_tensor);
    bool other = false;
    for (uint32_t k = 0; k < e->count && !other; k++) {
        const struct node *n = node_of(e, k);
        const bool inside = e->place[e->nodes[k]] == INSIDE;
        bool any = inside;
        for (int i = 0; i < n->nin; i++) any |= by_tensor[n->in[i]].parts > 0;
        if (!any) continue;
        if (n->op == OP_REPLACE_ROWS && !by_tensor[n->in[0]].parts) {
            other = reader && (reader->in[1] != n->in[1] || reader->in[2] != n->in[2]);
            reader = n;
            continue;
        }
        /* features of other layers, which are added behind */
        if (n->op == OP_GATHER && reader && n->in[1] == reader->in[1] && by_tensor[n->in[0]].whole) continue;
        const struct contents out =
            inside || is_encoding(e, n) ? (struct contents){.parts = 1, .whole = true} : hold(e, n, by_tensor);
        other = !out.parts;
        for (int o = 0; o < n->nout; o++)
            if (n->out[o]) by_tensor[n->out[o]] = out;
    }
    for (uint32_t i = 0; i < g->outputs.n; i++) other |= by_tensor[g->outputs.at[i].tensor].parts > 0;
    if (reader && !other) *rows = by_tensor[reader->in[2]];
    mem_free(by_tensor);
    return other ? NULL : reader;
}

/* Describes the rows of y [B,R,C] as blocks of the n images of a sample. No rows: the images are
 * not all there, in their order. */
static struct feature_blocks blocks_of(const struct tensor *y, const struct contents *h, int64_t n)
{
    if (h->parts == 2 && !h->part[0].first && h->part[1].first == h->part[0].count &&
        h->part[1].first + h->part[1].count == n)
        return (struct feature_blocks){h->part[1].rows, h->part[0].count, h->part[0].rows};
    const bool all = h->parts == 1 && (h->whole || (!h->part[0].first && h->part[0].count == n));
    return (struct feature_blocks){.rows = all && y->dim[1] % n == 0 ? y->dim[1] / n : 0};
}

/* Lists the used images on the device, and lets the host count them; without a known reader all are
 * used. */
static void list_used(struct encoder *e)
{
    struct graph *g = e->g;
    struct contents held = {0};
    const struct node *reader = e->sequence ? NULL : find_reader(e, &held);
    const id index = reader ? reader->in[1] : 0;
    const struct tensor y = *tensor_at(g, reader ? reader->in[2] : 0);
    const int64_t room = (int64_t)e->trip * e->at_once, n = y.rank == 3 ? e->images / y.dim[0] : 0;
    const struct feature_blocks blocks = n ? blocks_of(&y, &held, n) : (struct feature_blocks){0};
    if (blocks.rows && storage_of(g, index)->kind == KIND_INPUT) {
        const union attr a = {.used_first = {n, blocks.rows, blocks.first, blocks.first_rows, room}};
        struct loop *l = &g->loops.at[e->loop];
        l->counted = tensor_at(g, index)->storage;
        l->rows = (uint32_t)e->at_once;
        l->block = blocks;
        e->used = op_apply(g, OP_USED_FIRST, &a, &index, 1);
        return;
    }
    if (e->sequence) {
        struct loop *l = &g->loops.at[e->loop];
        l->counted = g->sequence.ranges;
        l->rows = (uint32_t)e->at_once;
    }
    int32_t *all = mem_alloc((size_t)room * sizeof *all);
    char name[64];
    snprintf(name, sizeof name, "images.%lld.by.%lld", (long long)e->images, (long long)e->at_once);
    for (int64_t i = 0; i < room; i++) all[i] = i < e->images ? (int32_t)i : -1;
    e->used = graph_const(g, name, DT_I32, 1, &room, all);
    mem_free(all);
}

/* --- the loop --------------------------------------------------------------------------------- */

/* Reshapes t [n * rows,...] to n rows, [1,n,...]. */
static id by_image(struct graph *g, id t, int64_t n)
{
    return op_reshape(g, t, 3, (int64_t[]){1, n, tensor_elements(tensor_at(g, t)) / n});
}

/* Returns the entries of a section, where a tensor has the whole sequence; else 1. */
static int64_t entries_of(const struct encoder *e, const struct tensor *t)
{
    return t->along ? t->dim[t->along - 1] / e->images : 1;
}

static id gather_images(struct encoder *e, id t)
{
    struct graph *g = e->g;
    const struct tensor x = *tensor_at(g, t);
    int64_t dim[MAX_RANK];
    memcpy(dim, x.dim, sizeof dim);
    dim[x.along ? x.along - 1 : 0] = entries_of(e, &x) * e->at_once;
    const id some = op_reshape(g, op_gather(g, by_image(g, t, e->images), e->slice), x.rank, dim);
    if (x.along) graph_set_along(g, some, x.along - 1);
    return some;
}

/* Emits a node for the images of one iteration. */
static void emit_node(struct encoder *e, id node)
{
    struct graph *g = e->g;
    struct node n = *node_at(g, node);
    for (int i = 0; i < n.nin; i++) {
        const id t = n.in[i];
        if (t && !e->map[t] && is_images(e, t)) e->map[t] = gather_images(e, t);
        if (t && e->map[t]) n.in[i] = e->map[t];
    }
    const int i = n.op == OP_RESHAPE ? images_dim(&n) : 0;
    if (n.op == OP_RESHAPE && i < n.attr.reshape.rank)
        n.attr.reshape.dim[i] = n.attr.reshape.dim[i] / e->images * e->at_once;
    g->at.scope = n.scope;
    g->at.origin = node;
    const id emitted = graph_emit(g, n.op, &n.attr, n.in, n.nin);
    for (int o = 0; emitted && o < n.nout; o++)
        if (n.out[o]) e->map[n.out[o]] = node_at(g, emitted)->out[o];
    g->at.origin = 0;
}

/* The features of all images, which begin as zeros. */
struct features {
    id old, all;
};
typedef VEC(struct features) features_list;

static void begin_features(struct encoder *e, features_list *list)
{
    struct graph *g = e->g;
    for (uint32_t k = 0; k < e->count; k++)
        for (int o = 0; o < node_of(e, k)->nout && e->place[e->nodes[k]] == INSIDE; o++) {
            const id t = node_of(e, k)->out[o];
            if (!t || !is_read_after(e, t)) continue;
            const struct tensor x = *tensor_at(g, t);
            const id zero = op_fill(g, x.dtype, 3, (int64_t[]){1, e->images, tensor_elements(&x) / e->images}, 0);
            vec_push(list, ((struct features){t, zero}));
        }
}

/* Writes the features of one iteration, in the loop. */
static void write_features(struct encoder *e, features_list *list)
{
    struct graph *g = e->g;
    for (uint32_t i = 0; i < list->n; i++) {
        const id rows = by_image(g, op_dense(g, e->map[list->at[i].old]), e->at_once);
        list->at[i].all = op_apply(g, OP_CACHE_WRITE, NULL, (id[]){list->at[i].all, rows, e->slice}, 3);
    }
}

/* Maps features to those of all images, after the loop, for the rest of the program and the
 * outputs. */
static void replace_features(struct encoder *e, const features_list *list)
{
    struct graph *g = e->g;
    memset(e->map, 0, e->tensors * sizeof *e->map);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct tensor old = *tensor_at(g, list->at[i].old);
        const id now = e->map[list->at[i].old] = op_reshape(g, list->at[i].all, old.rank, old.dim);
        for (uint32_t k = 0; k < g->outputs.n; k++)
            if (g->outputs.at[k].tensor == list->at[i].old) {
                g->outputs.at[k].tensor = now;
                storage_of(g, now)->kind = KIND_OUTPUT;
            }
    }
}

static void emit_loop(struct encoder *e)
{
    struct graph *g = e->g;
    features_list list = {0};
    e->loop = graph_loop(g, "encode", e->trip);
    if (e->at_once < e->images)
        g->loops.at[e->loop].portion = (struct portion){(uint32_t)e->at_once, (uint32_t)e->images};
    list_used(e);
    begin_features(e, &list);
    e->slice = graph_view(g, e->used, DT_I32, 2, (int64_t[]){1, e->at_once}, NULL, 0);
    tensor_at(g, e->slice)->loop = e->loop;
    tensor_at(g, e->slice)->advance = e->at_once * (int64_t)sizeof(int32_t);
    g->at.loop = e->loop;
    for (uint32_t k = 0; k < e->count && !g->error.code; k++)
        if (e->place[e->nodes[k]] == INSIDE) emit_node(e, e->nodes[k]);
    write_features(e, &list);
    g->at.loop = 0;
    replace_features(e, &list);
    vec_free(&list);
}

/* --- the program ------------------------------------------------------------------------------ */

/* Returns the position of the loop: that of the tower, before anything that reads what moves. */
static uint32_t find_position(const struct encoder *e)
{
    for (uint32_t k = 0;; k++) {
        const struct node *n = node_of(e, k);
        if (e->place[e->nodes[k]] == INSIDE && is_encoding(e, n)) return k;
        for (int i = 0; i < n->nin && e->place[e->nodes[k]] == AFTER; i++)
            if (n->in[i] && place_of(e, n->in[i]) == INSIDE && tensor_at(e->g, n->in[i])->node) return k;
    }
}

/* Builds the order around the loop: before it come the nodes that depend only on weights, and those
 * before the tower; after it the rest. */
static void rewrite(struct encoder *e)
{
    struct graph *g = e->g;
    struct order *order = &g->order[e->program];
    const uint32_t position = find_position(e);
    const struct cursor before = graph_move(g, e->program, PHASE_FORWARD, "encode");
    g->at.scope = node_of(e, position)->scope;
    order->nodes.n = 0;
    for (uint32_t k = 0; k < e->count; k++)
        if (e->place[e->nodes[k]] == BEFORE || (k < position && e->place[e->nodes[k]] == AFTER))
            vec_push(&order->nodes, e->nodes[k]);
    emit_loop(e);
    for (uint32_t k = position; k < e->count; k++) {
        if (e->place[e->nodes[k]] != AFTER) continue;
        vec_push(&order->nodes, e->nodes[k]);
        for (int i = 0; i < node_of(e, k)->nin; i++)
            if (e->map[node_of(e, k)->in[i]]) node_at(g, e->nodes[k])->in[i] = e->map[node_of(e, k)->in[i]];
        view_follow_input(g, node_of(e, k));
    }
    g->at = before;
}

static struct encoder begin(struct graph *g, enum program p, const struct settings *s)
{
    const struct order *order = &g->order[p];
    struct encoder e = {.g = g, .program = p, .forward = s->forward,
                        .nodes = mem_copy(order->nodes.at, order->nodes.n * sizeof(id)), .count = order->nodes.n,
                        .tensors = g->tensors.n};
    e.place = mem_alloc(g->nodes.n);
    e.trained = mem_alloc(g->scopes.n);
    return e;
}

static void end(struct encoder *e)
{
    mem_free(e->nodes);
    mem_free(e->place);
    mem_free(e->trained);
    mem_free(e->map);
}

int64_t encode_images(struct graph *g, const struct settings *s)
{
    int64_t most = 0;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) {
        struct encoder e = begin(g, p, s);
        if (find_nodes(&e)) most = max_i64(most, e.images);
        end(&e);
    }
    return most;
}

/* Makes each section of the sequence one of the images that are visited: it has room for a sample,
 * or several, so that a GPU's iterations suffice and sections are alike. */
static void cut_sequence(struct encoder *e)
{
    while (e->images % e->at_once) e->at_once++;
    e->g->sequence.section = e->at_once;
    e->images /= e->at_once;
    e->at_once = 1;
}

void pass_encode(struct graph *g, const struct settings *s)
{
    FOR_PROGRAMS(p, PROGRAM_FORWARD) {
        struct encoder e = begin(g, p, s);
        const bool found = !g->error.code && find_nodes(&e);
        g->sequence.apart |= found && e.sequence;
        if (s->encode && found) {
            const int64_t least = s->device.separate_memory ? (e.images + GPU_TRIPS - 1) / GPU_TRIPS : 1;
            e.at_once = min_i64(e.images, e.sequence ? least : max_i64(s->encode, least));
            if (e.sequence) cut_sequence(&e);
            e.trip = (uint32_t)((e.images + e.at_once - 1) / e.at_once);
            e.map = mem_alloc(e.tensors * sizeof *e.map);
            rewrite(&e);
        }
        end(&e);
    }
}
