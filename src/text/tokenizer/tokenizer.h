/*
 * tokenizer.h: text to token ids and back, as a model folder's own files define them.
 *
 *     tokenizer.json      as the Hugging Face `tokenizers` library reads it: BPE or Unigram
 *     tokenizer.model     as the SentencePiece library reads it: BPE by scores
 *
 * tokenizer_config.json, special_tokens_map.json and added_tokens.json of the same folder say which
 * tokens are special.
 *
 * A tokenizer does not change after tokenizer_open. Several threads may use one at a time: each
 * call borrows a workspace, with a cache of words, that no other call has.
 */
#pragma once

#include "base/base.h"
#include "text/unicode.h"

/* Bytes of one text, at most. Longer texts are an error. */
#define TOKENIZER_TEXT_MOST ((size_t)128 << 20)

struct tokenizer;

/* A token and the bytes of the text that it is for. A token that the post-processor adds, such
 * as BOS, has begin == end. Where a normalizer replaces characters, or a token has some bytes of a
 * character only, the range is that of the bytes that it was made from. Blanks belong to the token
 * that holds them, whatever `trim_offsets` says. */
struct token {
    int32_t id;
    uint32_t begin, end;
};
struct token_list {
    struct token *at;
    uint32_t n, cap;
};

/* Opens a model folder, a tokenizer.json or a tokenizer.model. A folder's tokenizer.json is
 * preferred to its tokenizer.model. PL_USAGE, with the file and the reason, if the file is
 * malformed or has a part that is not known. */
int tokenizer_open(struct tokenizer **out, const char *path, struct error *e);
/* Frees a tokenizer; NULL is allowed. */
void tokenizer_close(struct tokenizer *t);

/* Returns a hash of everything that decides ids. */
uint64_t tokenizer_fingerprint(const struct tokenizer *t);
/* Returns the largest id + 1. */
int32_t tokenizer_size(const struct tokenizer *t);

/* Appends the tokens of n bytes of UTF-8. `data`: the ranges, ascending, of text that came from the
 * user's data; no added token that is special is recognized in them or across their borders.
 * `add_special`: the tokens that the post-processor adds as well (for a tokenizer.model: those that
 * tokenizer_config.json asks for). PL_USAGE: invalid UTF-8, with its offset; a pattern that gave
 * up. `out` then has what it had before. Thread-safe. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, const struct byte_range *data,
                     uint32_t n_data, bool add_special, struct token_list *out, struct error *e);
void token_list_free(struct token_list *l);

/* Appends the text of n ids. `skip_special` leaves out added tokens that are special. PL_USAGE: an
 * id that the tokenizer does not have. Bytes that are not UTF-8 become U+FFFD. Thread-safe. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, uint32_t n, bool skip_special, struct text *out,
                     struct error *e);

/* Decoding token by token. Bytes are given out as soon as a code point is whole; joined they are
 * the text of tokenizer_decode, except in a run of byte tokens such as <0xF0> that is not UTF-8 as
 * a whole: there only the bytes after the last whole code point become U+FFFD.
 *
 *     struct token_stream *s = token_stream_begin(t, true);
 *     token_stream_put(s, id, &text, e);     appends what is final to the text, perhaps nothing
 *     token_stream_end(s, &text);            appends the rest, frees the stream
 */
struct token_stream;
struct token_stream *token_stream_begin(const struct tokenizer *t, bool skip_special);
/* Adds a token. PL_USAGE: an id that the tokenizer does not have. */
int token_stream_put(struct token_stream *s, int32_t id, struct text *out, struct error *e);
/* Ends the stream and frees it; `out` may be NULL. */
void token_stream_end(struct token_stream *s, struct text *out);

/* Returns the id of a token by its content as stored ("<|im_end|>"); -1: none. */
int32_t tokenizer_id(const struct tokenizer *t, const char *content);
/* Returns the token as stored; NULL: no token has this id. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id);
/* Reports whether an id is an added token that is special. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* Return tokens by their role, from tokenizer_config.json and special_tokens_map.json; -1: none. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
int32_t tokenizer_pad(const struct tokenizer *t);
/* Returns the content of "bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
 * "cls_token" or "mask_token"; NULL: none. */
const char *tokenizer_special(const struct tokenizer *t, const char *role);
