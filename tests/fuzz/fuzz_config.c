/*
 * fuzz_config.c: any bytes as a run file. The resolved configuration of an accepted one is read
 * back with the same values.
 */
#include "config/config.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct config c, again;
    struct error e;
    fuzz_begin();
    char *text = mem_alloc(size + 1);
    memcpy(text, data, size);
    text[size] = 0;
    config_init(&c);
    if (!config_read_text(&c, text, "run.yaml", &e)) {
        struct text out = {0};
        if (config_check(&c, CONFIG_NEEDS_MODEL | CONFIG_NEEDS_DATA | CONFIG_NEEDS_TRAIN, &e)) CHECK(*e.text);
        config_write(&c, &out);
        config_init(&again);
        CHECK(!config_read_text(&again, out.at, "config.yaml", &e), "%s\n%s", e.text, out.at);
        for (int k = 0; k < CONFIG_KEYS; k++) CHECK(config_same(&c, &again, k), "%s\n%s", config_key_name(k), out.at);
        config_free(&again);
        text_free(&out);
    } else {
        CHECK(*e.text);
    }
    config_free(&c);
    mem_free(text);
    return 0;
}
