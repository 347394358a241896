/*
 * print.c: a plan in words. The table that people read, and with --explain the
 * programs, the placement, and the peak instant with names.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/parts.h"
#include "plan/plan.h"
#include "run/calibration.h"

enum { PARTS = 8, LARGEST = 5 };

static void print_row(struct text *out, const char *name, uint64_t bytes, uint64_t whole)
{
    char size[32];
    double share = whole ? (double)bytes / (double)whole : 0;
    text_printf(out, "  %-14s %12s  %5.1f %%  ", name, size_print(bytes, size), 100 * share);
    for (int i = 0; i < (int)(share * 40 + 0.5); i++) text_printf(out, "#");
    text_printf(out, "\n");
}

static void print_techniques(const struct settings *s, struct text *out)
{
    char again[SETTING_ROOM], away[SETTING_ROOM];
    text_printf(out, "  micro-batch %d x %d, %s, recompute %s, %s%s, in host memory %s, head in %d piece%s\n", s->micro_batch, s->accumulation,
                precision_print(s), rebuild_print(&s->recompute, again), optimizer_print(s), s->fused_step ? ", fused step" : "",
                offload_print(s->offload, away), s->head_chunks, s->head_chunks == 1 ? "" : "s");
}

struct row {
    uint64_t offset, bytes;
    const char *name, *kind;
    uint32_t start, end;
};

static int by_bytes(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->offset < y->offset ? -1 : 1;
}

static int by_offset(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* The storages of a program: transients, and what lasts when asked. */
static uint32_t collect(const struct plan *p, const struct graph *g, enum program program, bool lasting, struct row *rows)
{
    uint32_t n = 0;
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        const struct life *l = &p->placement.life[program][s];
        if (!l->used || x->space != SPACE_DEVICE || storage_lasts(x) != lasting) continue;
        rows[n++] = (struct row){p->placement.offset[s], x->bytes, graph_name(g, x->name), kind_name(x->kind), l->start, l->end};
    }
    return n;
}

/* What comes and goes and is alive at the peak, the largest first; returns how many. */
static uint32_t alive_at_peak(const struct plan *p, const struct graph *g, struct row *rows)
{
    uint32_t n = collect(p, g, p->peak.program, false, rows), live = 0;
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].start <= p->peak.instant && p->peak.instant <= rows[i].end) rows[live++] = rows[i];
    qsort(rows, live, sizeof *rows, by_bytes);
    return live;
}

static void explain_peak(const struct plan *p, const struct graph *g, struct row *rows, struct text *out)
{
    uint32_t live = alive_at_peak(p, g, rows);
    text_printf(out, "peak: program %s, instant %u, %llu bytes live; transients alive there:\n", program_name(p->peak.program),
                p->peak.instant, (unsigned long long)p->peak.bytes);
    for (uint32_t i = 0; i < live && i < 40; i++)
        text_printf(out, "  %12llu  %-12s %s\n", (unsigned long long)rows[i].bytes, rows[i].kind, rows[i].name);
    if (live > 40) text_printf(out, "  ... and %u smaller\n", live - 40);
}

static void print_largest(const struct plan *p, const struct graph *g, struct text *out)
{
    struct row *rows = mem_alloc(g->storages.n * sizeof *rows);
    uint32_t live = alive_at_peak(p, g, rows);
    char size[32];
    for (uint32_t i = 0; i < live && i < LARGEST; i++) text_printf(out, "  %16s  %s\n", size_print(rows[i].bytes, size), rows[i].name);
    if (live > LARGEST) text_printf(out, "  %16s  %u smaller ones that come and go\n", "and", live - LARGEST);
    mem_free(rows);
}

/* By module: weights with all that belongs to them, then what comes and goes. */
static void print_parts(const struct plan *p, const struct graph *g, struct text *out)
{
    struct part parts[PARTS];
    char whole[32], lasting[32], passing[32];
    uint32_t n = plan_parts(p, g, parts, PARTS);
    text_printf(out, "By module%37s %12s %12s\n", "all", "weights", "passing");
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = parts[i].lasting + parts[i].passing;
        text_printf(out, "  %-30.30s  %12s %12s %12s  ", parts[i].name[0] ? parts[i].name : "inputs and buffers", size_print(bytes, whole),
                    size_print(parts[i].lasting, lasting), size_print(parts[i].passing, passing));
        for (int k = 0; k < (int)(20 * (double)bytes / (double)p->peak.bytes + 0.5); k++) text_printf(out, "#");
        text_printf(out, "\n");
    }
}

void plan_print(const struct plan *p, const struct graph *g, const struct profile *profile, struct text *out)
{
    char a[32], b[32];
    uint64_t arena = plan_arena(p);
    text_printf(out, "Memory at the peak\n");
    for (int k = KIND_PARAM; k < KIND_COUNT; k++) {
        if (p->peak.by_kind[k]) print_row(out, kind_name(k), p->peak.by_kind[k], arena);
        if (k == KIND_STAGING && p->peak.by_kind[k] && p->settings.loader_bytes) print_row(out, "  the loader's", p->settings.loader_bytes, arena);
    }
    print_row(out, "padding", arena - p->peak.bytes, arena);
    text_printf(out, "  %-14s %12s  (%llu bytes)\n", "arena", size_print(arena, a), (unsigned long long)arena);
    if (p->placement.arena[SPACE_HOST])
        text_printf(out, "  %-14s %12s  (%llu bytes)\n", "host memory", size_print(p->placement.arena[SPACE_HOST], b),
                    (unsigned long long)p->placement.arena[SPACE_HOST]);
    const struct node *n = node_at(g, g->order[p->peak.program].nodes.at[p->peak.instant]);
    text_printf(out, "  the peak is in program %s, %s of %s in %s\n", program_name(p->peak.program), phase_name(n->phase),
                op_table[n->op].name, n->scope ? graph_name(g, g->scopes.at[n->scope].name) : "the step");
    print_largest(p, g, out);
    print_parts(p, g, out);
    text_printf(out, "Plan\n");
    print_techniques(&p->settings, out);
    text_printf(out, "  predicted step %.3g s", p->seconds);
    if (profile->measured && profile->kind == DEVICE_CUDA)
        text_printf(out, ", by the profile of %s, measured %s\n", profile->measured->cpu, profile->measured->date);
    else if (profile->measured)
        text_printf(out, ", by the profile of %s with %d threads, measured %s\n", profile->measured->cpu, profile->threads, profile->measured->date);
    else if (profile->published)
        text_printf(out, ", unmeasured: by the published ceilings of %s (%s)\n", profile->name, profile->published);
    else
        text_printf(out, " (default ceilings, not measured: run plimsoll bench --calibrate)\n");
    struct text missing = {0};
    plan_print_missing(p, &missing);
    if (missing.n)
        text_printf(out, "  %s has no kernel for %s of these sizes: this can be planned, not run, and their workspaces are not in it\n", profile->name, missing.at);
    text_free(&missing);
    plan_print_techniques(p, out);
}

static void explain_placement(const struct plan *p, const struct graph *g, enum program program, bool lasting,
                              struct row *rows, struct text *out)
{
    uint32_t n = collect(p, g, program, lasting, rows);
    qsort(rows, n, sizeof *rows, by_offset);
    for (uint32_t i = 0; i < n; i++)
        text_printf(out, "  %12llu +%-12llu %5u..%-5u %-12s %s\n", (unsigned long long)rows[i].offset,
                    (unsigned long long)rows[i].bytes, rows[i].start, rows[i].end, rows[i].kind, rows[i].name);
}

void plan_explain(const struct plan *p, const struct graph *g, struct text *out)
{
    struct row *rows = mem_alloc(g->storages.n * sizeof *rows);
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        if (!g->order[program].nodes.n) continue;
        graph_print(g, program, out);
        text_printf(out, "schedule of %s: instant, lane, kernel, workspace\n", program_name(program));
        for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
            id n = g->order[program].nodes.at[k];
            const struct binding *b = &p->placement.binding[n];
            if (b->kernel)
                text_printf(out, "  %5u node %-5u %-7s %-24s %llu\n", k, n,
                            lane_name(node_at(g, n)->lane), b->kernel->name, (unsigned long long)b->work_bytes);
        }
        text_printf(out, "placement of %s: offset, bytes, lifetime\n", program_name(program));
        explain_placement(p, g, program, true, rows, out);
        explain_placement(p, g, program, false, rows, out);
    }
    explain_peak(p, g, rows, out);
    mem_free(rows);
}
