/*
 * pretokenizer.h: cuts a normalized text into pre-tokens, which the model sees one at a time.
 */
#ifndef PRETOKENIZER_H
#define PRETOKENIZER_H

#include "text/tokenizer/aligned.h"
#include "text/tokenizer/finder.h"

/* Words: runs of word characters and runs of others, without the white space between them
 * (Whitespace). */
enum split_kind {
    SPLIT_PATTERN,
    SPLIT_DIGITS,
    SPLIT_SPACES,
    SPLIT_PUNCTUATION,
    SPLIT_WORDS,
    SPLIT_BYTE_LEVEL,
    SPLIT_METASPACE
};
/* What becomes of a match: its own piece; nothing; a part of the piece before, or behind it;
 * neighbouring matches one piece. */
enum split_behavior { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT, SPLIT_CONTIGUOUS };

struct split_step {
    enum split_kind kind;
    enum split_behavior behavior;  /* but for SPLIT_BYTE_LEVEL */
    struct finder find;            /* SPLIT_PATTERN, SPLIT_METASPACE; SPLIT_BYTE_LEVEL with use_regex */
    bool invert;                   /* SPLIT_PATTERN */
    bool add_prefix_space, use_regex; /* SPLIT_BYTE_LEVEL */
    bool split;                    /* SPLIT_METASPACE */
    enum { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } prepend; /* SPLIT_METASPACE */
    const char *replacement;       /* SPLIT_METASPACE */
};

/* Steps, one after the other, at most so many. */
enum { SPLIT_STEPS_MOST = 64 };
struct pretokenizer {
    VEC(struct split_step) steps;
    bool raw; /* the last step is ByteLevel, and the model takes bytes: they are not translated to characters */
};

/* Reads the "pre_tokenizer" of a tokenizer.json; null is no step. Strings live in `memory`. */
int pretokenizer_read(struct pretokenizer *p, const struct value *v, struct bump *memory, struct error *e);
bool pretokenizer_is_byte_level(const struct pretokenizer *p); /* its last step is ByteLevel */
void pretokenizer_free(struct pretokenizer *p);

/* Memory of a call; one for each thread. `pieces` is the result: ranges of the text. */
struct split_work {
    VEC(struct byte_range) pieces, before;
    VEC(struct split_match { struct byte_range at; bool match; }) matches;
    struct aligned_buffer buffers[2];
    uint32_t turn, most; /* the buffer in use; bytes that a buffer may have */
    struct pattern_search *search;
};
void split_work_free(struct split_work *w);

/* Cuts *text, which is not empty, into w->pieces. A step that changes the text replaces *text. */
int pretokenize(const struct pretokenizer *p, struct split_work *w, struct aligned *text, struct error *e);

/* "replacement" and "prepend_scheme" of a Metaspace, which the decoder has too. */
int metaspace_read(struct split_step *s, const struct value *v, const char *name, struct bump *memory, struct error *e);

#endif
