/*
 * settings.c: the techniques as a table, and their values as text.
 *
 *     recompute   none | all | selective | every:N | ratio:R | segments:K | first:N,
 *                 then +halves (not with segments) and +selective
 *     offload     none, or optimizer, masters, weights or weights:N, activations, update with + between them
 *     precision   the words of precisions.def
 *     optimizer   adamw | adamw-bf16 | adamw-8bit | sgd | adafactor
 *     quantize    none | nf4 | fp8 | rules
 *     encode      inline | all | N
 *     mask_chunks same | N
 *     shard       none | optimizer | gradients | weights
 */
#include <ctype.h>

#include "graph/stored.h"
#include "passes/passes.h"

/* --- recompute ---------------------------------------------------------------------- */

static const char *const kinds[RECOMPUTE_KINDS] = {"none", "all", "selective", "every", "ratio", "segments", "first"};

static bool counts(enum recompute_kind k)
{
    return k == RECOMPUTE_EVERY || k == RECOMPUTE_SEGMENTS || k == RECOMPUTE_FIRST;
}

const char *recompute_text(const struct recompute *r, char out[SETTING_ROOM])
{
    CHECK(r->kind < RECOMPUTE_KINDS, "%d", r->kind);
    int n = snprintf(out, SETTING_ROOM, "%s", kinds[r->kind]);
    if (counts(r->kind)) n += snprintf(out + n, SETTING_ROOM - (size_t)n, ":%d", r->n);
    if (r->kind == RECOMPUTE_RATIO) n += snprintf(out + n, SETTING_ROOM - (size_t)n, ":%.9g", r->ratio);
    if (r->halves) n += snprintf(out + n, SETTING_ROOM - (size_t)n, "+halves");
    if (r->selective) snprintf(out + n, SETTING_ROOM - (size_t)n, "+selective");
    return out;
}

/* Reports whether `*at` begins with `word`, and if so moves `*at` behind it. */
static bool take_word(const char **at, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*at, word, n)) return false;
    *at += n;
    return true;
}

static bool parse_suffixes(const char *at, struct recompute *r)
{
    for (const char *from = NULL; from != at;) {
        from = at;
        if (!r->halves && take_word(&at, "+halves")) r->halves = true;
        if (!r->selective && take_word(&at, "+selective")) r->selective = true;
    }
    bool whole = r->kind == RECOMPUTE_NONE || r->kind == RECOMPUTE_SELECTIVE;
    return !*at && !(whole && (r->halves || r->selective)) && !(r->kind == RECOMPUTE_SEGMENTS && r->halves);
}

bool recompute_read(const char *text, struct recompute *out)
{
    for (enum recompute_kind k = RECOMPUTE_KINDS; k-- > 0;) {
        const char *at = text;
        char *end;
        struct recompute r = {.kind = k};
        if (!take_word(&at, kinds[k])) continue;
        if (counts(k) || k == RECOMPUTE_RATIO) {
            if (*at++ != ':') return false;
            if (!isdigit((unsigned char)*at) && !(k == RECOMPUTE_RATIO && *at == '.')) return false;
            long n = 0;
            if (k == RECOMPUTE_RATIO) r.ratio = strtod(at, &end);
            else n = strtol(at, &end, 10);
            bool sane = k == RECOMPUTE_RATIO ? r.ratio >= 0 && r.ratio <= 1
                                             : n >= (k == RECOMPUTE_FIRST ? 0 : 1) && n <= 1 << 20;
            if (end == at || !sane) return false;
            r.n = (int)n;
            at = end;
        }
        if (!parse_suffixes(at, &r)) return false;
        *out = r;
        return true;
    }
    return false;
}

/* --- offload -------------------------------------------------------------------------- */

static const char *const offload_names[] = {"optimizer", "masters", "weights", "activations", "update"};

const char *offload_text(const struct settings *s, char out[SETTING_ROOM])
{
    int n = snprintf(out, SETTING_ROOM, "%s", s->offload ? "" : "none");
    for (unsigned i = 0; i < COUNT(offload_names); i++) {
        if (!(s->offload & 1u << i)) continue;
        n += snprintf(out + n, SETTING_ROOM - (size_t)n, "%s%s", n ? "+" : "", offload_names[i]);
        if (1u << i == OFFLOAD_WEIGHTS && s->offload_blocks)
            n += snprintf(out + n, SETTING_ROOM - (size_t)n, ":%d", s->offload_blocks);
    }
    return out;
}

/* Reads the ":N" behind a word; 0: there is none. */
static bool read_blocks(const char **at, int *out)
{
    char *end;
    *out = 0;
    if (**at != ':') return true;
    if (!isdigit((unsigned char)*++*at)) return false;
    const long n = strtol(*at, &end, 10);
    *at = end;
    *out = (int)n;
    return n >= 1 && n <= 1 << 20;
}

static bool offload_read(const char *text, struct settings *out)
{
    unsigned offload = 0;
    int blocks = 0;
    for (const char *at = text; strcmp(text, "none"); at++) {
        const size_t n = strcspn(at, "+:");
        unsigned found = 0;
        for (unsigned i = 0; i < COUNT(offload_names); i++)
            if (strlen(offload_names[i]) == n && !strncmp(at, offload_names[i], n)) found = 1u << i;
        at += n;
        if (!found || (found == OFFLOAD_WEIGHTS && !read_blocks(&at, &blocks)) || (*at && *at != '+')) return false;
        offload |= found;
        if (!*at) break;
    }
    out->offload = offload;
    out->offload_blocks = blocks;
    return true;
}

/* --- words ------------------------------------------------------------------------------ */

/* The words of the other techniques, and what they set. The first of those with one meaning is
 * printed; those of shard after the first four are DeepSpeed's stages and FSDP's strategies. */
static const struct word {
    enum technique_id id;
    const char *word;
    struct settings sets;
} words[] = {
#define PRECISION(NAME, word, ...) {TECHNIQUE_precision, word, {.precision = PRECISION_##NAME}},
#include "passes/precisions.def"
#undef PRECISION
    {TECHNIQUE_optimizer, "adamw", {.optimizer = OPT_ADAMW, .state = STATE_F32}},
    {TECHNIQUE_optimizer, "adamw-bf16", {.optimizer = OPT_ADAMW, .state = STATE_BF16}},
    {TECHNIQUE_optimizer, "adamw-8bit", {.optimizer = OPT_ADAMW, .state = STATE_8BIT}},
    {TECHNIQUE_optimizer, "sgd", {.optimizer = OPT_SGD, .state = STATE_F32}},
    {TECHNIQUE_optimizer, "adafactor", {.optimizer = OPT_ADAFACTOR, .state = STATE_F32}},
    {TECHNIQUE_quantize, "none", {.quantize = QUANTIZE_NONE}},
    {TECHNIQUE_quantize, "nf4", {.quantize = QUANTIZE_NF4}},
    {TECHNIQUE_quantize, "fp8", {.quantize = QUANTIZE_FP8}},
    {TECHNIQUE_quantize, "rules", {.quantize = QUANTIZE_RULES}},
    {TECHNIQUE_encode, "inline", {.encode = ENCODE_INLINE}},
    {TECHNIQUE_encode, "all", {.encode = ENCODE_ALL}},
    {TECHNIQUE_mask_chunks, "same", {.mask_chunks = MASK_CHUNKS_SAME}},
    {TECHNIQUE_shard, "none", {.shard = SHARD_NONE}},
    {TECHNIQUE_shard, "optimizer", {.shard = SHARD_OPTIMIZER}},
    {TECHNIQUE_shard, "gradients", {.shard = SHARD_GRADIENTS}},
    {TECHNIQUE_shard, "weights", {.shard = SHARD_WEIGHTS}},
    {TECHNIQUE_shard, "zero-0", {.shard = SHARD_NONE}},
    {TECHNIQUE_shard, "zero-1", {.shard = SHARD_OPTIMIZER}},
    {TECHNIQUE_shard, "zero-2", {.shard = SHARD_GRADIENTS}},
    {TECHNIQUE_shard, "zero-3", {.shard = SHARD_WEIGHTS}},
    {TECHNIQUE_shard, "NO_SHARD", {.shard = SHARD_NONE}},
    {TECHNIQUE_shard, "SHARD_GRAD_OP", {.shard = SHARD_GRADIENTS}},
    {TECHNIQUE_shard, "FULL_SHARD", {.shard = SHARD_WEIGHTS}},
    {TECHNIQUE_shard, "HYBRID_SHARD", {.shard = SHARD_WEIGHTS, .group = GROUP_HOST}},
    {TECHNIQUE_shard, "_HYBRID_SHARD_ZERO2", {.shard = SHARD_GRADIENTS, .group = GROUP_HOST}},
};

const struct policy policies[PRECISIONS] = {
#define PRECISION(NAME, word, compute, masters, x, w, dy, summed)                                                      \
    {word, compute, masters, STORED_##x, STORED_##w, STORED_##dy, STORED_##summed},
#include "passes/precisions.def"
#undef PRECISION
};

/* --- the table --------------------------------------------------------------------------- */

static const char *recompute_print(const struct settings *s, char out[SETTING_ROOM])
{
    return recompute_text(&s->recompute, out);
}
static bool recompute_parse(const char *text, struct settings *out) { return recompute_read(text, &out->recompute); }
static const char *offload_print(const struct settings *s, char out[SETTING_ROOM])
{
    return offload_text(s, out);
}
static bool offload_parse(const char *text, struct settings *out) { return offload_read(text, out); }

#define HANDLERS_COUNT(name) NULL, NULL
#define HANDLERS_NAMED(name) NULL, NULL
#define HANDLERS_NAMED_OR_COUNT(name) NULL, NULL
#define HANDLERS_SWITCH(name) NULL, NULL
#define HANDLERS_CHOICE(name) NULL, NULL
#define HANDLERS_WORD(name) name##_print, name##_parse
const struct technique techniques[TECHNIQUES] = {
#define TECHNIQUE(section, name, type, members, first, last, standard, allowed, doc, ...)                              \
    {#section,                                                                                                         \
     #name,                                                                                                            \
     TYPE_##type,                                                                                                      \
     offsetof(struct settings, first),                                                                                 \
     offsetof(struct settings, last) + sizeof(((struct settings *)0)->last) - offsetof(struct settings, first),        \
     HANDLERS_##type(name),                                                                                            \
     __VA_ARGS__},
#include "passes/techniques.def"
#undef TECHNIQUE
};

static void *member_of(const struct technique *t, const struct settings *s) { return (char *)s + t->offset; }

const char *technique_print(enum technique_id id, const struct settings *s, char out[SETTING_ROOM])
{
    const struct technique *t = &techniques[id];
    if (t->print) return t->print(s, out);
    for (size_t i = 0; i < COUNT(words); i++)
        if (words[i].id == id && !memcmp(member_of(t, s), member_of(t, &words[i].sets), t->size))
            return snprintf(out, SETTING_ROOM, "%s", words[i].word), out;
    if (t->type == TYPE_CHOICE) CHECK(technique_value(t->ladder, *(const int *)member_of(t, s), out), "%s", t->name);
    else if (t->type == TYPE_SWITCH) snprintf(out, SETTING_ROOM, "%s", *(const bool *)member_of(t, s) ? "on" : "off");
    else snprintf(out, SETTING_ROOM, "%d", *(const int *)member_of(t, s));
    return out;
}

bool technique_parse(enum technique_id id, const char *text, struct settings *out)
{
    const struct technique *t = &techniques[id];
    if (t->parse) return t->parse(text, out);
    if (t->type == TYPE_SWITCH) {
        const bool on = !strcmp(text, "on");
        if (!on && strcmp(text, "off")) return false;
        *(bool *)member_of(t, out) = on;
        return true;
    }
    if (t->type == TYPE_CHOICE) {
        const int at = technique_rung(t->ladder, text);
        if (at >= 0) *(int *)member_of(t, out) = at;
        return at >= 0;
    }
    for (size_t i = 0; i < COUNT(words); i++)
        if (words[i].id == id && !strcmp(words[i].word, text)) {
            if (words[i].sets.group) out->group = words[i].sets.group;
            return technique_copy(id, out, &words[i].sets), true;
        }
    char *end;
    long n = isdigit((unsigned char)*text) ? strtol(text, &end, 10) : 0;
    if (t->type == TYPE_NAMED || n < 1 || n > (t->type == TYPE_COUNT ? 1 << 24 : (1 << 20) - 1) || *end) return false;
    *(int *)member_of(t, out) = (int)n;
    return true;
}

bool technique_is_off(enum technique_id id, const struct settings *s)
{
    char value[SETTING_ROOM];
    return techniques[id].off && !strcmp(technique_print(id, s, value), techniques[id].off);
}

const char *technique_label(enum technique_id id, const struct settings *s, char out[2 * SETTING_ROOM])
{
    char value[SETTING_ROOM];
    const char *label = techniques[id].label, *at = strstr(label, "%s");
    technique_print(id, s, value);
    int n = snprintf(out, 2 * SETTING_ROOM, "%.*s%s%s", at ? (int)(at - label) : (int)strlen(label), label,
                     at ? value : "", at ? at + 2 : "");
    if (at && !strcmp(value, "1") && n > 0 && out[n - 1] == 's') out[n - 1] = 0; /* 1 chunk */
    return out;
}

void technique_copy(enum technique_id id, struct settings *to, const struct settings *from)
{
    const struct technique *t = &techniques[id];
    memcpy(member_of(t, to), member_of(t, from), t->size);
}

void settings_follow(struct settings *s, const struct settings *decided)
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++) technique_copy(id, s, decided);
}

const char *settings_precision(const struct settings *s, char out[SETTING_ROOM])
{
    return technique_print(TECHNIQUE_precision, s, out);
}

void settings_print(const struct settings *s, struct text *out)
{
    const char *between = "";
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char label[2 * SETTING_ROOM];
        const bool always = !strcmp(techniques[id].label, "%s"); /* the value says what it is of */
        if (!techniques[id].off || (!always && technique_is_off(id, s))) continue;
        if (id == TECHNIQUE_optimizer && s->prompt_chunk && !s->train) continue; /* generation has none */
        text_printf(out, "%s%s", between, technique_label(id, s, label));
        between = ", ";
    }
}

bool technique_value(const char *list, int i, char out[SETTING_ROOM])
{
    for (; list && i > 0; i--) {
        list = strchr(list, '|');
        if (list) list++;
    }
    if (list) snprintf(out, SETTING_ROOM, "%.*s", (int)strcspn(list, "|"), list);
    return list;
}

int technique_rung(const char *list, const char *value)
{
    char at[SETTING_ROOM];
    for (int i = 0; technique_value(list, i, at); i++)
        if (!strcmp(at, value)) return i;
    return -1;
}

bool technique_met(enum technique_id id, const struct settings *s, enum technique_id *other, const char **values)
{
    const char *needs = techniques[id].needs, *equals = needs ? strchr(needs, '=') : NULL;
    char name[SETTING_ROOM], value[SETTING_ROOM];
    if (!needs || technique_is_off(id, s)) return true;
    snprintf(name, sizeof name, "%.*s", (int)(equals - needs), needs);
    *other = technique_find(name);
    *values = equals + 1;
    return technique_rung(*values, technique_print(*other, s, value)) >= 0;
}

enum technique_id technique_find(const char *name)
{
    enum technique_id id = 0;
    while (id < TECHNIQUES && strcmp(techniques[id].name, name)) id++;
    return id;
}

enum technique_id technique_in(enum technique_class class)
{
    enum technique_id id = 0;
    while (id < TECHNIQUES && techniques[id].class != class) id++;
    return id;
}

bool technique_same(enum technique_id id, const struct settings *a, const struct settings *b)
{
    const struct technique *t = &techniques[id];
    return !memcmp(member_of(t, a), member_of(t, b), t->size);
}

int technique_count(enum technique_id id, const struct settings *s)
{
    const struct technique *t = &techniques[id];
    CHECK(t->type == TYPE_COUNT || t->type == TYPE_NAMED_OR_COUNT, "%s", t->name);
    return *(const int *)member_of(t, s);
}

int settings_order(const struct settings *a, const struct settings *b, enum pipeline_phase last)
{
    int order = 0;
    for (enum pipeline_phase phase = 0; phase <= last; phase++)
        for (enum technique_id id = 0; id < TECHNIQUES && !order; id++)
            if (techniques[id].phase == phase)
                order = memcmp(member_of(&techniques[id], a), member_of(&techniques[id], b), techniques[id].size);
    return order;
}
