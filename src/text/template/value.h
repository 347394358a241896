/*
 * value.h: values while a template is rendered, and the state of a rendering.
 *
 * Values have the meaning of Python's: integers and floats differ, strings are texts of code
 * points, lists, tuples and dicts nest. A string knows which of its bytes came from the variables:
 *
 *   bytes   <|user|>Hi there<|end|>
 *   data            [8,16)
 *
 * Every operation that makes a string makes it with a struct build, which takes bytes together with
 * their origin; so no operation can lose it.
 *
 * Nothing is changed once made, except namespaces. All memory of a rendering comes from one bump
 * allocator and is freed with it; an error leaves by longjmp from `fail`, so no function here
 * returns a code.
 */
#ifndef TEMPLATE_VALUE_H
#define TEMPLATE_VALUE_H

#include <setjmp.h>

#include "base/base.h"
#include "io/value.h"
#include "text/ranges.h"

/* What a rendering may use. Python's Jinja stops range at 100,000 elements too. A fuzzer, whose
 * code is slow, waits less. */
enum {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    RENDER_STEPS = 200000,
#else
    RENDER_STEPS = 20000000, /* nodes visited and elements touched: about a second */
#endif
    RENDER_MEMORY = 256 << 20, /* bytes of all values */
    RENDER_OUTPUT = 64 << 20,  /* bytes of one string, and so of the output */
    RENDER_DEPTH = 1200,       /* nested expressions, statements, calls, lists */
    RENDER_RANGE = 100000
};

enum var_kind {
    VAR_MISSING, /* no value at all: an argument that was not given */
    VAR_UNDEFINED,
    VAR_NONE,
    VAR_BOOL,
    VAR_INT,
    VAR_BIG, /* an integer beyond 64 bits: its digits */
    VAR_FLOAT,
    VAR_STRING,
    VAR_LIST,
    VAR_TUPLE,
    VAR_DICT,
    VAR_VIEW,     /* dict.items(), .keys(), .values() */
    VAR_ITERATOR, /* what map, select, reverse give: each element comes once */
    VAR_RANGE,
    VAR_NAMESPACE,
    VAR_LOOP,
    VAR_MACRO,
    VAR_FUNCTION, /* range, namespace, raise_exception, ... */
    VAR_METHOD    /* "abc".upper without a call */
};

struct str {
    const char *at;
    uint32_t n;
    uint32_t n_data;
    const struct byte_range *data; /* ascending, apart: bytes that came from the variables */
    struct str_room *room;         /* where the bytes lie in a buffer that can grow, else NULL */
};

/* A value, passed by value. */
struct var {
    uint8_t kind;
    bool markup; /* string: passed through `safe`; what is added to it gets escaped */
    union {
        bool truth;
        int64_t i;
        double f;
        const struct str *s;     /* string, digits, name of a method */
        struct seq *q;           /* list, tuple, view, iterator */
        struct dict *d;          /* dict, namespace */
        struct span *range;
        struct loop *loop;
        const struct macro *macro;
        const char *what;        /* undefined, function: its name */
    };
};

struct seq {
    struct var *at;
    uint32_t n, cap;
    uint32_t next;    /* iterator: the first element that has not come */
    struct lazy *lazy; /* iterator: where its elements come from, one by one; NULL: they are here */
    const char *name; /* view: "items", "keys", "values" */
};
struct dict {
    struct var *keys, *values; /* in order of insertion */
    uint32_t n, cap;
    uint32_t message;          /* the number of the message that it is, from 1; 0: none */
};
struct span {
    int64_t begin, end, step, n;
};
/* Element i. Elements fit 64 bits, but what is behind the last one, and a step that jumps over it,
 * may not. */
static inline int64_t span_at(const struct span *s, int64_t i)
{
    return (int64_t)((uint64_t)s->begin + (uint64_t)s->step * (uint64_t)i);
}

struct render {
    const struct template *t;
    struct bump memory;
    uint64_t bytes, steps;
    uint32_t depth, line;
    struct build *out;   /* where output goes */
    struct build *root;  /* the whole output */
    const char *date;    /* of strftime_now, or NULL: now */
    struct var body;     /* of the block that a filter is applied to */
    VEC(struct byte_range) answers, turns;
    struct error *e;
    jmp_buf stop;
};

/* Ends the rendering with PL_USAGE, "NAME, line N: ...". */
__attribute__((noreturn)) void fail(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Accounts for one step of work. */
void step(struct render *r);
/* Around every recursion over values or nodes. */
void enter(struct render *r);
void leave(struct render *r);
/* Zeroed memory of this rendering. */
void *take(struct render *r, size_t bytes);

/* ---- making values ---- */

static inline struct var var_none(void) { return (struct var){.kind = VAR_NONE}; }
static inline struct var var_bool(bool x) { return (struct var){.kind = VAR_BOOL, .truth = x}; }
static inline struct var var_int(int64_t x) { return (struct var){.kind = VAR_INT, .i = x}; }
static inline struct var var_float(double x) { return (struct var){.kind = VAR_FLOAT, .f = x}; }
static inline struct var var_undefined(const char *name) { return (struct var){.kind = VAR_UNDEFINED, .what = name}; }
static inline bool is_given(struct var v) { return v.kind != VAR_MISSING; }
/* A string of the template's own; the bytes are not copied. */
struct var var_text(struct render *r, const char *at, size_t n);
struct var var_seq(struct render *r, enum var_kind kind, struct seq *q);
struct var var_pair(struct render *r, struct var a, struct var b); /* a tuple */
struct var var_iterator(struct render *r, struct seq *q);
struct seq *seq_new(struct render *r, uint32_t room);
void seq_push(struct render *r, struct seq *q, struct var v);
struct dict *dict_new(struct render *r, uint32_t room);
void dict_put(struct render *r, struct dict *d, struct var key, struct var v);
/* NULL: no such key. A key that Python cannot hash fails. */
const struct var *dict_get(struct render *r, const struct dict *d, struct var key);
const struct var *dict_get_name(const struct dict *d, const char *name);
/* A variable of the caller, whose strings are data unless `control`. */
struct var var_from_value(struct render *r, const struct value *v, bool control);

/* ---- strings ---- */

struct build {
    struct render *r;
    char *at;
    uint32_t n, cap;
    struct byte_range *data;
    uint32_t n_data, cap_data;
};
void build_bytes(struct build *b, const char *at, size_t n, bool data);
void build_text(struct build *b, const char *text); /* the template's own */
void build_code(struct build *b, uint32_t code, bool data);
void build_slice(struct build *b, const struct str *s, uint32_t from, uint32_t to);
void build_str(struct build *b, const struct str *s);
/* str(v) and repr(v) of Python, and HTML-escaped text */
void build_var(struct build *b, struct var v);
void build_repr(struct build *b, struct var v);
void build_escaped(struct build *b, const struct str *s);
struct var build_done(struct build *b);

struct var str_slice(struct render *r, struct var s, uint32_t from, uint32_t to);
struct var str_join(struct render *r, struct var a, struct var b); /* a + b, both strings */
bool str_is(const struct str *s, const char *text);
/* Whether the byte at `at` came from the data. Ask for ascending positions, with *hint = 0 at
 * first. */
bool str_is_data(const struct str *s, uint32_t at, uint32_t *hint);
/* Python's str(v) as a string value; strings stay themselves. */
struct var var_string(struct render *r, struct var v);
uint32_t str_length(const struct str *s);                    /* in code points */
uint32_t str_offset(const struct str *s, uint32_t index);    /* byte offset of a code point */
char *str_c(struct render *r, const struct str *s);          /* terminated copy */

/* json.dumps(v, ensure_ascii, indent, separators, sort_keys). indent NULL: on one line. */
struct json_style {
    bool ascii, sort;
    const struct str *indent, *item, *key;
};
void build_json(struct build *b, struct var v, const struct json_style *style);
/* repr of a float. */
int float_repr(double x, char out[40]);

/* ---- meaning ---- */

const char *var_type(struct var v); /* Python's name of the type, for messages */
bool var_truth(struct var v);
bool var_is_number(struct var v);
double var_number(struct var v);
bool var_is_int(struct var v); /* int or bool */
bool var_equal(struct render *r, struct var a, struct var b);
bool var_less(struct render *r, struct var a, struct var b); /* fails for types without an order */
bool var_in(struct render *r, struct var x, struct var container);
bool var_sized(struct var v, int64_t *n); /* len(); false: it has none */
bool var_iterable(struct var v);

/* Iteration. iter_next gives false at the end. */
struct iter {
    struct var of;
    int64_t at;
};
struct iter iter_of(struct render *r, struct var v); /* fails when v is not iterable */
bool iter_next(struct render *r, struct iter *it, struct var *out);
struct seq *var_elements(struct render *r, struct var v); /* list(v) */

/* v.name and v[key], with Jinja's rules: what is missing is undefined. */
struct var var_attribute(struct render *r, struct var v, const char *name);
struct var var_item(struct render *r, struct var v, struct var key);
struct var var_slice(struct render *r, struct var v, struct var from, struct var to, struct var by);

/* Operators: + - * / % and "//" as 'd', "**" as 'p'. */
struct var var_arithmetic(struct render *r, char op, struct var a, struct var b);
struct var var_negated(struct render *r, struct var v);

/* In sequences.c: the next element of map, select and the like. */
bool lazy_next(struct render *r, struct lazy *lazy, struct var *out);
/* In eval.c: loop.NAME. */
struct var loop_attribute(struct render *r, struct loop *loop, const char *name);

#endif
