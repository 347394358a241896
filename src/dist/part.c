/*
 * part.c: see part.h.
 */
#include "dist/part.h"

#include <string.h>

#include "dist/agree.h"

struct part {
    struct ranks *all;
    int *members;
    struct move *moves;  /* room for those of an exchange or a gather */
    int room;
};

static struct move *reserve(struct part *p, int n)
{
    if (n > p->room) p->moves = mem_resize(p->moves, (size_t)(p->room = n) * sizeof *p->moves);
    return p->moves;
}

/* The moves in `p->moves`, between ranks of the part. */
static int move_all(struct ranks *r, int n, struct error *e)
{
    struct part *p = r->state;
    const double before = p->all->moving;
    for (int i = 0; i < n; i++) p->moves[i].peer = p->members[p->moves[i].peer];
    p->all->where = r->where;
    int rc = p->all->exchange(p->all, p->moves, n, e);
    p->all->where = NULL;
    r->moving += p->all->moving - before;
    return rc;
}

static int exchange(struct ranks *r, const struct move *moves, int n, struct error *e)
{
    memcpy(reserve(r->state, n), moves, (size_t)n * sizeof *moves);
    return move_all(r, n, e);
}

static int gather(struct ranks *r, const void *mine, void *all, size_t each, struct error *e)
{
    struct move *moves = reserve(r->state, 2 * r->n);
    int n = 0;
    memcpy((char *)all + (size_t)r->rank * each, mine, each);
    for (int i = 0; i < r->n; i++) {
        if (i == r->rank) continue;
        moves[n++] = (struct move){i, (char *)all + (size_t)i * each, each, false};
        moves[n++] = (struct move){i, (char *)all + (size_t)r->rank * each, each, true};
    }
    return move_all(r, n, e);
}

static void end_now(struct ranks *r, int code, const char *why)
{
    struct part *p = r->state;
    p->all->abort(p->all, code, why);
}

struct ranks *part_open(struct ranks *all, const int *members, int n)
{
    struct ranks *r = mem_copy(all, sizeof *all);
    struct part *p = mem_alloc(sizeof *p);
    p->all = all;
    p->members = mem_copy(members, (size_t)n * sizeof *members);
    r->n = n;
    r->rank = -1;
    for (int i = 0; i < n; i++)
        if (members[i] == all->rank) r->rank = i;
    CHECK(r->rank >= 0, "rank %d is not in its part", all->rank);
    r->state = p;
    r->exchange = exchange;
    r->gather = gather;
    r->abort = end_now;
    agree_open(r);
    return r;
}

void part_close(struct ranks *r)
{
    struct part *p = r->state;
    mem_free(p->members);
    mem_free(p->moves);
    mem_free(p);
    mem_free(r->room);
    mem_free(r);
}
