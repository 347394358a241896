/*
 * jinja.h: what the files of the renderer share: tokens, the tree, values, strings and calls.
 *
 *   source --lex.c--> tokens --expression.c, statement.c--> tree --render.c--> text
 *                                                            |
 *                     objects.c, string.c, methods.c, filters.c: values and what is done to them
 *
 * The tree lies in the template's bump allocator and never changes after template_read, so that
 * threads share it. Values have the meaning of Python's: integers and floats differ, strings are
 * texts of code points, lists, tuples and dicts nest. A string knows which of its bytes came from
 * the variables:
 *
 *   bytes   <|user|>Hi there<|end|>
 *   data            [8,16)
 *
 * Every operation that makes a string uses a struct build, which takes bytes together with their
 * origin; so no operation can lose it. Nothing is changed once made, except namespaces. All memory
 * of a rendering comes from one bump allocator and is freed with it; an error leaves by longjmp
 * from `fail`, so no function here returns a code.
 */
#pragma once

#include <setjmp.h>

#include "text/template/template.h"

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
    RENDER_RANGE = 100000,
    PARSE_DEPTH = 150, /* nested tags, and nested expressions in the text */
    CALL_ARGS = 16     /* arguments of a call */
};

/* ---- values ---- */

enum var_kind {
    VAR_MISSING, /* no value at all: an argument that was not given */
    VAR_UNDEFINED,
    VAR_NONE,
    VAR_BOOL,
    VAR_INT,
    VAR_FLOAT,
    VAR_STRING,
    VAR_LIST,
    VAR_TUPLE,
    VAR_DICT,
    VAR_ELEMENTS, /* dict.items(), range(), and the results of map, select, ...: only iterated over */
    VAR_NAMESPACE,
    VAR_LOOP,
    VAR_MACRO,
    VAR_FUNCTION, /* range, namespace, raise_exception, strftime_now */
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
        const struct str *s; /* string, name of a method */
        struct seq *q;       /* list, tuple, elements */
        struct dict *d;      /* dict, namespace */
        struct for_loop *loop;
        const struct macro *macro;
        const char *what; /* undefined, function: its name */
    };
};

struct seq {
    struct var *at; /* NULL: a range, whose element i is begin + by * i */
    uint32_t n, cap;
    int64_t begin, by;
    bool once, used; /* elements of a generator: they come once; they have come */
};
struct dict {
    struct var *keys, *values; /* in order of insertion */
    uint32_t n, cap;
    uint32_t message; /* the number of the message that it is, from 1; 0: none */
};

struct render {
    const struct template *t;
    struct bump memory;
    uint64_t bytes, steps;
    uint32_t depth, line;
    struct build *out;  /* where output goes */
    struct build *root; /* the whole output */
    const char *date;   /* of strftime_now, or NULL: now */
    struct var body;    /* of the block that a filter is applied to */
    VEC(struct byte_range) answers, turns;
    struct error *e;
    jmp_buf stop;
};

/* Ends the rendering with PL_USAGE, "NAME, line N: ...". */
__attribute__((noreturn)) void fail(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Accounts for one step of work. */
void step(struct render *r);
/* Accounts for one level of recursion over values or nodes; `leave` ends it. */
void enter(struct render *r);
void leave(struct render *r);
/* Returns zeroed memory of this rendering. */
void *take(struct render *r, size_t bytes);

static inline struct var var_none(void) { return (struct var){.kind = VAR_NONE}; }
static inline struct var var_bool(bool x) { return (struct var){.kind = VAR_BOOL, .truth = x}; }
static inline struct var var_int(int64_t x) { return (struct var){.kind = VAR_INT, .i = x}; }
static inline struct var var_undefined(const char *name) { return (struct var){.kind = VAR_UNDEFINED, .what = name}; }
static inline struct var var_seq(enum var_kind kind, struct seq *q)
{
    return (struct var){.kind = (uint8_t)kind, .q = q};
}
static inline bool is_given(struct var v) { return v.kind != VAR_MISSING; }
static inline bool is_int(struct var v) { return v.kind == VAR_INT || v.kind == VAR_BOOL; }
static inline bool is_number(struct var v) { return is_int(v) || v.kind == VAR_FLOAT; }
/* Returns the value of an int or bool. */
static inline int64_t var_integer(struct var v) { return v.kind == VAR_BOOL ? v.truth : v.i; }
/* Returns a string of the template's own; the bytes are not copied. */
struct var var_text(struct render *r, const char *at, size_t n);
struct var var_pair(struct render *r, struct var a, struct var b); /* a tuple */
struct seq *seq_new(struct render *r, uint32_t room);
void seq_push(struct render *r, struct seq *q, struct var v);
struct dict *dict_new(struct render *r, uint32_t room);
void dict_put(struct render *r, struct dict *d, struct var key, struct var v);
/* Returns the value under a key, or NULL. A key that Python cannot hash fails. */
const struct var *dict_get(struct render *r, const struct dict *d, struct var key);
const struct var *dict_get_name(const struct dict *d, const char *name);
/* Converts a variable of the caller, whose strings are data unless `control`. */
struct var var_from_value(struct render *r, const struct value *v, bool control);

const char *var_type(struct var v); /* Python's name of the type, for messages */
bool var_truth(struct var v);
bool var_equal(struct render *r, struct var a, struct var b);
bool var_less(struct render *r, struct var a, struct var b); /* fails for types without an order */
bool var_in(struct render *r, struct var x, struct var container);
bool var_sized(struct var v, int64_t *n); /* len(); false: it has none */
bool var_iterable(struct var v);

/* An iteration. */
struct iter {
    struct var of;
    int64_t at;
};
/* Begins an iteration; fails for a value that is not iterable, or for elements that have come. */
struct iter iter_of(struct render *r, struct var v);
/* Gets the next element; returns false at the end. */
bool iter_next(struct render *r, struct iter *it, struct var *out);
struct seq *var_elements(struct render *r, struct var v); /* list(v) */

/* Returns v.name, v[key] and v[from:to:by] by Jinja's rules: what is missing is undefined. */
struct var var_attribute(struct render *r, struct var v, const char *name);
struct var var_item(struct render *r, struct var v, struct var key);
struct var var_slice(struct render *r, struct var v, struct var from, struct var to, struct var by);
/* Computes a + b, a - b, a * b and a % b. */
struct var var_arithmetic(struct render *r, char op, struct var a, struct var b);

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
void build_slice(struct build *b, const struct str *s, uint32_t from, uint32_t to);
void build_str(struct build *b, const struct str *s);
/* Appends str(v) of Python. */
void build_var(struct build *b, struct var v);
void build_escaped(struct build *b, const struct str *s); /* for HTML */
struct var build_done(struct build *b);

struct var str_slice(struct render *r, struct var s, uint32_t from, uint32_t to);
struct var str_join(struct render *r, struct var a, struct var b); /* a + b, both strings */
bool str_is(const struct str *s, const char *text);
/* Reports whether the byte at `at` came from the data. Ask for ascending positions, with *hint = 0
 * at first. */
bool str_is_data(const struct str *s, uint32_t at, uint32_t *hint);
/* Returns Python's str(v) as a string value; strings stay themselves. */
struct var var_string(struct render *r, struct var v);
uint32_t str_length(const struct str *s);                 /* in code points */
uint32_t str_offset(const struct str *s, uint32_t index); /* byte offset of a code point */
char *str_c(struct render *r, const struct str *s);       /* terminated copy */

/* The layout of json.dumps. indent NULL: on one line. */
struct json_style {
    bool ascii;
    const struct str *indent, *item, *key;
};
void build_json(struct build *b, struct var v, const struct json_style *style);

/* ---- calls ---- */

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
    /* Names, separated by commas; args.at has one for each, missing or given. "!name": Jinja has
     * it, we refuse it. "*": any, as written. */
    const char *params;
    uint32_t least; /* how many must be given */
    int which;      /* the argument, from 1, that names a test, or -1: the first names a filter */
};

/* Finds a filter or a test by its name, or returns NULL. */
const struct filter *filter_find(const char *name);
const struct filter *test_find(const char *name);
/* Puts arguments as written into the order of `params`: place[i] is the position of argument i.
 * Returns NULL, or what is wrong with them. */
const char *args_place(const char *params, uint32_t least, const char *const *names, uint32_t n,
                       uint32_t place[CALL_ARGS]);
/* Calls a filter with the arguments as written. */
struct var filter_call(struct render *r, const struct filter *f, struct var in, const struct args *written);

/* Reports whether a word is in a list of words, each of them between blanks. */
bool text_has_word(const char *words, const char *word);
/* Reports whether some type has a method that can be called here. */
bool method_known(const char *name);
/* Reports whether this value has this method in Python. */
bool type_has_method(struct var v, const char *name);
/* Reports whether that method would change the value, which the sandbox forbids. */
bool method_changes(struct var v, const char *name);
struct var method_call(struct render *r, struct var v, const char *name, const struct args *a);
bool function_known(const char *name);
struct var function_call(struct render *r, const char *name, const struct args *a);

/* ---- string methods that filters share ---- */

enum strip_sides { STRIP_LEFT = 1, STRIP_RIGHT = 2, STRIP_BOTH = 3 };
enum case_kind { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE };
struct var string_strip(struct render *r, struct var s, struct var chars, enum strip_sides sides);
struct var string_case(struct render *r, struct var s, enum case_kind kind);
struct var string_replace(struct render *r, struct var s, const struct str *from, const struct str *to);
/* Replaces each mark, "%s" or "{}", by the next argument. */
struct var string_format(struct render *r, struct var format, const char *mark, const struct args *a);

/* ---- tokens ---- */

enum token_kind {
    TOKEN_END,
    TOKEN_TEXT,                         /* outside of tags */
    TOKEN_PRINT_BEGIN, TOKEN_PRINT_END, /* {{ }} */
    TOKEN_BLOCK_BEGIN, TOKEN_BLOCK_END, /* {% %} */
    TOKEN_NAME, TOKEN_STRING, TOKEN_INT,
    TOKEN_SIGN                          /* an operator or a bracket */
};

struct lexeme {
    enum token_kind kind;
    uint32_t line;
    const char *at; /* of a string: its bytes after escapes; a name is terminated */
    uint32_t n;
    int64_t i;
};

/* ---- the tree ---- */

/* Each row: which fields of struct syntax it uses. */
enum node_kind {
    /* expressions */
    NODE_CONST,     /* value */
    NODE_NAME,      /* name */
    NODE_LIST,      /* items */
    NODE_TUPLE,     /* items */
    NODE_DICT,      /* items: key, value, key, value, ... */
    NODE_ATTRIBUTE, /* a.name; as the target of `set`: a namespace's member */
    NODE_ITEM,      /* a[b] */
    NODE_SLICE,     /* a[items: from, to, by], NULL where left out */
    NODE_CALL,      /* a(items, names) */
    NODE_FILTER,    /* a | filter(items, names); a NULL: the body of a block */
    NODE_TEST,      /* a is filter(items, names) */
    NODE_NOT,       /* not a */
    NODE_AND,       /* a and b */
    NODE_OR,        /* a or b */
    NODE_IF_ELSE,   /* b if a else c, c may be NULL */
    NODE_COMPARE,   /* a name b, name: the operator */
    NODE_BINARY,    /* a op b */
    NODE_CONCAT,    /* items joined by ~ */
    /* statements */
    NODE_TEXT,         /* value */
    NODE_PRINT,        /* {{ a }} */
    NODE_IF,           /* items: conditions; bodies: one for each, and that of else where there is one */
    NODE_FOR,          /* target a in b if c; bodies[0] */
    NODE_SET,          /* target a = b */
    NODE_SET_BLOCK,    /* target a, bodies[0] */
    NODE_MACRO,        /* name(names = items), NULL: no default; bodies[0] */
    NODE_FILTER_BLOCK, /* filter a, bodies[0] */
    NODE_GENERATION,   /* bodies[0] */
    NODE_BREAK,
    NODE_CONTINUE
};

struct body {
    struct syntax **at;
    uint32_t n;
};

struct syntax {
    uint8_t kind;
    char op;
    uint32_t line;
    struct syntax *a, *b, *c;
    const char *name; /* interned: names are the same when their pointers are */
    struct syntax **items;
    const char **names; /* beside items; NULL: positional */
    uint32_t n;
    struct body *bodies;
    uint32_t n_bodies;
    const struct filter *filter;
    struct var value;
};

struct template {
    struct bump memory;
    const char *name, *source;
    struct body body;
    bool marks_answers;
    struct value *kwargs; /* template_set_kwargs; NULL: none */
    const char *loop;    /* the name, interned */
    struct word **words; /* every name: hash slots, NULL: free; at most half full */
    uint32_t n_words, n_slots;
};

/* A name of the template, stored once. */
struct word {
    bool bound; /* the template gives it a value somewhere */
    char text[];
};

/* ---- parsing ---- */

struct parser {
    struct template *t;
    const struct lexeme *at;
    uint32_t depth, loops, blocks; /* that surround the current statement */
    bool generation;
    const struct syntax *macro;
    VEC(struct lexeme) tokens;
    VEC(const struct syntax *) calls; /* calls of names, checked at the end */
    struct error *e;
    jmp_buf stop;
};

/* Ends the reading with PL_USAGE, "NAME, line N: ...". */
__attribute__((noreturn)) void parse_fail(struct parser *p, uint32_t line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Fills p->tokens. `source` has only line ends "\n". */
void lex(struct parser *p, const char *source, size_t n);
/* Returns the one copy of a name, which it adds. */
const char *intern(struct parser *p, const char *name, size_t n);
/* Returns the one copy of a name, or NULL: the template has no such name. */
const char *word_find(const struct template *t, const char *name);
/* Returns where an interned name tells whether the template gives it a value. */
bool *name_bound(const char *name);
/* Pushes into memory of the template, which is freed with it also after an error. */
#define parse_push(p, v, x) \
    (parse_grow((p), (void **)&(v)->at, &(v)->cap, (v)->n, sizeof *(v)->at), (v)->at[(v)->n++] = (x))
void parse_grow(struct parser *p, void **at, uint32_t *cap, uint32_t n, size_t size);

struct syntax *node_new(struct parser *p, enum node_kind kind, uint32_t line);
struct syntax *node_text(struct parser *p, enum node_kind kind, uint32_t line, const char *at, uint32_t n);
bool at_sign(const struct parser *p, const char *sign);
bool at_name(const struct parser *p, const char *name);
bool skip_sign(struct parser *p, const char *sign);
bool skip_name(struct parser *p, const char *name);
/* Goes past the token that must follow, or fails. */
void expect_sign(struct parser *p, const char *sign);
const char *expect_name(struct parser *p);
__attribute__((noreturn)) void parse_expected(struct parser *p, const char *what); /* "expected X before Y" */
void parse_enter(struct parser *p);

struct syntax *parse_expression(struct parser *p, bool if_else);
/* Parses expressions; separated by commas they are a tuple. */
struct syntax *parse_tuple(struct parser *p, bool if_else, bool in_parentheses);
/* Parses the target of `for`, names; or that of `set`, one name or a member of a namespace. */
struct syntax *parse_target(struct parser *p, bool set);
/* Parses | name(...) | name ... applied to a; with a NULL, which is a block's body, without the
 * first bar. */
struct syntax *parse_filters(struct parser *p, struct syntax *a);
