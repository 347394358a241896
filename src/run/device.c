/*
 * device.c: opens devices by kind, with default profiles. The only file that names them all.
 */
#include "base/system.h"
#include "run/device.h"

int device_open(struct device *d, enum device_kind kind, int threads, struct error *e)
{
    memset(d, 0, sizeof *d);
    d->kind = kind;
    profile_default(&d->profile, kind, threads);
    d->ops = kind == DEVICE_CUDA ? cuda_device(e) : kind == DEVICE_CPU ? &cpu_device : &ref_device;
    int rc = d->ops ? d->ops->open(d, e) : e->code;
    return rc && kind == DEVICE_CUDA ? error_prepend(e, "device: cuda") : rc;
}

int device_allocate(struct device *d, const uint64_t bytes[SPACE_COUNT], struct error *e)
{
    memcpy(d->bytes, bytes, sizeof d->bytes);
    return d->ops->allocate(d, bytes, e);
}

void device_close(struct device *d, struct tape *t)
{
    if (d->ops) d->ops->close(d, t);
    memset(d->arena, 0, sizeof d->arena);
}

/* --- default ceilings: a plan needs them to compare choices, not to be exact; a measured profile
 * replaces them -------------------------------------------------------------------------------- */

enum { THREADS_MOST = 4096 }; /* the limit of device.threads */

/* Returns the default of OpenMP programs: OMP_NUM_THREADS if it is set (the first of a list), else
 * all processors that this process may use. */
static int threads_here(void)
{
    const char *given = getenv("OMP_NUM_THREADS");
    long n = given ? strtol(given, NULL, 10) : 0;
    struct system_processors here;
    system_processors(&here);
    return n >= 1 && n <= THREADS_MOST ? (int)n : (int)here.usable;
}

void profile_default(struct profile *p, enum device_kind kind, int threads)
{
    memset(p, 0, sizeof *p);
    p->kind = kind;
    if (kind == DEVICE_CUDA) {
        /* An H200 as measured: 8192^3 bf16 product and a device-to-device copy. */
        snprintf(p->name, sizeof p->name, "h200");
        p->threads = 1;
        p->capability = 90;
        p->native_bf16 = true;
        p->flops_f32 = 50e12;
        p->flops_bf16 = 770e12;
        p->flops_fp8 = 1280e12;
        p->memory_bandwidth = 4.2e12;
        p->copy_bandwidth = 50e9;
        p->memory_bytes = (uint64_t)143104 << 20; /* 139.75 GiB: what a program can see */
        p->launch_seconds = 3e-6;
        p->library_workspace = 32u << 20;
        return;
    }
    if (threads <= 0) threads = threads_here();
    snprintf(p->name, sizeof p->name, kind == DEVICE_REF ? "reference" : "cpu-%d", threads);
    p->threads = kind == DEVICE_REF ? 1 : threads;
    p->flops_f32 = p->flops_bf16 = 60e9 * p->threads;
    /* products then run at about four times the f32 rate */
    p->native_bf16 = kind == DEVICE_CPU && cpu_multiplies_bf16();
    if (p->native_bf16) p->flops_bf16 = 220e9 * p->threads;
    p->flops_fp8 = p->flops_bf16;
    p->memory_bandwidth = 15e9 * (p->threads > 4 ? 4 : p->threads);
    p->copy_bandwidth = 4e9;
    p->launch_seconds = 2e-6;
    if (kind == DEVICE_CPU) profile_onednn(p, cpu_prefers_onednn());
}

void profile_onednn(struct profile *p, bool enabled)
{
    if (p->kind != DEVICE_CPU) return;
    p->onednn = enabled;
    snprintf(p->name, sizeof p->name, "cpu-%d%s", p->threads, enabled ? "-onednn" : "");
}
