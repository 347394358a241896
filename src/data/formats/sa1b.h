/*
 * sa1b.h: pairs of an image and its annotations, from a tar or a folder.
 *
 *     sa_000020.tar                          pair 0   sa_223750   image, text
 *       ./sa_223751.json                     pair 1   sa_223751   image, text
 *       ./sa_223750.jpg           index      ...
 *       ./sa_223751.jpg          ======>
 *       ./sa_223750.json                     a report of files without a partner,
 *       ...                                  duplicates and damaged members
 *
 * Members belong together by their name without folder and extension, at any position. Pairs are
 * sorted by that name. A tar is scanned once; the result is stored in FILE.idx beside it, or in
 * $XDG_CACHE_HOME/plimsoll if that folder is not writable, and is reused as long as the tar is
 * unchanged. A folder of extracted files is a shard as well.
 *
 * After opening nothing is allocated, and any number of threads may read.
 */
#pragma once

#include "base/base.h"

enum shard_half { SHARD_IMAGE, SHARD_TEXT };

/* Also stored in the index file: fixed sizes, no padding. */
struct shard_pair {
    uint64_t at[2];  /* of each half: offset in the tar; in a folder, offset of its file name in `names` */
    uint32_t n[2];   /* bytes; in a folder 0: unknown */
    uint32_t name;   /* offset of the key in `names` */
    uint32_t unused;
};

struct shard_report {
    uint64_t members;    /* regular files */
    uint64_t others;     /* files that are neither image nor annotation; folders, links */
    uint64_t no_image;   /* annotations without an image */
    uint64_t no_text;    /* images without annotations */
    uint64_t duplicates; /* repeated halves: the first is used */
    uint64_t too_large;  /* members of 4 GiB and more */
    uint64_t damaged;    /* positions without an expected header */
    uint64_t lost;       /* bytes skipped there */
    uint64_t first_bad;  /* offset of the first */
    uint64_t partial;    /* 1: the tar ends inside a member */
};

struct shard {
    char *path;
    int fd; /* of the tar or of the folder */
    bool folder;
    bool cached; /* the index came from a file */
    uint64_t size;
    uint64_t fingerprint; /* of the names and offsets of all pairs */
    uint32_t n;
    struct shard_pair *pairs;
    char *names;
    uint64_t names_n;
    struct shard_report report;
    void *block; /* holds pairs and names */
};

/* Opens a tar or a folder. PL_USAGE when it is missing or compressed. A shard that is damaged or
 * has no pair opens without an error: its report counts the faults. */
int shard_open(struct shard *s, const char *path, struct error *e);
void shard_close(struct shard *s);

/* Returns a key, such as "sa_223750". */
const char *shard_key(const struct shard *s, uint32_t i);
/* Reads one half into to[room]. Messages name the file or the key. PL_NOFIT, with the required
 * bytes in *n, when the room is too small. */
int shard_read(const struct shard *s, uint32_t i, enum shard_half half, void *to, size_t room, size_t *n,
               struct error *e);
/* Prefetches a pair into the page cache (a hint to the operating system). */
void shard_prefetch(const struct shard *s, uint32_t i);

/* Prints the faults in one line; false when there are none. */
bool shard_report_print(const struct shard_report *r, char *out, size_t room);
