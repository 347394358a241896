/*
 * regex.c: regular expressions through PCRE2 (see regex.h).
 *
 *     Python's expression -> translate -> PCRE2's expression -> compiled, in the caller's bump
 *
 * The two languages share nearly everything. `translate` rewrites what they write differently
 * ({,n}; \v; [ inside a set) and refuses what only PCRE2 knows (verbs such as (*ACCEPT), recursion,
 * \K, ...), so that an expression never means something else here than in Python.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>

#include "base/regex.h"

/* A name of a module needs a few hundred steps; 1e5 steps take about a millisecond. */
enum { STEPS_MOST = 100000, DEPTH_MOST = 10000, HEAP_MOST_KIB = 20000, DFA_WORDS = 4096, NESTING_MOST = 200 };

struct regex {
    pcre2_code *code;
};

const char *regex_version(void)
{
    static char version[24]; /* "10.42 2022-12-11" */
    return pcre2_config(PCRE2_CONFIG_VERSION, NULL) <= (int)sizeof version &&
                   pcre2_config(PCRE2_CONFIG_VERSION, version) > 0
               ? strtok(version, " ")
               : "unknown";
}

/* --- Python's syntax ------------------------------------------------------------------------ */

struct translation {
    const char *from, *at; /* the pattern, and the next character */
    struct text *out;
    struct error *e;
};

static int refuse(struct translation *t, const char *at, const char *why)
{
    return error_set(t->e, PL_USAGE, "character %zu of \"%.200s\": %s", (size_t)(at - t->from) + 1, t->from, why);
}

static void copy(struct translation *t, size_t n)
{
    text_append(t->out, t->at, n);
    t->at += n;
}

static void replace(struct translation *t, size_t n, const char *by)
{
    text_append(t->out, by, strlen(by));
    t->at += n;
}

/* A backslash and what follows. Python refuses letters without a meaning; many have one in
 * PCRE2. */
static int translate_escape(struct translation *t, bool in_set)
{
    char c = t->at[1];
    if (!c) return refuse(t, t->at, "a backslash at the end");
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter && !strchr(in_set ? "bdDsSwWafnrtvx" : "AbBdDsSwWZafnrtvx", c))
        return refuse(t, t->at, "a backslash before a letter that has no such meaning");
    if (c == 'v') replace(t, 2, "\\x0b");
    else if (c == 'x') {
        if (strspn(t->at + 2, "0123456789abcdefABCDEF") < 2)
            return refuse(t, t->at, "\\x needs two hexadecimal digits");
        copy(t, 4);
    } else copy(t, 2);
    return PL_OK;
}

/* [...]: a bracket inside is a character, never the start of a class such as [:alpha:]. */
static int translate_set(struct translation *t)
{
    const char *start = t->at;
    copy(t, 1);
    if (*t->at == '^') copy(t, 1);
    if (*t->at == ']') replace(t, 1, "\\]");
    while (*t->at && *t->at != ']') {
        if (*t->at == '[') replace(t, 1, "\\[");
        else if (*t->at != '\\') copy(t, 1);
        else if (translate_escape(t, true)) return t->e->code;
    }
    if (!*t->at) return refuse(t, start, "a set that is not closed by ]");
    copy(t, 1);
    return PL_OK;
}

/* What follows "(": a group, one of Python's extensions (?...), or a mistake. */
static int translate_group(struct translation *t)
{
    const char *start = t->at;
    if (start[1] == '*') return refuse(t, start + 1, "* after nothing that it could repeat");
    if (start[1] != '?') {
        copy(t, 1);
        return PL_OK;
    }
    const char *p = start + 2;
    if (*p == '#') { /* a comment */
        size_t n = strcspn(p, ")");
        if (!p[n]) return refuse(t, start, "a comment that is not closed by )");
        t->at = p + n + 1;
    } else if (*p && strchr(":=!>", *p)) copy(t, 3);
    else if (*p == '<' && (p[1] == '=' || p[1] == '!')) copy(t, 4);
    else if (*p == 'P' && (p[1] == '<' || p[1] == '=')) copy(t, 4);
    else if (*p == '(' && p[1] != '?' && p[1] != '*' && p[1] != 'R' && p[1] != '<' && p[1] != '\'') copy(t, 3);
    else {
        /* Flags: of the whole expression (?i), of a group (?i:...). a and u change nothing for
         * ASCII. */
        size_t n = strspn(p, "aimsux-");
        if (!n || (p[n] != ')' && p[n] != ':'))
            return refuse(t, start, "an extension (?...) that Python does not have");
        if (p[n] == ')' && start != t->from)
            return refuse(t, start, "flags of the whole expression that are not at its start");
        text_append(t->out, "(?", 2);
        for (size_t i = 0; i < n; i++)
            if (p[i] != 'a' && p[i] != 'u') text_append(t->out, p + i, 1);
        t->at = p + n;
        copy(t, 1);
    }
    return PL_OK;
}

static int translate(struct translation *t)
{
    while (*t->at) {
        int rc = PL_OK;
        if (*t->at == '\\') rc = translate_escape(t, false);
        else if (*t->at == '[') rc = translate_set(t);
        else if (*t->at == '(') rc = translate_group(t);
        else if (!strncmp(t->at, "{,", 2) && t->at[2 + strspn(t->at + 2, "0123456789")] == '}') {
            replace(t, 2, "{0,");
        } else copy(t, 1);
        if (rc) return rc;
    }
    text_append(t->out, "", 0);
    return PL_OK;
}

/* --- compiling ------------------------------------------------------------------------------ */

static void *bump_for_pcre2(size_t n, void *memory) { return bump_alloc(memory, n); }
static void keep(void *p, void *memory) { (void)p, (void)memory; }
static void *heap_for_pcre2(size_t n, void *unused)
{
    (void)unused;
    return mem_alloc(n);
}
static void give_back(void *p, void *unused)
{
    (void)unused;
    mem_free(p);
}

int regex_compile(struct regex **out, const char *pattern, struct bump *memory, struct error *e)
{
    struct text translated = {0};
    struct translation t = {.from = pattern, .at = pattern, .out = &translated, .e = e};
    text_printf(&translated, "%s", "");
    int rc = translate(&t), number;
    PCRE2_SIZE at;
    if (!rc) {
        pcre2_general_context *general = pcre2_general_context_create(bump_for_pcre2, keep, memory);
        pcre2_compile_context *context = pcre2_compile_context_create(general);
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(context, NESTING_MOST);
        *out = bump_alloc(memory, sizeof **out);
        (*out)->code = pcre2_compile((PCRE2_SPTR)translated.at, translated.n, 0, &number, &at, context);
        if (!(*out)->code) {
            PCRE2_UCHAR reason[256];
            pcre2_get_error_message(number, reason, sizeof reason);
            rc = error_set(e, PL_USAGE, "character %zu of \"%.200s\": %s", min_u64(at, strlen(pattern)) + 1, pattern,
                           (const char *)reason);
        }
    }
    text_free(&translated);
    return rc;
}

/* --- matching ------------------------------------------------------------------------------- */

/* The other algorithm of PCRE2, which follows all alternatives at once: no backtracking. It knows
 * no groups and no references back; for them it gives up. */
static int match_at_once(const struct regex *r, const char *subject, uint32_t options, pcre2_match_data *data,
                         pcre2_match_context *context)
{
    int *words = mem_alloc(DFA_WORDS * sizeof *words);
    int rc =
        pcre2_dfa_match(r->code, (PCRE2_SPTR)subject, strlen(subject), 0, options, data, context, words, DFA_WORDS);
    mem_free(words);
    return rc;
}

static enum regex_answer match(const struct regex *r, const char *subject, uint32_t options, const char *group,
                               size_t *from, size_t *n)
{
    pcre2_general_context *general = pcre2_general_context_create(heap_for_pcre2, give_back, NULL);
    pcre2_match_context *context = pcre2_match_context_create(general);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(r->code, general);
    pcre2_set_match_limit(context, STEPS_MOST);
    pcre2_set_depth_limit(context, DEPTH_MOST);
    pcre2_set_heap_limit(context, HEAP_MOST_KIB);
    int rc = pcre2_match(r->code, (PCRE2_SPTR)subject, strlen(subject), 0, options, data, context);
    enum regex_answer answer = rc >= 0 ? REGEX_YES : rc == PCRE2_ERROR_NOMATCH ? REGEX_NO : REGEX_GAVE_UP;
    if (answer == REGEX_GAVE_UP && !group) {
        rc = match_at_once(r, subject, options, data, context);
        answer = rc >= 0 ? REGEX_YES : rc == PCRE2_ERROR_NOMATCH ? REGEX_NO : REGEX_GAVE_UP;
    }
    if (answer == REGEX_YES && group) {
        int number = pcre2_substring_number_from_name(r->code, (PCRE2_SPTR)group);
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(data);
        bool set = number > 0 && ends[2 * number] != PCRE2_UNSET;
        *from = set ? ends[2 * number] : 0;
        *n = set ? ends[2 * number + 1] - ends[2 * number] : 0;
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_general_context_free(general);
    return answer;
}

enum regex_answer regex_full_match(const struct regex *r, const char *subject)
{
    return match(r, subject, PCRE2_ANCHORED | PCRE2_ENDANCHORED, NULL, NULL, NULL);
}

enum regex_answer regex_match(const struct regex *r, const char *subject)
{
    return match(r, subject, PCRE2_ANCHORED, NULL, NULL, NULL);
}

enum regex_answer regex_match_group(const struct regex *r, const char *subject, const char *group, size_t *at,
                                    size_t *n)
{
    return match(r, subject, PCRE2_ANCHORED, group, at, n);
}
