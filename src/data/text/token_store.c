/*
 * token_store.c: reads a token store (see token_store.h).
 */
#include "data/text/token_store.h"

#include <math.h>
#include <unistd.h>

#include "base/coding.h"
#include "data/text/records.h"
#include "io/file.h"
#include "io/temporary.h"
#include "text/template/anyres.h"

_Static_assert(sizeof(struct token_store_header) <= TOKEN_STORE_DATA, "the header's room");

/* --- reports -------------------------------------------------------------------------- */

uint64_t report_bad(const struct sample_report *r)
{
    uint64_t n = 0;
    for (int f = SAMPLE_FINE + 1; f < SAMPLE_FAULTS; f++) n += r->bad[f];
    return n;
}

void report_add(struct sample_report *r, enum conversation_fault fault, uint64_t times, const char *file, uint64_t line,
                const char *why)
{
    r->read += times;
    if (fault && !r->bad[fault])
        snprintf(r->first[fault], sizeof r->first[fault], "%.64s:%s: %.140s", file, record_place(line).text, why);
    r->bad[fault] += times;
}

void report_print(const struct sample_report *r, struct text *out)
{
    const uint64_t n = report_bad(r);
    const char *before = ": ";
    if (!n) return;
    text_printf(out, "%llu of %llu samples cannot be used", (unsigned long long)n, (unsigned long long)r->read);
    for (int f = SAMPLE_FINE + 1; f < SAMPLE_FAULTS; f++) {
        if (!r->bad[f]) continue;
        text_printf(out, "%s%llu %s (%s%.*s)", before, (unsigned long long)r->bad[f], conversation_fault_name(f),
                    r->bad[f] > 1 ? "first " : "", (int)sizeof r->first[f], r->first[f]);
        before = "; ";
    }
}

/* --- opening ------------------------------------------------------------------------------- */

/* Returns the bytes of the index, or UINT64_MAX if they are more than a file can have. */
static uint64_t index_bytes(const struct token_store_header *h)
{
    const uint64_t most = 1ull << 56;
    if (h->samples > UINT32_MAX || h->answers > most / sizeof(struct byte_range) ||
        h->images > most / sizeof(struct byte_range) || h->members > most / sizeof(struct group_member) ||
        h->names > most || h->tokens > most / 4)
        return UINT64_MAX;
    return h->samples * sizeof(struct stored_sample) + (h->answers + h->images) * sizeof(struct byte_range) +
           h->members * sizeof(struct group_member) + h->names;
}

static uint64_t index_offset(const struct token_store_header *h)
{
    return TOKEN_STORE_DATA + align_up(h->tokens * 4, 8);
}

static int check_header(const struct token_store_header *h, uint64_t size, struct error *e)
{
    if (memcmp(h->magic, TOKEN_STORE_MAGIC, sizeof h->magic))
        return error_set(e, PL_USAGE, "it is not a token store, or was not finished");
    if (h->version != TOKEN_STORE_VERSION)
        return error_set(e, PL_USAGE, "it has version %u, expected %d: it is of another version of this program",
                         h->version, TOKEN_STORE_VERSION);
    if (h->header_sum != crc32c(0, h, offsetof(struct token_store_header, header_sum)))
        return error_set(e, PL_USAGE, "its header is damaged: the checksum differs");
    if (h->bytes != size)
        return error_set(e, PL_USAGE, "it has %llu bytes, its header says %llu: it is cut", (unsigned long long)size,
                         (unsigned long long)h->bytes);
    if (index_bytes(h) == UINT64_MAX || index_offset(h) + index_bytes(h) != size || !h->names)
        return error_set(e, PL_USAGE, "the sizes in its header do not fit the file");
    return PL_OK;
}

/* Reports whether ranges of a sample's tokens are not empty and in order. */
static bool ascend(const struct byte_range *r, uint32_t n, uint32_t tokens)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; at = r[i++].end)
        if (r[i].begin < at || r[i].begin >= r[i].end || r[i].end > tokens) return false;
    return true;
}

static bool sound(const struct token_store *s, const struct stored_sample *x)
{
    const struct token_store_header *h = s->header;
    if (x->first > h->tokens || x->tokens > h->tokens - x->first || x->first_answer > h->answers ||
        x->answers > h->answers - x->first_answer)
        return false;
    if (!x->tokens || x->media >= h->names || x->file >= h->names || x->first_image > h->images ||
        x->n_media > h->images - x->first_image)
        return false;
    uint64_t name = x->media;
    for (uint32_t i = 0; i < x->n_media && name < h->names; i++) name += strlen(s->names + name) + 1;
    return name <= h->names && ascend(s->answers + x->first_answer, x->answers, x->tokens) &&
           ascend(s->images + x->first_image, x->n_media, x->tokens);
}

static int check_index(const struct token_store *s, struct error *e)
{
    const struct token_store_header *h = s->header;
    if (h->index_sum != crc32c(0, s->samples, index_bytes(h)))
        return error_set(e, PL_USAGE, "its index is damaged: the checksum differs");
    if (h->tokens_sum != crc32c(0, s->ids, align_up(h->tokens * 4, 8)))
        return error_set(e, PL_USAGE, "its ids are damaged: the checksum differs");
    bool ok = !s->names[h->names - 1];
    for (uint64_t i = 0; i < h->samples && ok; i++) ok = sound(s, &s->samples[i]);
    for (uint64_t i = 0; i < h->members && ok; i++) ok = s->members[i].sample < h->report.read;
    for (uint64_t i = 0; i < h->tokens && ok; i++)
        ok = (s->ids[i] >= 0 && s->ids[i] <= h->largest) ||
             (h->images && (s->ids[i] == h->image_token || anyres_is_map(s->ids[i])));
    for (int f = 0; f < SAMPLE_FAULTS && ok; f++) ok = memchr(h->report.first[f], 0, sizeof h->report.first[f]);
    return ok ? PL_OK : error_set(e, PL_USAGE, "its index does not fit its ids");
}

int token_store_open(struct token_store *s, const char *path, struct error *e)
{
    memset(s, 0, sizeof *s);
    int rc = file_map(&s->map, path, e);
    if (!rc && s->map.bytes < TOKEN_STORE_DATA)
        rc = error_set(e, PL_USAGE, "it is not a token store, or was not finished");
    if (!rc) {
        s->header = (const void *)s->map.at;
        rc = check_header(s->header, s->map.bytes, e);
    }
    if (!rc) {
        const struct token_store_header *h = s->header;
        s->ids = (const void *)(s->map.at + TOKEN_STORE_DATA);
        s->samples = (const void *)(s->map.at + index_offset(h));
        s->answers = (const void *)(s->samples + h->samples);
        s->images = s->answers + h->answers;
        s->members = (const void *)(s->images + h->images);
        s->names = (const char *)(s->members + h->members);
        rc = check_index(s, e);
    }
    if (!rc || s->map.at) rc = mapped_failed(&s->map) ? mapped_check(&s->map, path, e) : rc;
    if (rc) token_store_close(s);
    return rc && !strstr(e->text, path) ? error_prepend(e, "%s", path) : rc;
}

void token_store_close(struct token_store *s)
{
    mapped_close(&s->map);
    s->header = NULL;
}

int token_store_check(const struct token_store *s, const char *path, struct error *e)
{
    return mapped_check(&s->map, path, e);
}

static int ascending(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

uint32_t *token_store_lengths(const struct token_store *s)
{
    const uint64_t n = s->header->samples;
    uint32_t *lengths = mem_alloc((n + 1) * sizeof *lengths);
    for (uint64_t i = 0; i < n; i++) lengths[i] = s->samples[i].tokens;
    qsort(lengths, n, sizeof *lengths, ascending);
    return lengths;
}

uint32_t length_at(const uint32_t *lengths, uint64_t n, double share)
{
    const uint64_t rank = (uint64_t)ceil(share * (double)n - 1e-9);
    return n ? lengths[rank ? rank - 1 : 0] : 0;
}

const char *token_store_differs(const struct token_store_key *stored, const struct token_store_key *now)
{
    if (stored->data != now->data) return "other data files, or they changed";
    if (stored->tokenizer != now->tokenizer) return "another tokenizer";
    if (stored->template != now->template) return "another chat template";
    return stored->options != now->options
               ? "another system prompt (data.system) or data.format, or for another model of images"
               : NULL;
}

/* ---- Writing ----
 *
 * writes a token store, sample by sample (see token_store.h). The index is
 * kept in memory, the ids go to a temporary file beside the path, which is renamed when it is
 * complete.
 */

struct token_store_writer {
    char *path;
    struct temporary to;
    struct token_store_header header;
    VEC(struct stored_sample) samples;
    VEC(struct byte_range) answers, images;
    VEC(struct group_member) members;
    struct text names;
    const char *file;     /* the last sample's... */
    uint64_t file_name;   /* ...and its offset in the names */
};

static int put(struct token_store_writer *w, const void *bytes, size_t n, uint32_t *sum, struct error *e)
{
    if (fd_write(w->to.fd, bytes, n)) return file_error(w->to.path, "be written", e);
    *sum = crc32c(*sum, bytes, n);
    return PL_OK;
}

int token_store_create(struct token_store_writer **out, const char *path, const struct token_store_key *key,
                       int32_t image_token, struct error *e)
{
    static const char zeros[TOKEN_STORE_DATA]; /* reserves the header: no magic until the end */
    struct token_store_writer *w = mem_alloc(sizeof *w);
    uint32_t unused = 0;
    w->path = mem_string(path);
    w->header.version = TOKEN_STORE_VERSION;
    w->header.key = *key;
    w->header.image_token = image_token;
    text_append(&w->names, "", 1);
    int rc = temporary_file(&w->to, path, e);
    if (!rc) rc = put(w, zeros, sizeof zeros, &unused, e);
    if (rc) token_store_abandon(w);
    else *out = w;
    return rc;
}

static uint64_t keep_name(struct token_store_writer *w, const char *name)
{
    const uint64_t at = w->names.n;
    text_append(&w->names, name, strlen(name) + 1);
    return at;
}

int token_store_add(struct token_store_writer *w, const struct new_sample *s, struct error *e)
{
    struct token_store_header *h = &w->header;
    if (w->samples.n == UINT32_MAX || w->answers.n > UINT32_MAX - s->n_answers ||
        w->images.n > UINT32_MAX - (s->media ? s->media->count : 0))
        return error_set(e, PL_USAGE, "%s: more samples than one store can hold (%u)", w->path, w->samples.n);
    if (s->file != w->file) w->file = s->file, w->file_name = keep_name(w, s->file);
    struct stored_sample x = {.first = h->tokens, .tokens = s->tokens, .first_answer = w->answers.n,
                              .first_image = w->images.n, .answers = s->n_answers, .file = w->file_name,
                              .line = s->line, .number = s->number, .group = s->group, .flags = s->flags};
    for (uint32_t i = 0; s->media && i < s->media->count; i++) {
        const uint64_t at = keep_name(w, s->media->items[i]->text);
        if (!i) x.media = at;
        vec_push(&w->images, s->images[i]);
        x.n_media++;
    }
    vec_push(&w->samples, x);
    for (uint32_t i = 0; i < s->n_answers; i++) vec_push(&w->answers, s->answers[i]);
    for (uint32_t i = 0; i < s->tokens; i++)
        if (s->ids[i] > h->largest && (s->ids[i] != h->image_token || !x.n_media)) h->largest = s->ids[i];
    h->tokens += s->tokens;
    return put(w, s->ids, (size_t)s->tokens * sizeof *s->ids, &h->tokens_sum, e);
}

void token_store_note(struct token_store_writer *w, uint64_t number, uint64_t group)
{
    vec_push(&w->members, ((struct group_member){group, number}));
}

struct sample_report *token_store_report(struct token_store_writer *w) { return &w->header.report; }

static int put_index(struct token_store_writer *w, struct error *e)
{
    struct token_store_header *h = &w->header;
    int rc = put(w, "\0\0\0", (size_t)(align_up(h->tokens * 4, 8) - h->tokens * 4), &h->tokens_sum, e);
    h->samples = w->samples.n, h->answers = w->answers.n, h->images = w->images.n, h->members = w->members.n,
    h->names = w->names.n;
    if (!rc) rc = put(w, w->samples.at, w->samples.n * sizeof *w->samples.at, &h->index_sum, e);
    if (!rc) rc = put(w, w->answers.at, w->answers.n * sizeof *w->answers.at, &h->index_sum, e);
    if (!rc) rc = put(w, w->images.at, w->images.n * sizeof *w->images.at, &h->index_sum, e);
    if (!rc) rc = put(w, w->members.at, w->members.n * sizeof *w->members.at, &h->index_sum, e);
    if (!rc) rc = put(w, w->names.at, w->names.n, &h->index_sum, e);
    h->bytes = TOKEN_STORE_DATA + align_up(h->tokens * 4, 8) + w->samples.n * sizeof *w->samples.at +
               (w->answers.n + w->images.n) * sizeof *w->answers.at + w->members.n * sizeof *w->members.at + w->names.n;
    memcpy(h->magic, TOKEN_STORE_MAGIC, sizeof h->magic);
    h->header_sum = crc32c(0, h, offsetof(struct token_store_header, header_sum));
    if (!rc && pwrite(w->to.fd, h, sizeof *h, 0) != (ssize_t)sizeof *h) rc = file_error(w->to.path, "be written", e);
    return rc;
}

int token_store_finish(struct token_store_writer *w, struct error *e)
{
    int rc = put_index(w, e);
    if (!rc) rc = temporary_keep(&w->to, w->path, true, e);
    token_store_abandon(w);
    return rc;
}

void token_store_abandon(struct token_store_writer *w)
{
    if (!w) return;
    temporary_drop(&w->to);
    mem_free(w->path);
    vec_free(&w->samples), vec_free(&w->answers), vec_free(&w->images), vec_free(&w->members);
    text_free(&w->names);
    mem_free(w);
}

/* --- NumPy ------------------------------------------------------------------------------------ */

static int put_npy(int fd, const struct token_store *s)
{
    enum { HEADER = 128, BLOCK = 4096 };
    const bool small = s->header->largest < 1 << 16;
    char header[HEADER + 1];
    int rc = 0;
    snprintf(header, sizeof header, "%-*c\n", HEADER - 1, ' ');
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    const int n = snprintf(header + 10, HEADER - 10, "{'descr': '<u%d', 'fortran_order': False, 'shape': (%llu,), }",
                           small ? 2 : 4, (unsigned long long)s->header->tokens);
    header[10 + n] = ' ';
    rc = fd_write(fd, header, HEADER);
    if (!small) return rc ? rc : fd_write(fd, s->ids, s->header->tokens * sizeof *s->ids);
    uint16_t block[BLOCK];
    for (uint64_t at = 0; at < s->header->tokens && !rc; at += BLOCK) {
        const uint64_t length = min_u64(BLOCK, s->header->tokens - at);
        for (uint64_t i = 0; i < length; i++) block[i] = (uint16_t)s->ids[at + i];
        rc = fd_write(fd, block, length * sizeof *block);
    }
    return rc;
}

int token_store_write_npy(const struct token_store *s, const char *path, struct error *e)
{
    struct temporary t;
    int rc = temporary_file(&t, path, e);
    if (rc) return rc;
    if (put_npy(t.fd, s)) rc = file_error(t.path, "be written", e);
    if (!rc) rc = temporary_keep(&t, path, true, e);
    if (rc) temporary_drop(&t);
    return rc;
}
