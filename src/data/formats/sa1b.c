/*
 * sa1b.c: the format `sa1b`: shards of images and annotations, one after the other.
 *
 * Sample i is in the last shard that has its first sample at or before i. A key that occurs in two
 * shards is two samples: their names contain the shard's name.
 */
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "data/masks/annotation.h"
#include "data/dataset.h"
#include "io/file.h"

struct sa1b {
    struct shard *shards;
    uint64_t *first; /* index of each shard's first sample */
    uint32_t n;
};

static const struct shard *find_shard(const struct sa1b *s, uint64_t i, uint32_t *pair)
{
    uint32_t low = 0, high = s->n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        *(s->first[middle] <= i ? &low : &high) = middle;
    }
    *pair = (uint32_t)(i - s->first[low]);
    return &s->shards[low];
}

static void add_report(struct shard_report *sum, const struct shard_report *r)
{
    if (!sum->damaged) sum->first_bad = r->first_bad;
    sum->members += r->members;
    sum->others += r->others;
    sum->no_image += r->no_image;
    sum->no_text += r->no_text;
    sum->duplicates += r->duplicates;
    sum->too_large += r->too_large;
    sum->damaged += r->damaged;
    sum->lost += r->lost;
    sum->partial += r->partial;
}

static void sa1b_close(struct dataset *d)
{
    struct sa1b *s = d->state;
    if (!s) return;
    for (uint32_t i = 0; i < s->n; i++) shard_close(&s->shards[i]);
    mem_free(s->shards);
    mem_free(s->first);
    mem_free(s);
}

/* A folder of tars is replaced by its tars; any other folder is a shard of extracted files. */
static int open_folders(struct names *paths, struct error *e)
{
    struct names out = {0};
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths->n && !rc; i++) {
        struct names found = {0};
        if (dir_exists(paths->at[i])) rc = dir_list_ending(paths->at[i], ".tar", &found, e);
        for (uint32_t k = 0; k < found.n; k++) vec_push(&out, mem_string(found.at[k]));
        if (!found.n) vec_push(&out, mem_string(paths->at[i]));
        names_free(&found);
    }
    names_free(paths);
    *paths = out;
    return rc;
}

static int sa1b_open(struct dataset *d, const struct dataset_options *o, struct error *e)
{
    enum { LOGGED = 10 }; /* shards with faults that are logged one by one */
    struct names paths;
    struct sa1b *s = d->state = mem_alloc(sizeof *s);
    if (dataset_paths(o, &paths, e)) return e->code;
    int rc = open_folders(&paths, e);
    s->shards = mem_alloc(paths.n * sizeof *s->shards);
    s->first = mem_alloc(paths.n * sizeof *s->first);
    uint32_t faulty = 0;
    struct progress progress;
    progress_begin(&progress, "opening", "shards", paths.n); /* a shard without an index is read once */
    for (uint32_t i = 0; i < paths.n && !rc; i++, progress_add(&progress, 1)) {
        struct shard *shard = &s->shards[s->n];
        size_t n = strlen(paths.at[i]);
        if (n > 4 && !strcmp(paths.at[i] + n - 4, ".idx")) continue; /* a pattern for tars may match their indexes */
        if ((rc = shard_open(shard, paths.at[i], e))) break;
        char what[512];
        if (shard_report_print(&shard->report, what, sizeof what) && faulty++ < LOGGED)
            log_warn("%s: %s", paths.at[i], what);
        s->first[s->n++] = d->total;
        d->total += shard->n;
        d->fingerprint = hash_bytes(&shard->fingerprint, sizeof shard->fingerprint, d->fingerprint);
        add_report(&d->report, &shard->report);
    }
    progress_clear();
    if (faulty > LOGGED) log_warn("%u more shards have faults", faulty - LOGGED);
    names_free(&paths);
    return rc;
}

/* "sa_000020/sa_223750": the shard without folder and .tar, and the key. */
static void sa1b_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key)
{
    uint32_t pair;
    const struct shard *s = find_shard(d->state, i, &pair);
    size_t n = strlen(s->path);
    while (n > 1 && s->path[n - 1] == '/') n--;
    size_t from = n;
    while (from && s->path[from - 1] != '/') from--;
    if (n - from > 4 && !memcmp(s->path + n - 4, ".tar", 4)) n -= 4;
    *key = shard_key(s, pair);
    snprintf(name, room, "%.*s/%s", (int)(n - from), s->path + from, *key);
}

static enum data_fault read_half(const struct dataset *d, uint64_t i, enum shard_half half, void *to, size_t room,
                                 size_t *n, struct error *e)
{
    uint32_t pair;
    const struct shard *s = find_shard(d->state, i, &pair);
    int rc = shard_read(s, pair, half, to, room, n, e);
    return !rc ? FAULT_NONE : rc == PL_NOFIT ? FAULT_TOO_LARGE : FAULT_READ;
}

static enum data_fault sa1b_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                                  struct error *e)
{
    return read_half(d, i, SHARD_IMAGE, to, room, &out->n, e);
}

static enum data_fault sa1b_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                                  uint32_t room, struct dataset_masks *out, struct error *e)
{
    size_t length;
    struct annotation a;
    enum data_fault f = read_half(d, i, SHARD_TEXT, scratch, n, &length, e);
    if (f) return f;
    f = annotation_read(scratch, length, &a, masks, room, e);
    *out = (struct dataset_masks){.n = a.masks, .empty = a.empty, .h = a.h, .w = a.w};
    return f;
}

static void sa1b_prefetch(const struct dataset *d, uint64_t i)
{
    uint32_t pair;
    const struct shard *s = find_shard(d->state, i, &pair);
    shard_prefetch(s, pair);
}

const struct dataset_format dataset_sa1b = {
    .name = "sa1b",
    .open = sa1b_open,
    .close = sa1b_close,
    .describe = sa1b_describe,
    .image = sa1b_image,
    .masks = sa1b_masks,
    .prefetch = sa1b_prefetch,
    .no_categories = "sa1b",
};
