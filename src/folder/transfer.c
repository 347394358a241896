/*
 * transfer.c: chunks of elements between files and the arenas (see transfer.h).
 *
 * Invariant: bytes reach the arenas only through the device's write, and every weight that is
 * written is finite in its dtype.
 *
 * With several ranks:
 *
 *     rank 0     reads or writes the files
 *     others     serve: they wait for what rank 0 asks, until it ends the service
 *
 *     READ       elements of a shard: its owners send what they have
 *     PUT, WRITE elements of a parameter or a tensor that rank 0 has read: everyone keeps its own
 *     part
 *
 * So a file holds the same bytes for any number of ranks, and only rank 0 needs it.
 */
#include "folder/transfer.h"

#include <math.h>

#include "graph/division.h"
#include "graph/stored.h"
#include "run/ranks.h"

/* The largest element has 8 bytes; the halves are aligned to cache lines. */
enum { ELEMENT_MOST = 8, HALF_ALIGN = 64 };

void transfer_init(struct transfer *x, struct device *d, const struct tape *t, void *staging, uint64_t bytes)
{
    CHECK(bytes >= TRANSFER_LEAST && (uintptr_t)staging % ELEMENT_MOST == 0, "a staging buffer of %llu bytes at %p",
          (unsigned long long)bytes, staging);
    uint64_t half = bytes / 2 / HALF_ALIGN * HALF_ALIGN;
    int64_t room = (int64_t)(half / ELEMENT_MOST);
    if (room > STORED_GROUP) room -= room % STORED_GROUP; /* a chunk begins at a group of every form */
    *x = (struct transfer){
        .device = d, .tape = t, .first = staging, .second = (char *)staging + half, .bytes = bytes, .room = room};
}

void transfer_end(struct transfer *x)
{
    mem_free(x->kept);
    mem_free(x->values);
    x->kept = NULL;
    x->values = NULL;
}

/* --- finite or not ------------------------------------------------------------------ */

/* Reports whether an element of a block is not finite: its exponent is all ones. The test is a
 * reduction without branches, which vectorises; only a bad block is searched. */
static bool any_nonfinite_16(const uint16_t *x, int64_t n, uint16_t exponent)
{
    uint16_t any = 0;
    for (int64_t i = 0; i < n; i++) any |= (uint16_t)-((x[i] & exponent) == exponent);
    return any;
}

static bool any_nonfinite_32(const uint32_t *x, int64_t n)
{
    uint32_t any = 0;
    for (int64_t i = 0; i < n; i++) any |= (uint32_t)-((x[i] & 0x7f800000u) == 0x7f800000u);
    return any;
}

static bool any_nonfinite(const void *data, enum dtype t, int64_t n)
{
    switch (t) {
    case DT_F32: return any_nonfinite_32(data, n);
    case DT_BF16: return any_nonfinite_16(data, n, 0x7f80);
    case DT_F16: return any_nonfinite_16(data, n, 0x7c00);
    default: return true; /* the element search decides */
    }
}

int64_t transfer_nonfinite(const void *data, enum dtype t, int64_t n)
{
    if (!dtype_is_float(t) || !any_nonfinite(data, t, n)) return -1;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(dtype_load(data, t, i))) return i;
    return -1;
}

/* Checks `to`, converted from `from`; true if an element is not finite. */
static bool find_bad(struct bad *bad, const void *to, enum dtype t, const void *from, enum dtype t_from, int64_t at,
                     int64_t n)
{
    int64_t i = transfer_nonfinite(to, t, n);
    *bad = (struct bad){.index = -1};
    if (i < 0) return false;
    *bad = (struct bad){at + i, dtype_load(from, t_from, i), t};
    return true;
}

enum request_kind { REQUEST_END, REQUEST_READ, REQUEST_PUT, REQUEST_WRITE };

struct request {
    int32_t kind, dtype;  /* dtype: of what follows a PUT */
    uint32_t target, unused; /* the index of a parameter, or a tensor */
    int64_t at, n;           /* elements; READ: positions (struct walk) */
};

static struct ranks *ranks_of(const struct transfer *x) { return x->device->ranks; }

bool transfer_has_ranks(const struct transfer *x) { return ranks_of(x) && ranks_of(x)->n > 1; }

/* --- who has what --------------------------------------------------------------------------------
 *
 * A tensor may be divided among the ranks of AXIS_TENSOR (graph/division.h), and each of its parts
 * among those that add gradients (graph/shard.h). A range of it is then several pieces:
 *
 *     whole     [ row 0: part 0 | part 1 ][ row 1: part 0 | part 1 ] ...    n elements from `at` on
 *     pieces      of rank 0       of 1       of 0           of 1
 *
 * Positions count elements of a divided tensor, and bytes of any other one, which may be packed. */

/* A piece of a range. */
struct piece {
    int owner;            /* a rank */
    id storage;           /* on that rank */
    uint64_t from, bytes; /* in its memory */
    uint64_t at;          /* bytes from the begin of the range */
};

/* Visits the pieces of a range, in order. */
struct walk {
    const struct transfer *x;
    id tensor;
    int reader;  /* the rank that reads */
    bool shared; /* who owns a piece is the same for all readers; else they are owners themselves if they can */
    uint64_t at, begin, end, unit; /* positions, and bytes of one */
    const struct division *division;
    id part[16]; /* storages of the parts that a rank holds */
};

enum { PARTS_MOST = (int)(sizeof((struct walk *)0)->part / sizeof(id)) };

static int world_of(const struct transfer *x) { return transfer_has_ranks(x) ? ranks_of(x)->n : 1; }
static int own_rank(const struct transfer *x) { return transfer_has_ranks(x) ? ranks_of(x)->rank : 0; }

/* Lists the storages of all parts of a tensor on this rank. */
static void list_parts(struct walk *w)
{
    const struct graph *g = w->x->tape->graph;
    const struct storage of = *storage_of(g, w->tensor);
    const int parts = w->division->here / (int)min_i64(w->division->here, w->division->section[0].copies);
    CHECK(parts <= PARTS_MOST, "%d parts", parts);
    w->part[0] = tensor_at(g, w->tensor)->storage;
    for (id s = 1; s < g->storages.n && parts > 1; s++) {
        const struct storage *y = &g->storages.at[s];
        if (y->division == of.division && y->kind == of.kind && y->name == of.name) w->part[y->part] = s;
    }
}

static struct walk walk_begin(const struct transfer *x, id tensor, int reader, uint64_t at, uint64_t n)
{
    const struct graph *g = x->tape->graph;
    struct walk w = {.x = x,
                     .tensor = tensor,
                     .reader = reader,
                     .at = at,
                     .begin = at,
                     .end = at + n,
                     .unit = 1,
                     .division = division_of(g, tensor),
                     .part = {tensor_at(g, tensor)->storage}};
    if (!w.division) return w;
    w.unit = dtype_size(tensor_at(g, tensor)->dtype);
    list_parts(&w);
    return w;
}

/* Finds the next piece without regard to shards: `from` counts bytes of the part. */
static struct piece next_of_parts(struct walk *w)
{
    const struct division *d = w->division;
    const struct mesh mesh = w->x->tape->graph->mesh;
    struct piece p = {.owner = w->reader, .storage = w->part[0], .from = w->at, .bytes = w->end - w->at};
    if (d) {
        const struct division_run r = division_run(d, (int64_t)w->at);
        const int place = mesh_place(mesh, w->reader, AXIS_TENSOR), first = r.part / d->here,
                  last = (r.part + r.copies - 1) / d->here,
                  owner = place >= first && place <= last && !w->shared ? place : first,
                  each = (int)min_i64(d->here, r.copies), number = r.part > owner * d->here ? r.part % d->here : 0;
        p.owner = mesh_rank(mesh, w->reader, AXIS_TENSOR, owner);
        p.storage = w->part[number / each];
        p.from = (uint64_t)r.at * w->unit;
        p.bytes = min_u64((uint64_t)r.n, w->end - w->at) * w->unit;
    }
    return p;
}

/* Finds the next piece, and moves behind it; false: there is none. */
static bool walk_next(struct walk *w, struct piece *p)
{
    const struct transfer *x = w->x;
    if (w->at == w->end) return false;
    *p = next_of_parts(w);
    p->at = (w->at - w->begin) * w->unit;
    const struct storage *s = &x->tape->graph->storages.at[p->storage];
    if (s->shard) {
        const int shard = (int)(p->from / s->bytes), holders = x->tape->holders;
        const struct rank_group g = ranks_group(x->tape->graph->mesh, world_of(x), p->owner, AXIS_DATA, holders, false);
        p->owner = world_of(x) > 1 ? ranks_member(&g, ranks_holder(holders, x->tape->host, shard)) : p->owner;
        p->from %= s->bytes;
        p->bytes = min_u64(p->bytes, s->bytes - p->from);
    }
    w->at += p->bytes / w->unit;
    return true;
}

/* --- this rank's own pieces ------------------------------------------------------------------- */

static char *address_of(const struct transfer *x, id storage)
{
    const struct storage *s = &x->tape->graph->storages.at[storage];
    return x->tape->arena[s->space] + x->tape->placement->offset[storage];
}

/* Copies between a storage and memory, what follows each other there at once. */
struct run_of_bytes {
    id storage;
    uint64_t from, n;
    char *memory;
};

static int copy_run(struct transfer *x, struct run_of_bytes *r, bool write, struct error *e)
{
    char *stored = r->n ? address_of(x, r->storage) + r->from : NULL;
    const uint64_t n = r->n;
    r->n = 0;
    if (!n) return PL_OK;
    return write ? x->device->ops->write(x->device, stored, r->memory, n, e)
                 : x->device->ops->read(x->device, r->memory, stored, n, e);
}

/* Reads what this rank owns of a range, for a reader: piece behind piece in `to`. */
static int read_own(struct transfer *x, struct walk w, char *to, uint64_t *bytes, struct error *e)
{
    struct run_of_bytes r = {0};
    struct piece p;
    *bytes = 0;
    while (walk_next(&w, &p)) {
        if (p.owner != own_rank(x)) continue;
        if (r.n && (r.storage != p.storage || r.from + r.n != p.from)) TRY(copy_run(x, &r, false, e));
        if (!r.n) r = (struct run_of_bytes){p.storage, p.from, 0, to + *bytes};
        r.n += p.bytes;
        *bytes += p.bytes;
    }
    return copy_run(x, &r, false, e);
}

/* Keeps what this rank holds of a range. Short pieces that follow each other are written at
 * once. */
static int write_own(struct transfer *x, struct walk w, const char *data, struct error *e)
{
    char packed[16 << 10];
    struct run_of_bytes r = {0};
    struct piece p;
    while (walk_next(&w, &p)) {
        const bool is_long = p.bytes > sizeof packed;
        if (p.owner != own_rank(x)) continue;
        if (is_long || r.storage != p.storage || r.from + r.n != p.from || r.n + p.bytes > sizeof packed)
            TRY(copy_run(x, &r, true, e));
        if (is_long) {
            TRY(x->device->ops->write(x->device, address_of(x, p.storage) + p.from, data + p.at, p.bytes, e));
            continue;
        }
        if (!r.n) r = (struct run_of_bytes){p.storage, p.from, 0, packed};
        memcpy(packed + r.n, data + p.at, p.bytes);
        r.n += p.bytes;
    }
    return copy_run(x, &r, true, e);
}

/* --- the pieces of others --------------------------------------------------------------------- */

/* Adds up, by owner, the bytes of a range that a reader gets. */
static void count_owners(struct walk w, uint64_t *bytes)
{
    struct piece p;
    while (walk_next(&w, &p)) bytes[p.owner] += p.bytes;
}

/* Puts the pieces where they belong: those of an owner follow each other in `packed`, from first
 * [owner] on. */
static void unpack(struct walk w, const char *packed, uint64_t *first, char *data)
{
    struct piece p;
    while (walk_next(&w, &p)) {
        memcpy(data + p.at, packed + first[p.owner], p.bytes);
        first[p.owner] += p.bytes;
    }
}

/* Reports whether a rank reads this one's pieces, where all read together. */
static bool reads_own(const struct transfer *x, const struct walk *w, int reader)
{
    const struct mesh mesh = x->tape->graph->mesh;
    const bool sharded = storage_of(x->tape->graph, w->tensor)->shard;
    const int holders = sharded ? x->tape->holders : 1, me = own_rank(x);
    for (enum rank_axis axis = AXIS_TENSOR; axis <= AXIS_PIPELINE; axis++)
        if (axis != AXIS_CONTEXT && !(axis == AXIS_TENSOR && w->division) &&
            mesh_place(mesh, reader, axis) != mesh_place(mesh, me, axis))
            return false;
    return reader != me && mesh_place(mesh, reader, AXIS_DATA) / holders == mesh_place(mesh, me, AXIS_DATA) / holders;
}

/* Exchanges what this rank gets of others into x->second, where its own pieces are first: `asks` is
 * sent to the owners, or where all read together its own pieces are, to all that read them. */
static int exchange_pieces(struct transfer *x, const struct walk *w, const struct request *asks, uint64_t own,
                           uint64_t *first, struct error *e)
{
    struct ranks *r = ranks_of(x);
    struct move *moves = mem_alloc(2 * (size_t)r->n * sizeof *moves);
    uint64_t at = own;
    int count = 0;
    for (int peer = 0; peer < r->n; peer++) {
        const uint64_t n = first[peer];
        first[peer] = peer == r->rank ? 0 : at;
        if (peer == r->rank) continue;
        if (asks && n) moves[count++] = (struct move){peer, (void *)(uintptr_t)asks, sizeof *asks, true};
        if (!asks && own && reads_own(x, w, peer)) moves[count++] = (struct move){peer, x->second, own, true};
        if (n) moves[count++] = (struct move){peer, x->second + at, n, false};
        at += n;
    }
    CHECK(at <= x->bytes / 2, "pieces of %llu bytes", (unsigned long long)at);
    const int rc = count || !asks ? r->exchange(r, moves, count, e) : PL_OK;
    mem_free(moves);
    return rc;
}

/* Reads a range of a tensor, whoever has it, into `data`, which is not x->second. */
static int collect(struct transfer *x, id tensor, uint64_t at, uint64_t n, char *data, struct error *e)
{
    struct walk w = walk_begin(x, tensor, own_rank(x), at, n);
    const struct request ask = {.kind = REQUEST_READ, .target = tensor, .at = (int64_t)at, .n = (int64_t)n};
    uint64_t *first = mem_alloc((size_t)world_of(x) * sizeof *first), own;
    w.shared = x->together;
    count_owners(w, first);
    int rc = read_own(x, w, x->second, &own, e);
    if (!rc && transfer_has_ranks(x)) rc = exchange_pieces(x, &w, x->together ? NULL : &ask, own, first, e);
    else first[own_rank(x)] = 0;
    if (!rc) unpack(w, x->second, first, data);
    mem_free(first);
    return rc;
}

/* --- rank 0 tells the others ------------------------------------------------------------------ */

/* Sends a request to all others, and what follows it. */
static int tell(struct transfer *x, struct request q, const void *data, uint64_t bytes, struct error *e)
{
    struct ranks *r = ranks_of(x);
    struct move *moves = mem_alloc(2 * (size_t)r->n * sizeof *moves);
    int count = 0;
    for (int peer = 1; peer < r->n; peer++) {
        moves[count++] = (struct move){peer, &q, sizeof q, true};
        if (bytes) moves[count++] = (struct move){peer, (void *)(uintptr_t)data, bytes, true};
    }
    const int rc = r->exchange(r, moves, count, e);
    mem_free(moves);
    return rc;
}

/* Sends to the others what rank 0 puts or writes. */
static int spread_put(struct transfer *x, const struct param *p, enum dtype from, int64_t at, int64_t n,
                      struct error *e)
{
    const struct request q = {.kind = REQUEST_PUT, .dtype = (int32_t)from,
                              .target = (uint32_t)(p - x->tape->graph->params.at), .at = at, .n = n};
    return tell(x, q, x->first, (uint64_t)n * dtype_size(from), e);
}

static int spread_write(struct transfer *x, id tensor, int64_t at, int64_t n, const void *data, struct error *e)
{
    const struct request q = {.kind = REQUEST_WRITE, .target = tensor, .at = at, .n = n};
    return tell(x, q, data, (uint64_t)n * dtype_size(tensor_at(x->tape->graph, tensor)->dtype), e);
}

/* --- moving --------------------------------------------------------------------------- */

/* Moves positions [at, at + n) of a tensor (struct walk), whoever holds them. */
static int move_range(struct transfer *x, id tensor, uint64_t at, uint64_t n, char *data, bool write, struct error *e)
{
    char *stored = (char *)tape_address(x->tape, tensor) + at;
    if (storage_of(x->tape->graph, tensor)->shard || division_of(x->tape->graph, tensor))
        return write ? write_own(x, walk_begin(x, tensor, own_rank(x), at, n), data, e)
                     : collect(x, tensor, at, n, data, e);
    return write ? x->device->ops->write(x->device, stored, data, n, e)
                 : x->device->ops->read(x->device, data, stored, n, e);
}

int transfer_write_bytes(struct transfer *x, id tensor, uint64_t at, uint64_t n, const void *data, struct error *e)
{
    return move_range(x, tensor, at, n, (char *)(uintptr_t)data, true, e);
}

/* Moves elements [at, at + n) of a tensor, in its stored form: its parts lie in `data` as in a
 * storage of n elements. Only dense tensors are saved and loaded. */
static int move(struct transfer *x, id tensor, int64_t at, int64_t n, char *data, bool write, struct error *e)
{
    const struct graph *g = x->tape->graph;
    const struct tensor *t = tensor_at(g, tensor);
    const struct stored_form *f = tensor_form(g, t);
    CHECK(tensor_is_dense(t) && at >= 0 && n >= 0 && at + n <= tensor_elements(t) && at % f->group == 0,
          "%s: elements %lld + %lld", graph_name(g, t->name), (long long)at, (long long)n);
    if (division_of(g, tensor)) return move_range(x, tensor, (uint64_t)at, (uint64_t)n, data, write, e);
    const struct stored_shape all = stored_shape_of(t), chunk = stored_chunk_of(t, n), before = stored_chunk_of(t, at);
    for (int i = 0; i < f->n_parts; i++) {
        const uint64_t bytes = stored_part_bytes(f, i, chunk);
        const uint64_t stored = stored_part_offset(f, i, all) + stored_part_at(f, i, before);
        TRY(move_range(x, tensor, stored, bytes, data + stored_part_offset(f, i, chunk), write, e));
    }
    return PL_OK;
}

/* Finds where the parts of a chunk begin in `data`, for move. */
static void parts_of(const struct stored_form *f, struct stored_shape s, char *data, void *parts[STORED_PARTS])
{
    for (int i = 0; i < f->n_parts; i++) parts[i] = data + stored_part_offset(f, i, s);
}

static bool is_plain(const struct transfer *x, id tensor) { return !storage_of(x->tape->graph, tensor)->form; }

/* Packs values of dtype `from` into the tensor's stored form; false: one of them is not finite, or
 * not in a plain tensor's dtype. */
static bool pack(const struct transfer *x, id tensor, char *to, const void *values, enum dtype from, int64_t at,
                 int64_t n, struct bad *bad)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    void *parts[STORED_PARTS];
    parts_of(f, stored_chunk_of(t, n), to, parts);
    f->pack(parts, stored_chunk_of(t, n), values, from);
    return !(is_plain(x, tensor) ? find_bad(bad, to, t->dtype, values, from, at, n)
                                 : find_bad(bad, values, from, values, from, at, n));
}

int transfer_write(struct transfer *x, id tensor, int64_t at, int64_t n, const void *data, struct error *e)
{
    if (x->spreads && spread_write(x, tensor, at, n, data, e)) return e->code;
    return move(x, tensor, at, n, (char *)(uintptr_t)data, true, e);
}

static int write_part(struct transfer *x, id tensor, int part, int64_t at, int64_t n, const void *data, struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    const uint64_t to =
        stored_part_offset(f, part, stored_shape_of(t)) + stored_part_at(f, part, stored_chunk_of(t, at));
    return move_range(x, tensor, to, stored_part_bytes(f, part, stored_chunk_of(t, n)), (char *)(uintptr_t)data, true,
                      e);
}

/* Writes the parts of a tensor: all, packed from its values; or from the second on, which need what
 * was kept while the first was packed. */
static int write_parts(struct transfer *x, id tensor, int first, struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    const struct stored_shape s = stored_shape_of(t);
    void *parts[STORED_PARTS] = {NULL};
    for (int i = first; i < f->n_parts; i++) parts[i] = mem_alloc(stored_part_bytes(f, i, s));
    if (first) f->finish(parts, x->kept, s.n);
    else f->pack(parts, s, x->values, t->dtype);
    int rc = PL_OK;
    for (int i = first; i < f->n_parts; i++) {
        if (!rc) rc = write_part(x, tensor, i, 0, s.n, parts[i], e);
        mem_free(parts[i]);
    }
    transfer_end(x);
    return rc;
}

/* Puts a chunk of a tensor whose form needs the whole tensor. */
static int put_kept(struct transfer *x, id tensor, enum dtype from, int64_t at, int64_t n, struct bad *bad,
                    struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    const int64_t elements = tensor_elements(t);
    dtype_convert(x->second, t->dtype, x->first, from, n);
    if (find_bad(bad, x->second, t->dtype, x->first, from, at, n)) return PL_OK;
    if (!at) {
        transfer_end(x);
        x->kept = mem_alloc((size_t)((elements + f->kept - 1) / f->kept) * sizeof *x->kept);
    }
    CHECK(x->kept && at % f->group == 0, "%s: chunks in order", graph_name(x->tape->graph, t->name));
    f->pack((void *[STORED_PARTS]){x->second, x->kept + at / f->kept}, stored_chunk_of(t, n), x->first, from);
    int rc = write_part(x, tensor, 0, at, n, x->second, e);
    return rc || at + n < elements ? rc : write_parts(x, tensor, 1, e);
}

/* Puts a chunk of a tensor whose form is packed at once: keeps its values until all are there. */
static int put_whole(struct transfer *x, id tensor, enum dtype from, int64_t at, int64_t n, struct bad *bad,
                     struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const int64_t elements = tensor_elements(t), size = dtype_size(t->dtype);
    if (!at) {
        transfer_end(x);
        x->values = mem_alloc((size_t)(elements * size));
    }
    CHECK(x->values, "%s: chunks in order", graph_name(x->tape->graph, t->name));
    dtype_convert(x->values + at * size, t->dtype, x->first, from, n);
    if (find_bad(bad, x->values + at * size, t->dtype, x->first, from, at, n)) return PL_OK;
    return at + n < elements ? PL_OK : write_parts(x, tensor, 0, e);
}

int transfer_put(struct transfer *x, const struct param *p, enum dtype from, int64_t at, int64_t n, struct bad *bad,
                 struct error *e)
{
    const struct graph *g = x->tape->graph;
    enum dtype master = tensor_at(g, p->master)->dtype, work = tensor_at(g, p->tensor)->dtype;
    CHECK(n <= x->room && dtype_is_float(master) && dtype_is_float(work));
    if (x->spreads && spread_put(x, p, from, at, n, e)) return e->code;
    const struct stored_form *f = tensor_form(g, tensor_at(g, p->master));
    if (f->kept || f->whole) {
        CHECK(p->tensor == p->master, "a master weight is plain");
        return (f->whole ? put_whole : put_kept)(x, p->master, from, at, n, bad, e);
    }
    if (!pack(x, p->master, x->second, x->first, from, at, n, bad)) return PL_OK;
    if (p->tensor == p->master) return move(x, p->master, at, n, x->second, true, e);
    /* The source is not needed any more: its half is reused for the working copy. */
    CHECK(is_plain(x, p->master), "a master weight is plain");
    if (!pack(x, p->tensor, x->first, x->second, master, at, n, bad)) return PL_OK;
    int rc = move(x, p->master, at, n, x->second, true, e);
    return rc ? rc : move(x, p->tensor, at, n, x->first, true, e);
}

/* Gets a chunk of a tensor in rows of codes, row by row: a chunk may begin and end within one. */
static int get_rows(struct transfer *x, id tensor, enum dtype to, int64_t at, int64_t n, struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    const int64_t C = tensor_last(t), first = at / C, rows = (at + n - 1) / C - first + 1;
    const uint64_t codes = align_up((uint64_t)n, sizeof(float)), scales = stored_part_offset(f, 1, stored_shape_of(t));
    CHECK(codes + (uint64_t)rows * sizeof(float) <= x->bytes / 2);
    TRY(move_range(x, tensor, (uint64_t)at, (uint64_t)n, x->first, false, e));
    TRY(move_range(x, tensor, scales + (uint64_t)first * sizeof(float), (uint64_t)rows * sizeof(float),
                   x->first + codes, false, e));
    for (int64_t i = 0, part; i < n; i += part) {
        part = min_i64(n - i, C - (at + i) % C);
        const void *parts[STORED_PARTS] = {x->first + i,
                                           (const float *)(const void *)(x->first + codes) + (at + i) / C - first};
        f->unpack(x->second + i * dtype_size(to), to, parts, (struct stored_shape){t->dtype, part, part});
    }
    return PL_OK;
}

int transfer_get(struct transfer *x, id tensor, enum dtype to, int64_t at, int64_t n, const void **data,
                 struct bad *bad, struct error *e)
{
    const struct tensor *t = tensor_at(x->tape->graph, tensor);
    const struct stored_form *f = tensor_form(x->tape->graph, t);
    if (f->whole) {
        TRY(get_rows(x, tensor, to, at, n, e));
        *data = x->second;
        if (bad) find_bad(bad, *data, to, *data, to, at, n);
        return PL_OK;
    }
    const enum dtype from = t->dtype;
    const int64_t before = at % f->group, all = before + n; /* from the begin of a group on */
    CHECK(n <= x->room && (uint64_t)all * dtype_size(to) <= x->bytes / 2);
    TRY(move(x, tensor, at - before, all, x->first, false, e));
    const bool plain = is_plain(x, tensor), as_is = from == to && plain;
    void *parts[STORED_PARTS];
    parts_of(f, stored_chunk_of(t, all), x->first, parts);
    if (!as_is) f->unpack(x->second, to, (const void *const *)parts, stored_chunk_of(t, all));
    *data = as_is ? x->first : x->second + before * dtype_size(to);
    if (bad) find_bad(bad, *data, to, plain ? x->first : *data, plain ? from : to, at, n);
    return PL_OK;
}

/* --- serving rank 0 --------------------------------------------------------------------------- */

int transfer_release(struct transfer *x, struct error *e)
{
    return transfer_has_ranks(x) ? tell(x, (struct request){.kind = REQUEST_END}, NULL, 0, e) : PL_OK;
}

static int receive(struct ranks *r, void *at, uint64_t bytes, struct error *e)
{
    return r->exchange(r, &(struct move){0, at, bytes, false}, 1, e);
}

static int answer_read(struct transfer *x, const struct request *q, struct error *e)
{
    uint64_t n;
    TRY(read_own(x, walk_begin(x, q->target, 0, (uint64_t)q->at, (uint64_t)q->n), x->first, &n, e));
    return ranks_of(x)->exchange(ranks_of(x), &(struct move){0, x->first, n, true}, 1, e);
}

static int take(struct transfer *x, const struct request *q, struct error *e)
{
    const struct graph *g = x->tape->graph;
    const enum dtype t = q->kind == REQUEST_PUT ? (enum dtype)q->dtype : (enum dtype)tensor_at(g, q->target)->dtype;
    struct bad ignored; /* rank 0 reports it */
    TRY(receive(ranks_of(x), x->first, (uint64_t)q->n * dtype_size(t), e));
    return q->kind == REQUEST_PUT ? transfer_put(x, &g->params.at[q->target], t, q->at, q->n, &ignored, e)
                                  : transfer_write(x, q->target, q->at, q->n, x->first, e);
}

int transfer_serve(struct transfer *x, const char *what, struct error *e)
{
    struct ranks *r = ranks_of(x);
    const double timeout = r->timeout;
    int rc = PL_OK;
    r->timeout = 6 * timeout; /* rank 0 reads and writes files */
    r->where = what;
    for (;;) {
        struct request q;
        rc = receive(r, &q, sizeof q, e);
        if (rc || q.kind == REQUEST_END) break;
        rc = q.kind == REQUEST_READ ? answer_read(x, &q, e) : take(x, &q, e);
        if (rc) r->abort(r, PL_FAIL, e->text); /* rank 0 is in the middle of a file */
    }
    r->timeout = timeout;
    r->where = NULL;
    return rc;
}
