/*
 * device.c: a CUDA GPU as a device.
 *
 *     space device   one cudaMalloc of the planned size
 *     space host     one mapping of the planned size, pinned by cudaHostRegister
 *     lanes          one stream each; programs are launched on the compute lane
 *
 * Invariant: all work goes through the compute lane in order, except the copy of the next batch. So
 * a read sees the effect of every earlier run and write. Only read, write, synchronize_writes and
 * wait_event block the host. There is no managed memory, and nothing is allocated on the GPU after
 * recording.
 */
#include <errno.h>
#include <math.h>
#include <sys/mman.h>

#include "cuda/cuda.h"
#include "cuda/products/matmul_autotune.h"
#include "cuda/device/host.h"
#include "cuda/device/transport.h"
#include "graph/ops.h"

/* --- opening ------------------------------------------------------------------- */

static int count_gpus(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    cudaGetLastError();
    return 0;
}

static struct {
    int local, ranks; /* of this host */
} self = {0, 1};

static void take_gpu(int local, int ranks) { self.local = local, self.ranks = ranks; }
static int own_gpu(void) { return self.local % (int)max_i64(1, count_gpus()); }
bool cuda_gpu_is_shared(void) { return self.ranks > count_gpus(); }

/* Checks that the driver is at least as new as the runtime and that it sees a GPU. */
static int check_driver(struct error *e)
{
    int gpus = 0, driver = 0, runtime = 0;
    cudaError_t rc = cudaGetDeviceCount(&gpus);
    if (rc == cudaSuccess && gpus > 0) return PL_OK;
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (rc == cudaErrorInsufficientDriver)
        return error_set(e, PL_FAIL, "the NVIDIA driver supports CUDA %d.%d, this build needs %d.%d; update the "
                         "driver, or set device: cpu", driver / 1000, driver % 1000 / 10, runtime / 1000,
                         runtime % 1000 / 10);
    if (rc == cudaErrorNoDevice || rc == cudaSuccess) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return error_set(
            e, PL_FAIL,
            "no NVIDIA GPU is visible%s%.80s%s; nvidia-smi lists the GPUs of this machine; or set device: cpu",
            visible ? " (CUDA_VISIBLE_DEVICES is \"" : "", visible ? visible : "", visible ? "\")" : "");
    }
    return cuda_failed(e, rc, "cudaGetDeviceCount");
}

/* Returns an attribute that CUDA reports for display only; 0 where the GPU does not report it. */
static double attribute_of(enum cudaDeviceAttr of)
{
    int x = 0;
    return cudaDeviceGetAttribute(&x, of, own_gpu()) == cudaSuccess ? x : 0;
}

/* Describes the GPU by queries of the driver. No context is created, so no GPU memory is used. */
static int describe_gpu(struct gpu *c, struct error *e)
{
    struct cudaDeviceProp gpu;
    TRY(check_driver(e));
    if (cuda_is_quick_build())
        return error_set(e, PL_FAIL, "the CUDA kernels were compiled on a machine without a GPU by `make test`, almost "
                         "without optimization; run `make CUDA_ARCH=sm_NN` for this GPU, or set device: cpu");
    TRY_CUDA(cudaGetDeviceProperties(&gpu, own_gpu()));
    snprintf(c->name, sizeof c->name, "%.127s", gpu.name);
    c->capability = gpu.major * 10 + gpu.minor;
    c->multiprocessors = gpu.multiProcessorCount;
    c->memory_bytes = gpu.totalGlobalMem;
    c->clock = 1e3 * attribute_of(cudaDevAttrClockRate);
    c->memory_bandwidth =
        2 * 1e3 * attribute_of(cudaDevAttrMemoryClockRate) * attribute_of(cudaDevAttrGlobalMemoryBusWidth) / 8;
    if (c->capability < GPU_CAPABILITY_LEAST)
        return error_set(e, PL_FAIL, "%s has compute capability %d.%d, and there are kernels for %d.%d and later only; "
                         "set device: cpu", gpu.name, gpu.major, gpu.minor, GPU_CAPABILITY_LEAST / 10,
                         GPU_CAPABILITY_LEAST % 10);
    if (c->capability >= cuda_min_capability()) return PL_OK;
    return error_set(e, PL_FAIL, "%s has compute capability %d.%d, this build supports %d.%d and later; rebuild with "
                     "make CUDA_ARCH=sm_%d, if nvcc supports it, or set device: cpu", gpu.name, gpu.major, gpu.minor,
                     cuda_min_capability() / 10, cuda_min_capability() % 10, c->capability);
}

/* Opens the GPU and loads a kernel: the driver's own report of what it supports may be wrong. */
static int check_gpu(struct cuda_state *s, struct error *e)
{
    struct gpu gpu;
    TRY(describe_gpu(&gpu, e));
    TRY_CUDA(cudaSetDevice(own_gpu()));
    snprintf(s->gpu, sizeof s->gpu, "%s", gpu.name);
    s->capability = gpu.capability;
    cudaError_t rc = cuda_probe();
    if (rc == cudaErrorNoKernelImageForDevice || rc == cudaErrorInvalidDeviceFunction ||
        rc == cudaErrorUnsupportedPtxVersion) {
        cudaGetLastError();
        return error_set(e, PL_FAIL, "%s has compute capability %d.%d, and this build has no kernels for it that the "
                         "driver accepts (%s); rebuild with make CUDA_ARCH=sm_%d, or update the driver", gpu.name,
                         gpu.capability / 10, gpu.capability % 10, cudaGetErrorName(rc), gpu.capability);
    }
    if (rc != cudaSuccess) return cuda_failed(e, rc, "loading the kernels");
    return PL_OK;
}

/* Makes non-blocking streams, which do not synchronize with the default stream, and events. */
static int make_lanes(struct cuda_state *s, struct error *e)
{
    for (int lane = 0; lane < LANE_COUNT; lane++)
        TRY_CUDA(cudaStreamCreateWithFlags(&s->lane[lane], cudaStreamNonBlocking));
    TRY_CUDA(cudaStreamCreateWithFlags(&s->prefetch, cudaStreamNonBlocking));
    TRY_CUDA(cudaEventCreateWithFlags(&s->batch_read, cudaEventDisableTiming));
    TRY_CUDA(cudaEventCreateWithFlags(&s->batch_copied, cudaEventDisableTiming));
    for (int i = 0; i < 2 * DEVICE_EVENTS; i++) TRY_CUDA(cudaEventCreate(&s->events[i / 2][i % 2]));
    TRY_CUDA(cudaEventCreate(&s->begin));
    TRY_BLAS(cublasLtCreate(&s->blas));
    return PL_OK;
}

static void free_state(struct device *d)
{
    struct cuda_state *s = d->state;
    if (!s) return;
    autotune_free(s);
    if (s->blas) cublasLtDestroy(s->blas);
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (s->lane[lane]) cudaStreamDestroy(s->lane[lane]);
    if (s->prefetch) cudaStreamDestroy(s->prefetch);
    if (s->batch_read) cudaEventDestroy(s->batch_read);
    if (s->batch_copied) cudaEventDestroy(s->batch_copied);
    for (int i = 0; i < 2 * DEVICE_EVENTS; i++)
        if (s->events[i / 2][i % 2]) cudaEventDestroy(s->events[i / 2][i % 2]);
    if (s->begin) cudaEventDestroy(s->begin);
    mem_free(s);
    d->state = NULL;
}

static int cuda_open(struct device *d, struct error *e)
{
    struct cuda_state *s = d->state = mem_alloc(sizeof *s);
    int rc = check_gpu(s, e);
    if (!rc) rc = make_lanes(s, e);
    if (rc) free_state(d);
    return rc;
}

/* --- memory ------------------------------------------------------------------------ */

static int out_of_memory(const struct cuda_state *s, struct error *e, uint64_t bytes, const char *what)
{
    size_t free_bytes = 0, total = 0;
    char need[32], have[32], all[32];
    cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total);
    return error_set(e, PL_FAIL, "%s: %s needs %s (%llu bytes), %s of %s are free; stop other processes on the GPU "
                     "(nvidia-smi lists them), or set --memory to half a GiB less than what is free", s->gpu, what,
                     size_print(bytes, need), (unsigned long long)bytes, size_print(free_bytes, have),
                     size_print(total, all));
}

enum { LARGE_PAGE = 2 << 20 };

/* Maps and pins host memory, which starts as zeros. cudaHostAlloc does it page by page, in one
 * thread: 100 GiB take a minute. So all processors touch the pages first, large ones where the
 * kernel has them, and CUDA pins what is there. */
static int allocate_host(struct device *d, uint64_t bytes, struct error *e)
{
    enum { PAGE = 4096 };
    const uint64_t whole = align_up(bytes, LARGE_PAGE);
    char *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return error_set(e, PL_FAIL, "cannot map %llu bytes of host memory: %s", (unsigned long long)whole,
                         strerror(errno));
    madvise(at, whole, MADV_HUGEPAGE);
#pragma omp parallel for schedule(static)
    for (uint64_t i = 0; i < whole; i += PAGE) ((volatile char *)at)[i] = 0;
    cudaError_t rc = cudaHostRegister(at, whole, cudaHostRegisterDefault);
    if (rc == cudaSuccess) {
        d->arena[SPACE_HOST] = at;
        return PL_OK;
    }
    cudaGetLastError();
    munmap(at, whole);
    return error_set(e, PL_FAIL, "cannot pin %llu bytes of host memory (%s): check ulimit -l; lower "
                     "memory.host_budget if tensors are offloaded, otherwise data.prefetch",
                     (unsigned long long)bytes, cudaGetErrorString(rc));
}

static void free_host(struct device *d)
{
    char *at = d->arena[SPACE_HOST];
    if (!at) return;
    cudaHostUnregister(at);
    munmap(at, align_up(d->bytes[SPACE_HOST], LARGE_PAGE));
}

/* Allocates both spaces, which start as zeros, as the CPU's mappings do. */
static int cuda_allocate(struct device *d, const uint64_t bytes[SPACE_COUNT], struct error *e)
{
    const struct cuda_state *s = d->state;
    const uint64_t device = bytes[SPACE_DEVICE], host = bytes[SPACE_HOST];
    if (device) {
        cudaError_t rc = cudaMalloc((void **)&d->arena[SPACE_DEVICE], device);
        if (rc == cudaErrorMemoryAllocation) return out_of_memory(s, e, device, "the arena");
        if (rc != cudaSuccess) return cuda_failed(e, rc, "cudaMalloc of the arena");
        TRY_CUDA(cudaMemsetAsync(d->arena[SPACE_DEVICE], 0, device, s->lane[LANE_COMPUTE]));
        TRY_CUDA(cudaStreamSynchronize(s->lane[LANE_COMPUTE]));
    }
    return host ? allocate_host(d, host, e) : PL_OK;
}

/* Reports whether an address is in the arena in GPU memory. */
static bool is_on_gpu(const struct device *d, const void *at)
{
    return (uintptr_t)at - (uintptr_t)d->arena[SPACE_DEVICE] < d->bytes[SPACE_DEVICE];
}

/* Copies in any direction and either space: the driver derives the direction from the addresses.
 * What stays in host memory is copied here, once all that was submitted is done. */
static int cuda_copy(struct device *d, void *to, const void *from, uint64_t bytes, struct error *e)
{
    const struct cuda_state *s = d->state;
    if (!is_on_gpu(d, to) && !is_on_gpu(d, from)) {
        TRY(transport_wait(s, s->lane[LANE_COMPUTE], NULL, e));
        memcpy(to, from, bytes);
        return PL_OK;
    }
    TRY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->lane[LANE_COMPUTE]));
    return transport_wait(s, s->lane[LANE_COMPUTE], NULL, e);
}

/* Waits for prefetch copies in flight first, because they may write to the same address. */
static int cuda_write(struct device *d, void *to, const void *from, uint64_t bytes, struct error *e)
{
    struct cuda_state *s = d->state;
    s->arena_written = true;
    TRY(cuda_join_prefetch(s, e));
    return cuda_copy(d, to, from, bytes, e);
}

/* --- the prefetched batch -----------------------------------------------------------
 *
 *     compute    [ step n ]o batch_read [update n]   o wait for batch_copied  [ step n+1 ]
 *     prefetch             [copy][copy].............o
 *
 * The first copy waits for the last program that reads a batch (cuda_run); the others follow it. A
 * read on the compute lane does not wait for these copies, and no update reads the batch. */

static int cuda_write_later(struct device *d, void *to, const void *from, uint64_t bytes, struct error *e)
{
    struct cuda_state *s = d->state;
    s->arena_written = true;
    if (!s->prefetch_pending) {
        TRY_CUDA(cudaStreamWaitEvent(s->prefetch, s->batch_read, 0));
        s->prefetch_pending = true;
    }
    TRY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s->prefetch));
    return PL_OK;
}

int cuda_join_prefetch(struct cuda_state *s, struct error *e)
{
    if (!s->prefetch_pending) return PL_OK;
    s->prefetch_pending = false;
    TRY_CUDA(cudaEventRecord(s->batch_copied, s->prefetch));
    TRY_CUDA(cudaStreamWaitEvent(s->lane[LANE_COMPUTE], s->batch_copied, 0));
    return PL_OK;
}

static int cuda_synchronize_writes(struct device *d, struct error *e)
{
    const struct cuda_state *s = d->state;
    TRY_CUDA(cudaStreamSynchronize(s->prefetch));
    return PL_OK;
}

/* --- steps in flight ------------------------------------------------------------------
 *
 * The host space is pinned, so a copy to or from it returns as soon as it is queued. */

/* Relates the GPU's clock to the host's, before the first step, so that the time of the first event
 * is known too. */
static int begin_events(struct cuda_state *s, struct error *e)
{
    TRY_CUDA(cudaEventRecord(s->begin, s->lane[LANE_COMPUTE]));
    TRY_CUDA(cudaEventSynchronize(s->begin));
    s->last = s->begin;
    s->last_at = clock_seconds();
    return PL_OK;
}

static int cuda_send(struct device *d, void *to, const void *from, uint64_t bytes, struct error *e)
{
    struct cuda_state *s = d->state;
    if (!s->last) TRY(begin_events(s, e));
    s->arena_written = true;
    TRY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->lane[LANE_COMPUTE]));
    return PL_OK;
}

static int cuda_record_event(struct device *d, int number, struct error *e)
{
    struct cuda_state *s = d->state;
    s->turn[number] ^= 1;
    TRY_CUDA(cudaEventRecord(s->events[number][s->turn[number]], s->lane[LANE_COMPUTE]));
    return PL_OK;
}

/* Waits for an event; *reached is the time when it was reached. If the host had to wait for it,
 * that is now. If it was reached earlier, while the host was busy with launches of the next step,
 * the time comes from the GPU's measurement since the previous event. */
static int cuda_wait_event(struct device *d, int number, double *reached, struct error *e)
{
    struct cuda_state *s = d->state;
    const cudaEvent_t event = s->events[number][s->turn[number]];
    const bool early = cudaEventQuery(event) == cudaSuccess;
    float ms = 0;
    if (!early) cudaGetLastError(); /* cudaErrorNotReady is no failure; any other error occurs again below */
    TRY(transport_wait(s, s->lane[LANE_COMPUTE], event, e));
    *reached = clock_seconds();
    if (early && s->last) {
        TRY_CUDA(cudaEventElapsedTime(&ms, s->last, event));
        *reached = fmin(*reached, s->last_at + 1e-3 * (double)ms);
    }
    s->last = event;
    s->last_at = *reached;
    return PL_OK;
}

static void cuda_close(struct device *d, struct tape *t)
{
    struct cuda_state *s = d->state;
    struct error ignored;
    if (!s) return;
    transport_wait(s, s->lane[LANE_COMPUTE], NULL, &ignored);
    cudaStreamSynchronize(s->prefetch);
    if (t) cuda_free_recording(t);
    transport_close(s);
    if (d->arena[SPACE_DEVICE]) cudaFree(d->arena[SPACE_DEVICE]);
    free_host(d);
    free_state(d);
}

/* --- the device -------------------------------------------------------------------- */

static bool get_view(const struct device *d, struct cuda_view *out)
{
    const struct cuda_state *s = d->state;
    size_t free_bytes = 0, total = 0;
    if (d->kind != DEVICE_CUDA || !s || cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return false;
    *out = (struct cuda_view){.captures = s->captures, .nodes = s->nodes, .launches = s->launches,
                              .free_bytes = free_bytes, .total_bytes = total};
    memcpy(out->gpu, s->gpu, sizeof out->gpu);
    return true;
}

static void cuda_memory(const struct device *d, uint64_t *free, uint64_t *total)
{
    size_t left = 0, all = 0;
    (void)d;
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) return;
    *free = left;
    *total = all;
}

static const struct device_ops ops = {"cuda",
                                      cuda_open,
                                      cuda_allocate,
                                      cuda_record,
                                      cuda_run,
                                      cuda_write,
                                      cuda_copy,
                                      cuda_close,
                                      cuda_memory,
                                      cuda_write_later,
                                      cuda_synchronize_writes,
                                      cuda_send,
                                      cuda_record_event,
                                      cuda_wait_event,
                                      cuda_explain};

const struct cuda_plugin plimsoll_cuda_plugin = {
    CUDA_PLUGIN_ABI, log_quiet, mem_on_exhaustion, caller_share, &ops, count_gpus, take_gpu, get_view, describe_gpu};
