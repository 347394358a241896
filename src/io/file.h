/*
 * file.h: files and folders. Paths are C strings; nothing here keeps state.
 *
 * A file that the user named and that is not there is PL_USAGE; what the machine
 * refuses (disk full, permissions, I/O errors) is PL_FAIL. Messages name the path.
 */
#ifndef FILE_H
#define FILE_H

#include "base/base.h"

/* A list of names, each on the heap; names_free releases all. */
struct names {
    char **at;
    uint32_t n, cap;
};
void names_free(struct names *l);

/* Fills `e` from errno: "PATH: cannot DOING: reason (what to do)". */
int file_error(const char *path, const char *doing, struct error *e);

/* The whole file, at most `limit` bytes, with a NUL behind it; *bytes is the caller's
 * to mem_free. Regular files and pipes alike. */
int file_read(const char *path, uint64_t limit, char **bytes, size_t *n, struct error *e);
/* All or nothing: written beside `path`, synced, renamed over it, folder synced. */
int file_write_atomic(const char *path, const void *bytes, size_t n, struct error *e);
/* Byte for byte, mode included, synced. An existing target is replaced. */
int file_copy(const char *from, const char *to, struct error *e);
/* rename(2), then the folder of `to` is synced. */
int file_rename(const char *from, const char *to, struct error *e);
bool file_exists(const char *path);
bool dir_exists(const char *path);
bool file_same(const char *a, const char *b); /* both are there, and are one file, by whatever names */
int file_size(const char *path, uint64_t *bytes, struct error *e);

/* The folder and its missing parents. Existing ones are fine. */
int dir_make(const char *path, struct error *e);
int dir_sync(const char *path, struct error *e);
/* Names in a folder, sorted by byte, without "." and "..". */
int dir_list(const char *path, struct names *out, struct error *e);
/* A file, or a folder with all that is in it; links are removed, not followed. What is
 * not there is fine. */
int tree_remove(const char *path, struct error *e);

/* Paths in a folder that end so, sorted by byte; hidden ones are left out. */
int dir_list_ending(const char *path, const char *ending, struct names *out, struct error *e);
/* Paths that match, sorted by byte, each once; {a,b} alternatives are understood. A name that exists is that file,
 * whatever characters it has. None is not an error: the caller knows what was wanted. */
int file_glob(const char *pattern, struct names *out, struct error *e);
/* Bytes that this user may still write where `path` is or, if it is not there yet, where
 * its nearest existing parent is. */
int disk_free(const char *path, uint64_t *bytes, struct error *e);

/* `name` among this user's own data: in $XDG_DATA_HOME/plimsoll or ~/.local/share/plimsoll, which
 * need not be there yet. False: there is no such place, or no room. */
bool data_path(const char *name, char *out, size_t room);
/* The folder part of a path ("." when it has none), in a caller's buffer. */
int path_dir(const char *path, char *out, size_t room, struct error *e);
/* Writes all n bytes at the descriptor's position; 0, or -1 with errno. */
int fd_write(int fd, const void *bytes, size_t n);

#endif
