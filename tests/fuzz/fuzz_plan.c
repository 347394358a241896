/*
 * fuzz_plan.c: any bytes as a stored plan, plan.json.
 */
#include "plan/plan.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plan_file f;
    struct error e;
    fuzz_begin();
    if (!plan_read(fuzz_put("plan.json", data, size), &f, &e))
        CHECK(memchr(f.profile, 0, sizeof f.profile) && f.effective_batch > 0);
    else CHECK(*e.text);
    return 0;
}
