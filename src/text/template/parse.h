/*
 * parse.h: a parsed template: tokens and the tree.
 *
 * Private to the template files. The tree lives in the template's bump allocator and is never
 * changed after template_read, so that threads share it.
 */
#ifndef TEMPLATE_PARSE_H
#define TEMPLATE_PARSE_H

#include <setjmp.h>

#include "text/template/template.h"
#include "text/template/value.h"

/* ---- tokens ---- */

enum token_kind {
    TOKEN_END,
    TOKEN_TEXT,                                /* outside of tags */
    TOKEN_PRINT_BEGIN, TOKEN_PRINT_END,        /* {{ }} */
    TOKEN_BLOCK_BEGIN, TOKEN_BLOCK_END,        /* {% %} */
    TOKEN_NAME, TOKEN_STRING, TOKEN_INT, TOKEN_FLOAT,
    TOKEN_SIGN                                 /* an operator or a bracket */
};

struct lexeme {
    enum token_kind kind;
    uint32_t line;
    const char *at; /* of a string: its bytes after escapes; a name is terminated */
    uint32_t n;
    int64_t i;
    double f;
};

/* ---- the tree ---- */

/* Each row: which fields of struct node it uses. */
enum node_kind {
    /* expressions */
    NODE_CONST,   /* value */
    NODE_NAME,    /* name */
    NODE_LIST,    /* items */
    NODE_TUPLE,   /* items */
    NODE_DICT,    /* items: key, value, key, value, ... */
    NODE_ATTRIBUTE, /* a.name */
    NODE_ITEM,    /* a[b] */
    NODE_SLICE,   /* a[items: from, to, by], NULL where left out */
    NODE_CALL,    /* a(items, names) */
    NODE_FILTER,  /* a | filter(items, names); a NULL: the body of a block */
    NODE_TEST,    /* a is filter(items, names) */
    NODE_NOT,     /* not a */
    NODE_AND,     /* a and b */
    NODE_OR,      /* a or b */
    NODE_IF_ELSE, /* b if a else c, c may be NULL */
    NODE_COMPARE, /* a op items[0] op items[1] ...; names: the operators */
    NODE_BINARY,  /* a op b */
    NODE_CONCAT,  /* items joined by ~ */
    NODE_NEGATIVE, /* -a */
    NODE_POSITIVE, /* +a */
    /* statements */
    NODE_TEXT,    /* value */
    NODE_PRINT,   /* {{ a }} */
    NODE_IF,      /* items: conditions; bodies: one for each, and that of else where there is one */
    NODE_FOR,     /* target a in b if c; bodies[0], bodies[1] of else */
    NODE_SET,     /* target a = b */
    NODE_SET_BLOCK, /* target a, filter b or NULL, bodies[0] */
    NODE_MACRO,   /* name(names = items), NULL: no default; bodies[0] */
    NODE_FILTER_BLOCK, /* filter a, bodies[0] */
    NODE_WITH,    /* targets and values in items, alternating; bodies[0] */
    NODE_GENERATION, /* bodies[0] */
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_MEMBER   /* only as a target: a namespace's member, a.name */
};

struct body {
    struct node **at;
    uint32_t n;
};

struct node {
    uint8_t kind;
    char op;
    uint32_t line;
    struct node *a, *b, *c;
    const char *name;  /* interned: names are the same when their pointers are */
    struct node **items;
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
    const char *loop;    /* the name, interned */
    struct word **words; /* every name: hash slots, NULL: free; at most half full */
    uint32_t n_words, n_slots;
};

/* A name of the template, stored once. */
struct word {
    bool bound; /* the template gives it a value somewhere */
    char text[];
};

/* Deepest nesting of tags and of expressions in the text. */
enum { PARSE_DEPTH = 150 };

struct parser {
    struct template *t;
    const struct lexeme *at;
    uint32_t depth, loops, macros, blocks; /* what surrounds the current statement */
    bool generation;
    const struct node *macro;
    VEC(struct lexeme) tokens;
    VEC(const struct node *) calls; /* calls of names, checked at the end */
    struct error *e;
    jmp_buf stop;
};

/* Ends the reading with PL_USAGE, "NAME, line N: ...". */
__attribute__((noreturn)) void parse_fail(struct parser *p, uint32_t line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Fills p->tokens. `source` has line ends "\n" alone. */
void lex(struct parser *p, const char *source, size_t n);
/* The one copy of a name. */
const char *intern(struct parser *p, const char *name, size_t n);
/* The same without adding it; NULL: the template has no such name. */
const char *word_find(const struct template *t, const char *name);
/* Says that the template gives the name, which was interned, a value. */
void bind_name(const char *name);
bool name_is_bound(const char *name);
/* vec_push into memory of the template, which is freed with it also after an error. */
#define parse_push(p, v, x) (parse_grow((p), (void **)&(v)->at, &(v)->cap, (v)->n, sizeof *(v)->at), (v)->at[(v)->n++] = (x))
void parse_grow(struct parser *p, void **at, uint32_t *cap, uint32_t n, size_t size);

struct node *node_new(struct parser *p, enum node_kind kind, uint32_t line);
bool at_sign(const struct parser *p, const char *sign);
bool at_name(const struct parser *p, const char *name);
bool skip_sign(struct parser *p, const char *sign);
bool skip_name(struct parser *p, const char *name);
void expect_sign(struct parser *p, const char *sign);
const char *expect_name(struct parser *p);
void parse_enter(struct parser *p);
char *describe_lexeme(const struct lexeme *l, char out[80]);

/* expression.c */
struct node *parse_expression(struct parser *p, bool if_else);
/* Expressions separated by commas become a tuple. */
struct node *parse_tuple(struct parser *p, bool if_else, bool in_parentheses);
struct node *parse_target(struct parser *p, bool members);
/* | name(...) | name ... applied to a; where `first` is set, without the first bar. */
struct node *parse_filters(struct parser *p, struct node *a, bool first);

/* statement.c */
struct body parse_template(struct parser *p);

#endif
