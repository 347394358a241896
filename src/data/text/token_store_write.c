/*
 * token_store_write.c: writes a token store, sample by sample (see token_store.h). The index is
 * kept in memory, the ids go to a temporary file beside the path, which is renamed when it is
 * complete.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "data/text/token_store.h"
#include "io/file.h"
#include "io/temporary.h"

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
    struct stored_sample x = {.first = h->tokens,
                              .tokens = s->tokens,
                              .first_answer = w->answers.n,
                              .first_image = w->images.n,
                              .answers = s->n_answers,
                              .file = w->file_name,
                              .line = s->line,
                              .number = s->number,
                              .group = s->group,
                              .flags = s->flags};
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
