/*
 * temporary.h: files and folders that exist while something is made: an output before it is whole,
 * or work that is removed again.
 *
 *     struct temporary t;
 *     int rc = temporary_file(&t, path, e);                   PATH.tmp.0123456789ab
 *     ... write to t.fd ...
 *     if (!rc) rc = temporary_keep(&t, path, true, e);        or temporary_drop(&t)
 *
 * Each is new, with a random name, of mode 600 (folders 700), and never reached through a link: in
 * a folder that others may write to, too, nobody can direct the writing elsewhere or read what is
 * not finished. It is locked while it exists. One that a killed process of this user left is
 * removed when the next one of the same path is made; after temporary_on_signals, SIGINT, SIGTERM
 * and SIGHUP remove all of this process before it ends.
 */
#pragma once

#include "base/base.h"

struct temporary {
    char *path; /* on the heap; NULL: there is none */
    int fd;     /* for reading and writing; of a folder only for the lock */
};

/* Creates an empty file beside `path`, or an empty folder. PL_FAIL: it cannot be created; then *t
 * is none. */
int temporary_file(struct temporary *t, const char *path, struct error *e);
int temporary_folder(struct temporary *t, const char *path, struct error *e);
/* Creates a folder in $TMPDIR, or /tmp. */
int temporary_work(struct temporary *t, struct error *e);
/* Renames it to `path`, with the mode that the user's new files have; `sync`: so that a loss of
 * power does not lose it. If that fails, it is removed. *t is none then. */
int temporary_keep(struct temporary *t, const char *path, bool sync, struct error *e);
/* Removes it, a folder with its contents; none is allowed. *t is none then. */
void temporary_drop(struct temporary *t);

/* Removes all temporary files and folders of a process that is about to end, also in a signal
 * handler. */
void temporary_remove_all(void);
/* Makes SIGINT, SIGTERM and SIGHUP, where they are not ignored, end the process by temporary_end
 * from here on. */
void temporary_on_signals(void);
/* Handles a signal: removes all temporary files and folders of the process, and ends it by the
 * default action. */
void temporary_end(int signal_number);
