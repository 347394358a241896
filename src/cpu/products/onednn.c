/*
 * onednn.c: LINEAR and MATMUL by oneDNN (C API of version 2): the only file that includes its
 * header.
 *
 *     planning   a shape  ->  primitive descriptor  ->  implementation's name, scratchpad bytes
 *     record     each launch of the tape: primitive and memory objects, before step 0
 *     a step     addresses into the memory objects, execute
 *
 * The guarantees of the engine limit its use:
 *
 * - Memory is planned. The scratchpad is user-provided, so it is our workspace. An implementation
 *   named gemm: or ref: is refused, because it allocates buffers of its own. On processors without
 *   AVX-512 version 2 has no other: nothing matches there.
 * - A plan is a function of shapes and profile. A descriptor depends on the processor too, so the
 *   profile states whether oneDNN is used (profile.onednn), its name does as well, and no stored
 *   profile does. The scratchpad depends on the thread count, which the library reads from OpenMP:
 *   it is set to the plan's around every call.
 * - Bits do not depend on the thread count. Weight gradients (a transposed) of bf16 would: the
 *   library splits K among threads. They are refused; device.deterministic refuses everything.
 *
 * One guarantee does not hold: `execute` puts its arguments into a hash table on the heap, a few
 * allocations of about 100 bytes that it frees before it returns. A step with these kernels is not
 * free of malloc, so runs use them only where PLIMSOLL_ONEDNN=1 is set, to measure.
 */
#include "cpu/products/onednn.h"

#include <dnnl.h>
#include <omp.h>
#include <pthread.h>

#include "base/processor.h"
#include "cpu/products/micro.h"
#include "cpu/cpu.h"
#include "run/device.h"

#if DNNL_VERSION_MAJOR != 2
#error "onednn.c speaks the C API of oneDNN 2; build with make ONEDNN=0"
#endif

/* Primitives of one shape share their code through the library's cache, which holds
 * CACHE_PRIMITIVES of them. */
enum { CACHE_PRIMITIVES = 256, MEMO = 256 };

bool cpu_prefers_onednn(void)
{
    const char *forced = getenv("PLIMSOLL_ONEDNN");
    return forced && !strcmp(forced, "1");
}

const char *onednn_version(void)
{
    static char version[24];
    const dnnl_version_t *v = dnnl_version();
    snprintf(version, sizeof version, "%d.%d.%d", v->major, v->minor, v->patch);
    return version;
}

/* --- shapes ------------------------------------------------------------------------------- */

/* A product as oneDNN sees it; compared byte by byte, so it is initialised with zeros. */
struct shape {
    int64_t M, N, K;
    int threads;
    uint8_t ta, tb, add, in, out, bias; /* the last three are dtypes; DT_NONE: no bias */
    uint8_t zero[6];                    /* named padding: a copy might skip unnamed padding */
};

/* The properties of an operand that query and launch share. */
struct view {
    int64_t rows, last;
    enum dtype dtype;
    bool dense;
};

static struct view view_tensor(const struct tensor *t)
{
    return (struct view){tensor_rows(t), tensor_last(t), t->dtype, tensor_is_dense(t)};
}

static struct view view_operand(const struct operand *x)
{
    return (struct view){operand_rows(x), operand_last(x), x->dtype, true};
}

static struct shape shape_of(struct view a, struct view b, bool ta, bool tb, enum dtype out, int threads)
{
    struct shape s;
    memset(&s, 0, sizeof s);
    s.M = ta ? a.last : a.rows, s.K = ta ? a.rows : a.last, s.N = tb ? b.rows : b.last;
    s.threads = threads, s.ta = ta, s.tb = tb;
    s.in = (uint8_t)a.dtype, s.out = (uint8_t)out, s.bias = DT_NONE;
    return s;
}

/* Returns the index of the added input: MATMUL's accumulator, or LINEAR's residual, which follows
 * its bias. */
static int added(bool linear) { return linear ? 3 : 2; }

static struct shape shape_of_query(const struct query *q, bool linear)
{
    const struct tensor *third = query_in(q, 2);
    bool ta = !linear && q->attr->matmul.ta, tb = linear || q->attr->matmul.tb;
    struct shape s =
        shape_of(view_tensor(q->in[0]), view_tensor(q->in[1]), ta, tb, q->out[0]->dtype, q->profile->threads);
    if (third && linear) s.bias = third->dtype;
    s.add = query_in(q, added(linear)) != NULL;
    return s;
}

static struct shape shape_of_launch(const struct launch *l, bool linear)
{
    const struct operand *third = launch_has(l, 2) ? &l->in[2] : NULL;
    bool ta = !linear && l->attr->matmul.ta, tb = linear || l->attr->matmul.tb;
    struct shape s = shape_of(view_operand(&l->in[0]), view_operand(&l->in[1]), ta, tb, l->out[0].dtype, l->threads);
    if (third && linear) s.bias = (uint8_t)third->dtype;
    s.add = launch_has(l, added(linear));
    return s;
}

/* --- the library ---------------------------------------------------------------------------- */

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Limits the library to the processor features that are not hidden (processor.h). Only its x86-64
 * build has such a limit; elsewhere oneDNN is not used while bf16 or SVE is hidden. */
static bool limit_instructions(void)
{
#if defined(__x86_64__)
    dnnl_cpu_isa_t most = cpu_hides(CPU_AVX512) ? dnnl_cpu_isa_avx2
                          : cpu_hides(CPU_BF16) ? dnnl_cpu_isa_avx512_core
                                                : dnnl_cpu_isa_avx512_core_bf16;
    return (!cpu_hides(CPU_AVX512) && !cpu_hides(CPU_BF16) && !cpu_hides(CPU_AMX)) ||
           dnnl_set_max_cpu_isa(most) == dnnl_success;
#else
    return !cpu_hides(CPU_BF16) && !cpu_hides(CPU_SVE);
#endif
}

/* Requires the lock. The engine and its stream live as long as the process. */
static bool library_start(void)
{
    if (stream) return true;
    if (!engine && !limit_instructions()) return false;
    if (!engine && dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) return false;
    dnnl_set_primitive_cache_capacity(CACHE_PRIMITIVES);
    return dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success;
}

static dnnl_data_type_t type_of(enum dtype t) { return t == DT_BF16 ? dnnl_bf16 : dnnl_f32; }

static bool matrix_desc(dnnl_memory_desc_t *d, int64_t rows, int64_t columns, enum dtype t, bool transposed)
{
    dnnl_dims_t dims = {rows, columns};
    return dnnl_memory_desc_init_by_tag(d, 2, dims, type_of(t), transposed ? dnnl_ba : dnnl_ab) == dnnl_success;
}

/* Makes the attributes of a product: we provide the scratchpad, and C += is a sum with the previous
 * value. */
static bool attributes_new(dnnl_primitive_attr_t *attr, bool add)
{
    dnnl_post_ops_t after = NULL;
    if (dnnl_primitive_attr_create(attr) != dnnl_success) return false;
    bool ok = dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user) == dnnl_success;
    if (ok && add) {
        ok = dnnl_post_ops_create(&after) == dnnl_success && dnnl_post_ops_append_sum(after, 1.0f) == dnnl_success &&
             dnnl_primitive_attr_set_post_ops(*attr, after) == dnnl_success;
        if (after) dnnl_post_ops_destroy(after);
    }
    if (!ok) dnnl_primitive_attr_destroy(*attr);
    return ok;
}

/* Requires the lock. The library's best implementation, of any kind; NULL: none. */
static dnnl_primitive_desc_t describe(const struct shape *s)
{
    dnnl_memory_desc_t a, b, c, bias;
    dnnl_matmul_desc_t product;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t found = NULL;
    if (!library_start() || !matrix_desc(&a, s->M, s->K, s->in, s->ta) || !matrix_desc(&b, s->K, s->N, s->in, s->tb) ||
        !matrix_desc(&c, s->M, s->N, s->out, false) || !matrix_desc(&bias, 1, s->N, s->bias, false))
        return NULL;
    if (dnnl_matmul_desc_init(&product, &a, &b, s->bias == DT_NONE ? NULL : &bias, &c) != dnnl_success) return NULL;
    if (!attributes_new(&attr, s->add)) return NULL;
    int before = omp_get_max_threads();
    omp_set_num_threads(s->threads);
    if (dnnl_primitive_desc_create(&found, &product, attr, engine, NULL) != dnnl_success) found = NULL;
    omp_set_num_threads(before);
    dnnl_primitive_attr_destroy(attr);
    return found;
}

static const char *implementation_of(const_dnnl_primitive_desc_t d)
{
    const char *name = "";
    return dnnl_primitive_desc_query(d, dnnl_query_impl_info_str, 0, &name) == dnnl_success ? name : "";
}

static bool keeps_to_scratchpad(const char *implementation)
{
    return implementation[0] && strncmp(implementation, "gemm:", 5) && strncmp(implementation, "ref:", 4);
}

/* --- planning -------------------------------------------------------------------------------- */

/* The result of a descriptor query, cached: a planner queries the same few shapes many times. */
struct onednn_query {
    struct shape shape;
    bool known, takes;
    uint64_t bytes;
};

static struct onednn_query ask(const struct shape *s)
{
    static struct onednn_query memo[MEMO];
    uint64_t at = hash_bytes(s, sizeof *s, 0) % MEMO;
    pthread_mutex_lock(&lock);
    struct onednn_query *a = &memo[at];
    if (!a->known || memcmp(&a->shape, s, sizeof *s)) {
        *a = (struct onednn_query){.shape = *s, .known = true};
        dnnl_primitive_desc_t d = describe(s);
        if (d && keeps_to_scratchpad(implementation_of(d))) {
            a->takes = true;
            a->bytes = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(d, dnnl_query_scratchpad_md, 0));
        }
        if (d) dnnl_primitive_desc_destroy(d);
    }
    struct onednn_query result = *a;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Reports whether all are dense f32, or bf16 with bf16 or f32 results. */
static bool types_fit(const struct query *q, const struct shape *s, bool linear)
{
    const struct tensor *third = query_in(q, 2), *add = query_in(q, added(linear));
    if (q->in[1]->dtype != s->in || (s->in != DT_F32 && s->in != DT_BF16)) return false;
    if (s->out != s->in && s->out != DT_F32) return false;
    if (third && third->dtype != s->out && third->dtype != s->in) return false;
    if (add && (add->dtype != s->out || !tensor_is_dense(add))) return false;
    return tensor_is_dense(q->in[0]) && tensor_is_dense(q->in[1]) && tensor_is_dense(q->out[0]) &&
           (!third || tensor_is_dense(third));
}

/* Reports whether oneDNN computes a product. Products of a few rows are bound by reading the
 * weight, which our dot products already do at full speed. A part of a product is computed as the
 * whole is. */
static bool product_matches(const struct query *q, bool linear)
{
    if (!q->profile->onednn) return false;
    struct shape s = shape_of_query(q, linear), whole = s;
    if (!s.ta) whole.M = portion_whole(q->portion, s.M);
    if (!types_fit(q, &s, linear) || whole.M <= DOT_ROWS || s.N < 1 || s.K < 1) return false;
    if (s.ta && s.in == DT_BF16) return false;
    return ask(&s).takes && ask(&whole).takes;
}

static uint64_t product_workspace(const struct query *q, bool linear)
{
    struct shape s = shape_of_query(q, linear);
    return ask(&s).bytes;
}

bool onednn_linear_match(const struct query *q) { return product_matches(q, true); }
bool onednn_matmul_match(const struct query *q) { return product_matches(q, false); }
uint64_t onednn_linear_workspace(const struct query *q) { return product_workspace(q, true); }
uint64_t onednn_matmul_workspace(const struct query *q) { return product_workspace(q, false); }

const char *onednn_implementation(const struct query *q, bool linear)
{
    static char name[64];
    struct shape s = shape_of_query(q, linear);
    if (!types_fit(q, &s, linear)) return NULL;
    pthread_mutex_lock(&lock);
    dnnl_primitive_desc_t d = describe(&s);
    snprintf(name, sizeof name, "%s", d ? implementation_of(d) : "");
    if (d) dnnl_primitive_desc_destroy(d);
    pthread_mutex_unlock(&lock);
    return d ? name : NULL;
}

/* --- running ---------------------------------------------------------------------------------- */

enum { ARG_A, ARG_B, ARG_C, ARG_BIAS, ARG_WORK, ARGS };

/* A primitive and its arguments; their addresses are set before each call. */
struct product {
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[ARGS]; /* NULL: not given */
    bool adds;
};

static void product_free(struct product *p)
{
    for (int i = 0; i < ARGS; i++)
        if (p->memory[i]) dnnl_memory_destroy(p->memory[i]);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

static bool product_memory(struct product *p, int arg, const_dnnl_primitive_desc_t d, dnnl_query_t what, int index)
{
    const dnnl_memory_desc_t *m = dnnl_primitive_desc_query_md(d, what, index);
    if (!m || dnnl_memory_desc_get_size(m) == 0) return true;
    return dnnl_memory_create(&p->memory[arg], m, engine, DNNL_MEMORY_NONE) == dnnl_success;
}

static bool product_make(struct product *p, const struct shape *s)
{
    memset(p, 0, sizeof *p);
    p->adds = s->add;
    pthread_mutex_lock(&lock);
    dnnl_primitive_desc_t d = describe(s);
    int before = omp_get_max_threads();
    omp_set_num_threads(s->threads);
    bool ok = d && dnnl_primitive_create(&p->primitive, d) == dnnl_success &&
              product_memory(p, ARG_A, d, dnnl_query_src_md, 0) &&
              product_memory(p, ARG_B, d, dnnl_query_weights_md, 0) &&
              product_memory(p, ARG_C, d, dnnl_query_dst_md, 0) &&
              product_memory(p, ARG_WORK, d, dnnl_query_scratchpad_md, 0) &&
              (s->bias == DT_NONE || product_memory(p, ARG_BIAS, d, dnnl_query_weights_md, 1));
    omp_set_num_threads(before);
    if (d) dnnl_primitive_desc_destroy(d);
    pthread_mutex_unlock(&lock);
    if (!ok) product_free(p);
    return ok;
}

static void product_execute(const struct product *p, const struct launch *l)
{
    static const int names[ARGS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS, DNNL_ARG_SCRATCHPAD};
    void *const at[ARGS] = {l->in[0].data, l->in[1].data, l->out[0].data, l->nin > 2 ? l->in[2].data : NULL, l->work};
    dnnl_exec_arg_t given[ARGS];
    int n = 0;
    for (int i = 0; i < ARGS; i++) {
        if (!p->memory[i]) continue;
        CHECK(dnnl_memory_set_data_handle(p->memory[i], at[i]) == dnnl_success);
        given[n++] = (dnnl_exec_arg_t){names[i], p->memory[i]};
    }
    int before = omp_get_max_threads();
    omp_set_num_threads(l->threads);
    dnnl_status_t status = dnnl_primitive_execute(p->primitive, stream, n, given);
    if (status == dnnl_success) status = dnnl_stream_wait(stream);
    omp_set_num_threads(before);
    CHECK(status == dnnl_success, "oneDNN's product failed with status %d", (int)status);
}

/* Runs a product. A launch that was not recorded creates its primitive for this call only. */
static void product_run(const struct launch *l, bool linear)
{
    bool add = launch_has(l, added(linear));
    if (add && linear) row_copy(&l->out[0], &l->in[added(linear)], l->threads);
    CHECK(!add || linear || l->in[2].data == l->out[0].data, "the result is not in the accumulator's bytes");
    if (l->state) {
        const struct product *made = l->state;
        if (made->adds && !add)
            memset(l->out[0].data, 0, (size_t)operand_elements(&l->out[0]) * dtype_size(l->out[0].dtype));
        product_execute(made, l);
        return;
    }
    struct product once;
    struct shape s = shape_of_launch(l, linear);
    CHECK(product_make(&once, &s), "oneDNN cannot make a product that it took when it was planned");
    product_execute(&once, l);
    product_free(&once);
}

void onednn_linear_run(const struct launch *l) { product_run(l, true); }
void onednn_matmul_run(const struct launch *l) { product_run(l, false); }

static bool is_linear(const struct kernel *k) { return k->run == onednn_linear_run || k->run == onednn_linear_act_run; }

int onednn_prepare(const struct kernel *k, struct launch *l, struct error *e)
{
    bool linear = is_linear(k);
    if (!linear && k->run != onednn_matmul_run) return PL_OK;
    struct shape s = shape_of_launch(l, linear);
    struct product *made = mem_alloc(sizeof *made);
    if (!product_make(made, &s)) {
        mem_free(made);
        return error_set(
            e, PL_FAIL,
            "oneDNN cannot make the product [%lld,%lld,%lld] of %s: unset PLIMSOLL_ONEDNN or build with make ONEDNN=0",
            (long long)s.M, (long long)s.N, (long long)s.K, dtype_name(s.in));
    }
    l->state = made;
    return PL_OK;
}

void onednn_release(const struct kernel *k, struct launch *l)
{
    if ((!is_linear(k) && k->run != onednn_matmul_run) || !l->state) return;
    product_free(l->state);
    mem_free(l->state);
    l->state = NULL;
}
