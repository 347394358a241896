/*
 * fuzz_state.c: any bytes as the state.json of a checkpoint.
 */
#include <math.h>

#include "folder/train_state.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct train_state s;
    struct error e;
    fuzz_begin();
    fuzz_put("state.json", data, size);
    if (!state_read(fuzz_dir, &s, &e)) CHECK(isfinite(s.scale) && s.scale >= 0);
    else CHECK(*e.text);
    return 0;
}
