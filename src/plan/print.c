/*
 * print.c: prints a plan as text: the table for users.
 */
#include "cost/links.h"
#include "graph/ops.h"
#include "plan/explain.h"
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
    if (s->prompt_chunk && !s->train)
        text_printf(out, "  %d prompt%s at once, in chunks of %d tokens, ", s->prompts, s->prompts == 1 ? "" : "s",
                    s->prompt_chunk);
    else text_printf(out, "  micro-batch %d x %d, ", s->micro_batch, s->accumulation);
    if (s->ranks * s->shares > 1)
        text_printf(out, "%d %s with %d %s each, ", s->ranks, s->ranks == 1 ? "rank" : "ranks", s->shares,
                    s->shares == 1 ? "share" : "shares");
    if (s->tensor > 1) text_printf(out, "%d ranks to a product, ", s->tensor);
    if (s->tensor_shares > 1)
        text_printf(out, "products in %d parts%s, ", s->tensor_shares, s->tensor > 1 ? " on each" : "");
    settings_print(s, out);
    text_printf(out, "\n");
}

static void print_largest(const struct plan *p, const struct graph *g, struct text *out)
{
    struct held *rows = mem_alloc(g->storages.n * sizeof *rows);
    uint32_t live = plan_at_peak(p, g, rows);
    char size[32], words[TENSOR_WORDS];
    for (uint32_t i = 0; i < live && i < LARGEST; i++)
        text_printf(out, "  %16s  %s\n", size_print(rows[i].bytes, size), tensor_words(rows[i].name, words));
    if (live > LARGEST) text_printf(out, "  %16s  %u smaller transient tensors\n", "and", live - LARGEST);
    mem_free(rows);
}

/* Prints memory by module: weights with their master weights, gradients and optimizer state; then
 * transient memory. */
static void print_modules(const struct plan *p, const struct graph *g, struct text *out)
{
    struct module_memory modules[MODULES];
    char whole[32], persistent[32], transient[32];
    uint32_t n = plan_by_module(p, g, modules, MODULES);
    text_printf(out, "By module%37s %12s %12s\n", "total", "weights", "transient");
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = modules[i].persistent + modules[i].transient;
        text_printf(out, "  %-30.30s  %12s %12s %12s  ", modules[i].name[0] ? modules[i].name : "inputs and buffers",
                    size_print(bytes, whole), size_print(modules[i].persistent, persistent),
                    size_print(modules[i].transient, transient));
        for (int k = 0; k < (int)(20 * (double)bytes / (double)p->peak.bytes + 0.5); k++) text_printf(out, "#");
        text_printf(out, "\n");
    }
}

/* Prints the kinds of weights below the row of all weights, unless all are trained. */
static void print_weights(const struct plan *p, const struct graph *g, struct text *out)
{
    const struct weights_memory w = plan_by_weight(p, g);
    if (!w.frozen && !w.nf4 && !w.fp8) return;
    if (w.trained) print_row(out, "  trained", w.trained, plan_arena(p));
    if (w.frozen) print_row(out, "  frozen", w.frozen, plan_arena(p));
    if (w.nf4) print_row(out, "  frozen, NF4", w.nf4, plan_arena(p));
    if (w.fp8) print_row(out, "  frozen, fp8", w.fp8, plan_arena(p));
}

/* Prints how much of the weights is divided among the ranks of a product. */
static void print_division(const struct plan *p, const struct graph *g, struct text *out)
{
    double all = 0, divided = 0;
    if (settings_tensor_parts(&p->settings) < 2) return;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const id t = g->params.at[i].tensor;
        if (storage_of(g, t)->kind != KIND_PARAM) continue;
        all += (double)tensor_elements(tensor_at(g, t));
        divided += storage_of(g, t)->division ? (double)tensor_elements(tensor_at(g, t)) : 0;
    }
    text_printf(out, "  %.0f %% of the weights are in %d parts, the others are whole\n",
                all > 0 ? 100 * divided / all : 0, settings_tensor_parts(&p->settings));
}

/* Prints what a rank sends; nothing for one rank. */
static void print_communication(const struct plan *p, const struct graph *g, const struct profile *profile,
                                struct text *out)
{
    char sent[32], time[32], hidden[32];
    if (settings_world(&p->settings) < 2 || !p->settings.train) return;
    const struct communication c = plan_communication(p, g, profile);
    text_printf(out, "  a rank sends %s in a step, which takes %s", size_print((uint64_t)c.sent, sent),
                duration_print(c.seconds, time));
    if (profile->kind == DEVICE_CUDA)
        text_printf(out, ", %s of it while it computes", duration_print(c.hidden, hidden));
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
        text_printf(out, " (profile of %s with %d thread%s, measured %s)\n", p->measured->cpu, p->threads,
                    p->threads == 1 ? "" : "s", p->measured->date);
    else if (p->published)
        text_printf(out, " (unmeasured: from the published ceilings of %s, %s)\n", p->name, p->published);
    else if (p->factor > 0)
        text_printf(out,
                    " (default ceilings times %.2g, by a small step on this CPU; plimsoll bench --calibrate measures "
                    "each op)\n",
                    p->factor);
    else
        text_printf(out, " (default ceilings, not measured: run plimsoll bench --calibrate)\n");
}

/* Returns the name of a kind in the table for people. */
static const char *kind_words(enum kind k)
{
    return k == KIND_STEP ? "step scalars" : k == KIND_STAGING ? "I/O buffers" : kind_name(k);
}

void plan_print(const struct plan *p, const struct graph *g, const struct profile *profile, struct text *out)
{
    char a[32], b[32], time[32];
    uint64_t arena = plan_arena(p);
    text_printf(out, "Memory at the peak\n");
    for (int k = KIND_PARAM; k < KIND_COUNT; k++) {
        if (p->peak.by_kind[k]) print_row(out, kind_words(k), p->peak.by_kind[k], arena);
        if (k == KIND_PARAM) print_weights(p, g, out);
        if (k == KIND_STAGING && p->peak.by_kind[k] && p->settings.loader_bytes)
            print_row(out, "  data loader", p->settings.loader_bytes, arena);
    }
    print_row(out, "padding", arena - p->peak.bytes, arena);
    text_printf(out, "  %-14s %12s  (%llu bytes): the total, allocated once\n", "arena", size_print(arena, a),
                (unsigned long long)arena);
    if (p->placement.arena[SPACE_HOST])
        text_printf(out, "  %-14s %12s  (%llu bytes)\n", plan_host_name(p),
                    size_print(p->placement.arena[SPACE_HOST], b), (unsigned long long)p->placement.arena[SPACE_HOST]);
    const struct node *n = node_at(g, g->order[p->peak.program].nodes.at[p->peak.instant]);
    text_printf(out, "  the peak is in the %s of %s (program %s, op %s)\n", phase_name(n->phase),
                n->scope ? graph_name(g, g->scopes.at[n->scope].name) : "the step", program_name(p->peak.program),
                op_table[n->op].name);
    print_largest(p, g, out);
    print_modules(p, g, out);
    text_printf(out, "Plan\n");
    print_settings(&p->settings, out);
    if (p->settings.train && p->settings.prompt_chunk)
        text_printf(out,
                    "  evaluations answer %d prompt%s at once, in chunks of %d tokens, with a KV cache of %s in the "
                    "memory of activations\n",
                    p->settings.prompts, p->settings.prompts == 1 ? "" : "s", p->settings.prompt_chunk,
                    size_print(plan_cache_bytes(g), a));
    if (p->settings.prompt_chunk && !p->settings.train)
        text_printf(out, "  predicted time of a chunk %s, of a token of each answer %s",
                    duration_print(p->program_seconds[PROGRAM_PROMPT], a),
                    duration_print(p->program_seconds[PROGRAM_NEXT], time));
    else text_printf(out, "  predicted step time %s", duration_print(p->seconds, time));
    print_source(profile, out);
    print_division(p, g, out);
    print_communication(p, g, profile, out);
    struct text missing = {0};
    plan_print_missing(p, &missing);
    if (missing.n)
        text_printf(
            out,
            "  %s has no kernel for %s at these sizes: this plan cannot run, and it counts no workspace for them\n",
            profile->name, missing.at);
    text_free(&missing);
    plan_print_techniques(p, out);
}
