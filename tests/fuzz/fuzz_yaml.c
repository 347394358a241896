/*
 * fuzz_yaml.c: any bytes into yaml_parse. A parsed value must survive being written and read back.
 * Built like fuzz_json.c.
 */

#include "io/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bump b = {0};
    struct value *v = NULL, *again = NULL;
    struct text t = {0};
    struct error e = {0};
    if (!yaml_parse((const char *)data, size, &b, &v, &e)) {
        yaml_write(v, &t);
        CHECK(!yaml_parse(t.at, t.n, &b, &again, &e), "%s in: %s", e.text, t.at);
        CHECK(value_equal(v, again), "YAML does not read back equal: %s", t.at);
        text_free(&t);
    } else {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
    }
    bump_free(&b);
    return 0;
}
