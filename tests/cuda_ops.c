/*
 * cuda_ops.c: compares every row of ops.def on the CUDA device with the reference: the cases of
 * opcases.h, forward and through their gradients, in f32, bf16 and f16.
 *
 *     cuda_ops [--device cpu] [--like 86|75] [--jobs N] [--cover [--list] | --cases FILE] [--bench]
 *              [--time [--grow N] [--shape N,...]] [OP...]
 *
 * The oracle is the reference in f64, with the tolerances of test_ops.c. A case runs twice from the
 * same persistent bytes, with NaN in all transient ones, and must give the same bits. Arena bytes
 * that belong to no storage and no workspace, and the bytes behind an arena, are guards
 * (guarded.h). A case with a node that no kernel accepts is counted, and the ops are listed.
 * Without a GPU all cases are planned and counted as skipped. The program prints a line per
 * failure, at most SHOWN per row, then a summary; a failure exits with 1.
 *
 * Rows with kernels for newer GPUs run once more with each older set of kernels that they have.
 *
 * Each row runs in a process of its own, so a kernel that breaks the GPU's context breaks one row.
 * --jobs 0 runs all rows in one process, which is faster under a memory checker.
 *
 * ATTENTION and its gradient have two more checks (cuda_ranges.inc): causal ranges give the bits of
 * the causal kernel, and a NaN in one document changes no bit of another.
 *
 * --cover omits redundant cases. It keeps, small shapes first, those that run a kernel in a dtype,
 * a form and a width of access (for attention also: a head dimension) that no earlier case ran.
 * --list only prints the remaining cases. The selection takes seconds, so concurrent programs get
 * lines of the list in files of their own (--cases).
 *
 * --bench uses the shape that a case names for timing, which has many thread blocks. There the
 * oracle is the CPU in f32, and twice the difference is allowed.
 *
 * --time uses the same shape (its first dimension times N with --grow), and times launches of the
 * row's own nodes, REPEATS per recorded tape.
 *
 * cuda_ops --real [OP...] times memory-bound kernels at the shapes of training (cuda_real.inc).
 */

/* Replaces the cmocka macros that harness.h uses, so that a machine without cmocka can build
 * this. */
#define HARNESS_ALONE
#define fail_msg(...) (printf(__VA_ARGS__), printf("\n"), fflush(stdout), exit(1))
#define assert_true(x) ((x) ? (void)0 : fail_msg("%s does not hold", #x))

#include "opcases.h"
#include "guarded.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include "cuda/cuda.h"
#include "passes/passes.h"

enum { SHOWN = 4, REPEATS = 20, TYPES = 3 };

static const enum dtype types[TYPES] = {DT_F32, DT_BF16, DT_F16};
static enum device_kind subject = DEVICE_CUDA;
static bool at_bench; /* --bench */
static bool covering; /* --cover */
/* `like`: the compute capability whose kernels run; 0: the GPU's own. `only` (--like): no other;
 * below 8.0 not in bf16 */
static int like, only;
static const int older[] = {89, 86, 75};
static bool can_run; /* a device is present; otherwise everything is planned only */
static int own_capability; /* of the GPU; 0: there is none, and the profile's counts */

/* The result of one row, written by its process and read by the main process. */
struct result {
    int passed, failed, skipped, lacking;
    bool lacks[OP_COUNT], has[OP_COUNT]; /* ops of nodes that no kernel accepts; that a kernel accepts */
    bool used[CUDA_ROWS][FORMS_MOST];    /* kernels of kernels.def, by form, that its cases use, on some GPU */
    bool broken;                         /* the device no longer responds */
    bool done;
};
static struct result *results;

/* --- selection of cases ---------------------------------------------------------------------- */

enum { SLOTS = SMALL + LARGE + GPU }; /* shapes of a row */

static const int64_t *shape_at(const struct row *row, int slot)
{
    if (slot < SMALL) return row->c->small[slot];
    return slot < SMALL + LARGE ? row->c->large[slot - SMALL] : row->c->gpu[slot - SMALL - LARGE];
}

/* The cases that --cover keeps; without it all. */
static bool kept[OP_COUNT][SLOTS][2][TYPES];
struct key {
    const struct kernel *kernel;
    int type;
    int64_t heads;
    bool positions;    /* ROPE has them: another instance of its template */
    int form, access;  /* access: bytes that a thread moves at a time */
};
static VEC(struct key) covered;

static bool is_new(const struct key *k)
{
    for (uint32_t i = 0; i < covered.n; i++)
        if (covered.at[i].kernel == k->kernel && covered.at[i].form == k->form && covered.at[i].type == k->type &&
            covered.at[i].heads == k->heads && covered.at[i].positions == k->positions &&
            covered.at[i].access == k->access)
            return false;
    return true;
}

/* Gradients of slices in one tensor, and outputs that overwrite inputs: kernels have to write such
 * layouts. */
static void apply_layout_passes(struct graph *g)
{
    pass_join(g, NULL);
    pass_concat_in_place(g, NULL);
    pass_reuse(g, NULL);
}

/* The tensor core kernels are compiled per head dimension, and those of few tokens differ by it; of
 * the other attention kernels the form says which it is. */
static int64_t head_dim_class(const struct kernel *k, const struct tensor *q)
{
    return strstr(k->name, "attention") && q->rank == 4 && (k->capability || strstr(k->name, "few")) ? q->dim[3] : 0;
}

/* The profile of this device, or of an older GPU: its compute capability decides which kernels
 * run. */
static void profile_of(struct profile *p)
{
    profile_default(p, subject, 2);
    if (subject == DEVICE_CUDA && own_capability) p->capability = own_capability;
    if (subject == DEVICE_CUDA && like) p->capability = like;
}

static bool has_positions(enum op op, const struct query *q)
{
    const int last = op_table[op].max_in - 1;
    return (op == OP_ROPE || op == OP_RMSNORM_ROPE || op == OP_RMSNORM_ROPE_BWD) && q->nin > last && q->in[last];
}

static void cover(const struct graph *g, int type)
{
    struct profile profile;
    profile_of(&profile);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        struct query q;
        if (op_table[x->op].flags & OPF_VIEW) continue;
        query_fill(&q, g, x, &profile);
        const struct kernel *found = kernel_find(DEVICE_CUDA, x->op, &q);
        if (!found) continue;
        const struct key key = {found,
                                type,
                                head_dim_class(found, q.in[0]),
                                has_positions(x->op, &q),
                                kernel_form(found, &q),
                                found->access ? found->access(&q) : 0};
        if (is_new(&key)) vec_push(&covered, key);
    }
}

/* Whether the case runs a GPU kernel, in this dtype, that no earlier case ran: its own or an older
 * GPU's. */
static bool covers_new_kernel(const struct row *row, int slot, bool forward, int type)
{
    struct scene s = scene_of(row, shape_at(row, slot), types[type], forward);
    const uint32_t before = covered.n;
    if (!forward) apply_layout_passes(&s.g);
    for (size_t i = 0; i < COUNT(older); i++) like = older[i], cover(&s.g, type);
    like = 0;
    cover(&s.g, type);
    graph_free(&s.g);
    return covered.n > before;
}

/* Whether every kernel of kernels.def was run, in every form; names those that were not. */
static bool all_used(bool used[CUDA_ROWS][FORMS_MOST])
{
    bool all = true;
    for (int f = 0; cuda_kernels[f]; f++)
        for (const struct kernel *k = cuda_kernels[f]; k->op != OP_NONE; k++)
            for (int form = 0; form == 0 || (k->forms && k->forms->names[form]); form++) {
                if (used[k->row][form]) continue;
                printf("FAILED no case runs the kernel %s%s%s\n", k->name, k->forms ? " in the form " : "",
                       kernel_form_name(k, form));
                all = false;
            }
    return all;
}

/* Whether the kept cases run every kernel of kernels.def in every form, on some GPU, and one with a
 * column `access` at 16 bytes a thread; names those that they lack. */
static bool covers_all_kernels(void)
{
    bool used[CUDA_ROWS][FORMS_MOST] = {0}, widths[CUDA_ROWS] = {0}, wide[CUDA_ROWS] = {0};
    for (uint32_t i = 0; i < covered.n; i++) {
        const struct key *k = &covered.at[i];
        used[k->kernel->row][k->form] = true;
        widths[k->kernel->row] |= k->access > 0;
        wide[k->kernel->row] |= k->access == 16;
    }
    bool all = all_used(used);
    for (uint32_t i = 0; i < covered.n; i++) {
        const struct kernel *k = covered.at[i].kernel;
        if (!widths[k->row] || wide[k->row]) continue;
        printf("FAILED no case runs the kernel %s at 16 bytes a thread\n", k->name);
        wide[k->row] = true;
        all = false;
    }
    return all;
}

/* All small shapes come before the first large one. False: the cases lack a kernel. */
static bool choose_cases(void)
{
    for (int slot = 0; slot < SLOTS; slot++)
        for (size_t i = 1; i < COUNT(rows); i++)
            for (int forward = 1; forward >= 0; forward--)
                for (int type = 0; type < TYPES; type++)
                    if (shape_at(&rows[i], slot)[0] && (forward || !rows[i].c->no_gradient))
                        kept[i][slot][forward][type] = covers_new_kernel(&rows[i], slot, forward, type);
    const bool all = subject != DEVICE_CUDA || covers_all_kernels();
    vec_free(&covered);
    return all;
}

/* The format of --list: case ROW SHAPE FORWARD TYPES, with a 0 or 1 for each type. */
static void print_cases(size_t row)
{
    for (int slot = 0; slot < SLOTS; slot++)
        for (int forward = 1; forward >= 0; forward--) {
            const bool *k = kept[row][slot][forward];
            if (k[0] || k[1] || k[2])
                printf("case %s %d %d %d%d%d\n", op_table[row].name, slot, forward, k[0], k[1], k[2]);
        }
}

static size_t row_named(const char *name)
{
    size_t i = 1;
    while (i < COUNT(rows) && strcasecmp(op_table[i].name, name)) i++;
    return i;
}

static void read_cases(const char *path)
{
    char line[200], name[64], types_of[4];
    unsigned slot, forward;
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("cannot read %s", path);
    while (fgets(line, sizeof line, f)) {
        const bool whole = sscanf(line, "case %63s %u %u %3s", name, &slot, &forward, types_of) == 4 && slot < SLOTS &&
                           forward < 2 && strlen(types_of) == TYPES;
        const size_t row = whole ? row_named(name) : COUNT(rows);
        if (row == COUNT(rows) || !shape_at(&rows[row], (int)slot)[0]) fail_msg("%s: no case: %s", path, line);
        for (int i = 0; i < TYPES; i++) kept[row][slot][forward][i] = types_of[i] == '1';
    }
    fclose(f);
}

static bool row_kept(size_t row)
{
    bool any = !covering;
    for (int slot = 0; slot < SLOTS; slot++)
        for (int k = 0; k < 2 * TYPES; k++) any |= kept[row][slot][k / TYPES][k % TYPES];
    return any;
}

/* --- one case ------------------------------------------------------------------------------ */

struct trial {
    const struct row *row;
    const int64_t *n;
    bool forward;
    enum dtype f;
    struct result *result;
};

__attribute__((format(printf, 2, 3))) static bool complain(const struct trial *t, const char *format, ...)
{
    char text[600], shape[128];
    int at = 0;
    va_list list;
    if (t->result->failed++ >= SHOWN) return false;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    for (int i = 0; i < SIZES; i++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", i ? " " : "", (long long)t->n[i]);
    printf("FAILED %s %s %s (%s)%s: %s\n", op_table[t->row->op].name, t->forward ? "forward" : "gradient",
           dtype_name(t->f), shape,
           like == 89   ? " as on 8.9"
           : like == 86 ? " as on 8.6"
           : like     ? " as on 7.5"
                      : "",
           text);
    fflush(stdout);
    return false;
}

/* Records the ops that have kernels and those that have none. */
static bool all_have_kernels(const struct trial *t, const struct graph *g)
{
    struct profile profile;
    bool all = true;
    profile_of(&profile);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        struct query q;
        if (op_table[x->op].flags & OPF_VIEW) continue;
        query_fill(&q, g, x, &profile);
        const struct kernel *found = kernel_find(subject, x->op, &q);
        const bool taken = found;
        if (taken && subject == DEVICE_CUDA) t->result->used[found->row][kernel_form(found, &q)] = true;
        for (size_t i = 0; i < COUNT(older) && subject == DEVICE_CUDA; i++) {
            profile.capability = older[i];
            const struct kernel *there = kernel_find(subject, x->op, &q);
            if (there) t->result->used[there->row][kernel_form(there, &q)] = true;
        }
        if (subject == DEVICE_CUDA) profile_of(&profile);
        *(taken ? &t->result->has[x->op] : &t->result->lacks[x->op]) = true;
        all &= taken;
    }
    return all;
}

/* --- a graph on the device, and a copy of its memory on the host -----------------------------
 *
 * The rig is the copy: it has the same placement and arenas of its own, where optest.h writes and
 * reads values. */

struct side {
    struct rig copy;
    struct device device;
    struct tape tape;
    char *owned[SPACE_COUNT]; /* per byte of an arena and its guard: belongs to a storage or a workspace */
    bool opened, placed, built;
};

/* Calls `each` for every block of bytes that the program may write: storages in use, and
 * workspaces. A parameter that no program reads has an offset too, and its values are copied. */
static void side_blocks(struct side *s,
                        void (*each)(struct side *, enum space space, uint64_t at, uint64_t bytes, bool persistent))
{
    const struct graph *g = &s->copy.graph;
    const struct placement *p = &s->copy.plan.placement;
    for (id x = 1; x < g->storages.n; x++) {
        const struct storage *b = &g->storages.at[x];
        if (plan_reached(&s->copy.plan, g, x)) each(s, b->space, p->offset[x], b->bytes, storage_is_persistent(b));
    }
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct binding *b = &p->binding[g->order[PROGRAM_STEP].nodes.at[k]];
        if (b->work_bytes) each(s, SPACE_DEVICE, b->work_offset, b->work_bytes, false);
    }
}

/* Poisons transient storages and workspaces with NaN: no program may rely on their contents. */
static void poison_block(struct side *s, enum space space, uint64_t at, uint64_t bytes, bool persistent)
{
    if (!persistent) memset(s->copy.device.arena[space] + at, POISON_BYTE, bytes);
}

static void mark_block(struct side *s, enum space space, uint64_t at, uint64_t bytes, bool persistent)
{
    (void)persistent;
    memset(s->owned[space] + at, 1, bytes);
}

/* Arena bytes that belong to no block are guards, and so are the bytes behind the arena. */
static void side_poison(struct side *s)
{
    const uint64_t *bytes = s->copy.plan.placement.arena;
    for (int space = 0; space < SPACE_COUNT; space++)
        if (bytes[space]) memset(s->copy.device.arena[space], GUARD_BYTE, bytes[space] + GUARD_BYTES);
    side_blocks(s, poison_block);
}

/* Checks all guards; the error names the one that changed. */
static int side_guards(const struct side *s, struct error *e)
{
    const uint64_t *bytes = s->copy.plan.placement.arena;
    for (int space = 0; space < SPACE_COUNT; space++)
        for (uint64_t i = 0; bytes[space] && i < bytes[space] + GUARD_BYTES; i++)
            if (!s->owned[space][i] && (uint8_t)s->copy.device.arena[space][i] != GUARD_BYTE)
                return error_set(e, PL_FAIL,
                                 "a write outside of all storages, at byte %" PRIu64 " of an arena of %" PRIu64, i,
                                 bytes[space]);
    return PL_OK;
}

static void side_fill(struct side *s)
{
    struct rig *r = &s->copy;
    side_poison(s);
    if (r->graph.step) {
        struct step_block step =
            {.learning_rate = 1e-2f, .inv_count = {0.125f}, .clip_norm = 1, .loss_scale = 1, .step = 3, .adam_t = 3};
        memcpy(tape_address(&r->tape, r->graph.step), &step, sizeof step);
    }
    rig_load_params(r);
    rig_load_inputs(r);
}

static int side_open(struct side *s, struct error *e)
{
    struct rig *r = &s->copy;
    int rc = graph_error(&r->graph, e);
    if (rc || (rc = device_open(&s->device, subject, 2, e))) return rc;
    s->opened = true;
    if (like) s->device.profile.capability = like;
    if ((rc = plan_place(&r->plan, &r->graph, &s->device.profile, e))) return rc;
    s->placed = true;
    uint64_t guarded[SPACE_COUNT];
    for (int space = 0; space < SPACE_COUNT; space++) {
        guarded[space] = r->plan.placement.arena[space] ? r->plan.placement.arena[space] + GUARD_BYTES : 0;
        r->device.arena[space] = mem_alloc(guarded[space] + 64);
        s->owned[space] = mem_alloc(guarded[space] + 1);
    }
    if ((rc = device_allocate(&s->device, guarded, e))) return rc;
    tape_build(&s->tape, &r->graph, &r->plan.placement, s->device.arena, s->device.profile.threads, NULL);
    tape_build(&r->tape, &r->graph, &r->plan.placement, r->device.arena, 1, NULL);
    s->built = true;
    side_blocks(s, mark_block);
    return s->device.ops->record(&s->device, &s->tape, e);
}

static void side_close(struct side *s)
{
    if (s->opened) device_close(&s->device, s->built ? &s->tape : NULL);
    if (s->built) tape_free(&s->tape), tape_free(&s->copy.tape);
    for (int space = 0; space < SPACE_COUNT; space++) mem_free(s->copy.device.arena[space]), mem_free(s->owned[space]);
    if (s->placed) plan_free(&s->copy.plan);
    graph_free(&s->copy.graph);
}

/* Copies the memory to the device, runs, and copies it back. */
static int side_go(struct side *s, struct error *e)
{
    const uint64_t *bytes = s->copy.plan.placement.arena;
    int rc = PL_OK;
    for (int p = 0; p < SPACE_COUNT && !rc; p++)
        if (bytes[p])
            rc = s->device.ops->write(&s->device, s->device.arena[p], s->copy.device.arena[p], bytes[p] + GUARD_BYTES,
                                      e);
    if (!rc) rc = s->device.ops->run(&s->device, &s->tape, PROGRAM_STEP, e);
    for (int p = 0; p < SPACE_COUNT && !rc; p++)
        if (bytes[p])
            rc =
                s->device.ops->read(&s->device, s->copy.device.arena[p], s->device.arena[p], bytes[p] + GUARD_BYTES, e);
    return rc ? rc : side_guards(s, e);
}

static int side_run(struct side *s, struct error *e)
{
    side_fill(s);
    return side_go(s, e);
}

/* --- comparing ------------------------------------------------------------------------------ */

/* The number of tensors that a trial compares: outputs, or the gradients of trained parameters. */
static uint32_t result_count(const struct trial *t, const struct graph *g)
{
    return t->forward ? g->outputs.n : g->params.n;
}

static id result_tensor(const struct trial *t, const struct graph *g, uint32_t i)
{
    if (t->forward) return g->outputs.at[i].tensor;
    return g->params.at[i].frozen ? 0 : g->params.at[i].grad;
}

static double tolerance(const struct scene *s, enum dtype out)
{
    const double c = 4, f32 = dtype_table[DT_F32].epsilon;
    return (at_bench ? 2 : 1) * c *
           (dtype_table[out].epsilon / 2 + (s->roundings - 1) * dtype_table[s->f].epsilon / 2 + f32 * sqrt(s->length));
}

/* Each element, relative to the largest one. */
static bool compare_output(const struct trial *t, const struct scene *s, uint32_t o, enum dtype type, const double *a,
                           const double *b, int64_t n)
{
    double size = s->unit;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(b[i])) size = fmax(size, fabs(b[i]));
    const double allowed = dtype_is_float(type) ? tolerance(s, type) * size : 0;
    int64_t wrong = 0, first = 0;
    for (int64_t i = n; i-- > 0;)
        /* -inf is the log-sum-exp of no keys */
        if (a[i] != b[i] && !(fabs(a[i] - b[i]) <= allowed)) wrong++, first = i;
    if (!wrong) return true;
    return complain(t, "output %u: %lld of %lld wrong, [%lld] is %.9g, the reference gives %.9g, allowed %.3g", o,
                    (long long)wrong, (long long)n, (long long)first, a[first], b[first], allowed);
}

/* The L2 norm over all elements. */
static bool compare_gradient(const struct trial *t, const struct scene *s, const char *name, const double *a,
                             const double *b, int64_t n)
{
    double error = 0, size = 0, worst = -1;
    int64_t at = 0;
    for (int64_t k = 0; k < n; k++) {
        error += (a[k] - b[k]) * (a[k] - b[k]), size += b[k] * b[k];
        if (!(fabs(a[k] - b[k]) <= worst)) worst = fabs(a[k] - b[k]), at = k;
    }
    size = fmax(sqrt(size), s->unit * sqrt((double)n));
    if (sqrt(error) <= tolerance(s, s->f) * size) return true;
    return complain(
        t, "gradient of %s is off by %.3g of its size, allowed %.3g; [%lld] of %lld is %.9g, the reference gives %.9g",
        name, sqrt(error) / size, tolerance(s, s->f), (long long)at, (long long)n, a[at], b[at]);
}

static bool compare(const struct trial *t, const struct scene *s, const struct rig *got, const struct rig *want)
{
    bool ok = true;
    int compared = 0;
    for (uint32_t i = 0; i < result_count(t, &got->graph) && ok; i++) {
        id x = result_tensor(t, &got->graph, i), y = result_tensor(t, &want->graph, i);
        if (!x) continue;
        compared++;
        const int64_t n = tensor_elements(tensor_at(&got->graph, x));
        double *a = rig_read(got, x), *b = rig_read(want, y);
        ok = t->forward ? compare_output(t, s, i, tensor_at(&got->graph, x)->dtype, a, b, n)
                        : compare_gradient(t, s, name_of(got, got->graph.params.at[i].tensor), a, b, n);
        mem_free(a);
        mem_free(b);
    }
    return compared ? ok : complain(t, "there is nothing to compare");
}

/* A hash of the bits of all compared tensors. */
static uint64_t hash_of(const struct trial *t, const struct rig *r)
{
    uint64_t hash = seed;
    for (uint32_t i = 0; i < result_count(t, &r->graph); i++) {
        id x = result_tensor(t, &r->graph, i);
        if (!x) continue;
        double *a = rig_read(r, x);
        hash = hash_bytes(a, (size_t)tensor_elements(tensor_at(&r->graph, x)) * sizeof *a, hash);
        mem_free(a);
    }
    return hash;
}

/* --- a case in three dtypes ------------------------------------------------------------------ */

static void run_trial(const struct trial *t, const struct rig *reference)
{
    struct scene s = scene_of(t->row, t->n, t->f, t->forward);
    struct side got = {0};
    struct error e = {0};
    if (!t->forward) apply_layout_passes(&s.g);
    got.copy.graph = s.g;
    bool taken = all_have_kernels(t, &s.g);
    if (!taken) t->result->lacking++;
    else if (!can_run) t->result->skipped++;
    else {
        int rc = side_open(&got, &e);
        bool ok = !rc && !side_run(&got, &e);
        if (!ok) {
            complain(t, "%s", e.text);
            t->result->broken = subject == DEVICE_CUDA;
        } else if (compare(t, &s, &got.copy, reference)) {
            const uint64_t first = hash_of(t, &got.copy);
            if (side_run(&got, &e)) complain(t, "%s", e.text), t->result->broken = true;
            else if (hash_of(t, &got.copy) != first) complain(t, "a second run gives other bits");
            else t->result->passed++;
        }
    }
    side_close(&got);
}

/* Runs the case once more with each older set of kernels that differs: a GPU runs its own kernels
 * and those of older GPUs. */
static bool same_kernels(const struct graph *g, int a, int b)
{
    struct profile profile[2];
    bool same = true;
    profile_of(&profile[0]);
    profile[1] = profile[0];
    profile[0].capability = a, profile[1].capability = b;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n && same; k++) {
        const struct node *x = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        struct query q;
        if (op_table[x->op].flags & OPF_VIEW) continue;
        query_fill(&q, g, x, &profile[0]);
        const struct kernel *first = kernel_find(DEVICE_CUDA, x->op, &q);
        q.profile = &profile[1];
        same = first == kernel_find(DEVICE_CUDA, x->op, &q);
    }
    return same;
}

static void run_older_kernels(const struct trial *t, const struct rig *reference)
{
    struct scene s = scene_of(t->row, t->n, t->f, t->forward);
    struct profile own;
    if (!t->forward) apply_layout_passes(&s.g);
    profile_of(&own);
    int last = own.capability;
    for (size_t i = 0; i < COUNT(older); last = older[i++]) {
        if (t->result->broken || older[i] >= own.capability || same_kernels(&s.g, last, older[i])) continue;
        like = older[i];
        run_trial(t, reference);
        like = 0;
    }
    graph_free(&s.g);
}

/* Whether some dtype runs, so that the slow reference is needed. */
static bool wants_reference(const struct row *row, const int64_t *n, bool forward)
{
    bool any = false;
    for (int i = 0; i < TYPES && can_run; i++) {
        struct result ignored = {0};
        struct trial t = {row, n, forward, types[i], &ignored};
        struct scene s = scene_of(row, n, types[i], forward);
        any |= all_have_kernels(&t, &s.g);
        graph_free(&s.g);
    }
    return any;
}

static void run_case(const struct row *row, const int64_t *n, bool forward, const bool wanted[TYPES],
                     struct result *result)
{
    struct rig reference = {0};
    const bool needed = wants_reference(row, n, forward);
    if (needed) {
        struct scene exact = scene_of(row, n, at_bench ? DT_F32 : DT_F64, forward);
        reference.graph = exact.g;
        rig_open(&reference, at_bench ? DEVICE_CPU : DEVICE_REF);
        rig_run(&reference);
    }
    for (int i = 0; i < TYPES && !result->broken; i++) {
        if (!wanted[i]) continue;
        struct trial t = {row, n, forward, types[i], result};
        if (only && only < 80 && types[i] == DT_BF16) continue;
        like = only;
        run_trial(&t, &reference);
        if (!only && can_run && subject == DEVICE_CUDA) run_older_kernels(&t, &reference);
    }
    if (needed) rig_close(&reference);
}

#include "cuda_ranges.inc"

static void run_row(const struct row *row, struct result *result)
{
    static const bool every[TYPES] = {true, true, true};
    for (int forward = 1; forward >= 0; forward--) {
        if (!forward && row->c->no_gradient) continue;
        if (at_bench && row->c->bench[0]) run_case(row, row->c->bench, forward, every, result);
        for (int slot = 0; slot < SLOTS && !at_bench && !result->broken; slot++) {
            const bool *wanted = covering ? kept[row->op][slot][forward] : every;
            if (shape_at(row, slot)[0] && (wanted[0] || wanted[1] || wanted[2]))
                run_case(row, shape_at(row, slot), forward, wanted, result);
        }
    }
    if (!at_bench && !covering) check_ranges(row, result);
}

/* --- timing ----------------------------------------------------------------------------------- */

static int64_t grow = 1; /* --grow */
static int64_t shape[SIZES]; /* --shape, in the order of the op's case */

/* The tape keeps only the row's own launches, each REPEATS times. */
static double keep_row(struct side *s, enum op op, struct cost *sum, const char **kernel)
{
    struct tape t = {0};
    for (uint32_t k = 0; k < s->tape.program[PROGRAM_STEP].n; k++) {
        struct entry e = s->tape.program[PROGRAM_STEP].at[k];
        if (e.kind != ENTRY_LAUNCH || e.kernel->op != op) continue;
        struct query q;
        query_fill(&q, &s->copy.graph, node_at(&s->copy.graph, e.node), &s->device.profile);
        struct cost cost = op_table[op].cost(q.in, q.out, q.attr);
        *sum = (struct cost){sum->flops + cost.flops, sum->bytes + cost.bytes};
        *kernel = e.kernel->name;
        e.nwait = 0;
        e.launch.state = NULL;
        for (int r = 0; r < REPEATS; r++) vec_push(&t.program[PROGRAM_STEP], e);
    }
    vec_free(&s->tape.program[PROGRAM_STEP]);
    memcpy(&s->tape.program[PROGRAM_STEP], &t.program[PROGRAM_STEP], sizeof t.program[PROGRAM_STEP]);
    s->tape.device_state = NULL;
    return (double)t.program[PROGRAM_STEP].n;
}

/* Seconds of one recorded tape, the best of several; reading a byte waits for it. */
static int time_tape(struct side *s, double *best, struct error *e)
{
    char byte;
    const double begin = clock_seconds();
    *best = INFINITY;
    for (int round = 0; round < 4 || (round < 50 && clock_seconds() - begin < 0.3); round++) {
        const int launches = 10;
        const double start = clock_seconds();
        int rc = PL_OK;
        for (int i = 0; i < launches && !rc; i++) rc = s->device.ops->run(&s->device, &s->tape, PROGRAM_STEP, e);
        if (!rc) rc = s->device.ops->read(&s->device, &byte, s->device.arena[SPACE_DEVICE], 1, e);
        if (rc) return rc;
        *best = fmin(*best, (clock_seconds() - start) / launches);
    }
    return PL_OK;
}

static void time_row(const struct row *row, enum dtype f, struct result *result)
{
    int64_t n[SIZES];
    memcpy(n, shape[0] ? shape : row->c->bench, sizeof n);
    n[0] *= grow;
    struct trial t = {row, n, true, f, result};
    struct scene s = scene_of(row, n, f, true);
    struct side got = {.copy.graph = s.g};
    struct error e = {0};
    struct cost sum = {0, 0};
    const char *kernel = "";
    double seconds = 0;
    if (graph_error(&s.g, &e)) printf("%-21s %-4s cannot grow: %s\n", op_table[row->op].name, dtype_name(f), e.text);
    else if (!all_have_kernels(&t, &s.g)) result->lacking++;
    else if (!can_run) result->skipped++;
    else if (side_open(&got, &e) || side_run(&got, &e)) complain(&t, "%s", e.text);
    else {
        void *whole = got.tape.device_state;
        double launches = keep_row(&got, row->op, &sum, &kernel);
        if (got.device.ops->record(&got.device, &got.tape, &e) || time_tape(&got, &seconds, &e))
            complain(&t, "%s", e.text);
        else {
            seconds /= REPEATS;
            result->passed++;
            printf("%-21s %-4s %9.2f us %8.1f GB/s %8.2f TFLOP/s  %s%s\n", op_table[row->op].name, dtype_name(f),
                   seconds * 1e6, sum.bytes / seconds * 1e-9, sum.flops / seconds * 1e-12, kernel,
                   launches > REPEATS ? " (several)" : "");
        }
        (void)whole; /* freed with the process */
    }
    fflush(stdout);
    side_close(&got);
}

/* --- all rows -------------------------------------------------------------------------------- */

static void run_or_time_row(const struct row *row, struct result *result, bool timing)
{
    if (!timing) run_row(row, result);
    for (int i = 0; i < TYPES && timing && row->c->bench[0]; i++) time_row(row, types[i], result);
    result->done = true;
}

/* The GPU's compute capability; 0: there is none. Asked in a process of its own: CUDA does not
 * survive a fork. */
static int find_capability(void)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct gpu gpu = {0};
        struct error e;
        _exit(cuda_gpus() > 0 && !cuda_gpu(&gpu, &e) ? gpu.capability : 0);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static void wait_one(int *active)
{
    int status;
    if (wait(&status) > 0) (*active)--;
    else *active = 0;
}

static bool wanted(size_t row, char **names, int count)
{
    bool any = !count;
    for (int k = 0; k < count; k++) any |= !strcasecmp(names[k], op_table[row].name);
    return any && row_kept(row);
}

static void run_all(bool timing, int jobs, char **names, int count)
{
    int active = 0;
    for (size_t i = 1; i < COUNT(rows); i++) {
        results[i].done = !wanted(i, names, count);
        if (results[i].done) continue;
        if (!jobs) {
            run_or_time_row(&rows[i], &results[i], timing);
            continue;
        }
        if (active == jobs) wait_one(&active);
        fflush(stdout);
        pid_t child = fork();
        CHECK(child >= 0, "no process for a row");
        active++;
        if (child) continue;
        run_or_time_row(&rows[i], &results[i], timing);
        fflush(stdout);
        _exit(0);
    }
    while (active) wait_one(&active);
}

/* every: all cases were planned, so every kernel must have been used. */
static int summarise(bool every)
{
    struct result all = {0};
    for (size_t i = 1; i < COUNT(rows); i++) {
        struct result *r = &results[i];
        if (!r->done) {
            printf("FAILED %s: its process died\n", op_table[i].name);
            r->failed++;
        }
        if (r->failed > SHOWN) printf("FAILED %s: %d cases in all\n", op_table[i].name, r->failed);
        all.passed += r->passed, all.failed += r->failed, all.skipped += r->skipped, all.lacking += r->lacking;
        for (int op = 0; op < OP_COUNT; op++) all.lacks[op] |= r->lacks[op], all.has[op] |= r->has[op];
        for (int k = 0; k < CUDA_ROWS * FORMS_MOST; k++)
            all.used[k / FORMS_MOST][k % FORMS_MOST] |= r->used[k / FORMS_MOST][k % FORMS_MOST];
    }
    if (every && subject == DEVICE_CUDA && !all_used(all.used)) all.failed++;
    printf("%d cases without a kernel, of ops (*: for some operands):", all.lacking);
    for (int op = 1; op < OP_COUNT; op++)
        if (all.lacks[op]) printf(" %s%s", op_table[op].name, all.has[op] ? "*" : "");
    printf("\n%d passed, %d failed, %d skipped\n", all.passed, all.failed, all.skipped);
    return all.failed ? 1 : 0;
}

#include "cuda_real.inc"

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--real")) return real_main(argc - 2, argv + 2);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int jobs = cores >= 8 ? 6 : 2, count = 0;
    bool timing = false, listing = false;
    const char *cases = NULL;
    char **names = calloc((size_t)argc, sizeof *names);
    CHECK(names, "no memory");
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--time")) timing = true;
        else if (!strcmp(argv[i], "--bench")) at_bench = true;
        else if (!strcmp(argv[i], "--cover")) covering = true;
        else if (!strcmp(argv[i], "--list")) listing = true;
        else if (!strcmp(argv[i], "--device") && i + 1 < argc && !strcmp(argv[i + 1], "cpu")) subject = DEVICE_CPU, i++;
        else if (!strcmp(argv[i], "--cases") && i + 1 < argc) cases = argv[++i], covering = true;
        else if (!strcmp(argv[i], "--like") && i + 1 < argc) only = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--jobs") && i + 1 < argc) jobs = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--grow") && i + 1 < argc) grow = atoll(argv[++i]);
        else if (!strcmp(argv[i], "--shape") && i + 1 < argc)
            sscanf(argv[++i],
                   "%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64,
                   &shape[0], &shape[1], &shape[2], &shape[3], &shape[4], &shape[5], &shape[6], &shape[7]);
        else if (argv[i][0] != '-') names[count++] = argv[i];
        else {
            fprintf(stderr,
                    "usage: cuda_ops [--device cpu] [--like 86|75] [--jobs N] [--cover [--list] | --cases FILE] "
                    "[--bench] [--time [--grow N] [--shape N,...]] [OP...]; found '%s'\n",
                    argv[i]);
            return 2;
        }
    }
    seed_begin();
    results = mmap(NULL, sizeof *results * COUNT(rows), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(results != MAP_FAILED, "no memory");
    if (subject == DEVICE_CUDA) own_capability = find_capability();
    can_run = subject == DEVICE_CPU || own_capability;
    if (timing || jobs < 0) jobs = 1;
    if (cases) read_cases(cases);
    else if (covering && !choose_cases()) return 1;
    for (size_t i = 1; i < COUNT(rows) && listing; i++)
        if (wanted(i, names, count)) print_cases(i);
    if (listing) return 0;
    printf("device %s: %s; seed %llu\n", subject == DEVICE_CPU ? "cpu" : "cuda",
           can_run ? "running" : "no GPU, the cases are planned only", (unsigned long long)seed);
    run_all(timing, jobs, names, count);
    free(names);
    return summarise(!count && !covering && !timing && !at_bench && !only);
}
