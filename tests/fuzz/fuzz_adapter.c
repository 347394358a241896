/*
 * fuzz_adapter.c: any bytes as adapter_config.json. An accepted one answers for every module,
 * however its expressions are written, and what is written from its values is read back with the
 * same answers.
 */

#include "adapter/adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const modules[] = {"model.layers.0.self_attn.q_proj",
                                      "model.layers.11.mlp.up_proj",
                                      "lm_head",
                                      "mask_decoder.transformer.layers.1.mlp.lin1",
                                      "",
                                      "a.b.0"};

static void check_same(const struct adapter *a, const struct adapter *b)
{
    struct error e;
    for (size_t i = 0; i < COUNT(modules); i++) {
        CHECK(adapter_saves(a, modules[i]) == adapter_saves(b, modules[i]), "%s", modules[i]);
        CHECK(adapter_adapts(a, modules[i], i == 2) == adapter_adapts(b, modules[i], i == 2) || a->all_linear, "%s",
              modules[i]);
        CHECK(adapter_rank(a, modules[i]) == adapter_rank(b, modules[i]), "%s", modules[i]);
        CHECK(adapter_scale(a, modules[i]) == adapter_scale(b, modules[i]), "%s", modules[i]);
    }
    CHECK(adapter_unanswered(a, "", &e) == adapter_unanswered(b, "", &e));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bump memory = {0};
    struct adapter a, again;
    struct error e = {0};
    if (!adapter_config_parse((const char *)data, size, &memory, &a, &e)) {
        struct text out = {0};
        a.source = NULL;
        adapter_config_write(&a, "base", modules, 3, &out);
        CHECK(!adapter_config_parse(out.at, out.n, &memory, &again, &e), "%s\n%s", e.text, out.at);
        check_same(&a, &again);
        text_free(&out);
    } else {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
    }
    bump_free(&memory);
    return 0;
}
