/*
 * token_store.h: conversations as token ids in a file, so that training reads no text.
 *
 *     0       struct token_store_header
 *     4096    ids of all samples, int32, one after the other; zeros up to a multiple of 8 bytes
 *     index   struct stored_sample [samples]
 *             struct byte_range    [answers]: what the assistant says, as tokens of its sample
 *             struct byte_range    [images]: images, as tokens of their sample
 *             struct group_member  [members]: samples with images or videos that cannot be used,
 *             for data.holdout
 *             names, each terminated by a 0: data files, images
 *     end of the file
 *
 * Numbers are little-endian. The file is memory-mapped: reading needs no allocation and no system
 * call. It holds what depends only on text: data files, tokenizer, chat template and system
 * prompt, whose fingerprints are in the header. How samples are cut, labelled and packed is decided
 * when it is opened for training (conversations.h). The header is written last, and checksums cover
 * every byte.
 */
#pragma once

#include "base/mapped.h"
#include "data/order.h"
#include "data/text/conversation.h"
#include "text/unicode.h"

enum { TOKEN_STORE_VERSION = 5, TOKEN_STORE_DATA = 4096 };
#define TOKEN_STORE_MAGIC "PLIMTEXT"

/* What the ids were made from. */
struct token_store_key {
    uint64_t data;      /* the bytes of the data files, in their order */
    uint64_t tokenizer, template; /* template 0: none */
    uint64_t options;   /* data.system, and how images stand in the text */
};

/* What was read, and what could not be used. */
struct sample_report {
    uint64_t read;                    /* samples in the files */
    uint64_t bad[SAMPLE_FAULTS];      /* by fault; those of SAMPLE_FINE are usable */
    char first[SAMPLE_FAULTS][240];   /* FILE:LINE: why, of the first one */
};
uint64_t report_bad(const struct sample_report *r);
/* Counts `times` samples that begin at a line of a file. Keeps where the first ones with a fault
 * are, and why. */
void report_add(struct sample_report *r, enum conversation_fault fault, uint64_t times, const char *file, uint64_t line,
                const char *why);
/* Prints "12 of 400 samples cannot be used: 8 turns out of order (such as chats.jsonl:3: ...); 4
 * ..."; nothing if all can. */
void report_print(const struct sample_report *r, struct text *out);

struct token_store_header {
    char magic[8];
    uint32_t version, zero;
    struct token_store_key key;
    uint64_t samples, tokens, answers, images, members, names; /* names: bytes */
    uint64_t bytes;                           /* of the file */
    int32_t largest;                          /* id */
    uint32_t tokens_sum, index_sum;           /* CRC32C */
    /* the id at images, which may be below 0 or beyond the vocabulary; 0: there are none */
    int32_t image_token;
    struct sample_report report;
    uint32_t zero3, header_sum;               /* CRC32C of all bytes before it */
};

/* A text without turns, which may be cut anywhere. A conversation that a template rendered, and
 * whether a special token ends its last answer, and its text. */
enum stored_flags { STORED_PLAIN = 1, STORED_CHAT = 2, STORED_ANSWER_ENDS = 4, STORED_TEXT_ENDS = 8 };

struct stored_sample {
    uint64_t first;        /* its first id */
    uint64_t first_answer;
    uint64_t first_image;
    uint64_t media;        /* offset in the names of the first of its images: paths, one after the other */
    uint64_t line;         /* in its file */
    uint64_t number;       /* among the samples of all files, those that cannot be used included */
    uint64_t file;         /* offset in the names */
    uint64_t group;        /* of conversation_group */
    uint32_t tokens, answers, n_media;
    uint32_t flags;        /* enum stored_flags */
};

struct token_store {
    struct mapped map;
    const struct token_store_header *header;
    const int32_t *ids;
    const struct stored_sample *samples;
    const struct byte_range *answers, *images;
    const struct group_member *members;
    const char *names;
};

/* Opens a token store, which must not be moved while it is open. PL_USAGE, with the path: it is
 * not a token store, it is cut or damaged. */
int token_store_open(struct token_store *s, const char *path, struct error *e);
void token_store_close(struct token_store *s);
/* Returns PL_FAIL if a page of the file could not be read since it was opened. */
int token_store_check(const struct token_store *s, const char *path, struct error *e);
/* Returns the numbers of tokens of the samples, ascending; the caller frees them. */
uint32_t *token_store_lengths(const struct token_store *s);
/* Returns the least of n ascending lengths that a share of them does not exceed, 0.5 for the
 * median; 0 if n is 0. */
uint32_t length_at(const uint32_t *lengths, uint64_t n, double share);
/* Returns what a store was made from that differs: "another tokenizer"; NULL: nothing. */
const char *token_store_differs(const struct token_store_key *stored, const struct token_store_key *now);

/* --- writing, atomically ------------------------------------------------------------ */

struct token_store_writer;
int token_store_create(struct token_store_writer **out, const char *path, const struct token_store_key *key,
                       int32_t image_token, struct error *e);
struct new_sample {
    const int32_t *ids;
    const struct byte_range *answers;
    const struct value *media; /* list of strings; NULL: none */
    const struct byte_range *images; /* the tokens of each */
    const char *file;
    uint64_t line, number, group;
    uint32_t tokens, n_answers, flags;
};
int token_store_add(struct token_store_writer *w, const struct new_sample *s, struct error *e);
/* Notes a sample that cannot be used, by the group that its images or videos put it into. */
void token_store_note(struct token_store_writer *w, uint64_t number, uint64_t group);
/* Returns the report of the store, which the caller fills. */
struct sample_report *token_store_report(struct token_store_writer *w);
/* Writes index and header and renames the file. Frees the writer in any case. */
int token_store_finish(struct token_store_writer *w, struct error *e);
/* Removes the file, instead of token_store_finish. */
void token_store_abandon(struct token_store_writer *w);

/* Writes the ids of all samples, one after the other, as a NumPy array of uint16, or of uint32 if
 * an id needs it. */
int token_store_write_npy(const struct token_store *s, const char *path, struct error *e);
