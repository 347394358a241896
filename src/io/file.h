/*
 * file.h: files and folders. Paths are C strings; the functions keep no state.
 *
 * A missing file that the user named is PL_USAGE. A failure of the machine (disk full,
 * permissions, I/O errors) is PL_FAIL. Messages name the path.
 */
#pragma once

#include "base/mapped.h"

/* A list of names, each on the heap; names_free releases all. */
struct names {
    char **at;
    uint32_t n, cap;
};
void names_free(struct names *l);

/* Fills `e` from errno: "PATH: cannot DOING: reason (what to do)". */
int file_error(const char *path, const char *doing, struct error *e);

/* Raises the soft limit of open files of the process to the hard one. */
void files_raise_limit(void);
uint32_t files_limit(void);
/* Returns PL_FAIL unless n more files can be opened. */
int files_spare(uint32_t n, struct error *e);

/* Opens a regular file for reading; returns the descriptor, or -1 with the message in `e`. Every
 * input file of the program is opened here or with file_peek. Anything else, such as a pipe or a
 * device, is refused at once and never waited for; so is a Git LFS pointer. *bytes, unless NULL, is
 * the file's size. Nothing is allocated. */
int file_open(const char *path, uint64_t *bytes, struct error *e);
/* Maps a whole file for reading. The map of an empty file is not open. */
int file_map(struct mapped *m, const char *path, struct error *e);
/* Opens and closes it, for the message. */
int file_check(const char *path, struct error *e);
/* Returns PL_USAGE if an open file is a Git LFS pointer, some lines in place of a file that was
 * not downloaded. */
int file_refuse_pointer(const char *path, int fd, uint64_t bytes, struct error *e);
/* Reads the whole file, at most `limit` bytes, and appends a NUL; the caller frees *bytes with
 * mem_free. */
int file_read(const char *path, uint64_t limit, char **bytes, size_t *n, struct error *e);
/* Reads up to n bytes from the beginning of a regular file; returns their number, 0 when there is
 * no such file. Never waits for a pipe. */
size_t file_peek(const char *path, void *to, size_t n);
/* Writes a file atomically: beside `path`, synced, renamed to `path`, with a sync of the folder. */
int file_write_atomic(const char *path, const void *bytes, size_t n, struct error *e);
/* Does the same with a text, and frees it; after an error `rc` only frees it. Returns the code. */
int file_write_text(int rc, const char *path, struct text *t, struct error *e);
/* Does the same without a sync, for many files: a loss of power may lose the last of them. */
int file_write_unsynced(const char *path, const void *bytes, size_t n, struct error *e);
/* Copies the bytes and the mode, and syncs. An existing target is replaced. */
int file_copy(const char *from, const char *to, struct error *e);
/* Calls rename(2), then syncs the folder of `to`. */
int file_rename(const char *from, const char *to, struct error *e);
/* Returns true for the errno of a stat(2) that failed though the file may be there. */
bool file_is_hidden(int code);
/* Returns false if there is no such file. A hidden one counts as existing: opening it says why it
 * cannot be read. */
bool file_exists(const char *path);
bool dir_exists(const char *path);
bool file_same(const char *a, const char *b); /* both exist and are the same file (inode) */
int file_size(const char *path, uint64_t *bytes, struct error *e);

/* Creates the folder and its missing parents. Existing folders are not an error. */
int dir_make(const char *path, struct error *e);
int dir_sync(const char *path, struct error *e);
/* Lists the names in a folder, sorted by byte, without "." and "..". */
int dir_list(const char *path, struct names *out, struct error *e);
/* Removes a file, or a folder with its contents; links are removed, not followed. A missing path
 * is not an error. */
int tree_remove(const char *path, struct error *e);

/* Lists the paths in a folder with the given ending, sorted by byte, without hidden files. */
int dir_list_ending(const char *path, const char *ending, struct names *out, struct error *e);
/* Lists the paths that match, sorted by byte, without duplicates; {a,b} alternatives are
 * supported. A pattern that is the name of an existing file matches that file. No match is not an
 * error: the caller reports it. */
int file_glob(const char *pattern, struct names *out, struct error *e);
/* Prints the path or, if it does not exist, its nearest existing parent. */
int folder_above(const char *path, char *out, size_t room, struct error *e);
/* Finds the free bytes for this user on the file system of `path` or, if it does not exist, of its
 * nearest existing parent. */
int disk_free(const char *path, uint64_t *bytes, struct error *e);

/* Prints the path of `name` in the user's data folder, $XDG_DATA_HOME/plimsoll or
 * ~/.local/share/plimsoll, which need not exist. False: there is no such folder, or no room. */
bool data_path(const char *name, char *out, size_t room);
/* Returns "FOLDER/NAME", or NAME if the folder is "". The caller frees it. */
char *path_join(const char *folder, const char *name);
/* Prints the folder part of a path ("." when it has none), in the caller's buffer. */
int path_dir(const char *path, char *out, size_t room, struct error *e);
/* Changes a path that a Windows program wrote, images\a.jpg, to images/a.jpg, in place. */
void path_from_windows(char *path);
/* Reads exactly n bytes from offset `at`; messages name no file. PL_FAIL when the file ends
 * before. */
int fd_read_at(int fd, uint64_t at, void *to, size_t n, struct error *e);
/* Writes all n bytes at the descriptor's position; returns 0, or -1 with errno. */
int fd_write(int fd, const void *bytes, size_t n);
