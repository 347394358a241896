/*
 * tokenizer_parts.h: what a tokenizer consists of, for the files of this folder.
 *
 *     text ─► added tokens ─► normalizer ─► added tokens ─► pre-tokenizer ─► model ─►
 *     post-processor ─► ids
 *              (as written)                 (normalized)                                        ids ─► decoder ─► text
 *
 *     tokenizer_json.c      reads tokenizer.json
 *     sentencepiece.c       reads tokenizer.model
 *     special.c             reads tokenizer_config.json and its neighbours
 *     tokenizer_open.c      opens
 *     tokenizer.c           encodes, decodes
 */
#ifndef TOKENIZER_PARTS_H
#define TOKENIZER_PARTS_H

#include <pthread.h>

#include "text/tokenizer/added.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/model.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/tokenizer.h"

/* Bytes of a tokenizer.json and of a tokenizer.model, at most. */
enum { TOKENIZER_JSON_MOST = 128 << 20, TOKENIZER_MODEL_MOST = 64 << 20 };

enum role { ROLE_BOS, ROLE_EOS, ROLE_UNK, ROLE_SEP, ROLE_PAD, ROLE_CLS, ROLE_MASK, ROLES };
extern const char *const role_names[ROLES]; /* "bos_token", ... */

enum { POST_TEXT = -1, POST_MOST = 256 }; /* POST_MOST: entries of tokenizer.post, at most */

struct tokenizer {
    struct bump memory;
    struct vocabulary vocabulary;  /* of the model, and the added tokens */
    struct added added;
    struct normalizer normalizer;
    struct pretokenizer pretokenizer;
    struct model model;
    VEC(int32_t) post;             /* ids that are put around the text; POST_TEXT: the text */
    struct decoder decoder;
    const char **decoded;          /* [size]: what the decoder sees of a token */
    bool *special;                 /* [size]: added tokens that are special */
    const char *roles[ROLES];      /* NULL: none */
    bool sentencepiece;
    struct trie user_defined;      /* tokenizer.model: pieces that the user defined */
    uint64_t fingerprint;
    struct work_pool *pool;
};

/* Each fills `t`, whose fields are zero. Messages begin without the path. */
int tokenizer_read_json(struct tokenizer *t, const char *bytes, size_t n, struct error *e);
int tokenizer_read_sentencepiece(struct tokenizer *t, const char *bytes, size_t n, struct error *e);
/* Reads the roles of a folder's tokens. For a tokenizer.model also the added tokens, and whether
 * BOS and EOS are added. */
int tokenizer_read_special(struct tokenizer *t, const char *folder, struct error *e);

/* Memory for calls of tokenizer_encode, which tokenizer_close frees. */
struct work_pool *work_pool_new(void);
/* Adds a token to those that are cut out of the text, and to the vocabulary if it is new. */
int tokenizer_add(struct tokenizer *t, struct added_token token, struct error *e);

#endif
