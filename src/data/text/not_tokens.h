/*
 * not_tokens.h: recognises files that hold no token ids: text, records, archives.
 *
 * Any bytes can be read as raw integers, and a model trains on them without an error. So a file
 * that another format claims, by its name or its first bytes, is refused as a token file.
 */
#ifndef NOT_TOKENS_H
#define NOT_TOKENS_H

#include "base/base.h"

/* What the file holds instead of token ids, such as "a Parquet table"; NULL: nothing speaks
 * against raw integers. */
const char *not_tokens(const char *path, int fd);
/* The same by the first bytes alone, whatever the file's name is. */
const char *not_tokens_bytes(int fd);

/* Whether a file has the name of plain text, which data.format: text reads. */
bool is_plain_text(const char *path);

/* "text" if the first bytes of the file are text (UTF-8 without control characters), else NULL.
 * Fewer than 32 bytes are not judged: they may be either. */
const char *not_tokens_text(int fd);

/* Whether the file begins with the byte order mark of UTF-16 text. */
bool not_tokens_utf16(int fd);

/* How many bytes an integer of the file seems to have if it is read as uint16: 4 or 8 when the
 * upper halves, or the upper three quarters, are all 0 and the lower ones are not; else 2. */
uint32_t not_tokens_width(int fd);

#endif
