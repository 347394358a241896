/*
 * weights.c: opening model folders (see weights.h; reading is in weights_load.c, writing in
 * weights_save.c).
 *
 *     files -> slots (every tensor of every file): model_files.c
 *     naming rule + published names -> one slot per parameter
 *
 * Invariant: after weights_open every parameter that is not a constant has a slot with its shape
 * and a float dtype, so loading can only fail on values and on system errors. No allocation here is
 * proportional to the model's bytes.
 */
#include "folder/weights.h"

#include <errno.h>

#include "base/coding.h"
#include "io/file.h"
#include "folder/weights_4bit.h"

static const char adapter_file[] = "adapter_model.safetensors", adapter_prefix[] = "base_model.model.";
enum { NAME_MOST = 1024 };

/* Tensors that share another parameter's weight, and are sometimes stored anyway. */
static const struct {
    const char *name, *same_as;
} tied[] = {{"lm_head.weight", "model.embed_tokens.weight"},
            {"lm_head.weight", "model.text_model.embed_tokens.weight"},
            {"lm_head.weight", "model.language_model.embed_tokens.weight"},
            {"lm_head.weight", "transformer.wte.weight"},
            {"language_model.lm_head.weight", "language_model.model.embed_tokens.weight"},
            {"prompt_encoder.shared_embedding.positional_embedding", "shared_image_embedding.positional_embedding"}};

/* --- helpers ------------------------------------------------------------------------- */

struct st_spec weight_spec(const struct graph *g, const struct param *p, const char *name, int64_t i, enum dtype dtype,
                           struct bump *names)
{
    const struct tensor *t = tensor_at(g, p->tensor);
    const int stacked = name_is_stack(name);
    char full[NAME_MOST];
    return (struct st_spec){bump_string(names, name_in_stack(name, i, full, sizeof full)), dtype, t->rank - stacked,
                            t->dim + stacked};
}

bool weight_is_adapted(const struct param *p) { return p->added || !p->frozen || p->running; }

bool weight_is_constant(const struct graph *g, const struct param *p)
{
    return storage_of(g, p->tensor)->kind == KIND_CONST;
}

/* Returns the name without the part's; NULL: it does not begin with it. */
static const char *name_in_part(const char *name, const char *part)
{
    const size_t n = strlen(part);
    if (!n) return name;
    return !strncmp(name, part, n) && name[n] == '.' ? name + n + 1 : NULL;
}

/* Returns the name that the parameter has in its part; NULL: it is a constant, or of another
 * part. */
static const char *own_name(const struct weights *w, const struct graph *g, const struct param *p)
{
    const char *name = weight_name(g, p);
    if (weight_is_constant(g, p) || (p->added && !w->is_adapter)) return NULL;
    for (uint32_t i = 0; i < w->n_outside + w->n_fresh; i++)
        if (name_in_part(name, w->outside[i])) return NULL;
    return name_in_part(name, w->part);
}

/* --- the naming rule -------------------------------------------------------------------- */

static const char *stripped(const char *name, const char *root)
{
    size_t n = strlen(root);
    return strncmp(name, root, n) ? name : name + n;
}

/* Returns a parameter's name in the folder by a rule; that of a stack has its star. */
static const char *stack_name(const struct weight_naming *rule, const char *name, char out[NAME_MOST])
{
    char other[NAME_MOST];
    name = spelling_apply(rule->spellings, rule->spelled, name, other, sizeof other);
    snprintf(out, NAME_MOST, "%s%s", rule->prefix, stripped(name, rule->strip));
    return out;
}

/* Returns the name in the folder of a parameter's tensor i. */
static const char *file_name_at(const struct weight_naming *rule, const char *name, int64_t i, char out[NAME_MOST])
{
    char full[NAME_MOST];
    name = name_in_stack(stack_name(rule, name, out), i, full, sizeof full);
    if (name == full) snprintf(out, NAME_MOST, "%s", full);
    return out;
}

/* Returns the name of a parameter's tensor, or of the first of a stack. */
static const char *file_name(const struct weight_naming *rule, const char *name, char out[NAME_MOST])
{
    return file_name_at(rule, name, 0, out);
}

static uint32_t count_found(const struct weights *w, const struct graph *g, const struct weight_naming *rule)
{
    char name[NAME_MOST];
    uint32_t found = 0;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const char *own = own_name(w, g, &g->params.at[i]);
        if (own) found += model_files_find_slot(&w->in, file_name(rule, own, name)) != 0;
    }
    return found;
}

/* Chooses for each beginning of names the spelling under which most parameters are found, behind
 * the prefix of the rule. */
static void choose_spellings(const struct weights *w, const struct graph *g, struct weight_naming *rule)
{
    const struct spelling *list = rule->spellings;
    for (int i = 0; list && list[i].name; i++) {
        uint32_t best = 0;
        int chosen = 0;
        for (int k = 0; k < spelling_count(&list[i]); k++) {
            rule->spelled.by[i] = (uint8_t)k;
            const uint32_t found = count_found(w, g, rule);
            if (!k || found > best) best = found, chosen = k;
        }
        rule->spelled.by[i] = (uint8_t)chosen;
    }
}

typedef VEC(char *) prefix_list;

/* Collects every P, ending in a dot, for which the folder has a tensor P + parameter name; each
 * once. */
static void collect_prefixes(const struct weights *w, const struct graph *g, prefix_list *out)
{
    for (uint32_t i = 0; i < g->params.n; i++) {
        const char *own = own_name(w, g, &g->params.at[i]);
        if (!own) continue;
        char first[NAME_MOST];
        const char *name = name_in_stack(own, 0, first, sizeof first);
        size_t n = strlen(name);
        for (uint32_t k = 0; k < w->in.n_listed; k++) {
            const char *full = w->in.slots[w->in.by_name[k]].entry->name;
            size_t head = strlen(full) - n, j = 0;
            if (strlen(full) <= n || full[head - 1] != '.' || strcmp(full + head, name)) continue;
            while (j < out->n && (strlen(out->at[j]) != head || memcmp(out->at[j], full, head))) j++;
            if (j < out->n) continue;
            char *prefix = mem_string(full);
            prefix[head] = 0;
            vec_push(out, prefix);
        }
    }
}

/* Chooses the first rule that finds every parameter; else the one that finds most, which the error
 * about a missing tensor refers to. */
static int choose_naming(struct weights *w, const struct graph *g, const struct family *family, struct error *e)
{
    uint32_t wanted = 0, best = 0;
    for (uint32_t i = 0; i < g->params.n; i++) wanted += own_name(w, g, &g->params.at[i]) != NULL;
    for (int strip = 0; strip < 2; strip++) {
        struct weight_naming rule = {strip && family ? family->root : "", "", family ? family->spellings : NULL, {{0}}};
        choose_spellings(w, g, &rule);
        uint32_t found = count_found(w, g, &rule);
        if (!strip || found > best) w->naming = rule, best = found;
        if (found == wanted) return PL_OK;
    }
    prefix_list prefixes = {0};
    bool whole = false;
    int rc = PL_OK;
    collect_prefixes(w, g, &prefixes);
    for (uint32_t i = 0; !rc && i < prefixes.n; i++) {
        struct weight_naming rule = {"", prefixes.at[i], family ? family->spellings : NULL, {{0}}};
        choose_spellings(w, g, &rule);
        uint32_t found = count_found(w, g, &rule);
        if (found == wanted && whole)
            rc = error_set(e, PL_USAGE, "%s: the folder holds this model twice, under \"%.200s\" and under \"%.200s\"; "
                           "keep one of them", w->in.dir, w->naming.prefix, rule.prefix);
        if (found == wanted) whole = true;
        if (found > best) {
            best = found;
            rule.prefix = bump_string(&w->in.memory, rule.prefix);
            w->naming = rule;
        }
    }
    for (uint32_t i = 0; i < prefixes.n; i++) mem_free(prefixes.at[i]);
    vec_free(&prefixes);
    return rc;
}

const char *weights_name_in_folder(const struct weights *w, const char *published, char out[NAME_MOST])
{
    return stack_name(&w->naming, published, out);
}

bool weights_spelled_otherwise(const struct weights *w)
{
    for (int i = 0; w->naming.spellings && w->naming.spellings[i].name; i++)
        if (w->naming.spelled.by[i]) return true;
    return *w->naming.strip;
}

char *weights_describe_naming(const struct weights *w, char out[160])
{
    for (int i = 0; w->naming.spellings && w->naming.spellings[i].name; i++)
        if (w->naming.spelled.by[i]) {
            snprintf(out, 160, "names with \"%.60s\" for \"%.60s\"",
                     spelling_at(&w->naming.spellings[i], w->naming.spelled.by[i]), w->naming.spellings[i].name);
            return out;
        }
    if (*w->naming.strip) snprintf(out, 160, "names without \"%.100s\"", w->naming.strip);
    else if (*w->naming.prefix) snprintf(out, 160, "names after \"%.120s\"", w->naming.prefix);
    else snprintf(out, 160, "names as published");
    return out;
}

/* --- parameters and slots ----------------------------------------------------------------- */

/* Returns the tensor name of the folder that is closest to a missing one. */
static const char *nearest_name(const struct weights *w, const char *name)
{
    struct closest x = {.to = name};
    for (uint32_t i = 0; i < w->in.n_listed; i++) closest_try(&x, w->in.slots[w->in.by_name[i]].entry->name);
    return x.found ? x.found : "none at all";
}

static int missing(const struct weights *w, const struct graph *g, const char *name, struct error *e)
{
    char rule[160], other[NAME_MOST];
    for (uint32_t i = 0; i < w->in.n_slots; i++)
        if (!w->in.slots[i].listed && !strcmp(w->in.slots[i].entry->name, name))
            return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is in %.200s, but %s does not name it there; correct "
                             "the index", w->in.dir, name, w->in.names[w->in.slots[i].file], MODEL_INDEX);
    uint32_t absent = 0;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        const char *own = own_name(w, g, p);
        for (int64_t k = 0; own && k < weight_tensors(g, p); k++)
            absent += !model_files_find_slot(&w->in, file_name_at(&w->naming, own, k, other));
    }
    return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is missing (%u in all; the folder holds %u tensors, %s); the "
                     "nearest name is \"%.200s\"; do config.json and the weights belong together?", w->in.dir, name,
                     absent, w->in.n_listed, weights_describe_naming(w, rule), nearest_name(w, name));
}

static bool is_readable(enum dtype t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16 || t == DT_F64; }

static int check_slot(const struct weights *w, const struct graph *g, const struct param *p,
                      const struct weight_slot *s, struct error *e)
{
    const int stacked = name_is_stack(weight_name(g, p)), rank = tensor_at(g, p->tensor)->rank - stacked;
    const int64_t *dim = tensor_at(g, p->tensor)->dim + stacked;
    const struct st_entry *t = s->entry;
    char found[160], expected[160];
    if (p->form) return weights_4bit_check(w, g, p, s, e);
    if (t->rank != rank || memcmp(t->dims, dim, (size_t)rank * sizeof *dim))
        return error_set(e, PL_USAGE, "%s/%s: tensor \"%.200s\" has the shape %s; %s %s", w->in.dir,
                         w->in.names[s->file], t->name, shape_print(t->rank, t->dims, found),
                         w->is_adapter ? "the base model and adapter_config.json ask for" : "config.json asks for",
                         shape_print(rank, dim, expected));
    if (!is_readable(t->dtype))
        return error_set(e, PL_USAGE, "%s/%s: tensor \"%.200s\" is %.40s; expected F32, BF16, F16 or F64", w->in.dir,
                         w->in.names[s->file], t->name, t->dtype_name);
    return PL_OK;
}

const struct param *weight_origin(const struct graph *g, const struct param *p)
{
    return p->like ? &g->params.at[p->like - 1] : p;
}

/* Takes the slot of each tensor of a parameter, the first of which is `slot`; `name` is the
 * parameter's as file_name takes it. */
static int take_slots(struct weights *w, const struct graph *g, uint32_t param, const char *name, uint32_t slot,
                      struct error *e)
{
    const struct param *p = &g->params.at[param];
    uint32_t *link = &w->source[param];
    char full[NAME_MOST];
    for (int64_t k = 0; k < weight_tensors(g, p); k++) {
        if (k) slot = model_files_find_slot(&w->in, file_name_at(&w->naming, name, k, full));
        if (!slot) return missing(w, g, full, e);
        struct weight_slot *s = &w->in.slots[slot - 1];
        TRY(check_slot(w, g, p, s, e));
        const struct st_entry *first = w->in.slots[(k ? w->source[param] : slot) - 1].entry;
        if (s->entry->dtype != first->dtype)
            return error_set(e, PL_USAGE, "%s/%s: tensor \"%.200s\" is %.40s, but \"%.200s\" is %.40s; expected one "
                             "dtype for all experts of a layer", w->in.dir, w->in.names[s->file], s->entry->name,
                             s->entry->dtype_name, first->name, first->dtype_name);
        s->param = param + 1;
        s->number = (uint32_t)k;
        *link = slot;
        link = &s->next;
    }
    return PL_OK;
}

static int match_params(struct weights *w, const struct graph *g, struct error *e)
{
    char name[NAME_MOST];
    w->n_params = g->params.n;
    w->source = bump_alloc(&w->in.memory, w->n_params * sizeof *w->source);
    for (uint32_t i = 0; i < w->n_params; i++) {
        const struct param *p = &g->params.at[i];
        const char *own = own_name(w, g, p);
        if (!own) continue;
        uint32_t slot = model_files_find_slot(&w->in, file_name(&w->naming, own, name));
        if (!slot && p->like && !p->added) {
            own = own_name(w, g, weight_origin(g, p));
            slot = model_files_find_slot(&w->in, file_name(&w->naming, own, name));
        }
        if (!slot) return missing(w, g, name, e);
        TRY(take_slots(w, g, i, own, slot, e));
    }
    return PL_OK;
}

/* Returns the parameter of that published name + 1; 0: none. */
static uint32_t param_by_name(const struct weights *w, const struct graph *g, const char *name)
{
    for (uint32_t i = 0; i < g->params.n; i++) {
        const char *own = own_name(w, g, &g->params.at[i]);
        if (own && !strcmp(own, name)) return i + 1;
    }
    return 0;
}

/* Matches tied weights that the file also stores: they are not read, but written as copies of their
 * weights. */
static void match_tied(struct weights *w, const struct graph *g)
{
    char name[NAME_MOST];
    struct error ignored;
    for (size_t k = 0; k < COUNT(tied); k++) {
        uint32_t param = param_by_name(w, g, tied[k].same_as),
                 slot = model_files_find_slot(&w->in, file_name(&w->naming, tied[k].name, name));
        if (!slot || !param || w->in.slots[slot - 1].param) continue;
        if (!check_slot(w, g, &g->params.at[param - 1], &w->in.slots[slot - 1], &ignored))
            w->in.slots[slot - 1].param = param;
    }
}

/* Reports whether a tensor is computed or never read; other extra tensors cause a warning. */
static bool is_bookkeeping(const char *name)
{
    static const char *const ends[] = {"rotary_emb.inv_freq", ".num_batches_tracked", ".attention_bias_idxs",
                                       ".attn.bias", ".attn.masked_bias"};
    for (size_t i = 0; i < COUNT(ends); i++)
        if (text_ends_with(name, ends[i])) return true;
    return weights_4bit_beside(name);
}

/* Reports whether a name begins as one of the list. */
static bool begins_as(const char *name, const char *const *list)
{
    for (; list && *list; list++)
        if (!strncmp(name, *list, strlen(*list))) return true;
    return false;
}

static void note_extras(const struct weights *w, const struct model *m)
{
    const char *first = NULL;
    uint32_t count = 0, copied = 0;
    for (uint32_t i = 0; i < w->in.n_slots; i++) {
        const char *name = w->in.slots[i].entry->name;
        if (w->in.slots[i].param || is_bookkeeping(name)) continue;
        if (begins_as(name, m->copied)) copied++;
        else if (!count++) first = name;
    }
    if (copied)
        log_note("%s: %u tensors of a %s that are not needed here are only copied", w->in.dir, copied,
                 m->family->model_type);
    if (!count) return;
    if (*w->part)
        log_note("%s: %u tensors of the files do not belong to the part %s and are left out; the first is %s",
                 w->in.dir, count, w->part, first);
    else
        log_warn("%s: %u tensors of the files do not belong to this model and are only copied; the first is %s",
                 w->in.dir, count, first);
}

/* --- the adapter ------------------------------------------------------------------------------ */

/* Chooses the names in the adapter's file: they begin with PEFT's prefix, and an adapter of a model
 * without its head leaves out the family's root. */
static void choose_adapter_naming(struct weights *w, const struct graph *g, const struct family *family)
{
    uint32_t best = 0;
    for (int strip = 0; strip < 2; strip++) {
        struct weight_naming rule = {strip && family ? family->root : "",
                                     adapter_prefix,
                                     family ? family->spellings : NULL,
                                     {{0}}};
        choose_spellings(w, g, &rule);
        const uint32_t found = count_found(w, g, &rule);
        if (!strip || found > best) w->naming = rule, best = found;
    }
}

/* Returns a parameter's name inside of the layer that PEFT wraps: "q_proj.bias" of a module with an
 * adapter is "q_proj.base_layer.bias". */
static const char *wrapped_name(const char *name, char out[NAME_MOST])
{
    const char *dot = strrchr(name, '.');
    snprintf(out, NAME_MOST, "%.*s.base_layer%s", (int)(dot ? dot - name : 0), name, dot ? dot : "");
    return out;
}

const char *weights_name_in_adapter(const struct weights *w, const struct graph *g, const struct param *p,
                                    char out[NAME_MOST])
{
    char a[NAME_MOST], wrapped[NAME_MOST];
    const char *name = weight_name(g, p), *dot = strrchr(name, '.');
    snprintf(a, sizeof a, "%.*s.lora_A.weight", (int)(dot ? dot - name : 0), name);
    const bool has_adapter = !p->added && param_by_name(w, g, a);
    return stack_name(&w->naming, has_adapter ? wrapped_name(name, wrapped) : name, out);
}

/* Reports whether PEFT stores a tensor under a further name: the frozen weight of an adapted head,
 * biases of modules that are saved whole. They are not read, and written as they are. */
static bool is_second_name(const char *name)
{
    return strstr(name, ".base_layer.") || strstr(name, ".original_module.") || strstr(name, ".modules_to_save.");
}

/* Matches the adapter's parameters: every one that it trains is in the file; one that it does not
 * train may be. */
static int match_adapter(struct weights *w, const struct graph *g, bool partial, struct error *e)
{
    char name[NAME_MOST];
    w->source = bump_alloc(&w->in.memory, w->n_params * sizeof *w->source);
    for (uint32_t i = 0; i < w->n_params; i++) {
        const struct param *p = &g->params.at[i];
        const char *own = own_name(w, g, p);
        char wrapped[NAME_MOST];
        const char *base = own ? wrapped_name(own, wrapped) : NULL;
        uint32_t slot = own ? model_files_find_slot(&w->in, file_name(&w->naming, base, name)) : 0;
        if (slot) own = base;
        if (own && !slot) slot = model_files_find_slot(&w->in, file_name(&w->naming, own, name));
        if (own && !slot && (p->added || !p->frozen))
            return error_set(e, PL_USAGE, "%s/%s: tensor \"%.200s\" is missing; the nearest name is \"%.200s\"; is it "
                             "an adapter for this base model?", w->in.dir, adapter_file, name, nearest_name(w, name));
        if (slot) TRY(take_slots(w, g, i, own, slot, e));
    }
    for (uint32_t i = 0; i < w->in.n_slots && !partial; i++)
        if (!w->in.slots[i].param && !is_second_name(w->in.slots[i].entry->name))
            return error_set(e, PL_USAGE, "%s/%s: tensor \"%.200s\" belongs to no module of the base model that the "
                             "adapter adapts; is it an adapter for this base model?", w->in.dir, adapter_file,
                             w->in.slots[i].entry->name);
    return PL_OK;
}

static int open_adapter(struct weights *w, const struct model *m, const struct weights_adapter *a,
                        const struct graph *g, struct error *e)
{
    const char *path = a->path;
    const struct spelling *spellings = m->family ? m->family->spellings : NULL;
    *w = (struct weights){.part = "", .is_adapter = true, .n_params = g->params.n};
    /* of a new one, as PEFT names modules */
    w->naming = (struct weight_naming){"", adapter_prefix, spellings, spelling_in_memory(spellings)};
    snprintf(w->in.dir, sizeof w->in.dir, "%s", path ? path : "");
    if (!path) return PL_OK;
    struct st_file converted;
    bool is_bin;
    int rc = a->convert(path, &converted, &is_bin, e);
    if (!rc) rc = model_files_open_one(&w->in, adapter_file, is_bin ? &converted : NULL, e);
    if (!rc) {
        choose_adapter_naming(w, g, m->family);
        rc = match_adapter(w, g, m->partial, e);
    }
    if (!rc) rc = model_files_count_others(&w->in, &w->other_bytes, e);
    if (rc) weights_close(w);
    return rc;
}

/* --- opening -------------------------------------------------------------------------------- */

static int open_folder(struct weights *w, const struct graph *g, const struct model *m, struct error *e)
{
    char rule[160];
    bool fused;
    if (model_files_open(&w->in, m->path, false, e) || model_files_check_index(&w->in, e)) return e->code;
    TRY(model_files_split(&w->in, m->family ? m->family->fused : NULL, &fused, e));
    if (choose_naming(w, g, m->family, e) || match_params(w, g, e)) return e->code;
    match_tied(w, g);
    if (weights_spelled_otherwise(w) || *w->naming.prefix)
        log_note("%s: its tensors have %s, a known spelling, which is kept when the model is saved", w->in.dir,
                 weights_describe_naming(w, rule));
    if (fused)
        log_note("%s: it has the experts of a layer in two tensors, which is kept when the model is saved", w->in.dir);
    return model_files_count_others(&w->in, &w->other_bytes, e);
}

/* Lists the parts of a model folder that have folders of their own, and behind them the modules
 * that are in none. */
static void list_outside(struct weights *w, const struct model *m)
{
    uint32_t fresh = 0;
    while (m->fresh && m->fresh[fresh]) fresh++;
    const char **list = bump_alloc(&w->in.memory, ((size_t)m->n_parts + fresh + 1) * sizeof *list);
    for (int i = 0; i < m->n_parts && *w->in.dir; i++)
        if (*m->parts[i].model.path)
            list[w->n_outside++] = bump_format(&w->in.memory, "%s%s%s", w->part, *w->part ? "." : "", m->parts[i].name);
    for (; m->fresh && m->fresh[w->n_fresh]; w->n_fresh++) list[w->n_outside + w->n_fresh] = m->fresh[w->n_fresh];
    w->outside = list;
}

/* Opens the model's weights, or for `part` those of its parameters that begin with this name. */
static int open_one(struct weights *w, const struct model *m, const struct graph *g, const char *part, struct error *e)
{
    memset(w, 0, sizeof *w);
    w->part = bump_string(&w->in.memory, part);
    w->naming = (struct weight_naming){"", "", NULL, {{0}}};
    w->n_params = g->params.n;
    w->other_bytes = m->config_text ? strlen(m->config_text) : 0;
    snprintf(w->in.dir, sizeof w->in.dir, "%s", m->path);
    if (*w->in.dir && m->config_text)
        w->fingerprint = (uint64_t)crc32c(0, m->config_text, strlen(m->config_text)) << 32;
    list_outside(w, m);
    int rc = *w->in.dir ? open_folder(w, g, m, e) : PL_OK;
    if (rc) weights_close(w);
    else if (!m->partial) note_extras(w, m);
    return rc;
}

/* Returns PL_USAGE for a part of which the graph of a whole model has no parameter: its name is a
 * mistake. */
static int check_part(const struct weights *part, const struct graph *g, struct error *e)
{
    for (uint32_t i = 0; i < part->n_params; i++)
        if (own_name(part, g, &g->params.at[i])) return PL_OK;
    return error_set(e, PL_USAGE, "part %s: no parameter of the model begins with \"%s.\"", part->part, part->part);
}

static int count_parts(const struct model *m)
{
    int n = m->n_parts;
    for (int i = 0; i < m->n_parts; i++) n += m->parts[i].model.n_parts;
    return n;
}

static int open_part(struct weights *w, const struct model *m, const struct graph *g, const char *name,
                     uint32_t *configs, struct error *e)
{
    struct weights *part = &w->parts[w->n_parts];
    if (open_one(part, m, g, name, e)) return e->code;
    w->n_parts++;
    *configs = crc32c(*configs, &part->fingerprint, sizeof part->fingerprint);
    return PL_OK;
}

/* Opens the parts, and those of a part that have a folder of their own beside the part's: the
 * vision tower of LLaVA in PRS-Med. */
static int open_parts(struct weights *w, const struct model *m, const struct graph *g, struct error *e)
{
    uint32_t configs = 0;
    int rc = PL_OK;
    w->parts = bump_alloc(&w->in.memory, (size_t)count_parts(m) * sizeof *w->parts);
    for (int i = 0; i < m->n_parts && !rc; i++) {
        const struct part *p = &m->parts[i];
        rc = open_part(w, &p->model, g, p->name, &configs, e);
        for (int k = 0; k < p->model.n_parts && *p->model.path && !rc; k++) {
            const struct part *inner = &p->model.parts[k];
            if (*inner->model.path)
                rc = open_part(w, &inner->model, g, bump_format(&w->in.memory, "%s.%s", p->name, inner->name), &configs,
                               e);
        }
    }
    for (uint32_t i = 0; i < w->n_parts && !m->partial && !rc; i++) rc = check_part(&w->parts[i], g, e);
    w->fingerprint ^= (uint64_t)configs << 32;
    return rc;
}

int weights_open(struct weights *w, const struct model *m, const struct graph *g, const struct weights_adapter *a,
                 struct error *e)
{
    int rc = open_one(w, m, g, "", e);
    if (rc) return rc;
    if (m->n_parts && (!*m->path || w->n_outside)) rc = open_parts(w, m, g, e);
    if (!rc && a) {
        struct weights *adapter = bump_alloc(&w->in.memory, sizeof *adapter);
        rc = open_adapter(adapter, m, a, g, e);
        if (!rc) w->adapter = adapter;
        if (a->config) w->adapter_config = bump_string(&w->in.memory, a->config);
    }
    if (rc) weights_close(w);
    return rc;
}

const struct weights *weights_of(const struct weights *w, uint32_t param)
{
    if (w->adapter && *w->adapter->in.dir && w->adapter->source[param]) return w->adapter;
    if (*w->in.dir && w->source[param]) return w;
    for (uint32_t i = 0; i < w->n_parts; i++)
        if (*w->parts[i].in.dir && w->parts[i].source[param]) return &w->parts[i];
    return NULL;
}

void weights_close(struct weights *w)
{
    for (uint32_t i = 0; i < w->n_parts; i++) weights_close(&w->parts[i]);
    if (w->adapter) weights_close(w->adapter);
    model_files_close(&w->in);
    memset(w, 0, sizeof *w);
}
