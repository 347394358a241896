/*
 * adapter.c: PEFT's matching rules (see adapter.h).
 *
 * PEFT builds a Python regular expression around each key of rank_pattern and alpha_pattern, each
 * item of modules_to_save and each layers_pattern. Nearly all of them are plain names, so a pattern
 * is either
 *
 *     plain   letters, digits, _ - and ., perhaps after ^; compared here. A dot is any character as
 *             in the expression that it is.
 *     regex   everything else, wrapped as PEFT wraps it
 *
 * and both give PEFT's answer.
 */
#include "adapter/adapter.h"

#include <math.h>
#include <stdatomic.h>

#include "text/pattern.h"

enum { RANK_MOST = 1 << 20, NAME_ROOM = 512 };

struct name_pattern {
    const char *plain;         /* NULL: a regex */
    bool first;                /* plain: only at the start of a name (^) */
    const struct python_pattern *regex;
};

struct adapter_compiled {
    struct python_pattern *target, *exclude;
    struct name_pattern *save, *ranks, *alphas, *layers;
    _Atomic(const char *) gave_up; /* a key whose regular expression needed too many steps */
};

/* --- plain patterns ------------------------------------------------------------------------- */

static bool is_plain(const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    return *s && strspn(s, letters) == strlen(s);
}

/* Reports whether the name has the pattern at this position; n is the pattern's length. */
static bool plain_at(const char *name, const char *plain, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!name[i] || (plain[i] != '.' && plain[i] != name[i])) return false;
    return true;
}

/* Returns the next position at which a part of the name begins, which is behind a dot; NULL: there
 * is none. */
static const char *next_part(const char *at)
{
    const char *dot = strchr(at, '.');
    return dot ? dot + 1 : NULL;
}

/* --- checking and compiling ----------------------------------------------------------------- */

struct check {
    struct adapter *a;
    const char *section;
    struct bump *memory;
    struct error *e;
};

/* Compiles one expression of a key; the message begins with the key. */
static int compile_regex(const struct check *c, const char *key, const char *pattern, struct python_pattern **out)
{
    return python_compile(out, pattern, c->memory, c->e) ? error_prepend(c->e, "%s%s", c->section, key) : PL_OK;
}

/* Compiles an item of a key: `before` and `after` are what PEFT puts around it. */
static int compile_pattern(const struct check *c, const char *key, const char *before, const char *item,
                           const char *after, struct name_pattern *out)
{
    struct python_pattern *regex;
    if (!item || !*item)
        return error_set(c->e, PL_USAGE, "%s%s has an empty item; expected the name of a module", c->section, key);
    const char *plain = item + (*item == '^');
    if (is_plain(plain)) {
        *out = (struct name_pattern){.plain = plain, .first = plain > item};
        return PL_OK;
    }
    int rc = compile_regex(c, key, bump_format(c->memory, "%s%s%s", before, item, after), &regex);
    *out = (struct name_pattern){.regex = rc ? NULL : regex};
    return rc;
}

static int check_items(const struct check *c, const char *key, const char *const *at, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!at[i] || !*at[i])
            return error_set(c->e, PL_USAGE, "%s%s has an empty item; expected the name of a module", c->section, key);
    return PL_OK;
}

static int check_numbers(const struct check *c)
{
    const struct adapter *a = c->a;
    if (a->r < 1 || a->r > RANK_MOST)
        return error_set(c->e, PL_USAGE, "%sr is %lld; expected a whole number from 1 to %d", c->section,
                         (long long)a->r, RANK_MOST);
    if (!isfinite(a->alpha))
        return error_set(c->e, PL_USAGE, "%slora_alpha is %g; expected a finite number", c->section, a->alpha);
    if (!(a->dropout >= 0 && a->dropout < 1))
        return error_set(c->e, PL_USAGE, "%slora_dropout is %g; expected at least 0 and less than 1", c->section,
                         a->dropout);
    for (uint32_t i = 0; i < a->n_ranks; i++) {
        double r = a->ranks[i].value;
        if (!(r >= 1 && r <= RANK_MOST) || r != floor(r))
            return error_set(c->e, PL_USAGE, "%srank_pattern: the rank of \"%.200s\" is %g; expected a whole number "
                             "from 1 to %d", c->section, a->ranks[i].key, r, RANK_MOST);
    }
    for (uint32_t i = 0; i < a->n_alphas; i++)
        if (!isfinite(a->alphas[i].value))
            return error_set(c->e, PL_USAGE, "%salpha_pattern: the value of \"%.200s\" is %g; expected a finite number",
                             c->section, a->alphas[i].key, a->alphas[i].value);
    for (uint32_t i = 0; i < a->n_layers; i++)
        if (a->layers[i] < 0)
            return error_set(c->e, PL_USAGE, "%slayers_to_transform has %lld; expected numbers of layers, from 0",
                             c->section, (long long)a->layers[i]);
    return PL_OK;
}

static int check_names(const struct check *c)
{
    const struct adapter *a = c->a;
    bool list = a->target.n, regex = a->target.regex && *a->target.regex;
    if (!list && !regex && !a->all_linear)
        return error_set(c->e, PL_USAGE, "%starget_modules is missing or empty; expected a list of names such as "
                         "[q_proj, v_proj], a regular expression, or all-linear", c->section);
    CHECK(list + regex + a->all_linear == 1, "target_modules in two forms");
    if (!list && a->n_layers)
        return error_set(c->e, PL_USAGE, "%slayers_to_transform works only with a list in target_modules; name the "
                         "layers in the regular expression instead", c->section);
    if (a->n_layers_pattern && !a->n_layers)
        return error_set(c->e, PL_USAGE, "%slayers_pattern needs layers_to_transform, the numbers of the layers",
                         c->section);
    TRY(check_items(c, "target_modules", a->target.at, a->target.n));
    return check_items(c, "exclude_modules", a->exclude.at, a->exclude.n);
}

static int check_task(const struct check *c)
{
    static const char *const tasks[] = {"SEQ_CLS",   "SEQ_2_SEQ_LM", "CAUSAL_LM",
                                        "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION"};
    if (!c->a->task_type) return PL_OK;
    for (size_t i = 0; i < COUNT(tasks); i++)
        if (!strcmp(tasks[i], c->a->task_type)) return PL_OK;
    return error_set(c->e, PL_USAGE, "%stask_type is \"%.100s\"; expected one of PEFT's, such as CAUSAL_LM or "
                     "FEATURE_EXTRACTION, or none", c->section, c->a->task_type);
}

static int compile_all(const struct check *c)
{
    const struct adapter *a = c->a;
    struct adapter_compiled *to = bump_alloc(c->memory, sizeof *to);
    to->save = bump_alloc(c->memory, a->n_save * sizeof *to->save);
    to->ranks = bump_alloc(c->memory, a->n_ranks * sizeof *to->ranks);
    to->alphas = bump_alloc(c->memory, a->n_alphas * sizeof *to->alphas);
    to->layers = bump_alloc(c->memory, a->n_layers_pattern * sizeof *to->layers);
    if (a->target.regex && *a->target.regex) TRY(compile_regex(c, "target_modules", a->target.regex, &to->target));
    if (a->exclude.regex && *a->exclude.regex)
        TRY(compile_regex(c, "exclude_modules", a->exclude.regex, &to->exclude));
    for (uint32_t i = 0; i < a->n_save; i++)
        TRY(compile_pattern(c, "modules_to_save", "(^|.*\\.)", a->save[i], "($|\\..*)", &to->save[i]));
    for (uint32_t i = 0; i < a->n_ranks; i++)
        TRY(compile_pattern(c, "rank_pattern", "(.*\\.)?(", a->ranks[i].key, ")$", &to->ranks[i]));
    for (uint32_t i = 0; i < a->n_alphas; i++)
        TRY(compile_pattern(c, "alpha_pattern", "(.*\\.)?(", a->alphas[i].key, ")$", &to->alphas[i]));
    for (uint32_t i = 0; i < a->n_layers_pattern; i++)
        TRY(compile_pattern(c, "layers_pattern", "(?:^|.*?\\.)", a->layers_pattern[i], "\\.(?P<idx>\\d+)\\.",
                            &to->layers[i]));
    c->a->compiled = to;
    return PL_OK;
}

int adapter_check(struct adapter *a, const char *section, struct bump *memory, struct error *e)
{
    const struct check c = {a, section, memory, e};
    TRY(check_numbers(&c));
    TRY(check_names(&c));
    TRY(check_task(&c));
    return compile_all(&c);
}

/* --- answers -------------------------------------------------------------------------------- */

static bool answer(const struct adapter *a, enum python_answer found, const char *key)
{
    if (found == PYTHON_GAVE_UP) atomic_store(&a->compiled->gave_up, key);
    return found == PYTHON_YES;
}

int adapter_unanswered(const struct adapter *a, const char *section, struct error *e)
{
    const char *key = a->compiled ? atomic_load(&a->compiled->gave_up) : NULL;
    if (!key) return PL_OK;
    return error_set(e, PL_USAGE, "%s%s: the regular expression needs too many steps: write it without nested "
                     "repetitions such as (.*)*, or give a list of names", section, key);
}

/* Reports whether an item of the list is the module's name, or its last parts. */
static bool listed(const struct adapter_names *l, const char *module)
{
    size_t length = strlen(module);
    for (uint32_t i = 0; i < l->n; i++) {
        size_t n = strlen(l->at[i]);
        if (length >= n && !strcmp(module + length - n, l->at[i]) && (length == n || module[length - n - 1] == '.'))
            return true;
    }
    return false;
}

static bool listed_whole(const struct adapter_names *l, const char *module)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (!strcmp(module, l->at[i])) return true;
    return false;
}

/* Matches (.*\.)?(key)$. */
static bool is_last_parts(const struct adapter *a, const struct name_pattern *p, const char *module, const char *key)
{
    if (!p->plain) return answer(a, python_match(p->regex, module, NULL, NULL), key);
    size_t length = strlen(module), n = strlen(p->plain);
    if (length < n || !plain_at(module + length - n, p->plain, n)) return false;
    return length == n || (!p->first && module[length - n - 1] == '.');
}

/* Matches (^|.*\.)item($|\..*). */
static bool is_inside(const struct adapter *a, const struct name_pattern *p, const char *module)
{
    if (!p->plain) return answer(a, python_match(p->regex, module, NULL, NULL), "modules_to_save");
    size_t n = strlen(p->plain);
    for (const char *at = module; at; at = p->first ? NULL : next_part(at))
        if (plain_at(at, p->plain, n) && (!at[n] || at[n] == '.')) return true;
    return false;
}

/* Returns the module's name as the adapter's patterns have it, in `out`; of a stack that of its
 * first. */
static const char *adapter_name(const struct adapter *a, const char *module, char out[NAME_ROOM])
{
    char spelled[NAME_ROOM], first[NAME_ROOM];
    CHECK(a->compiled, "adapter_check comes first");
    const size_t n = a->root ? strlen(a->root) : 0;
    module = name_in_stack(spelling_apply(a->spellings, a->spelled, module, spelled, sizeof spelled), 0, first,
                           sizeof first);
    snprintf(out, NAME_ROOM, "%s", n && !strncmp(module, a->root, n) ? module + n : module);
    return out;
}

static bool saves(const struct adapter *a, const char *module)
{
    /* The module itself and each module that it is inside of. */
    for (size_t length = strlen(module); length;) {
        for (uint32_t i = 0; i < a->n_save; i++) {
            size_t n = strlen(a->save[i]);
            if (n <= length && !strncmp(module + length - n, a->save[i], n)) return true;
        }
        while (length && module[--length] != '.') {}
    }
    return false;
}

bool adapter_saves(const struct adapter *a, const char *module)
{
    char name[NAME_ROOM];
    return saves(a, adapter_name(a, module, name));
}

/* Returns the digits at `at` as a number if a dot follows them, else -1. */
static int64_t layer_number(const char *at)
{
    size_t n = strspn(at, "0123456789");
    return n && n < 18 && at[n] == '.' ? strtoll(at, NULL, 10) : -1;
}

/* Returns the layer of a module by PEFT's expression without a layers_pattern, .*?\.[^.]*\.(\d+)\.
 * : the first number behind at least two parts. -1: none. */
static int64_t layer_of(const char *module)
{
    const char *at = next_part(module);
    if (at) at = next_part(at);
    for (; at; at = next_part(at))
        if (layer_number(at) >= 0) return layer_number(at);
    return -1;
}

/* Returns the layer of a module by (?:^|.*?\.)pattern\.(\d+)\. ; -1: none. */
static int64_t layer_by_pattern(const struct adapter *a, const struct name_pattern *p, const char *module)
{
    size_t from, n;
    if (!p->plain)
        return answer(a, python_match(p->regex, module, "idx", &from), "layers_pattern")
                   ? layer_number(module + from)
                   : -1;
    n = strlen(p->plain);
    for (const char *at = module; at; at = p->first ? NULL : next_part(at))
        if (plain_at(at, p->plain, n) && at[n] == '.' && layer_number(at + n + 1) >= 0) return layer_number(at + n + 1);
    return -1;
}

static bool is_layer_to_transform(const struct adapter *a, const char *module)
{
    int64_t layer = a->n_layers_pattern ? -1 : layer_of(module);
    for (uint32_t i = 0; i < a->n_layers_pattern && layer < 0; i++)
        layer = layer_by_pattern(a, &a->compiled->layers[i], module);
    for (uint32_t i = 0; i < a->n_layers; i++)
        if (layer >= 0 && a->layers[i] == layer) return true;
    return false;
}

static bool is_target(const struct adapter *a, const char *module, bool head)
{
    if (a->all_linear) return !head;
    if (a->compiled->target) return answer(a, python_full_match(a->compiled->target, module), "target_modules");
    if (listed_whole(&a->target, module)) return true; /* named in full: layers_to_transform does not matter */
    return listed(&a->target, module) && (!a->n_layers || is_layer_to_transform(a, module));
}

bool adapter_adapts(const struct adapter *a, const char *module, bool head)
{
    char name[NAME_ROOM];
    module = adapter_name(a, module, name);
    if (a->compiled->exclude && answer(a, python_full_match(a->compiled->exclude, module), "exclude_modules"))
        return false;
    if (listed(&a->exclude, module) || saves(a, module)) return false;
    for (uint32_t i = 0; i < a->n_save; i++)
        if (is_inside(a, &a->compiled->save[i], module)) return false;
    return is_target(a, module, head);
}

bool adapter_trains_bias(const struct adapter *a, const char *parameter, bool adapted)
{
    bool is_bias = !strcmp(parameter, "bias") || text_ends_with(parameter, ".bias");
    return is_bias && (a->bias == ADAPTER_BIAS_ALL || (a->bias == ADAPTER_BIAS_LORA_ONLY && adapted));
}

/* Returns the first pattern that matches, or NULL. */
static const struct adapter_pattern *pattern_of(const struct adapter *a, const struct adapter_pattern *at,
                                                const struct name_pattern *compiled, uint32_t n, const char *key,
                                                const char *module)
{
    for (uint32_t i = 0; i < n; i++)
        if (is_last_parts(a, &compiled[i], module, key)) return &at[i];
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(at[i].key, module)) return &at[i]; /* a name with characters that mean something in an expression */
    return NULL;
}

int64_t adapter_rank(const struct adapter *a, const char *module)
{
    char name[NAME_ROOM];
    module = adapter_name(a, module, name);
    const struct adapter_pattern *p = pattern_of(a, a->ranks, a->compiled->ranks, a->n_ranks, "rank_pattern", module);
    return p ? (int64_t)p->value : a->r;
}

double adapter_scale(const struct adapter *a, const char *module)
{
    char name[NAME_ROOM];
    const double r = (double)adapter_rank(a, module);
    const struct adapter_pattern *p =
        pattern_of(a, a->alphas, a->compiled->alphas, a->n_alphas, "alpha_pattern", adapter_name(a, module, name));
    return (p ? p->value : a->alpha) / (a->rslora ? sqrt(r) : r);
}
