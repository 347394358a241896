/*
 * regex_none.c: a build without PCRE2 (see regex.h). No expression compiles, so none is matched.
 */
#include "base/regex.h"

const char *regex_version(void) { return NULL; }

int regex_compile(struct regex **out, const char *pattern, struct bump *memory, struct error *e)
{
    (void)out, (void)memory;
    return error_set(e, PL_USAGE,
                     "\"%.200s\" is a regular expression, and this build has no PCRE2: give a list of names, or "
                     "install libpcre2-dev and build again",
                     pattern);
}

static enum regex_answer never(void)
{
    CHECK(false, "a regular expression in a build without PCRE2");
    return REGEX_NO;
}

enum regex_answer regex_full_match(const struct regex *r, const char *subject)
{
    (void)r, (void)subject;
    return never();
}

enum regex_answer regex_match(const struct regex *r, const char *subject)
{
    (void)r, (void)subject;
    return never();
}

enum regex_answer regex_match_group(const struct regex *r, const char *subject, const char *group, size_t *at,
                                    size_t *n)
{
    (void)r, (void)subject, (void)group, (void)at, (void)n;
    return never();
}
