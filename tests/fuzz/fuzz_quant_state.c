/*
 * fuzz_quant_state.c: any bytes as the quantization state of a 4-bit weight, and any bytes as the
 * file of a folder with such weights, whose shapes may not fit. The first byte selects one. An
 * accepted state has a shape; an accepted folder has all bytes of its weight.
 */
#include "folder/weights_4bit.h"
#include "files.h"
#include "graph/stored.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_state(const char *json, size_t n)
{
    struct quant_state s;
    struct error e = {0};
    if (quant_state_read(json, n, &s, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
        return;
    }
    int64_t elements = 1;
    CHECK(s.rank >= 1 && s.rank <= MAX_RANK);
    for (int i = 0; i < s.rank; i++) {
        CHECK(s.dim[i] >= 1 && s.dim[i] <= INT64_MAX / 4 / elements, "a size that overflows");
        elements *= s.dim[i];
    }
}

static void check_folder(const void *file, size_t n)
{
    static char config[] = "{\"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}}";
    struct model m = {.config_text = config, .partial = true};
    struct weights_4bit found;
    struct weights w;
    struct graph g;
    struct bump b = {0};
    struct error e = {0};
    snprintf(m.path, sizeof m.path, "%s", fuzz_dir);
    fuzz_put("model.safetensors", file, n);
    graph_init(&g);
    const id x = graph_param(&g, "layer.weight", DT_F32, 2, (int64_t[]){3, 50}, (struct init){INIT_ZERO, 0, 0, 0});
    int rc = weights_4bit_find(&found, &m, &b, &e);
    if (!rc) weights_4bit_mark(&found, &g);
    if (!rc && !(rc = weights_open(&w, &m, &g, NULL, &e))) {
        const uint8_t form = graph_param_of(&g, x)->form;
        CHECK(!form || w.in.slots[w.source[0] - 1].entry->bytes ==
                           stored_part_bytes(&stored_forms[form], 0, (struct stored_shape){DT_F32, 150, 150}));
        weights_close(&w);
    }
    CHECK(!rc || e.text[0], "a failure without a message");
    graph_free(&g);
    bump_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_begin();
    if (size && data[0] % 2) check_folder(data + 1, size - 1);
    else if (size) check_state((const char *)data + 1, size - 1);
    return 0;
}
