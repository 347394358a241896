/*
 * load.c: opens the CUDA plug-in (see cuda.h). The planning half (plan.c) is part of every build,
 * so a plan for a GPU can be made without the plug-in.
 */
#include <dlfcn.h>

#include "base/system.h"
#include "cuda/cuda.h"
#include "graph/ops.h"

/* Reports whether libcuda.so.1 is here, which comes only with the NVIDIA driver. It is checked
 * first because the plug-in loads hundreds of megabytes of CUDA libraries, which a machine without
 * a GPU need not load. */
static bool driver_is_here(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver) dlclose(driver);
    return driver;
}

static const struct cuda_plugin *open_at(const char *path, struct error *e)
{
    if (!driver_is_here()) {
        error_set(e, PL_FAIL, "there is no NVIDIA driver (libcuda.so.1 is not found); install it, or set device: cpu");
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct cuda_plugin *p = handle ? dlsym(handle, "plimsoll_cuda_plugin") : NULL;
    if (!p) {
        const char *why = dlerror();
        const bool cuda = strstr(why, "libcudart") || strstr(why, "libcublas");
        error_set(e, PL_FAIL, "%s; install %s, or set device: cpu", why,
                  cuda ? "CUDA's libraries (pip install 'plimsoll[cuda]' does)" : "what is missing");
    }
    if (!p || p->abi == CUDA_PLUGIN_ABI) return p;
    error_set(e, PL_FAIL, "%s does not match this program's build; rebuild both, or set device: cpu", path);
    return NULL;
}

/* Returns the plug-in, which is opened once; NULL: `e` holds the reason. */
static const struct cuda_plugin *plugin(struct error *e)
{
    static const struct cuda_plugin *found;
    char path[PLUGIN_PATH];
    error_set(e, PL_USAGE, "this build has no CUDA device (plimsoll-cuda.so); build with nvcc, or set device: cpu");
    if (!found && plugin_find("plimsoll-cuda.so", path)) found = open_at(path, e);
    if (found) *e = (struct error){0};
    return found;
}

const struct device_ops *cuda_device(struct error *e)
{
    const struct cuda_plugin *p = plugin(e);
    if (!p) return NULL;
    p->quiet(log_is_quiet());
    p->on_exhaustion(mem_exhaustion());
    p->share(caller_slot());
    return p->ops;
}

int cuda_gpu(struct gpu *c, struct error *e)
{
    const struct cuda_plugin *p = plugin(e);
    return p ? p->gpu(c, e) : e->code;
}

int cuda_gpus(void)
{
    struct error e;
    const struct cuda_plugin *p = plugin(&e);
    return p ? p->gpus() : 0;
}

void cuda_take_gpu(int local, int ranks)
{
    struct error e;
    const struct cuda_plugin *p = plugin(&e);
    if (p) p->take_gpu(local, ranks);
}

bool cuda_get_view(const struct device *d, struct cuda_view *out)
{
    struct error e;
    const struct cuda_plugin *p = plugin(&e);
    return p && p->get_view(d, out);
}
