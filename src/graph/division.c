/*
 * division.c: see division.h.
 */
#include "graph/division.h"
#include "graph/sizes.h"

/* Returns the number of different parts of a section. */
static int64_t distinct(const struct division *d, int section) { return d->parts / d->section[section].copies; }

int64_t division_section(const struct division *d, int section)
{
    return ceil_div(d->section[section].length, distinct(d, section));
}

int64_t division_length(const struct division *d)
{
    int64_t n = 0;
    for (int i = 0; i < d->sections; i++) n += division_section(d, i);
    return n;
}

bool division_cuts(const struct division *d) { return d->section[0].copies < d->parts; }

struct part_number division_number(const struct graph *g, id tensor)
{
    const struct division *d = division_of(g, tensor);
    if (!d) return (struct part_number){0};
    const int copies = d->section[0].copies, each = (int)min_i64(copies, d->here);
    return (struct part_number){storage_of(g, tensor)->part * each, d->here, copies};
}

/* Reports whether all parts of blocks of 8-bit state are whole blocks. */
static bool has_whole_blocks(const struct division *d)
{
    int64_t n = 1;
    for (int i = 0; i < d->rank; i++) n *= d->dim[i];
    for (int64_t at = 0; at < n;) {
        const struct division_run r = division_run(d, at);
        at += r.n;
        if ((r.n % STATE_BLOCK && at < n) || r.at % STATE_BLOCK) return false;
    }
    return true;
}

bool division_copy(struct graph *g, id storage, id like, bool blocks)
{
    struct storage *s = &g->storages.at[storage];
    const struct storage *from = &g->storages.at[like];
    s->division = from->division;
    s->part = from->part;
    if (!s->division || !blocks) return true;
    struct division d = g->divisions.at[s->division - 1];
    if (!has_whole_blocks(&d)) return false;
    d.blocks = true;
    uint32_t k = 0;
    while (k < g->divisions.n && memcmp(&g->divisions.at[k], &d, sizeof d)) k++;
    if (k == g->divisions.n) vec_push(&g->divisions, d);
    g->storages.at[storage].division = (uint16_t)(k + 1);
    return true;
}

/* Returns the elements that one step along the axis is. */
static int64_t inner_of(const struct division *d)
{
    int64_t n = 1;
    for (int i = d->axis + 1; i < d->rank; i++) n *= d->dim[i];
    return n;
}

static struct division_run run_of_elements(const struct division *d, int64_t at)
{
    const int64_t inner = inner_of(d), length = d->dim[d->axis], outer = at / inner / length;
    int64_t i = at / inner % length, first = 0;
    int s = 0;
    while (s + 1 < d->sections && i >= d->section[s].length) {
        i -= d->section[s].length;
        first += division_section(d, s++);
    }
    const int64_t each = division_section(d, s), part = i / each, here = i % each,
                  end = min_i64(each, d->section[s].length - part * each);
    return (struct division_run){(end - here) * inner - at % inner, (int)part * d->section[s].copies,
                                 d->section[s].copies,
                                 (outer * division_length(d) + first + here) * inner + at % inner};
}

struct division_run division_run(const struct division *d, int64_t at)
{
    if (!d->blocks) return run_of_elements(d, at);
    struct division_run r = run_of_elements(d, at / 2 * STATE_BLOCK);
    r.n = ceil_div(r.n, STATE_BLOCK) * 2 - at % 2;
    r.at = r.at / STATE_BLOCK * 2 + at % 2;
    return r;
}
