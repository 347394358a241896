/*
 * model.h: the model of a tokenizer: a pre-token to tokens. BPE, Unigram or WordPiece.
 */
#ifndef MODEL_H
#define MODEL_H

#include "text/tokenizer/aligned.h"
#include "text/tokenizer/merges.h"
#include "text/tokenizer/trie.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/words.h"

/* Bytes of a prefix or suffix of words, at most. */
enum { AFFIX_MOST = 64 };
/* max_input_chars_per_word, at most: the time for a word grows with its square. */
enum { WORDPIECE_MOST = 1000 };

/* Byte pair encoding, by ranks of merges or by scores of pieces. */
struct bpe {
    struct merges merges;
    struct id_map ids;        /* by content; with `raw`, by the bytes that the content stands for */
    int32_t ascii[256];       /* symbols of single bytes (raw: all; else below 128); -1: none */
    bool raw;                 /* symbols are bytes, not characters: byte-level BPE */
    int32_t unk;              /* -1: none */
    bool fuse_unk, byte_fallback, ignore_merges;
    int32_t fallback[256];    /* <0x00>, ...; -1: none */
    const char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; NULL: none */

    /* By scores (tokenizer.model). Symbols that are no token, because only a longer piece has this
     * character, have ids of n_tokens and above. */
    bool by_score;
    int32_t n_tokens;
    bool *unused;             /* [ids]; pieces that are split again into what they were joined from; NULL: none */

    /* Where text can be cut into words that never join: before `seam`, unless the character before
     * it stands before `seam` in some token. */
    const char *seam;         /* NULL: nowhere */
    uint32_t seam_n;
    VEC(uint32_t) seam_joins; /* characters before which no cut is made */
};

/* Unigram: the pieces with the largest sum of scores. */
struct unigram {
    struct trie trie;         /* values: ids */
    double *scores;           /* [n] */
    int32_t n, unk;           /* unk -1: none */
    double unk_score;
    bool single;              /* sums of scores are rounded to single precision, as SentencePiece has them */
    bool byte_fallback;
    int32_t fallback[256];
};

/* WordPiece: from the beginning of a word, each time the longest piece. */
struct wordpiece {
    const struct vocabulary *vocabulary;
    const char *prefix;       /* of pieces that do not begin a word */
    uint64_t most;            /* a word of more characters is unknown */
    int32_t unk;              /* -1: none */
};

struct model {
    enum { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE } kind;
    struct bpe bpe;
    struct unigram unigram;
    struct wordpiece wordpiece;
};

/* Memory of a call; one for each thread. */
struct model_work {
    struct words words;
    struct merger merger;
    VEC(struct token) symbols, tokens;
    struct unigram_node *nodes;
    uint32_t cap_nodes;
    struct text key;
};
void model_work_free(struct model_work *w);

/* Appends the tokens of text[begin, end), a pre-token. PL_USAGE: a character that is in no token,
 * and the model has no unknown token. */
int model_encode(const struct model *m, struct model_work *w, const struct aligned *text, uint32_t begin, uint32_t end,
                 struct token_list *out, struct error *e);
void model_free(struct model *m);

/* The parts, for model.c. Ranges of tokens count from the begin of the word. */
void bpe_word(const struct bpe *m, struct model_work *w, const char *word, uint32_t n);
int unigram_word(const struct unigram *m, struct model_work *w, const char *word, uint32_t n, struct error *e);
int wordpiece_word(const struct wordpiece *m, struct model_work *w, const char *word, uint32_t n, struct error *e);
/* The end of the word that begins at `begin`: `end`, or a seam before it. */
uint32_t bpe_word_end(const struct bpe *m, const char *text, uint32_t begin, uint32_t end);
/* Sets the seams up from a vocabulary whose `seam` is a token. */
void bpe_find_seams(struct bpe *m, const struct vocabulary *v, const char *seam);
/* Looks <0x00>, ..., <0xFF> up. True: all are there. */
bool find_fallback(const struct id_map *ids, int32_t fallback[256]);

#endif
