/*
 * fuzz_import.c: any bytes as a configuration of another program. The run file of an accepted one
 * is read back with the same values. The first byte chooses the name: YAML, JSON or a shell script.
 */
#include "import/import.h"
#include "files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_back(const struct config *c)
{
    struct config again;
    struct error e;
    struct text out = {0};
    config_write_given(c, &out);
    config_init(&again);
    CHECK(!config_read_text(&again, out.at, "run.yaml", &e), "%s\n%s", e.text, out.at);
    for (int k = 0; k < CONFIG_KEYS; k++) CHECK(config_same(c, &again, k), "%s\n%s", config_key_name(k), out.at);
    config_free(&again);
    text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"a.yaml", "a.json", "a.sh", "a"};
    struct config c;
    struct import f = {0};
    struct error e = {0};
    if (!size) return 0;
    fuzz_begin();
    config_init(&c);
    int rc = import_read_text(&f, (const char *)data + 1, size - 1, names[data[0] % 4], &e);
    if (!rc) rc = import_apply(&f, &c, &e);
    if (!rc) rc = import_settle(&f, &c, &e); /* it asks for variables of the shell */
    if (!rc) {
        struct text list = {0};
        import_print(&f, &c, &list);
        CHECK(list.n || !f.files.n);
        text_free(&list);
        read_back(&c);
    } else {
        CHECK(rc == PL_USAGE && *e.text, "%d %s", rc, e.text);
    }
    import_free(&f);
    config_free(&c);
    return 0;
}
