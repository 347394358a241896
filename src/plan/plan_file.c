/*
 * plan_file.c: writing and reading plans (see plan.h).
 */

#include <inttypes.h>
#include <math.h>

#include "graph/ops.h"
#include "io/json.h"
#include "cost/links.h"
#include "plan/explain.h"
#include "plan/plan.h"
#include "cost/calibration.h"

uint64_t plan_digest(const struct plan *p, const struct graph *g)
{
    uint64_t h = hash_bytes(p->placement.arena, sizeof p->placement.arena, 1);
    for (int program = 0; program < PROGRAM_COUNT; program++)
        for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
            id n = g->order[program].nodes.at[k];
            const struct node *x = node_at(g, n);
            const struct binding *b = &p->placement.binding[n];
            const char *kernel = b->kernel ? b->kernel->name : "view";
            h = hash_bytes(kernel, strlen(kernel), h);
            uint64_t work[2] = {b->work_offset, b->work_bytes};
            h = hash_bytes(work, sizeof work, h);
            for (int i = 0; i < x->nin + x->nout; i++) {
                id t = i < x->nin ? x->in[i] : x->out[i - x->nin];
                if (!t) continue;
                const struct tensor *d = tensor_at(g, t);
                uint64_t at[3] = {p->placement.offset[d->storage] + d->offset, tensor_bytes(d), d->dtype};
                h = hash_bytes(at, sizeof at, h);
            }
        }
    return h;
}

void plan_put_settings(struct json_writer *w, const struct settings *s, int effective_batch)
{
    char value[SETTING_ROOM];
    json_put_int(w, "effective_batch", effective_batch);
    json_put_int(w, "accumulation", s->accumulation);
    if (s->ranks * s->shares > 1) {
        json_put_int(w, "ranks", s->ranks);
        json_put_int(w, "shares", s->shares);
        if (s->group == GROUP_HOST) json_put_int(w, "group_ranks", s->per_host);
    }
    if (settings_tensor_parts(s) > 1) {
        json_put_int(w, "tensor", s->tensor);
        json_put_int(w, "tensor_shares", s->tensor_shares);
    }
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        const char *name = techniques[id].name, *text = technique_print(id, s, value);
        if (techniques[id].unsaid && technique_is_off(id, s)) continue;
        if (techniques[id].type == TYPE_COUNT) json_put_int(w, name, atoi(text));
        else if (techniques[id].type == TYPE_SWITCH) json_put_bool(w, name, !strcmp(text, "on"));
        else json_put_string(w, name, text);
    }
}

struct live {
    id storage;
    uint64_t bytes;
};

static int by_bytes(const void *a, const void *b)
{
    const struct live *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->storage < y->storage ? -1 : 1;
}

static void write_peak(struct json_writer *w, const struct plan *p, const struct graph *g)
{
    const struct node *n = node_at(g, g->order[p->peak.program].nodes.at[p->peak.instant]);
    struct live *live = mem_alloc(g->storages.n * sizeof *live);
    uint32_t count = 0;
    for (id s = 1; s < g->storages.n; s++) {
        const struct life *l = &p->placement.life[p->peak.program][s];
        if (l->used && l->start <= p->peak.instant && p->peak.instant <= l->end &&
            g->storages.at[s].space == SPACE_DEVICE && !storage_is_persistent(&g->storages.at[s]))
            live[count++] = (struct live){s, g->storages.at[s].bytes};
    }
    qsort(live, count, sizeof *live, by_bytes);
    json_begin_map(w, "peak");
    json_put_string(w, "program", program_name(p->peak.program));
    json_put_uint(w, "instant", p->peak.instant);
    json_put_string(w, "op", op_table[n->op].name);
    json_put_string(w, "scope", graph_name(g, g->scopes.at[n->scope].name));
    json_begin_list(w, "tensors");
    for (uint32_t i = 0; i < count && i < 20; i++) {
        json_begin_map(w, NULL);
        json_put_string(w, "name", graph_name(g, g->storages.at[live[i].storage].name));
        json_put_uint(w, "bytes", live[i].bytes);
        json_end(w);
    }
    json_end(w);
    json_end(w);
    mem_free(live);
}

static void write_modules(struct json_writer *w, const struct plan *p, const struct graph *g)
{
    struct module_memory modules[16];
    uint32_t n = plan_by_module(p, g, modules, COUNT(modules));
    json_begin_list(w, "modules");
    for (uint32_t i = 0; i < n; i++) {
        json_begin_map(w, NULL);
        json_put_string(w, "name", modules[i].name);
        json_put_uint(w, "bytes", modules[i].persistent + modules[i].transient);
        json_put_uint(w, "weights", modules[i].persistent);
        json_put_uint(w, "transient", modules[i].transient);
        json_end(w);
    }
    json_end(w);
}

static void write_storages(struct json_writer *w, const struct plan *p, const struct graph *g)
{
    json_begin_list(w, "storages");
    for (id s = 1; s < g->storages.n; s++) {
        bool used = false;
        for (int program = 0; program < PROGRAM_COUNT; program++) used |= p->placement.life[program][s].used;
        const struct storage *x = &g->storages.at[s];
        if (!used && x->kind != KIND_STAGING) continue; /* no program reads staging buffers, but they have an offset */
        json_begin_map(w, NULL);
        json_put_string(w, "name", graph_name(g, x->name));
        json_put_string(w, "kind", kind_name(x->kind));
        json_put_string(w, "space", x->space == SPACE_DEVICE ? "device" : "host");
        json_put_uint(w, "offset", p->placement.offset[s]);
        json_put_uint(w, "bytes", x->bytes);
        json_end(w);
    }
    json_end(w);
}

static uint64_t count_parameters(const struct graph *g, bool trained)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->params.n; i++)
        if (storage_of(g, g->params.at[i].tensor)->kind != KIND_CONST && (!trained || g->params.at[i].grad))
            n += (uint64_t)tensor_elements(tensor_at(g, g->params.at[i].tensor));
    return n;
}

/* Writes the ceilings from which times are predicted. */
static void write_ceilings(struct json_writer *w, const struct profile *p)
{
    const struct calibration *c = p->measured;
    json_begin_map(w, "ceilings");
    json_put_bool(w, "measured", c);
    if (p->published) json_put_string(w, "prediction", "unmeasured");
    if (p->published) json_put_string(w, "source", p->published);
    if (c) json_put_string(w, p->kind == DEVICE_CUDA ? "gpu" : "cpu", c->cpu);
    if (c) json_put_string(w, "date", c->date);
    if (p->factor > 0) json_put_number(w, "factor", p->factor);
    json_end(w);
}

static void write_missing(struct json_writer *w, const struct plan *p)
{
    struct text missing = {0};
    plan_print_missing(p, &missing);
    if (missing.n) json_put_string(w, "ops_without_kernel", missing.at);
    text_free(&missing);
}

/* Writes seconds in whole nanoseconds, so that a plan's bytes do not depend on the last bits of the
 * machine's log(). */
static void put_seconds(struct json_writer *w, const char *key, double seconds)
{
    json_put_number(w, key, round(seconds * 1e9) / 1e9 + 0.0);
}

static void write_techniques(struct json_writer *w, const struct plan *p)
{
    if (!p->n_ablated) return;
    json_begin_list(w, "techniques");
    for (int i = 0; i < p->n_ablated; i++) {
        json_begin_map(w, NULL);
        json_put_string(w, "name", p->ablated[i].name);
        json_put_int(w, "saved_bytes", p->ablated[i].saved);
        json_put_int(w, "host_bytes", p->ablated[i].host);
        put_seconds(w, "seconds", p->ablated[i].seconds);
        json_end(w);
    }
    json_end(w);
}

static void write_more(struct json_writer *w, const struct plan *p)
{
    char recompute[SETTING_ROOM];
    if (!p->more.budget || !(p->more.seconds > 0)) return;
    json_begin_map(w, "next_gib");
    json_put_uint(w, "budget_bytes", p->more.budget);
    json_put_uint(w, "arena_bytes", p->more.arena);
    put_seconds(w, "predicted_seconds", p->more.seconds);
    json_put_int(w, "micro_batch", p->more.settings.micro_batch);
    json_put_string(w, "recompute", technique_print(technique_in(CLASS_BLOCKS), &p->more.settings, recompute));
    json_end(w);
}

static void write_unbounded(struct json_writer *w, const struct plan *p)
{
    if (!p->unbounded.host) return;
    json_begin_map(w, "without_host_budget");
    json_put_uint(w, "host_bytes", p->unbounded.host);
    put_seconds(w, "predicted_seconds", p->unbounded.seconds);
    json_end(w);
}

void plan_put_remedies(struct json_writer *w, const struct remedy *remedy, int n)
{
    if (!n) return;
    json_begin_list(w, "changes_that_fit");
    for (int i = 0; i < n; i++) {
        json_begin_map(w, NULL);
        json_put_string(w, "change", remedy[i].change);
        json_put_uint(w, "smallest_budget_bytes", remedy[i].smallest);
        json_put_uint(w, "host_bytes", remedy[i].host);
        json_end(w);
    }
    json_end(w);
}

void plan_put_machine(struct json_writer *w, const char (*warning)[WARNING_ROOM], int n)
{
    json_put_bool(w, "fits_machine", !n);
    if (!n) return;
    json_begin_list(w, "warnings");
    for (int i = 0; i < n; i++) json_put_string(w, NULL, warning[i]);
    json_end(w);
}

/* Writes what each of several ranks holds and sends; nothing for one rank. */
static void write_ranks(struct json_writer *w, const struct plan *p, const struct graph *g,
                        const struct profile *profile)
{
    char value[SETTING_ROOM];
    struct text links = {0};
    if (settings_world(&p->settings) < 2 || !p->settings.train) return;
    const struct communication c = plan_communication(p, g, profile);
    links_print(profile, &links);
    json_begin_map(w, "ranks");
    json_put_int(w, "world", settings_world(&p->settings));
    json_put_int(w, "per_host", profile->per_host ? profile->per_host : settings_world(&p->settings));
    if (p->settings.tensor > 1) json_put_int(w, "tensor", p->settings.tensor);
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        if (techniques[id].class == CLASS_SHARES)
            json_put_string(w, techniques[id].name, technique_print(id, &p->settings, value));
    json_put_int(w, "shares", mesh_size(p->settings.ranks) * mesh_size(p->settings.shares));
    json_put_string(w, "links", links.at);
    json_put_uint(w, "sent_bytes", (uint64_t)c.sent);
    json_put_uint(w, "received_bytes", (uint64_t)c.sent);
    json_put_uint(w, "buffer_bytes", c.buffers);
    json_put_uint(w, "host_buffer_bytes", c.host);
    put_seconds(w, "communication_seconds", c.seconds);
    put_seconds(w, "hidden_seconds", c.hidden);
    json_end(w);
    text_free(&links);
}

void plan_write(const struct plan *p, const struct graph *g, const struct plan_note *note, struct text *out)
{
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_map(&w, NULL);
    json_put_int(&w, "plan_format", 1);
    json_put_bool(&w, "fits", note->fits);
    if (note->refused_by) json_put_string(&w, "refused_by", note->refused_by);
    if (!note->storages) plan_put_machine(&w, note->warning, note->n_warnings);
    json_put_uint(&w, "arena_bytes", plan_arena(p));
    json_begin_map(&w, "arenas");
    json_put_uint(&w, "device", p->placement.arena[SPACE_DEVICE]);
    json_put_uint(&w, "host", p->placement.arena[SPACE_HOST]);
    json_end(&w);
    json_put_uint(&w, "lower_bound_bytes", p->peak.bytes);
    json_put_uint(&w, "padding", plan_arena(p) - p->peak.bytes);
    json_put_uint(&w, "smallest_budget_bytes", p->smallest);
    if (note->budget) json_put_uint(&w, "budget_bytes", note->budget);
    if (note->host_budget) json_put_uint(&w, "host_budget_bytes", note->host_budget);
    json_begin_map(&w, "breakdown");
    for (int k = KIND_PARAM; k < KIND_COUNT; k++)
        if (p->peak.by_kind[k]) json_put_uint(&w, kind_name(k), p->peak.by_kind[k]);
    json_end(&w);
    const struct weights_memory weights = plan_by_weight(p, g);
    json_begin_map(&w, "weights");
    json_put_uint(&w, "trained", weights.trained);
    json_put_uint(&w, "frozen", weights.frozen);
    json_put_uint(&w, "nf4", weights.nf4);
    json_put_uint(&w, "fp8", weights.fp8);
    json_end(&w);
    json_begin_map(&w, "settings");
    plan_put_settings(&w, &p->settings, note->effective_batch);
    json_end(&w);
    if (p->settings.prompt_chunk) {
        json_put_int(&w, "prompt_batch", p->settings.prompts);
        json_put_int(&w, "prompt_chunk", p->settings.prompt_chunk);
        json_put_uint(&w, "kv_cache_bytes", plan_cache_bytes(g));
    }
    put_seconds(&w, "predicted_step_seconds", p->seconds);
    json_put_string(&w, "profile", note->profile->name);
    json_put_int(&w, "threads", note->profile->threads);
    write_ceilings(&w, note->profile);
    write_missing(&w, p);
    json_put_uint(&w, "parameters", count_parameters(g, false));
    json_put_uint(&w, "trained_parameters", count_parameters(g, true));
    write_ranks(&w, p, g, note->profile);
    write_techniques(&w, p);
    write_more(&w, p);
    write_unbounded(&w, p);
    plan_put_remedies(&w, note->remedy, note->n_remedies);
    if (note->adapter) json_put_string(&w, "adapter", note->adapter);
    write_peak(&w, p, g);
    write_modules(&w, p, g);
    json_put_format(&w, "digest", "%016" PRIx64, plan_digest(p, g));
    if (note->storages) write_storages(&w, p, g);
    json_end(&w);
    text_printf(out, "\n");
}

/* --- reading ------------------------------------------------------------------- */

static int read_count(const struct value *v, const char *key, int *out, struct error *e)
{
    int64_t x = 0;
    int rc = value_as_int(value_get(v, key), key, &x, e);
    if (!rc && (x < 1 || x > 1 << 24)) rc = error_set(e, PL_USAGE, "%s is %" PRId64, key, x);
    *out = (int)x;
    return rc;
}

static int read_technique(const struct value *settings, enum technique_id id, struct settings *s, struct error *e)
{
    const struct technique *t = &techniques[id];
    const struct value *v = value_get(settings, t->name);
    const char *text = "";
    char number[SETTING_ROOM];
    bool on = false;
    int n = 0, rc = PL_OK;
    if (!v && t->off) {
        text = t->off; /* the plan is older than the technique */
    } else if (t->type == TYPE_COUNT) {
        rc = read_count(settings, t->name, &n, e);
        snprintf(number, sizeof number, "%d", n);
        text = number;
    } else if (t->type == TYPE_SWITCH) {
        rc = value_as_bool(v, t->name, &on, e);
        text = on ? "on" : "off";
    } else {
        rc = value_as_string(v, t->name, &text, e);
    }
    if (!rc && !technique_parse(id, text, s)) rc = error_set(e, PL_USAGE, "%s is \"%s\"", t->name, text);
    return rc;
}

static int read_plan(const struct value *v, struct plan_file *p, struct error *e)
{
    const struct value *s = value_get(v, "settings");
    int64_t format = 0;
    const char *digest = NULL, *profile = NULL;
    int rc = value_as_int(value_get(v, "plan_format"), "plan_format", &format, e);
    if (!rc && format != 1) rc = error_set(e, PL_USAGE, "plan_format %" PRId64 " is not 1", format);
    if (!rc) rc = value_as_map(s, "settings", e);
    if (!rc) rc = read_count(s, "effective_batch", &p->effective_batch, e);
    if (!rc) rc = read_count(s, "accumulation", &p->settings.accumulation, e);
    p->ranks = p->shares = p->tensor = p->tensor_shares = 1;
    if (!rc && value_get(s, "ranks")) rc = read_count(s, "ranks", &p->ranks, e);
    if (!rc && value_get(s, "shares")) rc = read_count(s, "shares", &p->shares, e);
    if (!rc && value_get(s, "tensor")) rc = read_count(s, "tensor", &p->tensor, e);
    if (!rc && value_get(s, "tensor_shares")) rc = read_count(s, "tensor_shares", &p->tensor_shares, e);
    if (!rc && value_get(s, "group_ranks")) rc = read_count(s, "group_ranks", &p->per_host, e);
    for (enum technique_id id = 0; id < TECHNIQUES && !rc; id++) rc = read_technique(s, id, &p->settings, e);
    p->settings.prompts = 1;
    if (!rc && value_get(v, "prompt_batch")) rc = read_count(v, "prompt_batch", &p->settings.prompts, e);
    if (!rc) rc = value_as_uint(value_path(v, "arenas.device"), "arenas.device", &p->arena[SPACE_DEVICE], e);
    if (!rc) rc = value_as_uint(value_path(v, "arenas.host"), "arenas.host", &p->arena[SPACE_HOST], e);
    if (!rc) rc = value_as_uint(value_get(v, "smallest_budget_bytes"), "smallest_budget_bytes", &p->smallest, e);
    if (!rc) rc = value_as_string(value_get(v, "digest"), "digest", &digest, e);
    if (!rc) rc = value_as_string(value_get(v, "profile"), "profile", &profile, e);
    if (!rc) rc = read_count(v, "threads", &p->threads, e);
    if (rc) return rc;
    p->digest = strtoull(digest, NULL, 16);
    snprintf(p->profile, sizeof p->profile, "%s", profile);
    return PL_OK;
}

int plan_read(const char *path, struct plan_file *out, struct error *e)
{
    struct bump b = {0};
    struct value *v = NULL;
    memset(out, 0, sizeof *out);
    int rc = json_read_file(path, 64u << 20, &b, &v, e);
    if (!rc) {
        rc = value_as_map(v, "the plan", e);
        if (!rc) rc = read_plan(v, out, e);
        if (rc) error_prepend(e, "%s", path);
    }
    bump_free(&b);
    return rc;
}
