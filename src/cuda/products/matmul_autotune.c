/*
 * matmul_autotune.c: see matmul_autotune.h.
 *
 * The library sorts its proposals by expected speed, but a later one is often the fastest. The
 * proposals are timed in the arena, where the operands of the run will be, so no memory beyond the
 * plan is used: the tape is recorded before anything is loaded, while the arena is still empty.
 *
 *     arena   [workspace][ a | b | c | bias | from ][ a | b | c | bias | from ][ ...
 *
 * There are up to OPERAND_SETS sets of operands, used in rotation, so that the cache behaves as in
 * a step.
 *
 * Operands are random numbers, because a GPU is faster on zeros. All proposals run a few times.
 * Then the library's first ones and the best of the others (the finalists) run in several rounds,
 * one after the other in each, because the GPU's clock drifts. A proposal is selected if it is
 * faster than the first by MARGIN; otherwise the first is selected.
 *
 * Large matmuls draw more power than the GPU's limit, and in a step this limit sets their clock. So
 * the energy of a matmul counts, and the winner of a short run is often not the winner in a step: a
 * small tile loads its operands more often. Large matmuls are therefore timed under load, each
 * for longer than the GPU needs to settle its clock:
 *
 *     WARM | SKIP HOLD | SKIP HOLD | ...
 *              1st         2nd
 *
 * Only the runs in HOLD are timed. The second round is in reverse order, so that no finalist always
 * follows the same one. The next matmul starts with REWARM.
 *
 * Invariants. A choice is used only once it is in the file, so that the next run has the same bits:
 * if the file cannot be written, nothing is measured and the first proposal is used. A proposal is
 * identified by its attributes, not by its rank. After the recording nothing is measured or
 * read, and the arena is zero again.
 */
#include "cuda/products/matmul_autotune.h"

#include <math.h>

#include "run/ranks.h"

enum {
    OPERAND_SETS = 3,
    ALIGN = 256,
    LEADERS = 2,
    FINALISTS = 6,
    ROUNDS = 5,
    RUNS_MOST = 8,
    PROPOSALS_MOST = 64,
    BLOCK = 256 << 10
};
/* operations, bytes: matmuls with fewer of both take less than 10 us on the fastest GPU */
static const double MIN_OPERATIONS = 5e9, MIN_BYTES = 3.2e7;
static const double MIN_LOADED = 5e10;    /* operations: larger matmuls are timed under load */
static const double MARGIN = 0.01;
static const double RUN_MS = 1;          /* approximate ms of one timed run of a proposal... */
static const double WARM = 1500, REWARM = 300, SKIP = 80, HOLD = 120; /* ...and of the phases under load */
static const double FINAL_MARGIN = 0.05; /* a finalist slower than the best of round one by this share is dropped */
static const double LOCK_TIMEOUT = 600;  /* s to wait for another process that measures */

struct autotune {
    struct choices kept;
    const char *gpu;
    /* set at the first matmul that is large enough: the file was looked for; it was read */
    bool opened, reads;
    bool measures;                  /* between begin and end, while the file can be written */
    bool warm;                      /* the GPU has been under load since the recording began */
    char *arena;
    uint64_t bytes, touched;        /* the first `touched` bytes are no longer zero */
    cudaStream_t stream;
    cudaEvent_t from, to;
};

/* --- keys and identities ------------------------------------------------------------------ */

static double operations(const struct gemm_shape *s)
{
    return 2.0 * (double)s->M * (double)s->N * (double)s->K * (double)s->batches;
}
static double bytes_moved(const struct gemm_shape *s)
{
    const double a = (double)s->M * (double)s->K, b = (double)s->K * (double)s->N, c = (double)s->M * (double)s->N;
    return (double)s->batches * (a * (double)dtype_size(s->a.dtype) + b * (double)dtype_size(s->b.dtype) +
                                 c * (double)dtype_size(s->c.dtype) * (s->from_align ? 2 : 1));
}
bool autotune_applies(const struct gemm_shape *s)
{
    return operations(s) >= MIN_OPERATIONS || bytes_moved(s) >= MIN_BYTES;
}
static bool is_large(const struct gemm_shape *s) { return operations(s) >= MIN_LOADED; }

static int print_layout(char *to, size_t room, char name, const struct view *v)
{
    return snprintf(to, room, " %c %s %lld %lld %lld %u", name, dtype_name(v->dtype), (long long)v->row,
                    (long long)v->column, (long long)v->batch, v->align);
}

/* Prints the key, which has everything that the library's proposals depend on. Returns false if it
 * does not fit. */
static bool print_key(char key[CHOICE_KEY], const struct gemm_shape *s, uint64_t workspace)
{
    static const char *const scales[] = {[SCALES_NONE] = "", [SCALES_ROWS] = " rows", [SCALES_BLOCKS] = " blocks"};
    char a[128], b[128], c[128], from[32] = "", least[40] = "";
    print_layout(a, sizeof a, 'a', &s->a);
    print_layout(b, sizeof b, 'b', &s->b);
    print_layout(c, sizeof c, 'c', &s->c);
    if (s->from_align) snprintf(from, sizeof from, " from %u", s->from_align);
    if (s->least) snprintf(least, sizeof least, " least %lld%s", (long long)s->least, s->sums ? " sums" : "");
    int n = snprintf(key, CHOICE_KEY, "%lldx%lldx%lld n %lld%s%s%s%s%s%s%s work %llu%s", (long long)s->M,
                     (long long)s->N, (long long)s->K, (long long)s->batches, a, b, c, s->bias ? " bias" : "", from,
                     least, scales[s->scales], (unsigned long long)workspace, is_large(s) ? " load" : "");
    return n > 0 && n < CHOICE_KEY;
}

/* Reads the attributes, each of 4 bytes or 2. */
void autotune_identify(const cublasLtMatmulAlgo_t *a, uint32_t number[CHOICE_NUMBERS])
{
    static const struct { cublasLtMatmulAlgoConfigAttributes_t of; bool is_short;
    } want[CHOICE_NUMBERS] = {{CUBLASLT_ALGO_CONFIG_ID, false},
                              {CUBLASLT_ALGO_CONFIG_TILE_ID, false},
                              {CUBLASLT_ALGO_CONFIG_STAGES_ID, false},
                              {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, false},
                              {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, false},
                              {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, false},
                              {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, false},
                              {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, true},
                              {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, true}};
    for (int i = 0; i < CHOICE_NUMBERS; i++) {
        uint16_t two = 0;
        uint32_t four = 0;
        size_t written = 0;
        cublasStatus_t rc = want[i].is_short
                                ? cublasLtMatmulAlgoConfigGetAttribute(a, want[i].of, &two, sizeof two, &written)
                                : cublasLtMatmulAlgoConfigGetAttribute(a, want[i].of, &four, sizeof four, &written);
        number[i] = rc != CUBLAS_STATUS_SUCCESS ? 0 : want[i].is_short ? two : four;
    }
}

/* Returns the first proposal with these attributes; -1: none. */
static int rank_of(const uint32_t number[CHOICE_NUMBERS], const cublasLtMatmulHeuristicResult_t *found, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t its[CHOICE_NUMBERS];
        autotune_identify(&found[i].algo, its);
        if (!memcmp(its, number, sizeof its)) return i;
    }
    return -1;
}

/* --- operands ------------------------------------------------------------------------------ */

/* The operands' addresses: set k begins k * step bytes further on. */
struct stage {
    char *work, *a, *b, *c, *bias, *from; /* from: NULL if nothing is added */
    char *a_scale, *b_scale;
    uint64_t step;
    int sets;
};

static uint64_t bytes_of(const struct view *v, int64_t rows, int64_t columns, int64_t batches)
{
    const int64_t last = (rows - 1) * v->row + (columns - 1) * v->column + (batches - 1) * v->batch;
    return align_up((uint64_t)(last + 1) * dtype_size(v->dtype), ALIGN);
}

/* Returns false if the arena has no room for one set. */
static bool lay_out(struct stage *g, const struct autotune *f, const struct gemm_shape *s, uint64_t workspace)
{
    const uint64_t work = align_up(workspace, ALIGN), a = bytes_of(&s->a, s->M, s->K, s->batches),
                   b = bytes_of(&s->b, s->K, s->N, s->batches);
    const uint64_t c = bytes_of(&s->c, s->M, s->N, s->batches),
                   bias = s->bias ? align_up((uint64_t)s->N * dtype_size(s->bias_dtype), ALIGN) : 0;
    const int64_t blocks = s->scales == SCALES_BLOCKS ? s->K / GEMM_BLOCK : s->scales == SCALES_ROWS;
    const uint64_t a_scale = align_up((uint64_t)(blocks * s->M) * sizeof(float), ALIGN),
                   b_scale = align_up((uint64_t)(blocks * s->N) * sizeof(float), ALIGN);
    g->step = a + b + c + bias + (s->from_align ? c : 0) + a_scale + b_scale;
    if (work > f->bytes || g->step > f->bytes - work) return false;
    g->sets = (int)min_u64(OPERAND_SETS, (f->bytes - work) / g->step);
    g->work = f->arena;
    g->a = g->work + work;
    g->b = g->a + a;
    g->c = g->b + b;
    g->bias = g->c + c;
    g->from = s->from_align ? g->bias + bias : NULL;
    g->a_scale = g->bias + bias + (s->from_align ? c : 0);
    g->b_scale = g->a_scale + a_scale;
    return true;
}

/* Makes numbers between 0.5 and 2 of either sign in bf16; read as f16 or f32 these bits are of
 * similar size. `bytes`: between 0.5 and 1 in e4m3, none of them NaN. */
static void make_block(uint16_t *x, size_t n, bool bytes)
{
    uint32_t r = 1;
    for (size_t i = 0; i < n; i++) {
        r = r * 1664525u + 1013904223u;
        x[i] = (uint16_t)(bytes ? (r >> 16 & 0x8787) | 0x3030 : (r >> 16 & 0x80ff) | 0x3f00);
    }
}

/* Copies one block from the host, then doubles it with every device copy. */
static int fill(struct autotune *f, const struct stage *g, bool bytes_are_numbers, struct error *e)
{
    const uint64_t bytes = g->step * (uint64_t)g->sets;
    uint64_t done = min_u64(bytes, BLOCK);
    uint16_t *block = mem_alloc(BLOCK);
    make_block(block, BLOCK / sizeof *block, bytes_are_numbers);
    f->touched = (uint64_t)(g->a - f->arena) + bytes > f->touched ? (uint64_t)(g->a - f->arena) + bytes : f->touched;
    cudaError_t rc = cudaMemcpyAsync(g->a, block, done, cudaMemcpyHostToDevice, f->stream);
    for (uint64_t more; rc == cudaSuccess && done < bytes; done += more) {
        more = min_u64(done, bytes - done);
        rc = cudaMemcpyAsync(g->a + done, g->a, more, cudaMemcpyDeviceToDevice, f->stream);
    }
    if (rc == cudaSuccess) rc = cudaStreamSynchronize(f->stream);
    mem_free(block);
    return rc == cudaSuccess ? PL_OK : cuda_failed(e, rc, "filling operands to time products");
}

/* --- timing ----------------------------------------------------------------------------------- */

/* A matmul and its proposals while they are timed. */
struct contest {
    struct gemm *p;
    const struct gemm_shape *part;  /* of it, that is computed at a time */
    const cublasLtMatmulHeuristicResult_t *found;
    int n, runs;
    uint64_t workspace;
    struct stage stage;
    double ms[PROPOSALS_MOST];      /* by proposal; infinite: the proposal does not run */
};

/* Measures the milliseconds per launch of proposal k, averaged over `runs` launches after the first
 * `skip`. A proposal that the library refuses at launch is dropped; an error of the GPU is
 * returned. */
static int time_after_warmup(struct autotune *f, struct contest *t, int k, int skip, int runs, double *ms,
                             struct error *e)
{
    struct error refused = {0};
    float took = 0;
    *ms = INFINITY;
    t->p->algorithm = t->found[k].algo;
    for (int i = 0; i < skip + runs; i++) {
        if (i == skip) TRY_CUDA(cudaEventRecord(f->from, f->stream));
        const uint64_t on = (uint64_t)(i % t->stage.sets) * t->stage.step;
        const struct gemm_at at = {t->stage.c + on, t->stage.a + on, t->stage.b + on, t->stage.bias + on,
                                   t->stage.from ? t->stage.from + on : NULL, (const float *)(t->stage.a_scale + on),
                                   (const float *)(t->stage.b_scale + on)};
        if (gemm_run(t->p, &at, t->stage.work, t->workspace, f->stream, &refused)) break;
    }
    TRY_CUDA(cudaEventRecord(f->to, f->stream));
    TRY_CUDA(cudaEventSynchronize(f->to));
    TRY_CUDA(cudaEventElapsedTime(&took, f->from, f->to));
    if (!refused.code) *ms = (double)took / runs;
    return PL_OK;
}

static int time_runs(struct autotune *f, struct contest *t, int k, int runs, double *ms, struct error *e)
{
    return time_after_warmup(f, t, k, 0, runs, ms, e);
}

/* Runs each proposal once, which loads its kernels, and then a few times. */
static int run_all(struct autotune *f, struct contest *t, struct error *e)
{
    double ms;
    for (int k = 0; k < t->n; k++) TRY(time_runs(f, t, k, 1, &ms, e));
    TRY(time_runs(f, t, 0, 2, &ms, e));
    t->runs = ms < RUN_MS / RUNS_MOST ? RUNS_MOST : ms < RUN_MS ? (int)(RUN_MS / ms + 0.5) : 1;
    for (int k = 0; k < t->n; k++) TRY(time_runs(f, t, k, t->runs, &t->ms[k], e));
    return PL_OK;
}

/* Finds the finalists: the library's first proposals (LEADERS of them) and the best of the
 * others. */
static int find_finalists(const struct contest *t, int finalist[FINALISTS])
{
    int m = 0;
    for (int k = 0; k < t->n && k < LEADERS; k++)
        if (isfinite(t->ms[k])) finalist[m++] = k;
    while (m < FINALISTS) {
        int best = -1;
        for (int k = LEADERS; k < t->n; k++) {
            bool in = !isfinite(t->ms[k]);
            for (int i = 0; i < m; i++) in |= finalist[i] == k;
            if (!in && (best < 0 || t->ms[k] < t->ms[best])) best = k;
        }
        if (best < 0) break;
        finalist[m++] = best;
    }
    return m;
}

static int by_value(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

/* Measures `m` finalists in several rounds; ms[i][round] is the time of finalist i. */
static int run_rounds(struct autotune *f, struct contest *t, const int *finalist, int m, double ms[FINALISTS][ROUNDS],
                      struct error *e)
{
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < m; i++) TRY(time_runs(f, t, finalist[i], t->runs, &ms[i][round], e));
    return PL_OK;
}

/* Returns the number of launches of proposal k that take `ms` milliseconds. */
static int launches(const struct contest *t, int k, double ms) { return (int)fmin(ms / t->ms[k], 1e6) + 1; }

static int time_under_load(struct autotune *f, struct contest *t, int k, double *ms, struct error *e)
{
    return time_after_warmup(f, t, k, launches(t, k, SKIP), launches(t, k, HOLD), ms, e);
}

static int run_under_load(struct autotune *f, struct contest *t, const int *finalist, int m,
                          double ms[FINALISTS][ROUNDS], struct error *e)
{
    double best = INFINITY;
    TRY(time_runs(f, t, 0, launches(t, 0, f->warm ? REWARM : WARM), &ms[0][0], e));
    f->warm = true;
    for (int i = 0; i < m; i++) {
        TRY(time_under_load(f, t, finalist[i], &ms[i][0], e));
        best = ms[i][0] < best ? ms[i][0] : best;
    }
    for (int i = m; i-- > 0;) {
        ms[i][1] = ms[i][0];
        if (finalist[i] == 0 || ms[i][0] < (1 + FINAL_MARGIN) * best)
            TRY(time_under_load(f, t, finalist[i], &ms[i][1], e));
    }
    return PL_OK;
}

/* Sets *taken to the rank of the fastest proposal, or to 0. */
static int run_finals(struct autotune *f, struct contest *t, int *taken, struct error *e)
{
    double ms[FINALISTS][ROUNDS];
    const bool large = is_large(&t->p->shape);
    const int rounds = large ? 2 : ROUNDS;
    int finalist[FINALISTS], m = find_finalists(t, finalist), best = 0;
    TRY((large ? run_under_load : run_rounds)(f, t, finalist, m, ms, e));
    for (int i = 0; i < m; i++) {
        qsort(ms[i], (size_t)rounds, sizeof ms[i][0], by_value);
        t->ms[finalist[i]] = (ms[i][(rounds - 1) / 2] + ms[i][rounds / 2]) / 2; /* the median */
        if (t->ms[finalist[i]] < t->ms[finalist[best]]) best = i;
    }
    *taken = t->ms[finalist[best]] < (1 - MARGIN) * t->ms[0] ? finalist[best] : 0;
    return PL_OK;
}

static int measure(struct autotune *f, struct contest *t, const char *key, struct choice *x, struct error *e)
{
    int taken = 0;
    memset(x, 0, sizeof *x);
    snprintf(x->key, sizeof x->key, "%s", key);
    TRY(fill(f, &t->stage, t->p->shape.a.dtype == DT_E4M3, e));
    TRY(run_all(f, t, e));
    if (!isfinite(t->ms[0])) return PL_OK; /* the launch in the run reports the error */
    TRY(run_finals(f, t, &taken, e));
    autotune_identify(&t->found[taken].algo, x->number);
    x->first = t->ms[0];
    x->taken = t->ms[taken];
    return PL_OK;
}

/* --- choosing --------------------------------------------------------------------------------- */

/* Uses the first proposals from here to the end of the recording. */
static void disable(struct autotune *f, const struct error *why)
{
    f->measures = false;
    log_warn("cuBLASLt algorithms are not autotuned, the library's first proposals are used: %s", why->text);
}

static void open_file(struct autotune *f)
{
    struct error why = {0};
    f->opened = true;
    if (!choices_path(f->gpu, cublasLtGetVersion(), f->kept.path, sizeof f->kept.path))
        error_set(&why, PL_FAIL, "neither XDG_DATA_HOME nor HOME is set, so there is no folder to store them in");
    else if (!choices_read(&f->kept, &why)) f->reads = true;
    if (why.code) disable(f, &why);
}

/* Finds room for the operands of the matmul, or of the part of it that the arena holds. */
static int make_room(const struct autotune *f, struct contest *t, bool *found, struct error *e)
{
    *found = lay_out(&t->stage, f, &t->p->shape, t->workspace);
    if (*found) return PL_OK;
    TRY(gemm_describe(t->p, t->part, e));
    *found = lay_out(&t->stage, f, &t->p->shape, t->workspace);
    return PL_OK;
}

/* Looks the key up. A missing one is measured, if measuring is possible, by this process or by one
 * that holds the lock. *kept is NULL if there is no stored choice. */
static int look_up(struct autotune *f, struct contest *t, const char *key, const struct choice **kept, struct error *e)
{
    struct error why = {0};
    struct choice x;
    bool room;
    if (!f->opened) open_file(f);
    *kept = f->reads ? choices_find(&f->kept, key) : NULL;
    if ((*kept && rank_of((*kept)->number, t->found, t->n) >= 0) || !f->measures) return PL_OK;
    TRY(make_room(f, t, &room, e));
    if (!room) return PL_OK;
    if (f->kept.lock < 0) {
        if (choices_lock(&f->kept, LOCK_TIMEOUT, &why)) return disable(f, &why), PL_OK;
        *kept = choices_find(&f->kept, key);
        if (*kept && rank_of((*kept)->number, t->found, t->n) >= 0) return PL_OK;
        log_note("autotuning matmul shapes that are new on this GPU, two or three seconds for each large one; results "
                 "are stored in %s", f->kept.path);
    }
    *kept = NULL;
    TRY(measure(f, t, key, &x, e));
    if (!x.taken) return PL_OK;
    if (choices_add(&f->kept, &x, &why)) disable(f, &why);
    else *kept = choices_find(&f->kept, key);
    return PL_OK;
}

int autotune_choose(struct gemm *p, const struct cuda_state *s, const struct gemm_shape *part,
                    const cublasLtMatmulHeuristicResult_t *found, int n, uint64_t workspace, struct error *e)
{
    char key[CHOICE_KEY];
    const struct choice *kept = NULL;
    struct contest t = {.p = p, .part = part, .found = found, .n = n, .workspace = workspace};
    CHECK(n >= 1 && n <= PROPOSALS_MOST, "%d proposals", n);
    if (s->autotune && n > 1 && print_key(key, &p->shape, workspace)) TRY(look_up(s->autotune, &t, key, &kept, e));
    const int rank = kept ? rank_of(kept->number, found, n) : 0;
    p->algorithm = found[rank < 0 ? 0 : rank].algo;
    p->timed = kept && rank >= 0;
    return PL_OK;
}

/* --- recording -------------------------------------------------------------------------------- */

int autotune_begin(struct cuda_state *s, char *arena, uint64_t bytes, struct error *e)
{
    CHECK(!s->autotune, "the arena is not fresh");
    struct autotune *f = s->autotune = mem_alloc(sizeof *f);
    f->kept.lock = -1;
    f->gpu = s->gpu;
    f->arena = arena;
    f->bytes = bytes;
    f->stream = s->lane[LANE_COMPUTE];
    TRY_CUDA(cudaEventCreate(&f->from));
    TRY_CUDA(cudaEventCreate(&f->to));
    f->measures = true;
    return PL_OK;
}

int autotune_end(struct cuda_state *s, struct error *e)
{
    struct autotune *f = s->autotune;
    if (!f) return PL_OK;
    f->measures = false;
    choices_unlock(&f->kept);
    if (f->from) cudaEventDestroy(f->from);
    if (f->to) cudaEventDestroy(f->to);
    f->from = f->to = NULL;
    const uint64_t touched = f->touched;
    f->touched = 0;
    if (!touched) return PL_OK;
    TRY_CUDA(cudaMemsetAsync(f->arena, 0, touched, f->stream));
    TRY_CUDA(cudaStreamSynchronize(f->stream));
    return PL_OK;
}

/* Sends to all from rank 0, or receives from it. */
static int broadcast(struct ranks *r, void *at, uint64_t bytes, struct error *e)
{
    struct move *moves = mem_alloc((size_t)r->n * sizeof *moves);
    int n = 0;
    if (r->rank) moves[n++] = (struct move){0, at, bytes, false};
    for (int i = 1; i < r->n && !r->rank; i++) moves[n++] = (struct move){i, at, bytes, true};
    r->where = "kernel choices";
    const int rc = r->exchange(r, moves, n, e);
    r->where = NULL;
    mem_free(moves);
    return rc;
}

int autotune_share(struct cuda_state *s, struct ranks *r, struct error *e)
{
    struct autotune *f = s->autotune;
    struct text list = {0};
    uint64_t *all = mem_alloc((size_t)r->n * sizeof *all), bytes;
    for (uint32_t i = 0; f && !r->rank && i < f->kept.list.n; i++) choice_print(&f->kept.list.at[i], &list);
    bytes = list.n;
    int rc = r->gather(r, &bytes, all, sizeof bytes, e); /* returns when rank 0 has measured */
    bytes = all[0];
    char *text = r->rank ? mem_alloc(bytes + 1) : list.at;
    if (!rc && bytes) rc = broadcast(r, text, bytes, e);
    if (!rc && r->rank && f) {
        choices_parse(&f->kept, text, bytes);
        f->opened = f->reads = true;
        f->measures = false;
    }
    if (r->rank) mem_free(text);
    text_free(&list);
    mem_free(all);
    return rc;
}

void autotune_free(struct cuda_state *s)
{
    struct error ignored = {0};
    if (!s->autotune) return;
    autotune_end(s, &ignored);
    choices_free(&s->autotune->kept);
    mem_free(s->autotune);
    s->autotune = NULL;
}
