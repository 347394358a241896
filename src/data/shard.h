/*
 * shard.h: images and their annotations in pairs, out of a tar or a folder.
 *
 *     sa_000020.tar                          pair 0   sa_223750   image, text
 *       ./sa_223751.json                     pair 1   sa_223751   image, text
 *       ./sa_223750.jpg           index      ...
 *       ./sa_223751.jpg          ======>
 *       ./sa_223750.json                     a report of what has no partner, comes
 *       ...                                  twice, or cannot be read
 *
 * Members belong together by their name without folder and extension, wherever they stand.
 * Pairs are sorted by that name. A tar is gone through once; the result is kept in FILE.idx
 * beside it, or in $XDG_CACHE_HOME/plimsoll where that folder cannot be written, and is used
 * again as long as the tar is the same. A folder of extracted files is a shard as well.
 *
 * After opening nothing is allocated, and any number of threads may read.
 */
#ifndef SHARD_H
#define SHARD_H

#include "base/base.h"

enum shard_half { SHARD_IMAGE, SHARD_TEXT };

/* In the index file as well: fixed sizes, no holes. */
struct shard_pair {
    uint64_t at[2];  /* of either half: offset in the tar; in a folder, of its file name in `names` */
    uint32_t n[2];   /* bytes; in a folder 0: not known */
    uint32_t name;   /* offset of the key in `names` */
    uint32_t unused;
};

struct shard_report {
    uint64_t members;    /* regular files */
    uint64_t others;     /* files that are neither image nor annotation; folders, links */
    uint64_t no_image;   /* annotations without an image */
    uint64_t no_text;    /* images without annotations */
    uint64_t duplicates; /* a half that was there already: the first stands */
    uint64_t too_large;  /* members of 4 GiB and more */
    uint64_t damaged;    /* places where a header was expected and none was */
    uint64_t lost;       /* bytes passed over there */
    uint64_t first_bad;  /* where the first was */
    uint64_t partial;    /* 1: the tar ends inside a member */
};

struct shard {
    char *path;
    int fd; /* of the tar or of the folder */
    bool folder;
    bool cached; /* the index came from a file */
    uint64_t size;
    uint64_t fingerprint; /* of the names and places of all pairs */
    uint32_t n;
    struct shard_pair *pairs;
    char *names;
    uint64_t names_n;
    struct shard_report report;
    void *block; /* holds pairs and names */
};

/* Opens a tar or a folder. PL_USAGE when it is not there or compressed. A shard that is damaged
 * or without a single pair opens: its report says so. */
int shard_open(struct shard *s, const char *path, struct error *e);
void shard_close(struct shard *s);

/* "sa_223750" */
const char *shard_key(const struct shard *s, uint32_t i);
/* The file name or the member's number of bytes is for messages; the bytes go to to[room].
 * PL_NOFIT, and *n is what it takes, when there is not room enough. */
int shard_read(const struct shard *s, uint32_t i, enum shard_half half, void *to, size_t room, size_t *n,
               struct error *e);
/* The same hint to the machine as reading ahead; costs nothing when it is ignored. */
void shard_expect(const struct shard *s, uint32_t i);

/* What went wrong, in one line; false when nothing did. */
bool shard_report_print(const struct shard_report *r, char *out, size_t room);

#endif
