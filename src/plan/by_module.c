/*
 * by_module.c: see explain.h.
 *
 * A weight belongs to the module that its name begins with, and so do its gradient and optimizer
 * state. A transient storage belongs to the module of the node that writes it first. Names are cut
 * before the first number ("model.layers.3.mlp" belongs to "model.layers") and after the second
 * word.
 */
#include "plan/explain.h"

#include "graph/stored.h"

#include <ctype.h>

enum { WORDS = 2 };

/* Writes the module of a name. "grad.model.layers.0.q.weight" and "model.layers.0.q.weight.exp_avg"
 * belong to the weight. The last word of a weight's name is the parameter's own name, not a
 * module. */
static void module_of(const char *name, bool weight, char out[64])
{
    char text[256];
    size_t n = 0;
    if (!strncmp(name, "grad.", 5)) name += 5;
    size_t length = strlen(name);
    if (weight) {
        const char *dot = strrchr(name, '.');
        length = dot ? (size_t)(dot - name) : 0;
    }
    if (length >= sizeof text) length = sizeof text - 1;
    memcpy(text, name, length);
    text[length] = '\0';
    out[0] = '\0';
    int words = 0;
    for (char *word = text, *end; word && *word && words < WORDS; word = end, words++) {
        if ((end = strchr(word, '.'))) *end++ = '\0';
        if (isdigit((unsigned char)*word)) break;
        size_t more = strlen(word) + (n ? 1 : 0);
        if (n + more >= 64) break;
        if (n) out[n++] = '.';
        strcpy(out + n, word);
        n += strlen(word);
    }
}

void module_of_scope(const struct graph *g, id scope, char out[64])
{
    const char *name = scope ? module_name(g, scope) : "";
    module_of(scope && !*name ? graph_name(g, g->scopes.at[scope].name) : name, false, out);
}

struct sums {
    VEC(struct module_memory) list;
};

static struct module_memory *find(struct sums *s, const char *name)
{
    for (uint32_t i = 0; i < s->list.n; i++)
        if (!strcmp(s->list.at[i].name, name)) return &s->list.at[i];
    struct module_memory p = {0};
    strcpy(p.name, name);
    vec_push(&s->list, p);
    return &s->list.at[s->list.n - 1];
}

static bool of_weight(enum kind k) { return k == KIND_PARAM || k == KIND_MASTER || k == KIND_GRAD || k == KIND_STATE; }

static void add_persistent(struct sums *s, const struct plan *p, const struct graph *g)
{
    for (id t = 1; t < g->storages.n; t++) {
        const struct storage *x = &g->storages.at[t];
        char module[64] = "";
        if (!storage_is_persistent(x) || x->space != SPACE_DEVICE || !plan_reached(p, g, t)) continue;
        if (of_weight(x->kind)) module_of(graph_name(g, x->name), true, module);
        find(s, module)->persistent += align_up(x->bytes, PLAN_ALIGN);
    }
}

static void add_transient(struct sums *s, const struct plan *p, const struct graph *g)
{
    const struct order *order = &g->order[p->peak.program];
    const struct life *life = p->placement.life[p->peak.program];
    char module[64];
    for (id t = 1; t < g->storages.n; t++) {
        const struct storage *x = &g->storages.at[t];
        if (storage_is_persistent(x) || x->space != SPACE_DEVICE || !life[t].used || life[t].start > p->peak.instant ||
            life[t].end < p->peak.instant)
            continue;
        id scope = node_at(g, order->nodes.at[life[t].start])->scope;
        if (of_weight(x->kind)) module_of(graph_name(g, x->name), true, module);
        else module_of_scope(g, scope, module);
        find(s, module)->transient += align_up(x->bytes, PLAN_ALIGN);
    }
    id node = order->nodes.at[p->peak.instant], scope = node_at(g, node)->scope;
    module_of_scope(g, scope, module);
    find(s, module)->transient += align_up(p->placement.binding[node].work_bytes, PLAN_ALIGN);
}

static int by_bytes(const void *a, const void *b)
{
    const struct module_memory *x = a, *y = b;
    uint64_t bx = x->persistent + x->transient, by = y->persistent + y->transient;
    if (bx != by) return bx > by ? -1 : 1;
    return strcmp(x->name, y->name);
}

uint32_t plan_by_module(const struct plan *p, const struct graph *g, struct module_memory *out, uint32_t room)
{
    struct sums s = {0};
    add_persistent(&s, p, g);
    add_transient(&s, p, g);
    qsort(s.list.at, s.list.n, sizeof *s.list.at, by_bytes);
    uint32_t n = (uint32_t)min_u64(s.list.n, room);
    memcpy(out, s.list.at, n * sizeof *out);
    for (uint32_t i = n; i < s.list.n; i++) {
        strcpy(out[n - 1].name, "others");
        out[n - 1].persistent += s.list.at[i].persistent;
        out[n - 1].transient += s.list.at[i].transient;
    }
    vec_free(&s.list);
    return n;
}

struct weights_memory plan_by_weight(const struct plan *p, const struct graph *g)
{
    struct weights_memory w = {0};
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *x = &g->params.at[i];
        const struct storage *s = storage_of(g, x->tensor);
        if (s->kind != KIND_PARAM || s->space != SPACE_DEVICE || !plan_reached(p, g, tensor_at(g, x->tensor)->storage))
            continue;
        const bool fp8 = s->form == STORED_E4M3 || s->form == STORED_E4M3_BOTH;
        *(fp8 ? &w.fp8 : s->form ? &w.nf4 : x->frozen ? &w.frozen : &w.trained) += align_up(s->bytes, PLAN_ALIGN);
    }
    return w;
}
