/*
 * json_get.c: checks that a file is one JSON object, and prints values of it.
 *
 *   json_get FILE [PATH...]
 *
 * Reads the whole file strictly: any text before or behind the object is an error. Prints the value
 * at each dotted path on a line of its own: strings without quotes, numbers with the digits of the
 * file, true, false, null; a map or a list as its number of members. Exit code 1 when the file is
 * no object or lacks a path.
 */

#include "io/json.h"

static void print_value(const struct value *v)
{
    switch (v->kind) {
    case VALUE_NULL: puts("null"); break;
    case VALUE_BOOL: puts(v->truth ? "true" : "false"); break;
    case VALUE_NUMBER:
    case VALUE_STRING: puts(v->text); break;
    case VALUE_LIST:
    case VALUE_MAP: printf("%u\n", v->count); break;
    }
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct bump memory = {0};
    struct value *root = NULL;
    int rc = argc < 2 ? error_set(&e, PL_USAGE, "usage: json_get FILE [PATH...]")
                      : json_read_file(argv[1], 64u << 20, &memory, &root, &e);
    if (!rc) rc = value_as_map(root, argv[1], &e);
    for (int i = 2; i < argc && !rc; i++) {
        const struct value *v = value_path(root, argv[i]);
        if (v) print_value(v);
        else rc = error_set(&e, PL_USAGE, "%s: no %s", argv[1], argv[i]);
    }
    if (rc) fprintf(stderr, "json_get: %s\n", e.text);
    bump_free(&memory);
    return rc ? 1 : 0;
}
