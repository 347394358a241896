/*
 * render.c: renders chat templates, for tests/run_templates.sh and tests/golden/check_templates.py.
 *
 *   render TEMPLATE VARIABLES...      one JSON object a line for each file of variables:
 *                                     {"text": ..., "data": [[begin, end], ...], "answers": [...]}
 *                                     or {"error": ...}
 *
 * TEMPLATE is a file, a folder, or the name of a built-in template. Exit code 2 with the message
 * when the template is refused, 1 when a rendering failed.
 */

#include "io/file.h"
#include "io/json.h"
#include "text/template/template.h"

static void put_ranges(struct json_writer *w, const char *key, const struct byte_range *at, uint32_t n)
{
    json_begin_list(w, key);
    for (uint32_t i = 0; i < n; i++) {
        json_begin_list(w, NULL);
        json_put_uint(w, NULL, at[i].begin);
        json_put_uint(w, NULL, at[i].end);
        json_end(w);
    }
    json_end(w);
}

static int render_one(const struct template *t, const char *path)
{
    struct error e = {0};
    struct bump memory = {0};
    struct value *variables = NULL;
    struct rendered out = {0};
    struct text line = {0};
    struct json_writer w = {.out = &line};
    int rc = json_read_file(path, 64u << 20, &memory, &variables, &e);
    if (!rc) rc = template_render(t, variables, &out, &e);
    json_begin_map(&w, NULL);
    if (rc) {
        json_put_string(&w, "error", e.text);
    } else {
        json_put_string(&w, "text", out.text.at);
        put_ranges(&w, "data", out.data.at, out.data.n);
        put_ranges(&w, "answers", out.answers.at, out.answers.n);
    }
    json_end(&w);
    puts(line.at);
    text_free(&line);
    rendered_free(&out);
    bump_free(&memory);
    return rc;
}

int main(int argc, char **argv)
{
    struct error e = {0};
    struct template *t = NULL;
    int failed = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: render TEMPLATE VARIABLES...\n");
        return 2;
    }
    const bool folder = dir_exists(argv[1]);
    if (template_open(&t, folder ? argv[1] : NULL, folder ? NULL : argv[1], NULL, &e)) {
        fprintf(stderr, "render: %s\n", e.text);
        return 2;
    }
    for (int i = 2; i < argc; i++) failed |= render_one(t, argv[i]) != 0;
    template_close(t);
    return failed;
}
