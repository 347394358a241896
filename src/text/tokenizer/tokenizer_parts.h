/*
 * tokenizer_parts.h: what a tokenizer consists of, for the files of this folder.
 *
 *     text ─► added tokens ─► normalizer ─► added tokens ─► pre-tokenizer ─► model ─► post-processor ─► ids
 *             (as written)                  (normalized)
 *     ids ─► decoder ─► text
 *
 *     tokenizer_json.c      reads tokenizer.json
 *     sentencepiece.c       reads tokenizer.model
 *     subwords.c            BPE, Unigram, WordPiece
 *     tokenizer.c           opens, reads tokenizer_config.json and its neighbours, encodes, decodes
 */
#pragma once

#include <pthread.h>

#include "base/keyed.h"
#include "io/value.h"
#include "text/pattern.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode.h"

/* ---- strings by their prefixes ---- */

/* Strings by their prefixes: which of a set of strings begin at a position of a text.
 *
 * Nodes are numbers, 0 is the root; edges lie in a hash table keyed by (node, byte). */

struct trie {
    struct trie_edge {
        uint64_t key;   /* (node << 8 | byte) + 1; 0: an empty slot */
        uint32_t node;
    } *edges;
    uint32_t mask, n_edges;
    int32_t *values;    /* [n_nodes]; -1: no string ends here */
    uint32_t n_nodes, cap_nodes;
    bool first[256];    /* whether a string begins with this byte */
};

/* Adds a string of at least one byte. Returns false if it is there already. */
bool trie_add(struct trie *t, const char *s, size_t n, int32_t value);
/* Returns the node behind a byte; 0: none. */
uint32_t trie_step(const struct trie *t, uint32_t node, char byte);
void trie_free(struct trie *t);

/* ---- text that knows where it came from ---- */

/* Text on its way through a tokenizer. Each byte knows which bytes of the user's text it
 * came from.
 *
 *     user's text     H  e  l  l  o     w  o  r  l  d          bytes 0 ... 10
 *     normalized   ▁  H  e  l  l  o  ▁  w  o  r  l  d
 *     from        0-1 0 1 ...       5-6                        ▁ has three bytes, all from 5-6
 *
 * What is inserted comes from the character beside it. */

struct aligned {
    const char *at;
    uint32_t n;
    uint32_t shift;                /* without `from`: byte i came from byte shift + i */
    const struct byte_range *from; /* [n] or NULL */
};

/* Returns the bytes of the user's text that bytes begin, ..., end - 1 came from; begin < end. */
static inline struct byte_range aligned_from(const struct aligned *a, uint32_t begin, uint32_t end)
{
    if (!a->from) return (struct byte_range){a->shift + begin, a->shift + end};
    return (struct byte_range){a->from[begin].begin, a->from[end - 1].end};
}
static inline struct aligned aligned_part(const struct aligned *a, uint32_t begin, uint32_t end)
{
    return (struct aligned){a->at + begin, end - begin, a->shift + begin, a->from ? a->from + begin : NULL};
}

/* Returns the bytes that a text of n bytes may become: steps that replace one character by many
 * cannot exhaust memory. The characters that grow most in a normal form become eleven times as many
 * bytes. */
enum { ALIGNED_MOST = 384 << 20, ALIGNED_GROWTH = 16, ALIGNED_LEAST = 4096 };
static inline uint32_t aligned_most(uint32_t n)
{
    return (uint32_t)min_u64(ALIGNED_MOST, (uint64_t)n * ALIGNED_GROWTH + ALIGNED_LEAST);
}

/* Aligned text that grows. What would make it larger than `most` is dropped, and `full` is set. */
struct aligned_buffer {
    char *at;
    struct byte_range *from;
    uint32_t n, cap, most;
    bool full;
};
static inline void aligned_clear(struct aligned_buffer *b, uint32_t most) { b->n = 0, b->most = most, b->full = false; }
void aligned_put(struct aligned_buffer *b, const char *bytes, size_t n, struct byte_range from);
/* Appends bytes begin, ..., end - 1 of `a`. */
void aligned_copy(struct aligned_buffer *b, const struct aligned *a, uint32_t begin, uint32_t end);
static inline struct aligned aligned_of(const struct aligned_buffer *b)
{
    return (struct aligned){b->at, b->n, 0, b->from};
}
void aligned_free(struct aligned_buffer *b);

/* ---- the alphabet of byte-level BPE ---- */

/* The alphabet of byte-level BPE: each byte as a printable character, as GPT-2 chose them.
 *
 * 33-126, 161-172 and 174-255 are the characters of the same number; the other 68 bytes, in order,
 * are U+0100 and the following: a blank is U+0120, "Ġ". */

int character_byte(uint32_t code); /* -1: no byte has this character */
/* Translates n bytes of characters to the bytes that they mean, at most n; returns their number,
 * -1: a character means no byte. */
int64_t characters_to_bytes(const char *s, size_t n, char *out);

/* ---- tables of replacements ---- */

/* The table of replacements of a SentencePiece normalizer such as nmt_nfkc:
 * "precompiled_charsmap".
 *
 *     u32 size | a double-array trie of size bytes, u32 units | the replacements, each with a 0
 *     behind it
 *
 * The trie has the strings that are replaced; its values are offsets of the replacements. */

struct charsmap {
    uint32_t *units;
    uint32_t n_units;
    char *strings;       /* ends with a 0 */
    uint32_t n_strings;
};

/* Reads n bytes, which are copied. PL_USAGE: they are not such a table. */
int charsmap_read(struct charsmap *m, const char *bytes, size_t n, struct error *e);

/* ---- matches in a text ---- */

/* One of the two. */
struct finder {
    const char *literal;
    uint32_t n;           /* of `literal`; at least 1 */
    struct pattern *pattern;
};

/* Reads {"String": "..."} or {"Regex": "..."}. Strings live in `memory`; finder_close frees the
 * rest. */
int finder_read(struct finder *f, const struct value *v, const char *name, struct bump *memory, struct error *e);
/* Compiles a regular expression; `what` is its name in messages. */
int finder_expression(struct finder *f, const char *expression, const char *what, struct error *e);
void finder_close(struct finder *f);

/* A search, {0} at its begin. */
struct finding {
    size_t from;
    size_t last_end; /* of the last match + 1; 0: none yet */
};
/* Finds the next match in text[0, n); returns 1, 0 or -1 as pattern_find. A match of no bytes never
 * touches the match before it. */
int finder_next(const struct finder *f, struct pattern_search *s, const char *text, size_t n, struct finding *at,
                struct byte_range *match);

/* ---- tokens by content and by id ---- */

/* Ids are below this: it bounds the tables that a file can ask for. */
enum { VOCABULARY_MOST = 1 << 24 };

/* Strings, of any bytes, to ids. */
struct id_map {
    struct id_entry {
        const char *at; /* NULL: an empty slot */
        uint32_t n;
        int32_t id;
    } *slots;
    uint32_t mask, n;
};
int32_t id_map_get(const struct id_map *m, const char *s, size_t n); /* -1: none */
/* Adds a string, which is not copied. Returns false if it is there already. */
bool id_map_put(struct id_map *m, const char *s, size_t n, int32_t id);
void id_map_free(struct id_map *m);

struct vocabulary {
    struct bump memory;    /* of the contents */
    const char **piece;    /* [size]; NULL: no token has this id */
    uint32_t *length;      /* [size] */
    int32_t size, cap;     /* the largest id + 1 */
    struct id_map ids;
};
/* Adds a token, whose content is copied. PL_USAGE: the id is out of range, or id or content has a
 * token already. */
int vocabulary_add(struct vocabulary *v, const char *content, size_t n, int64_t id, struct error *e);
void vocabulary_free(struct vocabulary *v);

/* Hashes a short string. */
uint64_t word_hash(const char *s, size_t n);

/* ---- a cache of words ---- */

/* A cache of words and their tokens. Text repeats its words: most are found here.
 *
 * It is bounded: when it is full it begins anew. */

/* A word longer than this is never kept. */
enum { WORD_MOST = 255 };

struct words {
    struct word_slot *slots;
    char *keys;
    struct token *tokens;
    uint32_t n, n_keys, n_tokens;
};

/* Gets the tokens of a word; their ranges count from the word's begin. Returns false if it is not
 * known. */
static inline bool words_get(const struct words *w, uint64_t hash, const char *word, uint32_t n,
                             const struct token **tokens, uint32_t *count);
/* Keeps a word. */
void words_put(struct words *w, uint64_t hash, const char *word, uint32_t n, const struct token *tokens,
               uint32_t count);
void words_free(struct words *w);

/* --- the table, here because words_get is the inner loop of a tokenizer --------------------- */

enum { WORD_SLOTS = 1 << 16, WORD_PROBES = 4, WORD_INLINE = 20 };

/* Words of up to WORD_INLINE bytes lie in the slot; others in `keys`, behind an offset. */
struct word_slot {
    uint32_t hash;   /* the upper half */
    uint16_t n;      /* bytes; 0: an empty slot */
    uint16_t count;
    uint32_t tokens; /* an index of words.tokens */
    char key[WORD_INLINE];
};

static inline bool words_get(const struct words *w, uint64_t hash, const char *word, uint32_t n,
                             const struct token **tokens, uint32_t *count)
{
    if (!w->slots) return false;
    const uint32_t upper = (uint32_t)(hash >> 32);
    for (uint32_t i = 0; i < WORD_PROBES; i++) {
        const struct word_slot *s = &w->slots[(hash + i) % WORD_SLOTS];
        if (!s->n) return false;
        if (s->hash != upper || s->n != n) continue;
        const char *key = s->key;
        uint32_t at;
        if (n > WORD_INLINE) {
            __builtin_memcpy(&at, s->key, sizeof at);
            key = w->keys + at;
        }
        if (__builtin_memcmp(key, word, n)) continue;
        *tokens = w->tokens + s->tokens;
        *count = s->count;
        return true;
    }
    return false;
}

/* ---- joining pairs of symbols ---- */

/* Which pairs of symbols join, in which order (rank 0 first), and what they become. */
struct merges {
    struct merge {
        uint64_t pair; /* (left << 32 | right) + 1; 0: an empty slot */
        uint32_t rank;
        int32_t id;
    } *slots;
    uint32_t mask, n;
};
/* Adds a pair; a later rank of the same pair replaces the earlier one. */
void merges_put(struct merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id);
void merges_free(struct merges *m);

/* Returns how a pair joins; NULL: it does not. A symbol below 0 joins nothing. */
static inline const struct merge *merges_get(const struct merges *m, int32_t left, int32_t right)
{
    if (left < 0 || right < 0 || !m->slots) return NULL;
    const uint64_t pair = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
    uint32_t i = (uint32_t)(pair * KEYED_GOLDEN >> 32) & m->mask;
    while (m->slots[i].pair && m->slots[i].pair != pair) i = (i + 1) & m->mask;
    return m->slots[i].pair ? &m->slots[i] : NULL;
}

/* Pairs that were looked up and would become a symbol of interest (merger.watched), the latest
 * last. */
struct merge_seen {
    int32_t id, left, right;
};

/* Memory of the loop; one for each thread. */
struct merger {
    struct merge_link *links;
    struct merge_candidate *heap;
    uint32_t cap_links, cap_heap, n_heap;
    const bool *watched; /* [id]; NULL: nothing is watched */
    VEC(struct merge_seen) seen;
};
/* Joins pairs among n symbols until none joins: the best rank first, of equal ranks the leftmost.
 * Symbols are ids with their ranges; returns how many remain. */
uint32_t merge_all(const struct merges *m, struct merger *w, struct token *symbols, uint32_t n);
void merger_free(struct merger *w);

/* ---- added tokens ---- */

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
/* Gets the next piece, begin and end in w->text: *token is NULL for plain text. Returns false at
 * the end. */
bool added_next(struct added_walk *w, const struct added_token **token, struct byte_range *piece);

/* ---- models: a pre-token to tokens ---- */

/* Bytes of a prefix or suffix of words, at most. */
enum { AFFIX_MOST = 64 };
/* max_input_chars_per_word, at most: the time for a word grows with its square. */
enum { WORDPIECE_MOST = 1000 };

/* Byte pair encoding, by ranks of merges or by scores of pieces. */
struct bpe {
    struct merges merges;
    struct id_map ids;        /* by content; with `raw`, by the bytes that the content means */
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

struct subword_model {
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
int subword_encode(const struct subword_model *m, struct model_work *w, const struct aligned *text, uint32_t begin,
                   uint32_t end, struct token_list *out, struct error *e);
void subword_free(struct subword_model *m);

/* Encode one word. Ranges of tokens count from the begin of the word. */
void bpe_word(const struct bpe *m, struct model_work *w, const char *word, uint32_t n);
int unigram_word(const struct unigram *m, struct model_work *w, const char *word, uint32_t n, struct error *e);
int wordpiece_word(const struct wordpiece *m, struct model_work *w, const char *word, uint32_t n, struct error *e);
/* Returns the end of the word that begins at `begin`: `end`, or a seam before it. */
uint32_t bpe_word_end(const struct bpe *m, const char *text, uint32_t begin, uint32_t end);
/* Sets the seams up from a vocabulary whose `seam` is a token. */
void bpe_find_seams(struct bpe *m, const struct vocabulary *v, const char *seam);
/* Looks <0x00>, ..., <0xFF> up. Returns whether all are there. */
bool find_fallback(const struct id_map *ids, int32_t fallback[256]);

/* ---- normalizers ---- */

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

/* The largest number of steps, which run one after the other. */
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
    struct code_points codes;
    struct pattern_search *search;
};
void normal_work_free(struct normal_work *w);

/* Replaces *text, which is not empty, by the normalized text, which lies in `w`. */
int normalize(const struct normalizer *n, struct normal_work *w, struct aligned *text, struct error *e);

/* ---- pre-tokenizers ---- */

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

/* The largest number of steps, which run one after the other. */
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

/* Reads "replacement" and "prepend_scheme" of a Metaspace, which the decoder has too. */
int metaspace_read(struct split_step *s, const struct value *v, const char *name, struct bump *memory, struct error *e);

/* ---- decoders: tokens back to text ---- */

enum decode_kind {
    DECODE_BYTE_LEVEL,
    DECODE_REPLACE,
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP,
    DECODE_METASPACE,
    DECODE_SENTENCEPIECE,
    DECODE_WORDPIECE,
    DECODE_SUFFIX,
    DECODE_SPACES
};

struct decode_step {
    enum decode_kind kind;
    bool fused;              /* the input is one string that comes in parts, not one token at a time */
    struct finder find;      /* DECODE_REPLACE */
    /* DECODE_REPLACE, DECODE_STRIP; DECODE_METASPACE: what becomes a blank; DECODE_WORDPIECE: the
     * prefix; DECODE_SUFFIX: the suffix */
    const char *content;
    bool cleanup;            /* DECODE_WORDPIECE: no blank before marks of punctuation and short forms */
    uint32_t start, stop;    /* DECODE_STRIP: characters, at most */
    bool strip_first;        /* DECODE_METASPACE, DECODE_SENTENCEPIECE */
    bool strip_all;          /* DECODE_SENTENCEPIECE: all blanks at the begin */
};

/* The largest number of steps, which run one after the other. */
enum { DECODE_STEPS_MOST = 64 };
struct token_decoder {
    VEC(struct decode_step) steps;
};

/* Reads the "decoder" of a tokenizer.json; null puts a blank between tokens. */
int decoder_read(struct token_decoder *d, const struct value *v, struct bump *memory, struct error *e);
void decoder_free(struct token_decoder *d);

/* A text in the making. `whole`: nothing is given out before it is certain that a run of byte
 * tokens is UTF-8. */
struct decoding;
struct decoding *decoding_begin(const struct token_decoder *d, bool whole);
void decoding_put(struct decoding *s, const char *token, size_t n, struct text *out);
/* Ends a text and frees `s`. */
void decoding_end(struct decoding *s, struct text *out);

/* ---- a tokenizer ---- */

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
    struct subword_model model;
    VEC(int32_t) post;             /* ids that are put around the text; POST_TEXT: the text */
    struct token_decoder decoder;
    const char **decoded;          /* [size]: what the decoder sees of a token */
    bool *special;                 /* [size]: added tokens that are special */
    const char *roles[ROLES];      /* NULL: none */
    bool sentencepiece;
    struct trie user_defined;      /* tokenizer.model: pieces that the user defined */
    uint64_t fingerprint;
    struct work_pool *pool;
};

/* Fill `t`, whose fields are zero, from a file. Messages begin without the path. */
int tokenizer_read_json(struct tokenizer *t, const char *bytes, size_t n, struct error *e);
int tokenizer_read_sentencepiece(struct tokenizer *t, const char *bytes, size_t n, struct error *e);

/* Adds a token to those that are cut out of the text, and to the vocabulary if it is new. */
int tokenizer_add(struct tokenizer *t, struct added_token token, struct error *e);
