/*
 * agree.c: see agree.h.
 */
#include "base/system.h"
#include "dist/agree.h"
#include "io/file.h"

/* Allocates room for what all ranks say: an agreement and a message of each, and their times in
 * order. */
void agree_open(struct ranks *r)
{
    r->room = mem_alloc((size_t)r->n * (sizeof(struct agreement) + AGREE_TEXT + sizeof(double)));
}

static char *texts_of(const struct ranks *r) { return (char *)r->room + (size_t)r->n * sizeof(struct agreement); }
/* Returns room for AGREE_TEXT bytes of each rank, until the next agreement. */
static void *agree_room(const struct ranks *r) { return texts_of(r); }
static double *times_of(const struct ranks *r) { return (double *)(void *)(texts_of(r) + (size_t)r->n * AGREE_TEXT); }

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sums in the order of ranks; counts are whole numbers, so that their order does not matter. */
static void combine(const struct ranks *r, struct agreement *a)
{
    const struct agreement *all = r->room;
    double *times = times_of(r);
    *a = (struct agreement){0};
    for (int i = 0; i < r->n; i++) {
        for (int k = 0; k < AGREE_COUNTS; k++) a->count[k] += all[i].count[k];
        a->units += all[i].units;
        a->seen += all[i].seen;
        a->broken += all[i].broken;
        a->stop |= all[i].stop;
        times[i] = all[i].busy;
        if (all[i].busy > a->busy) a->busy = all[i].busy, a->slowest = i;
    }
    qsort(times, (size_t)r->n, sizeof *times, by_time);
    a->median = times[(r->n - 1) / 2];
}

/* Tells every rank the message of the first rank that failed, and returns its code. */
static int adopt_failure(struct ranks *r, int first, int rc, struct error *e)
{
    const struct agreement *all = r->room;
    char mine[AGREE_TEXT] = "";
    const int code = all[first].failed;
    int lost = 0;
    for (int i = 0; i < r->n; i++) lost += all[i].failed != 0;
    if (rc && lost < r->n) snprintf(mine, sizeof mine, "rank %d on %s: %s", r->rank, r->host, e->text);
    else if (rc) snprintf(mine, sizeof mine, "%s", e->text);
    r->ended = true;
    if (r->gather(r, mine, texts_of(r), AGREE_TEXT, e)) r->abort(r, PL_FAIL, e->text);
    return error_set(e, code, "%s", texts_of(r) + (size_t)first * AGREE_TEXT);
}

int agree(struct ranks *r, struct agreement *a, int rc, struct error *e)
{
    if (!r || !r->room || r->ended) return rc;
    struct error waiting = {0};
    a->failed = rc;
    /* others cannot come: the cause is what this rank says */
    if (r->gather(r, a, r->room, sizeof *a, &waiting)) r->abort(r, rc ? rc : PL_FAIL, rc ? e->text : waiting.text);
    const struct agreement *all = r->room;
    for (int i = 0; i < r->n; i++)
        if (all[i].failed) return adopt_failure(r, i, rc, e);
    combine(r, a);
    return PL_OK;
}

int agree_on(struct ranks *r, int rc, struct error *e)
{
    struct agreement a = {0};
    return agree(r, &a, rc, e);
}

int agree_to_end(struct ranks *r, int rc, struct error *e)
{
    if (!r || r->ended) return rc;
    enum { DAYS = 10 };
    r->timeout = DAYS * 86400.0;
    return agree_on(r, rc, e);
}

int agree_same(struct ranks *r, const struct agree_same *list, int n, struct error *e)
{
    for (int k = 0; r && k < n; k++) {
        uint64_t *all = (uint64_t *)(void *)times_of(r);
        struct text ranks = {0};
        int differ = 0;
        if (r->gather(r, &list[k].value, all, sizeof list[k].value, e)) r->abort(r, PL_FAIL, e->text);
        for (int i = 1; i < r->n; i++)
            if (all[i] != all[0]) text_printf(&ranks, "%s%d", differ++ ? ", " : "", i);
        if (differ) {
            r->ended = true; /* all ranks have found the same */
            error_set(e, PL_USAGE, "%s on rank %s differs from that on rank 0; all ranks need the same", list[k].what,
                      ranks.at);
        }
        text_free(&ranks);
        if (differ) return e->code;
    }
    return PL_OK;
}

int agree_free(struct ranks *r, const char *folder, struct error *e)
{
    struct system_memory m;
    struct error unknown = {0};
    uint64_t disk = 0;
    if (!r) return PL_OK;
    TRY(agree_on(r, PL_OK, e));
    system_memory(&m);
    const bool full = !disk_free(folder, &disk, &unknown) && disk < (uint64_t)max_i64(1, r->local);
    const uint64_t local = (uint64_t)max_i64(1, r->local);
    const struct rank_share mine = {m.available / local, m.total / local, full ? 1 : disk / local};
    struct rank_share *all = agree_room(r);
    if (r->gather(r, &mine, all, sizeof mine, e)) r->abort(r, PL_FAIL, e->text);
    r->share = all[0];
    for (int i = 1; i < r->n; i++) {
        r->share.free = min_u64(r->share.free, all[i].free);
        r->share.memory = min_u64(r->share.memory, all[i].memory);
        r->share.disk = min_u64(r->share.disk, all[i].disk);
    }
    return PL_OK;
}

void agree_broadcast(struct ranks *r, void *at, uint64_t bytes)
{
    struct error e = {0};
    struct move *moves = mem_alloc((size_t)r->n * sizeof *moves);
    int n = 0;
    if (r->rank) moves[n++] = (struct move){0, at, bytes, false};
    for (int i = 1; i < r->n && !r->rank; i++) moves[n++] = (struct move){i, at, bytes, true};
    if (n && bytes && r->exchange(r, moves, n, &e)) r->abort(r, PL_FAIL, e.text);
    mem_free(moves);
}

/* --- some of the ranks as ranks of their own, numbered in the order of a list: those of one
 * host, or one of every host. */

struct rank_part {
    struct ranks *all;
    int *members;
    struct move *moves;  /* room for those of an exchange or a gather */
    int room;
};

static struct move *reserve(struct rank_part *p, int n)
{
    if (n > p->room) p->moves = mem_resize(p->moves, (size_t)(p->room = n) * sizeof *p->moves);
    return p->moves;
}

/* Makes the first n moves in `p->moves`, between ranks of the part. */
static int move_all(struct ranks *r, int n, struct error *e)
{
    struct rank_part *p = r->state;
    const double before = p->all->moving;
    for (int i = 0; i < n; i++) p->moves[i].peer = p->members[p->moves[i].peer];
    p->all->where = r->where;
    int rc = p->all->exchange(p->all, p->moves, n, e);
    p->all->where = NULL;
    r->moving += p->all->moving - before;
    return rc;
}

static int part_exchange(struct ranks *r, const struct move *moves, int n, struct error *e)
{
    memcpy(reserve(r->state, n), moves, (size_t)n * sizeof *moves);
    return move_all(r, n, e);
}

static int part_gather(struct ranks *r, const void *mine, void *all, size_t each, struct error *e)
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

static void part_end_now(struct ranks *r, int code, const char *why)
{
    struct rank_part *p = r->state;
    p->all->abort(p->all, code, why);
}

struct ranks *part_open(struct ranks *all, const int *members, int n)
{
    struct ranks *r = mem_copy(all, sizeof *all);
    struct rank_part *p = mem_alloc(sizeof *p);
    p->all = all;
    p->members = mem_copy(members, (size_t)n * sizeof *members);
    r->n = n;
    r->rank = -1;
    for (int i = 0; i < n; i++)
        if (members[i] == all->rank) r->rank = i;
    CHECK(r->rank >= 0, "rank %d is not in its part", all->rank);
    r->state = p;
    r->exchange = part_exchange;
    r->gather = part_gather;
    r->abort = part_end_now;
    agree_open(r);
    return r;
}

void part_close(struct ranks *r)
{
    struct rank_part *p = r->state;
    mem_free(p->members);
    mem_free(p->moves);
    mem_free(p);
    mem_free(r->room);
    mem_free(r);
}
