/*
 * fuzz_model.c: any bytes as the config.json of a model folder, for every family.
 */
#include "models/model.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model m;
    struct error e;
    char ports[256];
    fuzz_begin();
    fuzz_put("config.json", data, size);
    if (model_open(&m, fuzz_dir, &e)) {
        CHECK(*e.text);
        return 0;
    }
    CHECK(m.family && m.n_ports > 0 && m.n_ports <= MODEL_PORTS && *model_list_ports(&m, ports));
    model_close(&m);
    return 0;
}
