/*
 * stub_driver.c: a libcuda.so.1 without a GPU, so that a machine without a driver can test the
 * messages about drivers and GPUs (run_device.sh). It implements the first calls of the CUDA
 * runtime and then fails like a driver without a GPU.
 *
 *     STUB_DRIVER=13000   the CUDA version that it reports
 *     STUB_FAILS=1        it fails for another reason than a missing GPU
 */
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NO_DEVICE = 100, NOT_READY = 802 }; /* values from cuda.h */

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuGetProcAddress_v2(const char *symbol, void **out, int version, unsigned long long flags, int *status);

int cuInit(unsigned flags)
{
    (void)flags;
    return getenv("STUB_FAILS") ? NOT_READY : NO_DEVICE;
}

int cuDriverGetVersion(int *version)
{
    const char *claimed = getenv("STUB_DRIVER");
    *version = claimed && *claimed ? atoi(claimed) : 13000;
    return SUCCESS;
}

static int fail(void) { return NO_DEVICE; }

int cuGetProcAddress_v2(const char *symbol, void **out, int version, unsigned long long flags, int *status)
{
    (void)version, (void)flags;
    *out = !strcmp(symbol, "cuInit")               ? (void *)cuInit
         : !strcmp(symbol, "cuDriverGetVersion")   ? (void *)cuDriverGetVersion
         : !strcmp(symbol, "cuGetProcAddress")     ? (void *)cuGetProcAddress_v2
                                                   : (void *)fail;
    if (status) *status = 0;
    return SUCCESS;
}
