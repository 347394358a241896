/*
 * token_store.c: reads a token store (see token_store.h).
 */
#include "data/text/token_store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "data/text/records.h"
#include "io/file.h"

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

/* Bytes of the index, or UINT64_MAX if they are more than a file can have. */
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

/* Whether ranges of a sample's tokens are not empty and in order. */
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
        ok = (s->ids[i] >= 0 && s->ids[i] <= h->largest) || (s->ids[i] == h->image_token && h->images);
    for (int f = 0; f < SAMPLE_FAULTS && ok; f++) ok = memchr(h->report.first[f], 0, sizeof h->report.first[f]);
    return ok ? PL_OK : error_set(e, PL_USAGE, "its index does not fit its ids");
}

static int map_file(struct token_store *s, const char *path, struct error *e)
{
    uint64_t size = 0;
    int fd = file_open(path, &size, e), rc = PL_OK;
    if (fd < 0) return e->code;
    if (size < TOKEN_STORE_DATA) rc = error_set(e, PL_USAGE, "it is not a token store, or was not finished");
    else if (mapped_open(&s->map, fd, size, PROT_READ, MAP_SHARED)) rc = file_error(path, "be mapped into memory", e);
    close(fd);
    return rc;
}

int token_store_open(struct token_store *s, const char *path, struct error *e)
{
    memset(s, 0, sizeof *s);
    int rc = map_file(s, path, e);
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
