/*
 * faults.h: samples that cannot be used: why, how many, and when they are too many.
 *
 * A loader replaces such a sample by another one, drawn by seed and position, so that no other
 * position changes. It counts in the order of positions.
 */
#pragma once

#include "data/masks/mask.h"

enum {
    FAULTS_FIRST = 20,  /* broken samples before their share can end a run inside an epoch */
    FAULTS_TRIES = 64,  /* substitutes that are tried for a sample */
    FAULTS_NAMED = 480, /* length of the text about a broken sample */
};

/* Counts of samples and faults, in the order of positions. */
struct loader_counts {
    uint64_t seen;         /* positions taken; of rows of conversations their samples */
    uint64_t broken;       /* positions with a broken sample; broken samples */
    uint64_t empty;        /* positions with a sound sample without a mask to train on; these are
                              replaced, too */
    uint64_t bad_masks;    /* malformed masks of sound samples */
    uint64_t lost_masks;   /* masks too small for the grid, or outside of the crop */
    uint64_t fault[FAULT_KINDS]; /* broken samples by kind */
    char last[FAULTS_NAMED];     /* the name and the fault of the last broken sample */
};

/* What a thread says about a slot. */
struct slot_fault {
    enum data_fault fault;     /* FAULT_NONE: the sample could be used */
    uint32_t broken;           /* samples of the slot that could not be used; the first of them: */
    char name[256], text[512]; /* its name, and its fault in words */
};
void faults_set(struct slot_fault *f, enum data_fault fault, const struct error *e);
/* Returns PL_FAIL if the sample could not be read because too many files are open. It is not
 * counted as broken. */
int faults_open(const struct slot_fault *f, struct error *e);

/* Returns the sample that is tried instead, of n: by seed, position and number of the attempt. */
uint64_t faults_substitute(uint64_t seed, uint64_t position, uint64_t attempt, uint64_t n);

/* Counts a slot with broken samples, and logs it: the first ones, then one each time their number
 * has doubled. `what` says what becomes of it; `list` which command lists all, or "". */
void faults_count(struct loader_counts *c, const struct slot_fault *f, bool quiet, const char *what, const char *list);
/* Returns PL_FAIL when more samples are broken than max_bad allows; checked from FAULTS_FIRST on,
 * and with `whole`, the end of an epoch. */
int faults_check(const struct loader_counts *c, double max_bad, bool whole, const char *list, struct error *e);

/* Reads a whole file into to[room]. */
enum data_fault fault_read_file(const char *path, void *to, size_t room, size_t *n, struct error *e);
