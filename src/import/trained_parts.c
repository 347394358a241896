/*
 * trained_parts.c: facts of other programs about what is trained: adapters, 4-bit weights, and
 * frozen parts of a model.
 *
 * A frozen part is model.freeze where all weights are trained. With an adapter, all others are
 * frozen in any case, and a frozen part gets no adapter: adapter.exclude_modules.
 */
#include "import/import_rows.h"
#include "io/yaml.h"

/* --- adapters -------------------------------------------------------------------------------- */

const struct import_entry *import_asks_for_lora(struct import_work *w)
{
    const struct import_entry *type = import_pick(w, HOW_FINETUNING), *adapter = import_given(w, HOW_ADAPTER),
                              *use = import_given(w, HOW_USE_LORA);
    const char *text = import_text(type), *name = import_text(adapter);
    if (type && strcmp(text, "lora") && strcmp(text, "full"))
        import_refuse(w, type, "found %.100s, and Plimsoll has only full and lora; model.freeze and train.groups "
                      "freeze parts", text);
    if (type) return !strcmp(text, "lora") ? type : NULL;
    if (adapter && *name && strcmp(name, "lora") && strcmp(name, "qlora"))
        import_refuse(w, adapter, "found %.100s, and Plimsoll has only lora and qlora", name);
    if (import_has(w, BIT(axolotl))) return *name ? adapter : NULL;
    if (import_has(w, BIT(peft))) return import_pick(w, HOW_LORA_TARGET);
    if (!use && import_has(w, BIT(prs) | BIT(ddp))) return import_pick(w, HOW_LORA_RANK);
    if (!use && !import_has(w, BIT(trl) | BIT(llava)))
        return import_given(w, HOW_LORA_RANK); /* a script that always has an adapter */
    return import_true(w, use) ? use : NULL;
}

/* Reports whether a text is a regular expression rather than names with commas. */
static bool is_regex(const char *text) { return strpbrk(text, "\\*+?[](){}|^$") != NULL; }

static bool is_all(const char *text) { return !strcmp(text, "all") || !strcmp(text, "all-linear"); }

/* Returns the modules of an adapter: all, all-linear, "q_proj,v_proj", a list, a regular
 * expression, or the program's choice. */
static struct value *lora_target(struct import_work *w, const struct import_entry *target,
                                 const struct import_entry *asked)
{
    const struct value *v = target ? target->value : NULL;
    const char *text = import_text(target);
    struct value *list = value_new(w->b, VALUE_LIST);
    if (v && v->kind == VALUE_LIST && v->count == 1 && v->items[0]->text && is_all(v->items[0]->text))
        return import_word(w, "all-linear");
    if (v && v->kind == VALUE_LIST && v->count) return value_copy(w->b, v);
    if (import_true(w, import_given(w, HOW_LORA_LINEAR))) return import_word(w, "all-linear");
    if (!*text && asked->row->how == HOW_USE_LORA && !import_has(w, BIT(trl))) return import_word(w, "all-linear");
    if (!*text) text = "q_proj,v_proj";
    if (is_all(text)) return import_word(w, "all-linear");
    if (is_regex(text)) return import_word(w, text);
    for (; *text; text += strspn(text, ", ")) {
        const size_t n = strcspn(text, ", ");
        if (n) value_append(w->b, list, import_word(w, bump_format(w->b, "%.*s", (int)n, text)));
        text += n;
    }
    return list;
}

/* Puts the defaults of scripts with use_lora of Qwen, and of FastChat's, which always has an
 * adapter. */
static void put_script_defaults(struct import_work *w, const struct import_entry *asked)
{
    static const struct {
        enum import_how how;
        const char *ours, *standard;
    } defaults[] = {{HOW_LORA_RANK, "adapter.r", "64"},
                    {HOW_LORA_ALPHA, "adapter.lora_alpha", "16"},
                    {HOW_LORA_DROPOUT, "adapter.lora_dropout", "0.05"}};
    for (size_t i = 0; i < COUNT(defaults) && asked->row->program == PROGRAM_hf; i++)
        if (!import_pick(w, defaults[i].how))
            import_put(w, defaults[i].ours, yaml_scalar(w->b, defaults[i].standard), asked,
                       bump_format(w->b, "default of scripts with %s", asked->key));
}

static void put_lora(struct import_work *w, const struct import_entry *asked)
{
    const struct import_entry *target = import_pick(w, HOW_LORA_TARGET), *linear = import_given(w, HOW_LORA_LINEAR),
                              *rank = import_pick(w, HOW_LORA_RANK), *alpha = import_pick(w, HOW_LORA_ALPHA);
    import_put(w, "adapter.target_modules", lora_target(w, target, asked),
               target   ? target
               : linear ? linear
                        : asked,
               NULL);
    if (!alpha && rank && import_has(w, BIT(lf)))
        import_put(w, "adapter.lora_alpha", value_number(w->b, 2 * import_number(w, rank)), rank,
                   "default of lora_alpha: twice lora_rank");
    for (enum import_how how = HOW_LORA_RANK; how <= HOW_LORA_DORA; how++) {
        const struct import_entry *entry = import_pick(w, how);
        if (entry && how != HOW_LORA_TARGET && how != HOW_LORA_LINEAR) import_put_value(w, entry->row->ours, entry);
    }
    put_script_defaults(w, asked);
}

/* Returns whether the adapter is stored, and continues. */
static bool put_adapter(struct import_work *w, const struct import_entry *asked)
{
    const struct import_entry *path = import_given(w, HOW_LORA_PATH);
    const bool stored = asked && path && !import_off(path->value);
    const struct value *v = stored ? path->value : NULL;
    if (v && v->kind == VALUE_LIST && v->count != 1)
        import_refuse(w, path, "only one adapter can be continued: give one path");
    else if (v) import_put(w, "adapter.path", value_copy(w->b, v->kind == VALUE_LIST ? v->items[0] : v), path, NULL);
    else if (asked) put_lora(w, asked);
    for (enum import_how how = HOW_LORA_RANK; how <= HOW_LORA_PATH && (!asked || stored); how++)
        if (!stored || how != HOW_LORA_PATH)
            import_leave(w, import_given(w, how),
                         stored ? "the adapter in adapter.path has its own settings"
                                : "the file does not ask for an adapter");
    return stored;
}

static void put_quantize(struct import_work *w, const struct import_entry *lora)
{
    const struct import_entry *bits = import_given(w, HOW_BITS), *four = import_given(w, HOW_BITS4),
                              *twice = import_pick(w, HOW_DOUBLE_QUANT), *asked = import_true(w, four) ? four : bits;
    const double n = asked == four ? 4 : import_number(w, bits);
    if (!asked || import_off(asked->value) || n == 16 || n == 32) {
        import_leave(w, twice, "the file does not ask for 4-bit weights");
        return;
    }
    if (n != 4)
        import_refuse(w, asked, "found %g bits, and frozen weights have 4 (memory.quantize: nf4) or are not quantized",
                      n);
    if (!lora)
        import_refuse(w, asked,
                      "4-bit weights are frozen, so they need a LoRA adapter, and the file does not ask for one");
    if (twice && twice->given && !import_true(w, twice))
        import_refuse(w, twice, "the scales of 4-bit weights are always quantized too, in 8 bits: set it to true");
    const bool differs = twice && !import_true(w, twice);
    import_put(w, "memory.quantize", import_word(w, "nf4"), asked,
               differs
                   ? bump_format(w->b, "%s; unlike the default of %s, scales are quantized too", asked->key, twice->key)
                   : NULL);
}

/* --- parts of a model ------------------------------------------------------------------------ */

static const struct {
    const char *role, *modules; /* patterns, separated by blanks */
} parts[] = {
#define PART(role, parameters, modules) {#role, modules},
#include "config/parts.def"
#undef PART
};
enum { TOWER, PROJECTOR, LANGUAGE, PARTS }; /* in the order of parts.def */

/* Appends the names of a part's modules to alternatives of a regular expression: those that stand
 * anywhere in a name.
 */
static void add_names(int part, struct text *out)
{
    for (const char *s = parts[part].modules; *s; s += strcspn(s, " "), s += *s == ' ')
        if (*s == '*') text_printf(out, "%s%.*s", out->n ? "|" : "", (int)strcspn(s, " ") - 1, s + 1);
}

struct frozen {
    const struct import_entry *by[PARTS]; /* that says so; NULL: trained */
};

static struct frozen find_frozen(struct import_work *w)
{
    static const enum import_how hows[PARTS] = {HOW_FREEZE_TOWER, HOW_FREEZE_PROJECTOR, HOW_FREEZE_LANGUAGE};
    const struct import_entry *images = import_given(w, HOW_FREEZE_IMAGES), *tune = import_given(w, HOW_TUNE_PROJECTOR);
    struct frozen f = {0};
    for (int i = 0; i < PARTS; i++) {
        const struct import_entry *entry = import_pick(w, hows[i]);
        if (entry && import_true(w, entry)) f.by[i] = entry;
        else if (i != LANGUAGE && import_true(w, images)) f.by[i] = images;
    }
    if (import_true(w, tune)) f.by[LANGUAGE] = tune;
    return f;
}

static void put_freeze(struct import_work *w, const struct frozen *f)
{
    struct value *list = value_new(w->b, VALUE_LIST);
    const struct import_entry *from = NULL;
    for (int i = 0; i < PARTS; i++) {
        if (!f->by[i]) continue;
        value_append(w->b, list, import_word(w, parts[i].role));
        if (!from || (!from->given && f->by[i]->given)) from = f->by[i];
    }
    if (from) import_put(w, "model.freeze", list, from, NULL);
}

/* Excludes a frozen part from the adapter. LLaMA-Factory's `all` never adapts the projector, and
 * neither does LLaVA, which trains the projector whole instead; with names that are given, ms-swift
 * does not look at parts. */
static void put_exclude(struct import_work *w, struct frozen f, const struct import_entry *asked)
{
    const struct import_entry *target = import_pick(w, HOW_LORA_TARGET);
    const bool all = w->c->adapter_target_modules.text && is_all(w->c->adapter_target_modules.text),
               llava = import_has(w, BIT(llava));
    struct text names = {0};
    const struct import_entry *from = NULL;
    if (import_has(w, BIT(swift)) && !all) return;
    if (llava && !f.by[PROJECTOR])
        import_put(w, "adapter.modules_to_save", import_word(w, "multi_modal_projector"), asked,
                   "LLaVA trains the projector whole");
    if (llava || (all && import_has(w, BIT(lf))))
        f.by[PROJECTOR] = f.by[PROJECTOR] ? f.by[PROJECTOR] : target ? target : asked;
    for (int i = 0; i < PARTS; i++) {
        if (!f.by[i]) continue;
        add_names(i, &names);
        if (!from || (!from->given && f.by[i]->given)) from = f.by[i];
    }
    if (from) import_put_word(w, "adapter.exclude_modules", bump_format(w->b, "(.*\\.)?(%s)(\\..*)?", names.at), from);
    text_free(&names);
}

static void add_rate(struct import_work *w, struct value **groups, int part, const struct import_entry *rate)
{
    struct value *group = value_new(w->b, VALUE_MAP);
    if (!*groups) *groups = value_new(w->b, VALUE_LIST);
    value_put(w->b, group, "match", import_word(w, parts[part].role));
    value_put(w->b, group, "learning_rate", value_copy(w->b, rate->value));
    value_append(w->b, *groups, group);
}

/* Puts the learning rates of parts that are trained. */
static void put_rates(struct import_work *w, const struct frozen *f)
{
    const struct import_entry *rates[] = {import_given(w, HOW_TOWER_RATE), import_given(w, HOW_PROJECTOR_RATE)},
                              *from = NULL;
    struct value *groups = NULL;
    for (int i = 0; i < 2; i++) {
        if (!rates[i]) continue;
        if (f->by[i]) import_leave(w, rates[i], "the part is frozen");
        else add_rate(w, &groups, i, rates[i]), from = rates[i];
    }
    if (groups) import_put(w, "train.groups", groups, from, NULL);
}

void import_adapter(struct import_work *w)
{
    const struct import_entry *asked = import_asks_for_lora(w);
    const struct frozen frozen = find_frozen(w);
    const bool stored = put_adapter(w, asked);
    put_quantize(w, asked);
    if (!asked) put_freeze(w, &frozen);
    else if (!stored) put_exclude(w, frozen, asked);
    put_rates(w, &frozen);
}
