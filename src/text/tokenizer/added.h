/*
 * added.h: added tokens: strings that are cut out of the text before the model sees it.
 */
#ifndef ADDED_H
#define ADDED_H

#include "text/tokenizer/aligned.h"
#include "text/tokenizer/trie.h"
#include "text/tokenizer/vocabulary.h"

struct added_token {
    int32_t id;
    const char *content;
    const char *pattern; /* what is searched for */
    bool special;
    bool normalized;     /* searched in the normalized text, by its own normalized content */
    bool lstrip, rstrip; /* takes the blanks before it, after it */
    bool single_word;    /* not inside of a word */
};

struct added {
    struct added_token *at;
    uint32_t n, cap;
    struct trie raw, normalized; /* values: indices of `at` */
    struct id_map contents;      /* to indices of `at` */
};
void added_free(struct added *a);

/* Ranges of the user's text in which special tokens are text. */
struct protected_text {
    const struct byte_range *at;
    uint32_t n;
};

/* A walk over a text: pieces of plain text and added tokens in turn. */
struct added_walk {
    const struct added *added;
    const struct trie *trie;
    struct aligned text;
    struct protected_text data;
    uint32_t from;                   /* where the search continues */
    uint32_t done;                   /* the end of what was given out */
    const struct added_token *token; /* found, not yet given out */
    uint32_t begin, end;             /* of `token` */
    bool ended;
};
/* The next piece, begin and end in w->text: *token is NULL for plain text. False: there is none. */
bool added_next(struct added_walk *w, const struct added_token **token, struct byte_range *piece);

#endif
