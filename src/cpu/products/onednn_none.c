/*
 * onednn_none.c: a build without oneDNN (see onednn.h). All products use our own kernels.
 */
#include "cpu/products/onednn.h"

#include "run/device.h"

bool cpu_prefers_onednn(void) { return false; }

const char *onednn_version(void) { return NULL; }

static bool refuse(const struct query *q)
{
    (void)q;
    return false;
}
static uint64_t no_bytes(const struct query *q)
{
    (void)q;
    return 0;
}
static void never(const struct launch *l)
{
    (void)l;
    CHECK(false, "a plan with oneDNN's kernels in a build without oneDNN");
}

bool onednn_linear_match(const struct query *q) { return refuse(q); }
bool onednn_matmul_match(const struct query *q) { return refuse(q); }
uint64_t onednn_linear_workspace(const struct query *q) { return no_bytes(q); }
uint64_t onednn_matmul_workspace(const struct query *q) { return no_bytes(q); }
void onednn_linear_run(const struct launch *l) { never(l); }
void onednn_matmul_run(const struct launch *l) { never(l); }

int onednn_prepare(const struct kernel *k, struct launch *l, struct error *e)
{
    (void)k, (void)l, (void)e;
    return PL_OK;
}

void onednn_release(const struct kernel *k, struct launch *l) { (void)k, (void)l; }

const char *onednn_implementation(const struct query *q, bool linear)
{
    (void)q, (void)linear;
    return NULL;
}
