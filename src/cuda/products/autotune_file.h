/*
 * autotune_file.h: the file that stores the fastest cuBLASLt algorithm for each matmul.
 *
 * A choice by timing may differ the next time, and another algorithm gives other bits. So the
 * choice is made once for a matmul, a GPU and a version of the library, and stored in the user's
 * data folder; every later run reads it:
 *
 *     $XDG_DATA_HOME/plimsoll/cublaslt-130100-NVIDIA-H200.txt
 *
 *     # a comment
 *     KEY = 66 0 36 1 0 0 0 0 3 : 0.3904 0.3120 ms
 *     the matmul's key     the algorithm   the time of the first proposal, and of this one
 *
 * Plain C, without any CUDA call: matmul_autotune.c measures.
 *
 * Invariants. The file may hold any bytes: a line that is incomplete or malformed is skipped, and
 * its matmul is measured anew. Whole lines are only ever appended, by the process that holds the
 * lock, and the last line of a key counts. Two processes that start at once agree, because the
 * second waits and reads.
 */
#pragma once

#include "base/base.h"

enum { CHOICE_KEY = 256, CHOICE_NUMBERS = 9, CHOICES_MOST = 4096, CHOICES_BYTES_MOST = 2 << 20 };

struct choice {
    char key[CHOICE_KEY];             /* printable, without = and : */
    uint32_t number[CHOICE_NUMBERS];  /* the algorithm's attributes */
    double first, taken;              /* milliseconds */
};

struct choices {
    char path[4200];
    VEC(struct choice) list;          /* each key occurs once */
    uint64_t bytes;                   /* size of the file when it was read */
    uint32_t skipped;                 /* malformed lines */
    bool torn;                        /* the last line has no newline */
    int lock;                         /* the file descriptor while the lock is held, else -1 */
};

/* Prints the path of the file for a GPU and a library version. Returns false if there is no data
 * folder, or the path does not fit. */
bool choices_path(const char *gpu, uint64_t version, char *out, size_t room);
/* Parses the complete lines of any bytes into an empty list. */
void choices_parse(struct choices *c, const char *bytes, size_t n);
/* Prints the line of a choice, with its newline. */
void choice_print(const struct choice *x, struct text *out);

/* Reads the file at c->path; a missing file counts as an empty one. */
int choices_read(struct choices *c, struct error *e);
/* Returns the choice of a key; NULL: none is stored. The pointer is valid until the next
 * choices_add. */
const struct choice *choices_find(const struct choices *c, const char *key);
/* Waits at most `seconds` for other processes that measure, then reads the file again.
 * Creates the file and its folder if they are missing. */
int choices_lock(struct choices *c, double seconds, struct error *e);
/* Needs the lock. A choice that could not be written is not added to the list either. */
int choices_add(struct choices *c, const struct choice *x, struct error *e);
void choices_unlock(struct choices *c);
void choices_free(struct choices *c);
