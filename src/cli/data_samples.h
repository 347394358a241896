/*
 * data_samples.h: all samples under some paths, for the commands that look at each of them:
 * inspect and verify. Nothing is planned here: every sample has memory of its own size.
 */
#ifndef DATA_SAMPLES_H
#define DATA_SAMPLES_H

#include "data/annotation.h"
#include "data/shard.h"
#include "io/file.h"

struct samples {
    struct shard *shards;
    uint32_t n_shards;
    uint64_t n;                 /* pairs in all */
    struct shard_report report; /* summed */
};
/* Tars, folders of pairs, folders of tars, globs. */
int samples_open(struct samples *s, const struct names *paths, struct error *e);
void samples_close(struct samples *s);

struct sample {
    char name[256]; /* shard/key */
    struct text image, text;
    struct annotation facts;
    struct mask *masks; /* [facts.masks]; shapes point into text */
};
/* Sample i; any thread. Fails when a half cannot be read or the annotations make no sense; what
 * was read is there all the same. Free it in any case. */
int samples_read(const struct samples *s, uint64_t i, struct sample *out, struct error *e);
/* One half of pair i of a shard, into memory of its size; replaces what `out` held. */
int samples_read_half(const struct shard *s, uint32_t i, enum shard_half half, struct text *out, struct error *e);
void sample_free(struct sample *s);

#endif
