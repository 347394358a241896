/*
 * tests.c: the tests, value is name(arguments).
 */
#include <string.h>

#include "text/template/call.h"

static struct var test_defined(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind != VAR_UNDEFINED);
}
static struct var test_undefined(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_UNDEFINED);
}
static struct var test_none(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_NONE);
}
static struct var test_boolean(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_BOOL);
}
static struct var test_true(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_BOOL && in.truth);
}
static struct var test_false(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_BOOL && !in.truth);
}
static struct var test_integer(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_INT || in.kind == VAR_BIG);
}
static struct var test_float(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_FLOAT);
}
static struct var test_number(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(var_is_number(in) || in.kind == VAR_BIG);
}
static struct var test_string(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_STRING);
}
static struct var test_mapping(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_DICT);
}
static struct var test_iterable(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(var_iterable(in) || in.kind == VAR_LOOP);
}
/* What has a length and elements by index or key; Jinja counts an undefined value too. */
static struct var test_sequence(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    int64_t n;
    return var_bool(in.kind != VAR_VIEW && var_sized(in, &n));
}
static struct var test_callable(struct render *r, struct var in, const struct args *a)
{
    (void)r, (void)a;
    return var_bool(in.kind == VAR_UNDEFINED || in.kind == VAR_MACRO || in.kind == VAR_FUNCTION ||
                    in.kind == VAR_METHOD || in.kind == VAR_LOOP);
}
static struct var test_divisible(struct render *r, struct var in, const struct args *a)
{
    return var_bool(var_equal(r, var_arithmetic(r, '%', in, a->at[0]), var_int(0)));
}
static struct var test_even(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return var_bool(var_equal(r, var_arithmetic(r, '%', in, var_int(2)), var_int(0)));
}
static struct var test_odd(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return var_bool(var_equal(r, var_arithmetic(r, '%', in, var_int(2)), var_int(1)));
}
static struct var test_equal(struct render *r, struct var in, const struct args *a)
{
    return var_bool(var_equal(r, in, a->at[0]));
}
static struct var test_different(struct render *r, struct var in, const struct args *a)
{
    return var_bool(!var_equal(r, in, a->at[0]));
}
static struct var test_less(struct render *r, struct var in, const struct args *a)
{
    return var_bool(var_less(r, in, a->at[0]));
}
static struct var test_at_most(struct render *r, struct var in, const struct args *a)
{
    return var_bool(var_less(r, in, a->at[0]) || var_equal(r, in, a->at[0]));
}
static struct var test_greater(struct render *r, struct var in, const struct args *a)
{
    return var_bool(var_less(r, a->at[0], in));
}
static struct var test_at_least(struct render *r, struct var in, const struct args *a)
{
    return var_bool(var_less(r, a->at[0], in) || var_equal(r, in, a->at[0]));
}
static struct var test_in(struct render *r, struct var in, const struct args *a)
{
    return var_bool(var_in(r, in, a->at[0]));
}

static const struct filter tests[] = {
    {"boolean", test_boolean, ""},
    {"callable", test_callable, ""},
    {"defined", test_defined, ""},
    {"divisibleby", test_divisible, "num", 1},
    {"eq", test_equal, "other", 1},
    {"equalto", test_equal, "other", 1},
    {"==", test_equal, "other", 1},
    {"even", test_even, ""},
    {"false", test_false, ""},
    {"float", test_float, ""},
    {"ge", test_at_least, "other", 1},
    {">=", test_at_least, "other", 1},
    {"greaterthan", test_greater, "other", 1},
    {"gt", test_greater, "other", 1},
    {">", test_greater, "other", 1},
    {"in", test_in, "seq", 1},
    {"integer", test_integer, ""},
    {"iterable", test_iterable, ""},
    {"le", test_at_most, "other", 1},
    {"<=", test_at_most, "other", 1},
    {"lessthan", test_less, "other", 1},
    {"lt", test_less, "other", 1},
    {"<", test_less, "other", 1},
    {"mapping", test_mapping, ""},
    {"ne", test_different, "other", 1},
    {"!=", test_different, "other", 1},
    {"none", test_none, ""},
    {"number", test_number, ""},
    {"odd", test_odd, ""},
    {"sequence", test_sequence, ""},
    {"string", test_string, ""},
    {"true", test_true, ""},
    {"undefined", test_undefined, ""},
};

const struct filter *test_find(const char *name)
{
    for (size_t i = 0; i < COUNT(tests); i++)
        if (!strcmp(tests[i].name, name)) return &tests[i];
    return NULL;
}
