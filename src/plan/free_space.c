/*
 * free_space.c: see free_space.h.
 */
#include "plan/free_space.h"

enum { LEAF = 32, FAN = 8 }; /* instants of a leaf; nodes below a node */

struct range {
    uint64_t from, to;
};
/* Ranges in ascending order, with bytes between them. */
struct ranges {
    VEC(struct range) list;
};
/* Bytes that are taken for a part of a leaf's instants. */
struct taken_bytes {
    uint64_t from, to;
    uint32_t start, end;
};
struct parts {
    VEC(struct taken_bytes) list; /* ascending by `from` */
};

struct cell {
    struct ranges any, all;
};

struct free_space {
    struct cell *cell;   /* the root, then the nodes of each level below it */
    struct parts *parts; /* by leaf */
    uint32_t cells, leaves, width; /* width: the instants of the root */
};

/* A node of the tree. */
struct place {
    uint32_t level, index; /* the first cell of its level, and its number there */
    uint32_t first, width; /* its instants */
};

/* The nodes that a lifetime covers or begins or ends in, and the leaves of which it covers a
 * part. */
enum { VISITED = 160 }; /* at most 2 FAN of each of 9 levels */
struct visit {
    uint32_t start, end;
    uint32_t cells, leaves;
    /* next: the first range that may be in the way */
    struct { struct cell *at; bool covered; uint32_t next; } cell[VISITED];
    struct parts *leaf[2];
};

struct free_space *free_space_open(uint32_t instants)
{
    struct free_space *r = mem_alloc(sizeof *r);
    uint32_t nodes = 1;
    CHECK(instants <= 1u << 29, "%u", instants);
    r->width = LEAF;
    r->cells = r->leaves = 1;
    while (r->width < instants) {
        r->width *= FAN;
        r->leaves *= FAN;
        r->cells += nodes *= FAN;
    }
    r->cell = mem_alloc(r->cells * sizeof *r->cell);
    r->parts = mem_alloc(r->leaves * sizeof *r->parts);
    return r;
}

void free_space_close(struct free_space *r)
{
    for (uint32_t i = 0; i < r->cells; i++) {
        vec_free(&r->cell[i].any.list);
        vec_free(&r->cell[i].all.list);
    }
    for (uint32_t i = 0; i < r->leaves; i++) vec_free(&r->parts[i].list);
    mem_free(r->cell);
    mem_free(r->parts);
    mem_free(r);
}

/* Returns the index of the first range that ends behind `at`. */
static uint32_t first_behind(const struct ranges *r, uint64_t at)
{
    uint32_t low = 0, high = r->list.n;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (r->list.at[middle].to > at) high = middle;
        else low = middle + 1;
    }
    return low;
}

static void add_range(struct ranges *r, uint64_t from, uint64_t to)
{
    uint32_t i = from ? first_behind(r, from - 1) : 0, next = i; /* the first that it touches or that follows */
    for (; next < r->list.n && r->list.at[next].from <= to; next++) {
        if (r->list.at[next].from < from) from = r->list.at[next].from;
        if (r->list.at[next].to > to) to = r->list.at[next].to;
    }
    if (next == i) vec_push(&r->list, ((struct range){0}));
    struct range *x = r->list.at + i;
    if (next != i + 1) memmove(x + 1, r->list.at + next, (r->list.n - (next == i) - next) * sizeof *x);
    if (next > i + 1) r->list.n -= next - i - 1;
    *x = (struct range){from, to};
}

static void add_part(struct parts *p, struct taken_bytes x)
{
    uint32_t low = 0, high = p->list.n;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (p->list.at[middle].from <= x.from) low = middle + 1;
        else high = middle;
    }
    vec_push(&p->list, x);
    memmove(p->list.at + low + 1, p->list.at + low, (p->list.n - 1 - low) * sizeof x);
    p->list.at[low] = x;
}

/* Visits a node and those below it. */
static void visit(const struct free_space *r, struct visit *v, const struct place *p)
{
    const uint32_t last = p->first + (p->width - 1);
    const bool covered = v->start <= p->first && last <= v->end;
    v->cell[v->cells].at = &r->cell[p->level + p->index];
    v->cell[v->cells].next = 0;
    v->cell[v->cells++].covered = covered;
    if (covered) return;
    if (p->width == LEAF) {
        v->leaf[v->leaves++] = &r->parts[p->index];
        return;
    }
    const uint32_t width = p->width / FAN, begin = v->start > p->first ? (v->start - p->first) / width : 0;
    const uint32_t end = v->end < last ? (v->end - p->first) / width : FAN - 1;
    for (uint32_t k = begin; k <= end; k++)
        visit(r, v, &(struct place){FAN * p->level + 1, FAN * p->index + k, p->first + k * width, width});
}

/* Moves `at` up over the ranges that are in the way of bytes there. */
static uint64_t behind_ranges(const struct ranges *r, uint32_t *next, uint64_t bytes, uint64_t at)
{
    uint32_t i = *next;
    for (; i < r->list.n && r->list.at[i].from < at + bytes; i++)
        if (r->list.at[i].to > at) at = r->list.at[i].to;
    *next = i;
    return at;
}

static uint64_t behind_parts(const struct parts *p, const struct visit *v, uint64_t bytes, uint64_t at)
{
    for (uint32_t i = 0; i < p->list.n && p->list.at[i].from < at + bytes; i++) {
        const struct taken_bytes *y = &p->list.at[i];
        if (y->to > at && y->start <= v->end && v->start <= y->end) at = y->to;
    }
    return at;
}

static uint64_t find_lowest(struct visit *v, uint64_t from, uint64_t bytes)
{
    uint64_t at = from, before;
    do {
        before = at;
        for (uint32_t i = 0; i < v->cells; i++)
            at = behind_ranges(v->cell[i].covered ? &v->cell[i].at->any : &v->cell[i].at->all, &v->cell[i].next, bytes,
                               at);
        for (uint32_t i = 0; i < v->leaves; i++) at = behind_parts(v->leaf[i], v, bytes, at);
    } while (at != before);
    return at;
}

static void take(struct visit *v, uint64_t from, uint64_t to)
{
    for (uint32_t i = 0; i < v->cells; i++) {
        add_range(&v->cell[i].at->any, from, to);
        if (v->cell[i].covered) add_range(&v->cell[i].at->all, from, to);
    }
    for (uint32_t i = 0; i < v->leaves; i++) add_part(v->leaf[i], (struct taken_bytes){from, to, v->start, v->end});
}

static void begin_visit(const struct free_space *r, struct visit *v, uint32_t start, uint32_t end)
{
    v->start = start;
    v->end = end;
    v->cells = v->leaves = 0;
    visit(r, v, &(struct place){.width = r->width});
}

void free_space_take(struct free_space *r, uint64_t from, uint64_t to, uint32_t start, uint32_t end)
{
    struct visit v;
    begin_visit(r, &v, start, end);
    if (from < to) take(&v, from, to);
}

uint64_t free_space_find(struct free_space *r, uint64_t from, uint64_t bytes, uint32_t start, uint32_t end)
{
    struct visit v;
    begin_visit(r, &v, start, end);
    return find_lowest(&v, from, bytes);
}

uint64_t free_space_place(struct free_space *r, uint64_t bytes, uint32_t start, uint32_t end)
{
    struct visit v;
    begin_visit(r, &v, start, end);
    const uint64_t at = find_lowest(&v, 0, bytes);
    if (bytes) take(&v, at, at + bytes);
    return at;
}
