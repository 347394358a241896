/*
 * test_mesh.c: places and ranks of a mesh; and training on ranks that compute parts of the same
 * products (parallel.tensor), as threads of this process, against one rank with as many parts:
 * weights, optimizer state, loss and norm have the same bits after every step. Against one rank
 * that divides nothing they are near.
 */
#include "folder/transfer.h"
#include "graph/division.h"

#include "harness.h"
#include "rank_member.h"

enum { RANKS = 8, STEPS = 2 };

/* --- the mesh --------------------------------------------------------------------------------- */

TEST(test_places)
{
    const struct mesh m = {.tensor = 2, .context = 3, .pipeline = 2};
    enum { N = 24 };
    for (int rank = 0; rank < N; rank++)
        for (enum rank_axis a = AXIS_DATA; a <= AXIS_PIPELINE; a++) {
            const int place = mesh_place(m, rank, a);
            assert_true(place >= 0 && place < mesh_line(m, N, a));
            assert_int_equal(mesh_rank(m, rank, a, place), rank);
            for (int i = 0; i < mesh_line(m, N, a); i++)
                assert_int_equal(mesh_place(m, mesh_rank(m, rank, a, i), a), i);
        }
    assert_int_equal(mesh_line(m, N, AXIS_DATA), 6);
    assert_int_equal(mesh_rank(m, 0, AXIS_TENSOR, 1), 1);
    assert_int_equal(mesh_rank(m, 0, AXIS_CONTEXT, 1), 2);
    assert_int_equal(mesh_rank(m, 0, AXIS_PIPELINE, 1), 6);
    assert_int_equal(mesh_rank(m, 0, AXIS_DATA, 3), 12);
}

/* How many neighbours on a line are on one host. */
TEST(test_hosts)
{
    const struct mesh line = {0}, m = {.tensor = 2};
    assert_int_equal(mesh_on_host(line, 8, AXIS_DATA, 4), 4);
    assert_int_equal(mesh_on_host(line, 8, AXIS_DATA, 0), 0);
    assert_int_equal(mesh_on_host(line, 8, AXIS_DATA, 8), 0);
    assert_int_equal(mesh_on_host(m, 8, AXIS_DATA, 4), 2);
    assert_int_equal(mesh_on_host(m, 8, AXIS_DATA, 2), 1);
    assert_int_equal(mesh_on_host(m, 8, AXIS_TENSOR, 4), 0);
    assert_int_equal(mesh_on_host((struct mesh){.tensor = 4}, 8, AXIS_TENSOR, 2), 2);
}

/* Every element of the whole is in one part, or in its copies, and in no other place of it. */
TEST(test_division)
{
    static const struct division list[] =
        {{.rank = 2, .axis = 0, .sections = 1, .parts = 4, .here = 1, .dim = {8, 6}, .section = {{8, 1}}},
         {.rank = 2, .axis = 1, .sections = 1, .parts = 3, .here = 1, .dim = {5, 9}, .section = {{9, 1}}},
         {.rank = 2,
          .axis = 0,
          .sections = 3,
          .parts = 2,
          .here = 2,
          .dim = {12, 3},
          .section = {{8, 1}, {2, 1}, {2, 1}}},
         {.rank = 2, .axis = 0, .sections = 1, .parts = 4, .here = 1, .dim = {2, 7}, .section = {{2, 2}}},
         {.rank = 2, .axis = 0, .sections = 1, .parts = 4, .here = 1, .dim = {10, 2}, .section = {{10, 1}}},
         {.rank = 3, .axis = 1, .sections = 1, .parts = 2, .here = 1, .dim = {3, 4, 5}, .section = {{4, 1}}}};
    for (size_t k = 0; k < COUNT(list); k++) {
        const struct division *d = &list[k];
        int64_t n = 1, part = 1;
        for (int i = 0; i < d->rank; i++) n *= d->dim[i], part *= i == d->axis ? division_length(d) : d->dim[i];
        int *seen = mem_alloc((size_t)(part * d->parts) * sizeof *seen);
        for (int64_t at = 0; at < n;) {
            const struct division_run r = division_run(d, at);
            assert_true(r.n > 0 && r.part % r.copies == 0 && r.part < d->parts && r.at + r.n <= part);
            for (int64_t i = 0; i < r.n; i++) assert_int_equal(seen[r.part * part + r.at + i]++, 0);
            at += r.n;
            assert_true(at <= n);
        }
        mem_free(seen);
    }
}

/* --- parts against the whole ------------------------------------------------------------------ */

/* The number of a part, without copies, among those of all ranks. */
static int number_of(const struct run *r, const struct storage *s)
{
    const struct division *d = &r->planned.graph.divisions.at[s->division - 1];
    const int copies = d->section[0].copies, each = (int)min_i64(copies, d->here),
              place = r->device.ranks ? mesh_place(r->planned.graph.mesh, r->device.ranks->rank, AXIS_TENSOR) : 0;
    return (place * d->here + s->part * each) / copies;
}

static const struct storage *storage_like(const struct run *r, const struct run *of, const struct storage *s, id *found)
{
    const char *name = graph_name(&of->planned.graph, s->name);
    for (id k = 1; k < r->planned.graph.storages.n; k++) {
        const struct storage *x = &r->planned.graph.storages.at[k];
        if (x->kind != s->kind || strcmp(graph_name(&r->planned.graph, x->name), name)) continue;
        assert_true(!x->division == !s->division);
        if (s->division && number_of(r, x) != number_of(of, s)) continue;
        *found = k;
        return x;
    }
    fail_msg("no storage like %s", name);
    return NULL;
}

static void compare(const struct run *one, const struct run *b, const char *what)
{
    static const enum kind kinds[] = {KIND_PARAM, KIND_MASTER, KIND_STATE};
    uint32_t divided = 0;
    for (id s = 1; s < b->planned.graph.storages.n; s++)
        for (size_t k = 0; k < COUNT(kinds); k++) {
            const struct storage *y = &b->planned.graph.storages.at[s];
            id t = 0;
            if (y->kind != kinds[k]) continue;
            const struct storage *x = storage_like(one, b, y, &t);
            const uint64_t first = y->shard ? (uint64_t)b->tape.shard * y->bytes : 0,
                           here = first < x->bytes ? min_u64(y->bytes, x->bytes - first) : 0;
            if (memcmp((const char *)bytes_of(one, t) + first, bytes_of(b, s), here))
                fail_msg("%s: %s differs", what, graph_name(&b->planned.graph, y->name));
            divided += y->division != 0;
        }
    assert_true(divided > 4);
    if (memcmp(&(float){loss_of(one)}, &(float){loss_of(b)}, 4))
        fail_msg("%s: the loss is %.9g and %.9g", what, (double)loss_of(one), (double)loss_of(b));
    if (memcmp(tape_address(&one->tape, run_clip(one)), tape_address(&b->tape, run_clip(b)), 8))
        fail_msg("%s: the norm is %.9g and %.9g", what, (double)*(float *)tape_address(&one->tape, run_clip(one)),
                 (double)*(float *)tape_address(&b->tape, run_clip(b)));
}

/* Master weights as a checkpoint has them. */
static float *whole_weight(struct run *r, uint32_t param, int64_t *n)
{
    struct transfer x;
    struct error e = {0};
    const id master = r->planned.graph.params.at[param].master;
    *n = tensor_elements(tensor_at(&r->planned.graph, master));
    float *to = mem_alloc((size_t)*n * sizeof *to);
    transfer_init(&x, &r->device, &r->tape, run_staging(r), PLAN_STAGING);
    for (int64_t at = 0, k; at < *n; at += k) {
        const void *data;
        k = min_i64(x.room, *n - at);
        must(transfer_get(&x, master, DT_F32, at, k, &data, NULL, &e), &e);
        memcpy(to + at, data, (size_t)k * sizeof *to);
    }
    return to;
}

/* Compares whole weights of one rank with parts, and of one without. */
static void compare_near(struct run *a, struct run *b, double most, const char *what)
{
    assert_int_equal(a->planned.graph.params.n, b->planned.graph.params.n);
    for (uint32_t i = 0; i < a->planned.graph.params.n; i++) {
        int64_t n, m;
        float *x = whole_weight(a, i, &n), *y = whole_weight(b, i, &m);
        double off = 0, size = 1e-3;
        assert_int_equal(n, m);
        for (int64_t k = 0; k < n; k++) {
            off = fmax(off, fabs((double)x[k] - (double)y[k]));
            size = fmax(size, fabs((double)y[k]));
        }
        if (!(off <= most * size))
            fail_msg("%s: %s is off by %g of %g", what,
                     graph_name(&a->planned.graph,
                                tensor_at(&a->planned.graph, a->planned.graph.params.at[i].tensor)->name),
                     off, size);
        mem_free(x);
        mem_free(y);
    }
    if (!(fabsf(loss_of(a) / loss_of(b) - 1) < (float)most))
        fail_msg("%s: the loss is %g and %g", what, (double)loss_of(a), (double)loss_of(b));
}

/* --- training --------------------------------------------------------------------------------- */

enum { SETS_MOST = 24 };
static const char *const *with(const char *const *sets, const char **out, const char *more, const char *another)
{
    int n = 0;
    for (; sets[n]; n++) out[n] = sets[n];
    if (more) out[n++] = more;
    if (another) out[n++] = another;
    assert_true(n < SETS_MOST);
    out[n] = NULL;
    return out;
}

/* Trains `data` times `tensor` ranks against one rank with the shares and parts of all; `near`: the
 * largest difference to one that divides nothing; 0: not compared. */
static void check_parts(const char *preset, int data, int tensor, int parts, double near, const char *const *sets)
{
    static struct member one, none, member[RANKS];
    static struct ranks ranks[RANKS];
    const int n = data * tensor;
    const char *more[SETS_MOST];
    char a[64], b[64], what[128];
    pthread_t thread[RANKS];
    snprintf(a, sizeof a, "parallel.tensor=%d", tensor);
    snprintf(b, sizeof b, "parallel.tensor_shares=%d", parts);
    start(&one, preset, with(sets, more, b, NULL), NULL, data);
    if (near > 0) start(&none, preset, sets, NULL, data);
    rank_threads_open(ranks, n, 120);
    for (int i = 0; i < n; i++) {
        start(&member[i], preset, with(sets, more, a, b), &ranks[i], data);
        assert_int_equal(plan_digest(&member[i].p.r.planned.plan, &member[i].p.r.planned.graph),
                         plan_digest(&member[0].p.r.planned.plan, &member[0].p.r.planned.graph));
    }
    for (int step = 0; step < STEPS; step++) {
        one.clip_norm = none.clip_norm = 0.5f;
        write_batch(&one.p.r, step);
        run_step(&one);
        must(one.rc, &one.e);
        for (int i = 0; i < n; i++) member[i].clip_norm = 0.5f, write_batch(&member[i].p.r, step);
        for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&thread[i], NULL, run_step, &member[i]), 0);
        for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
        for (int i = 0; i < n; i++) {
            must(member[i].rc, &member[i].e);
            snprintf(what, sizeof what, "%s, step %d, rank %d of %d x %d", preset, step, i, data, tensor);
            compare(&one.p.r, &member[i].p.r, what);
        }
        if (!(near > 0)) continue;
        write_batch(&none.p.r, step);
        run_step(&none);
        must(none.rc, &none.e);
        compare_near(&one.p.r, &none.p.r, near, preset);
    }
    planned_preset_free(&one.p);
    if (near > 0) planned_preset_free(&none.p);
    for (int i = 0; i < n; i++) planned_preset_free(&member[i].p);
    rank_threads_close(ranks);
}

#define F32 "memory.precision=f32"
#define SGD "memory.optimizer=sgd"

TEST(test_llama)
{
    check_parts("llama-tiny", 1, 2, 2, 2e-6, SETS("train.effective_batch=2", F32, SGD));
    check_parts("llama-tiny", 1, 4, 4, 2e-6, SETS("train.effective_batch=2", F32, SGD));
    check_parts("llama-tiny", 1, 2, 4, 0, SETS("train.effective_batch=2", F32));
    check_parts("llama-tiny", 2, 2, 2, 0, SETS("train.effective_batch=4", "memory.precision=bf16"));
}

/* Techniques that know nothing of parts. */
TEST(test_techniques)
{
    check_parts("llama-tiny", 1, 2, 2, 0,
                SETS("train.effective_batch=4", "memory.precision=bf16-pure", "memory.micro_batch=1",
                     "memory.recompute=all", "memory.head_chunks=2"));
    check_parts("llama-tiny", 1, 2, 2, 0,
                SETS("train.effective_batch=4", "memory.precision=bf16", "memory.micro_batch=2",
                     "memory.recompute=selective", "memory.offload=optimizer+masters+weights+activations"));
    check_parts("llama-tiny", 2, 2, 2, 0, SETS("train.effective_batch=4", "memory.precision=f16"));
    check_parts("llama-tiny", 1, 4, 4, 0, SETS("train.effective_batch=2", F32, "memory.recompute=all+halves"));
}

/* Each part is divided among the ranks that add gradients. */
TEST(test_shards)
{
    check_parts("llama-tiny", 2, 2, 2, 0, SETS("train.effective_batch=2", F32, "parallel.shard=none"));
    check_parts("llama-tiny", 2, 2, 2, 0,
                SETS("train.effective_batch=4", "memory.precision=bf16", "memory.micro_batch=1",
                     "parallel.shard=optimizer"));
    check_parts("llama-tiny", 4, 2, 2, 0, SETS("train.effective_batch=4", F32, "parallel.shard=gradients"));
    check_parts("llama-tiny", 2, 4, 4, 0,
                SETS("train.effective_batch=2", "memory.precision=bf16", "memory.recompute=all",
                     "parallel.shard=weights"));
}

/* Parts of a vocabulary: a tied table, and a head of its own; the last part is shorter than the
 * others; a head in chunks. 4 parts have too few rows for its table. */
TEST(test_vocabulary)
{
    check_parts("tests/golden/train_untied", 1, 2, 2, 5e-6, SETS("train.effective_batch=2", F32, SGD));
    check_parts("tests/golden/train_untied", 2, 2, 2, 0,
                SETS("train.effective_batch=4", "memory.precision=bf16", "parallel.shard=weights",
                     "memory.offload=optimizer+masters"));
    check_parts("tests/golden/tied", 1, 2, 2, 5e-6,
                SETS("train.effective_batch=2", F32, SGD, "memory.head_chunks=3"));
    check_parts("tests/golden/train_qwen3", 1, 3, 3, 0, SETS("train.effective_batch=2", F32, "memory.head_chunks=2"));
}

TEST(test_adapters)
{
    check_parts("llama-tiny", 1, 2, 2, 2e-6,
                SETS("train.effective_batch=2", F32, SGD, "adapter.target_modules=all-linear"));
    check_parts("llama-tiny", 2, 2, 2, 0,
                SETS("train.effective_batch=2", "memory.precision=bf16", "adapter.target_modules=[q_proj, v_proj]",
                     "parallel.shard=weights"));
}

TEST(test_masks)
{
    check_parts("sam-tiny", 1, 2, 2, 2e-6, SETS("train.effective_batch=2", F32, SGD));
    check_parts("sam-tiny", 2, 2, 2, 0,
                SETS("train.effective_batch=2", "memory.precision=bf16", "prompts.iterations=2"));
    check_parts("tinysam-tiny", 1, 2, 2, 2e-5, SETS("train.effective_batch=2", F32, SGD));
}

MAIN(NULL, NULL)
