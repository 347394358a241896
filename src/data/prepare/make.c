/*
 * make.c: see prepare.h.
 */
#include "data/prepare/prepare.h"

#include <unistd.h>

#include "base/random.h"
#include "data/formats/tar.h"
#include "io/file.h"
#include "io/temporary.h"

enum { BLOCK = 64 };

struct synth_sample {
    struct text half[2]; /* jpg, json */
    uint32_t masks;
    struct error error;
};

static void make_sample(const struct make_set *m, uint64_t id, struct synth_sample *s)
{
    struct synth_scene scene;
    synth_draw(&scene, &m->synth, id);
    s->masks = synth_json(&scene, &s->half[1]);
    synth_jpeg(&scene, &s->half[0], &s->error);
    synth_free(&scene);
}

static int write_half(struct tar_writer *tar, const char *folder, uint64_t id, int half, const struct text *t,
                      struct error *e)
{
    struct text path = {0};
    text_printf(&path, "%s/sa_%llu.%s", tar ? "." : folder, (unsigned long long)id, half ? "json" : "jpg");
    int rc = tar ? tar_write_member(tar, path.at, t->at, t->n, e) : file_write_atomic(path.at, t->at, t->n, e);
    text_free(&path);
    return rc;
}

/* Fills `order` with a permutation of 0..2n-1, where even numbers are images: a Fisher-Yates
 * shuffle with random numbers that depend on the seed and the block. */
static void choose_order(const struct make_set *m, uint64_t first, uint32_t n, uint32_t *order)
{
    for (uint32_t i = 0; i < 2 * n; i++) order[i] = i;
    if (m->sorted) return;
    uint64_t key = random_bits(m->key, first);
    for (uint32_t i = 2 * n - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(random_bits(key, i) % (i + 1)), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

static int write_block(struct make_set *m, struct tar_writer *tar, const char *folder, uint64_t first, uint32_t n,
                       struct error *e)
{
    struct synth_sample *samples = mem_alloc(n * sizeof *samples);
    uint32_t order[2 * BLOCK];
#pragma omp parallel for schedule(dynamic)
    for (uint32_t i = 0; i < n; i++) {
        make_sample(m, first + i, &samples[i]);
#pragma omp critical
        progress_add(&m->progress, 1);
    }
    choose_order(m, first, n, order);
    int rc = PL_OK;
    for (uint32_t k = 0; k < 2 * n && !rc; k++) {
        struct synth_sample *s = &samples[order[k] / 2];
        if (s->error.code) *e = s->error, rc = e->code;
        else rc = write_half(tar, folder, first + order[k] / 2, (int)(order[k] % 2), &s->half[order[k] % 2], e);
    }
    for (uint32_t i = 0; i < n; i++) {
        m->masks += samples[i].masks;
        m->bytes += samples[i].half[0].n + samples[i].half[1].n;
        text_free(&samples[i].half[0]);
        text_free(&samples[i].half[1]);
    }
    mem_free(samples);
    return rc;
}

static int write_blocks(struct make_set *m, struct tar_writer *tar, const char *folder, uint64_t first, uint64_t n,
                        struct error *e)
{
    int rc = PL_OK;
    for (uint64_t at = 0; at < n && !rc; at += BLOCK)
        rc = write_block(m, tar, folder, first + at, (uint32_t)min_u64(n - at, BLOCK), e);
    return rc;
}

/* Writes a shard, and renames it to its final name when it is complete. */
static int write_tar(struct make_set *m, const char *path, uint64_t first, uint64_t n, struct error *e)
{
    struct temporary t;
    if (temporary_file(&t, path, e)) return e->code;
    struct tar_writer tar = {.fd = t.fd, .path = path};
    int rc = write_blocks(m, &tar, NULL, first, n, e);
    if (!rc) rc = tar_write_end(&tar, e);
    if (!rc) return temporary_keep(&t, path, true, e);
    temporary_drop(&t);
    return rc;
}

/* Removes the temporary files that a killed process left. */
static int sweep(const char *dir, const char *pattern, struct error *e)
{
    struct names l = {0};
    int rc = dir_exists(dir) ? dir_list(dir, &l, e) : PL_OK;
    for (uint32_t i = 0; i < l.n && !rc; i++) {
        struct text path = {0};
        text_printf(&path, "%s/%s", dir, l.at[i]);
        if (pattern_match(pattern, l.at[i])) rc = tree_remove(path.at, e);
        text_free(&path);
    }
    names_free(&l);
    return rc;
}

static void shard_path(const struct make_set *m, uint64_t shard, struct text *path)
{
    text_printf(path, "%s/sa_%06llu%s", m->dir, (unsigned long long)shard, m->extracted ? "" : ".tar");
}

/* Finds out whether a shard was written: a tar has its name when it is whole, a folder is whole
 * when the next one exists. Fails on a path that cannot be looked at. */
static int is_whole(const struct make_set *m, uint64_t shard, bool *whole, struct error *e)
{
    struct text path = {0};
    uint64_t bytes;
    shard_path(m, shard + m->extracted, &path);
    *whole = file_exists(path.at);
    int rc = *whole ? file_size(path.at, &bytes, e) : PL_OK;
    text_free(&path);
    return rc;
}

static int write_shard(struct make_set *m, uint64_t shard, uint64_t first, uint64_t n, struct error *e)
{
    struct text path = {0};
    bool whole;
    if (is_whole(m, shard, &whole, e)) return e->code;
    if (whole) {
        m->there++;
        progress_add(&m->progress, n);
        return PL_OK;
    }
    shard_path(m, shard, &path);
    if (m->extracted && sweep(path.at, "sa_*.tmp.*", e)) return text_free(&path), e->code;
    int rc = m->extracted ? dir_make(path.at, e) : write_tar(m, path.at, first, n, e);
    if (!rc && m->extracted) rc = write_blocks(m, NULL, path.at, first, n, e);
    text_free(&path);
    return rc;
}

/* Refuses a folder that holds sa_* files: they may be the real SA-1B, and files left by a larger
 * dataset would be read with this one. */
static int check_free(const char *dir, const struct text *options, const char *mark, struct error *e)
{
    struct names l = {0};
    char *begun;
    size_t n;
    if (file_exists(mark)) {
        if (file_read(mark, 4096, &begun, &n, e)) return e->code;
        int rc = !strcmp(begun, options->at)
                     ? PL_OK
                     : error_set(e, PL_USAGE,
                                 "%s holds the beginning of another dataset, `data make` with%.200s, which did not "
                                 "end: use those options to continue it, give another folder, or remove this one first",
                                 dir, begun);
        if (!rc) log_note("%s: continuing a dataset that was begun with the same options", dir);
        mem_free(begun);
        return rc;
    }
    int rc = file_exists(dir) ? dir_list(dir, &l, e) : PL_OK;
    for (uint32_t i = 0; i < l.n && !rc; i++)
        if (pattern_match("sa_*", l.at[i]))
            rc = error_set(e, PL_USAGE, "%s/%s exists already: give another folder, or empty this one first", dir,
                           l.at[i]);
    names_free(&l);
    return rc;
}

static int make_shards(struct make_set *m, struct error *e)
{
    uint64_t at = 0;
    progress_begin(&m->progress, "making", "images", m->images);
    for (uint64_t k = 0; k < m->shards; k++) {
        uint64_t n = m->images * (k + 1) / m->shards - m->images * k / m->shards;
        TRY(write_shard(m, k, 1 + at, n, e));
        at += n;
    }
    progress_clear();
    return PL_OK;
}

int make_set(struct make_set *m, struct error *e)
{
    struct text mark = {0};
    m->key = random_key(m->synth.seed, "order of members");
    text_printf(&m->options, " --images %llu --shards %llu --size %ux%u --seed %llu --masks %u --order %s%s",
                (unsigned long long)m->images, (unsigned long long)m->shards, m->synth.width, m->synth.height,
                (unsigned long long)m->synth.seed, m->synth.masks, m->sorted ? "sorted" : "random",
                m->extracted ? " --extracted" : "");
    text_printf(&mark, "%s/.make", m->dir);
    int rc = check_free(m->dir, &m->options, mark.at, e);
    if (!rc) rc = dir_make(m->dir, e);
    if (!rc) rc = sweep(m->dir, ".make.tmp.*", e);
    if (!rc) rc = file_write_atomic(mark.at, m->options.at, m->options.n, e);
    if (!rc) rc = make_shards(m, e);
    if (!rc && unlink(mark.at)) rc = file_error(mark.at, "remove it", e);
    text_free(&mark);
    text_free(&m->options);
    return rc;
}
