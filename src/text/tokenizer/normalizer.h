/*
 * normalizer.h: what happens to a text before it is cut into words.
 */
#ifndef NORMALIZER_H
#define NORMALIZER_H

#include "text/tokenizer/aligned.h"
#include "text/tokenizer/charsmap.h"
#include "text/tokenizer/finder.h"
#include "text/tokenizer/trie.h"
#include "text/unicode.h"

/* Precompiled is a table of replacements as the tokenizers library applies it, by graphemes. Clean,
 * Chinese and marks are parts of BertNormalizer. */
enum normal_kind {
    NORMAL_FORM,
    NORMAL_LOWERCASE,
    NORMAL_CLEAN,
    NORMAL_CHINESE,
    NORMAL_MARKS,
    NORMAL_STRIP,
    NORMAL_PREPEND,
    NORMAL_REPLACE,
    NORMAL_PRECOMPILED,
    NORMAL_SENTENCEPIECE
};

struct normal_step {
    enum normal_kind kind;
    enum unicode_form form;   /* NORMAL_FORM */
    struct finder find;       /* NORMAL_REPLACE */
    const char *content;      /* NORMAL_PREPEND, NORMAL_REPLACE */
    bool nonspacing;          /* NORMAL_MARKS: only these are left out */
    bool left, right;         /* NORMAL_STRIP */
    struct charsmap map;      /* NORMAL_PRECOMPILED; NORMAL_SENTENCEPIECE: may be empty */
    /* NORMAL_SENTENCEPIECE: the flags of normalizer_spec */
    bool add_prefix, first_only, remove_extra, escape, suffix;
    const struct trie *keep;  /* user-defined pieces, which stay as they are; NULL: none */
};

/* Steps, one after the other, at most so many. */
enum { NORMAL_STEPS_MOST = 64 };
struct normalizer {
    VEC(struct normal_step) steps;
};

/* Reads the "normalizer" of a tokenizer.json; null is no step. Strings live in `memory`. */
int normalizer_read(struct normalizer *n, const struct value *v, struct bump *memory, struct error *e);
void normalizer_free(struct normalizer *n);

/* Memory of a call; one for each thread. */
struct normal_work {
    struct aligned_buffer buffers[2];
    struct codes codes;
    struct pattern_search *search;
};
void normal_work_free(struct normal_work *w);

/* Replaces *text, which is not empty, by the normalized text, which lies in `w`. */
int normalize(const struct normalizer *n, struct normal_work *w, struct aligned *text, struct error *e);

#endif
