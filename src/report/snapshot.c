/*
 * snapshot.c: PyTorch's memory snapshot, a pickle of protocol 2 (see trace.h).
 *
 *     {segments: [{address, total_size, blocks: [{size, requested_size, state, frames}...]...}],
 *      device_traces: [[{action, addr, size, stream, time_us, frames}...]]}
 *
 * The arena is the only segment. Its blocks, which tile it, are the persistent storages; transient
 * storages are in the trace. The frames give the tensor, the op about to run and the module, in
 * place of PyTorch's stack trace of an allocation. Items are appended one by one, because the
 * page's reader limits the number of items per append.
 */
#include "graph/ops.h"
#include "report/trace.h"

/* The viewer prints addresses in hexadecimal: with this base the offset stays readable. */
static const uint64_t BASE = (uint64_t)1 << 40;

/* --- the pickle ------------------------------------------------------------------- */

static void op(struct text *t, char code) { text_append(t, &code, 1); }

static void put_bytes(struct text *t, uint64_t x, int n)
{
    for (int i = 0; i < n; i++) op(t, (char)(x >> (8 * i)));
}

static void put_string(struct text *t, const char *s)
{
    op(t, 'X');
    put_bytes(t, strlen(s), 4);
    text_append(t, s, strlen(s));
}

/* Writes 8 bytes; the highest bit must be clear, as the format is signed. */
static void put_number(struct text *t, uint64_t x)
{
    op(t, (char)0x8a);
    op(t, 8);
    put_bytes(t, x, 8);
}

static void member_number(struct text *t, const char *key, uint64_t x)
{
    put_string(t, key);
    put_number(t, x);
    op(t, 's');
}

static void member_string(struct text *t, const char *key, const char *s)
{
    put_string(t, key);
    put_string(t, s);
    op(t, 's');
}

/* --- contents ------------------------------------------------------------------------- */

static void put_frame(struct text *t, const char *file, const char *name, uint64_t line)
{
    op(t, '}');
    member_string(t, "filename", file);
    member_number(t, "line", line);
    member_string(t, "name", name);
    op(t, 'a');
}

/* Writes the member "frames": the tensor as the innermost frame, then op and module. */
static void put_frames(struct text *t, const struct graph *g, const char *name, enum kind kind, id node,
                       uint32_t position)
{
    put_string(t, "frames");
    op(t, ']');
    put_frame(t, kind_name(kind), name, 0);
    if (node) {
        const struct node *n = node_at(g, node);
        put_frame(t, phase_name(n->phase), op_table[n->op].name, position);
        put_frame(t, "module", n->scope ? graph_name(g, g->scopes.at[n->scope].name) : "the step", 0);
    }
    op(t, 's');
}

static void put_block(struct text *t, const struct graph *g, id storage, uint64_t address, uint64_t bytes)
{
    const struct storage *x = &g->storages.at[storage];
    op(t, '}');
    member_number(t, "address", BASE + address);
    member_number(t, "size", bytes);
    member_number(t, "requested_size", storage ? x->bytes : bytes);
    member_string(t, "state", storage ? "active_allocated" : "inactive");
    if (storage) {
        put_frames(t, g, graph_name(g, x->name), x->kind, 0, 0);
    } else {
        put_string(t, "frames");
        op(t, ']');
        op(t, 's');
    }
    op(t, 'a');
}

struct persistent_block {
    id storage;
    uint64_t offset, bytes;
};

static int by_offset(const void *a, const void *b)
{
    const struct persistent_block *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Writes the persistent storages, with inactive blocks for the gaps; returns the bytes in use. */
static uint64_t put_blocks(struct text *t, const struct plan *p, const struct graph *g)
{
    struct persistent_block *all = mem_alloc(g->storages.n * sizeof *all);
    uint32_t n = 0;
    uint64_t at = 0, used = 0;
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (lives_is_persistent(p, g, s) && x->bytes)
            all[n++] = (struct persistent_block){s, p->placement.offset[s], align_up(x->bytes, PLAN_ALIGN)};
    }
    qsort(all, n, sizeof *all, by_offset);
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].offset > at) put_block(t, g, 0, at, all[i].offset - at);
        put_block(t, g, all[i].storage, all[i].offset, all[i].bytes);
        at = all[i].offset + all[i].bytes;
        used += all[i].bytes;
    }
    if (at < plan_arena(p)) put_block(t, g, 0, at, plan_arena(p) - at);
    mem_free(all);
    return used;
}

static void put_segment(struct text *t, const struct plan *p, const struct graph *g)
{
    op(t, '}');
    member_number(t, "device", 0);
    member_number(t, "address", BASE);
    member_number(t, "total_size", plan_arena(p));
    member_number(t, "stream", 0);
    member_string(t, "segment_type", "large");
    put_string(t, "blocks");
    op(t, ']');
    uint64_t used = put_blocks(t, p, g);
    op(t, 's');
    member_number(t, "allocated_size", used);
    member_number(t, "active_size", used);
    member_number(t, "requested_size", used);
    op(t, 'a');
}

static void put_event(struct text *t, const struct graph *g, const struct lives_event *v, const char *action,
                      uint64_t time)
{
    op(t, '}');
    member_string(t, "action", action);
    member_number(t, "addr", BASE + v->offset);
    member_number(t, "size", v->bytes);
    member_number(t, "stream", 0);
    member_number(t, "time_us", time);
    put_frames(t, g, lives_name(g, v), lives_kind(g, v), v->node, v->position);
    op(t, 'a');
}

void snapshot_write(const struct plan *p, const struct graph *g, const struct lives *l, struct text *out)
{
    op(out, (char)0x80);
    op(out, 2);
    op(out, '}');
    put_string(out, "segments");
    op(out, ']');
    put_segment(out, p, g);
    op(out, 's');
    put_string(out, "device_traces");
    op(out, ']');
    op(out, ']');
    for (uint32_t i = 0; i < l->events.n; i++) {
        const struct lives_event *v = &l->events.at[i];
        if (!v->bytes) continue;
        if (v->birth) {
            put_event(out, g, v, "alloc", i);
        } else {
            put_event(out, g, v, "free_requested", i);
            put_event(out, g, v, "free_completed", i);
        }
    }
    op(out, 'a');
    op(out, 's');
    op(out, '.');
}
