/*
 * tokenize.c: see tokenize.h.
 *
 *     records ─ batch of objects ─ threads: JSON, messages, template, tokenizer ─ store, in order
 */
#include "data/text/tokenize.h"

#include <errno.h>
#include <unistd.h>

#include "base/progress.h"
#include "data/text/records.h"
#include "io/file.h"
#include "io/parquet.h"

enum { BATCH_SAMPLES = 512, BATCH_BYTES = 8 << 20, HASH_BLOCK = 1 << 20 };

/* --- files and fingerprints ----------------------------------------------------------------- */

int tokenize_files(char *const *paths, uint32_t n_paths, struct names *out, struct error *e)
{
    *out = (struct names){0};
    int rc = PL_OK;
    for (uint32_t i = 0; i < n_paths && !rc; i++) {
        struct names found = {0};
        rc = file_glob(paths[i], &found, e);
        if (!rc && !found.n) rc = error_set(e, PL_USAGE, "%s: no file has this name or matches it as a glob", paths[i]);
        for (uint32_t k = 0; k < found.n; k++) vec_push(out, mem_string(found.at[k]));
        names_free(&found);
    }
    if (!rc && !out->n) rc = error_set(e, PL_USAGE, "no files of conversations are given");
    if (rc) names_free(out);
    return rc;
}

static int hash_file(const char *path, char *block, uint64_t *h, struct error *e)
{
    uint64_t size = 0;
    if (dir_exists(path))
        return error_set(e, PL_USAGE, "%s is a folder, not a regular file; for all files of a folder write FOLDER/*",
                         path);
    int fd = file_open(path, &size, e), rc = PL_OK;
    if (fd < 0) return e->code;
    *h = hash_bytes(&size, sizeof size, *h);
    if (parquet_is(path)) *h = hash_bytes(path, strlen(path), *h); /* which the references to its images have */
    for (size_t have = 0;;) {
        ssize_t got = read(fd, block + have, HASH_BLOCK - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) rc = file_error(path, "be read", e);
        have += got > 0 ? (size_t)got : 0;
        if (got > 0 && have < HASH_BLOCK) continue; /* blocks do not depend on how read divides the file */
        if (!rc) *h = hash_bytes(block, have, *h);
        if (got <= 0) break;
        have = 0;
    }
    close(fd);
    return rc;
}

int tokenize_key(const struct tokenize_options *o, struct token_store_key *out, struct error *e)
{
    struct names files;
    const char *system = o->system ? o->system : "";
    if (tokenize_files(o->paths, o->n_paths, &files, e)) return e->code;
    char *block = mem_alloc(HASH_BLOCK);
    int rc = PL_OK;
    *out = (struct token_store_key){.data = files.n, .tokenizer = tokenizer_fingerprint(o->tokenizer)};
    for (uint32_t i = 0; i < files.n && !rc; i++) rc = hash_file(files.at[i], block, &out->data, e);
    if (o->template) out->template = template_fingerprint(o->template);
    out->options = hash_bytes(system, strlen(system), (o->images ? image_source_fingerprint(o->images) : 0) + o->text);
    mem_free(block);
    names_free(&files);
    return rc;
}

/* --- one sample ------------------------------------------------------------------------------- */

void tokenized_free(struct tokenized *t)
{
    chat_tokens_free(&t->tokens);
    text_free(&t->text);
}

enum conversation_fault tokenize_images(const struct image_source *s, struct conversation *c, struct bump *b,
                                        struct text_images *out, struct error *e)
{
    const bool no_videos = c->videos && s && !s->videos.max_frames;
    if (c->media->count && !s)
        error_set(e, PL_USAGE, "it has images or videos (%.100s), and the model takes only text",
                  c->media->items[0]->text);
    else if (no_videos && !image_text_takes_videos(&s->text))
        error_set(e, PL_USAGE, "it has a video, and the model takes none: give frames as images");
    else if (no_videos) error_set(e, PL_USAGE, "it has a video: set data.max_frames to the frames that a row may have");
    if (no_videos || (c->media->count && !s)) return SAMPLE_MEDIA;
    if (!s) return SAMPLE_FINE;
    const enum conversation_fault f = conversation_place_media(c, b, e);
    if (f) return f;
    struct image_tiles *tiles = bump_alloc(b, (c->media->count + 1) * sizeof *tiles);
    *out = (struct text_images){&s->text, tiles, c->media->count};
    for (uint32_t i = 0; i < out->n; i++)
        if (image_source_tiles(s, c->media->items[i]->text, b, &tiles[i], e)) return SAMPLE_FILES;
    return SAMPLE_FINE;
}

static enum conversation_fault encode(const struct tokenize_options *o, const struct text_images *images,
                                      struct tokenized *t, struct error *e)
{
    static const enum conversation_fault faults[] = {[CHAT_FINE] = SAMPLE_FINE,
                                                     [CHAT_RENDER] = SAMPLE_TEMPLATE,
                                                     [CHAT_ANSWERS] = SAMPLE_SPANS,
                                                     [CHAT_ENCODE] = SAMPLE_TOKENS,
                                                     [CHAT_IMAGES] = SAMPLE_IMAGES};
    struct conversation *c = &t->conversation;
    if (!o->images) images = NULL;
    if (!c->messages) return faults[chat_encode_text(o->tokenizer, c->prompt, c->completion, images, &t->tokens, e)];
    return faults[chat_encode(o->tokenizer, o->template, c->messages, c->beside, images, &t->tokens, &t->text, e)];
}

enum conversation_fault tokenize_sample(const struct tokenize_options *o, const char *json, size_t n, struct bump *b,
                                        struct tokenized *out, struct error *e)
{
    struct value *sample;
    struct text_images images = {0};
    *out = (struct tokenized){0};
    enum conversation_fault f = conversation_parse(json, n, o->room, b, &sample, e);
    if (!f)
        f = conversation_read(sample, o->system, image_text_joint(o->images ? &o->images->text : NULL), b,
                              &out->conversation, e);
    if (!f && o->images) out->group = conversation_group(out->conversation.media);
    if (!f) f = tokenize_images(o->images, &out->conversation, b, &images, e);
    if (f || (out->conversation.messages && !o->template)) return f;
    f = encode(o, &images, out, e);
    if (!f && !out->tokens.answers.n) {
        error_set(e, PL_USAGE, "no token of the rendered text belongs to an answer");
        f = SAMPLE_ANSWER;
    }
    return f;
}

/* --- a batch ---------------------------------------------------------------------------------- */

struct item {
    char *json;
    size_t n;
    const char *file;
    uint64_t line, times;
    struct bump memory;
    struct tokenized tokenized;
    enum conversation_fault fault;
    char why[240];
};

struct builder {
    const struct tokenize_options *o;
    struct token_store_writer *writer;
    struct item items[BATCH_SAMPLES];
    uint32_t n;
    size_t bytes;
    uint64_t read; /* bytes of all files so far */
    uint64_t rows; /* of all tables; UINT64_MAX: not all files are tables */
    VEC(int32_t) ids;
};

static void tokenize_item(const struct tokenize_options *o, struct item *x)
{
    struct error e = {0};
    x->fault = tokenize_sample(o, x->json, x->n, &x->memory, &x->tokenized, &e);
    if (x->fault) snprintf(x->why, sizeof x->why, "%.200s", e.text);
}

static uint32_t flags_of(const struct tokenized *t)
{
    const struct conversation *c = &t->conversation;
    if (!c->messages) return !*c->prompt && !c->media->count ? STORED_PLAIN : 0;
    return STORED_CHAT | (t->tokens.answer_ends ? STORED_ANSWER_ENDS : 0) |
           (t->tokens.text_ends ? STORED_TEXT_ENDS : 0);
}

static int store_item(struct builder *b, struct item *x, struct error *e)
{
    struct sample_report *report = token_store_report(b->writer);
    const struct chat_tokens *t = &x->tokenized.tokens;
    report_add(report, x->fault, x->times, x->file, x->line, x->why);
    if (x->fault && x->tokenized.group) token_store_note(b->writer, report->read - 1, x->tokenized.group);
    if (x->fault) return PL_OK;
    if (x->tokenized.conversation.messages && !b->o->template) {
        *e = *b->o->no_template;
        return error_prepend(e, "%s:%s is a conversation", x->file, record_place(x->line).text);
    }
    b->ids.n = 0;
    for (uint32_t i = 0; i < t->tokens.n; i++) vec_push(&b->ids, t->tokens.at[i].id);
    const struct conversation *c = &x->tokenized.conversation;
    const struct new_sample s = {.ids = b->ids.at, .answers = t->answers.at, .media = c->media, .images = t->images.at,
                                 .file = x->file, .line = x->line, .number = report->read - 1,
                                 .group = x->tokenized.group, .tokens = b->ids.n, .n_answers = t->answers.n,
                                 .flags = flags_of(&x->tokenized)};
    return token_store_add(b->writer, &s, e);
}

static int flush(struct builder *b, struct error *e)
{
    int rc = PL_OK;
#pragma omp parallel for schedule(dynamic)
    for (uint32_t i = 0; i < b->n; i++) tokenize_item(b->o, &b->items[i]);
    for (uint32_t i = 0; i < b->n; i++) {
        struct item *x = &b->items[i];
        if (!rc) rc = store_item(b, x, e);
        tokenized_free(&x->tokenized);
        bump_free(&x->memory);
        mem_free(x->json);
        memset(x, 0, sizeof *x);
    }
    b->n = 0;
    b->bytes = 0;
    return rc;
}

/* Stops as soon as it is certain that too many rows of tables cannot be used: a small file may
 * claim billions. */
static int check_bad(const struct builder *b, struct error *e)
{
    const struct sample_report *r = token_store_report(b->writer);
    if (!b->o->max_bad || b->rows == UINT64_MAX || (double)report_bad(r) <= *b->o->max_bad * (double)b->rows)
        return PL_OK;
    struct text t = {0};
    report_print(r, &t);
    error_set(e, PL_USAGE,
              "%s. The tables have %llu rows, and data.max_bad is %g; `plimsoll data inspect` shows samples", t.at,
              (unsigned long long)b->rows, *b->o->max_bad);
    text_free(&t);
    return e->code;
}

/* --- the whole -------------------------------------------------------------------------------- */

static int build_file(struct builder *b, const char *path, struct progress *p, struct error *e)
{
    struct records r;
    struct record x;
    bool more = true;
    uint64_t shown = 0, before = b->read;
    int rc = b->o->text ? records_open_text(&r, path, e) : records_open(&r, path, b->o->room, e);
    if (rc) return rc;
    while (!(b->o->most && b->read > b->o->most) && !(rc = records_next(&r, &x, &more, e)) && more) {
        char *copy = mem_alloc(x.n + 1);
        memcpy(copy, x.text, x.n);
        b->items[b->n++] = (struct item){.json = copy, .n = x.n, .file = path, .line = x.line, .times = x.times};
        b->bytes += x.n;
        b->read = before + r.bytes;
        if (b->n < BATCH_SAMPLES && b->bytes < BATCH_BYTES) continue;
        if ((rc = flush(b, e)) || (rc = check_bad(b, e))) break;
        if (b->o->interrupted && b->o->interrupted()) {
            rc = error_set(e, PL_FAIL, "stopped by a signal while text was tokenized");
            break;
        }
        progress_add(p, (r.bytes >> 20) - shown);
        shown = r.bytes >> 20;
    }
    int rest = flush(b, rc ? &(struct error){0} : e); /* frees the batch of a failed file, too */
    records_close(&r);
    return rc ? rc : rest;
}

static int build(struct builder *b, const struct names *files, struct error *e)
{
    struct progress p;
    uint64_t total = 0, size = 0;
    int rc = PL_OK;
    for (uint32_t i = 0; i < files->n && !rc; i++) rc = file_size(files->at[i], &size, e), total += size;
    for (uint32_t i = 0; i < files->n && !rc && b->rows != UINT64_MAX; i++) {
        const uint64_t rows = records_rows(files->at[i]);
        b->rows = rows == UINT64_MAX ? rows : b->rows + rows;
    }
    progress_begin(&p, "tokenizing", "MiB", (total >> 20) + 1);
    for (uint32_t i = 0; i < files->n && !rc; i++) rc = build_file(b, files->at[i], &p, e);
    progress_clear();
    return rc;
}

int tokenize_build(const struct tokenize_options *o, const struct token_store_key *key, const char *path,
                   struct error *e)
{
    struct names files;
    if (tokenize_files(o->paths, o->n_paths, &files, e)) return e->code;
    struct builder *b = mem_alloc(sizeof *b);
    b->o = o;
    int rc = token_store_create(&b->writer, path, key, o->images ? o->images->text.token : 0, e);
    if (!rc) {
        rc = build(b, &files, e);
        if (rc) token_store_abandon(b->writer);
        else rc = token_store_finish(b->writer, e);
    }
    vec_free(&b->ids);
    mem_free(b);
    names_free(&files);
    return rc;
}
