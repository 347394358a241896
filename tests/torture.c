/*
 * torture.c: makes the N-th fallible call of a process fail, so that a test can try every N.
 *
 *   LD_PRELOAD=torture.so TORTURE=N [TORTURE_CALLS=alloc,file,map,thread,mpi,cuda]
 *   [TORTURE_RANK=R] [TORTURE_LOG=FILE] plimsoll ...
 *
 * In a process of another program nothing fails, nor in a rank that mpirun started, except in rank
 * R if TORTURE_RANK names one: then nothing fails elsewhere, and the other ranks have to notice how
 * rank R ends. Counts calls of the kinds that TORTURE_CALLS names (default: all), from 1, made by
 * the program, its plug-ins and the libraries that read files. Calls of the C library itself, of
 * OpenMP, MPI, CUDA and what these load are not counted: what fails inside of them shows up as a
 * failing call of ours. Nor are those of Oniguruma: version 6.9.8 frees memory twice when an
 * allocation fails while it compiles an expression. A wait polls MPI as often as the time allows:
 * polls that find nothing are not counted, so that call N is the same one in every run.
 *
 *   N       call number N fails, with the errno or the code that its kind has; all others work
 *   N+      call number N and all later ones of its kind fail, as when memory has run out
 *   0       no call fails
 *
 * TORTURE_LOG gets the number of calls on its first line. A line "N name" follows for the call that
 * failed; with TORTURE=0 for the first call from each distinct place, which is the call with its
 * FRAMES nearest callers: the moments that a quick test tries.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

enum { ALLOC, FILES, MAP, THREAD, MPI, CUDA, KINDS };
static const char *const kind_names[KINDS] = {"alloc", "file", "map", "thread", "mpi", "cuda"};

static bool counted[KINDS];
static bool ready, logging, lasting;
static long moment;
static int failing_kind = -1;
static atomic_long calls;

/* ---- who calls: address ranges of the modules whose calls are counted ---- */

struct module {
    uintptr_t from, to;
    bool counted;
};
static struct module modules[512];
static int n_modules;
static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER;

static bool module_counts(const char *path)
{
    static const char *const apart[] = {"libc.so",   "libc-",     "ld-linux",  "libgomp",  "libgcc_s",  "libpthread",
                                        "libm.so",   "libstdc++", "libmpi",    "libopen-", "libpmix",   "libevent",
                                        "libhwloc",  "libucp",    "libucs",    "libuct",   "libfabric", "libcuda",
                                        "libcublas", "libnccl",   "libnvidia", "mca_",     "libonig",   "torture",
                                        "hwloc_",    "libpciaccess", "libX",  "libxcb",   "libOpenCL"};
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        if (!strncmp(name, apart[i], strlen(apart[i]))) return false;
    return true;
}

static int add_module(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X) || n_modules == (int)(sizeof modules / sizeof *modules))
            continue;
        uintptr_t from = info->dlpi_addr + p->p_vaddr;
        modules[n_modules++] = (struct module){from, from + p->p_memsz, module_counts(info->dlpi_name)};
    }
    return 0;
}

static const struct module *find_module(uintptr_t at)
{
    for (int i = 0; i < n_modules; i++)
        if (at >= modules[i].from && at < modules[i].to) return &modules[i];
    return NULL;
}

static bool caller_counts(uintptr_t at)
{
    pthread_mutex_lock(&modules_lock);
    const struct module *m = find_module(at);
    if (!m) { /* a library that was opened since */
        n_modules = 0;
        dl_iterate_phdr(add_module, NULL);
        m = find_module(at);
    }
    bool result = m && m->counted;
    pthread_mutex_unlock(&modules_lock);
    return result;
}

/* ---- distinct places ---- */

enum { FRAMES = 4, PLACES = 1 << 16 };
static uint64_t places[PLACES];
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static int log_file = -1;

struct walk {
    uint64_t hash;
    int frames;
};

static _Unwind_Reason_Code visit(struct _Unwind_Context *context, void *data)
{
    struct walk *w = data;
    uintptr_t at = _Unwind_GetIP(context);
    if (!caller_counts(at)) return w->frames ? _URC_END_OF_STACK : _URC_NO_REASON;
    w->hash = (w->hash ^ at) * 0x9e3779b97f4a7c15u;
    return ++w->frames == FRAMES ? _URC_END_OF_STACK : _URC_NO_REASON;
}

static void note_call(long now, const char *name)
{
    char line[96];
    int n = snprintf(line, sizeof line, "%ld %s\n", now, name);
    if (log_file >= 0 && syscall(SYS_write, log_file, line, n) != n) _exit(99);
}

static void note_place(long now, const char *name)
{
    struct walk w = {.hash = 0x1234567};
    _Unwind_Backtrace(visit, &w);
    uint64_t key = w.hash | 1;
    pthread_mutex_lock(&places_lock);
    uint32_t i = (uint32_t)(key >> 40) % PLACES;
    while (places[i] && places[i] != key) i = (i + 1) % PLACES;
    if (!places[i]) {
        places[i] = key;
        note_call(now, name);
    }
    pthread_mutex_unlock(&places_lock);
}

/* ---- the N-th call ---- */

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("TORTURE"), *kinds = getenv("TORTURE_CALLS"), *log = getenv("TORTURE_LOG"),
               *rank = getenv("OMPI_COMM_WORLD_RANK"), *failing_rank = getenv("TORTURE_RANK");
    char self[4096];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    self[size < 0 ? 0 : size] = 0;
    if (!text || !strstr(self, "plimsoll")) return;
    /* mpirun passes the variables on to the ranks. */
    if (rank && failing_rank ? strcmp(rank, failing_rank) : rank || failing_rank) return;
    char *end;
    moment = strtol(text, &end, 10);
    lasting = *end == '+';
    for (int k = 0; k < KINDS; k++) counted[k] = !kinds || strstr(kinds, kind_names[k]);
    dl_iterate_phdr(add_module, NULL);
    if (log) log_file = (int)syscall(SYS_openat, AT_FDCWD, log, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (log && (log_file < 0 || syscall(SYS_write, log_file, "            \n", 13) != 13)) _exit(99);
    logging = log && !moment;
    ready = true;
}

__attribute__((destructor)) static void finish(void)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%ld", atomic_load(&calls));
    if (log_file >= 0 && syscall(SYS_pwrite64, log_file, text, n, 0) != n) _exit(99);
}

/* Returns true if this call, which code at `from` makes, has to fail. */
static bool due(int kind, const char *name, void *from)
{
    static _Thread_local bool inside;
    if (!ready || !counted[kind] || inside) return false;
    inside = true;
    bool result = false;
    if (caller_counts((uintptr_t)from)) {
        long now = atomic_fetch_add(&calls, 1) + 1;
        if (logging) note_place(now, name);
        if (moment && now == moment) failing_kind = kind, note_call(now, name);
        result = moment && (now == moment || (lasting && now > moment && kind == failing_kind));
    }
    inside = false;
    return result;
}
#define DUE(kind) due(kind, __func__, __builtin_return_address(0))

/* Fails with errno. */
#define FAIL(code, value) return errno = code, value
#define NEXT(name) ((__typeof__(&name))next_of(#name))

static void *next_of(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);
    if (!f) _exit(99);
    return f;
}

/* ---- memory ---- */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes)
{
    if (DUE(ALLOC)) FAIL(ENOMEM, NULL);
    return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes)
{
    if (DUE(ALLOC)) FAIL(ENOMEM, NULL);
    return __libc_calloc(n, bytes);
}
void *realloc(void *p, size_t bytes)
{
    if (DUE(ALLOC)) FAIL(ENOMEM, NULL);
    return __libc_realloc(p, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes)
{
    if (DUE(ALLOC)) FAIL(ENOMEM, NULL);
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void **p, size_t alignment, size_t bytes)
{
    if (DUE(ALLOC)) return ENOMEM;
    *p = __libc_memalign(alignment, bytes);
    return *p ? 0 : ENOMEM;
}
char *realpath(const char *path, char *resolved)
{
    if (DUE(ALLOC)) FAIL(ENOMEM, NULL);
    return NEXT(realpath)(path, resolved);
}

static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (DUE(MAP)) FAIL(ENOMEM, MAP_FAILED);
    return map(at, bytes, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (DUE(MAP)) FAIL(ENOMEM, MAP_FAILED);
    return map(at, bytes, protection, flags, fd, offset);
}

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x)
{
    if (DUE(THREAD)) return EAGAIN;
    return NEXT(pthread_create)(t, a, f, x);
}

/* ---- files ---- */

/* The third argument is there with O_CREAT and O_TMPFILE; otherwise it is not read. */
#define MODE                   \
    va_list more;              \
    va_start(more, flags);     \
    int mode = va_arg(more, int); \
    va_end(more)

int open(const char *path, int flags, ...)
{
    MODE;
    if (DUE(FILES)) FAIL(EIO, -1);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...)
{
    MODE;
    if (DUE(FILES)) FAIL(EIO, -1);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...)
{
    MODE;
    if (DUE(FILES)) FAIL(EIO, -1);
    return (int)syscall(SYS_openat, folder, path, flags, mode);
}
FILE *fopen(const char *path, const char *how)
{
    if (DUE(FILES)) FAIL(EIO, NULL);
    return NEXT(fopen)(path, how);
}
FILE *fopen64(const char *path, const char *how)
{
    if (DUE(FILES)) FAIL(EIO, NULL);
    return NEXT(fopen64)(path, how);
}
FILE *fdopen(int fd, const char *how)
{
    if (DUE(FILES)) FAIL(ENOMEM, NULL);
    return NEXT(fdopen)(fd, how);
}
DIR *opendir(const char *path)
{
    if (DUE(FILES)) FAIL(EIO, NULL);
    return NEXT(opendir)(path);
}
/* A call that returns the number of bytes or -1. */
#define BYTES(name, type, parameters, ...)      \
    type name parameters                        \
    {                                           \
        if (DUE(FILES)) FAIL(EIO, -1);          \
        return NEXT(name)(__VA_ARGS__);         \
    }
BYTES(read, ssize_t, (int fd, void *p, size_t n), fd, p, n)
BYTES(pread, ssize_t, (int fd, void *p, size_t n, off_t at), fd, p, n, at)
BYTES(pread64, ssize_t, (int fd, void *p, size_t n, off_t at), fd, p, n, at)
BYTES(pwrite, ssize_t, (int fd, const void *p, size_t n, off_t at), fd, p, n, at)
BYTES(pwrite64, ssize_t, (int fd, const void *p, size_t n, off_t at), fd, p, n, at)
BYTES(rename, int, (const char *from, const char *to), from, to)
BYTES(mkdir, int, (const char *path, mode_t mode), path, mode)
BYTES(unlink, int, (const char *path), path)
BYTES(rmdir, int, (const char *path), path)
BYTES(ftruncate, int, (int fd, off_t n), fd, n)
BYTES(ftruncate64, int, (int fd, off_t n), fd, n)
BYTES(flock, int, (int fd, int how), fd, how)
BYTES(stat, int, (const char *restrict path, struct stat *restrict s), path, s)
BYTES(fstat, int, (int fd, struct stat *s), fd, s)
BYTES(lseek, off_t, (int fd, off_t at, int from), fd, at, from)
BYTES(lseek64, off_t, (int fd, off_t at, int from), fd, at, from)
BYTES(msync, int, (void *at, size_t n, int how), at, n, how)

/* Kept off the disk's speed: what is written counts, not whether it survives a power failure. */
int fsync(int fd)
{
    (void)fd;
    if (DUE(FILES)) FAIL(EIO, -1);
    return 0;
}
/* Standard error stays: a test reads it. */
ssize_t write(int fd, const void *p, size_t n)
{
    if (fd != STDERR_FILENO && DUE(FILES)) FAIL(ENOSPC, -1);
    return syscall(SYS_write, fd, p, n);
}
size_t fwrite(const void *p, size_t size, size_t n, FILE *f)
{
    if (f != stderr && DUE(FILES)) FAIL(ENOSPC, 0);
    return NEXT(fwrite)(p, size, n, f);
}
int fflush(FILE *f)
{
    if (f != stderr && DUE(FILES)) FAIL(ENOSPC, EOF);
    return NEXT(fflush)(f);
}
int fclose(FILE *f)
{
    bool fails = DUE(FILES);
    int rc = NEXT(fclose)(f);
    if (fails) FAIL(ENOSPC, EOF);
    return rc;
}
int posix_fallocate(int fd, off_t at, off_t n)
{
    if (DUE(FILES)) return ENOSPC;
    return NEXT(posix_fallocate)(fd, at, n);
}
int posix_fallocate64(int fd, off_t at, off_t n)
{
    if (DUE(FILES)) return ENOSPC;
    return NEXT(posix_fallocate)(fd, at, n);
}

/* The program that replaces this one starts again from 0. */
int execvp(const char *file, char *const *argv)
{
    if (DUE(FILES)) FAIL(ENOENT, -1);
    finish();
    return NEXT(execvp)(file, argv);
}

/* ---- MPI and CUDA ---- */

/* Returns the function of a library that a plug-in has opened, which RTLD_NEXT does not see. */
struct wanted {
    const char *library, *name;
    void *function;
};
static int look_in(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    struct wanted *w = data;
    if (!strstr(info->dlpi_name, w->library)) return 0;
    void *handle = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    w->function = handle ? dlsym(handle, w->name) : NULL;
    return w->function != NULL;
}
static void *function_of(const char *library, const char *name)
{
    struct wanted w = {library, name, NULL};
    dl_iterate_phdr(look_in, &w);
    if (!w.function) _exit(99);
    return w.function;
}

/* The arguments are integers and pointers: up to 16 words are handed over as they came, in
 * registers and on the stack. */
#define WORDS                                                                                                          \
    long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l, long m, long n,    \
        long o, long p
#define LIBRARY(kind, library, code, name)                                                      \
    long name(WORDS)                                                                            \
    {                                                                                           \
        static long (*next)(WORDS);                                                             \
        if (!next) next = (long (*)(WORDS))function_of(library, #name);                         \
        return DUE(kind) ? code : next(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);         \
    }
#define MPI_FAILURE 16 /* MPI_ERR_OTHER */
#define OF_MPI(name) LIBRARY(MPI, "/libmpi.so", MPI_FAILURE, name)
/* A poll, whose argument `found` points to what it has found. */
#define POLL_OF_MPI(name, found)                                                                \
    long name(WORDS)                                                                            \
    {                                                                                           \
        static long (*next)(WORDS);                                                             \
        if (!next) next = (long (*)(WORDS))function_of("/libmpi.so", #name);                    \
        const long result = next(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);               \
        return *(const int *)found && DUE(MPI) ? MPI_FAILURE : result;                          \
    }
#define OF_CUDA(name) LIBRARY(CUDA, "/libcudart.so", 2, name)        /* cudaErrorMemoryAllocation */
#define OF_CUBLAS(name) LIBRARY(CUDA, "/libcublasLt.so", 3, name)    /* CUBLAS_STATUS_ALLOC_FAILED */

OF_MPI(MPI_Init_thread)
OF_MPI(MPI_Comm_dup)
OF_MPI(MPI_Comm_rank)
OF_MPI(MPI_Comm_size)
POLL_OF_MPI(MPI_Improbe, d)
OF_MPI(MPI_Irecv)
OF_MPI(MPI_Isend)
OF_MPI(MPI_Mrecv)
POLL_OF_MPI(MPI_Test, b)
OF_CUDA(cudaDeviceGetAttribute)
OF_CUDA(cudaEventCreate)
OF_CUDA(cudaEventCreateWithFlags)
OF_CUDA(cudaEventQuery)
OF_CUDA(cudaEventRecord)
OF_CUDA(cudaEventSynchronize)
OF_CUDA(cudaFuncGetAttributes)
OF_CUDA(cudaFuncSetAttribute)
OF_CUDA(cudaGetDevice)
OF_CUDA(cudaGetDeviceCount)
OF_CUDA(cudaGetDeviceProperties)
OF_CUDA(cudaGetDriverEntryPointByVersion)
OF_CUDA(cudaGetSymbolAddress)
OF_CUDA(cudaGraphGetNodes)
OF_CUDA(cudaGraphInstantiate)
OF_CUDA(cudaGraphLaunch)
OF_CUDA(cudaGraphUpload)
OF_CUDA(cudaHostAlloc)
OF_CUDA(cudaLaunchHostFunc)
OF_CUDA(cudaLaunchKernel)
OF_CUDA(cudaLaunchKernelExC)
OF_CUDA(cudaMalloc)
OF_CUDA(cudaMemGetInfo)
OF_CUDA(cudaMemcpyAsync)
OF_CUDA(cudaMemsetAsync)
OF_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor)
OF_CUDA(cudaSetDevice)
OF_CUDA(cudaStreamBeginCapture)
OF_CUDA(cudaStreamCreateWithFlags)
OF_CUDA(cudaStreamEndCapture)
OF_CUDA(cudaStreamQuery)
OF_CUDA(cudaStreamSynchronize)
OF_CUDA(cudaStreamWaitEvent)
OF_CUBLAS(cublasLtCreate)
OF_CUBLAS(cublasLtMatmul)
OF_CUBLAS(cublasLtMatmulAlgoCheck)
OF_CUBLAS(cublasLtMatmulAlgoGetHeuristic)
OF_CUBLAS(cublasLtMatmulDescCreate)
OF_CUBLAS(cublasLtMatmulDescSetAttribute)
OF_CUBLAS(cublasLtMatmulPreferenceCreate)
OF_CUBLAS(cublasLtMatrixLayoutCreate)
