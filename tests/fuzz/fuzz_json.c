/*
 * fuzz_json.c: any bytes into json_parse. A parsed value must survive being written and read back,
 * in both layouts, and as YAML.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -std=c11 -D_GNU_SOURCE -Isrc \
 *       tests/fuzz/fuzz_json.c src/base/?*.c src/io/?*.c src/graph/dtype.c -lcjson -lyaml -lm
 */

#include "io/json.h"
#include "io/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_json(const struct value *v, int indent)
{
    struct bump b = {0};
    struct text t = {0};
    struct value *again = NULL;
    struct error e;
    json_write(v, indent, &t);
    CHECK(!json_parse(t.at, t.n, &b, &again, &e), "%s", e.text);
    CHECK(value_equal(v, again), "JSON does not read back equal: %s", t.at);
    text_free(&t);
    bump_free(&b);
}

static void check_yaml(const struct value *v)
{
    struct bump b = {0};
    struct text t = {0};
    struct value *again = NULL;
    struct error e;
    yaml_write(v, &t);
    CHECK(!yaml_parse(t.at, t.n, &b, &again, &e), "%s in: %s", e.text, t.at);
    CHECK(value_equal(v, again), "YAML does not read back equal: %s", t.at);
    text_free(&t);
    bump_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bump b = {0};
    struct value *v = NULL;
    struct error e = {0};
    if (!json_parse((const char *)data, size, &b, &v, &e)) {
        check_json(v, 0);
        check_json(v, 2);
        check_yaml(v);
    } else {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
    }
    bump_free(&b);
    return 0;
}
