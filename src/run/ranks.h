/*
 * ranks.h: the other processes of a run.
 *
 * A rank is a process with one device. All ranks run the same plan; they meet in collectives, which
 * are ops of the graph, and in agreements between steps. A transport (src/dist) implements three
 * operations. It moves bytes; what is added is added by our own kernels, in an order that knows no
 * transport.
 *
 *     exchange   posts all moves, then awaits all of them; no call of one rank may remain without its counterparts
 *     gather     a few bytes of every rank, for every rank
 *     abort      ends all ranks at once, because this one cannot come to the next agreement
 *
 * With `threads`, exchange may be called by another thread than the others.
 *
 * A wait without progress ends after `timeout` seconds with a message that names the late rank.
 */
#pragma once

#include "base/base.h"
#include "graph/mesh.h"

enum { RANK_HOST = 64 };

/* Bytes to or from another rank. The two sides of a move list it at the same place among the moves
 * between them. */
struct move {
    int peer;
    void *at;
    uint64_t bytes;
    bool send;
};

/* n ranks of a line of a mesh, to which a rank belongs: all of the line, ranks that follow each
 * other on it, or, `across` hosts, those with the same number on theirs. */
struct rank_group {
    struct mesh mesh;
    enum rank_axis axis;
    int rank, line, at; /* the rank, the ranks of its line, and its place on it */
    int n;
    bool across;
};

static inline struct rank_group ranks_group(struct mesh mesh, int all, int rank, enum rank_axis axis, int n,
                                            bool across)
{
    const struct rank_group g = {mesh, axis, rank, mesh_line(mesh, all, axis), mesh_place(mesh, rank, axis), n, across};
    return g;
}

/* Returns member i of the group, and the place of its rank among them. */
static inline int ranks_member(const struct rank_group *g, int i)
{
    const int host = g->line / g->n, place = g->across ? i * host + g->at % host : g->at / g->n * g->n + i;
    return mesh_rank(g->mesh, g->rank, g->axis, place);
}
static inline int ranks_place(const struct rank_group *g)
{
    return g->across ? g->at / (g->line / g->n) : g->at % g->n;
}

/* Returns the shard that the member at a place of a group holds, one for each of the n members.
 * Where they are on several hosts of `host` ranks, those with the same number on their hosts hold
 * neighbours: so a sum inside hosts, and then across them, leaves its parts. host 0: member i holds
 * shard i. */
static inline int ranks_shard(int n, int host, int place)
{
    return host ? place % host * (n / host) + place / host : place;
}
static inline int ranks_holder(int n, int host, int shard)
{
    return host ? shard % (n / host) * host + shard / (n / host) : shard;
}

struct ranks {
    int n, rank;
    int local;                     /* ranks on this host... */
    int local_rank;                /* ...and this one's number among them */
    bool threads, motions;         /* motions: a single rank goes through the motions of several (dist/launch.c) */
    double timeout;                /* seconds that a rank waits for another without progress */
    char host[RANK_HOST];
    struct rank_share {
        uint64_t free, memory, disk;
    } share; /* what a host has for each of its ranks, the least of all: free memory, all memory, and free
                                      disk space of the run's folder; 0: not known */
    bool patient;                  /* agreements wait six timeouts: others load, save or evaluate */
    const char *where;             /* what is being exchanged, for messages */
    int64_t step;                  /* for messages */
    double waited;                 /* seconds that this rank has waited for others so far: in agreements... */
    double moving;                 /* ...and in exchanges, by another thread where a GPU asks for them */
    bool ended;                    /* a failure was agreed on: no agreement follows */
    void *room;                    /* of agreements (dist/agree.c) */
    int (*exchange)(struct ranks *, const struct move *, int n, struct error *);
    int (*gather)(struct ranks *, const void *mine, void *all, size_t each, struct error *);
    void (*abort)(struct ranks *, int code, const char *why);
    void (*close)(struct ranks *); /* after the last agreement */
    void *state;
};
