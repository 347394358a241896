/*
 * data_samples.c: see data_samples.h. Sample numbers run through the shards in the order of
 * their paths.
 */
#include "cli/data_samples.h"

#include <stdio.h>
#include <string.h>

enum { MAX_MASKS = 65536 };

/* A folder that holds tars stands for them. */
static int add_path(struct names *to, const char *path, struct error *e)
{
    struct names tars = {0};
    struct text pattern = {0};
    int rc = PL_OK;
    if (dir_exists(path)) {
        text_printf(&pattern, "%s/*.tar", path);
        rc = file_glob(pattern.at, &tars, e);
    }
    for (uint32_t i = 0; i < tars.n; i++) vec_push(to, mem_string(tars.at[i]));
    if (!rc && !tars.n) vec_push(to, mem_string(path));
    names_free(&tars);
    text_free(&pattern);
    return rc;
}

static int find_shards(const struct names *paths, struct names *to, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths->n && !rc; i++) {
        struct names found = {0};
        rc = file_glob(paths->at[i], &found, e);
        if (!rc && !found.n) rc = error_set(e, PL_USAGE, "%s: there is no such file or folder", paths->at[i]);
        for (uint32_t k = 0; k < found.n && !rc; k++) rc = add_path(to, found.at[k], e);
        names_free(&found);
    }
    return rc;
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

int samples_open(struct samples *s, const struct names *paths, struct error *e)
{
    struct names found = {0};
    memset(s, 0, sizeof *s);
    int rc = find_shards(paths, &found, e);
    s->shards = mem_alloc((found.n + 1) * sizeof *s->shards);
    for (uint32_t i = 0; i < found.n && !rc; i++) {
        rc = shard_open(&s->shards[i], found.at[i], e);
        if (rc) break;
        s->n += s->shards[s->n_shards++].n;
        add_report(&s->report, &s->shards[i].report);
    }
    names_free(&found);
    if (rc) samples_close(s);
    return rc;
}

void samples_close(struct samples *s)
{
    for (uint32_t i = 0; i < s->n_shards; i++) shard_close(&s->shards[i]);
    mem_free(s->shards);
    memset(s, 0, sizeof *s);
}

/* Tars know a member's size; of a file in a folder it is learnt by asking. */
int samples_read_half(const struct shard *s, uint32_t i, enum shard_half half, struct text *out, struct error *e)
{
    size_t n = s->pairs[i].n[half] ? s->pairs[i].n[half] : 1 << 20, got = 0;
    int rc = PL_NOFIT;
    for (int attempt = 0; attempt < 2 && rc == PL_NOFIT; attempt++) {
        mem_free(out->at);
        *out = (struct text){mem_alloc(n + 1), 0, n + 1};
        rc = shard_read(s, i, half, out->at, n, &got, e);
        if (rc == PL_NOFIT) n = got;
    }
    out->n = rc ? 0 : got;
    if (!rc) e->code = PL_OK; /* the first attempt may have asked */
    return rc;
}

static void name_sample(const struct shard *s, uint32_t i, char out[256])
{
    const char *base = strrchr(s->path, '/');
    base = base && base[1] ? base + 1 : s->path;
    size_t n = strlen(base);
    if (n > 4 && !strcmp(base + n - 4, ".tar")) n -= 4;
    snprintf(out, 256, "%.*s/%s", (int)min_u64(n, 120), base, shard_key(s, i));
}

int samples_read(const struct samples *s, uint64_t i, struct sample *out, struct error *e)
{
    uint32_t k = 0;
    memset(out, 0, sizeof *out);
    while (i >= s->shards[k].n) i -= s->shards[k++].n;
    name_sample(&s->shards[k], (uint32_t)i, out->name);
    int rc = samples_read_half(&s->shards[k], (uint32_t)i, SHARD_IMAGE, &out->image, e);
    if (!rc) rc = samples_read_half(&s->shards[k], (uint32_t)i, SHARD_TEXT, &out->text, e);
    if (rc) return rc;
    out->masks = mem_alloc(MAX_MASKS * sizeof *out->masks);
    if (annotation_read(out->text.at, out->text.n, &out->facts, out->masks, MAX_MASKS, e)) {
        out->facts.masks = 0;
        return error_prepend(e, "annotations");
    }
    return PL_OK;
}

void sample_free(struct sample *s)
{
    text_free(&s->image);
    text_free(&s->text);
    mem_free(s->masks);
    memset(s, 0, sizeof *s);
}
