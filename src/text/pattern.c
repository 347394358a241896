/*
 * pattern.c: regular expressions (see pattern.h), on Oniguruma. The only file that includes its
 * header.
 */
#include <oniguruma.h>
#include <pthread.h>
#include <string.h>
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
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
    onig_set_parse_depth_limit(NESTING_MOST);
}

int pattern_compile(struct pattern **out, const char *expression, struct error *e)
{
    static pthread_once_t started = PTHREAD_ONCE_INIT;
    pthread_once(&started, start_engine);
    size_t n = strlen(expression);
    if (n > EXPRESSION_MOST)
        return error_set(e, PL_USAGE, "the regular expression has %zu bytes; at most %d are accepted", n,
                         EXPRESSION_MOST);
    struct pattern *p = mem_alloc(sizeof *p);
    OnigErrorInfo info;
    const OnigUChar *at = (const OnigUChar *)expression;
    int rc = onig_new(&p->code, at, at + n, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
    if (rc == ONIG_NORMAL) {
        *out = p;
        return PL_OK;
    }
    OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN] = "";
    onig_error_code_to_str(reason, rc, &info);
    mem_free(p);
    return error_set(e, PL_USAGE, "the regular expression \"%.300s\" does not compile: %s", expression,
                     (const char *)reason);
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
