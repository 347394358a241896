/*
 * launch.c: finds out whether a launcher started this process as a rank, and starts ranks on this
 * machine.
 *
 *     PMIX_RANK, OMPI_COMM_WORLD_SIZE, PMI_SIZE     mpirun, or srun with --mpi=pmix or pmi2     MPI is opened
 *     SLURM_STEP_NUM_TASKS above 1, none of these   srun without PMIx                           refused
 *     RANK, WORLD_SIZE, MASTER_ADDR                 torchrun                                    refused
 *     PLIMSOLL_RANKS=1, and none of these           nobody: for tests (below)                 a single rank
 *
 * A process that goes on without the others would train the same model by itself, N times: so each
 * of these is an error.
 */
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include "base/system.h"
#include "dist/agree.h"
#include "dist/dist.h"
#include "io/file.h"

static int64_t number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoll(text, NULL, 10) : 0;
}

/* Reports whether a launcher that speaks MPI's protocol started this process. */
static bool has_mpi(void) { return getenv("PMIX_RANK") || getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE"); }
static bool is_slurm(void) { return !has_mpi() && number("SLURM_STEP_NUM_TASKS") > 1; }
static bool is_torchrun(void)
{
    return !has_mpi() && getenv("RANK") && number("WORLD_SIZE") > 1 && getenv("MASTER_ADDR");
}

static int64_t launched_rank(void)
{
    return getenv("PMIX_RANK")              ? number("PMIX_RANK")
           : getenv("OMPI_COMM_WORLD_RANK") ? number("OMPI_COMM_WORLD_RANK")
                                            : number("PMI_RANK");
}
static int64_t launched_size(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") ? number("OMPI_COMM_WORLD_SIZE")
           : getenv("PMI_SIZE")           ? number("PMI_SIZE")
                                          : number("SLURM_STEP_NUM_TASKS");
}

int64_t dist_launched(void)
{
    const int64_t n = is_torchrun() ? number("WORLD_SIZE") : has_mpi() || is_slurm() ? launched_size() : 1;
    return n > 1 ? n : 1;
}

int dist_share_threads(int64_t allowed, int64_t online, int64_t local)
{
    return (int)max_i64(1, min_i64(allowed, online / max_i64(1, local)));
}

int dist_threads(int64_t local)
{
    struct system_processors here;
    system_processors(&here);
    const int64_t online = here.quota ? min_i64(here.online, (int64_t)here.quota) : here.online;
    return getenv("OMP_NUM_THREADS") ? 0 : dist_share_threads(here.usable, online, local);
}

static bool find_plugin(char path[PLUGIN_PATH]) { return plugin_find("plimsoll-mpi.so", path); }

static const struct mpi_plugin *open_plugin(struct error *e)
{
    char path[PLUGIN_PATH];
    if (!find_plugin(path)) {
        error_set(e, PL_USAGE,
                  "launched as rank %lld of %lld, and this build has no MPI (plimsoll-mpi.so): install Open MPI "
                  "(libopenmpi-dev, openmpi-bin) and build again",
                  (long long)launched_rank(), (long long)launched_size());
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* Open MPI's own plug-ins need its symbols */
    const struct mpi_plugin *p = handle ? dlsym(handle, "plimsoll_mpi_plugin") : NULL;
    if (p && p->abi == MPI_PLUGIN_ABI) return p;
    error_set(e, PL_USAGE, "%s cannot be used: %s", path, p ? "it is of another build" : dlerror());
    return NULL;
}

/* Lets ranks that share processors yield while they wait: Open MPI spins, and mpirun sets this,
 * but srun does not. */
static void yield_when_idle(void)
{
    const int64_t local = number("OMPI_COMM_WORLD_LOCAL_SIZE") ? number("OMPI_COMM_WORLD_LOCAL_SIZE")
                                                               : number("SLURM_STEP_TASKS_PER_NODE");
    if (local > sysconf(_SC_NPROCESSORS_ONLN)) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

/* Returns a hash of the program's file, so that no rank runs another build; 0: it cannot be
 * read. */
static uint64_t hash_program(void)
{
    struct error ignored;
    char *bytes = NULL;
    size_t n = 0;
    if (file_read("/proc/self/exe", UINT64_MAX, &bytes, &n, &ignored)) return 0;
    const uint64_t h = hash_bytes(bytes, n, 0);
    mem_free(bytes);
    return h;
}

/* Checks that all ranks run this program, before anything else: nothing else of another build can
 * be understood. */
static void agree_on_program(struct ranks *r, struct error *e)
{
    agree_same(r, &(struct agree_same){"the program", hash_program()}, r->n > 1, e);
}

struct ranks *dist_open(struct error *e)
{
    e->code = PL_OK;
    if (is_slurm()) {
        error_set(e, PL_USAGE,
                  "srun started %lld tasks without PMIx, so each would train by itself: use srun --mpi=pmix",
                  (long long)number("SLURM_STEP_NUM_TASKS"));
        return NULL;
    }
    if (is_torchrun()) {
        error_set(e, PL_USAGE,
                  "torchrun started this as rank %s of %s, and ranks are connected by MPI: use mpirun -np %s plimsoll "
                  "train RUN.yaml",
                  getenv("RANK"), getenv("WORLD_SIZE"), getenv("WORLD_SIZE"));
        return NULL;
    }
    const bool motions = !has_mpi() && number("PLIMSOLL_RANKS") == 1;
    if (!has_mpi() && !motions) return NULL;
    const struct mpi_plugin *p = motions ? NULL : open_plugin(e);
    if (!p && !motions) return NULL;
    yield_when_idle();
    struct ranks *r = mem_alloc(sizeof *r);
    r->timeout = 60; /* until the configuration is known */
    if (motions) dist_alone(r);
    else if (p->open(r, e)) {
        mem_free(r);
        return NULL;
    }
    agree_open(r);
    agree_on_program(r, e);
    return r;
}

void dist_close(struct ranks *r)
{
    if (!r) return;
    r->close(r);
    mem_free(r->room);
    mem_free(r);
}

int dist_start(int64_t ranks, const char *const *argv, int argc, struct error *e)
{
    char count[24], self[4096], plugin[PLUGIN_PATH];
    const ssize_t end = readlink("/proc/self/exe", self, sizeof self - 1);
    int n = 0;
    if (end < 0) return error_set(e, PL_FAIL, "cannot find this program's file");
    if (!find_plugin(plugin))
        return error_set(e, PL_USAGE,
                         "--ranks %lld: this build has no MPI (plimsoll-mpi.so): install Open MPI (libopenmpi-dev, "
                         "openmpi-bin) and build again",
                         (long long)ranks);
    const char **list = mem_alloc(((size_t)argc + 16) * sizeof *list);
    self[end] = '\0';
    snprintf(count, sizeof count, "%lld", (long long)ranks);
    const char *const head[] = {"mpirun", "-np", count, "--bind-to", "none", "--oversubscribe", self};
    for (size_t i = 0; i < COUNT(head); i++) list[n++] = head[i];
    for (int i = 0; i < argc; i++) list[n++] = argv[i];
    if (!geteuid()) { /* Open MPI refuses root unless it is told twice; who runs us as root runs ranks as root */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    execvp("mpirun", (char *const *)list);
    const int why = errno;
    mem_free(list);
    return error_set(e, PL_USAGE,
                     "--ranks %lld needs mpirun, which cannot be started: %s; install Open MPI (openmpi-bin)",
                     (long long)ranks, strerror(why));
}

/* --- a single rank that goes through the motions of several, for tests and to measure what they
 * cost (PLIMSOLL_RANKS=1): its plan has the collectives, and what it sends goes to itself ------ */

/* Copies what the k-th send has to the k-th receive. */
static int alone_exchange(struct ranks *r, const struct move *m, int n, struct error *e)
{
    (void)r;
    for (int i = 0, j = 0; i < n; i++) {
        if (!m[i].send) continue;
        while (j < n && m[j].send) j++;
        if (j == n || m[j].bytes != m[i].bytes)
            return error_set(e, PL_FAIL, "the only rank sends what it does not receive");
        memmove(m[j++].at, m[i].at, m[i].bytes);
    }
    return PL_OK;
}

static int alone_gather(struct ranks *r, const void *mine, void *all, size_t each, struct error *e)
{
    (void)r, (void)e;
    memcpy(all, mine, each);
    return PL_OK;
}

static void alone_end_now(struct ranks *r, int code, const char *why)
{
    fprintf(stderr, "plimsoll: %s\n", why);
    (void)r;
    _exit(code);
}

static void alone_finish(struct ranks *r) { (void)r; }

void dist_alone(struct ranks *r)
{
    *r = (struct ranks){.n = 1, .local = 1, .threads = true, .motions = true, .timeout = r->timeout,
                        .exchange = alone_exchange, .gather = alone_gather, .abort = alone_end_now,
                        .close = alone_finish};
    gethostname(r->host, sizeof r->host - 1);
}
