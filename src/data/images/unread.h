/*
 * unread.h: image files that people have and that this program does not read: MetaImage, BMP,
 * files under a wrong name, and others. Messages name the format and a converter.
 */
#ifndef UNREAD_H
#define UNREAD_H

#include "base/base.h"

struct unread {
    const char *name;    /* "BMP" */
    const char *endings; /* of file names, each between blanks: " .mha .mhd " */
    const char *advice;  /* how to convert such files */
};

/* The format by the ending of a file name, or by the first bytes of a file; NULL: none of them. */
const struct unread *unread_by_name(const char *path);
const struct unread *unread_by_bytes(const void *bytes, size_t n);
/* Does as unread_by_name, then by the first bytes of the file: DICOM files often have no ending. */
const struct unread *unread_file(const char *path);
/* Returns PL_USAGE: "20 files in images/ are BMP (such as a.bmp), which is not read: ...". `where`
 * may be NULL. */
int unread_refuse(const struct unread *u, uint64_t n, const char *where, const char *example, struct error *e);

#endif
