/*
 * compare.c: compares the output of `plimsoll step` with the results of the reference framework.
 *
 *   compare EXPECT.safetensors GOT.safetensors [--logits 1e-4] [--grad 1e-3]
 *           [--rounding FILE TYPE] [--outputs] [--gradients] [--verbose]
 *
 * Every tensor of EXPECT has to be in GOT with the same shape. The measure is the relative L2 error
 * |got - expect| / |expect| of a whole tensor, summed in double. Names that start with "grad." are
 * held to --grad, all others to --logits.
 *
 * A gradient far below the others is rounding noise in both files; its error relative to itself
 * would compare noise with noise. So below TINY of the norm of all expected gradients together, the
 * error counts relative to that total.
 *
 * --rounding gives each tensor its own bound. FILE has a line per tensor: the standard deviation of
 * its rounding error in bf16 and in f16, and the distance of the reference's f32 from its f64
 * (tests/golden/README.md). TYPE is the dtype that GOT was computed in:
 *
 *     bf16, f16   the class's bound + DEVIATIONS * deviation
 *     f32         DISTANCES * f32 distance + FLOOR * eps(f32), and at most the class's bound
 *
 * The f32 distance is one random draw: for a tensor of few elements it may be near 0 by chance. So
 * it counts as at least the f32 deviation that follows from the other two. Deviations grow with the
 * unit roundoff, 2^-8, 2^-11 and 2^-24, as long as rounding is small relative to the values. The
 * smaller of the two estimates is used, because a deviation near 1 is no longer proportional. FLOOR
 * is for results of a few roundings, each at most eps / 2. A tensor that FILE does not name fails.
 *
 * --outputs leaves the gradients out: a merged model has other parameters than one with an adapter.
 * --gradients takes all tensors for gradients: weights after a step of SGD that is so long that
 * nothing else is left in them.
 *
 * GOT may hold further outputs, but no further gradient: a tied weight has one gradient. A NaN in
 * GOT fails, because no comparison with it is true. A NaN in EXPECT is not compared: what stands
 * there, such as the logits of padding, means nothing.
 *
 * The last line names the worst tensor of each class, or counts the failures. Exit code 0 when all
 * agree, 1 when not, 2 when the arguments or a file are bad.
 */
#include <inttypes.h>
#include <math.h>

#include "io/safetensors.h"

static const double TINY = 1e-7, DEVIATIONS = 4, DISTANCES = 20, FLOOR = 4;

enum { CLASS_OUTPUT, CLASS_GRAD, CLASS_COUNT };
static const char *const class_names[CLASS_COUNT] = {"output", "gradient"};

struct options {
    const char *expect, *got;
    double bound[CLASS_COUNT];
    const char *rounding, *type; /* NULL: the bounds of the classes */
    bool outputs, gradients, verbose;
};

/* A line of the --rounding file: two deviations and the f32 distance. */
struct rounding_line {
    char name[160];
    double bf16, f16, f32;
};

/* The worst error of a class so far. It starts below every error, so that the first tensor sets it
 * even where the error is 0; a NaN is the worst error. */
struct worst {
    double error;
    const char *name;
};

struct comparison {
    const struct options *options;
    struct st_file expect, got;
    double total;                       /* L2 norm of all expected gradients */
    struct worst worst[CLASS_COUNT];
    VEC(struct rounding_line) roundings;
    int compared, failed, loose; /* loose: allowed more than the tensor's own norm */
};

static int class_of(const struct comparison *c, const char *name)
{
    return c->options->gradients || strncmp(name, "grad.", 5) == 0 ? CLASS_GRAD : CLASS_OUTPUT;
}

/* Sets what EXPECT leaves open to 0 in both tensors. */
static void skip_open(double *expect, double *got, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(expect[i])) expect[i] = got[i] = 0;
}

/* A tensor's elements as doubles, to be freed by the caller; NULL with `e` filled. */
static double *tensor_values(const struct st_file *f, const struct st_entry *t, struct error *e)
{
    if (t->dtype == DT_NONE) {
        error_set(e, PL_USAGE, "%s: tensor %s has dtype %s, which is not one of ours", f->path,
                  t->name, t->dtype_name);
        return NULL;
    }
    void *raw = mem_alloc(t->bytes ? t->bytes : 1);
    if (st_read(f, t, 0, t->bytes, raw, e) != PL_OK) {
        mem_free(raw);
        return NULL;
    }
    double *x = mem_alloc(((size_t)t->elements + 1) * sizeof *x);
    for (int64_t i = 0; i < t->elements; i++) x[i] = dtype_load(raw, t->dtype, i);
    mem_free(raw);
    return x;
}

static double norm_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* "[2, 3]" in the caller's buffer; a long shape is truncated. */
static char *shape_print(const struct st_entry *t, char out[96])
{
    size_t n = (size_t)snprintf(out, 96, "[");
    for (int i = 0; i < t->rank && n < 70; i++)
        n += (size_t)snprintf(out + n, 96 - n, "%s%" PRId64, i ? ", " : "", t->dims[i]);
    snprintf(out + n, 96 - n, "]");
    return out;
}

/* A single number may be a scalar or have extents of 1: files contain the loss in both shapes. */
static bool shape_agrees(const struct st_entry *a, const struct st_entry *b)
{
    if (a->elements == 1 && b->elements == 1) return true;
    return a->rank == b->rank &&
           memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) == 0;
}

/* Norm of all expected gradients, the reference for tiny ones. */
static int total_norm(struct comparison *c, struct error *e)
{
    double sum = 0;
    for (uint32_t i = 0; i < c->expect.n_entries; i++) {
        const struct st_entry *t = &c->expect.entries[i];
        if (class_of(c, t->name) != CLASS_GRAD) continue;
        double *x = tensor_values(&c->expect, t, e);
        if (!x) return e->code;
        double norm = norm_of(x, t->elements);
        sum += norm * norm;
        mem_free(x);
    }
    c->total = sqrt(sum);
    return PL_OK;
}

/* The error of one tensor and its expected norm, from the values of both. */
static double relative_error(const struct comparison *c, int class, const double *expect,
                             const double *got, int64_t n, double *norm)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (got[i] - expect[i]) * (got[i] - expect[i]);
    *norm = norm_of(expect, n);
    double scale = *norm;
    if (class == CLASS_GRAD && *norm < TINY * c->total) scale = c->total;
    return scale > 0 ? sqrt(sum) / scale : sqrt(sum);
}

/* A tensor's own bound; NaN, below which no error is, for a tensor that the file does not name. */
static double bound_of(const struct comparison *c, int class, const char *name)
{
    const struct options *o = c->options;
    const double bound = o->bound[class];
    const struct rounding_line *s = NULL;
    if (!o->rounding) return bound;
    for (uint32_t i = 0; i < c->roundings.n && !s; i++)
        if (!strcmp(c->roundings.at[i].name, name)) s = &c->roundings.at[i];
    if (!s) return NAN;
    if (!strcmp(o->type, "bf16")) return bound + DEVIATIONS * s->bf16;
    if (!strcmp(o->type, "f16")) return bound + DEVIATIONS * s->f16;
    const double distance = fmax(s->f32, fmin(s->bf16 * 0x1p-16, s->f16 * 0x1p-13));
    return fmin(bound, DISTANCES * distance + FLOOR * dtype_table[DT_F32].epsilon);
}

/* Records one error: the table's row, the worst of its class, a failure. */
static void record(struct comparison *c, int class, const char *name, double error, double norm)
{
    double bound = bound_of(c, class, name);
    c->loose += bound >= 1;
    bool ok = error <= bound; /* false for NaN */
    struct worst *w = &c->worst[class];
    if (!isnan(w->error) && !(error <= w->error)) *w = (struct worst){error, name};
    c->compared++;
    c->failed += !ok;
    if (c->options->verbose || !ok)
        printf("%-4s %-56s error %8.2e  bound %7.1e  norm %9.3e\n", ok ? "ok" : "FAIL", name,
               error, bound, norm);
}

/* One tensor of EXPECT against GOT. A disagreement is counted, a bad file is an error. */
static int compare_tensor(struct comparison *c, const struct st_entry *a, struct error *e)
{
    const struct st_entry *b = st_find(&c->got, a->name);
    char want[96], found[96];
    if (!b) {
        c->failed++;
        printf("FAIL %s: missing, expected %s\n", a->name, shape_print(a, want));
        return PL_OK;
    }
    if (!shape_agrees(a, b)) {
        c->failed++;
        printf("FAIL %s: shape is %s, expected %s\n", a->name, shape_print(b, found),
               shape_print(a, want));
        return PL_OK;
    }
    int class = class_of(c, a->name);
    double norm = 0, *x = tensor_values(&c->expect, a, e), *y = NULL;
    if (x) y = tensor_values(&c->got, b, e);
    if (y) skip_open(x, y, a->elements);
    if (y) record(c, class, a->name, relative_error(c, class, x, y, a->elements, &norm), norm);
    mem_free(x);
    mem_free(y);
    return y ? PL_OK : e->code;
}

/* Counts gradients that EXPECT does not have: a tied weight written twice, a frozen one. */
static void find_extra(struct comparison *c)
{
    for (uint32_t i = 0; i < c->got.n_entries; i++) {
        const char *name = c->got.entries[i].name;
        if (class_of(c, name) != CLASS_GRAD || st_find(&c->expect, name)) continue;
        c->failed++;
        printf("FAIL %s: a gradient that is not expected\n", name);
    }
}

static int compare_files(struct comparison *c, struct error *e)
{
    int code = total_norm(c, e);
    for (uint32_t i = 0; code == PL_OK && i < c->expect.n_entries; i++)
        if (!c->options->outputs || class_of(c, c->expect.entries[i].name) == CLASS_OUTPUT)
            code = compare_tensor(c, &c->expect.entries[i], e);
    if (code != PL_OK) return code;
    if (!c->options->outputs) find_extra(c);
    if (!c->compared && !c->failed)
        return error_set(e, PL_USAGE, "%s: no tensors, so nothing to compare", c->expect.path);
    return PL_OK;
}

/* Prints one line, also with failures, because a test driver shows the last line only. */
static void print_summary(const struct comparison *c)
{
    if (c->failed)
        printf("%d failures, %d tensors compared", c->failed, c->compared);
    else
        printf("%d tensors", c->compared);
    for (int k = 0; k < CLASS_COUNT; k++)
        if (c->worst[k].name)
            printf(", worst %s %.1e (%s)", class_names[k], c->worst[k].error, c->worst[k].name);
    if (c->loose) printf(", %d lost to rounding", c->loose);
    printf("\n");
}

static bool parse_bound(const char *text, double *bound)
{
    char *end;
    if (!text) return false;
    *bound = strtod(text, &end);
    return end != text && !*end && *bound >= 0;
}

static int parse_arguments(int argc, char **argv, struct options *o, struct error *e)
{
    *o = (struct options){.bound = {1e-4, 1e-3}};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        int class = !strcmp(a, "--logits") ? CLASS_OUTPUT : CLASS_GRAD;
        if (!strcmp(a, "--verbose")) {
            o->verbose = true;
        } else if (!strcmp(a, "--outputs")) {
            o->outputs = true;
        } else if (!strcmp(a, "--gradients")) {
            o->gradients = true;
        } else if (!strcmp(a, "--rounding")) {
            if (i + 2 >= argc) return error_set(e, PL_USAGE, "--rounding takes a file and f32, bf16 or f16");
            o->rounding = argv[++i];
            o->type = argv[++i];
        } else if (!strcmp(a, "--logits") || !strcmp(a, "--grad")) {
            const char *value = i + 1 < argc ? argv[++i] : NULL;
            if (!parse_bound(value, &o->bound[class]))
                return error_set(e, PL_USAGE, "%s takes a bound such as 1e-3, found '%s'", a,
                                 value ? value : "nothing");
        } else if (a[0] == '-') {
            return error_set(e, PL_USAGE, "unknown option '%s'", a);
        } else if (!o->expect) {
            o->expect = a;
        } else if (!o->got) {
            o->got = a;
        } else {
            return error_set(e, PL_USAGE, "two files are compared, '%s' is a third", a);
        }
    }
    if (o->got) return PL_OK;
    return error_set(e, PL_USAGE,
                     "usage: compare EXPECT.safetensors GOT.safetensors "
                     "[--logits BOUND] [--grad BOUND] [--rounding FILE TYPE] [--outputs] [--gradients] [--verbose]");
}

/* Reads lines of "NAME bf16 f16 f32"; any other line is an error. */
static int read_roundings(struct comparison *c, struct error *e)
{
    const struct options *o = c->options;
    char line[256];
    if (!o->rounding) return PL_OK;
    if (strcmp(o->type, "f32") && strcmp(o->type, "bf16") && strcmp(o->type, "f16"))
        return error_set(e, PL_USAGE, "--rounding knows f32, bf16 and f16, found '%s'", o->type);
    FILE *f = fopen(o->rounding, "r");
    if (!f) return error_set(e, PL_USAGE, "%s: cannot be opened; tests/golden/make_rounding.py makes it", o->rounding);
    struct rounding_line s;
    int rc = PL_OK;
    while (!rc && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%159s %lf %lf %lf", s.name, &s.bf16, &s.f16, &s.f32) == 4) vec_push(&c->roundings, s);
        else rc = error_set(e, PL_USAGE, "%s: line %u is not NAME bf16 f16 f32", o->rounding, c->roundings.n + 1);
    }
    fclose(f);
    return rc;
}

/* Opens both files, compares, closes. The worst names point into the files, so the summary is
 * printed before they are closed. */
static int run(struct comparison *c, struct error *e)
{
    int code = read_roundings(c, e);
    if (code == PL_OK) code = st_open(c->options->expect, &c->expect, e);
    if (code != PL_OK) return code;
    code = st_open(c->options->got, &c->got, e);
    if (code == PL_OK) {
        code = compare_files(c, e);
        if (code == PL_OK) print_summary(c);
        st_close(&c->got);
    }
    st_close(&c->expect);
    return code;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct options options;
    struct comparison c = {.options = &options, .worst = {{-1, NULL}, {-1, NULL}}};
    if (parse_arguments(argc, argv, &options, &e) != PL_OK || run(&c, &e) != PL_OK) {
        fprintf(stderr, "compare: %s\n", e.text);
        return 2; /* not 1: the files were not compared */
    }
    vec_free(&c.roundings);
    return c.failed ? 1 : 0;
}
