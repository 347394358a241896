/*
 * pattern.c: regular expressions (see pattern.h). The only file that includes Oniguruma's header.
 */
#include <oniguruma.h>
#include <pthread.h>
#include <time.h>

#include "text/pattern.h"

/* Published expressions are up to 1 KB long and need a handful of steps for a character. */
enum { EXPRESSION_MOST = 64 << 10, STEPS = 100000, STEPS_PER_BYTE = 64, STACK_MOST = 10000000, NESTING_MOST = 128 };
/* The limit of steps is for one match, and the engine counts steps back only: a text can have as
 * many matches as bytes, each of which looks at all of it. Published expressions take 0.1
 * microseconds of processor time a byte. The clock is read when the searches since then could have
 * looked at TIME_CHECKED bytes. */
enum { TIME_NANOSECONDS = 250000000, TIME_PER_BYTE = 5000, TIME_CHECKED = 1 << 16 };

struct pattern {
    regex_t *code;
};

struct pattern_search {
    OnigRegion *region;
    OnigMatchParam *limits;
    size_t n; /* the length of the text that the limits are for */
    size_t text;     /* bytes of the text that was begun */
    uint64_t looked; /* bytes that searches could have looked at since the clock was read */
    uint64_t until;  /* of this thread's processor time; 0: the clock was not read yet */
};

static void start_engine(void)
{
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8, ONIG_ENCODING_ASCII};
    onig_initialize(encodings, COUNT(encodings));
    onig_set_parse_depth_limit(NESTING_MOST);
}

static int compile(regex_t **out, const char *expression, OnigEncoding encoding, OnigSyntaxType *syntax,
                   struct error *e)
{
    static pthread_once_t started = PTHREAD_ONCE_INIT;
    pthread_once(&started, start_engine);
    size_t n = strlen(expression);
    if (n > EXPRESSION_MOST)
        return error_set(e, PL_USAGE, "the regular expression has %zu bytes; at most %d are accepted", n,
                         EXPRESSION_MOST);
    OnigErrorInfo info;
    const OnigUChar *at = (const OnigUChar *)expression;
    const int rc = onig_new(out, at, at + n, ONIG_OPTION_NONE, encoding, syntax, &info);
    if (rc == ONIG_NORMAL) return PL_OK;
    OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN] = "";
    onig_error_code_to_str(reason, rc, &info);
    return error_set(e, PL_USAGE, "the regular expression \"%.300s\" does not compile: %s", expression,
                     (const char *)reason);
}

int pattern_compile(struct pattern **out, const char *expression, struct error *e)
{
    regex_t *code;
    TRY(compile(&code, expression, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, e));
    *out = mem_alloc(sizeof **out);
    (*out)->code = code;
    return PL_OK;
}

void pattern_free(struct pattern *p)
{
    if (!p) return;
    onig_free(p->code);
    mem_free(p);
}

struct pattern_search *pattern_search_new(void)
{
    struct pattern_search *s = mem_alloc(sizeof *s);
    s->region = onig_region_new();
    s->limits = onig_new_match_param();
    if (!s->region || !s->limits) mem_exhausted("Oniguruma cannot begin a search");
    s->n = SIZE_MAX;
    onig_set_match_stack_limit_size_of_match_param(s->limits, STACK_MOST);
    return s;
}

static uint64_t processor_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void pattern_search_begin(struct pattern_search *s, size_t n)
{
    s->text = n;
    s->looked = s->until = 0;
}

static bool is_late(struct pattern_search *s, size_t n)
{
    s->looked += n;
    if (s->looked < TIME_CHECKED) return false;
    s->looked = 0;
    const uint64_t now = processor_time();
    if (!s->until) s->until = now + TIME_NANOSECONDS + TIME_PER_BYTE * (uint64_t)s->text;
    return now > s->until;
}

void pattern_search_free(struct pattern_search *s)
{
    if (!s) return;
    onig_region_free(s->region, 1);
    onig_free_match_param(s->limits);
    mem_free(s);
}

int pattern_find(const struct pattern *p, struct pattern_search *s, const char *text, size_t n, size_t from,
                 size_t *begin, size_t *end)
{
    const OnigUChar *at = (const OnigUChar *)text;
    if (s->n != n) {
        const unsigned long steps = STEPS + STEPS_PER_BYTE * n;
        onig_set_retry_limit_in_match_of_match_param(s->limits, steps);
        onig_set_retry_limit_in_search_of_match_param(s->limits, steps);
        s->n = n;
    }
    if (is_late(s, n - from)) return -1;
    int rc = onig_search_with_param(p->code, at, at + n, at + from, at + n, s->region, ONIG_OPTION_NONE, s->limits);
    if (rc == ONIG_MISMATCH) return 0;
    if (rc < 0) return -1;
    *begin = (size_t)s->region->beg[0];
    *end = (size_t)s->region->end[0];
    return 1;
}

/* --- Python's `re` --------------------------------------------------------------------------- */

static const char FLAGS[] = "aiLmsux-";

struct python_pattern {
    regex_t *code, *full; /* as it is, and as a whole: (?:...)\Z */
};

static int refuse(const char *expression, const char *at, const char *why, struct error *e)
{
    return error_set(e, PL_USAGE, "character %zu of \"%.200s\": %s", (size_t)(at - expression) + 1, expression, why);
}

/* Returns the text behind a repetition, *, +, ? or {m,n}, at `at`; `at` itself: there is none. */
static const char *behind_repetition(const char *at)
{
    const size_t low = *at == '{' ? strspn(at + 1, "0123456789") : 0;
    const size_t high = *at == '{' && at[1 + low] == ',' ? 1 + strspn(at + 2 + low, "0123456789") : 0;
    if (*at == '{') return low + high && at[1 + low + high] == '}' ? at + 2 + low + high : at;
    return *at && strchr("*+?", *at) ? at + 1 : at;
}

/* Writes the expression as Oniguruma's syntax of Python has it, [ inside of a set as \[, and
 * refuses what that syntax takes in another meaning, or in one that Python does not have. */
static int translate_python(const char *expression, struct text *out, struct error *e)
{
    bool in_set = false;
    unsigned long least, most;
    const char *from = expression; /* not written yet */
    for (const char *at = expression; *at; at++) {
        const char c = at[1];
        const size_t flags = !in_set && !strncmp(at, "(?", 2) ? strspn(at + 2, FLAGS) : 0;
        const char behind = flags ? at[2 + flags] : 0, *next = in_set ? at : behind_repetition(at);
        if (*at == '\\') {
            const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
            if (letter && !strchr("AbBdDsSwWZafnrtvxuU", c))
                return refuse(expression, at, "a backslash before a letter that has no such meaning", e);
            if (c == 'x' && strspn(at + 2, "0123456789abcdefABCDEF") < 2)
                return refuse(expression, at, "\\x needs two hexadecimal digits", e);
            at += c != 0;
        } else if (in_set) {
            if (*at == '[') {
                text_append(out, from, (size_t)(at - from));
                text_append(out, "\\", 1);
                from = at;
            }
            in_set = *at != ']';
        } else if (*at == '[') {
            at += c == '^';
            at += at[1] == ']';
            in_set = true;
        } else if (!strncmp(at, "(?#", 3)) {
            at += strcspn(at, ")") - 1; /* a comment */
        } else if (behind == ')' && at != expression) {
            return refuse(expression, at, "flags of the whole expression that are not at its start", e);
        } else if (next > at && at > expression) {
            if (!strncmp(at, "{,}", 3)) return refuse(expression, at, "{,} is not supported: write *", e);
            if (sscanf(at, "{%lu,%lu}", &least, &most) == 2 && least > most)
                return refuse(expression, at, "the first number of a repetition is larger than the second", e);
            if (*at == '{' && *next == '+') return refuse(expression, next, "{m,n}+ is not supported", e);
            next += *next == '?' || *next == '+';
            if (at[-1] != '(' && behind_repetition(next) > next)
                return refuse(expression, next, "a repetition of a repetition", e);
            at = next - 1;
        }
    }
    text_append(out, from, strlen(from));
    return PL_OK;
}

static void free_code(void *code) { onig_free(code); }

static int compile_python(const char *expression, struct bump *memory, regex_t **out, struct error *e)
{
    TRY(compile(out, expression, ONIG_ENCODING_ASCII, ONIG_SYNTAX_PYTHON, e));
    bump_at_end(memory, free_code, *out);
    return PL_OK;
}

int python_compile(struct python_pattern **out, const char *expression, struct bump *memory, struct error *e)
{
    const bool verbose = !strncmp(expression, "(?", 2) && memchr(expression, 'x', 2 + strspn(expression + 2, FLAGS));
    struct text translated = {0};
    *out = bump_alloc(memory, sizeof **out);
    int rc = translate_python(expression, &translated, e);
    if (!rc) rc = compile_python(translated.at, memory, &(*out)->code, e);
    if (!rc) { /* a line end ends a comment */
        const char *whole = bump_format(memory, "(?:%s%s)\\Z", translated.at, verbose ? "\n" : "");
        rc = compile_python(whole, memory, &(*out)->full, e);
    }
    text_free(&translated);
    return rc;
}

static enum python_answer match_python(regex_t *code, const char *subject, const char *group, size_t *at)
{
    struct pattern_search *s = pattern_search_new();
    const OnigUChar *text = (const OnigUChar *)subject, *end = text + strlen(subject);
    onig_set_retry_limit_in_match_of_match_param(s->limits, STEPS);
    const int rc = onig_match_with_param(code, text, end, text, s->region, ONIG_OPTION_NONE, s->limits);
    if (rc >= 0 && group) {
        const OnigUChar *name = (const OnigUChar *)group;
        const int i = onig_name_to_backref_number(code, name, name + strlen(group), s->region);
        *at = i > 0 && s->region->beg[i] > 0 ? (size_t)s->region->beg[i] : 0;
    }
    pattern_search_free(s);
    return rc >= 0 ? PYTHON_YES : rc == ONIG_MISMATCH ? PYTHON_NO : PYTHON_GAVE_UP;
}

enum python_answer python_full_match(const struct python_pattern *p, const char *subject)
{
    return match_python(p->full, subject, NULL, NULL);
}

enum python_answer python_match(const struct python_pattern *p, const char *subject, const char *group, size_t *at)
{
    return match_python(p->code, subject, group, at);
}
