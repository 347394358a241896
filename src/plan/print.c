/*
 * print.c: prints a plan as text: the table for users, and with --explain the programs, the
 * placement, and the tensors alive at the peak.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cost/links.h"
#include "plan/by_module.h"
#include "plan/communication.h"
#include "plan/plan.h"
#include "cost/calibration.h"

enum { MODULES = 8, LARGEST = 5 };

static void print_row(struct text *out, const char *name, uint64_t bytes, uint64_t whole)
{
    char size[32];
    double share = whole ? (double)bytes / (double)whole : 0;
    text_printf(out, "  %-14s %12s  %5.1f %%  ", name, size_print(bytes, size), 100 * share);
    for (int i = 0; i < (int)(share * 40 + 0.5); i++) text_printf(out, "#");
    text_printf(out, "\n");
}

static void print_settings(const struct settings *s, struct text *out)
{
    if (s->prompt_chunk && !s->train) text_printf(out, "  prompts of %d in chunks of %d tokens, ", s->micro_batch, s->prompt_chunk);
    else text_printf(out, "  micro-batch %d x %d, ", s->micro_batch, s->accumulation);
    if (s->ranks * s->shares > 1) text_printf(out, "%d %s with %d %s each, ", s->ranks, s->ranks == 1 ? "rank" : "ranks", s->shares, s->shares == 1 ? "share" : "shares");
    settings_print(s, out);
    text_printf(out, "\n");
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

/* The storages of a program in one space: the persistent ones if `persistent`, else the transient
 * ones. */
static uint32_t collect(const struct plan *p, const struct graph *g, enum program program, enum space space, bool persistent, struct row *rows)
{
    uint32_t n = 0;
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        const struct life *l = &p->placement.life[program][s];
        if (!l->used || x->space != space || storage_is_persistent(x) != persistent) continue;
        rows[n++] = (struct row){p->placement.offset[s], x->bytes, graph_name(g, x->name), kind_name(x->kind), l->start, l->end};
    }
    return n;
}

/* Collects the transient storages that are alive at the peak, largest first; returns their
 * number. */
static uint32_t alive_at_peak(const struct plan *p, const struct graph *g, struct row *rows)
{
    uint32_t n = collect(p, g, p->peak.program, SPACE_DEVICE, false, rows), live = 0;
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
    char size[32], words[TENSOR_WORDS];
    for (uint32_t i = 0; i < live && i < LARGEST; i++) text_printf(out, "  %16s  %s\n", size_print(rows[i].bytes, size), tensor_words(rows[i].name, words));
    if (live > LARGEST) text_printf(out, "  %16s  %u smaller transient tensors\n", "and", live - LARGEST);
    mem_free(rows);
}

/* By module: weights with their master weights, gradients and optimizer state; then transient
 * memory. */
static void print_modules(const struct plan *p, const struct graph *g, struct text *out)
{
    struct module_memory modules[MODULES];
    char whole[32], persistent[32], transient[32];
    uint32_t n = plan_by_module(p, g, modules, MODULES);
    text_printf(out, "By module%37s %12s %12s\n", "total", "weights", "transient");
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = modules[i].persistent + modules[i].transient;
        text_printf(out, "  %-30.30s  %12s %12s %12s  ", modules[i].name[0] ? modules[i].name : "inputs and buffers", size_print(bytes, whole),
                    size_print(modules[i].persistent, persistent), size_print(modules[i].transient, transient));
        for (int k = 0; k < (int)(20 * (double)bytes / (double)p->peak.bytes + 0.5); k++) text_printf(out, "#");
        text_printf(out, "\n");
    }
}

/* Below the row of all weights, unless all are trained. */
static void print_weights(const struct plan *p, const struct graph *g, struct text *out)
{
    const struct weights_memory w = plan_by_weight(p, g);
    if (!w.frozen && !w.quantized) return;
    if (w.trained) print_row(out, "  trained", w.trained, plan_arena(p));
    if (w.frozen) print_row(out, "  frozen", w.frozen, plan_arena(p));
    if (w.quantized) print_row(out, "  frozen, NF4", w.quantized, plan_arena(p));
}

/* What a rank sends; nothing for one rank. */
static void print_communication(const struct plan *p, const struct graph *g, const struct profile *profile, struct text *out)
{
    char sent[32], time[32], hidden[32];
    if (p->settings.ranks < 2 || !p->settings.train) return;
    const struct communication c = plan_communication(p, g, profile);
    text_printf(out, "  a rank sends %s in a step, which takes %s", size_print((uint64_t)c.sent, sent), duration_print(c.seconds, time));
    if (profile->kind == DEVICE_CUDA) text_printf(out, ", %s of it while it computes", duration_print(c.hidden, hidden));
    text_printf(out, " (links ");
    links_print(profile, out);
    text_printf(out, ")\n  buffers of collectives take at most %s", size_print(c.buffers, sent));
    if (c.host) text_printf(out, ", and %s of host memory", size_print(c.host, time));
    text_printf(out, "\n");
}

void plan_scale_times(struct plan *p, double factor)
{
    p->seconds *= factor;
    for (int i = 0; i < PROGRAM_COUNT; i++) p->program_seconds[i] *= factor;
    for (int i = 0; i < p->n_ablated; i++) p->ablated[i].seconds *= factor;
    p->more.seconds *= factor;
    p->unbounded.seconds *= factor;
}

/* Says where the predicted times come from. */
static void print_source(const struct profile *p, struct text *out)
{
    if (p->measured && p->kind == DEVICE_CUDA)
        text_printf(out, " (profile of %s, measured %s)\n", p->measured->cpu, p->measured->date);
    else if (p->measured)
        text_printf(out, " (profile of %s with %d threads, measured %s)\n", p->measured->cpu, p->threads, p->measured->date);
    else if (p->published)
        text_printf(out, " (unmeasured: from the published ceilings of %s, %s)\n", p->name, p->published);
    else if (p->factor > 0)
        text_printf(out, " (default ceilings times %.2g, by a small step on this CPU; plimsoll bench --calibrate measures each op)\n", p->factor);
    else
        text_printf(out, " (default ceilings, not measured: run plimsoll bench --calibrate)\n");
}

/* The name of a kind in the table for people. */
static const char *kind_words(enum kind k) { return k == KIND_STEP ? "step scalars" : k == KIND_STAGING ? "I/O buffers" : kind_name(k); }

void plan_print(const struct plan *p, const struct graph *g, const struct profile *profile, struct text *out)
{
    char a[32], b[32], time[32];
    uint64_t arena = plan_arena(p);
    text_printf(out, "Memory at the peak\n");
    for (int k = KIND_PARAM; k < KIND_COUNT; k++) {
        if (p->peak.by_kind[k]) print_row(out, kind_words(k), p->peak.by_kind[k], arena);
        if (k == KIND_PARAM) print_weights(p, g, out);
        if (k == KIND_STAGING && p->peak.by_kind[k] && p->settings.loader_bytes) print_row(out, "  data loader", p->settings.loader_bytes, arena);
    }
    print_row(out, "padding", arena - p->peak.bytes, arena);
    text_printf(out, "  %-14s %12s  (%llu bytes): the total, allocated once\n", "arena", size_print(arena, a), (unsigned long long)arena);
    if (p->placement.arena[SPACE_HOST])
        text_printf(out, "  %-14s %12s  (%llu bytes)\n", plan_host_name(p), size_print(p->placement.arena[SPACE_HOST], b),
                    (unsigned long long)p->placement.arena[SPACE_HOST]);
    const struct node *n = node_at(g, g->order[p->peak.program].nodes.at[p->peak.instant]);
    text_printf(out, "  the peak is in the %s of %s (program %s, op %s)\n", phase_name(n->phase), n->scope ? graph_name(g, g->scopes.at[n->scope].name) : "the step",
                program_name(p->peak.program), op_table[n->op].name);
    print_largest(p, g, out);
    print_modules(p, g, out);
    text_printf(out, "Plan\n");
    print_settings(&p->settings, out);
    if (p->settings.train && p->settings.prompt_chunk)
        text_printf(out, "  evaluations answer prompts in chunks of %d tokens, with a KV cache of %s in the memory of activations\n", p->settings.prompt_chunk, size_print(plan_cache_bytes(g), a));
    if (p->settings.prompt_chunk && !p->settings.train)
        text_printf(out, "  predicted time of a chunk %s, of a token of the answer %s", duration_print(p->program_seconds[PROGRAM_PROMPT], a),
                    duration_print(p->program_seconds[PROGRAM_NEXT], time));
    else text_printf(out, "  predicted step time %s", duration_print(p->seconds, time));
    print_source(profile, out);
    print_communication(p, g, profile, out);
    struct text missing = {0};
    plan_print_missing(p, &missing);
    if (missing.n)
        text_printf(out, "  %s has no kernel for %s at these sizes: this plan cannot run, and it counts no workspace for them\n", profile->name, missing.at);
    text_free(&missing);
    plan_print_techniques(p, out);
}

static void explain_placement(const struct plan *p, const struct graph *g, enum program program, enum space space, bool persistent,
                              struct row *rows, struct text *out)
{
    uint32_t n = collect(p, g, program, space, persistent, rows);
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
        text_printf(out, "schedule of %s: instant, lane, kernel and its form, bytes that a thread moves at a time, workspace\n", program_name(program));
        for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
            id n = g->order[program].nodes.at[k];
            const struct binding *b = &p->placement.binding[n];
            if (!b->kernel) continue;
            char access[16] = "", kernel[80];
            if (b->access) snprintf(access, sizeof access, "%d B", b->access);
            snprintf(kernel, sizeof kernel, "%s%s%s", b->kernel->name, b->kernel->forms ? ", " : "", kernel_form_name(b->kernel, b->form));
            text_printf(out, "  %5u node %-5u %-7s %-46s %5s %llu\n", k, n, lane_name(node_at(g, n)->lane), kernel, access, (unsigned long long)b->work_bytes);
        }
        text_printf(out, "placement of %s: offset, bytes, lifetime\n", program_name(program));
        for (int persistent = 1; persistent >= 0; persistent--) explain_placement(p, g, program, SPACE_DEVICE, persistent, rows, out);
        if (!p->placement.arena[SPACE_HOST]) continue;
        text_printf(out, "placement of %s in %s: offset, bytes, lifetime\n", program_name(program), plan_host_name(p));
        for (int persistent = 1; persistent >= 0; persistent--) explain_placement(p, g, program, SPACE_HOST, persistent, rows, out);
    }
    explain_peak(p, g, rows, out);
    mem_free(rows);
}
