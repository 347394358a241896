/*
 * eval.h: scopes, loops and expressions of a rendering.
 *
 * Names are looked up in scopes, innermost first. A loop's body, a macro's body and a block have a
 * scope of their own, and what is set there ends with it; `if` has none. A macro sees the scopes
 * around its definition, not those of its caller.
 *
 *   variables <- the template <- for <- block
 *                     ^--------- macro
 */
#ifndef TEMPLATE_EVAL_H
#define TEMPLATE_EVAL_H

#include "text/template/parse.h"

struct scope {
    struct scope *up;
    const char **names; /* interned */
    struct var *values;
    uint32_t n, cap;
    bool kept; /* a macro refers to it */
};

struct macro {
    const struct node *node;
    struct scope *scope;
};

struct loop {
    const struct node *node;
    struct scope *scope;      /* around the loop */
    struct iter elements;
    struct var after;         /* the next element, where somebody asked for it; else missing */
    struct var current, before, changed;
    int64_t index;            /* from 0 */
    int64_t length;           /* -1: not known yet */
    bool ended;
    bool tested; /* the elements to come have passed the condition */
};

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

struct scope *scope_new(struct render *r, struct scope *up);
void scope_set(struct render *r, struct scope *s, const char *name, struct var v);
/* Gives a name, several names or a namespace's member a value. */
void assign(struct render *r, struct scope *s, const struct node *target, struct var v);
/* Moves to the loop's next element, loop->current; false: there is none. */
bool loop_next(struct render *r, struct loop *l);
struct var eval(struct render *r, struct scope *s, const struct node *n);
/* The text that a body prints. *flow: how it ended. */
struct var captured(struct render *r, struct scope *s, const struct body *body, enum flow *flow);
/* In render.c. */
enum flow exec_body(struct render *r, struct scope *s, const struct body *body);

#endif
