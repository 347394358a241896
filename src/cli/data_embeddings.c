/*
 * data_embeddings.c: `plimsoll data inspect` and `data verify` of a store of the embeddings of
 * conversations' images (data/formats/packed.h, version 3).
 */
#include <stdio.h>

#include "base/progress.h"
#include "cli/data.h"
#include "data/dataset.h"
#include "data/formats/packed.h"
#include "feed/embed.h"
#include "io/json.h"

struct counts {
    uint64_t embeddings, unreadable, damaged;
};

bool embeddings_alone(const struct names *paths)
{
    struct packed_header h;
    struct packed_embeddings x;
    struct error ignored;
    return packed_is(paths->at[0]) && !packed_peek(paths->at[0], &h, &x, &ignored) && x.tokens;
}

/* Looks at all images. `check`: compares the checksums, and prints what cannot be used. */
static void look(const struct dataset *d, bool check, struct counts *n)
{
    struct progress progress;
    progress_begin(&progress, "verifying", "images", dataset_count(d));
    for (uint64_t i = 0; i < dataset_count(d); i++) {
        struct packed_output x;
        struct error e;
        char name[2048];
        dataset_name(d, i, name, sizeof name);
        CHECK(packed_find(d, name, &x), "%s", name);
        const bool damaged = check && dataset_check(d, i, &e);
        if (check && (damaged || x.fault)) progress_clear();
        if (damaged) print_line("bad: %s: %s", name, e.text), n->damaged++;
        if (check && x.fault) print_line("note: %s", x.why);
        n->unreadable += x.fault != FAULT_NONE;
        n->embeddings += x.fault ? 0 : x.count;
        progress_add(&progress, 1);
    }
    progress_clear();
}

static void print_json(const struct dataset *d, const struct counts *n)
{
    const struct packed_embeddings *x = dataset_embeddings(d);
    struct text out = {0};
    struct json_writer w = {.out = &out};
    json_begin_map(&w, NULL);
    json_put_string(&w, "format", "packed");
    json_put_uint(&w, "images", dataset_count(d));
    json_put_uint(&w, "embeddings", n->embeddings);
    json_put_uint(&w, "unreadable", n->unreadable);
    json_put_string(&w, "dtype", dtype_name(packed_dtype(x->type)));
    json_put_uint(&w, "tokens", x->tokens);
    json_put_uint(&w, "channels", x->channels);
    json_put_string(&w, "model", x->model);
    json_end(&w);
    printf("%s\n", out.at);
    text_free(&out);
}

int inspect_embeddings(const struct names *paths, bool check, bool json, struct error *e)
{
    struct dataset *d;
    struct counts n = {0};
    char shape[64];
    int rc = dataset_open(&d,
                          &(struct dataset_options){.format = "packed",
                                                    .paths = paths->at,
                                                    .n_paths = paths->n,
                                                    .embeddings_alone = true},
                          e);
    if (rc) return rc;
    if (!dataset_embeddings(d)) {
        dataset_close(d);
        return error_set(e, PL_USAGE, "%s and others have embeddings of different encoders: give one at a time",
                         paths->at[0]);
    }
    look(d, check, &n);
    if (json) print_json(d, &n);
    else
        printf("packed: %llu images of conversations, %llu embeddings %s, computed with %s: %llu images could not be "
               "read, %llu bad samples\n",
               (unsigned long long)dataset_count(d), (unsigned long long)n.embeddings,
               embed_print(dataset_embeddings(d), shape), dataset_embeddings(d)->model,
               (unsigned long long)n.unreadable, (unsigned long long)n.damaged);
    rc = dataset_intact(d, e);
    if (!rc && n.damaged)
        rc = error_set(e, PL_FAIL, "%llu of %llu samples are bad", (unsigned long long)n.damaged,
                       (unsigned long long)dataset_count(d));
    dataset_close(d);
    return rc;
}
