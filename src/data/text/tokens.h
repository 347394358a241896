/*
 * tokens.h: the data formats `tokens` and `bytes`: files of token ids, cut into samples.
 *
 *     file A  |  0  |  1  |  2  |..    .. the tail of a file is not used
 *     file B  |  3  |  4  |.           a sample is T consecutive tokens
 *
 * A dataset is the files in order; a sample never crosses from one file to the next. The format of
 * a file is detected from its name and its first bytes:
 *
 *     *.npy            1-D or 2-D array of u1 u2 u4 i4 i8
 *     *.safetensors    the tensor `tokens`, `input_ids`, or the only one
 *     llm.c's .bin     256 int32 of header, then uint16 (or uint32) tokens
 *     *.bin, *.tokens  raw little-endian elements of data.token_dtype; with auto, uint16
 *     anything else    the same if data.token_dtype is given, else refused; what is
 *                      recognised as text, records or an archive is always refused
 *
 * With the data format `bytes` every byte of a file, whatever it is, is a token id.
 *
 * Labels are the same tokens: the model shifts them.
 */
#pragma once

#include "base/base.h"

/* In the order of the choices of data.token_dtype. */
enum tokens_dtype { TOKENS_AUTO, TOKENS_U8, TOKENS_U16, TOKENS_U32, TOKENS_I32, TOKENS_I64 };

struct tokens_file {
    char *path;
    enum tokens_dtype dtype;
    uint64_t start; /* offset of the first token, bytes */
    uint64_t count; /* tokens */
    uint64_t first; /* index of its first sample in the dataset */
};

/* Open descriptors: file i uses slot i % TOKENS_SLOTS, so a few descriptors serve any number of
 * files. */
enum { TOKENS_SLOTS = 64, TOKENS_BUFFER = 1 << 16 };

/* Not shared between threads: a reader owns its buffer and descriptors. */
struct tokens {
    struct tokens_file *files;
    uint32_t n_files;
    uint64_t samples;
    uint64_t sequence;
    uint64_t vocab_size;
    unsigned char *buffer; /* TOKENS_BUFFER bytes */
    struct {
        uint32_t file; /* number + 1; 0: empty */
        int fd;
    } slots[TOKENS_SLOTS];
};

struct tokens_options {
    char *const *paths; /* paths or globs; each glob's files are sorted */
    uint32_t n_paths;
    int64_t sequence;
    enum tokens_dtype dtype;
    int64_t vocab_size;
    bool bytes; /* data.format is bytes */
};

/* Finds and checks all files. PL_USAGE with the file's name when there is no file, when one is
 * empty, truncated or not a file of tokens, or when no file is long enough for a sample. */
int tokens_open(struct tokens *t, const struct tokens_options *options, struct error *e);
void tokens_close(struct tokens *t);

static inline uint64_t tokens_count(const struct tokens *t) { return t->samples; }

/* Reads sample number `sample` (< tokens_count) into out[sequence]. Allocates nothing. An id
 * outside the vocabulary is PL_USAGE, with file and position. */
int tokens_read(struct tokens *t, uint64_t sample, int32_t *out, struct error *e);

/* A hash of the files' tokens, not of their names. It reads TOKENS_WHOLE bytes of a
 * larger file, in blocks spread evenly from the first to the last one. */
enum { TOKENS_WHOLE = 64 << 20 };
int tokens_fingerprint(struct tokens *t, uint64_t *out, struct error *e);

/* ---- Files that are not tokens ----
 *
 * recognises files that hold no token ids: text, records, archives.
 *
 * Any bytes can be read as raw integers, and a model trains on them without an error. So a file
 * that another format claims, by its name or its first bytes, is refused as a token file.
 */

/* Returns what the file holds instead of token ids, such as "a Parquet table"; NULL: nothing
 * speaks against raw integers. */
const char *not_tokens(const char *path, int fd);
/* Returns the same by the first bytes only, whatever the file's name is. */
const char *not_tokens_bytes(int fd);

/* Reports whether a file has the name of plain text, which data.format: text reads. */
bool is_plain_text(const char *path);
/* Reports whether a file has the name of a file of tokens. */
bool is_token_file(const char *path);

/* Returns "text" if the first bytes of the file are text (UTF-8 without control characters), else
 * NULL. Fewer than 32 bytes are not judged: they may be either. */
const char *not_tokens_text(int fd);

/* Reports whether the file begins with the byte order mark of UTF-16 text. */
bool not_tokens_utf16(int fd);

/* Returns how many bytes an integer of the file seems to have if it is read as uint16: 4 or 8 when
 * the upper halves, or the upper three quarters, are all 0 and the lower ones are not; else 2. */
uint32_t not_tokens_width(int fd);
