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
#include "io/table.h"

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

/* Counts; `check`: compares the checksums, and prints what cannot be used. */
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
    const struct packed_embeddings *x = dataset_embeddings(d);
    if (json)
        PRINT_FACTS(0, FACT("format", "packed"), FACT("images", dataset_count(d)), FACT("embeddings", n.embeddings),
                    FACT("unreadable", n.unreadable), FACT("dtype", dtype_name(packed_dtype(x->type))),
                    FACT("tokens", x->tokens), FACT("channels", x->channels), FACT("model", (const char *)x->model));
    else
        printf("packed: %llu images of conversations, %llu embeddings %s, computed with %s: %llu images could not be "
               "read, %llu bad samples\n",
               (unsigned long long)dataset_count(d), (unsigned long long)n.embeddings,
               embed_print(x, shape), x->model,
               (unsigned long long)n.unreadable, (unsigned long long)n.damaged);
    rc = dataset_intact(d, e);
    if (!rc && n.damaged)
        rc = error_set(e, PL_FAIL, "%llu of %llu samples are bad", (unsigned long long)n.damaged,
                       (unsigned long long)dataset_count(d));
    dataset_close(d);
    return rc;
}
