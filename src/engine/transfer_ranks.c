/*
 * transfer_ranks.c: loading and saving with several ranks (see transfer.h).
 *
 *     rank 0     reads or writes the files
 *     others     serve: they wait for what rank 0 asks, until it ends the service
 *
 *     READ       elements of a shard: its owners send what they have
 *     PUT, WRITE elements of a parameter or a tensor that rank 0 has read: everyone keeps its own part
 *
 * So a file holds the same bytes for any number of ranks, and only rank 0 needs it.
 */
#include "engine/transfer_ranks.h"

enum request_kind { REQUEST_END, REQUEST_READ, REQUEST_PUT, REQUEST_WRITE };

struct request {
    int32_t kind, dtype;  /* dtype: of what follows a PUT */
    uint32_t target, unused; /* the index of a parameter, or a tensor */
    int64_t at, n;        /* elements; READ: bytes */
};

static struct ranks *ranks_of(const struct transfer *x) { return x->device->ranks; }

bool transfer_has_ranks(const struct transfer *x) { return ranks_of(x) && ranks_of(x)->n > 1; }

/* --- a shard ------------------------------------------------------------------------------------ */

struct span {
    uint64_t from, to;    /* bytes of the whole */
};

/* The part of bytes [at, at + n) of a whole that shard `number` has. */
static struct span span_of(const struct storage *s, int number, uint64_t at, uint64_t n)
{
    const uint64_t first = (uint64_t)number * s->bytes;
    struct span p = {at > first ? at : first, min_u64(at + n, first + s->bytes)};
    if (p.to < p.from) p.to = p.from;
    return p;
}

static int own_shard(const struct transfer *x) { return x->tape->shard; }

int shard_own(struct transfer *x, id tensor, uint64_t at, uint64_t n, char *data, bool write, struct error *e)
{
    const struct storage *s = storage_of(x->tape->graph, tensor);
    const struct span p = span_of(s, own_shard(x), at, n);
    char *stored = (char *)tape_address(x->tape, tensor) + (p.from - (uint64_t)own_shard(x) * s->bytes);
    if (p.from == p.to) return PL_OK;
    return write ? x->device->ops->write(x->device, stored, data + (p.from - at), p.to - p.from, e) : x->device->ops->read(x->device, data + (p.from - at), stored, p.to - p.from, e);
}

/* Every rank calls it with the same range: owners send their part to all others that hold a copy with them. */
static int gather_together(struct transfer *x, const struct storage *s, uint64_t at, uint64_t n, char *data, struct error *e)
{
    struct ranks *r = ranks_of(x);
    struct move *moves = mem_alloc(2 * (size_t)r->n * sizeof *moves);
    const struct span mine = span_of(s, own_shard(x), at, n);
    const int holders = x->tape->holders;
    int count = 0;
    for (int i = 0; i < holders; i++) {
        const struct span theirs = span_of(s, i, at, n);
        const int peer = ranks_member(r->n, r->rank, holders, false, ranks_holder(holders, x->tape->host, i));
        if (peer == r->rank) continue;
        if (mine.to > mine.from) moves[count++] = (struct move){peer, data + (mine.from - at), mine.to - mine.from, true};
        if (theirs.to > theirs.from) moves[count++] = (struct move){peer, data + (theirs.from - at), theirs.to - theirs.from, false};
    }
    const int rc = r->exchange(r, moves, count, e);
    mem_free(moves);
    return rc;
}

/* Rank 0 asks the owners: those of the first copy, to which it belongs. */
static int ask_owners(struct transfer *x, id tensor, const struct storage *s, uint64_t at, uint64_t n, char *data, struct error *e)
{
    struct ranks *r = ranks_of(x);
    struct move *moves = mem_alloc(2 * (size_t)r->n * sizeof *moves);
    struct request ask = {.kind = REQUEST_READ, .target = tensor, .at = (int64_t)at, .n = (int64_t)n};
    int count = 0;
    for (int i = 1; i < x->tape->holders; i++) {
        const struct span theirs = span_of(s, i, at, n);
        const int peer = ranks_holder(x->tape->holders, x->tape->host, i);
        if (theirs.to == theirs.from) continue;
        moves[count++] = (struct move){peer, &ask, sizeof ask, true};
        moves[count++] = (struct move){peer, data + (theirs.from - at), theirs.to - theirs.from, false};
    }
    const int rc = r->exchange(r, moves, count, e);
    mem_free(moves);
    return rc;
}

int shard_collect(struct transfer *x, id tensor, uint64_t at, uint64_t n, char *data, struct error *e)
{
    const struct storage *s = storage_of(x->tape->graph, tensor);
    int rc = shard_own(x, tensor, at, n, data, false, e);
    if (rc || !transfer_has_ranks(x)) return rc;
    return x->together ? gather_together(x, s, at, n, data, e) : ask_owners(x, tensor, s, at, n, data, e);
}

/* --- rank 0 -------------------------------------------------------------------------------------- */

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

int transfer_spread_put(struct transfer *x, const struct param *p, enum dtype from, int64_t at, int64_t n, struct error *e)
{
    const struct request q = {.kind = REQUEST_PUT, .dtype = (int32_t)from, .target = (uint32_t)(p - x->tape->graph->params.at), .at = at, .n = n};
    return tell(x, q, x->first, (uint64_t)n * dtype_size(from), e);
}

int transfer_spread_write(struct transfer *x, id tensor, int64_t at, int64_t n, const void *data, struct error *e)
{
    const struct request q = {.kind = REQUEST_WRITE, .target = tensor, .at = at, .n = n};
    return tell(x, q, data, (uint64_t)n * dtype_size(tensor_at(x->tape->graph, tensor)->dtype), e);
}

int transfer_release(struct transfer *x, struct error *e) { return transfer_has_ranks(x) ? tell(x, (struct request){.kind = REQUEST_END}, NULL, 0, e) : PL_OK; }

/* --- the others ---------------------------------------------------------------------------------- */

static int receive(struct ranks *r, void *at, uint64_t bytes, struct error *e) { return r->exchange(r, &(struct move){0, at, bytes, false}, 1, e); }

static int answer_read(struct transfer *x, const struct request *q, struct error *e)
{
    const struct span mine = span_of(storage_of(x->tape->graph, q->target), own_shard(x), (uint64_t)q->at, (uint64_t)q->n);
    int rc = shard_own(x, q->target, mine.from, mine.to - mine.from, x->first, false, e);
    return rc ? rc : ranks_of(x)->exchange(ranks_of(x), &(struct move){0, x->first, mine.to - mine.from, true}, 1, e);
}

static int take(struct transfer *x, const struct request *q, struct error *e)
{
    const struct graph *g = x->tape->graph;
    const enum dtype t = q->kind == REQUEST_PUT ? (enum dtype)q->dtype : (enum dtype)tensor_at(g, q->target)->dtype;
    struct bad ignored; /* rank 0 reports it */
    int rc = receive(ranks_of(x), x->first, (uint64_t)q->n * dtype_size(t), e);
    if (rc) return rc;
    return q->kind == REQUEST_PUT ? transfer_put(x, &g->params.at[q->target], t, q->at, q->n, &ignored, e) : transfer_write(x, q->target, q->at, q->n, x->first, e);
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
