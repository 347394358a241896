/*
 * data_embeddings.c: `plimsoll data inspect` and `data verify` of a store of the embeddings of
 * conversations' images.
 */
#include "batch/embed.h"
#include "cli/data.h"
#include "data/dataset.h"
#include "data/formats/packed.h"
#include "data/prepare/prepare.h"
#include "io/table.h"

bool embeddings_alone(const struct names *paths)
{
    struct packed_header h;
    struct packed_embeddings x;
    struct error ignored;
    return packed_is(paths->at[0]) && !packed_peek(paths->at[0], &h, &x, &ignored) && x.tokens;
}

int inspect_embeddings(const struct names *paths, bool check, bool json, struct error *e)
{
    struct dataset *d;
    struct embedding_counts n = {0};
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
    verify_embeddings(d, check, &n);
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
