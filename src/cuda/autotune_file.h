/*
 * autotune_file.h: which of a library's proposals was the fastest, found once and written down.
 *
 * A choice by timing may come out differently the next time, and with another algorithm come
 * other bits. So it is made once for a product, a GPU and a version of the library, and kept in
 * this user's data folder; every later run reads it:
 *
 *     $XDG_DATA_HOME/plimsoll/cublaslt-130100-NVIDIA-H200.txt
 *
 *     # a comment
 *     KEY = 66 0 36 1 0 0 0 0 3 : 0.3904 0.3120 ms
 *     what decides the proposals   the algorithm   the first one's time, and its own
 *
 * Plain C, without a call of CUDA: matmul_autotune.c measures.
 *
 * Invariants. Any bytes may be in the file: what is no whole line of this form is skipped, and its
 * product is measured again. Lines are only ever added, whole, by whoever holds the lock, and the last one of a key
 * counts: two processes that start at once agree, for the second one waits and reads.
 */
#ifndef AUTOTUNE_FILE_H
#define AUTOTUNE_FILE_H

#include "base/base.h"

enum { CHOICE_KEY = 256, CHOICE_NUMBERS = 9, CHOICES_MOST = 4096, CHOICES_BYTES_MOST = 2 << 20 };

struct choice {
    char key[CHOICE_KEY];             /* printable, without = and : */
    uint32_t number[CHOICE_NUMBERS];  /* the algorithm, by its attributes */
    double first, taken;              /* milliseconds */
};

struct choices {
    char path[4200];
    VEC(struct choice) list;          /* each key once */
    uint64_t bytes;                   /* of the file, when it was read */
    uint32_t skipped;                 /* lines that are none */
    bool torn;                        /* the last one has no end */
    int lock;                         /* while it is held: the file; else -1 */
};

/* Where the choices for a GPU and a version are kept. False: there is no such place. */
bool choices_place(const char *gpu, uint64_t version, char *out, size_t room);
/* Of any bytes, those lines that are whole, into an empty list. */
void choices_parse(struct choices *c, const char *bytes, size_t n);
/* The line of a choice, with its end. */
void choice_print(const struct choice *x, struct text *out);

/* Reads what is kept at c->path; a file that is not there is an empty one. */
int choices_read(struct choices *c, struct error *e);
/* NULL: nobody chose yet. Until the next one is added. */
const struct choice *choices_find(const struct choices *c, const char *key);
/* Waits until nobody else measures, so many seconds at most, then reads again what is kept. The
 * file and its folder are made where they are missing. */
int choices_lock(struct choices *c, double seconds, struct error *e);
/* Under the lock. What could not be written is not in the list either. */
int choices_add(struct choices *c, const struct choice *x, struct error *e);
void choices_unlock(struct choices *c);
void choices_free(struct choices *c);

#endif
