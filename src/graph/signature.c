/*
 * signature.c: the column `signature` of ops.def.
 *
 *     x[B,N,C] index:i32[B,M] inverse?:i32[B,N] -> y[B,M,C]; N>0
 *
 * When the program starts, each signature is read once into forms, one for each tensor. For a node
 * the forms of the inputs bind the names of dimensions, the conditions are tested, and the forms of
 * the outputs give shapes and dtypes. What text cannot say is checked by the row's rule afterwards
 * (shape.c). ops.def explains the text.
 */
#include <ctype.h>
#include <math.h>
#include <stdarg.h>

#include "graph/rules.h"

/* --- reading signatures ------------------------------------------------------------------ */

enum { NAMES_MOST = 12, NO_REST = -1 };

struct span {
    const char *at;
    int n;
};
/* One tensor of a signature. */
struct form {
    struct span name;
    bool optional, dense, shaped, step, statistic, attribute; /* attribute: its dtype is the attribute dtype */
    int8_t like;      /* the input whose dtype it has; -1: none */
    uint32_t dtypes;  /* bit t: it may have dtype t; 0: any, of an output the first input's */
    int8_t rank, rest; /* dimensions that are listed, and the position of "..." among them */
    struct {
        int8_t name;  /* index of the name; -1: an expression */
        struct span text;
    } dim[MAX_RANK];
};
static struct signature {
    struct form in[MAX_IN], out[MAX_OUT];
    struct span name[NAMES_MOST]; /* of dimensions */
    int names;
    struct span inputs;
    const char *conditions; /* separated by spaces; "": none */
} signatures[OP_COUNT];

static bool same_span(struct span a, struct span b) { return a.n == b.n && !strncmp(a.at, b.at, (size_t)a.n); }
static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_'; }
static struct span take_name(const char **at)
{
    struct span s = {*at, 0};
    while (in_name((*at)[0])) (*at)++;
    s.n = (int)(*at - s.at);
    return s;
}

static int find_input(const struct op_row *row, const struct signature *s, struct span name)
{
    for (int i = 0; i < row->max_in; i++)
        if (same_span(s->in[i].name, name)) return i;
    check_failed(__FILE__, __LINE__, "a signature names an input", "%s: no input %.*s", row->name, name.n, name.at);
}

/* Reads "i32", "f32|bf16", "float", "stat", "step", "dtype" or "=x". */
static void read_dtype(const struct op_row *row, const struct signature *s, struct form *f, const char **at)
{
    if (**at == '=') {
        ++*at;
        f->like = (int8_t)find_input(row, s, take_name(at));
        return;
    }
    do {
        *at += **at == '|';
        const struct span word = take_name(at);
        f->statistic |= same_span(word, (struct span){"stat", 4});
        f->step |= same_span(word, (struct span){"step", 4});
        f->attribute |= same_span(word, (struct span){"dtype", 5});
        for (enum dtype t = DT_NONE + 1; t < DT_COUNT; t++)
            if (same_span(word, (struct span){dtype_name(t), (int)strlen(dtype_name(t))}) ||
                (same_span(word, (struct span){"float", 5}) && dtype_is_float(t)))
                f->dtypes |= 1u << t;
    } while (**at == '|');
    CHECK(f->statistic || f->step || f->attribute || f->dtypes, "%s: a dtype of its signature", row->name);
}

/* Returns the index of a dimension's name, which is added if it is new. */
static int dimension(enum op op, struct signature *s, struct span name)
{
    int i = 0;
    while (i < s->names && !same_span(s->name[i], name)) i++;
    CHECK(i < NAMES_MOST, "%s: more than %d names", op_table[op].name, NAMES_MOST);
    if (i == s->names) s->name[s->names++] = name;
    return i;
}

/* Reads "[B,N,2*C]" or "[...,C]". */
static void read_shape(enum op op, struct signature *s, struct form *f, const char **at)
{
    f->shaped = true;
    for (++*at; **at != ']'; *at += **at == ',') {
        if (!strncmp(*at, "...", 3)) {
            f->rest = f->rank;
            *at += 3;
            continue;
        }
        const struct span text = {*at, (int)strcspn(*at, ",]")};
        const bool name = isalpha((unsigned char)*text.at) && take_name(at).n == text.n &&
                          !attr_has(op, text.at, (size_t)text.n);
        CHECK(text.n && f->rank < MAX_RANK, "%s: a shape of its signature", op_table[op].name);
        f->dim[f->rank].name = name ? (int8_t)dimension(op, s, text) : -1;
        f->dim[f->rank++].text = text;
        *at = text.at + text.n;
    }
    ++*at;
}

static void read_signature(enum op op)
{
    struct op_row *row = &op_table[op];
    struct signature *s = &signatures[op];
    const char *at = row->signature;
    bool outputs = false;
    s->conditions = "";
    while (*at) {
        at += strspn(at, " ");
        if (*at == ';') s->conditions = at + 1;
        if (*at == ';' || !*at) break;
        if (!strncmp(at, "->", 2)) {
            s->inputs = (struct span){row->signature, (int)(at - row->signature)};
            outputs = true, at += 2;
            continue;
        }
        CHECK(outputs ? row->outs < MAX_OUT : row->max_in < MAX_IN, "%s: too many tensors", row->name);
        struct form *f = outputs ? &s->out[row->outs++] : &s->in[row->max_in++];
        f->rest = NO_REST;
        f->like = -1;
        f->name = take_name(&at);
        if (*at == '?') f->optional = true, at++;
        else if (!outputs) row->min_in = row->max_in;
        if (*at == ':') at++, read_dtype(row, s, f, &at);
        if (*at == '[') read_shape(op, s, f, &at);
        if (*at == '!') f->dense = true, at++;
        CHECK(f->name.n && (!*at || *at == ' ' || *at == ';'), "%s: its signature from \"%s\" on", row->name, at);
    }
}

__attribute__((constructor)) static void read_table(void)
{
    attr_table_read();
    for (enum op op = OP_NONE + 1; op < OP_COUNT; op++) read_signature(op);
}

/* --- dimensions by name -------------------------------------------------------------------- */

enum { REST = NAMES_MOST }; /* dimension REST + k is the k-th of "..." */

static const struct form *form_of(enum op op, int slot)
{
    return slot < MAX_IN ? &signatures[op].in[slot] : &signatures[op].out[slot - MAX_IN];
}

int op_dimension(enum op op, int slot, int rank, int axis)
{
    const struct form *f = form_of(op, slot);
    const int rests = rank - f->rank;
    if (!f->shaped) return -1;
    if (f->rest == NO_REST || axis < f->rest) return f->dim[axis].name;
    return axis < f->rest + rests ? REST + axis - f->rest : f->dim[axis - rests].name;
}

int op_axis(enum op op, int slot, int rank, int dimension)
{
    for (int axis = 0; axis < rank; axis++)
        if (op_dimension(op, slot, rank, axis) == dimension) return axis;
    return -1;
}

bool op_dimension_is(enum op op, int dimension, const char *name, size_t n)
{
    if (dimension >= REST) return n == 3 && !strncmp(name, "...", 3);
    return dimension >= 0 && same_span(signatures[op].name[dimension], (struct span){name, (int)n});
}

/* --- expressions --------------------------------------------------------------------------- */

/* What the inputs of a node bind. */
struct bound_names {
    const struct infer *f;
    const struct signature *s;
    int64_t value[NAMES_MOST]; /* 0: not bound */
    int64_t rest[MAX_RANK];    /* "..." */
    int rests;                 /* its dimensions; NO_REST: not bound */
};

/* Returns the value of a dimension, of an attribute, or of "#x", the elements of an input; 0: it is
 * not bound. */
static double value_of(const struct bound_names *b, struct span name)
{
    const struct op_row *row = &op_table[b->f->op];
    double value;
    if (*name.at == '#')
        return (double)tensor_elements(b->f->in[find_input(row, b->s, (struct span){name.at + 1, name.n - 1})]);
    if (attr_value(b->f->attr, b->f->op, name.at, (size_t)name.n, &value)) return value;
    for (int i = 0; i < b->s->names; i++)
        if (same_span(b->s->name[i], name)) return (double)b->value[i];
    check_failed(__FILE__, __LINE__, "a signature names a dimension", "%s: no dimension or attribute %.*s", row->name,
                 name.n, name.at);
}

static double sum(const struct bound_names *b, const char **at);

static double factor(const struct bound_names *b, const char **at)
{
    if (**at == '(') {
        ++*at;
        const double value = sum(b, at);
        CHECK(**at == ')', "%s: an expression of its signature", op_table[b->f->op].name);
        ++*at;
        return value;
    }
    if (isdigit((unsigned char)**at)) return strtod(*at, (char **)at);
    const char *from = *at;
    *at += **at == '#';
    take_name(at);
    return value_of(b, (struct span){from, (int)(*at - from)});
}

/* Evaluates products, quotients, rounded down, and remainders. A division by 0 gives 0. */
static double product(const struct bound_names *b, const char **at)
{
    double value = factor(b, at);
    while (**at && strchr("*/%", **at)) {
        const char op = *(*at)++;
        const double by = factor(b, at);
        value = op == '*' ? value * by : by == 0 ? 0 : op == '/' ? floor(value / by) : fmod(value, by);
    }
    return value;
}

static double sum(const struct bound_names *b, const char **at)
{
    double value = product(b, at);
    while (**at == '+' || **at == '-') {
        const double sign = *(*at)++ == '+' ? 1 : -1;
        value += sign * product(b, at);
    }
    return value;
}

static int64_t size_of(const struct bound_names *b, const struct form *f, int i)
{
    const char *at = f->dim[i].text.at;
    return f->dim[i].name >= 0 ? b->value[f->dim[i].name] : (int64_t)sum(b, &at);
}

/* --- inputs ---------------------------------------------------------------------------------- */

static bool is_step(const struct tensor *x)
{
    return x->dtype == DT_U8 && x->rank == 1 && x->dim[0] == (int64_t)sizeof(struct step_block);
}

static bool binds_shape(struct bound_names *b, const struct form *f, const struct tensor *t)
{
    const int rests = t->rank - f->rank;
    if (f->rest == NO_REST ? rests : rests < 0 || (b->rests != NO_REST && b->rests != rests)) return false;
    for (int i = 0, d = 0; d < t->rank; d++) {
        if (f->rest != NO_REST && d >= f->rest && d < f->rest + rests) {
            int64_t *rest = &b->rest[d - f->rest];
            if (b->rests == NO_REST) *rest = t->dim[d];
            if (*rest != t->dim[d]) return false;
            continue;
        }
        int64_t *bound = f->dim[i].name >= 0 ? &b->value[f->dim[i].name] : NULL;
        if (bound && !*bound) *bound = t->dim[d];
        if (size_of(b, f, i++) != t->dim[d]) return false;
    }
    if (f->rest != NO_REST) b->rests = rests;
    return true;
}

static bool binds(struct bound_names *b, const struct form *f, const struct tensor *t)
{
    if (f->like >= 0 && t->dtype != b->f->in[f->like]->dtype) return false;
    if (f->dtypes && !(f->dtypes >> t->dtype & 1)) return false;
    return (!f->step || is_step(t)) && (!f->dense || tensor_is_dense(t)) && (!f->shaped || binds_shape(b, f, t));
}

/* Binds the first n inputs. Returns the index of one that does not fit, which may have bound names;
 * n: all fit. */
static int bind_inputs(struct bound_names *b, int n)
{
    int i = 0;
    while (i < n && (!b->f->in[i] || binds(b, &b->s->in[i], b->f->in[i]))) i++;
    return i;
}

static void say(struct infer *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct infer *f, const char *format, ...)
{
    const size_t n = strlen(f->error);
    va_list ap;
    va_start(ap, format);
    vsnprintf(f->error + n, sizeof f->error - n, format, ap);
    va_end(ap);
}

/* Writes what an input must be: "index must be i32 [2,M]". */
static void refuse(struct infer *f, const struct bound_names *b, const struct form *x)
{
    const char *between = "";
    say(f, "%.*s must be ", x->name.n, x->name.at);
    if (x->step) say(f, "the step block");
    if (x->dense) say(f, "dense ");
    for (enum dtype t = 0; t < DT_COUNT; t++)
        if (x->dtypes >> t & 1) say(f, "%s%s", between, dtype_name(t)), between = " or ";
    if (x->dtypes) say(f, " ");
    if (x->shaped) say(f, "[");
    between = "";
    for (int i = 0; i <= x->rank && x->shaped; i++) {
        if (i == x->rest && b->rests == NO_REST) say(f, "%s...", between), between = ",";
        for (int k = 0; k < b->rests && i == x->rest; k++, between = ",")
            say(f, "%s%lld", between, (long long)b->rest[k]);
        if (i == x->rank) break;
        const int64_t size = size_of(b, x, i);
        if (size > 0) say(f, "%s%lld", between, (long long)size);
        else say(f, "%s%.*s", between, x->dim[i].text.n, x->dim[i].text.at);
        between = ",";
    }
    if (x->shaped) say(f, "]");
    if (x->like >= 0) say(f, " in the dtype of %.*s", b->s->in[x->like].name.n, b->s->in[x->like].name.at);
}

/* Tests a condition and moves behind it: "k<=N". */
static bool holds(const struct bound_names *b, const char **at)
{
    const double left = sum(b, at);
    const char op = *(*at)++;
    const bool equal = **at == '=';
    *at += equal;
    const double right = sum(b, at);
    return op == '=' ? left == right : (op == '<' ? left < right : left > right) || (equal && left == right);
}

/* Writes a condition that does not hold, after the values of its names: "k is 5, N is 3, expected
 * k<=N for x[...,N]". */
static void refuse_condition(struct infer *f, const struct bound_names *b, const char *from, const char *to)
{
    const char *between = "";
    bool dimensions = false;
    for (const char *at = from; at < to;) {
        struct span name = {at, 1};
        while (in_name(name.at[name.n])) name.n++;
        at += name.n;
        if (!isalpha((unsigned char)*name.at) && *name.at != '#') continue;
        say(f, "%s%.*s is %.9g", between, name.n, name.at, value_of(b, name));
        dimensions |= !attr_has(f->op, name.at, (size_t)name.n);
        between = ", ";
    }
    say(f, ", expected %.*s", (int)(to - from), from);
    if (dimensions) say(f, " for %.*s", b->s->inputs.n - 1, b->s->inputs.at);
}

/* --- outputs ---------------------------------------------------------------------------------- */

static enum dtype output_dtype(const struct infer *f, const struct form *x)
{
    double value = DT_NONE;
    int real = 0; /* the first floating-point input */
    while (real < MAX_IN - 1 && !(f->in[real] && dtype_is_float(f->in[real]->dtype))) real++;
    if (x->like >= 0) return f->in[x->like] ? f->in[x->like]->dtype : DT_NONE;
    if (x->statistic) return f->in[real] ? statistic(f->in[real]) : DT_F32;
    if (x->attribute && attr_value(f->attr, f->op, "dtype", 5, &value)) return value ? (enum dtype)value : DT_F32;
    for (enum dtype t = DT_NONE + 1; t < DT_COUNT; t++)
        if (x->dtypes >> t & 1) return t;
    return f->in[0] ? f->in[0]->dtype : DT_NONE;
}

static void set_output(struct tensor *out, const struct bound_names *b, const struct form *x)
{
    out->dtype = output_dtype(b->f, x);
    if (!out->dtype) return; /* like an optional input that is not given */
    for (int i = 0; i <= x->rank; i++) {
        for (int k = 0; k < b->rests && i == x->rest; k++) out->dim[out->rank++] = b->rest[k];
        if (i < x->rank) out->dim[out->rank++] = size_of(b, x, i);
    }
}

/* Reports whether `acc` can accumulate `out`: it is dense, and has as many elements as the result,
 * in any shape. */
static bool takes_sum(const struct tensor *acc, const struct tensor *out)
{
    return acc->dtype == out->dtype && tensor_elements(acc) == tensor_elements(out) && tensor_is_dense(acc);
}

void op_infer(struct infer *f)
{
    const struct op_row *row = &op_table[f->op];
    const struct signature *s = &signatures[f->op];
    const struct bound_names none = {.f = f, .s = s, .rests = NO_REST};
    struct bound_names b = none;
    const int refused = bind_inputs(&b, row->max_in);
    if (refused < row->max_in) {
        b = none;
        bind_inputs(&b, refused);
        refuse(f, &b, &s->in[refused]);
        return;
    }
    for (const char *at = s->conditions + strspn(s->conditions, " "); *at; at += strspn(at, " ")) {
        const char *from = at;
        if (holds(&b, &at)) continue;
        refuse_condition(f, &b, from, at);
        return;
    }
    for (int o = 0; o < row->outs; o++)
        if (s->out[o].shaped) set_output(&f->out[o], &b, &s->out[o]);
    if (row->rule) row->rule(f);
    const struct tensor *acc = row->flags & OPF_ACCUM ? f->in[row->max_in - 1] : NULL;
    if (acc && !f->error[0] && !takes_sum(acc, &f->out[0])) say(f, "the accumulator does not fit the result");
}
