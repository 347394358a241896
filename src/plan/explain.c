/*
 * explain.c: see explain.h.
 */
#include "plan/explain.h"


enum { TENSORS = 16, WEIGHTS = 10, PARTS = 28, MODULES = 24, KERNELS = 8, BAR = 30 };

/* --- storages ------------------------------------------------------------------------------ */

static int by_bytes(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->offset < y->offset ? -1 : 1;
}

static int by_offset(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Collects the storages of a program in one space: the persistent ones if `persistent`, else the
 * transient ones. Returns their number. */
static uint32_t collect(const struct plan *p, const struct graph *g, enum program program, enum space space,
                        bool persistent, struct held *out)
{
    uint32_t n = 0;
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        const struct life *l = &p->placement.life[program][s];
        if (!l->used || x->space != space || storage_is_persistent(x) != persistent) continue;
        out[n++] =
            (struct held){p->placement.offset[s], x->bytes, s, graph_name(g, x->name), x->kind, l->start, l->end};
    }
    return n;
}

uint32_t plan_at_peak(const struct plan *p, const struct graph *g, struct held *out)
{
    uint32_t n = collect(p, g, p->peak.program, SPACE_DEVICE, false, out), live = 0;
    for (uint32_t i = 0; i < n; i++)
        if (out[i].start <= p->peak.instant && p->peak.instant <= out[i].end) out[live++] = out[i];
    qsort(out, live, sizeof *out, by_bytes);
    return live;
}

/* --- the page ------------------------------------------------------------------------------ */

/* Prints the first tensor of a storage, as "bf16 [2,64,64,32]". */
static const char *print_shape(const struct graph *g, id storage, char out[96])
{
    int n = 0;
    out[0] = '\0';
    for (id t = 1; t < g->tensors.n && !n; t++) {
        const struct tensor *x = tensor_at(g, t);
        if (x->storage != storage) continue;
        n = snprintf(out, 96, "%s [", dtype_name(x->dtype));
        for (int i = 0; i < x->rank && n < 64; i++)
            n += snprintf(out + n, (size_t)(96 - n), "%s%lld", i ? "," : "", (long long)x->dim[i]);
        snprintf(out + n, (size_t)(96 - n), "]");
    }
    return out;
}

/* Returns the phase of a part: recomputing is a part of the backward. */
static enum phase part_phase(enum phase p) { return p == PHASE_RECOMPUTE ? PHASE_BACKWARD : p; }
static const char *part_name(enum phase p) { return phase_name(part_phase(p)); }

/* Tensors whose names differ only in numbers, such as those of layers, with one size and one
 * use. */
struct alike {
    char name[TENSOR_WORDS]; /* with * for a number */
    char use[48];
    uint64_t each;
    uint32_t count;
    id first;
};

struct alikes {
    VEC(struct alike) list;
};

static void star_numbers(const char *name, char out[TENSOR_WORDS])
{
    size_t n = 0;
    for (const char *c = name; *c && n + 1 < TENSOR_WORDS; c++) {
        const bool digit = *c >= '0' && *c <= '9', within = c > name && c[-1] != '.' && c[-1] != '*' &&
                                                            !(c[-1] >= '0' && c[-1] <= '9' && n && out[n - 1] == '*');
        if (!digit || within) out[n++] = *c; /* "layer_norm1" keeps its number */
        else if (!n || out[n - 1] != '*') out[n++] = '*';
    }
    out[n] = '\0';
}

static void add_alike(struct alikes *a, const struct held *x, const char *use)
{
    struct alike new = {.each = x->bytes, .first = x->storage};
    char words[TENSOR_WORDS];
    star_numbers(tensor_words(x->name, words), new.name);
    snprintf(new.use, sizeof new.use, "%s", use);
    uint32_t i = 0;
    while (i < a->list.n &&
           (a->list.at[i].each != new.each || strcmp(a->list.at[i].use, use) || strcmp(a->list.at[i].name, new.name)))
        i++;
    if (i == a->list.n) vec_push(&a->list, new);
    a->list.at[i].count++;
}

static int by_total(const void *a, const void *b)
{
    const struct alike *x = a, *y = b;
    const uint64_t bx = x->each * x->count, by = y->each * y->count;
    return bx != by ? (bx > by ? -1 : 1) : strcmp(x->name, y->name);
}

/* Prints the first `most`, by total size, and frees the list. */
static void print_alikes(struct alikes *a, const struct graph *g, uint32_t most, struct text *out)
{
    char total[32], each[32], many[48], shape[96];
    uint64_t rest = 0;
    uint32_t others = 0;
    qsort(a->list.at, a->list.n, sizeof *a->list.at, by_total);
    for (uint32_t i = 0; i < a->list.n; i++) {
        const struct alike *x = &a->list.at[i];
        if (i >= most) {
            rest += x->count * align_up(x->each, PLAN_ALIGN), others += x->count;
            continue;
        }
        snprintf(many, sizeof many, "%u x %s", x->count, size_print(x->each, each));
        text_printf(out, "  %12s  %-16s %-22s %-21s  %s\n", size_print(x->each * x->count, total),
                    x->count > 1 ? many : "", print_shape(g, x->first, shape), x->use, x->name);
    }
    if (rest) text_printf(out, "  %12s  in %u others\n", size_print(rest, total), others);
    vec_free(&a->list);
}

static void print_tensors(const struct plan *p, const struct graph *g, struct held *rows, struct text *out)
{
    const struct order *order = &g->order[p->peak.program];
    const uint32_t n = plan_at_peak(p, g, rows);
    struct alikes a = {0};
    char use[48];
    text_printf(out, "Largest tensors at the peak, besides the persistent ones\n");
    for (uint32_t i = 0; i < n; i++) {
        const char *from = part_name(node_at(g, order->nodes.at[rows[i].start])->phase),
                   *to = part_name(node_at(g, order->nodes.at[rows[i].end])->phase);
        snprintf(use, sizeof use, "%s the %s", strcmp(from, to) ? "kept for" : "within", to);
        add_alike(&a, &rows[i], use);
    }
    print_alikes(&a, g, TENSORS, out);
}

static void print_persistent(const struct plan *p, const struct graph *g, struct text *out)
{
    struct alikes a = {0};
    text_printf(out, "Largest persistent tensors\n");
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (storage_is_persistent(x) && x->space == SPACE_DEVICE && plan_reached(p, g, s))
            add_alike(&a, &(struct held){.bytes = x->bytes, .storage = s, .name = graph_name(g, x->name)},
                      kind_name(x->kind));
    }
    print_alikes(&a, g, WEIGHTS, out);
}

static void print_bar(double share, struct text *out)
{
    for (int i = 0; i < (int)(BAR * share + 0.5); i++) text_printf(out, "#");
    text_printf(out, "\n");
}

/* A module in a phase of the step, and the most bytes that are alive while it runs. */
struct module_phase {
    enum phase phase;
    char module[64];
    uint64_t most;
};

static void add_part(struct module_phase *parts, uint32_t *n, enum phase phase, const char *module, uint64_t bytes)
{
    uint32_t i = 0;
    while (i < *n && (parts[i].phase != phase || strcmp(parts[i].module, module))) i++;
    if (i == PARTS) i--;
    if (i == *n) {
        parts[i] = (struct module_phase){.phase = phase};
        strcpy(parts[(*n)++].module, module);
    }
    if (bytes > parts[i].most) parts[i].most = bytes;
}

/* Prints the programs of a step in order, each by phase and module. */
static void print_step(const struct plan *p, const struct graph *g, struct text *out)
{
    struct module_phase parts[PARTS];
    uint32_t n = 0;
    char size[32];
    FOR_STEP_PROGRAMS(program) {
        uint64_t *alive = plan_alive(p, g, program, true);
        char module[64] = "inputs";
        bool scoped = false; /* ops before the first module belong to the inputs */
        for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
            const struct node *x = node_at(g, g->order[program].nodes.at[k]);
            if (x->scope) module_of_scope(g, x->scope, module), scoped = true;
            const enum phase phase = x->phase == PHASE_UPDATE ? PHASE_UPDATE
                                     : scoped                 ? part_phase(x->phase)
                                                              : PHASE_FORWARD;
            add_part(parts, &n, phase, phase == PHASE_UPDATE ? "" : module, p->persistent[SPACE_DEVICE] + alive[k]);
        }
        mem_free(alive);
    }
    text_printf(out, "Over the step: the most memory at once while each part runs, %s of it persistent\n",
                size_print(p->persistent[SPACE_DEVICE], size));
    for (enum phase phase = 0; phase < PHASE_COUNT; phase++) /* a fused step has updates within the backward */
        for (uint32_t i = 0; i < n; i++) {
            if (parts[i].phase != phase) continue;
            text_printf(out, "  %-9s %-34.34s %12s  ", phase_name(phase), parts[i].module,
                        size_print(parts[i].most, size));
            print_bar((double)parts[i].most / (double)p->peak.bytes, out);
        }
}

static void print_modules(const struct plan *p, const struct graph *g, struct text *out)
{
    struct module_memory modules[MODULES];
    char whole[32], persistent[32], transient[32];
    const uint32_t n = plan_by_module(p, g, modules, MODULES);
    text_printf(out, "By module at the peak %35s %12s %12s\n", "total", "persistent", "transient");
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t bytes = modules[i].persistent + modules[i].transient;
        text_printf(out, "  %-42.42s %12s %12s %12s\n", modules[i].name[0] ? modules[i].name : "inputs and buffers",
                    size_print(bytes, whole), size_print(modules[i].persistent, persistent),
                    size_print(modules[i].transient, transient));
    }
}

struct used_kernel {
    const struct kernel *kernel;
    uint32_t times;
    uint64_t work; /* the largest workspace */
};

static int by_times(const void *a, const void *b)
{
    const struct used_kernel *x = a, *y = b;
    return x->times != y->times ? (x->times > y->times ? -1 : 1) : strcmp(x->kernel->name, y->kernel->name);
}

static void print_kernels(const struct plan *p, const struct graph *g, struct text *out)
{
    VEC(struct used_kernel) used = {0};
    char size[32];
    uint32_t ops = 0;
    FOR_STEP_PROGRAMS(program)
        for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
            const struct binding *b = &p->placement.binding[g->order[program].nodes.at[k]];
            uint32_t i = 0;
            if (!b->kernel) continue;
            ops++;
            while (i < used.n && used.at[i].kernel != b->kernel) i++;
            if (i == used.n) vec_push(&used, ((struct used_kernel){b->kernel, 0, 0}));
            used.at[i].times++;
            if (b->work_bytes > used.at[i].work) used.at[i].work = b->work_bytes;
        }
    qsort(used.at, used.n, sizeof *used.at, by_times);
    text_printf(out,
                "Kernels: %u launches of %u kernels in a micro-batch and its update, the most frequent first; the "
                "largest workspace of each\n",
                ops, used.n);
    for (uint32_t i = 0; i < used.n && i < KERNELS; i++)
        text_printf(out, "  %6u  %-34s %12s\n", used.at[i].times, used.at[i].kernel->name,
                    size_print(used.at[i].work, size));
    vec_free(&used);
}

void plan_explain(const struct plan *p, const struct graph *g, struct text *out)
{
    struct held *rows = mem_alloc(g->storages.n * sizeof *rows);
    text_printf(out, "\n");
    if (p->settings.train) print_step(p, g, out);
    print_tensors(p, g, rows, out);
    print_persistent(p, g, out);
    print_modules(p, g, out);
    if (p->settings.train) print_kernels(p, g, out);
    mem_free(rows);
}

/* --- everything ---------------------------------------------------------------------------- */

static void list_peak(const struct plan *p, const struct graph *g, struct held *rows, struct text *out)
{
    enum { LISTED = 40 };
    uint32_t live = plan_at_peak(p, g, rows);
    text_printf(out, "peak: program %s, instant %u, %llu bytes live; transients alive there:\n",
                program_name(p->peak.program), p->peak.instant, (unsigned long long)p->peak.bytes);
    for (uint32_t i = 0; i < live && i < LISTED; i++)
        text_printf(out, "  %12llu  %-12s %s\n", (unsigned long long)rows[i].bytes, kind_name(rows[i].kind),
                    rows[i].name);
    if (live > LISTED) text_printf(out, "  ... and %u smaller\n", live - LISTED);
}

static void list_placement(const struct plan *p, const struct graph *g, enum program program, enum space space,
                           bool persistent, struct held *rows, struct text *out)
{
    uint32_t n = collect(p, g, program, space, persistent, rows);
    qsort(rows, n, sizeof *rows, by_offset);
    for (uint32_t i = 0; i < n; i++)
        text_printf(out, "  %12llu +%-12llu %5u..%-5u %-12s %s\n", (unsigned long long)rows[i].offset,
                    (unsigned long long)rows[i].bytes, rows[i].start, rows[i].end, kind_name(rows[i].kind),
                    rows[i].name);
}

static void list_schedule(const struct plan *p, const struct graph *g, enum program program, struct text *out)
{
    text_printf(out,
                "schedule of %s: instant, lane, kernel and its form, bytes that a thread moves at a time, workspace\n",
                program_name(program));
    for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
        id n = g->order[program].nodes.at[k];
        const struct binding *b = &p->placement.binding[n];
        char access[16] = "", kernel[80];
        if (!b->kernel) continue;
        if (b->access) snprintf(access, sizeof access, "%d B", b->access);
        snprintf(kernel, sizeof kernel, "%s%s%s", b->kernel->name, b->kernel->forms ? ", " : "",
                 kernel_form_name(b->kernel, b->form));
        text_printf(out, "  %5u node %-5u %-7s %-46s %5s %llu\n", k, n, lane_name(node_at(g, n)->lane), kernel, access,
                    (unsigned long long)b->work_bytes);
    }
}

void plan_explain_all(const struct plan *p, const struct graph *g, struct text *out)
{
    struct held *rows = mem_alloc(g->storages.n * sizeof *rows);
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        if (!g->order[program].nodes.n) continue;
        graph_print(g, program, out);
        list_schedule(p, g, program, out);
        text_printf(out, "placement of %s: offset, bytes, lifetime\n", program_name(program));
        for (int persistent = 1; persistent >= 0; persistent--)
            list_placement(p, g, program, SPACE_DEVICE, persistent, rows, out);
        if (!p->placement.arena[SPACE_HOST]) continue;
        text_printf(out, "placement of %s in %s: offset, bytes, lifetime\n", program_name(program), plan_host_name(p));
        for (int persistent = 1; persistent >= 0; persistent--)
            list_placement(p, g, program, SPACE_HOST, persistent, rows, out);
    }
    list_peak(p, g, rows, out);
    mem_free(rows);
}
