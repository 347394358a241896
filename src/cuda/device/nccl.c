/*
 * nccl.c: NCCL, only its sends and receives: it moves bytes and adds nothing, because its sums
 * depend on the number of ranks and on their places. The library is opened when it is needed; its
 * few functions are declared here, as its documentation has them, so that no header of it is needed
 * to build.
 *
 * NCCL takes GPU memory of its own, which is in no plan: when it is connected, and for its kernels.
 * All of that happens before the tape is recorded, and is measured (transport.c). Its number of
 * blocks is limited, which limits that memory.
 *
 * Connecting and closing wait for other ranks inside NCCL. They run on a thread of their own, and
 * the caller waits for it with the deadline of ranks. NCCL's own way, communicators that do not
 * block, would also launch every exchange from another thread, in the middle of a capture.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cuda/device/transport.h"

enum { LEAST_VERSION = 21900, BYTES = 1 /* ncclUint8 */, IN_PROGRESS = 7, SCRATCH = 1024, CLOSE_SECONDS = 30 };
typedef struct { char internal[128]; } unique_id;

struct nccl {
    void *library, *comm;
    char version[32];
    int (*get_version)(int *);
    const char *(*error_string)(int);
    int (*get_id)(unique_id *);
    int (*init)(void **comm, int ranks, unique_id, int rank);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    int (*async_error)(void *comm, int *);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*send)(const void *, size_t count, int type, int peer, void *comm, cudaStream_t);
    int (*receive)(void *, size_t count, int type, int peer, void *comm, cudaStream_t);
};

static int failed(const struct nccl *x, int rc, const char *call, struct error *e)
{
    return error_set(e, PL_FAIL, "NCCL: %s: %s (NCCL_DEBUG=WARN tells more)", call, x->error_string(rc));
}

#define TRY_NCCL(x, call)                                      \
    do {                                                       \
        int rc_ = (x)->call;                                   \
        if (rc_) return failed((x), rc_, #call, e);            \
    } while (0)

static bool find_functions(struct nccl *x)
{
    const struct { void *to; const char *name;
    } list[] = {{&x->get_version, "ncclGetVersion"},
                {&x->error_string, "ncclGetErrorString"},
                {&x->get_id, "ncclGetUniqueId"},
                {&x->init, "ncclCommInitRank"},
                {&x->destroy, "ncclCommDestroy"},
                {&x->abort, "ncclCommAbort"},
                {&x->async_error, "ncclCommGetAsyncError"},
                {&x->group_start, "ncclGroupStart"},
                {&x->group_end, "ncclGroupEnd"},
                {&x->send, "ncclSend"},
                {&x->receive, "ncclRecv"}};
    for (size_t i = 0; i < COUNT(list); i++) {
        void *symbol = dlsym(x->library, list[i].name);
        if (!symbol) return false;
        memcpy(list[i].to, &symbol, sizeof symbol);
    }
    return true;
}

struct nccl *nccl_load(struct error *e)
{
    const char *given = getenv("PLIMSOLL_NCCL"), *file = given && given[0] ? given : "libnccl.so.2";
    struct nccl *x = mem_alloc(sizeof *x);
    int version = 0;
    setenv("NCCL_MAX_CTAS", "8", 0);
    setenv("NCCL_RUNTIME_CONNECT", "0", 0); /* everything is connected at once */
    x->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!x->library) error_set(e, PL_FAIL, "%.150s cannot be loaded", file);
    else if (!find_functions(x)) error_set(e, PL_FAIL, "%.150s is no NCCL", file);
    else if (x->get_version(&version) || version < LEAST_VERSION)
        error_set(e, PL_FAIL, "NCCL %d.%d is too old", version / 10000, version / 100 % 100);
    else {
        snprintf(x->version, sizeof x->version, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
        return x;
    }
    if (x->library) dlclose(x->library);
    mem_free(x);
    return NULL;
}

const char *nccl_version(const struct nccl *x) { return x->version; }

/* Gives all ranks the id that rank 0 makes. */
static int share_id(const struct nccl *x, struct ranks *r, unique_id *of_zero, struct error *e)
{
    unique_id *all = mem_alloc((size_t)r->n * sizeof *all);
    struct error why = {0};
    memset(of_zero, 0, sizeof *of_zero);
    int failure = r->rank ? 0 : x->get_id(of_zero);
    if (failure) failed(x, failure, "ncclGetUniqueId", &why);
    int rc = r->gather(r, of_zero, all, sizeof *of_zero, e);
    *of_zero = all[0];
    mem_free(all);
    if (why.code) *e = why;
    return why.code ? why.code : rc;
}

/* A call that waits for other ranks. */
struct call {
    int (*run)(struct call *, struct error *);
    struct nccl *x;
    struct ranks *ranks;
    char *scratch;
    cudaStream_t stream;
    unique_id name;
    int gpu, rc;
    struct error e;
    atomic_int done;
};

static void *run_call(void *at)
{
    struct call *c = at;
    cudaSetDevice(c->gpu); /* each thread has its own */
    c->rc = c->run(c, &c->e);
    atomic_store(&c->done, 1);
    return NULL;
}

/* Reports whether the call has returned within the seconds; otherwise its thread is left behind,
 * and `c` must stay. */
static bool call_within(struct call *c, double seconds)
{
    pthread_t thread;
    const double from = clock_seconds();
    cudaGetDevice(&c->gpu);
    CHECK(!pthread_create(&thread, NULL, run_call, c), "no thread for NCCL");
    while (!atomic_load(&c->done)) {
        if (clock_seconds() - from > seconds) {
            pthread_detach(thread);
            return false;
        }
        usleep(200);
    }
    pthread_join(thread, NULL);
    return true;
}

/* Connects, and exchanges once with every peer. */
static int connect_all(struct call *c, struct error *e)
{
    struct nccl *x = c->x;
    const struct ranks *r = c->ranks;
    int n = 0;
    TRY_NCCL(x, init(&x->comm, r->n, c->name, r->rank));
    struct move *moves = mem_alloc(2 * (size_t)r->n * sizeof *moves);
    for (int peer = 0; peer < r->n; peer++) {
        if (peer == r->rank && r->n > 1) continue;
        moves[n++] = (struct move){peer, c->scratch, SCRATCH, true};
        moves[n++] = (struct move){peer, c->scratch + SCRATCH, SCRATCH, false};
    }
    int rc = nccl_exchange(x, moves, n, c->stream, e);
    mem_free(moves);
    if (rc) return rc;
    TRY_CUDA(cudaStreamSynchronize(c->stream));
    return PL_OK;
}

int nccl_connect(struct nccl *x, struct ranks *r, char *scratch, cudaStream_t stream, struct error *e)
{
    static const unique_id none;
    struct call *c = mem_alloc(sizeof *c);
    const double seconds = r->timeout * (r->patient ? 6 : 1);
    *c = (struct call){.run = connect_all, .x = x, .ranks = r, .scratch = scratch, .stream = stream};
    int rc = share_id(x, r, &c->name, e);
    if (!rc && !memcmp(&c->name, &none, sizeof none)) rc = error_set(e, PL_FAIL, "NCCL does not start on rank 0");
    if (!rc && !call_within(c, seconds)) {
        error_set(e, PL_FAIL, "waited %g s for NCCL to connect the ranks: is one of them stopped, or the network "
                  "between GPUs down? (NCCL_DEBUG=INFO tells more)", seconds);
        r->abort(r, PL_FAIL, e->text);
    }
    if (!rc && (rc = c->rc)) {
        *e = c->e;
        if (r->n > 1) r->abort(r, PL_FAIL, e->text); /* the others wait inside NCCL */
    }
    mem_free(c);
    return rc;
}

int nccl_exchange(struct nccl *x, const struct move *moves, int n, cudaStream_t stream, struct error *e)
{
    TRY_NCCL(x, group_start());
    for (int i = 0; i < n; i++) {
        const struct move *m = &moves[i];
        if (m->send) TRY_NCCL(x, send(m->at, m->bytes, BYTES, m->peer, x->comm, stream));
        else TRY_NCCL(x, receive(m->at, m->bytes, BYTES, m->peer, x->comm, stream));
    }
    TRY_NCCL(x, group_end());
    return PL_OK;
}

int nccl_check(const struct nccl *x, struct error *e)
{
    int found = 0;
    TRY_NCCL(x, async_error(x->comm, &found));
    return !found || found == IN_PROGRESS ? PL_OK : failed(x, found, "a collective", e);
}

static int close_all(struct call *c, struct error *e)
{
    (void)e;
    return c->x->destroy(c->x->comm);
}

/* Closes the communicator. Ranks that are gone do not keep this one: one that cannot be closed in
 * time is left to the end of the process. */
void nccl_close(struct nccl *x, bool abort)
{
    struct call *c = mem_alloc(sizeof *c);
    *c = (struct call){.run = close_all, .x = x};
    if (x->comm && abort) x->abort(x->comm);
    else if (x->comm && !call_within(c, CLOSE_SECONDS)) return;
    x->comm = NULL;
    mem_free(c);
    if (!abort) mem_free(x); /* the library stays: it may have threads */
}
