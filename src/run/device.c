/*
 * device.c: opens devices by kind. The only file that names them all.
 */
#include "run/device.h"

#include <string.h>

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
