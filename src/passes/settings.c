/*
 * settings.c: settings as text.
 *
 *     recompute   none | all | selective | every:N | ratio:R | segments:K | first:N,
 *                 then +halves (not with segments) and +selective
 *     offload     none, or optimizer, masters, weights, activations with + between them
 *     precision   f32 | bf16 | f16 | bf16-pure
 *     optimizer   adamw | adamw-bf16 | adamw-8bit | sgd | adafactor
 *
 * Parsing the printed text gives the same settings.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passes/passes.h"

void settings_follow(struct settings *s, const struct settings *decided)
{
    s->micro_batch = decided->micro_batch;
    s->accumulation = decided->accumulation;
    s->precision = decided->precision;
    s->pure = decided->pure;
    s->recompute = decided->recompute;
    s->offload = decided->offload;
    s->head_chunks = decided->head_chunks;
    s->fused_step = decided->fused_step;
    s->optimizer = decided->optimizer;
    s->state = decided->state;
}

/* --- recompute ---------------------------------------------------------------------- */

static const char *const kinds[RECOMPUTE_KINDS] = {"none", "all", "selective", "every", "ratio", "segments", "first"};

static bool counts(enum recompute_kind k) { return k == RECOMPUTE_EVERY || k == RECOMPUTE_SEGMENTS || k == RECOMPUTE_FIRST; }

const char *recompute_print(const struct recompute *r, char out[SETTING_ROOM])
{
    CHECK(r->kind < RECOMPUTE_KINDS, "%d", r->kind);
    int n = snprintf(out, SETTING_ROOM, "%s", kinds[r->kind]);
    if (counts(r->kind)) n += snprintf(out + n, SETTING_ROOM - (size_t)n, ":%d", r->n);
    if (r->kind == RECOMPUTE_RATIO) n += snprintf(out + n, SETTING_ROOM - (size_t)n, ":%.9g", r->ratio);
    if (r->halves) n += snprintf(out + n, SETTING_ROOM - (size_t)n, "+halves");
    if (r->selective) snprintf(out + n, SETTING_ROOM - (size_t)n, "+selective");
    return out;
}

/* True if `*at` begins with `word`; moves `*at` after it. */
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

bool recompute_parse(const char *text, struct recompute *out)
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
            bool sane = k == RECOMPUTE_RATIO ? r.ratio >= 0 && r.ratio <= 1 : n >= (k == RECOMPUTE_FIRST ? 0 : 1) && n <= 1 << 20;
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

static const char *const offload_names[] = {"optimizer", "masters", "weights", "activations"};

const char *offload_print(unsigned offload, char out[SETTING_ROOM])
{
    int n = snprintf(out, SETTING_ROOM, "%s", offload ? "" : "none");
    for (unsigned i = 0; i < COUNT(offload_names); i++)
        if (offload & 1u << i) n += snprintf(out + n, SETTING_ROOM - (size_t)n, "%s%s", n ? "+" : "", offload_names[i]);
    return out;
}

bool offload_parse(const char *text, unsigned *out)
{
    unsigned offload = 0;
    if (!strcmp(text, "none")) return *out = 0, true;
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, "+");
        unsigned found = 0;
        for (unsigned i = 0; i < COUNT(offload_names); i++)
            if (strlen(offload_names[i]) == n && !strncmp(at, offload_names[i], n)) found = 1u << i;
        if (!found) return false;
        offload |= found;
        at += n;
        if (!*at) break;
    }
    *out = offload;
    return true;
}

/* --- precision and optimizer ------------------------------------------------------------ */

static const struct {
    const char *name;
    enum dtype precision;
    bool pure;
} precisions[] = {{"f32", DT_F32, false}, {"bf16", DT_BF16, false}, {"f16", DT_F16, false}, {"bf16-pure", DT_BF16, true}};

const char *precision_print(const struct settings *s)
{
    for (size_t i = 0; i < COUNT(precisions); i++)
        if (precisions[i].precision == s->precision && precisions[i].pure == s->pure) return precisions[i].name;
    return "?";
}

bool precision_parse(const char *text, struct settings *out)
{
    for (size_t i = 0; i < COUNT(precisions); i++)
        if (!strcmp(precisions[i].name, text)) {
            out->precision = precisions[i].precision;
            out->pure = precisions[i].pure;
            return true;
        }
    return false;
}

static const struct {
    const char *name;
    enum optimizer kind;
    enum state_dtype state;
} optimizers[] = {{"adamw", OPT_ADAMW, STATE_F32},
                  {"adamw-bf16", OPT_ADAMW, STATE_BF16},
                  {"adamw-8bit", OPT_ADAMW, STATE_8BIT},
                  {"sgd", OPT_SGD, STATE_F32},
                  {"adafactor", OPT_ADAFACTOR, STATE_F32}};

const char *optimizer_print(const struct settings *s)
{
    for (size_t i = 0; i < COUNT(optimizers); i++)
        if (optimizers[i].kind == s->optimizer && optimizers[i].state == s->state) return optimizers[i].name;
    return "?";
}

bool optimizer_parse(const char *text, struct settings *out)
{
    for (size_t i = 0; i < COUNT(optimizers); i++)
        if (!strcmp(optimizers[i].name, text)) {
            out->optimizer = optimizers[i].kind;
            out->state = optimizers[i].state;
            return true;
        }
    return false;
}
