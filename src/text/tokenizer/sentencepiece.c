/*
 * sentencepiece.c: reads tokenizer.model (see tokenizer_parts.h), a protocol buffer:
 *
 *     1 pieces           {1 piece, 2 score, 3 type}, once for each id
 *     2 trainer_spec     {3 model_type, 24 whitespace as suffix, 35 byte_fallback, 41 bos_id, 42 eos_id, 43 pad_id}
 *     3 normalizer_spec  {1 name, 2 charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces, 5
 *     escape_whitespaces}
 *
 * A field is a varint (number << 3 | wire type) and a value: a varint (0), eight bytes (1), a
 * length and as many bytes (2), or four bytes (5).
 *
 * BPE joins the pair of symbols whose joined piece has the highest score. Which pairs make a piece
 * is known here, so they become merges whose rank is the order of the scores. A model of characters
 * is one without merges. Unigram is that of model.h.
 */
#include <inttypes.h>
#include <math.h>

#include "text/tokenizer/tokenizer_parts.h"

enum model_type { TYPE_UNIGRAM = 1, TYPE_BPE = 2, TYPE_CHAR = 4 };
enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE };
/* Trained pieces have up to 16 characters by default. The bound keeps hostile files quick. */
enum { PIECE_BYTES_MOST = 512 };

/* --- protocol buffers ------------------------------------------------------------------------- */

struct message {
    const unsigned char *at, *end;
};

struct field {
    uint32_t number;
    int wire;
    uint64_t value;        /* wire 0, 1, 5 */
    struct message bytes;  /* wire 2 */
};

static bool read_varint(struct message *m, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        *out |= (uint64_t)(*m->at & 127) << shift;
        if (!(*m->at++ & 128)) return true;
    }
    return false;
}

/* Reads the next field. Returns 1: a field, 0: the end, -1: malformed. */
static int next_field(struct message *m, struct field *f)
{
    uint64_t key, n;
    if (m->at == m->end) return 0;
    if (!read_varint(m, &key) || key >> 3 == 0 || key >> 3 > 1 << 29) return -1;
    *f = (struct field){.number = (uint32_t)(key >> 3), .wire = (int)(key & 7)};
    if (f->wire == 0) return read_varint(m, &f->value) ? 1 : -1;
    n = f->wire == 1 ? 8 : f->wire == 5 ? 4 : 0;
    if (f->wire == 2 && !read_varint(m, &n)) return -1;
    if ((!n && f->wire != 2) || n > (size_t)(m->end - m->at)) return -1;
    if (f->wire == 2) f->bytes = (struct message){m->at, m->at + n};
    else memcpy(&f->value, m->at, n);
    m->at += n;
    return 1;
}

/* --- the model -------------------------------------------------------------------------------- */

struct piece {
    float score;
    uint8_t type;
};

struct reading {
    struct tokenizer *t;
    VEC(struct piece) pieces;
    int64_t model_type, bos, eos, pad;
    bool byte_fallback;
    struct message charsmap;
    struct normal_step normal;
    struct error *e;
};

static int malformed(struct reading *r, const char *what)
{
    return error_set(r->e, PL_USAGE, "%s is malformed or cut: expected a SentencePiece model", what);
}

static int read_piece(struct reading *r, struct message m)
{
    struct field f;
    struct message text = {NULL, NULL};
    struct piece p = {0, PIECE_NORMAL};
    int rc;
    while ((rc = next_field(&m, &f)) == 1) {
        if (f.number == 1 && f.wire == 2) text = f.bytes;
        else if (f.number == 2 && f.wire == 5) memcpy(&p.score, &f.value, sizeof p.score);
        else if (f.number == 3 && f.wire == 0) p.type = f.value <= PIECE_BYTE ? (uint8_t)f.value : 0;
    }
    const size_t n = (size_t)(text.end - text.at);
    if (rc < 0) return malformed(r, "a piece");
    if (!n) return error_set(r->e, PL_USAGE, "the piece %u is empty", r->pieces.n);
    if (n > PIECE_BYTES_MOST || utf8_check((const char *)text.at, n) < n || memchr(text.at, 0, n))
        return error_set(r->e, PL_USAGE, "the piece %u is not UTF-8, has a NUL, or has more than %d bytes", r->pieces.n,
                         PIECE_BYTES_MOST);
    if (isnan(p.score) || !p.type)
        return error_set(r->e, PL_USAGE, "the piece %u has no valid %s", r->pieces.n, p.type ? "score" : "type");
    char content[PIECE_BYTES_MOST + 1];
    memcpy(content, text.at, n);
    content[n] = 0;
    if (vocabulary_add(&r->t->vocabulary, content, n, r->pieces.n, r->e)) return r->e->code;
    vec_push(&r->pieces, p);
    return PL_OK;
}

static int read_trainer(struct reading *r, struct message m)
{
    struct field f;
    int rc;
    while ((rc = next_field(&m, &f)) == 1) {
        if (f.wire != 0) continue;
        if (f.number == 3) r->model_type = (int64_t)f.value;
        else if (f.number == 24) r->normal.suffix = f.value;
        else if (f.number == 35) r->byte_fallback = f.value;
        else if (f.number == 41) r->bos = (int32_t)f.value;
        else if (f.number == 42) r->eos = (int32_t)f.value;
        else if (f.number == 43) r->pad = (int32_t)f.value;
    }
    return rc < 0 ? malformed(r, "trainer_spec") : PL_OK;
}

static int read_normalizer(struct reading *r, struct message m)
{
    struct field f;
    int rc;
    while ((rc = next_field(&m, &f)) == 1) {
        const size_t n = f.wire == 2 ? (size_t)(f.bytes.end - f.bytes.at) : 0;
        if (f.number == 2 && n) r->charsmap = f.bytes;
        else if (f.number == 3) r->normal.add_prefix = f.value;
        else if (f.number == 4) r->normal.remove_extra = f.value;
        else if (f.number == 5) r->normal.escape = f.value;
    }
    return rc < 0 ? malformed(r, "normalizer_spec") : PL_OK;
}

static int read_message(struct reading *r, struct message m)
{
    struct field f;
    int rc;
    while ((rc = next_field(&m, &f)) == 1) {
        if (f.wire != 2) continue;
        if (f.number == 1) rc = read_piece(r, f.bytes);
        else if (f.number == 2) rc = read_trainer(r, f.bytes);
        else if (f.number == 3) rc = read_normalizer(r, f.bytes);
        else continue;
        if (rc) return rc;
    }
    return rc < 0 ? malformed(r, "the file") : PL_OK;
}

static int check(struct reading *r)
{
    int64_t unk = -1;
    if (r->pieces.n == 0) return malformed(r, "the file");
    if (r->model_type != TYPE_UNIGRAM && r->model_type != TYPE_BPE && r->model_type != TYPE_CHAR)
        return error_set(r->e, PL_USAGE, "the model is of the type %s; supported are Unigram, BPE and char",
                         r->model_type == 3 ? "word" : "?");
    for (uint32_t i = 0; i < r->pieces.n; i++) {
        if (r->pieces.at[i].type != PIECE_UNKNOWN) continue;
        if (unk >= 0)
            return error_set(r->e, PL_USAGE, "the pieces %" PRId64 " and %u are both of the type unknown", unk, i);
        unk = i;
    }
    if (unk < 0) return error_set(r->e, PL_USAGE, "no piece is of the type unknown");
    r->t->model.bpe.unk = r->t->model.unigram.unk = (int32_t)unk;
    return PL_OK;
}

/* --- merges ----------------------------------------------------------------------------------- */

static bool joins(const struct reading *r, int32_t id)
{
    return id >= (int32_t)r->pieces.n || r->pieces.at[id].type != PIECE_USER_DEFINED;
}
static bool is_text(const struct piece *p)
{
    return p->type == PIECE_NORMAL || p->type == PIECE_USER_DEFINED || p->type == PIECE_UNUSED;
}

struct ranked {
    float score;
    int32_t id;
};

static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

/* Gives ids to the symbols: the pieces that text can become, then each character of theirs that is
 * no piece. */
static void index_symbols(struct reading *r)
{
    struct bpe *m = &r->t->model.bpe;
    const struct vocabulary *v = &r->t->vocabulary;
    int32_t next = v->size;
    for (int32_t id = 0; id < v->size; id++)
        if (is_text(&r->pieces.at[id])) id_map_put(&m->ids, v->piece[id], v->length[id], id);
    for (int32_t id = 0; id < v->size; id++)
        for (uint32_t at = 0, n; is_text(&r->pieces.at[id]) && at < v->length[id]; at += n) {
            n = (uint32_t)utf8_length(v->piece[id][at]);
            if (id_map_put(&m->ids, v->piece[id] + at, n, next)) next++;
        }
    for (int b = 0; b < 256; b++) m->ascii[b] = b < 128 ? id_map_get(&m->ids, &(char){(char)b}, 1) : -1;
    m->n_tokens = v->size;
}

/* Adds all pairs of symbols that join to one piece. */
static void add_merges(struct reading *r, int32_t id, uint32_t rank)
{
    struct bpe *m = &r->t->model.bpe;
    const char *piece = r->t->vocabulary.piece[id];
    const uint32_t n = r->t->vocabulary.length[id];
    for (uint32_t at = (uint32_t)utf8_length(piece[0]); at < n; at += (uint32_t)utf8_length(piece[at])) {
        const int32_t left = id_map_get(&m->ids, piece, at), right = id_map_get(&m->ids, piece + at, n - at);
        if (left >= 0 && right >= 0 && joins(r, left) && joins(r, right)) merges_put(&m->merges, left, right, rank, id);
    }
}

static void build_merges(struct reading *r)
{
    struct bpe *m = &r->t->model.bpe;
    struct ranked *order = mem_alloc(r->pieces.n * sizeof *order);
    uint32_t n = 0, rank = 0;
    bool unused = false;
    for (uint32_t i = 0; i < r->pieces.n; i++) {
        const struct piece *p = &r->pieces.at[i];
        if (p->type == PIECE_NORMAL || p->type == PIECE_UNUSED) order[n++] = (struct ranked){p->score, (int32_t)i};
        unused |= p->type == PIECE_UNUSED;
    }
    qsort(order, n, sizeof *order, by_score);
    for (uint32_t i = 0; i < n; i++) {
        rank += i && order[i].score != order[i - 1].score;
        add_merges(r, order[i].id, rank);
    }
    mem_free(order);
    if (!unused) return;
    m->unused = mem_alloc(r->pieces.n * sizeof *m->unused);
    for (uint32_t i = 0; i < r->pieces.n; i++) m->unused[i] = r->pieces.at[i].type == PIECE_UNUSED;
}

/* --- the rest --------------------------------------------------------------------------------- */

static int add_user_defined(struct reading *r)
{
    struct tokenizer *t = r->t;
    for (uint32_t i = 0; i < r->pieces.n; i++) {
        if (r->pieces.at[i].type != PIECE_USER_DEFINED) continue;
        const char *piece = t->vocabulary.piece[i];
        vec_push(&t->added,
                 ((struct added_token){.id = (int32_t)i, .content = piece, .pattern = piece, .normalized = true}));
        id_map_put(&t->added.contents, piece, t->vocabulary.length[i], (int32_t)t->added.n - 1);
        trie_add(&t->added.normalized, piece, t->vocabulary.length[i], (int32_t)t->added.n - 1);
        trie_add(&t->user_defined, piece, t->vocabulary.length[i], (int32_t)i);
    }
    return PL_OK;
}

static void set_role(struct reading *r, enum role role, int64_t id)
{
    if (id >= 0 && id < r->pieces.n && r->pieces.at[id].type == PIECE_CONTROL)
        r->t->roles[role] = r->t->vocabulary.piece[id];
}

static int no_bytes(struct reading *r)
{
    return error_set(r->e, PL_USAGE, "byte_fallback is set, but a piece of <0x00>, ..., <0xFF> is missing");
}

static int build_bpe(struct reading *r)
{
    struct tokenizer *t = r->t;
    struct bpe *m = &t->model.bpe;
    m->by_score = true;
    m->byte_fallback = r->byte_fallback;
    if (!find_fallback(&t->vocabulary.ids, m->fallback) && r->byte_fallback) return no_bytes(r);
    index_symbols(r);
    if (r->model_type == TYPE_BPE) build_merges(r);
    if (add_user_defined(r)) return r->e->code;
    bpe_find_seams(m, &t->vocabulary, "\xe2\x96\x81");
    return PL_OK;
}

/* Builds the unigram model. A piece that the user defined has a score at which it is nearly always
 * taken. */
static int build_unigram(struct reading *r)
{
    struct tokenizer *t = r->t;
    struct unigram *m = &t->model.unigram;
    float least = INFINITY, most = -INFINITY;
    t->model.kind = MODEL_UNIGRAM;
    m->single = true;
    m->byte_fallback = r->byte_fallback;
    if (!find_fallback(&t->vocabulary.ids, m->fallback) && r->byte_fallback) return no_bytes(r);
    m->n = (int32_t)r->pieces.n;
    m->scores = mem_alloc((r->pieces.n + 1) * sizeof *m->scores);
    for (uint32_t i = 0; i < r->pieces.n; i++)
        if (r->pieces.at[i].type == PIECE_NORMAL)
            least = fminf(least, r->pieces.at[i].score), most = fmaxf(most, r->pieces.at[i].score);
    for (uint32_t i = 0; i < r->pieces.n; i++) {
        const struct piece *p = &r->pieces.at[i];
        const bool defined = p->type == PIECE_USER_DEFINED;
        const char *piece = t->vocabulary.piece[i];
        const uint32_t n = t->vocabulary.length[i];
        if (p->type != PIECE_NORMAL && !defined) continue;
        if (!isfinite(p->score)) return error_set(r->e, PL_USAGE, "the score of the piece %u is not finite", i);
        m->scores[i] = defined ? (isfinite(most) ? (float)n * most : 0) - 0.1 : p->score;
        trie_add(&m->trie, piece, n, (int32_t)i);
        if (defined) trie_add(&t->user_defined, piece, n, (int32_t)i);
    }
    m->unk_score = (isfinite(least) ? least : 0) - 10.0f;
    return PL_OK;
}

static int build(struct reading *r)
{
    struct tokenizer *t = r->t;
    if (check(r) || (r->model_type == TYPE_UNIGRAM ? build_unigram(r) : build_bpe(r))) return r->e->code;
    if (t->user_defined.n_nodes) r->normal.keep = &t->user_defined;
    if (r->charsmap.at &&
        charsmap_read(&r->normal.map, (const char *)r->charsmap.at, (size_t)(r->charsmap.end - r->charsmap.at), r->e))
        return r->e->code;
    vec_push(&t->normalizer.steps, r->normal);
    vec_push(&t->decoder.steps, ((struct decode_step){.kind = DECODE_BYTE_FALLBACK}));
    vec_push(&t->decoder.steps, ((struct decode_step){.kind = DECODE_SENTENCEPIECE,
                                                      .strip_first = r->normal.add_prefix || r->normal.remove_extra,
                                                      .strip_all = r->normal.remove_extra}));
    t->decoded = mem_alloc((size_t)t->vocabulary.size * sizeof *t->decoded);
    for (int32_t i = 0; i < t->vocabulary.size; i++) {
        const int type = r->pieces.at[i].type;
        t->decoded[i] = type == PIECE_CONTROL ? "" : type == PIECE_UNKNOWN ? " \xe2\x81\x87 " : t->vocabulary.piece[i];
    }
    set_role(r, ROLE_BOS, r->bos);
    set_role(r, ROLE_EOS, r->eos);
    set_role(r, ROLE_PAD, r->pad);
    return PL_OK;
}

int tokenizer_read_sentencepiece(struct tokenizer *t, const char *bytes, size_t n, struct error *e)
{
    struct reading r = {.t = t, .model_type = 1, .bos = 1, .eos = 2, .pad = -1, .e = e};
    r.normal =
        (struct normal_step){.kind = NORMAL_SENTENCEPIECE, .add_prefix = true, .remove_extra = true, .escape = true};
    t->sentencepiece = true;
    t->model.kind = MODEL_BPE;
    if (n && *bytes != '\n')
        return error_set(e, PL_USAGE,
                         "is no SentencePiece model; a file of tiktoken ranks has to be converted to tokenizer.json "
                         "(transformers does that with save_pretrained)");
    int rc = read_message(&r, (struct message){(const unsigned char *)bytes, (const unsigned char *)bytes + n});
    if (!rc) rc = build(&r);
    vec_free(&r.pieces);
    return rc;
}
