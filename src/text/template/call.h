/*
 * call.h: what a template can call: filters, tests, methods and functions, each a row of a table.
 */
#ifndef TEMPLATE_CALL_H
#define TEMPLATE_CALL_H

#include "text/template/value.h"

/* Most arguments of a filter, test or method. */
enum { CALL_ARGS = 16 };

/* Arguments of a call: positional ones first, then those with a name. */
struct args {
    struct var at[CALL_ARGS];
    const char *names[CALL_ARGS]; /* NULL: positional */
    uint32_t n;
};

/* A filter or a test. */
struct filter {
    const char *name;
    struct var (*run)(struct render *r, struct var in, const struct args *a);
    /* names, separated by commas; args.at has one for each, missing or given. "*": any, as
     * written */
    const char *params;
    uint32_t least;     /* how many must be given */
    bool names_test;    /* its arguments may name a test (select, selectattr) ... */
    bool names_filter;  /* ... or a filter (map) */
};

/* NULL: there is no such filter or test. */
const struct filter *filter_find(const char *name);
const struct filter *sequence_filter_find(const char *name); /* those in sequences.c */
const struct filter *test_find(const char *name);
/* Puts arguments as written into the order of `params`. Returns NULL, or what is wrong with them.
 * `place`[i] gets the position of argument i. */
const char *args_place(const char *params, uint32_t least, const char *const *names, uint32_t n,
                       uint32_t place[CALL_ARGS]);
/* Calls with the arguments as written. */
struct var filter_call(struct render *r, const struct filter *f, struct var in, const struct args *written);

/* Whether any type has this method and we know it. */
bool method_known(const char *name);
/* Whether this value has this method in Python. */
bool type_has_method(struct var v, const char *name);
/* Whether that method would change the value, which the sandbox forbids. */
bool method_changes(struct var v, const char *name);
struct var method_call(struct render *r, struct var v, const char *name, const struct args *a);

bool function_known(const char *name);
struct var function_call(struct render *r, const char *name, const struct args *a);

/* ---- string methods that filters share ---- */

enum strip_sides { STRIP_LEFT = 1, STRIP_RIGHT = 2, STRIP_BOTH = 3 };
struct var string_strip(struct render *r, struct var s, struct var chars, enum strip_sides sides);
struct var string_upper(struct render *r, struct var s);
struct var string_lower(struct render *r, struct var s);
struct var string_capitalize(struct render *r, struct var s);
struct var string_replace(struct render *r, struct var s, const struct str *from, const struct str *to, int64_t most);
struct seq *string_lines(struct render *r, struct var s, bool keep_ends);
struct var string_percent(struct render *r, struct var format, struct var values); /* format % values */
struct var string_format(struct render *r, struct var format, const struct args *a); /* format.format(...) */
struct var string_method(struct render *r, struct var s, const char *name, const struct args *a);

#endif
